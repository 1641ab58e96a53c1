"""A function of recorded ops: called again on the same values, it is one look-up.

Nodes are interned, so a function that does nothing but record gives the same nodes whenever it gets
the same values, and a training loop has the same values in each step. The first call records op by
op. What came of it (results, views, writes, random states and numbers drawn) is kept under the
values of the arguments, and the next call with them makes that, without its ops. The graph is the
one that the ops would have made.

A call that did anything else, such as a read, a barrier or an upload, is not kept: the next one
runs the function again. So does each call that somebody follows op by op: in eager debug mode, under
a dispatch mode, in a transform, and where ops are recorded to be taken back.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lazyrt.config import config
from lazyrt.errors import LostValueError
from lazyrt.execution import deferred_asserts
from lazyrt.execution.executor import Picker, picker
from lazyrt.frontend import record, scalars
from lazyrt.frontend.buffers import State, View, emit, wrap
from lazyrt.frontend.guard import note_kernel, over_limit
from lazyrt.frontend.record import functional, note_recorded, operation
from lazyrt.frontend.torch_compat import (
    aten,
    increment_version,
    is_followed,
)
from lazyrt.ir.live import (
    Buffer,
    Sizes,
    draw,
    float_leaf,
    generator,
    int_leaf,
    leaf_at,
    leaf_of,
    lock,
    pending,
)
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lazyrt.ir.node import Leaf, LeafKind, Op, Value

_new: Any = object.__new__
_listeners, _clock = events.op_listeners, events.op_clock
_scalar_tensor = operation(aten.scalar_tensor.default)


class _View(NamedTuple):
    """A view that a call makes; its parent is an argument's state, or one that was made before."""

    parent: int
    op: Op
    args: tuple[Any, ...]
    value: Value
    offset: int


class _Tensor(NamedTuple):
    """A tensor that a call makes of a state."""

    state: int
    value: Value


class _Outcome(NamedTuple):
    """What a call has come to.

    Attributes:
        buffers: The values of new buffers, in order of creation.
        views: New views.
        tensors: New tensors.
        others: What is returned and is no tensor.
        pick: Picks the results from arguments, new tensors and the others, in a row.
        writes: To arguments, by position, in order.
        counts: The arguments whose writes autograd counts; those that it counts twice again.
        floats, ints: Numbers that became inputs of the step.
        draws: How many random states were drawn.
        grown: By how much more the pending step grew than by new buffers.
        ops: What listeners are told, in order.
    """

    buffers: tuple[Value, ...]
    views: tuple[_View, ...]
    tensors: tuple[_Tensor, ...]
    others: tuple[Any, ...]
    pick: Picker
    writes: tuple[tuple[int, Value], ...]
    counts: tuple[tuple[int, ...], ...]
    floats: tuple[float, ...]
    ints: tuple[int, ...]
    draws: int
    grown: int
    ops: tuple[events.OpRecorded, ...]


class _Outcomes(NamedTuple):
    """What calls on some values have come to, by the numbers and random states they began with."""

    kinds: tuple[LeafKind, ...]
    by_leaves: dict[tuple[Leaf, ...], _Outcome]


_tables = record.composed_tables()


