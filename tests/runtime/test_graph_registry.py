"""The census of compiled graphs, their dumps, the origins of inputs, and barrier hooks."""

import re

import pytest
import torch

import lazyrt
from lazyrt.config import config
from lazyrt.errors import UsageError
from lazyrt.execution import graph_registry as census_module
from lazyrt.execution.executables import FORMS, text_of
from lazyrt.observe import events
from tests.harness import DEVICE, cold_start, recorded

pytestmark = pytest.mark.usefixtures("cold")


def on_device(*shape):
    return torch.ones(*shape).to(DEVICE)


def double(x):
    with lazyrt.step():
        return x * 2 + 1


@pytest.mark.lazy_only("is about compiled steps")
def test_each_graph_has_a_name_its_sizes_runs_and_cost():
    first = lazyrt.counters()["barriers"]
    for rows in (3, 3, 4, 3):
        double(on_device(rows))

    graphs = lazyrt.compiled_graphs()
    assert [graph.name for graph in graphs] == ["graph.1", "graph.2"]
    assert [graph.runs for graph in graphs] == [3, 1]
    assert [(g.nodes, g.inputs, g.outputs) for g in graphs] == [(2, 1, 1)] * 2
    assert graphs[0].fingerprint != graphs[1].fingerprint
    assert all(graph.compile_ns > 0 and graph.compiles == 1 for graph in graphs)
    assert graphs[0].last_step - graphs[0].first_step == 3
    assert lazyrt.graph_of_step(graphs[1].first_step) is graphs[1]
    assert lazyrt.counters()["barriers"] == first + 4


@pytest.mark.lazy_only("is about compiled steps")
def test_an_executable_from_disk_cost_no_compile(tmp_path):
    config.cache_dir = tmp_path
    double(on_device(5))
    cold_start()
    double(on_device(5))

    (graph,) = lazyrt.compiled_graphs()
    assert graph.from_disk
    assert graph.compile_ns == 0
    assert graph.compiles == 0


@pytest.mark.lazy_only("is about compiled steps")
def test_a_graph_beyond_the_limit_is_logged_with_its_cause(caplog):
    with config.scoped(max_graphs=1):
        double(on_device(3))
        assert not caplog.records
        double(on_device(4))

    (record,) = caplog.records
    assert "expected at most 1 graph, found 2: graph.2 was compiled in step" in (
        record.getMessage()
    )
    assert "is f32[4], was f32[3]" in record.getMessage()


@pytest.mark.lazy_only("is about compiled steps")
def test_a_step_with_more_graphs_than_it_may_have_names_each_with_its_reason(caplog):
    for rows in (3, 3, 4, 3, 5, 5, 6):
        x = on_device(rows)
        with lazyrt.step("train", max_graphs=2):
            y = x * 2 + 1
        with lazyrt.step("evaluate", max_graphs=4):
            z = y.exp().sum()

    first, second = [record.getMessage() for record in caplog.records]
    head, *lines = second.splitlines()
    graphs = {graph.name: graph for graph in lazyrt.compiled_graphs()}
    assert z.isfinite().item()
    assert first.startswith(
        "expected at most 2 graphs of step 'train', found 3: graph.5 was"
    )
    assert head.startswith(
        "expected at most 2 graphs of step 'train', found 4: graph.7 was"
    )
    assert "f32[6]" in head
    for line, name in zip(
        lines, ("graph.1", "graph.3", "graph.5", "graph.7"), strict=True
    ):
        step = graphs[name].first_step
        assert line == f"  {name}, step {step}: {graphs[name].cause}"


