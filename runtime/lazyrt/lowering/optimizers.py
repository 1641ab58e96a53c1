"""Rules of optimizers: fused updates, the gradient scaler, and the foreach ops.

A fused optimizer updates all parameters in one op: the results are its lists in order, after
the update. Where the gradient scaler found an infinity, they are its arguments.
"""

# A rule's signature is its op's schema.
# ruff: noqa: ARG001, FBT001, S101, SLF001

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from lazyrt.lowering.arrays import (
    Array,
    Aval,
    cast,
    opmath_dtype,
    to_jax_dtype,
    to_torch_dtype,
)
from lazyrt.lowering.registry import OpContext, Rule, lowers, overloads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# Rules of the foreach ops, derived from those of the ops that they repeat.

# The overload of the single op that an overload of the foreach op repeats, where it is not
# simply Tensor for List, Scalar for Scalar and ScalarList.
_SINGLE = {
    "addcmul": {"Scalar": "default", "ScalarList": "default", "Tensor": "default"},
    "addcdiv": {"Scalar": "default", "ScalarList": "default", "Tensor": "default"},
    "pow": {"List": "Tensor_Tensor", "Scalar": "Tensor_Scalar", "ScalarList": "Tensor_Scalar",
            "ScalarAndTensor": "Scalar"},
    "maximum": {"List": "default", "Scalar": "default", "ScalarList": "default"},
    "minimum": {"List": "default", "Scalar": "default", "ScalarList": "default"},
    "clamp_min": {"List": "Tensor", "Scalar": "default", "ScalarList": "default"},
    "clamp_max": {"List": "Tensor", "Scalar": "default", "ScalarList": "default"},
    "norm": {"Scalar": "default"},
    "powsum": {},  # only ever called with norm, by distributed code
    "zero": {"default": "default"},
}  # fmt: skip
_COMMON = {"List": "Tensor", "Scalar": "Scalar", "ScalarList": "Scalar", "Tensor": "Tensor",
           "default": "default"}  # fmt: skip
_OTHER_NAME = {"norm": "linalg_vector_norm"}


def _repeated(single: torch._ops.OpOverload) -> Rule:
    """Return the rule that applies another op to each entry of its lists.

    Entries of equal types are calls of one function, which jax traces once.
    """

    def rule(ctx: OpContext, *args: Any) -> list[Array]:
        functions: dict[object, Callable[..., list[Array]]] = {}
        results = []
        for index, out in enumerate(ctx.outs):
            assert out is not None
            entry = [_entry(arg, index) for arg in args]
            types = [_entry(arg, index) for arg in ctx.args]
            last = ctx.args[-1]
            if isinstance(last, Aval) and last.shape:  # a tensor of factors
                entry[-1], types[-1] = args[-1][index], Aval((), last.dtype)
            key = (out, *((each.__class__, each) for each in types))
            one = functions.get(key) or _jitted(ctx, single, entry, types, out)
            functions[key] = one
            results += one(*filter(_is_array, entry))
        return results

    return rule


def _jitted(
    ctx: OpContext,
    single: torch._ops.OpOverload,
    entry: Sequence[object],
    types: Sequence[object],
    out: Aval,
) -> Callable[..., list[Array]]:
    """Return a jitted function that applies the single op to the arrays of any entry of these types."""
    # Kept without the arrays, which are those of the first entry alone.
    constants = [None if _is_array(each) else each for each in entry]

    def one(*arrays: Array) -> list[Array]:
        given = iter(arrays)
        filled = [
            next(given) if isinstance(kind, Aval) else constant
            for kind, constant in zip(types, constants, strict=True)
        ]
        return ctx.call(single, filled, types, out)

    return jax.jit(one)


def _is_array(value: object) -> bool:
    return isinstance(value, jax.Array)


def _entry(arg: Any, index: int) -> Any:
    return arg[index] if isinstance(arg, (list, tuple)) else arg


def _foreach_overloads() -> list[tuple[str, str]]:
    """Return (op, overload) of every functional foreach op, the op without its prefix."""
    prefix = "aten::_foreach_"
    found = []
    for qualified in torch._C._dispatch_get_all_op_names():
        if qualified.startswith(prefix):
            name, _, overload = qualified.removeprefix(prefix).partition(".")
            if not name.endswith("_") and not overload.endswith("out"):
                found.append((name, overload or "default"))
    return found


def _register_all() -> None:
    for name, overload in _foreach_overloads():
        suffix = _SINGLE.get(name, _COMMON).get(overload)
        if suffix is not None:
            packet = getattr(torch.ops.aten, _OTHER_NAME.get(name, name))
            single = getattr(packet, suffix)
            lowers(f"aten._foreach_{name}.{overload}")(_repeated(single))


_register_all()


_Update = tuple[Array, ...]


def _each(
    lists: Sequence[Sequence[Array]],
    found_inf: Array | None,
    update: Callable[..., _Update],
    *,
    steps: Sequence[Array] = (),
) -> list[Array]:
    """Apply an update to the k-th entries of all lists; return the new lists, one by one.

    The lists are parameters, gradients, then states; empty ones stay so. Where `found_inf` is not
    zero, nothing changes. `update` gets the entries in the dtype to compute in, and the entry's
    step if there are steps.
    """
    present = [entries for entries in lists if entries]
    found: list[list[Array]] = []
    update = jax.jit(update)  # entries of equal types are calls of one function
    for index, old in enumerate(zip(*present, strict=True)):
        wide = [cast(x, opmath_dtype(to_torch_dtype(x.dtype))) for x in old]
        new = update(*wide, *(steps[index : index + 1]))
        rounded = [x.astype(y.dtype) for x, y in zip(new, old, strict=True)]
        if found_inf is not None:
            skip = jnp.reshape(found_inf, ()) != 0
            rounded = [jnp.where(skip, y, x) for x, y in zip(rounded, old, strict=True)]
        found.append(rounded)
    return [x for entries in zip(*found, strict=True) for x in entries]


