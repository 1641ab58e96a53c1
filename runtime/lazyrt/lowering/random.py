"""Rules of the random ops.

All draw from a counter-based generator whose state is the op's key, so a value depends on
(seed, offset) and on the shape, and on nothing that ran before.
"""

# A rule's signature is its op's schema; numbers are those of its formula.
# ruff: noqa: ARG001, FBT001, FBT002, PLR2004

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from lazyrt.lowering.arrays import (
    Array,
    Unsupported,
    axis,
    broadcast,
    cast,
    expand,
    is_integral,
    opmath_dtype,
    real_dtype,
    scalar_like,
    to_torch_dtype,
    zeros_like,
)
from lazyrt.lowering.registry import OpContext, lowers

if TYPE_CHECKING:
    from collections.abc import Sequence


_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


def bits(ctx: OpContext, shape: Sequence[int], width: int = 32) -> Array:
    """Return random words of 32 or 64 bits."""
    return _next_bits(_state(ctx), shape, np.uint32 if width == 32 else np.uint64)[1]


def _state(ctx: OpContext) -> Array:
    if ctx.key is None:
        raise Unsupported("it draws random numbers and was given no state")
    return lax.shift_left(ctx.key, jnp.asarray(np.array([0, 32], np.uint64)))


def _next_bits(state: Array, shape: Sequence[int], kind: Any) -> tuple[Array, Array]:
    """Return the next state, and random words."""
    generate: Any = lax.rng_bit_generator  # untyped in jax
    algorithm = lax.RandomAlgorithm.RNG_THREE_FRY
    found: tuple[Array, Array] = generate(
        state, tuple(shape), np.dtype(kind), algorithm=algorithm
    )
    return found


def uniform(ctx: OpContext, shape: Sequence[int], dtype: torch.dtype) -> Array:
    """Return numbers in [0, 1), multiples of the dtype's resolution."""
    digits = _DIGITS[dtype]
    width = 64 if digits > 32 else 32
    words = bits(ctx, shape, width)
    words = lax.shift_right_logical(words, lax.full_like(words, width - digits))
    numbers = cast(words, torch.float64 if width == 64 else torch.float32)
    return cast(lax.mul(numbers, lax.full_like(numbers, 2.0**-digits)), dtype)


def normal(ctx: OpContext, shape: Sequence[int], dtype: torch.dtype) -> Array:
    """Return numbers of the standard normal distribution."""
    if dtype.is_complex:
        part = real_dtype(dtype)
        parts = normal(ctx, (2, *shape), part) * math.sqrt(0.5)
        return lax.complex(parts[0], parts[1])
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    digits = _DIGITS[wide]
    numbers = uniform(ctx, shape, wide)
    # Shift by half a step: the open interval (-1, 1), symmetric about zero.
    numbers = lax.add(lax.mul(numbers, scalar_like(numbers, 2.0)),
                      scalar_like(numbers, 2.0**-digits - 1.0))  # fmt: skip
    return lax.mul(lax.erf_inv(numbers), scalar_like(numbers, math.sqrt(2)))


@lowers("aten.rand.default", "aten.rand_like.default", "aten.rand.generator",
        "aten.rand_like.generator")  # fmt: skip
def rand(ctx: OpContext, *_: Any) -> Array:
    if ctx.out.dtype.is_complex:
        parts = uniform(ctx, (2, *ctx.out.shape), real_dtype(ctx.out.dtype))
        return lax.complex(parts[0], parts[1])
    return uniform(ctx, ctx.out.shape, ctx.out.dtype)


@lowers("aten.uniform.default")
def uniform_between(
    ctx: OpContext, x: Array, low: Any = 0.0, high: Any = 1.0, *_: Any
) -> Array:
    part = real_dtype(ctx.out.dtype)
    shape = (2, *ctx.out.shape) if ctx.out.dtype.is_complex else ctx.out.shape
    compute = opmath_dtype(part)
    numbers = cast(uniform(ctx, shape, part), compute)
    bottom, top = cast(low, compute), cast(high, compute)
    width = expand(lax.sub(top, bottom), shape)
    numbers = lax.add(lax.mul(numbers, width), expand(bottom, shape))
    return lax.complex(numbers[0], numbers[1]) if len(shape) > x.ndim else numbers


@lowers("aten.randn.default", "aten.randn_like.default", "aten.randn.generator",
        "aten.randn_like.generator")  # fmt: skip
