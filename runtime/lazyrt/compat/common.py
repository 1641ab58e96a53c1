"""What the names of torch_xla share: refusals, environment variables, nested blocks."""

from __future__ import annotations

import contextlib
import functools
import os
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Self, TypeVar

from lazyrt.config import config, flag
from lazyrt.errors import NoEquivalentError
from lazyrt.execution import replicas

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NO_REPLICAS = (
    "lazyrt starts no replicas and copies no model to them. A launcher such as torchrun starts one "
    "process for each, and init_process_group('lazyrt') joins them"
)
INTERNAL = "it is part of torch_xla's inner workings, which lazyrt does not have"


def refuse(module: str, reasons: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__`, which says why a name of the original is missing.

    Args:
        module: The original's module, such as `torch_xla.core.xla_model`.
        reasons: For each name, why it is missing and what to do instead.
    """

    def missing(name: str) -> NoReturn:
        if name in reasons:
            raise NoEquivalentError(
                f"{module}.{name} has no equivalent in lazyrt: {reasons[name]}."
            )
        raise AttributeError(
            f"neither {module} nor its stand-in in lazyrt.compat has a name {name!r}. See "
            "docs/coming-from-torch-xla.md for the names that there are."
        )

    return missing


def only_one(function: str, argument: str, value: object, *, allowed: object) -> None:
    """Refuse an argument that asks for several devices.

    Raises:
        NoEquivalentError: `value` is neither None nor `allowed`.
    """
    if value is not None and value != allowed:
        raise NoEquivalentError(
            f"{function} got {argument}={value!r}: torch_xla's names act on one device in one process. "
            f"Leave {argument} out."
        )


# ----------------------------------------------------------------------------- replicas
# torch_xla's replicas sum their gradients. Its names do so through the process group `lazyrt`;
# without it each process would train a model of its own, and nothing would look wrong.

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def of_replicas(
    function: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """Decorate a function that acts for the only replica, or through the process group."""

    @functools.wraps(function)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        _refuse_several(function.__name__)
        return function(*args, **kwargs)

    return checked


def ordinal() -> int:
    """Return the number of this process among those of the process group, else 0."""
    world = replicas.world()
    return 0 if world is None else world.rank


def world_size() -> int:
    """Return how many processes the process group has, else 1."""
    world = replicas.world()
    return 1 if world is None else world.size


def local(variable: str, default: int) -> int:
    """Return what a launcher says of this machine's processes in the environment."""
    text = os.environ.get(variable, "")
    return int(text) if world_size() > 1 and text.isdecimal() else default


def _refuse_several(function: str) -> None:
    """Refuse a call in one of several replicas that no process group joins.

    Raises:
        NoEquivalentError: There are several, and nobody said that they are independent.
    """
    if config.independent_processes or replicas.world() is not None:
        return
    found = _several()
    if found is not None:
        raise NoEquivalentError(
            f"{function}() found {found}: this process is one of several replicas, and torch_xla's "
            "names act on one until a process group 'lazyrt' joins them, so each of them would "
            "train a model of its own. Call torch.distributed.init_process_group('lazyrt') first; "
            "or, where the processes are meant to be independent, set "
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


# ------------------------------------------------- environment variables for execution modes
# A script may set them itself before it asks for the device, so that is when they are read.

SWITCHES = {
    "XLA_USE_EAGER_DEBUG_MODE": "eager",
    "XLA_GET_TENSORS_OPBYOP": "op_by_op_reads",
    "XLA_SYNC_TENSORS_OPBYOP": "op_by_op_barriers",
}
_taken: dict[str, str] = {}


def take_switches() -> None:
    """Set the modes that variables ask for which are new since the last call.

    Raises:
        UsageError: A variable says neither yes nor no.
    """
    for variable, setting in SWITCHES.items():
        text = os.environ.get(variable)
        if text is None or _taken.get(variable) == text:
            continue
        value = flag(variable, default=False)
        config.set(setting, value, origin=f"environment variable {variable}")
        _taken[variable] = text


# -------------------------------------------------------------------------- nested blocks
# One object is entered again and again: by nested blocks, threads and coroutines at once.

_open: ContextVar[tuple[tuple[Block, contextlib.ExitStack], ...]] = ContextVar(
    "lazyrt_compat_blocks", default=()
)


class Block:
    """A context manager that leaves what the same thread or coroutine entered last."""

    def _enter(self, stack: contextlib.ExitStack) -> None:
        """Enter what the block consists of."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._enter(stack)
            _open.set((*_open.get(), (self, stack.pop_all())))
        return self

    def __exit__(self, *raised: object) -> None:
        entered = _open.get()
        latest = next(each for each in reversed(entered) if each[0] is self)
        _open.set(tuple(each for each in entered if each is not latest))
        latest[1].__exit__(*raised)  # type: ignore[arg-type]
