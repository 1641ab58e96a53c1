"""The text of a PT_XLA_DEBUG log to a `DebugLog`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lazyviz.foreign.debug_log import DebugLog, Event, Unlowered
from lazyviz.foreign.evidence import EvidenceError, Frame, parse_frame, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazyviz.foreign.debug_log import Kind

_ANALYSIS = re.compile(
    r"(?P<kind>(?:Unexpected )?Execution|(?:Post )?Compilation) Analysis: ?(?P<rest>.*)"
)
_KINDS: dict[str, Kind] = {
    "Compilation": "compile",
    "Execution": "execute",
    "Unexpected Execution": "unexpected execute",
}
_POST = "Post Compilation"
_HASH = "Computation hash"
_HASH_LINE = re.compile(rf"{_HASH}: (\S+)\s*")
_RULE = re.compile(r"(=|-){20,}\s*")
_FIELD = re.compile(
    r"\s*(Graph Name|Graph Hash|Number of Graph Inputs|Number of Graph Outputs): (.*?)\s*"
)
_SIZE = re.compile(r"\s*(.+?) size: (\d+(?:\.\d+)?) GB\s*")
_SUMMARY = re.compile(r"(?:WARNING:)?pt-xla-profiler: ?(.*)")
_SUMMARY_COUNT = re.compile(r"FRAME \(count=(\d+)\):")
_SUMMARY_OP = re.compile(r'Unlowered Op: "(.+)"')


def parse_debug_log(log: str) -> DebugLog:
    """Read a log that torch_xla wrote with PT_XLA_DEBUG_LEVEL 1 or 2, or PT_XLA_DEBUG=1.

    Raises:
        EvidenceError: There is no analysis in it, or one breaks off.
    """
    lines = log.splitlines()
    events = tuple(_events(lines))
    unlowered = tuple(_unlowered(lines))
    if not events and not unlowered:
        raise EvidenceError(
            f"there is no analysis in the text that starts with {shorten(log)}. A log of "
            "PT_XLA_DEBUG_LEVEL has lines that start with 'Compilation Analysis:' or "
            "'Execution Analysis:'; it goes to stderr, or to PT_XLA_DEBUG_FILE."
        )
    return DebugLog(events, unlowered)


@dataclass(slots=True)
class _Block:
    """The lines of one analysis between its two rules, or a computation's hash."""

    kind: str
    line: int
    lines: list[str] = field(default_factory=list)


def _events(lines: list[str]) -> Iterator[Event]:
    """Yield each analysis; a compile takes the hash and the sizes that follow it along."""
    compiled: Event | None = None
    for block in _blocks(lines):
        if block.kind in {_HASH, _POST}:
            if compiled is None and block.kind == _POST:
                raise EvidenceError(
                    f"a {_POST} Analysis without the Compilation Analysis before it: the "
                    "start of the log is missing. Give the whole log.",
                    block.line,
                )
            if compiled is not None and block.kind == _HASH:
                compiled = replace(compiled, computation=block.lines[0])
            elif compiled is not None:
                compiled = replace(compiled, sizes_gb=_sizes(block))
            continue
        if compiled is not None:
            yield compiled
            compiled = None
        event = _event(block)
        if event.kind == "compile":
            compiled = event
        else:
            yield event
    if compiled is not None:
        yield compiled


def _blocks(lines: list[str]) -> Iterator[_Block]:
    block: _Block | None = None
    for number, line in enumerate(lines, 1):
        found = _ANALYSIS.match(line)
        if found is None:
            hashed = _HASH_LINE.fullmatch(line)
            if hashed is not None and block is None:
                yield _Block(_HASH, number, [hashed[1]])
            continue
        if block is not None and block.kind != found["kind"]:
            raise _broken_off(block)
        if _RULE.fullmatch(found["rest"]) is None:
            if block is None:
                raise EvidenceError(
                    f"{shorten(line)} stands outside of an analysis, which starts with a "
                    "line of '='. The start of the log is missing; give the whole log.",
                    number,
                )
            block.lines.append(found["rest"])
        elif found["rest"].startswith("="):
            if block is None:
                block = _Block(found["kind"], number)
            else:
                yield block
                block = None
    if block is not None:
        raise _broken_off(block)


def _broken_off(block: _Block) -> EvidenceError:
    return EvidenceError(
        f"the {block.kind} Analysis that begins here has no end: the log was cut, or several "
        "processes wrote to it. Give one process's whole log.",
        block.line,
    )


def _event(block: _Block) -> Event:
    fields: dict[str, str] = {}
    cause = ""
    frames: list[Frame] = []
    after_cause = False
    for line in block.lines:
        found = _FIELD.fullmatch(line)
        frame = parse_frame(line)
        if found is not None:
            fields[found[1]] = found[2]
        elif frame is not None:
            frames.append(frame)
        elif after_cause:
            cause = line.strip()
        after_cause = line.strip().endswith(" Cause")
    missing = next((n for n in _REQUIRED if not fields.get(n)), None)
    if missing:
        raise EvidenceError(
            f"the {block.kind} Analysis that begins here has no {missing}. The log was cut "
            "or changed; give it as it was written.",
            block.line,
        )
    return Event(
        kind=_KINDS[block.kind],
        cause=cause,
        name=fields.get("Graph Name", ""),
        graph=fields["Graph Hash"],
        inputs=_count(fields, "Number of Graph Inputs", block),
        outputs=_count(fields, "Number of Graph Outputs", block),
        frames=tuple(frames),
        line=block.line,
    )


_REQUIRED = ("Graph Hash", "Number of Graph Inputs", "Number of Graph Outputs")


def _count(fields: dict[str, str], name: str, block: _Block) -> int:
    if not fields[name].isdecimal():
        raise EvidenceError(
            f"{name} is {shorten(fields[name])}, which is no whole number. The log was "
            "changed; give it as it was written.",
            block.line,
        )
    return int(fields[name])


def _sizes(block: _Block) -> dict[str, float]:
    found = (_SIZE.fullmatch(line) for line in block.lines)
    return {size[1].lower(): float(size[2]) for size in found if size}


def _unlowered(lines: list[str]) -> Iterator[Unlowered]:
    count, op, frames = 0, "", list[Frame]()
    for line in lines:
        found = _SUMMARY.fullmatch(line)
        if found is None:
            continue
        start = _SUMMARY_COUNT.fullmatch(found[1])
        if start is not None:
            count, op, frames = int(start[1]), "", []
            continue
        named = _SUMMARY_OP.fullmatch(found[1])
        frame = parse_frame(found[1])
        if named is not None:
            op = named[1]
        elif frame is not None:
            frames.append(frame)
        elif count and (op or frames):
            yield Unlowered(op, tuple(frames), count)
            count = 0
    if count and (op or frames):
        yield Unlowered(op, tuple(frames), count)
