"""The documents: links lead somewhere, files exist, and troubleshooting says what is said."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import os
import re
import sys
from fnmatch import fnmatch
from typing import TYPE_CHECKING

import pytest

import lazyrt
from lazyrt.errors import LazyRuntimeError
from lazyrt.execution import process
from lazyviz.shell import magics, tracebacks  # noqa: F401 - they register views
from lazyviz.timing import compile_time
from lazyviz.timing.compile_time import Expected
from lazyviz.views import CELL_USAGE, VIEWS
from tests.conftest import displayed
from tests.harness import ROOT, cold_start, fresh_runtime

if TYPE_CHECKING:
    from pathlib import Path

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
TROUBLE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
BLOCK = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)
# What the documents name that a run leaves behind.
MADE = {"pace.json", "screenshots/", "tour.html"}


def anchors(page: Path) -> set[str]:
    """Return the headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
        for heading in headings
    }


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_lead_somewhere(name):
    page = ROOT / name
    found = re.findall(
        r'\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)"', page.read_text("utf-8")
    )

    for link in ("".join(pair) for pair in found):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("name", NAMES)
def test_files_that_a_page_names_exist(name):
    folders = ("runtime", "lazyviz", "tests", "benchmarks", "docs", "notebooks")
    files = [*ROOT.glob("*"), *(ROOT / "binder").glob("*")]
    for folder in folders:
        files += (ROOT / folder).rglob("*")
    paths = [
        f"/{path.relative_to(ROOT).as_posix()}{'/' if path.is_dir() else ''}"
        for path in files
    ]
    kinds = "py|js|css|md|toml|ipynb|cfg|html|json"
    quoted = re.findall(r"`([^`\s]+)`", (ROOT / name).read_text("utf-8"))

    for text in set(quoted) - MADE:
        if re.fullmatch(rf"[\w./*-]+\.(?:{kinds})|[a-z_-]+(?:/[a-z_-]+)*/", text):
            assert any(fnmatch(path, f"*/{text}") for path in paths), text


@pytest.mark.parametrize("name", NAMES)
def test_names_and_magics_that_a_page_quotes_exist(name):
    quoted = "\n".join(re.findall(r"`([^`]+)`", (ROOT / name).read_text("utf-8")))
    settings = {field.name for field in dataclasses.fields(lazyrt.config)}

    for package, attribute in re.findall(r"(?<![\w.])(lazyrt|lazyviz)\.(\w+)", quoted):
        known = importlib.util.find_spec(f"{package}.{attribute}")
        assert known or hasattr(sys.modules[package], attribute), attribute
    for setting in re.findall(
        r"(?<![\w.])(?:lazyrt\.)?config\.(\w+)\b(?![(*])", quoted
    ):
        assert setting in settings | {"set", "py", "op_by_op_", "NAME"}, setting
    assert set(re.findall(r"(?<!%)%lazy (\w+)", quoted)) <= {*VIEWS}
    assert set(re.findall(r"%%lazy (\w+)", quoted)) <= {*CELL_USAGE}


def test_magics_that_a_message_names_exist():
    files = [*(ROOT / "lazyviz").rglob("*.py"), *(ROOT / "runtime").rglob("*.py")]
    source = "\n".join(path.read_text("utf-8") for path in files)

    # "%lazy has no subcommand" is a sentence, and NAME stands for one.
    assert set(re.findall(r"(?<!%)%lazy ([a-z]\w*)", source)) <= {*VIEWS, "has"}
    assert set(re.findall(r"%%lazy (\w+)", source)) <= {*CELL_USAGE}


def test_the_readmes_ten_lines_run(shell, capsys):
    page = (ROOT / "README.md").read_text("utf-8")
    (lines,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)

    with fresh_runtime():
        result = shell.run_cell(lines, store_history=True)
        shell.run_line_magic("unload_ext", "lazyviz")

    assert result.success
    assert result.result.shape == (8, 3)
    assert "tensor(" in capsys.readouterr().out


def plain(text: str) -> str:
    """Return a text without durations and numbers of steps, which differ from run to run."""
    text = re.sub(r"\d[\d.,]* (?:ns|µs|ms|s|min \d+ s|min)\b", "TIME", text)
    return re.sub(r"\b(step|steps|graph\.)( ?)\d+", r"\1\2N", text)


def is_said(line: str, said: str) -> bool:
    """Return whether one of the lines that were shown is this one; `…` stands for anything."""
    parts = (re.escape(plain(part)) for part in line.split("…"))
    return (
        re.search(rf"^(?:\S+ +\S+:\d+ )?{'.*'.join(parts)}$", plain(said), re.MULTILINE)
        is not None
    )


def waits() -> str:
    """Return what is said where a test would have to wait: of waits, and in forked processes."""
    wait = compile_time.Wait(
        phase="compile",
        nodes=214,
        look=False,
        elapsed_ns=3_200_000_000,
        expected=Expected(ns=40_000_000_000, basis="from its ops"),
        site="cell 4 line 9",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "_bad", True)
        patch.setattr(os, "getpid", lambda: 4711)
        with pytest.raises(LazyRuntimeError) as raised:
            process.check_not_forked()
    return "\n".join(
        (
            wait.line,
            tracebacks.note(wait.what, pending_ops=214),
            f"LazyRuntimeError: {raised.value}",
        )
    )


@pytest.mark.lazy_only("strips of steps")
@pytest.mark.slow
def test_troubleshooting_has_the_words_that_are_shown(shell, capsys, caplog):
    blocks = BLOCK.findall(TROUBLE)
    with fresh_runtime(), caplog.at_level(logging.WARNING):
        cold_start()
        lazyrt.config.compile_tier = "fast"
        said, missing = "", []
        for number, (kind, content) in enumerate(blocks):
            if kind == "python":
                caplog.clear()
                shell.display_pub.outputs.clear()
                shell.run_cell(content, store_history=True)
                output = capsys.readouterr()
                said = "\n".join(
                    (output.out, output.err, caplog.text, *displayed(shell))
                )
                continue
            if blocks[number - 1][0] == "text":
                said = waits()
            missing += [
                f"{line}\nin\n{said}"
                for line in content.splitlines()
                if not is_said(line, said)
            ]
        shell.run_line_magic("unload_ext", "lazyviz")

    assert not missing, "\n\n".join(missing)


def test_architecture_fits_a_few_screens():
    lines = (ROOT / "ARCHITECTURE.md").read_text("utf-8").splitlines()

    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 110] == []


def test_a_decision_is_short_and_has_its_three_parts():
    wrong = []
    for page in DECISIONS:
        text = page.read_text("utf-8")
        parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
        if text.count("\n") > 25 or parts != ["Context", "Decision", "Consequences"]:
            wrong.append(page.name)

    assert wrong == []


def test_the_index_of_decisions_has_each_with_its_title():
    index = (ROOT / "docs" / "decisions" / "README.md").read_text("utf-8")
    listed = re.findall(r"^\* \[(\d+)\]\((\S+)\) (.+)$", index, re.MULTILINE)

    assert listed == [
        (page.name[:3], page.name, page.read_text("utf-8").splitlines()[0][2:])
        for page in DECISIONS
    ]
