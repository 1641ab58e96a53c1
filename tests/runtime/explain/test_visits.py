"""What the program does on each line: branches, calls, loops, random numbers, groups."""

import pytest
import torch
from torch import nn

import lazyrt
from tests.harness import DEVICE
from tests.runtime.causes import explained, kinds, ones
from tests.runtime.explain.shared import latest, the_cause

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold"),
]


def test_another_branch_quotes_its_line_even_after_many_equal_steps():
    x = ones(4, 4)
    lazyrt.mark_step()

    def step(number):
        with lazyrt.step():
            y = (x @ x).tanh()
            if number > 20:
                y = y.relu()
            return y.sum()

    for number in range(22):
        step(number)

    cause = the_cause("code_path")
    line = step.__code__.co_firstlineno + 4
    assert cause.text == (
        f"code path changed: `y = y.relu()` at test_visits.py:{line} is new: "
        "`aten.relu.default`"
    )
    # `tanh` is read by another op, and is the same value.
    assert cause.edits == (1, 0, 0)
    assert len(lazyrt.compiled_graphs()) == 2


def test_an_op_in_the_place_of_another_one_is_new_and_the_other_one_gone():
    x = ones(4, 4)
    lazyrt.mark_step()

    def step(act):
        with lazyrt.step():
            return (act(x @ x) * 2).sum()

    step(torch.relu)
    step(torch.tanh)

    found = explained()[-1]
    assert kinds(found) == ["code_path"]
    assert "`aten.tanh.default` at test_visits.py:" in found.text
    assert "`aten.relu.default` at test_visits.py:" in found.text
    assert "is gone" in found.text
    assert found.unexplained == 0


def test_ops_more_on_a_line_that_ran_once_are_no_loop():
    x, y = ones(4, 4), ones(4, 4)
    lazyrt.mark_step()

    def attend(mask):
        with lazyrt.step():
            bias = x * 2 + y * 3
            # One line, as a library's module is: a mask is merged with what was there.
            scores = (x.view(2, 8).relu().view(4, 4) @ y.view(8, 2).tanh().view(4, 4) + (bias if mask is None else (bias.view(2, 8) + mask.view(2, 8)).view(4, 4)))  # fmt: skip
            return scores.sum()

    attend(None)
    attend(x)

    found = explained()[-1]
    assert kinds(found) == ["code_path"], found


def test_an_argument_of_a_librarys_op_has_its_name_in_torch():
    dropout, x = nn.Dropout(0.1).to(DEVICE), ones(4, 4)
    lazyrt.mark_step()
    for dropout.p in (0.1, 0.3):
        with lazyrt.step():
            y = dropout(x)

    assert y.shape == x.shape
    cause = the_cause("baked_constant")
    assert "constant changed: `p` of aten.native_dropout.default" in cause.text
    assert cause.text.endswith(" is 0.3, was 0.1")


def test_an_operand_that_was_absent_is_a_tensor_now():
    x, weight = ones(4, 3), ones(3)
    target = torch.zeros(4, dtype=torch.int64).to(DEVICE)
    lazyrt.mark_step()
    for given in (None, weight):
        with lazyrt.step():
            loss = nn.functional.cross_entropy(x, target, weight=given)

    assert loss.dim() == 0
    text = latest().top.text
    assert "`weight` of aten.nll_loss_forward.default" in text
    assert " is a tensor, was None" in text


