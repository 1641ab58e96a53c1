"""A diff as HTML: the panel beside its picture, and static pages.

All text is escaped here. A button of the panel carries what it asks for in `data-` attributes, as
those of `panel.py` do. A static page needs no script and no other file: an instruction unfolds to
its source line, module path, both sides, and what differs within what it calls.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lazygraph.diff import group_hunks, nested_diffs
from lazygraph.graph import InheritedOrigin
from lazyviz.doc import Code, Doc, Drawn, Fold, Line, Note, Part, Points
from lazyviz.draw import diff_text, panel
from lazyviz.draw.diff import union_graph
from lazyviz.draw.layout import lay_out
from lazyviz.draw.model import ADDED, CHANGED, MARKS, REMOVED, REWIRED
from lazyviz.draw.svg import emit, start_of
from lazyviz.render import text
from lazyviz.render.html import folded, image, markup, page_html, pre, prose, sentences

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from lazygraph.diff import GraphDiff, HunkGroup
    from lazygraph.graph import Graph
    from lazygraph.trace import Hop, ValueTrace
    from lazyviz.draw.diff import Side
    from lazyviz.draw.layout import Point
    from lazyviz.draw.model import Box, Change, DrawGraph

_MAX_LINKS = 12
_MAX_LITERAL = 400
_MAX_HOPS = 40
_MAX_PLACES = 30
_MAX_GROUPS = 20
_MAX_LINES = 60
_NOTEBOOK_GROUPS = 6
_NOTEBOOK_LINES = 20
_NOTEBOOK_NODES = 60
_MAX_EMBEDDED_BYTES = 131_072
# Pixels of a picture that are seen above and to the left of where it opens.
_BEFORE_START = 60
# Half transparent, so that they read on light and dark pages.
_COLOURS = {
    ADDED: "rgba(0,114,178,.18)",
    REMOVED: "rgba(213,94,0,.18)",
    CHANGED: "rgba(240,228,66,.28)",
    REWIRED: "rgba(127,127,127,.16)",
}
_INHERITED = (
    "the dump says nothing of it; module, line and operation are its neighbour's"
)
_CELL = "vertical-align:top;padding:2px 8px;text-align:left;font:12px/1.45 ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere"
_WORDS: dict[Change, str] = {
    "added": "only in the second",
    "removed": "only in the first",
    "changed": "changed",
    "rewired": "reads another value",
    "same": "the same in both",
}


def overview_html(
    title: str,
    found: GraphDiff,
    places: Sequence[HunkGroup],
    begun: Sequence[bool],
    left_out: int,
) -> str:
    """Return what a diff comes to, with a button for each kind of place.

    Those in which no change begins are folded.
    """
    first, *others = diff_text.summary(found)
    listed: dict[bool, list[str]] = {True: [], False: []}
    kinds: dict[tuple[bool, str], list[int]] = {}
    for k, (each, begins) in enumerate(zip(places, begun, strict=False)):
        said = diff_text.heading(replace(each, hunks=each.hunks[:1])).removeprefix(
            "@@ "
        )
        said = said.removeprefix("(no scope)").strip()
        said = f"no line {said}" if said.startswith("(") else said
        kinds.setdefault((begins, said), []).append(k)
    for (begins, said), levels in [*kinds.items()][:_MAX_PLACES]:
        count = sum(len(places[k].hunks) for k in levels)
        many = f", {count:,} such places" if count > 1 else ""
        place = panel.button_html(f"{said}{many}", kind="place", level=levels[0])
        listed[begins].append(f"<li>{place}</li>")
    parts = [panel.heading_html(title), f"<p>{prose(first)}</p>", sentences(others)]
    if listed[True]:
        own = "".join(listed[True])
        parts.append(f"<p><b>Where they differ</b></p><ul>{own}</ul>")
    if listed[False]:
        many = text.plural(len(listed[False]), "more place")
        follow = f"<ul>{''.join(listed[False])}</ul>"
        parts.append(folded(f"{many}, changed only by what they read", follow))
    if len(kinds) > _MAX_PLACES:
        rest = text.plural(len(kinds) - _MAX_PLACES, "more place")
        parts.append(panel.note_html(f"and {rest}"))
    if left_out > 0:
        many = text.plural(left_out, "changed node")
        parts.append(panel.note_html(f"{many} more: choose a place, or search."))
    parts.append(
        panel.note_html(
            "Click a box, or walk to it with Tab and press Enter, to see both sides, what it reads, "
            "and where its value goes."
        )
    )
    for what, lines in (
        ("Outputs", diff_text.output_lines(found)),
        ("Inputs moved or changed", diff_text.pairing_lines(found)),
    ):
        if lines:
            more = [f"… {len(lines) - _MAX_LINES:,} more"]
            shown = lines if len(lines) <= _MAX_LINES else [*lines[:_MAX_LINES], *more]
            parts.append(folded(what, pre("\n".join(shown))))
    return "".join(parts)


def node_html(
    change: Change,
    before: Side | None,
    after: Side | None,
    inner: Sequence[str],
    changed: str = "",
) -> str:
    """Return both sides of a node, None where it is not, one below the other where they differ.

    Each name in `inner` is of something that it calls and that differs within.
    """
    here = after or before
    if here is None:
        return ""
    op = here.graph.label(here.node).op
    title = f"{op}: {_WORDS[change]}"
    sides = [side for side in (before, after) if side is not None]
    told = [_facts(s.graph, s.node, partial(_near, s)) for s in sides]
    rows = [
        (facts[0][0], _both([fact for _, fact in facts]))
        for facts in zip(*told, strict=True)
    ]
    rows.append(("changed", prose(changed)))
    number = here.first + here.node
    buttons = [
        panel.near_button(number),
        panel.button_html(
            "Follow the value", kind="follow", node=number,
            title="where it comes from and goes, through tuples, calls and fusions",
        ),
        *(
            panel.button_html(f"differs within {name}", kind="inside", node=number, call=k)
            for k, name in enumerate(inner)
        ),
    ]  # fmt: skip
    lines = [diff_text.instruction(s.graph, s.node) for s in sides]
    listing = pre("\n".join(dict.fromkeys(lines)))
    return f"{panel.heading_html(title)}{panel.facts_table(rows)}<p>{' '.join(buttons)}</p>{listing}"


def _both(told: Sequence[str]) -> str:
    """Return a fact of both sides: once if they agree, else both with their marks."""
    if len(set(told)) == 1:
        return told[0]
    before, after = (each or "none" for each in told)
    return f"<div>{REMOVED} {before}</div><div>{ADDED} {after}</div>"


def _near(side: Side, nodes: Sequence[int]) -> str:
    distinct = list(dict.fromkeys(nodes))
    return panel.links_html(
        [_button(side, node) for node in distinct[:_MAX_LINKS]], len(distinct)
    )


def _button(side: Side, node: int) -> str:
    label = f"{side.graph.names[node]} {side.graph.label(node).op}"
    return panel.button_html(label, kind="node", node=side.first + node)


def _facts(
    graph: Graph, node: int, links: Callable[[Sequence[int]], str]
) -> list[tuple[str, str]]:
    """Return names and HTML of what is known of an instruction; empty where nothing is.

    `links` writes other instructions as HTML that leads to them.
    """
    label, origin = graph.label(node), graph.origin(node)
    inherited = _INHERITED if isinstance(origin, InheritedOrigin) else ""
    return [
        ("name", markup(graph.names[node])),
        ("op", markup(label.op)),
        ("type", markup(label.type)),
        ("attributes", markup(diff_text.with_callees(label.attrs, graph, node))),
        ("literal", markup(label.literal[:_MAX_LITERAL])),
        ("line", markup(origin.site)),
        ("module", markup(origin.scope)),
        ("from", markup(origin.op_name)),
        ("inherited", inherited),
        ("reads", links(graph.operands[node])),
        ("read by", links([user for user, _ in graph.users[node]])),
        ("output", "of the program" if node in graph.outputs else ""),
    ]


def way_html(way: ValueTrace, number_of: Callable[[str], int | None], back: int) -> str:
    """Return the way of a value, each instruction that the graph has as a button."""
    rows = [_hop("←", hop, number_of) for hop in way.producers[:_MAX_HOPS]]
    rows += [_hop("→", hop, number_of) for hop in way.hops[:_MAX_HOPS]]
    hidden = max(0, len(way.hops) - _MAX_HOPS) + max(0, len(way.producers) - _MAX_HOPS)
    if hidden:
        rows.append(f"<li>… {hidden:,} more</li>")
    if not rows:
        rows.append("<li>nothing reads it</li>")
    sources = "".join(f"<p>{markup(f'{s.name}: {s}')}</p>" for s in way.sources)
    return (
        f"{panel.heading_html(f'The way of {way.name}')}<p>{markup(f'{way.type}, {way.what}')}</p>"
        f'<ul class="lzg-way">{"".join(rows)}</ul>{sources}'
        f"<p>{panel.button_html('Back to the node', kind='node', node=back)}</p>"
    )


def _hop(arrow: str, hop: Hop, number_of: Callable[[str], int | None]) -> str:
    number = number_of(hop.name)
    told = f"<span>{markup(hop.text)}</span>"
    if number is not None:
        told = panel.button_html(hop.text, kind="node", node=number)
    indent = min(hop.depth, 20) * 10 if arrow == "→" else 0
    return f'<li style="margin-left:{indent}px"><span>{arrow}</span>{told}</li>'


def found_html(
    wanted: str, rows: Sequence[tuple[Change | None, Side]], count: int, total: int
) -> str:
    """Return the first of `count` nodes that a search found among `total`, those that differ first."""
    if not wanted.strip():
        return panel.note_html(
            "Type part of an op, a type, a name, a module or a line."
        )
    if not rows:
        return panel.note_html(f"None of {total:,} instructions has {wanted!r} in its op, type, name, module or line.")  # fmt: skip
    return panel.matches_html(_items(rows), len(rows), count)


def fold_html(box: Box, number: int, rows: Sequence[tuple[Change | None, Side]]) -> str:
    """Return what a box of consequences or of state holds, and a button that opens it."""
    why = "These changed only because of what they read." if box.follows else ""
    return (
        f"{panel.heading_html(box.label)}"
        f"{panel.note_html(why) if why else ''}"
        f"<p>{panel.button_html('Open', kind='open', box=number)}</p>"
        f"{panel.matches_html(_items(rows), len(rows), len(box.members))}"
    )


def _items(rows: Sequence[tuple[Change | None, Side]]) -> str:
    return "".join(
        f"<li>{MARKS[change] if change else ''} {_button(s, s.node)}"
        f" <small>{markup(s.graph.label(s.node).type)} {markup(s.graph.origin(s.node).site)}</small></li>"
        for change, s in rows
    )


def diff_page(found: GraphDiff, title: str = "", *, budget: int = 120) -> str:
    """Return a page that needs no other file."""
    union = union_graph(found, budget)
    drawn: list[Fold] = []
    if union.boxes:
        layout = lay_out(union)
        picture = emit(union, layout, links=True)
        parts: list[Part] = [_scrolled(picture, start_of(union, layout), 720)]
        if union.left_out:
            are = "is" if union.left_out == 1 else "are"
            more = text.plural(union.left_out, "more changed node")
            parts.append(Note(f"{more} {are} listed below, or alike."))
        drawn.append(Fold("Where they differ", parts))
    folds = [*drawn, *_places(found, _MAX_GROUPS, _MAX_LINES), *_around(found, union)]
    sections = [("", Doc(_summary(found)).to_html())]
    sections += [(each.summary, Doc(each.parts).to_html()) for each in folds]
    return page_html(title or f"{found.a.name} → {found.b.name}", sections)


def diff_doc(
    found: GraphDiff,
    *,
    css_class: str = "",
    live: Callable[[], object] | None = None,
) -> Doc:
    """Return a diff for a terminal, and for a notebook's output HTML that survives distrust."""
    shown = Drawn(diff_text.diff_text(found), lambda: Doc(_fragment(found)).to_html())
    return Doc([shown], css_class=css_class, live=live)


