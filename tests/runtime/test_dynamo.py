"""`torch.compile` with our backend: graphs are recorded, a step stays one execution."""

import contextlib
import gc
import linecache
import sys
import tomllib
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._subclasses.fake_tensor import FakeTensorMode

import lazyrt
from lazyrt.errors import UsageError
from lazyrt.frontend import provenance, record
from lazyrt.frontend.recorded_calls import RecordedCall
from lazyrt.observe import events
from tests.harness import (
    DEVICE,
    ROOT,
    assert_same,
    cold_start,
    recorded,
    run_python,
    thinned,
)


@pytest.fixture(autouse=True)
def _no_graphs_of_others():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 1))


def losses_of(model, function, device):
    """Train three steps, each a `step()`; return the losses and the last weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(2)
    found = []
    for _ in range(3):
        x = torch.randn(5, 3).to(device)
        with lazyrt.step("train"):
            optimizer.zero_grad()
            loss = function(x)
            loss.backward()
            optimizer.step()
        found.append(loss.detach().cpu())
    return torch.stack(found), model


@pytest.mark.lazy_only("is about what is recorded")
def test_forward_and_backward_of_a_compiled_function_run_with_their_step():
    cpu = network()
    expected, _ = losses_of(cpu, lambda x: cpu(x).square().mean(), "cpu")
    model = network().to(DEVICE)
    captured = []

    def loss_of(x):
        return model(x).square().mean()

    def backend(graph, inputs):
        captured.append(graph)
        return lazyrt.dynamo_backend(graph, inputs)

    compiled = torch.compile(loss_of, backend=backend)
    lazyrt.mark_step()
    lazyrt.reset_counters()

    found, _ = losses_of(model, compiled, DEVICE)

    counts = lazyrt.counters()
    assert (counts["executions"], counts["cpu_fallbacks"]) == (3, 0)
    assert counts["compiles"] <= 2
    assert len(captured) == 1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(model.parameters(), cpu.parameters(), strict=True):
        assert_same(ours, theirs, 1e-5)
    assert_same(model[2].running_mean, cpu[2].running_mean, 1e-5)


@pytest.mark.not_eager("is about what is recorded")
def test_a_call_computes_nothing_and_its_ops_know_their_lines_and_modules():
    cold_start()
    model = network().to(DEVICE).eval()

    def function(x):
        y = model(x)
        return (y * 2).sum()  # two lines below `def`

    compiled = torch.compile(function, backend=lazyrt.dynamo_backend)
    with recorded(events.BarrierFinished) as barriers:
        total = compiled(torch.ones(5, 3).to(DEVICE))
        graph = lazyrt.pending_graph(total)
        total.backward()

    assert lazyrt.is_pending(total)
    assert barriers == []
    first = function.__code__.co_firstlineno
    places: dict[str, Any] = {node.op.name: node.provenance for node in graph.nodes}
    tanh, product = places["aten.tanh.default"], places["aten.mul.Tensor"]
    assert (tanh.module, tanh.site.line) == ("1", first + 1)
    assert (product.module, product.site.line) == ("", first + 2)
    assert {p.site.file for p in places.values()} == {__file__}
    backward: list[Any] = [
        node.provenance
        for node in lazyrt.pending_graph(model[0].weight.grad).nodes
        if node.op.name == "aten.tanh_backward.default"
    ]
    assert [(p.module, p.backward.forward.site.line) for p in backward] == [
        ("1", first + 1)
    ]
    assert backward[0].site.line > first + 2  # where backward() was called


@pytest.mark.lazy_only("is about what is recorded")
def test_compiled_code_draws_new_random_numbers_at_each_call():
    def function(x):
        return nn.functional.dropout(x, 0.5)

    compiled = torch.compile(function, backend=lazyrt.dynamo_backend)
    x = torch.ones(1000).to(DEVICE)
    lazyrt.mark_step()
    lazyrt.reset_counters()

    with lazyrt.step():
        one, two = compiled(x), compiled(x)

    assert lazyrt.counters()["executions"] == 1
    kept = [set(t.cpu().unique().tolist()) for t in (one, two)]
    assert kept == [{0.0, 2.0}, {0.0, 2.0}]
    assert not torch.equal(one.cpu(), two.cpu())


def test_another_shape_is_captured_again_and_a_break_in_the_graph_goes_on():
    def function(x):
        y = x * 2
        print(end="")  # noqa: T201 - TorchDynamo breaks the graph here
        return y.sum(0)

    compiled = torch.compile(function, backend=lazyrt.dynamo_backend)

    for rows in (2, 3, 5):
        x = torch.arange(rows * 2.0).view(rows, 2)
        assert_same(compiled(x.to(DEVICE)), function(x))


def test_the_lines_of_a_graph_are_forgotten_with_it():
    gc.collect()  # graphs of earlier tests
    before = len(provenance._lines)
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    provenance.note_generated_lines(graph)
    assert len(provenance._lines) == before + 1

    del graph
    gc.collect()

    assert len(provenance._lines) == before


def test_a_stand_in_of_the_compilers_can_be_printed():
    with FakeTensorMode():
        fake = torch.ones(2, device=DEVICE)

    assert repr(fake).startswith("FakeTensor(")


@pytest.mark.not_eager("is about what is recorded")
def test_code_of_graphs_that_nobody_noted_is_shown_by_its_callers_line():
    cold_start()
    traced = torch.fx.symbolic_trace(lambda x: x.exp())

    y = traced(torch.ones(2).to(DEVICE))

    (node,) = [n for n in lazyrt.pending_graph(y).nodes if "exp" in n.op.name]
    assert node.provenance.site is not None
    assert node.provenance.site.file == __file__


NAMED = """
import sys
sys.path.insert(0, {folder!r})
import torch
def double(x):
    return x * 2
