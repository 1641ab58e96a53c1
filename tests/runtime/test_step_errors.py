"""What `on_error` does with a step that an exception ends."""
# ruff: noqa: PT012 - the block is what is tested

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.config import config
from lazyrt.errors import LostValueError
from lazyrt.observe import events
from tests.harness import DEVICE, recorded


def fail():
    raise ZeroDivisionError


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adam-loop": lambda p: torch.optim.Adam(p, lr=0.1, foreach=False),
}


class Training:
    def __init__(self, optimizer="adam"):
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
        self.model.to(DEVICE)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.x = torch.arange(6.0).view(2, 3).to(DEVICE)

    def update(self):
        self.optimizer.zero_grad()
        loss = self.model(self.x).square().sum()
        loss.backward()
        self.optimizer.step()
        return loss

    def state(self):
        """Everything that a checkpoint would hold, as bytes."""
        lazyrt.mark_step()
        tensors: list[torch.Tensor] = [*self.model.parameters()]
        steps = []
        for parameter in self.model.parameters():
            state = self.optimizer.state.get(parameter, {})
            for name in sorted(state):
                found = state[name]
                steps.append(name)
                tensors += [found] if isinstance(found, torch.Tensor) else []
        random = torch.get_device_module(DEVICE).get_rng_state()
        return steps, [t.detach().cpu().numpy().tobytes() for t in (*tensors, random)]


def break_off(training, **options):
    with pytest.raises(ZeroDivisionError) as caught, lazyrt.step("s", **options):
        training.update()
        fail()
    return caught


@pytest.mark.not_eager("drops ops that have not run")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", ["discard", "rollback"])
@pytest.mark.parametrize("updates", [0, 2])
def test_an_error_in_a_step_undoes_its_in_place_updates(policy, optimizer, updates):
    training = Training(optimizer)
    for _ in range(updates):
        training.update()
    before = training.state()

    break_off(training, on_error=policy)

    after = training.state()
    assert after[0] == before[0]
    assert after[1][:-1] == before[1][:-1]
    assert (after[1][-1] == before[1][-1]) == (policy == "rollback")


@pytest.mark.not_eager("drops ops that have not run")
@pytest.mark.parametrize("policy", ["flush", "discard", "rollback"])
def test_training_goes_on_after_an_error_in_a_step(policy):
    training, undisturbed = Training(), Training()
    torch.manual_seed(4)
    break_off(training, on_error=policy)
    if policy == "flush":
        torch.manual_seed(4)
        undisturbed.update()
    torch.manual_seed(5)
    training.update()
    torch.manual_seed(5)
    undisturbed.update()

    assert training.state() == undisturbed.state()


def test_flush_commits_the_update():
    training, updated = Training(), Training()

    break_off(training, on_error="flush")
    torch.manual_seed(3)
    updated = Training()
    updated.update()

    assert training.state() == updated.state()


@pytest.mark.not_eager("drops ops that have not run")
def test_flush_says_that_half_a_step_was_committed():
    caught = break_off(Training(), on_error="flush")

    (note,) = [n for n in caught.value.__notes__ if " ran as far as " in n]
    assert "of which in-place updates stay" in note
    assert 'step(on_error="rollback") takes them back' in note


def test_a_step_that_recorded_nothing_commits_nothing():
    with pytest.raises(ValueError, match="mine") as caught, lazyrt.step():
        raise ValueError("mine")

    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("policy", ["flush", "discard", "rollback"])
def test_nothing_is_pending_and_the_error_is_the_users_own(policy):
    training = Training()
    lazyrt.mark_step()

    with recorded(events.StepFinished, events.WorkDropped) as found:
        caught = break_off(training, on_error=policy)

    assert len(lazyrt.pending_graph().nodes) == 0
    assert [entry.name for entry in caught.traceback] == ["break_off", "fail"]
    assert caught.value.__cause__ is None
    outcomes = {"flush": "run", "discard": "discarded", "rollback": "rolled back"}
    assert found[-1].outcome == outcomes[policy]
    assert found[-1].failed
    assert len(found) == (1 if policy == "flush" else 2)


