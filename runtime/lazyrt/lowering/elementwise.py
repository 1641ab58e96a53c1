"""Rules of the ops that work element by element."""

# A rule's signature is its op's schema; numbers are those of its formula.
# ruff: noqa: ARG001, PLR2004

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.scipy import special

from lazyrt.lowering.arrays import (
    Array,
    broadcast,
    cast,
    expand,
    is_integral,
    isnan,
    opmath_dtype,
    scalar_like,
    zeros_like,
)
from lazyrt.lowering.registry import OpContext, lowers, overloads

if TYPE_CHECKING:
    from collections.abc import Callable


_FORMS = ("default", "Tensor", "Scalar", "Tensor_Scalar", "self_Scalar", "other_Scalar",
          "Scalar_Tensor", "Tensor_Tensor", "x_scalar", "n_scalar", "scalar")  # fmt: skip


def _is_constant(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex))


# One argument; computed in the result's dtype, which is a float for integers.


def _unary(name: str, function: Callable[[Array], Array]) -> None:
    @lowers(*overloads(name, "default"))
    def rule(ctx: OpContext, x: Array) -> Array:
        return function(cast(x, ctx.compute))


def _sgn(x: Array) -> Array:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return lax.sign(x) if x.dtype != bool else x
    return lax.select(lax.ne(x, x), zeros_like(x), lax.sign(x))


def _digamma(x: Array) -> Array:
    at_zero = lax.select(
        lax.eq(x, zeros_like(x)), lax.neg(lax.div(scalar_like(x, 1), x)), lax.digamma(x)
    )
    negative_integer = (x < 0) & (x == lax.floor(x))
    return jnp.where(negative_integer, scalar_like(x, math.nan), at_zero)


def _erfcx(x: Array) -> Array:
    """Return `exp(x**2) * erfc(x)`, whose factors overflow and vanish from some 9 or 26 on.

    There `2 x / pi` times the integral of `exp(-t**2) / (t**2 + x**2)` from 0 on is taken by
    the trapezoidal rule. Its error, the residue at `t = ix`, is `exp(x**2 - 2 pi x / step)`,
    below 1e-16 from 3 on; so is the first term that is left out.
    """
    step, last, from_ = 0.4, 16, 3
    near = lax.exp(lax.square(x)) * lax.erfc(x)
    total = lax.reciprocal(2 * x)
    for k in range(1, last + 1):
        t = k * step
        total += math.exp(-t * t) * lax.reciprocal(x + t * t / x)
    return jnp.where(x > from_, 2 * step / math.pi * total, near)


_UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": lax.neg, "exp": lax.exp, "exp2": jnp.exp2, "expm1": lax.expm1, "log": lax.log,
    "log1p": lax.log1p, "log2": jnp.log2, "log10": jnp.log10, "sqrt": lax.sqrt,
    "rsqrt": lax.rsqrt, "sin": lax.sin, "cos": lax.cos, "tan": lax.tan, "asin": lax.asin,
    "acos": lax.acos, "atan": lax.atan, "sinh": lax.sinh, "cosh": lax.cosh, "tanh": lax.tanh,
    "asinh": lax.asinh, "acosh": lax.acosh, "atanh": lax.atanh, "sigmoid": lax.logistic,
    "erf": lax.erf, "erfc": lax.erfc, "erfinv": lax.erf_inv, "lgamma": lax.lgamma,
    "digamma": _digamma, "i0": special.i0, "floor": jnp.floor,
    "ceil": jnp.ceil, "trunc": jnp.trunc, "round": jnp.round, "sgn": _sgn, "sign": _sgn,
    "reciprocal": lambda x: lax.div(scalar_like(x, 1), x), "special_i0e": special.i0e,
    "special_i1": special.i1, "special_modified_bessel_i0": special.i0,
    "special_modified_bessel_i1": special.i1, "special_i1e": special.i1e, "special_erfcx":
    _erfcx, "special_ndtri": special.ndtri,
    "_conj": lambda x: lax.conj(x) if jnp.iscomplexobj(x) else x,
    "_conj_physical": lambda x: lax.conj(x) if jnp.iscomplexobj(x) else x, "_neg_view": lax.neg,
}  # fmt: skip
for _name, _function in _UNARY.items():
    _unary(_name, _function)


