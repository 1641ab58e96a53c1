"""HLO text to modules: one loop for common lines, a scanner for the others."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, NamedTuple

from lazygraph.graph import HloSyntaxError
from lazygraph.read.hlo_module import (
    BRACKET,
    CLOSING,
    COMMENT,
    LITERAL_OPS,
    MAX_DEPTH,
    METADATA,
    PLAIN_NAME,
    START,
    Computation,
    Form,
    HloModule,
    UnclosedError,
    closing,
    depth_of,
    operand_names,
    without_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Fault(NamedTuple):
    """What is wrong with attributes, and from where on."""

    message: str
    at: int


def fault_of(rest: str) -> Fault | None:
    """Return what is wrong with the attributes of an instruction; None if nothing is."""
    start = len(rest) - len(rest.lstrip())
    if start < len(rest) and rest[start] != ",":
        return Fault(
            f"{clip(rest[start:])!r} is no attribute. Attributes follow the operands after a "
            "comma, as in `, dimensions={0}`.",
            start,
        )
    stack: list[tuple[str, int]] = []
    for found in BRACKET.finditer(rest):
        mark, at = found[0], found.start()
        if mark in CLOSING:
            stack.append((CLOSING[mark], at))
            if len(stack) > MAX_DEPTH:
                return Fault(
                    f"brackets nest more than {MAX_DEPTH} deep, which no HLO does.", at
                )
        elif mark[0] == '"':
            if len(mark) == 1 or mark[-1] != '"':
                return Fault(
                    "a quotation is never closed. The line was cut off; save the dump again.",
                    at,
                )
        elif not stack or stack.pop()[0] != mark:
            return Fault(f"the `{mark}` closes nothing. The dump was edited.", at)
    if stack:
        _, at = stack[-1]
        return Fault(
            f"the `{rest[at]}` is never closed. The line was cut off; save the dump again.",
            at,
        )
    return None


def type_end(text: str, at: int) -> int:
    """Return where the type that starts at `at` ends; `at` itself if there is none."""
    if text.startswith("(", at):
        return closing(text, at)
    found = re.compile(r"[a-z]\w*\[[^\[\]]*\]").match(text, at)
    if found is None:
        return at
    end = found.end()
    return closing(text, end) if text.startswith("{", end) else end


def clip(text: str, length: int = 40) -> str:
    """Return the first line of a text, shortened."""
    first = text.split("\n", 1)[0]
    return first if len(first) <= length else f"{first[: length - 3]}..."


_SECTIONS = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ENTRY = re.compile(r"(\d+) (.*)")
_FIELD = re.compile(r"(\w+)=(\d+)")
# What XLA calls the text that it was given, and the line of that text.
_OWN_TEXT = re.compile(r'source_file="-?"(?: source_(?:end_)?(?:line|column)=\d+)*')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_SPACES = re.compile(" {2,}")
_MLIR_PLACE = re.compile(r'\("((?:[^"\\]|\\.)*)":(\d+):\d+\)')


class FrameTables:
    """Collects the lines of the tables, and makes source lines of them."""

    def __init__(self) -> None:
        self._section = ""
        self._files: dict[int, str] = {}
        self._locations: dict[int, tuple[int, int]] = {}
        self._frames: dict[int, int] = {}

    def take(self, line: str) -> bool:
        """Take in a line if it belongs to a table; return whether it does."""
        if line.strip() in _SECTIONS:
            self._section = line.strip()
            return True
        if not self._section:
            return False
        found = _ENTRY.match(line)
        if found is None:
            self._section = ""
            return False
        number, rest = int(found[1]), found[2]
        fields = {name: int(value) for name, value in _FIELD.findall(rest)}
        match self._section:
            case "FileNames":
                self._files[number] = rest.strip().strip('"')
            case "FileLocations":
                place = fields.get("file_name_id", 0), fields.get("line", 0)
                self._locations[number] = place
            case "StackFrames":
                self._frames[number] = fields.get("file_location_id", 0)
        return True

    def end_section(self) -> None:
        """Take note of an empty line."""
        self._section = ""

    def sites(self) -> dict[int, str]:
        """Return for each frame its source line."""
        found = {}
        for frame, location in self._frames.items():
            file, line = self._locations.get(location, (0, 0))
            if file in self._files and self._files[file] not in {"", "-"}:
                found[frame] = f"{self._files[file]}:{line}"
        return found


def with_lines(hlo: str, called: Callable[[str], str]) -> str:
    """Return HLO text in which each instruction names the user's line, without the tables.

    XLA names the line of the text that it was given, and the user's only in its tables. `called`
    returns what the reader knows a file as, such as `cell 3`.
    """
    tables = FrameTables()
    kept: list[str] = []
    for line in hlo.strip().splitlines():
        if tables.take(line):
            continue
        tables.end_section()
        if line or (kept and kept[-1]):  # one empty line where the tables stood
            kept.append(line)
    sites = tables.sites()

    def place(found: re.Match[str]) -> str:
        file, colon, line = sites.get(int(found[1]), "").rpartition(":")
        return f'source_file="{called(file)}" source_line={line}' if colon else ""

    def metadata(found: re.Match[str]) -> str:
        body = _FRAME.sub(place, _OWN_TEXT.sub("", found[1])).strip()
        return f", metadata={{{_SPACES.sub(' ', body)}}}" if body else ""

    return METADATA.sub(metadata, "\n".join(kept))


def with_named_files(stablehlo: str, called: Callable[[str], str]) -> str:
    """Return StableHLO text whose locations have the reader's names of files."""
    return _MLIR_PLACE.sub(
        lambda found: f'("{called(found[1])}":{found[2]}:0)', stablehlo
    )


