"""`python -m lazyviz tour`: run the first notebook here and write it as one web page."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from lazyviz.command_line import output_file
from lazyviz.documents import markdown, notebook
from lazyviz.render import text
from lazyviz.render.escape import markup
from lazyviz.render.page import page_html

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIRST = Path("notebooks") / "01_first_look.ipynb"
_MAX_LINES = 14
_MAX_TITLE = 60
_RICH = ("text/html", "image/svg+xml", "image/png", "image/jpeg", "text/markdown")


def main(arguments: Sequence[str], out: TextIO | None = None) -> int:
    """Run the tour; return the exit status: 1 if a cell failed, 2 if there is no notebook."""
    out = out or sys.stdout
    options = _parser().parse_args(arguments)
    path = options.notebook or _first_notebook()
    if path is None or not path.is_file():
        sys.stderr.write(
            f"lazyviz tour: there is no notebook at {path or _FIRST}. Run the tour from a checkout of "
            f"lazyviz, or name one with --notebook PATH.\n"
        )
        return 2
    try:
        cells = notebook.read(path)
    except ValueError as error:
        sys.stderr.write(f"lazyviz tour: {error}\n")
        return 2
    output = options.output.absolute()
    started = time.perf_counter_ns()
    title = _title(cells, path)
    sections, failed = _run(cells, path, title, out)
    page = page_html(title, sections)
    output.write_text(page, encoding="utf-8", errors="replace")
    took = text.duration(time.perf_counter_ns() - started)
    out.write(f"\n{'Stopped' if failed else 'Done'} after {took}. The page: {output}\n")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lazyviz tour",
        description="Run a notebook in this process, print each cell's strip, and write "
        "everything to one self-contained web page.",
    )
    parser.add_argument(
        "--notebook", type=Path, metavar="FILE", help=f"by default {_FIRST}"
    )
    parser.add_argument(
        "--output",
        type=output_file,
        default=Path("tour.html"),
        metavar="FILE",
        help="by default tour.html",
    )
    return parser


def _first_notebook() -> Path | None:
    places = (Path.cwd(), Path(__file__).parents[2])
    return next(
        (place / _FIRST for place in places if (place / _FIRST).is_file()), None
    )


def _title(cells: Sequence[notebook.Cell], path: Path) -> str:
    headings = (markdown.last_heading(c.source) for c in cells if c.kind == "markdown")
    return next((heading for heading in headings if heading), path.stem)


def _run(
    cells: Sequence[notebook.Cell], path: Path, title: str, out: TextIO
) -> tuple[list[tuple[str, str]], bool]:
    """Return the page's sections and whether a cell failed that should not."""
    total = sum(cell.kind == "code" for cell in cells)
    number = 0
    heading = ""
    sections: list[tuple[str, str]] = []
    with contextlib.chdir(path.parent), notebook.runner() as runner:
        for cell in cells:
            if cell.kind == "markdown":
                body = cell.source.removeprefix(f"# {title}\n")
                sections.append(("", markdown.to_html(body)))
                continue
            number += 1
            what = cell.heading if cell.heading != heading else _first_line(cell)
            heading = cell.heading
            out.write(f"[{number}/{total}] {what}\n")
            out.flush()
            ran = runner.run(cell.source)
            failed = ran.error is not None and not cell.may_fail
            out.writelines(
                _indented(output.text, whole=failed) for output in ran.outputs
            )
            sections.append(("", _section(number, cell, ran)))
            if failed:
                return sections, True
    return sections, False


def _first_line(cell: notebook.Cell) -> str:
    line = cell.source.strip().splitlines()[0]
    return line if len(line) <= _MAX_TITLE else line[: _MAX_TITLE - 3] + "..."


def _indented(shown: str, *, whole: bool) -> str:
    lines = shown.rstrip("\n").splitlines()
    if len(lines) > _MAX_LINES and not whole:
        hidden = len(lines) - _MAX_LINES + 2
        lines = [
            *lines[: _MAX_LINES - 4],
            f"... {hidden:,} lines more ...",
            *lines[-2:],
        ]
    return "".join(f"      {line}\n" for line in lines)


def _section(number: int, cell: notebook.Cell, ran: notebook.Ran) -> str:
    source = markup(cell.source)
    parts = [f'<pre class="code" data-cell="{number}"><code>{source}</code></pre>']
    parts += [_output_html(output) for output in ran.outputs]
    return "\n".join(part for part in parts if part)


def _output_html(output: notebook.Output) -> str:
    kind = next((kind for kind in _RICH if kind in output.data), "text/plain")
    content = output.data.get(kind)
    if not content:
        return ""
    match kind:
        case "text/html" | "image/svg+xml":
            return f'<div class="output">{content}</div>'
        case "image/png" | "image/jpeg":
            return f'<div class="output"><img alt="" src="data:{kind};base64,{content}"></div>'
        case "text/markdown":
            return f'<div class="output">{markdown.to_html(content)}</div>'
        case _:
            shown = markup(str(content))
            return f'<pre class="output {output.kind}">{shown}</pre>'
