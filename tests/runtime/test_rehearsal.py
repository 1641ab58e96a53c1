"""A call that is recorded to be seen leaves everything as it was."""

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.config import config
from lazyrt.control.rehearsal import rehearse
from lazyrt.errors import StepSyncError, UsageError
from lazyrt.observe import events
from tests.harness import DEVICE, recorded

pytestmark = pytest.mark.not_eager("records a call without running it")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.last = None

    def forward(self, x, *, scale=1.0):
        hidden = torch.dropout(self.norm(self.first(x)), 0.5, True)  # noqa: FBT003
        self.last = hidden
        return {"hidden": hidden, "both": (hidden.sum() * scale, torch.relu(hidden))}


@pytest.fixture
def net():
    torch.manual_seed(0)
    made = Net().to(DEVICE)
    lazyrt.mark_step()
    return made


def run(net, look):
    """Return what a few steps compute, with looks at other calls in between or without."""
    torch.manual_seed(3)
    x = torch.ones(5, 3, device=DEVICE)
    facts: list[object] = []
    for _ in range(3):
        pending = net.first(x) + 1
        if look:
            with torch.no_grad():
                rehearse(net, x)
            rehearse(net, x, scale=2.0)
        out = net(x)["both"][0] + pending.sum()
        facts.append(lazyrt.pending_graph().fingerprint)
        if look:
            rehearse(net, x)
        net.last = None  # what a call does to Python objects stays
        net.zero_grad()
        out.backward()
        lazyrt.mark_step()
        facts += [float(out.detach()), net.norm.running_mean.tolist(), float(net.first.bias.grad[0])]  # fmt: skip
    return facts


def test_a_call_leaves_values_random_numbers_and_graphs_as_they_were(net):
    state = {name: value.cpu() for name, value in net.state_dict().items()}
    seen = []
    for look in (False, False, True):  # the first one compiles
        net.load_state_dict(state)
        net.zero_grad()
        lazyrt.mark_step()
        before = lazyrt.counters()
        facts = run(net, look=look)
        after = lazyrt.counters()
        done = [after[key] - before[key] for key in ("compiles", "executions")]
        seen.append((facts, done))

    assert seen[0][0] == seen[1][0]
    assert seen[1] == seen[2]


def test_nothing_runs_and_nothing_stays(net):
    x = torch.ones(5, 3, device=DEVICE)
    y = x * 2
    shown, before = lazyrt.pending_graph().fingerprint, lazyrt.counters()
    live = len(lazyrt.live_tensors())

    found = rehearse(net, x)

    assert lazyrt.counters() == before
    assert lazyrt.pending_graph().fingerprint == shown
    assert {node.op.name for node in found.graph.nodes} >= {
        "aten.addmm.default",
        "aten.native_dropout.default",
    }
    assert sorted(found.outputs.values()) == ["both[0]", "both[1]", "hidden"]
    names = {held.name for held in found.holdings.values()}
    assert {"x", "net.first.weight", "net.norm.running_mean"} <= names
    # What the module kept of the call is told to be lost, and why.
    assert len(lazyrt.live_tensors()) <= live + 1
    with pytest.raises(lazyrt.errors.LostValueError, match="only recorded to see"):
        net.last.cpu()
    assert y.tolist() == (torch.ones(5, 3) * 2).tolist()


def test_a_call_that_needs_a_value_says_so_and_runs_nothing():
    x = torch.ones(3, device=DEVICE)
    lazyrt.mark_step()
    y = x + 1
    before = lazyrt.counters()["executions"]

    with pytest.raises(StepSyncError, match="item") as caught:
        rehearse(lambda t: t * float((t * 2).sum().item()), x)

    assert "of which nothing runs" in "".join(caught.value.__notes__)
    assert lazyrt.counters()["executions"] == before
    assert lazyrt.is_pending(y)


def test_a_call_without_a_lazy_result_is_refused():
    with pytest.raises(UsageError, match=r"Linear gave Tensor.*\.to\('lazyrt'\)"):
        rehearse(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(UsageError, match="gave int"):
        rehearse(lambda x: 3, torch.ones(1, device=DEVICE))


def test_a_large_call_is_not_cut_by_the_limit_of_pending_ops(monkeypatch):
    x = torch.ones(3, device=DEVICE)
    lazyrt.mark_step()
    limit = lazyrt.config.max_pending_nodes

    def long(t):
        for _ in range(30):
            t = torch.sin(t)
        return t

    with lazyrt.config.scoped(max_pending_nodes=10):
        found = rehearse(long, x)

    assert len(found.graph.nodes) == 30
    assert lazyrt.config.max_pending_nodes == limit
    assert lazyrt.pending_graph().nodes == ()


def test_eager_debug_mode_is_told_to_be_left():
    x = torch.ones(3, device=DEVICE)
    with lazyrt.eager_mode(), pytest.raises(UsageError, match="Leave the mode first"):
        rehearse(torch.sin, x)


@pytest.mark.lazy_only("reads what is pending")
def test_a_call_leaves_the_count_towards_the_bound_of_pending_ops(net):
    x = torch.zeros(2, device=DEVICE)
    lazyrt.mark_step()

    def barriers(look):
        with (
            config.scoped(max_pending_nodes=50),
            recorded(events.BarrierFinished) as found,
        ):
            for k in range(60):
                x.add_(1)
                if look and k == 30:
                    rehearse(net, torch.ones(5, 3, device=DEVICE))
        lazyrt.mark_step()
        return [event.nodes for event in found]

    assert barriers(look=False) == barriers(look=True)
