"""What a lazy tensor can do, with torch's own CPU tensors as the oracle."""

import copy
import io
import itertools
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lazyrt
from tests.harness import (
    DEVICE,
    assert_same,
    at_once,
    compare_after_the_step,
    grad_of,
    lazy,
    run_python,
    thinned,
)

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES = [*FLOATS, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32]
DTYPES += [torch.int64, torch.complex64, torch.complex128]
TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 1e-2}


def on_both(program, *arguments):
    """Run a program on CPU tensors and on lazy ones, compare all that it returns."""
    expected = program("cpu", *[argument.clone() for argument in arguments])
    actual = program(DEVICE, *[lazy(argument) for argument in arguments])
    if isinstance(expected, torch.Tensor):
        expected, actual = [expected], [actual]
    compare_after_the_step(compare, actual, expected)


def compare(actual, expected):
    for mine, theirs in zip(actual, expected, strict=True):
        assert strides(mine) == strides(theirs)
        assert_same(mine, theirs, TOLERANCE.get(theirs.dtype, 1e-5))


def strides(tensor):
    """Return the strides that say something: not those of dimensions of one element."""
    if tensor.numel() == 0:
        return ()
    return tuple(
        stride
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if size > 1
    )


def grid(*shape):
    count = 1
    for size in shape:
        count *= size
    return torch.arange(1.0, count + 1).reshape(shape)


# ---------------------------------------------------------------- creation


FACTORIES = [
    lambda d: torch.zeros(2, 3, device=d),
    lambda d: torch.ones(2, 3, device=d, dtype=torch.int32),
    lambda d: torch.full((2, 2), 7, device=d),
    lambda d: torch.full((2, 2), 0.5, device=d),
    lambda d: torch.full((2, 2), fill_value=True, device=d),
    lambda d: torch.arange(5, device=d),
    lambda d: torch.arange(1, 2, 0.25, device=d),
    lambda d: torch.linspace(0, 1, 5, device=d),
    lambda d: torch.logspace(0, 2, 3, device=d),
    lambda d: torch.eye(3, device=d),
    lambda d: torch.eye(2, 4, device=d),
    lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    lambda d: torch.tensor(3.5, device=d),
    lambda d: torch.tensor([], device=d),
    lambda d: torch.as_tensor([1.0, 2.0], device=d),
    lambda d: torch.tril(torch.ones(3, 3, device=d)),
    lambda d: torch.tril_indices(3, 3, device=d),
    lambda d: torch.zeros_like(torch.ones(2, device=d)),
    lambda d: torch.ones_like(torch.ones(2, device=d), dtype=torch.int64),
    lambda d: torch.full_like(torch.ones(2, device=d), 3),
    lambda d: torch.ones(2, device=d).new_zeros(3),
    lambda d: torch.ones(2, device=d).new_tensor([1.0, 2.0]),
    lambda d: torch.ones(2, device=d).new_full((2,), 4.0),
    lambda d: torch.scalar_tensor(2.5, device=d),
    lambda d: torch.zeros(0, 3, device=d),
    lambda d: torch.hann_window(4, device=d),
    lambda d: torch.complex(torch.ones(2, device=d), torch.zeros(2, device=d)),
]


@at_once()
def test_factories_match_the_cpu():
    for make in FACTORIES:
        on_both(make)


def test_empty_is_reproducible():
    tensor = torch.empty(2, 3, device=DEVICE)

    assert torch.equal(tensor.cpu(), tensor.cpu())
    assert torch.empty(0, device=DEVICE).numel() == 0


def test_the_default_dtype_is_followed_when_it_changes():
    before = torch.ones(2, device=DEVICE)
    torch.set_default_dtype(torch.float64)
    try:
        after = torch.ones(2, device=DEVICE)
        mean = torch.arange(3, device=DEVICE) / 2
    finally:
        torch.set_default_dtype(torch.float32)

    assert before.dtype is torch.float32
    assert after.dtype is torch.float64
    assert mean.dtype is torch.float64
    assert torch.ones(2, device=DEVICE).dtype is torch.float32


@pytest.mark.lazy_only("compares the keys of graphs")
@pytest.mark.parametrize("runs_each", [False, True])
def test_floats_made_of_integers_have_the_default_dtype_of_their_line(runs_each):
    def roots(counts, dtype):
        torch.set_default_dtype(dtype)
        try:
            return torch.sqrt(counts) + counts / 3
        finally:
            torch.set_default_dtype(torch.float32)

    counts = torch.arange(1, 8)
    on_device, found, keys = counts.to(DEVICE), [], []
    dtypes = (torch.float32, torch.float64, torch.float32)
    for dtype in dtypes:
        found.append(roots(on_device, dtype))
        keys.append(lazyrt.pending_graph(found[-1]).fingerprint)
        if runs_each:
            lazyrt.mark_step()

    assert keys[0] == keys[2] != keys[1]
    for actual, dtype in zip(found, dtypes, strict=True):
        assert actual.dtype is dtype
        assert_same(
            actual, roots(counts, dtype), 1e-12 if dtype is torch.float64 else 1e-6
        )


def test_the_device_works_as_a_context_and_as_default():
    with torch.device(DEVICE):
        tensor = torch.ones(2)
        layer = nn.Linear(2, 2)

    assert tensor.device.type == DEVICE
    assert layer.weight.device.type == DEVICE
    assert lazyrt.device() == tensor.device == torch.device(DEVICE, 0)
    assert torch.ones(2, device=f"{DEVICE}:0").device.index == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_survive_the_way_to_the_device_and_back(dtype):
    source = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)

    moved = lazy(source)

    assert moved.dtype is dtype
    assert torch.equal(moved.cpu(), source)
    assert torch.equal(moved.t().cpu(), source.t())
    assert torch.equal((moved + moved).cpu(), source + source)


@at_once()
def test_conversions_between_dtypes_match_the_cpu():
    for source in (torch.float32, torch.int64, torch.bool):
        values = torch.tensor([0.0, 1.0, 2.7, 100.0]).to(source)
        on_both(lambda d, x: [x.to(dtype) for dtype in DTYPES], values)


def test_to_converts_dtype_and_device_at_once():
    source = grid(2, 2)

    assert_same(source.to(DEVICE, torch.float64), source.double())
    assert lazy(source).to("cpu", torch.int32).dtype is torch.int32
    assert torch.equal(lazy(source).to("cpu", torch.int32), source.int())
    tensor = lazy(source)
    assert tensor.to(DEVICE) is tensor
    assert tensor.to(DEVICE, copy=True) is not tensor


def test_a_transfer_copies_and_never_aliases():
    source = grid(4)
    tensor = lazy(source)
    source.zero_()
    host = tensor.cpu()
    host.zero_()
    array = tensor.numpy()
    array[:] = 0

    assert tensor.tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    "source",
    [
        grid(3, 4).t(),
        grid(3, 4)[:, ::2],
        grid(2, 3, 4).permute(2, 0, 1),
        grid(4).expand(3, 4),
        grid(2, 3, 4, 4).to(memory_format=torch.channels_last),
        grid(6)[2:],
        torch.tensor(3.0),
        torch.zeros(0, 5),
        torch.zeros(2, 0).t(),
    ],
)
def test_a_tensor_of_any_layout_can_be_moved(source):
    on_both(lambda d, x: x.to(d), source)
    on_both(lambda d, x: x.to(d) * 2, source)
    assert torch.equal(lazy(source).cpu(), source)


