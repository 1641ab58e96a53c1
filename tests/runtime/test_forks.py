"""Forked processes, such as a DataLoader's workers."""

import os
import warnings

import pytest
import torch

import lazyrt
from lazyrt.errors import LazyRuntimeError
from lazyrt.execution import forks
from tests.harness import DEVICE


def in_a_fork(call):
    """Return the exit status of a forked process that makes a call: 3 if it is refused."""
    child = os.fork()
    if child == 0:
        status = 0
        try:
            call()
        except LazyRuntimeError:
            status = 3
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_a_fork_warns_of_nothing_and_its_use_of_the_device_is_refused():
    x = torch.ones(2, device=DEVICE) + 1
    lazyrt.materialise(x)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        forks.quieten()
        statuses = in_a_fork(lambda: None), in_a_fork((x * 3).tolist)

    assert statuses == (0, 3)
    assert told == []
