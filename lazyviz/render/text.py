"""Plain text: numbers for people, tables, a cell's strip and the listing of a graph."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from lazyviz.render.escape import one_line
from lazyviz.render.model import type_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lazyrt.ir.graph import Graph
    from lazyrt.ir.node import Leaf, Node, Value
    from lazyviz.render.strip import Barrier, Fallback, SingleOps, Strip

Align = Literal["<", ">"]

_KIB = 1024
_MINUTE_S = 60
_CLOSE = 1.7  # between these a time is told as one
_HOUR_S = 3600
_MAX_NUMBERS = 12
_LEAF_PREFIX = {"data": "p", "float": "f", "int": "i", "rng": "rng"}


def duration(ns: float) -> str:
    """Return a time span with two or three digits, as `lazyrt.observe.numbers.duration_text`.

    Example:
        >>> [duration(n) for n in (0, 850, 41_300, 4_130_000, 41_300_000, 1_234_000_000)]
        ['0 ns', '850 ns', '41 µs', '4.1 ms', '41 ms', '1.2 s']
        >>> duration(60e9), duration(125e9), duration(3_723e9)
        ('1 min', '2 min 5 s', '1 h 2 min')
    """
    value, unit = float(ns), "ns"
    for larger in ("µs", "ms", "s"):
        if round(value) < 1000:  # noqa: PLR2004
            break
        value, unit = value / 1000, larger
    if unit == "s" and round(value) >= _MINUTE_S:
        return _long_duration(round(value))
    if unit != "ns" and value < 9.95:  # noqa: PLR2004
        return f"{value:.1f} {unit}"
    return f"{value:.0f} {unit}"


def _long_duration(seconds: int) -> str:
    if seconds < _HOUR_S:
        minutes, rest = f"{seconds // _MINUTE_S} min", seconds % _MINUTE_S
        return f"{minutes} {rest} s" if rest else minutes
    hours, rest = f"{seconds // _HOUR_S:,} h", seconds % _HOUR_S // _MINUTE_S
    return f"{hours} {rest} min" if rest else hours


def duration_range(low_ns: float, high_ns: float) -> str:
    """Return an expected time span, or between what it lies where that is not known well.

    Example:
        >>> duration_range(300e6, 1.2e9), duration_range(10e6, 14e6)
        ('0.3 to 1.2 s', 'about 12 ms')
        >>> duration_range(20e6, 80e6), duration_range(0.6e6, 2e6)
        ('20 to 80 ms', '0.6 to 2 ms')
    """
    if high_ns <= _CLOSE * low_ns:
        return f"about {duration((low_ns * high_ns) ** 0.5)}"
    high, _, unit = duration(high_ns).partition(" ")
    scale = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}.get(unit)
    if scale is None or " " in unit:  # of minutes
        return f"{duration(low_ns)} to {duration(high_ns)}"
    low = low_ns / scale
    digits = f"{low:.1f}" if low < 9.95 else f"{low:.0f}"  # noqa: PLR2004
    return f"{digits.removesuffix('.0')} to {high.removesuffix('.0')} {unit}"


def size(nbytes: float) -> str:
    """Return an amount of memory.

    Example:
        >>> size(1), size(512), size(4_300_000), size(3 * 2**40)
        ('1 byte', '512 bytes', '4.1 MiB', '3.0 TiB')
    """
    if nbytes < _KIB:
        return plural(int(nbytes), "byte")
    value, unit = nbytes / _KIB, "KiB"
    for larger in ("MiB", "GiB", "TiB", "PiB"):
        if round(value) < _KIB:
            break
        value, unit = value / _KIB, larger
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"  # noqa: PLR2004


def share(part: float, whole: float = 1) -> str:
    """Return a part in per cent of the whole.

    Example:
        >>> share(0.384), share(1, 3000), share(0, 3000)
        ('38 %', '<1 %', '0 %')
    """
    percent = 100 * part / whole if whole else 0
    return "<1 %" if 0 < percent < 1 else f"{percent:.0f} %"


def more(hidden: int, noun: str = "", nouns: str | None = None) -> list[str]:
    """Return how many a list leaves out, as its last line; no line if it has all.

    Example:
        >>> more(1_200), more(1, "node"), more(0)
        (['... and 1,200 more'], ['... and 1 more node'], [])
    """
    if hidden <= 0:
        return []
    return [
        f"... and {plural(hidden, f'more {noun}', nouns) if noun else f'{hidden:,} more'}"
    ]


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return a count and its noun.

    Example:
        >>> plural(1, "op"), plural(12_345, "op"), plural(2, "entry", "entries")
        ('1 op', '12,345 ops', '2 entries')
    """
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    align: Sequence[Align] | str = (),
) -> str:
    """Return a table with aligned columns, numbers to the right unless `align` says so.

    Example:
        >>> print(table(["step", "cause"], [[1, "user"], [12, "read"]]))
        step  cause
        ----  -----
           1  user
          12  read
    """
    header = [one_line(title) for title in header]
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [
        max([len(title), *(len(row[i]) for row in cells)])
        for i, title in enumerate(header)
    ]
    sides = list(align) or [
        ">" if rows and all(isinstance(row[i], int | float) for row in rows) else "<"
        for i in range(len(header))
    ]

    def line(parts: Sequence[str]) -> str:
        padded = (
            f"{part:{side}{width}}"
            for part, side, width in zip(parts, sides, widths, strict=True)
        )
        return "  ".join(padded).rstrip()

    rule = ["-" * width for width in widths]
    return "\n".join(line(parts) for parts in [header, rule, *cells])


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return one_line(str(value))


