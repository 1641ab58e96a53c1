"""Graph → StableHLO text: one call for each node, one private function for each spec.

Nodes that compute equal things of the rows of a tensor share a call (`batched`). On
the CPU lifted numbers are read by a function that XLA does not inline: XLA compiles equal kernels
once, and a number's position inside would make each kernel another one.

Each call carries its node's scopes, module path, op and line as a location, which XLA keeps through
optimisation, so that an instruction of the executable leads back to the user's line. Writing
text is an order of magnitude faster than re-interpreting the graph under `jax.jit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lazyrt import jax_compat
from lazyrt.errors import LoweringError
from lazyrt.ir.node import Leaf, Node, Op, Value, map_values
from lazyrt.lowering.arrays import Aval
from lazyrt.lowering.partitioning import attribute, constraint, stated
from lazyrt.lowering.registry import times_given
from lazyrt.lowering.spec import SpecFailure, jax_type, lower, spec_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lazyrt.ir.fingerprint import Canonical


_ELEMENT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64",
    "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "ui8", "uint16": "ui16",
    "uint32": "ui32", "uint64": "ui64", "bool": "i1", "complex64": "complex<f32>",
    "complex128": "complex<f64>", "float8_e4m3fn": "f8E4M3FN", "float8_e4m3fnuz": "f8E4M3FNUZ",
    "float8_e5m2": "f8E5M2", "float8_e5m2fnuz": "f8E5M2FNUZ",
}  # fmt: skip

# The attribute of a call that XLA does not inline.
_NOT_INLINED = '{mhlo.frontend_attributes = {inlineable = "false"}}'

# Labels of a function's callers that are listed.
_MAX_CALLERS = 8


def argument_types(graph: Canonical) -> list[Any]:
    """Return the types of the computation's arguments.

    They are the device data in canonical order, then, each only if the graph has any, the
    lifted floats as one f64 vector, the ints as one i64 vector and the RNG states as u64[n,2].
    """
    types = [jax_type(Aval(leaf.shape, leaf.dtype)) for leaf in graph.data]
    for leaves, extra in ((graph.floats, ()), (graph.ints, ()), (graph.rng, (2,))):
        if leaves:
            types.append(jax_type(Aval((len(leaves), *extra), leaves[0].dtype)))
    return types


def result_types(graph: Canonical) -> list[Any]:
    """Return the types of the computation's results: the roots in canonical order."""
    return [jax_type(Aval(root.shape, root.dtype)) for root in graph.roots]


def emit_text(
    graph: Canonical,
    called: Mapping[int, str] | None = None,
    *,
    numbered: bool = False,
    fast: bool = False,
    partitioned: bool = False,
) -> str:
    """Return the graph as a StableHLO module with the public function `main`.

    `called` are the user's names of inputs, by position: their locations. With `numbered`, each
    node's label ends in its number in the graph, ` #17`. In the fast tier calls of functions save
    no time. A partitioned program states the shardings of a mesh.
    """
    names: dict[Any, str] = {}
    lines: list[str] = []
    functions: dict[str, str] = {}
    arguments = _declare_arguments(
        graph,
        names,
        lines,
        None if fast or partitioned else functions,
        called or {},
        partitioned=partitioned,
    )
    chain: Value | None = None
    sequence = _in_order(graph)
    lower(
        node.spec.called for _, node in sequence if not (partitioned and stated(node))
    )
    for position, (number, node) in enumerate(sequence):
        mark = f" #{number}" if numbered else ""
        shown = graph.nodes[number]
        place = _located(label_of(shown) + mark, shown)
        sharding = stated(node) if partitioned else None
        if sharding is not None:
            (operand,) = node.operands
            made = constraint(sharding, names[operand], _tensor_type(operand))
            names[node.outputs[0]] = f"%n{position}"
            lines.append(f"%n{position} = {made} {place}")
            continue
        spec = node.spec.called
        functions.setdefault(spec.symbol, spec.text)
        known = names
        if spec.processes:
            if chain is not None:
                operand, ordered = node.operands[0], f"%n{position}_ordered"
                lines += _after(
                    names[chain], chain, names[operand], operand, ordered, place
                )
                known = {**names, operand: ordered}
            chain = node.outputs[0]
        lines += _call(node, f"%n{position}", known, place)
        if known is not names:
            names[node.outputs[0]] = known[node.outputs[0]]
    results = ", ".join(names[root] for root in graph.roots)
    types = ", ".join(_tensor_type(root) for root in graph.roots)
    return "\n".join(
        [
            f"module @lazyrt_{graph.fingerprint} {{",
            f"func.func public @main({arguments}) -> ({types}) {{",
            *lines,
            f"return {results} : {types}" if results else "return",
            "}",
            *functions.values(),
            "}",
            "",
        ]
    )


