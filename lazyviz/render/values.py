"""What was seen of a tensor: statistics, a histogram, a picture, the numbers."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import numpy as np

from lazyviz.doc import Code, Doc, Drawn, Fold, Note, Part, Table
from lazyviz.render import html
from lazyviz.render.html import Fragment, markup
from lazyviz.render.text import literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyrt.tools import Look

    Array = np.ndarray[Any, Any]

MAX_TEXT = 4_000
MAX_PYTHON_NUMBERS = 256

_HISTOGRAM = (220, 60)
_SHOWN_PIXELS = 192
_SCALE_STEPS, _SCALE_SIZE = 32, (96, 8)
_MIN_SIDE = 2
_CHANNELS = (1, 3)
_MIN_IMAGE = 8  # rows and columns of an image; a matrix of 3 rows is none
_PLANE = 2
# Low, middle and high: blue, white and orange are told apart by every kind of sight.
_LOW, _MIDDLE, _HIGH = (0, 90, 181), (247, 247, 247), (220, 90, 0)
_NOT_FINITE = (204, 0, 153)

_MAX_SHOWN = 40_000
_MAX_SHARDS = 16  # rows and columns
_OPEN_BELOW = 65  # elements: so few are read at a glance
_MIN_PICTURED = 16


def bars_svg(counts: Sequence[int], start: float, end: float) -> str:
    """Return a histogram whose equal bins have these counts, from `start` to `end`."""
    width, height = _HISTOGRAM
    step = width / len(counts)
    tallest = max(counts)
    bars = "".join(
        f"M{k * step:.1f} {height}v{-height * count / tallest:.1f}"
        f"h{step - 0.6:.1f}V{height}z"
        for k, count in enumerate(counts)
        if count
    )
    low, high = f"{start:.4g}", f"{end:.4g}"
    label = f"histogram from {low} to {high}, {int(tallest):,} at most in a bar"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lzh" role="img" '
        f'width="{width}" height="{height + 14}" aria-label="{label}">'
        f'<path d="{bars}" fill="#5b86d6"/>'
        f'<text x="0" y="{height + 12}">{low}</text>'
        f'<text x="{width}" y="{height + 12}" text-anchor="end">{high}</text></svg>'
    )


def picture_axes(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the axes of a picture, rows and columns last, channels before; empty for none.

    One or three channels stand before rows and columns or behind them, if rows and columns are
    at least eight; everything else of two axes or more is a heat map of the last two.

    Example:
        >>> picture_axes((3, 32, 32)), picture_axes((16, 32, 32, 3)), picture_axes((4, 8))
        ((0, 1, 2), (3, 1, 2), (0, 1))
        >>> picture_axes((8, 1, 28, 28)), picture_axes((3, 4, 4)), picture_axes((5,))
        ((1, 2, 3), (1, 2), ())
    """
    count = len(shape)
    if count < _PLANE or 0 in shape:
        return ()
    if count > _PLANE:
        if shape[-3] in _CHANNELS and min(shape[-2:]) >= _MIN_IMAGE:
            return count - 3, count - 2, count - 1
        if shape[-1] in _CHANNELS and min(shape[-3:-1]) >= _MIN_IMAGE:
            return count - 1, count - 3, count - 2
    return (count - 2, count - 1) if min(shape[-2:]) >= _MIN_SIDE else ()


