"""`python -m benchmarks looks`: what looks and compiles are expected to take, and what they take."""

from __future__ import annotations

import copy
import tempfile
import time
from operator import truediv
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import nn

import lazyrt
from benchmarks import machine
from benchmarks.report import Cell, Goal, Report, Table, ratio_goal
from lazyrt.execution import cost_model

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator

    from torch import Tensor

SUMMARY = "what looks and compiles take against the forecast, and stopping at NaN"

_FACTOR = 2.0
_WIDEST = 4.0
_SHARE = 0.9
_STOPPING = 1.02  # of a step
_ROUNDS, _STEPS = 8, 100
_COLUMNS = ("look", "expected", "took, ms", "took / expected", "hit")


class Seen(NamedTuple):
    """One look.

    Attributes:
        low_ns, high_ns: Between what it was expected to lie.
        ns: What was expected.
        took_ns: What it took.
    """

    name: str
    low_ns: int
    high_ns: int
    ns: int
    took_ns: int

    @property
    def is_hit(self) -> bool:
        """Whether it took half to double of what was expected; a range may be four times wide."""
        if self.high_ns > _WIDEST * self.low_ns * 1.01:
            return False
        low = min(self.low_ns, self.ns / _FACTOR)
        return low <= self.took_ns <= max(self.high_ns, self.ns * _FACTOR)


def add_arguments(_parser: ArgumentParser) -> None:
    """It has no options."""


def run(_options: Namespace) -> Report:
    """Look at some thirty values in four situations."""
    before = lazyrt.config.cache_dir
    with tempfile.TemporaryDirectory() as folder:
        lazyrt.config.cache_dir = Path(folder)
        cost_model.forget()
        try:
            rounds = [
                ("nothing known, nothing compiled", _round(0)),
                ("other sizes, to be compiled", _round(1)),
                ("the same, in the disk cache", _round(1, clear=True)),
                ("the same, in memory", _round(1)),
            ]
            lazyrt.config.cache_dir = None
            cost_model.forget()
            compiles = _compiles()
            stopping = list(_stopping())
        finally:
            lazyrt.config.cache_dir = before
            cost_model.forget()
    tables = [
        Table(title, _COLUMNS, [_row(each) for each in seen]) for title, seen in rounds
    ]
    goals = [_goal(title, seen) for title, seen in rounds]
    tables.append(
        Table(
            "compiles of steps",
            ("step", "ops", "expected, ms", "took, ms", "took / expected"),
            compiles,
        )
    )
    ratios = [float(row[-1]) for row in compiles if row[-1] != ""]
    hits = sum(1 / _FACTOR <= ratio <= _FACTOR for ratio in ratios)
    goals.append(
        Goal(
            f"compiles: within 2x, or not told ({len(compiles) - len(ratios)} of {len(compiles)})",
            f"{_SHARE:.0%}", f"{hits} of {len(ratios)}", hits >= _SHARE * len(ratios),
        )
    )  # fmt: skip
    goals += stopping
    return Report(f"looks: {SUMMARY}", machine.facts(), tables, goals)


def _round(more: int, *, clear: bool = False) -> list[Seen]:
    if clear:
        lazyrt.clear_caches()
    return [_seen(name, make) for name, make in _looks(more)]


def _seen(name: str, make: Callable[[], Tensor]) -> Seen:
    lazyrt.mark_step()
    lazyrt.wait()
    inspection = lazyrt.inspect(make())
    node = inspection.graph.nodes[-1].id
    cost = inspection.cost(node)
    start = time.perf_counter_ns()
    inspection.look(node)
    took = time.perf_counter_ns() - start
    expected = cost.estimate_ns + cost.look_ns
    return Seen(name, cost.low_ns, cost.high_ns, expected, took)


def _row(seen: Seen) -> list[Cell]:
    span = f"{seen.low_ns / 1e6:.0f} to {seen.high_ns / 1e6:.0f} ms"
    ratio = round(seen.took_ns / seen.ns, 2)
    return [
        seen.name, span, round(seen.took_ns / 1e6, 1), ratio, "yes" if seen.is_hit else "no",
    ]  # fmt: skip


def _goal(title: str, seen: list[Seen]) -> Goal:
    hits = sum(each.is_hit for each in seen)
    measured = f"{hits} of {len(seen)}"
    limit = f"{_SHARE:.0%}"
    return Goal(
        f"{title}: within 2x, or in a range of 4x", limit, measured,
        hits >= _SHARE * len(seen),
    )  # fmt: skip


def _device(*shape: int) -> Tensor:
    return torch.randn(*shape).to("lazyrt")


