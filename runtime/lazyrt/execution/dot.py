"""A compiled graph as a DOT digraph, clustered by module."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lazyrt.execution.census import CompiledGraph
    from lazyrt.ir.snapshot import Snapshot


def to_dot(record: CompiledGraph, ir: str) -> str:
    """Return a graph's snapshot as DOT text.

    Args:
        record: Of the graph; it must still have the snapshot.
        ir: The graph's IR, which follows as comments: a drawing lacks the ops' arguments, and
            a comparison needs them.
    """
    snapshot = record.snapshot
    assert snapshot is not None
    scopes: dict[str, list[int]] = defaultdict(list)
    for k, vertex in enumerate(snapshot.vertices):
        scopes[vertex.scope].append(k)
    lines = [f"digraph {_quoted(record.name)} {{", "  node [shape=box];"]
    for number, (scope, members) in enumerate(scopes.items()):
        nodes = [f"v{k} [label={_quoted(_label(snapshot, k))}];" for k in members]
        if scope:
            head = f"subgraph cluster_{number} {{ label={_quoted(scope)};"
            nodes = [head, *(f"  {node}" for node in nodes), "}"]
        lines += [f"  {node}" for node in nodes]
    for k, vertex in enumerate(snapshot.vertices):
        lines += [f"  v{operand} -> v{k};" for operand, _ in vertex.operands]
    for rank, (vertex_number, _) in enumerate(snapshot.roots):
        name = snapshot.root_names[rank].text if rank in snapshot.root_names else ""
        label = f"output {rank} {name}".strip()
        lines.append(f"  r{rank} [shape=ellipse, label={_quoted(label)}];")
        lines.append(f"  v{vertex_number} -> r{rank};")
    comments = [f"// {line}" for line in ir.splitlines()]
    return "\n".join([*lines, "}", *comments, ""])


def _label(snapshot: Snapshot, k: int) -> str:
    vertex = snapshot.vertices[k]
    name = snapshot.leaf_names[k].text if k in snapshot.leaf_names else ""
    parts = [f"{vertex.op} {name}".strip(), ", ".join(vertex.types)]
    if vertex.site is not None:
        parts.append(str(vertex.site))
    return "\n".join(parts)


def _quoted(text: str) -> str:
    """Return a DOT string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