def halve(x):
    return x / 2
compiled = [torch.compile(double, backend="lazyrt"), torch.compile(halve, backend="lazyviz")]
x = torch.ones(2)
import lazyrt
for function in compiled:
    with lazyrt.step():
        y = function(x.to("lazyrt"))
        print(lazyrt.is_pending(y), end=" ")
    print(y.tolist(), lazyrt.counters()["executions"])
"""


@pytest.mark.slow
def test_an_installed_package_has_names_for_the_backend(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    points = project["entry-points"]["torch_dynamo_backends"]
    info = tmp_path / "lazyviz_points-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lazyviz-points\nVersion: 1\n"
    )
    lines = [f"{key} = {value}" for key, value in points.items()]
    (info / "entry_points.txt").write_text(
        "\n".join(["[torch_dynamo_backends]", *lines])
    )

    printed = run_python(NAMED.format(folder=str(tmp_path)))

    assert printed.splitlines() == ["True [2.0, 2.0] 1", "True [0.5, 0.5] 2"]


@pytest.mark.lazy_only("is about what is recorded")
def test_torch_compile_without_a_backend_records_lazy_graphs_and_leaves_others():
    model = network().to(DEVICE).eval()
    x = torch.ones(5, 3, device=DEVICE)
    lazyrt.mark_step()
    lazyrt.reset_counters()

    found = torch.compile(model)(x)
    zeros = torch.compile(lambda: torch.zeros(2, device=DEVICE) + 1)()

    assert lazyrt.counters()["executions"] == 0
    assert_same(found, network().eval()(torch.ones(5, 3)), 1e-5)
    assert zeros.tolist() == [1.0, 1.0]


def test_torch_compile_of_cpu_tensors_goes_where_it_went(monkeypatch):
    import torch._inductor.compile_fx

    asked = []

    def compile_fx(graph, inputs, **options):
        asked.append(options)
        return graph.forward

    monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx", compile_fx)

    found = torch.compile(lambda x: x + 1)(torch.ones(2))

    assert found.tolist() == [2.0, 2.0]
    assert len(asked) == 1


@pytest.mark.lazy_only("is about what is recorded")
def test_the_name_that_torch_xla_documents_for_its_backend_is_ours_for_lazy_graphs():
    expected, _ = losses_of(cpu := network(), lambda x: cpu(x).square().mean(), "cpu")
    model = network().to(DEVICE)
    compiled = torch.compile(lambda x: model(x).square().mean(), backend="openxla")
    lazyrt.mark_step()
    lazyrt.reset_counters()

    found, _ = losses_of(model, compiled, DEVICE)

    counts = lazyrt.counters()
    assert (counts["executions"], counts["cpu_fallbacks"]) == (3, 0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_graphs_without_a_lazy_tensor_go_to_torch_xlas_own_backend(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_xla", None)  # as if it were not installed

    compiled = torch.compile(lambda x: x + 1, backend="openxla")

    with pytest.raises(BackendCompilerFailed, match="to install torch_xla"):
        compiled(torch.ones(2))


# ------------------------------------------------------------------- calls are looked up


@contextlib.contextmanager
def recordings_in():
    """Yield a list that gets an item for each compiled graph that is recorded op by op."""
    ran: list[str] = []
    original = RecordedCall._record

    def record(self, *args):
        ran.append("recorded")
        return original(self, *args)

    RecordedCall._record = record  # type: ignore[method-assign]
    try:
        yield ran
    finally:
        RecordedCall._record = original  # type: ignore[method-assign]


def adam_step(device, compiler, *, detached=False, capturable=False):
    """Return a whole training step with dropout and batch norm, its model and its optimizer.

    Its loss may be detached before the update, and the optimizer may count on the device.
    """
    model = network().to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.1, foreach=True, capturable=capturable
    )

    def step(x):
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        if detached:
            loss = loss.detach()
        optimizer.step()
        return loss

    return compiler(step), model, optimizer


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # TorchDynamo's own
@pytest.mark.lazy_only("is about what is recorded")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("traced", "capturable"),
    [(False, False), (True, False), (True, True)],
    ids=["backward apart", "traced", "traced, capturable"],
)
def test_a_whole_compiled_step_records_its_graphs_once_and_trains_as_on_the_cpu(
    traced, capturable
):
    torch.manual_seed(2)
    batches = [torch.randn(5, 3) for _ in range(4)]
    plain, cpu, states = adam_step("cpu", lambda step: step)
    expected = [plain(x) for x in batches]
    compiled, model, optimizer = adam_step(
        DEVICE,
        lambda f: torch.compile(f, backend="lazyrt"),
        detached=traced,
        capturable=capturable,
    )
    found, recordings = [], []
    lazyrt.mark_step()
    lazyrt.reset_counters()

    for x in batches:
        as_set = torch._dynamo.config.patch(trace_autograd_ops=traced)
        with recordings_in() as ran, as_set:
            found.append(compiled(x.to(DEVICE)).detach())
            lazyrt.mark_step()
        recordings.append(len(ran))

    # Forward and backward, together where they are traced, and the update; torch follows first calls.
    assert 0 < sum(recordings[:2]) <= (4 if traced else 6)
    assert recordings[2:] == [0, 0]
    assert lazyrt.counters()["executions"] == len(batches)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs, 1e-4)
    for ours, theirs in zip(model.parameters(), cpu.parameters(), strict=True):
        assert_same(ours, theirs, 1e-3)
    steps = [state["step"] for state in optimizer.state.values()]
    assert steps == [state["step"] for state in states.state.values()]
    assert {each.device.type for each in steps} == {DEVICE if capturable else "cpu"}


@pytest.mark.lazy_only("is about what is recorded")
def test_a_call_that_is_looked_up_gives_the_graph_that_its_ops_give():
    def function(x, y):
        y.add_(x)
        noise = nn.functional.dropout(x, 0.5)
        return noise.t(), (x + 1)[1:], y * 2, x.shape[0]

    compiled = torch.compile(function, backend="lazyrt")

    def step():
        torch.manual_seed(3)
        x = torch.arange(6.0).view(2, 3).to(DEVICE)
        y = torch.ones(2, 3, device=DEVICE)
        lazyrt.mark_step()
        version = y._version
        with recordings_in() as ran:
            results = compiled(x, y)
        fingerprint = lazyrt.pending_graph().fingerprint
        tensors = [t.tolist() for t in (*results[:3], y)]
        return bool(ran), fingerprint, tensors, y._version - version

    first, again, third = step(), step(), step()

    assert (first[0], again[0], third[0]) == (True, False, False)
    assert third[1:] == again[1:] == first[1:]
    assert first[2][1] == [[4.0, 5.0, 6.0]]
    assert first[2][3] == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


@pytest.mark.lazy_only("is about what is recorded")
def test_random_numbers_of_calls_that_are_looked_up_are_those_of_their_ops():
    def function(x):
        return nn.functional.dropout(x, 0.5) + torch.rand_like(x)

    compiled = torch.compile(function, backend="lazyrt")
    x = torch.ones(8).to(DEVICE)

    def drawn(*, by_ops):
        record.forget_nodes()
        torch.manual_seed(5)
        found = []
        for _ in range(3):
            if by_ops:
                record.forget_nodes()  # nothing can be looked up
            with lazyrt.step():
                pair = compiled(x), compiled(x)
            found += [t.tolist() for t in pair]
        return found

    assert drawn(by_ops=False) == drawn(by_ops=True)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_compiled_checkpoint_draws_its_dropout_once_as_uncompiled_code_does(
    reentrant,
):
    layer = nn.Linear(8, 8, device=DEVICE)

    def block(x):
        return nn.functional.dropout(layer(x).tanh(), 0.5)

    def program(x):
        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)

    def results(call):
        torch.manual_seed(5)
        found: list[Any] = []
        for _ in range(3):
            x = torch.ones(4, 8, device=DEVICE, requires_grad=True)
            y = call(x)
            (y * x).sum().backward()
            found += [y.detach(), x.grad]
            lazyrt.mark_step()
        return found

    plain = results(program)
    with recordings_in() as ran:
        compiled = results(torch.compile(program, backend="lazyrt"))

    for one, other in zip(compiled, plain, strict=True):
        assert_same(one, other.cpu(), 1e-5)
    if str(lazyrt.mode()) == "lazy":
        assert len(ran) == 2  # forward and backward


def test_a_compiled_function_draws_from_a_generator_as_uncompiled_code_does():
    generator = torch.Generator(DEVICE)

    def program(x):
        return x * 2 + torch.rand(3, generator=generator, device=DEVICE)

    x = torch.ones(3, device=DEVICE)
    found = []
    for call in (program, torch.compile(program, backend="lazyrt")):
        generator.manual_seed(3)
        found.append([call(x).tolist() for _ in range(2)])

    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


@pytest.mark.lazy_only("is about what is recorded")
def test_a_view_in_an_output_shares_its_storage_when_its_call_is_looked_up():
    def function(x):
        y = x * 2
        return y, y.view(-1)[1:3]

    compiled = torch.compile(function, backend="lazyrt")
    x = torch.arange(4.0).view(2, 2).to(DEVICE)
    for _ in range(2):
        whole, part = compiled(x)
        part.fill_(7.0)
        assert whole.tolist() == [[0.0, 7.0], [7.0, 6.0]]


@pytest.mark.lazy_only("is about what is recorded")
def test_ops_of_a_call_that_is_looked_up_are_told_to_listeners():
    compiled = torch.compile(lambda x: (x * 2).exp(), backend="lazyrt")
    x = torch.ones(2).to(DEVICE)
    found = []
    for _ in range(2):
        lazyrt.mark_step()
        with recorded(events.OpRecorded) as ops:
            compiled(x)
        found.append([op.op for op in ops])

    assert found[0] == found[1] == ["aten.mul.Tensor", "aten.exp.default"]


@pytest.mark.lazy_only("is about what is recorded")
def test_a_call_that_reads_is_run_again():
    compiled = torch.compile(lambda x: x[x > 1] * 2, backend="lazyrt")
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    try:
        for high in (2.0, 0.5, 3.0):
            x = torch.tensor([high, 0.0, 4.0])
            assert_same(compiled(x.to(DEVICE)), x[x > 1] * 2)
    finally:
        torch._dynamo.config.capture_dynamic_output_shape_ops = False


# ------------------------------------------------------------------------ torch_xla's bridge

FIVE = [
    "dynamo input sync", "dynamo forward", "dynamo cleanup 1", "dynamo backward",
    "dynamo cleanup 2",
]  # fmt: skip
STAGES = {
    "five": FIVE,
    "three": ["dynamo forward", "dynamo backward", "dynamo copy-back"],
    "one": ["end of step"],
}


def bridged_step(device, *, whole):
    """Return a training step that is compiled on the lazy device, and its model."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.Tanh()).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    is_compiled = device == DEVICE
    called = (
        torch.compile(model, backend="lazyrt") if is_compiled and not whole else model
    )

    def step(x):
        optimizer.zero_grad()
        loss = called(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return torch.compile(step, backend="lazyrt") if is_compiled and whole else step, model  # fmt: skip


def bridged_losses(step, device, stage):
    """Return the losses of three steps, and the barriers that ran something in the last."""
    losses = []
    for k in range(3):
        x = torch.arange(6.0).view(2, 3).mul(k + 1).to(device)
        with (
            recorded(events.BarrierFinished) as found,
            lazyrt.dynamo.bridge(stage),
            lazyrt.step(),
        ):
            loss = step(x)
        losses.append(loss.item())
    return losses, [barrier.cause for barrier in found if barrier.executed]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # TorchDynamo's own
@pytest.mark.lazy_only("is about what is recorded")
@pytest.mark.parametrize("whole", thinned([False, True], 2))
@pytest.mark.parametrize("stage", STAGES)
def test_a_bridge_runs_a_step_in_its_phases_and_trains_as_on_the_cpu(stage, whole):
    plain, cpu = bridged_step("cpu", whole=whole)
    expected, _ = bridged_losses(plain, "cpu", "one")
    compiled, model = bridged_step(DEVICE, whole=whole)

    found, phases = bridged_losses(compiled, DEVICE, stage)

    assert phases == STAGES[stage]
    assert found == pytest.approx(expected, rel=1e-4)
    for ours, theirs in zip(
        (*model.parameters(), *model.buffers()),
        (*cpu.parameters(), *cpu.buffers()),
        strict=True,
    ):
        assert_same(ours.detach(), theirs.detach(), 1e-3)


@pytest.mark.lazy_only("is about what is recorded")
def test_a_bridge_takes_up_what_was_compiled_before_it_and_lets_it_go():
    compiled, _ = bridged_step(DEVICE, whole=False)
    x = torch.ones(2, 3).to(DEVICE)

    def executions():
        before = lazyrt.counters()["executions"]
        compiled(x)
        return lazyrt.counters()["executions"] - before

    found = [executions()]
    with lazyrt.dynamo.bridge("five"):
        found.append(executions())
        with lazyrt.dynamo.bridge("three"):
            found.append(executions())
        found.append(lazyrt.dynamo.bridge("one")(executions)())
        found.append(executions())
    found.append(executions())

    assert found == [1, 5, 3, 1, 5, 1]


@pytest.mark.slow
@pytest.mark.lazy_only("is about what is recorded")
def test_modules_of_a_phase_are_explained_by_their_ops_and_by_their_parameters(caplog):
    batch = torch.zeros(2, 3, dtype=torch.long).to(DEVICE)

    def training(*, compiled):
        layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
        model = nn.Sequential(nn.Embedding(9, 8), layer).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())
        called = torch.compile(model, backend="lazyrt") if compiled else model

        def step():
            optimizer.zero_grad()
            called(batch).square().mean().backward()
            optimizer.step()
            lazyrt.mark_step()

        return step

    with lazyrt.config.scoped(compile_tier="fast"):
        plain, compiled = training(compiled=False), training(compiled=True)
        plain()
        with lazyrt.dynamo.bridge("five"):
            compiled()

    assert "failed" not in caplog.text


