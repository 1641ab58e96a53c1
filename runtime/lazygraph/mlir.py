"""StableHLO text to graphs. Any dialect in the usual notation will do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazygraph.errors import HloSyntaxError
from lazygraph.mlir_attrs import dictionary, split_commas
from lazygraph.mlir_reader import FunctionReader, digest_of
from lazygraph.mlir_text import (
    Function,
    Locations,
    Statement,
    closing,
    functions,
    module_name,
)

if TYPE_CHECKING:
    from lazygraph.graph import Graph

_MAX_CALLS = 60
_DIGEST = re.compile(r"(\w+)\s*=\s*(#[0-9a-f]{16})")
_MESH = re.compile(r"^\s*sdy\.mesh @([\w$.\-]+) = (<[^\n{]*>)", re.MULTILINE)
_HEADER = re.compile(
    r'^\s*"?(?:builtin\.)?module"?[^\n{]*?attributes\s*\{', re.MULTILINE
)
_SETTINGS = {
    "mhlo.num_partitions": "num_partitions",
    "mhlo.num_replicas": "replica_count",
}


class MlirModule:
    """A module, which knows the functions and regions that its operations call.

    Attributes:
        name: Of the module.
        functions: By name.
        is_generic: Whether it names every part of an operation.
        meshes: By name the devices that shardings speak of.
        source: Name of the file, for errors.
        locations: What its `loc(...)` stand for.
        effectful: Functions and regions in which something has an effect.
        known_regions: Digests of regions by their text without names.
        plans: For readers: what lines say that differ in the names of values alone.
    """

    def __init__(self, text: str, source: str = "") -> None:
        self.name = module_name(text)
        self.functions = {each.name: each for each in functions(text, source)}
        self.meshes = dict(_MESH.findall(text)) if "sdy.mesh" in text else {}
        self.source = source
        self.locations = Locations(text)
        self.plans: dict[str, tuple[str, str, str, str] | None] = {}
        self.known_regions: dict[str, str] = {}
        self.effectful: set[str] = set()
        self.is_generic = '"builtin.module"(' in text
        self._header = _header(text)
        self._fingerprints: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._regions: dict[str, Graph] = {}
        self._under_way: list[str] = []

    def graph(self, name: str = "") -> Graph:
        """Return the graph of a function or region, by default of `main` or the first public one."""
        if name in self._regions:
            return self._regions[name]
        function = self.functions.get(name) if name else self._main()
        if function is None:
            missing = f"function @{name}" if name else "function"
            raise HloSyntaxError(
                f"the module {self.name} has no {missing}. A program has "
                "a `func.func @main`.",
                source=self.source,
            )
        return FunctionReader(self, function).read()

    def _main(self) -> Function | None:
        found = self.functions.get("main")
        with_body = (each for each in self.functions.values() if each.body)
        return found or next(with_body, None)

    @property
    def settings(self) -> dict[str, str]:
        """What the module says of how it is compiled and run, by the names that HLO has for it."""
        found = {
            _SETTINGS[key]: value.partition(":")[0].strip()
            for key, value in self._header.items()
            if key in _SETTINGS
        }
        if self.meshes:
            found["mesh"] = ", ".join(sorted(self.meshes.values()))
        if self.is_generic:
            found["notation"] = "generic"
        main = self._main()
        placed = {} if main is None else _result_shardings(main.results)
        if placed:
            found["output_shardings"] = ", ".join(
                f"{number}: {sharding}" for number, sharding in placed.items()
            )
        return found

    def donated(self) -> list[int]:
        """Return the numbers of the inputs that give up their memory."""
        main = self._main()
        if main is None:
            return []
        return [
            number
            for number, (_, _, _, notes) in enumerate(main.inputs())
            if {"tf.aliasing_output", "jax.buffer_donor"} & dictionary(notes).keys()
        ]

    def fingerprint(self, name: str, statement: Statement) -> str:
        """Return a digest of a function without names, order and dead code."""
        known = self._fingerprints.get(name)
        if known is not None:
            return known
        if name not in self.functions:
            raise HloSyntaxError(
                f"@{name} is called and not defined. The text was cut off; save it again.",
                statement.line,
                statement.column,
                self.source,
            )
        if name in self._under_way or len(self._under_way) > _MAX_CALLS:
            what = f"@{name} calls itself, which StableHLO does not allow."
            if name not in self._under_way:
                what = f"@{name} is called {_MAX_CALLS} calls deep, which no program needs."
            raise HloSyntaxError(
                what,
                statement.line,
                statement.column,
                self.source,
            )
        self._under_way.append(name)
        try:
            found = self._fingerprints[name] = digest_of(self.graph(name))
        finally:
            self._under_way.pop()
        self._names.setdefault(found, name)
        return found

    def keep_region(self, digest: str, name: str, graph: Graph) -> None:
        """Remember a region, for those who look into the operation that has it."""
        if digest not in self._names:
            self._names[digest] = name
            self._regions[name] = graph

    def callees(self, graph: Graph, node: int) -> list[tuple[str, str]]:
        """Return what a node calls: pairs of the attribute and a function's or region's name."""
        return self.called_in(graph.label(node).attrs)

    def called_in(self, attrs: str) -> list[tuple[str, str]]:
        """Return the functions and regions that some attributes name."""
        found = _DIGEST.findall(attrs)
        return [(key, self._names[each]) for key, each in found if each in self._names]


def _header(text: str) -> dict[str, str]:
    found = _HEADER.search(text)
    if found is None:
        return {}
    start = found.end() - 1
    return dictionary(text[start : closing(text, start)])


def _result_shardings(results: str) -> dict[int, str]:
    """Return for the results that say so where they are placed."""
    if "sharding" not in results:
        return {}
    inside = results.strip()
    if inside.startswith("("):
        inside = inside[1:-1]
    found = {}
    for number, part in enumerate(split_commas(inside)):
        _, brace, notes = part.partition("{")
        said = dictionary(brace + notes) if brace else {}
        sharding = said.get("sdy.sharding") or said.get("mhlo.sharding")
        if sharding:
            found[number] = sharding
    return found
