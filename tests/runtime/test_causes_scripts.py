"""What the scripts that a reader runs one after the other are told, sentence by sentence."""

import re
from typing import Any

import pytest
import torch

import lazyrt
from tests.harness import DEVICE
from tests.runtime.causes import explained

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold_and_fast"),
]

RING = """\
import torch, lazyrt
from torch import nn

torch.manual_seed(0)
points = torch.randn(32, 2)
labels = (points.norm(dim=1) > 0.8).long()
points, labels = points.to("lazyrt"), labels.to("lazyrt")

model = nn.Sequential(nn.Linear(2, 4), nn.GELU(), nn.Linear(4, 2)).to("lazyrt")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

losses = []
for step in range(3):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(points), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
STOPS = RING.replace("    loss.b", "    if loss < 0.001:\n        break\n    loss.b")
COUNTS = RING.replace(
    "    optimizer.step()\n",
    "    found = model(points).argmax(1)\n"
    "    share = torch.bincount(found) / len(found)\n"
    "    optimizer.step()\n",
)
ONE_HOT = COUNTS.replace(
    "torch.bincount(found)",
    "nn.functional.one_hot(found, 2).sum(0)",
)
STATE = (
    "state that graph.{} created is an input from now on: 8 tensors (...), "
    "4 fewer creations"
)
ON_THE_CPU = (
    "aten.bincount.default at ring.py:18 ran on the CPU and cut the step: what is before it and "
    "what is after it are graphs of their own"
)
ENDED = "the step ended earlier: read by bool() at ring.py:16 instead of optimizer.step() at ring.py:17"
BEGAN = (
    "the step began later: read by bool() at ring.py:16 ran its first part alone (graph.3), which "
    "graph.1 ran as one with the rest"
)
LATER = (
    "the step ended later: optimizer.step() at ring.py:19 instead of CPU fallback of "
    "aten.bincount.default at ring.py:18, 19 operations that ran after it run before it now; the "
    "program took another path: 1 more aten.zeros.default, 1 more aten.scatter.value, 1 more "
    "aten.sum.dim_IntList at ring.py:18"
)
TOLD = [
    (RING, ["the first graph of this process", STATE.format(1)]),
    (
        STOPS,
        [
            ENDED,
            BEGAN,
            STATE.format(4),
        ],
    ),
    (RING, []),
    (COUNTS, [ON_THE_CPU, ON_THE_CPU, STATE.format(7)]),
    (STOPS, []),
    (
        ONE_HOT,
        [
            LATER,
            STATE.format(9),
        ],
    ),
]


def test_each_script_of_the_tour_is_told_its_own_change_and_no_earlier_one():
    variables: dict[str, Any] = {}
    for source, wanted in TOLD:
        known = len(lazyrt.compiled_graphs())

        exec(compile(source, "ring.py", "exec"), variables)  # noqa: S102 - a script of ours

        records = lazyrt.compiled_graphs()[known:]
        found = [each for record in records if (each := record.explanation)]
        told = [each.text for each in found]
        # Which of the tensors are listed is all one; a line may be that of an equal script.
        told = [re.sub(r"\(`.*\)", "(...)", text) for text in told]
        assert [
            re.sub(r"created at ring.py:\d+ is", "created is", each) for each in told
        ] == wanted
        assert not any(each.unexplained for each in found)
        variables.clear()


def test_a_loop_of_small_graphs_is_compared_with_its_first_round_not_with_another_line():
    """The data are made in the first round's graph; an earlier total has nothing to do with it."""
    total = float(torch.randn(4, 4, device=DEVICE).sum())
    rows = torch.randn(100, 8, device=DEVICE)
    for start in range(0, 40, 10):
        part = rows[start : start + 10].sum()
        lazyrt.mark_step()

    _, first, second = explained()
    assert [cause.kind for cause in first.causes] == ["new_program"]
    assert [cause.kind for cause in second.causes] == [
        "state_became_input",
        "lifted_number",
    ]
    assert [cause.variable for cause in second.causes] == ["rows", "start"]
    del total, part
