"""One planted cause for each test: the explanation's first cause must be it."""

import re
from typing import Any

import pytest
import torch
from IPython.lib.pretty import pretty
from torch import nn

import lazyrt
from lazyrt.observe import events
from tests.harness import DEVICE, cold_start, recorded

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold_and_fast"),
]


def data(*shape, dtype=torch.float32):
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape).to(dtype)


def on_device(*shape, dtype=torch.float32):
    return data(*shape, dtype=dtype).to(DEVICE)


def latest():
    found = lazyrt.explain()
    assert found is not None
    return found


def explanations():
    """Return the explanation of each compiled graph, the earliest first."""
    found: list[Any] = [each.explanation for each in lazyrt.compiled_graphs()]
    return found


def program(x, *, rounds=2, branch=False, scale=0.5):
    y = x @ x.T
    for _ in range(rounds):
        y = torch.tanh(y) * 3 - y
    if branch:
        y = torch.relu(y)
    return (y * scale).sum()


def run(*args, **kwargs):
    with lazyrt.step():
        return program(*args, **kwargs)


def test_the_first_graph_of_a_process_has_no_other_reason():
    run(on_device(4, 8))

    assert latest().top.kind == "first_trace"
    assert latest().text == "the first graph of this process"


def test_another_shape_of_an_input_names_it_and_both_shapes():
    x = on_device(4, 8)
    run(x)
    x = on_device(5, 8)
    run(x)

    top = latest().top
    assert top.kind == "input_shape"
    assert top.variable == "x"
    assert "input `x` f32[4,8] is now f32[5,8]" in top.text
    assert latest().causes == (top,)
    assert latest().unexplained == 0


def test_another_dtype_of_an_input_names_it_and_both_dtypes():
    x = on_device(4, 8)
    run(x)
    x = on_device(4, 8, dtype=torch.float64)
    run(x)

    assert latest().top.kind == "input_dtype"
    assert "f32[4,8] is now f64[4,8]" in latest().text


def test_a_number_that_is_part_of_the_graph_is_shown_with_both_values():
    def step(slope):
        x = on_device(6)
        with lazyrt.step():
            return torch.nn.functional.leaky_relu(x * 2, slope) + x

    step(0.25)
    step(0.75)

    top = latest().top
    assert top.kind == "baked_constant"
    assert re.search(r"has 0\.75 where it had 0\.25", top.text)
    assert "leaky_relu" in top.text
    assert top.variable == "slope"
    assert "takes no tensor in its place" in top.fix


def test_a_number_that_varies_in_arithmetic_becomes_an_input_and_says_so():
    x = on_device(4, 8)
    run(x, scale=0.5)
    run(x, scale=0.25)

    top = latest().top
    assert top.kind == "lifted_number"
    assert top.text.startswith("a Python number in `y * scale` at test_explain.py:")
    assert top.text.endswith("varies and is an input from now on")
    assert top.variable == "scale"

    compiled = lazyrt.counters()["compiles"]
    run(x, scale=0.125)

    assert lazyrt.counters()["compiles"] == compiled


def test_a_live_tensor_that_was_not_there_before_is_named_with_its_line_and_cone():
    x = on_device(4, 8)
    log = []

    def step(keep):
        with lazyrt.step():
            y = x @ x.T
            grad_norm = (y.square().sum()).sqrt()
            if keep:
                log.append(grad_norm)
            del grad_norm
            return y.sum()

    step(keep=False)
    step(keep=True)

    top = latest().top
    assert top.kind == "live_tensor"
    assert top.variable == "log[0]"
    assert "live tensor `log[0]` f32[] created at test_explain.py" in top.text
    assert "+1 output, +3 operations" in top.text
    assert top.taken.added == 3


def test_a_live_tensor_that_is_gone_is_named_with_its_cone():
    x = on_device(4, 8)

    def step(keep):
        with lazyrt.step():
            y = x @ x.T
            extra = (y.square().sum()).sqrt()
            if not keep:
                del extra
            return y.sum()

    step(keep=True)
    step(keep=False)

    top = latest().top
    assert top.kind == "live_tensor_gone"
    assert top.variable == "extra"
    assert top.taken.removed == 3
    assert "-1 output, -3 operations" in top.text