def _fragment(found: GraphDiff) -> list[Part]:
    named = [] if found.cost else [Line(f"{found.a.name} → {found.b.name}")]
    parts = [*named, *_summary(found)]
    budget = _NOTEBOOK_NODES
    while found.cost and budget >= 8:  # noqa: PLR2004
        union = union_graph(found, budget)
        layout = lay_out(union)
        picture = emit(union, layout)
        if len(picture.encode()) <= _MAX_EMBEDDED_BYTES:
            shown = image(picture, "difference of two graphs", max_width="none")
            parts.append(_scrolled(shown, start_of(union, layout), 480))
            break
        budget //= 2
    return [*parts, *_places(found, _NOTEBOOK_GROUPS, _NOTEBOOK_LINES)]


def _scrolled(picture: str, start: Point, height: int) -> Drawn:
    """Return a picture that scrolls, and opens on a point where the browser can (no script)."""
    x, y = (max(0, round(each - _BEFORE_START)) for each in start)
    shown = (
        f'<div style="overflow:auto;max-height:{height}px">'
        f'<div style="position:relative;width:max-content">{picture}'
        f'<span style="position:absolute;left:{x}px;top:{y}px;scroll-initial-target:nearest">'
        "</span></div></div>"
    )
    return Drawn("", lambda: shown)