@pytest.mark.lazy_only("is about what is recorded")
@pytest.mark.parametrize("stage", ["five", "three"])
def test_a_call_without_gradients_has_no_backward_and_no_end(stage):
    compiled, x = torch.compile(nn.Tanh(), backend="lazyrt"), torch.ones(2).to(DEVICE)

    with recorded(events.BarrierFinished) as found, lazyrt.dynamo.bridge(stage):
        y = compiled(x)
        assert not lazyrt.is_pending(y)
        lazyrt.mark_step()

    ran = [barrier.cause for barrier in found if barrier.executed]
    assert ran == FIVE[1 - (stage == "five") : 2]


@pytest.mark.lazy_only("is about what is recorded")
def test_a_phase_of_a_bridge_is_told_with_the_line_that_called_the_graph():
    compiled, x = torch.compile(nn.Tanh(), backend="lazyrt"), torch.ones(2).to(DEVICE)

    with recorded(events.BarrierFinished) as found, lazyrt.dynamo.bridge("three"):
        compiled(x)

    site = found[0].site
    assert linecache.getline(site.file, site.line).strip() == "compiled(x)"


def test_a_stage_that_torch_xlas_bridge_never_had_is_refused():
    with pytest.raises(UsageError, match=r"'four'.*one of 'one', 'three', 'five'"):
        lazyrt.dynamo.bridge("four")  # type: ignore[arg-type]
    assert lazyrt.config.dynamo_bridge == "one"


