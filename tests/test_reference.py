"""docs/reference.md names all that is public, and nothing that does not exist."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from pathlib import Path

import pytest

import lazyrt
import lazyrt.compat
import lazyviz
from lazyrt import testing
from lazyrt.observe import events
from lazyviz import __main__ as command_line
from lazyviz.shell import magics  # noqa: F401 - it registers the views
from lazyviz.views import CELL_USAGE, VIEWS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference.md").read_text("utf-8")
QUOTED = re.findall(r"`([^`\n]+)`", PAGE)


def section(title: str) -> str:
    """Return the part of the page below a heading."""
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """Return the cells of a section's table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]
    ]


def quoted(title: str) -> set[str]:
    """Return what the first column of a section's table quotes."""
    return {name for row in rows(title) for name in re.findall(r"`(\w+)`", row[0])}


@pytest.mark.parametrize("package", [lazyrt, lazyviz, testing])
def test_names_are_those_of_the_package(package):
    prefix = f"{package.__name__}."
    named = {
        re.split(r"\W", text.removeprefix(prefix))[0]
        for text in QUOTED
        if text.startswith(prefix)
    }
    public = {name for name in package.__all__ if not name.startswith("__")}

    assert public - named - {"errors"} == set()
    assert {name for name in named if not hasattr(package, name)} == set()


def test_keywords_of_a_call_are_its_parameters():
    for text in QUOTED:
        call = re.fullmatch(r"lazyrt\.(\w+)\((.*)\)", text)
        if call is None:
            continue
        parameters = inspect.signature(getattr(lazyrt, call[1])).parameters
        for keyword in re.findall(r"(\w+)=", call[2]):
            assert keyword in parameters, text


def test_settings_have_their_defaults_and_variables(monkeypatch):
    for name in [*os.environ]:
        if name.startswith(("LAZYRT_", "LAZYVIZ_")) or name == "XDG_CACHE_HOME":
            monkeypatch.delenv(name)
    default = type(lazyrt.config)()
    fields = [field.name for field in dataclasses.fields(default)]
    table = {row[0].strip("`"): row for row in rows("Settings")}

    assert sorted(table) == sorted(fields)
    for name in fields:
        shown = table[name][1].strip("`")
        if name == "cache_dir":
            assert Path(shown).expanduser() == default.cache_dir
        else:
            assert shown == repr(getattr(default, name)), name
    code = (ROOT / "runtime/lazyrt/config.py").read_text("utf-8")
    variables = set(re.findall(r"LAZY(?:RT|VIZ)_[A-Z_]*[A-Z]", code))
    assert variables - set(re.findall(r"LAZY(?:RT|VIZ)_[A-Z_]+", PAGE)) == set()


def test_magics_are_those_of_the_extension():
    named = set(re.findall(r"`%lazy (\w+)", section("Magics")))
    cells = set(re.findall(r"`%%lazy (\w+)", section("Magics")))

    assert named == set(VIEWS)
    assert cells == set(CELL_USAGE)


def test_counters_events_errors_and_commands_are_all_there():
    assert quoted("Counters") == set(lazyrt.counters())
    assert quoted("Events") == {
        name
        for name, kind in vars(events).items()
        if inspect.isclass(kind)
        and issubclass(kind, events.Event)
        and kind is not events.Event
    }
    assert quoted("Errors") == {
        name
        for name, kind in vars(lazyrt.errors).items()
        if inspect.isclass(kind)
        and issubclass(kind, Exception)
        and kind.__module__ == "lazyrt.errors"
    }
    commands = set(re.findall(r"^\| `(\w+)` \|", section("lazyviz"), re.MULTILINE))
    assert commands == set(command_line._COMMANDS)
