"""torch's process group on the device: `dist.init_process_group("lazyrt")`.

A collective is recorded like any op, so it is a part of the step's program; waiting for it
waits for nothing. DistributedDataParallel, `fully_shard` and DTensor build on these calls.
"""

# The methods are those that torch calls, with its arguments.
# ruff: noqa: A002, ARG002

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import linecache
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import distributed as dist

from lazyrt.errors import NoEquivalentError
from lazyrt.execution import cache_miss, replicas
from lazyrt.execution.executor import barrier
from lazyrt.frontend import optimizer_state
from lazyrt.frontend import torch_compat as compat
from lazyrt.frontend.buffers import state_of, value_of
from lazyrt.frontend.kernels import functional_kernel
from lazyrt.frontend.provenance import (
    is_library,
    outward,
    site_of,
    user_frame,
    user_site,
)
from lazyrt.frontend.reads import snapshot
from lazyrt.ir.live import Buffer, lock, pending
from lazyrt.ir.node import walk
from lazyrt.lowering import collectives
from lazyrt.lowering.collectives import is_collective

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType, FrameType


def register() -> None:
    """Register the backend `lazyrt` with torch."""
    if dist.is_available():
        dist.Backend.register_backend(
            "lazyrt", _create, extended_api=True, devices=[compat.DEVICE_TYPE]
        )


_is_following = False


@contextlib.contextmanager
def _allocating() -> Iterator[None]:
    """Let what DistributedDataParallel allocates in the block be inputs of the step."""
    with lock:
        before = set(pending.buffers)
    yield
    with lock:
        made = optimizer_state.begin_as_inputs(pending.buffers.keys() - before)
    if made:
        sizes = [value.shape[0] * value.dtype.itemsize for value in made]
        cache_miss.note_buckets(sizes)


def _create(options: Any, _backend_options: Any) -> LazyProcessGroup:
    global _is_following
    if not _is_following:
        _is_following = True
        compat.patch_buckets(_allocating)
    rank, size = options.group_rank, options.group_size
    ranks = tuple(options.global_ranks_in_group) or tuple(range(size))
    if not options.global_ranks_in_group:
        replicas.initialise(options.store, rank, size, _line_of, _condition)
    return LazyProcessGroup(rank, ranks)


def _line_of(frame: FrameType | None) -> str:
    own = user_frame(frame)
    return "" if own is None else str(site_of(own))


def _condition() -> str:
    """Return the condition on the rank that the caller's lines stand under; empty without one."""
    frames = (each for each in outward(sys._getframe(1)) if not is_library(each.f_code))
    found = (_condition_at(each.f_code, each.f_lineno) for each in frames)
    return next(filter(None, found), "")


_OF_RANK = re.compile(r"(?i)rank|ordinal|is_master|main_process|is_main")


@functools.lru_cache(maxsize=10_000)
def _condition_at(code: CodeType, line: int) -> str:
    """Return the innermost `if` around a line that asks for the rank, with its line; or nothing."""
    tree = cache_miss.tree_of(code.co_filename)
    if tree is None:
        return ""
    names = _names_of_rank(tree)
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and node.body[0].lineno <= line <= (node.end_lineno or 0)
        and node.lineno >= code.co_firstlineno
        and names & _names(node.test)
    ]
    if not found:
        return ""
    number = max(node.lineno for node in found)
    text = linecache.getline(code.co_filename, number).strip()
    return f"`{text}` at {Path(code.co_filename).name}:{number}"


def _names_of_rank(tree: ast.AST) -> set[str]:
    """Return names of the rank in a file, and of what is computed from it there."""
    made: list[tuple[set[str], set[str]]] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            made.append((set().union(*map(_names, targets)), _names(node.value)))
        elif isinstance(node, ast.FunctionDef):
            returned = [n for n in ast.walk(node) if isinstance(n, ast.Return)]
            made.append(({node.name}, set().union(*map(_names, returned))))
    known = {name for name in _names(tree) if _OF_RANK.search(name)}
    count = -1
    while count != len(known):
        count = len(known)
        for targets_, read in made:
            if read & known and len(targets_) == 1:
                known |= targets_
    return known


