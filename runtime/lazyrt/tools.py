"""What tools that inspect a program need of lazyrt beside its public names; lazyviz is one.

The classes are what `lazyrt.pending_graph`, `inspect`, `look` and others return parts of;
`provenance` tells the user's lines from ours. Nothing here runs or changes what is pending.
"""

from __future__ import annotations

from lazygraph.explain.why import differences
from lazygraph.snapshot import Name, rounds_in
from lazyrt.control.capture import (
    Captured,
    Making,
    StepWatch,
    add_kind,
    capture,
    capture_here,
)
from lazyrt.control.capture import Request as CaptureRequest
from lazyrt.control.dry_run import dry_run
from lazyrt.control.live_tensors import COLUMNS as LIVE_COLUMNS
from lazyrt.control.live_tensors import LiveRow, held_by, holdings_in, waiting_cells
from lazyrt.control.modes import Status
from lazyrt.execution.cost_model import compile_forecast, run_ns
from lazyrt.execution.executables import DeviceTrace, compiled_texts, device_trace
from lazyrt.execution.graph_registry import decode_record
from lazyrt.execution.input_provenance import Holding
from lazyrt.execution.inspection import Cost, NotFinite, Operand, Origin
from lazyrt.execution.memory import available as available_memory
from lazyrt.execution.memory import in_use
from lazyrt.execution.peek import Lifetime, NodeValues
from lazyrt.execution.preview import Look, NonFinite, Summary
from lazyrt.frontend import provenance
from lazyrt.frontend.provenance import user_site
from lazyrt.frontend.reads import Tracked, require_lazy
from lazyrt.frontend.tracing import Pause, Sample
from lazyrt.ir.node import Leaf, Node, Provenance, Value

__all__ = [
    "LIVE_COLUMNS", "CaptureRequest", "Captured", "Cost", "DeviceTrace", "Holding", "Leaf", "Lifetime", "LiveRow",
    "Look", "Making", "Name", "Node", "NodeValues", "NonFinite", "NotFinite", "Operand", "Origin", "Pause",
    "Provenance", "Sample", "Status", "StepWatch", "Summary", "Tracked", "Value", "add_kind", "available_memory",
    "capture", "capture_here", "compile_forecast", "compiled_texts", "decode_record", "device_trace", "differences", "dry_run",
    "held_by", "holdings_in", "in_use", "provenance", "require_lazy", "rounds_in",
    "run_ns", "user_site", "waiting_cells",
]  # fmt: skip
