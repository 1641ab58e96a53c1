"""A size that changes from graph to graph in one direction: each length compiles anew."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lazyrt.execution.why.causes import Cause, Explanation

_LEAST = 3  # graphs: two sizes may be two kinds of batches
_SHOWN = 5
_FIX = (
    "each length is a graph of its own: pad it to one length, or to a few, and mask the rest; "
    "a loop that generates text wants a cache of fixed length"
)


def with_growth(
    causes: Sequence[Cause],
    against: str,
    explanation_of: Callable[[str], Explanation | None],
) -> tuple[Cause, ...]:
    """Return causes, those of an input's size with the sizes that came before.

    Args:
        causes: Why a graph is new.
        against: Name of the graph that it was compared with.
        explanation_of: Returns by its name why an earlier graph was new.
    """
    found = []
    for cause in causes:
        series = _series(cause, against, explanation_of)
        long = next((each for each in series if len(each) >= _LEAST), None)
        found.append(cause if long is None else _told(cause, long))
    return tuple(found)


def _series(
    cause: Cause, against: str, explanation_of: Callable[[str], Explanation | None]
) -> Iterator[list[int]]:
    """Yield for each input that has another size its sizes from graph to graph."""
    for before, now in cause.sizes:
        found = [now, before]
        graph = against
        while len(found) <= _SHOWN and (earlier := explanation_of(graph)) is not None:
            pairs = [pair for each in earlier.causes for pair in each.sizes]
            size = next((old for old, new in pairs if new == found[-1]), None)
            if size is None or (size < found[-1]) != (before < now):
                break
            found.append(size)
            graph = earlier.against
        yield found[::-1]


def _told(cause: Cause, sizes: list[int]) -> Cause:
    verb = "grows" if sizes[0] < sizes[-1] else "shrinks"
    series = ", ".join(f"{size:,}" for size in sizes[-_SHOWN:])
    start = "..., " if len(sizes) > _SHOWN else ""
    return replace(
        cause,
        text=f"{cause.text}; it {verb} from graph to graph: {start}{series}",
        fix=_FIX,
    )
