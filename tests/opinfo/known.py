"""All that the sweep over `op_db` knows of single ops, each entry with its reason.

Names are those of `op_db`, with the variant behind a dot: `linalg.lstsq.grad_oriented`. A gap
that closes fails the test until its entry is taken out here.
"""

from __future__ import annotations

import torch

# ------------------------------------------------------------------ how results compare

_DRAWS = "draws numbers; the device has its own counter-based generator"
_LEAVES = "leaves its result uninitialised on the CPU; it is zero here"

RANDOM: dict[str, str] = {
    **dict.fromkeys(
        (
            "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial",
            "normal", "normal.in_place", "normal.number_mean", "rand_like", "randint",
            "randint_like", "randn", "randn_like", "uniform", "nn.functional.alpha_dropout",
            "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
            "nn.functional.feature_alpha_dropout.with_train",
            "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
            "nn.functional.rrelu", "pca_lowrank", "svd_lowrank",
        ),
        _DRAWS,
    ),
    **dict.fromkeys(
        (
            "nn.functional.multi_head_attention_forward",
            "nn.functional.scaled_dot_product_attention",
        ),
        f"{_DRAWS}, where a sample asks for dropout",
    ),
}  # fmt: skip
"""Ops whose values cannot be compared: shapes and dtypes are."""

UNDEFINED: dict[str, str] = dict.fromkeys(
    ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    _LEAVES,
)  # fmt: skip
"""Ops without a value to compare: shapes and dtypes are."""

_TIES = "the order of equal elements is not defined; it is stable here"

TIED: dict[str, str] = dict.fromkeys(("argsort", "msort", "sort"), _TIES)
"""Ops whose values cannot be compared on dtypes whose samples hold equal elements."""

_CANCELS = "cancellation: CPU and XLA sum in another order"

_INEXACT = (
    "torch's derivative takes logarithms: the CPU is as far from float64 as lazyrt"
)

LOOSE: dict[str, tuple[float, str]] = {
    "matrix_exp": (50, "another approximant than torch's Taylor polynomial"),
    "logcumsumexp": (250, _INEXACT),
    "grid_sampler_3d": (10, _CANCELS),
    "nn.functional.ctc_loss": (10, _CANCELS),
    "nn.functional.grid_sample": (10, _CANCELS),
    "nn.functional.layer_norm": (10, _CANCELS),
    "native_layer_norm": (10, _CANCELS),
}
"""Ops compared with the tolerance times a factor."""

_ROUNDS = "the CPU rounds to the half type between partial sums; XLA does at the end"

LOOSE_HALVES: dict[str, tuple[float, str]] = dict.fromkeys(
    ("addbmm", "baddbmm", "grid_sampler_2d", "nn.functional.bilinear", "nn.functional.conv_transpose2d",
     "nn.functional.conv_transpose3d", "nn.functional.grid_sample"),
    (100, _ROUNDS),
)  # fmt: skip
"""The same for float16 and bfloat16."""

# ------------------------------------------------------------------ what is missing

ON_THE_HOST: dict[str, str] = {
    "tensor_split": "torch wants the tensor of indices on the CPU",
}
"""Ops whose arguments after the first stay on the CPU."""

_BY_DATA = "the shape of a result depends on the data"

FALLBACKS: dict[str, str] = {
    "masked_select": _BY_DATA,
    "nonzero": _BY_DATA,
    "unique": _BY_DATA,
    "unique_consecutive": _BY_DATA,
    "argwhere": _BY_DATA,
    "masked_fill": f"masked_select, in the derivative by the filled value: {_BY_DATA}",
    "index_fill": f"unique, in the derivative by the filled value: {_BY_DATA}",
    "index_put": "a boolean mask with many values: the CPU checks how many it needs",
    "prod": f"nonzero, in the derivative: {_BY_DATA}",
    "linalg.lstsq": f"residuals: {_BY_DATA}",
    "linalg.lstsq.grad_oriented": f"residuals: {_BY_DATA}",
}
"""Ops that the CPU runs, forward, backward or both: a counted cut of the graph."""

_SPARSE = "sparse tensors are refused with an error that says so"
_CUDA = "compiles CUDA source: the CPU refuses it, too"

GAPS: dict[str, str] = {
    **dict.fromkeys(("sparse.mm.reduce", "sparse.sampled_addmm", "to_sparse"), _SPARSE),
    **dict.fromkeys(
        (
            "jiterator_2inputs_2outputs", "jiterator_4inputs_with_extra_args", "jiterator_binary",
            "jiterator_binary_return_by_ref", "jiterator_unary",
        ),
        _CUDA,
    ),
    "chalf": "XLA has no complex numbers of 16-bit parts",
}  # fmt: skip
"""Ops that do not work, or not for every sample."""

_STATISTICS = (
    "saved statistics are float32, as torch's meta kernels and other devices say"
)
_COMPLEX32 = "XLA has no complex numbers of 16-bit parts"
_SAVED = dict.fromkeys(
    ("_batch_norm_with_update", "_native_batch_norm_legit", "native_batch_norm",
     "native_layer_norm"),
    _STATISTICS,
)  # fmt: skip

_HALF_EXP = "the CPU's result is NaN; lazyrt computes it in float32"

DTYPE_GAPS: dict[torch.dtype, dict[str, str]] = {
    torch.float16: {
        **_SAVED,
        "complex": _COMPLEX32,
        "matrix_exp": _HALF_EXP,
        "view_as_complex": _COMPLEX32,
    },
    torch.bfloat16: {**_SAVED, "matrix_exp": _HALF_EXP},
}
"""Further gaps of single dtypes."""

_LDL = "the factorisation's rule is for real numbers"

DTYPE_FALLBACKS: dict[torch.dtype, dict[str, str]] = {
    torch.complex64: dict.fromkeys(
        ("linalg.ldl_factor", "linalg.ldl_factor_ex", "linalg.ldl_solve"), _LDL
    ),
}
"""Further ops that the CPU runs, for single dtypes."""

# ------------------------------------------------------------------ wrong calls

_DATA = (
    "whether the call is wrong depends on data, which is not known when it is recorded"
)
_OVERLAP = "an out= that overlaps an operand is written after everything was read"

ACCEPTED: dict[str, tuple[tuple[int, ...], str]] = {
    "cat": ((6, 7, 8), _OVERLAP),
    "gather": ((4, 6, 7), f"4: {_DATA}; {_OVERLAP}"),
    "kthvalue": ((0,), _OVERLAP),
    "masked_select": ((1, 2), _OVERLAP),
    "multinomial": (tuple(range(7, 21)), _DATA),
    "narrow_copy": ((1,), "an IndexError, as of narrow, and a RuntimeError on the CPU"),
    "scatter": ((3,), _DATA),
    "scatter_add": ((3,), _DATA),
    "take": ((1, 2), _OVERLAP),
}
"""Wrong calls, by number in `error_inputs`, that are not refused as on the CPU."""
