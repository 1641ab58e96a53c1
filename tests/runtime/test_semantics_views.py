"""Views, writes through them, layouts and storages, next to the CPU."""

import pytest
import torch
from torch import nn

import lazyrt
from tests.harness import DEVICE, lazy
from tests.runtime.semantics import grid, on_both, outcome, slow_but

PAIRS = torch.complex(grid(3), -grid(3))


def overlapping_views_are_read_and_written(d, x):
    windows = x.as_strided((4, 3), (1, 1))
    sums = windows.sum(1)
    x.mul_(2)
    return windows, sums


def strided_view_of_a_transposed_result(d, x):
    return (x.t() + 1).as_strided((2, 3), (3, 1), 1)


def strided_view_of_channels_last_is_written(d, x):
    y = x.view(1, 2, 2, 3).to(memory_format=torch.channels_last) + 0
    part = y.as_strided((4,), (2,), 1)
    part.mul_(-1)
    return y, part


def strided_view_of_a_slice_begins_there(d, x):
    return x[1:].as_strided((2,), (1,)), x[1:].as_strided((2,), (1,), 0)


def strided_view_of_other_bits(d, x):
    bits = x.view(torch.int32)[1:].as_strided((2,), (3,))
    bits.zero_()
    return bits


def windows_see_writes_to_their_base(d, x):
    windows = x.view(3, 4).unfold(1, 2, 2)
    x[0] = -1
    before = windows.clone()
    windows[1] = 5
    return before, windows


def overlapping_windows_of_a_transpose(d, x):
    windows = x.view(4, 3).t().unfold(1, 3, 1)
    x.add_(1)
    return windows


def chain_of_views_is_written(d, x):
    columns = x.view(3, 4)[1:].t()[::2]
    diagonal = columns.unsqueeze(0).expand(1, 2, 2).squeeze(0).diagonal()
    diagonal.mul_(-1)
    diagonal.select(0, 1).add_(100)
    return columns, diagonal


def pieces_are_written(d, x):
    first, second, third = x.split(4)
    first.add_(1)
    third.mul_(second)
    rows = x.view(6, 2).unbind(1)
    rows[0].zero_()
    halves = x.chunk(2)
    halves[1].neg_()
    x.view(3, 4).tensor_split(2, 1)[1].add_(7)
    x.view(3, 4).hsplit(2)[0].mul_(2)
    x.view(3, 4).movedim(0, 1)[2].sub_(1)
    x.narrow(0, 1, 2).neg_()
    return first, second, third, list(rows), list(halves)


def reshapes_alias_where_they_can(d, x):
    grid_ = x.view(3, 4)
    grid_.ravel().add_(1)
    grid_.flatten().mul_(2)
    grid_.reshape(4, 3).neg_()
    grid_.t().reshape(12).zero_()
    grid_.view_as(torch.zeros(6, 2, device=d))[0] = 4
    return grid_


def diagonals_and_triangles_are_written(d, x):
    square = x[:9].view(3, 3)
    square.fill_diagonal_(0)
    torch.diagonal(square, 1).fill_(5)
    square.tril_()
    square.T[0] += 1
    square.mT[1] *= 2
    return square


def metadata_changes_in_place(d, x):
    y = x.view(3, 4)
    y.t_()
    y.unsqueeze_(0)
    y.transpose_(0, 2)
    y.squeeze_()
    y.mul_(2)
    z = x.clone().view(3, 4, 1)
    z.swapaxes_(0, 1).swapdims_(0, 2).squeeze_(0)
    w = x.clone()
    w.as_strided_((3,), (2,), 1)
    return y, z, w


def metadata_of_a_view_changes_in_place(d, x):
    part = x.view(3, 4)[:, :2]
    part.t_()
    part.add_(10)
    return part


def bits_are_viewed_and_written(d, x):
    integers = x.view(torch.int32)
    integers.add_(1)
    return integers, x.view(torch.uint8), x.view(torch.float64), x.view(torch.int16)[2:]


def gradients_through_written_views(d, x):
    x.requires_grad_()
    y = x.view(3, 4) * 1
    y[0] = 0
    y[:, 1] *= 2
    y.t()[2].sin_()
    y[1:, 2:].diagonal()[1:].mul_(5)
    y.sum().backward()
    return y


