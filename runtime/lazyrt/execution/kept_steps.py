"""The inputs of steps that have run, kept so that any value of them can be computed again.

What is kept is the step's own arrays, shared as `copy_on_donate` shares what a notebook shows: a
step that gives one away leaves its keepers a copy. Steps donate, compile and run as without.

For `config.stop_at_nan` the first step of a window keeps all its inputs, and each other one what none
of them has made: run again, they make the rest. Only the first copies what it overwrites.

Everything here is called with the runtime's lock held.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from lazygraph.readable import plural, size_text
from lazyrt.config import config, follow
from lazyrt.errors import LazyRuntimeError
from lazyrt.execution import copy_on_donate, replicas
from lazyrt.execution.graph_registry import Run
from lazyrt.ir.live import Buffer, StepInputs, lock, made_in, pending
from lazyrt.ir.node import lines_now, nbytes_of

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch

    from lazyrt.execution.graph_registry import CompiledGraph
    from lazyrt.ir.fingerprint import Canonical
    from lazyrt.ir.node import Leaf, Node, Value
    from lazyrt.jax_compat import Array

    RunAgain = Callable[[StepInputs], Sequence[Array]]
    Source = tuple[int, int]  # number of a step, and of one of its results
    Updates = Sequence[tuple[weakref.ref[torch.optim.Optimizer], int]]

# Its first step copies what it overwrites, which is no more than what each step writes: half a percent.
_STEPS = 200


class _Arrays:
    """Device arrays by position among a step's inputs, each as its keeper has it now."""

    def __init__(self, keepers: dict[int, Buffer]) -> None:
        self._keepers = keepers

    def __getitem__(self, position: int, /) -> Array:
        data: Array = self._keepers[position].data
        return data


class KeptStep(StepInputs):
    """A step that has run, with its inputs.

    Args:
        graph, record, order, donated, run: See `keep`.
        window: The steps before it that make some of its inputs if they run again.

    Attributes:
        canonical: Its graph; None once the inputs were let go.
        own: What keeps those of its inputs that no step before it in the window has kept.
        own_bytes: Their size.
        is_first: Whether no step before it in the window has run the same graph.
        lines: Provenances of its nodes, by id.
        watched: Which of its results tell whether it is finite, with their positions.
        updates: What optimizers have done in it.
        results: Remembers what it gave when it ran again; a peek rounds in another way.
    """

    def __init__(
        self,
        graph: Canonical,
        record: CompiledGraph | None,
        order: Sequence[int],
        donated: Iterable[int],
        run: RunAgain,
        window: Window,
    ) -> None:
        super().__init__(pending.number)
        self.canonical: Canonical | None = graph
        self.record = record
        self.lines = lines_now()
        self.run = run
        self._order = order
        self.watched: Mapping[Value, int] = {}
        self.updates: Updates = ()
        self.results = StepInputs(self.number)
        self.floats, self.ints, self.rng = pending.floats, pending.ints, pending.rng
        self._keepers: dict[int, Buffer] = {}
        self._owners, self._donated = pending.owners, donated
        self.sources = sources = pending.sources
        self.own: list[Buffer] = []
        self.own_bytes = 0
        self.is_first = graph.fingerprint not in window.graphs
        # The same few executions have made nearly all.
        inside = {
            id(run)
            for run in {id(run): run for run, _ in sources.values()}.values()
            if run.__class__ is Run and run.step in window.steps
        }
        new = [x for x in graph.data if id(sources[x.position][0]) not in inside]
        for leaf in new:
            position = leaf.position
            data = pending.inputs[position]
            keeper = window.keepers.get(id(data))
            meta = (leaf.shape, leaf.dtype, leaf.strides)
            if keeper is None or keeper.data is not data or keeper.meta != meta:
                keeper = keeper_of(leaf, data)
                self.own.append(keeper)
                self.own_bytes += nbytes_of(leaf)
            self._keepers[position] = keeper
        self.inputs = _Arrays(self._keepers)

    @property
    def _leaves(self) -> dict[int, Leaf]:
        data = self.canonical.data if self.canonical is not None else ()
        return {leaf.position: leaf for leaf in data}

    @property
    def is_whole(self) -> bool:
        """Whether it has all its inputs: each of its values can be computed."""
        return self.canonical is not None and not self.made

    @property
    def made(self) -> dict[int, Source]:
        """What has made the inputs that it has not kept, by their positions."""
        positions = (k for k in self._leaves if k not in self._keepers)
        found = ((position, *self.sources[position]) for position in positions)
        return {position: (run.step, slot) for position, run, slot in found}

    @property
    def copied_bytes(self) -> int:
        """Size of the inputs whose memory its results took, of which it has copies."""
        leaves, copied = self._leaves, self._keepers.keys() & self._donated
        return sum(nbytes_of(leaves[position]) for position in copied)

    def nodes_for(self, value: Value) -> list[Node]:
        """Return what `result` runs; nothing for what is no result, or where ranks run it together."""
        graph = self.canonical
        with contextlib.suppress(LazyRuntimeError):
            if graph is not None and value in graph.roots:
                replicas.check_alone(graph.nodes)
                return list(graph.nodes)
        return []

    def result(self, value: Value) -> Array:
        """Run the step again for one of its results."""
        assert self.canonical is not None
        rank = self.canonical.roots.index(value)
        return self.run(self)[self._order.index(rank)]

    def sizes(self) -> dict[int, int]:
        """Return the size of each input that it keeps, by the identity of its data."""
        leaves = self._leaves
        return {id(x.data): nbytes_of(leaves[k]) for k, x in self._keepers.items()}

    def fill(self, results: Mapping[Source, Array]) -> list[int]:
        """Keep the inputs among some steps' results, too; return their positions."""
        leaves = self._leaves
        made = {k: source for k, source in self.made.items() if source in results}
        for position, source in made.items():
            self._keepers[position] = keeper_of(leaves[position], results[source])
        return list(made)

    def let_go(self, positions: Iterable[int]) -> None:
        """Keep some inputs no longer."""
        for position in positions:
            del self._keepers[position]

    def share(self) -> None:
        """Become a keeper of the inputs' data; before, a barrier sees no more than references."""
        shared = []
        for position, keeper in self._keepers.items():
            owner = self._owners[position]()
            if owner is not None:
                shared.append([owner, keeper])
        copy_on_donate.share(shared)

    def give_back(self) -> None:
        """Give the tensors that the step read, and that were overwritten since, what they held."""
        shared = []
        for position, keeper in self._keepers.items():
            owner, source = self._owners[position](), self.sources[position]
            if owner is None or owner.data is keeper.data:
                continue
            if source[0] is not None and made_in(owner) == source:
                continue  # what it holds was made again
            owner.data, owner.meta, owner.value = keeper.data, keeper.meta, None
            owner.run, owner.slot = source
            owner.version += 1
            shared.append([owner, keeper])
        copy_on_donate.share(shared)

    def release(self) -> None:
        """Let go of the inputs and of what was computed from them."""
        self.number = -1
        self.canonical = None
        self._keepers.clear()
        self.own.clear()
        self.memo, self.memo_bytes = {}, 0
        self.results = StepInputs()


