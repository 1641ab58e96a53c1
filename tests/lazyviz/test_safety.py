"""No text of a user's program is taken as code: in HTML, SVG, DOT, text or a widget."""

import base64
import dataclasses
import random
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import lazyviz
from lazygraph import diff
from lazygraph.graph import PARAMETER, GraphBuilder, Origin
from lazygraph.snapshot import Name
from lazyrt.control.live_tensors import Growth, LiveReport, LiveRow, Waiting
from lazyrt.execution.preview import Look, Summary
from lazyrt.observe.events import SourceLocation
from lazyviz.doc import Table
from lazyviz.documents import tour
from lazyviz.draw import layout as dot
from lazyviz.draw import panel, svg
from lazyviz.draw.model import Box, DrawGraph
from lazyviz.foreign.program_dumps import Programs
from lazyviz.inspection import curves
from lazyviz.inspection.comparison import DiffExplorer, DiffView, MinimisedView
from lazyviz.inspection.live import live_doc, live_table, variable_question
from lazyviz.inspection.protocol import answer
from lazyviz.render import html
from lazyviz.render.html import Section, page_html, timeline_script
from lazyviz.render.notes import (
    Apart,
    Barrier,
    Fallback,
    Left,
    Looked,
    Redundant,
    SingleOps,
)
from lazyviz.render.strip import Strip
from lazyviz.render.values import tensor_doc
from lazyviz.timing.history import StepRow
from tests.conftest import displayed
from tests.harness import thinned
from tests.lazyviz import fakes, poisoned
from tests.lazyviz.widget_pages import browsing_pages
from tests.payloads import MARK, PAYLOADS

PACKAGE = Path(lazyviz.__file__).parent
DANGEROUS = {
    "script", "iframe", "object", "embed", "base", "link", "foreignobject", "form",
    "use", "image", "animate", "video", "audio", "input", "textarea", "math", "template",
}  # fmt: skip
PICTURE = re.compile(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)$")


class Shape(HTMLParser):
    """What a page is made of besides text: tags with the names of their attributes."""

    def __init__(self, page):
        super().__init__()
        self.tags: list[tuple[str, ...]] = []
        self.styles: list[str] = []
        self.text = ""
        self.labels = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        # A backtick in a text begins or ends code; a bracket is a place to break a line.
        if tag in {"code", "wbr"} and not names:
            return
        assert tag not in DANGEROUS, tag
        assert not [name for name in names if name.startswith(("on", "xlink"))], names
        self.tags.append((tag, *names))
        for name, value in attrs:
            if name == "style":
                # Longer texts make a picture wider; one that is too wide scrolls, from elsewhere.
                style = (value or "").replace("max-width:none", "max-width:100%")
                style = re.sub(r";min-width:\d+px", "", style)
                self.styles.append(re.sub(r"(left|top):\d+px", r"\1:0px", style))
            elif name in {"src", "href"}:
                self._address(value or "")
            elif name in {"aria-label", "alt", "title"}:
                self.labels += value or ""

    def _address(self, value):
        if value.startswith(("#", "data:image/png;base64,")):
            return
        inside = PICTURE.match(value)
        assert inside, value
        picture = Shape(base64.b64decode(inside[1]).decode())
        self.tags += picture.tags
        self.text += picture.text

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl):
        assert decl.lower() == "doctype html", decl

    def unknown_decl(self, data):
        raise AssertionError(f"a declaration: {data}")

    def handle_pi(self, data):
        raise AssertionError(f"an instruction: {data}")


def drawing(payload):
    """Return a graph in which every text is the payload."""
    box = Box(
        label=payload,
        detail=payload,
        kind="op",
        op=payload,
        path=(payload, payload),
        site=payload,
        name=payload,
        is_root=True,
        members=(1,),
        marks=(payload,),
        level=1,
        note=payload,
        scope=payload,
        step=payload,
    )
    other = dataclasses.replace(box, kind="group", members=(2, 3), count=2)
    return DrawGraph(
        boxes=(box, other), edges=((0, 1),), nodes=3, legend=(("k1", payload),)
    )


