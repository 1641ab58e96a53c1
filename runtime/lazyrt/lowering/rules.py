"""Every rule of lazyrt: importing a module of rules registers them."""

# ruff: noqa: F401

from lazyrt.lowering import (
    activations,
    bessel,
    binning,
    collectives,
    convolution,
    creation,
    elementwise,
    fft,
    foreach,
    gradients,
    indexing,
    ldl,
    linalg,
    losses,
    normalisation,
    optimizers,
    partitioning,
    pooling,
    quantisation,
    random,
    recurrent,
    reductions,
    resampling,
    sampling,
    shape_ops,
    special,
)
