"""`lazyviz.track` and `%lazy curves`: scalars of a loop over its steps, read without a graph break.

Numbers are taken once their steps have computed them; nothing waits for a step or runs for it.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lazyviz.doc import Doc, Drawn, Note
from lazyviz.draw.palette import PHASE_COLOURS
from lazyviz.render import html, text
from lazyviz.render.html import markup
from lazyviz.shell.lazytensors import is_lazy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lazyrt.tools import Tracked
    from lazyviz.timing.history import StepRow

_MAX_POINTS = 10_000  # of each curve; earlier ones give way
_SELDOM = 100  # adding up the memory takes no more than a hundredth of a loop's time
_WIDTH, _HEIGHT = 420, 44
_MARGIN = 3
_COLOUR, _BASE, _BAD = "#3d85d1", "#8b97a8", "#d1495b"
_MARK = PHASE_COLOURS["compile"]
_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 40  # characters of a curve in a terminal
_MAX_MARKS = 3
STEP_TIME, MEMORY = "step time", "memory"


class Point(NamedTuple):
    """One number of a curve, of the runtime's step and of a run of a cell."""

    step: int
    number: float
    cell: int


@dataclass(slots=True)
class Curves:
    """What a session tracks, by name, with step time and memory beside it.

    Attributes:
        cell: How many cells have begun: each draws what it has tracked.
    """

    cell: int = 0
    _points: dict[str, deque[Point]] = field(default_factory=dict)
    _waiting: deque[tuple[str, Tracked, int]] = field(default_factory=deque)
    _last: tuple[int, int] | None = None  # step and time of the latest call
    _weigh_ns: int = 0  # when memory is added up next
    _lock: Any = field(default_factory=threading.RLock)

    def begin_cell(self) -> None:
        """What is tracked from now on is of another cell."""
        self.cell += 1
        self._last = None
        self._weigh_ns = 0

    def track(self, values: Mapping[str, Any]) -> None:
        """Take one number of each curve; see `lazyviz.track`."""
        from lazyrt.tools import Tracked, in_use

        with self._lock:
            self.settle()
            taken = {name: _scalar(name, value) for name, value in values.items()}
            for name in taken:  # drawn in the order in which they were named
                self._points.setdefault(name, deque(maxlen=_MAX_POINTS))
            tracked = {k: Tracked(v) for k, v in taken.items() if is_lazy(v)}
            step = max(
                (each.step for each in tracked.values()), default=Tracked.step_now()
            )
            for name, value in taken.items():
                if name in tracked:
                    self._waiting.append((name, tracked[name], self.cell))
                else:
                    self._add(name, Point(step, float(value), self.cell))
            now = time.perf_counter_ns()
            if self._last is not None and step > self._last[0]:
                took = (now - self._last[1]) / (step - self._last[0])
                self._add(STEP_TIME, Point(step, took, self.cell))
            if self._last is None or step > self._last[0]:
                self._last = step, now
            if now > self._weigh_ns:
                self._add(MEMORY, Point(step, in_use(), self.cell))
                ended = time.perf_counter_ns()
                self._weigh_ns = ended + (ended - now) * _SELDOM

    def settle(self, _barrier: object = None) -> None:
        """Take the numbers that have been computed; called before each barrier, too."""
        from lazyrt.errors import LostValueError

        with self._lock:
            waiting, self._waiting = self._waiting, deque()
            for name, tracked, cell in waiting:
                try:
                    number = tracked.settle()
                except LostValueError:  # its step was dropped
                    continue
                if number is None:
                    self._waiting.append((name, tracked, cell))
                else:
                    self._add(name, Point(tracked.step, number, cell))

    def _add(self, name: str, point: Point) -> None:
        self._points.setdefault(name, deque(maxlen=_MAX_POINTS)).append(point)

    def shown(
        self, rows: Sequence[StepRow], *, cell: int | None = None
    ) -> Shown | None:
        """Return what was tracked, of one run of a cell or of all; None if nothing was.

        A number may have been taken after that of a later step, which ended meanwhile.
        """
        from lazyrt.tools import in_use

        self.settle()
        with self._lock:
            if self._last is not None and self._points[MEMORY][-1].step < self._last[0]:
                self._add(MEMORY, Point(self._last[0], in_use(), self.cell))
            found = {
                name: sorted(kept, key=lambda point: point.step)
                for name, points in self._points.items()
                if (kept := [p for p in points if cell is None or p.cell == cell])
            }
        own = [name for name in found if name not in {STEP_TIME, MEMORY}]
        if not own:
            return None
        order = [*own, *(name for name in (STEP_TIME, MEMORY) if name in found)]
        steps = [point.step for points in found.values() for point in points]
        first, last = min(steps), max(steps)
        compiled = tuple(r for r in rows if r.reason and first <= r.step <= last)
        return Shown({name: tuple(found[name]) for name in order}, compiled)


