"""Where changes of types and constants began, and which of the others follow."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING

from lazyrt.ir.snapshot import OPERAND

if TYPE_CHECKING:
    from lazyrt.execution.why.causes import Kind
    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Vertex

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_FLOAT = re.compile(r"-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|inf|nan)")
_CHOICES = re.compile(r"\[(?:(?:True|False)(?:, )?)+\]")
SIZES_OF_INPUTS = frozenset(("input_shape", "parameter_shape"))
_PASS = re.compile(r"_(?:backward_data|backward|forward)|\.default$")
_ROOTS = (0.5, -0.5, 0.25, -0.25)
_TYPE = re.compile(r"(\w+)\[([\d,]*)\]")


class Sources:
    """For each changed vertex, the vertex where the change began."""

    def __init__(self, edits: Edits) -> None:
        self.edits = edits
        self.of: dict[int, int] = {}
        # Where what reads a vertex has its change from: not the constant that it has itself.
        self._passes: dict[int, int] = {}
        self._sizes: set[tuple[str, str]] = set()
        self._ratios: set[float] = {1.0}
        self._roots: set[float] = set()
        for vertex in sorted(edits.changed):
            source = self.of[vertex] = self._source(vertex)
            self._passes[vertex] = self._upstream(vertex, source)
            self._learn(vertex)

    @property
    def origins(self) -> list[int]:
        """Changed vertices that follow from no other."""
        return [vertex for vertex, source in self.of.items() if vertex == source]

    def kind(self, vertex: int) -> Kind | None:
        """Return the sort of change that began here; None for one of the program."""
        now, before = self._pair(vertex)
        if now.is_leaf:
            if dtypes_of(now) != dtypes_of(before):
                return "input_dtype"
            return (
                "parameter_shape" if is_parameter(self.edits, vertex) else "input_shape"
            )
        if now.op != before.op or len(now.attrs) != len(before.attrs):
            return None
        if (
            _is_flag(now, before)
            or _reads_other(now, before)
            or _is_elsewhere(now, before)
        ):
            return None
        other, given = _differences(now, before), self.forward_of(vertex)
        if other and given is not None and other == _differences(*self._pair(given)):
            return self.kind(given)
        if self._passes[vertex] != vertex:
            return "baked_constant"
        if shapes_of(now) != shapes_of(before):
            return "shape"
        return "dtype" if now.types != before.types else "baked_constant"

    def forward_of(self, vertex: int) -> int | None:
        """Return the changed vertex whose gradient an op of backward computes."""
        now = self.edits.b.vertices[vertex]
        if not now.backward:
            return None
        for k in self.edits.changed:
            other = self.edits.b.vertices[k]
            named = _bare(other.op) == _bare(now.op)
            if named and other.scope == now.scope and not other.backward:
                return k
        return None

    def exchanged(self) -> set[int]:
        """Return origins that are the others' resized: two views of one line, taken crosswise.

        Where every size of a line has changed, nothing tells which of its views was which.
        """
        kinds = {vertex: self.kind(vertex) for vertex in self.origins}
        if not SIZES_OF_INPUTS & set(kinds.values()):
            return set()
        groups: dict[object, list[int]] = {}
        for vertex, kind in kinds.items():
            if kind == "shape":
                now = self.edits.b.vertices[vertex]
                groups.setdefault((now.op, now.site and now.site.line), []).append(vertex)  # fmt: skip
        return {
            k for group in groups.values() if self._is_permuted(group) for k in group
        }

    def _is_permuted(self, group: list[int]) -> bool:
        """Return whether each vertex has the sizes of another's partner, or what became of them."""
        old = [self._pair(vertex)[1] for vertex in group]
        for vertex in group:
            now = self._pair(vertex)[0]
            place = next((n for n, o in enumerate(old) if self._is_grown(now, o)), -1)
            if place < 0:
                return False
            del old[place]
        return True

    def _is_grown(self, now: Vertex, before: Vertex) -> bool:
        """Return whether the same op gives the same sizes, but for those that inputs changed."""
        texts = [" ".join((*v.attrs, *v.types)) for v in (now, before)]
        ours, theirs = map(_NUMBER.findall, texts)
        return (
            len({_NUMBER.sub("", text) for text in texts}) == 1
            and len(ours) == len(theirs)
            and all(
                x == y or (x, y) in self._sizes
                for x, y in zip(theirs, ours, strict=True)
            )
        )

    def _pair(self, vertex: int) -> tuple[Vertex, Vertex]:
        partner = self.edits.match.to_before[vertex]
        return self.edits.b.vertices[vertex], self.edits.a.vertices[partner]

    def _source(self, vertex: int) -> int:
        now, before = self._pair(vertex)
        if now.is_leaf:
            return vertex
        changed = [self._passes[k] for k, _ in now.operands if k in self.of]
        follows = self._follows(now, before)
        if changed and follows:
            return changed[0]
        # 1/N of a mean's gradient reads nothing that changed, and follows all the same; so does
        # what reads only what another cause has added.
        if (
            follows
            and not changed
            and self.of
            and (now.attrs != before.attrs or self._is_resized(now, before))
        ):
            return next(iter(self.of.values()))
        return vertex

    def _is_resized(self, now: Vertex, before: Vertex) -> bool:
        """Return whether a vertex reads what is new and differs in sizes that others have too."""
        to_before = self.edits.match.to_before
        if all(to_before[operand] >= 0 for operand, _ in now.operands):
            return False
        pairs = list(zip(shapes_of(before), shapes_of(now), strict=False))
        return dtypes_of(now) == dtypes_of(before) and all(
            len(old) == len(new)
            and all(
                x == y or (str(x), str(y)) in self._sizes
                for x, y in zip(old, new, strict=True)
            )
            for old, new in pairs
        )

    def _upstream(self, vertex: int, source: int) -> int:
        """Return the origin of the types of a vertex whose own change is a number."""
        now, before = self._pair(vertex)
        if source != vertex or now.is_leaf or now.types == before.types:
            return source
        if now.op != before.op or len(now.attrs) != len(before.attrs):
            return source
        changed = [self._passes[k] for k, _ in now.operands if k in self.of]
        pairs = [pair for pair in zip(now.attrs, before.attrs, strict=True) if len(set(pair)) > 1]  # fmt: skip
        gives_no_shape = all(map(_are_numbers, pairs)) or self._keeps_types(vertex)
        if changed and pairs and gives_no_shape:
            return changed[0]
        return source

    def _keeps_types(self, vertex: int) -> bool:
        """Return whether an op gives what has the type of its operand, on both sides."""
        sides = zip((self.edits.b, self.edits.a), self._pair(vertex), strict=True)
        return all(
            len(each.operands) == 1
            and each.types == side.vertices[each.operands[0][0]].types
            for side, each in sides
        )

    def _follows(self, now: Vertex, before: Vertex) -> bool:
        """Return whether other constants are no more than other sizes."""
        if now.op != before.op or len(now.attrs) != len(before.attrs):
            return False
        for new, old in zip(now.attrs, before.attrs, strict=True):
            if new == old or (now.backward and _are_choices(new, old)):
                continue
            ours, theirs = _NUMBER.findall(new), _NUMBER.findall(old)
            if _NUMBER.sub("", new) != _NUMBER.sub("", old) or len(ours) != len(theirs):
                return _is_dtype(new) and _is_dtype(old)
            if not all(map(self._explained, theirs, ours)):
                return False
        return True

    def _explained(self, old: str, new: str) -> bool:
        if old == new or (old, new) in self._sizes:
            return True
        one, other = float(old), float(new)
        if not one or not other or not self._sizes:
            return False
        return any(
            math.isclose(other / one, ratio, rel_tol=1e-9)
            for ratio in (*self._ratios, *self._roots)
        )

    def _learn(self, vertex: int) -> None:
        """Note which sizes became which: constants may follow from them."""
        now, before = self._pair(vertex)
        for new, old in zip(shapes_of(now), shapes_of(before), strict=False):
            if len(new) != len(old):
                continue
            for other, one in zip(new, old, strict=True):
                if one != other:
                    self._sizes.add((str(one), str(other)))
                    self._add_ratio(one, other)
                    self._add_roots(one, other)
            self._add_ratio(math.prod(old), math.prod(new))

    def _add_ratio(self, one: int, other: int) -> None:
        if one and other:
            self._ratios |= {other / one, one / other}

    def _add_roots(self, one: int, other: int) -> None:
        """Note what the scale of attention follows from: 1/sqrt(size), and the root of that."""
        if one and other:
            self._roots |= {(other / one) ** power for power in _ROOTS}


