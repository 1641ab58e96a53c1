"""Differences of graphs against the truth that a generator of pairs knows."""

import random
from typing import Any

import pytest

from lazygraph import (
    GraphBuilder,
    diff,
    group_hunks,
    parse,
)
from lazygraph.match.state import Side
from tests.harness import thinned
from tests.hlo_pairs import edited, graph_of_program, text_of, transformer, truth
from tests.lazygraph.edits import apply_script, script

LAYERS = 4
BASE: dict[str, Any] = {"layers": LAYERS}
STRUCTURED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "live tensor": (BASE, {**BASE, "norm": True}),
    "layer inserted": (BASE, {"names": [0, 1, "new", 2, 3]}),
    "layer inserted first": (BASE, {"names": ["new", 0, 1, 2, 3]}),
    "layer removed": (BASE, {"names": [0, 2, 3]}),
    "dropout in one layer": (BASE, {**BASE, "dropout": [2]}),
    "dropout in all layers": (BASE, {**BASE, "dropout": range(LAYERS)}),
    "batch size": (BASE, {**BASE, "batch": 12}),
    "width": (BASE, {**BASE, "width": 24}),
    "baked constant": (BASE, {**BASE, "lr": 0.02}),
    "optimizer": ({**BASE, "optimizer": "sgd"}, BASE),
    "modules added": (BASE, {**BASE, "extra": 2}),
    "bucket size": ({**BASE, "bucket": 4}, {**BASE, "bucket": 5}),
}


def pair(first, second, **options):
    a, keys_a = graph_of_program(first, seed=1, **options)
    b, keys_b = graph_of_program(second, seed=2, **options)
    return a, b, truth(a, keys_a, b, keys_b)


def signature(graph):
    """A graph up to the order of its nodes, by colours from below and from above."""
    below: list[int] = []
    for node in range(len(graph)):
        row = tuple(below[operand] for operand in graph.operands[node])
        below.append(hash((graph.label(node), row)))
    counts = [graph.outputs.count(node) for node in range(len(graph))]
    above = [0] * len(graph)
    for node in reversed(range(len(graph))):
        uses = sorted((above[user], slot) for user, slot in graph.users[node])
        above[node] = hash((below[node], counts[node], tuple(uses)))
    return sorted(above)


@pytest.mark.parametrize("name", STRUCTURED)
@pytest.mark.parametrize("metadata", thinned([True, False], 2))
def test_a_structured_change_costs_what_the_generator_says(name, metadata):
    first, second = (transformer(**options) for options in STRUCTURED[name])

    a, b, true = pair(first, second, shuffle=True, metadata=metadata)
    found = diff(a, b)

    assert found.cost <= 1.1 * true.cost


def test_names_lines_and_parameters_in_another_order_make_no_difference():
    program = transformer(2)

    a, b, _ = pair(program, program, shuffle=True)
    found = diff(a, b)

    assert found.is_empty
    assert found.moved_parameters


@pytest.mark.parametrize("seed", range(6))
def test_a_random_edit_script_is_at_most_twice_the_generators(seed):
    rng = random.Random(seed)  # noqa: S311
    program = transformer(2)
    other = edited(program, rng, rng.choice([1, 2, 4, 8]))

    a, b, true = pair(program, other, shuffle=True, metadata=seed % 2 == 0)

    assert diff(a, b).cost <= 2 * true.cost


@pytest.mark.parametrize("seed", range(6))
def test_a_diff_is_the_mirror_image_of_the_other_direction(seed):
    program = transformer(2)
    a, b, _ = pair(program, edited(program, random.Random(seed), 8), shuffle=True)  # noqa: S311

    one, other = diff(a, b), diff(b, a)

    assert one.partner_a == other.partner_b
    assert (one.cost, one.added, one.removed) == (
        other.cost,
        other.removed,
        other.added,
    )
    assert one.outputs.added == other.outputs.removed


@pytest.mark.parametrize("seed", range(6))
def test_the_script_makes_the_second_graph_of_the_first(seed):
    program = transformer(2)
    a, b, _ = pair(program, edited(program, random.Random(seed), 12), shuffle=True)  # noqa: S311
    found = diff(a, b)

    made = apply_script(a, script(found))

    assert len(script(found)) == found.cost
    assert signature(made) == signature(b)
    assert diff(made, b).cost == 0


def test_dead_code_is_set_aside_and_listed():
    text, _ = text_of(transformer(1, optimizer=""))
    dead = '  %constant.9 = s32[] constant(9), metadata={op_type="aten__sum"}\n  ROOT '

    a, b = parse(text), parse(text.replace("  ROOT %tuple", f"{dead}%tuple"))

    assert diff(a, b).is_empty
    assert [(node.name, node.label.literal) for node in b.dead] == [("constant.9", "9")]


