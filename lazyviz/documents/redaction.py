"""What a file that is passed on should not tell: the home directory, secrets, quoted source.

A record names what was read or looked at by its expression, such as `model(x)[0].item()`. Each
function here returns a record whose expressions have been told otherwise: with secrets masked
(`masked`), or, for a report without source, by name alone (`name_only`).
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lazyviz.render.html import markup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lazyrt.observe import events
    from lazyrt.tools import Status
    from lazyviz.render.notes import Barrier, Looked
    from lazyviz.render.timeline_text import Span
    from lazyviz.session import CellRecord
    from lazyviz.timing.history import StepRow

    Tell = Callable[[str], str]


_MASK = "•••"
_NAMES = r"token|secret|passw(?:or)?d|passphrase|api_?key|access_?key|private_?key|credentials?"
_NAMED = rf"\b[\w.\[\]'\"-]{{0,60}}(?:{_NAMES})\w{{0,20}}['\"\]]{{0,3}}\s{{0,3}}"
_ANNOTATION = r"(?::\s{0,3}[\w.\[\]| ]{1,40})?"
# A string of Python, one that the end of the text cuts off included.
_LITERAL = "|".join(
    rf"{mark}(?:\\[\s\S]|(?!{mark})[{inside}])*(?:{mark}|\Z)"
    for mark, inside in (
        ('"""', r"\s\S"),
        ("'''", r"\s\S"),
        ('"', r"^\n"),
        ("'", r"^\n"),
    )
)
_STRING = re.compile(_LITERAL)
# `hf_token = "..."`, `token: str = b"..."`, `{"password": "..."}`, `api_key=...` in a shell line or
# an address.
_ASSIGNED = re.compile(
    rf"(?i)({_NAMED}(?:{_ANNOTATION}=|:)[\s(]{{0,3}}[bfru]{{0,2}})({_LITERAL}|[^\s\"'(),;&]{{6,}})"
)
# `environ.setdefault("API_KEY", "...")`
_PASSED = re.compile(rf"(?i)([\"']{_NAMED},\s{{0,3}})({_LITERAL})")
# What the larger services' tokens look like, wherever they stand.
_TOKENS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|sk-[\w-]{16,}|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
_USER_IN_ADDRESS = re.compile(r"(?<=://)[^\s/@:\"']+:[^\s/@\"']+(?=@)")
_EMBEDDED = re.compile(r"(data:image/svg\+xml;base64,)([A-Za-z0-9+/=]+)")

# How the timeline names what was read or looked at; see `lazyviz.timing.history`.
_QUOTED = re.compile(
    r"look at (?P<seen>.+)|(?P<what>.*\bread by .*?) of (?P<read>.+)", re.DOTALL
)
_Told = TypeVar("_Told", "StepRow", "Barrier", "Looked", "events.Repeat")


def name_only(expression: str) -> str:
    """Return an expression that is a name, and nothing for any other one.

    Example:
        >>> name_only("model.loss"), name_only("f(x)")
        ('model.loss', '')
    """
    return expression if expression.replace(".", "_").isidentifier() else ""


def step(row: StepRow, tell: Tell) -> StepRow:
    """Return a step with its expressions told otherwise."""
    frames = tuple(_frame(frame, tell) for frame in row.frames)
    return dataclasses.replace(_told(row, tell), frames=frames)


def cell(record: CellRecord, tell: Tell) -> CellRecord:
    """Return a cell's record whose strip has its expressions told otherwise."""
    strip = record.strip
    now = state(strip.state, tell) if strip.state is not None else None

    def told(each: _Told) -> _Told:
        return _told(each, tell)

    apart = strip.apart
    if apart is not None:
        names = tuple(map(tell, apart.tensors))
        apart = dataclasses.replace(apart, tensors=names)
    strip = dataclasses.replace(
        strip,
        state=now,
        frames_shown=tuple(_frame(frame, tell) for frame in strip.frames_shown),
        barriers=tuple(map(told, strip.barriers)),
        looks=tuple(map(told, strip.looks)),
        apart=apart,
    )
    return dataclasses.replace(record, strip=strip)


def state(now: Status, tell: Tell) -> Status:
    """Return a state with the expression of its last barrier told otherwise."""
    last = now.last_barrier
    if last is None:
        return now
    return dataclasses.replace(
        now, last_barrier=dataclasses.replace(last, tensor=tell(last.tensor))
    )


def span(found: Span, tell: Tell) -> Span:
    """Return a span of the timeline with its expression told otherwise.

    Example:
        >>> from lazyviz.render.timeline_text import Span
        >>> names = ("look at f(x)", "look at loss", "step 2: read by bool() of f(x)")
        >>> [span(Span("step", "run", name, 0, 1, None), name_only).name for name in names]
        ['look at a tensor', 'look at loss', 'step 2: read by bool()']
    """
    quoted = _QUOTED.fullmatch(found.name)
    if quoted is None:
        return found
    words = tell(quoted["read"] or quoted["seen"])
    if quoted["seen"]:
        return found._replace(name=f"look at {words or 'a tensor'}")
    return found._replace(
        name=f"{quoted['what']} of {words}" if words else quoted["what"]
    )


