"""What repeats in a program is drawn once, with its number."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import lazyrt
import lazyviz
from lazyviz.draw.fold import fold_repeats
from lazyviz.draw.model import Box, DrawGraph


def loop(kinds, rounds, wires=()):
    """Return rounds of operations, each of which reads the one before, and more as told."""
    names = ["x", *(name for _ in range(rounds) for name in kinds)]
    boxes = tuple(
        Box(
            label=name,
            op=name,
            kind="op" if k else "parameter",
            site="cell 1 line 2" if k else "",
            members=(k,) if k else (),
        )
        for k, name in enumerate(names)
    )
    chain = {(k, k + 1) for k in range(len(names) - 1)}
    return DrawGraph(boxes=boxes, edges=tuple(sorted(chain | set(wires))), nodes=len(boxes))  # fmt: skip


def counts(graph):
    return [(box.label, box.count) for box in graph.boxes]


def shown(*things):
    """Return names and numbers of what the view draws, inputs by their names."""
    explorer = lazyviz.explore(*things).explorer
    list(explorer.handle({"kind": "fold", "by": "auto"}))
    return counts(explorer.shown), [box.kind for box in explorer.shown.boxes]


def test_rounds_of_a_loop_are_drawn_once_with_their_number():
    graph = fold_repeats(loop("abcd", 12))

    assert counts(graph) == [("x", 1), ("a", 12), ("b", 12), ("c", 12), ("d", 12)]
    assert graph.edges == ((0, 1), (1, 2), (2, 3), (3, 4))
    nodes = sorted(node for box in graph.boxes for node in box.members)
    assert nodes == list(range(1, 49))


def test_what_comes_before_and_behind_a_loop_stays():
    graph = loop("abcd", 12)
    boxes = list(graph.boxes)
    for k, name in ((1, "first"), (2, "second"), (48, "last")):
        boxes[k] = replace(boxes[k], op=name, label=name)

    folded = fold_repeats(replace(graph, boxes=tuple(boxes)))

    assert [count for _, count in counts(folded)] == [1, 1, 1, *[11] * 4, 1, 1]
    assert {"first", "second", "last"} <= {box.label for box in folded.boxes}


@pytest.mark.parametrize("rounds", [1, 2])
def test_two_rounds_are_no_loop(rounds):
    graph = loop("abcd", rounds)

    assert fold_repeats(graph) is graph


def test_rounds_that_are_wired_in_another_way_stay_apart():
    graph = loop("abcd", 12, wires=[(20, 22)])  # a reads into c in the sixth round

    assert max(count for _, count in counts(fold_repeats(graph))) == 1


def test_ops_of_other_lines_and_of_named_tensors_are_no_rounds():
    graph = loop("a", 12)
    lines = [replace(box, site=f"cell 1 line {k}") for k, box in enumerate(graph.boxes)]
    named = [replace(box, name=f"t{k}") for k, box in enumerate(graph.boxes)]

    for boxes in (lines, named):
        other = replace(graph, boxes=tuple(boxes))
        assert fold_repeats(other) is other


def test_a_loop_with_rounds_of_a_hundred_ops_is_found():
    graph = fold_repeats(loop([f"op{k}" for k in range(100)], 20))

    assert {count for _, count in counts(graph)} == {1, 20}
    assert len(graph.boxes) == 101


def test_the_time_steps_of_a_cell_are_one(clean_runtime):
    """Each calls one module; the first reads an input, the others what was before."""
    cell = nn.LSTMCell(8, 16).to("lazyrt")
    steps = torch.randn(12, 3, 8).to("lazyrt")
    start = torch.zeros(3, 16).to("lazyrt")
    lazyrt.mark_step()
    hidden, state = start, start
    for step in range(12):
        hidden, state = cell(steps[step], (hidden, state))

    boxes, _ = shown(hidden)

    repeated = [label for label, count in boxes if count == 12]
    assert [label.rsplit(" = ")[-1] for label in repeated] == ["select", "mm", "mm", "_thnn_fused_lstm_cell"]  # fmt: skip
    assert {count for _, count in boxes} == {1, 12}
    assert len(boxes) == 12


def test_a_loop_over_one_layer_and_one_over_weights_are_one_round_each(clean_runtime):
    layer, start = nn.Linear(8, 8).to("lazyrt"), torch.randn(4, 8).to("lazyrt")
    weights = [torch.randn(8, 8).to("lazyrt") for _ in range(20)]
    lazyrt.mark_step()
    first = second = start
    for _ in range(20):
        first = torch.tanh(layer(first)) + start
    for weight in weights:
        second = torch.relu(second @ weight) * 2

    of_layer, _ = shown(first)
    of_weights, kinds = shown(second)

    assert [count for _, count in of_layer].count(20) == 3
    assert len(of_layer) == 7
    assert [count for _, count in of_weights] == [1, 20, 20, 20, 20]
    assert kinds[:2] == ["parameter", "parameter"]


class Layers(nn.Module):
    """Equal layers, each with an addition inside, which the batch goes into first."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(12)]
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_equal_layers_are_one_though_the_first_reads_the_batch(clean_runtime):
    """`×12`, not one and eleven."""
    model = Layers().to("lazyrt").eval()
    batch = torch.randn(2, 5, 8).to("lazyrt").requires_grad_()
    lazyrt.mark_step()
    out = model(batch)

    boxes, _ = shown(out)

    assert {count for _, count in boxes} <= {1, 12}
    assert sum(count == 12 for _, count in boxes) >= 8
    assert not any("layers.1" in label for label, _ in boxes)