def test_a_tensor_that_a_closure_holds_names_the_function():
    x = on_device(4, 8)

    def make_logger(value):
        def log():
            return value

        return log

    def step(keep):
        with lazyrt.step():
            y = x @ x.T
            log = make_logger(y.exp().mean()) if keep else None
            out = y.sum()
        return out, log

    step(keep=False)
    step(keep=True)

    assert latest().top.kind == "closure"
    assert "held by the closure of log" in latest().text


def test_another_branch_of_the_program_names_the_op_and_the_line():
    x = on_device(4, 8)
    run(x)
    run(x, branch=True)

    top = latest().top
    assert top.kind == "code_path"
    assert "1 more aten.relu.default at test_explain.py" in top.text
    assert top.now is not None
    assert top.taken == (1, 0, 0)


@pytest.mark.parametrize(("before", "now"), [(2, 3), (3, 2)])
def test_a_loop_that_runs_more_or_fewer_rounds_gives_both_counts(before, now):
    x = on_device(4, 8)
    run(x, rounds=before)
    run(x, rounds=now)

    assert latest().top.kind == "loop_count"
    assert f"came {now} times instead of {before}" in latest().text


def test_a_missing_boundary_is_told_from_a_longer_loop():
    x = on_device(8)
    state = on_device(8)

    def work(state):
        return torch.sin(state) + torch.cos(x) * state

    state = work(state)
    lazyrt.mark_step()
    state = work(work(state))
    lazyrt.mark_step()

    assert latest().top.kind in {"missing_boundary", "loop_count"}
    assert latest().top.kind == "missing_boundary" or "2 times" in latest().text


def test_more_random_numbers_name_the_op_and_the_line():
    x = on_device(4, 8)

    def step(noisy):
        with lazyrt.step():
            y = x * 2
            if noisy:
                y = y + torch.randn(4, 8, device=DEVICE)
            out = (y @ y.T).sum()
            del y
        return out

    step(noisy=False)
    step(noisy=True)

    top = latest().top
    assert top.kind == "rng"
    assert "aten.randn.default at test_explain.py" in top.text


def test_buckets_that_are_filled_in_another_way_are_a_regrouping():
    grads = [(data(8) + k).to(DEVICE) for k in range(5)]

    def step(groups):
        with lazyrt.step():
            made = [g * 2 for g in grads]
            out = [torch.cat([made[k] for k in group]) for group in groups]
            del made
            results = [o.tanh() for o in out]
            del out
        return results

    step([(0, 1), (2, 3, 4)])
    step([(0, 1, 2, 3), (4,)])

    top = latest().top
    assert top.kind == "regrouped"
    assert "sizes [3, 2] became [4, 1]" in top.text
    assert latest().unexplained == 0


def test_an_op_that_ran_on_the_cpu_is_the_cause_of_both_halves():
    x = on_device(4, 8)

    def step(odd):
        y = (x @ x.T).tanh() * 2
        y = (y + 1).exp() if not odd else torch.nonzero(y).sum() + y.exp()
        out = y.square().sum()
        lazyrt.mark_step()
        return out

    step(odd=False)
    with recorded(events.CompileFinished) as found:
        step(odd=True)

    assert len(found) >= 2
    assert {each.top.kind for each in explanations()[1:]} == {"fallback"}
    assert "nonzero" in latest().text


def test_a_read_in_the_middle_of_a_step_is_a_cut():
    x = on_device(4, 8)

    def step(read):
        y = (x @ x.T).tanh() * 2
        z = y.exp().mean()
        if read:
            z.item()
        out = (y.square().sum() / z).sqrt()
        lazyrt.mark_step()
        return out

    step(read=False)
    step(read=True)

    _, first, second = explanations()
    assert first.top.kind == "step_cut"
    assert "the step ended earlier: read by .item() at test_explain.py" in first.text
    assert "instead of mark_step() at test_explain.py" in first.text
    assert second.top.kind == "step_cut"
    assert "the step began later" in second.text


