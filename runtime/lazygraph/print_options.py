"""What an option of XLA's printer has left out of a module, and what that hides."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazygraph.graph import CONSTANT
from lazygraph.module import HloModule
from lazygraph.tokens import LITERAL_OPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazygraph.difference import GraphDiff
    from lazygraph.graph import Graph
    from lazygraph.module import Computation

# What stands for a large constant in HLO and in MLIR.
ELIDED = frozenset({"{...}", "__elided__"})
_HIDDEN = re.compile(r"\.\.\.\(\+\d+\)?")
# What may read nothing.
_SOURCES = LITERAL_OPS | {
    "tuple", "after-all", "create-token", "partition-id", "replica-id", "infeed",
    "rng-get-and-update-state", "custom-call", "fusion", "call", "async-start", "map",
}  # fmt: skip
# What these say in every program that is printed with attributes.
_TELLING = {
    "get-tuple-element": " index=", "broadcast": " dimensions=", "transpose": " dimensions=",
    "slice": " slice=", "compare": " direction=", "concatenate": " dimensions=",
    "fusion": " kind=", "reduce": " dimensions=", "dot": "_dims=",
}  # fmt: skip


def hidden_operands(body: str) -> str:
    """Return what stands for operands that were not printed; empty if nothing does.

    Example:
        >>> hidden_operands("%a, ...(+3)"), hidden_operands("%a, %b")
        ('...(+3)', '')
    """
    found = _HIDDEN.search(body)
    return found[0] if found else ""


def nameless(module: HloModule) -> tuple[Computation, int] | None:
    """Return the first instruction that must read something, where none says what it reads."""
    computations = module.computations.values()
    if any(any(each.operands) for each in computations):
        return None
    for computation in computations:
        for position, form in enumerate(computation.forms):
            if computation.table[form].op not in _SOURCES:
                return computation, position
    return None


def lacks_attributes(module: HloModule) -> bool:
    """Return whether a module was printed without attributes but for what is called."""
    told = [form for form in module.forms if form.op in _TELLING]
    return bool(told) and not any(_TELLING[form.op] in form.attrs for form in told)


def unseen(found: GraphDiff) -> Iterator[str]:
    """Yield what was not compared, as one dump or both leave it out."""
    bare = [_is_bare(found.a), _is_bare(found.b)]
    if any(bare):
        yield (
            f"not compared: dimensions and elements of tuples, which {_whose(*bare)} out; print "
            "with `print_extra_attributes`"
        )
    before, now = _elided(found.a), _elided(found.b)
    if before or now:
        count = max(before, now)
        what = "value of a constant" if count == 1 else f"values of {count:,} constants"
        yield (
            f"not compared: the {what}, which {_whose(bool(before), bool(now))} out; print "
            "with `print_large_constants`"
        )


def _is_bare(graph: Graph) -> bool:
    return isinstance(graph.source, HloModule) and lacks_attributes(graph.source)


def _whose(first: bool, second: bool) -> str:  # noqa: FBT001
    if first and second:
        return "both dumps leave"
    return f"the {'first' if first else 'second'} dump leaves"


def _elided(graph: Graph) -> int:
    """Return how many constants stand without their values, in what is called too."""
    source = graph.source
    if not isinstance(source, HloModule):
        kinds = {k for k, each in enumerate(graph.labels) if each.literal in ELIDED}
        return sum(kind in kinds for kind in graph.kinds)
    forms = {
        k
        for k, form in enumerate(source.forms)
        if form.op == CONSTANT and form.literal.strip() in ELIDED
    }
    if not forms:
        return 0
    computations = source.computations.values()
    return sum(form in forms for each in computations for form in each.forms)