def test_channels_last_is_kept_through_ops():
    def program(device, x):
        y = x.to(memory_format=torch.channels_last)
        return [y, y * 2, y.contiguous(), y + x, y.relu()]

    on_both(program, grid(2, 3, 4, 4))


@pytest.mark.parametrize("moved", ["input", "weight", "neither"])
def test_a_convolution_gives_the_layout_that_the_cpu_gives(moved):
    last = {"memory_format": torch.channels_last}

    def program(device, x, w):
        x = x.contiguous(**last) if moved == "input" else x.clone()
        w = w.contiguous(**last) if moved == "weight" else w.clone()
        x, w = x.requires_grad_(), w.requires_grad_()
        y = nn.functional.conv2d(x, w)
        y.square().sum().backward()
        return y.detach(), x.grad

    on_both(program, grid(2, 3, 4, 4) / 10, grid(2, 3, 3, 3) / 10)


# ---------------------------------------------------------------- views, in place


VIEW_CHAINS = {
    "select": lambda x: x[1],
    "slice": lambda x: x[1:3],
    "steps": lambda x: x[:, ::2],
    "negative": lambda x: x[-1],
    "transpose": lambda x: x.t(),
    "transpose-select": lambda x: x.t()[2],
    "view": lambda x: x.view(2, -1),
    "view-slice": lambda x: x.view(2, 2, 3)[:, 1],
    "reshape": lambda x: x.reshape(-1)[2:7],
    "flatten": lambda x: x.flatten()[3:],
    "unsqueeze": lambda x: x.unsqueeze(1)[:, 0, 1:],
    "squeeze": lambda x: x.unsqueeze(0).squeeze(0)[1:],
    "permute": lambda x: x.view(2, 2, 3).permute(2, 0, 1)[1],
    "diagonal": lambda x: x.diagonal(),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "chunk": lambda x: x.chunk(2)[1],
    "split": lambda x: x.split([1, 3])[1],
    "unbind": lambda x: x.unbind(1)[2],
    "as_strided": lambda x: x.as_strided((2, 2), (4, 1), 1),
    "as_strided-of-a-slice": lambda x: x[1:].as_strided((2, 2), (3, 1)),
    "unfold": lambda x: x.unfold(1, 2, 1)[:, 1],
    "detach": lambda x: x.detach()[1:],
    "data": lambda x: x.data[1],
    "view_as": lambda x: x.view_as(torch.ones(3, 4)),
    "ellipsis": lambda x: x[..., 1],
    "none": lambda x: x[None, 1:],
    "swapaxes": lambda x: x.swapaxes(0, 1)[0],
    "movedim": lambda x: x.movedim(0, 1)[1],
    "unflatten": lambda x: x.unflatten(0, (2, 2))[1],
    "expand_as": lambda x: x.expand(1, 4, 3)[0, 1],
    "ravel": lambda x: x.ravel()[::3],
    "tensor_split": lambda x: x.tensor_split(3)[1],
    "hsplit": lambda x: x.hsplit(3)[1],
    "t-view": lambda x: x.t().t().view(-1)[:4],
    "mT": lambda x: x.mT[1:],
}

WRITES = {
    "add_": lambda v: v.add_(10),
    "mul_": lambda v: v.mul_(v),
    "fill_": lambda v: v.fill_(-1),
    "zero_": lambda v: v.zero_(),
    "copy_": lambda v: v.copy_(torch.zeros((), device=v.device)),
    "setitem": lambda v: v.__setitem__(..., 7.0),
    "chain": lambda v: v.add_(1).mul_(2).sub_(3),
}


@pytest.mark.parametrize("write", thinned(WRITES, 4))
def test_writing_through_a_view_changes_its_base_as_on_the_cpu(write):
    def program(device, base, view):
        aside = base[0]
        part = view(base)
        WRITES[write](part)
        return [base, part, aside, base.view(-1)]

    with at_once():
        for view in VIEW_CHAINS.values():
            on_both(partial(program, view=view), grid(4, 3))


def test_a_view_sees_later_writes_to_its_base_and_to_its_siblings():
    def program(device, base, view):
        part = view(base)
        before = part.clone()
        base.mul_(3)
        sibling = base.view(-1)
        sibling[1:5].add_(100)
        return [before, part, part + 0, base]

    with at_once():
        for view in VIEW_CHAINS.values():
            on_both(partial(program, view=view), grid(4, 3))


def test_views_stay_views_across_barriers():
    def program(device, *bases):
        views = VIEW_CHAINS.values()
        parts = [view(base) for view, base in zip(views, bases, strict=True)]
        lazyrt.mark_step()
        for part in parts:
            part.add_(5)
        lazyrt.mark_step()
        for base in bases:
            base.mul_(2)
        lazyrt.mark_step()
        for part in parts:
            part.sub_(1)
        return [*bases, *parts]

    on_both(program, *[grid(4, 3) for _ in VIEW_CHAINS])


def test_views_survive_the_death_of_their_base():
    def program(device):
        view = torch.arange(12.0, device=device).view(3, 4)[1:, ::2]
        lazyrt.mark_step()
        view.add_(1)
        other = view[0]
        lazyrt.mark_step()
        return [view, other]

    on_both(program)


def test_view_dtype_and_complex_views_write_back():
    def program(device, x):
        bits = x.view(torch.int32)
        y = x.clone()
        y.view(torch.int32).bitwise_xor_(1 << 31)
        z = torch.complex(x, x)
        torch.view_as_real(z)[..., 1] = 5.0
        pairs = x.clone()
        pairs.view(torch.complex64)[0] *= 2j
        truth = x > x[0, 1]
        truth.view(torch.int16)[1] = 0
        return [bits, y, z, z.real, z.imag, pairs, truth]

    on_both(program, grid(2, 2))


def test_in_place_metadata_ops_match_the_cpu():
    def program(device, x):
        a, b, c = x.clone(), x.clone(), x.clone()
        a.t_()
        b.transpose_(0, 1).add_(1)
        c.unsqueeze_(0)
        d = c.clone().squeeze_()
        return [a, b, c, d]

    on_both(program, grid(2, 3))


def test_the_version_counter_catches_a_saved_tensor_that_was_modified():
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x.exp()
    z = y * y
    y.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_in_place_on_a_leaf_that_requires_grad_is_refused():
    x = torch.ones(3, device=DEVICE, requires_grad=True)

    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x.add_(1)


def test_a_write_of_another_layout_keeps_the_layout_of_its_target():
    def program(device, x):
        a = torch.zeros(3, 4, device=device)
        a.copy_(x.t())
        b = torch.zeros(3, 4, device=device)
        b.copy_(torch.tensor(2.0, device=device))
        c = torch.zeros(3, 4, device=device)[:, ::2]
        c.add_(1)
        d = torch.zeros(4, 3, device=device).t()
        d.add_(torch.ones(3, 4, device=device))
        e = torch.zeros(3, 4, device=device)
        e[:] = x.t()
        f = torch.zeros(4, 3, device=device)
        f.t().copy_(torch.ones(3, 4, device=device))
        return [
            *(a, a.view(-1), b, b.view(2, 6), b.t(), c, c[0], c.t()),
            *(d, d.t().view(-1), d.reshape(-1), e.view(-1)[1:], f.view(-1)),
        ]

    on_both(program, grid(4, 3))


