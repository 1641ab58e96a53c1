"""Rules of the special functions that neither XLA nor torch's decompositions know."""

# A rule's signature is its op's schema; numbers are those of its formula.
# ruff: noqa: ARG001, PLR2004

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from lazyrt.lowering.dtypes import Array, cast
from lazyrt.lowering.registry import lowers, overloads
from lazyrt.lowering.shaping import broadcast, scalar_like, zeros_like

if TYPE_CHECKING:
    from lazyrt.lowering.context import OpContext

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


@lowers("aten.special_modified_bessel_i0.default")
def bessel_i0(ctx: OpContext, x: Array) -> Array:
    return special.i0(cast(x, ctx.compute))


@lowers("aten.special_modified_bessel_i1.default")
def bessel_i1(ctx: OpContext, x: Array) -> Array:
    return special.i1(cast(x, ctx.compute))


@lowers("aten.special_spherical_bessel_j0.default")
def spherical_bessel_j0(ctx: OpContext, x: Array) -> Array:
    (x,) = ctx.cast(x)
    square = x * x
    near = 1 - square / 6 * (1 - square / 20 * (1 - square / 42))
    return jnp.where(lax.abs(x) < 0.5, near, lax.sin(x) / jnp.where(x == 0, 1, x))
