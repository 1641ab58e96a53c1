"""Inputs: of another size or dtype, or one tensor where there were two."""

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


def run(x):
    with lazyrt.step():
        return (x * 2).exp().sum()


def test_another_shape_of_an_input_names_it_both_shapes_and_what_depends_on_it():
    for rows in (4, 5):
        x = ones(rows, 8)
        run(x)

    cause = the_cause("input_shape")
    assert cause.text == "input `x` is f32[5,8], was f32[4,8]; 2 ops depend on it"
    assert cause.variable == "x"
    assert cause.now == cause.before
    assert cause.now.function == "run"
    assert "pad it" in cause.fix
    assert cause.sizes == ((4, 5),)


def test_another_dtype_of_an_input_names_it_and_both_dtypes():
    for dtype in (torch.float32, torch.float64):
        run(ones(4, dtype=dtype))

    cause = the_cause("input_dtype")
    assert cause.text.startswith("input `x` is f64[4], was f32[4]; ")
    assert cause.fix == "convert the data once, when it is loaded"


def test_an_input_without_a_name_has_the_line_that_reads_it():
    def pair(rows):
        with lazyrt.step():
            return torch.ones(rows).to(DEVICE) * 3

    pair(2)
    pair(3)

    assert the_cause("input_shape").text.startswith(
        "input of `return torch.ones(rows).to(DEVICE) * 3` at test_inputs.py:"
    )


@pytest.mark.parametrize("masked", [(False, True), (True, False)])
def test_an_input_that_some_steps_lack_is_named_with_its_line(masked):
    x, mask = ones(4, 8), ones(4, 8)
    for is_masked in masked:
        with lazyrt.step():
            h = (x * 2).exp().tanh()
            if is_masked:
                h = h.masked_fill(mask.bool(), 0.0)
            loss = h.sum()

    assert loss.dim() == 0
    cause = the_cause("new_input")
    assert cause.variable == "mask"
    words = ("read", "not read") if masked[1] else ("not read", "read")
    line = "`h = h.masked_fill(mask.bool(), 0.0)` at test_inputs.py:"
    assert cause.text.startswith(f"input `mask` f32[4,8] is {words[0]} by {line}")
    assert cause.text.endswith(f", was {words[1]} in graph.1")


def test_an_incomplete_last_batch_is_one_cause_with_forward_backward_and_update():
    model = nn.Linear(3, 2).to(DEVICE)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in (4, 3):
        batch = ones(rows, 3)
        with lazyrt.step():
            sgd.zero_grad()
            model(batch).square().mean().backward()
            sgd.step()

    assert the_cause("input_shape").variable == "batch"


def test_parameters_of_another_size_name_the_module_that_was_rebuilt():
    x = ones(2, 8)
    for width in (4, 6):
        model = nn.Sequential(nn.Linear(8, width), nn.Tanh()).to(DEVICE)
        lazyrt.mark_step()
        with lazyrt.step():
            out = model(x).sum()
    assert out.numel() == 1

    cause = the_cause("parameter_shape")
    assert cause.text.startswith(
        "parameter `model.0.bias` is f32[6], was f32[4] (and 1 more); "
    )
    assert "build it once" in cause.fix


def test_parameters_of_another_dtype_tell_to_convert_the_model_once():
    model = nn.Linear(8, 2).to(DEVICE)
    for dtype in (torch.float32, torch.float64):
        model = model.to(dtype)
        x = ones(2, 8, dtype=dtype)
        with lazyrt.step():
            out = model(x).sum()
    assert out.numel() == 1

    assert [cause.kind for cause in latest().causes] == ["input_dtype"] * 2
    assert latest().top.text.startswith("parameter `model.bias` is f64[2], was f32[2]")
    assert "`model.to(dtype)`" in latest().top.fix
    assert latest().causes[1].variable == "x"


def add(a, b):
    with lazyrt.step():
        return (a * 2 + b).exp()


@pytest.mark.parametrize("is_one_first", [False, True])
def test_two_inputs_that_become_one_tensor_or_two_are_both_named(is_one_first):
    first, second = ones(4), ones(4) * 3
    lazyrt.mark_step()
    for is_one in (is_one_first, not is_one_first):
        add(first, first if is_one else second)

    cause = the_cause("same_input")
    assert "`a` and `b` " in cause.text or "`b` and `a` " in cause.text
    told = "two tensors now and were one" if is_one_first else "one tensor now and were two"  # fmt: skip
    assert f" are {told} (test_inputs.py:" in cause.text
    assert cause.now.function == "add"
    assert "`y.clone()`" in cause.fix


def test_inputs_of_equal_values_are_no_difference():
    x, y, z = ones(4), ones(4), ones(4) * 2
    lazyrt.mark_step()
    add(x, z)

    assert compiles_of(add, x, y) == 0


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)

    def forward(self, ids):
        return self.head(self.embed(ids))


@pytest.mark.parametrize("trains", [False, True])
def test_weights_tied_later_are_one_tensor_and_no_module_is_gone(trains):
    model, ids = Tied().to(DEVICE), torch.arange(6).to(DEVICE)
    lazyrt.mark_step()
    for ties in (False, True):
        if ties:
            model.head.weight = model.embed.weight
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2 if trains else 1):
            with lazyrt.step():
                sgd.zero_grad()
                loss = model(ids).logsumexp(-1).mean()
                if trains:
                    loss.backward()
                    sgd.step()
    assert loss.numel() == 1

    cause = the_cause("same_input")
    assert cause.text.startswith(
        "`model.head.weight` and `model.embed.weight` are one tensor now and were two"
    )


def test_another_memory_format_of_a_batch_is_one_cause_with_the_ops_that_follow():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)).to(DEVICE)
    lazyrt.mark_step()
    for form in (torch.contiguous_format, torch.channels_last):
        images = torch.ones(2, 3, 6, 6).to(memory_format=form).to(DEVICE)
        with lazyrt.step():
            net(images).square().mean().backward()
        net.zero_grad()

    assert the_cause("memory_format").text == (
        "memory format changed: input `images` is channels_last, was contiguous"
    )


def test_a_list_of_batches_is_named_with_how_many_items_are_read():
    replay: list[torch.Tensor] = []
    for _ in range(3):
        replay.append(torch.ones(4).to(DEVICE))
        with lazyrt.step():
            total = torch.stack(replay).tanh().sum()

    assert total.dim() == 0
    text = the_cause("carried_over").text
    assert text.startswith("3 items of the list `replay` are inputs of this step at ")
    assert text.endswith("; the number grows from graph to graph: 1, 2, 3")


def test_a_line_that_does_more_than_read_an_input_is_a_path():
    x, y = ones(4, 3), ones(4, 3)
    for is_hard in (True, False):
        with lazyrt.step():
            loss = (x.exp().tanh().square() + x.sqrt()).mean()
            if is_hard:
                loss = 0.5 * loss + x.sin().sum() + (x - y).square().mean()

    assert loss.dim() == 0
    assert "`loss = 0.5 * loss + " in the_cause("code_path").text