def test_writing_into_data_changes_the_parameter():
    def program(device, x):
        parameter = nn.Parameter(x)
        parameter.data.mul_(2)
        parameter.data[0] = 9
        shared = parameter.detach()
        shared.add_(1)
        return [parameter.detach()]

    on_both(program, grid(3))


def test_assigning_data_replaces_the_contents():
    def program(device, x):
        parameter = nn.Parameter(x)
        old = parameter.data
        parameter.data = torch.zeros(2, 2, device=device)
        return [parameter.detach(), old]

    on_both(program, grid(3))


@pytest.mark.parametrize("target", ["new", "same", "wrong", "view"])
def test_out_arguments_are_written_and_resized(target):
    def program(device, x):
        base = torch.zeros(3, 4, device=device)
        out = {
            "new": lambda: torch.empty(0, device=device),
            "same": lambda: torch.zeros(4, device=device),
            "wrong": lambda: base.clone().resize_(0),
            "view": lambda: base[1],
        }[target]()
        result = torch.add(x, 1, out=out)
        assert result is out
        return [out, base]

    on_both(program, grid(4))


def test_out_with_two_results_and_with_another_dtype():
    def program(device, x):
        values = torch.empty(0, device=device)
        indices = torch.empty(0, dtype=torch.int64, device=device)
        torch.max(x, 0, out=(values, indices))
        wide = torch.empty(4, dtype=torch.float64, device=device)
        torch.mul(x[0], 2, out=wide)
        return [values, indices, wide]

    on_both(program, grid(3, 4))


def test_out_of_a_narrower_kind_is_refused_as_on_the_cpu():
    for device in ("cpu", DEVICE):
        out = torch.zeros(3, dtype=torch.int64, device=device)
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.add(torch.ones(3, device=device), 1, out=out)


