"""Values followed through tuples, collectives, calls and fusions."""

import gzip
from pathlib import Path

import pytest

import lazyviz
from lazygraph import (
    HloError,
    Sources,
    parse,
    trace_value,
    unused_values,
)

EXCERPT = (
    Path(__file__).parent.parent / "data" / "reduce_scatter_excerpt.hlo"
).read_text("utf-8")
CALLS = """\
HloModule calls

%fused (p.0: f32[4,3], p.1: f32[3,5]) -> f32[4,5] {
  %p.0 = f32[4,3]{1,0} parameter(0)
  %p.1 = f32[3,5]{1,0} parameter(1)
  %d = f32[4,5]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %n = f32[4,5]{1,0} negate(%d)
}

%body (s: (s32[], f32[4,5])) -> (s32[], f32[4,5]) {
  %s = (s32[], f32[4,5]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %v = f32[4,5]{1,0} get-tuple-element(%s), index=1
  %w = f32[4,5]{1,0} tanh(%v)
  ROOT %t = (s32[], f32[4,5]{1,0}) tuple(%i, %w)
}

%cond (s.1: (s32[], f32[4,5])) -> pred[] {
  %s.1 = (s32[], f32[4,5]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %three = s32[] constant(3)
  ROOT %less = pred[] compare(%i.1, %three), direction=LT
}

ENTRY %main (a: f32[4,3], b: f32[3,5]) -> (f32[4,5], f32[4,3]) {
  %a = f32[4,3]{1,0} parameter(0)
  %b = f32[3,5]{1,0} parameter(1)
  %waste = f32[4,5]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %nine = s32[] constant(9), metadata={op_type="aten__sum" op_name="aten__sum" source_file="t.py" source_line=8}
  %f = f32[4,5]{1,0} fusion(%a, %b), kind=kLoop, calls=%fused
  %zero = s32[] constant(0)
  %start = (s32[], f32[4,5]{1,0}) tuple(%zero, %f)
  %loop = (s32[], f32[4,5]{1,0}) while(%start), condition=%cond, body=%body
  %out = f32[4,5]{1,0} get-tuple-element(%loop), index=1
  ROOT %r = (f32[4,5]{1,0}, f32[4,3]{1,0}) tuple(%out, %a)
}
"""


def test_the_seeds_own_lines_give_the_answer_that_its_thread_looked_for():
    """In one call, through the tuple, its element and the collective."""
    trace = lazyviz.trace_value(EXCERPT, "%p827.13201")

    assert str(trace).split("\n") == [
        "%p827.13201 : f32[32,1024], parameter(827), an input",
        "  → operand 23 of %tuple.13225 (28)",
        "    → %get-tuple-element.13249 index=23",
        (
            "      → operand 23 of %reduce-scatter.13258 → element 23, "
            "f32[32,1024] → f32[1,1024], 32 shards"
        ),
        "no consumer in this excerpt",
        (
            "%reduce-scatter.13258: 24 of 28 operands, 18.4 of 22.4 MiB, are inputs "
            "computed by an earlier execution"
        ),
        "  (matched by position where the excerpt does not show them)",
    ]


def test_the_operands_of_the_seeds_collective_are_mostly_inputs():
    """The sentence from the excerpt alone."""
    (found,) = trace_value(EXCERPT, "reduce-scatter.13258").sources

    assert (found.inputs, found.operands) == (24, 28)
    assert str(found) == (
        "24 of 28 operands, 18.4 of 22.4 MiB, are inputs computed by an earlier execution"
    )
    assert found.is_presumed
    small = Sources("%r", operands=2, inputs=1, operand_bytes=48, input_bytes=16)
    assert str(small).startswith("1 of 2 operands, 16 of 48 bytes, are inputs")


def test_a_value_is_followed_through_fusions_and_loops_to_the_results():
    shown = [hop.text for hop in trace_value(CALLS, "f").hops]

    assert shown == [
        "operand 1 of %start (2)",
        "operand 0 of %loop (while) as %s.1 of %cond",
        "operand 0 of %loop (while) as %s of %body",
        "%v index=1",
        "operand 0 of %w (tanh), f32[4,5]",
    ]


def test_what_a_loop_gives_comes_out_again():
    shown = [hop.text for hop in trace_value(CALLS, "w").hops]

    assert shown == [
        "operand 1 of %t (2)",
        "the result of %loop (while)",
        "%out index=1",
        "operand 0 of %r (2)",
        "result 0 of the program",
        "the next turn of %loop (while) as %s.1 of %cond",
        "the next turn of %loop (while) as %s of %body",
        "%v index=1",
        "operand 0 of %w (tanh), f32[4,5]",
    ]


def test_an_operand_of_a_fusion_is_followed_inside():
    trace = trace_value(CALLS, "a")

    assert [hop.name for hop in trace.consumers] == ["%waste", "%d"]
    assert trace.is_output


