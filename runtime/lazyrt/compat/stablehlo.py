"""`torch_xla.stablehlo` over lazyrt: exported programs as StableHLO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils._pytree import tree_flatten

import lazyrt
from lazyrt.compat.common import refuse
from lazyrt.control.loader import to_device
from lazyrt.errors import UsageError
from lazyrt.frontend.torch_compat import is_lazy

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["StableHLOGraphModule", "exported_program_to_stablehlo"]

_NO_FILES = (
    "lazyrt reads and writes no such folder; get_stablehlo_text() gives the program"
)
REFUSED = {
    "StableHLOExportOptions": "a program is lowered in one way. Leave the options out",
    "save_as_stablehlo": _NO_FILES,
    "save_torch_model_as_stablehlo": _NO_FILES,
}
__getattr__ = refuse("torch_xla.stablehlo", REFUSED)


class StableHLOGraphModule:
    """An exported program on the lazy device: a call records it, like any function.

    Args:
        exported: The program; parameters and buffers are copied to the device.
    """

    def __init__(self, exported: ExportedProgram) -> None:
        from torch.export.passes import move_to_device_pass

        self._example = exported.example_inputs
        moved = move_to_device_pass(exported, str(lazyrt.device()))
        self._module = moved.module(check_guards=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the program gives for the arguments, pending on the lazy device."""
        device = lazyrt.device()
        return self._module(*to_device(args, device), **to_device(kwargs, device))

    def get_stablehlo_text(self, method_name: str = "forward") -> str:
        """Return the StableHLO of the program at the shapes that it was exported with.

        Raises:
            UsageError: The program has another method's name, no example inputs, or computes
                nothing.
        """
        if method_name != "forward":
            raise UsageError(
                f"get_stablehlo_text() got {method_name!r}: an exported program has one method. "
                "Ask for 'forward'."
            )
        if self._example is None:
            raise UsageError(
                "the exported program has no example inputs, so its shapes are not known. "
                "Export it again with torch.export.export(module, args)."
            )
        args, kwargs = self._example
        found, _ = tree_flatten(self(*args, **kwargs))
        tensors = [each for each in found if is_lazy(each) and lazyrt.is_pending(each)]
        if not tensors:
            raise UsageError(
                "the exported program computes no tensor, so there is no StableHLO of it."
            )
        return lazyrt.pending_graph(*tensors).lower().as_text("stablehlo")


def exported_program_to_stablehlo(
    exported_model: ExportedProgram, options: None = None
) -> StableHLOGraphModule:
    """Return an exported program that runs on the lazy device and shows its StableHLO.

    Args:
        exported_model: What `torch.export.export` gave.
        options: None; there are no other ways to lower it.

    Raises:
        UsageError: There are options.
    """
    if options is not None:
        raise UsageError(
            f"exported_program_to_stablehlo() got options={options!r}, and knows none. Leave "
            "them out."
        )
    return StableHLOGraphModule(exported_model)
