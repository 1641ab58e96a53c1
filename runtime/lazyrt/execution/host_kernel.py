"""What runs an op in place of an executable that XLA refuses to make: torch, on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyrt.errors import LoweringError
from lazyrt.execution import transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from lazyrt.lowering.arrays import Aval
    from lazyrt.lowering.spec import Spec


_run: Callable[[torch._ops.OpOverload, list[Any]], Any]


def set_run(run: Callable[[torch._ops.OpOverload, list[Any]], Any]) -> None:
    """Tell how to call an op on CPU tensors, with one argument for each of its schema."""
    global _run
    _run = run


class HostKernel:
    """Takes and gives device arrays, as the executable of the op would.

    Attributes:
        reason: Why there is no executable.
    """

    def __init__(self, spec: Spec, reason: str) -> None:
        self._spec = spec
        self.reason = reason

    def __call__(self, *operands: Any) -> list[Any]:
        """Run the op on copies of its operands.

        Raises:
            LoweringError: The CPU refuses it, too, or gives another type than was recorded.
        """
        spec = self._spec
        types = spec.operands
        host = [_on_host(x, t) for x, t in zip(operands, types, strict=True)]
        try:
            results = self._call(spec.arguments(host))
        except Exception as error:
            raise LoweringError(
                f"{spec} cannot be lowered ({self.reason}), and torch's CPU refuses it, too "
                f"({error}), so nothing can compute it. Register a rule with "
                f"@lowers({spec.name!r}), or call another op."
            ) from error
        arrays = [transfer.to_device(result) for result in results]
        # The place of the scalar that follows large results; what is copied is ready.
        return [*arrays, arrays[0]] if spec.is_large else arrays

    def _call(self, args: list[Any]) -> list[torch.Tensor]:
        spec = self._spec
        if spec.is_random:
            raise RuntimeError("its random numbers are those of the device")
        found = _flat(_run(spec.func, args))
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


def _on_host(operand: Any, type_: Aval) -> Any:
    """Return an operand as a CPU tensor, or as the Python number that it is."""
    if type_.weak:
        return operand.item()
    return transfer.to_host(operand, type_.dtype)


def _flat(result: Any) -> Iterator[torch.Tensor | None]:
    if isinstance(result, (list, tuple)):
        for part in result:
            yield from _flat(part)
    else:
        yield result