def drawn_picture(planes: Array, sizes: tuple[int, int]) -> str:
    """Return planes of numbers as a picture: one as a heat map, three channels as an image.

    A heat map has its numbers, so that a page's script can tell the value under the pointer. `sizes`
    are rows and columns of what it was made from.
    """
    if planes.shape[:-_PLANE] == (1,):
        planes = planes[0]
    if planes.ndim > _PLANE:
        what, pixels = "image", _rgb(planes)
    else:
        what, pixels = "heat map", _coloured(planes)
    rows, columns = pixels.shape[:2]
    scale = max(1, _SHOWN_PIXELS // max(rows, columns))
    words = f"{what} of {sizes[0]:,} rows and {sizes[1]:,} columns"
    shown = _image(pixels, words, columns * scale, rows * scale)
    if planes.ndim > _PLANE:
        return shown
    numbers = b64encode(planes.astype("<f4").tobytes()).decode()
    data = f'data-numbers="{numbers}" data-columns="{columns}"'
    is_exact = int(planes.shape == tuple(sizes))
    shown = shown.replace("<img ", f'<img {data} data-exact="{is_exact}" ', 1)
    return f"<div>{shown}{_scale(planes)}</div>"


def _image(pixels: Array, words: str, width: int, height: int) -> str:
    data = b64encode(_png(pixels)).decode()
    return (
        f'<img class="lzp" alt="{words}" title="{words}" width="{width}" height="{height}" '
        f'style="image-rendering:pixelated" src="data:image/png;base64,{data}">'
    )


def _scale(plane: Array) -> str:
    """Return which number has which colour in a heat map."""
    low, high = _range(plane)
    if low == high:
        return ""
    steps = np.linspace(low, high, _SCALE_STEPS)[None, :]
    bar = _image(_coloured(steps), f"from {low:.4g} to {high:.4g}", *_SCALE_SIZE)
    kinds = "" if np.isfinite(plane).all() else ", not finite: magenta"
    return f'<div style="font-size:11px;opacity:.75">{low:.4g} {bar} {high:.4g}{kinds}</div>'


def _range(plane: Array) -> tuple[float, float]:
    """Return the numbers at the ends of a heat map's scale: as far below zero as above."""
    known = plane[np.isfinite(plane)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
    if low < 0 < high:
        reach = max(-low, high)
        low, high = -reach, reach
    return float(low), float(high)


def _coloured(plane: Array) -> Array:
    finite = np.isfinite(plane)
    low, high = _range(plane)
    span = float(high - low) or 1.0
    place = np.clip((np.where(finite, plane, low) - low) / span, 0, 1)[..., None]
    ends = [np.array(colour, float) for colour in (_LOW, _MIDDLE, _HIGH)]
    below = ends[0] + (ends[1] - ends[0]) * place * 2
    above = ends[1] + (ends[2] - ends[1]) * (place * 2 - 1)
    colours = np.where(place < 0.5, below, above)  # noqa: PLR2004 - the middle
    colours[~finite] = _NOT_FINITE
    pixels: Array = colours.round().astype(np.uint8)
    return pixels


def _rgb(planes: Array) -> Array:
    finite = np.isfinite(planes)
    known = planes[finite]
    low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
    span = float(high - low) or 1.0
    colours = (np.where(finite, planes, low) - low) / span * 255
    pixels = np.moveaxis(colours, 0, -1).round().astype(np.uint8)
    pixels[~finite.all(axis=0)] = _NOT_FINITE
    return np.ascontiguousarray(pixels)


def _png(pixels: Array) -> bytes:
    """Return an image of 8-bit red, green and blue as a PNG file."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    found = b"\x89PNG\r\n\x1a\n"
    chunks = (b"IHDR" + header, b"IDAT" + zlib.compress(rows), b"IEND")
    for each in chunks:
        found += struct.pack(">I", len(each) - 4) + each
        found += struct.pack(">I", zlib.crc32(each))
    return found


def look_view(look: Look, facts: str, chooser: str = "", at: Sequence[int] = ()) -> str:
    """Return what was seen of a tensor as HTML, of a large one statistics and a part.

    The look has a picture for `picture_axes` of the tensor's shape. Of a whole tensor the leading axes
    are taken at the index that was asked for.
    """
    summary, value = look.summary, look.value
    parts = [f'<p class="lzf">{marked(facts)}</p>']
    pictures = []
    if summary.counts:
        pictures.append(bars_svg(summary.counts, summary.low, summary.high))
    pictures += _picture_of(look)
    if pictures:
        parts.append(f'<div class="lzw">{"".join(pictures)}</div>')
    parts.append(chooser)
    lead = max(value.dim() - _PLANE, 0)
    if not look.is_whole:
        value = value[(0,) * lead]
    elif at and lead:
        place = [*at, *(0 for _ in range(lead))][:lead]
        sizes_ = value.shape
        value = value[tuple(min(k, n - 1) for k, n in zip(place, sizes_, strict=False))]
    title = "values" if look.is_whole and not (at and lead) else "values of this part"
    shown = html.pre(_shortened(str(value), MAX_TEXT))
    parts.append(html.folded(title, shown, is_open=value.numel() <= 16))  # noqa: PLR2004
    if value.numel() <= MAX_PYTHON_NUMBERS:
        written = html.pre(_shortened(as_python(value), MAX_TEXT))
        parts.append(html.folded(f"{title} as Python", written))
    return "".join(parts)


def _picture_of(look: Look) -> list[str]:
    shape = look.summary.shape
    axes = picture_axes(shape)
    if look.picture is None or not axes:
        return []
    sizes = shape[axes[-2]], shape[axes[-1]]
    return [drawn_picture(look.picture.numpy(), sizes)]


def marked(facts: str) -> str:
    """Return a line of statistics as HTML, what is not finite in bold with a warning sign."""
    parts = facts.split(" · ")
    return " · ".join(
        f'<b class="lzn">⚠ {markup(part)}</b>'
        if part.endswith((" NaN", " Inf", " -Inf"))
        else markup(part)
        for part in parts
    )


def as_python(value: Any) -> str:
    """Return an expression that makes a CPU tensor again.

    Example:
        >>> import torch
        >>> as_python(torch.tensor([1, 2]))
        'torch.tensor([1, 2], dtype=torch.int64)'
    """
    shape = tuple(value.shape)
    text = literal(value.detach().tolist())
    made = f"torch.tensor({text}, dtype={value.dtype})"
    return made if value.numel() else f"{made}.reshape({shape})"


def shards_table(shards: Sequence[Any], spec: object) -> Doc:
    """Return where a tensor's parts are: its split dimensions as rows and columns, devices in them.

    Example:
        >>> from types import SimpleNamespace as Shard
        >>> parts = [Shard(bounds=((k, k + 2), (0, 4)), devices=(k, k + 1)) for k in (0, 2)]
        >>> print(shards_table(parts, ("data", None)))
        split ('data', None) in 2 parts; the devices that have each
        dim 0    0:2   2:4
        -------  ----  ----
        devices  0, 1  2, 3
    """
    dims = [
        dim
        for dim in range(len(shards[0].bounds))
        if len({each.bounds[dim] for each in shards}) > 1
    ]
    across = dims[-1:]
    down = dims[:-1]

    def at(shard: Any, chosen: Sequence[int]) -> str:
        return ", ".join("{}:{}".format(*shard.bounds[dim]) for dim in chosen)

    columns = list(dict.fromkeys(at(each, across) for each in shards))[:_MAX_SHARDS]
    rows: dict[str, dict[str, str]] = {}
    for each in shards:
        cell = ", ".join(map(str, each.devices))
        rows.setdefault(at(each, down), {})[at(each, across)] = cell
    names = [" \\ ".join(", ".join(f"dim {d}" for d in g) for g in (down, across) if g)]
    body = [
        [name or "devices", *(row[column] for column in columns)]
        for name, row in list(rows.items())[:_MAX_SHARDS]
    ]
    more = "" if len(columns) * len(body) == len(shards) else "; not all are shown"
    head = f"split {spec} in {len(shards)} parts; the devices that have each{more}"
    return Doc([Note(head), Table([*names, *columns], body)])


def tensor_doc(
    facts: str,
    text: str,
    look: Look,
    plan: str,
    listing: str = "",
    shards: Doc | None = None,
) -> Doc:
    """Return the display of a tensor: one line of statistics; values, picture and plan folded.

    The plan is a line about the op that makes it, or made it; the listing has the ops that are pending
    for it.
    """
    is_small = look.summary.elements < _OPEN_BELOW
    values = Fold(Fragment(marked(facts)), [Code(_shortened(text))], is_open=is_small)
    pictures = _pictures(look)
    picture = Fold("histogram and picture", [Drawn("", lambda: pictures)])
    made = Fold(plan, [Code(_shortened(listing))]) if listing else Note(plan)
    parts: list[Part] = [values, *([picture] if pictures else []), made]
    parts += [shards] if shards is not None else []
    return Doc(parts, css_class="lazyviz-tensor")


def _pictures(look: Look) -> str:
    """Return a histogram, and a picture of the last axes where there are two."""
    summary = look.summary
    if summary.elements < _MIN_PICTURED:
        return ""
    parts = []
    if any(summary.counts):
        bars = bars_svg(summary.counts, summary.low, summary.high)
        # Inside an image no style of the page holds: a grey that both themes show.
        bars = bars.replace("<text ", '<text fill="#7e8a9a" font-size="10" ')
        parts.append(html.picture(bars, "histogram"))
    parts += _picture_of(look)
    return f"<div>{' '.join(parts)}</div>" if parts else ""


def _shortened(text: str, most: int = _MAX_SHOWN) -> str:
    return text if len(text) <= most else f"{text[:most]} …"
