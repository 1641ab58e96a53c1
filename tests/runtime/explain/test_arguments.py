"""What ops are given: sizes, dtypes, numbers in the graph and numbers that are inputs."""

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.execution.cache_miss import argument_name, takes_tensor
from lazyrt.observe.events import SourceLocation
from tests.harness import DEVICE
from tests.runtime.causes import explained, kinds, ones
from tests.runtime.explain.shared import the_cause

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold"),
]


@pytest.mark.parametrize(
    ("run", "name", "fix"),
    [
        (lambda x, k: x.triu(k), "k", "takes no tensor"),
        (lambda x, k: x.roll(k, 0), "k", "takes no tensor"),
        (lambda x, k: nn.functional.layer_norm(x, (4,), eps=k), "k", "takes no tensor"),
        (lambda x, k: nn.functional.leaky_relu(x, k / 8), "k / 8", "takes no tensor"),
        (lambda x, k: x.topk(k).values, "k", "keep the size fixed"),
    ],
)
def test_a_number_in_the_graph_has_the_name_that_the_source_has(run, name, fix):
    x = ones(4, 4)
    lazyrt.mark_step()
    for k in (1, 2):
        with lazyrt.step():
            out = run(x, k)

    (cause,) = explained()[-1].causes
    assert cause.variable == name, (str(cause), out)
    assert name in cause.text
    assert fix in cause.fix


def test_a_number_in_the_graph_is_shown_with_both_values_and_its_gradient_follows():
    def run(slope):
        x = ones(4).requires_grad_()
        with lazyrt.step():
            nn.functional.leaky_relu(x, slope).sum().backward()

    run(0.25)
    run(0.75)

    cause = the_cause("baked_constant")
    assert cause.text.startswith(
        "constant changed: `slope` of aten.leaky_relu.default at "
    )
    assert cause.text.endswith(" is 0.75, was 0.25; 1 op depends on it")


def test_a_number_is_not_lost_among_the_sizes_of_another_batch():
    table = ones(20, 4)
    lazyrt.mark_step()

    def run(rows, slope):
        ids = torch.zeros(rows, 8, dtype=torch.int64).to(DEVICE)
        lazyrt.mark_step()
        with lazyrt.step():
            return nn.functional.leaky_relu(table[ids], slope).mean((1, 2))

    run(4, 0.1)
    run(3, 0.2)

    assert kinds(explained()[-1]) == ["input_shape", "baked_constant"]


def test_a_size_that_the_program_computes_is_named_with_its_line():
    x = ones(4, 4)
    lazyrt.mark_step()

    def run(size):
        with lazyrt.step():
            return (x @ torch.zeros(4, size, device=DEVICE)).sum()

    run(5)
    run(6)

    (cause,) = explained()[-1].causes
    assert cause.kind == "shape"
    assert cause.text.startswith("shape changed: ")
    assert " at test_arguments.py:" in cause.text
    assert " is f32[4,6], was f32[4,5]" in cause.text
    assert "keep the size fixed" in cause.fix


def test_a_slice_of_another_length_is_a_shape_and_one_elsewhere_an_input():
    x = ones(9, 4)
    lazyrt.mark_step()

    def run(start, stop):
        with lazyrt.step():
            return (x[start:stop] * 2).sum()

    run(0, 3)
    run(0, 5)
    longer = explained()[-1]
    run(2, 5)
    run(4, 7)
    moved = explained()[-1]
    known = len(lazyrt.compiled_graphs())
    run(5, 8)

    assert longer.top.kind == "shape", longer
    assert "aten.slice.Tensor" in longer.text
    assert "f32[5,4], was f32[3,4]" in longer.text
    assert moved.top.kind == "lifted_number", moved
    assert "nothing to do: further" in moved.top.fix
    assert len(lazyrt.compiled_graphs()) == known


def test_conversions_under_autocast_are_the_only_cause():
    net, x = nn.Linear(4, 4).to(DEVICE), ones(2, 4)
    lazyrt.mark_step()

    def run():
        with lazyrt.step():
            return net(x).square().sum()

    run()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        run()

    cause = the_cause("dtype")
    assert "more to bf16" in cause.text
    assert "as under autocast" in cause.text


def test_a_number_that_varies_becomes_an_input_and_says_that_nothing_is_to_do():
    x = ones(4, 4)
    lazyrt.mark_step()

    def run(scale):
        with lazyrt.step():
            return (x * scale).sum()

    run(0.5)
    run(0.25)
    (cause,) = explained()[-1].causes
    known = len(lazyrt.compiled_graphs())
    for scale in (0.125, 1.0, 0.0):
        run(scale)

    assert cause.kind == "lifted_number"
    assert cause.text.startswith("a Python number in `x * scale` at test_arguments.py:")
    assert cause.text.endswith("varies and is an input from now on")
    assert cause.variable == "scale"
    assert "nothing to do" in cause.fix
    assert len(lazyrt.compiled_graphs()) == known


def test_a_float_that_was_an_integer_says_so():
    x = ones(4)
    lazyrt.mark_step()
    for power in (2, 3, 2.5):
        with lazyrt.step():
            out = x**power

    (cause,) = explained()[-1].causes
    assert cause.kind == "lifted_number", out
    assert cause.text.endswith(" is float, was int")
    assert cause.variable == "power"


