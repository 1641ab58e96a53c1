"""Several processes: how they join, and the guard that compares their programs before each launch.

XLA's collectives wait for all processes of a group without looking at what the others run: another
program corrupts the data of all or never ends. So each rank publishes what it is about to launch,
and reads what the others do. Where they differ, nothing is launched, on any rank.
"""

from __future__ import annotations

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
import warnings
import zlib
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lazygraph.readable import plural
from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.errors import ReplicaError, ReplicaWarning, UsageError
from lazyrt.execution import process
from lazyrt.ir.fingerprint import Canonical
from lazyrt.lowering.collectives import group_of, is_collective

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
_LATE_S = 1.0  # after which a rank that does not come is worth a warning
_SHOWN_LINES = 6
_SUM_BITS = 62  # of an integer of the store
_GAVE_UP = "gave up"


# A collective of an optimised program: its type, its kind and its groups.
_COLLECTIVE = re.compile(
    r"= (\S+|\(.*?\)) (all-reduce|all-gather|reduce-scatter|all-to-all)(?:-start)?\("
    r".*?replica_groups=(\{\{.*?\}\}|\S+)"
)
_Ranks = tuple[int, ...]


@dataclass(slots=True)
class World:
    """The processes that this one has joined.

    Attributes:
        rank: This process.
        size: How many there are.
        store: torch's key-value store that all of them reach.
        line_of: Returns the user's line in a frame of the main thread.
        condition: Returns the condition on the rank that the caller's lines stand under.
    """

    rank: int
    size: int
    store: Any
    line_of: Callable[[FrameType | None], str]
    condition: Callable[[], str]
    _launches: dict[_Ranks, int] = field(default_factory=dict)
    _published: list[tuple[list[str], set[int]]] = field(default_factory=list)
    _stale: deque[str] = field(default_factory=deque)
    _seen: dict[int, tuple[bytes, float]] = field(default_factory=dict)
    _processes: dict[int, str] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _beating: threading.Thread | None = None

    def begin_to_beat(self) -> None:
        """Tell the other ranks, from a thread, that this process lives and where it is."""
        self.store.set(f"lazyrt/process/{self.rank}", _this_process())
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
                while self._stale:
                    store.delete_key(self._stale.popleft())
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
        """Return whether a rank gives no sign of life, or its process on this machine is gone."""
        return self.last_beat(rank)[0] > _DEAD_S or self.is_gone(rank)

    def is_gone(self, rank: int) -> bool:
        """Return whether a rank's process on this machine was killed."""
        key = f"lazyrt/process/{rank}"
        if rank not in self._processes and self.store.check([key]):
            self._processes[rank] = self.store.get(key).decode()
        machine, _, number = self._processes.get(rank, "").rpartition(" ")
        if not machine or machine != _this_process().rpartition(" ")[0]:
            return False
        try:
            state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return True
        return state[0] in {"Z", "X"}  # nobody has asked how it ended

    def next_launch(self, ranks: _Ranks) -> int:
        """Return the number of the next launch of a group."""
        number = self._launches[ranks] = self._launches.get(ranks, 0) + 1
        return number

    def forget(self, keys: Iterable[str]) -> None:
        """Delete keys that no rank reads any more, from the thread that beats."""
        self._stale.extend(keys)

    def forget_published(self, keys: list[str], readers: set[int]) -> None:
        """Forget this rank's keys of earlier launches, and remember those of this one.

        The readers have come to this launch, so they have read what they had to read before.
        """
        for earlier in [each for each in self._published if each[1] <= readers]:
            self._published.remove(earlier)
            self.forget(earlier[0])
        self._published.append((keys, readers))


