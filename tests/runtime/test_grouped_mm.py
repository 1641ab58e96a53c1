"""Products of matrices in groups, of which a mixture of experts is made: no cut, no fallback."""

import re

import pytest
import torch

import lazyrt
from lazyrt.observe import events
from tests.harness import DEVICE, assert_same, cold_start, recorded

ENDS = torch.tensor([3, 3, 8], dtype=torch.int32)  # the second group is empty


def factors(kind):
    torch.manual_seed(0)
    shapes = {
        "rows": ((8, 4), (3, 4, 16)),
        "columns": ((3, 4, 16), (16, 8)),
        "summands": ((4, 8), (8, 16)),
        "batch": ((3, 4, 8), (3, 8, 16)),
    }[kind]
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def run(kind, device):
    a, b = (t.detach().to(device).requires_grad_() for t in factors(kind))
    offs = None if kind == "batch" else ENDS.to(device)
    out = torch.nn.functional.grouped_mm(a, b, offs=offs)
    (out * out.detach().cos()).sum().backward()
    return out.detach(), a.grad, b.grad


@pytest.mark.parametrize("kind", ["rows", "columns", "summands", "batch"])
def test_a_grouped_product_and_its_gradients_are_those_of_the_cpu(kind):
    wanted = run(kind, "cpu")

    with recorded(events.BarrierFinished, events.FallbackUsed) as cuts:
        found = run(kind, DEVICE)

    assert not cuts
    for mine, theirs in zip(found, wanted, strict=True):
        assert_same(mine, theirs, 1e-5)


@pytest.mark.lazy_only("counts compiles of steps")
def test_the_sizes_of_the_groups_are_data():
    a, b = (t.detach() for t in factors("rows"))
    lazy_a, lazy_b = a.to(DEVICE), b.to(DEVICE)
    compiles = []
    cold_start()
    for ends in ([3, 3, 8], [0, 8, 8], [2, 5, 8]):
        offs = torch.tensor(ends, dtype=torch.int32)
        lazyrt.reset_counters()
        found = torch.nn.functional.grouped_mm(lazy_a, lazy_b, offs=offs.to(DEVICE))
        lazyrt.mark_step()
        assert_same(found, torch.nn.functional.grouped_mm(a, b, offs=offs), 1e-5)
        compiles.append(lazyrt.counters()["compiles"])

    assert compiles == [1, 0, 0]


@pytest.mark.parametrize(
    "change",
    [
        lambda a, b, offs: (a, b, None),
        lambda a, b, offs: (a, b, offs.long()),
        lambda a, b, offs: (a, b.double(), offs),
        lambda a, b, offs: (a[:, :3], b, offs),
        lambda a, b, offs: (a, b, offs[:2]),
    ],
    ids=[
        "no ends",
        "ends of another type",
        "two dtypes",
        "inner sizes",
        "too few ends",
    ],
)
def test_a_wrong_grouped_product_is_refused_in_the_words_of_the_cpu(change):
    a, b = (t.detach() for t in factors("rows"))
    with pytest.raises(RuntimeError) as on_the_cpu:
        torch._grouped_mm(*change(a, b, ENDS))

    with pytest.raises(RuntimeError, match=f"^{re.escape(str(on_the_cpu.value))}$"):
        torch._grouped_mm(*change(a.to(DEVICE), b.to(DEVICE), ENDS.to(DEVICE)))
