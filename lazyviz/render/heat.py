"""Source with a colour behind each line by what it costs, as HTML without scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyviz.render import text
from lazyviz.render.html import markup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_AROUND = 2  # lines before and after one that costs something
_MAX_LINES = 80
_DEVICE, _WAIT = "91,134,214", "209,127,98"
_CELL = "padding:0 .6em;text-align:right;white-space:nowrap"
_SOURCE = "padding:0 .6em;text-align:left;white-space:pre"


def source_map(
    file: str,
    lines: Sequence[str],
    worked: Mapping[int, int],
    waited: Mapping[int, int],
) -> str:
    """Return the lines of a file that cost something, and those around them; empty if none is known.

    Args:
        file: Its name.
        lines: Its source.
        worked: Nanoseconds of the device by line number.
        waited: Nanoseconds that the program waited, by line number.
    """
    near = {
        k
        for number in (*worked, *waited)
        for k in range(number - _AROUND, number + _AROUND + 1)
        if 1 <= k <= len(lines)
    }
    if not near:
        return ""
    rows = []
    before = 0
    for k in sorted(near)[:_MAX_LINES]:
        if before and k > before + 1:
            rows.append('<tr><td colspan="4">\u22ee</td></tr>')
        before = k
        rows.append(
            f'<tr><td style="{_CELL};opacity:.6">{k}</td>'
            f"{_shaded(worked.get(k, 0), worked, _DEVICE)}"
            f"{_shaded(waited.get(k, 0), waited, _WAIT)}"
            f'<td style="{_SOURCE}">{markup(lines[k - 1].rstrip())}</td></tr>'
        )
    return (
        f'<table style="font-family:monospace;font-size:12px;border-collapse:collapse">'
        f"<caption>{markup(file.rsplit('/', 1)[-1])}</caption>"
        '<tr><th scope="col">line</th><th scope="col">device</th><th scope="col">waits</th>'
        f'<th scope="col" style="text-align:left">source</th></tr>{"".join(rows)}</table>'
    )


def _shaded(ns: int, of: Mapping[int, int], colour: str) -> str:
    if not ns:
        return f'<td style="{_CELL}"></td>'
    strength = 0.1 + 0.5 * ns / max(of.values())
    return (
        f'<td style="{_CELL};background:rgba({colour},{strength:.2f})">'
        f"{markup(text.duration(ns))}</td>"
    )
