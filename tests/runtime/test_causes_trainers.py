"""What training programs do beside forward, backward and update, told by the cause alone."""

import collections
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import lazyrt
from tests.harness import DEVICE
from tests.runtime.causes import explained, kinds, ones

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold_and_fast"),
]


def perceptron():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(DEVICE)
    lazyrt.mark_step()
    return model


def latest():
    return explained()[-1]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_average_of_the_weights_that_begins_late_is_an_update_with_its_line(
    momentum,
):
    model, x = perceptron(), ones(3, 4)
    average = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    lazyrt.mark_step()
    for number in range(4):
        with lazyrt.step():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if number == 3:
                with torch.no_grad():
                    for mine, other in zip(
                        average.parameters(), model.parameters(), strict=True
                    ):
                        mine.mul_(0.9).add_(other, alpha=0.1)

    found = latest()
    assert kinds(found) == ["update"], found
    assert "`average." in str(found)
    assert "live tensor" not in str(found)
    assert "del" not in found.top.fix


def test_a_copy_of_the_model_before_the_loop_is_not_what_the_first_step_is_compared_with():
    model, x = perceptron(), ones(3, 4)
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lazyrt.mark_step()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()

    assert len(list(average.parameters())) == 4
    assert kinds(latest()) == ["new_program"]


def test_a_metric_that_counts_from_now_on_is_written_to_and_no_new_tensor():
    model, x = perceptron(), ones(3, 4)
    correct = torch.zeros((), device=DEVICE)
    lazyrt.mark_step()
    for counts in (False, False, True):
        with lazyrt.step():
            out = model(x)
            if counts:
                correct += (out.argmax(-1) == 0).sum()

    found = latest()
    assert kinds(found) == ["update"], found
    assert found.text.startswith("`correct` f32[] is written to at ")
    assert found.text.endswith(": +1 output, +5 operations")
    assert found.top.variable == "correct"


def test_a_target_network_that_was_just_brought_up_to_date_is_told_by_the_copy():
    online, target = perceptron(), perceptron()
    optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
    states, following = ones(3, 4), torch.zeros(3, 4).to(DEVICE)
    lazyrt.mark_step()
    for number in range(4):
        with torch.no_grad():
            goal = target(following)
        optimizer.zero_grad()
        functional.mse_loss(online(states), goal).backward()
        optimizer.step()
        if number == 2:
            target.load_state_dict(online.state_dict())

    found = latest()
    assert kinds(found) == ["same_input"], found
    assert "3 more parameters had just been copied from `online." in found.text
    assert found.top.variable.startswith("target.")
    assert "mark_step" in found.top.fix
    assert not found.unexplained


def test_a_queue_that_is_full_still_grows_by_what_it_lets_go_after_the_read():
    model = nn.Linear(4, 2).to(DEVICE)
    queue: collections.deque[torch.Tensor] = collections.deque(maxlen=2)
    x = ones(3, 4)
    lazyrt.mark_step()
    for _ in range(4):
        with lazyrt.step():
            made = model(x)
            loss = made.sum()
            if queue:
                loss = loss + torch.cat(list(queue)).sum()
            queue.append(made.detach())

    found = latest()
    assert kinds(found) == ["carried_over"], found
    assert "the list `queue` of earlier results is read as a whole" in found.text
    assert "2 inputs of this step, 1 in graph." in found.text
    assert loss.shape == ()


@pytest.mark.parametrize("in_block", [False, True])
def test_what_a_step_closure_is_given_is_told_with_the_closure(in_block):
    model, x, seen = nn.Linear(4, 2).to(DEVICE), ones(3, 4), []

    def report(number, norm):
        seen.append((number, norm.item()))

    def run(number):
        model.zero_grad()
        model(x).square().mean().backward()
        if number == 2:
            (gradient, _) = [p.grad for p in model.parameters()]
            assert gradient is not None
            lazyrt.add_step_closure(report, (number, gradient.norm()))

    lazyrt.mark_step()
    for number in range(3):
        if in_block:
            with lazyrt.step():
                run(number)
        else:
            run(number)
            lazyrt.mark_step()

    found = latest()
    assert kinds(found) == ["closure"], found
    assert found.text.startswith("live tensor `norm` f32[] created at ")
    assert (
        ", held by the closure report queued at test_causes_trainers.py:" in found.text
    )
    assert found.top.variable == "norm"
    assert found.top.fix.startswith("queue the closure in every step")
    assert len(seen) == 1


