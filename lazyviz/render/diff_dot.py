"""The union graph of a diff in the DOT language."""

from __future__ import annotations

from typing import TYPE_CHECKING

import graphviz

from lazyviz.render import escape
from lazyviz.render.diff_model import UnionGraph, UnionNode, union_graph
from lazyviz.render.diff_text import ADDED, CHANGED, REMOVED, REWIRED, SAME

if TYPE_CHECKING:
    from lazygraph.diff import GraphDiff

# Fill, line and style; told apart without colours too, by the mark and the line.
STYLES = {
    ADDED: ("#56B4E9", "#0072B2", "filled", "2"),
    REMOVED: ("#F2B48C", "#D55E00", "filled,dashed", "2"),
    CHANGED: ("#F5E94B", "#222222", "filled,bold", "2"),
    REWIRED: ("#FFFFFF", "#222222", "filled,bold", "2"),
    SAME: ("#FFFFFF", "#9A9A9A", "filled", "1"),
}
_EDGES = {
    SAME: {"color": "#9A9A9A"},
    ADDED: {"color": "#0072B2", "penwidth": "2"},
    REMOVED: {"color": "#D55E00", "penwidth": "2", "style": "dashed"},
}


def diff_dot(found: GraphDiff, *, budget: int = 120) -> str:
    """Return DOT source for the changed nodes of a diff and their surroundings."""
    return union_dot(union_graph(found, budget))


def union_dot(union: UnionGraph) -> str:
    """Return DOT source; nodes are `n0`, `n1`, ... and scopes are clusters."""
    source = graphviz.Digraph(
        name="diff",
        graph_attr={"newrank": "true", "fontname": "monospace", "fontsize": "10"},
        node_attr={
            "shape": "box", "fontname": "monospace", "fontsize": "10", "fontcolor": "#111111",
        },
        edge_attr={"arrowsize": "0.6"},
    )  # fmt: skip
    scopes: dict[tuple[str, ...], list[int]] = {}
    for position, node in enumerate(union.nodes):
        scopes.setdefault(node.scope, []).append(position)
    for number, (scope, members) in enumerate(scopes.items()):
        if not scope:
            _add(source, union, members)
            continue
        with source.subgraph(name=f"cluster_{number}") as inner:
            inner.attr(label=escape.dot(".".join(scope)), color="#BBBBBB")
            _add(inner, union, members)
    for position, node in enumerate(union.nodes):
        if node.hidden:
            source.node(f"h{position}", f"… {node.hidden}", shape="plaintext")
            source.edge(
                f"h{position}", f"n{position}", style="dotted", arrowhead="none"
            )
    for start, end, mark in union.edges:
        source.edge(f"n{start}", f"n{end}", **_EDGES[mark])
    return str(source.source)


def _add(source: graphviz.Digraph, union: UnionGraph, members: list[int]) -> None:
    for position in members:
        node = union.nodes[position]
        fill, line, style, width = STYLES[node.mark]
        source.node(
            f"n{position}",
            escape.dot(label_of(node)),
            style=style,
            fillcolor=fill,
            color=line,
            penwidth=width,
            tooltip=escape.dot(" ".join((*node.scope, node.site))),
            peripheries="2" if node.is_output else "1",
        )


def label_of(node: UnionNode) -> str:
    """Return a node's two lines."""
    places = f" ×{node.places}" if node.places > 1 else ""
    return f"{node.label}{places}\n{node.detail}"
