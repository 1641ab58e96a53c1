"""What a cell displays: views as a static copy and live, and what `Out` keeps of lazy tensors.

IPython keeps every displayed object in `Out`, `_` and the last execution result. A lazy tensor
kept there would be a root of all later graphs, so a snapshot of it is kept.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from lazyviz import session
from lazyviz.doc import Doc, Showable
from lazyviz.formatters import wants_html
from lazyviz.shell.lazytensors import is_lazy, lazy_tensors, replaced
from lazyviz.shell.tracebacks import override

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from lazyviz.doc import Part


_log = logging.getLogger(__name__)


def kept_value(result: Any, runtime: ModuleType) -> Any:
    """Return what IPython may keep of a displayed object.

    A tensor becomes its snapshot. A list, tuple or dict is rebuilt with snapshots only if
    something in it is pending.
    """
    if not is_lazy(result) and not any(map(runtime.is_pending, lazy_tensors(result))):
        return result
    known: dict[int, Any] = {}

    def snapshot(tensor: Any) -> Any:
        if id(tensor) not in known:
            known[id(tensor)] = _snapshot(tensor, runtime)
        return known[id(tensor)]

    return replaced(result, snapshot)


def _snapshot(tensor: Any, runtime: ModuleType) -> Any:
    try:
        return runtime.snapshot(tensor)
    except Exception:  # noqa: BLE001
        # The display has told the user; what Out keeps must not be a root either way.
        _log.debug("no snapshot of a displayed tensor", exc_info=True)
        return runtime.stand_in(tensor)


def install(hook: Any) -> Callable[[], None]:
    """Make a display hook keep snapshots; return the function that undoes it."""
    update_user_ns = hook.update_user_ns
    fill_exec_result = hook.fill_exec_result
    latest: list[tuple[Any, Any]] = []

    def update_with_snapshot(result: Any) -> None:
        runtime = session.runtime()
        kept = result if runtime is None else kept_value(result, runtime)
        latest[:] = [] if kept is result else [(result, kept)]
        update_user_ns(kept)

    def fill_with_snapshot(result: Any) -> None:
        shown, kept = latest.pop() if latest else (result, result)
        fill_exec_result(kept if shown is result else result)

    return override(
        hook, update_user_ns=update_with_snapshot, fill_exec_result=fill_with_snapshot
    )


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


class Displayed(Showable):
    """A view that may be a cell's result: a static copy, live where a page can have it."""

    __slots__ = ()

    def show(self, shell: Any = None) -> None:
        """Display it in a shell, by default the running one; without one, print it."""
        from IPython.core.getipython import get_ipython

        shell = shell or get_ipython()
        if shell is None:
            print(self.text())  # noqa: T201 - what a shell without displays shows
        else:
            show(shell, self.doc())

    def _ipython_display_(self) -> None:
        self.show()

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        doc = self.doc()
        return {"text/plain": doc.to_text(), "text/html": doc.to_html()}
