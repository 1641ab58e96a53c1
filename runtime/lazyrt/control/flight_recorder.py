"""The flight recorder: a file in which a process writes its barriers, for comparing it with other replicas.

One file of JSON lines for each process, appended to with one system call a line, so that what was
written is there when the process is killed. A barrier writes a line when it is entered and one
when it is done; a new graph writes one line and a compressed file beside; a thread writes a line
now and then while nothing else does. Names, numbers and texts only: nothing is kept alive, and
graphs, keys and counts are those of a run that records nothing. `lazyviz.replicas` reads it.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import logging
import multiprocessing
import os
import re
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import torch

from lazyrt.config import record_folder
from lazyrt.errors import UsageError
from lazyrt.execution.executor import on_barrier
from lazyrt.execution.graph_registry import CompiledGraph, encode_record, graph_registry
from lazyrt.frontend.provenance import is_library_file, site_in, user_lines
from lazyrt.ir import active
from lazyrt.observe import events
from lazyrt.observe.events import Closing

if TYPE_CHECKING:
    from types import TracebackType

    from lazyrt.observe.events import (
        BarrierFinished,
        BarrierStarted,
        Event,
        SourceLocation,
    )


# --------------------------------------------------------- the line that a thread is on
# Python's own fault handler writes the lines of all threads from the interpreter's stack. Asking for
# frame objects instead would keep the locals of a function that returns meanwhile, and so tensors,
# for a moment in which a barrier could take them for roots.


_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_MAX_DUMP_BYTES = 200_000


class ThreadLocation(Closing):
    """Says where a thread is; holds one file without a name until it is closed."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        with contextlib.suppress(OSError):  # no folder takes files: nothing is known
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()

    def of(self, thread: int) -> tuple[SourceLocation, ...]:
        """Return the user's lines that a thread is in, the innermost first; none if not known."""
        file = self._file
        if file is None:
            return ()
        try:
            file.seek(0)
            file.truncate()
            faulthandler.dump_traceback(file)
            file.seek(0)
            written = file.read(_MAX_DUMP_BYTES)
        except OSError:
            return ()
        return lines_of(written.decode("utf-8", "replace"), thread)


def lines_of(dump: str, thread: int) -> tuple[SourceLocation, ...]:
    """Return the user's lines of one thread in what the fault handler wrote, innermost first."""
    mark = f"hread 0x{thread:016x} "
    found: list[SourceLocation] = []
    inside = False
    for line in dump.splitlines():
        frame = _FRAME.fullmatch(line)
        if frame is None:
            inside = mark in line
        elif inside and not is_library_file(frame[1]):
            found.append(site_in(frame[1], int(frame[2]), frame[3]))
    return tuple(found)


FORMAT = "lazyrt steps"
VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PID = "pid"
_FIRST_BEAT_S = 1.0
_MAX_BEAT_S = 30.0
_MAX_FAREWELL_S = 5.0
_MAX_BYTES = 256 * 2**20
_MAX_GRAPHS = 256
_MAX_GRAPH_BYTES = 64 * 2**20
_MAX_NODES = 200_000
_MAX_TYPES = 500  # inputs, or results, that a line lists
_MAX_LINES = 8  # of a place: the innermost ones
_MAX_PLACES = 10_000
_MAX_RUNS = 1_000

_log = logging.getLogger(__name__)


