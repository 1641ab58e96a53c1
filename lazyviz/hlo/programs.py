"""Whatever holds a program as a module of instructions, excerpts included."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lazyviz.hlo import torch_ir
from lazyviz.hlo.errors import HloError, HloSyntaxError
from lazyviz.hlo.load import graph_of, parse
from lazyviz.hlo.module import Computation, Form, HloModule
from lazyviz.hlo.scan import modules

if TYPE_CHECKING:
    from lazyviz.hlo.graph import Graph

_MODULE_LINE = re.compile(r"^HloModule\b", re.MULTILINE)


def module_of(program: Any) -> tuple[HloModule, bool]:
    """Return a program as a module, and whether it is an excerpt of one."""
    if isinstance(program, str) and ("\n" in program or " = " in program):
        return _module_of_text(program)
    if isinstance(program, (str, Path)):
        try:
            text = Path(program).read_text("utf-8", "replace")
        except OSError as error:
            raise HloError(
                f"{program} cannot be read: {error.strerror}. Give the path of a dump, or its text."
            ) from None
        return _module_of_text(text)
    graph = graph_of(program)
    if isinstance(graph.source, HloModule):
        return graph.source, False
    return _module_of_graph(graph), False


def _module_of_text(text: str) -> tuple[HloModule, bool]:
    if _MODULE_LINE.search(text):
        try:
            found = modules(text)
        except HloSyntaxError:
            found = []
        if len(found) == 1:
            return found[0], False
    elif "func.func" in text or torch_ir.START.search(text):
        return _module_of_graph(parse(text)), False
    found = modules(text, partial=True)
    if not found or not found[-1].computations:
        raise HloSyntaxError(
            "the text has no instruction. One reads `%name = type op(...)`."
        )
    return found[-1], True


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
