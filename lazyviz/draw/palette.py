"""Colours of drawings and of the parts of a cell's time, and overlays: one shade for each op."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from lazyviz.render import text
from lazyviz.render.html import static

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lazyviz.draw.model import Box, Change, DrawGraph, Kind

# The parts of a cell's time, in the order in which they are drawn.
PHASE_MEANINGS = {
    "python": "the program's own time, in which no op was recorded",
    "dynamo": "torch.compile: capturing functions, making their graphs",
    "trace": "recording ops",
    "dispatch": "barriers beside their waits: collecting the graph, handing it over",
    "lower": "waiting while the graph became StableHLO",
    "compile": "waiting for XLA, or for an executable from disk",
    "peek": "computing values to show them",
    "transfer": "copying between host and device",
    "fallback": "ops without a lowering, on the CPU",
    "execute": "waiting for the device",
}
PHASES = tuple(PHASE_MEANINGS)
PHASE_COLOURS = {
    "python": "#c3cad4",
    "dynamo": "#a6d98c",
    "trace": "#8b97a8",
    "dispatch": "#5d6878",
    "lower": "#e8c670",
    "compile": "#d99a3d",
    "peek": "#dc9aea",
    "transfer": "#75bdb1",
    "fallback": "#d17f62",
    "execute": "#5b86d6",
}

_T = TypeVar("_T", float, str)
LEVELS = 5  # shades of an overlay

KINDS: dict[Kind, tuple[str, str]] = {
    "parameter": ("p", "input"),
    "constant": ("c", "number"),
    "random": ("r", "random"),
    "op": ("o", "op"),
    "backward": ("b", "backward"),
    "group": ("g", "folded"),
}
CHANGES: dict[Change, tuple[str, str]] = {
    "added": ("da", "added"),
    "removed": ("dr", "removed"),
    "changed": ("dc", "changed"),
    "rewired": ("dw", "reads another"),
    "same": ("ds", "the same"),
}
FOLLOWS = ("df", "follows from it")
# Fill, line and text of each kind.
LIGHT = {
    "o": ("#edf3fc", "#88a5d1", "#1d3557"),
    "b": ("#e8f6ee", "#7fbd9f", "#174a33"),
    "r": ("#f4edfb", "#b294d6", "#43276b"),
    "p": ("#fdf4e1", "#d8b468", "#5a4108"),
    "c": ("#f3f4f6", "#b4bac4", "#444c58"),
    "g": ("#dce7f8", "#6487c0", "#142c50"),
    "gb": ("#d3ecdd", "#5fa583", "#10382a"),
}
DARK = {
    "o": ("#1f2b40", "#56759f", "#d8e4f7"),
    "b": ("#17352a", "#4a8f72", "#cdeedd"),
    "r": ("#2f2342", "#8465ae", "#e6d9f8"),
    "p": ("#3a2e14", "#a0813a", "#f6e4b8"),
    "c": ("#2a2e35", "#6b7380", "#d6dae1"),
    "g": ("#283b5b", "#7d9dd0", "#e6eefb"),
    "gb": ("#1f4636", "#6bb391", "#dcf5e8"),
}
# Of each change in a diff; told apart without colours too, by the mark and the line.
CHANGES_LIGHT = {
    "da": ("#56B4E9", "#0072B2", "#111111"),
    "dr": ("#F2B48C", "#D55E00", "#111111"),
    "dc": ("#F5E94B", "#222222", "#111111"),
    "dw": ("#FFFFFF", "#222222", "#111111"),
    "ds": ("#FFFFFF", "#9A9A9A", "#111111"),
    "df": ("#E0DDC0", "#A39C62", "#222222"),
}
# White paper would shine, and dark lines would not be seen.
CHANGES_DARK = CHANGES_LIGHT | {
    "da": ("#56B4E9", "#56B4E9", "#111111"),
    "dc": ("#F5E94B", "#E3E7EE", "#111111"),
    "dw": ("#23282F", "#E3E7EE", "#E3E7EE"),
    "ds": ("#23282F", "#9A9A9A", "#E3E7EE"),
    "df": ("#34331F", "#8F8955", "#E3E7EE"),
}
ROOT = ("#c2456b", "#ef7fa2")  # light, dark
SELECTED = ("#0b5fd0", "#7cc0ff")
QUIET = ("#5f6b7a", "#9aa5b4")
# Shades of an overlay, little to most, then what it says nothing of: one hue, from light to
# dark (dark to light on dark paper), which every kind of sight can order.
SHADES_LIGHT = {
    "k0": ("#f1f6fb", "#a9bfd6", "#1d3557"),
    "k1": ("#cfe1f2", "#8fb0d0", "#1d3557"),
    "k2": ("#93bfe3", "#5c92c2", "#10263f"),
    "k3": ("#2c69a6", "#1d4f82", "#ffffff"),
    "k4": ("#0f4377", "#0a2f55", "#ffffff"),
    "kn": ("#f5f6f7", "#c6cbd2", "#4a525d"),
}
SHADES_DARK = {
    "k0": ("#1b2530", "#3d5268", "#d3e2f1"),
    "k1": ("#1f3c57", "#416c92", "#dcebf9"),
    "k2": ("#28608f", "#4f8dc0", "#ffffff"),
    "k3": ("#5fa6da", "#8cc2ea", "#06131f"),
    "k4": ("#c3e2fa", "#e6f4ff", "#06131f"),
    "kn": ("#24282e", "#4d545e", "#a6aeb9"),
}


def stylesheet(*, inline: bool = False, diff: bool = False) -> str:
    """Return the CSS of drawings; in a diff boxes have the colours of changes, not of kinds.

    Inline, they follow Jupyter's and VS Code's theme too.
    """
    colours = CHANGES_LIGHT if diff else LIGHT | SHADES_LIGHT
    light = _variables(colours, 0)
    dark = _variables(CHANGES_DARK if diff else DARK | SHADES_DARK, 1)
    themes = f".lzv{{{light}}}@media(prefers-color-scheme:dark){{.lzv{{{dark}}}}}"
    if inline:
        themes += (
            f"[data-jp-theme-light=true] .lzv,.vscode-light .lzv{{{light}}}"
            f"[data-jp-theme-light=false] .lzv,.vscode-dark .lzv{{{dark}}}"
        )
    kinds = "".join(
        f".lzv .{key}{{--f:var(--{key}f);--s:var(--{key}s);--t:var(--{key}t)}}"
        for key in colours
    )
    rules = static("drawing.css") + (static("drawing_diff.css") if diff else "")
    return themes + kinds + rules


def _variables(colours: dict[str, tuple[str, str, str]], theme: int) -> str:
    each = (
        f"--{key}f:{fill};--{key}s:{line};--{key}t:{ink};"
        for key, (fill, line, ink) in colours.items()
    )
    others = {"root": ROOT, "sel": SELECTED, "quiet": QUIET}
    return "".join(each) + ";".join(f"--{k}:{v[theme]}" for k, v in others.items())


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
        known = [_known(self.nodes, self.inputs, box) for box in graph.boxes]
        amounts = [sum(each) if each else None for each in known]
        most = max((amount for amount in amounts if amount is not None), default=0.0)
        boxes = list(graph.boxes)
        for k, amount in enumerate(amounts):
            if amount is not None:
                share = amount / most if most else 0.0
                level = sum(share >= step for step in _STEPS)
                boxes[k] = replace(boxes[k], level=level, note=self.words(amount))
        shades = [(f"k{k}", name) for k, name in enumerate(_STEP_NAMES)]
        legend = (
            ("", self.title),
            *shades,
            ("", f"of the largest, {self.words(most)}"),
        )
        return replace(graph, boxes=tuple(boxes), legend=legend)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was found in some boxes: good or bad, nothing in between.

    Attributes:
        title: What was looked for, and where.
        nodes: By node id: words for what is bad, empty for what is good.
        inputs: Likewise by the input's name in listings.
        good, bad: Names of both for the legend.
    """

    title: str
    nodes: Mapping[int, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    good: str = "finite"
    bad: str = "NaN or infinite"

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
        known = _known(self.nodes, self.inputs, box)
        bad = [words for words in known if words]
        if bad:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            return replace(box, level=4, note=f"{bad[0]}{more}")
        return replace(box, level=0, note=self.good) if known else box


Overlay = Amounts | Findings


def _known(nodes: Mapping[int, _T], inputs: Mapping[str, _T], box: Box) -> list[_T]:
    """Return what an overlay has for an input, or for each node that a box stands for."""
    if not box.members:
        return [inputs[box.op]] if box.op in inputs else []
    return [nodes[node] for node in box.members if node in nodes]


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
