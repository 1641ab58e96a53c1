"""Shapes that data decide, and shapes that change from step to step."""

import re

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.observe import events
from tests.conftest import displayed
from tests.harness import DEVICE, assert_same, cold_start, lazy, recorded
from tests.runtime.semantics import grid, on_both

DATA_DEPENDENT = {
    "nonzero": (lambda x: x.nonzero(), "aten.nonzero.default"),
    "nonzero-tuple": (lambda x: x.nonzero(as_tuple=True)[0], "aten.nonzero.default"),
    "argwhere": (lambda x: torch.argwhere(x > 2), "aten.nonzero.default"),
    "where": (lambda x: torch.where(x > 2)[0], "aten.nonzero.default"),
    "masked_select": (lambda x: x.masked_select(x > 2), "aten.masked_select.default"),
    "mask": (lambda x: x[x > 2], "aten.index.Tensor"),
    "unique": (lambda x: torch.unique(x // 2), "aten._unique2.default"),
    "unique-dim": (lambda x: torch.unique(x.view(2, 3), dim=0), "aten.unique_dim.default"),
    "unique_consecutive": (lambda x: torch.unique_consecutive(x // 2), "aten.unique_consecutive.default"),
    "bincount": (lambda x: torch.bincount(x.long()), "aten.bincount.default"),
    "repeat_interleave": (lambda x: x.repeat_interleave(x.long()), "aten.repeat_interleave.Tensor"),
}  # fmt: skip


@pytest.mark.not_eager("counts graphs and executions of steps")
@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_a_shape_that_data_decide_cuts_the_graph_once_and_says_where(name):
    call, op = DATA_DEPENDENT[name]
    x = lazy(grid(6) - 1)
    with recorded(events.FallbackUsed, events.BarrierFinished) as found:
        y = x * 2
        result = call(y)

    (barrier,) = [e for e in found if isinstance(e, events.BarrierFinished)]
    (fallback,) = [e for e in found if isinstance(e, events.FallbackUsed)]
    assert fallback.op == op
    assert fallback.reason == f"{op} has a result whose shape depends on the data"
    assert barrier.cause == f"CPU fallback of {op}"
    assert barrier.executed
    # The op is called in the table above.
    assert fallback.site is not None
    assert (fallback.site.file, fallback.site.line) == (
        __file__,
        call.__code__.co_firstlineno,
    )
    assert lazyrt.counters()["cpu_fallbacks"] == 1
    assert result.shape == call((grid(6) - 1) * 2).shape
    assert torch.equal(result.cpu(), call((grid(6) - 1) * 2))


@pytest.mark.slow
def test_all_results_of_a_data_dependent_op_match_the_cpu():
    def program(d, x):
        y = x.view(3, 4) // 3
        values, inverse, counts = torch.unique(
            y, return_inverse=True, return_counts=True
        )
        runs, lengths = torch.unique_consecutive(y, return_counts=True)
        kept = y[y > 1]
        return values, inverse, counts, runs, lengths, kept * 2, kept.sum(), y[y.any(1)]

    on_both(program, grid(12), fallbacks=None)


@pytest.mark.slow
def test_a_loop_over_a_shape_that_varies_with_data_matches_the_cpu():
    def program(d, x):
        sizes, total = [], torch.zeros((), device=d)
        while x.numel() > 1:
            x = x[x > x.mean()]
            sizes.append(x.numel())
            total = total + x.sum()
        return sizes, total

    on_both(program, grid(12), fallbacks=None)


def test_gradients_pass_a_data_dependent_cut():
    def program(d, x):
        y = x.exp()
        chosen = y[x > 2] * 3
        (chosen.sum() + y[0]).backward()
        return chosen

    on_both(program, (grid(4) / 1.5).requires_grad_(), fallbacks=None)


def test_a_static_way_of_writing_it_cuts_nothing():
    x = lazy(grid(6))

    kept = torch.where(x > 2, x, 0.0).sum() / (x > 2).sum()
    x[x > 4] = 0
    filled = x.masked_fill(x > 3, -1)

    assert lazyrt.counters()["cpu_fallbacks"] == 0
    assert lazyrt.counters()["executions"] == 0
    assert kept.item() == 4.5
    assert filled.tolist() == [1.0, 2.0, 3.0, -1.0, 0.0, 0.0]


def test_a_strip_shows_a_data_dependent_cut_with_its_line(shell):
    shell.run_line_magic("load_ext", "lazyviz")
    shell.run_cell("import torch\nx = torch.arange(6.).to('lazyrt')\ny = x[x * 2 > 4]")
    shell.run_line_magic("unload_ext", "lazyviz")

    text = "\n".join(displayed(shell))
    assert "aten.index.Tensor" in text
    assert re.search(r"line 3", text)


@pytest.mark.lazy_only("counts what runs")
def test_an_op_of_the_cpu_on_ready_operands_cuts_no_step():
    """The nodes of a graph, in the middle of a step."""
    x, ends = lazy(grid(4)), lazy(torch.tensor([0, 1, 1, 3]))
    lazyrt.mark_step()
    lazyrt.reset_counters()

    with lazyrt.step():
        hidden = torch.cos(x)
        nodes = torch.unique(ends)
        found = hidden[nodes]

    counts = lazyrt.counters()
    assert (counts["executions"], counts["cpu_fallbacks"]) == (1, 1)
    assert_same(found, torch.cos(grid(4))[[0, 1, 3]], 1e-6)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.mix = nn.Linear(8, 8)

    def forward(self, tokens):
        h = self.embed(tokens)
        mask = torch.ones(tokens.shape[1], tokens.shape[1], device=tokens.device).tril()
        scores = (h @ h.mT).masked_fill(mask == 0, float("-inf")).softmax(-1)
        return self.mix(scores @ h).pow(2).mean()


def train(lengths):
    cold_start()
    torch.manual_seed(0)
    model = Encoder().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(0)
    with recorded(events.CompileFinished) as found:
        for length in lengths:
            tokens = torch.randint(0, 20, (2, length), generator=generator).to(DEVICE)
            optimizer.zero_grad()
            model(tokens).backward()
            optimizer.step()
            lazyrt.mark_step()
    return [e for e in found if e.purpose == "step"]


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_changing_sequence_lengths_compile_once_for_each_shape():
    lengths = [5, 7, 5, 7, 5]

    compiled = train(lengths)

    assert len(compiled) == len(set(lengths))
    assert lazyrt.counters()["cpu_fallbacks"] == 0


@pytest.mark.slow
def test_the_reason_of_such_a_compile_names_the_change_of_shape():
    _, *later = train([5, 7, 9])

    for before, now, compiled in zip((5, 7), (7, 9), later, strict=True):
        assert f"[2,{now}]" in compiled.reason, compiled.reason
        assert f"[2,{before}]" in compiled.reason, compiled.reason


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_last_batch_of_another_size_compiles_once_more():
    cold_start()
    layer = nn.Linear(3, 2).to(DEVICE)
    with recorded(events.CompileFinished) as found:
        for _ in range(2):
            for batch in torch.ones(10, 3).split(4):
                layer(batch.to(DEVICE)).sum().backward()
                lazyrt.mark_step()

    reasons = [e.reason for e in found if e.purpose == "step"]
    # The gradients exist from the second step on: one graph more for the full batch.
    assert len(reasons) == 3
    assert "f32[2,3]" in reasons[-1]
