"""What `torch.compile` did stands in the strip, in `%lazy step`, `%lazy graphs` and reports."""

import re

import pytest
import torch

import lazyrt
import lazyviz
from lazyrt.observe import events
from lazyrt.observe.events import CodeBreak, FailedGuard, FrameCompiled, SourceLocation
from lazyviz.inspection import tables
from lazyviz.render.notes import frame_text
from lazyviz.render.strip import Strip, strip_notes, strip_parts, urgent_notes
from lazyviz.timing.history import StepLog
from lazyviz.timing.tally import Tally
from tests.lazyviz import fakes

pytestmark = pytest.mark.lazy_only("is about graphs that are recorded as one call")

LINES = [SourceLocation("train.py", n, "f") for n in range(10)]
MS = 1_000_000
FIRST = FrameCompiled(
    function="f", definition=LINES[2], site=LINES[9], ops=3, dynamo_ns=80 * MS, aot_ns=20 * MS,
    graph_break=CodeBreak(reason="a branch depends on a tensor's value", site=LINES[4]),
    guards_ns=90_000,
)  # fmt: skip
AGAIN = FrameCompiled(
    function="f", definition=LINES[4], site=LINES[4], is_rest=True, dynamo_ns=40 * MS,
    guard=FailedGuard(text="`n` is 3, was 2", site=LINES[5]),
)  # fmt: skip
FAILED = FrameCompiled(
    function="g", definition=LINES[7], site=LINES[9],
    failed=CodeBreak(reason="Dynamo does not know `print`", site=LINES[8]),
)  # fmt: skip
REACHED = events.GraphBreakReached(
    reason="a branch depends on a tensor's value", site=LINES[4]
)


@pytest.fixture(autouse=True)
def _no_graphs_of_others():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def filled():
    tally = Tally()
    for event in (FIRST, REACHED, AGAIN, REACHED, REACHED, FAILED):
        tally.add(event)
    return tally


def test_the_strip_has_one_short_line_of_what_was_compiled_and_what_broke():
    strip = filled().strip()

    assert strip_parts(strip)[0] == (
        "torch.compile: 2 functions in 140 ms, 1 again, 3 graph breaks"
    )
    assert strip_notes(strip) == [
        (
            "torch.compile compiled f (train.py:2) for the call at train.py:9: dynamo 80 ms, "
            "AOTAutograd 20 ms"
        ),
        (
            "torch.compile compiled the rest of f after train.py:4 again for the call at train.py:4: "
            "`n` is 3, was 2 (read at train.py:5); dynamo 40 ms"
        ),
        (
            "torch.compile leaves g (train.py:7) uncompiled: Dynamo does not know `print` (at "
            "train.py:8)"
        ),
        "graph break in torch.compile at train.py:4, 3 times: a branch depends on a tensor's value",
    ]
    assert [note.split(":")[0] for note in urgent_notes(strip)] == [
        "torch.compile compiled the rest of f after train.py",
        "torch.compile leaves g (train.py",
        "graph break in torch.compile at train.py",
    ]


def test_a_first_compile_is_nothing_to_act_on_and_a_quiet_cell_has_no_line():
    tally = Tally()
    tally.add(FrameCompiled(function="f", definition=None, site=None, dynamo_ns=MS))

    assert urgent_notes(tally.strip()) == []
    assert strip_parts(Strip()) == ["0 live tensors"]


def test_a_compile_alone_makes_no_strip_of_a_cell_that_left_the_device_alone():
    tally = Tally()
    tally.add(FIRST)

    assert tally.seen == 0


def test_the_time_of_a_compile_is_a_phase_of_its_own():
    tally = filled()

    assert "dynamo" in tally.ledger.parts(10**18)


def test_the_backward_of_a_function_is_named_as_such():
    frame = FrameCompiled(
        function="f", definition=LINES[2], site=None, backward=True, aot_ns=5 * MS
    )

    assert frame_text(frame) == (
        "torch.compile compiled the backward of f (train.py:2): AOTAutograd 5.0 ms"
    )


