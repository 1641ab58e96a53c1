"""`%lazy cache` lists the executables and drops some."""

import re
from importlib import resources
from types import SimpleNamespace
from typing import Any

import pytest

import lazyrt
from lazyviz.inspection.tables import CacheTable
from lazyviz.widgets import TableView
from tests.conftest import displayed


@pytest.fixture
def folder(lab, tmp_path):
    lazyrt.config.cache_dir = tmp_path
    lab.run_cell("y = (x * 2).sum()\nlazyrt.mark_step()", store_history=True)
    return tmp_path


def run(shell, source):
    shell.display_pub.outputs.clear()
    shell.run_cell(source, store_history=True)
    return displayed(shell)


def test_the_cache_is_listed(lab, folder):
    lines = run(lab, "%lazy cache")[0].splitlines()
    row = next(line for line in lines if "memory, disk" in line)

    header = ["key", "holds", "ops", "tier", "last op", "size", "compile", "hits"]
    header += ["where", "age", "unused for"]
    assert re.split(r"\s{2,}", lines[0].strip()) == header
    assert re.match(r"[0-9a-f]{8}  step graph [0-9a-f]{8}\s+2  fast", row)
    assert "cell 4 line 1" in row
    assert "KiB" in row
    assert re.fullmatch(
        r"\d+ executables?: \d+ in memory, 1 on disk \([\d.]+ KiB\)", lines[-1]
    )


def test_executables_are_dropped_by_key_by_age_and_all(lab, folder):
    key = next(e.key for e in lazyrt.cached_executables() if e.on_disk)

    kept = run(lab, "%lazy cache drop older 7d")[0]
    assert kept == "No executable was dropped: none is that old, or there is none."
    one = run(lab, f"%lazy cache drop {key[:8]}")[0]
    run(lab, "z = x + 3\nlazyrt.mark_step()")
    run(lab, "%lazy cache drop all")

    assert re.match(r"Dropped 1 executable: 1 in memory, 1 on disk \(", one)
    assert not list(folder.rglob("*.xla"))
    assert run(lab, "%lazy cache") == ["No executable is in memory or on disk."]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("clear", "%lazy cache has no subcommand 'clear'"),
        ("drop", "%lazy cache drop names no executable"),
        ("drop older", "%lazy cache drop older names no executable"),
        ("drop older soon", "'soon' is no span of time, so nothing was dropped"),
        ("drop zz", "no executable has a key that begins with 'zz'"),
    ],
)
def test_what_names_no_executable_is_refused(lab, folder, capsys, line, message):
    run(lab, f"%lazy cache {line}")

    assert message in capsys.readouterr().err
    assert len(list(folder.rglob("*.xla"))) == 1


def entry(**changes):
    values = {
        "key": "0123456789abcdef" * 2,
        "holds": "step graph 01234567",
        "nodes": 214,
        "tier": "fast",
        "line": "cell 3 line 7",
        "nbytes": 2048,
        "compile_ns": 3_000_000_000,
        "hits": 12,
        "age_s": 60.0,
        "unused_s": 5.0,
        "in_memory": True,
        "on_disk": True,
        "is_usable": True,
    }
    return SimpleNamespace(**(values | changes))


class FakeRuntime:
    def __init__(self, *entries):
        self.entries = list(entries)
        self.dropped = []

    def cached_executables(self):
        return tuple(self.entries)

    def drop_executables(self, key):
        self.dropped.append(key)
        gone = [e for e in self.entries if e.key == key]
        self.entries = [e for e in self.entries if e.key != key]
        return gone


@pytest.fixture
def view():
    runtime: Any = FakeRuntime(entry(), entry(key="f" * 32, holds="<script>x</script>"))
    made = TableView(CacheTable(runtime))
    sent = []
    made.send = lambda content, buffers=None: sent.append(content)
    yield made, runtime, sent
    made.close()


def test_the_compile_time_and_the_hits_are_listed(lab, folder):
    """What an executable cost, and how often it served."""
    run(lab, "for _ in range(3):\n    y = (x * 5).sum()\n    lazyrt.mark_step()")

    graph = max(
        lazyrt.cached_executables(), key=lambda e: e.hits if e.nodes == 2 else -1
    )

    assert graph.hits == 2
    assert graph.compile_ns > 0
    assert re.search(r" 2 +memory, disk", run(lab, "%lazy cache")[0])


