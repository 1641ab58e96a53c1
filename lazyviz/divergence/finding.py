"""The first barrier at which replicas part, in a sentence, with what mends it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lazygraph import HloError, diff
from lazygraph.explain.hlo_causes import sentences
from lazygraph.graph import PARAMETER
from lazyviz.divergence.alignment import called, order
from lazyviz.draw.model import clip
from lazyviz.foreign import EvidenceError
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lazygraph import Graph, GraphDiff
    from lazygraph.snapshot import SourceLocation
    from lazyviz.divergence.alignment import Aligned, Barrier, Program, Row, Track

_MAX_SIDES = 4
_MAX_INPUTS = 3
_MAX_CAUSES = 4
_MAX_SOURCE = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Some replicas that agree on a barrier.

    Attributes:
        names: Of the replicas.
        barrier: What they have there; None for nothing.
        following: Their next barrier that ran something, None if none follows.
        is_usual: Whether they had it before: this graph, where graphs differ, else this line.
    """

    names: tuple[str, ...]
    barrier: Barrier | None
    following: Barrier | None = None
    is_usual: bool = False

    @property
    def own(self) -> Barrier:
        """Their barrier, where it is known that they have one."""
        if self.barrier is None:
            raise ValueError(f"{called(self.names)} has no barrier there")
        return self.barrier


@dataclass(frozen=True, slots=True)
class Difference:
    """The first barrier at which replicas part.

    Attributes:
        row: Its number, from 1, counted over all rows.
        kind: `gap`, a barrier that some have not; `graph`, another program at the same barrier;
            `place`, the same program from another line.
        sides: Replicas that agree, the most first.
        sentence: What differs.
        fix: What mends it; empty if nothing is wrong.
        causes: Why the graphs differ, in sentences.
        diff: From the graph of most replicas to the other one; None where it is not known.
    """

    row: int
    kind: str
    sides: tuple[Side, ...]
    sentence: str
    fix: str = ""
    causes: tuple[str, ...] = ()
    diff: GraphDiff | None = None


_SAME_SIZES = (
    "give every replica inputs of the same sizes: drop the last batch where it is smaller "
    "(`drop_last=True`), or pad it"
)


class _Reason(NamedTuple):
    """Why two graphs differ, and the line to look at."""

    text: str
    line: object | None = None


def first_difference(tracks: Sequence[Track], aligned: Aligned) -> Difference | None:
    """Return where replicas part first; another line for the same program only if nothing else."""
    for kinds in (("gap", "graph"), ("place",)):
        for number, row in enumerate(aligned.rows):
            if row.kind in kinds:
                return _difference(number, row, tracks, aligned)
    return None


def _difference(
    number: int, row: Row, tracks: Sequence[Track], aligned: Aligned
) -> Difference:
    sides = tuple(_sides(number, row, tracks, aligned))
    found = partial(Difference, aligned.common + number + 1, row.kind, sides)
    if row.kind == "gap":
        mark = "torch_xla.sync()" if tracks[0].state == "dump" else "lazyrt.mark_step()"
        return found(*_gap(sides, mark))
    if row.kind == "place":
        return found(_place(sides))
    return found(*_graph(sides, tracks))


def _sides(
    number: int, row: Row, tracks: Sequence[Track], aligned: Aligned
) -> list[Side]:
    groups: dict[object, list[int]] = {}
    for k, cell in enumerate(row.cells):
        barrier = None if cell is None else tracks[k].barriers[cell]
        if barrier is None and row.kind == "graph":
            continue  # it ended before
        key: object = None
        if (
            barrier is not None
        ):  # where graphs differ, those that run one are of one side
            key = (barrier.graph, barrier.ran) if row.kind == "graph" else barrier.what
        groups.setdefault(key, []).append(k)
    later = aligned.rows[number + 1 :]
    sides = []
    for members in groups.values():
        first = members[0]
        cell = row.cells[first]
        track = tracks[first]
        following = [r.cells[first] for r in later]
        ran = (
            track.barriers[c] for c in following if c is not None and track.barriers[c].ran
        )  # fmt: skip
        sides.append(
            Side(
                names=tuple(tracks[k].name for k in members),
                barrier=None if cell is None else track.barriers[cell],
                following=next(ran, None),
                is_usual=cell is not None and _is_usual(track, cell, row.kind),
            )
        )
    return sorted(sides, key=lambda side: -len(side.names))


