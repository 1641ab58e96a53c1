"""Loops: DeviceLoader, its marks, and what a loop leaves behind."""

import importlib
import threading
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.errors import UsageError
from lazyrt.observe import events
from tests.harness import DEVICE, bytecodes_of, recorded

BATCHES = [torch.full((2,), float(number)) for number in range(5)]


@pytest.mark.lazy_only("counts graphs and executions of steps")
@pytest.mark.parametrize("prefetch", [0, 1, 2, 9])
def test_a_loader_marks_each_batch_and_the_end(prefetch):
    results = []

    with recorded(events.BarrierFinished) as found:
        for batch in lazyrt.DeviceLoader(BATCHES, prefetch=prefetch):
            results.append(batch * 2)  # noqa: PERF401

    assert [event.cause for event in found] == ["loader"] * 6
    assert [event.executed for event in found] == [False] + [True] * 5
    assert lazyrt.counters()["executions"] == 5
    assert [r.tolist() for r in results] == [[2.0 * n] * 2 for n in range(5)]
    assert found[0].site.function == test_a_loader_marks_each_batch_and_the_end.__name__


@pytest.mark.lazy_only("counts graphs and executions of steps")
@pytest.mark.parametrize(("together", "executions"), [(1, 5), (2, 3), (5, 1), (7, 1)])
def test_batches_may_share_an_execution(together, executions):
    loader = lazyrt.DeviceLoader(BATCHES, batches_per_execution=together)

    kept = [batch * 2 for batch in loader]

    assert lazyrt.counters()["executions"] == executions
    assert not any(map(lazyrt.is_pending, kept))
    assert len(loader) == 5


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_step_in_the_loop_leaves_nothing_to_the_loaders_marks():
    with recorded(events.BarrierFinished) as found:
        for batch in lazyrt.DeviceLoader(BATCHES):
            with lazyrt.step():
                _ = batch * 2

    assert lazyrt.counters()["executions"] == 5
    assert lazyrt.counters()["empty_barriers"] == 6
    assert {e.cause for e in found if not e.executed} == {"loader"}


@pytest.mark.lazy_only("counts what a barrier costs")
def test_a_mark_that_finds_nothing_costs_less_than_a_fiftieth_of_a_small_step():
    torch.manual_seed(1)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(8)]).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x = torch.ones(2, 4).to(DEVICE)

    def train():
        with lazyrt.step("train"):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    for _ in range(3):
        train()
    lazyrt.mark_step()

    whole, empty = bytecodes_of(train), bytecodes_of(lazyrt.mark_step)

    assert 0 < empty < 0.02 * whole, (empty, whole)


def test_inside_a_step_the_loader_leaves_the_barrier_to_the_step():
    with recorded(events.BarrierFinished) as found, lazyrt.step("epoch"):
        for batch in lazyrt.DeviceLoader(BATCHES):
            total = batch * 2

    assert [event.cause for event in found] == ["end of step epoch"]
    assert total.tolist() == [8.0, 8.0]


class Pair(NamedTuple):
    left: Any
    right: Any


class Movable:
    def to(self, device):
        return f"moved to {device}"


def test_batches_of_every_structure_are_moved():
    batch: Any = {
        "a": [BATCHES[0], 3],
        "b": Pair(BATCHES[1], ("text", None)),
        "c": Movable(),
    }

    (moved,) = lazyrt.DeviceLoader([batch])

    assert moved["a"][0].device.type == DEVICE
    assert moved["a"][1] == 3
    assert isinstance(moved["b"], Pair)
    assert moved["b"].left.device.type == DEVICE
    assert moved["b"].right == ("text", None)
    assert moved["c"] == "moved to lazyrt:0" or moved["c"] == "moved to lazyrt"


def test_a_torch_loader_gives_what_it_gives_without_us():
    data = torch.utils.data.TensorDataset(torch.arange(10.0))

    def epoch(device):
        generator = torch.Generator().manual_seed(0)
        loader = torch.utils.data.DataLoader(data, 3, shuffle=True, generator=generator)
        batches = loader if device == "cpu" else lazyrt.DeviceLoader(loader)
        return [batch[0].tolist() for batch in batches]

    assert epoch(DEVICE) == epoch("cpu")


def test_an_error_of_the_loader_reaches_the_loop():
    def broken():
        yield BATCHES[0]
        raise OSError("no such file")

    seen: list[Any] = []
    with pytest.raises(OSError, match="no such file") as caught:  # noqa: PT012
        for batch in lazyrt.DeviceLoader(broken()):
            seen.append(batch.tolist())  # noqa: PERF401

    assert seen == [[0.0, 0.0]]
    assert caught.traceback[-1].name == "broken"