def strip_text(strip: Strip) -> str:
    """Return a cell's strip: its line, and below it what made pending ops run."""
    return "\n".join([strip_line(strip), *(f"  {line}" for line in strip_notes(strip))])


def strip_line(strip: Strip) -> str:
    """Return the one line that sums a cell up; only what happened is named."""
    return " · ".join(strip_parts(strip))


def strip_parts(strip: Strip) -> list[str]:
    """Return the parts of the strip's line, in their order."""
    from lazyviz.render import state

    pending = plural(strip.pending_ops, "pending op")
    if strip.new_ops:
        pending += f" (+{strip.new_ops:,} here)"
    parts = [pending, plural(strip.live_tensors, "live tensor")]
    if strip.singles is not None:
        parts.append(_single_ops(strip.singles, strip.compile_ns))
    if strip.steps:
        parts.append(plural(strip.steps, "step"))
    if strip.compiles:
        parts.append(f"compiled {strip.compiles:,} in {duration(strip.compile_ns)}")
    if strip.loads:
        parts.append(f"loaded {strip.loads:,} from disk in {duration(strip.load_ns)}")
    if strip.executions:
        parts.append(_executed(strip))
    if strip.cache_hits:
        parts.append(plural(strip.cache_hits, "cache hit"))
    if strip.peeks:
        parts.append(f"{plural(strip.peeks, 'peek')} in {duration(strip.peek_ns)}")
    if strip.transfers:
        transfers = plural(strip.transfers, "transfer")
        parts.append(f"{transfers} in {duration(strip.transfer_ns)}")
    if strip.fallbacks:
        count = sum(fallback.times for fallback in strip.fallbacks)
        parts.append(plural(count, "CPU fallback"))
    if strip.state is not None:
        shown = dataclasses.replace(
            strip.state, mode="lazy"
        )  # `singles` tells the mode
        parts += state.open_parts(shown)
    if strip.interrupted:
        parts.append("interrupted")
    elif strip.error is not None:
        parts.append(f"stopped by {strip.error}")
    return list(map(one_line, parts))


def _single_ops(singles: SingleOps, compile_ns: int) -> str:
    """Return the badge of a mode in which ops run one by one, with what they cost."""
    if not singles.ops:
        return singles.mode
    part = f"{singles.mode}: {plural(singles.ops, 'op')} in {duration(singles.run_ns)}"
    compiled = singles.ops - singles.cache_hits
    if compiled:
        part += f", {compiled:,} compiled in {duration(compile_ns)}"
    return f"{part}, {plural(singles.cache_hits, 'hit')}"


def _executed(strip: Strip) -> str:
    done = strip.executions - strip.running
    if done <= 0:
        return f"executing {strip.executions:,}, still running"
    part = f"executed {done:,} in {duration(strip.execute_ns)}"
    return f"{part}, {strip.running:,} still running" if strip.running else part


