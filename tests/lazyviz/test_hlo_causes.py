"""What is said of two dumps: for what they were compiled, and what was edited first."""

import pytest

from lazyviz.hlo import diff, parse
from lazyviz.hlo.causes import sentences
from lazyviz.render.diff_text import diff_text
from tests.hlo_pairs import text_of, transformer

SHARDED = """HloModule step{header}

%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}}

ENTRY %main (p: f32[8]) -> f32[8] {{
  %p = f32[8] parameter(0), sharding={sharding}
  %r = f32[8] all-reduce(%p), replica_groups={groups}, to_apply=%add, metadata={{op_name="fsdp/sum" source_file="train.py" source_line=7}}
  ROOT %n = f32[8] negate(%r)
}}
"""
PLAIN = {"header": "", "sharding": "{replicated}", "groups": "{{0,1}}"}


@pytest.mark.parametrize(
    ("change", "said", "cost"),
    [
        (
            {"sharding": "{devices=[2]0,1}"},
            "sharding of %p was {replicated} and is {devices=[2]0,1}",
            1,
        ),
        (
            {"groups": "{{0,1,2,3}}"},
            "replica_groups of %r at train.py:7 in fsdp was {{0,1}} and is {{0,1,2,3}}",
            1,
        ),
        (
            {"header": ", num_partitions=4"},
            "the number of partitions (num_partitions) was not given and is 4",
            0,
        ),
        (
            {"header": ", input_output_alias={ {}: (0, {}, may-alias) }"},
            "input %p now gives up its memory to a result (donation)",
            0,
        ),
    ],
)
def test_placement_over_devices_and_memory_is_named(change, said, cost):
    a = parse(SHARDED.format(**PLAIN))
    b = parse(SHARDED.format(**{**PLAIN, **change}))

    found = diff(a, b)

    assert sentences(found) == [said]
    assert found.cost == cost
    assert said in diff_text(found)


def pair(first, second):
    texts = [
        text_of(transformer(2, **options), seed=seed, shuffle=True)[0]
        for seed, options in enumerate((first, second))
    ]
    return diff(*map(parse, texts))


def test_another_batch_size_is_the_inputs_and_counts_what_follows():
    (said, *rest) = sentences(pair({}, {"batch": 12}))

    assert said.endswith("was f32[8,16] and is f32[12,16]; 125 results changed with it")
    assert not rest


def test_a_baked_number_is_shown_once_with_its_places_and_line():
    (said,) = sentences(pair({}, {"lr": 0.02}))

    assert said.startswith(
        "a constant was 0.01 and is 0.02 in 24 places at train.py:50 in "
    )


def test_one_more_output_counts_what_only_it_needs():
    (said,) = sentences(pair({}, {"norm": True}))

    assert said.startswith("one more output: %sqrt.")
    assert "f32[] at train.py:45 in grad_norm, +" in said
    assert said.endswith(" instructions that nothing else needs")


def test_two_reasons_are_both_named():
    first, second = sentences(pair({}, {"batch": 12, "norm": True}))

    assert "and is f32[12,16]" in first
    assert "one more output" in second


def test_equal_programs_have_no_reason():
    assert sentences(pair({}, {})) == []


def test_inputs_that_one_side_has_alone_are_named_and_move_no_others():
    a, b = parse(text_of(transformer(2))[0]), parse(text_of(transformer(3))[0])

    said = diff_text(diff(a, b))

    count = len(b.inputs) - len(a.inputs)
    assert f"{count} inputs more: " in said
    assert "another order" not in said
    assert f"{count} inputs fewer: " in diff_text(diff(b, a))


def test_an_output_that_both_compute_says_so():
    text = "HloModule m\nENTRY e {\n  a = f32[4] parameter(0)\n  t = f32[4] tanh(a)\n  s = f32[4] sine(t)\n  ROOT r = (f32[4]) tuple(s)\n}\n"
    more = text.replace("(f32[4]) tuple(s)", "(f32[4], f32[4]) tuple(s, t)")

    (said,) = sentences(diff(parse(text), parse(more)))
    assert said == "one more output: %t f32[4], which both compute"


def test_a_new_value_between_two_known_ones_that_is_a_result_too():
    """S4.05: what another path added is not computed for the output alone."""
    text = "HloModule m\nENTRY e {\n  a = f32[4] parameter(0)\n  b = f32[4] exponential(a)\n  s = f32[4] sine(b)\n  ROOT r = (f32[4]) tuple(s)\n}\n"
    more = (
        text.replace("sine(b)", "sine(t)")
        .replace("  s =", "  t = f32[4] tanh(b)\n  s =")
        .replace("(f32[4]) tuple(s)", "(f32[4], f32[4]) tuple(s, t)")
    )

    (said,) = sentences(diff(parse(text), parse(more)))
    assert said == "one more output: %t f32[4], which other instructions need too"
