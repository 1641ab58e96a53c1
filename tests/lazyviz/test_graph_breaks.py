"""Where a program breaks into graphs, and where it did before, on rows and on the source."""

import re

import pytest

import lazyrt
from lazyviz.inspection.graph_breaks import GraphBreak, break_of, breaks_of
from lazyviz.render.strip import Strip
from tests.conftest import displayed
from tests.harness import cold_start

CHAIN = """
import torch
x = torch.ones(4).to("lazyrt")
lazyrt.mark_step()


a = x.exp().tanh()
{first}b = a.sin().cos()
{second}c = b.relu().square()
d = c.sqrt().neg()
lazyrt.mark_step()
"""
MARK = "lazyrt.mark_step(); "


def run(shell, source):
    shell.display_pub.outputs.clear()
    shell.run_cell(source, store_history=True)
    return displayed(shell), displayed(shell, "text/html")


@pytest.fixture
def fresh(lab):
    cold_start()
    return lab


def test_a_mark_in_the_middle_is_drawn_across_the_cell(fresh):
    """Two graphs of four ops; a line between the lines with the sizes of both halves."""
    _, (page, *_) = run(fresh, CHAIN.format(first="", second=MARK))

    (found,) = breaks_of(lazyrt, [lazyrt.compiled_graphs()[-2].first_step])
    number = fresh.execution_count - 1
    assert found.text().splitlines() == [
        "where the graph breaks: 2 graphs of 4 and 4 ops",
        "now  4 ops (lines 6 to 7) │ 4 ops (lines 8 to 9)",
        f"cell {number}",
        " 5 │",
        " 6 │ a = x.exp().tanh()   ← 2 ops",
        " 7 │ b = a.sin().cos()   ← 2 ops",
        f"   ├──────────── graph break after 4 ops: mark_step() at cell {number} line 8",
        " 8 │ lazyrt.mark_step(); c = b.relu().square()   ← 2 ops",
        " 9 │ d = c.sqrt().neg()   ← 2 ops",
        "10 │ lazyrt.mark_step()",
    ]
    assert "where the graph breaks: 2 graphs of 4 and 4 ops" in page
    assert f"graph break after 4 ops: mark_step() at cell {number} line 8" in page


def test_a_step_that_compiled_nothing_and_one_that_is_gone_have_no_cut(fresh):
    run(fresh, CHAIN.format(first="", second=MARK))
    first = lazyrt.compiled_graphs()[-2].first_step
    run(fresh, CHAIN.format(first="", second=MARK))

    assert lazyrt.graph_of_step(first + 3) is lazyrt.graph_of_step(first)
    assert breaks_of(lazyrt, [first + 3, 10**9]) == ()
    assert break_of(lazyrt, 10**9) is None
    assert len(breaks_of(lazyrt, [first, first + 1, first])) == 1


def test_a_moved_mark_is_drawn_where_it_was_and_where_it_is(fresh, capsys):
    run(fresh, CHAIN.format(first="", second=MARK))
    before = fresh.execution_count - 1
    capsys.readouterr()
    _, (page, *_) = run(fresh, CHAIN.format(first=MARK, second=""))
    now = fresh.execution_count - 1

    moved = (
        f"graph break: the graph ends earlier, at mark_step() at cell {now} line 7, "
        f"not mark_step() at cell {before} line 8"
    )
    assert moved in page
    why = run(fresh, "%lazy why")[0][0].splitlines()
    drawn = why[why.index(moved) + 1 :]
    assert drawn[:2] == [
        "before  4 ops (lines 6 to 7) │ 4 ops (lines 8 to 9)",
        "now     2 ops (line 6) │ 6 ops (lines 7 to 9)",
    ]
    assert (
        f"   ├──────────── graph break after 2 ops: mark_step() at cell {now} line 7"
        in drawn
    )
    old = f"   ├┄┄┄┄┄┄┄┄┄┄┄┄ earlier graph break after 4 ops: mark_step() at cell {before} line 8"
    assert drawn.index(old) > drawn.index(f"cell {before}") > drawn.index(f"cell {now}")


def test_an_evaluation_that_reads_is_not_drawn_as_a_break_of_the_training(fresh):
    """One graph now and one before: neither has a rest that was broken off."""
    run(fresh, CHAIN.format(first="", second=""))
    _, (page, *_) = run(fresh, "x.exp().tanh().sin().sum().item()")

    why = lazyrt.explain()
    assert why is not None
    assert why.top.kind == "other_step"
    assert "earlier graph break" not in page


def test_both_places_lie_on_one_source_where_it_is_the_same_file(fresh, tmp_path):
    script = tmp_path / "train.py"
    for marks in ({"first": "", "second": MARK}, {"first": MARK, "second": ""}):
        script.write_text(
            CHAIN.format(**marks).replace("\nimport", "\nimport lazyrt,", 1)
        )
        code = compile(script.read_text(), str(script), "exec")
        exec(code, {"__name__": "__main__"})  # noqa: S102

    found = break_of(lazyrt, lazyrt.compiled_graphs()[-1].first_step)

    assert found is not None
    place, *lines = found.source
    assert place == "train.py"
    rules = [(n, line.split()[1]) for n, line in enumerate(lines) if "├" in line]
    assert rules == [(2, "graph"), (4, "earlier")]


def test_both_programs_are_drawn_whole_after_both_have_run_again(fresh):
    for _ in range(2):
        for marks in ({"first": "", "second": MARK}, {"first": MARK, "second": ""}):
            run(fresh, CHAIN.format(**marks))
    last = lazyrt.compiled_graphs()[-1].first_step

    found = break_of(lazyrt, last)

    assert found is not None
    sizes = {when: re.findall(r"\d+ ops", parts) for when, parts in found.rows}
    assert sizes == {"before": ["4 ops", "4 ops"], "now": ["2 ops", "6 ops"]}


def test_the_parts_are_text_without_a_script_and_escaped():
    rows = ("before", "40 ops"), ("now", "30 ops (lines 1 to 2) │ 10 ops")
    drawn = GraphBreak("a <title>", rows)
    page = Strip(breaks=(drawn.doc(),)).to_html()

    assert drawn.to_html() in page
    assert "a &lt;title&gt;" in page
    assert "<script" not in page
    assert "now     30 ops (lines 1 to 2) │ 10 ops" in page


def test_rounds_of_a_loop_and_steps_that_end_by_themselves_are_no_breaks(fresh):
    _, pages = run(
        fresh,
        "import torch\nx = torch.ones(3).to('lazyrt')\n"
        "for n in (1, 2, 3):\n    y = x\n"
        "    for _ in range(n):\n        y = y.tanh()\n    lazyrt.mark_step()\n"
        "with lazyrt.step():\n    z = x.exp()\n"
        "with lazyrt.step():\n    z = x.sin()\n",
    )

    assert lazyrt.counters()["compiles"] >= 4
    assert "where the" not in pages[0].replace("where the time went", "")


def test_the_sessions_record_of_a_cell_keeps_no_source(fresh):
    run(fresh, CHAIN.format(first="", second=MARK))

    from lazyviz import session

    current = session.current()
    assert current is not None
    assert current.cells[-1].strip.breaks == ()
    assert current.cells[-1].strip.compiles == 2