def strip(payload):
    """Return a strip in which every text is the payload."""
    state = fakes.status(
        steps=(payload,),
        scopes=(payload,),
        pending_from=payload,
        last_barrier=fakes.barrier(cause=payload, site=payload),
    )
    return Strip(
        pending_ops=1,
        barriers=(
            Barrier(cause=payload, site=payload, nodes=2, tensor=payload, cut=payload),
            Barrier(cause=payload, site=payload, nodes=2),
        ),
        fallbacks=(Fallback(op=payload, site=payload),),
        error=payload,
        reasons=(payload,),
        graph=drawing(payload),
        singles=SingleOps(mode=payload, ops=1),
        state=state,
        mode=payload,
        left=(Left(nodes=1, nbytes=2, site=payload),),
        redundant=(Redundant(cause=payload, site=payload, times=2, before=payload),),
        parts=(("trace", 5), ("compile", 4)),
        waits=(payload,),
        looks=(Looked(tensor=payload, site=payload, nodes=1, duration_ns=2),),
        apart=Apart(tensors=(payload,) * 5),
        waiting=(payload,),
        wall_ns=9,
    )


def shown_tensor(payload):
    summary = Summary(
        shape=(4, 5), dtype=torch.float32, nan=1, infinite=0, minus_infinite=0, low=0.0, high=1.0,
        mean=0.5, std=0.1, nonzero=19, counts=(1, 2),
    )  # fmt: skip
    look = Look(summary=summary, value=torch.ones(4, 5), at=(0, 0), is_whole=True)
    return tensor_doc(payload, payload, look, payload, payload)


def live_report(payload):
    site = SourceLocation(payload, 3, payload)
    row = LiveRow(
        id=1, names=(payload,), shape=(2,), dtype=torch.float32, device="lazyrt:0",
        nbytes=8, is_pending=True, op=payload, ir_nodes=3, age=0, site=site,
        frames=(site,), holders=(Name(payload, payload),), growth=1,
    )  # fmt: skip
    growth = Growth(
        holder=payload, per_step=1, first=0, last=3, count=4, nbytes=5, site=site
    )
    waiting = Waiting(cell=1, names=(payload,), count=1, nodes=2)
    return LiveReport(rows=(row,), step=1, growth=(growth,), waiting=(waiting,))


def difference(payload):
    """Return a diff in which every text is the payload."""

    def graph(shape, *, longer):
        made = GraphBuilder(payload)
        origin = Origin(payload, payload, payload)
        label = made.label(payload, f"f32[{shape}]{payload}", payload, payload)
        node = made.add(made.label(PARAMETER, "f32[2]"), name=f"a{payload}", number=0)
        for k in range(3 if longer else 2):
            node = made.add(label, [node], name=f"{k}{payload}", origin=origin)
        return made.finish([node])

    return diff(graph(2, longer=False), graph(3, longer=True))


def pages(payload):
    """Yield each way in which a text gets into HTML."""
    graph = drawing(payload)
    yield "strip", strip(payload).to_html()
    yield "svg", svg.draw(graph, engine="layered").svg
    placed = dot.lay_out(graph, "layered")
    yield "inline svg", svg.emit(graph, placed, inline=True)
    yield "graph", svg.graph_html(graph)
    yield "folded", html.folded(payload, html.pre(payload))
    yield "tensor", shown_tensor(payload).to_html()
    live = live_report(payload)
    targets = {1: [payload]}
    yield "live", live_doc(live).to_html()
    yield "live table", live_table(live, targets, "size", reverse=False)
    yield "live question", variable_question(payload, 2, payload)
    yield "live answer", answer(payload, failed=True)
    yield "table", Table([payload, "n"], [(payload, 1)]).to_html()
    section = Section(title=payload, body=html.muted(payload), anchor=payload)
    yield "page", page_html(payload, [section], generator=payload, is_locked=True)
    first, group = graph.boxes
    yield "node", panel.node_facts(first, upstream=[first], downstream=[group])
    yield "input", panel.input_facts(first)
    yield "group", panel.group_panel(group, 0, [first], [first])
    yield "opened", panel.opened_panel(payload, [first], 0)
    point = curves.Point(1, 0.5, 1)
    compiled = (StepRow(1, 1, payload, payload, 5, reason=payload),)
    yield "curves", curves.Shown({payload: (point,)}, compiled).doc().to_html()
    yield "error", panel.refusal_html(payload)
    yield "found", panel.found_html(payload, graph.boxes, 9)
    explorer = DiffExplorer(difference(payload))
    yield "diff", explorer.drawing() + explorer.legend() + explorer.overview()
    for kind in ("node", "follow"):
        *_, told = explorer.handle({"kind": kind, "node": 4})
        yield f"diff {kind}", told["html"]
    view = DiffView(difference(payload))
    yield "diff page", view.to_html(payload)
    yield "diff in a notebook", view._repr_mimebundle_()["text/html"]
    part = MinimisedView(view.diff.b, 9)
    yield "smallest part", part._repr_mimebundle_()["text/html"]
    yield "programs", Programs((view.diff.b,)).to_html()
    yield from poisoned.views(payload)
    yield "nothing found", panel.found_html(payload, [], 0)


