"""A loop ends at the first step whose loss or weights are not finite, and the step is still there."""

import itertools
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import lazyrt
from lazyrt import jax_compat
from lazyrt.control import finite_check
from lazyrt.errors import NotFiniteError, OutOfMemoryError
from lazyrt.execution import kept_steps
from tests.harness import thinned

pytestmark = pytest.mark.lazy_only("is about whole steps")


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(lazyrt.config, "cache_dir", None)
    monkeypatch.setattr(finite_check, "_PAUSE_NS", 0)  # each step is asked
    monkeypatch.setattr(finite_check, "_SHARE", 0)
    lazyrt.mark_step()
    lazyrt.clear_caches()
    lazyrt.reset_counters()
    yield
    lazyrt.config.stop_at_nan = False
    kept_steps.release_all()
    lazyrt.discard_pending()


def training(steps, bad_at=None):
    """Yield the weight before each step; the logarithm of one step's input is not finite."""
    weight = torch.nn.Parameter(torch.ones(2).to("lazyrt"))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    for k in range(steps):
        yield weight
        x = torch.tensor([1.0, -1.0 if k == bad_at else 2.0]).to("lazyrt")
        optimizer.zero_grad()
        (weight * x.log()).sum().backward()
        optimizer.step()


def test_the_step_with_the_first_nan_raises_with_op_line_and_operands():
    lazyrt.config.stop_at_nan = True
    before: list[Any] = []

    with pytest.raises(FloatingPointError) as caught:
        before.extend(weight.detach().sum().item() for weight in training(5, bad_at=3))

    message = str(caught.value)
    assert isinstance(caught.value, NotFiniteError)
    assert len(before) == 4  # the read of what the step has made raises
    assert (
        "It begins with 1 NaN in aten.log.default at test_finite_check.py:" in message
    )
    assert "of f32[2] from -1 to 1." in message
    assert (
        "Weights, and what else the step has overwritten, are as before it" in message
    )


class Answer:
    """What the device says of a step, once somebody has waited for it."""

    waited: ClassVar[list[Any]] = []

    def is_ready(self):
        return self in self.waited

    def __array__(self, *args, **kwargs):
        return np.array([True])


def test_a_barrier_waits_for_the_answer_of_the_step_before_and_not_for_its_own(
    monkeypatch,
):
    asked: list[Answer] = []
    block = jax_compat.block

    def ask(_):
        asked.append(Answer())
        return asked[-1]

    def wait_for(data):
        if isinstance(data, Answer):
            Answer.waited.append(data)
        else:
            block(data)

    monkeypatch.setattr(Answer, "waited", [])
    monkeypatch.setattr(finite_check, "_are_finite", ask)
    monkeypatch.setattr(jax_compat, "block", wait_for)
    lazyrt.config.stop_at_nan = True

    waited = [len(Answer.waited) for _ in training(5)]
    last = len(Answer.waited)
    lazyrt.wait()

    assert waited == [0, 0, 1, 2, 3]
    assert last == 4
    assert Answer.waited == asked


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_weights_and_optimizer_state_are_as_before_the_step_and_training_goes_on(
    optimizer,
):
    def run(device, batches):
        weight = torch.nn.Parameter(torch.ones(2).to(device))
        steps = optimizer([weight], lr=0.1)
        for batch in batches:
            try:
                steps.zero_grad()
                (weight * torch.tensor(batch).to(device).log()).sum().backward()
                steps.step()
                lazyrt.wait()
            except NotFiniteError:
                continue
        return weight.detach().cpu()

    good = [[1.0, 2.0], [2.0, 3.0], [1.0, 4.0]]
    lazyrt.config.stop_at_nan = True
    found = run("lazyrt", [*good[:2], [1.0, -1.0], good[2]])

    torch.testing.assert_close(found, run("cpu", good))