def _in_order(graph: Canonical) -> list[tuple[int, Node]]:
    """Return the nodes that XLA gets, each with the number of the one that it stands for.

    Collectives come in the order of recording, which is that of the program on all ranks.
    """
    if not any(node.spec.processes for node in graph.nodes):
        return batched(graph)
    return sorted(enumerate(graph.nodes), key=lambda each: each[1].id)


def _after(
    before: str, chain: Value, given: str, operand: Value, ordered: str, place: str
) -> list[str]:
    """Let a collective wait for the one before, so that all ranks run them in one order.

    Its operand is selected by a condition that always holds and that XLA cannot know: the highest
    bit of the replica's number is 0.
    """
    whole, own = _tensor_type(chain), _tensor_type(operand)
    element = _element(chain)
    scalar, word = f"tensor<{element}>", "tensor<ui32>"
    first = f"tensor<{'1x' * len(chain.shape)}{element}>"
    starts = ", ".join("0:1" for _ in chain.shape)
    found = [
        (f"slice {before} [{starts}]", f"({whole}) -> {first}"),
        (f"reshape {ordered}_0", f"({first}) -> {scalar}"),
        ("replica_id", word),
        ("constant dense<31>", word),
        (f"shift_right_logical {ordered}_2, {ordered}_3", word),
    ]
    if chain.dtype.is_complex:
        real = f"tensor<{element.removeprefix('complex<')[:-1]}>"
        found.append((f"real {ordered}_1", f"({scalar}) -> {real}"))
        found.append((f"convert {ordered}_5", f"({real}) -> {word}"))
    else:
        found.append((f"reshape {ordered}_1", f"({scalar}) -> {scalar}"))
        found.append((f"convert {ordered}_5", f"({scalar}) -> {word}"))
    found += [
        (f"and {ordered}_4, {ordered}_6", word),
        ("constant dense<0>", word),
        (f"compare EQ, {ordered}_7, {ordered}_8", f"({word}, {word}) -> tensor<i1>"),
        (f"constant dense<{_zero(operand)}>", own),
    ]
    lines = [
        f"{ordered}_{k} = stablehlo.{what} : {types} {place}"
        for k, (what, types) in enumerate(found)
    ]
    last = f"select {ordered}_9, {given}, {ordered}_10 : tensor<i1>, {own}"
    return [*lines, f"{ordered} = stablehlo.{last} {place}"]


def _zero(value: Value) -> str:
    if value.dtype.is_complex:
        return "(0.0, 0.0)"
    if value.dtype.is_floating_point:
        return "0.0"
    return "false" if _element(value) == "i1" else "0"


def function_places(graph: Canonical) -> dict[str, tuple[str, str, int]]:
    """Return label, file and line of each private function that `emit_text` writes.

    A function may stand for many nodes, so it has their labels as a set, joined by `;` as XLA
    joins those of instructions that it merges, and the line of the first; the file is empty
    where no line is known.
    """
    callers: dict[str, dict[str, Node]] = {}
    for number, made in batched(graph):
        node = graph.nodes[number]
        callers.setdefault(made.spec.called.symbol, {}).setdefault(label_of(node), node)
    readers = _first_readers(graph)
    for name, leaves in _packed(graph):
        first = next((readers[leaf] for leaf in leaves if leaf in readers), None)
        if first is not None:
            callers[_unpacker(name)] = {f"lifted {name}": first}
    return {symbol: _place(found) for symbol, found in callers.items()}


