"""A size that changes from graph to graph in one direction: each length compiles anew."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from lazygraph.explain.model import EditCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lazygraph.explain.model import Cause, Explanation

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
        # Sizes of what the graph computes are not the data's.
        series = (
            () if cause.kind == "shape" else _series(cause, against, explanation_of)
        )
        long = next((each for each in series if len(each) >= _LEAST), None)
        found.append(cause if long is None else _with_series(cause, long))
    return tuple(found)


def _series(
    cause: Cause, against: str, explanation_of: Callable[[str], Explanation | None]
) -> Iterator[list[int]]:
    """Yield for each input that has another size its sizes from graph to graph."""
    for before, now in cause.sizes:
        found = [now, before]
        graph = against
        while len(found) <= _SHOWN and (earlier := explanation_of(graph)) is not None:
            pairs = [
                pair
                for each in earlier.causes
                for pair in each.sizes
                if each.kind == cause.kind
            ]
            size = next((old for old, new in pairs if new == found[-1]), None)
            if size is None or (size < found[-1]) != (before < now):
                break
            found.append(size)
            graph = earlier.against
        yield found[::-1]


def _with_series(cause: Cause, sizes: list[int]) -> Cause:
    verb = "grows" if sizes[0] < sizes[-1] else "shrinks"
    series = ", ".join(f"{size:,}" for size in sizes[-_SHOWN:])
    start = "..., " if len(sizes) > _SHOWN else ""
    counts = cause.kind in {"loop_count", "carried_over"}
    what = "the number" if counts else "it"
    return replace(
        cause,
        text=f"{cause.text}; {what} {verb} from graph to graph: {start}{series}",
        fix=cause.fix if counts else _FIX,
    )


def with_lengths(causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """Return causes, a loop with as many rounds as an input is long behind that input.

    Example:
        >>> from lazygraph.explain.model import Cause
        >>> loop = Cause(kind="loop_count", text="it came 7 times", sizes=((4, 7),))
        >>> seq = Cause(kind="input_shape", text="", variable="seq", sizes=((4, 7),))
        >>> [cause.kind for cause in with_lengths((loop, seq))]
        ['input_shape', 'loop_count']
        >>> with_lengths((loop, seq))[1].text
        'it came 7 times, as many as `seq` is long'
        >>> of_two_layers = Cause(kind="loop_count", text="it came 12 times", sizes=((6, 12),))
        >>> with_lengths((of_two_layers, seq))[1].text
        'it came 12 times, with the length of `seq`'
    """
    loop = next((cause for cause in causes if cause.kind == "loop_count"), None)
    if loop is None:
        return causes
    # What joins the results of all rounds is as long as there are rounds.
    follow = [
        c
        for c in causes
        if c.kind == "shape" and c.sizes and {*c.sizes} <= {*loop.sizes}
    ]
    if follow:
        edits = map(sum, zip(loop.edits, *(c.edits for c in follow), strict=True))
        whole = replace(loop, edits=EditCounts(*edits))
        causes = tuple(
            whole if cause is loop else cause for cause in causes if cause not in follow
        )
        loop = whole
    kinds = {"input_shape", "parameter_shape"}
    lengths = [c for c in causes if c.kind in kinds]
    length = next((c for c in lengths if {*loop.sizes} & {*c.sizes}), None)
    how = "as many as `{}` is long"
    if length is None:
        length = next((c for c in lengths if _grows_with(loop, c)), None)
        how = "with the length of `{}`"
    if length is None:
        return causes
    told = loop
    if length.variable:
        text = f"{loop.text}, {how.format(length.variable)}"
        told = replace(loop, text=text, fix=length.fix)
    found = [cause for cause in causes if cause is not loop]
    found.insert(found.index(length) + 1, told)
    return tuple(found)


def _grows_with(loop: Cause, length: Cause) -> bool:
    """Return whether rounds follow a size several times over, or without one round of each.

    A recurrent module of two layers has twice the rounds, and the first round of a layer, which
    reads a state of zeros, may be other operations.
    """
    for (size, other_size), (rounds, other_rounds) in product(length.sizes, loop.sizes):
        times, left = divmod(other_rounds - rounds, (other_size - size) or 1)
        if times > 0 and not left and rounds in {times * size, times * (size - 1)}:
            return True
    return False
