"""What an optimizer's first step creates and computes with: inputs of the graph from the start.

State that an optimizer creates in its first step, such as `zeros_like(parameter)`, is an input of
every later step. Were it a constant of the first, a training loop would compile twice. So a fill that
an update makes and that outlives the step is data from the start. A fill that does not is a constant,
as fills are elsewhere. The numbers of an update that are no options of the optimizer, such as a bias
correction, are inputs from the start, too. So are the buckets of DistributedDataParallel.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING

import torch
from torch.optim import SGD, Optimizer

from lazyrt.execution.transfer import filled
from lazyrt.frontend import provenance
from lazyrt.frontend.torch_compat import autograd_node, is_lazy
from lazyrt.ir import sharding
from lazyrt.ir.fingerprint import rebuilt
from lazyrt.ir.live import Buffer, lock, pending, ran_alone
from lazyrt.ir.node import Leaf, Node, Value, walk

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from lazyrt.ir.sharding import Sharding

_STEP = Optimizer.profile_hook_step(lambda _self: None).__code__
# How many steps of optimizers each thread is in, by its identity. Where an exception has ended one,
# that shows when somebody looks for it.
steps: dict[int, int] = {}
# Fills that the step has made so far: the buffer, its constant value, and the line that made it.
_made: list[tuple[weakref.ref[Buffer], Value, tuple[object, int] | None]] = []
# Lines whose fills did not outlive a step.
_temporary: set[tuple[object, int] | None] = set()
_MAX_LINES = 10_000
_begun: weakref.WeakSet[Optimizer] = weakref.WeakSet()
_HOW = "before its step"

# The number that an op fills with, or the position of the argument that gives it.
_FIXED = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}  # fmt: skip
_GIVEN = {"full": 1, "full_like": 1, "new_full": 2}


def is_fill(func: torch._ops.OpOverload) -> bool:
    """Return whether all elements of what an op makes are one number."""
    name = func._schema.name.removeprefix("aten::")
    return func._overloadname == "default" and (name in _FIXED or name in _GIVEN)


def begin(optimizer: Optimizer) -> None:
    """Note that a step of an optimizer begins; its state may have been created with it."""
    thread = threading.get_ident()
    steps[thread] = steps.get(thread, 0) + 1
    _made.clear()
    if pending.eager:
        return
    if optimizer not in _begun:
        _begun.add(optimizer)
        with lock:
            for buffer in _state_of(optimizer):
                if buffer.meta is None and _is_constant(buffer.value):
                    _give_data(buffer)


def begin_as_inputs(buffers: Iterable[Buffer]) -> list[Value]:
    """Give their data to those of some pending buffers that are fills; return what they were."""
    values = [(each, each.value) for each in buffers if _is_constant(each.value)]
    for buffer, _ in values:
        _give_data(buffer)
    return [value for _, value in values if value is not None]


def end() -> None:
    """Note that a step of an optimizer has ended: fills that did not outlive it are constants."""
    thread = threading.get_ident()
    if steps.get(thread, 0) > 1:
        steps[thread] -= 1
    else:
        steps.pop(thread, None)
    if _made:
        with lock:
            _part_temporary()
        _made.clear()


def updating() -> Optimizer | None:
    """Return the optimizer whose update the caller is a part of; its closure is none."""
    thread = threading.get_ident()
    if thread not in steps or torch.is_grad_enabled() or autograd_node() is not None:
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _STEP:
            found: Optimizer = frame.f_locals["self"]
            return found
        frame = frame.f_back
    del steps[thread]
    return None


def begin_as_input(buffer: Buffer) -> None:
    """Give a fill its data if an update has made it; called while there are `steps`."""
    if pending.eager or updating() is None:
        return
    line = provenance.call_site(2)
    value = buffer.value
    if value is not None and line not in _temporary:
        _give_data(buffer)
        _made.append((weakref.ref(buffer), value, line))


def is_new(thing: object) -> bool:
    """Return whether a tensor's storage began as a fill of an update in the pending step."""
    if not isinstance(thing, torch.Tensor) or not is_lazy(thing):
        return False
    base: Buffer = thing.untyped_storage()._lazyrt.base  # type: ignore[attr-defined]
    how = getattr(getattr(base, "run", None), "how", "")
    return how == _HOW and base.born == pending.number


