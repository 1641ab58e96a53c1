"""Causes that change types and constants, and leave the operations as they are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause, Taken
from lazyrt.execution.why.changes import (
    SIZES_OF_INPUTS,
    Sources,
    dtypes_of,
    is_parameter,
    shapes_of,
)
from lazyrt.execution.why.edits import at, count, is_view, leaf_name, leaf_site
from lazyrt.execution.why.source import (
    argument_name,
    arguments_of,
    name_in_schema,
    takes_tensor,
)
from lazyrt.ir.snapshot import OPERAND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lazyrt.execution.why.causes import Kind
    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Vertex

_FLOAT = re.compile(r"-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|inf|nan)")
_SHOWN_CHARS = 60
# Names of arguments that say nothing.
_PLAIN = frozenset(("self", "other", "value", "scalar", "scalars", "input"))
_TAKES_PART = (
    "aten.slice",
    "aten.narrow",
    "aten.index_select",
    "aten.select",
    "lazyrt.slice_at",
)
_ONLY_NUMBERS = "keep to one value or to a few: each compiles once, and the op takes no tensor in its place"
_MODEL_DTYPE = "convert the model once, before the loop (`model.to(dtype)`)"
_BOTH_DTYPES = "convert the model once, before the loop (`model.to(dtype)`), and the data when it is loaded"
_FIXES: dict[str, str] = {
    "input_shape": "give every batch one shape: drop the last incomplete one, pad it, or "
    "sort sizes into a few buckets",
    "input_dtype": "convert the data once, when it is loaded",
    "parameter_shape": "a module was rebuilt with other sizes: build it once",
    "shape": "keep the size fixed, or pad to a fixed one",
    "dtype": "keep one dtype, and autocast either always or never",
    "baked_constant": "pass it as a tensor (`torch.tensor(value, device=...)`) if it goes on "
    "varying",
}


def types_of_inputs(edits: Edits) -> list[Cause]:
    """Return which inputs that both sides call alike have other types.

    Two programs of one shape have operations of other sizes wherever one looks.
    """
    return _types(edits, lambda vertex: _is_called_alike(edits, vertex))


def types_and_constants(edits: Edits) -> list[Cause]:
    """Return where types and constants changed first; what follows is counted with it."""
    return _types(edits, lambda _: True)


def _is_called_alike(edits: Edits, vertex: int) -> bool:
    name = edits.b.leaf_names.get(vertex)
    before = edits.a.leaf_names.get(edits.match.to_before[vertex])
    return name is not None and before is not None and name.text == before.text


def _types(edits: Edits, is_wanted: Callable[[int], bool]) -> list[Cause]:
    sources = Sources(edits)
    groups: dict[tuple[Kind, object], list[int]] = {}
    exchanged = sources.exchanged()
    converted = {
        _converted(edits, vertex)
        for vertex in sources.origins
        if sources.kind(vertex) == "input_dtype"
    }
    beside: list[int] = []
    resized: list[int] = []
    _take_what_follows_from_others(edits, sources)
    for vertex in filter(is_wanted, sources.origins):
        if vertex not in edits.changed:
            continue
        kind = sources.kind(vertex)
        # What reads an added conversion follows from the input all the same.
        if kind == "dtype" and _converted(edits, vertex) in converted:
            beside.append(vertex)
        elif vertex in exchanged:
            resized.append(vertex)
        elif kind is not None:
            groups.setdefault((kind, _group(sources, vertex, kind)), []).append(vertex)
    causes = []
    for (kind, _), vertices in groups.items():
        mine = {*vertices, *(beside if kind == "input_dtype" else ())}
        if kind in SIZES_OF_INPUTS:
            mine |= {*resized}
        follow = [k for k, source in sources.of.items() if source in mine]
        causes.append(_cause(edits, kind, vertices, follow))
        if kind == "input_dtype":
            causes += _shape_too(edits, vertices)
    return causes


def _take_what_follows_from_others(edits: Edits, sources: Sources) -> None:
    """Take out the sizes of what reads another module's result now: that has its own cause."""
    if edits.before.key.mode != edits.now.key.mode:
        return  # what ran alone is no module's doing
    told = {
        vertex
        for vertex in sources.origins
        if sources.kind(vertex) == "shape" and _reads_what_is_told(edits, vertex)
    }
    edits.take(changed=[k for k, source in sources.of.items() if source in told])


