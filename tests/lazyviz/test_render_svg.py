import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from lazyviz.draw.boxes import draw_graph
from lazyviz.draw.layout import lay_out
from lazyviz.draw.model import Box, DrawGraph
from lazyviz.draw.palette import stylesheet
from lazyviz.draw.svg import draw, emit, legend_svg
from tests.lazyviz.ir_builder import chain, perceptron, transformer

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</text><script>alert(1)</script>"\' onload="x" & <!-- ]]> \x00\x1b\ud800'


def nodes(root):
    return [group for group in root.iter(f"{SVG}g") if "tabindex" in group.attrib]


def test_a_drawing_is_well_formed_and_has_every_box():
    drawing = draw(draw_graph(perceptron()), engine="layered")

    root = ET.fromstring(drawing.svg)

    assert root.tag == f"{SVG}svg"
    assert root.get("aria-label") == "IR graph, 9 ops in 14 boxes"
    assert root.get("width") == str(drawing.width)
    assert len(nodes(root)) == 14
    assert [group.get("data-n") for group in nodes(root) if group.get("data-n")] == [
        *map(str, range(1, 10))
    ]


def test_a_box_can_be_reached_and_read_without_a_mouse():
    root = ET.fromstring(draw(draw_graph(perceptron()), engine="layered").svg)
    group = nodes(root)[-1]

    title = group.find(f"{SVG}title")
    assert title is not None
    assert title.text == (
        "aten.expand.default\nf32[8,2]\nnode %9\nfc2 (backward)\ncell 3 line 7\n"
        "output: a live tensor"
    )
    assert group.get("aria-label") == (title.text or "").replace("\n", ", ")
    assert (group.get("role"), group.get("tabindex")) == ("button", "0")
    assert group.get("class") == "b q"


def test_kinds_of_boxes_have_classes_and_a_legend():
    root = ET.fromstring(draw(draw_graph(perceptron()), engine="layered").svg)

    assert {(g.get("class") or "").split()[0] for g in nodes(root)} == set("porcb")
    legend = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "h"]
    assert legend == ["input", "number", "random", "op", "backward", "output"]


@pytest.mark.parametrize("engine", ["dot", "layered"])
def test_hostile_texts_stay_texts(engine):
    box = Box(
        label=HOSTILE, detail=HOSTILE, op=HOSTILE, path=(HOSTILE,), site=HOSTILE, members=(1,)
    )  # fmt: skip
    graph = DrawGraph(boxes=(box, box, Box(label="add")), edges=((0, 1),), nodes=1)

    picture = draw(graph, engine=engine).svg

    root = ET.fromstring(picture.encode())
    assert len(list(root.iter(f"{SVG}script"))) == 0
    assert all("onload" not in element.attrib for element in root.iter())
    assert len(nodes(root)) == 3


def test_a_large_graph_is_folded_and_says_so():
    whole = draw_graph(chain(5000))
    others = tuple(replace(box, op=f"{k}") for k, box in enumerate(whole.boxes))

    for graph, boxes in ((whole, 2), (replace(whole, boxes=others), 24)):
        drawing = draw(graph, engine="layered")
        root = ET.fromstring(drawing.svg)
        assert root.get("aria-label") == f"IR graph, 5,000 ops in {boxes} boxes"
        assert len(drawing.svg) < 16_000


def test_the_legend_explains_lines_and_repetitions_where_there_are_some():
    """Dashed lines are views, dotted ones what overwrites an input."""
    boxes = (
        Box(label="x", kind="parameter"),
        Box(label="t", op="t", members=(1,), count=12),
        Box(label="add_", op="add_", members=(2,)),
    )
    bare = DrawGraph(boxes=boxes, edges=((0, 1), (1, 2)), nodes=2)
    full = replace(bare, aliases=frozenset({(0, 1)}), updates=((2, 0),))
    shaded = replace(full, legend=(("", "bytes of results"),))

    for graph, words in (
        (bare, ["input", "op", "×n: repeats n times"]),
        (full, ["input", "op", "×n: repeats n times", "view: shares memory", "overwrites"]),
        (shaded, ["bytes of results", "view: shares memory", "overwrites"]),
    ):  # fmt: skip
        root = ET.fromstring(legend_svg(graph))
        assert [text.text for text in root.iter(f"{SVG}text")] == words
        lines = [path.get("class") for path in root.iter(f"{SVG}path")]
        assert lines == ([] if graph is bare else ["e al", "e up"])


def test_a_long_legend_has_rows_that_fit_half_a_page():
    words = tuple(
        ("k1", f"{number} to {number + 1} milliseconds") for number in range(8)
    )
    graph = DrawGraph(boxes=(Box(label="x"),), edges=(), legend=words)

    root = ET.fromstring(legend_svg(graph))

    assert int(root.get("width") or 0) < 450
    rows = {text.get("y") for text in root.iter(f"{SVG}text")}
    assert int(root.get("height") or 0) == 14 * len(rows) > 14


