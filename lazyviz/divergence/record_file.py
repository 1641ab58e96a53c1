"""The file that `lazyrt.record_steps` wrote, as a `Track`."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

from lazyviz.divergence.tracks import Barrier, Place, Program, State, Track
from lazyviz.foreign.evidence import EvidenceError, file_bytes, shorten
from lazyviz.render.escape import one_line

if TYPE_CHECKING:
    from pathlib import Path

# As `lazyrt.control.flight_recorder` writes them; importing that would import torch.
FORMAT = "lazyrt steps"
VERSION = 1
_MAX_BYTES = 512 * 2**20
_MAX_GRAPH_BYTES = 1 << 30
_GRAPH_FILE = re.compile(r"[\w.-]+\.graphs/[0-9a-f]{1,64}\.json\.gz")
# After the time at which the next sign of life was due.
_PATIENCE_S = 5.0
_MAX_TIME_S = 1e11
_MAX_REPLICAS = 100_000


def is_record(path: Path) -> bool:
    """Return whether a file begins as a record does."""
    try:
        with path.open("rb") as file:
            start = file.read(200)
    except OSError:
        return False
    return start.startswith(b'{"record"')


def read_record(path: Path, now: float) -> Track:
    """Return what a record tells.

    Args:
        path: The file; it may still be written to.
        now: Seconds since 1970, to tell whether the process still gives signs of life.

    Raises:
        EvidenceError: It is no record, or is damaged.
    """
    data = file_bytes(path, _MAX_BYTES, "Record fewer steps.")
    try:
        return _Reader(path, now).read(data)
    except EvidenceError as error:
        error.add_note(f"in {path}")
        raise


class _Reader:
    def __init__(self, path: Path, now: float) -> None:
        self._path = path
        self._now = now
        self._head: dict[str, Any] = {}
        self._places: dict[int, tuple[Place, ...]] = {}
        self._barriers: list[Barrier] = []
        self._programs: dict[str, Program] = {}
        self._entered: Barrier | None = None
        self._why = self._failure = ""
        self._time = self._due = 0.0
        self._lines: tuple[Place, ...] = ()
        self._notes: list[str] = []

    def read(self, data: bytes) -> Track:
        lines = data.split(b"\n")
        if lines[-1]:
            self._notes.append("its last line is cut off")
        for number, line in enumerate(lines[:-1], 1):
            self._take(line, number)
        if not self._head:
            raise EvidenceError(
                "it has no whole line, so no barrier is known. The process ended while it wrote "
                "the first one; leave the file out."
            )
        return self._track()

    def _take(self, line: bytes, number: int) -> None:
        try:
            row = json.loads(line)
            if number == 1:
                self._begin(row)
            else:
                self._note(row)
        except EvidenceError:
            raise
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
            OverflowError,
            RecursionError,
        ) as error:
            shown = shorten(line.decode("utf-8", "replace"))
            raise EvidenceError(
                f"{shown} is no line of a record of steps ({type(error).__name__}). The file was "
                "edited, or two processes wrote into it; record again.", number
            ) from None  # fmt: skip

    def _begin(self, row: Any) -> None:
        if not isinstance(row, dict) or row.get("record") != FORMAT:
            raise EvidenceError(
                f"{shorten(str(row))} does not begin a record of steps. Give a file that "
                "`lazyrt.record_steps(folder)` wrote.", 1
            )  # fmt: skip
        if row["version"] != VERSION:
            raise EvidenceError(
                f"the record has version {row['version']!r:.20}, and this lazyviz reads {VERSION}. "
                "Read it with the lazyviz of the program that wrote it.", 1
            )  # fmt: skip
        self._head = {key: row[key] for key in ("replica", "of", "time", "beat_s")}
        self._sign(row["time"], float(row["beat_s"]))

    def _note(self, row: dict[str, Any]) -> None:
        if "place" in row and "lines" in row:
            self._places[int(row["place"])] = _places(row["lines"])
        elif "enter" in row:
            self._enter(row)
        elif "done" in row:
            self._done(row)
        elif "graph" in row:
            self._graph(one_line(str(row["graph"])), str(row["file"]))
        elif "beat" in row:
            self._sign(row["beat"], float(row["next_s"]))
            self._lines = _places(row["lines"])
        elif "end" in row:
            found = row["failure"]
            self._failure = "" if found is None else one_line(str(found[0]))
            if found is not None and found[1] is not None:
                self._lines = _places([found[1]])
            self._why = str(row["why"])
            self._sign(row["end"], 0.0)
        else:
            raise ValueError("no such line")

    def _sign(self, time: Any, next_s: float) -> None:
        """Note a sign of life; the thread that beats may sleep for as long as it said before."""
        self._time = float(time)
        if not (abs(self._time) < _MAX_TIME_S and 0 <= next_s < _MAX_TIME_S):
            raise ValueError("no time")
        self._due = max(self._due, self._time + next_s)

    def _enter(self, row: dict[str, Any]) -> None:
        lines = self._places[row["place"]]
        self._sign(row["time"], float(self._head["beat_s"]))
        self._lines = lines
        self._entered = Barrier(
            cause=one_line(str(row["cause"])), place=lines[0] if lines else None, lines=lines,
            step=one_line(str(row["step"])), time=self._time,
        )  # fmt: skip

    def _done(self, row: dict[str, Any]) -> None:
        place = self._places[row["at"]]
        self._sign(row["time"], float(self._head["beat_s"]))
        entered = self._entered
        lines = entered.lines if entered is not None else place
        self._barriers.append(
            Barrier(
                cause=one_line(str(row["cause"])), tensor=one_line(str(row["tensor"])),
                place=place[0] if place else None, lines=lines or place,
                step=entered.step if entered is not None else one_line(str(row["step"])),
                graph=one_line(str(row["graph"])), ops=int(row["ops"]), ran=bool(row["ran"]), time=self._time,
            )
        )  # fmt: skip
        self._entered = None

    def _graph(self, fingerprint: str, file: str) -> None:
        if not file:
            return
        if not _GRAPH_FILE.fullmatch(file):
            raise ValueError("no name of a graph's file")
        path = self._path.parent / file
        self._programs[fingerprint] = Program(
            load=partial(_load, path), record=partial(_record, path)
        )

    def _track(self) -> Track:
        of = self._head["of"]
        return Track(
            name=one_line(str(self._head["replica"])),
            path=self._path,
            barriers=tuple(self._barriers),
            programs=self._programs,
            of=of if type(of) is int and 0 < of <= _MAX_REPLICAS else None,
            state=self._state(),
            started=float(self._head["time"]),
            last_time=self._time,
            last_lines=self._lines,
            entered=self._entered,
            failure=self._failure,
            notes=tuple(self._notes),
        )

    def _state(self) -> State:
        if not self._why:
            late = self._now > self._due + _PATIENCE_S
            return "silent" if late else "running"
        if self._why == "full":
            return "full"
        return "failed" if self._failure else "ended"


def _places(lines: Any) -> tuple[Place, ...]:
    """Return the places of a row, checked, as they may have been edited."""
    return tuple(
        Place(
            one_line(str(each[0])),
            int(each[1]),
            one_line(str(each[2])),
            int(each[3]) if len(each) > 3 and each[3] is not None else None,  # noqa: PLR2004
        )
        for each in lines
    )


def _text(path: Path) -> str:
    data = file_bytes(path, _MAX_BYTES, "Leave it out.")
    try:
        unpacked = zlib.decompressobj(wbits=31).decompress(data, _MAX_GRAPH_BYTES)
        return unpacked.decode()
    except (gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> EvidenceError:
    return EvidenceError(
        f"the graph in {path} cannot be read ({error}), so what differs in it is not known. "
        "Record again."
    )


def _record(path: Path) -> Any:
    """Return the runtime's record of a graph; loads the runtime."""
    from lazyrt.tools import decode_record

    try:
        return decode_record(_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, EvidenceError):
            raise
        raise _damaged(path, error) from None


def _load(path: Path) -> Any:
    from lazygraph import from_snapshot

    return from_snapshot(_record(path).snapshot)
