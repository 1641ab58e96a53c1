"""`torch.distributions` checks its arguments: small checks are peeks, others are named."""

import pytest
import torch
from torch.distributions import Categorical, Normal, kl_divergence

import lazyrt
from lazyrt.errors import StepSyncError
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


def test_a_large_check_inside_a_step_is_refused_with_its_own_fix():
    with pytest.raises(StepSyncError) as caught, lazyrt.step():
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

    with subscription:
        Normal(long_chain(), 1.0)

    check = "torch.distributions, which checks its arguments"
    assert [event.cause for event in found] == [f"read by {check}"]


def test_a_check_is_told_apart_from_a_look_of_the_user():
    found, subscription = noted(events.TensorMaterialised)

    with subscription:
        Normal(torch.zeros(2, device=DEVICE) + 1, 1.0)

    assert {event.tensor for event in found} == {"what torch.distributions checks"}
