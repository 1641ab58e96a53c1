"""PyTorch's own op database on the lazy device, with the CPU as the oracle.

The slow tests take every op: float32 with two samples each, the first and the last, forward and
backward; one sample of a seeded choice of ops in each of six further dtypes; one sample of every
module; and all of torch's wrong calls. `python -m benchmarks coverage` runs everything and takes
more samples. `tests/opinfo/known.py` lists what is missing, with reasons.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

import lazyrt
from tests.opinfo import distributions, errors, known
from tests.opinfo.cases import cases, name_of, table
from tests.opinfo.modules import module_cases, record_module
from tests.opinfo.sweep import GROUP, Outcome, sweep

if TYPE_CHECKING:
    from collections.abc import Collection

SAMPLES = 2
FURTHER_DTYPES = (
    torch.int64, torch.bool, torch.bfloat16, torch.float16, torch.complex64, torch.float64,
)  # fmt: skip
CHOSEN = 40  # ops of each further dtype


def describe(outcomes: list[Outcome]) -> str:
    return "\n".join(
        f"{outcome.case} {outcome.direction}: {outcome.kind} "
        f"{' '.join(outcome.fallbacks)} {outcome.detail}"
        for outcome in outcomes
    )


def unexpected(outcomes: list[Outcome], further: Collection[str] = ()) -> list[Outcome]:
    """Return the outcomes that are neither good nor announced as fallbacks."""
    announced = {*known.FALLBACKS, *further}
    return [
        outcome
        for outcome in outcomes
        if outcome.kind == "gap"
        or (outcome.kind == "fallback" and outcome.case.name not in announced)
    ]


@pytest.mark.slow
def test_every_name_in_the_lists_of_known_ops_exists():
    names = {case.name for case in cases(torch.float32)}
    lists: tuple[Collection[str], ...] = (
        known.RANDOM, known.UNDEFINED, known.TIED, known.INEXACT, known.FALLBACKS, known.GAPS,
        known.ON_THE_HOST, known.DTYPE_GAPS[torch.float16], known.DTYPE_GAPS[torch.bfloat16],
        known.DTYPE_FALLBACKS[torch.complex64],
    )  # fmt: skip

    for listed in lists:
        assert set(listed) - names == set()
    assert set(known.DTYPE_FALLBACKS[torch.int64]) <= set(map(name_of, table()))


# ------------------------------------------------------------------ random numbers


@pytest.mark.slow
@pytest.mark.parametrize("name", distributions.DRAWS)
def test_a_random_op_draws_from_its_distribution(name):
    draw = distributions.DRAWS[name]
    torch.manual_seed(3)
    assert distributions.wrong_facts(draw, draw.run("cpu")) == []  # the facts are right
    torch.manual_seed(4)

    with lazyrt.config.scoped(compile_tier="fast"):
        sample = draw.run("lazyrt")
        assert sample.device.type == "lazyrt"
        assert distributions.wrong_facts(draw, sample) == []


def test_a_sample_of_another_distribution_is_found():
    draw = distributions.DRAWS["nn.functional.dropout"]
    torch.manual_seed(3)
    other = torch.nn.functional.dropout(torch.ones(distributions.N), 0.23)

    assert len(distributions.wrong_facts(draw, other)) >= 2
    assert distributions.wrong_facts(draw, draw.run("cpu") + 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("dims", [2, 3])
def test_fractional_pooling_puts_its_windows_where_the_cpu_does(dims):
    torch.manual_seed(5)
    theirs = distributions.fractional_pools("cpu", dims)
    mine = distributions.fractional_pools("lazyrt", dims)

    assert mine.shape == theirs.shape
    for window, wanted in zip(mine, theirs, strict=True):
        error = ((window.var() + wanted.var()) / len(wanted)).sqrt()
        assert abs(window.mean() - wanted.mean()) <= distributions.SIGMAS * error
        assert set(window.tolist()) == set(wanted.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("centred", [False, True])
def test_a_random_factorisation_gives_the_matrix_back(centred):
    assert distributions.low_rank_error("cpu", centred=centred) < 1e-4
    assert distributions.low_rank_error("lazyrt", centred=centred) < 1e-4


def test_every_random_op_has_such_a_test():
    others = {
        "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
        "pca_lowrank", "svd_lowrank",
    }  # fmt: skip

    assert distributions.DRAWS.keys() | others == known.RANDOM.keys()


# ------------------------------------------------------------------ everything


def _parameters():
    """Yield one parameter for each group of ops; importing the table is put off until then."""
    return range(-(-677 // GROUP))


@pytest.mark.slow
@pytest.mark.parametrize("group", _parameters())
def test_a_group_of_ops_computes_what_the_cpu_computes(group):
    """Gaps are strict: one that closes fails here until its entry is taken out."""
    chosen = cases(torch.float32)[group * GROUP : (group + 1) * GROUP]
    outcomes = list(sweep(chosen, count=SAMPLES))
    found = [o for o in outcomes if o.case.name not in known.GAPS]
    gaps = {o.case.name for o in outcomes if o.kind == "gap"}
    cut = {o.case.name for o in outcomes if o.kind == "fallback"}
    names = {o.case.name for o in outcomes}

    assert not unexpected(found), describe(unexpected(found))
    assert names & set(known.GAPS) == gaps & set(known.GAPS)
    assert names & set(known.FALLBACKS) == cut & set(known.FALLBACKS)
    assert {o.case.name for o in outcomes if o.reads} == names & set(known.READS)


def expected_failures():
    """Yield a parameter for each op and further dtype of the lists, with its reason."""
    for dtype in FURTHER_DTYPES:
        for name, reason in known.listed(dtype).items():
            mark = pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)
            yield pytest.param(dtype, name, marks=mark, id=f"{name}-{str(dtype)[6:]}")


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "name"), expected_failures())
def test_a_listed_op_runs_on_a_lowering_of_its_own(dtype, name):
    """One that does so must leave the list: the expectation is strict."""
    found = list(sweep(cases(dtype, [name]), count=1))

    assert found
    assert not [outcome for outcome in found if outcome.kind != "own"]


@pytest.mark.slow
def test_nearly_all_ops_have_lowerings_of_their_own():
    """The groups' tests say that all ops do which are not listed."""
    every = cases(torch.float32)
    own = [case for case in every if not {case.name} & {*known.FALLBACKS, *known.GAPS}]

    assert len(every) == sum(torch.float32 in info.dtypes for info in table()) == 677
    assert (len(_parameters()) - 1) * GROUP < len(every) <= len(_parameters()) * GROUP
    assert len(own) >= 660
    assert sum(case.has_backward for case in own) >= 520


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FURTHER_DTYPES, ids=lambda dtype: str(dtype)[6:])
def test_further_dtypes_compute_what_the_cpu_computes(dtype):
    chosen = random.Random(20).sample(cases(dtype), CHOSEN)  # noqa: S311 - a choice of tests
    gaps = set(known.GAPS) | set(known.DTYPE_GAPS.get(dtype, ()))

    found = [o for o in sweep(chosen, count=1) if o.case.name not in gaps]

    wrong = unexpected(found, known.DTYPE_FALLBACKS.get(dtype, ()))
    assert not wrong, describe(wrong)


