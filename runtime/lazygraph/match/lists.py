"""Ops on lists and calls: in which order they have their entries or operands means nothing."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, NamedTuple

from lazygraph.graph import CONSTANT, PARAMETER, Label, grouped

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
    """An op in the order of one of another program: that, its label, its entries' places, its operands."""

    of: int
    label: Label
    places: dict[int, int]
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


def orders(
    a: Graph, b: Graph, callees: Callees, partners: Sequence[int]
) -> dict[int, Order]:
    """Return the ops on lists of `b` that do for their entries what one of `a` does for its own.

    `callees` gives the graphs that a node calls, `partners` for each node of `b` its partner in
    `a`, or -1, where each result is an op of its own.
    """
    of_a, of_b = results(a), results(b)
    at = {node: (w, k) for w, nodes in of_a.items() for k, node in nodes.items()}
    shared = grouped(
        ((at[partners[node]][0], whole), (k, at[partners[node]][1]))
        for whole, nodes in of_b.items()
        for k, node in nodes.items()
        if partners[node] in at
    )
    found: dict[int, Order] = {}
    taken: set[int] = set()
    for (of, whole), pairs in sorted(shared.items(), key=lambda each: -len(each[1])):
        if of in taken or whole in found:
            continue
        places = dict(pairs)
        target, own = entries(a, of, callees), entries(b, whole, callees)
        if len(target) <= max(of_a[of]) or len(own) <= max(of_b[whole]):
            continue
        given = {*places.values()}
        free = (k for k in itertools.count() if k not in given)
        every = {k: places[k] if k in places else next(free) for k in range(len(own))}
        order = sorted(every, key=every.__getitem__)
        keys = [each.key for each in target], [own[k].key for k in order]
        layout, label = own, b.label(whole)
        if len(target) != len(own):
            is_alike = {*keys[0]} == {*keys[1]} and whole not in of_b[whole].values()
        elif keys[0] == keys[1]:
            layout, label = target, a.label(of)
            is_alike = len(a.operands[of]) == len(b.operands[whole])
        else:
            is_alike = is_on_lists(label.op) and len({*keys[1]}) == 1
        slots = [(layout[j].slots, own[k].slots) for j, k in enumerate(order)]
        if not is_alike or any(len(one) != len(other) for one, other in slots):
            continue
        reads: dict[int, int] = {}
        for j in sorted(range(len(order)), key=lambda j: order[j] in places):
            reads |= zip(*slots[j], strict=True)
        operands = b.operands[whole]
        row = tuple(operands[reads.get(slot, slot)] for slot in range(len(operands)))
        taken.add(of)
        found[whole] = Order(of, label, every, row)
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
