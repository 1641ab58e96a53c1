"""Ops that put elements into bins, next to the CPU: ties, NaN, unsorted edges."""

import itertools
import math

import pytest
import torch

import lazyrt
from tests.harness import DEVICE, thinned

EDGES: tuple[list[float], ...] = ([], [1.0], [1.0, 1.0, 2.0, 3.0], [1.0, math.nan], [math.nan, 1.0], [3.0, 1.0, 2.0],
         [*range(17)])  # fmt: skip
VALUES = torch.tensor([math.nan, 0.0, 1.0, 1.5, 2.0, 9.0, -9.0, math.inf])


@pytest.mark.parametrize(("edges", "right"), itertools.product(EDGES, [False, True]))
def test_a_search_finds_what_the_cpu_finds(edges, right):
    edges = torch.tensor(edges, dtype=torch.float32)
    lazy_edges, lazy_values = edges.to(DEVICE), VALUES.to(DEVICE)

    for values, lazy in ((VALUES, lazy_values), (VALUES[0], lazy_values[0])):
        expected = torch.searchsorted(edges, values, right=right)
        found = torch.searchsorted(lazy_edges, lazy, right=right)
        assert found.tolist() == expected.tolist()
        expected = torch.bucketize(values, edges, right=right)
        assert torch.bucketize(lazy, lazy_edges, right=right).tolist() == (
            expected.tolist()
        )


def test_each_row_is_searched_by_itself():
    edges = torch.tensor([[1.0, 2.0, 4.0], [0.0, 3.0, 3.0]])
    values = torch.tensor([[2.0, 5.0], [3.0, -1.0]])

    found = torch.searchsorted(edges.to(DEVICE), values.to(DEVICE), right=True)

    assert found.tolist() == torch.searchsorted(edges, values, right=True).tolist()


@pytest.mark.not_eager("looks at the pending graph")
def test_a_search_needs_no_array_of_all_pairs():
    edges, values = torch.arange(300.0).to(DEVICE), torch.rand(700).to(DEVICE)

    found = torch.searchsorted(edges, values)

    assert "700x300" not in lazyrt.pending_graph(found).lower().as_text()


@pytest.mark.parametrize("bins", thinned([3, 1, 10], 3))
@pytest.mark.parametrize("limits", [None, (0.0, 1.0), (-0.3, 0.7), (2.0, 2.0)])
@pytest.mark.parametrize(
    "x", [torch.tensor([0.37]), torch.arange(11) / 10, torch.full((4,), 0.5)]
)
def test_a_histogram_is_that_of_the_cpu(x, limits, bins):
    options = {} if limits is None else {"range": limits}
    expected, edges = torch.histogram(x, bins, **options)

    found, lazy_edges = torch.histogram(x.to(DEVICE), bins, **options)

    torch.testing.assert_close(lazy_edges.cpu(), edges)
    assert found.tolist() == expected.tolist()