def test_the_time_of_a_compile_is_remembered_on_disk(lab, folder):
    lazyrt.clear_caches()

    kept = [e for e in lazyrt.cached_executables() if e.on_disk]

    assert len(kept) == 1
    assert kept[0].compile_ns > 0
    assert (kept[0].in_memory, kept[0].hits) == (False, 0)


def test_the_table_is_sorted_by_a_word(lab, folder, capsys):
    run(
        lab,
        "lazyrt.mark_step()\nz = torch.relu(x + 1).exp().mean()\nlazyrt.mark_step()",
    )

    rows = run(lab, "%lazy cache --sort ops")[0].splitlines()[2:4]
    run(lab, "%lazy cache --sort colour")

    assert [row.split()[4] for row in rows] == ["4", "2"]
    assert "holds, line, not 'colour'" in capsys.readouterr().err


def test_a_static_copy_says_the_same_without_buttons(lab, folder):
    lab.display_formatter.active_types = ["text/plain", "text/html"]
    lab.display_pub.outputs.clear()

    lab.run_cell("%lazy cache", store_history=True)

    copy = displayed(lab, "text/html")[0]
    assert "<button" not in copy
    assert "step graph" in copy
    assert "1 on disk" in copy


def test_a_click_drops_what_the_kernel_knows_once_it_is_confirmed(view):
    widget, runtime, _ = view
    click = {"kind": "drop", "name": "f" * 32}

    widget._handle_custom_msg(click, [])
    assert "To compile it again takes about" in widget.note
    assert runtime.dropped == []

    widget._handle_custom_msg({**click, "confirmed": True}, [])
    assert runtime.dropped == ["f" * 32]
    assert "Dropped 1 executable: 1 in memory, 1 on disk" in widget.note
    assert "f" * 32 not in widget.table
    widget._handle_custom_msg({**click, "confirmed": True}, [])
    assert "ffffffff is gone already; nothing was dropped." in widget.note
    assert runtime.dropped == ["f" * 32]


def test_a_click_on_a_head_sorts_the_executables_and_a_second_turns_them_round(view):
    widget, runtime, _ = view
    runtime.entries[0].nodes, runtime.entries[1].nodes = 3, 70

    orders = []
    for _ in range(2):
        widget._handle_custom_msg({"kind": "sort", "column": "ops"}, [])
        orders.append(re.findall(r'data-name="(\w)', widget.table))

    assert orders[0] == orders[1][::-1]
    assert orders[0][0] == "f"


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (None, "no request that the table of executables knows"),
        ("drop", "no request that the table of executables knows"),
        ({"kind": "drop all"}, "no request that the table of executables knows"),
        ({"kind": "drop"}, "no name that can be let go of"),
        ({"kind": "drop", "name": "f"}, "no key of an executable"),
        ({"kind": "drop", "name": "F" * 32}, "no key of an executable"),
        ({"kind": "drop", "name": ["f" * 32]}, "no name that can be let go of"),
        ({"kind": "drop", "name": "../../../etc/passwd"}, "no key of an executable"),
        ({"kind": "sort", "column": "colour"}, "which is none of"),
    ],
)
def test_a_message_of_no_page_of_ours_drops_nothing(view, message, what):
    widget, runtime, _ = view

    widget._handle_custom_msg(message, [])

    assert runtime.dropped == []
    assert what in widget.note


def test_names_are_text_and_a_page_says_hello(view):
    widget, _, sent = view

    widget._handle_custom_msg({"kind": "hello"}, [])

    assert sent == [{"kind": "ready", "concurrent": False}]
    assert "<script" not in widget.table
    assert "&lt;script&gt;" in widget.table
    assert repr(widget).startswith("<executables: the live view needs a kernel")


@pytest.mark.parametrize("name", ["live_view", "wait_view"])
def test_the_pages_fetch_and_evaluate_nothing(name):
    static = resources.files("lazyviz").joinpath("static")
    page = static.joinpath(f"{name}.js").read_text("utf-8")
    style = static.joinpath(f"{name}.css").read_text("utf-8")

    for word in ("http", "import ", "eval(", "Function(", "innerHTML", "fetch("):
        assert word not in page
    assert "url(" not in style
    assert "@import" not in style
