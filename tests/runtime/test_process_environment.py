"""Changes of the environment: XLA's threads read it, so they wait for the device."""

import functools
import os
import posix
import warnings

import pytest
import torch

import lazyrt
from lazyrt.execution import process
from lazyrt.observe import events
from tests.harness import DEVICE, run_python

NAME = "LAZYRT_TEST_OF_THE_ENVIRONMENT"


def long_work():
    """Have the device run something for some tenths of a second; return its result."""
    x = torch.ones(2800, 2800).to(DEVICE)
    y = x @ x  # one op, so that every mode runs it as one
    lazyrt.mark_step()
    return y


@pytest.mark.parametrize(
    "change",
    [
        lambda: os.environ.__setitem__(NAME, "1"),
        lambda: os.environ.pop("LAZYRT_KNOWN"),
        lambda: os.putenv(NAME, "1"),
        lambda: os.unsetenv(NAME),
    ],
    ids=["set", "remove", "putenv", "unsetenv"],
)
def test_a_change_waits_until_nothing_runs(monkeypatch, change):
    monkeypatch.setenv("LAZYRT_KNOWN", "1")
    result = long_work()

    before = lazyrt.in_flight()
    change()
    after = lazyrt.in_flight()

    assert (before, after) == (1, 0)
    assert result[0, 0].item() == 2800.0


def test_a_change_by_a_listener_to_the_end_of_an_execution_does_not_wait_for_itself():
    seen = []

    def listener(event):
        os.environ[NAME] = "1"
        seen.append(event.exact)

    with lazyrt.subscribe(listener, events.ExecuteFinished):
        long_work()
        assert lazyrt.wait(60)

    assert seen == [True]
    assert os.environ[NAME] == "1"


def test_what_others_put_in_front_is_wrapped_once(monkeypatch):
    theirs = functools.wraps(posix.putenv)(functools.partial(posix.putenv))
    monkeypatch.setattr(os, "putenv", theirs)
    process.guard_environment()
    ours = os.putenv
    monkeypatch.setattr(os, "putenv", functools.wraps(ours)(functools.partial(ours)))
    above = os.putenv

    process.guard_environment()

    assert vars(ours)["__wrapped__"] is theirs
    assert os.putenv is above


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_a_fork_has_nobody_to_wait_for():
    _result = long_work()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        os.environ[NAME] = "1"
        os._exit(0)

    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
def test_nothing_changes_before_the_first_execution():
    imports = "import os, posix, torch, lazyrt"
    recorded = "x = torch.ones(2, device='lazyrt') + 1"
    asked = "print(os.putenv is posix.putenv)"

    assert run_python(f"{imports}; {recorded}; {asked}") == "True"
