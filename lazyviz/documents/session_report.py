"""`%lazy report FILE.html` and `lazyviz.report(path)`: the session as one file for a bug report.

The page needs no script, no other file and no network. A browser is told to allow none but the
one script of ours that makes the timeline zoom, by its hash.
It holds no tensor's value. Nothing is computed, compiled or recorded for it.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazyviz import session
from lazyviz.command_line import path_of
from lazyviz.documents import redaction
from lazyviz.documents.parts import Facts, collect, report_sections
from lazyviz.render import html, text
from lazyviz.render.html import Section, page_html

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lazyviz.doc import Part

GENERATOR = "lazyviz session report"
# What the page holds at most: the parts' own bounds, and its frame.
MAX_BYTES = 10 * 2**20

_SUFFIXES = (".html", ".htm")
_HEAD_BYTES = 1_024
_log = logging.getLogger(__name__)


class ReportError(ValueError):
    """A file that a report cannot or must not be written to."""


@dataclass(frozen=True, slots=True)
class Written:
    """A report that was written.

    Attributes:
        path: Where.
        nbytes: Its size.
        summary: What is in it, in a few words.
    """

    path: Path
    nbytes: int
    summary: str

    def __str__(self) -> str:
        return f"Wrote {self.path}: {self.summary}. Read it before you pass it on."


def write(path: str | Path, *, source: bool = True, force: bool = False) -> Written:
    """Write a page about the session; see `lazyviz.report`."""
    target = _target(path, force=force)
    facts = collect(session.runtime(), session.current(), source=source)
    page = page_of(facts)
    _replace(target, page)
    return Written(target, len(page.encode()), summary(facts))


def page_of(facts: Facts) -> str:
    """Return the page: nothing in it names the home directory, and its size is bounded."""
    sections = [
        Section(
            title=part.title,
            body=_body(part.make, facts, part.nbytes),
            anchor=part.anchor,
        )
        for part in report_sections()
    ]
    page = page_html(
        "Report of a lazyviz session",
        [Section(title="", body=_introduction(facts)), *sections],
        generator=GENERATOR,
        is_locked=True,
    )
    guards = {guard.text for graph in facts.graphs for guard in graph.key.guards}
    page = redaction.without_strings(page, guards)
    if not facts.source:
        found = (graph.explanation for graph in facts.graphs)
        quotes = [q for each in found if each for q in each.quotes]
        page = redaction.unquoted(page, quotes + redaction.expressions(guards))
    return redaction.shortened(page)


def summary(facts: Facts) -> str:
    """Return what a report holds, in a few words."""
    parts = [
        text.plural(len(facts.cells), "cell"),
        text.plural(len(facts.steps), "step"),
        text.plural(len(facts.graphs), "compiled graph"),
    ]
    kept = "with their source" if facts.source else "without their source"
    return f"{parts[0]} {kept}, {parts[1]}, {parts[2]}, no tensor's value"


def _introduction(facts: Facts) -> str:
    return html.muted(
        f"{summary(facts)[0].upper()}{summary(facts)[1:]}. Written {facts.written}."
    ) + html.muted(
        "The home directory is written as ~. What looks like a password or a token in the "
        "source or in what an exception said is masked, which is a best effort: read the page "
        "before you pass it on."
    )


def _body(make: Callable[[Facts], Part], facts: Facts, limit: int) -> str:
    """Return one part; a report is about trouble, so one that fails leaves the others."""
    try:
        body = make(facts).to_html()
    except Exception as error:  # noqa: BLE001
        _log.exception("a part of the report failed")
        said = redaction.masked(f": {error}") if facts.source else ""
        return html.muted(f"This part failed: {type(error).__name__}{said}"[:500])
    nbytes = len(body.encode("utf-8", "replace"))
    if nbytes <= limit:
        return body
    return html.muted(
        f"Left out: {text.size(nbytes)}, and this part may take {text.size(limit)}."
    )


def _target(path: str | Path, *, force: bool) -> Path:
    """Return where a report may be written to.

    Raises:
        ReportError: Nowhere: no such folder or home, somebody else's file, no page's name.
    """
    named = path_of(path, "report()", ReportError)
    try:
        target = named.expanduser()
        _check(target, force=force)
    except ReportError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise _unwritable(named, error) from None
    return target


def _unwritable(target: Path, error: Exception) -> ReportError:
    why = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
    return ReportError(
        f"{redaction.shortened(str(target))!r:.200} cannot be written: {why}. Nothing was written; choose "
        "a folder that you may write to, with room."
    )


def _check(target: Path, *, force: bool) -> None:
    shown = redaction.shortened(str(target))
    if target.suffix.lower() not in _SUFFIXES:
        raise ReportError(
            f"the report is a web page, and {shown!r} does not end in .html, so nothing was "
            "written. Give it such a name."
        )
    if target.is_dir():
        raise ReportError(
            f"{shown} is a folder, so nothing was written. Name a file, such as "
            f"{shown}/report.html."
        )
    if not target.parent.is_dir():
        raise ReportError(
            f"there is no folder {redaction.shortened(str(target.parent))}, so nothing was "
            "written. Make it, or name another one."
        )
    if target.exists() and not force and not _is_ours(target):
        raise ReportError(
            f"{shown} exists and is no report of lazyviz, so it was left as it is. Choose "
            "another name, or replace it: --force, in Python force=True."
        )


def _is_ours(target: Path) -> bool:
    with target.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return f'<meta name="generator" content="{GENERATOR}">'.encode() in head


def _replace(target: Path, page: str) -> None:
    """Write the whole file or none of it."""
    part = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with part.open("x", encoding="utf-8", errors="replace") as file:
            file.write(page)
        part.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, (OSError, ValueError)):
            raise _unwritable(target, error) from None
        raise