def gradients_through_overlapping_views(d, x):
    x.requires_grad_()
    windows = x.as_strided((4, 3), (1, 1))
    (windows * windows).sum().backward()
    return windows


def data_is_swapped(d, x):
    a, b = x[:3].clone(), x[3:7].clone()
    a.data, b.data = b.data, a.data
    a.mul_(2)
    return a, b


def data_is_written_under_a_graph(d, x):
    x.requires_grad_()
    y = x * 2
    x.data.add_(5)
    y.sum().backward()
    return y


def set_shows_another_storage(d, x):
    whole = torch.empty(0, device=d).set_(x)
    part = torch.empty(0, device=d).set_(x.untyped_storage(), 2, (2, 2), (2, 1))
    part.mul_(3)
    flat = torch.empty(0, device=d).set_(x.view(3, 4).untyped_storage())
    flat[0] = 9
    other = torch.empty(0, device=d).set_(x, 1, (2,), (2,))
    bits = torch.empty(0, dtype=torch.int32, device=d)
    bits.set_(x.untyped_storage(), 3, (2,), (1,))
    return whole, part, flat, other, bits


def resize_keeps_the_storage(d, x):
    part = x.view(3, 4)
    x.resize_(4)
    x.fill_(0)
    x.resize_(6)
    grown = torch.ones(2, device=d).resize_(2, 1)
    return x, part, grown, x.clone().resize_as_(torch.ones(2, 2, device=d))


def resize_lays_out_as_it_is_told(d, x):
    within = torch.zeros(40, device=d).copy_(x.repeat(4)[:40])
    within.resize_(2, 3, 2, 2, memory_format=torch.channels_last)
    grown = x[4:8].clone().resize_(1, 2, 3, 2, memory_format=torch.channels_last)
    again = x.clone().view(1, 3, 2, 2)
    again.resize_(1, 3, 2, 2, memory_format=torch.channels_last)
    like = torch.zeros(2, 3, 2, 2, device=d).resize_as_(again)
    kept = [t.stride() for t in (within, grown, again, like)]
    # What is longer than its storage was: nobody has written the rest.
    turned = x.view(3, 4).t().resize_(5, 4)[:3]
    part = x[2:4].resize_(16)[:10]
    return within, grown.as_strided((4,), (1,), 0), again, kept, turned, part


def what_has_no_elements_keeps_its_strides(d, x):
    y = x.view(3, 2, 2)
    parts = (
        y[:0], y[:, 2:], y[:, :, 1:1], y.narrow(1, 1, 0), y[1:1, 0], y.transpose(0, 2)[:0],
        y[:0].transpose(0, 1), y[:0].diagonal(0, 1, 2), y[..., :0].permute(2, 0, 1), y[:0, ::2],
        y[:0].chunk(2, 1)[1], y[:0].unfold(1, 2, 1), y.transpose(0, 1)[:0].contiguous(),
        y[:, :0] + 1, y[:0].transpose(1, 2).clone(), torch.zeros(3, 0, device=d),
        torch.empty_strided((0, 3), (1, 7), device=d), y[:0].as_strided((2, 0), (3, 1)),
        y[:0].transpose(1, 2).detach(), y[:0].view(torch.int16), y[:0].cpu().to(d),
        torch.zeros(3, 0, 5, device=d).cpu(), y[:0].transpose(1, 2).cpu(),
    )  # fmt: skip
    y[:0].transpose(1, 2).add_(1)
    y[:, 2:].copy_(torch.ones(2))
    return [(p.stride(), p.storage_offset(), p.is_contiguous()) for p in parts], y


def lazy_clones_are_clones(d, x):
    copy = torch._lazy_clone(x)
    turned = torch._lazy_clone(x.view(3, 4).t())
    x.add_(1)
    return copy + x, turned, turned.stride(), copy.data_ptr() == x.data_ptr()


def out_is_a_view(d, x):
    target = torch.zeros(4, 4, device=d)
    torch.add(x[:4], x[:4], out=target[1])
    torch.mm(x[:9].view(3, 3), x[:9].view(3, 3), out=target[1:, 1:].t())
    return target