def _looks(more: int) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield looks at many kinds of values; `more` makes all sizes a little larger."""
    small, middle, large = (_device(n + 2 * more, n) for n in (64, 512, 2048))
    square = _device(1536 + 16 * more, 1536 + 16 * more)
    line = _device(6_000_000 + 4096 * more)
    picture, kernel = _device(8, 32, 64 + more, 64), _device(64, 32, 3, 3)
    query = _device(4, 8, 128 + more, 64)
    words = torch.randint(0, 1000, (64 + more, 32)).to("lazyrt")
    table = _device(1000, 256 + more)
    index = torch.randint(0, 500, (500, 64 + more)).to("lazyrt")
    perceptron = _perceptron().to("lazyrt")
    encoder = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True).to("lazyrt")
    batch, tokens = _device(64 + more, 256), _device(4, 32 + more, 128)
    images = _device(4 + more, 3, 32, 32)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 15 * 15, 10),
    ).to("lazyrt")  # fmt: skip
    lazyrt.mark_step()
    yield "sum of two", lambda: small + 1
    yield "small product", lambda: torch.relu(small.T @ small) + 1
    yield "product 512", lambda: middle @ middle.T
    yield "product 1536", lambda: square @ square
    yield "four products", lambda: _chain(square)
    yield "chain of 60", lambda: _elementwise(small)
    yield "6M doubled", lambda: line * 2
    yield "6M exp, sum", lambda: (line * 2).exp().sum()
    yield "6M tanh", lambda: torch.tanh(line)
    yield "convolution", lambda: F.conv2d(picture, kernel)
    yield (
        "convolution, relu, pool",
        lambda: F.max_pool2d(F.relu(F.conv2d(picture, kernel)), 2),
    )
    yield "mean of rows", lambda: large.mean(1)
    yield "variance", large.var
    yield "largest of rows", lambda: large.amax(1)
    yield "argmax", lambda: middle.argmax(1)
    yield "softmax", lambda: torch.softmax(large, 1)
    yield "attention", lambda: F.scaled_dot_product_attention(query, query, query)
    yield "embedding", lambda: F.embedding(words, table)
    yield "gather", lambda: middle.gather(0, index[: middle.shape[0]])
    yield "scatter", lambda: middle.scatter(0, index, 1.0)
    yield "sort", lambda: middle.sort()[0]
    yield "topk", lambda: middle.topk(5)[0]
    yield "cumsum", lambda: middle.cumsum(0)
    yield "dropout", lambda: F.dropout(middle, 0.5)
    yield "random", lambda: torch.randn_like(middle)
    yield "layer norm", lambda: F.layer_norm(large, large.shape[1:])
    yield "cat", lambda: torch.cat([large, large])
    yield "transposed", lambda: large.t().contiguous()
    yield "perceptron", lambda: perceptron(batch)
    yield "encoder layer", lambda: encoder(tokens)
    yield "small convnet", lambda: net(images).sum()
    yield "loss", lambda: F.cross_entropy(net(images), words[0, : len(images)] % 10)


def _compiles() -> list[list[Any]]:
    """Compile steps of small models, of each kind in several sizes, and compare with the forecasts."""
    models: list[tuple[str, nn.Module, tuple[int, ...]]] = []
    for width, depth in ((16, 1), (32, 3), (64, 8)):
        layers = [nn.Linear(width, width), nn.ReLU()] * depth
        models.append((f"perceptron {depth}", nn.Sequential(*layers), (8, width)))
    for depth in (1, 3):
        block = [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
        layers = [*block * depth, nn.Flatten(), nn.Linear(8 * 64, 4)]
        models.append((f"convnet {depth}", nn.Sequential(*layers), (2, 8, 8, 8)))
    for depth in (1, 2):
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        encoder = nn.TransformerEncoder(layer, depth)
        models.append((f"encoder {depth}", encoder, (2, 8, 16)))
    models.append(("gru", nn.GRUCell(16, 16), (4, 16)))
    rows = []
    with lazyrt.config.scoped(barrier_after_optimizer=False):
        for name, host, shape in models:
            for optimizer in (None, torch.optim.SGD, torch.optim.AdamW):
                model, x = copy.deepcopy(host).to("lazyrt"), _device(*shape)
                lazyrt.mark_step()
                if optimizer is None:
                    found = model(x)
                else:
                    found = model(x).square().mean()
                    steps = optimizer(model.parameters(), lr=0.1)
                    found.backward()
                    steps.step()
                nodes = lazyrt.pending_graph().nodes
                forecast = cost_model.compile_forecast(nodes)
                lazyrt.mark_step()
                took = lazyrt.compiled_graphs()[-1].compile_ns
                how = optimizer.__name__ if optimizer else "forward"
                told = (
                    ["", ""] if forecast is None else [forecast / 1e6, took / forecast]
                )
                rows.append(
                    [f"{name}, {how}", len(nodes), told[0], took / 1e6, told[1]]
                )
    return rows


def _stopping() -> Iterator[Goal]:
    """Yield what `stop_at_nan` makes of the CPU time of steps: the first hundred, and later ones."""
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    gpt = GPT2Config(
        vocab_size=256, n_positions=64, n_embd=128, n_layer=4, n_head=4,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    bert = BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=512, max_position_embeddings=64,
    )  # fmt: skip
    models: list[tuple[str, Any, tuple[int, int]]] = [
        ("GPT", GPT2LMHeadModel(gpt), (8, 64)),
        ("BERT", BertForMaskedLM(bert), (2, 32)),
    ]
    for name, model, shape in models:
        model.to("lazyrt")
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.randint(0, 256, shape).to("lazyrt")
        parts = "without", "first hundred", "later"
        took: dict[str, list[float]] = {part: [] for part in parts}
        for turn in range(_ROUNDS + 1):  # the first compiles
            for part in parts:
                if part != "later":
                    lazyrt.config.stop_at_nan = part != "without"
                start = time.process_time()
                for _ in range(_STEPS):
                    optimizer.zero_grad()
                    model(input_ids=ids, labels=ids).loss.backward()
                    optimizer.step()
                lazyrt.wait()
                if turn:
                    took[part].append(time.process_time() - start)
        lazyrt.config.stop_at_nan = False
        for part in parts[1:]:
            rounds = sorted(map(truediv, took[part], took["without"]))
            what = (
                f"{name}'s {part} steps with stop_at_nan, CPU time, minima; "
                f"rounds {rounds[0]:.3f}x to {rounds[-1]:.3f}x"
            )
            yield ratio_goal(what, min(took[part]) / min(took["without"]), _STOPPING)


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10))


def _chain(square: Tensor) -> Tensor:
    for _ in range(4):
        square = torch.tanh(square @ square)
    return square


def _elementwise(x: Tensor) -> Tensor:
    for k in range(20):
        x = torch.tanh(x * 1.5) + k
    return x
