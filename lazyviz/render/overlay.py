"""Overlays: one number for each op, shown as a shade, a bar and words on its box."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lazyviz.render.model import Box, DrawGraph

# Shares of the largest box from which on a box has the next shade.
_STEPS = (0.01, 0.05, 0.2, 0.5)
_STEP_NAMES = ("< 1 %", "< 5 %", "< 20 %", "< 50 %", "≥ 50 %")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """A quantity of which boxes have more or less, such as bytes.

    Attributes:
        title: What it is and where it comes from, for the legend.
        nodes: By node id.
        inputs: By the input's name in listings, such as `%p0`.
        words: How an amount is written.
    """

    title: str
    nodes: Mapping[int, float]
    inputs: Mapping[str, float] = field(default_factory=dict)
    words: Callable[[float], str] = text.size

    def paint(self, graph: DrawGraph) -> DrawGraph:
        """Return a folded drawing in shades; a folded box has the sum of what it holds."""
        amounts = [self._of(box) for box in graph.boxes]
        most = max((amount for amount in amounts if amount is not None), default=0.0)
        boxes = tuple(
            box
            if amount is None
            else replace(box, level=_level(amount, most), note=self.words(amount))
            for box, amount in zip(graph.boxes, amounts, strict=True)
        )
        shades = [(f"k{k}", name) for k, name in enumerate(_STEP_NAMES)]
        legend = (("", self.title), *shades, ("", f"of {self.words(most)}"))
        return replace(graph, boxes=boxes, legend=legend)

    def _of(self, box: Box) -> float | None:
        if not box.members:
            return self.inputs.get(box.op)
        known = [self.nodes[node] for node in box.members if node in self.nodes]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was found in some boxes: good or bad, nothing in between.

    Attributes:
        title: What was looked for, and where.
        nodes: By node id: words for what is bad, empty for what is good.
        inputs: Likewise by the input's name in listings.
        good, bad: Names of both for the legend.
        marks: Marks of boxes that make them bad.
    """

    title: str
    nodes: Mapping[int, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    good: str = "finite"
    bad: str = "NaN or infinite"
    marks: frozenset[str] = frozenset()

    def paint(self, graph: DrawGraph) -> DrawGraph:
        """Return a folded drawing in two shades; a box that holds a bad one is bad."""
        boxes = tuple(self._painted(box) for box in graph.boxes)
        legend = (
            ("", self.title),
            ("k0", self.good),
            ("k4", self.bad),
            ("kn", "not known"),
        )
        return replace(graph, boxes=boxes, legend=legend)

    def _painted(self, box: Box) -> Box:
        if self.marks.intersection(box.marks):
            return replace(box, level=4, note=self.bad)
        if box.members:
            known = [self.nodes[node] for node in box.members if node in self.nodes]
        else:
            known = [self.inputs[box.op]] if box.op in self.inputs else []
        bad = [words for words in known if words]
        if bad:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            return replace(box, level=4, note=f"{bad[0]}{more}")
        return replace(box, level=0, note=self.good) if known else box


Overlay = Amounts | Findings


def _level(amount: float, most: float) -> int:
    share = amount / most if most else 0.0
    return sum(share >= step for step in _STEPS)


def count_words(amount: float) -> str:
    """Return an amount of floating-point operations.

    Example:
        >>> count_words(0), count_words(1_500), count_words(2.5e9)
        ('0 FLOPs', '1.5 kFLOPs', '2.5 GFLOPs')
    """
    unit = ""
    for larger in ("k", "M", "G", "T", "P"):
        if round(amount, 1) < 1_000:  # noqa: PLR2004
            break
        amount, unit = amount / 1_000, larger
    return f"{amount:.3g} {unit}FLOPs"


def not_finite_words(nan: int, infinite: int) -> str:
    """Return what is not finite, empty for nothing.

    Example:
        >>> not_finite_words(3, 0), not_finite_words(1, 2), not_finite_words(0, 0)
        ('3 NaN', '1 NaN, 2 Inf', '')
    """
    parts = ((nan, "NaN"), (infinite, "Inf"))
    return ", ".join(f"{count:,} {name}" for count, name in parts if count)
