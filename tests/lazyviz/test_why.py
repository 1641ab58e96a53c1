"""`%lazy why`, `%lazy graphs`, and the strip's word for it."""

import pytest

import lazyrt
from lazyrt.execution.graph_registry import graph_registry
from lazyviz.render.strip import compiled_text
from tests.conftest import displayed


@pytest.fixture(autouse=True)
def _no_graphs(clean_runtime):
    graph_registry.clear()


def run(shell, code):
    result = shell.run_cell(code, store_history=True)
    result.raise_error()


def printed(shell, line):
    shell.display_pub.outputs.clear()
    run(shell, line)
    return displayed(shell)[0]


TWO = "for n in (3, 4):\n    y = torch.ones(n, device='cpu').to('lazyrt') * 2\n    lazyrt.mark_step()"


def test_the_strip_says_recompiled_and_names_the_variable(lab):
    graph_registry.clear()
    run(lab, "def f(v):\n    with lazyrt.step():\n        return v.exp() + 1")
    run(lab, "a = torch.ones(3).to('lazyrt')\nr = f(a)")
    lab.display_pub.outputs.clear()
    run(lab, "a = torch.ones(5).to('lazyrt')\nr = f(a)")

    (strip,) = displayed(lab)
    assert "recompiled: input `v` is f32[5], was f32[3]" in strip


def test_the_first_graph_is_compiled_and_others_are_recompiled():
    assert compiled_text("the first graph of this process").startswith("compiled: ")
    assert compiled_text("input `x` changed").startswith("recompiled: ")


def test_why_gives_causes_cells_lines_and_what_to_do(lab):
    graph_registry.clear()
    assert printed(lab, "%lazy why") == "No step was compiled yet."
    run(
        lab,
        "def f(v, k):\n    with lazyrt.step():\n        w = v.exp()\n        for _ in range(k):\n            w = w.sin() * w\n        return w",
    )
    run(lab, "a = torch.ones(3).to('lazyrt')\nr = f(a, 2)\nr = f(a, 3)")
    run(lab, "r = f(a, 2)")

    shown = printed(lab, "%lazy why")
    assert "compiled graph.2, nearest graph.1" in shown
    assert " ms" in shown.splitlines()[0]
    assert "the loop at cell" in shown
    assert "ran 3 times, 2 in graph.1" in shown
    assert "fix: run the loop a fixed number of times" in shown
    step = lazyrt.compiled_graphs()[1].first_step
    assert printed(lab, f"%lazy why {step}") == shown
    hit = printed(lab, f"%lazy why {step + 1}")
    assert "the first graph of this process" in hit


def test_graphs_is_a_census(lab):
    graph_registry.clear()
    assert printed(lab, "%lazy graphs") == "No step graph was compiled yet."
    run(lab, TWO)

    lines = printed(lab, "%lazy graphs").splitlines()
    assert lines[0].split() == [
        "graph", "key", "ops", "in", "/", "out", "first", "step", "runs", "compile", "nearest",
    ]  # fmt: skip
    assert lines[2].split()[0] == "graph.1"
    assert "graph.1 (" in lines[3]
    assert lines[4] == "graph.1: the first graph of this process"
    assert lines[-1].startswith("2 graphs, compiled in ")


def test_a_loop_without_boundaries_is_named_while_its_ops_are_pending(lab):
    run(lab, "h = torch.ones(3, 3).to('lazyrt')")
    lab.display_pub.outputs.clear()
    compiles = lazyrt.counters()["compiles"]
    run(lab, "for _ in range(400):\n    h = h * 1.5 + 1\n    h = h.t()")

    (strip,) = displayed(lab)
    assert "1,199 ops are pending and no boundary has come: cell" in strip
    assert "lines 2-3 recorded 3 ops 400 times" in strip
    assert "End each round with lazyrt.mark_step()" in strip
    assert lazyrt.counters()["compiles"] == compiles


