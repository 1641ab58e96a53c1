"""Copies between torch's memory and the device, which never alias; ops that torch runs on such copies."""

from __future__ import annotations

import math
import time
import weakref
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.errors import DeviceError, LoweringError
from lazyrt.execution import memory, process
from lazyrt.lowering.arrays import has_jax_dtype, to_jax_dtype
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazyrt.lowering.spec import Spec
    from lazyrt.observe.events import Direction, SourceLocation


_MOST_DIMENSIONS = 64
_PIECE = 64 * 2**20
_PAUSE_NS = 500_000_000  # between two notes of progress
# Types that NumPy has from another package: they change hands as integers of their size.
_AS_WORDS: dict[torch.dtype, tuple[torch.dtype, Any]] = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.int8, ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: (torch.int8, ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: (torch.int8, ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: (torch.int8, ml_dtypes.float8_e5m2fnuz),
}
_NO_DLPACK = _AS_WORDS.keys() - {torch.bfloat16}
# What small device arrays were copied from, by the arrays' ids.
_KEPT_BYTES = 64
_sent: dict[int, tuple[weakref.ref[Any], torch.Tensor]] = {}


def to_device(tensor: torch.Tensor, site: SourceLocation | None = None) -> Any:
    """Copy a CPU tensor to the device and return the device array."""
    process.check_not_forked()
    start = time.perf_counter_ns()
    if tensor.dim() > _MOST_DIMENSIONS:
        raise DeviceError(
            f"a tensor of {tensor.dim()} dimensions cannot go to the device: only tensors with up "
            f"to {_MOST_DIMENSIONS} dims are supported. Reshape it first."
        )
    if not has_jax_dtype(tensor.dtype):
        raise DeviceError(
            f"a tensor of {tensor.dtype} cannot go to the device: XLA has no such type. Convert it "
            "with `.to()` first."
        )
    memory.make_sure(tensor.numel() * tensor.itemsize, "a copy to the device")
    host = tensor.detach().resolve_conj().resolve_neg().contiguous()
    array = as_array(host)
    with memory.explained("a copy to the device"):
        data = jax_compat.give(_copy(array, "to_device", start, site))
    if array.nbytes <= _KEPT_BYTES:
        key = id(data)
        _sent[key] = weakref.ref(data, lambda _: _sent.pop(key, None)), host.clone()
    _tell("to_device", array.nbytes, start, site)
    return data


def filled(
    shape: tuple[int, ...], dtype: torch.dtype, number: complex
) -> jax_compat.Array:
    """Return a device array whose elements are all one number; nothing is compiled for it."""
    process.check_not_forked()
    start = time.perf_counter_ns()
    made = np.dtype(to_jax_dtype(dtype))
    memory.make_sure(math.prod(shape) * made.itemsize, "an optimizer's state")
    with memory.explained("an optimizer's state"):
        data = jax_compat.give(np.full(shape, number, made))
    _tell("to_device", data.nbytes, start, None)
    return data


def sent(data: Any) -> torch.Tensor | None:
    """Return the CPU tensor that a device array was copied from, only to be read.

    A few numbers are kept for as long as their array lives; None for others.
    """
    found = _sent.get(id(data))
    return found[1] if found is not None and found[0]() is data else None


def to_host(
    data: Any,
    dtype: torch.dtype,
    site: SourceLocation | None = None,
    *,
    is_look: bool = False,
) -> torch.Tensor:
    """Wait for a device array and copy it into a new CPU tensor of `dtype`.

    `is_look` tells that a view or a peek asks, and not the program.
    """
    process.check_not_forked()
    start = time.perf_counter_ns()
    memory.make_sure(data.nbytes, "a copy to the host")
    with memory.explained("what this tensor comes from"):
        array = _copy(jax_compat.on_host(data), "to_host", start, site)
    if dtype in _AS_WORDS:
        words = array.view(np.dtype(f"i{array.itemsize}")).reshape(array.shape)
        tensor = torch.from_numpy(words).view(dtype)
    else:
        tensor = torch.from_numpy(array)
    _tell("to_host", array.nbytes, start, site, is_look=is_look)
    return tensor


def lends(dtype: torch.dtype) -> bool:
    """Return whether torch can read the device's memory itself, for elements of a type."""
    return jax_compat.device().platform == "cpu" and dtype not in _NO_DLPACK


def borrowed(data: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a CPU tensor with the contents of a ready device array, only to be read.

    Where the device is the CPU it is the array's own memory; elsewhere it is a copy.
    """
    if not lends(dtype):
        return to_host(data, dtype)
    found: torch.Tensor = torch.utils.dlpack.from_dlpack(jax_compat.whole(data))
    return found


def own_copy(
    borrowed_part: torch.Tensor,
    site: SourceLocation | None = None,
    *,
    is_look: bool = False,
) -> torch.Tensor:
    """Return a copy of a part of what `borrowed` gave, which nobody else changes."""
    start = time.perf_counter_ns()
    copy = borrowed_part.clone()
    _tell("to_host", copy.nbytes, start, site, is_look=is_look)
    return copy


def as_array(tensor: torch.Tensor) -> Any:
    """Return a CPU tensor as a NumPy array that shares its memory."""
    words = _AS_WORDS.get(tensor.dtype)
    if words is not None:
        return tensor.view(words[0]).numpy().view(words[1])
    return tensor.detach().numpy()


def _copy(
    array: np.ndarray[Any, Any],
    direction: Direction,
    start: int,
    site: SourceLocation | None,
) -> np.ndarray[Any, Any]:
    """Return a copy; a large one is made in pieces, between which it tells how far it is.

    Ctrl-C ends it between two pieces, too.
    """
    if array.nbytes <= 2 * _PIECE or not array.flags.c_contiguous:
        return np.array(array, copy=True)
    copied = np.empty(array.shape, array.dtype)
    source, target = array.reshape(-1), copied.reshape(-1)
    step = _PIECE // array.itemsize
    told = start + int(config.progress_after_s * 1e9) - _PAUSE_NS
    for begin in range(0, source.size, step):
        target[begin : begin + step] = source[begin : begin + step]
        now = time.perf_counter_ns()
        if now - told >= _PAUSE_NS:
            told = now
            events.emit(
                events.TransferProgress(
                    direction=direction,
                    nbytes=array.nbytes,
                    done=min(begin + step, source.size) * array.itemsize,
                    elapsed_ns=now - start,
                    site=site,
                )
            )
    return copied


def _tell(
    direction: Direction,
    nbytes: int,
    start: int,
    site: SourceLocation | None,
    *,
    is_look: bool = False,
) -> None:
    if events.active():
        events.emit(
            events.TransferFinished(
                direction=direction,
                nbytes=nbytes,
                duration_ns=time.perf_counter_ns() - start,
                site=site,
                is_look=is_look,
            )
        )


# ----------------------------------------------------- an op on copies of its operands


_run: Callable[[torch._ops.OpOverload, list[Any]], Any]


def set_run(run: Callable[[torch._ops.OpOverload, list[Any]], Any]) -> None:
    """Tell how to call an op on CPU tensors, with one argument for each of its schema."""
    global _run
    _run = run


class HostKernel:
    """Takes and gives device arrays, as the executable of the op would."""

    def __init__(self, spec: Spec, reason: str) -> None:
        self._spec = spec
        self.reason = reason

    def __call__(self, *operands: Any) -> list[Any]:
        """Run the op on copies of its operands."""
        spec = self._spec
        types = spec.operands
        # A number is one of Python's, as it was.
        pairs = zip(operands, types, strict=True)
        host = [x.item() if t.weak else to_host(x, t.dtype) for x, t in pairs]
        try:
            results = self._call(spec.arguments(host))
        except Exception as error:
            raise LoweringError(
                f"{spec} cannot be lowered ({self.reason}), and torch's CPU refuses it, too "
                f"({error}), so nothing can compute it. Register a rule with "
                f"@lowers({spec.name!r}), or call another op."
            ) from error
        arrays = [to_device(result) for result in results]
        # The place of the scalar that follows large results; what is copied is ready.
        return [*arrays, arrays[0]] if spec.is_large else arrays

    def _call(self, args: list[Any]) -> list[torch.Tensor]:
        spec = self._spec
        if spec.is_random:
            raise RuntimeError("its random numbers are those of the device")
        found = tree_leaves(_run(spec.func, args))
        results = []
        for result, out in zip(found, spec.outs, strict=True):
            if out is None:
                continue
            if result is None or (tuple(result.shape), result.dtype) != (
                out.shape,
                out.dtype,
            ):
                raise RuntimeError(f"it gives another result than {out} there")
            results.append(result)
        return results
