"""Programs that stand in a text or a folder: HLO, StableHLO, IR, and the modules of a dump.

A folder is what XLA wrote with `--xla_dump_to`, or `lazyrt.dump_graphs`: modules in stages.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazygraph.read.hlo_module import instruction_count
from lazygraph.types import type_bytes
from lazyviz.doc import Code, Doc, Fold, Note, Table
from lazyviz.draw.diff_text import graph_lines
from lazyviz.foreign import Evidence, EvidenceError, ranked
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from lazygraph import Graph

_PROGRAM_HEADER = ["program", "name", "nodes", "inputs", "input size", "outputs", "dead"]  # fmt: skip
_MAX_OPS = 12
_MAX_NODES = 2_000
_MAX_PLACES = 8
_BEFORE = ("before_optimizations.txt", "before_optimisation.hlo")
_AFTER = re.compile(r"(?:\w+_)?after_optimizations\.txt|after_optimisation\.hlo")
# What `lazyrt.dump_graphs` writes of each graph.
_GRAPH = re.compile(
    r"graph\.(?P<id>\d+)\.(?P<stage>ir\.txt|stablehlo\.mlir"
    r"|(?:before|after)_optimisation\.hlo|dot)"
)
_ALIASES = {"ir": "ir.txt", "stablehlo": "stablehlo.mlir"}
_STAGES = ("before", "ir", "stablehlo", "after")
_MAX_NAMED = 4
_PASS = re.compile(r"(\d{4})\.(.+)\.txt")
_MODULE_HEADER = ["module", "name", "before", "after", "passes", "files", "bytes"]


@dataclass(frozen=True, slots=True, repr=False)
class Programs(Evidence):
    """The programs of a text, in its order.

    Attributes:
        graphs: Their graphs in normal form, for `lazygraph`.
    """

    graphs: tuple[Graph, ...]

    def doc(self) -> Doc:
        """Return a table of the programs, their most frequent ops and places; nodes are folded."""
        folds = (
            Fold(
                f"program {number} {graph.name}: {text.plural(len(graph), 'node')}",
                [Code(_listing(graph))],
            )
            for number, graph in enumerate(self.graphs, 1)
        )
        rows = [
            [
                number,
                graph.name,
                len(graph),
                len(graph.inputs),
                text.size(sum(type_bytes(graph.types[node]) for node in graph.inputs)),
                len(graph.outputs),
                len(graph.dead),
            ]
            for number, graph in enumerate(self.graphs, 1)
        ]
        table, notes = Table(_PROGRAM_HEADER, rows), map(Note, self._notes())
        return Doc([table, *notes, *folds], css_class="lazyviz-programs", gap="\n\n")

    def to_dict(self) -> dict[str, Any]:
        """Return the nodes as plain data."""
        return {
            "programs": [
                {
                    "name": graph.name,
                    "nodes": [node._asdict() for node in graph],
                    "outputs": list(graph.outputs),
                    "dead": [dead._asdict() for dead in graph.dead],
                }
                for graph in self.graphs
            ]
        }

    def _notes(self) -> list[str]:
        ops = Counter(op for graph in self.graphs for op in graph.ops)
        places = Counter(
            graph.site(node) for graph in self.graphs for node in range(len(graph))
        )
        places.pop("", None)
        notes = ["ops: " + ranked(ops, _MAX_OPS)]
        return [*notes, "lines: " + ranked(places, _MAX_PLACES)] if places else notes


def parse_programs(source: str | bytes) -> Programs:
    """Read every program of a text, or of a serialised HLO proto."""
    import lazygraph as hlo

    try:
        if isinstance(source, bytes):
            return Programs((hlo.parse(source),))
        return Programs(tuple(hlo.parse_all(source)))
    except hlo.HloError as error:
        raise EvidenceError(str(error)) from None


def _listing(graph: Graph) -> str:
    lines = graph_lines(graph, _MAX_NODES)
    return "\n".join([*lines, *text.more(len(graph) - _MAX_NODES, "node")])


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedModule:
    """One module of a dump folder.

    Attributes:
        id: XLA's number of it.
        name: Such as `jit_step`, `IrToHlo.108` or lazyrt's `graph.2`.
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

    def __lazygraph__(self) -> Graph:
        return self.graph()

    def graph(self, stage: str = "") -> Graph:
        """Return the module's graph, for `lazygraph`.

        Args:
            stage: `before` or `after` optimisation, for a graph of lazyrt also `ir` or
                `stablehlo`, or a key of `files` that holds a program. By default the first of
                `before`, `ir`, `stablehlo`, `after` that was dumped.

        Raises:
            EvidenceError: The folder has no such text of it.
            HloError: The text does not follow its format.
        """
        from lazygraph import parse

        wanted = (stage,) if stage else _STAGES
        path = next(filter(None, map(self._path, wanted)), None)
        if path is None:
            what = f"text {stage!r}" if stage else "text of a program"
            raise EvidenceError(
                f"module {self.id} {self.name} has no {what} in the dump. It has "
                f"{', '.join(self.files)}{self._advice()}."
            )
        graph = parse(path.read_text("utf-8", errors="replace"), source=path.name)
        if self._is_ours:
            graph.name = self.name
        return graph

    def _path(self, stage: str) -> Path | None:
        known = {"before": self.before, "after": self.after}
        return known.get(stage, self.files.get(_ALIASES.get(stage, stage)))

    @property
    def _is_ours(self) -> bool:
        return any(_GRAPH.fullmatch(path.name) for path in self.files.values())

    def _advice(self) -> str:
        return "" if self._is_ours else "; set --xla_dump_hlo_as_text for text"

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

    def doc(self) -> Doc:
        """Return a table of the modules; each one's files are folded."""
        folds = (
            Fold(f"module {module.id} {module.name}", [Code("\n".join(module.files))])
            for module in self.modules
        )
        texts = any(module.before or module.after for module in self.modules)
        counted = "; before and after are numbers of instructions" if texts else ""
        many = text.plural(len(self.modules), "module")
        summary = Note(f"{many} in {self.folder}{counted}")
        parts = [summary, self._table(), *folds]
        return Doc(parts, css_class="lazyviz-xla-dump", gap="\n\n")

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

    def _table(self) -> Table:
        """Return the table, without columns of what was not dumped."""
        rows: list[list[object]] = [
            [
                module.id,
                module.name,
                _instructions(module.before),
                _instructions(module.after),
                len(module.passes) or "",
                len(module.files),
                sum(path.stat().st_size for path in module.files.values()),
            ]
            for module in self.modules
        ]
        return Table(_MODULE_HEADER, rows).filled()


