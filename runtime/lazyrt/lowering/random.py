"""Rules of the random ops.

All draw from a counter-based generator whose state is the op's key, so a value depends on
(seed, offset) and on the shape, and on nothing that ran before.
"""

# A rule's signature is its op's schema; numbers are those of its formula.
# ruff: noqa: ARG001, FBT001, FBT002, PLR2004

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from lazyrt.lowering.avals import Unsupported
from lazyrt.lowering.dtypes import (
    Array,
    cast,
    is_integral,
    opmath_dtype,
    real_dtype,
    to_torch_dtype,
)
from lazyrt.lowering.registry import lowers
from lazyrt.lowering.shaping import axis, expand, scalar_like, zeros_like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyrt.lowering.context import OpContext

_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


def bits(ctx: OpContext, shape: Sequence[int], width: int = 32) -> Array:
    """Return random words of 32 or 64 bits."""
    if ctx.key is None:
        raise Unsupported("it draws random numbers and was given no state")
    shift = jnp.asarray(np.array([0, 32], np.uint64))
    state = lax.shift_left(ctx.key, shift)
    dtype = np.dtype(np.uint32 if width == 32 else np.uint64)
    generate: Any = lax.rng_bit_generator  # untyped in jax
    algorithm = lax.RandomAlgorithm.RNG_THREE_FRY
    words: Array = generate(state, tuple(shape), dtype, algorithm=algorithm)[1]
    return words


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


def _integers(ctx: OpContext, low: Any, high: Any) -> Array:
    """Return integers in [low, high)."""
    words = bits(ctx, ctx.out.shape, 64)
    span = np.uint64((int(high) - int(low)) & 0xFFFFFFFFFFFFFFFF)
    if span:
        words = lax.rem(words, lax.full_like(words, span))
    numbers = lax.bitcast_convert_type(words, np.int64)
    return lax.add(numbers, lax.full_like(numbers, int(low)))


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
    return _normal(ctx, mean, std)


@lowers("aten.normal.Tensor_Tensor", "aten.normal.Tensor_float", "aten.normal.float_Tensor",
        "aten.normal.float_float")  # fmt: skip
def normal_of(ctx: OpContext, mean: Any, std: Any = 1.0, *_: Any) -> Array:
    return _normal(ctx, mean, std)


def _normal(ctx: OpContext, mean: Any, std: Any) -> Array:
    numbers = cast(normal(ctx, ctx.out.shape, ctx.out.dtype), ctx.compute)
    centre, width = (expand(x, numbers.shape) for x in ctx.cast(mean, std))
    return lax.add(lax.mul(numbers, width), centre)


@lowers("aten.randint.default", "aten.randint_like.default", "aten.randint.generator")
def randint(ctx: OpContext, first: Any, second: Any, *_: Any) -> Array:
    like = "like" in ctx.name
    return _integers(ctx, 0, second if like else first)


@lowers("aten.randint.low", "aten.randint.low_generator")
def randint_low(ctx: OpContext, low: int, high: int, *_: Any) -> Array:
    return _integers(ctx, low, high)


@lowers("aten.randint_like.low_dtype")
def randint_like_low(ctx: OpContext, x: Array, low: int, high: int, *_: Any) -> Array:
    return _integers(ctx, low, high)


@lowers("aten.random.from")
def random_from(ctx: OpContext, x: Array, low: int, high: int | None, *_: Any) -> Array:
    return _integers(ctx, low, _top(ctx) + 1 if high is None else high)


@lowers("aten.random.to")
def random_to(ctx: OpContext, x: Array, high: int, *_: Any) -> Array:
    return _integers(ctx, 0, high)


@lowers("aten.random.default")
def random_default(ctx: OpContext, x: Array, *_: Any) -> Array:
    return _integers(ctx, 0, _top(ctx) + 1)


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


def _open_uniform(ctx: OpContext) -> Array:
    """Return numbers in (0, 1] of the dtype to compute in."""
    numbers = uniform(ctx, ctx.out.shape, ctx.compute)
    return lax.sub(scalar_like(numbers, 1.0), numbers)


@lowers("aten.exponential.default")
def exponential(ctx: OpContext, x: Array, rate: Any = 1.0, *_: Any) -> Array:
    numbers = lax.neg(lax.log(_open_uniform(ctx)))
    return lax.div(numbers, expand(cast(rate, ctx.compute), numbers.shape))


@lowers("aten.geometric.default")
def geometric(ctx: OpContext, x: Array, p: float, *_: Any) -> Array:
    numbers = (
        _open_uniform(ctx)
        if not is_integral(ctx.out.dtype)
        else lax.sub(
            jnp.ones(ctx.out.shape, np.float32),
            uniform(ctx, ctx.out.shape, torch.float32),
        )
    )
    return lax.max(lax.ceil(lax.log(numbers) / math.log1p(-p)), scalar_like(numbers, 1))


@lowers("aten.cauchy.default")
def cauchy(
    ctx: OpContext, x: Array, median: float = 0.0, sigma: float = 1.0, *_: Any
) -> Array:
    numbers = uniform(ctx, ctx.out.shape, ctx.compute)
    return median + sigma * lax.tan(math.pi * (numbers - 0.5))


@lowers("aten.log_normal.default")
def log_normal(
    ctx: OpContext, x: Array, mean: float = 1.0, std: float = 2.0, *_: Any
) -> Array:
    return lax.exp(_normal(ctx, mean, std))


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


@lowers("aten.dropout.default")
def dropout(ctx: OpContext, x: Array, p: float, train: bool) -> Array:
    return native_dropout(ctx, x, p, train)[0]


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
