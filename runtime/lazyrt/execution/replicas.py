"""Several processes: how they join, and the guard that compares their programs before each launch.

XLA's collectives wait for all processes of a group without looking at what the others run: another
program corrupts the data of all or never ends. So each rank publishes what it is about to launch,
and reads what the others do. Where they differ, nothing is launched, on any rank.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import hashlib
import itertools
import json
import os
import re
import socket
import sys
import threading
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lazygraph.numbers import plural
from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.errors import ReplicaError, UsageError
from lazyrt.ir.fingerprint import Canonical
from lazyrt.ir.node import Value, type_text
from lazyrt.lowering.collectives import is_collective, ranks_of
from lazyrt.lowering.emit import label_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import FrameType

    from lazyrt.ir.node import Node
    from lazyrt.lowering.spec import Spec
    from lazyrt.observe.events import SourceLocation

_PAUSE_S = 0.0002  # grows to:
_POLL_S = 0.05
_BEAT_S = 0.25
# Without a sign of life: forty beats, for a process whose thread waits while Python is in a long call.
_DEAD_S = 10.0
_HEARTBEAT_S = 100  # of jax's own service, which ends the processes that are left
_FAREWELL_S = 5.0
_MAX_IN_FLIGHT = 2  # collective programs; about 32 block XLA's threads for ever
_SHOWN_LINES = 6


# A collective of an optimised program: its type, its kind and its groups.
_COLLECTIVE = re.compile(
    r"= (\S+|\(.*?\)) (all-reduce|all-gather|reduce-scatter|all-to-all)(-start)?\("
    r"|replica_groups=\S+"
)


@dataclass(slots=True)
class World:
    """The processes that this one has joined.

    Attributes:
        rank: This process.
        size: How many there are.
        store: torch's key-value store that all of them reach.
        line_of: Returns the user's line in a frame of the main thread.
    """

    rank: int
    size: int
    store: Any
    line_of: Callable[[FrameType | None], str]
    _launches: dict[tuple[int, ...], int] = field(default_factory=dict)
    _seen: dict[int, tuple[bytes, float]] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _beating: threading.Thread | None = None

    def begin_to_beat(self) -> None:
        """Tell the other ranks, from a thread, that this process lives and where it is."""
        name = "lazyrt-heartbeat"
        self._beating = threading.Thread(target=self._beat, name=name, daemon=True)
        self._beating.start()

    def stop_beating(self) -> None:
        """End the thread: Python must not end while it is in a call of the store."""
        self._ended.set()
        if self._beating is not None:
            self._beating.join(_FAREWELL_S)

    def _beat(self) -> None:
        store, main = self.store.clone(), threading.main_thread().ident
        for number in itertools.count():
            line = self.line_of(sys._current_frames().get(main or 0))
            try:
                store.set(f"lazyrt/beat/{self.rank}", f"{number} {line}")
            except Exception:  # noqa: BLE001 - the store has ended: so does the program
                return
            if self._ended.wait(_BEAT_S):
                return

    def last_beat(self, rank: int) -> tuple[float, str]:
        """Return how many seconds ago a rank was seen to live, and its line then."""
        key = f"lazyrt/beat/{rank}"
        note = self.store.get(key) if self.store.check([key]) else b""
        seen, when = self._seen.get(rank, (None, 0.0))
        if note != seen:
            when = time.monotonic()
            self._seen[rank] = note, when
        return time.monotonic() - when, note.decode().partition(" ")[2]

    def end_of(self, rank: int) -> str:
        """Return how a rank has ended, `done` or `failed`; empty for one that runs."""
        key = f"lazyrt/end/{rank}"
        return str(self.store.get(key).decode()) if self.store.check([key]) else ""

    def is_lost(self, rank: int) -> bool:
        """Return whether a rank gives no sign of life."""
        return self.last_beat(rank)[0] > _DEAD_S

    def next_launch(self, ranks: tuple[int, ...]) -> int:
        """Return the number of the next launch of a group."""
        number = self._launches[ranks] = self._launches.get(ranks, 0) + 1
        return number


_world: World | None = None
_boundary: tuple[str, SourceLocation | None] = ("", None)
_in_flight: list[Any] = []
_is_together = False


def world() -> World | None:
    """Return the processes that this one has joined, None for a process of its own."""
    return _world


def initialise(
    store: Any, rank: int, size: int, line_of: Callable[[FrameType | None], str]
) -> None:
    """Join the processes of a torch process group; further calls do nothing.

    Args:
        store: torch's store of the group.
        rank: This process.
        size: How many there are; one needs nothing.
        line_of: Returns the user's line in a frame.

    Raises:
        UsageError: The device was used before.
    """
    global _world
    if _world is not None or size == 1:
        return
    if jax_compat.is_initialised():
        raise UsageError(
            "init_process_group() came after the first use of the device lazyrt in this process, "
            "so the device cannot join the others any more. Call it before anything is put on "
            "the device (and before jax computes anything)."
        )
    if rank == 0:
        store.set("lazyrt/address", _free_address())
    address = store.get("lazyrt/address").decode()
    found = World(rank, size, store, line_of)
    local = os.environ.get("LOCAL_RANK", "")
    jax_compat.join(
        address,
        size,
        rank,
        local=int(local) if local.isdecimal() else None,
        heartbeat_s=_HEARTBEAT_S,
    )
    found.begin_to_beat()
    _world = found
    atexit.register(_say_farewell, found)


def _say_farewell(here: World) -> None:
    """End with the other ranks, or without them if one of them failed.

    Rank 0, whose service the others' clients ask, is the last to go.
    """
    others = [rank for rank in range(here.size) if rank != here.rank]
    failed = hasattr(sys, "last_value")  # an exception that nobody caught
    try:
        here.store.set(f"lazyrt/end/{here.rank}", "failed" if failed else "done")
        while not failed and not all(here.end_of(rank) for rank in others):
            failed = any(
                here.end_of(rank) == "failed" or here.is_lost(rank) for rank in others
            )
            time.sleep(_POLL_S)
        failed = failed or any(here.end_of(rank) == "failed" for rank in others)
        if here.rank > 0 and not here.is_lost(0):
            jax_compat.shut_down()
        elif failed:
            jax_compat.leave()
        here.store.set(f"lazyrt/left/{here.rank}", "")
        deadline = time.monotonic() + _FAREWELL_S
        while here.rank == 0 and time.monotonic() < deadline:
            if here.store.check([f"lazyrt/left/{rank}" for rank in others]):
                break
            time.sleep(_POLL_S)
    except RuntimeError:  # the store has ended
        jax_compat.leave()
    finally:
        here.stop_beating()


def _free_address() -> str:
    """Return host and port at which the other processes reach this one."""
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{host}:{probe.getsockname()[1]}"


def note_boundary(cause: str, site: SourceLocation | None) -> None:
    """Take note of what ends the step whose program is launched next."""
    global _boundary
    _boundary = (cause, site)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Let a peek in the block run collectives: all ranks take it."""
    global _is_together
    _is_together = True
    try:
        yield
    finally:
        _is_together = False


