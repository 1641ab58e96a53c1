"""Runs cases on the lazy device and on the CPU, and says how the two compare.

Compiling is nearly all of the cost, so the samples of several cases are recorded one after
the other and run by one barrier, in the fast compile tier.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

import lazyrt
from lazyrt.observe import events
from tests.opinfo import known
from tests.opinfo.cases import Case, samples, tensors, to_lazy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Kind = Literal["own", "fallback", "gap"]
Direction = Literal["forward", "backward"]

# Cases that share a barrier. More make each compile longer than what they save.
GROUP = 6

_TOLERANCE: dict[torch.dtype, tuple[float, float]] = {
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (1.6e-2, 1.6e-2),
    torch.float32: (1e-4, 2e-5),
    torch.complex64: (1e-4, 2e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
}


# So few values that the samples hold equal ones.
_COARSE = frozenset((torch.bool, torch.float16, torch.bfloat16))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one case in one direction.

    Attributes:
        kind: `own` where every op was lowered, `fallback` where the CPU ran at least one and
            the results are right, `gap` where they are wrong or an exception came.
        fallbacks: The ops that the CPU ran.
        detail: What was wrong; empty otherwise.
    """

    case: Case
    direction: Direction
    kind: Kind
    fallbacks: tuple[str, ...] = ()
    detail: str = ""


@dataclass
class _Recorded:
    """One sample: what the CPU gave, and the lazy tensors that wait for a barrier."""

    expected: list[torch.Tensor]
    found: list[torch.Tensor]


@dataclass
class _Run:
    """One case under way."""

    case: Case
    results: dict[Direction, list[_Recorded]] = field(default_factory=dict)
    fallbacks: dict[Direction, list[str]] = field(default_factory=dict)
    errors: dict[Direction, str] = field(default_factory=dict)

    def outcomes(self) -> list[Outcome]:
        directions: list[Direction] = ["forward"]
        if self.case.has_backward:
            directions.append("backward")
        return [self._outcome(direction) for direction in directions]

    def _outcome(self, direction: Direction) -> Outcome:
        fallbacks = tuple(dict.fromkeys(self.fallbacks.get(direction, ())))
        detail = self.errors.get(direction, "")
        if not detail and direction not in self.results:
            detail = (
                "it has no samples" if direction == "forward" else "its forward failed"
            )
        kind: Kind = "gap" if detail else "fallback" if fallbacks else "own"
        return Outcome(self.case, direction, kind, fallbacks, detail)


def sweep(
    cases: Sequence[Case],
    *,
    count: int,
    group: int = GROUP,
    progress: Callable[[Case], None] = lambda _case: None,
) -> Iterator[Outcome]:
    """Yield the outcomes of cases, forward and where there is one backward.

    Args:
        cases: In any order.
        count: Samples of each.
        group: How many cases share a barrier.
        progress: Called as each case begins.
    """
    for start in range(0, len(cases), group):
        yield from _run_group(cases[start : start + group], count, progress)


def _run_group(
    cases: Sequence[Case], count: int, progress: Callable[[Case], None]
) -> Iterable[Outcome]:
    with _quiet():
        runs = []
        for case in cases:
            progress(case)
            runs.append(_record(case, count))
        try:
            lazyrt.mark_step()
        except Exception as error:  # noqa: BLE001 - whose fault it is shows one by one
            if len(cases) == 1:
                runs[0].errors["forward"] = _text(error)
            else:
                del runs
                return [
                    o for case in cases for o in _run_group([case], count, progress)
                ]
        for run in runs:
            _compare(run)
        return [outcome for run in runs for outcome in run.outcomes()]


@contextmanager
def _quiet() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(lazyrt.config.scoped(compile_tier="fast"))
        yield


def _record(case: Case, count: int) -> _Run:
    run = _Run(case)
    try:
        chosen = samples(case, count)
    except Exception as error:  # noqa: BLE001
        run.errors["forward"] = f"no samples: {_text(error)}"
        return run
    for sample in chosen:
        _record_sample(run, sample)
    return run


