"""Whose lines generated code stands for: functions that `torch.compile` captured as graphs.

The code of a graph has a file name of its own, and each of its lines calls one op. What the
op came from, TorchDynamo has noted with it.
"""

from __future__ import annotations

import re
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazyrt.observe.events import Site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    import torch

PREFIX = "<eval_with_key>"

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')


@dataclass(frozen=True, slots=True)
class Original:
    """Where an op of generated code stands in the program.

    Attributes:
        stack: The program's frames, the innermost last; without cells' numbers.
        module: Qualified name of the module that called it, empty outside of modules.
    """

    stack: tuple[Site, ...]
    module: str


_lines: dict[str, dict[int, Original]] = {}


def is_known(filename: str) -> bool:
    """Return whether a file name is that of code whose lines were noted."""
    return filename in _lines


def original(frame: FrameType) -> Original | None:
    """Return what the line of generated code that a frame is at stands for."""
    lines = _lines.get(frame.f_code.co_filename)
    return lines.get(frame.f_lineno) if lines is not None else None


def note_lines(graph: torch.fx.GraphModule) -> None:
    """Remember the origins of a graph's lines, for as long as the graph is there."""
    _ = graph.code  # TorchDynamo's graphs generate theirs only when it is asked for
    filename = type(graph).forward.__code__.co_filename
    nodes = list(graph.graph.nodes)
    first: int = getattr(graph, "_prologue_start", 0)
    numbers: dict[int, int | None] = getattr(graph, "_lineno_map", None) or {}
    _lines[filename] = {
        first + line: _original(nodes[number])
        for line, number in numbers.items()
        if number is not None and nodes[number].op.startswith("call_")
    }
    weakref.finalize(graph, _lines.pop, filename, None).atexit = False


def _original(node: torch.fx.Node) -> Original:
    stack = tuple(_sites(node.meta.get("stack_trace") or ""))
    return Original(stack, _module(node.meta))


def _sites(trace: str) -> Iterator[Site]:
    for found in _FRAME.finditer(trace):
        yield Site(found["file"], int(found["line"]), found["function"])


def _module(meta: dict[str, Any]) -> str:
    """Return the module's name below the outermost one, as ops outside of graphs have it."""
    calls = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    names = [(str(name), kind) for name, kind in calls.values()]
    if not names:
        return ""
    (root, _), (inner, kind) = names[0], names[-1]
    if inner == root:
        return str(getattr(kind, "__name__", kind)).rpartition(".")[2]
    return inner.removeprefix(root).lstrip(".")
