"""What the bytes of a file are: an HLO proto, which XLA turns to text, or no program."""

from __future__ import annotations

import subprocess
import sys

from lazygraph.errors import HloError

_PROBE = 64


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


# HLO protos to text, by XLA itself, in a process of its own.
#
# XLA ends the process that hands it some kinds of broken proto; ours must survive those.

_TIMEOUT_S = 300
_REFUSED, _NO_JAXLIB = 3, 4
_LENGTH_DELIMITED_FIELD_1 = 0x0A
# A proto of XLA's dumps, HloProto, holds the module in its first field.
_CHILD = """
import sys

try:
    from jaxlib import _hlo
except ImportError as error:
    sys.stderr.write(f"\\x00{error}")
    sys.exit(4)

data = sys.stdin.buffer.read()
options = _hlo.HloPrintOptions()
options.print_large_constants = True
for part in (data, data[int(sys.argv[1]):int(sys.argv[2])]):
    try:
        module = _hlo.HloModule.from_serialized_hlo_module_proto(part)
        text = module.to_string(options)
    except Exception as error:
        failure = error
        continue
    if module.computations():
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.exit(0)
sys.stderr.write(f"\\x00{failure}")
sys.exit(3)
"""


def text_of_proto(data: bytes, source: str = "") -> str:
    """Return the HLO text of a serialised HloModuleProto or HloProto.

    Raises:
        HloError: It is neither, or is cut off, or there is no jaxlib to read it.
    """
    start, end = _first_field(data)
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and text
            [sys.executable, "-c", _CHILD, str(start), str(end)],
            input=data,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HloError(
            f"{source or 'the proto'} took XLA more than {_TIMEOUT_S} s. Dump it as text."
        ) from None
    if done.returncode == 0:
        return done.stdout.decode("utf-8", "replace")
    reason = done.stderr.decode("utf-8", "replace").rpartition("\x00")[2].strip()
    first = reason.split("\n")[0][:200]
    if done.returncode == _NO_JAXLIB:
        raise HloError(
            f"{source or 'the data'} is no text, and protos are read by jaxlib, which cannot be "
            f"imported ({first}). Install jaxlib, or give HLO text."
        )
    if done.returncode != _REFUSED:
        first = "XLA gave up"
    raise HloError(
        f"{source or 'the data'} is no HLO proto that XLA reads ({first}). Give a serialised "
        "HloModuleProto or HloProto, or HLO text."
    )


def looks_like_proto(data: bytes) -> bool:
    """Return whether bytes may be a proto: they are no text."""
    if data[:1] != b"\x0a":
        return False
    try:
        return "\0" in data.decode("utf-8")
    except UnicodeDecodeError:
        return True


def _first_field(data: bytes) -> tuple[int, int]:
    """Return where the first field's bytes start and end."""
    if not data or data[0] != _LENGTH_DELIMITED_FIELD_1:
        return 0, 0
    length = shift = 0
    for at in range(1, min(len(data), 11)):
        length |= (data[at] & 0x7F) << shift
        shift += 7
        if data[at] < 0x80:  # noqa: PLR2004 - the last byte of a varint
            return at + 1, at + 1 + length
    return 0, 0
