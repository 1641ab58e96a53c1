import builtins
import importlib
import io
import linecache
import pdb  # noqa: T100
import re
import sys
from typing import Any

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.config import config
from lazyrt.frontend import guard, provenance
from lazyrt.observe import events
from tests.harness import DEVICE, recorded

READS = {
    ".cpu()": lambda t: t.cpu(),
    ".item()": lambda t: t.sum().item(),
    "float()": lambda t: float(t[0]),
    "int()": lambda t: int(t[0]),
    "bool()": lambda t: bool(t[0]),
    "if": lambda t: 1 if t[0] > 0 else 2,
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: t.numpy(),
    "to-cpu": lambda t: t.to("cpu"),
    "to-dtype": lambda t: t.to("cpu", torch.float64),
    "copy_": lambda t: torch.zeros(3).copy_(t),
    "equal": lambda t: torch.equal(t, t + 0),
    "allclose": lambda t: torch.allclose(t, t * 1),
    "array": lambda t: __import__("numpy").asarray(t),
    "range": lambda t: range(t[0].long()),
}


@pytest.mark.lazy_only("reads what is pending")
@pytest.mark.parametrize("read", READS)
def test_a_read_runs_everything_pending_once(read):
    x = torch.ones(3, device=DEVICE)
    y, z = x * 2, x.exp()
    lazyrt.reset_counters()

    READS[read](y)

    assert lazyrt.counters()["executions"] == 1
    assert lazyrt.counters()["barriers"] == 1
    assert not lazyrt.is_pending(y)
    assert not lazyrt.is_pending(z)
    READS[read](y.detach())
    z.tolist()
    z.numpy()
    lazyrt.mark_step()
    assert lazyrt.counters()["executions"] <= 2
    assert lazyrt.counters()["peek_executions"] == 0


@pytest.mark.lazy_only("reads what is pending")
def test_nothing_runs_twice_however_often_it_is_read():
    x = torch.ones(3, device=DEVICE)
    y = x * 2
    lazyrt.reset_counters()

    with recorded(events.ExecuteStarted) as started:
        for _ in range(3):
            y.cpu()
            y.tolist()
            y.numpy()
            y[0].item()

    assert [event.purpose for event in started] == ["step"]


@pytest.mark.lazy_only("reads what is pending")
def test_a_read_names_its_cause_and_its_line():
    y = torch.ones(3, device=DEVICE) * 2
    line = test_a_read_names_its_cause_and_its_line.__code__.co_firstlineno + 6

    with recorded(events.BarrierFinished) as barriers:
        y.sum().item()
        z = y + 1
        z.cpu()

    first, second = barriers
    assert first.cause == "read by .item()"
    assert (first.site.file, first.site.line) == (__file__, line)
    assert second.cause == "read by .cpu()"
    assert second.site.line == line + 2
    assert second.site.function == test_a_read_names_its_cause_and_its_line.__name__


CAUSES = {
    "bool()": "read by bool()",
    "tolist": "read by .tolist()",
    "numpy": "read by .numpy()",
    "equal": "read by torch.equal()",
}


@pytest.mark.lazy_only("reads what is pending")
@pytest.mark.parametrize("read", CAUSES)
def test_each_read_says_what_was_called(read):
    y = torch.ones(3, device=DEVICE) * 2

    with recorded(events.BarrierFinished) as barriers:
        READS[read](y)

    assert barriers[0].cause == CAUSES[read]


@pytest.mark.lazy_only("reads what is pending")
def test_the_peek_policy_leaves_the_step_pending():
    x = torch.ones(3, device=DEVICE)
    y = x * 2
    fingerprint = lazyrt.pending_graph(y).fingerprint

    with config.scoped(read_policy="peek"):
        assert y.tolist() == [2.0, 2.0, 2.0]
        assert y.sum().item() == 6.0
        assert y.cpu().tolist() == [2.0, 2.0, 2.0]
        assert bool(y[0])

    assert lazyrt.is_pending(y)
    assert lazyrt.pending_graph(y).fingerprint == fingerprint
    assert lazyrt.counters()["executions"] == 0
    assert y.tolist() == [2.0, 2.0, 2.0]
    assert lazyrt.counters()["executions"] == 1


