"""StableHLO text to graphs. Any dialect will do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazygraph.graph import PARAMETER, Graph, GraphBuilder, HloSyntaxError, hashed
from lazygraph.read.hlo_module import closing, split_commas
from lazygraph.read.mlir_text import (
    REGIONS,
    SYMBOL,
    VALUE,
    Function,
    Locations,
    Statement,
    attributes_of,
    block,
    bound_by,
    dictionary,
    functions,
    hlo_type,
    in_usual_notation,
    literal_of,
    module_name,
    regions_of,
    result_types,
    split_type,
    uses,
    without_bound,
    without_locations,
)

if TYPE_CHECKING:
    from lazygraph.graph import Graph

GETITEM = "get-tuple-element"

_RESULTS = re.compile(r"((?:%[\w$.\-]+(?::\d+)?\s*,\s*)*%[\w$.\-]+(?::\d+)?)\s*=\s*")
_OP = re.compile(r'"?([A-Za-z_][\w.$\-]*)"?')
_NAMED = re.compile(r"%([\w$.\-]+)(?::(\d+))?")
_BLANK = re.compile(r"\s+")
_SIDE_EFFECT = re.compile(r"\bhas_side_effect\s*=\s*true")
_EFFECTS = frozenset({"outfeed", "send"})
_CALLS = frozenset({"call", "func.call"})
_SHARDINGS = ("sdy.sharding", "mhlo.sharding")
_DIALECTS = ("stablehlo.", "func.", "mhlo.")
_MAX_RESULTS = 1_000_000
_MAX_NESTING = 30
# Regions of up to so many letters are the same ones again and again.
_SMALL_REGION = 600


class FunctionReader:
    """Reads one function, or a region of an operation of the reader around it."""

    def __init__(
        self,
        module: MlirModule,
        function: Function,
        outer: FunctionReader | None = None,
    ) -> None:
        self._module = module
        self._function = function
        self._outer = outer
        self._nesting: int = 0 if outer is None else outer._nesting + 1  # noqa: SLF001
        self._builder = GraphBuilder(module.name, module.locations.origin)
        self._ids: dict[str, int] = {}
        self._kinds: dict[str, int] = {}
        # Results of operations with several, until somebody reads them.
        self._parts: dict[str, tuple[int, int, str]] = {}
        self._effects: list[int] = []
        self._returned: list[int] | None = None
        # What a region reads of what is around it: ids there, and here.
        self.captured: dict[int, int] = {}

    def read(self) -> Graph:
        """Return the function's graph.

        Raises:
            HloSyntaxError: It does not follow the format, or ends early.
        """
        self.walk()
        if self._returned is None:
            raise HloSyntaxError(
                f"the function @{self._function.name} has no `return` at its end. The text "
                "was cut off; save it again.",
                self._function.line,
            )
        return self._finished()

    def _finished(self) -> Graph:
        if self._effects:
            self._module.effectful.add(self._function.name)
        return self._builder.finish(self._ends(), source=self._module)

    def _ends(self) -> list[int]:
        """Return the results, and what has an effect and is needed by none of them."""
        returned = self._returned or []
        if not self._effects:
            return returned
        needed = self._needed(returned)
        return [*returned, *(each for each in self._effects if each not in needed)]

    def walk(self) -> None:
        """Read all operations."""
        for number, (name, type_text, location, notes) in enumerate(
            self._function.inputs()
        ):
            kind = self._builder.label(
                PARAMETER, hlo_type(type_text), self._notes(notes)
            )
            self._ids[name] = self._builder.add(
                kind, name=f"%{name}", origin=location, number=number
            )
        for statement in self._function.body:
            if not self._simple(statement):
                self._statement(statement)

    def _simple(self, statement: Statement) -> bool:
        """Add an operation that differs from an earlier one in names alone; else return False.

        Most lines are such ones: this is the time that reading takes.
        """
        text = statement.text
        parts = VALUE.split(text)
        skeleton = "%".join(parts[::3])
        builder, ids = self._builder, self._ids
        kind = self._kinds.get(skeleton)
        if kind is None:
            plan = self._module.plans.get(skeleton)
            if plan is None:
                return False
            kind = self._kinds[skeleton] = builder.label(*plan)
        read = parts[4::3]
        if "#" in text:
            read = [f"{n}{p or ''}" for n, p in zip(read, parts[5::3], strict=True)]
        try:
            operands = tuple([ids[each] for each in read])
        except (
            KeyError
        ):  # of several results, from around the region, or nowhere defined
            return False
        name = parts[1]
        self._define(name, len(builder.kinds), statement)
        builder.kinds.append(kind)
        builder.operands.append(operands)
        builder.names.append(f"%{name}")
        builder.origins.append(statement.location)
        return True

    def _notes(self, text: str) -> str:
        """Return of an input's notes how it is placed."""
        if "sharding" not in text:
            return ""
        said = dictionary(text)
        found = next((said[key] for key in _SHARDINGS if key in said), "")
        # The devices stand in place of their mesh's name.
        meshes = self._module.meshes
        placed = SYMBOL.sub(lambda name: meshes.get(name[1], name[0]), found)
        return f"sharding={placed}" if found else ""

    def _statement(self, statement: Statement) -> None:
        """Add an operation that may have regions and any number of results."""
        text = statement.text
        results = _RESULTS.match(text)
        op = _OP.match(text, results.end() if results else 0)
        if op is None:
            raise self._error(
                f"{text[:40]!r} is no operation. One reads `%name = dialect.op operands : type`.",
                statement,
            )
        rest = text[op.end() :]
        if op[1] == "return" or op[1].endswith(".return"):
            values, _ = split_type(without_locations(rest)[0])
            self._returned = [
                self._id(n, k, statement) for n, k in VALUE.findall(values)
            ]
            return
        names = self._result_names(results[1] if results else "", statement)
        self._operation(op[1], rest, names, statement)

    def _result_names(self, text: str, statement: Statement) -> list[tuple[str, int]]:
        """Return what names an operation gives to its results, and to how many each."""
        names = [(name, int(count or 1)) for name, count in _NAMED.findall(text)]
        if sum(each for _, each in names) > _MAX_RESULTS:
            raise self._error(
                f"an operation has more than {_MAX_RESULTS:,} results by its names, which no "
                "program has. The dump was edited.",
                statement,
            )
        return names

    def _operation(
        self, op: str, rest: str, names: list[tuple[str, int]], statement: Statement
    ) -> None:
        plain, regions = regions_of(rest)
        plain, location = without_locations(plain)
        location = location or statement.location
        body, type_text = split_type(plain)
        bound = bound_by(plain, self._knows) if regions else []
        operands = [self._id(n, k, statement) for n, k in uses(body, bound)]
        if _short(op) == "reduce" and "init:" in body:
            # Said pair by pair, `(%a init: %x), (%b init: %y)`; an operand list is a, b, x, y.
            operands = operands[0::2] + operands[1::2]
            bound = bound[0::2] + bound[1::2]
        inner, captured = self._inner(op, statement, regions, bound)
        if bound:
            body = without_bound(body)
        attrs, literal = self._attrs(op, body, statement)
        count = sum(each for _, each in names)
        types = result_types(type_text, count)
        whole = types[0] if len(types) == 1 else f"({', '.join(types)})"
        label = _short(op), whole, ", ".join(filter(None, (attrs, *inner))), literal
        made = self._builder.add(
            self._builder.label(*label),
            [*operands, *captured],
            name=f"%{names[0][0]}" if names else "",
            origin=location,
        )
        if _has_effect(label[0], body) or self._calls_effect(label[2]):
            self._effects.append(made)
        elif names and count == 1 and not regions and not bound:
            self._module.plans["%".join(VALUE.split(statement.text)[::3])] = label
        self._name_results(names, types, made, statement)

    def _calls_effect(self, attrs: str) -> bool:
        return bool(self._module.effectful) and any(
            name in self._module.effectful for _, name in self._module.called_in(attrs)
        )

    def _name_results(
        self,
        names: list[tuple[str, int]],
        types: list[str],
        made: int,
        statement: Statement,
    ) -> None:
        if len(names) == 1 and names[0][1] == 1:
            self._define(names[0][0], made, statement)
            return
        index = 0
        for name, count in names:
            for part in range(count):
                shown = f"{name}#{part}" if count > 1 else name
                self._define(shown, -1, statement)
                type_text = types[index] if index < len(types) else ""
                self._parts[shown] = (made, index, type_text)
                index += 1

    def _define(self, name: str, node: int, statement: Statement) -> None:
        if name in self._ids or name in self._parts:
            raise self._error(
                f"%{name} is defined a second time in @{self._function.name}. Two texts may "
                "have been mixed.",
                statement,
            )
        if node >= 0:
            self._ids[name] = node

    def _knows(self, name: str) -> bool:
        shown = name, f"{name}#0"
        if any(each in self._ids or each in self._parts for each in shown):
            return True
        return self._outer is not None and self._outer._knows(name)  # noqa: SLF001

    def _id(self, name: str, part: str, statement: Statement) -> int:
        found = self._lookup(name, part)
        if found is None:
            raise self._error(
                f"%{name}{part} is used before it is defined. The text was cut or edited.",
                statement,
                max(0, statement.text.find(f"%{name}{part}")),
            )
        return found

    def _lookup(self, name: str, part: str) -> int | None:
        for shown in (f"{name}{part}", f"{name}#0" if not part else name):
            if shown in self._ids:
                return self._ids[shown]
            if shown in self._parts:
                part_of = self._parts.pop(shown)
                node = self._builder.add_result(*part_of, name=f"%{shown}", op=GETITEM)
                self._ids[shown] = node
                return node
        return self._capture(name, part)

    def _capture(self, name: str, part: str) -> int | None:
        """Return the input that stands for a value around this region, None if there is none."""
        if self._outer is None:
            return None
        outside = self._outer._lookup(name, part)  # noqa: SLF001
        if outside is None:
            return None
        if outside not in self.captured:
            kind = self._builder.label(PARAMETER, self._outer.type_of(outside))
            self.captured[outside] = self._builder.add(kind, name=f"%{name}{part}")
        return self.captured[outside]

    def type_of(self, node: int) -> str:
        """Return the type of a node."""
        return self._builder.labels[self._builder.kinds[node]].type

    def _inner(
        self,
        op: str,
        statement: Statement,
        regions: list[tuple[str, int]],
        bound: list[tuple[str, str, str]],
    ) -> tuple[list[str], list[int]]:
        """Return digests of the regions, and the nodes that they take from outside."""
        if not regions:
            return [], []
        if self._nesting >= _MAX_NESTING:
            raise self._error(
                f"regions nest more than {_MAX_NESTING} deep, which no program does.",
                statement,
            )
        keys = REGIONS.get(_short(op), ())
        inputs = self._bound_inputs(bound, statement)
        said: list[str] = []
        order: dict[int, int] = {}
        for number, (text, line) in enumerate(regions):
            key = keys[number] if number < len(keys) else f"region{number}"
            said.append(
                f"{key}={self._region(key, text, line, statement, inputs, order)}"
            )
        return said, list(order)

    def _bound_inputs(
        self, bound: list[tuple[str, str, str]], statement: Statement
    ) -> list[tuple[str, str, str, str]]:
        """Return the values that the head of an operation gives to its regions."""
        found = []
        for name, value, type_text in bound:
            if value:
                plain, mark, part = value.partition("#")
                node = self._id(plain, f"{mark}{part}", statement)
                type_text = self.type_of(node)  # noqa: PLW2901
            found.append((name, type_text, "", ""))
        return found

    def _region(
        self,
        key: str,
        text: str,
        line: int,
        statement: Statement,
        inputs: list[tuple[str, str, str, str]],
        order: dict[int, int],
    ) -> str:
        short = None
        if len(text) <= _SMALL_REGION and not inputs:
            short = self._without_names(text)
            if short in self._module.known_regions:
                return self._module.known_regions[short]
        name = VALUE.match(statement.text)
        given, rows = block(text, statement.line + line)
        function = Function(
            f"{self._function.name}.{name[1] if name else statement.line}.{key}",
            "",
            rows,
            statement.line + line,
            given=tuple(given or inputs),  # what the head gives it where no block does
        )
        if any(row.text.startswith("^") for row in function.body):
            # Several blocks with jumps between them, which no graph has.
            return hashed(_BLANK.sub(" ", VALUE.sub("%", text)))
        reader = FunctionReader(self._module, function, self)
        graph = reader.region(order)
        digest = digest_of(graph)
        self._module.keep_region(digest, graph.name, graph)
        has_effect = function.name in self._module.effectful
        if short is not None and not reader.captured and not has_effect:
            self._module.known_regions[short] = digest
        return digest

    def region(self, order: dict[int, int]) -> Graph:
        """Return the graph of a region; the nodes outside that it reads join `order`."""
        self._builder.name = self._function.name
        self.walk()
        self._returned = self._returned or []
        count = len(self._function.inputs())
        inside = {here: outside for outside, here in self.captured.items()}
        for here in self._needed(self._ends()):
            if here in inside:
                number = order.setdefault(inside[here], len(order))
                self._builder.numbers[here] = count + number
        return self._finished()

    def _needed(self, ends: list[int]) -> dict[int, None]:
        """Return what some nodes need, in an order that does not depend on that of the lines."""
        operands = self._builder.operands
        seen: dict[int, None] = {}
        stack = ends[::-1]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen[node] = None
                stack.extend(reversed(operands[node]))
        return seen

    def _without_names(self, text: str) -> str | None:
        """Return a region's text with its names numbered; None if it reads what is around it."""
        names: dict[str, str] = {}
        for found in VALUE.finditer(text):
            if found[1] not in names:
                if self._knows(found[1]):
                    return None
                names[found[1]] = f"%{len(names)}"
        return VALUE.sub(lambda found: names[found[1]] + (found[2] or ""), text)

    def _attrs(self, op: str, body: str, statement: Statement) -> tuple[str, str]:
        """Return what is left of a statement without operands and types, and a literal."""
        if "constant" in op:
            literal = literal_of(body)
            if literal is not None:
                return "", literal

        def symbol(found: re.Match[str]) -> str:
            name = found[1].strip('"')
            if op in _CALLS or name in self._module.functions:
                return self._module.fingerprint(name, statement)
            return self._module.meshes.get(name) or f"@{found[1]}"

        text = attributes_of(op, VALUE.sub("%", body), symbol)
        if op in _CALLS:
            return "calls=" + ",".join(re.findall(r"#[0-9a-f]{16}", text)), ""
        return text, ""

    def _error(
        self, message: str, statement: Statement, shift: int = 0
    ) -> HloSyntaxError:
        return HloSyntaxError(message, statement.line, statement.column + shift)


