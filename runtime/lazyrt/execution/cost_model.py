"""What ops cost by their shapes, and how long work will take here: its parts, a guess of each, and what such took before.

What a peek will do has parts that take time: compiles, loads, runs. The choice between one slice
and single ops goes by fixed costs, so that the same program runs the same way on every machine.
A guess knows no machine. What work took, set against its guess, is a factor that later guesses of
the same kind and size class get; without one the kind's of other sizes, then that of the whole
family (`compile`, `run`, ...), which tells of the machine. Factors outlive the process in a small
file beside the executables on disk.

Until somebody has looked at something, a guess of what a look takes is one of a plain machine. So
the first who asks for one has three programs of our own timed: together some 0.15 s, once for each
machine and version of jax. They belong to no graph and are in no count, and none of their data
stays.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import torch

from lazygraph.types import (
    BYTES_PER_NS,
    DENSE,
    FLOPS_PER_NS,
    aten_flops,
    short_name,
)
from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.execution import cache, compiler, completion, preview, process
from lazyrt.ir.node import Node, Value, iter_values, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from lazyrt.execution.compiler import Place
    from lazyrt.jax_compat import Array
    from lazyrt.lowering.spec import Spec


# How much longer some kinds run than the bytes say that they move; of two cores of a CPU.
_RUN_WEIGHTS = {
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"), 20.0),
    **dict.fromkeys(("sort", "argsort", "unique2", "_unique2"), 90.0),
    **dict.fromkeys(("topk", "median", "nanmedian", "mode", "kthvalue"), 300.0),
    **dict.fromkeys(("rand_like", "randn_like", "bernoulli", "native_dropout", "uniform",
                     "normal", "rand", "randn", "randint", "randperm", "multinomial"), 17.0),
    "tanh": 2.7,  # of which `calibrate` times one
}  # fmt: skip


def run_ns(node: Node) -> float:
    """Return a guess of how many nanoseconds a node runs; of little use for a single one."""
    name = short_name(node.op.name)
    moving = moving_ns(name, moved_bytes(node))
    if not is_dense(node):
        return moving
    return max(product_ns(flops(node)), moving)


def product_ns(operations: int) -> float:
    """Return a guess of what so many operations of a product of matrices take."""
    return operations / FLOPS_PER_NS


def moving_ns(name: str, nbytes: int) -> float:
    """Return a guess of what an op takes that reads and writes so many bytes."""
    return nbytes * _RUN_WEIGHTS.get(name, 1.0) / BYTES_PER_NS


def is_dense(node: Node) -> bool:
    """Return whether a node multiplies matrices or the like: its products count, not its bytes."""
    return short_name(node.op.name) in DENSE


def result_bytes(node: Node) -> int:
    """Return the bytes of a node's results."""
    made = [value for value in node.outputs if value is not None]
    return sum(_elements(v) * v.dtype.itemsize for v in made)


def moved_bytes(node: Node) -> int:
    """Return the bytes that a node reads and writes."""
    reads = sum(_elements(v) * v.dtype.itemsize for v in node.operands)
    return reads + result_bytes(node)


def flops(node: Node) -> int:
    """Return the floating-point operations of a node, 0 for what only moves data."""
    results = [value.shape if value is not None else None for value in node.outputs]
    return aten_flops(node.op.name, results, [value.shape for value in node.operands])


def _elements(value: Value) -> int:
    return math.prod(value.shape)


# ---------------------------------------------------------------------------- ancestors


# Nodes counted in one pass. Their sets are integers of so many bits: 512 bytes for each node.
_BLOCK = 4_096


def ancestor_counts(values: Iterable[Value]) -> dict[Value, int]:
    """Return for each value the number of nodes that it needs; 0 for a leaf.

    Takes one pass over the graph for every 4,096 nodes of it.
    """
    wanted = dict.fromkeys(values)
    nodes, _ = walk(wanted)
    numbers = {node: number for number, node in enumerate(nodes)}
    operands = [
        tuple({numbers[v.node] for v in iter_values(node.args) if v.node is not None})
        for node in nodes
    ]
    sizes = dict.fromkeys(wanted, 0)
    for start in range(0, len(nodes), _BLOCK):
        needed = _needed(operands, start)
        for value in sizes:
            if value.node is not None:
                sizes[value] += needed[numbers[value.node]].bit_count()
    return sizes


