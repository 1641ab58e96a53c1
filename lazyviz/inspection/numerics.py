"""Two ways of running one graph, node by node: how far their numbers and memory differ.

XLA fuses: it keeps intermediate values in registers, contracts and reorders arithmetic. So a
step's numbers differ a little from those of the same ops run one by one. The comparison says
where that begins, by how much, and in which of XLA's fusions.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import lazyrt
from lazygraph.read.hlo import modules
from lazygraph.read.hlo_module import name_in
from lazygraph.types import tensor_type, type_bytes, without_layout
from lazyrt.errors import LostValueError, UsageError
from lazyrt.tools import Leaf, Lifetime, NodeValues, require_lazy
from lazyviz.doc import Code, Doc, Fold, Line, Note, Picture, Sentence, Showable, Table
from lazyviz.inspection.subjects import how_to_keep
from lazyviz.render import text
from lazyviz.render.html import markup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from lazygraph.read.hlo_module import Computation
    from lazyrt import Inspection
    from lazyrt.tools import Node, NotFinite, Operand, Origin, Value
    from lazyviz.inspection.subjects import Target

# Relative and absolute tolerance, as `torch.testing.assert_close` has them.
_TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MAX_FUSED = 6
_MAX_HELD = 8
_TITLE = "when the largest tensors take memory"

_COLUMNS = ("", "node", "op", "type", "where", "max abs", "max ulp", "made here", "fusion")  # fmt: skip
# The label of a node with its number in the graph; where XLA merged several, the first.
_OP_NAME = re.compile(r'op_name="[^";]*lazyrt_graph/([^";]*) #(\d+)')
_HEADER = ("op", "type", "where", "not finite", "first at", "made of")


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """How far one result of one node differs.

    Attributes:
        node_id: The node's number in the IR.
        op: What it computes.
        where: Its module and line.
        max_abs: Largest absolute difference; infinite where only one side is NaN.
        max_ulp: The same in units of the last place; 0 for integers.
        over: Whether an element is over the tolerance.
        made_ulp: What of it arose in this very op, in ulp: how far the op run alone on the
            optimised run's own operands is from what that run computed.
        fusion: The fusion that computed it in the optimised executable with its ops, as far
            as HLO metadata tell; empty where it stands alone or is not known.
    """

    node_id: int
    op: str
    type: str
    where: str
    max_abs: float
    max_ulp: float
    over: bool
    made_ulp: float
    fusion: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison(Showable):
    """The differences of two runs of one graph, in the order in which its nodes run.

    Attributes:
        rows: One for each result of each node.
        drift: Roots that changed because every node was kept, see `lazyrt.node_values`.
        peak_bytes: Device memory at the worst moment, eager and lazy.
        cause: The earliest value under the first one over tolerance, or that one itself, whose
            difference arose in its own op; None where nothing is over it.
        timelines: When each tensor takes memory, eager and lazy.
    """

    rows: tuple[NodeDifference, ...]
    drift: int
    peak_bytes: tuple[int, int]
    cause: NodeDifference | None = None
    timelines: tuple[Timeline, ...] = ()

    @property
    def first_over(self) -> NodeDifference | None:
        """The first node over the tolerance, None when all are within it."""
        return next((row for row in self.rows if row.over), None)

    @property
    def summary(self) -> str:
        """One sentence: whether the runs agree, and if not, where that begins."""
        count = text.plural(len(self.rows), "value")
        first = self.first_over
        if first is None:
            worst = max((row.max_ulp for row in self.rows), default=0)
            return f"{count} agree; the largest difference is {_number(worst)} ulp"
        over = sum(row.over for row in self.rows)
        return (
            f"{over} of {count} over tolerance, the first is %{first.node_id} {first.op} "
            f"({first.where}): {first.max_abs:.3g} = {_number(first.max_ulp)} ulp{self._blame()}"
        )

    def _blame(self) -> str:
        """Return where the difference began, and the fusion that made it."""
        first, cause = self.first_over, self.cause
        if cause is None or first is None:
            return f", in {first.fusion}" if first is not None and first.fusion else ""
        where = cause.fusion or "XLA's own kernel of that op"
        if cause == first:
            return f", made by {where}"
        return f"; it began at %{cause.node_id} {cause.op} ({cause.where}), made by {where}"

    def doc(self) -> Doc:
        """Return the summary, the memory and a table, the first node over tolerance marked."""
        summary, *others = self._head()
        first = self.first_over
        fusions = list(dict.fromkeys(row.fusion for row in self.rows if row.fusion))
        marked = self.rows.index(first) if first is not None else None
        rows = [_cells(row, first) for row in self.rows]
        title = f"ops of {text.plural(len(fusions), 'fusion')}"
        listed = [Fold(title, [Code("\n".join(fusions))], in_text=True)]
        return Doc(
            [
                Line(summary),
                *map(Note, others),
                Table(_COLUMNS, rows, marked=marked),
                *(listed if fusions else ()),
                *(
                    Fold(f"{t.run}: {_TITLE}", [Picture(t.to_svg(), t.to_text())])
                    for t in self.timelines
                ),
            ],
            css_class="lazyviz-comparison",
        )

    def _head(self) -> list[str]:
        eager, lazy = map(text.size, self.peak_bytes)
        lines = [self.summary, f"peak memory: eager {eager}, lazy {lazy}"]
        lines += [f"  {timeline.to_text()}" for timeline in self.timelines]
        if self.drift:
            roots = text.plural(self.drift, "root")
            lines.append(
                f"keeping every value changed {roots} of the optimised graph: XLA fuses it "
                "otherwise, and the table shows that fusion"
            )
        return lines


def _cells(row: NodeDifference, first: NodeDifference | None) -> tuple[object, ...]:
    mark = "→" if row is first else "!" if row.over else ""
    return (
        mark, f"%{row.node_id}", row.op.removeprefix("aten."), row.type, row.where,
        f"{row.max_abs:.3g}", _number(row.max_ulp), _number(row.made_ulp),
        row.fusion.partition(" ")[0],
    )  # fmt: skip


def _number(ulp: float) -> str:
    return "∞" if ulp == float("inf") else f"{ulp:,.0f}"


def compare(
    eager: NodeValues,
    lazy: NodeValues,
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> Comparison:
    """Compare two runs of one pending graph node by node: numbers, fusions and memory.

    Args:
        eager: `lazyrt.node_values(t, mode="eager")`: the reference, each op alone.
        lazy: `lazyrt.node_values(t, mode="lazy")`, of the same graph.
        rtol: Relative tolerance; by default torch's own for each dtype.
        atol: Absolute tolerance, likewise.

    Raises:
        UsageError: The runs are of different graphs.
    """
    for run in (eager, lazy):
        if not isinstance(run, NodeValues):
            raise UsageError(
                f"compare() got an object of type {type(run).__name__}, which is no run of a "
                "graph. Take both from lazyrt.node_values(t, mode=...), or use "
                "lazyviz.compare_modes(t)."
            )
    if eager.graph.fingerprint != lazy.graph.fingerprint:
        raise UsageError(
            f"compare() got runs of two graphs, {eager.graph.fingerprint[:12]} and "
            f"{lazy.graph.fingerprint[:12]}, whose nodes have no partners. Take both from the "
            "same pending tensors, before their barrier."
        )
    by_number = _fusions(lazy.kept_hlo)
    fusions = {
        node: by_number[k] for k, node in enumerate(lazy.kept_nodes) if k in by_number
    }
    partners = list(zip(_results(eager), _results(lazy), strict=True))
    lifetimes = [
        Timeline(run.mode, run.lifetimes) for run in (eager, lazy) if run.lifetimes
    ]
    lifetimes += [of_hlo(run.hlo) for run in (eager, lazy) if run.hlo]
    rows = {
        partner: _difference(value, partner, eager, lazy, fusions, rtol, atol)
        for value, partner in partners
    }
    return Comparison(
        tuple(rows.values()),
        len(eager.drift) + len(lazy.drift),
        (eager.peak_bytes, lazy.peak_bytes),
        cause=_cause(rows),
        timelines=tuple(lifetimes),
    )


def _cause(rows: dict[Value, NodeDifference]) -> NodeDifference | None:
    """Return the earliest row, of those under the first over tolerance, that made a difference."""
    first = next((value for value, row in rows.items() if row.over), None)
    if first is None:
        return None
    under = set(lazyrt.Graph([first]).nodes)
    made = (row for v, row in rows.items() if v.node in under and row.made_ulp)
    return next(made, None)


def compare_modes(
    *tensors: torch.Tensor, rtol: float | None = None, atol: float | None = None
) -> Comparison:
    """Run what pending tensors need op by op and optimised, and compare; their step stays.

    Args:
        tensors: Lazy tensors; none given means all live ones.
        rtol: See `compare`.
        atol: See `compare`.
    """
    for tensor in tensors:
        require_lazy(tensor, "compare_modes()")
    if not lazyrt.pending_graph(*tensors).nodes:
        what = "the tensors that it got are" if tensors else "everything is"
        raise UsageError(
            f"compare_modes() needs pending tensors, and {what} computed already, so there is no "
            "graph to run in two ways. Call it before the barrier that runs them."
        )
    eager = lazyrt.node_values(*tensors, mode="eager")
    lazy = lazyrt.node_values(*tensors, mode="lazy")
    return compare(eager, lazy, rtol=rtol, atol=atol)


def _results(run: NodeValues) -> list[Value]:
    nodes = run.graph.canonical.nodes
    return [out for node in nodes for out in node.outputs if out is not None]


def _difference(
    value: Value,
    partner: Value,
    eager_run: NodeValues,
    lazy_run: NodeValues,
    fusions: dict[Node, str],
    rtol: float | None,
    atol: float | None,
) -> NodeDifference:
    node = value.node
    eager, lazy = eager_run.values[value], lazy_run.values[partner]
    assert node is not None  # noqa: S101 - results belong to nodes
    usual = _TOLERANCES.get(value.dtype, (0.0, 0.0))
    relative = usual[0] if rtol is None else rtol
    absolute = usual[1] if atol is None else atol
    # `isclose` knows no numbers of a byte.
    is_byte = value.dtype.is_floating_point and value.dtype.itemsize == 1
    x, y = [t.float() if is_byte else t for t in (lazy, eager)]
    close = torch.isclose(x, y, relative, absolute, equal_nan=True)
    return NodeDifference(
        node_id=node.id,
        op=node.op.name,
        type=str(value).partition(":")[2],
        where=where_of(node),
        max_abs=_max_abs(eager, lazy),
        max_ulp=_max_ulp(eager, lazy),
        over=not bool(close.all()),
        made_ulp=_max_ulp(lazy_run.alone.get(partner, lazy), lazy),
        fusion=fusions.get(partner.node, "") if partner.node is not None else "",
    )


def where_of(node: Node) -> str:
    """Return the module and the line of a node."""
    site = node.provenance.site
    parts = (node.provenance.path, str(site) if site is not None else "")
    return ", ".join(part for part in parts if part)


def _max_abs(a: torch.Tensor, b: torch.Tensor) -> float:
    if not a.numel():
        return 0.0
    if not (a.is_floating_point() or a.is_complex()):
        return float((a.double() - b.double()).abs().max())
    if bool((a.isnan() != b.isnan()).any()):
        return float("inf")
    wide = torch.complex128 if a.is_complex() else torch.float64
    gap = (a.to(wide) - b.to(wide)).abs()
    return float(gap.masked_fill(a == b, 0).nan_to_num(nan=0.0).max())


def _max_ulp(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return how many floating-point numbers lie between two, at most."""
    if a.is_complex():
        return max(_max_ulp(a.real, b.real), _max_ulp(a.imag, b.imag))
    if not a.is_floating_point() or not a.numel():
        return 0.0
    if bool((a.isnan() != b.isnan()).any()):
        return float("inf")
    kind = _INTEGERS[a.element_size()]
    bits = [t.contiguous().view(kind).to(torch.int64) for t in (a, b)]
    lowest = torch.iinfo(kind).min
    # Numbers in order: negative floats grow downwards as integers do not.
    x, y = [torch.where(t < 0, lowest - t, t) for t in bits]
    same_sign = (x < 0) == (y < 0)
    gap = torch.where(
        same_sign, (x - y).abs().double(), x.double().abs() + y.double().abs()
    )
    return float(gap.masked_fill(a.isnan(), 0).max())


