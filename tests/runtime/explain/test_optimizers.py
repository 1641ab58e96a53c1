"""What an optimizer updates, keeps and computes, and what LBFGS does by values."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import lazyrt
from tests.harness import DEVICE
from tests.runtime.explain.shared import compiles_of, latest, ones, the_cause

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold"),
]


class Loop:
    """Training by SGD, with what a user may change of it."""

    def __init__(self):
        self.net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to(DEVICE)
        self.sgd: torch.optim.Optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.x = ones(2, 4)

    def fit(self, **options):
        self.sgd.param_groups[0].update(options)
        with lazyrt.step():
            self.sgd.zero_grad()
            self.net(self.x).square().mean().backward()
            self.sgd.step()


@pytest.mark.parametrize(
    ("option", "value", "was"), [("weight_decay", 0.1, 0), ("momentum", 0.9, 0)]
)
def test_an_option_of_an_optimizer_that_changes_its_ops_is_named_with_both_values(
    option, value, was
):
    loop = Loop()
    loop.fit()
    loop.fit(**{option: value})

    cause = the_cause("update")
    line = loop.fit.__code__.co_firstlineno + 5
    assert cause.text == (
        f"optimizer changed at test_optimizers.py:{line}: `{option}` of SGD is {value}, was {was}"
    )
    assert "set their options before the loop" in cause.fix


def test_an_optimizer_of_another_class_is_named():
    loop = Loop()
    loop.fit()
    loop.sgd = torch.optim.Adam(loop.net.parameters())
    loop.fit()

    assert the_cause("update").text.endswith(": `Adam` in the place of `SGD`")


class Drift(torch.optim.Optimizer):
    """Computes something else from its second step on, and no option says so."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is None
        self.steps += 1
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad.tanh() if self.steps > 1 else parameter.grad)


def test_an_optimizer_that_changes_by_itself_names_its_ops():
    loop = Loop()
    loop.sgd = Drift(loop.net.parameters())
    loop.fit()
    loop.fit()

    assert "`aten.tanh.default` at test_optimizers.py:" in the_cause("code_path").text


def test_rates_compile_nothing_and_may_pass_through_one_and_zero():
    loop = Loop()
    loop.fit(lr=0.1)
    loop.fit(lr=0.2)

    assert sum(compiles_of(loop.fit, lr=rate) for rate in (0.5, 1.0, 0.0, 1.0)) == 0


@pytest.mark.parametrize("freezes", [True, False])
def test_frozen_and_thawed_parameters_are_named_with_the_line_of_the_update(freezes):
    loop = Loop()
    for wants in (freezes, not freezes):
        loop.net[0].requires_grad_(requires_grad=wants)
        loop.fit()

    cause = the_cause("update")
    word = "not updated" if freezes else "updated"
    assert cause.text.startswith(
        f"parameters `self.net.0.weight`, `self.net.0.bias` are {word}"
    )
    assert " at test_optimizers.py:" in cause.text
    assert "in graph." in cause.text


def test_a_part_frozen_while_another_is_thawed_is_two_causes_that_explain_all():
    """Both updates read as many gradients of one op: they are two by their names."""
    loop = Loop()
    for first in (False, True):
        loop.net[0].requires_grad_(requires_grad=first)
        loop.net[1].requires_grad_(requires_grad=not first)
        loop.fit()

    found = latest()
    assert {cause.kind for cause in found.causes} == {"update"}, str(found)
    texts = sorted(cause.text.partition(" at ")[0] for cause in found.causes)
    assert texts == [
        "parameters `self.net.0.weight`, `self.net.0.bias` are updated",
        "parameters `self.net.1.weight`, `self.net.1.bias` are not updated",
    ]
    assert found.unexplained == 0, str(found)


def test_an_average_of_weights_that_begins_later_is_an_update_and_no_call():
    loop = Loop()
    average = copy.deepcopy(loop.net).requires_grad_(requires_grad=False)
    lazyrt.mark_step()
    for number in range(2):
        with lazyrt.step():
            loop.sgd.zero_grad()
            loop.net(loop.x).square().mean().backward()
            loop.sgd.step()
            if number:
                pairs = zip(average.parameters(), loop.net.parameters(), strict=True)
                for mean, weight in pairs:
                    mean.mul_(0.9).add_(weight.detach(), alpha=0.1)

    cause = the_cause("update")
    assert cause.text.startswith("parameters `average.")
    assert " are updated at test_optimizers.py:" in cause.text


def test_a_metric_that_counts_from_now_on_is_written_to():
    x, correct = ones(3, 4), torch.zeros((), device=DEVICE)
    lazyrt.mark_step()
    for counts in (False, True):
        with lazyrt.step():
            out = (x.exp() * 2).tanh().cumsum(0)
            if counts:
                correct += (out.argmax(-1) == 0).sum()

    cause = the_cause("update")
    assert cause.text.startswith("`correct` f32[] is written to at test_optimizers.py:")
    assert cause.variable == "correct"


