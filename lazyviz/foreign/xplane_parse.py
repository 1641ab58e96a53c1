"""Profiles of XLA, `*.xplane.pb`, as jax, TensorFlow and torch_xla write them, read without any.

The file is a protocol buffer: planes (a host, a device) of lines (threads, streams) of events,
whose names and statistics stand in tables of their plane.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from lazyviz.foreign.evidence import EvidenceError, file_bytes
from lazyviz.foreign.xplane import Profile, ProfileEvent, ProfileLine, ProfilePlane

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SUFFIX = ".xplane.pb"
# A million events or so, which take some ten seconds.
_MAX_BYTES = 256 * 2**20
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIGN = 1 << 63
_PICO = 1000


class _BrokenError(ValueError):
    """The bytes follow no protocol buffer."""


def read_profile(path: Path) -> Profile:
    """Read one profile, or those of all hosts of a run: the latest one in a folder.

    Raises:
        EvidenceError: There is none, or it breaks off.
    """
    files = profiles_in(path) if path.is_dir() else [path]
    if not files:
        raise EvidenceError(
            f"{path} has no profile. jax.profiler.trace(FOLDER) writes "
            f"FOLDER/plugins/profile/TIME/HOST{SUFFIX}; give the folder or the file."
        )
    planes: list[ProfilePlane] = []
    for file in files:
        host = file.name.removesuffix(SUFFIX) if len(files) > 1 else ""
        data = file_bytes(file, _MAX_BYTES, "Profile fewer steps.")
        planes += parse_profile(data, str(file), host)
    return Profile(tuple(planes))


def profiles_in(folder: Path) -> list[Path]:
    """Return the files of the latest run below a folder; none if there is no profile."""
    found = [
        *folder.glob(f"*{SUFFIX}"),
        *folder.glob(f"plugins/profile/*/*{SUFFIX}"),
        *folder.glob(f"profile/*/*{SUFFIX}"),
    ]
    if not found:
        return []
    latest = max(found, key=lambda path: (path.stat().st_mtime_ns, str(path))).parent
    return sorted(path for path in found if path.parent == latest)


def parse_profile(data: bytes, source: str, host: str = "") -> list[ProfilePlane]:
    """Return the planes of a serialised profile.

    Args:
        data: The file.
        source: Its name, for errors.
        host: What stands in front of the planes' names, where there are several hosts.

    Raises:
        EvidenceError: It is no profile, or breaks off.
    """
    try:
        planes = [_plane(value) for key, value in _fields(data) if key == 1]
    except (_BrokenError, struct.error, AttributeError, TypeError, KeyError) as error:
        raise EvidenceError(
            f"{source} is no profile of XLA, or breaks off: {str(error) or 'its parts do not fit'}. "
            "The program may have ended while it was written; profile again."
        ) from None
    kept = [plane for plane in planes if plane.name]
    if not kept:
        raise EvidenceError(
            f"{source} holds no plane, so nothing was profiled. Keep the profiler open while "
            "the program runs."
        )
    return (
        [each._replace(name=f"{host}: {each.name}") for each in kept] if host else kept
    )


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:  # noqa: PLR2004 - bits of a number
            raise _BrokenError("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004 - the last byte of a number
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field: an int, or bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if not number:
            raise _BrokenError("a field has the number 0")
        value: Any
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind == _BYTES:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif kind in {_FIXED64, _FIXED32}:
            size = 8 if kind == _FIXED64 else 4
            value, at = data[at : at + size], at + size
        else:
            raise _BrokenError(f"a field has the wire type {kind}")
        if at > end:
            raise _BrokenError("a field is longer than what holds it")
        yield number, value


def _plane(data: bytes) -> ProfilePlane:
    name = ""
    lines: list[bytes] = []
    own: list[bytes] = []
    events: dict[int, tuple[str, tuple[bytes, ...]]] = {}
    statistics: dict[int, str] = {}
    for key, value in _fields(data):
        match key:
            case 2:
                name = value.decode("utf-8", "replace")
            case 3:
                lines.append(value)
            case 4:
                number, entry = _entry(value)
                events[number] = _event_kind(entry)
            case 5:
                number, entry = _entry(value)
                named = [v for k, v in _fields(entry) if k == 2]  # noqa: PLR2004
                statistics[number] = (
                    named[-1].decode("utf-8", "replace") if named else ""
                )
            case 6:
                own.append(value)
    found = tuple(_line(each, events, statistics) for each in lines)
    return ProfilePlane(name, found, _statistics(own, statistics))


def _entry(data: bytes) -> tuple[int, bytes]:
    """Return key and value of an entry of a map."""
    fields = dict(_fields(data))
    return fields.get(1, 0), fields.get(2, b"")


def _event_kind(data: bytes) -> tuple[str, tuple[bytes, ...]]:
    """Return the name of a kind of event, and the statistics that its events share."""
    name = shown = ""
    shared: list[bytes] = []
    for key, value in _fields(data):
        match key:
            case 2:
                name = value.decode("utf-8", "replace")
            case 4:
                shown = value.decode("utf-8", "replace")
            case 5:
                shared.append(value)
    return shown or name, tuple(shared)


def _line(
    data: bytes,
    kinds: dict[int, tuple[str, tuple[bytes, ...]]],
    statistics: dict[int, str],
) -> ProfileLine:
    name = shown = ""
    start = 0
    events: list[bytes] = []
    for key, value in _fields(data):
        match key:
            case 2:
                name = value.decode("utf-8", "replace")
            case 11:
                shown = value.decode("utf-8", "replace")
            case 3:
                start = value
            case 4:
                events.append(value)
    found = [_event(each, start, kinds, statistics) for each in events]
    found.sort(key=lambda event: (event.start_ns, -event.duration_ns))
    return ProfileLine(shown or name, tuple(found))


def _event(
    data: bytes,
    line_start: int,
    kinds: dict[int, tuple[str, tuple[bytes, ...]]],
    statistics: dict[int, str],
) -> ProfileEvent:
    kind = offset = duration = 0
    own: list[bytes] = []
    for key, value in _fields(data):
        match key:
            case 1:
                kind = value
            case 2:
                offset = value
            case 3:
                duration = value
            case 4:
                own.append(value)
    name, shared = kinds.get(kind, ("", ()))
    start = line_start + offset // _PICO
    known = _statistics([*shared, *own], statistics)
    return ProfileEvent(name, start, duration // _PICO, known)


def _statistics(parts: Iterable[bytes], names: dict[int, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in parts:
        name, content = "", None
        for key, value in _fields(part):
            match key:
                case 1:
                    name = names.get(value, "")
                case 2:
                    content = struct.unpack("<d", value)[0]
                case 3:
                    content = value
                case 4:
                    content = value - 2 * _SIGN if value >= _SIGN else value
                case 5:
                    content = value.decode("utf-8", "replace")
                case 7:
                    content = names.get(value, "")
        if name and content is not None:
            found[name] = content
    return found
