"""What several public functions ask of an argument, so that none is taken for another silently."""

from __future__ import annotations

import math
import threading
from numbers import Integral, Real

from lazyrt.errors import UsageError


def require_flag(value: object, asked: str, name: str) -> None:
    """Refuse what is neither True nor False: a text such as `"no"` would count as yes.

    Args:
        value: What was given.
        asked: The function, as the user calls it.
        name: The argument.

    Raises:
        UsageError: It is no flag.
    """
    if not isinstance(value, bool):
        raise UsageError(
            f"{asked} got {name}={_shown(value)}, which is neither True nor False, so what it should "
            "do is not known. Pass one of these."
        )


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