def read_xla_dump(folder: Path) -> XlaDump:
    """Read the names of a folder's modules; their texts are read when asked for."""
    if not folder.is_dir():
        raise EvidenceError(
            f"{folder} is no folder. Give the folder that XLA_FLAGS=--xla_dump_to=... named."
        )
    paths = [path for path in sorted(folder.iterdir()) if path.is_file()]
    modules = _group(paths) or _graphs(paths)
    if not modules:
        raise EvidenceError(
            f"{folder} has no files like 'module_0001.jit_step.before_optimizations.txt', so "
            f"it is no dump of XLA{_instead(paths)} For one, set "
            "XLA_FLAGS=--xla_dump_to=FOLDER and --xla_dump_hlo_as_text before the program starts."
        )
    return XlaDump(folder, modules)


def _instead(paths: Sequence[Path]) -> str:
    """Return what a folder that is no dump holds, and who reads that."""
    if any(path.name.startswith("replica-") for path in paths):
        return ", but a record of steps, which lazyviz.replicas(folder) reads."
    if not paths:
        return ": it has no file at all."
    names = ", ".join(path.name for path in paths[:_MAX_NAMED])
    more = f" and {len(paths) - _MAX_NAMED:,} more" if len(paths) > _MAX_NAMED else ""
    return (
        f", nor graphs of lazyrt.dump_graphs(), such as 'graph.1.ir.txt'. It has {names}{more}; "
        "name a file."
    )


def _graphs(paths: Iterable[Path]) -> tuple[DumpedModule, ...]:
    """Group what `lazyrt.dump_graphs` wrote by graph."""
    known: dict[int, dict[str, Path]] = {}
    for path in paths:
        if found := _GRAPH.fullmatch(path.name):
            known.setdefault(int(found["id"]), {})[found["stage"]] = path
    return tuple(
        DumpedModule(id=number, name=f"graph.{number}", files=files)
        for number, files in sorted(known.items())
    )


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
