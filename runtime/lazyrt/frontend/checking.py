"""Checks of values by ops that are composed here, which torch's own would read."""

from __future__ import annotations

import functools
import math
import warnings
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.errors import ArgumentCheckError
from lazyrt.frontend import provenance, reads, small_checks, torch_checks, warned
from lazyrt.frontend.buffers import state_of
from lazyrt.frontend.torch_compat import plain_dispatch
from lazyrt.ir.live import Buffer, lock, pending

if TYPE_CHECKING:
    from collections.abc import Callable


def require(
    holds: torch.Tensor, said: str, kind: type[Exception] = ArgumentCheckError
) -> None:
    """Raise where a condition does not hold: now if few ops tell, else once its step has run.

    Args:
        holds: The condition, a bool of no dimensions on the device.
        said: What is wrong where it is false.
        kind: Of the error.
    """
    site = provenance.user_site(2)
    with lock:
        found = known_now(holds)
        state = state_of(holds)
        if found is None and torch_checks.can_wait() and isinstance(state, Buffer):
            error = torch_checks.explained(kind, said, site, pending.number)
            torch_checks.wait_for(state, error, passes=True)
            return
    if found is None:
        found = bool(reads.peek(holds, site))
    if not found:
        raise kind(said)


def checked(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel whose arguments' values are checked as the CPU checks them.

    Numbers are checked at once, and elements where the host knows them; else the check waits for
    its step.

    Args:
        name: Of the op, such as `multinomial`.
        kernel: Runs it unchecked.
    """
    is_whole = name.startswith("randint") and not name.startswith("randint_like.Tensor")
    if is_whole or name in {"random_.from", "random_.to"}:
        return _in_bounds(kernel)
    found = _DOMAINS.get(name)
    if found is None:
        return kernel
    is_valid, said = found

    def checking(*args: Any, **kwargs: Any) -> Any:
        holds = is_valid(*args)
        if holds is not None:
            _require_values(holds, said)
        return kernel(*args, **kwargs)

    return checking


def _in_bounds(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that refuses the bounds of integers, or warns of them, as the CPU does."""

    def drawing(*args: Any, **kwargs: Any) -> Any:
        first = args[0] if isinstance(args[0], torch.Tensor) else None
        like = kwargs.get("out", first)
        dtype = kwargs.get("dtype") or (torch.int64 if like is None else like.dtype)
        for text in _said_of_bounds(
            dtype, *(arg for arg in args if arg is None or arg.__class__ is int)
        ):
            warned.say(text)
        return kernel(*args, **kwargs)

    return drawing


@functools.lru_cache
def _said_of_bounds(dtype: torch.dtype, *bounds: int | None) -> tuple[str, ...]:
    """Return what the CPU warns of where it draws integers; no element of them is drawn here.

    Raises:
        RuntimeError: The CPU refuses the bounds or the dtype.
    """
    with plain_dispatch(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.empty(0, dtype=dtype, device="cpu").random_(*bounds)
    return tuple([str(each.message).partition(" (Triggered")[0] for each in said])


def _require_values(holds: torch.Tensor, said: str) -> None:
    with lock:
        state = state_of(holds)
        value = state.value
        known = None if value is None else small_checks.on_host(value)
        waits = torch_checks.can_wait() and state.is_pending
        if known is None and waits and isinstance(state, Buffer):
            site = provenance.user_site(2)
            error = torch_checks.explained(
                ArgumentCheckError, said, site, pending.number
            )
            torch_checks.wait_for(state, error, passes=True)
            return
    if not (reads.peek(holds) if known is None else known):
        raise ArgumentCheckError(said)


def _are_probabilities(p: torch.Tensor, *_: object) -> torch.Tensor:
    return ((p >= 0) & (p <= 1)).all()


def _are_weights(weights: torch.Tensor, *_: object) -> torch.Tensor:
    valid = (weights >= 0) & (weights < math.inf)
    return valid.all() & (weights.sum(-1) > 0).all()


def _are_widths(_mean: Any, std: torch.Tensor, *_: object) -> torch.Tensor:
    return (std >= 0).all()


def _are_enough(
    x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor
) -> torch.Tensor | None:
    """Return whether there is an element for each place of a mask; None for a wrong call."""
    places = max(x.numel(), mask.numel())
    is_mask = mask.dtype is torch.bool and mask.device == x.device
    if source.numel() >= places or not is_mask:
        return None
    # How often each element of the mask is used.
    return mask.sum() * (places // max(mask.numel(), 1)) <= source.numel()


_OF_BERNOULLI = "bernoulli expects all elements of p to be in [0, 1]"
_OF_MULTINOMIAL = (
    "probability tensor contains either `inf`, `nan` or element < 0, or is an invalid multinomial "
    "distribution (sum of probabilities <= 0)"
)
_OF_NORMAL = "normal expects all elements of std >= 0.0"
_OF_MASKED_SCATTER = (
    "masked_scatter: Number of elements of source < number of ones in mask"
)
# What must hold for the arguments, and what is wrong where it does not.
_Domain = tuple["Callable[..., torch.Tensor | None]", str]
_DOMAINS: dict[str, _Domain] = {
    "bernoulli": (_are_probabilities, _OF_BERNOULLI),
    "bernoulli.out": (_are_probabilities, _OF_BERNOULLI),
    "bernoulli_.Tensor": (lambda _x, p, *_: _are_probabilities(p), _OF_BERNOULLI),
    **dict.fromkeys(("multinomial", "multinomial.out"), (_are_weights, _OF_MULTINOMIAL)),
    **dict.fromkeys(
        ("normal.Tensor_Tensor", "normal.Tensor_Tensor_out", "normal.float_Tensor",
         "normal.float_Tensor_out"),
        (_are_widths, _OF_NORMAL),
    ),
    **dict.fromkeys(
        ("masked_scatter", "masked_scatter_"), (_are_enough, _OF_MASKED_SCATTER)
    ),
}  # fmt: skip


def known_now(condition: torch.Tensor) -> bool | None:
    """Return whether a condition holds; None if it takes more than a small check to tell."""
    with lock:
        state = state_of(condition)
        if not state.is_pending:
            return bool(reads.peek(condition))
        found = reads.small_check(condition, state, provenance.user_site(2), "torch")
        return None if found is None else bool(found)


def assert_async(
    condition: torch.Tensor, message: str = "Expected Tensor to be nonzero"
) -> None:
    """`aten._assert_async`: by its name it may raise later than at its line.

    Raises:
        RuntimeError: The condition does not hold.
    """
    if condition.numel() != 1:
        found = "more than one value" if condition.numel() else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {found} is ambiguous")
    require(condition.reshape(()) != 0, message, RuntimeError)


ASSERTIONS: dict[str, Callable[..., None]] = {
    "_assert_async": assert_async,
    "_assert_async.msg": assert_async,
}
