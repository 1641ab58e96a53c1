"""What the executables on disk hold, in one small file for each folder of versions.

Listing ten thousand executables would open as many files. So what one holds is also a line of an
index: written when it is stored, and for files without a line when they are first listed. A line
counts only for a file of its size; whatever else is in the index is passed over, and an index that
has grown to more than twice the files is written anew.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING

from lazyrt.execution import cache

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from lazyrt.execution.cache import Facts, File

_MAX_BYTES = 64 * 2**20
_SPARE_LINES = 200

_Line = tuple[str, int]  # a file's digest, its bytes


def note(path: Path, nbytes: int, facts: Facts) -> None:
    """Write down what a file that was just stored holds; failing to is harmless."""
    _append(path.parent.parent, {(path.stem, nbytes): facts})


def facts_of(files: Sequence[File], *, is_all: bool) -> dict[Path, Facts]:
    """Return what some files hold; only those without a line in the index are opened.

    Args:
        files: Executables on disk.
        is_all: Whether these are all there are, so that an index may drop other lines.
    """
    folders: defaultdict[Path, list[File]] = defaultdict(list)
    for file in files:
        folders[file.path.parent.parent].append(file)
    found: dict[Path, Facts] = {}
    for folder, of_folder in folders.items():
        found |= _of_folder(folder, of_folder, is_all=is_all)
    return found


def _of_folder(
    folder: Path, files: Iterable[File], *, is_all: bool
) -> dict[Path, Facts]:
    known, lines = _parsed(cache.read_text(folder / cache.INDEX, _MAX_BYTES))
    found: dict[Path, Facts] = {}
    fresh: dict[_Line, Facts] = {}
    present: dict[_Line, Facts] = {}
    for file in files:
        key = file.digest, file.nbytes
        facts = known.get(key)
        if facts is None:
            facts = fresh[key] = file.facts()
        found[file.path] = present[key] = facts
    if is_all and lines > 2 * len(present) + _SPARE_LINES:
        _rewrite(folder, present)
    elif fresh:
        _append(folder, fresh)
    return found


def _parsed(text: str) -> tuple[dict[_Line, Facts], int]:
    """Return what an index says, and how many lines it has."""
    found: dict[_Line, Facts] = {}
    lines = text.splitlines()
    for line in lines:
        with contextlib.suppress(
            ValueError, TypeError, AttributeError, OverflowError, RecursionError
        ):
            digest, nbytes, held = json.loads(line)
            found[str(digest), int(nbytes)] = cache.facts_from(held)
    return found, len(lines)


def _text(entries: Mapping[_Line, Facts]) -> str:
    return "".join(
        json.dumps([digest, nbytes, asdict(facts)]) + "\n"
        for (digest, nbytes), facts in entries.items()
    )


def _append(folder: Path, entries: Mapping[_Line, Facts]) -> None:
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(folder / cache.INDEX, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size > _MAX_BYTES:  # nobody would read it
                os.ftruncate(descriptor, 0)
            os.write(descriptor, _text(entries).encode())  # at once: others append, too
        finally:
            os.close(descriptor)


def _rewrite(folder: Path, entries: Mapping[_Line, Facts]) -> None:
    with contextlib.suppress(OSError):
        cache.write_text(folder / cache.INDEX, _text(entries))
