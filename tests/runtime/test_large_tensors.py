"""Large tensors are looked at without copying them; many are read at once."""

from typing import Any

import pytest
import torch

import lazyrt
from lazyrt.errors import UsageError
from lazyrt.execution import transfer
from lazyrt.execution.preview import WHOLE
from lazyrt.observe import events
from tests.harness import DEVICE, recorded

LARGE = [
    torch.arange(70_000.0),
    torch.randn(300, 400),
    torch.randn(300, 400).t(),
    torch.randn(5, 200, 90),
    torch.randint(-5, 5, (100_000,)),
    torch.rand(100_000) > 0.5,
    torch.randn(70_000, dtype=torch.complex64),
    torch.randn(40, 50, 60).half(),
    torch.randn(40, 50, 60).bfloat16(),
    torch.full((66_000,), float("nan")),
    torch.tensor([float("inf"), 1.0, -2.0]).repeat(40_000),
    torch.randn(2, 2, 3, 700, 10),
    torch.zeros(300, 300, dtype=torch.uint8),
]


def moved(found):
    return sum(event.nbytes for event in found if event.direction == "to_host")


def squeezed(text):
    return "".join(text.split()).replace(",device='lazyrt:0'", "")


@pytest.mark.parametrize("value", LARGE, ids=lambda v: f"{v.dtype}{list(v.shape)}")
@pytest.mark.parametrize("is_pending", [False, True])
def test_the_text_of_a_large_tensor_is_torchs_and_moves_its_edges_alone(
    value, is_pending
):
    assert value.numel() > WHOLE
    x = value.to(DEVICE)
    if is_pending:
        x = x.logical_not() if value.dtype is torch.bool else -x
        value = value.logical_not() if value.dtype is torch.bool else -value
    expected = repr(value)

    with recorded(events.TransferFinished) as found:
        text = repr(x)

    assert squeezed(text) == squeezed(expected)
    assert 0 < moved(found) < (70_000 if value.dim() < 7 else value.nbytes / 2)
    assert len(found) == 1


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[1:],
        lambda t: t.t(),
        lambda t: t[:, ::3],
        lambda t: t.view(-1),
        lambda t: t.expand(4, 400, 300),
        lambda t: t.unfold(0, 3, 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16])
def test_views_of_ready_large_tensors_move_their_edges_alone(view, dtype):
    value = (torch.randn(400, 300) * 9).to(dtype)
    x = value.to(DEVICE)
    lazyrt.mark_step()

    with recorded(events.TransferFinished) as found:
        text = repr(view(x))

    assert squeezed(text) == squeezed(repr(view(value)))
    assert moved(found) < 10_000 or view(value).numel() <= WHOLE
    assert moved(found) <= view(value).numel() * value.itemsize
    assert lazyrt.counters()["executions"] == 0


def test_print_options_are_kept():
    value = torch.arange(70_000.0)
    x = value.to(DEVICE)
    torch.set_printoptions(edgeitems=5, precision=1)
    try:
        assert "".join(repr(x).split()) == "".join(
            repr(value).replace("])", "],device='lazyrt:0')").split()
        )
        torch.set_printoptions(threshold=10**6)
        with recorded(events.TransferFinished) as found:
            assert len(repr(x)) > 100_000
        assert moved(found) == 280_000
    finally:
        torch.set_printoptions(profile="default")


@pytest.mark.not_eager("looks at what is pending")
def test_a_look_at_a_large_tensor_has_all_its_statistics_and_a_part():
    value = torch.randn(500, 600)
    value[3, 4] = float("nan")
    x = value.to(DEVICE) * 2

    with recorded(events.TransferFinished) as found:
        look = lazyrt.look(x, axes=(0, 1))

    assert not look.is_whole
    assert (look.summary.nan, look.summary.shape) == (1, (500, 600))
    finite = (value * 2)[torch.isfinite(value)]
    assert look.summary.mean == pytest.approx(float(finite.double().mean()), abs=1e-6)
    assert look.summary.std == pytest.approx(float(finite.double().std()), rel=1e-6)
    torch.testing.assert_close(look.value, (value * 2)[:64, :64], equal_nan=True)
    assert moved(found) < 64 * 1024
    assert lazyrt.is_pending(x)


def test_a_look_at_a_view_of_a_ready_tensor_records_nothing():
    value = torch.randn(30, 40).bfloat16()
    x = value.to(DEVICE)
    lazyrt.mark_step()
    before = lazyrt.pending_graph().fingerprint

    look = lazyrt.look(x.t()[2:])

    assert torch.equal(look.value, value.t()[2:])
    assert look.summary.low == pytest.approx(float(value.t()[2:].min()))
    assert lazyrt.pending_graph().fingerprint == before


