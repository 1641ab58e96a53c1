"""A lowered graph, as a user sees it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from lazyrt import jax_compat
from lazyrt.errors import UsageError
from lazyrt.lowering.emit import (
    argument_types,
    emit_text,
    function_places,
    result_types,
)
from lazyrt.lowering.hlo_places import compiled_text, with_all_places

if TYPE_CHECKING:
    from lazyrt.ir.graph import Graph

Dialect = Literal["stablehlo", "hlo_before", "hlo"]


class Computation:
    """The StableHLO module of a graph.

    Looking at it neither touches the step's executable cache nor counts as one of its
    compiles: `as_text("hlo")` compiles a copy for the eye.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @property
    def fingerprint(self) -> str:
        """The graph's fingerprint."""
        return self._graph.fingerprint

    @property
    def graph(self) -> Graph:
        """The graph that was lowered."""
        return self._graph

    def as_text(self, dialect: Dialect = "stablehlo") -> str:
        """Return the module as text.

        Args:
            dialect: `stablehlo`, before XLA; `hlo_before`, the same as HLO, before XLA's
                optimisation; or `hlo`, as XLA optimised it, with each instruction's op name
                and source line as metadata. Only `hlo` compiles.
        """
        if dialect == "stablehlo":
            return self._stablehlo
        if dialect == "hlo_before":
            graph = self._graph.canonical
            return with_all_places(
                jax_compat.hlo_text(self._stablehlo, function_places(graph))
            )
        if dialect == "hlo":
            return compiled_text(self._executable)
        raise UsageError(
            f"as_text({dialect!r}): there is no such dialect. It takes 'stablehlo' (what "
            "lazyrt lowers to), 'hlo_before' or 'hlo' (what XLA made of it)."
        )

    def known_hlo(self) -> str | None:
        """Return the optimised HLO of the executable that steps run; None without one.

        Compiles nothing. It may differ from `as_text("hlo")` in which inputs are donated.
        """
        from lazyrt.execution.executor import executable_of

        executable = executable_of(self.fingerprint)
        return None if executable is None else compiled_text(executable)

    def estimate_compile_ns(self) -> int:
        """Return how long XLA takes for it, from the compiles of this process so far."""
        from lazyrt.execution.census import census

        return census.estimate_compile_ns(len(self._graph.nodes))

    @cached_property
    def _stablehlo(self) -> str:
        return emit_text(self._graph.canonical)

    @cached_property
    def _executable(self) -> Any:
        from lazyrt.execution import compiler

        graph = self._graph.canonical
        return compiler.compile_uncounted(
            self._stablehlo, argument_types(graph), result_types(graph)
        )

    def __repr__(self) -> str:
        return (
            f"<Computation {self.fingerprint[:12]} of {len(self._graph.nodes)} nodes>"
        )
