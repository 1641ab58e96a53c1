"""Reads and writes by mask and by index, and copies, next to the CPU."""

import numpy as np
import pytest
import torch

from tests.harness import lazy
from tests.runtime.semantics import grid, on_both, outcome, slow_but

ROWS = torch.tensor([0, 2, 3])


def masks_select_and_write(d, x, i):
    y = x.view(12, 5)
    mask = (y.long() % 2) == 0
    read = [y[mask], y[mask.any(1)], y[:, mask[0]], y.masked_select(mask)]
    y[mask] = 0
    y[mask[:, 0]] += 1
    y[~mask] *= 2
    y[y > 50] = torch.tensor(-1.0, device=d)
    return read


def one_value_is_written_by_mask_without_a_cut(d, x, i):
    x[x > 10] = 0
    x[x[:, 0, 0] > 0] = 1.5
    x[:, x[0, :, 0] >= 0] = torch.tensor(3.0, device=d)
    return (
        x.masked_fill(x > 2, 7),
        torch.where(x > 2, x, -x),
        x.masked_scatter(x > 2, -x),
    )


def as_many_values_as_the_mask_picks(d, x, i):
    y = x.flatten()
    mask = (y.long() % 3) == 0
    y[mask] = torch.arange(20.0, device=d)
    return y


def positions_select(d, x, i):
    j = torch.tensor([[0], [1]], device=d)
    return (
        x[i], x[:, [0, 2]], x[i, :, i], x[i, None, 1], x[j, :, i], x[..., i], x[None, i, ..., 0],
        x[i[0]], x[i[0], 1:], x[[0, 1], [1, 2]], x[-1], x[::2, 1], x[i, 1:3], x[True], x[-i - 1],
        x[(slice(None), [0, 1], [0, 1])], x[np.array([0, 1])], x[range(2)], x[0, 0, i].item
        and x[0, 0, 0].item(),
    )  # fmt: skip


def positions_are_written(d, x, i):
    x[i] = 1
    x[:, [0, 2]] += 1
    x[i, :, i] = -1.0
    x[i, 1, 2] = torch.tensor([7.0, 8.0, 9.0], device=d)
    x[..., i] *= 2
    x[0, ..., i] = i.float()
    x[i, 0:2] = torch.zeros(5, device=d)
    x[1] = x[2]
    x[-1, -1, -1] = 100
    x[i[0], 1:] = x[i[1], 1:]


def index_put_adds_up(d, x, i):
    j = torch.tensor([0, 0, 3, -1], device=d)
    y, z, w = x[:, 0, 0].clone(), x[:, 0].clone(), x[0].clone()
    y.index_put_((j,), torch.ones(4, device=d), accumulate=True)
    again = y.index_put((j,), torch.tensor(2.0, device=d), accumulate=True)
    z.index_put_((j, j), torch.arange(4.0, device=d), accumulate=True)
    w.index_put_((w > 2,), torch.tensor(10.0, device=d), accumulate=True)
    w.index_put_((j[:2], j[2:3]), torch.tensor([1.0, 5.0], device=d), accumulate=True)
    return y, again, z, w


def index_ops(d, x, i):
    y, ones = x[0].clone(), torch.ones(3, 5, device=d)
    j = torch.tensor([0, 0, 2], device=d)
    wide = j[:, None].expand(3, 5)
    return (
        y.index_add(0, j, ones, alpha=2), y.index_copy(0, torch.tensor([0, 2, 1], device=d), ones),
        y.index_fill(1, j, 9.0), y.index_reduce(0, j, ones * 3, "prod"),
        y.index_reduce(0, j, ones * 3, "amax", include_self=False), y.scatter(1, j[None], ones),
        y.scatter(1, j[None], 7.0), y.scatter_add(0, wide, ones),
        y.scatter_reduce(0, wide, ones * 2, "mean"), y.put(j, ones[0, :3]), y.take(j),
        y.put(j, ones[0, :3], accumulate=True), y.gather(0, wide), y.index_select(1, j),
        torch.take_along_dim(y, y.argsort(1, descending=True), 1),
    )  # fmt: skip