@pytest.mark.lazy_only("is about compiled steps")
def test_a_step_without_a_name_is_told_by_its_line_and_a_function_by_its_name(caplog):
    def unnamed(rows):
        x = on_device(rows)
        with lazyrt.step(max_graphs=1):
            return x + 1

    @lazyrt.step(max_graphs=1)
    def named(x):
        return x - 1

    unnamed(3)
    named(on_device(3))
    assert not caplog.records
    unnamed(4)
    named(on_device(4))

    messages = [record.getMessage() for record in caplog.records]
    assert [
        m.partition(", found 2")[0].partition(" graph of ")[2] for m in messages
    ] == [
        f"the step at {lazyrt.compiled_graphs()[2].key.ended_by[1]}".rpartition(":")[0]
        + f":{unnamed.__code__.co_firstlineno + 2}",
        f"step {named.__qualname__!r}",
    ]


@pytest.mark.parametrize("limit", [0, -1, True, 2.0, "2"])
def test_a_limit_that_is_no_number_of_graphs_is_refused(limit):
    with pytest.raises(UsageError, match=r"step\(\) got max_graphs=.*from 1 on"):
        lazyrt.step(max_graphs=limit)


@pytest.mark.lazy_only("is about compiled steps")
def test_old_graphs_give_up_their_memory_and_keep_their_record(monkeypatch):
    monkeypatch.setattr(census_module, "_MAX_GRAPHS", 1)
    monkeypatch.setattr(census_module, "_MAX_VERTICES", 3)
    double(on_device(3))
    double(on_device(4))

    old, new = lazyrt.compiled_graphs()
    assert old.canonical is None
    assert old.snapshot is None
    assert new.snapshot is not None
    assert old.cause == "the first graph of this process"
    with pytest.raises(UsageError, match=r"graph\.1 is too old to be written"):
        text_of(old, "ir")


@pytest.mark.lazy_only("is about compiled steps")
def test_dumps_are_named_by_graph_and_count_as_no_compile(tmp_path):
    """A unique name for each graph, in memory and on disk, in five forms."""
    double(on_device(3))
    double(on_device(4))
    compiles = lazyrt.counters()["compiles"]

    files = lazyrt.dump_graphs(tmp_path)

    assert len(files) == len({file.name for file in files}) == 2 * len(FORMS)
    assert lazyrt.counters()["compiles"] == compiles
    texts = {file.name: file.read_text("utf-8") for file in files}
    assert "aten.mul.Tensor" in texts["graph.1.ir.txt"]
    assert "stablehlo.multiply" in texts["graph.1.stablehlo.mlir"]
    assert "HloModule" in texts["graph.1.before_optimisation.hlo"]
    assert "fusion" not in texts["graph.1.before_optimisation.hlo"]
    assert "HloModule" in texts["graph.2.after_optimisation.hlo"]
    assert texts["graph.2.dot"].startswith('digraph "graph.2" {')
    assert texts["graph.2.dot"].count("->") == 3
    below = texts["graph.2.dot"].partition("\n}\n")[2]
    assert below.replace("// ", "") == texts["graph.2.ir.txt"]


def test_a_form_that_there_is_not_and_an_empty_census_are_refused(tmp_path):
    with pytest.raises(UsageError, match="found no compiled graph"):
        lazyrt.dump_graphs(tmp_path)
    double(on_device(3))
    with pytest.raises(
        UsageError, match=r"'onnx', which there is not. The forms are ir"
    ):
        lazyrt.dump_graphs(tmp_path, ["onnx"])  # type: ignore[list-item]


# ---------------------------------------------------------------- where inputs come from


@pytest.mark.lazy_only("is about compiled steps")
def test_each_input_says_which_execution_output_and_line_produced_it():
    x = on_device(4)
    with lazyrt.step():
        state = x * 2
        other = x + 1
    step = lazyrt.compiled_graphs()[-1].first_step
    z = state + other + x

    origins = lazyrt.input_origins(z)
    by_name = {origin.name: origin for origin in origins}
    assert set(by_name) == {"x", "state", "other"}
    assert by_name["x"].step is None
    assert str(by_name["x"]) == "`x` f32[4]: copied from the host"
    assert by_name["state"].step == step
    assert by_name["state"].graph == "graph.1"
    assert by_name["state"].op == "aten.mul.Tensor"
    assert by_name["state"].output != by_name["other"].output
    assert "test_graph_registry.py" in str(by_name["state"].site)
    assert re.fullmatch(
        r"2 of 3 inputs \(32 of 48 bytes\) were computed by an earlier execution: "
        rf"2 by step {step}",
        origins.text,
    )