_HEAD = re.compile(r"\w+\[[^\[\]\s]*\](?:\{[^{}\s]*\})? [a-z][\w\-]*")
_ODD = re.compile(r'["(]')

Key = tuple[str, ...]
"""Of a form: type and opcode, attributes, and a literal where the opcode has one."""
# Stands for the forms of a head and attributes that a literal tells apart.
_BY_LITERAL = -1
# What ends a type that is cut at the bracket of its tiles: `f32[8]{0:T(128)}`.
_TILES = "T"


class FaultError(ValueError):
    """What a line says before or behind the operands cannot be right."""


class Forms(dict[Key, int]):
    """The forms of one module by what makes them: positions in its table; adds common lines.

    A key that is new is that of a common line, and is checked.
    """

    def __init__(self, table: list[Form]) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, key: Key) -> int:
        """Return the number of a new form.

        Raises:
            FaultError: It cannot be right.
        """
        head, rest, *literal = key
        if literal and _ODD.search(literal[0]):
            raise FaultError
        if _HEAD.fullmatch(head) is None or (rest and fault_of(rest) is not None):
            raise FaultError
        if not literal and head.rpartition(" ")[2] in LITERAL_OPS:
            self[key] = _BY_LITERAL
            return _BY_LITERAL
        return self.add_form(key)

    def add_form(self, key: Key) -> int:
        """Return the number of a new form, whatever it says."""
        type_text, _, op = key[0].rpartition(" ")
        number = self[key] = len(self._table)
        plain = [COMMENT.sub("", part) if "/*" in part else part for part in key[1:]]
        self._table.append(Form(op, type_text, *plain))
        return number

    def add(self, computation: Computation, lines: list[str], at: int) -> int:
        """Add lines, up to the first that has another form, or is wrong; return its position.

        This loop is the time that reading takes, so that all of it stands here. A line is cut
        at its marks, rashly: what comes of brackets within brackets is no type, form or
        operand, and what is no name is noticed where the computation ends.
        """
        start, between = "  ", ", "
        if lines[at].startswith("  %"):
            start, between = "  %", ", %"
        skipped, before = len(between) - 2, len(start)
        index = computation.index
        position_of = index.__getitem__
        add_name, add_form = computation.names.append, computation.forms.append
        add_operands, add_line = computation.operands.append, computation.lines.append
        add_metadata = computation.metadata.append
        for k in range(at, len(lines)):
            core, marked, tail = lines[k].partition(", metadata={")
            left, _, right = core.partition(" = ")
            head, _, inner = right.partition("(")
            if head[-1:] == _TILES:
                tiles, _, inner = inner.partition("} ")
                op, _, inner = inner.partition("(")
                head = f"{head}({tiles}}} {op}"
            body, closed, rest = inner.partition(")")
            name = left[before:]
            if not closed or left[:before] != start or name in index or " " in name:
                return k
            metadata = ""
            if marked:
                metadata, closed, behind = tail.partition("}")
                if not closed or "{" in metadata or metadata.count('"') & 1:
                    return k
                if behind:
                    rest += behind
            operands: tuple[int, ...] = ()
            try:
                form = self[head, rest]
                if form == _BY_LITERAL:
                    form = self[head, rest, body]
                elif skipped and body[:1] != "%":
                    operands = _operands(body, index)
                elif ", " in body:
                    operands = tuple(map(position_of, body[skipped:].split(between)))
                elif body:
                    operands = (index[body[skipped:]],)
            except FaultError:
                return k
            except KeyError:
                try:
                    operands = _operands(body, index)
                except KeyError:
                    return k
            index[name] = len(index)
            add_name(name)
            add_form(form)
            add_operands(operands)
            add_metadata(metadata)
            add_line(k + 1)
        return len(lines)