@dataclass(frozen=True, slots=True)
class Shown:
    """Curves over the same steps, by name, and the steps whose graphs had to be compiled."""

    points: Mapping[str, tuple[Point, ...]]
    compiled: tuple[StepRow, ...] = ()

    @property
    def span(self) -> tuple[int, int]:
        """The first step and the last."""
        steps = [point.step for points in self.points.values() for point in points]
        return min(steps), max(steps)

    def doc(self) -> Doc:
        """Return the curves, one below the other, and which steps were compiled."""
        words, shown = self._compiled_words(), Drawn(self._text(), self._html)
        return Doc([shown, *([Note(words)] if words else [])])

    def _compiled_words(self) -> str:
        if not self.compiled:
            return ""
        told = [f"{each.step}: {each.reason}" for each in self.compiled[:_MAX_MARKS]]
        more = len(self.compiled) - _MAX_MARKS
        rest = f"; and {more:,} more" if more > 0 else ""
        return f"compiled at step {'; '.join(told)}{rest}"

    def _text(self) -> str:
        width = max(map(len, self.points))
        lines = [
            f"{name:<{width}}  {_bars(points, self.span)}  {_change(name, points)}"
            for name, points in self.points.items()
        ]
        return "\n".join([self._steps, *lines])

    def _html(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align:left;white-space:nowrap;padding-right:12px">'
            f"<b>{markup(name)}</b><br/>{markup(_change(name, points))}</td>"
            f'<td style="text-align:left">{self._image(name, points)}</td></tr>'
            for name, points in self.points.items()
        )
        mark = (
            f'; <span style="color:{_MARK}">┆</span> compiled' if self.compiled else ""
        )
        return (
            f'<table class="lazyviz-curves" style="{html.FONT}"><tbody>{rows}</tbody></table>'
            f'<div style="{html.FONT};opacity:.75">{self._steps}{mark}</div>'
        )

    @property
    def _steps(self) -> str:
        first, last = self.span
        return f"steps {first:,} to {last:,}" if first < last else f"step {first:,}"

    def _image(self, name: str, points: Sequence[Point]) -> str:
        steps = [each.step for each in self.compiled]
        floor = 0.0 if name in {STEP_TIME, MEMORY} else None
        drawn = curve_svg(points, self.span, steps, floor)
        what = f"{name} over steps: {_change(name, points)}"
        return html.image(drawn, what, max_width="100%")


