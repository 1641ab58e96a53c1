"""Lines that recorded the same ops again and again, with no boundary between the rounds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazygraph.source_location import Site

# Layers of a model are rounds too, but fewer.
_MIN_TIMES = 100
# The rounds make up at least this share of all ops.
_SHARE = 0.5


class Rounds(NamedTuple):
    """A loop as its lines show it.

    Attributes:
        ops: How many ops one round recorded.
        times: How many rounds.
        lines: Where they stand, such as `cell 3 lines 2-3`.
    """

    ops: int
    times: int
    lines: str

    def __str__(self) -> str:
        """Return `cell 3 lines 2-3 recorded 3 ops 250 times`."""
        noun = "op" if self.ops == 1 else "ops"
        return f"{self.lines} recorded {self.ops:,} {noun} {self.times:,} times"


def rounds_in(ops: Iterable[tuple[str, Site | None]]) -> Rounds | None:
    """Return the loop that recorded most of some ops; None if there is no such loop.

    Args:
        ops: The name of each op and the user's line that recorded it.

    Example:
        >>> from lazygraph.source_location import Site
        >>> line = Site("train.py", 7, "train")
        >>> str(rounds_in([("aten.mul.Tensor", line), ("aten.add.Tensor", line)] * 300))
        'train.py:7 recorded 2 ops 300 times'
    """
    counts = Counter(ops)
    by_number: Counter[int] = Counter()
    for (_, site), number in counts.items():
        if site is not None and number >= _MIN_TIMES:
            by_number[number] += number
    if not by_number:
        return None
    times = max(by_number, key=lambda number: (by_number[number], number))
    # The first round and the last one may lack an op.
    near = {
        entry: number
        for entry, number in counts.items()
        if entry[1] is not None and abs(number - times) <= max(1, times // _MIN_TIMES)
    }
    if sum(near.values()) < _SHARE * counts.total():
        return None
    return Rounds(len(near), times, lines_of(site for _, site in near if site))


def lines_of(sites: Iterable[Site]) -> str:
    """Return the lines of the function that most of some places stand in."""
    found = list(sites)
    if not found:
        return ""
    file, function = Counter((s.file, s.function) for s in found).most_common(1)[0][0]
    mine = [site for site in found if (site.file, site.function) == (file, function)]
    first, last = min(site.line for site in mine), max(site.line for site in mine)
    span = f"{first}-{last}" if first != last else f"{first}"
    if mine[0].cell is not None:
        return f"cell {mine[0].cell} line{'s' if first != last else ''} {span}"
    return f"{file.rsplit('/', 1)[-1]}:{span}"
