"""Memory that nobody has written: zero, or filled where a program asks for determinism."""

import contextlib
from typing import Any

import torch

from tests.harness import DEVICE

DTYPES = (
    torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.uint8, torch.int16,
    torch.int64,
)  # fmt: skip
MAKERS = {
    "empty": lambda x: torch.empty(2, 2, dtype=x.dtype, device=x.device),
    "empty in channels last": lambda x: torch.empty(
        (1, 2, 2, 1),
        dtype=x.dtype,
        device=x.device,
        memory_format=torch.channels_last,
    ),
    "empty_strided": lambda x: torch.empty_strided(
        (2, 2), (1, 2), dtype=x.dtype, device=x.device
    ),
    "empty_strided with gaps": lambda x: torch.empty_strided(
        (2, 2), (4, 1), dtype=x.dtype, device=x.device
    ),
    "empty_permuted": lambda x: torch.empty_permuted(
        (2, 2), (1, 0), dtype=x.dtype, device=x.device
    ),
    "empty_like": torch.empty_like,
    "new_empty": lambda x: x.new_empty(3),
    "new_empty_strided": lambda x: x.new_empty_strided((2, 2), (1, 2)),
    "resize_": lambda x: x.resize_(5),
    "resize_ within the storage": lambda x: x.resize_(1),
}


@contextlib.contextmanager
def deterministic(*, fills=True):
    """Ask torch for deterministic algorithms, and for memory filled or not."""
    settings: Any = torch.utils.deterministic
    before = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(mode=True)
    settings.fill_uninitialized_memory = fills
    try:
        yield
    finally:
        settings.fill_uninitialized_memory = before
        torch.use_deterministic_algorithms(mode=False)


def made(device):
    """Return what each maker gives of each dtype, as lists of texts: NaN equals NaN."""
    found = {}
    for dtype in DTYPES:
        for name, make in MAKERS.items():
            tensor = make(torch.ones(2, dtype=dtype).to(device))
            found[name, dtype] = tensor
    return {key: str(tensor.tolist()) for key, tensor in found.items()}


def test_new_memory_is_filled_as_on_the_cpu_where_the_program_asks_for_that():
    with deterministic():
        expected, found = made("cpu"), made(DEVICE)

    assert found == expected


def test_new_memory_is_zero_otherwise():
    with deterministic(fills=False):
        plain = torch.empty(2, device=DEVICE)

    assert plain.tolist() == [0.0, 0.0]
    assert torch.empty(2, device=DEVICE).tolist() == [0.0, 0.0]
    assert torch.ones(1, device=DEVICE).resize_(3).tolist() == [1.0, 0.0, 0.0]
