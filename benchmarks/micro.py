"""Chains of one small op each: what recording an op costs the host."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from benchmarks.devices import Device

_SIZE = 8
_WARM_UP = 3

Chain = Callable[["Operands", int], "torch.Tensor"]


class Operands:
    """The tensors that the chains start from, on one device."""

    def __init__(self, device: Device) -> None:
        import torch

        self.x = torch.randn(_SIZE, _SIZE).to(device.torch_name)
        self.y = torch.randn(_SIZE, _SIZE).to(device.torch_name)
        self.parameter = torch.nn.Parameter(
            torch.randn(_SIZE, _SIZE).to(device.torch_name)
        )
        device.mark_step()
        device.wait()


def _add(on: Operands, length: int) -> torch.Tensor:
    z, y = on.x, on.y
    for _ in range(length):
        z = z + y
    return z


def _add_grad(on: Operands, length: int) -> torch.Tensor:
    z: torch.Tensor = on.parameter
    y = on.y
    for _ in range(length):
        z = z + y
    return z


def _add_in_place(on: Operands, length: int) -> torch.Tensor:
    z, y = on.x.clone(), on.y
    for _ in range(length):
        z.add_(y)
    return z


def _mul_number(on: Operands, length: int) -> torch.Tensor:
    z = on.x
    for _ in range(length):
        z = z * 1.0001
    return z


def _mm(on: Operands, length: int) -> torch.Tensor:
    z, y = on.x, on.y
    for _ in range(length):
        z = z.mm(y)
    return z


def _transpose(on: Operands, length: int) -> torch.Tensor:
    z = on.x
    for _ in range(length):
        z = z.transpose(0, 1)
    return z


def _view(on: Operands, length: int) -> torch.Tensor:
    z = on.x
    for _ in range(length):
        z = z.view(_SIZE, _SIZE)
    return z


CASES: dict[str, Chain] = {
    "add": _add,
    "add-grad": _add_grad,
    "add-in-place": _add_in_place,
    "mul-number": _mul_number,
    "mm": _mm,
    "transpose": _transpose,
    "view": _view,
}


def time_chain(
    device: Device, operands: Operands, case: str, length: int, repeats: int
) -> list[float]:
    """Return the microseconds for each op, once for each repeat.

    Nothing keeps the chain's result, so that the end of a step has nothing to run.
    """
    chain = CASES[case]
    found = []
    gc.collect()
    for repeat in range(_WARM_UP + repeats):
        start = time.perf_counter_ns()
        result = chain(operands, length)
        duration = time.perf_counter_ns() - start
        del result
        device.mark_step()
        device.wait()
        if repeat >= _WARM_UP:
            found.append(duration / length / 1e3)
    return found