def digest_of(graph: Graph) -> str:
    """Return a digest of a graph that is the same whatever the names and order of its lines."""
    digests: list[str] = []
    for node, row in enumerate(graph.operands):
        number = graph.numbers.get(node, "")
        operands = "".join([digests[each] for each in row])
        digests.append(hashed(f"{tuple(graph.label(node))}{number}{operands}"))
    return hashed("".join([digests[each] for each in graph.outputs]))


def _short(op: str) -> str:
    for dialect in _DIALECTS:
        if op.startswith(dialect):
            return op[len(dialect) :]
    return op


def _has_effect(op: str, body: str) -> bool:
    return op in _EFFECTS or (
        "has_side_effect" in body and _SIDE_EFFECT.search(body) is not None
    )


_MAX_CALLS = 60
_DIGEST = re.compile(r"(\w+)\s*=\s*(#[0-9a-f]{16})")
_MESH = re.compile(r"^\s*sdy\.mesh @([\w$.\-]+) = (<[^\n{]*>)", re.MULTILINE)
_HEADER = re.compile(
    r'^\s*"?(?:builtin\.)?module"?[^\n{]*?attributes\s*\{', re.MULTILINE
)
_SETTINGS = {
    "mhlo.num_partitions": "num_partitions",
    "mhlo.num_replicas": "replica_count",
}


