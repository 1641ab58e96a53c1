"""Tensors and values: a lazy tensor for a value, and a key component for an argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Parameter

from lazyrt.errors import DeviceError
from lazyrt.execution.transfer import to_device
from lazyrt.frontend import generators, scalars
from lazyrt.frontend.torch_compat import (
    DEVICE_TYPE,
    TorchGenerator,
    create_empty_tensor,
    place,
    restrided,
)
from lazyrt.ir.live import Buffer, leaf_of, pending
from lazyrt.ir.node import Value, contiguous_strides

if TYPE_CHECKING:
    from lazyrt.frontend.buffers import State


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
    if result.__class__ is Value:
        buffer = Buffer(result)
        pending.buffers[buffer] = None
        if result.strides is not None:
            return wrap(buffer, result)
        tensor = create_empty_tensor(result.shape, result.dtype)
        tensor.untyped_storage()._lazyrt = buffer  # type: ignore[attr-defined]
        return tensor
    if result is None:
        return None
    if result.__class__ is tuple:
        return tuple([emit(part) for part in result])
    return wrap_alias(result)


def wrap_alias(leaf: Value) -> torch.Tensor:
    """Return a new tensor whose value is an input of the step."""
    buffer = Buffer(leaf)
    pending.buffers[buffer] = None
    return wrap(buffer, leaf)


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
    """Return the value of a tensor argument.

    A CPU tensor of no dimensions becomes an input of the step, as torch allows on every device.

    Raises:
        DeviceError: The tensor lives on another device.
    """
    try:
        state = tensor.untyped_storage()._lazyrt  # type: ignore[attr-defined]
    except (AttributeError, NotImplementedError):
        pass
    else:
        value: Value | None = state.value
        return value if value is not None else leaf_of(state)
    if tensor.dim() == 0 and tensor.device.type == "cpu":
        return _uploaded(tensor)
    raise DeviceError(
        f"Expected all tensors to be on the same device, but found one on {tensor.device} with "
        f"shape {tuple(tensor.shape)} among tensors on {DEVICE_TYPE}. An op runs on one "
        f"device. Move it with `.to('{DEVICE_TYPE}')`."
    ) from None  # a kernel asks here after its own way in has failed


def operands(tensors: Any) -> tuple[Any, ...]:
    """Return the values of a list of tensors: `component`, without a call for each of them."""
    try:
        states = [tensor.untyped_storage()._lazyrt for tensor in tensors]
    except (AttributeError, NotImplementedError):
        return tuple([component(tensor) for tensor in tensors])
    return tuple([leaf_of(s) if (value := s.value) is None else value for s in states])


def indices(tensors: Any) -> Any:
    """Return the key component of an index list: CPU tensors are allowed, as on every device.

    A boolean mask on the CPU becomes integer indices there, so that its shape is known.
    """
    parts: list[Any] = []
    for tensor in tensors:
        if tensor is None or tensor.device.type == DEVICE_TYPE:
            parts.append(component(tensor))
        elif tensor.dtype in {torch.bool, torch.uint8} and tensor.dim():
            parts += [_uploaded(index) for index in tensor.nonzero(as_tuple=True)]
        else:
            parts.append(_uploaded(tensor))
    return tuple(parts)


def _uploaded(tensor: torch.Tensor) -> Value:
    """Make a CPU tensor an input of this step."""
    buffer = Buffer(None)
    buffer.store(to_device(tensor), (tuple(tensor.shape), tensor.dtype, None))
    pending.transient.append(buffer)
    return leaf_of(buffer)
