"""Differences of programs of many kinds, of which a second generator knows the truth."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazygraph import GraphDiff, diff, parse
from lazygraph.match.grow import anchored
from tests import hlo_zoo
from tests.lazygraph.edits import apply_script, script


def check(found, pair, truth):
    """Of one diff: a short and right script, its mirror image, nothing against itself."""
    mirrored = diff(found.b, found.a)
    made = apply_script(found.a, script(found))
    looked_at_all = GraphDiff(found.a, found.b, found.partner_a, found.partner_b)

    assert found.rewired == looked_at_all.rewired
    assert len(script(found)) == found.cost
    assert hlo_zoo.identity(made) == hlo_zoo.identity(found.b), pair.edits
    assert mirrored.partner_a == found.partner_b
    assert mirrored.cost == found.cost
    assert diff(found.a, found.a).is_empty
    assert found.cost <= 2 * truth, pair.edits


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 10**9), st.sampled_from([1, 2, 3, 5]))
@pytest.mark.slow
def test_of_programs_of_all_kinds_the_script_is_short_symmetric_and_right(seed, blocks):
    pair = hlo_zoo.pair(seed, blocks)
    a, b, truth = pair.graphs()

    check(diff(a, b), pair, truth)


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "pairs"), [(3, 30), (8, 15), (30, 4)])
def test_a_structured_change_costs_at_most_a_tenth_more_than_its_generator_says(
    blocks, pairs
):
    ratios = []
    for seed in range(pairs):
        pair = hlo_zoo.pair(1000 * blocks + seed, blocks)
        a, b, truth = pair.graphs()
        found = diff(a, b)
        check(found, pair, truth)
        if pair.is_structured:
            ratios.append((found.cost / max(1, truth), pair.edits))

    assert len(ratios) >= pairs / 5
    assert max(ratios)[0] <= 1.1, max(ratios)


@pytest.mark.parametrize("seed", [31, 41, 88])
def test_after_the_last_exchange_no_rewired_slot_is_forgotten(seed):
    """Only what an exchange touched is looked at again, and what reads it."""
    a, b, _ = hlo_zoo.pair(seed, 1 + seed % 8).graphs()
    found = diff(a, b)

    assert found.rewired
    assert found.rewired == GraphDiff(a, b, found.partner_a, found.partner_b).rewired


@pytest.mark.parametrize("seed", range(8))
def test_dress_is_no_difference(seed):
    """Names, order, layouts, tuples, dead code, comments, metadata: the same program."""
    blocks = tuple((f"b{k}", kind) for k, kind in enumerate(hlo_zoo.KINDS))
    program = hlo_zoo.made(hlo_zoo.Spec(blocks))
    plain, _ = hlo_zoo.text_of(program, hlo_zoo.Dress(shuffled=False, layouts=False))
    dressed, _ = hlo_zoo.text_of(program, hlo_zoo.dress(seed))

    found = diff(parse(plain), parse(dressed))

    assert found.is_empty
    assert hlo_zoo.identity(found.a) == hlo_zoo.identity(found.b)


def test_rows_with_very_many_differences_are_aligned_between_landmarks():
    rng = random.Random(0)  # noqa: S311
    one = [rng.randrange(6) for _ in range(12_000)]
    two = list(one)
    for place in rng.sample(range(len(one)), 600):
        two[place:place] = [7, 8]

    found = anchored(one, two)

    assert [one[i] for i, _ in found] == [two[k] for _, k in found]
    assert len(found) > 0.99 * len(one)
    assert all(i < j and k < m for (i, k), (j, m) in pairwise(found))
