"""`lazyviz.explore` and `%lazy explore`: a program to walk through, live or as a static copy."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lazygraph.gc_pause import gc_paused
from lazyviz import formatters, session
from lazyviz.draw import svg
from lazyviz.inspection.explorer import Explorer
from lazyviz.inspection.subjects import pending_subject, subject_of
from lazyviz.render import html
from lazyviz.render.cuts import cut_html, cut_text
from lazyviz.render.html import page_html
from lazyviz.shell import displayed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lazyviz.widgets import GraphView

_UNSAFE = re.compile(r"[^0-9A-Za-z_-]+")


class ExploreView:
    """A program to walk through.

    A front end with widgets shows it live, above a static copy for later readers; other shells
    show the copy, terminals a listing.

    Attributes:
        explorer: What answers the page; see `lazyviz.inspection.explorer`.
    """

    def __init__(self, explorer: Explorer, shell: Any = None) -> None:
        self.explorer = explorer
        self._shell = shell

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to walk through."""
        return not self.explorer.shown.boxes

    @cached_property
    def widget(self) -> GraphView:
        """The live view, made when somebody asks for it."""
        from lazyviz.widgets import GraphView

        return GraphView(self.explorer, self._twin)

    @property
    def _twin(self) -> str:
        return f"lzt-{_UNSAFE.sub('-', self.explorer.title)[:40]}"

    def to_svg(self) -> str:
        """Return the picture of what is shown, with all that it needs."""
        return svg.draw(self.explorer.unfolded, budget=svg.STRIP_BUDGET).svg

    def to_html(self) -> str:
        """Return the static copy: a picture under a line that folds it."""
        if self.is_empty:
            return html.muted("Nothing is pending.")
        drawing = svg.graph_html(self.explorer.copied)
        title = f"{self.explorer.title}, static copy"
        return html.folded(title, drawing + self._cut_html(), css_class=self._twin)

    def _cut_html(self) -> str:
        return cut_html(self.explorer.cut) if self.explorer.cut is not None else ""

    def to_text(self) -> str:
        """Return a line about the program and its listing."""
        if self.is_empty:
            return "Nothing is pending."
        cut = self.explorer.cut
        drawn = f"\n{cut_text(cut)}" if cut is not None else ""
        return f"{self.explorer.title}\n{self.explorer.listing()}{drawn}"

    def save(self, path: str | Path, title: str = "") -> None:
        """Write the static copy as a page that needs no other file."""
        from pathlib import Path

        listing = html.pre(self.explorer.listing())
        body = svg.graph_html(self.explorer.copied) + listing + self._cut_html()
        page = page_html(title or self.explorer.title, [("", body)])
        Path(path).write_text(page, encoding="utf-8")

    def show(self) -> None:
        """Display the static copy and, where the shell shows widgets, the live view."""
        publish = self._shell_now().display_pub.publish
        publish(self._repr_mimebundle_(), metadata={})
        if not self.is_empty and self._is_live():
            displayed.show_live(self._shell_now(), lambda: self.widget)

    def _is_live(self) -> bool:
        shell = self._shell_now()
        return shell is not None and formatters.wants_html(shell)

    def _shell_now(self) -> Any:
        if self._shell is not None:
            return self._shell
        from IPython.core.getipython import get_ipython

        return get_ipython()

    def _ipython_display_(self) -> None:
        if self._shell_now() is None:
            print(self.to_text())  # noqa: T201 - what a shell without displays shows
            return
        self.show()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        bundle = {"text/plain": self.to_text()}
        if self._is_live():
            bundle["text/html"] = self.to_html()
        return bundle

    def __repr__(self) -> str:
        """Return the same text in each run, so that notebooks compare."""
        return f"<{self.explorer.title}>"


@gc_paused
def explore(
    *things: Any, shell: Any = None, options: Mapping[str, Any] | None = None
) -> ExploreView:
    """Return a view of what is pending, of tensors, or of a program; see `lazyviz.explore`."""
    current = session.current()
    runtime = session.runtime()
    subject = subject_of(*things, runtime=runtime, options=options)
    inspection = subject.inspection
    if current is not None and inspection is not None:
        names = {**subject.names, **current.names_in(inspection.graph)}
        cut = subject.cut
        subject = pending_subject(inspection, names, subject.first)
        subject.cut = cut
    return ExploreView(Explorer(subject), shell)