def test_a_decay_that_comes_to_one_is_no_constant_of_the_graph():
    """AdamW multiplies by `1 - lr * weight_decay`, which may be exactly 1."""
    weight = nn.Parameter(ones(4))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    known = 0
    for number, rate in enumerate((0.1, 0.2, 0.3, 1e-20, 0.0, 1.0)):
        optimizer.param_groups[0]["lr"] = rate
        with lazyrt.step():
            optimizer.zero_grad()
            (weight * 2).sum().backward()
            optimizer.step()
        known = known if number > 2 else len(lazyrt.compiled_graphs())

    assert len(lazyrt.compiled_graphs()) == known


def test_a_length_that_grows_with_each_graph_is_told_as_a_series():
    tokens = ones(1, 4)
    for _ in range(4):
        lazyrt.mark_step()
        tokens = torch.cat([tokens, tokens[:, -1:] * 2], 1)
    lazyrt.mark_step()

    third, fourth = (each.top for each in explained()[-2:])
    assert third.kind == fourth.kind == "input_shape"
    assert third.text.endswith("it grows from graph to graph: 4, 5, 6")
    assert fourth.text.startswith("input `tokens` is f32[1,7], was f32[1,6]")
    assert fourth.text.endswith("it grows from graph to graph: 4, 5, 6, 7")
    assert "fixed length" in fourth.fix


def test_batches_of_two_lengths_are_no_series():
    for size in (4, 6, 5):
        batch = ones(2, size)
        lazyrt.mark_step()
        total = (batch * 2).sum()
        lazyrt.mark_step()
        del batch, total

    assert not any("graph to graph" in str(each) for each in explained())


def test_no_name_is_better_than_a_wrong_one(tmp_path):
    path = tmp_path / "lines.py"
    path.write_text(
        "y = x.roll(a, 0) + x.roll(b, 0)\nz = x.roll(2, 0)\nx.roll(*many)\n"
    )

    def named(line):
        return argument_name(
            SourceLocation(str(path), line, "f"), "aten.roll.default", 1
        )

    assert [named(line) for line in (1, 2, 3, 9)] == [""] * 4
    assert argument_name(None, "aten.roll.default", 1) == ""
    assert takes_tensor("aten.clamp.default", 1)
    assert not takes_tensor("aten.roll.default", 1)
    assert not takes_tensor("no.such.op", 0)


def test_an_integer_in_the_place_of_a_number_that_varies_is_named_with_its_argument():
    net, x = nn.Linear(4, 2).to(DEVICE), ones(2, 4)
    sgd = torch.optim.SGD(net.parameters(), lr=0.5)
    for rate in (0.5, 1):
        sgd.param_groups[0]["lr"] = rate
        with lazyrt.step():
            sgd.zero_grad()
            net(x).square().mean().backward()
            sgd.step()

    cause = the_cause("lifted_number")
    assert cause.text.startswith(
        "a Python number, `alpha` of aten._foreach_add.List at "
    )
    assert cause.text.endswith(", is -1, was an input")
    assert "`2.0`, not `2`" in cause.fix


def test_a_number_of_backward_is_no_cause_beside_what_the_forward_pass_does():
    layer, x = nn.Linear(3, 3).to(DEVICE), ones(2, 3)
    scale = 1.0
    for number in range(2):
        scale += number
        with lazyrt.step():
            layer.zero_grad()
            (layer(x).square().mean() * scale).backward()

    assert the_cause("lifted_number").text.startswith("a Python number in `")


def test_a_slice_of_another_length_is_a_shape_though_its_start_varied():
    x = ones(30, 3)
    for start, rows in ((0, 4), (4, 4), (9, 6)):
        with lazyrt.step():
            y = x[start : start + rows].exp()

    assert y.shape == (6, 3)
    text = the_cause("shape").text
    assert "is f32[6,3], was f32[4,3]" in text
    assert "·" not in text


def test_a_number_of_backward_becomes_an_input_beside_others_of_its_line():
    embed = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(DEVICE)
    optimizer = torch.optim.Adam(embed.parameters())
    for swap in (False, False, False, True, True):
        a, b, c = (embed(torch.randn(5, 3).to(DEVICE)) for _ in range(3))
        loss = nn.functional.triplet_margin_loss(a, b, c, swap=swap)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    assert explained()[-1].top.kind == "lifted_number", explained()[-1]


def test_a_cache_that_a_step_computed_is_no_batch_to_pad():
    cache, token = ones(1, 4), ones(1, 1)
    lazyrt.mark_step()
    for _ in range(3):
        cache = torch.cat([cache * 2, token], 1)
        lazyrt.mark_step()

    cause = explained()[1].top
    assert cause.text.startswith("input `cache` is f32[1,5], was f32[1,4]")
    assert "a cache of fixed length" in cause.fix
    assert "batch" not in cause.fix


def test_sizes_that_are_given_one_by_one_have_no_variables_name():
    token = ones(1, 1, 2)
    lazyrt.mark_step()
    for rows, columns in ((2, 3), (2, 4)):
        with lazyrt.step():
            grid = token.expand(rows, columns, -1) * 2

    assert grid.dim() == 3
    text = explained()[-1].top.text
    assert "`token.expand(rows, columns, -1)` at test_arguments.py:" in text
    assert "(`size` is [2, 4, -1], was [2, 3, -1])" in text
