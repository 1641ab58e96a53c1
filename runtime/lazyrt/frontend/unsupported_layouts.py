"""Layouts that the device has no arrays for: sparse, quantised, nested, mkldnn.

torch would answer with "Could not run ... from the 'SparseCsrlazyrt' backend", or make a tensor
that fails later. These kernels refuse at the call, and say what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from lazyrt.errors import DeviceError
from lazyrt.frontend import torch_compat as compat

if TYPE_CHECKING:
    from collections.abc import Callable

_SPARSE = (
    "Convert it with `.to_dense()` before it goes to the device, or keep this part of the "
    "program on the CPU."
)
_GRADIENT = "For an embedding, leave out sparse=True."
_QUANTISED = (
    "Convert it with `.dequantize()` before it goes to the device, or use fake_quantize, which "
    "works on floating-point numbers."
)
_NESTED = (
    "Pad it (`torch.nn.utils.rnn.pad_sequence`, `nested.to_padded_tensor(0.0)`) and "
    "pass a mask, or keep this part of the program on the CPU."
)
_MKLDNN = "Leave `.to_mkldnn()` out: XLA chooses layouts by itself when it compiles."
_ADVICE = {
    "sparse": f"{_SPARSE} {_GRADIENT}",
    "quantised": _QUANTISED,
    "nested": _NESTED,
    "mkldnn": _MKLDNN,
}

# Dispatch keys that such tensors of the device, or together with lazy ones, would have.
_KEYS = {
    "SparsePrivateUse1": "sparse",
    "SparseCsrPrivateUse1": "sparse",
    "QuantizedPrivateUse1": "quantised",
    "NestedTensorPrivateUse1": "nested",
}

# Ops on dense lazy tensors that would make such a tensor.
_MAKERS = {
    "sparse": (
        "_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc",
        "_to_sparse_bsr", "_to_sparse_bsc", "_sparse_compressed_tensor_unsafe",
        "sparse_compressed_tensor.comp_plain_value_size", "sparse_compressed_tensor.comp_plain_value",
        "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_coo_tensor_unsafe",
        "sparse_mask", "_sparse_mask_projection",
    ),
    "quantised": (
        "quantize_per_tensor", "quantize_per_tensor.tensor_qparams", "quantize_per_tensor.tensors",
        "quantize_per_tensor_dynamic", "quantize_per_channel", "_empty_affine_quantized",
        "_empty_per_channel_affine_quantized", "_make_per_tensor_quantized_tensor",
        "_make_per_channel_quantized_tensor",
    ),
    "nested": (
        "_nested_tensor_from_tensor_list", "_nested_tensor_from_mask",
        "_nested_from_padded", "_nested_view_from_buffer", "_nested_view_from_jagged",
    ),
    "mkldnn": ("to_mkldnn", "mkldnn_reorder_conv2d_weight", "mkldnn_reorder_conv3d_weight"),
}  # fmt: skip


def check_layout(tensor: torch.Tensor) -> None:
    """Check a tensor that is to be copied to the device.

    Raises:
        DeviceError: It is sparse, quantised or of mkldnn's layout.
    """
    if tensor.is_quantized:
        raise _error(".to()", "quantised")
    if tensor.layout is not torch.strided:
        kind = "mkldnn" if tensor.is_mkldnn else "sparse"
        raise _error(".to()", kind)


def check_index(device: torch.device | None) -> None:
    """Check the device that an op was asked to put its result on.

    Raises:
        DeviceError: It is a lazy device of another index than 0.
    """
    if device is not None and device.type == compat.DEVICE_TYPE and device.index:
        raise DeviceError(
            f"{device} was asked for, and there is no such device: one process has one lazy "
            f"device, with index 0. Write {compat.DEVICE_TYPE!r}."
        )


def makers() -> dict[str, Callable[..., NoReturn]]:
    """Return the refusing kernel of each op that would make such a tensor, by op name."""
    return {
        name: _refuse(name, kind)
        for kind, names in _MAKERS.items()
        for name in names
        if compat.find_overload(name) is not None
    }


def register() -> list[torch.library.Library]:
    """Register the refusing fallbacks; return the libraries, which must stay alive."""
    libraries = []
    for key, kind in _KEYS.items():
        library = torch.library.Library("_", "IMPL")
        library.fallback(_refuse_any(kind), key)
        libraries.append(library)
    return libraries


def _refuse(name: str, kind: str) -> Callable[..., NoReturn]:
    def kernel(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise _error(f"aten.{name}", kind)

    return kernel


def _refuse_any(kind: str) -> Callable[..., NoReturn]:
    def kernel(op: torch._ops.OpOverload, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise _error(str(op), kind)

    return kernel


def _error(op: str, kind: str) -> DeviceError:
    return DeviceError(
        f"{op} was called for a {kind} tensor on {compat.DEVICE_TYPE}. The device computes with "
        f"dense arrays and has no {kind} ones. {_ADVICE[kind]}"
    )