LAYERS = """
import torch, lazyrt
x, w1, w2, w3, w4 = (torch.ones(4, 4).to("lazyrt") for _ in range(5))
lazyrt.mark_step()


a = (x @ w1).tanh()
{first}b = (a @ w2).exp()
{second}c = (b @ w3).relu()
d = (c @ w4).square()
lazyrt.mark_step()
"""
MARK = "lazyrt.mark_step(); "


def run_layers(first="", second=""):
    source = LAYERS.format(first=first, second=second)
    exec(compile(source, "/project/train.py", "exec"), {"__name__": "__main__"})  # noqa: S102


def test_a_moved_mark_names_both_lines():
    """Two compiles; the graph that the mark cuts names the line before and now."""
    run_layers(second=MARK)
    count = len(lazyrt.compiled_graphs())
    run_layers(first=MARK)

    first, second = explanations()[count:]
    assert first.top.kind == "step_cut"
    assert first.text == "the step was cut after line 8 before, after line 7 now"
    assert str(first.top).endswith(
        "(ops and inputs: 3 removed; before at train.py:9; now at train.py:8)"
    )
    assert second.top.kind == "step_cut"
    assert "the boundary in front of this graph came earlier" in second.text
    assert (
        "mark_step() at train.py:8 instead of mark_step() at train.py:9" in second.text
    )
    assert "2 operations that ran before it run after it now" in second.text


def test_the_same_mark_over_less_work_has_not_moved():
    """Another number of rounds ends at the same line."""

    def step(rounds):
        y = on_device(4, 8)
        for _ in range(rounds):
            y = y.tanh()
        lazyrt.mark_step()
        return y

    step(rounds=6)
    step(rounds=2)

    assert "step was cut" not in latest().text


def test_memory_that_something_else_holds_now_is_a_donation():
    def step(state, keep):
        data_of = _data(state) if keep else None
        with lazyrt.step():
            state.add_(1)
            state.mul_(2)
        return data_of

    state = on_device(8)
    step(state, keep=False)
    step(state, keep=False)
    before = len(lazyrt.compiled_graphs())
    step(state, keep=True)

    assert [each.top.kind for each in explanations()[before:]] == ["donation"]
    assert "`state` is overwritten in place" in latest().text


def _data(tensor):
    """Return the device array of a tensor, which keeps the runtime from donating it."""
    from lazyrt.frontend.buffers import state_of

    return state_of(tensor).base.data


def test_an_executable_that_was_dropped_is_named():
    x = on_device(4, 8)
    run(x)
    lazyrt.clear_caches()
    run(x)

    assert latest().top.kind == "cache_evicted"
    assert "graph.1 was compiled before, in step" in latest().text
    assert lazyrt.compiled_graphs()[0].compiles == 2


def test_state_that_the_first_step_creates_is_an_input_from_the_second_on():
    weight = nn.Parameter(on_device(4, 8))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)

    def step():
        with lazyrt.step():
            optimizer.zero_grad()
            (weight * weight).sum().backward()
            optimizer.step()

    step()
    step()

    top = latest().top
    assert top.kind == "state_became_input"
    assert top.variable == "weight.momentum_buffer"
    assert "is an input from now on" in top.text


def test_a_module_built_again_in_the_step_is_named():
    x = on_device(4, 8)
    model = nn.Sequential(nn.Linear(8, 4, device=DEVICE), nn.Tanh())
    lazyrt.mark_step()

    def step():
        with lazyrt.step():
            return model(x).sum()

    step()
    model[0] = nn.Linear(8, 4, device=DEVICE)
    step()

    top = latest().top
    assert top.kind == "module_recreated"
    assert "`model.0` was made again" in top.text


def test_a_module_of_another_size_names_its_parameter():
    x = on_device(4, 8)

    def step(width):
        with lazyrt.step():
            return model(x).sum()

    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh()).to(DEVICE)
    step(4)
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh()).to(DEVICE)
    step(6)

    assert latest().top.kind == "parameter_shape"
    assert latest().top.variable.startswith("model.0.")


