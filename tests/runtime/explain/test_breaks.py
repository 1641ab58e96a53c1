"""A graph that ends or begins elsewhere: graph breaks, moved marks, steps of their own."""

import linecache
from typing import Any

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


def layers(*more):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), *more, nn.Linear(6, 3)).to(DEVICE)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_read_within_a_step_is_named_by_the_graph_that_it_ends_and_by_the_rest():
    x = ones(4, 4)
    lazyrt.mark_step()

    def step(*, reads):
        y = (x @ x).tanh() * 2
        if reads:
            y.exp().mean().item()
        out = y.square().sum().sqrt()
        lazyrt.mark_step()
        return out

    step(reads=False)
    step(reads=True)

    first, rest = explained()[1:]
    line = step.__code__.co_firstlineno + 3
    assert kinds(first) == kinds(rest) == ["graph_break"]
    assert first.text == (
        f"graph break: the graph ends earlier, at read by .item() at test_breaks.py:{line}, "
        f"not mark_step() at test_breaks.py:{line + 2}"
    )
    assert f"read by .item() at test_breaks.py:{line}" in rest.text
    assert "read values after the step has ended" in first.top.fix
    assert first.unexplained == rest.unexplained == 0


class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x, *, reads):
        h = self.first(x).relu()
        if reads:
            float(h.detach().sum())
        return self.second(h)


def test_a_read_within_a_model_removes_none_of_its_modules():
    net, x = Reads().to(DEVICE), ones(2, 4)
    optimizer = sgd(net)

    def fit(*, reads):
        optimizer.zero_grad()
        net(x, reads=reads).square().mean().backward()
        optimizer.step()
        lazyrt.mark_step()

    lazyrt.mark_step()
    fit(reads=False)
    fit(reads=True)

    first, rest = explained()[1:]
    assert kinds(first) == ["graph_break"], first
    assert rest.top.kind == "graph_break", rest
    assert "after read by .item() at test_breaks.py:" in rest.text


def test_an_op_that_runs_on_the_cpu_is_the_cause_of_both_halves():
    x = ones(4, 4)
    lazyrt.mark_step()

    def step(*, odd):
        y = (x @ x).tanh() * 2
        count = torch.nonzero(y).sum() if odd else 1
        out = (y.exp() * count).sum()
        lazyrt.mark_step()
        return out

    step(odd=False)
    step(odd=True)

    for each in explained()[1:]:
        assert kinds(each)[0] == "fallback", each
        assert "CPU fallback of aten.nonzero.default at test_breaks.py:" in each.text
        assert "the size of its result depends on values" in each.top.fix


def test_a_mark_that_moved_is_named_with_both_lines():
    x, a, b, c, d = ones(4, 4), ones(4, 5), ones(5, 6), ones(6, 7), ones(7, 8)
    lazyrt.mark_step()

    def step(*, late):
        h = (x @ a).tanh()
        if not late:
            lazyrt.mark_step()
        g = (h @ b).exp()
        if late:
            lazyrt.mark_step()
        y = ((g @ c).relu() @ d).sigmoid().cumsum(0).log()
        lazyrt.mark_step()
        return y

    step(late=True)
    known = len(explained())
    step(late=False)

    line = step.__code__.co_firstlineno
    first, second = explained()[known:]
    assert first.text == (
        f"graph break: the graph ends earlier, at mark_step() at test_breaks.py:{line + 3}, "
        f"not mark_step() at test_breaks.py:{line + 6}"
    )
    assert second.text == (
        f"graph break: the graph begins earlier, after mark_step() at test_breaks.py:{line + 3}, "
        f"not after mark_step() at test_breaks.py:{line + 6}"
    )
    assert kinds(first) == kinds(second) == ["graph_break"]
    assert "end the step at the same place every time" in first.top.fix