def check_alone(nodes: Iterable[Node]) -> None:
    """Check that this process can compute some nodes by itself.

    Raises:
        ReplicaError: One of them is a collective.
    """
    if _world is None or _is_together:
        return
    found = next((n for n in nodes if is_collective(n) and len(n.args[-1]) > 1), None)
    if found is not None:
        raise ReplicaError(
            f"a look at a pending tensor needs {found.op.name} of {_named(found.args[-1])}, "
            f"recorded at {found.provenance.site or 'an unknown line'}, and the other ranks do not "
            "look. End the step on all ranks with lazyrt.mark_step(), then look."
        )


# -------------------------------------------------------------------------------- guard


def guarded(executable: Any, of: Canonical | Spec) -> Any:
    """Return a replicated executable that compares ranks before each launch."""
    guard = _Guard(of, executable.as_text())
    launch = executable.launch

    def launch_together(args: Sequence[Any]) -> list[Any]:
        guard.check()
        while len(_in_flight) >= _MAX_IN_FLIGHT:
            oldest = _in_flight.pop(0)
            if not oldest.is_deleted():
                jax_compat.block(oldest)
        results: list[Any] = launch(args)
        _in_flight.extend(results[-1:])
        return results

    executable.launch = launch_together
    return executable


class _Guard:
    """Compares the collectives that the ranks of one group are about to launch.

    What else they compute may differ: rank 0 may log, and each has positions of its own.

    Args:
        of: What the executable computes.
        hlo: Its optimised HLO, whose order is that in which collectives run.
    """

    def __init__(self, of: Canonical | Spec, hlo: str) -> None:
        if isinstance(of, Canonical):
            nodes = sorted(filter(is_collective, of.nodes), key=lambda node: node.id)
            self._ranks = ranks_of(nodes)
            self._lines = [_described(node) for node in nodes]
            what = f"{plural(len(of.nodes), 'op')}, {plural(len(nodes), 'collective')}"
        else:
            self._ranks, self._lines, what = of.ranks, [str(of)], str(of)
        self._what = what
        run = [found[0] for found in _COLLECTIVE.finditer(hlo)]
        kinds = [line.partition(" at ")[0].rpartition("/")[2] for line in self._lines]
        self._digest = hashlib.blake2b("\n".join(kinds + run).encode()).hexdigest()[:16]

    def check(self) -> None:
        """Wait for the other ranks, and compare.

        Raises:
            ReplicaError: They launch something else, or one of them does not come.
        """
        here = _world
        if here is None or not config.replica_guard:
            return
        cause, site = _boundary
        key = f"lazyrt/launch/{'-'.join(map(str, self._ranks))}"
        number = here.next_launch(self._ranks)
        own = json.dumps([self._digest, self._what, cause, str(site or "")])
        here.store.set(f"{key}/{number}/{here.rank}", own)
        keys = [f"{key}/{number}/{rank}" for rank in self._ranks]
        self._wait(here, keys, number)
        said = dict(zip(self._ranks, here.store.multi_get(keys), strict=True))
        if number > 1:  # all have read it, since all have come to this one
            here.store.delete_key(f"{key}/{number - 1}/{here.rank}")
        found = {rank: json.loads(text) for rank, text in said.items()}
        if len({each[0] for each in found.values()}) > 1:
            raise ReplicaError(self._difference(here, number, found))

    def _wait(self, here: World, keys: list[str], number: int) -> None:
        start = time.monotonic()
        pause = _PAUSE_S
        while not here.store.check(keys):
            time.sleep(pause)
            pause = min(2 * pause, _POLL_S)
            waited = time.monotonic() - start
            if waited < _POLL_S:
                continue
            missing = [
                rank
                for rank, key in zip(self._ranks, keys, strict=True)
                if not here.store.check([key])
            ]
            dead = [rank for rank in missing if here.end_of(rank) or here.is_lost(rank)]
            if dead or waited > config.replica_timeout_s:
                raise ReplicaError(self._absent(here, number, missing, dead, waited))

    def _absent(
        self,
        here: World,
        number: int,
        missing: list[int],
        dead: list[int],
        waited: float,
    ) -> str:
        cause, site = _boundary
        step = f"{cause}{f' at {site}' if site else ''}"
        lines = [f"rank {here.rank} is at launch {number} ({step}: {self._what})"]
        lines[0] += (
            f", and waited {waited:.1f} s for {_named(missing)}. Nothing was launched."
        )
        for rank in missing:
            age, line = here.last_beat(rank)
            where = f"; its main thread is at {line}" if line else ""
            end = here.end_of(rank)
            if end:
                lines.append(f"rank {rank} has ended ({end}). Look at its own output.")
            elif rank in dead:
                lines.append(
                    f"rank {rank} gave no sign of life for {age:.0f} s: it was killed, or its "
                    "machine cannot be reached. Look at its own output."
                )
            else:
                lines.append(f"rank {rank} is alive{where}.")
        if not dead:
            lines.append(
                "All ranks must run each step: move reads, saving and mark_step() out of "
                "`if rank == 0:`, or raise lazyrt.config.replica_timeout_s for a slow rank."
            )
        return "\n".join(lines)

    def _difference(self, here: World, number: int, found: dict[int, list[str]]) -> str:
        groups: dict[str, list[int]] = {}
        for rank, (digest, *_rest) in found.items():
            groups.setdefault(digest, []).append(rank)
        # The first rank of each program publishes its collectives for the comparison.
        group = "-".join(map(str, self._ranks))
        key = f"lazyrt/program/{group}/{number}"
        if groups[self._digest][0] == here.rank:
            text = "\n".join(self._lines)
            here.store.set(f"{key}/{here.rank}", zlib.compress(text.encode(), 1))
        first_line = (
            f"the ranks are about to launch {len(groups)} programs at launch {number}"
        )
        lines = [f"{first_line} whose collectives differ. Nothing was launched."]
        for ranks in groups.values():
            _, what, cause, site = found[ranks[0]]
            at = f" at {site}" if site else ""
            lines.append(f"{_named(ranks)}: {what}, {cause}{at}")
        first, second = (ranks[0] for ranks in list(groups.values())[:2])
        lines += _differing(
            _program(here, key, first), _program(here, key, second), first, second
        )
        lines.append(
            "All ranks must run the same collectives in the same order: let no rank skip one, and "
            "give tensors that are reduced one shape on all ranks."
        )
        return "\n".join(lines)


