"""Two profiles side by side, aligned by step: what a step takes now, what it took, and where."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from lazyviz.doc import Doc, Fold, Line, Note, Part, Table
from lazyviz.render import text
from lazyviz.shell.displayed import Displayed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazyviz.timing.device_time import LineTime
    from lazyviz.timing.gaps import Gap, StepTime

_MAX_ROWS = 12


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

    Args:
        before: The earlier one.
        after: The later one.
    """

    def __init__(self, before: Profiled, after: Profiled) -> None:
        self._before, self._after = before, after
        self.pairs = tuple(_aligned(before.steps, after.steps))
        self.changes = tuple(
            sorted(
                [
                    *_changes("waits", _waits(before), _waits(after)),
                    *_changes("device", _device(before), _device(after)),
                ],
                key=lambda each: -abs(each.change_ns),
            )
        )

    @property
    def before_ns(self) -> float:
        """What a step took, in the middle; 0 without a step in both."""
        return (
            statistics.median(p.before.duration_ns for p in self.pairs)
            if self.pairs
            else 0
        )

    @property
    def after_ns(self) -> float:
        """What a step takes, in the middle."""
        return (
            statistics.median(p.after.duration_ns for p in self.pairs)
            if self.pairs
            else 0
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

    def doc(self) -> Doc:
        """Return the sentence, the lines that changed most, and the steps side by side."""
        parts: list[Part] = [Line(self.sentence)]
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
        return Doc(parts, css_class="lazyviz-profile-diff", gap="\n\n")

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


def _waits(profile: Profiled) -> dict[str, float]:
    """Return how long each line waited for each step."""
    total: Counter[str] = Counter()
    for gap in profile.gaps:
        total[gap.at] += gap.duration_ns
    return _for_each_step(total, profile)


def _device(profile: Profiled) -> dict[str, float]:
    total: Counter[str] = Counter()
    for line in profile.lines:
        total[line.at] += int(line.device_ns)
    return _for_each_step(total, profile)


def _for_each_step(total: Counter[str], profile: Profiled) -> dict[str, float]:
    steps = max(len(profile.steps), 1)
    return {at: ns / steps for at, ns in total.items()}


def _changes(
    what: str, before: dict[str, float], after: dict[str, float]
) -> Iterable[Change]:
    for at in {**before, **after}:
        yield Change(
            what=what, at=at, before_ns=before.get(at, 0), after_ns=after.get(at, 0)
        )


def _percent(before: float, after: float) -> str:
    if not before:
        return ""
    return f"{100 * (after - before) / before:+.0f} %"


def _signed(ns: float) -> str:
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{text.duration(abs(ns))}"
