"""HLO modules as they are written: computations, instructions, tuples and all."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from lazygraph.graph import HloSyntaxError, InheritedOrigin, Origin

if TYPE_CHECKING:
    from collections.abc import Sequence

LITERAL_OPS = frozenset({"constant", "parameter", "iota"})
# What begins an instruction, up to its type.
START = re.compile(r"\s*(ROOT\s+)?%?([\w.\-]+)\s*=\s*")
NAME = re.compile(r"%([\w.\-]+)")
PLAIN_NAME = re.compile(r"[\w.\-]+")
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
METADATA = re.compile(
    r',?\s*metadata=\{((?:[^"{}]|"[^"\\]*(?:\\.[^"\\]*)*"|\{[^{}]*\})*)\}'
)
# Blanks that are not one space alone.
_UNEVEN = re.compile(r"[^\S ]\s*| \s+")
_TYPED = re.compile(r"(?<![\w.\-])[a-z]\w*\[[^\[\]]*\](?:\{[^{}]*\})?")


def instruction_count(text: str) -> int:
    r"""Return how many instructions stand in an HLO text.

    Example:
        >>> instruction_count("ENTRY e {\n  %a = f32[] parameter(0)\n  ROOT b = f32[] negate(a)\n}")
        2
    """
    lines = text.split("\n")
    return sum(1 for line in lines if line[:1].isspace() and START.match(line))


def without_metadata(rest: str) -> tuple[str, str]:
    """Return the attributes without the metadata, and the metadata."""
    before, _, after = rest.partition(", metadata={")
    plain, brace, behind = after.partition("}")
    if brace and "{" not in plain and plain.count('"') % 2 == 0:
        return (before + behind if behind else before), plain
    cut = METADATA.search(rest)
    if cut is None:
        return rest, ""
    return rest[: cut.start()] + rest[cut.end() :], cut[1]


def evenly_spaced(text: str) -> str:
    r"""Return a text with one space where it has blanks, and none around it.

    A literal may have millions of single spaces, which stay where they are.

    Example:
        >>> evenly_spaced(" {1,  2,\n 3} "), evenly_spaced("a\tb")
        ('{1, 2, 3}', 'a b')
    """
    return _UNEVEN.sub(" ", text.strip())


def operand_names(body: str) -> list[str]:
    """Return the names between an instruction's parentheses, however they are written.

    Example:
        >>> operand_names("f32[2]{0} %x, s32[] %y"), operand_names("f32[2]{0} x, y.1")
        (['x', 'y'], ['x', 'y.1'])
        >>> operand_names("/*index=0*/%x, /*index=1*/%y")
        ['x', 'y']
    """
    if "/*" in body:
        body = COMMENT.sub("", body)
    if "%" in body:
        return NAME.findall(body)
    if "[" in body:
        body = _TYPED.sub(" ", body)
    if "(" in body:
        body = re.sub(r"\([^()]*\)", " ", body)
    return [
        found[-1] for part in body.split(",") if (found := PLAIN_NAME.findall(part))
    ]


# What these say in every program that is printed with attributes.
_TELLING = {
    "get-tuple-element": " index=", "broadcast": " dimensions=", "transpose": " dimensions=",
    "slice": " slice=", "compare": " direction=", "concatenate": " dimensions=",
    "fusion": " kind=", "reduce": " dimensions=", "dot": "_dims=",
}  # fmt: skip


def lacks_attributes(module: HloModule) -> bool:
    """Return whether a module was printed without attributes but for what is called."""
    told = [form for form in module.forms if form.op in _TELLING]
    return bool(told) and not any(_TELLING[form.op] in form.attrs for form in told)


_QUOTED = re.compile(r'([^"\\]*(?:\\.[^"\\]*)*)')
_NUMBER = re.compile(r"\d+")
_ESCAPE = re.compile(r"\\(.)")
# Stands before the metadata of an instruction that has another's.
INHERITED = "inherited "
# How a dump of the runtime says so.
_WRITTEN_INHERITED = 'op_type="inherited"'
_PROGRAM_PART = re.compile(r"(?:jit|pjit)\(.*\)|lazyrt_graph|")
# What jax writes around the scope of an operation that it has derived another of.
_DERIVED = re.compile(r"(jvp|vmap|transpose)\((.*)\)")


class Instruction(NamedTuple):
    """One instruction.

    Attributes:
        name: Without `%`.
        op: Opcode.
        type: Type of its result as written, layout included.
        operands: Positions of its operands in the computation; -1 for one that an excerpt
            does not show.
        operand_names: Their names, where an excerpt does not show them.
        attrs: The rest of the line as written, without metadata.
        literal: What stands between the parentheses of a constant or parameter.
        metadata: What stands between the braces of `metadata={...}`.
        line: Line of the text, from 1.
    """

    name: str
    op: str
    type: str
    operands: tuple[int, ...]
    attrs: str
    literal: str
    metadata: str
    line: int
    operand_names: tuple[str, ...] = ()


class Form(NamedTuple):
    """What instructions that differ in name, operands and metadata alone share.

    Attributes:
        op, type, attrs, literal: As those of an `Instruction`.
    """

    op: str
    type: str
    attrs: str = ""
    literal: str = ""


@dataclass(slots=True)
class Computation:
    """The instructions of one computation, operands before users.

    They are kept as columns, one entry for each instruction. `instructions` makes rows of
    them for who reads one by one.

    Attributes:
        name: Without `%`.
        line: Line of its header in the text.
        root: Position of the root instruction.
        table: The forms of the module.
        index: For each name its position.
        names: Without `%`.
        forms: Positions in `table`.
        operands, metadata, lines: As those of an `Instruction`.
        operand_names: Of the instructions that have them, by position.
    """

    name: str
    line: int = 0
    root: int = -1
    table: list[Form] = field(default_factory=list, repr=False)
    index: dict[str, int] = field(default_factory=dict, repr=False)
    names: list[str] = field(default_factory=list, repr=False)
    forms: list[int] = field(default_factory=list, repr=False)
    operands: list[tuple[int, ...]] = field(default_factory=list, repr=False)
    metadata: list[str] = field(default_factory=list, repr=False)
    lines: list[int] = field(default_factory=list, repr=False)
    operand_names: dict[int, tuple[str, ...]] = field(default_factory=dict, repr=False)
    _rows: list[Instruction] = field(default_factory=list, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.names)

    def __bool__(self) -> bool:
        return True

    @property
    def instructions(self) -> list[Instruction]:
        """The instructions as rows; made when somebody asks for the first time."""
        if len(self._rows) != len(self.names):
            self._rows = [self.row(position) for position in range(len(self.names))]
        return self._rows

    def row(self, position: int) -> Instruction:
        """Return one instruction."""
        op, type_text, attrs, literal = self.table[self.forms[position]]
        return Instruction(
            self.names[position], op, type_text, self.operands[position], attrs, literal,
            self.metadata[position], self.lines[position],
            self.operand_names.get(position, ()),
        )  # fmt: skip

    def add(
        self,
        name: str,
        form: int,
        operands: tuple[int, ...],
        metadata: str = "",
        line: int = 0,
    ) -> int:
        """Add an instruction, whose form is in the table; return its position."""
        position = self.index[name] = len(self.names)
        self.names.append(name)
        self.forms.append(form)
        self.operands.append(operands)
        self.metadata.append(metadata)
        self.lines.append(line)
        return position

    def reorder(self, order: Sequence[int]) -> None:
        """Put the instructions in another order, given by their present positions."""
        rank = {old: new for new, old in enumerate(order)}
        rank[-1] = -1
        self.names = [self.names[old] for old in order]
        self.forms = [self.forms[old] for old in order]
        self.operands = [tuple(rank[o] for o in self.operands[old]) for old in order]
        self.metadata = [self.metadata[old] for old in order]
        self.lines = [self.lines[old] for old in order]
        self.operand_names = {rank[k]: v for k, v in self.operand_names.items()}
        self.index = {name: rank[position] for name, position in self.index.items()}
        self.root = rank[self.root]
        self._rows = []


@dataclass(slots=True)
class HloModule:
    """A parsed module.

    Attributes:
        name: Of the module.
        computations: By name.
        entry: Name of the entry computation.
        forms: The forms of all its instructions, each once.
        frames: For each stack frame id its source line, innermost, such as `train.py:41`.
        header: The module's attributes as written.
        effectful: The computations in which something has an effect; None: not yet asked.
    """

    name: str
    computations: dict[str, Computation] = field(default_factory=dict)
    entry: str = ""
    forms: list[Form] = field(default_factory=list, repr=False)
    frames: dict[int, str] = field(default_factory=dict)
    header: str = ""
    effectful: set[str] | None = field(default=None, repr=False, compare=False)
    _callers: dict[str, Instruction] | None = field(
        default=None, repr=False, compare=False
    )

    def origin(self, metadata: str) -> Origin:
        """Return what an instruction's metadata says of where it came from."""
        if not metadata:
            return Origin()
        if metadata.startswith(INHERITED):
            return InheritedOrigin(*self.origin(metadata.removeprefix(INHERITED)))
        scope, name = name_in(metadata)
        kind = InheritedOrigin if metadata.startswith(_WRITTEN_INHERITED) else Origin
        return kind(scope, self._site(metadata), name)

    def caller(self, computation: str) -> Instruction | None:
        """Return the first instruction that calls a computation."""
        if self._callers is None:
            self._callers = {}
            for each in self.computations.values():
                for position, form in enumerate(each.forms):
                    attrs = each.table[form].attrs
                    for name in NAME.findall(attrs) if attrs else ():
                        self._callers.setdefault(name, each.row(position))
        return self._callers.get(computation)

    def _site(self, metadata: str) -> str:
        frame = _number_field(metadata, "stack_frame_id=")
        if frame and int(frame) in self.frames:
            return self.frames[int(frame)]
        file = _text_field(metadata, 'source_file="')
        if file in {"", "-"}:
            return ""
        line = _number_field(metadata, "source_line=")
        return f"{file}:{line}" if line else file

    def __repr__(self) -> str:
        count = sum(len(c) for c in self.computations.values())
        return f"<HloModule {self.name}: {count} instructions>"


