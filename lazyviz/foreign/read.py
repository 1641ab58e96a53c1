"""Any evidence: find out what a file is, and read it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from lazygraph.graph import HloError
from lazygraph.read import lazy_ir
from lazygraph.read.open import is_wide, readable, unpacked
from lazyviz.command_line import keep_inputs, output_file, path_of
from lazyviz.foreign import EvidenceError, file_bytes, shorten
from lazyviz.foreign.debug_log import parse_debug_log
from lazyviz.foreign.metrics_report import parse_report
from lazyviz.foreign.program_dumps import parse_programs, read_xla_dump
from lazyviz.foreign.tensors_dump import (
    BEGIN,
    REPORT,
    parse_tensors_dump,
    parse_tensors_report,
)
from lazyviz.foreign.xplane import (
    SUFFIX,
    parse_trace_events,
    profiles_in,
    read_profile,
)
from lazyviz.render.html import page_html

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lazyviz.foreign import Evidence

_MAX_BYTES = 512 * 2**20
_PROBE = 4_096
_PROGRAM = re.compile(
    r'^(?:HloModule\b|\s*"?(?:builtin\.)?module\b|\s*func\.func\b|\s*IR \{'
    r'|digraph (?:G|"graph\.[^"]*") \{)',
    re.MULTILINE,
)
_KINDS = (
    "What can be read: a metrics report ('Metric: ...'), a PT_XLA_DEBUG log ('Compilation "
    f"Analysis: ...'), a dump of graphs ('{BEGIN}'), a report of tensors ('Tensor: id=...'), a "
    "program ('HloModule', 'module', 'IR {'). Give the file as it was written."
)
_TRACE = re.compile(r'"traceEvents"|\A\s*\[\s*\{[^{}]*"ph"')
_ANALYSES = ("Compilation Analysis:", "Execution Analysis:", "pt-xla-profiler:")


def read(source: str | Path) -> Evidence:
    """Read what torch_xla, XLA or lazyrt wrote, after finding out what it is.

    Knows metrics reports, PT_XLA_DEBUG logs, XLA_SAVE_TENSORS_FILE dumps, torch_xla's reports
    of live tensors, the folders of `--xla_dump_to` and of `lazyrt.dump_graphs`, profiles
    (`*.xplane.pb`, the folder of `jax.profiler.trace`, or a trace-event file), and programs: HLO, StableHLO, the IR
    of torch_xla and lazyrt, HLO protos. A file may be packed by gzip.

    Args:
        source: Path of a file or folder, or the text itself (of several lines).

    Raises:
        EvidenceError: It is none of these, or is broken.
    """
    if isinstance(source, str) and ("\n" in source or "\r" in source or not source):
        contents = readable(source)
        return _reader(contents)(contents)
    path = path_of(source, "read()", EvidenceError)
    if path.is_dir():
        is_profile = profiles_in(path)
        return read_profile(path) if is_profile else read_xla_dump(path)
    if path.name.endswith(SUFFIX):
        return read_profile(path)
    data = file_bytes(path, _MAX_BYTES, "Split it, or give the part that matters.")
    try:
        data = unpacked(data, str(path))
        if b"\0" in data[:_PROBE] and not is_wide(data):
            return _binary(path, data)
        contents = readable(data)
        return _reader(contents)(contents)
    except HloError as error:  # it cannot be unpacked
        raise EvidenceError(str(error)) from None
    except EvidenceError as error:
        error.add_note(f"in {path}")
        raise


def main(arguments: Sequence[str], out: TextIO | None = None) -> int:
    """Run `python -m lazyviz read`; return the exit status, 2 for unreadable files."""
    out = out or sys.stdout
    parser = argparse.ArgumentParser(
        prog="python -m lazyviz read",
        description="Read what torch_xla, XLA or lazyrt wrote: a metrics report, a "
        "PT_XLA_DEBUG log, an XLA_SAVE_TENSORS_FILE dump, a report of live tensors, a folder of "
        "--xla_dump_to or of lazyrt.dump_graphs, a profile (.xplane.pb or trace events), or a program.",
    )
    parser.add_argument("path", type=Path, help="the file or folder; - for stdin")
    parser.add_argument(
        "--html",
        type=output_file,
        metavar="FILE",
        help="write a page instead of text",
    )
    parser.add_argument("--json", action="store_true", help="print plain data")
    options = parser.parse_args(arguments)
    keep_inputs(parser, options.html, [options.path])
    try:
        found = read(
            sys.stdin.read() + "\n" if str(options.path) == "-" else options.path
        )
        shown = _shown(found, options)
    except (EvidenceError, HloError) as error:
        sys.stderr.write(f"lazyviz read: {error}\n")
        return 2
    if options.html:
        title = f"{options.path.name or options.path}"
        options.html.write_text(page_html(title, [("", shown)]), encoding="utf-8")
        shown = f"The page: {options.html.absolute()}"
    out.write(f"{shown}\n")
    return 0


def _shown(found: Evidence, options: argparse.Namespace) -> str:
    if options.html:
        return found.to_html()
    return json.dumps(found.to_dict(), indent=2) if options.json else found.text()


def _binary(path: Path, data: bytes) -> Evidence:
    try:
        return parse_programs(data)
    except EvidenceError as error:
        raise EvidenceError(
            f"{path} is binary, and no serialised HLO module: {error} Dump text with "
            "--xla_dump_hlo_as_text."
        ) from None


def _reader(contents: str) -> Callable[[str], Evidence]:
    if contents.lstrip()[:1] in {"{", "["} and _TRACE.search(contents):
        return parse_trace_events
    if BEGIN in contents:
        return parse_tensors_dump
    if any(mark in contents for mark in _ANALYSES):
        return parse_debug_log
    is_json = contents.lstrip().startswith("{") and '"metrics"' in contents
    if is_json or "Metric: " in contents or "Counter: " in contents:
        return parse_report
    if REPORT.search(contents):
        return parse_tensors_report
    if _PROGRAM.search(contents) or lazy_ir.START.match(contents):
        return parse_programs
    if not contents.strip():
        raise EvidenceError(f"there is nothing in it. {_KINDS}")
    raise EvidenceError(
        f"the text that starts with {shorten(contents.lstrip())} is nothing that can be read "
        f"here. {_KINDS}"
    )
