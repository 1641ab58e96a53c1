"""StableHLO text to graphs. Any dialect in the usual notation will do."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from lazyviz.hlo.errors import HloSyntaxError
from lazyviz.hlo.graph import PARAMETER, Graph, GraphBuilder
from lazyviz.hlo.mlir_text import (
    Function,
    Locations,
    Statement,
    closing,
    functions,
    module_name,
    without_locations,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

GETITEM = "get-tuple-element"

_RESULTS = re.compile(r"((?:%[\w$.\-]+(?::\d+)?\s*,\s*)*%[\w$.\-]+(?::\d+)?)\s*=\s*")
_OP = re.compile(r'"?([A-Za-z_][\w.$\-]*)"?')
_VALUE = re.compile(r"%([\w$.\-]+)(#\d+)?")
_ARGUMENT = re.compile(r"%([\w$.\-]+)\s*:\s*")
_CALLEE = re.compile(r'@("(?:[^"\\]|\\.)*"|[\w$.\-]+)')
_TENSOR = re.compile(r"tensor<([^<>]*)>")
_LITERAL = re.compile(r"dense(?:_resource)?<(.*)>\s*(?::|$)", re.DOTALL)
_NOISE = re.compile(
    r"\b(?:result_layout|operand_layouts|result_layouts|xla_shape|channel_handle"
    r'|mhlo\.[\w.]+|channel_id|backend_config)\s*=\s*(?:"(?:[^"\\]|\\.)*"|\{[^{}]*\}'
    r"|\[[^\[\]]*\]|#?[\w.]+<[^<>]*>|[^,{}\s]+)(?:\s*:\s*[\w<>.]+)?\s*,?\s*"
)
_DTYPES = {"i1": "pred", "i8": "s8", "i16": "s16", "i32": "s32", "i64": "s64",
           "ui8": "u8", "ui16": "u16", "ui32": "u32", "ui64": "u64"}  # fmt: skip
_BLANK = re.compile(r"\s+")
# What stays of operands and regions that were taken out.
_PLACES = re.compile(r"%\s*,\s*|%")
_EMPTY = re.compile(r"\{\s*\}|<\{\s*\}>|\((?:[\s,=]|init:)*\)")
_RETURNS = frozenset({"return", "func.return", "stablehlo.return"})
_CALLS = frozenset({"call", "func.call"})
_DIGEST_BYTES = 8


class MlirModule:
    """A module, which knows the functions that its main function calls.

    Attributes:
        name: Of the module.
        functions: By name.
    """

    def __init__(self, text: str, source: str = "") -> None:
        self.name = module_name(text)
        self.functions = {each.name: each for each in functions(text, source)}
        self._source = source
        self._locations = Locations(text)
        self._fingerprints: dict[str, str] = {}
        self._under_way: list[str] = []

    def graph(self, name: str = "") -> Graph:
        """Return the graph of a function, by default `main` or the first public one."""
        function = self.functions.get(name) if name else self._main()
        if function is None:
            raise HloSyntaxError(
                f"the module {self.name} has no function {'@' + name if name else ''}. "
                "A program has a `func.func @main`.",
                source=self._source,
            )
        return _FunctionReader(self, function, self._locations, self._source).read()

    def _main(self) -> Function | None:
        found = self.functions.get("main")
        with_body = (each for each in self.functions.values() if each.body)
        return found or next(with_body, None)

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
                self._source,
            )
        if name in self._under_way or len(self._under_way) > 100:  # noqa: PLR2004
            raise HloSyntaxError(
                f"@{name} calls itself, which StableHLO does not allow.",
                statement.line,
                statement.column,
                self._source,
            )
        self._under_way.append(name)
        try:
            found = self._fingerprints[name] = _digest(self.graph(name))
        finally:
            self._under_way.pop()
        return found

    def callees(self, graph: Graph, node: int) -> list[tuple[str, str]]:
        """Return what a node calls: pairs of the attribute and a function's name."""
        names = {fingerprint: name for name, fingerprint in self._fingerprints.items()}
        found = re.findall(r"#[0-9a-f]+", graph.label(node).attrs)
        return [("calls", names[each]) for each in found if each in names]


_MAX_RESULTS = 1_000_000


