"""Programs in the styles that people write. Every graph after the first has its one cause."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import lazyrt
from tests.harness import DEVICE
from tests.runtime.causes import Tied, kinds, ones

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold_and_fast"),
]


def later_explanations():
    """Return why each graph after the first is new."""
    found = [record.explanation for record in lazyrt.compiled_graphs()[1:]]
    assert all(explanation is not None for explanation in found)
    return found


def last():
    return later_explanations()[-1]


def train(model, optimizer, x, loss=lambda y: y.pow(2).mean()):
    optimizer.zero_grad()
    loss(model(x)).backward()
    optimizer.step()
    lazyrt.mark_step()


@pytest.mark.slow
def test_two_networks_with_an_optimizer_each_are_two_programs_and_nothing_else():
    """A GAN: sizes differ between its two steps wherever one looks, and are no causes."""
    maker, critic = nn.Linear(3, 4).to(DEVICE), nn.Linear(4, 1).to(DEVICE)
    of_maker, of_critic = (
        torch.optim.Adam(net.parameters()) for net in (maker, critic)
    )
    for rows in (5, 5, 5, 2):
        real = ones(rows, 4)
        fake = maker(ones(rows, 3))
        of_critic.zero_grad()
        (critic(fake.detach()).exp().mean() + critic(real).tanh().mean()).backward()
        of_critic.step()
        lazyrt.mark_step()
        of_maker.zero_grad()
        critic(fake).sigmoid().log().mean().backward()
        of_maker.step()
        lazyrt.mark_step()

    assert [kinds(explanation) for explanation in later_explanations()] == [
        ["other_step"],
        ["state_became_input"],
        ["state_became_input"],
        ["input_shape"],
        ["input_shape"],
    ]


class Maker(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.Linear(3, 5), nn.Linear(5, 5)
        self.more = nn.ModuleList()
        self.drop = nn.Dropout(0.1)
        self.is_bounded = False

    def forward(self, noise):
        hidden = torch.relu(self.inner(noise))
        for layer in self.more:
            hidden = torch.relu(layer(hidden))
        hidden = torch.tanh(hidden) if self.is_bounded else hidden
        return self.last(self.drop(hidden))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("bounded", "code_path"),
        ("eval", "train_eval"),
        ("added", "module_added"),
        ("cut", "step_cut"),
    ],
)
def test_what_changes_a_round_of_two_optimizers_is_the_one_cause_of_both_its_graphs(
    change, expected
):
    """The second graph reads what the first one computed, and has no other cause for that."""
    maker, critic = Maker().to(DEVICE), nn.Linear(5, 1).to(DEVICE)
    of_maker, of_critic = (
        torch.optim.SGD(net.parameters(), lr=0.1) for net in (maker, critic)
    )
    for number in range(3):
        changed = number == 2
        maker.is_bounded = changed and change == "bounded"
        maker.train(not (changed and change == "eval"))
        if changed and change == "added":
            maker.more.append(nn.Linear(5, 5).to(DEVICE))
        fake = maker(ones(5, 3))
        of_critic.zero_grad()
        critic(fake.detach()).exp().mean().backward()
        of_critic.step()
        of_maker.zero_grad()
        loss = critic(fake).sigmoid().mean()
        if changed and change == "cut":
            lazyrt.mark_step()
        loss.backward()
        of_maker.step()

    found = later_explanations()[1:]  # behind those of the first round
    assert [kinds(each) for each in found] == [[expected]] * 2
    assert not any(each.unexplained for each in found)


def test_what_a_module_keeps_of_its_forward_pass_is_named_beside_a_read():
    """It is no parameter, although the module holds it."""
    model = Maker().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lazyrt.mark_step()
    for number in range(4):
        optimizer.zero_grad()
        out = model(ones(5, 3))
        loss = out.pow(2).mean()
        if number == 3:
            model.feature = out.detach().exp()
            loss.item()
        loss.backward()
        optimizer.step()
        lazyrt.mark_step()

    assert set(kinds(later_explanations()[-2]) + kinds(last())) == {
        "step_cut",
        "live_tensor",
    }
    assert "live tensor `model.feature` f32[5,5]" in later_explanations()[-2].text


def test_an_unrolled_recurrent_layer_names_its_sequence_first():
    layer = nn.LSTM(5, 6, batch_first=True).to(DEVICE)
    for length in (4, 7):
        sequence = ones(3, length, 5)
        layer(sequence)[0].pow(2).mean().backward()
        lazyrt.mark_step()
        layer.zero_grad()

    top, loop = last().causes
    assert top.text.startswith("input `sequence` f32[3,4,5] is now f32[3,7,5]")
    assert loop.text.endswith(
        "came 7 times instead of 4, as many as `sequence` is long"
    )
    assert loop.fix == top.fix
    assert "pad it" in top.fix


def test_an_episode_of_another_length_is_its_rounds_and_what_is_as_long():
    policy = nn.Linear(4, 2).to(DEVICE)
    for length in (3, 6):
        chosen = [policy(ones(4) * t).log_softmax(-1)[0] for t in range(length)]
        rewards = torch.arange(float(length)).to(DEVICE)
        (-(torch.stack(chosen) * rewards).sum()).backward()
        lazyrt.mark_step()
        policy.zero_grad()

    assert kinds(last()) == ["input_shape", "loop_count"]
    assert last().top.variable == "rewards"
    assert "came 6 times instead of 3" in last().causes[1].text


def test_fewer_micro_batches_at_the_end_of_an_epoch_are_rounds_of_a_loop():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(DEVICE)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for batches in (4, 2):
        for _ in range(batches):
            (model(ones(3, 4)).pow(2).mean() / 4).backward()
        sgd.step()
        sgd.zero_grad()
        lazyrt.mark_step()

    (cause,) = last().causes
    assert cause.kind == "loop_count"
    assert cause.text.endswith("came 2 times instead of 4")
    assert last().unexplained == 0


def test_a_state_that_each_step_hands_to_the_next_is_told_once_with_what_made_it():
    cell = nn.GRUCell(5, 6).to(DEVICE)
    state = torch.zeros(2, 6, device=DEVICE)
    for _ in range(3):
        state = cell(ones(2, 5), state).detach()
        lazyrt.mark_step()

    (explanation,) = later_explanations()
    (cause,) = explanation.causes
    assert cause.kind == "state_became_input"
    assert cause.variable == "state"
    assert cause.text.startswith(
        "`state`, which graph.1 made by aten.zeros.default at test_causes_styles.py:"
    )
    assert "is a result of step" in cause.text


def test_guidance_that_sets_in_late_is_a_branch_and_no_regrouping():
    """Sampling with a model whose input is joined from two tensors, once and then twice."""
    net = nn.Linear(5, 4).to(DEVICE)

    def noise(x, t, guides):
        found = net(torch.cat([x, t], 1))
        if guides:
            found = found + (found - net(torch.cat([x, 0 * t], 1)))
        return found

    for guides in (False, False, True):
        with torch.no_grad(), lazyrt.step():
            out = noise(ones(2, 4), ones(2, 1), guides)
    del out

    assert kinds(last()) == ["code_path"]
    assert last().top.now.line == noise.__code__.co_firstlineno + 3


def test_another_dtype_under_autocast_leaves_no_other_tensors_alive():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(DEVICE)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(DEVICE, dtype=dtype):
            y = net(ones(3, 4))
        total = y.sum()
        del y
        lazyrt.mark_step()

    assert total.dtype == torch.float16
    assert kinds(last()) == ["dtype"]


def test_another_activation_is_told_with_its_module_and_not_with_what_it_saves():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(DEVICE)
    for activation in (nn.ReLU(), nn.GELU()):
        net[1] = activation
        with lazyrt.step():
            out = net(ones(2, 4)).sum()
    del out

    (cause,) = last().causes
    assert cause.kind == "code_path"
    assert "1 more aten.gelu.default, 1 fewer aten.relu.default" in cause.text
    assert "(in module `1`)" in cause.text


def test_weights_that_are_tied_later_are_one_tensor_now_and_no_module_is_gone():
    model, ids = Tied().to(DEVICE), torch.arange(6).to(DEVICE)
    lazyrt.mark_step()
    for ties in (False, True):
        if ties:
            model.head.weight = model.embed.weight
        with lazyrt.step():
            out = model(ids).logsumexp(-1).sum()
    del out

    (cause,) = last().causes
    assert cause.kind == "same_input"
    assert (
        "`model.embed.weight` and `model.head.weight` are one tensor now" in cause.text
    )


def test_a_checkpoint_that_holds_the_memory_is_named_beside_the_parameters():
    """The load copies nothing: parameters and checkpoint are one memory until the update."""
    model = nn.Linear(4, 2).to(DEVICE)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, sgd, ones(2, 4))
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    lazyrt.mark_step()
    model.load_state_dict(saved)
    train(model, sgd, ones(2, 4))

    cause = last().top
    assert cause.kind == "donation"
    assert cause.variable.startswith("model.")
    assert "are overwritten in place, but `saved['" in cause.text
    assert "hold their data now" in cause.text


def test_data_that_a_step_copied_from_a_tensor_that_is_gone_is_told_as_that():
    state = ones(4)
    for copies in (False, True):
        if copies:
            saved = state.clone()
            lazyrt.mark_step()
            state.copy_(saved)
            del saved
        with lazyrt.step():
            state.add_(1)

    cause = last().top
    assert cause.kind == "donation"
    assert "data came from `saved` in this step" in cause.text
    assert "end the step after the copy" in cause.fix


def test_a_decay_that_is_set_later_is_an_option_of_the_optimizer():
    model = nn.Linear(4, 3).to(DEVICE)
    groups: list[dict[str, Any]] = [
        {"params": [model.weight]},
        {"params": [model.bias]},
    ]
    sgd = torch.optim.SGD(groups, lr=0.1)
    for decay in (0.0, 0.0, 0.01):
        sgd.param_groups[0]["weight_decay"] = decay
        train(model, sgd, ones(6, 4))

    (cause,) = last().causes
    assert cause.kind == "update"
    assert "the optimizer's update at test_causes_styles.py:" in cause.text
    assert "computes something else: 1 more aten._foreach_add.List" in cause.text
    assert "weight_decay" in cause.fix


def test_an_update_that_begins_after_some_steps_is_named_without_state_too():
    model = nn.Linear(4, 3).to(DEVICE)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(4):
        sgd.zero_grad()
        model(ones(2, 4)).pow(2).sum().backward()
        if number > 1:
            sgd.step()
        lazyrt.mark_step()

    (cause,) = last().causes
    assert cause.kind == "update"
    assert "runs in this step and did not in graph.1: 2 parameters" in cause.text
    assert "one graph each" in cause.fix


def test_an_average_of_weights_that_begins_later_is_an_update_and_no_call():
    model = nn.Linear(4, 4).to(DEVICE)
    average = copy.deepcopy(model)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    lazyrt.mark_step()
    for number in range(2):
        with lazyrt.step():
            sgd.zero_grad()
            model(ones(2, 4)).pow(2).mean().backward()
            sgd.step()
            if number:
                with torch.no_grad():
                    for mean, weight in zip(
                        average.parameters(), model.parameters(), strict=True
                    ):
                        mean.mul_(0.9).add_(weight, alpha=0.1)

    (cause,) = last().causes
    assert cause.kind == "update"
    assert "2 parameters more are updated" in cause.text
    assert "`average.weight`" in cause.text


def test_a_number_of_another_path_belongs_to_the_path():
    net, target = nn.Linear(4, 3).to(DEVICE), torch.tensor([0, 1]).to(DEVICE)
    for smoothing in (0.0, 0.0, 0.1):
        with lazyrt.step():
            loss = F.cross_entropy(net(ones(2, 4)), target, label_smoothing=smoothing)
        del loss

    assert kinds(last()) == ["code_path"]


def test_a_rate_of_dropout_is_no_mode_of_the_model_while_both_sides_train():
    dropout = nn.Dropout(0.0)
    net = nn.Sequential(nn.Linear(4, 8), dropout, nn.Linear(8, 2)).to(DEVICE)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    for rate in (0.0, 0.0, 0.3):
        dropout.p = rate
        train(net, sgd, ones(2, 4))

    (cause,) = last().causes
    assert cause.kind == "train_eval"
    assert cause.text.startswith("dropout is on, before it was off: ")
    assert "(in module `1`)" in cause.text
    assert "set the rate once" in cause.fix


@pytest.mark.slow
def test_tokens_of_another_length_are_the_only_cause_in_a_language_model():
    """Attention views one line's tensors in two ways; where all sizes change, none is a cause."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).to(DEVICE)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    for length in (8, 12):
        whole = torch.ones(2, length, dtype=torch.long).to(DEVICE)
        batch = {
            "input_ids": whole,
            "attention_mask": whole.clone(),
            "labels": torch.tensor([0, 1]).to(DEVICE),
        }
        lazyrt.mark_step()
        model(**batch).loss.backward()
        sgd.step()
        sgd.zero_grad()
        lazyrt.mark_step()

    (cause,) = last().causes
    assert cause.kind == "input_shape"
    assert "i64[2,8] is now i64[2,12]" in cause.text


