"""What a session's records quote of the user's source, for a file that is passed on.

A record names what was read or looked at by its expression, such as `model(x)[0].item()`. Each
function here returns a record whose expressions have been told otherwise: with secrets masked
(`lazyviz.documents.privacy.masked`), or, for a report without source, by name alone (`name_only`).
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazyrt.observe import events
    from lazyviz.render.spans import Span
    from lazyviz.render.state import Apart, Looked, Repeat, State
    from lazyviz.render.strip import Barrier
    from lazyviz.session import CellRecord
    from lazyviz.timing.steplog import StepRow

    Tell = Callable[[str], str]

# How the timeline names what was read or looked at; see `lazyviz.timing.history`.
_QUOTED = re.compile(
    r"look at (?P<seen>.+)|(?P<what>.*\bread by .*?) of (?P<read>.+)", re.DOTALL
)
_Told = TypeVar("_Told", "StepRow", "Barrier", "Repeat", "Looked", "events.Repeat")


def name_only(expression: str) -> str:
    """Return an expression that is a name, and nothing for any other one.

    Example:
        >>> name_only("model.loss"), name_only("f(x)")
        ('model.loss', '')
    """
    return expression if expression.replace(".", "_").isidentifier() else ""


def step(row: StepRow, tell: Tell) -> StepRow:
    """Return a step with its expressions told otherwise."""
    return _told(row, tell)


def cell(record: CellRecord, tell: Tell) -> CellRecord:
    """Return a cell's record whose strip has its expressions told otherwise."""
    strip = record.strip
    now = state(strip.state, tell) if strip.state is not None else None

    def told(each: _Told) -> _Told:
        return _told(each, tell)

    strip = dataclasses.replace(
        strip,
        state=now,
        barriers=tuple(map(told, strip.barriers)),
        repeats=tuple(map(told, strip.repeats)),
        looks=tuple(map(told, strip.looks)),
        apart=_apart(strip.apart, tell),
    )
    return dataclasses.replace(record, strip=strip)


def state(now: State, tell: Tell) -> State:
    """Return a state with the expression of its last barrier told otherwise."""
    return dataclasses.replace(now, last_barrier=barrier(now.last_barrier, tell))


def span(found: Span, tell: Tell) -> Span:
    """Return a span of the timeline with its expression told otherwise.

    Example:
        >>> from lazyviz.render.spans import Span
        >>> names = ("look at f(x)", "look at loss", "step 2: read by bool() of f(x)")
        >>> [span(Span("step", "run", name, 0, 1, None), name_only).name for name in names]
        ['look at a tensor', 'look at loss', 'step 2: read by bool()']
    """
    quoted = _QUOTED.fullmatch(found.name)
    if quoted is None:
        return found
    words = tell(quoted["read"] or quoted["seen"])
    if quoted["seen"]:
        return found._replace(name=f"look at {words or 'a tensor'}")
    return found._replace(
        name=f"{quoted['what']} of {words}" if words else quoted["what"]
    )


def barrier(words: str, tell: Tell) -> str:
    """Return the words for a barrier with its expression told otherwise.

    Example:
        >>> barrier("2 ops, read by .item() of f(x) at cell 3 line 7", name_only)
        '2 ops, read by .item() at cell 3 line 7'
    """
    found = re.fullmatch(r"(.*\bread by .*?) of (.+?)( at .*)?", words, re.DOTALL)
    if found is None:
        return words
    what, expression, where = found[1], tell(found[2]), found[3] or ""
    return f"{what} of {expression}{where}" if expression else f"{what}{where}"


def _told(row: _Told, tell: Tell) -> _Told:
    repeats = getattr(row, "repeats", None)
    changes: dict[str, Any] = {"tensor": tell(row.tensor)}
    if repeats:
        changes["repeats"] = tuple(_told(each, tell) for each in repeats)
    return dataclasses.replace(row, **changes)


def _apart(apart: Apart | None, tell: Tell) -> Apart | None:
    if apart is None:
        return None
    names = tuple(filter(None, map(tell, apart.tensors)))
    return dataclasses.replace(apart, tensors=names)
