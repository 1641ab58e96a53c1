"""Where a worker of the tests was when it died: its Python stacks, told when the run ends.

pytest has a fatal signal's stacks written to the worker's stderr. What arrives there during a
test is captured, and dies with the worker.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

_FOLDER = "LAZYVIZ_TEST_CRASHES"  # workers inherit it
_kept_open: list[TextIO] = []  # faulthandler writes to its descriptor


def watch(config: pytest.Config) -> None:
    """Make a place for stacks; in a worker, have a fatal signal write them there."""
    if not hasattr(config, "workerinput"):
        os.environ[_FOLDER] = tempfile.mkdtemp(prefix="lazyviz-crashes-")
    elif _FOLDER in os.environ:
        name = config.workerinput["workerid"]
        path = Path(os.environ[_FOLDER], f"{name}.txt")
        file = path.open("w", encoding="utf-8")
        _kept_open.append(file)
        faulthandler.enable(file)


def end(config: pytest.Config) -> None:
    """Close a worker's file; remove the folder where the workers are done."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(_FOLDER, ""), ignore_errors=True)
    while _kept_open:
        faulthandler.disable()
        _kept_open.pop().close()


def told() -> Iterator[str]:
    """Yield the lines that workers left which a signal ended."""
    for file in sorted(Path(os.environ[_FOLDER]).glob("*.txt")):
        text = file.read_text("utf-8")
        if text:
            yield f"=== worker {file.stem} was ended by a fatal signal"
            yield from text.splitlines()