def strip_notes(strip: Strip) -> list[str]:
    """Return what a user may want to act on: barriers, fallbacks, recompiles."""
    singles = strip.singles
    from lazyviz.render import state

    notes = [
        *(_single_notes(singles) if singles is not None else ()),
        *map(barrier_text, strip.barriers),
        *map(state.repeat_text, strip.repeats),
        *map(state.looked_text, strip.looks),
        *strip.prints,
        *(f"{line} printed" for line in more(strip.more_prints)),
        *([state.apart_text(strip.apart)] if strip.apart is not None else ()),
        *map(state.left_text, strip.left),
        *strip.waiting,
        *map(state.redundant_text, strip.redundant),
        *map(fallback_text, strip.fallbacks),
        *strip.waits,
        *map(compiled_text, strip.reasons),
    ]
    return list(map(one_line, notes))


def urgent_notes(strip: Strip) -> list[str]:
    """Return those of the notes that cost time each time the cell runs, the dearest kind first."""
    from lazyviz.render import state

    told = map(compiled_text, strip.reasons)
    notes = [
        *(note for note in told if note.startswith("recompiled")),
        *map(fallback_text, strip.fallbacks),
        *(barrier_text(each) for each in strip.barriers if each.cut is not None),
        *map(state.repeat_text, strip.repeats),
        *([state.apart_text(strip.apart)] if strip.apart is not None else ()),
        *map(state.left_text, strip.left),
        *map(state.redundant_text, strip.redundant),
    ]
    return list(map(one_line, notes))


def _single_notes(singles: SingleOps) -> list[str]:
    notes = []
    if singles.idle_barriers:
        many = plural(singles.idle_barriers, "barrier")
        notes.append(f"{many} had no effect: in eager mode each op has run already")
    if singles.repeats:
        many = plural(singles.repeats, "op")
        notes.append(
            f"{many} executed again: op-by-op mode remembers nothing between reads; "
            "lazyrt.materialise(t) does"
        )
    return notes


# What a graph without an earlier relative has as its reason.
_NEW = ("the first graph", "a program not seen", "no boundary had come")


def compiled_text(reason: str) -> str:
    """Return why a graph was compiled, and whether one like it had been before."""
    return f"{'compiled' if reason.startswith(_NEW) else 'recompiled'}: {reason}"


def barrier_text(barrier: Barrier) -> str:
    """Return why pending ops ran, and where.

    Example:
        >>> from lazyviz.render.strip import Barrier
        >>> barrier_text(Barrier(cause="read by .item()", site="cell 3 line 7", nodes=214))
        'ran 214 ops here: read by .item() at cell 3 line 7'
    """
    if barrier.cut is not None:
        from lazyviz.render import state

        return state.cut_text(barrier)
    where = f" at {barrier.site}" if barrier.site else ""
    many = f" in {barrier.times:,} barriers" if barrier.times > 1 else ""
    return f"ran {plural(barrier.nodes, 'op')} here{many}: {barrier.cause}{where}"


def fallback_text(fallback: Fallback) -> str:
    """Return which op ran on the CPU, and where."""
    where = f" at {fallback.site}" if fallback.site else ""
    many = f" {fallback.times:,} times" if fallback.times > 1 else ""
    return f"{fallback.op} ran on the CPU{many}{where}, which cut the graph"


def listing(
    graph: Graph,
    limit: int | None = None,
    names: Mapping[Any, str] = MappingProxyType({}),
) -> str:
    """Return one line for each operation of a graph: what, on what, of which type, whence.

    Args:
        graph: A graph of the runtime.
        limit: At most so many operations, the last ones; None for all.
        names: What the user calls inputs, as far as it is known.
    """
    nodes = graph.nodes
    hidden = max(0, len(nodes) - limit) if limit is not None else 0
    shown = nodes[hidden:]
    lines = [
        one_line(
            f"{_leaf_name(leaf)} : {_type(leaf)}"
            + (f"  # {names[leaf]}" if names.get(leaf) else "")
        )
        for leaf in _leaves(graph, shown)
    ]
    if hidden:
        lines.append(f"... {plural(hidden, 'earlier op')}")
    lines.extend(map(_node_line, shown))
    lines.append("return " + ", ".join(map(_reference, graph.roots)))
    return "\n".join(lines)