@pytest.mark.lazy_only("is about what is recorded")
def test_what_a_compile_leaves_as_garbage_is_no_result_of_the_step():
    def record_garbage():
        made: list[Any] = [torch.ones(2).to(DEVICE) * 2]
        made.append(made)
        return weakref.ref(made[0])

    gc.disable()
    try:
        torch.compile(lambda x: x + 1, backend="lazyrt")(torch.ones(2).to(DEVICE))
        with_compile = record_garbage()
        lazyrt.mark_step()
        without = record_garbage()
        lazyrt.mark_step()
        assert with_compile() is None
        assert without() is not None
    finally:
        gc.enable()


@pytest.mark.lazy_only("is about what is recorded")
def test_numbers_of_the_cpu_that_backward_reads_leave_each_call_a_look_up(monkeypatch):
    def op_by_op(*args):
        raise AssertionError("a graph's ops were called one by one")

    def program(x):
        return x.square() / torch.tensor(3.0).log()

    monkeypatch.setattr(RecordedCall, "_run", op_by_op)
    compiled = torch.compile(program, backend="lazyrt")
    host = torch.linspace(1, 2, 3)
    for _ in range(2):
        x, expected = (t.requires_grad_() for t in (host.to(DEVICE), host.clone()))
        compiled(x).sum().backward()
        program(expected).sum().backward()
        assert_same(x.grad, expected.grad, 1e-6)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.factor = 1.0

    def forward(self, x):
        return self.layer(x) * self.factor