def _is_usual(track: Track, cell: int, kind: str) -> bool:
    barrier = track.barriers[cell]
    before = track.barriers[:cell]
    if kind == "graph":
        return any(each.graph == barrier.graph for each in before)
    return any(each.where == barrier.where for each in before)


def _verb(names: Sequence[str], one: str, many: str) -> str:
    return one if len(names) == 1 else many


def _gap(sides: Sequence[Side], mark: str) -> tuple[str, str]:
    """Return the sentence and the repair of a barrier that some replicas have not."""
    lacking = next(side for side in sides if side.barrier is None)
    having = max(
        (side for side in sides if side.barrier is not None), key=lambda s: len(s.names)
    )
    owners = [name for s in sides if s.barrier is not None for name in s.names]
    if len(owners) > len(lacking.names) or (
        len(owners) == len(lacking.names) and having.is_usual
    ):
        return _missing(lacking, having)
    return _extra(having.own, owners, lacking, mark)


def _extra(
    barrier: Barrier, owners: list[str], lacking: Side, mark: str
) -> tuple[str, str]:
    who = called(owners)
    have = _verb(owners, "has", "have")
    others = called(lacking.names) if len(lacking.names) == 1 else "the others"
    have_not = _verb(lacking.names, "has", "have")
    sentence = f"{who} {have} a {barrier.word}{_at(barrier)}, {_said(barrier)}, that {others} {have_not} not"
    waits = lacking.following
    if waits is not None and waits.place is not None:
        it = "it" if len(owners) == 1 else "them"
        go = _verb(lacking.names, "it waits", "they wait")
        same = (
            ", and run there what it runs here" if waits.graph == barrier.graph else ""
        )
        if len(lacking.names) == 1:
            go, same = f"{others} waits", same.replace("and run", "and runs")
        sentence += f": {go} for {it} at {waits.place}{same}"
    elif waits is None:
        sentence += f": {others} {_verb(lacking.names, 'runs', 'run')} nothing more"
    return sentence, _let_all(barrier, mark)


def _missing(lacking: Side, having: Side) -> tuple[str, str]:
    barrier = having.own
    who = called(lacking.names)
    others = called(having.names) if len(having.names) == 1 else "the others"
    have = _verb(having.names, "has", "have")
    one = len(lacking.names) == 1
    sentence = (
        f"{who} {'has' if one else 'have'} no {barrier.word}{_at(barrier)}, {_said(barrier)}, that "
        f"{others} {have}"
    )
    goes = lacking.following
    it = "it" if one else "them"
    wait = f"{others} {'waits' if len(having.names) == 1 else 'wait'} for {it} there"
    if goes is not None:
        sentence += f": {wait}, while {'it goes' if one else 'they go'} on to {goes}"
    else:
        sentence += f": {wait}, and {'it runs' if one else 'they run'} nothing more"
    where = _guard(barrier.lines) or "what leads there"
    return sentence, f"let {who} reach {barrier.place or 'it'} too: see {where}"


def _said(barrier: Barrier) -> str:
    """Return the cause, with what was read and the function around."""
    cause = barrier.cause
    if barrier.tensor and cause.startswith("read by"):
        cause = cause.replace("read by", f"read of `{barrier.tensor}` by", 1)
    names = [
        line.function for line in barrier.lines if not line.function.startswith("<")
    ]
    named = f" in {names[0]}()" if names else ""
    ops = f", {text.plural(barrier.ops, 'op')}" if barrier.ops else ""
    return f"{cause}{named}{ops}"