def test_many_ops_that_are_no_loop_raise_no_alarm(lab, monkeypatch):
    monkeypatch.setattr("lazyviz.session._MANY_PENDING", 50)
    lines = "\n".join("h = h + 1" for _ in range(120))
    run(lab, "h = torch.ones(3).to('lazyrt')")
    lab.display_pub.outputs.clear()
    run(lab, lines)

    (strip,) = displayed(lab)
    assert "120 pending ops" in strip
    assert "no boundary has come" not in strip


def test_what_an_earlier_cell_left_pending_is_told_by_its_cell(lab):
    graph_registry.clear()
    step = "with lazyrt.step():\n    r = (a.exp() * 2).sum()"
    run(lab, "import torch\na = torch.ones(3).to('lazyrt')")
    run(lab, step)
    run(lab, "p = (a + 5).tanh().cumsum(0)")
    cell = lab.execution_count - 1
    run(lab, step)

    found = lazyrt.explain()
    assert found is not None
    (cause,) = found.causes
    assert cause.kind == "missing_boundary"
    assert cause.text == (
        f"3 operations that cell {cell} left pending joined this step's graph"
    )
    assert "lazyrt.mark_step()" in cause.fix
    assert str(cause.now) == f"cell {cell} line 1"


def test_of_cells_without_execution_counts_an_earlier_one_is_told_by_its_file(lab):
    graph_registry.clear()
    step = "with lazyrt.step():\n    r = (a.exp() * 2).sum()"
    for code in (
        "import torch\na = torch.ones(3).to('lazyrt')\nlazyrt.mark_step()",
        step,
        "p = (a + 5).tanh().cumsum(0)",
        step,
    ):
        lab.run_cell(code, store_history=False)

    found = lazyrt.explain()
    assert found is not None
    (cause,) = found.causes
    assert cause.kind == "missing_boundary"
    assert cause.text == (
        "3 operations that an earlier cell left pending joined this step's graph"
    )


def test_a_step_in_a_function_of_an_earlier_cell_ran_what_a_later_one_had_left(lab):
    graph_registry.clear()
    run(lab, "import torch\na = torch.ones(3).to('lazyrt')")
    run(
        lab,
        "def work():\n    r = (a.exp() * 2).sum()\n    lazyrt.mark_step()\n    return r",
    )
    run(lab, "r = work()")
    run(lab, "p = (a + 5).tanh().cumsum(0)")
    cell = lab.execution_count - 1
    run(lab, "r = work()")

    found = lazyrt.explain()
    assert found is not None
    (cause,) = found.causes
    assert cause.kind == "missing_boundary"
    assert f"3 operations that cell {cell} left pending joined" in cause.text


LEFT = {
    "by a function of an earlier cell": "p = prepared(a + 5)",
    "for the step to read": "a = prepared(a)",
    "for the step and for nobody": "a, p = a + 5, prepared(a)",
    "in place": "a.mul_(1.5)",
    "by a module": "p = model(a.view(3, 1))",
    "by a backward pass": "model(a.view(3, 1)).sum().backward()",
}


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
def test_work_that_an_earlier_cell_left_is_the_one_cause_whoever_records_or_reads_it(
    lab, left
):
    graph_registry.clear()
    run(
        lab,
        "import torch\na = torch.ones(3).to('lazyrt')\n"
        "model = torch.nn.Linear(1, 2).to('lazyrt')\n"
        "def prepared(t):\n    return (t * 2 + 1).tanh().cumsum(0)\n"
        "def work():\n    r = (a.exp() * 2).sum()\n    lazyrt.mark_step()\n    return r",
    )
    run(lab, "r = work()")
    run(lab, "r = work()")
    run(lab, left)
    cell = lab.execution_count - 1
    run(lab, "r = work()")

    found = lazyrt.explain()
    assert found is not None
    (cause,) = found.causes
    assert cause.kind == "missing_boundary"
    assert f" that cell {cell} left pending joined this step's graph" in cause.text


