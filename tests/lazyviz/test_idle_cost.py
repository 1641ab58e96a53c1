"""What the extension costs a program while it is loaded and nothing is looked at."""

import configparser
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import lazyrt
from lazyrt.observe import events
from lazyviz import session
from lazyviz.inspection import tables
from lazyviz.render import text
from lazyviz.render.strip import Strip, timing_html
from lazyviz.timing import event_queue
from tests.conftest import displayed
from tests.harness import DEVICE, ROOT, bytecodes_of


def record(x):
    y = x
    for _ in range(20):
        y = torch.relu(y + 1)
    return y


def cost_of_recording(x):
    record(x)  # the nodes are interned, as those of every step but the first
    return bytecodes_of(lambda: record(x))


def test_recording_costs_the_same_with_the_extension_loaded_and_unloaded(
    shell, monkeypatch
):
    # Where the time goes is sampled, at most fifty times a second, whatever is recorded.
    monkeypatch.setattr(event_queue, "PERIOD_S", 3600)
    x = torch.ones(8).to(DEVICE)
    lazyrt.mark_step()
    alone = cost_of_recording(x)

    shell.run_line_magic("load_ext", "lazyviz")
    try:
        loaded = cost_of_recording(x)
        listening = bool(events.op_listeners)
    finally:
        shell.run_line_magic("unload_ext", "lazyviz")
    after = cost_of_recording(x)

    assert alone == loaded == after > 0
    assert not listening


def test_a_step_costs_a_bounded_number_of_instructions_more(shell, monkeypatch):
    """Measured: 160 to 460 in the step, and 1,740 at a beat of the pulse, on the pulse's thread."""
    monkeypatch.setattr(event_queue, "PERIOD_S", 3600)
    monkeypatch.setattr(event_queue, "_SELDOM_NS", 10**15)
    x = torch.ones(8).to(DEVICE)
    kept = []

    def step():
        kept.append(record(x))
        lazyrt.mark_step()
        kept.clear()

    def cost():
        for _ in range(80):  # the ledger and the tables are as full as they get
            step()
        return min(bytecodes_of(step) for _ in range(3))

    alone = cost()
    shell.run_line_magic("load_ext", "lazyviz")
    try:
        found: Any = session.current(shell)
        found.start_cell(1)
        loaded = cost()
        settle = found._intake.settle
        settle()
        for _ in range(20):
            step()
        lazyrt.wait()
        later = bytecodes_of(settle) / 20
    finally:
        shell.run_line_magic("unload_ext", "lazyviz")

    assert 50 < loaded - alone < 700
    assert 1_000 < later < 2_200


def test_listening_to_each_op_is_what_would_cost():
    """The measure sees a listener: it is no number that cannot change."""
    x = torch.ones(8).to(DEVICE)
    alone = cost_of_recording(x)

    with lazyrt.subscribe(lambda event: None, events.OpRecorded):
        listened = cost_of_recording(x)

    assert listened > alone


def test_a_closed_pulse_asks_nothing_more():
    beat = event_queue.Pulse(lambda *_: None)
    beat.begin()
    assert events.op_listeners

    beat.close()
    beat.ask(sample=True)  # as the ticker does that was about to

    assert not events.op_listeners


def test_each_strip_says_what_listening_took(lab):
    """What it took from the cell's own thread, measured and not estimated."""
    lab.run_cell("y = (x + 1).tolist()")

    (page,) = displayed(lab, "text/html")[-1:]
    took = re.search(r"= cell ([\d.,]+) (\w+), ([\d.,]+) (\w+) of it listening", page)
    assert took is not None
    strip = session.current(lab).cells[-1].strip  # type: ignore[union-attr]
    assert 0 < strip.own_ns < strip.wall_ns
    assert text.duration(strip.own_ns) == f"{took[3]} {took[4]}"


def test_the_sanitiser_of_notebooks_takes_the_times_of_a_cell_away():
    """What listening took is never compared."""
    parts = (("trace", 5), ("execute", 7))
    told = timing_html(
        Strip(parts=parts, wall_ns=12, own_ns=3, execute_ns=5, executions=1)
    )

    cfg = (ROOT / "notebooks/sanitize.cfg").read_text(encoding="utf-8")
    (rule,) = [r for r in re.findall(r"regex: (.*)", cfg) if "device busy" in r]

    assert "3 ns of it listening by lazyviz" in told
    assert re.sub(rule, "", told) == ""


def sanitised(told: str) -> str:
    """Return a text as nbval compares it."""
    cfg = configparser.RawConfigParser()
    cfg.read(ROOT / "notebooks/sanitize.cfg", encoding="utf-8")
    for name in cfg.sections():
        told = re.sub(cfg[name]["regex"], cfg[name]["replace"], told)
    return told


@pytest.mark.parametrize("running", [1, 3])
def test_the_sanitiser_of_notebooks_knows_executions_that_still_run(running):
    """On a busy machine the device may be at work when a cell ends."""
    done, busy = (
        Strip(executions=3, running=n, execute_ns=7_000_000) for n in (0, running)
    )

    assert done.text() != busy.text()
    assert sanitised(done.text()) == sanitised(busy.text())
    assert sanitised(done.to_html()) == sanitised(busy.to_html())


@pytest.mark.parametrize("running", [1, 3])
def test_the_sanitiser_of_notebooks_knows_what_a_status_tells_of_the_device(
    monkeypatch, running
):
    told, strips = [], cast("session.Session", SimpleNamespace(strips=True))
    for flying in (0, running):
        monkeypatch.setattr(lazyrt, "in_flight", lambda n=flying: n)
        told.append(tables.status(lazyrt, strips).to_text())

    assert told[0] != told[1]
    assert sanitised(told[0]) == sanitised(told[1])


@pytest.mark.parametrize(
    "ns",
    [
        0,
        850,
        41_300,
        4_130_000,
        1_234_000_000,
        58.7e9,
        61e9,
        79e9,
        3_599e9,
        3_723e9,
        7e12,
    ],
)
def test_the_sanitiser_of_notebooks_knows_every_duration(ns):
    """One that passes a minute on a busy machine has two parts."""
    told = sanitised(f"318 compiled in {text.duration(ns)}, 6,471 hits")

    assert told == "318 compiled in TIME, 6,471 hits"