class Skips(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.skipped: int | None = 0

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            if number != self.skipped:
                x = x + block(x).relu()
        return x


def test_a_layer_that_only_some_steps_call_was_not_added():
    model, x = Skips().to(DEVICE), ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lazyrt.mark_step()
    for model.skipped in (0, 0, None):
        with lazyrt.step():
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()

    cause = latest().top
    assert cause.kind == "module_call"
    assert cause.variable == "model.blocks.0"
    assert cause.text.startswith("module `model.blocks.0` is used at test_visits.py:")
    assert cause.text.endswith(", was not used in graph.1")
    assert "use the same modules in each step" in cause.fix


@pytest.mark.parametrize(("before", "now"), [(2, 3), (3, 2)])
def test_a_loop_gives_both_numbers_of_rounds(before, now):
    x = ones(4, 4)
    lazyrt.mark_step()

    def run(rounds):
        with lazyrt.step():
            y = x
            for _ in range(rounds):
                y = torch.tanh(y) * 3 - y
            return y.sum()

    run(before)
    run(now)

    (cause,) = explained()[-1].causes
    assert cause.kind == "loop_count"
    assert cause.text.startswith("the loop at test_visits.py:")
    assert cause.text.endswith(f" ran {now} times, {before} in graph.1")


def test_a_line_that_records_an_op_twice_a_round_gives_the_number_of_rounds():
    x = torch.full((3,), 9.0).to(DEVICE)
    lazyrt.mark_step()

    def root(rounds):
        with lazyrt.step():
            guess = x / 2
            for _ in range(rounds):
                guess = (guess + x / guess) / 2
            return guess

    root(3)
    root(5)

    (cause,) = explained()[-1].causes
    assert cause.kind == "loop_count"
    assert " ran 5 times, 3 in graph.1" in cause.text


def test_rounds_of_a_recurrent_cell_are_a_loop_with_its_gradients():
    cell, out = nn.GRUCell(3, 4).to(DEVICE), nn.Linear(4, 3).to(DEVICE)
    x = ones(2, 3)
    lazyrt.mark_step()
    for rounds in (3, 4):
        state, y = torch.zeros(2, 4, device=DEVICE), x
        for _ in range(rounds):
            state = cell(y, state)
            y = out(state)
        y.square().mean().backward()
        lazyrt.mark_step()
        cell.zero_grad()
        out.zero_grad()
        del state, y

    found = explained()[-1]
    assert kinds(found) == ["loop_count"], found
    assert "ran 4 times, 3 in graph.1" in found.text


def test_a_longer_sequence_comes_before_the_rounds_that_follow_from_it():
    lstm = nn.LSTM(4, 3, batch_first=True).to(DEVICE)

    def run(length):
        x = ones(2, length, 4)
        lazyrt.mark_step()
        with lazyrt.step(), torch.no_grad():
            return lstm(x)[0].sum()

    run(4)
    run(6)

    found = explained()[-1]
    assert kinds(found) == ["input_shape", "loop_count"], found
    assert found.top.variable == "x"
    assert found.causes[1].text.endswith(
        "ran 6 times, 4 in graph.1, as many as `x` is long"
    )


def test_more_random_numbers_name_the_op_and_what_reads_them_follows():
    x = ones(4, 4)
    lazyrt.mark_step()

    def step(*, noisy):
        with lazyrt.step():
            y = x * 2
            if noisy:
                noise = torch.randn(4, 4, device=DEVICE)
                y = y + noise
                del noise
            out = (y @ y).sum()
            del y
        return out

    step(noisy=False)
    step(noisy=True)

    (cause,) = explained()[-1].causes
    assert cause.kind == "rng"
    line = step.__code__.co_firstlineno + 4
    assert cause.text == (
        f"aten.randn.default at test_visits.py:{line} draws random numbers 1 time, 0 in graph.1"
    )


def test_what_modules_draw_at_one_line_is_added_up():
    class Noisy(torch.nn.Module):
        is_on = False

        def forward(self, x):
            if self.is_on:
                x = x + torch.randn(4, 4, device=DEVICE)
            return x @ x

    model = torch.nn.Sequential(Noisy(), Noisy(), Noisy())
    x = ones(4, 4)
    for Noisy.is_on in (False, True):
        with lazyrt.step():
            total = model(x).sum()
    del total

    (cause,) = explained()[-1].causes
    assert cause.kind == "rng"
    assert " draws random numbers 3 times, 0 in graph.1" in cause.text


def test_a_chain_of_random_numbers_without_a_boundary_grows_from_graph_to_graph():
    x = ones(3)
    lazyrt.mark_step()
    for rounds in (1, 2, 3):
        total = x
        for _ in range(rounds):
            total = total + torch.randn(3, device=DEVICE)
        float(total.sum())
        lazyrt.mark_step()
        del total

    found = [each.top for each in explained()[1:]]
    assert {each.kind for each in found} <= {"loop_count", "rng"}
    assert all("test_visits.py:" in each.text for each in found)


def test_buckets_that_are_filled_in_another_way_are_a_regrouping():
    gradients = [ones(8) * k for k in range(5)]
    lazyrt.mark_step()

    def step(groups):
        with lazyrt.step():
            made = [g * 2 for g in gradients]
            out = [torch.cat([made[k] for k in group]) for group in groups]
            del made
            results = [o.tanh() for o in out]
            del out
        return results

    step([(0, 1), (2, 3, 4)])
    step([(0, 1, 2, 3), (4,)])

    found = explained()[-1]
    assert kinds(found) == ["regrouped"]
    assert (
        "joins the same tensors in other groups: of 1 and 4, of 2 and 3 in"
        in found.text
    )
    assert "flush the buckets" in found.top.fix
    assert found.unexplained == 0


def test_an_op_that_reads_another_value_is_named_with_its_line():
    layer, target = nn.Linear(4, 4).to(DEVICE), ones(2, 2, 4)
    lazyrt.mark_step()

    def run(*, forces):
        with lazyrt.step():
            first = layer(target[:, 0])
            second = layer(target[:, 1] if forces else first)
            return (first - target[:, 1]).square().mean() + second.square().mean()

    run(forces=True)
    run(forces=False)

    (cause,) = explained()[-1].causes
    assert cause.now is not None
    assert cause.now.line == run.__code__.co_firstlineno + 3
    assert f"at {cause.now} reads " in cause.text


def test_micro_batches_in_one_graph_are_told_with_their_number_and_lines():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(DEVICE)
    batches = [ones(3, 4) * k for k in range(8)]
    lazyrt.mark_step()

    def update():
        for x in batches:
            loss = model(x).square().mean() / 8
            loss.backward()
        lazyrt.mark_step()

    update()

    found = explained()[-1]
    line = update.__code__.co_firstlineno + 2
    assert found.block is not None
    assert found.block.times == 8
    assert f"-op block 8 times (test_visits.py:{line}-{line + 1})" in str(found)


def test_layers_of_a_model_are_no_repeated_block():
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))).to(DEVICE)
    with lazyrt.step():
        out = layers(ones(2, 4)).sum()

    assert explained()[-1].block is None, out


