"""The kernels' lock: whatever interrupts an op, it is given back exactly once."""

from __future__ import annotations

import gc
import signal
import threading

import pytest
import torch

import lazyrt
from lazyrt.ir.live import lock


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
    """A timer whose signal raises KeyboardInterrupt, as Ctrl-C does."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
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
    lazyrt.mark_step()
    assert (x + 1).tolist() == [2, 2, 2]
