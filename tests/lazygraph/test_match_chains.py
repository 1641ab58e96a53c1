"""Differences of chains of like layers, of which a third generator knows the length."""

import importlib
import random
from unittest.mock import Mock

import pytest

from lazygraph import GraphBuilder, Origin, diff, parse
from lazygraph.match import grow
from lazygraph.match.state import Matching
from lazygraph.match.strategy import _by_hints
from tests import hlo_chains, hlo_zoo
from tests.lazygraph.edits import apply_script, script


def check(pair, most, *, scopes):
    one, two, truth = pair
    a, b = parse(one.text(scopes=scopes)), parse(two.text(scopes=scopes))
    found = diff(a, b)

    made = apply_script(a, script(found))
    assert hlo_zoo.identity(made) == hlo_zoo.identity(b)
    assert diff(b, a).cost == found.cost
    assert found.cost <= most * truth, (found.cost, truth, len(a))


@pytest.mark.parametrize("scopes", [True, False])
@pytest.mark.parametrize("edit", hlo_chains.STRUCTURED)
def test_an_edit_of_layers_costs_at_most_a_tenth_more_than_was_counted(edit, scopes):
    for seed, size in ((1, 60), (2, 150)):
        check(hlo_chains.pair(seed, size, [edit]), 1.1, scopes=scopes)


@pytest.mark.parametrize("count", [1, 6])
def test_edits_of_single_rows_cost_at_most_twice_what_was_counted(count):
    for seed in range(4):
        rng = random.Random(seed)  # noqa: S311
        edits = rng.choices(hlo_chains.SINGLE, k=count)
        check(hlo_chains.pair(seed, 120, edits), 2, scopes=seed % 2 == 0)


@pytest.mark.slow
def test_an_op_behind_every_layer_does_not_exchange_layers_that_stand_side_by_side():
    """Two like layers in each period; nearly every row reads another op than before."""
    one = hlo_chains.chain(_Chosen((0, 0, 2, 1), 3), 1_250)
    two = one.copy()
    truth = hlo_chains.op_behind_each_layer(two, None)

    check((one, two, truth), 1, scopes=False)  # exchanged, they take 7 % more


_RECIPES = (("exp", "tanh"), ("tanh", "exp", "exp"), ("exp", "sine", "tanh"))


def trained(layers):
    """A chain of layers of three kinds, and an update of each layer's weight."""
    builder = GraphBuilder("net")
    add, label = builder.add, lambda op: builder.label(op, "f32[4]")
    x = add(label("parameter"))
    weights = []
    for kind in layers:
        y = x
        for op in _RECIPES[kind]:
            y = add(label(op), [y])
        weights.append((y, add(label("parameter"))))
        x = add(label("add"), [x, add(label("dot"), weights[-1])])
    outputs = [add(label("loss"), [x])]
    for y, weight in reversed(weights):
        gradient = add(label("multiply"), [outputs[0], outputs[0]])
        outputs[0] = gradient
        step = add(label("dot"), [y, gradient])
        outputs.append(add(label("subtract"), [weight, step]))
    return builder.finish(outputs)


def test_layers_in_and_out_at_many_places_of_a_long_chain_do_not_shift_it():
    """Between two such places nothing tells a layer from its like but where it stands."""
    rng = random.Random(0)  # noqa: S311
    layers = [rng.randrange(3) for _ in range(620)]
    edited, most = list(layers), 0
    for place in rng.sample(range(620), 8):
        edited.insert(place, rng.randrange(3))
        most += len(_RECIPES[edited[place]]) + 7 + 4
    for place in rng.sample(range(620), 3):
        most += len(_RECIPES[edited.pop(place)]) + 7 + 4
    a, b = trained(layers), trained(edited)

    found = diff(a, b)

    assert len(a) > 5_000
    assert found.cost <= most
    assert diff(apply_script(a, script(found)), b).is_empty


@pytest.mark.parametrize("back", [6, 20, 150])
def test_a_layer_inserted_near_the_end_of_a_long_chain_is_all_that_is_told(back):
    """Few nodes are left over where all layers behind it are taken for their neighbours."""
    rng = random.Random(1)  # noqa: S311
    layers = [rng.randrange(3) for _ in range(620)]
    edited = [*layers[:-back], 0, *layers[-back:]]
    a, b = trained(layers), trained(edited)

    found = diff(a, b)

    assert len(a) > 5_000
    assert found.cost <= len(b) - len(a) + 8
    assert found.removed == []


