"""The colours and signs of a timeline, and the legend that names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyviz.draw.palette import PHASE_COLOURS, PHASES
from lazyviz.render.escape import markup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lazyviz.render.spans import Span
    from lazyviz.render.timeline_text import TimelineView

WIDTH = 940
LABELS = 74
CHARACTER = 6.0
MARKS = ("barrier", "implicit barrier", "look", "fallback", "dropped")
# Colours of what is no phase of the host.
_OTHERS = {
    "cell": "#dfe6f1",
    "run": "#b9cbe8",
    "run2": "#d5e0f2",
    "block": "#7d9dd0",
    "scope": "#9fb6da",
    "closure": "#b78ac6",
    "asynchronous closure": "#d3b5de",
    "load": "#f0dba6",
    "to_device": "#75bdb1",
    "to_host": "#b5ded8",
    "step": "#5b86d6",
    "peek": "#dc9aea",
}
_DEVICE_OTHER = "#8fa9d8"
DARK = frozenset((PHASE_COLOURS["dispatch"],))  # labels on these are white
_MARK_COLOURS = {kind: f"var(--m{k})" for k, kind in enumerate(MARKS)}
_MARK_NAMES = {
    "barrier": "▼ barrier you wrote",
    "implicit barrier": "◇ barrier by itself",
    "look": "○ look",
    "fallback": "✕ CPU fallback",
    "dropped": "– dropped",
}


def colour_of(kind: str, row: str) -> str:
    """Return the colour of a span of a kind in a row."""
    if row == "device":
        return _OTHERS.get(kind, _DEVICE_OTHER)
    return PHASE_COLOURS.get(kind) or _OTHERS.get(kind, "#c3cad4")


def plain(kind: str) -> str:
    """Return a kind in words."""
    return "run" if kind == "run2" else kind.replace("_", " ")


def paint(kind: str) -> str:
    """Return the attributes that colour a mark."""
    colour = _MARK_COLOURS[kind]
    if kind == "barrier":
        return f'fill="{colour}"'
    # The faint ground is what a pointer finds.
    return f'fill="#fff" fill-opacity=".01" stroke="{colour}" stroke-width="1.6"'


def glyph(kind: str, x: float, y: float) -> str:
    """Return the outline of a mark; the forms differ, not only the colours."""
    if kind == "barrier":
        return f"M{x - 4:.1f} {y + 1:.0f}h8l-4 8z"
    if kind == "implicit barrier":
        return f"M{x:.1f} {y:.0f}l4 5l-4 5l-4 -5z"
    if kind == "look":
        return f"M{x - 3.5:.1f} {y + 5:.0f}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z"
    if kind == "fallback":
        return f"M{x - 3.5:.1f} {y + 1.5:.1f}l7 7m0 -7l-7 7"
    return f"M{x - 4:.1f} {y + 5:.0f}h8"


def legend_kinds(
    view: TimelineView, rows: dict[str, list[Span]], marks: Sequence[Span]
) -> list[tuple[str, str]]:
    """Return (colour, name) of what the picture has; marks have a sign in their name."""
    phases = {name for cell in view.cells for name in cell.parts} | {
        span.kind for span in rows["host"]
    }
    found = [(PHASE_COLOURS[name], name) for name in PHASES if name in phases]
    for row in ("step", "compile", "transfer"):
        kinds = dict.fromkeys(span.kind for span in rows[row])
        found += [
            (colour_of(kind, row), plain(kind).replace("run", "step"))
            for kind in kinds
            if kind not in PHASE_COLOURS
        ]
    kinds = dict.fromkeys(span.kind for span in rows["device"])
    found += [(colour_of(kind, "device"), f"device: {kind}") for kind in kinds]
    present = {mark.kind for mark in marks}
    found += [
        (_MARK_COLOURS[kind], _MARK_NAMES[kind]) for kind in MARKS if kind in present
    ]
    return list(dict.fromkeys(found))


def legend(
    kinds: Sequence[tuple[str, str]],
) -> tuple[Callable[[float], list[str]], int]:
    """Return what draws the legend at a height, and how high it is."""
    rows: list[list[tuple[float, str, str]]] = [[]]
    x = float(LABELS)
    for colour, name in kinds:
        width = 22 + len(name) * CHARACTER
        if x + width > WIDTH:
            rows.append([])
            x = float(LABELS)
        rows[-1].append((x, colour, name))
        x += width

    def draw(y: float) -> list[str]:
        parts = []
        for number, row in enumerate(rows):
            top = y + number * 16
            for x, colour, name in row:
                sign, rest = name[0], name[1:].strip()
                if name[:2].strip() == sign and not sign.isalnum():
                    parts.append(
                        f'<text x="{x:.0f}" y="{top + 10:.0f}" fill="{colour}">{sign}</text>'
                    )
                else:
                    rest = name
                    parts.append(
                        f'<rect x="{x:.0f}" y="{top + 1:.0f}" width="9" height="9" '
                        f'rx="2" fill="{colour}"/>'
                    )
                parts.append(
                    f'<text class="k" x="{x + 13:.0f}" y="{top + 10:.0f}">'
                    f"{markup(rest)}</text>"
                )
        return parts

    return draw, len(rows) * 16 + 8
