"""A wrong call says on the lazy device what it says on the CPU."""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

import lazyrt
from tests.harness import DEVICE

CALLS = {
    "convolution": lambda x: F.conv2d(x[None, None], x.new_ones(1, 2, 3, 3)),
    "product": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x.new_ones(4, 4)),
    "sum": lambda x: x + x.new_ones(4),
    "cat": lambda x: torch.cat([x, x.new_ones(2, 2, 2)]),
    "stack": lambda x: torch.stack([x, x[0]]),
    "layer norm": lambda x: F.layer_norm(x, (4,)),
    "in place": lambda x: x.add_(x.new_ones(3, 2, 3)),
    "gather": lambda x: x.gather(1, x.long().T),
    "mask": lambda x: x.masked_fill(x, 0.0),
    "topk": lambda x: x.topk(9),
    "matrices of two dtypes": lambda x: x.mm(x.T.double()),
    "matrix and vector of two dtypes": lambda x: x.mv(x[0].double()),
    "vectors of two dtypes": lambda x: x[0].dot(x[0].double()),
    "convolution of two dtypes": lambda x: F.conv1d(x.double(), x[None]),
    "output padding": lambda x: F.conv_transpose1d(x, x[None], output_padding=1),
    "output padding and stride": lambda x: F.conv_transpose1d(
        x, x[None], stride=2, output_padding=2
    ),
    "negative output padding": lambda x: F.conv_transpose1d(
        x, x[None], output_padding=-1
    ),
    "number in a row": lambda x: torch.cat([x[0], x[0, 0]]),
    "embedding of a vector": lambda x: F.embedding(x.long(), x[0]),
    "index of two dimensions": lambda x: x.index_select(0, x.long()),
    "index put of two dtypes": lambda x: x.index_put((x[0].long(),), x[0].double()),
    "windows": lambda x: x.unfold(0, 5, 1),
    "embedding": lambda x: F.embedding(x, x),
    "zeros": lambda x: torch.zeros(-1, device=x.device),
    "polar": lambda x: torch.polar(x * 1j, x),
    "complex fill": lambda x: x.masked_fill(
        x > 0, x.new_tensor(1j, dtype=torch.cfloat)
    ),
    "truth": bool,
    "item": lambda x: x.item(),
    "truth of nothing": lambda x: bool(x[:0]),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_says_what_the_cpu_says(name):
    with pytest.raises((RuntimeError, IndexError)) as expected:
        CALLS[name](torch.ones(2, 3))
    lazyrt.reset_counters()

    with pytest.raises(type(expected.value)) as found:
        CALLS[name](torch.ones(2, 3, device=DEVICE))

    assert str(found.value) == str(expected.value)
    assert lazyrt.counters()["executions"] == 0


def test_a_wrong_call_draws_no_random_number():
    before = torch.get_rng_state()

    with pytest.raises(RuntimeError):
        torch.normal(torch.ones(2, device=DEVICE), torch.ones(3, device=DEVICE))

    assert torch.equal(torch.get_rng_state(), before)


WITH_NUMBERS = {
    "power": lambda x: x**-1,
    "power in place": lambda x: x.pow_(-2),
    "powers of a list": lambda x: torch._foreach_pow([x], -1),
    "floor division": lambda x: x // 0,
    "floor division in place": lambda x: x.floor_divide_(0),
    "remainder": lambda x: x % 0,
    "fmod": lambda x: x.fmod(0),
    "division that rounds": lambda x: torch.div(x, 0, rounding_mode="trunc"),
}


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_integers_refuse_the_numbers_that_the_cpu_refuses(name):
    call = WITH_NUMBERS[name]
    with pytest.raises(RuntimeError) as expected:
        call(torch.tensor([2, 3]))

    with pytest.raises(RuntimeError) as found:
        call(torch.tensor([2, 3], device=DEVICE))

    said = str(expected.value).strip('"').rstrip(".")
    assert str(found.value).startswith(said)
    floats = torch.tensor([2.0, -3.0])
    (want,), (have,) = (_listed(call(x)) for x in (floats.clone(), floats.to(DEVICE)))
    torch.testing.assert_close(have.cpu(), want, equal_nan=True)


def _listed(found):
    return [found] if isinstance(found, torch.Tensor) else found


