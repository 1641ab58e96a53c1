"""The two ways from a graph to an executable give the same numbers, and those of torch."""

import numpy as np
import pytest
import torch

import lazyrt
from lazyrt import jax_compat
from lazyrt.execution import compiler
from lazyrt.execution.compiler import executable_of
from lazyrt.execution.transfer import to_host
from lazyrt.ir import live
from tests.graphs import Program
from tests.harness import DEVICE, lazy


def run_by_text(graph):
    return compiler.compile_graph(graph, {}, fast=True, purpose="peek")


def results(executable, graph):
    """Run an executable on the pending step's inputs; return CPU tensors by root."""
    arguments = [live.pending.inputs[leaf.position] for leaf in graph.data]
    for leaves, numbers, dtype in (
        (graph.floats, live.pending.floats, np.float64),
        (graph.ints, live.pending.ints, np.int64),
        (graph.rng, live.pending.rng, np.uint64),
    ):
        if leaves:
            packed = [numbers[leaf.position] for leaf in leaves]
            arguments.append(np.array(packed, dtype))
    with jax_compat.scope():
        *found, _ = executable(*arguments)
    return [
        to_host(data, root.dtype) for data, root in zip(found, graph.roots, strict=True)
    ]


def both_paths(*tensors):
    graph = lazyrt.pending_graph(*tensors).canonical
    by_text = results(run_by_text(graph), graph)
    interpreted = results(compiler.compile_interpreted(graph, {}), graph)
    return by_text, interpreted


@pytest.mark.parametrize("seed", range(8))
def test_both_paths_and_the_cpu_agree_on_random_programs(seed):
    program = Program(seed, size=10)
    expected = program.run(program.data("cpu"))
    actual = program.run(program.data(DEVICE))

    by_text, interpreted = both_paths(*actual)

    for first, second in zip(by_text, interpreted, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-6)
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.not_eager("is about recorded graphs")
def test_both_paths_agree_on_packed_numbers_random_states_and_many_results():
    x = lazy(torch.arange(6.0).view(2, 3))
    y = x.clone()
    y.mul_(1.5).add_(0.25)
    values, indices = (y + torch.rand(2, 3, device=DEVICE)).sort(1, descending=True)
    z = torch.nn.functional.dropout(values, 0.5)

    by_text, interpreted = both_paths(y, values, indices, z, indices > 0)

    assert len(by_text) == 5
    for first, second in zip(by_text, interpreted, strict=True):
        assert first.dtype is second.dtype
        torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-6)


def test_both_paths_agree_on_a_training_step():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    model.to(DEVICE)
    x = lazy(torch.ones(2, 3))
    model(x).square().mean().backward()
    gradients = [parameter.grad for parameter in model.parameters()]

    by_text, interpreted = both_paths(*gradients)

    for first, second in zip(by_text, interpreted, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)


def test_a_random_program_gives_the_same_whether_it_runs_in_one_step_or_op_by_op():
    for seed in range(3):
        program = Program(100 + seed, size=8)
        whole = program.run(program.data(DEVICE))
        peeked = [lazyrt.materialise(tensor) for tensor in whole]
        lazyrt.mark_step()
        for tensor, seen in zip(whole, peeked, strict=True):
            torch.testing.assert_close(tensor.cpu(), seen, rtol=1e-5, atol=1e-5)


@pytest.mark.not_eager("is about recorded graphs")
def test_the_stablehlo_text_has_one_call_for_each_node_with_its_line():
    lazyrt.begin_cell()
    x = lazy(torch.ones(2, 3))
    y = (x + 0.125).exp()
    start = test_the_stablehlo_text_has_one_call_for_each_node_with_its_line
    line = start.__code__.co_firstlineno + 4

    graph = lazyrt.pending_graph(y)
    text = graph.lower().as_text("stablehlo")

    assert text.startswith(f"module @lazyrt_{graph.fingerprint} {{")
    assert text.count("func.call @aten_") == len(graph.nodes) == 2
    assert f'loc("aten.exp.default"("{__file__}":{line}:0))' in text
    assert "func.func public @main" in text
    assert "func.func private" in text


@pytest.mark.not_eager("is about recorded graphs")
def test_the_optimised_hlo_keeps_op_names_and_lines():
    lazyrt.begin_cell()
    x = lazy(torch.ones(4, 4))
    y = (x @ x).tanh()
    graph = lazyrt.pending_graph(y)
    before = lazyrt.counters()

    text = graph.lower().as_text("hlo")

    assert text.startswith("HloModule")
    assert "aten.mm.default" in text or "aten.tanh.default" in text
    assert "test_lowering_paths.py" in text
    used = lazyrt.counters() - before
    assert used["compiles"] == used["peek_compiles"] == used["executions"] == 0
    assert lazyrt.is_pending(y)


@pytest.mark.lazy_only("is about recorded graphs")
def test_asking_for_the_text_changes_neither_cache_nor_step():
    y = lazy(torch.ones(4, 4)) * 1.75
    graph = lazyrt.pending_graph(y)
    graph.lower().as_text("hlo")
    lazyrt.reset_counters()

    lazyrt.mark_step()

    assert lazyrt.counters()["compiles"] == 1


@pytest.mark.not_eager("is about recorded graphs")
def test_a_computation_can_be_asked_after_the_step_is_over():
    y = lazy(torch.ones(2)) * 1.625
    graph = lazyrt.pending_graph(y)
    text = graph.lower().as_text()
    lazyrt.mark_step()
    del y

    assert graph.lower().as_text() == text
    assert graph.lower().fingerprint == graph.fingerprint
    assert repr(graph.lower()).endswith("of 1 nodes>")


def test_an_unknown_dialect_is_refused_with_the_known_ones():
    graph = lazyrt.pending_graph(lazy(torch.ones(2)) * 2)

    with pytest.raises(lazyrt.errors.UsageError, match=r"'llvm'.*'stablehlo'.*'hlo'"):
        graph.lower().as_text("llvm")  # type: ignore[arg-type]


@pytest.mark.lazy_only("is about executables of steps")
@pytest.mark.parametrize("tier", ["fast", "optimised"])
def test_the_compiler_does_not_compute_what_a_step_counts(tier):
    """XLA would do so by an interpreter, which takes longer than any step."""
    with lazyrt.config.scoped(compile_tier=tier, cache_dir=None):
        total = torch.arange(2**16 + 3, device=DEVICE).sum()
        graph = lazyrt.pending_graph(total)
        lazyrt.mark_step()
        executable = executable_of(graph.fingerprint)

    assert " iota(" in executable.as_text()
    assert total.item() == (2**16 + 3) * (2**16 + 2) // 2