def curve_svg(
    points: Sequence[Point],
    span: tuple[int, int],
    compiled: Iterable[int] = (),
    floor: float | None = None,
) -> str:
    """Return a curve as a picture that reads on light and on dark paper.

    Of points that share a pixel the least and the largest are drawn. A number that is not finite
    is a gap with a red mark. The foot of the picture is `floor`, else the least number.
    """
    at = _across(span, _WIDTH - 2 * _MARGIN)
    finite = [point.number for point in points if math.isfinite(point.number)]
    low = min(finite, default=0.0) if floor is None else floor
    high = max(finite, default=low)
    tall = _HEIGHT - 2 * _MARGIN

    def down(number: float) -> float:
        part = (number - low) / (high - low) if _differ(low, high) else 0.5
        return _MARGIN + tall * (1 - part)

    marks = "".join(
        f'<path d="M{_MARGIN + at(step):.1f} 0V{_HEIGHT}" stroke="{_MARK}" stroke-dasharray="3 2"/>'
        for step in compiled
    )
    pieces: list[str] = []
    bad: list[str] = []
    pen, column = "M", -1
    least = most = math.nan
    for point in points:
        x = at(point.step)
        if not math.isfinite(point.number):
            bad.append(
                f'<path d="M{_MARGIN + x:.1f} 0v8" stroke="{_BAD}" stroke-width="2"/>'
            )
            pen, column = "M", -1
            continue
        if int(x) != column:
            column, least, most = int(x), point.number, point.number
        elif least <= point.number <= most:
            continue  # its pixel has a longer line already
        least, most = min(least, point.number), max(most, point.number)
        pieces.append(f"{pen}{_MARGIN + x:.1f} {down(point.number):.1f}")
        pen = "L"
    dots = ""
    if len(pieces) == 1:
        x, y = pieces[0][1:].split()
        dots = f'<circle cx="{x}" cy="{y}" r="2" fill="{_COLOUR}"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" fill="none">'
        f'<path d="M0 {_HEIGHT - 0.5}H{_WIDTH}" stroke="{_BASE}" stroke-opacity=".5"/>{marks}'
        f'<path d="{"".join(pieces)}" stroke="{_COLOUR}" stroke-width="1.5"/>{dots}{"".join(bad)}'
        "</svg>"
    )


def _across(span: tuple[int, int], width: float) -> Any:
    first, last = span
    scale = width / (last - first) if last > first else 0.0
    return lambda step: (step - first) * scale if scale else width / 2


def _bars(points: Sequence[Point], span: tuple[int, int]) -> str:
    """Return a curve as characters, the mean of the numbers that share one."""
    columns: list[list[float]] = [[] for _ in range(_COLUMNS)]
    at = _across(span, _COLUMNS - 1)
    for point in points:
        columns[int(at(point.step))].append(point.number)
    means = [sum(each) / len(each) if each else None for each in columns]
    finite = [mean for mean in means if mean is not None and math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(_BARS) - 1) / (high - low) if _differ(low, high) else 0.0

    def bar(mean: float | None) -> str:
        if mean is None:
            return " "
        return _BARS[round((mean - low) * scale)] if math.isfinite(mean) else "!"

    return "".join(map(bar, means)).rstrip()


def _differ(low: float, high: float) -> bool:
    """Return whether the words of a curve tell two numbers apart; else it is drawn level."""
    return f"{low:.4g}" != f"{high:.4g}"


def _change(name: str, points: Sequence[Point]) -> str:
    """Return a curve's first and last number; of times and sizes, the median and the most."""
    numbers = [point.number for point in points]
    if name == STEP_TIME:
        middle = statistics.median(numbers)
        return f"median {text.duration(middle)}, most {text.duration(max(numbers))}"
    if name == MEMORY:
        low, high = text.size(int(min(numbers))), text.size(int(max(numbers)))
        return low if low == high else f"{low} to {high}"
    first, last = f"{numbers[0]:.4g}", f"{numbers[-1]:.4g}"
    said = first if len(numbers) == 1 else f"{first} → {last}"
    bad = next((p for p in points if not math.isfinite(p.number)), None)
    return said if bad is None else f"{said}, not finite from step {bad.step:,} on"


def _norm(gradients: Sequence[Any]) -> Any:
    """Return the norm of gradients; that of computed ones is a peek, and no part of a later step."""
    import torch

    import lazyrt

    if not gradients:
        return math.nan
    with torch.no_grad():
        norm = torch.nn.utils.get_total_norm(gradients)
    is_apart = is_lazy(norm) and not any(map(lazyrt.is_pending, gradients))
    return lazyrt.snapshot(norm) if is_apart else norm


def _scalar(name: str, value: Any) -> Any:
    """Return what is tracked of a value: a number, a tensor, the norm of a module's gradients."""
    if isinstance(value, (int, float)) or is_lazy(value):
        return value
    if hasattr(value, "named_parameters"):
        return _norm([p.grad for p in value.parameters() if p.grad is not None])
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return float(value.item())
    from IPython.core.error import UsageError

    raise UsageError(
        f"lazyviz.track({name}=...) got {type(value).__name__}, which is no number, so there is no "
        "point to draw. Pass a number, a tensor of one element, or a module for the norm of its "
        "gradients."
    )
