"""Equal layers as programs of their own: a graph cut into parts that run one after another.

XLA copies a function for each of its calls before it optimises, so functions save it nothing.
A part is compiled by itself, once for all layers that are equal.

A block is what one layer, such as `encoder.layer.3`, recorded: its forward; or its backward with
all that only its gradients go into, such as its share of an optimizer's update. Everything else
lies between blocks. Blocks of equal fingerprints and lines are one program, whose labels name none
of them: `encoder.layer.*`.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lazyrt.ir.fingerprint import Canonical, canonicalise
from lazyrt.ir.node import Leaf, Node, Value, iter_values, map_values
from lazyrt.lowering.spec import spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from lazyrt.ir.node import Provenance

_Layer = tuple[str, int, bool]
# The fixed part of a fast compile on a CPU, in results of ops: 0.05 s, where one takes 1 ms.
_PROGRAM = 50
_MIN_LAYERS = 2  # what is equal, and what lies between
# Foreach ops whose argument for all entries is one tensor.
_NOT_BY_ENTRY = ("aten._foreach_addcmul.Tensor", "aten._foreach_addcdiv.Tensor")


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of a graph.

    Attributes:
        graph: What it computes, as a graph of its own.
        inputs: What its leaves are in the whole: its data, floats, ints and RNG states.
        results: What its roots are in the whole.
        is_block: Whether it is a layer's.
        key: What parts that may share a program have in common: fingerprint, modules and lines.
    """

    graph: Canonical
    inputs: tuple[tuple[Value, ...], ...]
    results: tuple[Value, ...]
    is_block: bool
    key: Hashable


@dataclass(slots=True, eq=False)
class _Unit:
    """A node, or the entries of an op on lists that are of one layer."""

    node: Node
    args: tuple[Any, ...]
    outputs: tuple[Value | None, ...]
    layer: _Layer | None
    number: int


def parts_of(graph: Canonical) -> list[Part]:
    """Return the parts of a graph in an order in which they can run.

    There are none where compiling them takes as long as compiling the whole: XLA's time grows
    with the results of ops, and each program takes as long as `_PROGRAM` of them more.
    """
    units = _units(graph)
    if len({unit.layer for unit in units}) < _MIN_LAYERS or not _is_plain(graph):
        return []
    while True:
        runs = _schedule(units)
        parts = _parts(runs, graph)
        times = Counter(part.key for part in parts if part.is_block)
        alone = {
            run[0].layer
            for run, part in zip(runs, parts, strict=True)
            if part.is_block and times[part.key] == 1
        }
        if not alone:
            break
        for unit in units:
            if unit.layer in alone:
                unit.layer = None
    parts = [part for part in parts if part.results]
    different = {part.key: part.graph for part in parts}
    separate = sum(_PROGRAM + _size(each.nodes) for each in different.values())
    return parts if separate < _PROGRAM + _size(graph.nodes) else []


def _is_plain(graph: Canonical) -> bool:
    """Return whether all results are computed, or are device data."""
    return all(root.node or root in graph.data for root in graph.roots)


def _size(nodes: Iterable[Node]) -> int:
    return sum(len(node.outputs) for node in nodes)


# ------------------------------------------------------------------- which layer


def _numbered(module: str) -> tuple[list[str], int | None]:
    """Return a module's names, and which of them is the first number: a layer's."""
    names = module.split(".")
    return names, next((k for k, name in enumerate(names) if name.isdecimal()), None)


def _of_any_layer(origin: Provenance) -> Provenance:
    """Return where all equal layers recorded an op: `encoder.layer.*.attention`."""
    names, at = _numbered(origin.module)
    if at is None:
        return origin
    names[at] = "*"
    return replace(origin, module=".".join(names))


def _layer_of(origin: Provenance) -> _Layer | None:
    """Return the outermost numbered module that recorded an op, and whether backward did."""
    names, at = _numbered(origin.module)
    if at is None:
        return None
    return ".".join(names[:at]), int(names[at]), origin.backward is not None


def _units(graph: Canonical) -> list[_Unit]:
    """Return a graph's nodes with their layers; ops on lists, in pieces of one layer each."""
    owners = _owners(graph)
    units: list[_Unit] = []
    for node in graph.nodes:
        units += _split(node, owners, len(units))
    return units


