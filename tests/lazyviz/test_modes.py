"""Modes in the notebook: `%lazy eager`, `%%lazy eager`, and what a strip says of them."""

import pytest

import lazyrt
from lazyrt.observe import events
from lazyviz.draw import boxes, svg
from lazyviz.inspection import tables
from lazyviz.render import text
from lazyviz.render.notes import SingleOps
from lazyviz.render.strip import Strip, strip_line
from lazyviz.timing.tally import Tally
from tests.conftest import displayed


@pytest.fixture(autouse=True)
def _lazy_again():
    yield
    lazyrt.config.set("eager", value=False, origin="default")
    lazyrt.config.set("max_graphs", value=0, origin="default")


def run(shell, source):
    shell.display_pub.outputs.clear()
    shell.run_cell(source, store_history=True)
    return displayed(shell)


def parts_of(strip):
    """Return a strip's parts with the times taken out."""
    return [part.split(" in ")[0] for part in strip.splitlines()[0].split(" · ")]


def test_the_magic_switches_the_mode_and_says_who_set_it(lab):
    on = run(lab, "%lazy eager on")
    strip = run(lab, "y = (x + 1) * 2")[-1]
    run(lab, "lazyrt.config.max_graphs = 7")
    table = run(lab, "%lazy eager")[0].splitlines()
    off = run(lab, "%lazy eager off")
    run(lab, "z = y + 1")

    assert on[0] == "mode: eager, set by %lazy eager on in cell 4"
    assert parts_of(strip)[0] == "eager: 2 ops"
    assert "pending" not in strip
    assert table[0] == on[0]
    assert any(line.startswith("eager ") and "True" in line for line in table)
    assert off[0] == "mode: lazy, set by %lazy eager off in cell 8"
    assert any(
        line.endswith("config.max_graphs = 7 at cell 6 line 1") for line in table
    )
    assert lazyrt.is_pending(lab.user_ns["z"])


def test_one_cell_may_be_eager(lab):
    """Per cell."""
    strip = run(lab, "%%lazy eager\ny = x + 1\nmode = lazyrt.mode()")[-1]

    assert lab.user_ns["mode"] == "eager"
    assert not lazyrt.is_pending(lab.user_ns["y"])
    assert parts_of(strip)[0] == "eager: 1 op"
    assert lazyrt.mode() == "lazy"


def test_a_barrier_without_an_effect_says_so(lab):
    """Nobody need tune a barrier in eager mode."""
    source = "%%lazy eager\ny = x + 1\nlazyrt.mark_step()\nlazyrt.mark_step()"

    strip = run(lab, source)[-1]

    assert strip.splitlines()[1:] == [
        "  2 barriers had no effect: in eager mode each op has run already"
    ]


def test_ops_that_ran_again_are_counted(lab):
    """The strip counts them."""
    source = "a = x + 1\nb = a * 2\nwith lazyrt.op_by_op_mode(): b.cpu(); a.cpu()"

    strip = run(lab, source)[-1]

    assert "op by op: 3 ops" in parts_of(strip)
    assert strip.splitlines()[1].startswith("  1 op executed again: op-by-op mode")


def test_the_drawing_marks_the_nodes_that_ran_again(lab):
    """They are marked, and say how often they ran."""
    run(lab, "a = x + 1\nb = a * 2")
    run(lab, "with lazyrt.op_by_op_mode(): b.cpu(); a.cpu()")

    graph = lazyrt.pending_graph(lab.user_ns["b"])
    drawing = boxes.draw_graph(graph, runs=lazyrt.times_run(graph))
    picture = svg.draw(drawing).svg

    assert [(b.label, b.runs) for b in drawing.boxes if b.members] == [
        ("add", 2),
        ("mul", 1),
    ]
    assert picture.count("executed 2 times since the last barrier") == 2
    assert picture.count(">executed again<") == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("%lazy eager maybe", "'maybe' is neither on nor off, so the mode stays lazy"),
        (
            "%%lazy eager now\nx + 1",
            "%%lazy eager takes nothing after it, but got 'now'",
        ),
    ],
)
def test_a_wrong_word_is_refused(lab, capsys, source, message):
    run(lab, source)

    assert message in capsys.readouterr().err
    assert lazyrt.mode() == "lazy"