def _fusions(hlo: str) -> dict[int, str]:
    """Return, for each node's number in HLO metadata, the last fusion that computes a part of it.

    A fusion of one op alone is none: nothing was moved across ops there.
    """
    computations = modules(hlo)[0].computations.items() if hlo else ()
    members = {
        name: {
            int(label[2]): label[1]
            for each in computation.instructions
            if (label := _OP_NAME.search(each.metadata)) is not None
        }
        for name, computation in computations
        if name.startswith("fused_computation")
    }
    fusions: dict[int, str] = {}
    for name, ops in members.items():
        if len(ops) > 1:
            shown = " + ".join(list(ops.values())[:_MAX_FUSED]) + (
                " ..." if len(ops) > _MAX_FUSED else ""
            )
            fusions |= dict.fromkeys(ops, f"{name} ({shown})")
    return fusions


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NotFiniteView(Showable):
    """What `find_nan` found; a notebook shows it as a table."""

    found: NotFinite
    names: dict[Value, str]

    def __bool__(self) -> bool:
        """Return whether a result is not finite."""
        return bool(self.found.reached)

    def doc(self) -> Doc:
        """Return the ops as a table below a sentence."""
        head, *notes = self._lines()
        table = [Table(_HEADER, self._rows())] if self.found.origins else []
        return Doc([Sentence(head), *table, *map(Note, notes)])

    def _lines(self) -> list[str]:
        found = self.found
        how = f"{text.plural(found.checked, 'value')} checked, each op run by itself"
        if not found.reached:
            return [f"Every result is finite: {how}."]
        results = text.plural(len(found.reached), "result is", "results are")
        begins = []
        if found.origins:
            begins.append(text.plural(len(found.origins) + found.more, "op"))
        if found.inputs:
            begins.append(text.plural(len(found.inputs), "input"))
        lines = [f"{results} not finite. It begins at {' and '.join(begins)}: {how}."]
        if found.more:
            lines.append(f"{text.plural(found.more, 'more such op')} left out.")
        lines += [
            f"{self._name(leaf)} {tensor_type(leaf)} came in with {counts}."
            for leaf, counts in found.inputs.items()
        ]
        return lines

    def _rows(self) -> list[list[object]]:
        return [
            [
                f"%{origin.node.id} {origin.node.op.name}",
                tensor_type(origin.value),
                where_of(origin.node),
                str(origin.counts),
                str(list(origin.first)) if origin.first else "",
                "; ".join(self._made_of(each, origin) for each in origin.operands),
            ]
            for origin in self.found.origins
        ]

    def _made_of(self, operand: Operand, origin: Origin) -> str:
        summary = operand.summary
        if isinstance(operand.value, Leaf) and operand.value.kind == "float":
            return f"the number {operand.element}"
        bad = str(summary.not_finite)
        span = f"{summary.low:.4g} to {summary.high:.4g}"
        if summary.elements == 1 or summary.low == summary.high:
            span = f"{summary.low:.4g}"
        if summary.nan + summary.infinite == summary.elements:
            span = ""
        parts = [part for part in (span, bad) if part]
        if operand.element is not None and summary.elements > 1:
            parts.append(f"{operand.element:.4g} at {list(origin.first)}")
        return f"{self._name(operand.value)}: {', '.join(parts)}"

    def _name(self, value: Value) -> str:
        return self.names.get(value) or text.reference(value)