def name_in(metadata: str | None) -> tuple[str, str]:
    """Return the scope and the operation that an instruction's metadata names."""
    if not metadata or metadata.startswith(INHERITED):
        return "", ""
    _, _, rest = metadata.partition('op_name="')
    name, _, _ = rest.partition('"')
    if "\\" in name:
        name = _text_field(metadata, 'op_name="')
    return split_op_name(name)


def _text_field(metadata: str, start: str) -> str:
    at = metadata.find(start)
    if at < 0:
        return ""
    at += len(start)
    value = metadata[at : metadata.find('"', at)]
    if "\\" not in value:
        return value
    found = _QUOTED.match(metadata, at)
    return _ESCAPE.sub(r"\1", found[1]) if found else ""


def _number_field(metadata: str, start: str) -> str:
    at = metadata.find(start)
    found = _NUMBER.match(metadata, at + len(start)) if at >= 0 else None
    return found[0] if found else ""


@lru_cache(maxsize=65_536)
def split_op_name(op_name: str) -> tuple[str, str]:
    """Return the scope and the operation of an `op_name`.

    Merged operations, `A;B`, count as the first.

    Example:
        >>> split_op_name("jit(main)/lazyrt_graph/encoder.0/aten.addmm.default")
        ('encoder.0', 'aten.addmm.default')
        >>> split_op_name("args[3]"), split_op_name("forward.1/xla__device_data")
        (('', 'args[3]'), ('forward.1', 'xla__device_data'))
    """
    path, _, last = op_name.partition(";")[0].rpartition("/")
    return _scope_of(path), last


