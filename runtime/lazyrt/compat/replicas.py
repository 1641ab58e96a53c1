"""One replica: functions that answer for it refuse to where a launcher has started several.

torch_xla's replicas sum their gradients. lazyrt has no collectives yet, so each process would
train a model of its own, and nothing would look wrong.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from lazyrt.config import config
from lazyrt.errors import NoEquivalentError

if TYPE_CHECKING:
    from collections.abc import Callable

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def one_replica(
    function: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """Decorate a function whose result is right for one replica alone."""

    @functools.wraps(function)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        _refuse_several(function.__name__)
        return function(*args, **kwargs)

    return checked


def _refuse_several(function: str) -> None:
    """Refuse a call in one of several replicas.

    Raises:
        NoEquivalentError: There are several, and nobody said that they are independent.
    """
    found = None if config.independent_processes else _several()
    if found is not None:
        raise NoEquivalentError(
            f"{function}() found {found}: this process is one of several replicas. lazyrt has no "
            "collectives yet, so each of them would train a model of its own. Start one process, "
            "without torchrun; or, where the processes are meant to be independent, set "
            "lazyrt.config.independent_processes = True, or LAZYRT_INDEPENDENT_PROCESSES=1."
        )


def _several() -> str | None:
    """Return what says that there are several replicas, None if nothing does."""
    text = os.environ.get("WORLD_SIZE", "").strip()
    if text.isdecimal() and int(text) > 1:
        return f"WORLD_SIZE={text} in the environment"
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        size = distributed.get_world_size()
        if size > 1:
            return f"a process group of {size} in torch.distributed"
    return None
