"""The page of each widget in a browser: texts that would do harm, contrast, keyboard, names, motion."""

import random
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any, get_args

import pytest

import lazyrt
from lazygraph.snapshot import Name
from lazyrt.control.live_tensors import LiveReport
from lazyrt.execution.executables import CachedExecutable
from lazyviz.draw import panel, svg
from lazyviz.draw.layout import lay_out
from lazyviz.draw.model import BACKWARD, Box, DrawGraph, Kind
from lazyviz.draw.svg import legend_svg
from lazyviz.inspection.comparison import DiffExplorer, DiffView
from lazyviz.inspection.live import LiveTable, live_table, variable_question
from lazyviz.inspection.protocol import answer
from lazyviz.inspection.tables import CacheTable
from lazyviz.render.timeline_svg import timeline_svg
from lazyviz.widgets import TableView, WaitView
from tests.lazyviz import test_safety
from tests.lazyviz.poisoned import timeline_of
from tests.lazyviz.widget_pages import (
    THEMES,
    browsing_pages,
    contrasts,
    mount,
    moving,
    tell,
    unnamed,
    walked,
)
from tests.payloads import MARK, PAYLOADS

WIDGETS = (
    "graph_view",
    "diff",
    "live_view",
    "wait_view",
    "executables",
    "timeline_view",
)
# A diff is carried by the graph's page, executables by that of live tensors.
PAGES = {"diff": "graph_view", "executables": "live_view"}


def state(name, text):
    """Return the traits of a widget in which every text is `text`."""
    if name == "graph_view":
        graph = test_safety.drawing(text)
        box, group = graph.boxes
        parts = [
            panel.node_facts(box, upstream=[box], downstream=[group], python=text),
            panel.group_panel(group, 0, [box], [box]),
            panel.found_html(text, graph.boxes, 9),
            panel.refusal_html(text),
        ]
        choice = [["ir", text], ["hlo", "HLO"]]
        controls = {"form": choice, "fold": choice, "overlay": choice, "chosen": {"form": "ir", "fold": "ir", "overlay": "ir"}}  # fmt: skip
        return {
            "title": text,
            "svg": svg.emit(graph, lay_out(graph, "layered"), inline=True, legend=False),
            "legend": legend_svg(graph),
            "crumbs": ["whole graph", text],
            "panel": "".join(parts),
            "controls": controls,
            "twin": text,
        }  # fmt: skip
    if name == "diff":
        return diff_state(text)
    if name == "timeline_view":
        return {"svg": timeline_svg(timeline_of(text), is_detailed=True), "twin": text}
    if name == "live_view":
        report = test_safety.live_report(text)
        targets = {1: [text]}
        table = live_table(report, targets, "size", reverse=False)
        note = variable_question(text, 2, text) + answer(text, failed=True)
        return {
            "title": text,
            "table": table,
            "note": note,
            "stale": True,
            "twin": text,
        }
    if name == "wait_view":
        return {
            "number": 1, "active": True, "what": text, "phase": "compile", "where": text,
            "elapsed_ms": 2_000.0, "expected_ms": 8_000.0, "expected": text,
        }  # fmt: skip
    entry = executable(holds=text, line=text)
    runtime: Any = SimpleNamespace(cached_executables=lambda: (entry,))
    told = CacheTable(runtime).table()
    return {
        "title": told["title"],
        "table": told["html"],
        "note": answer(text),
        "what": "executables",
        "twin": text,
    }


def executable(**changes):
    """Return an executable with large numbers."""
    values: dict[str, Any] = {
        "key": "0" * 32, "holds": "step graph 795080fb", "nodes": 1_360, "tier": "optimised",
        "line": "cell 12 line 23", "nbytes": 12_345_678, "age_s": 90.0, "unused_s": 86_400.0,
        "in_memory": True, "on_disk": True, "compile_ns": 12_345_000_000, "hits": 1_234,
        "is_usable": True,
    }  # fmt: skip
    return CachedExecutable(**(values | changes))


