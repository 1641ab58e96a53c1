"""Slices whose positions vary from step to step are compiled once, and stay right."""

import re

import pytest
import torch

import lazyrt
from tests.harness import DEVICE, assert_same

DATA = torch.arange(40.0).view(10, 4)


def batches(read, positions):
    """Read at each position in a step of its own; return results and the compile count."""
    data = DATA.to(DEVICE)
    lazyrt.reset_counters()
    results = []
    for position in positions:
        results.append(read(data, position) * 2)
        lazyrt.mark_step()
    return results, lazyrt.counters()["compiles"]


READS = {
    "slice": lambda x, i: x[i : i + 3],
    "select": lambda x, i: x[i],
    "column": lambda x, i: x[:, i % 4],
    "columns": lambda x, i: x[:, i % 3 : i % 3 + 2],
    "narrow": lambda x, i: x.narrow(0, i, 2),
    "negative": lambda x, i: x[-i - 1],
    "negative-slice": lambda x, i: x[-i - 3 : 10 - i - 1],
    "both": lambda x, i: x[i : i + 2, i % 2 : i % 2 + 2],
    "view": lambda x, i: x.view(5, 8)[i % 5],
    "transposed": lambda x, i: x.t()[:, i : i + 3],
    "chain": lambda x, i: x[i:][: 10 - 7][0],
    "cell": lambda x, i: x[i, i % 4],
}


@pytest.mark.parametrize("read", READS)
def test_reading_at_moving_positions_matches_the_cpu(read):
    positions = [0, 5, 3, 6, 1]

    results, _ = batches(READS[read], positions)

    for position, result in zip(positions, results, strict=True):
        assert_same(result, READS[read](DATA, position) * 2)


@pytest.mark.parametrize("read", ["slice", "select", "column", "narrow", "cell"])
def test_reading_at_moving_positions_compiles_twice_at_most(read):
    _, compiles = batches(READS[read], [0, 5, 3, 6, 1, 2, 4])

    assert compiles <= 2


def test_the_smaller_last_batch_is_right():
    results, compiles = batches(lambda x, i: x[i : i + 4], [0, 4, 8, 0, 4, 8])

    assert [tuple(result.shape) for result in results] == [(4, 4), (4, 4), (2, 4)] * 2
    for start, result in zip((0, 4, 8) * 2, results, strict=True):
        assert_same(result, DATA[start : start + 4] * 2)
    assert compiles <= 4


def test_bounds_beyond_the_end_are_clamped_as_on_the_cpu():
    bounds = [(0, 3), (8, 11), (-3, 20), (9, 99), (-99, 3), (2, 5), (5, 2), (10, 12)]
    data = DATA.to(DEVICE)

    for first, last in bounds:
        part = data[first:last] + 1
        lazyrt.mark_step()
        assert_same(part, DATA[first:last] + 1)


WRITES = {
    "slice": lambda x, i: x[i : i + 3].fill_(float(i)),
    "select": lambda x, i: x[i].add_(100),
    "setitem": lambda x, i: x.__setitem__((slice(None), i % 4), -1.0),
    "cell": lambda x, i: x.__setitem__((i, i % 4), 7.0),
    "copy": lambda x, i: x[i : i + 2].copy_(x[i + 1 : i + 3].clone()),
    "transposed": lambda x, i: x.t()[1:3, i].mul_(2),
}


@pytest.mark.parametrize("write", WRITES)
def test_writing_at_moving_positions_matches_the_cpu(write):
    expected, actual = DATA.clone(), DATA.to(DEVICE)

    for position in (0, 5, 3, 6, 1):
        WRITES[write](expected, position)
        WRITES[write](actual, position)
        lazyrt.mark_step()
        assert_same(actual, expected)


@pytest.mark.parametrize("write", ["select", "cell"])
def test_writing_at_moving_positions_compiles_a_few_times_at_most(write):
    data = DATA.to(DEVICE)
    lazyrt.mark_step()
    lazyrt.reset_counters()

    for position in (0, 5, 3, 6, 1, 2, 4, 8, 7):
        WRITES[write](data, position)
        lazyrt.mark_step()

    assert lazyrt.counters()["compiles"] <= 3


