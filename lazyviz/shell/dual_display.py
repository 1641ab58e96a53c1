"""What is shown twice: a static copy, which a saved notebook keeps, and a live view below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyviz.doc import Doc
from lazyviz.formatters import wants_html

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazyviz.doc import Part


def show(shell: Any, shown: Part) -> None:
    """Display a view as text and HTML, and its live form where a page can have one."""
    doc = shown if isinstance(shown, Doc) else Doc([shown])
    bundle = {"text/plain": doc.to_text()}
    if doc.needs_html and wants_html(shell):
        bundle["text/html"] = doc.to_html()
    shell.display_pub.publish(bundle, metadata={})
    if doc.live is not None and has_page(shell):
        show_live(shell, doc.live)


def has_page(shell: Any) -> bool:
    """Return whether a page that shows live views may be looking."""
    has_comms = hasattr(getattr(shell, "kernel", None), "comm_manager")
    return has_comms and wants_html(shell)


def show_live(shell: Any, make: Callable[[], Any]) -> None:
    """Display a live view, or say why there is none."""
    from IPython.display import display

    try:
        view = make()
    except ImportError as error:
        note = (
            f"No live view: {error}. Run `pip install ipywidgets anywidget` and restart the "
            "kernel; the copy above has the same content."
        )
        shell.display_pub.publish({"text/plain": note}, metadata={})
        return
    display(view)  # type: ignore[no-untyped-call]


def display(view: Any, show: Callable[[Any], None]) -> None:
    """Display a view that is a cell's result, or print it where no shell can show more.

    Args:
        view: The view.
        show: Displays it in a shell.
    """
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None:
        print(view)  # noqa: T201 - what a shell without displays shows
        return
    show(shell)