def test_an_empty_barrier_executes_nothing():
    lazyrt.mark_step()
    lazyrt.reset_counters()

    with recorded(events.BarrierFinished) as barriers:
        for _ in range(3):
            lazyrt.mark_step()
        lazyrt.sync()
        torch.get_device_module(DEVICE).synchronize()

    assert [event.executed for event in barriers] == [False] * 5
    assert lazyrt.counters()["executions"] == 0
    assert lazyrt.counters()["barriers"] == 0
    assert lazyrt.counters()["empty_barriers"] == 5


def test_a_barrier_with_only_dead_tensors_executes_nothing():
    lazyrt.mark_step()
    lazyrt.reset_counters()
    (torch.ones(3, device=DEVICE) * 2).exp()

    lazyrt.mark_step()

    assert lazyrt.counters()["executions"] == 0


@pytest.mark.not_eager("reads what is pending")
def test_reading_a_ready_tensor_leaves_what_is_pending():
    x = torch.ones(3).to(DEVICE)
    y = x * 2

    assert x.tolist() == [1.0, 1.0, 1.0]
    assert x.t().cpu().tolist() == [1.0, 1.0, 1.0]
    assert x[1:].tolist() == [1.0, 1.0]
    assert lazyrt.is_pending(y)
    assert lazyrt.counters()["executions"] == 0


# ---------------------------------------------------------------- optimizer and limits


def train_once(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, 3, device=DEVICE)).sum().backward()
    optimizer.step()


@pytest.mark.not_eager("reads what is pending")
def test_a_barrier_follows_the_optimizer_step():
    model = nn.Linear(3, 2).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with recorded(events.BarrierFinished) as barriers:
        train_once(model, optimizer)

    (barrier,) = barriers
    assert barrier.cause == "optimizer.step()"
    assert barrier.site.function == "train_once"
    assert barrier.executed
    assert not lazyrt.is_pending(model.weight)


@pytest.mark.not_eager("reads what is pending")
def test_the_barrier_after_the_optimizer_can_be_switched_off():
    model = nn.Linear(3, 2).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with config.scoped(barrier_after_optimizer=False):
        train_once(model, optimizer)
        train_once(model, optimizer)

    assert lazyrt.counters()["executions"] == 0
    assert lazyrt.is_pending(model.weight)


def test_optimizers_inside_a_step_leave_the_barrier_to_the_step():
    model = nn.Linear(3, 2).to(DEVICE)
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]

    with recorded(events.BarrierFinished) as barriers, lazyrt.step("gan"):
        for optimizer in optimizers:
            train_once(model, optimizer)

    assert [event.cause for event in barriers] == ["end of step gan"]


@pytest.mark.not_eager("reads what is pending")
def test_optimizers_of_cpu_models_cause_no_barrier():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    y = torch.ones(3, device=DEVICE) * 2

    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()

    assert lazyrt.is_pending(y)


def test_lbfgs_with_a_closure_works():
    def fit(device):
        torch.manual_seed(0)
        x = torch.nn.Parameter(torch.tensor([3.0, -2.0], device=device))
        optimizer = torch.optim.LBFGS([x], lr=0.5, max_iter=4)

        def closure():
            optimizer.zero_grad()
            loss = (x - 1).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return x.detach().cpu()

    torch.testing.assert_close(fit(DEVICE), fit("cpu"), rtol=1e-4, atol=1e-4)


@pytest.mark.not_eager("reads what is pending")
def test_a_barrier_follows_when_too_much_is_pending():
    x = torch.zeros(2, device=DEVICE)
    lazyrt.mark_step()
    lazyrt.reset_counters()

    with (
        config.scoped(max_pending_nodes=50),
        recorded(events.BarrierFinished) as barriers,
    ):
        for _ in range(120):
            x = x + 1

    assert x.tolist() == [120.0, 120.0]
    assert len(barriers) == 2
    assert barriers[0].cause == "more than 50 pending ops"
    assert barriers[0].site.file == __file__


