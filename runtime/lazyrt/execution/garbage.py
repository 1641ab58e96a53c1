"""How often Python looks for garbage while a step is recorded.

Python looks whenever 700 more objects were made than died. A deep step keeps thousands until its
barrier, where they die without a collector's help: each look within it finds nothing, and counts
what it saw as long-lived, until a look through the whole heap seems due. So the threshold grows
until a step fits below it. Cycles that a program makes are still found: such a look finds
something, and leaves the threshold alone.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from lazyrt.ir.live import pending

if TYPE_CHECKING:
    from collections.abc import Mapping

# A threshold that differs from it is the program's own, and stays.
_threshold = 0
_is_automatic = False
# The latest step in which a look found nothing.
_in_vain = -2


def install() -> None:
    """Let the threshold of the youngest generation grow from what it is now."""
    global _threshold
    _threshold = gc.get_threshold()[0]
    if _look not in gc.callbacks:
        gc.callbacks.append(_look)


def _look(phase: str, info: Mapping[str, int]) -> None:
    """Double the threshold when Python has looked in vain within two steps in a row.

    A step that fits below it has such a look every now and then, so it grows to twice a step's
    objects and no further. A single step may make many more, such as one that compiles.
    """
    global _threshold, _is_automatic, _in_vain
    threshold, *older = gc.get_threshold()
    if phase == "start":
        _is_automatic = gc.get_count()[0] > threshold
        return
    if not _is_automatic or info["collected"] or not pending.buffers:
        return
    is_again = pending.number - _in_vain == 1
    _in_vain = pending.number
    if is_again and threshold == _threshold > 0:
        _threshold = 2 * threshold
        gc.set_threshold(_threshold, *older)
