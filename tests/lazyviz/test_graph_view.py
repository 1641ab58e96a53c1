"""The widget: its state, its messages, its page."""

import re
from importlib import resources

import pytest
import torch

import lazyrt
from tests.conftest import displayed


@pytest.fixture
def view(clean_runtime):
    from lazyviz.inspection.explorer import Explorer
    from lazyviz.inspection.subjects import pending_subject
    from lazyviz.widgets import GraphView

    x = torch.ones(2, 3, device="lazyrt")
    lazyrt.mark_step()
    made = GraphView(Explorer(pending_subject(lazyrt.inspect(torch.relu(x * 2)))))
    sent = []
    made.send = lambda content, buffers=None: sent.append(content)
    yield made, sent
    made.close()


def test_the_state_holds_the_drawing_and_no_tensor(view):
    widget, _ = view

    state = widget.get_state()

    assert " · 2 ops · 1 input · 1 output" in state["title"]
    assert state["svg"].startswith("<svg")
    assert state["crumbs"] == ["whole graph"]


def test_a_click_fills_the_panel(view):
    widget, sent = view
    relu = re.search(
        r'data-n="(\d+)" data-b="(\d)"[^>]*aria-label="aten.relu', widget.svg
    )
    assert relu

    widget._handle_custom_msg({"kind": "select", "box": int(relu[2])}, [])

    assert f'data-value="{relu[1]}"' in widget.panel
    assert "2., 2., 2." in widget.panel
    # First what it will cost, then the value; then the page knows that this was all.
    assert sent == [{"kind": "panel", "box": int(relu[2]), "then": None}] * 2 + [
        {"kind": "done"}
    ]


def test_every_request_but_a_greeting_ends_with_a_word(view):
    widget, sent = view

    widget._handle_custom_msg({"kind": "hello"}, [])
    assert {"kind": "done"} not in sent
    widget._handle_custom_msg({"kind": "no such"}, [])
    assert sent[-1] == {"kind": "done"}


@pytest.mark.parametrize(
    "message", [None, {"kind": "shell"}, {"kind": "select", "box": 99}]
)
def test_a_message_of_no_page_of_ours_is_answered_in_the_panel(view, message):
    widget, _ = view

    widget._handle_custom_msg(message, [])

    assert 'role="alert"' in widget.panel


def test_the_text_of_the_widget_is_the_same_in_each_run(view):
    widget, _ = view

    assert re.fullmatch(
        r"<IR graph [0-9a-f]{8} · 2 ops · 1 input · 1 output: the live view .*>",
        repr(widget),
    )


def test_the_page_fetches_and_evaluates_nothing():
    page = (
        resources.files("lazyviz").joinpath("static/graph_view.js").read_text("utf-8")
    )
    style = (
        resources.files("lazyviz").joinpath("static/graph_view.css").read_text("utf-8")
    )

    for word in ("http", "import ", "eval(", "Function(", "innerHTML", "fetch("):
        assert word not in page
    assert "url(" not in style
    assert "@import" not in style


def test_the_magic_shows_a_static_copy_first(lab):
    lab.run_cell("y = torch.relu(x * 2)", store_history=True)
    lab.display_formatter.active_types = ["text/plain", "text/html"]
    lab.display_pub.outputs.clear()

    lab.run_cell("%lazy explore y", store_history=True)

    copy = displayed(lab, "text/html")[0]
    assert "<summary" in copy
    assert "lzt-" in copy
    assert "data:image/svg+xml" in copy


def test_a_terminal_gets_the_listing(lab):
    lab.run_cell("y = torch.relu(x * 2)", store_history=True)
    lab.display_formatter.active_types = ["text/plain"]
    lab.display_pub.outputs.clear()

    lab.run_cell("%lazy explore y", store_history=True)

    assert "relu" in displayed(lab)[0]
    assert displayed(lab, "text/html") == []


def test_with_nothing_pending_the_last_step_can_be_walked_through(lab):
    lab.run_cell("%lazy explore", store_history=True)

    assert displayed(lab)[0].startswith("IR of step ")
