"""Every rule of lazyrt: importing a module of rules registers them."""

from lazyrt.lowering import (
    activations,
    binning,
    collectives,
    convolution,
    creation,
    elementwise,
    fft,
    gradients,
    indexing,
    linalg,
    losses,
    normalisation,
    optimizers,
    partitioning,
    pooling,
    random,
    recurrent,
    reductions,
    shape_ops,
    special,
)
# ruff: noqa: F401
