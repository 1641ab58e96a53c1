"""Looking into a pending graph by node."""

import gc
import sys
import types
import weakref
from typing import Any

import pytest
import torch

import lazyrt
from lazyrt.errors import LostValueError, UsageError
from lazyrt.execution import cost_model
from lazyrt.frontend import names
from lazyrt.frontend.buffers import state_of
from lazyrt.observe import events
from tests.harness import DEVICE


@pytest.fixture
def chain():
    x = torch.arange(6.0).reshape(2, 3).to(DEVICE)
    lazyrt.mark_step()
    hidden = x * 2
    y = torch.relu(hidden - 5)
    del hidden
    return x, y, lazyrt.inspect(y)


def keep_in_a_module(monkeypatch):
    module = types.ModuleType("of_the_user")
    module.__file__, module.kept = "of_the_user.py", torch.ones(3, device=DEVICE) * 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "of_the_user", module)


@pytest.mark.not_eager("is about recorded graphs")
def test_modules_are_searched_for_tensors_that_no_variable_explains(chain, monkeypatch):
    searched = []
    of_the_user = names._modules_of_the_user

    def note():
        searched.append(1)
        return of_the_user()

    monkeypatch.setattr(names, "_modules_of_the_user", note)
    lazyrt.inspect(chain[1])
    assert not searched

    keep_in_a_module(monkeypatch)
    lazyrt.inspect(chain[1])
    assert searched


def node_of(inspection, op):
    return next(n.id for n in inspection.graph.nodes if n.op.name == op)


@pytest.mark.not_eager("is about recorded graphs")
def test_a_node_that_nothing_holds_is_materialised(chain):
    _, _, inspection = chain

    found = inspection.materialise(node_of(inspection, "aten.mul.Tensor"))

    torch.testing.assert_close(found, torch.arange(6.0).reshape(2, 3) * 2)


@pytest.mark.not_eager("is about recorded graphs")
def test_looking_changes_neither_the_graph_nor_what_runs(chain):
    _, y, inspection = chain
    fingerprint = lazyrt.pending_graph().fingerprint
    before = lazyrt.counters()

    for node in inspection.graph.nodes:
        inspection.materialise(node.id)

    after = lazyrt.counters()
    assert lazyrt.is_pending(y)
    assert lazyrt.pending_graph().fingerprint == fingerprint
    for name in ("compiles", "executions", "barriers"):
        assert after[name] == before[name]


@pytest.mark.not_eager("is about recorded graphs")
def test_the_cost_is_told_before_and_falls_with_what_is_known(chain):
    _, _, inspection = chain
    first, last = inspection.graph.nodes[0].id, inspection.graph.nodes[-1].id

    before = inspection.cost(last)
    inspection.materialise(first)
    between = inspection.cost(last)
    inspection.materialise(last)
    after = inspection.cost(last)

    assert before.nodes == len(inspection.graph.nodes)
    assert before.reused == 0
    assert before.estimate_ns > 0
    assert (between.nodes, between.reused) == (before.nodes - 1, 1)
    assert (after.nodes, after.estimate_ns) == (0, 0)


@pytest.mark.not_eager("is about recorded graphs")
def test_the_cost_alone_computes_nothing(chain):
    _, _, inspection = chain
    before = dict(lazyrt.counters())

    inspection.cost(inspection.graph.nodes[-1].id)

    assert dict(lazyrt.counters()) == before


@pytest.mark.not_eager("is about recorded graphs")
def test_inputs_are_shown_too(chain):
    x, _, inspection = chain
    (leaf,) = [p for p in inspection.graph.parameters if p.kind == "data"]

    torch.testing.assert_close(inspection.parameter(leaf), x.cpu())


@pytest.mark.not_eager("is about recorded graphs")
def test_after_the_step_what_a_tensor_holds_is_still_there(chain):
    _, _y, inspection = chain
    lazyrt.mark_step()
    executions = dict(lazyrt.counters())

    found = inspection.materialise(inspection.graph.nodes[-1].id)

    assert not inspection.is_current
    torch.testing.assert_close(
        found, torch.relu(torch.arange(6.0).reshape(2, 3) * 2 - 5)
    )
    assert lazyrt.counters()["peek_executions"] == executions["peek_executions"]