def _operands(body: str, index: dict[str, int]) -> tuple[int, ...]:
    """Return the positions of operands, however they are written.

    Raises:
        KeyError: One of them comes later, or is none.
    """
    if _ODD.search(body):
        raise KeyError(body)
    return tuple([index[name] for name in operand_names(body)])


_HIDDEN = re.compile(r"\.\.\.\(\+\d+\)?")
# What may read nothing.
_SOURCES = LITERAL_OPS | {
    "tuple", "after-all", "create-token", "partition-id", "replica-id", "infeed",
    "rng-get-and-update-state", "custom-call", "fusion", "call", "async-start", "map",
}  # fmt: skip


_OPCODE = re.compile(r"\s*([A-Za-z][\w\-]*)\(")
_HEADER = re.compile(r"\s*(ENTRY\b\s*)?%?([\w.\-]+)\s*(?=[({])")
_MODULE = re.compile(r"HloModule\s+%?([^\s,]*)(.*)")
_ALL_NAMES = re.compile(r"[\w.\-\n]*")
# A brace may close a part of a literal, too: `})` or `},` and no more.
_BEGINNING = re.compile(r"ENTRY|HloModule|\}(?!\)|,\s*$)")
_MAX_JOINED_LINES = 100_000


def modules(text: str, *, partial: bool = False) -> list[HloModule]:
    """Return every HLO module in a text.

    What stands before, between and after the modules, such as a log's own lines, is skipped.

    Args:
        text: HLO text, of one module or of several.
        partial: Take excerpts: operands, computations and ends may be missing.

    Raises:
        HloSyntaxError: The text is no HLO, or is cut off, with line and column.
    """
    return _Reader(text, partial=partial).read()


