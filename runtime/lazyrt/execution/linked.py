"""A step as several programs that run one after another, equal layers by the same one.

XLA copies a function for each of its calls before it optimises, so functions save it nothing.
A part is compiled by itself, once for all layers that are equal.

A block is what one layer, such as `encoder.layer.3`, recorded: its forward; or its backward with
all that only its gradients go into, such as its share of an optimizer's update. Everything else
lies between blocks. Blocks of equal fingerprints and lines are one program, whose labels name none
of them: `encoder.layer.*`.
"""

from __future__ import annotations

import bisect
import heapq
import weakref
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lazyrt import jax_compat
from lazyrt.execution import memory
from lazyrt.ir.fingerprint import Canonical, canonicalise
from lazyrt.ir.node import (
    Leaf,
    Node,
    Value,
    entry_lists,
    iter_values,
    map_values,
    nbytes_of,
)
from lazyrt.lowering.emit import argument_types, emit_text, result_types
from lazyrt.lowering.spec import spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from lazyrt.ir.node import Provenance
    from lazyrt.jax_compat import Donated


_Layer = tuple[str, int, bool]
# The fixed part of a fast compile on a CPU, in results of ops: 0.05 s, where one takes 1 ms.
_PROGRAM = 50
# What a launch costs the host in a hundred steps, of 0.15 ms each: as long a fast build of few
# layers runs until the optimised one is made.
_LAUNCH = 15
_MIN_LAYERS = 2  # what is equal, and what lies between


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

    There are none where that saves no time: XLA's grows with the results of ops, each program
    takes as long as `_PROGRAM` of them more, and each part is launched by itself.
    """
    # Ops on lists are in pieces of one layer each.
    owners = _owners(graph)
    units: list[_Unit] = []
    for node in graph.nodes:
        units += _split(node, owners, len(units))
    # All results must be computed, or be device data.
    is_plain = all(root.node or root in graph.data for root in graph.roots)
    if len({unit.layer for unit in units}) < _MIN_LAYERS or not is_plain:
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
    separate += _LAUNCH * len(parts)
    return parts if separate < _PROGRAM + _LAUNCH + _size(graph.nodes) else []


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
    return origin._replace(module=".".join(names))


def _layer_of(origin: Provenance) -> _Layer | None:
    """Return the outermost numbered module that recorded an op, and whether backward did."""
    names, at = _numbered(origin.module)
    if at is None:
        return None
    return ".".join(names[:at]), int(names[at]), origin.backward is not None


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
    lists = entry_lists(node.op.func, node.args)
    return lists if lists and not len(node.outputs) % len(node.args[lists[0]]) else ()


def _entries(node: Node) -> list[tuple[list[Value], list[Value]]]:
    """Return outputs and operands that belong together; of an op on lists, of each entry."""
    lists = _lists(node)
    if not lists:
        return [(_made(node), list(node.operands))]
    count = len(node.args[lists[0]])
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
    count = len(node.args[lists[0]])
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
    nothing of that can, a layer runs as far as it gets. What needs only inputs of the step waits
    until it is read, so that an update stays in one part, and in its memory.
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
    _put_off(runs, maker, readers)
    return [run for run in runs if run]


def _put_off(
    runs: Sequence[list[_Unit]],
    maker: Mapping[Value, _Unit],
    readers: Mapping[_Unit, Sequence[_Unit]],
) -> None:
    """Move what needs only inputs of the step to the last run of its layer before it is read."""
    of_run = {unit: k for k, run in enumerate(runs) for unit in run}
    of_layer: dict[_Layer | None, list[int]] = defaultdict(list)
    movable: set[_Unit] = set()
    for k, run in enumerate(runs):
        of_layer[run[0].layer].append(k)
        for unit in run:
            needs = [maker[v] for v in iter_values(unit.args) if v in maker]
            if all(n in movable and n.layer in (None, unit.layer) for n in needs):
                movable.add(unit)
    for unit in sorted(movable, key=lambda unit: unit.number, reverse=True):
        first = min((of_run[reader] for reader in readers[unit]), default=of_run[unit])
        places = of_layer[unit.layer]
        of_run[unit] = places[bisect.bisect_right(places, first) - 1]
    for run in runs:
        run.clear()
    for unit in sorted(of_run, key=lambda unit: unit.number):
        runs[of_run[unit]].append(unit)


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


# --------------------------------------------------------- the parts as one executable


_DTYPES = np.float64, np.int64, np.uint64  # of numbers, as the executor packs them


class _Program:
    """One executable; those of equal parts are one object while any step has it."""

    def __init__(self, executable: Any) -> None:
        self.executable = executable
        self.launch = jax_compat.launcher(executable)


_programs: weakref.WeakValueDictionary[Any, _Program] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class _Call:
    """One launch of a program; values are numbered, the step's arguments first.

    Attributes:
        program: Its number.
        inputs: The values that it reads.
        numbers: For each kind that it reads: which vector of the step's, and the positions.
        dead: The values made on the way that nobody needs after it.
        is_last: Whether no later launch reads what it makes, and so waits for it.
    """

    program: int
    inputs: tuple[int, ...]
    numbers: tuple[tuple[int, tuple[int, ...]], ...]
    dead: tuple[int, ...]
    is_last: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """What a step allocates, in the words of XLA's memory analysis; sizes in bytes."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    temp_size_in_bytes: int
    alias_size_in_bytes: int = 0


