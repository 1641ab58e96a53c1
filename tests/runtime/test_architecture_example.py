"""The examples of ARCHITECTURE: a lowering, an event, and a cause of a recompilation."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import lazyrt
from lazygraph.explain import causes, facts
from lazyrt.frontend import record
from lazyrt.lowering import registry
from lazyrt.observe import events
from tests.harness import DEVICE, cold_start

pytestmark = pytest.mark.not_eager("looks at what is pending")

TEXT = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text("utf-8")


def example(word: str) -> str:
    """Return the one block of code that has a word."""
    blocks = re.findall(r"^  ```python\n(.*?)^  ```", TEXT, re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if word in block]
    return re.sub(r"^  ", "", block, flags=re.MULTILINE)


def test_the_ten_lines_of_architecture_add_a_lowering(monkeypatch):
    for name in ("_rules", "_given", "_versions"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    code = example("@lazyrt.lowers")
    lines = [line for line in code.splitlines() if line.strip()]
    names: dict[str, Any] = {}

    exec(code, names)  # noqa: S102 - our own document

    assert len(lines) <= 10
    assert registry.rule_for(torch.ops.aten.frexp.Tensor) is names["frexp"]
    mantissa, exponent = names["parts"]
    graph = lazyrt.pending_graph(mantissa)
    assert [node.op.name for node in graph.nodes] == ["aten.frexp.Tensor"]
    expected = torch.frexp(torch.tensor([8.0, -0.3]))
    assert torch.equal(mantissa.cpu(), expected.mantissa)
    assert torch.equal(exponent.cpu(), expected.exponent)
    assert exponent.dtype == torch.int32
    assert lazyrt.counters()["cpu_fallbacks"] == 0
    record.forget_nodes()


def test_the_event_of_architecture_reaches_its_listener():
    seen: list[Any] = []

    with lazyrt.subscribe(seen.append):
        exec(example("EpochFinished"), {"__name__": "example"})  # noqa: S102 - ours

    (event,) = [event for event in seen if type(event).__name__ == "EpochFinished"]
    assert isinstance(event, events.Event)
    assert getattr(event, "epoch", None) == 3


@pytest.mark.lazy_only("is about compiled steps")
def test_the_ten_lines_of_architecture_add_a_cause(monkeypatch):
    monkeypatch.setattr(causes, "TABLE", list(causes.TABLE))
    monkeypatch.setattr(facts, "_TABLES", dict(facts._TABLES))
    code = example("@causes.cause")
    exec(code, {})  # noqa: S102 - our own document
    cold_start()
    x = torch.ones(4).to(DEVICE)
    lazyrt.mark_step()

    for sorts in (False, True):
        with lazyrt.step():
            y = x.exp()
            if sorts:
                y = y.sort().values
            y = y.sum()
        del y

    found = lazyrt.explain()
    assert found is not None
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    assert [
        (cause.kind, cause.text.partition(" at ")[0]) for cause in found.causes
    ] == [("sorting", "the number of sorts")], str(found)
    assert found.top.text.endswith("is 1, was 0")
    assert found.unexplained == 0
