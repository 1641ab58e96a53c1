"""Graph → StableHLO text: one call for each node, one private function for each spec.

Nodes that compute equal things of the rows of a tensor share a call (`batching.py`).

Each call carries its node's scopes, module path, op and line as a location, which XLA keeps through
optimisation, so that an instruction of the executable leads back to the user's line. Writing
text is an order of magnitude faster than re-interpreting the graph under `jax.jit`, which
`interpret` does as the second, independent path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyrt.lowering.avals import Aval
from lazyrt.lowering.batching import batched
from lazyrt.lowering.spec import jax_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lazyrt.ir.fingerprint import Canonical
    from lazyrt.ir.node import Leaf, Node, Value

_ELEMENT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64",
    "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "ui8", "uint16": "ui16",
    "uint32": "ui32", "uint64": "ui64", "bool": "i1", "complex64": "complex<f32>",
    "complex128": "complex<f64>", "float8_e4m3fn": "f8E4M3FN", "float8_e4m3fnuz": "f8E4M3FNUZ",
    "float8_e5m2": "f8E5M2", "float8_e5m2fnuz": "f8E5M2FNUZ",
}  # fmt: skip

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
    graph: Canonical, called: Mapping[int, str] | None = None, *, numbered: bool = False
) -> str:
    """Return the graph as a StableHLO module with the public function `main`.

    Args:
        graph: What to lower.
        called: What the user calls inputs, by position: their locations.
        numbered: Whether each node's label ends in its number in the graph, ` #17`, which
            tells equal labels apart.
    """
    names: dict[Any, str] = {}
    lines: list[str] = []
    arguments = _declare_arguments(graph, names, lines, called or {})
    functions: dict[str, str] = {}
    for position, (number, node) in enumerate(batched(graph)):
        spec = node.spec.called
        functions.setdefault(spec.symbol, spec.text)
        mark = f" #{number}" if numbered else ""
        place = _location(graph.nodes[number], mark)
        lines += _call(node, f"%n{position}", names, place)
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
    return {symbol: _place(found) for symbol, found in callers.items()}


def _place(callers: dict[str, Node]) -> tuple[str, str, int]:
    labels = list(callers)
    more = len(labels) - _MAX_CALLERS
    if more > 0:
        labels = [*labels[:_MAX_CALLERS], f"and {more} more"]
    site = next(iter(callers.values())).provenance.site
    label = ";".join(labels)
    return (label, "", 0) if site is None else (label, site.file, site.line)


def interpret(graph: Canonical, *args: Any) -> list[Any]:
    """Compute the graph's roots on jax arrays by applying each node's rule in turn.

    Traced by `jax.jit` this is the second lowering path; `args` are as in `argument_types`.
    """
    values: dict[Value, Any] = dict(zip(graph.data, args, strict=False))
    rest = iter(args[len(graph.data) :])
    for leaves in (graph.floats, graph.ints, graph.rng):
        if leaves:
            vector = next(rest)
            values.update((leaf, vector[k]) for k, leaf in enumerate(leaves))
    for node in graph.nodes:
        results = iter(node.spec.apply(*(values[operand] for operand in node.operands)))
        for output in node.outputs:
            if output is not None:
                values[output] = next(results)
    return [values[root] for root in graph.roots]


def _declare_arguments(
    graph: Canonical,
    names: dict[Any, str],
    lines: list[str],
    called: Mapping[int, str],
) -> str:
    arguments = []
    readers = _first_readers(graph)
    for number, leaf in enumerate(graph.data):
        names[leaf] = f"%p{number}"
        arguments.append(f"%p{number}: {_tensor_type(leaf)}{_called(called, number)}")
    for name, leaves in (
        ("floats", graph.floats),
        ("ints", graph.ints),
        ("rng", graph.rng),
    ):
        if not leaves:
            continue
        element = _element(leaves[0])
        extra = "x2" if name == "rng" else ""
        vector = f"tensor<{len(leaves)}{extra}x{element}>"
        arguments.append(f"%{name}: {vector}{_called(called, len(arguments))}")
        for number, leaf in enumerate(leaves):
            lines += _pick(f"%{name}", vector, number, leaf, readers.get(leaf))
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


def _pick(
    source: str, vector: str, number: int, leaf: Leaf, reader: Node | None
) -> list[str]:
    """Take one packed number, or one packed RNG state, out of its vector at its reader's line."""
    element = _element(leaf)
    columns, row = (
        (", 0:2", f"tensor<1x2x{element}>")
        if leaf.shape
        else ("", f"tensor<1x{element}>")
    )
    name = f"{source}_{number}"
    place = _located(f"lifted {source.removeprefix('%')}", reader)
    return [
        (
            f"{name}_row = stablehlo.slice {source} [{number}:{number + 1}{columns}] : "
            f"({vector}) -> {row} {place}"
        ),
        f"{name} = stablehlo.reshape {name}_row : ({row}) -> {_tensor_type(leaf)} {place}",
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


def _location(node: Node, mark: str) -> str:
    return _located(label_of(node) + mark, node)


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