@lowers("aten.angle.default")
def angle(ctx: OpContext, x: Array) -> Array:
    if jnp.iscomplexobj(x):
        return lax.atan2(lax.imag(x), lax.real(x))
    (x,) = ctx.cast(x)
    result = jnp.where(x < 0, scalar_like(x, math.pi), zeros_like(x))
    return jnp.where(isnan(x), x, result)


@lowers("aten.round.decimals")
def round_decimals(ctx: OpContext, x: Array, decimals: int) -> Array:
    (x,) = ctx.cast(x)
    scale = scalar_like(x, 10.0 ** abs(decimals))
    if decimals >= 0:
        return lax.div(jnp.round(lax.mul(x, scale)), scale)
    return lax.mul(jnp.round(lax.div(x, scale)), scale)


@lowers("aten.polygamma.default")
def polygamma(ctx: OpContext, n: int, x: Array) -> Array:
    (x,) = ctx.cast(x)
    if n == 0:
        return _digamma(x)
    if n == 1:
        return _trigamma(x)
    factor = math.factorial(n) * (1 if n % 2 else -1)
    return lax.mul(scalar_like(x, factor), _zeta(scalar_like(x, n + 1), x))


def _zeta(order: Array, x: Array) -> Array:
    """Return Hurwitz' zeta, for negative x by adding up to the first positive term."""

    def advance(state: Any) -> Any:
        total, moved = state
        is_left = moved <= 0
        more = total + lax.pow(moved, -order)
        return jnp.where(is_left, more, total), jnp.where(is_left, moved + 1, moved)

    def is_left(state: Any) -> Array:
        moved = state[1]
        return jnp.any(
            (moved <= 0) & (moved > scalar_like(x, -1e4))
        )  # beyond, terms do not matter

    total, moved = lax.while_loop(is_left, advance, (zeros_like(x), x))
    found = total + lax.zeta(order, moved)
    found = jnp.where(order == 1, math.inf, jnp.where(order < 1, math.nan, found))
    return jnp.where((x == 0) & (order > 1), math.inf, found)


def _trigamma(x: Array) -> Array:
    """Return the derivative of digamma, by reflection below one half."""
    is_low = x < 0.5
    value = lax.zeta(scalar_like(x, 2), jnp.where(is_low, 1 - x, x))
    sine = lax.sin(math.pi * x)
    return jnp.where(is_low, math.pi**2 / (sine * sine) - value, value)


# One argument in its own dtype.


def _plain(name: str, function: Callable[[Array], Array]) -> None:
    @lowers(*overloads(name, "default"))
    def rule(ctx: OpContext, x: Array) -> Array:
        return function(x)


_PLAIN: dict[str, Callable[[Array], Array]] = {
    "isnan": isnan, "isinf": jnp.isinf,
    "signbit": lambda x: jnp.signbit(x) if jnp.issubdtype(x.dtype, jnp.floating)
    else (x < 0 if x.dtype != bool else jnp.zeros(x.shape, bool)),
    "logical_not": lambda x: lax.eq(x, zeros_like(x)), "bitwise_not": lax.bitwise_not,
    "abs": jnp.abs,
}  # fmt: skip
for _name, _function in _PLAIN.items():
    _plain(_name, _function)


# Two arguments in the promoted dtype.


def _binary_rule(
    function: Callable[[Array, Array], Array],
    dtype_of: Callable[[OpContext], torch.dtype],
) -> Callable[..., Array]:
    def rule(ctx: OpContext, x: Any, y: Any) -> Array:
        dtype = dtype_of(ctx)
        return function(*broadcast(cast(x, dtype), cast(y, dtype)))

    return rule


def _binary(
    name: str,
    function: Callable[[Array, Array], Array],
    dtype_of: Callable[[OpContext], torch.dtype],
) -> None:
    lowers(*overloads(name, *_FORMS))(_binary_rule(function, dtype_of))


def _shift_left(x: Array, y: Array) -> Array:
    inside = (y >= 0) & (y < x.dtype.itemsize * 8)
    return jnp.where(inside, lax.shift_left(x, y), zeros_like(x))


