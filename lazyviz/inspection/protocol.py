"""What a page and the kernel say to each other: walking through a drawing, working with a table.

A walk knows nothing of browsers. It takes requests, plain dicts such as
`{"kind": "select", "box": 3}`, checks them, and returns replies, plain dicts as well, one for each
thing that changes on the screen. Anybody who can reach the page may have sent a request.
`lazyviz.widgets` carries both.
"""

from __future__ import annotations

import re
import reprlib
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    TypeGuard,
    TypeVar,
    get_args,
)

from lazyviz.draw import panel, svg
from lazyviz.draw.layout import lay_out, to_dot
from lazyviz.draw.svg import legend_svg
from lazyviz.render import text
from lazyviz.render.html import markup

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from lazyrt import Graph, Inspection
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

Form = Literal["ir", "stablehlo", "hlo", "optimised"]
FORMS: tuple[Form, ...] = get_args(Form)
FORM_NAMES: dict[Form, str] = {
    "ir": "IR",
    "stablehlo": "StableHLO",
    "hlo": "HLO",
    "optimised": "optimised HLO",
}
_NO_VALUES = (
    "No values: the step of this program has run, or it was never recorded here."
)


class RequestError(ValueError):
    """A request that no page of ours sends, or that cannot be done now.

    Whatever here takes a request raises it.
    """


def quoted(value: object) -> str:
    """Return what a request has in a place, short whatever it is: it may be nested without end."""
    return _QUOTED.repr(value)


def panel_reply(
    body: str,
    box: int | None = None,
    then: Reply | None = None,
    seen: Sequence[int] = (),
) -> Reply:
    """Return what fills a page's panel, as HTML, and which drawn box it is about, if any.

    The page asks `then` next, unless its reader does something else at once, and brings the boxes
    `seen` into view together.
    """
    reply = {"kind": "panel", "html": body, "box": box, "then": then}
    return reply | {"seen": [*seen]} if seen else reply


def busy(words: str) -> Reply:
    """Return what fills a page's panel during a wait."""
    return panel_reply(panel.busy_html(words))


def why_not(error: RuntimeError) -> str:
    """Return why there is nothing to show, as HTML; that a value is gone is no failure."""
    from lazyrt.errors import LostValueError

    is_gone = isinstance(error, LostValueError)
    show = panel.note_html if is_gone else panel.refusal_html
    return show(str(error))


def number(request: Mapping[str, Any], name: str, count: int) -> int:
    """Return a number from 0 to below `count` that a request has under a name."""
    found = request.get(name)
    if not is_whole(found) or not 0 <= found < count:
        raise RequestError(
            f"{name} is {quoted(found)}, which is not a number from 0 to {count - 1}. {_RELOAD}"
        )
    return found


def choice(request: Mapping[str, Any], name: str, allowed: Sequence[Any]) -> Any:
    """Return one of some words that a request has under a name."""
    wanted = request.get(name)
    if not isinstance(wanted, str) or wanted not in allowed:
        known = ", ".join(repr(each) for each in allowed)
        raise RequestError(
            f"{name} is {quoted(wanted)}, which is none of {known}. {_RELOAD}"
        )
    return wanted


def has_words(wanted: str, parts: Sequence[str]) -> bool:
    """Return whether each word that is searched for is in some texts, whatever its case."""
    text, words = " ".join(parts).lower(), wanted.lower().split()
    return bool(words) and all(word in text for word in words)


