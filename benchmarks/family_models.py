"""Small models of many families, each with its batches and loss: real code, random weights.

Sizes are tiny (one or two layers, width 32): what is tried is which ops a family records, and
XLA takes milliseconds to compile each of them. Dropout is off, since the CPU and the device
draw different random numbers.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

Batch = dict[str, Any]

WIDTH, VOCABULARY, ROWS, LENGTH, TARGET_LENGTH, CLASSES, IMAGE = 32, 64, 2, 8, 4, 3, 32


@dataclass(frozen=True, slots=True)
class Cut:
    """A barrier in the middle of a step, which the program's own code asks for.

    Attributes:
        cause: The barrier's cause, such as `read by bool()`.
        code: Text that the line has which asked.
        per_step: How often it does.
    """

    cause: str
    code: str
    per_step: int = 1


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of model, and how a step of its training goes.

    Attributes:
        name: As the table calls it.
        build: Makes the model on the CPU; the caller seeds torch before.
        batch: Returns the CPU inputs of the n-th step.
        loss: Returns the loss of a model on a batch.
        compiles: How many graphs three steps of SGD compile.
        cuts: Barriers that its own code asks for.
        fallbacks: Ops of each step that run on the CPU, since the data decide their shape; one
            with nothing pending before it cuts nothing.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    compiles: int = 1
    cuts: tuple[Cut, ...] = ()
    fallbacks: int = 0


# ------------------------------------------------------------------ batches


def _generator(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(100 + step)


def noise(step: int, *shape: int) -> torch.Tensor:
    """Return normal numbers that depend on the step."""
    return torch.randn(shape, generator=_generator(step))


def classes(step: int, *shape: int) -> torch.Tensor:
    """Return random class numbers, one for each row unless a shape is given."""
    return torch.randint(0, CLASSES, shape or (ROWS,), generator=_generator(step))


def tokens(step: int, length: int = LENGTH) -> torch.Tensor:
    """Return random token ids; the first three ids of the vocabulary are special."""
    return torch.randint(3, VOCABULARY, (ROWS, length), generator=_generator(step))


def text(step: int) -> Batch:
    """Return token ids, a mask of ones, and the ids as labels."""
    ids = tokens(step)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def text_alone(step: int) -> Batch:
    """Return token ids, and the ids as labels."""
    ids = tokens(step)
    return {"input_ids": ids, "labels": ids}


def padded_text(step: int) -> Batch:
    """Return text whose second row ends early."""
    batch = text(step)
    batch["attention_mask"][1, LENGTH - 3 :] = 0
    return batch


def replaced_text(step: int) -> Batch:
    """Return text, and for each token whether it was replaced."""
    batch = text(step)
    return {**batch, "labels": batch["labels"] % 2}


def translation(step: int) -> Batch:
    """Return source tokens and target tokens."""
    return {**text(step), "labels": tokens(step + 10, TARGET_LENGTH)}


def images(step: int) -> Batch:
    """Return colour images and their classes."""
    return {"pixel_values": noise(step, ROWS, 3, IMAGE, IMAGE), "labels": classes(step)}


def segmented_images(step: int) -> Batch:
    """Return colour images and a class for each pixel."""
    labels = classes(step, ROWS, IMAGE, IMAGE)
    return {"pixel_values": noise(step, ROWS, 3, IMAGE, IMAGE), "labels": labels}


def masked_images(step: int) -> Batch:
    """Return colour images, and the numbers that decide which of 16 patches are hidden."""
    hidden = torch.rand(ROWS, 16, generator=_generator(step))
    return {"pixel_values": noise(step, ROWS, 3, IMAGE, IMAGE), "noise": hidden}


def captioned_images(step: int) -> Batch:
    """Return images and texts that belong together."""
    pixels = noise(step, ROWS, 3, IMAGE, IMAGE)
    return {"input_ids": tokens(step), "pixel_values": pixels, "return_loss": True}


def described_images(step: int) -> Batch:
    """Return images, and texts in which the first 16 tokens stand for the image."""
    words = tokens(step).clamp(max=VOCABULARY - 2)
    places = torch.full((ROWS, 16), VOCABULARY - 1)
    return {
        "input_ids": torch.cat([places, words], 1),
        "pixel_values": noise(step, ROWS, 3, IMAGE, IMAGE),
        "labels": torch.cat([torch.full_like(places, -100), words], 1),
    }


def speech(step: int) -> Batch:
    """Return mel spectrograms and their transcripts."""
    labels = tokens(step, TARGET_LENGTH)
    return {"input_features": noise(step, ROWS, 8, 16), "labels": labels}


def waves(step: int) -> Batch:
    """Return sound waves and their classes."""
    return {"input_values": noise(step, ROWS, 400), "labels": classes(step)}


def transcribed_waves(step: int) -> Batch:
    """Return sound waves and their transcripts."""
    labels = torch.randint(1, 20, (ROWS, 3), generator=_generator(step))
    return {"input_values": noise(step, ROWS, 400), "labels": labels}


def series(step: int) -> Batch:
    """Return the past and the future of two measured quantities."""
    past, future = noise(step, ROWS, 16, 2), noise(step + 10, ROWS, 4, 2)
    return {"past_values": past, "future_values": future}


def labelled_tokens(step: int) -> Batch:
    """Return token ids and a class for each row."""
    return {"x": tokens(step), "labels": classes(step)}


# ------------------------------------------------------------------ losses


def own_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the loss that a transformers model computes when it is given labels."""
    loss: torch.Tensor = model(**batch).loss
    return loss


def class_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross entropy of a model that returns scores."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return nn.functional.cross_entropy(model(*inputs.values()), batch["labels"])


# ------------------------------------------------------------------ models


def pretrained(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """Return the maker of a transformers model from a configuration, without weights."""

    def build() -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import transformers

            chosen = getattr(transformers, config)(**settings)
            _switch_dropout_off(chosen)
            made: nn.Module = getattr(transformers, model)(chosen)
        return made.train()

    return build


def _switch_dropout_off(config: Any) -> None:
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
        elif hasattr(value, "to_dict"):
            _switch_dropout_off(value)


class Lstm(nn.Module):
    """A classifier of token sequences: embedding, two LSTM layers, the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores f32[rows, classes] for token ids i64[rows, length]."""
        states, _ = self.lstm(self.embedding(x))
        scores: torch.Tensor = self.head(states[:, -1])
        return scores


class UNet(nn.Module):
    """A segmentation network: two halvings, two doublings, and the skips between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _convolutions(3, 8)
        self.down = nn.ModuleList([_convolutions(8, 16), _convolutions(16, 16)])
        self.up = nn.ModuleList([_convolutions(32, 8), _convolutions(16, 8)])
        self.grow = nn.ModuleList(
            [nn.ConvTranspose2d(16, 16, 2, stride=2), nn.Upsample(scale_factor=2)]
        )
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores f32[rows, classes, h, w] for images f32[rows, 3, h, w]."""
        skips = [self.stem(x)]
        for down in self.down:
            skips.append(down(nn.functional.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(torch.cat([grow(x), skips.pop()], 1))
        scores: torch.Tensor = self.head(x)
        return scores


def _convolutions(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.GroupNorm(2, outputs),
        nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )
