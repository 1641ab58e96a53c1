"""The model of all step benchmarks: a BERT of two layers, random weights, one fixed batch."""

from __future__ import annotations

import gc
import time
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from benchmarks.devices import Device

BATCH, LENGTH, WIDTH, LAYERS, VOCABULARY, HEADS, INNER = 2, 32, 128, 2, 1000, 4, 512
SHAPE_TEXT = (
    f"BERT with {LAYERS} layers, batch {BATCH}, sequence {LENGTH}, hidden {WIDTH}, "
    f"vocabulary {VOCABULARY}, forward + backward + optimizer"
)

# Ten places where a person could stop and print, one for each step.
PLACES = (
    "bert.embeddings",
    "bert.encoder.layer.0.attention.self",
    "bert.encoder.layer.0.attention.output",
    "bert.encoder.layer.0.intermediate",
    "bert.encoder.layer.0.output",
    "bert.encoder.layer.1.attention.self",
    "bert.encoder.layer.1.attention.output",
    "bert.encoder.layer.1.intermediate",
    "bert.encoder.layer.1.output",
    "cls.predictions.transform",
)


def set_size(layers: int, width: int) -> None:
    """Let this process make models of another size."""
    global LAYERS, WIDTH, INNER
    LAYERS, WIDTH, INNER = layers, width, 4 * width


def make_model(layers: int | None = None) -> Any:
    """Return the model on the CPU, the same weights each time, without dropout."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import BertConfig, BertForMaskedLM

        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS if layers is None else layers,
            num_attention_heads=HEADS,
            intermediate_size=INNER,
            max_position_embeddings=2 * LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        config._attn_implementation = "eager"  # noqa: SLF001 - older versions know no other
        model: Any = BertForMaskedLM(config)
        return model.train()


def make_batch() -> dict[str, torch.Tensor]:
    """Return token ids, an attention mask of ones, and the ids as labels, on the CPU."""
    import torch

    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}


class Training:
    """The model, its batch and its optimizer on one device."""

    def __init__(self, device: Device, optimizer: str) -> None:
        import torch

        self.device = device
        self.model = make_model().to(device.torch_name)
        self.model.tie_weights()  # torch's other lazy devices lose the tie in `.to()`
        self.batch = {
            name: tensor.to(device.torch_name) for name, tensor in make_batch().items()
        }
        parameters = self.model.parameters()
        makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
            "adamw": lambda: torch.optim.AdamW(parameters, lr=1e-3),
            "fused adamw": lambda: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
            "sgd": lambda: torch.optim.SGD(parameters, lr=1e-2),
        }
        self.optimizer = makers[optimizer]()
        device.mark_step()
        device.wait()

    def step(self) -> torch.Tensor:
        """Record one training step and return its loss; the step is not ended."""
        self.optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = self.model(**self.batch).loss
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss

    def run(self, steps: int) -> list[float]:
        """Run whole steps and return their losses."""
        losses = []
        for _ in range(steps):
            loss = self.step()
            self.device.mark_step()
            losses.append(float(loss))
        return losses


def time_waiting(training: Training, steps: int) -> dict[str, list[float]]:
    """Time steps that each wait for the device: milliseconds of each part of each step.

    `trace` is the user's own program, `barrier` the end of the step until the device has the
    work, `step` all of it until the device is idle.
    """
    device = training.device
    found: dict[str, list[float]] = {"trace": [], "barrier": [], "step": []}
    gc.collect()
    for _ in range(steps):
        start = time.perf_counter_ns()
        loss = training.step()
        traced = time.perf_counter_ns()
        device.mark_step()
        handed_over = time.perf_counter_ns()
        device.wait()
        done = time.perf_counter_ns()
        del loss
        for name, duration in (
            ("trace", traced - start),
            ("barrier", handed_over - traced),
            ("step", done - start),
        ):
            found[name].append(duration / 1e6)
    return found


def time_pipelined(training: Training, steps: int) -> float:
    """Return the milliseconds for each step of a loop that waits only at its end."""
    device = training.device
    gc.collect()
    start = time.perf_counter_ns()
    for _ in range(steps):
        loss = training.step()
        device.mark_step()
    device.wait()
    duration = time.perf_counter_ns() - start
    del loss
    return duration / 1e6 / steps
