"""Two profiles side by side, aligned by step: what a step takes now, what it took, and where."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from lazyviz.doc import Doc, Fold, Line, Note, Part, Picture, Sentence, Table
from lazyviz.render import text
from lazyviz.render.html import TIMELINE_CLASS
from lazyviz.render.timeline_svg import timeline_svg
from lazyviz.render.timeline_text import CellTime, Span, TimelineView
from lazyviz.shell.displayed import Displayed
from lazyviz.timing.advice import error_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazyviz.timing.advice import ReadTime
    from lazyviz.timing.device_time import LineTime
    from lazyviz.timing.gaps import Gap, StepTime

_MAX_ROWS = 12
_ROWS = ("was", "now")
_SHOWN = ("step", "host", "device", "memory")


class Profiled(Protocol):
    """What is asked of a profile."""

    @property
    def steps(self) -> Sequence[StepTime]:
        """The steps, in order."""

    @property
    def gaps(self) -> Sequence[Gap]:
        """Where the program waited."""

    @property
    def lines(self) -> Sequence[LineTime]:
        """The device's time by line."""

    @property
    def spans(self) -> Sequence[Span]:
        """What happened when."""

    @property
    def reads(self) -> Sequence[ReadTime]:
        """The lines that read values again and again."""


class Pair(NamedTuple):
    """One step of both profiles."""

    before: StepTime
    after: StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a line took for each step.

    Attributes:
        what: `waits`, or `device` for what it cost there.
        at: The line.
        before_ns, after_ns: For one step.
    """

    what: str
    at: str
    before_ns: float
    after_ns: float

    @property
    def change_ns(self) -> float:
        """How much more it takes now; negative for less."""
        return self.after_ns - self.before_ns


class ProfileDiff(Displayed):
    """The differences between two profiles of a loop.

    Attributes:
        before_ns, after_ns: What a step took on average, without those that compiled, and what it
            takes now; 0 without a step in both.

    Args:
        before: The earlier one.
        after: The later one.
    """

    def __init__(self, before: Profiled, after: Profiled) -> None:
        self._before, self._after = before, after
        self.pairs = tuple(_aligned(before.steps, after.steps))
        changes = _changes(before, after)
        self.changes = tuple(sorted(changes, key=lambda each: -abs(each.change_ns)))
        ran = [p for p in self.pairs if not (p.before.compiled or p.after.compiled)]
        self.before_ns, self.after_ns = (
            statistics.fmean(
                [pair[side].duration_ns for pair in ran or self.pairs] or [0]
            )
            for side in (0, 1)
        )

    @property
    def sentence(self) -> str:
        """What changed, and at which line most."""
        if not self.pairs:
            return "No step is in both profiles, so there is nothing to compare."
        said = (
            f"A step takes {text.duration(self.after_ns)}, was {text.duration(self.before_ns)} "
            f"({_percent(self.before_ns, self.after_ns)}), over "
            f"{text.plural(len(self.pairs), 'step')} of both."
        )
        towards = self.after_ns - self.before_ns
        same_way = (each for each in self.changes if each.change_ns * towards > 0)
        top = next(same_way, None)
        if top is None:
            return said
        verb = "waits" if top.what == "waits" else "costs the device"
        return (
            f"{said} Most of it: {top.at} {verb} {text.duration(top.after_ns)} a step, was "
            f"{text.duration(top.before_ns)}."
        )

    @property
    def predictions(self) -> tuple[str, ...]:
        """For each line that reads less often now: what was predicted of a step, and what it takes."""
        now = {each.at: each for each in self._after.reads}
        pairs = [(each, now[each.at]) for each in self._before.reads if each.at in now]
        found = [self._confronted(*pair) for pair in pairs]
        return tuple(filter(None, found))

    def _confronted(self, before: ReadTime, after: ReadTime) -> str:
        each, every = (
            round(len(_own_steps(profile.steps)) / (read.reads + 1))
            for profile, read in ((self._before, before), (self._after, after))
        )
        if each != 1 or every <= 1:
            return ""
        predicted, took = before.predicted_ns(every), after.period_ns / every
        error = math.hypot(
            *(
                error_ns([step.end_ns for step in _own_steps(profile.steps)])
                for profile in (self._before, self._after)
            )
        )
        varies = f"± {text.duration(error)}, as steps vary"
        said = (
            f"The read at {before.at}, in one of {every} steps instead of each: the earlier profile "
            f"predicts {text.duration(predicted)} a step, and it takes {text.duration(took)}; with "
            f"a read in each it took {text.duration(before.period_ns)}."
        )
        if abs(before.period_ns - predicted) <= error:
            return (
                f"{said} These are known to {varies}, which is more than was to be won, so this run "
                "says nothing about the prediction."
            )
        if abs(took - predicted) <= error:
            return f"{said} Both agree ({varies})."
        return (
            f"{said} They differ by more than {varies}: the prediction takes it that recording and "
            "execution do not slow each other down, and that the machine is as busy as before."
        )

    def doc(self) -> Doc:
        """Return the sentence, the lines that changed most, and the steps side by side."""
        parts: list[Part] = [Line(self.sentence), *map(Sentence, self.predictions)]
        what = "the steps of both profiles, aligned: the tables below say the same"
        parts += picture(self.timeline, what)
        lines = [
            [
                each.at or "no line",
                each.what,
                text.duration(each.before_ns),
                text.duration(each.after_ns),
                _signed(each.change_ns),
            ]
            for each in self.changes[:_MAX_ROWS]
        ]
        if self.pairs and lines:
            header = ["line", "what", "before", "after", "change"]
            parts.append(Doc([Note("by line, for each step:"), Table(header, lines)]))
        if self.pairs:
            count = text.plural(len(self.pairs), "step")
            parts.append(Fold(f"{count} side by side", [self._steps()], in_text=True))
        return Doc(
            parts,
            css_class="lazyviz-profile-diff",
            gap="\n\n",
            live=lambda: widget(self.timeline),
        )

    @property
    def timeline(self) -> TimelineView:
        """The latest steps of both profiles, those of a pair from the same moment on."""
        cells, spans, since = [], list[Span](), 0
        for pair in self.pairs[-_MAX_ROWS:]:
            for step, profile, row in zip(
                pair, (self._before, self._after), _ROWS, strict=True
            ):
                spans += _moved(step, profile.spans, row, since)
            end = since + max(step.duration_ns for step in pair)
            cells.append(
                CellTime(number=None, start_ns=since, end_ns=end, parts={}, device_ns=0)
            )
            since = end + 1  # a cell of its own, with a break before it
        own = sorted({span.lane for span in spans}, key=_rank)
        return TimelineView(cells=cells, spans=spans, whole="two profiles", lanes=own)

    def _steps(self) -> Table:
        rows = [
            [
                before.number,
                after.number,
                text.duration(before.duration_ns),
                text.duration(after.duration_ns),
                _percent(before.duration_ns, after.duration_ns),
                text.share(before.duty_cycle),
                text.share(after.duty_cycle),
            ]
            for before, after in self.pairs[-_MAX_ROWS:]
        ]
        return Table(
            [
                "step",
                "is step",
                "before",
                "after",
                "change",
                "duty before",
                "duty after",
            ],
            rows,
        )


def _own_steps(steps: Sequence[StepTime]) -> Sequence[StepTime]:
    """Return the steps that the program ends itself; all if only reads end them."""
    return [each for each in steps if not each.cause.startswith("read")] or steps


def _moved(
    step: StepTime, spans: Iterable[Span], row: str, to_ns: int
) -> Iterable[Span]:
    """Yield a step, and what the host and the devices did in its time, from a moment on."""
    name, moved = f"step {step.number}", to_ns - step.start_ns
    yield Span(f"{row}: step", "run", name, to_ns, step.end_ns + moved, None)
    for span in spans:
        start, end = max(span.start_ns, step.start_ns), min(span.end_ns, step.end_ns)
        is_shown = span.kind != "handover" and span.lane.startswith(_SHOWN[1:])
        if is_shown and start < end:
            yield span._replace(
                lane=f"{row}: {span.lane}", start_ns=start + moved, end_ns=end + moved
            )


def _rank(lane: str) -> tuple[int, int, str]:
    """Return where a row stands: all of the earlier profile first."""
    row, name = lane.split(": ")
    return _ROWS.index(row), _SHOWN.index(name.split()[0]), name


def picture(view: TimelineView, what: str) -> Iterable[Part]:
    """Yield a timeline as a picture; nothing without cells."""
    if svg := timeline_svg(view):
        yield Picture(svg, what, TIMELINE_CLASS)


def widget(view: TimelineView) -> object:
    """Return a timeline that zooms."""
    from lazyviz.widgets import TimelineView as Widget

    return Widget(svg=timeline_svg(view, is_detailed=True), twin=TIMELINE_CLASS)


def _aligned(before: Iterable[StepTime], after: Iterable[StepTime]) -> Iterable[Pair]:
    """Yield the steps of one name in both: of the user's same number, else in their order."""
    earlier = list(before)
    later = list(after)
    numbers = {_key(each): each for each in earlier if each.step_num is not None}
    shared = [each for each in later if _key(each) in numbers]
    if shared and len({_key(each) for each in shared}) == len(shared):
        for step in shared:
            yield Pair(numbers[_key(step)], step)
        return
    waiting: dict[str, deque[StepTime]] = defaultdict(deque)
    for step in earlier:
        waiting[step.name].append(step)
    for step in later:
        if waiting[step.name]:
            yield Pair(waiting[step.name].popleft(), step)


def _key(step: StepTime) -> tuple[str, int | None]:
    return step.name, step.step_num


def _changes(before: Profiled, after: Profiled) -> Iterable[Change]:
    """Yield how long each line waited for each step, and what it cost the device."""
    for what in ("waits", "device"):
        was, now = _for_each_step(what, before), _for_each_step(what, after)
        for at in was | now:
            yield Change(what=what, at=at, before_ns=was[at], after_ns=now[at])


def _for_each_step(what: str, profile: Profiled) -> Counter[str]:
    total: Counter[str] = Counter()
    gaps = [(each.at, each.duration_ns) for each in profile.gaps]
    lines = [(each.at, each.device_ns) for each in profile.lines]
    for at, ns in gaps if what == "waits" else lines:
        total[at] += ns
    steps = max(len(profile.steps), 1)
    return Counter({at: ns // steps for at, ns in total.items()})


def _percent(before: float, after: float) -> str:
    if not before:
        return ""
    return f"{100 * (after - before) / before:+.0f} %"


def _signed(ns: float) -> str:
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{text.duration(abs(ns))}"