def test_a_step_that_an_error_leaves_is_a_break_with_the_errors_name():
    model, x = nn.Linear(4, 4).to(DEVICE), ones(2, 4)
    optimizer = sgd(model)

    def run(*, fails):
        with lazyrt.step():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if fails:
                raise KeyError("batch 7")
            optimizer.step()

    run(fails=False)
    with pytest.raises(KeyError):
        run(fails=True)

    (cause,) = explained()[-1].causes
    assert cause.kind == "graph_break"
    assert "end of step, left by KeyError at" in cause.text
    assert "on_error" in cause.fix


def test_a_limit_of_pending_ops_is_named_with_the_loop_that_filled_the_graph():
    x = ones(3, 3)
    lazyrt.mark_step()
    with lazyrt.config.scoped(max_pending_nodes=110):
        for _ in range(130):
            x = (x * 1.5).t()

    (cause,) = explained()[-1].causes
    assert cause.kind == "graph_break"
    assert "graph break: more than 110 pending ops at test_breaks.py:" in cause.text
    assert " recorded 2 ops 1" in cause.text
    assert "lazyrt.mark_step()" in cause.fix


@pytest.mark.parametrize("reads", [False, True])
def test_an_evaluation_is_another_step_of_the_program(reads):
    model, x = layers(nn.Dropout(0.1)), ones(2, 4)
    optimizer = sgd(model)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        lazyrt.mark_step()
    model.eval()
    with torch.no_grad():
        share = (model(x).argmax(1) == 0).float().mean()
    if reads:
        float(share)
    lazyrt.mark_step()

    found = explained()[-1]
    assert kinds(found)[0] == "other_step", found
    assert {*kinds(found)} <= {"other_step", "train_eval"}
    assert (
        "another step of the program, without gradients, which ends at " in found.text
    )
    assert "nothing to do" in found.top.fix


def test_two_models_trained_in_turn_are_two_steps():
    maker, judge = nn.Linear(3, 4).to(DEVICE), nn.Linear(4, 1).to(DEVICE)
    makers, judges = sgd(maker), sgd(judge)
    real, noise = ones(5, 4), ones(5, 3)
    lazyrt.mark_step()
    judges.zero_grad()
    (judge(maker(noise).detach()) - judge(real)).mean().backward()
    judges.step()
    lazyrt.mark_step()
    makers.zero_grad()
    judge(maker(noise)).sigmoid().log().mean().neg().backward()
    makers.step()
    lazyrt.mark_step()

    assert kinds(explained()[-1]) == ["other_step"], explained()[-1]