def _place(callers: dict[str, Node]) -> tuple[str, str, int]:
    labels = list(callers)
    more = len(labels) - _MAX_CALLERS
    if more > 0:
        labels = [*labels[:_MAX_CALLERS], f"and {more} more"]
    site = next(iter(callers.values())).provenance.site
    label = ";".join(labels)
    return (label, "", 0) if site is None else (label, site.file, site.line)


def _declare_arguments(
    graph: Canonical,
    names: dict[Any, str],
    lines: list[str],
    functions: dict[str, str] | None,
    called: Mapping[int, str],
    *,
    partitioned: bool,
) -> str:
    arguments = []
    readers = _first_readers(graph)
    for number, leaf in enumerate(graph.data):
        names[leaf] = f"%p{number}"
        split = leaf.sharding if partitioned else None
        said = "" if split is None else attribute(split)
        arguments.append(
            f"%p{number}: {_tensor_type(leaf)}{said}{_called(called, number)}"
        )
    if jax_compat.device().platform != "cpu":
        functions = None
    for name, leaves in _packed(graph):
        element = _element(leaves[0])
        extra = "x2" if name == "rng" else ""
        vector = f"tensor<{len(leaves)}{extra}x{element}>"
        arguments.append(f"%{name}: {vector}{_called(called, len(arguments))}")
        unpack = _unpack
        if functions is not None and name != "rng" and len(leaves) > 1:
            unpack = _unpack_by_call
            functions[_unpacker(name)] = _unpacking_function(name, vector, leaves[0])
        for number, leaf in enumerate(leaves):
            place = _located(f"lifted {name}", readers.get(leaf))
            lines += unpack(name, vector, number, leaf, place)
            names[leaf] = f"%{name}_{number}"
    return ", ".join(arguments)


def _first_readers(graph: Canonical) -> dict[Value, Node]:
    """Return the first node that reads each packed number."""
    packed = {*graph.floats, *graph.ints, *graph.rng}
    return {
        operand: node
        for node in reversed(graph.nodes)
        for operand in node.operands
        if operand in packed
    }


def _called(called: Mapping[int, str], number: int) -> str:
    return f' loc("{_quoted(called[number])}")' if number in called else ""


def _packed(graph: Canonical) -> list[tuple[str, tuple[Leaf, ...]]]:
    """Return the arguments that pack several leaves: their names and these leaves."""
    kinds = ("floats", graph.floats), ("ints", graph.ints), ("rng", graph.rng)
    return [(name, leaves) for name, leaves in kinds if leaves]


def _unpacker(name: str) -> str:
    """Return the name of the function that unpacks a vector of numbers."""
    return f"lifted_{name}"


def _unpacking_function(name: str, vector: str, leaf: Leaf) -> str:
    """Return the function that reads one number of a vector, given its position."""
    row, one = f"tensor<1x{_element(leaf)}>", _tensor_type(leaf)
    return (
        f"func.func private @{_unpacker(name)}(%all: {vector}, %at: tensor<i64>) -> {one} {{\n"
        f"%row = stablehlo.dynamic_slice %all, %at, sizes = [1] : ({vector}, tensor<i64>) "
        f"-> {row}\n"
        f"%one = stablehlo.reshape %row : ({row}) -> {one}\n"
        f"return %one : {one}\n}}"
    )


def _unpack_by_call(
    name: str, vector: str, number: int, leaf: Leaf, place: str
) -> list[str]:
    """Read one number of a vector by a call that keeps its position out of all kernels."""
    one = f"%{name}_{number}"
    return [
        f"{one}_at = stablehlo.constant dense<{number}> : tensor<i64> {place}",
        (
            f"{one} = func.call @{_unpacker(name)}(%{name}, {one}_at) {_NOT_INLINED} : "
            f"({vector}, tensor<i64>) -> {_tensor_type(leaf)} {place}"
        ),
    ]


