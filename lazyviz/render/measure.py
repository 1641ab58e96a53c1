"""Sizes of boxes: fixed by us, so that a layout depends on no font of the machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lazyviz.render.model import BACKWARD, path_text

if TYPE_CHECKING:
    from collections.abc import Container

    from lazyviz.render.model import Box, DrawGraph

LABEL_CHAR = 6.7
DETAIL_CHAR = 6.1
LINE = 13.0
PAD_X = 10.0
PAD_Y = 6.0
_MIN_WIDTH = 44.0
_MAX_LABEL = 30
_MAX_DETAIL = 32
_MIN_NAME = 8
MAX_FRAME_DEPTH = 4


def label_text(box: Box) -> str:
    """Return the first line of a box, cut to fit, with its repetition."""
    label = _fitted(box)
    return f"{label} ×{box.count}" if box.count > 1 else label


def _fitted(box: Box) -> str:
    """Return a label of limited length; of a path or a long name the end says most."""
    if box.kind in {"group", "parameter"}:
        return clip_start(box.label, _MAX_LABEL)
    name, equals, op = box.label.rpartition(" = ")
    room = _MAX_LABEL - len(equals) - len(op)
    if room < _MIN_NAME:
        return clip(box.label, _MAX_LABEL)
    return f"{clip_start(name, room)}{equals}{op}"


def detail_text(box: Box) -> str:
    """Return the second line of a box, cut to fit: its type, then marks and the overlay.

    What is hidden around it comes last, as in `… 3`.
    """
    hidden = f"… {box.hidden}" if box.hidden else ""
    parts = (clip(box.detail, _MAX_DETAIL), *box.marks, box.note, hidden)
    return " · ".join([part for part in parts if part])


def clip(text: str, length: int) -> str:
    """Return one line of at most `length` characters.

    Example:
        >>> clip("encoder.layer.0", 20), clip("encoder.layer.0", 8)
        ('encoder.layer.0', 'encoder…')
    """
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def clip_start(text: str, length: int) -> str:
    """Return one line of at most `length` characters, the end of the text.

    Example:
        >>> clip_start("encoder.layer.0", 20), clip_start("encoder.layer.0", 8)
        ('encoder.layer.0', '…layer.0')
    """
    line = " ".join(text.split())
    return line if len(line) <= length else "…" + line[1 - length :]


def box_size(box: Box) -> tuple[float, float]:
    """Return width and height of a box in pixels."""
    detail = detail_text(box)
    width = max(len(label_text(box)) * LABEL_CHAR, len(detail) * DETAIL_CHAR)
    lines = 2 if detail else 1
    return max(_MIN_WIDTH, width + 2 * PAD_X), lines * LINE + 2 * PAD_Y


def frame_paths(graph: DrawGraph) -> list[tuple[str, ...]]:
    """Return the module paths that are drawn as frames, in the order of their numbers."""
    depths = frame_depths(graph)
    return [path for path in depths if depths[path] < MAX_FRAME_DEPTH]


def named_in_frames(graph: DrawGraph) -> DrawGraph:
    """Return the drawing with folded modules called as in the frame round them.

    In the frame of `encoder.layer.0` the module `encoder.layer.0.attention` is `attention`.
    """
    frames = set(frame_paths(graph))
    boxes = tuple(
        replace(box, label=title_within(box.path, frames))
        if box.kind == "group" and box.label == path_text(box.path)
        else box
        for box in graph.boxes
    )
    return replace(graph, boxes=boxes)


def title_within(path: tuple[str, ...], frames: Container[tuple[str, ...]]) -> str:
    """Return what a module is called inside the innermost of the frames round it."""
    for depth in range(len(path) - 1, 0, -1):
        if path[:depth] in frames:
            return path_text(path[depth:])
    return path_text(path)


def frame_depths(graph: DrawGraph) -> dict[tuple[str, ...], int]:
    """Return the module paths that get a frame, with how deep they are nested.

    A path gets one when it holds more than one box and more than its only child holds, and
    when it is not the whole drawing. Colour tells what is backward, so the backward pass as
    a whole gets none.
    """
    held: dict[tuple[str, ...], int] = {}
    for box in graph.boxes:
        for depth in range(1, len(box.path) + 1):
            held[box.path[:depth]] = held.get(box.path[:depth], 0) + 1
    inner = _largest_children(held)
    chosen = [
        path
        for path, count in held.items()
        if 1 < count < len(graph.boxes)
        and inner.get(path, 0) < count
        and path != (BACKWARD,)
    ]
    kept = set(chosen)
    return {
        path: sum(path[:depth] in kept for depth in range(1, len(path)))
        for path in chosen
    }


def _largest_children(held: dict[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
    largest: dict[tuple[str, ...], int] = {}
    for path, count in held.items():
        largest[path[:-1]] = max(largest.get(path[:-1], 0), count)
    return largest
