"""What earlier steps made: state, gradients, lists of results, the history that backward reads."""

import collections

import pytest
import torch
from torch import nn

import lazyrt
from tests.harness import DEVICE
from tests.runtime.explain.shared import compiles_of, latest, ones, the_cause

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold"),
]


@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizers_state_is_the_only_cause_of_its_second_step(foreach):
    """With dampening the first step copies the gradients."""
    model, x = nn.Linear(3, 2).to(DEVICE), ones(4, 3)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, dampening=0.1, foreach=foreach
    )

    def train():
        with lazyrt.step():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    train()
    train()

    cause = the_cause("state_became_input")
    assert "`model.weight.momentum_buffer`" in cause.text
    assert " are inputs now; graph." in cause.text
    assert " created them at test_state.py:" in cause.text
    assert cause.fix.startswith("nothing to do when it happens once")
    assert compiles_of(train) == 0


def test_a_state_that_each_step_hands_to_the_next_is_told_once_with_what_made_it():
    cell, x = nn.GRUCell(5, 6).to(DEVICE), ones(2, 5)
    state = torch.zeros(2, 6, device=DEVICE)
    for _ in range(3):
        state = cell(x, state).detach()
        lazyrt.mark_step()

    cause = the_cause("state_became_input")
    assert cause.variable == "state"
    assert cause.text.startswith("`state` is an input now; graph.")
    assert len(lazyrt.compiled_graphs()) == 2


def test_a_result_of_the_step_before_that_a_new_line_reads_is_no_state():
    net, x = nn.Linear(4, 3).to(DEVICE), ones(2, 4)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    kept = []
    for number in range(3):
        out = net(x)
        sgd.zero_grad()
        out.square().mean().backward()
        sgd.step()
        if number == 1:
            best = out.argmax(1)
            kept.append(best)

    top = latest().top
    assert top.kind == "live_tensor", str(latest())
    assert top.variable in {"best", "kept[0]"}


def test_gradients_that_accumulate_are_named_with_the_step_that_left_them():
    model, x = nn.Linear(3, 2).to(DEVICE), ones(2, 3)
    for _ in range(2):
        model(x).square().mean().backward()
        lazyrt.mark_step()

    top = latest().top
    assert top.kind == "carried_over", str(latest())
    assert top.text.startswith("gradients `model.")
    assert " are inputs of this step, were not of graph." in top.text
    assert "zero_grad(set_to_none=False)" in top.fix


def test_gradients_that_an_update_alone_reads_do_not_accumulate():
    """A frozen layer keeps its gradient, and clipping still reads it."""
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)).to(DEVICE), ones(2, 3)
    for number in range(3):
        sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad])
        sgd.zero_grad()
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        sgd.step()
        lazyrt.mark_step()
        if number == 1:
            model[0].requires_grad_(requires_grad=False)

    assert latest().top.kind == "update", str(latest())
    assert "carried_over" not in {cause.kind for cause in latest().causes}


@pytest.mark.parametrize("read", [sum, torch.stack])
def test_a_list_of_earlier_results_is_named_with_its_length_and_how_it_grows(read):
    x, losses = ones(4), []
    for number in range(4):
        losses.append((x * 2).sum())
        lazyrt.mark_step()
        if number:
            total = read(losses) * 2
            lazyrt.mark_step()
    assert total.numel()

    cause = the_cause("carried_over")
    assert cause.text.startswith("4 items of the list `losses`, made in steps ")
    assert ", are inputs of this step at test_state.py:" in cause.text
    assert ", 3 in graph." in cause.text
    assert cause.text.endswith("the number grows from graph to graph: 2, 3, 4")
    assert "losses.append(loss.item())" in cause.fix


def test_results_that_wait_in_a_bucket_over_a_boundary_are_named_with_their_step():
    """Two of three gradients are joined in a step; what is left enters the next one."""
    x, weights = ones(4), [ones(4) for _ in range(3)]
    waiting: list[tuple[int, torch.Tensor]] = []
    for _ in range(2):
        with lazyrt.step():
            for number, weight in enumerate(weights):
                waiting.append((number, x * weight + number))
                if len(waiting) == 2:
                    joined = torch.cat([made for _, made in waiting])
                    for (other, _), part in zip(waiting, joined.split(4), strict=True):
                        weights[other].sub_(part)
                    waiting.clear()

    top = latest().top
    assert top.kind == "carried_over", str(latest())
    assert top.text.startswith("1 item of the list `waiting`, made in step ")
    assert ", is an input of this step at test_state.py:" in top.text
    assert "flush of buckets" in top.fix


@pytest.mark.parametrize("detaches", [False, True])
def test_history_that_is_handed_on_is_named_and_detaching_it_compiles_once(detaches):
    cell, x = nn.Linear(3, 3).to(DEVICE), ones(2, 3)
    state = ones(2, 3)

    def advance(state):
        cell.zero_grad()
        state = torch.tanh(cell(x) + state)
        state.sum().backward(retain_graph=True)
        lazyrt.mark_step()
        return state.detach() if detaches else state

    for _ in range(4):
        state = advance(state)

    if detaches:
        assert compiles_of(advance, state) == 0
        return
    found = [cause.text for cause in latest().causes]
    assert latest().top.kind == "carried_over", str(latest())
    assert found[0].startswith("backward at test_state.py:")
    assert " goes on through 2 earlier steps, 1 in graph." in found[0]
    assert "`.detach()`" in latest().top.fix


def test_a_queue_names_what_it_reads_of_earlier_steps():
    model, x = nn.Linear(4, 2).to(DEVICE), ones(3, 4)
    queue: collections.deque[torch.Tensor] = collections.deque(maxlen=2)
    for _ in range(2):
        with lazyrt.step():
            made = model(x)
            loss = made.sum()
            if queue:
                loss = loss + torch.cat(list(queue)).sum()
            queue.append(made.detach())
        del loss, made

    assert "1 item of the list `queue`" in the_cause("carried_over").text


def test_gradients_that_are_zeroed_and_kept_are_named_with_the_line_that_zeroes_them():
    model, x = nn.Linear(3, 2).to(DEVICE), ones(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for sets_to_none in (True, True, False):
        with lazyrt.step():
            optimizer.zero_grad(set_to_none=sets_to_none)
            model(x).square().mean().backward()
            optimizer.step()

    text = the_cause("carried_over").text
    assert text.startswith("gradients `model.")
    zeroed = "`optimizer.zero_grad(set_to_none=sets_to_none)` at test_state.py:"
    assert f": zeroed and kept by {zeroed}" in text


def test_gradients_added_to_those_of_another_graph_are_no_graph_break():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(DEVICE)
    sgd, every = torch.optim.SGD(net.parameters(), lr=0.1), 2
    for number, x in enumerate([ones(2, 3) for _ in range(8)], 1):
        if number > 4:
            every = 3
        net(x).square().mean().backward()
        if number % every == 0:
            sgd.step()
            sgd.zero_grad()
        lazyrt.mark_step()

    assert latest().top.kind == "carried_over", str(latest())


def test_a_pair_of_states_that_a_loop_keeps_is_no_list_that_grows():
    lstm, x = nn.LSTM(3, 4).to(DEVICE), ones(5, 2, 3)
    state = None
    for _ in range(2):
        with lazyrt.step():
            out, state = lstm(x, state)
            state = tuple(each.detach() for each in state)

    assert out.dim() == 3
    cause = the_cause("state_became_input")
    assert "`state[0]`" in cause.text
    assert "list" not in cause.fix