@pytest.mark.lazy_only("is about what is recorded")
def test_a_number_that_torch_compile_takes_as_an_input_is_told_by_its_guard_alone():
    cold_start()
    model = Scaled().to(DEVICE)
    compiled = torch.compile(model, backend="lazyrt")
    for factor in (1.0, 2.0):
        model.factor = factor
        with lazyrt.step():
            found = compiled(torch.ones(2, 3).to(DEVICE))
            modules = {
                node.op.name: node.provenance.module
                for node in lazyrt.pending_graph(found).nodes
                if node.op.name == "aten.mul.Tensor"
            }
        assert modules == {"aten.mul.Tensor": "Scaled"}

    explanation = lazyrt.explain()

    assert explanation is not None
    assert "`self.factor` is 2.0, was 1.0" in str(explanation.causes[0])


@pytest.mark.lazy_only("is about what is recorded")
def test_numbers_of_several_compiled_functions_stay_constants():
    cold_start()
    doubled = torch.compile(lambda x: x * 2, backend="lazyrt")
    tripled = torch.compile(lambda x: x * 3, backend="lazyrt")
    x = torch.ones(3, device=DEVICE)
    lazyrt.mark_step()

    inputs = []
    for function in (doubled, tripled):
        result = function(x)
        inputs.append(lazyrt.pending_graph(result).canonical.ints)
        lazyrt.mark_step()

    assert inputs == [(), ()]
    assert result.tolist() == [3.0, 3.0, 3.0]


