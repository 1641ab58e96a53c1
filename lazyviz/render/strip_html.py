"""A cell's strip as HTML: its line, and what folds out below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyviz.draw import svg
from lazyviz.draw.palette import PHASE_COLOURS, PHASES
from lazyviz.render import html, text
from lazyviz.render.cuts import cut_html
from lazyviz.render.html import markup
from lazyviz.render.state import batched_source, state_text
from lazyviz.render.strip import strip_notes, strip_parts, urgent_notes

if TYPE_CHECKING:
    from lazyviz.render.strip import Strip

EXPLORE_HINT = "%lazy explore walks through it: click an op to see its value"
_BAR_HEIGHT = 12
_BAR_WIDTH = 420
_SMALL_BAR_WIDTH = 84
_SMALL_BAR_HEIGHT = 8
# Empty and hidden until `lazyviz.widgets` wakes it, so that a saved notebook shows none.
_COPY_BUTTON = (
    '<button type="button" class="lzb-copy" style="display:none" aria-label="Copy these lines" '
    'data-lm-suppress-shortcuts="true"></button>'
)


def strip_html(strip: Strip, *, css_class: str = "") -> str:
    """Return a cell's strip; one that has details folds them.

    Args:
        strip: What the cell did.
        css_class: A further class of the strip and of its pictures, by which a page's
            script finds them.
    """
    line = _strip_line(strip) + _headline(strip)
    details = _strip_details(strip, css_class)
    classes = f"lazyviz-strip {css_class}".strip()
    if not details:
        return f'<div class="{markup(classes)}" style="{html.FONT}">{line}</div>'
    return (
        f'<div class="{markup(classes)}" style="{html.FONT}"><details>'
        f'<summary style="cursor:pointer">{line}</summary>{details}</details></div>'
    )


def _headline(strip: Strip) -> str:
    """Return the first thing that a user may want to act on, in a line that does not wrap."""
    found = urgent_notes(strip)
    if not found:
        return ""
    more = f"1 of {len(found)}: " if len(found) > 1 else ""
    style = "display:block;opacity:.75;overflow:hidden;white-space:nowrap;text-overflow:ellipsis"
    # A viewer that takes styles out would run both lines into one.
    return f'<br><span style="{style}">{more}{markup(found[0])}</span>'


def _strip_line(strip: Strip) -> str:
    first, *others = [markup(part) for part in strip_parts(strip)]
    parts = [f"<b>{first}</b>", *others]
    if strip.error is not None or strip.interrupted:
        parts[-1] = f'<span style="color:#d14d72"><b>{parts[-1]}</b></span>'
    if not set(dict(strip.parts)) - {"python", "trace"}:
        return " · ".join(parts)
    bar = bar_svg(dict(strip.parts), _SMALL_BAR_WIDTH, _SMALL_BAR_HEIGHT)
    return f"{html.image(bar, 'where the time went')} " + " · ".join(parts)


def has_copy_button(strip: Strip) -> bool:
    """Return whether a strip has lines to copy."""
    return strip.apart is not None and bool(batched_source(strip.apart))


def _strip_details(strip: Strip, css_class: str) -> str:
    notes = strip_notes(strip)
    parts = [timing_html(strip)]
    if strip.state is not None:
        parts.append(html.muted(state_text(strip.state)))
    if notes:
        items = "".join(f"<li>{markup(note)}</li>" for note in notes)
        parts.append(f'<ul style="margin:4px 0;padding-left:20px">{items}</ul>')
    batched = batched_source(strip.apart) if strip.apart is not None else ""
    if strip.apart is not None and batched:
        many = f"{strip.apart.times:,}"
        parts.append(
            html.folded(
                f"{many} reads = {many} executions: batch them",
                html.pre(batched) + _COPY_BUTTON,
            )
        )
    if strip.cuts:
        parts += map(cut_html, strip.cuts)
    if strip.graph is not None and strip.graph.boxes:
        parts.append(
            svg.graph_html(
                strip.graph,
                budget=svg.STRIP_BUDGET,
                css_class=css_class,
                hint=EXPLORE_HINT,
            )
        )
    return "".join(parts)


def timing_html(strip: Strip) -> str:
    """Return a bar with the phases of a cell, each with its colour, name and time.

    The parts of the bar add up to the cell's time. What the device did is told behind them:
    it may have worked while the cell's thread did something else, and is no part of the bar.
    """
    times = dict(strip.parts)
    bar = bar_svg(times)
    if not bar:
        return ""
    names = "&ensp;".join(
        f'<span style="color:{PHASE_COLOURS[name]}">■</span> {name} {text.duration(ns)}'
        for name, ns in times.items()
    )
    total = f"&ensp;= cell {text.duration(strip.wall_ns)}" if strip.wall_ns else ""
    if total and strip.own_ns:
        total += f", {text.duration(strip.own_ns)} of it listening by lazyviz"
    device = html.muted(device_text(strip)) if strip.execute_ns else ""
    return (
        f'<div style="margin:4px 0">{html.image(bar, "the time of the cell by phase")}'
        f"<br>{names}{total}{device}</div>"
    )


def device_text(strip: Strip) -> str:
    """Return how long the device worked, and how much of it nobody waited for."""
    waited = dict(strip.parts).get("execute", 0)
    hidden = strip.execute_ns - waited
    part = f"device busy {text.duration(strip.execute_ns)}"
    if waited and hidden > waited // 10:
        return f"{part}, {text.duration(hidden)} of it behind the other phases"
    return part if waited else f"{part}, all of it behind the other phases"


def bar_svg(
    times: dict[str, int], width: int = _BAR_WIDTH, height: int = _BAR_HEIGHT
) -> str:
    """Return a bar whose segments are as long as the phases; empty when there are none."""
    total = sum(times.values())
    if not total:
        return ""
    segments = []
    x = 0.0
    for name in PHASES:
        if not times.get(name):
            continue
        length = times[name] / total * width
        segments.append(
            f'<rect x="{x:.1f}" width="{length:.1f}" height="{height}" '
            f'fill="{PHASE_COLOURS[name]}">'
            f"<title>{name} {text.duration(times[name])}</title></rect>"
        )
        x += length
    corner = height / 3
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
        f'<clipPath id="r"><rect width="{width}" height="{height}" rx="{corner:.1f}"/>'
        f'</clipPath><g clip-path="url(#r)">{"".join(segments)}</g></svg>'
    )
