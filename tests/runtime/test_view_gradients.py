"""Gradients through writes to views: autograd finds a view's place by sizes, strides, offset."""

import pytest
import torch

import lazyrt
from tests.harness import DEVICE, assert_same, lazy

X = torch.arange(1.0, 13).reshape(4, 3)


def gradients(program, *arguments):
    leaves = [argument.clone().detach().requires_grad_() for argument in arguments]
    moved = [lazy(argument).detach().requires_grad_() for argument in arguments]
    return [
        torch.autograd.grad(out, inputs, torch.linspace(1, 2, out.numel()).reshape(out.shape).to(out.device))
        for inputs in (leaves, moved)
        for out in [program(*inputs)]
    ]  # fmt: skip


def rows(x, z):
    y = x * 2
    y[1:3] = z
    return y


def scaled_columns(x, z):
    y = x * 2
    y[1:, 1:].mul_(z.T)
    return y


def row_of_a_slice(x, z):
    y = x * 2
    y[1:][1].add_(z[0])
    return y


def diagonal(x, z):
    y = x * 2
    y[1:].diagonal().copy_(z[0])
    return y


def transposed_base(x, z):
    y = x.T * 2  # elementwise ops keep the layout: not contiguous
    y[1:, 1:3] = z.T[:2]
    return y


def read_after_write(x, z):
    y = x.new_zeros(6, 3)
    y[1:3] = z
    y[0] = y[2]
    view = y[3:]
    view.copy_(x[1:])
    return y * view[:1]


@pytest.mark.parametrize(
    "program",
    [rows, scaled_columns, row_of_a_slice, diagonal, transposed_base, read_after_write],
)
def test_gradients_through_a_written_view_are_those_of_the_cpu(program):
    expected, found = gradients(program, X, torch.linspace(3, 5, 6).reshape(2, 3))

    for mine, theirs in zip(found, expected, strict=True):
        assert_same(mine, theirs, 1e-6)


def test_a_view_reports_its_place_in_the_base():
    x, y = X.clone(), lazy(X)

    for cpu, mine in (
        (x[1:], y[1:]),
        (x[2], y[2]),
        (x[1:, 1:], y[1:, 1:]),
        (x[1:].T, y[1:].T),
        (x[1:].diagonal(1), y[1:].diagonal(1)),
        (x[2:].view(-1), y[2:].view(-1)),
    ):
        assert mine.storage_offset() == cpu.storage_offset()
        assert mine.stride() == cpu.stride()


def test_as_strided_reads_a_base_that_is_not_contiguous_in_memory_order():
    x, y = X.T.clone(), lazy(X.T.clone())
    assert y.stride() == x.stride()

    assert_same(y.as_strided((2, 2), (3, 1), 1), x.as_strided((2, 2), (3, 1), 1))


def test_conjugates_and_imaginary_parts_are_views():
    def program(x):
        conjugate = x.conj()
        conjugate.imag.add_(1)
        x.mul_(2)
        return [
            x,
            conjugate,
            conjugate * 1,
            conjugate[1:],
            conjugate.imag,
            conjugate.T.real,
        ]

    numbers = torch.complex(X, X.flip(0))

    for mine, theirs in zip(program(lazy(numbers)), program(numbers), strict=True):
        assert_same(mine, theirs.resolve_conj().resolve_neg())


def test_tangents_of_views_are_those_of_the_cpu():
    def derivative(x):
        return torch.func.jvp(lambda v: v.sin() * v, (x[0],), (x[2],))[1]

    assert_same(derivative(X.to(DEVICE)), derivative(X), 1e-6)


def test_a_view_across_a_transposed_base_reads_the_same_before_and_after_a_barrier():
    x, y = X.T.clone(), lazy(X.T.clone())

    assert_same(y.T.view(-1), x.T.view(-1))
    flat = (y + 0).T.view(-1)
    before = flat.tolist()
    y.cpu()
    assert flat.tolist() == before == x.T.reshape(-1).tolist()


def test_a_reshaped_slice_of_a_ready_tensor_reads_its_own_elements():
    """The host's copy has another layout: device strides would lead out of its memory."""
    y = lazy(torch.arange(30.0).reshape(5, 6))
    lazyrt.mark_step()

    column = torch.ops.aten._reshape_alias.default(y[:, 1:2], [5], [6])

    assert column.tolist() == [1.0, 7.0, 13.0, 19.0, 25.0]


def test_a_real_view_of_a_conjugate_of_a_ready_tensor_is_read():
    numbers = torch.complex(X, X.flip(0))
    y = lazy(numbers)
    lazyrt.mark_step()

    assert_same(
        torch.view_as_real(y.conj()), torch.view_as_real(numbers.conj().clone())
    )
