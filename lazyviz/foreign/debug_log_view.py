"""A debug log as tables: one row a graph, and what stands out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from lazyviz.render import html, text
from lazyviz.render.escape import markup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazyviz.foreign.debug_log import DebugLog, Event

_HEADER = [
    "graph",
    "name",
    "in / out",
    "compiles",
    "executions",
    "in",
    "cause",
]
_HASH_DIGITS = 8
_MAX_EVENTS = 200
_READ = "a value was read before the step's end"


def log_text(log: DebugLog) -> str:
    """Return a table of the graphs, then what stands out."""
    parts = [_summary(log)]
    if log.events:
        parts.append(text.table(*_columns(log)))
    notes = list(sentences(log))
    if notes:
        parts.append("\n".join(notes))
    return "\n\n".join(parts)


def log_html(log: DebugLog) -> str:
    """Return the table and the sentences, with every event folded."""
    parts = [html.muted(_summary(log))]
    if log.events:
        parts.append(html.table(*_columns(log)))
    notes = "".join(f"<li>{markup(note)}</li>" for note in sentences(log))
    if notes:
        parts.append(f"<ul>{notes}</ul>")
    shown = log.events[:_MAX_EVENTS]
    parts += [html.folded(_title(event), _details(event)) for event in shown]
    if len(shown) < len(log.events):
        rest = text.plural(len(log.events) - len(shown), "later event")
        parts.append(html.muted(f"... and {rest}; `log.events` has all"))
    return f'<div class="lazyviz-log">{"".join(parts)}</div>'


def log_dict(log: DebugLog) -> dict[str, Any]:
    """Return the events, the summary and the sentences as plain data."""
    return {
        "events": [
            {
                "kind": event.kind,
                "cause": event.cause,
                "name": event.name,
                "graph": event.graph,
                "inputs": event.inputs,
                "outputs": event.outputs,
                "frames": list(map(str, event.frames)),
                "computation": event.computation,
                "sizes_gb": dict(event.sizes_gb),
                "line": event.line,
            }
            for event in log.events
        ],
        "unlowered": [
            {"op": u.op, "frames": list(map(str, u.frames)), "count": u.count}
            for u in log.unlowered
        ],
        "findings": list(sentences(log)),
    }


def sentences(log: DebugLog) -> Iterator[str]:
    """Yield what stands out: reads that cut a step, lines with many graphs, fallbacks."""
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


def _columns(log: DebugLog) -> tuple[list[str], list[list[object]]]:
    rows = [
        _row(graph, events, level_2=bool(log.executions))
        for graph, events in log.graphs.items()
    ]
    keep = [k for k in range(len(_HEADER)) if any(row[k] != "" for row in rows)]
    return [_HEADER[k] for k in keep], [[row[k] for k in keep] for row in rows]


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


def _details(event: Event) -> str:
    facts = [
        f"{text.plural(event.inputs, 'input')}, {text.plural(event.outputs, 'output')}"
    ]
    if event.computation:
        facts.append(f"computation {event.computation}")
    facts += [f"{name}: {size:g} GB" for name, size in event.sizes_gb.items()]
    return html.muted("; ".join(facts)) + html.pre("\n".join(map(str, event.frames)))
