"""Views: kernels of ops whose result aliases their argument, and views made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lazyrt.frontend import record
from lazyrt.frontend.buffers import State, View, current_value, state_of
from lazyrt.frontend.infer import infer
from lazyrt.frontend.kernels import SHIFTS, Kernel, Source, wrap
from lazyrt.frontend.record import functional, operation
from lazyrt.frontend.torch_compat import aten, plain_dispatch

if TYPE_CHECKING:
    from lazyrt.ir.node import Value

VIEW_OPS = frozenset(
    ("view", "transpose.int", "t", "permute", "select.int", "slice.Tensor", "unsqueeze",
     "squeeze", "squeeze.dim", "squeeze.dims", "expand", "diagonal", "view.dtype", "unfold",
     "_reshape_alias", "view_as_real", "view_as_complex", "_conj", "_neg_view")
)  # fmt: skip


def view_kernel(func: torch._ops.OpOverload) -> Kernel:
    """Return the kernel of an op whose result aliases its first argument."""
    op = operation(func)
    source = Source(func, op, in_place=False)
    by_bits = func is aten.view.dtype
    rest = "".join(f"{part}, " for part in source.parts[1:])
    source.scope.update(
        track=track_offset,
        wrap_view=wrap_view,
        Plain=View,
        inferring=torch.is_inference_mode_enabled,
        check_start=check_start,
    )
    return source.build(
        [
            "s = a0.untyped_storage()._lazyrt; v = s.value",
            *(["if s.offset: check_start(a0, a1)"] if by_bits else []),
            "if v is None: v = leaf_of(s)",
            f"a = ({rest})",
            "key = (v, *a)",
            "r = look_up(key)",
            "if r is None: r = miss(op, key)",
            "if listeners: note(r)",
            "w = new(View); w.parent = s; w.op = op; w.args = a; w._value = r; w.offset = 0",
            "w.base = base = s if s.__class__ is Buffer else s.base",
            "w._version = base.version",
            "if w.__class__ is not Plain: w.begin()",
            "if True:" if op.name in SHIFTS else "if s.offset:",
            "  track(w, key)",
            "  if w.offset: return wrap_view(w, r, a0)",
            "if inferring() and not a0.is_inference(): return wrap_view(w, r, a0)",
            "t = create(r.shape, r.dtype)",
            "t.untyped_storage()._lazyrt = w",
            "return t if r.strides is None else restrided(t, r.shape, r.strides)",
        ]
    )


def wrap_view(view: View, value: Value, viewed: torch.Tensor) -> torch.Tensor:
    """Return a view's tensor; that of a normal tensor is a normal one in inference mode, too."""
    if not torch.is_inference_mode_enabled() or viewed.is_inference():
        return wrap(view, value)
    with torch.inference_mode(mode=False):
        return wrap(view, value)


def check_start(tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Check that the elements of a larger dtype may begin where a view begins in its storage.

    Raises:
        RuntimeError: They would begin in the middle of one; in torch's words.
    """
    start = int(tensor.storage_offset())
    if start * tensor.itemsize % dtype.itemsize:
        whole = torch.empty(0, dtype=tensor.dtype, device="meta")
        with plain_dispatch():
            whole.as_strided(tensor.shape, tensor.stride(), start).view(dtype)


def track_offset(view: View, key: tuple[Any, ...]) -> None:
    """Note where in its base's storage a view begins, in elements of the view's own dtype."""
    before, result = key[0].dtype.itemsize, infer(view.op, key)
    start = view.parent.offset * before // result.dtype.itemsize
    view.offset = start + result.offset


def view_state(
    state: State, func: torch._ops.OpOverload, args: tuple[Any, ...]
) -> View:
    """Return a view of a storage, by recording the view op."""
    op = operation(func)
    key = record.complete(op, (current_value(state), *args))
    view = View(state, op, key[1:], functional(op, key))
    track_offset(view, key)
    return view


def make_view(
    viewed: torch.Tensor,
    func: torch._ops.OpOverload,
    args: tuple[Any, ...],
    state: State | None = None,
) -> torch.Tensor:
    """Return a view of a tensor, or of another state of its storage, by recording the view op."""
    view = view_state(state if state is not None else state_of(viewed), func, args)
    return wrap_view(view, view.value, viewed)
