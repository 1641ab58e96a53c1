"""The table of live tensors: its requests, its state, its page."""

import re
import threading
from importlib import resources

import pytest

import lazyrt
from lazyviz.inspection import live
from lazyviz.inspection.live import LiveTable, live_table
from lazyviz.inspection.protocol import RequestError
from lazyviz.widgets import TableView

EVIL = "<img src=x onerror=alert(1)>"


def run(shell, *sources):
    for source in sources:
        shell.run_cell(source, store_history=True)


@pytest.fixture
def used(lab):
    """Yield a shell whose program holds three tensors: two variables and a result."""
    run(
        lab,
        "del x",
        "small = torch.ones(2, device='lazyrt')\nlarge = torch.ones(99, device='lazyrt')\n"
        "lazyrt.mark_step()",
        "small * 3",
    )
    return lab


@pytest.fixture
def table(used):
    return LiveTable(lazyrt, used)


@pytest.fixture
def view(used):
    made = TableView(LiveTable(lazyrt, used), shell=used)
    sent = []
    made.send = lambda content, buffers=None: sent.append(content)
    yield made, sent
    made.close()


def names(html):
    return re.findall(r"<tr[^>]*><td[^>]*>\d+</td><td[^>]*>([^<]*)</td>", html)


def ask(table, **request):
    return list(table.handle(request))


def test_a_table_has_sortable_heads_and_buttons(table):
    html = table.table()["html"]

    assert names(html)[0] == "large"
    assert 'aria-sort="descending" class="lzl-number"><button type="button"' in html
    assert 'data-column="size">size ▼</button>' in html
    assert 'data-name="Out[6]" aria-label="let go of Out[6]">Out[6]</button>' in html
    assert table.table()["title"].startswith("3 live tensors, ")


def test_a_click_on_a_head_sorts_and_a_second_turns_it_round(table):
    (first,) = ask(table, kind="sort", column="name")
    (second,) = ask(table, kind="sort", column="name")

    assert names(first["html"])[-1] == "small"
    assert names(second["html"])[0] == "small"
    assert (
        'aria-sort="descending" class="lzl-wide"><button type="button" data-kind="sort" data-column="name"'
        in (second["html"])
    )


def test_a_result_is_let_go_at_once_and_a_variable_after_a_question(table, used):
    tables = ask(table, kind="drop", name="Out[6]")
    (question,) = ask(table, kind="drop", name="large")

    assert (
        tables[-1]["html"]
        == '<span class="lzl-said">Dropped Out[6]: 1 tensor, 8 bytes, freed.</span>'
    )
    assert "large" in used.user_ns
    assert (
        "Delete your variable <code>large</code>? It leads to 1 tensor, 396 bytes."
        in (question["html"])
    )
    assert 'data-confirmed="1"' in question["html"]

    _, note = ask(table, kind="drop", name="large", confirmed=True)

    assert "large" not in used.user_ns
    assert (
        note["html"]
        == '<span class="lzl-said">Dropped large: 1 tensor, 396 bytes, freed.</span>'
    )
    assert ask(table, kind="keep") == [{"kind": "note", "html": ""}]


def test_requests_are_checked(table, used):
    for request_, part in [
        (None, "no request that the table of live tensors knows"),
        ({"kind": ["drop"]}, "no request that the table of live tensors knows"),
        ({"kind": "sort", "column": "colour"}, "which is none of"),
        ({"kind": "sort", "column": ["size"]}, "which is none of"),
        ({"kind": "drop"}, "is no name"),
        ({"kind": "drop", "name": "x" * 500}, "is no name"),
        ({"kind": "drop", "name": "__builtins__"}, "leads to no live tensor"),
        (
            {"kind": "drop", "name": "torch", "confirmed": True},
            "leads to no live tensor",
        ),
    ]:
        with pytest.raises(RequestError, match=part):
            list(table.handle(request_))
        assert "torch" in used.user_ns


