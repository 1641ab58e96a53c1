"""StableHLO as jax writes it: loops, branches, meshes of devices, effects, two notations."""

import random
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from lazygraph import HloSyntaxError, diff, parse
from lazygraph.diff import nested_diffs
from lazygraph.explain.hlo_causes import sentences
from lazyviz.draw.diff_text import diff_text
from tests import mlir_dress

LOOP = """module @jit_step attributes {mhlo.num_partitions = 8 : i32} {
  sdy.mesh @mesh = <["x"=4, "y"=2]>
  func.func public @main(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %arg1: tensor<4xf32>) -> (tensor<4xf32> {jax.result_info = "r"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %s = stablehlo.sine %arg1 : tensor<4xf32>
    %0:2 = stablehlo.while(%iterArg = %c, %iterArg_0 = %arg0) : tensor<i32>, tensor<4xf32>
    cond {
      %c_1 = stablehlo.constant dense<10> : tensor<i32>
      %1 = stablehlo.compare LT, %iterArg, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %c_1 = stablehlo.constant dense<1> : tensor<i32>
      %1 = stablehlo.add %iterArg, %c_1 : tensor<i32>
      %2 = stablehlo.subtract %iterArg_0, %s : tensor<4xf32>
      %3 = stablehlo.divide %2, %arg1 : tensor<4xf32>
      stablehlo.custom_call @log(%3) {has_side_effect = true, mhlo.backend_config = {level = 1 : i32}, operand_layouts = [dense<[0]> : tensor<1xindex>]} : (tensor<4xf32>) -> ()
      stablehlo.return %1, %3 : tensor<i32>, tensor<4xf32>
    }
    %4 = sdy.manual_computation(%0#1) in_shardings=[<@mesh, [{"x", "y"}]>] out_shardings=[<@mesh, [{}]>] manual_axes={"x", "y"} (%arg2: tensor<4xf32>) {
      %5 = stablehlo.tanh %arg2 : tensor<4xf32>
      sdy.return %5 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return %4 : tensor<4xf32>
  }
}
"""


def within(a, b):
    """The differences within the one instruction that changed."""
    found = diff(parse(a), parse(b))
    assert found.cost == 1
    (pair,) = found.changed
    return nested_diffs(found, *pair)


@pytest.mark.parametrize("seed", range(6))
def test_names_order_and_dead_lines_are_no_difference_in_regions_either(seed):
    rng = random.Random(seed)  # noqa: S311

    dressed = LOOP
    for change in (mlir_dress.shuffled, mlir_dress.renamed, mlir_dress.deadened):
        dressed = change(dressed, rng)

    assert dressed != LOOP
    assert diff(parse(LOOP), parse(dressed)).is_empty


@pytest.mark.parametrize(
    ("old", "new", "where", "said"),
    [
        ("dense<10>", "dense<12>", "condition", "constant changed: 12, was 10"),
        ("subtract %iterArg_0, %s", "subtract %s, %iterArg_0", "body", ""),
        ("level = 1", "level = 2", "body", ""),
        ("stablehlo.tanh", "stablehlo.sine", "body", ""),
    ],
)
def test_a_change_in_a_region_is_found_there(old, new, where, said):
    edited = LOOP.replace(old, new)

    inner = within(LOOP, edited)

    assert [name.partition(":")[0] for name, _ in inner] == [where]
    assert inner[0][1].cost == (2 if "%s" in old else 1)
    text = diff_text(diff(parse(LOOP), parse(edited)))
    assert f"within {where}: " in text
    assert said in text


def test_results_of_a_loop_in_another_order_are_found_there():
    text = LOOP.replace("tensor<4xf32>", "tensor<i32>").replace("divide", "add")
    swapped = text.replace("return %1, %3", "return %3, %1")

    ((_, inner),) = within(text, swapped)

    assert [(inner.b.ops[each.b], each.slot) for each in inner.rewired] == [
        ("return", 0),
        ("return", 1),
    ]


def test_layouts_in_a_region_are_no_difference():
    assert diff(parse(LOOP), parse(LOOP.replace("dense<[0]>", "dense<[1]>"))).is_empty


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"x"=4, "y"=2', '"x"=2, "y"=4', 'the devices (mesh) is <["x"=2, "y"=4]>, was <["x"=4, "y"=2]>'),
        ('[{"x"}]>}', '[{"y"}]>}', "sharding of %arg0 is"),
        ('[{"x", "y"}]', '[{"y", "x"}]', "in_shardings of %4 is"),
        ("num_partitions = 8", "num_partitions = 4", "(num_partitions) is 4, was 8"),
        ("{jax.result_info", '{mhlo.sharding = "{replicated}", jax.result_info',
         'how results are placed on devices (output_shardings) is 0: "{replicated}", was not given'),
    ],
)  # fmt: skip
def test_another_placement_on_devices_is_a_difference_and_said(old, new, said):
    found = diff(parse(LOOP), parse(LOOP.replace(old, new)))

    assert any(said in each for each in sentences(found)), sentences(found)
    assert found.cost == (2 if "mesh" in said else "sharding" in said.split()[0])