@lru_cache(maxsize=65_536)
def _scope_of(path: str) -> str:
    """Return a path without the programs that it starts with, derivatives as those of a scope.

    Example:
        >>> _scope_of("jit(f)/jvp(h_0)/mlp"), _scope_of("jit(f)/transpose(jvp(h_0))/mlp")
        ('h_0/mlp', 'h_0/mlp (backward)')
        >>> _scope_of("jit(f)/transpose(jvp())"), _scope_of("jit(f)/jvp(jit(main))/while")
        ('', 'while')
    """
    parts: list[str] = []
    is_backward = False
    for part in path.split("/"):
        plain = part
        while found := _DERIVED.fullmatch(plain):
            is_backward |= found[1] == "transpose"
            plain = found[2]
        if parts or not _PROGRAM_PART.fullmatch(plain):
            parts.append(plain)
    scope = "/".join(parts)
    return f"{scope} (backward)" if scope and is_backward else scope


# Brackets and commas in the text of HLO and MLIR: what closes what, and what stands between.

# `->` and the comparisons of affine maps hold no angle brackets that pair up.
BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[()\[\]{}]', re.DOTALL)
CLOSING = {"(": ")", "[": "]", "{": "}"}
MAX_DEPTH = 400
# Nor does `<=`, which stands in shardings such as `{devices=[4]<=[4]}`.
_SEPARATOR = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|->|<=|[<({\[]|[>)}\]]|,')


