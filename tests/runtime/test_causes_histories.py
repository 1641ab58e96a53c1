"""What a loop keeps from step to step, reads in pieces, or calls by another name.

Each program below is one that a user writes; its top cause is the true one, and what follows from it
is no cause beside it.
"""

import pytest
import torch
from torch import nn

import lazyrt
from tests.harness import DEVICE
from tests.runtime.causes import explained, kinds, ones

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold_and_fast"),
]


def layers(*more):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), *more, nn.Linear(6, 3)).to(DEVICE)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(net, optimizer, batch, before=None):
    optimizer.zero_grad()
    net(batch).square().mean().backward()
    if before is not None:
        before(net)
    optimizer.step()


def evaluate_by_a_mark(model, x):
    model.eval()
    with torch.no_grad():
        share = (model(x).argmax(1) == 0).float().mean()
    lazyrt.mark_step()
    return share


def evaluate_by_a_read(model, x):
    model.eval()
    return float(model(x).argmax(1).sum())


@pytest.mark.parametrize(
    ("evaluate", "step"),
    [
        (evaluate_by_a_mark, "the step that mark_step() at "),
        (evaluate_by_a_read, "the step that a read by .item() at "),
    ],
)
def test_an_evaluation_is_a_program_of_its_own_and_no_step_that_was_cut(evaluate, step):
    model, x = layers(nn.Dropout(0.1)), ones(2, 4)
    optimizer = sgd(model)
    for _ in range(2):
        train(model, optimizer, x)
    found = evaluate(model, x)

    last = explained()[-1]
    assert last.top.kind == "other_step", found
    assert last.top.text.startswith(step)
    assert "computes no gradients and is a program of its own" in last.text
    assert {*kinds(last)} <= {"other_step", "train_eval"}


def test_a_training_step_that_a_read_cuts_is_no_evaluation():
    model, x = layers(), ones(2, 4)
    loss = model(x).square().mean()
    loss.backward()
    lazyrt.mark_step()
    loss = model(x).square().mean()
    found = float(loss.detach())
    loss.backward()
    lazyrt.mark_step()

    assert "step_cut" in {kinds(each)[0] for each in explained()[1:]}, found
    assert "other_step" not in {kind for each in explained() for kind in kinds(each)}


def test_an_evaluation_after_steps_that_a_fallback_cuts_is_another_step():
    model, x = layers(nn.Dropout(0.1)), ones(2, 4)
    optimizer = sgd(model)
    optimizer.zero_grad()
    out = model(x)
    found = torch.bincount(out.argmax(1))
    out.square().mean().backward()
    optimizer.step()
    known = len(explained())
    evaluate_by_a_mark(model, x)

    assert found.sum() == 2
    assert kinds(explained()[known]) == ["other_step", "train_eval"]


def read_all(net):
    for parameter in net.parameters():
        float(parameter.grad.norm())


def test_reads_of_each_gradient_are_one_cause_and_no_module_is_gone():
    model, x = layers(), ones(2, 4)
    optimizer = sgd(model)
    train(model, optimizer, x)
    train(model, optimizer, x)
    known = len(explained())
    train(model, optimizer, x, before=read_all)

    first, *pieces, rest = explained()[known:]
    assert [kinds(each) for each in (first, *pieces, rest)] == [["step_cut"]] * (
        len(pieces) + 2
    )
    assert len(pieces) >= 2
    for piece in pieces:
        assert "cut the step once more: this graph is the " in piece.text
        assert ".grad` f32[" in piece.text
        assert "torch.stack(values).tolist()" in piece.top.fix
    assert rest.text.startswith("the step began later: read by .item() at ")


def test_the_fix_for_reads_of_each_gradient_leaves_the_step_whole():
    model, x = layers(), ones(2, 4)
    optimizer = sgd(model)
    train(model, optimizer, x)
    train(model, optimizer, x)
    norms = [parameter.grad.norm() for parameter in model.parameters()]
    known = lazyrt.counters()["compiles"]

    found = torch.stack(norms).tolist()
    del norms
    train(model, optimizer, x)

    assert len(found) == 4
    assert lazyrt.counters()["compiles"] - known == 1  # the read itself


def read_by_stack(history):
    return torch.stack(history).mean()


def read_by_sum(history):
    return sum(history) * 1.0


