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

# Cases that share a barrier: 96 took 15.9 s of CPU by sixes, 14.7 by twelves, 14.4 by twenty-fours.
GROUP = 12

_TOLERANCE: dict[torch.dtype, tuple[float, float]] = {
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (1.6e-2, 1.6e-2),
    torch.float32: (1e-4, 2e-5),
    torch.complex64: (1e-4, 2e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
}


# How much further than the CPU an inexact op may be from the result in float64.
_FURTHER = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one case in one direction.

    Attributes:
        kind: `own` where every op was lowered, `fallback` where the CPU ran at least one and
            the results are right, `gap` where they are wrong or an exception came.
        fallbacks: The ops that the CPU ran.
        detail: What was wrong; empty otherwise.
        reads: Why the graph was cut although the device computes everything: torch read a value.
    """

    case: Case
    direction: Direction
    kind: Kind
    fallbacks: tuple[str, ...] = ()
    detail: str = ""
    reads: tuple[str, ...] = ()


@dataclass
class Recorded:
    """One sample: what the CPU gave, and the lazy tensors that wait for a barrier.

    Attributes:
        sample: The op's arguments.
        expected, found: The results, or gradients.
        exact: What the CPU gives in float64; empty unless the op is inexact.
    """

    sample: Any
    expected: list[torch.Tensor]
    found: list[torch.Tensor]
    exact: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Run:
    """One case under way."""

    case: Case
    results: dict[Direction, list[Recorded]] = field(default_factory=dict)
    fallbacks: dict[Direction, list[str]] = field(default_factory=dict)
    errors: dict[Direction, str] = field(default_factory=dict)
    reads: dict[Direction, list[str]] = field(default_factory=dict)

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
        reads = tuple(dict.fromkeys(self.reads.get(direction, ())))
        return Outcome(self.case, direction, kind, fallbacks, detail, reads)


def sweep(
    cases: Sequence[Case],
    *,
    count: int,
    group: int = GROUP,
    progress: Callable[[Case], None] = lambda _case: None,
    record: Callable[[Case, int], Run] | None = None,
) -> Iterator[Outcome]:
    """Yield the outcomes of cases, forward and where there is one backward.

    Args:
        cases: In any order.
        count: Samples of each.
        group: How many cases share a barrier.
        progress: Called as each case begins.
        record: Records one case's samples; that of `op_db` when None.
    """
    for start in range(0, len(cases), group):
        chosen = cases[start : start + group]
        yield from _run_group(chosen, count, progress, record or _record)


def _run_group(
    cases: Sequence[Case],
    count: int,
    progress: Callable[[Case], None],
    record: Callable[[Case, int], Run],
) -> Iterable[Outcome]:
    with _quiet():
        runs = []
        for case in cases:
            progress(case)
            runs.append(record(case, count))
        try:
            lazyrt.mark_step()
        except Exception as error:  # noqa: BLE001 - whose fault it is shows one by one
            if len(cases) == 1:
                runs[0].errors["forward"] = text_of(error)
            else:
                del runs
                return [
                    o
                    for case in cases
                    for o in _run_group([case], count, progress, record)
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


def _record(case: Case, count: int) -> Run:
    run = Run(case)
    try:
        chosen = samples(case, count)
    except Exception as error:  # noqa: BLE001
        run.errors["forward"] = f"no samples: {text_of(error)}"
        return run
    for sample in chosen:
        _record_sample(run, sample)
    return run


def _record_sample(run: Run, sample: Any) -> None:
    case = run.case
    args, kwargs = (sample.input, *sample.args), sample.kwargs
    seed = torch.random.get_rng_state()
    try:
        expected = _call(case, sample, args, kwargs)
    except Exception as error:  # noqa: BLE001
        run.errors.setdefault("forward", f"the CPU refuses it: {text_of(error)}")
        return
    torch.random.set_rng_state(seed)
    if case.name in known.ON_THE_HOST:
        lazy_args, lazy_kwargs = (to_lazy(args[0]), *args[1:]), kwargs
    else:
        lazy_args, lazy_kwargs = to_lazy((args, kwargs))
    seen: list[str] = run.fallbacks.setdefault("forward", [])
    try:
        with counting_fallbacks(seen, run.reads.setdefault("forward", [])):
            found = _call(case, sample, lazy_args, lazy_kwargs)
    except Exception as error:  # noqa: BLE001
        run.errors.setdefault("forward", text_of(error))
        return
    wanted, have = tensors(expected), tensors(found)
    exact, exact_grads = _in_float64(case, sample)
    run.results.setdefault("forward", []).append(Recorded(sample, wanted, have, exact))
    if not case.has_backward:
        return
    seen = run.fallbacks.setdefault("backward", [])
    expected_grads = gradients(wanted, tensors([args, kwargs]))
    try:
        with counting_fallbacks(seen, run.reads.setdefault("backward", [])):
            grads = gradients(have, tensors([lazy_args, lazy_kwargs]))
    except Exception as error:  # noqa: BLE001
        run.errors.setdefault("backward", text_of(error))
        return
    run.results.setdefault("backward", []).append(
        Recorded(sample, expected_grads, grads, exact_grads)
    )


def _in_float64(
    case: Case, sample: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the results and gradients of an inexact op in float64, on the CPU."""
    if case.name not in known.INEXACT or case.dtype is torch.float64:
        return [], []
    args, kwargs = widened((sample.input, *sample.args)), widened(sample.kwargs)
    results = tensors(_call(case, sample, args, kwargs))
    grads = gradients(results, tensors([args, kwargs]), case.dtype)
    return results, grads


def widened(tree: Any) -> Any:
    """Return a call's arguments with tensors of 64-bit parts."""
    if isinstance(tree, torch.Tensor):
        if not tree.is_floating_point() and not tree.is_complex():
            return tree
        wide = torch.complex128 if tree.is_complex() else torch.float64
        return tree.detach().to(wide).requires_grad_(tree.requires_grad)
    if isinstance(tree, (list, tuple)):
        return type(tree)(widened(part) for part in tree)
    if isinstance(tree, dict):
        return {name: widened(part) for name, part in tree.items()}
    return tree


def _call(case: Case, sample: Any, args: Any, kwargs: Any) -> Any:
    with torch.set_grad_enabled(case.has_backward):
        out = case.info.op(*args, **kwargs)
        return sample.output_process_fn_grad(out)


def gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    rounded: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """Return the gradients of a weighted sum of the outputs; zero stands for none.

    Args:
        outputs: Results of an op.
        inputs: Its arguments.
        rounded: The weights are rounded to this dtype; None for that of each output.
    """
    roots = [out for out in outputs if out.requires_grad]
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    if not roots or not leaves:
        return []
    weights = [_weights(out, rounded) for out in roots]
    grads: Any = torch.autograd.grad(roots, leaves, weights, allow_unused=True)
    return [
        torch.zeros((), device=leaf.device) if grad is None else grad
        for leaf, grad in zip(leaves, grads, strict=True)
    ]


def _weights(out: torch.Tensor, rounded: torch.dtype | None) -> torch.Tensor:
    """Return numbers between 1/2 and 1 that differ from element to element."""
    steps = torch.arange(out.numel(), dtype=torch.float64).reshape(out.shape)
    weights = (0.75 + torch.cos(steps) / 4).to(rounded or out.dtype)
    return weights.to(out.dtype).to(out.device)


@contextmanager
def counting_fallbacks(
    seen: list[str], reads: list[str] | None = None
) -> Iterator[None]:
    """Collect the names of the ops that the CPU runs, and the causes of other cuts."""

    def note(event: events.Event) -> None:
        if isinstance(event, events.FallbackUsed):
            seen.append(event.op)
        elif (
            isinstance(event, events.BarrierFinished)
            and event.executed
            and not event.cause.startswith("CPU fallback")
        ):
            causes.append(event.cause)

    causes = [] if reads is None else reads
    kinds = (events.FallbackUsed, events.BarrierFinished)
    with lazyrt.subscribe(note, *kinds, exact=False):
        yield


def _compare(run: Run) -> None:
    for direction, recorded in run.results.items():
        for number, pair in enumerate(recorded):
            if direction in run.errors:
                break
            try:
                _compare_sample(run.case, direction, pair)
            except Exception as error:  # noqa: BLE001
                run.errors[direction] = f"sample {number}: {text_of(error)}"


def _compare_sample(case: Case, direction: Direction, pair: Recorded) -> None:
    if len(pair.expected) != len(pair.found):
        raise AssertionError(f"{len(pair.found)} results, not {len(pair.expected)}")
    exact: list[torch.Tensor | None] = [*pair.exact] or [None] * len(pair.found)
    for number, want in enumerate(pair.expected):
        have = _on_cpu(pair.found[number])
        want = _plain(want.detach())  # noqa: PLW2901
        if want.shape != have.shape or want.dtype is not have.dtype:
            raise AssertionError(
                f"{have.dtype}{list(have.shape)}, not {want.dtype}{list(want.shape)}"
            )
        if direction == "backward" and case.name in known.TIED_GRADIENTS:
            want, have = (_by_value(pair.sample.input, t) for t in (want, have))  # noqa: PLW2901
        is_choice = case.name in known.TIED and want.dtype is torch.int64
        if is_choice and number == len(exact) - 1:
            want, have = (_chosen(case, pair.sample, t) for t in (want, have))  # noqa: PLW2901
        _compare_tensor(case, want, have, exact[number])


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.cpu() if tensor.device.type == "lazyrt" else tensor


def _plain(want: torch.Tensor) -> torch.Tensor:
    if torch._is_zerotensor(want):
        return torch.zeros(want.shape, dtype=want.dtype)  # assert_close crashes on it
    return want.resolve_conj().resolve_neg()


def _chosen(case: Case, sample: Any, indices: torch.Tensor) -> torch.Tensor:
    """Return the elements that an op's indices stand for.

    Raises:
        AssertionError: An element is chosen twice.
    """
    position = known.TIED[case.name]
    given = dict(enumerate(sample.args))
    dim = sample.kwargs.get("dim", given.get(position, -1))
    x: torch.Tensor = sample.input.detach()
    if not x.dim():
        return x[indices == 0]
    kept = indices if indices.dim() == x.dim() else indices.unsqueeze(dim)
    if not bool((kept.sort(dim).values.diff(dim=dim) > 0).all()):
        raise AssertionError("an element is chosen twice")
    return x.gather(dim, kept)


def _by_value(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the sum of the gradients of equal elements, for each value in order."""
    values, places = x.detach().double().flatten().unique(return_inverse=True)
    sums = torch.zeros(values.shape, dtype=torch.float64)
    return sums.index_add_(0, places, gradient.double().flatten())


def _compare_tensor(
    case: Case, want: torch.Tensor, have: torch.Tensor, exact: torch.Tensor | None
) -> None:
    if case.name in {*known.RANDOM, *known.UNDEFINED}:
        return
    narrow = min(
        (want.dtype, case.dtype), key=lambda dtype: -_TOLERANCE.get(dtype, (0, 0))[0]
    )
    rtol, atol = _TOLERANCE.get(narrow, (0.0, 0.0))
    if case.dtype is torch.float64:
        atol = known.CPU_ERRS.get(case.name, (atol, ""))[0]
    try:
        torch.testing.assert_close(have, want, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError:
        if exact is None or not _is_as_near(have, want, exact.detach()):
            raise


def _is_as_near(have: torch.Tensor, want: torch.Tensor, exact: torch.Tensor) -> bool:
    """Return whether a result is about as near as the CPU's to what float64 gives."""
    mine, theirs = ((t.to(exact.dtype) - exact).abs() for t in (have, want))
    return bool(mine.max() <= _FURTHER * theirs.max())


def text_of(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:400]}"
