"""Executables within their budget, dropped in order of their last use.

A step that repeats finds its executable by its plan and looks nothing up, so the order would
be that of compiling. Plans are therefore forgotten once before anything is dropped: whatever
is still in use is then looked up and goes to the end.
"""

from __future__ import annotations

from lazyrt.config import config
from lazyrt.execution import compiler
from lazyrt.execution.peek import forget_slices
from lazyrt.observe import events

_order_is_known = False


def keep_within_budget() -> bool:
    """Drop executables above `config.max_executables`; return whether plans must go, too.

    Called with nothing pending. Results and fingerprints stay what they would have been: an
    executable that is needed again is compiled again.
    """
    global _order_is_known
    budget = config.max_executables
    count = compiler.executable_count()
    nearly_full = budget * 3 // 4
    if count <= nearly_full:
        return False
    if count <= budget:
        if _order_is_known:
            return False
        _order_is_known = True
        forget_slices()
        return True
    dropped = compiler.drop_oldest(nearly_full)
    forget_slices()
    _order_is_known = False
    events.emit(
        events.CacheEvicted(
            cache="executables", dropped=dropped, kept=count - dropped, budget=budget
        )
    )
    return True
