"""Whether a graph is the same block several times over: micro-batches, rounds, unrolled steps."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from lazygraph.rounds import lines_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from lazygraph.snapshot import Snapshot, Vertex
    from lazygraph.source_location import Site

_MIN_TIMES = 3
_MIN_OPS = 5
# The block makes up at least this share of the graph.
_SHARE = 0.5
_MAX_COUNTS = 32
_NEARLY = 0.8


class Block(NamedTuple):
    """Operations that a graph repeats.

    Attributes:
        ops: How many there are in one round.
        times: How many rounds.
        lines: Where they stand, such as `cell 3 lines 4-9`; empty where unknown.
    """

    ops: int
    times: int
    lines: str

    def __str__(self) -> str:
        """Return the sentence, with what would make the graph smaller."""
        where = f" ({self.lines})" if self.lines else ""
        return (
            f"this graph contains the same {self.ops:,}-op block {self.times} times{where}: "
            "compile time and memory grow with the rounds. Where a round can be a step of its "
            "own, `lazyrt.mark_step()` at its end makes it one graph of one round"
        )


def repeated_block(snapshot: Snapshot, ended_at: Site | None) -> Block | None:
    """Return the block that most of a graph repeats; None if there is none.

    Rounds read the same parameters. Layers, which have their own, are no rounds.

    Args:
        snapshot: The graph.
        ended_at: The line that ended it: of several functions, lines in its own are told.
    """
    nodes = [vertex for vertex in snapshot.vertices if not vertex.is_leaf]
    counts = Counter(map(_spot, nodes))
    times, spots = _rounds(counts)
    if not times:
        return None
    ops = sum(round(counts[spot] / times) for spot in spots)
    covered = sum(counts[spot] for spot in spots)
    if ops < _MIN_OPS or covered < _SHARE * len(nodes):
        return None
    if not _read_alike(snapshot, times):
        return None
    return Block(ops, times, _lines([v for v in nodes if _spot(v) in spots], ended_at))


def _spot(vertex: Vertex) -> Hashable:
    return (vertex.op, vertex.types, vertex.scope, vertex.backward, vertex.site)


def _rounds(counts: Mapping[Hashable, int]) -> tuple[int, set[Hashable]]:
    """Return the number of rounds that accounts for most operations, and which these are."""
    common = Counter(number for number in counts.values() if number >= _MIN_TIMES)
    exact = {
        times: sum(n for n in counts.values() if n % times == 0)
        for times, _ in common.most_common(_MAX_COUNTS)
    }
    if not exact:
        return 0, set()
    # What is there eight times is there four times twice: a few ops more decide nothing.
    most = max(exact.values())
    times = max(each for each, covered in exact.items() if covered >= _NEARLY * most)
    # The first round lacks what adds to the one before.
    return times, {
        spot for spot, n in counts.items() if n % times == 0 or (n + 1) % times == 0
    }


def _read_alike(snapshot: Snapshot, times: int) -> bool:
    """Return whether some input is read in each round, as it is or turned once for all."""
    users = snapshot.users()
    return any(
        max([len(found), *(len(users[user]) for user, _ in found)], default=0) >= times
        for leaf, found in enumerate(users)
        if snapshot.vertices[leaf].op == "data"
    )


def _lines(vertices: list[Vertex], ended_at: Site | None) -> str:
    sites = [vertex.site for vertex in vertices if vertex.site is not None]
    wanted = (ended_at.file, ended_at.function) if ended_at is not None else None
    mine = [site for site in sites if (site.file, site.function) == wanted]
    return lines_of(mine or sites)
