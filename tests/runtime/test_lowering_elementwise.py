"""The lowerings of elementwise ops, foreach ops and conversions, against torch."""

# ruff: noqa: FBT003 - positional booleans are how aten ops are called

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

import lazyrt
from lazyrt.frontend import infer
from tests.harness import DEVICE
from tests.runtime.oracle import Weak, check, together

aten = torch.ops.aten

FLOAT = torch.tensor([[0.5, -0.25, 0.75], [0.125, -0.875, 0.3]])
LARGE = torch.tensor([-30.0, -2.9, 2.9, 3.1, 10.0, 26.0, 50.0, 1e10, 1e30])
INTEGER = torch.tensor([[3, -7, 2], [5, 1, -4]])
BOOLEAN = torch.tensor([[True, False, True], [False, False, True]])
SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 2.5, -2.5])

UNARY = [
    "abs",
    "acos",
    "acosh",
    "angle",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "deg2rad",
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "frac",
    "i0",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "logit",
    "neg",
    "rad2deg",
    "reciprocal",
    "round",
    "rsqrt",
    "sgn",
    "sigmoid",
    "sign",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "signbit",
]


@pytest.mark.parametrize("x", [FLOAT, SPECIAL, INTEGER])
def test_unary_ops_agree_with_torch(x):
    with together():
        for name in UNARY:
            if x is not INTEGER or name not in {"frac", "logit"}:
                check(getattr(aten, name).default, x, rtol=1e-5, atol=1e-6)


@together()
def test_unary_ops_agree_with_torch_on_half_types():
    for name in UNARY:
        check(getattr(aten, name).default, FLOAT.bfloat16())


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int64])
def test_divisors_of_the_least_integer_are_found(dtype):
    bounds = torch.iinfo(dtype)
    x = torch.tensor([bounds.min, bounds.min, bounds.min, bounds.max, 12], dtype=dtype)
    y = torch.tensor([6, bounds.min, 0, -1, bounds.min], dtype=dtype)

    check(aten.gcd.default, x, y)


def test_multiples_of_the_least_integer_wrap_as_on_the_cpu():
    x = torch.tensor([-128, 100, -128, 4], dtype=torch.int8)

    check(aten.lcm.default, x, torch.tensor([6, -128, 0, 6], dtype=torch.int8))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64])
def test_large_powers_of_integers_wrap_as_on_the_cpu(dtype):
    x = torch.tensor([0, 1, 2, 3, 7, -1], dtype=torch.int64).to(dtype)[:, None]
    exponents = torch.tensor([0, 1, 63, 64, 65, 100, 127], dtype=dtype)

    check(aten.pow.Tensor_Tensor, x, exponents)
    check(aten.pow.Tensor_Scalar, x, 100)
    if dtype.is_signed:
        check(aten.pow.Tensor_Tensor, x, -exponents)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_erfcx_is_right_where_its_factors_overflow(dtype):
    x = torch.cat([LARGE, SPECIAL]).to(dtype)

    check(
        aten.special_erfcx.default,
        x,
        rtol=1e-13 if dtype.itemsize > 4 else 1e-6,
        atol=0,
    )


BINARY = ["add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum.default",
          "minimum.default", "remainder.Tensor", "fmod.Tensor", "eq.Tensor", "lt.Tensor",
          "ge.Tensor", "atan2.default", "fmax.default", "pow.Tensor_Tensor"]  # fmt: skip
OPERANDS = [
    (FLOAT, FLOAT + 1),
    (FLOAT, torch.tensor([2.0, -1.5, 0.5])),
    (INTEGER, torch.tensor([2, 3, -5])),
    (INTEGER, FLOAT + 1),
    (FLOAT, torch.tensor(2.0, dtype=torch.float64)),
    (INTEGER.int(), torch.tensor(3)),
    (FLOAT.bfloat16(), FLOAT.bfloat16() + 1),
    (FLOAT.bfloat16(), FLOAT.half() + 1),
]


@pytest.mark.parametrize("case", range(len(OPERANDS)))
def test_binary_ops_promote_and_compute_as_torch_does(case):
    x, y = OPERANDS[case]
    with together():
        for op in BINARY:
            name, overload = op.split(".")
            other = y.abs() if name == "pow" and not y.is_floating_point() else y
            check(getattr(getattr(aten, name), overload), x, other)