def _record_sample(run: _Run, sample: Any) -> None:
    case = run.case
    args, kwargs = (sample.input, *sample.args), sample.kwargs
    seed = torch.random.get_rng_state()
    try:
        expected = _call(case, sample, args, kwargs)
    except Exception as error:  # noqa: BLE001
        run.errors.setdefault("forward", f"the CPU refuses it: {_text(error)}")
        return
    torch.random.set_rng_state(seed)
    if case.name in known.ON_THE_HOST:
        lazy_args, lazy_kwargs = (to_lazy(args[0]), *args[1:]), kwargs
    else:
        lazy_args, lazy_kwargs = to_lazy((args, kwargs))
    seen: list[str] = run.fallbacks.setdefault("forward", [])
    try:
        with _fallbacks(seen):
            found = _call(case, sample, lazy_args, lazy_kwargs)
    except Exception as error:  # noqa: BLE001
        run.errors.setdefault("forward", _text(error))
        return
    wanted, have = tensors(expected), tensors(found)
    run.results.setdefault("forward", []).append(_Recorded(wanted, have))
    if not case.has_backward:
        return
    seen = run.fallbacks.setdefault("backward", [])
    expected_grads = _gradients(wanted, tensors([args, kwargs]))
    try:
        with _fallbacks(seen):
            grads = _gradients(have, tensors([lazy_args, lazy_kwargs]))
    except Exception as error:  # noqa: BLE001
        run.errors.setdefault("backward", _text(error))
        return
    run.results.setdefault("backward", []).append(_Recorded(expected_grads, grads))


def _call(case: Case, sample: Any, args: Any, kwargs: Any) -> Any:
    with torch.set_grad_enabled(case.has_backward):
        out = case.info.op(*args, **kwargs)
        return sample.output_process_fn_grad(out)


def _gradients(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the gradients of a weighted sum of the outputs; zero stands for none."""
    roots = [out for out in outputs if out.requires_grad]
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    if not roots or not leaves:
        return []
    weights = [_weights(out) for out in roots]
    grads: Any = torch.autograd.grad(roots, leaves, weights, allow_unused=True)
    return [
        torch.zeros((), device=leaf.device) if grad is None else grad
        for leaf, grad in zip(leaves, grads, strict=True)
    ]


def _weights(out: torch.Tensor) -> torch.Tensor:
    """Return numbers between 1/2 and 1 that differ from element to element."""
    steps = torch.arange(out.numel(), dtype=torch.float64).reshape(out.shape)
    return (0.75 + torch.cos(steps) / 4).to(out.dtype).to(out.device)


@contextmanager
def _fallbacks(seen: list[str]) -> Iterator[None]:
    """Collect the names of the ops that the CPU runs."""

    def note(event: events.Event) -> None:
        if isinstance(event, events.FallbackUsed):
            seen.append(event.op)

    with lazyrt.subscribe(note, events.FallbackUsed, exact=False):
        yield


def _compare(run: _Run) -> None:
    for direction, recorded in run.results.items():
        for number, pair in enumerate(recorded):
            if direction in run.errors:
                break
            try:
                _compare_sample(run.case, pair)
            except Exception as error:  # noqa: BLE001
                run.errors[direction] = f"sample {number}: {_text(error)}"


def _compare_sample(case: Case, pair: _Recorded) -> None:
    if len(pair.expected) != len(pair.found):
        raise AssertionError(f"{len(pair.found)} results, not {len(pair.expected)}")
    for want, have in zip(pair.expected, pair.found, strict=True):
        _compare_tensor(case, want.detach(), have.detach())


def _compare_tensor(case: Case, want: torch.Tensor, have: torch.Tensor) -> None:
    is_zero: bool = torch._is_zerotensor(want)
    if is_zero:
        want = torch.zeros(want.shape, dtype=want.dtype)  # assert_close crashes on it
    if have.device.type == "lazyrt":
        have = have.cpu()
    want = want.resolve_conj().resolve_neg()
    if want.shape != have.shape or want.dtype is not have.dtype:
        raise AssertionError(
            f"{have.dtype}{list(have.shape)}, not {want.dtype}{list(want.shape)}"
        )
    if case.name in {*known.RANDOM, *known.UNDEFINED}:
        return
    if case.name in known.TIED and case.dtype in _COARSE:
        return
    factor, _ = known.LOOSE.get(case.name, (1, ""))
    if case.dtype in {torch.float16, torch.bfloat16}:
        factor, _ = known.LOOSE_HALVES.get(case.name, (factor, ""))
    narrow = min(
        (want.dtype, case.dtype), key=lambda dtype: -_TOLERANCE.get(dtype, (0, 0))[0]
    )
    rtol, atol = _TOLERANCE.get(narrow, (0.0, 0.0))
    torch.testing.assert_close(
        have, want, rtol=rtol * factor, atol=atol * factor, equal_nan=True
    )


def _text(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:400]}"