class _FunctionReader:
    def __init__(
        self, module: MlirModule, function: Function, locations: Locations, source: str
    ) -> None:
        self._module = module
        self._function = function
        self._source = source
        self._builder = GraphBuilder(module.name, locations.origin)
        self._ids: dict[str, int] = {}
        self._several: dict[str, list[str]] = {}
        self._types: dict[str, str] = {}

    def read(self) -> Graph:
        for number, (name, type_text, location) in enumerate(
            _arguments(self._function.arguments)
        ):
            kind = self._builder.label(PARAMETER, hlo_type(type_text))
            self._ids[name] = self._builder.add(
                kind, name=f"%{name}", origin=location, number=number
            )
        outputs = None
        for statement in self._function.body:
            outputs = self._statement(statement)
        if outputs is None:
            raise HloSyntaxError(
                f"the function @{self._function.name} has no `return` at its end. The text "
                "was cut off; save it again.",
                self._function.line,
                source=self._source,
            )
        return self._builder.finish(outputs, source=self._module)

    def _statement(self, statement: Statement) -> list[int] | None:
        """Add an operation; return the ids of the results if it returns them."""
        text = statement.text
        results = _RESULTS.match(text)
        op = _OP.match(text, results.end() if results else 0)
        if op is None:
            raise HloSyntaxError(
                f"{text[:40]!r} is no operation. One reads `%name = dialect.op operands : type`.",
                statement.line,
                statement.column,
                self._source,
            )
        rest = text[op.end() :]
        if op[1] in _RETURNS:
            return [self._id(name, k, statement) for name, k in _VALUE.findall(rest)]
        plain, regions = _regions(rest)
        body, type_text = _split_type(plain)
        used = _uses(body, self._ids)
        operands = [self._id(name, part, statement) for name, part in used]
        inner, captured = self._inner(regions)
        operands += [self._id(name, "", statement) for name in captured]
        attrs, literal = self._attrs(op[1], body, statement)
        shown = ", ".join(part for part in (attrs, *inner) if part)
        names = _result_names(results[1] if results else "")
        if sum(count for _, count in names) > _MAX_RESULTS:
            raise HloSyntaxError(
                f"an operation has more than {_MAX_RESULTS:,} results by its names, which no "
                "program has. The dump was edited.",
                statement.line,
                statement.column,
                self._source,
            )
        types = _result_types(type_text, sum(count for _, count in names))
        whole = types[0] if len(types) == 1 else f"({', '.join(types)})"
        kind = self._builder.label(_short(op[1]), whole, shown, literal)
        shown_name = f"%{names[0][0]}" if names else ""
        made = self._builder.add(
            kind, operands, name=shown_name, origin=statement.location
        )
        self._name_results(names, types, made, statement)
        return None

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
                kind = self._builder.label(
                    GETITEM,
                    types[index] if index < len(types) else "",
                    f"index={index}",
                )
                shown = f"{name}#{part}" if count > 1 else name
                node = self._builder.add(
                    kind, [made], name=f"%{shown}", origin=statement.location
                )
                self._define(shown, node, statement)
                index += 1

    def _define(self, name: str, node: int, statement: Statement) -> None:
        if name in self._ids:
            raise HloSyntaxError(
                f"%{name} is defined a second time in @{self._function.name}. Two texts may "
                "have been mixed.",
                statement.line,
                statement.column,
                self._source,
            )
        self._ids[name] = node

    def _id(self, name: str, part: str, statement: Statement) -> int:
        for shown in (f"{name}{part}", f"{name}#0" if not part else name):
            if shown in self._ids:
                return self._ids[shown]
        raise HloSyntaxError(
            f"%{name}{part} is used before it is defined. The text was cut or edited.",
            statement.line,
            statement.column + max(0, statement.text.find(f"%{name}{part}")),
            self._source,
        )

    def _inner(self, regions: list[str]) -> tuple[list[str], list[str]]:
        """Return digests of the regions, and the names that they take from outside."""
        digests = []
        captured: dict[str, None] = {}
        for region in regions:
            names: dict[str, str] = {}

            def renamed(found: re.Match[str], names: dict[str, str] = names) -> str:
                name = found[1]
                if name in self._ids or f"{name}#0" in self._ids:
                    captured[f"{name}{found[2] or ''}"] = None
                    return f"%^{list(captured).index(f'{name}{found[2] or str()}')}"
                number = names.setdefault(name, str(len(names)))
                return f"%{number}{found[2] or ''}"

            text = _BLANK.sub(" ", _VALUE.sub(renamed, region))
            text = _CALLEE.sub(lambda found: self._callee(found, Statement("")), text)
            digests.append(f"region={_hash(text)}")
        return digests, list(captured)

    def _callee(self, found: re.Match[str], statement: Statement) -> str:
        return self._module.fingerprint(found[1].strip('"'), statement)

    def _attrs(self, op: str, body: str, statement: Statement) -> tuple[str, str]:
        """Return what is left of a statement without operands and types, and a literal."""
        if "constant" in op:
            found = _LITERAL.search(body)
            if found:
                return "", _BLANK.sub(" ", found[1].strip())
        text = _NOISE.sub("", body) if "=" in body else body
        if op in _CALLS:
            text = "calls=" + ",".join(
                self._callee(found, statement) for found in _CALLEE.finditer(text)
            )
            return text, ""
        text = _BLANK.sub(" ", _VALUE.sub("%", text))
        return _EMPTY.sub("", _PLACES.sub("", text)).strip(" ,"), ""


