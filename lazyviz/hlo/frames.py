"""The tables of files and stack frames that newer XLA writes in front of a module."""

from __future__ import annotations

import re

_SECTIONS = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ENTRY = re.compile(r"(\d+) (.*)")
_FIELD = re.compile(r"(\w+)=(\d+)")


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