def _this_process() -> str:
    """Return a name of this process among those of all machines; empty where there is none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} {os.getpid()}"
    except OSError:
        return ""


_world: World | None = None
_boundary: tuple[str, SourceLocation | None] = ("", None)
_in_flight: list[Any] = []
_is_together = False
_warned: set[tuple[str, str]] = set()
_common: set[str] = set()  # conditions that all ranks were under


def world() -> World | None:
    """Return the processes that this one has joined, None for a process of its own."""
    return _world


def initialise(
    store: Any,
    rank: int,
    size: int,
    line_of: Callable[[FrameType | None], str],
    condition: Callable[[], str],
) -> None:
    """Join the processes of a torch process group; further calls do nothing."""
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
    found = World(rank, size, store, line_of, condition)
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
    process.at_exit(_say_farewell, found)


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
def together(site: SourceLocation | None) -> Iterator[None]:
    """Let a peek in the block run collectives: all ranks take it, from a line of the program."""
    global _is_together
    note_boundary("run at once", site)
    _is_together = True
    try:
        yield
    finally:
        _is_together = False


def check_alone(nodes: Iterable[Node]) -> None:
    """Check that this process can compute some nodes by itself."""
    if _world is None or _is_together:
        return
    found = next((n for n in nodes if is_collective(n) and len(group_of(n)) > 1), None)
    if found is not None:
        raise ReplicaError(
            f"a look at a pending tensor needs {found.op.name} of {_named(group_of(found))}, "
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


@dataclass(frozen=True, slots=True)
class _Launch:
    """What a rank says of a program that it is about to launch.

    `digests` has for each of its groups the number of this launch, and a digest of the program's
    collectives of that group. `cause` is what ends the step, at `site`, under a condition on the
    rank.
    """

    rank: int
    digests: dict[_Ranks, tuple[int, str]]
    what: str
    cause: str
    site: str
    condition: str = ""

    @property
    def keys(self) -> list[str]:
        """Where it is published: once for each group, whose other ranks know no more."""
        return [
            _key(ranks, number, self.rank)
            for ranks, (number, _) in self.digests.items()
        ]

    def __str__(self) -> str:
        groups = [[*ranks, *said] for ranks, said in self.digests.items()]
        return json.dumps([groups, self.what, self.cause, self.site, self.condition])


def _key(ranks: _Ranks, number: int, rank: int) -> str:
    return f"lazyrt/launch/{'-'.join(map(str, ranks))}/{number}/{rank}"


class _Sum:
    """Tells whether all ranks of a group are at one launch, by one number that each adds to.

    The upper bits count the ranks that have come, the lower ones add up what they run. The rank that
    comes last so knows after one trip to the store, and the others after asking it now and then.
    """

    def __init__(self, here: World, own: _Launch) -> None:
        ((self._ranks, (number, digest)),) = own.digests.items()
        self._store = here.store
        size = len(self._ranks)
        bits = size.bit_length()
        self._shift = _SUM_BITS - bits
        said = hashlib.blake2b(f"{digest} {own.condition}".encode(), digest_size=8)
        self._own = int.from_bytes(said.digest()) >> (64 - self._shift + bits)
        self._key, earlier = (
            f"lazyrt/sum/{'-'.join(map(str, self._ranks))}/{n}"
            for n in (number, number - 1)
        )
        self._total: int = self._store.add(self._key, (1 << self._shift) + self._own)
        if self._is_complete:  # so no rank asks for the sum before
            here.forget([earlier])

    @property
    def _is_complete(self) -> bool:
        return self._total >> self._shift == len(self._ranks)

    def agree(self) -> bool:
        """Return whether all have come, to launch the same; asks if they had not yet."""
        if not self._is_complete:
            self._total = self._store.add(self._key, 0)
        said = self._total & ((1 << self._shift) - 1)
        return self._is_complete and said == len(self._ranks) * self._own

    def come(self) -> bool:
        """Wait a moment for the others; return whether all have come, to launch the same."""
        until, pause = time.monotonic() + _POLL_S, _PAUSE_S
        while not self.agree() and not self._is_complete and time.monotonic() < until:
            time.sleep(pause)
            pause *= 2
        return self.agree()

    def spoil(self) -> None:
        """Let ranks that come later see that this one has given up."""
        self._store.add(self._key, 1)


class _Line(NamedTuple):
    """A collective of a program: its ranks, what it does, where it was recorded."""

    ranks: _Ranks
    call: str
    where: str


class _Guard:
    """Compares the collectives that ranks are about to launch.

    What else they compute may differ: rank 0 may log, and each has positions of its own.
    """

    def __init__(self, of: Canonical | Spec, hlo: str) -> None:
        if isinstance(of, Canonical):
            nodes = sorted(filter(is_collective, of.nodes), key=lambda node: node.id)
            found = [
                _Line(group_of(node), _called(node.spec), _where(node))
                for node in nodes
                if len(group_of(node)) > 1
            ]
            what = f"{plural(len(of.nodes), 'op')}, {plural(len(nodes), 'collective')}"
        else:
            found = [_Line(tuple(of.template[-2]), _called(of), "")]
            what = found[0].call
        self._what = what
        # Ranks that are in several groups together have to come to these in one order, too.
        groups = {line.ranks for line in found}
        both = {
            tuple(sorted({*a} & {*b})) for a, b in itertools.combinations(groups, 2)
        }
        self._lines = {
            ranks: [line for line in found if {*ranks} <= {*line.ranks}]
            for ranks in sorted(groups | {ranks for ranks in both if len(ranks) > 1})
        }
        compiled = [found.groups() for found in _COLLECTIVE.finditer(hlo)]
        self._digests = {
            ranks: _digest(ranks, lines, compiled)
            for ranks, lines in self._lines.items()
        }

    def check(self) -> None:
        """Wait for the other ranks, and compare.

        The ranks of several groups may have further groups, whose ranks this one reads, too: so
        all that depend on each other raise, or none does.

        Raises:
            ReplicaError: They launch something else, or one of them does not come.
        """
        here = _world
        if here is None or not config.replica_guard:
            return
        cause, site = _boundary
        digests = {
            ranks: (here.next_launch(ranks), digest)
            for ranks, digest in self._digests.items()
        }
        condition = here.condition()
        own = _Launch(here.rank, digests, self._what, cause, str(site or ""), condition)
        # Ranks in several groups depend on what is launched in groups that they are not in.
        together = _Sum(here, own) if len(digests) == 1 else None
        if together is not None and together.come():
            _common.add(condition)
            return
        here.store.multi_set(own.keys, [str(own)] * len(own.keys))
        known = dict.fromkeys(own.keys, own)
        groups = {ranks: number for ranks, (number, _) in digests.items()}
        open_groups = groups
        while open_groups:
            rank_of = {
                _key(ranks, number, rank): rank
                for ranks, number in open_groups.items()
                for rank in ranks
            }
            keys = [key for key in rank_of if key not in known]
            missing = {key: rank_of[key] for key in keys}
            if self._wait(here, own, missing, groups, together):
                here.forget_published(own.keys, set(rank_of.values()))
                _common.add(condition)
                return
            for key, text in zip(keys, here.store.multi_get(keys), strict=True):
                said, *rest = json.loads(text)
                numbers = {tuple(own): (n, digest) for *own, n, digest in said}
                known[key] = _Launch(rank_of[key], numbers, *rest)
            open_groups = {
                ranks: number
                for launch in known.values()
                for ranks, (number, _) in launch.digests.items()
                if ranks not in groups
            }
            groups = {**groups, **open_groups}
        launches = {launch.rank: launch for launch in known.values()}
        here.forget_published(own.keys, set(launches))
        gone = [rank for rank, each in launches.items() if each.what == _GAVE_UP]
        if gone:
            raise ReplicaError(
                f"{_named(sorted(gone))} gave up waiting for this launch at "
                f"{launches[gone[0]].site or 'an unknown line'}. Nothing was launched. For slow "
                "ranks raise lazyrt.config.replica_timeout_s on all of them."
            )
        if any(each.condition != condition for each in launches.values()):
            _warn_of_condition(own)
        else:
            _common.add(condition)
        for ranks in sorted(groups):
            said = {rank: known[_key(ranks, groups[ranks], rank)] for rank in ranks}
            if len({launch.digests[ranks] for launch in said.values()}) > 1:
                raise ReplicaError(self._difference(here, ranks, said))

    def _wait(
        self,
        here: World,
        own: _Launch,
        rank_of: dict[str, int],
        groups: dict[_Ranks, int],
        together: _Sum | None,
    ) -> bool:
        """Wait until some keys are there, each published by a rank.

        Returns whether all ranks have meanwhile come to launch the same.
        """
        start = time.monotonic()
        pause = _PAUSE_S
        keys = [*rank_of]
        while keys and not here.store.check(keys):
            if together is not None and together.agree():
                return True
            time.sleep(pause)
            pause = min(2 * pause, _POLL_S)
            waited = time.monotonic() - start
            if waited < _POLL_S:
                continue
            missing = sorted(
                {rank_of[key] for key in keys if not here.store.check([key])}
            )
            dead = [rank for rank in missing if here.end_of(rank) or here.is_lost(rank)]
            is_first = max(groups.values()) == 1  # ranks start at different times
            if waited > _LATE_S and not is_first and own.condition not in _common:
                _warn_of_condition(own)
            is_split = (
                here.rank in missing
            )  # others run as one what are two programs here
            if dead or is_split or waited > config.replica_timeout_s:
                given_up = replace(own, what=_GAVE_UP)
                here.store.multi_set(own.keys, [str(given_up)] * len(own.keys))
                if together is not None:
                    together.spoil()
                number = max(groups.values())
                raise ReplicaError(
                    self._absent(here, own, number, missing, dead, waited)
                )
        return False

    def _absent(
        self,
        here: World,
        own: _Launch,
        number: int,
        missing: list[int],
        dead: list[int],
        waited: float,
    ) -> str:
        step = f"{own.cause}{f' at {own.site}' if own.site else ''}"
        lines = [f"rank {here.rank} is at launch {number} ({step}: {self._what})"]
        lines[0] += (
            f", and waited {waited:.1f} s for {_named(missing)}. Nothing was launched."
        )
        for rank in missing:
            age, line = here.last_beat(rank)
            where = f"; its main thread is at {line}" if line else ""
            end = here.end_of(rank)
            if end == "done":
                lines.append(
                    f"rank {rank} has ended without an error, so it ran fewer steps. Give all "
                    "ranks equally many batches: drop the last ones, or pad them."
                )
            elif end:
                lines.append(f"rank {rank} has ended ({end}). Look at its own output.")
            elif here.is_gone(rank):
                lines.append(
                    f"rank {rank} was killed, or crashed. Look at its own output."
                )
            elif rank in dead:
                lines.append(
                    f"rank {rank} gave no sign of life for {age:.0f} s: it was killed, or its "
                    "machine cannot be reached. Look at its own output."
                )
            else:
                lines.append(f"rank {rank} is alive{where}.")
        if own.condition:
            lines.append(_mend([own]))
        elif not dead:
            lines.append(
                "All ranks must run each step: move reads, saving and mark_step() out of "
                "`if rank == 0:`, or raise lazyrt.config.replica_timeout_s for a slow rank."
            )
        return "\n".join(lines)

    def _difference(self, here: World, ranks: _Ranks, said: dict[int, _Launch]) -> str:
        groups: dict[tuple[int, str], list[int]] = {}
        for rank, launch in said.items():
            groups.setdefault(launch.digests[ranks], []).append(rank)
        number = said[ranks[0]].digests[ranks][0]
        # The first rank of each program publishes its collectives for the comparison.
        key = f"lazyrt/program/{'-'.join(map(str, ranks))}/{number}"
        if here.rank in [those[0] for those in groups.values()]:
            text = "\n".join(f"{each.call}{each.where}" for each in self._lines[ranks])
            here.store.set(f"{key}/{here.rank}", zlib.compress(text.encode(), 1))
        first_line = (
            f"the ranks are about to launch {len(groups)} programs at launch {number}"
        )
        lines = [f"{first_line} whose collectives differ. Nothing was launched."]
        for those in groups.values():
            launch = said[those[0]]
            at = f" at {launch.site}" if launch.site else ""
            lines.append(f"{_named(those)}: {launch.what}, {launch.cause}{at}")
        first, second = (those[0] for those in list(groups.values())[:2])
        lines += _differing(
            _program(here, key, first), _program(here, key, second), first, second
        )
        lines.append(
            _mend(said.values())
            or "All ranks must run the same collectives in the same order: let no rank skip one, give "
            "tensors that are reduced one shape on all ranks, and all ranks equally many batches (drop "
            "or pad the last ones, as Join does not run here)."
        )
        return "\n".join(lines)


def _mend(launches: Iterable[_Launch]) -> str:
    """Return what to do about launches under conditions that other ranks are not under."""
    under = {each.condition for each in launches}
    found = sorted(under - {""}) if len(under) > 1 or len([*launches]) == 1 else []
    if not found:
        return ""
    return (
        f"Call lazyrt.mark_step() on all ranks in front of {found[0]}: then nothing is pending "
        "there that other ranks take part in."
    )


def _warn_of_condition(own: _Launch) -> None:
    """Warn, once for a line, that this rank runs collectives where others may not come."""
    key = own.condition, own.site
    if not own.condition or key in _warned:
        return
    _warned.add(key)
    site = _boundary[1]
    warnings.warn_explicit(
        f"{own.cause} at {own.site} runs {own.what} under {own.condition}: other ranks run these "
        f"collectives elsewhere, or never. {_mend([own])}",
        ReplicaWarning,
        "<unknown>" if site is None else site.file,
        0 if site is None else site.line,
    )


def _digest(
    ranks: _Ranks, lines: list[_Line], compiled: Iterable[tuple[str, ...]]
) -> str:
    """Return a digest of a program's collectives of one group, recorded and compiled."""
    kinds = [line.call for line in lines]
    own = "{" + ",".join(map(str, ranks)) + "}"
    for type_, kind, groups in compiled:
        if own in groups or "{{" not in groups:  # else it is another group's
            kinds.append(f"{type_} {kind} {groups}")
    return hashlib.blake2b("\n".join(kinds).encode()).hexdigest()[:16]


def _called(spec: Spec) -> str:
    """Return a collective as its call: kind, type, numbers and ranks."""
    _, *rest, _turn, ranks, _processes = spec.template
    args = [*map(str, rest), str(tuple(ranks))]
    name = spec.name.removeprefix("lazyrt.").removesuffix(".default")
    return f"{name}({', '.join([str(spec.operands[0]), *args])})"


def _where(node: Node) -> str:
    origin = node.provenance
    module = f" in {origin.path}" if origin.path else ""
    return f"{module}{f' at {origin.site}' if origin.site else ''}"


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