def hlo_type(text: str) -> str:
    """Return an MLIR type as HLO writes it.

    Example:
        >>> hlo_type("tensor<2x3xf32>"), hlo_type("tensor<i1>"), hlo_type("!stablehlo.token")
        ('f32[2,3]', 'pred[]', '!stablehlo.token')
    """
    return _TENSOR.sub(_tensor, text.strip())


def _tensor(found: re.Match[str]) -> str:
    sizes = found[1].partition(",")[0].strip().split("x")
    dtype = sizes.pop()
    return f"{_DTYPES.get(dtype, dtype)}[{','.join(sizes)}]"


def _arguments(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and location of each argument of a function."""
    found = list(_ARGUMENT.finditer(text))
    for number, each in enumerate(found):
        end = found[number + 1].start() if number + 1 < len(found) else len(text)
        part, location = without_locations(text[each.end() : end].rstrip(", \n"))
        yield each[1], part.split("{")[0].strip(), location


def _regions(text: str) -> tuple[str, list[str]]:
    """Return a statement without its regions, and the regions.

    A region is a pair of braces with operations in it.
    """
    if "\n" not in text or "{" not in text:
        return text, []
    parts, regions, at = [], [], 0
    while True:
        start = text.find("{", at)
        if start < 0:
            break
        end = closing(text, start)
        if "\n" in text[start:end]:
            parts.append(text[at:start])
            regions.append(text[start:end])
        else:
            parts.append(text[at:end])
        at = end
    return "".join([*parts, text[at:]]), regions


def _uses(body: str, known: dict[str, int]) -> list[tuple[str, str]]:
    """Return the values that a statement reads; names that it binds itself are none."""
    bound = set(re.findall(r"%([\w$.\-]+)\s*(?:=|:\s*tensor)", body))
    return [
        (name, part)
        for name, part in _VALUE.findall(body)
        if name not in bound or name in known
    ]


def _split_type(text: str) -> tuple[str, str]:
    """Return a statement before and after its type."""
    depth = 0
    cut = -1
    for found in re.finditer(r'"(?:[^"\\]|\\.)*"|->|[()\[\]{}<>]|\s:\s', text):
        mark = found[0]
        if mark in {"(", "[", "{", "<"}:
            depth += 1
        elif mark in {")", "]", "}", ">"}:
            depth -= 1
        elif mark.strip() == ":" and depth == 0:
            cut = found.start()
    return (text, "") if cut < 0 else (text[:cut], text[cut + 3 :])


def _result_types(text: str, count: int) -> list[str]:
    """Return the types of `count` results."""
    _, arrow, results = text.rpartition("->")
    shown = (results if arrow else text).strip()
    shown = re.split(r"\n| cond\b| do\b| reducer\b", shown)[0].strip()
    if shown.startswith("(") and shown.endswith(")"):
        shown = shown[1:-1]
    types = [hlo_type(part) for part in _split_commas(shown)]
    # `select` and its like name several operands' types, the result's last.
    return types[-count:] if types and count else ["()"]


def _split_commas(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for found in re.finditer(r"[<({\[]|[>)}\]]|,", text):
        mark = found[0]
        if mark in "<({[":
            depth += 1
        elif mark in ">)}]":
            depth -= 1
        elif depth == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    parts.append(text[start:])
    return [part for part in parts if part.strip()]


def _result_names(text: str) -> list[tuple[str, int]]:
    found = re.findall(r"%([\w$.\-]+)(?::(\d+))?", text)
    return [(name, int(count or 1)) for name, count in found]


def _short(op: str) -> str:
    for dialect in ("stablehlo.", "func."):
        if op.startswith(dialect):
            return op[len(dialect) :]
    return op


def _digest(graph: Graph) -> str:
    digests: list[str] = []
    for node, row in enumerate(graph.operands):
        number = graph.numbers.get(node, "")
        operands = "".join([digests[each] for each in row])
        digests.append(_hash(f"{tuple(graph.label(node))}{number}{operands}"))
    return _hash("".join([digests[each] for each in graph.outputs]))


def _hash(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return "#" + hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
