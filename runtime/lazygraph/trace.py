"""The way of a value through a program, and what is computed for nothing."""

from __future__ import annotations

import difflib
import re
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from lazygraph.graph import HloError, needed
from lazygraph.normalize import VARIADIC, called, element_index
from lazygraph.read.open import module_of
from lazygraph.readable import Readable, share_text
from lazygraph.types import elements, flops, split_types, type_bytes, without_layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazygraph.read.hlo_module import Computation, HloModule, Instruction


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

    @property
    def price(self) -> str:
        """Its bytes and operations in words."""
        work = f" and {self.flops:,} FLOP" if self.flops else ""
        return f"{self.bytes:,} bytes{work} for nothing"


def unused_values(program: Any) -> list[Unused]:
    """Return the values that no result needs, those of most work first.

    Within loops, branches and other computations that are called, too; what such a value costs
    is described for one call.

    Raises:
        HloError: It is no program, or a text with several.
    """
    module, is_excerpt = module_of(program)
    found = [
        unused(module, computation, position)
        for computation in module.computations.values()
        for position in dead_rows(computation, is_excerpt=is_excerpt)
        if not _must_stand(module, computation, position)
    ]
    found.sort(key=lambda each: (-each.flops, -each.bytes))
    return found


def _must_stand(module: HloModule, computation: Computation, position: int) -> bool:
    """Return whether a dead row is an input of what is called, which takes it by number."""
    is_input = computation.instructions[position].op == "parameter"
    return is_input and computation.name != module.entry


def dead_rows(computation: Computation, *, is_excerpt: bool = False) -> list[int]:
    """Return the positions of what the result of a computation does not need."""
    rows = computation.instructions
    if is_excerpt:
        read = {operand for row in rows for operand in row.operands}
        return [position for position in range(len(rows)) if position not in read]
    live = needed(computation.operands, [computation.root])
    return [position for position, is_live in enumerate(live) if not is_live]


def unused(module: HloModule, computation: Computation, position: int) -> Unused:
    """Return what a row of a computation costs, of which nothing makes use."""
    row = computation.instructions[position]
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


HopKind = Literal[
    "value", "tuple", "element", "collective", "call", "parameter", "return", "consumer",
    "output",
]  # fmt: skip
_MAX_SHOWN = 40


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
        is_presumed: Whether some were matched by position only, since an excerpt
            does not show them.
    """

    name: str
    operands: int
    inputs: int
    operand_bytes: int
    input_bytes: int
    is_presumed: bool = False

    def __str__(self) -> str:
        size = share_text(self.input_bytes, self.operand_bytes)
        return (
            f"{self.inputs} of {self.operands} operands, {size}, are inputs computed by an "
            "earlier execution"
        )


@dataclass(frozen=True, slots=True)
class ValueTrace(Readable):
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
        waste: Of a value that no result needs, what it costs; else None.
    """

    name: str
    type: str
    what: str
    line: int
    hops: tuple[Hop, ...]
    producers: tuple[Hop, ...]
    sources: tuple[Sources, ...]
    is_excerpt: bool
    waste: Unused | None = None

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
        if not any(hop.kind in {"consumer", "output"} for hop in self.hops):
            where = " in this excerpt" if self.is_excerpt else ""
            lines.append(f"no consumer{where}")
        if self.waste is not None:
            lines.append(f"no result needs it: {self.waste.price}")
        for each in self.sources:
            lines.append(f"{each.name}: {each}")
            if each.is_presumed:
                lines.append(
                    "  (matched by position where the excerpt does not show them)"
                )
        return "\n".join(lines)


_MAX_DEPTH = 2_000
TUPLES = frozenset({"get-tuple-element", "getitem"})
# torch_xla calls its inputs p0.1, p1.2, ...
_INPUT_NAME = re.compile(r"p\d+\.\d+")


