"""Rows of the feature table that need a whole loop: names, before and after, torch.compile."""

import asyncio

import pytest
import torch
from torch import nn
from torch.nn import functional

import lazyrt
from lazyrt.config import config
from lazyrt.control.modes import in_mode
from lazyrt.observe import events
from tests.harness import DEVICE, cold_start, recorded


@pytest.mark.lazy_only("counts executions of steps")
def test_a_mark_runs_all_live_tensors_once_and_lists_them_by_name():
    x = torch.ones(3).to(DEVICE)
    lazyrt.mark_step()
    with recorded(events.ExecuteStarted) as found:
        total, doubled, squares = x.sum(), x * 2, [x * x]
        lazyrt.mark_step()

    (execution,) = found
    assert execution.outputs == 3
    names = {name for _, _, name in lazyrt.compiled_graphs()[-1].results}
    assert names == {"total", "doubled", "squares[0]"}
    assert (total.item(), doubled.tolist()[0], squares[0].tolist()[0]) == (3, 2, 1)


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(3, 4)

    @lazyrt.step("fit")
    def fit(self, x):
        return self.layer(x).sum()

    @lazyrt.step()
    async def fit_later(self, x):
        await asyncio.sleep(0)
        return self.layer(x).sum()


@pytest.mark.lazy_only("counts graphs and executions of steps")
@pytest.mark.parametrize("way", ["block", "method", "coroutine"])
def test_each_form_is_one_execution_with_its_name_and_modules(way):
    trainer = Trainer().to(DEVICE)
    x = torch.ones(2, 3).to(DEVICE)

    with recorded(events.StepFinished, events.GraphCaptured) as found:
        if way == "block":
            with lazyrt.step("fit"):
                y = trainer.layer(x).sum()
        elif way == "method":
            y = trainer.fit(x)
        else:
            y = asyncio.run(trainer.fit_later(x))

    captured, finished = found
    names = {"block": "fit", "method": "fit", "coroutine": "Trainer.fit_later"}
    assert finished.name == names[way]
    assert finished.step == captured.step
    assert lazyrt.counters()["executions"] == 1
    assert not lazyrt.is_pending(y)


@pytest.mark.not_eager("counts graphs and executions of steps")
def test_nodes_of_a_step_know_their_module_path():
    cold_start()
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).to(DEVICE)

    with lazyrt.step():
        y = model(torch.ones(2, 3).to(DEVICE))
        paths = {n.provenance.module for n in lazyrt.pending_graph(y).nodes}

    assert paths == {"0", "1"}


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_step_carries_the_users_number_in_both_events():
    with recorded(events.StepStarted, events.StepFinished) as found:
        for number in range(2):
            with lazyrt.step("train", number):
                _ = torch.ones(2, device=DEVICE) * 2

    assert [(e.name, e.step_num) for e in found] == [
        ("train", 0), ("train", 0), ("train", 1), ("train", 1),
    ]  # fmt: skip
    assert lazyrt.counters()["executions"] == 2


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return functional.relu(x + self.conv(x))


def example():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), Block(2), nn.Flatten(), nn.Linear(32, 3)
    )
    data = [(torch.randn(2, 1, 4, 4), torch.randint(0, 3, (2,))) for _ in range(4)]
    model.to(DEVICE)
    lazyrt.mark_step()
    lazyrt.reset_counters()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), data


def update(model, optimizer, batch, target):
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(batch), target)
    loss.backward()
    lazyrt.optimizer_step(optimizer)
    return loss


def counts():
    now = lazyrt.counters()
    return now["compiles"], now["executions"], now["peek_executions"]


