"""Linear algebra that looks at layouts or at success, with torch on the CPU as the oracle."""

import contextlib
import importlib

import pytest
import torch
from torch.distributions import MultivariateNormal

import lazyrt
from lazyrt import config
from lazyrt.execution import deferred_asserts
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
def test_a_check_for_errors_that_may_not_wait_cuts_a_step_and_says_why():
    x = lazy(A)
    with (
        config.scoped(deferred_checks=False),
        recorded(events.BarrierFinished) as found,
        lazyrt.step(),
    ):
        inverse = torch.linalg.inv(after_many_ops(x) + 1)

    assert_same(inverse, torch.linalg.inv(A + 1), 1e-5)
    assert "linalg.inv, which checks for errors" in [event.cause for event in found]
    assert lazyrt.counters()["cpu_fallbacks"] == 0


def after_many_ops(x):
    """Return `x` by more ops than a small check takes."""
    for _ in range(40):
        x = torch.clamp(x, -1e3, 1e3) * 1.0
    return x


FAILING = {
    "inv": (torch.linalg.inv, SINGULAR),
    "lu_factor": (torch.linalg.lu_factor, SINGULAR),
    "solve": (lambda x: torch.linalg.solve(x, x), SINGULAR),
    "cholesky": (torch.linalg.cholesky, torch.stack([A, NOT_POSITIVE])),
}


@pytest.mark.lazy_only("is about what is pending")
@pytest.mark.parametrize("name", FAILING)
def test_a_factorisation_cuts_no_step_and_raises_once_that_has_run(name):
    function, matrix = FAILING[name]
    with pytest.raises(RuntimeError) as expected:
        function(matrix)
    x = after_many_ops(lazy(matrix))
    lazyrt.reset_counters()

    with lazyrt.step():
        y = x.sum() + 1
        function(x)
        z = y * 2

    assert lazyrt.counters()["executions"] == 1
    with pytest.raises(RuntimeError) as found:
        lazyrt.wait()
    assert type(found.value) is type(expected.value)
    assert str(found.value).startswith(str(expected.value).rstrip("."))
    assert "deferred_checks = False" in str(found.value)
    assert "test_factorisations.py" in found.value.__notes__[0]
    assert lazyrt.wait()  # it has been said
    assert_same(z, (matrix.sum() + 1) * 2, 1e-5)


@pytest.mark.lazy_only("is about what is pending")
def test_training_by_factorisations_is_one_execution_for_each_step():
    """A Gaussian process, as it is written for the CPU."""

    def train(device):
        noise = torch.tensor(0.1, device=device, requires_grad=True)
        optimizer = torch.optim.SGD([noise], 0.01)
        x = torch.linspace(0, 1, 6).to(device)
        for _ in range(3):
            optimizer.zero_grad()
            near = after_many_ops(torch.exp(-((x[:, None] - x) ** 2)))
            covariance = near + noise.exp() * torch.eye(6, device=device)
            factor = torch.linalg.cholesky(covariance)
            MultivariateNormal(x, scale_tril=factor).log_prob(x * 2).neg().backward()
            optimizer.step()
        return noise.detach()

    expected = train("cpu")
    lazyrt.reset_counters()

    found = train("lazyrt")

    counts = lazyrt.counters()
    assert (counts["executions"], counts["cpu_fallbacks"]) == (3, 0)
    assert_same(found, expected, 1e-5)


def caught_here(x):
    try:
        return torch.linalg.cholesky(x)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return "jitter"


def caught_outside(x):
    try:
        return plain(x)
    except (RuntimeError, KeyboardInterrupt):
        return "jitter"


def caught_bare(x):
    with torch.no_grad():
        try:
            with contextlib.nullcontext():
                return plain(x)
        except:  # noqa: E722 - is what this is about
            return "jitter"


def caught_in_the_second_clause(x):
    try:
        try:
            return plain(x)
        finally:
            x = None
    except KeyboardInterrupt:
        return None
    except Exception:  # noqa: BLE001
        return "jitter"


def plain(x):
    return torch.linalg.cholesky(x)


def interruptible(x):
    try:
        return plain(x)
    except KeyboardInterrupt:
        return None


def tidy(x):
    try:
        return plain(x)
    finally:
        x = None


def handled_before(x):
    try:
        int("x")
    except ValueError:
        return plain(x)
    return None


@pytest.mark.lazy_only("is about what is pending")
@pytest.mark.parametrize(
    "call", [caught_here, caught_outside, caught_bare, caught_in_the_second_clause]
)
def test_a_program_that_catches_a_failed_factorisation_gets_it_at_its_line(call):
    assert call(after_many_ops(lazy(NOT_POSITIVE))) == "jitter"
    assert lazyrt.wait()


PACKAGE = """
import torch

def safe_cholesky(x):
    try:
        return torch.linalg.cholesky(x)
    except RuntimeError:
        return "jitter"

def call(function, x):
    try:
        return function(x)
    except RuntimeError:
        return "jitter"
"""


@pytest.mark.lazy_only("is about what is pending")
def test_a_package_that_catches_it_gets_it_unless_it_calls_back(tmp_path, monkeypatch):
    """What calls the user's code, as a trainer does, is not asked."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "jittering.py").write_text(PACKAGE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    package = importlib.import_module("jittering")
    x = after_many_ops(lazy(NOT_POSITIVE))

    assert package.safe_cholesky(x) == "jitter"

    factor = package.call(plain, after_many_ops(lazy(NOT_POSITIVE)))
    assert isinstance(factor, torch.Tensor)
    deferred_asserts.forget()


@pytest.mark.lazy_only("is about what is pending")
@pytest.mark.parametrize("call", [plain, interruptible, tidy, handled_before])
def test_a_handler_of_something_else_cuts_no_step(call):
    lazyrt.reset_counters()

    call(after_many_ops(lazy(NOT_POSITIVE)))

    assert lazyrt.counters()["executions"] == 0
    lazyrt.mark_step()
    with pytest.raises(torch.linalg.LinAlgError):  # type: ignore[attr-defined]
        lazyrt.wait()


def test_a_singular_matrix_raises_without_frames_of_torchs_dispatch():
    with pytest.raises(RuntimeError, match="singular") as caught:
        torch.linalg.inv(lazy(torch.zeros(2, 2)))

    files = [str(entry.path) for entry in caught.traceback]
    assert files[0] == __file__
    assert not [name for name in files if "/torch/" in name]


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
