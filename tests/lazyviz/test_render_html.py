import base64
import dataclasses
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from lazyviz.doc import Table
from lazyviz.draw import svg
from lazyviz.draw.boxes import draw_graph
from lazyviz.draw.model import Box, DrawGraph
from lazyviz.render import html
from lazyviz.render.html import Section, page_html
from lazyviz.render.notes import Barrier, Fallback
from lazyviz.render.strip import Strip, bar_svg
from tests.lazyviz.ir_builder import perceptron, transformer

HOSTILE = '</details><script>alert(1)</script>"\' onerror="x" & <img src=x>'
VOID = {"img", "br", "meta"}
# What JupyterLab keeps of a notebook that is not trusted.
SAFE_TAGS = {"div", "details", "summary", "b", "span", "br", "ul", "li", "img", "pre"}
SAFE_TAGS |= {"table", "thead", "tbody", "tr", "th", "td"}
SAFE_ATTRIBUTES = {"class", "style", "src", "alt", "open"}

BUSY = Strip(
    pending_ops=9,
    new_ops=9,
    live_tensors=2,
    compiles=1,
    compile_ns=40_000_000,
    executions=1,
    execute_ns=10_000_000,
    barriers=(Barrier(cause="read", site="cell 3 line 7", nodes=214),),
    parts=(("trace", 30_000_000), ("compile", 40_000_000), ("execute", 10_000_000)),
    wall_ns=80_000_000,
    graph=draw_graph(perceptron()),
)