WIDER_OUT = {
    "mm": lambda x, out: torch.mm(x, x, out=out),
    "abs": lambda x, out: torch.abs(x, out=out),
    "gather": lambda x, out: torch.gather(x, 0, (x > 9).long(), out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "add": lambda x, out: torch.add(x, 1, out=out),
}


@pytest.mark.parametrize("op", WIDER_OUT)
def test_out_of_a_wider_kind_gets_the_converted_result(op):
    x = torch.tensor([[1.5, 2.0], [3.0, 4.0]])
    out = torch.zeros(0, dtype=torch.float64, device=DEVICE)

    WIDER_OUT[op](x.to(DEVICE), out)

    expected = torch.zeros(0)
    WIDER_OUT[op](x, expected)
    assert out.flatten().tolist() == pytest.approx(expected.flatten().tolist())


def test_of_two_outs_none_is_written_where_one_is_refused():
    x = torch.tensor([[1.0, 3.0], [4.0, 2.0]], device=DEVICE)
    where = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    wrong = torch.zeros(2, dtype=torch.int64, device=DEVICE)

    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.max(x, 1, out=(wrong, where))

    assert where.tolist() == [0, 0]


def test_copy_works_in_all_directions():
    def program(device, x):
        a = torch.zeros(2, 3, device=device)
        a.copy_(x)
        b = torch.zeros(2, 3, device=device)
        b.copy_(x.cpu())
        c = torch.zeros(2, 3, dtype=torch.int64, device=device)
        c.copy_(x)
        d = torch.zeros(4, 2, 3, device=device)
        d.copy_(x)
        d[1].copy_(x.cpu() * 2)
        e = torch.zeros(3, 2, device=device).t()
        e.copy_(x.cpu())
        f = torch.zeros(2, 3, device=device)
        f[:, 1].copy_(torch.tensor([5, 6]))
        return [a, b, c, d, e, f]

    on_both(program, grid(2, 3))
    host = torch.zeros(2, 3)
    assert host.copy_(lazy(grid(2, 3))) is host
    assert torch.equal(host, grid(2, 3))
    part = torch.zeros(2, 4)
    part[:, 1:].copy_(lazy(grid(2, 3)))
    assert torch.equal(part[:, 1:], grid(2, 3))


def test_a_failed_copy_leaves_its_target_alone():
    tensor = torch.ones(3, device=DEVICE)

    with pytest.raises(RuntimeError):
        tensor.copy_(torch.ones(4))

    assert tensor.tolist() == [1.0, 1.0, 1.0]


def test_overlapping_writes_go_in_order():
    def program(device, x):
        x[1:] = x[:-1].clone()
        x[0] += x[1]
        x[:2], x[2:] = x[2:].clone(), x[:2].clone()
        return [x]

    on_both(program, grid(4))


def test_set_and_resize_match_the_cpu():
    def program(device, x):
        a = torch.empty(0, device=device)
        a.set_(x)
        b = x.clone()
        b.resize_(2)
        c = x.clone().resize_as_(torch.ones(2, 2, device=device))
        return [a, b, c]

    on_both(program, grid(4))


def test_storages_tell_whether_tensors_share_memory():
    a = torch.ones(4, device=DEVICE)
    b, c = a.view(2, 2), a.clone()

    assert a.is_set_to(a)
    assert a._base is None
    assert b._base is a
    assert c._base is None
    assert a._is_view() is False
    assert b._is_view() is True


# ---------------------------------------------------------------- indexing


INDEXING = {
    "rows": lambda x, i, m: x[i],
    "pairs": lambda x, i, m: x[i, i],
    "column": lambda x, i, m: x[:, i],
    "mixed": lambda x, i, m: x[i, 1:],
    "gap": lambda x, i, m: x.view(2, 2, 4)[i[:2] % 2, :, i[:2]],
    "list": lambda x, i, m: x[[0, 2]],
    "negative": lambda x, i, m: x[-i - 1],
    "mask": lambda x, i, m: x[m],
    "row-mask": lambda x, i, m: x[m[:, 0]],
    "gather": lambda x, i, m: x.gather(1, i.view(1, 3).expand(4, 3)),
    "take": lambda x, i, m: x.take(i),
    "index_select": lambda x, i, m: x.index_select(1, i),
    "where": lambda x, i, m: torch.where(m, x, -x),
    "nonzero": lambda x, i, m: m.nonzero(),
    "masked_select": lambda x, i, m: x.masked_select(m),
    "take_along_dim": lambda x, i, m: torch.take_along_dim(x, x.argsort(1), 1),
    "scalar": lambda x, i, m: x[i[0], i[1]],
    "bool": lambda x, i, m: x[True],
    "2d": lambda x, i, m: x[i.view(3, 1), i],
    "cpu-index": lambda x, i, m: x[torch.tensor([0, 3])],
    "cpu-mask": lambda x, i, m: x[:, torch.tensor([True, False, True, False])],
}


@at_once()
def test_reading_by_index_matches_the_cpu():
    i = torch.tensor([2, 0, 3])

    for index in INDEXING.values():
        on_both(lambda d, *given: index(*given), grid(4, 4), i, grid(4, 4) > 6)  # noqa: B023


def _set(index, value):
    def write(x, i, m):
        x[index(i, m)] = value(x)

    return write


INDEXED_WRITES = {
    "rows": _set(lambda i, m: i, lambda x: 5.0),
    "pairs": _set(lambda i, m: (i, i), lambda x: x[0, :3] * 2),
    "column": _set(lambda i, m: (slice(None), i), lambda x: x[:, :3] + 1),
    "mask": _set(lambda i, m: m, lambda x: -1.0),
    "mask-tensor": _set(lambda i, m: m, lambda x: torch.zeros((), device=x.device)),
    "index_put": lambda x, i, m: x.index_put_((i,), x[:3] * 3),
    "cpu-index": lambda x, i, m: x.__setitem__(torch.tensor([3, 1]), 2.0),
    "accumulate": lambda x, i, m: x.index_put_(
        (i % 2,), x[:3].clone(), accumulate=True
    ),
    "index_add": lambda x, i, m: x.index_add_(0, i % 2, x[:3].clone()),
    "index_copy": lambda x, i, m: x.index_copy_(0, i, x[:3] + 1),
    "index_fill": lambda x, i, m: x.index_fill_(1, i, 8),
    "scatter": lambda x, i, m: x.scatter_(1, i.view(1, 3).expand(4, 3), 2.0),
    "scatter_add": lambda x, i, m: x.scatter_add_(
        1, (i % 2).view(1, 3).expand(4, 3), x[:, :3].clone()
    ),
    "scatter_reduce": lambda x, i, m: x.scatter_reduce_(
        1, (i % 2).view(1, 3).expand(4, 3), x[:, :3].clone(), "amax"
    ),
    "masked_fill": lambda x, i, m: x.masked_fill_(m, float("-inf")),
    "masked_scatter": lambda x, i, m: x.masked_scatter_(m, x.flip(0).clone()),
    "row-of-view": lambda x, i, m: x.t()[1:].__setitem__(i, 0.0),
    "slice": lambda x, i, m: x.__setitem__((slice(1, 3), slice(None, None, 2)), 6),
    "cpu-number": lambda x, i, m: x.__setitem__(0, torch.tensor(4.0)),
}
INDEXED_WRITES["row-of-view"] = lambda x, i, m: x.t()[1:].__setitem__(i % 3, 0.0)


@at_once()
def test_writing_by_index_matches_the_cpu():
    def program(device, x, i, m, write):
        write(x, i, m)
        return [x]

    for write in INDEXED_WRITES.values():
        i = torch.tensor([2, 0, 3])
        on_both(partial(program, write=write), grid(4, 4), i, grid(4, 4) > 6)


# ---------------------------------------------------------------- dtypes, promotion


@at_once()
def test_results_with_python_numbers_have_the_dtypes_of_the_cpu():
    for dtype, number in itertools.product(DTYPES, (2, -1, 2.5, True, 1 + 2j)):
        if dtype is torch.float16 and isinstance(number, complex):
            continue  # torch has no complex numbers of 16 bits on the CPU
        outcomes: list[Any] = []
        for device in ("cpu", DEVICE):
            for op in (torch.add, torch.mul, torch.eq):
                y = torch.tensor([1, 2, 3]).to(dtype).to(device)
                try:
                    outcomes.append(op(y, number))
                except RuntimeError as error:
                    outcomes.append(type(error))
        half = len(outcomes) // 2
        for expected, actual in zip(outcomes[:half], outcomes[half:], strict=True):
            if isinstance(expected, torch.Tensor):
                compare_after_the_step(compare, [actual], [expected])
            else:
                assert actual == expected


@at_once()
def test_promotion_of_two_tensors_matches_the_cpu():
    seconds = [torch.bool, torch.uint8, torch.int64, torch.float64, torch.float16]
    for first, second in itertools.product(DTYPES, seconds):
        if first.is_complex and second is torch.float16:
            continue
        a = torch.tensor([1, 0, 1]).to(first)
        b = torch.tensor([1, 1, 0]).to(second)
        on_both(lambda d, a, b: [a + b, a * b.sum(), a[0] + b], a, b)


def test_cpu_numbers_take_part_in_lazy_ops():
    x = grid(3)

    assert_same(lazy(x) * torch.tensor(2.0), x * 2)
    assert_same(torch.tensor(2) - lazy(x), 2 - x)
    assert_same(lazy(x).add_(torch.tensor(1.5)), x + 1.5)
    assert_same(torch.where(lazy(x) > 1, lazy(x), torch.tensor(0.0)), x.where(x > 1, 0))
    assert_same(lazy(x).double() + torch.tensor(1.0), x.double() + 1)
    assert_same(lazy(x) + torch.tensor(1.0, dtype=torch.float64), x + 1)


def test_integer_division_and_remainders_match_the_cpu():
    def program(device, a, b):
        return [
            a / b,
            a // b,
            a % b,
            torch.fmod(a, b),
            torch.div(a, b, rounding_mode="trunc"),
            torch.div(a, b, rounding_mode="floor"),
            a // 2,
            a % 3,
            2 // b,
            2 ** a.abs(),
        ]

    on_both(program, torch.tensor([7, -7, 6, -6]), torch.tensor([2, 2, -4, -4]))
    on_both(program, torch.tensor([7.5, -7.5]), torch.tensor([2.0, -2.0]))


def test_special_floats_match_the_cpu():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0])

    def program(device, x):
        return [
            x.isnan(),
            x.isinf(),
            x.sign(),
            x.relu(),
            torch.maximum(x, x.flip(0)),
            x.clamp(-1, 1),
            1 / x,
            x.nan_to_num(),
            x.signbit(),
            x.argmax(),
            x.sum(),
        ]

    on_both(program, x)


