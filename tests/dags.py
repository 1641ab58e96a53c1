"""Random graphs with random edits of which the truth is known: nothing in them is regular.

Rows have keys; two graphs' rows with one key are the same node, so the keys say what an edit
script costs at most. Equal labels, equal operands and equal constants abound on purpose.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from lazygraph import Graph, GraphBuilder, GraphDiff

UNARY = ("negate", "exponential", "tanh", "sine", "abs")
BINARY = ("add", "multiply", "subtract", "dot")


class Row(NamedTuple):
    """One node; operands are keys."""

    key: str
    op: str
    type: str
    attrs: str = ""
    literal: str = ""
    operands: tuple[str, ...] = ()


Dag = tuple[list[Row], list[str]]


def dag(rng, size):
    """A random graph; in half of them nodes read only what is near, as in deep programs."""
    near = rng.random() < 0.5
    rows = [
        Row(f"p{k}", "parameter", f"f32[{rng.choice([4, 8])}]")
        for k in range(rng.randint(1, 4))
    ]
    for k in range(size):
        known = [row.key for row in (rows[-12:] if near else rows)]
        rows.append(_row(rng, k, known))
    read = {operand for row in rows for operand in row.operands}
    return _live(rows, [row.key for row in rows if row.key not in read])


def _row(rng, k, known):
    kind, shape = rng.random(), f"f32[{rng.choice([4, 8])}]"
    if kind < 0.1:
        return Row(f"c{k}", "constant", "f32[]", literal=str(rng.choice([0, 1, 2])))
    if kind < 0.5:
        return Row(
            f"n{k}", rng.choice(UNARY), shape, operands=tuple(rng.choices(known, k=1))
        )
    if kind < 0.9:
        return Row(
            f"n{k}", rng.choice(BINARY), shape, operands=tuple(rng.choices(known, k=2))
        )
    several = tuple(rng.choices(known, k=rng.randint(1, 3)))
    return Row(f"n{k}", "reduce", "f32[]", "dimensions={0}", operands=several)


def _live(rows, outputs):
    needed = set(outputs)
    for row in reversed(rows):
        if row.key in needed:
            needed.update(row.operands)
    return [row for row in rows if row.key in needed], outputs


def edited(rng, found, count):
    """A graph with random edits; some may undo others."""
    rows, outputs = found
    for number in range(count):
        rows, outputs = _live(list(rows), list(outputs))
        inner = [k for k, row in enumerate(rows) if row.operands]
        if inner:
            rows, outputs = rng.choice(_EDITS)(
                rng, rows, outputs, rng.choice(inner), number
            )
    return _live(rows, outputs)


def _other_op(rng, rows, outputs, k, number):
    if len(rows[k].operands) < 3:
        table = UNARY if len(rows[k].operands) == 1 else BINARY
        rows[k] = rows[k]._replace(op=rng.choice(table))
    return rows, outputs


def _other_type(rng, rows, outputs, k, number):
    types = ("f32[4]", "f32[8]", "f32[16]", "f64[4]", "f64[8]")
    rows[k] = rows[k]._replace(type=rng.choice(types))
    return rows, outputs


def _other_constant(rng, rows, outputs, k, number):
    found = [k for k, row in enumerate(rows) if row.op == "constant"]
    if found:
        k = rng.choice(found)
        rows[k] = rows[k]._replace(literal=str(rng.choice([0, 1, 3])))
    return rows, outputs


def _inserted(rng, rows, outputs, k, number):
    row, key = rows[k], f"i{number}"
    slot = rng.randrange(len(row.operands))
    operands = list(row.operands)
    new = Row(key, rng.choice(UNARY), "f32[4]", operands=(operands[slot],))
    operands[slot] = key
    rows[k : k + 1] = [new, row._replace(operands=tuple(operands))]
    return rows, outputs


def _removed(rng, rows, outputs, k, number):
    gone, into = rows[k].key, rows[k].operands[0]
    del rows[k]
    rows = [
        row._replace(operands=tuple(into if o == gone else o for o in row.operands))
        for row in rows
    ]
    return rows, [into if key == gone else key for key in outputs]


def _rewired(rng, rows, outputs, k, number):
    operands = list(rows[k].operands)
    operands[rng.randrange(len(operands))] = rng.choice(rows[:k]).key
    rows[k] = rows[k]._replace(operands=tuple(operands))
    return rows, outputs


def _permuted(rng, rows, outputs, k, number):
    rows[k] = rows[k]._replace(operands=rows[k].operands[::-1])
    return rows, outputs


def _doubled(rng, rows, outputs, k, number):
    rows.insert(k + 1, rows[k]._replace(key=f"d{number}"))
    return rows, [*outputs, f"d{number}"]


def _more_outputs(rng, rows, outputs, k, number):
    return rows, [*outputs, rows[k].key]


def _fewer_outputs(rng, rows, outputs, k, number):
    if len(outputs) > 1:
        outputs.pop(rng.randrange(len(outputs)))
    return rows, outputs


_EDITS = (
    _other_op, _other_type, _other_constant, _inserted, _removed, _rewired, _permuted,
    _doubled, _more_outputs, _fewer_outputs,
)  # fmt: skip


def graph_of(rng, found, name):
    """The graph in a random order of nodes and outputs, and each node's key."""
    rows, outputs = found
    builder = GraphBuilder(name)
    ids: dict[str, int] = {}
    waiting = list(rows)
    rng.shuffle(waiting)
    keys = []
    while waiting:
        later = []
        for row in waiting:
            if all(operand in ids for operand in row.operands):
                kind = builder.label(*row[1:5])
                ids[row.key] = builder.add(kind, [ids[o] for o in row.operands])
                keys.append(row.key)
            else:
                later.append(row)
        waiting = later
    shuffled = [ids[key] for key in outputs]
    rng.shuffle(shuffled)
    return builder.finish(shuffled), keys


def pair(seed):
    """Two graphs, and what the edits between them cost at most."""
    rng = random.Random(seed)  # noqa: S311 - reproducible
    one = dag(rng, rng.choice([5, 20, 60, 150]))
    two = edited(rng, one, rng.choice([0, 1, 2, 4, 8]))
    a, keys_a = graph_of(rng, one, "a")
    b, keys_b = graph_of(rng, two, "b")
    return a, b, truth(a, keys_a, b, keys_b).cost


def truth(a: Graph, keys_a: list[str], b: Graph, keys_b: list[str]) -> GraphDiff:
    """The difference that the keys tell."""
    node_a = {key: node for node, key in enumerate(keys_a)}
    node_b = {key: node for node, key in enumerate(keys_b)}
    partners = [node_b.get(key, -1) for key in keys_a]
    return GraphDiff(a, b, partners, [node_a.get(key, -1) for key in keys_b])