def _needed(operands: list[tuple[int, ...]], start: int) -> list[int]:
    """Return for each node which of the block's nodes it needs, itself included, as bits."""
    needed: list[int] = []
    for number, reads in enumerate(operands):
        bits = 1 << (number - start) if start <= number < start + _BLOCK else 0
        for operand in reads:
            bits |= needed[operand]
        needed.append(bits)
    return needed


def ancestors(values: Iterable[Value]) -> set[Node]:
    """Return the nodes that some values need, together."""
    return set(walk(values)[0])


# ------------------------------------------------------------ how long work takes here


now = time.perf_counter_ns
"""The clock; a test may put another one here."""

_VERSION = 3  # of the guesses, too: factors are of them
_MAX_FACTORS = 4_000
_MOST = math.log(1_000)  # a factor beyond this tells of an accident
_MOST_OF_FIXED = math.log(5)  # of what is there beside the work
_NOTICED = 0.1  # smaller shares of a time tell nothing of their part
_SHORTEST_NS = 200_000  # such a wait tells of the clock, not of the work
# What is guessed shorter tells nothing of other sizes and kinds.
_TELLING_NS = 1_000_000
_SAVE_EVERY_S = 30.0
# How far a guess may be off, both ways: by a factor of its own kind and size, of its kind, of none.
_SPREADS = (1.0, 1.6, 2.0)
# Families that a machine does at one pace.
_FAMILIES = {
    "slice": "compile",
    "fused-run": "run",
    "fused-dense": "dense",
}
# What the latest time weighs at least in the factors of each of these.
_WEIGHTS = (0.5, 0.4, 0.25)


class Part(NamedTuple):
    """A piece of work.

    Attributes:
        kind: Family and kind, such as `run aten.mm.default`.
        size: Class of its size, such that work of one class takes about as long.
        guess_ns: Nanoseconds by a plain guess.
    """

    kind: str
    size: int
    guess_ns: float

    @property
    def is_fixed(self) -> bool:
        """Whether it is there beside the work: it tells of nothing but itself."""
        return self.kind.startswith("fixed ")

    @property
    def keys(self) -> tuple[str, str, str]:
        """What its factor is kept under, the most telling first."""
        family = self.kind.partition(" ")[0]
        return f"{self.kind} {self.size}", self.kind, _FAMILIES.get(family, family)


class Span(NamedTuple):
    """An expectation in nanoseconds, and between what it lies."""

    ns: int
    low_ns: int
    high_ns: int


class _Factor(NamedTuple):
    log: float
    times: int


_lock = threading.RLock()
_factors: dict[str, _Factor] = {}
_read: set[Path] = set()
_saved_s = 0.0
_changed = False
_calibrated = False
_forecasts: dict[str, int | None] = {}  # of the compile that began last


def size_class(amount: float) -> int:
    """Return a class of size; a class takes in amounts that differ by up to four times."""
    return int(max(amount, 1)).bit_length() // 2


def expected(parts: Iterable[Part]) -> Span:
    """Return how long some work takes here, as far as it is known."""
    with _lock:
        _remember_disk()
        ns = low = high = 0.0
        for part in _joined(parts):
            log, level = _factor(part)
            took = part.guess_ns * math.exp(log)
            ns += took
            low += took / _SPREADS[level]
            high += took * _SPREADS[level]
    return Span(int(ns), int(low), int(high))