@pytest.mark.parametrize("more", [1, 3])
def test_added_modules_are_named_one_and_several(more):
    x = on_device(4, 8)

    def step():
        with lazyrt.step():
            return model(x).sum()

    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(DEVICE)
    step()
    for _ in range(more):
        model.append(nn.Linear(8, 8).to(DEVICE))
    step()

    top = latest().top
    names = [f"`model.{k + 2}`" for k in range(more)]
    assert top.kind == "module_added"
    assert top.text.startswith(
        f"module {names[0]} was added"
        if more == 1
        else f"modules {', '.join(names)} were added"
    )
    assert latest().unexplained == 0


def test_a_removed_module_is_named():
    x = on_device(4, 8)

    def step():
        with lazyrt.step():
            return model(x).sum()

    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).to(DEVICE)
    step()
    del model[2]
    step()

    assert latest().top.kind == "module_removed"
    assert "`model.2` was removed" in latest().text


def test_training_and_evaluation_are_told_apart_from_other_branches():
    x = on_device(4, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
    model.to(DEVICE)

    def step():
        with lazyrt.step():
            return model(x).sum()

    step()
    model.eval()
    step()

    assert latest().top.kind == "train_eval"
    assert "runs in evaluation mode, before in training mode" in latest().text


def test_another_mode_device_or_tier_of_the_key_comes_first():
    import dataclasses

    from lazygraph.explain.why import differences

    x = on_device(4, 8)
    run(x)
    (record,) = lazyrt.compiled_graphs()
    for field, value, kind in (
        ("mode", "eager", "mode"),
        ("device", "tpu: v5", "device"),
        ("tier", "optimised", "tier"),
    ):
        changed: dict[str, Any] = {field: value}
        key = dataclasses.replace(record.key, **changed)
        other = dataclasses.replace(record, key=key)
        causes, unexplained = differences(record, other)

        assert [cause.kind for cause in causes] == [kind]
        assert value in causes[0].text
        assert unexplained == 0


def test_a_part_that_eager_debug_mode_ran_by_itself_is_the_top_cause():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).to(DEVICE)
    x = on_device(4, 8)

    def step():
        with lazyrt.step():
            return model(x).exp().sum()

    step()
    with lazyrt.eager_module(model[0]):
        step()

    top = latest().top
    assert top.kind == "mode"
    assert "the mode was `lazy` for graph.1 and is `eager` now" in top.text
    assert top.fix
    assert "test_explain.py" in str(top.now)

    compiles = lazyrt.counters()["compiles"]
    step()

    assert lazyrt.counters()["compiles"] == compiles
    x = on_device(5, 8)
    step()

    assert latest().against == "graph.1"
    assert {cause.kind for cause in latest().causes} == {"input_shape"}


def test_reads_that_op_by_op_mode_answered_are_the_cause_of_a_longer_graph():
    x = on_device(4, 8)

    def step():
        with lazyrt.step(on_read="allow"):
            y = torch.tanh(x) * 3
            if y.sum().item() > 0:
                y = y.exp() - y
            return y.cumsum(0).sum()

    step()
    with lazyrt.op_by_op_mode(barriers=False):
        step()

    assert latest().top.kind == "mode"
    assert "is `opbyop` now: a read in that mode is answered op by op and does not" in (
        latest().top.text
    )


def test_a_mode_that_ran_nothing_of_the_step_is_no_cause():
    run(on_device(4, 8))
    with lazyrt.eager_mode():
        other = on_device(3) + 1
    lazyrt.mark_step()
    run(on_device(5, 8))

    assert other.sum().item() == 9
    (cause,) = explanations()[1].causes
    assert cause.kind == "input_shape"


# ---------------------------------------------------------------- must not recompile


def test_the_order_in_which_tensors_are_made_compiles_nothing():
    x = on_device(8)
    makers = [x.exp, x.sin, lambda: x * 3, lambda: x.tanh() + 2]
    for shift in range(4):
        with lazyrt.step():
            kept = [makers[(k + shift) % 4]() for k in range(4)]
        del kept

    assert len(lazyrt.compiled_graphs()) == 1


