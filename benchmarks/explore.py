"""`python -m benchmarks explore`: how long large graphs take to open in the explorer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import lazyrt
import lazyviz
from benchmarks import machine
from benchmarks.report import Cell, Report, Table, ratio_goal

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

SUMMARY = "graphs of 10,000 nodes opened in the explorer, and a click on a small cone"

_BLOCKS = 1_250  # of eight ops each
_CHAIN = 10_000
_SECOND = 1.0
_CLICK_MS = 150.0
_COLUMNS = (
    "",
    "nodes",
    "inputs",
    "boxes",
    "open, CPU s",
    "wall s",
    "first click, ms",
    "later, ms",
)


def add_arguments(_parser: ArgumentParser) -> None:
    """It has no options."""


def run(_options: Namespace) -> Report:
    """Open two large graphs and click an op of each."""
    rows: list[list[Cell]] = [
        _row("1,250 blocks of a model", large_model()),
        _row("one chain", _chain()),
    ]
    opened = max(float(row[4] or 0) for row in rows)
    clicked = max(float(row[7] or 0) for row in rows)
    goals = [
        ratio_goal("10,000 nodes open, CPU", opened, _SECOND, " s"),
        ratio_goal(
            "click on an op of a kind that has run, without the browser",
            clicked,
            _CLICK_MS,
            " ms",
        ),
    ]
    table = Table("explorer", _COLUMNS, rows)
    return Report(f"explore: {SUMMARY}", machine.facts(), [table], goals)


def _row(name: str, tensor: torch.Tensor) -> list[Cell]:
    wall, cpu = time.perf_counter(), time.process_time()
    view = lazyviz.explore(tensor)
    view.explorer.drawing()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    graph = lazyrt.pending_graph(tensor)
    boxes = len(view.explorer.shown.boxes)
    near = [
        node for node in graph.nodes[:_FIRST_BLOCKS] if node.op is graph.nodes[1].op
    ]
    first, *others = [
        _timed(lambda node=node: _click(view, node.id))  # type: ignore[misc]
        for node in near[:4]
    ]
    sizes = len(graph.nodes), len(graph.parameters), boxes
    return [name, *sizes, cpu, wall, first, min(others)]


_FIRST_BLOCKS = 20  # nodes whose cones are small


def _click(view: Any, node: int) -> None:
    list(view.explorer.handle({"kind": "value", "node": node, "output": 0}))


def _timed(function: Callable[[], None]) -> float:
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        hidden = self.second(torch.relu(self.first(x)))
        out: torch.Tensor = self.norm(x + hidden * 0.5)
        return out


def large_model() -> torch.Tensor:
    """Return what 1,250 blocks make of one input, pending: 10,001 nodes."""
    model = nn.Sequential(*[_Block() for _ in range(_BLOCKS)]).to("lazyrt")
    x = torch.ones(2, 8, device="lazyrt")
    lazyrt.mark_step()
    with torch.no_grad():
        out: torch.Tensor = model(x).sum()
    return out


def _chain() -> torch.Tensor:
    x = torch.ones(4, device="lazyrt")
    for turn in range(_CHAIN):
        x = torch.sin(x) if turn % 3 else x + turn
    return x
