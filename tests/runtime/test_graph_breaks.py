"""Functions that TorchDynamo compiles in parts: values and executions are the program's own."""

import contextlib
import importlib
import sys

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.frontend import torch_compat
from tests.harness import DEVICE, assert_same, run_python

# TorchDynamo asks each tensor for its gradient, and hides torch's warning unless it is an error.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
}


@pytest.fixture(autouse=True)
def _no_graphs_of_others():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Training:
    """A model, its optimizer, and programs that each break the compiled graph."""

    def __init__(self, optimizer, device):
        torch.manual_seed(1)
        self.model = nn.Linear(4, 3).to(device)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.seen = []

    def loss(self, x):
        return self.model(x).square().mean()

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def whole_step(self, x):
        loss = self.loss(x)
        self.update(loss)
        return loss

    def item(self, x):
        y = self.model(x)
        self.seen.append(round(y.sum().item(), 3))
        return y.square().mean()

    def shown(self, x):
        y = self.model(x)
        print(y.sum())  # noqa: T201 - breaks the graph
        return y.square().mean()

    def branch(self, x):
        y = self.model(x)
        if y.sum() > 0:
            y = y * 2
        return y.square().mean()

    def positions(self, x):
        y = self.model(x)
        return y[(x > 0).nonzero()[:, 0]].square().mean()

    def mask(self, x):
        return self.model(x)[x[:, :3] > 0].square().mean()

    def array(self, x):
        y = self.model(x)
        self.seen.append(round(float(y.detach().cpu().numpy().sum()), 3))
        return y.square().mean()

    def listed(self, x):
        y = self.model(x)
        self.seen.append([round(each, 3) for each in y.detach().sum(1).tolist()])
        return y.square().mean()

    def marked(self, x):
        loss = self.loss(x)
        mark(x)
        return loss * 2

    def scoped(self, x):
        with step_on(x):
            loss = self.loss(x)
        return loss * 2

    def clipped(self, x):
        loss = self.loss(x)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        return loss

    def accumulated(self, x):
        self.optimizer.zero_grad()
        total = x.new_zeros(())
        for part in x.split(2):
            loss = self.loss(part)
            loss.backward()
            total = total + loss.detach()
        self.optimizer.step()
        return total


def mark(x):
    if x.device.type == DEVICE:
        lazyrt.mark_step()


def step_on(x):
    return lazyrt.step() if x.device.type == DEVICE else contextlib.nullcontext()


UPDATING = ("whole_step", "clipped", "accumulated")
READING = ("item", "shown", "branch", "positions", "mask", "array", "listed")
MARKING = ("marked", "scoped")
CASES = [
    *((program, optimizer) for program in UPDATING for optimizer in OPTIMIZERS),
    *((program, "Adam") for program in (*READING, *MARKING)),
]


def train(program, optimizer, device, compiler=lambda function: function):
    """Train three steps; return the losses, what the program saw, and the model."""
    training = Training(optimizer, device)
    function = compiler(getattr(training, program))
    losses = []
    for i in range(3):
        torch.manual_seed(2 + i)
        x = torch.randn(4, 4).to(device)
        loss = function(x)
        if program not in UPDATING:
            training.update(loss)
        losses.append(loss.detach())
    return torch.stack([loss.cpu() for loss in losses]), training


def check(program, optimizer, compiler):
    """Compare three compiled steps with the CPU's, and with plain ones that we run."""
    expected, cpu = train(program, optimizer, "cpu")
    lazyrt.mark_step()
    lazyrt.reset_counters()
    train(program, optimizer, DEVICE)
    lazyrt.mark_step()
    plain = lazyrt.counters()
    lazyrt.reset_counters()

    found, lazy = train(program, optimizer, DEVICE, compiler)
    lazyrt.mark_step()
    compiled = lazyrt.counters()

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert str(lazy.seen) == str(cpu.seen)
    for ours, theirs in zip(
        lazy.model.parameters(), cpu.model.parameters(), strict=True
    ):
        assert_same(ours, theirs, 1e-4)
    for count in ("executions", "cpu_fallbacks"):
        assert compiled[count] == plain[count], count


@pytest.mark.slow
@pytest.mark.lazy_only("is about what is recorded")
@pytest.mark.parametrize(("program", "optimizer"), CASES)
def test_a_compiled_program_that_breaks_its_graph_computes_what_the_cpu_does(
    program, optimizer
):
    check(program, optimizer, torch.compile)


@pytest.mark.slow
@pytest.mark.lazy_only("is about what is recorded")
@pytest.mark.parametrize(
    ("backend", "program"),
    [("lazyrt", "clipped"), ("eager", "clipped"), ("aot_eager", "positions")],
)
def test_breaks_are_harmless_whatever_the_backend(backend, program):
    chosen = lazyrt.dynamo_backend if backend == "lazyrt" else backend

    check(program, "Adam", lambda f: torch.compile(f, backend=chosen))


@pytest.mark.lazy_only("is about what is recorded")
def test_only_the_programs_own_functions_are_traced():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def function(x):
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        return y

    found = torch.compile(function, backend=backend)(torch.ones(3, device=DEVICE))

    assert found.tolist() == [3.0, 3.0, 3.0]
    assert len(graphs) == 2


AWAITED = "transformers.integrations.moe"  # the only one of whom no import came
EARLY_AND_LATE = """
import sys
import torch
{before}
import lazyrt
print("torch._dynamo" in sys.modules, end=" ")
@torch.compile(backend="eager")
def function(x):
    y = x.sum()
    if y.item() > 0: y = y * 2
    return y
print(function(torch.ones(3, device="lazyrt")).item(), end=" ")
print(*[each._name for each in sys.meta_path if type(each).__name__ == "_WhenLoaded"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("anew", "printed"),
    [(True, f"False 6.0 {AWAITED}"), (False, f"True 6.0 {AWAITED}")],
)
def test_breaks_are_harmless_whichever_is_imported_first(anew, printed):
    """And importing lazyrt does not import torch's Dynamo."""
    before = "" if anew else "import torch._dynamo"
    assert run_python(EARLY_AND_LATE.format(before=before), anew=anew) == printed


def test_an_import_that_failed_is_waited_for_again(tmp_path, monkeypatch):
    module = tmp_path / "waited_for.py"
    module.write_text("raise ValueError('not yet')")
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded: list[object] = []
    watcher = torch_compat._WhenLoaded("waited_for", loaded.append)
    sys.meta_path.insert(0, watcher)

    with pytest.raises(ValueError, match="not yet"):
        importlib.import_module("waited_for")
    module.write_text("value = 'this time'")
    importlib.invalidate_caches()
    found = importlib.import_module("waited_for")

    assert loaded == [found]
    assert found.value == "this time"
    assert watcher not in sys.meta_path
    del sys.modules["waited_for"]
