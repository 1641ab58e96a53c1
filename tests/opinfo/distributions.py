"""What random ops must draw: a large sample of each, and the facts that it must have.

The samples of `op_db` are too small for more than shapes, and the device's numbers are not
the CPU's. So each op of `known.RANDOM` is called once with a large size and a fixed seed, and
range, mean and variance are compared with what the distribution says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as nnf

if TYPE_CHECKING:
    from collections.abc import Callable

N = 20_000
# By how many standard errors a mean may miss; the seed is fixed, so who passes once does always.
SIGMAS = 5.0


@dataclass(frozen=True, slots=True)
class Draw:
    """A random op, and the distribution of what it draws.

    Attributes:
        run: Calls the op on a device; its result has about `N` elements.
        mean, variance: Of one element.
        fourth: Fourth central moment, for the error of the variance.
        low, high: All elements lie between.
        whole: Whether all elements are whole numbers.
    """

    run: Callable[[str], torch.Tensor]
    mean: float
    variance: float
    fourth: float
    low: float = -math.inf
    high: float = math.inf
    whole: bool = False


def _empty(device: str) -> torch.Tensor:
    return torch.empty(N, device=device)


def _ones(device: str, *shape: int) -> torch.Tensor:
    return torch.ones(*(shape or (N,)), device=device)


def _two_valued(
    run: Callable[[str], torch.Tensor], p: float, a: float, b: float
) -> Draw:
    """Return the draw that is `a` with probability p, else `b`."""
    mean = p * a + (1 - p) * b
    second, fourth = (p * (a - mean) ** k + (1 - p) * (b - mean) ** k for k in (2, 4))
    return Draw(run, mean, second, fourth, min(a, b), max(a, b))


def _normal(run: Callable[[str], torch.Tensor], mean: float, deviation: float) -> Draw:
    return Draw(run, mean, deviation**2, 3 * deviation**4)


def _uniform(run: Callable[[str], torch.Tensor], low: float, high: float) -> Draw:
    width = high - low
    return Draw(run, (low + high) / 2, width**2 / 12, width**4 / 80, low, high)


def _integers(run: Callable[[str], torch.Tensor], low: int, high: int) -> Draw:
    """Return the draw of whole numbers from `low` to below `high`."""
    numbers = range(low, high)
    mean = sum(numbers) / len(numbers)
    second, fourth = (
        sum((k - mean) ** power for k in numbers) / len(numbers) for power in (2, 4)
    )
    return Draw(run, mean, second, fourth, low, high - 1, whole=True)


def _dropped(run: Callable[[str], torch.Tensor], p: float) -> Draw:
    return _two_valued(run, p, 0.0, 1 / (1 - p))


def _alpha(run: Callable[[str], torch.Tensor], p: float) -> Draw:
    """Alpha dropout of ones: what is dropped is -alpha', and all is scaled and shifted."""
    alpha = -1.7580993408473766
    a = ((1 - p) * (1 + p * alpha**2)) ** -0.5
    b = -a * alpha * p
    return _two_valued(run, p, a * alpha + b, a + b)


def _geometric(p: float) -> Draw:
    q = 1 - p
    fourth = (q * (9 * q + p**2)) / p**4
    return Draw(
        lambda d: _empty(d).geometric_(p), 1 / p, q / p**2, fourth, 1, whole=True
    )


def _cauchy_rank(device: str) -> torch.Tensor:
    """A Cauchy number has no mean; its rank is uniform."""
    drawn = _empty(device).cauchy_(median=1.0, sigma=2.0)
    return ((drawn - 1.0) / 2.0).arctan() / math.pi + 0.5


def _log_normal(device: str) -> torch.Tensor:
    return _empty(device).log_normal_(mean=0.5, std=0.25).log()


def _attention(device: str) -> torch.Tensor:
    """All weights are 1/8, of which dropout keeps half, doubled: sums of eight."""
    q = torch.zeros(1, 1, N, 4, device=device)
    k, v = torch.zeros(1, 1, 8, 4, device=device), torch.ones(1, 1, 8, 4, device=device)
    return nnf.scaled_dot_product_attention(q, k, v, dropout_p=0.5)[..., 0] * 4


