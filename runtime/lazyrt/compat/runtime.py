"""`torch_xla.runtime` over lazyrt: one device in each process."""

from __future__ import annotations

from pathlib import Path

from lazyrt import jax_compat
from lazyrt.compat import common
from lazyrt.compat import xla_model as _xm
from lazyrt.compat.common import (
    INTERNAL,
    of_replicas,
    only_one,
    refuse,
)
from lazyrt.config import config
from lazyrt.ir import sharding

__all__ = [
    "addressable_device_count", "addressable_runtime_device_count", "device_type",
    "global_device_count", "global_ordinal", "global_runtime_device_count", "host_index",
    "initialize_cache", "is_bf16_supported", "is_spmd", "local_device_count", "local_ordinal",
    "local_process_count", "process_count", "process_index", "use_spmd", "world_size",
]  # fmt: skip

REFUSED = {
    "set_device_type": "jax chooses the device; set JAX_PLATFORMS before the program starts",
    "get_master_ip": "lazyrt has one device in one process",
    "get_num_cached_compilation_graph": "use lazyrt.counters(), which counts compiles",
    "runtime_device_attributes": INTERNAL,
    "global_runtime_device_attributes": INTERNAL,
}
__getattr__ = refuse("torch_xla.runtime", REFUSED)


@of_replicas
def host_index() -> int:
    """Return the number of this machine, as torchrun counts them."""
    return common.local("GROUP_RANK", 0)


@of_replicas
def local_process_count() -> int:
    """Return how many processes this machine has."""
    return common.local("LOCAL_WORLD_SIZE", common.world_size())


def local_device_count() -> int:
    """Return 1."""
    return 1


# Equal by another name.
device_type = _xm.xla_device_hw
world_size = process_count = global_device_count = _xm.xrt_world_size
global_ordinal = process_index = _xm.get_ordinal
local_ordinal = _xm.get_local_ordinal
addressable_device_count = local_device_count


def addressable_runtime_device_count() -> int:
    """Return how many devices a mesh can have."""
    return jax_compat.device_count()


global_runtime_device_count = of_replicas(addressable_runtime_device_count)


def is_spmd() -> bool:
    """Return whether the program has made a mesh."""
    return sharding.in_use


def use_spmd(auto: bool = False) -> None:
    """Do nothing: a step with sharded tensors runs on their mesh; `auto` is False."""
    only_one("use_spmd()", "auto", auto, allowed=False)


def is_bf16_supported() -> bool:
    """Return True."""
    return True


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keep executables in a folder from now on; see `lazyrt.config.cache_dir`."""
    only_one("initialize_cache()", "readonly", readonly, allowed=False)
    config.cache_dir = Path(path)
