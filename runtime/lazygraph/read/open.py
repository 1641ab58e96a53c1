"""Whatever holds a program, opened: texts, files, protos, excerpts, graphs of the runtime."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lazygraph.graph import Graph, HloError, HloSyntaxError, MisplacedError, gc_paused
from lazygraph.normalize import graph_of_module
from lazygraph.read import lazy_ir, torch_ir
from lazygraph.read.hlo import modules
from lazygraph.read.hlo_module import Computation, Form, HloModule
from lazygraph.read.lazy_ir import from_ir, from_snapshot
from lazygraph.read.stablehlo import MlirModule

if TYPE_CHECKING:
    from collections.abc import Sequence


# About ten million instructions: beyond that something else than a dump was given.
MAX_BYTES = 1 << 30
_MAX_PATH = 4_096
_SHOWN_CHARACTERS = 300

# What gives the text of a lowered or compiled program: jax's and ours, XlaComputation, HloModule.
_TEXTS = ("as_text", "as_hlo_text", "to_string")
_GZIP = b"\x1f\x8b"
_HLO = re.compile(r"^HloModule\b", re.MULTILINE)
_INDENTED = re.compile(r"^([ \t]+)HloModule\b", re.MULTILINE)
_MLIR = re.compile(r'^\s*"?(?:builtin\.)?(?:module\b|"?func\.func\b)', re.MULTILINE)


@gc_paused
def parse(text: str | bytes, *, module: str | int = "", source: str = "") -> Graph:
    """Return the graph of a program in text form, in normal form.

    Args:
        text: HLO text before or after optimisation, StableHLO text, the IR of lazyrt or
            torch_xla, each with whatever a log has around it; or a serialised HLO proto.
        module: Name or position of the module to read, when the text holds several.
        source: Name of the file, for errors.

    Raises:
        HloSyntaxError: The text is none of these, or is cut off, with line and column.
        HloError: It holds several modules, or calls what it does not define.
    """
    _check_size(len(text), source or "the text")
    if isinstance(text, bytes):
        text = text_of_bytes(text, source)
    text = undrawn(readable(text))
    try:
        return _parsed(torch_ir.without_dot(text), module)
    except HloSyntaxError as error:
        error.source = source
        raise
    except MisplacedError as error:
        # In its line stands the name of what is wrong.
        line = text.split("\n", error.line)[error.line - 1] if error.line else ""
        column = line.find(error.name) + 1 or 1
        raise HloSyntaxError(error.message, error.line, column, source) from error
    except HloError as error:
        raise _at_source(error, source) from error
    except ValueError as error:  # Python reads no number of more than 4,300 digits
        what = f"a number in the text cannot be read: {error}. The dump was edited; save it again."
        raise _at_source(HloError(what), source) from error


def text_of_bytes(data: bytes, source: str = "") -> str | bytes:
    """Return the text in a file's bytes: unpacked, and that of a proto."""
    data = unpacked(data, source)
    if looks_like_proto(data):
        return text_of_proto(data, source)
    if b"\0" in data and not is_wide(data):
        start = " ".join(f"{byte:02x}" for byte in data[:8])
        raise HloSyntaxError(
            f"it holds bytes that no text has, and begins with {start}. Give a dump of HLO or "
            "StableHLO, as text or as a proto.",
            source=source,
        )
    return data


def unpacked(data: bytes, source: str) -> bytes:
    """Return a file's bytes as they were before gzip packed them, if it did."""
    if not data.startswith(_GZIP):
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _at_source(
            HloError(f"it cannot be unpacked: {error}. Save the dump again."), source
        ) from error
    _check_size(len(data), source or "the unpacked text")
    return data


@gc_paused
def parse_all(text: str) -> list[Graph]:
    """Return the graphs of all programs in a text, in its order."""
    text = torch_ir.without_dot(undrawn(readable(text)))
    if _HLO.search(text):
        return [graph_of_module(each) for each in modules(text)]
    if torch_ir.START.search(text):
        return torch_ir.graphs(text)
    return [parse(text)]


def _parsed(text: str, module: str | int) -> Graph:
    if _HLO.search(text):
        return graph_of_module(_chosen(modules(text), module))
    if torch_ir.START.search(text):
        return _chosen(torch_ir.graphs(text), module)
    if _MLIR.search(text):
        return MlirModule(text).graph()
    if lazy_ir.START.match(text):
        return lazy_ir.graph(text)
    raise HloSyntaxError(_no_program(text))


