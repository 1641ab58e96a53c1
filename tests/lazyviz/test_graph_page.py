"""The page of the graph view in a browser, without a kernel: where the reader looks.

Pan, zoom, the small map, pages that are drawn before they are seen.
"""

import re

import pytest

from lazygraph import diff, parse
from lazyviz.draw import svg
from lazyviz.draw.diff_html import diff_page
from lazyviz.draw.layout import lay_out
from lazyviz.draw.model import Box, DrawGraph
from lazyviz.inspection.comparison import DiffExplorer
from tests.conftest import find_browser
from tests.lazyviz.widget_pages import browsing_pages, mount, tell

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LENGTH = 60
_SEEN = """
() => {
  const dots = [...document.querySelectorAll(".lzg-map rect:not(.eye)")];
  return {
    box: document.querySelector(".lzg-host svg").getAttribute("viewBox").split(" ").map(Number),
    dots: dots.filter((dot) => Number(dot.getAttribute("width")) > 0).length,
    map: !document.querySelector(".lzg-map").hidden,
  };
}
"""


@pytest.fixture(scope="module")
def browser_tab():
    with browsing_pages(find_browser()) as tab:
        yield tab


@pytest.fixture
def tab(browser_tab):
    """A page that shows a drawing much higher than itself."""
    yield from showing(browser_tab, LENGTH, chains=1)


@pytest.fixture
def wide_tab(browser_tab):
    """A page that shows a drawing much wider than itself, and somewhat higher."""
    yield from showing(browser_tab, 30 * 16, chains=30)


def showing(browser_tab, length, chains):
    browser_tab.asked.clear()
    browser_tab.set_viewport_size({"width": 1200, "height": 900})
    boxes = tuple(Box(label=f"op{i}", members=(i,)) for i in range(length))
    edges = tuple((i, i + chains) for i in range(length - chains))
    graph = DrawGraph(boxes=boxes, edges=edges, nodes=length)
    drawn = svg.emit(graph, lay_out(graph, "layered"), inline=True, legend=False)
    choice: dict[str, object] = {"form": [], "fold": [], "overlay": [], "chosen": {}}
    texts = dict.fromkeys(("title", "legend", "panel", "twin"), "")
    browser_tab.state = {"svg": drawn, "crumbs": [], "controls": choice, **texts}
    mount(browser_tab, "graph_view", browser_tab.state)
    yield browser_tab
    assert not [one for one in browser_tab.asked if not one.startswith("data:")]


def seen(tab):
    return tab.evaluate(_SEEN)


def test_a_drag_pans_and_wheel_keys_and_buttons_zoom(tab):
    start = seen(tab)["box"]
    host = tab.locator(".lzg-host").bounding_box()
    x, y = host["x"] + 60, host["y"] + 300

    tab.mouse.move(x, y)
    tab.mouse.wheel(0, 200)  # scrolls the notebook: the view has no focus
    tab.wait_for_timeout(200)
    assert seen(tab)["box"] == start
    tab.mouse.down()
    tab.mouse.move(x, y - 100, steps=4)
    tab.mouse.up()

    panned = seen(tab)["box"]
    assert panned[1] > start[1]
    assert panned[2:] == start[2:]
    assert not tab.evaluate("() => window.sent.some((m) => m.kind === 'select')")
    tab.keyboard.down("Control")
    tab.mouse.wheel(0, -200)
    tab.keyboard.up("Control")
    tab.wait_for_function(f"() => ({_SEEN})().box[2] < {panned[2]}", timeout=5_000)
    closer = seen(tab)["box"]
    tab.locator(".lzg-host").focus()
    tab.keyboard.press("-")
    assert seen(tab)["box"][2] > closer[2]
    tab.keyboard.press("ArrowRight")
    assert seen(tab)["box"][0] > closer[0] - (seen(tab)["box"][2] - closer[2])
    tab.get_by_role("button", name="whole drawing").click()
    assert seen(tab)["box"][3] > start[3]
    assert not seen(tab)["map"]  # all is seen


