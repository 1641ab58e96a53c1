"""The normal form of a module: what two of them are compared by.

Dead code is set aside, `tuple` and `get-tuple-element` are erased, a collective of several
operands becomes one node for each, in a group. Labels leave out names, numbers of parameters,
layouts, channel ids, backend configs and metadata; a called computation is a fingerprint.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from lazyviz.hlo.errors import HloError, MisplacedError
from lazyviz.hlo.graph import PARAMETER, Graph, GraphBuilder, Label, dead_node
from lazyviz.hlo.inherited import filled
from lazyviz.hlo.module import HloModule, name_in, without_layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lazyviz.hlo.module import Computation, Instruction

_TUPLE = "tuple"
_ELEMENT = "get-tuple-element"
VARIADIC = frozenset({
    "reduce-scatter", "all-reduce", "all-gather", "all-to-all", "collective-permute",
    "opt-barrier", "optimization-barrier", "all-reduce-start", "all-gather-start",
})  # fmt: skip
# Attributes that do not change what is computed.
_NOISE = frozenset({
    "metadata", "channel_id", "backend_config", "origin",
    "control-predecessors", "statistics", "operand_layout_constraints", "layout",
    "parameter_replication", "outer_dimension_partitions", "result_layout",
})  # fmt: skip
# Notes of the framework that decide where something is computed, or as what.
_NOTES = "frontend_attributes"
_KEPT_NOTES = ("xla.sdy.", "composite.", "_xla_compute_type", "_xla_buffer_placement")
_MESHES = re.compile(r"xla\.sdy\.meshes=")
_MESH = re.compile(r"([\w$.\-]+)\s*=\s*(#sdy\.mesh<(?:[^<>\"]|\"[^\"]*\")*>)")
_CUSTOM = "custom-call"
_SIDE_EFFECT = "custom_call_has_side_effect=true"
_EFFECTS = frozenset({"outfeed", "send", "send-done"})
_CALLEES = frozenset({
    "to_apply", "calls", "condition", "body", "branch_computations", "true_computation",
    "false_computation", "called_computations", "select", "scatter",
})  # fmt: skip
_MARK = re.compile(r'[,()\[\]{}]|"(?:[^"\\]|\\.)*"?')
_INDEX = re.compile(r"\bindex=(\d+)")
_NAME = re.compile(r"%?([\w.\-]+)")
_REFERENCE = re.compile(r"@([\w$.\-]+)")
_BLANK = re.compile(r"\s+")
_DIGEST_BYTES = 8


def graph_of_module(module: HloModule, computation: str = "") -> Graph:
    """Return the normal form of a computation, by default the entry.

    Raises:
        HloError: The module lacks it, or a computation that it calls.
    """
    name = computation or module.entry
    if name not in module.computations:
        raise HloError(
            f"the module {module.name} has no computation %{name}. "
            f"It has {', '.join(list(module.computations)[:8])}."
        )
    return _Normaliser(module).graph(module.computations[name])


def attributes(text: str) -> Iterator[tuple[str, str]]:
    """Yield the attributes of an instruction, as written: `, dimensions={0}, index=3`."""
    for part in _split(text):
        key, equals, value = part.strip().partition("=")
        if key:
            yield key, value if equals else ""


def called(instruction: Instruction, module: HloModule) -> list[tuple[str, str]]:
    """Return what an instruction calls: pairs of the attribute and a computation."""
    return [
        (key, name)
        for key, value in attributes(instruction.attrs)
        if key in _CALLEES
        for name in _NAME.findall(value)
        if name in module.computations
    ]


def element_index(instruction: Instruction) -> int:
    """Return which element a get-tuple-element takes."""
    found = _INDEX.search(instruction.attrs)
    if found is None:
        raise MisplacedError(
            f"%{instruction.name} takes an element of a tuple and does not say which. Add "
            "`index=`.",
            instruction.line,
            instruction.name,
        )
    return int(found[1])


def _split(text: str) -> Iterator[str]:
    """Yield the parts of a text between commas outside of brackets and quotes."""
    depth = start = 0
    for found in _MARK.finditer(text):
        mark = found[0]
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
        elif mark == "," and depth == 0:
            yield text[start : found.start()]
            start = found.end()
    yield text[start:]


class _Normaliser:
    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._fingerprints: dict[str, str] = {}
        self._attrs: dict[tuple[str, bool], str] = {}
        self._types: dict[str, str] = {}
        self._meshes = meshes_of(module.header)
        if module.effectful is None:
            module.effectful = _effectful(module)
        self._effectful = module.effectful

    def graph(self, computation: Computation) -> Graph:
        builder = GraphBuilder(self._module.name, self._module.origin, name_in)
        rows = computation.instructions
        live = _live(rows, [computation.root])
        effects = [k for k in self._effects(rows) if not live[k]]
        if effects:
            live = _live(rows, [computation.root, *effects])
        dead = [
            dead_node(
                each.name,
                self.label(each),
                self._module.origin(each.metadata),
                [rows[operand].type for operand in each.operands],
            )
            for each, is_live in zip(rows, live, strict=True)
            if not is_live
        ]
        seen = _SeeThrough(rows, live, computation.root)
        origins = filled(self._module, computation)
        ids = self._build(builder, rows, live, seen, origins)
        outputs = [ids[each] for each in seen.outputs(computation.root)]
        outputs += [ids[each] for each in effects]
        return builder.finish(outputs, dead=dead, source=self._module)

    def _effects(self, rows: Sequence[Instruction]) -> list[int]:
        """Return which instructions do something besides giving a result."""
        inside = self._effectful
        return [
            k
            for k, row in enumerate(rows)
            if _has_effect(row)
            or (inside and any(name in inside for _, name in called(row, self._module)))
        ]

    def _build(
        self,
        builder: GraphBuilder,
        rows: Sequence[Instruction],
        live: bytearray,
        seen: _SeeThrough,
        origins: Sequence[str],
    ) -> list[int]:
        ids = [-1] * len(rows)
        kinds: dict[tuple[str, str, str, str], int] = {}
        alias, members, erased = seen.alias, seen.members, seen.erased
        for position, row in enumerate(rows):
            if erased[position] or not live[position]:
                continue
            member = members.get(position)
            if member is not None:
                whole, element = member
                ids[position] = self._member(
                    builder,
                    row,
                    rows[whole],
                    whole,
                    alias[rows[whole].operands[element]],
                    ids,
                )
                continue
            literal = "" if row.op == PARAMETER else row.literal
            key = (row.op, row.type, row.attrs, literal)
            kind = kinds.get(key)
            if kind is None:
                kind = kinds[key] = builder.label(*self.label(row))
            ids[position] = len(builder.kinds)
            builder.kinds.append(kind)
            builder.operands.append(tuple([ids[alias[each]] for each in row.operands]))
            builder.names.append(f"%{row.name}")
            builder.origins.append(origins[position])
            if row.op == PARAMETER:
                builder.numbers[ids[position]] = _number(row)
        return ids

    def _member(
        self,
        builder: GraphBuilder,
        row: Instruction,
        whole: Instruction,
        group: int,
        operand: int,
        ids: Sequence[int],
    ) -> int:
        """Add one operand's part of a collective of several."""
        kind = builder.label(whole.op, self._type(row.type), self._attrs_of(whole))
        return builder.add(
            kind,
            [ids[operand]],
            name=f"%{row.name}",
            origin=whole.metadata,
            group=group,
        )

    def label(self, row: Instruction) -> Label:
        literal = "" if row.op == PARAMETER else _BLANK.sub(" ", row.literal.strip())
        return Label(row.op, self._type(row.type), self._attrs_of(row), literal)

    def _type(self, text: str) -> str:
        found = self._types.get(text)
        if found is None:
            found = self._types[text] = without_layout(text)
        return found

    def _attrs_of(self, row: Instruction) -> str:
        if not row.attrs:
            return ""
        key = row.attrs, row.op == _CUSTOM
        found = self._attrs.get(key)
        if found is None:
            found = self._attrs[key] = ", ".join(self._kept(*key))
        return found

    def _kept(self, text: str, is_custom: bool) -> list[str]:  # noqa: FBT001
        kept = []
        for key, value in attributes(text):
            if key in _NOISE and not (is_custom and key == "backend_config"):
                continue
            if key == _NOTES:
                kept += self._notes(value, is_custom)
                continue
            plain = _BLANK.sub("", value) if '"' not in value else value
            if key in _CALLEES:
                plain = _NAME.sub(self._fingerprint_of, plain)
            kept.append(f"{key}={plain}" if plain else key)
        kept.sort()
        return kept

    def _notes(self, value: str, is_custom: bool) -> list[str]:  # noqa: FBT001
        """Return the notes that matter; a name of a mesh as the devices it stands for."""
        inside = value.strip()[1:-1]
        kept = []
        for key, said in attributes(inside):
            if is_custom or key.startswith(_KEPT_NOTES):
                kept.append(f"{key}={_REFERENCE.sub(self._mesh, said)}")
        return kept

    def _mesh(self, found: re.Match[str]) -> str:
        return self._meshes.get(found[1], found[0])

    def _fingerprint_of(self, found: re.Match[str]) -> str:
        name = found[1]
        if name not in self._module.computations:
            if found[0].startswith("%"):
                raise MisplacedError(
                    f"the module {self._module.name} calls %{name}, which it does not "
                    "define. The dump was cut off; save it again.",
                    self._line_that_calls(name),
                    f"%{name}",
                )
            return name
        return self.fingerprint(name)

    def _line_that_calls(self, name: str) -> int:
        return next(
            (
                row.line
                for computation in self._module.computations.values()
                for row in computation.instructions
                if name in _NAME.findall(row.attrs)
            ),
            1,
        )

    def fingerprint(self, start: str) -> str:
        """Return a digest of a computation without names, order and dead code."""
        stack = [start]
        under_way: set[str] = set()
        while stack:
            name = stack[-1]
            if name in self._fingerprints:
                stack.pop()
                continue
            computation = self._module.computations[name]
            waiting = [
                callee
                for row in computation.instructions
                if row.attrs
                for _, callee in called(row, self._module)
                if callee not in self._fingerprints
            ]
            if not waiting:
                self._fingerprints[name] = self._digest(computation)
                stack.pop()
            elif name in under_way:
                raise MisplacedError(
                    f"the computation %{name} of {self._module.name} calls itself, which "
                    "HLO does not allow. The dump was edited.",
                    self._line_that_calls(name),
                    f"%{name}",
                )
            else:
                under_way.add(name)
                stack.extend(dict.fromkeys(waiting))
        return self._fingerprints[start]

    def _digest(self, computation: Computation) -> str:
        digests: list[str] = []
        for row in computation.instructions:
            label = self.label(row)
            number = row.literal if row.op == PARAMETER else ""
            operands = "".join([digests[each] for each in row.operands])
            text = f"{tuple(label)}{number}{operands}"
            digest = hashlib.blake2b(
                text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES
            )
            digests.append(digest.hexdigest())
        effects = self._effects(computation.instructions)
        ends = sorted(digests[each] for each in effects if each != computation.root)
        if not ends:
            return f"#{digests[computation.root]}"
        text = "".join([digests[computation.root], *ends])
        return (
            f"#{hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"
        )