def test_a_step_lists_its_compiles_by_phase_and_its_graph_breaks():
    log = StepLog()
    for step in (4, 5, 6):
        if step == 4:
            log.add(FIRST, 3)
        log.add(fakes.captured(step=step), 3)
        if step == 4:
            lowered = events.LoweringFinished(
                fingerprint="aa", purpose="step", nodes=4, duration_ns=3 * MS
            )
            log.add(lowered, 3)
            log.add(fakes.compiled(duration_ns=50 * MS, reason=""), 3)
        log.add(REACHED, 3)
        log.add(fakes.started(step=step), 3)
        log.add(fakes.barrier(step=step, site=LINES[9]), 3)

    assert [len(row.frames) for row in log.rows] == [1, 0, 0]
    assert tables.step_notes(log.rows)[-3:] == [
        (
            "step 4: torch.compile compiled f (train.py:2) for the call at train.py:9: dynamo 80 ms, "
            "AOTAutograd 20 ms"
        ),
        (
            "step 4 in all: dynamo 80 ms, AOTAutograd 20 ms, lowering 3.0 ms, XLA 50 ms; guards of a "
            "call at most 90 µs"
        ),
        (
            "steps 4 to 6: graph break in torch.compile at train.py:4, 3 times: a branch depends on a "
            "tensor's value"
        ),
    ]


@pytest.fixture
def session(lab):
    """Yield a shell in which a function with a graph break has been called with two numbers."""
    cells = (
        (
            "def f(x, key, n):\n    y = x.exp()\n    if y.sum() > 0:\n        y = y * len(key) * n\n"
            "    return y + 1\ng = torch.compile(f)"
        ),
        "y = g(x, 'sesame-7', 2); lazyrt.mark_step()",
        "for _ in range(3):\n    y = g(x, 'sesame-88', 2)\n    lazyrt.mark_step()",
    )
    for cell in cells:
        lab.display_pub.outputs.clear()
        assert lab.run_cell(cell, store_history=True).success
    yield lab
    torch.compiler.reset()  # what it has put into the namespace goes before that


@pytest.mark.slow
def test_the_session_tells_of_its_compiled_functions_everywhere(session):
    strip = session.display_pub.outputs[-1]["data"]["text/plain"]
    assert re.match(
        r"torch.compile: 1 function in \S+ m?s, 1 again, 3 graph breaks ·", strip
    )
    guard = "`key` is 'sesame-88', was 'sesame-7' (read at cell 4 line 4)"
    assert guard in strip

    shown = {}
    for line in ("step", "graphs", "why", "metrics"):
        session.display_pub.outputs.clear()
        session.run_line_magic("lazy", line)
        shown[line] = session.display_pub.outputs[-1]["data"]["text/plain"]

    assert guard in shown["step"]
    assert "4 times: a branch depends on a tensor's value" in shown["step"]
    assert re.search(
        r"in all: dynamo \S+ m?s, AOTAutograd \S+ m?s, lowering \S+ .s, XLA",
        shown["step"],
    )
    assert (
        "torch.compile: 3 functions compiled, 1 of them again, 1 graph break, 4 runs into one"
        in shown["graphs"]
    )
    assert "`key` is 'sesame-88', was 'sesame-7'" in shown["graphs"]
    assert "torch.compile compiled `f`" in shown["why"]
    assert "lazyrt::graph_breaks_reached" in shown["metrics"]


def test_a_report_masks_the_strings_that_guards_compare(session, tmp_path):
    page = lazyviz.report(tmp_path / "r.html").path.read_text("utf-8")
    bare = lazyviz.report(tmp_path / "s.html", source=False).path.read_text("utf-8")

    told = "is &#x27;•••&#x27;, was &#x27;•••&#x27;"
    assert told in page
    assert told in bare
    assert page.count("sesame") == 2  # in the cells' source
    assert "sesame" not in bare


def test_looking_at_what_was_compiled_changes_no_count(session):
    before = dict(lazyrt.counters())

    for line in ("step", "graphs", "why", "metrics"):
        session.run_line_magic("lazy", line)

    assert dict(lazyrt.counters()) == before