def learn(parts: Iterable[Part], took_ns: float) -> None:
    """Take into account what some work took together.

    What is known already is believed, and the rest told by what is left; where all is known,
    each part gets its share of the difference.
    """
    joined = _joined(parts)
    if not joined or took_ns < _SHORTEST_NS:
        return
    with _lock:
        _remember_disk()
        known: list[tuple[Part, float]] = []
        fresh: list[tuple[Part, float]] = []
        for part in joined:
            log, level = _factor(part)
            (fresh if level else known).append((part, part.guess_ns * math.exp(log)))
        total = sum(ns for _, ns in known + fresh)
        unknown = sum(ns for _, ns in fresh)
        if unknown >= _NOTICED * total:
            rest = took_ns - (total - unknown)
            off = math.log(max(rest, _NOTICED * min(unknown, took_ns)) / unknown)
            told, total = fresh, unknown
        else:
            off, told = math.log(took_ns / total), known
        for part, ns in told:
            if ns >= _NOTICED * total:
                _note(part, math.log(ns / part.guess_ns) + off)
    if time.monotonic() - _saved_s > _SAVE_EVERY_S:
        save()


def is_calibrated() -> bool:
    """Return whether this machine was timed, in this process or in an earlier one."""
    with _lock:
        _remember_disk()
        return _calibrated


def set_calibrated() -> None:
    """Take note that this machine is timed."""
    global _calibrated, _changed
    with _lock:
        _calibrated = _changed = True


def forget() -> None:
    """Go back to the guesses alone."""
    global _changed, _calibrated
    with _lock:
        _factors.clear()
        _read.clear()
        _changed = _calibrated = False


def save() -> None:
    """Write the factors beside the executables on disk; failing to is harmless."""
    global _changed, _saved_s
    path = cache.pace_path()
    with _lock:
        if path is None or not _changed:
            return
        _changed, _saved_s = False, time.monotonic()
        table = {key: [round(f.log, 4), f.times] for key, f in _factors.items()}
        held = {"version": _VERSION, "calibrated": _calibrated, "factors": table}
    with contextlib.suppress(Exception):  # a full disk must not stop a training run
        cache.write_text(path, json.dumps(held))


atexit.register(save)


def _joined(parts: Iterable[Part]) -> list[Part]:
    """Return parts of one kind and size as one."""
    sums: dict[tuple[str, int], float] = {}
    for kind, size, guess in parts:
        sums[kind, size] = sums.get((kind, size), 0.0) + guess
    return [Part(kind, size, ns) for (kind, size), ns in sums.items() if ns > 0]


def _factor(part: Part) -> tuple[float, int]:
    """Return the logarithm of a part's factor, and the position of the key that had it."""
    for level, key in enumerate(part.keys):
        found = _factors.get(key)
        if found is not None:
            return found.log, level
    return 0.0, len(_SPREADS) - 1


def _note(part: Part, log: float) -> None:
    global _changed
    most = _MOST_OF_FIXED if part.is_fixed else _MOST
    log = min(max(log, -most), most)
    levels = list(zip(part.keys, _WEIGHTS, strict=True))
    if part.guess_ns < _TELLING_NS or part.is_fixed:
        levels = levels[:1]
    for key, least in levels:
        before = _factors.pop(key, None) or _Factor(log, 0)
        weight = max(1 / (before.times + 1), least)
        _factors[key] = _Factor(
            before.log + weight * (log - before.log), before.times + 1
        )
    while len(_factors) > _MAX_FACTORS:
        del _factors[next(iter(_factors))]
    _changed = True


def _remember_disk() -> None:
    """Take in what earlier processes learned, once; what this one knows comes first."""
    global _calibrated
    path = cache.pace_path()
    if path is None or path in _read:
        return
    _read.add(path)
    found, calibrated = _parsed(cache.read_text(path))
    _calibrated = _calibrated or calibrated
    here = dict(_factors)
    _factors.clear()
    _factors.update(found | here)


def _parsed(text: str) -> tuple[dict[str, _Factor], bool]:
    """Return the factors that a file holds, and whether its machine was timed.

    None of another version's or of a damaged one.
    """
    try:
        held = json.loads(text)
        if held["version"] != _VERSION:
            return {}, False
        pairs = list(held["factors"].items())[-_MAX_FACTORS:]
        factors = {
            key: _Factor(min(max(float(log), -_MOST), _MOST), max(1, int(count)))
            for key, (log, count) in pairs
            if math.isfinite(log)
        }
        return factors, held.get("calibrated") is True
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ):
        return {}, False


# ------------------------------------------------------------ the parts of a peek