def keeper_of(value: Value, data: Array) -> Buffer:
    """Return a buffer that keeps a value's data; `copy_on_donate.share` makes it a sharer."""
    keeper = Buffer(None)
    keeper.meta = (value.shape, value.dtype, value.strides)
    keeper.data = data
    return keeper


class Window:
    """Steps of which the first has kept all its inputs, and each other one what none of them made.

    Attributes:
        steps: By number, in their order.
        keepers: What they keep, by the identity of its data.
        nbytes: The size of that.
        graphs: Fingerprints of what its steps run.
    """

    def __init__(self) -> None:
        self.graphs: set[str] = set()
        self.steps: dict[int, KeptStep] = {}
        self.keepers: dict[int, Buffer] = {}
        self.nbytes = 0

    def add(self, step: KeptStep) -> None:
        """Take in the next step."""
        self.steps[step.number] = step
        if step.canonical is not None:
            self.graphs.add(step.canonical.fingerprint)
        self.keepers.update({id(keeper.data): keeper for keeper in step.own})
        self.nbytes += step.own_bytes

    def release(self) -> None:
        """Let go of all that its steps keep."""
        for step in self.steps.values():
            step.release()


class KeptValues(NamedTuple):
    """Which finished steps can be computed again, and what that takes.

    Attributes:
        steps: Their numbers, the earliest first.
        nbytes: Size of their inputs, each array counted once.
        copied_bytes: How much the last of them had to copy.
        left_out: The last step whose inputs are more than the budget, with their size.
    """

    steps: tuple[int, ...] = ()
    nbytes: int = 0
    copied_bytes: int = 0
    left_out: tuple[int, int] | None = None

    def __str__(self) -> str:
        """Return it in one line; empty where nothing is kept.

        Example:
            >>> print(KeptValues((7, 8), 3 * 2**20, 2**20))
            inputs of 2 steps, 7 to 8, 3.0 MiB; the last copied 1.0 MiB
            >>> print(KeptValues(left_out=(8, 3 * 2**30)))
            step 8 is not kept: its inputs are 3.0 GiB
        """
        parts = []
        if self.steps:
            first, last = self.steps[0], self.steps[-1]
            which = f"{first} to {last}" if first < last else f"{last}"
            parts.append(
                f"inputs of {plural(len(self.steps), 'step')}, {which}, "
                f"{size_text(self.nbytes)}; the last copied {size_text(self.copied_bytes)}"
            )
        if self.left_out is not None:
            step, nbytes = self.left_out
            parts.append(f"step {step} is not kept: its inputs are {size_text(nbytes)}")
        return "; ".join(parts)


_windows: deque[Window] = deque()
_left_out: tuple[int, int] | None = None