def _summary(found: GraphDiff) -> list[Part]:
    first, *others = diff_text.summary(found)
    return [Line(first), *([Points(others)] if others else [])]


def _shown(
    found: GraphDiff, alike: Sequence[HunkGroup], lines: int
) -> set[tuple[str, int]]:
    """Return the nodes that have an entry among the places."""
    return {
        (side, node)
        for group in alike
        for line in list(diff_text.hunk_lines(found, group.exemplar))[:lines]
        for side, node in (("a", line.node_a), ("b", line.node_b))
    }


def _around(found: GraphDiff, union: DrawGraph) -> list[Fold]:
    """Return an entry for each other box of the picture, so that a click on it leads to one."""
    listed = _shown(found, group_hunks(found.hunks())[:_MAX_GROUPS], _MAX_LINES)
    drawn = {(box.anchor[0], int(box.anchor[1:])) for box in union.boxes if box.anchor}
    entries = []
    for side, node in sorted(drawn - listed):
        graph = found.a if side == "a" else found.b
        line = diff_text.instruction(graph, node)
        entries.append(_side(graph, node, side, line, listed | drawn))
    if not entries:
        return []
    body = f'<div style="{_CELL}">{"".join(entries)}</div>'
    return [Fold("Also in the picture", [Drawn("", lambda: body)])]


