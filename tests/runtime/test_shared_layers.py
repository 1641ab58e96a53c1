"""Fast builds of steps: equal layers are compiled once, and run one after another."""

import copy
import re

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt import config, jax_compat
from lazyrt.errors import OutOfMemoryError
from lazyrt.execution import compiler, linked, memory
from lazyrt.execution.executables import compiled_texts
from lazyrt.observe import events
from tests.harness import DEVICE, cold_start, recorded

pytestmark = pytest.mark.lazy_only("is about executables of steps")


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(linked, "_LAUNCH", 0)  # cuts models of few small layers, too
    cold_start()
    linked._programs.clear()
    with config.scoped(compile_tier="fast", cache_dir=None, share_layers=True):
        yield


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm, self.wide, self.narrow = (
            nn.LayerNorm(8),
            nn.Linear(8, 16),
            nn.Linear(16, 8),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(
            self.narrow(nn.functional.gelu(self.wide(self.norm(x))))
        )


class Model(nn.Module):
    def __init__(self, layers, dropout=0.0, classes=3):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.layers = nn.ModuleList(Block(dropout) for _ in range(layers))
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def train(model, device, optimizer=adamw, steps=2, *, clip=False):
    """Return the losses and parameters of a few steps."""
    torch.manual_seed(1)
    model = copy.deepcopy(model).to(device)
    optimizer = optimizer(model.parameters())
    x = torch.linspace(-1, 1, 20).reshape(5, 4).to(device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()]


def build():
    """Return the build that the only step's graph has."""
    (graph,) = lazyrt.compiled_graphs()
    (found,) = compiler.executables_of(graph.fingerprint)
    return found


def texts_compiled(monkeypatch):
    titles = []
    make = jax_compat.compile_text

    def note(*args, **rest):
        titles.append(rest.get("title", "whole"))
        return make(*args, **rest)

    monkeypatch.setattr(jax_compat, "compile_text", note)
    return titles


def test_more_equal_layers_are_more_launches_of_as_many_programs():
    counts = {}
    for layers in (4, 6):
        cold_start()
        train(Model(layers), DEVICE)
        counts[layers] = build().program_count, build().launch_count

    assert counts == {4: (5, 11), 6: (5, 15)}


def test_few_layers_stay_whole_as_launches_cost_more_than_compiling_saves(monkeypatch):
    monkeypatch.undo()
    found = {}
    for layers in (2, 12):
        cold_start()
        train(Model(layers), DEVICE)
        found[layers] = isinstance(build(), linked.LinkedExecutable)

    assert found == {2: False, 12: True}


def test_a_step_stays_one_graph_one_compile_and_one_execution():
    model = Model(4)
    train(model, "cpu", steps=1)
    found = {}
    for shares in (True, False):
        cold_start()
        with config.scoped(share_layers=shares):
            before = lazyrt.counters()
            with recorded(events.CompileFinished, events.LoweringFinished) as told:
                train(model, DEVICE, steps=3)
            after = lazyrt.counters()
            (graph,) = lazyrt.compiled_graphs()
        found[shares] = (
            graph.fingerprint,
            graph.runs,
            *(after[k] - before[k] for k in ("compiles", "executions")),
            [(type(e).__name__, e.nodes) for e in told if e.purpose == "step"],
        )

    assert found[True] == found[False]
    assert found[True][1:4] == (3, 1, 3)


OPTIMIZERS = {
    "AdamW": adamw,
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "AdamW, single": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
}


@pytest.mark.parametrize(
    ("name", "clip"),
    [
        ("AdamW", True),
        pytest.param("AdamW, fused", False, marks=pytest.mark.slow),
        pytest.param("AdamW, single", False, marks=pytest.mark.slow),
    ],
)
def test_training_gives_what_the_whole_program_gives_up_to_rounding(name, clip):
    model, optimizer = Model(5, dropout=0.1), OPTIMIZERS[name]
    losses, parameters = train(model, DEVICE, optimizer, clip=clip)
    assert isinstance(build(), linked.LinkedExecutable)
    cold_start()
    with config.scoped(share_layers=False):
        others, expected = train(model, DEVICE, optimizer, clip=clip)

    torch.testing.assert_close(losses, others)
    torch.testing.assert_close(parameters, expected, rtol=1e-4, atol=1e-5)


def test_training_agrees_with_the_cpu():
    model = Model(4)
    losses, parameters = train(model, DEVICE, steps=4)
    others, expected = train(model, "cpu", steps=4)

    torch.testing.assert_close(losses, others)
    torch.testing.assert_close(parameters, expected, rtol=1e-4, atol=1e-5)


def test_another_head_compiles_what_is_not_a_layer(monkeypatch):
    first = Model(4)
    train(first, DEVICE)
    kept = build()
    titles = texts_compiled(monkeypatch)
    train(Model(4, classes=5), DEVICE)

    parts = [title for title in titles if title.startswith("part_")]
    assert kept.program_count == 5
    assert len(parts) == 2


def test_a_restart_reads_the_programs_from_disk(tmp_path, monkeypatch):
    model = Model(4)
    with config.scoped(cache_dir=tmp_path):
        losses, _ = train(model, DEVICE)
        cold_start()
        linked._programs.clear()
        titles = texts_compiled(monkeypatch)
        with recorded(events.CompileFinished) as found:
            again, _ = train(model, DEVICE)

    assert again == losses
    assert isinstance(build(), linked.LinkedExecutable)
    assert [e.source for e in found if e.purpose == "step"] == ["disk"]
    assert not titles


@pytest.mark.parametrize("layers", [1, 2])
def test_few_layers_stay_one_program(layers):
    train(Model(layers), DEVICE)

    assert not isinstance(build(), linked.LinkedExecutable)


def test_layers_of_different_sizes_stay_one_program():
    widths = range(4, 12)
    model = nn.Sequential(*(nn.Linear(k, k + 1) for k in widths))
    train(model, DEVICE)

    assert not isinstance(build(), linked.LinkedExecutable)


@pytest.mark.slow
def test_a_peek_and_the_optimised_build_are_whole_programs():
    model = Model(4).to(DEVICE)
    x = torch.ones(5, 4, device=DEVICE)
    lazyrt.materialise(model(x).sum())
    lazyrt.discard_pending()
    with config.scoped(compile_tier="optimised"):
        train(model, DEVICE, steps=1)
    (graph,) = lazyrt.compiled_graphs()

    assert graph.graph is not None
    assert graph.graph.lower().known_hlo() is not None
    assert not any(
        isinstance(each, linked.LinkedExecutable)
        for each in compiler._executables.values()
    )


@pytest.mark.slow
def test_views_of_the_program_are_of_the_whole():
    train(Model(4), DEVICE)
    (graph,) = lazyrt.compiled_graphs()
    assert graph.graph is not None
    computation = graph.graph.lower()

    assert computation.known_hlo() is None
    text = computation.as_text("hlo")
    assert all(f"layers.{k}.wide" in text for k in range(4))


def test_a_shared_program_names_no_layer_of_its_own():
    train(Model(4), DEVICE)
    (graph,) = lazyrt.compiled_graphs()
    texts = compiled_texts(graph.fingerprint)

    assert len(texts) == 5
    assert any("layers.*.wide" in text for text in texts)
    assert not any("layers.0" in text for text in texts)
    assert all("test_shared_layers.py" in text for text in texts)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = Model(6), Model(6)

    def forward(self, x):
        return self.left(x) - self.right(2 * x)


def test_equal_layers_of_two_towers_keep_their_names():
    towers = Towers().to(DEVICE)
    optimizer = torch.optim.SGD(towers.parameters(), lr=1e-2)
    x = torch.ones(5, 4, device=DEVICE)
    towers(x).square().mean().backward()
    optimizer.step()
    (graph,) = lazyrt.compiled_graphs()
    texts = compiled_texts(graph.fingerprint)

    assert isinstance(build(), linked.LinkedExecutable)
    for text in texts:
        assert not ("left.layers.*" in text and "right.layers.*" in text)
    for name in ("left", "right"):
        assert sum(f"{name}.layers.*" in text for text in texts) == 2


def test_a_step_needs_as_much_memory_as_the_whole_program():
    model = Model(4)
    train(model, DEVICE)
    shared = memory.planned(build())
    cold_start()
    with config.scoped(share_layers=False):
        train(model, DEVICE)

    assert shared <= 1.05 * memory.planned(build())


@pytest.mark.parametrize("clip", [False, True])
def test_all_that_a_step_overwrites_is_updated_in_its_own_memory(monkeypatch, clip):
    """Also where the update waits for the gradients of all layers."""
    own = linked._given
    takers: list[int | None] = []

    def note(*args):
        found = own(*args)
        takers.extend(found.values())
        return found

    monkeypatch.setattr(linked, "_given", note)
    train(Model(4), DEVICE, clip=clip)
    (graph,) = lazyrt.compiled_graphs()
    updates = [each.memory_analysis().alias_size_in_bytes for each in build().programs]

    assert sum(taker is not None for taker in takers) == len(graph.key.donated)
    assert sum(size > 0 for size in updates) >= 2


def test_a_part_may_overwrite_what_only_it_reads_of_the_parts_before(monkeypatch):
    given = []
    make = jax_compat.compile_text

    def note(text, ins, outs, donated, **rest):
        given.append([at for at, taker in donated.items() if taker is None])
        return make(text, ins, outs, donated, **rest)

    monkeypatch.setattr(jax_compat, "compile_text", note)
    train(Model(4), DEVICE)

    assert sum(map(bool, given)) >= 3  # backward of the head, of layers, and what ends


def test_waiting_for_a_step_is_waiting_for_what_nobody_reads_on():
    train(Model(4), DEVICE)
    calls = build()._calls

    assert [call.is_last for call in calls] == [False] * 10 + [True]


@pytest.mark.parametrize("failing", [0, -1])
def test_an_error_between_layers_says_what_is_overwritten(failing, monkeypatch):
    model = Model(4).to(DEVICE)
    optimizer = adamw(model.parameters())
    x = torch.ones(5, 4, device=DEVICE)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        lazyrt.mark_step()

    step()

    def fail(_):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1024 bytes")

    launch = linked.LinkedExecutable.launch

    def launch_until(self, args):
        self._run[failing] = (fail, *self._run[failing][1:])
        return launch(self, args)

    monkeypatch.setattr(linked.LinkedExecutable, "launch", launch_until)
    lazyrt.clear_caches()  # plans hold the method
    with pytest.raises(OutOfMemoryError) as caught:
        step()
    if failing:
        assert re.search(r"with \d+ tensors that it has overwritten", str(caught.value))
    else:
        assert "every other tensor is as it was" in str(caught.value)
