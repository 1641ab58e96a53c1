"""Buffers, and everything that is pending until the next barrier.

A `Buffer` is the state of one storage. The `PendingStep` is the only mutable state of the
recorder: which buffers have pending values, and which device data, Python numbers and RNG
states the pending graph reads. Its containers keep their identity for the life of the
process, because generated kernels hold them.

Everything here is guarded by `lock`, which kernels take for each op.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from lazyrt.errors import LostValueError
from lazyrt.ir import sharding
from lazyrt.ir.node import (
    Leaf,
    LeafKind,
    Node,
    Place,
    Tables,
    Value,
    carried,
    enter,
    leave_places,
    lines_of,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lazyrt.observe.events import SourceLocation

lock = threading.RLock()


def unwind() -> None:
    """Give the lock back once after an interrupted `lock.acquire()`, if that had taken it.

    A thread that holds the lock never waits for it, so it has taken it again.
    """
    if lock._is_owned():  # type: ignore[attr-defined]
        lock.release()


# References to a buffer while `PendingStep.live` looks at it: the dict's key, the loop's
# variable and getrefcount's argument.
_OWN_REFERENCES = 3


Type = sharding.Type


class Lost:
    """Stands for the data of a buffer whose value can no longer be computed."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class FromCpu(NamedTuple):
    """What made data that an op without a lowering computed on the CPU."""

    op: str
    site: SourceLocation | None


class RanAlone(NamedTuple):
    """What made data outside of a step's executable.

    Attributes:
        how: `in eager debug mode`, `in op-by-op mode` or `ahead of its step`.
        made: For each result its op and the line that recorded it.
    """

    how: str
    made: tuple[tuple[str, SourceLocation | None], ...]


class Sizes(NamedTuple):
    """How much a pending step has numbered so far, and its last collective."""

    inputs: int = 0
    floats: int = 0
    ints: int = 0
    rng: int = 0
    transient: int = 0
    last_collective: int = -1


class Buffer:
    """The state of one storage.

    Attributes:
        value: Pending value, or the leaf under which this step reads `data`; None when the
            current step has not touched a ready buffer.
        data: Device array of the last barrier or transfer; None before the first.
        version: Counts writes and barriers; views compare it.
        meta: (shape, dtype, strides) once data was stored; strides None if contiguous.
        address: Made-up address of the storage, from the first time that somebody asks for it.
        run: The execution that produced `data`, unset or None for data from the host, a
            `FromCpu` for that of a fallback, a `RanAlone` for what ran outside of steps;
            `slot` is the result's number among what that execution was asked for. Barriers set
            them; `__init__`, which each op pays for, leaves them unset.
        born, made_at: The step in which it got its first data, and the line that made it; unset
            until then.
        number: What reports call it, from the first time that one does.
    """

    __slots__ = (
        "__weakref__", "address", "born", "data", "made_at", "meta", "number", "run", "slot",
        "value", "version",
    )  # fmt: skip

    address: int
    born: int
    made_at: SourceLocation | None
    number: int
    run: Any
    slot: int

    offset = 0

    def __init__(self, value: Value | None) -> None:
        self.value = value
        self.data: Any = None
        self.version = 0
        self.meta: Type | None = None

    @property
    def base(self) -> Buffer:
        """Return the buffer itself: it is nobody's view."""
        return self

    @property
    def type(self) -> Type:
        """(shape, dtype, strides) of the tensor that owns the storage."""
        if self.meta is not None:
            return self.meta
        if self.value is None:
            raise LostValueError(_NEVER if self.data is None else why_lost(self.data))
        return (self.value.shape, self.value.dtype, self.value.strides)

    def write(self, value: Value) -> None:
        """Give the storage a new pending value."""
        # In this order an interrupt between two lines leaves the old value, not a mixture.
        pending.buffers[self] = None
        pending.writes += 1
        self.version += 1
        self.value = value

    fill = write  # a view's differs: it may repeat elements

    def store(self, data: Any, type_: Type) -> None:
        """Replace the contents by a device array; nothing stays pending."""
        if sharding.in_use:
            data, type_ = sharding.stored(self.meta, data, type_)
        if self.meta is None:
            _list_ready(self)
        self.meta = type_
        self.version += 1
        self.data = data
        self.value = None
        self.run = None
        self.slot = 0

    def rearrange(self, data: Any) -> None:
        """Take the same contents on other devices; what is pending keeps those that it reads."""
        assert self.meta is not None
        self.meta = sharding.typed(data, self.meta)
        self.version += 1
        self.data = data
        self.value = None

    @property
    def is_pending(self) -> bool:
        """Whether the value has yet to be computed."""
        return self.value is not None and self.value.node is not None


