"""What is said of two dumps: for what they were compiled, and what was edited first."""

import re

import pytest

from lazygraph import diff, parse
from lazygraph.explain.hlo_causes import sentences
from lazyviz.draw.diff_text import diff_text
from tests.harness import thinned
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
INPUTS = (
    "HloModule m\nENTRY e {\n  x = f32[4] parameter(0)\n  ROOT t = f32[4] tanh(x)\n}\n"
)
PLAIN = {"header": "", "sharding": "{replicated}", "groups": "{{0,1}}"}


@pytest.mark.parametrize(
    ("change", "said", "cost"),
    [
        (
            {"sharding": "{devices=[2]0,1}"},
            "sharding of %p is {devices=[2]0,1}, was {replicated}",
            1,
        ),
        (
            {"groups": "{{0,1,2,3}}"},
            "replica_groups of %r at train.py:7 in fsdp is {{0,1,2,3}}, was {{0,1}}",
            1,
        ),
        (
            {"header": ", num_partitions=4"},
            "the number of partitions (num_partitions) is 4, was 1",
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

    assert said.endswith("` is f32[12,16], was f32[8,16]; 125 ops depend on it")
    assert not rest


def test_a_baked_number_is_shown_once_with_its_places_and_line():
    (said,) = sentences(pair({}, {"lr": 0.02}))

    assert said.startswith(
        "constant changed: 0.02, was 0.01 in 24 places at train.py:50 in "
    )


def test_one_more_output_counts_what_only_it_needs():
    (said,) = sentences(pair({}, {"norm": True}))

    assert said.startswith("output %sqrt.")
    assert "f32[] at train.py:45 in grad_norm is new, with " in said
    assert said.endswith(" ops for it alone")


def test_two_reasons_are_both_named():
    first, second = sentences(pair({}, {"batch": 12, "norm": True}))

    assert "is f32[12,16], was" in first
    assert second.startswith("output ")


def test_equal_programs_have_no_reason():
    assert sentences(pair({}, {})) == []


def test_inputs_that_one_side_has_alone_are_named_and_move_no_others():
    a, b = parse(text_of(transformer(2))[0]), parse(text_of(transformer(3))[0])

    said = diff_text(diff(a, b))

    count = len(b.inputs) - len(a.inputs)
    layer = "the layer `encoder.layer.2` was"
    assert f"{layer} added: 379 ops and {count} inputs at " in said
    assert "are new" not in said
    assert "another order" not in said
    assert f"{layer} removed: 379 ops and {count} inputs at " in diff_text(diff(b, a))


@pytest.mark.parametrize("has_scopes", thinned([True, False], 2))
def test_layers_that_one_side_has_alone_are_counted_as_such(has_scopes):
    """Issue 6: 2,490 instructions are six layers."""
    names = [0, 1, *(f"new{k}" for k in range(6)), 2, 3]
    a, b = (
        parse(text_of(p, seed=k, shuffle=True, metadata=has_scopes)[0])
        for k, p in enumerate((transformer(4), transformer(names=names)))
    )

    said = sentences(diff(a, b))

    if has_scopes:
        assert len(said) == 1
        assert said[0].startswith(
            "6 layers `encoder.layer.new0`-`encoder.layer.new5` were added: 2,274 "
            "ops and 216 inputs at train.py:1"
        )
    else:
        assert re.match(
            r"a block of 37\d ops and 3\d inputs was added 6 times: broadcast ×",
            said[0],
        )


def test_layers_and_an_output_that_are_new_are_both_named():
    said = sentences(pair({}, {"names": [0, 1, 2, 3], "norm": True}))

    assert said[0].startswith("2 layers `encoder.layer.2`-`encoder.layer.3` were added")
    assert said[1].startswith("output %sqrt.")


def test_inputs_that_one_side_has_alone_are_named():
    a = parse(INPUTS)
    b = parse(
        INPUTS.replace(
            "  ROOT", "  y = f32[4] parameter(1)\n  z = f32[4] add(x, y)\n  ROOT"
        ).replace("tanh(x)", "tanh(z)")
    )

    assert sentences(diff(a, b))[0] == "input `%y` f32[4] is new"
    assert sentences(diff(b, a))[0] == "input `%y` f32[4] is gone"


def test_an_output_that_both_compute_says_so():
    text = "HloModule m\nENTRY e {\n  a = f32[4] parameter(0)\n  t = f32[4] tanh(a)\n  s = f32[4] sine(t)\n  ROOT r = (f32[4]) tuple(s)\n}\n"
    more = text.replace("(f32[4]) tuple(s)", "(f32[4], f32[4]) tuple(s, t)")

    (said,) = sentences(diff(parse(text), parse(more)))
    assert said == "output %t f32[4] is new, and both compute it"


def test_a_new_value_between_two_known_ones_that_is_a_result_too():
    """What another path added is not computed for the output alone."""
    text = "HloModule m\nENTRY e {\n  a = f32[4] parameter(0)\n  b = f32[4] exponential(a)\n  s = f32[4] sine(b)\n  ROOT r = (f32[4]) tuple(s)\n}\n"
    more = (
        text.replace("sine(b)", "sine(t)")
        .replace("  s =", "  t = f32[4] tanh(b)\n  s =")
        .replace("(f32[4]) tuple(s)", "(f32[4], f32[4]) tuple(s, t)")
    )

    (said,) = sentences(diff(parse(text), parse(more)))
    assert said == "output %t f32[4] is new, and other ops need it too"


_SCALED = """HloModule m
ENTRY e {
  p = f32[4]{0} parameter(0)
  s = f32[] parameter(1), metadata={op_name="lr"}
  b = f32[4]{0} broadcast(s), dimensions={}
  ROOT m = f32[4]{0} multiply(p, b), metadata={op_name="aten__mul" source_file="t.py" source_line=4}
}"""
_SCALED_IR = """IR {
  %0 = f32[] xla::device_data(), xla_shape=f32[]
  %1 = f32[4]{0} xla::device_data(), xla_shape=f32[4]{0}
  %2 = f32[4]{0} aten::mul(%1, %0), location=f@t.py:4, xla_shape=f32[4]{0}, ROOT=0
}
"""


@pytest.mark.parametrize(
    ("text", "input_", "constant", "names"),
    [
        (_SCALED, 'parameter(1), metadata={op_name="lr"}', "constant(1)", ("multiply", "lr")),
        (_SCALED_IR, "%0 = f32[] xla::device_data()", "%0 = f32[] prim::Constant(), value=1", ("aten::mul", "%0")),
    ],
)  # fmt: skip
def test_a_number_that_became_special_is_told_as_an_embedded_constant(
    text, input_, constant, names
):
    """In torch_xla's graphs 0 and 1 are constants, other numbers data."""
    other = text.replace(input_, constant)
    op, name = names

    assert (
        f"the number 1 of {op} at t.py:4 is embedded as a constant, was the input "
        f"{name} (torch_xla embeds 0 and 1 and sends other numbers as data)"
    ) in sentences(diff(text, other))
    assert (
        f"the number 1 of {op} at t.py:4 is an input from now on ({name}), was embedded as a "
        "constant: further values compile nothing"
    ) in sentences(diff(other, text))
    seven = text.replace(input_, constant.replace("1", "7"))
    assert not any("torch_xla" in each for each in sentences(diff(text, seven)))


def test_a_number_of_the_runtimes_graph_that_became_an_input_is_told():
    one = "%p0 : f32[4]\n%0 = aten.mul.Tensor(%p0, 1.0) : f32[4]  # t.py:4\nreturn %0"
    two = (
        "%p0 : f32[4]\n%f0 : f64[]\n"
        "%0 = aten.mul.Tensor(%p0, %f0) : f32[4]  # t.py:4\nreturn %0"
    )

    assert (
        "the number 1.0 of aten.mul.Tensor at t.py:4 is an input from now on (%f0), was embedded "
        "as a constant: further values compile nothing"
    ) in sentences(diff(one, two))
    assert (
        "the number 1.0 of aten.mul.Tensor at t.py:4 is embedded as a constant, was the input %f0"
    ) in sentences(diff(two, one))


EDITED = """HloModule step

%less (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  ROOT %s = f32[8] sqrt(%x)
}

%more (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  ROOT %s = f32[8] cosine(%x)
}

ENTRY %main (p: f32[8], i: s32[]) -> f32[4] {
  %p = f32[8] parameter(0)
  %i = s32[] parameter(1)
  %t = f32[8] tanh(%p), metadata={op_name="enc/tanh" source_file="train.py" source_line=7}
  %d = f32[8] subtract(%p, %t), metadata={op_name="enc/sub" source_file="train.py" source_line=8}
  %b = f32[8] conditional(%i, %d, %d), branch_computations={%less, %more}
  ROOT %cut = f32[4] slice(%b), slice={[0:4]}
}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tanh(%p)", "sine(%p)", "code path changed: %t at train.py:7 in enc is sine, was tanh"),
        ("[0:4]", "[4:8]", "constant changed: slice %cut has slice={[4:8]}, had slice={[0:4]}"),
        ("tanh(%p),", "tanh(%p), mode=1,", "attribute added: tanh %t at train.py:7 in enc has mode=1"),
        ("(%p, %t)", "(%t, %p)", "other operands: subtract %d at train.py:8 in enc reads them in another order"),
        ("(%p, %t)", "(%t, %t)", "other operands: subtract %d at train.py:8 in enc reads %t, was %p"),
        ("sqrt(%x)", "exponential(%x)", "in the branch_computations of %b: code path changed: %s is exponential, was sqrt"),
        ("cosine(%x)", "sine(%x)", "in the branch_computations of %b: code path changed: %s is sine, was cosine"),
        (
            "  %b = f32[8] conditional(%i, %d, %d)",
            "  %n = f32[8] negate(%d)\n  %b = f32[8] conditional(%i, %n, %n)",
            "code path changed: 1 op is new (negate), first %n",
        ),
        (
            "  %b = f32[8] conditional(%i,",
            "  %k = s32[] constant(1)\n  %b = f32[8] conditional(%k,",
            "input `%i` s32[] is gone",
        ),
    ],
)  # fmt: skip
def test_each_kind_of_edit_has_a_sentence(old, new, said):
    """A reason is never empty; a branch is compared with the same branch."""
    found = diff(parse(EDITED), parse(EDITED.replace(old, new)))

    assert sentences(found)[0] == said
    assert sentences(diff(parse(EDITED), parse(EDITED))) == []


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ("bf16[8]", "dtype changed: %r is bf16[8], was f32[8]"),
        ("f32[4]", "shape changed: %r is f32[4], was f32[8]"),
    ],
)
def test_an_op_that_changed_its_type_alone_is_named_and_not_what_reads_it(now, said):
    text = 'HloModule m\nENTRY e {\n  k = s32[] parameter(0)\n  r = %s custom-call(k), custom_call_target="f"\n  ROOT t = %s tanh(r)\n}\n'

    found = diff(parse(text % ("f32[8]", "f32[8]")), parse(text % (now, now)))

    assert sentences(found) == [said]


def test_a_count_of_one_is_that_of_a_module_that_says_none():
    said = parse(EDITED.replace("step\n", "step, replica_count=1\n", 1))

    assert sentences(diff(parse(EDITED), said)) == []


def test_another_result_that_both_compute_is_told():
    a = EDITED.replace("ROOT %cut", "%cut").replace(
        "slice={[0:4]}", "slice={[0:4]}\n  ROOT %r = (f32[4], f32[8]) tuple(%cut, %t)"
    )
    b = a.replace("tuple(%cut, %t)", "tuple(%cut, %d)")

    assert sentences(diff(parse(a), parse(b))) == ["output is %d f32[8], was %t f32[8]"]
    gone = a.replace("(%cut, %t)", "(%t, %t)").replace("(f32[4], f3", "(f32[8], f3")
    said = sentences(diff(parse(a), parse(gone)))
    assert said == [
        "input `%i` s32[] is gone",
        "code path changed: 1 op is gone (subtract), first %d at train.py:8 in enc",
    ]


COMPILED = """\
HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8] parameter(0)
  %t = f32[8] tanh(%p), metadata={op_name="enc/tanh" source_file="m.py" source_line=3}
  ROOT %n = f32[8] negate(%t), metadata={op_name="head/neg" source_file="m.py" source_line=4}
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0), metadata={op_name="x"}
  ROOT %f = f32[8] fusion(%x), kind=kLoop, calls=%fused, metadata={op_name="head/neg" source_file="m.py" source_line=4}
}
"""
APART = """\
HloModule m, is_scheduled=true

