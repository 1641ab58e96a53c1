"""Views of large ready data are shown and kept without a copy of all that they are part of."""

import pytest
import torch

import lazyrt
from lazyrt.execution import memory, transfer
from lazyrt.observe import events
from tests.harness import DEVICE, recorded

SIDE = 768  # 2.25 MiB of floats

VIEWS = {
    "T": lambda w: w.T,
    "every other row": lambda w: w[::2],
    "rows": lambda w: w[5:7],
    "a column": lambda w: w[:, 3],
    "an element": lambda w: w[1, 2],
    "flat": lambda w: w.view(-1),
    "reshaped": lambda w: w.view(2, SIDE // 2, SIDE).movedim(0, -1),
    "rows of T": lambda w: w.T[2:4],
    "diagonal": lambda w: w.diagonal(),
    "expanded": lambda w: w[:2].unsqueeze(0).expand(3, -1, -1),
    "windows": lambda w: w[:4].unfold(1, 2, 1),
    "by strides": lambda w: w.as_strided((3, 4), (SIDE, 2), 7),
    "words": lambda w: w.view(torch.int32),
    "backwards in part": lambda w: w.split(300)[2][:, -5:],
}


def cpu(dtype=torch.float32):
    numbers = torch.arange(SIDE * SIDE, dtype=torch.float32).view(SIDE, SIDE)
    return (numbers % 97).to(dtype)


def ready(dtype=torch.float32):
    w = cpu(dtype).to(DEVICE)
    lazyrt.mark_step()
    return w


@pytest.fixture
def afar(monkeypatch):
    """A device whose memory the host cannot read, as a GPU's."""
    monkeypatch.setattr(transfer, "lends", lambda _: False)


def moved(run, direction=None):
    """Return how many bytes a function moves between host and device."""
    with recorded(events.TransferFinished) as found:
        run()
    return sum(e.nbytes for e in found if direction in (None, e.direction))


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_taken_by_the_device_and_the_part_alone_is_moved(name, afar):
    view = VIEWS[name]
    w, expected = ready(), view(cpu())
    seen, looks = [], []

    for_the_value = moved(lambda: seen.append(lazyrt.materialise(view(w))))
    counts = dict(lazyrt.counters())
    for_a_look = moved(lambda: looks.append(lazyrt.look(view(w))))

    torch.testing.assert_close(seen[0], expected)
    assert for_the_value == expected.numel() * expected.itemsize
    assert for_a_look <= max(64 * 64 * 4, 65_536 * 4)
    assert looks[0].summary.shape == tuple(expected.shape)
    assert looks[0].summary.mean == pytest.approx(expected.double().mean().item())
    assert lazyrt.counters()["executions"] == counts["executions"]
    assert lazyrt.pending_graph().nodes == ()


def test_small_data_is_copied_and_no_program_is_compiled_for_its_views(afar):
    w = torch.arange(12.0).view(3, 4).to(DEVICE)
    lazyrt.mark_step()
    before = lazyrt.counters()["peek_compiles"]

    assert lazyrt.materialise(w.T[1]).tolist() == [1, 5, 9]
    assert lazyrt.counters()["peek_compiles"] == before


def test_types_that_the_host_cannot_borrow_are_sliced_on_the_device():
    w = cpu().repeat(2, 2).to(torch.float8_e4m3fn).to(DEVICE)
    lazyrt.mark_step()
    found = []

    nbytes = moved(lambda: found.append(lazyrt.materialise(w[5:7])))

    assert nbytes == 2 * 2 * SIDE
    expected = cpu().repeat(2, 2).to(torch.float8_e4m3fn)[5:7]
    torch.testing.assert_close(found[0].float(), expected.float())


@pytest.mark.not_eager("in eager debug mode a view has a computed copy")
@pytest.mark.parametrize("name", ["T", "every other row", "flat", "reshaped", "words"])
def test_a_view_of_most_of_large_data_is_kept_without_a_copy(name):
    view = VIEWS[name]
    w, expected = ready(), view(cpu()).clone()
    before = memory.in_use()
    kept = []

    nbytes = moved(lambda: kept.append(lazyrt.snapshot(view(w))))

    assert nbytes == 0
    assert memory.in_use() == before
    assert kept[0].stride() == view(cpu()).stride()
    w.mul_(0).sub_(1)  # the step overwrites what both have
    lazyrt.mark_step()
    torch.testing.assert_close(kept[0].cpu(), expected)
    torch.testing.assert_close((kept[0] + 1).cpu(), expected + 1)
    assert w[0, 0].item() == -1


def test_a_small_part_of_large_data_does_not_keep_it():
    w = ready()
    kept = lazyrt.snapshot(w[3:5])
    before = memory.in_use()

    del w

    assert before - memory.in_use() == SIDE * SIDE * 4
    torch.testing.assert_close(kept.cpu(), cpu()[3:5])


def test_a_kept_view_may_be_written_to_alone():
    w = ready()
    kept = lazyrt.snapshot(w.T)

    kept[0] = 5.0
    lazyrt.mark_step()

    torch.testing.assert_close(w.cpu(), cpu())
    expected = cpu().T.clone()
    expected[0] = 5.0
    torch.testing.assert_close(kept.cpu(), expected)
