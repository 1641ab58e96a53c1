"""The panel beside the picture of a diff: both sides of a node, what it reads, where it goes.

All text is escaped here. A button carries what it asks for in `data-` attributes, as those of
`panel.py` do; a node of either graph has one number, see `DiffExplorer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazygraph.graph import PARAMETER, InheritedOrigin
from lazyviz.render import text
from lazyviz.render.diff_text import (
    heading,
    instruction,
    output_lines,
    summary,
    with_callees,
)
from lazyviz.render.escape import markup
from lazyviz.render.html import folded, pre
from lazyviz.render.model import ADDED, MARKS, REMOVED
from lazyviz.render.panel import button_html, facts_table, heading_html, note_html

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lazygraph.diff import GraphDiff, HunkGroup
    from lazygraph.graph import Graph
    from lazygraph.trace import Hop, ValueTrace
    from lazyviz.render.diff_model import Side
    from lazyviz.render.model import Change


_MAX_NEAR = 12
_MAX_LITERAL = 400
_MAX_HOPS = 40
_MAX_PLACES = 30
_MAX_LINES = 60
_WORDS: dict[Change, str] = {
    "added": "only in the second",
    "removed": "only in the first",
    "changed": "changed",
    "rewired": "reads another value",
    "same": "the same in both",
}


def overview_html(
    title: str, found: GraphDiff, places: Sequence[HunkGroup], left_out: int
) -> str:
    """Return what a diff comes to, with a button for each kind of place."""
    first, *others = summary(found)
    remarks = "".join(f"<li>{markup(line)}</li>" for line in others)
    listed = "".join(
        f"<li>{button_html(heading(each).removeprefix('@@ '), kind='place', level=k)}</li>"
        for k, each in enumerate(places[:_MAX_PLACES])
    )
    parts = [
        heading_html(title),
        f"<p>{markup(first)}</p>",
    ]
    if remarks:
        parts.append(f"<ul>{remarks}</ul>")
    if listed:
        parts.append(f"<p><b>Where they differ</b></p><ul>{listed}</ul>")
    if len(places) > _MAX_PLACES:
        parts.append(note_html(f"and {len(places) - _MAX_PLACES:,} more kinds"))
    if left_out > 0:
        parts.append(
            note_html(
                f"{text.plural(left_out, 'changed node')} more: choose a place, or search."
            )
        )
    parts.append(
        note_html(
            "Click a box, or walk to it with Tab and press Enter, to see both sides, what it reads, "
            "and where its value goes."
        )
    )
    for what, lines in (
        ("Outputs", output_lines(found)),
        ("Inputs moved or changed", pairing_lines(found)),
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
    """Return both sides of a node, one below the other where they differ.

    Args:
        change: What happened to it.
        before: The node in the first graph, None if it is not there.
        after: The node in the second graph, None if it is not there.
        inner: Names of what differs within what it calls.
        changed: What changed about it, in a few words.
    """
    here = after or before
    if here is None:
        return ""
    op = here.graph.label(here.node).op
    title = f"{op}: {_WORDS[change]}"
    rows = []
    for name, read in _FACTS.items():
        told = [read(side) if side is not None else "" for side in (before, after)]
        rows.append((name, _both(*told, one=before is None or after is None)))
    rows.append(("changed", markup(changed)))
    number = here.number(here.node)
    buttons = [
        button_html(
            "What is near", kind="focus", node=number, hops=2,
            title="as many hops as chosen above",
        ),
        button_html(
            "Follow the value", kind="follow", node=number,
            title="where it comes from and goes, through tuples, calls and fusions",
        ),
        *(
            button_html(f"differs within {name}", kind="inside", node=number, call=k)
            for k, name in enumerate(inner)
        ),
    ]  # fmt: skip
    lines = [instruction(s.graph, s.node) for s in (before, after) if s is not None]
    listing = pre("\n".join(dict.fromkeys(lines)))
    return (
        f"{heading_html(title)}{facts_table(rows)}<p>{' '.join(buttons)}</p>{listing}"
    )


def _both(before: str, after: str, *, one: bool) -> str:
    """Return a fact of both sides: once if they agree, else both with their marks."""
    if one or before == after:
        return after or before
    return (
        f"<div>{REMOVED} {before or 'none'}</div><div>{ADDED} {after or 'none'}</div>"
    )


def _inherited(side: Side) -> str:
    is_inherited = isinstance(side.graph.origin(side.node), InheritedOrigin)
    return "module, line and operation are its neighbour's" if is_inherited else ""


def _near(side: Side, nodes: Sequence[int]) -> str:
    links = [
        button_html(
            f"{side.graph.names[node]} {side.graph.label(node).op}",
            kind="node",
            node=side.number(node),
        )
        for node in list(dict.fromkeys(nodes))[:_MAX_NEAR]
    ]
    if len(nodes) > _MAX_NEAR:
        links.append(f"<span>and {len(nodes) - _MAX_NEAR:,} more</span>")
    return f'<span class="lzg-links">{" ".join(links)}</span>' if links else ""


_FACTS: dict[str, Callable[[Side], str]] = {
    "name": lambda s: markup(s.graph.names[s.node]),
    "op": lambda s: markup(s.graph.label(s.node).op),
    "type": lambda s: markup(s.graph.label(s.node).type),
    "attributes": lambda s: markup(
        with_callees(s.graph.label(s.node).attrs, s.graph, s.node)
    ),
    "literal": lambda s: markup(s.graph.label(s.node).literal[:_MAX_LITERAL]),
    "line": lambda s: markup(s.graph.origin(s.node).site),
    "module": lambda s: markup(s.graph.origin(s.node).scope),
    "from": lambda s: markup(s.graph.origin(s.node).op_name),
    "inherited": _inherited,
    "reads": lambda s: _near(s, s.graph.operands[s.node]),
    "read by": lambda s: _near(s, [user for user, _ in s.graph.users[s.node]]),
    "output": lambda s: "of the program" if s.node in s.graph.outputs else "",
}


def way_html(way: ValueTrace, number_of: Callable[[str], int | None], back: int) -> str:
    """Return the way of a value, each instruction that the graph has as a button.

    Args:
        way: What following it found.
        number_of: Returns the number of an instruction by its name.
        back: Number of the node that it was asked for.
    """
    rows = [_hop("←", hop, number_of) for hop in way.producers[:_MAX_HOPS]]
    rows += [_hop("→", hop, number_of) for hop in way.hops[:_MAX_HOPS]]
    hidden = max(0, len(way.hops) - _MAX_HOPS) + max(0, len(way.producers) - _MAX_HOPS)
    if hidden:
        rows.append(f"<li>… {hidden:,} more</li>")
    if not rows:
        rows.append("<li>nothing reads it</li>")
    sources = "".join(f"<p>{markup(f'{s.name}: {s}')}</p>" for s in way.sources)
    return (
        f"{heading_html(f'The way of {way.name}')}<p>{markup(f'{way.type}, {way.what}')}</p>"
        f'<ul class="lzg-way">{"".join(rows)}</ul>{sources}'
        f"<p>{button_html('Back to the node', kind='node', node=back)}</p>"
    )


def _hop(arrow: str, hop: Hop, number_of: Callable[[str], int | None]) -> str:
    number = number_of(hop.name)
    told = f"<span>{markup(hop.text)}</span>"
    if number is not None:
        told = button_html(hop.text, kind="node", node=number)
    indent = min(hop.depth, 20) * 10 if arrow == "→" else 0
    return f'<li style="margin-left:{indent}px"><span>{arrow}</span>{told}</li>'


def found_html(
    wanted: str, rows: Sequence[tuple[Change | None, Side]], count: int, total: int
) -> str:
    """Return the nodes that a search found, those that differ first.

    Args:
        wanted: What was searched for.
        rows: Change and place of those that are shown.
        count: How many were found.
        total: How many there are to find.
    """
    if not wanted.strip():
        return note_html("Type part of an op, a type, a name, a module or a line.")
    if not rows:
        return note_html(f"None of {total:,} instructions has {wanted!r} in its op, type, name, module or line.")  # fmt: skip
    items = "".join(
        f"<li>{MARKS[change] if change else ''} {button_html(f'{s.graph.names[s.node]} {s.graph.label(s.node).op}', kind='node', node=s.number(s.node))}"
        f" <small>{markup(s.graph.label(s.node).type)} {markup(s.graph.origin(s.node).site)}</small></li>"
        for change, s in rows
    )
    more = f"<p>and {count - len(rows):,} more</p>" if count > len(rows) else ""
    return (
        f"{heading_html(text.plural(count, 'match', 'matches'))}<ul>{items}</ul>{more}"
    )


def pairing_lines(found: GraphDiff) -> list[str]:
    """Return a line for each pair of inputs that were moved or changed.

    Example: `%p827.1 (0) → %p852.7 (3): same shape, same reader %dot.4`; the numbers are
    the inputs' places.
    """
    changed = [
        (x, y)
        for x, y in found.changed
        if found.a.label(x).op == PARAMETER == found.b.label(y).op
    ]
    return [
        f"{_named(found.a, x)} → {_named(found.b, y)}: {', '.join(_reasons(found, x, y))}"
        for x, y in sorted({*found.moved_parameters, *changed})
    ]


def _named(graph: Graph, node: int) -> str:
    return f"{graph.names[node]} ({graph.numbers.get(node, '?')})"


def _reasons(found: GraphDiff, x: int, y: int) -> Iterator[str]:
    a, b = found.a, found.b
    types = a.label(x).type, b.label(y).type
    yield "same shape" if types[0] == types[1] else f"{types[0]} → {types[1]}"
    if a.origin(x).op_name and a.origin(x).op_name == b.origin(y).op_name:
        yield f"same name {a.origin(x).op_name}"
    theirs = set(b.users[y])
    for reader, slot in a.users[x]:
        partner = found.partner_a[reader]
        if (partner, slot) in theirs:
            yield f"same reader {b.names[partner]} ({b.label(partner).op})"
            return
    if set(a.outputs) & {x} and set(b.outputs) & {y}:
        yield "both are results"
