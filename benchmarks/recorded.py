"""Figures of peers as they were recorded, for machines that lack the peer.

They were taken on two cores with torch_xla 2.9.0, torch 2.9.1 and jax 0.10.2, for the same
model. Another machine's absolute times differ: compare ratios, or run the peer itself.
"""

from __future__ import annotations

from dataclasses import dataclass

ORIGIN = "recorded elsewhere (2 cores, torch_xla 2.9.0)"


@dataclass(frozen=True, slots=True)
class Steps:
    """Minimal milliseconds of host trace and whole step, and of a step in a pipelined loop."""

    trace_ms: float
    step_ms: float
    pipelined_ms: float


@dataclass(frozen=True, slots=True)
class Prints:
    """Ten prints at ten moving places: compiles, executions, and seconds, then seconds again."""

    compiles: int
    executions: int
    first_s: float
    again_s: float | None


TORCH_XLA_ADAMW = Steps(25.6, 34.2, 39.3)
TORCH_XLA_PRINTS = {
    "t": Prints(20, 20, 52.4, 0.48),
    "t[0, 0, :4]": Prints(10, 20, 5.64, None),
}
