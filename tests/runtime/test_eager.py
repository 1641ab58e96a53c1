"""Eager debug mode: each op compiled and run by itself, counts that no breakpoint changes."""

import contextlib
import inspect
import io
import pdb  # noqa: T100 - a test types at its prompt
import random
import re
import sys
from typing import Any

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.config import config
from lazyrt.control import modes
from lazyrt.errors import LostValueError, UsageError
from lazyrt.frontend import kernels, record
from lazyrt.frontend.buffers import View
from lazyrt.frontend.eager import Guard
from lazyrt.ir import live
from lazyrt.observe import events
from tests.harness import DEVICE, assert_same, cold_start, grad_of, recorded, run_python

SIZES = ((10, 30), (30, 20), (20, 10), (10, 1))


def four_layers():
    torch.manual_seed(1)
    return [nn.Linear(*size).to(DEVICE) for size in SIZES], torch.randn(2, 10).to(
        DEVICE
    )


def on_the_cpu(layers, x):
    for layer in layers:
        x = nn.functional.linear(x, layer.weight.cpu(), layer.bias.cpu())
    return x.detach()


def used_since(before):
    return {
        name: count for name, count in (lazyrt.counters() - before).items() if count
    }


def compiled_and_run(run):
    """Return how many ops were compiled and how many were run, from a cold start."""
    cold_start()
    before = lazyrt.counters()
    run()
    used = lazyrt.counters() - before
    return used["eager_compiles"], used["eager_executions"]


def test_each_op_is_compiled_and_run_by_itself():
    """Eight ops for the four layers; compiles and cache hits add up to executions."""
    layers, x = four_layers()
    cold_start()
    before = lazyrt.counters()

    with lazyrt.eager_mode(), torch.no_grad():
        for layer in layers:
            x = layer(x)

    used = used_since(before)
    assert used == {"eager_compiles": 8, "eager_executions": 8}
    assert not lazyrt.is_pending(x)


def test_an_op_that_is_known_is_a_hit():
    """The cache goes by op, shapes and static arguments."""
    a, b = torch.ones(2, 3).to(DEVICE), torch.ones(5).to(DEVICE)
    cold_start()

    with (
        lazyrt.eager_mode(),
        recorded(events.OpExecuted) as found,
    ):
        torch.relu(a)
        torch.relu(a + 1)
        torch.relu(b)
        a.sum(0)
        a.sum(1)
        a.sum(0)

    hits = [(e.op.split(".")[1], e.cache_hit) for e in found]
    assert hits == [
        ("relu", False), ("add", False), ("relu", True), ("relu", False),
        ("sum", False), ("sum", False), ("sum", True),
    ]  # fmt: skip
    assert all(e.mode == "eager" and e.times == 1 for e in found)


def test_a_printed_tensor_is_the_cpus_at_any_line():
    """The value at the prompt is that of eager CPU torch."""
    layers, x = four_layers()

    with lazyrt.eager_mode(), torch.no_grad():
        output2 = layers[1](layers[0](x))

    assert_same(output2, on_the_cpu(layers[:2], x.cpu()))


def test_a_pdb_session_costs_copies_alone():
    """Typed at the prompt, line by line; the counts are those without pdb."""
    layers, x = four_layers()
    typed = [
        *["n"] * (sys.version_info >= (3, 13)),  # which stops at set_trace() itself
        "n",
        "n",
        "p output2.to('cpu').sum().item()",
        "n",
        "p output3.sum().item()",
        "c",
        "",
    ]
    screen = io.StringIO()
    debugger = pdb.Pdb(
        stdin=io.StringIO("\n".join(typed)), stdout=screen, nosigint=True, readrc=False
    )
    debugger.use_rawinput = False

    def model(stop):
        if stop:
            debugger.set_trace(sys._getframe())
        output1 = layers[0](x)
        output2 = layers[1](output1)
        output3 = layers[2](output2)
        return layers[3](output3)

    tracing = sys.gettrace()
    before = lazyrt.counters()
    try:
        with lazyrt.eager_mode(), torch.no_grad():
            output = model(stop=True)
    finally:
        sys.settrace(tracing)
        vars(debugger).clear()

    used = lazyrt.counters() - before
    shown = re.findall(r"\(Pdb\) (-?\d+\.\d+)\n", screen.getvalue())
    expected = [on_the_cpu(layers[:k], x.cpu()).sum().item() for k in (2, 3)]
    assert [float(number) for number in shown] == pytest.approx(expected, abs=1e-5)
    assert used["eager_executions"] == 8 + 1  # the prompt's own sum()
    assert used["transfers_to_host"] == 2
    assert used["executions"] == used["compiles"] == used["peek_executions"] == 0
    assert_same(output, on_the_cpu(layers, x.cpu()))


