"""The registry of views: what `%lazy` can show, each one decorated function.

From a view follow its line of `%lazy`, the help page, what the Tab key offers, its part of a
session's report, and the tests that it changes no step and outlives its kernel. A view is told its
line as a `Command`, which knows what an expression stands for.
"""

from __future__ import annotations

import difflib
import re
import shlex
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from IPython.core.error import UsageError

from lazygraph.graph import HloError
from lazyviz import session as sessions
from lazyviz.doc import Doc, Facts, Line, Note, Part
from lazyviz.inspection import subjects
from lazyviz.shell.lazytensors import is_lazy, lazy_tensors, named_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import ModuleType, TracebackType


_MAX_NAMES = 6

VIEWS: dict[str, View] = {}
PENDING = "What is pending, and its program"
HISTORY = "What ran, and why it was compiled"
RESOURCES = "Time and memory"
CHANGES = "What changes the session"
PASSED_ON = "To show to others"
_TOPICS = (PENDING, HISTORY, RESOURCES, CHANGES, PASSED_ON)
# What runs a cell in another way; a cell has no view.
CELL_USAGE = {
    "step": (
        "%%lazy step [NAME]",
        "run the cell as one step, with a barrier at its end",
    ),
    "eager": ("%%lazy eager", "run the cell in eager debug mode"),
    "time": (
        "%%lazy time [N]",
        "run the cell N times and say which phase took how long",
    ),
    "profile": (
        "%%lazy profile [--steps N] [--seconds S] [--save FILE]",
        "run the cell and say where its time goes: the lines that wait, the device, each step",
    ),
}
_USAGE_WIDTH = 23
_LAST = (
    "Looking never runs the pending graph and never changes it. EXPR is a tensor, a list, tuple\n"
    "or dict of tensors, a module, or any expression that gives one; or a step: its number, `last`,\n"
    "or its graph's name. Without one it is what is pending, else the last step."
)


def names_hint(namespace: Mapping[str, Any]) -> str:
    """Return which lazy tensors a namespace has, as a sentence; empty if it has none."""
    names = [name for name, _ in named_tensors(namespace)]
    if not names:
        return ""
    shown = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
    return f" Lazy tensors here: {shown}."


def _what_it_is(value: Any) -> str:
    if hasattr(value, "named_parameters"):
        devices = {str(tensor.device) for _, tensor in value.named_parameters()}
        where = f"on the device {' and '.join(sorted(devices))}" if devices else "none"
        return f"is a {type(value).__name__}, whose parameters are {where}"
    device = getattr(value, "device", None)
    return (
        f"is on the device {device}"
        if device is not None
        else f"is of type {type(value).__name__}"
    )


