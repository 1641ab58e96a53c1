"""torch_xla's IR graphs, with the error of the readers of logs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lazygraph.errors import HloSyntaxError
from lazygraph.read import torch_ir
from lazyviz.foreign.evidence import EvidenceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazygraph.read.torch_ir import IrNode


def parse_ir(text: str, line: int = 1) -> tuple[IrNode, ...]:
    """Return the nodes of an IR graph in text form; see `lazygraph`.

    Raises:
        EvidenceError: It does not follow the form.
    """
    with _as_evidence():
        return torch_ir.parse_ir(text, line)


def parse_dot(text: str, line: int = 1) -> tuple[IrNode, ...]:
    """Return the nodes of an IR graph in DOT form; see `lazygraph`.

    Raises:
        EvidenceError: It does not follow the form.
    """
    with _as_evidence():
        return torch_ir.parse_dot(text, line)


@contextmanager
def _as_evidence() -> Iterator[None]:
    try:
        yield
    except HloSyntaxError as error:
        raise EvidenceError(error.message, error.line) from error
