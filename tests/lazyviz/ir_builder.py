"""Small graphs of real IR nodes, built by hand so that no tensor is needed."""

from __future__ import annotations

from typing import Any

import torch

from lazyrt import Graph
from lazyrt.ir.node import BackwardOf, Leaf, Node, Op, Provenance, Value
from lazyrt.observe.events import SourceLocation


def data(position: int, *shape: int) -> Leaf:
    """Return an input with device data."""
    return Leaf("data", position, shape, torch.float32)


class Builder:
    """Records nodes with ids from 1."""

    def __init__(self) -> None:
        self.count = 0
        self.ops: dict[str, Op] = {}

    def op(self, name: str) -> Op:
        if name not in self.ops:
            space, base, overload = name.split(".")
            packet = getattr(getattr(torch.ops, space), base)
            self.ops[name] = Op(getattr(packet, overload))
        return self.ops[name]

    def add(
        self,
        name: str,
        args: tuple[Any, ...],
        *shapes: tuple[int, ...],
        module: str = "",
        line: int = 1,
        backward: bool = False,
    ) -> Value:
        """Record one op and return its first result."""
        self.count += 1
        site = SourceLocation("<cell>", line, "<module>", 3)
        origin = BackwardOf("AddBackward0", 1) if backward else None
        node = Node(self.count, self.op(name), args, Provenance(site, module, origin))
        node.outputs = tuple(
            Value(node, i, shape, torch.float32, None) for i, shape in enumerate(shapes)
        )
        return node.outputs[0]  # type: ignore[return-value]


def perceptron() -> Graph:
    """Return two linear layers, dropout, a loss and the start of its backward pass."""
    b = Builder()
    x, w1, w2 = data(0, 8, 4), data(1, 6, 4), data(2, 2, 6)
    rng = Leaf("rng", 0, (2,), torch.int64)
    scale = Leaf("float", 0, (), torch.float64)
    t1 = b.add("aten.t.default", (w1,), (4, 6), module="fc1", line=2)
    hidden = b.add("aten.mm.default", (x, t1), (8, 6), module="fc1", line=2)
    active = b.add("aten.relu.default", (hidden,), (8, 6), line=3)
    kept = b.add("aten.bernoulli.p", (rng, active, 0.5, None), (8, 6), line=4)
    t2 = b.add("aten.t.default", (w2,), (6, 2), module="fc2", line=5)
    out = b.add("aten.mm.default", (kept, t2), (8, 2), module="fc2", line=5)
    loss = b.add("aten.mean.default", (out,), (), line=6)
    grad = b.add("aten.mul.Tensor", (loss, scale), (), line=7, backward=True)
    wide = b.add(
        "aten.expand.default", (grad, (8, 2), False), (8, 2), module="fc2", line=7,
        backward=True,
    )  # fmt: skip
    return Graph([loss, wide])


def chain(length: int) -> Graph:
    """Return ops of one line, each reading the one before."""
    b = Builder()
    value: Value = data(0, 4)
    for _ in range(length):
        value = b.add("aten.add.Tensor", (value, value, 1), (4,), line=3)
    return Graph([value])


def transformer(layers: int, lines: int = 8) -> Graph:
    """Return a training step: repeated modules, their backward pass and an optimizer."""
    b = Builder()
    x = b.add("aten.relu.default", (data(0, 8, 16),), (8, 16), module="embed")
    seen: list[tuple[str, Leaf, Value]] = []
    for layer in range(layers):
        for part, op in (("attention", "gelu"), ("output", "sigmoid")):
            for line in range(lines):
                weight = data(1 + len(seen), 16, 16)
                where: dict[str, Any] = {
                    "module": f"encoder.{layer}.{part}",
                    "line": 10 + line,
                }
                turned = b.add("aten.t.default", (weight,), (16, 16), **where)
                mixed = b.add("aten.mm.default", (x, turned), (8, 16), **where)
                if op == "gelu":
                    bent = b.add("aten.gelu.default", (mixed,), (8, 16), **where)
                else:
                    bent = b.add("aten.sigmoid.default", (mixed,), (8, 16), **where)
                x = b.add("aten.add.Tensor", (x, bent, 1), (8, 16), **where)
                seen.append((where["module"], weight, x))
    loss = b.add("aten.mean.default", (x,), (), line=50)
    grad = b.add(
        "aten.expand.default", (loss, (8, 16), False), (8, 16), line=51, backward=True
    )
    roots = [loss]
    for module, weight, value in reversed(seen):
        back: dict[str, Any] = {"module": module, "line": 51, "backward": True}
        turned = b.add("aten.t.default", (value,), (16, 8), **back)
        change = b.add("aten.mm.default", (turned, grad), (16, 16), **back)
        grad = b.add("aten.mm.default", (grad, weight), (8, 16), **back)
        square = b.add("aten.mul.Tensor", (change, change), (16, 16), line=60)
        root = b.add("aten.sqrt.default", (square,), (16, 16), line=60)
        step = b.add("aten.div.Tensor", (change, root), (16, 16), line=60)
        roots.append(b.add("aten.sub.Tensor", (weight, step, 1), (16, 16), line=60))
    return Graph(roots)