@pytest.mark.parametrize("read", [read_by_stack, read_by_sum])
def test_a_list_of_earlier_results_that_is_read_as_a_whole_is_named(read):
    x, losses = ones(3), []
    lazyrt.mark_step()
    for number in range(5):
        losses.append((x * (number + 1)).exp().sum())
        lazyrt.mark_step()
        mean = read(losses)
        lazyrt.mark_step()
        x = x * 1
        del mean
        lazyrt.mark_step()

    last = next(each for each in reversed(explained()) if "losses" in each.text)
    assert kinds(last) == ["carried_over"], last
    assert last.top.variable == "losses"
    assert "the list `losses` of earlier results is read as a whole at " in last.text
    assert "the number grows from graph to graph: " in last.text
    assert "running value" in last.top.fix


@pytest.mark.parametrize("detaches", [False, True])
def test_history_that_is_handed_on_is_named_and_detaching_it_compiles_once(detaches):
    cell, x = nn.RNNCell(4, 6).to(DEVICE), ones(2, 4)
    state = torch.zeros(2, 6, device=DEVICE)
    lazyrt.mark_step()
    for _ in range(4):
        state = cell(x, state)
        (grad,) = torch.autograd.grad(
            state.square().mean(), [cell.weight_hh], retain_graph=True
        )
        if detaches:
            state = state.detach()
        lazyrt.mark_step()
        del grad

    if detaches:
        assert len(explained()) <= 3
        return
    last = explained()[-1]
    assert last.top.kind == "carried_over"
    assert "goes on through 3 earlier steps, 2 in graph." in last.text
    assert "as `state` was handed on with its history" in last.text
    assert "`state.detach()`" in last.top.fix


def test_a_sum_that_starts_as_a_number_says_what_became_of_it():
    x, total = ones(3), 0.0
    lazyrt.mark_step()
    for _ in range(3):
        total = total + (x * 2).exp().sum()
        lazyrt.mark_step()

    (cause,) = explained()[-1].causes
    assert cause.kind == "state_became_input"
    assert cause.text.startswith("`total`, which graph.")
    assert "had as the number 0.0 at " in cause.text
    assert "torch.zeros(" in cause.fix


def test_models_have_the_callers_name_in_helper_functions():
    def check(m, batch):
        with lazyrt.step(), torch.no_grad():
            return m(batch).sum()

    model, x = layers(), ones(2, 4)
    optimizer = sgd(model)
    train(model, optimizer, x)
    model.append(nn.Linear(3, 3).to(DEVICE))
    optimizer = sgd(model)
    lazyrt.mark_step()
    train(model, optimizer, x)
    check(model, x)

    added = next(e for e in explained() if e.top.kind == "module_added")
    assert added.top.variable == "model.3"
    names = {
        name.text
        for record in lazyrt.compiled_graphs()
        if record.snapshot is not None
        for name in record.snapshot.leaf_names.values()
    }
    assert not any(name.startswith(("net.", "m.")) for name in names)


def test_rounds_of_a_loop_have_no_consequences_beside_them():
    cell, out = nn.GRUCell(3, 4).to(DEVICE), nn.Linear(4, 3).to(DEVICE)
    x = ones(2, 3)
    lazyrt.mark_step()
    for rounds in (3, 4, 2):
        state, y, found = torch.zeros(2, 4, device=DEVICE), x, []
        for _ in range(rounds):
            state = cell(y, state)
            y = out(state)
            found.append(y)
        torch.stack(found, 1).square().mean().backward()
        lazyrt.mark_step()
        cell.zero_grad()
        out.zero_grad()
        del state, y, found

    more, fewer = explained()[-2:]
    assert kinds(more) == kinds(fewer) == ["loop_count"], (str(more), str(fewer))
    assert "came 4 times instead of 3" in more.text
    assert "came 2 times instead of 3" in fewer.text


