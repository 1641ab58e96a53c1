"""One choice of a model, a loss or an optimizer changes: the sentences are about that choice alone."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import lazyrt
from tests.harness import DEVICE
from tests.runtime.causes import explained, kinds

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold_and_fast"),
]


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale


class Tagger(nn.Module):
    """An embedding, a recurrent layer or attention, and a head over a sequence."""

    def __init__(self, *, layers=0, heads=0, bias=True, norm=nn.LayerNorm, middle=True):
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.rnn = nn.LSTM(8, 8, layers, batch_first=True) if layers else None
        self.heads = heads
        self.norm = norm(8)
        self.middle = nn.Linear(8, 8, bias=bias) if middle else nn.Identity()
        self.head = nn.Linear(8, 9, bias=bias)

    def forward(self, ids):
        x = self.embed(ids)
        if self.rnn is not None:
            x, _ = self.rnn(x)
        if self.heads:
            x = self.attend(x)
        return self.head(self.middle(self.norm(x)))

    def attend(self, x):
        rows, length, size = x.shape
        y = x.view(rows, length, self.heads, size // self.heads).transpose(1, 2)
        y = functional.scaled_dot_product_attention(y, y, y)
        return y.transpose(1, 2).reshape(rows, length, size)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


class Trainer:
    def __init__(self, model, optimizer=adamw):
        self.model = model.to(DEVICE)
        self.make = optimizer
        self.optimizer = optimizer(self.model.parameters())
        self.clip = True
        self.trains = True
        self.casts = False
        self.averages = []
        self.loss: Any = functional.cross_entropy
        self.ids = torch.arange(6).reshape(2, 3).to(DEVICE)
        self.targets = (torch.arange(6) % 5).to(DEVICE)
        lazyrt.mark_step()

    def fit(self):
        with lazyrt.step():
            with (
                torch.set_grad_enabled(self.trains),
                torch.autocast(DEVICE, torch.bfloat16, enabled=self.casts),
            ):
                loss = self.loss(self.model(self.ids).flatten(0, 1), self.targets)
            if not self.trains:
                return
            self.optimizer.zero_grad()
            loss.backward()
            if self.clip:
                norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            pairs = zip(self.averages, self.model.parameters(), strict=False)
            for average, parameter in pairs:
                average.lerp_(parameter.detach(), 0.1)
        del loss
        _read = norm if self.clip else None


def after_another_model(*models):
    """Return why a second model's first step is new, by the first one's."""
    known = 0
    for make in models:
        trainer = Trainer(make())
        known = len(explained())
        for _ in range(2):
            trainer.fit()
    return explained()[known]


def after_a_change(change, model=None, optimizer=adamw):
    """Return why a trainer's next steps are new once something of it has changed."""
    trainer = Trainer(model or Tagger(), optimizer)
    for _ in range(3):
        trainer.fit()
    known = len(explained())
    change(trainer)
    lazyrt.mark_step()
    trainer.fit()
    trainer.fit()
    return explained()[known:]


# What an LSTM gives is not contiguous: a linear layer takes it in a form of its own.
BEHIND_LSTM = {"layers": 1, "norm": nn.Identity}


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ({"bias": True}, {"bias": False}, "module_removed"),
        ({"bias": False}, {"bias": True}, "module_added"),
        ({"layers": 1}, {"layers": 2}, "module_added"),
        ({"layers": 2}, {"layers": 1}, "module_removed"),
        ({"layers": 1}, {"layers": 1, "bias": False}, "module_removed"),
        (BEHIND_LSTM, {**BEHIND_LSTM, "middle": False}, "module_removed"),
        ({**BEHIND_LSTM, "middle": False}, BEHIND_LSTM, "module_added"),
    ],
)
def test_parameters_come_and_go_with_gradients_updates_and_lists(first, second, kind):
    explanation = after_another_model(lambda: Tagger(**first), lambda: Tagger(**second))

    assert kinds(explanation) == [kind], explanation
    assert explanation.unexplained == 0


def test_another_norm_is_parameters_that_came_and_parameters_that_went():
    explanation = after_another_model(Tagger, lambda: Tagger(norm=RMSNorm))

    assert kinds(explanation) == ["module_added", "module_removed"], explanation
    assert "`self.model.norm.scale`" in explanation.text