def test_the_small_map_moves_the_view(tab):
    start = seen(tab)
    assert start["map"]
    assert start["dots"] == LENGTH

    small = tab.locator(".lzg-map").bounding_box()
    tab.mouse.click(small["x"] + small["width"] / 2, small["y"] + small["height"] * 0.9)

    assert seen(tab)["box"][1] > start["box"][1] + start["box"][3]


def test_a_wide_drawing_begins_at_its_top_without_empty_paper(wide_tab):
    host = wide_tab.locator(".lzg-host").bounding_box()
    left, top, width, height = seen(wide_tab)["box"]
    drawn = wide_tab.evaluate(
        "() => { const b = document.querySelector('.lzg-host svg').getBBox();"
        " return { x: b.x, y: b.y, width: b.width, height: b.height }; }"
    )

    assert drawn["width"] > 2 * width
    assert drawn["height"] > height
    assert width / height == pytest.approx(host["width"] / host["height"], rel=0.01)
    assert top >= drawn["y"] - 20
    assert left >= drawn["x"] - 20


def many_places(op):
    """Return a program with an op of each of 20 inputs, and with `sine` a chain of its own."""
    inputs = [f"  %p{k} = f32[{k + 1}] parameter({k})" for k in range(20)]
    ops = [f"  %o{k} = f32[{k + 1}] {op}(%p{k})" for k in range(20)]
    chain = ["  %c0 = f32[20] negate(%p19)"]
    chain += [f"  %c{k} = f32[20] exponential(%c{k - 1})" for k in range(1, 12)]
    results = [f"%o{k}" for k in range(20)] + ["%c11"] * (op == "sine")
    types = ", ".join(f"f32[{min(k + 1, 20)}]" for k in range(len(results)))
    rows = "\n".join(inputs + ops + (chain if op == "sine" else []))
    return f"HloModule {op}\n\nENTRY %main {{\n{rows}\n  ROOT %r = ({types}) tuple({', '.join(results)})\n}}\n"


def test_a_difference_opens_on_the_place_that_is_told_first(browser_tab):
    """Not on the top of the drawing, where some neighbour may stand."""
    explorer = DiffExplorer(diff(*map(parse, map(many_places, ("tanh", "sine")))))
    traits = ("title", "crumbs", "controls")
    shown = {name: getattr(explorer, name) for name in traits}
    texts = {"svg": explorer.drawing(), "legend": "", "panel": "", "twin": ""}

    mount(browser_tab, "graph_view", shown | texts)

    first = [box for box in explorer.shown.boxes if box.is_first]
    left, top, width, height = seen(browser_tab)["box"]
    boxes = browser_tab.evaluate(
        "() => [...document.querySelectorAll('[data-first]')].map((e) => {"
        " const b = e.getBBox();"
        " return [b.x + b.width / 2, b.y + b.height / 2, b.width / 2]; })"
    )
    assert len(boxes) == len(first)
    drawn = browser_tab.evaluate(
        "() => { const b = document.querySelector('.lzg-host svg').getBBox();"
        " return [b.x, b.width, b.height]; }"
    )
    assert drawn[1] > 1.5 * width or drawn[2] > 1.5 * height, (drawn, width, height)
    inside = [left < x < left + width and top < y < top + height for x, y, _ in boxes]
    assert sum(inside) > len(first) / 2
    # The first of all is whole.
    x, _, half = min(boxes, key=lambda box: box[1])
    assert left < x - half
    assert x + half < left + width


def test_the_page_of_a_difference_opens_its_picture_there_without_a_script(browser_tab):
    """The picture is wider than the page, and empty at its left end."""
    found = diff(*map(parse, map(many_places, ("tanh", "sine"))))
    page = diff_page(found)
    start = re.search(r"left:(\d+)px;top:(\d+)px;scroll-initial", page)
    assert start is not None

    browser_tab.set_viewport_size({"width": 600, "height": 800})
    try:
        browser_tab.set_content(page)
        browser_tab.wait_for_timeout(200)
        place = browser_tab.evaluate(
            "() => { const box = document.querySelector('svg.lzd').closest('[style*=overflow]');"
            " return [box.scrollLeft, box.scrollTop, box.scrollWidth, box.clientWidth]; }"
        )
    finally:
        browser_tab.set_viewport_size({"width": 1200, "height": 900})

    left, top, whole, seen_width = place
    assert whole > 2 * seen_width
    assert int(start[1]) > 0
    assert left == pytest.approx(min(int(start[1]), whole - seen_width), abs=2)
    assert top <= int(start[2])


