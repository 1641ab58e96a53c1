"""Where NaN and infinities begin: the op, its line, and the numbers that it made them of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lazyrt
from lazyrt.errors import UsageError
from lazyrt.tools import require_lazy
from lazyviz.doc import Doc, Note, Sentence, Showable, Table
from lazyviz.draw.model import type_text
from lazyviz.draw.palette import not_finite_words
from lazyviz.inspection.numerics import where_of
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from lazyrt import Graph
    from lazyrt.tools import NotFinite, Operand, Origin, Value

_HEADER = ("op", "type", "where", "not finite", "first at", "made of")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NotFiniteView(Showable):
    """What `find_nan` found; a notebook shows it as a table.

    Attributes:
        found: Ops, inputs and results that are not finite; see `lazyrt.execution.inspection`.
        names: What the user calls inputs and results.
    """

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
            f"{self._name(leaf)} {type_text(leaf.shape, leaf.dtype)} came in with "
            f"{not_finite_words(*counts)}."
            for leaf, counts in found.inputs.items()
        ]
        return lines

    def _rows(self) -> list[list[object]]:
        return [
            [
                f"%{origin.node.id} {origin.node.op.name}",
                type_text(origin.value.shape, origin.value.dtype),
                where_of(origin.node),
                not_finite_words(origin.nan, origin.infinite),
                str(list(origin.first)) if origin.first else "",
                "; ".join(self._made_of(each, origin) for each in origin.operands),
            ]
            for origin in self.found.origins
        ]

    def _made_of(self, operand: Operand, origin: Origin) -> str:
        summary = operand.summary
        bad = not_finite_words(summary.nan, summary.infinite)
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
    """Return the ops where NaN and infinities of pending tensors begin; see `lazyviz.find_nan`."""
    for tensor in tensors:
        require_lazy(tensor, "find_nan()")
    graph = lazyrt.pending_graph(*tensors)
    if not graph.nodes:
        what = "the tensors that it got are" if tensors else "everything is"
        raise UsageError(
            f"find_nan() needs pending tensors, and {what} computed already, so that the ops "
            "behind them are gone. Call it before the barrier: inside `with lazyrt.step():`, before "
            "`optimizer.step()`, or in a function given to `lazyrt.on_barrier`."
        )
    return find_in(graph)


def computed_text(runtime: Any, name: str, tensors: Sequence[Any]) -> str:
    """Return what to say of tensors that are computed: whether they are finite, and what to do.

    Args:
        runtime: The module `lazyrt`.
        name: What the user calls them.
        tensors: Lazy tensors, none of them pending.
    """
    looks = [runtime.look(tensor).summary for tensor in tensors]
    nan, infinite = sum(x.nan for x in looks), sum(x.infinite for x in looks)
    if not nan + infinite:
        return f"{name} is computed already, and all of it is finite."
    return (
        f"{name} is computed already and has {not_finite_words(nan, infinite)}: the ops that made "
        "it are gone. Run the step once more and ask before its barrier, inside `with "
        "lazyrt.step():` or before `optimizer.step()`."
    )


def find_in(graph: Graph) -> NotFiniteView:
    """Return the same of a pending graph."""
    inspection = lazyrt.inspect(graph)
    names = {
        value: held.name for value, held in inspection.holdings.items() if held.name
    }
    return NotFiniteView(inspection.find_not_finite(), names)