def test_a_second_direction_of_a_recurrent_layer_is_no_tensor_that_was_shared():
    def both_ways():
        model = Tagger(layers=2)
        model.rnn = nn.LSTM(8, 8, 2, batch_first=True, bidirectional=True)
        model.norm = nn.LayerNorm(16)
        model.middle = nn.Linear(16, 8)
        return model

    explanation = after_another_model(lambda: Tagger(layers=2), both_ways)

    assert set(kinds(explanation)) <= {"module_added", "parameter_shape"}, explanation


def test_tied_weights_are_one_cause_with_their_gradient_and_their_state():
    def tied():
        model = Tagger(bias=False)
        model.head.weight = model.embed.weight
        return model

    explanation = after_another_model(lambda: Tagger(bias=False), tied)

    assert kinds(explanation) == ["same_input"], explanation
    assert explanation.unexplained == 0


def test_the_scale_of_attention_follows_from_the_size_of_its_heads():
    explanation = after_another_model(lambda: Tagger(heads=2), lambda: Tagger(heads=4))

    assert kinds(explanation) == ["shape"], explanation
    assert "(`self.heads`: [2, 3, 2, 4] became [2, 3, 4, 2])" in explanation.text


def freeze(trainer, part):
    for parameter in part.parameters():
        parameter.requires_grad_(requires_grad=False)
    trainer.optimizer = trainer.make(
        [p for p in trainer.model.parameters() if p.requires_grad]
    )


@pytest.mark.parametrize("part", ["embed", "rnn", "middle", "head"])
def test_a_frozen_module_is_one_cause_though_its_old_gradients_are_still_read(part):
    def change(trainer):
        freeze(trainer, getattr(trainer.model, part))

    first, *others = after_a_change(change, Tagger(layers=2))

    assert kinds(first)[0] == "update", first
    assert set(kinds(first)) <= {"update", "state_became_input"}, first
    assert "fewer" in first.top.text
    assert " computed of " in first.top.text
    assert "still read" in first.top.text
    assert "parameter.grad = None" in first.top.fix
    assert all(kinds(each) == ["state_became_input"] for each in others), others


def test_most_of_a_model_frozen_is_no_boundary_that_moved():
    def change(trainer):
        for part in (trainer.model.embed, trainer.model.norm, trainer.model.middle):
            for parameter in part.parameters():
                parameter.requires_grad_(requires_grad=False)
        freeze(trainer, trainer.model.rnn)

    found = after_a_change(change, Tagger(layers=2))

    assert not {"step_cut", "carried_over"} & {k for each in found for k in kinds(each)}


def test_clipping_that_is_left_out_is_no_tensor_that_is_gone():
    def change(trainer):
        trainer.clip = False

    (explanation,) = after_a_change(change)

    assert kinds(explanation) == ["code_path"], explanation
    assert "aten._foreach_norm" in explanation.text


def test_a_step_without_gradients_lacks_its_backward_pass_and_its_update():
    def change(trainer):
        trainer.trains = False

    (explanation,) = after_a_change(change)

    assert kinds(explanation) == ["update"], explanation
    assert explanation.text.startswith("the backward pass at ")
    assert "and the optimizer's update at " in explanation.text
    assert "do not run in this step" in explanation.text


def test_a_first_step_with_gradients_after_one_without_says_that_they_run():
    trainer = Trainer(Tagger(), lambda p: torch.optim.SGD(p, lr=0.1))
    trainer.trains = False
    trainer.fit()

    trainer.trains = True
    trainer.fit()

    explanation = explained()[-1]
    assert kinds(explanation) == ["update"], explanation
    assert "run in this step and did not in graph.1" in explanation.text


def test_an_average_of_the_weights_is_what_the_step_writes_too():
    def change(trainer):
        trainer.averages = [p.detach().clone() for p in trainer.model.parameters()]

    explanation = after_a_change(change)[1]

    assert kinds(explanation) == ["update"], explanation
    assert "self.averages[" in explanation.text


def adagrad(parameters):
    return torch.optim.Adagrad(parameters, lr=0.01)


def test_an_option_that_turns_numbers_into_inputs_is_no_number_that_varies():
    def change(trainer):
        trainer.optimizer = torch.optim.Adagrad(
            trainer.model.parameters(), lr=0.01, weight_decay=0.1
        )

    explanation = after_a_change(change, optimizer=adagrad)[0]

    assert kinds(explanation) == ["update"], explanation
    assert "the optimizer's update at " in explanation.text