def _owners(graph: Canonical) -> dict[Value, _Layer | None]:
    """Return the layer of each value; None for what is of none, or of several."""
    owners: dict[Value, _Layer | None] = {}
    readers: dict[Value, list[Value]] = defaultdict(list)
    outside = [node for node in graph.nodes if not node.provenance.module]
    for node in graph.nodes:
        if node.provenance.module:
            owners |= dict.fromkeys(_made(node), _layer_of(node.provenance))
            continue
        for outputs, operands in _entries(node):
            layers = {owners.get(value) for value in operands}
            found = [each for each in layers if each is not None and each[2]]
            owners |= dict.fromkeys(outputs, found[0] if len(found) == 1 else None)
            for value in operands:
                readers[value] += outputs
    for node in reversed(outside):  # what one layer's update alone reads is the layer's
        for outputs, operands in _entries(node):
            if owners[outputs[0]] is None and not any(v.node for v in operands):
                layers = {owners[reader] for out in outputs for reader in readers[out]}
                if len(layers) == 1:
                    owners |= dict.fromkeys(outputs, layers.pop())
    return owners


def _made(node: Node) -> list[Value]:
    return [value for value in node.outputs if value is not None]


def _lists(node: Node) -> tuple[int, ...]:
    """Return the positions of the lists of an op that does the same to each entry; else ()."""
    name = node.op.name
    if not name.startswith(("aten._foreach_", "aten._fused_")) or name in _NOT_BY_ENTRY:
        return ()
    schema = node.op.func._schema.arguments  # noqa: SLF001 - torch has no public name
    lists = [k for k, each in enumerate(schema) if str(each.type).startswith("List[")]
    lists = [k for k in lists if node.args[k]]
    count = len(node.args[0])
    if any(len(node.args[k]) != count for k in lists) or len(node.outputs) % count:
        return ()
    return tuple(lists)


def _entries(node: Node) -> list[tuple[list[Value], list[Value]]]:
    """Return outputs and operands that belong together; of an op on lists, of each entry."""
    lists = _lists(node)
    if not lists:
        return [(_made(node), list(node.operands))]
    count = len(node.args[0])
    return [
        (
            [v for v in node.outputs[k::count] if v is not None],
            [v for at in lists for v in iter_values((node.args[at][k],))],
        )
        for k in range(count)
    ]


def _split(
    node: Node, owners: Mapping[Value, _Layer | None], number: int
) -> list[_Unit]:
    lists = _lists(node)
    if not lists:
        return [_Unit(node, node.args, node.outputs, owners[_made(node)[0]], number)]
    count = len(node.args[0])
    entries: dict[_Layer | None, list[int]] = defaultdict(list)
    for k in range(count):
        entries[owners[node.outputs[k]]].append(k)  # type: ignore[index]
    return [
        _Unit(
            node,
            tuple(
                tuple(arg[k] for k in chosen) if at in lists else arg
                for at, arg in enumerate(node.args)
            ),
            tuple(
                node.outputs[k + start]
                for start in range(0, len(node.outputs), count)
                for k in chosen
            ),
            layer,
            number + more,
        )
        for more, (layer, chosen) in enumerate(entries.items())
    ]


# ------------------------------------------------------------------- their order


def _schedule(units: Sequence[_Unit]) -> list[list[_Unit]]:
    """Return runs of units of one layer, or of none, in an order in which they can be computed.

    A layer whose needs are met runs as a whole. Where none is, what lies between runs; where
    nothing of that can, a layer runs as far as it gets.
    """
    maker = {out: unit for unit in units for out in unit.outputs if out is not None}
    waits: dict[_Unit, int] = {}
    outside: Counter[_Layer] = Counter()
    readers: dict[_Unit, list[_Unit]] = defaultdict(list)
    ready: dict[_Layer | None, list[tuple[int, _Unit]]] = defaultdict(list)
    for unit in units:
        needs = {maker[v] for v in iter_values(unit.args) if v in maker}
        waits[unit] = len(needs)
        for need in needs:
            readers[need].append(unit)
            if unit.layer is not None and need.layer != unit.layer:
                outside[unit.layer] += 1
        if not needs:
            ready[unit.layer].append((unit.number, unit))
    runs: list[list[_Unit]] = []
    while any(ready.values()):
        layers = [layer for layer in ready if layer is not None and ready[layer]]
        whole = [layer for layer in layers if not outside[layer]]
        if whole or (layers and not ready[None]):
            layer = min(whole or layers, key=lambda each: ready[each][0][0])
        else:
            layer = None
        run: list[_Unit] = []
        waiting = ready.pop(layer)
        heapq.heapify(waiting)
        while waiting:
            _, unit = heapq.heappop(waiting)
            run.append(unit)
            for reader in readers[unit]:
                waits[reader] -= 1
                if reader.layer is not None and reader.layer != unit.layer:
                    outside[reader.layer] -= 1
                if not waits[reader]:
                    to = waiting if reader.layer == layer else ready[reader.layer]
                    heapq.heappush(to, (reader.number, reader))
        runs.append(run)
    return runs


