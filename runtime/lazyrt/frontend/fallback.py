"""Ops without a lowering: recorded where the host knows the shape of the result, else run on the CPU.

The operands' values are needed now, so everything pending runs first: a graph break,
which the event names. Ready operands break nothing.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from lazyrt.execution.executor import barrier
from lazyrt.frontend import generators, guard, host_constants, provenance, reads
from lazyrt.frontend.buffers import state_of, value_of
from lazyrt.frontend.guard import check_shape
from lazyrt.frontend.reads import peek
from lazyrt.frontend.torch_compat import DEVICE_TYPE, aten, is_lazy
from lazyrt.frontend.views import resize
from lazyrt.ir.live import FromCpu, lock, pending
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def run_on_cpu(
    func: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any], reason: str
) -> Any:
    """Run an op on CPU copies of its operands and bring its results to the device.

    Operands that the op mutates are written back. The reason says in the event why there is no
    lowering. A result whose shape depends on the data is a StepSyncError inside a step that forbids
    reads.
    """
    site = provenance.user_site(2)
    operands = [part for part in tree_leaves([args, kwargs]) if is_lazy(part)]
    if operands:
        recorded = with_known_shape(func, args, kwargs)
        if recorded is not NotImplemented:
            return recorded
        needs_a_cut = any(state_of(part).is_pending for part in operands)
        if needs_a_cut and torch.Tag.dynamic_output_shape in func.tags:
            check_shape(str(func))
        if needs_a_cut and not guard.interrupts_another_op():
            barrier(f"CPU fallback of {func}", site)
    events.emit(events.FallbackUsed(op=str(func), reason=reason, site=site))
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    targets = _written(func, args, kwargs)

    def to_host(arg: Any) -> Any:
        if is_lazy(arg):
            copies.append((arg, peek(arg)))
            return copies[-1][1]
        return torch.device("cpu") if isinstance(arg, torch.device) else arg

    def to_device(result: torch.Tensor) -> torch.Tensor:
        original = originals.get(id(result))
        if original is not None:
            return original
        made = result.to(DEVICE_TYPE)
        state_of(made).base.run = FromCpu(str(func), site)
        return made

    host_args, host_kwargs = tree_map(to_host, (args, kwargs))
    if "device" in host_kwargs:
        host_kwargs["device"] = torch.device("cpu")
    with torch.no_grad(), _random_numbers(func, host_args, host_kwargs):
        start = time.perf_counter_ns()
        result = func(*host_args, **host_kwargs)
        took = time.perf_counter_ns() - start
        events.emit(events.FallbackFinished(op=str(func), site=site, duration_ns=took))
        originals = {id(host): lazy for lazy, host in copies}
        for lazy, host in copies:
            if id(lazy) in targets:
                if lazy.shape != host.shape:
                    resize(lazy, tuple(host.shape))
                lazy.copy_(host)
        return tree_map_only(torch.Tensor, to_device, result)


def _written(
    func: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any]
) -> set[int]:
    """Return the ids of the tensors that the op's schema says it writes."""
    written = set()
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = args[position] if position < len(args) else kwargs.get(argument.name)
        for tensor in given if isinstance(given, (list, tuple)) else (given,):
            written.add(id(tensor))
    return written