def diff_state(text):
    """Return the traits of the view of a diff, with all that its panel can show."""
    explorer = DiffExplorer(test_safety.difference(text))
    kinds = [{"kind": "select", "box": k} for k in range(len(explorer.shown.boxes))]
    kinds += [{"kind": "follow", "node": 0}, {"kind": "search", "text": "add"}]
    panels = [
        reply["html"]
        for request in kinds
        for reply in explorer.handle(request)
        if reply["kind"] == "panel"
    ]
    return {
        "title": explorer.title,
        "svg": explorer.drawing(),
        "legend": explorer.legend(),
        "crumbs": ["all places", text],
        "panel": explorer.overview() + "".join(panels),
        "controls": explorer.controls,
        "twin": text,
    }


def all_kinds(what):
    """Return a drawing with boxes of all kinds, also dimmed ones, or its legend."""
    kinds = get_args(Kind)
    paths = ("net",), (BACKWARD, "net")
    boxes = [
        Box(
            label="a",
            detail="f32[2]",
            kind=kind,
            path=path,
            members=(k,),
            is_new=is_new,
        )
        for k, (kind, path, is_new) in enumerate(product(kinds, paths, (True, False)))
    ]
    graph = DrawGraph(boxes=tuple(boxes), edges=(), nodes=len(boxes))
    if what == "legend":
        return legend_svg(graph)
    return svg.emit(graph, lay_out(graph, "layered"), inline=True, legend=False)


def raw(name, text):
    """Return the same with texts in the places of HTML and SVG, as if nothing were escaped."""
    html = {
        "graph_view": ("panel", "svg", "legend"),
        "diff": ("panel", "svg", "legend"),
        "live_view": ("table", "note"),
        "timeline_view": (),
        "executables": ("table", "note"),
    }.get(name, ())
    picture = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><text>{}</text></svg>'
    return {
        each: picture.format(text) if each in {"svg", "legend"} else text
        for each in html
    }


@pytest.fixture(scope="module")
def tab():
    from tests.conftest import find_browser

    with browsing_pages(find_browser()) as found:
        yield found