def test_inputs_that_give_up_their_memory_are_named_whatever_their_number():
    given = LOOP.replace(
        "%arg1: tensor<4xf32>)", "%arg1: tensor<4xf32> {tf.aliasing_output = 0 : i32})"
    )
    swapped = given.replace(
        '%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %arg1: tensor<4xf32> {tf.aliasing_output = 0 : i32}',
        '%arg1: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}',
    )

    assert swapped != given
    assert sentences(diff(parse(LOOP), parse(given))) == [
        "input %arg1 now gives up its memory to a result (donation)"
    ]
    assert sentences(diff(parse(given), parse(LOOP))) == [
        "input %arg1 no longer gives up its memory to a result (donation)"
    ]
    assert sentences(diff(parse(given), parse(swapped))) == []


EFFECT = """HloModule step

%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %p = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %v = f32[4] get-tuple-element(%p), index=1
  %n = f32[4] negate(%v)
  {log}
  ROOT %t = (s32[], f32[4]) tuple(%i, %n)
}}

%condition (p: (s32[], f32[4])) -> pred[] {{
  %p = (s32[], f32[4]) parameter(0)
  ROOT %done = pred[] constant(false)
}}

ENTRY %main (x: f32[4]) -> f32[4] {{
  %x = f32[4] parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[4]) tuple(%zero, %x)
  %loop = (s32[], f32[4]) while(%start), condition=%condition, body=%body
  ROOT %result = f32[4] {root}
}}
"""
LOG = '%log = () custom-call(%n), custom_call_target="log", custom_call_has_side_effect=true'


@pytest.mark.parametrize(
    "root", ["get-tuple-element(%loop), index=1", "exponential(%x)"]
)
def test_a_call_with_an_effect_in_a_loop_of_hlo_is_no_dead_code(root):
    plain, logged = (parse(EFFECT.format(log=log, root=root)) for log in ("", LOG))

    found = diff(plain, logged)

    assert found.cost >= 1
    if "loop" in root:
        assert len(found.changed) == found.cost == 1
    else:
        assert sentences(found)[0].startswith("output ")


def test_a_call_with_an_effect_at_the_top_is_said_to_be_one():
    plain = LOOP.replace("return %4", "return %4")
    line = "    stablehlo.custom_call @log(%4) {has_side_effect = true} : (tensor<4xf32>) -> ()\n"
    logged = LOOP.replace("    return %4", f"{line}    return %4")

    found = diff(parse(plain), parse(logged))

    assert found.cost == 2
    assert sentences(found)[0].startswith("call with an effect ")


def test_the_notation_that_names_every_part_is_read():
    lowered = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, v: jnp.sin(v), x))
    module: Any = lowered.lower(jnp.ones(4)).compiler_ir("stablehlo")
    usual = parse(str(module))
    generic = parse(module.operation.get_asm(print_generic_op_form=True))
    scaled = module.operation.get_asm(print_generic_op_form=True).replace(
        "sine", "tanh"
    )

    found = diff(generic, parse(scaled))

    assert generic.name == usual.name
    assert found.cost == 1
    assert "] tanh(%arg" in diff_text(found)
    assert diff(usual, generic).is_empty


def test_what_the_full_notation_reduces_by_is_read_beside_its_locations():
    lowered = jax.jit(lambda x: x.sum()).lower(jnp.ones(4))
    module: Any = lowered.compiler_ir("stablehlo")

    located = module.operation.get_asm(
        print_generic_op_form=True, enable_debug_info=True
    )

    assert diff(parse(str(module)), parse(located)).is_empty


def _many(x):
    """Return results of every operation whose two notations differ in their attributes."""
    rows = jnp.concatenate([x[:, ::2], x[1:3, :2].repeat(2, 0)], axis=1)
    moved = jnp.pad(x.T[::-1], ((1, 0), (0, 2))) + jnp.arange(6.0)[None, :]
    part = jax.lax.dynamic_slice(x, (jnp.int32(x.sum()), jnp.int32(0)), (2, 2))
    batched = jax.lax.batch_matmul(x[None], x[None])
    near = jax.lax.reduce_precision(jax.nn.softmax(x), 5, 10)
    solved = jax.lax.linalg.triangular_solve(x, x, lower=True)
    return rows, moved, part, batched, near > 0.5, solved, (x > 0).any(), x.astype(int)