def test_repeated_boxes_are_stacks_with_their_number():
    graph = draw_graph(transformer(12, lines=1))

    root = ET.fromstring(draw(graph, budget=40, engine="layered").svg)

    stack = next(g for g in nodes(root) if "gelu" in (g.get("aria-label") or ""))
    assert len(stack.findall(f"{SVG}rect")) == 3
    assert "gelu ×12" in "".join(stack.itertext())


def test_an_empty_graph_is_an_empty_picture():
    root = ET.fromstring(draw(DrawGraph(boxes=(), edges=())).svg)

    assert root.get("aria-label") == "IR graph, 0 ops"


def test_a_picture_knows_light_and_dark_and_an_inline_one_the_themes_of_editors():
    assert "prefers-color-scheme:dark" in stylesheet()
    assert "data-jp-theme-light" not in stylesheet()
    assert "[data-jp-theme-light=false]" in stylesheet(inline=True)
    assert stylesheet(inline=True).count("{") == stylesheet(inline=True).count("}")


@pytest.mark.parametrize("kind", list("obrpcg"))
@pytest.mark.parametrize("theme", [0, 1])
def test_texts_stand_out_from_their_boxes(kind, theme):
    colour = re.findall(
        rf"--{kind}f:(#\w+);--{kind}s:(#\w+);--{kind}t:(#\w+)", stylesheet()
    )
    fill, _, ink = colour[theme]

    assert contrast(fill, ink) >= 7


def contrast(first, second):
    lighter, darker = sorted(map(luminance, (first, second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_texts_fit_their_boxes(browser_path, scheme):
    sync_api = pytest.importorskip("playwright.sync_api")
    graph = draw_graph(perceptron())
    picture = emit(graph, lay_out(graph, "layered"), inline=True)
    script = """() => [...document.querySelectorAll('g[tabindex]')].map(g => {
        const box = g.querySelector('rect:last-of-type').getBBox();
        const texts = [...g.querySelectorAll('text')].map(t => t.getBBox());
        return texts.every(t => t.x >= box.x && t.x + t.width <= box.x + box.width &&
            t.y >= box.y && t.y + t.height <= box.y + box.height + 1);
    })"""

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path,
            args=["--headless", "--no-sandbox", "--disable-gpu"],
        )
        page = browser.new_page(color_scheme=scheme)
        page.set_content(f"<body>{picture}</body>")
        fits = page.evaluate(script)
        fill = page.evaluate(
            "() => getComputedStyle(document.querySelector('g.o>rect')).fill"
        )
        browser.close()

    assert fits == [True] * 14
    assert fill == {"light": "rgb(237, 243, 252)", "dark": "rgb(31, 43, 64)"}[scheme]


def test_a_name_of_twenty_thousand_letters_makes_no_large_picture():
    """Sizes of outputs are bounded; the listing has such a name in full."""
    box = Box(label="n" * 20_000, op="o" * 20_000, path=("m" * 20_000,), site="s" * 20_000, members=(1,))  # fmt: skip
    graph = DrawGraph(boxes=(box, box), edges=((0, 1),), nodes=2)

    assert len(draw(graph, engine="layered").svg) < 16_000


def difference():
    """Return a drawing in which one box is new and one edge is gone."""
    boxes = (
        Box(label="x", change="same"),
        Box(label="+ tanh", change="added", count=2, hidden=3, anchor="b1"),
        Box(label="~ add", change="changed"),
    )
    return DrawGraph(
        boxes=boxes,
        edges=((0, 1), (0, 2), (1, 2)),
        added=frozenset({(0, 1), (1, 2)}),
        removed=frozenset({(0, 2)}),
    )


def test_a_box_of_a_diff_has_the_class_and_the_words_of_its_change():
    root = ET.fromstring(emit(difference(), lay_out(difference(), "layered")))

    assert [group.get("class") for group in nodes(root)] == ["ds", "da", "dc"]
    assert nodes(root)[1].get("aria-label") == (
        "added, + tanh ×2, 2 places alike, … 3 neighbours not drawn"
    )
    edges = [path for path in root.iter(f"{SVG}path") if "M" in path.get("d", "")]
    assert {path.get("class") for path in edges} == {"e dr", "a dr", "e da", "a da"}
    legend = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "h"]
    assert legend == ["+ added", "~ changed", "the same"]


def test_a_diff_follows_the_theme_and_leaves_other_drawings_of_a_page_alone():
    """Rules for boxes of a diff name its own class: a page has the rules of all its drawings."""
    style = stylesheet(inline=True, diff=True)

    assert "--dsf:#FFFFFF" in style
    assert "--dsf:#23282F" in style
    assert ".lzd g>rect" in style
    assert ".lzd" not in stylesheet(inline=True)
    assert len(stylesheet(diff=True)) < len(stylesheet())


def test_edges_that_came_and_went_follow_where_boxes_are_folded():
    graph = difference()

    part = graph.rewired(graph.boxes[1:], [(0, 1)], {1: 0, 2: 1})

    assert part.added == {(0, 1)}
    assert part.removed == frozenset()
