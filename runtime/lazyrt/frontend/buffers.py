"""Views: storages whose contents are a part or another shape of a buffer's.

A view's value is the view op applied to its parent's value; writing to a view writes the
inverse of the op, a functional scatter, to the parent. Versions tell when a value that a view
remembers is out of date.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lazyrt.errors import DeviceError, NoLoweringError
from lazyrt.execution.transfer import to_device
from lazyrt.frontend import generators, scalars
from lazyrt.frontend.record import functional, operation
from lazyrt.frontend.torch_compat import (
    DEVICE_TYPE,
    TorchGenerator,
    aten,
    create_empty_tensor,
    is_lazy,
    place,
    restrided,
    unwrapped,
)
from lazyrt.ir.live import Buffer, Type, leaf_of, pending
from lazyrt.ir.node import Op, Value, contiguous_strides


class View:
    """A storage that aliases a buffer.

    Attributes:
        parent: The buffer or view that the op was applied to.
        op: A view op with one result.
        args: Its arguments after the first.
        base: The buffer at the root.
        offset: First element's position in the base's storage, in elements.
    """

    __slots__ = (
        "__weakref__",
        "_value",
        "_version",
        "args",
        "base",
        "offset",
        "op",
        "parent",
    )

    def __init__(
        self, parent: Buffer | View, op: Op, args: tuple[Any, ...], value: Value
    ) -> None:
        self.parent = parent
        self.op = op
        self.args = args
        self.base: Buffer = parent.base
        self._value = value
        self._version = self.base.version
        self.offset = 0

    @property
    def value(self) -> Value:
        """The pending value, recomputed when the base has changed since."""
        base = self.base
        if self._version == base.version and base.value is not None:
            return self._value
        self._value = functional(self.op, (current_value(self.parent), *self.args))
        self._version = base.version
        return self._value

    @property
    def type(self) -> Type:
        """(shape, dtype, strides) of the view."""
        return (self._value.shape, self._value.dtype, self._value.strides)

    @property
    def data(self) -> Any:
        """The view's own device data, where eager debug mode has computed it; None elsewhere."""
        return None

    @property
    def is_pending(self) -> bool:
        """Whether the base's value has yet to be computed."""
        return self.base.is_pending

    def write(self, value: Value) -> None:
        """Give the aliased part of the base a new pending value."""
        parent = current_value(self.parent)
        try:
            self.parent.write(_inverse(self.op.name, parent, self.args, value))
        except _RepeatedElementsError:
            self._write_to_base(value)
        self._value = value
        self._version = self.base.version

    def fill(self, value: Value) -> None:
        """Write a value whose elements are all equal; the view may repeat elements."""
        try:
            self.write(value)
        except _RepeatedElementsError:
            self._write_to_base(value, may_repeat=True)

    def _write_to_base(self, value: Value, *, may_repeat: bool = False) -> None:
        """Write each element of the storage that the view shows once, past the views on the way."""
        base, (shape, dtype, strides) = self.base, self.type
        if strides is None:
            strides = contiguous_strides(shape)
        sizes = tuple(
            size if step else min(size, 1)
            for size, step in zip(shape, strides, strict=True)
        )
        repeats = sizes != shape and not may_repeat
        if repeats or base.type[2] is not None or base.type[1] is not dtype:
            raise _RepeatedElementsError(_REPEATED)
        for dim, size in enumerate(sizes):
            if size != shape[dim]:
                value = _recorded(aten.slice.Tensor, value, dim, 0, 1, 1)
        old = current_value(base)
        where = (sizes, strides, self.offset)
        base.write(_recorded(aten.as_strided_scatter.default, old, value, *where))


State = Buffer | View


class _RepeatedElementsError(RuntimeError):
    """A write to a view in which an element of the storage appears more than once."""


_REPEATED = (
    "unsupported operation: more than one element of the written-to tensor refers to a "
    "single memory location. Please clone() the tensor before performing the operation."
)


def state_of(tensor: torch.Tensor) -> State:
    """Return the state of a lazy tensor's storage."""
    return tensor.untyped_storage()._lazyrt  # type: ignore[attr-defined, no-any-return]