@pytest.mark.parametrize("other", [1.5, 2.5])
def test_both_notations_of_a_program_are_one_program(other):
    """What `print_generic_op_form` writes compares with what jax writes."""
    shown = []
    for scale in (1.5, other):
        lowered = jax.jit(lambda x, by=scale: _many(x * by)).lower(jnp.ones((4, 4)))
        module: Any = lowered.compiler_ir("stablehlo")
        shown.append(
            (str(module), module.operation.get_asm(print_generic_op_form=True))
        )

    found = diff(parse(shown[0][0]), parse(shown[1][1]))

    assert found.cost == (other != 1.5)
    assert [found.b[y].literal for _, y in found.changed] == [
        "2.500000e+00"
    ] * found.cost
    assert not any("the notation" in each for each in sentences(found))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("stablehlo.sine", "stablehlo.syne", "unregistered operation 'stablehlo.syne'"),
        ('"builtin.module"', 'step 3\n"builtin.module"', ""),
        ("}) : () -> ()", "", r"line 1, column \d+: .* is never closed"),
        (
            '"stablehlo.sine"(',
            '"stablehlo.sine" + (',
            "line 4, column .*does not parse",
        ),
    ],
    ids=["unknown op", "in a log", "cut off", "edited"],
)
def test_the_notation_that_names_every_part_is_read_or_refused_with_its_line(
    old, new, said
):
    module: Any = jax.jit(jnp.sin).lower(jnp.ones(4)).compiler_ir("stablehlo")
    generic = module.operation.get_asm(print_generic_op_form=True)
    generic = new.join(generic.rsplit(old, 1))

    if said:
        with pytest.raises(HloSyntaxError, match=said):
            parse(generic)
    else:
        assert diff(parse(str(module)), parse(generic)).is_empty


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (
            lambda x, w: jax.lax.conv_general_dilated(
                x, w, (2, 1), ((1, 0), (2, 1)), (2, 2)
            ),
            (jnp.ones((1, 2, 8, 8)), jnp.ones((4, 2, 3, 3))),
        ),
        (lambda x: jax.lax.conv(x, x, (1, 1), "VALID"), (jnp.ones((1, 1, 4, 4)),)),
        (jnp.fft.rfft2, (jnp.ones((4, 4)),)),
        (lambda x: jax.lax.top_k(x, 2), (jnp.ones((4, 4)),)),
        (lambda x: jnp.argmax(x, 1), (jnp.ones((4, 4)),)),
        (
            lambda x: jax.random.uniform(jax.random.key(1, impl="rbg"), (3,)) * x,
            (1.0,),
        ),
        (
            lambda x: jax.lax.reduce(
                (x, x * 2), (0.0, 1.0), lambda p, q: (p[0] + q[0], p[1] * q[1]), (0,)
            ),
            (jnp.ones((4, 4)),),
        ),
    ],
    ids=["conv", "plain conv", "rfft2", "top_k", "argmax", "rbg", "reduce of two"],
)
def test_both_notations_of_an_operation_are_one(function, args):
    lowered = jax.jit(function).lower(*args)
    module: Any = lowered.compiler_ir("stablehlo")

    generic = module.operation.get_asm(print_generic_op_form=True)

    assert diff(parse(str(module)), parse(generic)).is_empty


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (", index=1", "", "line 22, column 9: %result takes an element of a tuple and"),
        (", index=1", "", "print it with them (print_extra_attributes)"),
        ("index=1", "index=7", "line 22, column 9: %result takes element 7 of %start"),
        ("parameter(0)", "parameter(x)", "line 18, column 4: %x is parameter(x), and"),
    ],
)
def test_what_is_wrong_with_an_instruction_has_line_and_column(old, new, said):
    text = EFFECT.format(log="", root="get-tuple-element(%start), index=1")
    head, entry = text.split("ENTRY")
    text = f"{head}ENTRY{entry.replace(old, new)}"

    with pytest.raises(HloSyntaxError, match=re.escape(said)):
        parse(text)


def test_complex_types_read_as_in_hlo():
    text = LOOP.replace("4xf32", "4xcomplex<f32>")

    assert "c64[4]" in parse(text).types


def test_of_long_attributes_the_part_that_differs_is_shown():
    text = """HloModule m

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8] parameter(0)
  ROOT %g = f32[8] all-gather(%x), channel_id=1, replica_groups={{{{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}},{{{last}}}}}, dimensions={{0}}
}}
"""
    found = diff(parse(text.format(last="16,17")), parse(text.format(last="16,18")))

    (line,) = (row for row in diff_text(found).split("\n") if row.startswith(" ~ "))
    assert "16,18" in line


@pytest.mark.slow
def test_real_programs_in_other_clothes_are_the_same():
    def step(weights, x):
        def layer(carry, weight):
            carry = jnp.where(carry.sum() > 0, jnp.tanh(carry @ weight), carry)
            return carry, jax.lax.cond(carry[0, 0] > 0, jnp.sin, jnp.cos, carry)

        last, rows = jax.lax.scan(layer, x, weights)
        return (jnp.sort(rows, 0) + last).sum(), jnp.argmax(rows), jax.nn.softmax(last)

    args = jnp.ones((3, 4, 4)), jnp.ones((2, 4))
    text = jax.jit(jax.grad(lambda w, x: step(w, x)[0])).lower(*args).as_text()
    for seed in range(12):
        rng = random.Random(seed)  # noqa: S311
        dressed = mlir_dress.renamed(mlir_dress.shuffled(text, rng), rng)
        found = diff(parse(text), parse(mlir_dress.deadened(dressed, rng)))
        assert found.is_empty, found
