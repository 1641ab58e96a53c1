"""Where a value goes and where it comes from, through tuples, calls and fusions."""

from __future__ import annotations

import difflib
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lazyviz.hlo import torch_ir
from lazyviz.hlo.cost import elements, flops, type_bytes
from lazyviz.hlo.errors import HloError, HloSyntaxError
from lazyviz.hlo.load import graph_of, parse
from lazyviz.hlo.module import Computation, HloModule, Instruction, without_layout
from lazyviz.hlo.normal import VARIADIC, called, element_index
from lazyviz.hlo.scan import modules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazyviz.hlo.graph import Graph

HopKind = Literal[
    "value", "tuple", "element", "collective", "call", "parameter", "return", "consumer",
    "output",
]  # fmt: skip
_MAX_HOPS = 2_000
_MAX_SHOWN = 40
_TUPLES = frozenset({"get-tuple-element", "getitem"})
_CALLS = frozenset({"call", "fusion", "while", "conditional", "async-start", "map"})
# torch_xla calls its inputs p0.1, p1.2, ...
_INPUT_NAME = re.compile(r"p\d+\.\d+")
_MODULE_LINE = re.compile(r"^HloModule\b", re.MULTILINE)

# An instruction of a computation, and which element of its result, outermost first.
_Place = tuple[str, int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Hop:
    """One step on the way of a value.

    Attributes:
        kind: What happens to the value here.
        name: The instruction, with `%`.
        op: Its opcode.
        text: What happens, in words.
        type: The value's type after the hop, without layout.
        line: Line of the text, 0 if it has none.
        depth: How many hops lie before it on its path.
    """

    kind: HopKind
    name: str
    op: str
    text: str
    type: str
    line: int
    depth: int


@dataclass(frozen=True, slots=True)
class Sources:
    """What the operands of an instruction of several are.

    Attributes:
        name: The instruction, with `%`.
        operands: How many there are.
        inputs: How many of them are inputs of the program.
        operand_bytes, input_bytes: Their sizes.
        is_presumed: Whether some were told from their position only, since an excerpt
            does not show them.
    """

    name: str
    operands: int
    inputs: int
    operand_bytes: int
    input_bytes: int
    is_presumed: bool = False

    def __str__(self) -> str:
        mib = 1 << 20
        return (
            f"{self.inputs} of {self.operands} operands, {self.input_bytes / mib:.1f} of "
            f"{self.operand_bytes / mib:.1f} MiB, are inputs computed by an earlier execution"
        )


@dataclass(frozen=True, slots=True)
class ValueTrace:
    """The way of one value through a program.

    Attributes:
        name: The value, with `%`.
        type: Its type, without layout.
        what: What makes it, in words.
        line: Line of the text, 0 if it has none.
        hops: Where it goes, depth first; `Hop.depth` tells the branches apart.
        producers: Where it comes from.
        sources: For each collective on the way, what its operands are.
        is_excerpt: Whether the text is a part of a program only.
    """

    name: str
    type: str
    what: str
    line: int
    hops: tuple[Hop, ...]
    producers: tuple[Hop, ...]
    sources: tuple[Sources, ...]
    is_excerpt: bool

    @property
    def consumers(self) -> tuple[Hop, ...]:
        """The instructions that compute something from the value."""
        return tuple(hop for hop in self.hops if hop.kind in {"consumer", "collective"})

    @property
    def is_output(self) -> bool:
        """Whether the value is a result of the program, as it is."""
        return any(hop.kind == "output" for hop in self.hops)

    def __str__(self) -> str:
        lines = [f"{self.name} : {self.type}, {self.what}"]
        lines += [f"  ← {hop.text}" for hop in self.producers]
        shown = self.hops[:_MAX_SHOWN]
        lines += [f"{'  ' * hop.depth}→ {hop.text}" for hop in shown]
        if len(self.hops) > _MAX_SHOWN:
            lines.append(f"  ... and {len(self.hops) - _MAX_SHOWN:,} more")
        if self._ends_nowhere():
            where = " in this excerpt" if self.is_excerpt else ""
            lines.append(f"no consumer{where}")
        for each in self.sources:
            lines.append(f"{each.name}: {each}")
            if each.is_presumed:
                lines.append(
                    "  (those that the excerpt does not show are told by their position)"
                )
        return "\n".join(lines)

    def _ends_nowhere(self) -> bool:
        ends = [hop for hop in self.hops if hop.kind in {"consumer", "output"}]
        return not ends

    def _repr_html_(self) -> str:
        from lazyviz.render.html import pre

        return pre(str(self))


@dataclass(frozen=True, slots=True)
class Unused:
    """A value that nothing needs.

    Attributes:
        name: The instruction, with `%`.
        op, type, literal: What it is.
        bytes: Size of its result.
        flops: Operations to compute it.
        site: Source line, may be empty.
        line: Line of the text, 0 if it has none.
    """

    name: str
    op: str
    type: str
    literal: str
    bytes: int
    flops: int
    site: str
    line: int


def trace_value(program: Any, name: str) -> ValueTrace:
    """Follow a value of a program through tuples, calls and fusions, both ways.

    Args:
        program: HLO or StableHLO text, whole or in excerpts as from a log or an issue; a
            path; a graph.
        name: The instruction, with or without `%`.

    Raises:
        HloError: There is no such instruction.
    """
    module, is_excerpt = _module_of(program)
    return _Tracer(module, is_excerpt=is_excerpt).trace(name.lstrip("%"))


def unused_values(program: Any) -> list[Unused]:
    """Return the values that no result needs, those of most work first."""
    module, is_excerpt = _module_of(program)
    found = [
        _unused(module, computation, row)
        for computation in module.computations.values()
        if computation.name == module.entry or is_excerpt
        for row in _dead(computation, is_excerpt=is_excerpt)
    ]
    found.sort(key=lambda each: (-each.flops, -each.bytes))
    return found


def operand_sources(program: Any, name: str) -> Sources:
    """Return which operands of an instruction are inputs of the program.

    Raises:
        HloError: There is no such instruction.
    """
    module, is_excerpt = _module_of(program)
    tracer = _Tracer(module, is_excerpt=is_excerpt)
    computation, position = tracer.find(name.lstrip("%"))
    return tracer.sources(computation, position)


class _Tracer:
    def __init__(self, module: HloModule, *, is_excerpt: bool) -> None:
        self._module = module
        self._is_excerpt = is_excerpt
        self._users: dict[str, list[list[tuple[int, int]]]] = {}
        self._callers: dict[str, list[tuple[str, int, str]]] | None = None

    def trace(self, name: str) -> ValueTrace:
        computation, position = self.find(name)
        row = self._row(computation, position)
        hops = tuple(self._forward((computation.name, position, ())))
        collectives = dict.fromkeys(
            hop.name for hop in hops if hop.kind == "collective"
        )
        return ValueTrace(
            name=f"%{row.name}",
            type=without_layout(row.type),
            what=_what(row),
            line=row.line,
            hops=hops,
            producers=tuple(self._backward(computation, position)),
            sources=tuple(
                self.sources(*self.find(each.lstrip("%"))) for each in collectives
            ),
            is_excerpt=self._is_excerpt,
        )

    def find(self, name: str) -> tuple[Computation, int]:
        """Return an instruction's place, that in the entry computation first."""
        entry = self._module.computations.get(self._module.entry)
        others = self._module.computations.values()
        for computation in [*([entry] if entry else []), *others]:
            position = computation.index.get(name)
            if position is not None:
                return computation, position
        names = [each for c in others for each in c.index]
        near = difflib.get_close_matches(name, names[:50_000], n=3)
        hint = (
            f" Did you mean {' or '.join(f'%{each}' for each in near)}?" if near else ""
        )
        raise HloError(
            f"there is no instruction %{name} in {self._module.name}.{hint} Names stand "
            "before the `=` of a line."
        )

    def sources(self, computation: Computation, position: int) -> Sources:
        row = self._row(computation, position)
        types = self._operand_types(computation, row)
        resolved = [
            self._resolve(computation, operand, ()) if operand >= 0 else None
            for operand in row.operands
        ]
        presumed = False
        if None in resolved or any(r and r[0] is None for r in resolved):
            presumed = self._presume(computation, row, resolved)
        is_input = [each is not None and each[1] for each in resolved]
        sizes = [type_bytes(each) for each in types]
        return Sources(
            f"%{row.name}",
            len(row.operands),
            sum(is_input),
            sum(sizes),
            sum(size for size, yes in zip(sizes, is_input, strict=True) if yes),
            presumed,
        )

    def _presume(
        self,
        computation: Computation,
        row: Instruction,
        resolved: list[tuple[str | None, bool] | None],
    ) -> bool:
        """Tell operands that an excerpt does not show from a sibling's tuple, by position."""
        whole = self._tuple_of_siblings(computation, row)
        if whole is None:
            return False
        for k, each in enumerate(resolved):
            if each is None:
                name = _operand_name(whole, k, computation)
                inside = whole.operands[k]
                known = self._resolve(computation, inside, ()) if inside >= 0 else None
                resolved[k] = known or (name, bool(_INPUT_NAME.fullmatch(name)))
        return True

    def _tuple_of_siblings(
        self, computation: Computation, row: Instruction
    ) -> Instruction | None:
        """Return the tuple whose k-th element is the k-th operand, if one operand shows it."""
        for k, operand in enumerate(row.operands):
            if operand < 0:
                continue
            sibling = computation.instructions[operand]
            if sibling.op not in _TUPLES or element_index(sibling) != k:
                continue
            inside = sibling.operands[0] if sibling.operands else -1
            if inside < 0:
                continue
            whole = computation.instructions[inside]
            if whole.op == "tuple" and len(whole.operands) == len(row.operands):
                return whole
        return None

    def _resolve(
        self, computation: Computation, position: int, path: tuple[int, ...]
    ) -> tuple[str | None, bool] | None:
        """Return the name of what computes a value, and whether that is an input."""
        for _ in range(_MAX_HOPS):
            row = computation.instructions[position]
            if row.op in _TUPLES and row.operands:
                path = (element_index(row), *path)
            elif row.op == "tuple" and path and path[0] < len(row.operands):
                following = row.operands[path[0]]
                if following < 0:
                    name = _operand_name(row, path[0], computation)
                    return name, bool(_INPUT_NAME.fullmatch(name))
                position, path = following, path[1:]
                continue
            else:
                return row.name, row.op == "parameter" and self._is_entry(computation)
            if row.operands[0] < 0:
                return None
            position = row.operands[0]
        return None

    def _is_entry(self, computation: Computation) -> bool:
        return self._is_excerpt or computation.name == self._module.entry

    def _operand_types(self, computation: Computation, row: Instruction) -> list[str]:
        """Return the operands' types, from the operands or from a sibling's tuple."""
        whole = self._tuple_of_siblings(computation, row)
        listed = _split_types(whole.type) if whole is not None else []
        found = []
        for k, operand in enumerate(row.operands):
            if operand >= 0:
                found.append(computation.instructions[operand].type)
            else:
                found.append(listed[k] if k < len(listed) else "")
        return found

    def _row(self, computation: Computation, position: int) -> Instruction:
        return computation.instructions[position]

    def _users_of(
        self, computation: Computation, position: int
    ) -> list[tuple[int, int]]:
        table = self._users.get(computation.name)
        if table is None:
            table = self._users[computation.name] = [
                [] for _ in computation.instructions
            ]
            for user, row in enumerate(computation.instructions):
                for slot, operand in enumerate(row.operands):
                    if operand >= 0:
                        table[operand].append((user, slot))
        return table[position]

    def _callers_of(self, name: str) -> list[tuple[str, int, str]]:
        if self._callers is None:
            self._callers = {}
            for computation in self._module.computations.values():
                for position, row in enumerate(computation.instructions):
                    for key, callee in called(row, self._module) if row.attrs else ():
                        self._callers.setdefault(callee, []).append(
                            (computation.name, position, key)
                        )
        return self._callers.get(name, [])

    # --- forward ---------------------------------------------------------------------

    def _forward(self, start: _Place) -> Iterator[Hop]:
        seen = {start}
        stack = list(reversed(list(self._next(start, 1))))
        for _ in range(_MAX_HOPS):
            if not stack:
                return
            hop, after = stack.pop()
            yield hop
            if after is not None and after not in seen:
                seen.add(after)
                stack.extend(reversed(list(self._next(after, hop.depth + 1))))

    def _next(self, place: _Place, depth: int) -> Iterator[tuple[Hop, _Place | None]]:
        name, position, path = place
        computation = self._module.computations[name]
        for user, slot in self._users_of(computation, position):
            yield from self._use(computation, user, slot, path, depth)
        if position == computation.root and not self._is_excerpt:
            yield from self._returned(computation, position, path, depth)

    def _use(
        self,
        computation: Computation,
        user: int,
        slot: int,
        path: tuple[int, ...],
        depth: int,
    ) -> Iterator[tuple[Hop, _Place | None]]:
        row = computation.instructions[user]
        name = computation.name
        count = len(row.operands)
        if row.op == "tuple":
            text = f"operand {slot} of %{row.name} ({count})"
            yield _hop("tuple", row, text, depth), (name, user, (slot, *path))
        elif row.op in _TUPLES:
            index = element_index(row)
            if path and path[0] == index:
                text = f"%{row.name} index={index}"
                yield _hop("element", row, text, depth), (name, user, path[1:])
        elif row.op in VARIADIC and count > 1:
            yield self._collective(computation, row, slot, depth), (name, user, (slot,))
        elif row.op in _CALLS and (inside := self._inside(row, slot, path)):
            for callee, parameter, inner in inside:
                text = f"operand {slot} of %{row.name} ({row.op}) as %{parameter} of %{callee}"
                target = self._module.computations[callee]
                after = callee, target.index[parameter], inner
                yield _hop("call", row, text, depth), after
        else:
            text = (
                f"operand {slot} of %{row.name} ({row.op}), {without_layout(row.type)}"
            )
            yield _hop("consumer", row, text, depth), None

    def _collective(
        self, computation: Computation, row: Instruction, slot: int, depth: int
    ) -> Hop:
        types = _split_types(row.type)
        result = types[slot] if slot < len(types) else row.type
        operand = self._operand_types(computation, row)[slot]
        text = f"operand {slot} of %{row.name} → element {slot}"
        before, after = without_layout(operand), without_layout(result)
        text += f", {before} → {after}" if before != after else f", {after}"
        if row.op == "reduce-scatter" and elements(result):
            text += f", {elements(operand) // elements(result)} shards"
        return _hop("collective", row, text, depth, result)

    def _inside(
        self, row: Instruction, slot: int, path: tuple[int, ...]
    ) -> list[tuple[str, str, tuple[int, ...]]]:
        """Return the parameters that an operand becomes in what is called."""
        found = []
        for key, callee in called(row, self._module):
            number = slot
            if row.op == "while":
                number = 0
            elif row.op == "conditional":
                branches = [c for _, c in called(row, self._module)]
                if slot == 0 or branches.index(callee) != slot - 1:
                    continue
                number = 0
            elif key not in {"to_apply", "calls", "called_computations"}:
                continue
            parameter = _parameter(self._module.computations[callee], number)
            if parameter is not None:
                found.append((callee, parameter, path))
        return found

    def _returned(
        self, computation: Computation, position: int, path: tuple[int, ...], depth: int
    ) -> Iterator[tuple[Hop, _Place | None]]:
        row = computation.instructions[position]
        if computation.name == self._module.entry:
            element = f"result {path[0]}" if path else "the result"
            yield _hop("output", row, f"{element} of the program", depth), None
            return
        for caller, at, key in self._callers_of(computation.name):
            outer = self._module.computations[caller]
            call = outer.instructions[at]
            if call.op not in _CALLS or key == "condition":
                continue
            text = f"the result of %{call.name} ({call.op})"
            yield _hop("return", call, text, depth), (caller, at, path)
            if call.op == "while":
                parameter = _parameter(computation, 0)
                if parameter is not None:
                    after = computation.name, computation.index[parameter], path
                    text = f"the next turn of %{call.name} (while)"
                    yield _hop("call", call, text, depth), after

    # --- backward --------------------------------------------------------------------

    def _backward(self, computation: Computation, position: int) -> Iterator[Hop]:
        row = computation.instructions[position]
        if row.op in _TUPLES or row.op == "parameter" or row.op in _CALLS:
            yield from self._origin(computation, position)
            return
        for k, operand in enumerate(row.operands):
            if operand < 0:
                name = _operand_name(row, k, computation)
                yield Hop("value", f"%{name}", "", f"%{name}, not shown", "", 0, 1)
                continue
            resolved = self._resolve(computation, operand, ())
            name = (resolved[0] if resolved else None) or ""
            source = computation.index.get(name, operand)
            made = computation.instructions[source]
            text = f"operand {k}: %{made.name} = {_what(made)}, {without_layout(made.type)}"
            yield _hop("value", made, text, 1)

    def _origin(self, computation: Computation, position: int) -> Iterator[Hop]:
        """Follow a value that is only handed on, to what computes it."""
        places: deque[_Place] = deque([(computation.name, position, ())])
        seen = set(places)
        while places and len(seen) < _MAX_HOPS:
            name, position, path = places.popleft()
            for hop, after in self._before(name, position, path):
                yield hop
                if after is not None and after not in seen:
                    seen.add(after)
                    places.append(after)

    def _before(
        self, name: str, position: int, path: tuple[int, ...]
    ) -> Iterator[tuple[Hop, _Place | None]]:
        computation = self._module.computations[name]
        row = computation.instructions[position]
        if row.op in _TUPLES and row.operands:
            index = element_index(row)
            if row.operands[0] >= 0:
                whole = computation.instructions[row.operands[0]]
                text = f"element {index} of %{whole.name} ({whole.op})"
                after = name, row.operands[0], (index, *path)
                yield _hop("element", whole, text, 1), after
        elif row.op == "tuple" and path and path[0] < len(row.operands):
            inside = row.operands[path[0]]
            if inside < 0:
                shown = _operand_name(row, path[0], computation)
                yield (
                    Hop("value", f"%{shown}", "", f"%{shown}, not shown", "", 0, 1),
                    None,
                )
                return
            made = computation.instructions[inside]
            text = f"operand {path[0]} of %{row.name}: %{made.name} = {_what(made)}"
            is_last = made.op not in {"tuple", *_TUPLES, *_CALLS}
            yield (
                _hop("value", made, text, 1),
                None if is_last else (name, inside, path[1:]),
            )
        elif row.op == "parameter" and name != self._module.entry:
            yield from self._arguments(computation, row, path)
        elif row.op in _CALLS:
            for key, callee in called(row, self._module):
                if key == "condition":
                    continue
                inner = self._module.computations[callee]
                made = inner.instructions[inner.root]
                text = f"the root of %{callee}: %{made.name} = {_what(made)}"
                yield _hop("return", made, text, 1), (callee, inner.root, path)

    def _arguments(
        self, computation: Computation, row: Instruction, path: tuple[int, ...]
    ) -> Iterator[tuple[Hop, _Place | None]]:
        number = int(row.literal) if row.literal.strip().isdecimal() else 0
        for caller, at, _ in self._callers_of(computation.name):
            outer = self._module.computations[caller]
            call = outer.instructions[at]
            slot = 0 if call.op == "while" else number
            if call.op == "conditional":
                slot = [c for _, c in called(call, self._module)].index(
                    computation.name
                ) + 1
            if call.op not in _CALLS or slot >= len(call.operands):
                continue
            made = outer.instructions[call.operands[slot]]
            text = f"operand {slot} of %{call.name} ({call.op}): %{made.name} = {_what(made)}"
            yield _hop("parameter", made, text, 1), (caller, call.operands[slot], path)


def _hop(
    kind: HopKind, row: Instruction, text: str, depth: int, type_text: str = ""
) -> Hop:
    shown = without_layout(type_text or row.type)
    return Hop(kind, f"%{row.name}", row.op, text, shown, row.line, depth)


def _what(row: Instruction) -> str:
    if row.op == "parameter":
        return f"parameter({row.literal}), an input"
    if row.op == "constant":
        literal = row.literal if len(row.literal) <= _MAX_SHOWN else "..."
        return f"constant({literal})"
    return row.op


def _operand_name(row: Instruction, slot: int, computation: Computation) -> str:
    if row.operands[slot] >= 0:
        return computation.instructions[row.operands[slot]].name
    return row.operand_names[slot] if slot < len(row.operand_names) else "?"


def _parameter(computation: Computation, number: int) -> str | None:
    for row in computation.instructions:
        if row.op == "parameter" and row.literal.strip() == str(number):
            return row.name
    return None


def _split_types(type_text: str) -> list[str]:
    """Return the elements of a flat tuple type, or the type itself."""
    if not type_text.startswith("("):
        return [type_text]
    return re.findall(r"[a-z]\w*\[[^\[\]]*\](?:\{[^{}]*\})?", type_text)


def _dead(computation: Computation, *, is_excerpt: bool) -> list[Instruction]:
    rows = computation.instructions
    live = bytearray(len(rows))
    if is_excerpt:
        for row in rows:
            for operand in row.operands:
                if operand >= 0:
                    live[operand] = 1
    else:
        live[computation.root] = 1
        for position in range(len(rows) - 1, -1, -1):
            if live[position]:
                for operand in rows[position].operands:
                    live[operand] = 1
    return [row for row, is_live in zip(rows, live, strict=True) if not is_live]


def _unused(module: HloModule, computation: Computation, row: Instruction) -> Unused:
    types = [computation.instructions[o].type for o in row.operands if o >= 0]
    return Unused(
        name=f"%{row.name}",
        op=row.op,
        type=without_layout(row.type),
        literal="" if row.op == "parameter" else row.literal,
        bytes=type_bytes(row.type),
        flops=flops(row.op, row.type, types, row.attrs),
        site=module.origin(row.metadata).site,
        line=row.line,
    )


def _module_of(program: Any) -> tuple[HloModule, bool]:
    """Return a program as a module, and whether it is an excerpt of one."""
    if isinstance(program, str) and ("\n" in program or " = " in program):
        return _module_of_text(program)
    if isinstance(program, (str, Path)):
        try:
            text = Path(program).read_text("utf-8", "replace")
        except OSError as error:
            raise HloError(f"{program} cannot be read: {error.strerror}.") from error
        return _module_of_text(text)
    graph = graph_of(program)
    if isinstance(graph.source, HloModule):
        return graph.source, False
    return _module_of_graph(graph), False


def _module_of_text(text: str) -> tuple[HloModule, bool]:
    if _MODULE_LINE.search(text):
        try:
            found = modules(text)
        except HloSyntaxError:
            found = []
        if len(found) == 1:
            return found[0], False
    elif "func.func" in text or torch_ir.START.search(text):
        return _module_of_graph(parse(text)), False
    found = modules(text, partial=True)
    if not found or not found[-1].computations:
        raise HloSyntaxError(
            "the text has no instruction. One reads `%name = type op(...)`."
        )
    return found[-1], True


def _module_of_graph(graph: Graph) -> HloModule:
    """Return a graph in the form of a module of one computation."""
    rows = [
        Instruction(
            graph.names[node.id].lstrip("%"), node.op, node.type, node.operands,
            node.attrs, str(graph.numbers.get(node.id, node.literal)), "", 0,
        )
        for node in graph
    ]  # fmt: skip
    types = ", ".join(graph.types[node] for node in graph.outputs)
    rows.append(
        Instruction("return", "tuple", f"({types})", graph.outputs, "", "", "", 0)
    )
    index = {row.name: position for position, row in enumerate(rows)}
    main = Computation("main", 0, len(rows) - 1, rows, index)
    return HloModule(graph.name, {"main": main}, "main")
