"""Op, module and line of the instructions of HLO text to which XLA gives none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# An instruction's name, opcode, what stands between the parentheses, and the rest.
_ROW = re.compile(
    r"\s+(?:ROOT )?%?([\w.\-]+) = (?:\((?:[^()]|\([^()]*\))*\)|\S+) ([a-z][\w\-]*)"
    r"\(([^()]*)\)(.*)"
)
_HEADER = re.compile(r"(?:ENTRY )?%?([\w.\-]+) .*\{$")
_METADATA = re.compile(r'metadata=\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\}')
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|branch_computations|true_computation"
    r"|false_computation)=\{?((?:%?[\w.\-]+(?:, )?)+)"
)
_NAME = re.compile(r"[\w.\-]+")
# A line of the StableHLO, which nobody has; it is what XLA knows of the bodies of functions.
_NOWHERE = re.compile(r' ?source_file="-"(?: source_(?:end_)?(?:line|column)=\d+)*')
_OF_TYPE = re.compile(r'op_type="[^"]*" ?')
# What has the value of its operand.
_COPIES = frozenset({"copy", "bitcast", "copy-start", "copy-done", "get-tuple-element"})
# What computes nothing of its own.
_PLAIN = frozenset({"tuple", "parameter"})
# Stands in metadata that is a neighbour's.
_MARK = 'op_type="inherited"'


@dataclass(slots=True)
class _Row:
    """One instruction; `place` is its metadata, and `is_own` if XLA wrote it."""

    line: int
    name: str
    op: str
    inside: str
    called: list[str]
    place: str
    is_own: bool

    @property
    def operands(self) -> list[str]:
        parts = self.inside.split(",") if self.inside else []
        return [part.split()[-1].lstrip("%") for part in parts if part.split()]


def compiled_text(executable: Any) -> str:
    """Return the text of what XLA made, each instruction with a place."""
    return with_all_places(str(executable.as_text()))


def with_all_places(text: str) -> str:
    """Return HLO text in which instructions without metadata have a neighbour's.

    XLA copies inputs whose memory results take, expands random bits and makes constants, and
    says of none where it is from. A copy has what it copies, another instruction what the
    first that reads it has, else what it reads, else what calls its computation; an input of a
    called computation has what it is given. Such metadata has `op_type="inherited"`. The tuple
    of the results stays as it is. A line in the StableHLO text, `source_file="-"`, is no place.
    """
    lines = _NOWHERE.sub("", text).replace(", metadata={}", "").split("\n")
    computations = _computations(lines)
    callers: dict[str, tuple[_Row, dict[str, _Row]]] = {}
    for name in reversed(computations):  # what is called stands before what calls it
        rows = computations[name]
        _fill(rows, callers.get(name))
        for row in rows.values():
            for called in row.called:
                callers.setdefault(called, (row, rows))
    for rows in computations.values():
        for row in rows.values():
            if row.place and not row.is_own:
                lines[row.line] = _placed(lines[row.line], row.place)
    return "\n".join(lines)


def _computations(lines: Iterable[str]) -> dict[str, dict[str, _Row]]:
    """Return the instructions by name, of each computation by name."""
    found: dict[str, dict[str, _Row]] = {}
    rows: dict[str, _Row] = {}
    for number, line in enumerate(lines):
        if not line[:1].isspace():
            header = _HEADER.match(line)
            if header:
                rows = found[header[1]] = {}
            continue
        match = _ROW.match(line)
        if match is None:
            continue
        name, op, inside, rest = match.groups()
        said = _METADATA.search(rest)
        place = said[1] if said else ""
        called = _NAME.findall(" ".join(_CALLED.findall(rest)))
        rows[name] = _Row(number, name, op, inside, called, place, is_own=bool(place))
    return found


def _fill(rows: dict[str, _Row], caller: tuple[_Row, dict[str, _Row]] | None) -> None:
    if caller is not None:
        _fill_inputs(rows, *caller)
    for row in rows.values():
        if row.op in _COPIES:
            _inherit(row, [rows[each] for each in row.operands if each in rows])
    for row in reversed(rows.values()):
        if row.op in _PLAIN:
            continue
        for each in row.operands:
            if each in rows:
                _inherit(rows[each], [row])
    for row in rows.values():
        _inherit(row, [rows[each] for each in row.operands if each in rows])
        if caller is not None:
            _inherit(row, [caller[0]])


def _fill_inputs(
    rows: Mapping[str, _Row], caller: _Row, around: Mapping[str, _Row]
) -> None:
    """Give inputs what a fusion or call gives them; elsewhere they are elements or states."""
    if caller.op not in {"fusion", "call"}:
        return
    given = caller.operands
    for row in rows.values():
        if row.op == "parameter" and row.inside.strip().isdecimal():
            number = int(row.inside)
            if number < len(given) and given[number] in around:
                _inherit(row, [around[given[number]]])


def _inherit(row: _Row, neighbours: Iterable[_Row]) -> None:
    """Give an instruction without a place that of the first neighbour that has one."""
    if row.place or row.op == "tuple":
        return
    row.place = next((each.place for each in neighbours if each.place), "")


def _placed(line: str, place: str) -> str:
    """Return a line with metadata behind its attributes, and before backend settings."""
    plain = _OF_TYPE.sub("", place)
    said = f", metadata={{{_MARK} {plain}}}"
    before, backend, behind = line.partition(", backend_config=")
    return f"{before}{said}{backend}{behind}"
