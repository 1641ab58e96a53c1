"""The timeline as a picture and as text, and whom it blames for an idle device."""

import dataclasses
import xml.etree.ElementTree as ET

import pytest

from lazyviz.render.timeline_svg import MAX_SVG_BYTES, timeline_svg
from lazyviz.render.timeline_text import (
    CellTime,
    Span,
    TimelineView,
    gaps,
    gaps_text,
    timeline_tables,
)

MS = 1_000_000
HOSTILE = "</svg><script>alert(1)</script>\"' onload=x &"
CELL = CellTime(
    number=3,
    start_ns=0,
    end_ns=100 * MS,
    parts={"python": 20 * MS, "trace": 30 * MS, "compile": 50 * MS},
    device_ns=40 * MS,
)


def span(lane, kind, start, end, name="", **more):
    return Span(lane, kind, name or kind, start * MS, end * MS, 3, **more)


SPANS = (
    span("host", "python", 0, 20, site="cell 3 line 2"),
    span("compile", "compile", 30, 80, "compile 214 ops", detail="a new shape"),
    span("host", "compile", 30, 80),
    span("step", "run", 0, 82, "step 1: mark_step()", site="cell 3 line 4"),
    span("step", "barrier", 82, 82, "mark_step()"),
    span("step", "implicit barrier", 90, 90, "optimizer.step()"),
    span("device", "step", 60, 100, "step 1, 214 ops"),
)
VIEW = TimelineView(
    cells=[CELL], spans=SPANS, gaps=gaps([CELL], SPANS), lines=[("a.py:1", "x", 0.61)]
)


def titles(svg):
    return [t.text or "" for t in ET.fromstring(svg).iter() if t.tag.endswith("title")]


def test_the_picture_names_what_it_shows():
    svg = timeline_svg(VIEW)
    shown = titles(svg)

    assert "compile 214 ops · 50 ms · a new shape" in shown
    assert "step 1: mark_step() · 82 ms · cell 3 line 4" in shown
    assert "cell 3: 100 ms = python 20 ms, trace 30 ms, compile 50 ms" in shown
    assert "optimizer.step()" in shown
    assert 'aria-label="timeline of 1 cell, 100 ms, 1 step"' in svg


def test_the_picture_is_as_high_as_what_it_shows():
    svg = timeline_svg(VIEW)
    height = float(ET.fromstring(svg).attrib["height"])
    lowest = max(
        float(each.attrib["y"]) + float(each.attrib.get("height", 0))
        for each in ET.fromstring(svg).iter()
        if "y" in each.attrib
    )

    assert "barrier by itself" in svg  # the legend, which is drawn last
    assert lowest < height < lowest + 16


def test_barriers_that_come_by_themselves_have_another_form_not_only_colour():
    root = ET.fromstring(timeline_svg(VIEW))

    forms = {
        (mark[0].text or ""): (mark.get("d") or "").count("l")
        for mark in root
        if mark.tag.endswith("path") and len(mark) and "M" in (mark.get("d") or "")
    }
    assert forms["mark_step()"] != forms["optimizer.step()"]


def test_hostile_names_stay_text():
    cell = dataclasses.replace(CELL)
    spans = [
        span(lane, kind, 1, 90, HOSTILE, site=HOSTILE, detail=HOSTILE)
        for lane, kind in (("step", "run"), ("compile", "compile"), ("device", "x"))
    ]
    svg = timeline_svg(TimelineView(cells=[cell], spans=spans))

    tags = {each.tag.rpartition("}")[2] for each in ET.fromstring(svg).iter()}
    assert tags <= {"svg", "g", "style", "text", "path", "rect", "title"}
    assert any(HOSTILE in title for title in titles(svg))


@pytest.mark.parametrize("count", [10, 6_000])
def test_a_picture_of_any_session_stays_small(count):
    cells = [
        dataclasses.replace(
            CELL, number=i, start_ns=i * 10**9, end_ns=i * 10**9 + 10**8
        )
        for i in range(40)
    ]
    spans = [
        Span(
            ("host", "step", "device", "transfer")[i % 4],
            ("dispatch", "run", "step", "to_host")[i % 4],
            f"name {i}",
            i % 40 * 10**9 + i * 10_000,
            i % 40 * 10**9 + i * 10_000 + (i * 7919) % 90_000,
            1,
        )
        for i in range(count)
    ]

    svg = timeline_svg(TimelineView(cells=cells, spans=spans))

    assert len(svg) <= MAX_SVG_BYTES
    ET.fromstring(svg)


