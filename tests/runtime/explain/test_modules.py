"""Modules that come, go, are called, built again, or switch between training and evaluation."""

import copy

import pytest
import torch
from torch import nn

import lazyrt
from tests.harness import DEVICE
from tests.runtime.explain.shared import latest, ones, the_cause

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold"),
]


def stack(*layers):
    model = nn.Sequential(nn.Linear(4, 4), *layers).to(DEVICE)
    lazyrt.mark_step()
    return model


def run(model, x):
    with lazyrt.step():
        return model(x).sum()


def train(model, x, make=torch.optim.AdamW):
    """Make one step of a new optimizer."""
    optimizer = make(model.parameters())
    with lazyrt.step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("more", [1, 3])
@pytest.mark.parametrize("work", [run, train])
def test_added_modules_are_named_with_what_they_compute_their_state_and_update(
    work, more
):
    model, x = stack(nn.Tanh()), ones(2, 4)
    work(model, x)
    for _ in range(more):
        model.append(nn.Linear(4, 4).to(DEVICE))
    lazyrt.mark_step()
    work(model, x)

    cause = the_cause("module_added")
    names = ", ".join(f"`model.{k + 2}`" for k in range(more))
    start = f"modules {names} were" if more > 1 else f"module {names} was"
    assert cause.text == f"{start} added: {2 * more} parameters"
    assert cause.variable == "model.2"
    assert cause.now.file.endswith("test_modules.py")
    assert "build the model before the loop" in cause.fix


@pytest.mark.parametrize("work", [run, train])
def test_a_removed_module_is_named_with_its_line_before(work):
    model, x = stack(nn.Tanh(), nn.Linear(4, 4)), ones(2, 4)
    work(model, x)
    del model[2]
    work(model, x)

    cause = the_cause("module_removed")
    assert cause.text == "module `model.2` was removed: 2 parameters"
    assert cause.before is not None


@pytest.mark.parametrize("comes", [True, False])
def test_a_parameter_of_a_module_comes_and_goes_with_the_op_that_reads_it(comes):
    """A linear layer without a bias computes another op, and clipping sees fewer gradients."""
    x = ones(2, 4)
    for bias in (not comes, comes):
        model = nn.Sequential(nn.Linear(4, 4, bias=bias), nn.Tanh()).to(DEVICE)
        lazyrt.mark_step()
        train(model, x)

    cause = the_cause("module_added" if comes else "module_removed")
    word = "added" if comes else "removed"
    assert cause.text.startswith(f"parameter `model.0.bias` was {word}")


def test_another_head_is_a_module_that_is_called_and_its_sizes_are_no_cause():
    body = nn.Linear(4, 8).to(DEVICE)
    heads = nn.ModuleDict({"a": nn.Linear(8, 2), "b": nn.Linear(8, 5)}).to(DEVICE)
    x = ones(3, 4)
    for task in ("a", "b"):
        with lazyrt.step():
            out = heads[task](body(x)).square().mean()
    assert out.numel() == 1

    top = latest().top
    assert {cause.kind for cause in latest().causes} == {"module_call"}, str(latest())
    assert top.text.startswith("module `heads.b` is used at test_modules.py:")
    assert "was not used in graph." in top.text
    assert top.variable == "heads.b"


def test_a_layer_that_a_step_leaves_out_is_not_called_and_was_not_removed():
    first, second, x = (*(nn.Linear(4, 4).to(DEVICE) for _ in range(2)), ones(2, 4))
    for skips in (False, True):
        with lazyrt.step():
            y = first(x)
            out = (y if skips else second(y)).sum()
        del y, out

    cause = the_cause("module_call")
    assert cause.text.startswith("module `second` is not used at test_modules.py:")
    assert "use the same modules in each step" in cause.fix


def test_a_module_built_again_within_a_step_is_initialised_there():
    model, x = stack(nn.Tanh()), ones(2, 4)
    run(model, x)
    model[0] = nn.Linear(4, 4, device=DEVICE)
    run(model, x)

    top = latest().top
    assert [cause.kind for cause in latest().causes] == ["module_recreated"]
    assert "`model.0.weight`" in top.text
    assert " are initialised in this step at test_modules.py:" in top.text
    assert " were inputs before" in top.text
    assert "once, before the loop" in top.fix


def test_a_module_that_the_first_step_built_is_not_made_again():
    x = ones(2, 4)
    model = nn.Sequential(nn.Linear(4, 4, device=DEVICE))
    run(model, x)
    run(model, x)

    top = latest().top
    assert top.kind in {"module_recreated", "state_became_input"}, str(latest())
    assert "`model.0.weight`" in top.text
    assert "nothing to do" in top.fix


@pytest.mark.parametrize("trains_first", [True, False])
def test_training_and_evaluation_are_told_apart_with_their_modules(trains_first):
    model, x = stack(nn.Dropout(0.5), nn.BatchNorm1d(4)), ones(2, 4)
    for trains in (trains_first, not trains_first):
        model.train(trains)
        with torch.no_grad():
            run(model, x)

    cause = the_cause("train_eval")
    told = ("evaluation", "training") if trains_first else ("training", "evaluation")
    assert cause.text.startswith(
        f"the model runs in {told[0]} mode, before in {told[1]} mode (in module "
    )
    assert "`.eval()`" in cause.fix


