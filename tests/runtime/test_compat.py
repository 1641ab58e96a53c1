"""Scripts written for torch_xla run with only their import lines changed."""

import asyncio
import importlib
import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import lazyrt
from lazyrt import compat
from lazyrt.compat import (
    _XLAC,
    common,
    experimental,
    runtime,
    stablehlo,
    torch_xla,
)
from lazyrt.compat import spmd_fully_sharded_data_parallel as fsdp
from lazyrt.compat import xla_model as xm
from lazyrt.compat.debug import metrics as met
from lazyrt.compat.debug import profiler as xp
from lazyrt.compat.distributed import parallel_loader as pl
from lazyrt.compat.distributed import spmd as xs
from lazyrt.compat.distributed import xla_multiprocessing as xmp
from lazyrt.config import config
from lazyrt.errors import (
    NoEquivalentError,
    ScopeError,
    StepSyncError,
    TooManyGraphsError,
    UsageError,
)
from lazyrt.ir import active
from tests.harness import DEVICE, cold_start

ROOT = Path(__file__).parent.parent.parent
TABLE = ROOT / "docs" / "coming-from-torch-xla.md"
IMPORTS = {
    "import torch_xla.core.xla_model as xm": "import lazyrt.compat.xla_model as xm",
    "import torch_xla.debug.metrics as met": "import lazyrt.compat.debug.metrics as met",
    "import torch_xla.debug.profiler as xp": "import lazyrt.compat.debug.profiler as xp",
    "import torch_xla.distributed.parallel_loader as pl": (
        "import lazyrt.compat.distributed.parallel_loader as pl"
    ),
    "import torch_xla.runtime as xr": "import lazyrt.compat.runtime as xr",
    "import torch_xla": "import lazyrt.compat.torch_xla as torch_xla",
}


def run_script(text, **names):
    """Run a script of torch_xla with its import lines changed, and nothing else."""
    lines = [IMPORTS.get(line, line) for line in text.strip().splitlines()]
    changed = [old for old, new in zip(text.strip().splitlines(), lines) if old != new]  # noqa: B905
    assert changed
    assert all(line.startswith("import torch_xla") for line in changed)
    names["__name__"] = "script"
    exec(compile("\n".join(lines), "script.py", "exec"), names)  # noqa: S102
    return names


EAGER_DEBUG = """
import torch
import torch_xla.core.xla_model as xm
dev = xm.xla_device()
{switch}
linear1 = torch.nn.Linear(10,30).to(dev)
linear2 = torch.nn.Linear(30,20).to(dev)
linear3 = torch.nn.Linear(20,10).to(dev)
linear4 = torch.nn.Linear(10,1).to(dev)
inp = torch.randn(2,10).to(dev)
output1 = linear1(inp)
output2 = linear2(output1)
{breakpoint}
output3 = linear3(output2)
output4 = linear4(output3)
xm.mark_step()
shown = output4.to('cpu'), output3.to('cpu')
"""


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_seed_000_a_mark_at_the_breakpoint_cuts_the_program_in_two():
    cold_start()
    lazyrt.reset_counters()
    script = EAGER_DEBUG.format(switch="", breakpoint="xm.mark_step()")

    names = run_script(script)

    assert lazyrt.counters()["compiles"] == lazyrt.counters()["executions"] == 2
    four, three = names["shown"]
    torch.testing.assert_close(four, names["linear4"].cpu()(three))


def test_seed_000_the_pitch_runs_as_it_was_written():
    script = EAGER_DEBUG.format(
        switch="xm.enable_eager_execution()", breakpoint="first = output1.to('cpu')"
    )
    try:
        names = run_script(script)
        assert not lazyrt.is_pending(names["output4"])
        assert experimental.is_eager_mode()
    finally:
        experimental.eager_mode(enable=False)

    assert names["first"].shape == (2, 30)


OP_BY_OP = """
import torch
import torch_xla.core.xla_model as xm
import os

os.environ["XLA_GET_TENSORS_OPBYOP"] = "1"
os.environ["XLA_SYNC_TENSORS_OPBYOP"] = "1"
dev = xm.xla_device()
linear1 = torch.nn.Linear(10,30).to(dev)
linear2 = torch.nn.Linear(30,20).to(dev)
linear3 = torch.nn.Linear(20,10).to(dev)
linear4 = torch.nn.Linear(10,1).to(dev)
inp = torch.randn(2,10).to(dev)
output1 = linear1(inp)
output2 = linear2(output1)
output3 = linear3(output2)
output4 = linear4(output3)
output4.to('cpu')
output3.to('cpu')
"""


