"""Logs that torch_xla writes with PT_XLA_DEBUG or PT_XLA_DEBUG_LEVEL.

Level 1 tells of each compile, level 2 of each execution too; PT_XLA_DEBUG=1 adds the
profiler's summary of ops that ran on the CPU. The program's own output may stand in between.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from lazyviz.doc import Code, Doc, Fold, Note, Part, Points, Table
from lazyviz.foreign import (
    Evidence,
    EvidenceError,
    Frame,
    parse_frame,
    plain,
    shorten,
    user_frame,
)
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_HEADER = ["graph", "name", "in / out", "compiles", "executions", "in", "cause"]
_HASH_DIGITS = 8
_MAX_EVENTS = 200
_READ = "a value was read before the step's end"

Kind = Literal["compile", "execute", "unexpected execute"]

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
_REQUIRED = ("Graph Hash", "Number of Graph Inputs", "Number of Graph Outputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One compile or execution that a log tells of.

    Attributes:
        kind: What happened.
        cause: Why, in the log's words.
        name: Name of the compiled function, or an empty text.
        graph: Hash of the graph.
        inputs, outputs: Numbers of them.
        frames: The Python stack, innermost first.
        computation: Hash of the computation, for compiles.
        sizes_gb: Sizes of inputs, outputs, aliases, intermediates and program as the log
            has them, in GB with six decimals; only for compiles.
        line: Number of the line where it begins.
    """

    kind: Kind
    cause: str
    name: str
    graph: str
    inputs: int
    outputs: int
    frames: tuple[Frame, ...]
    computation: str = ""
    sizes_gb: Mapping[str, float] = field(default_factory=dict)
    line: int = 0

    @property
    def user_frame(self) -> Frame | None:
        """The user's line; the innermost frame that no installed package owns."""
        return user_frame(self.frames)

    @property
    def is_read(self) -> bool:
        """Whether the log blames a value that was read before the step's end."""
        return "access tensor value" in self.cause


@dataclass(frozen=True, slots=True)
class Unlowered:
    """An entry of the profiler's summary: an op, or a line, with how often."""

    op: str
    frames: tuple[Frame, ...]
    count: int


@dataclass(frozen=True, slots=True, repr=False)
class DebugLog(Evidence):
    """What a debug log tells: events in order, and a summary of ops that ran on the CPU."""

    events: tuple[Event, ...]
    unlowered: tuple[Unlowered, ...]

    @property
    def compiles(self) -> tuple[Event, ...]:
        """The compiles."""
        return tuple(event for event in self.events if event.kind == "compile")

    @property
    def executions(self) -> tuple[Event, ...]:
        """The executions, those that were forbidden included; none in a log of level 1."""
        return tuple(event for event in self.events if event.kind != "compile")

    @property
    def graphs(self) -> dict[str, list[Event]]:
        """The events of each graph, by its hash, in order of appearance."""
        found: dict[str, list[Event]] = {}
        for event in self.events:
            found.setdefault(event.graph, []).append(event)
        return found

    def doc(self) -> Doc:
        """Return a table of the graphs and what stands out; each event is folded."""
        shown = self.events[:_MAX_EVENTS]
        notes = list(sentences(self))
        more = [
            Note(f"{line}; `log.events` has all", page_only=True)
            for line in text.more(len(self.events) - len(shown), "event")
        ]
        parts: list[Part] = [
            Note(_summary(self)),
            *([_table(self)] if self.events else []),
            *([Points(notes)] if notes else []),
            *(Fold(_title(event), _details(event)) for event in shown),
            *more,
        ]
        return Doc(parts, css_class="lazyviz-log", gap="\n\n")

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {**plain(self), "findings": list(sentences(self))}


def sentences(log: DebugLog) -> Iterator[str]:
    """Yield what stands out: reads that break a graph, lines with many graphs, fallbacks."""
    yield from _reads(log)
    yield from _many_graphs(log)
    for event in log.events:
        if event.kind == "unexpected execute":
            name = f" {event.name}" if event.name else ""
            yield (
                f"The function{name} that had to be one graph ran part of it early, at "
                f"{_where(event)}: {event.cause}. Read the value after the call."
            )
    for entry in log.unlowered:
        what = entry.op or str(entry.frames[0])
        yield (
            f"Ran on the CPU {text.plural(entry.count, 'time')}: {what}. An op without a "
            "lowering, or a value that the program read."
        )