def test_random_numbers_that_are_read_each_round_compile_once():
    """The state of random numbers is an input; only a loop without boundaries grows the graph."""
    for _ in range(4):
        float(torch.randn(5, 5, device=DEVICE).sum())

    assert lazyrt.counters()["compiles"] == 1


def test_a_chain_of_random_numbers_without_boundaries_says_so():
    start = torch.zeros(4, device=DEVICE)
    lazyrt.mark_step()

    def walk(rounds):
        at = start
        for _ in range(rounds):
            at = at + torch.randn(4, device=DEVICE)
        return float(at.sum())

    for rounds in (1, 2, 3):
        walk(rounds)

    top = last().top
    assert top.kind == "loop_count"
    assert "came 3 times instead of 2" in top.text
    assert (
        "random numbers are drawn 1 time more in one step, as no boundary came between the "
        "rounds" in top.text
    )
    assert top.text.endswith("the number grows from graph to graph: 1, 2, 3")


def test_a_slice_that_moves_is_told_and_compiles_nothing_more():
    data = torch.arange(64.0).reshape(16, 4).to(DEVICE)
    lazyrt.mark_step()
    for start in range(0, 16, 4):
        with lazyrt.step():
            part = (data[start : start + 4] * 2).exp().sum()
    del part

    (explanation,) = later_explanations()
    (cause,) = explanation.causes
    assert cause.kind == "lifted_number"
    where = (
        "the position of a slice in `data[start : start + 4]` at test_causes_styles.py:"
    )
    assert cause.text.startswith(where)
    assert cause.variable == "start"
    assert cause.fix == "nothing to do: further positions compile nothing"


def test_a_loop_that_fills_the_pending_graph_up_to_the_limit_is_named():
    x = torch.ones(3, 3).to(DEVICE)
    lazyrt.mark_step()
    with lazyrt.config.scoped(max_pending_nodes=110):
        for _ in range(130):
            x = (x * 1.5).t()

    found = lazyrt.compiled_graphs()[-1].explanation
    assert found is not None
    (cause,) = found.causes
    assert cause.kind == "missing_boundary"
    assert (
        "more than 110 pending ops cut the graph at test_causes_styles.py:"
        in cause.text
    )
    assert " recorded 2 ops 1" in cause.text
    assert "lazyrt.mark_step()" in cause.fix
    assert "config.max_pending_nodes" in cause.fix
    assert cause.now is not None


def test_programs_of_other_lines_that_are_little_alike_are_no_relatives():
    with lazyrt.step():
        first = ones(5, 5).exp().sum()
    with lazyrt.step():
        second = torch.randn(4, device=DEVICE).exp() * ones(4)
    del first, second

    assert kinds(last()) == ["new_program"]
