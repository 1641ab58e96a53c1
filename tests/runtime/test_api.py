import inspect
import math
import re
import types

import pytest
import torch

import lazyrt
import lazyviz
from lazyrt import errors
from lazyrt.config import config
from lazyrt.errors import LazyRuntimeError, UsageError
from lazyrt.frontend import record
from lazyrt.lowering import registry
from tests.harness import DEVICE, cold_start, run_python

NAMES = [
    "ProfilerServer",
    "Computation",
    "DeviceLoader",
    "Graph",
    "Inspection",
    "LazyRuntimeError",
    "LiveReport",
    "LiveTensor",
    "Mesh",
    "activity",
    "add_step_closure",
    "background_flush",
    "begin_cell",
    "cached_executables",
    "clear_caches",
    "compiled_graphs",
    "config",
    "counters",
    "device",
    "discard_pending",
    "discarded_graph",
    "drop_executables",
    "dump_graphs",
    "dynamo",
    "dynamo_backend",
    "eager_mode",
    "eager_module",
    "enable_eager_execution",
    "errors",
    "explain",
    "fallback",
    "frozen",
    "graph_of_step",
    "in_flight",
    "input_origins",
    "inspect",
    "is_pending",
    "live_tensors",
    "live_tensors_report",
    "look",
    "lowers",
    "mark_step",
    "materialise",
    "mesh",
    "metrics_report",
    "mode",
    "node_values",
    "on_barrier",
    "op_by_op_mode",
    "optimizer_step",
    "origin",
    "pending_graph",
    "plan",
    "record_steps",
    "reset_counters",
    "reuse_choice",
    "scope",
    "shard",
    "sharding_of",
    "shards_of",
    "short_metrics_report",
    "snapshot",
    "stand_in",
    "status",
    "step",
    "subscribe",
    "sync",
    "testing",
    "times_run",
    "wait",
    "wait_for_closures",
    "watch_executions",
    "watch_pauses",
    "watch_tracing",
]


def test_the_public_names_are_these():
    assert sorted(lazyrt.__all__) == sorted(NAMES)


