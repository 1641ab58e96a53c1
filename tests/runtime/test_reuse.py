"""Looking with `reuse=True` runs a part of the step once; a peek leaves the step alone."""

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.errors import UsageError
from lazyrt.observe import events
from tests.harness import DEVICE, assert_same, grad_of, recorded, step_fingerprints

pytestmark = pytest.mark.not_eager("looks at what is pending")


def example(device=DEVICE):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(look, steps=3, device=DEVICE):
    """Return losses and weights of a training that looks at each loss before its barrier."""
    model, optimizer = example(device)
    losses = []
    for k in range(steps):
        x = torch.linspace(-1, 1 + k, 12).view(4, 3).to(device)
        with lazyrt.step():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            losses.append(look(loss))
            optimizer.step()
    return losses, [p.detach().cpu() for p in model.parameters()]


@pytest.mark.lazy_only("counts executions of steps")
def test_with_reuse_no_op_runs_twice_and_the_step_is_another_graph():
    def run(*, reuse):
        x = torch.ones(4).to(DEVICE)
        with recorded(events.GraphCaptured, events.BarrierFinished) as found:
            loss = ((x * 2).exp() + 1).sum()
            choice = lazyrt.reuse_choice(loss)
            lazyrt.materialise(loss, reuse=reuse)
            rest = loss * 3 + 1
            foretold = lazyrt.reuse_choice(rest).fingerprint
            lazyrt.mark_step()
        assert_same(rest, torch.tensor((7.38905609893 + 1) * 12 + 1), 1e-5)
        return found[-1], step_fingerprints(found), choice, foretold

    peeked, step, choice, foretold = run(reuse=False)
    reused, other_step, _, other_foretold = run(reuse=True)

    assert peeked.nodes == 6
    assert sum(repeat.nodes for repeat in peeked.repeats) == choice.ops == 4
    assert reused.nodes == 2
    assert reused.repeats == ()
    assert step == [foretold]
    assert other_step == [other_foretold]
    assert step != other_step


def test_both_ways_are_told_before_anything_runs():
    x = torch.ones(4).to(DEVICE)
    hidden = (x * 2).exp()
    loss = hidden.sum()
    other = hidden * 3 + loss
    before = lazyrt.counters()
    ids = [node.id for node in lazyrt.pending_graph().nodes]

    choice = lazyrt.reuse_choice(loss)

    assert lazyrt.counters() == before
    assert [node.id for node in lazyrt.pending_graph().nodes] == ids
    assert (choice.tensor, choice.ops, choice.step_ops) == ("loss", 3, 5)
    assert (choice.kept, choice.kept_bytes) == (2, 4 + 16)
    assert choice.fingerprint == lazyrt.pending_graph().fingerprint
    assert choice.remaining_ops == 2
    lazyrt.materialise(loss, reuse=True)
    assert lazyrt.pending_graph().fingerprint == choice.reused_fingerprint
    assert not lazyrt.is_pending(hidden)
    assert lazyrt.is_pending(other)
    assert "3 of 5 ops (60 %) run twice" in str(choice)
    assert "2 values (20 bytes) are kept" in str(choice)


@pytest.mark.lazy_only("counts executions of steps")
def test_training_is_the_cpus_and_compiles_as_often_as_without_looking():
    expected = train(lambda loss: loss.detach().clone(), device="cpu")
    lazyrt.reset_counters()
    train(lambda loss: None)
    compiles = lazyrt.counters()["compiles"]
    lazyrt.clear_caches()
    lazyrt.reset_counters()

    found = train(lambda loss: lazyrt.materialise(loss, reuse=True).detach())

    counts = lazyrt.counters()
    assert (counts["compiles"], counts["executions"]) == (compiles, 3)
    assert counts["peek_executions"] == 3
    for ours, theirs in zip(
        found[0] + found[1], expected[0] + expected[1], strict=True
    ):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_views_writes_and_random_numbers_come_out_as_without_looking():
    def program(*, reuse):
        torch.manual_seed(5)
        weight = torch.ones(4, 4).to(DEVICE).requires_grad_()
        y = nn.functional.dropout(weight * 2, 0.5)
        row = (y.detach() + 0)[1]
        z = (y @ y.t()).sum()
        if reuse:
            lazyrt.materialise(row, reuse=True)
        row.add_(1)
        (z * y.mean()).backward()
        more = torch.rand(3, device=DEVICE)
        lazyrt.mark_step()
        return [row.cpu(), grad_of(weight), z.detach().cpu(), more.cpu()]

    for one, other in zip(program(reuse=True), program(reuse=False), strict=True):
        torch.testing.assert_close(one, other)


def test_what_is_computed_has_no_choice_and_reuse_is_a_copy():
    x = torch.ones(2).to(DEVICE)

    with pytest.raises(UsageError, match="computed already"):
        lazyrt.reuse_choice(x)

    assert lazyrt.materialise(x, reuse=True).tolist() == [1.0, 1.0]
    assert lazyrt.counters()["peek_executions"] == 0


def test_a_failure_leaves_everything_pending(monkeypatch):
    from lazyrt.frontend import reuse

    def fail(wanted):
        raise OSError("no memory")

    y = torch.ones(2).to(DEVICE) * 2
    with monkeypatch.context() as patch:
        patch.setattr(reuse, "_run", fail)
        with pytest.raises(OSError, match="no memory"):
            lazyrt.materialise(y, reuse=True)

    assert lazyrt.is_pending(y)
    assert y.tolist() == [2.0, 2.0]