@pytest.mark.parametrize("is_lifted", [False, True])
def test_a_number_takes_part_in_promotion_as_a_number(is_lifted):
    operands = (FLOAT, INTEGER, FLOAT.bfloat16(), INTEGER.to(torch.uint8))
    with together():
        for op in ("add", "sub", "mul", "div", "remainder", "pow", "eq", "lt"):
            packet = getattr(aten, op)
            func = packet.Tensor_Scalar if op == "pow" else packet.Scalar
            for x, number in itertools.product(operands, (2, 2.5)):
                check(func, x, Weak(number) if is_lifted else number)


@together()
def test_a_number_in_the_place_of_a_tensor_is_no_tensor():
    check(aten.mul.Tensor, INTEGER, 2)
    check(aten.mul.Tensor, FLOAT.bfloat16(), 2.5)
    check(aten.add.Tensor, INTEGER, Weak(1.5))
    check(aten.add.Tensor, BOOLEAN, True)


@together()
def test_booleans_combine_as_booleans():
    for op in ("logical_and", "logical_or", "logical_xor", "bitwise_and",
               "bitwise_or", "bitwise_xor", "add", "mul"):  # fmt: skip
        packet = getattr(aten, op)
        func = packet.Tensor if "Tensor" in packet.overloads() else packet.default
        check(func, BOOLEAN, ~BOOLEAN)
        check(func, BOOLEAN, INTEGER > 2)


@together()
def test_division_rounds_as_it_is_told():
    for x, mode in itertools.product((FLOAT * 7, INTEGER), (None, "trunc", "floor")):
        divisor = torch.tensor([2, -3, 1]).to(x.dtype)
        check(aten.div.Tensor_mode, x, divisor, rounding_mode=mode)
        check(aten.div.Tensor_mode, SPECIAL, torch.tensor(2.0), rounding_mode=mode)
        if mode == "floor":
            check(aten.floor_divide.default, x, divisor)


@together()
def test_division_by_zero_follows_ieee():
    check(aten.div.Tensor, SPECIAL, torch.tensor(0.0))
    check(aten.div.Tensor_mode, SPECIAL, torch.tensor(0.0), rounding_mode="floor")
    check(aten.remainder.Tensor, SPECIAL, torch.tensor(0.0))


@together()
def test_constant_powers_are_exact():
    for exponent in (0, 0.5, 1, 2, 3, -0.5, -1, -2, 2.5, 7, -3):
        check(aten.pow.Tensor_Scalar, FLOAT.abs(), exponent, rtol=1e-6, atol=1e-7)
        if exponent >= 0 and exponent == int(exponent):
            check(aten.pow.Tensor_Scalar, INTEGER, int(exponent))


@together()
def test_arithmetic_of_three_operands():
    x, y, z = FLOAT, FLOAT + 1, FLOAT * 2 + 3

    check(aten.lerp.Scalar, x, y, 0.75)
    check(aten.lerp.Scalar, x, y, Weak(0.25))
    check(aten.lerp.Tensor, x, y, z)
    check(aten.addcmul.default, x, y, z, value=0.5)
    check(aten.addcdiv.default, x, y, z, value=Weak(0.5))
    check(aten.where.self, BOOLEAN, x, y)
    check(aten.where.self, BOOLEAN, x, torch.tensor(1, dtype=torch.int64))
    check(aten.masked_fill.Scalar, x, BOOLEAN, -math.inf)
    check(aten.clamp.default, x, -0.1, 0.4)
    check(aten.clamp.Tensor, x, torch.tensor(-0.1), None)
    check(aten.nan_to_num.default, SPECIAL, 1.0, None, -3.0)


@together()
def test_copies_and_fills_convert():
    check(aten._to_copy.default, FLOAT * 9, dtype=torch.int32)
    check(aten._to_copy.default, FLOAT * 9, dtype=torch.uint8)
    check(aten._to_copy.default, FLOAT, dtype=torch.bool)
    check(aten._to_copy.default, INTEGER, dtype=torch.bfloat16)
    check(aten.copy.default, FLOAT, INTEGER[0])
    check(aten.fill.Scalar, INTEGER, 2.75)
    check(aten.fill.Tensor, FLOAT, torch.tensor(3))
    check(aten.zero.default, FLOAT)


