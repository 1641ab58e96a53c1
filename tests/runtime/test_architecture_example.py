"""The lowering that ARCHITECTURE adds in ten lines."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import lazyrt
from lazyrt.frontend import record
from lazyrt.lowering import registry

pytestmark = pytest.mark.not_eager("looks at what is pending")

TEXT = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text("utf-8")


def test_the_ten_lines_of_architecture_add_a_lowering(monkeypatch):
    for name in ("_rules", "_given", "_versions"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    found = re.search(r"```python\n(.*?@lazyrt\.lowers.*?)```", TEXT, re.DOTALL)
    assert found is not None
    code = re.sub(r"^  ", "", found[1], flags=re.MULTILINE)
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