def test_int64_keeps_its_width():
    big = torch.tensor([2**40, -(2**62)])

    on_both(lambda d, x: [x + 1, x * 2, x // 3], big)
    assert lazy(big)[0].item() == 2**40
    assert torch.full((1,), 2**40, device=DEVICE).item() == 2**40
    assert (torch.zeros(1, dtype=torch.int64, device=DEVICE) + 2**40).item() == 2**40


def test_tensors_of_no_dimensions_and_of_no_elements_work():
    def program(device, x):
        empty = x[:0]
        return [
            x.sum(),
            x.sum() + 1,
            empty,
            empty + 1,
            empty.sum(),
            torch.cat([empty, x]),
            empty.view(0, 3),
            x.max() * 2,
            torch.zeros(0, 3, device=device) @ torch.zeros(3, 2, device=device),
            torch.zeros(2, 0, device=device) @ torch.zeros(0, 2, device=device),
        ]

    on_both(program, grid(3))


def test_foreach_ops_match_the_cpu():
    def program(device, a, b):
        torch._foreach_add_([a, b], 1.0)
        torch._foreach_mul_([a, b], [2.0, 3.0])
        torch._foreach_addcmul_([a, b], [a.clone(), b.clone()], [a, b], 0.5)
        torch._foreach_lerp_([a], [b.clone()], 0.25)
        norms = torch._foreach_norm([a, b])
        roots = torch._foreach_sqrt([a, b])
        torch._foreach_div_([a, b], norms)
        torch._foreach_zero_([b])
        return [a, b, *norms, *roots]

    on_both(program, grid(3), grid(3) * 2)


def test_foreach_ops_on_a_tensor_named_twice_match_the_cpu():
    def program(device, x, y):
        torch._foreach_add_([x, x], 1.0)
        torch._foreach_mul_([y[:1], y[1:]], 2.0)
        torch._foreach_add_([y, y[0]], [y.clone(), y[1].clone()])
        return [x, y]

    on_both(program, grid(2), grid(2))


FOREACH = {
    "a number": lambda x, y: torch._foreach_add_([x[:4], y[2:]], 1),
    "a list": lambda x, y: torch._foreach_mul_([x[:2], x[4:]], [x[2:4], y[:2]]),
    "a factor": lambda x, y: torch._foreach_mul_([x[0], x[1:3], x[3:]], y[0]),
    "no write": lambda x, y: torch._foreach_add([x[:4], y[2:]], 1),
}


@pytest.mark.parametrize("apart", FOREACH)
@pytest.mark.parametrize("shared", FOREACH)
def test_lists_are_written_in_order_where_equal_values_shared_no_storage_before(
    apart, shared
):
    def program(device, x):
        one, other, both = x + 1, x + 1, x + 1
        FOREACH[apart](one, other)
        FOREACH[shared](both, both)
        return [one, other, both]

    on_both(program, torch.arange(6.0))


def test_views_side_by_side_are_written_by_one_op():
    x = torch.arange(12.0).to(DEVICE)
    rows = [x[0:4].view(2, 2), x[4:8].view(2, 2).t(), x[8:12:2]]

    names = []

    def note(event):
        names.append(event.op)

    with lazyrt.subscribe(note, lazyrt.observe.events.OpRecorded):
        torch._foreach_add_(rows, 1.0)

    assert names.count("aten._foreach_add.Scalar") == 1
    written = [*range(1, 10), 9, 11, 11]
    assert x.tolist() == [float(number) for number in written]


# ---------------------------------------------------------------- autograd


def gradients(program, *inputs):
    def run(device, *tensors):
        leaves = [tensor.requires_grad_() for tensor in tensors]
        program(*leaves).backward()
        return [leaf.grad for leaf in leaves]

    on_both(run, *inputs)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x * x).sum(),
        lambda x: x.exp().log1p().mean(),
        lambda x: (x @ x.t()).tanh().sum(),
        lambda x: x.softmax(-1)[:, 0].sum(),
        lambda x: x.view(-1)[2:7].prod(),
        lambda x: x[torch.tensor([0, 0, 1])].sum(),
        lambda x: torch.cat([x, x * 2], 1).var(),
        lambda x: x.max(1).values.sum() + x.min(),
        lambda x: x.clone().add_(1).mul_(x).sum(),
        lambda x: x.expand(2, 3, 3).norm(),
        lambda x: x.sort(1).values[:, 0].sum(),
        lambda x: x.cumsum(0).std(),
        lambda x: torch.where(x > 4, x, x * x).sum(),
        lambda x: x.logsumexp(0).sum(),
        lambda x: nn.functional.layer_norm(x, (3,)).pow(3).sum(),
        torch.linalg.norm,
        lambda x: torch.einsum("ij,kj->ik", x, x).diagonal().sum(),
    ],
)
def test_gradients_match_the_cpu(program):
    gradients(program, grid(3, 3))


def test_gradients_add_up_over_backward_calls():
    def program(device, x):
        x.requires_grad_()
        (x * 2).sum().backward()
        lazyrt.mark_step()
        (x * x).sum().backward()
        first = x.grad.clone()
        x.grad.zero_()
        y = (x**3).sum()
        y.backward(retain_graph=True)
        y.backward()
        return [first, x.grad]

    on_both(program, grid(3))


def test_double_backward_matches_the_cpu():
    def program(device, x):
        x.requires_grad_()
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * x).sum(), x, create_graph=True)
        penalty = second.norm()
        penalty.backward()
        return [first.detach(), second.detach(), x.grad]

    on_both(program, grid(3))


def test_functional_transforms_match_the_cpu():
    def program(device, x):
        def energy(v):
            return (v.sin() * v).sum()

        jacobian = torch.autograd.functional.jacobian(lambda v: v**2, x)
        hessian = torch.autograd.functional.hessian(energy, x)
        return [jacobian, hessian]

    on_both(program, grid(3))


def test_func_grad_and_vmap_match_the_cpu():
    def program(device, x):
        def energy(v):
            return (v.sin() * v).sum()

        return [
            torch.func.grad(energy)(x[0]),
            torch.func.vmap(energy)(x),
            torch.func.vmap(torch.func.grad(energy))(x),
            torch.func.jvp(energy, (x[0],), (x[1],))[1],
        ]

    on_both(program, grid(3, 3))


def add_one(parameter):
    parameter.grad.add_(1)


def test_hooks_see_and_replace_gradients():
    def program(device, x):
        seen = []
        x.requires_grad_()
        y = x * 2
        y.register_hook(lambda g: g * 3)
        x.register_hook(lambda g: seen.append(g.clone()))
        x.register_post_accumulate_grad_hook(add_one)
        y.retain_grad()
        (y * y).sum().backward()
        return [x.grad, y.grad, *seen]

    on_both(program, grid(3))


def test_module_hooks_run_with_lazy_tensors():
    def program(device, x):
        torch.manual_seed(0)
        layer = nn.Linear(3, 2).to(device)
        seen = []
        layer.register_forward_hook(lambda m, i, o: seen.append(o.detach()))
        layer.register_full_backward_hook(lambda m, i, o: seen.extend(o))
        layer(x.requires_grad_()).sum().backward()
        return seen

    on_both(program, grid(4, 3))


def test_no_grad_and_inference_mode_are_respected():
    x = torch.ones(3, device=DEVICE, requires_grad=True)

    with torch.no_grad():
        y = x * 2
        y.add_(1)
    with torch.inference_mode():
        z = x * 2
        z.mul_(2)
        w = torch.ones(2, device=DEVICE)
        w[0] = 5

    assert not y.requires_grad
    assert z.is_inference()
    assert y.tolist() == [3.0] * 3
    assert z.tolist() == [4.0] * 3
    assert w.tolist() == [5.0, 1.0]
    with pytest.raises(RuntimeError, match="Inference tensors"):
        (z * x).sum().backward()


def test_detach_shares_values_and_cuts_gradients():
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = (x * 2).detach()
    z = x * y

    z.sum().backward()

    assert not y.requires_grad
    assert grad_of(x).tolist() == [2.0] * 3


def test_requires_grad_needs_a_float_as_on_the_cpu():
    with pytest.raises(RuntimeError, match="floating point"):
        torch.ones(2, dtype=torch.int64, device=DEVICE).requires_grad_()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


class AddInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_custom_functions_match_the_cpu():
    gradients(lambda x: Cube.apply(x).sum(), grid(3))
    gradients(lambda x: AddInPlace.apply(x * 2).sum(), grid(3))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_matches_the_cpu(use_reentrant):
    def program(device, x):
        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).to(device)
        x.requires_grad_()
        checkpoint(block, x, use_reentrant=use_reentrant).sum().backward()
        return [x.grad, block[0].weight.grad, block[2].bias.grad]

    on_both(program, grid(2, 3))