def _told(row: _Told, tell: Tell) -> _Told:
    repeats = getattr(row, "repeats", None)
    changes: dict[str, Any] = {"tensor": tell(row.tensor)}
    if repeats:
        changes["repeats"] = tuple(_told(each, tell) for each in repeats)
    return dataclasses.replace(row, **changes)


def _frame(frame: events.FrameCompiled, tell: Tell) -> events.FrameCompiled:
    if frame.guard is None:
        return frame
    told = dataclasses.replace(frame.guard, text=guard(frame.guard.text, tell))
    return dataclasses.replace(frame, guard=told)


def guard(words: str, tell: Tell) -> str:
    """Return what is otherwise in a call of a compiled function, without the strings compared.

    Example:
        >>> guard("`key` is 'abc', was 'xyz'", name_only), guard("`d['k']` is 3, was 2", name_only)
        ("`key` is '•••', was '•••'", '`…` is 3, was 2')
    """
    name, end, values = words.removeprefix("`").partition("` ")
    if not end:
        return words
    return f"`{tell(name) or '…'}` {_STRING.sub(repr(_MASK), values)}"


def without_strings(page: str, guards: Iterable[str]) -> str:
    """Return a page without the strings that failed guards of compiled functions compared.

    Example:
        >>> without_strings("key is &#x27;a.<wbr/>b&#x27;, was None", ["`key` is 'a.b', was None"])
        'key is &#x27;•••&#x27;, was None'
    """
    for words in guards:
        _, _, values = words.partition("` ")
        hidden = _STRING.sub(repr(_MASK), values)
        if hidden != values:  # a table lets a long word go on in the next line
            pattern = r"(?:<wbr ?/?>)?".join(map(re.escape, markup(values)))
            page = re.sub(pattern, markup(hidden), page)
    return page


def expressions(guards: Iterable[str]) -> list[str]:
    """Return what failed guards of compiled functions have read, such as `self.inner.p`."""
    return [words.partition("` ")[0].removeprefix("`") for words in guards]


def masked(source: str) -> str:
    """Return source text with obvious secrets replaced: a best effort, and no promise.

    Example:
        >>> masked('hf_token = "abc"; n = 3')
        'hf_token = "•••"; n = 3'
    """
    for pattern in (_ASSIGNED, _PASSED):
        source = pattern.sub(_mask_value, source)
    source = _TOKENS.sub(_MASK, source)
    return _USER_IN_ADDRESS.sub(_MASK, source)


def _mask_value(found: re.Match[str]) -> str:
    name, value = found.groups()
    if value[0] in "\"'":
        quotes = value[:3] if value[:3] == 3 * value[0] else value[0]
        return f"{name}{quotes}{_MASK}{quotes}"
    # What is computed is no secret: `token = tokens[0]`, `api_key=None`.
    if re.fullmatch(r"[A-Za-z_][A-Za-z_.]*(\[.*)?", value):
        return found[0]
    return name + _MASK


def unquoted(page: str, quotes: Iterable[str]) -> str:
    """Return a page in which quoted expressions are an ellipsis; names stay.

    Example:
        >>> unquoted("`ones(n)` and `n` at line 2", ["ones(n)", "n"])
        '`…` and `n` at line 2'
    """
    expressions = {markup(quote) for quote in quotes if not name_only(quote)}
    for expression in sorted(expressions, key=len, reverse=True):
        page = page.replace(expression, "…")
    return page


def shortened(page: str, home: Path | None = None) -> str:
    """Return a page with a home directory, by default the user's, as `~`, in pictures, too."""
    with contextlib.suppress(RuntimeError):  # no home at all
        home = home or Path.home()
    if home is None or len(home.parts) < 2:  # noqa: PLR2004 - the root itself
        return page
    spelt = {str(home), str(home.resolve())}
    names = sorted(spelt | {markup(name) for name in spelt}, key=len, reverse=True)
    pattern = re.compile(
        rf"(?<![\w.~-])(?:{'|'.join(map(re.escape, names))})(?![\w.-])"
    )

    def in_picture(found: re.Match[str]) -> str:
        try:
            picture = base64.b64decode(found[2]).decode()
        except ValueError:  # what a cell of the user's has written in such a form
            return found[0]
        cleaned = pattern.sub("~", picture)
        if cleaned == picture:
            return found[0]
        return found[1] + base64.b64encode(cleaned.encode()).decode()

    return _EMBEDDED.sub(in_picture, pattern.sub("~", page))