def _described(node: Any) -> str:
    site = node.provenance.site
    types = ", ".join(
        _constant(arg)
        if not isinstance(arg, Value)
        else type_text(arg.shape, arg.dtype)
        for arg in node.args
    )
    label = label_of(node).replace("lazyrt.", "").replace(".default", "")
    return f"{label}({types}){f' at {site}' if site else ''}"


def _constant(arg: Any) -> str:
    """Return an argument of a node; a number is kept with its type."""
    if isinstance(arg, tuple) and len(arg) == 2 and isinstance(arg[0], type):  # noqa: PLR2004
        return str(arg[1])
    return str(arg)


def _program(here: World, key: str, rank: int) -> list[str]:
    """Return the collectives that a rank has published; none where it is slow to."""
    name = f"{key}/{rank}"
    deadline = time.monotonic() + _DEAD_S
    while not here.store.check([name]):
        if time.monotonic() > deadline:
            return []
        time.sleep(_POLL_S)
    return zlib.decompress(here.store.get(name)).decode().splitlines()


def _differing(one: list[str], other: list[str], first: int, second: int) -> list[str]:
    """Return the first ops that only one of two programs has."""
    match = difflib.SequenceMatcher(None, one, other, autojunk=False)
    lines = []
    for kind, a, b, c, d in match.get_opcodes():
        if kind != "equal":
            lines += [f"  only rank {first}: {line}" for line in one[a:b]]
            lines += [f"  only rank {second}: {line}" for line in other[c:d]]
    more = len(lines) - _SHOWN_LINES
    return lines[:_SHOWN_LINES] + [f"  and {more} more"] * (more > 0)


def _named(ranks: Sequence[int]) -> str:
    some = ", ".join(map(str, ranks))
    return f"rank {some}" if len(ranks) == 1 else f"ranks {some}"
