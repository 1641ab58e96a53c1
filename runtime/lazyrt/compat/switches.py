"""torch_xla's environment variables for execution modes.

A script may set them itself before it asks for the device, so that is when they are read.
"""

from __future__ import annotations

import os

from lazyrt.config import config, flag

SWITCHES = {
    "XLA_USE_EAGER_DEBUG_MODE": "eager",
    "XLA_GET_TENSORS_OPBYOP": "op_by_op_reads",
    "XLA_SYNC_TENSORS_OPBYOP": "op_by_op_barriers",
}
_taken: dict[str, str] = {}


def take() -> None:
    """Set the modes that variables ask for which are new since the last call.

    Raises:
        UsageError: A variable says neither yes nor no.
    """
    for variable, setting in SWITCHES.items():
        text = os.environ.get(variable)
        if text is None or _taken.get(variable) == text:
            continue
        value = flag(variable, default=False)
        config.set(setting, value, origin=f"environment variable {variable}")
        _taken[variable] = text