def states_of(tensor: Any) -> list[State]:
    """Return the states behind a tensor, also in wrappers: a DTensor's own storage has none."""
    if not is_lazy(tensor):
        return []
    tensor = unwrapped(tensor)
    if is_traceable_wrapper_subclass(tensor):
        parts, _ = tensor.__tensor_flatten__()
        return [state for part in parts for state in states_of(getattr(tensor, part))]
    state = getattr(tensor.untyped_storage(), "_lazyrt", None)
    return [] if state is None else [state]


def value_of(tensor: torch.Tensor) -> Value:
    """Return the value that the next op reads from a lazy tensor."""
    return current_value(state_of(tensor))


def current_value(state: State) -> Value:
    """Return the value that the next op reads from a storage."""
    value = state.value
    # Only a buffer has no value: then its data becomes an input of the step.
    return value if value is not None else leaf_of(state)  # type: ignore[arg-type]


_Inverse = Callable[[Value, tuple[Any, ...], Value], Value]


def _inverse(name: str, parent: Value, args: tuple[Any, ...], value: Value) -> Value:
    """Return the parent's new value after its view was set to `value`."""
    inverse = _INVERSES.get(name)
    if inverse is None:
        raise NoLoweringError(
            f"writing through a view made by {name} has no lowering. The write would have to "
            "be undone on the base tensor. Write to a copy (`t.clone()`) and copy it back."
        )
    return inverse(parent, args, value)


def _recorded(func: torch._ops.OpOverload, *args: Any) -> Value:
    value: Value = functional(operation(func), args)
    return value


def _reshape(parent: Value, _args: tuple[Any, ...], value: Value) -> Value:
    return _recorded(aten.reshape.default, value, parent.shape)


def _scatter(func: torch._ops.OpOverload) -> _Inverse:
    def inverse(parent: Value, args: tuple[Any, ...], value: Value) -> Value:
        return _recorded(func, parent, value, *args)

    return inverse


def _permute_back(_parent: Value, args: tuple[Any, ...], value: Value) -> Value:
    order = args[0]
    back = [0] * len(order)
    for position, dim in enumerate(order):
        back[dim % len(order)] = position
    return _recorded(aten.permute.default, value, tuple(back))


def _expand_back(parent: Value, _args: tuple[Any, ...], value: Value) -> Value:
    if math.prod(value.shape) != math.prod(parent.shape):
        raise _RepeatedElementsError(_REPEATED)
    return _reshape(parent, (), value)


_INVERSES: dict[str, _Inverse] = {
    **dict.fromkeys(
        (
            "aten.view.default", "aten._unsafe_view.default", "aten.unsqueeze.default",
            "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims",
            "aten._reshape_alias.default",
        ),
        _reshape,
    ),
    "aten.t.default": lambda _p, _a, v: _recorded(aten.t.default, v),
    "aten.transpose.int": lambda _p, a, v: _recorded(aten.transpose.int, v, *a),
    "aten.permute.default": _permute_back,
    "aten.expand.default": _expand_back,
    "aten.select.int": _scatter(aten.select_scatter.default),
    "aten.slice.Tensor": _scatter(aten.slice_scatter.default),
    "aten.diagonal.default": _scatter(aten.diagonal_scatter.default),
    "aten.as_strided.default": _scatter(aten.as_strided_scatter.default),
    "aten.view.dtype": lambda parent, _a, v: _recorded(aten.view.dtype, v, parent.dtype),
    "aten.view_as_real.default": lambda _p, _a, v: _recorded(aten.view_as_complex.default, v),
    "aten.view_as_complex.default": lambda _p, _a, v: _recorded(aten.view_as_real.default, v),
    # Views of their own instead of torch's conjugate and negative bits, which each kernel and
    # each view of a view would have to look at.
    "aten._conj.default": lambda _p, _a, v: _recorded(aten._conj.default, v),
    "aten._neg_view.default": lambda _p, _a, v: _recorded(aten._neg_view.default, v),
}  # fmt: skip


# ------------------------------------------------------------------- tensors and values


