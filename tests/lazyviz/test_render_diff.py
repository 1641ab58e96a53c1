"""What is shown of a diff: text, DOT, SVG, HTML."""

import random
import re
import shutil
import subprocess
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from lazygraph import diff, group_hunks, parse
from lazyviz.__main__ import main
from lazyviz.draw.diff import union_graph
from lazyviz.draw.diff_html import diff_doc, diff_page
from lazyviz.draw.diff_text import diff_text, pairing_lines
from lazyviz.draw.layout import lay_out, to_dot
from lazyviz.draw.svg import emit
from tests.hlo_pairs import graph_of_program, text_of, transformer

BEFORE = """\
HloModule before

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %t = f32[4]{0} tanh(%p)
}

ENTRY %main (x: f32[4]) -> (f32[4], f32[4]) {
  %x = f32[4]{0} parameter(0)
  %dead = s32[] constant(9), metadata={op_name="aten__sum"}
  %f = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused, metadata={op_name="enc.0/f" source_file="m.py" source_line=3}
  %e = f32[4]{0} exponential(%f), metadata={op_name="enc.1/<b>" source_file="m.py" source_line=5}
  ROOT %o = (f32[4]{0}, f32[4]{0}) tuple(%e, %f)
}
"""
AFTER = (
    BEFORE.replace("tanh", "sine")
    .replace("exponential(%f)", "exponential(%n)")
    .replace("  %e =", "  %n = f32[4]{0} negate(%f)\n  %e =")
    .replace("before", "after")
)


def found():
    return diff(parse(BEFORE), parse(AFTER))


def test_a_diff_as_text():
    assert diff_text(found()).split("\n") == [
        "before → after",
        "3 → 4 instructions; +1 added, ~1 changed, ⇄1 with other operands; 1 place",
        "code path changed: 1 op is new (negate), first %n",
        "in the calls of %f at m.py:3 in enc.0: code path changed: %t at m.py:3 in enc.0 is sine, was tanh",
        "dead code on both sides, no effect on results: 1 constant(9) s32[] of aten__sum (4 bytes)",
        "@@ enc.0, enc.1  m.py:3  (3 instructions)",
        " ~ %f = f32[4] fusion(%x), calls=%fused, kind=kLoop",
        "   was %f = f32[4] fusion(%x), calls=%fused, kind=kLoop",
        "   within calls: %fused → %fused:",
        "     ~ %t = f32[4] sine(%p)",
        "       was %t = f32[4] tanh(%p)",
        " + %n = f32[4] negate(%f)",
        " ⇄ %e = f32[4] exponential(%n)",
        "   was %e = f32[4] exponential(%f)",
    ]


def test_dead_code_says_what_it_would_cost_and_who_made_it():
    wasted = '  %sq = f32[4]{0} multiply(%x, %x), metadata={op_name="enc.0/aten.mul" source_file="m.py" source_line=8}\n'
    after = BEFORE.replace("  %dead =", f"{wasted}  %dead =")
    different = diff(parse(BEFORE), parse(after))

    assert different.cost == 0
    (remark,) = [line for line in diff_text(different).split("\n") if "dead" in line]
    assert remark.endswith("of aten__sum (4 bytes) → 1 multiply f32[4] of aten.mul at m.py:8, "
                           "1 constant(9) s32[] of aten__sum (20 bytes, 4 FLOP)")  # fmt: skip
    page = diff_page(different)
    assert "sq = f32[4] multiply()  # 16 bytes, 4 FLOP, enc.0, m.py:8, aten.mul" in page


