"""Scopes: labels, and barriers inside them."""

import asyncio
import contextlib
import sys

import pytest
import torch

import lazyrt
from lazyrt.config import config
from lazyrt.errors import ScopeError, UsageError
from lazyrt.ir import active
from lazyrt.observe import events
from tests.harness import DEVICE, cold_start, recorded


def work():
    return torch.ones(2, device=DEVICE) * 3


@pytest.mark.not_eager("looks at what is pending")
def test_a_barrier_in_a_scope_fails_in_the_words_of_the_original():
    y = work()

    with (  # noqa: PT012
        pytest.raises(
            RuntimeError, match=r"Expecting scope to be empty but it is train_loop\."
        ) as caught,
        lazyrt.scope("train_loop"),
    ):
        y = y + 1
        lazyrt.mark_step()

    assert isinstance(caught.value, ScopeError)
    opened, called = caught.value.__notes__
    line = caught.traceback[0].lineno + 1
    assert opened.startswith("the scope 'train_loop' was opened at test_scopes.py:")
    # Which line of the `with` statement it is, depends on the version of Python.
    assert 3 <= line - int(opened.rsplit(":")[-1]) <= 7
    assert called == f"mark_step() was called at test_scopes.py:{line}"
    assert f"Move line {line} out of the `with` block" in str(caught.value)
    assert lazyrt.is_pending(y)
    assert y.tolist() == [4.0, 4.0]


def test_nested_scopes_are_named_by_their_path():
    with (
        pytest.raises(ScopeError, match=r"but it is epoch/loss\."),
        lazyrt.scope("epoch"),
        lazyrt.scope("loss"),
    ):
        lazyrt.sync()


def test_split_ends_the_scope_before_the_barrier_and_goes_on_after_it():
    with (
        config.scoped(scope_policy="split"),
        recorded(events.ScopeFinished, events.BarrierFinished) as found,
        lazyrt.scope("epoch"),
        lazyrt.scope("loss"),
    ):
        y = work()
        lazyrt.mark_step()
        assert not lazyrt.is_pending(y)

    told = [
        (e.path, e.part) if isinstance(e, events.ScopeFinished) else 0 for e in found
    ]
    assert told == [("epoch/loss", 1), ("epoch", 1), 0, ("epoch/loss", 2), ("epoch", 2)]


def test_whole_steps_may_lie_in_a_scope_and_scopes_in_a_step():
    with lazyrt.scope("epoch"):
        for _ in range(2):
            with lazyrt.step(), lazyrt.scope("forward"):
                y = work()

    assert y.tolist() == [3.0, 3.0]


def test_barriers_that_nobody_wrote_pass():
    weight = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer = torch.optim.SGD([weight], lr=0.5)

    with lazyrt.scope("update"):
        weight.sum().backward()
        optimizer.step()
        assert weight.tolist() == [0.5, 0.5]
        for batch in lazyrt.DeviceLoader([torch.ones(2)]):
            assert batch.tolist() == [1.0, 1.0]


@pytest.mark.not_eager("looks at what is pending")
def test_scopes_and_modules_are_in_the_metadata_of_the_hlo():
    """What a scope labels can be found in the executable."""
    cold_start()
    layer = torch.nn.Linear(3, 2).to(DEVICE)
    model = torch.nn.Sequential(layer)
    x = torch.ones(4, 3).to(DEVICE)

    with lazyrt.scope("train_loop"), lazyrt.scope("loss"):
        y = model(x).square().sum()

    lowered = lazyrt.pending_graph(y).lower()
    assert '"train_loop/loss/0/aten.addmm.default"' in lowered.as_text("stablehlo")
    assert "/train_loop/loss/aten.sum.default" in lowered.as_text("hlo")


def test_a_scope_does_not_change_the_graph():
    def fingerprint(*, scoped):
        with lazyrt.scope("loss") if scoped else recorded():
            y = work()
        return lazyrt.pending_graph(y).fingerprint

    assert fingerprint(scoped=True) == fingerprint(scoped=False)


def test_a_scope_is_closed_by_an_exception():
    with pytest.raises(ZeroDivisionError), lazyrt.scope("loss"):
        raise ZeroDivisionError

    lazyrt.mark_step()


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_scope_needs_a_label(name):
    with (
        pytest.raises(UsageError, match="so its ops would have no label"),
        lazyrt.scope(name),
    ):
        pass


def test_the_policy_takes_two_words():
    with pytest.raises(UsageError, match="'error', 'split'"):
        config.scope_policy = "join"  # type: ignore[assignment]


def test_a_barrier_that_fails_splits_the_scope_all_the_same(monkeypatch):
    def fail(*_args, **_keywords):
        raise RuntimeError("no device")

    monkeypatch.setattr("lazyrt.execution.executor.run_plan", fail)
    with (
        config.scoped(scope_policy="split", eager=False, op_by_op_barriers=False),
        recorded(events.ScopeFinished) as found,
        lazyrt.scope("loop"),
    ):
        y = work()
        with pytest.raises(RuntimeError, match="no device"):
            lazyrt.mark_step()
        del y

    assert [event.part for event in found] == [1, 2]
    first, second = found
    assert second.started_ns >= first.started_ns + first.duration_ns


def test_a_decorated_function_and_coroutine_run_in_the_scope():
    label = lazyrt.scope("loss")

    @label
    def inside(depth):
        return inside(depth - 1) if depth else active.labels()[0]

    @label
    async def awaited():
        return active.labels()[0]

    assert [inside(0), inside(1), inside(0)] == ["loss", "loss/loss", "loss"]
    assert asyncio.run(awaited()) == "loss"
    assert inside.__name__ == "inside"
    assert active.scopes() == ()


def test_a_decorated_generator_is_refused():
    with pytest.raises(UsageError, match="runs in pieces"):

        @lazyrt.scope("loss")
        def pieces():
            yield


def test_one_scope_ends_where_it_was_entered_last_whatever_ends_first():
    outer, inner = lazyrt.scope("outer"), lazyrt.scope("inner")

    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert active.labels()[0] == "inner"
    inner.__exit__(None, None, None)

    assert active.scopes() == ()


def test_the_line_of_a_scope_is_where_it_was_opened_also_on_a_stack_and_decorated():
    @lazyrt.scope("called")
    def called():
        pass

    with recorded(events.ScopeFinished) as found, contextlib.ExitStack() as stack:
        stack.enter_context(lazyrt.scope("stacked"))
        opened = sys._getframe().f_lineno - 1
        called()
        calling = sys._getframe().f_lineno - 1

    assert [(e.path, e.site.line) for e in found] == [
        ("stacked/called", calling),
        ("stacked", opened),
    ]


def test_a_scope_costs_no_event_while_nobody_listens_to_scopes():
    assert events.scope_listeners == []
    with recorded(events.ScopeFinished):
        assert len(events.scope_listeners) == 1
    with lazyrt.subscribe(print, events.CompileFinished):
        assert events.scope_listeners == []
    with lazyrt.subscribe(lambda _: None):
        assert len(events.scope_listeners) == 1