@pytest.mark.not_eager("is about compiled steps")
def test_an_input_that_is_overwritten_from_the_host_forgets_its_execution():
    x = on_device(4)
    with lazyrt.step():
        state = x * 2
    state.copy_(torch.zeros(4))
    lazyrt.mark_step()
    y = state + 1

    (origin,) = lazyrt.input_origins(y)
    assert origin.graph != "graph.1"


@pytest.mark.not_eager("is about compiled steps")
def test_asking_for_origins_changes_nothing():
    y = on_device(4) * 2
    before = lazyrt.pending_graph().fingerprint, len(lazyrt.live_tensors())

    lazyrt.input_origins()

    assert (lazyrt.pending_graph().fingerprint, len(lazyrt.live_tensors())) == before
    assert lazyrt.is_pending(y)


# ---------------------------------------------------------------- hooks


@pytest.mark.lazy_only("is about compiled steps")
def test_a_hook_runs_before_each_barrier_while_all_is_pending():
    seen = []

    def report(event):
        seen.append((event.cause, len(lazyrt.pending_graph().nodes)))

    with lazyrt.on_barrier(report):
        y = on_device(3) * 2
        lazyrt.mark_step()
        z = y + 1
        z.sum().item()
    double(y)

    assert seen == [("mark_step()", 1), ("read by .item()", 2)]


@pytest.mark.lazy_only("is about compiled steps")
def test_a_hook_that_prints_changes_neither_the_graph_nor_the_counts():
    x = on_device(3)
    double(x)
    fingerprints = []
    with (
        lazyrt.on_barrier(lambda _: (repr(x), lazyrt.live_tensors())),
        recorded(events.GraphCaptured) as found,
    ):
        double(x)
    fingerprints = [event.fingerprint for event in found]

    assert fingerprints == [lazyrt.compiled_graphs()[0].fingerprint]


def test_a_hook_that_reads_or_raises_does_not_recurse_or_stop_the_barrier(caplog):
    calls = []

    def bad(event):
        calls.append(event.cause)
        (on_device(2) * 3).sum().item()
        raise ZeroDivisionError

    with lazyrt.on_barrier(bad) as hook:
        y = on_device(3) * 2
        lazyrt.mark_step()
    hook.close()

    assert calls == ["mark_step()"]
    assert not lazyrt.is_pending(y)
    assert "a function given to on_barrier() failed" in caplog.text


@pytest.mark.lazy_only("is about compiled steps")
def test_the_end_of_a_step_says_what_was_compiled_in_it():
    with recorded(events.StepFinished) as found:
        double(on_device(3))
        double(on_device(3))
        double(on_device(4))

    assert [len(event.recompiled) for event in found] == [1, 0, 1]
    assert found[2].recompiled == (lazyrt.compiled_graphs()[1].cause,)


def test_a_folder_of_dumps_that_is_no_path_is_refused_before_anything_is_compiled():
    cold_start()

    with pytest.raises(UsageError, match=r"got 3 as its folder, which is int"):
        lazyrt.dump_graphs(3)  # type: ignore[arg-type]


@pytest.mark.lazy_only("needs a compiled graph")
def test_a_folder_of_dumps_that_cannot_be_made_is_refused(tmp_path):
    x = torch.ones(3, device="lazyrt") + 1
    lazyrt.mark_step()
    taken = tmp_path / "taken"
    taken.write_text("a file")
    with pytest.raises(UsageError, match=r"cannot make the folder .*taken"):
        lazyrt.dump_graphs(taken)
    assert taken.read_text() == "a file"
    del x