def threads():
    return [t for t in threading.enumerate() if t.name == "lazyrt-loader"]


def leave_early(loader, *, way):
    for batch in loader:
        loss = batch * 2 + 1
        if way == "break":
            break
        return loss
    return loss


@pytest.mark.not_eager("counts graphs and executions of steps")
@pytest.mark.parametrize("way", ["break", "return"])
def test_work_that_a_loop_leaves_is_told_with_its_line_before_it_runs(way):
    with recorded(events.WorkLeft, events.ExecuteStarted) as found:
        loss = leave_early(lazyrt.DeviceLoader(BATCHES), way=way)

    (left,) = found
    line = leave_early.__code__.co_firstlineno + (4 if way == "break" else 5)
    assert left.nodes == 2
    assert left.nbytes == 8
    assert (left.site.function, left.site.line) == ("leave_early", line)
    assert lazyrt.is_pending(loss)
    assert threads() == []


@pytest.mark.not_eager("counts graphs and executions of steps")
def test_one_call_drops_the_work_that_a_loop_left():
    leave_early(lazyrt.DeviceLoader(BATCHES), way="break")
    loss = leave_early(lazyrt.DeviceLoader(BATCHES), way="break")

    assert lazyrt.discard_pending() == 2
    lazyrt.mark_step()

    assert lazyrt.counters()["executions"] == 0
    with pytest.raises(lazyrt.errors.LostValueError):
        loss.tolist()


def test_a_loop_of_steps_leaves_no_work():
    with recorded(events.WorkLeft) as found:
        for batch in lazyrt.DeviceLoader(BATCHES):
            with lazyrt.step():
                loss = batch * 2
                break

    assert found == []
    assert not lazyrt.is_pending(loss)


def test_a_loop_that_is_left_after_a_read_leaves_nothing():
    with recorded(events.WorkLeft) as found:
        for batch in lazyrt.DeviceLoader(BATCHES):
            if (batch * 2).sum() < 1:
                break

    assert found == []


@pytest.mark.parametrize(
    "options", [{"prefetch": -1}, {"prefetch": 1.5}, {"batches_per_execution": 0}]
)
def test_wrong_counts_are_refused(options):
    with pytest.raises(UsageError, match="whole number from"):
        lazyrt.DeviceLoader(BATCHES, **options)


def test_what_cannot_be_iterated_is_refused():
    with pytest.raises(UsageError, match=r"got int 3.*Pass a DataLoader"):
        lazyrt.DeviceLoader(3)  # type: ignore[arg-type]


# ---------------------------------------------------------------- callbacks, optimizers


def fake_library(folder, monkeypatch):
    package = folder / "site-packages" / "fakepipes"
    package.mkdir(parents=True)
    source = "def denoise(x, steps, callback):\n"
    source += "    for number in range(steps):\n        x = x * 0.5\n"
    source += "        callback(number)\n    return x\n"
    (package / "__init__.py").write_text(source)
    monkeypatch.syspath_prepend(str(package.parent))
    return importlib.import_module("fakepipes")


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_mark_step_works_as_a_librarys_callback_and_names_it(tmp_path, monkeypatch):
    library = fake_library(tmp_path, monkeypatch)
    x = torch.ones(2).to(DEVICE)

    with recorded(events.BarrierFinished) as found:
        image = library.denoise(x, 3, callback=lambda *_: lazyrt.mark_step())

    assert [event.executed for event in found] == [True] * 3
    assert found[0].site.function == "<lambda>"
    assert found[0].caller.function == "denoise"
    assert found[0].caller.line == 4
    assert image.tolist() == [0.125, 0.125]
    assert lazyrt.counters()["executions"] == 3


def test_a_mark_in_the_users_own_code_has_no_library_behind_it():
    with recorded(events.BarrierFinished) as found:
        lazyrt.mark_step()

    assert found[0].caller is None


@pytest.mark.not_eager("counts graphs and executions of steps")
@pytest.mark.parametrize("barrier", [False, True])
def test_optimizer_step_updates_and_marks(barrier):
    weight = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    weight.sum().backward()

    with lazyrt.config.scoped(barrier_after_optimizer=False):
        lazyrt.optimizer_step(optimizer, barrier=barrier)

    assert lazyrt.is_pending(weight) is not barrier
    assert weight.tolist() == [0.5, 0.5]


def test_optimizer_step_passes_the_closure_on_and_refuses_other_things():
    weight = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer = torch.optim.SGD([weight], lr=0.5)

    assert lazyrt.optimizer_step(optimizer, closure=lambda: 3.0) == 3.0
    with pytest.raises(UsageError, match="got Linear"):
        lazyrt.optimizer_step(torch.nn.Linear(1, 1))  # type: ignore[arg-type]
