"""The inputs of steps that have run, kept so that any value of them can be computed again.

What is kept is the step's own arrays, shared as `copy_on_donate` shares what a notebook shows: a
step that gives one of them away leaves its keepers a copy. So steps donate, compile and run as
they would without. With the numbers and random states that it read, a step's cone computes again
what it computed then.

Everything here is called with the runtime's lock held.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from lazygraph.numbers import plural, size_text
from lazyrt.config import config, follow
from lazyrt.execution import copy_on_donate
from lazyrt.ir.live import Buffer, StepInputs, lock, pending

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazyrt.execution.graph_registry import CompiledGraph
    from lazyrt.ir.fingerprint import Canonical


class _Arrays:
    """Device arrays by position among a step's inputs, each as its keeper has it now."""

    def __init__(self, keepers: dict[int, Buffer]) -> None:
        self._keepers = keepers

    def __getitem__(self, position: int, /) -> Any:
        return self._keepers[position].data


class KeptStep(StepInputs):
    """A step that has run, with its inputs.

    Attributes:
        canonical: Its graph; None once the inputs were let go.
        record: What is known of its executable.
        copied_bytes: Size of the inputs whose memory its results took, of which it has copies.
    """

    def __init__(
        self, graph: Canonical, record: CompiledGraph | None, donated: Iterable[int]
    ) -> None:
        super().__init__(pending.number)
        self.canonical: Canonical | None = graph
        self.record = record
        self.floats, self.ints, self.rng = pending.floats, pending.ints, pending.rng
        self._keepers: dict[int, Buffer] = {}
        before = _kept[-1] if _kept else None
        self._sizes: dict[int, int] = (
            before._sizes
            if before is not None and before.canonical is graph
            else {x.position: pending.inputs[x.position].nbytes for x in graph.data}
        )
        for leaf in graph.data:
            keeper = self._keepers[leaf.position] = Buffer(None)
            keeper.meta = (leaf.shape, leaf.dtype, leaf.strides)
            keeper.data = pending.inputs[leaf.position]
        self.inputs = _Arrays(self._keepers)
        self._owners = {each: pending.owners[each] for each in self._keepers}
        self._sources = {each: pending.sources[each] for each in self._keepers}
        given = self._keepers.keys() & set(donated)
        self.copied_bytes = sum(self._sizes[k] for k in given)

    def sizes(self) -> dict[int, int]:
        """Return the size of each input, by the identity of its data."""
        return {id(each.data): self._sizes[k] for k, each in self._keepers.items()}

    def share(self) -> None:
        """Become a keeper of the inputs' data; before, a barrier sees no more than references."""
        shared = []
        for position, keeper in self._keepers.items():
            owner = self._owners[position]()
            shared.append([keeper] if owner is None else [owner, keeper])
        copy_on_donate.share(shared)

    def give_back(self) -> None:
        """Give the tensors that the step read, and that were overwritten since, what they held."""
        shared = []
        for position, keeper in self._keepers.items():
            owner = self._owners[position]()
            if owner is None or owner.data is keeper.data:
                continue
            owner.data, owner.meta, owner.value = keeper.data, keeper.meta, None
            owner.run, owner.slot = self._sources[position]
            owner.version += 1
            shared.append([owner, keeper])
        copy_on_donate.share(shared)

    def release(self) -> None:
        """Let go of the inputs and of what was computed from them."""
        self.number = -1
        self.canonical = None
        self._keepers.clear()
        self.memo, self.memo_bytes = {}, 0


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


_kept: deque[KeptStep] = deque()
_left_out: tuple[int, int] | None = None


def keep(
    graph: Canonical, record: CompiledGraph | None, donated: Sequence[int]
) -> KeptStep | None:
    """Keep the inputs of the pending step, which is about to run, if the settings say so.

    Args:
        graph: What it runs.
        record: What is known of its executable.
        donated: Positions of the inputs whose memory it gives away.
    """
    global _left_out
    count = _count()
    if not count:
        return None
    step = KeptStep(graph, record, donated)
    own = sum(step.sizes().values())
    if own > config.keep_values_bytes:
        _left_out = step.number, own
        return None
    _left_out = None
    while _kept and (
        len(_kept) >= count or _nbytes(*_kept, step) > config.keep_values_bytes
    ):
        _kept.popleft().release()
    step.share()
    _kept.append(step)
    return step


def drop(step: KeptStep) -> None:
    """Let one step go, which did not run."""
    step.release()
    if step in _kept:
        _kept.remove(step)


def release_all() -> bool:
    """Let all of them go, for memory; return whether there was any."""
    had_any = bool(_kept)
    while _kept:
        _kept.popleft().release()
    return had_any


def find(number: int) -> KeptStep | None:
    """Return a step by its number, if its inputs are kept."""
    return next((step for step in _kept if step.number == number), None)


def kept_values() -> KeptValues:
    """Return which finished steps can be computed again, and what that takes."""
    last = _kept[-1].copied_bytes if _kept else 0
    numbers = tuple(step.number for step in _kept)
    return KeptValues(numbers, _nbytes(*_kept), last, _left_out)


def since(number: int) -> list[KeptStep]:
    """Return the steps from a number on whose inputs are kept, the latest first."""
    return [step for step in reversed(_kept) if step.number >= number]


def _count() -> int:
    """Return how many steps are kept: a step is known to be finite while the next one runs."""
    setting = config.keep_values
    kept = setting if isinstance(setting, int) else int(setting == "last")
    return max(kept, 2 * config.stop_at_nan)


def _nbytes(*steps: KeptStep) -> int:
    sizes: dict[int, int] = {}
    for step in steps:
        sizes |= step.sizes()
    return sum(sizes.values())


def trim(_: object = None) -> None:
    """Let go of what the settings no longer keep."""
    with lock:
        while len(_kept) > _count():
            _kept.popleft().release()


follow("keep_values", trim)