def _at(barrier: Barrier) -> str:
    return f" at {barrier.place}" if barrier.place is not None else ""


def _let_all(barrier: Barrier, mark: str) -> str:
    """Return what makes a barrier of some replicas one of all; `mark` is a call that makes one."""
    where = _guard(barrier.lines)
    if not barrier.cause.startswith("read by") and where:
        return f"let every replica run {barrier.place}: move it out of {where}"
    if barrier.word == "collective":
        return f"let every replica call {barrier.cause}, in the same order"
    place = f" in front of {where or barrier.place}" if where or barrier.place else ""
    return (
        f"call {mark} on every replica{place}: then nothing is pending at {barrier.place or 'it'}, and "
        "what it reads is no barrier any more"
    )


def _guard(lines: Sequence[SourceLocation]) -> str:
    """Return the innermost `if` around the lines that lead to a barrier, and where it stands."""
    for line in lines:
        if line.cell is not None or not line.file.endswith(".py"):
            continue
        source = _source(line.file)
        try:
            tree = ast.parse("".join(source))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        found = [
            node for node in ast.walk(tree)
            if isinstance(node, ast.If)
            and node.body[0].lineno <= line.line <= (node.end_lineno or 0)
            and "__name__" not in ast.unparse(node.test)
        ]  # fmt: skip
        if found:
            node = max(found, key=lambda each: each.lineno)
            words = clip(source[node.lineno - 1].strip(), 60)
            return f"`{words}` at {Path(line.file).name}:{node.lineno}"
    return ""


def _source(file: str) -> list[str]:
    """Return a file's lines, none if it is not on this machine."""
    path = Path(file)
    try:
        if not path.is_file() or path.stat().st_size > _MAX_SOURCE:
            return []
        return path.read_text(encoding="utf-8", errors="replace").splitlines(
            keepends=True
        )
    except (OSError, ValueError):
        return []


def _place(sides: Sequence[Side]) -> str:
    parts = [
        f"{called(side.names)} from {side.barrier}"
        for side in sides[:_MAX_SIDES]
        if side.barrier is not None
    ]
    return f"the replicas run the same program from different lines: {'; '.join(parts)}"


def _graph(
    sides: Sequence[Side], tracks: Sequence[Track]
) -> tuple[str, str, tuple[str, ...], GraphDiff | None]:
    """Return what differs in the graphs of two sides: of most replicas, and of the next most.

    The sentence, the repair, the causes and the diff are those of a `Difference`.
    """
    most, odd = sides[0], sides[1]
    if len(most.names) == len(
        odd.names
    ):  # what one of them had never run is what is odd
        most, odd = sorted(
            (most, odd), key=lambda side: (not side.is_usual, order(side.names[0]))
        )
    if not odd.own.ran or not most.own.ran:
        return (
            _nothing_ran(*sorted((most, odd), key=lambda side: side.own.ran)),
            "",
            (),
            None,
        )
    reasons, found, inputs = [], None, []
    try:
        programs = [_program(side, tracks) for side in (most, odd)]
        if programs[0] is not None and programs[1] is not None:
            found = diff(programs[0].load(), programs[1].load())
            inputs = list(_inputs(found, odd, most))[:_MAX_INPUTS]
            reasons = _reasons(programs[0], programs[1], found, odd, most)
    except (EvidenceError, HloError) as error:
        reasons = [_Reason(f"what differs is not known: {error}")]
    except ImportError as error:
        reasons = [
            _Reason(f"what differs is not known, as {error.name} is not installed here")
        ]
    if inputs:
        sentence, fix = f"{'; '.join(inputs)}, at {odd.own}", _SAME_SIZES
    else:
        sentence = _another_program(odd, most, reasons)
        fix = _same_program(odd.own, reasons, found)
    if len(sides) > 2:  # noqa: PLR2004
        rest = len(sides) - 2
        sentence += f"; {text.plural(rest, 'further group')} of replicas run{'s' if rest == 1 else ''} yet another program"
    return sentence, fix, tuple(r.text for r in reasons[:_MAX_CAUSES]), found


