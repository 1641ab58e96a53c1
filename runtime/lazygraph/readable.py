"""Text for people: lines, tables, sentences in place of code, numbers.

Durations as torch_xla's metrics report prints them are wrong there: it rounds each part to the
nearest whole number, and goes on with what the part's floor leaves, so that a part whose remainder
is a half or more shows one too many. 27.856 s read `28s856ms...`. Ours are exact to the
nanosecond; `legacy=True` repeats the original's.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# What XML 1.0 does not allow in a document, lone halves of surrogate pairs, and what makes a
# line read in another order than it is written in.
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    "|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    r"""Return text with what no document may hold replaced by the replacement character.

    Example:
        >>> printable("a\x00b"), printable("µ×")
        ('a�b', 'µ×')
    """
    return _UNPRINTABLE.sub("\ufffd", text)


def one_line(text: str) -> str:
    r"""Return text for a line of its own: nothing in it ends the line or steers a terminal.

    Example:
        >>> one_line("first\nsecond"), one_line("\x1b[2J")
        ('first second', '�[2J')
    """
    return printable(" ".join(text.splitlines()))


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[bool]
) -> str:
    """Return a table as text; for each column `right` says whether it stands to the right."""
    lines = [
        [f"{cell:,}" if type(cell) is int else one_line(str(cell)) for cell in row]
        for row in [header, *rows]
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    sides = [">" if each else "<" for each in right]
    return "\n".join(
        "  ".join(
            f"{cell:{side}{width}}"
            for cell, side, width in zip(line, sides, widths, strict=True)
        ).rstrip()
        for line in lines
    )


class _Printer(Protocol):
    """What IPython hands to an object that shows itself."""

    def text(self, text: str) -> None:
        """Show some text."""


def _show(self: object, printer: _Printer, cycle: bool) -> None:  # noqa: ARG001, FBT001
    printer.text(str(self))


class Readable:
    """Is shown in IPython as `str` tells it; `repr` remains one line of code.

    Example:
        >>> from IPython.lib.pretty import pretty
        >>> class Weather(Readable):
        ...     def __str__(self): return "rain"
        ...     def __repr__(self): return "Weather()"
        >>> pretty(Weather())
        'rain'
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Give each class the method itself: IPython takes a class's `repr` before a base's."""
        super().__init_subclass__(**options)
        cls._repr_pretty_ = _show  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------- numbers

_PARTS = (
    ("d", 86_400_000_000_000, 2),
    ("h", 3_600_000_000_000, 2),
    ("m", 60_000_000_000, 2),
    ("s", 1_000_000_000, 2),
    ("ms", 1_000_000, 3),
)
_US = 1_000
_KB = 1024
_MINUTE_S = 60
_HOUR_S = 3600


def time_text(ns: float, *, legacy: bool = False) -> str:
    """Return a duration in days to microseconds, the leading zero parts left out.

    Args:
        ns: Nanoseconds, not negative; rounded to a whole number.
        legacy: Whether to round each part as the original does.

    Example:
        >>> time_text(27_856_591_389), time_text(27_856_591_389, legacy=True)
        ('27s856ms591.389us', '28s857ms591.389us')
        >>> time_text(850), time_text(4_000_000)
        ('000.850us', '004ms000.000us')
    """
    text, rest = "", ns if legacy else round(ns)
    for suffix, scale, width in _PARTS:
        part = rest / scale if legacy else rest // scale
        if part >= 1 or text:
            text += f"{part:0{width}.0f}{suffix}"
            rest -= math.floor(part) * scale
    return f"{text}{rest / _US:07.3f}us"


def bytes_text(nbytes: float) -> str:
    """Return an amount of memory with two decimals; a KB is 1024 bytes.

    Example:
        >>> bytes_text(48), bytes_text(2_726_297)
        ('48.00B', '2.60MB')
    """
    for suffix in ("B", "KB", "MB", "GB", "TB"):
        if nbytes < _KB:
            return f"{nbytes:.2f}{suffix}"
        nbytes /= _KB
    return f"{nbytes:.2f}PB"


def value_text(value: float) -> str:
    """Return a plain number with two decimals.

    Example:
        >>> value_text(18)
        '18.00'
    """
    return f"{value:.2f}"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return a count with its noun.

    Example:
        >>> plural(1, "op"), plural(12_345, "op"), plural(2, "entry", "entries")
        ('1 op', '12,345 ops', '2 entries')
    """
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def listed(names: Iterable[str], most: int = 3) -> str:
    """Return names in backticks, each once, the first few of many.

    Example:
        >>> listed(["w", "", "b", "w"]), listed("abcde")
        ('`w`, `b`', '`a`, `b`, `c` and 2 more')
    """
    found = list(dict.fromkeys(name for name in names if name))
    shown = ", ".join(f"`{name}`" for name in found[:most])
    return shown + (f" and {len(found) - most:,} more" if len(found) > most else "")


def duration_text(ns: float) -> str:
    """Return a time span with two or three digits, as everything but the metrics report does.

    Example:
        >>> [duration_text(n) for n in (0, 850, 41_300, 4_130_000, 999_600_000, 13_899_000_000)]
        ['0 ns', '850 ns', '41 µs', '4.1 ms', '1.0 s', '14 s']
        >>> duration_text(60e9), duration_text(125e9), duration_text(3_723e9)
        ('1 min', '2 min 5 s', '1 h 2 min')
    """
    seconds = round(ns / 1e9)
    if seconds >= _HOUR_S:
        hours, rest = f"{seconds // _HOUR_S:,} h", seconds % _HOUR_S // _MINUTE_S
        return f"{hours} {rest} min" if rest else hours
    if seconds >= _MINUTE_S:
        minutes, rest = f"{seconds // _MINUTE_S} min", seconds % _MINUTE_S
        return f"{minutes} {rest} s" if rest else minutes
    value, unit = float(ns), "ns"
    for larger in ("µs", "ms", "s"):
        if round(value) < 1000:  # noqa: PLR2004
            break
        value, unit = value / 1000, larger
    digits = int(unit != "ns" and value < 9.95)  # noqa: PLR2004
    return f"{value:.{digits}f} {unit}"


def share_text(part: int, whole: int) -> str:
    """Return how many bytes of how many, in the unit that suits the whole.

    Example:
        >>> share_text(19_329_024, 23_531_524), share_text(80, 112)
        ('18.4 of 22.4 MiB', '80 of 112 bytes')
    """
    for unit, name in ((_KB * _KB, "MiB"), (_KB, "KiB")):
        if whole >= unit:
            return f"{part / unit:.1f} of {whole / unit:.1f} {name}"
    return f"{part} of {whole} bytes"


def size_text(nbytes: float) -> str:
    """Return an amount of memory with two or three digits.

    Example:
        >>> size_text(1), size_text(512), size_text(4_300_000), size_text(3 * 2**40)
        ('1 byte', '512 bytes', '4.1 MiB', '3.0 TiB')
    """
    if nbytes < _KB:
        return plural(int(nbytes), "byte")
    value, unit = nbytes / _KB, "KiB"
    for larger in ("MiB", "GiB", "TiB", "PiB"):
        if round(value) < _KB:
            break
        value, unit = value / _KB, larger
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"  # noqa: PLR2004
