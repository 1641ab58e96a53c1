"""Two functions of `torch_xla._XLAC`, its extension module, that show what is pending."""  # noqa: N999 - the original's name

from __future__ import annotations

from typing import TYPE_CHECKING

import lazyrt
from lazyrt.compat.common import INTERNAL, refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["_get_xla_tensors_hlo", "_get_xla_tensors_text"]

REFUSED = dict.fromkeys(
    ("_get_xla_tensor_debug_info", "_set_buffer_donation", "_set_allow_execution"),
    INTERNAL,
)
__getattr__ = refuse("torch_xla._XLAC", REFUSED)


def _get_xla_tensors_text(tensors: Sequence[torch.Tensor]) -> str:
    """Return the IR of the pending ops that some tensors need, in lazyrt's own form."""
    return lazyrt.pending_graph(*tensors).to_text() if tensors else ""


def _get_xla_tensors_hlo(tensors: Sequence[torch.Tensor]) -> str:
    """Return the HLO of the pending ops that some tensors need, before XLA optimises it."""
    return lazyrt.pending_graph(*tensors).lower().as_text("hlo") if tensors else ""
