"""`%lazy buckets`: to which sizes inputs that vary should be padded, by what the session measured.

Each size is a graph of its own, which compiles once; a larger one takes longer to run. With few
buckets little is compiled and much is padding; the fewest nanoseconds lie between.
"""

from __future__ import annotations

import functools
import operator
import re
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lazyviz.doc import Doc, Line, Note, Sentence, Table
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_NUMBER = re.compile(r"(?<=[\[,])\d+")  # of a type, such as `f32[2,3]`
_FEWEST = 2
_NOTHING = (
    "No size varied alone: no two graphs differ in just one size of their inputs. "
    "%lazy graphs lists the graphs with their causes."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Inputs of one size, and what they took; `run_ns` is 0 where that is not known."""

    size: int
    runs: int
    compile_ns: int
    run_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes, each padded to the next larger bucket; their cost so, and as they are now."""

    name: str
    sizes: Sequence[Size]
    buckets: tuple[int, ...]
    cost_ns: float
    now_ns: float

    @property
    def sentence(self) -> str:
        """How many buckets are best, and what they save."""
        found = ", ".join(map(str, self.buckets))
        many = text.plural(len(self.sizes), "size")
        now, then = text.duration(self.now_ns), text.duration(self.cost_ns)
        if len(self.buckets) == len(self.sizes):
            return (
                f"{self.name}: {many}, {now} to compile and run. No padding is better."
            )
        return (
            f"{self.name}: {many}, {now} to compile and run. Padded to "
            f"{text.plural(len(self.buckets), 'bucket')} ({found}), they would take about {then}. "
            "Pad in the loader (torch.nn.functional.pad), and mask what is padding."
        )


def run_time(sizes: Sequence[Size]) -> Callable[[int], float]:
    """Return how long a run takes by size: the line through what was measured, weighted by runs."""
    known = [each for each in sizes if each.run_ns > 0]
    if not known:
        return lambda _size: 0.0
    x, y = np.array([(each.size, each.run_ns) for each in known], float).T
    weights = [max(each.runs, 1) for each in known]
    mean_x, mean_y = (float(np.average(each, weights=weights)) for each in (x, y))
    spread = np.average((x - mean_x) ** 2, weights=weights)
    together = np.average((x - mean_x) * (y - mean_y), weights=weights)
    # A larger size is never taken to be quicker: that would be noise of few runs.
    slope = max(float(together / spread), 0.0) if spread else 0.0
    return lambda size: max(mean_y + slope * (size - mean_x), 0.0)


def plan(name: str, sizes: Iterable[Size]) -> Plan:
    """Return the buckets that compile and run in the least time."""
    ordered = sorted(sizes, key=lambda each: each.size)
    takes = run_time(ordered)
    # For the first k sizes: the least cost, and where its last bucket begins.
    best: list[tuple[float, int]] = [(0.0, 0)]
    for last, bucket in enumerate(ordered):
        runs, options = 0, []
        for first in range(last, -1, -1):
            runs += ordered[first].runs
            cost = best[first][0] + bucket.compile_ns + runs * takes(bucket.size)
            options.append((cost, first))
        best.append(min(options))
    buckets, k = [], len(ordered)
    while k:
        buckets.append(ordered[k - 1].size)
        k = best[k][1]
    return Plan(
        name=name,
        sizes=ordered,
        buckets=tuple(reversed(buckets)),
        cost_ns=best[-1][0],
        now_ns=sum(each.compile_ns + each.runs * takes(each.size) for each in ordered),
    )


def families(
    graphs: Iterable[Any], run_ns: Mapping[str, float], executables: Iterable[Any] = ()
) -> list[Plan]:
    """Return a plan for each set of graphs that differ in one size of their inputs alone.

    The cached executables know how long a graph took to compile that was read from disk.
    """
    earlier = {
        each.holds.removeprefix("step graph "): each.compile_ns for each in executables
    }
    alike: dict[Any, list[Any]] = defaultdict(list)
    for graph in graphs:
        kinds = [
            (each.is_leaf, each.op, _NUMBER.sub("#", " ".join(each.types)))
            for each in graph.snapshot.vertices
        ]
        # The order of ops depends on sizes, and their number where a loop runs over an input.
        leaves = tuple(sorted(kind for kind in kinds if kind[0]))
        alike[leaves, frozenset(kinds)].append(graph)
    plans = []
    for group in alike.values():
        sizes = _sizes(group)
        if len(sizes) < _FEWEST:
            continue
        found = [
            Size(
                size=size,
                runs=graph.runs,
                compile_ns=graph.compile_ns or earlier.get(graph.fingerprint[:8], 0),
                run_ns=run_ns.get(graph.fingerprint, 0.0),
            )
            for size, graph in sizes.items()
        ]
        plans.append(plan(f"graphs like {group[0].name}", found))
    return sorted(plans, key=lambda each: each.cost_ns - each.now_ns)


def _sizes(group: Sequence[Any]) -> dict[int, Any]:
    """Return graphs by the one number of their inputs that varies; empty if there are several."""
    numbers = [
        Counter(
            int(number)
            for vertex in graph.snapshot.vertices
            if vertex.is_leaf
            for number in _NUMBER.findall(" ".join(vertex.types))
        )
        for graph in group
    ]
    common = functools.reduce(operator.and_, numbers)
    varying = [list(each - common) for each in numbers]
    if any(len(each) != 1 for each in varying):
        return {}
    found = {size: graph for (size,), graph in zip(varying, group, strict=True)}
    return found if len(found) == len(group) else {}


def measured(runtime: Any, steps: Iterable[Any]) -> dict[str, float]:
    """Return how long a run took in the middle, by fingerprint of its graph."""
    times: dict[str, list[int]] = defaultdict(list)
    for step in steps:
        record = runtime.graph_of_step(step.step) if step.execute_ns else None
        if record is not None:
            times[record.fingerprint].append(step.execute_ns)
    return {name: statistics.median(each) for name, each in times.items()}


def doc(plans: Sequence[Plan]) -> Doc:
    """Return the plans, the one that saves most first, with what was measured."""
    if not plans:
        return Doc([Sentence(_NOTHING)])
    parts = []
    for each in plans:
        rows = [
            [
                size.size,
                size.runs,
                text.duration(size.compile_ns),
                text.duration(size.run_ns) if size.run_ns else "",
                next(bucket for bucket in each.buckets if bucket >= size.size),
            ]
            for size in each.sizes
        ]
        header = ["size", "runs", "compile", "run", "pad to"]
        parts.append(Doc([Line(each.sentence), Table(header, rows)]))
    return Doc(
        [
            *parts,
            Note(
                "Run times of padded sizes are on the line through the measured ones."
            ),
        ],
        gap="\n\n",
    )