# ------------------------------------------------------------------- their graphs


def _parts(runs: Sequence[Sequence[_Unit]], graph: Canonical) -> list[Part]:
    maker = {out: unit for run in runs for unit in run for out in unit.outputs if out}
    of_run = {unit: k for k, run in enumerate(runs) for unit in run}
    needed: set[Value] = set(graph.roots)
    for k, run in enumerate(runs):
        for unit in run:
            needed.update(_from_outside(unit, k, maker, of_run))
    return [_part(run, k, needed, maker, of_run) for k, run in enumerate(runs)]


def _is_copied(unit: _Unit, reader: _Unit) -> bool:
    """Return whether a part shows a value again by a view of its own: one of its own layer's."""
    if not unit.node.op.is_view:
        return False
    if not any(value.node for value in iter_values(unit.args)):
        return True
    of, by = unit.layer, reader.layer
    return of == by or (of is not None and by is not None and of[:2] == by[:2])


def _from_outside(
    reader: _Unit, k: int, maker: Mapping[Value, _Unit], of_run: Mapping[_Unit, int]
) -> Iterable[Value]:
    stack = list(iter_values(reader.args))
    while stack:
        value = stack.pop()
        unit = maker.get(value)
        if unit is None or of_run[unit] == k:
            continue
        if _is_copied(unit, reader):
            stack.extend(iter_values(unit.args))
        else:
            yield value


def _part(
    run: Sequence[_Unit],
    k: int,
    needed: set[Value],
    maker: Mapping[Value, _Unit],
    of_run: Mapping[_Unit, int],
) -> Part:
    copies: dict[Value, Value] = {}
    provenance: Callable[[Provenance], Provenance]
    provenance = _of_any_layer if run[0].layer is not None else lambda origin: origin

    def copy_of(value: Value) -> Value:
        if value not in copies:
            unit = maker.get(value)
            if unit is not None and of_run[unit] != k and _is_copied(unit, run[0]):
                add(unit)
            else:
                kind = value.kind if isinstance(value, Leaf) else "data"
                copies[value] = Leaf(kind, len(copies), value.shape, value.dtype)
        return copies[value]

    def add(unit: _Unit) -> None:
        node = Node(
            unit.node.id,
            unit.node.op,
            map_values(unit.args, copy_of),
            provenance(unit.node.provenance),
        )
        outputs: list[Value | None] = []
        for index, old in enumerate(unit.outputs):
            if old is None:
                outputs.append(None)
            else:
                copies[old] = Value(node, index, old.shape, old.dtype, old.strides)
                outputs.append(copies[old])
        node.outputs = tuple(outputs)
        node.spec = unit.node.spec
        if unit.args is not unit.node.args:
            node.spec = spec_of(node)
            node.spec.check()

    for unit in run:
        add(unit)
    made = [v for unit in run for v in unit.outputs if v in needed]
    canonical = canonicalise([copies[v] for v in made])
    original = {copy: value for value, copy in copies.items()}
    kinds = canonical.data, canonical.floats, canonical.ints, canonical.rng
    origins = [node.provenance for node in canonical.nodes]
    places = tuple((each.path, each.site) for each in origins)
    return Part(
        canonical,
        tuple(tuple(original[leaf] for leaf in kind) for kind in kinds),
        tuple(original[root] for root in canonical.roots),
        run[0].layer is not None,
        (canonical.fingerprint, places),
    )
