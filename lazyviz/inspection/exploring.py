"""`lazyviz.explore` and `%lazy explore`: a program to walk through, live or as a static copy."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lazygraph.gc_pause import gc_paused
from lazyviz import session
from lazyviz.doc import Code, Doc, Drawn, Fold, Part
from lazyviz.draw import svg
from lazyviz.inspection.explorer import Explorer
from lazyviz.inspection.subjects import pending_subject, subject_of
from lazyviz.render.html import page_html
from lazyviz.shell.displayed import Displayed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lazyviz.widgets import GraphView

_UNSAFE = re.compile(r"[^0-9A-Za-z_-]+")


class ExploreView(Displayed):
    """A program to walk through.

    A front end with widgets shows it live, above a static copy for later readers; other shells
    show the copy, terminals a listing.

    Attributes:
        explorer: What answers the page; see `lazyviz.inspection.explorer`.
    """

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer

    @cached_property
    def widget(self) -> GraphView:
        """The live view, made when somebody asks for it."""
        from lazyviz.widgets import GraphView

        return GraphView(self.explorer, self._twin)

    @property
    def _twin(self) -> str:
        return f"lzt-{_UNSAFE.sub('-', self.explorer.title)[:40]}"

    def doc(self) -> Doc:
        """Return a line about the program and its listing; on a page a folded picture."""
        title = self.explorer.title
        copy = Fold(f"{title}, static copy", self._parts(title), in_text=True)
        return Doc([copy], css_class=self._twin, live=lambda: self.widget)

    def _parts(self, title: str) -> list[Part]:
        words = f"{title}\n{self.explorer.listing()}"
        drawn = Drawn(words, lambda: svg.graph_html(self.explorer.copied))
        graph_break = self.explorer.graph_break
        return [drawn] if graph_break is None else [drawn, graph_break.doc()]

    def to_svg(self) -> str:
        """Return the picture of what is shown, with all that it needs."""
        return svg.draw(self.explorer.unfolded, budget=svg.STRIP_BUDGET).svg

    def to_text(self) -> str:
        """Return a line about the program and its listing."""
        return self.text()

    def save(self, path: str | Path, title: str = "") -> None:
        """Write the static copy as a page that needs no other file."""
        drawn, *graph_break = self._parts("")
        body = Doc([drawn, Code(self.explorer.listing()), *graph_break]).to_html()
        page = page_html(title or self.explorer.title, [("", body)])
        Path(path).write_text(page, encoding="utf-8")

    def __repr__(self) -> str:
        """Return the same text in each run, so that notebooks compare."""
        return f"<{self.explorer.title}>"


@gc_paused
def explore(*things: Any, options: Mapping[str, Any] | None = None) -> ExploreView:
    """Return a view of what is pending, else of the last step; see `lazyviz.explore`."""
    current = session.current()
    runtime = session.runtime()
    subject = subject_of(*things, runtime=runtime, options=options)
    inspection = subject.inspection
    if current is not None and inspection is not None and inspection.is_pending:
        names = {**subject.names, **current.names_in(inspection.graph)}
        graph_break = subject.graph_break
        subject = pending_subject(inspection, names, subject.first)
        subject.graph_break = graph_break
    return ExploreView(Explorer(subject))
