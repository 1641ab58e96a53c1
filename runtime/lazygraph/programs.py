"""Whatever holds a program as a module of instructions, excerpts included."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lazygraph import torch_ir
from lazygraph.errors import HloError, HloSyntaxError
from lazygraph.load import (
    graph_of,
    parse_all,
    readable,
    text_of_bytes,
    text_of_file,
)
from lazygraph.module import Computation, Form, HloModule
from lazygraph.scan import modules

if TYPE_CHECKING:
    from lazygraph.graph import Graph

_MODULE_LINE = re.compile(r"^HloModule\b", re.MULTILINE)


def module_of(program: Any, name: str = "") -> tuple[HloModule, bool]:
    """Return a program as a module, and whether it is an excerpt of one.

    Args:
        program: HLO or StableHLO text, whole or in excerpts; a path; a graph.
        name: An instruction, without `%`: of several modules the one that has it is taken.

    Raises:
        HloError: There is no such file, it is no program, or several of its modules have `name`.
    """
    if isinstance(program, str) and ("\n" in program or " = " in program):
        return _module_of_text(program, name)
    if isinstance(program, (str, Path)):
        return _module_of_text(text_of_file(program), name)
    if isinstance(program, bytes):
        return _module_of_text(readable(text_of_bytes(program)), name)
    graph = graph_of(program)
    if isinstance(graph.source, HloModule):
        return graph.source, False
    return _module_of_graph(graph), False


def _module_of_text(text: str, name: str) -> tuple[HloModule, bool]:
    if _MODULE_LINE.search(text):
        try:
            found = modules(text)
        except HloSyntaxError:
            found = []
        if found:
            return _with(found, name), False
    elif "func.func" in text or torch_ir.START.search(text):
        return _with([*map(_module_of_graph, parse_all(text))], name), False
    found = modules(text, partial=True)
    if not found or not found[-1].computations:
        raise HloSyntaxError(
            "the text has no instruction. One reads `%name = type op(...)`."
        )
    return found[-1], True


def _with(found: list[HloModule], name: str) -> HloModule:
    """Return the module that has an instruction; the first one if none has."""
    if len(found) == 1:
        return found[0]
    having = [
        module
        for module in found
        if any(name in each.index for each in module.computations.values())
    ]
    if len(having) > 1 or not name:
        which = (
            f"{len(having)} of the {len(found)} modules have %{name}"
            if name
            else (f"the text has {len(found)} modules")
        )
        raise HloError(
            f"{which}: {', '.join(module.name for module in having[:8] or found[:8])}. Give one "
            "of them: lazygraph.parse(text, module=0), or lazygraph.read for a file."
        )
    return (having or found)[0]


def _module_of_graph(graph: Graph) -> HloModule:
    """Return a graph in the form of a module of one computation."""
    module = HloModule(graph.name, entry="main")
    main = module.computations["main"] = Computation("main", table=module.forms)
    for node in graph:
        literal = str(graph.numbers.get(node.id, node.literal))
        module.forms.append(Form(node.op, node.type, node.attrs, literal))
        main.add(graph.names[node.id].lstrip("%"), node.id, node.operands)
    types = ", ".join(graph.types[node] for node in graph.outputs)
    module.forms.append(Form("tuple", f"({types})"))
    main.root = main.add("return", len(graph), graph.outputs)
    return module
