"""Walking through a drawing: what a page and the kernel say to each other, and the way it goes.

A walk knows nothing of browsers. It takes requests, plain dicts such as
`{"kind": "select", "box": 3}`, checks them, and returns replies, plain dicts as well, one for each
thing that changes on the screen. Anybody who can reach the page may have sent a request.
`lazyviz.widgets` carries both.
"""

from __future__ import annotations

import re
import reprlib
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeGuard, TypeVar

from lazyviz.draw import svg
from lazyviz.draw.layout import lay_out, to_dot
from lazyviz.draw.svg import legend_svg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lazyviz.draw.fold import Folding
    from lazyviz.draw.model import DrawGraph


Reply = dict[str, Any]

_MAX_AXES = 64
_MAX_SEARCH = 200
_RELOAD = "Reload the page: it may show another graph."
_QUOTED = reprlib.Repr()
_QUOTED.maxlevel, _QUOTED.maxdict, _QUOTED.maxstring = 2, 4, 40

MAX_FOUND = 50  # of a search, and of other lists in a panel
MAX_HOPS = 20
ProgramT = TypeVar("ProgramT")


class RequestError(ValueError):
    """A request that no page of ours sends, or that cannot be done now."""


def quoted(value: object) -> str:
    """Return what a request has in a place, short whatever it is: it may be nested without end."""
    return _QUOTED.repr(value)


def answered(
    request: object,
    answers: Mapping[str, Callable[[Any], Iterator[Reply]]],
    what: str,
) -> Iterator[Reply]:
    """Answer a request by its kind; each reply is ready as soon as it is yielded.

    Args:
        request: Anything.
        answers: What answers each kind; `hello` is answered here.
        what: The view, in words.

    Raises:
        RequestError: It is none of these.
    """
    kind = request.get("kind") if isinstance(request, dict) else None
    if kind == "hello":
        yield hello()
        return
    answer = answers.get(kind) if isinstance(kind, str) else None
    if answer is None:
        raise RequestError(
            f"{quoted(request)} is no request that the {what} knows. Reload the page: it may be "
            "of another version."
        )
    yield from answer(request)


def hello() -> Reply:
    """Tell a page whether it is answered while a cell runs; it asks until it is.

    ipykernel 7.4 sends a page's messages to the thread that last answered it, the main one at
    first. Once the answer to a message that came by way of a subshell has gone out, later ones
    are taken on the subshell's thread.
    """
    concurrent = threading.current_thread() is not threading.main_thread()
    return {"kind": "ready", "concurrent": concurrent}


def panel_reply(
    body: str,
    box: int | None = None,
    then: Reply | None = None,
    seen: Sequence[int] = (),
) -> Reply:
    """Return what fills a page's panel, as HTML, and which drawn box it is about.

    Args:
        body: The HTML.
        box: Position of the box; None if it is about none.
        then: What the page asks next, unless its reader does something else at once.
        seen: Positions of boxes that the page brings into view together.
    """
    reply = {"kind": "panel", "html": body, "box": box, "then": then}
    return reply | {"seen": [*seen]} if seen else reply


def number(request: Mapping[str, Any], name: str, count: int) -> int:
    """Return a number from 0 to below `count` that a request has under a name.

    Raises:
        RequestError: It has none.
    """
    found = request.get(name)
    if not is_whole(found) or not 0 <= found < count:
        raise RequestError(
            f"{name} is {quoted(found)}, which is not a number from 0 to {count - 1}. {_RELOAD}"
        )
    return found


def choice(request: Mapping[str, Any], name: str, allowed: Sequence[Any]) -> Any:
    """Return one of some words that a request has under a name.

    Raises:
        RequestError: It has another one, or none.
    """
    wanted = request.get(name)
    if not isinstance(wanted, str) or wanted not in allowed:
        known = ", ".join(repr(each) for each in allowed)
        raise RequestError(
            f"{name} is {quoted(wanted)}, which is none of {known}. {_RELOAD}"
        )
    return wanted


def search_text(request: Mapping[str, Any]) -> str:
    """Return what a request searches for.

    Raises:
        RequestError: It is no text, or an overlong one.
    """
    wanted = request.get("text")
    if not isinstance(wanted, str) or len(wanted) > _MAX_SEARCH:
        raise RequestError(
            f"a search takes a text of at most {_MAX_SEARCH} characters, not {quoted(wanted)}."
        )
    return wanted


def position(request: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the index that a slice begins at; what is beyond a tensor's end is moved to it.

    Raises:
        RequestError: It is no list of positions.
    """
    at = request.get("at", [])
    if (
        not isinstance(at, list)
        or len(at) > _MAX_AXES
        or not all(is_whole(k) and k >= 0 for k in at)
    ):
        raise RequestError(
            f"at is {quoted(at)}, which is no list of positions. Give one number from 0 up for "
            "each axis."
        )
    return tuple(at)


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a request has a whole number in a place."""
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(slots=True, kw_only=True)
class View(Generic[ProgramT]):
    """One drawing on the way from the whole to a part of it."""

    title: str
    program: ProgramT
    graph: DrawGraph  # with nothing folded
    folding: Folding = "auto"
    opened: list[tuple[int, ...]] = field(default_factory=list)  # boxes, by their nodes
    folded: list[DrawGraph] = field(
        default_factory=list
    )  # with ever more of them opened


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
        own = {"save": self._save, "back": self._back}
        yield from answered(request, own | self._answers(), self._what)

    def _save(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        """Send what is shown as a file, which the page saves: a picture, or for graphviz."""
        kind, shown = choice(request, "name", ("svg", "dot")), self._shown
        written = svg.emit(shown, lay_out(shown)) if kind == "svg" else to_dot(shown)
        name = "-".join(re.findall(r"\w+", self.title))
        yield {"kind": "file", "name": f"{name}.{kind}", "text": written}

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
        yield panel_reply(self.overview())

    def _state(self) -> Reply:
        return {"kind": "state", "controls": self.controls, "title": self.title}

    def _drawn(self) -> Reply:
        self._shown = self._folded()
        picture = {"svg": self.drawing(), "legend": self.legend()}
        return {**self._state(), "kind": "drawing", "crumbs": self.crumbs, **picture}
