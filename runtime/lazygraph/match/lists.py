"""Ops on lists and calls: in which order they have their entries or operands means nothing."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from lazygraph.graph import CONSTANT, PARAMETER, Label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lazygraph.graph import Graph

    Callees = Callable[[Graph, int], list[Graph]]

_ARGUMENT = re.compile(r"\[[^\[\]]*\]|[^\[\],\s][^,]*")
GETTERS = {"getitem", "get-tuple-element"}
_LISTS = ("._foreach_", "._fused_")
_CALLS = {"call", "fusion"}
# What a function consists of that picks an element: its name in StableHLO and in HLO.
_PICKS = {PARAMETER, "dynamic_slice", "dynamic-slice", "reshape", "bitcast"}


class Entry(NamedTuple):
    """What is done for one result, equal for like ones, and which operands it reads."""

    key: object
    slots: tuple[int, ...]


class Order(NamedTuple):
    """An op in another program's order: its label, its entries' indices here, what it reads."""

    label: Label
    places: list[int]
    operands: tuple[int, ...]


def is_on_lists(op: str) -> bool:
    """Return whether an op takes lists of tensors, and does the same for each of their places."""
    return any(each in op for each in _LISTS)


def results(graph: Graph) -> dict[int, dict[int, int]]:
    """Return for each call, and each op with several results, the nodes that give them, by index."""
    found = {
        k: {0: k}
        for k, op in enumerate(graph.ops)
        if op in _CALLS and not graph.types[k].startswith("(")
    }
    for node, op in enumerate(graph.ops):
        if op in GETTERS:
            index = graph.attrs[node].rpartition("=")[2]
            if index.isdecimal():  # a printer of XLA can leave it out
                found.setdefault(graph.operands[node][0], {})[int(index)] = node
    return found


def entries(graph: Graph, whole: int, callees: Callees) -> list[Entry]:
    """Return what makes each result of an op on lists or a call; nothing of other ops."""
    if is_on_lists(graph.ops[whole]):
        return _of_arguments(graph, whole)
    called = callees(graph, whole) if graph.operands[whole] else []
    found = _of_callee(called[0]) if len(called) == 1 else []
    slots = {slot for each in found for slot in each.slots}
    return found if max(slots, default=0) < len(graph.operands[whole]) else []


def _of_arguments(graph: Graph, whole: int) -> list[Entry]:
    op, slots = graph.ops[whole], iter(range(len(graph.operands[whole])))
    arguments = [
        [(text, next(slots) if text == "%" else -1) for text in part.strip("[]").split(", ")]
        for part in _ARGUMENT.findall(graph.attrs[whole])
    ]  # fmt: skip
    rows = [
        [each[k] if len(each) > 1 else each[0] for each in arguments]
        for k in range(len(arguments[0]))
        if all(len(each) in (1, len(arguments[0])) for each in arguments)
    ]
    # A fused optimizer gives several lists, such as weights and moments.
    lists = graph.types[whole].count("[") // max(len(rows), 1)
    return [
        Entry((op, n, *(text for text, _ in row)), tuple(k for _, k in row if k >= 0))
        for n in range(lists)
        for row in rows
    ]


def _of_callee(callee: Graph) -> list[Entry]:
    found = []
    for output in callee.outputs:
        order, queue = {output: 0}, [output]
        for node in queue:
            new = [k for k in callee.operands[node] if k not in order]
            order |= {k: len(order) + n for n, k in enumerate(dict.fromkeys(new))}
            queue += dict.fromkeys(new)
        inputs = [k for k in order if callee.ops[k] == PARAMETER]
        key = tuple(
            (callee.label(k), *(order[each] for each in callee.operands[k])) for k in order
        )  # fmt: skip
        found.append(Entry(key, tuple(callee.numbers[k] for k in inputs)))
    return found


def work(graph: Graph, nodes: Iterable[int], callees: Callees) -> set[object]:
    """Return what calls among some nodes, or near them, do to an entry, or that one is on lists."""
    near = {each for k in nodes for each in (k, *graph.operands[k][:1])}
    if any(is_on_lists(graph.ops[k]) for k in near):
        return {_LISTS}
    rows = (entries(graph, k, callees) for k in near & results(graph).keys())
    return {frozenset(row.key for row in each) for each in rows if each}


def split(graph: Graph, callees: Callees) -> Graph:
    """Return a graph with each result of an op on lists as an op of its own."""
    new = {}
    for whole, nodes in results(graph).items():
        found, reads = entries(graph, whole, callees), graph.operands[whole]
        for index, node in nodes.items() if len(found) > max(nodes) else ():
            label = Label(graph.ops[whole], graph.types[node], str(found[index].key))
            new[node] = label, tuple(reads[k] for k in found[index].slots)
    return graph.relabelled(new)


class Shorter(NamedTuple):
    """An op that has some of another one's entries.

    Attributes:
        of: The other op.
        places: For each of its results, which of the other's it is, or a new one.
    """

    of: int
    places: dict[int, int]


def shorter(
    a: Graph, b: Graph, callees: Callees, partners: Sequence[int]
) -> dict[int, Shorter]:
    """Return the ops on lists of `b` that do what one of `a` does, to more or fewer entries.

    Those of both have one order. Arguments as for `orders`.
    """
    of_a = results(a)
    at = {node: (w, k) for w, nodes in of_a.items() for k, node in nodes.items()}
    found: dict[int, Shorter] = {}
    for whole, nodes in results(b).items():
        pairs = {k: at[partners[n]] for k, n in nodes.items() if partners[n] in at}
        ((of, count),) = Counter(w for w, _ in pairs.values()).most_common(1) or [
            (-1, 0)
        ]
        if of < 0 or len(of_a[of]) == len(nodes) or 2 * count <= len(nodes):
            continue
        keys = [
            {e.key for e in entries(*each, callees)} for each in ((a, of), (b, whole))
        ]
        if keys[0] != keys[1]:
            continue
        places = {k: place for k, (w, place) in pairs.items() if w == of}
        if [*places.values()] == sorted(places.values()):
            new = itertools.count(max(of_a[of]) + 1)
            every = {k: places[k] if k in places else next(new) for k in nodes}
            found[whole] = Shorter(of, every)
    return found


def orders(
    a: Graph, b: Graph, callees: Callees, partners: Sequence[int]
) -> dict[int, Order]:
    """Return the ops on lists of `b` that have the entries of one of `a` in another order.

    `callees` gives the graphs that a node calls, `partners` for each node of `b` its partner in
    `a`, or -1, where each result is an op of its own.
    """
    of_a = results(a)
    at = {node: (w, k) for w, nodes in of_a.items() for k, node in nodes.items()}
    found = {}
    for whole, nodes in results(b).items():
        pairs = {k: at.get(partners[node], (-1, -1)) for k, node in nodes.items()}
        partner = next(iter(pairs.values()))[0]
        places = {place: k for k, (_, place) in pairs.items()}
        order = [places.get(k, -1) for k in range(len(nodes))]
        if {w for w, _ in pairs.values()} != {partner} or sorted(order) != sorted(
            nodes
        ):
            continue
        target, own = entries(a, partner, callees), entries(b, whole, callees)
        if min(len(target), len(own)) <= max(nodes):
            continue
        reads, label = [*b.operands[whole]], a.label(partner)
        if [each.key for each in target] != [own[k].key for k in order]:
            if not is_on_lists(b.ops[whole]) or len({each.key for each in own}) > 1:
                continue
            target, label = own, b.label(whole)
        elif len(reads) != len(a.operands[partner]):
            continue
        for place, k in enumerate(order):
            for slot, other in zip(target[place].slots, own[k].slots, strict=True):
                reads[slot] = b.operands[whole][other]
        found[whole] = Order(label, order, tuple(reads))
    return found


def without_positions(graph: Graph, callees: Callees) -> Graph:
    """Return a graph in which numbers of a packed input have no position, as inputs have none."""
    new = {}
    for node, operands in enumerate(graph.operands):
        ops = [graph.ops[each] for each in operands]
        if ops == [PARAMETER, CONSTANT] and _picks(graph, node, callees):
            new[node] = graph.label(node), operands[:1]
            label, users = graph.label(operands[1]), graph.users[operands[1]]
            if len(users) == 1:
                new[operands[1]] = label._replace(attrs="position", literal=""), ()
    return graph.relabelled(new) if new else graph


def is_packed(graph: Graph, node: int, callees: Callees) -> bool:
    """Return whether an input packs numbers: whatever reads it picks one of them."""
    users = [user for user, _ in graph.users[node]]
    return bool(users) and all(
        graph.types[user].endswith("[]") and _picks(graph, user, callees)
        for user in users
    )


def _picks(graph: Graph, node: int, callees: Callees) -> bool:
    """Return whether a node calls what picks an element of its operand, and does no more."""
    called = callees(graph, node)
    return bool(called) and all(
        each.ops[k] in _PICKS or _picks(each, k, callees)
        for each in called
        for k in range(len(each))
    )