class Inputs(Protocol):
    """Device arrays by position."""

    def __getitem__(self, position: int, /) -> Any:
        """Return the array at a position."""


class StepInputs:
    """What the graph of a step reads, and what peeks have computed from it.

    Attributes:
        number: The step's number; -1 once the inputs were let go.
        inputs: Device arrays, by position.
        floats, ints: Lifted Python numbers in order of use.
        rng: One (seed, offset) pair for each random op, in order of recording.
        memo: Values that peeks have computed.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.inputs: Inputs = []
        self.floats: list[float] = []
        self.ints: list[int] = []
        self.rng: list[tuple[int, int]] = []
        self.memo: dict[Value, Any] = {}
        self.memo_bytes = 0


class PendingStep(StepInputs):
    """What was recorded since the last barrier.

    Attributes:
        buffers: Every buffer that an op created or wrote, in order; keys hold them strongly,
            so a buffer that only this dict references is dead.
        parked: Those of them that were pending when an op of the eager debug mode began, with
            the values that they had.
        inputs: Device arrays in order of first use, and `owners` weak references to the
            buffers they came from, by position. `sources` are the executions that made them,
            with the number of the result: a buffer may be gone when somebody asks.
        transient: Buffers of CPU numbers that ops read; they live as long as the step.
        last_collective: The `id` of the node that exchanges data with other processes last; -1
            before the first. They run in this order.
        peeks: What peeks there were, and `peeked` which of them ran a node first.
        writes: In-place ops.
        runs: How often op-by-op mode has run each node, once it has run any.
        may_repeat: Whether equal ops of the step may be several nodes, and `merged` the live values
            of which that has been put right (`fingerprint.py`).
        eager: Whether eager debug mode runs each op as it comes.
        activity: Grows with everything that happens on the device.
    """

    inputs: list[Any]

    def __init__(self) -> None:
        self.buffers: dict[Buffer, None] = {}
        self.parked: dict[Buffer, Value | None] = {}
        self.eager = False
        self.activity = 0
        self._begin(0)

    def _begin(self, number: int) -> None:
        super().__init__(number)
        self.sources: dict[int, tuple[Any, int]] = {}
        self.owners: dict[int, weakref.ref[Buffer]] = {}
        self.transient: list[Buffer] = []
        self.last_collective = -1
        self.runs: dict[Node, int] = {}
        self.peeks: list[tuple[str, SourceLocation | None, int]] = []
        self.peeked: dict[Node, int] = {}
        self.writes = 0
        self.may_repeat = False
        self.merged: tuple[Value | None, ...] = ()

    def live(self) -> list[Buffer]:
        """Return the buffers that something besides this step references."""
        if not self.parked:
            return self.fresh()
        parked = _referenced(self.parked)
        return [*parked, *(b for b in self.fresh() if b not in self.parked)]

    def fresh(self) -> list[Buffer]:
        """Return the live buffers that were created or written since the last `park`."""
        return _referenced(self.buffers)

    def park(self) -> None:
        """Set aside what is pending, so that `buffers` holds what comes from now on."""
        self.parked.update({buffer: buffer.value for buffer in self.buffers})
        self.buffers.clear()

    def unpark(self) -> None:
        """Make what was set aside part of `buffers` again, in the order of recording."""
        everything = [*self.parked, *self.buffers]
        self.buffers.clear()
        self.buffers.update(dict.fromkeys(everything))
        self.parked.clear()

    def sizes(self) -> Sizes:
        """Return how much is numbered now, for `cut_back`."""
        return Sizes(
            len(self.inputs),
            len(self.floats),
            len(self.ints),
            len(self.rng),
            len(self.transient),
            self.last_collective,
        )

    def cut_back(self, sizes: Sizes) -> None:
        """Forget the inputs and numbers that came since there were so many."""
        for position in range(sizes.inputs, len(self.inputs)):
            self.owners.pop(position, None)
            self.sources.pop(position, None)
        del self.inputs[sizes.inputs :]
        del self.floats[sizes.floats :]
        del self.ints[sizes.ints :]
        del self.rng[sizes.rng :]
        del self.transient[sizes.transient :]
        self.last_collective = sizes.last_collective
        if not (sizes.inputs or sizes.floats or sizes.ints or sizes.rng):
            _leave_place()

    def clear(self) -> None:
        """Forget the step; buffers keep whatever value and data they were given."""
        self.activity += len(self.buffers) + len(self.parked) + self.writes + 1
        self.buffers.clear()
        self.parked.clear()
        self._begin(self.number)
        _leave_place()

    def note_peek(
        self,
        cone: list[Node],
        tensor: str,
        site: SourceLocation | None,
        duration_ns: int,
    ) -> None:
        """Remember which nodes a peek has run, for telling what a barrier runs again."""
        number = len(self.peeks)
        self.peeks.append((tensor, site, duration_ns))
        for node in cone:
            self.peeked.setdefault(node, number)

    def forget_peeks(self) -> None:
        """Forget which nodes peeks have run."""
        if self.peeks:
            self.peeks = []
            self.peeked = {}


def _referenced(buffers: Iterable[Buffer]) -> list[Buffer]:
    """Return those of a step's buffers that something besides the step references."""
    count = sys.getrefcount
    return [buffer for buffer in buffers if count(buffer) > _OWN_REFERENCES]


