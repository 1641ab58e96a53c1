"""The normal form of a module: what two of them are compared by.

Dead code is set aside, `tuple` and `get-tuple-element` are erased, a collective of several
operands becomes one node for each, in a group. Labels leave out names, numbers of parameters,
layouts, channel ids, backend configs and metadata; a called computation is a fingerprint.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazygraph.graph import (
    PARAMETER,
    DeadNode,
    Graph,
    GraphBuilder,
    HloError,
    Label,
    MisplacedError,
    dead_node,
    hashed,
    needed,
)
from lazygraph.read.hlo import modules
from lazygraph.read.hlo_module import (
    INHERITED,
    NAME,
    HloModule,
    evenly_spaced,
    lacks_attributes,
    name_in,
    split_commas,
)
from lazygraph.types import without_layout

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from lazygraph.read.hlo_module import Computation, Form, HloModule, Instruction

_TUPLE = "tuple"
_ELEMENT = "get-tuple-element"
_INDEX = re.compile(r"\bindex=(\d+)")
VARIADIC = frozenset({
    "reduce-scatter", "all-reduce", "all-gather", "all-to-all", "collective-permute",
    "opt-barrier", "optimization-barrier", "all-reduce-start", "all-gather-start",
})  # fmt: skip


def element_index(instruction: Instruction) -> int:
    """Return which element a get-tuple-element takes."""
    found = _INDEX.search(instruction.attrs)
    if found is None:
        raise MisplacedError(
            f"%{instruction.name} takes an element of a tuple and does not say which. Add "
            "`index=`; where the dump has no attributes at all, print it with them "
            "(print_extra_attributes): without, programs that differ would look the same.",
            instruction.line,
            instruction.name,
        )
    return int(found[1])


class TupleForwarding:
    """Which instructions stand for others: elements of tuples, parts of collectives.

    Attributes:
        alias: For each instruction the one that computes its value.
        members: For each part of a collective, the collective and the operand's position.
        erased: Which instructions are no nodes.
    """

    def __init__(
        self,
        computation: Computation,
        live: bytearray,
        *,
        forwards_elements: bool = True,
    ) -> None:
        self._computation = computation
        self._rows = computation.operands
        self.alias = list(range(len(computation)))
        self.members: dict[int, tuple[int, int]] = {}
        self.erased = bytearray(len(computation))
        self._tuples = _of_ops(computation, live, {_TUPLE})
        elements = {_ELEMENT} if forwards_elements else frozenset()
        self._elements = _of_ops(computation, live, elements)
        split = self._splittable(live)
        for position in self._tuples | split:
            self.erased[position] = 1
        for position in sorted(self._elements):
            if self._rows[position]:
                self._element(position, split)
        self._restore_tuples(live)

    def _splittable(self, live: bytearray) -> set[int]:
        """Return the collectives of several operands that only get-tuple-elements read."""
        rows, root = self._rows, self._computation.root
        collectives = _of_ops(self._computation, live, VARIADIC)
        found = {k for k in collectives if len(rows[k]) > 1 and k != root}
        if not found:
            return found
        for position, row in enumerate(rows):
            if live[position] and position not in self._elements:
                found.difference_update(row)
        return found

    def _element(self, position: int, split: set[int]) -> None:
        whole = self.alias[self._rows[position][0]]
        element = element_index(self._computation.row(position))
        inner = self._rows[whole]
        if whole not in self._tuples and whole not in split:
            self._check_is_tuple(position, whole)
            return
        if element >= len(inner):
            names = self._computation.names
            raise MisplacedError(
                f"%{names[position]} takes element {element} of %{names[whole]}, which has "
                f"{len(inner)}. Elements count from 0.",
                self._computation.lines[position],
                names[position],
            )
        if whole in self._tuples:
            self.alias[position] = self.alias[inner[element]]
            self.erased[position] = 1
        else:
            self.members[position] = (whole, element)

    def _check_is_tuple(self, position: int, whole: int) -> None:
        computation = self._computation
        found = computation.table[computation.forms[whole]].type
        if found.startswith("("):
            return
        name, names = computation.names[position], computation.names
        raise MisplacedError(
            f"%{name} takes an element of %{names[whole]}, which is {found} and no tuple. The "
            "dump was edited.",
            computation.lines[position],
            name,
        )

    def _restore_tuples(self, live: bytearray) -> None:
        """Keep the tuples that something else than get-tuple-element reads."""
        root = self._computation.root
        if self._tuples <= {root}:
            return
        split = {whole for whole, _ in self.members.values()}
        for position, row in enumerate(self._rows):
            if not live[position] or position in split:
                continue
            if position in self._elements or position in self._tuples:
                continue
            for each in row:
                self._restore(self.alias[each])
        if root not in self._tuples:
            self._restore(self.alias[root])

    def _restore(self, start: int) -> None:
        stack = [start]
        while stack:
            position = stack.pop()
            if position in self._tuples and self.erased[position]:
                self.erased[position] = 0
                stack.extend(self.alias[each] for each in self._rows[position])

    def outputs(self, root: int) -> list[int]:
        """Return what the root gives, tuples taken apart."""
        found, stack = [], [root]
        while stack:
            position = self.alias[stack.pop()]
            if position in self._tuples and self.erased[position]:
                stack.extend(reversed(self._rows[position]))
            else:
                found.append(position)
        return found


def _of_ops(computation: Computation, live: bytearray, ops: Container[str]) -> set[int]:
    """Return the live instructions of some opcodes."""
    table = computation.table
    wanted = {form for form in set(computation.forms) if table[form].op in ops}
    if not wanted:
        return set()
    return {k for k, form in enumerate(computation.forms) if form in wanted and live[k]}


_COPIES = frozenset({"copy", "bitcast", "copy-start", "copy-done"})


def with_inherited_metadata(module: HloModule, computation: Computation) -> list[str]:
    """Return the metadata of each instruction, those of neighbours marked as inherited.

    An instruction without metadata has that of the first that reads it, if that has none
    that of what it reads, and if nothing of the computation has any that of its caller.
    Inputs stay as they are written, and so does the entry computation, which no instruction
    calls, but for its copies: they have that of what they copy.
    """
    written = computation.metadata
    if all(written):
        return written
    found = list(written)
    if computation.name == module.entry:
        _inherit_from_copied(found, computation, _COPIES)
        return found
    _inherit_from_neighbours(found, computation)
    if not all(found):
        caller = module.caller(computation.name)
        rest = _inherited(caller.metadata if caller is not None else "")
        found = [each or rest for each in found]
    table = computation.table
    return [
        written[position] if table[form].op == PARAMETER else found[position]
        for position, form in enumerate(computation.forms)
    ]


def _inherit_from_copied(
    found: list[str], computation: Computation, ops: Container[str]
) -> None:
    """Give instructions of some ops without metadata those of their first operand."""
    table = computation.table
    copies = {form for form in set(computation.forms) if table[form].op in ops}
    for position, form in enumerate(computation.forms if copies else ()):
        row = computation.operands[position]
        if form in copies and not found[position] and row and row[0] >= 0:
            found[position] = _inherited(found[row[0]])


def _inherit_from_neighbours(found: list[str], computation: Computation) -> None:
    """Give instructions without metadata those of the first reader, else of an operand."""
    rows, own = computation.operands, list(found)
    for position in range(len(rows) - 1, -1, -1):
        for operand in rows[position]:
            if operand >= 0 and found[position] and not own[operand]:
                found[operand] = _inherited(found[position])
    for position, row in enumerate(rows):
        if not found[position]:
            near = (found[each] for each in row if each >= 0)
            found[position] = _inherited(next(filter(None, near), ""))


def _inherited(metadata: str) -> str:
    return f"{INHERITED}{metadata.removeprefix(INHERITED)}" if metadata else ""


# A line of the StableHLO, which nobody has; it is what XLA knows of the bodies of functions.
_NOWHERE = re.compile(r' ?source_file="-"(?: source_(?:end_)?(?:line|column)=\d+)*')
_OF_TYPE = re.compile(r'op_type="[^"]*" ?')
_Caller = tuple["Computation", list[str], int]


def with_all_places(text: str) -> str:
    """Return HLO text in which instructions without metadata have a neighbour's.

    XLA copies inputs whose memory results take, expands random bits and makes constants, and
    says of none where it is from. A copy has what it copies, another instruction what the
    first that reads it has, else what it reads, else what calls its computation; an input of a
    called computation has what it is given. Such metadata has `op_type="inherited"`. The tuple
    of the results stays as it is. A line in the StableHLO text, `source_file="-"`, is no place.
    """
    text = _NOWHERE.sub("", text).replace(", metadata={}", "")
    lines = text.split("\n")
    for module in modules(text):
        callers: dict[str, _Caller] = {}
        for each in reversed(module.computations.values()):  # callers stand behind
            found = _metadata_everywhere(each, callers.get(each.name))
            for position, form in enumerate(each.forms):
                op, _, attrs, _ = each.table[form]
                for called in NAME.findall(attrs):
                    callers.setdefault(called, (each, found, position))
                if found[position].startswith(INHERITED) and op != _TUPLE:
                    at = each.lines[position] - 1
                    lines[at] = _placed(lines[at], found[position])
    return "\n".join(lines)


def _metadata_everywhere(computation: Computation, caller: _Caller | None) -> list[str]:
    """Return the metadata of each instruction, those that XLA leaves out as inherited."""
    found, rest = list(computation.metadata), ""
    if caller is not None:
        around, metadata, position = caller
        rest = _inherited(metadata[position])
        if around.table[around.forms[position]].op in {"fusion", "call"}:
            given = around.operands[position]
            for k, form in enumerate(computation.forms):
                op, _, _, number = computation.table[form]
                if op == PARAMETER and number.isdecimal() and int(number) < len(given):
                    found[k] = found[k] or _inherited(metadata[given[int(number)]])
    _inherit_from_copied(found, computation, {*_COPIES, _ELEMENT})
    _inherit_from_neighbours(found, computation)
    return [each or rest for each in found]


def _placed(line: str, metadata: str) -> str:
    """Return a line with metadata behind its attributes, and before backend settings."""
    plain = _OF_TYPE.sub("", metadata.removeprefix(INHERITED))
    before, backend, behind = line.partition(", backend_config=")
    return f'{before}, metadata={{op_type="inherited" {plain}}}{backend}{behind}'


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
_NAME = re.compile(r"%?([\w.\-]+)")
_REFERENCE = re.compile(r"@([\w$.\-]+)")
_BLANK = re.compile(r"\s+")


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
    for part in split_commas(text):
        key, equals, value = part.strip().partition("=")
        if key:
            yield key, value if equals else ""


def called(instruction: Instruction | Form, module: HloModule) -> list[tuple[str, str]]:
    """Return what an instruction calls: pairs of the attribute and a computation."""
    return [
        (key, name)
        for key, value in attributes(instruction.attrs)
        if key in _CALLEES
        for name in _NAME.findall(value)
        if name in module.computations
    ]


class _Normaliser:
    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._fingerprints: dict[str, str] = {}
        self._types: dict[str, str] = {}
        self._meshes = meshes_of(module.header)
        self._is_bare = lacks_attributes(module)
        if module.effectful is None:
            module.effectful = _effectful(module)
        # What is worked out once for each form.
        self._labels: dict[int, Label] = {}
        self._calls: dict[int, list[str]] = {}
        self._effects_of: dict[int, bool] = {}

    def graph(self, computation: Computation) -> Graph:
        builder = GraphBuilder(self._module.name, self._module.origin, name_in)
        live = needed(computation.operands, [computation.root])
        effects = [k for k in self._effects(computation) if not live[k]]
        if effects:
            live = needed(computation.operands, [computation.root, *effects])
        dead = [
            self._dead(computation, k) for k, is_live in enumerate(live) if not is_live
        ]
        seen = TupleForwarding(computation, live, forwards_elements=not self._is_bare)
        ids = self._build(builder, computation, live, seen)
        outputs = [ids[each] for each in seen.outputs(computation.root)]
        outputs += [ids[each] for each in effects]
        return builder.finish(
            outputs, dead=dead, source=self._module, part=computation.name
        )

    def _dead(self, computation: Computation, position: int) -> DeadNode:
        table, forms = computation.table, computation.forms
        return dead_node(
            computation.names[position],
            self.label(forms[position]),
            self._module.origin(computation.metadata[position]),
            [table[forms[each]].type for each in computation.operands[position]],
        )

    def _effects(self, computation: Computation) -> list[int]:
        """Return which instructions do something besides giving a result."""
        forms = set(computation.forms)
        found = {form for form in forms if self._has_effect(form)}
        if not found:
            return []
        return [k for k, form in enumerate(computation.forms) if form in found]

    def _has_effect(self, form: int) -> bool:
        found = self._effects_of.get(form)
        if found is None:
            inside = self._module.effectful or ()
            found = _has_effect(self._module.forms[form]) or (
                bool(inside) and any(name in inside for name in self._callees(form))
            )
            self._effects_of[form] = found
        return found

    def _callees(self, form: int) -> list[str]:
        """Return the computations that a form calls."""
        found = self._calls.get(form)
        if found is None:
            row = self._module.forms[form]
            found = [name for _, name in called(row, self._module)] if row.attrs else []
            self._calls[form] = found
        return found

    def _build(
        self,
        builder: GraphBuilder,
        computation: Computation,
        live: bytearray,
        seen: TupleForwarding,
    ) -> list[int]:
        """Add the instructions that are nodes; return the node of each instruction.

        Whole columns at a time: a large program is read in a second, or is not.
        """
        forms, operands, erased = computation.forms, computation.operands, seen.erased
        kept = [k for k, is_live in enumerate(live) if is_live and not erased[k]]
        ids = [-1] * len(forms)
        for node, position in enumerate(kept):
            ids[position] = node
        # What reads an instruction reads the node of what that stands for.
        node_of = [ids[each] for each in seen.alias]
        occurring = dict.fromkeys([forms[k] for k in kept])
        kinds = {form: builder.label(*self.label(form)) for form in occurring}
        builder.kinds = [kinds[forms[k]] for k in kept]
        read = node_of.__getitem__
        builder.operands = [tuple(map(read, operands[k])) for k in kept]
        builder.names = [f"%{computation.names[k]}" for k in kept]
        origins = with_inherited_metadata(self._module, computation)
        builder.origins = [origins[k] for k in kept]
        for position, (whole, element) in seen.members.items():
            self._split(builder, computation, ids[position], position, whole)
            builder.operands[ids[position]] = (node_of[operands[whole][element]],)
        table = computation.table
        inputs = {form for form in kinds if table[form].op == PARAMETER}
        builder.numbers = {
            ids[k]: _number(computation, k) for k in kept if forms[k] in inputs
        }
        return ids

    def _split(
        self,
        builder: GraphBuilder,
        computation: Computation,
        node: int,
        position: int,
        whole: int,
    ) -> None:
        """Make a node one operand's part of a collective of several."""
        form = computation.forms[whole]
        own = computation.table[computation.forms[position]]
        label = self.label(form)
        builder.kinds[node] = builder.label(label.op, self._type(own.type), label.attrs)
        builder.origins[node] = computation.metadata[whole]
        builder.groups[node] = whole

    def label(self, form: int) -> Label:
        found = self._labels.get(form)
        if found is None:
            op, type_text, attrs, literal = self._module.forms[form]
            literal = "" if op == PARAMETER else evenly_spaced(literal)
            kept = ", ".join(self._kept(attrs, op == _CUSTOM)) if attrs else ""
            found = self._labels[form] = Label(op, self._type(type_text), kept, literal)
        return found

    def _type(self, text: str) -> str:
        found = self._types.get(text)
        if found is None:
            found = self._types[text] = without_layout(text)
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
                told = _REFERENCE.sub(lambda m: self._meshes.get(m[1], m[0]), said)
                kept.append(f"{key}={told}")
        return kept

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
                line
                for computation in self._module.computations.values()
                for form, line in zip(computation.forms, computation.lines, strict=True)
                if name in _NAME.findall(self._module.forms[form].attrs)
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
                for form in computation.forms
                for callee in self._callees(form)
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
        table = computation.table
        for form, row in zip(computation.forms, computation.operands, strict=True):
            number = table[form].literal if table[form].op == PARAMETER else ""
            operands = "".join([digests[each] for each in row])
            text = f"{tuple(self.label(form))}{number}{operands}"
            digests.append(hashed(text))
        effects = self._effects(computation)
        ends = sorted(digests[each] for each in effects if each != computation.root)
        root = digests[computation.root]
        return hashed("".join([root, *ends])) if ends else root