@pytest.mark.not_eager("is about recorded graphs")
def test_after_the_step_what_nothing_holds_is_gone_and_said_to_be(chain):
    _, _y, inspection = chain
    mul = node_of(inspection, "aten.mul.Tensor")
    lazyrt.mark_step()

    with pytest.raises(LostValueError, match=r"the value of %\d+ is gone: step \d+"):
        inspection.materialise(mul)
    torch.ones(2, device=DEVICE).add_(1)
    (torch.ones(2, device=DEVICE) + 1).cpu()
    with pytest.raises(LostValueError, match=r"keep_values = 2 and"):
        inspection.materialise(mul)


@pytest.mark.not_eager("is about recorded graphs")
def test_the_next_step_never_answers_for_the_last_one():
    x = torch.ones(3, device=DEVICE)
    lazyrt.mark_step()
    y = torch.exp(x)
    inspection = lazyrt.inspect(y)
    lazyrt.mark_step()
    x = torch.zeros(3, device=DEVICE)
    lazyrt.mark_step()
    del y
    z = torch.exp(x)  # the same interned node, other data

    with pytest.raises(LostValueError):
        inspection.materialise(inspection.graph.nodes[-1].id)
    assert lazyrt.is_pending(z)


@pytest.mark.not_eager("is about recorded graphs")
def test_a_tensor_written_since_is_not_shown_as_the_old_one(chain):
    _, y, inspection = chain
    lazyrt.mark_step()
    y.add_(1)

    with pytest.raises(LostValueError):
        inspection.materialise(inspection.graph.nodes[-1].id)


@pytest.mark.not_eager("is about recorded graphs")
def test_an_inspection_keeps_no_tensor_alive():
    y = torch.ones(3, device=DEVICE) * 2
    inspection = lazyrt.inspect(y)
    before = len(lazyrt.live_tensors())

    del y

    assert len(lazyrt.live_tensors()) == before - 1
    assert inspection.materialise(inspection.graph.nodes[-1].id).tolist() == [2, 2, 2]


@pytest.mark.parametrize("node", [-1, 10**9])
def test_unknown_nodes_are_named(chain, node):
    _, _, inspection = chain

    with pytest.raises(UsageError, match=f"no node %{node}"):
        inspection.cost(node)


@pytest.mark.not_eager("is about recorded graphs")
@pytest.mark.parametrize("output", [-1, 1, "0"])
def test_unknown_results_are_named(chain, output):
    _, _, inspection = chain

    with pytest.raises(UsageError, match=f"has no result {output!r}"):
        inspection.materialise(inspection.graph.nodes[0].id, output)


@pytest.mark.not_eager("is about recorded graphs")
def test_a_number_is_no_tensor():
    x = torch.ones(3, device=DEVICE)
    lazyrt.mark_step()
    x.mul_(0.5)
    inspection = lazyrt.inspect()
    (number,) = [p for p in inspection.graph.parameters if p.kind == "float"]

    with pytest.raises(UsageError, match="a number that the program passed"):
        inspection.parameter(number)


@pytest.mark.not_eager("is about recorded graphs")
def test_known_values_are_searched_for_nan_and_nothing_runs(chain):
    _, _, inspection = chain
    before = lazyrt.counters()

    known = inspection.not_finite()

    assert set(known.values()) == {(0, 0, 0)}
    assert all(value.node is None for value in known)
    assert lazyrt.counters()["peek_executions"] == before["peek_executions"]


@pytest.mark.not_eager("is about recorded graphs")
def test_a_cone_is_searched_for_the_first_nan_on_request():
    x = torch.tensor([1.0, -1.0]).to(DEVICE)
    lazyrt.mark_step()
    y = torch.log(x) + 1
    inspection = lazyrt.inspect(y)
    before = lazyrt.pending_graph().fingerprint
    counts = {k: lazyrt.counters()[k] for k in ("compiles", "executions", "barriers")}

    found = inspection.check_cone(inspection.graph.nodes[-1].id)

    bad = [v.node.op.name for v, (nan, *_) in found.items() if nan and v.node]
    assert bad == ["aten.log.default", "aten.add.Tensor"]
    assert lazyrt.pending_graph().fingerprint == before
    assert {k: lazyrt.counters()[k] for k in counts} == counts


@pytest.mark.not_eager("is about recorded graphs")
def test_every_op_is_measured_alone_and_the_step_stays(chain):
    _, y, inspection = chain
    before = lazyrt.counters()["executions"]

    took = inspection.measure()

    assert set(took) == {node.id for node in inspection.graph.nodes}
    assert all(ns > 0 for ns in took.values())
    assert lazyrt.counters()["executions"] == before
    assert lazyrt.is_pending(y)


