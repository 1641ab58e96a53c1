"""Graphs of HLO, StableHLO and the runtime's IR, and their differences.

Neither torch nor jax is loaded by it; only HLO protos need jaxlib.

A `Graph` is a list of nodes numbered from 0, operands before their users; a node is a label
(op, type, attributes, literal) and the ids of its operands, one for each operand slot. Its
outputs are node ids. What a graph leaves out makes no difference: names, layouts, metadata,
the order of parameters, of outputs and of lines, and dead code, which is listed apart.

Example:
    >>> from lazygraph import GraphBuilder, diff
    >>> def chain(*ops):
    ...     builder = GraphBuilder("chain")
    ...     last = builder.add(builder.label("parameter", "f32[4]"))
    ...     for op in ops:
    ...         last = builder.add(builder.label(op, "f32[4]"), [last])
    ...     return builder.finish([last])
    >>> found = diff(chain("exp", "log"), chain("exp", "tanh", "log"))
    >>> [found.b[node].op for node in found.added], found.removed, found.cost
    (['tanh'], [], 2)
    >>> found.rewired  # the operand of `log`
    [Rewire(a=2, b=3, slot=0)]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazygraph.diff import (
    GraphDiff,
    Hunk,
    HunkGroup,
    Outputs,
    Regrouped,
    Rewire,
    diff,
    group_hunks,
    minimise,
)
from lazygraph.graph import (
    DeadNode,
    Graph,
    GraphBuilder,
    HloError,
    HloSyntaxError,
    Label,
    Node,
    Origin,
)
from lazygraph.read.lazy_ir import from_ir, from_snapshot
from lazygraph.read.open import graph_of, parse, parse_all, read
from lazygraph.trace import (
    Hop,
    Sources,
    Unused,
    ValueTrace,
    trace_value,
    unused_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

# Called with the runtime once a program has imported it: an inspector may be there before.
on_runtime: set[Callable[[ModuleType], None]] = set()

__all__ = [
    "DeadNode", "Graph", "GraphBuilder", "GraphDiff", "HloError", "HloSyntaxError",
    "Hop", "Hunk", "HunkGroup", "Label", "Node", "Origin", "Outputs", "Regrouped", "Rewire", "Sources", "Unused", "ValueTrace",
    "diff", "from_ir", "from_snapshot", "graph_of", "group_hunks", "minimise", "on_runtime", "parse", "parse_all", "read", "trace_value", "unused_values",
]  # fmt: skip