def are_derived(numbers: Iterable[object]) -> bool:
    """Return whether an update has computed some of these numbers: they vary with the step."""
    optimizer = updating()
    if optimizer is None:
        return False
    options: list[object] = []
    for group in optimizer.param_groups:
        for name, option in group.items():
            if name not in {"params", "lr"}:
                options += option if isinstance(option, (list, tuple)) else [option]
    known = {option for option in options if option.__class__ is float}
    floats = (number[1] for number in numbers if isinstance(number, tuple))
    return any(float(number) not in known for number in floats)


def create_momentum(optimizer: Optimizer, *, has_closure: bool) -> None:
    """Create the momentum buffers that SGD's first step would copy from the gradients.

    Of negative zeros, the later steps' formula gives the gradient bit for bit: -0 · m + g = g. With
    dampening the first step has another formula than the later ones, and creates them itself. A
    closure computes the gradients later.
    """
    if type(optimizer).step is not SGD.step or has_closure:
        return
    state, groups = optimizer.state, optimizer.param_groups
    if len(state) >= sum(len(group["params"]) for group in groups):
        return
    for group in groups:
        if not group["momentum"] or group["dampening"] or group["differentiable"]:
            continue
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None or parameter in state or not is_lazy(gradient):
                continue
            with torch.no_grad():
                like = parameter if _is_split(parameter) else gradient
                made = torch.full_like(like, -0.0)
            state[parameter]["momentum_buffer"] = made


def _is_split(parameter: torch.Tensor) -> bool:
    """Return whether a parameter is split over devices: its momentum is, too."""
    if not sharding.in_use:
        return False
    state = parameter.untyped_storage()._lazyrt  # type: ignore[attr-defined]
    return sharding.sharding_of(state.base.meta) is not None


def forget() -> None:
    """Forget which lines make fills that nobody keeps."""
    _temporary.clear()


def _is_constant(value: Value | None) -> bool:
    """Return whether a value is a fill."""
    return value is not None and value.node is not None and is_fill(value.node.op.func)


def _state_of(optimizer: Optimizer) -> list[Buffer]:
    """Return the buffers of an optimizer's state."""
    states = (state for state in optimizer.state.values() if isinstance(state, dict))
    tensors = [tensor for state in states for tensor in state.values()]
    found = [t.untyped_storage()._lazyrt for t in tensors if is_lazy(t)]
    return [state for state in found if state.__class__ is Buffer]


def _give_data(buffer: Buffer) -> None:
    value = buffer.value
    if value is None or value.node is None:
        return
    data = filled(value.shape, value.dtype, _number_of(value.node))
    if sharding.in_use:
        data = sharding.arranged(data, _sharding_of_model(value.node))
    buffer.store(data, (value.shape, value.dtype, value.strides))
    buffer.run = ran_alone(_HOW, value)
    pending.buffers.pop(buffer, None)
    pending.activity += 1


def _sharding_of_model(fill: Node) -> Sharding | None:
    """Return the sharding of the tensor that a fill is like, so that state is split as it is."""
    like = next(iter(fill.operands), None)
    is_data = isinstance(like, Leaf) and like.shape == fill.outputs[0].shape  # type: ignore[union-attr]
    return like.sharding if is_data else None  # type: ignore[union-attr]


def _number_of(fill: Node) -> complex:
    """Return the number that a fill consists of."""
    name = fill.op.schema.name.removeprefix("aten::")
    if name in _FIXED:
        return _FIXED[name]
    given = fill.args[_GIVEN[name]]
    if isinstance(given, Leaf):
        numbers = pending.floats if given.kind == "float" else pending.ints
        return numbers[given.position]
    if given.__class__ is tuple:
        kind, number = given
        return kind(number)  # type: ignore[no-any-return]
    return int(given)


def _part_temporary() -> None:
    """Let what has read fills that nobody keeps read constants; remember their lines."""
    live = [(buffer, buffer.value) for buffer in pending.live()]
    kept = {id(buffer) for buffer, _ in live}
    temporary: dict[int, Value] = {}
    for reference, constant, line in _made:
        buffer = reference()
        if buffer is None or (buffer in pending.buffers and id(buffer) not in kept):
            temporary[id(reference)] = constant
            if len(_temporary) >= _MAX_LINES:
                _temporary.clear()
            _temporary.add(line)
    if not temporary:
        return
    nodes, leaves = walk(value for _, value in live if value is not None)
    read: dict[Value, Value] = {
        leaf: temporary[owner]
        for leaf in leaves
        if leaf.kind == "data"
        and (owner := id(pending.owners[leaf.position])) in temporary
    }
    new = rebuilt(nodes, read)
    for buffer, value in live:
        if value in new:
            buffer.value = new[value]
            buffer.version += 1
