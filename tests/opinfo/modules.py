"""torch's own table of modules, `module_db`, as cases for the sweep.

A module is built on the CPU and copied to the device. Results, buffers afterwards, and the
gradients of inputs and parameters are compared.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import parameter

from tests.opinfo.cases import Case, tensors, to_lazy
from tests.opinfo.sweep import (
    Direction,
    Recorded,
    Run,
    counting_fallbacks,
    gradients,
    text_of,
    widened,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_EVALUATED = ".eval"
_DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


def module_cases(names: Iterable[str] | None = None) -> list[Case]:
    """Return torch's modules, and once more in evaluation those that differ there.

    Args:
        names: Which modules, as in `nn.Linear`; None for all.
    """
    from torch.testing._internal.common_modules import module_db

    chosen = None if names is None else set(names)
    return [
        Case(info.name + ending, info, torch.float32, has_backward=True)
        for info in module_db
        if chosen is None or info.name in chosen
        for ending in ("", *((_EVALUATED,) * info.train_and_eval_differ))
    ]


def record_module(case: Case, count: int) -> Run:
    """Run samples of a module on the CPU and record them on the device."""
    run = Run(case)
    for sample in _samples(case, count):
        try:
            _record_sample(run, sample)
        except Exception as error:  # noqa: BLE001
            run.errors.setdefault("forward", text_of(error))
    return run


def _samples(case: Case, count: int) -> Sequence[Any]:
    """Return up to `count` samples that call the module, spread over those that torch has."""
    torch.manual_seed(0)
    inputs = case.info.module_inputs_func(
        case.info,
        device="cpu",
        dtype=case.dtype,
        requires_grad=True,
        training=_is_training(case),
    )
    found = [sample for sample in inputs if sample.forward_input is not None]
    step = max((len(found) - 1) / max(count - 1, 1), 1)
    return [found[round(k * step)] for k in range(min(count, len(found)))]


def _is_training(case: Case) -> bool:
    return not case.name.endswith(_EVALUATED)


def _record_sample(run: Run, sample: Any) -> None:
    module = _built(run.case, sample)
    args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
    mine, (lazy_args, lazy_kwargs) = _moved(module, sample), to_lazy((args, kwargs))
    exact = copy.deepcopy(module).double()
    try:
        wanted, wanted_grads = _called(module, args, kwargs)
    except Exception as error:  # noqa: BLE001 - the device must refuse it, too
        _expect_refusal(error, mine, lazy_args, lazy_kwargs)
        for direction in _DIRECTIONS:
            run.results.setdefault(direction, [])
        return
    best, best_grads = _called(exact, widened(args), widened(kwargs))
    seen: list[str] = run.fallbacks.setdefault("forward", [])
    with counting_fallbacks(seen, run.reads.setdefault("forward", [])):
        found, found_grads = _called(mine, lazy_args, lazy_kwargs)
    run.fallbacks["backward"] = seen
    rows = (wanted, found, best), (wanted_grads, found_grads, best_grads)
    for direction, row in zip(_DIRECTIONS, rows, strict=True):
        run.results.setdefault(direction, []).append(Recorded(sample, *row))


def _expect_refusal(
    expected: Exception, module: torch.nn.Module, args: Any, kwargs: Any
) -> None:
    """Call a module that must refuse its arguments as the CPU's does.

    Raises:
        AssertionError: It takes them, or raises another kind of error.
    """
    try:
        module(*args, **kwargs)
    except type(expected):
        return
    raise AssertionError(f"the CPU refuses it: {text_of(expected)}")


def _built(case: Case, sample: Any) -> torch.nn.Module:
    torch.manual_seed(1)
    made = sample.constructor_input
    module: torch.nn.Module = case.info.module_cls(*made.args, **made.kwargs)
    return module.train(_is_training(case))


def _moved(module: torch.nn.Module, sample: Any) -> torch.nn.Module:
    """Return a module's copy on the device; one without shapes has got them by a call there."""
    mine = copy.deepcopy(module).to("lazyrt")
    if not any(map(parameter.is_lazy, module.parameters())):
        return mine
    args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
    with torch.no_grad():
        module(*args, **kwargs)
        mine(*to_lazy(args), **to_lazy(kwargs))
    mine.load_state_dict(module.state_dict())
    return mine


def _called(
    module: torch.nn.Module, args: Any, kwargs: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return a module's results and buffers, and the gradients of all that it reads."""
    results = tensors(module(*args, **kwargs))
    leaves = [*tensors([args, kwargs]), *module.parameters()]
    return [*results, *module.buffers()], gradients(results, leaves)
