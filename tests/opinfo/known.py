"""All that the sweep over `op_db` knows of single ops, each entry with its reason.

Names are those of `op_db`, with the variant behind a dot: `linalg.lstsq.grad_oriented`. Gaps,
fallbacks and wrong calls that are accepted are strict expected failures: one that closes
fails the tests until its entry is taken out here.
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

TIED: dict[str, int] = {"argsort": 0, "kthvalue": 1, "sort": 0, "topk": 1}
"""Ops whose last result says which elements were chosen, and the position of their `dim`.

Which of several equal elements that is, torch does not define, so the elements are compared.
"""

TIED_GRADIENTS = frozenset(("kthvalue", "msort", "sort", "topk"))
"""Ops whose derivative goes to the chosen elements: the sum over equal elements is compared."""

_SERIES = (
    "the CPU's kernel is that far from scipy in float64; lazyrt is not (test_bessel.py)"
)

CPU_ERRS: dict[str, tuple[float, str]] = dict.fromkeys(
    ("special.bessel_j0", "special.bessel_y1"), (1e-6, _SERIES)
)
"""Ops of which the CPU's own float64 results are inexact, and by how much."""

_CANCELS = "cancellation: CPU and XLA sum in another order"
_ROUNDS = "the CPU rounds to the half type between partial sums; XLA does at the end"

INEXACT: dict[str, str] = {
    "matrix_exp": "torch squares in the matrix's own dtype, lazyrt in float64",
    "logcumsumexp": "torch's derivative takes logarithms, which cancel",
    **dict.fromkeys(
        ("grid_sampler_3d", "nn.functional.ctc_loss", "nn.functional.grid_sample",
         "nn.functional.layer_norm", "native_layer_norm"),
        _CANCELS,
    ),
    **dict.fromkeys(
        ("addbmm", "baddbmm", "grid_sampler_2d", "kron", "nn.functional.bilinear",
         "nn.functional.conv3d", "nn.functional.conv_transpose1d",
         "nn.functional.conv_transpose2d", "nn.functional.conv_transpose3d"),
        _ROUNDS,
    ),
}  # fmt: skip
"""Ops whose results may miss the CPU's where they are no further from those in float64."""

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
    "index_put": "a boolean mask with many values: the CPU checks how many it needs",
    "linalg.lstsq": f"residuals: {_BY_DATA}",
    "linalg.lstsq.grad_oriented": f"residuals: {_BY_DATA}",
}
"""Ops that the CPU runs, forward, backward or both: a counted cut of the graph."""

_TRUTH = "its result is a bool of Python"
_ENDS = "torch reads its ends, or weights, to choose a formula"

READS: dict[str, str] = {
    **dict.fromkeys(("allclose", "equal"), _TRUTH),
    **dict.fromkeys(("cov", "signal.windows.kaiser"), _ENDS),
}
"""Ops that the device computes in a graph that torch cuts by reading a value."""

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

_HALF_EXP = "the CPU's result is NaN; lazyrt computes it in float64"

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
    torch.int64: {"bincount": _BY_DATA},
    torch.complex64: dict.fromkeys(
        ("linalg.ldl_factor", "linalg.ldl_factor_ex", "linalg.ldl_solve"), _LDL
    ),
}
"""Further ops that the CPU runs, for single dtypes."""


def listed(dtype: torch.dtype) -> dict[str, str]:
    """Return what ops of a further dtype are expected to lack, each with its reason."""
    return {**DTYPE_FALLBACKS.get(dtype, {}), **DTYPE_GAPS.get(dtype, {})}


# ------------------------------------------------------------------ wrong calls

_DATA = (
    "whether the call is wrong depends on data, which is not known when it is recorded"
)
_OUT = (
    "an out= of another dtype gets the converted result, one that shares memory with an operand "
    "is written last"
)
ACCEPTED: dict[str, tuple[tuple[int, ...], str]] = {
    "aminmax": ((3,), _OUT),
    "cat": ((6,), _OUT),
    "complex": ((2,), _OUT),
    "kthvalue": ((0,), _OUT),
    "multinomial": ((2, 6), f"{_OUT}; more than 2^24 categories are drawn from, too"),
    "masked_select": ((1, 2), _OUT),
    "take": ((1, 2), _OUT),
    "gather": ((1, 4, 6, 7), f"{_DATA}; {_OUT}"),
    "scatter": ((3,), _DATA),
    "scatter_add": ((3,), _DATA),
}
"""Wrong calls, by number in `error_inputs`, that are not refused as on the CPU."""
