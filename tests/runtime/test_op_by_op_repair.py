"""Ops whose lowering fails only once they are compiled: the device goes on."""

import contextlib
from typing import Any

import jax
import pytest
import torch
from jax.extend.core import Primitive
from torch import nn

import lazyrt
from lazyrt.errors import LostValueError, LoweringError
from lazyrt.observe import events
from tests.harness import DEVICE, recorded

pytestmark = pytest.mark.usefixtures("rules")

UNKNOWN = Primitive("lazyrt_test_unknown")  # to MLIR; its abstract rule passes
UNKNOWN.def_abstract_eval(lambda x: x)


def not_in_mlir(ctx, x):
    return UNKNOWN.bind(x)


def not_in_xla(ctx, x):
    call = jax.ffi.ffi_call(
        "lazyrt_test_nobody", jax.ShapeDtypeStruct(x.shape, x.dtype)
    )
    return call(x)


@pytest.fixture(params=[not_in_mlir, not_in_xla])
def broken(request):
    """`torch.frac` has a rule that passes when it is recorded, and fails later."""
    lazyrt.lowers("aten.frac.default")(request.param)


def halves():
    x = torch.tensor([0.5, 1.25]).to(DEVICE)
    return x * 3


@pytest.mark.not_eager("the op has run before the barrier")
def test_the_op_runs_on_the_cpu_and_the_step_goes_on(broken):
    x = halves()
    y = torch.frac(x)
    x.add_(y + 1)

    with recorded(events.FallbackUsed) as found:
        lazyrt.mark_step()

    assert x.tolist() == [3.0, 5.5]
    assert y.tolist() == [0.5, 0.75]
    (fallback,) = found
    assert fallback.op == "aten.frac.default"
    assert fallback.site.file == __file__
    assert lazyrt.counters()["cpu_fallbacks"] == 1


@pytest.mark.lazy_only("op by op a read repairs no graph")
def test_equal_ops_fall_back_when_they_are_recorded_next(broken):
    x = halves()
    torch.frac(x).tolist()

    y = torch.frac(x) + 1

    assert lazyrt.counters()["cpu_fallbacks"] == 2
    assert y.tolist() == [1.5, 1.75]
    assert lazyrt.counters()["cpu_fallbacks"] == 2


@pytest.mark.parametrize("mode", ["lazy", "op by op", "eager"])
def test_values_are_right_in_all_modes(broken, mode):
    x = halves()
    modes: dict[str, Any] = {
        "lazy": contextlib.nullcontext,
        "op by op": lazyrt.op_by_op_mode,
        "eager": lazyrt.eager_mode,
    }
    with modes[mode]():
        y = torch.frac(x)
        unrelated = (torch.ones(3, device=DEVICE) * 2).sum()
        z = torch.frac(x + 0.25) + y

        assert unrelated.item() == 6.0
        assert z.tolist() == [1.25, 0.75]


@pytest.mark.not_eager("looks at what is pending")
def test_a_peek_at_it_and_around_it_works(broken):
    x = halves()
    y = torch.frac(x)
    z = y + 1

    assert "1.5000, 1.7500" in repr(z)
    assert "0.5000, 0.7500" in repr(y)
    assert repr(x * 2) == repr(torch.tensor([3.0, 7.5]))[:-1] + ", device='lazyrt:0')"
    assert z.tolist() == [1.5, 1.75]


def test_training_that_reads_it_is_that_of_the_cpu(broken):
    def losses(device):
        torch.manual_seed(0)
        model = nn.Linear(2, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        found = []
        for _ in range(3):
            x = torch.tensor([[1.5, 2.25]]).to(device)
            loss = (model(torch.frac(x)) + model(x)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    assert losses(DEVICE) == pytest.approx(losses("cpu"), rel=1e-5)


@pytest.mark.lazy_only("other modes compile the op at once")
def test_what_the_cpu_cannot_run_is_dropped_with_what_depends_on_it():
    lazyrt.lowers("aten.rand_like.default")(lambda ctx, x, *_: UNKNOWN.bind(x))
    weight = torch.ones(2).to(DEVICE)
    unrelated = torch.ones(2, device=DEVICE) * 2
    lost = torch.rand_like(weight * 3) + 1  # of numbers that the device alone draws
    weight.sub_(lost)

    with pytest.raises(LoweringError, match=r"aten\.rand_like") as caught:
        lazyrt.mark_step()

    notes = " ".join(caught.value.__notes__)
    assert "recorded at test_op_by_op_repair.py:" in notes
    assert "dropped with the 2 tensors" in notes
    assert unrelated.tolist() == [2.0, 2.0]
    assert weight.tolist() == [1.0, 1.0]  # as before the step
    with pytest.raises(LostValueError, match="could not be computed"):
        lost.tolist()
    lazyrt.mark_step()
