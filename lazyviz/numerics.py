"""Two ways of running one graph, node by node: how far their numbers and memory differ.

XLA fuses: it keeps intermediate values in registers, contracts and reorders arithmetic. So a
step's numbers differ a little from those of the same ops run one by one. The comparison says
where that begins, by how much, and in which of XLA's fusions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lazyrt.errors import UsageError
from lazyrt.lowering.emit import label_of
from lazyviz.render import text
from lazyviz.render.escape import markup

if TYPE_CHECKING:
    from lazyrt.execution.node_values import NodeValues
    from lazyrt.ir.node import Node, Value

# Relative and absolute tolerance, as `torch.testing.assert_close` has them.
_TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
}
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_MAX_FUSED = 6


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
    fusion: str


class Comparison:
    """The differences of two runs of one graph, in the order in which its nodes run.

    Attributes:
        rows: One for each result of each node.
        drift: Roots that changed because every node was kept, see `lazyrt.node_values`.
        peak_bytes: Device memory at the worst moment, eager and lazy.
    """

    def __init__(
        self, rows: tuple[NodeDifference, ...], drift: int, peak_bytes: tuple[int, int]
    ) -> None:
        self.rows = rows
        self.drift = drift
        self.peak_bytes = peak_bytes

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
        fused = f", in {first.fusion}" if first.fusion else ""
        return (
            f"{over} of {count} over tolerance, the first is %{first.node_id} {first.op} "
            f"({first.where}): {first.max_abs:.3g} = {_number(first.max_ulp)} ulp{fused}"
        )

    def to_text(self) -> str:
        """Return the summary, the memory and a table, the first node over tolerance marked."""
        return "\n".join([*self._head(), self._table()])

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        head = "<br>".join(markup(line) for line in self._head())
        first = self.first_over
        rows = "".join(
            f"<tr{_MARK if row is first else ''}>"
            + "".join(f"<td>{markup(str(cell))}</td>" for cell in _cells(row, first))
            + "</tr>"
            for row in self.rows
        )
        names = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        return (
            f'<div class="lazyviz-comparison">{head}<table><thead><tr>{names}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>"
        )

    def _head(self) -> list[str]:
        eager, lazy = map(text.size, self.peak_bytes)
        lines = [self.summary, f"peak memory: eager {eager}, lazy {lazy}"]
        if self.drift:
            roots = text.plural(self.drift, "root")
            lines.append(
                f"keeping every value changed {roots} of the optimised graph: XLA fuses it "
                "otherwise, and the table shows that fusion"
            )
        return lines

    def _table(self) -> str:
        first = self.first_over
        return text.table(list(_COLUMNS), [_cells(row, first) for row in self.rows])


_COLUMNS = ("", "node", "op", "type", "where", "max abs", "max ulp", "fusion")
_MARK = ' style="background:#d14d7233"'


def _cells(row: NodeDifference, first: NodeDifference | None) -> tuple[object, ...]:
    mark = "→" if row is first else "!" if row.over else ""
    return (
        mark, f"%{row.node_id}", row.op.removeprefix("aten."), row.type, row.where,
        f"{row.max_abs:.3g}", _number(row.max_ulp), row.fusion,
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
    """Compare two runs of one graph, node by node.

    Args:
        eager: `lazyrt.node_values(t, mode="eager")`: the reference.
        lazy: `lazyrt.node_values(t, mode="lazy")`, of the same graph.
        rtol: Relative tolerance; by default torch's own for each dtype.
        atol: Absolute tolerance, likewise.

    Raises:
        UsageError: The runs are of different graphs.
    """
    if eager.graph.fingerprint != lazy.graph.fingerprint:
        raise UsageError(
            f"compare() got runs of two graphs, {eager.graph.fingerprint[:12]} and "
            f"{lazy.graph.fingerprint[:12]}, whose nodes have no partners. Take both from the "
            "same pending tensors, before their barrier."
        )
    fusions = _fusions(lazy.hlo or eager.hlo)
    rows = [
        _difference(
            value, eager.values[value], lazy.values[partner], fusions, rtol, atol
        )
        for value, partner in zip(_results(eager), _results(lazy), strict=True)
    ]
    drift = len(eager.drift) + len(lazy.drift)
    return Comparison(tuple(rows), drift, (eager.peak_bytes, lazy.peak_bytes))


def compare_modes(
    *tensors: torch.Tensor, rtol: float | None = None, atol: float | None = None
) -> Comparison:
    """Run what some pending tensors need in both ways and compare; the step stays as it is.

    Args:
        tensors: Lazy tensors; none given means all live ones.
        rtol: See `compare`.
        atol: See `compare`.
    """
    import lazyrt

    eager = lazyrt.node_values(*tensors, mode="eager")
    lazy = lazyrt.node_values(*tensors, mode="lazy")
    return compare(eager, lazy, rtol=rtol, atol=atol)


def _results(run: NodeValues) -> list[Value]:
    nodes = run.graph.canonical.nodes
    return [out for node in nodes for out in node.outputs if out is not None]


def _difference(
    value: Value,
    eager: torch.Tensor,
    lazy: torch.Tensor,
    fusions: dict[str, str],
    rtol: float | None,
    atol: float | None,
) -> NodeDifference:
    node = value.node
    assert node is not None  # noqa: S101 - results belong to nodes
    usual = _TOLERANCES.get(value.dtype, (0.0, 0.0))
    relative = usual[0] if rtol is None else rtol
    absolute = usual[1] if atol is None else atol
    close = torch.isclose(lazy, eager, relative, absolute, equal_nan=True)
    return NodeDifference(
        node_id=node.id,
        op=node.op.name,
        type=str(value).partition(":")[2],
        where=_where(node),
        max_abs=_max_abs(eager, lazy),
        max_ulp=_max_ulp(eager, lazy),
        over=not bool(close.all()),
        fusion=fusions.get(label_of(node), ""),
    )


def _where(node: Node) -> str:
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


_COMPUTATION = re.compile(r"^%?(fused_computation[\w.-]*) ")
_OP_NAME = re.compile(r'op_name="[^"]*lazyrt_graph/([^"]*)"')


def _fusions(hlo: str) -> dict[str, str]:
    """Return, for each op's name in HLO metadata, the last fusion that computes a part of it.

    A fusion of one op alone is none: nothing was moved across ops there.
    """
    members: dict[str, dict[str, None]] = {}
    current = ""
    for line in hlo.splitlines():
        header = _COMPUTATION.match(line)
        if header is not None:
            current = header[1]
        elif not line.startswith(" "):
            current = ""
        found = _OP_NAME.search(line)
        if current and found is not None:
            members.setdefault(current, {})[found[1]] = None
    fusions: dict[str, str] = {}
    for name, ops in members.items():
        if len(ops) > 1:
            shown = " + ".join(list(ops)[:_MAX_FUSED]) + (
                " ..." if len(ops) > _MAX_FUSED else ""
            )
            fusions |= dict.fromkeys(ops, f"{name} ({shown})")
    return fusions
