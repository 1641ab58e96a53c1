"""A mesh of devices, and the sharding of tensors over it: one process, one program, many devices.

A program computes what it would on one device. A sharding says where the parts of a tensor are, which
changes no value, so no autograd and no version counter sees it.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from lazyrt import jax_compat
from lazyrt.config import device_count
from lazyrt.errors import UsageError
from lazyrt.execution import replicas
from lazyrt.frontend.buffers import state_of, value_of
from lazyrt.frontend.kernels import functional_kernel
from lazyrt.frontend.reads import require_data, require_lazy
from lazyrt.ir import sharding as shardings
from lazyrt.ir.live import Buffer, lock
from lazyrt.ir.sharding import Axes, Sharding
from lazyrt.lowering import partitioning
from lazyrt.observe.events import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_entered: list[Mesh] = []


def use_device_count() -> None:
    """Give the process the devices that LAZYRT_NUM_DEVICES asks for."""
    count = device_count()
    if count is not None and not jax_compat.set_device_count(count):
        raise UsageError(
            f"LAZYRT_NUM_DEVICES={count} comes too late: jax has computed something in this process "
            f"and has {jax_compat.device_count()} devices. Import lazyrt before jax computes "
            "anything."
        )


class Mesh(Closing):
    """The first devices of the process in rows, with a name for each axis; see `mesh`.

    Attributes:
        axes: How many devices there are along each axis.
    """

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.axes = dict(axes)
        self._axes = Axes(tuple(self.axes), tuple(self.axes.values()))

    @property
    def size(self) -> int:
        """How many devices it has."""
        return self._axes.size

    def sharding(self, spec: Any, shape: Sequence[int]) -> Sharding:
        """Return how a tensor is split.

        Args:
            spec: For each dimension an axis, several, or None; missing ones are None.
            shape: The tensor's.

        Raises:
            UsageError: The mesh or the tensor does not allow it.
        """
        split = _split(spec)
        named = [name for names in split for name in names]
        unknown = [name for name in named if name not in self.axes]
        if unknown:
            raise UsageError(
                f"shard() got the axis {unknown[0]!r}, which the mesh does not have: its axes are "
                f"{', '.join(map(repr, self.axes))}. Name one of these, or None."
            )
        twice = [name for name, count in Counter(named).items() if count > 1]
        if twice:
            raise UsageError(
                f"shard() got the axis {twice[0]!r} twice in {spec!r}: devices along an axis split "
                "one dimension. Name each axis once."
            )
        if len(split) > len(shape):
            raise UsageError(
                f"shard() got {len(split)} entries in {spec!r} for a tensor of {len(shape)} "
                "dimensions. Give one for each dimension, or fewer."
            )
        whole = tuple(
            tuple(name for name in names if self.axes[name] > 1)
            for names in (*split, *[()] * (len(shape) - len(split)))
        )
        found = Sharding(self._axes, whole)
        for dim, (size, parts) in enumerate(zip(shape, found.parts(), strict=True)):
            if size % parts:
                raise UsageError(
                    f"shard() cannot split dimension {dim} of {tuple(shape)}, of size {size}, into "
                    f"{parts} equal parts ({'+'.join(whole[dim])}). Pad it to a multiple of {parts}, "
                    "or leave it whole with None."
                )
        return found

    def __enter__(self) -> Self:
        _entered.append(self)
        return self

    def close(self) -> None:
        """Be the default of `shard` no more."""
        if self in _entered:
            _entered.remove(self)

    def __repr__(self) -> str:
        return f"<Mesh {self._axes}: {self.size} devices>"


def _split(spec: Any) -> list[tuple[str, ...]]:
    """Return a specification with a tuple of names for each dimension."""
    found: list[tuple[str, ...]] = []
    for entry in (spec,) if isinstance(spec, str) else spec:
        is_several = isinstance(entry, (tuple, list)) or entry is None
        names = tuple(entry or ()) if is_several else (entry,)
        if not all(isinstance(name, str) for name in names):
            raise UsageError(
                f"shard() got the entry {entry!r} in {spec!r}, which names no axis. Give an axis's "
                "name, a tuple of names, or None."
            )
        found.append(names)
    return found


def mesh(axes: Mapping[str, int]) -> Mesh:
    """Return a mesh of the process's devices; in `with`, the default of `shard`.

    Args:
        axes: A name and a number of devices for each axis, such as `{"data": 4, "model": 2}`.

    Raises:
        UsageError: An axis is none, or there are too few devices.
    """
    for name, size in axes.items():
        if not str(name).isidentifier() or type(size) is not int or size < 1:
            raise UsageError(
                f"mesh() got the axis {name!r}: {size!r}. Give each axis a name and a number of "
                'devices from 1, as in {"data": 4, "model": 2}.'
            )
    if replicas.world() is not None:
        raise UsageError(
            "mesh() in one of several processes: a mesh has the devices of one process. Use "
            "torch.distributed there, or a mesh in one process."
        )
    made = Mesh(axes)
    there = jax_compat.device_count()
    if made.size > there:
        raise UsageError(
            f"mesh({axes!r}) needs {made.size} devices, and this process has {there}. On the CPU set "
            f"LAZYRT_NUM_DEVICES={made.size} before Python starts; otherwise make it smaller."
        )
    shardings.begin()
    return made


def shard(
    tensor: torch.Tensor, mesh: Mesh | None = None, spec: Any = ()
) -> torch.Tensor:
    """Split a tensor over the devices of a mesh, in place, and return it.

    No value changes. What is computed already moves at once; a pending tensor is split when its
    step runs. A tensor that is written later keeps its sharding.

    Args:
        tensor: A tensor of the device.
        mesh: The mesh; by default that of the innermost `with`.
        spec: For each dimension the axis that splits it, a tuple of axes, or None for a dimension
            that stays whole; missing ones are None. Devices along the other axes have copies.

    Raises:
        UsageError: The tensor cannot be split so.
    """
    require_lazy(tensor, "shard()")
    if mesh is None:
        if not _entered:
            raise UsageError(
                "shard() got no mesh, and is in no `with lazyrt.mesh(...):`. Pass the mesh as the "
                "second argument."
            )
        mesh = _entered[-1]
    found = mesh.sharding(spec, tensor.shape)
    with lock:
        state = state_of(tensor)
        if not state.is_pending:
            _move(state, found)
            return tensor
        with torch.no_grad():
            names, sizes, split = partitioning.arguments(found)
            stated = _kernel()(tensor.detach(), names, sizes, split)
            value = value_of(stated)
        state.write(value)
        if isinstance(state, Buffer) and state.meta is not None:
            state.meta = shardings.with_sharding(state.meta, found)
    return tensor


def _move(state: Any, sharding: Sharding) -> None:
    """Move data that is computed to where its parts belong."""
    if not isinstance(state, Buffer):
        raise UsageError(
            "shard() got a view of a tensor that is computed: views share the data of one tensor, "
            "which has one sharding. Shard that tensor."
        )
    require_data(state)
    data = shardings.arranged(state.data, None if sharding.is_replicated else sharding)
    if data is not state.data:
        state.rearrange(data)


@functools.cache
def _kernel() -> Callable[..., torch.Tensor]:
    return functional_kernel(partitioning.shard)


def sharding_of(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return how a computed tensor is split, as `shard` takes it; None where it is whole.

    Args:
        tensor: A tensor of the device. XLA decides about most pending ones when they run: of these
            the answer is None.
    """
    found = _computed(tensor, "sharding_of()")
    if found is None:
        return None
    return tuple(
        names[0] if len(names) == 1 else (names or None) for names in found.split
    )