pending = PendingStep()

# The inputs of all steps, by position with type or kind.
_leaves: dict[Any, Leaf] = {}
# Those that the last step of a place had, by position, each with the type object of its buffer: a
# loop finds a leaf without hashing a shape.
_entered = Tables()
# A step that begins at another place of the program, as does the rest of a step that was cut, records
# nodes with lines of their own. Where that is, its first input decides.
_is_somewhere = False
_places: dict[Any, Place] = {}
# Places beyond these share their lines: each costs the first step there a walk for each op.
_MAX_PLACES = 256
# Where walks of the stack may end, for as long as the step lasts (`frontend/provenance.py`).
anchor: Any = None
# Finds what tells the place apart where the program records an op now; the recorder sets it.
find_place: Callable[[], Any] = lambda: None  # noqa: E731
# Plain references without callbacks: a callback is Python code that runs wherever a tensor
# happens to die, and where Ctrl-C could be swallowed.
_live_ready: dict[int, weakref.ref[Buffer]] = {}
_MIN_PRUNED = 1_000
_prune_at = _MIN_PRUNED
_stand_ins: weakref.WeakSet[Buffer] = weakref.WeakSet()


def _list_ready(buffer: Buffer) -> None:
    """Put a buffer with its first data on the list of live ones."""
    global _prune_at
    node = buffer.value.node if buffer.value is not None else None
    buffer.made_at = node.provenance.site if node is not None else None
    buffer.born = pending.number
    _live_ready[id(buffer)] = weakref.ref(buffer)
    if len(_live_ready) > _prune_at:
        for key in [key for key, found in _live_ready.items() if found() is None]:
            del _live_ready[key]
        _prune_at = max(_MIN_PRUNED, 2 * len(_live_ready))


def live_buffers() -> list[Buffer]:
    """Return every live buffer, ready ones first, in no particular order otherwise."""
    with lock:
        recorded = list(pending.live())
        return [
            buffer
            for buffer in ready_buffers()
            # A dead buffer that the step has written lives on as the step's own key.
            if buffer not in pending.buffers and buffer not in pending.parked
        ] + recorded


