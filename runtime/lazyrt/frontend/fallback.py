"""Ops without a lowering: run by torch on the CPU, counted, with their line.

The operands' values are needed now, so everything pending runs first: a cut of the graph,
which the event names. Operands that are ready cut nothing.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.execution.executor import barrier
from lazyrt.frontend import finalisers, generators, provenance
from lazyrt.frontend.buffers import state_of
from lazyrt.frontend.dynamic_shapes import with_known_shape
from lazyrt.frontend.guard import check_shape
from lazyrt.frontend.reads import peek
from lazyrt.frontend.torch_compat import DEVICE_TYPE, is_lazy
from lazyrt.frontend.views import flat_storage, resize, shows_twice
from lazyrt.ir.live import FromCpu
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Iterator


def run_on_cpu(
    func: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any], reason: str
) -> Any:
    """Run an op on CPU copies of its operands and bring its results to the device.

    Args:
        func: The overload that the program called; mutated operands are written back.
        args: Positional arguments.
        kwargs: Keyword arguments.
        reason: Why there is no lowering, for the event.

    Raises:
        StepSyncError: The shape of the result depends on the data, inside a step that forbids
            reads.
    """
    site = provenance.user_site(2)
    if _any_lazy([args, kwargs]):
        recorded = with_known_shape(func, args, kwargs)
        if recorded is not NotImplemented:
            return recorded
        needs_a_cut = _any_pending([args, kwargs])
        if needs_a_cut and torch.Tag.dynamic_output_shape in func.tags:
            check_shape(str(func))
        if needs_a_cut and not finalisers.interrupts_another_op():
            barrier(f"CPU fallback of {func}", site)
    events.emit(events.FallbackUsed(op=str(func), reason=reason, site=site))
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    targets = _written(func, args, kwargs)
    host_args = [_to_host(arg, copies, targets) for arg in args]
    host_kwargs = {name: _to_host(arg, copies, targets) for name, arg in kwargs.items()}
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
                _write_back(lazy, host)
        return _to_device(result, originals, FromCpu(str(func), site))


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


def _any_lazy(arg: Any) -> bool:
    return any(map(is_lazy, _flat(arg)))


def _any_pending(arg: Any) -> bool:
    return any(state_of(part).is_pending for part in _flat(arg) if is_lazy(part))


def _flat(arg: Any) -> Iterator[Any]:
    """Yield what lists and dicts of arguments hold."""
    if isinstance(arg, dict):
        arg = list(arg.values())
    if not isinstance(arg, (list, tuple)):
        yield arg
        return
    for part in arg:
        yield from _flat(part)


def _to_host(
    arg: Any, copies: list[tuple[torch.Tensor, torch.Tensor]], targets: set[int]
) -> Any:
    """Return an argument with CPU copies of its lazy tensors, which `copies` gets.

    Args:
        arg: Of the op that was called.
        copies: Pairs of a lazy tensor and its copy.
        targets: The ids of the tensors that the op writes.
    """
    if is_lazy(arg):
        is_repeating = id(arg) in targets and shows_twice(arg)
        host = _laid_out_alike(arg) if is_repeating else peek(arg)
        copies.append((arg, host))
        return host
    if isinstance(arg, (list, tuple)):
        return [_to_host(part, copies, targets) for part in arg]
    if isinstance(arg, torch.device):
        return torch.device("cpu")
    return arg


def _laid_out_alike(lazy: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor that shows a copy of the storage just as `lazy` shows its own."""
    host = peek(flat_storage(lazy))
    return host.as_strided(lazy.shape, lazy.stride(), lazy.storage_offset())


def _write_back(lazy: torch.Tensor, host: torch.Tensor) -> None:
    if lazy.shape != host.shape:
        resize(lazy, tuple(host.shape))
    if shows_twice(lazy):
        flat = flat_storage(lazy)
        lazy, host = flat, host.as_strided(flat.shape, (1,), 0)
    lazy.copy_(host)


def _to_device(result: Any, originals: dict[int, torch.Tensor], source: FromCpu) -> Any:
    if isinstance(result, torch.Tensor):
        original = originals.get(id(result))
        if original is not None:
            return original
        made = result.to(DEVICE_TYPE)
        state_of(made).base.run = source
        return made
    if isinstance(result, (list, tuple)):
        return type(result)(_to_device(part, originals, source) for part in result)
    return result
