"""A finished step whose inputs are kept computes again what it computed; the program notices nothing."""

from typing import Any

import pytest
import torch

import lazyrt
from lazyrt.errors import LostValueError, UsageError
from lazyrt.execution import kept_steps
from tests.harness import thinned

pytestmark = pytest.mark.lazy_only("is about whole steps")


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(lazyrt.config, "cache_dir", None)
    lazyrt.mark_step()
    lazyrt.clear_caches()
    lazyrt.reset_counters()
    yield
    kept_steps.release_all()
    lazyrt.mark_step()


def training(steps, before=lambda: None):
    """Train a little, with dropout; return the losses and what ran."""
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2).to("lazyrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.ones(4, 3).to("lazyrt")
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.dropout(model(x), 0.5).square().sum()
        loss.backward()
        before()
        optimizer.step()
        losses.append(loss.item())
    records = lazyrt.compiled_graphs()
    return losses, [(r.key, r.runs, r.compiles) for r in records[-1:]]


def last_step():
    return max(record.last_step for record in lazyrt.compiled_graphs())


def outputs(inspection):
    return [
        (node.id, k)
        for node in inspection.graph.nodes
        for k, value in enumerate(node.outputs)
        if value is not None
    ]


def test_every_node_of_a_finished_step_gives_the_bits_that_it_gave_while_pending():
    pending: dict[Any, Any] = {}

    def look():
        pending.clear()
        seen = lazyrt.inspect()
        pending.update((at, seen.materialise(*at)) for at in outputs(seen))

    with lazyrt.config.scoped(keep_values="last"):
        training(2, look)
        finished = lazyrt.inspect(last_step())

        again = {at: finished.materialise(*at) for at in pending}

    assert len(again) > 10
    for at, value in pending.items():
        torch.testing.assert_close(again[at], value, rtol=0, atol=0)


@pytest.mark.parametrize("keep", ["last", 3])
def test_keeping_changes_no_key_no_compile_no_execution_and_no_number(keep):
    expected, ran = training(4)
    counts = lazyrt.counters()
    lazyrt.clear_caches()
    lazyrt.reset_counters()

    with lazyrt.config.scoped(keep_values=keep):
        losses, ran_with = training(4)
        counts_with = lazyrt.counters()
        live = len(lazyrt.live_tensors())
        kept_steps.release_all()

        assert losses == expected
        assert ran_with[0][0].donated == ran[0][0].donated != ()
        assert ran_with[0][0].fingerprint == ran[0][0].fingerprint
        assert counts_with == counts
        assert len(lazyrt.live_tensors()) == live


def test_looking_back_runs_nothing_of_the_program():
    with lazyrt.config.scoped(keep_values="last"):
        losses, _ = training(3)
        counts = lazyrt.counters()

        step = lazyrt.inspect(last_step())
        for at in outputs(step):
            step.look(*at)
        step.find_not_finite()
        step.measure()

        now = lazyrt.counters()
    assert now["compiles"] == counts["compiles"]
    assert now["executions"] == counts["executions"]
    assert training(3)[0] == losses


def test_one_can_walk_back_through_the_kept_steps():
    with lazyrt.config.scoped(keep_values=3):
        losses, _ = training(4)
        last = last_step()
        found = []
        for number in (last - 2, last - 1, last):
            step = lazyrt.inspect(number)
            (loss,) = [v for v, held in step.holdings.items() if held.name == "loss"]
            assert loss.node is not None
            found.append(float(step.materialise(loss.node.id)))

        assert found == pytest.approx(losses[1:], rel=1e-6)
        assert lazyrt.status().kept.steps == (last - 2, last - 1, last)
        first = lazyrt.inspect(last - 3)
        with pytest.raises(LostValueError, match="keep_values"):
            first.materialise(first.graph.nodes[0].id)


def recorded_training(kind, steps):
    """Train with random numbers, running means and moments; return what each step has left."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.4),
        torch.nn.Linear(8, 3),
    ).to("lazyrt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    step = torch.compile(model) if kind == "compiled" else model
    left = {}
    for _ in range(steps):
        x = torch.randn(5, 6).to("lazyrt")
        optimizer.zero_grad()
        loss = step(x).square().mean()
        loss.backward()
        if kind == "accumulated":
            lazyrt.mark_step()
            loss = step(x * 2).square().mean()
            loss.backward()
        optimizer.step()
        left[last_step()] = copied(loss=loss, model=model)
    return left


def copied(**held):
    """Return what tensors and modules hold now, by the names that a step gives it."""
    tensors = {}
    for name, each in held.items():
        if isinstance(each, torch.Tensor):
            tensors[name] = each
        else:
            inside = [*each.named_parameters(), *each.named_buffers()]
            tensors |= {f"{name}.{path}": tensor for path, tensor in inside}
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def recorded_adversaries(steps):
    """Train two networks in half precision, with noise of a generator, a falling rate and a mean of weights."""
    torch.manual_seed(3)
    noise = torch.Generator("lazyrt").manual_seed(5)
    maker = torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4)
    ).to("lazyrt")
    judge = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3)).to(
        "lazyrt"
    )
    mean = torch.optim.swa_utils.AveragedModel(maker)
    rate = torch.tensor(0.1, device="lazyrt")
    makes = torch.optim.SGD(maker.parameters(), lr=rate, momentum=0.9)
    judges = torch.optim.AdamW(judge.parameters(), lr=0.02)
    falls = torch.optim.lr_scheduler.StepLR(makes, 2, 0.5)
    left = {}
    for _ in range(steps):
        z = torch.randn(6, 3, device="lazyrt", generator=noise)
        with torch.autocast("lazyrt", dtype=torch.bfloat16):
            fake = maker(z)
            told = judge(fake.detach()).float().square().mean()
        judges.zero_grad()
        told.backward()
        judges.step()
        left[last_step()] = copied(told=told, fake=fake, judge=judge)
        makes.zero_grad()
        loss = -judge(fake.float()).square().mean()
        loss.backward()
        makes.step()
        weights = {f"maker.{name}": p for name, p in maker.named_parameters()}
        left[last_step()] = copied(loss=loss, **weights)
        falls.step()
        mean.update_parameters(maker)
        maker.eval()
        shown = maker(z).sum(1)
        maker.train()
        lazyrt.mark_step()
        left[last_step()] = copied(shown=shown)
    return left


@pytest.mark.parametrize(
    "kind", thinned(["plain", "accumulated", "compiled", "adversaries"], 4)
)
def test_results_of_kept_steps_have_the_bits_that_they_had(kind):
    train = recorded_adversaries if kind == "adversaries" else None
    with lazyrt.config.scoped(keep_values=6):
        left = train(4) if train else recorded_training(kind, 4)
        compiles = lazyrt.counters()["compiles"]
        lost = 0
        for number in list(left)[-3:]:
            step = lazyrt.inspect(number)
            for at in outputs(
                step
            ):  # what ran for another value tells it in other bits
                step.look(*at)
            found = {
                held.name: step.materialise(value.node.id, value.index)
                for value, held in step.holdings.items()
                if value.node is not None and held.name in left[number]
            }
            lost += len(left[number]) - len(found)
            for name, tensor in found.items():
                assert torch.equal(tensor, left[number][name]), name

    assert not lost
    assert lazyrt.counters()["compiles"] == compiles


def test_a_result_comes_from_its_step_though_a_peek_has_computed_it_with_another_value():
    with lazyrt.config.scoped(keep_values=2, op_by_op_reads=True):
        left = recorded_training("plain", 3)
        step = lazyrt.inspect([*left][-2])  # of which nothing is held any more
        (at,) = [
            (value.node.id, value.index)
            for value, held in step.holdings.items()
            if held.name == "model.1.running_mean" and value.node is not None
        ]
        step.look(at[0], 0)  # what is normalised, whose op gives the mean, too
        cost = step.cost(*at)
        found = step.materialise(*at)

        assert cost.nodes == len(step.graph.nodes)
        assert step.cost(*at).nodes == 0
        assert torch.equal(found, left[step.step]["model.1.running_mean"])


def test_a_computed_tensor_leads_to_the_step_that_made_it():
    with lazyrt.config.scoped(keep_values="last"):
        x = torch.ones(3, device="lazyrt")
        y = (x + 1).exp()
        other = x - 1
        lazyrt.mark_step()

        step = lazyrt.inspect(y)

        assert [node.op.name for node in step.graph.nodes][-2:] == [
            "aten.add.Tensor",
            "aten.exp.default",
        ]
        assert not step.is_pending
        assert step.materialise(step.graph.nodes[-2].id).tolist() == [2, 2, 2]
        assert other.tolist() == [0, 0, 0]


def test_what_a_tensor_holds_is_read_without_kept_inputs():
    y = torch.ones(3, device="lazyrt") + 1
    lazyrt.mark_step()
    executions = lazyrt.counters()["peek_executions"]

    step = lazyrt.inspect(last_step())

    assert step.materialise(step.graph.nodes[-1].id).tolist() == [2, 2, 2]
    assert lazyrt.counters()["peek_executions"] == executions
    y.add_(1)
    lazyrt.mark_step()
    with pytest.raises(LostValueError, match=r"keep_values = \d+ and run"):
        step.materialise(step.graph.nodes[-1].id)


def test_a_step_that_is_more_than_the_budget_is_left_out_and_said():
    x = torch.ones(100, device="lazyrt")
    lazyrt.mark_step()
    with lazyrt.config.scoped(keep_values=5, keep_values_bytes=500):
        for _ in range(3):
            x.add_(1)
            lazyrt.mark_step()
        last = last_step()
        assert lazyrt.status().kept.steps == (last,)  # one is 400 bytes
        big = torch.ones(200)
        z = x + big.to("lazyrt")[:100]
        lazyrt.mark_step()

        kept = lazyrt.status().kept

    assert kept.left_out == (last + 1, 1_200)
    assert f"step {last + 1} is not kept: its inputs are 1.2 KiB" in str(kept)
    assert not str(lazyrt.status().kept)  # nothing is to be kept any more
    assert z[0].item() == 5


def test_what_is_kept_gives_way_to_a_step_that_needs_the_memory():
    x = torch.ones(1_000, device="lazyrt")
    lazyrt.mark_step()
    with lazyrt.config.scoped(keep_values=3, max_memory_bytes=9_000):
        x.add_(1)
        lazyrt.mark_step()
        x.add_(1)
        lazyrt.mark_step()
        y = x + 1
        lazyrt.mark_step()

        assert y[0].item() == 4
        assert x[0].item() == 3


def test_a_smaller_budget_lets_go_of_the_earliest_steps_at_once():
    x = torch.ones(100, device="lazyrt")
    lazyrt.mark_step()
    with lazyrt.config.scoped(keep_values=3):
        for _ in range(3):
            x.add_(1)
            lazyrt.mark_step()
        last = last_step()

        with lazyrt.config.scoped(keep_values_bytes=900):  # one is 400 bytes
            assert lazyrt.status().kept.steps == (last - 1, last)

        assert lazyrt.status().kept.nbytes <= 900
        with lazyrt.config.scoped(keep_values_bytes=0):
            assert lazyrt.status().kept.steps == ()
        assert x.sum().item() == 400


def test_switching_off_lets_go_at_once():
    lazyrt.config.keep_values = "last"
    try:
        y = torch.ones(3, device="lazyrt") + 1
        lazyrt.mark_step()
        assert len(lazyrt.status().kept.steps) == 1
        assert "keep_values" in str(lazyrt.config)
    finally:
        lazyrt.config.keep_values = "off"

    assert lazyrt.status().kept.steps == ()
    assert y.tolist() == [2, 2, 2]
    with pytest.raises(UsageError, match="'off', 'last' or a number of steps"):
        lazyrt.config.keep_values = "always"  # type: ignore[assignment]


def test_a_step_that_is_not_there_is_refused_with_what_is():
    with pytest.raises(UsageError, match="compiled_graphs"):
        lazyrt.inspect(10**9)