def test_dead_constants_compile_nothing():
    x = on_device(8)
    for dead in range(3):
        with lazyrt.step():
            for number in range(dead):
                torch.full((), 9 + number, device=DEVICE) * 2
            out = (x * 2).sum()
        del out

    assert len(lazyrt.compiled_graphs()) == 1


def test_inputs_of_equal_value_or_the_same_tensor_twice_do_not_share_a_key():
    def step(a, b):
        with lazyrt.step():
            return a * 2 + b

    a, b = on_device(4), (data(4) + 1).to(DEVICE)
    step(a, b)
    step(on_device(4), on_device(4))

    assert len(lazyrt.compiled_graphs()) == 1


def test_a_learning_rate_that_passes_through_one_and_zero_compiles_nothing():
    weight = nn.Parameter(on_device(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(rate):
        optimizer.param_groups[0]["lr"] = rate
        with lazyrt.step():
            optimizer.zero_grad()
            (weight * 2).sum().backward()
            optimizer.step()

    step(0.1)
    step(0.2)
    known = len(lazyrt.compiled_graphs())
    for rate in (0.5, 1.0, 0.0, 0.25, 1.0):
        step(rate)

    assert len(lazyrt.compiled_graphs()) == known


# ---------------------------------------------------------------- combined, in general


def test_two_causes_at_once_are_both_named():
    log: list[Any] = []

    def step(rows, keep, branch):
        x = on_device(rows, 8)
        with lazyrt.step():
            y = x @ x.T
            if branch:
                y = torch.relu(y)
            if keep:
                log.append((y * y).mean())
            out = y.sum()
            del y
        return out

    step(4, keep=False, branch=False)
    step(5, keep=True, branch=False)
    assert {cause.kind for cause in latest().causes} == {"input_shape", "live_tensor"}

    log.clear()
    step(4, keep=True, branch=True)
    step(6, keep=False, branch=False)
    assert "input_shape" in {cause.kind for cause in latest().causes}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {"rows": 5, "keep": True, "noise": True}, {"input_shape", "live_tensor", "rng"}),
        ({}, {"rows": 5, "rounds": 5, "slope": 0.75}, {"input_shape", "loop_count", "baked_constant"}),
        ({}, {"branch": True, "keep": True, "slope": 0.75}, {"code_path", "live_tensor", "baked_constant"}),
        ({"keep": True, "noise": True}, {"double": True}, {"live_tensor_gone", "rng", "input_dtype"}),
    ],
)  # fmt: skip
def test_three_causes_at_once_are_all_named(first, second, expected):
    log: list[Any] = []

    def step(*, rows=4, keep=False, noise=False, rounds=2, branch=False, slope=0.25, double=False):  # fmt: skip
        x = on_device(rows, 8, dtype=torch.float64 if double else torch.float32)
        with lazyrt.step():
            y = torch.nn.functional.leaky_relu(x, slope)
            for _ in range(rounds):
                y = torch.tanh(y) * 3 - y
            if noise:
                y = y + torch.rand_like(y)
            if branch:
                y = y.cumsum(0)
            if keep:
                log.append((y * y).mean())
            out = y.sum()
            del y
        return out

    step(**first)
    log.clear()
    step(**second)

    named = {cause.kind for cause in latest().causes}
    assert expected <= named
    assert len(named) <= len(expected) + 1
    assert all(cause.fix for cause in latest().causes)


def test_the_nearest_of_all_graphs_is_compared_not_the_last():
    x = on_device(4, 8)
    run(x)
    with lazyrt.step():
        other = [torch.cumsum(x, 0).amax(1).log(), x.abs().sqrt()]
    run(x, branch=True)

    assert other
    assert latest().against == "graph.1"


def test_the_compile_and_the_lines_of_both_sides_are_part_of_the_explanation():
    x = on_device(4, 8)
    run(x)
    with recorded(events.CompileFinished) as found:
        run(x, branch=True)

    (event,) = found
    assert event.reason == latest().text
    assert latest().compile_ns == event.duration_ns
    assert latest().step == lazyrt.compiled_graphs()[-1].first_step
    assert lazyrt.explain(latest().step) is latest()
    assert "fix: " in str(latest())


