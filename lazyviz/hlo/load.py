"""Whatever holds a graph, read into one: texts, files, protos, graphs of the runtime."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lazyviz.hlo.errors import HloError, HloSyntaxError
from lazyviz.hlo.graph import Graph
from lazyviz.hlo.ir import from_ir
from lazyviz.hlo.normal import graph_of_module
from lazyviz.hlo.scan import modules

if TYPE_CHECKING:
    from lazyviz.hlo.module import HloModule

# About ten million instructions: beyond that something else than a dump was given.
MAX_BYTES = 1 << 30

_HLO = re.compile(r"^HloModule\b", re.MULTILINE)


def parse(text: str, *, module: str = "", source: str = "") -> Graph:
    """Return the graph of a program in text form, in normal form.

    Args:
        text: HLO text before or after optimisation.
        module: Name of the module to read, when the text holds several.
        source: Name of the file, for errors.

    Raises:
        HloSyntaxError: The text is none of these, or is cut off, with line and column.
        HloError: It holds several modules, or calls what it does not define.
    """
    if len(text) > MAX_BYTES:
        raise HloError(
            f"the text has {len(text):,} characters, more than {MAX_BYTES:,}. No dump is as "
            "large; give the text of one module."
        )
    if _HLO.search(text):
        found = modules(text, source=source)
        return graph_of_module(_chosen(found, module))
    raise HloSyntaxError(_no_program(text), source=source)


def read(path: str | Path, *, module: str = "") -> Graph:
    """Return the graph in a file.

    Raises:
        HloError: There is no such file, or it holds no program.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise HloError(
                f"{file} has {size:,} bytes, more than {MAX_BYTES:,}. No dump is as large."
            )
        data = file.read_bytes()
    except OSError as error:
        raise HloError(
            f"{file} cannot be read: {error.strerror}. Give the path of a dump."
        ) from error
    text = data.decode("utf-8", "replace")
    return parse(text, module=module, source=str(file))


def graph_of(thing: Any) -> Graph:
    """Return the graph of a text, a path, a graph of the runtime, or what XLA compiled.

    Raises:
        HloError: It is none of these.
    """
    if isinstance(thing, Graph):
        return thing
    if isinstance(thing, Path):
        return read(thing)
    if isinstance(thing, str):
        return read(thing) if _is_path(thing) else parse(thing)
    if hasattr(thing, "nodes") and hasattr(thing, "roots"):
        return from_ir(thing)
    if hasattr(thing, "as_text"):
        return parse(thing.as_text())
    raise HloError(
        f"a {type(thing).__name__} holds no graph. Give HLO or StableHLO text, a path, or a "
        "graph of the runtime such as lazyrt.pending_graph()."
    )


def _is_path(text: str) -> bool:
    return "\n" not in text and len(text) < 4_096 and "=" not in text  # noqa: PLR2004


def _chosen(found: list[HloModule], name: str) -> HloModule:
    names = [module.name for module in found]
    if name:
        if names.count(name) != 1:
            what = "no module" if name not in names else "several modules called"
            raise HloError(f"the text has {what} {name}. It has {_listed(names)}.")
        return found[names.index(name)]
    if len(found) > 1:
        raise HloError(
            f"the text has {len(found)} modules: {_listed(names)}. Name one with `module=`."
        )
    return found[0]


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown  # noqa: PLR2004


def _no_program(text: str) -> str:
    if not text.strip():
        return "the text is empty. Give HLO text, which starts with `HloModule`."
    start = text.strip().split("\n", 1)[0][:60]
    return f"{start!r} starts no program. HLO text starts with `HloModule`."
