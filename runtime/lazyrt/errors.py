"""The errors that lazyrt raises, and the checks of arguments that several functions share.

```
LazyRuntimeError (RuntimeError)
├── UsageError (ValueError)              a call that makes no sense here
├── NoLoweringError (NotImplementedError)  an op without a lowering rule
├── LoweringError                        a rule failed, or XLA refused its result
├── StepSyncError                        a read or barrier where a step forbids it
├── ScopeError                           a barrier inside an open scope
├── FrozenError                          a compile where `frozen()` forbids it
├── NoEquivalentError (NotImplementedError)  a name of torch_xla that lazyrt does not have
├── TooManyGraphsError                   more graphs than `torch_xla.compile` was allowed
├── ArgumentCheckError (ValueError)      a value that torch refuses, found once its step has run
├── LostValueError                       a tensor whose value was never computed and no longer can be
├── NotFiniteError (FloatingPointError)  a step's loss or weights, where `stop_at_nan` is on
├── OutOfMemoryError (MemoryError)       the device has no room; also a torch.OutOfMemoryError
└── DeviceError                          tensors of another device or layout in a lazy op
```

Every message has three parts: what happened, with the offending value; what that means
here; what to do. Facts that help debugging (the recording line, near names) are notes.
"""

from __future__ import annotations

import math
import threading
from numbers import Integral, Real
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lazygraph.snapshot import SourceLocation


class LazyRuntimeError(RuntimeError):
    """Base of every error that lazyrt raises by itself."""


class UsageError(LazyRuntimeError, ValueError):
    """A call that makes no sense in this place or with these values."""


class NoLoweringError(LazyRuntimeError, NotImplementedError):
    """An op has neither a lowering rule nor a decomposition into ops that have one."""


class LoweringError(LazyRuntimeError):
    """A lowering rule failed, or XLA refused what it produced."""


class StepSyncError(LazyRuntimeError):
    """A read or a barrier in a place where the step forbids it.

    Attributes:
        operation: What the program called, such as `loss.item()`.
        tensor: The tensor that it read, as the source or else what holds it names it; empty if
            it is not known.
        site: The user's line.
        fix: What to do, in words.
    """

    def __init__(
        self,
        message: str,
        *,
        operation: str = "",
        tensor: str = "",
        site: SourceLocation | None = None,
        fix: str = "",
    ) -> None:
        super().__init__(message)
        self.operation = operation
        self.tensor = tensor
        self.site = site
        self.fix = fix


class StepSyncWarning(UserWarning):
    """What a step with `on_read="warn"` says where another one raises StepSyncError."""


class ReplicaWarning(UserWarning):
    """One rank runs collectives under a condition on its rank; others may not come there."""


class ShardingWarning(UserWarning):
    """Data is gathered on every device of a mesh though each needs a part of it alone."""


class ScopeError(LazyRuntimeError):
    """A barrier inside an open scope, whose ops it would tear apart."""


class FrozenError(LazyRuntimeError):
    """A graph had to be compiled inside `frozen()`."""


class ArgumentCheckError(LazyRuntimeError, ValueError):
    """A check of torch's found invalid values after the step had run; see `config.deferred_checks`."""


class LostValueError(LazyRuntimeError):
    """The tensor was dropped before its value was computed."""


class NotFiniteError(LazyRuntimeError, FloatingPointError):
    """A loss or a weight of a step is not finite, and `config.stop_at_nan` is on."""


class OutOfMemoryError(LazyRuntimeError, torch.OutOfMemoryError, MemoryError):
    """The device has no room for what it was asked to compute or keep.

    Attributes:
        needed: Bytes that were asked for.
        available: Bytes that there were; None where that is not known.
    """

    def __init__(
        self, message: str, *, needed: int = 0, available: int | None = None
    ) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available


class DeviceError(LazyRuntimeError):
    """A tensor of another device or layout took part in an op on lazy tensors."""


class NoEquivalentError(LazyRuntimeError, NotImplementedError):
    """A name or argument of torch_xla that has no equivalent here."""


class TooManyGraphsError(LazyRuntimeError):
    """A block has run more different graphs than it may."""


class ReplicaError(LazyRuntimeError):
    """The ranks of a process group are about to launch different programs, or one is missing."""


# ---------------------------------------------------------- arguments that are refused


def seconds(value: object, asked: str) -> float | None:
    """Return how long to wait, None for as long as it takes.

    Raises:
        UsageError: It is no number from 0 up.
    """
    if value is None:
        return None
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    limit = float(value) if is_number else math.nan  # type: ignore[arg-type]
    if not limit >= 0:
        raise UsageError(
            f"{asked} got timeout_s={_shown(value)}, which is no number of seconds, so how long to wait "
            "is not known. Pass a number from 0 up, or nothing to wait as long as it takes."
        )
    return None if limit > threading.TIMEOUT_MAX else limit


def whole_number(value: object, asked: str, what: str) -> int:
    """Return a number that names something.

    Raises:
        UsageError: It is no whole number.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UsageError(
            f"{asked} got {_shown(value)}, which is no whole number, and takes the number of "
            f"{what}. `%lazy step` lists the latest."
        )
    return int(value)


def _shown(value: object) -> str:
    """Return a number or a text as it is written, of all else the type: a tensor is not looked at."""
    if isinstance(value, (Real, str)):
        return f"{value!r:.60}"
    return f"an object of type {type(value).__name__}"
