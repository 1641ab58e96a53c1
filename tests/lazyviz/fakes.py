"""A stand-in for the runtime, for tests of what happens before any op is recorded."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from lazyrt.observe import events
from lazyrt.tools import Status


class FakeTensor(torch.Tensor):
    """A CPU tensor that says it is on the lazy device."""

    @property
    def device(self):  # type: ignore[override]
        return SimpleNamespace(type="lazyrt", __str__=lambda: "lazyrt:0")


def fake_tensor(*values):
    return torch.tensor(values).as_subclass(FakeTensor)


class FakeGraph:
    """A graph without nodes."""

    nodes = ()
    parameters = ()
    roots = ()
    fingerprint = ""


class FakeRuntime:
    """The public functions of lazyrt that a session calls, each call counted."""

    __name__ = "fakert"

    def __init__(self):
        self.count = 0
        self.running = 0
        self.waits = []
        self.subscriptions = []

    def activity(self):
        return self.count

    def act(self, *happened):
        """Do something on the device, and tell listeners."""
        self.count += 1
        for event in happened:
            events.emit(event)

    def graph_of_step(self, _number):
        return None

    def begin_cell(self):
        pass

    def in_flight(self):
        return self.running

    def wait(self, timeout_s=None, *, check=True):
        self.waits.append(timeout_s)
        return self.running == 0

    def subscribe(self, listener, *kinds):
        subscription = events.subscribe(listener, *kinds)
        self.subscriptions.append(subscription)
        return subscription

    def pending_graph(self, *tensors):
        return FakeGraph()

    def live_tensors(self):
        return []

    def status(self):
        return status()

    def mode(self):
        return "lazy"

    def is_pending(self, tensor):
        return True


def status(**more):
    nothing = {
        "steps": (),
        "scopes": (),
        "pending_ops": 0,
        "pending_bytes": 0,
        "pending_from": None,
        "live_tensors": 0,
        "live_bytes": 0,
        "queued_closures": 0,
        "async_closures": 0,
        "async_age_ns": 0,
        "in_flight": 0,
        "last_barrier": None,
    }
    return Status(**{**nothing, **more})


def barrier(step=1, cause="read by .item()", site=None, nodes=4, *, executed=True):
    return events.BarrierFinished(
        step=step,
        cause=cause,
        site=site,
        nodes=nodes,
        roots=1,
        executed=executed,
        duration_ns=1_000,
    )


def compiled(duration_ns=5_000, purpose="step", reason="", fingerprint="aa", nodes=4):
    return events.CompileFinished(
        fingerprint=fingerprint,
        purpose=purpose,
        tier="optimised",
        source="xla",
        nodes=nodes,
        duration_ns=duration_ns,
        reason=reason,
    )


def waited(duration_ns=5_000, phase="compile", purpose="step", *, interrupted=False):
    return events.WaitFinished(
        fingerprint="aa",
        purpose=purpose,
        phase=phase,
        duration_ns=duration_ns,
        interrupted=interrupted,
    )


def started(step=1, purpose="step", fingerprint="aa"):
    return events.ExecuteStarted(
        fingerprint=fingerprint,
        purpose=purpose,
        step=step,
        nodes=4,
        inputs=1,
        outputs=1,
        donated=0,
        time_ns=0,
        dispatch_ns=10,
    )


def finished(step=1, duration_ns=7_000, purpose="step", fingerprint="aa"):
    return events.ExecuteFinished(
        fingerprint=fingerprint, purpose=purpose, step=step, duration_ns=duration_ns
    )


def captured(step=1, fingerprint="aa"):
    return events.GraphCaptured(
        step=step,
        fingerprint=fingerprint,
        nodes=4,
        parameters=1,
        roots=1,
        cache_hit=False,
        duration_ns=10,
    )


def progress(
    phase="compile", nodes=214, elapsed_ns=1_500_000_000, purpose="step", done=None
):
    return events.CompileProgress(
        fingerprint="aa",
        purpose=purpose,
        phase=phase,
        nodes=nodes,
        elapsed_ns=elapsed_ns,
        done=done,
    )