def test_a_second_model_trained_at_the_line_of_the_first_is_another_step():
    def train(model, optimizer, x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        lazyrt.mark_step()

    first, second = layers(nn.ReLU()), nn.Sequential(nn.Linear(6, 5)).to(DEVICE)
    train(first, sgd(first), ones(2, 4))
    train(second, sgd(second), ones(3, 6))

    assert kinds(explained()[-1]) == ["other_step"], explained()[-1]


def test_programs_without_a_line_or_a_name_in_common_are_no_break():
    total = float(torch.randn(4, 4, device=DEVICE).sum())
    rows = torch.randn(100, 8, device=DEVICE)
    for start in range(0, 30, 10):
        part = rows[start : start + 10].sum()
        lazyrt.mark_step()

    assert "graph_break" not in {kind for each in explained() for kind in kinds(each)}
    assert isinstance(total, float)
    del part


def test_a_step_whose_boundary_is_missing_holds_the_other_one_twice():
    model, x = nn.Linear(4, 4).to(DEVICE), ones(2, 4)
    optimizer = sgd(model)
    lazyrt.mark_step()

    def train():
        optimizer.zero_grad()
        (model(x) + torch.randn(2, 4, device=DEVICE)).square().mean().backward()
        optimizer.step()

    with lazyrt.config.scoped(barrier_after_optimizer=False):
        train()
        lazyrt.mark_step()
        train()
        train()
        lazyrt.mark_step()

    found = explained()[-1]
    assert found.top.kind == "missing_boundary", found
    assert "2 times over: no step boundary came between them" in found.text
    assert "with lazyrt.step():" in found.top.fix


def test_a_validation_that_forgot_no_grad_is_another_step_and_no_graph_break():
    net, x, held_out = layers(), ones(2, 4), ones(2, 4)
    optimizer = sgd(net)
    lazyrt.mark_step()

    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
    net(held_out).square().mean().item()

    assert kinds(explained()[-1]) == ["other_step"]


def test_a_read_that_is_indented_into_a_loop_ends_the_graph_in_each_round(tmp_path):
    source = (
        "def total(net, batches):\n    found = 0.0\n    for x in batches:\n"
        "        found = found + net(x).sum()\n{}value = found.item()\n    return value\n"
    )
    path, net, batches = (
        tmp_path / "totals.py",
        layers(),
        [ones(2, 4) * k for k in (1, 2, 3)],
    )
    lazyrt.mark_step()
    for indent in (4, 8):
        path.write_text(source.format(" " * indent))
        linecache.checkcache()
        space: dict[str, Any] = {}
        exec(compile(path.read_text(), str(path), "exec"), space)  # noqa: S102
        with torch.no_grad():
            space["total"](net, batches)

    found = next(e for e in explained() if e.top.kind == "graph_break")
    assert found.top.text == (
        "graph break: read by .item() at totals.py:5 stands in the loop of line 3 and ends the "
        f"graph in each round: it ran once here, 3 in {found.against}"
    )


def test_a_loop_that_holds_the_updates_and_no_boundary_ran_more_often():
    x, w = ones(4, 4), ones(4, 4)
    lazyrt.mark_step()
    for rounds in (1, 1, 2):
        for _ in range(rounds):
            w = (x @ w).tanh() - 0.1 * w
        lazyrt.mark_step()

    assert explained()[-1].top.kind == "loop_count"


def test_a_check_that_takes_more_ops_than_the_work_before_it_is_a_graph_break():
    net, x = layers(), ones(2, 4)
    optimizer = sgd(net)
    for checks in (False, True):
        y = net(x)
        if checks:
            assert torch.isfinite(y).all()
        optimizer.zero_grad()
        y.square().mean().backward()
        optimizer.step()

    assert [each.top.kind for each in explained()[-2:]] == ["graph_break"] * 2


def test_reads_of_one_line_after_another_are_breaks_and_no_modules_less():
    net, x = layers(), ones(2, 4)
    optimizer = sgd(net)
    for reads in (False, True):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        if reads:
            most = max(p.grad.abs().max().item() for p in net.parameters())
        optimizer.step()

    assert most > 0
    tops = [each.top.kind for each in explained()[2:]]
    assert tops[:2] == ["graph_break"] * 2
    assert "module_call" not in tops


def test_an_evaluation_that_reads_its_result_is_another_step():
    net, x = layers(), ones(2, 4)
    optimizer = sgd(net)
    net(x).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        net(ones(3, 4)).abs().mean().item()

    assert kinds(explained()[-1]) == ["other_step"]


def test_a_check_of_gradients_before_an_update_leaves_no_parameter_without_it():
    """The update reads the gradients, or shows them in another form, and so follows the break."""
    net, x = layers(), ones(2, 4)
    optimizer = sgd(net)
    for checks in (False, True):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        if checks:
            norms = torch.stack([p.grad.norm() for p in net.parameters()])
            assert bool(norms.norm() < 100)
        optimizer.step()

    assert "update" not in kinds(explained()[-2])
    assert explained()[-2].top.kind == "graph_break"


def test_gradients_that_a_graph_begins_with_after_a_read_are_no_state():
    """A bias has its gradient in another form, which the update reads."""
    net, x = layers(), ones(2, 4)
    optimizer = sgd(net)
    for reads in (False, True):
        optimizer.zero_grad()
        for micro in (x, x + 1):
            loss = net(micro).square().mean()
            loss.backward()
            if reads:
                assert loss.item() >= 0
        optimizer.step()

    assert kinds(explained()[-1]) == ["graph_break"]
