"""Room on the device: whether a computation fits, and who has the memory when it does not.

What an executable allocates is known before it runs. One that needs more than there is is
refused while everything is still pending, so that nothing is lost and, where the device is the
CPU, the kernel's process is not ended by the system. What XLA cannot allocate all the same
becomes the same error.
"""

from __future__ import annotations

import contextlib
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lazygraph.readable import plural, size_text
from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.errors import OutOfMemoryError
from lazyrt.execution import completion
from lazyrt.ir.live import ready_buffers
from lazyrt.ir.node import Node, nbytes_of, type_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_log = logging.getLogger(__name__)

# Asking the machine takes 15 µs; what needs less than this is not worth them.
_MIN_ASKED = 64 * 2**20
_MAX_VALUES = 3
_KIB = 1024
_EXHAUSTED = "RESOURCE_EXHAUSTED"
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)

# Tells, in lines of text, who holds the most memory; replaced by what looks at names.
describe_holders: Callable[[], Sequence[str]] = list


def planned(executable: Any) -> int:
    """Return how many bytes an executable allocates: results and what it needs on the way."""
    plan = jax_compat.memory_plan(executable)
    return plan.temporary + plan.results - plan.aliased


def results_of(node: Node) -> int:
    """Return the size of an op's results together."""
    return sum(nbytes_of(value) for value in node.outputs if value is not None)


def make_sure(
    needed: int, what: str, nodes: Callable[[], Sequence[Node]] = tuple
) -> None:
    """Check that so many bytes can be allocated, before anything is.

    `what` begins the sentence of the OutOfMemoryError, which names the largest values of `nodes`.
    """
    if needed < _MIN_ASKED and config.max_memory_bytes is None:
        return
    if _fits(needed, available()):
        return
    completion.wait()
    room = available()
    if _fits(needed, room):
        return
    left = size_text(room or 0)
    has = f"{left} are available"
    if config.max_memory_bytes is not None:
        limit = size_text(config.max_memory_bytes)
        has = f"the limit of {limit} (config.max_memory_bytes) leaves {left}"
    raise OutOfMemoryError(
        f"{what} needs {size_text(needed)} of memory, and {has}. Nothing was run, so every "
        f"tensor is as it was.\n{_advice(nodes())}",
        needed=needed,
        available=room,
    )


def _fits(needed: int, room: int | None) -> bool:
    return room is None or needed <= room


def available() -> int | None:
    """Return how many bytes can be allocated now; None where nobody knows."""
    limit = config.max_memory_bytes
    if limit is not None:
        return max(limit - in_use(), 0) if limit >= 0 else None
    target = jax_compat.device()
    if target.platform != "cpu":
        stats = target.memory_stats() or {}
        limit, used = stats.get("bytes_limit"), stats.get("bytes_in_use")
        return None if limit is None or used is None else int(limit - used)
    return min(_of_machine(), default=None)


def in_use() -> int:
    """Return the size of the data of all live tensors, each counted once."""
    sizes = {
        id(data): data.nbytes
        for data in (buffer.data for buffer in ready_buffers())
        if isinstance(data, jax_compat.Array) and not data.is_deleted()
    }
    return sum(sizes.values())


def _of_machine() -> Iterator[int]:
    """Yield what the system says it has, and what the container may have."""
    with contextlib.suppress(OSError):
        facts = dict(
            re.findall(r"(\w+): +(\d+) kB", Path("/proc/meminfo").read_text("utf-8"))
        )
        if "MemAvailable" in facts:
            free = int(facts["MemAvailable"]) + int(facts.get("SwapFree", 0))
            yield free * _KIB
    for limit_file, used_file in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):
            limit = int(Path(limit_file).read_text("utf-8"))
            used = int(Path(used_file).read_text("utf-8"))
            yield max(limit - used + _reclaimable(Path(used_file).parent), 0)


def _reclaimable(folder: Path) -> int:
    """Return how much of a container's memory is file cache that gives way."""
    found = re.search(
        r"^inactive_file (\d+)",
        (folder / "memory.stat").read_text("utf-8"),
        re.MULTILINE,
    )
    return int(found[1]) if found else 0


def _advice(nodes: Sequence[Node] = ()) -> str:
    """Return who has the memory, and what to do."""
    lines = _largest(nodes)
    try:
        lines += describe_holders()
    except Exception:  # noqa: BLE001 - the error itself matters more
        _log.debug("the holders of memory could not be found", exc_info=True)
    lines.append(
        "Let go of what is not needed (`del name`; lazyrt.live_tensors_report() lists every "
        "holder), keep numbers in place of tensors (`total += loss.item()`), or compute in "
        "smaller parts with a lazyrt.mark_step() between them."
    )
    return "\n".join(lines)


def _largest(nodes: Sequence[Node]) -> list[str]:
    """Return the largest results of the ops, with their lines."""
    sized = sorted(((results_of(node), node.id, node) for node in nodes), reverse=True)
    shown = [each for each in sized[:_MAX_VALUES] if each[0] >= sized[0][0] / 10]
    if not shown or not shown[0][0]:
        return []
    return ["The largest results in it:", *(_result(n, node) for n, _, node in shown)]


def _result(nbytes: int, node: Node) -> str:
    value = next(value for value in node.outputs if value is not None)
    site = node.provenance.site
    at = f", {site}" if site is not None else ""
    shape = type_text(value.shape, value.dtype)
    return f"  {size_text(nbytes)}: {node.op.name}, {shape}{at}"


class explained:  # noqa: N801 - used like a function, in `with`
    """Turn XLA's words for a failed allocation into OutOfMemoryError; costs nothing else.

    Args:
        what: What is run, in words.
        inputs: The arrays that it reads; may be filled later.
    """

    __slots__ = ("_inputs", "_what")

    def __init__(self, what: str, inputs: Sequence[object] = ()) -> None:
        self._what = what
        self._inputs = inputs

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if error is None or isinstance(error, OutOfMemoryError):
            return
        if not isinstance(error, RuntimeError) or _EXHAUSTED not in str(error):
            return
        found = re.search(r"allocat\w+ (\d+) bytes", str(error))
        needed = int(found[1]) if found else 0
        size = size_text(needed) if needed else "the memory"
        # Not chained: XLA's error would keep frames, and with them inputs.
        raise OutOfMemoryError(
            f"the device could not allocate {size} for {self._what}. What that execution was to "
            f"compute is lost{self._rest()}.\n{_advice()}",
            needed=needed,
            available=available(),
        ) from None

    def _rest(self) -> str:
        """Return what became of other tensors: programs that ran before may have overwritten inputs."""
        arrays = (each for each in self._inputs if isinstance(each, jax_compat.Array))
        lost = sum(array.is_deleted() for array in arrays)
        if not lost:
            return ", and has to be computed again; every other tensor is as it was"
        return (
            f", with {plural(lost, 'tensor')} that it has overwritten already. Make the model and "
            "the optimizer anew, or load a checkpoint"
        )


def wait_for(data: Any) -> None:
    """Wait until one device array is computed; Ctrl-C ends the wait."""
    with explained("what this tensor comes from"):
        completion.wait_for(data)


def what_runs(ops: int) -> str:
    """Return what an execution is called in an error.

    Example:
        >>> what_runs(3)
        'a graph of 3 ops'
    """
    return f"a graph of {plural(ops, 'op')}"