@pytest.mark.lazy_only("reads what is pending")
def test_a_loop_of_in_place_ops_stays_within_the_limit_too():
    x = torch.zeros(2, device=DEVICE)
    lazyrt.mark_step()
    lazyrt.reset_counters()

    with config.scoped(max_pending_nodes=50):
        for _ in range(120):
            x.add_(1)

    assert x.tolist() == [120.0, 120.0]
    assert lazyrt.counters()["executions"] >= 2


@pytest.mark.not_eager("reads what is pending")
def test_no_limit_means_no_barrier():
    x = torch.zeros(2, device=DEVICE)

    with config.scoped(max_pending_nodes=0):
        for _ in range(100):
            x = x + 1

    assert lazyrt.is_pending(x)


# ---------------------------------------------------------------- inspectors, debuggers


def call_from(filename, function, source, tensor):
    """Call a function whose code claims to come from another file."""
    namespace: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), namespace)  # noqa: S102
    return namespace[function](tensor)


INSPECTORS = [
    "/x/IPython/core/oinspect.py",
    "/x/IPython/core/completer.py",
    "/x/IPython/core/magics/namespace.py",
    "/x/IPython/core/ultratb.py",
    "/x/jedi/inference/compiled.py",
    "/x/debugpy/_vendored/pydevd/_pydevd_bundle/pydevd_xml.py",
    "/x/stack_data/core.py",
    "/x/ipykernel/debugger.py",
]


@pytest.mark.not_eager("reads what is pending")
@pytest.mark.parametrize("file", INSPECTORS)
def test_inspectors_get_the_plan_line_and_compute_nothing(file):
    """An IDE's list of variables runs nothing."""
    y = torch.ones(8, 10, device=DEVICE) * 2
    fingerprint = lazyrt.pending_graph(y).fingerprint
    source = "def look(t):\n    return repr(t), str(t), f'{t}', '%s' % t\n"

    texts = call_from(file, "look", source, y)

    assert set(texts) == {lazyrt.plan(y)}
    assert "f32[8,10]" in texts[0]
    assert "aten.mul.Tensor" in texts[0]
    assert "test_reads.py" in texts[0]
    assert lazyrt.pending_graph(y).fingerprint == fingerprint
    assert lazyrt.counters()["peek_executions"] == 0
    assert lazyrt.counters()["transfers_to_host"] == 0


@pytest.mark.not_eager("reads what is pending")
def test_inspectors_get_the_plan_line_of_modules_lists_and_ready_tensors():
    model = nn.ParameterList([nn.Parameter(torch.ones(2, device=DEVICE) * 2)])
    ready = torch.ones(2).to(DEVICE)
    source = "def look(t):\n    return repr(t)\n"

    texts = call_from(INSPECTORS[0], "look", source, [model[0], ready, ready[0]])

    assert "<lazyrt f32[2], pending: aten.mul.Tensor" in texts
    assert "<lazyrt f32[2], ready>" in texts
    assert "<lazyrt f32[], ready>" in texts
    assert lazyrt.counters()["transfers_to_host"] == 0


@pytest.mark.not_eager("reads what is pending")
def test_what_is_evaluated_in_a_debugger_is_shown_in_full():
    y = torch.ones(2, device=DEVICE) * 2
    file = "/x/debugpy/_vendored/pydevd/_pydevd_bundle/pydevd_vars.py"
    source = "def evaluate_expression(t):\n    return repr(t)\n"

    text = call_from(file, "evaluate_expression", source, y)

    assert text == "tensor([2., 2.], device='lazyrt:0')"
    assert lazyrt.is_pending(y)


