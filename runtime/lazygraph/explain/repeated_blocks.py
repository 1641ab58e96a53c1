"""Whole layers and modules that one program has alone, and blocks that come again and again."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from lazygraph.graph import CONSTANT, PARAMETER
from lazygraph.numbers import plural
from lazygraph.repeat import times_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from lazygraph.graph import Graph

    Where = Callable[[Graph, Iterable[int]], str]
    Path = tuple[str, ...]

_LEAVES = frozenset({PARAMETER, CONSTANT})
# What a framework writes around a module's path: `transpose(jvp(h.4))`, `h.4 (backward)`.
_AROUND = re.compile(r" \(.*|[\w.]*\(|\)")
# What jax writes between modules for loops, branches and calls, which are none.
_CONTROL = re.compile(
    r"(?:^|(?<=/))(?:while(?:/(?:body|cond))?|closed_call|scan|checkpoint|branch_\d+_fun"
    r"|rematted_computation|custom_\w+_call)(?=/|$)"
)
_NUMBERED = re.compile(r"(.*?)(\d+)")
# Of a module that is new, so much is new: where equal layers meet, any may be the new one.
_SHARE = 0.9
# Of what is new, so much is in a block, at best: its first and last have other neighbours.
_REPEATED = 0.8
_LEAST_BLOCK = 8
_MOST = 3


class Claim(NamedTuple):
    """Sentences, and the nodes that they count."""

    sentences: list[str]
    nodes: set[int]


def blocks(
    graph: Graph, unmatched: Sequence[int], what: str, where: Where, ends: set[int]
) -> Claim:
    """Return which layers, modules or equal blocks one of two programs has alone.

    Args:
        graph: The program.
        unmatched: Its nodes without a partner.
        what: What happened to them, `added` or `removed`.
        where: Returns the place of some nodes, as ` at train.py:4`.
        ends: What is computed for outputs that one program has alone, which is not repeated.
    """
    if ends.issuperset(unmatched):
        return Claim([], set())
    modules = _modules(graph, set(unmatched))
    if not modules:
        return _repeated(graph, unmatched, what, where, ends)
    told: set[int] = set()
    said = []
    groups = sorted(_groups(modules), key=lambda each: -_size(modules, each))
    for paths in groups[:_MOST]:
        members = {node for path in paths for node in modules[path]}
        if members <= ends:
            continue
        told |= members
        verb = "was" if len(paths) == 1 else "were"
        said.append(
            f"{_called(paths)} {verb} {what}: {_counted(graph, members)}"
            f"{where(graph, _forward_first(graph, modules[paths[0]]))}"
        )
    return Claim(said, told)


def _modules(graph: Graph, unmatched: set[int]) -> dict[Path, list[int]]:
    """Return the outermost modules that are in `lone` but for little, with their nodes.

    What nothing but a module needs is its own, as its weights are; so is what is computed of
    it alone, as their updates are.
    """
    whole = _counts(graph, range(len(graph)))
    mine = _counts(graph, unmatched)
    new = {path for path, count in mine.items() if count >= _SHARE * whole[path]}
    owners: dict[int, Path] = {}
    for node in unmatched:
        if owner := next((p for p in _prefixes(graph.scope(node)) if p in new), None):
            owners[node] = owner
    _join(graph, unmatched, owners)
    found: dict[Path, list[int]] = {}
    for node in sorted(owners):
        found.setdefault(owners[node], []).append(node)
    return {
        path: nodes
        for path, nodes in found.items()
        if any(graph.ops[node] not in _LEAVES for node in nodes)
    }


def _counts(graph: Graph, nodes: Iterable[int]) -> Counter[Path]:
    """Return how many of some nodes are in each module."""
    found: Counter[Path] = Counter()
    for scope, count in Counter(map(graph.scope, nodes)).items():
        for path in _prefixes(scope):
            found[path] += count
    return found


def _join(graph: Graph, unmatched: set[int], of: dict[int, Path]) -> None:
    """Give modules what belongs to nothing else, operands before users and users before operands."""
    if not of:
        return
    for node in sorted(unmatched):
        operands = [each for each in graph.operands[node] if each in unmatched]
        known = [of[each] for each in operands if each in of]
        if node not in of and known and _is_of(graph, operands, of):
            of[node] = known[0]
    for node in sorted(unmatched, reverse=True):
        users = [user for user, _ in graph.users[node]]
        if node not in of and users and all(user in of for user in users):
            of[node] = of[users[0]]


def _is_of(graph: Graph, operands: Sequence[int], of: Collection[int]) -> bool:
    return all(each in of or graph.ops[each] in _LEAVES for each in operands)


@lru_cache(maxsize=65_536)
def _prefixes(scope: str) -> list[Path]:
    """Return a scope's modules, the outermost first.

    Example:
        >>> _prefixes("h.4 (backward)"), _prefixes("transpose(jvp(Model))/h_4")
        ([('h',), ('h', '4')], [('Model',), ('Model', 'h_4')])
        >>> _prefixes("while/body/closed_call"), _prefixes("h.body"), _prefixes("scan/h_1")
        ([], [('h',), ('h', 'body')], [('h_1',)])
    """
    plain = _CONTROL.sub("", _AROUND.sub("", scope))
    parts = [part for part in re.split(r"[./]", plain) if part]
    return [tuple(parts[:end]) for end in range(1, len(parts) + 1)]


def _groups(modules: Iterable[Path]) -> Iterator[list[Path]]:
    """Yield modules whose names differ in their last number, as a row of layers has them."""
    for _, same in groupby(sorted(modules, key=_order), key=lambda p: _order(p)[:2]):
        yield list(same)


def _order(path: Path) -> tuple[Path, str, int]:
    found = _NUMBERED.fullmatch(path[-1])
    return (path[:-1], found[1], int(found[2])) if found else (path, "", -1)


def _called(paths: Sequence[Path]) -> str:
    """Return what modules are called.

    Example:
        >>> _called([("h", "4"), ("h", "5"), ("h", "6"), ("h", "9")])
        '4 layers `h.4`-`h.6`, `h.9`'
        >>> _called([("head",)]), _called([("h_4",)])
        ('the module `head`', 'the layer `h_4`')
    """
    numbers = [_order(path)[2] for path in paths]
    runs: list[list[Path]] = []
    for k, path in enumerate(paths):
        if k and numbers[k] == numbers[k - 1] + 1:
            runs[-1].append(path)
        else:
            runs.append([path])
    ends = [[f"`{'.'.join(each)}`" for each in (run[0], run[-1])] for run in runs]
    shown = [first if first == last else f"{first}-{last}" for first, last in ends]
    listed = ", ".join(shown[:_MOST]) + (", ..." if len(shown) > _MOST else "")
    noun = "layer" if numbers[0] >= 0 else "module"
    return (
        f"the {noun} {listed}" if len(paths) == 1 else f"{len(paths)} {noun}s {listed}"
    )


def _forward_first(graph: Graph, nodes: Iterable[int]) -> list[int]:
    """Return nodes, those first that a module computes itself and no `(backward)` of it."""
    return sorted(nodes, key=lambda node: " (" in graph.scope(node))


def _size(modules: dict[Path, list[int]], paths: Iterable[Path]) -> int:
    return sum(len(modules[path]) for path in paths)


def _counted(graph: Graph, nodes: Collection[int], times: int = 1) -> str:
    inputs = sum(graph.ops[node] == PARAMETER for node in nodes)
    counts = [plural((len(nodes) - inputs) // times, "instruction")]
    counts += [plural(inputs // times, "input")] if inputs >= times else []
    return " and ".join(counts)


def _repeated(
    graph: Graph, unmatched: Sequence[int], what: str, where: Where, ends: set[int]
) -> Claim:
    """Return a block that is in `lone` several times, as layers without names are."""
    mine = [node for node in unmatched if graph.ops[node] not in _LEAVES]
    colours = _colours(graph, mine)
    counts = Counter(colours.values())
    times, inside = times_of(counts, is_whole=True)
    covered = {node for node in mine if colours[node] in inside}
    is_most = len(covered) >= max(_REPEATED * len(mine), _LEAST_BLOCK * times)
    if not times or not is_most or covered <= ends:
        return Claim([], set())
    owners = dict.fromkeys(covered, ("",))
    for node in sorted(unmatched, reverse=True):
        users = [user for user, _ in graph.users[node]]
        if node not in owners and users and all(user in owners for user in users):
            owners[node] = ("",)
    ops = Counter(graph.ops[node] for node in covered)
    shown = [
        f"{op} ×{n // times:,}" if n > times else op for op, n in ops.most_common(4)
    ]
    more = ", ..." if len(ops) > len(shown) else ""
    said = (
        f"a block of {_counted(graph, owners, times)} was {what} {times:,} times: "
        f"{', '.join(shown)}{more}{where(graph, sorted(covered))}"
    )
    return Claim([said], set(owners))


def _colours(graph: Graph, nodes: Iterable[int]) -> dict[int, int]:
    """Return for some nodes a number that tells what they and their neighbours are."""
    kinds = graph.kinds
    numbers: dict[object, int] = {}
    found = {}
    for node in nodes:
        operands = tuple([kinds[each] for each in graph.operands[node]])
        users = tuple(sorted([(kinds[user], slot) for user, slot in graph.users[node]]))
        found[node] = numbers.setdefault((kinds[node], operands, users), len(numbers))
    return found