def meshes_of(header: str) -> dict[str, str]:
    """Return the meshes of devices that a module's shardings speak of."""
    found = _MESHES.search(header)
    return {} if found is None else dict(_MESH.findall(header[found.end() :]))


def _effectful(module: HloModule) -> set[str]:
    """Return the computations in which something has an effect, called ones included."""
    having = {k for k, form in enumerate(module.forms) if _has_effect(form)}
    if not having:
        return set()
    others = {n: c for n, c in module.computations.items() if n != module.entry}
    found = {name for name, each in others.items() if not having.isdisjoint(each.forms)}
    calls = [[name for _, name in called(form, module)] for form in module.forms]
    callees = {
        name: {callee for form in set(each.forms) for callee in calls[form]}
        for name, each in module.computations.items()
    }
    more = found
    while more:
        more = {
            name
            for name in module.computations
            if name not in found and not callees[name].isdisjoint(found)
        }
        found = found | more
    return found


def _has_effect(form: Form) -> bool:
    """Return whether an instruction does something besides giving a result."""
    return form.op in _EFFECTS or (form.op == _CUSTOM and _SIDE_EFFECT in form.attrs)


def _number(computation: Computation, position: int) -> int:
    literal = computation.table[computation.forms[position]].literal
    if not literal.strip().isdecimal():
        name = computation.names[position]
        raise MisplacedError(
            f"%{name} is parameter({literal}), and a parameter's number is a whole "
            "number. The dump was edited.",
            computation.lines[position],
            name,
        )
    return int(literal)
