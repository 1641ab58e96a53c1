"""What two rows have in common, by Myers' algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def common(one: Sequence[int], two: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return the positions of a longest common subsequence of two rows, by Myers' algorithm.

    Args:
        one: A row.
        two: The other one.
        most: Entries of either row that may be left over; with more, nothing is returned.
    """
    size_one, size_two = len(one), len(two)
    reach = {1: 0}
    trail: list[dict[int, int]] = []
    for step in range(min(most, size_one + size_two) + 1):
        trail.append(reach.copy())
        for diagonal in range(-step, step + 1, 2):
            down = diagonal == -step or (
                diagonal != step
                and reach.get(diagonal - 1, -1) < reach.get(diagonal + 1, -1)
            )
            at = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            other = at - diagonal
            while at < size_one and other < size_two and one[at] == two[other]:
                at += 1
                other += 1
            reach[diagonal] = at
            if at >= size_one and other >= size_two:
                return _walked_back(trail, size_one, size_two)
    return []


def _walked_back(
    trail: Sequence[dict[int, int]], at: int, other: int
) -> list[tuple[int, int]]:
    found = []
    for step in range(len(trail) - 1, -1, -1):
        reach, diagonal = trail[step], at - other
        down = diagonal == -step or (
            diagonal != step
            and reach.get(diagonal - 1, -1) < reach.get(diagonal + 1, -1)
        )
        before = diagonal + 1 if down else diagonal - 1
        start = reach[before] if step else 0
        end = start - before if step else 0
        while at > start and other > end:
            at -= 1
            other -= 1
            found.append((at, other))
        at, other = start, end
    return found[::-1]