RESAMPLED = [
    ("nearest", 1, torch.int16), ("nearest", 2, torch.complex64), ("nearest-exact", 3, torch.bool),
    ("linear", 1, torch.uint8), ("bilinear", 2, torch.int16), ("bicubic", 2, torch.int64),
    ("trilinear", 3, torch.uint8), ("area", 2, torch.uint8), ("area", 3, torch.int32),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "axes", "dtype"), RESAMPLED)
def test_resampling_refuses_the_dtypes_that_the_cpu_refuses(mode, axes, dtype):
    image = torch.ones((1, 2, *[3] * axes)).to(dtype)
    with pytest.raises(NotImplementedError) as expected:
        F.interpolate(image, scale_factor=2, mode=mode)

    with pytest.raises(NotImplementedError) as found:
        F.interpolate(image.to(DEVICE), scale_factor=2, mode=mode)

    assert str(found.value) == str(expected.value)


BYTES = [
    ("nearest", {}), ("nearest-exact", {}), ("bilinear", {}), ("bilinear", {"align_corners": True}),
    ("bilinear", {"antialias": True}), ("bicubic", {"antialias": True}),
]  # fmt: skip


@pytest.mark.parametrize("size", [(2, 5), (9, 11), (3, 3)])
@pytest.mark.parametrize(("mode", "options"), BYTES)
def test_resampled_bytes_are_those_of_the_cpu(mode, options, size):
    image = torch.arange(0, 234, 13, dtype=torch.uint8).view(1, 2, 3, 3)
    expected = F.interpolate(image, size=size, mode=mode, **options)

    found = F.interpolate(image.to(DEVICE), size=size, mode=mode, **options)

    assert torch.equal(found.cpu(), expected)
    assert lazyrt.counters()["cpu_fallbacks"] == 0


def test_bicubic_resampling_of_bytes_is_that_of_the_cpu_but_for_a_unit():
    image = torch.arange(18, dtype=torch.uint8).view(1, 2, 3, 3)
    expected = F.interpolate(image, scale_factor=2, mode="bicubic")

    found = F.interpolate(image.to(DEVICE), scale_factor=2, mode="bicubic")

    assert (found.cpu().int() - expected.int()).abs().max() <= 1
    assert lazyrt.counters()["cpu_fallbacks"] == 0


def test_an_output_padding_below_the_dilation_is_taken():
    x = torch.ones(1, 1, 3, 3)
    expected = F.conv_transpose2d(x, x, output_padding=1, dilation=2)

    found = F.conv_transpose2d(x.to(DEVICE), x.to(DEVICE), output_padding=1, dilation=2)

    assert torch.equal(found.cpu(), expected)


ORDERED = [
    "max", "min", "amax", "amin", "aminmax", "argmax", "argmin", "sort", "argsort", "median",
    "nanmedian", "mode", "nansum",
]  # fmt: skip


@pytest.mark.parametrize("name", ORDERED)
def test_complex_numbers_have_no_order(name):
    x = torch.tensor([1 + 1j, 2])
    with pytest.raises(RuntimeError) as expected:
        getattr(torch, name)(x)

    with pytest.raises(type(expected.value)) as found:
        getattr(torch, name)(x.to(DEVICE))

    assert str(found.value) == str(expected.value)


def test_an_index_of_two_axes_selects_nothing():
    x = torch.ones(2, 3, device=DEVICE)

    with pytest.raises(IndexError, match="Index is supposed to be a vector"):
        x.index_select(0, x.long())


def _after_its_equal(name):
    """Call an op in place after it was recorded out of place, so that the node is known."""

    def call(x):
        other = x.new_tensor([2.5, 1.0], dtype=torch.float32)
        getattr(x, name)(other)
        return getattr(x, f"{name}_")(other)

    return call


