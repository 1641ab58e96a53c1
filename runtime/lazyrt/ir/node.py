"""Values and nodes of the IR: interned, immutable, shared by all steps.

A `Node` is one recorded torch operation; a `Value` is one of its results. Equal operations
on equal operands are one node, however often and in whichever step they are recorded, so a
node also carries what is costly to find out: result shapes, rule, content digest. What differs
from call site to call site, its provenance, is a column of the call site: `Place.origins`.

Inputs of a graph are leaf values: the k-th buffer, float, integer or RNG state that a step
used first. They are interned too, which makes the whole graph of a step a value that is
compared by identity.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lazyrt.ir.sharding import Sharding
    from lazyrt.observe.events import SourceLocation

LeafKind = Literal["data", "float", "int", "rng"]
Args = tuple[Any, ...]
Table = dict[Any, Any]


class BackwardOf(NamedTuple):
    """The autograd node in which an op ran, joined to the forward op that created it."""

    autograd_node: str
    sequence: int
    forward: Provenance | None = None


class Provenance(NamedTuple):
    """Where an op came from.

    Attributes:
        site: The innermost line of the user's own code, None when only library code ran.
        module: Qualified name of the nn.Module whose forward recorded it, such as
            `encoder.layer.0.attention`; for a backward op that of its forward op.
        backward: Set for an op that autograd's backward recorded.
        stack: The user's frames from the outermost to the innermost.
        scope: Labels of the open `scope()` blocks, joined by `/`; for a backward op recorded
            outside of any, those of its forward op.
        step: Name of the innermost open `step()`, empty outside of steps and in a nameless one.
        library: The line of an installed package that recorded it for the user's line, such as
            one of a model's implementation; None where that line recorded it itself.
    """

    site: SourceLocation | None
    module: str
    backward: BackwardOf | None = None
    stack: tuple[SourceLocation, ...] = ()
    scope: str = ""
    step: str = ""
    library: SourceLocation | None = None

    @property
    def path(self) -> str:
        """Scopes and module, joined by `/`: how HLO metadata and listings name the place."""
        return "/".join(part for part in (self.scope, self.module) if part)


class Place:
    """A call site at which steps begin, with the provenance of each node recorded there, by its id."""

    __slots__ = ("origins",)

    def __init__(self) -> None:
        self.origins: dict[int, Provenance] = {}


class Tables:
    """What was recorded, by what it was recorded of: values and constants.

    Attributes:
        known: All of it.
        cache: What the pending step's call site has recorded, with a provenance of its own.
        scopes: The globals of kernels that look it up there.
    """

    __slots__ = ("_by_place", "cache", "known", "scopes")

    def __init__(self) -> None:
        self.cache: Table = {}
        self.known: Table = {}
        self.scopes: list[dict[str, Any]] = []
        self._by_place: dict[Place, Table] = {}
        _tables.append(self)

    def enter(self, place: Place) -> None:
        """Let `cache` be a call site's."""
        self.cache = self._by_place.setdefault(place, {})
        for scope in self.scopes:
            scope["look_up"] = self.cache.get

    def forget_places(self) -> None:
        """Forget which call site has recorded what; the one that goes on begins anew."""
        self._by_place.clear()
        self.cache.clear()

    def forget(self) -> None:
        """Forget everything."""
        for table in (self.known, self.cache, *self._by_place.values()):
            table.clear()


class Present:
    """The call site that ops are recorded for, and its lines."""

    place = Place()
    origins = place.origins


_tables: list[Tables] = []
present = Present()
# Provenances of what is pending from before the notebook's cell, by id.
carried: dict[int, Provenance] = {}


def enter(place: Place) -> None:
    """Record for a call site from now on: nodes get, and show, its lines."""
    if place is not present.place:
        present.place = Place()  # Ctrl-C leaves no tables half entered
        for tables in _tables:
            tables.enter(place)
        present.place, present.origins = place, place.origins


def leave_places() -> None:
    """Forget what each call site has recorded; ops get new lines from now on."""
    present.place = Place()
    present.origins = present.place.origins
    for tables in _tables:
        tables.forget_places()


def lines_now() -> Mapping[int, Provenance]:
    """Return the provenances that nodes have now, by their ids; later ones may come in."""
    return {**carried, **present.origins} if carried else present.origins


class Op(Tables):
    """One functional ATen overload, with the tables of its nodes.

    Attributes:
        is_view: Whether it shows its first operand's storage, and computes nothing.
    """

    __slots__ = ("func", "is_random", "is_view", "name", "schema", "token")

    def __init__(self, func: torch._ops.OpOverload, name: str | None = None) -> None:
        super().__init__()
        self.func = func
        self.schema = func._schema
        self.name = name or str(func)
        first = func._schema.arguments[0] if func._schema.arguments else None
        alias = None if first is None else first.alias_info
        self.is_view = alias is not None and not alias.is_write
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.token = self.name.encode()

    def __repr__(self) -> str:
        return self.name