@contextlib.contextmanager
def _random_numbers(
    func: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any]
) -> Iterator[None]:
    """Let a random op draw what follows from the device's generator, not from the CPU's."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        yield
        return
    for position, argument in enumerate(func._schema.arguments):
        if argument.name != "generator":
            continue
        if position < len(args):
            args[position] = generators.host_generator(args[position])
        else:
            kwargs["generator"] = generators.host_generator(kwargs.get("generator"))
        yield
        return
    before = torch.default_generator.get_state()
    drawn = generators.host_generator(None)
    torch.default_generator.set_state(drawn.get_state())
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


# -------------------------------------------------- results whose shape depends on data
# A mask (`logits[attention_mask == 1]`) leaves so many elements as the batch says. One that an
# installed package asks for is read by a peek, and the op is recorded with the positions of its true
# elements. A mask that bounds decide (`frontend.host_constants`) takes no read.
#
# `torch.bincount` is recorded with length `minlength` where the elements' bounds show that none is as
# large, and where the elements are a package's small check, with the length of the largest: then each
# length is a graph. Elsewhere, as in a user's own line, the op breaks the graph.


_DYNAMIC = frozenset(
    ("aten.index.Tensor", "aten.index_put.default", "aten.index_put_.default",
     "aten._index_put_impl_.default", "aten.masked_select.default", "aten.bincount.default")
)  # fmt: skip
_MASKS = frozenset((torch.bool, torch.uint8))


def with_known_shape(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Record an op with the shape that the host knows; `NotImplemented` where it takes a break."""
    name = str(func)
    if pending.eager or name not in _DYNAMIC:
        return NotImplemented
    if name == "aten.bincount.default":
        names = (argument.name for argument in func._schema.arguments)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        return _bincount(given["self"], given.get("weights"), given.get("minlength", 0))
    x, indices, *rest = (
        *args,
        *(kwargs[a.name] for a in func._schema.arguments if a.name in kwargs),
    )
    with torch.no_grad():
        if name == "aten.masked_select.default":
            return _masked_select(x, indices)
        if name == "aten.index.Tensor" and _hides_nothing(indices, x):
            return x.reshape(-1, *x.shape[indices[0].dim() :]).clone()
        positions = _positions(indices)
        return NotImplemented if positions is None else func(x, positions, *rest)


def _masked_select(x: torch.Tensor, mask: torch.Tensor) -> Any:
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    known = reads.mask_on_host(mask) if is_lazy(mask) else None
    if known is None or not shape:
        return NotImplemented
    places = [
        place.to(DEVICE_TYPE) for place in known.expand(shape).nonzero().unbind(1)
    ]
    return aten.index.Tensor(x.expand(shape), places)


def _hides_nothing(indices: Sequence[Any], x: torch.Tensor) -> bool:
    """Return whether an index list is one mask whose ops tell that all of it is true."""
    if len(indices) != 1 or indices[0] is None or not is_lazy(indices[0]):
        return False
    (mask,) = indices
    if mask.dtype is not torch.bool or not mask.dim() or not state_of(mask).is_pending:
        return False
    fits = mask.shape == x.shape[: mask.dim()]
    return fits and host_constants.bounds_of(value_of(mask)) == (1, 1)


def _positions(indices: Sequence[Any]) -> list[Any] | None:
    """Return an index list without masks; None if one of them is not known, or there is none."""
    found: list[Any] = []
    masks = 0
    for index in indices:
        if index is None or index.dtype not in _MASKS or not is_lazy(index):
            found.append(index)
            continue
        known = reads.mask_on_host(index)
        if known is None or not known.dim():
            return None
        masks += 1
        found += [place.to(DEVICE_TYPE) for place in known.nonzero().unbind(1)]
    return found if masks else None


def _bincount(x: torch.Tensor, weights: torch.Tensor | None, least: int) -> Any:
    is_sound = x.dim() == 1 and least >= 0 and is_lazy(x)
    if weights is not None and (weights.shape != x.shape or not is_lazy(weights)):
        is_sound = False
    if not is_sound or x.dtype.is_floating_point or x.dtype.is_complex:
        return NotImplemented  # the CPU finds the words
    length = _length(x, least)
    if length is None:
        return NotImplemented
    with torch.no_grad():
        if weights is None or not x.numel():
            weights = x.new_ones((), dtype=torch.int64).expand(x.shape)
        elif weights.dtype is not torch.float32:
            weights = weights.double()
        return weights.new_zeros(length).scatter_add(0, x.long(), weights)


def _length(x: torch.Tensor, least: int) -> int | None:
    """Return how long the result is; None if that is not known, or an element is negative."""
    if not x.numel():
        return least
    if least and _stay_below(least, x):
        return least
    known = reads.mask_on_host(x) if state_of(x).is_pending else None
    if known is None or int(known.min()) < 0:
        return None
    return max(least, int(known.max()) + 1)


def _stay_below(limit: int, x: torch.Tensor) -> bool:
    with lock:
        value = value_of(x)
    found = host_constants.bounds_of(value)
    return found is not None and found[0] >= 0 and found[1] < limit
