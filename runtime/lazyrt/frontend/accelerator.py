"""What torch asks of the process's accelerator, answered for `lazyrt`.

torch takes a device that Python registers for the accelerator of the process. So
`DataLoader(pin_memory=True)`, `torch.accelerator.synchronize()` and its neighbours come here, in
scripts that have no tensor on the device too, and end in C++ that a Python backend has no part in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lazyrt.errors import UsageError
from lazyrt.execution import memory
from lazyrt.frontend import torch_compat as compat

if TYPE_CHECKING:
    from collections.abc import Callable

_libraries: list[torch.library.Library] = []


def install(synchronize: Callable[[], None]) -> None:
    """Answer for the accelerator; `synchronize` runs what is pending and waits for the device."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_pin_memory", _pinned, "CPU")
    _libraries.append(library)
    compat.patch_accelerator(
        synchronize=synchronize,
        allocated_bytes=memory.in_use,
        free_bytes=_free_bytes,
        refuse=_refuse,
    )


def _pinned(host: torch.Tensor, device: Any = None) -> torch.Tensor:  # noqa: ARG001
    """Return a copy, as pinning does: jax copies from any memory, so none need be pinned."""
    return host.clone()


def _free_bytes() -> int:
    return memory.available() or 0


def _refuse(name: str) -> None:
    raise UsageError(
        f"torch.accelerator.{name}() asks for the peak of the memory in use, which nobody records "
        "on lazyrt. What is in use now is torch.accelerator.memory_allocated(); "
        "lazyrt.live_tensors_report() says who holds it."
    )
