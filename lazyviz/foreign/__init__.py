"""Readers of what torch_xla, XLA and their like wrote, and what they share: errors, views, frames.

Nothing here needs torch, jax or lazyrt: evidence is read where it lies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from lazygraph.graph import HloError
from lazyviz.doc import Showable

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable
    from pathlib import Path

    from lazygraph import Graph

_FRAME = re.compile(r"\s*(?P<function>\S+) \((?P<file>.+):(?P<line>\d+)\)\s*")
_LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python", "contextlib.py")


class EvidenceError(ValueError):
    """A text or file that is not what it should be, or that breaks off; each reader raises it.

    Attributes:
        message: Without the line.
        line: Number of the line, from 1; None when it concerns the whole text.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.message = message
        self.line = line


class Evidence(Showable):
    """What every reader returns: views for a terminal, a notebook and a program."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        found: dict[str, Any] = plain(self)
        return found

    def __lazygraph__(self) -> Graph:
        """Refuse to be one program; say where several are."""
        parts = next((name for name in _PARTS if hasattr(self, name)), "")
        advice = "Give a dump of graphs, or of XLA's modules."
        if parts:
            advice = f"Choose one, such as `.{parts}[0]`."
        raise HloError(
            f"an object of type {type(self).__name__} is not one graph. {advice}"
        )


# Where evidence that holds several programs keeps them.
_PARTS = ("graphs", "modules", "tensors")


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame of a log, the innermost first."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        """Return `train_step (train.py:41)`."""
        return f"{self.function} ({self.file}:{self.line})"


def parse_frame(text: str) -> Frame | None:
    """Return the frame that a line names, None if it names none.

    Example:
        >>> parse_frame("  train_step (debug_env.py:16)")
        Frame(function='train_step', file='debug_env.py', line=16)
    """
    found = _FRAME.fullmatch(text)
    if found is None:
        return None
    return Frame(found["function"], found["file"], int(found["line"]))


def user_frame(frames: Iterable[Frame]) -> Frame | None:
    """Return the innermost frame that no installed package owns."""
    return next(
        (frame for frame in frames if not any(part in frame.file for part in _LIBRARY)),
        None,
    )


def file_bytes(path: Path, most: int, instead: str) -> bytes:
    """Return what is in a file of so many bytes at most; `instead` is what to do about a larger one."""
    try:
        size = path.stat().st_size
        if size > most:
            raise EvidenceError(
                f"{path} has {size:,} bytes, more than the {most:,} that are read at once. "
                f"{instead}"
            )
        return path.read_bytes()
    except OSError as error:
        raise EvidenceError(
            f"{path} cannot be read: {error.strerror}. Give the path of a file or folder, or "
            "a text of several lines."
        ) from None


def plain(value: Any) -> Any:
    """Return records as data of JSON's types, under the names of their fields; a frame is a line."""
    if isinstance(value, Frame):
        return str(value)
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return list(map(plain, value)) if isinstance(value, (list, tuple)) else value


def shorten(text: str, limit: int = 60) -> str:
    """Return the start of a text for an error message, as a literal."""
    return repr(text if len(text) <= limit else text[:limit] + "...")


def ranked(counts: Counter[str], limit: int) -> str:
    """Return the most frequent names with how often each occurs.

    Example:
        >>> from collections import Counter
        >>> ranked(Counter("abracadabra"), 2)
        'a ×5, b ×2'
    """
    return ", ".join(f"{name} ×{count:,}" for name, count in counts.most_common(limit))