def test_another_function_that_computes_a_value_is_a_path_and_no_constant():
    x = ones(4, 3)
    lazyrt.mark_step()

    def focal(logits):
        return (torch.log_softmax(logits, -1).exp() * 0.5).sum()

    for loss in (lambda logits: torch.log_softmax(logits, 1).sum(), focal):
        with lazyrt.step():
            out = loss(x)

    assert out.dim() == 0
    assert "`aten.exp.default`" in the_cause("code_path").text


def test_a_new_part_that_also_draws_random_numbers_is_a_path():
    x = ones(4, 4)
    lazyrt.mark_step()

    def penalty(y):
        mix = torch.rand(4, 1, device=DEVICE)
        mixed = mix * y
        norm = (mixed @ mixed).tanh().square().sum(1).sqrt()
        return (norm - 1).square().mean()

    def step(*, penalised):
        with lazyrt.step():
            y = x
            for _ in range(8):
                y = (y @ x).tanh()
            loss = y.sum()
            if penalised:
                loss = loss + penalty(x)
        return loss

    step(penalised=False)
    step(penalised=True)

    text = the_cause("code_path").text
    assert "and 4 more lines are new: " in text
    assert " at test_visits.py:" in text


def test_another_line_that_does_the_same_with_other_tensors_is_quoted_with_the_old_one():
    x, y = ones(2, 3), ones(2, 3)
    for joins_both in (True, False):
        with lazyrt.step():
            a, b = x.exp(), y.sin()
            c = torch.cat([a, b]) if joins_both else None
            c = torch.cat([b, b]) if c is None else c
            out = (c.sum() + a.sum() + b.sum()).sqrt()
            del a, b, c

    assert out.dim() == 0
    text = the_cause("code_path").text
    assert "`c = torch.cat([b, b]) if c is None else c` at test_visits.py:" in text
    assert "`c = torch.cat([a, b]) if joins_both else None` at test_visits.py:" in text


