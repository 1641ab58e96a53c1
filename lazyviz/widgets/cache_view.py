"""The executables as a table to sort and to evict from: an anywidget around `executables`."""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING

import anywidget
import traitlets

from lazyviz import executables
from lazyviz.widgets import assets

if TYPE_CHECKING:
    from types import ModuleType

_log = logging.getLogger(__name__)
_KEY = re.compile("[0-9a-f]{32}")


class CacheView(anywidget.AnyWidget):
    """A table of `lazyrt.cached_executables()`; holds texts, and no executable.

    Attributes:
        table: The table, as HTML.
        note: What the last request did.
        twin: CSS class of the static copy that the page hides while it is live.
    """

    _esm = assets.page("cache_view")
    _css = assets.style("cache_view")

    table = traitlets.Unicode().tag(sync=True)
    note = traitlets.Unicode().tag(sync=True)
    twin = traitlets.Unicode().tag(sync=True)

    def __init__(self, runtime: ModuleType, twin: str = "") -> None:
        self._runtime = runtime
        super().__init__(twin=twin, table=self._table())
        self.on_msg(self._received)

    def __repr__(self) -> str:
        """Return the same text in each run, so that notebooks compare."""
        return "<executables>"

    def _table(self) -> str:
        return executables.to_html(self._runtime.cached_executables(), live=True)

    def _received(self, _widget: object, content: object, _buffers: object) -> None:
        try:
            self._answer(content)
        except Exception as error:  # noqa: BLE001 - the page says it
            _log.exception("a request of the table of executables failed")
            self.note = f"{type(error).__name__}: {error}"
        finally:
            assets.acknowledge(self, content)

    def _answer(self, request: object) -> None:
        match request:
            case {"kind": "hello"}:
                concurrent = threading.current_thread() is not threading.main_thread()
                self.send({"kind": "ready", "concurrent": concurrent})
            case {"kind": "refresh"}:
                self.note = ""
                self.table = self._table()
            case {"kind": "evict", "key": str(key)} if _KEY.fullmatch(key):
                self._evict(key)
            case _:
                self.note = (
                    f"{request!r:.80} is no request that this table knows. Run %lazy cache "
                    "again: the page may be of another version."
                )

    def _evict(self, key: str) -> None:
        present = {entry.key for entry in self._runtime.cached_executables()}
        if key in present:
            self.note = executables.drop(self._runtime, [key])
        else:
            self.note = f"{key[:8]} is gone already; nothing was dropped."
        self.table = self._table()