def position(request: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the index that a slice begins at; what is beyond a tensor's end is moved to it."""
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


class Subject(Generic[ProgramT]):
    """What the user wants to explore.

    Attributes:
        forms: The forms that it has.
        first: The one to begin with.
        inspection: Of a graph of a step; values come from it.
        no_values: Why there are none without an inspection.
    """

    def __init__(
        self,
        makers: Mapping[Form, Callable[[], ProgramT]],
        first: Form,
        inspection: Inspection | None = None,
        graph: Graph | None = None,
        no_values: str = "",
    ) -> None:
        self.no_values = no_values or _NO_VALUES
        self.forms = tuple(form for form in FORMS if form in makers)
        self.first = first
        self.inspection = inspection
        self._makers = makers
        self._computation = graph.lower() if graph is not None else None
        self._made: dict[Form, ProgramT] = {}

    def program(self, form: Form) -> ProgramT:
        """Return one form, made now if nobody has asked for it yet."""
        found = self._made.get(form)
        if found is None:
            found = self._made[form] = self._makers[form]()
        return found

    def price(self, form: Form) -> str:
        """Return what making a form costs that has to be compiled for it; else empty."""
        if form != "optimised" or form in self._made or self._computation is None:
            return ""
        if self._computation.known_hlo() is not None:
            return ""
        nodes = text.plural(len(self._computation.graph.nodes), "op")
        about = text.duration(self._computation.estimate_compile_ns())
        return (
            f"XLA compiles a copy of {nodes} for the eye, about {about}. The step's own "
            "executable, its key and its counts stay as they are."
        )


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


class Answering(ABC):
    """What a page asks: a request of the kind `back` is answered by the method `_on_back`."""

    _what: ClassVar[str]  # its name, for refusals

    def handle(self, request: object) -> Iterator[Reply]:
        """Answer a request; each reply is ready as soon as it is yielded."""
        kind = request.get("kind") if isinstance(request, dict) else None
        answer = getattr(self, f"_on_{kind}", None) if isinstance(kind, str) else None
        if answer is None:
            raise RequestError(
                f"{quoted(request)} is no request that the {self._what} knows. Reload the page: it "
                "may be of another version."
            )
        yield from answer(request)

    def _on_hello(self, _request: Mapping[str, Any]) -> Iterator[Reply]:
        """Tell a page whether it is answered while a cell runs; it asks until it is.

        ipykernel 7.4 sends a page's messages to the thread that last answered it, the main one at
        first. Once the answer to a message that came by way of a subshell has gone out, later ones
        are taken on the subshell's thread.
        """
        concurrent = threading.current_thread() is not threading.main_thread()
        yield {"kind": "ready", "concurrent": concurrent}


class Walk(Answering, Generic[ProgramT]):
    """A drawing that leads to others, of something in one of its forms."""

    def __init__(self, subject: Subject[ProgramT], form: Form) -> None:
        self._subject = subject
        self._chosen_form = form
        self._views = [self._whole(subject.program(form))]
        self._shown = self._folded()

    @property
    @abstractmethod
    def title(self) -> str:
        """One line about what is drawn."""

    @property
    def controls(self) -> dict[str, Any]:
        """What the reader can choose, as pairs of a value and a name, and what is chosen."""
        forms = [[form, FORM_NAMES[form]] for form in self._subject.forms]
        return {"form": forms, "chosen": {"form": self._chosen_form}}

    @abstractmethod
    def overview(self) -> str:
        """Return what is drawn in words, for a panel that shows nothing else yet, as HTML."""

    @abstractmethod
    def _whole(self, program: ProgramT) -> View[ProgramT]:
        """Return the drawing of a whole program."""

    @abstractmethod
    def _on_node(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        """Tell of a node."""

    @abstractmethod
    def _find(self, wanted: str) -> tuple[Sequence[int], int, str]:
        """Return in which drawn boxes a text is, in how many nodes, and these as HTML."""

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

    def _on_save(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        """Send what is shown as a file, which the page saves: a picture, or for graphviz."""
        kind, shown = choice(request, "name", ("svg", "dot")), self._shown
        written = svg.emit(shown, lay_out(shown)) if kind == "svg" else to_dot(shown)
        name = "-".join(re.findall(r"\w+", self.title))
        yield {"kind": "file", "name": f"{name}.{kind}", "text": written}

    def _on_search(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        wanted = request.get("text")
        if not isinstance(wanted, str) or len(wanted) > _MAX_SEARCH:
            raise RequestError(
                f"a search takes a text of at most {_MAX_SEARCH} characters, not {quoted(wanted)}."
            )
        boxes, count, told = self._find(wanted)
        yield {"kind": "found", "boxes": [*boxes], "count": count}
        yield panel_reply(told)

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

    def _on_back(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        level = number(request, "level", len(self._views))
        del self._views[level + 1 :]
        yield self._drawn()
        yield panel_reply(self.overview())

    def _on_form(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        """Show another form; one that must be compiled is offered first, with its cost."""
        form = choice(request, "form", self._subject.forms)
        price = self._subject.price(form)
        if price and request.get("go") is not True:
            yield panel_reply(panel.form_offer(FORM_NAMES[form], form, price))
            yield self._state()
            return
        yield busy("compiling …" if price else "lowering …")
        try:
            program = self._subject.program(form)
        except RuntimeError as error:
            yield panel_reply(why_not(error))
            yield self._state()
            return
        self._chosen_form = form
        self._views = [self._whole(program)]
        yield self._drawn()
        if "node" in request:
            yield from self._on_node(request)
        else:
            yield panel_reply(self.overview())

    def _state(self) -> Reply:
        return {"kind": "state", "controls": self.controls, "title": self.title}

    def _drawn(self) -> Reply:
        self._shown = self._folded()
        picture = {"svg": self.drawing(), "legend": self.legend()}
        return {**self._state(), "kind": "drawing", "crumbs": self.crumbs, **picture}


# --- tables

_MAX_NAME = 200
_SAYS = {True: "descending", False: "ascending"}
_ARROWS = {"descending": "▼", "ascending": "▲"}


class PageTable(Answering):
    """A table that a page sorts, refreshes and drops rows by, as the user confirms.

    It keeps numbers and names between two requests.

    Attributes:
        what: What it lists, as saved notebooks say.
        took_ns: How long the latest table took to make.
    """

    what: ClassVar[str]

    def __init__(self, sort: str, *, reverse: bool = False) -> None:
        self._sort = sort
        self._reverse = reverse
        self.took_ns = 0

    @property
    @abstractmethod
    def columns(self) -> Sequence[str]:
        """The columns that it can be sorted by."""

    @abstractmethod
    def _made(self) -> tuple[str, str]:
        """Return its title and its HTML."""

    @abstractmethod
    def _question(self, name: str) -> str:
        """Return what is asked before what a name stands for is dropped; empty for nothing."""

    @abstractmethod
    def _dropped(self, name: str) -> str:
        """Drop what a name stands for; return what came of it."""

    def table(self) -> Reply:
        """Return the table as it is now."""
        start = time.perf_counter_ns()
        title, body = self._made()
        self.took_ns = time.perf_counter_ns() - start
        return {"kind": "table", "html": body, "title": title}

    def _on_refresh(self, _request: Mapping[str, Any]) -> Iterator[Reply]:
        yield self.table()
        yield note_reply("")

    def _on_keep(self, _request: Mapping[str, Any]) -> Iterator[Reply]:
        yield note_reply("")

    def _on_sort(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        """Sort by a column; asked for the same one again, turn the order round."""
        column = choice(request, "column", self.columns)
        self._reverse = column == self._sort and not self._reverse
        self._sort = column
        yield self.table()

    def _on_drop(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        name = request.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            raise RequestError(
                f"{quoted(name)} is no name that can be let go of. Refresh the table and take one "
                "of its buttons."
            )
        asked = self._question(name)
        if asked and request.get("confirmed") is not True:
            yield note_reply(asked)
            return
        try:
            said = self._dropped(name)
        except ValueError as error:
            raise RequestError(str(error)) from None
        yield self.table()
        yield note_reply(answer(said))


def note_reply(body: str) -> Reply:
    """Return what stands above a table, as HTML."""
    return {"kind": "note", "html": body}


def sortable_html(
    columns: Mapping[str, str],
    body: str,
    does: str,
    numbers: Container[str],
    *,
    sort: str,
    reverse: bool,
) -> str:
    """Return a table whose heads sort it; a row's last cell has what a button `does`.

    The columns have what each means; numbers come with the largest first.
    """
    direction = _SAYS[(sort in numbers) is not reverse]
    heads = "".join(
        f'<th scope="col" title="{markup(means)}" '
        f'aria-sort="{direction if title == sort else "none"}"{_side(title, numbers)}>'
        f'<button type="button" data-kind="sort" data-column="{markup(title)}">'
        f"{markup(title)}{f' {_ARROWS[direction]}' if title == sort else ''}</button></th>"
        for title, means in columns.items()
    )
    return (
        f'<div class="lzl-scroll"><table><thead><tr>{heads}<th scope="col">{does}</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def cell_html(title: str, cell: object, numbers: Container[str]) -> str:
    """Return a cell of a table in a page."""
    shown = f"{cell:,}" if type(cell) is int else str(cell)
    return f"<td{_side(title, numbers)}>{markup(shown)}</td>"


# What may take several lines, and what a narrow page leaves out.
_KINDS = {"name": "wide", "held by": "wide", "holds": "wide", "tier": "least"}


def _side(title: str, numbers: Container[str]) -> str:
    kind = "number" if title in numbers else _KINDS.get(title, "")
    return f' class="lzl-{kind}"' if kind else ""


def drop_button(name: str, label: str, *, confirmed: bool = False) -> str:
    """Return a button that lets go of what a name stands for."""
    sure = ' data-confirmed="1"' if confirmed else ""
    return (
        f'<button type="button" class="lzl-drop" data-kind="drop" data-name="{markup(name)}"'
        f'{sure} aria-label="{markup(f"let go of {name}")}">{markup(label)}</button>'
    )


def question(asked: str, name: str, label: str) -> str:
    """Return what a click asks first, as HTML, with buttons for yes and no."""
    return (
        f"{asked} {drop_button(name, label, confirmed=True)} "
        '<button type="button" data-kind="keep">keep it</button>'
    )


def answer(text: str, *, failed: bool = False) -> str:
    """Return what came of a request, with its lines kept."""
    role = ' class="lzl-said lzx" role="alert"' if failed else ' class="lzl-said"'
    return f"<span{role}>{markup(text)}</span>"