@pytest.fixture
def switches_of_torch_xla(monkeypatch):
    """Put the modes back that a script's variables have set."""
    monkeypatch.setattr(common, "_taken", {})
    before = {n: (getattr(config, n), config.origin(n)) for n in _MODES}
    yield monkeypatch
    for name, (value, origin) in before.items():
        config.set(name, value, origin=origin)


_MODES = ("eager", "op_by_op_reads", "op_by_op_barriers")


@pytest.mark.lazy_only("counts executions of one mode")
def test_seed_000_the_variables_that_a_script_sets_switch_its_mode(
    switches_of_torch_xla,
):
    """8 nodes for `output4`, and 6 of them again for `output3`."""
    lazyrt.reset_counters()

    run_script(OP_BY_OP)

    counts = lazyrt.counters()
    assert (counts["op_by_op_executions"], counts["op_by_op_repeats"]) == (14, 6)
    assert lazyrt.mode() == "opbyop"
    assert lazyrt.mode().scope == "environment variable XLA_GET_TENSORS_OPBYOP"


@pytest.mark.lazy_only("sets the mode")
def test_a_variable_of_torch_xla_is_taken_once(switches_of_torch_xla):
    switches_of_torch_xla.setenv("XLA_USE_EAGER_DEBUG_MODE", "1")
    torch_xla.device()
    assert lazyrt.mode() == "eager"

    lazyrt.eager_mode(False)  # noqa: FBT003 - what a user types
    xm.xla_device()  # asks again, as every function of a script does
    assert lazyrt.mode() == "lazy"

    switches_of_torch_xla.setenv("XLA_USE_EAGER_DEBUG_MODE", "maybe")
    with pytest.raises(UsageError, match="XLA_USE_EAGER_DEBUG_MODE is 'maybe'"):
        xm.xla_device()


RESNET_BEFORE = """
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
device = xm.xla_device()
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_fn = torch.nn.CrossEntropyLoss()
tracker = xm.RateTracker()
loader = pl.MpDeviceLoader(batches, device)
losses = []

def train_update(device, step, loss, tracker, epoch, writer):
    losses.append((step, loss.item()))

for step, (data, target) in enumerate(loader):
    optimizer.zero_grad()
    output = model(data)
    loss = loss_fn(output, target)
    loss.backward()
    xm.optimizer_step(optimizer)
    tracker.add(len(data))
    xm.add_step_closure(
        train_update, args=(device, step, loss, tracker, 0, None))
"""
RESNET_AFTER = """
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
device = torch_xla.device()
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_fn = torch.nn.CrossEntropyLoss()
loader = pl.MpDeviceLoader(batches, device)
losses = []

def train_update(step, loss):
    losses.append((step, loss.item()))

for step, (data, target) in enumerate(loader):
    with torch_xla.step():
        optimizer.zero_grad()
        output = model(data)
        loss = loss_fn(output, target)
        loss.backward()
        xm.optimizer_step(optimizer)
    train_update(step, loss)
"""


def batches():
    generator = torch.Generator().manual_seed(7)
    return [
        (torch.randn(6, 4, generator=generator), torch.tensor([0, 1, 1, 0, 1, 0]))
        for _ in range(4)
    ]


def on_the_cpu():
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step, (data, target) in enumerate(batches()):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append((step, loss.item()))
    return losses


@pytest.mark.lazy_only("counts graphs and executions of steps")
@pytest.mark.parametrize("script", [RESNET_BEFORE, RESNET_AFTER])
def test_seed_001_the_training_loop_before_and_after_gives_the_same_losses(script):
    torch.manual_seed(3)
    lazyrt.reset_counters()

    names = run_script(script, batches=batches())

    lazyrt.wait()
    assert [step for step, _ in names["losses"]] == [0, 1, 2, 3]
    for (_, lazy_loss), (_, loss) in zip(names["losses"], on_the_cpu(), strict=True):
        assert lazy_loss == pytest.approx(loss, rel=1e-5)
    assert lazyrt.counters()["executions"] == 4