_HARM = (
    "() => ({ ran: window.MARK !== undefined, title: document.title,"
    " elements: [...document.querySelectorAll('#root script, #root iframe, #root object,"
    " #root embed, #root base, #root link, #root meta, #root form, #root a[href],"
    ' #root foreignObject, #root image, #root video source[src], #root img:not([src^="data:"])[src],'
    ' #root [style*="url("]\')].map((e) => e.outerHTML.slice(0, 80)),'
    " handlers: [...document.querySelectorAll('#root *')].filter((e) =>"
    " [...e.attributes].some((a) => /^on/i.test(a.name))).map((e) => e.outerHTML.slice(0, 80)) })"
).replace("MARK", MARK)


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("name", WIDGETS)
def test_no_text_becomes_an_element_or_runs_in_any_widget(tab, name):
    """The corpus in every place of every widget, escaped and not."""
    harmless = state(name, "harmless")
    mount(tab, PAGES.get(name, name), harmless)
    shape = (
        "() => [...document.querySelectorAll('#root *')].map((e) => e.tagName).join()"
    )
    plain = tab.evaluate(shape)
    tab.asked.clear()

    for text in PAYLOADS:
        tell(
            tab,
            **{key: value for key, value in state(name, text).items() if key != "twin"},
        )
        if "\n" not in text and text.strip():
            assert tab.evaluate(shape).count(",") >= plain.count(",") - 8, text
        tell(tab, **raw(name, text))
        tab.evaluate(
            "() => document.querySelectorAll('#root details').forEach((d) => { d.open = true; })"
        )
        found = tab.evaluate(_HARM)
        assert not found["ran"], text
        assert found["elements"] == [], text
        assert found["handlers"] == [], text
        tell(tab, **{key: harmless[key] for key in raw(name, text)})
    tab.mouse.move(300, 200)
    tab.keyboard.press("Tab")

    assert not tab.evaluate(f"() => window.{MARK} !== undefined")
    assert [one for one in tab.asked if not one.startswith("data:")] == []


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", WIDGETS)
def test_every_text_of_every_widget_can_be_read(tab, name, theme):
    """WCAG AA in JupyterLab's own colours: 4.5 to 1, opacities included."""
    shown = state(name, "harmless")
    if name == "graph_view":
        shown |= {"svg": all_kinds("svg"), "legend": all_kinds("legend")}
    mount(tab, PAGES.get(name, name), shown, theme)
    tab.evaluate(
        "() => document.querySelectorAll('#root details').forEach((d) => { d.open = true; })"
    )
    if name in {"graph_view", "diff"}:
        tab.locator(".lzg-head button").click()  # the keys

    found = contrasts(tab)

    assert len(found) >= 5
    assert [text for ratio, text in found if ratio < 4.5] == [], found[:5]


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("name", WIDGETS)
def test_a_keyboard_reaches_all_and_a_screen_reader_names_all(tab, name):
    mount(tab, PAGES.get(name, name), state(name, "harmless"))

    count, seen = walked(tab)

    assert len(seen) == count >= 1
    assert [what for is_seen, what in seen if not is_seen] == []
    assert unnamed(tab) == []
    assert moving(tab) == []
    tab.emulate_media(reduced_motion="no-preference")


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("name", WIDGETS)
def test_high_contrast_and_a_zoom_of_200_percent_lose_nothing(tab, name):
    """The reader's own colours (forced-colors), and half the room."""
    shown = state(name, "harmless")
    mount(tab, PAGES.get(name, name), shown, "dark")
    tab.emulate_media(forced_colors="active", color_scheme="dark")
    try:
        found = contrasts(tab)
        assert len(found) >= 4
        assert [text for ratio, text in found if ratio < 4.5] == [], found[:5]
    finally:
        tab.emulate_media(forced_colors="none")

    mount(tab, PAGES.get(name, name), shown)
    wide = tab.viewport_size
    tab.set_viewport_size({"width": 560, "height": 450})
    try:
        # What is wider than the page scrolls within its own box.
        assert tab.evaluate("() => document.documentElement.scrollWidth") <= 560
        for each in tab.locator("#root button:visible, #root input:visible").all():
            each.scroll_into_view_if_needed()
            place = each.bounding_box()
            assert place["x"] >= 0, each.inner_text()
            assert place["x"] + min(place["width"], 40) <= 560, each.inner_text()
    finally:
        tab.set_viewport_size(wide)


@pytest.mark.browser
@pytest.mark.parametrize("name", ["live_view", "executables"])
def test_a_narrow_notebook_shows_all_columns_of_a_table(tab, name):
    """600 px of JupyterLab leave 484 to an output."""
    told = state(name, "")
    if name == "live_view":
        weight = "model.layers.0.attention.weight"
        (row,) = test_safety.live_report("train.py").rows
        held = replace(row, names=(weight,), holders=(Name(weight, "module"),))
        report = LiveReport(rows=(held,), step=12_345, growth=(), waiting=())
        told["table"] = live_table(report, {}, "size", reverse=False)
    if name == "executables":
        runtime: Any = SimpleNamespace(cached_executables=lambda: (executable(),))
        told["table"] = CacheTable(runtime).table()["html"]
    mount(tab, "live_view", told)
    wide = tab.viewport_size
    tab.set_viewport_size({"width": 484, "height": 700})
    try:
        found = tab.locator(".lzl-scroll").evaluate(
            "e => [e.scrollWidth, e.clientWidth]"
        )
    finally:
        tab.set_viewport_size(wide)

    assert found[0] <= found[1]


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("name", ["graph_view", "diff", "live_view", "executables"])
def test_a_question_mark_tells_the_keys(tab, name):
    """A help overlay in each view that has keys, by button and by key."""
    mount(tab, PAGES.get(name, name), state(name, "harmless"))
    button, keys = (
        tab.locator("button[aria-label=keys]"),
        tab.locator("#root kbd").first,
    )

    assert not keys.is_visible()
    button.click()
    assert keys.is_visible()
    host = tab.locator(".lzg-host") if name in {"graph_view", "diff"} else button
    host.focus()
    tab.keyboard.press("?")
    assert not keys.is_visible()