def _bare(op: str) -> str:
    """Return the name of an op and of its gradient, without what tells them apart."""
    return _PASS.sub("", op)


def _differences(now: Vertex, before: Vertex) -> list[tuple[str, str]]:
    """Return the arguments that differ, new and old."""
    pairs = zip(now.attrs, before.attrs, strict=False)
    return [pair for pair in pairs if pair[0] != pair[1]]


def _reads_other(now: Vertex, before: Vertex) -> bool:
    """Return whether an argument is a tensor on one side alone."""
    return any(OPERAND in pair for pair in _differences(now, before))


def _is_elsewhere(now: Vertex, before: Vertex) -> bool:
    """Return whether two ops stand on two lines of a file and differ in more than floats.

    Then it is not one call that was given something else. Lines of a cell move when it is edited.
    """
    one, other = now.site, before.site
    if one is None or other is None or one.cell is not None or other.cell is not None:
        return False
    if one.file != other.file or one.line == other.line or now.backward:
        return False
    pairs = _differences(now, before)
    return not (pairs and all(map(_are_numbers, pairs)))


def is_parameter(edits: Edits, leaf: int) -> bool:
    """Return whether an input is a parameter, its gradient, or state of an optimizer."""
    name = edits.b.leaf_names.get(leaf)
    return name is not None and (
        name.in_module or name.holder in {"optimizer", "gradient"}
    )


def _is_flag(now: Vertex, before: Vertex) -> bool:
    """Return whether a boolean argument differs: a branch of the op, not a number."""
    return any(
        {new, old} == {"True", "False"}
        for new, old in zip(now.attrs, before.attrs, strict=True)
    )


def _are_numbers(pair: tuple[str, str]) -> bool:
    """Return whether both texts are floats: sizes and positions, which give shapes, are not."""
    return all(_FLOAT.fullmatch(text) for text in pair)


def _are_choices(new: str, old: str) -> bool:
    """Return whether both texts say which gradients are asked for."""
    return all(_CHOICES.fullmatch(text) for text in (new, old))


def _is_dtype(text: str) -> bool:
    return text.startswith("torch.")


def shapes_of(vertex: Vertex) -> list[tuple[int, ...]]:
    """Return the shape of each result."""
    found = [_TYPE.fullmatch(type_) for type_ in vertex.types]
    return [
        tuple(int(size) for size in hit[2].split(",") if size)
        for hit in found
        if hit is not None
    ]


def dtypes_of(vertex: Vertex) -> tuple[str, ...]:
    """Return the dtypes of the results, each once."""
    return tuple(Counter(type_.partition("[")[0] for type_ in vertex.types))
