"""torch's own wrong calls of its ops: whether the lazy device refuses them as the CPU does."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import lazyrt
from tests.opinfo import known
from tests.opinfo.cases import Case, bad_calls, to_lazy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Refusal:
    """What became of one wrong call.

    Attributes:
        case: The op.
        number: Which of its wrong calls.
        expected: The type that the CPU raised.
        found: The type that the lazy device raised at the call, None if it raised nothing.
        message: The lazy device's message.
    """

    case: Case
    number: int
    expected: type[BaseException]
    found: type[BaseException] | None
    message: str = ""

    @property
    def agrees(self) -> bool:
        """Whether an `except` clause for what the CPU raises catches the lazy error."""
        return self.found is not None and issubclass(self.found, self.expected)


def refusals(case: Case) -> Iterator[Refusal]:
    """Yield one entry for each wrong call that the CPU refuses."""
    with warnings.catch_warnings(), lazyrt.config.scoped(deferred_checks=False):
        warnings.simplefilter("ignore")
        for number, bad in enumerate(bad_calls(case)):
            sample = bad.sample_input
            args, kwargs = (sample.input, *sample.args), sample.kwargs
            expected = _error(lambda: case.info.op(*args, **kwargs))  # noqa: B023
            if expected is None:
                continue  # an error of CUDA's alone
            found = _error(lambda: _call(case, args, kwargs))  # noqa: B023
            if found is None:
                yield Refusal(case, number, type(expected), None)
            else:
                yield Refusal(case, number, type(expected), type(found), str(found))
        lazyrt.mark_step()  # whatever a call has left pending must run


def _call(case: Case, args: Any, kwargs: Any) -> None:
    """Call an op on the lazy device; what the device does not take is refused on the way."""
    if case.name in known.ON_THE_HOST:
        case.info.op(to_lazy(args[0]), *args[1:], **kwargs)
    else:
        lazy_args, lazy_kwargs = to_lazy((args, kwargs))
        case.info.op(*lazy_args, **lazy_kwargs)


def _error(call: Callable[[], Any]) -> Exception | None:
    try:
        with torch.no_grad():
            call()
    except Exception as error:  # noqa: BLE001 - the type is what is asked for
        return error
    return None
