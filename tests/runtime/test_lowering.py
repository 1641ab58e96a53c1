"""The machinery of lowering: the table, evaluation, decomposition, errors, randomness."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

from lazyrt import jax_compat, lowering
from lazyrt.errors import LoweringError, NoLoweringError, UsageError
from lazyrt.lowering import registry
from lazyrt.lowering.arrays import Aval, cast, result_type, to_jax_dtype, to_torch_dtype
from lazyrt.lowering.registry import evaluate, lowers, rule_for, rules
from tests.runtime.oracle import Weak, check, lowered, to_torch

aten = torch.ops.aten
X = torch.tensor([[0.5, -0.25], [1.5, 2.0]])


@pytest.fixture
def table(monkeypatch):
    """Give the test copies of the tables of rules."""
    for name in ("_rules", "_given", "_versions"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))


# The table.


def test_every_rule_fits_the_schema_of_an_op_that_exists():
    for name, rule in rules().items():
        namespace, op, overload = name.split(".")
        packet = getattr(getattr(torch.ops, namespace), op)

        assert overload in packet.overloads(), name
        count = len(getattr(packet, overload)._schema.arguments)
        inspect.signature(rule).bind(None, *range(count))


def test_a_registered_rule_is_found_and_used(table):
    @lowers("aten.special_airy_ai.default")
    def rule(ctx, x):
        return x + 1

    assert rule_for(aten.special_airy_ai.default) is rule
    (found,) = lowered(aten.special_airy_ai.default, [X], outs=[X])
    torch.testing.assert_close(found, X + 1)


def test_a_name_without_an_overload_is_refused():
    with pytest.raises(UsageError, match=r"lowers\('aten.add'\) names no overload"):
        lowers("aten.add")


def test_the_table_cannot_be_written_to():
    with pytest.raises(TypeError):
        rules()["aten.add.Tensor"] = None  # type: ignore[index]


# Types.


def test_dtypes_map_both_ways():
    for name in (
        "bool",
        "uint8",
        "int64",
        "bfloat16",
        "float16",
        "float64",
        "complex64",
    ):
        dtype = getattr(torch, name)
        assert to_torch_dtype(to_jax_dtype(dtype)) is dtype


def test_a_dtype_that_xla_lacks_is_named():
    with pytest.raises(TypeError, match=r"no counterpart of torch\.complex32"):
        to_jax_dtype(torch.complex32)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([Aval((2,), torch.int32), 2], torch.int32),
        ([Aval((2,), torch.int32), 2.0], torch.float32),
        (
            [Aval((2,), torch.bfloat16), Aval((), torch.float64, weak=True)],
            torch.bfloat16,
        ),
        ([Aval((2,), torch.int8), Aval((), torch.int64)], torch.int8),
        ([Aval((2,), torch.bool), Aval((), torch.int64, weak=True)], torch.int64),
        ([Aval((), torch.int32), Aval((), torch.int64)], torch.int64),
        ([Aval((2,), torch.float32), 1j], torch.complex64),
        ([[Aval((2,), torch.float16)], Aval((1,), torch.float32)], torch.float32),
    ],
)
def test_types_promote_as_in_torch(args, expected):
    assert result_type(args) is expected


def test_casting_wraps_around_as_torch_does():
    with jax_compat.scope():
        value = cast(jnp.asarray(np.array([-1.0, 3.7], np.float32)), torch.uint8)

        assert (
            to_torch(value).tolist()
            == torch.tensor([-1.0, 3.7]).to(torch.uint8).tolist()
        )
        assert int(cast(-1, torch.uint8)) == 255


# Evaluation.


def test_rules_trace_under_jit():
    check(aten.addmm.default, X[0], X, X)
    check(aten.lerp.Scalar, X, X + 1, Weak(0.25))
    check(aten.native_layer_norm.default, X, [2], None, None, 1e-5)


def test_results_are_cast_to_the_declared_dtype(table):
    @lowers("aten.special_airy_ai.default")
    def rule(ctx, x):
        return x.astype(jnp.float64)

    (found,) = lowered(aten.special_airy_ai.default, [X], outs=[X])

    assert found is not None
    assert found.dtype is torch.float32


def test_an_undefined_result_stays_undefined():
    results = lowered(
        aten.convolution_backward.default,
        [torch.ones(1, 1, 2), torch.ones(1, 1, 3), torch.ones(1, 1, 2), [0], [1], [0], [1],
         False, [0], 1, [False, True, False]],
        outs=[None, torch.ones(1, 1, 2), None],
    )  # fmt: skip

    assert [result is None for result in results] == [True, False, True]


def test_no_float64_sneaks_into_a_float32_op():
    """Under 64-bit types a careless Python number would widen the arithmetic."""
    ops: dict[Any, list[Any]] = {
        aten.gelu.default: [X],
        aten.softplus.default: [X],
        aten.mish.default: [X],
        aten.elu.default: [X],
        aten.silu_backward.default: [X, X],
        aten.gelu_backward.default: [X, X, "tanh"],
        aten.mse_loss.default: [X, X],
        aten.smooth_l1_loss.default: [X, X],
        aten.native_layer_norm.default: [X, [2], None, None, 1e-5],
        aten._softmax.default: [X, 1, False],
        aten.var.correction: [X, [1]],
        aten.native_dropout.default: [X, 0.5, True],
        aten.normal_functional.default: [X],
    }
    for func, args in ops.items():
        full = [*args, *([None] * (len(func._schema.arguments) - len(args)))]
        defaults = [
            argument.default_value
            if value is None and argument.has_default_value()
            else value
            for value, argument in zip(full, func._schema.arguments, strict=True)
        ]
        count = len(func._schema.returns)
        outs = [Aval((2, 2), torch.float32)] * count
        if func is aten.native_layer_norm.default:
            outs = [outs[0], *[Aval((2, 1), torch.float32)] * 2]
        elif func is aten.native_dropout.default:
            outs[1] = Aval((2, 2), torch.bool)
        elif func in {aten.mse_loss.default, aten.smooth_l1_loss.default}:
            outs = [Aval((), torch.float32)]
        elif func is aten.var.correction:
            outs = [Aval((2,), torch.float32)]
        with jax_compat.scope():
            text = _stablehlo(func, defaults, outs)
        assert "f64" not in text, f"{func}\n{text}"


def _stablehlo(func, args, outs):
    places = [k for k, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
    avals = [
        Aval(tuple(arg.shape), arg.dtype) if isinstance(arg, torch.Tensor) else arg
        for arg in args
    ]

    def run(key, *arrays):
        values = list(args)
        for place, array in zip(places, arrays, strict=True):
            values[place] = array
        return evaluate(func, values, avals, outs, key)

    key = jax.ShapeDtypeStruct((2,), np.uint64)
    shapes = [jax.ShapeDtypeStruct(avals[k].shape, np.float32) for k in places]
    return jax.jit(run).lower(key, *shapes).as_text()


# Decomposition.


def test_an_op_without_a_rule_is_decomposed():
    for func, args in [
        (aten.rms_norm.default, (X, [2])),
        (aten.glu.default, (torch.randn(2, 4),)),
        (aten.cosine_similarity.default, (X, X + 1)),
        (aten.kron.default, (X, X)),
        (aten.cross_entropy_loss.default, (X, torch.tensor([1, 0]))),
        (aten.trace.default, (X,)),
    ]:
        assert rule_for(func) is None, func
        check(func, *args)


def test_a_decomposition_that_writes_in_place_is_made_functional():
    check(aten.block_diag.default, [X, X])


def test_a_decomposition_ignores_the_modes_of_the_caller():
    with torch.inference_mode(), torch.device("meta"):
        found = lowered(aten.kron.default, [X, X[:1]], outs=[torch.empty(2, 4)])

    torch.testing.assert_close(found[0], torch.kron(X, X[:1]))


def test_a_decomposition_finds_the_types_of_its_steps_in_one_mode(monkeypatch):
    made = []
    make = FakeTensorMode.__init__

    def counting(self, *args, **options):
        made.append(self)
        make(self, *args, **options)

    monkeypatch.setattr(FakeTensorMode, "__init__", counting)
    wide = torch.ones(3, 5)

    check(aten.cosine_similarity.default, wide, wide + 1)

    assert len(made) == 1


def test_what_a_decomposition_lacks_is_named(monkeypatch):
    monkeypatch.delitem(registry._rules, "aten.special_bessel_j0.default")

    with pytest.raises(NoLoweringError, match=r"aten.special_bessel_j0.default on f32\[2,2\] "
                       r"\(its decomposition needs prims.bessel_j0.default\)"):  # fmt: skip
        lowered(aten.special_bessel_j0.default, [X], outs=[X])


def test_random_ops_inside_a_decomposition_draw_different_numbers():
    (found,) = lowered(aten.feature_dropout.default, [torch.ones(4, 64, 2), 0.5, True], outs=[torch.ones(4, 64, 2)],
                       key=(3, 4))  # fmt: skip

    assert found is not None
    assert set(found.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(found[..., 0], found[..., 1])


# Errors.


def test_a_missing_lowering_is_explained():
    with pytest.raises(NoLoweringError) as caught:
        lowered(aten.nonzero.default, [X], outs=[torch.zeros(2, 2)])

    assert str(caught.value) == (
        "no lowering for aten.nonzero.default on f32[2,2] (the shape of its result depends on "
        "data). Register one with @lowers('aten.nonzero.default'), or run the op on the CPU "
        "with lazyrt.fallback('aten.nonzero.default')."
    )
    note, *_ = caught.value.__notes__  # jax adds one of its own
    assert note.startswith("lowered ops with similar names: aten.zero.default, ")


def test_a_rule_may_refuse_what_it_does_not_cover():
    with pytest.raises(
        NoLoweringError, match="how many elements a mask picks depends on data"
    ):
        lowered(aten.index.Tensor, [X, [X > 0]], outs=[torch.zeros(3)])


def test_an_error_in_a_rule_names_the_op_and_its_types(table):
    @lowers("aten.sin.default")
    def rule(ctx, x):
        raise ValueError("no such luck")

    with pytest.raises(LoweringError) as caught:
        lowered(aten.sin.default, [X], outs=[X])

    assert str(caught.value) == (
        "the lowering of aten.sin.default on f32[2,2] failed with ValueError: no such luck. The "
        "rule does not cover these types: correct it, or run the op on the CPU with "
        "lazyrt.fallback('aten.sin.default')."
    )


def test_a_wrong_shape_is_caught(table):
    @lowers("aten.sin.default")
    def rule(ctx, x):
        return x[0]

    with pytest.raises(
        LoweringError, match=r"gave shape \[2\] where torch gives \[2, 2\]"
    ):
        lowered(aten.sin.default, [X], outs=[X])


def test_a_result_type_that_xla_lacks_has_no_lowering():
    with pytest.raises(NoLoweringError, match=r"no counterpart of torch\.complex32"):
        evaluate(
            aten._to_copy.default,
            [X.numpy(), torch.complex32, None, None, None, False, None],
            [
                Aval((2, 2), torch.float32),
                torch.complex32,
                None,
                None,
                None,
                False,
                None,
            ],
            [Aval((2, 2), torch.complex32)],
        )


# Randomness.

RANDOM = [
    (aten.rand.default, ([64],), torch.zeros(64)),
    (aten.randn.default, ([64],), torch.zeros(64)),
    (aten.uniform.default, (torch.zeros(64), -1.0, 3.0), torch.zeros(64)),
    (aten.normal_functional.default, (torch.zeros(64), 2.0, 0.5), torch.zeros(64)),
    (aten.randint.low, (-3, 5, [64]), torch.zeros(64, dtype=torch.int64)),
    (aten.randperm.default, (64,), torch.zeros(64, dtype=torch.int64)),
    (aten.bernoulli.p, (torch.zeros(64), 0.25), torch.zeros(64)),
    (aten.exponential.default, (torch.zeros(64), 2.0), torch.zeros(64)),
    (aten.multinomial.default, (torch.tensor([0.1, 0.0, 0.9]), 64, True),
     torch.zeros(64, dtype=torch.int64)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(RANDOM)))
def test_random_values_depend_on_seed_and_offset_alone(number):
    func, args, out = RANDOM[number]

    first, again, offset, seed = (
        lowered(func, args, outs=[out], key=key)[0]
        for key in [(1, 2), (1, 2), (1, 3), (2, 2)]
    )

    assert torch.equal(first, again)
    assert not torch.equal(first, offset)
    assert not torch.equal(first, seed)


def draw(func, args, out):
    """Return many numbers of a random op."""
    return lowered(func, args, outs=[out], key=(5, 7))[0]


def test_random_values_have_their_distribution():
    shape = torch.zeros(20_000)

    flat = draw(aten.rand.default, ([20_000],), shape)
    bell = draw(aten.randn.default, ([20_000],), shape)
    decay = draw(aten.exponential.default, (shape, 2.0), shape)
    coins = draw(aten.bernoulli.default, (torch.full((20_000,), 0.25),), shape)
    half = draw(aten.rand.default, ([20_000],), shape.bfloat16())

    assert flat.min() >= 0
    assert flat.max() < 1
    assert abs(flat.mean() - 0.5) < 0.01
    assert abs(bell.mean()) < 0.03
    assert abs(bell.std() - 1) < 0.03
    assert abs(decay.mean() - 0.5) < 0.02
    assert abs(coins.mean() - 0.25) < 0.02
    assert half.max() < 1


def test_integers_and_permutations_stay_in_range():
    dice = draw(aten.randint.low, (1, 7, [6000]), torch.zeros(6000, dtype=torch.int64))
    order = draw(aten.randperm.default, (50,), torch.zeros(50, dtype=torch.int64))
    picks = lowered(aten.multinomial.default, [torch.ones(4, 9), 9], key=(1, 1),
                    outs=[torch.zeros(4, 9, dtype=torch.int64)])[0]  # fmt: skip

    assert sorted(dice.unique().tolist()) == [1, 2, 3, 4, 5, 6]
    assert sorted(order.tolist()) == list(range(50))
    assert (picks.sort(1).values == torch.arange(9)).all()


def test_dropout_scales_what_it_keeps():
    x = torch.ones(100, 100)

    result, mask = lowered(
        aten.native_dropout.default, [x, 0.25, True], outs=[x, x.bool()], key=(1, 1)
    )

    assert abs(mask.float().mean() - 0.75) < 0.02
    torch.testing.assert_close(result, mask / 0.75)
    check(aten.native_dropout_backward.default, x, mask, 1 / 0.75)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_of_everything_is_exact(p):
    x = torch.ones(3)

    result, mask = lowered(
        aten.native_dropout.default, [x, p, True], outs=[x, x.bool()], key=(1, 1)
    )

    assert result.tolist() == [1 - p] * 3
    assert mask.tolist() == [p == 0] * 3


def test_no_op_of_ours_has_two_rules():
    """A later rule would replace the earlier one, and nobody would see which runs."""
    named = Counter(
        name.value
        for file in Path(lowering.__file__).parent.glob("*.py")
        for call in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "lowers"
        for name in call.args
        if isinstance(name, ast.Constant)
    )

    assert len(named) > 300
    assert [name for name, count in named.items() if count > 1] == []