def randn(ctx: OpContext, *_: Any) -> Array:
    return normal(ctx, ctx.out.shape, ctx.out.dtype)


@lowers("aten.normal_functional.default")
def normal_functional(
    ctx: OpContext, x: Array, mean: Any = 0.0, std: Any = 1.0, *_: Any
) -> Array:
    return normal_of(ctx, mean, std)


@lowers("aten.normal.Tensor_Tensor", "aten.normal.Tensor_float", "aten.normal.float_Tensor",
        "aten.normal.float_float")  # fmt: skip
def normal_of(ctx: OpContext, mean: Any, std: Any = 1.0, *_: Any) -> Array:
    numbers = cast(normal(ctx, ctx.out.shape, ctx.out.dtype), ctx.compute)
    centre, width = (expand(x, numbers.shape) for x in ctx.cast(mean, std))
    return lax.add(lax.mul(numbers, width), centre)


@lowers("aten.randint.default", "aten.randint.generator", "aten.randint.low",
        "aten.randint.low_generator", "aten.randint_like.default", "aten.randint_like.low_dtype",
        "aten.random.default", "aten.random.from", "aten.random.to")  # fmt: skip
def integers(ctx: OpContext, *args: Any) -> Array:
    """Return integers from the one bound on, below the other."""
    given = ctx.named(args)
    low = int(given.get("low", given.get("from", 0)))
    high = given.get("high", given.get("to"))
    high = _top(ctx) + 1 if high is None else int(high)
    words = bits(ctx, ctx.out.shape, 64)
    span = np.uint64((high - low) & 0xFFFFFFFFFFFFFFFF)
    if span:
        words = lax.rem(words, lax.full_like(words, span))
    numbers = lax.bitcast_convert_type(words, np.int64)
    return lax.add(numbers, lax.full_like(numbers, low))


def _top(ctx: OpContext) -> int:
    """Return the largest integer that `random_` draws."""
    dtype = ctx.out.dtype
    if dtype is torch.bool:
        return 1
    return torch.iinfo(dtype).max if is_integral(dtype) else 2 ** _DIGITS[dtype]


@lowers("aten.randperm.default", "aten.randperm.generator")
def randperm(ctx: OpContext, n: int, *_: Any) -> Array:
    words = bits(ctx, (n,), 64)
    order: Array = lax.sort((words, lax.iota(np.int64, n)), num_keys=1)[1]
    return order


@lowers("aten.exponential.default")
def exponential(ctx: OpContext, x: Array, rate: Any = 1.0, *_: Any) -> Array:
    numbers = -lax.log(1 - uniform(ctx, ctx.out.shape, ctx.compute))
    return lax.div(numbers, expand(cast(rate, ctx.compute), numbers.shape))


@lowers("aten.geometric.default")
def geometric(ctx: OpContext, x: Array, p: float, *_: Any) -> Array:
    dtype = torch.float32 if is_integral(ctx.out.dtype) else ctx.compute
    numbers = 1 - uniform(ctx, ctx.out.shape, dtype)
    return lax.max(lax.ceil(lax.log(numbers) / math.log1p(-p)), scalar_like(numbers, 1))


def _chances(ctx: OpContext, p: Any) -> Array:
    """Return where independent events of probability `p` happened."""
    dtype = torch.float64 if p.dtype == np.float64 else torch.float32
    numbers = uniform(ctx, ctx.out.shape, dtype)
    return lax.lt(numbers, expand(cast(p, dtype), numbers.shape))


@lowers("aten.bernoulli.default")
def bernoulli(ctx: OpContext, p: Array, *_: Any) -> Array:
    return _chances(ctx, p)


@lowers("aten.bernoulli.p", "aten.bernoulli.Tensor")
def bernoulli_p(ctx: OpContext, x: Array, p: Any = 0.5, *_: Any) -> Array:
    return _chances(ctx, p if hasattr(p, "dtype") else cast(p, torch.float32))


@lowers("aten.native_dropout.default")
def native_dropout(
    ctx: OpContext, x: Array, p: float, train: bool | None = None
) -> tuple[Array, Array]:
    (x,) = ctx.cast(x)
    if train is False or p == 0:
        return x, jnp.ones(x.shape, bool)
    if p == 1:
        return zeros_like(x), jnp.zeros(x.shape, bool)
    kept = lax.lt(
        uniform(ctx, x.shape, torch.float32), lax.full(x.shape, np.float32(1 - p))
    )
    scaled = lax.mul(x, scalar_like(x, 1 / (1 - p)))
    return lax.select(kept, scaled, zeros_like(x)), kept


