"""What a step-cache miss finds out besides the executable.

The new graph gets a name, its tensors the user's names, and its compile a reason. Nothing here
runs on a hit, and nothing here may stop a step: an explanation that fails is logged, and the
step goes on without it. Only `frozen()` stops one.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import logging
import re
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lazygraph.explain.model import (
    BucketNote,
    Cause,
    Explanation,
    GuardNote,
    Loop,
    OptimizerNote,
    Source,
    StepKey,
)
from lazygraph.explain.why import evicted, explain
from lazygraph.snapshot import AUTOGRAD, FROZEN, Name, Origin
from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.errors import FrozenError, LazyRuntimeError
from lazyrt.execution import compiler
from lazyrt.execution.graph_registry import CompiledGraph, Run, graph_registry
from lazyrt.ir.fingerprint import Canonical, snapshot_of
from lazyrt.ir.live import Buffer, FromCpu, RanAlone, pending, ready_buffers
from lazyrt.lowering.partitioning import mesh_of
from lazyrt.observe.events import SourceLocation

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from lazyrt.ir.node import Value


# ------------------------------------------------------- names of numbers in the source
# An op's record has its value and its line. The name is in the source of that line: the argument
# of the call that became the op. A line that cannot be read, or in which several arguments could be
# meant, gives no name rather than a wrong one.


_MAX_TEXTS = 20_000
_MAX_TEXT = 60


class UserSource(Source):
    """What the source of the user's program says of arguments and numbers."""

    def argument(self, site: SourceLocation | None, op: str, position: int) -> str:
        """Return the expression of an argument, such as `self.eps`; empty where unknown."""
        return self.quote(argument_name(site, op, position))

    def call(self, site: SourceLocation | None, op: str) -> str:
        """Return the call that recorded an op, as it is written; empty where that is unclear."""
        mine = [c for c in _covering(site, (ast.Call,)) if _callee(c) in _spellings(op)]
        text = ast.unparse(mine[0]) if len(mine) == 1 else ""
        return self.quote(text if len(text) <= _MAX_TEXT else "")

    def parameter(self, op: str, position: int) -> str:
        """Return what an op's schema calls an argument; empty where unknown."""
        return name_in_schema(op, position)

    def statement(self, site: SourceLocation | None) -> str:
        """Return a line of the program, shortened to one sentence's length; empty where unknown."""
        text = linecache.getline(site.file, site.line).strip() if site else ""
        short = text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."
        return self.quote(short)

    def loop(self, site: SourceLocation | None) -> Loop | None:
        """Return the innermost `for` or `while` around a line; None where none is known."""
        around = _covering(site, (ast.For, ast.While, ast.AsyncFor))
        found = max(around, key=lambda node: node.lineno, default=None)
        if site is None or found is None:
            return None
        return site.file, found.lineno, found.end_lineno or found.lineno

    def takes_tensor(self, op: str, position: int) -> bool:
        """Return whether some overload of an op takes a tensor for an argument."""
        return takes_tensor(op, position)

    def expression(self, site: SourceLocation | None, op: str) -> tuple[str, str]:
        """Return the expression in which a number varied, and the number's name there."""
        found = expression_at(site, op) or Expression("")
        return self.quote(found.text), self.quote(found.number)


def argument_name(site: SourceLocation | None, op: str, position: int) -> str:
    """Return the expression of an argument, such as `self.eps`; empty where it is unknown.

    The position is that in the op's schema, operands included.
    """
    if site is None:
        return ""
    names = _spellings(op)
    calls = [call for call in _covering(site, (ast.Call,)) if _callee(call) in names]
    if len(calls) != 1:
        return ""
    number = len(calls[0].args) + _is_method(calls[0])
    if number > len(arguments_of(op, by_keyword=False)):
        return ""  # sizes that are given one by one
    expression = _argument(calls[0], name_in_schema(op, position), position)
    if expression is None or not any(
        isinstance(node, ast.Name) for node in ast.walk(expression)
    ):
        return ""
    text = ast.unparse(expression)
    return text if len(text) <= _MAX_TEXT else ""


def takes_tensor(op: str, position: int) -> bool:
    """Return whether some overload of an op takes a tensor for an argument."""
    name = name_in_schema(op, position)
    return any(
        each.name == name and "Tensor" in str(each.type)
        for overload in _overloads(op)
        for each in overload._schema.arguments
    )


