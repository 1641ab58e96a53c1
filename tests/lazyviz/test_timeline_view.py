"""The timeline that zooms: in a notebook a widget, in a page of ours a script, else a picture."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import zlib

import pytest

from lazyviz.render import html
from lazyviz.render.html import page_html
from lazyviz.render.timeline_svg import MAX_SVG_BYTES, timeline_svg
from lazyviz.render.timeline_text import CellTime, TimelineView
from tests.conftest import displayed
from tests.lazyviz.labs import screenshots
from tests.lazyviz.test_render_timeline import CELL, MS, SPANS, VIEW, span, titles

TINY = tuple(
    span("step", "run", 82 + n * 0.01, 82 + n * 0.01 + 0.008, f"step {n}: mark_step()")
    for n in range(2, 500)
)
LATER = CellTime(
    number=4,
    start_ns=900 * MS,
    end_ns=950 * MS,
    parts={"trace": 50 * MS},
    device_ns=0,
)
FULL = dataclasses.replace(VIEW, cells=[CELL, LATER], spans=(*SPANS, *TINY))
EVIL = "<img src=x onerror=document.title=1>"


def data_of(picture):
    packed = re.search('data-spans="([^"]*)"', picture)
    assert packed
    return json.loads(zlib.decompress(base64.b64decode(packed[1])))


def test_a_detailed_picture_carries_each_span_and_draws_no_more_than_a_plain_one():
    plain, detailed = timeline_svg(FULL), timeline_svg(FULL, is_detailed=True)

    assert "step 77: mark_step() · 8.0 µs" not in titles(plain)
    assert "step 77: mark_step() · 8.0 µs" in data_of(detailed)["titles"]
    assert re.sub('data-spans="[^"]*" ', "", detailed) == plain
    assert len(plain) <= MAX_SVG_BYTES


def test_a_session_of_thousands_of_spans_takes_some_bytes_for_each():
    spans = tuple(
        span("step", "run", n * 0.01, n * 0.01 + 0.009, f"step {n}: mark_step()" * 3)
        for n in range(6_000)
    )
    detailed = timeline_svg(TimelineView(cells=[CELL], spans=spans), is_detailed=True)

    assert sum(len(row["x"]) for row in data_of(detailed)["rows"]) >= len(spans)
    assert len(detailed) <= MAX_SVG_BYTES + 20 * len(spans)


def test_a_page_without_a_timeline_has_no_script():
    page = page_html("t", [("", "<p>words</p>")], is_locked=True)

    assert "<script" not in page
    assert "script-src" not in page


def test_a_notebook_without_a_page_gets_the_picture_alone(lab):
    lab.run_cell("%lazy timeline", store_history=True)

    found = displayed(lab, "text/html")
    assert any(html.TIMELINE_CLASS in each for each in found)
    assert not any("widget-view" in kind for o in lab.display_pub.outputs for kind in o)


def test_the_widget_asks_the_kernel_for_nothing():
    from lazyviz.widgets import TimelineView as Widget

    widget = Widget(svg=timeline_svg(FULL, is_detailed=True), twin="twin")

    assert repr(widget).startswith("<timeline: the live view needs a kernel")
    assert "model.send" not in str(Widget._esm).partition("// A timeline")[2]
    widget.close()


def page_of(view):
    picture = html.picture(
        timeline_svg(view, is_detailed=True), "t", html.TIMELINE_CLASS
    )
    body = f'<div class="lazyviz-timeline">{picture}</div>'
    return page_html("Report", [("Timeline", body)], is_locked=True)


@pytest.fixture(scope="module")
def chromium():
    from tests.conftest import find_browser

    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=find_browser(), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium, tmp_path):
    """Yield what opens a view as a locked page, offline; what it asked for is checked."""
    contexts, asked = [], []

    def open_it(view, **options):
        path = tmp_path / "report.html"
        path.write_text(page_of(view), "utf-8")
        context = chromium.new_context(offline=True, **options)
        contexts.append(context)
        tab = context.new_page()
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("console", lambda message: asked.append(message.text))
        tab.on("pageerror", lambda error: asked.append(str(error)))
        tab.goto(path.as_uri())
        return tab

    yield open_it
    for context in contexts:
        context.close()
    assert [each for each in asked if not each.startswith(("file:", "data:"))] == []


def zoom_of(tab):
    tab.wait_for_timeout(60)  # a drawing waits for the next frame
    return float(tab.locator(".lzt-view svg").get_attribute("data-zoom"))


def labels(tab):
    return tab.locator(".lzt-view svg .t").all_text_contents()


@pytest.mark.browser
@pytest.mark.slow
def test_a_report_zooms_by_keyboard_wheel_and_button_and_tells_what_is_there(open_page):
    """Offline, in a page that runs no other script."""
    tab = open_page(FULL)
    svg = tab.locator(".lzt-view svg")
    tell = tab.locator(".lzt-tell")
    svg.wait_for()
    assert zoom_of(tab) == 1.0
    assert "cell 3" in labels(tab)
    assert not any(label.startswith("step 77") for label in labels(tab))

    # Keyboard: to the steps, to the second of them, into it.
    svg.focus()
    for key in ("ArrowDown", "Shift+ArrowRight"):
        tab.keyboard.press(key)
    assert tell.inner_text().startswith("step 2: mark_step()")
    tab.keyboard.press("Enter")
    assert zoom_of(tab) > 1_000
    assert any(label.startswith("step 2") for label in labels(tab))
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("-")
    tab.keyboard.press("0")
    assert zoom_of(tab) == 1.0

    # Pointer: what it is over is told; a wheel zooms there with Ctrl only; a drag pans.
    box = svg.bounding_box()
    rect = tab.locator(".lzt-view g[data-row=compiles] rect").first.bounding_box()
    tab.mouse.move(rect["x"] + rect["width"] / 2, rect["y"] + 5)
    assert tell.inner_text() == "compile 214 ops · 50 ms · a new shape"
    tab.mouse.wheel(0, -300)
    assert zoom_of(tab) == 1.0
    tab.keyboard.down("Control")
    tab.mouse.wheel(0, -300)
    tab.keyboard.up("Control")
    zoomed = zoom_of(tab)
    assert zoomed > 1.3
    before = tab.locator(".lzt-view g[data-row=compiles] rect").first.bounding_box()
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.9, rect["y"] + 5, steps=4)
    tab.mouse.up()
    after = tab.locator(".lzt-view g[data-row=compiles] rect").first.bounding_box()
    assert zoom_of(tab) == pytest.approx(zoomed, rel=0.01)
    assert after["x"] > before["x"] + 20
    tab.get_by_role("button", name="show all").click()
    assert zoom_of(tab) == 1.0
    tab.get_by_role("button", name="zoom in").click()
    assert zoom_of(tab) > 1.5


@pytest.mark.browser
@pytest.mark.slow
def test_without_scripts_the_picture_stays(open_page):
    tab = open_page(FULL, java_script_enabled=False)

    picture = tab.locator(".lazyviz-timeline img")
    assert picture.is_visible()
    assert tab.locator(".lzt-view").count() == 0


@pytest.mark.browser
@pytest.mark.slow
def test_names_stay_text_in_a_page_that_zooms(open_page):
    hostile = (*SPANS, span("compile", "compile", 10, 20, EVIL, detail=EVIL))
    tab = open_page(dataclasses.replace(VIEW, spans=hostile))
    tab.locator(".lzt-view svg").focus()
    for _ in range(4):
        tab.keyboard.press("ArrowDown")
        if EVIL in tab.locator(".lzt-tell").inner_text():
            break

    assert tab.title() == "Report"
    assert tab.locator("img").count() == 0


@pytest.mark.browser
@pytest.mark.slow
def test_a_search_lights_what_it_finds_and_enter_goes_from_one_to_the_next(open_page):
    training = tuple(
        span("step", "block", at, at + 8, f"step Training_Step {n}")
        for n, at in enumerate((2, 30, 60))
    )
    tab = open_page(dataclasses.replace(VIEW, spans=(*SPANS, *training)))
    tab.locator(".lzt-view svg").focus()
    tab.keyboard.press("/")
    tab.keyboard.type("training_step")

    assert tab.locator(".lzt-view .lzt-hit").count() == 3
    assert tab.locator(".lzt-found").inner_text() == "3 found"
    told = []
    for _ in range(3):
        tab.keyboard.press("Enter")
        told.append(tab.locator(".lzt-tell").inner_text().partition(" · ")[0])
    assert told == [f"step Training_Step {n}" for n in range(3)]
    assert tab.locator(".lzt-found").inner_text() == "3 of 3"
    tab.keyboard.press("Escape")
    assert tab.locator(".lzt-view .lzt-hit").count() == 0


@pytest.mark.browser
@pytest.mark.slow
def test_a_selection_measures_time_the_devices_work_its_gaps_and_ops(open_page):
    runs = (
        span("device", "step", 10, 20, "step 1, 100 ops"),
        span("device", "step", 50, 80, "step 2, 7 ops"),
    )
    tab = open_page(TimelineView(cells=[CELL], spans=runs))
    svg = tab.locator(".lzt-view svg")
    tell = tab.locator(".lzt-tell")
    svg.wait_for()
    box = svg.bounding_box()
    left = float(svg.get_attribute("data-left"))
    scale = box["width"] / 940

    def at(ms):
        return box["x"] + (left + ms / 100 * (940 - left)) * scale

    tab.keyboard.down("Shift")
    tab.mouse.move(at(20), box["y"] + 60)
    tab.mouse.down()
    tab.mouse.move(at(40), box["y"] + 60)
    tab.mouse.move(at(70), box["y"] + 60)
    tab.mouse.up()
    tab.keyboard.up("Shift")

    said = tell.inner_text()
    found = re.match(
        r"([\d.]+) ms: the device works ([\d.]+) ms \((\d+) %\) · 1 gap, the longest ([\d.]+) ms",
        said,
    )
    assert found, said
    assert [float(n) for n in found.groups()] == pytest.approx(
        [50, 20, 40, 30], rel=0.05
    )
    tab.screenshot(path=screenshots() / "timeline-measure.png")

    # By keyboard: from one span to another.
    svg.focus()
    tab.keyboard.press("Escape")
    for _ in range(5):
        tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Shift+ArrowLeft")
    tab.keyboard.press("m")
    tab.keyboard.press("Shift+ArrowRight")
    tab.keyboard.press("m")
    said = tell.inner_text()
    assert said.startswith(
        "70 ms: the device works 40 ms (57 %) · 1 gap, the longest 30 ms"
    )
    assert "107 ops" in said


@pytest.mark.browser
@pytest.mark.slow
def test_ticks_of_a_long_cell_are_in_minutes_and_seconds(open_page):
    long = dataclasses.replace(CELL, end_ns=CELL.start_ns + 400_000 * MS)
    run = span("device", "step", 10, 390_000, "step 1, 100 ops")
    plain = timeline_svg(TimelineView(cells=[long], spans=(run,)))
    tab = open_page(TimelineView(cells=[long], spans=(run,)))
    tab.locator(".lzt-view svg").wait_for()

    ticks = tab.locator(".lzt-view svg .k").all_text_contents()

    assert ticks[1:5] == ["50 s", "1 min 40 s", "2 min 30 s", "3 min 20 s"]
    assert ">1 min 40 s<" in plain


@pytest.mark.browser
@pytest.mark.slow
def test_a_click_beside_a_span_narrower_than_a_pixel_chooses_it(open_page):
    runs = (span("device", "step", 50, 50.001, "step 1, 3 ops"),)
    tab = open_page(TimelineView(cells=[CELL], spans=runs))
    bar = tab.locator(".lzt-view g[data-row=device] rect").bounding_box()

    tab.mouse.click(bar["x"] + 3, bar["y"] + 6)
    assert tab.locator(".lzt-tell").inner_text().startswith("step 1, 3 ops")
    tab.mouse.click(bar["x"] + 30, bar["y"] + 6)
    assert tab.locator(".lzt-tell").inner_text() == ""
