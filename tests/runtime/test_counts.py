"""`torch.bincount` in a step: recorded where its result's length is known, a cut elsewhere."""

import importlib

import pytest
import torch

import lazyrt
from lazyrt.observe import events
from tests.harness import DEVICE, assert_same, recorded

X = torch.tensor([[0.5, -1.0, 2.0], [0.0, 3.0, 1.0], [4.0, 1.0, 2.0], [0.0, 0.0, 1.0]])
CLASSES = torch.tensor([2, 1, 2, 0])
SOURCE = """
import torch

def degrees(ends, nodes):
    return torch.bincount(ends[ends != nodes])

def weighed(ends, weights):
    return torch.bincount(ends, weights)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    package = tmp_path_factory.mktemp("counts") / "site-packages" / "fakecounts"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(package.parent))
        yield importlib.import_module("fakecounts")


def confusion(x, classes):
    pairs = classes * 3 + x.cos().argmax(1)
    return torch.bincount(pairs[pairs >= 0], minlength=9).reshape(3, 3)


def weighed(x, classes):
    weights = x.cos().sum(1)
    return torch.bincount(x.cos().argmax(1), weights=weights, minlength=4)


def weighed_by_doubles(x, classes):
    return torch.bincount(x.cos().argmax(1), classes, minlength=3)


def of_nothing(x, classes):
    return torch.bincount(x.cos().argmax(1)[:0], x.cos().sum(1)[:0], minlength=3)


@pytest.mark.lazy_only("counts the executions of a step")
@pytest.mark.parametrize("count", [confusion, weighed, weighed_by_doubles, of_nothing])
def test_a_count_of_classes_is_a_part_of_its_step(count):
    x, classes = X.to(DEVICE), CLASSES.to(DEVICE)
    lazyrt.mark_step()
    lazyrt.reset_counters()

    with recorded(events.FallbackUsed, events.BarrierFinished) as cuts:
        found = count(x, classes)
    lazyrt.mark_step()

    assert cuts == []
    assert lazyrt.counters()["executions"] == 1
    assert found.dtype is count(X, CLASSES).dtype
    assert_same(found, count(X, CLASSES), 1e-6)


@pytest.mark.lazy_only("counts compiles")
def test_counts_of_other_data_are_the_same_graph():
    compiles = []
    for classes in (CLASSES, CLASSES.flip(0), CLASSES * 0):
        lazyrt.reset_counters()
        found = confusion(X.to(DEVICE), classes.to(DEVICE))
        lazyrt.mark_step()
        compiles.append(lazyrt.counters()["compiles"])
        assert_same(found, confusion(X, classes))
    assert compiles[1:] == [0, 0]


@pytest.mark.not_eager("operands are ready")
def test_an_element_that_reaches_minlength_makes_the_result_longer():
    """The bounds do not show the length: the op cuts, as it does without minlength."""
    x = X.to(DEVICE)
    with recorded(events.FallbackUsed) as cuts:
        found = torch.bincount(x.cos().argmax(1), minlength=2)

    assert len(cuts) == 1
    assert_same(found, torch.bincount(X.cos().argmax(1), minlength=2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: torch.bincount(x.argmax(1) - 1, minlength=9), "non-negative"),
        (lambda x: torch.bincount(x.argmax(1, keepdim=True), minlength=9), "1-d"),
        (lambda x: torch.bincount(x.argmax(1), minlength=-1), "minlength"),
        (lambda x: torch.bincount(x.argmax(1), x[0], minlength=9), "weights"),
    ],
)
def test_bad_calls_raise_as_on_the_cpu(call, message):
    for x in (X, X.to(DEVICE).cos().acos()):
        with pytest.raises(RuntimeError, match=message):
            call(x)


@pytest.mark.not_eager("operands are ready")
def test_a_package_may_leave_out_minlength_for_data(library):
    ends = torch.tensor([0, 1, 1, 3])
    weights = torch.rand(4, generator=torch.Generator().manual_seed(0))

    with recorded(events.FallbackUsed, events.BarrierFinished) as cuts:
        plain = library.degrees(ends.to(DEVICE), 1)
        by_weight = library.weighed(ends.to(DEVICE) * 1, weights.to(DEVICE).cos())

    assert cuts == []
    assert_same(plain, library.degrees(ends, 1))
    assert_same(by_weight, library.weighed(ends, weights.cos()), 1e-6)