def _names(tree: ast.AST) -> set[str]:
    found = (getattr(n, "id", None) or getattr(n, "attr", None) for n in ast.walk(tree))
    return {name for name in found if isinstance(name, str)}


@functools.cache
def _kernel(func: torch._ops.OpOverload) -> Callable[..., torch.Tensor]:
    return functional_kernel(func)


def _reduction(options: Any) -> str:
    op = getattr(options, "reduceOp", dist.ReduceOp.SUM)
    name = str(getattr(op, "op", op)).rpartition(".")[2].lower()
    if name not in collectives.REDUCTIONS:
        raise NoEquivalentError(
            f"ReduceOp.{name.upper()} has no equivalent in lazyrt's collectives. They reduce by "
            f"{', '.join(sorted(collectives.REDUCTIONS))}; scale the tensor before the call."
        )
    return name


_Tensors = Sequence[torch.Tensor]
_Lists = Sequence[_Tensors]
# Their stubs know the overloads of C++ alone.
_ProcessGroup: Any = dist.ProcessGroup
_Work: Any = dist.Work


def _has_taken(target: torch.Tensor, value: torch.Tensor) -> bool:
    """Let a tensor that is no view take data as it is; return whether it did."""
    if not compat.is_lazy(target):
        return False
    with lock:
        own, found = state_of(target), state_of(value)
        if found.is_pending or not isinstance(own, Buffer):
            return False
        if own.type != found.base.type or not isinstance(found, Buffer):
            return False
        own.store(found.data, found.type)
        return True


def _comes_last(result: torch.Tensor) -> bool:
    """Return whether a collective is recorded behind the others of the step, and so is none of them."""
    with lock:
        node = value_of(result).node
        if node is None:  # it has run
            return True
        if node.id <= pending.last_collective:
            return False
        pending.last_collective = node.id
        return True


def _collects_parts() -> bool:
    """Return whether torch calls for the whole of a sharded tensor, which one rank alone may read."""
    return any(
        frame.f_code.co_name in compat.COLLECTORS and is_library(frame.f_code)
        for frame in outward(sys._getframe(1))
    )


def _check_alike(name: str, tensors: Iterable[torch.Tensor]) -> None:
    """Check that tensors have one shape."""
    shapes = {tuple(each.shape) for each in tensors}
    if len(shapes) > 1:
        raise NoEquivalentError(
            f"{name} of tensors of the shapes {', '.join(map(str, sorted(shapes)))} has no "
            "equivalent: all parts of a program are equal. Pad them to one shape."
        )


_messages: list[tuple[tuple[Any, ...], Callable[[], None]]] = []


class _Message(_Work):  # type: ignore[misc]
    """What isend and irecv return.

    The first one that is waited for records all of them, sorted alike on all ranks: a ring whose
    ranks all send first would wait for ever.
    """

    def wait(self, _timeout: Any = None) -> bool:
        """Record the messages that nobody has waited for."""
        while _messages:
            found = sorted(_messages, key=lambda message: message[0])
            _messages.clear()
            for _, record in found:
                record()
        return True

    is_completed = is_success = wait


class LazyProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """Records collectives of some ranks."""

    def __init__(self, rank: int, ranks: tuple[int, ...]) -> None:
        super().__init__(rank, len(ranks))
        self._ranks = ranks
        world = replicas.world()
        self._processes = len(ranks) if world is None else world.size
        self._group_name = self._group_desc = ""

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return `lazyrt`."""
        return "lazyrt"

    @property
    def group_name(self) -> str:
        """Torch's name of the group."""
        return self._group_name

    pg_name = group_name

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    @property
    def group_desc(self) -> str:
        """What torch says the group is for."""
        return self._group_desc

    def _set_group_desc(self, text: str) -> None:
        self._group_desc = text

    def _set_default_backend(self, kind: Any) -> None:
        pass

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(compat.DEVICE_TYPE), torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> LazyProcessGroup:
        return self

    def _start_coalescing(self, device: torch.device) -> None:
        pass

    def _end_coalescing(self, device: torch.device) -> Any:
        return compat.finished_work(None)

    def _compute(
        self,
        func: torch._ops.OpOverload,
        operand: torch.Tensor,
        *args: Any,
        ranks: Sequence[int] = (),
    ) -> torch.Tensor:
        """Record a collective on a tensor of any device.

        What is exchanged to be read in the middle of a step runs at once: integers that have
        data, such as sizes and counts; broadcasts of integers, for which other ranks only have
        room; parts that torch collects to save them or show them.
        """
        group = [*(ranks or self._ranks)]
        whole = not (operand.is_floating_point() or operand.is_complex())
        with torch.no_grad():
            lazy = operand.detach().to(compat.DEVICE_TYPE).contiguous()
            if func is collectives.all_gather and _collects_parts():
                whole = not any(map(is_collective, walk((value_of(lazy),))[0]))
                lazy = snapshot(lazy) if whole else lazy
            elif whole and func is collectives.broadcast:
                lazy = snapshot(lazy)
            at_once = whole and not state_of(lazy).is_pending
            for turn in itertools.count():
                result = _kernel(func)(lazy, *args, turn, group, self._processes)
                if at_once:
                    with replicas.together(user_site(2)):
                        return snapshot(result)
                if _comes_last(result):
                    break
            return result

    def _write(self, targets: _Tensors, values: Iterable[Any]) -> Any:
        """Write results, which a tensor of another device waits for; return work that is finished."""
        pairs = list(zip(targets, values, strict=True))
        if any(state_of(v).is_pending and not compat.is_lazy(t) for t, v in pairs):
            barrier("a collective of CPU tensors", user_site(2))
        with torch.no_grad():
            for target, value in pairs:
                if not _has_taken(target, value):
                    target.detach().copy_(value.reshape(target.shape))
        return compat.finished_work([*targets])

    def _write_on(self, rank: int, targets: _Tensors, values: Sequence[Any]) -> None:
        """Write results on one rank; the step computes them on the others, too."""
        if self.rank() == rank:
            self._write(targets, values)
            return
        with lock:
            pending.transient += [state_of(value).base for value in values]

    def _one_by_one(
        self, call: Callable[..., Any], outputs: _Tensors, inputs: _Tensors, opts: Any
    ) -> Any:
        """Record a collective for each output and its input."""
        for output, one in zip(outputs, inputs, strict=True):
            call(output, one, opts)
        return compat.finished_work([*outputs])

    # ------------------------------------------------------------------- reductions

    def allreduce(self, tensors: _Tensors, opts: Any = None) -> Any:
        """Reduce tensors over all ranks, in place."""
        kind = _reduction(opts)
        found = [self._compute(collectives.all_reduce, t, kind) for t in tensors]
        return self._write(tensors, found)

    def reduce(self, tensors: _Tensors, opts: Any = None) -> Any:
        """Reduce tensors; all ranks compute it, and one keeps it."""
        kind = _reduction(opts)
        found = [self._compute(collectives.all_reduce, t, kind) for t in tensors]
        self._write_on(getattr(opts, "rootRank", 0), tensors, found)
        return compat.finished_work([*tensors])

    def _reduce_scatter_base(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Any:
        flat = input.reshape(self.size(), -1)
        value = self._compute(collectives.reduce_scatter, flat, _reduction(opts))
        return self._write([output], [value])

    def reduce_scatter_tensor_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
    ) -> Any:
        """Reduce tensors and give each rank a part."""
        return self._one_by_one(self._reduce_scatter_base, outputs, inputs, opts)

    def reduce_scatter(
        self, outputs: _Tensors, inputs: _Lists, opts: Any = None
    ) -> Any:
        """Reduce lists of tensors and give each rank the one of its number."""
        stacked = [torch.stack([*parts]) for parts in inputs]
        return self._one_by_one(self._reduce_scatter_base, outputs, stacked, opts)

    # ---------------------------------------------------------------------- copies

    def broadcast(self, tensors: _Tensors, opts: Any = None) -> Any:
        """Give all ranks the tensors of one."""
        source = int(getattr(opts, "rootRank", 0))
        found = [self._compute(collectives.broadcast, t, source) for t in tensors]
        return self._write(tensors, found)

    def _allgather_base(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Any:
        value = self._compute(collectives.all_gather, input.reshape(1, -1))
        return self._write([output], [value])

    def allgather_into_tensor_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
    ) -> Any:
        """Collect the tensors of all ranks in one for each."""
        return self._one_by_one(self._allgather_base, outputs, inputs, opts)

    def allgather(self, outputs: _Lists, inputs: _Tensors, opts: Any = None) -> Any:
        """Collect the tensors of all ranks in lists."""
        for parts, one in zip(outputs, inputs, strict=True):
            _check_alike("all_gather", (one, *parts))
            value = self._compute(collectives.all_gather, one.reshape(1, -1))
            self._write(parts, value.unbind(0))
        return compat.finished_work([list(parts) for parts in outputs])

    def gather(self, outputs: _Lists, inputs: _Tensors, opts: Any = None) -> Any:
        """Collect the tensors of all ranks in lists of one; all compute it."""
        for parts, one in itertools.zip_longest(outputs, inputs):
            value = self._compute(collectives.all_gather, one.reshape(1, -1))
            self._write_on(getattr(opts, "rootRank", 0), parts, value.unbind(0))
        return compat.finished_work([list(parts) for parts in outputs])

    def scatter(self, outputs: _Tensors, inputs: _Lists, opts: Any = None) -> Any:
        """Give each rank one of a rank's tensors."""
        source = int(getattr(opts, "rootRank", 0))
        for number, output in enumerate(outputs):
            if self.rank() == source:
                parts = torch.stack([*inputs[number]])
            else:
                parts = output.new_zeros((self.size(), *output.shape))
            value = self._compute(collectives.broadcast, parts, source)
            self._write([output], [value[self.rank()]])
        return compat.finished_work([*outputs])

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Any:
        """Exchange equal parts of a tensor with all ranks."""
        splits = {*output_splits, *input_splits}
        if len(splits) > 1 or len(input) % self.size():
            raise NoEquivalentError(
                f"all_to_all with splits {[*input_splits]} and {[*output_splits]} of {len(input)} "
                "rows has no equivalent: a program's shapes are known, and all parts are equal. "
                "Pad the parts to one size."
            )
        value = self._compute(collectives.all_to_all, input)
        return self._write([output], [value])

    def alltoall(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> Any:
        """Exchange equal tensors with all ranks."""
        _check_alike("all_to_all", (*inputs, *outputs))
        value = self._compute(collectives.all_to_all, torch.stack([*inputs]))
        return self._write(outputs, value.unbind(0))

    def barrier(self, opts: Any = None) -> Any:
        """Run what is pending, and wait for all ranks."""
        one = torch.ones(1, device=compat.DEVICE_TYPE)
        result = self._compute(collectives.all_reduce, one, "sum")
        barrier("dist.barrier()", user_site(2))
        result.cpu()
        return compat.finished_work(None)

    # -------------------------------------------------------------------- messages

    def send(self, tensors: _Tensors, dst: int, tag: int) -> Any:
        """Give another rank tensors, when it is waited for."""
        return self._message(tensors, self.rank(), dst, tag)

    def recv(self, tensors: _Tensors, src: int, tag: int) -> Any:
        """Take tensors from another rank, when it is waited for."""
        return self._message(tensors, src, self.rank(), tag)

    def _message(self, tensors: _Tensors, src: int, dst: int, tag: int) -> Any:
        """Note a broadcast of two ranks, for the first wait to record."""
        source = self._ranks[src]
        pair = sorted((source, self._ranks[dst]))

        def record() -> None:
            for each in tensors:
                place = pair.index(source)
                value = self._compute(collectives.broadcast, each, place, ranks=pair)
                self._write_on(dst, [each], [value])

        _messages.append(((pair, source, tag), record))
        return _Message()

    def recv_anysource(self, *_: Any) -> NoReturn:
        """Refuse: a program names the ranks that exchange."""
        raise NoEquivalentError(
            "dist.recv() from any rank has no equivalent in lazyrt: a program names the ranks that "
            "exchange data. Name the rank with `src=`."
        )

    # torch 2.13 asks for some by other names, too.
    allreduce_coalesced = allreduce
    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base
