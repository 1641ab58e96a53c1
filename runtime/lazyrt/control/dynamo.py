"""`torch.compile(f)`: a compiled function's ops are recorded like any others.

The backend is `lazyrt`; where none is named, or torch_xla's `openxla`, graphs of lazy tensors
come here, too.

TorchDynamo finds the function's graph, AOTAutograd its backward, both once; a call then
records their ops without running the function's Python. Nothing is computed by the call:
inside a `step()` the whole step is still one execution. Ops keep the lines and modules of the
program that was compiled, forward and backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyrt.frontend import provenance
from lazyrt.frontend.torch_compat import (
    aot_backend,
    dynamo_is_loaded,
    name_backend,
    patch_default_compiler,
    patch_openxla,
    skip_packages_in_dynamo,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

NAMES = ("lazyrt", "lazyviz")

# After a graph break TorchDynamo goes on with every function that is called. Ours and jax's
# are no part of the program: tracing and rewriting them breaks them.
NOT_TRACED = ("lazygraph", "lazyrt", "lazyviz", "jax", "jaxlib")

_compile: Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]] | None = (
    None
)


def dynamo_backend(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """Compile a graph of TorchDynamo's: a call of the result records its ops.

    For `torch.compile(f, backend=lazyrt.dynamo_backend)`; an installed lazyviz has the names
    `lazyrt` and `lazyviz` for it, too.

    Args:
        graph: The captured function.
        example_inputs: Stand-ins for its arguments.
    """
    global _compile
    if _compile is None:
        _compile = aot_backend(_record)
    return _compile(graph, example_inputs)


def _record(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Any:
    """Return the graph as generated code that records, and whose lines are the user's."""
    provenance.note_generated_lines(graph)
    return graph.forward


def install() -> None:
    """Give the backend its names where TorchDynamo is loaded already, and the lazy graphs.

    Functions of ours are left out of what it traces, whatever its backend.
    Elsewhere TorchDynamo finds the names as entry points, when it is loaded.
    """
    skip_packages_in_dynamo(NOT_TRACED)
    patch_default_compiler(dynamo_backend)
    patch_openxla(dynamo_backend)
    if dynamo_is_loaded():
        for name in NAMES:
            name_backend(name, dynamo_backend)