def out_is_resized(d, x):
    target = torch.empty(0, device=d)
    result = torch.mul(x, 2, out=target)
    result.add_(1)
    values, where = (
        torch.empty(0, device=d),
        torch.empty(0, dtype=torch.int64, device=d),
    )
    torch.max(x.view(3, 4), 1, out=(values, where))
    joined = torch.empty(0, device=d)
    torch.cat([x, x], out=joined)
    wide = torch.zeros(12, dtype=torch.float64, device=d)
    torch.add(x, 1, out=wide)
    return target, result is target, values, where, joined, wide


def strided_copies_go_by_the_storage(d, x):
    rows, nine = x.view(3, 4).t(), torch.full((2,), 9.0, device=d)
    written = torch.as_strided_scatter(x[2:], nine, (2,), (3,), 1)
    return (
        torch.as_strided_copy(x[2:], (2,), (1,), 1), torch.as_strided_copy(rows, (6,), (2,)),
        torch.as_strided_copy(rows + 1, (3,), (1,)),
        torch.as_strided_scatter(x, nine, (2,), (5,)), written, written.storage_offset(),
        torch.as_strided_scatter(rows, nine, (2,), (1,), 4),
        torch.as_strided_scatter(x[1:3].expand(2, 2), nine, (2,), (1,)),
    )  # fmt: skip


def strided_copies_are_differentiated(d, x):
    x.requires_grad_()
    y = x * 2
    part = torch.as_strided_copy(y[3:], (3,), (2,), 2)
    (part * part).sum().backward()


def out_forms_that_write_through_views(d, x):
    a, b = x[:4].view(2, 2), x[4:10].view(2, 3)
    pieces = [torch.zeros(size, device=d) for size in (5, 0)]
    rows = [torch.zeros(4, device=d) for _ in range(3)]
    torch.split_with_sizes_copy(x, [5, 7], out=pieces)
    torch.unbind_copy(x.view(3, 4), out=rows)
    mean, variance = torch.zeros(2, device=d), torch.ones(2, device=d)
    statistics = [torch.zeros(0, device=d) for _ in range(3)]
    torch.native_batch_norm(
        x.view(2, 2, 3),
        None,
        None,
        mean,
        variance,
        training=True,
        momentum=0.5,
        eps=1e-5,
        out=statistics,
    )
    return (
        torch.kron(a, b, out=torch.zeros(4, 6, device=d)),
        torch.kron(a, b, out=torch.zeros(6, 4, device=d).t()),
        torch.matmul(x.view(3, 2, 2), a[0], out=torch.zeros(0, device=d)),
        torch.matmul(x.view(3, 2, 2), b, out=torch.zeros(3, 4, 3, device=d)[:, ::2]),
        pieces, rows, statistics, mean, variance,
    )  # fmt: skip


def out_gets_the_strides_of_a_new_result(d, x):
    square = x[:9].view(3, 3) + 4 * torch.eye(3, device=d)
    large = torch.zeros(0, device=d).resize_(12)
    same = torch.zeros(3, 3, device=d)
    torch.linalg.inv(square, out=same)
    large.resize_(0)
    return (
        torch.linalg.inv(square, out=torch.zeros(0, device=d)), same,
        torch.linalg.inv(square, out=large),
        torch.cat([x.view(1, 3, 2, 2).to(memory_format=torch.channels_last)] * 2,
                  out=torch.zeros(0, device=d)),
    )  # fmt: skip


def storage_of_any_strides(d, x):
    gaps = torch.empty_strided((2, 3), (10, 2), device=d).fill_(3.0)
    gaps[0, 1] = 7
    transposed = torch.empty_strided((3, 4), (1, 3), device=d)
    transposed.copy_(x.view(3, 4))
    last = torch.empty((1, 2, 3, 3), device=d, memory_format=torch.channels_last)
    last.fill_(1)
    likes = [torch.zeros_like(x.view(3, 4).t()), torch.ones_like(last)]
    return (
        gaps, gaps + 1, gaps.clone(), transposed, transposed + 1,
        transposed.as_strided((12,), (1,)), last + 1, likes,
    )  # fmt: skip


def storage_offsets_are_those_of_the_cpu(d, x):
    y = x.view(3, 4)
    parts = (
        y[1], y[:, 2], y[1:, 2:], y.diagonal(1), y[2].view(2, 2)[1], y.t()[3],
        y.as_strided((2,), (1,), 5), y.unfold(1, 2, 2)[1], y[1:].unsqueeze(0), y.split(2)[1],
        y.unbind(1)[3], y[1].detach(), y[2].data, y[1].expand(3, 4), y[1].view(torch.int16),
        y[2].view(torch.float64), nn.Parameter(y[1]), y.flatten()[3:], y[1] + 0,
    )  # fmt: skip
    return [part.storage_offset() for part in parts]