def test_another_threads_background_work_is_not_the_cells():
    tally = Tally()

    tally.add(
        events.OpExecuted(
            node_id=1, op="aten.add.Tensor", mode="background", cache_hit=True, times=1,
            nbytes=4, dispatch_ns=10,
        )
    )  # fmt: skip

    assert tally.seen == 0
    assert tally.singles is None


def test_the_badge_tells_hits_and_compiles():
    """How many ops the cache served."""
    strip = Strip(
        compile_ns=60_000_000,
        singles=SingleOps(mode="eager", ops=8, cache_hits=5, run_ns=1_200_000),
    )
    nothing = Strip(singles=SingleOps(mode="eager", idle_barriers=1))

    assert strip_line(strip) == (
        "eager: 8 ops in 1.2 ms, 3 compiled in 60 ms, 5 hits · 0 live tensors"
    )
    assert strip_line(nothing) == "eager · 0 live tensors"


def test_the_status_says_what_the_op_cache_saved(lab):
    """Hits times the mean compile time of one op."""
    before = run(lab, "%lazy status")[0]
    run(lab, "%%lazy eager\nfor _ in range(4):\n    y = x.tanh()")

    served = run(lab, "%lazy status")[0].splitlines()[-3]
    compiled = lazyrt.metrics_report("dict")["metrics"]["EagerOpCompileTime"]["all"]

    assert "op cache" not in before
    assert compiled["samples"] == 1
    saved = text.duration(3 * compiled["accumulator"])
    assert served == f"op cache: 75 % of 4 ops served by the op cache, saved {saved}"


def test_the_op_cache_claims_no_time_that_was_not_measured():
    """Every op came from disk, so that none was compiled."""
    counters = {"lazyrt::op_by_op_executions": 3, "lazyrt::op_by_op_cache_hits": 1}

    assert tables.op_cache({"metrics": {}, "counters": counters}) == (
        "33 % of 3 ops served by the op cache"
    )
    assert tables.op_cache({"metrics": {}, "counters": {}}) == ""


def test_what_reusing_a_look_would_cost_is_told_before_it_runs(lab, capsys):
    """The trade-off as a what-if."""
    run(lab, "loss = (x * 2).sum()\nmore = loss + 1")

    first, second = run(lab, "%lazy reuse loss")[0].splitlines()

    assert first.startswith("peek: 2 of 3 ops (67 %) run twice")
    assert second.startswith("reuse=True: no op runs twice, 1 value (4 bytes) is kept")
    run(lab, "lazyrt.mark_step()")
    run(lab, "%lazy reuse loss")
    assert (
        "loss is computed already: printing it runs nothing" in capsys.readouterr().err
    )


MODEL = """
def model(x):
    output1 = x + 1
    output2 = output1 * 2
    raise ValueError("stop here")

model(x)
"""


@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_a_tensor_can_be_printed_after_the_fact_with_debug(
    lab, monkeypatch, capsys, mode
):
    run(lab, "%%lazy eager" + MODEL if mode == "eager" else MODEL)
    typed = iter(["p output2.sum().item()", "p lazyrt.is_pending(output2)", "q"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(typed))
    capsys.readouterr()
    before = lazyrt.counters()

    lab.run_cell("%debug")

    shown = capsys.readouterr().out
    x = lab.user_ns["x"]
    expected = ((x.cpu() + 1) * 2).sum().item()
    assert f"{expected}\n" in shown
    assert f"{mode == 'lazy'}\n" in shown
    used = lazyrt.counters() - before
    assert used["compiles"] == used["executions"] == 0
    assert next(typed, None) is None
