"""What a page and the kernel say to each other: requests, checked, and replies.

A request is a plain dict such as `{"kind": "select", "box": 3}`; anybody who can reach the page
may have sent it. A reply is a plain dict, too, one for each thing that changes on the screen.
"""

from __future__ import annotations

import reprlib
import threading
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Reply = dict[str, Any]

_MAX_AXES = 64
_MAX_SEARCH = 200
_RELOAD = "Reload the page: it may show another graph."
_QUOTED = reprlib.Repr()
_QUOTED.maxlevel, _QUOTED.maxdict, _QUOTED.maxstring = 2, 4, 40


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


def panel_reply(body: str, box: int | None) -> Reply:
    """Return what fills a page's panel, as HTML, and which drawn box it is about."""
    return {"kind": "panel", "html": body, "box": box}


def number(request: Mapping[str, Any], name: str, count: int) -> int:
    """Return a number from 0 to below `count` that a request has under a name.

    Raises:
        RequestError: It has none.
    """
    found = request.get(name)
    if not _is_whole(found) or not 0 <= found < count:
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
        or not all(_is_whole(k) and k >= 0 for k in at)
    ):
        raise RequestError(
            f"at is {quoted(at)}, which is no list of positions. Give one number from 0 up for "
            "each axis."
        )
    return tuple(at)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