# Measured with `python -m benchmarks prints` on two cores: fast-tier compile of one op, the
# same for each node of a slice, the fixed cost of a slice, and running one cached op.
COMPILE_OP_NS = 20_000_000
_COMPILE_SLICE_NODE_NS = 2_500_000
_COMPILE_SLICE_NS = 40_000_000
RUN_OP_NS = 60_000
# Measured with `python -m benchmarks looks`: an executable read from disk; compiling a slice;
# running a slice, and each node of it.
_LOAD_NS = 2_500_000
_LOAD_NODE_NS = 80_000
_GUESSED_SLICE_NS = 30_000_000
_RUN_SLICE_NS = 200_000
_RUN_SLICE_NODE_NS = 10_000
# A look: its fixed part, and the statistics of one element.
_LOOK_NS = 350_000
_LOOK_ELEMENT_NS = 6.0


def slice_is_cheaper(cone: list[Node]) -> bool:
    """Return whether one slice is cheaper than single ops, none of it known."""
    unknown = len({node.spec for node in cone if node.spec.executable is None})
    by_op = unknown * COMPILE_OP_NS + len(cone) * RUN_OP_NS
    return by_op > _COMPILE_SLICE_NS + len(cone) * _COMPILE_SLICE_NODE_NS


def runs_as_slice(cone: list[Node], *, reused: bool) -> bool:
    """Return whether a peek of values whose slice nobody has yet runs as one."""
    return not (config.op_by_op_reads or reused) and slice_is_cheaper(cone)


def op_compiles(cone: Iterable[Node]) -> list[Part]:
    """Return what single ops take until all have executables in memory."""
    unknown = {node.spec: None for node in cone if node.spec.executable is None}
    return [
        part for spec in unknown for part in op_part(spec, compiler.place_of_op(spec))
    ]


def op_part(spec: Spec, place: Place) -> list[Part]:
    """Return what it takes to get the executable of an op that lies somewhere."""
    if place == "memory":
        return []
    if place == "disk":
        return [Part("load op", 0, _LOAD_NS)]
    return [Part(f"compile {spec.name}", int(spec.is_large), COMPILE_OP_NS)]


def slice_compile(cone: Sequence[Node], place: Place) -> list[Part]:
    """Return what it takes to get the executable of a cone that lies somewhere."""
    if place == "memory":
        return []
    if place == "disk":
        guess = _LOAD_NS + len(cone) * _LOAD_NODE_NS
        return [Part("load slice", size_class(len(cone)), guess)]
    nodes = [
        Part(f"slice {node.op.name}", int(node.spec.is_large), _COMPILE_SLICE_NODE_NS)
        for node in cone
    ]
    return [Part("slice base", 0, _GUESSED_SLICE_NS), *nodes]


def step_compile(nodes: Sequence[Node], *, fast: bool) -> list[Part]:
    """Return what compiling a step's graph takes, in one of the two tiers."""
    family = "fast-step" if fast else "step"
    found = [Part(f"{family} base", 0, _GUESSED_SLICE_NS)]
    for spec, times in Counter(node.spec for node in nodes).items():
        # XLA compiles equal kernels once, and fuses equal ops with different neighbours.
        guess = _COMPILE_SLICE_NODE_NS * math.sqrt(times)
        found.append(Part(f"{family} {spec.name}", int(spec.is_large), guess))
    return found


def compile_forecast(graph: Sequence[Node] | str) -> int | None:
    """Return how many nanoseconds compiling a graph will take, None if that is not known.

    In two tiers that is the fast build's time, which the step waits for.

    It is known where ops of the same kinds were compiled before, here or in a process whose cache
    this one has, for all but a tenth of what the work is guessed to be.

    Args:
        graph: The nodes of the pending graph, or the fingerprint of one whose compile has begun.
    """
    if isinstance(graph, str):
        return _forecasts.get(graph)
    tiered = config.compile_tier == "tiered" and len(graph) > compiler.FEW_NODES
    fast = tiered or config.compile_tier == "fast"
    return _forecast(step_compile(graph, fast=fast))


def begin_compile(fingerprint: str, parts: list[Part]) -> None:
    """Note that a graph is about to be compiled; see `compile_forecast`."""
    _forecasts.clear()
    _forecasts[fingerprint] = _forecast(parts)