@lowers("aten.native_dropout_backward.default")
def native_dropout_backward(
    ctx: OpContext, grad: Array, mask: Array, scale: float
) -> Array:
    (grad,) = ctx.cast(grad)
    return lax.select(mask, lax.mul(grad, scalar_like(grad, scale)), zeros_like(grad))


@lowers("aten.multinomial.default")
def multinomial(
    ctx: OpContext, weights: Array, num_samples: int, replacement: bool = False, *_: Any
) -> Array:
    weights = cast(
        weights, torch.float64 if weights.dtype == np.float64 else torch.float32
    )
    logits = lax.log(weights)
    *batch, categories = weights.shape
    dim = axis(-1, weights.ndim)
    if not replacement:
        noise = _gumbel(ctx, weights.shape, weights.dtype)
        order: Array = lax.top_k(logits + noise, num_samples)[1]
        return order
    noise = _gumbel(ctx, (num_samples, *batch, categories), weights.dtype)
    picks = lax.argmax(noise + logits, dim + 1, np.int64)
    return jnp.moveaxis(picks, 0, -1)


def _gumbel(ctx: OpContext, shape: Sequence[int], dtype: Any) -> Array:
    is_double = dtype == np.float64
    numbers = uniform(ctx, shape, torch.float64 if is_double else torch.float32)
    tiny = 2.0**-54 if is_double else 2.0**-25
    return -lax.log(-lax.log(numbers + scalar_like(numbers, tiny)))


@lowers("aten.rrelu_with_noise_functional.default")
def rrelu_with_noise(
    ctx: OpContext,
    x: Array,
    noise: Array,
    lower: Any = 1 / 8,
    upper: Any = 1 / 3,
    training: bool = False,
    *_: Any,
) -> tuple[Array, Array]:
    (x,) = ctx.cast(x)
    if not training:
        slope = scalar_like(x, (lower + upper) / 2)
        return lax.select(x > 0, x, lax.mul(x, slope)), noise
    numbers = uniform(ctx, x.shape, to_torch_dtype(x.dtype))
    drawn = lax.add(
        lax.mul(numbers, scalar_like(x, upper - lower)), scalar_like(x, lower)
    )
    slope = lax.select(x > 0, scalar_like(x, 1), drawn)
    return lax.mul(x, slope), slope


# Rules of random ops that draw until a number is accepted, and of their derivatives.
#
# Gamma numbers are drawn here, all elements together in one loop, which ends when each has been served,
# in float64, by Marsaglia and Tsang's bounds: on a CPU jax draws one after another. The other
# distributions are jax's.

# An element that no attempt serves, as for a parameter without a meaning, must not run for ever.
_MOST_ROUNDS = 10_000
_TERMS = 400  # of a continued fraction: enough for parameters up to some 10,000
_TINY = 1e-300


def _uniforms(state: Array, shape: Sequence[int]) -> tuple[Array, Array]:
    """Return the next state, and numbers within (0, 1)."""
    state, words = _next_bits(state, shape, np.uint64)
    whole = (words >> np.uint64(11)).astype(np.float64)
    return state, (whole + 0.5) * 2.0**-53


def _log_gamma(state: Array, shape: Sequence[int], alpha: Array) -> tuple[Array, Array]:
    """Return the next state, and logarithms of numbers of gamma distributions of rate 1."""
    d = jnp.where(alpha < 1, alpha + 1, alpha) - 1 / 3
    c = 1 / jnp.sqrt(9 * d)

    def go_on(carry: Any) -> Any:
        rounds, _, _, done = carry
        return (rounds < _MOST_ROUNDS) & ~done.all()

    def attempt(carry: Any) -> Any:
        rounds, state, found, done = carry
        state, (first, second) = _uniforms(state, (2, *shape))
        x = math.sqrt(2) * lax.erf_inv(2 * first - 1)
        v = (1 + c * x) ** 3
        log_v = jnp.log(jnp.maximum(v, _TINY))
        accepted = (v > 0) & (jnp.log(second) < x * x / 2 + d - d * v + d * log_v)
        found = jnp.where(done, found, jnp.log(d) + log_v)
        return rounds + 1, state, found, done | accepted | jnp.isnan(d)

    start = (0, state, jnp.zeros(shape, np.float64), jnp.zeros(shape, bool))
    _, state, found, _ = lax.while_loop(go_on, attempt, start)
    state, power = _uniforms(state, shape)  # one of a power below 1 is scaled down
    found = found + jnp.where(alpha < 1, jnp.log(power) / alpha, 0.0)
    return state, jnp.where(alpha > 0, found, jnp.where(alpha == 0, -jnp.inf, jnp.nan))