def _unpack(name: str, vector: str, number: int, leaf: Leaf, place: str) -> list[str]:
    """Read one number, or one RNG state, of a vector by a slice."""
    element, one = _element(leaf), f"%{name}_{number}"
    columns, row = (
        (", 0:2", f"tensor<1x2x{element}>")
        if leaf.shape
        else ("", f"tensor<1x{element}>")
    )
    return [
        (
            f"{one}_row = stablehlo.slice %{name} [{number}:{number + 1}{columns}] : "
            f"({vector}) -> {row} {place}"
        ),
        f"{one} = stablehlo.reshape {one}_row : ({row}) -> {_tensor_type(leaf)} {place}",
    ]


def _call(node: Node, result: str, names: dict[Any, str], place: str) -> list[str]:
    spec = node.spec
    outputs = [output for output in node.outputs if output is not None]
    for number, output in enumerate(outputs):
        names[output] = result if len(outputs) == 1 else f"{result}#{number}"
    count = "" if len(outputs) == 1 else f":{len(outputs)}"
    arguments = [names[operand] for operand in node.operands]
    ins = [_tensor_type(operand) for operand in node.operands]
    outs = ", ".join(_tensor_type(output) for output in outputs)
    lines = []
    if spec.general is not None:
        at = f"{result}_at"
        lines.append(
            f"{at} = stablehlo.constant dense<{spec.position}> : tensor<i64> {place}"
        )
        arguments.append(at)
        ins.append("tensor<i64>")
    lines.append(
        f"{result}{count} = func.call @{spec.called.symbol}({', '.join(arguments)}) : "
        f"({', '.join(ins)}) -> ({outs}) {place}"
    )
    return lines


def _located(label: str, node: Node | None) -> str:
    """Return a label with the line that recorded a node."""
    site = node.provenance.site if node is not None else None
    if site is None:
        return f'loc("{_quoted(label)}")'
    return f'loc("{_quoted(label)}"("{_quoted(site.file)}":{site.line}:0))'


def label_of(node: Node) -> str:
    """Return how HLO metadata names a node: its scopes, its module and its op."""
    origin = node.provenance
    label = f"{origin.path}/{node.op.name}" if origin.path else node.op.name
    return f"{label} (backward)" if origin.backward is not None else label


def _quoted(text: str) -> str:
    """Escape text for an MLIR string literal."""
    return "".join(
        f"\\{ord(char):02X}" if char in '"\\' or not char.isprintable() else char
        for char in text
    )


def _element(value: Value) -> str:
    return _ELEMENT[str(value.dtype).removeprefix("torch.")]


def _tensor_type(value: Value) -> str:
    return f"tensor<{''.join(f'{size}x' for size in value.shape)}{_element(value)}>"


# --------------------------------------------------- equal ops on all rows of a tensor
# XLA compiles a kernel for each row in `torch.stack([f(row) for row in x])`. For an elementwise `f`
# the stack is `f(x)`, so XLA gets that. The graph, its fingerprint and its names stay as recorded.


_SELECT = Op(torch.ops.aten.select.int)
_PERMUTE = Op(torch.ops.aten.permute.default)
_STACK = "aten.stack.default"


@dataclass(slots=True, eq=False)
class _Kind:
    """What one op computes of each row.

    `whole` are its values of all rows, along a dimension in front; None until it is needed.
    """

    first: Node
    count: int
    whole: Value | None = None


_Rows = dict[Value | None, tuple[_Kind, int]]


def batched(graph: Canonical) -> list[tuple[int, Node]]:
    """Return the nodes that XLA gets for a graph, each with the number of one that it stands for.

    Results of the graph keep their values.
    """
    plain = list(enumerate(graph.nodes))
    if not any(node.op.name == _STACK for node in graph.nodes):
        return plain
    rows = _rows_of(graph)
    stacks = {node: kind for node in graph.nodes if (kind := _stacked(node, rows))}
    needed, waiting = set(stacks.values()), list(stacks.values())
    while waiting:
        operands = waiting.pop().first.operands
        more = {rows[value][0] for value in operands if value in rows} - needed
        needed |= more
        waiting += more
    made: list[tuple[int, Node]] = []
    try:
        for number, node in plain if needed else ():
            kind, index = rows.get(node.outputs[0], (None, 0))
            if kind in needed and kind.first is node:
                made += [(number, new) for new in _all_rows(kind, rows)]
            if kind in needed and node.op.name != _SELECT.name:
                node = _instead(node, _SELECT, (kind.whole, 0, index))  # noqa: PLW2901
            elif node in stacks:
                rank = len(_type(node)[0])
                order = list(range(1, rank))
                order.insert(node.args[1] % rank, 0)
                args = (stacks[node].whole, tuple(order))
                node = _instead(node, _PERMUTE, args)  # noqa: PLW2901
            made.append((number, node))
    except (SpecFailure, LoweringError):  # one row at a time has a lowering
        return plain
    read, kept = set(graph.roots), []
    for number, node in reversed(made):
        if not read.isdisjoint(node.outputs):
            read.update(node.operands)
            kept.append((number, node))
    return kept[::-1] if needed else plain


