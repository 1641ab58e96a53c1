"""What a cell displayed: `Out` and its kin keep the value, never the user's tensor.

IPython keeps every displayed object in `Out`, `_` and the last execution result. A lazy
tensor kept there would be a root of all later graphs, so a snapshot of it is kept.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from lazyviz import session
from lazyviz.shell.lazytensors import is_lazy, lazy_tensors, replaced

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

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

    return _override(
        hook, update_user_ns=update_with_snapshot, fill_exec_result=fill_with_snapshot
    )


def _override(owner: Any, **methods: Callable[..., Any]) -> Callable[[], None]:
    own = vars(owner)
    before = {name: own[name] for name in methods if name in own}
    own.update(methods)

    def undo() -> None:
        for name, method in methods.items():
            # Somebody who wrapped our method later keeps theirs.
            if own.get(name) is not method:
                continue
            if name in before:
                own[name] = before[name]
            else:
                del own[name]

    return undo