class _SeeThrough:
    """Which instructions stand for others: elements of tuples, parts of collectives.

    Attributes:
        alias: For each instruction the one that computes its value.
        members: For each part of a collective, the collective and the operand's position.
        erased: Which instructions are no nodes.
    """

    def __init__(self, rows: Sequence[Instruction], live: bytearray, root: int) -> None:
        self._rows = rows
        self.alias = list(range(len(rows)))
        self.members: dict[int, tuple[int, int]] = {}
        self.erased = bytearray(len(rows))
        split = _splittable(rows, live, root)
        for position, row in enumerate(rows):
            if not live[position]:
                continue
            if row.op == _ELEMENT and row.operands:
                self._element(position, row, split)
            elif row.op == _TUPLE or position in split:
                self.erased[position] = 1
        self._restore_tuples(live, root)

    def _element(self, position: int, row: Instruction, split: set[int]) -> None:
        whole = self.alias[row.operands[0]]
        element = element_index(row)
        inner = self._rows[whole]
        if inner.op != _TUPLE and whole not in split:
            return
        if element >= len(inner.operands):
            raise MisplacedError(
                f"%{row.name} takes element {element} of %{inner.name}, which has "
                f"{len(inner.operands)}. Elements count from 0.",
                row.line,
                row.name,
            )
        if inner.op == _TUPLE:
            self.alias[position] = self.alias[inner.operands[element]]
            self.erased[position] = 1
        else:
            self.members[position] = (whole, element)

    def _restore_tuples(self, live: bytearray, root: int) -> None:
        """Keep the tuples that something else than get-tuple-element reads."""
        tuples = {
            k for k, row in enumerate(self._rows) if row.op == _TUPLE and self.erased[k]
        }
        if tuples <= {root}:
            return
        split = {whole for whole, _ in self.members.values()}
        for position, row in enumerate(self._rows):
            if not live[position] or row.op in {_ELEMENT, _TUPLE} or position in split:
                continue
            for each in row.operands:
                self._restore(self.alias[each])
        if self._rows[root].op != _TUPLE:
            self._restore(self.alias[root])

    def _restore(self, start: int) -> None:
        stack = [start]
        while stack:
            position = stack.pop()
            row = self._rows[position]
            if row.op == _TUPLE and self.erased[position]:
                self.erased[position] = 0
                stack.extend(self.alias[each] for each in row.operands)

    def outputs(self, root: int) -> list[int]:
        """Return what the root gives, tuples taken apart."""
        found, stack = [], [root]
        while stack:
            position = self.alias[stack.pop()]
            row = self._rows[position]
            if row.op == _TUPLE and self.erased[position]:
                stack.extend(reversed(row.operands))
            else:
                found.append(position)
        return found