ENTRY %main (x: f32[6]) -> f32[6] {
  %x = f32[6] parameter(0), metadata={op_name="x"}
  %t = f32[6] tanh(%x), metadata={op_name="enc/tanh" source_file="m.py" source_line=3}
  ROOT %n = f32[6] negate(%t), metadata={op_name="head/neg" source_file="m.py" source_line=4}
}
"""


def test_what_a_compiler_puts_together_otherwise_is_no_other_code_path():
    found = diff(parse(APART), parse(COMPILED.replace("input_output_alias", "x")))

    assert sentences(found) == [
        "input `x` is f32[8], was f32[6]; 1 op depends on it",
        "compiled otherwise: 2 instructions are gone and 1 instruction is new for what both programs do",
    ]
    other = COMPILED.replace("tanh", "sine").replace("input_output_alias", "x")
    said = sentences(diff(parse(APART), parse(other)))
    assert any(each.startswith("code path changed:") for each in said)


def test_only_inputs_of_the_whole_program_are_donated():
    other = COMPILED.replace("tanh", "sine").replace("may-alias", "may-alias), (9, {}")
    said = sentences(diff(parse(COMPILED.replace("alias={", "x={")), parse(other)))

    assert [each for each in said if "donation" in each] == [
        "input x now gives up its memory to a result (donation)"
    ]


def test_an_input_that_is_reshaped_alone_packs_no_numbers():
    a = """\
HloModule m

%flat (p: f32[4,2]) -> f32[8] {
  %p = f32[4,2] parameter(0)
  ROOT %r = f32[8] reshape(%p)
}

ENTRY %main (x: f32[4,2]) -> f32[8] {
  %x = f32[4,2] parameter(0)
  ROOT %c = f32[8] call(%x), to_apply=%flat
}
"""
    b = a.replace("f32[4,2]", "f32[3,2]").replace("f32[8]", "f32[6]")

    assert len(diff(parse(a), parse(b)).resized_inputs) == 1