@pytest.mark.not_eager("reads what is pending")
def test_the_condition_of_a_debuggers_breakpoint_is_a_peek():
    y = torch.ones(2, device=DEVICE) * 2
    file = "/x/debugpy/_vendored/pydevd/pydevd.py"
    source = "def handle_breakpoint_condition(t):\n    return t.sum().item() > 3\n"
    lazyrt.reset_counters()

    found = call_from(file, "handle_breakpoint_condition", source, y)

    assert found is True
    assert lazyrt.is_pending(y)
    assert lazyrt.counters()["barriers"] == 0


def at_pdb(commands, tensor):
    """Stop in a function with a local `t`, type the commands, return what pdb wrote."""
    typed = io.StringIO("\n".join([*commands, "c", ""]))
    screen = io.StringIO()
    debugger = pdb.Pdb(stdin=typed, stdout=screen, nosigint=True, readrc=False)
    debugger.use_rawinput = False
    before = sys.gettrace()

    def stop(t):
        debugger.set_trace(sys._getframe())
        return t

    try:
        stop(tensor)
    finally:
        sys.settrace(before)
        # the outermost frame keeps the debugger, and so its locals
        vars(debugger).clear()
        vars(builtins).pop("_", None)  # the last value that pdb has shown
    return screen.getvalue()


@pytest.mark.not_eager("reads what is pending")
@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("p t", "tensor([2., 2.], device='lazyrt:0')"),
        ("pp t.sum()", "tensor(4., device='lazyrt:0')"),
        ("p t.sum().item()", "4.0"),
        ("p t.cpu()", "tensor([2., 2.])"),
        ("t.tolist()", "[2.0, 2.0]"),
        ("p float(t[0])", "2.0"),
        ("!t.numpy()", "array([2., 2.], dtype=float32)"),
        ("p bool(t[0])", "True"),
        ("p f'{t.mean():.2f}'", "2.00"),
    ],
)
def test_what_is_typed_at_a_pdb_prompt_is_a_peek(typed, shown):
    """A tensor at pdb's prompt is no step's compile."""
    y = torch.ones(2, device=DEVICE) * 2
    fingerprint = lazyrt.pending_graph(y).fingerprint
    lazyrt.reset_counters()

    written = at_pdb([typed], y)

    assert shown in written
    assert lazyrt.is_pending(y)
    assert lazyrt.pending_graph(y).fingerprint == fingerprint
    assert lazyrt.counters()["executions"] == 0
    assert lazyrt.counters()["barriers"] == 0


@pytest.mark.not_eager("reads what is pending")
def test_a_tensor_that_a_function_returns_under_pdb_costs_no_compile():
    """pdb shows by itself what is returned, and shows it again in `where`."""
    y = torch.ones(2, device=DEVICE) * 2
    lazyrt.reset_counters()
    screen = io.StringIO()
    typed = io.StringIO("n\nw\nc\n")
    debugger = pdb.Pdb(stdin=typed, stdout=screen, nosigint=True, readrc=False)
    debugger.use_rawinput = False
    before = sys.gettrace()

    def give(t):
        return t + 1

    try:
        debugger.runcall(give, y)
    finally:
        sys.settrace(before)
        vars(debugger).clear()

    assert screen.getvalue().count("give()-><lazyrt f32[2") == 2
    counters = lazyrt.counters()
    costs = ("compiles", "executions", "peek_compiles", "peek_executions", "barriers")
    assert [counters[each] for each in costs] == [0, 0, 0, 0, 0]


