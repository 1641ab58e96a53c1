"""Labels as small integers that two graphs share, in full and as skeletons."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from lazygraph.graph import CONSTANT, Label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazygraph.graph import Graph

# Attributes of HLO and StableHLO that hold sizes or name what is called.
_SIZES = re.compile(
    r"(?:slice|padding|slice_sizes|window|dynamic_slice_sizes|sizes|calls|body|condition"
    r"|to_apply) ?= ?(?:\{[^{}]*\}|\[[^\[\]]*\]|[^,{}]*)|\[[\d:, ]*:[\d:, ]*\]"
)
_NUMBER = re.compile(r"\d+")


Numbers: TypeAlias = defaultdict[object, int]
"""Numbers things by first use, from 0 up."""


def numbers() -> Numbers:
    """Return a table that numbers what it is asked for, without a call of ours."""
    return defaultdict(count().__next__)


def full_labels(a: Graph, b: Graph) -> tuple[list[int], list[int]]:
    """Return a number for each node; equal numbers mean equal labels."""
    known = numbers()
    return _numbered(a, a.labels, known), _numbered(b, b.labels, known)


def skeleton_labels(a: Graph, b: Graph) -> tuple[list[int], list[int]]:
    """Return a number for each node that ignores sizes, dtypes, constants and callees."""
    known = numbers()
    first, second = ([skeleton(label) for label in each.labels] for each in (a, b))
    return _numbered(a, first, known), _numbered(b, second, known)


def blind_labels(a: Graph, b: Graph) -> tuple[list[int], list[int]]:
    """Return a number for each node that tells of what computes its result's type alone."""
    known = numbers()
    return _blind(a, known), _blind(b, known)


def _blind(graph: Graph, known: Numbers) -> list[int]:
    leaves = [known[label] for label in graph.labels]
    others = [known[label.type] for label in graph.labels]
    return [
        (others if operands else leaves)[kind]
        for kind, operands in zip(graph.kinds, graph.operands, strict=True)
    ]


def skeleton(label: Label) -> tuple[str, object, str]:
    """Return what is left of a label without sizes, dtypes and literals."""
    literal = "" if label.op == CONSTANT else label.literal
    # Attributes without names are the IR's arguments, in which any number may be a size.
    sizes = _SIZES if "=" in label.attrs else _NUMBER
    attrs = sizes.sub("", label.attrs)
    return label.op, _rank(label.type), f"{attrs}|{literal}"


def _rank(type_text: str) -> object:
    if type_text.startswith("("):
        return "tuple"
    sizes = type_text[type_text.find("[") + 1 : type_text.rfind("]")]
    return sizes.count(",") + 1 if sizes else 0


def _numbered(graph: Graph, things: Sequence[object], known: Numbers) -> list[int]:
    of_kind = [known[thing] for thing in things]
    return [of_kind[kind] for kind in graph.kinds]