def test_checkpointing_draws_the_same_dropout_again():
    x = torch.ones(64, device=DEVICE, requires_grad=True)
    masks = []

    def block(x):
        y = nn.functional.dropout(x, 0.5)
        masks.append(y.detach())
        return y * y

    checkpoint(block, x, use_reentrant=False).sum().backward()

    assert len(masks) == 2
    assert torch.equal(masks[0].cpu(), masks[1].cpu())
    assert torch.equal(grad_of(x), masks[0].cpu() * 4)


def test_clipping_gradients_matches_the_cpu():
    for foreach in (None, True, False):

        def program(device, x, y, foreach=foreach):
            parameters = [nn.Parameter(x), nn.Parameter(y)]
            for parameter in parameters:
                parameter.grad = parameter.detach() * 2
            norm = nn.utils.clip_grad_norm_(parameters, 1.0, foreach=foreach)
            nn.utils.clip_grad_value_(parameters[:1], 0.01, foreach=foreach)
            return [norm, *(parameter.grad for parameter in parameters)]

        on_both(program, grid(3), grid(2, 2))


@pytest.mark.lazy_only("counts barriers")
def test_clipping_gradients_reads_nothing():
    parameter = nn.Parameter(torch.ones(3, device=DEVICE))
    parameter.grad = torch.ones(3, device=DEVICE)

    nn.utils.clip_grad_norm_([parameter], 1.0)

    assert lazyrt.is_pending(parameter.grad)
    assert lazyrt.counters()["executions"] == 0


# ---------------------------------------------------------------- autocast


def test_autocast_casts_products_down_and_losses_up():
    x = torch.randn(4, 3, device=DEVICE)
    layer = nn.Linear(3, 2).to(DEVICE)

    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        y = layer(x)
        z = y.softmax(-1)
        loss = nn.functional.mse_loss(y, torch.zeros(4, 2, device=DEVICE))
        with torch.autocast(DEVICE, enabled=False):
            plain = layer(x)
    loss.backward()

    assert y.dtype is torch.bfloat16
    assert z.dtype is torch.float32
    assert loss.dtype is torch.float32
    assert plain.dtype is torch.float32
    assert layer(x).dtype is torch.float32
    assert grad_of(layer.weight).dtype is torch.float32
    torch.testing.assert_close(y.float().cpu(), plain.cpu(), rtol=0.05, atol=0.05)


def test_autocast_gives_what_it_gives_on_the_cpu():
    def run(device):
        torch.manual_seed(0)
        layer = nn.Linear(8, 4).to(device)
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).to(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = layer(x).float().pow(2).mean()
        loss.backward()
        return loss.detach().cpu(), grad_of(layer.weight)

    expected, actual = run("cpu"), run(DEVICE)

    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=0.02)


# ---------------------------------------------------------------- modules


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, i):
        return self.head(self.embed(i))


def test_moving_a_module_keeps_tied_weights_tied():
    model = Tied()

    model.to(DEVICE)

    assert model.head.weight is model.embed.weight
    assert len(list(model.parameters())) == 1
    model.to("cpu")
    assert model.head.weight is model.embed.weight
    assert model.embed.weight.device.type == "cpu"


@pytest.mark.parametrize(
    "place", [(DEVICE,), (torch.float64,), (DEVICE, torch.float64)]
)
def test_a_conversion_on_one_device_keeps_the_tensors_below_parameters(place):
    model = nn.Linear(2, 2).to(DEVICE)
    parameters = list(model.parameters())
    below = [parameter._cdata for parameter in parameters]

    model.to(*place)

    assert [parameter._cdata for parameter in model.parameters()] == below
    assert model.weight is parameters[0]
    assert model.weight.dtype is place[-1] or place == (DEVICE,)


def test_an_optimizer_made_before_the_move_stays_valid():
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.embed.weight.detach().clone()
    parameter = model.embed.weight

    model.to(DEVICE)
    model(torch.tensor([1, 2], device=DEVICE)).sum().backward()
    optimizer.step()

    assert model.embed.weight is parameter
    assert optimizer.param_groups[0]["params"][0] is model.embed.weight
    assert not torch.equal(model.embed.weight.detach().cpu(), before)


def test_tied_weights_stay_tied_when_torch_cannot_swap_them():
    import weakref

    model = Tied()
    reference = weakref.ref(model.embed.weight)

    model.to(DEVICE)

    assert model.head.weight is model.embed.weight
    assert model.embed.weight.device.type == DEVICE
    del reference


def test_hooks_of_parameters_move_with_their_module():
    def grads(device):
        module: Any = nn.Linear(2, 1)
        told: list[Any] = []
        nn.init.ones_(module.weight)
        doubling = module.weight.register_hook(lambda grad: grad * 2)
        telling = module.bias.register_post_accumulate_grad_hook(told.append)
        module = module.to(device)
        found = []
        for _ in range(2):
            module.weight.grad = None
            module(torch.ones(3, 2).to(device)).sum().backward()
            found.append(module.weight.grad.tolist())
            doubling.remove()
            telling.remove()
        return found, len(told)

    assert grads(DEVICE) == grads("cpu") == ([[[6.0, 6.0]], [[3.0, 3.0]]], 1)


def test_modules_move_with_their_buffers_dtype_and_gradients():
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model(torch.randn(4, 3)).sum().backward()
    running = model[1].running_mean.clone()

    model.to(DEVICE, torch.float64)

    assert all(p.device.type == DEVICE for p in model.parameters())
    assert all(p.dtype is torch.float64 for p in model.parameters())
    assert model[0].weight.grad.device.type == DEVICE
    assert model[1].num_batches_tracked.dtype is torch.int64
    torch.testing.assert_close(model[1].running_mean.cpu(), running.double())
    model.half()
    assert model[0].weight.dtype is torch.float16
    model.cpu()
    assert model[0].weight.device.type == "cpu"


def test_a_module_without_shapes_moves_and_takes_them_from_its_first_call():
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()).to(DEVICE)
    before = list(model.parameters())

    result = model(torch.ones(2, 4, device=DEVICE))

    assert result.shape == (2, 3)
    assert [type(parameter) for parameter in before] == [nn.Parameter] * 4
    assert list(map(id, before)) == list(map(id, model.parameters()))
    assert {p.device.type for p in (*before, *model.buffers())} == {DEVICE}
    assert model[0].weight.shape == (3, 4)


def test_to_empty_and_meta_modules_can_be_filled():
    with torch.device("meta"):
        model = nn.Linear(3, 2)

    model.to_empty(device=DEVICE)
    model.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})

    assert model(torch.ones(1, 3, device=DEVICE)).tolist() == [[3.0, 3.0]]


def test_state_dicts_travel_between_devices():
    source, target = nn.Linear(3, 2), nn.Linear(3, 2).to(DEVICE)

    target.load_state_dict(source.state_dict())
    back = nn.Linear(3, 2)
    back.load_state_dict(target.state_dict())

    assert torch.equal(target.weight.detach().cpu(), source.weight.detach())
    assert torch.equal(back.weight, source.weight)
    target.load_state_dict(source.state_dict(), assign=True)
    assert target.weight.device.type == "cpu"