def test_every_public_name_exists_and_no_other_one_does():
    public = {
        name
        for name, value in vars(lazyrt).items()
        if not name.startswith("_")
        and name != "annotations"
        and not (isinstance(value, types.ModuleType) and name not in lazyrt.__all__)
    }

    assert public == set(lazyrt.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_documented(name):
    value = getattr(lazyrt, name)
    doc = inspect.getdoc(type(value) if name == "config" else value)

    assert doc
    assert doc.splitlines()[0].endswith((".", ":"))


def test_the_error_tree_is_what_the_module_draws():
    expected = {
        "UsageError": ValueError,
        "NoLoweringError": NotImplementedError,
        "LoweringError": RuntimeError,
        "StepSyncError": RuntimeError,
        "ScopeError": RuntimeError,
        "FrozenError": RuntimeError,
        "NoEquivalentError": NotImplementedError,
        "TooManyGraphsError": RuntimeError,
        "LostValueError": RuntimeError,
        "OutOfMemoryError": MemoryError,
        "DeviceError": RuntimeError,
    }

    for name, builtin in expected.items():
        kind = getattr(errors, name)
        assert issubclass(kind, LazyRuntimeError)
        assert issubclass(kind, builtin)
        assert f"── {name} " in errors.__doc__
    assert issubclass(LazyRuntimeError, RuntimeError)


def test_device_is_torchs_device():
    assert lazyrt.device() == torch.device("lazyrt", 0)
    assert str(lazyrt.device()) == "lazyrt:0"


def test_sync_is_mark_step():
    y = torch.ones(2, device=DEVICE) * 2

    lazyrt.sync()

    assert not lazyrt.is_pending(y)


@pytest.mark.not_eager("counts graphs and executions of steps")
def test_is_pending_is_false_for_everything_else():
    assert not lazyrt.is_pending(torch.ones(2))
    assert not lazyrt.is_pending(torch.ones(2).to(DEVICE))
    assert lazyrt.is_pending(torch.ones(2, device=DEVICE))
    y = torch.ones(2).to(DEVICE) + 1
    assert lazyrt.is_pending(y[0])
    assert lazyrt.is_pending(torch.nn.Parameter(y))


def test_materialise_gives_an_independent_cpu_tensor():
    y = torch.ones(2, 3, device=DEVICE).t() * 2

    host = lazyrt.materialise(y)
    host.zero_()

    assert host.device.type == "cpu"
    assert host.stride() == y.stride()
    assert not host.requires_grad
    assert lazyrt.materialise(y).sum().item() == 12.0
    assert lazyrt.materialise(y.requires_grad_() * 2).requires_grad is False


def test_materialise_of_every_dtype_and_of_empty_tensors():
    for dtype in (
        torch.bool,
        torch.bfloat16,
        torch.float64,
        torch.complex64,
        torch.int8,
    ):
        y = torch.ones(2, device=DEVICE).to(dtype)
        assert lazyrt.materialise(y).dtype is dtype
    assert lazyrt.materialise(torch.ones(0, 3, device=DEVICE) * 2).shape == (0, 3)


@pytest.mark.not_eager("counts graphs and executions of steps")
def test_pending_graph_of_several_tensors_has_their_values_as_roots():
    x = torch.ones(2).to(DEVICE)
    y, z = x * 2, x * 3

    graph = lazyrt.pending_graph(y, z, y)

    assert len(graph.roots) == 2
    assert [root.node and str(root.node.op) for root in graph.roots] == [
        "aten.mul.Tensor"
    ] * 2
    assert graph.fingerprint == lazyrt.pending_graph(z, y).fingerprint


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_clearing_the_memory_compiles_again():
    def work():
        (torch.ones(2).to(DEVICE) * 8).tolist()

    work()
    lazyrt.clear_caches()
    lazyrt.reset_counters()
    work()

    assert lazyrt.counters()["compiles"] == 1


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_clearing_the_disk_compiles_afresh(tmp_path):
    config.cache_dir = tmp_path

    def work():
        lazyrt.clear_caches()
        (torch.ones(2).to(DEVICE) * 9).tolist()

    work()
    lazyrt.reset_counters()
    work()
    assert lazyrt.counters()["disk_hits"] == 1
    lazyrt.clear_caches(memory=False, disk=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    work()
    assert lazyrt.counters()["compiles"] == 1


def test_clearing_caches_in_the_middle_of_a_step_loses_nothing():
    y = torch.ones(2).to(DEVICE) * 10
    repr(y)

    lazyrt.clear_caches()

    assert y.tolist() == [10.0, 10.0]


@pytest.mark.parametrize("name", ["aten.erf.default", torch.ops.aten.erf.default])
def test_an_op_can_be_sent_to_the_cpu(name):
    x = torch.full((2,), 0.75).to(DEVICE)
    expected = (x * 2).erf().cpu()
    erf = record.operation(torch.ops.aten.erf.default)
    lazyrt.reset_counters()

    lazyrt.fallback(name)
    try:
        y = (x * 2).erf()
    finally:
        record._forced.discard(erf)
        erf.cache.clear()

    assert lazyrt.counters()["cpu_fallbacks"] == 1
    torch.testing.assert_close(y.cpu(), expected)


def test_sending_an_unknown_op_to_the_cpu_is_refused():
    with pytest.raises(UsageError, match=r"aten\.nonsense"):
        lazyrt.fallback("aten.nonsense.default")


def test_a_users_own_op_runs_by_the_ops_that_it_is_made_of():
    library = torch.library.Library("lazyrt_test", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")

    y = torch.ops.lazyrt_test.double(torch.ones(2).to(DEVICE))

    assert y.tolist() == [2.0, 2.0]
    assert lazyrt.counters()["cpu_fallbacks"] == 0


def test_an_op_without_a_lowering_falls_back_and_is_right():
    x = torch.tensor([3.0, 1.0, 3.0]).to(DEVICE)

    values, counts = torch.unique(x, return_counts=True)

    assert values.tolist() == [1.0, 3.0]
    assert counts.tolist() == [1, 2]
    assert lazyrt.counters()["cpu_fallbacks"] >= 1


def test_messages_say_what_happened_and_what_to_do():
    with pytest.raises(UsageError) as caught:
        lazyrt.materialise(torch.ones(2))

    assert str(caught.value) == (
        "materialise() got a tensor on cpu, which is not on the lazy device, so nothing "
        "is pending for it. Pass a tensor made with device='lazyrt', or move one with "
        "`.to('lazyrt')`."
    )
    with pytest.raises(UsageError, match=r"^snapshot\(\) got str 'text', which is"):
        lazyrt.snapshot("text")  # type: ignore[arg-type]


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_the_first_graph_of_a_process_says_so():
    from lazyrt.observe import events
    from tests.harness import recorded

    cold_start()
    with recorded(events.CompileFinished) as found:
        for size, less in ((2, False), (3, False), (3, True)):
            x = torch.ones(size).to(DEVICE) * 2
            (x - 1 if less else x).tolist()

    reasons = [event.reason for event in found]
    assert reasons[0] == "the first graph of this process"
    assert "is f32[3], was f32[2]" in reasons[1]
    assert "aten.sub.Tensor" in reasons[2]


@pytest.mark.lazy_only("counts executions of steps")
@pytest.mark.slow
def test_importing_starts_no_thread_and_the_process_ends_cleanly_with_work_under_way():
    code = """
import threading
import lazyrt
print([t.name for t in threading.enumerate() if t.name.startswith("lazyrt")])

import torch
x = torch.ones(1500, 1500).to("lazyrt")
for _ in range(3):
    x = x @ x / 1500
lazyrt.mark_step()
print("done", lazyrt.in_flight())
"""

    assert run_python(code).splitlines() == ["[]", "done 1"]


def test_there_is_one_device():
    with pytest.raises(UsageError, match=r"index=1; there is one"):
        lazyrt.device(1)


@pytest.mark.parametrize("percentiles", [0.0, [1.5], ["95"], 2])
def test_percentiles_that_are_no_shares_are_named(percentiles):
    with pytest.raises(UsageError, match="not between 0 and 1"):
        lazyrt.metrics_report(percentiles=percentiles)


def test_a_hook_that_cannot_be_called_is_refused():
    with pytest.raises(UsageError, match="'print', which cannot be called"):
        lazyrt.on_barrier("print")  # type: ignore[arg-type]


def test_arguments_of_another_kind_are_named():
    with pytest.raises(UsageError, match="got 3, which is int"):
        lazyrt.times_run(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="key=5, which is int"):
        lazyrt.drop_executables(5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unused_s='day', which is no number"):
        lazyrt.drop_executables(unused_s="day")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="function, not the name of an op"):
        lazyrt.lowers(lambda ctx, x: x)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("lazyrt.wait('a')", "wait() got timeout_s='a', which is no number"),
        ("lazyrt.wait(-1)", "wait() got timeout_s=-1, which is no number"),
        ("lazyrt.wait(math.nan)", "wait() got timeout_s=nan, which"),
        ("lazyrt.wait(x)", "timeout_s=an object of type Tensor, which is"),
        ("lazyrt.wait_for_closures(True)", "wait_for_closures() got timeout_s=True"),
        ("lazyrt.DeviceLoader([x], 'cpu')", "device='cpu', which is not the"),
        ("lazyrt.DeviceLoader([x], 'lazyrt:1')", "device='lazyrt:1', which"),
        ("lazyrt.DeviceLoader([x], 'gpu')", "device='gpu', which is not the"),
        ("lazyrt.is_pending([x])", "is_pending() got a list of 1, and takes"),
        ("lazyrt.explain('last')", "explain() got 'last', which is no whole"),
        ("lazyrt.graph_of_step(1.5)", "graph_of_step() got 1.5, which is no"),
        ("lazyrt.lowers('aten.nope.default')(print)", "no op of that name"),
        ("lazyrt.lowers('aten.add.tensor')(print)", "Name one of 'aten.add.Tensor'"),
        ("lazyrt.lowers('a.b.c')(print)", "of your own has to be defined first"),
        ("lazyviz.find_nan(cpu)", "find_nan() got a tensor on cpu"),
        ("lazyviz.explore(cpu)", "explore() got a tensor on cpu"),
        ("lazyviz.compare_modes(cpu)", "compare_modes() got a tensor on cpu"),
        ("lazyviz.compare_modes()", "compare_modes() needs pending tensors"),
    ],
)
def test_what_a_call_cannot_mean_is_refused_by_its_own_name_and_does_nothing(
    call, said
):
    x = torch.ones(2).to(DEVICE)
    lazyrt.mark_step()
    before = lazyrt.counters()
    rules = dict(registry.rules())

    with pytest.raises(UsageError, match=re.escape(said)):
        eval(call, {**globals(), "lazyviz": lazyviz, "x": x, "cpu": torch.ones(1)})  # noqa: S307

    assert not any((lazyrt.counters() - before).values())
    assert registry.rules() == rules


@pytest.mark.lazy_only("waits for the execution of a step")
def test_there_is_no_longest_wait():
    x = torch.ones(2).to(DEVICE) * 2
    lazyrt.mark_step()

    assert lazyrt.wait(math.inf)
    assert x.tolist() == [2.0, 2.0]