def test_views_kept_over_barriers_keep_their_positions():
    base, host = DATA.to(DEVICE), DATA.clone()
    views, expected = [], []
    for position in (0, 5, 3, 6):
        views.append(base[position : position + 2])
        expected.append(host[position : position + 2])
        lazyrt.mark_step()
    base.add_(1)
    host.add_(1)
    lazyrt.mark_step()
    for number, (view, part) in enumerate(zip(views, expected, strict=True)):
        view.mul_(number + 2)
        part.mul_(number + 2)
        if number % 2:
            lazyrt.mark_step()

    for view, part in zip(views, expected, strict=True):
        assert_same(view, part)
    assert_same(base, host)


def test_several_positions_in_one_step_do_not_mix():
    base = DATA.to(DEVICE)

    def parts(source, shift):
        return [source[k + shift] * (k + 1) for k in range(4)]

    for shift in (0, 3, 1, 5):
        found = parts(base, shift)
        lazyrt.mark_step()
        for mine, theirs in zip(found, parts(DATA, shift), strict=True):
            assert_same(mine, theirs)


def test_equal_positions_at_two_lines_stay_independent():
    base = DATA.to(DEVICE)

    for position in (0, 4, 2):
        first = base[position] + 1
        second = base[position] + 1
        other = base[(position + 1) % 10] + 1
        lazyrt.mark_step()
        assert_same(first, DATA[position] + 1)
        assert_same(second, DATA[position] + 1)
        assert_same(other, DATA[(position + 1) % 10] + 1)


def test_gradients_flow_through_moving_slices():
    weight = torch.ones(10, 4, device=DEVICE, requires_grad=True)
    host = torch.ones(10, 4, requires_grad=True)

    for position in (0, 5, 3):
        for tensor in (weight, host):
            (tensor[position : position + 2] ** 2).sum().backward()
        lazyrt.mark_step()

    assert_same(weight.grad, host.grad)


def test_looking_at_moving_slices_shows_their_values():
    base = DATA.to(DEVICE)

    for position in (0, 5, 3, 6):
        part = base[position] * 2
        assert torch.equal(lazyrt.materialise(part), DATA[position] * 2)
        assert torch.equal(lazyrt.materialise(base[position]), DATA[position])
        lazyrt.mark_step()
        assert torch.equal(part.cpu(), DATA[position] * 2)


def test_an_index_out_of_range_is_refused_at_every_step():
    base = DATA.to(DEVICE)

    for position in (0, 5, 3):
        (base[position] + 1).tolist()
        for bad in (10, -11):
            with pytest.raises(IndexError):
                base[bad]


def test_a_slice_that_ends_before_it_begins_is_empty_wherever_it_stands():
    x = torch.arange(12.0).to(DEVICE)
    found = []
    for k in (3, 5, 7, 9):
        found.append(tuple(x[k : k - 2].shape))
        total = (x[k : k - 2].sum() + x[k : k + 1].sum()).item()
        assert total == k

    assert found == [(0,)] * 4


def functions_of_slices(*results):
    text = lazyrt.pending_graph(*results).lower().as_text()
    return set(re.findall(r"= func\.call @(\w*(?:select|slice)\w*)\(", text))


@pytest.mark.lazy_only("reads the step's program")
def test_rows_at_constants_share_one_function():
    x = torch.arange(24.0).view(6, 4).to(DEVICE)
    rows = [row.cos() for row in x]
    pairs = [x[k : k + 2, -3:].cos() for k in range(4)]

    assert len(functions_of_slices(*rows)) == 1
    assert len(functions_of_slices(*pairs)) == 2
    assert_same(torch.stack(rows), torch.arange(24.0).view(6, 4).cos(), 1e-6)
    for k, pair in enumerate(pairs):
        expected = torch.arange(24.0).view(6, 4)[k : k + 2, -3:].cos()
        assert_same(pair, expected, 1e-6)


@pytest.mark.lazy_only("reads the step's program")
def test_a_slice_that_skips_or_is_empty_has_a_function_of_its_own():
    x = torch.arange(24.0).view(6, 4).to(DEVICE)
    skipping, empty = x[::2].cos(), x[3:3].cos()

    assert len(functions_of_slices(skipping, empty)) == 2
    assert_same(skipping, torch.arange(24.0).view(6, 4)[::2].cos(), 1e-6)
    assert empty.shape == (0, 4)
