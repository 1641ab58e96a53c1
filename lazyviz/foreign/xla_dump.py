"""A folder that XLA wrote with `--xla_dump_to`: its modules, each in several stages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazyviz.foreign.evidence import Evidence, EvidenceError
from lazyviz.hlo.tokens import instruction_count
from lazyviz.render import html, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from lazyviz.hlo import Graph

_BEFORE = ("before_optimizations.txt",)
_AFTER = re.compile(r"(?:\w+_)?after_optimizations\.txt")
_PASS = re.compile(r"(\d{4})\.(.+)\.txt")
_HEADER = ["module", "name", "before", "after", "passes", "files", "bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedModule:
    """One module of a dump folder.

    Attributes:
        id: XLA's number of it.
        name: Such as `jit_step` or `IrToHlo.108`.
        files: Paths by what follows the name, such as `before_optimizations.txt`.
    """

    id: int
    name: str
    files: Mapping[str, Path]

    @property
    def before(self) -> Path | None:
        """The HLO text as XLA got it."""
        return next(
            (self.files[stage] for stage in _BEFORE if stage in self.files), None
        )

    @property
    def after(self) -> Path | None:
        """The HLO text as XLA optimised it."""
        return next(
            (path for stage, path in self.files.items() if _AFTER.fullmatch(stage)),
            None,
        )

    def graph(self, stage: str = "before") -> Graph:
        """Return the module's graph, for `lazyviz.hlo`.

        Args:
            stage: `before` or `after` optimisation, or a key of `files` with HLO text.

        Raises:
            EvidenceError: The folder has no such text of it.
            HloError: The text does not follow its format.
        """
        from lazyviz.hlo import parse

        path = {"before": self.before, "after": self.after}.get(
            stage, self.files.get(stage)
        )
        if path is None:
            raise EvidenceError(
                f"module {self.id} {self.name} has no text {stage!r} in the dump. It has "
                f"{', '.join(self.files)}; set --xla_dump_hlo_as_text for text."
            )
        return parse(path.read_text("utf-8", errors="replace"), source=path.name)

    @property
    def passes(self) -> dict[str, Path]:
        """The HLO text between passes, in order, with `--xla_dump_hlo_pass_re`."""
        return {s: path for s, path in sorted(self.files.items()) if _PASS.fullmatch(s)}


@dataclass(frozen=True, slots=True, repr=False)
class XlaDump(Evidence):
    """The modules of a dump folder, in the order in which XLA numbered them."""

    folder: Path
    modules: tuple[DumpedModule, ...]

    def __getitem__(self, name: str) -> DumpedModule:
        """Return the last module of a name.

        Raises:
            KeyError: There is none.
        """
        found = [module for module in self.modules if module.name == name]
        if not found:
            names = ", ".join(dict.fromkeys(module.name for module in self.modules))
            raise KeyError(f"{self.folder} has no module {name}. It has {names}.")
        return found[-1]

    def text(self) -> str:
        """Return a table of the modules."""
        return f"{self._summary()}\n\n{text.table(_HEADER, self._rows())}"

    def to_html(self) -> str:
        """Return the table; each module's files are folded."""
        parts = [html.muted(self._summary()), html.table(_HEADER, self._rows())]
        for module in self.modules:
            title = f"module {module.id} {module.name}"
            parts.append(html.folded(title, html.pre("\n".join(module.files))))
        return f'<div class="lazyviz-xla-dump">{"".join(parts)}</div>'

    def to_dict(self) -> dict[str, Any]:
        """Return names, paths and numbers of instructions as plain data."""
        return {
            "folder": str(self.folder),
            "modules": [
                {
                    "id": module.id,
                    "name": module.name,
                    "instructions_before": _instructions(module.before),
                    "instructions_after": _instructions(module.after),
                    "files": {stage: str(p) for stage, p in module.files.items()},
                }
                for module in self.modules
            ],
        }

    def _summary(self) -> str:
        return (
            f"{text.plural(len(self.modules), 'module')} in {self.folder}; before and after "
            "are numbers of instructions"
        )

    def _rows(self) -> list[list[object]]:
        return [
            [
                module.id,
                module.name,
                _shown(_instructions(module.before)),
                _shown(_instructions(module.after)),
                len(module.passes),
                len(module.files),
                sum(path.stat().st_size for path in module.files.values()),
            ]
            for module in self.modules
        ]


def read_xla_dump(folder: Path) -> XlaDump:
    """Read the names of a folder's modules; their texts are read when asked for.

    Raises:
        EvidenceError: It is no folder, or has no module.
    """
    if not folder.is_dir():
        raise EvidenceError(
            f"{folder} is no folder. Give the folder that XLA_FLAGS=--xla_dump_to=... named."
        )
    modules = _group(path for path in sorted(folder.iterdir()) if path.is_file())
    if not modules:
        raise EvidenceError(
            f"{folder} has no files like 'module_0001.jit_step.before_optimizations.txt', so "
            "it is no dump of XLA. Set XLA_FLAGS=--xla_dump_to=FOLDER and "
            "--xla_dump_hlo_as_text before the program starts."
        )
    return XlaDump(folder, modules)


def _group(paths: Iterable[Path]) -> tuple[DumpedModule, ...]:
    """Group files by module; a module's name may have dots, so the known stage ends it."""
    known: dict[tuple[int, str], dict[str, Path]] = {}
    loose: list[tuple[int, str, Path]] = []
    for path in paths:
        found = re.fullmatch(r"module_(\d+)\.(.+)", path.name)
        if found is None:
            continue
        number, rest = int(found[1]), found[2]
        stage = _stage(rest)
        if stage is None:
            loose.append((number, rest, path))
        else:
            name = rest.removesuffix(f".{stage}")
            known.setdefault((number, name), {})[stage] = path
    for number, rest, path in loose:
        owner = next(
            (
                (n, name)
                for n, name in known
                if n == number and rest.startswith(f"{name}.")
            ),
            None,
        )
        if owner is not None:
            known[owner][rest.removeprefix(f"{owner[1]}.")] = path
    return tuple(
        DumpedModule(id=number, name=name, files=files)
        for (number, name), files in sorted(known.items())
    )


def _stage(rest: str) -> str | None:
    found = re.search(r"\.((?:\w+_)?(?:before|after)_optimizations\.txt)$", rest)
    return found[1] if found else None


def _instructions(path: Path | None) -> int | None:
    if path is None:
        return None
    return instruction_count(path.read_text("utf-8", errors="replace"))


def _shown(count: int | None) -> str | int:
    return "" if count is None else count
