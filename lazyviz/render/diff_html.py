"""A diff as static HTML: summary, picture, and each place side by side.

Nothing of it needs a script or another file. An instruction unfolds to its source line,
module path, both sides, and what differs within what it calls.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING

from lazygraph.diff import group_hunks, nested_diffs
from lazygraph.graph import InheritedOrigin
from lazyviz.render.diff_model import union_graph
from lazyviz.render.diff_panel import pairing_lines
from lazyviz.render.diff_text import (
    Line,
    diff_text,
    heading,
    hunk_lines,
    instruction,
    output_lines,
    summary,
    wasted,
    with_callees,
)
from lazyviz.render.escape import markup
from lazyviz.render.html import folded, pre
from lazyviz.render.layout import lay_out
from lazyviz.render.model import ADDED, CHANGED, REMOVED, REWIRED
from lazyviz.render.page import Section, page_html
from lazyviz.render.svg import emit, start_of
from lazyviz.render.text import plural

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from lazygraph.diff import GraphDiff, HunkGroup
    from lazygraph.graph import Graph
    from lazyviz.render.layered import Point
    from lazyviz.render.model import DrawGraph


_MAX_GROUPS = 20
_MAX_LINES = 60
_NOTEBOOK_GROUPS = 6
_NOTEBOOK_LINES = 20
_NOTEBOOK_NODES = 60
_MAX_NEAR = 12
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
    "the dump says nothing of it; module, source and operation are its neighbour's"
)
_CELL = "vertical-align:top;padding:2px 8px;text-align:left;font:12px/1.45 ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere"


def diff_page(found: GraphDiff, title: str = "", *, budget: int = 120) -> str:
    """Return a page that needs no other file."""
    union = union_graph(found, budget)
    sections = [Section(title="", body=_summary(found))]
    if union.boxes:
        layout = lay_out(union)
        picture = emit(union, layout, links=True)
        note = ""
        if union.left_out:
            are = "is" if union.left_out == 1 else "are"
            more = plural(union.left_out, "more changed node")
            note = f"<p>{more} {are} listed below, or alike.</p>"
        sections.append(
            Section(
                title="Where they differ",
                body=_scrolled(picture, start_of(union, layout), 720) + note,
            )
        )
    sections += _places(found, _MAX_GROUPS, _MAX_LINES)
    sections += _around(found, union)
    return page_html(title or f"{found.a.name} → {found.b.name}", sections)


def diff_bundle(found: GraphDiff, twin: str = "") -> dict[str, str]:
    """Return a diff for a notebook: HTML that survives distrust, and text.

    Args:
        found: The diff.
        twin: CSS class of the HTML, by which a live view finds it.
    """
    body = diff_fragment(found)
    return {
        "text/plain": diff_text(found),
        "text/html": f'<div class="{twin}">{body}</div>' if twin else body,
    }


def diff_fragment(found: GraphDiff) -> str:
    """Return HTML for a notebook's output."""
    parts = [_summary(found)]
    budget = _NOTEBOOK_NODES
    while found.cost and budget >= 8:  # noqa: PLR2004
        union = union_graph(found, budget)
        layout = lay_out(union)
        picture = emit(union, layout)
        if len(picture.encode()) <= _MAX_EMBEDDED_BYTES:
            data = b64encode(picture.encode()).decode()
            shown = (
                '<img alt="difference of two graphs" '
                f'style="display:block;margin:0;max-width:none" src="data:image/svg+xml;base64,{data}">'
            )
            parts.append(_scrolled(shown, start_of(union, layout), 480))
            break
        budget //= 2
    places = _places(found, _NOTEBOOK_GROUPS, _NOTEBOOK_LINES)
    parts += [folded(section.title, section.body) for section in places]
    return "".join(parts)


def _scrolled(picture: str, start: Point, height: int) -> str:
    """Return a picture that scrolls, and opens on a point where the browser can (no script)."""
    x, y = (max(0, round(each - _BEFORE_START)) for each in start)
    return (
        f'<div style="overflow:auto;max-height:{height}px">'
        f'<div style="position:relative;width:max-content">{picture}'
        f'<span style="position:absolute;left:{x}px;top:{y}px;scroll-initial-target:nearest">'
        "</span></div></div>"
    )


def _summary(found: GraphDiff) -> str:
    first, *others = map(markup, summary(found))
    items = "".join(f"<li>{line}</li>" for line in others)
    return f"<p><b>{first}</b></p>" + (f"<ul>{items}</ul>" if items else "")


def _shown(
    found: GraphDiff, alike: Sequence[HunkGroup], lines: int
) -> set[tuple[str, int]]:
    """Return the nodes that have an entry among the places."""
    return {
        (side, node)
        for group in alike
        for line in list(hunk_lines(found, group.exemplar))[:lines]
        for side, node in (("a", line.node_a), ("b", line.node_b))
    }


