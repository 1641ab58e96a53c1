"""Other processes: a DataLoader's workers, and what is sent to them."""

import os
import pickle
import warnings
from multiprocessing.reduction import ForkingPickler

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
def test_jax_warns_of_no_fork_and_its_use_of_the_device_is_refused():
    x = torch.ones(2, device=DEVICE) + 1
    lazyrt.materialise(x)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        forks.quieten()
        statuses = in_a_fork(lambda: None), in_a_fork((x * 3).tolist)

    assert statuses == (0, 3)
    # Python 3.12 and later warn by themselves that the process has threads.
    assert [str(each.message) for each in told if "JAX" in str(each.message)] == []


def sent(tensor):
    """Return what a process receives that gets a tensor through a queue."""
    return pickle.loads(ForkingPickler.dumps(tensor))  # noqa: S301 - made one line before


def test_a_tensor_goes_to_another_process_by_its_value():
    x = torch.ones(2, device=DEVICE) + 1
    weight = torch.nn.Parameter(torch.full((3,), 5.0, device=DEVICE))

    assert sent(x).tolist() == [2.0, 2.0]
    assert sent(x).device == x.device
    assert isinstance(sent(weight), torch.nn.Parameter)
    assert sent(weight).tolist() == [5.0, 5.0, 5.0]
    assert sent(weight).requires_grad
    assert sent(torch.ones(2)).device.type == "cpu"


def test_a_tensor_with_a_history_is_not_sent():
    x = torch.ones(2, device=DEVICE, requires_grad=True) * 2

    with pytest.raises(RuntimeError, match="call detach"):
        sent(x)