def find_nan(*tensors: torch.Tensor) -> NotFiniteView:
    """Return where NaN and infinities begin: ops, their lines, and the numbers they were made of.

    Runs what the tensors need op by op, as a peek: the step stays as it is. An op is named if its
    result has NaN and none of its operands has, or infinities where they are finite, and if that
    leads to one of the tensors: a mask of -inf that a softmax swallows is not. What an op gives by
    itself may differ from what the optimised step gives; `compare_modes` tells how far.

    Args:
        tensors: Lazy tensors of floating-point numbers, pending or made by a finished step whose
            inputs are kept (`config.keep_values`); without any, all that is pending, else the
            last step.

    Returns:
        A view; true if something is not finite.

    Raises:
        UsageError: Nothing is pending for them, and the inputs of their step are not kept, so the
            ops behind them are gone.
    """
    for tensor in tensors:
        require_lazy(tensor, "find_nan()")
    step = "" if tensors else kept_step(lazyrt)
    inspection = lazyrt.inspect(*([int(step)] if step else tensors))
    if not (inspection.graph.nodes and inspection.is_current):
        what = "the tensors that it got are" if tensors else "everything is"
        raise UsageError(
            f"find_nan() needs pending tensors, or those of a step whose inputs are kept; {what} "
            "computed already, and no such step is there. Call it before the barrier: inside "
            "`with lazyrt.step():`, before `optimizer.step()`, or in a function given to "
            "`lazyrt.on_barrier`; or set lazyrt.config.keep_values = 'last' and run the step "
            "once more."
        )
    return find_in(inspection)