PROFILED = """
import torch
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
device = xm.xla_device()
model = torch.nn.Linear(4, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
met.clear_all()
for step in range(3):
    with xp.StepTrace('Training_Step', step_num=step):
        with xp.Trace('forward'):
            loss = model(torch.ones(3, 4, device=device)).sum()
        with xp.Trace('backward'):
            loss.backward()
        with xp.Trace('FINISH_UPDATE'):
            xm.reduce_gradients(optimizer)
            optimizer.step()
            optimizer.zero_grad()
report = met.metrics_report()
"""


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_seed_003_annotated_steps_run_once_each():
    names = run_script(PROFILED)

    assert "Counter: ExecuteComputation\n  Value: 3\n" in names["report"]
    assert "Metric: CompileTime" in met.short_metrics_report()
    assert not lazyrt.is_pending(names["loss"])


def test_seed_001_a_mark_inside_a_trace_is_the_originals_error_with_the_fix():
    y = torch.ones(2, device=DEVICE) * 2

    with (
        pytest.raises(ScopeError, match="Expecting scope to be empty but it is loss"),
        xp.Trace("loss"),
    ):
        xm.mark_step()
    with xp.Trace("loss"):
        xm.mark_step(reset_scope=False)

    assert not lazyrt.is_pending(y)


def test_compiled_functions_are_steps_of_their_own():
    cold_start()
    lazyrt.reset_counters()
    model = torch.nn.Linear(3, 3).to(DEVICE)
    before = torch.ones(3, device=DEVICE) * 5

    @torch_xla.compile
    def square(x):
        return x * x

    @torch_xla.compile(name="twice")
    def twice(x):
        return x + x

    y = square(torch.full((3,), 2.0, device=DEVICE))
    z = twice(y)
    with torch_xla.compile():
        w = torch_xla.compile(model)(z)

    assert not any(map(lazyrt.is_pending, (before, y, z, w)))
    assert (y.tolist(), z.tolist()) == ([4.0] * 3, [8.0] * 3)
    assert square.__name__ == "square"


def test_a_full_graph_refuses_reads_and_a_step_allows_them():
    x = torch.ones(3, device=DEVICE)

    with torch_xla.step():
        assert (x * 2).sum().item() == 6.0
    with pytest.raises(StepSyncError), torch_xla.compile(full_graph=True):
        (x * 2).sum().item()


def test_a_block_may_have_only_so_many_graphs():
    compiled = torch_xla.compile(lambda x: x * 2, name="grow", max_different_graphs=2)

    for size in (2, 3, 2):
        compiled(torch.ones(size, device=DEVICE))
    with pytest.raises(TooManyGraphsError, match="grow has run 3 different graphs"):
        compiled(torch.ones(4, device=DEVICE))


def test_a_compiled_block_is_lazy_in_eager_mode():
    with experimental.eager_mode_context(enable=True):
        lazyrt.reset_counters()
        with torch_xla.compile():
            y = torch.ones(4, device=DEVICE) * 2 + 1
        executions = lazyrt.counters()["executions"]

    assert executions == 1
    assert y.tolist() == [3.0] * 4


@pytest.mark.parametrize(
    "block",
    [torch_xla.compile(full_graph=True), xp.Trace("loss"), xp.StepTrace("loss")],
)
def test_a_block_that_two_threads_have_entered_is_left_by_each(block):
    second_entered, first_left = Event(), Event()

    def first():
        with block:
            second_entered.wait(60)
        first_left.set()
        return active.steps(), active.scopes()

    def second():
        with block:
            inside = len(active.steps()) + len(active.scopes())
            second_entered.set()
            first_left.wait(60)
            still = len(active.steps()) + len(active.scopes())
        return inside == still > 0, active.steps(), active.scopes()

    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(first)
        other = threads.submit(second)

        assert one.result() == ((), ())
        assert other.result() == (True, (), ())


def test_a_block_that_two_coroutines_have_entered_is_left_by_each():
    block, left = xp.Trace("loss"), []

    async def scoped(name, waits):
        with block:
            await asyncio.sleep(0.01 * waits)
        left.append(name)
        return active.scopes()

    async def both():
        return await asyncio.gather(scoped("first", 1), scoped("second", 3))

    assert asyncio.run(both()) == [(), ()]
    assert left == ["first", "second"]


def test_a_block_may_lie_in_itself():
    block = xp.Trace("loss")

    with block:
        with block:
            assert [scope.name for scope in active.scopes()] == ["loss", "loss"]
        assert [scope.name for scope in active.scopes()] == ["loss"]

    assert active.scopes() == ()


