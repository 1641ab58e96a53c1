"""Numbers at their edges, and torch's function families, next to the CPU."""

import math

import pytest
import torch
from torch import distributions, fft, linalg, nn, special

from lazyrt.observe import events
from tests.harness import DEVICE, lazy, recorded
from tests.runtime.semantics import grid, on_both, outcome

NAN, INF = math.nan, math.inf
# Without a subnormal number: XLA on the CPU flushes those to zero.
ODD = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1e-37, 3e38, -1.5, 2.5])


def special_values_go_through(d, x):
    return (
        x + 1, x * 0, 1 / x, x.abs(), x.sign(), x.sqrt(), x.exp(), x.log(), x.floor(), x.round(),
        x.sigmoid(), x.tanh(), x.relu(), x.softmax(0), x.isnan(), x.isinf(), x.isfinite(), x.signbit(),
        x.nan_to_num(), x.nan_to_num(1.0, 2.0, 3.0), x == x.flip(0), x != x.flip(0), x < 0, torch.copysign(x, -x),
    )  # fmt: skip


def special_values_are_ordered_and_reduced(d, x):
    y = x[1:]
    return (
        x.sort()[0], x.argsort(), x.max(), x.min(), x.argmax(), x.amax(), x.sum(), x.nansum(),
        x.nanmean(), x.median(), x.nanmedian(), x.mean(), x.prod(), x.any(), x.all(), y.max(0), y.min(0),
        y.topk(3)[0], x.cummax(0)[0], x.cumsum(0), x.cumprod(0), x.logsumexp(0), x.unique(),
        x.maximum(y[0]), x.fmax(y[0]), x.clamp(-1, 1), x.clamp(min=0), x.count_nonzero(),
    )  # fmt: skip


def nan_goes_through_reductions_of_large_tensors(d, x):
    y = torch.arange(128.0 * 512, device=d).reshape(128, 512) * 1e-4
    y[3, 4] = NAN
    return (
        y.max(), y.min(), y.abs().max(), y.amax(0), y.amin(1), y.max(1).values, (y @ y.T).max(),
        nn.functional.max_pool2d(y[None, None], 2), y.relu().amax(0), y.relu().sum(0), y.clamp(max=1).sum(0),
    )  # fmt: skip


def integers_overflow_as_the_machine_does(d, x):
    made = []
    for kind in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        top = torch.iinfo(kind).max
        n = torch.tensor([top, top - 1, 1, 0], dtype=kind, device=d)
        made += [
            n + 1,
            n * 2,
            n * n,
            -n,
            n << 1,
            n.cumsum(0),
            n.sum(),
            n.prod(),
            ~n,
            n.abs(),
            n - 2,
        ]
    return made


def integers_divide_as_on_the_cpu(d, x):
    a = torch.tensor([7, -7, 7, -7, 0], device=d)
    b = torch.tensor([2, 2, -2, -2, 3], device=d)
    return (
        a // b, a % b, a / b, torch.div(a, b, rounding_mode="trunc"), a.fmod(b), a.remainder(b),
        a.bitwise_and(b), a ^ b, a | b, a >> 1, torch.gcd(a, b), torch.lcm(a, b), a.float() // b.float(),
        a.double() % b, a.pow(2), (a > 0) & (b > 0), a.bool() ^ b.bool(),
    )  # fmt: skip


def wide_integers_keep_their_digits(d, x):
    n = torch.tensor([2**62 + 1, -(2**62) - 3, 2**53 + 1], device=d)
    return (
        n,
        n + 1,
        n // 3,
        n % 1000,
        n.max(),
        n.tolist(),
        (n * 2).tolist(),
        n.double(),
        n.to(torch.int32),
    )


def scalars_of_no_dimensions(d, x):
    s = torch.tensor(2.5, device=d)
    t = torch.tensor(3, device=d)
    filled = torch.zeros((), device=d)
    filled[()] = 4
    filled += s
    return (
        s + t, (s + t).item(), s * x[3:], s.expand(2, 3), s.view(1), s.unsqueeze(0), s.sum(), s.max(),
        s.sort(), s.argmax(), s.softmax(0), s.cumsum(0), torch.stack([s, s]), s.flatten(), s.t(), filled,
        int(t), float(s), bool(s), range(5)[t], [10, 20, 30, 40][t], s.dim(), tuple(s.shape), s[None],
        t.type_as(s), s.repeat(2), torch.cat([s[None], x[3:5]]), f"{s:.1f}", round(s.item()), s.nonzero(),
    )  # fmt: skip


