"""Where a value goes and where it comes from, through tuples, calls and fusions."""

from __future__ import annotations

import difflib
import re
from collections import deque
from typing import TYPE_CHECKING, Any

from lazyviz.hlo.cost import elements, type_bytes
from lazyviz.hlo.errors import HloError
from lazyviz.hlo.module import without_layout
from lazyviz.hlo.normal import called
from lazyviz.hlo.programs import module_of
from lazyviz.hlo.see_through import VARIADIC, element_index
from lazyviz.hlo.trace_data import Hop, HopKind, Sources, ValueTrace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazyviz.hlo.module import Computation, HloModule, Instruction

_MAX_HOPS = 2_000
_MAX_SHOWN = 40
_TUPLES = frozenset({"get-tuple-element", "getitem"})
_CALLS = frozenset({"call", "fusion", "while", "conditional", "async-start", "map"})
# torch_xla calls its inputs p0.1, p1.2, ...
_INPUT_NAME = re.compile(r"p\d+\.\d+")

# An instruction of a computation, and which element of its result, outermost first.
_Place = tuple[str, int, tuple[int, ...]]


def trace_value(program: Any, name: str) -> ValueTrace:
    """Follow a value of a program through tuples, calls and fusions, both ways.

    Args:
        program: HLO or StableHLO text, whole or in excerpts as from a log or an issue; a
            path; a graph.
        name: The instruction, with or without `%`.

    Raises:
        HloError: There is no such instruction.
    """
    module, is_excerpt = module_of(program)
    return _Tracer(module, is_excerpt=is_excerpt).trace(name.lstrip("%"))


def operand_sources(program: Any, name: str) -> Sources:
    """Return which operands of an instruction are inputs of the program.

    Raises:
        HloError: There is no such instruction.
    """
    module, is_excerpt = module_of(program)
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
