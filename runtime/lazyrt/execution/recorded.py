"""A compiled graph's record as bytes, so that another process can compare it with its own.

Plain data, compressed: the snapshot, what the step's key says, and the names of results. Numbers
of tensors are not in it, and nothing of it holds one.
"""

from __future__ import annotations

import gzip
import json
from typing import Any, cast

from lazygraph.snapshot import Name, Snapshot, Vertex, labels
from lazyrt.execution.census import CompiledGraph, StepKey
from lazyrt.observe.events import Site

VERSION = 1


def encode(record: CompiledGraph) -> bytes:
    """Return a record with its snapshot as compressed JSON.

    Raises:
        ValueError: The snapshot was dropped to bound memory.
    """
    snapshot = record.snapshot
    if snapshot is None:
        raise ValueError(f"{record.name} has no snapshot any more")
    sites: dict[Site | None, int] = {}
    key = record.key
    data = {
        "version": VERSION,
        "name": record.name,
        "fingerprint": snapshot.fingerprint,
        "step": record.first_step,
        "donated": key.donated,
        "tier": key.tier,
        "device": key.device,
        "mode": key.mode,
        "boundaries": [
            [cause, _numbered(site, sites)]
            for cause, site in (key.ended_by, key.began_after, *key.fallbacks)
        ],
        "vertices": [
            [v.op, v.attrs, v.types, v.operands, _numbered(v.site, sites), v.scope, v.backward]
            for v in snapshot.vertices
        ],
        "roots": snapshot.roots,
        "leaf_names": [[k, *name] for k, name in snapshot.leaf_names.items()],
        "root_names": [[k, *name] for k, name in snapshot.root_names.items()],
        "random": sorted(snapshot.random),
        "modules": sorted(snapshot.modules),
        "results": [[op, _numbered(site, sites), name] for op, site, name in record.results],
        "sites": [
            None if s is None else [s.file, s.line, s.function, s.cell] for s in sites
        ],
    }  # fmt: skip
    text = json.dumps(data, separators=(",", ":"))
    return gzip.compress(text.encode(), compresslevel=3, mtime=0)


def _numbered(site: Site | None, sites: dict[Site | None, int]) -> int:
    return sites.setdefault(site, len(sites))


def decode(contents: str) -> CompiledGraph:
    """Return the record whose JSON `encode` compressed.

    Raises:
        ValueError: It is another text, or one that was cut or edited.
    """
    try:
        return _record(json.loads(contents))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"it is not the record of a graph: {error!r:.80}") from None


def _record(data: Any) -> CompiledGraph:
    if data["version"] != VERSION:
        raise ValueError(f"it has version {data['version']!r:.20}, not {VERSION}")
    sites = [None if each is None else Site(*each) for each in data["sites"]]
    snapshot = _snapshot(data, sites)
    boundaries = [(cause, sites[number]) for cause, number in data["boundaries"]]
    key = StepKey(
        fingerprint=data["fingerprint"],
        donated=tuple(data["donated"]),
        tier=data["tier"],
        device=data["device"],
        mode=data["mode"],
        ended_by=boundaries[0],
        began_after=boundaries[1],
        fallbacks=tuple(boundaries[2:]),
    )
    nodes = snapshot.nodes
    return CompiledGraph(
        name=data["name"],
        key=key,
        nodes=nodes,
        inputs=len(snapshot.vertices) - nodes,
        outputs=len(snapshot.roots),
        first_step=data["step"],
        last_step=data["step"],
        snapshot=snapshot,
        results=tuple((op, sites[number], name) for op, number, name in data["results"]),
        labels=labels(snapshot),
    )  # fmt: skip


def _snapshot(data: Any, sites: list[Site | None]) -> Snapshot:
    vertices = tuple(
        Vertex(
            op,
            tuple(attrs),
            tuple(types),
            tuple((int(x), int(k)) for x, k in operands),
            sites[site],
            scope,
            backward,
        )
        for op, attrs, types, operands, site, scope, backward in data["vertices"]
    )
    for number, vertex in enumerate(vertices):
        if any(not 0 <= x < number for x, _ in vertex.operands):
            raise ValueError(f"operation {number} reads one that is not in front of it")
    roots = tuple((int(x), int(k)) for x, k in data["roots"])
    if any(not 0 <= x < len(vertices) for x, _ in roots):
        raise ValueError("a result is none of the operations")
    return Snapshot(
        cast("str", data["fingerprint"]),
        vertices,
        roots,
        {k: Name(text, holder) for k, text, holder in data["leaf_names"]},
        {k: Name(text, holder) for k, text, holder in data["root_names"]},
        random=frozenset(data["random"]),
        modules=frozenset(data["modules"]),
    )