def test_short_spans_are_told_together():
    spans = [span("device", "step", i / 100, i / 100 + 0.004) for i in range(50)]

    shown = titles(timeline_svg(TimelineView(cells=[CELL], spans=spans)))

    told = [title for title in shown if "short spans" in title]
    assert sum(int(title.split()[0]) for title in told) == 50


def test_idle_time_of_the_device_belongs_to_what_the_host_did():
    found = gaps([CELL], SPANS)

    assert (found.wall_ns, found.device_ns) == (100 * MS, 40 * MS)
    assert found.idle_ns == {"compile": 30 * MS, "python": 20 * MS, "trace": 10 * MS}
    assert found.lost_ns == 20 * MS
    assert gaps_text(found) == (
        "device idle 60 % of 100 ms: compile 30 %, python 20 %, trace 10 %\n"
        "neither tracing nor the device at work: 20 ms, of which 20 ms before cell 3 line 2"
    )


def test_what_is_forgotten_is_not_blamed():
    found = gaps([CELL], SPANS, since_ns=90 * MS)

    assert (found.wall_ns, found.device_ns, found.idle_ns) == (10 * MS, 10 * MS, {})


def test_the_text_says_the_same():
    shown = timeline_tables(VIEW).to_text()

    assert shown.splitlines()[:3] == [
        "cell  time    python  trace  compile  device",
        "----  ------  ------  -----  -------  ------",
        "   3  100 ms  20 ms   30 ms  50 ms    40 ms",
    ]
    assert "a.py:1  61 %   x" in shown
    assert "implicit barrier  optimizer.step()" in shown


def test_an_empty_session_says_so():
    empty = TimelineView(cells=[], spans=[])

    assert timeline_svg(empty) == ""
    assert timeline_tables(empty).to_text().startswith("Nothing has happened")


def test_devices_and_memory_have_rows_of_their_own_and_memory_its_height():
    spans = [
        span("device 0", "step", 10, 40, "step 1"),
        span("device 1", "step", 12, 44, "step 1"),
        span("memory", "memory", 10, 20, "memory 4 MiB", level=0.25),
        span("memory", "peak", 20, 40, "peak memory 16 MiB", detail="weight 4 MiB"),
    ]
    lanes = ("cell", "step", "host", "device 0", "device 1", "memory")
    root = ET.fromstring(
        timeline_svg(TimelineView(cells=[CELL], spans=spans, lanes=lanes))
    )

    rows = {row.get("data-row"): row for row in root if row.get("data-row")}
    assert list(rows) == ["cells", "steps", "host", "device 0", "device 1", "memory"]
    low, high = (float(bar.attrib["height"]) for bar in rows["memory"] if len(bar))
    assert high == 4 * low
    assert titles(ET.tostring(rows["memory"], "unicode"))[-1] == (
        "peak memory 16 MiB · 20 ms · weight 4 MiB"
    )


CUT = (
    span("step", "block", 0, 60, "step Training_Step 1"),
    span("step", "scope", 5, 40, "forward"),
    span("step", "cut", 20, 22, "read by .item() of h", site="cell 3 line 8"),
    span("step", "scope", 42, 58, "backward"),
)


def test_a_graph_break_splits_the_bars_around_it_and_is_marked():
    svg = timeline_svg(TimelineView(cells=[CELL], spans=CUT))
    shown = titles(svg)

    assert "forward, part 1 of 2 · 17 ms" in shown
    assert "forward, part 2 of 2 · 18 ms" in shown
    assert "step Training_Step 1, part 1 of 2 · 22 ms" in shown
    assert "backward · 16 ms" in shown
    assert "read by .item() of h · 2.0 ms · cell 3 line 8" in shown
    assert "graph break" in svg  # in the legend


def test_graph_breaks_are_counted_by_scope_with_what_they_took():
    shown = timeline_tables(TimelineView(cells=[CELL], spans=CUT)).to_text()

    lines = [line.split("  ") for line in shown.splitlines() if "by .item()" in line]
    first = [cell.strip() for cell in lines[0] if cell.strip()]
    assert first == ["forward", "read by .item() of h", "cell 3 line 8", "1", "2.0 ms"]
    assert "graph breaks" not in timeline_tables(VIEW).to_text()
