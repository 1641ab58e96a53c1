"""What a file is that holds no program: told by its first bytes."""

from __future__ import annotations

_UNPACK = "Unpack it first"
_AS_TEXT = "Print it as text"
# The first bytes, what has them, and what to do with it.
_KNOWN: tuple[tuple[bytes, str, str], ...] = (
    (b"\xff\xd8\xff", "a JPEG picture", ""),
    (b"\x89PNG\r\n", "a PNG picture", ""),
    (b"GIF8", "a GIF picture", ""),
    (b"%PDF-", "a PDF document", ""),
    (b"PK\x03\x04", "a ZIP archive, such as a checkpoint of torch.save", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "packed by zstd", f"{_UNPACK}, by `zstd -d`"),
    (b"\xfd7zXZ\0", "packed by xz", f"{_UNPACK}, by `xz -d`"),
    (b"BZh", "packed by bzip2", f"{_UNPACK}, by `bzip2 -d`"),
    (b"\x7fELF", "a compiled program or library", ""),
    (b"SQLite format 3\0", "an SQLite database", ""),
    (b"\x93NUMPY", "an array of numpy", ""),
    (b"\x89HDF\r\n", "an HDF5 file", ""),
    (b"PAR1", "a Parquet file", ""),
    (b"ML\xefR", "MLIR in its binary form", f"{_AS_TEXT}, by `stablehlo-opt`"),
    (b"BC\xc0\xde", "LLVM's binary code", ""),
)
_PAGE_STARTS = (b"<!doctype html", b"<html")
_PROBE = 64


def known_type(data: bytes) -> str:
    """Return what a file is instead of a program, and what to do; empty where nobody knows.

    Example:
        >>> known_type(b"GIF89a..."), known_type(b"HloModule m")
        ('a GIF picture.', '')
    """
    for start, what, advice in _KNOWN:
        if data.startswith(start):
            return f"{what}. {advice}." if advice else f"{what}."
    if data[:_PROBE].lstrip().lower().startswith(_PAGE_STARTS):
        return "a web page. Save the file itself, not the page that shows it."
    return ""


def wide_coding(data: bytes) -> str:
    """Return the coding of text in two bytes for each character; empty for other text.

    Example:
        >>> wide_coding("HloModule".encode("utf-16-le")), wide_coding(b"HloModule")
        ('utf-16-le', '')
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    start = data[:_PROBE]
    if len(start) >= 4:  # noqa: PLR2004 - two characters
        if not any(start[1::2]) and all(start[::2]):
            return "utf-16-le"
        if not any(start[::2]) and all(start[1::2]):
            return "utf-16-be"
    return ""