def test_a_bound_method_and_a_builtin_name_what_they_are_given():
    class Log:
        def __init__(self):
            self.values = []

        def add(self, value):
            self.values.append(value)

    log, x, texts = Log(), ones(3, 4), []
    for function in (None, log.add, log.values.append):
        with lazyrt.step():
            total = (x * 2).sum()
            if function is not None:
                lazyrt.add_step_closure(function, (x.amax() * 3,))
        texts.append(latest().text)
        lazyrt.clear_caches()

    assert total.shape == ()
    assert "held by the closure test_a_bound" not in texts[1]
    assert "live tensor `value` f32[]" in texts[1]
    assert "held by the closure Log.add queued at" in texts[1]


def test_a_running_loss_that_began_as_a_number_is_one_cause_without_marks_of_ours():
    model, x = nn.Linear(4, 2).to(DEVICE), ones(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lazyrt.mark_step()
    running = 0.0
    for _ in range(4):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.detach()

    found = latest()
    assert kinds(found) == ["state_became_input"], found
    assert "`running`, which graph.2 had as the number 0.0 at " in found.text
    assert "·" not in str(found)


@pytest.mark.parametrize("both_first", [True, False])
def test_a_network_that_is_given_one_tensor_twice_names_both(both_first):
    model, a, b = nn.Linear(4, 2).to(DEVICE), ones(3, 4), ones(3, 4) * 2
    lazyrt.mark_step()

    def alike(one, other):
        with lazyrt.step():
            return functional.cosine_similarity(model(one), model(other)).mean()

    calls = [(a, b), (b, a), (a, a)]
    for one, other in calls if both_first else [(a, a), (a, b)]:
        alike(one, other)

    found = latest()
    assert (
        len(lazyrt.compiled_graphs()) == 2 + 1
    )  # the data's own, the pair's, the one's
    assert kinds(found) == ["same_input"], found
    assert "`one` and `other` " in found.text
    assert ("are one tensor now" if both_first else "are two now") in found.text


def test_thawed_layers_and_clipped_gradients_are_two_causes_each_with_its_ops():
    model, x = perceptron(), ones(3, 4)
    model[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(model[2].parameters())
    for number in range(5):
        if number == 3:
            model[0].requires_grad_(requires_grad=True)
            optimizer.add_param_group({"params": list(model[0].parameters())})
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if number == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    on, off = explained()[-2:]
    assert kinds(on) == ["update", "code_path"], on
    assert "`model.0.weight`" in on.causes[0].text
    assert "1 more aten._foreach_norm" in on.causes[1].text
    assert "aten.mm" not in on.causes[1].text
    assert kinds(off) == ["state_became_input", "code_path"], off
    assert off.causes[0].text.endswith(", 2 fewer creations")
    assert "1 fewer aten._foreach_norm" in off.causes[1].text


def test_another_head_is_a_module_that_is_called_and_its_sizes_are_no_cause():
    body = nn.Linear(4, 8).to(DEVICE)
    heads = nn.ModuleDict({"a": nn.Linear(8, 2), "b": nn.Linear(8, 5)}).to(DEVICE)
    x = ones(3, 4)
    lazyrt.mark_step()
    for task in ("a", "a", "b"):
        body.zero_grad()
        heads.zero_grad()
        heads[task](body(x).relu()).square().mean().backward()
        lazyrt.mark_step()

    found = latest()
    assert kinds(found) == ["module_call", "module_call"], found
    assert [cause.variable for cause in found.causes] == ["heads.b", "heads.a"]
    assert not found.unexplained


def test_two_results_that_are_kept_are_both_named_with_their_lines():
    model, x, log = perceptron(), ones(3, 4), {}
    for keeps in (False, True):
        with lazyrt.step():
            hidden = model[1](model[0](x))
            out = model[2](hidden)
            if keeps:
                log["hidden"] = hidden.mean()
                log["spread"] = out.std()
            total = out.sum()
            del hidden, out

    found = latest()
    assert kinds(found) == ["live_tensor"], found
    assert found.text.count("test_causes_trainers.py:") == 2
    assert "`log['spread']`" in found.text
    assert "`log['hidden']`" in found.text
    assert total.shape == ()


def test_another_branch_in_a_loop_is_no_variable_that_it_leaves():
    cell, embed = nn.GRUCell(4, 4).to(DEVICE), nn.Embedding(6, 4).to(DEVICE)
    goal = torch.zeros(2, 4, dtype=torch.long).to(DEVICE)
    lazyrt.mark_step()

    def unroll(*, is_forced):
        state, token = torch.zeros(2, 4, device=DEVICE), goal[:, 0]
        total = torch.zeros((), device=DEVICE)
        for place in range(1, 4):
            state = cell(embed(token), state)
            total = total + state.sum()
            token = goal[:, place] if is_forced else state.argmax(-1)
        total.backward()
        lazyrt.mark_step()
        cell.zero_grad()
        embed.zero_grad()

    for is_forced in (True, True, False):
        unroll(is_forced=is_forced)

    found = latest()
    assert kinds(found) == ["code_path"], found
    assert "3 more aten.argmax.default" in found.text


def test_a_gradient_penalty_is_a_path_and_no_gradient_of_its_input():
    model, x = perceptron(), ones(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for penalises in (False, True):
        loss = model(x).mean()
        if penalises:
            inputs = x.clone().requires_grad_(requires_grad=True)
            (slope,) = torch.autograd.grad(
                model(inputs).sum(), inputs, create_graph=True
            )
            loss = loss + (slope.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    assert "live_tensor" not in kinds(latest()), latest()
    assert latest().top.kind == "code_path"


def test_what_is_after_a_fallback_is_the_fallbacks_and_the_model_no_call_less():
    model, x = nn.Linear(4, 2).to(DEVICE), ones(3, 4)
    lazyrt.mark_step()
    for picks in (False, True):
        out = model(x)
        if picks:
            out = out[(out[:, 0] > -9).nonzero().squeeze(1)]
        total = out.sum() * 2
        lazyrt.mark_step()

    first, second = explained()[-2:]
    assert kinds(first) == ["fallback"], first
    assert kinds(second) == ["fallback"], second
    assert total.shape == ()


def test_a_second_fallback_in_a_step_is_told_as_the_first_one():
    model, x = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).to(DEVICE), ones(3, 4)
    lazyrt.mark_step()
    for picks in (False, True):
        out = torch.zeros_like(x)
        for number, layer in enumerate(model):
            if picks:
                rows = torch.where(x[:, number] > 0)[0]
                out[rows] = layer(x[rows])
            else:
                out = out + layer(x)
        lazyrt.mark_step()

    found = explained()[2:]
    assert len(found) >= 2
    assert all(each.top.kind == "fallback" for each in found), "\n".join(
        map(str, found)
    )
    assert not any("as one with the rest" in each.text for each in found)


def test_a_scaler_of_losses_cuts_the_step_and_the_update_is_not_missing_besides():
    model, x = nn.Linear(4, 2).to(DEVICE), ones(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(DEVICE)
    for scales in (False, True):
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = model(x).square().mean()
        optimizer.zero_grad()
        if scales:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()

    cut = explained()[-2]
    assert cut.top.kind == "step_cut", cut
    assert "update" not in kinds(cut), cut


def test_what_the_debug_mode_ran_is_named_and_modules_called_anew_are_no_other_path():
    model, x = perceptron(), ones(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for is_eager in (False, False, True):
        optimizer.zero_grad()
        if is_eager:
            with lazyrt.eager_mode():
                hidden = model[0](x)
            out = model[2](model[1](hidden))
        else:
            out = model(x)
        out.square().mean().backward()
        optimizer.step()

    found = latest()
    assert kinds(found) == ["mode"], found
    assert "`hidden`, which the debug mode ran by itself at " in found.text
    assert found.top.variable == "hidden"


def test_training_after_a_pass_over_the_data_is_a_program_of_its_own():
    model, x = perceptron(), ones(8, 4)
    optimizer = torch.optim.Adam(model.parameters())
    with torch.no_grad():
        old = model(x).log_softmax(-1)
    lazyrt.mark_step()
    ratio = (model(x[:4]).log_softmax(-1) - old[:4]).exp()
    optimizer.zero_grad()
    ratio.mean().backward()
    optimizer.step()

    found = latest()
    assert kinds(found) in (["other_step"], ["new_program"]), found
    if found.top.kind == "other_step":
        assert " computes gradients and is a program of its own: " in found.text


def test_a_list_that_is_stacked_has_its_latest_result_too():
    model, x, losses = nn.Linear(4, 2).to(DEVICE), ones(3, 4), []
    lazyrt.mark_step()
    for number in range(4):
        loss = model(x).square().mean()
        lazyrt.mark_step()
        losses.append(loss.detach())
        if number % 2:
            assert torch.stack(losses).sum().item() > 0

    found = latest()
    assert kinds(found) == ["carried_over"], found
    assert ": 4 inputs of this step, 2 in graph." in found.text


def test_a_flip_that_is_left_out_is_a_path_and_no_variable_that_held_it():
    model, x = nn.Linear(4, 2).to(DEVICE), ones(3, 4)
    lazyrt.mark_step()
    for flips in (True, False):
        data = x.flip(-1) if flips else x
        with lazyrt.step():
            total = model(data).sum()

    assert kinds(latest()) == ["code_path"], latest()
    assert "1 fewer aten.flip.default" in latest().text
    assert total.shape == ()


def test_a_head_that_is_left_out_is_no_shorter_loop_and_no_number():
    body, main, more = (nn.Linear(4, n).to(DEVICE) for n in (4, 2, 3))
    x = ones(3, 4)
    lazyrt.mark_step()
    for weight in (0.3, 0.3, 0.0):
        for module in (body, main, more):
            module.zero_grad()
        hidden = body(x).relu()
        extra = more(hidden) if weight else None
        loss = main(hidden).square().mean() + (
            weight * extra.square().mean() if extra is not None else 0
        )
        loss.backward()
        lazyrt.mark_step()

    found = latest()
    assert found.top.kind == "module_call", found
    assert found.top.variable == "more"
    assert {"loop_count", "baked_constant"}.isdisjoint(kinds(found)), found
    assert "·" not in str(found)


def test_a_part_of_other_data_is_told_with_both_names():
    model, x, rows = nn.Linear(4, 2).to(DEVICE), ones(3, 4), ones(8, 4)
    lazyrt.mark_step()
    for is_part in (False, True):
        part = rows[:5] if is_part else x
        with lazyrt.step():
            total = model(part).sum()

    found = latest()
    assert kinds(found) == ["shape"], found
    assert "gives f32[5,4] of `rows` where `" in found.text
    assert total.shape == ()
    assert found.top.variable == "rows"


def test_more_rounds_over_a_list_of_batches_are_no_two_inputs():
    model, log = nn.Linear(4, 2).to(DEVICE), {}
    batches = [torch.full((3, 4), float(k)).to(DEVICE) for k in range(4)]
    lazyrt.mark_step()
    for rounds in (2, 4):
        model.zero_grad()
        total = torch.zeros((), device=DEVICE)
        for batch in batches[:rounds]:
            loss = model(batch).square().mean()
            loss.backward()
            total = total + loss.detach()
        if rounds == 4:
            log["mean"] = total / rounds
        lazyrt.mark_step()

    found = latest()
    assert kinds(found) == ["loop_count", "live_tensor"], found
    assert "came 4 times instead of 2" in found.text


def test_a_backward_pass_for_a_step_closure_alone_is_the_closures():
    model = nn.Linear(4, 2).to(DEVICE)
    seen: list[torch.Tensor] = []
    for size in (3, 5):
        x = ones(size, 4)
        lazyrt.mark_step()
        with lazyrt.step():
            loss = model(x).square().mean()
            loss.backward()
            if size == 5:
                gradient = next(model.parameters()).grad
                assert gradient is not None
                lazyrt.add_step_closure(seen.append, (gradient.abs().max(),))
                del gradient
            model.zero_grad()

    found = latest()
    assert kinds(found) == ["input_shape", "closure"], found
    assert "queued at" in found.causes[1].text
    assert len(seen) == 1


def test_a_metric_of_what_wants_gradients_is_one_cause_with_what_backward_would_read():
    model, x = perceptron(), ones(3, 4)
    hits = torch.zeros(2, device=DEVICE)
    lazyrt.mark_step()
    for counts in (False, True):
        with lazyrt.step():
            out = model(x)
            if counts:
                hits += out.softmax(-1).sum(0)

    assert kinds(latest()) == ["update"], latest()
    assert latest().text.startswith("`hits` f32[2] is written to at ")