def readers(numbers, first="p", rows=None):
    """Return a program in which each of equal inputs is read by another number of ops."""
    order = list(numbers)
    lines = [
        f"  %{first}{k} = f32[{(rows or {}).get(k, 4)}] parameter({place})"
        for place, k in enumerate(order)
    ]
    for k in sorted(order):
        size, last = (rows or {}).get(k, 4), f"%{first}{k}"
        for turn in range(k + 1):
            lines.append(f"  %t{k}.{turn} = f32[{size}] tanh({last})")
            last = f"%t{k}.{turn}"
    ends = ", ".join(f"%t{k}.{k}" for k in sorted(order))
    types = ", ".join(f"f32[{(rows or {}).get(k, 4)}]" for k in sorted(order))
    body = "\n".join(lines)
    return f"HloModule m\n\nENTRY %main {{\n{body}\n  ROOT %o = ({types}) tuple({ends})\n}}\n"


def test_permuted_inputs_are_paired_by_use_and_each_row_says_why():
    order = random.Random(3).sample(range(26), 26)  # noqa: S311
    moved = sum(place != k for place, k in enumerate(order))
    permuted = diff(parse(readers(range(26))), parse(readers(order, first="q8")))

    assert permuted.cost == 0
    assert permuted.changed == []
    text = diff_text(permuted)
    assert f"equal up to another order of {moved} parameters" in text
    assert {permuted.a.names[x][2:] for x, _ in permuted.moved_parameters} == {
        permuted.b.names[y][3:] for _, y in permuted.moved_parameters
    }
    lines = pairing_lines(permuted)
    assert len(lines) == moved
    for line in lines:
        k, partner = int(line.split()[0][2:]), line.split(" → ")[1]
        assert partner.startswith(
            f"%q8{k} ({order.index(k)}): same shape, same reader %t{k}.0"
        )
    assert "same reader %t" in diff_page(permuted)

    wider = diff(parse(readers(range(4))), parse(readers(range(4), rows={2: 8})))
    (line,) = pairing_lines(wider)
    assert line == "%p2 (2) → %p2 (2): f32[4] → f32[8], same reader %t2.0 (tanh)"


def test_equal_programs_as_text():
    same = diff(parse(BEFORE), parse(BEFORE))

    assert diff_text(same).split("\n")[1] == "3 → 3 instructions: no difference"


def test_places_alike_are_drawn_once():
    a, _ = graph_of_program(transformer(4))
    b, _ = graph_of_program(transformer(4, dropout=range(4)))
    union = union_graph(diff(a, b))

    assert {box.count for box in union.boxes if box.change == "added"} == {4}
    assert sum(box.change == "added" for box in union.boxes) == 3
    assert union.left_out == 9  # the other places; what follows from them is folded
    assert "×4" in to_dot(union)


def test_a_change_that_reaches_every_layer_is_told_once_for_all_of_them():
    """Hunks by scope and line: the input that began it first, then a layer for all."""
    a, _ = graph_of_program(transformer(5))
    b, _ = graph_of_program(transformer(5, batch=12))
    found = diff(a, b)
    groups = group_hunks(found.hunks())
    lines = diff_text(found).split("\n")
    heads = [line for line in lines if line.startswith("@@")]

    assert len(found.changed) > 300
    assert sum(len(hunk) for group in groups for hunk in group.hunks) == len(
        found.changed
    )
    assert [group.follows for group in groups] == sorted(g.follows for g in groups)
    begun = [g.exemplar for g in groups if not g.follows]
    assert any(b.ops[y] == "parameter" for hunk in begun for _, y in hunk.changed)
    assert sum("×5 places alike" in head for head in heads) >= 5
    assert all(head.count("encoder.layer") < 2 for head in heads)
    assert len(lines) < 90
    drawn = [box for box in union_graph(found).boxes if box.change == "changed"]
    assert "~ parameter" in [box.label for box in drawn]
    assert [box.label for box in drawn if not box.follows] == ["~ parameter"]
    folded = [box for box in drawn if box.kind == "group"]
    assert len(folded) > 2
    assert all("follow" in box.label for box in folded)


