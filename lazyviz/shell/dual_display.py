"""What is shown twice: a static copy, which a saved notebook keeps, and a live view below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyviz.formatters import wants_html

if TYPE_CHECKING:
    from collections.abc import Callable


def show(
    shell: Any,
    text: str,
    copy: Callable[[], str],
    twin: str,
    make: Callable[[], Any] | None,
) -> None:
    """Display something as text or as HTML, and its live view where a page can have one.

    Args:
        shell: Where.
        text: For a terminal.
        copy: Returns the same as HTML.
        twin: CSS class of the copy, which the live view hides.
        make: Returns the live view; None if nothing is worth one.
    """
    bundle = {"text/plain": text}
    if wants_html(shell):
        bundle["text/html"] = f'<div class="{twin}">{copy()}</div>'
    shell.display_pub.publish(bundle, metadata={})
    if make is not None and has_page(shell):
        show_live(shell, make)


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
