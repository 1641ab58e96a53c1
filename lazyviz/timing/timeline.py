"""What `%lazy timeline` and `lazyviz.timeline()` show, of a session's timeline."""

from __future__ import annotations

import linecache
from collections import Counter
from typing import TYPE_CHECKING, Any

from lazyviz.doc import Doc, Fold, Note, Part, Picture
from lazyviz.render import html, text
from lazyviz.render.timeline_svg import timeline_svg
from lazyviz.render.timeline_text import TimelineView, gaps, gaps_text, timeline_tables
from lazyviz.shell.displayed import Displayed
from lazyviz.timing import trace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from lazyviz.render.timeline_text import CellTime, Span
    from lazyviz.session import Session

CELLS = 12
_USAGE = (
    "%lazy timeline shows the last 12 cells, %lazy timeline 40 the last 40, and "
    "%lazy timeline --export FILE.json writes all that is kept, for Perfetto."
)


def picture(view: TimelineView, what: str) -> Iterable[Part]:
    """Yield a timeline as a picture; nothing without cells."""
    if svg := timeline_svg(view):
        yield Picture(svg, what, html.TIMELINE_CLASS)


def widget(view: TimelineView) -> object:
    """Return a timeline that zooms."""
    from lazyviz.widgets import TimelineView as Widget

    return Widget(svg=timeline_svg(view, is_detailed=True), twin=html.TIMELINE_CLASS)


class TimelineShown(Displayed):
    """The timeline of a session's latest cells, as it was when it was asked for.

    Attributes:
        view: Its data.
    """

    def __init__(self, session: Session, cells: int = CELLS) -> None:
        timeline = session.timeline
        every: list[CellTime] = list(timeline.cells) if timeline is not None else []
        now = session.cell_so_far()
        if now is not None:
            every.append(now)
        self._every = every
        self._spans: tuple[Span, ...] = timeline.spans if timeline is not None else ()
        self._dropped = timeline.dropped if timeline is not None else 0
        self.view = self._view(every[-cells:])

    def _view(self, chosen: list[CellTime]) -> TimelineView:
        start = chosen[0].start_ns if chosen else 0
        spans = [span for span in self._spans if span.end_ns >= start]
        forgotten = self._dropped and len(spans) == len(self._spans)
        since = spans[0].end_ns if forgotten and spans else 0
        samples: Counter[Any] = Counter()
        for cell in chosen:
            samples.update(cell.lines)
        return TimelineView(
            cells=chosen,
            spans=spans,
            dropped=self._dropped,
            gaps=gaps(chosen, spans, since) if chosen else None,
            lines=line_shares(samples),
            earlier=len(self._every) - len(chosen),
        )

    def doc(self, *, is_detailed: bool = False) -> Doc:
        """Return the picture and tables, which a page folds. A detailed picture is to zoom into."""
        tables = timeline_tables(self.view)
        picture = timeline_svg(self.view, is_detailed=is_detailed)
        if not picture:
            return tables
        return Doc(
            [
                Picture(
                    picture,
                    "timeline: the tables below say the same",
                    html.TIMELINE_CLASS,
                ),
                *(Note(line, page_only=True) for line in self._notes()),
                Fold(
                    f"{text.plural(len(self.view.cells), 'cell')} as tables",
                    [tables],
                    in_text=True,
                ),
            ],
            css_class="lazyviz-timeline",
            live=lambda: widget(self.view),
        )

    def _notes(self) -> list[str]:
        lines = gaps_text(self.view.gaps).splitlines() if self.view.gaps else []
        if self.view.lines:
            top = ", ".join(
                f"{site} {text.share(share)}" for site, _, share in self.view.lines[:3]
            )
            lines.append(f"recording by line: {top}")
        return lines

    def export(self, path: str | Path) -> Path:
        """Write all that the session keeps, not only these cells, as a trace-event file.

        Raises:
            TraceError: The path has a file of another kind, or cannot be written.
        """
        return trace_file.write(
            path, self._every, self._spans, lines=self.view.lines, dropped=self._dropped
        )


def line_shares(
    lines: Mapping[Any, int], limit: int = 8
) -> list[tuple[str, str, float]]:
    """Return the lines that recording spent its time on: line, source text, share of the samples."""
    total = sum(lines.values())
    return [
        (str(site), linecache.getline(site.file, site.line).strip(), count / total)
        for site, count in Counter(lines).most_common(limit)
    ]


def timeline(cells: object = CELLS) -> TimelineShown:
    """Return where the time of the session's last cells went; a notebook shows it as a picture.

    Args:
        cells: How many of them; the one that runs now counts.

    Raises:
        UsageError: lazyviz is not loaded in a shell, or it is no number of cells.
    """
    from IPython.core.error import UsageError

    from lazyviz import session

    if not isinstance(cells, int) or cells < 1:
        raise UsageError(
            f"timeline() takes a number of cells from 1 up, not {cells!r}."
        )
    found = session.current()
    if found is None:
        raise UsageError(
            "there is no session to show: lazyviz is not loaded. Run %load_ext lazyviz in "
            "IPython, or a script with `python -m lazyviz run SCRIPT`; the time before is not known."
        )
    return TimelineShown(found, cells)


def run_magic(session: Session, rest: str) -> TimelineShown | Path:
    """Do what `%lazy timeline` is asked for: show it, or write it to a file.

    Raises:
        ValueError: It is neither a number of cells nor `--export FILE`, or cannot be written.
    """
    words = rest.split(maxsplit=1)
    if words and words[0] == "--export":
        if len(words) == 1:
            raise ValueError(
                f"%lazy timeline --export needs the path of a file. {_USAGE}"
            )
        return TimelineShown(session).export(words[1].strip("'\""))
    if rest and not (rest.isdecimal() and int(rest)):
        raise ValueError(
            f"%lazy timeline {rest}: {rest!r} is no number of cells. {_USAGE}"
        )
    return TimelineShown(session, int(rest or CELLS))