HARMLESS = dict(pages("harmless"))


@pytest.mark.parametrize("number", thinned(range(len(PAYLOADS)), 8))
def test_a_text_stays_a_text_wherever_it_is_shown(number):
    payload = PAYLOADS[number]
    for name, page in pages(payload):
        shape, plain = Shape(page), Shape(HARMLESS[name])
        if len(payload) > 300 and name.startswith(("diff", "timeline")):
            # Labels without room and pictures that are too large are left out.
            assert set(shape.tags) <= set(plain.tags), name
        else:
            assert shape.tags == plain.tags, name
            assert shape.styles == plain.styles, name
        if name == "nothing found":
            continue  # it quotes
        wanted = "".join(html.printable(payload).split())[:6]
        assert wanted in "".join((shape.text + shape.labels).split()), name


@pytest.mark.parametrize("number", range(len(PAYLOADS)))
def test_a_text_between_a_notebooks_cells_is_no_html(number):
    payload = PAYLOADS[number]
    for written in (
        payload,
        f"# {payload}",
        f"- {payload}\n\n| {payload} | b |\n|-|-|",
    ):
        page = tour.markdown_html(written)

        linked = re.sub(r'<a href="[^":]*">|<a href="https?://[^"]*">', "", page)
        Shape(linked)  # no other link, nothing that runs or loads
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\ud800]", page)


def test_there_are_enough_payloads():
    assert len(set(PAYLOADS)) == len(PAYLOADS) >= 50


@pytest.mark.parametrize("number", range(len(PAYLOADS)))
def test_a_terminal_is_sent_no_control_character(number, monkeypatch):
    payload = PAYLOADS[number]
    shown = strip(payload).text() + Table([payload], [[payload]]).to_text()

    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", shown)
    # A line of its own would be taken for one of ours.
    assert not [
        line
        for line in strip("first\nsecond").text().splitlines()
        if line.startswith("second")
    ]


@pytest.mark.graphviz
def test_dot_reads_every_payload_as_a_label():
    boxes = tuple(
        Box(
            label=text[:200],
            detail="x",
            kind="op",
            op="x",
            path=(text[:200],),
            members=(n,),
        )
        for n, text in enumerate([*PAYLOADS, *PAYLOADS])
    )
    source = dot.to_dot(DrawGraph(boxes=boxes, edges=(), nodes=len(boxes)))

    drawn = subprocess.run(
        ["dot", "-Tsvg"], input=source.encode(), capture_output=True, check=True
    ).stdout.decode()

    assert drawn.count('class="node"') == len(boxes)
    assert drawn.count('class="cluster"') == len({box.path for box in boxes})
    assert not re.search(r"<(a|image|script|b)\b", drawn)
    assert "evil" in drawn  # as a text
    assert drawn.count('class="edge"') == 0


NASTY = [p for p in PAYLOADS if "." not in p and 0 < len(p) < 300 and "\ud800" not in p]