def _around(found: GraphDiff, union: DrawGraph) -> list[Section]:
    """Return an entry for each other box of the picture, so that a click on it leads to one."""
    listed = _shown(found, group_hunks(found.hunks())[:_MAX_GROUPS], _MAX_LINES)
    drawn = {(box.anchor[0], int(box.anchor[1:])) for box in union.boxes}
    entries = []
    for side, node in sorted(drawn - listed):
        graph = found.a if side == "a" else found.b
        line = instruction(graph, node)
        entries.append(_side(graph, node, side, line, listed | drawn))
    if not entries:
        return []
    body = f'<div style="{_CELL}">{"".join(entries)}</div>'
    return [Section(title="Also in the picture", body=body)]


def _places(found: GraphDiff, groups: int, lines: int) -> list[Section]:
    alike = group_hunks(found.hunks())
    shown = _shown(found, alike[:groups], lines)
    sections = [
        Section(
            title=heading(group).removeprefix("@@ "),
            body=_group(found, group, lines, shown),
        )
        for group in alike[:groups]
    ]
    if len(alike) > groups:
        rest = len(alike) - groups
        sections.append(Section(title=f"and {rest} more kinds of change", body=""))
    outputs = output_lines(found)
    if outputs:
        sections.append(Section(title="Outputs", body=pre("\n".join(outputs))))
    inputs = pairing_lines(found)
    if inputs:
        more = [f"… {len(inputs) - lines:,} more"] if len(inputs) > lines else []
        body = folded("by use, not by number", pre("\n".join([*inputs[:lines], *more])))
        sections.append(Section(title="Inputs moved or changed", body=body))
    dead = [
        f"{mark} {node.name} = {node.label.type} {node.label.op}({node.label.literal})"
        f"  # {', '.join(part for part in (wasted([node]), *node.origin) if part)}"
        for mark, nodes in zip((REMOVED, ADDED), found.dead, strict=True)
        for node in nodes[:lines]
    ]
    if dead:
        body = folded("set aside, they cannot matter", pre("\n".join(dead)))
        sections.append(Section(title="Dead code", body=body))
    return sections


def _group(
    found: GraphDiff, group: HunkGroup, limit: int, shown: Container[tuple[str, int]]
) -> str:
    rows = list(hunk_lines(found, group.exemplar))
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


def _row(found: GraphDiff, row: Line, shown: Container[tuple[str, int]]) -> str:
    colour = _COLOURS[row.mark]
    left = _side(found.a, row.node_a, "a", row.a, shown)
    right = _side(found.b, row.node_b, "b", row.b, shown)
    if row.mark == CHANGED:
        right += _nested(found, row)
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
    origin = graph.origin(node)
    label = graph.label(node)
    facts = [
        ("module", markup(origin.scope)),
        ("source", markup(origin.site)),
        ("from", markup(origin.op_name)),
        ("inherited", _INHERITED if isinstance(origin, InheritedOrigin) else ""),
        ("type", markup(label.type)),
        ("attributes", markup(with_callees(label.attrs, graph, node))),
        ("literal", markup(label.literal[:400])),
        ("reads", _links(graph, list(graph.operands[node]), side, shown)),
        (
            "read by",
            _links(graph, [user for user, _ in graph.users[node]], side, shown),
        ),
        ("output", "yes" if node in graph.outputs else ""),
    ]
    rows = "".join(
        f"<div><b>{name}</b> {value}</div>" for name, value in facts if value
    )
    return (
        f'<details><summary style="cursor:pointer">{markup(line)}</summary>'
        # A link to what is folded unfolds it, without a script.
        f'<div id="{side}{node}" style="margin:2px 0 6px 12px;opacity:.9">{rows}</div></details>'
    )


def _links(
    graph: Graph, nodes: list[int], side: str, shown: Container[tuple[str, int]]
) -> str:
    parts = []
    for node in nodes[:_MAX_NEAR]:
        name = markup(instruction(graph, node).partition(" = ")[0])
        op = markup(graph.label(node).op)
        if (side, node) in shown:
            name = f'<a href="#{side}{node}" style="color:inherit">{name}</a>'
        parts.append(f"{name} ({op})")
    if len(nodes) > _MAX_NEAR:
        parts.append(f"… {len(nodes) - _MAX_NEAR} more")
    return ", ".join(parts)


def _nested(found: GraphDiff, row: Line) -> str:
    return "".join(
        folded(f"differs within {name}", pre(diff_text(inner)))
        for name, inner in nested_diffs(found, row.node_a, row.node_b)
    )