def _shift_right(x: Array, y: Array) -> Array:
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    last = scalar_like(x, x.dtype.itemsize * 8 - 1)
    inside = (y >= 0) & (y <= last)
    shift = lax.shift_right_arithmetic if signed else lax.shift_right_logical
    beyond = shift(x, last) if signed else zeros_like(x)
    return jnp.where(inside, shift(x, jnp.where(inside, y, last)), beyond)


def remainder_of(x: Array, y: Array) -> Array:
    """Return the remainder with the sign of the divisor, as Python's `%`."""
    if x.dtype == bool:
        return x
    rest = lax.rem(x, y)
    wrong = (rest != 0) & ((rest < 0) != (y < 0))
    return lax.select(wrong, lax.add(rest, y), rest)


def _ldexp(x: Array, y: Array) -> Array:
    return lax.mul(x, lax.exp2(y))


def _gcd(x: Array, y: Array) -> Array:
    """Return torch's result, also for the least integer, which has no absolute value."""

    def step(pair: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = pair
        return jnp.where(a == 0, a, lax.rem(b, a)), jnp.where(a == 0, b, a)

    pair = jnp.abs(x), jnp.abs(y)
    return lax.while_loop(lambda pair: jnp.any(pair[0] != 0), step, pair)[1]


def _lcm(x: Array, y: Array) -> Array:
    divisor = _gcd(x, y)
    multiple = lax.mul(jnp.abs(x), lax.div(jnp.abs(y), divisor))
    return jnp.where(divisor == 0, divisor, multiple)


def _multiply(x: Array, y: Array) -> Array:
    return lax.bitwise_and(x, y) if x.dtype == bool else lax.mul(x, y)


_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "mul": _multiply, "maximum": lax.max, "minimum": lax.min, "fmax": jnp.fmax, "fmin": jnp.fmin,
    "atan2": lax.atan2, "copysign": jnp.copysign, "hypot": jnp.hypot, "fmod": lax.rem, "remainder":
    remainder_of, "logaddexp": jnp.logaddexp, "nextafter": lax.nextafter,
    "bitwise_and": lax.bitwise_and, "bitwise_or": lax.bitwise_or, "bitwise_xor": lax.bitwise_xor,
    "bitwise_left_shift": _shift_left, "bitwise_right_shift": _shift_right,
    "__lshift__": _shift_left, "__rshift__": _shift_right,
    "gcd": _gcd, "lcm": _lcm, "ldexp": _ldexp, "special_zeta": _zeta,
    "igamma": lax.igamma, "igammac": lax.igammac,
}  # fmt: skip
for _name, _pair in _BINARY.items():
    _binary(_name, _pair, lambda ctx: ctx.compute)

_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": lax.eq, "ne": lax.ne, "lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge,
}  # fmt: skip
for _name, _pair in _COMPARISONS.items():
    _binary(_name, _pair, lambda ctx: ctx.promoted(0, 1))

_LOGICAL: dict[str, Callable[[Array, Array], Array]] = {
    "logical_and": lax.bitwise_and, "logical_or": lax.bitwise_or, "logical_xor": lax.bitwise_xor,
}  # fmt: skip
for _name, _pair in _LOGICAL.items():
    _binary(_name, _pair, lambda _ctx: torch.bool)


def _scaled(ctx: OpContext, x: Array, alpha: Any) -> Array:
    """Return alpha * x, without a multiplication where alpha is one."""
    if _is_constant(alpha) and alpha == 1:
        return x
    return lax.mul(x, expand(cast(alpha, ctx.compute), x.shape))


@lowers("aten.add.Tensor", "aten.add.Scalar")
def add(ctx: OpContext, x: Any, y: Any, alpha: Any = 1) -> Array:
    x, y = ctx.cast(x, y)
    x, y = broadcast(x, _scaled(ctx, y, alpha))
    return lax.bitwise_or(x, y) if x.dtype == bool else lax.add(x, y)


@lowers("aten.sub.Tensor", "aten.sub.Scalar")
def sub(ctx: OpContext, x: Any, y: Any, alpha: Any = 1) -> Array:
    x, y = ctx.cast(x, y)
    return lax.sub(*broadcast(x, _scaled(ctx, y, alpha)))