def _splittable(rows: Sequence[Instruction], live: bytearray, root: int) -> set[int]:
    """Return the collectives of several operands that only get-tuple-elements read."""
    found = {
        position
        for position, row in enumerate(rows)
        if live[position] and row.op in VARIADIC and len(row.operands) > 1
    }
    found.discard(root)
    if not found:
        return found
    for position, row in enumerate(rows):
        if live[position] and row.op != _ELEMENT:
            found.difference_update(row.operands)
    return found


def meshes_of(header: str) -> dict[str, str]:
    """Return the meshes of devices that a module's shardings speak of."""
    found = _MESHES.search(header)
    return {} if found is None else dict(_MESH.findall(header[found.end() :]))


def _effectful(module: HloModule) -> set[str]:
    """Return the computations in which something has an effect, called ones included."""
    computations = module.computations
    found = {
        name
        for name, each in computations.items()
        if name != module.entry and any(_has_effect(row) for row in each.instructions)
    }
    waiting = bool(found)
    while waiting:
        more = {
            name
            for name, each in computations.items()
            if name not in found
            and any(
                callee in found
                for row in each.instructions
                if row.attrs
                for _, callee in called(row, module)
            )
        }
        found |= more
        waiting = bool(more)
    return found


def _has_effect(row: Instruction) -> bool:
    """Return whether an instruction does something besides giving a result."""
    return row.op in _EFFECTS or (row.op == _CUSTOM and _SIDE_EFFECT in row.attrs)


def _live(rows: Sequence[Instruction], roots: Sequence[int]) -> bytearray:
    live = bytearray(len(rows))
    for root in roots:
        live[root] = 1
    for position in range(max(roots), -1, -1):
        if live[position]:
            for each in rows[position].operands:
                live[each] = 1
    return live


def _number(row: Instruction) -> int:
    if not row.literal.strip().isdecimal():
        raise MisplacedError(
            f"%{row.name} is parameter({row.literal}), and a parameter's number is a whole "
            "number. The dump was edited.",
            row.line,
            row.name,
        )
    return int(row.literal)
