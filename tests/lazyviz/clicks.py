"""All that the page of each widget can ask, sent as the page sends it."""

import re

import anywidget


def watched_widgets(monkeypatch):
    """Return the list into which every widget goes that is made from now on, and shows something."""
    made = []
    start = anywidget.AnyWidget.__init__

    def note(self, *args, **kwargs):
        start(self, *args, **kwargs)
        if (
            type(self).__name__ != "StripPage"
        ):  # see test_profile_capture for what it asks
            made.append(self)

    monkeypatch.setattr(anywidget.AnyWidget, "__init__", note)
    return made


def kind_of(widget):
    """Return what a widget shows; one class carries programs and diffs, and one tables."""
    shown = getattr(widget, "_asked", None) or widget
    return type(shown).__name__


def click_everything(widget):
    """Send each request that a page can send, for the first boxes of what is drawn."""
    for request in _REQUESTS[kind_of(widget)](widget):
        widget._handle_custom_msg(request, [])


def _of_a_program(widget):
    for box in range(4):
        yield {"kind": "select", "box": box}
        yield {"kind": "open", "box": box}
        yield {"kind": "alone", "box": box}
        yield {"kind": "back", "level": 0}
    yield {"kind": "close"}
    choices = widget.controls
    yield from ({"kind": "fold", "by": by} for by, _ in choices["fold"])
    yield from ({"kind": "overlay", "name": name} for name, _ in choices["overlay"])
    yield {"kind": "measure", "go": True}
    yield from (
        {"kind": "form", "form": form, "go": True} for form, _ in choices["form"]
    )
    yield {"kind": "form", "form": choices["chosen"]["form"]}
    yield {"kind": "search", "text": "tanh"}
    yield {"kind": "back", "level": 0}
    yield {"kind": "hello"}
    for node in re.findall(r'data-n="(\d+)"', widget.svg)[-2:]:
        yield {"kind": "check", "node": int(node)}


def _of_a_diff(widget):
    for box in range(min(len(widget._asked.shown.boxes), 6)):
        yield {"kind": "select", "box": box}
    for node in (0, 1, len(widget._asked.shown.boxes)):
        yield {"kind": "node", "node": node}
        yield {"kind": "follow", "node": node}
        yield {"kind": "focus", "node": node, "hops": 2}
    yield {"kind": "back", "level": 0}
    for box in range(3):
        yield {"kind": "open", "box": box}
        yield {"kind": "inside", "node": box, "call": 0}
    yield {"kind": "place", "level": 0}
    yield {"kind": "search", "text": "tanh"}
    yield {"kind": "back", "level": 0}
    for form, _ in widget.controls.get("form", ()):
        yield {"kind": "form", "form": form, "go": True}
    yield {"kind": "hello"}


def _of_a_table(widget):
    yield {"kind": "hello"}
    yield {"kind": "visible", "visible": True}
    for column in re.findall(r'data-column="(\w+)"', widget.table):
        yield {"kind": "sort", "column": column}
    for name in re.findall(r'data-name="(\w+)"', widget.table)[:3]:
        if not name.startswith("_"):
            yield {"kind": "drop", "name": name}  # it asks whether that is meant
            yield {"kind": "keep"}
    yield {"kind": "drop", "name": "0" * 32}  # there is none, and it is said
    yield {"kind": "refresh"}


def _of_a_wait(_widget):
    yield {"kind": "cancel", "wait": 0}  # an old one


_REQUESTS = {
    "Explorer": _of_a_program,
    "DiffExplorer": _of_a_diff,
    "LiveTable": _of_a_table,
    "CacheTable": _of_a_table,
    "TimelineView": lambda _widget: (),  # it asks for nothing
    "WaitView": _of_a_wait,
}
KINDS = frozenset(_REQUESTS)
