"""Causes planted in programs of other shapes than the table's, judged by the sentence.

Loops over layers, modules in classes, two models, callbacks, errors: what a user sees first is the
cause, with the name that the program has for it.
"""

import contextlib
import copy
import importlib
import sys

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.execution.cache_miss import argument_name, takes_tensor
from lazyrt.observe.events import Site
from tests.harness import DEVICE
from tests.runtime.causes import explained, kinds, ones

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold_and_fast"),
]


def layers_with_a_mark_after(layers, x, place):
    y = x
    for number, layer in enumerate(layers):
        y = layer(y)
        if number == place:
            lazyrt.mark_step()
    lazyrt.mark_step()
    return y


def test_a_mark_that_moved_in_a_loop_is_no_module_that_came_or_went():
    layers = [nn.Linear(4, 4).to(DEVICE) for _ in range(4)]
    x = ones(2, 4)
    lazyrt.mark_step()
    layers_with_a_mark_after(layers, x, 1)
    known = len(explained())

    layers_with_a_mark_after(layers, x, 0)

    first, second = explained()[known:]
    assert kinds(first) == ["step_cut"]
    assert first.text.startswith("the step ended earlier: mark_step() at ")
    assert first.text.endswith("2 operations that ran before it run after it now")
    assert first.unexplained == 0
    assert kinds(second) == ["step_cut"]
    assert second.text.startswith(
        "the boundary in front of this graph came earlier, mark_step() at "
    )
    assert second.text.endswith("2 operations that ran before it run after it now")
    assert second.unexplained == 0


@pytest.mark.parametrize("stops", ["221", "331", "114", "23", "31", "22132", "33313"])
def test_a_mark_that_moves_among_layers_of_several_sizes_is_the_only_cause(stops):
    """The notebook's example: two graphs alive at once, their values in two lists."""
    sizes = ((10, 30), (30, 20), (20, 10), (10, 1))
    layers = [nn.Linear(*size).to(DEVICE) for size in sizes]
    x = ones(2, 10)
    lazyrt.mark_step()
    for stop in map(int, stops):
        _kept = outputs_with_a_mark_after(layers, x, stop)
        lazyrt.mark_step()

    for explanation in explained()[2:]:
        assert kinds(explanation) == ["step_cut"], explanation
        assert explanation.unexplained == 0


def outputs_with_a_mark_after(layers, x, stop):
    outputs = []
    with torch.no_grad():
        for number, layer in enumerate(layers, 1):
            x = layer(x)
            outputs.append(x)
            if number == stop:
                lazyrt.mark_step()
    return outputs


def test_a_mark_that_moved_back_says_that_it_came_later():
    layers = [nn.Linear(4, 4).to(DEVICE) for _ in range(5)]
    x = ones(2, 4)
    lazyrt.mark_step()
    layers_with_a_mark_after(layers, x, 0)

    layers_with_a_mark_after(layers, x, 2)

    assert "came later" in explained()[-1].text
    assert "4 operations that ran after it run before it now" in explained()[-1].text


def test_a_new_mark_within_a_step_is_named_by_both_of_its_graphs():
    layers = [nn.Linear(4, 4).to(DEVICE) for _ in range(4)]
    x = ones(2, 4)
    lazyrt.mark_step()
    layers_with_a_mark_after(layers, x, 9)
    known = len(explained())

    layers_with_a_mark_after(layers, x, 1)

    (first,) = explained()[known:]  # both halves are one graph
    assert kinds(first) == ["step_cut"]
    assert "the step ended earlier: mark_step() at" in first.text
    layers_with_a_mark_after(layers, x, 2)
    assert kinds(explained()[-1]) == ["step_cut"]


def test_rounds_of_a_loop_that_add_up_alike_are_no_moved_mark():
    model = nn.Linear(4, 4).to(DEVICE)

    def sample(rounds):
        x = ones(2, 4)
        for _ in range(rounds):
            x = x - model(x).tanh()
        lazyrt.mark_step()
        return x

    for rounds in (3, 4, 2, 5):
        sample(rounds)

    assert [each.top.kind for each in explained()[1:]] == ["loop_count"] * 3


