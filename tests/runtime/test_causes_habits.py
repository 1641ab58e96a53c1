"""What people change between two runs of a loop, told in one clause, or nothing compiled."""

from fnmatch import fnmatch

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import lazyrt
from tests.harness import DEVICE
from tests.runtime.causes import Tied

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold_and_fast"),
]


class Trainer:
    """A loop in a method, and what a user may change of it."""

    def __init__(self, *more):
        self.net = nn.Sequential(nn.Linear(6, 8), *more, nn.ReLU(), nn.Linear(8, 3))
        self.net.to(DEVICE)
        self.batch = {
            "x": torch.ones(4, 6).to(DEVICE),
            "y": torch.zeros(4, dtype=torch.long).to(DEVICE),
        }
        lazyrt.mark_step()
        self.restart()
        self.detaches = False

    def restart(self):
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def fit(self, before=None):
        for _ in range(2):
            self.optimizer.zero_grad()
            hidden = self.net[0](self.batch["x"])
            if self.detaches:
                hidden = hidden.detach()
            out = self.net[1:](hidden)
            loss = functional.cross_entropy(out, self.batch["y"])
            loss.backward()
            if before is not None:
                before(self.net)
            self.optimizer.step()


def told_after(trainer, change, **kwargs):
    trainer.fit()
    change(trainer)
    known = len(lazyrt.compiled_graphs())
    trainer.fit(**kwargs)
    found = [r.explanation for r in lazyrt.compiled_graphs()[known:] if r.explanation]
    assert not any(each.unexplained for each in found)
    return [each.text for each in found]


def test_a_printed_gradient_is_one_cut_and_no_module_is_new():
    first, second = told_after(
        Trainer(),
        lambda trainer: None,
        before=lambda model: float(model[0].weight.grad.norm()),
    )

    assert first.startswith("the step ended earlier: read by .item() at ")
    assert second.startswith("the step began later: read by .item() at ")
    assert ";" not in first + second


def test_a_check_of_gradients_is_one_cut_though_another_function_has_other_names():
    def check(model):
        assert not torch.isnan(model[2].weight.grad).any()

    told = told_after(Trainer(), lambda trainer: None, before=check)

    assert len(told) == 2
    assert all("read by bool() at " in each and ";" not in each for each in told)


def test_a_rate_of_dropout_is_one_number_and_its_gradients_no_other():
    def other_rate(trainer):
        trainer.net[1].p = 0.25

    (told,) = told_after(Trainer(nn.Dropout(0.5)), other_rate)

    assert told.startswith("a Python number is part of the graph: aten.native_dropout")
    assert told.endswith("has 0.25 as its `p` where it had 0.5")
    assert ";" not in told


def test_a_detached_layer_is_told_by_the_parameters_that_are_trained_no_more():
    def detach(trainer):
        trainer.detaches = True

    (told,) = told_after(Trainer(), detach)

    assert told.startswith("2 parameters fewer are updated at ")
    assert told.endswith("`self.net.0.weight`, `self.net.0.bias`")


def test_clipped_gradients_name_the_norm_before_what_merely_views():
    (told,) = told_after(
        Trainer(),
        lambda trainer: None,
        before=lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    )

    assert told.startswith("the program took another path: 1 more aten._foreach_norm")
    assert "aten.t." not in told


def test_weights_tied_between_two_updates_are_one_tensor_and_nothing_else():
    model, ids = Tied().to(DEVICE), torch.arange(6).to(DEVICE)
    lazyrt.mark_step()
    for ties in (False, True):
        if ties:
            model.head.weight = model.embed.weight
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(ids).logsumexp(-1).mean().backward()
            optimizer.step()

    *_, last = (record.explanation for record in lazyrt.compiled_graphs())
    assert last is not None
    assert last.text == (
        "`model.embed.weight` and `model.head.weight` are one tensor now and were two"
    )


def test_other_orders_of_a_batch_and_a_head_made_anew_compile_nothing():
    def reorder(trainer):
        trainer.batch = dict(reversed(trainer.batch.items()))
        trainer.net[2] = nn.Linear(8, 3).to(DEVICE)
        lazyrt.mark_step()
        trainer.restart()

    trainer = Trainer()
    trainer.fit()
    known = lazyrt.counters()["compiles"]
    reorder(trainer)
    made = lazyrt.counters()["compiles"] - known
    trainer.fit()

    assert lazyrt.counters()["compiles"] - known == made


def test_another_model_with_an_optimizer_of_its_own_is_another_program():
    """Its layers have the same numbers in their `nn.Sequential`, and the updates the same ops."""
    Trainer(nn.Tanh()).fit()
    policy = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).to(DEVICE)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    states = [torch.full((1, 4), float(k)).to(DEVICE) for k in range(6)]
    lazyrt.mark_step()

    chosen = [functional.log_softmax(policy(state), -1)[:, 0] for state in states]
    loss = -(torch.cat(chosen) * 0.5).sum()
    loss.backward()
    optimizer.step()

    explanation = lazyrt.explain()
    assert explanation is not None
    assert "a program not seen before: " in explanation.text
    assert len(explanation.causes) == 1


@pytest.mark.parametrize(
    ("cut", "told"),
    [
        (lambda out: out[out > 0], "aten.index.Tensor at * ran on the CPU and cut"),
        (
            lambda out: out * float(out.detach().sum()),
            "read by .item() at * cut the step: graph.1",
        ),
    ],
)
def test_the_rest_of_a_first_step_that_was_cut_names_the_cut(cut, told):
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters())
    x = torch.ones(4, 6).to(DEVICE)
    lazyrt.mark_step()

    cut(net(x)).sum().backward()
    optimizer.step()

    explanation = lazyrt.explain()
    assert explanation is not None
    assert len(explanation.causes) == 1
    assert fnmatch(explanation.text, f"{told}*")


def test_momentum_that_is_switched_on_is_an_option_of_the_optimizer():
    def momentum(trainer):
        trainer.optimizer.param_groups[0]["momentum"] = 0.9

    first, *others = told_after(Trainer(), momentum)

    assert fnmatch(
        first, "the optimizer at *.py:* keeps `momentum_buffer` of each of 4 *"
    )
    # The next step reads what that one made.
    assert [text.partition(" graph.")[0] for text in others] == ["state that"]


def test_checkpointing_that_is_switched_on_is_no_change_of_dropout():
    net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Tanh()).to(DEVICE)
    x = torch.ones(4, 6).to(DEVICE)
    lazyrt.mark_step()

    def fit(*, again):
        out = checkpoint(net, x, use_reentrant=False) if again else net(x)
        net.zero_grad()
        out.sum().backward()
        lazyrt.mark_step()

    fit(again=False)
    fit(again=True)

    explanation = lazyrt.explain()
    assert explanation is not None
    (cause,) = explanation.causes
    assert cause.kind == "code_path"
    assert cause.text.startswith(
        "backward computes forward ops again, as with gradient "
    )
    assert "1 random op more, aten.native_dropout.default" in cause.text
