"""Tensors that are alive at a boundary, and what waits there for a later step."""

import pytest
import torch
from torch import nn

import lazyrt
from tests.harness import DEVICE
from tests.runtime.causes import explained, kinds, ones

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold"),
]


def test_a_list_that_keeps_a_value_is_named_with_the_line_and_the_closure_form():
    """What is logged is a result more, with the operations that it needs alone."""
    x, history = ones(4, 4), []
    lazyrt.mark_step()

    def step(*, keeps):
        with lazyrt.step():
            y = x @ x
            norm = y.square().sum().sqrt()
            if keeps:
                history.append(norm)
            del norm
            return y.sum()

    step(keeps=False)
    step(keeps=True)

    (cause,) = explained()[-1].causes
    assert cause.kind == "live_tensor"
    assert cause.variable == "history[0]"
    line = step.__code__.co_firstlineno + 3
    assert cause.text == (
        f"live tensor `history[0]` f32[], created at test_results.py:{line}, is alive at the "
        "end of this step and was not in graph.1"
    )
    assert "`lazyrt.add_step_closure(history.append, (t,))`" in cause.fix
    assert cause.edits.added == 3


def test_another_path_comes_before_what_it_keeps_of_the_same_values():
    x = ones(4, 4)
    lazyrt.mark_step()

    def step(*, mixes):
        with lazyrt.step():
            h = (x.tanh() @ x.relu()).exp().sin().cos()
            if mixes:
                y = h @ x
                loss = (y * 0.3).sum() + (y * 0.7).square().sum()
            else:
                loss = (h @ x).sum()
            return (loss, y) if mixes else loss

    step(mixes=False)
    step(mixes=True)

    top = explained()[-1].top
    assert top.kind == "code_path", explained()[-1]
    assert "`loss = (y * 0.3).sum() + (y * 0.7).square().sum()`" in top.text


def test_the_fix_for_a_kept_value_compiles_nothing_after_the_first_step():
    x = ones(4, 4)
    history: list[torch.Tensor] = []
    lazyrt.mark_step()
    for _ in range(3):
        with lazyrt.step():
            loss = (x @ x).square().sum()
            lazyrt.add_step_closure(history.append, (loss,))
            del loss
        history.clear()

    assert len(lazyrt.compiled_graphs()) == 1


def test_a_value_that_is_not_kept_any_more_is_named_with_what_only_it_needs():
    x = ones(4, 4)
    lazyrt.mark_step()

    def step(*, keeps):
        with lazyrt.step():
            y = x @ x
            extra = y.square().sum().sqrt()
            if not keeps:
                del extra
            return y.sum()

    step(keeps=True)
    step(keeps=False)

    (cause,) = explained()[-1].causes
    assert cause.kind == "live_tensor_gone"
    assert cause.variable == "extra"
    assert "was alive at the end of graph.1 and is not now" in cause.text
    assert cause.edits.removed == 3


def test_a_value_that_a_closure_holds_names_the_function():
    x = ones(4, 4)
    lazyrt.mark_step()

    def make_logger(value):
        def log():
            return value

        return log

    def step(*, keeps):
        with lazyrt.step():
            y = x @ x
            log = make_logger(y.exp().mean()) if keeps else None
            out = y.sum()
        return out, log

    step(keeps=False)
    step(keeps=True)

    (cause,) = explained()[-1].causes
    assert cause.kind == "closure"
    assert cause.variable == "value"
    assert "held by the closure of log" in cause.text


def test_a_tensor_that_another_path_leaves_alive_is_no_cause_of_its_own():
    net, image = nn.Conv2d(1, 2, 3).to(DEVICE), ones(2, 1, 6, 6)
    lazyrt.mark_step()

    def run(*, clips):
        with lazyrt.step():
            y = net(image)
            if clips:
                y = y.clamp(-1, 1)
            return y.mean()

    run(clips=False)
    run(clips=True)

    assert kinds(explained()[-1]) == ["code_path"]


@pytest.mark.parametrize("read", [torch.stack, sum])
def test_a_list_of_earlier_results_that_is_read_as_a_whole_is_named(read):
    x, losses = ones(3), []
    lazyrt.mark_step()
    for _ in range(4):
        losses.append((x * 2).exp().sum())
        lazyrt.mark_step()
        mean = read(losses) * 1.0
        lazyrt.mark_step()
        del mean

    last = next(each for each in reversed(explained()) if "losses" in each.text)
    assert kinds(last) == ["carried_over"], last
    assert last.top.variable == "losses"
    assert "items of the list `losses`, made in steps " in last.text
    assert "the number grows from graph to graph: " in last.text
    assert "running sum" in last.top.fix


@pytest.mark.parametrize("detaches", [False, True])
def test_history_that_is_handed_on_is_named_and_detaching_it_compiles_once(detaches):
    cell, x = nn.RNNCell(4, 6).to(DEVICE), ones(2, 4)
    state = torch.zeros(2, 6, device=DEVICE)
    lazyrt.mark_step()
    for _ in range(4):
        state = cell(x, state)
        loss = state.square().mean()
        (grad,) = torch.autograd.grad(loss, [cell.weight_hh], retain_graph=True)
        if detaches:
            state = state.detach()
        del loss
        lazyrt.mark_step()
        del grad

    if detaches:
        assert len(explained()) <= 3
        return
    last = explained()[-1]
    assert last.top.kind == "carried_over"
    assert "goes on through 3 earlier steps, 2 in graph." in last.text
    assert "`.detach()`" in last.top.fix


def test_what_waits_in_a_bucket_for_the_next_step_is_named():
    """Five gradients a step, three to a bucket: two wait, then one, then none."""
    weights = [ones(4) * k for k in range(5)]
    waiting: list[tuple[int, torch.Tensor]] = []
    momentum = [torch.zeros(4).to(DEVICE) for _ in range(5)]
    lazyrt.mark_step()

    def flush():
        flat = torch.cat([gradient for _, gradient in waiting]) / 4
        for (layer, _), part in zip(waiting, flat.split(4), strict=True):
            momentum[layer].mul_(0.9).add_(part)
        waiting.clear()

    for _ in range(4):
        with lazyrt.step():
            for layer, weight in enumerate(weights):
                waiting.append((layer, weight.tanh()))
                if len(waiting) == 3:
                    flush()

    first, *later = explained()
    carried = [each.top for each in later if each.top.kind == "carried_over"]
    assert first.top.kind == "first_trace"
    assert len(carried) >= 2, later
    assert carried[0].variable == "waiting"
    assert carried[0].text.startswith("2 items of the list `waiting`, made in step ")
    assert "a flush of buckets" in carried[0].fix


def test_what_was_made_before_the_loop_is_not_made_again_and_still_lives():
    x = ones(4, 4)
    lazyrt.mark_step()
    weights = torch.zeros(2, device=DEVICE)
    for _ in range(2):
        with lazyrt.step():
            out = (x @ x).sum()

    assert (out.dim(), weights.dim()) == (0, 1)
    (cause,) = explained()[-1].causes
    assert cause.text.endswith("was made in graph.1 and is not made again")
    assert cause.fix.startswith("nothing to do")
