"""Writes that the CPU accepts on views which show an element more than once."""

import pytest
import torch

from tests.harness import DEVICE
from tests.runtime.semantics import grid, on_both, outcome, slow_but

pytestmark = pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors")


def rows(x):
    return x[1:5].expand(3, 4)


def mask_of(d):
    return torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]], device=d).bool()


def masks_fill_an_expanded_row(d, x):
    rows(x).masked_fill_(mask_of(d), 9)
    rows(x + 0).masked_fill_(mask_of(d)[0], torch.tensor(-2.0))
    rows(x)[:, 1:].masked_fill_(mask_of(d)[:, 1:], torch.tensor(7.0, device=d))
    rows(x)[mask_of(d).roll(1, 1)] = float("nan")
    return rows(x)


def indices_fill_an_expanded_row_and_column(d, x):
    index = torch.tensor([2, -4], device=d)
    rows(x).index_fill_(1, index, 5)
    column = x[6:9, None].expand(3, 4)
    column.index_fill_(0, torch.tensor([1], device=d), torch.tensor(8.0, device=d))
    return column.index_fill_(1, index[:0], 3)


def indices_put_into_an_expanded_row(d, x):
    at = torch.tensor([2, 0, 2], device=d)
    rows(x)[at] = -grid(3, 4).to(d)
    rows(x)[:, at] = grid(3, 3).to(d)
    rows(x)[0, at] = 7
    return rows(x).index_put_((at, at), grid(3).to(d), accumulate=True)


def triangles_are_cut_out_of_an_expanded_row(d, x):
    y = x * 2
    rows(x).triu_()
    rows(y).tril_(1)
    z = x[None, :4, None].expand(2, 4, 3)
    return y, z.tril_(-2), z


def thresholds_and_what_changes_nothing(d, x):
    torch.threshold_(rows(x), 3.0, -1.0)
    rows(x).conj_physical_()
    return rows(x.int()).nan_to_num_()


def windows_that_overlap_are_filled(d, x):
    windows = x.unfold(0, 4, 2)
    inside = torch.zeros(windows.shape, dtype=torch.bool, device=d)
    inside[1, 0] = inside[2, 3] = True
    windows.masked_fill_(inside, 50)
    x.as_strided((3, 3), (1, 1), 2).tril_()
    return windows


def bits_of_an_expanded_row_are_filled(d, x):
    bits = rows(x.view(torch.int32))
    bits.masked_fill_(mask_of(d), 0)
    return bits


PROGRAMS = [
    masks_fill_an_expanded_row, indices_fill_an_expanded_row_and_column,
    indices_put_into_an_expanded_row, triangles_are_cut_out_of_an_expanded_row,
    thresholds_and_what_changes_nothing, windows_that_overlap_are_filled,
    bits_of_an_expanded_row_are_filled,
]  # fmt: skip


QUICK = {triangles_are_cut_out_of_an_expanded_row, thresholds_and_what_changes_nothing}


@pytest.mark.parametrize("program", slow_but(PROGRAMS, QUICK))
def test_writes_to_repeated_elements_match_the_cpu(program):
    on_both(program, grid(12))


def test_a_boolean_index_puts_tensors_into_repeated_elements_by_a_counted_cut():
    def program(d, x):
        rows(x)[mask_of(d).any(1)] = -grid(2, 4).to(d)
        return x

    on_both(program, grid(12), fallbacks=1)


REFUSED = {
    "sum": lambda x: x.add_(1),
    "conjugate": lambda x: x[:1].to(torch.complex64).expand(3, 4).conj_physical_(),
    "numbers for nan": lambda x: x.nan_to_num_(),
    "copy": lambda x: x.copy_(torch.zeros(3, 4, device=x.device)),
    "scatter": lambda x: x.scatter_(0, torch.zeros(1, 4).long().to(x.device), 1.0),
    "random": lambda x: x.normal_(),
}


@pytest.mark.parametrize("call", REFUSED)
def test_other_writes_to_repeated_elements_are_refused_as_on_the_cpu(call):
    expected, found = (
        outcome(lambda d=d: REFUSED[call](grid(1, 4).to(d).expand(3, 4)))
        for d in ("cpu", DEVICE)
    )

    assert isinstance(expected, type)
    assert isinstance(found, type)
    assert issubclass(found, expected)
