import dataclasses
import gc
import logging
import threading
from typing import Any

import pytest
import torch

import lazyrt
from lazyrt.errors import UsageError
from lazyrt.observe import events
from lazyrt.observe.events import (
    BarrierFinished,
    CompileFinished,
    Event,
    OpRecorded,
    SourceLocation,
    subscribe,
)
from lazyrt.observe.metrics import Metrics
from tests.harness import DEVICE, cold_start, recorded

KINDS = [
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
]


def barrier_event(**changes):
    values: dict[str, Any] = {
        "step": 1,
        "cause": "user",
        "site": None,
        "nodes": 0,
        "roots": 0,
        "executed": False,
        "duration_ns": 5,
    }
    return BarrierFinished(**(values | changes))


def test_a_listener_gets_the_kinds_it_asked_for():
    every: list[Event] = []
    barriers: list[Event] = []
    compiles: list[Event] = []

    with (
        subscribe(every.append),
        subscribe(barriers.append, BarrierFinished),
        subscribe(compiles.append, events.CompileFinished, events.CompileStarted),
    ):
        events.emit(barrier_event())

    assert every == barriers == [barrier_event()]
    assert compiles == []


def test_a_closed_subscription_hears_nothing_more():
    heard: list[Event] = []
    subscription = subscribe(heard.append)

    subscription.close()
    subscription.close()
    events.emit(barrier_event())

    assert heard == []


def test_one_listener_may_subscribe_twice():
    heard: list[Event] = []
    first, second = subscribe(heard.append), subscribe(heard.append)

    events.emit(barrier_event())
    first.close()
    events.emit(barrier_event())
    second.close()
    events.emit(barrier_event())

    assert len(heard) == 3


def test_a_listener_that_raises_is_logged_and_skipped(caplog):
    heard: list[Event] = []

    def broken(event):
        raise ValueError("broken listener")

    with (
        caplog.at_level(logging.ERROR),
        subscribe(broken, BarrierFinished),
        subscribe(heard.append, BarrierFinished),
    ):
        y = torch.ones(2, device=DEVICE) * 2
        lazyrt.mark_step()

    assert y.tolist() == [2.0, 2.0]
    assert len(heard) == 1
    assert "a listener failed on BarrierFinished" in caplog.text


def test_a_listener_may_subscribe_and_close_while_it_is_called():
    heard: list[Event] = []

    def once(event):
        subscription.close()
        heard.append(event)

    subscription = subscribe(once)
    events.emit(barrier_event())
    events.emit(barrier_event())

    assert len(heard) == 1


def test_recorded_ops_are_told_only_to_those_who_ask_for_them():
    plain: list[Event] = []
    asked: list[Any] = []

    with subscribe(plain.append), subscribe(asked.append, OpRecorded):
        x = torch.ones(2, device=DEVICE)
        y = x * 2
        y.add_(1)
        z = x * 2

    assert [event.op for event in asked] == [
        "aten.full.default",
        "aten.mul.Tensor",
        "aten.add.Tensor",
        "aten.mul.Tensor",
    ] or [event.op for event in asked][1:] == [
        "aten.mul.Tensor",
        "aten.add.Tensor",
        "aten.mul.Tensor",
    ]
    assert not any(isinstance(event, OpRecorded) for event in plain)
    assert asked[1].node_id == asked[3].node_id
    assert z is not y


def test_nobody_is_told_of_ops_after_the_last_subscription_closed():
    heard: list[Event] = []
    subscribe(heard.append, OpRecorded).close()

    torch.ones(2, device=DEVICE) * 2

    assert heard == []
    assert events.op_listeners == []


@pytest.mark.parametrize("kind", KINDS)
def test_events_are_keyword_only_and_hold_no_tensors(kind):
    assert kind.__doc__
    assert dataclasses.is_dataclass(kind)
    assert "__slots__" in vars(kind)
    for field in dataclasses.fields(kind):
        assert field.kw_only
        assert "Tensor" not in str(field.type)
        assert "Any" not in str(field.type)
        if field.name.endswith("_ns"):
            assert str(field.type) == "int"


def test_sites_are_written_for_people():
    assert str(SourceLocation("/home/me/train.py", 41, "main")) == "train.py:41"
    assert str(SourceLocation("<cell>", 2, "<module>", cell=3)) == "cell 3 line 2"