def test_one_replica_is_the_master_and_needs_no_collectives(tmp_path, capsys):
    x = torch.ones(2, device=DEVICE) * 3

    assert xm.xrt_world_size() == runtime.world_size() == torch_xla.device_count() == 1
    assert xm.get_ordinal() == xm.get_local_ordinal() == runtime.global_ordinal() == 0
    assert xm.is_master_ordinal()
    assert xm.get_xla_supported_devices() == ["lazyrt:0"]
    assert torch_xla.devices() == [xm.xla_device()]
    assert (
        xm.xla_real_devices()
        == torch_xla.real_devices()
        == [f"{runtime.device_type()}:0"]
    )
    assert xm.is_xla_tensor(x)
    assert xm.all_reduce(xm.REDUCE_SUM, x).tolist() == [3.0, 3.0]
    assert xm.rendezvous("here", b"me") == [b"me"]
    assert xm.mesh_reduce("mean", x, lambda parts: parts[0].sum().item()) == 6.0
    assert xm.do_on_ordinals(lambda t: t.device.type, (x,)) == "cpu"
    assert xm.do_on_ordinals(lambda t: t, (x,), ordinals=(1,)) is None
    xm.master_print("hello")
    assert capsys.readouterr().out == "hello\n"


def test_saving_moves_everything_to_the_cpu(tmp_path):
    xm.save({"w": [torch.ones(2, device=DEVICE) * 2]}, tmp_path / "w.pt")

    (w,) = torch.load(tmp_path / "w.pt")["w"]
    assert w.device.type == "cpu"
    assert w.tolist() == [2.0, 2.0]


def test_batches_can_be_sent_by_hand_and_loaded_for_one_device():
    (sent,) = xm.send_cpu_data_to_device(torch.ones(2), xm.xla_device())
    loader = pl.ParallelLoader([torch.ones(2)] * 3, [xm.xla_device()])

    assert sent.device.type == DEVICE
    assert loader.per_device_samples() == 3
    batch_devices = {t.device.type for t in loader.per_device_loader(xm.xla_device())}
    assert batch_devices == {DEVICE}
    loader.close()


@dataclass(frozen=True)
class Batch:
    words: Any
    name: str


def test_batches_of_any_shape_are_sent_and_what_moves_itself_keeps_a_part():
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    datas: list[Any] = [
        packed,
        {"deep": (Batch(packed, "a"), OrderedDict(x=torch.ones(2)), 3)},
    ]

    sent = xm.send_cpu_data_to_device(datas, xm.xla_device())
    (loaded,) = pl.MpDeviceLoader([datas], xm.xla_device(), device_prefetch_size=0)

    for one, other in (sent, loaded):
        batch, ordered, number = other["deep"]
        assert number == 3
        assert type(batch) is Batch
        assert ordered["x"].device.type == DEVICE
        for each in (one, batch.words):
            assert each.data.device.type == DEVICE
            assert each.batch_sizes.tolist() == [2, 2, 1]
            assert each.batch_sizes.device.type == "cpu"
    assert datas[1]["deep"][1]["x"].device.type == "cpu"


@pytest.mark.not_eager("is about what is pending")
def test_what_is_pending_can_be_asked_of_the_extension_module():
    y = torch.ones(2, device=DEVICE).exp()

    assert "aten.exp.default" in torch_xla._XLAC._get_xla_tensors_text([y])
    assert "exponential" in torch_xla._XLAC._get_xla_tensors_hlo([y])
    assert torch_xla._XLAC._get_xla_tensors_text([]) == ""
    assert lazyrt.is_pending(y)


@pytest.mark.not_eager("is about what is pending")
def test_a_traced_function_labels_its_ops():
    cold_start()

    @xp.trace_me("labelled")
    def double(x, *, by):
        return x * by

    y = double(torch.ones(2, device=DEVICE), by=2)

    assert double.__name__ == "double"
    scopes = {node.provenance.scope for node in lazyrt.pending_graph(y).nodes}
    assert "labelled" in scopes


