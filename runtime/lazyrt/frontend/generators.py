"""Random generators of the device: `torch.Generator(device="lazyrt")`.

A generator is a seed and a count of the ops drawn from it, like the default one. torch makes
generators of a Python backend nowhere, so `torch.Generator` becomes a class that makes ours for
our device and hands every other device to torch.
"""

from __future__ import annotations

import secrets
import weakref
from typing import Any, Self

import torch

from lazyrt.errors import DeviceError, UsageError
from lazyrt.frontend import torch_compat as compat
from lazyrt.ir import live

_STATE_BYTES = 16
_MIX = 0x9E37_79B9_7F4A_7C15


# An op gets its generator from C++ as a new Python object for the same C++ one.
_by_torchs_pointer: weakref.WeakValueDictionary[int, LazyGenerator] = (
    weakref.WeakValueDictionary()
)


class LazyGenerator(compat.TorchGenerator):
    """A generator of the device; its torch methods work on seed and count.

    The generator of torch underneath is there so that C++ lets the object pass. It is seeded
    alike, but no op of the device draws from it.
    """

    def __new__(cls, _state: live.Generator | None = None) -> Self:
        """Make the object torch's own way: it takes a device and nothing else."""
        return super().__new__(cls)

    def __init__(self, state: live.Generator | None = None) -> None:
        super().__init__()
        if state is None:
            state = live.Generator()
            state.restart(compat.TorchGenerator().initial_seed())
        self._state = state
        _by_torchs_pointer[compat.generator_pointer(self)] = self

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The lazy device."""
        return torch.device(compat.DEVICE_TYPE, 0)

    def manual_seed(self, seed: int) -> LazyGenerator:
        """Restart from a seed and return the generator."""
        super().manual_seed(seed)
        with live.lock:
            self._state.restart(seed)
        return self

    def seed(self) -> int:
        """Restart from a seed that the system draws, and return it."""
        seed = secrets.randbits(63)
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """Return the seed of the last restart."""
        return self._state.seed

    def get_state(self) -> torch.Tensor:
        """Return the state as a CPU byte tensor: seed and count, int64 each."""
        return state_tensor(self._state)

    def set_state(self, new_state: torch.Tensor) -> LazyGenerator:
        """Restore what `get_state` gave, and return the generator."""
        restore(self._state, new_state)
        return self

    def clone_state(self) -> LazyGenerator:
        """Return a generator of its own that will draw the same numbers."""
        return _restored(self._state.seed, self._state.offset)

    def __reduce__(self) -> Any:
        return _restored, (self._state.seed, self._state.offset)

    def __repr__(self) -> str:
        state = self._state
        return f"<lazyrt generator, seed {state.seed}, {state.offset} ops drawn>"


def _restored(seed: int, offset: int) -> LazyGenerator:
    state = live.Generator()
    state.restart(seed, offset)
    return LazyGenerator(state)


default_generator = LazyGenerator(live.generator)


def state_tensor(state: live.Generator) -> torch.Tensor:
    """Return a generator's state as a CPU byte tensor: seed and count, int64 each."""
    seed = state.seed - 2**64 if state.seed >= 2**63 else state.seed
    return torch.tensor([seed, state.offset], device="cpu").view(torch.uint8)


def restore(state: live.Generator, saved: torch.Tensor) -> None:
    """Set a generator to a state that `state_tensor` gave."""
    if saved.dtype is not torch.uint8 or saved.numel() != _STATE_BYTES:
        raise UsageError(
            f"set_state() got {saved.numel()} elements of {saved.dtype}, and a state of this "
            f"device is {_STATE_BYTES} bytes: seed and count. States of other devices' generators "
            "do not fit. Pass what get_state() or get_rng_state() of this device gave."
        )
    seed, offset = saved.cpu().contiguous().view(torch.int64).tolist()
    with live.lock:
        state.restart(seed, offset)


def source(generator: object) -> live.Generator:
    """Return what an op draws from, given its `generator` argument."""
    if generator is None:
        return live.generator
    if isinstance(generator, compat.TorchGenerator):
        found = _by_torchs_pointer.get(compat.generator_pointer(generator))
        if found is not None:
            return found._state
    where = getattr(generator, "device", type(generator).__name__)
    raise DeviceError(
        f"an op on lazyrt tensors got a generator on {where}. The device draws from "
        "counter-based generators of its own. Make one with torch.Generator(device='lazyrt'), "
        "or leave the generator out and seed with torch.manual_seed()."
    )


def host_generator(generator: object) -> torch.Generator:
    """Return a CPU generator for an op that runs there, and count the op as drawn.

    It follows from seed and count, so that the op's numbers are reproducible, and the CPU's own
    generator is left alone.
    """
    state = source(generator)
    with live.lock:
        seed = (state.seed + (state.offset + 1) * _MIX) & 0x7FFF_FFFF_FFFF_FFFF
        state.offset += 1
    made = compat.TorchGenerator()
    made.manual_seed(seed)
    return made


def install() -> None:
    """Let `torch.Generator(device="lazyrt")` make generators of this device."""
    compat.patch_generator(LazyGenerator)
