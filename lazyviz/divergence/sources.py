"""The file that `lazyrt.record_steps` wrote, as a `Track`."""

from __future__ import annotations

import gzip
import json
import re
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lazygraph import HloError, graph_of
from lazygraph.read.open import looks_like_proto, readable
from lazygraph.read.stablehlo import digest_of
from lazygraph.snapshot import SourceLocation
from lazyviz.command_line import path_of
from lazyviz.divergence.alignment import Barrier, Program, State, Track, order
from lazyviz.foreign import (
    EvidenceError,
    Frame,
    file_bytes,
    shorten,
    user_frame,
)
from lazyviz.foreign.program_dumps import parse_programs
from lazyviz.foreign.tensors_dump import BEGIN, parse_tensors_dump
from lazyviz.render.html import one_line

if TYPE_CHECKING:
    from lazyviz.foreign.tensors_dump import DumpedGraph


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

_MAX_FILES = 1_024
_RECORDS = "replica-*.jsonl"
_ORDINAL = re.compile(r"(?:.*\D)?(\d+)")


def is_record(path: Path) -> bool:
    """Return whether a file begins as a record does."""
    try:
        with path.open("rb") as file:
            start = file.read(200)
    except OSError:
        return False
    return start.startswith(b'{"record"')


def read_record(path: Path, now: float) -> Track:
    """Return what a record tells; at `now`, in seconds since 1970, it may still be written to.

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
        self._places: dict[int, tuple[SourceLocation, ...]] = {}
        self._barriers: list[Barrier] = []
        self._programs: dict[str, Program] = {}
        self._entered: Barrier | None = None
        self._why = self._failure = ""
        self._time = self._due = 0.0
        self._lines: tuple[SourceLocation, ...] = ()
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
            ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError,
        ) as error:  # fmt: skip
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
        if not (0 <= self._time < _MAX_TIME_S and 0 <= next_s < _MAX_TIME_S):
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


def _places(lines: Any) -> tuple[SourceLocation, ...]:
    """Return the places of a row, checked, as they may have been edited."""
    return tuple(
        SourceLocation(
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


def tracks_of(
    source: str | Path | Iterable[str | Path], now: float | None = None
) -> list[Track]:
    """Return what each replica left behind, in the order of their names.

    Raises:
        EvidenceError: It cannot be read, is of several kinds, or is of less than two replicas.
    """
    now = time.time() if now is None else now
    files = _files(source)
    records = [is_record(file) for file in files]
    if any(records) and not all(records):
        odd = files[records.index(not records[0])]
        raise EvidenceError(
            f"{odd.name} and {files[0].name} are of two kinds: records of lazyrt.record_steps are "
            "compared with records, dumps with dumps. Give files of one kind."
        )
    tracks = [read_record(f, now) if all(records) else _of_dump(f) for f in files]
    tracks = _named_apart(tracks)
    if len(tracks) < 2:  # noqa: PLR2004 - to compare
        raise EvidenceError(
            f"{files[0]} is the file of one replica, {tracks[0].name}, and there is nothing to compare it with. "
            "Let each process record into one folder (LAZYRT_RECORD=folder), or give a file of each."
        )
    return sorted(tracks, key=lambda track: order(track.name))


def _files(source: str | Path | Iterable[str | Path]) -> list[Path]:
    is_one = isinstance(source, (str, bytes, Path)) or not isinstance(source, Iterable)
    given: Iterable[object] = [source] if is_one else source  # type: ignore[assignment]
    paths = list(map(_path, given))
    if len(paths) == 1 and paths[0].is_dir():
        return _in_folder(paths[0])
    if not paths:
        raise EvidenceError(
            "replicas() got no file. Give a folder, or a file of each replica."
        )
    for path in paths:
        if path.is_dir():
            raise EvidenceError(
                f"{path} is a folder, given beside other paths. Give one folder alone, or one "
                "file for each replica."
            )
    return paths


def _path(given: object) -> Path:
    try:
        return path_of(given, "replicas()", EvidenceError).expanduser()
    except RuntimeError as error:
        raise EvidenceError(
            f"{given} is under the home of a user whom this machine does not know ({error}). Give "
            "the whole path."
        ) from None


def _in_folder(folder: Path) -> list[Path]:
    try:
        records = sorted(folder.glob(_RECORDS))
        found = records or sorted(
            p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")
        )
    except OSError as error:
        raise EvidenceError(
            f"{folder} cannot be read: {error.strerror}. Give another folder."
        ) from None
    if not found:
        raise EvidenceError(
            f"{folder} has no file of a replica. Run the program with LAZYRT_RECORD={folder}, or "
            "give the folder of the dumps."
        )
    if len(found) > _MAX_FILES:
        raise EvidenceError(
            f"{folder} has {len(found):,} files, more than the {_MAX_FILES:,} replicas that are compared. "
            "Give the files of some replicas."
        )
    return _latest_runs(found) if records else found


def _latest_runs(records: list[Path]) -> list[Path]:
    """Return the last record of each replica, where it has recorded more than once."""
    latest: dict[str, tuple[int, Path]] = {}
    for path in records:
        name, _, number = path.stem.partition(".run")
        run = int(number) if number.isdecimal() else 1
        if run >= latest.get(name, (0, path))[0]:
            latest[name] = run, path
    return [path for _, path in latest.values()]


def _named_apart(tracks: list[Track]) -> list[Track]:
    """Return the replicas with names of their own."""
    counts = Counter(track.name for track in tracks)
    named = [
        track
        if counts[track.name] == 1
        else replace(track, name=f"{track.path.parent.name}/{track.path.name}")
        for track in tracks
    ]
    again = Counter(track.name for track in named)
    twice = next((track for track in named if again[track.name] > 1), None)
    if twice is not None:
        raise EvidenceError(
            f"{twice.path} was given twice, or two files tell of one replica, {twice.name}. Give one file for "
            "each replica."
        )
    return named


def _of_dump(path: Path) -> Track:
    data = file_bytes(path, _MAX_BYTES, "Give a part of it.")
    try:
        if looks_like_proto(data):
            barriers, programs = _of_programs(data)
        else:
            contents = readable(data)
            if contents.lstrip()[:1] == "{":
                return _of_flight_recorder(path, contents)
            reader = _of_torch_xla if BEGIN in contents else _of_programs
            barriers, programs = reader(contents)
    except (EvidenceError, HloError) as error:
        error.add_note(f"in {path}")
        raise
    return Track(
        name=_ordinal(path), path=path, barriers=tuple(barriers), programs=programs
    )


def _of_flight_recorder(path: Path, contents: str) -> Track:
    """Return what a rank's dump of torch's Flight Recorder tells: its collectives in order."""
    try:
        rows = json.loads(contents)["entries"]
        found = [_collective(row) for row in rows]
        is_open = [not (row["retired"] or row["state"] == "completed") for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise EvidenceError(
            f"it is JSON, and no dump of torch's Flight Recorder ({type(error).__name__}: {error}). "
            "Give what `_dump_fr_trace_json()` or `_dump_nccl_trace_json()` returned, one file for each rank."
        ) from None
    waiting = found[-1] if is_open and is_open[-1] else None
    done = [each for each, left in zip(found, is_open, strict=True) if not left]
    last = found[-1] if found else None
    return Track(
        name=_ordinal(path),
        path=path,
        barriers=tuple(done),
        last_time=last.time if last else 0.0,
        last_lines=last.lines if last else (),
        entered=waiting,
    )


def _collective(row: dict[str, Any]) -> Barrier:
    kind = str(row["profiling_name"]).rpartition(":")[2]
    sizes = zip(row["input_dtypes"], row["input_sizes"], strict=False)
    types = ", ".join(f"{dtype}{[*map(int, size)]}" for dtype, size in sizes)
    group = str(row["process_group"][1] or row["process_group"][0])
    frames = [
        Frame(str(each["name"]), str(each["filename"]), int(each["line"]))
        for each in row.get("frames", ())
    ]
    return Barrier(
        cause=one_line(f"{kind}({types}) of {group}"),
        place=_place_of(user_frame(frames)),
        lines=tuple(filter(None, map(_place_of, frames))),
        time=float(row["time_created_ns"]) / 1e9,
        word="collective",
    )


def _ordinal(path: Path) -> str:
    """Return the number at the end of a name, as in `dump.txt.3` and `rank1.hlo`, else the name."""
    suffix = path.suffix[1:]
    if suffix.isdecimal():
        return suffix
    found = _ORDINAL.fullmatch(path.stem)
    return found[1] if found else path.name


def _of_torch_xla(contents: str) -> tuple[list[Barrier], dict[str, Program]]:
    graphs = parse_tensors_dump(contents).graphs
    programs = {g.identity: Program(load=partial(graph_of, g)) for g in graphs}
    return [_barrier(graph) for graph in graphs], programs


def _barrier(graph: DumpedGraph) -> Barrier:
    return Barrier(
        cause=graph.event,
        place=_place_of(user_frame(graph.frames)),
        lines=tuple(filter(None, map(_place_of, graph.frames))),
        graph=graph.identity,
        ops=graph.size,
    )


def _place_of(frame: Frame | None) -> SourceLocation | None:
    return (
        None
        if frame is None
        else SourceLocation(frame.file, frame.line, frame.function)
    )


def _of_programs(
    contents: str | bytes,
) -> tuple[list[Barrier], dict[str, Program]]:
    barriers, programs = [], {}
    for graph in parse_programs(contents).graphs:
        identity = digest_of(graph).lstrip("#")
        programs[identity] = Program(load=partial(graph_of, graph))
        barriers.append(
            Barrier(cause="program", step=graph.name, graph=identity, ops=len(graph))
        )
    return barriers, programs
