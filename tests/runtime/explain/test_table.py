"""One table of planted causes. Each top cause is the planted one, complete.

Complete: a sentence, the variable's name, the line of this graph and that of the one before,
how many operations follow, what the compile cost, and what to do.
"""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import lazyrt
from lazygraph.explain.why import differences
from lazygraph.readable import duration_text
from tests.harness import DEVICE, cold_start

pytestmark = pytest.mark.lazy_only("is about compiled steps")


@pytest.fixture(autouse=True)
def _cold():
    cold_start()


def on_device(*shape, dtype=torch.float32):
    count = torch.Size(shape).numel()
    return torch.arange(1.0, 1 + count).reshape(shape).to(dtype).to(DEVICE)


kept: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_kept():
    """No tensor outlives its test: others count what lives."""
    yield
    kept.clear()


def step(
    *, rows=4, dtype=torch.float32, slope=0.25, rounds=2, branch=False, noise=False,
    keep=False, early=False, odd=False, held=False,
):  # fmt: skip
    """A step in which each argument plants one cause."""
    x = on_device(rows, 8, dtype=dtype)
    lazyrt.mark_step()
    y = torch.nn.functional.leaky_relu(x @ x.T, slope)
    for _ in range(rounds):
        y = torch.tanh(y) * 3 - y
    if branch:
        y = y.cumsum(0)
    if noise:
        y = y + torch.rand_like(y)
    if odd:
        y = y + torch.nonzero(y).sum()
    if early:
        y.amax().item()
    norm = (y * y).mean()
    if keep:
        kept.append(norm)
    log = logger(norm) if held else None
    del norm
    out = y.exp().sum()
    del y
    lazyrt.mark_step()
    return out, log


def logger(value):
    def show():
        return value

    return show


def planted(**changed):
    def plant():
        step()
        return step(**changed)

    return plant


def gone():
    step(keep=True)
    kept.clear()
    step()


def modes():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).to(DEVICE)
    x = on_device(4, 8)
    for _ in range(2):
        with lazyrt.step():
            out = model(x).sum()
        model.eval()
    return out


def debug_mode():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(DEVICE)
    x = on_device(4, 8)

    def run():
        with lazyrt.step():
            return model(x).exp().sum()

    run()
    with lazyrt.eager_module(model[0]):
        run()


def modules(more, *, again=False):
    def plant():
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(DEVICE)
        x = on_device(4, 8)
        lazyrt.mark_step()

        def run():
            with lazyrt.step():
                return model(x).sum()

        run()
        if again:
            model[0] = nn.Linear(8, 8, device=DEVICE)
        for _ in range(more):
            model.append(nn.Linear(8, 8).to(DEVICE))
        run()

    return plant


def buckets():
    gradients = [on_device(8) + k for k in range(5)]
    lazyrt.mark_step()
    for groups in ([(0, 1), (2, 3, 4)], [(0, 1, 2, 3), (4,)]):
        with lazyrt.step():
            made = [g * 2 for g in gradients]
            out = [torch.cat([made[k] for k in group]) for group in groups]
            del made
            results = [o.tanh() for o in out]
            del out
    return results


def moved_mark():
    x = on_device(8)
    lazyrt.mark_step()
    for late in (True, False):
        y = (x.tanh() * 2).exp()
        if not late:
            lazyrt.mark_step()
        y = (y + 1).square().log1p()
        if late:
            lazyrt.mark_step()
        lazyrt.mark_step()


def memory():
    from lazyrt.frontend.buffers import state_of

    state = on_device(8)
    lazyrt.mark_step()
    for held in (False, False, True):
        kept.append(state_of(state).base.data if held else None)
        with lazyrt.step():
            state.add_(1)
            state.mul_(2)
    kept.clear()


def evicted():
    step()
    lazyrt.clear_caches()
    step()


def tier():
    """A graph keeps its executable; one made in another order is looked up, by tier too."""
    lazyrt.config.compile_tier = "optimised"
    x = on_device(8)
    lazyrt.mark_step()
    for makers in ((torch.exp, torch.sin), (torch.sin, torch.exp)):
        made = [maker(x) for maker in makers]
        lazyrt.mark_step()
        lazyrt.config.compile_tier = "fast"
        del made


