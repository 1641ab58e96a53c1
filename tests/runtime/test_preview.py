"""Statistics, windows and small pictures of data that stays on the device."""

import math
import tracemalloc
from typing import Any

import jax.numpy as jnp
import pytest
import torch

import lazyrt
from lazyrt.errors import UsageError
from lazyrt.execution import preview
from lazyrt.observe import events
from tests.harness import DEVICE


# The other way compiles each reduction, which takes a CPU seconds.
@pytest.fixture(params=["cpu", pytest.param("other", marks=pytest.mark.slow)])
def place(request, monkeypatch):
    """Both ways: data read in place, and data that the device reduces."""
    if request.param == "other":
        monkeypatch.setattr(preview, "place", lambda data: (jnp, data))
    return request.param


def summary_of(tensor):
    x = tensor.to(DEVICE)
    lazyrt.mark_step()
    (leaf,) = [p for p in lazyrt.pending_graph(x * 1).parameters if p.kind == "data"]
    return lazyrt.inspect(x * 1).look_at_input(leaf).summary


@pytest.mark.not_eager("takes its data from a pending graph")
def test_statistics_equal_torchs(place):
    tensor = torch.randn(40, 50, generator=torch.Generator().manual_seed(0)) * 3

    found = summary_of(tensor)

    assert found.elements == 2_000
    assert (found.nan, found.infinite, found.nonzero) == (0, 0, 2_000)
    wide = tensor.double()
    expected = (wide.min(), wide.max(), wide.mean(), wide.std())
    seen = (found.low, found.high, found.mean, found.std)
    assert seen == pytest.approx([float(x) for x in expected], rel=1e-9)
    counts = torch.histc(wide, preview.BINS)
    assert sum(found.counts) == 2_000
    assert (torch.tensor(found.counts) - counts).abs().max() <= 1


@pytest.mark.not_eager("takes its data from a pending graph")
def test_what_is_not_finite_is_counted_and_left_out(place):
    found = summary_of(torch.tensor([1.0, math.nan, math.inf, -math.inf, 3.0]))

    assert (found.nan, found.infinite) == (1, 2)
    assert found.not_finite.minus_inf == 1
    assert (found.low, found.high, found.mean) == (1.0, 3.0, 2.0)
    assert found.std == pytest.approx(2**0.5)
    assert sum(found.counts) == 2


@pytest.mark.not_eager("takes its data from a pending graph")
def test_statistics_of_many_stretches_equal_torchs(place):
    tensor = torch.randn(50_000, generator=torch.Generator().manual_seed(1)) + 100
    tensor[::7], tensor[3], tensor[49_999] = math.nan, math.inf, 0.0

    found = summary_of(tensor)

    finite = tensor[tensor.isfinite()].double()
    assert (found.nan, found.infinite) == (int(tensor.isnan().sum()), 1)
    expected = (finite.min(), finite.max(), finite.mean(), finite.std())
    seen = (found.low, found.high, found.mean, found.std)
    assert seen == pytest.approx([float(x) for x in expected], rel=1e-9)
    assert found.nonzero == finite.numel() - 1
    counts = torch.histc(finite, preview.BINS)
    assert sum(found.counts) == finite.numel()
    assert (torch.tensor(found.counts) - counts).abs().max() <= 1