class UnclosedError(HloSyntaxError):
    """A bracket that nothing closes, or that another kind closes."""


def closing(text: str, at: int) -> int:
    """Return the position after the bracket that closes the one at `at`.

    Raises:
        UnclosedError: There is none; its line and column count from the start of the text.
    """
    stack: list[str] = []
    for found in BRACKET.finditer(text, at):
        mark = found[0]
        if mark in CLOSING:
            stack.append(CLOSING[mark])
            if len(stack) > MAX_DEPTH:
                message = (
                    f"brackets nest more than {MAX_DEPTH} deep, which no program does."
                )
                raise UnclosedError(message, *position(text, found.start()))
        elif mark[0] != '"':
            if stack.pop() != mark:
                message = (
                    f"{mark!r} closes a bracket of another kind. The text was edited."
                )
                raise UnclosedError(message, *position(text, found.start()))
            if not stack:
                return found.end()
    message = f"{text[at]!r} is never closed. The text was cut off; save it again."
    raise UnclosedError(message, *position(text, at))


_QUOTATION = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?')


def depth_of(line: str) -> int:
    """Return how many brackets a line opens more than it closes."""
    if '"' in line:
        line = _QUOTATION.sub("", line)
    count = line.count
    depth = count("(") - count(")") + count("[") - count("]")
    return depth + count("{") - count("}") if "{" in line or "}" in line else depth


def position(text: str, at: int) -> tuple[int, int]:
    """Return line and column of a place, from 1."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def split_commas(text: str) -> list[str]:
    """Return the parts of a text between commas outside of brackets and quotes.

    Example:
        >>> split_commas('sharding={devices=[4]<=[4]}, dim_labels=bf_io->bf, name="a,b"')
        ['sharding={devices=[4]<=[4]}', ' dim_labels=bf_io->bf', ' name="a,b"']
    """
    parts, depth, start = [], 0, 0
    for found in _SEPARATOR.finditer(text):
        mark = found[0]
        if mark in "<({[":
            depth += 1
        elif mark in ">)}]":
            depth -= 1
        elif mark == "," and depth == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    parts.append(text[start:])
    return [part for part in parts if part.strip()]