def _another_program(odd: Side, most: Side, reasons: Sequence[_Reason]) -> str:
    runs = _verb(odd.names, "runs", "run")
    counts = f"{odd.own.ops:,} ops, {most.own.ops:,} in {_beside(most)}"
    why = f": {reasons[0].text}" if reasons else ""
    return f"{called(odd.names)} {runs} another program{_at(odd.own)} ({odd.own.cause}; {counts}){why}"


def _beside(side: Side) -> str:
    return "the others" if len(side.names) > 1 else called(side.names)


def _nothing_ran(idle: Side, busy: Side) -> str:
    return (
        f"{called(idle.names)} {_verb(idle.names, 'has', 'have')} nothing pending{_at(busy.own)} "
        f"({busy.own.cause}), where {called(busy.names)} {_verb(busy.names, 'runs', 'run')} "
        f"{text.plural(busy.own.ops, 'op')}"
    )


def _program(side: Side, tracks: Sequence[Track]) -> Program | None:
    track = next(track for track in tracks if track.name == side.names[0])
    return track.programs.get(side.own.graph)


def _inputs(found: GraphDiff, odd: Side, most: Side) -> Iterator[str]:
    """Yield which inputs have other types."""
    a, b = found.a, found.b
    who, have = called(odd.names), _verb(odd.names, "has", "have")
    for x, y in found.changed:
        if b.ops[y] != PARAMETER or a.types[x] == b.types[y]:
            continue
        name = b.origin(y).op_name or a.origin(x).op_name
        number = b.numbers.get(y, y)
        shown = f"input {number}" + (f" (`{name}`)" if name else "")
        others = f"{_beside(most)} {a.types[x]}{_read_at(b, y)}"
        yield f"{who} {have} {shown} = {b.types[y]}, {others}"


def _read_at(graph: Graph, node: int) -> str:
    """Return the line that reads an input first."""
    for user, _ in graph.users[node]:
        if graph.site(user):
            return f" (read at {graph.site(user)})"
    return ""


def _reasons(
    before: Program, now: Program, found: GraphDiff, odd: Side, most: Side
) -> list[_Reason]:
    """Return why the graph of the odd side is not that of most, the runtime's causes first."""
    if before.record is not None and now.record is not None:
        said = _of_runtime(
            before.record(), now.record(), _beside(most), called(odd.names)
        )
        if said:
            return said
    return [
        _Reason(f"from {called(most.names)} to {called(odd.names)}: {each}")
        for each in sentences(found)
    ]


def _of_runtime(before: Any, now: Any, most: str, odd: str) -> list[_Reason]:
    """Return the causes that a recompilation would have; none for a record that was edited."""
    from lazyrt.tools import differences

    before.name, now.name = f"the graph of {most}", f"the graph of {odd}"
    try:
        causes, unexplained = differences(before, now)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return []
    said = [
        _Reason(
            f"in {now.name}, against that of {most}: {cause}", cause.now or cause.before
        )
        for cause in causes
    ]
    if unexplained:
        noun = text.plural(unexplained, "more op")
        said.append(_Reason(f"{noun} differ for no cause that is known"))
    return said


def _same_program(
    barrier: Barrier, reasons: Sequence[_Reason], found: GraphDiff | None
) -> str:
    """Return what makes replicas run one program."""
    lines = [str(reason.line) for reason in reasons if reason.line is not None]
    if found is not None and not lines:
        lines = [g.site(n) for g, nodes in ((found.b, found.added), (found.a, found.removed))
                 for n in nodes if g.site(n)]  # fmt: skip
    where = f" (look at {lines[0]})" if lines else ""
    return (
        f"let every replica record the same ops before {barrier.place or barrier.cause}{where}: a condition "
        "on the rank may choose what is saved or printed, not what is computed"
    )
