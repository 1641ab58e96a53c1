"""The text of an XLA_SAVE_TENSORS_FILE to a `TensorsDump`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazyviz.foreign.evidence import EvidenceError, Frame, parse_frame, shorten
from lazyviz.foreign.tensors_dump import DumpedGraph, TensorsDump

if TYPE_CHECKING:
    from lazyviz.foreign.tensors_dump import Format

BEGIN, END = "## BEGIN_GRAPH", "## END_GRAPH"
_EVENT = re.compile(r"\[(\w+)\]\s*")
_ROOTS = re.compile(r"(?:Root )?Hashes: \(([0-9a-f, ]*)\)\s*")
_GRAPH_HASH = re.compile(r"Graph Hash: ([0-9a-f]+)\s*")
_STARTS: tuple[tuple[str, Format], ...] = (
    ("IR {", "text"),
    ("digraph ", "dot"),
    ("HloModule ", "hlo"),
    ("module ", "stablehlo"),
)


def parse_tensors_dump(dump: str) -> TensorsDump:
    """Read the graphs that torch_xla appended to XLA_SAVE_TENSORS_FILE.

    Raises:
        EvidenceError: There is no graph in it, one has no end, or none of the formats.
    """
    event, frames, roots = "", list[Frame](), tuple[str, ...]()
    graphs: list[DumpedGraph] = []
    lines = dump.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        named, rooted = _EVENT.fullmatch(line), _ROOTS.fullmatch(line)
        frame = parse_frame(line)
        if line.strip() == BEGIN:
            end = _end(lines, number)
            graphs.append(_graph(event, frames, roots, lines[number:end], number + 1))
            number = end + 1
            event, frames, roots = "", [], ()
        elif named is not None:
            event, frames = named[1], []
        elif rooted is not None:
            roots = tuple(filter(None, re.split(r",\s*", rooted[1])))
        elif frame is not None:
            frames.append(frame)
    if not graphs:
        raise EvidenceError(
            f"there is no graph in the text that starts with {shorten(dump)}. A dump has "
            f"graphs between lines '{BEGIN}' and '{END}'; set XLA_SAVE_TENSORS_FILE and run "
            "the program again."
        )
    return TensorsDump(tuple(graphs))


def _end(lines: list[str], begin: int) -> int:
    for number in range(begin, len(lines)):
        if lines[number].strip() == END:
            return number
        if lines[number].strip() == BEGIN:
            break
    raise EvidenceError(
        f"the graph that begins here has no '{END}': the dump was cut, or the program ended "
        "while it wrote. Leave this graph out, or run the program again.",
        begin,
    )


def _graph(
    event: str,
    frames: list[Frame],
    roots: tuple[str, ...],
    lines: list[str],
    number: int,
) -> DumpedGraph:
    found = [_GRAPH_HASH.fullmatch(line) for line in lines]  # the last line of a body
    hashes = [match[1] for match in found if match]
    body = "\n".join(
        line for line, match in zip(lines, found, strict=True) if match is None
    ).strip("\n")
    known = next(
        (kind for start, kind in _STARTS if body.lstrip().startswith(start)), None
    )
    if known is None:
        raise EvidenceError(
            f"the graph starts with {shorten(body)}, which is none of the formats of "
            "XLA_SAVE_TENSORS_FMT: text, dot, hlo, stablehlo.",
            number,
        )
    return DumpedGraph(
        event=event,
        frames=tuple(frames),
        roots=roots,
        graph_hash=hashes[-1] if hashes else "",
        format=known,
        body=body,
        line=number + next((k for k, line in enumerate(lines) if line.strip()), 0),
    )
