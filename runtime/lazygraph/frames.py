"""The tables of files and stack frames that newer XLA writes in front of a module."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazygraph.tokens import METADATA

if TYPE_CHECKING:
    from collections.abc import Callable

_SECTIONS = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ENTRY = re.compile(r"(\d+) (.*)")
_FIELD = re.compile(r"(\w+)=(\d+)")
# What XLA calls the text that it was given, and the line of that text.
_OWN_TEXT = re.compile(r'source_file="-?"(?: source_(?:end_)?(?:line|column)=\d+)*')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_SPACES = re.compile(" {2,}")
_MLIR_PLACE = re.compile(r'\("((?:[^"\\]|\\.)*)":(\d+):\d+\)')


class FrameTables:
    """Collects the lines of the tables, and makes source lines of them."""

    def __init__(self) -> None:
        self._section = ""
        self._files: dict[int, str] = {}
        self._locations: dict[int, tuple[int, int]] = {}
        self._frames: dict[int, int] = {}

    def take(self, line: str) -> bool:
        """Take in a line if it belongs to a table; return whether it does."""
        if line.strip() in _SECTIONS:
            self._section = line.strip()
            return True
        if not self._section:
            return False
        found = _ENTRY.match(line)
        if found is None:
            self._section = ""
            return False
        number, rest = int(found[1]), found[2]
        fields = {name: int(value) for name, value in _FIELD.findall(rest)}
        match self._section:
            case "FileNames":
                self._files[number] = rest.strip().strip('"')
            case "FileLocations":
                place = fields.get("file_name_id", 0), fields.get("line", 0)
                self._locations[number] = place
            case "StackFrames":
                self._frames[number] = fields.get("file_location_id", 0)
        return True

    def end_section(self) -> None:
        """Take note of an empty line."""
        self._section = ""

    def sites(self) -> dict[int, str]:
        """Return for each frame its source line."""
        found = {}
        for frame, location in self._frames.items():
            file, line = self._locations.get(location, (0, 0))
            if file in self._files and self._files[file] not in {"", "-"}:
                found[frame] = f"{self._files[file]}:{line}"
        return found


def with_lines(hlo: str, called: Callable[[str], str]) -> str:
    """Return HLO text in which each instruction names the user's line, without the tables.

    XLA names the line of the text that it was given, and the user's only in its tables.

    Args:
        hlo: The text as XLA prints it.
        called: Returns what the reader knows a file as, such as `cell 3`.
    """
    tables = FrameTables()
    kept: list[str] = []
    for line in hlo.strip().splitlines():
        if tables.take(line):
            continue
        tables.end_section()
        if line or (kept and kept[-1]):  # one empty line where the tables stood
            kept.append(line)
    sites = tables.sites()

    def place(found: re.Match[str]) -> str:
        file, colon, line = sites.get(int(found[1]), "").rpartition(":")
        return f'source_file="{called(file)}" source_line={line}' if colon else ""

    def metadata(found: re.Match[str]) -> str:
        body = _FRAME.sub(place, _OWN_TEXT.sub("", found[1])).strip()
        return f", metadata={{{_SPACES.sub(' ', body)}}}" if body else ""

    return METADATA.sub(metadata, "\n".join(kept))


def with_named_files(stablehlo: str, called: Callable[[str], str]) -> str:
    """Return StableHLO text whose locations have the reader's names of files."""
    return _MLIR_PLACE.sub(
        lambda found: f'("{called(found[1])}":{found[2]}:0)', stablehlo
    )