@pytest.mark.lazy_only("is about what is recorded")
def test_an_exported_program_runs_on_the_device_and_shows_its_stablehlo():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)
            self.register_buffer("shift", torch.ones(2))

        def forward(self, x, *, scale):
            return {"y": self.linear(x) * scale + self.shift, "z": torch.zeros(2) + 1}

    x, scale = torch.randn(4, 3), torch.tensor(2.0)
    exported = torch.export.export(Network(), (x,), {"scale": scale})
    expected = exported.module()(x, scale=scale)

    program = stablehlo.exported_program_to_stablehlo(exported)
    lazyrt.mark_step()
    lazyrt.reset_counters()
    found = program(x, scale=scale)
    text = program.get_stablehlo_text()
    options: Any = {"inline_all_constant": True}

    assert "stablehlo.dot_general" in text
    assert lazyrt.counters()["executions"] == 0
    for name, value in expected.items():
        torch.testing.assert_close(found[name].cpu(), value)
    with pytest.raises(UsageError, match="one method"):
        program.get_stablehlo_text("backward")
    with pytest.raises(UsageError, match="knows none"):
        stablehlo.exported_program_to_stablehlo(exported, options)


def test_random_states_fork_and_seeds_repeat():
    xm.set_rng_state(5)
    first = torch.rand(3, device=DEVICE).tolist()
    with xm.fork_rng():
        torch.rand(3, device=DEVICE).tolist()
    second = torch.rand(3, device=DEVICE).tolist()
    torch_xla.manual_seed(5)

    assert torch.rand(3, device=DEVICE).tolist() == first
    assert torch.rand(3, device=DEVICE).tolist() == second


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_metrics_have_the_originals_names_and_values():
    cold_start()
    met.clear_all()
    (torch.ones(3, device=DEVICE) * 2).tolist()
    xm.mark_step(wait=True)

    assert "UncachedCompile" in met.counter_names()
    assert met.counter_value("UncachedCompile") == 1
    assert met.counter_value("Nothing") is None
    assert "CompileTime" in met.metric_names()
    found = met.metric_data("CompileTime")
    assert found is not None
    count, total, samples = found
    assert (count, len(samples)) == (1, 1)
    assert samples[0][1] == total
    assert met.metric_data("XrtCompile") == met.metric_data("CompileTime")
    assert met.metric_data("Nothing") is None
    assert met.executed_fallback_ops() == []
    met.clear_counters()
    assert met.counter_value("UncachedCompile") is None
    assert met.metric_data("CompileTime") is not None
    met.clear_metrics()
    assert met.metric_data("CompileTime") is None
    assert "exact_durations" not in met.metrics_report(legacy=True)


@pytest.mark.not_eager("counts graphs and executions of steps")
def test_graphs_and_memory_can_be_asked_for():
    x = torch.ones(4, device=DEVICE)
    xm.mark_step()
    y = x * 2

    assert "stablehlo.multiply" in xm.get_stablehlo([y])
    info = xm.get_memory_info(xm.xla_device())
    assert 16 <= info["bytes_used"] < info["bytes_limit"]
    xm.unlazy([y])
    assert not lazyrt.is_pending(y)
    xm.wait_device_ops()
    assert lazyrt.in_flight() == 0


def test_one_process_stands_for_many(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "cache_dir", None)
    seen = []

    xmp.spawn(lambda index, word: seen.append((index, word)), args=("a",))
    torch_xla.launch(seen.append)
    runtime.initialize_cache(str(tmp_path))

    assert seen == [(0, "a"), 0]
    assert config.cache_dir == tmp_path


@pytest.mark.parametrize(
    "call",
    [
        lambda: xm.xla_device(3),
        lambda: torch_xla.device(1),
        lambda: xmp.spawn(print, nprocs=8),
        lambda: pl.ParallelLoader([], ["lazyrt:0", "lazyrt:1"]),
        lambda: pl.MpDeviceLoader([], "lazyrt", input_sharding="x"),
        lambda: runtime.initialize_cache("x", readonly=True),
    ],
)
def test_what_needs_several_devices_is_refused(call):
    with pytest.raises(NoEquivalentError, match="one device in one process"):
        call()


def test_collectives_of_one_replica_give_back_what_they_get():
    x = torch.arange(4.0).to(DEVICE)
    out = torch.empty(4, device=DEVICE)
    assert xm.all_gather(x).tolist() == xm.all_to_all(x, 0, 0, 1).tolist()
    assert xm.all_gather(x[0]).tolist() == [0]
    assert xm.reduce_scatter(xm.REDUCE_SUM, x, 0.5, 0, 1, output=out) is out
    xm.collective_broadcast([out])
    assert out.tolist() == [0, 0.5, 1, 1.5]
    assert xm.rendezvous("here", b"payload") == [b"payload"]


