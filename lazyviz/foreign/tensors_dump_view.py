"""A dump of graphs as a table, with each graph folded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyviz.foreign.evidence import ranked
from lazyviz.hlo.sharing import is_same_up_to_sharing
from lazyviz.render import html, text
from lazyviz.render.escape import markup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazyviz.foreign.tensors_dump import DumpedGraph, TensorsDump
    from lazyviz.hlo import GraphDiff

_HEADER = ["graph", "hash", "format", "size", "roots", "event", "in", "same as"]
_HASH_DIGITS = 8
_MAX_OPS = 12
_MAX_CHARACTERS = 200_000
_MAX_COMPARED = 8
# Beyond so many characters equal hashes are taken at their word.
_MAX_CHECKED = 8_000_000
# Columns that say the same of every graph stand in the line above the table.
_COMMON = ("format", "event")


def dump_text(dump: TensorsDump) -> str:
    """Return a table of the graphs and the most frequent ops."""
    parts = [_summary(dump), text.table(*_columns(dump))]
    parts += ["\n".join(sentences)] if (sentences := list(_differences(dump))) else []
    ops = _ops(dump)
    return "\n\n".join([*parts, ops] if ops else parts)


def dump_html(dump: TensorsDump) -> str:
    """Return the table, and each graph that differs, folded."""
    parts = [html.muted(_summary(dump)), html.table(*_columns(dump))]
    parts += [f"<p>{markup(sentence)}</p>" for sentence in _differences(dump)]
    for positions in dump.distinct.values():
        graph = dump.graphs[positions[0] - 1]
        left = text.more(len(graph.body) - _MAX_CHARACTERS, "character")
        body = "\n".join([graph.body[:_MAX_CHARACTERS], *left])
        parts.append(html.folded(_title(graph, positions), html.pre(body)))
    ops = _ops(dump)
    return f'<div class="lazyviz-dump">{"".join(parts)}{html.muted(ops) if ops else ""}</div>'


def dump_dict(dump: TensorsDump) -> dict[str, Any]:
    """Return the graphs as plain data, IR nodes included."""
    return {
        "graphs": [
            {
                "event": graph.event,
                "frames": list(map(str, graph.frames)),
                "roots": list(graph.roots),
                "graph_hash": graph.graph_hash,
                "format": graph.format,
                "line": graph.line,
                "nodes": [
                    {
                        "id": node.id,
                        "op": node.op,
                        "type": node.type,
                        "operands": [list(operand) for operand in node.operands],
                        "scope": node.scope,
                        "location": node.location,
                        "root": node.root,
                        "attributes": dict(node.attributes),
                    }
                    for node in graph.nodes
                ],
                "body": None if graph.nodes else graph.body,
            }
            for graph in dump.graphs
        ]
    }


def _summary(dump: TensorsDump) -> str:
    facts = "".join(f", {title} {value}" for title, value in _common(dump).items())
    return (
        f"{text.plural(len(dump.graphs), 'graph')}, {len(dump.distinct):,} of them "
        f"different{facts}"
    )


def _common(dump: TensorsDump) -> dict[str, str]:
    """Return what is true of all graphs, by the title of its column."""
    found = {title: {getattr(g, title) for g in dump.graphs} for title in _COMMON}
    return {
        title: value
        for title, (value, *others) in found.items()
        if value and not others
    }


def _columns(dump: TensorsDump) -> tuple[list[str], list[list[object]]]:
    first = {k: positions[0] for positions in dump.distinct.values() for k in positions}
    rows = [
        _row(position, graph, first[position])
        for position, graph in enumerate(dump.graphs, 1)
    ]
    common = _common(dump)
    keep = [
        k
        for k, title in enumerate(_HEADER)
        if title not in common and any(row[k] != "" for row in rows)
    ]
    return [_HEADER[k] for k in keep], [[row[k] for k in keep] for row in rows]


def _row(position: int, graph: DumpedGraph, first: int) -> list[object]:
    noun = "node" if graph.nodes else "instruction"
    frame = graph.user_frame
    return [
        position,
        graph.graph_hash[:_HASH_DIGITS],
        graph.format,
        text.plural(graph.size, noun),
        len(graph.roots),
        graph.event,
        str(frame or ""),
        first if first != position else "",
    ]


def _title(graph: DumpedGraph, positions: list[int]) -> str:
    where = f", {graph.user_frame}" if graph.user_frame else ""
    times = f", {len(positions)} times" if len(positions) > 1 else ""
    return f"graph {positions[0]}{times}: {graph.size:,} in {graph.format}{where}"


def _differences(dump: TensorsDump) -> Iterator[str]:
    """Say which hashes stand for more than one program, and what makes those of a line differ."""
    yield from _shared_hashes(dump)
    first: dict[str, int] = {}
    compared = 0
    for positions in dump.distinct.values():
        position = positions[0]
        where = str(dump.graphs[position - 1].user_frame or "")
        if where not in first:
            first[where] = position
            continue
        if compared == _MAX_COMPARED:
            yield "... and further graphs; `dump.diff(1, 2)` compares two of them."
            return
        compared += 1
        found = dump.diff(first[where], position)
        yield (
            f"graph {position} is another one than graph {first[where]} of the same line: "
            f"{_what(found) or 'nothing that its text shows'}."
        )


def _shared_hashes(dump: TensorsDump) -> Iterator[str]:
    """Say of graphs with an earlier one's hash how they differ from it."""
    size = sum(len(graph.body) for graph in dump.graphs)
    for positions in dump.distinct.values() if size <= _MAX_CHECKED else ():
        first = positions[0]
        alike: dict[tuple[str, bool], list[int]] = {}
        for position in positions[1:]:
            found = dump.diff(first, position)
            if what := _what(found):
                same = is_same_up_to_sharing(found.a, found.b)
                alike.setdefault((what, same), []).append(position)
        for (what, same), others in alike.items():
            yield _shared_hash(first, others, what, same=same)


def _shared_hash(first: int, others: list[int], what: str, *, same: bool) -> str:
    *rest, last = map(str, others)
    subject = (
        f"graphs {', '.join(rest)} and {last} have" if rest else f"graph {last} has"
    )
    if same:
        return (
            f"{subject} the hash of graph {first}, and the same results: values are shared "
            f"otherwise, {what}."
        )
    return (
        f"{subject} the hash of graph {first}, but not its program: {what}. torch_xla runs "
        "one executable for both, so results may be wrong (pytorch/xla#8353)."
    )


def _what(found: GraphDiff) -> str:
    counts = [
        (len(found.added), "more", "node"),
        (len(found.removed), "fewer", "node"),
    ]
    parts = [text.plural(n, f"{how} {noun}") for n, how, noun in counts if n]
    if found.changed:
        before, after = found.changed[0]
        old, new = found.a[before], found.b[after]
        parts.append(
            f"{text.plural(len(found.changed), 'changed node')}, the first {old.op} "
            f"{old.type} → {new.op} {new.type}"
        )
    if found.rewired:
        parts.append(text.plural(len(found.rewired), "operand") + " from elsewhere")
    if found.outputs.added or found.outputs.removed:
        parts.append("other outputs")
    return "; ".join(parts)


def _ops(dump: TensorsDump) -> str:
    ops = ranked(dump.ops(), _MAX_OPS)
    return f"ops: {ops}" if ops else ""
