"""Masks by which a library's model leaves out elements: positions instead of a cut."""

import importlib

import pytest
import torch

import lazyrt
from lazyrt.frontend import host_constants
from lazyrt.frontend.buffers import value_of
from lazyrt.observe import events
from tests.harness import DEVICE, assert_same, cold_start, recorded

SOURCE = """
import torch

def picked(x, mask):
    return x[mask == 1]

def picked_beside(x, mask):
    return x[:, mask == 1]

def selected(x, mask):
    return x.masked_select(mask == 1)

def written(x, mask):
    y = x * 2
    y[mask == 1] = x[mask == 1].cos()
    return y

def picked_by_value(x, mask):
    return x[x > 0]

def selected_into(x, mask):
    return torch.masked_select(x, mask == 1, out=x.new_empty(0))

def picked_into(x, mask):
    return torch.ops.aten.index.Tensor_out(x, [mask == 1], out=x.new_empty(0))

def picked_late(x, mask):
    for _ in range(40):
        mask = mask * 1.5 - mask * 0.5
    return x[mask == 1]

def read(x):
    return x.cpu()
"""
MASKS = [
    torch.tensor([[1, 0, 1, 1], [0, 0, 0, 1], [0, 1, 0, 0]]),
    torch.tensor([[0, 0, 0, 1], [1, 1, 0, 1], [0, 1, 0, 0]]),
]
DATA = torch.arange(1.0, 13.0).view(3, 4) / 4 - 1.5


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    package = tmp_path_factory.mktemp("masks") / "site-packages" / "fakemasks"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(package.parent))
        yield importlib.import_module("fakemasks")


def trained(function, mask, device):
    """Return the result of a library's function, and the gradient of its argument."""
    x = DATA.clone().to(device).requires_grad_()
    found = function(x.tanh(), mask.to(device))
    found.square().sum().backward()
    return found.detach(), x.grad


@pytest.mark.lazy_only("counts graphs and compiles of steps")
@pytest.mark.parametrize("name", ["picked", "selected", "written"])
def test_a_librarys_mask_cuts_nothing_and_new_data_compile_nothing(library, name):
    function = getattr(library, name)
    cold_start()
    compiles = []
    for mask in (*MASKS, MASKS[0]):
        expected = trained(function, mask, "cpu")
        lazyrt.reset_counters()

        with recorded(events.FallbackUsed, events.BarrierFinished) as cuts:
            found = trained(function, mask, DEVICE)

        assert cuts == []
        lazyrt.mark_step()
        compiles.append(lazyrt.counters()["compiles"])
        for mine, theirs in zip(found, expected, strict=True):
            assert_same(mine, theirs, 1e-6)
    assert compiles == [1, 0, 0]


def test_a_mask_beside_other_indices_and_one_that_is_written_afterwards(library):
    row = MASKS[0][0]
    mask = row.to(DEVICE)
    first = library.picked_beside(DATA.to(DEVICE), mask)
    mask[0] = 0
    second = library.picked_beside(DATA.to(DEVICE), mask)

    assert_same(first, DATA[:, [0, 2, 3]])
    assert_same(second, DATA[:, [2, 3]])


@pytest.mark.not_eager("a mask has its value: the op runs on the CPU and cuts nothing")
def test_a_mask_without_true_elements(library):
    with recorded(events.FallbackUsed, events.BarrierFinished) as cuts:
        found = trained(library.picked, torch.zeros_like(MASKS[0]), DEVICE)

    assert cuts == []
    assert found[0].shape == (0,)
    assert found[1].count_nonzero() == 0


@pytest.mark.not_eager("a mask has its value: the op runs on the CPU and cuts nothing")
@pytest.mark.parametrize("name", ["picked_late", "picked_by_value"])
def test_what_a_mask_reads_decides_whether_it_cuts(library, name):
    """A mask of many ops is not computed twice; one of few ops on device data is read."""
    function = getattr(library, name)
    x, mask = DATA.to(DEVICE), MASKS[0].to(DEVICE)

    with recorded(events.FallbackUsed) as cuts:
        found = function(x, mask)

    assert len(cuts) == (name == "picked_late")
    assert_same(found, function(DATA, MASKS[0]))


@pytest.mark.not_eager("a mask has its value: the op runs on the CPU and cuts nothing")
@pytest.mark.parametrize("name", ["selected_into", "picked_into"])
def test_a_librarys_mask_with_an_out_argument(library, name):
    function = getattr(library, name)

    with recorded(events.FallbackUsed) as cuts:
        found = function(DATA.to(DEVICE), MASKS[0].to(DEVICE))

    assert cuts == []
    assert_same(found, DATA[MASKS[0] == 1])


def test_the_users_own_mask_with_an_out_argument():
    x, mask = DATA.to(DEVICE), (MASKS[0] == 1).to(DEVICE)
    out = torch.empty(0, device=DEVICE)

    assert_same(torch.masked_select(x, mask, out=out), DATA[MASKS[0] == 1])
    with pytest.raises(RuntimeError, match=r"broadcast|must match|size"):
        torch.masked_select(x, mask[:, :3], out=out)


@pytest.mark.not_eager("a cut needs something that is pending")
def test_a_users_own_mask_cuts_with_its_line():
    x, mask = DATA.to(DEVICE).tanh(), MASKS[0].to(DEVICE)

    with recorded(events.FallbackUsed, events.BarrierFinished) as cuts:
        found = x[mask == 1]

    assert [type(event) for event in cuts] == [
        events.BarrierFinished,
        events.FallbackUsed,
    ]
    assert all(event.site.file == __file__ for event in cuts)
    assert_same(found, DATA.tanh()[MASKS[0] == 1], 1e-6)


@pytest.mark.not_eager("looks at what is pending")
def test_what_packages_asked_is_remembered_within_bounds(monkeypatch):
    monkeypatch.setattr(host_constants, "_MAX_RESULTS", 2)
    host_constants.forget()
    x = torch.ones(3).to(DEVICE)
    answers = []
    for number in range(5):
        check = (x == number).all()
        value = value_of(check)
        assert host_constants.known(value) is None
        host_constants.remember(value, lazyrt.materialise(check))
        answers.append(host_constants.known(value).item())  # type: ignore[union-attr]
        assert len(host_constants._results) <= 2

    assert answers == [False, True, False, False, False]


@pytest.mark.lazy_only("asks what is remembered")
def test_what_a_library_does_to_a_value_that_it_has_read_is_not_remembered(library):
    x = torch.ones(3).to(DEVICE)
    lazyrt.mark_step()

    for _ in range(3):
        seen = library.read(x * 2)
        assert seen.tolist() == [2.0] * 3
        seen.zero_()


def test_a_library_that_reads_draws_gets_new_ones_each_time(library):
    def draws(read):
        torch.manual_seed(3)
        return [read(torch.rand(2, device=DEVICE)).tolist() for _ in range(4)]

    by_library = draws(library.read)

    assert by_library == draws(lambda t: t.cpu())
    assert len({tuple(pair) for pair in by_library}) == 4
