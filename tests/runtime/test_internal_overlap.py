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


def matrices(d, *shape):
    return (grid(*shape) / 8).to(d)


RUN_BY_THE_CPU = {
    "products are added to one number": lambda d, x: (
        x[1:2].expand(3).addmv_(matrices(d, 3, 3), matrices(d, 3), beta=0.5)
    ),
    "columns are added to one number": lambda d, x: (
        x[1:2].expand(3).addmv_(matrices(d, 3, 3).t(), matrices(d, 3), alpha=2)
    ),
    "products are added to one matrix": lambda d, x: (
        x[:4].view(2, 2).expand(3, 2, 2).baddbmm_(matrices(d, 3, 2, 2), matrices(d, 3, 2, 2))
    ),
    "products are added to one column": lambda d, x: (
        x[2:4].view(2, 1).expand(3, 2, 2).baddbmm_(matrices(d, 3, 2, 2), matrices(d, 3, 2, 2))
    ),
    "rows of one vector are shortened": lambda d, x: torch.embedding_renorm_(
        x.expand(4, 12), torch.tensor([1, 2, 1], device=d), 2.0, 2.0
    ),
    "columns that are short enough stay": lambda d, x: torch.embedding_renorm_(
        x[:, None].expand(12, 3), torch.tensor([1, 2], device=d), 200.0, 2.0
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "call", slow_but(RUN_BY_THE_CPU, {"columns are added to one number"})
)
def test_sums_over_repeated_elements_are_those_of_the_cpu_by_a_counted_cut(call):
    on_both(RUN_BY_THE_CPU[call], grid(12), fallbacks=1)


def test_columns_to_be_shortened_are_refused_as_on_the_cpu():
    def program(d, x):
        index = torch.tensor([1], device=d)
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.embedding_renorm_(x[:, None].expand(12, 3), index, 0.5, 2.0)
        return x

    on_both(program, grid(12), fallbacks=1)


SHAPES_OF_TRIANGLES = {
    "one matrix, first of four": lambda x: x[:4].view(2, 2).expand(2, 1, 2, 2),
    "one matrix, second of four": lambda x: x[:4].view(2, 2).expand(2, 3, 2, 2),
    "rows of five": lambda x: x[:4].view(2, 1, 2).expand(1, 1, 2, 2, 2),
    "batches apart": lambda x: x[:12].view(3, 4)[:, None, None, :2].expand(3, 1, 2, 2),
}


@pytest.mark.parametrize("shape", SHAPES_OF_TRIANGLES)
@pytest.mark.parametrize("cut", [torch.Tensor.tril_, torch.Tensor.triu_])
def test_triangles_of_batches_are_cut_or_refused_as_on_the_cpu(shape, cut):
    results = []
    for device in ("cpu", DEVICE):
        x = grid(12).to(device)
        found = outcome(lambda x=x: cut(SHAPES_OF_TRIANGLES[shape](x)))
        results.append((x.tolist(), found if isinstance(found, type) else None))

    (expected, refused), (found, raised) = results
    assert found == expected
    if refused is None:
        assert raised is None
    else:
        assert raised is not None
        assert issubclass(raised, refused)


REFUSED = {
    "sum": lambda x: x.add_(1),
    "conjugate": lambda x: x[:1].to(torch.complex64).expand(3, 4).conj_physical_(),
    "numbers for nan": lambda x: x.nan_to_num_(),
    "copy": lambda x: x.copy_(torch.zeros(3, 4, device=x.device)),
    "scatter": lambda x: x.scatter_(0, torch.zeros(1, 4).long().to(x.device), 1.0),
    "random": lambda x: x.normal_(),
    "a mask of more axes": lambda x: x.masked_fill_(
        torch.ones(2, 3, 4, device=x.device).bool(), 1.0
    ),
    "a mask of another size": lambda x: x.masked_fill_(
        torch.ones(5, device=x.device).bool(), 1.0
    ),
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


def test_a_write_to_one_of_equal_rows_goes_to_their_place_in_the_storage():
    results = []
    for device in ("cpu", "lazyrt"):
        x = torch.arange(6.0).to(device)
        x[2:4].unsqueeze(0).expand(3, 2)[1].mul_(10)
        results.append(x.tolist())

    assert results[1] == results[0]