class Shard(NamedTuple):
    """A part of a tensor.

    Attributes:
        bounds: First index along each dimension, and the one behind the last.
        devices: Numbers of the devices that have it.
    """

    bounds: tuple[tuple[int, int], ...]
    devices: tuple[int, ...]


def shards_of(tensor: torch.Tensor) -> tuple[Shard, ...]:
    """Return the parts of a computed tensor and where they are, in row-major order.

    Args:
        tensor: A tensor of the device; a whole or a pending one has no parts.
    """
    found = _computed(tensor, "shards_of()")
    if found is None:
        return ()
    shape = tuple(tensor.shape)
    where: dict[tuple[tuple[int, int], ...], list[int]] = {}
    placed = shardings.placement(found.mesh, found).devices_indices_map(shape)
    for device, index in placed.items():
        bounds = tuple(
            part.indices(size)[:2] for part, size in zip(index, shape, strict=True)
        )
        where.setdefault(bounds, []).append(device.id)
    return tuple(Shard(at, tuple(sorted(where[at]))) for at in sorted(where))


def _computed(tensor: torch.Tensor, caller: str) -> Sharding | None:
    """Return the sharding of a computed tensor; None of a whole, a pending one and a view."""
    require_lazy(tensor, caller)
    with lock:
        state = state_of(tensor)
        found = None if state.is_pending else shardings.of_data(state.base.data)
    return found if tuple(tensor.shape) == state.base.type[0] else None