class Operands:
    """The operands in one module, or in an excerpt of one."""

    def __init__(self, module: HloModule, *, is_excerpt: bool) -> None:
        self._module = module
        self._is_excerpt = is_excerpt

    def sources(self, computation: Computation, position: int) -> Sources:
        """Return which operands of an instruction are inputs, and their sizes."""
        row = computation.instructions[position]
        types = self.types(computation, row)
        resolved = [
            self.resolve(computation, operand, ()) if operand >= 0 else None
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
                name = operand_name(whole, k, computation)
                inside = whole.operands[k]
                known = self.resolve(computation, inside, ()) if inside >= 0 else None
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
            if sibling.op not in TUPLES or element_index(sibling) != k:
                continue
            inside = sibling.operands[0] if sibling.operands else -1
            if inside < 0:
                continue
            whole = computation.instructions[inside]
            if whole.op == "tuple" and len(whole.operands) == len(row.operands):
                return whole
        return None

    def resolve(
        self, computation: Computation, position: int, path: tuple[int, ...]
    ) -> tuple[str | None, bool] | None:
        """Return the name of what computes a value, and whether that is an input."""
        for _ in range(_MAX_DEPTH):
            row = computation.instructions[position]
            if row.op in TUPLES and row.operands:
                path = (element_index(row), *path)
            elif row.op == "tuple" and path and path[0] < len(row.operands):
                following = row.operands[path[0]]
                if following < 0:
                    name = operand_name(row, path[0], computation)
                    return name, bool(_INPUT_NAME.fullmatch(name))
                position, path = following, path[1:]
                continue
            else:
                return row.name, row.op == "parameter" and self.is_entry(computation)
            if row.operands[0] < 0:
                return None
            position = row.operands[0]
        return None

    def is_entry(self, computation: Computation) -> bool:
        """Return whether its parameters are inputs of the program."""
        return self._is_excerpt or computation.name == self._module.entry

    def types(self, computation: Computation, row: Instruction) -> list[str]:
        """Return the operands' types, from the operands or from a sibling's tuple."""
        whole = self._tuple_of_siblings(computation, row)
        listed = split_types(whole.type) if whole is not None else []
        found = []
        for k, operand in enumerate(row.operands):
            if operand >= 0:
                found.append(computation.instructions[operand].type)
            else:
                found.append(listed[k] if k < len(listed) else "")
        return found


def operand_name(row: Instruction, slot: int, computation: Computation) -> str:
    """Return the name of an operand, also of one that an excerpt does not show."""
    if row.operands[slot] >= 0:
        return computation.instructions[row.operands[slot]].name
    return row.operand_names[slot] if slot < len(row.operand_names) else "?"


_MAX_HOPS = 2_000

_CALLS = frozenset({"call", "fusion", "while", "conditional", "async-start", "map"})
# An instruction of a computation, and which element of its result, outermost first.
_Point = tuple[str, int, tuple[int, ...]]


def trace_value(program: Any, name: str) -> ValueTrace:
    """Follow a value of a program through tuples, calls and fusions, both ways.

    Args:
        program: HLO or StableHLO text, whole or in excerpts as from a log or an issue; a
            path; a graph.
        name: The instruction, with or without `%`.

    Raises:
        HloError: There is no such instruction.
    """
    name = _name(name)
    module, is_excerpt = module_of(program, name)
    return _Tracer(module, is_excerpt=is_excerpt).trace(name)


def _name(given: object) -> str:
    if not isinstance(given, str):
        raise HloError(
            f"{given!r:.60} is no name of an instruction. Give what stands before its `=`, as a "
            "text such as '%add.3'."
        )
    return given.lstrip("%")


class _Tracer:
    def __init__(self, module: HloModule, *, is_excerpt: bool) -> None:
        self._module = module
        self._is_excerpt = is_excerpt
        self._operands = Operands(module, is_excerpt=is_excerpt)
        self._users: dict[str, list[list[tuple[int, int]]]] = {}
        self._callers: dict[str, list[tuple[str, int, str]]] | None = None

    def trace(self, name: str) -> ValueTrace:
        computation, position = self.find(name)
        row = computation.instructions[position]
        is_dead = not self._is_excerpt and position in dead_rows(computation)
        hops = tuple(self._forward((computation.name, position, ())))
        collectives = dict.fromkeys(
            hop.name for hop in hops if hop.kind == "collective"
        )
        if row.op in VARIADIC and len(row.operands) > 1:
            collectives = {f"%{row.name}": None, **collectives}
        return ValueTrace(
            name=f"%{row.name}",
            type=without_layout(row.type),
            what=row.op if row.op in TUPLES else self._what(computation, row),
            line=row.line,
            hops=hops,
            producers=tuple(self._backward(computation, position)),
            sources=tuple(
                self._operands.sources(*self.find(each.lstrip("%")))
                for each in collectives
            ),
            is_excerpt=self._is_excerpt,
            waste=unused(self._module, computation, position) if is_dead else None,
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
        near = [each for each in names if name and each.startswith(f"{name}.")][:3]
        near = near or difflib.get_close_matches(name, names[:50_000], n=3)
        hint = (
            f" Did you mean {' or '.join(f'%{each}' for each in near)}?" if near else ""
        )
        raise HloError(
            f"there is no instruction %{name} in {self._module.name}.{hint} Names stand "
            "before the `=` of a line."
        )

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

    def _forward(self, start: _Point) -> Iterator[Hop]:
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

    def _next(self, point: _Point, depth: int) -> Iterator[tuple[Hop, _Point | None]]:
        name, position, path = point
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
    ) -> Iterator[tuple[Hop, _Point | None]]:
        row = computation.instructions[user]
        name = computation.name
        count = len(row.operands)
        if row.op == "tuple":
            text = f"operand {slot} of %{row.name} ({count})"
            yield _hop("tuple", row, text, depth), (name, user, (slot, *path))
        elif row.op in TUPLES:
            index = element_index(row)
            if not path or path[0] == index:
                text = f"%{row.name} index={index}"
                yield _hop("element", row, text, depth), (name, user, path[1:])
        elif row.op in VARIADIC and count > 1:
            yield self._collective(computation, row, slot, depth), (name, user, (slot,))
        elif row.op in _CALLS and (inside := self._inside(row, slot, path)):
            for taken, after in inside:
                text = f"operand {slot} of %{row.name} ({row.op}) as {taken}"
                yield _hop("call", row, text, depth), after
        else:
            text = (
                f"operand {slot} of %{row.name} ({row.op}), {without_layout(row.type)}"
            )
            yield _hop("consumer", row, text, depth), None

    def _collective(
        self, computation: Computation, row: Instruction, slot: int, depth: int
    ) -> Hop:
        types = split_types(row.type)
        result = types[slot] if slot < len(types) else row.type
        operand = self._operands.types(computation, row)[slot]
        text = f"operand {slot} of %{row.name} → element {slot}"
        before, after = without_layout(operand), without_layout(result)
        text += f", {before} → {after}" if before != after else f", {after}"
        if row.op == "reduce-scatter" and elements(result):
            text += f", {elements(operand) // elements(result)} shards"
        return _hop("collective", row, text, depth, result)

    def _inside(
        self, row: Instruction, slot: int, path: tuple[int, ...]
    ) -> list[tuple[str, _Point]]:
        """Return the parameters that an operand becomes in what is called, in words too."""
        found = []
        for branch, (key, callee) in enumerate(called(row, self._module)):
            number = slot
            if row.op == "while":
                number = 0
            elif row.op == "conditional":
                if branch != slot - 1:  # operand 0 says which branch is taken
                    continue
                number = 0
            elif key not in {"to_apply", "calls", "called_computations"}:
                continue
            for at, each in enumerate(self._module.computations[callee].instructions):
                if each.op == "parameter" and each.literal.strip() == str(number):
                    found.append((f"%{each.name} of %{callee}", (callee, at, path)))
                    break
        return found

    def _returned(
        self, computation: Computation, position: int, path: tuple[int, ...], depth: int
    ) -> Iterator[tuple[Hop, _Point | None]]:
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
            turns = self._inside(call, 0, path) if call.op == "while" else ()
            for taken, after in turns:
                text = f"the next turn of %{call.name} (while) as {taken}"
                yield _hop("call", call, text, depth), after

    # --- backward --------------------------------------------------------------------

    def _backward(self, computation: Computation, position: int) -> Iterator[Hop]:
        row = computation.instructions[position]
        if row.op in TUPLES or row.op == "parameter" or row.op in _CALLS:
            yield from self._origin(computation, position)
            return
        for k, operand in enumerate(row.operands):
            if operand < 0:
                yield _not_shown(row, k, computation)
                continue
            made = self._made(computation, operand)
            text = f"operand {k}: {self._line(computation, made)}, {without_layout(made.type)}"
            yield _hop("value", made, text, 1)

    def _made(self, computation: Computation, position: int) -> Instruction:
        """Return what computes an operand, or which element it is of what makes several."""
        resolved = self._operands.resolve(computation, position, ())
        name = (resolved[0] if resolved else None) or ""
        operand = computation.instructions[position]
        made = computation.instructions[computation.index.get(name, position)]
        return operand if operand.op in TUPLES and made.type != operand.type else made

    def _line(self, computation: Computation, row: Instruction) -> str:
        return f"%{row.name} = {self._what(computation, row)}"

    def _what(self, computation: Computation, row: Instruction) -> str:
        if row.op == "parameter" and not self._operands.is_entry(computation):
            return f"parameter({row.literal}) of %{computation.name}"
        if row.op == "parameter":
            return f"parameter({row.literal}), an input"
        if row.op == "constant":
            literal = row.literal if len(row.literal) <= _MAX_SHOWN else "..."
            return f"constant({literal})"
        if row.op in TUPLES and row.operands and row.operands[0] >= 0:
            whole = computation.instructions[row.operands[0]]
            return f"element {element_index(row)} of %{whole.name} ({whole.op})"
        return row.op

    def _origin(self, computation: Computation, position: int) -> Iterator[Hop]:
        """Follow a value that is only handed on, to what computes it."""
        points: deque[_Point] = deque([(computation.name, position, ())])
        seen, reported = set(points), set[tuple[str, _Point | None]]()
        while points and len(seen) < _MAX_HOPS:
            name, position, path = points.popleft()
            for hop, after in self._before(name, position, path):
                if (hop.text, after) not in reported:
                    reported.add((hop.text, after))
                    yield hop
                if after is not None and after not in seen:
                    seen.add(after)
                    points.append(after)

    def _before(
        self, name: str, position: int, path: tuple[int, ...]
    ) -> Iterator[tuple[Hop, _Point | None]]:
        computation = self._module.computations[name]
        row = computation.instructions[position]
        if row.op in TUPLES and row.operands:
            index = element_index(row)
            if row.operands[0] >= 0:
                whole = computation.instructions[row.operands[0]]
                text = f"element {index} of %{whole.name} ({whole.op})"
                after = name, row.operands[0], (index, *path)
                yield _hop("element", whole, text, 1), after
        elif row.op == "tuple" and path and path[0] < len(row.operands):
            inside = row.operands[path[0]]
            if inside < 0:
                yield _not_shown(row, path[0], computation), None
                return
            made = computation.instructions[inside]
            text = f"operand {path[0]} of %{row.name}: {self._line(computation, made)}"
            is_last = made.op not in {"tuple", *TUPLES, *_CALLS}
            yield (
                _hop("value", made, text, 1),
                None if is_last else (name, inside, path[1:]),
            )
        elif row.op == "parameter" and name != self._module.entry:
            yield from self._arguments(computation, row, path)
        elif row.op in _CALLS:
            for key, callee in called(row, self._module):
                if key != "condition":
                    yield self._root(callee, path)
            if row.op == "while" and row.operands and row.operands[0] >= 0:
                hop, after = self._argument(computation, row, 0, path)
                yield replace(hop, text=f"{hop.text}, if it makes no turn"), after

    def _arguments(
        self, computation: Computation, row: Instruction, path: tuple[int, ...]
    ) -> Iterator[tuple[Hop, _Point | None]]:
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
            if call.operands[slot] >= 0:
                yield self._argument(outer, call, slot, path)
            for key, callee in called(call, self._module) if call.op == "while" else ():
                if key == "body":
                    turn = f"the turn of %{call.name} (while) before, "
                    yield self._root(callee, path, turn)

    def _argument(
        self,
        computation: Computation,
        call: Instruction,
        slot: int,
        path: tuple[int, ...],
    ) -> tuple[Hop, _Point]:
        operand = call.operands[slot]
        made = computation.instructions[operand]
        line = self._line(computation, made)
        text = f"operand {slot} of %{call.name} ({call.op}): {line}"
        return _hop("parameter", made, text, 1), (computation.name, operand, path)

    def _root(
        self, callee: str, path: tuple[int, ...], turn: str = ""
    ) -> tuple[Hop, _Point]:
        inner = self._module.computations[callee]
        made = inner.instructions[inner.root]
        text = f"{turn}the root of %{callee}: {self._line(inner, made)}"
        return _hop("return", made, text, 1), (callee, inner.root, path)


def _not_shown(row: Instruction, slot: int, computation: Computation) -> Hop:
    name = operand_name(row, slot, computation)
    return Hop("value", f"%{name}", "", f"%{name}, not shown", "", 0, 1)


def _hop(
    kind: HopKind, row: Instruction, text: str, depth: int, type_text: str = ""
) -> Hop:
    shown = without_layout(type_text or row.type)
    return Hop(kind, f"%{row.name}", row.op, text, shown, row.line, depth)