def no_elements(d, x):
    e = torch.empty(0, 3, device=d)
    return (
        e + 1, e.sum(), e.sum(0), e.sum(1), e.prod(), e.mean(), e.t() @ e, e @ e.t(), torch.cat([e, e]),
        e.view(3, 0), e.any(), e.all(), e.softmax(1), e[:, 1], e.unsqueeze(0), e.nonzero(), e.tolist(),
        e.clone().fill_(1), e.expand(2, 0, 3), torch.zeros(2, 0, 3, device=d).sum(1), e.sort(1)[0],
        e.numel(), torch.nn.functional.linear(e, torch.ones(2, 3, device=d)), e.repeat(2, 1), e.cumsum(0),
        torch.stack([e, e]), e.split(2), torch.where(e > 0, e, e), e.max(1)[0], e.norm(), e.gather(0, e.long()),
    )  # fmt: skip


def complex_arithmetic(d, x):
    z = torch.complex(grid(2, 3), -grid(2, 3) / 2).to(d)
    return (
        z * z, z / (z + 1), z.abs(), z.angle(), z.conj() * z, z @ z.mH, z.real, z.imag + 0, z.exp(), z.sqrt(),
        z.log(), z.pow(2), z.sum(), z.mean(0), z.prod(1), z.sin(), z.tanh(), z.reciprocal(), z.sgn(), z == z.flip(1),
        torch.polar(z.abs(), z.angle()), z + 1j, 2 * z, z.to(torch.complex128), z.cumsum(1), z.isfinite(),
        torch.view_as_real(z), z.t().contiguous(), z.flip(0), z.roll(1, 1), torch.complex(z.real, z.real),
    )  # fmt: skip


def gradients_of_complex_programs(d, x):
    z = torch.complex(grid(3), grid(3) / 3).to(d).requires_grad_()
    loss = (z * z.conj()).real.sum() + (z.exp().imag ** 2).sum() + z.abs().sum()
    loss.backward()
    return loss, z.grad


def special_functions(d, x):
    y = torch.linspace(0.1, 3, 7).to(d)
    functions = (
        special.erf, special.erfc, special.erfinv, special.expit, special.logit, special.gammaln,
        special.digamma, special.i0, special.i0e, special.i1, special.i1e, special.ndtr, special.ndtri,
        special.log_ndtr, special.sinc, special.entr, special.expm1, special.exp2, special.log1p,
        special.erfcx, special.xlogy, special.xlog1py, special.zeta, special.gammainc, special.gammaincc,
    )  # fmt: skip
    binary = {
        special.xlogy,
        special.xlog1py,
        special.zeta,
        special.gammainc,
        special.gammaincc,
    }
    inside = y / 4
    return (
        [f(y + 1, inside) if f in binary else f(inside) for f in functions],
        [
            [f(inside, 2.5), f(2.5, inside + 1)]
            for f in (special.xlogy, special.xlog1py, special.zeta)
        ],
        special.polygamma(1, y),
        special.multigammaln(y + 3, 2),
        special.logsumexp(y, 0),
        special.softmax(y, 0),
    )


def fourier_transforms(d, x):
    y = (grid(4, 6).to(d) * 0.7).sin()
    z = fft.fft(y)
    return (
        z, fft.ifft(z), fft.rfft(y), fft.irfft(fft.rfft(y), n=6), fft.fft2(y), fft.rfft2(y).contiguous(), fft.fftn(y),
        fft.irfftn(fft.rfftn(y), s=y.shape), fft.hfft(z), fft.ihfft(y), fft.fftshift(y), fft.fft(y, n=8),
        fft.ifftshift(y), fft.fftfreq(6, device=d), fft.rfftfreq(6, device=d), fft.fft(y, norm="ortho", dim=0),
        torch.stft(y.flatten(), 8, window=torch.hann_window(8, device=d), return_complex=True),
    )  # fmt: skip


