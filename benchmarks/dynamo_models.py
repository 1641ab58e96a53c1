"""Miniatures of the ten models over which torch_xla's thread measured its bridge.

Each has the blocks of the model that it is named after, one or two of them, and few channels: XLA
compiles it in a second, and a step takes about as long to record as to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

CHANNELS, IMAGE, CLASSES, ROWS, LENGTH, WIDTH = 8, 16, 10, 2, 16, 32


class Residual(nn.Module):
    """Adds what its layers make of the input to the input."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return f32 of the input's shape."""
        added: torch.Tensor = self.layers(x)
        return x + added


class Fire(nn.Module):
    """Squeezes channels, then widens them by two convolutions side by side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, channels // 2, 1)
        self.one = nn.Conv2d(channels // 2, channels // 2, 1)
        self.three = nn.Conv2d(channels // 2, channels // 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return f32 of the input's shape."""
        x = self.squeeze(x).relu()
        return torch.cat([self.one(x).relu(), self.three(x).relu()], 1)


class Patches(nn.Module):
    """An image as a sequence of patches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, WIDTH, 4, stride=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return f32[rows, patches, width]."""
        y: torch.Tensor = self.layer(x)
        return y.flatten(2).transpose(1, 2)


def _normed(
    ins: int, outs: int, size: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    conv = nn.Conv2d(
        ins, outs, size, stride, padding=size // 2, groups=groups, bias=False
    )
    return nn.Sequential(conv, nn.BatchNorm2d(outs), nn.ReLU())


def _images(*layers: nn.Module, norm: bool = True) -> nn.Module:
    first = (
        _normed(3, CHANNELS, 3, 2)
        if norm
        else nn.Sequential(nn.Conv2d(3, CHANNELS, 3, 2, 1), nn.ReLU())
    )
    ends = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, CLASSES))
    return nn.Sequential(first, *layers, *ends)


def _bottleneck(groups: int = 1) -> nn.Module:
    half = CHANNELS // 2
    middle = _normed(half, half, groups=groups)
    return Residual(_normed(CHANNELS, half, 1), middle, _normed(half, CHANNELS, 1))


def _depthwise(size: int) -> nn.Module:
    wide = 2 * CHANNELS
    middle = _normed(wide, wide, size, groups=wide)
    return Residual(_normed(CHANNELS, wide, 1), middle, _normed(wide, CHANNELS, 1))


def _encoder(*first: nn.Module) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.0, batch_first=True)
    return nn.Sequential(*first, layer, nn.Linear(WIDTH, CLASSES))


def _alexnet() -> nn.Module:
    layers = (nn.MaxPool2d(2), nn.Conv2d(CHANNELS, CHANNELS, 3, 1, 1), nn.ReLU())
    return _images(*layers, norm=False)


def _vgg() -> nn.Module:
    block = (nn.Conv2d(CHANNELS, CHANNELS, 3, 1, 1), nn.ReLU())
    return _images(
        *block, nn.Conv2d(CHANNELS, CHANNELS, 3, 1, 1), nn.MaxPool2d(2), norm=False
    )


def deep(depth: int) -> nn.Module:
    """Return linear layers one after the other, for a sweep over sizes."""
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(*layers)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": lambda: _images(_bottleneck(), _bottleneck()),
    "resnet18": lambda: _images(
        Residual(_normed(CHANNELS, CHANNELS), _normed(CHANNELS, CHANNELS))
    ),
    "BERT_pytorch": lambda: _encoder(nn.Embedding(100, WIDTH)),
    "resnext50_32x4d": lambda: _images(_bottleneck(groups=4)),
    "alexnet": _alexnet,
    "mobilenet_v2": lambda: _images(_depthwise(3)),
    "mnasnet1_0": lambda: _images(_depthwise(5)),
    "vgg16": _vgg,
    "timm_vision_transformer": lambda: _encoder(Patches()),
    "squeezenet1_1": lambda: _images(Fire(CHANNELS), Fire(CHANNELS), norm=False),
}
DEFAULT = ("resnet18", "BERT_pytorch", "squeezenet1_1")


def batch_of(name: str) -> torch.Tensor:
    """Return the input of a model, on the CPU."""
    generator = torch.Generator().manual_seed(1)
    if name == "BERT_pytorch":
        return torch.randint(0, 100, (ROWS, LENGTH), generator=generator)
    return torch.randn(ROWS, 3, IMAGE, IMAGE, generator=generator)