def test_all_that_an_earlier_cell_left_is_counted_even_where_the_step_has_another_size(
    lab,
):
    graph_registry.clear()
    run(
        lab,
        "import torch\na = torch.ones(4, 3).to('lazyrt')\nlazyrt.mark_step()\n"
        "def work(t):\n    r = (t.exp() * 2).tanh().sum()\n    lazyrt.mark_step()\n    return r",
    )
    run(lab, "r = work(a)")
    run(lab, "p = (a.exp() * 2).tanh() + 1")
    cell = lab.execution_count - 1
    run(lab, "r = work(a[:2])")

    found = lazyrt.explain()
    assert found is not None
    assert f"4 operations that cell {cell} left pending joined" in found.text


@pytest.mark.lazy_only("it is about the mode of a step that none of these runs")
def test_a_step_after_a_cell_in_eager_mode_is_no_step_of_that_mode(lab):
    graph_registry.clear()
    run(lab, "import torch\na = torch.ones(3).to('lazyrt')\nlazyrt.mark_step()")
    run(lab, "%%lazy step work\nr = (a.exp() * 2).sum()")
    run(lab, "%%lazy eager\np = (a.exp() * 2).sum()")
    run(lab, "%%lazy step work\nr = (a.exp() * 2).cos().sum()")

    found = lazyrt.explain()
    assert found is not None
    assert "cos" in found.text
    assert {"mode", "missing_boundary"}.isdisjoint(c.kind for c in found.causes)


@pytest.mark.lazy_only("it is about the mode of a step that none of these runs")
def test_a_step_that_reads_what_an_eager_cell_made_is_of_that_mode(lab):
    graph_registry.clear()
    run(lab, "import torch\na = torch.ones(3).to('lazyrt')\nlazyrt.mark_step()")
    run(lab, "p = a.exp() * 2\nr = p.sum()\nlazyrt.mark_step()")
    run(lab, "%%lazy eager\np = a.exp() * 2")
    run(lab, "r = p.sum()\nlazyrt.mark_step()")

    assert [graph.key.mode for graph in lazyrt.compiled_graphs()] == ["lazy", "eager"]


def test_an_edit_of_a_step_that_spans_cells_is_no_work_that_was_left(lab):
    graph_registry.clear()
    run(lab, "import torch\na = torch.ones(3).to('lazyrt')\nlazyrt.mark_step()")
    for first in ("h = (a * 2).exp()", "h = (a * 2).exp()", "h = (a * 2).exp().sqrt()"):
        run(lab, first)
        run(lab, "r = h.sum()\ndel h\nlazyrt.mark_step()")

    found = lazyrt.explain()
    assert found is not None
    assert [cause.kind for cause in found.causes] != ["missing_boundary"]
    assert "sqrt" in found.text


def test_a_model_that_compiles_often_is_read_from_one_table(lab):
    """Which graphs there are, what each cost, and why it is not the one before."""
    graph_registry.clear()
    run(lab, TWO.replace("(3, 4)", "(3, 4, 5)"))

    lines = printed(lab, "%lazy graphs").splitlines()
    rows = [line.split() for line in lines[2:5]]
    assert [row[0] for row in rows] == ["graph.1", "graph.2", "graph.3"]
    assert len({row[1] for row in rows}) == 3
    assert [row[-3] for row in rows[1:]] == ["graph.1", "graph.2"]
    assert "is f32[4], was f32[3]" in lines[6]
    assert lines[7].endswith("it grows from graph to graph: 3, 4, 5")
    assert lines[-1].startswith("3 graphs, compiled in ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%lazy why tomorrow", "name 'tomorrow' is not defined"),
        ("%lazy why 99999", "there is no graph of step 99999: the latest"),
        ("%lazy graphs all", "takes nothing after it"),
    ],
)
def test_mistakes_are_explained(lab, capsys, line, message):
    lab.run_cell(line, store_history=True)

    written = capsys.readouterr()
    assert message in written.out + written.err
