"""`torch_xla.experimental` over lazyrt: eager mode."""

from __future__ import annotations

from typing import Any

import lazyrt
from lazyrt.compat.common import refuse
from lazyrt.compat.torch_xla import compile  # noqa: A004 - the original's name

__all__ = ["compile", "eager_mode", "eager_mode_context", "is_eager_mode"]

REFUSED = {
    "plugins": "lazyrt runs on the devices that jax finds. Leave the call out",
    "callback": "use a step closure: lazyrt.add_step_closure()",
    "scan": "write the loop out; equal layers cost one lowering each",
}
__getattr__ = refuse("torch_xla.experimental", REFUSED)


def eager_mode(enable: bool) -> None:
    """Switch eager debug mode on or off, from here on."""
    lazyrt.eager_mode(enable)


def is_eager_mode() -> bool:
    """Return whether eager debug mode is on."""
    return lazyrt.mode() == "eager"


def eager_mode_context(enable: bool) -> Any:
    """Return a context manager with eager debug mode on or off."""
    return lazyrt.eager_mode(enable)