class _Reader:
    def __init__(self, text: str, *, partial: bool) -> None:
        self._lines = text.split("\n")
        self._partial = partial
        self._found: list[HloModule] = []
        self._module: HloModule | None = None
        self._computation: Computation | None = None
        self._tables = FrameTables()
        self._references: list[tuple[Computation, int, Sequence[str]]] = []
        self._forms = Forms([])
        self._at = 0

    def read(self) -> list[HloModule]:
        lines = self._lines
        end = len(lines)
        while self._at < end:
            line = lines[self._at]
            if self._computation is None:
                self._outside(line)
                self._at += 1
            else:
                self._instructions(self._computation)
        if self._computation is not None:
            if not self._partial:
                raise self._error(
                    f"the text ends within the computation %{self._computation.name}: its "
                    "closing brace is missing. The dump was cut off; save it again.",
                    line=end,
                    column=len(lines[-1]) + 1,
                )
            self._close()
        self._finish_module()
        return self._found

    def _outside(self, line: str) -> None:
        if not line or line.isspace():
            self._tables.end_section()
            return
        if line.startswith("HloModule"):
            self._start_module(line)
            return
        if self._module is not None and self._tables.take(line):
            return
        stripped = line.rstrip()
        if stripped.endswith("{"):
            found = _HEADER.match(line)
            if found and self._may_start(found, stripped):
                self._start_computation(found)
                return
        if self._partial and " = " in line:
            module, name = self._opened(), "excerpt"
            self._computation = module.computations.setdefault(
                name, Computation(name, self._at + 1, table=module.forms)
            )
            self._inside(line)
            return
        start = START.match(line)
        if self._module is not None and start and line[:1].isspace():
            raise self._error(
                "an instruction stands outside of every computation. The line above it "
                "should open one, as in `ENTRY main {`; a module printed without `print_ids` lacks "
                "the name there.",
                column=start.start(2) + 1,
            )

    def _may_start(self, found: re.Match[str], stripped: str) -> bool:
        if self._module is None and not self._partial:
            return False
        return "->" in stripped or stripped[found.end() :].strip() == "{"

    def _start_module(self, line: str) -> None:
        found = _MODULE.match(line)
        if found is None or not (found[1] or found[2].startswith(",")):
            raise self._error("`HloModule` needs a name after it.")
        self._finish_module()
        self._module = HloModule(found[1] or "module", header=found[2].lstrip(", "))
        self._forms = Forms(self._module.forms)
        self._tables = FrameTables()

    def _finish_module(self) -> None:
        module = self._module
        if module is None:
            return
        self._module = None
        self._resolve_references()
        self._check_operand_names(module)
        module.frames = self._tables.sites()
        if not module.entry and module.computations and self._partial:
            module.entry = next(reversed(module.computations))
        if not module.entry:
            raise self._error(
                f"the module {module.name} has no ENTRY computation. The dump was cut off, "
                "or is no HLO; save it again.",
                line=len(self._lines),
            )
        self._found.append(module)

    def _check_operand_names(self, module: HloModule) -> None:
        """Refuse instructions whose operands were printed without names."""
        computations = module.computations.values()
        if self._partial or any(any(each.operands) for each in computations):
            return
        for computation in computations:
            for at, form in enumerate(computation.forms):
                op, line = computation.table[form].op, computation.lines[at]
                if op not in _SOURCES:
                    raise self._error(
                        f"%{computation.names[at]} names nothing that it reads, and {op} reads "
                        "something. Print the module with `print_operand_names`.",
                        line=line,
                        column=self._lines[line - 1].find(f"{op}(") + 1,
                    )

    def _start_computation(self, found: re.Match[str]) -> None:
        module, name = self._opened(), found[2]
        if name in module.computations:
            raise self._error(
                f"the computation %{name} is defined a second time. Names of computations "
                "are unique in a module; two dumps may have been mixed."
            )
        self._computation = Computation(name, self._at + 1, table=module.forms)
        module.computations[name] = self._computation
        if found[1]:
            if module.entry:
                raise self._error(
                    f"%{name} is a second ENTRY computation; %{module.entry} is the first. A "
                    "module has one."
                )
            module.entry = name

    def _opened(self) -> HloModule:
        """Return the module that is read; what has no head is an excerpt."""
        if self._module is None:
            self._module = HloModule("excerpt")
            self._forms = Forms(self._module.forms)
        return self._module

    def _instructions(self, computation: Computation) -> None:
        """Take the lines of a computation up to its end; what is odd is scanned."""
        lines = self._lines
        while self._at < len(lines) and self._computation is computation:
            if not self._partial:
                self._at = self._forms.add(computation, lines, self._at)
            if self._at < len(lines):
                try:
                    self._inside(lines[self._at])
                except HloSyntaxError:
                    self._check_names(computation)  # a name that was taken before it
                    raise
                self._at += 1

    def _check_operands(self, name: str, body: str) -> None:
        """Refuse operands that were left out, which would read as fewer."""
        if not self._partial and (hidden := _HIDDEN.search(body)):
            raise self._error(
                f"%{name} reads more than it says: `{hidden[0]}` stands for the others. "
                "Print the module without the option `compact_operands`.",
                column=self._lines[self._at].find(hidden[0]) + 1,
            )

    def _check_attributes(self, name: str, rest: str) -> None:
        """Refuse what follows an instruction's operands and is no list of attributes."""
        if not rest or self._partial:
            return
        fault = fault_of(COMMENT.sub("", rest))
        if fault is not None:
            line = self._lines[self._at]
            column = line.find(rest[fault.at :].split("\n", 1)[0]) + 1
            raise self._error(f"after %{name}, {fault.message}", column=column or 1)

    def _inside(self, line: str) -> None:
        if "/*" in line:
            line = COMMENT.sub("", line)
        stripped = line.strip()
        if stripped.startswith("}"):
            self._close()
            return
        if not stripped or stripped.startswith(("//", "#")):
            return
        start = START.match(line)
        if start is None:
            if self._partial:
                if (
                    self._computation is not None
                    and self._computation.name == "excerpt"
                ):
                    self._computation = None
                return
            raise self._no_instruction(line)
        first = self._at
        text = self._joined(line)
        try:
            self._scan(text, start)
        except UnclosedError as unclosed:
            self._at = first + unclosed.line - 1
            if not self._partial:
                raise self._error(unclosed.message, column=unclosed.column) from None

    def _joined(self, line: str) -> str:
        """Return a line with the following ones that belong to it: its brackets are open."""
        parts = [line]
        depth = depth_of(line)
        while depth > 0 and self._at + 1 < len(self._lines):
            following = self._lines[self._at + 1]
            # Nothing can go on in a line that begins something of its own.
            begins = START.match(following) or _BEGINNING.match(following)
            if begins or len(parts) > _MAX_JOINED_LINES:
                break
            parts.append(COMMENT.sub("", following))
            depth += depth_of(following)
            self._at += 1
        return "\n".join(parts)

    def _scan(self, text: str, start: re.Match[str]) -> None:
        """Take an instruction apart step by step, which any nesting of brackets allows; add it."""
        at = start.end()
        end_of_type = type_end(text, at)
        opcode = _OPCODE.match(text, end_of_type) if end_of_type > at else None
        if opcode is None:
            if self._partial:
                return
            what = "type" if end_of_type <= at else "opcode"
            hint = " Print the module with `print_result_shape`."
            raise self._error(
                f"%{start[2]} has no {what}: {clip(text[at:])!r}. An instruction reads "
                f"`name = type op(operands)`.{hint if _OPCODE.match(text, at) else ''}",
                column=max(at, end_of_type) + 1,
            )
        end = closing(text, opcode.end() - 1)
        computation = self._computation
        assert computation is not None
        root, name = start[1], start[2]
        head = f"{text[at:end_of_type]} {opcode[1]}"
        body = text[opcode.end() : end - 1]
        rest, metadata = without_metadata(text[end:])
        operands: tuple[int, ...] = ()
        key: Key = (head, rest)
        if opcode[1] in LITERAL_OPS:
            key = (head, rest, body)
        elif body:
            self._check_operands(name, body)
            names = operand_names(body)
            try:
                operands = tuple([computation.index[each] for each in names])
            except KeyError:
                self._references.append((computation, len(computation), names))
        if name in computation.index and not self._partial:
            raise self._error(
                f"the instruction %{name} is defined a second time in the computation "
                f"%{computation.name}. Two dumps may have been mixed, or the module was "
                "printed without `print_ids`.",
                at=name,
            )
        form = self._forms.get(key)
        if form is None:
            self._check_attributes(name, rest)
            form = self._forms.add_form(key)
        position = computation.add(name, form, operands, metadata, self._at + 1)
        if root:
            computation.root = position

    def _close(self) -> None:
        computation = self._computation
        assert computation is not None
        self._computation = None
        self._check_names(computation)
        if not len(computation):
            if self._partial:
                return
            raise self._error(
                f"the computation %{computation.name} has no instructions. It needs at "
                "least its root."
            )
        if computation.root < 0:
            computation.root = len(computation) - 1

    def _check_names(self, computation: Computation) -> None:
        if _ALL_NAMES.fullmatch("\n".join(computation.names)) is not None:
            return
        names = enumerate(computation.names)
        bad = next(k for k, name in names if not PLAIN_NAME.fullmatch(name))
        self._at = computation.lines[bad] - 1
        raise self._no_instruction(self._lines[self._at])

    def _no_instruction(self, line: str) -> HloSyntaxError:
        computation, header = self._computation, _HEADER.match(line)
        stripped = line.rstrip()
        if (
            computation
            and header
            and self._may_start(header, stripped)
            and stripped[-1] == "{"
        ):
            return self._error(
                f"%{header[2]} begins before the computation %{computation.name} of line "
                f"{computation.line} has ended. Put its closing brace back, or save the dump "
                "again."
            )
        if stripped.lstrip() == "{":
            return self._error(
                "a computation stands in the place of its name, as XLA's option `canonical` prints "
                "it. Print the module without that option."
            )
        return self._error(
            f"{clip(line.strip())!r} is no instruction. One reads `name = type op(operands)`.",
            column=len(line) - len(line.lstrip()) + 1,
        )

    def _resolve_references(self) -> None:
        """Fill in operands that were not known when their users were read."""
        references, self._references = self._references, []
        reordered: dict[str, Computation] = {}
        for computation, position, names in references:
            found = [computation.index.get(each, -1) for each in names]
            if -1 in found and not self._partial:
                missing = names[found.index(-1)]
                raise self._error(
                    f"%{computation.names[position]} reads %{missing}, which the computation "
                    f"%{computation.name} does not define. The dump was cut or edited.",
                    line=computation.lines[position],
                    at=missing,
                )
            computation.operands[position] = tuple(found)
            computation.operand_names[position] = tuple(names)
            if any(each >= position for each in found):
                reordered[computation.name] = computation
        for computation in reordered.values():
            self._sort(computation)

    def _sort(self, computation: Computation) -> None:
        """Put operands before their users."""
        rows = enumerate(computation.operands)
        reads = {k: [each for each in row if each >= 0] for k, row in rows}
        try:
            computation.reorder([*TopologicalSorter(reads).static_order()])
        except CycleError as error:
            at = error.args[1][0]
            raise self._error(
                f"the computation %{computation.name} has a cycle through "
                f"%{computation.names[at]}, which cannot be computed in any order. The dump was "
                "edited.",
                line=computation.lines[at],
                at=computation.names[at],
            ) from None

    def _error(
        self, message: str, *, line: int = 0, column: int = 1, at: str = ""
    ) -> HloSyntaxError:
        line = line or self._at + 1
        if at:
            shown = self._lines[line - 1] if line <= len(self._lines) else ""
            column = shown.find(f"%{at}") + 1 or shown.find(at) + 1 or 1
        return HloSyntaxError(message, line, column)