def test_a_tensor_of_another_device_is_refused():
    with pytest.raises(UsageError, match="look\\(\\) got a tensor on cpu"):
        lazyrt.look(torch.ones(2))
    with pytest.raises(UsageError, match="materialise\\(\\) got int 3"):
        lazyrt.materialise(torch.ones(2, device=DEVICE), 3)  # type: ignore[call-overload]


def metrics():
    x = torch.arange(12.0).to(DEVICE).view(3, 4)
    return [x.mean(), x.std(), x.max(), x.min(), x.sum(), x.norm(), x.median()]


@pytest.mark.not_eager("looks at what is pending")
def test_seven_scalars_one_by_one_are_seven_executions_and_together_one():
    one_by_one, together = metrics(), metrics()
    lazyrt.mark_step()
    one_by_one = [value * 2 for value in one_by_one]
    together = [value * 3 for value in together]
    before = lazyrt.pending_graph().fingerprint

    lazyrt.reset_counters()
    alone = [lazyrt.materialise(value).item() for value in one_by_one]
    assert lazyrt.counters()["peek_executions"] == 7
    lazyrt.reset_counters()
    joined = [value.item() for value in lazyrt.materialise(*together)]

    assert lazyrt.counters()["peek_executions"] == 1
    assert joined == pytest.approx([value * 1.5 for value in alone])
    assert lazyrt.pending_graph().fingerprint == before
    assert lazyrt.counters()["executions"] == 0


def test_reading_together_takes_ready_pending_equal_and_known_tensors():
    ready = torch.arange(4.0).to(DEVICE)
    view = ready[1:]
    pending = ready * 2
    known = ready + 5
    lazyrt.materialise(known)

    found = lazyrt.materialise(ready, pending, view, known, pending, pending[:1])

    assert [value.tolist() for value in found] == [
        [0, 1, 2, 3], [0, 2, 4, 6], [1, 2, 3], [5, 6, 7, 8], [0, 2, 4, 6], [0],
    ]  # fmt: skip
    found[1].add_(1)
    assert found[4].tolist() == [0, 2, 4, 6]


@pytest.mark.not_eager("looks at what is pending")
@pytest.mark.parametrize("count", [2, 60])
def test_many_values_are_read_in_one_execution_by_op_and_as_one_slice(count):
    x = torch.ones(3).to(DEVICE)
    values = []
    for number in range(count):
        x = (x * 1.01).sin() + number
        values.append(x)

    with recorded(events.ExecuteStarted) as found:
        read = lazyrt.materialise(*values)

    expected = torch.ones(3)
    for number, value in enumerate(read):
        expected = (expected * 1.01).sin() + number
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    assert [event.purpose for event in found] == ["peek"]


def test_a_snapshot_moves_nothing_to_the_host():
    x = torch.randn(30, 40).to(DEVICE)
    y = (x * 2).t()

    with recorded(events.TransferFinished) as found:
        copies = lazyrt.snapshot(x), lazyrt.snapshot(y)

    assert found == []
    assert torch.equal(copies[0].cpu(), x.cpu())
    assert torch.equal(copies[1].cpu(), y.cpu())
    assert copies[1].stride() == y.stride()
    x.add_(1)
    assert not torch.equal(copies[0].cpu(), x.cpu())


def test_a_large_copy_tells_how_far_it_is_and_is_exact(monkeypatch):
    monkeypatch.setattr(transfer, "_PIECE", 1024)
    monkeypatch.setattr(transfer, "_PAUSE_NS", 0)
    host = torch.randn(1000, 3)
    seen: list[Any] = []

    with (
        lazyrt.config.scoped(progress_after_s=0.0),
        lazyrt.subscribe(seen.append, events.TransferProgress),
    ):
        there = host.to(DEVICE)
        back = there.cpu()

    assert torch.equal(back, host)
    assert torch.equal(there.bfloat16().cpu(), host.bfloat16())
    for direction in ("to_device", "to_host"):
        found = [e for e in seen if e.direction == direction]
        assert [e.done for e in found] == [min(n * 1024, 12_000) for n in range(1, 13)]
        assert {e.nbytes for e in found} == {12_000}


def test_a_copy_that_is_stopped_leaves_everything(monkeypatch):
    monkeypatch.setattr(transfer, "_PIECE", 1024)
    monkeypatch.setattr(transfer, "_PAUSE_NS", 0)
    there = torch.ones(1000, 3, device=DEVICE)
    lazyrt.mark_step()

    def stop(_event):
        raise KeyboardInterrupt

    with lazyrt.config.scoped(progress_after_s=0.0):
        with (
            lazyrt.subscribe(stop, events.TransferProgress),
            pytest.raises(KeyboardInterrupt),
        ):
            there.cpu()
        assert there.cpu().sum() == 3000
