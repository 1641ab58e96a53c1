"""How the data of tensors is split over a mesh of devices.

A sharding is part of a tensor's type, and so of its graph. Data that every device has whole has
none: it is what the programs of one device read, and the same program runs on either.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import jax
import numpy as np
import torch
from jax.sharding import NamedSharding, PartitionSpec

from lazyrt import jax_compat

if TYPE_CHECKING:
    from collections.abc import Sequence

Type = tuple[tuple[int, ...], torch.dtype, tuple[int, ...] | None]
"""Shape, dtype and strides of a tensor that owns its storage; strides None if contiguous."""

in_use = False
"""Whether the program has made a mesh: until then nothing asks for the sharding of any data."""


class Axes(NamedTuple):
    """The axes of a mesh: its devices are the first ones, in rows.

    Attributes:
        names: One for each axis.
        sizes: How many devices there are along it.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many devices the mesh has."""
        return math.prod(self.sizes)

    def __str__(self) -> str:
        return ", ".join(
            f"{name} = {size}"
            for name, size in zip(self.names, self.sizes, strict=True)
        )


class Sharding(NamedTuple):
    """Which axes of a mesh each dimension is split over; the last dimensions may be left out.

    Attributes:
        mesh: The mesh.
        split: For each dimension the names of the axes, without those of one device.
    """

    mesh: Axes
    split: tuple[tuple[str, ...], ...]

    @property
    def is_replicated(self) -> bool:
        """Whether every device has the whole."""
        return not any(self.split)

    def parts(self) -> tuple[int, ...]:
        """Return into how many parts each dimension is split."""
        sizes = dict(zip(self.mesh.names, self.mesh.sizes, strict=True))
        return tuple(math.prod(sizes[name] for name in names) for names in self.split)

    def __str__(self) -> str:
        dims = ["+".join(map(repr, names)) if names else "None" for names in self.split]
        return f"({', '.join(dims)}{',' * (len(dims) == 1)}) over {self.mesh}"


class ShardedType(tuple):  # type: ignore[type-arg]  # noqa: SLOT001 - has an attribute
    """The type of data that is split: unequal to that of the same data on one device.

    Attributes:
        sharding: How it is split.
    """

    sharding: Sharding

    def __new__(cls, type_: Type, sharding: Sharding) -> Self:
        """Return a type with a sharding."""
        made = super().__new__(cls, type_)
        made.sharding = sharding
        return made

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ShardedType)
            and tuple.__eq__(self, other)
            and self.sharding == other.sharding
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self.sharding))


def sharding_of(type_: Type | None) -> Sharding | None:
    """Return the sharding in a type; None for data that no device has a part of."""
    return type_.sharding if isinstance(type_, ShardedType) else None


def begin() -> None:
    """Take note that the program has a mesh."""
    global in_use
    in_use = True


@functools.lru_cache(maxsize=64)
def _jax_mesh(mesh: Axes) -> Any:
    devices = np.array(jax.devices()[: mesh.size]).reshape(mesh.sizes)
    return jax.sharding.Mesh(devices, mesh.names)


@functools.lru_cache(maxsize=1024)
def placement(mesh: Axes, sharding: Sharding | None) -> Any:
    """Return a sharding, None for the whole on each device of a mesh, as jax has it."""
    split = () if sharding is None else sharding.split
    parts = [names[0] if len(names) == 1 else (names or None) for names in split]
    spec: Any = PartitionSpec
    return NamedSharding(_jax_mesh(mesh), spec(*parts))


@functools.lru_cache(maxsize=1024)
def _from_jax(found: Any, rank: int) -> Sharding | None:
    """Return jax's sharding as ours; None where every device has the whole."""
    names = found.mesh.axis_names
    mesh = Axes(names, tuple(found.mesh.shape[name] for name in names))
    split = []
    for part in (*found.spec, *[None] * rank)[:rank]:
        given = part if isinstance(part, tuple) else (part,) if part else ()
        split.append(tuple(name for name in given if found.mesh.shape[name] > 1))
    sharding = Sharding(mesh, tuple(split))
    return None if sharding.is_replicated else sharding


def of_data(data: Any) -> Sharding | None:
    """Return how a device array is split; None where each device that has it has the whole."""
    found = getattr(data, "sharding", None)
    return _from_jax(found, data.ndim) if isinstance(found, NamedSharding) else None


def bytes_by_device(data: Any) -> dict[int, int]:
    """Return how many bytes of a device array each device has; empty for what is none."""
    found = getattr(data, "sharding", None)
    if found is None:
        return {}
    own = math.prod(found.shard_shape(data.shape)) * data.dtype.itemsize
    return {device.id: own for device in found.device_set}


def arranged(data: Any, sharding: Sharding | None) -> Any:
    """Return an array split in some way; None for the whole, wherever it is."""
    if of_data(data) == sharding:
        return data
    if sharding is None:
        return jax_compat.whole(data)
    return jax.device_put(data, placement(sharding.mesh, sharding))


def stored(old: Type | None, data: Any, type_: Type) -> tuple[Any, Type]:
    """Return what a buffer stores in place of what it had: a tensor keeps its sharding.

    The old type is None for a new buffer, which takes data as they are.
    """
    if old is not None and old[0] == type_[0]:
        data = arranged(data, sharding_of(old))
    return data, typed(data, type_)


def with_sharding(type_: Type, sharding: Sharding) -> Type:
    """Return the type of a tensor once it is split in another way."""
    plain: Type = (type_[0], type_[1], type_[2])
    return plain if sharding.is_replicated else ShardedType(plain, sharding)


def typed(data: Any, type_: Type) -> Type:
    """Return the type of a device array, its sharding included."""
    sharding = of_data(data)
    plain: Type = (type_[0], type_[1], type_[2])
    return plain if sharding is None else ShardedType(plain, sharding)


def laid_out(args: list[Any], placements: Sequence[Any] | None) -> list[Any]:
    """Return a program's arguments on its devices."""
    if placements is None:
        return [jax_compat.whole(arg) for arg in args]
    moved = [k for k, arg in enumerate(args) if arg.sharding != placements[k]]
    if moved:
        made = jax.device_put([args[k] for k in moved], [placements[k] for k in moved])
        for number, array in zip(moved, made, strict=True):
            args[number] = array
    return args