def versions_count_writes_through_views(d, x):
    before = x._version
    x.add_(1)
    x[0] = 1
    x.view(-1).mul_(2)
    return x._version - before, x[1:]._version - before


def writes_read_before_they_write(d, x):
    x[1:] = x[:-1].clone()
    x.mul_(x[0].clone())
    y = x.view(3, 4)
    y += y.flip(0)
    y[:2], y[1:] = y[1:].clone(), y[:2].clone()
    return y


PROGRAMS = [
    overlapping_views_are_read_and_written, strided_view_of_a_transposed_result,
    strided_view_of_channels_last_is_written, strided_view_of_a_slice_begins_there,
    strided_view_of_other_bits, windows_see_writes_to_their_base,
    overlapping_windows_of_a_transpose, chain_of_views_is_written, pieces_are_written,
    reshapes_alias_where_they_can, diagonals_and_triangles_are_written,
    metadata_changes_in_place, metadata_of_a_view_changes_in_place, bits_are_viewed_and_written,
    gradients_through_written_views, gradients_through_overlapping_views, data_is_swapped,
    data_is_written_under_a_graph, set_shows_another_storage, resize_keeps_the_storage,
    resize_lays_out_as_it_is_told, what_has_no_elements_keeps_its_strides, lazy_clones_are_clones,
    out_is_a_view, out_is_resized, strided_copies_go_by_the_storage,
    strided_copies_are_differentiated, out_forms_that_write_through_views,
    out_gets_the_strides_of_a_new_result, storage_of_any_strides, storage_offsets_are_those_of_the_cpu,
    versions_count_writes_through_views, writes_read_before_they_write,
]  # fmt: skip
# The others are slow: each program is compiled by XLA.
QUICK = {
    overlapping_views_are_read_and_written, strided_view_of_a_transposed_result, chain_of_views_is_written,
    metadata_changes_in_place, gradients_through_written_views, set_shows_another_storage,
    resize_keeps_the_storage, resize_lays_out_as_it_is_told, what_has_no_elements_keeps_its_strides,
    lazy_clones_are_clones, out_is_resized, storage_offsets_are_those_of_the_cpu,
}  # fmt: skip


@pytest.mark.parametrize("program", slow_but(PROGRAMS, QUICK))
def test_views_match_the_cpu(program):
    on_both(program, grid(12) / 4)


def conjugates_are_written(d, x):
    y = x.conj()
    y[1:].mul_(2)
    y.imag.add_(1)
    return y + 0, x.real, (y[:, None].mH @ x[:, None]) + 0


def parts_of_complex_numbers_are_written(d, x):
    x.real.mul_(2)
    x.imag[1:].zero_()
    pairs = torch.view_as_real(x)
    pairs[:, 0].add_(3)
    return pairs, pairs[1].storage_offset(), torch.view_as_complex(pairs)


def gradients_through_parts_of_complex_numbers(d, x):
    x.requires_grad_()
    y = x * 1
    torch.view_as_real(y)[1:, 1] *= 3
    y.imag[2:] *= 2
    torch.view_as_real(y.conj() + 0).sum().backward()
    return y


@pytest.mark.parametrize(
    "program",
    [
        conjugates_are_written,
        parts_of_complex_numbers_are_written,
        gradients_through_parts_of_complex_numbers,
    ],
    ids=lambda p: p.__name__,
)
def test_views_of_complex_numbers_match_the_cpu(program):
    on_both(program, PAIRS)


