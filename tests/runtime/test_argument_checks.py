"""`torch.distributions` checks its arguments: small checks are peeks, large ones wait."""

import numpy as np
import pytest
import torch
from torch.distributions import (
    Categorical,
    Normal,
    Uniform,
    constraints,
    kl_divergence,
)
from torch.nn import functional

import lazyrt
from lazyrt import config
from lazyrt.errors import ArgumentCheckError, StepSyncError
from lazyrt.execution import completion, deferred_asserts, transfer
from lazyrt.frontend import value_checks
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


def test_a_check_of_numbers_asks_the_device_for_nothing():
    """The 1.0 of each step is copied anew, and known on the host."""
    x = torch.randn(8, device=DEVICE)
    x = x + long_chain()[0]
    lazyrt.reset_counters()

    for scale in (1.0, 2.0, torch.tensor(0.5, device=DEVICE) * 2 + 1):
        Normal(x, scale).log_prob(x)

    assert lazyrt.counters()["peek_executions"] == 0
    assert lazyrt.counters()["executions"] == 0
    with pytest.raises(ValueError, match="constraint GreaterThan"):
        Normal(x, -1.0)
    small = torch.tensor([0.5, 2.0], device=DEVICE)
    small -= 1.0
    with pytest.raises(ValueError, match="constraint GreaterThan"):
        Normal(small, small)


def test_a_check_of_other_data_of_the_same_type_is_one_of_its_own():
    found = []
    for sign in (1.0, -1.0, 1.0):
        scale = torch.ones(3, device=DEVICE) * sign
        lazyrt.mark_step()
        try:
            Normal(0.0, scale)
        except ValueError:
            found.append(False)
        else:
            found.append(True)

    assert found == [True, False, True]


def test_what_is_copied_to_the_device_is_forgotten_with_it():
    before = len(transfer._sent)
    kept = [torch.tensor(float(number)).to(DEVICE) for number in range(50)]
    assert len(transfer._sent) == before + 50

    del kept

    assert len(transfer._sent) == before
    many = torch.ones(1_000).to(DEVICE)
    assert len(transfer._sent) == before
    assert many.shape == (1_000,)


def test_what_istft_asks_of_its_window_cuts_no_step_and_raises_as_on_the_cpu():
    x = torch.linspace(-1, 1, 64, device=DEVICE)
    window = torch.hann_window(16, device=DEVICE)
    lazyrt.mark_step()
    lazyrt.reset_counters()

    for _ in range(2):
        with lazyrt.step():
            parts = torch.stft(x * 2, 16, 4, window=window, return_complex=True)
            signal = torch.istft(parts, 16, 4, window=window)

    assert lazyrt.counters()["executions"] == 2
    assert lazyrt.counters()["peek_executions"] <= 1
    torch.testing.assert_close(signal.cpu(), x.cpu() * 2, rtol=0, atol=1e-5)
    with pytest.raises(RuntimeError, match="window overlap add min"):
        torch.istft(parts, 16, 4, window=torch.zeros(16, device=DEVICE))


OPTIMIZERS = {
    "adam": lambda p, lr: torch.optim.Adam(p, lr, foreach=False),
    "asgd": lambda p, _: torch.optim.ASGD(p, 0.01),
    "sgd": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_reads_its_learning_rate_cuts_no_step(name):
    def train(device):
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2).to(device)
        rate = torch.tensor(0.1).to(device)
        optimizer = OPTIMIZERS[name](net.parameters(), rate)
        x = torch.linspace(-1, 1, 12).view(4, 3).to(device)
        for _ in range(3):
            optimizer.zero_grad()
            net(x).square().sum().backward()
            optimizer.step()
        return net.weight.detach()

    expected = train("cpu")
    lazyrt.reset_counters()

    found = train(DEVICE)

    assert lazyrt.counters()["executions"] == 3
    torch.testing.assert_close(found.cpu(), expected)


def test_an_assertion_of_torchs_waits_for_its_step():
    x = long_chain()

    torch._assert_async(x.sum() > 100, "too small")
    torch._assert_async(x.sum() > 0)
    lazyrt.mark_step()

    with pytest.raises(RuntimeError, match="too small") as caught:
        lazyrt.wait()
    assert "more failed" not in str(caught.value.__notes__)
    with pytest.raises(RuntimeError, match="more than one value is ambiguous"):
        torch._assert_async(x > 0)