def gradients_of_reads_and_writes(d, x, i):
    x.requires_grad_()
    y = x * 1
    y[i] = 0
    y[:, 0] *= x[:, 1].detach()
    y[0, 0] += x[1, 1]
    total = (
        (x[i, :, i] * 2).sum()
        + (y[:, i[1] - 1] ** 2).sum()
        + x.gather(0, i.view(3, 1, 1)).sum()
    )
    total.backward()
    return total


def gradients_through_masks(d, x, i):
    x.requires_grad_()
    total = (
        x[x > 5].sum() + x.masked_select(x < 3).prod() + x.masked_fill(x > 9, 0).sum()
    )
    total.backward()
    return total


def written_values_are_cast(d, x, i):
    n = torch.arange(5, device=d)
    n[0] = 2.7
    n[1:3] = torch.tensor([1.5, -2.5], device=d)
    n[3] = True
    b = torch.zeros(3, dtype=torch.bool, device=d)
    b[1] = 5
    h = torch.zeros(3, dtype=torch.bfloat16, device=d)
    h[1:] = x[0, 0, :2]
    return n, b, h


def copies_change_dtype(d, x, i):
    y = x[0, 0] - 2
    kinds = (
        torch.int8,
        torch.bool,
        torch.float16,
        torch.complex64,
        torch.float64,
        torch.int64,
    )
    made = [torch.zeros(5, dtype=kind, device=d).copy_(y) for kind in kinds]
    rows = torch.zeros(2, 5, device=d).copy_(i.new_ones(5))
    return made, rows, y.to(torch.int32).double(), y.bool().int()


def copies_cross_devices(d, x, i):
    y = x[0, :2, :3]
    host = torch.zeros(3, 2, dtype=torch.float64)
    host.t().copy_(y)
    turned = torch.zeros(2, 3, device=d).t()
    turned.copy_(host)
    whole = torch.zeros(2, 3, dtype=torch.int32, device=d)
    whole[:, 1:].copy_(torch.tensor([[1.9, 2.0], [3.0, 4.0]]))
    return host, turned, whole, y.to("cpu", torch.int64)


CUTS = {
    masks_select_and_write: 8,
    as_many_values_as_the_mask_picks: 1,
    gradients_through_masks: None,
}
PROGRAMS = [
    masks_select_and_write, one_value_is_written_by_mask_without_a_cut,
    as_many_values_as_the_mask_picks, positions_select, positions_are_written, index_put_adds_up,
    index_ops, gradients_of_reads_and_writes, gradients_through_masks, written_values_are_cast,
    copies_change_dtype, copies_cross_devices,
]  # fmt: skip
# The others are slow: each program is compiled by XLA.
QUICK = {
    one_value_is_written_by_mask_without_a_cut,
    index_put_adds_up,
    copies_cross_devices,
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("program", slow_but(PROGRAMS, QUICK))
def test_indexing_matches_the_cpu(program):
    on_both(program, grid(4, 3, 5), ROWS, fallbacks=CUTS.get(program, 0))


REFUSED_ON_BOTH = {
    "index beyond the end": lambda x: x[7],
    "too many indices": lambda x: x[0, 0, 0],
    "mask of another shape": lambda x: x[
        torch.ones(3, dtype=torch.bool, device=x.device)
    ],
    "float index": lambda x: x[torch.ones(2, device=x.device)],
    "values that do not fit": lambda x: x.__setitem__(
        0, torch.ones(5, device=x.device)
    ),
    "mask picks another number": lambda x: x.__setitem__(
        x > 4, torch.ones(3, device=x.device)
    ),
    "values of another dtype": lambda x: x.__setitem__(
        (slice(None), [1]), torch.ones(4, 1, dtype=torch.int32, device=x.device)
    ),
    "scatter of a float index": lambda x: x.scatter(0, x, x),
    "gather of another rank": lambda x: x.gather(0, torch.tensor([0], device=x.device)),
}


@pytest.mark.parametrize("call", REFUSED_ON_BOTH)
def test_indexing_that_the_cpu_refuses_is_refused(call):
    expected = outcome(lambda: REFUSED_ON_BOTH[call](grid(4, 3)))

    assert isinstance(expected, type)
    actual = outcome(lambda: REFUSED_ON_BOTH[call](lazy(grid(4, 3))))
    assert isinstance(actual, type), f"gave {actual}"
    assert issubclass(actual, expected)