def test_an_explanation_that_fails_does_not_stop_the_step(monkeypatch, caplog):
    from lazyrt.execution import cache_miss

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(cache_miss, "explain", broken)
    monkeypatch.setattr(cache_miss, "_namer", broken)

    assert run(on_device(2, 2)).isfinite().item()
    assert "explaining why graph.1 is new failed" in caplog.text
    assert latest().causes


def test_no_name_search_keeps_a_tensor_alive():
    def step(keep):
        temporary = on_device(4) * 3
        with lazyrt.step():
            out = temporary.exp()
        del temporary
        lazyrt.mark_step()
        again = out * 2
        lazyrt.mark_step()
        return again if keep else None

    live = len(lazyrt.live_tensors())
    kept = step(keep=True)

    assert len(lazyrt.live_tensors()) == live + 1
    del kept
    assert len(lazyrt.live_tensors()) == live


def test_explaining_an_unknown_step_says_which_there_are():
    run(on_device(2, 2))

    with pytest.raises(lazyrt.errors.UsageError, match=r"explain\(123456\): no step"):
        lazyrt.explain(123456)


class Bucket:
    """Gradients that wait until there are enough of them, as those of seed 004 did."""

    def __init__(self, limit, weights):
        self.limit, self.weights = limit, weights
        self.momentum: list[Any] = []
        self.waiting: list[Any] = []

    def add(self, layer, gradient):
        self.waiting.append((layer, gradient))
        if 8 * len(self.waiting) >= self.limit:
            self.flush()

    def flush(self):
        if self.waiting:
            flat = torch.cat([gradient.flatten() for _, gradient in self.waiting]) / 4
            parts = flat.split(self.weights[0].numel())
            for (layer, gradient), part in zip(self.waiting, parts, strict=True):
                self.momentum[layer].mul_(0.9).add_(part.view_as(gradient))
                self.weights[layer].sub_(self.momentum[layer], alpha=0.01)
            self.waiting.clear()


def train_in_buckets(limit, *, flush):
    weights = [data(4, 4).div(20).to(DEVICE).requires_grad_() for _ in range(5)]
    bucket = Bucket(limit, weights)
    x = on_device(2, 4)
    for _ in range(10):
        with lazyrt.step():
            hidden = x
            for weight in weights:
                hidden = torch.tanh(hidden @ weight)
            gradients = torch.autograd.grad(hidden.square().mean(), weights)
            with torch.no_grad():
                if not bucket.momentum:
                    bucket.momentum += [torch.zeros_like(w) for w in weights]
                for layer in reversed(range(5)):
                    bucket.add(layer, gradients[layer])
                if flush:
                    bucket.flush()
            del gradients, hidden


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "flush", "graphs"), [(20, False, 4), (20, True, 2), (0, False, 2)]
)
def test_gradients_carried_over_in_buckets_make_four_graphs_of_two(
    limit, flush, graphs
):
    train_in_buckets(limit, flush=flush)

    found = explanations()
    assert len(found) == graphs
    if graphs == 2:
        assert found[1].top.kind == "state_became_input"
        assert len(found[1].causes) == 1
        return
    assert [each.top.kind for each in found[1:3]] == ["carried_over"] * 2
    assert "2 tensors (`bucket.waiting[0][1]`, `bucket.waiting[1][1]`) that step" in (
        found[1].text
    )
    assert "1 tensor (`bucket.waiting[0][1]`) that step" in found[2].text
    assert "flush the buckets" in found[2].top.fix


def test_what_a_cell_shows_of_an_explanation_is_its_sentences():
    cold_start()
    for rows in (2, 3):
        x = torch.ones(rows, 4, device="lazyrt") * 2
        lazyrt.mark_step()
    explanation = lazyrt.explain()
    shown = pretty(explanation)
    assert shown == str(explanation)
    assert "fix: keep the size fixed, or pad to a fixed one" in shown
    assert explanation is not None
    assert pretty(explanation.top) == str(explanation.top)
    assert pretty(lazyrt.origin(x)).startswith("`x` f32[3,4]: output 0 of step")