def wrap(state: State, value: Value) -> torch.Tensor:
    """Return a new lazy tensor of a value's type whose storage has the given state."""
    tensor = create_empty_tensor(value.shape, value.dtype)
    tensor.untyped_storage()._lazyrt = state  # type: ignore[attr-defined]
    if state.offset:
        strides = value.strides or contiguous_strides(value.shape)
        return place(tensor, value.shape, strides, state.offset)
    if value.strides is None:
        return tensor
    return restrided(tensor, value.shape, value.strides)


def emit(result: Any) -> Any:
    """Return new lazy tensors for a recorded result, in its structure."""
    if result.__class__ is tuple:
        return tuple([emit(part) for part in result])
    if result is None:
        return None
    buffer = Buffer(result)
    pending.buffers[buffer] = None
    if result.strides is not None:
        return wrap(buffer, result)
    # What `wrap` does, without a call for each result.
    tensor = create_empty_tensor(result.shape, result.dtype)
    tensor.untyped_storage()._lazyrt = buffer  # type: ignore[attr-defined]
    return tensor


def component(arg: Any) -> Any:
    """Return the key component of any kernel argument: a value for each tensor."""
    kind = arg.__class__
    if kind is int or arg is None:
        return arg
    if kind is float:
        return scalars.scalar_key(arg)
    if kind is list or kind is tuple:
        return tuple(
            [part if part.__class__ is int else component(part) for part in arg]
        )
    if kind is Parameter or isinstance(arg, torch.Tensor):
        return operand(arg)
    if isinstance(arg, TorchGenerator):
        generators.source(arg)  # the random state is a component of its own
        return None
    return scalars.scalar_key(arg)


def operand(tensor: torch.Tensor) -> Value:
    """Return the value of a tensor argument."""
    return current_value(_operand_state(tensor))


def _operand_state(tensor: torch.Tensor) -> State:
    """Return the state of a tensor argument.

    A CPU tensor of no dimensions becomes an input of the step, as torch allows on every device.
    """
    try:
        return tensor.untyped_storage()._lazyrt  # type: ignore[attr-defined, no-any-return]
    except (AttributeError, NotImplementedError):
        pass
    if tensor.dim() == 0 and tensor.device.type == "cpu":
        return _uploaded(tensor)
    raise DeviceError(
        f"Expected all tensors to be on the same device, but found one on {tensor.device} with "
        f"shape {tuple(tensor.shape)} among tensors on {DEVICE_TYPE}. An op runs on one "
        f"device. Move it with `.to('{DEVICE_TYPE}')`."
    ) from None  # a kernel asks here after its own way in has failed


def operands(tensors: Any) -> tuple[Any, ...]:
    """Return the values of a list of tensors: `component`, without a call for each of them."""
    return values_of(states_in(tensors))


def states_in(tensors: Any) -> list[State]:
    """Return the states of a list of tensor arguments."""
    try:
        return [tensor.untyped_storage()._lazyrt for tensor in tensors]
    except (AttributeError, NotImplementedError):
        return [_operand_state(tensor) for tensor in tensors]


def values_of(states: list[State]) -> tuple[Value, ...]:
    """Return the values that the next op reads from some storages."""
    # Only a buffer has no value, as in `current_value`, whose call each would pay for.
    return tuple(
        [
            leaf_of(state) if (value := state.value) is None else value  # type: ignore[arg-type]
            for state in states
        ]
    )


def indices(tensors: Any) -> Any:
    """Return the key component of an index list: CPU tensors are allowed, as on every device.

    A boolean mask on the CPU becomes integer indices there, so that its shape is known.
    """
    parts: list[Any] = []
    for tensor in tensors:
        if tensor is None or tensor.device.type == DEVICE_TYPE:
            parts.append(component(tensor))
        elif tensor.dtype in {torch.bool, torch.uint8} and tensor.dim():
            places = tensor.nonzero(as_tuple=True)
            parts += [leaf_of(_uploaded(place)) for place in places]
        else:
            parts.append(leaf_of(_uploaded(tensor)))
    return tuple(parts)


def _uploaded(tensor: torch.Tensor) -> Buffer:
    """Make a CPU tensor an input of this step."""
    buffer = Buffer(None)
    buffer.store(to_device(tensor), (tuple(tensor.shape), tensor.dtype, None))
    pending.transient.append(buffer)
    return buffer
