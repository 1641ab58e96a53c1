"""Run a notebook's cells in this process and keep what they show.

No kernel is started and no package beside IPython is needed, so a run begins at once.
"""

from __future__ import annotations

import atexit
import io
import json
import sys
import tempfile
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type
from traitlets.config import Config

from lazyviz import extension
from lazyviz.documents import markdown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAY_FAIL = frozenset({"raises-exception", "nbval-raises-exception"})


@dataclass(slots=True)
class Output:
    """Something that a cell showed.

    Attributes:
        kind: `stream`, `display`, `result` or `error`.
        data: MIME type to content.
        display_id: Under which later updates find a display.
    """

    kind: str
    data: dict[str, Any]
    display_id: str | None = None

    @property
    def text(self) -> str:
        """The plain text of the output, empty when it has none."""
        return str(self.data.get("text/plain", ""))


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a notebook file.

    Attributes:
        kind: `code` or `markdown`.
        source: Its text.
        heading: The latest heading above a code cell.
        may_fail: Whether the notebook means it to raise an exception.
    """

    kind: str
    source: str
    heading: str = ""
    may_fail: bool = False


@dataclass(slots=True)
class Ran:
    """What running a cell gave.

    Attributes:
        outputs: What it showed, in order.
        error: The exception that ended it, if one did.
    """

    outputs: list[Output] = field(default_factory=list)
    error: BaseException | None = None


def read(path: Path) -> list[Cell]:
    """Return the cells of a notebook file, empty code cells left out.

    Raises:
        ValueError: The file cannot be read, or is not a notebook.
    """
    try:
        return _cells(json.loads(path.read_text(encoding="utf-8"))["cells"])
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror}. Nothing was run; name another notebook."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a Jupyter notebook of format 4: {type(error).__name__}: {error}. "
            "Nothing was run; open the file in Jupyter and save it."
        ) from error


def _cells(written: Any) -> list[Cell]:
    found: list[Cell] = []
    heading = ""
    for cell in written:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            heading = markdown.last_heading(source) or heading
            found.append(Cell("markdown", source))
        elif cell["cell_type"] == "code" and source.strip():
            tags = set(cell.get("metadata", {}).get("tags", ()))
            found.append(Cell("code", source, heading, bool(tags & _MAY_FAIL)))
    return found


class _Hook(DisplayHook):
    shell: Any

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(
        self,
        format_dict: dict[str, Any],
        md_dict: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> None:
        self.shell.keep(Output("result", dict(format_dict)))

    def finish_displayhook(self) -> None:
        self._is_active = False


class _Publisher(DisplayPublisher):
    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,  # noqa: ARG002
        source: object = None,  # noqa: ARG002
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        display_id = (transient or {}).get("display_id")
        if update:
            self.shell.update(display_id, dict(data))
        else:
            self.shell.keep(Output("display", dict(data), display_id))

    def clear_output(self, wait: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        self.shell.ran.outputs.clear()


class _Shell(InteractiveShell):
    displayhook_class = Type(_Hook)
    display_pub_class = Type(_Publisher)
    ran: Ran

    def keep(self, output: Output) -> None:
        self.ran.outputs.append(output)

    def update(self, display_id: str, data: dict[str, Any]) -> None:
        for output in self.ran.outputs:
            if output.display_id == display_id:
                output.data = data

    def write_stream(self, text: str) -> None:
        outputs = self.ran.outputs
        if outputs and outputs[-1].kind == "stream":
            outputs[-1].data["text/plain"] += text
        else:
            self.keep(Output("stream", {"text/plain": text}))

    def _showtraceback(
        self,
        etype: object,  # noqa: ARG002
        evalue: object,  # noqa: ARG002
        stb: list[str],
    ) -> None:
        self.keep(Output("error", {"text/plain": "\n".join(stb)}))


class _Stream(io.TextIOBase):
    def __init__(self, shell: _Shell) -> None:
        self._shell = shell

    def write(self, text: str) -> int:
        self._shell.write_stream(text)
        return len(text)

    def writable(self) -> bool:
        return True


class Runner:
    """A shell of its own that runs cells one after the other."""

    def __init__(self, shell: _Shell) -> None:
        self._shell = shell

    def run(self, source: str) -> Ran:
        """Run one cell."""
        shell: Any = self._shell
        ran = shell.ran = Ran()
        stdout = sys.stdout
        sys.stdout = _Stream(shell)
        try:
            result = shell.run_cell(
                source, store_history=True, cell_id=uuid.uuid4().hex
            )
        finally:
            sys.stdout = stdout
        ran.error = result.error_before_exec or result.error_in_exec
        return ran


@contextmanager
def runner() -> Iterator[Runner]:
    """Yield a fresh runner; its shell is the one that `get_ipython()` returns meanwhile."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    before = InteractiveShell._instance  # noqa: SLF001
    InteractiveShell.clear_instance()
    with tempfile.TemporaryDirectory() as folder:
        shell: Any = _Shell.instance(config=config, ipython_dir=folder)
        shell.ran = Ran()
        try:
            yield Runner(shell)
        finally:
            extension.unload(shell)
            _Shell.clear_instance()
            shell.atexit_operations()
            atexit.unregister(shell.atexit_operations)
            shell.restore_sys_module_state()
            InteractiveShell._instance = before  # noqa: SLF001