def _unscaled(grad: Array, grad_scale: Array | None) -> Array:
    if grad_scale is None:
        return grad
    return grad / jnp.reshape(grad_scale, ()).astype(grad.dtype)


def _like(x: Array, number: Any) -> Array:
    """Return a float64 number in the dtype of `x`."""
    return jnp.asarray(number).astype(x.dtype)


def _double(number: Any) -> Array:
    return jnp.reshape(jnp.asarray(number), ()).astype(np.float64)


@lowers(*overloads("_fused_adam", "default", "tensor_lr"),
        *overloads("_fused_adamw", "default", "tensor_lr"))  # fmt: skip
def fused_adam(
    ctx: OpContext,
    params: Sequence[Array],
    grads: Sequence[Array],
    exp_avgs: Sequence[Array],
    exp_avg_sqs: Sequence[Array],
    max_exp_avg_sqs: Sequence[Array],
    state_steps: Sequence[Array],
    lr: Any,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> list[Array]:
    decoupled = "adamw" in ctx.name
    rate = _double(lr)

    def update(p: Array, grad: Array, mean: Array, square: Array, *rest: Array) -> Any:
        *largest, step = rest
        kept = grad = _unscaled(grad, grad_scale)
        grad = -grad if maximize else grad
        if weight_decay and decoupled:
            p = p * _like(p, 1 - rate * weight_decay)
        elif weight_decay:
            grad = grad + p * weight_decay
        mean = mean + (1 - beta1) * (grad - mean)
        square = beta2 * square + (1 - beta2) * grad * grad
        count = _double(step)
        correction = jnp.sqrt(1 - beta2**count)
        top = [jnp.maximum(x, square) for x in largest]
        spread = jnp.sqrt(top[0] if amsgrad else square)
        size = spread / _like(p, correction) + eps
        p = p - _like(p, rate / (1 - beta1**count)) * mean / size
        return (p, kept, mean, square, *top)

    lists = (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
    return _each(lists, found_inf, update, steps=state_steps)


@lowers(*overloads("_fused_sgd", "default", "tensor_lr"))
def fused_sgd(
    ctx: OpContext,
    params: Sequence[Array],
    grads: Sequence[Array],
    momentum_buffers: Sequence[Array],
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> list[Array]:
    rate = _double(lr)

    def update(p: Array, grad: Array, *buffers: Array) -> Any:
        kept = grad = _unscaled(grad, grad_scale)
        grad = -grad if maximize else grad
        if weight_decay:
            grad = grad + p * weight_decay
        if not buffers:
            return p - _like(p, rate) * grad, kept
        (buffer,) = buffers
        buffer = grad if is_first_step else momentum * buffer + (1 - dampening) * grad
        grad = grad + momentum * buffer if nesterov else buffer
        return p - _like(p, rate) * grad, kept, buffer

    return _each((params, grads, momentum_buffers), found_inf, update)


@lowers(*overloads("_fused_adagrad", "default", "tensor_lr"))
def fused_adagrad(
    ctx: OpContext,
    params: Sequence[Array],
    grads: Sequence[Array],
    state_sums: Sequence[Array],
    state_steps: Sequence[Array],
    lr: Any,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> list[Array]:
    rate = _double(lr)

    def update(p: Array, grad: Array, total: Array, step: Array) -> Any:
        kept = grad = _unscaled(grad, grad_scale)
        grad = -grad if maximize else grad
        if weight_decay:
            grad = grad + p * weight_decay
        total = total + grad * grad
        now = rate / (1 + (_double(step) - 1) * lr_decay)
        return p - _like(p, now) * grad / (jnp.sqrt(total) + eps), kept, total

    new = _each((params, grads, state_sums), found_inf, update, steps=state_steps)
    return [*new, *state_steps][: len(ctx.outs)]


@lowers("aten._amp_foreach_non_finite_check_and_unscale.default")
def check_and_unscale(
    ctx: OpContext, tensors: Sequence[Array], found_inf: Array, inv_scale: Array
) -> list[Array]:
    factor = jnp.reshape(inv_scale, ())

    @jax.jit
    def unscale(x: Array) -> tuple[Array, Array]:
        wide = cast(x, opmath_dtype(to_torch_dtype(x.dtype)))
        product = (wide * factor.astype(wide.dtype)).astype(x.dtype)
        return jnp.where(factor == 1, x, product), jnp.all(jnp.isfinite(x))

    found = found_inf
    unscaled = []
    for tensor in tensors:
        new, is_finite = unscale(tensor)
        found = jnp.where(is_finite, found, lax.full_like(found, 1))
        unscaled.append(new)
    return [*unscaled, found]


@lowers("aten._amp_update_scale.default")
def update_scale(
    ctx: OpContext,
    scale: Array,
    growth_tracker: Array,
    found_inf: Array,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
) -> tuple[Array, Array]:
    failed = jnp.reshape(found_inf, ()) != 0
    successes = growth_tracker + 1
    is_due = successes == growth_interval
    wide = cast(scale, torch.float64)
    grown = (wide * growth_factor).astype(to_jax_dtype(torch.float32))
    grown = jnp.where(is_due & jnp.isfinite(grown), grown, scale)
    shrunk = (wide * backoff_factor).astype(scale.dtype)
    tracker = jnp.where(failed | is_due, 0, successes)
    return jnp.where(failed, shrunk, grown), tracker