def _reads_what_is_told(edits: Edits, vertex: int) -> bool:
    """Return whether an operand came and the one before went, each for a cause of its own."""
    a, b, match = edits.a, edits.b, edits.match
    now, before = b.vertices[vertex], a.vertices[match.to_before[vertex]]
    return now.attrs == before.attrs and any(
        match.to_before[new] < 0
        and match.to_now[old] < 0
        and new not in edits.added
        and old not in edits.removed
        and b.vertices[new].scope
        and a.vertices[old].scope
        and b.vertices[new].types != a.vertices[old].types
        for (new, _), (old, _) in zip(now.operands, before.operands, strict=False)
    )


def _converted(edits: Edits, vertex: int) -> object:
    """Return which dtypes became which."""
    before = edits.a.vertices[edits.match.to_before[vertex]]
    return (dtypes_of(before), dtypes_of(edits.b.vertices[vertex]))


def _shape_too(edits: Edits, leaves: list[int]) -> list[Cause]:
    """Return a cause of its own where an input of another dtype has another shape as well."""
    for leaf in leaves:
        now = edits.b.vertices[leaf]
        before = edits.a.vertices[edits.match.to_before[leaf]]
        if shapes_of(now) == shapes_of(before):
            continue
        name = edits.b.leaf_names.get(leaf)
        old, new = (list(shapes_of(vertex)[0]) for vertex in (before, now))
        return [
            Cause(
                kind="input_shape",
                text=f"input {f'`{name.text}`' if name else f'read{at(leaf_site(edits.b, leaf))}'} has another shape too: "
                f"{old} is now {new}",
                fix=_FIXES["input_shape"],
                variable=name.text if name else "",
                now=leaf_site(edits.b, leaf),
                before=leaf_site(edits.a, edits.match.to_before[leaf]),
            )
        ]
    return []


def _group(sources: Sources, vertex: int, kind: Kind) -> object:
    """Return what origins of one cause share."""
    edits = sources.edits
    now, before = (
        edits.b.vertices[vertex],
        edits.a.vertices[edits.match.to_before[vertex]],
    )
    if kind in {"input_shape", "input_dtype", "parameter_shape"}:
        return None
    if kind == "dtype":
        return (dtypes_of(before), dtypes_of(now))
    # The gradient of an op has the number that the op has, or one that follows from it.
    forward = sources.forward_of(vertex)
    differ = before.attrs != now.attrs
    if differ and forward is not None and sources.kind(forward) == kind:
        return _group(sources, forward, kind)
    if kind == "baked_constant":
        return (*_first_difference(before, now), now.op.removesuffix(".default"))
    return (before.attrs, now.attrs, now.op, now.site and now.site.line)


def _cause(
    edits: Edits, kind: Kind, vertices: list[int], follow: Iterable[int]
) -> Cause:
    first = vertices[0]
    now = edits.b.vertices[first]
    before = edits.a.vertices[edits.match.to_before[first]]
    names = [edits.b.leaf_names[k].text for k in vertices if k in edits.b.leaf_names]
    casts = (
        _casts(edits, now, before)
        if kind in {"dtype", "input_dtype"}
        else (set(), set())
    )
    are_parameters = now.is_leaf and all(is_parameter(edits, k) for k in vertices)
    taken = edits.take(casts[0], casts[1], follow)
    if any(casts):
        views = edits.take(*_views_beside(edits))
        taken = Taken(*map(sum, zip(taken, views, strict=True)))
    more = taken.changed - len(vertices)
    follows = f": {count(more, 'operation')} changed with it" if more > 0 else ""
    if kind in {"input_shape", "input_dtype", "parameter_shape"}:
        what = "parameter" if are_parameters else "input"
        name = f"`{names[0]}`" if names else f"(read{at(leaf_site(edits.b, first))})"
        called = f"{what} {name} {before.types[0]}"
        others = (
            f" (and {count(len(vertices) - 1, 'more ' + what)})"
            if len(vertices) > 1
            else ""
        )
        text = f"{called} is now {now.types[0]}{others}{follows}"
    elif kind == "shape" and (part := _parts(edits, follow)):
        cut, whole = edits.b.vertices[part[0][-1]], part[0][0]
        called = leaf_name(edits.b, whole)
        names = [called] if called else []
        read = f"`{called}`" if called else "a tensor"
        cuts = edits.take(added={k for chain in part for k in chain[1:]})
        taken = Taken(*map(sum, zip(taken, cuts, strict=True)))
        text = (
            f"{cut.op}{at(cut.site)} gives {cut.types[0]} where {read} "
            f"{edits.b.vertices[whole].types[0]} was read as a whole{follows}"
        )
        now = cut
    elif kind == "shape" and (instead := _part_of_another(edits, first)):
        cut, parts, old_leaf = instead
        names = [leaf_name(edits.b, parts[0])]
        leaves = edits.take(added=parts, removed=[old_leaf])
        taken = Taken(*map(sum, zip(taken, leaves, strict=True)))
        text = (
            f"{cut.op}{at(cut.site)} gives {cut.types[0]} of `{names[0]}` where "
            f"`{leaf_name(edits.a, old_leaf)}` {edits.a.vertices[old_leaf].types[0]} was "
            f"read{follows}"
        )
        now = cut
    elif kind == "shape":
        old, new = _differing(before, now)
        text = (
            f"{now.op}{at(now.site)} gives {new} where it gave {old}"
            f"{_argument(before, now)}{follows}"
        )
        if before.attrs != now.attrs and (name := _number_name(before, now)):
            names = [name]
    elif kind == "dtype":
        text = (
            f"{now.op}{at(now.site)} computes in {', '.join(dtypes_of(now))} where it computed "
            f"in {', '.join(dtypes_of(before))}{_cast_text(*map(len, casts))}{follows}"
        )
    else:
        names = [name] if (name := _number_name(before, now)) else []
        times = sum(not edits.b.vertices[k].backward for k in vertices)
        text = _constant(before, now, times or len(vertices), name)
    return Cause(
        kind=kind,
        text=text,
        fix=_fix(
            kind,
            before,
            now,
            parameters=sum(is_parameter(edits, k) for k in vertices),
            of=len(vertices),
        ),
        variable=names[0] if names else "",
        now=now.site if not now.is_leaf else leaf_site(edits.b, first),
        before=before.site
        if not before.is_leaf
        else leaf_site(edits.a, edits.match.to_before[first]),
        taken=taken,
        sizes=_sizes(edits, vertices) if kind in {"input_shape", "shape"} else (),
    )


