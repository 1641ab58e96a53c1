"""Names of torch_xla that have no equivalent, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from lazyrt.errors import NoEquivalentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ONE_DEVICE = (
    "lazyrt has one device in one process, so there is nobody to talk to. With one replica "
    "leave the call out"
)
ONE_DEVICE_SPMD = "lazyrt has one device, over which nothing can be sharded. Leave the annotations out"
NO_SERVER = (
    "a capture from another process needs a profiler client that is not part of lazyrt. Use "
    "start_trace() and stop_trace() in the program itself"
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
            f"{function} got {argument}={value!r}: lazyrt has one device in one process. "
            f"Leave {argument} out."
        )