REFUSED_ON_BOTH = {
    "write to an expanded tensor": lambda x: x[:1].expand(4).add_(1),
    "view across a gap": lambda x: x.view(3, 4)[:, :2].view(6),
    "strided view beyond the end": lambda x: x.as_strided((4, 4), (4, 1)),
    "strided view beyond a view's storage": lambda x: x[2:].as_strided((11,), (1,)),
    "strided view of bits beyond the end": lambda x: x.view(torch.int16).as_strided(
        (25,), (1,)
    ),
    "strided view in place beyond the end": lambda x: x.as_strided_((13,), (1,)),
    "strided copy beyond the end": lambda x: torch.as_strided_copy(x, (2,), (12,)),
    "strided scatter beyond the end": lambda x: torch.as_strided_scatter(
        x, x, (12,), (2,)
    ),
    "strided scatter of another shape": lambda x: torch.as_strided_scatter(
        x, x[:1], (3,), (1,)
    ),
    "out of a product that needs gradients": lambda x: torch.kron(
        x.requires_grad_(), x, out=torch.zeros(0, device=x.device)
    ),
    "stride of minus one": lambda x: x[::-1],
    "negative window": lambda x: x.unfold(0, -1, 1),
    "write to a leaf": lambda x: x.requires_grad_().add_(1),
    "out of another dtype": lambda x: torch.add(
        x, x, out=torch.zeros(12, dtype=torch.int64, device=x.device)
    ),
}


@pytest.mark.parametrize("call", REFUSED_ON_BOTH)
def test_what_the_cpu_refuses_is_refused(call):
    expected = outcome(lambda: REFUSED_ON_BOTH[call](grid(12)))

    found = outcome(lambda: REFUSED_ON_BOTH[call](lazy(grid(12))))

    assert isinstance(expected, type)
    assert isinstance(found, type)
    assert issubclass(found, expected)


# What is refused from arguments alone, in the words of the CPU.
SAID_ON_BOTH = {
    "larger dtype from the middle": lambda x: x[1:3].view(torch.float64),
    "larger dtype of columns from the middle": lambda x: x.view(2, 6)[:, 1:5].view(
        torch.float64
    ),
    "larger dtype of rows of odd length": lambda x: x.view(4, 3)[:, 1:].view(
        torch.float64
    ),
    "larger dtype of columns": lambda x: x.view(2, 6).t().view(torch.float64),
    "negative window": lambda x: x.unfold(0, -1, 1),
    "window of no step": lambda x: x.unfold(0, 2, 0),
    "window beyond the end": lambda x: x.unfold(0, 13, 1),
    "window of another dimension": lambda x: x.unfold(1, 1, 1),
    "channels last of three dimensions": lambda x: x.resize_(
        1, 3, 4, memory_format=torch.channels_last
    ),
}


@pytest.mark.parametrize("call", SAID_ON_BOTH)
def test_what_is_refused_is_refused_in_the_words_of_the_cpu(call):
    with pytest.raises((RuntimeError, IndexError)) as expected:
        SAID_ON_BOTH[call](grid(12))

    with pytest.raises(expected.type) as found:
        SAID_ON_BOTH[call](lazy(grid(12)))

    assert str(found.value) == str(expected.value)


def test_a_strided_view_of_a_conjugate_is_refused_with_advice():
    x = lazy(PAIRS)

    with pytest.raises(
        lazyrt.errors.NoLoweringError, match=r"Call `\.clone\(\)` first"
    ):
        x.conj().as_strided((2,), (1,))


def test_a_source_that_overlaps_its_target_is_read_first():
    # The CPU refuses some of these and leaves others undefined; the device defines them all.
    x = torch.arange(4.0, device=DEVICE)
    x[1:].copy_(x[:-1])

    y = torch.ones(3, 3, device=DEVICE).triu()
    torch.add(y, y.t(), out=y)

    assert x.tolist() == [0.0, 0.0, 1.0, 2.0]
    assert torch.equal(y.cpu(), torch.ones(3, 3).triu() + torch.ones(3, 3).tril())


def test_views_across_a_barrier_keep_their_places():
    def program(d, x):
        y = x * 1
        parts = [y[3:], y.view(3, 4)[:, 1], y.view(3, 4).t()[2][1:]]
        if d == DEVICE:
            lazyrt.mark_step()
        parts[1].mul_(-1)
        if d == DEVICE:
            lazyrt.mark_step()
        parts[0][1:].add_(10)
        return y, parts, [part.storage_offset() for part in parts]

    on_both(program, grid(12))


def test_one_row_of_a_tensor_that_was_repeated_can_be_written():
    """Its stride is 0, and it shows each element once."""

    def program(d, x):
        view = x.expand(2, 3)[:1]
        view.add_(1)
        view.mul_(torch.arange(3.0, device=d))
        return x, view

    on_both(program, grid(3))