def readable(text: str | bytes) -> str:
    r"""Return a file's text as it was meant: decoded, without a mark, its lines ended by `\n`.

    Example:
        >>> readable("HloModule m\r}")
        'HloModule m\n}'
    """
    if isinstance(text, bytes):
        # Some shells and editors save two bytes for each character.
        text = text.decode("utf-16" if is_wide(text) else "utf-8", "replace")
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _unindented(text)


def _unindented(text: str) -> str:
    """Return HLO text as XLA writes it where it is indented, as in a program's source."""
    indent = None if _HLO.search(text) else _INDENTED.search(text)
    if indent is None:
        return text
    return f"\n{text}".replace(f"\n{indent[1]}", "\n")[1:]


def undrawn(text: str) -> str:
    r"""Return the IR in a drawing that the runtime dumped, on the same lines; else the text.

    Example:
        >>> undrawn('digraph "graph.1" {\n  v0 [label="x"];\n}\n// return\n')
        '\n\n\nreturn\n'
    """
    if not text.startswith('digraph "graph.'):
        return text
    lines = [
        line.removeprefix("// ") if line.startswith("// ") else ""
        for line in text.split("\n")
    ]
    return "\n".join(lines) if any(lines) else text


def _at_source(error: HloError, source: str) -> HloError:
    return HloError(f"{source}: {error}") if source else error


def _check_size(size: int, what: str) -> None:
    if size > MAX_BYTES:
        raise HloError(
            f"{what} has {size:,} bytes, more than {MAX_BYTES:,}. No dump is as large; give "
            "one module."
        )


def read(path: str | Path, *, module: str | int = "") -> Graph:
    """Return the graph in a file.

    Raises:
        HloError: There is no such file, or it holds no program.
    """
    return parse(_bytes_of(Path(path)), module=module, source=str(path))


def text_of_file(path: str | Path) -> str:
    """Return the text in a file, packed or not, and that of a proto."""
    return readable(text_of_bytes(_bytes_of(Path(path)), str(path)))


