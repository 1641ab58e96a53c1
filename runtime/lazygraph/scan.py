"""HLO text to modules: one loop for common lines, a scanner for the others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazygraph.brackets import (
    UnclosedError,
    clip,
    closing,
    depth_of,
    fault_of,
    type_end,
)  # fmt: skip
from lazygraph.common_lines import CommonLines
from lazygraph.errors import HloSyntaxError
from lazygraph.forms import Forms
from lazygraph.frames import FrameTables
from lazygraph.late import resolve
from lazygraph.module import Computation, Form, HloModule
from lazygraph.print_options import hidden_operands, nameless
from lazygraph.tokens import (
    COMMENT,
    LITERAL_OPS,
    PLAIN_NAME,
    START,
    operand_names,
    without_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

# Every alternative starts with another character, so that matching is linear.
_FLAT = r"[^()\"\n]*+(?:\([^()\"\n]*+\)[^()\"\n]*+)*+"
_INSTRUCTION = re.compile(
    r"\s*(ROOT )?%?([\w.\-]+) = "
    r"([a-z]\w*\[[^\[\]\s]*\](?:\{[^{}\s]*\})?|\(" + _FLAT + r"\)) "
    r"([a-z][\w\-]*)\((" + _FLAT + r")\)(.*)",
    re.DOTALL,
)
_OPCODE = re.compile(r"\s*([A-Za-z][\w\-]*)\(")
_HEADER = re.compile(r"\s*(ENTRY\b\s*)?%?([\w.\-]*)\s*(?=[({])")
_MODULE = re.compile(r"HloModule\s+%?([^\s,]*)(.*)")
_ALL_NAMES = re.compile(r"[\w.\-\n]*")
# A brace may close a part of a literal, too: `})` or `},` and no more.
_BEGINNING = re.compile(r"ENTRY|HloModule|\}(?!\)|,\s*$)")
# Bodies within bodies.
_MAX_BODIES = 50
_MAX_JOINED_LINES = 100_000


def modules(text: str, *, partial: bool = False, source: str = "") -> list[HloModule]:
    """Return every HLO module in a text.

    What stands before, between and after the modules, such as a log's own lines, is skipped.

    Args:
        text: HLO text, of one module or of several.
        partial: Take excerpts: operands, computations and ends may be missing.
        source: Name of the file, for errors.

    Raises:
        HloSyntaxError: The text is no HLO, or is cut off, with line and column.
    """
    return _Reader(text, partial=partial, source=source).read()


class _Reader:
    def __init__(self, text: str, *, partial: bool, source: str) -> None:
        self._lines = text.split("\n")
        self._partial = partial
        self._source = source
        self._found: list[HloModule] = []
        self._module: HloModule | None = None
        self._computation: Computation | None = None
        self._tables = FrameTables()
        self._late: list[tuple[Computation, int, Sequence[str]]] = []
        self._new_forms([])
        self._at = 0
        self._depth = 0  # of bodies that stand within instructions

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
                raise self._cut_within(self._computation)
            self._close()
        self._finish_module()
        return self._found

    def _cut_within(self, computation: Computation) -> HloSyntaxError:
        return self._error(
            f"the text ends within the computation %{computation.name}: its "
            "closing brace is missing. The dump was cut off; save it again.",
            line=len(self._lines),
            column=len(self._lines[-1]) + 1,
        )

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
            if found and self._may_start(found, stripped) and self._has_name(found):
                self._start_computation(found)
                return
        if self._partial and " = " in line:
            self._start_excerpt()
            self._inside(line)
            return
        if self._module is not None and START.match(line) and line[:1].isspace():
            raise self._error(
                "an instruction stands outside of every computation. The line above it "
                "should open one, as in `ENTRY main {`."
            )

    def _may_start(self, found: re.Match[str], stripped: str) -> bool:
        if self._module is None and not self._partial:
            return False
        return "->" in stripped or stripped[found.end() :].strip() == "{"

    def _has_name(self, found: re.Match[str]) -> bool:
        """Return whether a header is one: XLA's `fingerprint` form leaves the names out."""
        return bool(found[2]) or START.match(self._following()) is not None

    def _line(self) -> str:
        return self._lines[self._at] if self._at < len(self._lines) else ""

    def _following(self) -> str:
        return self._lines[self._at + 1] if self._at + 1 < len(self._lines) else ""

    def _start_module(self, line: str) -> None:
        found = _MODULE.match(line)
        if found is None or not (found[1] or found[2].startswith(",")):
            raise self._error("`HloModule` needs a name after it.")
        self._finish_module()
        self._module = HloModule(found[1] or "module", header=found[2].lstrip(", "))
        self._new_forms(self._module.forms)
        self._tables = FrameTables()

    def _new_forms(self, table: list[Form]) -> None:
        self._forms = Forms(table)
        self._common = CommonLines(self._forms.common)

    def _finish_module(self) -> None:
        module = self._module
        if module is None:
            return
        self._module = None
        self._resolve_late()
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
        found = None if self._partial else nameless(module)
        if found is None:
            return
        computation, at = found
        op, line = computation.table[computation.forms[at]].op, computation.lines[at]
        raise self._error(
            f"%{computation.names[at]} names nothing that it reads, and {op} reads something. "
            "Print the module with `print_operand_names`.",
            line=line,
            column=self._lines[line - 1].find(f"{op}(") + 1,
        )

    def _start_computation(self, found: re.Match[str]) -> None:
        if self._module is None:
            self._module = HloModule("excerpt")
            self._new_forms(self._module.forms)
        name = found[2] or f"computation.{self._at + 1}"
        if name in self._module.computations:
            raise self._error(
                f"the computation %{name} is defined a second time. Names of computations "
                "are unique in a module; two dumps may have been mixed."
            )
        self._computation = Computation(name, self._at + 1, table=self._module.forms)
        self._module.computations[name] = self._computation
        if found[1]:
            if self._module.entry:
                raise self._error(
                    f"%{name} is a second ENTRY computation; %{self._module.entry} is the "
                    "first. A module has one."
                )
            self._module.entry = name

    def _start_excerpt(self) -> None:
        if self._module is None:
            self._module = HloModule("excerpt")
            self._new_forms(self._module.forms)
        name = "excerpt"
        computation = self._module.computations.get(name)
        if computation is None:
            computation = Computation(name, self._at + 1, table=self._module.forms)
            self._module.computations[name] = computation
        self._computation = computation

    def _instructions(self, computation: Computation) -> None:
        """Take the lines of a computation up to its end; what is odd goes to `_inside`."""
        lines = self._lines
        while self._at < len(lines) and self._computation is computation:
            if not self._partial:
                self._at = self._common.add(computation, lines, self._at)
            if self._at < len(lines):
                self._inside_or_before(computation, lines[self._at])
                self._at += 1

    def _inside_or_before(self, computation: Computation, line: str) -> None:
        """Take a line; what is wrong with it, or with a name that was taken before, is told."""
        try:
            if not self._takes_bodies(computation, line):
                self._inside(line)
        except HloSyntaxError:
            self._check_names(computation)
            raise

    def _takes_bodies(self, computation: Computation, line: str) -> bool:
        """Take what XLA's `canonical` form writes in the place of a computation's name.

        The bodies stand in braces of their own lines, behind `to_apply=`, or several within
        `branch_computations={`. Each becomes a computation, whose name takes its place.
        """
        is_list = line.endswith("={") and self._following().strip() == "{"
        if is_list:
            self._inside(line[:-1])
            self._at += 1
        elif line.strip() != "{" or not len(computation):
            return False
        form = computation.table[computation.forms[-1]]
        attrs = form.attrs
        while attrs.endswith("=") and self._line().strip() == "{":
            said, tail = self._bodies(computation, is_list=is_list)
            attrs += said + tail
            is_list = tail.endswith("={") and self._following().strip() == "{"
            attrs = attrs[:-1] if is_list else attrs
            self._at += attrs.endswith("=")
        if attrs == form.attrs:
            return False
        attrs, metadata = without_metadata(attrs)
        self._check_attributes(computation.names[-1], attrs)
        key = (f"{form.type} {form.op}", attrs)
        known = self._forms.numbers.get(key)
        computation.forms[-1] = self._forms.add(key) if known is None else known
        computation.metadata[-1] = metadata or computation.metadata[-1]
        return True

    def _bodies(self, outer: Computation, *, is_list: bool) -> tuple[str, str]:
        """Return the names that stand for bodies, and what follows them."""
        names = []
        while self._line().strip() == "{":
            names.append(f"%{self._body(outer)}")
            tail = self._line().strip()[1:]
            if not is_list:
                return names[0], tail
            self._at += 1
        tail = self._line().strip()
        if not tail.startswith("}"):
            raise self._error(
                "the list of computations is never closed. The dump was cut off; save it again."
            )
        return f"{{{', '.join(names)}}}", tail[1:]

    def _body(self, outer: Computation) -> str:
        """Take one body; return the name that it gets. Ends at its closing brace."""
        assert self._module is not None  # noqa: S101 - narrows the type
        if self._depth >= _MAX_BODIES:
            raise self._error(
                f"computations nest more than {_MAX_BODIES} deep, which no HLO does."
            )
        name = f"{outer.names[-1]}.{self._at + 1}"
        body = Computation(name, self._at + 1, table=self._module.forms)
        self._module.computations[name] = self._computation = body
        self._at += 1
        self._depth += 1
        self._instructions(body)
        self._depth -= 1
        if self._computation is body:
            raise self._cut_within(body)
        self._computation = outer
        self._at -= 1
        return name

    def _inside(self, line: str) -> None:
        computation = self._computation
        assert computation is not None  # noqa: S101 - narrows the type
        if "/*" in line:
            line = COMMENT.sub("", line)
        found = _INSTRUCTION.match(line)
        if found is None:
            self._unusual(line)
            return
        root, name, type_text, op, body, rest = found.groups()
        odd = '"' in body or (op in LITERAL_OPS and body.count("(") != body.count(")"))
        if odd or (rest and depth_of(rest) > 0):
            self._unusual(line)
            return
        self._add(computation, root, name, type_text, op, body, rest)

    def _add(
        self,
        computation: Computation,
        root: str | None,
        name: str,
        type_text: str,
        op: str,
        body: str,
        rest: str,
    ) -> None:
        metadata = ""
        if rest and "metadata=" in rest:
            rest, metadata = without_metadata(rest)
        index = computation.index
        operands: tuple[int, ...] = ()
        head = f"{type_text} {op}"
        key: tuple[str, ...] = (head, rest)
        if op in LITERAL_OPS:
            key = (head, rest, body)
        elif body:
            self._check_operands(name, body)
            names = operand_names(body)
            try:
                operands = tuple([index[each] for each in names])
            except KeyError:
                self._late.append((computation, len(computation), names))
        if name in index and not self._partial:
            raise self._error(
                f"the instruction %{name} is defined a second time in the computation "
                f"%{computation.name}. Two dumps may have been mixed, or the module was "
                "printed without `print_ids`.",
                at=name,
            )
        form = self._forms.numbers.get(key)
        if form is None:
            self._check_attributes(name, rest)
            form = self._forms.add(key)
        position = computation.add(name, form, operands, metadata, self._at + 1)
        if root:
            computation.root = position

    def _check_operands(self, name: str, body: str) -> None:
        """Refuse operands that were left out, which would read as fewer."""
        if not self._partial and (hidden := hidden_operands(body)):
            raise self._error(
                f"%{name} reads more than it says: `{hidden}` stands for the others. "
                "Print the module without the option `compact_operands`.",
                column=self._line().find(hidden) + 1,
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

    def _unusual(self, line: str) -> None:
        stripped = line.strip()
        if stripped.startswith("}"):
            self._close()
            return
        if not stripped or stripped.startswith(("//", "#")):
            return
        start = START.match(line)
        if start is None:
            if self._partial:
                self._leave_excerpt()
                return
            raise self._no_instruction(line)
        first = self._at
        text = self._joined(line)
        try:
            self._scan(text, start)
        except UnclosedError as unclosed:
            self._at = first
            if not self._partial:
                raise self._error(str(unclosed), column=unclosed.column) from None

    def _joined(self, line: str) -> str:
        """Return a line with the following ones that belong to it: its brackets are open."""
        parts = [line]
        depth = depth_of(line)
        while depth > 0 and self._at + 1 < len(self._lines):
            following = self._lines[self._at + 1]
            if _begins(following) or len(parts) > _MAX_JOINED_LINES:
                break
            parts.append(COMMENT.sub("", following))
            depth += depth_of(following)
            self._at += 1
        return "\n".join(parts)

    def _scan(self, text: str, start: re.Match[str]) -> None:
        """Take an instruction apart step by step, which any nesting of brackets allows."""
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
        assert computation is not None  # noqa: S101 - narrows the type
        self._add(
            computation,
            start[1],
            start[2],
            text[at:end_of_type],
            opcode[1],
            text[opcode.end() : end - 1],
            text[end:],
        )

    def _leave_excerpt(self) -> None:
        if self._computation is not None and self._computation.name == "excerpt":
            self._computation = None

    def _close(self) -> None:
        computation = self._computation
        assert computation is not None  # noqa: S101 - narrows the type
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
        return self._error(
            f"{clip(line.strip())!r} is no instruction. One reads `name = type op(operands)`.",
            column=len(line) - len(line.lstrip()) + 1,
        )

    def _resolve_late(self) -> None:
        late, self._late = self._late, []
        if fault := resolve(late, partial=self._partial):
            raise self._error(fault.message, line=fault.line, at=fault.at)

    def _error(
        self, message: str, *, line: int = 0, column: int = 1, at: str = ""
    ) -> HloSyntaxError:
        line = line or self._at + 1
        if at:
            shown = self._lines[line - 1] if line <= len(self._lines) else ""
            column = shown.find(f"%{at}") + 1 or shown.find(at) + 1 or 1
        return HloSyntaxError(message, line, column, self._source)


def _begins(line: str) -> bool:
    """Return whether a line begins something of its own, so nothing can go on in it."""
    return START.match(line) is not None or _BEGINNING.match(line) is not None
