"""What happened when."""

import re
import threading
import time
from typing import Any

import pytest

from lazyrt.observe import events
from lazyrt.observe.events import SourceLocation
from lazyviz.timing.history import Timeline
from tests.lazyviz import fakes

SITE = SourceLocation("c", 7, "<lambda>", 3)
LIBRARY = SourceLocation("pipeline.py", 41, "call")


def kinds(timeline):
    return [(span.lane, span.kind, span.name) for span in timeline.spans]


def test_a_step_is_drawn_from_barrier_to_barrier_and_names_its_cause():
    timeline = Timeline()
    timeline.begin_cell(100)

    timeline.add(fakes.barrier(step=4, cause="mark_step()", site=SITE), 200, 3)
    timeline.add(fakes.barrier(step=5, cause="optimizer.step()", site=SITE), 350, 3)

    first, wrote, second, itself = timeline.spans
    assert (first.name, first.start_ns, first.end_ns) == (
        "step 4: mark_step()",
        100,
        200,
    )
    assert (second.name, second.start_ns, second.end_ns) == (
        "step 5: optimizer.step()",
        200,
        350,
    )
    assert (wrote.kind, itself.kind) == ("barrier", "implicit barrier")
    assert itself.site == "cell 3 line 7"


def test_each_callback_is_a_step_that_names_itself_and_its_caller():
    timeline = Timeline()
    for number in range(3):
        event = events.BarrierFinished(
            step=number,
            cause="mark_step()",
            site=SITE,
            nodes=4,
            roots=1,
            executed=True,
            duration_ns=1,
            caller=LIBRARY,
        )
        timeline.add(event, 10 * number + 10, 3)

    steps = [span for span in timeline.spans if span.kind == "run"]
    assert len(steps) == 3
    assert steps[0].detail == "4 ops, <lambda> called back by pipeline.py:41"


def test_a_closure_stands_between_the_steps():
    timeline = Timeline()
    closure = events.ClosureFinished(
        name="report",
        site=SITE,
        asynchronous=False,
        failed=False,
        waited_ns=0,
        duration_ns=20,
    )

    timeline.add(fakes.barrier(step=1), 100, 1)
    timeline.add(closure, 130, 1)
    timeline.add(fakes.barrier(step=2), 200, 1)

    order = [s.kind for s in sorted(timeline.spans, key=lambda s: s.end_ns)]
    assert order == ["run", "implicit barrier", "closure", "run", "implicit barrier"]


def test_an_execution_finds_its_dispatch_whatever_came_between():
    timeline = Timeline()

    timeline.add(fakes.started(step=1), 10, 1)
    timeline.add(fakes.started(step=2, fingerprint="bb"), 20, 1)
    timeline.add(fakes.finished(step=2, fingerprint="bb"), 30_000, 2)
    timeline.add(fakes.finished(step=1), 40_000, 2)

    flows = {s.name: s.flow for s in timeline.spans if s.lane == "device"}
    assert flows == {"step 2, 4 ops": 2, "step 1, 4 ops": 1}
    # The cell that dispatched it, not the one that runs when it ends.
    assert {s.cell for s in timeline.spans if s.lane == "device"} == {1}


def test_empty_barriers_looks_from_memory_and_recorded_ops_leave_nothing():
    timeline = Timeline()

    timeline.add(fakes.barrier(executed=False), 10, 1)
    timeline.add(
        events.TensorMaterialised(
            node_id=1, strategy="memo", nodes=0, reused=1, duration_ns=9
        ),
        10,
        1,
    )
    timeline.add(events.OpRecorded(node_id=1, op="aten.add.Tensor"), 10, 1)

    assert timeline.spans == ()


def test_compiles_fallbacks_transfers_and_looks_are_told():
    timeline = Timeline()
    look = events.TensorMaterialised(
        node_id=1, strategy="slice", nodes=3, reused=0, duration_ns=9, tensor="loss"
    )
    copy = events.TransferFinished(direction="to_host", nbytes=4, duration_ns=1)

    for event in (
        fakes.compiled(reason="a new shape"),
        events.FallbackUsed(op="aten.foo", reason="no rule", site=SITE),
        copy,
        look,
    ):
        timeline.add(event, 10_000, 1)

    assert kinds(timeline) == [
        ("compile", "compile", "compile 4 ops"),
        ("step", "fallback", "aten.foo on the CPU"),
        ("transfer", "to_host", "4 bytes to host"),
        ("step", "look", "look at loss"),
    ]
    assert timeline.spans[0].detail == "a new shape"


def test_a_long_session_stays_small_and_says_what_it_forgot():
    timeline = Timeline()
    copy = events.TransferFinished(direction="to_host", nbytes=4, duration_ns=1)

    for now in range(7_000):
        timeline.add(copy, now, 1)

    assert len(timeline.spans) == 6_000
    assert timeline.dropped == 1_000


def test_spans_may_come_from_several_threads():
    timeline = Timeline()

    def work():
        for now in range(500):
            timeline.add(fakes.compiled(), now, 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(timeline.spans) == 2_000


def test_a_cell_with_a_pause_and_a_loop(lab):
    """The pause is the program's own; lines that record are sampled."""
    lab.run_cell(
        "import time\nz = x + 1\ntime.sleep(0.25)\n"
        "end = time.monotonic() + 0.4\n"
        "while time.monotonic() < end:\n    z = x * 2 - x\n"
        "z = z.sum().item()",
        store_history=True,
    )
    from lazyviz import session

    found: Any = session.current(lab)
    cell = found.timeline.cells[-1]

    assert sum(cell.parts.values()) == cell.end_ns - cell.start_ns
    assert cell.parts["python"] > 0.2e9
    assert cell.parts["trace"] > 0.1e9
    assert cell.lines
    assert str(cell.lines.most_common(1)[0][0]) == "cell 4 line 6"


def test_a_cell_that_records_nothing_asks_nothing(lab):
    """The question for the next op is withdrawn with the cell."""
    from lazyrt.observe.events import op_listeners

    lab.run_cell("1 + 1", store_history=True)
    time.sleep(0.05)

    assert op_listeners == []


def test_a_real_compile_fills_its_cell(lab):
    """The parts of a cell with a compile of a second add up to its time."""
    lab.run_cell(
        "from lazyrt import jax_compat\nimport time\n"
        "real = jax_compat.compile_text\n"
        "def slow(*args, **options):\n"
        "    time.sleep(1.0)\n    return real(*args, **options)\n"
        "jax_compat.compile_text = slow\n"
        "try:\n    value = (x * 3).sum().item()\n"
        "finally:\n    jax_compat.compile_text = real",
        store_history=True,
    )
    from lazyviz import session

    found: Any = session.current(lab)
    strip = found.cells[-1].strip
    parts = dict(strip.parts)

    assert sum(parts.values()) == strip.wall_ns
    assert parts["compile"] >= 0.95e9
    # The strip leaves out a part that is small beside the others.
    assert parts["compile"] + parts.get("lower", 0) >= strip.compile_ns * 0.9
    waited = re.match(r"waited (\d+\.\d+) s", strip.waits[0])
    assert waited is not None
    assert float(waited[1]) * 1e9 == pytest.approx(parts["compile"], rel=0.2)
