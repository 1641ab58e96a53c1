"""Every hook on the shell, each with its undo.

| hook | why |
|---|---|
| `pre_run_cell`, `post_run_cell` | begin and end a cell's record; the strip |
| display hook, formatters | what a cell displays, and what `Out` keeps (`lazyviz.shell.displayed`) |
| magics, completer | `%lazy` (`lazyviz.shell.magics`) |
| `lazygraph.on_runtime` | notice that the user's program imports `lazyrt` |
"""

from __future__ import annotations

import contextlib
import logging
import sys
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import lazygraph
from lazyviz import session
from lazyviz.render.text import plural
from lazyviz.session import SHELL_ATTRIBUTE, Session
from lazyviz.shell import displayed, magics, tracebacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from IPython.core.interactiveshell import ExecutionInfo, InteractiveShell

_log = logging.getLogger(__name__)

_EXTENSION_ATTRIBUTE = "_lazyviz_extension"


class Extension:
    """lazyviz in one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.session = Session(shell)
        self._shell: Any = shell
        self._open: list[ExecutionInfo] = []
        self._undo: list[Callable[[], None]] = []
        self._page: Any = None
        self._cancelled: tuple[str, int] | None = None

    def install(self) -> None:
        """Put every hook in place."""
        try:
            self._install()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Take every hook away, the latest first."""
        while self._undo:
            self._undo.pop()()
        capture = sys.modules.get("lazyviz.timing.capture")
        if capture is not None:  # `%lazy profile on` listens until it is taken away
            capture.end_rings()
        self.session.close()

    def _install(self) -> None:
        shell = self._shell
        self._hook_events()
        self._undo += displayed.install(shell, self._wake_page)
        self._undo += magics.install(shell, self.session)
        self._undo += tracebacks.install(shell)
        # Loaded from within a cell, what that cell goes on to do is recorded too.
        self.session.start_cell(shell.execution_count - 1)
        self.session.last_error = _last_error()
        runtime = session.runtime()
        if runtime is not None:
            self.session.attach(runtime)
        else:
            lazygraph.on_runtime.add(self.session.attach)
            self._undo.append(
                partial(lazygraph.on_runtime.discard, self.session.attach)
            )

    def _hook_events(self) -> None:
        events = self._shell.events
        for name, callback in (
            ("pre_run_cell", self._before_cell),
            ("post_run_cell", self._after_cell),
        ):
            events.register(name, callback)
            self._undo.append(_unregister(events, name, callback))

    def _before_cell(self, info: ExecutionInfo) -> None:
        self._open.append(info)
        if len(self._open) > 1:
            return
        self.session.last_error = _last_error()
        # nbval and VS Code run cells without history: those keep the count of the next.
        count: int = self._shell.execution_count
        number = count - 1 if info.store_history else count
        self.session.start_cell(number)
        self._tell_cancelled(info.raw_cell)

    def _after_cell(self, result: Any) -> None:
        if not self._close(result):
            return
        error = _error_of(result)
        self._let_go(error)
        strip = None
        with _logged("the strip of a cell"):
            strip = self.session.finish_cell(error)
        if strip is not None and self.session.strips:
            self._publish(strip)
        if strip is not None and strip.interrupted and strip.pending_ops:
            self._cancelled = result.info.raw_cell, self.session.cells[-1].number or 0
        elif strip is not None and strip.barriers:
            self._cancelled = None
        if strip is not None:
            self._tell_tables()

    def _tell_cancelled(self, source: str | None) -> None:
        """Say that a cell is run again on top of what it left pending when it was cancelled."""
        runtime = session.runtime()
        if self._cancelled is None or self._cancelled[0] != source or runtime is None:
            return
        number = self._cancelled[1]
        self._cancelled = None  # told once
        ops = len(runtime.pending_graph().nodes)
        if ops:
            said = (
                f"Still pending of cell {number}, which was cancelled: {plural(ops, 'op')}. This "
                "cell records its work on top of that. %lazy drop takes it back, "
                "lazyrt.mark_step() runs it."
            )
            self._shell.display_pub.publish({"text/plain": said}, metadata={})

    def _tell_tables(self) -> None:
        """Let the tables of live tensors that somebody sees follow the program."""
        views = sys.modules.get("lazyviz.widgets")
        if views is not None:
            with _logged("the table of live tensors"):
                views.cell_ended(self._shell)

    def _close(self, result: Any) -> bool:
        """Return whether this is the end of the outermost cell."""
        if not self._open:
            return True
        if result is None:
            self._open.pop()
            return not self._open
        for index in range(len(self._open) - 1, -1, -1):
            if _same_cell(self._open[index], result.info):
                del self._open[index:]
                return not self._open
        return False

    def _let_go(self, error: BaseException | None) -> None:
        latest, before = _last_error(), self.session.last_error
        self.session.last_error = None
        runtime = session.runtime()
        if runtime is None:
            return
        # A magic such as %time shows its cell's error itself and reports none.
        errors = (error, latest if latest is not before else None)
        for each in errors:
            if each is not None:
                with _logged("letting go of a traceback's tensors"):
                    tracebacks.let_go(each, runtime.stand_in)

    def _publish(self, strip: Any) -> None:
        shown = {"display_id": f"lazyviz-{uuid.uuid4().hex}"} if strip.running else {}
        self._draw(strip, transient=shown)
        if shown and getattr(self._shell, "kernel", None) is not None:
            again = partial(self._draw, transient=shown, update=True)
            self.session.tell_end(strip, again)
        if strip.barriers:
            self._wake_page()

    def _draw(self, strip: Any, **how: Any) -> None:
        data = {"text/plain": strip.text()}
        if displayed.wants_html(self._shell):
            with _logged("the drawing of a strip"):
                data["text/html"] = strip.to_html()
        self._shell.display_pub.publish(data, metadata={}, **how)

    def _wake_page(self) -> None:
        """Let strips and the heat maps of this session answer, from the first one on."""
        if self._page is not None or not displayed.has_page(self._shell):
            return
        with _logged("the page of strips"), contextlib.suppress(ImportError):
            from lazyviz.widgets import StripPage

            self._page = StripPage(_next_step)
            self._undo.append(self._page.close)