@lowers("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(ctx: OpContext, x: Any, y: Any, alpha: Any = 1) -> Array:
    return sub(ctx, y, x, alpha)


def _divide(x: Array, y: Array, rounding: str | None) -> Array:
    if rounding is None or jnp.issubdtype(x.dtype, jnp.inexact):
        return _divide_floats(x, y, rounding)
    quotient = lax.div(x, y)
    if rounding == "trunc":
        return quotient
    inexact = (lax.rem(x, y) != 0) & ((x < 0) != (y < 0))
    return lax.select(inexact, lax.sub(quotient, scalar_like(x, 1)), quotient)


def _divide_floats(x: Array, y: Array, rounding: str | None) -> Array:
    quotient = lax.div(x, y)
    if rounding is None:
        return quotient
    if rounding == "trunc":
        return jnp.trunc(quotient)
    rest = lax.rem(x, y)
    exact = lax.div(lax.sub(x, rest), y)
    exact = jnp.where((rest != 0) & ((y < 0) != (rest < 0)), exact - 1, exact)
    floor = lax.floor(exact)
    floor = jnp.where(exact - floor > 0.5, floor + 1, floor)
    floor = jnp.where(exact == 0, jnp.copysign(zeros_like(x), quotient), floor)
    return jnp.where(y == 0, quotient, floor)


@lowers(*overloads("div", "Tensor", "Scalar", "Tensor_mode", "Scalar_mode"))
def div(ctx: OpContext, x: Any, y: Any, rounding_mode: str | None = None) -> Array:
    x, y = broadcast(*ctx.cast(x, y))
    if rounding_mode == "trunc" and ctx.out.dtype is not ctx.compute:
        # torch rounds the quotient to the half type first.
        return jnp.trunc(cast(cast(lax.div(x, y), ctx.out.dtype), ctx.compute))
    return _divide(x, y, rounding_mode)


_SMALL_POWERS: dict[float, Callable[[Array], Array]] = {
    0: jnp.ones_like,
    0.5: lax.sqrt,
    1: lambda x: x,
    2: lambda x: lax.mul(x, x),
    3: lambda x: lax.mul(lax.mul(x, x), x),
    -0.5: lax.rsqrt,
    -1: lambda x: lax.div(scalar_like(x, 1), x),
    -2: lambda x: lax.div(scalar_like(x, 1), lax.mul(x, x)),
}


@lowers("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def power(ctx: OpContext, x: Any, exponent: Any) -> Array:
    dtype = ctx.compute
    if _is_constant(exponent) and not isinstance(exponent, complex):
        small = _SMALL_POWERS.get(exponent)
        if small is not None and (exponent >= 0 or not is_integral(dtype)):
            return small(cast(x, dtype))
        if float(exponent).is_integer() and abs(exponent) <= 64 and exponent >= 0:
            return lax.integer_pow(cast(x, dtype), int(exponent))
    x, y = broadcast(cast(x, dtype), cast(exponent, dtype))
    return _integer_power(x, y) if is_integral(dtype) else lax.pow(x, y)


def _integer_power(x: Array, y: Array) -> Array:
    """Raise integers to integers; a negative power is 0 but for ones, as in C++."""
    if x.dtype == bool:
        return lax.bitwise_or(x, lax.bitwise_not(y))
    one = scalar_like(y, 1)

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        found, square, left = state
        more = jnp.where(lax.bitwise_and(left, one) == one, found * square, found)
        return more, square * square, lax.shift_right_logical(left, one)

    # A power of 1 or -1 only asks whether the exponent is odd.
    start = jnp.ones_like(x), x, jnp.where(y < 0, lax.bitwise_and(y, one), y)
    found, *_ = lax.while_loop(lambda state: jnp.any(state[2] != 0), step, start)
    return jnp.where((y < 0) & (jnp.abs(x) != 1), zeros_like(x), found)


# Three arguments and more.


@lowers("aten.where.self")
def where(ctx: OpContext, condition: Array, x: Any, y: Any) -> Array:
    x, y = cast(x, ctx.out.dtype), cast(y, ctx.out.dtype)
    condition, x, y = broadcast(cast(condition, torch.bool), x, y)
    return lax.select(condition, x, y)


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(ctx: OpContext, x: Array, mask: Array, value: Any) -> Array:
    return where(ctx, mask, value, x)


@lowers("aten.clamp.default", "aten.clamp.Tensor", "aten.clamp_min.default",
        "aten.clamp_min.Tensor", "aten.clamp_max.default", "aten.clamp_max.Tensor")  # fmt: skip
def clamp(ctx: OpContext, *args: Any) -> Array:
    given = ctx.named(args)
    low, high = given.get("min"), given.get("max")
    (x,) = ctx.cast(args[0])
    if low is not None:
        x = lax.max(*broadcast(x, *ctx.cast(low)))
    if high is not None:
        x = lax.min(*broadcast(x, *ctx.cast(high)))
    return x


@lowers("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(ctx: OpContext, start: Array, end: Array, weight: Any) -> Array:
    start, end, weight = broadcast(*ctx.cast(start, end, weight))
    difference = lax.sub(end, start)
    one = scalar_like(weight, 1)
    low = lax.add(start, lax.mul(weight, difference))
    high = lax.sub(end, lax.mul(difference, lax.sub(one, weight)))
    is_low = lax.lt(lax.abs(weight), scalar_like(lax.abs(weight), 0.5))
    return lax.select(is_low, low, high)


@lowers("aten.addcmul.default")
def addcmul(ctx: OpContext, x: Array, a: Array, b: Array, value: Any = 1) -> Array:
    x, a, b = ctx.cast(x, a, b)
    product = lax.mul(*broadcast(a, b))
    return lax.add(*broadcast(x, _scaled(ctx, product, value)))


@lowers("aten.addcdiv.default")
def addcdiv(ctx: OpContext, x: Array, a: Array, b: Array, value: Any = 1) -> Array:
    x, a, b = ctx.cast(x, a, b)
    a, b = broadcast(a, b)
    return lax.add(*broadcast(x, lax.div(_scaled(ctx, a, value), b)))


# Copies and conversions.


@lowers("aten._to_copy.default", "aten.clone.default", "aten.alias.default",
        "aten.detach.default", "aten.lift_fresh.default", "aten.lift_fresh_copy.default",
        "aten.alias_copy.default", "aten.detach_copy.default", "aten.lift.default",
        "prims.convert_element_type.default")  # fmt: skip
def identity(ctx: OpContext, x: Array, *_: Any) -> Array:
    return x


@lowers("aten.copy.default", "aten.fill.Scalar", "aten.fill.Tensor")
def copy(ctx: OpContext, x: Array, source: Any, *_: Any) -> Array:
    return expand(cast(source, ctx.out.dtype), ctx.out.shape)


@lowers("aten.complex.default")
def make_complex(ctx: OpContext, real: Array, imag: Array) -> Array:
    return lax.complex(*broadcast(real, imag))


@lowers("aten.view_as_real.default", "aten.view_as_real_copy.default")
def view_as_real(ctx: OpContext, x: Array) -> Array:
    return jnp.stack([lax.real(x), lax.imag(x)], axis=-1)


@lowers("aten.view_as_complex.default", "aten.view_as_complex_copy.default")
def view_as_complex(ctx: OpContext, x: Array) -> Array:
    return lax.complex(x[..., 0], x[..., 1])


@lowers("aten.frexp.Tensor")
def frexp(ctx: OpContext, x: Array) -> tuple[Array, Array]:
    mantissa, exponent = jnp.frexp(cast(x, opmath_dtype(ctx.out.dtype)))
    return mantissa, lax.convert_element_type(exponent, np.int32)


# Rules of fake quantisation, which rounds floats to the values of an integer type.


@lowers("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def fake_quantize_where_enabled(
    ctx: OpContext,
    x: Array,
    scale: Array,
    zero_point: Array,
    enabled: Array,
    low: int,
    high: int,
) -> tuple[Array, Array]:
    is_on = lax.reshape(enabled, ()) != 0
    scale, zero_point = (lax.reshape(part, ()) for part in (scale, zero_point))
    rounded, kept = fake_quantize(ctx, x, scale, zero_point, low, high)
    return jnp.where(is_on, rounded, cast(x, ctx.compute)), kept | ~is_on


@lowers("aten.fake_quantize_per_channel_affine_cachemask.default")
def fake_quantize_channels(
    ctx: OpContext,
    x: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    low: int,
    high: int,
) -> tuple[Array, Array]:
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    scale, zero_point = (
        expand(lax.reshape(part, shape), x.shape) for part in (scale, zero_point)
    )
    return fake_quantize(ctx, x, scale, zero_point, low, high)


@lowers("aten.fake_quantize_per_tensor_affine_cachemask.default")
def fake_quantize(
    ctx: OpContext, x: Array, scale: Any, zero_point: Any, low: int, high: int
) -> tuple[Array, Array]:
    """Return the nearest value of the type that has one, and which elements were in its range."""
    x = cast(x, ctx.compute)
    scale, zero_point = (
        cast(part, ctx.compute) if isinstance(part, Array) else scalar_like(x, part)
        for part in (scale, zero_point)
    )
    steps = lax.round(x * (1 / scale), lax.RoundingMethod.TO_NEAREST_EVEN) + zero_point
    kept = (steps >= low) & (steps <= high)
    return (jnp.clip(steps, low, high) - zero_point) * scale, kept


# Special functions that neither XLA nor torch's decompositions know.
#
# Bessel and Airy functions are computed in float64 from integrals whose integrand is smooth and
# periodic, or falls to nothing at both ends. There the trapezoid rule gains digits exponentially
# with its points, so one sum serves where tables of coefficients would be the alternative. Large
# arguments take Hankel's asymptotic expansion, tiny ones the first term of the series.


def _recurrence(
    name: str, first: Callable[[Array], Array], step: Callable[..., Array]
) -> None:
    """Register a polynomial of degree n in x, given its next degree from the last two.

    `step(k, x, p, q)` is the polynomial of degree k + 1, where p has degree k and q degree
    k - 1; that of degree 0 is one, that of a negative degree zero.
    """

    @lowers(*overloads(name, *_FORMS))
    def rule(ctx: OpContext, x: Any, n: Any) -> Array:
        x, degree = broadcast(cast(x, ctx.compute), cast(n, ctx.compute))
        degree = lax.convert_element_type(degree, np.int64)
        top = jnp.max(degree, initial=0)
        one = scalar_like(x, 1)

        def is_left(state: Any) -> Any:
            return state[0] <= top

        def advance(state: Any) -> Any:
            k, last, before, found = state
            following = step(lax.convert_element_type(k - 1, x.dtype), x, last, before)
            following = jnp.where(k == 1, first(x), following)
            return k + 1, following, last, jnp.where(degree == k, following, found)

        found = jnp.where(degree < 0, zeros_like(x), one)
        state = (np.int64(1), one, zeros_like(x), found)
        result: Array = lax.while_loop(is_left, advance, state)[3]
        return result


def _chebyshev(k: Array, x: Array, p: Array, q: Array) -> Array:
    return 2 * x * p - q


def _shifted(k: Array, x: Array, p: Array, q: Array) -> Array:
    return 2 * (2 * x - 1) * p - q


_FIRST: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "t": (lambda x: x, lambda x: 2 * x - 1),
    "u": (lambda x: 2 * x, lambda x: 2 * (2 * x - 1)),
    "v": (lambda x: 2 * x - 1, lambda x: 2 * (2 * x - 1) - 1),
    "w": (lambda x: 2 * x + 1, lambda x: 2 * (2 * x - 1) + 1),
}
for _kind, (_first, _moved) in _FIRST.items():
    _recurrence(f"special_chebyshev_polynomial_{_kind}", _first, _chebyshev)
    _recurrence(f"special_shifted_chebyshev_polynomial_{_kind}", _moved, _shifted)

_recurrence(
    "special_hermite_polynomial_h",
    lambda x: 2 * x,
    lambda k, x, p, q: 2 * (x * p - k * q),
)
_recurrence(
    "special_hermite_polynomial_he", lambda x: x, lambda k, x, p, q: x * p - k * q
)
_recurrence(
    "special_laguerre_polynomial_l",
    lambda x: 1 - x,
    lambda k, x, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1),
)
_recurrence(
    "special_legendre_polynomial_p",
    lambda x: x,
    lambda k, x, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1),
)


