"""The static forms of all views in a browser: names for a screen reader, headings, contrast."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

import lazyviz
from tests.conftest import displayed
from tests.lazyviz.widget_pages import (
    THEMES,
    browsing_pages,
    contrasts,
    theme_variables,
    unnamed,
)

DATA = Path(__file__).parent.parent / "data"
LINES = (
    "graph", "explore", "hlo", "metrics", "live", "step", "why", "graphs", "cache",
    "cache --sort size", "timeline", "compile", "diff last",
)  # fmt: skip
# What a notebook's own style sheet gives to an output.
OUTPUT = (
    "body{margin:0;background:var(--jp-layout-color0);color:var(--jp-content-font-color1);"
    "font:14px var(--jp-content-font-family)}a{color:var(--jp-content-link-color)}"
)


@pytest.fixture(scope="module")
def tab():
    from tests.conftest import find_browser

    with browsing_pages(find_browser()) as found:
        yield found


@pytest.fixture
def views(lab):
    """Return the static HTML of a strip, a tensor and every magic that has some, by name."""
    found = {}

    def run(name, source):
        lab.display_pub.outputs.clear()
        lab.run_cell(source, store_history=True)
        pages = displayed(lab, "text/html")
        assert pages, name
        found[name] = pages[0]

    run("step", "with lazyrt.step('a'):\n    y = torch.relu(x + 1).sum()\nprint(y)")
    run("step again", "with lazyrt.step('a'):\n    z = torch.tanh(x * 2).sum()\nprint(z)")  # fmt: skip
    run("strip", "values = torch.nn.Linear(3, 8).to('lazyrt')(x).relu()\nprint(values)")
    run("tensor", "display(torch.rand(3, 32, 40, device='lazyrt'))")
    for line in LINES:
        run(line, f"%lazy {line}")
    return found


def shown(tab, body, theme):
    """Show the HTML of an output, with everything unfolded."""
    tab.emulate_media(color_scheme=theme)
    is_light = str(theme == "light").lower()
    tab.set_content(
        f"<!DOCTYPE html><html lang=en><style>{theme_variables(theme)}{OUTPUT}</style>"
        f"<body data-jp-theme-light={is_light}><div id=root>{body}</div></body>"
    )
    tab.evaluate(
        "() => document.querySelectorAll('details').forEach(d => d.open = true)"
    )


def roles(tab):
    """Return role and name of what a screen reader walks through, in order."""
    session = tab.context.new_cdp_session(tab)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    return [
        (node["role"]["value"], node.get("name", {}).get("value", "").strip())
        for node in nodes
        if not node.get("ignored")
    ]


@pytest.mark.browser
@pytest.mark.slow
def test_a_screen_reader_names_all_of_every_static_view(views, tab):
    """Pictures and folds have names, tables have headings, in Chromium's own tree."""
    for name, body in views.items():
        shown(tab, body, "light")
        heard = roles(tab)
        tables = body.count("<table")
        heads = [words for role, words in heard if role == "columnheader"]

        assert unnamed(tab) == [], name
        assert sum(role == "table" for role, _ in heard) == tables, name
        assert len(heads) >= tables, name
        assert all(heads), (name, heads)
        folds = sum(role == "DisclosureTriangle" for role, _ in heard)
        assert folds == body.count("<summary"), name
        pictures = [words for role, words in heard if role in {"image", "img"}]
        # A black square of a legend is no picture; each <img> is.
        assert len(pictures) >= body.count("<img"), name
        assert not any(words.startswith("data:") for words in pictures), name

    assert sum(body.count("<table") for body in views.values()) >= 8
    assert sum(body.count("<img") for body in views.values()) >= 5


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("theme", THEMES)
def test_every_text_of_every_static_view_can_be_read(views, tab, theme):
    """In JupyterLab's colours, light and dark."""
    for name, body in views.items():
        shown(tab, body, theme)

        texts = [
            each for each in contrasts(tab) if each[1] != "■"
        ]  # its word is beside it
        assert texts or "<img" in body, name
        assert [each for each in texts if each[0] < 4.5] == [], name


@pytest.mark.browser
@pytest.mark.slow
def test_tables_fit_a_narrow_notebook(views, tab):
    """600 px of JupyterLab leave 484 to an output, whose cells have 6 px on each side.

    Long names end a line where a part of them ends, so that nothing scrolls sideways.
    """
    foreign = (
        "pt_xla_debug.log",
        "save_tensors.hlo",
        "report_torch_xla_2_9.txt",
        "report_2022.txt",
    )
    narrow = {name: views[name] for name in ("metrics", "graphs", "step", "compile")}
    narrow |= {name: lazyviz.read(DATA / name).to_html() for name in foreign}
    widths = {}
    tab.set_viewport_size({"width": 484, "height": 800})
    try:
        for name, body in narrow.items():
            shown(tab, f"<style>td,th{{padding:6px}}</style>{body}", "light")
            tab.evaluate(
                "document.querySelectorAll('details').forEach(d => d.open = false)"
            )
            widths[name] = tab.evaluate("document.documentElement.scrollWidth")
    finally:
        tab.set_viewport_size({"width": 1200, "height": 900})

    assert widths == dict.fromkeys(narrow, 484)
    assert "std dev" in views["metrics"]


@pytest.mark.browser
@pytest.mark.slow
def test_the_report_has_headings_in_order_and_one_language(lab, tab, tmp_path):
    """A page of its own, so it needs a structure of its own."""
    lab.run_cell("y = torch.relu(x + 1).sum()\nprint(y)", store_history=True)
    lab.run_cell(f"%lazy report {tmp_path}/page.html", store_history=True)
    tab.goto((tmp_path / "page.html").as_uri())
    tab.evaluate(
        "() => document.querySelectorAll('details').forEach(d => d.open = true)"
    )

    levels = tab.evaluate(
        "() => [...document.querySelectorAll('h1,h2,h3,h4')].map((e) => Number(e.tagName[1]))"
    )
    heard = roles(tab)

    assert tab.evaluate("() => document.documentElement.lang") == "en"
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert unnamed(tab) == []
    kinds = {role for role, _ in heard}
    assert {"main", "navigation", "heading"} <= kinds
    assert not re.search(r'tabindex="[1-9]', (tmp_path / "page.html").read_text())