def keep(
    graph: Canonical,
    record: CompiledGraph | None,
    order: Sequence[int],
    donated: Sequence[int],
    run: RunAgain,
) -> KeptStep | None:
    """Keep the inputs of the pending step, which is about to run, if the settings say so.

    Args:
        graph: What it runs.
        record: What is known of its executable.
        order: For each of its results, the position among the graph's roots.
        donated: Positions of the inputs whose memory it gives away.
        run: Runs it again on inputs, which stay as they are, and returns the results.
    """
    global _left_out
    count, budget = _count(), config.keep_values_bytes
    if not count:
        return None
    goes_on = _windows and not are_whole() and len(_windows[-1].steps) < _STEPS
    window = _windows[-1] if goes_on else Window()
    step = KeptStep(graph, record, order, donated, run, window)
    if window.steps and window.nbytes + step.own_bytes > budget // count:
        window = Window()
        step = KeptStep(graph, record, order, donated, run, window)
    if not window.steps:
        own = sum(step.sizes().values())
        if own > budget:
            _left_out = step.number, own
            return None
        while _windows and (
            len(_windows) >= count or _nbytes(*_steps(), step) > budget
        ):
            _windows.popleft().release()
        _windows.append(window)
    _left_out = None
    window.add(step)
    step.share()
    return step


def _steps() -> list[KeptStep]:
    return [step for window in _windows for step in window.steps.values()]


def drop(step: KeptStep) -> None:
    """Let one step go, which did not run."""
    for window in list(_windows):
        if window.steps.pop(step.number, None) is None:
            continue
        window.keepers = {k: x for k, x in window.keepers.items() if x not in step.own}
        window.nbytes -= step.own_bytes
        if not window.steps:
            _windows.remove(window)
    step.release()


def release_all() -> bool:
    """Let all of them go, for memory; return whether there was any."""
    had_any = bool(_windows)
    while _windows:
        _windows.popleft().release()
    return had_any


def find(number: int) -> KeptStep | None:
    """Return a step by its number, if all its inputs are kept."""
    step = kept(number)
    return step if step is not None and step.is_whole else None


def kept(number: int) -> KeptStep | None:
    """Return a step by its number, if any of its inputs are kept."""
    found = (window.steps.get(number) for window in _windows)
    return next(filter(None, found), None)


def kept_values() -> KeptValues:
    """Return which finished steps can be computed again, and what that takes."""
    steps = _steps()
    numbers = tuple(step.number for step in steps if step.is_whole)
    copied = steps[-1].copied_bytes if steps else 0
    return KeptValues(numbers, _nbytes(*steps), copied, _left_out if _count() else None)


def replay(
    number: int,
    bad: list[Value],
    find_bad: Callable[[KeptStep, Sequence[Array]], list[Value]],
    *,
    earlier: bool,
) -> tuple[KeptStep, list[Value]]:
    """Run steps again up to the first bad one; return that, with all its inputs, and what is bad.

    Steps after it get what those before it have made, for `keep_from`.

    Args:
        number: Of a step that is known to be bad.
        bad: What of its results is.
        find_bad: The same of a step before that.
        earlier: Whether to begin a window before the one in which it stands.
    """
    at = next(k for k, window in enumerate(_windows) if number in window.steps)
    windows = list(_windows)[max(0, at - earlier) :]
    steps = [step for window in windows for step in window.steps.values()]
    last = {source: step.number for step in steps for source in step.made.values()}
    results: dict[Source, Array] = {}
    found: KeptStep | None = None
    for step in steps:
        filled = step.fill(results)
        if found is not None:
            continue
        made = () if step.number == number else step.run(step)
        here = bad if step.number == number else find_bad(step, made)
        if here:
            found, bad = step, here
            continue
        step.let_go(filled)
        results |= {(step.number, slot): data for slot, data in enumerate(made)}
        results = {s: x for s, x in results.items() if last.get(s, -1) > step.number}
    assert found is not None
    return found, bad


def keep_from(first: KeptStep) -> list[KeptStep]:
    """Keep one step alone; return it and those after it, the latest first."""
    steps = [step for step in _steps() if step.number >= first.number]
    for step in _steps():
        if step.number < first.number:
            step.release()
    window = Window()
    window.add(first)
    first.watched = {}  # what it gave has been told: no later step is bad for it
    _windows.clear()
    _windows.append(window)
    return steps[::-1]


def are_whole() -> bool:
    """Return whether each step that is kept keeps all its inputs."""
    # What ranks run together none runs again alone.
    return bool(_kept_whole() or (config.stop_at_nan and replicas.world() is not None))


def _kept_whole() -> int:
    """Return of how many steps all inputs are kept."""
    setting = config.keep_values
    return setting if isinstance(setting, int) else int(setting == "last")


def _count() -> int:
    """Return how many windows are kept: a step is known to be finite while the next one runs."""
    return max(_kept_whole(), 2 * config.stop_at_nan)


def _nbytes(*steps: KeptStep) -> int:
    sizes: dict[int, int] = {}
    for step in steps:
        sizes |= step.sizes()
    return sum(sizes.values())


def trim(_: object = None) -> None:
    """Let go of what the settings no longer keep."""
    with lock:
        while len(_windows) > _count() or _nbytes(*_steps()) > config.keep_values_bytes:
            _windows.popleft().release()


follow("keep_values", trim)
follow("keep_values_bytes", trim)
