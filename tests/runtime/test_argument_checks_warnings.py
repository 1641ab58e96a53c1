"""torch's warnings on the device: the same ones as on the CPU, at the user's line."""

import warnings
from pathlib import Path

import pytest
import torch

from lazyrt.frontend import argument_checks, infer
from tests.harness import DEVICE, lazy
from tests.runtime.semantics import grid

PAIRS = torch.complex(grid(3), -grid(3))


@pytest.fixture(autouse=True)
def _never_told_before(monkeypatch):
    """Let each test see what a process is told once."""
    monkeypatch.setattr(argument_checks, "_said", set())
    infer.forget()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def told(call, device):
    """Return what a call warns of: type, line, the text without the place in torch's source."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call(device)
    return [
        (
            warning.category,
            Path(warning.filename).name,
            warning.lineno,
            str(warning.message).partition(" (Triggered")[0],
        )
        for warning in found
    ]


CALLS = {
    "another shape": lambda d: torch.add(
        torch.ones(3, device=d), 1, out=torch.zeros(1, 2, device=d)
    ),
    "a scalar": lambda d: torch.sin(
        torch.ones(3, device=d), out=torch.zeros((), device=d)
    ),
    "two results": lambda d: torch.max(
        torch.ones(3, 2, device=d), 1,
        out=(torch.zeros(2, device=d), torch.zeros(4, dtype=torch.int64, device=d)),
    ),
    "a product": lambda d: torch.matmul(
        torch.ones(2, 3, 4, device=d), torch.ones(4, device=d),
        out=torch.zeros(3, device=d),
    ),
    "no elements": lambda d: torch.add(
        torch.ones(3, device=d), 1, out=torch.zeros(0, device=d)
    ),
    "a range that fits": lambda d: torch.arange(4, out=torch.zeros(2, 2, device=d)),
    "to real": lambda d: PAIRS.to(d).to(torch.float64),
    "to whole": lambda d: PAIRS.to(d).long(),
    "to truth": lambda d: PAIRS.to(d).bool(),
    "copied": lambda d: torch.zeros(3, device=d).copy_(PAIRS.to(d)),
    "an item": lambda d: torch.zeros(3, device=d).__setitem__(0, PAIRS.to(d)[1]),
    "nothing": lambda d: PAIRS[:0].to(d).float(),
    "no freedom": lambda d: torch.ones(1, device=d).std(),
    "no freedom in rows": lambda d: torch.var_mean(
        torch.ones(7, 3, device=d), dim=-1, correction=3
    ),
    "no rows": lambda d: torch.var(torch.ones(0, 3, device=d), 0),
    "freedom": lambda d: torch.ones(7, 3, device=d).std(1, correction=2),
    "integers that half skips": lambda d: torch.randint(5000, (3,), dtype=torch.half, device=d),
    "integers like these": lambda d: torch.randint_like(torch.ones(3, device=d), 2**30),
    "two bounds": lambda d: torch.ones(3, device=d).random_(-(2**40), 2**40),
    "one bound": lambda d: torch.ones(3, device=d).random_(-(2**40), None),
    "integers that float holds": lambda d: torch.ones(3, device=d).random_(2**24),
}  # fmt: skip
SILENT = (
    "no elements",
    "to truth",
    "nothing",
    "a range that fits",
    "freedom",
    "integers that float holds",
)


@pytest.mark.parametrize("call", CALLS)
def test_the_device_warns_as_the_cpu_does(call):
    expected = told(CALLS[call], "cpu")

    assert told(CALLS[call], DEVICE) == expected
    assert len(expected) == {
        "two results": 2,
        "two bounds": 2,
        **dict.fromkeys(SILENT, 0),
    }.get(call, 1)


@pytest.mark.parametrize(
    "move",
    [
        lambda: PAIRS.to(DEVICE, torch.float32),
        lambda: lazy(PAIRS).to("cpu", torch.float32),
        lambda: torch.zeros(3).copy_(lazy(PAIRS)),
        lambda: torch.zeros(3, device=DEVICE).copy_(PAIRS),
    ],
    ids=["to the device", "from it", "copied from it", "copied to it"],
)
def test_a_move_that_drops_imaginary_parts_warns_once_at_the_users_line(move):
    results = []

    found = told(lambda _d: results.append(move()), DEVICE)

    assert [(category, file) for category, file, _, _ in found] == [
        (UserWarning, Path(__file__).name)
    ]
    assert results[0].tolist() == [1.0, 2.0, 3.0]


def test_a_draw_warns_of_its_bounds_each_time():
    def draws(device):
        for _ in range(2):
            torch.zeros(3, device=device).random_(2**40)

    assert len(told(draws, DEVICE)) == len(told(draws, "cpu")) == 2


def test_what_torch_says_once_is_said_once():
    torch.set_warn_always(False)

    assert len(told(lambda d: lazy(PAIRS).float(), DEVICE)) == 1
    assert told(lambda d: lazy(PAIRS).double(), DEVICE) == []


def test_a_warning_that_is_an_error_leaves_everything_as_it_was():
    target, pairs = torch.zeros(2, device=DEVICE), lazy(PAIRS)

    with pytest.raises(UserWarning, match=r"resized since it had shape \[2\]"):
        torch.mul(torch.ones(3, device=DEVICE), 2, out=target)
    with pytest.raises(UserWarning, match="discards the imaginary part"):
        target.copy_(pairs[:2])

    assert target.tolist() == [0.0, 0.0]