def test_a_program_without_dropout_is_no_model_in_evaluation_mode():
    """Two networks that train in turn: the second step calls the first one's model not at all."""
    maker, judge = stack(nn.Dropout(0.1)), nn.Linear(4, 1).to(DEVICE)
    noise = ones(3, 4)
    of_judge, of_maker = (
        torch.optim.SGD(each.parameters(), lr=0.1) for each in (judge, maker)
    )
    made = maker(noise)
    judge(made.detach()).square().mean().backward()
    of_judge.step()
    judge(made).sigmoid().mean().backward()
    of_maker.step()

    assert "train_eval" not in {cause.kind for cause in latest().causes}, str(latest())


class Heads(nn.Module):
    """A trunk of two blocks, one of which may be left out, and a head for each task."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)
        )
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})
        self.left_out = -1

    def forward(self, x, task="a"):
        for number, block in enumerate(self.blocks):
            if number != self.left_out:
                x = block(x)
        return self.heads[task](x)


def test_another_task_names_the_head_that_is_called_and_the_one_that_is_not():
    model, x = Heads().to(DEVICE), ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for task in ("a", "b"):
        with lazyrt.step():
            optimizer.zero_grad()
            loss = model(x, task).square().mean()
            loss.backward()
            optimizer.step()

    called, left = latest().causes
    assert called.text.startswith("module `model.heads.b` is used at test_modules.py")
    assert left.text.startswith("module `model.heads.a` is not used at test_modules")


def test_a_block_in_the_middle_that_is_left_out_has_its_own_name():
    model, x = Heads().to(DEVICE), ones(2, 4)
    lazyrt.mark_step()
    train(model, x, make=torch.optim.SGD)
    model.left_out = 1
    train(model, x, make=torch.optim.SGD)

    text = the_cause("module_call").text
    assert text.startswith("module `model.blocks.1` is not used at test_modules.py:")


def test_a_copy_that_shares_its_weights_is_called_all_the_same():
    q, x, later = nn.Linear(4, 2).to(DEVICE), ones(2, 4), ones(2, 4)
    target = nn.Linear(4, 2).to(DEVICE)
    lazyrt.mark_step()
    for copies in (False, True):
        if copies:
            target.load_state_dict(q.state_dict())
        with lazyrt.step():
            goal = target(later).detach()
            loss = (q(x) - goal).square().mean()

    assert loss.dim() == 0
    assert "are one tensor now and were two" in the_cause("same_input").text


def test_a_layer_that_is_skipped_among_equal_ones_is_the_one_that_is_named():
    blocks = nn.ModuleList(nn.Linear(3, 3) for _ in range(4)).to(DEVICE)
    x = ones(2, 3)
    for skipped in (None, 1):
        with lazyrt.step():
            h = x
            for number, block in enumerate(blocks):
                if number != skipped:
                    h = h + block(h).relu()
            loss = h.sum()

    assert loss.dim() == 0
    assert "module `blocks.1` is not used" in latest().text


def test_a_layer_that_is_skipped_among_equal_ones_has_its_name_with_an_optimizers_state():
    """An op that equals an earlier one has that one's module, and moments have a weight's type."""
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(3)
    ).to(DEVICE)
    optimizer, x = torch.optim.AdamW(blocks.parameters()), ones(2, 3)
    for skipped in (None, None, 1):
        h = x
        for number, block in enumerate(blocks):
            if number != skipped:
                h = h + block(h)
        optimizer.zero_grad()
        h.square().mean().backward()
        optimizer.step()

    assert "module `blocks.1` is not used" in the_cause("module_call").text


def test_a_task_more_is_one_cause_though_its_loss_is_one_more_of_a_list():
    model, x = Heads().to(DEVICE), ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for tasks in ("a", "ab"):
        with lazyrt.step():
            optimizer.zero_grad()
            losses = [model(x, task).square().mean() for task in tasks]
            sum(losses).backward()
            optimizer.step()
            del losses

    assert "module `model.heads.b` is used" in the_cause("module_call").text


def test_a_layer_that_a_loop_passes_by_is_one_cause_though_layers_are_added_to():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
            self.skipped = -1

        def forward(self, x):
            for number, layer in enumerate(self.layers):
                if number == self.skipped:
                    continue
                x = x + torch.tanh(layer(x))
            return x

    model, x = Residual().to(DEVICE), ones(2, 4)
    for model.skipped in (-1, 2):
        with lazyrt.step():
            total = model(x).sum()

    assert total.dim() == 0
    assert "module `model.layers.2` is not used" in the_cause("module_call").text


def test_a_copy_of_a_model_that_is_kept_is_called_a_copy():
    model, x = stack(nn.Linear(4, 2)), ones(2, 4)
    best = None
    for step in range(2):
        with lazyrt.step():
            total = model(x).sum()
            if step:
                best = copy.deepcopy(model)

    assert best is not None
    assert total.dim() == 0
    cause = the_cause("module_added")
    assert "module `best` was added: 4 parameters, a copy of `model` at" in cause.text
    assert "after the copy" in cause.fix


def test_a_copy_of_weights_in_a_dict_is_called_a_copy_of_them():
    model, x = nn.Linear(4, 2).to(DEVICE), ones(2, 4)
    best: dict[str, torch.Tensor] = {}
    for step in range(2):
        with lazyrt.step():
            total = model(x).sum()
            if step:
                best = {k: v.clone() for k, v in model.state_dict().items()}

    assert best
    assert total.dim() == 0
    text = the_cause("live_tensor").text
    assert "] (a copy of `model." in text