def test_an_update_tensor_by_tensor_is_one_of_the_optimizer():
    def change(trainer):
        trainer.optimizer = torch.optim.AdamW(
            trainer.model.parameters(), lr=0.01, foreach=False
        )

    explanation = after_a_change(change)[0]

    assert "code_path" not in kinds(explanation), explanation
    assert explanation.causes[0].kind in {"state_became_input", "update"}
    assert "update" in kinds(explanation)


def test_views_of_what_autocast_converts_are_part_of_the_conversion():
    def change(trainer):
        trainer.casts = True

    (explanation,) = after_a_change(change)

    assert kinds(explanation) == ["dtype"], explanation
    assert "as under autocast" in explanation.text


def test_a_tensor_for_an_argument_is_no_number_of_the_graph():
    def change(trainer):
        weight = torch.ones(9).to(DEVICE)
        trainer.loss = lambda x, y: functional.cross_entropy(x, y, weight=weight)

    (explanation,) = after_a_change(change)

    assert kinds(explanation) == ["code_path"], explanation
    assert "as its `weight` where it had None" in explanation.text


def test_an_option_of_a_loss_has_its_name_and_its_gradient_follows():
    ignored = [-100]
    trainer = Trainer(Tagger())
    trainer.loss = lambda x, y: functional.cross_entropy(x, y, ignore_index=ignored[0])
    for _ in range(3):
        trainer.fit()
    ignored[0] = 0
    trainer.fit()

    explanation = explained()[-1]
    assert kinds(explanation) == ["baked_constant"], explanation
    assert "has 0 as its `ignore_index` where it had -100" in explanation.text


def test_another_line_that_does_much_the_same_is_another_path():
    def change(trainer):
        trainer.loss = lambda x, y: functional.nll_loss(x.log_softmax(-1), y)

    (explanation,) = after_a_change(change)

    assert kinds(explanation) == ["code_path"], explanation


def test_the_padding_of_a_kernel_and_its_gradient_are_one_number():
    def net(size):
        return nn.Sequential(
            nn.Conv2d(2, 2, size, padding=size // 2), nn.ReLU(), nn.Flatten()
        ).to(DEVICE)

    x = torch.ones(2, 2, 6, 6).to(DEVICE)

    def step(model):
        with lazyrt.step():
            model.zero_grad()
            model(x).square().mean().backward()

    step(net(3))
    step(net(5))

    explanation = explained()[-1]
    assert kinds(explanation) == ["parameter_shape", "baked_constant"], explanation
    assert "[2, 2] as its `padding` where it had [1, 1]" in explanation.text


class Keeper(nn.Module):
    """Layers that grow, and what they gave last."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
        self.keeps = False
        self.last = None

    def forward(self, x):
        y = self.layers(x)
        if self.keeps:
            self.last = y
        return y


@pytest.mark.parametrize("later", [True, False])
def test_what_keeps_the_result_of_a_new_module_has_a_cause_of_its_own(later):
    net = Keeper().to(DEVICE)
    x = torch.ones(2, 6).to(DEVICE)

    def fit():
        with lazyrt.step():
            net.zero_grad()
            net(x).square().mean().backward()

    def append():
        net.layers.append(nn.Linear(8, 8).to(DEVICE))
        net.keeps = later
        net.last = None
        lazyrt.mark_step()

    net.keeps = not later
    fit()
    append()
    fit()

    explanation = explained()[-1]
    kept = "live_tensor" if later else "live_tensor_gone"
    assert kinds(explanation) == ["module_added", kept], explanation
    assert explanation.causes[1].variable == "net.last"


def test_an_average_of_a_new_modules_weights_is_part_of_the_module():
    trainer = Trainer(nn.Sequential(Tagger()))
    trainer.averages = [p.detach().clone() for p in trainer.model.parameters()]
    lazyrt.mark_step()
    for _ in range(2):
        trainer.fit()

    trainer.model.append(nn.Linear(9, 9).to(DEVICE))
    trainer.averages += [p.detach().clone() for p in trainer.model[1].parameters()]
    trainer.optimizer = adamw(trainer.model.parameters())
    lazyrt.mark_step()
    trainer.fit()

    explanation = explained()[-1]
    assert explanation.top.kind == "module_added", explanation
    assert not {"live_tensor", "live_tensor_gone"} & set(kinds(explanation))