def kept_step(runtime: ModuleType) -> str:
    """Return the number of the last step with kept inputs; empty if there is none, or ops are pending."""
    status = runtime.status()
    steps = () if status.pending_ops else status.kept.steps
    return str(steps[-1]) if steps else ""


def of_target(target: Target) -> Doc:
    """Return where NaN and infinities begin in a graph that a command names.

    Of a finished step whose inputs are not kept, what tensors still hold of its results is
    searched alone.
    """
    inspection = target.inspection
    above = [Line(target.name)] if target.step is not None else []
    if inspection is not None and inspection.is_current:
        return Doc([*above, find_in(inspection).doc()])
    held = _held_results(inspection) if inspection is not None else {}
    bad = [f"{name} has {words}" for name, words in held.items() if words]
    if held and not bad:
        said = f"Every result still held is finite: {len(held):,} checked."
        return Doc([*above, Sentence(said)])
    said = "Nothing was checked: no tensor holds a result of the step any more, and "
    if bad:
        said = (
            f"Not finite: {len(bad)} of {text.plural(len(held), 'result')} still held: "
            f"{', '.join(bad[:_MAX_HELD])}. Where that began is not known: "
        )
    said += (
        f"its inputs are not kept. {how_to_keep()} %lazy nan on ends a loop at the first "
        "step that is not finite."
    )
    return Doc([*above, Sentence(said)])


