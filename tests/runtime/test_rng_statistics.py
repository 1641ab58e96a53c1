"""Whether the device's random numbers are random: distributions, independence, streams."""

import math

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.observe import events
from tests.harness import DEVICE, lazy, recorded, step_fingerprints

pytestmark = pytest.mark.slow

N = 40_000
# A chi-square or normal deviate beyond this is an accident of one in a hundred thousand; the
# seed is fixed, so a test that passes once passes always.
SIGMAS = 4.5


def deviates(counts, expected):
    """Return by how many standard deviations a chi-square sum misses its mean."""
    counts, expected = counts.double(), expected.double()
    chi = ((counts - expected) ** 2 / expected).sum().item()
    freedom = counts.numel() - 1
    return (chi - freedom) / math.sqrt(2 * freedom)


def histogram(values, low, high, bins=50):
    return torch.histc(values.double().cpu(), bins=bins, min=low, max=high)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_numbers_fill_their_interval_evenly(dtype):
    values = torch.rand(N, dtype=dtype, device=DEVICE)

    counts = histogram(values, 0, 1)

    assert abs(deviates(counts, torch.full((50,), N / 50))) < SIGMAS


def test_normal_numbers_have_the_normal_distribution():
    values = torch.randn(N, device=DEVICE).cpu()

    edges = torch.linspace(-3, 3, 25)
    share = torch.special.ndtr(edges).diff()
    inside = values[(values > -3) & (values < 3)]
    counts = histogram(inside, -3, 3, bins=24)

    assert abs(deviates(counts, share / share.sum() * inside.numel())) < SIGMAS
    assert abs((values**4).mean().item() - 3) < SIGMAS * math.sqrt(96 / N)


@pytest.mark.parametrize("top", [7, 100, 2**16 + 1])
def test_integers_are_drawn_evenly(top):
    values = torch.randint(0, top, (N,), device=DEVICE)

    bins = min(top, 50)
    counts = torch.bincount(values.cpu() * bins // top, minlength=bins)
    sizes = torch.bincount(torch.arange(top) * bins // top, minlength=bins)

    assert abs(deviates(counts, sizes * N / top)) < SIGMAS


def test_dropout_keeps_the_share_it_should_and_scales_it():
    for p in (0.1, 0.5, 0.9):
        kept = nn.functional.dropout(torch.ones(N, device=DEVICE), p).cpu()

        share = (kept > 0).double().mean().item()
        assert abs(share - (1 - p)) < SIGMAS * math.sqrt(p * (1 - p) / N)
        assert torch.allclose(kept[kept > 0], torch.tensor(1 / (1 - p)))


def test_a_permutation_puts_every_number_everywhere():
    # A read for each: one small graph, found again, instead of one with 800 sorts.
    rows = torch.stack([torch.randperm(8, device=DEVICE).cpu() for _ in range(800)])

    assert torch.equal(rows.sort(1)[0], torch.arange(8).expand(800, 8))
    for place in range(8):
        counts = torch.bincount(rows[:, place], minlength=8)
        assert abs(deviates(counts, torch.full((8,), 100.0))) < SIGMAS


def test_multinomial_draws_by_weight_with_and_without_replacement():
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])

    many = lazy(weights).multinomial(N, replacement=True).cpu()
    two = lazy(weights).expand(N, 4).multinomial(2).cpu()

    assert abs(deviates(torch.bincount(many, minlength=4), weights / 10 * N)) < SIGMAS
    assert (
        abs(deviates(torch.bincount(two[:, 0], minlength=4), weights / 10 * N)) < SIGMAS
    )
    assert bool((two[:, 0] != two[:, 1]).all())


def correlation(one, other):
    return torch.corrcoef(torch.stack([one.double(), other.double()]))[0, 1].item()


def test_successive_draws_and_neighbouring_seeds_are_independent():
    draws = [torch.rand(N, device=DEVICE) for _ in range(3)]
    seeds = []
    for seed in (1, 2, 3, 2**32, 2**32 + 1):
        torch.manual_seed(seed)
        seeds.append(torch.rand(N, device=DEVICE))
    streams = [values.cpu() for values in (*draws, *seeds)]

    for k, one in enumerate(streams):
        assert abs(correlation(one[1:], one[:-1])) < SIGMAS / math.sqrt(N)
        for other in streams[:k]:
            assert abs(correlation(one, other)) < SIGMAS / math.sqrt(N)


def test_two_calls_of_one_op_in_one_step_draw_different_numbers():
    first, second = (torch.randn(N, device=DEVICE) for _ in range(2))
    lazyrt.mark_step()

    assert abs(correlation(first.cpu(), second.cpu())) < SIGMAS / math.sqrt(N)


def test_dropout_differs_in_each_step_of_a_training_loop_and_compiles_nothing_new():
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.ones(1, 8).to(DEVICE)
    masks = []
    with recorded(events.GraphCaptured) as found:
        for _ in range(6):
            optimizer.zero_grad()
            y = model(x)
            y.sum().backward()
            optimizer.step()
            lazyrt.mark_step()
            masks.append(tuple((y.detach().cpu() != 0).flatten().tolist()))

    assert len(set(masks)) == 6
    assert len(set(step_fingerprints(found)[-4:])) == 1
