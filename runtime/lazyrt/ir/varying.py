"""The expressions in which a Python number has varied, as the user wrote them.

Noted once for each line and op, when its numbers become inputs, so that a graph that has them as
inputs can tell which numbers those are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lazyrt.observe.events import SourceLocation

_MAX_LINES = 10_000


@dataclass(frozen=True, slots=True)
class Expression:
    """What was under execution when a number varied.

    Attributes:
        text: Its source on one line, such as `x * scale`.
        number: What the number is called there, such as `scale`; empty if that is unclear.
    """

    text: str
    number: str = ""


_noted: dict[tuple[str, int, str], set[Expression]] = {}


def note(site: SourceLocation, op: str, expression: Expression) -> None:
    """Remember the expression that an op was recorded for, at a line whose numbers vary.

    Args:
        site: The user's line.
        op: The ATen overload, such as `aten.mul.Tensor`.
        expression: What stands there.
    """
    if len(_noted) >= _MAX_LINES:
        _noted.clear()
    _noted.setdefault((site.file, site.line, op), set()).add(expression)


def expression_at(site: SourceLocation | None, op: str) -> Expression | None:
    """Return what was noted for an op of a line; None for nothing, or for several expressions."""
    found = _noted.get((site.file, site.line, op), set()) if site is not None else set()
    return next(iter(found)) if len(found) == 1 else None


def forget() -> None:
    """Empty the table."""
    _noted.clear()