class Recording(Closing):
    """A process's record of its barriers; close it, or use it in `with`.

    Attributes:
        path: The file.
        replica: What the replica is called.
    """

    def __init__(self, folder: Path, replica: str, of: int | None) -> None:
        self.replica = replica
        self.path, self._out = _new_file(folder, replica)
        self._graphs_folder = self.path.with_suffix(".graphs")
        self._is_named = replica != _of_process()
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._written = 0
        self._graph_bytes = 0
        self._number = 0
        self._places: dict[tuple[SourceLocation, ...], int] = {}
        self._graphs: set[str] = set()
        self._thread = threading.get_ident()
        self._failure: list[Any] | None = None
        self._changed = 0
        self._stop = threading.Event()
        self._write(
            record=FORMAT, version=VERSION, replica=replica, of=of, pid=self._pid,
            host=socket.gethostname(), time=_now(), beat_s=_FIRST_BEAT_S,
            torch=torch.__version__, program=sys.argv[0] if sys.argv else "",
        )  # fmt: skip
        self._hook = on_barrier(self.entered)
        self._listening = events.subscribe(self._done, events.BarrierFinished)
        self._beats = threading.Thread(
            target=self._beat, name="lazyrt-recording", daemon=True
        )
        self._beats.start()

    def close(self) -> None:
        """Write the last line, and record no more; closing twice is harmless."""
        self.end("closed")
        self.await_end()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.note_failure(error, traceback)
        self.close()

    def note_failure(
        self, error: BaseException, traceback: TracebackType | None
    ) -> None:
        """Remember which exception ends the program, and its line; not its message."""
        if isinstance(error, SystemExit) and error.code in {None, 0}:
            return  # such as sys.exit(): all went well
        found: list[Any] = [type(error).__name__, None]
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if not is_library_file(code.co_filename):
                found[1] = [code.co_filename, traceback.tb_lineno, code.co_name]
            traceback = traceback.tb_next
        self._failure = found

    @property
    def is_open(self) -> bool:
        """Whether it goes on recording."""
        return self._out >= 0 and os.getpid() == self._pid

    def leave(self) -> None:
        """Write nothing more, not even a last line."""
        self._stop.set()
        self._hook.close()
        self._listening.close()
        self._let_go()

    def end(self, why: str) -> None:
        """Write the last line, which says why it is the last one."""
        if not self.is_open:
            return
        self._stop.set()
        self._hook.close()
        self._listening.close()
        with self._lock:
            self._write(end=_now(), why=why, failure=self._failure)
            self._let_go()
        if why == "exit" and not (self._number or self._failure or self._is_named):
            self.path.unlink(missing_ok=True)  # no replica: a program that ran no step
        _open.discard(self)

    def await_end(self) -> None:
        """Wait for the thread that beats: the interpreter must not end under it."""
        if self._beats is not threading.current_thread():
            self._beats.join(_MAX_FAREWELL_S)

    def _let_go(self) -> None:
        if self._out >= 0:
            out, self._out = self._out, -1
            os.close(out)

    def entered(self, event: BarrierStarted) -> None:
        """Write that a barrier was asked for."""
        if not self.is_open:
            return
        self._thread = threading.get_ident()
        self._number += 1
        place = self._place(user_lines(2, _MAX_LINES) or _alone(event.site))
        self._write(
            enter=self._number, time=_now(), cause=event.cause, place=place, step=_step()
        )  # fmt: skip

    def _done(self, event: Event) -> None:
        if not self.is_open:
            return
        barrier: BarrierFinished = event  # type: ignore[assignment]
        graph = graph_registry.of_step(barrier.step) if barrier.executed else None
        if graph is not None:
            self._keep(graph)
        self._write(
            done=self._number, time=_now(), cause=barrier.cause, tensor=barrier.tensor,
            at=self._place(_alone(barrier.site)), step=_step(), ran=barrier.executed,
            graph=graph.fingerprint if graph is not None else "",
            ops=barrier.nodes, roots=barrier.roots,
        )  # fmt: skip

    def _place(self, lines: tuple[SourceLocation, ...]) -> int:
        """Return the number of a place; a new one is written first."""
        number = self._places.get(lines)
        if number is None:
            if len(self._places) >= _MAX_PLACES:
                self._places.clear()
            number = len(self._places)
            shown = [[s.file, s.line, s.function, s.cell] for s in lines]
            self._write(place=number, lines=shown)
            self._places[lines] = (
                number  # known once it is written: Ctrl-C may come between
            )
        return number

    def _keep(self, record: CompiledGraph) -> None:
        """Write down a graph that has not come before, within bounds."""
        if record.fingerprint in self._graphs or len(self._graphs) >= _MAX_GRAPHS:
            return
        self._graphs.add(record.fingerprint)
        snapshot = record.snapshot
        types: dict[str, Any] = {}
        if snapshot is not None:
            leaves = [v for v in snapshot.vertices if v.is_leaf]
            types["inputs"] = [
                [_name(snapshot.leaf_names.get(k)), v.types[0], v.op]
                for k, v in enumerate(leaves[:_MAX_TYPES])
            ]
            types["results"] = [
                [_name(snapshot.root_names.get(k)), snapshot.vertices[x].types[slot]]
                for k, (x, slot) in enumerate(snapshot.roots[:_MAX_TYPES])
            ]
        self._write(
            graph=record.fingerprint, ops=record.nodes, **types, file=self._file_of(record)
        )  # fmt: skip

    def _file_of(self, record: CompiledGraph) -> str:
        """Write a graph's file; return its name, empty where it would be too large."""
        room = _MAX_GRAPH_BYTES - self._graph_bytes
        if record.snapshot is None or record.nodes > _MAX_NODES or room <= 0:
            return ""
        data = encode_record(record)
        if len(data) > room:
            return ""
        path = self._graphs_folder / f"{record.fingerprint}.json.gz"
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            self._give_up(error)
            return ""
        self._graph_bytes += len(data)
        return f"{path.parent.name}/{path.name}"

    def _write(self, **row: Any) -> None:
        with self._lock:
            if self._out < 0:
                return
            line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
            if "end" not in row and self._written + len(line) > _MAX_BYTES:
                self.end("full")
                _log.warning(
                    "the record %s has %s bytes and is not continued. Record fewer steps, or "
                    "close the recording sooner.", self.path, f"{self._written:,}",
                )  # fmt: skip
                return
            try:
                written = os.write(self._out, line)
                while written < len(line):
                    written += os.write(self._out, line[written:])
            except OSError as error:
                self._give_up(error)
                return
            self._written += len(line)
            self._changed += "beat" not in row

    def _give_up(self, error: OSError) -> None:
        """Record no more, and say so once; the program goes on."""
        with self._lock:  # another thread may be writing
            if self._out < 0:
                return
            self.leave()
        _open.discard(self)
        _log.warning(
            "the record %s cannot be continued (%s); the program goes on without it. Give a "
            "folder with room.", self.path, error.strerror,
        )  # fmt: skip

    def _beat(self) -> None:
        """Write a line when nothing else has been written for a while, more and more seldom."""
        with ThreadLocation() as location:
            wait, seen = _FIRST_BEAT_S, self._changed
            while not self._stop.wait(wait):
                if not self.is_open:
                    return
                if self._changed != seen:
                    wait, seen = _FIRST_BEAT_S, self._changed
                    continue
                wait = min(2 * wait, _MAX_BEAT_S)
                lines = location.of(self._thread)[:_MAX_LINES]
                shown = [[s.file, s.line, s.function, s.cell] for s in lines]
                self._write(beat=_now(), lines=shown, next_s=wait)