def test_a_large_difference_stays_small_on_paper():
    a, _ = graph_of_program(transformer(2))
    b, _ = graph_of_program(transformer(8))

    union = union_graph(diff(a, b), 60)

    assert len(union.boxes) <= 120
    assert union.left_out > 1000
    assert any(box.hidden for box in union.boxes)


@pytest.mark.slow
def test_the_page_of_forty_thousand_instructions_opens_on_the_difference(
    tmp_path, capsys
):
    """The same layers twice and one more: what is drawn and listed is the new one."""
    names = [*range(48), "new", *range(48, 96)]
    for file, program in (
        ("a.hlo", transformer(96)),
        ("b.hlo", transformer(names=names)),
    ):
        text, _ = text_of(program, seed=len(file), shuffle=True)
        (tmp_path / file).write_text(text)
    page = tmp_path / "out.html"

    assert main(
        ["diff", *(str(tmp_path / f"{k}.hlo") for k in "ab"), "--html", str(page)]
    ) in {0, 1}

    shown = capsys.readouterr().out
    sizes = re.search(r"([\d,]+) → ([\d,]+) instr", shown)
    hunks = re.findall(r"^@@.*", shown, re.MULTILINE)
    assert sizes is not None
    assert min(int(each.replace(",", "")) for each in sizes.groups()) > 39_000
    assert all("layer.new" in each for each in hunks[:5])
    assert sum("layer.new" not in each for each in hunks) <= 1  # where it was put in
    html = page.read_text()
    assert "layer.new" in html
    assert len(html) < 400_000
    assert html.count("<g class=") < 600


@pytest.mark.graphviz
@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_takes_the_dot():
    done = subprocess.run(
        ["dot", "-Tsvg"],
        input=to_dot(union_graph(found())),
        capture_output=True,
        text=True,
        check=True,
    )

    assert "negate" in done.stdout


def test_the_dot_names_marks_scopes_and_edges():
    dot = to_dot(union_graph(found()))

    assert "+ negate\nf32[4]" in dot
    assert 'tooltip="in calls: tanh → sine enc.0 m.py:3"' in dot
    assert 'color="#D55E00" penwidth=2 style=dashed' in dot  # the edge that is gone


def test_boxes_of_the_picture_link_to_their_entries_on_the_page():
    page = diff_page(found())
    graph = union_graph(found())
    picture = ET.fromstring(emit(graph, lay_out(graph, "layered"), links=True))
    links = {
        link.attrib["href"].lstrip("#")
        for link in picture.iter("{http://www.w3.org/2000/svg}a")
        if all(child.attrib["class"] != "ds" for child in link)
    }

    assert links == {"b1", "b2", "b3"}
    assert all(f'id="{link}"' in page for link in links)


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_a_box_says_in_words_what_differs_within_what_it_calls():
    """No fingerprint; loops within loops, constants by their value."""
    details = {
        box.detail for box in union_graph(found()).boxes if box.change == "changed"
    }
    edits = {
        "tanh(%p)": ("sine(%p)", "in calls: tanh → sine"),
        "%c = f32[] constant(2)": (
            "%c = f32[] constant(3)",
            "in calls: constant 2 → 3",
        ),
        "negate(%h)": ("abs(%k)", "in calls: negate → abs, + cosine"),
        "multiply(%b, %t)": ("multiply(%t, %b)", "in calls: ⇄ multiply"),
    }

    assert details == {"in calls: tanh → sine"}
    for before, (after, words) in edits.items():
        edited = _CALLING.replace(before, after)
        if "%k" in after:
            edited = edited.replace(
                "  ROOT %n", "  %k = f32[4]{0} cosine(%h)\n  ROOT %n"
            )
        (box,) = [
            box
            for box in union_graph(diff(parse(_CALLING), parse(edited))).boxes
            if box.change == "changed"
        ]
        assert box.detail in {words, words.replace("in calls", "in calls: in calls")}
        assert "#" not in diff_text(diff(parse(_CALLING), parse(edited)))