@pytest.mark.not_eager("drops ops that have not run")
@pytest.mark.parametrize("policy", ["discard", "rollback"])
def test_the_dropped_graph_is_kept_for_a_post_mortem(policy):
    training = Training()
    lazyrt.mark_step()
    lazyrt.reset_counters()

    caught = break_off(training, on_error=policy)

    graph = lazyrt.discarded_graph()
    assert graph is not None
    assert any("addmm" in node.op.name for node in graph.nodes)
    assert any(f"{len(graph.nodes)} pending ops" in n for n in caught.value.__notes__)
    assert lazyrt.counters()["executions"] == 0


def test_rollback_reaches_behind_a_read_that_cut_the_step():
    training = Training()
    training.update()
    before = training.state()

    with (
        pytest.raises(ZeroDivisionError),
        lazyrt.step(on_read="allow", on_error="rollback"),
    ):
        training.update().item()
        training.update().item()
        fail()

    assert training.state() == before


@pytest.mark.lazy_only("drops ops that have not run")
def test_discard_keeps_what_a_read_has_run():
    x = torch.zeros(2).to(DEVICE)

    with (
        pytest.raises(ZeroDivisionError),
        lazyrt.step(on_read="allow", on_error="discard"),
    ):
        x.add_(1)
        x.tolist()
        x.add_(10)
        fail()

    assert x.tolist() == [1.0, 1.0]


@pytest.mark.not_eager("drops ops that have not run")
@pytest.mark.parametrize("policy", ["discard", "rollback"])
def test_what_was_pending_before_the_step_stays(policy):
    x = torch.ones(2).to(DEVICE)
    before = x * 3
    x.add_(1)
    view = x[:1]

    with pytest.raises(ZeroDivisionError), lazyrt.step(on_error=policy):
        x.mul_(100)
        before.add_(100)
        view.zero_()
        fail()

    assert lazyrt.is_pending(before) == (policy == "discard")
    assert before.tolist() == [3.0, 3.0]
    assert x.tolist() == [2.0, 2.0]
    assert view.tolist() == [2.0]
    view.add_(1)
    assert x.tolist() == [3.0, 2.0]


@pytest.mark.not_eager("drops ops that have not run")
@pytest.mark.parametrize("policy", ["discard", "rollback"])
def test_a_tensor_that_the_step_made_says_why_it_is_lost(policy):
    kept = []

    with pytest.raises(ZeroDivisionError), lazyrt.step("half", on_error=policy):
        kept.append(torch.ones(2, device=DEVICE) * 3)
        fail()

    with pytest.raises(LostValueError, match=r"the step 'half'.*after ZeroDivisionE"):
        kept[0].tolist()
    with pytest.raises(LostValueError, match="the step 'half'"):
        kept[0] + 1


@pytest.mark.not_eager("drops ops that have not run")
def test_a_discarded_upload_and_its_alias_keep_their_data():
    made = []

    with pytest.raises(ZeroDivisionError), lazyrt.step(on_error="discard"):
        made.append(torch.arange(3.0).to(DEVICE))
        made.append(made[0].detach())
        made[0].add_(1)
        fail()

    assert made[0].tolist() == made[1].tolist() == [0.0, 1.0, 2.0]


def test_rollback_costs_a_good_step_neither_compiles_nor_donation():
    def run(**options):
        training = Training()
        with recorded(events.ExecuteStarted) as found:
            for _ in range(3):
                with lazyrt.step(**options):
                    training.update()
        return training.state(), [event.donated for event in found]

    plain = run()
    lazyrt.reset_counters()

    assert run(on_error="rollback") == plain
    assert run(on_error="discard") == plain
    assert lazyrt.counters()["compiles"] == 0


def test_an_outer_step_rolls_back_what_an_inner_one_has_run():
    training = Training()
    before = training.state()

    with pytest.raises(ZeroDivisionError), lazyrt.step(on_error="rollback"):
        with lazyrt.step("inner"):
            training.update()
        fail()

    assert training.state() == before