_open: set[Recording] = set()


def record_steps(folder: str | Path, replica: str | int | None = None) -> Recording:
    """Write a line for each barrier of this process into a folder, until the result is closed.

    Processes that run one program on several devices record into one folder, and
    `lazyviz.replicas(folder)` says which of them went another way. Recording changes nothing: not
    a graph, not a key, not a count.

    Args:
        folder: Made if it is not there. A second run writes files of its own.
        replica: What this process is called among the others; by default the environment
            variable RANK, as torchrun sets it, else the number of the process.

    Raises:
        UsageError: The folder cannot be written to, the name is no name of a file, or this
            process is recording already.
    """
    if any(recording.is_open for recording in _open):
        path = next(recording.path for recording in _open if recording.is_open)
        raise UsageError(
            f"record_steps() got the folder {str(folder)!r:.200}, while this process records into {path} "
            "already, so each barrier would be reported twice. Close that recording first."
        )
    recording = Recording(_folder(folder), _replica(replica), _world())
    _open.add(recording)
    return recording


def begin_from_environment() -> None:
    """Begin to record where LAZYRT_RECORD names a folder.

    A process that a loader or a pool has started may never use the device; it begins with its
    first barrier. A rank that it has from its parent is the parent's, and no name for it.
    """
    folder = record_folder()
    if folder is None:
        return
    if not _is_started_by_another():
        record_steps(folder)
        return

    inherited = os.environ.get("RANK")

    def begin(event: BarrierStarted) -> None:
        hook.close()
        is_own = os.environ.get("RANK") != inherited
        record_steps(folder, None if is_own else _of_process()).entered(event)

    hook = on_barrier(begin)