def _held_results(inspection: Inspection) -> dict[str, str]:
    """Return what is not finite in each result of a finished step that a tensor still holds."""
    found: dict[str, str] = {}
    for root in inspection.graph.roots:
        if root.node is None:
            continue
        with contextlib.suppress(LostValueError):
            summary = inspection.look(root.node.id, root.index).summary
            held = inspection.holdings.get(root)
            name = (held and held.name) or text.reference(root)
            found[name] = str(summary.not_finite)
    return found


def find_in(inspection: Inspection) -> NotFiniteView:
    """Return the same of a graph that can be computed."""
    names = {
        value: held.name for value, held in inspection.holdings.items() if held.name
    }
    return NotFiniteView(inspection.find_not_finite(), names)


# When the tensors of a graph take memory: each op run alone, next to XLA's schedule.

# Instructions whose result is memory of their operands.
_ALIASES = frozenset(("tuple", "get-tuple-element", "bitcast", "optimization-barrier"))
# Results that are written into an input's memory: `input_output_alias={ {1}: (3, {}, may-alias) }`.
_DONATED = re.compile(r"\{(\d*)\}: \(\d+, ")
_MAX_LISTED = 5
_MAX_BARS = 40
_WIDTH, _BAR, _LEFT = 360, 8, 4


@dataclass(frozen=True, slots=True)
class Timeline:
    """The lifetimes of the tensors of one run, which is `eager` or `lazy`."""

    run: str
    tensors: tuple[Lifetime, ...]

    @property
    def length(self) -> int:
        """Number of positions in the schedule."""
        return 1 + max((each.dies for each in self.tensors), default=-1)

    def live_bytes(self) -> list[int]:
        """Return how many bytes are taken at each position of the schedule."""
        change = [0] * (self.length + 1)
        for each in self.tensors:
            change[each.born] += each.nbytes
            change[each.dies + 1] -= each.nbytes
        return [*itertools.accumulate(change[:-1])]

    def at_peak(self) -> tuple[int, tuple[Lifetime, ...]]:
        """Return the position at which most is taken, and the tensors there, largest first."""
        taken = self.live_bytes()
        if not taken:
            return 0, ()
        at = taken.index(max(taken))
        there = [each for each in self.tensors if each.born <= at <= each.dies]
        return at, tuple(sorted(there, key=lambda each: -each.nbytes))

    def to_text(self) -> str:
        """Return the peak, and the largest tensors that make it up."""
        at, there = self.at_peak()
        if not there:
            return f"{self.run}: no tensor takes memory"
        total = text.size(sum(each.nbytes for each in there))
        shown = ", ".join(
            f"{each.name} {each.type} {text.size(each.nbytes)}"
            for each in there[:_MAX_LISTED]
        )
        more = len(there) - _MAX_LISTED
        rest = f" and {text.plural(more, 'smaller one')}" if more > 0 else ""
        return f"{self.run}: {total} at {at + 1} of {self.length}: {shown}{rest}"

    def to_svg(self) -> str:
        """Return one bar for each of the largest tensors, as long as it lives."""
        bars = sorted(self.tensors, key=lambda each: -each.nbytes)[:_MAX_BARS]
        bars.sort(key=lambda each: (each.born, each.dies))
        largest = max((each.nbytes for each in bars), default=1) or 1
        unit = _WIDTH / max(1, self.length)
        rows = []
        for row, each in enumerate(bars):
            width = max(1.0, (each.dies - each.born + 1) * unit)
            shade = 0.25 + 0.75 * each.nbytes / largest
            title = markup(
                f"{each.name} {each.type}, {text.size(each.nbytes)}, "
                f"from {each.born + 1} to {each.dies + 1}"
            )
            rows.append(
                f'<rect x="{_LEFT + each.born * unit:.1f}" y="{row * _BAR + 1}" '
                f'width="{width:.1f}" height="{_BAR - 2}" fill="#4a7fb5" '
                f'fill-opacity="{shade:.2f}"><title>{title}</title></rect>'
            )
        height = max(1, len(bars)) * _BAR
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + 2 * _LEFT}" '
            f'height="{height}" role="img"><title>{markup(self.to_text())}</title>'
            f"{''.join(rows)}</svg>"
        )


