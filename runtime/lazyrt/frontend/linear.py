"""Kernels of linear layers, and of the factorisations of linear algebra.

`aten.linear` is recorded by one kernel, and its derivative by another. torch composes the op of `view`, `t`, `addmm` and `view`: with derivatives 13 kernels for each layer of
a training step. Here the same nodes are recorded without the tensors between them. Where somebody
looks at each op (functorch, forward derivatives, a dispatch mode, a subclass), torch's composite runs.
"""

from __future__ import annotations

import ast
import functools
import math
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lazyrt.config import config
from lazyrt.execution import cache_miss, deferred_asserts
from lazyrt.execution.executor import barrier
from lazyrt.frontend import guard, provenance, reads, record, scalars, value_checks
from lazyrt.frontend.buffers import (
    State,
    View,
    current_value,
    emit,
    state_of,
    value_of,
    wrap,
)
from lazyrt.frontend.guard import over_limit
from lazyrt.frontend.kernels import functional_kernel
from lazyrt.frontend.provenance import Walk, is_library, is_own, outward
from lazyrt.frontend.record import FallbackNeeded, functional, operation
from lazyrt.frontend.torch_compat import (
    aten,
    autograd_node,
    below_autograd,
    create_empty_tensor,
    differentiated_linear,
    is_followed,
)
from lazyrt.ir.live import Buffer, lock, pending
from lazyrt.ir.node import Args, Tables, Value, carried
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from lazyrt.observe.events import SourceLocation


_PLAIN: frozenset[type] = frozenset((torch.Tensor, torch.nn.Parameter))
_MATRIX = 2
_KEEP = True  # the dimension that a sum is over

_view, _t = operation(aten.view.default), operation(aten.t.default)
_addmm, _mm = operation(aten.addmm.default), operation(aten.mm.default)
_unsafe_view = operation(aten._unsafe_view.default)
_sum = operation(aten.sum.dim_IntList)
_PLAIN_VIEW = View  # eager debug mode puts another class under the name
_new: Any = object.__new__
_listeners, _clock = events.op_listeners, events.op_clock
_buffers = pending.buffers


class _Result(NamedTuple):
    """A result: the value that a new buffer gets, and the views of it that lead to the tensor."""

    value: Value
    views: tuple[tuple[Any, Args, Value], ...] = ()


class _Recorded(NamedTuple):
    """What a call has recorded.

    It has no result where nobody asked for one; `nodes` has a value of each op, in order, for those
    who listen.
    """

    results: Args
    nodes: tuple[Value, ...]


_forwards, _backwards = record.composed_tables(), record.composed_tables()


def _record_again(tables: Tables, read: Args) -> _Recorded | None:
    """Record a call that another call site has recorded; None where no such call is known."""
    found: _Recorded | None = tables.known.get(read)
    # What is pending from before the cell has lines of its own: ops are recorded one by one.
    if found is None or carried:
        return None
    record.record_together(found.nodes)
    return found


