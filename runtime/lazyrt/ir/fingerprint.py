"""The canonical form of a graph and its fingerprint.

Two graphs have one canonical form when they compute the same results from the same kinds of
input, whatever order their tensors were created in and whatever dead code surrounded them.
The form lists nodes in an order that follows from structure alone:

1. Every value gets a colour from below (its node's digest, which ignores leaf numbers) and
   every leaf one from above (who uses it, in which argument, and who uses that).
2. Leaves take both, and a second pass upwards colours the values with them.
3. Roots are sorted by colour. Equal colours that are no symmetry of the graph are told apart
   by what they share with the roots that were already numbered.
4. A depth-first walk from the sorted roots numbers nodes and leaves.

The fingerprint hashes the listing itself, so equal fingerprints mean equal listings: colours
only choose the order. A poor choice costs a compile and can never give a wrong result.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lazygraph.snapshot import OPERAND, Name, Origin, Snapshot, Vertex
from lazyrt.ir.live import Buffer, pending
from lazyrt.ir.node import (
    Leaf,
    Node,
    Provenance,
    Value,
    arg_text,
    iter_values,
    listed,
    map_values,
    type_text,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence


# Beyond this many equally coloured roots the order of arrival decides among them.
_MAX_TIES = 32


@dataclass(frozen=True, slots=True)
class Canonical:
    """A graph in canonical order.

    Attributes:
        fingerprint: 32 hexadecimal digits over the listing.
        nodes: Operands first.
        roots: In canonical order, each once.
        data, floats, ints, rng: The leaves of each kind, in order of first use by `nodes`.
    """

    fingerprint: str
    nodes: tuple[Node, ...]
    roots: tuple[Value, ...]
    data: tuple[Leaf, ...]
    floats: tuple[Leaf, ...]
    ints: tuple[Leaf, ...]
    rng: tuple[Leaf, ...]


def canonicalise(
    roots: Iterable[Value], lines: Mapping[int, Provenance] | None = None
) -> Canonical:
    """Return the canonical form of the graph under `roots`, with the lines of `listed`."""
    values = list(dict.fromkeys(roots))
    numbering = _Numbering()
    for root in _sorted_roots(values, numbering):
        numbering.visit(root)
    return numbering.finish(lines)


class _Numbering:
    """Numbers values as a depth-first walk meets them, and writes the listing."""

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}
        self.nodes: list[Node] = []
        self.roots: list[Value] = []
        self.leaves: dict[str, list[Leaf]] = {
            "data": [],
            "float": [],
            "int": [],
            "rng": [],
        }
        self.listing: list[str] = []

    def visit(self, root: Value) -> None:
        self.roots.append(root)
        if root.node is None:
            self._leaf(root)  # type: ignore[arg-type]
            return
        stack = [root.node]
        while stack:
            node = stack[-1]
            if node in self.names:
                stack.pop()
                continue
            waiting = []
            for value in iter_values(node.args):
                if value.node is None:
                    if value not in self.names:
                        self._leaf(value)  # type: ignore[arg-type]
                elif value.node not in self.names:
                    waiting.append(value.node)
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            self._node(node)

    def name(self, value: Value) -> str:
        if value.node is None:
            return self.names[value]
        return f"{self.names[value.node]}.{value.index}"

    def finish(self, lines: Mapping[int, Provenance] | None) -> Canonical:
        text = "\n".join(
            (*self.listing, "return " + ",".join(map(self.name, self.roots)))
        )
        fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        data, floats, ints, rng = (
            tuple(self.leaves[k]) for k in ("data", "float", "int", "rng")
        )
        return Canonical(
            fingerprint,
            listed(self.nodes, lines),
            tuple(self.roots),
            data,
            floats,
            ints,
            rng,
        )

    def _leaf(self, leaf: Leaf) -> None:
        if leaf in self.names:
            return
        name = f"{leaf.kind}{len(self.leaves[leaf.kind])}"
        self.names[leaf] = name
        self.leaves[leaf.kind].append(leaf)
        split = f":{leaf.sharding}" if leaf.sharding is not None else ""
        self.listing.append(f"{name}:{leaf.shape}:{leaf.dtype}{split}")

    def _node(self, node: Node) -> None:
        self.names[node] = f"n{len(self.nodes)}"
        self.nodes.append(node)
        made = _made_by_default(node)
        self.listing.append(f"{node.op.name}({self._args(node.args)}){made}")

    def _args(self, args: Sequence[Any]) -> str:
        parts = []
        for arg in args:
            if isinstance(arg, Value):
                parts.append(self.name(arg))
            elif arg.__class__ is tuple:
                parts.append(f"({self._args(arg)})")
            else:
                parts.append(f"{type(arg).__name__}:{arg!r}")
        return ",".join(parts)


def _made_by_default(node: Node) -> str:
    """Return the dtype of floats that torch's default alone decides; nothing for float32.

    Ops make such floats of integers, numbers or nothing: `torch.arange(3) / 2`.
    """
    made = [out.dtype for out in node.outputs if out is not None and _is_float(out)]
    if not made or made[0] in _USUAL or made[0] in node.args:
        return ""
    given = (
        _is_float(v) and not (isinstance(v, Leaf) and v.kind == "float")
        for v in iter_values(node.args)
    )
    return "" if any(given) else f":{made[0]}"


_USUAL = (torch.float32, torch.complex64)


def _is_float(value: Value) -> bool:
    return value.dtype.is_floating_point or value.dtype.is_complex


def _sorted_roots(roots: list[Value], numbering: _Numbering) -> Iterable[Value]:
    """Yield the roots in canonical order, while the caller numbers those already yielded."""
    if len(roots) == 1:
        yield roots[0]
        return
    colours = _colour(roots)
    classes: dict[bytes, list[Value]] = {}
    for root in roots:
        classes.setdefault(colours[root], []).append(root)
    for colour in sorted(classes):
        members = classes[colour]
        while len(members) > 1:
            chosen = _closest(members, numbering)
            members.remove(chosen)
            yield chosen
        yield members[0]


def _closest(members: list[Value], numbering: _Numbering) -> Value:
    """Return the root whose listing is smallest, given what has been numbered already."""
    if len(members) > _MAX_TIES:
        return members[0]
    return min(members, key=lambda root: _reach(root, numbering))


def _reach(root: Value, numbering: _Numbering) -> list[str]:
    """List the numbered things that a depth-first walk from `root` meets first."""
    met: list[str] = []
    seen: set[Any] = set()
    stack: list[Any] = [root]
    while stack:
        value = stack.pop()
        thing = value if value.node is None else value.node
        if thing in seen:
            continue
        seen.add(thing)
        name = numbering.names.get(thing)
        if name is not None:
            met.append(name)
        elif value.node is not None:
            stack.extend(reversed(list(iter_values(value.node.args))))
        else:
            met.append("~")
    return met


def _colour(roots: list[Value]) -> dict[Value, bytes]:
    nodes, _ = walk(roots)
    from_above = _colour_from_above(roots, nodes)
    below: dict[Any, bytes] = {}
    for node in nodes:
        digest = hashlib.blake2b(node.digest, digest_size=16)
        for value in iter_values(node.args):
            if value.node is not None:
                digest.update(below[value.node])
                digest.update(value.index.to_bytes(2, "little"))
            else:
                digest.update(from_above.get(value, b""))
        below[node] = digest.digest()
    colours = {}
    for root in roots:
        own = below[root.node] if root.node is not None else b"leaf"
        mine = from_above.get(root if root.node is None else root.node, b"")
        colours[root] = own + root.index.to_bytes(2, "little") + mine
    return colours


def _colour_from_above(roots: list[Value], nodes: Sequence[Node]) -> dict[Any, bytes]:
    """Colour nodes and leaves by how they are used, consumers first."""
    uses: dict[Any, list[bytes]] = {}
    for root in roots:
        thing = root if root.node is None else root.node
        uses.setdefault(thing, []).append(b"root" + root.index.to_bytes(2, "little"))
    colours: dict[Any, bytes] = {}
    for node in reversed(nodes):
        colour = colours[node] = _digest(sorted(uses.get(node, ())))
        stem = node.digest + colour
        for position, value in enumerate(iter_values(node.args)):
            thing = value if value.node is None else value.node
            where = position.to_bytes(4, "little") + value.index.to_bytes(2, "little")
            uses.setdefault(thing, []).append(stem + where)
    for thing, found in uses.items():
        if thing not in colours:
            colours[thing] = _digest(sorted(found))
    return colours


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()


# ------------------------------------------------------------------------- the snapshot


def snapshot_of(
    graph: Canonical,
    names: Mapping[Value, Name] | None = None,
    origins: Mapping[Value, Origin] | None = None,
    modules: Mapping[str, bool] | None = None,
    saved: Container[Value] = (),
) -> Snapshot:
    """Return the snapshot of a graph.

    Names are the user's of leaves and roots; a buffer that the step overwrites is both, as a
    parameter is. `modules` names all parameters and buffers of modules, and says which are frozen; `saved` are the roots
    that autograd alone holds.
    """
    names, origins = names or {}, origins or {}
    leaves = (*graph.data, *graph.floats, *graph.ints, *graph.rng)
    numbers: dict[Any, int] = {leaf: number for number, leaf in enumerate(leaves)}
    vertices = [_leaf(leaf) for leaf in leaves]
    for node in graph.nodes:
        numbers[node] = len(vertices)
        vertices.append(_node(node, numbers))
    roots = tuple(_reference(root, numbers) for root in graph.roots)
    return Snapshot(
        graph.fingerprint,
        tuple(vertices),
        roots,
        {numbers[leaf]: names[leaf] for leaf in graph.data if leaf in names},
        {k: names[root] for k, root in enumerate(graph.roots) if root in names},
        {numbers[leaf]: origins[leaf] for leaf in graph.data if leaf in origins},
        frozenset(node.op.name for node in graph.nodes if node.op.is_random),
        modules or {},
        frozenset(k for k, root in enumerate(graph.roots) if root in saved),
    )


def _reference(value: Value, numbers: Mapping[Any, int]) -> tuple[int, int]:
    if value.node is None:
        return (numbers[value], 0)
    return (numbers[value.node], value.index)


def _leaf(leaf: Leaf) -> Vertex:
    split = () if leaf.sharding is None else (str(leaf.sharding),)
    return Vertex(leaf.kind, split, (type_text(leaf.shape, leaf.dtype),), ())


def _node(node: Node, numbers: Mapping[Any, int]) -> Vertex:
    origin = node.provenance
    return Vertex(
        node.op.name,
        tuple(arg_text(arg, lambda _: OPERAND) for arg in node.args),
        tuple(
            "none" if value is None else type_text(value.shape, value.dtype)
            for value in node.outputs
        ),
        tuple(_reference(value, numbers) for value in iter_values(node.args)),
        origin.site,
        origin.module,
        origin.backward is not None,
        next((site.cell for site in origin.stack if site.cell is not None), None),
    )


# ------------------------------------------------------- equal ops that are several nodes
# An op that equals one that is pending from before a cell of a notebook is recorded as another node,
# with a line of its own. So are all where torch's default dtype changes or a rule is given while ops
# are pending. Whether that happens must not decide which graph the step is, so a step of which it may
# have happened is looked through before its graph is used.


_make_twin: Callable[[Node, tuple[Any, ...]], Node]


def set_twin(make: Callable[[Node, tuple[Any, ...]], Node]) -> None:
    """Tell how to make the node of the same op on other operands."""
    global _make_twin
    _make_twin = make


def note_emptied() -> None:
    """Note that equal ops recorded from now on are other nodes."""
    if pending.buffers or pending.parked:
        pending.may_repeat = True


def is_alike(one: Node, other: Node) -> bool:
    """Return whether two nodes of one op on the same operands compute the same.

    They do not where a rule was registered anew or torch's default dtype has changed in between.
    """
    return one.spec is other.spec or (
        one.spec.given == other.spec.given and one.spec.outs == other.spec.outs
    )


def merge_equal(live: Sequence[Buffer]) -> None:
    """Give buffers whose values equal ops compute the value of one of them."""
    if not pending.may_repeat or pending.eager:
        return
    values = tuple([buffer.value for buffer in live])
    if values != pending.merged:
        new = _merged([value for value in values if value is not None])
        if new:
            for buffer, value in zip(live, values, strict=True):
                if value is not None:
                    buffer.value = new.get(value, value)
        pending.merged = tuple([buffer.value for buffer in live])


def _merged(roots: Iterable[Value]) -> dict[Value, Value]:
    """Return what stands for each value that an equal op, or one of other operands, computes."""
    first: dict[Any, Node] = {}
    new: dict[Value, Value] = {}

    def renewed(value: Value) -> Value:
        return new.get(value, value)

    for node in walk(roots)[0]:
        args = node.args
        if new and any(operand in new for operand in iter_values(args)):
            args = map_values(args, renewed)
        key = (node.op, args, node.spec.given, node.spec.outs)
        kept = first.get(key)
        if kept is None:
            kept = node if args is node.args else _make_twin(node, args)
            first[key] = kept
        if kept is not node:
            pairs = zip(node.outputs, kept.outputs, strict=True)
            new |= {
                old: out for old, out in pairs if old is not None and out is not None
            }
    return new


def rebuilt(
    nodes: Iterable[Node],
    replaced: dict[Value, Value],
    make_twin: Callable[[Node, tuple[Any, ...]], Node] | None = None,
) -> dict[Value, Value]:
    """Return what stands for each value once some values have become inputs.

    `make_twin` makes the node of the same op on other operands; None records it.
    """
    new = dict(replaced)
    make_twin = make_twin or _make_twin

    def renewed(value: Value) -> Value:
        return new.get(value, value)

    for node in nodes:
        if any(operand in new for operand in iter_values(node.args)):
            twin = make_twin(node, map_values(node.args, renewed))
            pairs = zip(node.outputs, twin.outputs, strict=True)
            new |= {
                old: out
                for old, out in pairs
                if old is not None and out is not None and old not in replaced
            }
    return new
