"""Checks of values by ops that are composed here, which torch's own would read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lazyrt.errors import ArgumentCheckError
from lazyrt.frontend import provenance, reads, small_checks, torch_checks
from lazyrt.frontend.buffers import state_of
from lazyrt.ir.live import Buffer, lock, pending

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


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

    The host tells now if it knows the values; else the check waits for its step.

    Args:
        name: Of the op, such as `multinomial`.
        kernel: Runs it unchecked.
    """
    found = _DOMAINS.get(name)
    if found is None:
        return kernel
    position, is_valid, said = found

    def checking(*args: Any, **kwargs: Any) -> Any:
        _require_values(is_valid(args[position]), said)
        return kernel(*args, **kwargs)

    return checking


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


def _are_probabilities(p: torch.Tensor) -> torch.Tensor:
    return ((p >= 0) & (p <= 1)).all()


def _are_weights(weights: torch.Tensor) -> torch.Tensor:
    valid = (weights >= 0) & (weights < math.inf)
    return valid.all() & (weights.sum(-1) > 0).all()


def _are_widths(std: torch.Tensor) -> torch.Tensor:
    return (std >= 0).all()


_OF_BERNOULLI = "bernoulli expects all elements of p to be in [0, 1]"
_OF_MULTINOMIAL = (
    "probability tensor contains either `inf`, `nan` or element < 0, or is an invalid multinomial "
    "distribution (sum of probabilities <= 0)"
)
_OF_NORMAL = "normal expects all elements of std >= 0.0"
_Domain = tuple[int, "Callable[[torch.Tensor], torch.Tensor]", str]
# The argument that is checked, how, and what is wrong where the check fails.
_DOMAINS: dict[str, _Domain] = {
    "bernoulli": (0, _are_probabilities, _OF_BERNOULLI),
    "bernoulli.out": (0, _are_probabilities, _OF_BERNOULLI),
    "bernoulli_.Tensor": (1, _are_probabilities, _OF_BERNOULLI),
    "multinomial": (0, _are_weights, _OF_MULTINOMIAL),
    "multinomial.out": (0, _are_weights, _OF_MULTINOMIAL),
    "normal.Tensor_Tensor": (1, _are_widths, _OF_NORMAL),
    "normal.Tensor_Tensor_out": (1, _are_widths, _OF_NORMAL),
    "normal.float_Tensor": (1, _are_widths, _OF_NORMAL),
    "normal.float_Tensor_out": (1, _are_widths, _OF_NORMAL),
}


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