def test_layers_that_are_left_out_at_random_are_no_one_tensor_and_no_loop():
    class Skips(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.left_out = {0}

        def forward(self, x):
            for number, block in enumerate(self.blocks):
                if number not in self.left_out:
                    x = x + block(x).relu()
            return x

    model, x = Skips().to(DEVICE), ones(2, 4)
    optimizer = sgd(model)
    for left_out in ({0}, {0}, set()):
        model.left_out = left_out
        train(model, optimizer, x)

    (cause,) = explained()[-1].causes
    assert cause.kind == "module_call", str(explained()[-1])
    assert cause.variable == "model.blocks.0"


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.low = nn.Parameter(torch.ones(2, 4))
        self.up = nn.Parameter(torch.ones(6, 2))

    def forward(self, x):
        return self.base(x) + x @ self.low.t() @ self.up.t()


def test_parameters_that_a_module_got_are_named():
    model, x = layers(), ones(2, 4)

    def run():
        with lazyrt.step():
            return model(x).sum()

    run()
    model[0] = Adapted(model[0]).to(DEVICE)
    lazyrt.mark_step()
    run()

    (cause,) = explained()[-1].causes
    assert cause.kind == "module_added"
    assert (
        "2 parameters were added to `model.0`: `model.0.low`, `model.0.up`"
        in cause.text
    )


@pytest.mark.parametrize("rows", [3, 5])
def test_a_batch_that_is_read_in_part_names_the_slice(rows):
    model, xb = layers(), ones(6, 4)
    optimizer = sgd(model)
    lazyrt.mark_step()
    train(model, optimizer, xb)
    train(model, optimizer, xb[:rows])

    (cause,) = explained()[-1].causes
    assert cause.kind == "shape"
    assert "aten.slice.Tensor at test_causes_histories.py:" in cause.text
    assert f"gives f32[{rows},4] where `xb` f32[6,4] was read as a whole" in cause.text


@pytest.mark.parametrize("trains", [False, True])
def test_an_op_that_reads_another_value_is_named_with_its_line(trains):
    layer, target = nn.Linear(4, 4).to(DEVICE), ones(2, 2, 4)
    lazyrt.mark_step()

    def run(*, forces):
        first = layer(target[:, 0])
        second = layer(target[:, 1] if forces else first)
        loss = (first - target[:, 1]).square().mean() + second.square().mean()
        if trains:
            loss.backward()
        lazyrt.mark_step()
        layer.zero_grad()

    run(forces=True)
    run(forces=False)

    (cause,) = explained()[-1].causes
    assert " reads `first` where it read the aten.select.int at " in cause.text
    assert cause.now is not None
    assert cause.now.line == run.__code__.co_firstlineno + 2


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize(
    ("kind", "options", "creations"),
    [
        (torch.optim.SGD, {"momentum": 0.9}, 2),
        (torch.optim.SGD, {"momentum": 0.9, "foreach": False}, 2),
        (torch.optim.AdamW, {}, 2),
        (torch.optim.ASGD, {}, 8),
        (torch.optim.Rprop, {}, 4),
    ],
)
def test_the_second_step_of_an_optimizer_differs_by_its_state_alone(
    kind, options, creations, clips
):
    model = nn.Linear(3, 2).to(DEVICE)
    optimizer = kind(model.parameters(), **options)
    x = ones(4, 3)
    for _ in range(3):
        with lazyrt.step():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    _, second = explained()
    (cause,) = second.causes
    assert cause.kind == "state_became_input"
    assert cause.text.endswith(f", {creations} fewer creations")


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def train_in_a_step(model, optimizer, x):
    with lazyrt.step():
        train(model, optimizer, x)


def test_a_whole_model_in_another_dtype_with_a_new_optimizer_is_told_by_both():
    model, x = layers(), ones(5, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        train_in_a_step(model, optimizer, x)

    model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    train_in_a_step(model, optimizer, x.to(torch.bfloat16))

    found = explained()[-1]
    assert kinds(found)[:2] == ["update", "dtype"]
    assert " anew (`model.0.weight`" in found.top.text


def test_a_longer_sequence_of_an_lstm_comes_before_the_rounds_that_follow_from_it():
    tagger = Tagger().to(DEVICE)
    optimizer = sgd(tagger)
    train_in_a_step(tagger, optimizer, ones(2, 4, 4))
    train_in_a_step(tagger, optimizer, ones(2, 6, 4))

    found = explained()[-1]
    assert kinds(found) == ["input_shape", "loop_count"]
    assert found.causes[1].text.endswith(
        " came 6 times instead of 4, as many as `x` is long"
    )


def test_another_optimizer_of_an_lstm_is_told_where_its_biases_share_their_state():
    tagger = Tagger().to(DEVICE)
    x = ones(2, 3, 4)
    train_in_a_step(tagger, torch.optim.Adam(tagger.parameters()), x)
    train_in_a_step(tagger, torch.optim.SGD(tagger.parameters(), momentum=0.9), x)

    (cause,) = explained()[-1].causes
    assert cause.text.startswith("another optimizer updates the parameters at ")
    assert "of each of 8 parameters" in cause.text