class RecordedCall:
    """A function whose calls are looked up.

    It takes tensors and Python numbers, and returns a sequence of these; it is straight code of
    ops, and writes to nothing but the arguments at the positions `written`, in this order.
    `captured` are tensors of the device that it reads besides. A call gives the numbers in tensors
    of no dimensions of the `dtypes`, which become inputs of the step.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[Any]],
        written: Sequence[int] = (),
        captured: Sequence[torch.Tensor] = (),
        dtypes: Sequence[torch.dtype] = (),
    ) -> None:
        self._function = function
        self._dtypes = tuple(dtypes)
        self._written = tuple(written)
        self._captured = tuple(captured)
        # Part of the keys in place of the function, so that the table does not keep it.
        self._token = object()

    def __call__(
        self, args: Sequence[Any], numbers: Sequence[float] = ()
    ) -> Sequence[Any]:
        """Return what the function returns.

        There is one number for each of its `dtypes`.
        """
        if pending.eager or scalars.rehearses() or is_followed():
            return self._run(args, numbers)
        with lock:
            read = self._read(args)
            if read is None:
                return self._run(args, numbers)
            states, key = read
            known: _Outcomes | None = _tables.cache.get(key)
            if known is not None:
                leaves = tuple([leaf_at(kind) for kind in known.kinds])
                outcome = known.by_leaves.get(leaves)
                if outcome is not None:
                    return _repeat(outcome, args, states, numbers)
            return self._record(args, numbers, states, key)

    def _run(self, args: Sequence[Any], numbers: Sequence[float]) -> Sequence[Any]:
        """Call the function, op by op."""
        pairs = zip(numbers, self._dtypes, strict=True)
        tensors = [torch.tensor(number, dtype=dtype) for number, dtype in pairs]
        return self._function(*args, *tensors)

    def _read(self, args: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]] | None:
        """Return the states of the arguments and the key of the call; None if it has none.

        Arguments that are inputs of the step get their numbers in order, whether or not the step
        has read them before.
        """
        if self._captured:
            args = (*args, *self._captured)
        how = (self._token, torch.is_inference_mode_enabled())
        try:
            states = [arg.untyped_storage()._lazyrt for arg in args]
            values = [
                leaf_of(state) if (value := state.value) is None else value
                for state in states
            ]
        except LostValueError:
            return None  # nothing reads it, or its op says so
        except (AttributeError, NotImplementedError):
            return _read_others(args, how)
        return states, (*how, *values)

    def _record(
        self,
        args: Sequence[Any],
        numbers: Sequence[float],
        states: list[Any],
        key: tuple[Any, ...],
    ) -> Sequence[Any]:
        """Call the function, and keep what came of it if it did nothing but record."""
        before = _Before(args, states)
        lifted = [
            emit(functional(_scalar_tensor, (_lift(number), dtype, None, None, None)))
            for number, dtype in zip(numbers, self._dtypes, strict=True)
        ]
        before.note_lifted()
        with events.subscribe(before.ops.append, events.OpRecorded):
            results = self._function(*args, *lifted)
        outcome = before.outcome(results, args, states, self._written)
        if outcome is not None:
            first = before.first_numbers()
            kinds = tuple(first)
            known = _tables.cache.get(key)
            if known is None or known.kinds != kinds:
                known = _tables.cache[key] = _Outcomes(kinds, {})
            leaves = tuple([leaf_at(kind, place) for kind, place in first.items()])
            known.by_leaves[leaves] = outcome
        return results


def _read_others(
    args: Sequence[Any], how: tuple[Any, ...]
) -> tuple[list[Any], tuple[Any, ...]] | None:
    """Do what `_read` does, where some arguments are numbers; None where one is foreign."""
    states: list[Any] = []
    parts: list[Any] = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            try:
                state: Any = arg.untyped_storage()._lazyrt  # type: ignore[attr-defined]
                value = state.value
                parts.append(leaf_of(state) if value is None else value)
            except (AttributeError, NotImplementedError, LostValueError):
                return None
            states.append(state)
        elif arg is None or isinstance(arg, (bool, int, float, complex, str)):
            parts.append(scalars.scalar_key(arg))
            states.append(None)
        else:
            return None
    return states, (*how, *parts)


def _lift(number: float) -> Leaf:
    return float_leaf(number) if number.__class__ is float else int_leaf(int(number))


class _Before:
    """What was pending before a call, to tell what it did."""

    def __init__(self, args: Sequence[Any], states: Sequence[Any]) -> None:
        self.ops: list[Any] = []
        self._number = pending.number
        self._activity = pending.activity
        self._sizes = self._lifted = pending.sizes()
        self._grown = len(pending.buffers) + pending.writes
        self._checks = deferred_asserts.count()
        self._random = (generator.seed, generator.offset)
        self._bases = {
            id(state.base): (state.base, state.base.version)
            for state in states
            if state is not None
        }
        self._counts = [
            None if state is None or args[k].is_inference() else args[k]._version
            for k, state in enumerate(states[: len(args)])
        ]

    def note_lifted(self) -> None:
        """Note that the numbers that came with the call are inputs now."""
        self._lifted = pending.sizes()

    def first_numbers(self) -> dict[LeafKind, int]:
        """Return the kinds of numbers that the call has made inputs, and the place of the first."""
        now, before = pending.sizes(), self._sizes
        places: dict[LeafKind, tuple[int, int]] = {
            "float": (before.floats, now.floats),
            "int": (before.ints, now.ints),
            "rng": (before.rng, now.rng),
        }
        return {kind: first for kind, (first, end) in places.items() if end > first}

    def _only_recorded(self) -> bool:
        """Return whether the call did nothing but record, and draw from the default generator."""
        now, before = pending.sizes(), self._sizes
        if (pending.number, pending.activity) != (self._number, self._activity):
            return False
        if (now.inputs, now.transient) != (before.inputs, before.transient):
            return False
        seed, offset = self._random
        drawn = [(seed, offset + k) for k in range(now.rng - before.rng)]
        return (
            deferred_asserts.count() == self._checks
            and pending.rng[before.rng :] == drawn
            and (generator.seed, generator.offset) == (seed, offset + len(drawn))
        )

    def outcome(
        self,
        results: Sequence[Any],
        args: Sequence[Any],
        states: list[Any],
        written: Sequence[int],
    ) -> _Outcome | None:
        """Return what the call has come to; None if that cannot be made again by itself."""
        if not self._only_recorded():
            return None
        made = _states_of(results, states)
        if made is None or not self._explains(written, states):
            return None
        slots, buffers, views = made
        tensors = _tensors(results, args, slots)
        if tensors is None:
            return None
        lifted: Sizes = self._lifted
        count = len(pending.buffers) + pending.writes - self._grown
        others = [part for part in results if not isinstance(part, torch.Tensor)]
        row = [*args, *tensors, *others]
        places = {id(part): k for k, part in reversed(list(enumerate(row)))}
        targets = tuple(dict.fromkeys(written))
        return _Outcome(
            tuple([b.value for b in buffers if b.value is not None]),
            views,
            tuple(tensors.values()),
            tuple(others),
            picker([places[id(part)] for part in results]),
            tuple([(target, states[target].value) for target in targets]),
            self._counted(targets, args),
            tuple(pending.floats[lifted.floats :]),
            tuple(pending.ints[lifted.ints :]),
            len(pending.rng) - lifted.rng,
            count - len(buffers),
            tuple(self.ops),
        )

    def _explains(self, written: Sequence[int], states: Sequence[Any]) -> bool:
        """Return whether no storage was written but those of arguments that are."""
        known = {id(states[position].base) for position in written}
        return all(
            base.version == version or key in known
            for key, (base, version) in self._bases.items()
        )

    def _counted(
        self, targets: Sequence[int], args: Sequence[Any]
    ) -> tuple[tuple[int, ...], ...]:
        """Return which writes autograd has counted once or more, twice or more, and so on."""
        times = {
            target: args[target]._version - before
            for target in targets
            if (before := self._counts[target]) is not None
        }
        most = max(times.values(), default=0)
        return tuple(
            tuple(target for target, times_of in times.items() if times_of > time)
            for time in range(most)
        )


def _states_of(
    results: Sequence[Any], states: Sequence[Any]
) -> tuple[dict[int, int], list[Buffer], tuple[_View, ...]] | None:
    """Return the new states under results: numbers by identity, buffers and views in order.

    None where a state is of a kind that only its op can make.
    """
    slots: dict[int, int] = {}
    for slot, state in enumerate(states):
        if state is not None:
            slots.setdefault(id(state), slot)
    chain: dict[int, Any] = {}
    for result in results:
        if isinstance(result, torch.Tensor):
            state = getattr(result.untyped_storage(), "_lazyrt", None)
            below = list(_down_to(state, slots))
            chain.update((id(each), each) for each in reversed(below))
    buffers = [each for each in chain.values() if each.__class__ is Buffer]
    views = [each for each in chain.values() if each.__class__ is View]
    if len(buffers) + len(views) < len(chain):
        return None
    place = {id(buffer): k for k, buffer in enumerate(pending.buffers)}
    if any(id(buffer) not in place or buffer.data is not None for buffer in buffers):
        return None
    buffers.sort(key=lambda buffer: place[id(buffer)])
    for slot, state in enumerate((*buffers, *views), len(states)):
        slots[id(state)] = slot
    made = tuple(
        _View(slots[id(view.parent)], view.op, view.args, view.value, view.offset)
        for view in views
    )
    return slots, buffers, made


def _down_to(state: Any, known: dict[int, int]) -> Iterator[Any]:
    """Yield a state and those that it is a view of, down to one that is known."""
    while id(state) not in known:
        yield state
        if state.__class__ is not View:
            return
        state = state.parent


def _tensors(
    results: Sequence[Any], args: Sequence[Any], slots: dict[int, int]
) -> dict[torch.Tensor, _Tensor] | None:
    """Return how to make each new tensor; None where one is more than a tensor of its state."""
    given = {id(arg) for arg in args}
    found: dict[torch.Tensor, _Tensor] = {}
    for result in results:
        if isinstance(result, torch.Tensor) and id(result) not in given:
            state: State = result.untyped_storage()._lazyrt  # type: ignore[attr-defined]
            value = state.value
            if value is None or not _is_alike(result, wrap(state, value)):
                return None
            found[result] = _Tensor(slots[id(state)], value)
    return found


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    def traits(tensor: torch.Tensor) -> tuple[Any, ...]:
        return (
            type(tensor), tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype,
            tensor.requires_grad, tensor.is_inference(),
        )  # fmt: skip

    return traits(one) == traits(other)


def _repeat(
    outcome: _Outcome, args: Sequence[Any], states: list[Any], numbers: Sequence[Any]
) -> Sequence[Any]:
    """Make what a call has come to, of these arguments."""
    if numbers:
        ints = [int(number) for number in numbers if number.__class__ is int]
        pending.ints += ints
        pending.floats += (
            [number for number in numbers if number.__class__ is float]
            if ints
            else numbers
        )
    pending.floats += outcome.floats
    pending.ints += outcome.ints
    if outcome.draws:
        draw(outcome.draws)
    buffers = pending.buffers
    for value in outcome.buffers:  # what `Buffer` does, without a call of it
        buffer = _new(Buffer)
        buffer.value = value
        buffer.data = buffer.meta = None
        buffer.version = 0
        buffers[buffer] = None
        states.append(buffer)
    for parent, op, op_args, value, offset in outcome.views:
        view = _new(View)
        view.parent = below = states[parent]
        view.op, view.args, view._value, view.offset = op, op_args, value, offset
        view.base = base = below.base
        view._version = base.version
        states.append(view)
    made = [wrap(states[slot], value) for slot, value in outcome.tensors]
    for position, value in outcome.writes:
        state = states[position]
        if state.__class__ is Buffer:  # what `write` does
            buffers[state] = None
            state.version += 1
            state.value = value
        else:
            state.write(value)
    for positions in outcome.counts:
        increment_version([args[position] for position in positions])
    pending.writes += outcome.grown
    if _listeners:
        ended = time.perf_counter_ns()
        if ended - _clock[0] > _clock[1]:
            note_recorded(None, ended)
            for op_recorded in outcome.ops:
                events.emit(op_recorded)
        _clock[0] = ended
    if len(buffers) + pending.writes > config.max_pending_nodes > 0:
        over_limit()
    return outcome.pick((*args, *made, *outcome.others))


# What a finaliser does in the middle of them, it does in the middle of an op.
for _each in (RecordedCall._read, _repeat):
    note_kernel(_each)