def test_a_program_with_such_names_is_shown_and_reported_as_text(
    lab, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    lab.user_ns["NASTY"] = NASTY
    lab.run_cell(
        "from torch import nn\n"
        "model = nn.Module()\n"
        "for name in NASTY: model.add_module(name, nn.Linear(2, 2))\n"
        "model = model.to('lazyrt'); lazyrt.mark_step()\n"
        "h = torch.ones(2, 2, device='lazyrt')\n"
        "for name in NASTY:\n"
        "    with lazyrt.scope(name.replace('/', '_') or 'x'):\n"
        "        h = model._modules[name](h)\n",
        store_history=True,
    )
    for name in NASTY:
        lab.user_ns[name] = lab.user_ns["h"] * 2
    lab.display_pub.outputs.clear()
    for line in (
        "graph",
        "ir",
        "explore",
        "live",
        "timeline",
        "cache",
        "report x.html",
    ):
        lab.run_cell(f"%lazy {line}", store_history=True)
    lab.run_cell(f"raise ValueError({NASTY[0]!r})", store_history=True)

    found = displayed(lab, "text/html")
    assert len(found) >= 2
    for page in found:
        Shape(page)
    for shown in displayed(lab):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", shown)
    report = (tmp_path / "x.html").read_text("utf-8")
    # Our own script is allowed by its hash, and only where there is a timeline.
    report = report.replace(f"<script>{timeline_script()}</script>", "")
    assert "<script" not in report
    assert not re.search(r"<[^>]*\son\w+=", report)
    assert "&lt;" in report


def test_what_the_page_of_a_widget_sends_is_checked_before_it_is_used(clean_runtime):
    import torch

    from lazyviz.inspection.explorer import Explorer
    from lazyviz.inspection.protocol import RequestError
    from lazyviz.inspection.subjects import pending_subject

    x = torch.ones(2, 3, device="lazyrt")
    inspection = clean_runtime.inspect(torch.relu(x * 2 + 1))
    explorer = Explorer(pending_subject(inspection))
    before = clean_runtime.pending_graph().fingerprint
    chance = random.Random(7)  # noqa: S311 - which messages are tried
    atoms: list[object] = [
        None,
        True,
        -1,
        0,
        1,
        2,
        10**30,
        1.5,
        float("nan"),
        "",
        "0",
        b"x",
        [],
        {},
        *PAYLOADS[:20],
        *("stablehlo", "cell", "line", "bytes", "nan"),
    ]
    kinds = [
        "hello",
        *(name[4:] for name in dir(explorer) if name.startswith("_on_")),
        "__init__",
        "handle",
        "eval",
        "_show",
        *PAYLOADS[:5],
    ]
    keys = [
        "box",
        "node",
        "output",
        "hops",
        "level",
        "text",
        "kind",
        "__class__",
        "form",
        "by",
        "name",
        "call",
        "at",
    ]
    refused = answered = 0
    for _ in range(1_500):
        message = {
            key: chance.choice(atoms)
            for key in chance.sample(keys, chance.randrange(5))
        }
        if chance.random() < 0.9:
            message["kind"] = chance.choice(kinds)
        request = message if chance.random() < 0.97 else chance.choice(atoms)
        try:
            for reply in explorer.handle(request):
                answered += 1
                if "html" in reply:
                    Shape(reply["html"])
        except RequestError:
            refused += 1

    assert refused > 300
    assert answered > 50
    assert clean_runtime.pending_graph().fingerprint == before


def test_our_pages_have_no_eval_and_fetch_nothing():
    scripts = sorted(PACKAGE.glob("static/*.js"))
    styles = sorted(PACKAGE.glob("static/*.css"))

    assert scripts
    assert styles
    for path in scripts:
        source = path.read_text("utf-8")
        for bad in (
            r"\beval\b", r"new Function", r"innerHTML", r"outerHTML", r"insertAdjacentHTML",
            r"document\.write", r"\bfetch\(", r"XMLHttpRequest", r"WebSocket", r"\bimport\b",
            r"https?://", r"setTimeout\(\s*[\"'`]", r"localStorage", r"postMessage",
        ):  # fmt: skip
            assert not re.search(bad, source), f"{path.name}: {bad}"
    for path in styles:
        assert not re.search(
            r"url\(|@import|https?:|expression\(", path.read_text("utf-8")
        )


def test_our_python_neither_evaluates_text_nor_names_another_host():
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text("utf-8")
        addresses = re.findall(r"https?://[\w./-]+", source)
        # A name space of XML is a name; the other is told to the reader.
        known = {"http://www.w3.org/2000/svg", "https://ui.perfetto.dev"}
        assert set(addresses) <= known, path.name
        # What it starts gets its function so; it reads no such file of anybody else's.
        assert "pickle" not in source or path.name == "launch.py", path.name
        assert not re.search(r"(?<![.\w])eval\(", source), path.name


@pytest.mark.browser
@pytest.mark.slow
def test_a_browser_runs_nothing_of_it_and_asks_for_nothing(browser_path, tmp_path):
    """A page for each view, with every payload in it."""
    bodies: dict[str, str] = {}
    for payload in PAYLOADS:
        for name, page in pages(payload):
            # A browser takes seconds to break longer lines.
            if name not in {"page", "graph", "inline svg"} and len(page) < 40_000:
                bodies[name] = f"{bodies.get(name, '')}<div>{page}</div>"

    with browsing_pages(browser_path) as tab:
        for name, body in bodies.items():
            path = tmp_path / "view.html"
            page = f"<!DOCTYPE html><meta charset=utf-8><body>{body}</body>"
            path.write_text(page, "utf-8", "replace")
            tab.goto(path.as_uri())
            tab.evaluate(
                "() => document.querySelectorAll('details').forEach(d => d.open = true)"
            )
            tab.mouse.move(300, 300)
            tab.keyboard.press("Tab")
            assert not tab.evaluate(f"() => window.{MARK} !== undefined"), name
            assert not tab.evaluate(
                "() => document.scripts.length + [...document.links]"
                ".filter(each => !each.getAttribute('href').startsWith('#')).length"
            ), name

    assert len(bodies) > 25
    assert [one for one in tab.asked if not one.startswith(("file:", "data:"))] == []
