"""Convolutions with groups: equal to the CPU's, and depthwise ones without XLA's groups."""

import re

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

from lazyrt.lowering import convolution
from lazyrt.lowering.convolution import Geometry
from tests.harness import DEVICE, assert_same, thinned

D = torch.float64
LAYERS = {
    "depthwise": lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4, dtype=D),
    "two-for-each": lambda: nn.Conv2d(3, 6, (2, 3), groups=3, dtype=D),
    "strided": lambda: nn.Conv2d(4, 8, 3, stride=(2, 3), padding=2, groups=4, dtype=D),
    "dilated": lambda: nn.Conv2d(4, 4, (3, 2), dilation=(1, 2), groups=4, dtype=D),
    "one-dimension": lambda: nn.Conv1d(4, 4, 4, padding=3, groups=4, dtype=D),
    "three-dimensions": lambda: nn.Conv3d(2, 4, 2, stride=2, groups=2, dtype=D),
    "transposed": lambda: nn.ConvTranspose2d(
        4, 8, 3, stride=(3, 2), padding=1, output_padding=(2, 1), groups=4, dtype=D
    ),
    "transposed-and-dilated": lambda: nn.ConvTranspose1d(
        4, 4, 3, stride=2, padding=5, dilation=2, groups=4, dtype=D
    ),
    "padded-beyond-the-kernel": lambda: nn.Conv1d(4, 4, 2, padding=3, groups=4, dtype=D),
    "groups-of-two": lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2, dtype=D),
    "transposed-groups": lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, dtype=D),
}  # fmt: skip


def trained(make, device, dtype=D):
    """Return a layer's result and the gradients of its input and parameters."""
    torch.manual_seed(0)
    layer = make()
    rank = layer.weight.dim() - 2
    x = torch.randn(2, layer.in_channels, *(7, 9, 6)[:rank], dtype=D)
    layer, x = layer.to(device, dtype), x.to(device, dtype).requires_grad_()
    found = layer(x)
    (found * found.detach().cos()).sum().backward()
    return [found.detach(), x.grad, *(p.grad for p in layer.parameters())]


@pytest.mark.parametrize("name", thinned(LAYERS, 4))
def test_layers_with_groups_are_equal_to_the_cpus(name):
    expected = trained(LAYERS[name], "cpu")

    for mine, theirs in zip(trained(LAYERS[name], DEVICE), expected, strict=True):
        assert_same(mine, theirs, 1e-10)


def test_a_depthwise_layer_of_bfloat16_computes_in_float32():
    expected = trained(LAYERS["depthwise"], "cpu", torch.bfloat16)
    found = trained(LAYERS["depthwise"], DEVICE, torch.bfloat16)

    for mine, theirs in zip(found, expected, strict=True):
        assert_same(mine.float(), theirs.float(), 0.1)


def test_a_batch_without_images_and_one_image_without_a_batch():
    for shape in ((0, 4, 5, 5), (4, 5, 5)):
        x = torch.ones(shape, dtype=D)
        torch.manual_seed(0)
        layer = LAYERS["depthwise"]()
        expected = layer(x)
        assert_same(layer.to(DEVICE)(x.to(DEVICE)), expected, 1e-10)


def groups_given_to_xla(inputs, kernel, groups):
    """Return the groups of the convolutions in a layer's result and two gradients."""
    x, weight = jnp.ones((2, inputs, 5, 5)), jnp.ones(kernel)
    geometry = Geometry((1, 1), [(1, 1)] * 2, (1, 1), (1, 1), groups)

    def step(x, weight):
        result = convolution.convolve(x, weight, geometry)
        d_x = convolution.input_gradient(result, x, weight, geometry)
        return d_x, convolution.kernel_gradient(result, x, weight, geometry)

    text = jax.jit(step).lower(x, weight).as_text()
    found = re.findall(r"(batch|feature)_group_count = (\d+)", text)
    return [
        max(int(b), int(f))
        for (_, b), (_, f) in zip(found[::2], found[1::2], strict=True)
    ]


@pytest.mark.parametrize(
    ("on_cpu", "inputs", "kernel", "groups", "expected"),
    [
        (True, 4, (4, 1, 3, 3), 4, []),
        (True, 4, (6, 2, 3, 3), 2, [2, 2, 1, 1]),
        (False, 4, (4, 1, 3, 3), 4, [4, 4, 4]),
        (False, 4, (6, 2, 3, 3), 2, [2, 2, 2]),
    ],
)
def test_only_on_the_cpu_xla_gets_no_slow_groups(
    monkeypatch, on_cpu, inputs, kernel, groups, expected
):
    monkeypatch.setattr(convolution, "_is_on_cpu", lambda: on_cpu)

    assert groups_given_to_xla(inputs, kernel, groups) == expected