@lowers("aten._standard_gamma.default")
def standard_gamma(ctx: OpContext, alpha: Array, *_: Any) -> Array:
    alpha = alpha.astype(np.float64)
    drawn = jnp.exp(_log_gamma(_state(ctx), alpha.shape, alpha)[1])
    smallest = float(np.finfo(np.float32).tiny)  # what a logarithm can be taken of
    return jnp.where(alpha > 0, jnp.maximum(drawn, smallest), drawn)


@lowers("aten._sample_dirichlet.default")
def sample_dirichlet(ctx: OpContext, alpha: Array, *_: Any) -> Array:
    alpha = alpha.astype(np.float64)
    parts = _log_gamma(_state(ctx), alpha.shape, alpha)[1]
    shares: Array = jax.nn.softmax(parts, axis=-1) if parts.ndim else parts * 0 + 1
    return jnp.maximum(shares, float(np.finfo(np.float32).tiny))


def _key(ctx: OpContext) -> Array:
    """Return the op's state as a key of jax's own distributions."""
    seed, offset = lax.bitcast_convert_type(_state(ctx), np.uint32)
    found: Array = jax.random.wrap_key_data(seed, impl="threefry2x32")
    return jax.random.fold_in(found, offset[1])


@lowers("aten.poisson.default")
def poisson(ctx: OpContext, rate: Array, *_: Any) -> Array:
    rate = rate.astype(np.float64)
    is_rate = (rate >= 0) & (rate < jnp.inf)
    drawn = jax.random.poisson(_key(ctx), jnp.where(is_rate, rate, 0.0))
    return jnp.where(is_rate, drawn.astype(np.float64), jnp.nan)


@lowers("aten.binomial.default")
def binomial(ctx: OpContext, count: Array, prob: Array, *_: Any) -> Array:
    n, p = broadcast(count.astype(np.float64), prob.astype(np.float64))
    return jax.random.binomial(_key(ctx), n, p)


# ------------------------------------------------------------------ derivatives


@lowers("aten._standard_gamma_grad.default")
def standard_gamma_grad(ctx: OpContext, alpha: Array, drawn: Array) -> Array:
    alpha, drawn = broadcast(alpha.astype(np.float64), drawn.astype(np.float64))
    found: Array = lax.random_gamma_grad(alpha, drawn)
    return found


@lowers("aten._dirichlet_grad.default")
def dirichlet_grad(ctx: OpContext, x: Array, alpha: Array, total: Array) -> Array:
    """Return how a share moves with its parameter when its rank stays as it is.

    That is -(dI/da) / ((1 - x) dI/dx) for I, the share's distribution function, the regularised
    incomplete beta function of a = alpha and b = total - alpha.
    """
    x, a, total = broadcast(*(each.astype(np.float64) for each in (x, alpha, total)))
    x = jnp.clip(x, _TINY, 1 - 2.0**-53)
    b = total - a
    grows = jnp.log(x) - lax.digamma(a) + lax.digamma(total)
    lower, d_lower = jax.jvp(lambda a: _fraction(a, b, x), (a,), (jnp.ones_like(a),))
    upper, d_upper = jax.jvp(
        lambda a: _fraction(b, a, 1 - x), (a,), (jnp.ones_like(a),)
    )
    below = -x / a * (lower * (grows - 1 / a) + d_lower)
    above = x / b * (upper * grows + d_upper)
    return cast(jnp.where(x < (a + 1) / (total + 2), below, above), ctx.compute)


def _fraction(a: Array, b: Array, x: Array) -> Array:
    """Return the continued fraction of the incomplete beta function, from its end."""

    def term(k: Array) -> Any:
        m = k // 2
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        return jnp.where(k % 2 == 0, even, odd)

    def step(number: Array, found: Array) -> Any:
        return 1 + term((_TERMS - number).astype(np.float64)) / found

    found: Array = 1 / lax.fori_loop(0, _TERMS, step, jnp.ones_like(x))
    return found
