"""In-place ops that the CPU runs on a view which shows an element more than once.

Most are refused, here as there: `x.expand(3, 4).add_(1)`. Others write only some elements, or
the same number each time, and the CPU lets them through. They are recorded on the storage
itself, flat, at the places that the view shows. A few write each element as often as it is
shown, in an order that is the CPU's own: the CPU runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.frontend.fallback import run_on_cpu
from lazyrt.frontend.torch_compat import DEVICE_TYPE, find_overload, is_lazy
from lazyrt.frontend.views import flat_storage, shows_twice

if TYPE_CHECKING:
    from collections.abc import Sequence

Kernel = Callable[..., Any]

_MATRICES = 3  # dimensions of a plain batch of them


def allow_overlap(name: str, kernel: Kernel | None) -> Kernel | None:
    """Return an op's kernel, extended to views that repeat elements if the CPU takes them.

    Args:
        name: The in-place op, such as `masked_fill_.Scalar`.
        kernel: Its kernel for every other tensor.
    """
    rule = _RULES.get(name)
    if rule is None or kernel is None:
        return kernel

    def either(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if is_lazy(self) and shows_twice(self) and rule(self, *args, **kwargs):
            return self
        result: torch.Tensor = kernel(self, *args, **kwargs)
        return result

    return either


def _storage(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all elements of a tensor's storage, flat, and the place of each that it shows."""
    flat = flat_storage(tensor)
    places = torch.arange(flat.numel(), device=DEVICE_TYPE)
    shown = places.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return flat, shown


# A rule writes and returns True, or returns False for what the CPU refuses too.


def _masked_fill(self: torch.Tensor, mask: torch.Tensor, value: Any) -> bool:
    if torch.broadcast_shapes(self.shape, mask.shape) != self.shape:
        return False
    flat, places = _storage(self)
    unwritten = flat.shape[0]  # one place more, for the elements that keep their number
    targets = torch.where(mask, places, unwritten)
    written = torch.zeros(unwritten + 1, dtype=torch.bool, device=DEVICE_TYPE)
    written.index_fill_(0, targets.flatten(), True)  # noqa: FBT003 - the value
    flat.masked_fill_(written[:unwritten], value)
    return True


def _index_fill(self: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> bool:
    flat, places = _storage(self)
    flat.index_fill_(0, places.index_select(dim, index).flatten(), value)
    return True


def _index_put(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    *flags: bool,
) -> bool:
    if values.numel() == 1 and not any(
        flags[:1]
    ):  # needs no count of a mask's elements
        written = torch.zeros(self.shape, dtype=torch.bool, device=DEVICE_TYPE)
        written[tuple(_spelled(indices))] = True
        return _masked_fill(self, written, values.reshape(()))
    flat, places = _storage(self)
    flat.index_put_((places[tuple(_spelled(indices))],), values, *flags[:1])
    return True


def _spelled(indices: Sequence[torch.Tensor | None]) -> list[Any]:
    """Return an op's index list as one writes it: a slice for each dimension left alone."""
    return [slice(None) if index is None else index for index in indices]


def _is_batch_of_matrices(tensor: torch.Tensor) -> bool:
    """Return whether torch cuts triangles out of a tensor without copying it.

    It takes any layout of up to three dimensions. With more, the batches must lie one behind the
    other; only the first dimension may repeat. What it copies it cannot write back.
    """
    if tensor.dim() <= _MATRICES:
        return True
    step = tensor.shape[-1] * tensor.shape[-2]
    for dim in range(tensor.dim() - _MATRICES, -1, -1):
        if dim == 0 and (tensor.stride(0) == 0 or tensor.shape[0] == 1):
            continue
        if tensor.stride(dim) != step:
            return False
        step *= tensor.shape[dim]
    return True


def _tril(self: torch.Tensor, diagonal: int = 0) -> bool:
    if not _is_batch_of_matrices(self):
        return False
    kept = torch.ones(self.shape, dtype=torch.bool, device=DEVICE_TYPE).tril(diagonal)
    return _masked_fill(self, ~kept, 0)


def _triu(self: torch.Tensor, diagonal: int = 0) -> bool:
    if not _is_batch_of_matrices(self):
        return False
    kept = torch.ones(self.shape, dtype=torch.bool, device=DEVICE_TYPE).triu(diagonal)
    return _masked_fill(self, ~kept, 0)


def _threshold(self: torch.Tensor, threshold: float, value: float) -> bool:
    return _masked_fill(self, self <= threshold, value)


def _conjugate(self: torch.Tensor) -> bool:
    return not self.is_complex()  # a real number is its own


def _nan_to_num(self: torch.Tensor, *_args: Any, **_kwargs: Any) -> bool:
    return not (self.is_complex() or self.is_floating_point())  # nothing to replace


def _on_the_cpu(name: str) -> Callable[..., bool]:
    """Return the rule of an op that the CPU runs, cut and counted as each fallback is."""
    func = find_overload(name)
    assert func is not None

    def rule(*args: Any, **kwargs: Any) -> bool:
        run_on_cpu(func, list(args), kwargs, "it writes an element more than once")
        return True

    return rule


_RULES: dict[str, Callable[..., bool]] = {
    "masked_fill_.Scalar": _masked_fill,
    "masked_fill_.Tensor": _masked_fill,
    "index_fill_.int_Scalar": _index_fill,
    "index_fill_.int_Tensor": _index_fill,
    "index_put_": _index_put,
    "_index_put_impl_": _index_put,
    "tril_": _tril,
    "triu_": _triu,
    "threshold_": _threshold,
    "conj_physical_": _conjugate,
    "nan_to_num_": _nan_to_num,
    **{name: _on_the_cpu(name) for name in ("addmv_", "baddbmm_", "embedding_renorm_")},
}