@together()
def test_complex_numbers_come_apart_and_together():
    z = torch.complex(FLOAT, FLOAT + 1)

    check(aten.view_as_real.default, z)
    check(aten.view_as_complex.default, torch.view_as_real(z))
    check(aten.complex.default, FLOAT, FLOAT + 1)
    check(aten.mul.Tensor, z, FLOAT)
    check(aten.abs.default, z)
    check(aten.angle.default, z)
    check(aten._to_copy.default, FLOAT, dtype=torch.complex64)


FOREACH: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten._foreach_add.List, ([FLOAT, FLOAT[0]], [FLOAT + 1, FLOAT[1]]), {"alpha": 0.5}),
    (aten._foreach_add.Scalar, ([FLOAT, INTEGER], Weak(0.5)), {}),
    (aten._foreach_mul.ScalarList, ([FLOAT, FLOAT[0]], [2.0, Weak(0.5)]), {}),
    (aten._foreach_mul.Tensor, ([FLOAT, FLOAT[0]], torch.tensor(0.5)), {}),
    (aten._foreach_div.List, ([FLOAT, FLOAT[0]], [FLOAT + 2, FLOAT[1]]), {}),
    (aten._foreach_sqrt.default, ([FLOAT.abs(), FLOAT[0].abs()],), {}),
    (aten._foreach_lerp.Scalar, ([FLOAT], [FLOAT + 1], 0.9), {}),
    (aten._foreach_addcmul.Scalar, ([FLOAT], [FLOAT], [FLOAT], 0.1), {}),
    (aten._foreach_addcdiv.ScalarList, ([FLOAT] * 2, [FLOAT] * 2, [FLOAT + 2] * 2, [0.1, 0.2]), {}),
    (aten._foreach_addcdiv.Tensor, ([FLOAT] * 2, [FLOAT] * 2, [FLOAT + 2] * 2,
                                    torch.tensor([0.1, 0.2])), {}),
    (aten._foreach_norm.Scalar, ([FLOAT, FLOAT[0]], 2), {}),
    (aten._foreach_maximum.List, ([FLOAT], [FLOAT + 1]), {}),
    (aten._foreach_maximum.Scalar, ([FLOAT], 0.25), {}),
    (aten._foreach_clamp_max.Scalar, ([FLOAT], 0.25), {}),
    (aten._foreach_pow.ScalarAndTensor, (0.9, [FLOAT]), {}),
    (aten._foreach_neg.default, ([FLOAT, INTEGER],), {}),
    (aten._foreach_sub.List, ([FLOAT, INTEGER, FLOAT[0], INTEGER, FLOAT] , [FLOAT + 1, INTEGER * 2,
                              FLOAT[1], FLOAT, FLOAT + 3]), {"alpha": 2}),
    (aten._foreach_mul.ScalarList, ([FLOAT, INTEGER, FLOAT], [2, 2.0, Weak(2.0)]), {}),
]  # fmt: skip


@together()
def test_a_foreach_op_repeats_its_single_op():
    for func, args, kwargs in FOREACH:
        check(func, *args, **kwargs)


@pytest.mark.lazy_only("reads the pending graph")
def test_entries_of_equal_types_are_inferred_and_traced_once(monkeypatch):
    params = [torch.full((size,), 0.5, device=DEVICE) for size in [71, 73] * 20]
    lengths = []
    types = infer._run_meta

    def noted(func, args):
        lengths.append(len(args[0]))
        return types(func, args)

    monkeypatch.setattr(infer, "_run_meta", noted)
    found = torch._foreach_atan(params)
    assert lengths == [2]
    assert [each.shape for each in found] == [p.shape for p in params]
    node = lazyrt.pending_graph(*found).nodes[-1]
    assert node.spec.text.count("chlo.atan") == 2
    assert torch.equal(found[-1].cpu(), torch.full((73,), 0.5).atan())


def test_an_entry_that_torch_refuses_is_refused_as_on_the_cpu():
    sizes = [3, 4, 3, 4]

    def call(device):
        ones = [torch.ones(size, device=device) for size in sizes]
        torch._foreach_add(ones, [*ones[:3], ones[0]])

    with pytest.raises(RuntimeError) as expected:
        call("cpu")
    with pytest.raises(RuntimeError) as refused:
        call(DEVICE)
    assert str(refused.value) == str(expected.value)
