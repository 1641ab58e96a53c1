"""Numbers of a byte: to the device, through a step, and back, as on the CPU."""

import io

import pytest
import torch

import lazyrt
from tests.harness import DEVICE

KINDS = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
]
NUMBERS = torch.tensor(
    [0.0, -0.0, 1.0, -1.5, 0.1, 448.0, 449.0, 464.0, 465.0, 57344.0, 7e4, torch.inf,
     -torch.inf, torch.nan, 2**-9, 2**-10, 2**-11, 1e-7]
)  # fmt: skip


def same(actual, expected):
    assert actual.dtype is expected.dtype
    return torch.equal(actual.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("kind", KINDS)
def test_conversions_are_torchs(kind):
    expected = NUMBERS.to(kind)
    made = NUMBERS.to(DEVICE).to(kind)
    wide = made.float()
    lazyrt.mark_step()

    torch.testing.assert_close(
        wide.cpu(), expected.float(), rtol=0, atol=0, equal_nan=True
    )
    assert str(made[2:4]) == str(expected[2:4]).replace(
        ", dtype", f", device='{DEVICE}:0', dtype"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_whole_numbers_become_what_they_become_on_the_cpu(kind):
    whole = torch.tensor([0, 1, -7, 440])

    assert same(whole.to(DEVICE).to(kind).cpu(), whole.to(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_they_can_be_moved_viewed_joined_looked_at_and_saved(kind):
    host = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).to(kind)
    x = host.to(DEVICE)

    assert same(x.cpu(), host)
    assert same(x[1:3].cpu(), host[1:3])
    assert same(x.t().cpu().contiguous(), host.t().contiguous())
    assert same(torch.cat([x, x]).cpu(), torch.cat([host, host]))
    assert x.view(torch.uint8).tolist() == host.view(torch.uint8).tolist()
    assert lazyrt.look(x).summary.high == host.float().max().item()
    assert str(kind).removeprefix("torch.float8_") in lazyrt.plan(x)

    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    assert same(torch.load(file).cpu(), host)
