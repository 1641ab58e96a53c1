"""The panel beside a graph: facts about a box, its cost, its neighbours, what was found.

All text is escaped here. A button carries what it asks for in `data-` attributes; see
`lazyviz/static/graph_view.js`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lazyviz.render import text
from lazyviz.render.escape import markup
from lazyviz.render.model import path_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyrt.execution.inspection import Cost
    from lazyviz.render.model import Box

_MAX_NEIGHBOURS = 12
_MAX_KINDS = 8


def node_facts(box: Box, *, upstream: Sequence[Box], downstream: Sequence[Box]) -> str:
    """Return what is known of an op without computing anything."""
    node = box.members[0]
    rows = [
        ("op", markup(box.op)),
        ("type", markup(box.detail)),
        ("variable", markup(box.name)),
        ("step", markup(box.step)),
        ("scope", markup(box.scope)),
        ("module", markup(path_text(box.path))),
        ("line", markup(box.site)),
        ("reads", _neighbours(upstream)),
        ("read by", _neighbours(downstream)),
        ("output", "a live tensor" if box.is_root else ""),
    ]
    focus = _button(f"{box.label} and what is near", kind="focus", node=node, hops=2)
    return f"{_heading(f'%{node} {box.label}')}{_facts(rows)}<p>{focus}</p>"


def input_facts(box: Box) -> str:
    """Return what is known of an input of the graph."""
    kind = (
        "a number, which changes without a recompile" if box.kind == "constant" else ""
    )
    rows = [
        ("input", markup(box.op)),
        ("type", markup(box.detail)),
        ("kind", kind),
        ("first read in", markup(path_text(box.path))),
    ]
    return f"{_heading(box.label)}{_facts(rows)}"


def group_panel(box: Box, index: int, members: Sequence[Box]) -> str:
    """Return what a folded box holds, and a button that opens it."""
    kinds = Counter(each.label.rpartition(" = ")[2] for each in members).most_common()
    shown = ", ".join(f"{count}× {name}" for name, count in kinds[:_MAX_KINDS])
    if len(kinds) > _MAX_KINDS:
        shown += f" and {text.plural(len(kinds) - _MAX_KINDS, 'other kind')}"
    lines = sorted({each.site for each in members if each.site})
    rows = [
        ("holds", markup(f"{text.plural(len(members), 'op')}: {shown}")),
        ("module", markup(path_text(box.path))),
        ("repeats", f"{box.count} times alike" if box.count > 1 else ""),
        ("lines", markup(", ".join(lines[:_MAX_KINDS]))),
    ]
    opens = _button("Open", kind="open", box=index)
    return f"{_heading(path_text(box.path) or box.label)}{_facts(rows)}<p>{opens}</p>"


def cost_html(cost: Cost, node: int, *, asks: bool) -> str:
    """Return what computing a value takes, and a button for it if that is the reader's choice."""
    if not cost.nodes:
        return '<p class="lzc">known already</p>'
    facts = f"{text.plural(cost.nodes, 'op')} to run"
    if cost.reused:
        facts += f", {text.plural(cost.reused, 'value')} known"
    facts += f", about {text.duration(cost.estimate_ns)}"
    if not asks:
        return f'<p class="lzc" aria-busy="true">{markup(facts)} …</p>'
    button = _button("Compute this value", kind="value", node=node, output=0)
    return (
        f'<p class="lzc">{markup(facts)}; the step stays as it is.</p><p>{button}</p>'
    )


def value_html(
    value: str, took: str, node: int, outputs: Sequence[int], output: int
) -> str:
    """Return a node's value under what it took, with buttons for its other results.

    Args:
        value: HTML of the value.
        took: How long that took, in words.
        node: The node.
        outputs: Positions of its results.
        output: Which of them this is.
    """
    others = ""
    if len(outputs) > 1:
        buttons = (
            f"<b>{k}</b>"
            if k == output
            else _button(str(k), kind="value", node=node, output=k)
            for k in outputs
        )
        others = f" · result {' '.join(buttons)}"
    line = (
        f'<p class="lzc">computed in {markup(took)}, the step is as before{others}</p>'
    )
    return f'{line}<div data-value="{node}">{value}</div>'


def error_html(error: BaseException) -> str:
    """Return why there is no value to show."""
    return f'<p class="lzx" role="alert">{markup(str(error))}</p>'


def found_html(wanted: str, found: Sequence[Box], count: int) -> str:
    """Return the ops that a search found."""
    if not wanted.strip():
        return "<p>Type part of an op, a type, a variable, a module or a line.</p>"
    if not found:
        return f"<p>No op has {markup(repr(wanted))} in its name, type, variable, module or line.</p>"
    items = "".join(
        f"<li>{_link(box)} <small>{markup(box.detail)} {markup(box.site)}</small></li>"
        for box in found
    )
    more = f"<p>and {count - len(found):,} more</p>" if count > len(found) else ""
    return f"{_heading(text.plural(count, 'op'))}<ul>{items}</ul>{more}"


def _heading(title: str) -> str:
    return f"<h4>{markup(title)}</h4>"


def _facts(rows: Sequence[tuple[str, str]]) -> str:
    """Return a table of names and HTML, the empty rows left out."""
    cells = "".join(
        f"<tr><th>{name}</th><td>{body}</td></tr>" for name, body in rows if body
    )
    return f"<table>{cells}</table>"


def _neighbours(boxes: Sequence[Box]) -> str:
    links = [_link(box) for box in boxes[:_MAX_NEIGHBOURS]]
    if len(boxes) > _MAX_NEIGHBOURS:
        links.append(f"and {len(boxes) - _MAX_NEIGHBOURS:,} more")
    return ", ".join(links)


def _link(box: Box) -> str:
    if not box.members:
        return markup(box.label)
    return _button(f"%{box.members[0]} {box.label}", kind="node", node=box.members[0])


def _button(label: str, **request: object) -> str:
    data = "".join(
        f' data-{key}="{markup(str(value))}"' for key, value in request.items()
    )
    return f'<button type="button"{data}>{markup(label)}</button>'
