"""The fast build first, the optimised one when a background thread has made it."""

from __future__ import annotations

import signal
import threading
from concurrent import futures

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt import config, jax_compat
from lazyrt.execution import compiler
from lazyrt.observe import events
from lazyrt.testing import frozen
from tests.harness import DEVICE, cold_start, recorded, run_python, start_python

pytestmark = pytest.mark.lazy_only("is about executables of steps")


@pytest.fixture(autouse=True)
def _tiered():
    cold_start()
    compiler._not_built.clear()
    with config.scoped(compile_tier="tiered", cache_dir=None):
        yield
        wait_for_builds()


def wait_for_builds():
    futures.wait(list(compiler._under_way.values()))


class Training:
    """A small training loop whose losses are kept."""

    def __init__(self, device=DEVICE):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
        self.model = self.model.to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.x = torch.ones(5, 4).to(device)

    def step(self):
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def tiers_of(found, purpose):
    done = [e for e in found if isinstance(e, events.CompileFinished)]
    return [e.tier for e in done if e.purpose == purpose]


def test_a_loop_starts_by_the_fast_build_and_goes_on_by_the_optimised_one():
    training, cpu = Training(), Training("cpu")
    with recorded(events.CompileFinished, events.BuildSwapped) as found:
        losses = [training.step()]
        wait_for_builds()
        losses += [training.step() for _ in range(3)]

    torch.testing.assert_close(losses, [cpu.step() for _ in range(4)])
    assert tiers_of(found, "step") == ["fast"]
    assert tiers_of(found, "tier up") == ["optimised"]
    (swap,) = [e for e in found if isinstance(e, events.BuildSwapped)]
    (graph,) = lazyrt.compiled_graphs()
    assert swap.fingerprint == graph.fingerprint
    assert (graph.runs, graph.compiles, graph.last_step) == (4, 1, swap.step + 2)
    assert lazyrt.counters()["compiles"] == lazyrt.counters()["tier_up_compiles"] == 1


def test_a_small_graph_is_built_once():
    with recorded(events.CompileFinished) as found:
        y = torch.ones(3, device=DEVICE) * 2
        lazyrt.mark_step()

    assert y.tolist() == [2, 2, 2]
    assert tiers_of(found, "step") == ["optimised"]
    assert tiers_of(found, "tier up") == []


@pytest.mark.parametrize("tier", ["tiered", "optimised"])
def test_a_restart_begins_by_the_fast_build_if_the_disk_has_it(tmp_path, tier):
    with config.scoped(cache_dir=tmp_path):
        with config.scoped(compile_tier=tier):
            losses = [Training().step()]
        wait_for_builds()
        cold_start()
        with recorded(events.CompileFinished, events.BuildSwapped) as found:
            again = Training()
            losses.append(again.step())
            wait_for_builds()
            again.step()

    read = [e for e in found if isinstance(e, events.CompileFinished)]
    assert losses[0] == pytest.approx(losses[1])
    assert {e.source for e in read} == {"disk"}
    if tier == "tiered":
        assert (tiers_of(read, "step"), tiers_of(read, "tier up")) == (
            ["fast"],
            ["optimised"],
        )
        assert len(found) == len(read) + 1
    else:
        assert (tiers_of(read, "step"), tiers_of(read, "tier up")) == (
            ["optimised"],
            [],
        )


def test_inside_frozen_the_build_stays():
    training = Training()
    training.step()
    wait_for_builds()
    with recorded(events.BuildSwapped) as inside, frozen():
        training.step()
    with recorded(events.BuildSwapped) as after:
        training.step()

    assert not inside
    assert len(after) == 1


def test_a_build_that_fails_in_the_background_leaves_the_fast_one(monkeypatch):
    make = jax_compat.compile_text

    def refuse(*args, fast, **rest):
        if not fast:
            raise MemoryError("no room")
        return make(*args, fast=fast, **rest)

    monkeypatch.setattr(jax_compat, "compile_text", refuse)
    training = Training()
    with recorded(events.CompileFinished, events.BuildSwapped) as found:
        training.step()
        wait_for_builds()
        training.step()
        lazyrt.execution.executor.clear_plans()  # looked up again, and not tried again
        training.step()
        wait_for_builds()

    assert [type(e) for e in found] == [events.CompileFinished]
    assert len(lazyrt.compiled_graphs()) == 1


def test_steps_go_on_while_the_build_is_under_way(monkeypatch):
    make, go_on = jax_compat.compile_text, threading.Event()

    def wait(*args, fast, **rest):
        if threading.current_thread().name.startswith("lazyrt-tier-up"):
            go_on.wait(60)
        return make(*args, fast=fast, **rest)

    monkeypatch.setattr(jax_compat, "compile_text", wait)
    training = Training()
    with recorded(events.CompileFinished, events.BuildSwapped) as found:
        for _ in range(3):
            training.step()
        (training.x.exp() @ training.x.T).sin().tolist()  # compiles meanwhile
        assert not tiers_of(found, "tier up")
        go_on.set()
        wait_for_builds()
        training.step()

    assert any(isinstance(e, events.BuildSwapped) for e in found)
    assert tiers_of(found, "step") == ["fast", "optimised"]


_ENDING = """
import lazyrt, signal, threading, time, torch
from lazyrt import jax_compat
from lazyrt.execution import compiler
signal.signal(signal.SIGINT, signal.default_int_handler)
compiler._MAX_FAREWELL_S = 0.01
make, under_way = jax_compat.compile_text, threading.Event()
def slow(*args, fast, **rest):
    if not fast:
        under_way.set()
        time.sleep({seconds})
    made = make(*args, fast=fast, **rest)
    print('fast' if fast else 'optimised', flush=True)
    return made
jax_compat.compile_text = slow
x = torch.ones(2, 8).to('lazyrt')
for k in range(40):
    x = (x @ x.T).sin() @ x + k
lazyrt.mark_step()
under_way.wait(60)
print('end', flush=True)
"""


@pytest.mark.slow
def test_a_program_that_ends_waits_for_the_build_under_way():
    code = _ENDING.format(seconds=1)
    out = run_python(code, LAZYRT_COMPILE_TIER="tiered", LAZYRT_CACHE_DIR="")

    assert out.split() == ["fast", "end", "optimised"]


@pytest.mark.slow
def test_ctrl_c_ends_a_program_that_waits_for_a_build_as_ctrl_c_does():
    code = _ENDING.format(seconds=60)
    program = start_python(code, LAZYRT_COMPILE_TIER="tiered", LAZYRT_CACHE_DIR="")
    assert program.stdout is not None
    assert program.stderr is not None
    for line in program.stdout:
        if "end" in line:
            break
    assert "Ctrl-C ends at once" in program.stderr.readline()
    program.send_signal(signal.SIGINT)
    output, errors = program.communicate(timeout=30)

    assert program.returncode == -signal.SIGINT
    assert (output, errors) == ("", "")
