"""What recording learned of ops, on disk, so that a second process need not ask again.

Beside the executables there is one file of lines: result types that torch's meta kernels gave,
and ops whose rule passed its abstract check. Both follow from an op, its operands' types and its
constants alone, as long as the versions and lazyrt's code stay the same. Only ops of `aten` count:
what other packages define may change between two runs.

A line is the digest of its question, the answer as JSON, and a digest of both. One that is damaged
or cut is passed over, and the question is asked again. Lines are appended by one write, so
processes can share the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING, Any

from lazyrt.config import config
from lazyrt.execution import cache

if TYPE_CHECKING:
    from pathlib import Path

_MAX_BYTES = 64 * 2**20
# Stands in the text of an object that has no value of its own.
_AN_ADDRESS = " at 0x"

_file: Path | None = None
_lines: dict[str, str] = {}
_fresh: list[str] = []


class Question:
    """Something that is asked of an op: its answer is looked up, or learned.

    Args:
        op: Qualified name of the op.
        parts: What else the answer follows from, beside versions and lazyrt's own code.
    """

    __slots__ = ("_digest",)

    def __init__(self, op: str, *parts: object) -> None:
        self._digest = ""
        if config.cache_dir is None or not op.startswith("aten."):
            return
        text = repr((op, parts))
        if _AN_ADDRESS not in text:
            self._digest = _digest(text, 16)

    def answer(self) -> Any:
        """Return the answer that some process wrote down; None if there is none."""
        if not self._digest:
            return None
        _read()
        line = _lines.get(self._digest)
        if line is None:
            return None
        body, _, check = line.rpartition("\t")
        if check != _digest(self._digest + body, 8):
            return None
        try:
            return json.loads(body)
        except ValueError:
            return None

    def learn(self, answer: object) -> None:
        """Write down an answer, which is JSON and not None, with the next graph that is compiled."""
        if self._digest:
            body = json.dumps(answer, separators=(",", ":"))
            _fresh.append(
                f"{self._digest}\t{body}\t{_digest(self._digest + body, 8)}\n"
            )


def store() -> None:
    """Append what this process has learned; failing to is harmless."""
    if not _fresh:
        return
    _read()
    text = "".join(_fresh)
    _fresh.clear()
    for line in text.splitlines():
        digest, _, rest = line.partition("\t")
        _lines.setdefault(digest, rest)
    if _file is not None:
        with contextlib.suppress(OSError):
            cache.append_text(_file, text, _MAX_BYTES)


def forget() -> None:
    """Forget what was read, and what is not yet written."""
    global _file
    _file = None
    _lines.clear()
    _fresh.clear()


def _read() -> None:
    """Read the file of the folder in use, once."""
    global _file
    path = cache.learned_path()
    if path == _file:
        return
    _file = path
    _lines.clear()
    for line in () if path is None else cache.read_text(path, _MAX_BYTES).splitlines():
        digest, _, rest = line.partition("\t")
        _lines[digest] = rest


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()
