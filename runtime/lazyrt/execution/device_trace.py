"""What the device ran and when: jax's trace of its instructions, and the programs they are of."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lazyrt import jax_compat
from lazyrt.closing import Closing
from lazyrt.execution import compiler
from lazyrt.lowering.hlo_places import compiled_text

if TYPE_CHECKING:
    from collections.abc import Callable

_TRIES = 5


class DeviceTrace(Closing):
    """A trace of the device, taken until it is closed.

    Attributes:
        data: The trace as bytes of an XSpace proto; empty until it is closed.
        fault: Why there is no trace; empty if there is one. jax says so at the end of it.
        epoch_ns: What to add to a time of `time.perf_counter_ns` to get nanoseconds since 1970,
            as the trace counts them.
    """

    def __init__(self) -> None:
        self.data = b""
        self.fault = ""
        self.epoch_ns = _epoch_ns()
        self._end: Callable[[], bytes] | None = None
        try:
            self._end = jax_compat.start_device_trace()
        except RuntimeError as error:
            self.fault = _fault(error)

    def close(self) -> None:
        """End the trace; closing twice is harmless."""
        end, self._end = self._end, None
        try:
            self.data = end() if end is not None else self.data
        except RuntimeError as error:
            self.fault = _fault(error)


def _fault(error: RuntimeError) -> str:
    return (
        f"no trace of the device was taken: {str(error).rstrip('.')}. There is one at a time: end the other one "
        "first (jax.profiler.stop_trace(), or the end of its block)."
    )


def _epoch_ns() -> int:
    """Return the difference of the two clocks, from the closest of a few readings."""
    found = []
    for _ in range(_TRIES):
        before = time.perf_counter_ns()
        since_1970 = time.time_ns()
        after = time.perf_counter_ns()
        found.append((after - before, since_1970 - (before + after) // 2))
    return min(found)[1]


def device_trace() -> DeviceTrace:
    """Trace what the device runs, instruction by instruction, from now on.

    Returns:
        Close it, or use it in `with`, to stop; then it has the trace, or why there is none.
    """
    return DeviceTrace()


def compiled_texts(fingerprint: str) -> tuple[str, ...]:
    """Return the optimised HLO of the programs that a graph's builds in memory consist of."""
    return tuple(
        compiled_text(program)
        for build in compiler.executables_of(fingerprint)
        for program in getattr(build, "programs", [build])
    )
