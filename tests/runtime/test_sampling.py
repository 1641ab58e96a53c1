"""Random numbers that are drawn until one is accepted, and their derivatives."""

import numpy as np
import pytest
import scipy  # type: ignore[import-untyped]
import torch
from torch.distributions import Beta, Binomial, Dirichlet, Gamma, Poisson

import lazyrt
from tests.harness import DEVICE

# The seed is fixed, so a test that passes once passes always.
SIGMAS = 5.0


@pytest.mark.lazy_only("counts what runs")
@pytest.mark.slow
def test_draws_of_all_kinds_are_a_part_of_their_step():
    torch.manual_seed(0)
    shape = torch.full((3, 4_000), 2.5, device=DEVICE, requires_grad=True)
    chance = torch.full((4_000,), 0.25, device=DEVICE)
    lazyrt.reset_counters()

    with lazyrt.step():
        gamma = Gamma(shape, 2.0, validate_args=False).rsample()
        parts = Dirichlet(shape.T, validate_args=False).rsample()
        (gamma.sum() + parts[:, 0].sum()).backward()
        rare = torch.poisson(chance * 8)
        many = Binomial(100, chance, validate_args=False).sample()

    counts = lazyrt.counters()
    assert (counts["executions"], counts["cpu_fallbacks"]) == (1, 0)
    for drawn, mean, variance in (
        (gamma, 1.25, 0.625),
        (parts[:, 0], 1 / 3, 2 / 9 / 8.5),
        (rare, 2.0, 2.0),
        (many, 25.0, 18.75),
    ):
        found = drawn.detach().cpu().double()
        error = (variance / found.numel()) ** 0.5
        assert abs(found.mean().item() - mean) < SIGMAS * error
        assert abs(found.var().item() / variance - 1) < 0.15
    torch.testing.assert_close(parts.detach().cpu().sum(-1), torch.ones(4_000))
    assert shape.grad is not None
    assert shape.grad.isfinite().all()


def test_parameters_at_the_ends_draw_what_they_mean():
    nan, n = float("nan"), torch.tensor([0.0, 7.0, 7.0, 7.0, -1.0], device=DEVICE)
    p = torch.tensor([0.5, 0.0, 1.0, nan, 0.5], device=DEVICE)

    found = torch.binomial(n, p).cpu()
    counts = torch.poisson(torch.tensor([0.0, nan, 1e6], device=DEVICE)).cpu()
    gamma = torch._standard_gamma(torch.tensor([1e-3, nan, 1e6], device=DEVICE)).cpu()

    assert found[:3].tolist() == [0.0, 0.0, 7.0]
    assert found[3:].isnan().all()
    assert counts[0] == 0.0
    assert counts[1].isnan()
    assert abs(counts[2].item() - 1e6) < 5_000
    assert gamma[0] > 0
    assert gamma[1].isnan()
    assert abs(gamma[2].item() - 1e6) < 5_000


DISCRETE = {
    "few events": (
        lambda: Poisson(torch.tensor(4.0, device=DEVICE)),
        lambda: scipy.stats.poisson(4),
    ),
    "many events": (
        lambda: Poisson(torch.tensor(31.5, device=DEVICE)),
        lambda: scipy.stats.poisson(31.5),
    ),
    "few successes": (
        lambda: Binomial(30, torch.tensor(0.1, device=DEVICE)),
        lambda: scipy.stats.binom(30, 0.1),
    ),
    "many successes": (
        lambda: Binomial(80, torch.tensor(0.7, device=DEVICE)),
        lambda: scipy.stats.binom(80, 0.7),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DISCRETE)
def test_whole_numbers_come_as_often_as_their_distribution_says(name):
    make, wanted = DISCRETE[name]
    torch.manual_seed(1)

    found = make().sample((50_000,)).cpu().long().numpy()

    expected = wanted().pmf(np.arange(found.max() + 1)) * found.size
    often = expected > 20
    counts = np.bincount(found, minlength=expected.size)[often]
    chi = ((counts - expected[often]) ** 2 / expected[often]).sum()
    assert scipy.stats.chi2(often.sum() - 1).sf(chi) > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0, 40.0])
def test_gamma_and_beta_numbers_have_their_distribution(alpha):
    torch.manual_seed(2)
    concentration = torch.tensor(alpha, device=DEVICE, dtype=torch.float64)

    gamma = Gamma(concentration, 1.0).sample((20_000,)).cpu().numpy()
    beta = Beta(concentration, 2.0).sample((20_000,)).cpu().numpy()

    assert scipy.stats.kstest(gamma, scipy.stats.gamma(alpha).cdf).pvalue > 1e-5
    assert scipy.stats.kstest(beta, scipy.stats.beta(alpha, 2.0).cdf).pvalue > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_derivatives_of_draws_are_those_of_their_distribution_functions(scale):
    """The CPU's approximations are a thousandth off; so differences of scipy's functions."""
    numbers = torch.Generator().manual_seed(0)
    pairs = torch.randn(2, 400, generator=numbers, dtype=torch.float64)
    a, b = (pairs.exp() * scale).unbind()
    torch.manual_seed(3)
    x = Beta(a, b).sample().clamp(1e-6, 1 - 1e-6)
    y = Gamma(a, 1.0).sample()

    shares = torch._dirichlet_grad(x.to(DEVICE), a.to(DEVICE), (a + b).to(DEVICE))
    sizes = torch._standard_gamma_grad(a.to(DEVICE), y.to(DEVICE))

    h = a.numpy() * 1e-5
    of_beta = scipy.special.betainc(a + h, b, x) - scipy.special.betainc(a - h, b, x)
    density = scipy.stats.beta(a, b).pdf(x) * (1 - x.numpy())
    np.testing.assert_allclose(shares.cpu(), -of_beta / (2 * h) / density, rtol=1e-4)
    of_gamma = scipy.special.gammainc(a + h, y) - scipy.special.gammainc(a - h, y)
    density = scipy.stats.gamma(a).pdf(y)
    np.testing.assert_allclose(sizes.cpu(), -of_gamma / (2 * h) / density, rtol=1e-4)
