"""What keeps growing, and what earlier cells make a step bigger by."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from lazyrt.control.append_site import line_of_keeping
from lazyrt.control.live_rows import COLLECTIONS, Growth, Waiting
from lazyrt.frontend.holders import AUTOGRAD, BACKWARD_OF
from lazyrt.ir.cones import nodes_under
from lazyrt.ir.live import pending

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lazygraph.snapshot import Name
    from lazyrt.control.live_rows import LiveRow
    from lazyrt.execution.graph import Graph
    from lazyrt.ir.node import Node, Value
    from lazyrt.observe.events import Site

_MIN_STEPS = 3
_ITEM = re.compile(r"(\[[^\[\]]*\]|\{\.\.\.\})$")


def find_growth(rows: Sequence[LiveRow]) -> tuple[tuple[Growth, ...], list[LiveRow]]:
    """Return the places that collect tensors, and the rows with those marked."""
    places: dict[str, list[LiveRow]] = defaultdict(list)
    for row in rows:
        place = _collection(row)
        if place:
            places[place].append(row)
    found = []
    marks: dict[int, int] = {}
    for place, members in places.items():
        ages = {row.age for row in members}
        if len(ages) < _MIN_STEPS:
            continue
        per_step = max(1, round(len(members) / len(ages)))
        marks |= dict.fromkeys((row.id for row in members), per_step)
        found.append(_growth_of(place, members, per_step))
    found.sort(key=lambda each: -each.nbytes)
    return tuple(found), [
        dataclasses.replace(row, growth=marks[row.id]) if row.id in marks else row
        for row in rows
    ]


def _growth_of(place: str, members: Sequence[LiveRow], per_step: int) -> Growth:
    now, ages = pending.number, [row.age for row in members]
    latest = min(members, key=lambda row: row.age)
    kept = line_of_keeping(place.rpartition(" ")[2], latest.site)
    return Growth(
        holder=place,
        per_step=per_step,
        first=now - max(ages),
        last=now - min(ages),
        count=len(members),
        nbytes=sum(row.nbytes for row in members),
        site=kept or latest.site,
    )


def with_keepers(rows: Sequence[LiveRow]) -> list[LiveRow]:
    """Return the rows with the lines that put them into the collections that hold them."""
    known: dict[tuple[str, Site], Site | None] = {}

    def line(holder: Name, site: Site) -> Site | None:
        path = _collection_of(holder)
        key = path, site
        if path and key not in known:
            known[key] = line_of_keeping(path, site)
        return known.get(key)

    found = []
    for row in rows:
        site = row.site
        kept = tuple(line(each, site) for each in row.holders) if site else ()
        found.append(dataclasses.replace(row, kept=kept) if any(kept) else row)
    return found


def _collection_of(holder: Name) -> str:
    """Return the path of the collection whose item a holder is; empty for another holder."""
    parent = _ITEM.sub("", holder.text)
    return parent if holder.holder in COLLECTIONS and parent != holder.text else ""


def _collection(row: LiveRow) -> str:
    """Return the collection that holds a tensor, such as `list history`; empty for none."""
    for holder in row.holders:
        parent = _ITEM.sub("", holder.text)
        if parent == holder.text:
            continue
        if holder.holder in COLLECTIONS:
            return f"{holder.holder} {parent}"
        if holder.holder == AUTOGRAD:
            return f"autograd's graphs under {parent.removeprefix(BACKWARD_OF)}"
    return ""


def find_waiting(rows: Sequence[LiveRow]) -> tuple[Waiting, ...]:
    """Return the earlier cells' tensors for which ops run that nothing else needs."""
    by_cell: dict[int, list[LiveRow]] = defaultdict(list)
    for row in rows:
        if row.is_pending and row.site is not None and row.site.cell is not None:
            by_cell[row.site.cell].append(row)
    if len(by_cell) < 2:  # noqa: PLR2004 - an earlier cell and a later one
        return ()
    everything = [row for row in rows if row.is_pending]
    whole = nodes_under(_values(everything))
    found = []
    for cell in sorted(by_cell)[:-1]:
        mine = {row.id for row in by_cell[cell]}
        others = _values(row for row in everything if row.id not in mine)
        alone = whole - nodes_under(others)
        held = [row for row in by_cell[cell] if _node(row) in alone]
        if held:
            names = tuple(row.name for row in held if row.name)
            found.append(
                Waiting(cell=cell, names=names, count=len(held), nodes=len(alone))
            )
    return tuple(found)


def waiting_cells(graph: Graph, names: Mapping[Value, str]) -> tuple[Waiting, ...]:
    """Return the same of a graph alone: no tensor is looked for.

    Args:
        graph: The pending graph.
        names: The user's names of its roots, as far as they are known.
    """
    by_cell: dict[int, list[Value]] = defaultdict(list)
    for root in graph.roots:
        site = root.node.provenance.site if root.node is not None else None
        if site is not None and site.cell is not None:
            by_cell[site.cell].append(root)
    found = []
    for cell in sorted(by_cell)[:-1]:
        mine = set(by_cell[cell])
        others = [root for root in graph.roots if root not in mine]
        alone = set(graph.nodes) - nodes_under(others)
        held = [root for root in by_cell[cell] if root.node in alone]
        if held:
            called = tuple(names[root] for root in held if root in names)
            found.append(
                Waiting(cell=cell, names=called, count=len(held), nodes=len(alone))
            )
    return tuple(found)


def _node(row: LiveRow) -> Node | None:
    return row._value.node if row._value is not None else None


def _values(rows: Iterable[LiveRow]) -> list[Value]:
    return [row._value for row in rows if row._value is not None]