def ready_buffers() -> list[Buffer]:
    """Return every buffer that was ever given data and is still there, a step's keys included."""
    found = (reference() for reference in list(_live_ready.values()))
    return [buffer for buffer in found if buffer is not None]


def ran_alone(how: str, *values: Value) -> RanAlone:
    """Return what buffers remember of values that were run outside of a step's executable."""
    nodes = [value.node for value in values if value.node is not None]
    return RanAlone(how, tuple((node.op.name, node.provenance.site) for node in nodes))


def made_in(buffer: Buffer) -> tuple[Any, int]:
    """Return what a buffer remembers of the execution that made its data, with the result's number."""
    run = getattr(buffer, "run", None)
    return run, buffer.slot if run is not None else 0


def exempt(buffer: Buffer) -> None:
    """Make a buffer a stand-in: a barrier never computes it, and drops its value."""
    _stand_ins.add(buffer)


def stand_ins() -> list[Buffer]:
    """Return the stand-ins that something still holds."""
    return list(_stand_ins)


def drop_stand_ins(reason: str) -> None:
    """Take the pending values from stand-ins; called by the barrier that leaves them out."""
    if len(_stand_ins) == 0:
        return
    for buffer in list(_stand_ins):
        recorded = buffer in pending.buffers or buffer in pending.parked
        if buffer.is_pending and not recorded:
            buffer.value = None
            buffer.data = Lost(reason)
    _stand_ins.clear()


def why_lost(lost: Lost) -> str:
    """Return what to say where a tensor is used whose value is lost."""
    return f"this tensor has no value: {lost.reason}"


def leaf_of(buffer: Buffer) -> Leaf:
    """Make a ready buffer's data the next input of the pending step."""
    data = buffer.data
    if data is None or data.__class__ is Lost:
        raise LostValueError(_NEVER if data is None else why_lost(data))
    meta: Type = buffer.meta  # type: ignore[assignment]
    if not _is_somewhere:
        _find_here()
    inputs = pending.inputs
    position = len(inputs)
    inputs.append(data)
    if inputs[position] is not data:  # a finaliser's op came in between
        position = _place_of(data, inputs, position)
    last = _entered.cache.get(position)
    leaf = last[1] if last and last[0] is meta else _find_leaf(position, meta)
    pending.owners[position] = weakref.ref(buffer)
    pending.sources[position] = (buffer.run, buffer.slot)
    buffer.value = leaf
    return leaf


def _find_leaf(position: int, meta: Type) -> Leaf:
    """Return the leaf of an input, and remember it for the next step that begins here."""
    key = (position, meta)
    leaf = _leaves.get(key)
    if leaf is None:
        leaf = _leaves[key] = Leaf("data", position, meta[0], meta[1])
        leaf.strides = meta[2]
        leaf.sharding = sharding.sharding_of(meta)
    _entered.cache[position] = (meta, leaf)
    return leaf


def let_go(buffer: Buffer, reason: str) -> None:
    """Give a buffer the data that it has without the pending step, if there is any."""
    value = buffer.value
    if buffer.meta is None and isinstance(value, Leaf):
        buffer.store(pending.inputs[value.position], buffer.type)
        buffer.run, buffer.slot = pending.sources[value.position]
    elif buffer.meta is None:
        buffer.data = Lost(reason)
    buffer.value = None


def _place_of(item: Any, items: list[Any], start: int) -> int:
    """Return where something stands that was appended when a list had `start` items or more."""
    return next(k for k in range(start, len(items)) if items[k] is item)


def _add_number(kind: LeafKind, number: Any, numbers: list[Any]) -> Leaf:
    """Append to the numbers of the pending step; return the leaf of the new one."""
    position = len(numbers)
    numbers.append(number)
    if numbers[position] is not number:  # a finaliser's op came in between
        position = _place_of(number, numbers, position)
    return _number_leaf(kind, position)


def float_leaf(number: float) -> Leaf:
    """Make a Python float an input of the pending step."""
    _find_here()
    return _add_number("float", number, pending.floats)