def test_another_partition_into_collectives_is_a_regrouping_that_costs_nothing():
    first, second = (transformer(2, bucket=size) for size in (4, 5))

    a, b, _ = pair(first, second)
    found = diff(a, b)

    assert found.cost == 0
    assert not found.is_empty
    assert set(found.regrouped.sizes_a) == {4}
    assert set(found.regrouped.sizes_b) == {5}


def test_the_same_change_in_every_layer_is_one_group_of_hunks():
    first, second = transformer(4), transformer(4, dropout=range(4))

    a, b, _ = pair(first, second)
    groups = group_hunks(diff(a, b).hunks())

    assert max(group.places for group in groups) >= 3


def chain(length, inserted=()):
    """A row of equal operations, with another one before those at `inserted`."""
    builder = GraphBuilder("chain")
    equal, other = (builder.label(op, "f32[4]") for op in ("negate", "tanh"))
    node = builder.add(builder.label("parameter", "f32[4]"))
    for position in range(length):
        if position in inserted:
            node = builder.add(other, [node])
        node = builder.add(equal, [node])
    return builder.finish([node])


@pytest.mark.parametrize("inserted", [[50], range(0, 200, 20), [0, 1, 2, 199]])
def test_insertions_into_a_row_of_equal_operations_are_found_one_by_one(inserted):
    found = diff(chain(200), chain(200, inserted))

    assert [found.b[node].op for node in found.added] == ["tanh"] * len(inserted)
    assert found.cost == 2 * len(inserted)


def test_equal_inputs_and_outputs_are_told_apart_by_number_only():
    def wide(count):
        builder = GraphBuilder("wide")
        leaf, op = (
            builder.label("parameter", "f32[4]"),
            builder.label("negate", "f32[4]"),
        )
        return builder.finish(
            [builder.add(op, [builder.add(leaf)]) for _ in range(count)]
        )

    found = diff(wide(300), wide(303))

    assert (len(found.added), found.cost, len(found.outputs.added)) == (6, 9, 3)


def test_inputs_that_are_outputs_are_told_apart_by_how_often_they_are():
    def returned(*times):
        builder = GraphBuilder("returned")
        kind = builder.label("parameter", "f32[4]")
        nodes = [builder.add(kind) for _ in times]
        return builder.finish(
            [node for node, n in zip(nodes, times, strict=True) for _ in range(n)]
        )

    assert diff(returned(1, 2, 3), returned(3, 1, 2)).is_empty
    assert diff(returned(1, 2), returned(3)).cost == 3


@pytest.mark.parametrize(
    ("before", "after", "cost"),
    [
        ([("f32[4]", "")], [("f32[4]", "sharding={replicated}")], 1),
        ([("f32[4]", ""), ("f32[5]", "")], [("bf16[4]", ""), ("bf16[5]", "")], 2),
        ([("f32[4]", "")] * 3, [("f32[4]", "")] * 2 + [("f32[5]", "")], 1),
        ([("f32[4]", "")] * 3, [("f32[5]", "")], 5),
    ],
)
@pytest.mark.parametrize("length", [40, 5_200])
def test_inputs_that_are_outputs_and_became_another_type_are_changed(
    before, after, cost, length
):
    """As strangers they would be an input and an output less, and one more."""

    def handed_through(leaves):
        builder = GraphBuilder("handed")
        node = builder.add(builder.label("parameter", "f32[7]"))
        given = [builder.add(builder.label("parameter", *each)) for each in leaves]
        for k in range(length):
            node = builder.add(builder.label(("exp", "log")[k % 2], "f32[7]"), [node])
        return builder.finish([node, *given])

    assert diff(handed_through(before), handed_through(after)).cost == cost


def row(ops):
    """A chain of ops, whose input and last op are outputs."""
    builder = GraphBuilder("row")
    last = first = builder.add(builder.label("parameter", "f32[4]"))
    for op in ops:
        last = builder.add(builder.label(op, "f32[4]"), [last])
    return builder.finish([first, last])


def test_an_op_that_became_another_everywhere_is_a_change_of_each():
    fans = []
    for op in ("negate", "tanh"):
        builder = GraphBuilder("fan")
        leaf = builder.add(builder.label("parameter", "f32[4]"))
        kind = builder.label(op, "f32[4]")
        fans.append(builder.finish([builder.add(kind, [leaf]) for _ in range(100)]))

    chains = diff(row(["negate"] * 100), row(["tanh"] * 100))
    fan = diff(*fans)

    assert (chains.cost, len(chains.changed)) == (100, 100)
    assert (fan.cost, len(fan.changed)) == (100, 100)