def _next_step() -> tuple[int, str]:
    from lazyviz.timing import capture  # which needs the runtime

    return capture.next_step()


def load(shell: InteractiveShell) -> None:
    """Hook lazyviz into a shell; loading twice is loading anew."""
    unload(shell)
    extension = Extension(shell)
    extension.install()
    setattr(shell, SHELL_ATTRIBUTE, extension.session)
    setattr(shell, _EXTENSION_ATTRIBUTE, extension)


def unload(shell: InteractiveShell) -> None:
    """Leave the shell as loading found it."""
    extension = getattr(shell, _EXTENSION_ATTRIBUTE, None)
    if extension is None:
        return
    extension.remove()
    delattr(shell, _EXTENSION_ATTRIBUTE)
    delattr(shell, SHELL_ATTRIBUTE)


@contextlib.contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log an error of ours instead of showing it as one of the user's cell."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        _log.warning(
            "lazyviz: %s failed with %s: %s. The cell itself is not affected; the log has the "
            "traceback at level DEBUG.",
            what,
            type(error).__name__,
            error,
        )
        _log.debug("%s failed", what, exc_info=True)


def _same_cell(one: ExecutionInfo, other: ExecutionInfo) -> bool:
    # After an error in IPython's own runner the result has a new, equal info.
    return one is other or (
        one.raw_cell == other.raw_cell and one.store_history == other.store_history
    )


def _error_of(result: Any) -> BaseException | None:
    if result is None:
        return None
    error: BaseException | None = result.error_before_exec or result.error_in_exec
    return error


def _last_error() -> BaseException | None:
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def _unregister(
    events: Any, name: str, callback: Callable[..., None]
) -> Callable[[], None]:
    def undo() -> None:
        try:
            events.unregister(name, callback)
        except ValueError:
            _log.debug("%s was unregistered by somebody else", name)

    return undo