@lowers("aten.special_spherical_bessel_j0.default")
def spherical_bessel_j0(ctx: OpContext, x: Array) -> Array:
    (x,) = ctx.cast(x)
    square = x * x
    near = 1 - square / 6 * (1 - square / 20 * (1 - square / 42))
    return jnp.where(lax.abs(x) < 0.5, near, lax.sin(x) / jnp.where(x == 0, 1, x))


_EULER = 0.57721566490153286061

# J and Y below this argument come from the trapezoid rule: it needs x + 20 points, and as
# many again for the sums over orders.
_FAR = 25.0
_ANGLES = np.arange(104) * (2 * math.pi / 104)
_SINES = np.sin(_ANGLES)


def _neumann_weights() -> Any:
    """Return w with sum(w * cos(x sin t)) = -(4/pi) sum((-1)^k J_2k(x) / k)."""
    orders = np.arange(1, 26)  # twice the last order stays clear of its mirror image
    terms = (-1.0) ** orders / orders * np.cos(2 * np.outer(_ANGLES, orders))
    return -4 / math.pi * terms.sum(axis=1) / _ANGLES.size


_WEIGHTS = _neumann_weights()


def _asymptotic(
    inverse: Array, ratio: Callable[[int], float], count: int, phase: Array
) -> tuple[Array, Array]:
    """Return modulus times cosine and sine, given how each term grows from the one before."""
    even, odd, power = jnp.ones_like(inverse), jnp.zeros_like(inverse), jnp.ones(())
    for k in range(1, count):
        power = power * ratio(k) * inverse
        term = (-1) ** (k // 2) * power
        even, odd = (even, odd + term) if k % 2 else (even + term, odd)
    cosine, sine = jnp.cos(phase), jnp.sin(phase)
    return even * cosine - odd * sine, even * sine + odd * cosine


def _hankel(x: Array, order: int) -> tuple[Array, Array]:
    """Return J and Y for large x."""
    square, inverse = 4 * order * order, 1 / x
    phase = x - (order / 2 + 0.25) * math.pi
    parts = _asymptotic(
        inverse, lambda k: (square - (2 * k - 1) ** 2) / (k * 8), 18, phase
    )
    size = jnp.sqrt(2 / math.pi * inverse)
    return size * parts[0], size * parts[1]


def _waves(x: Array) -> tuple[Array, Array]:
    """Return cos and sin of x sin t over the angles, along a new last dimension."""
    inner = x[..., None] * _SINES
    return jnp.cos(inner), jnp.sin(inner)


def _j0(x: Array) -> Array:
    x = lax.abs(x)
    near = jnp.mean(_waves(jnp.minimum(x, _FAR))[0], axis=-1)
    return jnp.where(x < _FAR, near, _hankel(jnp.maximum(x, _FAR), 0)[0])


def _j1(x: Array) -> Array:
    size = lax.abs(x)
    near = jnp.mean(_waves(jnp.minimum(size, _FAR))[1] * _SINES, axis=-1)
    far = _hankel(jnp.maximum(size, _FAR), 1)[0]
    return jnp.copysign(1.0, x) * jnp.where(size < _FAR, near, far)


def _y0(x: Array) -> Array:
    close = jnp.clip(x, 1e-300, _FAR)
    cosines = _waves(close)[0]
    log = 2 / math.pi * (jnp.log(close / 2) + _EULER)
    near = log * jnp.mean(cosines, axis=-1) + jnp.sum(cosines * _WEIGHTS, axis=-1)
    found = jnp.where(x < _FAR, near, _hankel(jnp.maximum(x, _FAR), 0)[1])
    return _of_positive(x, found)


def _y1(x: Array) -> Array:
    """Return minus the derivative of Y0, term by term."""
    close = jnp.clip(x, 1e-300, _FAR)
    cosines, sines = _waves(close)
    log = 2 / math.pi * (jnp.log(close / 2) + _EULER)
    first = log * jnp.mean(sines * _SINES, axis=-1)
    near = first - 2 / math.pi * jnp.mean(cosines, axis=-1) / close
    near = near + jnp.sum(sines * _SINES * _WEIGHTS, axis=-1)
    found = jnp.where(x < _FAR, near, _hankel(jnp.maximum(x, _FAR), 1)[1])
    return _of_positive(x, found)


def _of_positive(x: Array, found: Array) -> Array:
    """Return Y where it is real: -infinity at zero, NaN below."""
    found = jnp.where(x == 0, -math.inf, found)
    return jnp.where(x < 0, math.nan, found)


_POINTS = np.arange(112.0)


def _scaled_k(x: Array, order: float) -> Array:
    """Return exp(x) K_order(x) for positive x: the integral of exp(x - x cosh t) cosh(order t)."""
    step = jnp.minimum(0.25, 0.7 / jnp.sqrt(x))[..., None]
    angle = step * _POINTS
    # cosh t - 1 without cancellation; what overflows is far beyond where the integrand counts.
    fall = 2 * jnp.square(jnp.sinh(angle / 2))
    heights = jnp.exp(-x[..., None] * fall) * jnp.cosh(order * angle)
    return jnp.sum(heights * np.where(_POINTS == 0, 0.5, 1.0) * step, axis=-1)


def _k(order: int, *, scaled: bool) -> Callable[[Array], Array]:
    def compute(x: Array) -> Array:
        usual = jnp.maximum(x, 1e-8)
        found = _scaled_k(usual, order)
        tiny = -jnp.log(x / 2) - _EULER if order == 0 else 1 / x
        tiny = tiny * (1 + x) if scaled else tiny
        found = found if scaled else found * jnp.exp(-usual)
        found = jnp.where(x < 1e-8, tiny, found)
        found = jnp.where(x == 0, math.inf, found)
        found = jnp.where(x < 0, math.nan, found)
        return jnp.where(jnp.isnan(x), x, found)

    return compute


# Values at zero of Ai and of -Ai', for Maclaurin's series.
_AI, _SLOPE = 0.35502805388781723926, 0.25881940379280679841


def _ai(x: Array) -> Array:
    zeta = 2 / 3 * jnp.power(lax.abs(x), 1.5)
    return jnp.where(x > 1, _ai_decaying(x, zeta),
                     jnp.where(x < -7, _ai_oscillating(x, zeta), _ai_series(x)))  # fmt: skip


def _ai_series(x: Array) -> Array:
    x = jnp.clip(x, -7, 1)
    cube = x * x * x
    first, second = jnp.ones_like(x), x
    total = _AI * first - _SLOPE * second
    for k in range(1, 40):
        first = first * cube / ((3 * k - 1) * (3 * k))
        second = second * cube / ((3 * k) * (3 * k + 1))
        total = total + _AI * first - _SLOPE * second
    return total


def _ai_decaying(x: Array, zeta: Array) -> Array:
    zeta, x = jnp.maximum(zeta, 0.5), jnp.maximum(x, 0.5)
    return jnp.sqrt(x / 3) / math.pi * _scaled_k(zeta, 1 / 3) * jnp.exp(-zeta)


def _ai_oscillating(x: Array, zeta: Array) -> Array:
    """Return the asymptotic expansion for x < -7."""
    zeta, x = jnp.maximum(zeta, 10.0), jnp.minimum(x, -1.0)

    def ratio(k: int) -> float:
        return (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1))

    found, _ = _asymptotic(1 / zeta, ratio, 16, math.pi / 4 - zeta)
    return found / (math.sqrt(math.pi) * jnp.power(-x, 0.25))


_IN_DOUBLE: dict[str, Callable[[Array], Array]] = {
    "special_bessel_j0": _j0, "special_bessel_j1": _j1, "special_bessel_y0": _y0,
    "special_bessel_y1": _y1, "special_airy_ai": _ai,
    "special_modified_bessel_k0": _k(0, scaled=False),
    "special_modified_bessel_k1": _k(1, scaled=False),
    "special_scaled_modified_bessel_k0": _k(0, scaled=True),
    "special_scaled_modified_bessel_k1": _k(1, scaled=True),
}  # fmt: skip


def _in_double(name: str, function: Callable[[Array], Array]) -> None:
    @lowers(f"aten.{name}.default")
    def rule(_ctx: OpContext, x: Array) -> Array:
        return function(cast(x, torch.float64))


for _name, _function in _IN_DOUBLE.items():
    _in_double(_name, _function)