def _parts(edits: Edits, vertices: Iterable[int]) -> list[list[int]]:
    """Return what is read in part and was read as a whole, each with the ops that take the part."""
    found = []
    for k in vertices:
        theirs = edits.a.vertices[edits.match.to_before[k]].operands
        for slot, (operand, _) in enumerate(edits.b.vertices[k].operands):
            chain = [operand]
            while chain[-1] in edits.added and edits.b.vertices[chain[-1]].op.startswith(_TAKES_PART):  # fmt: skip
                chain.append(edits.b.vertices[chain[-1]].operands[0][0])
            whole = edits.match.to_before[chain[-1]]
            if len(chain) > 1 and slot < len(theirs) and theirs[slot][0] == whole:
                found.append(chain[::-1])
    return found


def _part_of_another(edits: Edits, vertex: int) -> tuple[Vertex, list[int], int] | None:
    """Return the op that takes a part of a new input where another input was read as a whole.

    Returns:
        The op, the input with what takes its part, and the input before; None if it is not so.
    """
    vertices = edits.b.vertices
    theirs = edits.a.vertices[edits.match.to_before[vertex]].operands
    pairs = zip(vertices[vertex].operands, theirs, strict=False)
    for (operand, _), (old, _) in pairs:
        chain = [operand]
        while chain[-1] in edits.added and vertices[chain[-1]].op.startswith(_TAKES_PART):  # fmt: skip
            chain.append(vertices[chain[-1]].operands[0][0])
        if (
            len(chain) > 1
            and chain[-1] in edits.added & {*edits.b.leaf_names}
            and old in edits.removed & {*edits.a.leaf_names}
        ):
            return vertices[chain[0]], chain[::-1], old
    return None