def test_a_layer_that_a_step_leaves_out_was_not_removed():
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(DEVICE)
    x = ones(2, 4)
    lazyrt.mark_step()

    def run(skipped):
        with lazyrt.step():
            y = x
            for number, layer in enumerate(layers):
                y = layer(y).tanh() if number != skipped else y
            return y.sum()

    run(None)
    run(1)

    (cause,) = explained()[-1].causes
    assert cause.kind == "module_call"
    assert cause.variable == "layers.1"
    assert "call the same modules in each step" in cause.fix


def test_a_wrapped_layer_adds_its_wrapper_and_not_itself():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).to(DEVICE)
    x = ones(2, 4)
    lazyrt.mark_step()

    def run():
        with lazyrt.step():
            return model(x).sum()

    class Adapter(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
            self.low = nn.Linear(4, 2, bias=False)
            self.up = nn.Linear(2, 4, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.low(x))

    run()
    model[0] = Adapter(model[0]).to(DEVICE)
    lazyrt.mark_step()
    run()

    top = explained()[-1].top
    assert top.kind == "module_added"
    assert "modules `model.0.low`, `model.0.up` were added: 2 parameters" in top.text


def test_a_loops_variable_gives_a_layer_no_other_name():
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).to(DEVICE)
    x = ones(2, 4)
    for layer in layers:
        x = layer(x)

    origins = lazyrt.input_origins(x)

    names = {origin.name for origin in origins}
    assert {"layers.0.weight", "layers.1.weight"} <= names
    assert layer is layers[1]


def test_two_models_trained_in_turn_are_two_programs():
    maker, judge = nn.Linear(3, 4).to(DEVICE), nn.Linear(4, 1).to(DEVICE)
    makers = torch.optim.Adam(maker.parameters())
    judges = torch.optim.Adam(judge.parameters())
    real = ones(5, 4)
    for _ in range(2):
        noise = ones(5, 3)
        judges.zero_grad()
        (judge(maker(noise).detach()) - judge(real)).mean().backward()
        judges.step()
        lazyrt.mark_step()
        makers.zero_grad()
        judge(maker(noise)).sigmoid().log().mean().neg().backward()
        makers.step()
        lazyrt.mark_step()

    _, second, *later = explained()
    assert second.top.kind == "other_step"
    assert "is a program of its own" in second.text
    assert "step_cut" not in kinds(second)
    assert [each.top.kind for each in later] == ["state_became_input"] * 2


def test_an_evaluation_that_another_mark_ends_is_no_cut():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)).to(DEVICE)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    x = ones(3, 4)

    def run(*, train):
        model.train(train)
        out = model(x).mean()
        if train:
            out.backward()
            sgd.step()
            sgd.zero_grad()
        lazyrt.mark_step()
        return out

    run(train=True)
    out = run(train=False)

    assert kinds(explained()[-1]) == ["other_step", "train_eval"], out


def test_a_norm_in_evaluation_is_one_cause_with_the_counters_that_it_keeps():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()).to(DEVICE)
    x = ones(2, 1, 8, 8)
    for _ in range(2):
        with lazyrt.step():
            out = model(x).sum()
        model.eval()

    assert kinds(explained()[-1]) == ["train_eval"], out


def test_what_a_debug_mode_ran_is_no_module_that_was_removed():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).to(DEVICE)
    x = ones(2, 4)
    lazyrt.mark_step()
    for mode in (contextlib.nullcontext, lazyrt.eager_mode):
        with lazyrt.step():
            y = model[0](x)
            with mode():
                y = model[1](y)
            y = model[2](y).sum()

    (cause,) = explained()[-1].causes
    assert cause.kind == "mode"
    assert cause.weight > 0


def test_two_inputs_that_are_one_tensor_now_are_both_named():
    """The same tensor twice is another program; equal values are not."""
    a, b = ones(3), ones(3)

    def run(x, y):
        with lazyrt.step():
            return (x * 2 + y).exp()

    run(a, b)
    run(a, a)
    (cause,) = explained()[-1].causes
    assert cause.kind == "same_input"
    assert cause.text == "`x` and `y` are one tensor now and were two"
    compiled = len(explained())
    run(b, a)
    assert len(explained()) == compiled


def test_a_model_of_another_dtype_names_a_parameter_and_how_to_convert_once():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).to(DEVICE)
    x = ones(2, 4)
    with lazyrt.step():
        out = model(x).sum()
    model.to(torch.bfloat16)
    x = x.to(torch.bfloat16)
    lazyrt.mark_step()
    with lazyrt.step():
        out = model(x).sum()

    found = explained()[-1]
    assert found.top.kind == "input_dtype", out
    assert "bf16" in found.text
    assert "dtype" not in kinds(found)


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
    assert f"`{name}`" in cause.text
    assert fix in cause.fix