@pytest.mark.browser
@pytest.mark.slow
def test_a_wider_page_shows_more_of_a_drawing_and_no_larger_letters(tab):
    """Also after the reader has chosen a place, where nothing may jump."""
    mount(tab, "graph_view", state("graph_view", "harmless"))
    size = "() => document.querySelector('.lzg-host [data-b] text').getBoundingClientRect().height"
    tab.locator(".lzg-host").focus()
    tab.keyboard.press("+")
    before = tab.evaluate(size)
    try:
        for width in (1_900, 700, 1_200):
            tab.set_viewport_size({"width": width, "height": 900})
            tab.wait_for_timeout(100)
            assert tab.evaluate(size) == pytest.approx(before, rel=0.03)
    finally:
        tab.set_viewport_size({"width": 1_200, "height": 900})


# --- what a page sends


def bomb(around):
    """Return something so deep that Python can neither print nor compare it."""
    made: object = 0
    for _ in range(20_000):
        made = around(made)
    return made


ATOMS: list[object] = [
    bomb(lambda inner: [inner]), bomb(lambda inner: {"kind": inner}), [0] * 100_000, -(10**30), float("inf"),
    None, True, -1, 0, 1, 10**30, 1.5, float("nan"), "", "0", b"x", [], {}, [[]], {"kind": "hello"},
    "x" * 100_000, *PAYLOADS[:12], "drop", "evict", "cancel", "sort", "select", "value",
]  # fmt: skip
KEYS = (
    "kind", "box", "node", "output", "hops", "level", "text", "form", "by", "name", "at", "column",
    "confirmed", "visible", "key", "wait", "go", "call", "__class__",
)  # fmt: skip
KINDS = (
    "hello", "select", "node", "value", "check", "measure", "open", "inside", "focus", "back",
    "search", "form", "fold", "overlay", "input", "refresh", "sort", "drop", "keep", "visible",
    "evict", "cancel", "follow", "place", "__init__", "_apply",
)  # fmt: skip


def messages(seed, count):
    chance = random.Random(seed)  # noqa: S311 - which messages are tried
    for _ in range(count):
        made: object = {
            key: chance.choice(ATOMS)
            for key in chance.sample(KEYS, chance.randrange(6))
        }
        if isinstance(made, dict) and chance.random() < 0.8:
            made["kind"] = chance.choice(KINDS)
        yield made if chance.random() < 0.9 else chance.choice(ATOMS)


@pytest.fixture
def widgets(lab):
    """One widget of each kind, with what each sends."""
    from lazyviz.inspection import explorer

    lab.run_cell(
        "a = torch.ones(2, device='lazyrt')\nlazyrt.mark_step()\nb = a * 2 + 1"
    )
    made = [
        explorer.explore(lab.user_ns["b"]).widget,
        DiffView(test_safety.difference("x"))._widget(),
        TableView(LiveTable(lazyrt, lab), shell=lab),
        TableView(CacheTable(lazyrt)),
        WaitView(),
    ]
    yield made
    for each in made:
        each.close()


def test_no_message_of_a_page_breaks_a_widget_or_changes_the_program(
    lab, widgets, monkeypatch, caplog
):
    """Wrong types, huge numbers, missing keys, bombs of nested lists."""
    interrupts: list[int] = []
    monkeypatch.setattr("lazyviz.widgets.interrupt", lambda: interrupts.append(1))
    before = lazyrt.pending_graph().fingerprint
    names = sorted(name for name in lab.user_ns if not name.startswith("_"))
    kept = {entry.key for entry in lazyrt.cached_executables()}
    for widget in widgets:
        said: list[object] = []
        widget.send = lambda content, buffers=None, said=said: said.append(content)
        for message in messages(type(widget).__name__, 400):
            widget._received(widget, message, [])
        # Each is answered, most by a refusal; what a page is told stays small.
        assert len(said) >= (250 if not isinstance(widget, WaitView) else 0)
        assert max((len(repr(each)) for each in said), default=0) < 4_000

    assert not caplog.records  # nothing but refusals that were meant
    assert interrupts == []
    assert lazyrt.pending_graph().fingerprint == before
    assert sorted(name for name in lab.user_ns if not name.startswith("_")) == names
    assert {entry.key for entry in lazyrt.cached_executables()} >= kept
