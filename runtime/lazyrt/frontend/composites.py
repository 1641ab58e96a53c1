"""Ops that torch composes of others by way of data, storages or C++, composed here without these.

They are registered above autograd, so that the ops they are made of get the derivatives.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from lazyrt.errors import ArgumentCheckError
from lazyrt.frontend import (
    argument_checks,
    host_constants,
    provenance,
    reads,
    value_checks,
)
from lazyrt.frontend.buffers import state_of, value_of
from lazyrt.frontend.special import check_outs, write_out
from lazyrt.frontend.torch_compat import (
    aten,
    below_autograd,
    find_overload,
    increment_version,
    plain_dispatch,
    run_composed,
)
from lazyrt.ir.live import Buffer, lock, pending

if TYPE_CHECKING:
    from collections.abc import Callable


# The signatures are torch's.
# ruff: noqa: FBT001, FBT002


def combinations(
    self: torch.Tensor, r: int = 2, with_replacement: bool = False
) -> torch.Tensor:
    """`aten.combinations`: the places follow from the size; torch selects them by a mask."""
    places = torch.arange(self.numel(), device="cpu").reshape(self.shape)
    chosen = torch.combinations(places, r, with_replacement)
    if not chosen.numel():
        return self.new_empty(chosen.shape)
    return self.index_select(0, chosen.reshape(-1).to(self.device)).view(chosen.shape)


def kaiser_window(*args: Any, device: Any = None, **kind: Any) -> torch.Tensor:
    """`aten.kaiser_window`: torch's calls a kernel that only its devices have."""
    return torch.kaiser_window(*args, device="cpu", **kind).to(device)


def into_out(name: str, pure: Callable[..., Any]) -> Callable[..., Any]:
    """Return the out= form of an op whose own composite writes through what is no view here.

    It asks the result's storage whether a view shares it, or writes to `_unsafe_view` of it.
    """
    func = find_overload(name)
    assert func is not None
    outs = [argument.name for argument in func._schema.arguments if argument.is_out]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(out) for out in outs]
        tensors = [t for t in (*args, *targets) if isinstance(t, torch.Tensor)]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise RuntimeError(
                f"{name.partition('.')[0]}(): functions with out=... arguments don't support "
                "automatic differentiation, but one of the arguments requires grad. Leave out= "
                "away, or call it under torch.no_grad()."
            )
        with torch.no_grad():
            made = pure(*args, **kwargs)
        made = made if isinstance(made, tuple) else (made,)
        with lock:
            values = [value_of(result) for result in made]
            check_outs(func, targets, values)
            for target, value in zip(targets, values, strict=True):
                write_out(target, value)
        increment_version(targets)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return kernel


def covariance(
    self: torch.Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None
) -> torch.Tensor:  # fmt: skip
    """`aten.cov`: torch's reads the count of observations; weights it reads in any case."""
    plain = fweights is None and aweights is None
    if not plain or self.dim() > _AXES_OF_SAMPLES or self.dtype is torch.bool:
        given = {"correction": correction, "fweights": fweights, "aweights": aweights}
        result: torch.Tensor = aten.cov.default.decompose(self, **given)
        return result
    rows = self.view(1, -1) if self.dim() < _AXES_OF_SAMPLES else self
    count = rows.shape[1]
    if count - correction <= 0:
        argument_checks.warn_once(
            "cov(): degrees of freedom is <= 0. Correction should be strictly less than the "
            "number of observations."
        )
    centred = rows - (rows.sum(1) / count).unsqueeze(1)
    return (centred @ centred.t().conj() / max(count - correction, 0)).squeeze()


_AXES_OF_SAMPLES = 2  # variables and their observations