def test_no_name_is_better_than_a_wrong_one(tmp_path):
    path = tmp_path / "lines.py"
    path.write_text(
        "y = x.roll(a, 0) + x.roll(b, 0)\nz = x.roll(2, 0)\nx.roll(*many)\n"
    )

    def named(line):
        return argument_name(Site(str(path), line, "f"), "aten.roll.default", 1)

    assert [named(line) for line in (1, 2, 3, 9)] == [""] * 4
    assert argument_name(None, "aten.roll.default", 1) == ""
    assert takes_tensor("aten.clamp.default", 1)
    assert not takes_tensor("aten.roll.default", 1)
    assert not takes_tensor("no.such.op", 0)


def test_a_power_that_is_a_float_and_was_an_integer_says_so():
    x = ones(4)
    lazyrt.mark_step()
    for power in (2, 3, 2.5):
        with lazyrt.step():
            out = x**power

    (cause,) = explained()[-1].causes
    assert cause.kind == "lifted_number", out
    assert "is a float and was an integer" in cause.text


def test_an_input_that_nothing_names_is_told_by_the_line_that_reads_it():
    model = nn.Linear(4, 4).to(DEVICE)

    def run(rows):
        with lazyrt.step():
            return model(ones(rows, 4)).sum()

    run(2)
    run(3)

    text = explained()[-1].text
    assert text.startswith("input (read at test_causes_programs.py:")
    assert ") f32[2,4] is now f32[3,4]" in text


def test_a_step_that_an_error_leaves_is_a_cut_with_the_errors_name():
    model = nn.Linear(4, 4).to(DEVICE)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    x = ones(2, 4)

    def run(*, fails):
        with lazyrt.step():
            sgd.zero_grad()
            model(x).square().mean().backward()
            if fails:
                raise KeyError("batch 7")
            sgd.step()

    run(fails=False)
    with pytest.raises(KeyError):
        run(fails=True)

    top = explained()[-1].top
    assert top.kind == "step_cut"
    assert "end of step, left by KeyError at" in top.text
    assert "on_error" in top.fix


def test_an_executable_beyond_the_limit_names_the_limit():
    lazyrt.config.max_executables = 1
    x = ones(3)
    for number in range(3):
        with lazyrt.step():
            out = x.exp() if number % 2 else x.sin() + 1

    found = lazyrt.explain()
    assert found is not None
    top = found.top
    assert top.kind == "cache_evicted", out
    assert "`config.max_executables`, 1 now" in top.fix


def test_gradients_that_an_earlier_step_left_are_named_when_they_are_gone():
    model = nn.Linear(4, 4).to(DEVICE)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    x = ones(3, 4)
    with lazyrt.step():
        model(x).mean().backward()
        sgd.step()
    for _ in range(2):
        with lazyrt.step():
            for _ in range(3):
                model(x).square().mean().backward()
            sgd.step()
            sgd.zero_grad()

    (top,) = explained()[-1].causes
    assert top.kind == "carried_over"
    assert top.variable.endswith(".grad")
    assert "gradients accumulate" in top.text


def test_a_copy_made_in_the_first_step_is_no_module_that_was_left_out():
    model = nn.Linear(4, 4).to(DEVICE)
    mean = copy.deepcopy(model)
    x = ones(2, 4)
    for _ in range(2):
        with lazyrt.step():
            out = model(x).sum()

    (cause,) = explained()[-1].causes
    assert cause.kind == "module_recreated", out
    assert "`mean` was made in graph.1" in cause.text
    assert mean is not model


def test_masks_and_what_is_saved_for_backward_follow_from_the_mode():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)).to(DEVICE)
    x = ones(2, 4)
    for train in (True, False):
        model.train(train)
        with lazyrt.step():
            out = model(x)
            out = out.sum() if train else out.softmax(-1).sum()

    assert kinds(explained()[-1]) == ["train_eval", "code_path"], out


def test_a_length_that_grows_with_each_graph_is_told_as_a_series():
    tokens = ones(1, 4)
    for _ in range(4):
        lazyrt.mark_step()
        tokens = torch.cat([tokens, tokens[:, -1:] * 2], 1)
    lazyrt.mark_step()

    third, fourth = (each.top for each in explained()[-2:])

    assert third.kind == fourth.kind == "input_shape"
    assert third.text.endswith("it grows from graph to graph: 4, 5, 6")
    assert fourth.text.startswith("input `tokens` f32[1,6] is now f32[1,7]")
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