class MlirModule:
    """A module, which knows the functions and regions that its operations call.

    Attributes:
        name: Of the module.
        functions: By name.
        meshes: By name the devices that shardings speak of.
        locations: What its `loc(...)` stand for.
        effectful: Functions and regions in which something has an effect.
        known_regions: Digests of regions by their text without names.
        plans: For readers: what lines say that differ in the names of values alone.
    """

    def __init__(self, text: str) -> None:
        text = in_usual_notation(text)
        self.name = module_name(text)
        self.functions = {each.name: each for each in functions(text)}
        self.meshes = dict(_MESH.findall(text)) if "sdy.mesh" in text else {}
        self.locations = Locations(text)
        self.plans: dict[str, tuple[str, str, str, str] | None] = {}
        self.known_regions: dict[str, str] = {}
        self.effectful: set[str] = set()
        head = _HEADER.search(text)
        start = head.end() - 1 if head else 0
        self._header = dictionary(text[start : closing(text, start)]) if head else {}
        self._fingerprints: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._regions: dict[str, Graph] = {}
        self._under_way: list[str] = []

    def graph(self, name: str = "") -> Graph:
        """Return the graph of a function or region, by default of `main` or the first public one."""
        if name in self._regions:
            return self._regions[name]
        function = self.functions.get(name) if name else self._main()
        if function is None:
            missing = f"function @{name}" if name else "function"
            raise HloSyntaxError(
                f"the module {self.name} has no {missing}. A program has "
                "a `func.func @main`.",
            )
        return FunctionReader(self, function).read()

    def _main(self) -> Function | None:
        found = self.functions.get("main")
        with_body = (each for each in self.functions.values() if each.body)
        return found or next(with_body, None)

    @property
    def settings(self) -> dict[str, str]:
        """What the module says of how it is compiled and run, by the names that HLO has for it."""
        found = {
            _SETTINGS[key]: value.partition(":")[0].strip()
            for key, value in self._header.items()
            if key in _SETTINGS
        }
        if self.meshes:
            found["mesh"] = ", ".join(sorted(self.meshes.values()))
        main = self._main()
        placed = {} if main is None else _result_shardings(main.results)
        if placed:
            found["output_shardings"] = ", ".join(
                f"{number}: {sharding}" for number, sharding in placed.items()
            )
        return found

    def donated(self) -> list[int]:
        """Return the numbers of the inputs that give up their memory."""
        main = self._main()
        if main is None:
            return []
        return [
            number
            for number, (_, _, _, notes) in enumerate(main.inputs())
            if {"tf.aliasing_output", "jax.buffer_donor"} & dictionary(notes).keys()
        ]

    def fingerprint(self, name: str, statement: Statement) -> str:
        """Return a digest of a function without names, order and dead code."""
        known = self._fingerprints.get(name)
        if known is not None:
            return known
        if name not in self.functions:
            raise HloSyntaxError(
                f"@{name} is called and not defined. The text was cut off; save it again.",
                statement.line,
                statement.column,
            )
        if name in self._under_way or len(self._under_way) > _MAX_CALLS:
            what = f"@{name} calls itself, which StableHLO does not allow."
            if name not in self._under_way:
                what = f"@{name} is called {_MAX_CALLS} calls deep, which no program needs."
            raise HloSyntaxError(
                what,
                statement.line,
                statement.column,
            )
        self._under_way.append(name)
        try:
            found = self._fingerprints[name] = digest_of(self.graph(name))
        finally:
            self._under_way.pop()
        self._names.setdefault(found, name)
        return found

    def keep_region(self, digest: str, name: str, graph: Graph) -> None:
        """Remember a region, for those who look into the operation that has it."""
        if digest not in self._names:
            self._names[digest] = name
            self._regions[name] = graph

    def called_in(self, attrs: str) -> list[tuple[str, str]]:
        """Return the functions and regions that some attributes name, with the attribute."""
        found = _DIGEST.findall(attrs)
        return [(key, self._names[each]) for key, each in found if each in self._names]


def _result_shardings(results: str) -> dict[int, str]:
    """Return for the results that say so where they are placed."""
    if "sharding" not in results:
        return {}
    inside = results.strip()
    if inside.startswith("("):
        inside = inside[1:-1]
    found = {}
    for number, part in enumerate(split_commas(inside)):
        _, brace, notes = part.partition("{")
        said = dictionary(brace + notes) if brace else {}
        sharding = said.get("sdy.sharding") or said.get("mhlo.sharding")
        if sharding:
            found[number] = sharding
    return found
