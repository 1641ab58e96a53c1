import gc
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.config import config
from lazyrt.execution import compiler, executor, peek
from lazyrt.frontend import record
from lazyrt.frontend.buffers import state_of
from lazyrt.ir import live
from tests.harness import DEVICE

pytestmark = pytest.mark.slow


def usage():
    """Return everything that must not grow from step to step."""
    lazyrt.wait()
    gc.collect()
    tensors = lazyrt.live_tensors()
    return {
        "tensors": len(tensors),
        "bytes": sum(tensor.nbytes for tensor in tensors),
        "nodes": record.interned_nodes(),
        "plans": len(executor._plans),
        "executables": len(compiler._executables),
        "slices": len(peek._slices),
        "inputs": len(live.pending.inputs),
        "memo": len(live.pending.memo),
        "leaves": live.count_leaves(),
        "arrays": _device_arrays(),
    }


def _device_arrays():
    import jax

    return len(jax.live_arrays())


class Loop:
    def __init__(self, optimiser):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
        self.model.to(DEVICE)
        self.optimizer = optimiser(self.model.parameters())
        self.total = torch.zeros(1, device=DEVICE)

    def step(self, number):
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / (number + 1)
        self.optimizer.zero_grad()
        x = torch.full((3, 4), float(number)).to(DEVICE)
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.total += loss.detach()


@pytest.mark.parametrize(
    ("optimiser", "steps"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 400),
        (lambda p: torch.optim.AdamW(p, lr=0.1), 200),
    ],
)
def test_hundreds_of_steps_leave_nothing_behind(optimiser, steps):
    loop = Loop(optimiser)
    found = []
    for rounds in (10, steps):  # from one line: steps from another one are other nodes
        for number in range(rounds):
            loop.step(number)
            if number in {4, 9}:
                lazyrt.mark_step()
        lazyrt.mark_step()
        found.append(usage())

    assert found[0] == found[1]


def test_steps_with_prints_and_reads_leave_nothing_behind():
    loop = Loop(lambda p: torch.optim.SGD(p, lr=0.1))

    def look(number):
        loop.step(number)
        repr(loop.total)
        y = loop.total * 2
        f"{y.sum():.2f}"
        lazyrt.materialise(y)
        lazyrt.snapshot(y)
        lazyrt.stand_in(y)
        lazyrt.pending_graph()
        loop.total.item()

    found = []
    for rounds in (5, 50):
        for number in range(rounds):
            look(number)
        lazyrt.mark_step()
        found.append(usage())

    assert found[0] == found[1]


def test_constants_that_differ_each_time_stay_within_the_limit():
    x = torch.ones(2, device=DEVICE)
    seen = []

    with config.scoped(max_interned_nodes=200):
        for number in range(300):
            y = torch.full((2,), number, device=DEVICE)
            z = x.pow(number % 7).cumsum(0).view(2, 1).expand(2, 1 + number)
            del y, z
            if number % 10 == 9:
                lazyrt.mark_step()
                seen.append(record.interned_nodes())

    assert max(seen) <= 200 + 100
    assert (x + 1).tolist() == [2.0, 2.0]


def test_values_stay_right_when_the_tables_are_emptied():
    x = torch.zeros(2, device=DEVICE)
    view = x[:1]

    with config.scoped(max_interned_nodes=1):
        for _number in range(5):
            x.add_(1)
            view.mul_(2)
            repr(x)
            lazyrt.mark_step()

    assert x.tolist() == [62.0, 5.0]


def test_a_dead_tensor_frees_its_data_at_once():
    import jax

    x = torch.ones(1000, device=DEVICE)
    lazyrt.mark_step()
    lazyrt.wait()
    reference = weakref.ref(state_of(x))
    count = len(jax.live_arrays())

    del x

    assert reference() is None
    assert len(jax.live_arrays()) == count - 1


@pytest.mark.parametrize(
    "look",
    [
        repr,
        lazyrt.materialise,
        lazyrt.snapshot,
        lazyrt.stand_in,
        lazyrt.plan,
        lazyrt.pending_graph,
        lambda t: t.cpu(),
        lambda t: t.sum().item(),
        lambda t: lazyrt.live_tensors(),
        lambda t: lazyrt.live_tensors_report(),
        lambda t: str(lazyrt.live_tensors_report(1)),
        lambda t: lazyrt.pending_graph(t).lower().as_text(),
    ],
)
def test_looking_keeps_no_tensor_alive(look):
    y = torch.ones(3, device=DEVICE) * 2
    reference = weakref.ref(state_of(y))
    kept = look(y)

    del y
    lazyrt.mark_step()
    lazyrt.wait()
    gc.collect()

    assert reference() is None
    del kept


FIRST_OP = """
import gc
gc.disable()
import torch, lazyrt

def first():
    hidden = torch.ones(3, device="lazyrt")
    return (hidden + 1).exp().sum().item()

first()
print(len(lazyrt.live_tensors()))
"""


def test_what_the_first_op_loads_keeps_no_frame_of_the_users():
    """torch keeps the frames from which it loads TorchDynamo."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_OP], capture_output=True, text=True, check=True
    )

    assert done.stdout == "0\n"


def test_dead_pending_tensors_are_gone_after_the_barrier():
    references = []
    for _ in range(10):
        y = torch.ones(3, device=DEVICE).exp()
        references.append(weakref.ref(state_of(y)))
    del y

    lazyrt.mark_step()
    gc.collect()

    assert all(reference() is None for reference in references)


def test_autograd_graphs_die_with_their_loss():
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    saved = x.exp()
    reference = weakref.ref(state_of(saved))
    loss = saved.sum()
    del saved
    lazyrt.mark_step()
    assert reference() is not None

    del loss
    gc.collect()

    assert reference() is None


def test_live_tensors_lists_each_storage_once_with_its_state():
    lazyrt.mark_step()
    gc.collect()
    before = len(lazyrt.live_tensors())
    x = torch.ones(4, 4).to(DEVICE)
    y = x * 2
    view = y.view(-1)
    parameter = nn.Parameter(x)

    found = lazyrt.live_tensors()

    assert len(found) == before + 2
    pending = [tensor for tensor in found if tensor.pending]
    assert [(t.shape, t.dtype, t.nbytes) for t in pending] == [
        ((4, 4), torch.float32, 64)
    ]
    assert pending[0].op == "aten.mul.Tensor"
    assert pending[0].site
    assert pending[0].site.file == __file__
    assert pending[0].is_root
    assert str(pending[0]).startswith(
        "f32[4,4] pending: aten.mul.Tensor, test_leaks.py:"
    )
    assert view is not parameter
    lazyrt.mark_step()
    assert [t for t in lazyrt.live_tensors() if t.pending] == []


def test_listeners_and_events_keep_no_tensor_alive():
    from tests.harness import recorded

    with recorded() as found:
        y = torch.ones(3, device=DEVICE) * 2
        reference = weakref.ref(state_of(y))
        lazyrt.mark_step()
        y.cpu()
        del y

    assert found
    assert reference() is None
