"""One comparison for the semantics suite: a program on the CPU and on the lazy device.

A program is a function of a device name and tensors. It runs once on each device; everything
that a user could tell apart is compared: results (tensors, numbers, texts) in their structure,
the tensors passed in, as the program left them, and their gradients.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lazyrt
from tests.harness import DEVICE

TOLERANCE = {
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
}


def on_both(program, *inputs, tolerance=None, fallbacks=0):
    """Run `program` on both devices and compare all that it returns and changes.

    Args:
        program: Called as `program(device, *tensors)`.
        inputs: CPU tensors; each run gets copies of the same strides.
        tolerance: Relative and absolute; by dtype when None.
        fallbacks: How many ops the lazy run may hand to the CPU, exactly; None allows any.
    """
    expected = _run(program, "cpu", inputs)
    before = lazyrt.counters()["cpu_fallbacks"]
    actual = _run(program, DEVICE, inputs)
    lazyrt.mark_step()  # one executable for all results, not one for each comparison
    compare(actual, expected, tolerance, "result")
    used = lazyrt.counters()["cpu_fallbacks"] - before
    assert fallbacks is None or used == fallbacks, lazyrt.metrics_report()


def _run(program, device, inputs):
    torch.manual_seed(0)
    copies = [_copy(tensor, device) for tensor in inputs]
    result = program(device, *copies)
    return [result, copies, [tensor.grad for tensor in copies]]


def _copy(tensor, device):
    copied = tensor.detach().clone().to(device)
    return copied.requires_grad_(tensor.requires_grad)


def compare(actual, expected, tolerance, where):
    """Compare two structures of tensors, numbers and texts."""
    if isinstance(expected, torch.Tensor):
        _compare_tensors(actual, expected, tolerance, where)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected), where
        for key in expected:
            compare(actual[key], expected[key], tolerance, f"{where}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), where
        for k, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
            compare(mine, theirs, tolerance, f"{where}[{k}]")
    elif isinstance(expected, float):
        torch.testing.assert_close(
            torch.tensor(actual), torch.tensor(expected), equal_nan=True, msg=where
        )
    else:
        assert actual == expected, where
        assert type(actual) is type(expected), where


def _compare_tensors(actual, expected, tolerance, where):
    for name in ("shape", "dtype", "requires_grad", "is_leaf"):
        mine, theirs = getattr(actual, name), getattr(expected, name)
        assert mine == theirs, f"{where}: {name} is {mine}, on the CPU {theirs}"
    assert strides(actual) == strides(expected), where
    assert actual._is_view() == expected._is_view(), where
    accuracy = TOLERANCE.get(expected.dtype, 0) if tolerance is None else tolerance
    host = actual.detach()
    host = lazyrt.materialise(host) if host.device.type == DEVICE else host
    torch.testing.assert_close(
        host.resolve_conj(),
        expected.detach().resolve_conj(),
        rtol=accuracy,
        atol=accuracy,
        equal_nan=True,
        msg=lambda text: f"{where}: {text}",
    )


def strides(tensor):
    """Return the strides that say something: not those of dimensions of one element."""
    if tensor.numel() == 0:
        return ()
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride for size, stride in pairs if size > 1)


def outcome(call) -> Any:
    """Return what a call gives: its result, or the type of the exception that it raises."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - which one it is, is the question
        return type(error)


def slow_but(cases, quick):
    """Return test parameters, named after the functions, with all but `quick` marked slow."""
    return [
        pytest.param(case, id=getattr(case, "__name__", case))
        if case in quick
        else pytest.param(
            case, id=getattr(case, "__name__", case), marks=pytest.mark.slow
        )
        for case in cases
    ]


def grid(*shape, dtype=torch.float32):
    """Return 1, 2, 3, ... in a shape."""
    count = 1
    for size in shape:
        count *= size
    return torch.arange(1, count + 1).to(dtype).reshape(shape)