@pytest.mark.not_eager("drops ops that have not run")
def test_a_tensor_that_took_another_ones_data_keeps_it_when_its_step_is_dropped():
    x = torch.tensor([1.0, 2.0]).to(DEVICE)
    y = torch.empty_like(x).copy_(x)

    lazyrt.discard_pending()
    x.add_(1)
    lazyrt.mark_step()

    assert (y.tolist(), x.tolist()) == ([1.0, 2.0], [2.0, 3.0])


@pytest.mark.not_eager("is about what is pending")
def test_discard_pending_drops_what_a_loop_left():
    x = torch.ones(2).to(DEVICE)
    y = x * 2
    x.add_(5)

    dropped = lazyrt.discard_pending()

    assert dropped == 2
    assert len(lazyrt.pending_graph().nodes) == 0
    assert x.tolist() == [1.0, 1.0]
    said = (
        r"this tensor has no value: lazyrt.discard_pending\(\) dropped .* make it again"
    )
    with pytest.raises(LostValueError, match=said):
        y.tolist()
    with pytest.raises(LostValueError, match=said):
        y + 1
    assert lazyrt.stand_in(y) is y  # for a traceback that holds it
    assert lazyrt.discard_pending() == 0


@pytest.mark.lazy_only("is about origins of inputs")
def test_inputs_after_a_drop_know_where_they_come_from():
    lazyrt.mark_step()
    x = torch.ones(3).to(DEVICE)
    y = x + 1
    lazyrt.discard_pending()
    with lazyrt.step("make"):
        y = x * 2
    z = x + 5
    lazyrt.discard_pending()
    del z

    (origin,) = lazyrt.input_origins(y * 3)

    assert origin.block == "make"


@pytest.mark.not_eager("needs pending values")
def test_every_generator_of_the_device_goes_back():
    mine = torch.Generator(device=DEVICE)
    mine.manual_seed(3)
    with pytest.raises(ZeroDivisionError), lazyrt.step(on_error="rollback"):
        first = torch.rand(4, device=DEVICE, generator=mine)
        seen = lazyrt.materialise(first)
        fail()

    assert torch.equal(torch.rand(4, device=DEVICE, generator=mine).cpu(), seen)


@pytest.mark.lazy_only("discards what is pending")
def test_a_view_of_what_was_discarded_shows_the_data_before():
    x = torch.arange(4.0).to(DEVICE)
    view = x[1:3]
    lazyrt.mark_step()
    x.add_(10)
    assert lazyrt.materialise(view * 1).tolist() == [11.0, 12.0]

    lazyrt.discard_pending()

    after = x * 1
    assert (view * 1).tolist() == [1.0, 2.0]
    assert after.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.lazy_only("discards what is pending")
def test_a_look_before_a_discard_is_not_taken_for_one_after_it():
    x, y = torch.ones(3).to(DEVICE), torch.full((3,), 5.0).to(DEVICE)
    lazyrt.mark_step()
    lost = x * 3
    assert lazyrt.materialise(lost).tolist() == [3.0] * 3

    lazyrt.discard_pending()

    assert lazyrt.materialise(y * 3).tolist() == [15.0] * 3


@pytest.mark.lazy_only("is about what is pending")
def test_dropped_updates_leave_an_optimizer_as_it_was_before_them():
    weight = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    lazyrt.mark_step()

    def update():
        optimizer.zero_grad()
        (weight * 2).sum().backward()
        optimizer.step()

    with config.scoped(barrier_after_optimizer=False):
        update()
        update()
        lazyrt.discard_pending()
        first = dict(optimizer.state)
        gradient = weight.grad
        update()
        lazyrt.mark_step()
        once = weight.tolist(), float(optimizer.state[weight]["step"])
        update()
        update()
        lazyrt.discard_pending()

    assert (first, gradient) == ({}, None)
    torch.testing.assert_close(once[0], [0.9, 0.9])
    assert once[1] == 1.0
    assert (weight.tolist(), float(optimizer.state[weight]["step"])) == once