def _heads(device: str) -> torch.Tensor:
    """The same by the module's function: one head, and weights that change nothing."""
    eye = torch.eye(2, device=device)
    x = torch.ones(8, N // 8, 2, device=device)
    out, _ = nnf.multi_head_attention_forward(
        x, x, x, 2, 1, torch.cat([eye] * 3), torch.zeros(6, device=device), None, None,
        add_zero_attn=False, dropout_p=0.5, out_proj_weight=eye,
        out_proj_bias=torch.zeros(2, device=device),
    )  # fmt: skip
    return out[..., 0] * 4


def _kept_of_eight(run: Callable[[str], torch.Tensor]) -> Draw:
    return Draw(run, 4.0, 2.0, 3 * 2.0**2 - 1.0, 0, 8, whole=True)


def _slopes(device: str) -> torch.Tensor:
    return nnf.rrelu(-_ones(device), 0.1, 0.3, training=True)


DRAWS: dict[str, Draw] = {
    "bernoulli": _two_valued(lambda d: (_ones(d) * 0.3).bernoulli(), 0.3, 1.0, 0.0),
    "cauchy": _uniform(_cauchy_rank, 0.0, 1.0),
    "exponential": Draw(lambda d: _empty(d).exponential_(2.0), 0.5, 0.25, 9 / 16, 0.0),
    "geometric": _geometric(0.3),
    "log_normal": _normal(_log_normal, 0.5, 0.25),
    "multinomial": _two_valued(
        lambda d: torch.tensor([0.25, 0.75], device=d).multinomial(N, replacement=True),
        0.25, 0.0, 1.0,
    ),
    "normal": _normal(lambda d: torch.normal(_ones(d) * 2, _ones(d) * 3), 2.0, 3.0),
    "normal.in_place": _normal(lambda d: _empty(d).normal_(1.0, 0.5), 1.0, 0.5),
    "normal.number_mean": _normal(lambda d: torch.normal(-1.0, _ones(d) * 2), -1.0, 2.0),
    "rand_like": _uniform(lambda d: torch.rand_like(_empty(d)), 0.0, 1.0),
    "randint": _integers(lambda d: torch.randint(-3, 9, (N,), device=d), -3, 9),
    "randint_like": _integers(lambda d: torch.randint_like(_empty(d), 5), 0, 5),
    "randn": _normal(lambda d: torch.randn(N, device=d), 0.0, 1.0),
    "randn_like": _normal(lambda d: torch.randn_like(_empty(d)), 0.0, 1.0),
    "uniform": _uniform(lambda d: _empty(d).uniform_(-2.0, 3.0), -2.0, 3.0),
    "nn.functional.alpha_dropout": _alpha(
        lambda d: nnf.alpha_dropout(_ones(d), 0.4, training=True), 0.4
    ),
    "nn.functional.dropout": _dropped(lambda d: nnf.dropout(_ones(d), 0.2), 0.2),
    "nn.functional.dropout2d": _dropped(
        lambda d: nnf.dropout2d(_ones(d, N // 4, 4, 2, 1), 0.2)[..., 0, 0], 0.2
    ),
    "nn.functional.dropout3d": _dropped(
        lambda d: nnf.dropout3d(_ones(d, N // 4, 4, 2, 1, 1), 0.2)[..., 0, 0, 0], 0.2
    ),
    "nn.functional.feature_alpha_dropout.with_train": _alpha(
        lambda d: nnf.feature_alpha_dropout(_ones(d, N // 4, 4, 2), 0.4, training=True)[..., 0],
        0.4,
    ),
    "nn.functional.rrelu": _uniform(_slopes, -0.3, -0.1),
    "nn.functional.multi_head_attention_forward": _kept_of_eight(_heads),
    "nn.functional.scaled_dot_product_attention": _kept_of_eight(_attention),
}  # fmt: skip
"""For each random op that draws independent numbers, a sample and its distribution."""


def wrong_facts(draw: Draw, sample: torch.Tensor) -> list[str]:
    """Return what of a sample does not fit its distribution."""
    values = sample.detach().cpu().double().flatten()
    count = values.numel()
    found = []
    if count < N // 2:
        found.append(f"only {count} elements")
    low, high = values.min().item(), values.max().item()
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    if low < draw.low - slack or high > draw.high + slack:
        found.append(f"from {low} to {high}, not within {draw.low} to {draw.high}")
    if draw.whole and bool((values != values.round()).any()):
        found.append("not all whole")
    mean = values.mean().item()
    error = math.sqrt(draw.variance / count)
    if abs(mean - draw.mean) > SIGMAS * error:
        found.append(f"mean {mean}, not {draw.mean} ± {error}")
    variance = ((values - draw.mean) ** 2).mean().item()
    error = math.sqrt((draw.fourth - draw.variance**2) / count)
    if abs(variance - draw.variance) > SIGMAS * error + 1e-9:
        found.append(f"variance {variance}, not {draw.variance} ± {error}")
    return found


def fractional_pools(device: str, dims: int) -> torch.Tensor:
    """Return [windows, planes]: where fractional pooling of counted numbers put its windows."""
    planes = 4000
    line = torch.arange(9.0, device=device).expand(planes, *[1] * (dims - 1), 9)
    image = line.expand(planes, *[9] * dims)[None]
    pool = nnf.fractional_max_pool2d if dims == 2 else nnf.fractional_max_pool3d
    found = pool(image, kernel_size=2, output_size=(4,) * dims)[0]
    return found.cpu().double().reshape(planes, -1, 4)[:, 0].T


def low_rank_error(device: str, *, centred: bool) -> float:
    """Return how far the random factorisation of a matrix of rank 3 is from the matrix."""
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(n, 3, generator=generator) for n in (20, 15))
    matrix = left @ right.T
    if centred:
        matrix -= matrix.mean(0)
        u, s, v = torch.pca_lowrank(matrix.to(device), q=3, center=False)
    else:
        u, s, v = torch.svd_lowrank(matrix.to(device), q=3)
    return float(((u * s) @ v.mT).cpu().sub(matrix).abs().max())
