"""The executables that this process or this user's disk holds: a list, and eviction.

Above their budget they are dropped in order of their last use. A step that repeats finds its
executable by its plan and looks nothing up, so the order would be that of compiling. Plans are
therefore forgotten once before anything is dropped: whatever is still in use is then looked up
and goes to the end.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lazygraph.numbers import duration_text, plural, size_text
from lazygraph.readable import Readable
from lazyrt.config import config
from lazyrt.errors import UsageError
from lazyrt.execution import cache, compiler
from lazyrt.execution.graph_registry import graph_registry
from lazyrt.execution.peek import forget_slices
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Container

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedExecutable(Readable):
    """One executable, in memory, on disk, or both.

    Attributes:
        key: 32 hexadecimal digits, equal in all processes; its first ones name it for eviction.
        holds: The op with its operand types, or the kind of graph and its fingerprint; empty
            if an older version wrote it.
        nodes: How many ops it runs; 0 where unknown.
        tier: `fast` or `optimised`; empty where unknown.
        line: The user's line of the op, of a graph's last op; empty where unknown.
        nbytes: Size on disk; 0 for one in memory alone, whose size XLA does not tell.
        age_s: Seconds since it was compiled; since it was used where that is unknown.
        unused_s: Seconds since it was last read from disk or compiled.
        in_memory, on_disk: Where it is.
        compile_ns: How long compiling it took; 0 where unknown.
        hits: How often this process ran or found it without compiling it.
        is_usable: False for a file that other versions or another machine made: it takes
            space, and this process never reads it.
    """

    key: str
    holds: str
    nodes: int
    tier: str
    line: str
    nbytes: int
    age_s: float
    unused_s: float
    in_memory: bool
    on_disk: bool
    is_usable: bool = True
    compile_ns: int = 0
    hits: int = 0
    _file: cache.File | None = field(default=None, repr=False, compare=False)
    _memory_key: str = field(default="", repr=False, compare=False)

    def __str__(self) -> str:
        """Return one line: key, what it holds, where it is, and what it cost and saved."""
        places = ["in memory"] * self.in_memory + ["on disk"] * self.on_disk
        parts = [
            f"{self.key[:8]} {self.holds or 'unknown'}",
            *([self.tier] if self.tier else []),
            *([self.line] if self.line else []),
            " and ".join(places),
            *([size_text(self.nbytes)] if self.nbytes else []),
            *(
                [f"compiled in {duration_text(self.compile_ns)}"]
                if self.compile_ns
                else []
            ),
            plural(self.hits, "hit"),
        ]
        return " · ".join(parts if self.is_usable else [*parts, "of no use here"])


def list_executables(limit: int | None = None) -> tuple[CachedExecutable, ...]:
    """Return the executables in memory and on disk, the latest used first.

    Args:
        limit: How many at most; no more files than that are read, beside those in memory.
    """
    now = time.time()
    held = compiler.held()
    found = []
    for file in _files(held, limit):
        memory = held.pop(file.digest, None) if file.is_usable else None
        found.append(_entry(now, file.digest, file, memory))
    found += [_entry(now, digest, None, memory) for digest, memory in held.items()]
    return tuple(sorted(found, key=lambda e: (e.unused_s, e.key))[:limit])


def _files(held: Container[str], limit: int | None) -> list[cache.File]:
    """Return the files to list: those used latest, and those of what is in memory."""
    files = list(cache.files())
    if limit is None:
        return files
    latest = heapq.nlargest(limit, files, key=lambda file: file.used_s)
    paths = {file.path for file in latest}
    return latest + [f for f in files if f.digest in held and f.path not in paths]


def _entry(
    now: float,
    digest: str,
    file: cache.File | None,
    memory: tuple[str, cache.Facts] | None,
) -> CachedExecutable:
    facts = file.facts() if file is not None else cache.Facts()
    if memory is not None and not facts.holds:
        facts = memory[1]
    memory_key = memory[0] if memory is not None else ""
    # A step's plan runs an executable without looking it up.
    record = graph_registry.find(memory_key)
    served = record.runs - record.compiles if record else compiler.hits(memory_key)
    used = file.used_s if file is not None else facts.written_s
    return CachedExecutable(
        key=digest,
        holds=facts.holds,
        nodes=facts.nodes,
        tier=facts.tier,
        line=facts.line,
        nbytes=file.nbytes if file is not None else 0,
        age_s=max(0.0, now - (facts.written_s or used)),
        unused_s=max(0.0, now - used),
        in_memory=memory is not None,
        on_disk=file is not None,
        is_usable=file is None or file.is_usable,
        _file=file,
        compile_ns=facts.compile_ns,
        hits=max(0, served),
        _memory_key=memory_key,
    )


def chosen(key: str | None, unused_s: float | None) -> tuple[CachedExecutable, ...]:
    """Return the executables of a key's first digits, or those unused for so long."""
    _check(key, unused_s)
    entries = list_executables()
    if unused_s is not None:
        return tuple(entry for entry in entries if entry.unused_s >= unused_s)
    if key is None:
        return entries
    found = [entry for entry in entries if key and entry.key.startswith(key)]
    # The same key in the folders of two versions is one choice.
    if len({entry.key for entry in found}) == 1:
        return tuple(found)
    if not found:
        raise UsageError(
            f"no executable has a key that begins with {key!r}, so nothing was dropped. "
            "lazyrt.cached_executables() and %lazy cache list the keys."
        )
    several = ", ".join(entry.key[:12] for entry in found[:_SHOWN])
    raise UsageError(
        f"{len(found)} executables have keys that begin with {key!r} ({several}, ...), so "
        "nothing was dropped. Give more digits."
    )


def _check(key: object, unused_s: object) -> None:
    if key is not None and not isinstance(key, str):
        raise UsageError(
            f"drop_executables() got key={key!r}, which is {type(key).__name__}, not text, so "
            "nothing was dropped. Keys are texts: give the first digits as one."
        )
    if unused_s is not None and not isinstance(unused_s, (int, float)):
        raise UsageError(
            f"drop_executables() got unused_s={unused_s!r}, which is no number of seconds, so "
            "nothing was dropped. 86_400 drops what nobody used for a day."
        )


def drop(entries: tuple[CachedExecutable, ...]) -> None:
    """Drop executables from memory and from disk."""
    compiler.drop(entry._memory_key for entry in entries if entry.in_memory)
    for entry in entries:
        if entry._file is not None:
            cache.remove(entry._file)


_order_is_known = False


def keep_within_budget() -> bool:
    """Drop executables above `config.max_executables`; return whether plans must go, too.

    Called with nothing pending. Results and fingerprints stay what they would have been: an
    executable that is needed again is compiled again.
    """
    global _order_is_known
    budget = config.max_executables
    count = compiler.executable_count()
    nearly_full = budget * 3 // 4
    if count <= nearly_full:
        return False
    if count <= budget:
        if _order_is_known:
            return False
        _order_is_known = True
        forget_slices()
        return True
    dropped = compiler.drop_oldest(nearly_full)
    forget_slices()
    _order_is_known = False
    events.emit(
        events.CacheEvicted(
            cache="executables", dropped=dropped, kept=count - dropped, budget=budget
        )
    )
    return True