class Checker(HTMLParser):
    """Collects tags and texts, and sees that all elements are closed."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def check(source):
    checker = Checker()
    checker.feed(source)
    checker.close()
    assert checker.open == []
    return checker


def pictures(source):
    return [
        ET.fromstring(base64.b64decode(data))
        for data in re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", source)
    ]


def test_a_strip_folds_its_details_under_its_line():
    checker = check(BUSY.to_html())

    shown = "".join(checker.texts)
    assert shown.startswith(
        " compiled 1 in 40 ms · executed 1 in 10 ms · 9 pending ops (+9 here) · 2 live tensors"
    )
    assert "ran 214 ops here: read at cell 3 line 7" in shown
    assert checker.tags.count("details") == checker.tags.count("summary") == 1


def test_a_strip_needs_nothing_that_an_untrusted_notebook_drops():
    checker = check(BUSY.to_html())

    assert set(checker.tags) <= SAFE_TAGS
    assert {name for name, _ in checker.attributes} <= SAFE_ATTRIBUTES
    assert "var(" not in BUSY.to_html()


def test_the_pictures_of_a_strip_are_well_formed():
    small, bar, graph = pictures(BUSY.to_html())

    assert [
        len(list(p.iter("{http://www.w3.org/2000/svg}title"))) for p in (small, bar)
    ] == [3, 3]
    assert graph.get("aria-label") == "IR graph, 9 ops in 14 boxes"


def test_the_segments_of_a_bar_are_as_long_as_their_phases():
    root = ET.fromstring(bar_svg({"trace": 1, "compile": 2, "execute": 5}, width=80))

    group = root[-1]
    assert [(r.get("x"), r.get("width"), "".join(r.itertext())) for r in group] == [
        ("0.0", "10.0", "trace 1 ns"),
        ("10.0", "20.0", "compile 2 ns"),
        ("30.0", "50.0", "execute 5 ns"),
    ]


def test_a_strip_without_details_does_not_fold():
    assert check(Strip(live_tensors=1).to_html()).tags == ["div", "b"]


def test_a_strip_tells_what_stopped_its_cell():
    shown = Strip(error="ValueError").to_html()

    assert (
        '<b style="color:var(--jp-error-color1,#d14d72)">stopped by ValueError</b>'
        in shown
    )


def test_hostile_names_stay_texts():
    box = Box(label=HOSTILE, op=HOSTILE, site=HOSTILE, members=(1,))
    strip = dataclasses.replace(
        BUSY,
        error=HOSTILE,
        fallbacks=(Fallback(op=HOSTILE, site=HOSTILE),),
        barriers=(Barrier(cause=HOSTILE, site=HOSTILE, nodes=1),),
        reasons=(HOSTILE,),
        graph=DrawGraph(boxes=(box,), edges=(), nodes=1),
    )

    checker = check(strip.to_html())

    assert set(checker.tags) <= SAFE_TAGS
    assert {name for name, _ in checker.attributes} <= SAFE_ATTRIBUTES
    assert "".join(checker.texts).count("<script>alert(1)</script>") == 7
    assert len(pictures(strip.to_html())) == 3


def test_what_costs_time_is_told_without_unfolding():
    reasons = ("the first graph of this process", "`size`: 8 became 7")
    costly = dataclasses.replace(
        BUSY,
        fallbacks=(Fallback(op="aten.bincount.default", site=""),),
        reasons=reasons,
    )

    head, _, _ = costly.to_html().partition("</summary>")

    assert "1 of 2: recompiled: <code>size</code>: 8 became 7</span>" in head
    assert "the first graph" not in head
    assert "recompiled" not in BUSY.to_html()


@pytest.mark.parametrize(
    "source",
    [
        html.muted(HOSTILE),
        html.pre(HOSTILE),
        html.folded(HOSTILE, "<b>kept</b>"),
        Table([HOSTILE], [[HOSTILE], [1234]]).to_html(),
    ],
)
def test_every_part_escapes_its_texts(source):
    checker = check(source)

    assert HOSTILE in checker.texts
    assert set(checker.tags) <= SAFE_TAGS


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("ScheduleSyncTensorsGraph", "Schedule<wbr/>Sync<wbr/>Tensors<wbr/>Graph"),
        ("train (debug_env.py:16)", "train (debug_<wbr/>env.py:16)"),
        ("model.head.weight", "model.<wbr/>head.<wbr/>weight"),
        ("a<b>model.head.weight", "a&lt;b&gt;model.<wbr/>head.<wbr/>weight"),
        ("aten.relu.default", "aten.<wbr/>relu.<wbr/>default"),
        ("0.123456789012", "0.123456789012"),
        # A session's report looks for the home directory, and writes `~` for it.
        ("~/a_long.name/train.py:3", "~/a_long.name/train.py:3"),
        ("short_name", "short_name"),
    ],
)
def test_a_long_word_in_a_table_may_end_a_line_where_a_part_of_it_ends(cell, shown):
    page = Table(["what"], [[cell]]).to_html()

    assert f">{shown}</td>" in page
    ET.fromstring(page)


def test_floating_point_operations_stand_at_the_right_in_one_line():
    page = Table(["FLOPs"], [["158 MFLOPs"], ["22.1 kFLOPs"], ["0 FLOPs"]]).to_html()

    assert page.count("text-align:right") == 4
    assert page.count("nowrap") == 3


def test_a_duration_of_minutes_and_seconds_may_stand_in_two_lines():
    page = Table(["total"], [["15m55.564619s"], ["01s002ms"]]).to_html()

    assert ">15m<wbr/>55.564619s</td>" in page
    assert page.count("text-align:right") == 3
    assert page.count("nowrap") == 0


def test_a_large_graph_stays_within_the_size_that_is_embedded():
    source = svg.graph_html(draw_graph(transformer(12)), budget=300)

    (data,) = re.findall(r"base64,([\w+/=]+)", source)
    assert len(base64.b64decode(data)) <= svg.MAX_EMBEDDED_BYTES


def test_why_another_engine_drew_a_graph_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LAZYVIZ_LAYOUT", "dot")

    source = svg.graph_html(draw_graph(perceptron()))

    assert "layout: dot: not installed here" in source


def test_a_page_needs_no_other_file():
    page = page_html(
        f"Tour {HOSTILE}",
        [Section(title=HOSTILE, body=BUSY.to_html()), ("", "<p>end</p>")],
    )

    checker = check(page.replace("<!DOCTYPE html>\n", ""))
    assert page.startswith("<!DOCTYPE html>")
    assert "prefers-color-scheme: dark" in page
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)
    assert "script" not in checker.tags
    assert checker.tags.count("section") == 2
    assert checker.tags.count("h2") == 1


@pytest.mark.browser
@pytest.mark.slow
def test_in_a_browser_the_pictures_of_a_page_are_shown(browser_path, tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    path = tmp_path / "page.html"
    path.write_text(page_html("Tour", [("Cell", BUSY.to_html())]))

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path,
            args=["--headless", "--no-sandbox", "--disable-gpu"],
        )
        page = browser.new_page()
        page.goto(path.as_uri())
        page.locator("summary").click()
        shown = page.evaluate(
            "() => [...document.images].map(i => i.complete && i.naturalWidth > 0 && i.height > 0)"
        )
        browser.close()

    assert shown == [True] * 3


def test_the_class_of_an_optimizer_is_not_what_a_sentence_is_about():
    shown = html.sentences(
        [
            "inputs AdamW: `exp_avg` of 2 parameters are gone",
            "code path changed: `aten.relu` is new",
        ]
    )

    assert "<b>inputs" not in shown
    assert "<b>code path changed:</b>" in shown
