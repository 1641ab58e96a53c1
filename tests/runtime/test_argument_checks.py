"""`torch.distributions` checks its arguments: small checks are peeks, large ones wait."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal, Uniform, kl_divergence
from torch.nn import functional

import lazyrt
from lazyrt import config
from lazyrt.errors import ArgumentCheckError, StepSyncError
from lazyrt.execution import late_checks, watcher
from lazyrt.frontend import warned
from lazyrt.ir.live import Buffer
from lazyrt.observe import events
from tests.harness import DEVICE

pytestmark = pytest.mark.lazy_only("is about what is recorded")


def test_a_step_with_distributions_is_one_execution():
    mean = torch.zeros(3, device=DEVICE, requires_grad=True)
    scale = torch.zeros(3, device=DEVICE, requires_grad=True)
    lazyrt.mark_step()
    lazyrt.reset_counters()

    with lazyrt.step():
        found = Normal(mean, scale.exp())
        loss = kl_divergence(found, Normal(torch.zeros_like(mean), 1.0)).sum()
        loss.backward()

    assert lazyrt.counters()["executions"] == 1
    assert scale.grad is not None
    assert scale.grad.tolist() == [0.0, 0.0, 0.0]


def test_a_wrong_argument_raises_at_its_line_as_on_the_cpu():
    scale = torch.ones(3, device=DEVICE)

    with pytest.raises(ValueError, match="to satisfy the constraint GreaterThan"):
        Normal(0.0, scale - 1)


def long_chain():
    x = torch.ones(3, device=DEVICE)
    for _ in range(40):
        x = torch.cos(x)
    return x


def test_a_large_check_inside_a_step_is_refused_where_checks_are_not_put_off():
    with (
        config.scoped(deferred_checks=False),
        pytest.raises(StepSyncError) as caught,
        lazyrt.step(),
    ):
        Categorical(logits=long_chain())

    text = str(caught.value)
    assert "`Categorical(logits=long_chain())` checks its arguments" in text
    assert "validate_args=False" in text


def noted(kind):
    """Return a list to which events of a kind come, and the subscription."""
    found: list[events.Event] = []
    return found, events.subscribe(found.append, kind)


def test_a_large_check_is_named_as_what_cut_the_step():
    found, subscription = noted(events.BarrierFinished)

    with subscription, config.scoped(deferred_checks=False):
        Normal(long_chain(), 1.0)

    check = "torch.distributions, which checks its arguments"
    assert [event.cause for event in found] == [f"read by {check}"]


def test_a_check_is_told_apart_from_a_look_of_the_user():
    found, subscription = noted(events.TensorMaterialised)

    with subscription:
        Normal(torch.zeros(2, device=DEVICE) + 1, 1.0)

    assert {event.tensor for event in found} == {"what torch.distributions checks"}


@pytest.fixture(autouse=True)
def no_check_is_left():
    yield
    late_checks.forget()


def test_steps_of_a_variational_autoencoder_are_one_graph_and_one_execution_each():
    torch.manual_seed(0)
    encoder = torch.nn.Linear(3, 4).to(DEVICE)
    decoder = torch.nn.Linear(2, 3).to(DEVICE)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], 0.01)
    x = torch.randn(16, 3, device=DEVICE)
    lazyrt.mark_step()
    lazyrt.reset_counters()

    for _ in range(4):
        with lazyrt.step():
            mean, log_scale = encoder(x + long_chain()).chunk(2, -1)
            found = Normal(mean, log_scale.exp())
            seen = Normal(decoder(found.rsample()), 1.0).log_prob(x)
            loss = kl_divergence(found, Normal(0.0, 1.0)).mean() - seen.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    counts = lazyrt.counters()
    assert counts["executions"] == 4
    assert counts["compiles"] <= 2
    assert lazyrt.wait()


WRONG = {
    "a parameter": (
        lambda x: Normal(0.0, x - 2),
        r"parameter scale \(Tensor of shape \(3,\)\) of distribution Normal to satisfy",
    ),
    "a sample": (
        lambda x: Uniform(x * 0, x * 0 + 1).log_prob(x + 2),
        r"value argument .* within the support \(Interval\) of the distribution Uniform",
    ),
    "a variance": (
        lambda x: functional.gaussian_nll_loss(x, x, x - 2),
        "var has negative entry",
    ),
    "a weight": (
        lambda x: torch.cov(x, aweights=x - 2),
        r"cov\(\): aweights cannot be negative",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_large_check_that_fails_raises_once_its_step_has_run(what):
    call, said = WRONG[what]
    with lazyrt.step():
        x = long_chain()
        call(x)

    with pytest.raises(ArgumentCheckError, match=said) as caught:
        lazyrt.wait()

    assert "deferred_checks = False" in str(caught.value)
    assert "test_argument_checks.py" in caught.value.__notes__[0]
    assert lazyrt.wait()  # it has been said
    assert x.sum().item() > 0


def test_the_read_of_a_loss_tells_that_a_check_of_its_step_has_failed():
    x = long_chain()
    loss = functional.gaussian_nll_loss(x, x, x - 2)

    torch.cov(x, aweights=x - 2)

    with pytest.raises(ValueError, match="var has negative") as caught:
        loss.item()

    assert "more failed in the same steps" in caught.value.__notes__[-1]


def test_checks_of_work_that_is_dropped_are_dropped():
    x = long_chain()
    Normal(0.0, x - 2)

    lazyrt.discard_pending()
    lazyrt.mark_step()

    assert lazyrt.wait()


def test_with_reads_that_are_peeks_a_check_raises_at_its_line():
    with config.scoped(read_policy="peek"), pytest.raises(ValueError, match="scale"):
        Normal(0.0, long_chain() - 2)


def test_weights_of_a_covariance_are_checked_as_on_the_cpu(monkeypatch):
    x = torch.randn(3, 6)
    counts, shares = torch.tensor([1, 2, 0, 3, 1, 1]), torch.rand(6)
    cases: tuple[dict[str, Any], ...] = (
        {"fweights": counts},
        {"aweights": shares},
        {"fweights": counts, "aweights": shares, "correction": 0},
    )
    for given in cases:
        want = torch.cov(x, **given)
        on_device = {
            name: w.to(DEVICE) if isinstance(w, torch.Tensor) else w
            for name, w in given.items()
        }
        lazyrt.reset_counters()

        have = torch.cov(x.to(DEVICE), **on_device)  # type: ignore[arg-type]

        assert lazyrt.counters()["executions"] == 0
        torch.testing.assert_close(have.cpu(), want)
    few: dict[str, Any] = {
        "fweights": torch.tensor([1, 0, 0, 0, 0, 0]),
        "correction": 3,
    }
    monkeypatch.setattr(warned, "_said", set())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = torch.cov(x, **few)
    few["fweights"] = few["fweights"].to(DEVICE)
    with pytest.warns(UserWarning, match="degrees of freedom"):
        have = torch.cov(x.to(DEVICE), **few).cpu()
    torch.testing.assert_close(have, want, equal_nan=True)
    with lazyrt.eager_mode(), pytest.raises(RuntimeError, match="cannot be negative"):
        torch.cov(x.to(DEVICE), fweights=counts.to(DEVICE) - 1)
    with pytest.raises(RuntimeError, match=r"cov\(\): fweights cannot be negative"):
        torch.cov(x.to(DEVICE), fweights=counts.to(DEVICE) - 1)
    with pytest.raises(RuntimeError, match="weights sum to zero"):
        torch.cov(x.to(DEVICE), fweights=counts.to(DEVICE) * 0)


def test_the_derivative_of_eigenvectors_cuts_no_step():
    matrix = torch.tensor([[0.5, 1.0], [-1.0, 0.25]], dtype=torch.float64)
    x = matrix.to(DEVICE).requires_grad_()
    lazyrt.mark_step()
    lazyrt.reset_counters()

    with lazyrt.step():
        values, vectors = torch.linalg.eig(x)
        (values.abs().sum() + vectors.abs().sum()).backward()

    assert lazyrt.counters()["executions"] == 1
    assert x.grad is not None
    on_cpu = matrix.clone().requires_grad_()
    values, vectors = torch.linalg.eig(on_cpu)
    (values.abs().sum() + vectors.abs().sum()).backward()
    torch.testing.assert_close(x.grad.cpu(), on_cpu.grad)

    turned = x + 0 * long_chain()[:2]
    with lazyrt.step():
        torch.linalg.eig(turned).eigenvectors.real.sum().backward()
    with pytest.raises(ArgumentCheckError, match="ill-defined"):
        lazyrt.wait()


def test_a_list_of_live_tensors_says_that_a_check_holds_its_truth_value():
    Normal(long_chain(), 1.0)

    held = [
        row.holders[0].text for row in lazyrt.live_tensors_report().rows if row.holders
    ]

    assert held == ["a check of torch's"]


class Running:
    """Stands for a truth value that the device has not computed yet."""

    ready = False

    def is_ready(self):
        return self.ready

    def __array__(self, *_, **__):
        return np.zeros((), bool)


def test_a_barrier_does_not_wait_for_a_check_that_still_runs(monkeypatch):
    flag = Running()
    buffer = Buffer(None)
    buffer.data = flag
    late_checks.put_off(buffer, ArgumentCheckError("it is wrong"), passes=True)
    x = torch.ones(3, device=DEVICE) + 1

    lazyrt.mark_step()
    lazyrt.mark_step()

    assert x.sum().item() == 6
    monkeypatch.setattr(watcher, "wait_for", lambda data: setattr(data, "ready", True))
    with pytest.raises(ArgumentCheckError, match="it is wrong"):
        late_checks.raise_failed(wait=True)
