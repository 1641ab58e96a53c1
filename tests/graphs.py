"""Seeded random programs on tensors: the same recipe can be run on any device, in any order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch

SHAPE = (3, 4)

UNARY: dict[str, Any] = {
    "neg": torch.neg,
    "tanh": torch.tanh,
    "abs": torch.abs,
    "sin": torch.sin,
    "relu": torch.relu,
    "square": torch.square,
    "softmax": lambda x: torch.softmax(x, -1),
    "flip": lambda x: x.flip(0),
    "half": lambda x: x * 0.5,
    "plus": lambda x: x + 1.25,
    "centre": lambda x: x - x.mean(1, keepdim=True),
    "cumsum": lambda x: x.cumsum(1) / 4,
    "turn": lambda x: (x.t() / 2).contiguous().view(SHAPE),
    "row": lambda x: x[1].expand(SHAPE),
    "int": lambda x: x.clamp(-50, 50).to(torch.int64).float(),
}
BINARY: dict[str, Any] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": lambda x, y: torch.mul(x, y).tanh(),
    "max": torch.maximum,
    "where": lambda x, y: torch.where(x > y, x, y / 2),
    "mm": lambda x, y: (x @ y.to(x.dtype).t()).tanh() @ y.to(x.dtype),
    "cat": lambda x, y: torch.cat([x[:1], y[1:]]),
    "atan2": torch.atan2,
}


@dataclass
class Program:
    """A random program: line `k` computes value `inputs + k` from earlier values.

    Attributes:
        seed: Decides everything.
        lines: (name, operands) of each op.
        results: Values that stay alive.
    """

    seed: int
    size: int = 12
    inputs: int = 3
    lines: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def __post_init__(self):
        rng = random.Random(self.seed)  # noqa: S311
        for number in range(self.size):
            known = range(self.inputs + number)
            if rng.random() < 0.5:
                self.lines.append((rng.choice(list(UNARY)), (rng.choice(known),)))
            else:
                operands = (rng.choice(known), rng.choice(known))
                self.lines.append((rng.choice(list(BINARY)), operands))
        last = range(self.inputs, self.inputs + self.size)
        self.results = sorted(rng.sample(last, min(4, self.size)))

    def data(self, device):
        """Return the inputs; all have one shape, so wiring alone tells them apart."""
        generator = torch.Generator().manual_seed(self.seed)
        return [
            torch.randn(SHAPE, generator=generator).to(device)
            for _ in range(self.inputs)
        ]

    def run(self, data, order=None):
        """Return the results; `order` is a permutation of the lines that keeps them valid."""
        values = dict(enumerate(data))
        for number in order if order is not None else range(len(self.lines)):
            name, operands = self.lines[number]
            table = UNARY if len(operands) == 1 else BINARY
            values[self.inputs + number] = table[name](*(values[k] for k in operands))
        return [values[k] for k in self.results]

    def shuffled(self, seed):
        """Return a random topological order of the lines."""
        rng = random.Random(seed)  # noqa: S311
        done = set(range(self.inputs))
        waiting = list(range(len(self.lines)))
        order = []
        while waiting:
            ready = [k for k in waiting if set(self.lines[k][1]) <= done]
            chosen = rng.choice(ready)
            waiting.remove(chosen)
            done.add(self.inputs + chosen)
            order.append(chosen)
        return order
