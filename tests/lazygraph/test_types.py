"""Bytes and floating-point operations from types alone."""

import pytest

from lazygraph.types import aten_flops, elements, flops, type_bytes


@pytest.mark.parametrize(
    ("op", "result", "operands", "attrs", "expected"),
    [
        # Two for each product: 4 x 5 results of 3 numbers each.
        ("dot", "f32[4,5]", ["f32[4,3]"], "lhs_contracting_dims={1}", 120),
        ("dot", "f32[4,5]", ["f32[3,4]"], "lhs_contracting_dims={0}", 120),
        (
            "dot_general",
            "f32[2,4,5]",
            ["f32[2,4,3]"],
            "contracting_dims = [2] x [1]",
            240,
        ),
        (
            "dot_general",
            "f32[]",
            ["f32[4,3]"],
            "contracting_dims = [0, 1] x [0, 1]",
            24,
        ),
        ("dot", "f32[4,5]", ["f32[4,3]"], "", 40),
        # 2 x 10 x 10 x 8 results of a window of 3 x 3 x 4 numbers.
        (
            "convolution",
            "f32[2,10,10,8]",
            ["f32[2,12,12,4]", "f32[3,3,4,8]"],
            "",
            115_200,
        ),
        ("convolution", "f32[6]", ["f32[6]"], "", 6),
        # Only the weight's gradient: 2 x 576 results' gradients of 3 x 3 x 3 numbers.
        (
            "aten.convolution_backward.default",
            "(none, f32[8,3,3,3], f32[8])",
            ["f32[2,8,6,6]", "f32[2,3,8,8]", "f32[8,3,3,3]"],
            "",
            31_104,
        ),
        ("reduce", "f32[4]", ["f32[4,100]", "f32[]"], "", 400),
        ("reduce", "f32[4]", [], "", 4),
        ("multiply", "f32[7,3]", ["f32[7,3]", "f32[7,3]"], "", 21),
        ("transpose", "f32[7,3]", ["f32[3,7]"], "", 0),
        ("convert", "f64[7]", ["f32[7]"], "", 0),
    ],
)
def test_an_instruction_costs_what_its_types_say(op, result, operands, attrs, expected):
    assert flops(op, result, operands, attrs) == expected


@pytest.mark.parametrize(
    ("text", "numbers", "nbytes"),
    [
        ("f32[]", 1, 4),
        ("pred[5]", 5, 5),
        ("s4[3]", 3, 2),
        ("f32[0,7]", 0, 0),
        ("(c64[2], token[], u8[3]{0})", 6, 19),
    ],
)
def test_a_value_holds_numbers_and_bytes(text, numbers, nbytes):
    assert elements(text) == numbers
    assert type_bytes(text) == nbytes


@pytest.mark.parametrize("op", ["aten.addmm.default", "aten::addmm", "addmm"])
def test_a_matrix_product_costs_two_for_each_product_in_any_dump(op):
    shapes = [(5,), (4, 3), (3, 5)]

    assert aten_flops(op, [(4, 5)], shapes) == 2 * 3 * 20
    if op.startswith("aten"):
        texts = [f"f32[{','.join(map(str, shape))}]" for shape in shapes]
        assert flops(op, "f32[4,5]", texts) == 2 * 3 * 20


def test_gradients_that_nobody_asked_for_cost_nothing():
    operands = [(2, 8, 6, 6), (2, 3, 8, 8), (8, 3, 3, 3)]
    both = [(2, 3, 8, 8), (8, 3, 3, 3), (8,)]

    one = aten_flops("aten.convolution_backward.default", [None, *both[1:]], operands)

    assert one == 2 * (2 * 8 * 6 * 6) * (3 * 3 * 3)
    assert aten_flops("aten.convolution_backward.default", both, operands) == 2 * one
