"""Tables that only save work stay within a budget of the settings, and say when they do not.

Emptying one changes no result and no fingerprint: what was in it is found out again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyrt.config import config
from lazyrt.observe import events

if TYPE_CHECKING:
    from lazyrt.observe.events import Cache


def make_room(cache: Cache, table: dict[Any, Any], budget: str) -> None:
    """Empty a table that has no room for one entry more, and tell listeners.

    Args:
        cache: What the table holds, for the event.
        table: Emptied whole: in what order its entries are used is not known.
        budget: The setting that says how many entries it may have.
    """
    allowed: int = getattr(config, budget)
    count = len(table)
    if count < max(allowed, 1):
        return
    table.clear()
    events.emit(events.CacheEvicted(cache=cache, dropped=count, kept=0, budget=allowed))
