"""Differences of irregular graphs, and of layers whose names shift."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazygraph import diff, parse
from tests import dags
from tests.hlo_pairs import LAYER, graph_of_program, text_of, transformer, truth
from tests.lazygraph.edits import apply_script, script


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 10**9))
@pytest.mark.slow
def test_of_any_two_graphs_the_script_is_short_symmetric_and_right(seed):
    """At most twice the generator's; b comes out of it; nothing differs from itself."""
    a, b, most = dags.pair(seed)

    found, mirrored = diff(a, b), diff(b, a)
    made = apply_script(a, script(found))

    assert found.cost <= 2 * most
    assert len(script(found)) == found.cost
    assert diff(made, b).cost == 0
    assert mirrored.partner_a == found.partner_b
    assert mirrored.cost == found.cost
    assert diff(a, a).is_empty


@pytest.mark.slow
def test_over_many_graphs_scripts_are_no_longer_than_the_generators():
    costs = [(diff(a, b).cost, most) for a, b, most in map(dags.pair, range(300))]

    assert sum(cost for cost, _ in costs) <= sum(most for _, most in costs)
    assert sum(cost > most for cost, most in costs) <= 6
    assert all(cost <= 2 * most for cost, most in costs)


def numbered(program, names):
    """Scopes by position, as a list of modules numbers them: an insertion shifts them."""
    position = {f"{LAYER}.{name}": f"{LAYER}.{k}" for k, name in enumerate(names)}
    for key, step in program.steps.items():
        scope = re.sub(
            rf"{re.escape(LAYER)}\.\w+", lambda m: position[m[0]], step.scope
        )
        program.steps[key] = replace(step, scope=scope)
    return program


@pytest.mark.parametrize(
    ("names", "dropout"),
    [
        ([0, 1, "new", 2, 3], []),
        ([0, 1, 2, 3, "new"], []),
        ([0, 2, 3], []),
        ([1, 2, 3], [0, 2]),
        (["new", 0, 1, 2, 3], ["new", 0, 2]),
    ],
)
def test_layers_inserted_or_removed_do_not_shift_the_others_under_other_names(
    names, dropout
):
    before = list(range(4))
    first = numbered(transformer(names=before, dropout=dropout), before)
    second = numbered(transformer(names=names, dropout=dropout), names)
    a, keys_a = graph_of_program(first, seed=1, shuffle=True)
    b, keys_b = graph_of_program(second, seed=2, shuffle=True)

    assert diff(a, b).cost <= 1.1 * truth(a, keys_a, b, keys_b).cost


@pytest.mark.parametrize("change", ["f64", "bf16"])
def test_another_dtype_everywhere_changes_every_node_once(change):
    text, _ = text_of(transformer(3), seed=1, shuffle=True)
    other, _ = text_of(transformer(3), seed=2, shuffle=True)

    found = diff(parse(text), parse(other.replace("f32[", f"{change}[")))

    assert (found.added, found.removed, found.rewired) == ([], [], [])
    assert len(found.changed) == len(found.a)


NESTED = """HloModule step

%inner (p: f32[4]) -> f32[4] {{
  %p = f32[4] parameter(0)
  ROOT %t = f32[4] {op}(%p)
}}

%body (s: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %s = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %v = f32[4] get-tuple-element(%s), index=1
  %w = f32[4] call(%v), to_apply=%inner
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  ROOT %r = (s32[], f32[4]) tuple(%j, %w)
}}

%cond (s: (s32[], f32[4])) -> pred[] {{
  %s.1 = (s32[], f32[4]) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %n = s32[] constant({rounds})
  ROOT %lt = pred[] compare(%i.1, %n), direction=LT
}}

ENTRY %main (x: f32[4]) -> f32[4] {{
  %x = f32[4] parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[4]) tuple(%zero, %x)
  %loop = (s32[], f32[4]) while(%start), condition=%cond, body=%body
  %y = f32[4] get-tuple-element(%loop), index=1
  ROOT %z = f32[4] negate(%y)
}}
"""


@pytest.mark.parametrize(
    ("second", "changed"),
    [
        ({"op": "tanh", "rounds": 8}, []),
        ({"op": "sine", "rounds": 8}, ["while"]),
        ({"op": "tanh", "rounds": 9}, ["while"]),
    ],
)
def test_a_change_deep_within_a_loop_changes_the_loop_alone(second, changed):
    a = parse(NESTED.format(op="tanh", rounds=8))
    b = parse(NESTED.format(**second).replace("%w", "%q").replace("%body", "%again"))

    found = diff(a, b)

    assert [found.a[x].op for x, _ in found.changed] == changed
    assert found.cost == len(changed)


@pytest.mark.parametrize("op", ["reduce-scatter", "all-gather", "all-to-all"])
def test_tuple_collectives_in_other_buckets_are_a_regrouping(op):
    """As FSDP's buckets when one gradient moves to the next."""
    texts = [
        text_of(transformer(2, bucket=size), seed=size, shuffle=True)[0]
        for size in (4, 5)
    ]
    a, b = (parse(text.replace(" all-reduce(", f" {op}(")) for text in texts)

    found = diff(a, b)

    assert found.cost == 0
    assert (set(found.regrouped.sizes_a), set(found.regrouped.sizes_b)) == ({4}, {5})
