"""Equal ops that became several nodes of one pending step, made one node again.

An op that equals one that is pending from before a notebook's cell is recorded as another node, with a line
of its own. So are all where torch's default dtype changes or a rule is given while ops are pending.
Whether that happens must not decide which graph the step is, so a step of which it may have happened
is looked through before its graph is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyrt.ir.live import pending
from lazyrt.ir.node import Value, iter_values, map_values, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lazyrt.ir.live import Buffer
    from lazyrt.ir.node import Node

_make_twin: Callable[[Node, tuple[Any, ...]], Node]


def set_twin(make: Callable[[Node, tuple[Any, ...]], Node]) -> None:
    """Tell how to make the node of the same op on other operands."""
    global _make_twin
    _make_twin = make


def note_emptied() -> None:
    """Note that equal ops recorded from now on are other nodes."""
    if pending.buffers or pending.parked:
        pending.may_repeat = True


def is_alike(one: Node, other: Node) -> bool:
    """Return whether two nodes of one op on the same operands compute the same.

    They do not where a rule was registered anew or torch's default dtype has changed in between.
    """
    return one.spec is other.spec or (
        one.spec.given == other.spec.given and one.spec.outs == other.spec.outs
    )


def merge(live: Sequence[Buffer]) -> None:
    """Give buffers whose values equal ops compute the value of one of them."""
    if not pending.may_repeat or pending.eager:
        return
    values = tuple([buffer.value for buffer in live])
    if values != pending.merged:
        new = _merged([value for value in values if value is not None])
        if new:
            for buffer, value in zip(live, values, strict=True):
                if value is not None:
                    buffer.value = new.get(value, value)
        pending.merged = tuple([buffer.value for buffer in live])


def _merged(roots: Iterable[Value]) -> dict[Value, Value]:
    """Return what stands for each value that an equal op, or one of other operands, computes."""
    first: dict[Any, Node] = {}
    new: dict[Value, Value] = {}

    def renewed(value: Value) -> Value:
        return new.get(value, value)

    for node in walk(roots)[0]:
        args = node.args
        if new and any(operand in new for operand in iter_values(args)):
            args = map_values(args, renewed)
        key = (node.op, args, node.spec.given, node.spec.outs)
        kept = first.get(key)
        if kept is None:
            kept = node if args is node.args else _make_twin(node, args)
            first[key] = kept
        if kept is not node:
            pairs = zip(node.outputs, kept.outputs, strict=True)
            new |= {
                old: out for old, out in pairs if old is not None and out is not None
            }
    return new


def rebuilt(
    nodes: Iterable[Node],
    replaced: dict[Value, Value],
    make_twin: Callable[[Node, tuple[Any, ...]], Node] | None = None,
) -> dict[Value, Value]:
    """Return what stands for each value once some values have become inputs.

    `make_twin` makes the node of the same op on other operands; None records it.
    """
    new = dict(replaced)
    make_twin = make_twin or _make_twin

    def renewed(value: Value) -> Value:
        return new.get(value, value)

    for node in nodes:
        if any(operand in new for operand in iter_values(node.args)):
            twin = make_twin(node, map_values(node.args, renewed))
            pairs = zip(node.outputs, twin.outputs, strict=True)
            new |= {
                old: out
                for old, out in pairs
                if old is not None and out is not None and old not in replaced
            }
    return new
