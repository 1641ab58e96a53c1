"""`%lazy cache`: the executables in memory and on disk as a table, and dropping them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from lazyviz.doc import Doc, Note, Sentence, Table
from lazyviz.render import text
from lazyviz.render.escape import markup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

_NONE = "No executable is in memory or on disk."
_MAX_ROWS = 40
_MAX_LIVE_ROWS = 300
_KEY_DIGITS = 8
_MINUTE_S = 60
_DAY_S = 86_400
_UNITS_S = {"m": 60, "h": 3_600, "d": _DAY_S, "w": 7 * _DAY_S}
_USAGE = (
    "%lazy cache lists the executables, %lazy cache --sort size the largest first; "
    "%lazy cache drop KEY drops one, %lazy cache drop all "
    "drops all, and %lazy cache drop older 7d those unused for 7 days (m, h, d, w)."
)


_COLUMNS = (
    "key",
    "holds",
    "ops",
    "tier",
    "at",
    "size",
    "compile",
    "hits",
    "where",
    "age",
    "unused for",
)
_NUMBERS = frozenset(("ops", "size", "compile", "hits", "age", "unused for"))
# What `%lazy cache --sort` takes, with what it sorts by; the largest come first.
ORDERS: dict[str, Callable[[Any], Any]] = {
    "ops": lambda entry: -entry.nodes,
    "size": lambda entry: -entry.nbytes,
    "compile": lambda entry: -entry.compile_ns,
    "hits": lambda entry: -entry.hits,
    "age": lambda entry: -entry.age_s,
    "unused": lambda entry: -entry.unused_s,
    "holds": lambda entry: entry.holds,
    "line": lambda entry: entry.line,
}


class _Cell(NamedTuple):
    """What a column shows of an executable, and what it is sorted by."""

    shown: str | int
    value: str | float


def doc(entries: Sequence[Any]) -> Doc:
    """Return the executables, as `lazyrt.cached_executables()` gives them, as a table."""
    if not entries:
        return Doc([Sentence(_NONE)])
    rows = [[cell.shown for cell in _cells(entry)] for entry in entries[:_MAX_ROWS]]
    more = text.more(len(entries) - _MAX_ROWS)
    return Doc([Table(_COLUMNS, rows), *map(Note, [*more, summary(entries)])])


def live_html(entries: Sequence[Any]) -> str:
    """Return the same with buttons, for a page that listens to them."""
    if not entries:
        return f"<p>{markup(_NONE)}</p>"
    head = "".join(
        f'<th scope="col" class="lzx-{"n" if name in _NUMBERS else "w"}"><button type="button" data-sort="{k}" '
        f'data-first="{"down" if name in _NUMBERS else "up"}">{markup(name)}</button></th>'
        for k, name in enumerate(_COLUMNS)
    )
    body = "".join(map(_live_row, entries[:_MAX_LIVE_ROWS]))
    more = text.more(len(entries) - _MAX_LIVE_ROWS)
    foot = ". ".join([*more, summary(entries)])
    return (
        f'<table><thead><tr>{head}<th scope="col" class="lzx-act">drop</th></tr></thead>'
        f"<tbody>{body}</tbody></table><p>{markup(foot)}</p>"
    )


def _live_row(entry: Any) -> str:
    cells = []
    for name, cell in zip(_COLUMNS, _cells(entry), strict=True):
        shown = markup(f"{cell.shown:,}" if isinstance(cell.shown, int) else cell.shown)
        kind = "lzx-n" if name in _NUMBERS else f"lzx-{name}"
        inner = f"<code>{shown}</code>" if name == "key" else shown
        if name == "holds":
            inner = inner.replace("(", "(<wbr>")  # a type stays whole
        cells.append(
            f'<td class="{kind}" data-v="{markup(str(cell.value))}">{inner}</td>'
        )
    button = (
        f'<td><button type="button" data-key="{markup(entry.key)}" '
        f'aria-label="evict {markup(entry.holds or entry.key[:_KEY_DIGITS])}">evict</button>'
        "</td>"
    )
    return f"<tr>{''.join(cells)}{button}</tr>"


def _cells(entry: Any) -> list[_Cell]:
    place = _place(entry)
    size = text.size(entry.nbytes) if entry.nbytes else ""
    took = text.duration(entry.compile_ns) if entry.compile_ns else ""
    return [
        _Cell(entry.key[:_KEY_DIGITS], entry.key),
        _Cell(entry.holds or "not recorded", entry.holds),
        _Cell(entry.nodes or "", entry.nodes),
        _Cell(entry.tier, entry.tier),
        _Cell(entry.line, entry.line),
        _Cell(size, entry.nbytes),
        _Cell(took, entry.compile_ns),
        _Cell(entry.hits, entry.hits),
        _Cell(place, place),
        _Cell(span(entry.age_s), entry.age_s),
        _Cell(span(entry.unused_s), entry.unused_s),
    ]


def ordered(entries: Sequence[Any], order: str) -> list[Any]:
    """Return the executables in the order that a word behind `--sort` names.

    Raises:
        ValueError: There is no such order.
    """
    if order not in ORDERS:
        raise ValueError(
            f"%lazy cache --sort {order}: there is no order {order!r}. It takes "
            f"{', '.join(ORDERS)}; without it the latest used come first."
        )
    return sorted(entries, key=ORDERS[order])


def summary(entries: Sequence[Any]) -> str:
    """Return how many executables there are, and where."""
    in_memory = sum(entry.in_memory for entry in entries)
    on_disk = sum(entry.on_disk for entry in entries)
    nbytes = text.size(sum(entry.nbytes for entry in entries))
    where = f"{in_memory:,} in memory, {on_disk:,} on disk"
    return f"{text.plural(len(entries), 'executable')}: {where}" + (
        f" ({nbytes})" if on_disk else ""
    )


def drop(runtime: ModuleType, words: Sequence[str]) -> str:
    """Drop the executables that the words behind `drop` name; return what was dropped.

    Raises:
        ValueError: The words name no executable, or are none of the three forms.
    """
    match list(words):
        case ["all"]:
            dropped = runtime.drop_executables()
        case ["older", span_text]:
            dropped = runtime.drop_executables(unused_s=seconds(span_text))
        case [key] if key != "older":
            dropped = runtime.drop_executables(key)
        case _:
            given = " ".join(["drop", *words])
            raise ValueError(f"%lazy cache {given} names no executable. {_USAGE}")
    if not dropped:
        return "No executable was dropped: none is that old, or there is none."
    return f"Dropped {summary(dropped)}. What is needed again is compiled again."


def unknown(rest: str) -> str:
    """Return what to say of a subcommand that is none."""
    if rest == "--sort":
        return f"%lazy cache --sort needs an order: {', '.join(ORDERS)}."
    return f"%lazy cache has no subcommand {rest!r}. {_USAGE}"


def seconds(span_text: str) -> float:
    """Return the seconds of `30m`, `12h`, `7d` or `2w`.

    Example:
        >>> seconds("2h"), seconds("7d")
        (7200, 604800)
    """
    found = re.fullmatch(r"(\d+)([mhdw])", span_text)
    if found is None:
        raise ValueError(
            f"{span_text!r} is no span of time, so nothing was dropped. {_USAGE}"
        )
    return int(found[1]) * _UNITS_S[found[2]]


def span(seconds: float) -> str:
    """Return an age.

    Example:
        >>> span(0.2), span(42), span(3 * 86_400)
        ('0 s', '42 s', '3 days')
    """
    if seconds >= 2 * _DAY_S:
        return text.plural(int(seconds // _DAY_S), "day")
    whole = int(seconds)
    return f"{whole} s" if whole < _MINUTE_S else text.duration(whole * 1e9)


def _place(entry: Any) -> str:
    if not entry.is_usable:
        return "disk, other version"
    places = [
        name
        for name, here in (("memory", entry.in_memory), ("disk", entry.on_disk))
        if here
    ]
    return ", ".join(places)
