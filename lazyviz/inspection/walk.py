"""Walking through a drawing: the way from the whole to a part of it, and what a page is told.

A walk knows nothing of browsers. It takes requests, plain dicts such as
`{"kind": "select", "box": 3}`, checks them, and returns replies, plain dicts as well, one for each
thing that changes on the screen. `lazyviz.widgets` carries both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from lazyviz.draw import svg
from lazyviz.draw.layout import lay_out
from lazyviz.draw.svg import legend_svg
from lazyviz.inspection.protocol import answered, number, panel_reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lazyviz.draw.fold import Folding
    from lazyviz.draw.model import DrawGraph
    from lazyviz.inspection.protocol import Reply

MAX_FOUND = 50  # of a search, and of other lists in a panel
MAX_HOPS = 20

ProgramT = TypeVar("ProgramT")


@dataclass(slots=True, kw_only=True)
class View(Generic[ProgramT]):
    """One drawing on the way from the whole to a part of it."""

    title: str
    program: ProgramT
    graph: DrawGraph  # with nothing folded
    folding: Folding = "auto"


class Walk(ABC, Generic[ProgramT]):
    """A drawing that leads to others.

    Args:
        first: The whole.
    """

    _what: ClassVar[str]  # its name, for refusals

    def __init__(self, first: View[ProgramT]) -> None:
        self._views = [first]
        self._shown = self._folded()

    @property
    @abstractmethod
    def title(self) -> str:
        """One line about what is drawn."""

    @property
    @abstractmethod
    def controls(self) -> dict[str, Any]:
        """What the reader can choose, as pairs of a value and a name, and what is chosen."""

    @abstractmethod
    def overview(self) -> str:
        """Return what is drawn in words, for a panel that shows nothing else yet, as HTML."""

    @abstractmethod
    def _answers(self) -> dict[str, Callable[[Any], Iterator[Reply]]]:
        """Return what answers each kind of request."""

    @property
    def crumbs(self) -> list[str]:
        """The titles of the drawings from the whole to what is shown."""
        return [view.title for view in self._views]

    @property
    def shown(self) -> DrawGraph:
        """What is drawn now, folded."""
        return self._shown

    def drawing(self) -> str:
        """Return the picture of what is shown, as inline SVG."""
        return svg.emit(self._shown, lay_out(self._shown), inline=True, legend=False)

    def legend(self) -> str:
        """Return the legend of what is shown, as inline SVG; empty if it needs none."""
        return legend_svg(self._shown)

    def handle(self, request: object) -> Iterator[Reply]:
        """Answer a request; each reply is ready as soon as it is yielded.

        Raises:
            RequestError: It is none of ours.
        """
        yield from answered(request, self._answers(), self._what)

    @property
    def _view(self) -> View[ProgramT]:
        return self._views[-1]

    @property
    def _program(self) -> ProgramT:
        return self._view.program

    def _folded(self) -> DrawGraph:
        """Return what is to be drawn of the present view."""
        return self._view.graph

    def _drawn_at(self, node: int) -> int | None:
        """Return the box of what is drawn that stands for a node alone."""
        boxes = enumerate(self._shown.boxes)
        return next((k for k, box in boxes if box.members == (node,)), None)

    def _show(self, title: str, program: ProgramT, graph: DrawGraph) -> Reply:
        self._views.append(View(title=title, program=program, graph=graph))
        return self._drawn()

    def _back(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        level = number(request, "level", len(self._views))
        del self._views[level + 1 :]
        yield self._drawn()
        yield panel_reply(self.overview(), None)

    def _drawn(self) -> Reply:
        self._shown = self._folded()
        return {
            "kind": "drawing",
            "svg": self.drawing(),
            "legend": self.legend(),
            "crumbs": self.crumbs,
            "controls": self.controls,
            "title": self.title,
        }