def _is_started_by_another() -> bool:
    """Return whether a process of this program has started this one, as loaders and pools do."""
    if multiprocessing.parent_process() is not None:
        return True
    # While such a process imports the program's main module it does not know its parent yet.
    return any("multiprocessing" in word for word in sys.orig_argv)


def _folder(folder: str | Path) -> Path:
    try:
        target = Path(folder).expanduser().absolute()  # the program may go elsewhere
    except (TypeError, RuntimeError) as error:
        if isinstance(error, RuntimeError):  # `~name` of nobody
            raise _unwritable(Path(folder), error) from None
        raise UsageError(
            f"record_steps() got {folder!r:.60} as its folder, which is {type(folder).__name__} "
            "and no path, so nothing would be recorded. Give the folder's path, such as 'steps'."
        ) from None
    try:
        target.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _unwritable(target, error) from None
    return target


def _unwritable(path: Path, error: Exception) -> UsageError:
    why = error.strerror if isinstance(error, OSError) else str(error)
    return UsageError(
        f"steps cannot be recorded into {str(path)!r:.200}: {why}. Nothing would be known of this "
        "replica, so give a folder that it may write to (record_steps(folder), or LAZYRT_RECORD)."
    )


def _new_file(folder: Path, replica: str) -> tuple[Path, int]:
    """Make the file of a replica; one that is there already belongs to an earlier run."""
    for run in range(1, _MAX_RUNS):
        suffix = "" if run == 1 else f".run{run}"
        path = folder / f"replica-{replica}{suffix}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        try:
            return path, os.open(path, flags, 0o644)
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(folder, error) from None
    raise UsageError(
        f"the folder {str(folder)!r:.200} has {_MAX_RUNS - 1} records of replica {replica} already, so "
        "nobody would find this one. Give an empty folder."
    )


def _replica(name: str | int | None) -> str:
    given: object = name
    if given is None:
        given = os.environ.get("RANK") or _of_process()
    text = str(given) if type(given) in {str, int} else ""
    if not _NAME.fullmatch(text) or ".run" in text:
        raise UsageError(
            f"record_steps() got {given!r:.60} as the replica's name, which cannot be part of a file's "
            "name. Give a number, or up to 64 letters, digits, dots, dashes and underscores."
        )
    return text


def _of_process() -> str:
    """Return what a process without a rank is called."""
    return f"{_PID}{os.getpid()}"


def _world() -> int | None:
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() and len(text) < 7 else None  # noqa: PLR2004


def _now() -> float:
    return round(time.time(), 6)


def _step() -> str:
    """Return the name of the open step, with the user's number."""
    step = active.innermost()
    return step.label if step is not None else ""


def _name(name: Any) -> str:
    return "" if name is None else str(name.text)


def _alone(site: SourceLocation | None) -> tuple[SourceLocation, ...]:
    return () if site is None else (site,)


def _end_all() -> None:
    """Write the last lines, with what ended the program; a shell goes on after an error."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    for recording in tuple(_open):
        if error is not None:
            recording.note_failure(error, error.__traceback__)
        recording.end("exit")
        recording.await_end()


def _forget_after_fork() -> None:
    """Leave the file to the parent: a child has its own places and no thread that beats."""
    for recording in tuple(_open):
        recording.leave()
    _open.clear()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