def optimizer():
    weight = nn.Parameter(on_device(4, 8))
    sgd = torch.optim.SGD([weight], lr=0.1, momentum=0.9, dampening=0.1)
    for _ in range(2):
        with lazyrt.step():
            sgd.zero_grad()
            (weight * weight).sum().backward()
            sgd.step()


# What is planted, the cause it must give, the variable it must name, and whether operations
# follow from it.
TABLE: dict[str, tuple[Any, str, str | None, bool]] = {
    "shape": (planted(rows=5), "input_shape", "x", True),
    "dtype": (planted(dtype=torch.float64), "input_dtype", "x", True),
    "scalar baked": (planted(slope=0.75), "baked_constant", "slope", True),
    "extra root": (planted(keep=True), "live_tensor", "kept[0]", True),
    "vanished root": (gone, "live_tensor_gone", "kept[0]", True),
    "control flow": (planted(branch=True), "code_path", None, True),
    "train or eval": (modes, "train_eval", None, True),
    "loop count": (planted(rounds=3), "loop_count", None, True),
    "random numbers": (planted(noise=True), "rng", None, True),
    "buckets regrouped": (buckets, "regrouped", None, True),
    "mode": (debug_mode, "mode", None, True),
    "fallback": (planted(odd=True), "fallback", None, True),
    "module made again": (modules(0, again=True), "module_recreated", "model.0.", True),
    "module added": (modules(1), "module_added", "model.2", True),
    "modules added": (modules(3), "module_added", "model.2", True),
    "closure": (planted(held=True), "closure", "value", True),
    "graph break by a read": (planted(early=True), "graph_break", None, True),
    "graph break at another line": (moved_mark, "graph_break", None, True),
    "donation": (memory, "donation", "state", True),
    "cache evicted": (evicted, "cache_evicted", None, False),
    "compile tier": (tier, "tier", None, False),
    "optimizer state": (optimizer, "state_became_input", "weight.momentum_buffer", True),
}  # fmt: skip
# These follow from nothing that has a line of its own on the side before.
_ONE_SIDED = {"module_recreated", "cache_evicted", "module_added", "rng"}


@pytest.mark.parametrize("name", TABLE)
def test_the_top_cause_is_the_planted_one_and_complete(name):
    plant, kind, variable, counted = TABLE[name]

    known = len(lazyrt.compiled_graphs())
    plant()

    records = lazyrt.compiled_graphs()[known:]
    found: list[Any] = [each.explanation for each in records if each.explanation]
    kinds = [each.top.kind for each in found]
    assert kind in kinds, [str(each) for each in found]
    explained = found[kinds.index(kind)]
    top = explained.top
    assert kinds[0] in {"first_trace", kind}
    assert top.text
    assert top.fix
    assert variable is None or top.variable.startswith(variable)
    assert (top.weight > 0) == counted
    assert explained.unexplained == 0
    assert explained.compile_ns > 0
    # Both sides have a line: the cause's own, or that of the boundary of the graph.
    sites = str(explained)
    assert "test_table.py:" in sites
    now = top.now or explained.ended_at
    before = top.before or explained.against_ended_at
    assert now is not None, sites
    assert before is not None or kind in _ONE_SIDED, sites
    assert duration_text(explained.compile_ns) in sites
    # A break makes two graphs; nothing else is a cause beside what is planted.
    assert {c.kind for each in found for c in each.causes} <= {
        kind,
        "first_trace",
        "new_program",
    }, sites


@pytest.mark.parametrize(
    ("field", "value"), [("device", "tpu: v5"), ("sharding", "4 devices by rows")]
)
def test_a_device_or_sharding_of_the_key_is_named_first(field, value):
    """There is one device: the key's slot is filled by hand."""
    step()
    (record,) = [r for r in lazyrt.compiled_graphs() if r.nodes > 2]
    changed: dict[str, Any] = {field: value}
    other = dataclasses.replace(record, key=dataclasses.replace(record.key, **changed))

    causes, unexplained = differences(record, other)

    assert [cause.kind for cause in causes] == [field]
    assert value in causes[0].text
    assert causes[0].fix
    assert causes[0].now is not None
    assert unexplained == 0