@pytest.mark.not_eager("reads what is pending")
def test_what_is_typed_into_pdbs_interpreter_is_a_peek(monkeypatch, capsys):
    typed = iter(["t.tolist()"])

    def answer(_prompt=""):
        line = next(typed, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr(builtins, "input", answer)
    y = torch.ones(2, device=DEVICE) * 2
    lazyrt.reset_counters()

    at_pdb(["interact"], y)

    assert "[2.0, 2.0]" in capsys.readouterr().out
    assert lazyrt.is_pending(y)
    assert lazyrt.counters()["barriers"] == 0


@pytest.mark.not_eager("reads what is pending")
def test_the_condition_of_a_breakpoint_cuts_nothing():
    """It is evaluated each time that its line is reached."""
    program = "def loop(t, stop):\n    stop()\n    for _ in range(4):\n        t = t + 1\n    return t\n"
    file = "/x/loop.py"
    linecache.cache[file] = (
        len(program),
        None,
        program.splitlines(keepends=True),
        file,
    )
    typed = [
        f"b {file}:4, t.sum().item() > 5",
        "c",
        "p t.sum().item()",
        "cl 1",
        "c",
        "",
    ]
    screen = io.StringIO()
    debugger = pdb.Pdb(
        stdin=io.StringIO("\n".join(typed)), stdout=screen, nosigint=True, readrc=False
    )
    debugger.use_rawinput = False
    namespace: dict[str, Any] = {}
    exec(compile(program, file, "exec"), namespace)  # noqa: S102
    y = torch.ones(2, device=DEVICE) * 2
    before = sys.gettrace()
    lazyrt.reset_counters()
    try:
        end = namespace["loop"](y, lambda: debugger.set_trace(sys._getframe(1)))
    finally:
        sys.settrace(before)
        vars(debugger).clear()
        del linecache.cache[file]

    assert "\n(Pdb) 6.0\n" in screen.getvalue()
    assert lazyrt.counters()["barriers"] == 0
    assert lazyrt.is_pending(end)


@pytest.mark.not_eager("reads what is pending")
def test_a_peek_at_a_prompt_says_its_cost_after_the_value(monkeypatch, capsys):
    """On one line, for what took long; a script's print says nothing."""
    monkeypatch.setattr(guard, "WORTH_REPORTING_NS", 0)
    y = torch.ones(2, device=DEVICE) * 2

    written = at_pdb(["p t", "p 1"], y)
    print(y)  # noqa: T201

    value, _, after = written.partition("tensor([2., 2.], device='lazyrt:0')\n")
    assert "[lazyrt" not in value
    assert re.match(r"\[lazyrt: \d compiles?, 1 execution, [\d.]+ m?s\]\n", after)
    assert after.count("[lazyrt") == 1
    assert capsys.readouterr().out == "tensor([2., 2.], device='lazyrt:0')\n"


def test_a_quick_peek_at_a_prompt_says_no_cost(monkeypatch):
    """Below 50 ms nobody waits."""
    assert guard.WORTH_REPORTING_NS == 50_000_000
    monkeypatch.setattr(guard, "WORTH_REPORTING_NS", 10**12)

    assert "[lazyrt" not in at_pdb(["p t"], torch.ones(2, device=DEVICE) * 2)


# ---------------------------------------------------------------- the plan line


@pytest.mark.not_eager("reads what is pending")
def test_the_plan_line_tells_type_state_op_and_line():
    x = torch.ones(8, 10, dtype=torch.bfloat16).to(DEVICE)
    y = x * 2
    line = test_the_plan_line_tells_type_state_op_and_line.__code__.co_firstlineno + 3

    assert lazyrt.plan(x) == "<lazyrt bf16[8,10], ready>"
    assert lazyrt.plan(y).startswith("<lazyrt bf16[8,10], pending: aten.mul.Tensor, ")
    assert f":{line}>" in lazyrt.plan(y) or "cell" in lazyrt.plan(y)
    assert lazyrt.plan(y.t()).startswith("<lazyrt bf16[10,8], pending: aten.t.default")
    lazyrt.mark_step()
    assert lazyrt.plan(y) == "<lazyrt bf16[8,10], ready>"
    assert lazyrt.plan(y[0]) == "<lazyrt bf16[10], ready>"


@pytest.mark.parametrize(
    "function", [lazyrt.plan, lazyrt.materialise, lazyrt.pending_graph, lazyrt.snapshot]
)
def test_functions_on_tensors_of_other_devices_say_what_to_do(function):
    with pytest.raises(lazyrt.errors.UsageError, match=r"on cpu.*\.to\('lazyrt'\)"):
        function(torch.ones(2))
    with pytest.raises(lazyrt.errors.UsageError, match="int 3"):
        function(3)


def test_activity_changes_with_everything_that_happens():
    seen = [lazyrt.activity()]

    def note():
        seen.append(lazyrt.activity())

    x = torch.ones(3, device=DEVICE)
    note()
    y = x * 2
    note()
    y.add_(1)
    note()
    repr(y)
    note()
    lazyrt.mark_step()
    note()
    y.cpu()
    note()
    torch.ones(2).to(DEVICE)
    note()

    assert len(set(seen)) == len(seen)


def test_activity_stays_while_nothing_happens():
    y = torch.ones(3, device=DEVICE) * 2
    before = lazyrt.activity()

    lazyrt.plan(y)
    lazyrt.live_tensors()
    lazyrt.pending_graph(y)
    lazyrt.counters()

    assert lazyrt.activity() == before


LIBRARY = """
def is_small(value):
    return bool(value < 1e9)
"""


@pytest.fixture
def checking(tmp_path, monkeypatch, request):
    package = tmp_path / getattr(request, "param", "site-packages")
    package.mkdir()
    (package / "checking.py").write_text(LIBRARY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(package))
    yield importlib.import_module("checking")
    del sys.modules["checking"]


@pytest.mark.lazy_only("reads what is pending")
def test_a_cut_within_a_library_names_the_librarys_line(checking):
    x = torch.ones(40, device=DEVICE)
    for _ in range(40):
        x = x * 1.5

    with recorded(events.BarrierFinished) as barriers:
        assert checking.is_small(x.sum())

    (barrier,) = barriers
    assert barrier.cause == "read by bool() in checking.py:3"
    assert barrier.site.file == __file__
    assert barrier.tensor == ""  # the line here does not name what is read


@pytest.mark.lazy_only("reads what is pending")
@pytest.mark.parametrize(
    "checking", ["site-packages", "on-the-python-path"], indirect=True
)
def test_a_packages_small_check_is_a_peek_wherever_the_package_lies(checking):
    x = torch.ones(4, device=DEVICE) * 2

    assert checking.is_small(x.sum())

    assert lazyrt.is_pending(x)


@pytest.mark.lazy_only("reads what is pending")
@pytest.mark.parametrize("here", ["project/scripts", "project"])
def test_a_module_of_the_programs_own_project_reads_as_the_program(
    here, tmp_path, monkeypatch
):
    sources = tmp_path / "project" / "src"
    for folder in (sources, tmp_path / "project" / "scripts"):
        folder.mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").touch()
    (sources / "own_checks.py").write_text(LIBRARY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(sources))
    monkeypatch.chdir(tmp_path / here)
    monkeypatch.setattr(provenance, "_own_trees", provenance._find_own_trees())
    x = torch.ones(4, device=DEVICE) * 2

    assert importlib.import_module("own_checks").is_small(x.sum())

    assert not lazyrt.is_pending(x)
    del sys.modules["own_checks"]


def large(x):
    """Return a loss of more ops than a small check takes."""
    for _ in range(40):
        x = torch.cos(x)
    return x.square().sum()


@pytest.mark.lazy_only("reads what is pending")
def test_torchs_optimizers_count_as_a_library_that_reads():
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    optimizer = torch.optim.LBFGS([x], max_iter=1)

    def closure():
        loss = large(x)
        loss.backward()
        return loss

    with recorded(events.BarrierFinished) as barriers:
        optimizer.step(closure)

    reads = [each.cause for each in barriers if each.cause.startswith("read")]
    assert reads
    assert all(re.search(r" in torch/optim/lbfgs\.py:\d+$", each) for each in reads)


@pytest.mark.lazy_only("reads what is pending")
def test_a_step_names_the_librarys_line_that_would_cut_it():
    parameter = torch.ones(3, device=DEVICE, requires_grad=True)

    loss = large(parameter)

    with lazyrt.step():
        loss.backward()
        with pytest.raises(lazyrt.errors.StepSyncError) as found:
            nn.utils.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)

    assert " (in torch/nn/utils/clip_grad.py:" in str(found.value)
    assert "torch.nn.utils, " not in str(found.value)