@pytest.mark.not_eager("is about recorded graphs")
def test_after_the_step_nothing_is_measured(chain):
    _, _, inspection = chain
    lazyrt.mark_step()

    with pytest.raises(LostValueError, match="has run"):
        inspection.measure()
    with pytest.raises(LostValueError, match="has run"):
        inspection.check_cone(inspection.graph.nodes[0].id)
    assert inspection.not_finite() == {}


@pytest.mark.not_eager("is about recorded graphs")
def test_the_cost_names_as_many_ops_as_run(chain):
    _, _, inspection = chain
    last = inspection.graph.nodes[-1].id
    ran: list[Any] = []
    with lazyrt.subscribe(ran.append, events.TensorMaterialised):
        told = inspection.cost(last)
        inspection.materialise(last)

    (actual,) = [event.nodes for event in ran]
    assert actual / 2 <= told.nodes <= actual * 2
    assert told.compiles <= told.nodes


@pytest.mark.not_eager("is about recorded graphs")
def test_a_compiled_cone_costs_no_compile():
    x = torch.arange(6.0).to(DEVICE)
    lazyrt.mark_step()
    first = lazyrt.inspect(torch.sigmoid(x) * 5)
    first.materialise(first.graph.nodes[-1].id)
    lazyrt.mark_step()
    again = lazyrt.inspect(torch.sigmoid(x) * 5)

    assert again.cost(again.graph.nodes[-1].id).compiles == 0


@pytest.mark.not_eager("is about recorded graphs")
def test_holdings_name_what_is_overwritten_and_donated():
    weight = torch.nn.Parameter(torch.ones(3, device=DEVICE))
    lazyrt.mark_step()
    with torch.no_grad():
        weight.add_(1)

    inspection = lazyrt.inspect()

    (leaf,) = [p for p in inspection.graph.parameters if p.kind == "data"]
    (root,) = inspection.graph.roots
    held = inspection.holdings[leaf]
    assert held.name == "weight"
    assert held.overwritten_by is root
    assert held.is_donated
    assert inspection.holdings[root].overwrites is leaf
    assert (inspection.holdings[root].version or 0) > 0


@pytest.mark.not_eager("is about recorded graphs")
def test_what_a_fallback_made_says_so():
    x = torch.tensor([1.0, 0.0, 2.0]).to(DEVICE)
    places = torch.nonzero(x)
    inspection = lazyrt.inspect(places + 1)

    (leaf,) = [p for p in inspection.graph.parameters if p.kind == "data"]
    origin = inspection.holdings[leaf].origin
    assert origin is not None
    assert origin.op == "aten.nonzero.default"
    assert "computed on the CPU by aten.nonzero.default" in str(origin)
    assert lazyrt.input_origins(places + 1)[0].op == "aten.nonzero.default"


@pytest.mark.not_eager("is about recorded graphs")
def test_holdings_keep_no_buffer_alive():
    x = torch.ones(3, device=DEVICE)
    lazyrt.mark_step()
    y = x + 1
    inspection = lazyrt.inspect(y)
    watched = [weakref.ref(state_of(t).base) for t in (x, y)]
    before = lazyrt.pending_graph().fingerprint

    del x, y
    gc.collect()

    assert inspection.holdings
    assert lazyrt.pending_graph().fingerprint != before
    lazyrt.mark_step()
    assert [ref() for ref in watched] == [None, None]


@pytest.mark.not_eager("is about recorded graphs")
def test_a_graph_taken_earlier_is_inspected_until_its_step_has_run():
    x = torch.ones(3, device=DEVICE)
    lazyrt.mark_step()
    y = torch.exp(x)
    graph = lazyrt.pending_graph(y)

    assert lazyrt.inspect(graph).graph is graph
    lazyrt.mark_step()
    with pytest.raises(LostValueError, match="no longer pending"):
        lazyrt.inspect(graph)


def test_a_graph_without_nodes_takes_no_time():
    lazyrt.mark_step()

    assert lazyrt.inspect().measure() == {}


@pytest.mark.not_eager("is about recorded graphs")
def test_an_estimate_counts_work_and_not_ops_alone():
    """A product of large matrices takes longer than one of small ones, a chain longer."""
    cost_model.forget()
    small, large = (torch.ones(n, n).to("lazyrt") for n in (16, 2048))
    lazyrt.mark_step()
    chain = large
    for _ in range(8):
        chain = chain @ large

    def estimate(tensor):
        inspection = lazyrt.inspect(tensor)
        return inspection.cost(inspection.graph.nodes[-1].id).estimate_ns

    tiny, one, eight = estimate(small @ small), estimate(large @ large), estimate(chain)

    assert one > 5 * tiny
    assert 4 * one < eight < 12 * one
