"""Op-by-op mode, and the lazy program that it is compared with."""

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.config import config
from lazyrt.execution import op_by_op
from lazyrt.observe import events
from tests.harness import DEVICE, cold_start, recorded

SIZES = ((10, 30), (30, 20), (20, 10), (10, 1))


def four_layers():
    torch.manual_seed(1)
    layers = [nn.Linear(*size).to(DEVICE) for size in SIZES]
    return layers, torch.randn(2, 10).to(DEVICE)


def outputs_of(layers, x):
    with torch.no_grad():
        return [x := layer(x) for layer in layers]


@pytest.mark.lazy_only("begins in lazy mode")
def test_a_mark_step_at_the_breakpoint_makes_two_graphs():
    """The lazy baseline, two graphs of two layers each."""
    layers, x = four_layers()
    cold_start()
    lazyrt.reset_counters()

    with recorded(events.GraphCaptured) as found, torch.no_grad():
        output2 = layers[1](layers[0](x))
        lazyrt.mark_step()
        output4 = layers[3](layers[2](output2))
        lazyrt.mark_step()

    counts = lazyrt.counters()
    assert (counts["compiles"], counts["executions"]) == (2, 2)
    assert [event.nodes for event in found] == [4, 4]
    assert not lazyrt.is_pending(output4)


@pytest.mark.lazy_only("begins in lazy mode")
def test_moving_the_breakpoint_compiles_both_halves_again():
    """The count; the reason names what is new."""
    layers, x = four_layers()

    def run(stop):
        y = x
        for number, layer in enumerate(layers):
            if number == stop:
                lazyrt.mark_step()
            y = layer(y)
        lazyrt.mark_step()

    with torch.no_grad():
        run(2)
        before = lazyrt.counters()
        with recorded(events.CompileFinished) as found:
            run(1)

    assert (lazyrt.counters() - before)["compiles"] == 2
    assert all(event.reason for event in found)


@pytest.mark.not_eager("begins in lazy mode")
def test_a_read_runs_the_nodes_of_its_cone():
    """With both switches, executions are the nodes of the cone."""
    layers, x = four_layers()
    outputs = outputs_of(layers, x)
    before = lazyrt.counters()

    with lazyrt.op_by_op_mode():
        outputs[1].cpu()

    used = lazyrt.counters() - before
    assert used["op_by_op_executions"] == 4
    assert used["executions"] == used["barriers"] == 0
    assert lazyrt.is_pending(outputs[1])


@pytest.mark.not_eager("begins in lazy mode")
def test_two_reads_run_what_both_need_twice():
    """8 + 6 nodes, six of them executed again; each says how often."""
    layers, x = four_layers()
    outputs = outputs_of(layers, x)
    before = lazyrt.counters()

    with lazyrt.op_by_op_mode(), recorded(events.OpExecuted) as found:
        outputs[3].to("cpu")
        outputs[2].to("cpu")

    used = lazyrt.counters() - before
    assert used["op_by_op_executions"] == 14
    assert used["op_by_op_repeats"] == 6
    assert [event.times for event in found] == [1] * 8 + [2] * 6
    assert {event.mode for event in found} == {"op by op"}
    graph = lazyrt.pending_graph(outputs[3])
    assert sorted(lazyrt.times_run(graph).values()) == [1, 1, 2, 2, 2, 2, 2, 2]


@pytest.mark.not_eager("begins in lazy mode")
def test_peeks_in_the_mode_run_each_node_once():
    """The memoised peek of the same two values takes eight."""
    layers, x = four_layers()
    outputs = outputs_of(layers, x)
    expected = x.cpu()
    for layer in layers:
        expected = nn.functional.linear(expected, layer.weight.cpu(), layer.bias.cpu())

    with lazyrt.op_by_op_mode(), recorded(events.TensorMaterialised) as found:
        last = lazyrt.materialise(outputs[3])
        lazyrt.materialise(outputs[2])

    assert sum(event.nodes for event in found) == 8
    torch.testing.assert_close(last, expected.detach())


@pytest.mark.not_eager("begins in lazy mode")
def test_a_barrier_runs_each_node_and_ends_the_step():
    """The second switch."""
    layers, x = four_layers()
    outputs = outputs_of(layers, x)
    lazily = [lazyrt.materialise(output) for output in outputs]
    before = lazyrt.counters()

    with lazyrt.op_by_op_mode(reads=False), recorded(events.BarrierFinished) as found:
        lazyrt.mark_step()

    used = lazyrt.counters() - before
    assert used["op_by_op_executions"] == 8
    assert used["executions"] == used["compiles"] == 0
    assert [(event.nodes, event.executed) for event in found] == [(8, True)]
    for output, value in zip(outputs, lazily, strict=True):
        assert not lazyrt.is_pending(output)
        torch.testing.assert_close(output.cpu(), value)


@pytest.mark.not_eager("begins in lazy mode")
@pytest.mark.parametrize("reads", [True, False])
def test_one_switch_leaves_the_other_as_it_was(reads):
    x = torch.ones(3).to(DEVICE)
    y = (x + 1) * 2
    before = lazyrt.counters()

    with lazyrt.op_by_op_mode(reads=reads, barriers=not reads):
        assert y.sum().item() == 12
        y += 1
        lazyrt.mark_step()

    used = lazyrt.counters() - before
    if reads:
        assert used["op_by_op_executions"] == 3
        assert used["barriers"] == used["executions"] == 1
    else:
        assert used["op_by_op_executions"] == 4
        assert used["executions"] == 0


@pytest.mark.lazy_only("begins in lazy mode")
def test_a_step_after_the_mode_is_the_graph_it_was_before():
    """No observer effect: reads op by op leave fingerprint and compile count alone."""
    x = torch.ones(3).to(DEVICE)

    def step(*, read):
        y = torch.tanh(x * 3) + torch.rand(3, device=DEVICE)
        if read:
            with lazyrt.op_by_op_mode(barriers=False):
                y.cpu()
        with recorded(events.GraphCaptured) as found:
            lazyrt.mark_step()
        return found[0].fingerprint

    first = step(read=False)
    before = lazyrt.counters()

    assert step(read=True) == first
    assert (lazyrt.counters() - before)["compiles"] == 0


@pytest.mark.not_eager("reads what is pending")
def test_a_long_run_says_how_many_ops_have_run(monkeypatch):
    monkeypatch.setattr(op_by_op, "_PAUSE_NS", 0)
    x = torch.ones(3, device=DEVICE)
    for _ in range(4):
        x = torch.tanh(x)

    with (
        config.scoped(op_by_op_reads=True, progress_after_s=0.0),
        recorded(events.CompileProgress) as found,
    ):
        x.tolist()

    told = [(e.purpose, e.nodes, e.done) for e in found if e.done is not None]
    assert told == [("op by op", 5, done) for done in range(5)]


def test_a_short_run_says_nothing_of_it():
    x = torch.tanh(torch.ones(3, device=DEVICE))

    with recorded(events.CompileProgress) as found:
        repr(x)

    assert not [e for e in found if e.done is not None]
