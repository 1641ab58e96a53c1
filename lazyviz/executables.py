"""`%lazy cache`: the executables in memory and on disk as a table, and dropping them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_MAX_ROWS = 40
_KEY_DIGITS = 8
_DAY_S = 86_400
_UNITS_S = {"m": 60, "h": 3_600, "d": _DAY_S, "w": 7 * _DAY_S}
_USAGE = (
    "%lazy cache lists the executables; %lazy cache drop KEY drops one, %lazy cache drop all "
    "drops all, and %lazy cache drop older 7d those unused for 7 days (m, h, d, w)."
)


def table(entries: Sequence[Any]) -> str:
    """Return the executables as `lazyrt.cached_executables()` gives them."""
    if not entries:
        return "No executable is in memory or on disk."
    rows = [
        (
            entry.key[:_KEY_DIGITS],
            entry.holds or "not recorded",
            entry.nodes or "",
            entry.tier,
            entry.line,
            text.size(entry.nbytes) if entry.nbytes else "",
            _place(entry),
            span(entry.age_s),
            span(entry.unused_s),
        )
        for entry in entries[:_MAX_ROWS]
    ]
    header = ["key", "holds", "ops", "tier", "at", "size", "where", "age", "unused for"]
    lines = [text.table(header, rows)]
    if len(entries) > _MAX_ROWS:
        lines.append(f"... and {len(entries) - _MAX_ROWS:,} unused for longer")
    return "\n".join([*lines, summary(entries)])


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
            given = " ".join(words)
            raise ValueError(f"%lazy cache drop {given} names no executable. {_USAGE}")
    if not dropped:
        return "No executable was dropped: none is that old, or there is none."
    return f"Dropped {summary(dropped)}. What is needed again is compiled again."


def unknown(rest: str) -> str:
    """Return what to say of a subcommand that is none."""
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
    return text.duration(int(seconds) * 1e9) if seconds >= 1 else "0 s"


def _place(entry: Any) -> str:
    if not entry.is_usable:
        return "disk, other version"
    places = [
        name
        for name, here in (("memory", entry.in_memory), ("disk", entry.on_disk))
        if here
    ]
    return ", ".join(places)