@pytest.mark.not_eager("takes its data from a pending graph")
def test_statistics_need_no_copy_of_the_tensor():
    tensor = torch.ones(2_000_000)
    tensor[:1_000_000] = 2
    x = tensor.to(DEVICE)
    lazyrt.mark_step()
    lazyrt.look(x)

    tracemalloc.start()
    seen = lazyrt.look(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert seen.summary.mean == 1.5
    assert peak < 1_000_000  # an eighth of the tensor


@pytest.mark.not_eager("takes its data from a pending graph")
@pytest.mark.parametrize(
    ("tensor", "low", "high"),
    [
        (torch.tensor([True, False]), 0, 1),
        (torch.tensor([3, -4, 0]), -4, 3),
        (torch.tensor(2.5), 2.5, 2.5),
        (torch.tensor([3 + 4j, 1j]), 1, 5),
        (torch.tensor([1.5, -2.0], dtype=torch.bfloat16), -2, 1.5),
        (torch.tensor([1.5, -2.0], dtype=torch.float16), -2, 1.5),
    ],
)
def test_all_kinds_have_statistics(place, tensor, low, high):
    found = summary_of(tensor)

    assert (found.low, found.high) == (low, high)


@pytest.mark.not_eager("takes its data from a pending graph")
def test_nothing_and_nothing_finite_have_none(place):
    assert math.isnan(summary_of(torch.zeros(0, 3)).mean)
    lost = summary_of(torch.full((3,), math.nan))
    assert (lost.nan, lost.counts) == (3, ())
    assert math.isnan(lost.low)


@pytest.mark.not_eager("takes its data from a pending graph")
def test_of_a_large_tensor_a_window_is_copied_and_nothing_else():
    tensor = torch.arange(300.0 * 400).reshape(300, 400)
    x = tensor.to(DEVICE)
    lazyrt.mark_step()
    y = x * 2
    inspection = lazyrt.inspect(y)
    moved: list[Any] = []
    with lazyrt.subscribe(moved.append, events.TransferFinished):
        seen = inspection.look(inspection.graph.nodes[-1].id, at=(100, 390))

    assert not seen.is_whole
    assert seen.at == (100, 390)
    assert torch.equal(seen.value, (tensor * 2)[100:164, 390:454])
    assert [event.nbytes for event in moved] == [64 * 10 * 4]
    assert seen.summary.high == 2 * (300 * 400 - 1)


@pytest.mark.not_eager("takes its data from a pending graph")
def test_of_several_axes_the_leading_ones_are_indexed():
    tensor = torch.arange(40.0 * 50 * 60).reshape(40, 50, 60)
    x = tensor.to(DEVICE)
    lazyrt.mark_step()
    inspection = lazyrt.inspect(x * 1)

    seen = inspection.look(inspection.graph.nodes[-1].id, at=(7, 0, 0), axes=(1, 2))

    assert torch.equal(seen.value, tensor[7:8, :50, :60])
    assert seen.picture is not None
    assert torch.equal(seen.picture, tensor[7])


@pytest.mark.not_eager("takes its data from a pending graph")
def test_a_picture_averages_blocks(place):
    tensor = torch.arange(200.0).repeat(100, 1)
    x = tensor.to(DEVICE)
    lazyrt.mark_step()
    inspection = lazyrt.inspect(x * 1)

    picture = inspection.look(inspection.graph.nodes[-1].id, axes=(0, 1)).picture

    assert picture is not None
    assert picture.shape == (50, 66)
    assert picture[0, :3].tolist() == [1.0, 4.0, 7.0]


@pytest.mark.not_eager("takes its data from a pending graph")
def test_positions_beyond_the_end_are_moved_to_it():
    x = torch.zeros(300, 300, device=DEVICE)
    lazyrt.mark_step()
    inspection = lazyrt.inspect(x * 1)

    seen = inspection.look(inspection.graph.nodes[-1].id, at=(10**6, -5))

    assert seen.at == (299, 0)
    assert seen.value.shape == (1, 64)


@pytest.mark.parametrize(
    "numbers",
    [
        [1.0, 1.0 + 2**-52],
        [-1.7e308, 1.7e308],
        [0.0, 5e-324],
        [float(2**53), float(2**53 + 2)],
    ],
)
def test_numbers_too_close_or_too_far_apart_for_bins_have_no_histogram(numbers):
    found = lazyrt.look(torch.tensor(numbers, dtype=torch.float64).to(DEVICE)).summary

    assert found.counts == ()
    assert (found.low, found.high) == tuple(numbers)


def test_axes_of_a_picture_count_from_the_end_too():
    x = torch.arange(12.0).view(3, 4).to(DEVICE)

    picture = lazyrt.look(x, axes=(-2, -1)).picture

    assert picture is not None
    assert picture.tolist() == x.tolist()


@pytest.mark.parametrize("axes", [(0,), (0, 0), (0, 2), (1, -1), "ab"])
def test_axes_that_make_no_picture_are_named(axes):
    with pytest.raises(UsageError, match="a tensor of 2 dimensions"):
        lazyrt.look(torch.ones(3, 4).to(DEVICE), axes=axes)