NUMBERS = {
    **{f"{name} in place": _after_its_equal(name) for name in ("add", "div", "pow")},
    "number in place": lambda x: x.mul_(2.5),
    "product in place": lambda x: x.mul_(x.float()),
    "foreach": lambda x: torch._foreach_mul_([x], 2.5),
    "shape": lambda x: (x + x.new_ones(2, 2), x.add_(x.new_ones(2, 2))),
    "truth minus a number": lambda x: x.bool() - 1,
    "number minus a truth": lambda x: 1 - x.bool(),
    "truths from numbers": lambda x: x.sub_(x.bool()),
    "whole numbers to -1": lambda x: x**-1,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_do_not_fit_are_refused_as_on_the_cpu(name):
    x = torch.tensor([1, 2], device=DEVICE)
    with pytest.raises(RuntimeError) as expected:
        NUMBERS[name](torch.tensor([1, 2]))

    with pytest.raises(RuntimeError) as found:
        NUMBERS[name](x)

    words = str(expected.value).rstrip(".")
    assert str(found.value).startswith(words)
    assert x.tolist() == [1, 2]


REFUSED_FOR_ITS_VALUE: dict[str, tuple[Any, Any]] = {
    "floor division": (lambda x, k: x // k, (3, 2, 0)),
    "floor division in place": (lambda x, k: x.clone().floor_divide_(k), (3, 2, 0)),
    "division that rounds": (
        lambda x, k: torch.div(x, k, rounding_mode="trunc"),
        (3, 2, 0),
    ),
    "remainder": (lambda x, k: x % k, (3, 2, 0)),
    "fmod": (torch.fmod, (3, 2, 0)),
    "power": (lambda x, k: x**k, (3, 2, -1)),
    "powers of a list": (lambda x, k: torch._foreach_pow([x], k)[0], (3, 2, -1)),
    "full": (
        lambda x, k: torch.full((2,), k, dtype=torch.uint8, device=x.device),
        (3, 2, 300),
    ),
    "full of a half": (
        lambda x, k: torch.full((2,), k, dtype=torch.float16, device=x.device),
        (3.0, 2.0, 1e6),
    ),
    "full of no dtype": (
        lambda x, k: torch.full((2,), k, device=x.device),
        (3.0, 2.0, 1e39),
    ),
    "fill": (lambda x, k: x.char().fill_(k), (3, 2, 300)),
    "masked fill": (lambda x, k: x.half().masked_fill(x > 1, k), (-2.0, -1.0, -1e9)),
    "clamp": (lambda x, k: x.byte().clamp(0, k), (3, 2, 300)),
    "alpha": (lambda x, k: torch.add(x.char(), x.char(), alpha=k), (3, 2, 300)),
}


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("name", REFUSED_FOR_ITS_VALUE)
def test_a_number_is_refused_for_its_value_though_others_have_become_inputs(
    name, varies
):
    call, (*right, wrong) = REFUSED_FOR_ITS_VALUE[name]
    x = torch.tensor([2, 3], device=DEVICE)
    for number in right if varies else ():
        call(x, number)
        lazyrt.mark_step()
    with pytest.raises(RuntimeError) as expected:
        call(x.cpu(), wrong)

    with pytest.raises(RuntimeError) as found:
        call(x, wrong)

    assert str(found.value).startswith(str(expected.value).rstrip("."))


@pytest.mark.parametrize("number", [0, -300, 300, 2**63, -(2**63) - 1])
def test_numbers_of_any_size_that_the_cpu_takes_are_taken(number):
    x = torch.tensor([2, 3], dtype=torch.int8)
    for k in (1, 2):
        (lazyrt.mark_step(), x.to(DEVICE) * k)

    for call in (
        lambda x: x * min(max(number, -(2**63)), 2**63 - 1),
        lambda x: x.long() + number,
        lambda x: x.long() == number,
        lambda x: x.float() / number,
        lambda x: x.float().masked_fill(x > 2, number),
    ):
        try:
            expected = call(x).tolist()
        except (RuntimeError, OverflowError) as error:
            with pytest.raises(type(error)):
                call(x.to(DEVICE))
        else:
            assert call(x.to(DEVICE)).tolist() == expected


TOO_LARGE = {
    "a fill": lambda x: x.fill_(1e9),
    "a fill of a mask": lambda x: x.masked_fill_(x > 0, -1e9),
    "a bound": lambda x: x.clamp_(0.0, 1e9),
    "a factor": lambda x: x.add_(x, alpha=1e9),
    "a product": lambda x: x.mul_(1e9),
    "a sum": lambda x: x.add_(-1e9),
    "infinity": lambda x: x.masked_fill_(x > 0, float("-inf")),
}


@pytest.mark.not_eager("there all such ops are one, whose first number is checked")
@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_float_written_in_place_is_refused_where_the_cpu_refuses_it(name):
    call = TOO_LARGE[name]

    def outcome(device):
        x = torch.ones(2, dtype=torch.float16).to(device)
        try:
            return call(x).cpu()
        except RuntimeError as error:
            return str(error)

    want, found = outcome("cpu"), outcome(DEVICE)

    if isinstance(want, str):
        assert found == want
    else:
        torch.testing.assert_close(found, want)


@pytest.mark.parametrize(
    ("size", "dtype"), [(128, torch.int8), (256, torch.uint8), (2049, torch.float16)]
)
def test_a_permutation_that_its_dtype_just_counts_is_recorded(size, dtype):
    lazyrt.reset_counters()

    found = torch.randperm(size, dtype=dtype, device=DEVICE)

    assert lazyrt.counters().get("cpu_fallbacks", 0) == 0
    assert found.sort()[0].tolist() == list(range(size))


RUN_ALIKE = {
    "median": lambda x: x.median(0)[0],
    "median of numbers": lambda x: x.nanmedian(0)[1],
    "mode": lambda x: x.mode(0)[0],
    "histogram": lambda x: x.histc(3, 0, 4),
}


@pytest.mark.parametrize("only_warns", [False, True])
@pytest.mark.parametrize("name", RUN_ALIKE)
def test_deterministic_algorithms_refuse_nothing_that_the_cpu_takes(name, only_warns):
    x = torch.tensor([3.0, 1.0, 2.0, 1.0])
    torch.use_deterministic_algorithms(mode=True, warn_only=only_warns)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = RUN_ALIKE[name](x.to(DEVICE)).cpu()
        still = torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(mode=False)

    assert torch.equal(found, RUN_ALIKE[name](x))
    assert still == only_warns


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "hypotenuse": torch.hypot,
    "in place": lambda x, y: x.hypot_(y),
    "sum of exponentials": torch.logaddexp,
    "maximum": torch.maximum,
    "logarithm": torch.xlogy,
    "shift": lambda x, y: x << y,
    "shift in place": lambda x, y: (x + x).__irshift__(y),
    "power": torch.pow,
    "sum": torch.add,
    "floor division": torch.floor_divide,
    "difference": torch.rsub,
    "bound": lambda x, y: x.clamp(0, 1) + y,
    "sign": lambda x, y: x.sign() + y,
    "rectified": lambda x, y: x.relu() + y,
    "parts": torch.complex,
    "list": lambda x, y: torch._foreach_maximum([x], [y])[0],
}
DTYPES = (torch.bool, torch.uint8, torch.int32, torch.float32, torch.complex64)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_elementwise_op_takes_the_dtypes_that_the_cpu_takes(name):
    call = ELEMENTWISE[name]

    def outcome(device, dtypes):
        operands = [torch.ones(2, 3).to(dtype).to(device) for dtype in dtypes]
        try:
            return call(*operands).dtype
        except (RuntimeError, TypeError) as error:
            # The check before a write in place says what to do, too.
            return type(error), str(error).partition(": an in-place op keeps")[0]

    for dtypes in itertools.product(DTYPES, DTYPES):
        assert outcome(DEVICE, dtypes) == outcome("cpu", dtypes), dtypes


def test_an_op_that_only_its_meta_kernel_refuses_is_recorded():
    ones = torch.ones(2, dtype=torch.bool, device=DEVICE)
    lazyrt.reset_counters()

    found = ones << torch.tensor([1, 2], dtype=torch.uint8, device=DEVICE)

    assert lazyrt.counters().get("cpu_fallbacks", 0) == 0
    assert found.dtype is torch.uint8
    assert found.tolist() == [2, 4]


def test_an_op_without_a_meta_kernel_has_the_result_type_of_the_cpu():
    x = torch.linspace(-2, 2, 12).reshape(2, 3, 2)
    lazyrt.reset_counters()

    factors, scales = torch.geqrf(x.to(DEVICE))

    assert lazyrt.counters()["cpu_fallbacks"] == 0
    expected = torch.geqrf(x)
    assert (factors.shape, factors.stride()) == (expected.a.shape, expected.a.stride())
    torch.testing.assert_close(scales.cpu(), expected.tau)
