"""`python -m lazyviz tour`: run the gallery, or another notebook, and write it as one web page.

nbclient runs the cells in a kernel of their own, markdown-it-py renders the text between them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import nbformat
from markdown_it import MarkdownIt
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from lazyviz.command_line import output_file
from lazyviz.draw.model import clip
from lazyviz.render import text
from lazyviz.render.html import markup, page_html, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FIRST = Path("notebooks") / "00_gallery.ipynb"
_MAX_LINES = 14
_MAX_TITLE = 60
_LIVE = "application/vnd.jupyter.widget-view+json"
_COPY = re.compile(r"<details(?= [^>]*><summary[^>]*>[^<]*, static copy</summary>)")
_RICH = ("text/html", "image/svg+xml", "image/png", "image/jpeg", "text/markdown")
_MAY_FAIL = frozenset({"raises-exception", "nbval-raises-exception"})
_LINK = re.compile(r"https?:|[^:]*$", re.IGNORECASE)


class _Markdown(MarkdownIt):
    """Markdown without raw HTML and pictures: what it makes runs and loads nothing."""

    def __init__(self) -> None:
        super().__init__("commonmark", {"html": False})
        self.enable("table").disable("image")

    def validateLink(self, url: str) -> bool:  # noqa: N802 - the name is MarkdownIt's
        return _LINK.match(url) is not None


_MARKDOWN = _Markdown()


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
        notebook = read(path)
    except ValueError as error:
        sys.stderr.write(f"lazyviz tour: {error}\n")
        return 2
    output = options.output.absolute()
    started = time.perf_counter_ns()
    title = _title(notebook, path)
    sections, failed = _run(notebook, path, title, out)
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


def read(path: Path) -> Any:
    """Return a notebook, empty code cells left out.

    Raises:
        ValueError: The file cannot be read, or is not a notebook.
    """
    try:
        found = nbformat.read(path, as_version=4)
        nbformat.validate(found)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror}. Nothing was run; name another notebook."
        ) from None
    except (
        ValueError, KeyError, TypeError, AttributeError, nbformat.ValidationError
    ) as error:  # fmt: skip
        said = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{path} is not a Jupyter notebook: {said}. Nothing was run; open the file in "
            "Jupyter and save it."
        ) from error
    found.cells = [
        cell
        for cell in found.cells
        if cell.cell_type == "markdown"
        or (cell.cell_type == "code" and cell.source.strip())
    ]
    return found


def last_heading(source: str) -> str:
    """Return the last heading in a Markdown text, without its marks, or an empty text."""
    tokens = _MARKDOWN.parse(source)
    headings = [
        "".join(part.content for part in inline.children or ())
        for opening, inline in itertools.pairwise(tokens)
        if opening.type == "heading_open"
    ]
    return headings[-1] if headings else ""


def markdown_html(source: str) -> str:
    """Return a Markdown text as HTML."""
    return printable(str(_MARKDOWN.render(source)))


def _title(notebook: Any, path: Path) -> str:
    headings = (
        last_heading(c.source) for c in notebook.cells if c.cell_type == "markdown"
    )
    return next((heading for heading in headings if heading), path.stem)


@contextlib.contextmanager
def _kernel(notebook: Any, folder: Path) -> Iterator[NotebookClient]:
    """Yield what runs the cells: in this Python, with its paths and without the user's profile."""
    with tempfile.TemporaryDirectory() as profile:
        client = NotebookClient(
            notebook,
            timeout=None,
            kernel_name="python3",
            extra_arguments=[
                "--log-level=ERROR",
                "--InteractiveShell.colors=nocolor",
                f"--ipython-dir={profile}",
            ],
        )
        paths = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": paths}
        with client.setup_kernel(cwd=str(folder), env=environment):
            yield client


def _run(
    notebook: Any, path: Path, title: str, out: TextIO
) -> tuple[list[tuple[str, str]], bool]:
    """Return the page's sections and whether a cell failed that should not."""
    total = sum(cell.cell_type == "code" for cell in notebook.cells)
    number = 0
    above = heading = ""
    sections: list[tuple[str, str]] = []
    with _kernel(notebook, path.parent) as client:
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "markdown":
                above = last_heading(cell.source) or above
                body = cell.source.removeprefix(f"# {title}\n")
                sections.append(("", markdown_html(body)))
                continue
            number += 1
            first = clip(cell.source.strip().splitlines()[0], _MAX_TITLE)
            what = above if above != heading else first
            heading = above
            out.write(f"[{number}/{total}] {what}\n")
            out.flush()
            failed = _fails(client, cell, index)
            outputs = _joined(cell.outputs)
            out.writelines(_indented(_plain(each), whole=failed) for each in outputs)
            sections.append(("", _section(number, cell.source, outputs)))
            if failed:
                return sections, True
    return sections, False


def _fails(client: NotebookClient, cell: Any, index: int) -> bool:
    """Run a cell, which gets its outputs; return whether it failed and should not."""
    try:
        client.execute_cell(cell, index)
    except CellExecutionError:
        return not _MAY_FAIL & set(cell.metadata.get("tags", ()))
    except DeadKernelError:
        ended = nbformat.v4.new_output(
            "stream", name="stderr", text="The kernel ended while the cell ran.\n"
        )
        cell.outputs.append(ended)
        return True
    return False


def _joined(outputs: Sequence[Any]) -> list[Any]:
    """Return outputs with what was printed in several pieces as one."""
    found: list[Any] = []
    for output in outputs:
        if found and output.output_type == found[-1].output_type == "stream":
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def _plain(output: Any) -> str:
    """Return the plain text of an output, empty when it has none."""
    match output.output_type:
        case "stream":
            return str(output.text)
        case "error":
            return "\n".join(output.traceback)
    return str(output.data.get("text/plain", ""))


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


def _section(number: int, source: str, outputs: Sequence[Any]) -> str:
    shown = markup(source)
    parts = [f'<pre class="code" data-cell="{number}"><code>{shown}</code></pre>']
    parts += [_output_html(output) for output in outputs]
    return "\n".join(part for part in parts if part)


def _output_html(output: Any) -> str:
    data = output.get("data", {})
    if _LIVE in data:  # its static copy stands above
        return ""
    kind = next((kind for kind in _RICH if kind in data), "text/plain")
    content = data.get(kind) or _plain(output)
    if not content:
        return ""
    match kind:
        case "text/html" | "image/svg+xml":
            shown = _COPY.sub("<details open", content)
            return f'<div class="output">{shown}</div>'
        case "image/png" | "image/jpeg":
            return f'<div class="output"><img alt="" src="data:{kind};base64,{content}"></div>'
        case "text/markdown":
            return f'<div class="output">{markdown_html(content)}</div>'
        case _:
            kind = output.output_type
            return f'<pre class="output {kind}">{markup(content)}</pre>'