def name_in_schema(op: str, position: int) -> str:
    """Return the name of an argument; empty for an op that torch does not have."""
    names = arguments_of(op)
    return names[position] if 0 <= position < len(names) else ""


def arguments_of(op: str, *, by_keyword: bool = True) -> list[str]:
    """Return the names of an op's arguments; none for an op that torch does not have."""
    found = next((each for each in _overloads(op) if str(each) == op), None)
    given = found._schema.arguments if found else []
    return [str(each.name) for each in given if by_keyword or not each.kwarg_only]


def _overloads(op: str) -> list[Any]:
    namespace, name, *_ = (*op.split("."), "")
    packet = getattr(getattr(torch.ops, namespace, None), name, None) if name else None
    names = packet.overloads() if packet is not None else []
    return [getattr(packet, each) for each in names]


def _spellings(op: str) -> set[str]:
    """Return what a call of an op may be called in a program."""
    name = op.split(".")[1] if op.count(".") > 1 else op
    name = name.removesuffix("_backward")
    bare = name.removeprefix("_").removesuffix("_")
    return {name, bare, f"{bare}_", bare.removeprefix("native_")}


def _covering(
    site: SourceLocation | None, kinds: tuple[type[Any], ...]
) -> Iterator[Any]:
    """Yield the nodes of some kinds whose text covers a line."""
    tree = tree_of(site.file) if site is not None else None
    if site is None or tree is None:
        return
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (
            node.lineno <= site.line <= (node.end_lineno or node.lineno)
        ):
            yield node


