"""A loop ends at the first step whose loss or gradients are not finite, and the step is still there."""

from typing import Any

import pytest
import torch

import lazyrt
from lazyrt.errors import NotFiniteError
from lazyrt.execution import kept_steps

pytestmark = pytest.mark.lazy_only("is about whole steps")


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(lazyrt.config, "cache_dir", None)
    lazyrt.mark_step()
    lazyrt.clear_caches()
    lazyrt.reset_counters()
    yield
    lazyrt.config.stop_at_nan = False
    kept_steps.release_all()
    lazyrt.discard_pending()


def training(steps, bad_at=None):
    """Yield the weight before each step; the logarithm of one step's input is not finite."""
    weight = torch.nn.Parameter(torch.ones(2).to("lazyrt"))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    for k in range(steps):
        yield weight
        x = torch.tensor([1.0, -1.0 if k == bad_at else 2.0]).to("lazyrt")
        optimizer.zero_grad()
        (weight * x.log()).sum().backward()
        optimizer.step()


def test_the_step_with_the_first_nan_raises_with_op_line_and_operands():
    lazyrt.config.stop_at_nan = True
    before: list[Any] = []

    with pytest.raises(FloatingPointError) as caught:
        before.extend(weight.detach().sum().item() for weight in training(5, bad_at=3))

    message = str(caught.value)
    assert isinstance(caught.value, NotFiniteError)
    assert len(before) == 4  # and no fifth step began
    assert (
        "It begins with 1 NaN in aten.log.default at test_finite_check.py:" in message
    )
    assert "of f32[2] from -1 to 1." in message
    assert "every tensor is as before it" in message


def test_the_weights_are_as_before_the_step_which_is_still_pending():
    lazyrt.config.stop_at_nan = True
    found: list[Any] = []

    def run():
        for weight in training(5, bad_at=2):
            found[:] = [weight, weight.detach().cpu().clone()]

    with pytest.raises(NotFiniteError):
        run()

    weight, before = found
    assert lazyrt.is_pending(weight)
    assert lazyrt.discard_pending() > 0
    torch.testing.assert_close(weight.detach().cpu(), before, rtol=0, atol=0)


def test_finite_steps_run_as_without_the_check():
    def run():
        lazyrt.clear_caches()
        lazyrt.reset_counters()
        weights = [weight.detach().cpu().clone() for weight in training(3)]
        key = lazyrt.compiled_graphs()[-1].key
        return weights, lazyrt.counters(), (key.fingerprint, key.donated)

    expected = run()
    lazyrt.config.stop_at_nan = True
    found = run()

    assert found[1:] == expected[1:]
    assert found[2][1] != ()
    for one, other in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_causal_mask_is_no_reason_to_stop():
    lazyrt.config.stop_at_nan = True
    seen = torch.ones(3, 3).tril().bool().to("lazyrt")

    mask = torch.zeros(3, 3, device="lazyrt").masked_fill(~seen, float("-inf"))
    attention = mask.softmax(-1)
    lazyrt.mark_step()

    assert mask.isneginf().sum().item() == 3
    assert attention.sum().item() == pytest.approx(3)


def test_a_step_larger_than_the_budget_has_run_and_says_so():
    lazyrt.config.stop_at_nan = True
    x = torch.full((4,), -1.0, device="lazyrt")
    lazyrt.mark_step()

    with lazyrt.config.scoped(keep_values_bytes=1):
        loss = x.log().sum()
        with pytest.raises(NotFiniteError, match="more than config"):
            lazyrt.mark_step()

    assert loss.isnan().item()
