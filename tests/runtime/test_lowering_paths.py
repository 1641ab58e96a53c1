"""The two ways from a graph to an executable give the same numbers, and those of torch."""

import functools
import re

import numpy as np
import pytest
import torch

import lazyrt
from benchmarks.jax_steps import interpret
from lazyrt import jax_compat
from lazyrt.execution import compiler
from lazyrt.execution.compiler import executable_of
from lazyrt.execution.transfer import to_host
from lazyrt.ir import live
from lazyrt.lowering import emit
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
    main = jax_compat.with_ready_scalar(functools.partial(interpret, graph))
    types = emit.argument_types(graph)
    made = jax_compat.compile_function(main, types, {}, fast=True)
    interpreted = results(made, graph)
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


def kernels_of(text):
    """Return the distinct fused computations of HLO, without names and metadata."""
    found = re.findall(
        r"^%fused_computation[^{]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL
    )
    plain = [re.sub(r", metadata=\{[^}]*\}|%[\w.\-]+", "", body) for body in found]
    return set(plain)


@pytest.mark.lazy_only("reads the step's program")
def test_ops_that_differ_in_their_number_share_one_kernel():
    counts = []
    for size in (2, 5):
        tensors = [lazy(torch.full((64,), k + 1.0)) for k in range(size)]
        for k, tensor in enumerate(tensors):
            tensor.mul_(1.25 + k).add_(0.5 - k)
        computation = lazyrt.pending_graph(*tensors).lower()
        text = computation.as_text()
        counts.append(len(kernels_of(computation.as_text("hlo"))))

        assert text.count("func.call @lifted_floats(") == 2 * size
        assert text.count("func.func private @lifted_floats(") == 1
        for k, tensor in enumerate(tensors):
            assert torch.equal(
                tensor.cpu(), torch.full((64,), (k + 1) * (k + 1.25) + 0.5 - k)
            )

    assert counts[0] == counts[1]


@pytest.mark.lazy_only("reads the step's program")
def test_a_single_number_needs_no_function():
    x = lazy(torch.ones(4))
    x.mul_(1.25)

    assert "@lifted_floats" not in lazyrt.pending_graph(x).lower().as_text()
    assert x.tolist() == [1.25] * 4


ROWS = {
    "rows": lambda x, w: torch.stack([row.exp() for row in x]),
    "rows with what all read": lambda x, w: torch.stack(
        [(row * w + 1).clamp(min=w.mean()).frac() for row in x]
    ),
    "columns": lambda x, w: torch.stack([x[:, k].exp() * 2 for k in range(4)], 1),
    "along the last dimension": lambda x, w: torch.stack([r.exp() for r in x], -1),
    "two tensors": lambda x, w: torch.stack(
        [torch.where(a > b, a, b) for a, b in zip(x, x.flip(0), strict=True)]
    ),
    "numbers": lambda x, w: torch.stack([number.exp() - 1 for number in x[1]]),
}
CALLS = {"rows with what all read": 6, "columns": 4, "two tensors": 4, "numbers": 4}


@pytest.mark.not_eager("is about recorded graphs")
@pytest.mark.parametrize("program", ROWS)
def test_equal_ops_on_all_rows_that_are_stacked_are_one_call(program):
    operands = torch.rand(6, 4), torch.rand(4)
    stacked = ROWS[program](*map(lazy, operands))
    graph = lazyrt.pending_graph(stacked)

    text = graph.lower().as_text("stablehlo")
    (by_text,), (interpreted,) = both_paths(stacked)

    assert len(graph.nodes) > 12
    main = text[: text.index("return")]
    assert main.count("func.call @") == CALLS.get(program, 2)
    assert main.count("aten.stack.default") == 1
    assert torch.equal(by_text, interpreted)
    torch.testing.assert_close(by_text, ROWS[program](*operands))


@pytest.mark.not_eager("is about recorded graphs")
def test_rows_that_are_read_elsewhere_are_slices_of_what_is_computed_at_once():
    x = torch.rand(6, 4)

    def program(x):
        rows = [row.exp() for row in x]
        return torch.stack(rows), rows[2], rows[4] + 1

    found = program(lazy(x))
    text = lazyrt.pending_graph(*found).lower().as_text("stablehlo")

    assert text.count("call @aten_exp") == 1
    assert text.count("func.call @lazyrt_select_at") == 2
    for mine, expected in zip(both_paths(*found)[0], program(x), strict=True):
        torch.testing.assert_close(mine, expected)


UNLIKE = {
    "another order": lambda x: torch.stack([row.exp() for row in x.unbind()[::-1]]),
    "a part": lambda x: torch.stack([x[k].exp() for k in range(5)]),
    "a row twice": lambda x: torch.stack([x[k].exp() for k in (0, 1, 2, 3, 4, 4)]),
    "other numbers": lambda x: torch.stack([row + k for k, row in enumerate(x)]),
    "sums": lambda x: torch.stack([row.sum() for row in x]),
    "random numbers": lambda x: torch.stack([torch.rand_like(row) for row in x]),
    "nothing computed": lambda x: torch.stack(list(x)),
    "a wider result": lambda x: torch.stack([row * x for row in x]),
    "numbers of two dtypes": lambda x: torch.stack(
        [number * x.double()[0, 0] for number in x[0]]
    ),
}


@pytest.mark.not_eager("is about recorded graphs")
@pytest.mark.parametrize("program", UNLIKE)
def test_ops_on_rows_that_differ_have_a_call_each(program):
    x = torch.rand(6, 4)
    x[0, 1:] = 3
    stacked = UNLIKE[program](lazy(x))
    graph = lazyrt.pending_graph(stacked)

    main = graph.lower().as_text("stablehlo").partition("return")[0]

    assert main.count("func.call @") == len(graph.nodes)
    if program != "random numbers":
        torch.testing.assert_close(stacked.cpu(), UNLIKE[program](x))


@pytest.mark.not_eager("is about recorded graphs")
def test_a_users_rule_of_an_elementwise_op_gets_one_row_at_a_time(monkeypatch):
    monkeypatch.setattr(emit, "times_given", lambda name: name == "aten.exp.default")
    x = lazy(torch.rand(3, 4))
    programs = [torch.stack([f(row) for row in x]) for f in (torch.exp, torch.sin)]

    texts = [lazyrt.pending_graph(y).lower().as_text("stablehlo") for y in programs]

    assert [text.count("call @aten_") for text in texts] == [4, 2]