GENERATING = """
import torch


def generate(tokens, mark):
    ids = tokens * 1
    for _ in range(3):
        mark()
        ids = torch.cat([ids, ids[:, -1:] * 2], 1)
    mark()
    return ids
"""


def test_what_only_a_library_holds_has_the_librarys_name(tmp_path, monkeypatch):
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "generating.py").write_text(GENERATING, encoding="utf-8")
    monkeypatch.syspath_prepend(str(package))
    generating = importlib.import_module("generating")
    tokens = ones(1, 4)

    generating.generate(tokens, lazyrt.mark_step)
    del sys.modules["generating"]

    assert explained()[-1].top.text.startswith("input `ids` f32[1,5] is now f32[1,6]")
    assert lazyrt.live_tensors()[0].nbytes == tokens.nbytes
    assert len(lazyrt.live_tensors()) == 1  # the search has kept nothing


def test_micro_batches_in_one_graph_are_told_with_their_number_and_lines():
    """A step that holds several rounds says so, and the fix makes its graph smaller."""
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(DEVICE)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [ones(3, 4) * k for k in range(8)]
    lazyrt.mark_step()

    def update(*, marks):
        for x in batches:
            loss = model(x).square().mean() / 8
            loss.backward()
            if marks:
                lazyrt.mark_step()
        sgd.step()
        sgd.zero_grad()
        lazyrt.mark_step()

    update(marks=False)
    whole, graph = explained()[-1], lazyrt.compiled_graphs()[-1]
    line = update.__code__.co_firstlineno + 2
    assert whole.block is not None
    assert whole.block.times == 8
    assert f"-op block 8 times (test_causes_programs.py:{line}-{line + 1})" in str(
        whole
    )
    assert whole.block.ops * 8 < graph.nodes * 1.1

    known = len(explained())
    update(marks=True)
    assert all(4 * r.nodes < graph.nodes for r in lazyrt.compiled_graphs()[known:])
    assert all(each.block is None for each in explained()[known:])


def test_rounds_are_not_halved_by_what_a_step_does_to_four_tensors():
    """An op on each of four equal tensors goes four times into eight rounds, too."""
    heads = [torch.ones(4, 4, device=DEVICE, requires_grad=True) for _ in range(4)]
    batches = [ones(3, 4) * k for k in range(8)]
    lazyrt.mark_step()

    for x in batches:
        h = x @ heads[0] @ heads[1]
        (h.relu() @ heads[2] @ heads[3]).square().mean().backward()
    norms = [head.grad.square().sum() for head in heads if head.grad is not None]
    lazyrt.mark_step()

    (block,) = [each.block for each in explained() if each.block is not None]
    assert block.times == 8
    del norms


def test_layers_of_a_functional_model_are_no_repeated_block():
    """They have weights of their own."""
    weights = [ones(4, 4) * k for k in range(6)]
    lazyrt.mark_step()
    h = ones(2, 4)
    with lazyrt.step():
        for weight in weights:
            h = (h @ weight + 1).tanh().exp() * 2

    assert explained()[-1].block is None, h


def test_layers_of_a_model_are_no_repeated_block():
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))).to(DEVICE)
    with lazyrt.step():
        out = layers(ones(2, 4)).sum()

    assert explained()[-1].block is None, out


def test_another_optimizer_of_the_same_parameters_is_no_update_in_part():
    """And neither is an option by which it keeps more."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(DEVICE)
    x = ones(5, 3)
    lazyrt.mark_step()

    def train(optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
        return [each.top.text for each in explained()][-2:]

    with lazyrt.config.scoped(barrier_after_optimizer=True):
        train(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        exchanged, created = train(torch.optim.AdamW(model.parameters(), foreach=True))
        option, _ = train(
            torch.optim.AdamW(model.parameters(), foreach=True, amsgrad=True)
        )

    assert exchanged.startswith("another optimizer updates the parameters at test_ca")
    assert exchanged.endswith("kept `momentum_buffer`")
    assert "`exp_avg`" in exchanged
    assert "of each of 4 parameters" in exchanged
    assert "is an input from now on" in created
    assert "keeps `max_exp_avg_sq`, too, of each of 4 parameters" in option
