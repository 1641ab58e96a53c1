"""Linear algebra that looks at layouts or at success, with torch on the CPU as the oracle."""

import pytest
import torch

import lazyrt
from lazyrt.observe import events
from tests.harness import assert_same, lazy, recorded, run_python

A = torch.tensor([[4.0, 1, 2], [1, 3, 0], [2, 0, 5]])
SKEW = torch.tensor([[2.0, 1, 0], [-1, 3, 4], [5, 0, 1]])
SINGULAR = torch.tensor([[1.0, 2, 3], [2, 4, 6], [1, 0, 1]])
NOT_POSITIVE = torch.tensor([[4.0, 1, 2], [1, 3, 0], [2, 0, -5]])


@pytest.mark.parametrize(
    "function",
    [torch.linalg.det, torch.logdet, lambda x: torch.linalg.slogdet(x).logabsdet],
    ids=["det", "logdet", "slogdet"],
)
@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize(
    "dtype",
    [torch.float64, pytest.param(torch.complex128, marks=pytest.mark.slow)],
)
def test_gradients_of_determinants_follow_the_layout(function, turn, dtype):
    def gradient(x):
        x = x.detach().requires_grad_()
        out = function(x.mT if turn else x)
        return torch.autograd.grad(out, x, torch.ones_like(out))[0]

    matrix = SKEW.to(dtype)

    assert_same(gradient(lazy(matrix)), gradient(matrix), 1e-9)


@pytest.mark.parametrize(
    ("function", "matrix"),
    [
        (torch.linalg.inv, SINGULAR),
        (torch.linalg.lu_factor, SINGULAR),
        (lambda x: torch.linalg.solve(x, A.to(x.device)), SINGULAR),
        (torch.linalg.cholesky, NOT_POSITIVE),
        (torch.linalg.cholesky, torch.stack([A, NOT_POSITIVE, A])),
        (torch.linalg.cholesky, NOT_POSITIVE.to(torch.complex128)),
    ],
    ids=["inv", "lu_factor", "solve", "cholesky", "batch", "complex"],
)
def test_a_failed_factorisation_raises_at_the_call_what_the_cpu_raises(
    function, matrix
):
    with pytest.raises(RuntimeError) as expected:
        function(matrix)

    with pytest.raises(type(expected.value)) as found:
        function(lazy(matrix))

    assert str(found.value) == str(expected.value)


@pytest.mark.not_eager("counts graphs and executions of steps")
def test_a_check_for_errors_cuts_a_step_and_says_why():
    x = lazy(A)
    with recorded(events.BarrierFinished) as found, lazyrt.step():
        inverse = torch.linalg.inv(x + 1)

    assert_same(inverse, torch.linalg.inv(A + 1), 1e-5)
    assert "linalg.inv, which checks for errors" in [event.cause for event in found]
    assert lazyrt.counters()["cpu_fallbacks"] == 0


def test_the_forms_that_return_info_run_with_the_step():
    x = lazy(A)
    lazyrt.reset_counters()

    factor, info = torch.linalg.cholesky_ex(x)

    assert lazyrt.counters()["barriers"] == 0
    assert_same(factor, torch.linalg.cholesky(A), 1e-6)
    assert info.item() == 0
    assert lazyrt.counters()["cpu_fallbacks"] == 0


FROM_DISK = """
import torch, lazyrt
x = torch.tensor([[4.0, 1.0], [1.0, 3.0]]).to("lazyrt")
print(torch.linalg.inv(x).sum().item(), lazyrt.counters()["disk_hits"])
"""


@pytest.mark.slow
def test_a_factorisation_from_the_disk_cache_runs_in_a_new_process(tmp_path):
    """Without LAPACK's functions the second process would crash at its first call."""
    first = run_python(FROM_DISK, LAZYRT_CACHE_DIR=str(tmp_path)).split()
    second = run_python(FROM_DISK, LAZYRT_CACHE_DIR=str(tmp_path)).split()

    assert first[0] == second[0]
    assert first[1] == "0"
    assert int(second[1]) > 0


@pytest.mark.parametrize("diagonal", ["full", "zero"])
def test_ldl_packs_and_solves_as_lapack(diagonal):
    """A zero diagonal makes blocks of two rows."""
    numbers = torch.Generator().manual_seed(3)
    matrix = torch.randn(2, 6, 6, generator=numbers, dtype=torch.float64)
    matrix = matrix + matrix.mT
    if diagonal == "zero":
        matrix.diagonal(dim1=-2, dim2=-1).zero_()
    right = torch.randn(2, 6, 3, generator=numbers, dtype=torch.float64)
    lazyrt.reset_counters()

    packed, pivots, info = torch.linalg.ldl_factor_ex(lazy(matrix))
    solution = torch.linalg.ldl_solve(packed, pivots, lazy(right))

    expected = torch.linalg.ldl_factor_ex(matrix)
    assert_same(packed, expected.LD, 1e-9)
    assert pivots.tolist() == expected.pivots.tolist()
    assert info.tolist() == [0, 0]
    torch.testing.assert_close(matrix @ solution.cpu(), right)
    assert lazyrt.counters()["cpu_fallbacks"] == 0