def _giver(kind: int, count: int) -> jax_compat.Giver:
    shape = (count, 2) if kind == 2 else (count,)  # noqa: PLR2004 - RNG states are pairs
    return jax_compat.giver(*shape, dtype=_DTYPES[kind])


@dataclass(frozen=True, slots=True)
class _Ready:
    """Ready when all programs of a step have ended."""

    scalars: list[Any]

    def is_ready(self) -> bool:
        return all(scalar.is_ready() for scalar in self.scalars)

    def block_until_ready(self) -> _Ready:
        for scalar in self.scalars:
            scalar.block_until_ready()
        return self


class LinkedExecutable:
    """Runs programs in turn, and hands each what the ones before have made.

    Attributes:
        launch_count: How many programs a step launches.
        program_count: How many of them are different ones.
    """

    def __init__(
        self,
        programs: Sequence[_Program],
        calls: Sequence[_Call],
        results: Sequence[int],
        plan: Memory,
    ) -> None:
        self._programs = tuple(programs)
        self._calls = tuple(calls)
        self._results = tuple(results)
        self._memory = plan
        self.launch_count, self.program_count = len(calls), len(programs)
        self._kinds = sorted({kind for call in calls for kind, _ in call.numbers})
        with jax_compat.scope():
            self._run = [
                (
                    self._programs[call.program].launch,
                    call.inputs,
                    [
                        (kind, np.array(at), _giver(kind, len(at)))
                        for kind, at in call.numbers
                    ],
                    call.dead,
                    call.is_last,
                )
                for call in calls
            ]

    def launch(self, args: Sequence[Any]) -> list[Any]:
        """Run all programs on device arrays; return the results and what is ready behind them."""
        data = len(args) - len(self._kinds)
        vectors = dict(zip(self._kinds, map(np.asarray, args[data:]), strict=True))
        values = list(args[:data])
        last = []
        for launch, inputs, numbers, dead, is_last in self._run:
            given = [values[k] for k in inputs]
            for kind, at, give in numbers:
                given.append(give(vectors[kind][at]))
            made = launch(given)
            ended = made.pop()
            if is_last:
                last.append(ended)
            values += made  # in the order in which they are numbered
            for number in dead:
                values[number] = None
        return [*[values[k] for k in self._results], _Ready(last)]

    def memory_analysis(self) -> Memory:
        """Return what the whole step allocates."""
        return self._memory

    @property
    def programs(self) -> list[Any]:
        """The executables of the different programs."""
        return [each.executable for each in self._programs]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it for a process of equal versions."""
        programs = [jax_compat.serialise(each.executable) for each in self._programs]
        return _loaded, (programs, self._calls, self._results, self._memory)


def _loaded(programs: Sequence[bytes], *rest: Any) -> LinkedExecutable:
    loaded = [_Program(jax_compat.deserialise(each)) for each in programs]
    return LinkedExecutable(loaded, *rest)


def link(
    graph: Canonical, parts: Sequence[Part], donated: Donated, rules: object
) -> LinkedExecutable:
    """Compile the different ones among a graph's parts by the fast tier, and link them.

    Args:
        graph: The whole.
        parts: All it consists of, in the order in which they can run.
        donated: Arguments of the whole that give up their memory, and the root that takes it.
        rules: What programs depend on besides their graphs: the user's rules.
    """
    numbers: dict[Value, int] = {value: k for k, value in enumerate(graph.data)}
    for part in parts:
        for value in part.results:
            numbers[value] = len(numbers)
    last = {value: k for k, part in enumerate(parts) for value in part.inputs[0]}
    read = set(last)
    last |= dict.fromkeys(graph.roots, len(parts))
    vectors: list[dict[Value, int]] = [
        {leaf: k for k, leaf in enumerate(leaves)}
        for leaves in (graph.floats, graph.ints, graph.rng)
    ]
    programs: dict[_Program, int] = {}
    calls = []
    held = peak = 0  # beyond the step's arguments
    for k, part in enumerate(parts):
        given = _given(part, k, last, donated, graph)
        program = _program(part, given, rules)
        made = [value for value in part.inputs[0] if numbers[value] >= len(graph.data)]
        dead = [value for value in made if last[value] == k]
        dead += [value for value in part.results if value not in last]
        calls.append(
            _Call(
                programs.setdefault(program, len(programs)),
                tuple(numbers[value] for value in part.inputs[0]),
                tuple(
                    (kind, tuple(vectors[kind][leaf] for leaf in leaves))
                    for kind, leaves in enumerate(part.inputs[1:])
                    if leaves
                ),
                tuple(numbers[value] for value in dead),
                read.isdisjoint(part.results),
            )
        )
        peak = max(peak, held + memory.planned(program.executable))
        held += _nbytes(part.results) - _nbytes(dead)
        held -= _nbytes(part.results[at] for at in given.values() if at is not None)
    plan = Memory(_nbytes(graph.data), held, max(peak - held, 0))
    return LinkedExecutable(
        [*programs], calls, [numbers[root] for root in graph.roots], plan
    )


def _nbytes(values: Iterable[Value]) -> int:
    return sum(map(nbytes_of, values))


def _given(
    part: Part,
    k: int,
    last: Mapping[Value, int],
    donated: Donated,
    graph: Canonical,
) -> dict[int, int | None]:
    """Return which inputs a part may overwrite, and which of its results takes their memory.

    No later part reads them. They are the whole's that it hands on, and what parts before made,
    of which XLA says what takes it.
    """
    takers: dict[Value, int | None]
    takers = {graph.data[at]: result for at, result in donated.items()}
    found: dict[int, int | None] = {}
    for position, value in enumerate(part.inputs[0]):
        result = takers.get(value)
        if last[value] != k:
            continue
        if value.node is not None:
            found[position] = None
        elif result is not None:
            root = graph.roots[result]
            if root in part.results:
                found[position] = part.results.index(root)
    return found


def _program(part: Part, donated: Donated, rules: object) -> _Program:
    graph = part.graph
    key = (part.key, tuple(sorted(donated.items())), rules)
    found = _programs.get(key)
    if found is None:
        made = jax_compat.compile_text(
            emit_text(graph, fast=True),
            argument_types(graph),
            result_types(graph),
            donated,
            fast=True,
            title=f"part_{graph.fingerprint[:8]}",
        )
        found = _programs[key] = _Program(made)
    return found