def _places(found: GraphDiff, groups: int, lines: int) -> list[Fold]:
    alike = group_hunks(found.hunks())
    shown = _shown(found, alike[:groups], lines)
    folds = [
        Fold(
            diff_text.heading(group).removeprefix("@@ "),
            [Drawn("", partial(_group, found, group, lines, shown))],
        )
        for group in alike[:groups]
    ]
    if len(alike) > groups:
        folds.append(Fold(f"and {len(alike) - groups} more kinds of change", []))
    outputs = diff_text.output_lines(found)
    if outputs:
        folds.append(Fold("Outputs", [Code("\n".join(outputs))]))
    inputs = diff_text.pairing_lines(found)
    if inputs:
        more = [f"… {len(inputs) - lines:,} more"] if len(inputs) > lines else []
        listed = Code("\n".join([*inputs[:lines], *more]))
        folds.append(
            Fold("Inputs moved or changed", [Fold("by use, not by number", [listed])])
        )
    dead = [
        f"{mark} {node.name} = {node.label.type} {node.label.op}({node.label.literal})"
        f"  # {', '.join(part for part in (diff_text.wasted([node]), *node.origin) if part)}"
        for mark, nodes in zip((REMOVED, ADDED), found.dead, strict=True)
        for node in nodes[:lines]
    ]
    if dead:
        aside = Fold("set aside, they cannot matter", [Code("\n".join(dead))])
        folds.append(Fold("Dead code", [aside]))
    return folds