def noisy_training(steps, bad_at, *, waits=True):
    """Train a network with random numbers and running means; return what it holds at the end."""
    torch.manual_seed(0)
    norm, drop = torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)
    layers = torch.nn.Linear(4, 8), norm, drop, torch.nn.Linear(8, 1)
    model = torch.nn.Sequential(*layers).to("lazyrt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    total = torch.zeros((), device="lazyrt")
    lazyrt.mark_step()
    for k in range(steps):
        x = torch.randn(6, 4).mul_(float("inf") if k == bad_at else 1.0).to("lazyrt")
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        try:
            optimizer.step()
            total += loss.detach()
            if k % 3 == 0:
                for running in norm.buffers():
                    running.mul_(2)
            lazyrt.mark_step()
            if waits or k == steps - 1:
                lazyrt.wait()
        except NotFiniteError:
            break
    states = [value for state in optimizer.state.values() for value in state.values()]
    held = [*model.parameters(), *model.buffers(), *states, total]
    return [tensor.detach().cpu().clone() for tensor in held]


@pytest.mark.parametrize("bad_at", thinned([4, 1, 5, 6, 12], 2))
def test_what_a_step_has_overwritten_is_made_again_from_steps_before(
    bad_at, monkeypatch
):
    monkeypatch.setattr(kept_steps, "_STEPS", 4)
    expected = noisy_training(bad_at, bad_at=None)
    lazyrt.config.stop_at_nan = True

    found = noisy_training(bad_at + 3, bad_at)

    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_one_step_in_two_hundred_copies_what_it_overwrites():
    lazyrt.config.stop_at_nan = True
    copied = [kept_steps.kept_values().copied_bytes for _ in training(405)]

    assert [k for k, nbytes in enumerate(copied) if nbytes] == [1, 201, 401]


def test_steps_that_ranks_run_together_keep_all_their_inputs(monkeypatch):
    monkeypatch.setattr(kept_steps, "replicas", SimpleNamespace(world=object))
    lazyrt.config.stop_at_nan = True
    copied = [kept_steps.kept_values().copied_bytes for _ in training(4)]

    assert all(copied[1:])


def small_training(steps, loss_of, *, at=-1, update=True):
    """Train a row of a table and a bias; the loss is told whether its step is the bad one."""
    table = torch.nn.Parameter(torch.ones(4, 2).to("lazyrt"))
    bias = torch.nn.Parameter(torch.ones(1).to("lazyrt"))
    optimizer = torch.optim.Adam([table, bias]) if update else None
    for k in range(steps):
        yield table
        table.grad = bias.grad = None
        factor = torch.tensor([0.0 if k == at else 1.0]).to("lazyrt")
        row = torch.tensor([3 if k == at else 0]).to("lazyrt")
        loss_of(table[row] * factor, bias).backward()
        if optimizer is not None:
            optimizer.step()
        lazyrt.mark_step()


def root_and_bias(rows, bias):
    return rows.square().sum().sqrt() + bias.square().sum()


def test_a_step_is_asked_of_its_loss_and_smallest_weight_and_a_window_of_all(
    monkeypatch,
):
    monkeypatch.setattr(kept_steps, "_STEPS", 4)
    asked: list[int] = []
    are_finite = finite_check._are_finite

    def ask(arrays):
        asked.append(sum(array.size for array in arrays))
        return are_finite(arrays)

    monkeypatch.setattr(finite_check, "_are_finite", ask)
    lazyrt.config.stop_at_nan = True
    list(small_training(6, root_and_bias))

    assert asked == [9, 1, 1, 1, 9, 1]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_in_a_large_weight_is_seen(bad):
    weight = torch.randn(300, 200)
    weight[123, 45] = bad
    arrays: Any = [weight.numpy(), weight[:123].numpy()]

    found = finite_check._are_finite(arrays)

    assert np.asarray(found).tolist() == [False, True]


def test_a_row_that_no_later_batch_reads_ends_the_loop_with_the_window(monkeypatch):
    monkeypatch.setattr(kept_steps, "_STEPS", 6)
    lazyrt.config.stop_at_nan = True
    seen: list[Any] = []

    with pytest.raises(NotFiniteError, match=", seen after step") as caught:
        seen.extend(t for t in small_training(12, root_and_bias, at=2))

    assert len(seen) in {7, 8}  # the answer may come a step later
    assert "(backward of test_finite_check.py:" in str(caught.value)
    assert seen[0].isfinite().all()
    assert kept_steps.kept_values().steps[0] == int(str(caught.value).split()[1])


def test_weights_that_are_not_finite_cannot_be_read_or_saved():
    lazyrt.config.stop_at_nan = True
    (table,) = {id(t): t for t in small_training(4, root_and_bias, at=2)}.values()

    with pytest.raises(NotFiniteError, match="gave table"):
        table.detach().cpu()

    assert table.isfinite().all()


def test_gradients_count_where_no_optimizer_takes_them():
    lazyrt.config.stop_at_nan = True

    with pytest.raises(NotFiniteError, match=r"gave table\.grad"):
        list(small_training(5, root_and_bias, at=2, update=False))


def scaled_training(steps, scaler):
    """Train in half precision with a scaler of gradients that overflow at first."""
    model = torch.nn.Linear(4, 1).to("lazyrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("lazyrt", dtype=torch.float16):
            loss = model(torch.ones(2, 4).to("lazyrt")).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        scaler.step(optimizer)
        scaler.update()
    return norms


def test_steps_that_a_gradient_scaler_leaves_out_are_no_reason_to_stop():
    lazyrt.config.stop_at_nan = True

    norms = scaled_training(6, torch.amp.GradScaler("lazyrt", init_scale=2.0**18))

    assert not norms[0].isfinite()
    assert norms[-1].isfinite()


def test_a_metric_that_is_not_finite_is_no_reason_to_stop():
    lazyrt.config.stop_at_nan = True
    metrics: list[Any] = []

    def loss(rows, bias):
        found = root_and_bias(rows, bias)
        metrics.append((found.detach() * 0).log())
        return found

    list(small_training(4, loss))
    lazyrt.wait()

    assert all(metric.isinf() for metric in metrics)


def test_a_loss_that_was_read_is_looked_at_when_backward_begins():
    def loss(rows, bias):
        found = (rows.log() * 0).sum() + bias.sum()
        found.item()
        return found

    lazyrt.config.stop_at_nan = True
    with pytest.raises(NotFiniteError, match=r"in aten\.log\.default"):
        list(small_training(4, loss, at=2))


def test_a_bad_gradient_that_is_accumulated_leads_to_the_step_that_made_it():
    weight = torch.nn.Parameter(torch.ones(2).to("lazyrt"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    lazyrt.config.stop_at_nan = True

    def train():
        for k in range(8):
            factor = torch.tensor(0.0 if k == 5 else 1.0).to("lazyrt")
            (weight * factor).square().sum().sqrt().backward()
            if k % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            lazyrt.mark_step()
            ran.append(max(graph.last_step for graph in lazyrt.compiled_graphs()))
        lazyrt.wait()

    ran: list[int] = []
    with pytest.raises(NotFiniteError) as caught:
        train()

    assert str(caught.value).startswith(f"step {ran[5]} gave weight.grad that is")
    assert weight.isfinite().all()


def test_where_steps_cannot_run_again_for_memory_the_error_says_so(monkeypatch):
    def refuse(*_, **__):
        raise OutOfMemoryError("it needs 9 GiB, and 1 GiB is available.", needed=9)

    monkeypatch.setattr(kept_steps, "replay", refuse)
    lazyrt.config.stop_at_nan = True

    with pytest.raises(NotFiniteError, match="tensors are as after it: the inputs"):
        list(training(3, bad_at=0))


def go_on(weight, seen):
    loss = (weight * torch.tensor([1.0, -1.0]).to("lazyrt").log()).sum()
    loss.backward()
    with torch.no_grad():
        weight.mul_(loss)
        for _ in range(3):
            lazyrt.mark_step()
            seen += 1
            weight += 1


def test_the_later_step_and_what_is_pending_are_taken_back_too():
    lazyrt.config.stop_at_nan = True
    weight = torch.ones(2, device="lazyrt", requires_grad=True)
    seen = torch.zeros(1, device="lazyrt")
    lazyrt.mark_step()

    with pytest.raises(NotFiniteError) as caught:
        go_on(weight, seen)

    assert not lazyrt.pending_graph().nodes
    last = kept_steps.kept_values().steps[-1]
    assert str(caught.value).startswith(f"step {last} gave loss, weight that are")
    assert weight.tolist() == [1.0, 1.0]
    assert seen.tolist() == [0.0]


def test_turning_it_off_lets_the_kept_inputs_go():
    lazyrt.config.stop_at_nan = True
    list(training(3))
    assert kept_steps.kept_values().steps

    lazyrt.config.stop_at_nan = False

    assert not kept_steps.kept_values().steps


def test_finite_steps_run_as_without_the_check():
    def run():
        lazyrt.clear_caches()
        lazyrt.reset_counters()
        weights = [weight.detach().cpu().clone() for weight in training(3)]
        key = lazyrt.compiled_graphs()[-1].key
        return weights, lazyrt.counters(), (key.fingerprint, key.donated)

    expected = run()
    lazyrt.config.stop_at_nan = True
    found = run()

    assert found[1:] == expected[1:]
    assert found[2][1] != ()
    for one, other in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_causal_mask_is_no_reason_to_stop():
    lazyrt.config.stop_at_nan = True
    seen = torch.ones(3, 3).tril().bool().to("lazyrt")

    mask = torch.zeros(3, 3, device="lazyrt").masked_fill(~seen, float("-inf"))
    attention = mask.softmax(-1)
    lazyrt.mark_step()

    assert mask.isneginf().sum().item() == 3
    assert attention.sum().item() == pytest.approx(3)


def test_a_step_larger_than_the_budget_has_run_and_says_so():
    lazyrt.config.stop_at_nan = True
    x = torch.full((4,), -1.0).to("lazyrt").requires_grad_()

    with lazyrt.config.scoped(keep_values_bytes=1):
        loss = x.log().sum()
        loss.backward()
        with pytest.raises(NotFiniteError, match="more than config"):
            loss.item()

    assert loss.isnan().item()


NEVER = 10**18


def test_between_two_questions_steps_are_asked_of_nothing(monkeypatch):
    monkeypatch.setattr(finite_check, "_PAUSE_NS", NEVER)
    monkeypatch.setattr(kept_steps, "_STEPS", 4)
    asked: list[int] = []
    are_finite = finite_check._are_finite

    def ask(arrays):
        asked.append(sum(array.size for array in arrays))
        return are_finite(arrays)

    monkeypatch.setattr(finite_check, "_are_finite", ask)
    lazyrt.config.stop_at_nan = True
    list(small_training(6, root_and_bias))

    assert asked == [9, 9]


def test_the_longer_a_loop_the_fewer_of_its_steps_are_asked(monkeypatch):
    monkeypatch.setattr(finite_check, "_PAUSE_NS", NEVER)
    monkeypatch.setattr(finite_check, "_SHARE", 4)
    counting = Mock(side_effect=finite_check._are_finite)
    monkeypatch.setattr(finite_check, "_are_finite", counting)
    lazyrt.config.stop_at_nan = True
    counts = [counting.call_count for _ in small_training(40, root_and_bias)]

    asked = [k for k, n in enumerate(counts[1:]) if n > counts[k]]
    waited = [later - step for step, later in itertools.pairwise(asked)]
    assert waited[:4] == [1] * 4
    assert waited == sorted(waited)
    assert max(waited) > 5


@pytest.mark.parametrize("bad_at", [1, 2, 3, 4, 6, 7])
@pytest.mark.parametrize("most", [4, 100])
def test_a_step_that_was_not_asked_is_found_by_the_next_question_or_wait(
    bad_at, most, monkeypatch
):
    monkeypatch.setattr(finite_check, "_PAUSE_NS", NEVER)
    monkeypatch.setattr(kept_steps, "_STEPS", most)
    expected = noisy_training(bad_at, bad_at=None)
    lazyrt.config.stop_at_nan = True

    found = noisy_training(bad_at + 2, bad_at, waits=False)

    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("holds", [False, True])
def test_a_bad_loss_of_a_step_that_was_not_asked_is_found_though_weights_are_finite(
    holds, monkeypatch
):
    monkeypatch.setattr(finite_check, "_PAUSE_NS", NEVER)
    lazyrt.config.stop_at_nan = True
    losses: list[Any] = []

    def loss(rows, bias):
        aside = (rows.detach().log() * 0).sum()  # -inf * 0 in the bad step
        found = rows.square().sum() + bias.square().sum() + aside
        losses[:] = [*losses, found] if holds else [found]
        return found

    (table,) = {id(t): t for t in small_training(5, loss, at=2)}.values()
    # Each turn has a barrier after its optimizer, and one of its own.
    bad = max(record.last_step for record in lazyrt.compiled_graphs()) - 2 * 2
    with pytest.raises(
        NotFiniteError, match=r"gave losses.* that is not finite"
    ) as caught:
        lazyrt.wait()

    assert str(caught.value).startswith(f"step {bad} gave")
    assert "It begins with 2 -Inf in aten.log.default" in str(caught.value)
    assert table.isfinite().all()


def test_a_loss_that_is_overwritten_before_the_next_question_counts_as_it_was(
    monkeypatch,
):
    monkeypatch.setattr(finite_check, "_PAUSE_NS", NEVER)

    def run(*, is_on):
        lazyrt.clear_caches()
        lazyrt.reset_counters()
        lazyrt.config.stop_at_nan = is_on
        kept = torch.zeros((), device="lazyrt")

        def loss(rows, bias):
            nonlocal kept
            kept.mul_(2)
            kept = root_and_bias(rows, bias)
            return kept

        (table,) = {id(t): t for t in small_training(5, loss)}.values()
        keys = {(r.key.fingerprint, r.key.donated) for r in lazyrt.compiled_graphs()}
        return keys, lazyrt.counters(), table.detach().cpu()

    expected, found = run(is_on=False), run(is_on=True)

    assert found[:2] == expected[:2]
    torch.testing.assert_close(found[2], expected[2], rtol=0, atol=0)


def test_steps_that_were_taken_back_are_not_the_last():
    lazyrt.config.stop_at_nan = True

    with pytest.raises(NotFiniteError, match=r"step (\d+) gave") as caught:
        list(training(5, bad_at=3))

    bad = int(str(caught.value).split()[1])
    ran = {graph.last_step for graph in lazyrt.compiled_graphs()}
    assert lazyrt.graph_of_step(bad) is not None
    assert lazyrt.graph_of_step(bad + 1) is None
    assert max(ran) == bad


def descend(weight, optimizer, bad_at):
    for k in range(6):
        x = torch.tensor([1.0, -1.0 if k == bad_at else 2.0]).to("lazyrt")
        optimizer.zero_grad()
        (weight * (1 + 0 * x.log())).sum().backward()
        optimizer.step()
    lazyrt.wait()


def test_a_second_error_names_its_own_step_and_takes_no_finite_one_back():
    lazyrt.config.stop_at_nan = True
    weight = torch.nn.Parameter(torch.ones(2).to("lazyrt"))
    optimizer = torch.optim.SGD([weight], lr=0.5)

    with pytest.raises(NotFiniteError, match=r"step (\d+) gave") as first:
        descend(weight, optimizer, bad_at=1)
    after_one = weight.detach().tolist()
    with pytest.raises(NotFiniteError, match=r"step (\d+) gave") as second:
        descend(weight, optimizer, bad_at=4)

    assert after_one == [0.5, 0.5]
    assert weight.tolist() == [-1.5, -1.5]
    assert int(str(second.value).split()[1]) > int(str(first.value).split()[1])