def test_writes_to_numbers_and_vectors_of_the_cpu_are_those_of_uncompiled_code():
    def results(device, wrap):
        numbers = [torch.tensor(v) for v in (0.1, 3.7)]
        whole, flag = torch.tensor(2**60 + 1), torch.zeros((), dtype=torch.bool)
        small = torch.tensor(0.1, dtype=torch.bfloat16)
        vector = torch.arange(3.0)

        def step(x):
            torch._foreach_add_(numbers, 1)
            whole.add_(1)
            small.mul_(-1.5)
            flag.logical_not_()
            vector.mul_(2)
            return x * numbers[0] - numbers[1]

        compiled = wrap(step)
        made = [compiled(torch.ones(2).to(device)).cpu() for _ in range(3)]
        return [*made, *numbers, whole, small, flag, vector]

    expected = results("cpu", lambda step: step)
    found = results(DEVICE, lambda step: torch.compile(step, backend="lazyrt"))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def test_numbers_of_the_cpu_are_written_where_they_are_and_counted_as_writes():
    def count(numbers, x):
        torch._foreach_add_(numbers, 1)
        return x * numbers[0]

    compiled = torch.compile(count, backend="lazyrt")
    x = torch.ones(2, device=DEVICE)
    numbers = [torch.tensor(0.0), torch.tensor(5, dtype=torch.int64)]
    compiled(numbers, x)

    for moved in (False, True, False):
        if moved:  # the same tensors, in memory of other numbers
            before = [number.clone() for number in numbers]
            kept = [number.detach() for number in numbers]
            for number, now in zip(numbers, before, strict=True):
                number.data = now.clone()
        versions = [number._version for number in numbers]
        result = compiled(numbers, x)
        assert [n._version > v for n, v in zip(numbers, versions, strict=True)] == [True, True]  # fmt: skip

    assert [number.item() for number in numbers] == [4.0, 9]
    assert [number.item() for number in kept] == [2.0, 7]
    assert result.tolist() == [4.0, 4.0]


def test_norms_of_numbers_of_the_cpu_are_those_of_each():
    def scaled(numbers, x):
        norms = torch._foreach_norm(numbers)
        return x * norms[1]

    compiled = torch.compile(scaled, backend="lazyrt")
    numbers = [torch.tensor(-3.0), torch.tensor(4.0)]

    result = compiled(numbers, torch.ones(2, device=DEVICE))

    assert result.tolist() == [4.0, 4.0]