def _rows_of(graph: Canonical) -> _Rows:
    """Return the values of a graph that are computed of one row: their kind, and which row."""
    rows: _Rows = {}
    kinds: dict[Any, _Kind] = {}
    for node in graph.nodes:
        if node.op.name == _SELECT.name:
            source, dim, index = node.args
            dim, count = dim % len(source.shape), source.shape[dim]
            key: Any = (source, dim)
        else:
            found = {rows[value] for value in node.operands if value in rows}
            places = {(kind.count, place) for kind, place in found}
            if len(places) != 1 or not _is_elementwise(node, rows):
                continue
            ((count, index),) = places
            args = map_values(node.args, lambda v: rows[v][0] if v in rows else v)
            key = (node.op, args, _type(node))
        kind = kinds.setdefault(key, _Kind(node, count))
        rows[node.outputs[0]] = (kind, index % count)
    return rows


def _type(node: Node) -> tuple[tuple[int, ...], torch.dtype]:
    return node.outputs[0].shape, node.outputs[0].dtype  # type: ignore[union-attr]


def _is_elementwise(node: Node, rows: _Rows) -> bool:
    """Return whether an op computes of more rows what it computes of each."""
    is_pointwise = torch.Tag.pointwise in node.op.func.tags and len(node.outputs) == 1
    if not is_pointwise or node.op.is_random or times_given(node.op.name):
        return False
    rank = len(_type(node)[0])
    # Tensors without dimensions give way to others when a result's dtype is found.
    alike = rank > 0 or len({value.dtype for value in node.operands}) == 1
    return alike and all(len(v.shape) == rank for v in node.operands if v in rows)


def _stacked(node: Node, rows: _Rows) -> _Kind | None:
    """Return the kind whose values a node stacks: of all rows, in order, and computed."""
    found = [rows.get(value) for value in node.operands]
    if node.op.name != _STACK or found[0] is None:
        return None
    kind = found[0][0]
    is_whole = found == [(kind, index) for index in range(kind.count)]
    return kind if is_whole and kind.first.op.name != _SELECT.name else None


def _all_rows(kind: _Kind, rows: _Rows) -> list[Node]:
    """Set a kind's `whole`, and return the nodes that compute it."""
    node, args = kind.first, kind.first.args
    if node.op.name != _SELECT.name:
        made = _instead(
            node,
            node.op,
            map_values(args, lambda v: rows[v][0].whole if v in rows else v),
            kind.count,
        )
    else:
        kind.whole, dim, rank = args[0], args[1], len(args[0].shape)
        order = sorted(range(rank), key=lambda each: each != dim % rank)
        if not order[0]:
            return []
        made = _instead(node, _PERMUTE, (args[0], tuple(order)), kind.count)
    kind.whole = made.outputs[0]
    return [made]


def _instead(
    node: Node, op: Op, args: tuple[Any, ...], count: int | None = None
) -> Node:
    """Return a node that computes what another one does, or does for `count` rows."""
    made = Node(node.id, op, args, node.provenance)
    made.outputs = node.outputs
    if count is not None:
        shape, dtype = _type(node)
        made.outputs = (Value(made, 0, (count, *shape), dtype, None),)
    made.spec = spec_of(made)
    if made.spec.default_dtype is not node.spec.default_dtype:
        raise SpecFailure("torch's default dtype has changed since it was recorded")
    made.spec.check()
    made.spec.called.text  # noqa: B018 - refused by MLIR here, or never
    return made
