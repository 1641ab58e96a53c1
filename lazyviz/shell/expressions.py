"""What an expression behind `%lazy` stands for, and what to say of one that is of no use."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from lazyviz.shell.lazytensors import is_lazy, lazy_tensors, named_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_MAX_NAMES = 6


class ExpressionFailed(Exception):  # noqa: N818 - never shown: it carries the user's error
    """The user's expression raised an error.

    Attributes:
        error: That error; its traceback begins in the user's expression.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__()  # what the error says may look at a tensor
        self.error = error.with_traceback(_below(error.__traceback__))


def value_of(shell: Any, command: str, expression: str) -> Any:
    """Return the value of an expression in a shell's namespace.

    Raises:
        UsageError: It is no expression, or names what is not there.
        ExpressionFailed: Anything else went wrong in it.
    """
    try:
        return shell.ev(expression)
    except NameError as error:
        if _is_from_within(error):
            raise ExpressionFailed(error) from None
        namespace = shell.user_ns
        names = [name for name, _ in named_tensors(namespace)]
        near = difflib.get_close_matches(expression, names, n=3)
        hint = f" Did you mean {' or '.join(near)}?" if near else names_hint(namespace)
        raise UsageError(f"%lazy {command} {expression}: {error}.{hint}") from None
    except SyntaxError as error:
        if _below(error.__traceback__) is not None:  # it was read and run
            raise ExpressionFailed(error) from None
        raise UsageError(
            f"%lazy {command} takes one expression; {expression!r} is none: {error.msg}."
        ) from None
    except Exception as error:  # noqa: BLE001 - the magic raises it again
        raise ExpressionFailed(error) from None


def tensors_in(value: Any) -> list[Any]:
    """Return the lazy tensors of a tensor, a list, tuple or dict, or of a module."""
    if not hasattr(value, "named_parameters"):
        return list(lazy_tensors(value))
    parameters = (tensor for _, tensor in value.named_parameters())
    return [tensor for tensor in parameters if is_lazy(tensor)]


def no_tensors(
    command: str, expression: str, value: Any, namespace: Mapping[str, Any]
) -> str:
    """Return what to say of a value in which there is no lazy tensor."""
    return (
        f"%lazy {command} shows lazy tensors, and {expression} {_what_it_is(value)}. Give a "
        "tensor on the device lazyrt, or leave the expression out to see all that is pending."
        + names_hint(namespace)
    )


def names_hint(namespace: Mapping[str, Any]) -> str:
    """Return which lazy tensors a namespace has, as a sentence; empty if it has none."""
    names = [name for name, _ in named_tensors(namespace)]
    if not names:
        return ""
    shown = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
    return f" Lazy tensors here: {shown}."


def _what_it_is(value: Any) -> str:
    if hasattr(value, "named_parameters"):
        devices = {str(tensor.device) for _, tensor in value.named_parameters()}
        where = f"on the device {' and '.join(sorted(devices))}" if devices else "none"
        return f"is a {type(value).__name__}, whose parameters are {where}"
    device = getattr(value, "device", None)
    return f"is on the device {device}" if device is not None else f"is {_kind(value)}"


def _kind(value: object) -> str:
    if value is None:
        return "None"
    kind = type(value).__name__
    shown = f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"
    if isinstance(value, (list, tuple, set)) and value:
        inside = sorted({type(item).__name__ for item in value})
        return f"{shown} of {', '.join(inside[:3])}"
    return shown


def _is_from_within(error: Exception) -> bool:
    """Return whether an error comes from a function that the expression calls."""
    expression = _below(error.__traceback__)
    return expression is not None and expression.tb_next is not None


def _below(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of `value_of` and of the shell's `ev`."""
    for _ in range(2):
        traceback = traceback.tb_next if traceback is not None else None
    return traceback
