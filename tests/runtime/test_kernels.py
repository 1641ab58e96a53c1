"""The kernels' lock: whatever interrupts an op, it is given back exactly once."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from concurrent import futures
from types import SimpleNamespace

import pytest
import torch

import lazyrt
from lazyrt.frontend import eager, infer, record
from lazyrt.ir.live import lock
from tests.harness import run_python, thinned


def is_free():
    """Return whether another thread can take the runtime's lock."""
    taken = []

    def take():
        taken.append(lock.acquire(timeout=5))
        lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken == [True]


@pytest.fixture
def alarm():
    """A timer that ends with Ctrl-C's signal."""
    before = signal.signal(
        signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT)
    )
    yield lambda after: signal.setitimer(signal.ITIMER_REAL, after)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_ctrl_c_while_an_op_waits_for_another_thread_is_a_keyboard_interrupt(alarm):
    x = torch.ones(3).to("lazyrt")
    held, done = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    alarm(0.05)
    with pytest.raises(KeyboardInterrupt):
        x + 1
    done.set()
    thread.join()

    assert is_free()
    assert (x + 1).tolist() == [2, 2, 2]


def test_ctrl_c_at_any_moment_of_recording_gives_the_lock_back_once(alarm):
    x = torch.ones(3).to("lazyrt")
    interrupted = 0
    gc.disable()  # jax has a callback there, in which Python drops an exception
    try:
        for number in range(300):
            lazyrt.mark_step()
            try:
                alarm(0.0002 + number * 1e-6)
                for _ in range(2000):  # some hundred times as long as the alarm waits
                    y = x + 1
                    y.mul_(2)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        gc.enable()
    assert interrupted == 300

    assert not lock._is_owned()  # type: ignore[attr-defined]
    assert is_free()
    assert torch.is_grad_enabled()
    lazyrt.mark_step()
    assert (x + 1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("end", ["__enter__", "__exit__"])
def test_ctrl_c_while_an_op_is_inferred_leaves_gradients_on(monkeypatch, end):
    x = torch.ones(3).to("lazyrt")
    original = getattr(torch.no_grad, end)

    def interrupted(self, *args):
        if end == "__enter__":
            original(self, *args)
        raise KeyboardInterrupt

    infer.forget()
    record.forget_nodes()
    with monkeypatch.context() as patched:
        patched.setattr(torch.no_grad, end, interrupted)
        with pytest.raises(KeyboardInterrupt):
            x + 1

    assert torch.is_grad_enabled()
    assert (x + 1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("moment", [1, 2])
def test_ctrl_c_on_the_way_into_an_eager_op_or_out_of_it_leaves_the_mode(
    monkeypatch, moment
):
    x = torch.ones(3).to("lazyrt")
    calls: list[None] = []

    def interrupted():
        calls.append(None)
        if len(calls) == moment:
            signal.raise_signal(signal.SIGINT)
        return sys.exception()

    with lazyrt.eager_mode():
        with monkeypatch.context() as patched:
            patched.setattr(eager, "sys", SimpleNamespace(exception=interrupted))
            with pytest.raises(KeyboardInterrupt):
                x + 1

        assert is_free()
        assert not lazyrt.is_pending(x + 2)


def test_ctrl_c_ends_the_wait_for_an_eager_op_that_compiles(monkeypatch):
    x = torch.ones(3).to("lazyrt")

    def wait(waited, timeout):
        signal.raise_signal(signal.SIGINT)
        return real(waited, 60)

    real = futures.wait
    with lazyrt.eager_mode():
        with monkeypatch.context() as patched:
            patched.setattr(futures, "wait", wait)
            with pytest.raises(KeyboardInterrupt) as caught:
                torch.nn.functional.softplus(x, beta=1.25)

        names = [entry.name for entry in caught.traceback]
        assert "_wait" in names
        assert is_free()
        assert not lazyrt.is_pending(x + 2)


def _linear_gradients(x):
    weight = torch.ones(2, 3, device=x.device, requires_grad=True)
    result = torch.nn.functional.linear(x, weight, weight[:, 0])
    return torch.autograd.grad(result.square().sum(), weight)


def _normalised(x):
    norm = torch.nn.BatchNorm1d(3).to(x.device)
    return norm(x).detach(), norm.running_mean, norm.running_var


SEVERAL_RESULTS = [
    lambda x: x.topk(2),
    lambda x: torch.var_mean(x, 1),
    lambda x: torch.ops.aten.sort.values(x, values=x + 1, indices=(x * 0).long()),
    _linear_gradients,
    _normalised,
]


@pytest.mark.parametrize("op", thinned(SEVERAL_RESULTS, 4))
def test_the_bound_of_pending_ops_ends_a_step_once_all_results_of_an_op_are_kept(op):
    """Else they would stand for other inputs: those of the next step."""
    x = torch.tensor([[1.0, -2.0, 0.5], [4.0, 3.0, 2.5]])

    for limit, eager_too in ((1, False), (2, False), (3, False), (1, True)):
        with (
            lazyrt.config.scoped(max_pending_nodes=limit),
            lazyrt.eager_mode(eager_too),
        ):
            lazy = x.to("lazyrt")
            found = op(lazy * 2 + lazy)
            further = [each + 1 for each in found]

        for each, more, oracle in zip(found, further, op(x * 3), strict=True):
            torch.testing.assert_close(each.cpu(), oracle)
            torch.testing.assert_close(more.cpu(), oracle + 1)


def test_kernels_are_made_by_their_first_calls():
    printed = run_python("""
import torch, lazyrt
from lazyrt.frontend import kernels
at_import = len(kernels.scopes)
x = torch.ones(2).to("lazyrt")
for _ in range(2):
    y = torch.tanh(x).neg_()
print(at_import, len(kernels.scopes), y.tolist() == torch.ones(2).tanh().neg().tolist())
""")

    assert printed.split() == ["0", "2", "True"]