def fit_by_lbfgs(*, mark, **options):
    """Train by LBFGS; `mark` says where steps end: `closure`, `step` or `block`."""
    net = nn.Linear(3, 2).to(DEVICE)
    numbers = torch.Generator().manual_seed(3)
    x, y = (torch.randn(8, n, generator=numbers).to(DEVICE) for n in (3, 2))
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=3, **options)
    lazyrt.mark_step()

    def closure():
        optimizer.zero_grad()
        loss = functional.mse_loss(net(x), y)
        loss.backward()
        if mark == "closure":
            lazyrt.mark_step()
        return loss

    for _ in range(2):
        if mark == "block":
            with lazyrt.step(on_read="allow"):
                optimizer.step(closure)
        else:
            optimizer.step(closure)
            lazyrt.mark_step()
    found = [record.explanation for record in lazyrt.compiled_graphs()]
    return [each for each in found if each is not None]


@pytest.mark.parametrize(
    ("mark", "search"),
    [
        pytest.param("closure", None, marks=pytest.mark.slow),
        pytest.param("step", None, marks=pytest.mark.slow),
        ("block", "strong_wolfe"),
    ],
)
def test_each_graph_of_lbfgs_has_one_cause_and_says_what_is_other(mark, search):
    found = fit_by_lbfgs(mark=mark, line_search_fn=search)

    assert {len(each.causes) for each in found} == {1}
    assert {each.unexplained for each in found} == {0}
    told = [each.text for each in found if each.text.startswith("LBFGS at ")]
    assert any(" computes with 1 earlier direction, none in graph." in t for t in told)
    assert not any(" 0 earlier" in t for t in told)
    assert "`history_size`" in next(
        each.top.fix for each in found if "earlier direction" in each.text
    )


def test_a_loss_of_another_head_explains_the_update_of_its_parameters():
    trunk, head = nn.Linear(4, 4).to(DEVICE), nn.Linear(4, 1).to(DEVICE)
    optimizer = torch.optim.SGD([*trunk.parameters(), *head.parameters()], lr=0.1)
    x, depth = ones(2, 4), ones(2, 1)
    for has_depth in (False, True):
        with lazyrt.step():
            optimizer.zero_grad()
            h = trunk(x)
            found, loss = head(h), h.square().mean()
            if has_depth:
                loss = loss + (found - depth).abs().mean()
            loss.backward()
            optimizer.step()

    line = "`loss = loss + (found - depth).abs().mean()` at "
    assert the_cause("new_input").text.startswith(
        f"input `depth` f32[2,1] is read by {line}"
    )


def test_parameters_of_a_group_of_their_own_are_named_by_their_module():
    loop = Loop()
    loop.fit()
    weights = [p for p in loop.net.parameters() if p.ndim > 1]
    biases = [p for p in loop.net.parameters() if p.ndim == 1]
    groups = [{"params": weights}, {"params": biases}]
    loop.sgd = torch.optim.SGD(groups, lr=0.1)
    loop.fit()

    assert the_cause("update").text.endswith(
        ": SGD updates 2 groups of parameters, 1 before: one is of `self.net.0.bias`, "
        "`self.net.1.bias`"
    )


def test_a_tied_parameter_that_becomes_two_is_no_module_more():
    first, second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    model = nn.Sequential(first, second).to(DEVICE)
    second.weight = first.weight
    x = ones(2, 3)
    lazyrt.mark_step()
    for ties in (True, False):
        with lazyrt.step():
            if not ties:
                second.weight = nn.Parameter(first.weight.detach().clone())
            out = model(x)
    assert out.shape == (2, 3)

    assert "`second.weight = nn.Parameter(" in the_cause("code_path").text


def test_an_option_that_was_left_to_the_optimizer_is_named():
    loop = Loop()
    loop.fit()
    loop.sgd.param_groups[0]["foreach"] = False
    loop.fit()

    assert "`foreach` of SGD is False, was None" in the_cause("update").text


def test_of_two_optimizers_of_a_class_the_one_that_rests_is_named_by_its_parameters():
    first, last = (nn.Linear(3, 3).to(DEVICE) for _ in range(2))
    both = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (first, last)]
    x = ones(2, 3)
    for rests in (False, True):
        with lazyrt.step():
            last(first(x)).square().mean().backward()
            for optimizer in both[rests:]:
                optimizer.step()
            first.zero_grad()
            last.zero_grad()

    text = the_cause("update").text
    assert text.startswith("parameters `first.")
    assert "are not updated" in text
    assert "gradient" not in text


class Probe(nn.Module):
    """A head on an encoder, which may be left without a gradient."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
        self.head = nn.Linear(3, 2)
        self.detaches = False

    def forward(self, x):
        features = self.encoder(x)
        if self.detaches:
            features = features.detach()
        return self.head(features)


def fit(model, x, optimizer):
    with lazyrt.step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def test_parameters_in_front_of_a_detach_are_named_with_the_lines_between_which_it_is():
    model, x = Probe().to(DEVICE), ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for model.detaches in (False, True):
        fit(model, x, optimizer)

    text = the_cause("update").text
    assert (
        "no gradient reaches them, it ends between `features = self.encoder(x)`" in text
    )
    assert " and `return self.head(features)` (" in text
    assert "requires_grad" not in text


def test_frozen_parameters_are_named_with_their_flag_before_and_now():
    model, x = Probe().to(DEVICE), ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for needs in (True, False):
        model.encoder.requires_grad_(needs)
        fit(model, x, optimizer)

    text = the_cause("update").text
    assert text.endswith(": `requires_grad` is False, was True")