def _reads(log: DebugLog) -> Iterator[str]:
    places: dict[str, Counter[str]] = {}
    for event in log.events:
        if event.is_read and event.kind != "unexpected execute":
            places.setdefault(_where(event), Counter())[event.kind] += 1
    for place, counts in places.items():
        cost = " and ".join(
            text.plural(counts[kind], noun)
            for kind, noun in (("compile", "compile"), ("execute", "execution"))
            if counts[kind]
        )
        yield (
            f"{place} read a value before the step's end, which cost {cost} of a partial "
            "graph. Read it after the step, or in a step closure."
        )


def _many_graphs(log: DebugLog) -> Iterator[str]:
    graphs: dict[tuple[str, ...], list[Event]] = {}
    for event in log.compiles:
        if not event.is_read:
            graphs.setdefault(tuple(map(str, event.frames)), []).append(event)
    for events in graphs.values():
        if len(events) > 1:
            yield (
                f"{_where(events[0])} compiled {len(events)} graphs"
                f"{_what_differs(events)}. The first may create optimizer state; more "
                "than two mean that something varies: a shape, a number, a branch."
            )


def _what_differs(events: list[Event]) -> str:
    if len({event.inputs for event in events}) > 1:
        return f", with {_listed(event.inputs for event in events)} inputs"
    if len({event.outputs for event in events}) > 1:
        return f", with {_listed(event.outputs for event in events)} outputs"
    return " with equal numbers of inputs and outputs"


def _listed(numbers: Iterator[int]) -> str:
    return ", ".join(map(str, dict.fromkeys(numbers)))


def _summary(log: DebugLog) -> str:
    parts = [
        text.plural(len(log.graphs), "graph"),
        text.plural(len(log.compiles), "compile"),
        text.plural(len(log.executions), "execution")
        if log.executions
        else "executions not logged (level 1)",
    ]
    return " · ".join(parts)


def _table(log: DebugLog) -> Table:
    rows = [
        _row(graph, events, level_2=bool(log.executions))
        for graph, events in log.graphs.items()
    ]
    return Table(_HEADER, rows).filled()


def _row(graph: str, events: list[Event], *, level_2: bool) -> list[object]:
    first = events[0]
    compiles = sum(event.kind == "compile" for event in events)
    return [
        graph[:_HASH_DIGITS],
        first.name,
        f"{first.inputs} / {first.outputs}",
        compiles,
        len(events) - compiles if level_2 else "",
        _where(first),
        _READ if first.is_read else first.cause,
    ]


def _where(event: Event) -> str:
    frame = event.user_frame or next(iter(event.frames), None)
    return str(frame) if frame else "an unknown line"


def _title(event: Event) -> str:
    return f"line {event.line}: {event.kind} of {event.graph[:_HASH_DIGITS]}, {event.cause}"


def _details(event: Event) -> list[Part]:
    facts = [
        f"{text.plural(event.inputs, 'input')}, {text.plural(event.outputs, 'output')}"
    ]
    if event.computation:
        facts.append(f"computation {event.computation}")
    facts += [f"{name}: {size:g} GB" for name, size in event.sizes_gb.items()]
    return [Note("; ".join(facts)), Code("\n".join(map(str, event.frames)))]


def parse_debug_log(log: str) -> DebugLog:
    """Read a log that torch_xla wrote with PT_XLA_DEBUG_LEVEL 1 or 2, or PT_XLA_DEBUG=1."""
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


def _events(lines: list[str]) -> list[Event]:
    """Return each analysis; a compile takes the hash and the sizes that follow it along."""
    found: list[Event] = []
    for block in _blocks(lines):
        compiled = found[-1] if found and found[-1].kind == "compile" else None
        if block.kind == _HASH and compiled is not None:
            found[-1] = replace(compiled, computation=block.lines[0])
        elif block.kind == _POST and compiled is not None:
            found[-1] = replace(compiled, sizes_gb=_sizes(block))
        elif block.kind == _POST:
            raise EvidenceError(
                f"a {_POST} Analysis without the Compilation Analysis before it: the "
                "start of the log is missing. Give the whole log.",
                block.line,
            )
        elif block.kind != _HASH:
            found.append(_event(block))
    return found


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
