"""What holds of every explanation, and what needs none: it compiles nothing."""

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
    pytest.mark.usefixtures("cold"),
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
    monkeypatch.setattr(cache_miss.hooks, "names", broken)

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