_CALLING = """HloModule m
%inner (q: f32[4]) -> f32[4] {
  %q = f32[4]{0} parameter(0)
  %h = f32[4]{0} exponential(%q)
  ROOT %n = f32[4]{0} negate(%h)
}
%outer (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %t = f32[4]{0} tanh(%p)
  %c = f32[] constant(2)
  %b = f32[4]{0} broadcast(%c), dimensions={}
  %m = f32[4]{0} multiply(%b, %t)
  ROOT %i = f32[4]{0} fusion(%m), kind=kLoop, calls=%inner
}
ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  ROOT %f = f32[4]{0} fusion(%x), kind=kLoop, calls=%outer
}
"""


def test_the_page_shows_both_sides_and_what_differs_within_a_fusion():
    page = diff_page(found())

    assert "differs within calls: %fused → %fused" in page
    assert "%t = f32[4] sine(%p)" in page
    assert "was %t = f32[4] tanh(%p)" in page
    assert "<b>line</b> m.py:5" in page
    assert "<b>module</b> enc.1" in page


@pytest.mark.parametrize("render", [diff_page, lambda found: diff_doc(found).to_html()])
def test_html_needs_nothing_from_elsewhere_and_escapes_what_it_shows(render):
    html = render(found())
    tags = Tags()
    tags.feed(html)

    assert "<b>exponential" not in html
    assert "enc.1/<b>" not in html
    for tag, attributes in tags.found:
        assert tag not in {"script", "link", "iframe", "object"}
        for name in ("src", "href", "action"):
            target = attributes.get(name, "#")
            assert target.startswith(("#", "data:image/svg+xml;base64,"))
    assert not any(name.startswith("on") for _, each in tags.found for name in each)


def test_hostile_names_stay_text():
    bad = '<img src=x onerror=alert(1)>\\"'
    text = BEFORE.replace("enc.0/f", bad).replace("m.py", bad)
    page = diff_page(diff(parse(text), parse(AFTER)))
    tags = Tags()
    tags.feed(page)

    assert not any(tag == "img" for tag, _ in tags.found)
    assert "&lt;img src=x" in page


def test_a_notebook_gets_text_and_a_picture():
    doc = diff_doc(found())

    assert doc.to_text().startswith("before → after")
    assert "data:image/svg+xml;base64," in doc.to_html()


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_a_click_on_each_box_unfolds_its_entry(
    browser_path, tmp_path, scheme
):
    """Source line, module path, both sides; from there on to what it reads, and into calls."""
    sync_api = pytest.importorskip("playwright.sync_api")
    path = tmp_path / "page.html"
    path.write_text(diff_page(found()), encoding="utf-8")

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path,
            args=["--headless", "--no-sandbox", "--disable-gpu"],
        )
        page = browser.new_page(color_scheme=scheme)
        page.goto(path.as_uri())
        entries = {}
        for link in page.locator("svg a").all():
            link.click()
            entries[link.get_attribute("href")] = page.locator(":target").inner_text()
            assert page.locator(":target").is_visible()
        changed = page.locator("tr", has=page.locator("#b1"))
        both = changed.inner_text()
        page.locator("#b3 a[href='#b2']").click()  # what the last one reads
        followed = page.url
        page.get_by_text("differs within calls: %fused → %fused").click()
        within = page.get_by_text("%t = f32[4] sine(%p)")
        assert within.is_visible()
        page.locator("#b2 a[href='#b1']").click()
        assert page.url.endswith("#b1")
        browser.close()

    assert sorted(entries) == ["#b0", "#b1", "#b2", "#b3"]
    assert "read by" in entries["#b0"]
    assert "line m.py:3" in entries["#b1"]
    assert "module enc.0" in entries["#b1"]
    assert both.count("fusion(%x)") == 2
    assert "line m.py:5" in entries["#b3"]
    assert followed.endswith("#b2")