def cross_entropy(
    self: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None,
    reduction: int = 1, ignore_index: int = -100, label_smoothing: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """`aten.cross_entropy_loss`: torch selects the weights of smoothed labels by a mask.

    `self` has the classes in dimension 1, or in its only one; `target` has class numbers.
    """
    by_mask = weight is not None and 0.0 < label_smoothing <= 1.0
    if weight is None or not by_mask or reduction != 1 or target.shape == self.shape:
        given = (self, target, weight, reduction, ignore_index, label_smoothing)
        found: torch.Tensor = aten.cross_entropy_loss.default.decompose(*given)
        return found
    dim = min(self.dim() - 1, 1)
    chances = self.log_softmax(dim)
    plain = aten.nll_loss_nd(chances, target, weight, reduction, ignore_index)
    ignored = target == ignore_index
    along = [-1 if k == dim else 1 for k in range(self.dim())]
    all_classes = -(chances * weight.view(along)).sum(dim).masked_fill(ignored, 0.0)
    counted = weight[target.masked_fill(ignored, 0)].masked_fill(ignored, 0.0)
    smooth = all_classes.sum() / counted.sum()
    share = label_smoothing / self.shape[dim]
    result: torch.Tensor = (1 - label_smoothing) * plain + smooth * share
    return result


def istft(*args: Any, **keywords: Any) -> torch.Tensor:
    """`aten.istft`, as torch composes it: `value_checks` knows by this frame what looks at the window."""
    result: torch.Tensor = run_composed(aten.istft.default, *args, **keywords)
    return result


COMPOSITES: dict[str, Callable[..., Any]] = {
    "combinations": combinations,
    "kaiser_window": kaiser_window,
    "kaiser_window.periodic": kaiser_window,
    "kaiser_window.beta": kaiser_window,
    "cov": covariance,
    "istft": istft,
    "cross_entropy_loss": cross_entropy,
    "matmul.out": into_out("matmul.out", torch.matmul),
    "kron.out": into_out("kron.out", torch.kron),
    "native_batch_norm.out": into_out("native_batch_norm.out", torch.native_batch_norm),
    # The device has no nested tensor, so `nn.TransformerEncoder` goes on with the padded one.
    "_nested_tensor_from_mask_left_aligned": lambda _tensor, _mask: False,
}


# ------------------------------------------- ops composed where they are differentiated
# torch asks which elements are zero, or NaN, to choose a formula: a cut of the graph in backward.
# These are right for every value.


def product(self: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """`aten.prod`: torch's derivative of it asks which elements are zero, a cut of the graph."""
    if not _is_differentiated(self):
        with below_autograd():
            return torch.prod(self, dtype=dtype)
    return _halved(self.to(dtype or self.dtype).reshape(-1), 0)


def product_along(
    self: torch.Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:  # fmt: skip
    """`aten.prod.dim_int`; see `product`."""
    rank = max(self.dim(), 1)
    if not _is_differentiated(self) or not -rank <= dim < rank:
        with below_autograd():
            return torch.prod(self, dim, keepdim, dtype=dtype)
    return _halved(self.to(dtype or self.dtype), dim, keepdim=keepdim)


def _is_differentiated(tensor: torch.Tensor) -> bool:
    """Return whether autograd follows what is done to a tensor, in either mode."""
    is_floating = tensor.is_floating_point() or tensor.is_complex()
    backward = torch.is_grad_enabled() and tensor.requires_grad
    return is_floating and (backward or forward_ad._current_level >= 0)


def _halved(x: torch.Tensor, dim: int, *, keepdim: bool = False) -> torch.Tensor:
    """Return the product along a dimension, of halves of halves: each derivative is a product."""
    while x.dim() and (size := x.shape[dim]) > 1:
        half = size // 2
        pairs = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        rest = x.narrow(dim, 2 * half, size % 2)
        x = torch.cat([pairs, rest], dim) if size % 2 else pairs
    one = x.sum(dim, keepdim)
    return one if x.numel() or not one.numel() else one + 1


def cumulative_product(
    self: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """`aten.cumprod`: torch's derivative of it divides by the elements, if none is zero."""
    rank = max(self.dim(), 1)
    if not _is_differentiated(self) or not -rank <= dim < rank:
        with below_autograd():
            return torch.cumprod(self, dim, dtype=dtype)
    x = self.to(dtype or self.dtype)
    if not x.dim():
        return x.clone()
    size, reach = x.shape[dim], 1
    while reach < size:  # each element has the product of `reach` ones up to its own
        more = x.narrow(dim, reach, size - reach) * x.narrow(dim, 0, size - reach)
        x = torch.cat([x.narrow(dim, 0, reach), more], dim)
        reach *= 2
    return x if size > 1 else x.clone()


def _choosing(
    op: Callable[[torch.Tensor], torch.Tensor],
    find: Callable[[torch.Tensor], torch.Tensor],
    share: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return an op that chooses one element: its derivative is shared among equal ones, or NaN."""

    def chosen(self: torch.Tensor) -> torch.Tensor:
        if not _is_differentiated(self) or not self.numel():
            with below_autograd():
                return op(self)
        return _chosen(self, find(self.detach()), share)

    return chosen


def _largest(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.amax(torch.where(mask, x, -torch.inf))


def _smallest(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.amin(torch.where(mask, x, torch.inf))


def _either(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Share among the elements of a mask that may be of either infinity: none is like the rest."""
    smallest = _smallest(x, mask)
    return torch.where(smallest == -torch.inf, smallest, _largest(x, mask))


def _chosen(
    x: torch.Tensor,
    value: torch.Tensor,
    share: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return a value that stands among the elements, with its derivative by each of them."""
    is_nan = x.isnan()
    nans = torch.where(is_nan, x, 0).sum() / is_nan.sum().clamp(min=1)
    return torch.where(value.isnan(), nans.to(x.dtype), share(x, x == value))


def masked_fill(
    self: torch.Tensor, mask: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """`aten.masked_fill.Tensor`: torch's derivative by the value selects by the mask."""
    if value.dim() or not (_is_differentiated(self) or _is_differentiated(value)):
        with below_autograd():
            return torch.masked_fill(self, mask, value)
    return torch.where(mask, value.to(self.dtype), self)


def index_fill(
    self: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """`aten.index_fill.int_Tensor`: torch's derivative by the value asks for unique indices."""
    fits = -self.dim() <= dim < self.dim() and not value.dim()
    if not fits or not (_is_differentiated(self) or _is_differentiated(value)):
        with below_autograd():
            return torch.index_fill(self, dim, index, value)
    sizes = [1] * self.dim()
    sizes[dim] = self.shape[dim]
    filled = torch.zeros(sizes, dtype=torch.bool, device=self.device)
    return torch.where(
        filled.index_fill(dim, index, value=True), value.to(self.dtype), self
    )


# Registered for autograd alone: below it these ops have kernels like any other.
DIFFERENTIATED: dict[str, Callable[..., torch.Tensor]] = {
    "prod": product,
    "prod.dim_int": product_along,
    "cumprod": cumulative_product,
    "max": _choosing(torch.max, torch.amax, _largest),
    "min": _choosing(torch.min, torch.amin, _smallest),
    "median": _choosing(
        torch.median, lambda x: torch.median(x.reshape(-1), 0).values, _either
    ),
    "nanmedian": _choosing(
        torch.nanmedian, lambda x: torch.nanmedian(x.reshape(-1), 0).values, _either
    ),
    "masked_fill.Tensor": masked_fill,
    "index_fill.int_Tensor": index_fill,
}


# --------------------------------------------------------------------- checks of values


def require(
    holds: torch.Tensor, said: str, kind: type[Exception] = ArgumentCheckError
) -> None:
    """Raise where a condition does not hold: now if the host knows, else once its step has run."""
    with lock:
        state = state_of(holds)
        value = state.value
        known = None if value is None else host_constants.on_host(value)
        waits = value_checks.can_wait() and state.is_pending
        if known is None and waits and isinstance(state, Buffer):
            site = provenance.user_site(2)
            error = value_checks.explained(kind, said, site, pending.number)
            value_checks.wait_for(state, error, passes=True)
            return
    if not (reads.peek(holds) if known is None else known):
        raise kind(said)


def checked(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel whose arguments' values are checked as the CPU checks them.

    Numbers are checked at once, and elements where the host knows them; else the check waits for
    its step.
    """
    is_whole = name.startswith("randint") and not name.startswith("randint_like.Tensor")
    if is_whole or name in {"random_.from", "random_.to"}:
        return _in_bounds(kernel)
    found = _DOMAINS.get(name)
    if found is None:
        return kernel
    is_valid, said = found

    def checking(*args: Any, **kwargs: Any) -> Any:
        holds = is_valid(*args)
        if holds is not None:
            require(holds, said)
        return kernel(*args, **kwargs)

    return checking


def _in_bounds(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that refuses the bounds of integers, or warns of them, as the CPU does."""

    def drawing(*args: Any, **kwargs: Any) -> Any:
        first = args[0] if isinstance(args[0], torch.Tensor) else None
        like = kwargs.get("out", first)
        dtype = kwargs.get("dtype") or (torch.int64 if like is None else like.dtype)
        for text in _said_of_bounds(
            dtype, *(arg for arg in args if arg is None or arg.__class__ is int)
        ):
            argument_checks.warn(text)
        return kernel(*args, **kwargs)

    return drawing


@functools.lru_cache
def _said_of_bounds(dtype: torch.dtype, *bounds: int | None) -> tuple[str, ...]:
    """Return what the CPU warns of where it draws integers; no element of them is drawn here."""
    with plain_dispatch(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.empty(0, dtype=dtype, device="cpu").random_(*bounds)
    return tuple([str(each.message).partition(" (Triggered")[0] for each in said])


def _are_probabilities(p: torch.Tensor, *_: object) -> torch.Tensor:
    return ((p >= 0) & (p <= 1)).all()


def _are_weights(weights: torch.Tensor, *_: object) -> torch.Tensor:
    valid = (weights >= 0) & (weights < math.inf)
    return valid.all() & (weights.sum(-1) > 0).all()


def _are_enough(
    x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor
) -> torch.Tensor | None:
    """Return whether there is an element for each place of a mask; None for a wrong call."""
    places = max(x.numel(), mask.numel())
    is_mask = mask.dtype is torch.bool and mask.device == x.device
    if source.numel() >= places or not is_mask:
        return None
    # How often each element of the mask is used.
    return mask.sum() * (places // max(mask.numel(), 1)) <= source.numel()


_OF_BERNOULLI = "bernoulli expects all elements of p to be in [0, 1]"
_OF_MULTINOMIAL = (
    "probability tensor contains either `inf`, `nan` or element < 0, or is an invalid multinomial "
    "distribution (sum of probabilities <= 0)"
)
_OF_NORMAL = "normal expects all elements of std >= 0.0"
_OF_MASKED_SCATTER = (
    "masked_scatter: Number of elements of source < number of ones in mask"
)
# What must hold for the arguments, and what is wrong where it does not.
_Domain = tuple["Callable[..., torch.Tensor | None]", str]
_DOMAINS: dict[str, _Domain] = {
    "bernoulli": (_are_probabilities, _OF_BERNOULLI),
    "bernoulli.out": (_are_probabilities, _OF_BERNOULLI),
    "bernoulli_.Tensor": (lambda _x, p, *_: _are_probabilities(p), _OF_BERNOULLI),
    **dict.fromkeys(("multinomial", "multinomial.out"), (_are_weights, _OF_MULTINOMIAL)),
    **dict.fromkeys(
        ("normal.Tensor_Tensor", "normal.Tensor_Tensor_out", "normal.float_Tensor",
         "normal.float_Tensor_out"),
        (lambda _mean, std, *_: (std >= 0).all(), _OF_NORMAL),
    ),
    **dict.fromkeys(
        ("masked_scatter", "masked_scatter_"), (_are_enough, _OF_MASKED_SCATTER)
    ),
}  # fmt: skip


def assert_async(
    condition: torch.Tensor, message: str = "Expected Tensor to be nonzero"
) -> None:
    """`aten._assert_async`: by its name it may raise later than at its line."""
    if condition.numel() != 1:
        found = "more than one value" if condition.numel() else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {found} is ambiguous")
    require(condition.reshape(()) != 0, message, RuntimeError)


ASSERTIONS: dict[str, Callable[..., None]] = {
    "_assert_async": assert_async,
    "_assert_async.msg": assert_async,
}