def _group(
    found: GraphDiff, group: HunkGroup, limit: int, shown: Container[tuple[str, int]]
) -> str:
    rows = list(diff_text.hunk_lines(found, group.exemplar))
    body = "".join(_row(found, row, shown) for row in rows[:limit])
    more = ""
    if len(rows) > limit:
        more = f"<p>… {len(rows) - limit:,} more</p>"
    sides = "".join(
        f'<th scope="col" style="{_CELL}">{markup(graph.name)}</th>'
        for graph in (found.a, found.b)
    )
    return (
        '<table style="width:100%;table-layout:fixed;border-collapse:collapse">'
        '<colgroup><col style="width:24px"><col><col></colgroup><thead><tr>'
        f'<th scope="col" style="{_CELL}" aria-label="what happened"></th>{sides}</tr></thead>'
        f"<tbody>{body}</tbody></table>{more}"
    )


def _row(
    found: GraphDiff, row: diff_text.HunkLine, shown: Container[tuple[str, int]]
) -> str:
    colour = _COLOURS[row.mark]
    left = _side(found.a, row.node_a, "a", row.a, shown)
    right = _side(found.b, row.node_b, "b", row.b, shown)
    if row.mark == CHANGED:
        right += "".join(
            folded(f"differs within {name}", pre(diff_text.diff_text(inner)))
            for name, inner in nested_diffs(found, row.node_a, row.node_b)
        )
    return (
        f'<tr><td style="{_CELL}"><b>{row.mark}</b></td>'
        f'<td style="{_CELL};background:{colour if row.a else "none"}">{left}</td>'
        f'<td style="{_CELL};background:{colour if row.b else "none"}">{right}</td></tr>'
    )


def _side(
    graph: Graph, node: int, side: str, line: str, shown: Container[tuple[str, int]]
) -> str:
    if node < 0:
        return ""
    # The line that unfolds has the name and the op already.
    facts = _facts(graph, node, lambda near: _links(graph, near, side, shown))[2:]
    rows = "".join(
        f"<div><b>{name}</b> {value}</div>" for name, value in facts if value
    )
    return (
        f'<details><summary style="cursor:pointer">{markup(line)}</summary>'
        # A link to what is folded unfolds it, without a script.
        f'<div id="{side}{node}" style="margin:2px 0 6px 12px;opacity:.9">{rows}</div></details>'
    )


def _links(
    graph: Graph, nodes: Sequence[int], side: str, shown: Container[tuple[str, int]]
) -> str:
    parts = []
    for node in nodes[:_MAX_LINKS]:
        name = markup(diff_text.instruction(graph, node).partition(" = ")[0])
        op = markup(graph.label(node).op)
        if (side, node) in shown:
            name = f'<a href="#{side}{node}" style="color:inherit">{name}</a>'
        parts.append(f"{name} ({op})")
    if len(nodes) > _MAX_LINKS:
        parts.append(f"… {len(nodes) - _MAX_LINKS} more")
    return ", ".join(parts)
