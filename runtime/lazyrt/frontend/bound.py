"""The bound of pending ops: beyond `max_pending_nodes` a barrier comes by itself."""

from __future__ import annotations

from lazyrt.config import config
from lazyrt.frontend import finalisers
from lazyrt.ir.live import pending


def over_limit() -> None:
    """Run a barrier once too much is pending; a finaliser's op leaves it to the next one."""
    from lazyrt.execution.executor import barrier
    from lazyrt.frontend.provenance import user_site

    # In eager debug mode each op runs at its end, and would find its inputs gone.
    if pending.eager or finalisers.interrupts_another_op():
        return
    barrier(f"more than {config.max_pending_nodes:,} pending ops", user_site(2))