def accepted_calls():
    """Yield a parameter for each op with wrong calls that are not refused, with the reason."""
    for name, (_, reason) in known.ACCEPTED.items():
        mark = pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)
        yield pytest.param(name, marks=mark)


@pytest.mark.slow
@pytest.mark.parametrize("name", accepted_calls())
def test_the_wrong_calls_of_a_listed_op_are_refused(name):
    (case,) = cases(torch.float32, [name])

    assert all(refusal.agrees for refusal in errors.refusals(case))


@pytest.mark.slow
def test_wrong_calls_are_refused_at_the_call_as_on_the_cpu():
    found = [
        refusal for case in cases(torch.float32) for refusal in errors.refusals(case)
    ]
    differing: dict[str, list[int]] = {}
    for refusal in found:
        if not refusal.agrees:
            differing.setdefault(refusal.case.name, []).append(refusal.number)

    assert len(found) > 600
    assert differing == {name: list(n) for name, (n, _) in known.ACCEPTED.items()}


# ------------------------------------------------------------------ modules


def swept_modules(names: Collection[str] | None, count: int) -> list[Outcome]:
    return list(sweep(module_cases(names), count=count, record=record_module))


def test_a_module_that_computes_something_else_is_found(monkeypatch):
    monkeypatch.setattr(
        torch.nn.GELU, "forward", lambda _, x: x + (x.device.type == "lazyrt")
    )

    found = swept_modules(["nn.GELU"], 1)

    assert [o.kind for o in found] == ["gap", "own"]


_PARTS = 4


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
def test_every_module_of_torch_runs_on_lowerings_of_its_own(part):
    """Further samples of `nn.LinearCrossEntropyLoss` select labels by a mask, which is a cut."""
    every = list(
        dict.fromkeys(case.name.removesuffix(".eval") for case in module_cases())
    )
    found = swept_modules(every[part::_PARTS], 1)

    missing = [outcome for outcome in found if outcome.kind != "own"]
    assert len(found) > 200 / _PARTS
    assert not missing, describe(missing)