def test_what_a_check_says_of_constraints_with_tensors_looks_at_none():
    """The text of a check that waits is made at its line, from names alone."""
    weights = long_chain()
    part = constraints.stack([constraints.interval(weights - 1, weights + 1)] * 3)
    nested = constraints.cat([part, constraints.less_than(weights)])
    looks, subscription = noted(events.TensorMaterialised)
    lazyrt.reset_counters()

    with subscription:
        names = [value_checks._named(each) for each in (part, nested)]
        plain = value_checks._named(constraints.interval(0.0, 1.0))
        Uniform(weights - 3, weights + 1).log_prob(weights + 9)

    assert names == ["Stack", "Cat"]
    assert plain == "Interval(lower_bound=0.0, upper_bound=1.0)"
    assert looks == []
    assert lazyrt.counters()["executions"] == 0
    lazyrt.mark_step()
    with pytest.raises(ArgumentCheckError, match=r"within the support \(Interval\)"):
        lazyrt.wait()


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
        Normal(torch.ones(32).to(DEVICE) + 1, 1.0)

    assert {event.tensor for event in found} == {"what torch.distributions checks"}


@pytest.fixture(autouse=True)
def no_check_is_left():
    yield
    deferred_asserts.forget()


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


def test_a_check_waits_for_its_step_where_the_device_is_torchs_default():
    with torch.device(DEVICE):
        x = long_chain()
        lazyrt.reset_counters()
        with lazyrt.step():
            Normal(x, x * x + 1).log_prob(x)
            functional.gaussian_nll_loss(x, x, x - 2)

    assert lazyrt.counters()["executions"] == 1
    with pytest.raises(ArgumentCheckError, match="var has negative"):
        lazyrt.wait()


def test_the_read_of_a_loss_tells_that_a_check_of_its_step_has_failed():
    x = long_chain()
    loss = functional.gaussian_nll_loss(x, x, x - 2)

    functional.gaussian_nll_loss(x, x, x - 3)

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
    value_checks.wait_for(buffer, ArgumentCheckError("it is wrong"), passes=True)
    x = torch.ones(3, device=DEVICE) + 1

    lazyrt.mark_step()
    lazyrt.mark_step()

    assert x.sum().item() == 6
    monkeypatch.setattr(
        completion, "wait_for", lambda data, **_: setattr(data, "ready", True)
    )
    with pytest.raises(ArgumentCheckError, match="it is wrong"):
        deferred_asserts.raise_failed(wait=True)


def wait_for_step():
    lazyrt.mark_step()
    lazyrt.wait()


INVALID = {
    "a chance above 1": lambda x: torch.bernoulli(x + 1),
    "a chance in place": lambda x: torch.zeros_like(x).bernoulli_(-x),
    "weights below 0": lambda x: torch.multinomial(-x, 1),
    "weights without a sum": lambda x: torch.multinomial(x * 0, 1),
    "a negative deviation": lambda x: torch.normal(x, -x),
    "a negative deviation alone": lambda x: torch.normal(0.0, -x),
    "a mask of more than the source has": lambda x: x.masked_scatter(x > 0, x[:1]),
    "such a mask in place": lambda x: torch.ones(
        2, *x.shape, device=x.device
    ).masked_scatter_(x > 0, x),
}


@pytest.mark.parametrize("what", INVALID)
def test_values_that_the_host_knows_are_refused_at_the_line(what):
    with pytest.raises(RuntimeError):
        INVALID[what](torch.ones(2))
    with pytest.raises(ArgumentCheckError):
        INVALID[what](torch.ones(2).to(DEVICE))

    assert lazyrt.counters()["executions"] == 0


@pytest.mark.parametrize("what", INVALID)
def test_values_that_the_device_computes_are_refused_once_their_step_has_run(what):
    x = long_chain().abs().clamp(1, 1)
    INVALID[what](x)

    with pytest.raises(
        ArgumentCheckError, match="The check ran together with its step"
    ):
        wait_for_step()


def test_a_check_of_values_costs_no_execution_and_passes_good_ones():
    x = long_chain().abs().clamp(0.5, 1)

    drawn = [torch.bernoulli(x), torch.multinomial(x, 1), torch.normal(x, x)]
    drawn.append(torch.zeros(2, *x.shape, device=DEVICE).masked_scatter_(x > 2, x))
    wait_for_step()

    assert lazyrt.counters()["executions"] == 1
    assert all(lazyrt.is_pending(each) is False for each in drawn)