@pytest.mark.lazy_only("counts graphs and executions of steps")
@pytest.mark.slow
def test_before_and_after_give_equal_losses_compiles_and_executions():
    with config.scoped(barrier_after_optimizer=False):
        model, optimizer, data = example()
        before: list[float] = []
        for step, (batch, target) in enumerate(lazyrt.DeviceLoader(data)):
            loss = update(model, optimizer, batch, target)
            lazyrt.add_step_closure(lambda t: before.append(t.item()), (loss,))
            assert len(before) == step
        with_closures = counts()

        model, optimizer, data = example()
        lazyrt.clear_caches()
        after = []
        for batch, target in lazyrt.DeviceLoader(data):
            with lazyrt.step():
                loss = update(model, optimizer, batch, target)
            after.append(loss.item())

    assert before == after
    assert with_closures[1:] == counts()[1:] == (4, 0)
    assert counts()[0] == 1


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_logging_before_the_mark_runs_the_forward_twice():
    with config.scoped(barrier_after_optimizer=False, read_policy="peek"):
        model, optimizer, data = example()
        with recorded(events.BarrierFinished) as found:
            for batch, target in lazyrt.DeviceLoader(data):
                loss = update(model, optimizer, batch, target)
                loss.item()

    repeats = [repeat for event in found for repeat in event.repeats]
    assert len(repeats) == 4
    assert {repeat.tensor for repeat in repeats} == {"loss"}
    assert len({repeat.nodes for repeat in repeats}) == 1
    assert counts()[1:] == (4, 4)


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_peek_leaves_the_steps_hash_and_a_barrier_changes_it():
    def fingerprints(policy):
        with config.scoped(read_policy=policy), recorded(events.GraphCaptured) as found:
            loss = (torch.ones(3, device=DEVICE) * 2).sum()
            loss.item()
            _ = loss * 3
            lazyrt.mark_step()
        return [event.fingerprint for event in found]

    with recorded(events.GraphCaptured) as found:
        loss = (torch.ones(3, device=DEVICE) * 2).sum()
        _ = loss * 3
        lazyrt.mark_step()
    alone = [event.fingerprint for event in found]

    assert fingerprints("peek") == alone
    cut = fingerprints("barrier")
    assert len(cut) == 2
    assert alone[0] not in cut


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_compiled_function_in_a_step_is_one_execution():
    def function(x, weight):
        return torch.relu(x @ weight).sum()

    compiled = torch.compile(function, backend="eager")
    x, weight = torch.ones(2, 3).to(DEVICE), torch.ones(3, 4).to(DEVICE)

    with lazyrt.step():
        y = compiled(x, weight)
        assert lazyrt.is_pending(y)

    assert y.item() == function(x, weight).item()
    assert lazyrt.counters()["executions"] == 2


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_decorated_function_returns_lazy_tensors_that_are_computed_once():
    @lazyrt.step()
    def function(x):
        return x * 2, [x + 1]

    doubled, (more,) = function(torch.ones(2).to(DEVICE))

    assert doubled.device.type == more.device.type == DEVICE
    assert (doubled + more).tolist() == [4.0, 4.0]
    assert lazyrt.counters()["executions"] == 2


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_function_is_decorated_with_or_without_a_call():
    @lazyrt.step
    def double(x):
        """Double."""
        return x * 2

    class Model:
        @lazyrt.step
        def triple(self, x):
            return x * 3

    @lazyrt.step
    async def quadruple(x):
        return x * 4

    x = torch.ones(2).to(DEVICE)
    with recorded(events.StepFinished) as found:
        made = double(x), Model().triple(x), asyncio.run(quadruple(x))

    assert not any(map(lazyrt.is_pending, made))
    assert [y[0].item() for y in made] == [2.0, 3.0, 4.0]
    names = ("double", "Model.triple", "quadruple")
    assert [e.name.rsplit("<locals>.")[-1] for e in found] == list(names)
    assert (double.__name__, double.__doc__) == ("double", "Double.")
    assert lazyrt.counters()["executions"] == 3


@pytest.mark.lazy_only("counts executions of steps")
def test_the_outputs_of_a_step_know_their_step():
    @lazyrt.step("train", step_num=7)
    def train(x):
        return (x * 2).sum()

    with recorded(events.StepFinished) as found:
        total = train(torch.ones(2).to(DEVICE))

    number = found[0].step
    assert lazyrt.plan(total) == f"<lazyrt f32[], ready, of step {number} 'train 7'>"
    origin = lazyrt.origin(total)
    assert origin is not None
    assert (origin.step, origin.block, origin.output) == (number, "train 7", 0)
    assert (origin.name, origin.op) == ("total", "aten.sum.default")
    assert origin.site is not None
    assert origin.site.function == "train"
    assert f"output 0 of step {number} 'train 7' (graph." in str(origin)
    (used,) = lazyrt.input_origins(total + 1)
    assert used.block == "train 7"


