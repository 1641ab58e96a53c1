"""The background flush: values ahead of their readers, the user's graph as it was."""

import threading
import time

import pytest
import torch

import lazyrt
from lazyrt.errors import UsageError
from lazyrt.execution import compiler
from lazyrt.observe import events
from tests.harness import DEVICE, cold_start, recorded


@pytest.fixture(autouse=True)
def _no_flush_left():
    yield
    lazyrt.background_flush(None)


def wait_until_flushed(flush, seconds=60):
    end = time.monotonic() + seconds
    while flush.waiting and time.monotonic() < end:
        time.sleep(0.005)
    assert flush.waiting == 0


def program():
    x = torch.linspace(0, 1, 6).to(DEVICE)
    y = (x * 2).exp()
    return y, (y + torch.rand(6, device=DEVICE)).sum()


@pytest.mark.not_eager("needs pending values")
def test_pending_values_are_computed_without_a_call():
    """What waits reaches 0 by itself, and peeks then find their values."""
    y, total = program()
    with lazyrt.background_flush(0.02) as flush:
        wait_until_flushed(flush)
        before = lazyrt.counters()

        with recorded(events.TensorMaterialised) as found:
            values = lazyrt.materialise(y), lazyrt.materialise(total)

    assert [event.strategy for event in found] == ["memo", "memo"]
    used = lazyrt.counters() - before
    assert used["background_executions"] == used["peek_executions"] == 0
    assert lazyrt.is_pending(y)
    lazyrt.mark_step()
    torch.testing.assert_close(values, (y.cpu(), total.cpu()))


@pytest.mark.lazy_only("needs pending values")
def test_the_users_graph_is_not_cut():
    """The next step has the fingerprint that it has without the flush."""

    def step(*, flushed):
        torch.manual_seed(4)
        tensors = program()
        if flushed:
            with lazyrt.background_flush(0.01) as flush:
                wait_until_flushed(flush)
        with recorded(events.GraphCaptured) as found:
            lazyrt.mark_step()
        return found[0].fingerprint, [t.cpu() for t in tensors]

    first, values = step(flushed=False)
    before = lazyrt.counters()
    second, same = step(flushed=True)

    assert first == second
    assert (lazyrt.counters() - before)["compiles"] == 0
    torch.testing.assert_close(same, values)


@pytest.mark.slow
def test_two_threads_and_a_flush_agree_in_two_hundred_runs():
    """No race: two threads record, peek and barrier while values are computed."""
    x = torch.arange(5.0).to(DEVICE)
    wrong: list[object] = []

    def work(factor):
        try:
            for number in range(100):
                y = x * factor + number
                z = y.tanh()
                if number % 3 == 0:
                    time.sleep(0.001)
                if number % 5 == 0:
                    lazyrt.mark_step()
                found = lazyrt.materialise(z) if number % 2 else z.cpu()
                expected = (torch.arange(5.0) * factor + number).tanh()
                if not torch.allclose(found, expected, atol=1e-6):
                    wrong.append((factor, number, found))
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(factor,)) for factor in (2.0, 3.0)]
    with lazyrt.background_flush(0.0005):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert wrong == []


@pytest.mark.not_eager("needs pending values")
def test_the_memory_it_may_use_is_bounded():
    x = torch.ones(1000).to(DEVICE)
    tensors = [x + number for number in range(4)]
    lazyrt.config.peek_memo_bytes = 2 * x.nbytes
    with lazyrt.background_flush(0.005) as flush:
        end = time.monotonic() + 60
        while flush.waiting > 2 and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(0.05)

        assert flush.waiting == 2
    assert [t[0].item() for t in tensors] == [1, 2, 3, 4]


def test_one_flush_replaces_another_and_none_ends_it():
    first = lazyrt.background_flush(0.01)
    second = lazyrt.background_flush(0.02)

    assert first is not None
    assert second is not None
    assert not first._thread.is_alive()
    assert lazyrt.background_flush(None) is None
    assert not second._thread.is_alive()


@pytest.mark.not_eager("needs pending values")
def test_work_dropped_while_it_is_compiled_does_not_end_the_flush(monkeypatch):
    compiled = []
    compile_spec = compiler.compile_spec

    def dropping(*args):
        compiled.append(args)
        if len(compiled) == 1:
            lazyrt.discard_pending()
        return compile_spec(*args)

    monkeypatch.setattr(compiler, "compile_spec", dropping)
    cold_start()
    lost = torch.ones(7).to(DEVICE).cosh()
    with lazyrt.background_flush(0.01) as flush:
        while not compiled:
            time.sleep(0.005)
        y = torch.ones(7, device=DEVICE).sinh() + 2
        wait_until_flushed(flush)

        assert flush._thread.is_alive()
        assert torch.allclose(lazyrt.materialise(y), torch.ones(7).sinh() + 2)
    del lost


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), "soon", True])
def test_a_pause_that_is_none_is_refused(seconds):
    with pytest.raises(UsageError, match=r"takes the seconds between two looks"):
        lazyrt.background_flush(seconds)
