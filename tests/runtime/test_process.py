"""Other processes: a DataLoader's workers, and what is sent to them."""

import os
import pickle
import warnings
from multiprocessing.reduction import ForkingPickler

import pytest
import torch

import lazyrt
from lazyrt.errors import LazyRuntimeError
from tests.harness import DEVICE, run_python

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")


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


@needs_fork
def test_a_forks_use_of_the_device_is_refused():
    x = torch.ones(2, device=DEVICE) + 1
    lazyrt.materialise(x)

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # those of Python 3.12 and of the other tests' jax
        statuses = in_a_fork(lambda: None), in_a_fork((x * 3).tolist)

    assert statuses == (0, 3)


@needs_fork
@pytest.mark.slow
def test_a_fork_ends_without_waiting_for_the_compiles_and_steps_of_its_parent():
    """What atexit calls there must not wait for threads that only the parent has."""
    code = (
        "import atexit, os, signal, torch, lazyrt\n"
        "from concurrent.futures import Future\n"
        "from lazyrt.execution import compiler, completion\n"
        "lazyrt.materialise(torch.ones(2, device='lazyrt') + 1)\n"
        "late = Future()\n"
        "late.set_running_or_notify_cancel()\n"
        "compiler._under_way['build'] = compiler._in_background.running = late\n"
        "class Never:\n"
        "    def is_ready(self):\n"
        "        return os.getpid() == parent\n"
        "parent = os.getpid()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    completion.watch(Never(), fingerprint='', purpose='step', step=0, started_ns=0)\n"
        "    signal.alarm(10)\n"
        "    atexit._run_exitfuncs()\n"
        "    os._exit(3)\n"
        "late.set_result(None)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )

    assert run_python(code) == "3"


@needs_fork
@pytest.mark.parametrize("mode", ["op_by_op_reads", "op_by_op_barriers", "eager"])
def test_a_forks_use_is_refused_in_every_mode(mode):
    """The op is a new one, which the fork would wait for its parent's threads to compile."""
    x = torch.ones(2, device=DEVICE) + 1
    lazyrt.materialise(x)
    power = ["op_by_op_reads", "op_by_op_barriers", "eager"].index(mode) + 2.5

    with lazyrt.config.scoped(**{mode: True}), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        status = in_a_fork(lambda: (x.pow(power).tolist(), lazyrt.mark_step()))

    assert status == 3


USE_LAZYRT = """
x = torch.ones(2, device="lazyrt") + 1
(x @ x).tolist()
print(x)
"""
# jax arrays in a rule of the user's are those of lazyrt's own compile.
OWN_RULE = """
import jax.numpy as jnp

@lazyrt.lowers("aten.frexp.Tensor")
def frexp(ctx, x):
    mantissa, exponent = jnp.frexp(x)
    return mantissa, exponent.astype(jnp.int32)

torch.frexp(torch.tensor([8.0]).to("lazyrt"))[0].tolist()
"""
USE_JAX = """
import jax.numpy as jnp
(jnp.ones(3) * 2).block_until_ready()
"""
FORK = """
import os, warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
told = [each for each in told if "JAX" in str(each.message)]
assert all(each.filename == "<string>" for each in told), told
print(len(told), end="")
"""


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "anew", "warnings_of_jax"),
    [
        (
            "import torch, lazyrt" + USE_LAZYRT + OWN_RULE + FORK + USE_JAX + FORK,
            True,
            "01",
        ),
        (USE_JAX + "import torch, lazyrt" + USE_LAZYRT + FORK, False, "1"),
        ("import torch, lazyrt" + USE_JAX + USE_LAZYRT + FORK, False, "1"),
    ],
    ids=["lazyrt alone, then jax", "jax before", "jax between"],
)
def test_jax_warns_of_a_fork_only_in_a_program_that_uses_jax_itself(
    program, anew, warnings_of_jax
):
    """A DataLoader with workers prints nothing, and the user's own jax program is told as ever."""
    assert run_python(program, anew=anew).splitlines()[-1] == warnings_of_jax


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
