"""What the tests of the runtime share: a fresh runtime, recorded events, other processes."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import lazyrt
from lazyrt.config import config
from lazyrt.execution.graph_registry import graph_registry
from lazyrt.frontend import record
from lazyrt.ir import live
from lazyrt.observe import events
from tests.quick_python import interpreter

ROOT = Path(__file__).parent.parent
DEVICE = "lazyrt"


@contextlib.contextmanager
def fresh_runtime():
    """Run a test with nothing pending, counters at zero, a seed, and no cache on disk."""
    names = [field.name for field in fields(config)]
    before = {name: (getattr(config, name), config.origin(name)) for name in names}
    _free_what_the_test_before_left()
    lazyrt.mark_step()
    lazyrt.wait()
    config.cache_dir = None
    graph_registry.clear()  # a new graph is explained by those before it, which match for seconds
    torch.manual_seed(0)
    lazyrt.reset_counters()
    # TorchDynamo, once a test has compiled, switches them off for the whole process.
    torch.distributions.Distribution.set_default_validate_args(__debug__)
    try:
        yield
    finally:
        for name, (value, origin) in before.items():
            config.set(name, value, origin=origin)


_left = 0  # tensors that a collection has not freed: those of a module, say


def _free_what_the_test_before_left():
    """Collect what a traceback or a cycle holds, so that a test counts its own tensors alone."""
    global _left  # noqa: PLW0603 - what the last collection left
    if len(lazyrt.live_tensors()) > _left:
        for name in ("last_value", "last_traceback", "last_type", "last_exc"):
            vars(sys).pop(name, None)
        gc.collect()
        if not lazyrt.live_tensors():
            gc.freeze()  # what stays between tests is not gone through again
    _left = len(lazyrt.live_tensors())


@contextlib.contextmanager
def recorded(*kinds):
    """Yield the list of events of the given kinds that the block emits."""
    found: list[Any] = []
    with events.subscribe(found.append, *kinds):
        yield found


def cold_start():
    """Forget executables, plans, nodes and varying numbers, as a new process would."""
    lazyrt.mark_step()
    lazyrt.clear_caches()
    graph_registry.clear()
    record.forget_nodes()
    live.forget_places()


def step_fingerprints(found):
    return [e.fingerprint for e in found if isinstance(e, events.GraphCaptured)]


def run_python(code, *, anew=False, **environment):
    """Run a program in a process of its own and return what it printed.

    Args:
        code: The program.
        anew: Whether it matters what is imported already: torch, its Dynamo and jax are.
        environment: Further variables.
    """
    done = start_python(code, anew=anew, **environment)
    output, errors = done.communicate(timeout=300)
    assert done.returncode == 0, errors
    return output.strip()


def start_python(code, *, anew=False, **environment):
    """Start such a program."""
    env = dict(
        os.environ,
        PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'runtime'}",
        LAZYRT_CACHE_DIR="",
    )
    env.update(environment)
    return subprocess.Popen(
        [*([sys.executable] if anew else interpreter(env)), "-c", code],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def bytecodes_of(function):
    """Return how many Python instructions a call executes on this thread, those of C left out."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()  # a collection runs callbacks of whatever dies in it
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def lazy(tensor):
    return tensor.to(DEVICE)


def thinned(cases, keep):
    """Return cases of a test: one in `keep` for every run, the rest for the slow ones."""
    return [
        case if number % keep == 0 else pytest.param(case, marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


_comparisons: list[Any] | None = None


def compare_after_the_step(compare, *arguments):
    """Run what is pending, then compare: at the end of a block of `at_once`, once for all."""
    if _comparisons is not None:
        _comparisons.append((compare, arguments))
        return
    lazyrt.mark_step()
    compare(*arguments)


@contextlib.contextmanager
def at_once():
    """Let programs of the block be recorded one after the other and run as one step.

    Compiling is most of what a small program costs.
    """
    global _comparisons  # noqa: PLW0603 - those of the block
    _comparisons = []
    try:
        yield
        waiting = _comparisons
    finally:
        _comparisons = None
    lazyrt.mark_step()
    for number, (compare, arguments) in enumerate(waiting):
        with naming(f"program {number}"):
            compare(*arguments)


@contextlib.contextmanager
def naming(*case):
    """Let an exception of the block name the case that it comes from."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {case}")
        raise


def assert_same(actual, expected, tolerance=1e-6):
    """Compare a lazy tensor with torch's own: shape, strides, dtype and values."""
    assert actual.device.type == DEVICE
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    host = lazyrt.materialise(actual)
    torch.testing.assert_close(
        host, expected.detach(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


def grad_of(tensor):
    """Return a leaf's gradient on the CPU."""
    assert tensor.grad is not None
    return tensor.grad.cpu()