def number_lines(graph: Graph) -> list[str]:
    """Return which Python numbers a graph embeds as constants, and which are inputs of it.

    None where it has none. Sizes and dimensions are no such numbers: they are part of types.
    """
    embedded: dict[str, list[str]] = {}
    inputs: dict[str, str] = {}
    for node in graph.nodes:
        site = str(node.provenance.site or "")
        for arg in node.args:
            if isinstance(arg, tuple) and len(arg) == 2 and arg[0] is float:  # noqa: PLR2004
                places = embedded.setdefault(str(arg[1]), [])
                if site not in places:
                    places.append(site)
            elif getattr(arg, "kind", "") in {"float", "int"}:
                inputs.setdefault(_leaf_name(arg), site)
    lines = []
    if embedded:
        shown = [f"{n} ({', '.join(filter(None, s[:3]))})" for n, s in embedded.items()]
        lines.append(
            f"# embedded as constants: {_some(shown)}; "
            "one that varies becomes an input with its second value"
        )
    if inputs:
        shown = [f"{name} ({site})" if site else name for name, site in inputs.items()]
        lines.append(
            f"# numbers that are inputs: {_some(shown)}; other values of them compile nothing"
        )
    return lines


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_NUMBERS
    shown = ", ".join(map(one_line, names[:_MAX_NUMBERS]))
    return f"{shown} and {rest:,} more" if rest > 0 else shown


def _leaves(graph: Graph, shown: Sequence[Node]) -> Iterator[Leaf]:
    if len(shown) == len(graph.nodes):
        yield from graph.parameters
        return
    used = {id(value) for node in shown for value in node.operands}
    used.update(id(root) for root in graph.roots)
    yield from (leaf for leaf in graph.parameters if id(leaf) in used)


def _node_line(node: Node) -> str:
    types = ", ".join(
        _type(value) if value is not None else "none" for value in node.outputs
    )
    where = ", ".join(
        part for part in (_module(node), str(node.provenance.site or "")) if part
    )
    comment = f"  # {where}" if where else ""
    line = f"%{node.id} = {node.op.name}({_arguments(node)}) : {types}{comment}"
    return one_line(line)


def _module(node: Node) -> str:
    module = getattr(node.provenance, "path", node.provenance.module)
    if node.provenance.backward is None:
        return module
    return f"{module} (backward)" if module else "backward"


def _arguments(node: Node) -> str:
    names = _argument_names(node)
    parts = [
        f"{name}={_argument(arg)}" if name else _argument(arg)
        for name, arg in zip(names, node.args, strict=True)
        if not (name and arg is None)
    ]
    while parts and parts[-1] == "None":
        parts.pop()
    return ", ".join(parts)


def _argument_names(node: Node) -> list[str]:
    """Return the name of each keyword-only argument, and empty ones for the others."""
    arguments = list(getattr(node.op.schema, "arguments", ()))
    names = [arg.name if arg.kwarg_only else "" for arg in arguments]
    extra = len(node.args) - len(names)  # a random op has its RNG state in front
    return [""] * extra + names if extra >= 0 else [""] * len(node.args)


def _argument(arg: Any) -> str:
    if hasattr(arg, "dtype") and hasattr(arg, "node"):
        return _reference(arg)
    if isinstance(arg, tuple):
        if len(arg) == 2 and arg[0] in (float, bool, complex):  # noqa: PLR2004
            return str(arg[1])
        return "[" + ", ".join(map(_argument, arg)) + "]"
    return str(arg)


def _reference(value: Value) -> str:
    if value.node is None:
        return _leaf_name(value)
    suffix = f".{value.index}" if len(value.node.outputs) > 1 else ""
    return f"%{value.node.id}{suffix}"


def _leaf_name(leaf: Any) -> str:
    return f"%{_LEAF_PREFIX.get(leaf.kind, leaf.kind)}{leaf.position}"


def _type(value: Value) -> str:
    return type_text(value.shape, value.dtype)