def test_a_branch_that_some_rounds_take_is_no_other_number_of_rounds():
    given, weight = ones(4, 3), ones(3, 3)

    def decode(forced):
        with lazyrt.step():
            word, words = given[0], []
            for t in range(4):
                words.append((word @ weight).tanh())
                word = given[t].exp() if t < forced else words[-1]
            return torch.stack(words).sum()

    decode(3)
    decode(1)

    assert kinds(explained()[-1]) == ["code_path"]
    assert "`aten.exp.default` at test_visits.py:" in explained()[-1].text


def test_all_that_a_loop_records_goes_with_its_rounds():
    x, weight = ones(6, 2, 3), ones(3, 3)

    def unroll(rounds):
        with lazyrt.step():
            state, loss = torch.zeros(2, 3, device=DEVICE), 0.0
            for t in range(rounds):
                word = x[t].exp()
                state = (word + state @ weight).tanh()
                loss = loss + (state - word).square().mean()
            return loss

    unroll(3)
    unroll(5)

    assert "ran 5 times, 3 in graph.1" in the_cause("loop_count").text


def test_what_backward_computes_otherwise_goes_with_the_forward_pass():
    layer, x = nn.Linear(3, 3).to(DEVICE), ones(2, 3)
    for bound in (None, 0.1):
        with lazyrt.step():
            layer.zero_grad()
            y = layer(x) * 2
            if bound is not None:
                y = y.clamp(min=bound)
            y.square().mean().backward()
            del y

    assert "`y = y.clamp(min=bound)`" in the_cause("code_path").text


def test_a_gradient_that_is_cut_names_what_backward_read():
    actor, critic, x = (*(nn.Linear(3, 1).to(DEVICE) for _ in range(2)), ones(2, 3))
    for is_cut in (False, True):
        with lazyrt.step():
            actor.zero_grad()
            critic.zero_grad()
            value = critic(x)
            weight = value.detach() if is_cut else value
            (actor(x).exp() * weight + value.square()).mean().backward()
            del value, weight

    cause = the_cause("code_path")
    assert cause.text.startswith("code path changed in backward alone: ")
    assert "reading the aten.exp.default at test_visits.py:" in cause.text
    assert "detached" in cause.fix


def test_an_op_put_in_front_of_a_module_is_a_path_and_no_other_input():
    layer, x = nn.Conv1d(2, 2, 3, padding=1).to(DEVICE), ones(1, 2, 5)
    for mode in ("zeros", "reflect"):
        layer.padding_mode = mode
        with lazyrt.step():
            y = layer(x).sum()

    assert y.dim() == 0
    assert "aten.reflection_pad1d.default" in the_cause("code_path").text


class Refiner(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3)

    def forward(self, x):
        return torch.tanh(self.body(x) + x)


def test_a_module_that_is_called_twice_has_its_name_and_is_no_loop():
    model, x = Refiner().to(DEVICE), ones(2, 3)
    for refines in (False, True):
        y = x
        if refines:
            y = model(y)
        y = model(y)
        lazyrt.mark_step()

    assert y.dim() == 2
    text = the_cause("loop_count").text
    assert text.startswith("the ops of module `Refiner` at test_visits.py:")
    assert " ran 2 times, 1 in graph." in text


def test_what_another_line_makes_in_the_place_of_a_value_names_both_lines():
    def of_the_user():
        return torch.linspace(0, 1, 3, device=DEVICE)

    def by_default():
        return torch.linspace(0, 2, 3, device=DEVICE)

    x = ones(3)
    for begin in (of_the_user, by_default):
        y = (x + begin()).exp()
        lazyrt.mark_step()

    assert y.dim() == 1
    cause = the_cause("code_path")
    assert cause.before.function == "of_the_user"
    assert cause.now.function == "by_default"
    assert f"aten.linspace.default at {cause.now} is in the place of" in cause.text
    assert cause.text.endswith(f" at {cause.before}")