def test_many_edits_of_a_long_chain_are_looked_at_where_they_are(monkeypatch):
    """Each edit that looked at all that is left made the time quadratic: 16 s for 400 of them."""
    looked: list[Side] = []
    unpaired = Side.unpaired

    def counted(side):
        looked.append(side)
        return unpaired(side)

    monkeypatch.setattr(Side, "unpaired", counted)

    def with_tanh(every):
        return row(["negate" if k % every else "tanh" for k in range(12_000)])

    found = diff(with_tanh(97), with_tanh(101))

    assert found.cost <= 480
    assert len(looked) < 200  # two ways; each edit would look in either


def test_graphs_of_nothing_and_of_one_node_can_be_compared():
    nothing = GraphBuilder("nothing").finish([])
    single = chain(0)

    assert diff(nothing, nothing).is_empty
    assert diff(nothing, single).cost == 2  # a node and an output
    assert diff(single, single).is_empty


@pytest.mark.slow
def test_programs_of_forty_thousand_instructions_are_matched_as_their_generator_says():
    layers = 90
    names = [*range(45), *(f"new{k}" for k in range(6)), *range(45, layers)]

    a, b, true = pair(transformer(layers), transformer(names=names), shuffle=True)
    found = diff(a, b)

    assert (len(a), len(b)) == (37_347, 39_837)
    assert found.cost <= 1.01 * true.cost


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_random_edit_scripts_are_at_most_twice_the_generators(seed):
    rng = random.Random(seed)  # noqa: S311
    program = transformer(rng.choice([1, 2, 3]), bucket=rng.choice([0, 4]))
    other = edited(program, rng, rng.choice([1, 4, 16, 32]))

    a, b, true = pair(program, other, shuffle=True, metadata=seed % 2 == 0)
    found = diff(a, b)

    assert found.cost <= 2 * true.cost
    assert diff(apply_script(a, script(found)), b).cost == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [[*range(20), "new", *range(20, 40)], [*range(1, 40)]]
)
def test_beyond_a_break_in_a_large_graph_without_names_equal_cones_are_found(names):
    """No metadata helps, and half of the graph follows from what was inserted."""
    first, second = transformer(40), transformer(names=names)

    a, b, true = pair(first, second, shuffle=True, metadata=False)
    found = diff(a, b)

    assert found.cost <= true.cost
    assert not found.changed


def test_what_reads_nothing_does_not_become_what_computes():
    """`ones` is removed and `relu` added, though one changed node would be shorter."""

    def graph(op, reads):
        builder = GraphBuilder(op)
        x = builder.add(builder.label("parameter", "f32[4]"))
        middle = builder.add(builder.label(op, "f32[4]"), [x] if reads else [])
        last = builder.add(builder.label("add", "f32[4]"), [x, middle])
        return builder.finish([last])

    found = diff(graph("ones", reads=False), graph("relu", reads=True))

    assert not found.changed
    assert [found.a[node].op for node in found.removed] == ["ones"]
    assert [found.b[node].op for node in found.added] == ["relu"]


def test_what_holds_a_node_stays_with_it_when_dead_nodes_are_dropped():
    builder = GraphBuilder("step")
    kind = builder.label("parameter", "f32[4]")
    builder.add(kind, holder="unused")
    batch = builder.add(kind, holder="batch")
    loss = builder.add(builder.label("exp", "f32[4]"), [batch], holder="loss")

    graph = builder.finish([loss])

    assert {graph.ops[node]: name for node, name in graph.holders.items()} == {
        "parameter": "batch",
        "exp": "loss",
    }


PACKED = """HloModule step

%pick (f: f64[3], k: s64[]) -> f64[] {
  %f = f64[3] parameter(0)
  %k = s64[] parameter(1)
  %d = f64[1] dynamic-slice(%f, %k), dynamic_slice_sizes={1}
  ROOT %r = f64[] reshape(%d)
}

ENTRY %main (floats: f64[3], n: s64[]) -> (f64[], s64[]) {
  %floats = f64[3] parameter(0)
  %n = s64[] parameter(1)
  %one = s64[] constant(1)
  %at = s64[] constant(1)
  %picked = f64[] call(%floats, %at), to_apply=%pick
  %more = s64[] add(%n, %one)
  ROOT %t = (f64[], s64[]) tuple(%picked, %more)
}
"""


def test_a_position_that_an_op_shares_is_no_other_number_for_it():
    """XLA makes one of equal constants: the position of a packed number, and what a step counts by."""
    shared = PACKED.replace("  %at = s64[] constant(1)\n", "").replace("%at)", "%one)")
    moved = PACKED.replace("%at = s64[] constant(1)", "%at = s64[] constant(2)")

    assert diff(parse(PACKED), parse(moved)).is_empty
    found = diff(parse(shared), parse(moved))
    assert (found.changed, found.removed, found.rewired) == ([], [], [])