def test_a_value_is_followed_back_to_what_computes_it():
    def sources(name):
        return [hop.text for hop in trace_value(CALLS, name).producers]

    assert sources("out") == [
        "element 1 of %loop (while)",
        "the root of %body: %t = tuple",
        "operand 0 of %loop (while): %start = tuple, if it makes no turn",
        "operand 1 of %t: %w = tanh",
        "operand 1 of %start: %f = fusion",
        "the root of %fused: %n = negate",
    ]
    assert sources("v")[1:4] == [
        "operand 0 of %loop (while): %start = tuple",
        "the turn of %loop (while) before, the root of %body: %t = tuple",
        "operand 1 of %start: %f = fusion",
    ]
    assert sources("w") == ["operand 0: %v = element 1 of %s (parameter), f32[4,5]"]
    assert sources("d")[0] == "operand 0: %p.0 = parameter(0) of %fused, f32[4,3]"
    assert sources("p.1") == [
        "operand 1 of %f (fusion): %b = parameter(1), an input",
    ]
    assert sources("waste") == [
        "operand 0: %a = parameter(0), an input, f32[4,3]",
        "operand 1: %b = parameter(1), an input, f32[3,5]",
    ]


def test_unused_values_are_listed_with_their_bytes_and_work():
    found = unused_values(CALLS)

    assert [(each.name, each.bytes, each.flops, each.site) for each in found] == [
        ("%waste", 80, 120, ""),
        ("%nine", 4, 0, "t.py:8"),
    ]


def test_what_several_values_are_taken_from_is_followed_to_each_of_them():
    """A tuple has consumers, too: they read its elements."""
    loop, inside = trace_value(CALLS, "loop"), trace_value(CALLS, "s")
    seed = trace_value(EXCERPT, "tuple.13225")

    assert loop.is_output
    assert [hop.name for hop in inside.consumers] == ["%less", "%w"]
    assert [hop.name for hop in seed.hops] == [
        "%get-tuple-element.13249", "%reduce-scatter.13258",
    ]  # fmt: skip
    assert "18.4 of 22.4 MiB" in str(trace_value(EXCERPT, "reduce-scatter.13258"))


def test_a_value_that_no_result_needs_says_what_it_costs():
    assert str(trace_value(CALLS, "waste")).endswith(
        "no consumer\nno result needs it: 80 bytes and 120 FLOP for nothing"
    )
    inside = CALLS.replace("ROOT %t", "%idle = f32[4,5]{1,0} sine(%v)\n  ROOT %t")
    assert [each.name for each in unused_values(inside)] == [
        "%waste", "%idle", "%nine",
    ]  # fmt: skip
    assert trace_value(CALLS, "f").waste is None


def test_packed_files_and_one_of_several_modules_can_be_traced(tmp_path):
    other = CALLS.replace("HloModule calls", "HloModule others").replace(
        "%waste", "%w9"
    )
    path = tmp_path / "two.hlo.gz"
    path.write_bytes(gzip.compress(f"{CALLS}\n{other}".encode()))

    assert trace_value(path, "w9").what == trace_value(path.read_bytes(), "w9").what
    with pytest.raises(HloError, match=r"2 of the 2 modules have %out: calls, others"):
        trace_value(path, "out")


def test_graphs_and_other_notations_can_be_traced_too():
    graph = parse(CALLS)
    torch_ir = (
        "IR {\n  %0 = f32[4]{0} xla::device_data(), xla_shape=f32[4]{0}\n"
        "  %1 = f32[4]{0} aten::exp(%0), xla_shape=f32[4]{0}, ROOT=0\n}\n"
    )

    assert trace_value(graph, "out").is_output
    assert trace_value(torch_ir, "0").consumers[0].name == "%1"
    assert trace_value(parse(torch_ir), "1").is_output


def test_a_name_that_is_not_there_gets_near_ones():
    with pytest.raises(
        HloError, match=r"no instruction %wast in calls. Did you mean %waste"
    ):
        trace_value(CALLS, "wast")


def test_the_beginning_of_a_name_is_enough_to_be_told_the_rest():
    with pytest.raises(
        HloError, match=r"no instruction %p827 .* Did you mean %p827.13"
    ):
        trace_value(EXCERPT, "p827")
    with pytest.raises(HloError, match="3 is no name of an instruction"):
        trace_value(EXCERPT, 3)  # type: ignore[arg-type]


def test_a_text_without_instructions_is_refused():
    with pytest.raises(HloError, match="has no instruction"):
        trace_value("no program at all\nreally", "x")


BRANCHES = """\
HloModule branches

%up (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  ROOT %more = f32[4]{0} exponential(%x)
}

%down (y: f32[4]) -> f32[4] {
  %y = f32[4]{0} parameter(0)
  ROOT %less = f32[4]{0} negate(%y)
}

ENTRY %main (which: s32[], a: f32[4], b: f32[4], c: f32[4]) -> f32[4] {
  %which = s32[] parameter(0)
  %a = f32[4]{0} parameter(1)
  %b = f32[4]{0} parameter(2)
  %c = f32[4]{0} parameter(3)
  ROOT %r = f32[4]{0} conditional(%which, %a, %b, %c), branch_computations={%up, %down, %up}
}
"""


@pytest.mark.parametrize(
    ("name", "inside"),
    [("a", ["%more"]), ("b", ["%less"]), ("c", ["%more"]), ("which", [])],
)
def test_an_operand_of_a_conditional_is_followed_into_its_own_branch(name, inside):
    """Operand 0 chooses; the others are one for each branch, of which two may be the same."""
    hops = trace_value(BRANCHES, name).hops

    assert [hop.name for hop in hops if hop.name in {"%more", "%less"}] == inside
