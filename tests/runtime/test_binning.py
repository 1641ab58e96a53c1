"""Ops that put elements into bins, next to the CPU: ties, NaN, unsorted edges."""

import itertools
import math

import pytest
import torch

import lazyrt
from tests.harness import DEVICE

EDGES: tuple[list[float], ...] = ([], [1.0], [1.0, 1.0, 2.0, 3.0], [1.0, math.nan], [math.nan, 1.0], [3.0, 1.0, 2.0],
         [*range(17)])  # fmt: skip
VALUES = torch.tensor([math.nan, 0.0, 1.0, 1.5, 2.0, 9.0, -9.0, math.inf])


def test_a_search_finds_what_the_cpu_finds():
    def search(device):
        found = []
        for edges, right in itertools.product(EDGES, [False, True]):
            among = torch.tensor(edges, dtype=torch.float32).to(device)
            values = VALUES.to(device)
            for each in (values, values[0]):
                found.append(torch.searchsorted(among, each, right=right))
                found.append(torch.bucketize(each, among, right=right))
        return found

    found, expected = search(DEVICE), search("cpu")
    lazyrt.mark_step()

    assert [each.tolist() for each in found] == [each.tolist() for each in expected]


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


@pytest.mark.parametrize("limits", [None, (0.0, 1.0), (-0.3, 0.7), (2.0, 2.0)])
def test_a_histogram_is_that_of_the_cpu(limits):
    options = {} if limits is None else {"range": limits}

    def histograms(device):
        data = (torch.tensor([0.37]), torch.arange(11) / 10, torch.full((4,), 0.5))
        return [
            torch.histogram(x.to(device), bins, **options)
            for x, bins in itertools.product(data, (1, 10))
        ]

    found, expected = histograms(DEVICE), histograms("cpu")
    lazyrt.mark_step()

    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.bin_edges.cpu(), theirs.bin_edges)
        assert mine.hist.tolist() == theirs.hist.tolist()