def test_two_reads_are_two_transfers_and_nothing_else():
    """`output1.to('cpu')`, `output4.to('cpu')` compile and run nothing."""
    layers, x = four_layers()
    with lazyrt.eager_mode(), torch.no_grad():
        outputs = [x := layer(x) for layer in layers]
        before = lazyrt.counters()

        first = outputs[0].to("cpu")
        last = outputs[3].to("cpu")

        used = used_since(before)
    assert used == {
        "transfers_to_host": 2,
        "bytes_to_host": first.nbytes + last.nbytes,
    }


def test_reading_one_version_again_moves_no_bytes():
    """Repeated reads are served from one host copy, which nobody can spoil."""
    x = torch.ones(3).to(DEVICE)
    with lazyrt.eager_mode():
        y = x * 2
        before = lazyrt.counters()

        y.cpu().zero_()
        again = y.cpu()
        y.add_(1)
        changed = y.cpu()

    assert (lazyrt.counters() - before)["transfers_to_host"] == 2
    assert again.tolist() == [2, 2, 2]
    assert changed.tolist() == [3, 3, 3]


@pytest.mark.parametrize("extra", [1, 4])
def test_mark_steps_change_nothing(extra):
    """More barriers count as barriers, and nothing else changes."""
    layers, x = four_layers()

    def run(marks):
        y = x
        with lazyrt.eager_mode(), torch.no_grad():
            for layer in layers:
                y = layer(y)
                for _ in range(marks):
                    lazyrt.mark_step()

    assert compiled_and_run(lambda: run(0)) == compiled_and_run(lambda: run(extra))
    before = lazyrt.counters()
    with recorded(events.BarrierFinished) as found:
        run(extra)
    used = lazyrt.counters() - before
    assert used["empty_barriers"] == 4 * extra
    assert used["barriers"] == used["executions"] == used["compiles"] == 0
    assert all(event.eager and not event.executed for event in found)


def program(seed):
    """Return the lines of a random program, each a function of its tensors."""
    r = random.Random(seed)  # noqa: S311 - a reproducible program
    choices = [
        lambda t, i, j, k: t.append(t[i] + t[j]),
        lambda t, i, j, k: t.append(t[i] * k),
        lambda t, i, j, k: t.append(t[i] @ t[j].t()),
        lambda t, i, j, k: t[i].add_(k),
        lambda t, i, j, k: t[i][k % 3].mul_(t[j][0]),
        lambda t, i, j, k: t.append(t[i][k % 3 :].repeat(3, 1)[:3]),
        lambda t, i, j, k: t.append(nn.functional.dropout(t[i])),
        lambda t, i, j, k: t.append(t[i].clone().tanh_()),
    ]
    lines: list[tuple[Any, int, int, int]] = []
    for _ in range(7):
        line, size = r.choice(choices), len(lines) + 2
        lines.append((line, r.randrange(size), r.randrange(size), r.randrange(1, 9)))
    return lines


def run_program(lines, stops, stop):
    torch.manual_seed(3)
    tensors = [
        torch.linspace(-1, 1, 9).reshape(3, 3).to(DEVICE),
        torch.eye(3).to(DEVICE),
    ]
    for number, (line, i, j, k) in enumerate(lines):
        line(tensors, i % len(tensors), j % len(tensors), k)
        if number in stops:
            stop(tensors[-1])
    return tensors


