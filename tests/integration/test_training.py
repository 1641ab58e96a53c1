import pytest
import torch

import lazyrt
from lazyrt.observe import events
from tests.harness import DEVICE, cold_start, recorded
from tests.integration.models import MODELS

# The learning rate's factor at each step, over and over: it passes through 1.0 and 0.0.
FACTORS = (2.0, 1.5, 1.0, 1.0, 0.5, 0.0, 0.0, 0.5, 1.0, 0.25)

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.001, foreach=True),
    "adamw-loop": lambda p: torch.optim.AdamW(p, lr=0.001, foreach=False),
}

CASES = [
    ("mlp", "sgd"),
    ("mlp", "adamw"),
    ("mlp", "adamw-loop"),
    ("cnn", "sgd"),
    pytest.param("bert", "adamw", marks=pytest.mark.slow),
]


class Training:
    """A model in training on one device, step by step."""

    def __init__(self, name, optimiser, device):
        self.device = device
        self.model, self.loss, self.batch = MODELS[name]()
        self.model.to(device)
        self.optimizer = OPTIMISERS[optimiser](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: FACTORS[step % len(FACTORS)]
        )
        self.steps = 0

    def step(self):
        batch = [part.to(self.device) for part in self.batch(self.steps)]
        self.optimizer.zero_grad()
        loss = self.loss(self.model, batch)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.steps += 1
        return loss.detach()


def losses(training, steps):
    return torch.stack([training.step().cpu() for _ in range(steps)])


@pytest.mark.parametrize(("model", "optimiser"), CASES)
def test_ten_steps_match_the_cpu_and_no_later_one_compiles(model, optimiser):
    """Steps are one execution each, and the later ones go twice through the factors."""
    expected = losses(Training(model, optimiser, "cpu"), 10)
    cold_start()
    training = Training(model, optimiser, DEVICE)
    lazyrt.reset_counters()

    with recorded(events.CompileFinished) as compiles:
        actual = losses(training, 10)

    counters = lazyrt.counters()
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=0)
    assert counters["executions"] == 10
    assert counters["cpu_fallbacks"] == 0
    assert counters["compiles"] == 1
    assert counters["peek_compiles"] == 0
    assert [event.purpose for event in compiles] == ["step"]
    assert compiles[0].reason.startswith("the first graph of this process")

    further = 2 * len(FACTORS)
    lazyrt.reset_counters()

    losses(training, further)

    counters = lazyrt.counters()
    assert counters["compiles"] == 0
    assert counters["peek_compiles"] == 0
    assert counters["cpu_fallbacks"] == 0
    assert counters["executions"] == counters["cache_hits"] == further


def test_parameters_match_the_cpu_after_training():
    on_cpu, on_device = (Training("cnn", "sgd", device) for device in ("cpu", DEVICE))
    losses(on_cpu, 4)
    losses(on_device, 4)

    expected = on_cpu.model.state_dict()
    actual = on_device.model.state_dict()

    assert list(actual) == list(expected)
    for name, tensor in actual.items():
        torch.testing.assert_close(tensor.cpu(), expected[name], rtol=1e-4, atol=1e-5)


def test_training_in_steps_gives_what_training_without_marks_gives():
    plain = losses(Training("mlp", "sgd", DEVICE), 5)
    training = Training("mlp", "sgd", DEVICE)
    lazyrt.reset_counters()

    marked = []
    for _ in range(5):
        with lazyrt.step():
            loss = training.step()
        marked.append(loss.cpu())

    assert torch.equal(torch.stack(marked), plain)
    assert lazyrt.counters()["executions"] == 5
    assert lazyrt.counters()["compiles"] == 0
