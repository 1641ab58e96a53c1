"""What the tests of explanations share."""

import torch

import lazyrt
from tests.harness import DEVICE


def ones(*shape, dtype=torch.float32):
    """Return ones on the device, as an input of the step that comes next."""
    found = torch.ones(*shape, dtype=dtype).to(DEVICE)
    lazyrt.mark_step()
    return found


def latest():
    """Return why the newest graph is new."""
    found = lazyrt.explain()
    assert found is not None
    return found


def the_cause(kind):
    """Return the only cause of the newest graph; it has a fix and takes every difference."""
    found = latest()
    assert [cause.kind for cause in found.causes] == [kind], str(found)
    assert found.unexplained == 0, str(found)
    assert found.top.fix
    return found.top


def compiles_of(run, *args, **kwargs):
    """Return how many graphs a call compiled."""
    known = lazyrt.counters()["compiles"]
    run(*args, **kwargs)
    return lazyrt.counters()["compiles"] - known
