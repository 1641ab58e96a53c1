"""What a session has recorded, without the user's source: `%lazy report --no-source`.

Records quote the expression that was read, such as `model(x)[0].item()`. Names may stay.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from lazyrt.observe import events
    from lazyviz.render.spans import Span
    from lazyviz.render.state import Apart, Looked, Repeat
    from lazyviz.render.strip import Barrier
    from lazyviz.session import CellRecord
    from lazyviz.steplog import StepRow

# How the timeline names what was read or looked at; see `lazyviz.history`.
_QUOTED = re.compile(
    r"look at (?P<seen>.+)|(?P<what>.*\bread by .*?) of (?P<read>.+)", re.DOTALL
)
_Told = TypeVar("_Told", "StepRow", "Barrier", "Repeat", "Looked", "events.Repeat")


def step(row: StepRow) -> StepRow:
    """Return a step that quotes no source."""
    return _unquoted(row)


def cell(record: CellRecord) -> CellRecord:
    """Return a cell's record whose strip quotes no source."""
    strip = record.strip
    state = strip.state
    if state is not None:
        state = dataclasses.replace(state, last_barrier="")
    strip = dataclasses.replace(
        strip,
        state=state,
        barriers=tuple(map(_unquoted, strip.barriers)),
        repeats=tuple(map(_unquoted, strip.repeats)),
        looks=tuple(map(_unquoted, strip.looks)),
        apart=_named_only(strip.apart),
    )
    return dataclasses.replace(record, strip=strip)


def span(found: Span) -> Span:
    """Return a span of the timeline that quotes no source.

    Example:
        >>> from lazyviz.render.spans import Span
        >>> names = ("look at f(x)", "look at loss", "step 2: read by bool() of f(x)")
        >>> [span(Span("step", "run", name, 0, 1, None)).name for name in names]
        ['look at a tensor', 'look at loss', 'step 2: read by bool()']
    """
    quoted = _QUOTED.fullmatch(found.name)
    name = found.name
    if quoted is not None and not _name_only(quoted["read"] or quoted["seen"]):
        name = quoted["what"] if quoted["read"] else "look at a tensor"
    return found._replace(name=name, detail="")


def _unquoted(told: _Told) -> _Told:
    repeats = getattr(told, "repeats", None)
    changes: dict[str, Any] = {"tensor": _name_only(told.tensor)}
    if repeats:
        changes["repeats"] = tuple(map(_unquoted, repeats))
    return dataclasses.replace(told, **changes)


def _named_only(apart: Apart | None) -> Apart | None:
    if apart is None:
        return None
    names = tuple(filter(None, map(_name_only, apart.tensors)))
    return dataclasses.replace(apart, tensors=names)


def _name_only(expression: str) -> str:
    return expression if expression.replace(".", "_").isidentifier() else ""