def linear_algebra(d, x):
    a = torch.eye(3) * 4 + grid(3, 3) / 10
    a = a.to(d)
    symmetric, b = a @ a.mT, grid(3, 2).to(d)
    values, vectors = linalg.eigh(symmetric)
    q, r = linalg.qr(a)
    u, s, vh = linalg.svd(a)
    return (
        linalg.det(a), linalg.slogdet(a), linalg.inv(a), linalg.solve(a, b), linalg.cholesky(symmetric),
        values, vectors @ torch.diag(values) @ vectors.mT, q @ r, (u * s) @ vh, linalg.svdvals(a),
        linalg.norm(a), linalg.norm(a, 1), linalg.norm(a, "nuc"), linalg.vector_norm(b, 3, 0),
        linalg.matrix_rank(a), linalg.matrix_power(a, 3), linalg.pinv(b), linalg.cond(a), linalg.matrix_exp(a / 9),
        linalg.multi_dot([a, a, b]), linalg.cross(a, a.flip(0)), torch.trace(a), torch.logdet(a),
        torch.cholesky_solve(b, linalg.cholesky(symmetric)), linalg.lu_factor(a)[0], torch.kron(a, b), linalg.vander(b[:, 0]),
        linalg.solve_triangular(r, b, upper=True), linalg.eigvals(symmetric).abs().sort()[0], torch.cdist(a, a + 1),
        torch.einsum("ij,kj->ik", a, a), torch.tensordot(a, a, 2), torch.baddbmm(a[None], a[None], a[None]),
    )  # fmt: skip


def gradients_of_linear_algebra(d, x):
    a = (torch.eye(3) * 4 + grid(3, 3) / 10).to(d).requires_grad_()
    s = a @ a.mT
    loss = (
        linalg.det(a) / 50
        + linalg.inv(a).sum()
        + linalg.eigvalsh(s).log().sum()
        + linalg.cholesky(s).sum()
    )
    loss = (
        loss
        + linalg.solve(a, a.detach() + 1).pow(2).sum()
        + linalg.svdvals(a).sum()
        + linalg.norm(a)
    )
    loss.backward()
    return loss, a.grad


def products_are_differentiated(d, x):
    y = torch.tensor([[2.0, 0, 3], [0, -1, 0], [1, 4, 2]], device=d).requires_grad_()
    rows, wide = y.prod(1), y.prod(0, keepdim=True, dtype=torch.float64)
    total = y.prod() + rows.square().sum() + wide.sum() + y[1, 1].prod(0, keepdim=True)
    (first,) = torch.autograd.grad(rows.sum(), y, create_graph=True)
    (second,) = torch.autograd.grad(first[2].sum(), y, retain_graph=True)
    total.backward()
    return total, rows, wide, first, second, y.grad, y[:0].prod(0), y[:, :0].prod()


PROGRAMS = [
    special_values_go_through, special_values_are_ordered_and_reduced, nan_goes_through_reductions_of_large_tensors,
    integers_overflow_as_the_machine_does, integers_divide_as_on_the_cpu,
    wide_integers_keep_their_digits, scalars_of_no_dimensions, no_elements, complex_arithmetic,
    gradients_of_complex_programs, special_functions, fourier_transforms, linear_algebra,
    gradients_of_linear_algebra, products_are_differentiated,
]  # fmt: skip