STARTING: list[Any] = [
    xm.xla_device,
    torch_xla.device,
    xm.get_ordinal,
    xm.xrt_world_size,
    runtime.world_size,
    runtime.global_ordinal,
    xm.is_master_ordinal,
    lambda: xm.all_reduce(xm.REDUCE_SUM, torch.ones(2)),
    lambda: torch_xla.launch(lambda index: index),
    lambda: xmp.spawn(lambda index: index),
]


@pytest.mark.parametrize("call", STARTING)
def test_one_of_several_replicas_is_told_that_nothing_sums_their_gradients(
    call, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", "2")

    with pytest.raises(NoEquivalentError, match=r"found WORLD_SIZE=2 in the env") as e:
        call()

    assert "act on one" in str(e.value)
    assert "LAZYRT_INDEPENDENT_PROCESSES=1" in str(e.value)
    with config.scoped(independent_processes=True):
        call()


@pytest.mark.parametrize("size", ["1", "", None, "many"])
def test_one_process_alone_notices_nothing_of_its_launcher(size, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if size is not None:
        monkeypatch.setenv("WORLD_SIZE", size)

    for call in STARTING:
        call()


def test_an_optimizer_of_one_of_several_replicas_makes_no_step(monkeypatch):
    weight = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)

    with pytest.raises(NoEquivalentError, match="process group of 4"):
        xm.optimizer_step(optimizer)

    assert weight.tolist() == [1.0, 1.0]


def test_a_profiler_server_needs_a_port():
    with pytest.raises(RuntimeError, match="got port 99999, which is no port"):
        xp.start_server(99_999)


@pytest.mark.slow
def test_a_trace_is_written(tmp_path):
    xp.start_trace(str(tmp_path))
    with xp.Trace("work"):
        (torch.ones(3, device=DEVICE) * 2).tolist()
    xp.stop_trace()

    assert list(tmp_path.rglob("*.xplane.pb"))


# ---------------------------------------------------------------- the table

MODULES = {
    "torch_xla": torch_xla,
    "torch_xla._XLAC": _XLAC,
    "torch_xla.stablehlo": stablehlo,
    "torch_xla.core.xla_model": xm,
    "torch_xla.runtime": runtime,
    "torch_xla.experimental": experimental,
    "torch_xla.debug.metrics": met,
    "torch_xla.debug.profiler": xp,
    "torch_xla.distributed.parallel_loader": pl,
    "torch_xla.distributed.spmd": xs,
    "torch_xla.experimental.spmd_fully_sharded_data_parallel": fsdp,
    "torch_xla.distributed.xla_multiprocessing": xmp,
}


def table_rows():
    """Return (module, name, has an equivalent) for each row of the documentation."""
    module = ""
    for line in TABLE.read_text("utf-8").splitlines():
        heading = re.fullmatch(r"### `([\w.]+)` → `([\w.]+)`.*", line)
        if heading:
            module = heading[1]
            assert importlib.import_module(heading[2]) is MODULES[module]
            continue
        row = re.fullmatch(r"\| (`[^|]+`) \| ([^|]+) \|.*", line)
        if row and module:
            for name in re.findall(r"`(\w+)`", row[1]):
                yield module, name, not row[2].startswith("–")


def test_the_table_names_exactly_what_the_modules_have():
    rows = list(table_rows())
    expected = {
        (module, name, has)
        for module, stand_in in MODULES.items()
        for names, has in ((stand_in.__all__, True), (stand_in.REFUSED, False))
        for name in names
    }

    assert len(rows) == len(set(rows))
    assert set(rows) == expected


@pytest.mark.parametrize("module", MODULES)
def test_every_name_works_or_says_why_not(module):
    stand_in = MODULES[module]

    for name in stand_in.__all__:
        assert getattr(stand_in, name) is not None
    for name in stand_in.REFUSED:
        with pytest.raises(
            NoEquivalentError, match=re.escape(f"{module}.{name} has no")
        ):
            getattr(stand_in, name)
    with pytest.raises(AttributeError, match=r"neither .* has a name 'no_such_name'"):
        stand_in.no_such_name  # noqa: B018


def test_a_missing_name_says_why_when_it_is_imported():
    with pytest.raises(NoEquivalentError, match="collective_permute has no equivalent"):
        exec("from lazyrt.compat.xla_model import collective_permute")  # noqa: S102


def test_the_package_tells_which_imports_to_change():
    for line in IMPORTS.values():
        assert line.split(" as ")[0] in compat.__doc__
