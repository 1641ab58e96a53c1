"""Checks of values by ops that are composed here, which torch's own would read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.errors import ArgumentCheckError
from lazyrt.frontend import provenance, reads, torch_checks
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