def int_leaf(number: int) -> Leaf:
    """Make a Python int an input of the pending step."""
    _find_here()
    return _add_number("int", number, pending.ints)


# Every generator that a program still has.
generators: weakref.WeakSet[Generator] = weakref.WeakSet()


class Generator:
    """A counter-based random state: the n-th random op reads (seed, n).

    Barriers, prints and peeks do not count, so random numbers depend on the seed and on how
    many random ops the program has called since, and on nothing else.
    """

    def __init__(self) -> None:
        self.seed = 0
        self.offset = 0
        generators.add(self)

    def restart(self, seed: int, offset: int = 0) -> None:
        """Set the seed (taken modulo 2**64) and the number of ops already drawn."""
        self.seed = seed & 0xFFFF_FFFF_FFFF_FFFF
        self.offset = offset


generator = Generator()


def undo_random(source: Generator = generator) -> None:
    """Take the last random state back: the op that drew it from `source` failed."""
    source.offset -= 1
    pending.rng.pop()


def random_leaf(source: Generator = generator) -> Leaf:
    """Make the next state of a generator an input of the pending step."""
    _find_here()
    drawn = source.offset
    source.offset = drawn + 1
    return _add_number("rng", (source.seed, drawn), pending.rng)


def draw(count: int, source: Generator = generator) -> None:
    """Make the next states of a generator inputs of the pending step: `random_leaf`, many times."""
    first = source.offset
    source.offset = first + count
    pending.rng += [(source.seed, first + k) for k in range(count)]


_NUMBERS: dict[LeafKind, torch.dtype] = {
    "float": torch.float64, "int": torch.int64, "rng": torch.uint64,
}  # fmt: skip


def leaf_at(kind: LeafKind, position: int | None = None) -> Leaf:
    """Return the leaf of a number of the pending step, by default of the next one of its kind."""
    numbers = {"float": pending.floats, "int": pending.ints, "rng": pending.rng}
    if position is None:
        position = len(numbers[kind])  # type: ignore[arg-type]
    _find_here()
    return _number_leaf(kind, position)


def _number_leaf(kind: LeafKind, position: int) -> Leaf:
    key = (position, kind)
    leaf = _leaves.get(key)
    if leaf is None:
        shape = (2,) if kind == "rng" else ()
        leaf = _leaves[key] = Leaf(kind, position, shape, _NUMBERS[kind])
    return leaf


def _find_here() -> None:
    """Record for the place where the pending step began, which its first input decides.

    Called before anything is numbered: Ctrl-C may end the walk of the stack that finds the place.
    """
    if not _is_somewhere:
        # In eager debug mode each op gives its inputs back.
        _begin_at(None if pending.eager else find_place())


def _begin_at(key: Any) -> None:
    global _is_somewhere
    if _is_somewhere:  # a finaliser's op has come first
        return
    if key not in _places and len(_places) >= _MAX_PLACES:
        key = None
    enter(_places.setdefault(key, Place()))
    _is_somewhere = not pending.eager


def _leave_place() -> None:
    global _is_somewhere, anchor
    _is_somewhere = False
    anchor = None
    carried.clear()


def forget_places() -> None:
    """Let equal ops recorded from now on show their own lines; pending ones keep theirs."""
    global anchor
    anchor = None
    _places.clear()
    values = [each.value for each in (*pending.parked, *pending.buffers)]
    nodes = walk(value for value in values if value is not None)[0]
    carried.update(lines_of(nodes))
    leave_places()


def forget_leaves() -> None:
    """Let go of the leaves of steps before."""
    if not (pending.buffers or pending.parked):
        _leaves.clear()
        _entered.forget()


def count_leaves() -> int:
    """Return how many leaves are kept for steps to come."""
    return len(_leaves)


_NEVER = (
    "this tensor has no value: the storage was never written on the device lazyrt. "
    "It was probably made by an op that lazyrt does not know. Make it with a factory "
    "function, or copy a CPU tensor to the device."
)