def test_optimizer_state_is_saved_and_restored():
    def train(steps, saved=None):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(DEVICE)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if saved is not None:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(1, 3, device=DEVICE)).sum().backward()
            optimizer.step()
        return model, optimizer

    model, optimizer = train(2)
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    resumed, _ = train(2, torch.load(file, weights_only=True))
    straight, _ = train(4)

    torch.testing.assert_close(resumed.weight.cpu(), straight.weight.cpu())


# ---------------------------------------------------------------- saving, copying


def reload(value, **options):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("weights_only", [True, False])
def test_tensors_are_saved_and_loaded(weights_only, dtype):
    tensor = lazy(grid(2, 3).to(dtype)) + 1

    loaded = reload(tensor, weights_only=weights_only)
    on_cpu = reload(tensor, weights_only=weights_only, map_location="cpu")
    moved = reload(tensor.cpu(), weights_only=weights_only, map_location=DEVICE)

    assert_same(loaded, (grid(2, 3) + 1).to(dtype))
    assert on_cpu.device.type == "cpu"
    assert torch.equal(on_cpu, (grid(2, 3) + 1).to(dtype))
    assert_same(moved, (grid(2, 3) + 1).to(dtype))


def test_parameters_and_modules_are_saved_and_loaded():
    model = nn.Linear(3, 2).to(DEVICE)

    state = reload(model.state_dict(), weights_only=True)
    whole = reload(model, weights_only=False)

    assert list(state) == ["weight", "bias"]
    assert state["weight"].device.type == DEVICE
    assert isinstance(whole.weight, nn.Parameter)
    assert whole.weight.requires_grad
    assert torch.equal(whole.weight.detach().cpu(), model.weight.detach().cpu())


@pytest.mark.lazy_only("counts barriers")
def test_saving_does_not_disturb_what_is_pending():
    tensor = torch.ones(2, device=DEVICE) * 2
    fingerprint = lazyrt.pending_graph().fingerprint

    reload(tensor, weights_only=True)
    pickle.loads(pickle.dumps(tensor))  # noqa: S301

    assert lazyrt.is_pending(tensor)
    assert lazyrt.counters()["executions"] == 0
    assert lazyrt.pending_graph(tensor).fingerprint == fingerprint


def test_tensors_are_pickled_by_value():
    tensor = lazy(grid(2, 3)).t()

    copied = pickle.loads(pickle.dumps(tensor))  # noqa: S301

    assert_same(copied, grid(2, 3).t())
    copied.zero_()
    assert tensor[0, 0].item() == 1.0


def test_deep_copies_share_nothing_and_keep_ties():
    model: Any = Tied().to(DEVICE)

    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.embed.weight.zero_()

    assert copied.head.weight is copied.embed.weight
    assert isinstance(copied.embed.weight, nn.Parameter)
    assert copied.head.weight.abs().sum().item() == 0
    assert model.head.weight.abs().sum().item() > 0


def test_deep_copies_of_a_non_leaf_are_refused_as_on_the_cpu():
    x = torch.ones(2, device=DEVICE, requires_grad=True) * 2

    with pytest.raises(RuntimeError, match="Only Tensors created explicitly"):
        copy.deepcopy(x)


def test_shallow_copies_share_their_storage():
    tensor = torch.ones(2, device=DEVICE)
    other = copy.copy(tensor)

    tensor.add_(1)

    assert other.tolist() == [2.0, 2.0]


def test_deep_copies_keep_gradients_and_attributes():
    for device in ("cpu", DEVICE):
        tensor: Any = torch.ones(2, device=device, requires_grad=True)
        (tensor * 3).sum().backward()
        tensor.tag = "mine"

        copied = copy.deepcopy(tensor)

        assert copied.requires_grad
        assert copied.is_leaf
        assert copied.grad.tolist() == [3.0, 3.0]
        assert copied.grad is not tensor.grad
        assert copied.tag == "mine"


# ---------------------------------------------------------------- errors


BAD_CALLS = {
    "shapes": lambda x: x + torch.ones(5, device=x.device),
    "matmul": lambda x: x @ x,
    "view": lambda x: x.view(7),
    "dim": lambda x: x.sum(5),
    "cat": lambda x: torch.cat([x, torch.ones(2, 2, device=x.device)]),
    "index": lambda x: x[9],
    "gather": lambda x: x.gather(0, torch.zeros(1, 1, device=x.device)),
    "dtype": lambda x: torch.nn.functional.embedding(x, x),
    "linear": lambda x: nn.functional.linear(x, torch.ones(2, 9, device=x.device)),
    "bitwise": lambda x: x & x,
    "in-place": lambda x: x.add_(torch.ones(2, 3, 4, device=x.device)),
    "in-place-type": lambda x: torch.ones(2, device=x.device, dtype=torch.int64).add_(
        1.5
    ),
    "stack": lambda x: torch.stack([]),
    "item": lambda x: x.item(),
    "bool": bool,
    "numpy": lambda x: x.requires_grad_().numpy(),
    "conv": lambda x: nn.functional.conv2d(x, x),
    "expand": lambda x: x.expand(5, 5),
    "unknown-size": lambda x: x.reshape(-1, -1),
    "split": lambda x: x.split([1, 1, 1]),
    "setitem": lambda x: x.__setitem__(0, torch.ones(7, device=x.device)),
    "dot": lambda x: torch.dot(x, x),
    "iterate": lambda x: list(x.sum()),
    "permute": lambda x: x.permute(0, 0),
    "repeat": lambda x: x.repeat(2),
    "squeeze": lambda x: x.squeeze(4),
    "unfold": lambda x: x.unfold(0, 9, 1),
    "select": lambda x: x.select(1, 7),
    "topk": lambda x: x.topk(9),
    "len": lambda x: len(x.sum()),
    "unbind": lambda x: x.unbind(4),
    "chunk": lambda x: x.chunk(0),
    "transpose": lambda x: x.transpose(0, 3),
    "diagonal": lambda x: x.diagonal(dim1=0, dim2=0),
    "cross-entropy": lambda x: nn.functional.cross_entropy(
        x, torch.zeros(7, dtype=torch.int64, device=x.device)
    ),
}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_a_bad_call_raises_at_its_own_line_what_the_cpu_raises(call):
    with pytest.raises(Exception) as expected:  # noqa: PT011
        BAD_CALLS[call](grid(2, 3))

    x = lazy(grid(2, 3))
    with pytest.raises(expected.type):
        BAD_CALLS[call](x)

    assert x.sum().item() == 21.0


def test_a_failed_op_leaves_everything_usable():
    x = lazy(grid(2, 3))
    y = x * 2

    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"size|broadcast"):
            y.add_(torch.ones(5, device=DEVICE))

    assert y.tolist() == (grid(2, 3) * 2).tolist()