def linear(
    input: torch.Tensor,  # noqa: A002 - torch's names
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """`aten.linear` for autograd: torch's derivative of the whole op, where nobody looks closer."""
    if (
        input.__class__ in _PLAIN
        and weight.__class__ in _PLAIN
        and (bias is None or (bias.__class__ in _PLAIN and bias.dim() == 1))
        and weight.dim() == _MATRIX
        and input.is_contiguous()  # the composite takes other ops for a turned input
        and not is_followed()
    ):
        return differentiated_linear(input, weight, bias)
    return aten.linear.default.decompose(input, weight, bias)  # type: ignore[no-any-return]


def linear_kernel(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """`aten.linear` below autograd."""
    with lock:
        try:
            x = input.untyped_storage()._lazyrt  # type: ignore[attr-defined]
            w = weight.untyped_storage()._lazyrt  # type: ignore[attr-defined]
            b = None if bias is None else bias.untyped_storage()._lazyrt  # type: ignore[attr-defined]
            key = _read(x, w, b)
            found = _forwards.cache.get(key)
            if found is None:
                found = _recorded_forward(key)
        # A tensor of another device, or a part that runs on the CPU.
        except (AttributeError, FallbackNeeded):
            found = None
        if found is not None:
            made = _tensor(found.results[0], found.nodes)
            _check_room()
            return made
    with below_autograd():
        return aten.linear.default.decompose(input, weight, bias)  # type: ignore[no-any-return]


def _read(x: State, w: State, b: State | None) -> tuple[Value, Value, Value | None]:
    """Return the values of the operands; inputs get their numbers in the order of the composite."""
    if x.value is None and b is not None and len(x.type[0]) != _MATRIX:
        return current_value(x), current_value(w), current_value(b)
    weight = w.value or current_value(w)
    bias = None if b is None else b.value or current_value(b)
    return x.value or current_value(x), weight, bias


def linear_backward(
    self: torch.Tensor,
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """`aten.linear_backward`: the gradients of input, weight and bias that the mask asks for."""
    with lock:
        try:
            x = self.untyped_storage()._lazyrt.value or value_of(self)  # type: ignore[attr-defined]
            g = grad_output.untyped_storage()._lazyrt.value or value_of(grad_output)  # type: ignore[attr-defined]
            w = weight.untyped_storage()._lazyrt.value or value_of(weight)  # type: ignore[attr-defined]
            key = (x, g, w, *output_mask)
            found = _backwards.cache.get(key)
            if found is None:
                found = _recorded_backward(key)
        except (AttributeError, FallbackNeeded):
            found = None
        if found is not None:
            (into_x, into_w, into_b), nodes = found
            gradients = (
                None if into_x is None else _tensor(into_x, nodes),
                None if into_w is None else _tensor(into_w, ()),
                None if into_b is None else _tensor(into_b, ()),
            )
            _check_room()  # of all: a barrier ends the step whose inputs their values read
            return gradients
    with below_autograd():
        if grad_output.dim() > _MATRIX and not grad_output.is_contiguous():
            # A head's gradient is turned: what copies it into rows is what the composite records.
            rows = grad_output.reshape(math.prod(self.shape[:-1]), weight.shape[0])
            return linear_backward(self, rows, weight, output_mask)
        return backward_by_ops(self, grad_output, weight, output_mask)


def backward_by_ops(
    self: torch.Tensor,
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """`linear_backward` of other ops; autograd adds up what the gradient of the bias has too much."""
    rows = math.prod(self.shape[:-1])
    grad = grad_output.reshape(rows, weight.shape[0])
    into_x, into_w, into_b = output_mask
    return (
        grad.mm(weight.conj()).view(self.shape) if into_x else None,
        grad.t().mm(self.reshape(rows, weight.shape[1]).conj()) if into_w else None,
        grad if into_b else None,
    )


def _tensor(result: _Result, nodes: tuple[Value, ...]) -> torch.Tensor:
    """Return a new tensor for a recorded result."""
    value = result.value
    # What the classes' own `__init__` do, without a call for each of them.
    buffer = _new(Buffer)
    buffer.value = value
    buffer.data = buffer.meta = None
    buffer.version = 0
    _buffers[buffer] = None
    state: State = buffer
    for op, args, value in result.views:  # the last one is the tensor's
        view = _new(View)
        view.parent, view.op, view.args, view._value = state, op, args, value
        view.base, view._version, view.offset = buffer, 0, 0
        if View is not _PLAIN_VIEW:
            view.begin()
        state = view
    if _listeners:
        ended = time.perf_counter_ns()
        if ended - _clock[0] > _clock[1]:
            for node in nodes:
                record.note_recorded(node, ended)
                _clock[0] = ended
        _clock[0] = ended
    if value.strides is not None:
        return wrap(state, value)
    tensor = create_empty_tensor(value.shape, value.dtype)
    tensor.untyped_storage()._lazyrt = state  # type: ignore[attr-defined]
    return tensor


def _check_room() -> None:
    if len(_buffers) + pending.writes > config.max_pending_nodes > 0:
        over_limit()


def _recorded_forward(values: Args) -> _Recorded | None:
    # Eager debug mode makes the two ones of `addmm` inputs, new ones at each call.
    if pending.eager or scalars.rehearses():
        return _forward(*values)
    found = _record_again(_forwards, values)
    if found is None:
        found = _forward(*values)
        if found is not None:
            _forwards.known.setdefault(values, found)
    if found is not None:
        _forwards.cache[values] = found
    return found


def _recorded_backward(values: Args) -> _Recorded | None:
    x, g, w, *mask = values
    flat = turned = None
    if not pending.eager:  # a derivative has the very nodes of its forward call
        turned = _t.cache.get((w,))
        if len(x.shape) > _MATRIX:
            flat = _view.cache.get((x, (math.prod(x.shape[:-1]), x.shape[-1])))
    if scalars.rehearses():
        return _backward(x, g, w, mask, flat, turned)
    read = (*values, flat, turned)
    found = _record_again(_backwards, read)
    if found is None:
        found = _backward(x, g, w, mask, flat, turned)
        if found is not None:
            _backwards.known.setdefault(read, found)
    if found is not None:
        _backwards.cache[values] = found
    return found


def _forward(x: Value, w: Value, b: Value | None) -> _Recorded | None:
    """Record what torch's composite records; None where it takes another way."""
    is_matrix = len(x.shape) == _MATRIX
    if len(w.shape) != _MATRIX or len(x.shape) < _MATRIX:
        return None
    if (b is not None and b.shape != w.shape[:1]) or not (
        is_matrix or x.strides is None
    ):
        return None
    nodes: list[Value] = []
    walk = Walk()

    def recorded(op: Any, *args: Any) -> Any:
        nodes.append(functional(op, args, walk))
        return nodes[-1]

    flat = (math.prod(x.shape[:-1]), x.shape[-1])
    rows = x if is_matrix else recorded(_view, x, flat)
    turned = recorded(_t, w)
    if b is None:
        product = recorded(_mm, rows, turned)
    else:
        product = recorded(_addmm, b, rows, turned, 1, 1)
    shape = (*x.shape[:-1], w.shape[0])
    if is_matrix:
        result = _Result(product)
    elif b is None:
        result = _Result(recorded(_unsafe_view, product, shape))
    else:
        shaped = recorded(_view, product, shape)
        result = _Result(product, ((_view, (shape,), shaped),))
    return _Recorded((result,), tuple(nodes))


def _backward(
    x: Value,
    g: Value,
    w: Value,
    output_mask: Sequence[bool],
    flat: Value | None,
    turned: Value | None,
) -> _Recorded | None:
    """Record what the derivatives of the composite record; None for other layouts.

    `flat` is the input's rows in the forward call, `turned` the weight's transpose there; None
    where that is not known.
    """
    if x.strides is not None or w.strides is not None or w.dtype.is_complex:
        return None
    if len(x.shape) < _MATRIX or len(w.shape) != _MATRIX:
        return None
    if g.strides is not None and len(g.shape) != _MATRIX:
        return None  # rows of it need a copy
    nodes: list[Value] = []
    walk = Walk()

    def recorded(op: Any, *args: Any) -> Any:
        nodes.append(functional(op, args, walk))
        return nodes[-1]

    rows, (outputs, inputs) = math.prod(x.shape[:-1]), w.shape
    is_matrix = len(x.shape) == _MATRIX
    grad = g if len(g.shape) == _MATRIX else recorded(_view, g, (rows, outputs))
    results: list[_Result | None] = [None, None, None]
    if output_mask[0]:
        back = recorded(_mm, grad, recorded(_t, turned or recorded(_t, w)))
        views = (
            () if is_matrix else ((_view, (x.shape,), recorded(_view, back, x.shape)),)
        )
        results[0] = _Result(back, views)
    if output_mask[1]:
        if flat is None:
            flat = x if is_matrix else recorded(_view, x, (rows, inputs))
        product = recorded(_mm, recorded(_t, grad), flat)
        once = recorded(_t, product)
        again = recorded(_t, once)
        results[1] = _Result(product, ((_t, (), once), (_t, (), again)))
    if output_mask[2]:
        total = recorded(_sum, grad, (0,), _KEEP, None)
        shaped = recorded(_view, total, (outputs,))
        results[2] = _Result(total, ((_view, ((outputs,),), shaped),))
    return _Recorded(tuple(results), tuple(nodes))


# ------------------------------------------------------------------------ factorisations
# Kernels of linear algebra that look at more than values: at layouts, or at success.


# How torch's own nodes of backward end; those of a user's `autograd.Function` do not.
_OF_TORCH = "Backward0"
# Above this many elements a factorisation is not worth doing twice to tell at its line.
_MOST_ELEMENTS = 65_536


def check_errors(info: torch.Tensor, api_name: str, *, is_matrix: bool) -> None:
    """`aten._linalg_check_errors`: raise where a factorisation failed.

    One of a small matrix that few ops lead to is looked at now; any other waits for its step, as
    torch's other checks do (`value_checks.py`). Where it may not wait, what is pending runs: a cut
    of the graph, like a fallback and unlike a user's read also inside a step. The `_ex` functions
    of `torch.linalg` return `info` and check nothing.
    """
    if not info.numel():
        return
    site = provenance.user_site(2)
    peeks = _must_peek()
    with lock:
        host = _small_info(info, api_name, site)
        is_pending = host is None and not peeks and state_of(info).is_pending
        if is_pending and _put_off(info, api_name, is_matrix=is_matrix, site=site):
            return
        if is_pending and not _in_derivative():
            barrier(f"{api_name}, which checks for errors", site)
    host = reads.peek(info, site) if host is None else host
    try:
        aten._linalg_check_errors.default(host, api_name, is_matrix=is_matrix)
    except RuntimeError as error:  # its frames are of torch's dispatch
        raise error.with_traceback(None) from None


def _small_info(
    info: torch.Tensor, api_name: str, site: SourceLocation | None
) -> torch.Tensor | None:
    """Return the success of a factorisation that is quickly repeated, None for another."""
    state = state_of(info)
    if not state.is_pending or state.value is None or state.value.node is None:
        return None
    operands = state.value.node.operands
    if sum(math.prod(operand.shape) for operand in operands) > _MOST_ELEMENTS:
        return None
    return reads.small_check(info, state, site, api_name)


def _put_off(
    info: torch.Tensor, api_name: str, *, is_matrix: bool, site: SourceLocation | None
) -> bool:
    """Let a check wait for its step; return whether it may."""
    state = state_of(info)
    if not isinstance(state, Buffer) or not value_checks.can_wait():
        return False
    if would_catch():  # as to try again with more jitter
        return False

    def judge(found: np.ndarray[Any, Any]) -> Exception | None:
        host = torch.from_numpy(found.copy())
        try:
            aten._linalg_check_errors.default(host, api_name, is_matrix=is_matrix)
        except RuntimeError as error:  # LinAlgError is one
            said = str(error)
            return value_checks.explained(type(error), said, site, number)
        return None

    number = pending.number
    deferred_asserts.defer(state, judge)
    return True


def _must_peek() -> bool:
    """Return whether a check may neither wait for its step nor end it; asked without the lock."""
    return (
        config.read_policy == "peek"
        or guard.at_debugger_prompt()
        or guard.interrupts_an_op()
    )


def _in_derivative() -> bool:
    running = autograd_node()
    return running is not None and running[0].endswith(_OF_TORCH)


def _determinant(func: torch._ops.OpOverload) -> Callable[[torch.Tensor], Any]:
    """Return the kernel of a determinant, which also returns the factors.

    Its derivative takes them for factors of the transpose where the matrix is real and
    contiguous, as LAPACK gets such a matrix. So they are.
    """
    plain = functional_kernel(func)
    op, transpose = operation(func), operation(aten.transpose.int)

    def kernel(matrix: torch.Tensor) -> Any:
        if matrix.is_complex() or not matrix.is_contiguous():
            return plain(matrix)
        with lock:
            turned = functional(transpose, (value_of(matrix), -2, -1))
            return emit(functional(op, (turned,)))

    return kernel


FACTORISATIONS: dict[str, Callable[..., Any]] = {
    "_linalg_check_errors": check_errors,
    "_linalg_det": _determinant(aten._linalg_det.default),
    "_linalg_slogdet": _determinant(aten._linalg_slogdet.default),
}


# Whether the program around a line catches what the line raises.
#
# A check that waits for its step raises elsewhere, where nobody expects it: a program that tries a
# factorisation again with more jitter needs the error at its line.

# What `except` may name without meaning the error of a check.
_OTHERS = frozenset(
    ("KeyboardInterrupt", "SystemExit", "GeneratorExit", "StopIteration", "StopAsyncIteration")
)  # fmt: skip


def would_catch() -> bool:
    """Return whether an `except` of the user's, or of a package below the user's line, would catch.

    A shell, a test runner or a trainer that calls the user's code is not asked. A `with` block may
    swallow an exception too, and counts as one that does not.
    """
    is_below = True
    for frame in outward(sys._getframe(1)):
        code = frame.f_code
        is_users = not is_library(code)
        is_below = is_below and not is_users
        asked = is_users or (is_below and not is_own(code))
        tree = cache_miss.tree_of(code.co_filename) if asked else None
        if tree is not None and any(frame.f_lineno in part for part in _tried(tree)):
            return True
    return False


@functools.lru_cache(maxsize=256)
def _tried(tree: ast.Module) -> list[range]:
    """Return the lines of a file whose errors one of its `except` clauses catches."""
    return [
        range(node.lineno, node.handlers[0].lineno)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Try, ast.TryStar))
        and any(map(_catches, node.handlers))
    ]


def _catches(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler is an `except` for what a check may raise."""
    if handler.type is None:
        return True
    parts = (getattr(part, "id", "") for part in ast.walk(handler.type))
    return not _OTHERS.issuperset(filter(None, parts))