def test_a_drawing_that_comes_while_the_page_is_not_seen_is_placed_once_it_is(tab):
    start = seen(tab)
    show = "how => { document.getElementById('root').style.display = how; }"

    tab.evaluate(show, "none")
    tell(tab, svg=tab.state["svg"])
    assert seen(tab)["dots"] == 0
    tab.evaluate(show, "")
    tab.wait_for_function(f"() => ({_SEEN})().dots > 0", timeout=5_000)

    assert seen(tab) == start


def test_the_keyboard_stays_in_a_drawing_that_is_drawn_anew(tab):
    focused = (
        "() => document.activeElement.dataset.b ?? document.activeElement.className"
    )
    tab.locator("[data-b='1']").focus()

    tell(tab, svg=tab.state["svg"])
    assert tab.evaluate(focused) == "lzg-host"
    tab.evaluate("() => window.model.say({ kind: 'panel', box: 3 })")
    assert tab.evaluate(focused) == "3"

    tab.get_by_role("searchbox").focus()
    tell(tab, svg=tab.state["svg"])
    tab.evaluate("() => window.model.say({ kind: 'panel', box: 2 })")
    assert tab.evaluate(focused) == ""


def test_a_window_that_is_made_narrow_shows_the_drawing_in_its_middle(tab):
    tab.set_viewport_size({"width": 480, "height": 900})
    tab.wait_for_timeout(200)
    untouched = seen(tab)["box"]
    tab.locator(".lzg-host").focus()
    tab.keyboard.press("ArrowDown")
    moved = seen(tab)["box"]

    tab.set_viewport_size({"width": 1200, "height": 900})
    tab.wait_for_timeout(200)

    middle = tab.evaluate(
        "() => { const b = document.querySelector('[data-b]').getBBox();"
        " return b.x + b.width / 2; }"
    )
    assert abs(untouched[0] + untouched[2] / 2 - middle) < untouched[2] / 10
    assert moved[1] > untouched[1]
    wider = seen(tab)["box"]  # where the reader had gone, with more beside it
    assert wider[1] == pytest.approx(moved[1], abs=1)
    assert wider[2] > 1.5 * moved[2]


def test_two_clicks_open_a_folded_box_and_ask_for_no_value(browser_tab):
    graph = DrawGraph(boxes=(Box(label="a", kind="group", members=(0, 1)),), edges=())
    then = {"kind": "select", "box": 0}
    answer = "box => window.model.say({ kind: 'panel', box: 0, then: box })"
    for tab in showing(browser_tab, LENGTH, chains=1):
        tell(tab, svg=svg.emit(graph, lay_out(graph, "layered"), inline=True))
        box = tab.locator(".lzg-host .g")

        box.dblclick()
        tab.evaluate(answer, then)  # to the first click, once the second has come
        tab.wait_for_timeout(500)

        asked = "window.sent.filter((m) => m.kind !== 'hello')"
        assert tab.evaluate(asked) == [
            {**then, "brief": True},
            {"kind": "open", "box": 0},
        ]
        box.click()
        tab.evaluate(answer, then)
        tab.wait_for_function(f"() => {asked}.length === 4")
        assert tab.evaluate(asked)[2:] == [{**then, "brief": True}, then]


def test_a_chosen_op_stays_chosen_and_in_sight_when_it_is_drawn_anew(tab):
    last = tab.locator(f".lzg-host [data-n='{LENGTH - 1}']")
    last.focus()
    tab.evaluate("box => window.model.say({ kind: 'panel', box })", LENGTH - 1)

    tell(tab, svg=tab.state["svg"])

    inside = """g => { const r = g.getBoundingClientRect(),
      h = document.querySelector(".lzg-host").getBoundingClientRect();
      return r.top >= h.top && r.bottom <= h.bottom; }"""
    assert "sel" in last.get_attribute("class").split()
    assert last.evaluate(inside)
    tell(tab, title="another program", svg=tab.state["svg"])
    assert "sel" not in last.get_attribute("class").split()
    assert not last.evaluate(inside)