def test_counts_do_not_depend_on_where_the_breakpoint_is():
    """At each of five positions in a fresh runtime the same counts."""
    layers, x = four_layers()

    def run(position):
        with lazyrt.eager_mode(), torch.no_grad():
            y = x
            for number, layer in enumerate(layers):
                if number == position:
                    lazyrt.mark_step()
                    y.to("cpu")
                y = layer(y)
            if position == 4:
                lazyrt.mark_step()
                y.to("cpu")

    counts = {compiled_and_run(lambda p=position: run(p)) for position in range(5)}
    assert counts == {(8, 8)}


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 9))]
)
def test_counts_and_values_of_a_random_program_are_the_same_wherever_it_stops(seed):
    """As a property: barriers, reads and prints anywhere."""
    lines = program(seed)
    r = random.Random(seed)  # noqa: S311 - a reproducible program
    stops = (lambda t: lazyrt.mark_step(), lambda t: t.sum, print, lambda t: t.cpu())
    found = set()
    values = []

    def run(where, stop):
        with lazyrt.eager_mode(), contextlib.redirect_stdout(None):
            values.append([t.cpu() for t in run_program(lines, where, stop)])

    for number in range(4):
        where = {r.randrange(len(lines)) for _ in range(number)}
        found.add(compiled_and_run(lambda w=where: run(w, r.choice(stops))))

    assert len(found) == 1
    lazily = [t.cpu() for t in run_program(lines, (), None)]
    for one in (*values[1:], lazily):
        for actual, expected in zip(one, values[0], strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


def test_a_number_that_varies_is_compiled_once():
    x = torch.ones(3).to(DEVICE)
    cold_start()
    before = lazyrt.counters()

    with lazyrt.eager_mode():
        results = [(x * factor + 1)[0].item() for factor in (0.5, 1.0, 2.0, 3.5)]

    assert results == [1.5, 2.0, 3.0, 4.5]
    used = lazyrt.counters() - before
    assert used["eager_compiles"] == 3
    assert used["eager_executions"] == 12


def small_model():
    # A bias before the batch norm would have gradients that are nothing but rounding.
    hidden = nn.Linear(4, 8, bias=False)
    return nn.Sequential(hidden, nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.slow
def test_training_matches_the_cpu():
    torch.manual_seed(5)
    model, twin = small_model(), small_model()
    twin.load_state_dict(model.state_dict())
    model.to(DEVICE)
    data = torch.randn(3, 6, 4)

    def train(module, batches):
        optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
        losses = []
        for batch in batches:
            optimizer.zero_grad()
            loss = module(batch).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = train(twin, data)
    lazy_data = data.to(DEVICE)
    before = lazyrt.counters()
    with lazyrt.eager_mode():
        losses = train(model, lazy_data)

    used = lazyrt.counters() - before
    assert losses == pytest.approx(expected, abs=1e-5)
    for name, value in model.state_dict().items():
        assert_same(value, twin.state_dict()[name], tolerance=1e-5)
    assert used["executions"] == used["compiles"] == 0


# ------------------------------------------------------------------ with a pending graph


@pytest.mark.not_eager("begins in lazy mode")
def test_a_pending_graph_stays_as_it_is():
    """Legal at any time; what is pending keeps its graph, its inputs and its values."""
    x = torch.arange(4.0).to(DEVICE)
    lazily = (x * 2).exp() + torch.rand(4, device=DEVICE)
    fingerprint = lazyrt.pending_graph(lazily).fingerprint

    with lazyrt.eager_mode():
        eagerly = lazily + 1
        halves = x[1:] / 2

    assert lazyrt.is_pending(lazily)
    assert lazyrt.pending_graph(lazily).fingerprint == fingerprint
    assert not lazyrt.is_pending(eagerly)
    assert halves.tolist() == [0.5, 1, 1.5]
    torch.testing.assert_close(eagerly.cpu(), lazily.cpu() + 1)


@pytest.mark.not_eager("begins in lazy mode")
def test_what_eager_ops_read_of_a_pending_graph_is_computed_once():
    x = torch.ones(4).to(DEVICE)
    lazily = (x * 2).exp()
    with lazyrt.eager_mode(), recorded(events.OpExecuted) as found:
        first, second = lazily + 1, lazily - 1

    assert [e.op.split(".")[1] for e in found] == ["mul", "exp", "add", "sub"]
    assert_same(first, torch.full((4,), 2.0).exp() + 1)
    assert_same(second, torch.full((4,), 2.0).exp() - 1)


@pytest.mark.not_eager("begins in lazy mode")
def test_writing_a_pending_tensor_in_place_takes_it_out_of_the_graph():
    x = torch.ones(4).to(DEVICE)
    lazily, other = x * 3, x * 5
    view = lazily[:2]

    with lazyrt.eager_mode():
        lazily.add_(1)
        view.mul_(10)

    assert not lazyrt.is_pending(lazily)
    assert lazyrt.is_pending(other)
    assert lazily.tolist() == [40, 40, 4, 4]
    assert view.tolist() == [40, 40]
    assert other.tolist() == [5, 5, 5, 5]


def test_views_made_eagerly_follow_their_base_in_both_modes():
    x = torch.zeros(2, 3).to(DEVICE)
    with lazyrt.eager_mode():
        row, turned = x[0], x.t()
        x.add_(1)
        after_eager = (row.tolist(), turned[0].tolist())
        row.mul_(4)
    x.sub_(1)
    turned[1].add_(10)

    assert after_eager == ([1, 1, 1], [1, 1])
    assert x.tolist() == [[3, 13, 3], [0, 10, 0]]
    assert row.tolist() == [3, 13, 3]
    assert turned.tolist() == [[3, 0], [13, 10], [3, 0]]


def test_a_view_made_eagerly_is_none_of_data_that_is_gone_while_its_base_is_pending():
    base = torch.arange(4.0, device=DEVICE)
    with lazyrt.eager_mode():
        base.add_(0)
        view = base[1:3]
    base.add_(1)
    lazyrt.mark_step()
    base.mul_(2)

    assert (view * 1).tolist() == [4, 6]


def test_switching_off_records_again():
    x = torch.ones(2).to(DEVICE)
    lazyrt.eager_mode(on=True)
    y = x + 1
    lazyrt.eager_mode(on=False)

    z = y * 2

    assert lazyrt.is_pending(z)
    assert len(lazyrt.pending_graph(z)) == 1
    assert z.tolist() == [4, 4]


def test_the_lazy_steps_before_and_after_are_the_same_graph():
    """No observer effect: a look in eager mode between two steps costs the steps nothing."""
    x = torch.ones(3).to(DEVICE)

    def step():
        y = (x * 2.5)[1:].sum()
        lazyrt.mark_step()
        return y

    step()
    with lazyrt.eager_mode():
        for factor in (2.5, 3.0):
            (x * factor)[:2].sum()
    before = lazyrt.counters()
    step()

    assert (lazyrt.counters() - before)["compiles"] == 0


def test_random_numbers_are_those_of_lazy_mode():
    def draw():
        torch.manual_seed(7)
        x = torch.rand(5, device=DEVICE)
        return (nn.functional.dropout(x) + torch.randn(5, device=DEVICE)).cpu()

    lazily = draw()
    with lazyrt.eager_mode():
        eagerly = draw()

    torch.testing.assert_close(eagerly, lazily, rtol=0, atol=1e-6)


def test_a_bad_call_raises_at_its_line_and_leaves_everything_as_it_was():
    x = torch.ones(2, 3).to(DEVICE)
    with lazyrt.eager_mode():
        with pytest.raises(RuntimeError):
            x @ x

        assert (x + 1).tolist() == [[2, 2, 2], [2, 2, 2]]


def test_an_op_without_a_lowering_runs_on_the_cpu():
    x = torch.tensor([1.0, 0.0, 2.0]).to(DEVICE)
    with lazyrt.eager_mode():
        found = (x + 1).nonzero() + 1

    assert found.tolist() == [[1], [2], [3]]


def test_inputs_of_eager_ops_are_given_back():
    """A long eager loop holds no data and numbers no inputs."""
    from lazyrt.ir.live import pending

    x = torch.ones(3).to(DEVICE)
    with lazyrt.eager_mode():
        for _ in range(5):
            x = (x * 1.5)[:].add_(0.5)

    assert not pending.inputs
    assert not pending.floats
    assert not pending.buffers
    assert not pending.owners


# ------------------------------------------------------------------ how it is switched


def test_an_op_called_while_an_error_is_handled_runs_at_once_and_one_that_fails_does_not():
    x = torch.ones(3).to("lazyrt")
    with lazyrt.eager_mode():
        try:
            x.view(7)
        except RuntimeError:
            y = x + 1
            assert not lazyrt.is_pending(y)
        z = x + 2
        assert not lazyrt.is_pending(z)

    assert y.tolist() == [2, 2, 2]
    assert z.tolist() == [3, 3, 3]


@pytest.mark.lazy_only("begins in lazy mode")
def test_the_mode_and_the_scope_that_set_it():
    """`mode()` says which mode holds, and who set it."""
    assert lazyrt.mode() == "lazy"
    with lazyrt.eager_mode():
        mode = lazyrt.mode()
        with lazyrt.eager_mode(False):  # noqa: FBT003 - as torch spells it
            inner = lazyrt.mode()

    assert (mode, inner) == ("eager", "lazy")
    assert mode.scope.startswith("with eager_mode() at test_eager.py:")
    assert inner.scope.startswith("with eager_mode(False) at test_eager.py:")
    with lazyrt.op_by_op_mode(barriers=False):
        mode = lazyrt.mode()
    assert mode == "opbyop"
    assert "op_by_op_mode(reads=True, barriers=False)" in repr(mode)
    assert lazyrt.mode() == "lazy"


@pytest.mark.not_eager("begins in lazy mode")
def test_while_the_mode_is_off_kernels_are_what_they_are_without_it():
    """Switching replaces global names; no op's path has a test for the mode."""

    def taken():
        names = ("acquire", "release", "unwind", "View")
        return [tuple(scope[name] for name in names) for scope in kernels.scopes]

    for op in (torch.tanh, torch.neg):  # kernels are made when they are called
        op(torch.ones(2, device=DEVICE))
    before = taken()
    with lazyrt.eager_mode():
        torch.frac(torch.ones(2, device=DEVICE)).t()  # one more, and a view
        during = {
            type(scope[name].__self__)
            for scope in kernels.scopes
            for name in ("acquire", "release")
        }
    after = taken()

    assert after[: len(before)] == before
    assert set(after) == {(live.lock.acquire, live.lock.release, live.unwind, View)}
    assert during == {Guard}
    sources = "".join(
        inspect.getsource(part) for part in (kernels, record, live.Buffer)
    )
    assert "eager" not in sources.replace("Eager debug mode puts", "")


@pytest.mark.lazy_only("begins in lazy mode")
@pytest.mark.parametrize("name", modes.MODES)
def test_a_mode_by_its_name(name):
    x = torch.ones(2).to(DEVICE)

    with modes.in_mode(name):
        found = lazyrt.mode()
        values = (x + 1).tolist()

    assert found == name
    assert values == [2, 2]
    assert lazyrt.mode() == "lazy"


def test_a_mode_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(UsageError, match="The modes are lazy, eager, opbyop"):
        modes.in_mode("fast")  # type: ignore[arg-type]


@pytest.mark.not_eager("begins in lazy mode")
def test_a_function_may_be_eager():
    x = torch.ones(2).to(DEVICE)

    @lazyrt.eager_mode
    def plain(x):
        return x + 1, lazyrt.mode()

    @lazyrt.eager_mode()
    def called(x):
        return x + 1, lazyrt.mode()

    for function in (plain, called):
        y, mode = function(x)
        assert mode == "eager"
        assert f"{function.__qualname__} at " in mode.scope
        assert not lazyrt.is_pending(y)
        assert lazyrt.is_pending(x + 1)


@pytest.mark.not_eager("begins in lazy mode")
def test_one_module_may_be_eager():
    """Per nn.Module; the ops before and after it are recorded as before."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(DEVICE)
    x = torch.randn(5, 3).to(DEVICE)
    expected = model(x).sum()
    expected.backward()
    grads = [grad_of(p) for p in model.parameters()]
    model.zero_grad()

    with (
        lazyrt.eager_module(model[1]),
        recorded(events.OpExecuted) as found,
    ):
        loss = model(x).sum()
    assert lazyrt.is_pending(loss)
    loss.backward()

    assert [e.op.split(".")[1] for e in found][-1] == "tanh"
    assert loss.item() == pytest.approx(expected.item())
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        torch.testing.assert_close(grad_of(parameter), grad)
    with recorded(events.OpExecuted) as found:
        model(x)
    assert not found


@pytest.mark.lazy_only("begins in lazy mode")
def test_a_module_that_fails_leaves_the_mode_as_it_was():
    module = nn.Linear(3, 3).to(DEVICE)
    with lazyrt.eager_mode(module), pytest.raises(RuntimeError):
        module(torch.ones(2).to(DEVICE))

    assert lazyrt.mode() == "lazy"


@pytest.mark.lazy_only("begins in lazy mode")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: lazyrt.eager_mode("on"),
            "neither True, False, a module nor a function",
        ),
        (
            lambda: lazyrt.eager_module(3),  # type: ignore[arg-type]
            r"eager_module\(3\) got int, not a module",
        ),
    ],
)
def test_a_wrong_argument_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()

    assert lazyrt.mode() == "lazy"


def test_a_generator_function_cannot_be_eager():
    with pytest.raises(UsageError, match="runs in pieces"):

        @lazyrt.eager_mode
        def items():
            yield 1


def test_the_table_of_settings_says_who_set_each():
    """One table of all switches, with value and origin."""
    config.max_pending_nodes = 77
    with lazyrt.eager_mode():
        rows = {line.split()[0]: line for line in str(config).splitlines()}

    assert "77" in rows["max_pending_nodes"]
    assert (
        "config.max_pending_nodes = 77 at test_eager.py:" in rows["max_pending_nodes"]
    )
    assert "True" in rows["eager"]
    assert "with eager_mode() at test_eager.py:" in rows["eager"]
    assert rows["read_policy"].endswith("default")


PITCH = """
import torch, lazyrt
dev = lazyrt.device()
{enable}
linear1 = torch.nn.Linear(10, 30).to(dev)
linear2 = torch.nn.Linear(30, 20).to(dev)
inp = torch.randn(2, 10).to(dev)
lazyrt.reset_counters()
output1 = linear1(inp)
output2 = linear2(output1)
output1.to("cpu")
lazyrt.mark_step()
c = lazyrt.counters()
print(lazyrt.mode(), "|", lazyrt.mode().scope, "|", c["eager_compiles"], c["eager_executions"],
      c["disk_hits"])
"""


@pytest.mark.slow
def test_the_pitch_runs_by_call_and_by_variable_and_a_second_process_compiles_nothing(
    tmp_path,
):
    by_call = run_python(
        PITCH.format(enable="lazyrt.enable_eager_execution()"),
        LAZYRT_CACHE_DIR=str(tmp_path),
    )
    by_variable = run_python(
        PITCH.format(enable=""), LAZYRT_CACHE_DIR=str(tmp_path), LAZYVIZ_EAGER="1"
    )

    assert by_call == "eager | enable_eager_execution() | 4 4 0"
    assert by_variable == "eager | environment variable LAZYVIZ_EAGER | 0 4 4"


def test_strided_views_and_inputs_leave_nothing_behind():
    lazyrt.mark_step()
    with lazyrt.eager_mode():
        for _ in range(3):
            x = torch.arange(6.0).to(DEVICE)
            assert (x.as_strided((2,), (3,), 1) + 1).tolist() == [2.0, 5.0]
            assert x.unfold(0, 2, 2).tolist() == [[0, 1], [2, 3], [4, 5]]

        assert live.pending.inputs == []
        assert live.pending.sources == {}


@pytest.mark.lazy_only("is about origins of inputs")
def test_inputs_after_an_eager_op_know_where_they_come_from():
    lazyrt.mark_step()
    x = torch.ones(3).to(DEVICE)
    with lazyrt.eager_mode():
        x = x + 1
    with lazyrt.step("make"):
        y = x * 2
    with lazyrt.eager_mode():
        z = y + 1
    made = lazyrt.input_origins(x * 3, y * 3)
    del z

    assert [origin.step is not None for origin in made] == [False, True]


@pytest.mark.not_eager("needs pending values")
def test_what_was_pending_before_can_be_dropped_in_the_mode():
    lazyrt.mark_step()
    x = torch.ones(3).to(DEVICE)
    y = x * 2
    with lazyrt.eager_mode():
        z = x + 1
        dropped = lazyrt.discard_pending()

    assert dropped == 1
    assert z.tolist() == [2.0] * 3
    with pytest.raises(LostValueError, match="discard_pending"):
        y.cpu()


def test_a_coroutine_function_is_refused():
    async def work():
        return lazyrt.mode()

    with pytest.raises(UsageError, match="runs in pieces"):
        lazyrt.eager_mode(work)


def test_a_switch_of_op_by_op_mode_that_is_none_is_refused():
    with (
        pytest.raises(UsageError, match="op_by_op_reads is 'yes'"),
        lazyrt.op_by_op_mode(reads="yes"),  # type: ignore[arg-type]
    ):
        pass

    assert lazyrt.mode() in modes.MODES