class Value:
    """One result of a node, or a leaf.

    Attributes:
        shape: Sizes.
        dtype: torch dtype.
        strides: Strides in elements, None when contiguous (`strides_of`).
        node: The node that computes it; None for a leaf.
        index: Position among the node's results.
    """

    __slots__ = ("dtype", "index", "node", "shape", "strides")

    def __init__(
        self,
        node: Node | None,
        index: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        strides: tuple[int, ...] | None,
    ) -> None:
        self.node = node
        self.index = index
        self.shape = shape
        self.dtype = dtype
        self.strides = strides

    def __repr__(self) -> str:
        where = f"%{self.node.id}" if self.node is not None else "%?"
        return f"{where}:{type_text(self.shape, self.dtype)}"


class Leaf(Value):
    """An input of the graph: the `position`-th of its kind that the step used.

    Attributes:
        sharding: How its data is split over devices; None for data that each device has whole.
    """

    __slots__ = ("kind", "position", "sharding")

    sharding: Sharding | None

    def __init__(
        self, kind: LeafKind, position: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        super().__init__(None, 0, shape, dtype, None)
        self.kind = kind
        self.position = position
        self.sharding = None

    def __repr__(self) -> str:
        return f"%{self.kind}{self.position}:{type_text(self.shape, self.dtype)}"


def is_number(value: Value) -> TypeGuard[Leaf]:
    """Return whether a value is an input that is a number of Python's, whose dtype is weak."""
    return isinstance(value, Leaf) and value.kind in {"float", "int"}


class Node:
    """One recorded torch operation.

    Attributes:
        id: Number in order of first recording, over the life of the process.
        op: What is computed.
        args: One entry for each schema argument: a `Value`, a constant, None, or a tuple of
            these; random ops have a leaf of kind `rng`, their (seed, offset), in front.
        outputs: The results; None where the op returns an undefined tensor.
        origin: Who recorded it first; of a graph's node, who recorded it for the graph.
        digest: 16 bytes that depend on the op, its constants and its operands' digests, and
            not on the numbering of leaves.
        spec: What lowering knows of the op on operands of these types; the recorder fills it.
    """

    __slots__ = (
        "__weakref__", "args", "digest", "id", "op", "origin", "outputs", "spec",
    )  # fmt: skip

    def __init__(self, number: int, op: Op, args: Args, origin: Provenance) -> None:
        self.id = number
        self.op = op
        self.args = args
        self.origin = origin
        self.outputs: tuple[Value | None, ...] = ()
        self.digest = node_digest(op, args)
        self.spec: Any = None

    @property
    def provenance(self) -> Provenance:
        """Who recorded it."""
        return self.origin

    @property
    def operands(self) -> tuple[Value, ...]:
        """All values among the arguments, in order, repeats included."""
        return tuple(iter_values(self.args))

    def __eq__(self, other: object) -> bool:
        """Return whether it computes the same values: a graph's node is equal to the recorded one."""
        return isinstance(other, Node) and self.outputs is other.outputs

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"%{self.id} = {self.op.name}"


class RecordedNode(Node):
    """A node in the tables, which all call sites share: it shows the lines of the pending step's."""

    __slots__ = ()

    @property
    def provenance(self) -> Provenance:
        """Who recorded it at the pending step's call site; else, who recorded it first."""
        number = self.id
        return carried.get(number) or present.origins.get(number) or self.origin


def lines_of(nodes: Iterable[Node]) -> dict[int, Provenance]:
    """Return the provenances of nodes by their ids."""
    return {node.id: node.provenance for node in nodes}


def listed(
    nodes: Iterable[Node], lines: Mapping[int, Provenance] | None
) -> tuple[Node, ...]:
    """Return nodes for a graph that may be kept, with these lines, or those that they have now."""
    lines = lines_now() if lines is None else lines
    found = []
    for node in nodes:
        made: Node = node
        if node.__class__ is RecordedNode:
            made = _make(Node)
            made.id, made.op, made.args = node.id, node.op, node.args
            made.outputs, made.digest, made.spec = node.outputs, node.digest, node.spec
            made.origin = lines.get(node.id, node.origin)
        found.append(made)
    return tuple(found)


_make: Any = object.__new__


def iter_values(args: Any) -> Iterator[Value]:
    """Yield the values in an argument structure, depth first."""
    for arg in args:
        if isinstance(arg, Value):
            yield arg
        elif arg.__class__ is tuple:
            yield from iter_values(arg)


def map_values(args: Any, function: Callable[[Value], Any]) -> Any:
    """Return the argument structure with `function` applied to each value."""
    if isinstance(args, Value):
        return function(args)
    if args.__class__ is tuple:
        return tuple([map_values(arg, function) for arg in args])
    return args


def entry_lists(func: torch._ops.OpOverload, args: Sequence[Any]) -> tuple[int, ...]:
    """Return the positions of the lists of an op that does the same to each entry; else ().

    A tensor of several elements beside the lists has one for each entry: that op does not.
    """
    if not str(func).startswith(("aten._foreach_", "aten._fused_")):
        return ()
    given = list(zip(func._schema.arguments, args, strict=False))
    kinds = [str(each.type) if arg else "" for each, arg in given]
    factors = [arg for _, arg in given if isinstance(arg, Value)]
    lists = [k for k, kind in enumerate(kinds) if kind.startswith("List[")]
    is_by_entry = (
        "List[Tensor]" in kinds
        and len({len(args[k]) for k in lists}) == 1
        and all(math.prod(factor.shape) <= 1 for factor in factors)
    )
    return tuple(lists) if is_by_entry else ()


def visit(
    root: Node, done: dict[Node, None], needs: Callable[[Node], Sequence[Node]]
) -> None:
    """Add a node to `done`, after all that it needs; without recursion.

    `needs` returns the nodes that one needs first; `done` is in post order.
    """
    stack = [root]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        waiting = needs(node)
        if waiting:
            stack.extend(reversed(waiting))
        else:
            done[node] = None
            stack.pop()


def walk(roots: Iterable[Value]) -> tuple[tuple[Node, ...], tuple[Leaf, ...]]:
    """Return nodes in post order and leaves by first use."""
    done: dict[Node, None] = {}
    leaves: dict[Leaf, None] = {}

    def needs(node: Node) -> list[Node]:
        waiting = []
        for value in iter_values(node.args):
            if value.node is None:
                leaves[value] = None  # type: ignore[index]
            elif value.node not in done:
                waiting.append(value.node)
        return waiting

    for root in roots:
        if root.node is None:
            leaves[root] = None  # type: ignore[index]
        else:
            visit(root.node, done, needs)
    return tuple(done), tuple(leaves)


def value_digest(value: Value) -> bytes:
    """Return a digest of a value that ignores how leaves are numbered."""
    if value.node is not None:
        return value.node.digest + value.index.to_bytes(2, "little")
    assert isinstance(value, Leaf)
    return f"{value.kind}{value.shape}{value.dtype}{value.sharding or ''}".encode()


def node_digest(op: Op, args: Any) -> bytes:
    """Return the content digest of a node to be."""
    digest = hashlib.blake2b(op.token, digest_size=16)
    _feed(digest, args)
    return digest.digest()


def _feed(digest: Any, args: Any) -> None:
    for arg in args:
        if isinstance(arg, Value):
            digest.update(b"v")
            digest.update(value_digest(arg))
        elif arg.__class__ is tuple:
            digest.update(b"(")
            _feed(digest, arg)
            digest.update(b")")
        else:
            digest.update(f"{type(arg).__name__}:{arg!r};".encode())


_SHORT = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "bool", torch.complex64: "c64", torch.complex128: "c128",
    torch.uint16: "u16", torch.uint32: "u32", torch.uint64: "u64",
    torch.float8_e4m3fn: "f8e4m3fn", torch.float8_e4m3fnuz: "f8e4m3fnuz",
    torch.float8_e5m2: "f8e5m2", torch.float8_e5m2fnuz: "f8e5m2fnuz",
}  # fmt: skip


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def strides_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return a tensor's strides as a `Value` has them: None when contiguous.

    A tensor without elements is contiguous whatever its strides, so it always has them.
    """
    if tensor.is_contiguous() and 0 not in tensor.shape:
        return None
    return tuple(tensor.stride())


def arg_text(arg: Any, reference: Callable[[Value], str]) -> str:
    """Return an entry of a node's arguments as listings show it, with `reference` for values."""
    if isinstance(arg, Value):
        return reference(arg)
    if arg.__class__ is tuple:
        if len(arg) == 2 and arg[0].__class__ is type:  # noqa: PLR2004 - a tagged number
            return str(arg[1])
        return f"[{', '.join(arg_text(part, reference) for part in arg)}]"
    return str(arg)


def nbytes_of(value: Value) -> int:
    """Return the size of a value's data, in bytes."""
    return math.prod(value.shape) * value.dtype.itemsize


def type_text(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """Return a type in short: `f32[2,3]`."""
    return f"{_SHORT.get(dtype, str(dtype))}[{','.join(map(str, shape))}]"