def test_insertions_into_a_long_row_of_one_op_are_that_many_instructions():
    """Nothing is shifted here that reading both in order would tell better."""

    def row(places):
        builder = GraphBuilder("row")
        node = builder.add(builder.label("parameter", "f32[4]"))
        for place in range(8_000):
            node = builder.add(builder.label("exp", "f32[4]"), [node])
            if place in places:
                node = builder.add(builder.label(places[place], "f32[4]"), [node])
        return builder.finish([node])

    ops = ("exp", "log", "tanh", "abs")
    places = {400 * k + 7 * k * k % 390: ops[k % 4] for k in range(20)}

    found = diff(row({}), row(places))

    assert found.removed == []
    assert found.cost <= 40


def mixture(layers, branches, names=(), dtype="f32"):
    """Sums of like branches; the backward pass adds theirs from the other end.

    With names for the branches, layers are scopes, and their inputs have names.
    """
    builder = GraphBuilder("mixture")
    layer = 0

    def add(kind, operands=(), name=""):
        if not names:
            return builder.add(kind, operands)
        scope = "" if name else f"layer.{layer}"
        return builder.add(kind, operands, origin=Origin(scope, op_name=name))

    def label(op):
        return builder.label(op, f"{dtype}[4]")

    x = add(label("parameter"))
    read, outputs = [], []
    for layer in range(layers):
        inputs = [f"{layer}.{name}.w" for name in names] or [""] * branches
        weights = [add(label("parameter"), name=name) for name in inputs]
        made = [add(label("tanh"), [add(label("dot"), [x, w])]) for w in weights]
        read.append((x, weights, made))
        total = x
        for each in made:
            total = add(label("add"), [total, each])
        x = total
    for x_before, weights, made in reversed(read):
        layer += 1
        total = x
        for weight, each in reversed([*zip(weights, made, strict=True)]):
            slope = add(label("multiply"), [x, each])
            step = add(label("dot"), [x_before, slope])
            outputs.append(add(label("subtract"), [weight, step]))
            total = add(label("add"), [total, add(label("dot"), [slope, weight])])
        x = total
    return builder.finish([x, *outputs])


@pytest.mark.parametrize(("layers", "branches"), [(3, 24), (6, 100)])
def test_branches_more_in_each_sum_are_told_from_one_end_of_both_passes(
    layers, branches
):
    """Counted from another end in each pass, every branch behind them would be read by another."""
    found = diff(mixture(layers, branches), mixture(layers, branches + 3))

    assert found.cost <= layers * (3 * 10 + 2)
    assert len(found.added) == layers * 3 * 9
    assert (found.removed, found.changed) == ([], [])


def test_a_branch_more_in_each_sum_of_a_large_program_is_matched_in_few_ways(
    monkeypatch,
):
    """What insertions explain needs no further way: each takes as long as the first."""
    strategy = importlib.import_module("lazygraph.match.strategy")
    refined = Mock(side_effect=strategy.refine)
    monkeypatch.setattr(strategy, "refine", refined)

    found = diff(mixture(40, 20), mixture(40, 21))

    assert found.cost <= 40 * (9 + 3)
    assert found.removed == []
    assert refined.call_count <= 3


def test_another_dtype_throughout_leaves_scopes_their_say():
    """Labels that are all new would say nothing, not even within a scope."""
    names = [f"e{k}" for k in range(8)]
    a, b = mixture(3, 8, names), mixture(3, 9, [*names[:3], "n", *names[3:]], "bf16")

    matching = Matching(a, b)

    _by_hints(matching)

    assert matching.pairs >= len(a) - 3 * 2
    assert all(a[x].op == b[y].op for x, y in enumerate(matching.a.partner) if y >= 0)


def test_what_many_nodes_read_is_looked_at_once(monkeypatch):
    builder = GraphBuilder("many")
    add, label = builder.add, lambda op: builder.label(op, "f32[4]")
    rate = add(label("negate"), [add(label("parameter"))])
    graph = builder.finish(
        [add(label("multiply"), [add(label("dot")), rate]) for _ in range(50)]
    )
    matching = Matching(graph, graph)
    for node in range(2, len(graph)):
        matching.pair(node, node)
    looked = Mock(side_effect=grow._alone)
    monkeypatch.setattr(grow, "_alone", looked)

    assert grow.bridge(matching) == 2  # with what it reads
    assert looked.call_count == 1


class _Chosen(random.Random):
    """Chooses given kinds of layers."""

    def __init__(self, layers, seed):
        super().__init__(seed)
        self._left = [len(layers), *layers]

    def choice(self, seq):
        first = self._left.pop(0)
        return first if isinstance(seq[0], int) else seq[first]


@pytest.mark.slow
def test_long_chains_are_compared_as_well():
    for seed in range(2):
        for edit in hlo_chains.STRUCTURED:
            pair = hlo_chains.pair(100 + seed, 700, [edit])
            check(pair, 1.1, scopes=False)
        edits = random.Random(seed).choices(hlo_chains.SINGLE, k=12)  # noqa: S311
        check(hlo_chains.pair(seed, 700, edits), 2, scopes=True)