@pytest.mark.lazy_only("counts executions of steps")
def test_what_no_step_made_says_where_it_is_from():
    x = torch.ones(2).to(DEVICE)
    y = x + 1
    assert lazyrt.origin(y) is None
    lazyrt.mark_step()

    copied, computed = lazyrt.origin(x), lazyrt.origin(y)

    assert str(copied) == "`x` f32[2]: copied from the host"
    assert computed is not None
    assert computed.block is None
    assert lazyrt.plan(y) == "<lazyrt f32[2], ready>"
    with lazyrt.step():
        z = x + 2
    made = lazyrt.origin(z)
    assert made is not None
    assert lazyrt.plan(z).endswith(", ready, of step " + str(made.step) + ">")


@pytest.mark.not_eager("counts graphs and executions of steps")
def test_pending_ops_know_the_step_and_the_scopes_that_recorded_them():
    cold_start()
    weight = torch.ones(2, device=DEVICE, requires_grad=True)

    with lazyrt.step("train"), lazyrt.scope("loss"):
        with lazyrt.scope("square"):
            y = weight.square()
        total = y.sum()
        plan = lazyrt.plan(y)
        listing = lazyrt.pending_graph(total).to_text()

    assert plan.endswith(", scope loss/square, step train>")
    assert "# loss/square, test_step_rows.py:" in listing
    total = torch.zeros(())
    cold_start()
    with lazyrt.scope("forward"):
        total = weight.square().sum()
    total.backward()
    assert weight.grad is not None
    origins = [node.provenance for node in lazyrt.pending_graph(weight.grad).nodes]
    joined = [each for each in origins if each.backward and each.backward.forward]
    assert joined
    assert {each.scope for each in joined} == {"forward"}
    assert {each.step for each in origins} == {""}


@pytest.mark.lazy_only("switches the mode itself")
@pytest.mark.parametrize(
    ("mode", "how"),
    [("eager", "in eager debug mode"), ("opbyop", "in op-by-op mode")],
)
def test_what_a_debug_mode_made_knows_its_op_and_line(mode, how):
    x = torch.ones(2, 3).to(DEVICE)
    with in_mode(mode):
        y = x + 1
        half = y[0] * 2
        lazyrt.mark_step()

    origin = lazyrt.origin(y)

    assert origin is not None
    assert origin.site is not None
    assert (origin.step, origin.how, origin.op) == (None, how, "aten.add.Tensor")
    assert str(origin) == (
        f"`y` f32[2,3]: computed {how} by aten.add.Tensor at {origin.site}"
    )
    assert origin.site.function == "test_what_a_debug_mode_made_knows_its_op_and_line"
    more = y * half + x
    inputs = {each.name: each for each in lazyrt.input_origins(more)}
    assert inputs["y"] == origin
    assert inputs["half"].op == "aten.mul.Tensor"
    assert inputs["x"].how == ""
    assert f"were computed by an earlier execution: 2 {how}" in str(
        lazyrt.input_origins(more)
    )


@pytest.mark.lazy_only("looks at what is pending")
def test_what_ran_ahead_of_its_step_knows_its_op_and_line():
    x = torch.ones(2).to(DEVICE)
    loss = (x * 2).sum()
    lazyrt.materialise(loss, reuse=True)

    origin = lazyrt.origin(loss)

    assert "computed ahead of its step by aten.sum.default at test_step_rows" in str(
        origin
    )
    (used,) = lazyrt.input_origins(loss + 1)
    assert used == origin


@pytest.mark.lazy_only("counts executions of steps")
def test_a_tensor_that_got_earlier_data_back_names_what_made_that():
    x = torch.ones(2).to(DEVICE) * 3
    lazyrt.mark_step()
    before = lazyrt.origin(x)

    with pytest.raises(ValueError, match="stop"), lazyrt.step(on_error="rollback"):  # noqa: PT012
        x.add_(1)
        with lazyrt.step():
            x.mul_(2)
        raise ValueError("stop")

    assert x.tolist() == [3.0, 3.0]
    assert lazyrt.origin(x) == before
    alias = x.detach()
    y = torch.empty_like(x).copy_(x)
    lazyrt.mark_step()
    assert alias.tolist() == y.tolist() == [3.0, 3.0]
    assert "copied from the host" not in str(lazyrt.origin(y))
