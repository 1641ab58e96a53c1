"""What was given, a folder or files, as one `Track` for each replica."""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lazygraph import HloError, diff
from lazygraph.read.open import readable
from lazygraph.read.proto import looks_like_proto
from lazygraph.types import type_bytes
from lazyviz.divergence.record_file import is_record, read_record
from lazyviz.divergence.tracks import Barrier, Place, Program, Track, order
from lazyviz.foreign.evidence import EvidenceError, file_bytes, user_frame
from lazyviz.foreign.programs import parse_programs
from lazyviz.foreign.tensors_dump import BEGIN, parse_tensors_dump

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazygraph import Graph
    from lazyviz.foreign.tensors_dump import DumpedGraph

_MAX_FILES = 1_024
_MAX_BYTES = 512 * 2**20
_MAX_COMPARED = 64
_RECORDS = "replica-*.jsonl"
_ORDINAL = re.compile(r"(?:.*\D)?(\d+)")


def tracks_of(
    source: str | Path | Iterable[str | Path], now: float | None = None
) -> list[Track]:
    """Return what each replica left behind, in the order of their names.

    Args:
        source: A folder, or one file for each replica.
        now: Seconds since 1970; by default the time.

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
    if not all(records):
        tracks = _merged(tracks)
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
    if not isinstance(given, (str, Path)):
        raise EvidenceError(
            f"replicas() got {given!r:.60}, which is {type(given).__name__} and no path. Give a "
            "folder, or a list of files, one for each replica."
        )
    try:
        return Path(given).expanduser()
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
        track if counts[track.name] == 1 else replace(track, name=_file_name(track))
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


def _file_name(track: Track) -> str:
    return f"{track.path.parent.name}/{track.path.name}"


def _of_dump(path: Path) -> Track:
    data = file_bytes(path, _MAX_BYTES, "Give a part of it.")
    try:
        if looks_like_proto(data):
            barriers, programs = _of_programs(data)
        else:
            contents = readable(data)
            reader = _of_torch_xla if BEGIN in contents else _of_programs
            barriers, programs = reader(contents)
    except (EvidenceError, HloError) as error:
        error.add_note(f"in {path}")
        raise
    return Track(
        name=_ordinal(path), path=path, barriers=tuple(barriers), programs=programs
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
    programs = {g.identity: Program(load=partial(_graph_of, g)) for g in graphs}
    return [_barrier(graph) for graph in graphs], programs


def _graph_of(graph: DumpedGraph) -> Graph:
    return graph.graph


def _barrier(graph: DumpedGraph) -> Barrier:
    own = user_frame(graph.frames)
    places = [Place(f.file, f.line, f.function) for f in graph.frames]
    place = Place(own.file, own.line, own.function) if own is not None else None
    return Barrier(
        cause=graph.event, place=place, lines=tuple(places), graph=graph.identity,
        ops=graph.size,
    )  # fmt: skip


def _of_programs(
    contents: str | bytes,
) -> tuple[list[Barrier], dict[str, Program]]:
    barriers, programs = [], {}
    for graph in parse_programs(contents).graphs:
        identity = _digest(graph)
        programs[identity] = Program(load=partial(_itself, graph))
        barriers.append(
            Barrier(cause="program", step=graph.name, graph=identity, ops=len(graph))
        )
    return barriers, programs


def _itself(graph: Graph) -> Graph:
    return graph


def _digest(graph: Graph) -> str:
    """Return what equals for graphs that are written alike."""
    rows = [
        (graph.ops[k], graph.types[k], graph.attrs[k], graph.label(k).literal, tuple(operands))
        for k, operands in enumerate(graph.operands)
    ]  # fmt: skip
    return hashlib.sha256(repr((rows, graph.outputs)).encode()).hexdigest()[:32]


def _merged(tracks: Sequence[Track]) -> list[Track]:
    """Return the replicas with one name for graphs that a diff finds equal.

    What dumps call a graph by may tell graphs apart that differ in names or order alone.
    """
    names: dict[str, str] = {}
    kept: dict[tuple[int, int], list[tuple[str, Graph]]] = {}
    budget = _MAX_COMPARED
    for track in tracks:
        for identity, program in track.programs.items():
            if identity in names:
                continue
            names[identity] = identity
            if all(identity in other.programs for other in tracks):
                continue
            graph = program.load()
            size = len(graph), sum(type_bytes(each) for each in graph.types)
            for other, known in kept.setdefault(size, []):
                budget -= 1
                if budget >= 0 and diff(known, graph).is_empty:
                    names[identity] = other
                    break
            else:
                kept[size].append((identity, graph))
    return [
        replace(
            track,
            barriers=tuple(replace(b, graph=names[b.graph]) for b in track.barriers),
            programs={names[k]: program for k, program in track.programs.items()},
        )
        for track in tracks
    ]