def test_no_variable_is_deleted_under_a_running_cell(table, used):
    found = []

    def click():
        try:
            found.extend(ask(table, kind="drop", name="large", confirmed=True))
        except RequestError as error:
            found.append(str(error))

    used.user_ns["click"] = click
    run(used, "click()")

    assert "is running and may use large, so it was not deleted" in found[0]
    assert "large" in used.user_ns


def test_hello_tells_whether_clicks_are_answered_while_a_cell_runs(table):
    replies = ask(table, kind="hello")
    thread = threading.Thread(target=lambda: replies.extend(ask(table, kind="hello")))
    thread.start()
    thread.join()

    assert [reply["concurrent"] for reply in replies] == [False, True]


def test_names_stay_text(lab):
    run(lab, f"log = {{{EVIL!r}: torch.ones(2, device='lazyrt')}}")

    report = live.report(lazyrt, lab)
    html = live_table(report, {}, "size", reverse=False)

    assert "<img" not in html
    assert "&lt;img src=x onerror" in html


def test_the_view_applies_what_is_asked(view, used):
    widget, sent = view

    widget._handle_custom_msg({"kind": "sort", "column": "name"}, [])
    assert names(widget.table)[-1] == "small"
    widget._handle_custom_msg({"kind": "drop", "name": "Out[6]"}, [])
    assert "freed" in widget.note
    assert len(names(widget.table)) == 2
    widget._handle_custom_msg({"kind": "nothing"}, [])
    assert 'role="alert"' in widget.note
    widget._handle_custom_msg({"kind": "hello"}, [])
    assert sent == [{"kind": "done"}] * 3 + [{"kind": "ready", "concurrent": False}]
    assert repr(widget).startswith("<live tensors: the live view needs a kernel")


def test_the_table_follows_the_program_while_somebody_sees_it(view, used, monkeypatch):
    # On a busy machine a table takes longer than what is done by itself.
    monkeypatch.setattr("lazyviz.widgets._MAX_AUTOMATIC_NS", 10**12)
    widget, _ = view
    run(used, "another = torch.ones(5, device='lazyrt')")
    assert widget.stale
    assert "another" not in widget.table

    widget._handle_custom_msg({"kind": "visible", "visible": True}, [])
    assert not widget.stale
    assert "another" in widget.table
    run(used, "third = torch.ones(6, device='lazyrt')")
    assert "third" in widget.table

    widget._table.took_ns = 10**12
    run(used, "fourth = torch.ones(7, device='lazyrt')")
    assert widget.stale
    assert "fourth" not in widget.table


def test_a_table_that_follows_each_cell_changes_nothing(lab):
    def program(look):
        lazyrt.mark_step()
        lazyrt.reset_counters()
        widget = TableView(LiveTable(lazyrt, lab), shell=lab) if look else None
        if widget is not None:
            widget._handle_custom_msg({"kind": "visible", "visible": True}, [])
        prints = []
        for number in range(4):
            run(
                lab,
                f"y = (torch.ones(3, device='lazyrt') * {number}).exp()\nz = y.sum()",
            )
            prints.append(lazyrt.pending_graph().fingerprint)
            run(lab, "del y", "lazyrt.mark_step()")
        if widget is not None:
            widget.close()
        counts = lazyrt.counters()
        return prints, counts["executions"], counts["peek_executions"]

    plain = program(look=False)
    looked = program(look=True)

    assert looked == plain


def test_a_view_keeps_no_tensor(view, used):
    count = len(lazyrt.live_tensors())

    run(used, "del large")

    assert len(lazyrt.live_tensors()) == count - 1


def test_the_page_fetches_and_evaluates_nothing():
    static = resources.files("lazyviz").joinpath("static")
    page = static.joinpath("live_view.js").read_text("utf-8")
    style = static.joinpath("live_view.css").read_text("utf-8")

    for word in ("http", "import ", "eval(", "Function(", "innerHTML", "fetch("):
        assert word not in page
    assert "url(" not in style
    assert "@import" not in style
