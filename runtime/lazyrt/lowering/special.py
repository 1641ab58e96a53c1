"""Rules of the special functions that neither XLA nor torch's decompositions know.

Bessel and Airy functions are computed in float64 from integrals whose integrand is smooth and
periodic, or falls to nothing at both ends. There the trapezoid rule gains digits exponentially
with its points, so one sum serves where tables of coefficients would be the alternative. Large
arguments take Hankel's asymptotic expansion, tiny ones the first term of the series.
"""

# A rule's signature is its op's schema; numbers are those of its formula.
# ruff: noqa: ARG001, PLR2004

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from lazyrt.lowering.arrays import Array, broadcast, cast, scalar_like, zeros_like
from lazyrt.lowering.registry import OpContext, lowers, overloads

_Next = Callable[[Array, Array, Array, Array], Array]
_Start = Callable[[Array], Array]

_FORMS = ("default", "x_scalar", "n_scalar")


def _recurrence(name: str, first: _Start, step: _Next) -> None:
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


_FIRST: dict[str, tuple[_Start, _Start]] = {
    "t": (lambda x: x, lambda x: 2 * x - 1),
    "u": (lambda x: 2 * x, lambda x: 2 * (2 * x - 1)),
    "v": (lambda x: 2 * x - 1, lambda x: 2 * (2 * x - 1) - 1),
    "w": (lambda x: 2 * x + 1, lambda x: 2 * (2 * x - 1) + 1),
}
for _kind, (_plain, _moved) in _FIRST.items():
    _recurrence(f"special_chebyshev_polynomial_{_kind}", _plain, _chebyshev)
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


def _hankel(x: Array, order: int) -> tuple[Array, Array]:
    """Return modulus times cosine and sine of J + iY for large x."""
    square, inverse = 4 * order * order, 1 / x
    even, odd = jnp.ones_like(x), jnp.zeros_like(x)
    factor, power = 1.0, jnp.ones_like(x)
    for k in range(1, 18):
        factor *= (square - (2 * k - 1) ** 2) / (k * 8)
        power = power * inverse
        term = (-1) ** (k // 2) * factor * power
        even, odd = (even, odd + term) if k % 2 else (even + term, odd)
    phase = x - (order / 2 + 0.25) * math.pi
    size = jnp.sqrt(2 / math.pi * inverse)
    cosine, sine = jnp.cos(phase), jnp.sin(phase)
    return size * (even * cosine - odd * sine), size * (even * sine + odd * cosine)


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
    even, odd = jnp.ones_like(x), jnp.zeros_like(x)
    factor, power = 1.0, jnp.ones_like(x)
    for k in range(1, 16):
        factor *= (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1))
        power = power / zeta
        term = (-1) ** (k // 2) * factor * power
        even, odd = (even, odd + term) if k % 2 else (even + term, odd)
    phase = zeta - math.pi / 4
    size = 1 / (math.sqrt(math.pi) * jnp.power(-x, 0.25))
    return size * (even * jnp.cos(phase) + odd * jnp.sin(phase))


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "special_bessel_j0": _j0, "special_bessel_j1": _j1, "special_bessel_y0": _y0,
    "special_bessel_y1": _y1, "special_airy_ai": _ai,
    "special_modified_bessel_k0": _k(0, scaled=False),
    "special_modified_bessel_k1": _k(1, scaled=False),
    "special_scaled_modified_bessel_k0": _k(0, scaled=True),
    "special_scaled_modified_bessel_k1": _k(1, scaled=True),
}  # fmt: skip


def _register(name: str, function: Callable[[Array], Array]) -> None:
    @lowers(f"aten.{name}.default")
    def rule(_ctx: OpContext, x: Array) -> Array:
        return function(cast(x, torch.float64))


for _name, _function in _FUNCTIONS.items():
    _register(_name, _function)
