"""Derivatives that read nothing: the step stays whole, and the numbers are the CPU's."""

import math
from typing import Any

import pytest
import torch

import lazyrt
from lazyrt.observe import events
from tests.harness import DEVICE, assert_same, grad_of, recorded

NAN, INF = math.nan, math.inf
MASK = [[True, False, True], [False, False, True]]

OPS = {
    "max": lambda x, v: x.max(),
    "min": lambda x, v: x.min(),
    "median": lambda x, v: x.median(),
    "nanmedian": lambda x, v: x.nanmedian(),
    "cumprod": lambda x, v: x.cumprod(1),
    "cumprod of rows": lambda x, v: x.cumprod(0),
    "vander": lambda x, v: torch.linalg.vander(x),
    "cov": lambda x, v: x.cov(),
    "cov of one variable": lambda x, v: x[0].cov(correction=0),
    "corrcoef": lambda x, v: x.corrcoef(),
    "masked_fill": lambda x, v: x.masked_fill(torch.tensor(MASK).to(x.device), v),
    "masked_fill of a value alone": lambda x, v: x.detach().masked_fill(
        torch.tensor(MASK).to(x.device), v
    ),
    "index_fill": lambda x, v: x.index_fill(1, torch.tensor([2, 0, 2]).to(x.device), v),
    "index_fill of rows": lambda x, v: x.index_fill(
        -2, torch.tensor([1]).to(x.device), v
    ),
}
DATA = {
    "plain": [[2.0, -1.0, 3.0], [0.5, 4.0, -2.0]],
    "ties": [[2.0, 2.0, -1.0], [2.0, -1.0, -1.0]],
    "zeros": [[0.0, 2.0, 3.0], [0.5, 0.0, 0.0]],
    "NaN": [[NAN, 1.0, NAN], [2.0, 3.0, 1.0]],
    "infinite": [[INF, 1.0, -INF], [INF, 2.0, 5.0]],
}
# torch's derivatives divide, by infinities too, where those here multiply.
DIVIDED = {"cumprod", "cumprod of rows", "vander"}
CASES = [
    pytest.param(op, data, marks=() if data == "NaN" else pytest.mark.slow)
    for op in OPS
    for data in DATA
    if op not in DIVIDED or data in {"plain", "ties", "zeros"}
]


def derivatives(op: Any, data: Any, device: str) -> list[Any]:
    """Return the result, the gradients, and those of the gradients' squares; None for none."""
    x = torch.tensor(data, dtype=torch.float64).to(device).requires_grad_()
    v = torch.tensor(7.0, dtype=torch.float64).to(device).requires_grad_()
    y = op(x, v)
    weights = torch.arange(1.0, y.numel() + 1, dtype=torch.float64).to(device)
    total = (y.reshape(-1) * weights).sum()
    first: Any = torch.autograd.grad(
        total, (x, v), create_graph=True, allow_unused=True
    )
    squares = torch.stack([f.square().sum() for f in first if f is not None]).sum()
    if not squares.requires_grad:
        return [y, *first]
    return [y, *first, *torch.autograd.grad(squares, (x, v), allow_unused=True)]


@pytest.mark.lazy_only("counts the cuts of a step")
@pytest.mark.parametrize(("op", "data"), CASES)
def test_values_and_gradients_are_those_of_the_cpu_without_a_cut(op, data):
    expected = derivatives(OPS[op], DATA[data], "cpu")

    with recorded(events.BarrierFinished, events.FallbackUsed) as cuts:
        found = derivatives(OPS[op], DATA[data], DEVICE)

    assert not cuts
    lazyrt.mark_step()  # one executable for all that is compared
    for one, other in zip(found, expected, strict=False):
        if other is None or one is None:
            assert one is other or not (other if one is None else one).any()
        else:
            assert_same(one, other, 1e-12)


@pytest.mark.parametrize("op", ["max", "min", "median", "nanmedian"])
@pytest.mark.parametrize("sign", [1, -1])
def test_infinities_share_a_gradient_among_themselves_alone(op, sign):
    """What is chosen may be the number that marks what is not."""
    numbers = torch.tensor([-INF, 1.0, -INF, NAN if op == "nanmedian" else -INF, -INF])
    found = []
    for device in ("cpu", DEVICE):
        x = (numbers * sign).to(device).requires_grad_()
        getattr(x, op)().backward()
        found.append(grad_of(x))

    assert torch.equal(found[0], found[1])


def test_filling_in_place_counts_as_a_write_and_keeps_its_refusals():
    def program(device):
        x = torch.ones(2, 3, device=device)
        v = torch.tensor(7.0, device=device)
        mask = torch.tensor(MASK, device=device)
        before = x._version
        x.masked_fill_(mask, v).index_fill_(1, torch.tensor([1], device=device), v)
        with torch.no_grad():
            leaf = torch.ones(2, 3, device=device, requires_grad=True)
            leaf.masked_fill_(mask, v)
        said = []
        for target, value in ((leaf, v), (x, torch.ones(2, device=device))):
            with pytest.raises(RuntimeError) as caught:
                target.masked_fill_(mask, value)
            said.append(str(caught.value))
        return x._version - before, leaf._version, x.tolist(), leaf.tolist(), said

    assert program(DEVICE) == program("cpu")


@pytest.mark.parametrize("op", ["max", "min", "median", "nanmedian", "cumprod"])
def test_transforms_and_forward_mode_agree_with_the_cpu(op):
    def program(device):
        x = torch.tensor(DATA["plain"]).to(device)

        def call(row):
            return OPS["cumprod of rows" if op == "cumprod" else op](row, None).sum()

        tangent = torch.func.jvp(call, (x,), (torch.ones_like(x),))[1]
        return [
            torch.func.grad(call)(x),
            torch.func.vmap(torch.func.grad(call))(x),
            tangent,
        ]

    for one, other in zip(program(DEVICE), program("cpu"), strict=True):
        assert_same(one, other)


def test_cov_of_too_few_warns_as_on_the_cpu():
    for device in ("cpu", DEVICE):
        with pytest.warns(UserWarning, match=r"degrees of freedom is <= 0"):
            result = torch.ones(2, 1, device=device).cov()
        assert result.isnan().all()


@pytest.mark.parametrize("call", [
    lambda x: x.int().masked_fill(x > 0, torch.tensor([1, 2], device=x.device)),
    lambda x: x.requires_grad_().index_fill(5, torch.tensor([0], device=x.device), x[0, 0]),
    lambda x: torch.ones(2, 2, 2, device=x.device).cov(),
    lambda x: x[:0].requires_grad_().max(),
    lambda x: x[:0].min(),
    lambda x: x[:0].median(0),
    lambda x: x[:, :0].nanmedian(-1),
    lambda x: x.requires_grad_().cumprod(4),
])  # fmt: skip
def test_wrong_calls_are_refused_in_the_words_of_the_cpu(call):
    said = []
    for device in ("cpu", DEVICE):
        with pytest.raises((RuntimeError, IndexError)) as caught:
            call(torch.ones(2, 3).to(device))
        said.append((caught.type, str(caught.value)))

    assert said[0] == said[1]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.int64, torch.int32]
)
def test_the_median_of_nothing_is_that_of_the_cpu(dtype):
    empty = torch.ones(0, 2, dtype=dtype)

    assert_same(empty.to(DEVICE).median(), empty.median())
    assert_same(empty.to(DEVICE).nanmedian(), empty.nanmedian())