def test_what_makes_no_other_program_compiles_nothing():
    """Order of creation, dead code, equal inputs, memory layout of the host's data."""
    x, y = on_device(4, 4), on_device(4, 4)
    turned = torch.arange(1.0, 17).reshape(4, 4).t().to(DEVICE)
    lazyrt.mark_step()
    for first, second, swap in ((x, y, False), (y, x, True), (turned, y, False)):
        with lazyrt.step():
            if swap:
                torch.full((), 9.0, device=DEVICE)
                b, a = second.sin(), first.exp()
            else:
                a, b = first.exp(), second.sin()
            out = a * 2 + b
        del a, b, out

    assert len([r for r in lazyrt.compiled_graphs() if r.nodes > 2]) == 1


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"rows": 5, "keep": True}, {"input_shape", "live_tensor"}),
        ({"slope": 0.75, "noise": True}, {"baked_constant", "rng"}),
        ({"rounds": 4, "rows": 6}, {"loop_count", "input_shape"}),
        ({"dtype": torch.float64, "branch": True}, {"input_dtype", "code_path"}),
        ({"branch": True, "keep": True}, {"code_path", "live_tensor"}),
    ],
)
def test_of_two_causes_both_are_named(changes, kinds):
    step()
    step(**changes)

    found = lazyrt.explain()

    assert found is not None
    assert kinds <= {cause.kind for cause in found.causes}, str(found)


class Encoder(nn.Module):
    """Attention in which a batch of 4 and 2 heads make 8 rows, as many as tokens."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.drop = nn.Dropout(0.1)
        self.project = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, ids):
        x = self.drop(self.embed(ids))
        rows, length, _ = x.shape
        q, k, v = (
            layer(x).view(rows, length, 2, 8).transpose(1, 2)
            for layer in self.project[:3]
        )
        scores = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)
        mixed = (scores @ v).transpose(1, 2).reshape(rows, length, 16)
        return self.project[3](mixed) + x


def encoder_steps():
    """Return a model, and functions that train and evaluate it, each a step at its line."""
    model = Encoder().to(DEVICE).train()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(ids):
        with lazyrt.step():
            sgd.zero_grad()
            model(ids).square().mean().backward()
            sgd.step()

    def evaluate(ids):
        model.eval()
        with lazyrt.step(), torch.no_grad():
            value = model(ids).mean()
        model.train()
        return value

    return train, evaluate


def tokens(rows):
    return torch.arange(rows * 8).reshape(rows, 8).remainder(20).to(DEVICE)


def test_of_an_incomplete_last_batch_the_input_is_the_only_cause():
    """Views, transposes and the factors 1/N of its gradients follow from it."""
    train, _ = encoder_steps()
    train(tokens(4))
    train(tokens(3))

    found = lazyrt.explain()

    assert found is not None
    assert [cause.kind for cause in found.causes] == ["input_shape"], str(found)
    assert found.top.text.startswith("input `ids` is i64[3,8], was i64[4,8]; ")


def test_the_step_after_the_first_is_no_other_program_though_another_line_ends_it():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.1)
    x = torch.ones(2, 4).to(DEVICE)

    def train():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    with lazyrt.step("first"):
        train()
    for _ in range(2):
        with lazyrt.step():
            train()

    found = lazyrt.explain()

    assert found is not None
    assert [cause.kind for cause in found.causes] == ["state_became_input"], str(found)
    assert found.unexplained == 0


def test_an_evaluation_between_training_steps_is_a_step_of_its_own_and_no_cut():
    train, evaluate = encoder_steps()
    ids = tokens(4)
    train(ids)
    evaluate(ids)

    found = lazyrt.explain()

    assert found is not None
    assert [cause.kind for cause in found.causes] == ["other_step", "train_eval"]
    top = found.top
    assert top.now is not None
    assert top.before is not None
    assert top.text == (
        f"another step of the program, without gradients, which ends at end of step at "
        f"{top.now}; graph.1 ends at end of step at {top.before}"
    )
    assert top.now.line > top.before.line
    assert "nothing to do" in top.fix
    assert "runs in evaluation mode" in found.causes[1].text
    compiled = len(lazyrt.compiled_graphs())
    train(ids)
    evaluate(ids)
    assert len(lazyrt.compiled_graphs()) == compiled