def _bytes_of(file: Path) -> bytes:
    try:
        _check_size(file.stat().st_size, str(file))
        return file.read_bytes()
    except IsADirectoryError:
        raise HloError(
            f"{file} is a folder. Name a file in it; lazyviz.read() and `python -m lazyviz read` "
            "list the dumps in a folder."
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", "") or error
        raise HloError(
            f"{repr(str(file))[1:-1][:_SHOWN_CHARACTERS]} cannot be read: {why}. Give the path of a dump, or its text."
        ) from None


@gc_paused
def graph_of(thing: Any) -> Graph:
    """Return the graph of a text, a path, a graph of the runtime, or what XLA compiled.

    An object of another kind gives its graph by a method `__lazygraph__()`.

    Raises:
        HloError: It is none of these.
    """
    if isinstance(thing, Graph):
        return thing
    if isinstance(thing, Path):
        return read(thing)
    if isinstance(thing, bytes):
        return parse(thing)
    if isinstance(thing, str):
        return read(thing) if is_path(thing) else parse(thing)
    if hasattr(type(thing), "__lazygraph__"):
        return cast("Graph", thing.__lazygraph__())
    if getattr(thing, "snapshot", None) is not None:  # a record of a compiled graph
        found = from_snapshot(thing.snapshot, getattr(thing, "name", ""))
        found.optimizer = getattr(getattr(thing, "key", None), "optimizer", "")
        return found
    if hasattr(thing, "vertices") and hasattr(thing, "roots"):
        return from_snapshot(thing)
    if hasattr(thing, "nodes") and hasattr(thing, "roots"):
        return from_ir(thing)
    if type(thing).__module__.startswith("jax.") and hasattr(thing, "compiler_ir"):
        return parse(thing.as_text(debug_info=True))  # a `Lowered`, with its lines
    for name in _TEXTS:
        if hasattr(thing, name):
            return parse(getattr(thing, name)())
    if hasattr(thing, "holdings") and hasattr(thing, "graph"):  # an inspection
        return graph_of(thing.graph)
    if type(thing).__module__.startswith("jaxlib.mlir."):
        return parse(str(thing))
    if hasattr(thing, "device") and hasattr(thing, "untyped_storage"):
        raise HloError(
            f"a tensor on {thing.device} has no graph. Give pending tensors of the device lazyrt, "
            "HLO or StableHLO text, or a path."
        )
    hint = (
        "a graph of the runtime such as lazyrt.pending_graph()"
        if not type(thing).__module__.startswith(("jax.", "jaxlib."))
        else "what jax.jit(f).lower(...) returns, compiled or not"
    )
    raise HloError(
        f"an object of type {type(thing).__name__} holds no graph. Give HLO or StableHLO text, a "
        f"path, or {hint}."
    )


def is_path(thing: Any) -> bool:
    """Return whether something that may be a text of a program is a path instead."""
    if not isinstance(thing, str):
        return isinstance(thing, Path)
    if not thing or "\n" in thing or len(thing) >= _MAX_PATH:
        return False
    return "=" not in thing or os.path.isfile(thing)  # noqa: PTH113 - False for what no path can be


_N = TypeVar("_N", HloModule, Graph)


def _chosen(found: Sequence[_N], which: str | int) -> _N:
    names = [module.name for module in found]
    if isinstance(which, int):
        if not -len(found) <= which < len(found):
            raise HloError(
                f"the text has no module {which}: it has {len(found)}, from 0 up."
            )
        return found[which]
    if which:
        if names.count(which) != 1:
            what = "no module" if which not in names else "several modules called"
            raise HloError(
                f"the text has {what} {which}. It has {_listed(names)}; give a position, "
                "such as module=0."
            )
        return found[names.index(which)]
    if len(found) > 1:
        raise HloError(
            f"the text has {len(found)} modules: {_listed(names)}. Choose one by name or "
            "position: `module=`, or --module-a and --module-b on the command line."
        )
    return found[0]


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown  # noqa: PLR2004


def _no_program(text: str) -> str:
    if not text.strip():
        return "the text is empty. Give HLO text, which starts with `HloModule`."
    if text.startswith('digraph "graph.'):
        return (
            "the drawing lacks the IR that the runtime writes below it. Give the `.ir.txt` or "
            "`.hlo` beside it, or dump the graph again."
        )
    start = text.strip().split("\n", 1)[0][:60]
    return (
        f"{start!r} starts no program. HLO text starts with `HloModule`, StableHLO with "
        "`module`, torch_xla's IR with `IR {` or `digraph G {`, lazyrt's IR with an input or op "
        "such as `%p0 : f32[4]`."
    )


def module_of(program: Any, name: str = "") -> tuple[HloModule, bool]:
    """Return a program as a module, and whether it is an excerpt of one.

    Args:
        program: HLO or StableHLO text, whole or in excerpts; a path; a graph.
        name: An instruction, without `%`: of several modules the one that has it is taken.

    Raises:
        HloError: There is no such file, it is no program, or several of its modules have `name`.
    """
    if isinstance(program, str) and ("\n" in program or " = " in program):
        return _module_of_text(program, name)
    if isinstance(program, (str, Path)):
        return _module_of_text(text_of_file(program), name)
    if isinstance(program, bytes):
        return _module_of_text(readable(text_of_bytes(program)), name)
    graph = graph_of(program)
    if isinstance(graph.source, HloModule):
        return graph.source, False
    return _module_of_graph(graph), False


def _module_of_text(text: str, name: str) -> tuple[HloModule, bool]:
    if _HLO.search(text):
        try:
            found = modules(text)
        except HloSyntaxError:
            found = []
        if found:
            return _with(found, name), False
    elif "func.func" in text or torch_ir.START.search(text):
        return _with([*map(_module_of_graph, parse_all(text))], name), False
    found = modules(text, partial=True)
    if not found or not found[-1].computations:
        raise HloSyntaxError(
            "the text has no instruction. One reads `%name = type op(...)`."
        )
    return found[-1], True


def _with(found: list[HloModule], name: str) -> HloModule:
    """Return the module that has an instruction; the first one if none has."""
    if len(found) == 1:
        return found[0]
    having = [
        module
        for module in found
        if any(name in each.index for each in module.computations.values())
    ]
    if len(having) > 1 or not name:
        which = (
            f"{len(having)} of the {len(found)} modules have %{name}"
            if name
            else (f"the text has {len(found)} modules")
        )
        raise HloError(
            f"{which}: {', '.join(module.name for module in having[:8] or found[:8])}. Give one "
            "of them: lazygraph.parse(text, module=0), or lazygraph.read for a file."
        )
    return (having or found)[0]


def _module_of_graph(graph: Graph) -> HloModule:
    """Return a graph in the form of a module of one computation."""
    module = HloModule(graph.name, entry="main")
    main = module.computations["main"] = Computation("main", table=module.forms)
    for node in graph:
        literal = str(graph.numbers.get(node.id, node.literal))
        module.forms.append(Form(node.op, node.type, node.attrs, literal))
        main.add(graph.names[node.id].lstrip("%"), node.id, node.operands)
    types = ", ".join(graph.types[node] for node in graph.outputs)
    module.forms.append(Form("tuple", f"({types})"))
    main.root = main.add("return", len(graph), graph.outputs)
    return module


# -------------------------------------------------------- what the bytes of a file are


def is_wide(data: bytes) -> bool:
    """Return whether it is text of two bytes for each character, as its mark at the start says."""
    return data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


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