def _forecast(parts: list[Part]) -> int | None:
    with _lock:
        _remember_disk()
        new = sum(p.guess_ns for p in parts if _factor(p)[1] == len(_SPREADS) - 1)
    if new > _NOTICED * sum(part.guess_ns for part in parts):
        return None
    return expected(parts).ns


def runs(cone: Sequence[Node]) -> list[Part]:
    """Return what running a cone op by op takes once all is compiled."""
    return [*_work(cone, ""), Part("fixed run", 0, len(cone) * RUN_OP_NS)]


def slice_runs(cone: Sequence[Node]) -> list[Part]:
    """Return what running a cone as one slice takes once it is compiled."""
    launch = _RUN_SLICE_NS + len(cone) * _RUN_SLICE_NODE_NS
    return [*_work(cone, "fused-"), Part("fixed launch", size_class(len(cone)), launch)]


def _work(cone: Sequence[Node], prefix: str) -> list[Part]:
    parts = []
    alike = {node.spec: node for node in cone}
    for spec, times in Counter(node.spec for node in cone).items():
        node = alike[spec]
        family = f"{prefix}{'dense' if is_dense(node) else 'run'}"
        work = run_ns(node)
        parts.append(Part(f"{family} {spec.name}", size_class(work), times * work))
    return parts


def looks(value: Value) -> list[Part]:
    """Return what the statistics and the picture of a value take."""
    return look_at(str(value.dtype), math.prod(value.shape))


def look_at(dtype: str, elements: int) -> list[Part]:
    """Return what the statistics and the picture of so many elements take."""
    guess = _LOOK_NS + elements * _LOOK_ELEMENT_NS
    return [Part(f"look {dtype}", size_class(elements), guess)]


# ------------------------------------------------------------ the machine

_SIDE = 512
_LONG = 2**22  # more elements than a processor's cache holds
_SEEN = 2**20  # enough for a look
_RUNS = 2  # the shortest counts
_one_at_a_time = threading.RLock()


def calibrate() -> None:
    """Time this machine, unless that was done or the device is at work.

    A failure is harmless: guesses are then those of a plain machine.
    """
    if is_calibrated() or completion.in_flight():
        return
    with _one_at_a_time, contextlib.suppress(Exception):
        if not is_calibrated():
            set_calibrated()
            process.check_not_forked()
            with jax_compat.scope():
                _measure()


def _measure() -> None:
    tiny, square = np.ones(8, np.float32), np.ones((_SIDE, _SIDE), np.float32)
    line = jax_compat.give(np.linspace(0, 1, _LONG, dtype=np.float32))
    seen = jax_compat.give(np.linspace(0, 1, _SEEN, dtype=np.float32))
    _compiled(lambda x: x + 1, jax_compat.give(tiny))  # the first one takes longer
    product, one = _compiled(lambda x: x @ x, jax_compat.give(square))
    tanh, other = _compiled(jnp.tanh, line)
    _tell("compile", COMPILE_OP_NS, min(one, other))
    _tell("dense", product_ns(2 * _SIDE**3), _shortest(product))
    _tell("run", moving_ns("tanh", 2 * line.nbytes), _shortest(tanh))
    took = _shortest(lambda: preview.summarise(seen, torch.float32))
    learn(look_at("torch.float32", _SEEN), took)


def _tell(family: str, guess_ns: float, took_ns: int) -> None:
    learn([Part(f"{family} calibration", 0, guess_ns)], took_ns)


def _compiled(
    function: Callable[[Any], Any], data: Array
) -> tuple[Callable[[], None], int]:
    """Return what runs a function on some data to the end, and what compiling it took."""
    start = now()
    executable = jax_compat.compile_function(function, [data], {}, fast=True)
    took = now() - start
    return lambda: jax_compat.block(executable(data)), took


def _shortest(run: Callable[[], object]) -> int:
    """Return how long something takes, the shortest of a few times."""
    times = []
    for _ in range(_RUNS):
        start = now()
        run()
        times.append(now() - start)
    return min(times)