def test_tensors_of_two_devices_are_refused_by_name():
    x = torch.ones(3, device=DEVICE)

    for call in (
        lambda: x + torch.ones(3),
        lambda: torch.ones(3) + x,
        lambda: torch.cat([x, torch.ones(3)]),
        lambda: torch.ones(3).add_(x),
        lambda: x.add_(torch.ones(3)),
        lambda: torch.ones(2, 3) @ x,
        lambda: nn.functional.linear(torch.ones(1, 3), x.view(1, 3)),
        lambda: torch.where(x > 0, x, torch.ones(3)),
        lambda: torch.add(x, x, out=torch.empty(3)),
        lambda: torch.stack([torch.ones(3), x]),
    ):
        with pytest.raises(RuntimeError, match="device") as caught:
            call()
        assert isinstance(caught.value, lazyrt.LazyRuntimeError)


def test_a_generator_of_another_device_is_refused():
    with pytest.raises((RuntimeError, TypeError), match=r"[Gg]enerator"):
        torch.rand(3, device=DEVICE, generator=torch.Generator())


@pytest.mark.not_eager("eager debug mode refuses the index")
def test_an_index_out_of_range_does_not_crash_the_process():
    x = torch.ones(3, device=DEVICE)

    y = x[torch.tensor([7], device=DEVICE)]

    assert y.shape == (1,)
    assert (x + 1).tolist() == [2.0, 2.0, 2.0]


# ---------------------------------------------------------------- the rest of a tensor


def test_python_protocols_match_the_cpu():
    x = lazy(grid(3))

    assert len(x) == 3
    assert [float(part) for part in x] == [1.0, 2.0, 3.0]
    assert 2.0 in x
    assert 9.0 not in x
    assert int(x[1]) == 2
    assert list(range(5))[lazy(torch.tensor(2))] == 2
    assert complex(x[0]) == 1 + 0j
    assert round(float(x.mean()), 3) == 2.0
    assert hash(x) == hash(x)
    assert x.device.type == DEVICE
    assert x.is_contiguous()
    assert x.layout is torch.strided
    assert x.element_size() == 4
    assert x.nbytes == 12
    assert not x.is_cuda
    assert not x.is_meta
    assert x.is_lazyrt
    assert x.type() is not None


def test_the_text_of_a_tensor_is_that_of_the_cpu_with_the_device():
    x = grid(2, 3) / 3

    assert repr(lazy(x)) == repr(x)[:-1] + ", device='lazyrt:0')"
    y = lazy(x).requires_grad_()
    assert "requires_grad=True" in repr(y)
    assert "grad_fn=<MulBackward0>" in repr(y * 2)
    assert "dtype=torch.float64" in repr(lazy(x.double()))
    assert f"{lazy(x).mean():.3f}" == f"{x.mean():.3f}"
    assert str(lazy(x).mean()) == str(x.mean())[:-1] + ", device='lazyrt:0')"
    assert f"{lazy(x)}".startswith("tensor([[0.3333")
    assert repr(nn.Parameter(lazy(x))).startswith("Parameter containing:\ntensor(")
    assert "size=(0, 2)" in repr(torch.zeros(0, 2, device=DEVICE))


def test_numpy_and_tolist_match_the_cpu():
    import numpy as np

    x = grid(2, 3)

    assert np.array_equal(lazy(x).numpy(), x.numpy())
    assert np.array_equal(np.asarray(lazy(x)), x.numpy())
    assert np.array_equal(lazy(x).requires_grad_().numpy(force=True), x.numpy())
    assert lazy(x).tolist() == x.tolist()
    assert lazy(x).t().tolist() == x.t().tolist()
    assert torch.tensor(lazy(x).sum().item()).item() == 21.0
    assert lazy(x > 2).tolist() == (x > 2).tolist()


def test_tensor_subclasses_and_data_parallel_helpers_work():
    model = nn.Linear(3, 2).to(DEVICE)
    parameters: dict[str, torch.Tensor] = dict(model.named_parameters())

    y = torch.func.functional_call(
        model, parameters, (torch.ones(1, 3, device=DEVICE),)
    )
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 0, model.parameters())

    assert y.shape == (1, 2)
    assert vector.shape == (8,)
    assert model.weight.detach().abs().sum().item() == 0


def test_threads_can_record_at_the_same_time():
    from concurrent.futures import ThreadPoolExecutor

    def work(number):
        x = torch.full((4,), float(number), device=DEVICE)
        for _ in range(20):
            x = x + 1
        return x.sum().item()

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(8)))

    assert results == [4.0 * (number + 20) for number in range(8)]


def test_data_loaders_feed_lazy_models():
    data = torch.utils.data.TensorDataset(grid(8, 3), torch.arange(8) % 2)
    model = nn.Linear(3, 2).to(DEVICE)

    losses = []
    for x, y in torch.utils.data.DataLoader(data, batch_size=4):
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        losses.append(loss.item())

    assert len(losses) == 2
    assert lazyrt.counters()["cpu_fallbacks"] == 0


ERRORS_IN_BACKWARD = """
import torch, lazyrt

class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        raise KeyError("mine")

def leaf():
    return torch.ones(2, device="lazyrt", requires_grad=True)

x = leaf()
y = x * 2
y.register_hook(lambda g: 1 / 0)
try:
    y.sum().backward()
except ZeroDivisionError:
    print("hook")
try:
    Broken.apply(leaf()).sum().backward()
except KeyError:
    print("function")
x = leaf()
y = x * 2
y.register_hook(lambda g: g + torch.ones(5, device="lazyrt"))
try:
    y.sum().backward()
except RuntimeError:
    print("kernel")
x = leaf()
x.register_post_accumulate_grad_hook(lambda p: p.grad @ torch.ones(7, device="lazyrt"))
try:
    (x * 2).sum().backward()
except RuntimeError:
    print("accumulate")
print(x.grad.tolist(), torch.autograd.is_multithreading_enabled())
"""


@pytest.mark.slow
def test_an_error_inside_backward_reaches_the_caller_and_harms_nothing():
    assert run_python(ERRORS_IN_BACKWARD).split() == (
        ["hook", "function", "kernel", "accumulate", "[2.0,", "2.0]", "True"]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.ones(3).to(d),
        lambda d: torch.ones(3, device=DEVICE).to(d),
        lambda d: torch.ones(3, device=d),
        lambda d: torch.empty(3, device=d),
        lambda d: torch.randn(3, device=d),
        lambda d: torch.arange(3, device=d),
        lambda d: torch.zeros_like(torch.ones(3), device=d),
        lambda d: torch.tensor([1.0], device=d),
        lambda d: nn.Linear(2, 2).to(d),
    ],
)
def test_a_device_of_another_index_is_refused(make):
    with pytest.raises(
        lazyrt.errors.DeviceError, match=r"lazyrt:1 was asked for.*'lazyrt'"
    ):
        make("lazyrt:1")

    make("lazyrt:0")


@pytest.mark.not_eager("computes nothing")
@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.float32])
@pytest.mark.parametrize("name", ["xlogy", "xlog1py", "zeta", "chebyshev_polynomial_t"])
def test_a_function_of_a_tensor_and_a_number_is_recorded(name, dtype):
    """Torch hands the number to the kernel of an op on tensors, which takes none itself."""
    function = getattr(torch.special, name)

    for call in (lambda x: function(x, 2.5), lambda x: function(2, x)):
        for x in (torch.ones((), dtype=dtype), torch.ones(3, dtype=dtype)):
            found, expected = call(x.to(DEVICE)), call(x.to("meta"))
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            assert lazyrt.is_pending(found)