def of_hlo(hlo: str) -> Timeline:
    """Return the lifetimes in a scheduled module: of each buffer from its making to its last use.

    XLA may put several of them into the same memory, one after the other.
    """
    (module,) = modules(hlo)
    donated = _DONATED.findall(hlo.partition("\n")[0])
    entry = module.computations[module.entry]
    return Timeline("lazy", tuple(_lifetimes(entry, donated)))


def _lifetimes(entry: Computation, donated: Sequence[str]) -> Iterator[Lifetime]:
    instructions = entry.instructions
    last = len(instructions) - 1
    memory: list[set[int]] = []
    dies = list(range(len(instructions)))
    for at, each in enumerate(instructions):
        held = [memory[operand] for operand in each.operands if operand >= 0]
        used = set().union(*held)
        memory.append(used if each.op in _ALIASES else {at})
        for owner in used:
            dies[owner] = at
    for owner in memory[entry.root]:
        dies[owner] = last
    results = entry.instructions[entry.root].operands
    in_inputs = set().union(
        *(memory[results[int(k)] if k else entry.root] for k in donated)
    )
    for at, each in enumerate(instructions):
        nbytes = type_bytes(each.type)
        is_input = each.op in {"parameter", "constant"}
        if each.op in _ALIASES or not nbytes or (at in in_inputs and not is_input):
            continue
        _, op = name_in(each.metadata)
        name = f"{each.name} {op}".strip()
        yield Lifetime(
            name,
            without_layout(each.type),
            nbytes,
            0 if is_input else at,
            last if is_input else dies[at],
        )
