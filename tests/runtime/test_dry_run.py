"""A call that is recorded to be seen leaves everything as it was."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import lazyrt
from lazyrt.config import config
from lazyrt.control.dry_run import dry_run
from lazyrt.errors import StepSyncError, UsageError
from lazyrt.observe import events
from tests.harness import DEVICE, grad_of, recorded

pytestmark = pytest.mark.not_eager("records a call without running it")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.last = None
        self.seen = []

    def forward(self, x, *, scale=1.0):
        hidden = torch.dropout(self.norm(self.first(x)), 0.5, True)  # noqa: FBT003
        self.last = hidden
        self.seen.append(hidden)
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
                dry_run(net, x)
            dry_run(net, x, scale=2.0)
        out = net(x)["both"][0] + pending.sum()
        facts.append(lazyrt.pending_graph().fingerprint)
        if look:
            dry_run(net, x)
        net.last = None
        net.seen.clear()  # what a call does to a list stays
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


def test_a_call_draws_no_number_on_the_host():
    draws = (random.random, np.random.rand, lambda: torch.rand(()).item())
    x = torch.ones(3, device=DEVICE)
    seen = []
    for look in (False, True):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        if look:
            dry_run(lambda x: x * sum(draw() for draw in draws), x)
        seen.append([draw() for draw in draws])

    assert seen[0] == seen[1]


def test_nothing_runs_and_nothing_stays(net):
    x = torch.ones(5, 3, device=DEVICE)
    y = x * 2
    shown, before = lazyrt.pending_graph().fingerprint, lazyrt.counters()
    live = len(lazyrt.live_tensors())

    found = dry_run(net, x)

    assert lazyrt.counters() == before
    assert lazyrt.pending_graph().fingerprint == shown
    assert {node.op.name for node in found.graph.nodes} >= {
        "aten.addmm.default",
        "aten.native_dropout.default",
    }
    assert sorted(found.outputs.values()) == ["both[0]", "both[1]", "hidden"]
    names = {held.name for held in found.holdings.values()}
    assert {"x", "net.first.weight", "net.norm.running_mean"} <= names
    # What a list of the module's kept of the call is told to be lost, and why.
    assert net.last is None
    assert len(lazyrt.live_tensors()) <= live + 1
    for use in (torch.Tensor.cpu, torch.sin, nn.Linear(4, 2).to(DEVICE)):
        with pytest.raises(lazyrt.errors.LostValueError, match="only recorded to see"):
            use(net.seen[0])
    assert y.tolist() == (torch.ones(5, 3) * 2).tolist()


def test_a_call_that_needs_a_value_says_so_and_runs_nothing():
    x = torch.ones(3, device=DEVICE)
    lazyrt.mark_step()
    y = x + 1
    before = lazyrt.counters()["executions"]

    with pytest.raises(StepSyncError, match="item") as caught:
        dry_run(lambda t: t * float((t * 2).sum().item()), x)

    assert "of which nothing runs" in "".join(caught.value.__notes__)
    assert lazyrt.counters()["executions"] == before
    assert lazyrt.is_pending(y)


def test_a_call_without_a_lazy_result_is_refused():
    with pytest.raises(UsageError, match=r"Linear gave Tensor.*\.to\('lazyrt'\)"):
        dry_run(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(UsageError, match="gave int"):
        dry_run(lambda x: 3, torch.ones(1, device=DEVICE))


def test_a_large_call_is_not_cut_by_the_limit_of_pending_ops(monkeypatch):
    x = torch.ones(3, device=DEVICE)
    lazyrt.mark_step()
    limit = lazyrt.config.max_pending_nodes

    def long(t):
        for _ in range(30):
            t = torch.sin(t)
        return t

    with lazyrt.config.scoped(max_pending_nodes=10):
        found = dry_run(long, x)

    assert len(found.graph.nodes) == 30
    assert lazyrt.config.max_pending_nodes == limit
    assert lazyrt.pending_graph().nodes == ()


def test_eager_debug_mode_is_told_to_be_left():
    x = torch.ones(3, device=DEVICE)
    with lazyrt.eager_mode(), pytest.raises(UsageError, match="Leave the mode first"):
        dry_run(torch.sin, x)


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
                    dry_run(net, torch.ones(5, 3, device=DEVICE))
        lazyrt.mark_step()
        return [event.nodes for event in found]

    assert barriers(look=False) == barriers(look=True)


def test_a_call_that_writes_its_argument_leaves_the_arguments_history():
    weight = torch.ones(4, device=DEVICE, requires_grad=True)
    hidden = weight * torch.tensor([1.0, -1.0, 2.0, -2.0]).to(DEVICE)
    plain = torch.ones(4, device=DEVICE)

    dry_run(nn.ReLU(inplace=True), hidden)
    dry_run(lambda pair: pair["plain"].mul_(weight), {"plain": plain})
    hidden.square().sum().backward()

    assert grad_of(weight).tolist() == [2.0, 2.0, 8.0, 8.0]
    assert not plain.requires_grad
    assert plain.tolist() == [1.0] * 4


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_a_call_that_derives_what_the_program_has_computed_leaves_it_to_the_program(
    reentrant,
):
    def squares(t):
        if reentrant is None:
            return t * t
        return checkpoint(torch.square, t, use_reentrant=reentrant)

    weight = torch.full((3,), 2.0, device=DEVICE, requires_grad=True)
    loss = squares(weight * 1).sum()

    def derive(loss):
        loss.backward()
        return weight.grad

    found = dry_run(derive, loss)
    gradient = derive(loss)

    assert found.graph.fingerprint == lazyrt.pending_graph(gradient).fingerprint
    assert gradient.tolist() == [4.0] * 3


class Counting(nn.Module):
    """Writes a buffer that its derivative reads, and gives attributes other values."""

    scale: torch.Tensor
    calls: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("calls", torch.zeros(()))
        self.weight = nn.Parameter(torch.ones(4))
        self.times = 0

    def forward(self, x):
        self.scale.add_(1)
        self.calls, self.times = self.calls + 1, self.times + 1
        self.extra = self.weight * 2
        return x * self.weight * self.scale


def test_a_call_leaves_a_modules_attributes_and_the_derivatives_of_calls_before_it():
    net = Counting().to(DEVICE)
    x = torch.ones(2, 4, device=DEVICE)

    loss = net(x).sum()
    extra = net.extra
    dry_run(net, x)
    dry_run(net.forward, x)
    loss.backward()

    assert grad_of(net.weight).tolist() == [4.0] * 4
    assert (net.times, net.calls.item(), net.extra is extra) == (1, 1.0, True)


def test_a_call_leaves_tensors_the_memory_that_they_had():
    linear = nn.Linear(2, 2, bias=False).to(DEVICE)
    average = torch.ones(2, device=DEVICE)
    values = linear.weight.tolist()
    doubled = linear.weight * 2

    def call(x):
        linear.weight.data = linear.weight.data[:1] / 2
        average.data = x[0] * 2
        linear.weight.requires_grad = False
        torch.set_grad_enabled(False)
        return linear(x).sum() + average

    dry_run(call, torch.ones(2, 2, device=DEVICE))

    assert linear.weight.tolist() == values
    assert average.tolist() == [1, 1]
    assert torch.is_grad_enabled()
    doubled.sum().backward()
    assert grad_of(linear.weight).tolist() == [[2.0, 2.0]] * 2
    assert linear(torch.ones(2, device=DEVICE)).requires_grad


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_whole_training_step_is_taken_back_with_gradients_and_optimizer(optimizer):
    def run(look):
        torch.manual_seed(0)
        net = nn.Linear(3, 2).to(DEVICE)
        steps = optimizer(net.parameters(), lr=0.1)
        x = torch.ones(4, 3, device=DEVICE)

        def train(x):
            loss = net(x).square().mean()
            loss.backward()
            steps.step()
            return loss

        losses = []
        for _ in range(2):
            if look:
                assert dry_run(train, x).outputs
            losses.append(train(x).item())
            gradient = net.weight.grad
            if look:
                dry_run(train, x)
            assert net.weight.grad is gradient
            steps.zero_grad()
        return losses

    assert run(look=True) == run(look=False)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_call_within_a_checkpoint_is_no_part_of_it(net, reentrant):
    x = torch.ones(5, 3, device=DEVICE, requires_grad=True)
    lazyrt.mark_step()
    seen = []
    for looks in ([], [net]):

        def part(x, looks=looks):
            hidden = torch.tanh(net.first(x))
            while looks:  # in the forward call, and not where it is computed again
                dry_run(looks.pop(), x)
            return hidden.square()

        checkpoint(part, x, use_reentrant=reentrant).sum().backward()
        seen.append(lazyrt.pending_graph().fingerprint)
        lazyrt.discard_pending()
        net.zero_grad()
        x.grad = None

    assert seen[0] == seen[1]


def test_a_counter_of_ops_counts_no_call_that_is_taken_back(net):
    x = torch.ones(5, 3, device=DEVICE)
    with FlopCounterMode(display=False) as counted:
        net.first(x)
        dry_run(net.first, x)

    assert counted.get_total_flops() == 2 * 5 * 3 * 4


def test_the_ops_of_a_call_that_is_taken_back_are_no_nodes_of_the_program():
    x = torch.ones(5, 3, device=DEVICE)
    call = dry_run(torch.tanh, x)

    own = lazyrt.pending_graph(torch.tanh(x))

    assert own.fingerprint == call.graph.fingerprint
    assert own.nodes[-1] is not call.graph.nodes[-1]
    assert own.nodes[-1].provenance.step == ""


def test_views_of_what_a_call_leaves_alone_keep_their_lines():
    x = torch.ones(4, device=DEVICE) * 2
    kept = x.view(2, 2)
    lazyrt.begin_cell()

    dry_run(torch.sin, x)

    used, _ = lazyrt.pending_graph(kept + 1).nodes[-2:]
    own = lazyrt.pending_graph(x.view(2, 2)).nodes[-1]
    assert used.op is own.op
    assert used is not own
    sites = [node.provenance.site for node in (used, own)]
    assert sites[0] != sites[1]


def test_equal_arguments_are_one_tensor_to_the_call():
    x = torch.ones(2, 3, device=DEVICE) * 2
    same = []

    def add(a, b, others):
        same.append(a is b is others[0])
        return a + b

    dry_run(add, x, x, [x])

    assert same == [True]


def test_a_call_that_would_decide_shapes_or_is_transformed_is_refused():
    x = torch.ones(2, 3, device=DEVICE)
    net = nn.LazyLinear(4).to(DEVICE)

    with pytest.raises(UsageError, match="decide the shapes"):
        dry_run(net, x)
    with pytest.raises(UsageError, match="within a transform"):
        torch.func.grad(lambda t: dry_run(torch.sin, t))(x)

    assert net(x).shape == (2, 4)


def test_what_stands_for_a_pending_tensor_is_still_there_after_a_call(net):
    x = torch.ones(5, 3, device=DEVICE)
    kept = lazyrt.stand_in(x * 2)

    dry_run(net, x)

    assert lazyrt.materialise(kept).tolist() == [[2.0] * 3] * 5