def _below(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of `Command.value` and of the shell's `ev`."""
    for _ in range(2):
        traceback = traceback.tb_next if traceback is not None else None
    return traceback


class Typed(NamedTuple):
    """What stands behind a subcommand when the Tab key is pressed.

    Attributes:
        given: Whole words.
        start: The start of the word at the cursor.
        namespace: The user's variables.
    """

    given: list[str]
    start: str
    namespace: Mapping[str, Any]

    @property
    def tensors(self) -> list[str]:
        """Names of lazy tensors."""
        return [name for name, _ in named_tensors(self.namespace)]


class Option(NamedTuple):
    """An option of a view's line.

    Attributes:
        name: Such as `--sort`.
        takes: What stands behind it, such as `COLUMN`; empty for nothing.
        words: Returns what that may be; None for any word.
    """

    name: str
    takes: str = ""
    words: Callable[[], Sequence[str]] | None = None


class ReportPart(NamedTuple):
    """A view's part of a session's report: its title, and the bytes that it may take."""

    title: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class View:
    """A subcommand of `%lazy`.

    Attributes:
        make: Returns what it shows, None after it has shown it.
        usage: What the help page says: the form of the line, and what it does.
        topic: The heading of the help page under which it stands.
        offers: Returns what may follow, for the Tab key, besides options.
        options: What may stand anywhere behind the name.
        report: Its part of a session's report.
        takes_more: Whether anything may stand behind the name.
    """

    name: str
    make: Callable[[Command], Part | None]
    usage: Mapping[str, str]
    topic: str
    offers: Callable[[Typed], Iterable[str]]
    options: tuple[Option, ...] = ()
    report: ReportPart | None = None
    takes_more: bool = True

    def completions(self, typed: Typed) -> list[str]:
        """Return what may follow some words of a line."""
        for option in self.options:
            if option.takes and typed.given[-1:] == [option.name]:
                return list(option.words()) if option.words is not None else []
        unused = [each.name for each in self.options if each.name not in typed.given]
        if typed.start.startswith("-"):
            return unused
        return [*self.offers(typed), *(() if typed.given else unused)]


def view(
    name: str,
    *,
    help: str | Mapping[str, str],  # noqa: A002 - it is the help page's
    magic: str = "",
    topic: str = HISTORY,
    offers: Callable[[Typed], Iterable[str]] | tuple[str, ...] = (),
    options: tuple[Option, ...] = (),
    report: ReportPart | None = None,
) -> Callable[[Callable[[Command], Part | None]], Callable[[Command], Part | None]]:
    """Register a function as the view `%lazy NAME`.

    Args:
        name: The subcommand.
        help: What it does, in a line; or several forms of the line with what each does.
        magic: What may stand behind the name, such as `[STEP]`.
        topic: The heading of the help page under which it stands.
        offers: What the Tab key offers as the first word, or a function of what is typed.
        options: What may stand anywhere behind the name; see `Command.read`.
        report: Makes it a part of a session's report.
    """

    def register(
        make: Callable[[Command], Part | None],
    ) -> Callable[[Command], Part | None]:
        forms = {magic: help} if isinstance(help, str) else help
        usage = {
            form if form.startswith("%") else f"%lazy {name} {form}".rstrip(): words
            for form, words in forms.items()
        }
        offer = offers if callable(offers) else _first(offers)
        takes = bool(magic or offers or options)
        VIEWS[name] = View(name, make, usage, topic, offer, options, report, takes)
        return make

    return register


def _first(words: tuple[str, ...]) -> Callable[[Typed], Iterable[str]]:
    return lambda typed: () if typed.given else words


def tensors(typed: Typed) -> Iterable[str]:
    """Return names of tensors, at each place."""
    return typed.tensors


def graphs(typed: Typed) -> Iterable[str]:
    """Return what names a graph: the last step, and tensors."""
    return () if typed.given else (subjects.LAST, *typed.tensors)


def help_page(name: str = "") -> Doc:
    """Return the help of all subcommands, or of one."""
    topics: dict[str, dict[str, str]] = {topic: {} for topic in _TOPICS}
    for each in VIEWS.values():
        topics.setdefault(each.topic, {}).update(each.usage)
    topics[CHANGES].update(CELL_USAGE.values())
    entry = re.compile(rf"%lazy {name}\b")
    parts: list[Part] = []
    for topic, forms in topics.items():
        rows = [row for row in forms.items() if not name or entry.search(row[0])]
        facts = Facts(("command", "what it does"), rows, _USAGE_WIDTH)
        parts += [facts if name else Doc([Line(topic), facts])] if rows else []
    if name:
        return Doc(parts)
    return Doc([Line("Look into the lazy runtime."), *parts, Note(_LAST)], gap="\n\n")


@dataclass(frozen=True, slots=True)
class Command:
    """One line of `%lazy`, for the view that it names.

    Attributes:
        name: The subcommand.
        rest: What stands behind it.
        shell: Where it was typed; None for a report outside of one.
        session: What lazyviz knows of that shell.
    """

    name: str
    rest: str
    shell: Any
    session: Any

    @property
    def runtime(self) -> ModuleType:
        """Lazyrt, which somebody imported."""
        runtime = sessions.runtime()
        if runtime is None:
            raise UsageError(
                "lazyrt is not imported, so there is no lazy device to look at. "
                "Run `import lazyrt` and make tensors with device='lazyrt'."
            )
        return runtime

    def refuse(self, words: Sequence[str]) -> None:
        """Refuse words that are no options of a subcommand that takes no others."""
        if words:
            names = [option.name for option in VIEWS[self.name].options]
            takes = f"only {', '.join(names)}" if names else "nothing"
            raise UsageError(
                f"%lazy {self.name} takes {takes} after it, but got {' '.join(words)!r}."
            )

    def read(self) -> tuple[list[str], dict[str, str]]:
        """Return the words of the line, and by its options what they take.

        What stands in quotes is one word, with them.

        Raises:
            UsageError: There is no such option, or it takes something else.
        """
        with refused(f"%lazy {self.name} {self.rest}: "):
            words = shlex.split(self.rest, posix=False)
        known = {option.name: option for option in VIEWS[self.name].options}
        rest: list[str] = []
        found: dict[str, str] = {}
        while words:
            word = words.pop(0)
            if word in known:
                found[word] = self._taken(known[word], words)
            elif word.startswith("--"):
                raise UsageError(
                    f"%lazy {self.name} has no option {word}. It has {', '.join(known)}."
                )
            else:
                rest.append(word)
        return rest, found

    def _taken(self, option: Option, words: list[str]) -> str:
        """Return what stands behind an option, which may be two words, and take it away."""
        if not option.takes:
            return option.name
        allowed = option.words() if option.words is not None else words[:1]
        for count in (2, 1):
            taken = " ".join(words[:count])
            if taken in allowed:
                del words[:count]
                return taken.strip("'\"")
        listed = f": {', '.join(allowed)}" if option.words is not None else ""
        given = f"not {words[0]!r}" if words else "and nothing stands behind it"
        raise UsageError(
            f"%lazy {self.name} {option.name} takes {option.takes}{listed}, {given}."
        )

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the shell's namespace.

        Raises:
            UsageError: It is no expression, or names what is not there.
        """
        try:
            return self.shell.ev(expression)
        except NameError as error:
            within = _below(error.__traceback__)
            if within is not None and within.tb_next is not None:  # a function's own
                raise
            namespace = self.shell.user_ns
            names = [name for name, _ in named_tensors(namespace)]
            near = difflib.get_close_matches(expression, names, n=3)
            hint = (
                f" Did you mean {' or '.join(near)}?" if near else names_hint(namespace)
            )
            raise UsageError(
                f"%lazy {self.name} {expression}: {error}.{hint}"
            ) from None
        except SyntaxError as error:
            if _below(error.__traceback__) is not None:  # it was read and run
                raise
            raise UsageError(
                f"%lazy {self.name} takes one expression; {expression!r} is none: {error.msg}."
            ) from None

    def tensors(self, expression: str) -> list[Any]:
        """Return the tensors that an expression stands for."""
        return self.tensors_of(expression, self.value(expression))

    def tensors_of(self, expression: str, value: Any) -> list[Any]:
        """Return the tensors of a value; refuse one that has none."""
        found = list(lazy_tensors(value))
        if hasattr(value, "named_parameters"):
            found = [t for _, t in value.named_parameters() if is_lazy(t)]
        if not found:
            raise UsageError(
                f"%lazy {self.name} shows lazy tensors, and {expression} {_what_it_is(value)}. "
                "Give a tensor on the device lazyrt, or leave the expression out to see all that "
                "is pending." + names_hint(self.shell.user_ns)
            )
        return found

    def thing(self, expression: str) -> Any:
        """Return what an expression names: a step as it is written, or a value."""
        return (
            expression if subjects.is_step_name(expression) else self.value(expression)
        )

    def target(self, expression: str) -> subjects.Target:
        """Return the pending graph or the finished step that an expression names.

        Raises:
            NothingToShow: There is none.
            UsageError: There is no such step, or no tensor in it.
        """
        runtime = self.runtime
        things = [self.thing(expression)] if expression else []
        if things and not subjects.is_step_name(things[0]):
            found = self.tensors_of(expression, things[0])
            things = [*filter(runtime.is_pending, found)] or found
        with refused(f"%lazy {self.name} {expression}: ", HloError):
            return subjects.target_of(runtime, *things)


@contextmanager
def refused(before: str = "", kind: type[Exception] = ValueError) -> Iterator[None]:
    """Turn a refusal of what a line asks for into a usage error, which has no traceback."""
    try:
        yield
    except subjects.NothingToShow:
        raise
    except kind as error:
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        raise UsageError(f"{before}{error}{notes}") from None


def unknown(command: str) -> str:
    """Return what to say of a subcommand that there is not."""
    near = difflib.get_close_matches(command, VIEWS, n=2)
    hint = f" Did you mean %lazy {' or %lazy '.join(near)}?" if near else ""
    return f"%lazy has no subcommand {command!r}.{hint} It has {', '.join(VIEWS)}."