def tree_of(file: str) -> ast.Module | None:
    """Return the syntax tree of a source file; None for none, one too long, a cell with magics."""
    lines = linecache.getlines(file)
    return _parsed("".join(lines)) if 0 < len(lines) <= _MAX_TEXTS else None


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _callee(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _argument(call: ast.Call, argument: str, position: int) -> ast.expr | None:
    """Return the argument of that name, else the one at that place."""
    for keyword in call.keywords:
        if keyword.arg == argument:
            return keyword.value
    if any(isinstance(each, ast.Starred) for each in call.args):
        return None
    if _is_method(call):  # the tensor stands in front of the dot
        position -= 1
    given = call.args[position:] if position >= 0 else []
    return given[0] if given else None


_FUNCTIONS_OF = frozenset(
    ("torch", "F", "functional", "nn", "linalg", "special", "fft")
)


def _is_method(call: ast.Call) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return name not in _FUNCTIONS_OF


_is_frozen: ContextVar[bool] = ContextVar("lazyrt_frozen", default=False)
_log = logging.getLogger(__name__)
_MAX_FALLBACKS = 100
_MAX_GUARDS = 100

# What asked for a barrier, and where.
Boundary = tuple[str, SourceLocation | None]

_began_after: Boundary = ("", None)
_fallbacks: deque[tuple[str, SourceLocation | None]] = deque(maxlen=_MAX_FALLBACKS)
_guards: deque[GuardNote] = deque(maxlen=_MAX_GUARDS)
_buckets: BucketNote | None = None
_modules: dict[str, bool] = {}
_Names = dict[int, list[Name]]


@dataclass(slots=True)
class Hooks:
    """What the layers above tell of the pending step.

    Attributes:
        names: Returns the user's names of buffers, by their identity. What autograd alone holds has
            it as its holder, and no text.
        optimizers: Returns the optimizers that update parameters in it, given the names.
        mode: Returns the name of the debug mode that ran a part of it, given how its inputs were made.
        cell: Returns the cell of a notebook that runs.
    """

    names: Callable[[], _Names] = dict
    optimizers: Callable[[_Names], tuple[OptimizerNote, ...]] = lambda _: ()
    mode: Callable[[Container[str]], str] = lambda _: "lazy"
    cell: Callable[[], int | None] = lambda: None


hooks = Hooks()


def note_barrier(cause: str, site: SourceLocation | None) -> None:
    """Remember where the step that is over ended."""
    global _began_after
    _began_after = (cause, site)
    if (_fallbacks or _guards) and not cause.startswith("CPU fallback"):
        _fallbacks.clear()
        _guards.clear()


def note_guard(guard: GuardNote) -> None:
    """Remember why `torch.compile` compiled a function again, for the next step that is new."""
    if guard not in _guards:
        _guards.append(guard)


def note_buckets(sizes: Sequence[int]) -> None:
    """Remember that DistributedDataParallel reduces gradients in buckets of so many bytes."""
    global _buckets
    _buckets = BucketNote(1 if _buckets is None else _buckets.times + 1, tuple(sizes))


def describe(
    graph: Canonical,
    donated: Sequence[int],
    known: CompiledGraph | None,
    boundary: Boundary,
    *,
    fast: bool,
) -> CompiledGraph:
    """Return the record of a graph that is about to be compiled, with its explanation."""
    step = pending.number
    if known is not None:
        known.explanation = evicted(known, step, config.max_executables)
        return known
    by_buffer = _names_of_buffers()
    names, origins, modules, saved = _names_and_origins(graph, by_buffer)
    key = StepKey(
        fingerprint=graph.fingerprint,
        donated=tuple(donated),
        tier="fast" if fast else "optimised",
        device=jax_compat.device_name(),
        sharding=str(mesh_of(graph) or "one device"),
        mode=hooks.mode({origin.how for origin in origins.values()}),
        ended_by=boundary,
        began_after=_began_after,
        fallbacks=tuple(_fallbacks),
        rules=compiler.given_rules(graph),
        cell=hooks.cell(),
        guards=tuple(_guards),
        optimizers=hooks.optimizers(by_buffer),
        buckets=_buckets,
    )
    snapshot = snapshot_of(graph, names, origins, modules, saved)
    record = graph_registry.create(key, graph, snapshot, step)
    record.explanation = _explanation(record)
    return record


def check_hit(graph: Canonical, record: CompiledGraph) -> None:
    """Compare a graph with the one of the same fingerprint that was compiled.

    The record's graph may have been given up to bound memory.
    """
    if record.canonical is None:
        return
    one, other = snapshot_of(graph), snapshot_of(record.canonical)
    rows = [
        [(v.label, v.operands) for v in each.vertices] + [each.roots]
        for each in (one, other)
    ]
    if rows[0] != rows[1]:
        raise LazyRuntimeError(
            f"the pending graph and {record.name} have the fingerprint {graph.fingerprint[:8]} and "
            "are two programs: running the executable of the one would give wrong values for the "
            "other, so nothing has run. Please report it; `lazyrt.clear_caches()` lets the graph "
            "be compiled anew."
        )


def _explanation(record: CompiledGraph) -> Explanation:
    try:
        return explain(record, graph_registry, UserSource())
    except Exception:  # noqa: BLE001 - the step goes on
        _log.exception("explaining why %s is new failed", record.name)
        cause = Cause(
            kind="wiring",
            text="it differs from every graph before (the comparison itself failed; see the log)",
            fix="look at both with `%lazy diff`",
        )
        return Explanation(step=record.first_step, graph=record.name, causes=(cause,))


def _names_of_buffers() -> _Names:
    try:
        return hooks.names()
    except Exception:  # noqa: BLE001 - the step goes on
        _log.exception("finding the names of tensors failed")
        return {}


def _names_and_origins(
    graph: Canonical, by_buffer: _Names
) -> tuple[dict[Value, Name], dict[Value, Origin], dict[str, bool], set[Value]]:
    """Return names of roots and inputs, origins of inputs, names in modules, and saved roots."""
    global _modules
    names: dict[Value, Name] = {}
    origins: dict[Value, Origin] = {}
    several: dict[Value, list[Name]] = {}
    by_autograd = {
        key for key, (name, *_) in by_buffer.items() if name.holder == AUTOGRAD
    }
    held: set[Value] = set()
    for buffer in pending.buffers:
        if buffer.value is None or id(buffer) in by_autograd:
            continue
        held.add(buffer.value)
        if id(buffer) in by_buffer:
            names.setdefault(buffer.value, by_buffer[id(buffer)][0])
    holders: dict[int, list[Buffer]] = {}
    for each in ready_buffers():
        if id(each) in by_buffer and id(each) not in by_autograd:
            holders.setdefault(id(each.data), []).append(each)
    for leaf in graph.data:
        owner = pending.owners[leaf.position]()
        found = None if id(owner) in by_autograd else by_buffer.get(id(owner))
        origin = _origin(leaf.position, dropped=owner is None)
        same = holders.get(id(pending.inputs[leaf.position]), [])
        others = (by_buffer[id(each)][0] for each in same if each is not owner)
        # A pending copy is the input itself until something is written to it.
        also = next(others, names.get(leaf, Name(""))).text
        origins[leaf] = origin._replace(memory_format=_memory_format(leaf), also=also)
        if found:
            names[leaf] = found[0]
        elif origin.name:  # what it was called when it was computed
            names[leaf] = Name(origin.name)
        variables = [name for name in found or () if name.holder == "variable"]
        if len(variables) > 1:
            several[leaf] = variables
    names.update(_as_read(graph, several))
    # A parameter that two modules share is one of each.
    every = (name for found in by_buffer.values() for name in found)
    modules = {n.text: n.holder == FROZEN for n in every if n.in_module}
    if modules != _modules:  # else one table serves all graphs
        _modules = modules
    return names, origins, _modules, set(graph.roots) - held


def _as_read(
    graph: Canonical, several: dict[Value, list[Name]]
) -> Iterator[tuple[Value, Name]]:
    """Yield inputs that several variables hold with the one that stands where they are read."""
    for node in graph.nodes if several else ():
        site = node.provenance.site
        if site is None:
            continue
        for value in {*node.operands} & several.keys():
            words = set(re.findall(r"\w+", linecache.getline(site.file, site.line)))
            name = next((n for n in several[value] if n.text in words), None)
            if name is not None:
                del several[value]
                yield value, name


def _memory_format(value: Value) -> str:
    """Return `contiguous`, `channels_last` or `channels_last_3d`, or else the strides."""
    if value.strides is None:
        return "contiguous"
    like = torch.empty_strided(value.shape, value.strides, device="meta")
    for each in (torch.channels_last, torch.channels_last_3d):
        if like.is_contiguous(memory_format=each):
            return str(each).removeprefix("torch.")
    return f"strides {tuple(value.strides)}"


def _origin(position: int, *, dropped: bool) -> Origin:
    """Return which execution produced an input of the pending step."""
    run: Run | FromCpu | RanAlone | None
    run, slot = pending.sources[position]
    if isinstance(run, RanAlone):
        op, site = run.made[slot]
        return Origin(-1, op=op, site=site, dropped=dropped, how=run.how)
    if not isinstance(run, Run):
        return Origin(-1, dropped=dropped)
    output = run.order[slot]
    op, site, name = run.record.results[output]
    return Origin(run.step, run.record.name, output, op, site, name, dropped)


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Let no step make a new graph inside the block.

    A barrier that would have to compile, or to read an executable from disk, raises with the
    reason; nothing has run then, and its tensors stay pending. Prints and peeks may compile:
    they do not change what a step compiles.

    Raises:
        FrozenError: A step's graph is new.
    """
    token = _is_frozen.set(True)
    try:
        yield
    finally:
        _is_frozen.reset(token)


def is_frozen() -> bool:
    """Return whether the caller is inside `frozen()`."""
    return _is_frozen.get()


def check_frozen(nodes: int, reason: str) -> None:
    """Stop the compile of a new step graph inside `frozen()`."""
    if is_frozen():
        raise FrozenError(
            f"a new graph of {nodes:,} {'op' if nodes == 1 else 'ops'} inside frozen(): {reason}. "
            "It would have to be compiled, so nothing ran and its tensors stay pending. Run one "
            "such step before the block, or take away what made it new."
        )


# ----------------------------------------------------------------- numbers that varied
# The expression in which a Python number has varied is noted once for each line and op, when its numbers
# become inputs, so that a graph that has them as inputs can tell which numbers those are.


_MAX_EXPRESSIONS = 10_000


@dataclass(frozen=True, slots=True)
class Expression:
    """What was under execution when a number varied.

    Its source stands on one line, such as `x * scale`; `number` is what the number is called there,
    empty if that is unclear.
    """

    text: str
    number: str = ""


_expressions: dict[tuple[str, int, str], set[Expression]] = {}


def note_expression(site: SourceLocation, op: str, expression: Expression) -> None:
    """Remember the expression that an op was recorded for, at a line whose numbers vary."""
    if len(_expressions) >= _MAX_EXPRESSIONS:
        _expressions.clear()
    _expressions.setdefault((site.file, site.line, op), set()).add(expression)


def expression_at(site: SourceLocation | None, op: str) -> Expression | None:
    """Return what was noted for an op of a line; None for nothing, or for several expressions."""
    if site is None:
        return None
    found = _expressions.get((site.file, site.line, op), set())
    return next(iter(found)) if len(found) == 1 else None


def forget_expressions() -> None:
    """Empty the table."""
    _expressions.clear()