def _sizes(edits: Edits, leaves: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return what became of the size of each input that changed along one axis alone."""
    found = []
    for leaf in leaves:
        now = edits.b.vertices[leaf]
        before = edits.a.vertices[edits.match.to_before[leaf]]
        old, new = (shapes_of(vertex)[0] for vertex in (before, now))
        changed = [pair for pair in zip(old, new, strict=False) if pair[0] != pair[1]]
        if len(old) == len(new) and len(changed) == 1:
            found += changed
    return tuple(dict.fromkeys(found))


def _casts(edits: Edits, now: Vertex, before: Vertex) -> tuple[set[int], set[int]]:
    """Return the conversions on either side that go with other dtypes, as autocast's do."""
    dtypes = {*dtypes_of(now), *dtypes_of(before)}
    return (
        {k for k in edits.added if _is_cast(edits.b.vertices[k], dtypes)},
        {k for k in edits.removed if _is_cast(edits.a.vertices[k], dtypes)},
    )


def _views_beside(edits: Edits) -> tuple[set[int], set[int]]:
    """Return the views that are left on either side: what is converted is viewed anew."""
    return (
        {k for k in edits.added if is_view(edits.b.vertices[k])},
        {k for k in edits.removed if is_view(edits.a.vertices[k])},
    )


def _is_cast(vertex: Vertex, dtypes: set[str]) -> bool:
    return vertex.op.startswith("aten._to_copy") and dtypes.issuperset(
        dtypes_of(vertex)
    )


def _cast_text(more: int, fewer: int) -> str:
    parts = [f"{n} {what}" for n, what in ((more, "more"), (fewer, "fewer")) if n]
    noun = "conversion" if more + fewer == 1 else "conversions"
    return f" ({' and '.join(parts)} {noun}, as under autocast)" if parts else ""


def _differing(before: Vertex, now: Vertex) -> tuple[str, str]:
    """Return the first types that differ, or how many there are on either side."""
    if len(before.types) != len(now.types):
        return tuple(count(len(v.types), "tensor") for v in (before, now))  # type: ignore[return-value]
    pairs = zip(before.types, now.types, strict=True)
    return next(pair for pair in pairs if pair[0] != pair[1])


def _fix(kind: Kind, before: Vertex, now: Vertex, *, parameters: int, of: int) -> str:
    """Return what to do; of the inputs that changed, so many are parameters."""
    if kind == "input_dtype" and parameters and now.is_leaf:
        return _MODEL_DTYPE if parameters == of else _BOTH_DTYPES
    if kind == "baked_constant" and not takes_tensor(now.op, _place(before, now)):
        return _ONLY_NUMBERS
    return _FIXES[kind]


def _number_name(before: Vertex, now: Vertex) -> str:
    """Return what the source calls the number that differs; empty where it is unknown."""
    return argument_name(
        now.site, now.op, _place(before, now), _item(*_first_difference(before, now))
    )


def _item(old: str, new: str) -> int | None:
    """Return which item of two lists differs first; None for what is no list."""
    if not (old.startswith("[") and new.startswith("[")):
        return None
    pairs = enumerate(zip(old[1:-1].split(", "), new[1:-1].split(", "), strict=False))
    return next((k for k, (one, other) in pairs if one != other), None)


def _named_in_schema(before: Vertex, now: Vertex) -> str:
    """Return what torch calls the first argument that differs; empty where that says nothing."""
    name = name_in_schema(now.op, _place(before, now))
    return "" if name in _PLAIN else name


def _place(before: Vertex, now: Vertex) -> int:
    """Return the position in the op's schema of the first argument that differs."""
    pairs = enumerate(zip(before.attrs, now.attrs, strict=False))
    found = next((k for k, (old, new) in pairs if old != new), 0)
    # A random op's state stands in front of what it is given.
    return found - max(len(now.attrs) - len(arguments_of(now.op) or now.attrs), 0)


def _constant(before: Vertex, now: Vertex, times: int, name: str) -> str:
    old, new = _short_numbers(*_first_difference(before, now))
    repeated = f" ({times} times)" if times > 1 else ""
    called = f"the Python number `{name}`" if name else "a Python number"
    argument = "" if name else _named_in_schema(before, now)
    as_what = f" as its `{argument}`" if argument else ""
    return (
        f"{called} is part of the graph: {now.op}{at(now.site)} has {new}{as_what} where it had "
        f"{old}{repeated}"
    )


def _argument(before: Vertex, now: Vertex) -> str:
    if before.attrs == now.attrs:
        return ""
    old, new = _first_difference(before, now)
    name = _number_name(before, now)
    if OPERAND in old + new:  # a list of tensors of another length
        return ""
    name = name or _named_in_schema(before, now)
    called = f"`{name}`: " if name else ""
    return f" ({called}{_clipped(old)} became {_clipped(new)})"


def _clipped(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def _short_numbers(old: str, new: str) -> tuple[str, str]:
    """Return two numbers without digits that only say how floats are stored."""
    if not (_FLOAT.fullmatch(old) and _FLOAT.fullmatch(new)):
        return old, new
    shown = f"{float(old):.6g}", f"{float(new):.6g}"
    return shown if shown[0] != shown[1] else (old, new)


def _first_difference(before: Vertex, now: Vertex) -> tuple[str, str]:
    for old, new in zip(before.attrs, now.attrs, strict=False):
        if old != new:
            return old, new
    return ", ".join(before.attrs), ", ".join(now.attrs)