@pytest.mark.lazy_only("is about events of steps")
def test_events_of_a_step_agree_with_each_other():
    cold_start()
    x = torch.ones(3, device=DEVICE)
    y = x * 2

    with recorded() as found:
        lazyrt.mark_step()
        lazyrt.wait()

    by_name = {type(event).__name__: event for event in found}
    captured, compiled = by_name["GraphCaptured"], by_name["CompileFinished"]
    started, finished = by_name["ExecuteStarted"], by_name["ExecuteFinished"]
    fingerprints = {e.fingerprint for e in (captured, compiled, started, finished)}
    assert len(fingerprints) == 1
    assert captured.nodes == compiled.nodes == started.nodes
    assert captured.roots == started.outputs == 2
    assert captured.step == started.step == finished.step
    assert by_name["BarrierFinished"].step == captured.step
    assert (compiled.purpose, compiled.tier, compiled.source) == (
        "step",
        "fast",
        "xla",
    )
    assert all(
        getattr(event, field.name) >= 0
        for event in found
        for field in dataclasses.fields(event)
        if field.name.endswith("_ns")
    )
    assert y.tolist() == [2.0] * 3


@pytest.mark.not_eager("is about events of steps")
def test_a_peek_tells_what_it_ran():
    cold_start()
    y = torch.ones(3, device=DEVICE).to(torch.float32) * 3
    z = y.exp()

    with recorded(events.TensorMaterialised, events.ExecuteStarted) as found:
        repr(z)
        repr(z)
        repr(z + 1)

    peeks = [event for event in found if isinstance(event, events.TensorMaterialised)]
    assert [event.strategy for event in peeks[:2]] == ["op by op", "memo"] or [
        event.strategy for event in peeks[:2]
    ] == ["slice", "memo"]
    assert peeks[1].nodes == 0
    assert peeks[2].reused == 1
    assert peeks[2].nodes == 1
    assert all(event.site and event.site.file == __file__ for event in peeks)
    assert all(
        event.purpose == "peek"
        for event in found
        if isinstance(event, events.ExecuteStarted)
    )


def test_transfers_tell_direction_and_size():
    with recorded(events.TransferFinished) as found:
        x = torch.ones(4, 4).to(DEVICE)
        x.cpu()

    assert [(event.direction, event.nbytes) for event in found] == [
        ("to_device", 64),
        ("to_host", 64),
    ]


@pytest.mark.not_eager("a cut needs something that is pending")
def test_a_fallback_names_op_reason_and_line():
    x = torch.tensor([1.0, 0.0, 2.0]).to(DEVICE)

    with recorded(events.FallbackUsed, BarrierFinished) as found:
        y = x + 0
        z = y.nonzero()

    barrier, fallback = found
    assert barrier.cause.startswith("CPU fallback of aten.nonzero")
    assert fallback.op == "aten.nonzero.default"
    assert fallback.reason
    assert fallback.site.file == __file__
    assert z.tolist() == [[0], [2]]


def test_ready_tensors_are_told_apart_from_computed_ones():
    x = torch.ones(3).to(DEVICE)

    with recorded(events.TensorMaterialised, events.ExecuteStarted) as found:
        repr(x)

    assert not any(isinstance(event, events.ExecuteStarted) for event in found)


def test_listening_keeps_no_executable_or_array_alive():
    import jax

    with recorded() as found:
        y = torch.ones(1000, device=DEVICE) * 2
        lazyrt.mark_step()
        lazyrt.wait()
        gc.collect()
        count = len(jax.live_arrays())
        del y
        gc.collect()

        assert len(jax.live_arrays()) == count - 1
    assert found


@pytest.mark.parametrize("kind", ["CompileFinished", int, CompileFinished])
def test_a_listener_that_could_hear_nothing_is_refused_and_not_kept(kind):
    before = events._subscriptions
    arguments = (5, kind) if kind is CompileFinished else (print, kind)

    with pytest.raises(UsageError, match=r"^subscribe\(\) got "):
        events.subscribe(*arguments)

    assert events._subscriptions is before


def test_an_event_told_while_one_is_counted_is_counted_too():
    """A garbage collection inside the count may end a loop, which tells of what it left."""
    counted = Metrics()
    hit = events.CacheHit(fingerprint="a", step=1)

    def count_both():
        with counted._lock:
            counted(hit)

    thread = threading.Thread(target=count_both, daemon=True)
    thread.start()
    thread.join(5)

    assert not thread.is_alive()
    assert counted.counters()["cache_hits"] == 1