# `unique` or `nonzero`, whose results' shapes depend on data.
CUTS = {
    special_values_are_ordered_and_reduced: 1,
    scalars_of_no_dimensions: 1,
    no_elements: 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_numbers_match_the_cpu(program):
    tolerance = (
        1e-4 if program in {linear_algebra, gradients_of_linear_algebra} else None
    )
    on_both(program, ODD, tolerance=tolerance, fallbacks=CUTS.get(program, 0))


@pytest.mark.parametrize("exponent", [True, False, 2, 0.5])
def test_a_power_of_booleans_has_the_dtype_of_the_cpu(exponent):
    def program(d, x):
        return x**exponent, x.clone().pow_(exponent) if exponent is True else x

    on_both(program, torch.tensor([True, False]))


def test_the_mode_of_numbers_that_are_none_is_the_first():
    def program(d, x):
        return x.mode(1)

    on_both(program, torch.tensor([[NAN, NAN, NAN], [1.0, 2.0, 2.0], [3.0, 3.0, 1.0]]))


@pytest.mark.slow
@pytest.mark.lazy_only("counts the cuts of a step")
def test_the_gradient_of_a_product_cuts_nothing():
    x = lazy(torch.tensor([[2.0, 0, 3], [1, 4, 2]])).requires_grad_()

    with recorded(events.BarrierFinished) as cuts:
        (x.prod() + x.prod(1).sum()).backward()

    assert not cuts
    assert x.grad.tolist() == [[0.0, 54.0, 0.0], [8.0, 2.0, 4.0]]


REFUSED_PRODUCTS = {
    "no such dimension": lambda x: x.requires_grad_().prod(5),
    "of one number": lambda x: x.requires_grad_()[0].prod(1),
}


@pytest.mark.parametrize("call", REFUSED_PRODUCTS)
def test_products_that_the_cpu_refuses_are_refused_in_its_words(call):
    for x in (grid(4), lazy(grid(4))):
        with pytest.raises(IndexError, match="Dimension out of range"):
            REFUSED_PRODUCTS[call](x)


def densities(d, x):
    loc, scale = torch.zeros(3).to(d), torch.tensor([0.5, 1.0, 2.0]).to(d)
    p, y = torch.tensor([0.2, 0.3, 0.5]).to(d), torch.tensor([0.1, 0.7, 1.5]).to(d)
    two = torch.tensor([[2.0, 0.3], [0.3, 1.0]]).to(d)
    continuous = [
        distributions.Normal(loc, scale), distributions.LogNormal(loc, scale),
        distributions.Exponential(scale), distributions.Gamma(scale + 1, scale),
        distributions.Laplace(loc, scale), distributions.Cauchy(loc, scale),
        distributions.StudentT(scale + 2), distributions.HalfNormal(scale),
        distributions.Gumbel(loc, scale), distributions.Weibull(scale, scale + 1),
        distributions.Uniform(loc, scale + 2),
    ]  # fmt: skip
    discrete = [
        distributions.Bernoulli(p), distributions.Geometric(p), distributions.Poisson(scale),
        distributions.Binomial(3, p),
    ]  # fmt: skip
    one = torch.ones(3, device=d)
    found = [q.log_prob(y) for q in continuous] + [q.log_prob(one) for q in discrete]
    found += [q.mean for q in (*continuous[:5], *discrete)] + [
        q.variance for q in continuous[:5]
    ]
    found += [
        distributions.Categorical(p).log_prob(torch.tensor(1, device=d)),
        distributions.Categorical(p).entropy(),
    ]
    found += [
        distributions.Beta(scale, scale + 1).log_prob(p),
        distributions.Dirichlet(scale).log_prob(p),
    ]
    found += [
        distributions.MultivariateNormal(loc[:2], two).log_prob(y[:2]),
        continuous[0].cdf(y),
        continuous[0].icdf(p),
    ]
    found += [
        distributions.kl_divergence(continuous[0], distributions.Normal(loc + 1, scale))
    ]
    found += [
        distributions.Independent(continuous[0], 1).log_prob(y),
        distributions.Multinomial(3, p).log_prob(one),
    ]
    return found


@pytest.mark.slow
def test_densities_match_the_cpu():
    on_both(densities, ODD, tolerance=1e-4)


SAMPLED = {
    "normal": lambda o, z: distributions.Normal(z, 2 * o),
    "gamma": lambda o, z: distributions.Gamma(3 * o, 2 * o),
    "beta": lambda o, z: distributions.Beta(2 * o, 3 * o),
    "exponential": lambda o, z: distributions.Exponential(2 * o),
    "laplace": lambda o, z: distributions.Laplace(o, 0.5 * o),
    "bernoulli": lambda o, z: distributions.Bernoulli(0.3 * o),
    "geometric": lambda o, z: distributions.Geometric(0.4 * o),
    "uniform": lambda o, z: distributions.Uniform(z, 3 * o),
    "gumbel": lambda o, z: distributions.Gumbel(z, o),
    "poisson": lambda o, z: distributions.Poisson(4 * o),
    "binomial": lambda o, z: distributions.Binomial(10, 0.3 * o),
    "log-normal": lambda o, z: distributions.LogNormal(z, 0.25 * o),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLED)
def test_samples_have_the_moments_of_their_distribution(name):
    one = torch.ones((), device=DEVICE)
    n = 20_000

    q = SAMPLED[name](one, 0 * one)
    values = q.sample((n,)).cpu()

    mean, deviation = q.mean.item(), q.stddev.item()
    assert abs(values.mean().item() - mean) < 5 * deviation / math.sqrt(n)
    assert abs(values.std().item() / deviation - 1) < 0.05


def test_reparametrised_samples_carry_gradients():
    scale = torch.ones(4, device=DEVICE, requires_grad=True)

    y = distributions.Normal(torch.zeros(4, device=DEVICE), scale).rsample()
    y.sum().backward()

    assert scale.grad is not None
    assert torch.equal(scale.grad.cpu(), y.detach().cpu())


def test_a_very_large_tensor_is_computed_and_indexed():
    count = 2**24 + 3

    x = lazy(torch.arange(count, dtype=torch.int32))
    total = x.sum()
    x[-1] = -1

    assert total.item() == count * (count - 1) // 2
    assert (x < 0).sum().item() == 1
    assert x[2**24 : 2**24 + 3].tolist() == [2**24, 2**24 + 1, -1]
    assert x.view(-1)[count - 2].item() == count - 2


@pytest.mark.lazy_only("looks at what is pending")
def test_sizes_beyond_memory_cost_nothing_until_they_are_computed():
    wide = torch.zeros(1, device=DEVICE).expand(2**40)

    assert wide.shape == (2**40,)
    assert wide[5].item() == 0.0
    assert wide[2**39 : 2**39 + 2].tolist() == [0.0, 0.0]


REFUSED_ON_BOTH = {
    "complex to real": lambda x: torch.complex(x, x).to(x.device) > 0,
    "bool minus": lambda x: (x > 0) - (x > 0),
    "mean of integers": lambda x: x.long().mean(),
    "inverse of a vector": linalg.inv,
    "Cholesky of the wrong shape": lambda x: linalg.cholesky(x[None]),
    "bad scale of a distribution": lambda x: distributions.Normal(
        x, -torch.ones_like(x)
    ),
    "random from an empty range": lambda x: torch.randint(3, 3, (2,), device=x.device),
    "random_ from an empty range": lambda x: x.random_(5, 3),
    "random_ below zero": lambda x: x.random_(-1),
    "random integers that are complex": lambda x: torch.randint(
        5, (2,), dtype=torch.complex64, device=x.device
    ),
    "random integers like complex ones": lambda x: torch.randint_like(
        torch.complex(x, x), 5
    ),
    "random integers beyond bytes": lambda x: torch.randint(
        257, (2,), dtype=torch.uint8, device=x.device
    ),
    "complex numbers in a fill": lambda x: x.fill_(1j),
    "complex numbers in a full": lambda x: torch.full(
        (2,), 1j, dtype=torch.float32, device=x.device
    ),
    "complex numbers at indices": lambda x: x.index_fill_(0, (x[:1] * 0).long(), 1j),
    "complex numbers scattered": lambda x: x.scatter(0, (x[:1] * 0).long(), 1j),
    "complex numbers at a mask": lambda x: x.__setitem__(x > 0, 1j),
    "a number beyond half, scattered": lambda x: x.half().scatter(
        0, (x * 0).long(), 1e9
    ),
    "a number beyond half as padding": lambda x: nn.functional.pad(
        x.half(), (1, 1), value=1e9
    ),
    "a number beyond bytes at indices": lambda x: x.byte().index_fill(
        0, (x * 0).long(), 300
    ),
    "random_ beyond bytes": lambda x: x.to(torch.uint8).random_(0, 257),
    "random_ beyond booleans": lambda x: (x > 0).random_(3),
    "bernoulli_ of a number above 1": lambda x: x.bernoulli_(2),
    "uniform_ over more than floats": lambda x: x.uniform_(-3e38, 3e38),
    "heaviside of two dtypes": lambda x: torch.heaviside(x, x.long()),
}


@pytest.mark.parametrize("call", REFUSED_ON_BOTH)
def test_numbers_that_the_cpu_refuses_are_refused(call):
    expected = outcome(lambda: REFUSED_ON_BOTH[call](grid(4)))

    assert isinstance(expected, type)
    assert outcome(lambda: REFUSED_ON_BOTH[call](lazy(grid(4)))) is expected
