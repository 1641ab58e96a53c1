"""The torch devices that are compared, behind one small interface.

Nothing here is imported before it is asked for: the process of a peer loads that peer alone.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Device:
    """One way to run torch programs.

    Attributes:
        name: As it is called on the command line.
        torch_name: For `tensor.to(...)`.
        mark_step: End the step: hand everything recorded to the device.
        wait: Return when the device is idle.
        counts: Compiles and executions so far.
    """

    name: str
    torch_name: str
    mark_step: Callable[[], None]
    wait: Callable[[], None]
    counts: Callable[[], Counts]


def open_device(name: str) -> Device:
    """Load and initialise a device; torch then computes on one thread."""
    import torch

    torch.set_num_threads(1)
    return _OPENERS[name]()


def _nothing() -> None:
    return None


def _open_eager() -> Device:
    return Device("eager", "cpu", _nothing, _nothing, dict)


def _open_lazyrt() -> Device:
    # Figures of a first time must not come from an earlier run's cache on disk, and the end
    # of a step is timed apart from the optimizer.
    os.environ["LAZYRT_CACHE_DIR"] = ""
    os.environ["LAZYRT_BARRIER_AFTER_OPTIMIZER"] = "0"
    import lazyrt

    def wait() -> None:
        lazyrt.wait()

    return Device(
        "lazyrt", "lazyrt", lazyrt.mark_step, wait, lambda: dict(lazyrt.counters())
    )


def _open_torch_lazy() -> Device:
    lazy: Any = importlib.import_module("torch._lazy")
    backend: Any = importlib.import_module("torch._lazy.ts_backend")
    metrics: Any = importlib.import_module("torch._lazy.metrics")
    backend.init()

    def counts() -> Counts:
        fresh = metrics.counter_value("UncachedCompile") or 0
        return {
            "compiles": fresh,
            "executions": fresh + (metrics.counter_value("CachedCompile") or 0),
        }

    return Device("torch-lazy", "lazy", lazy.mark_step, lazy.wait_device_ops, counts)


def _open_torch_xla() -> Device:
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    xla: Any = importlib.import_module("torch_xla")
    model: Any = importlib.import_module("torch_xla.core.xla_model")
    metrics: Any = importlib.import_module("torch_xla.debug.metrics")

    def count(metric: str) -> int:
        return int((metrics.metric_data(metric) or (0,))[0])

    def counts() -> Counts:
        return {"compiles": count("CompileTime"), "executions": count("ExecuteTime")}

    torch_name = re.sub(r"^(xla).*$", r"\1", str(xla.device()))
    return Device("torch-xla", torch_name, xla.sync, model.wait_device_ops, counts)


_OPENERS: dict[str, Callable[[], Device]] = {
    "eager": _open_eager,
    "lazyrt": _open_lazyrt,
    "torch-lazy": _open_torch_lazy,
    "torch-xla": _open_torch_xla,
}
