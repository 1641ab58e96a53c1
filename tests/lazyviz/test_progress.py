import io
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import lazyrt
from lazyrt.execution import op_by_op
from lazyrt.observe import events
from lazyrt.observe.events import SourceLocation
from lazyviz.shell.progress import Progress
from lazyviz.timing.compile_time import Expectations
from tests.lazyviz import fakes


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def notebook(shell):
    shell.add_traits()
    object.__setattr__(shell, "kernel", object())
    return shell


def published(shell):
    return [
        (output["update"], output["data"].get("text/plain"))
        for output in shell.display_pub.outputs
    ]


def lowered():
    started = events.CompileStarted(
        fingerprint="aa", purpose="step", tier="optimised", nodes=214, time_ns=0
    )
    return started, events.LoweringFinished(
        fingerprint="aa", purpose="step", nodes=214, duration_ns=1
    )


def on_a_worker(progress, *happened):
    for event in happened:
        thread = threading.Thread(target=progress.take, args=(event,))
        thread.start()
        thread.join()


def test_a_terminal_shows_one_line_and_takes_it_away(shell, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = Progress(shell)

    assert progress.take(fakes.progress())
    on_a_worker(progress, *lowered())
    assert progress.take(fakes.progress(elapsed_ns=2_000_000_000))
    progress.take(fakes.waited())

    erase = "\r\x1b[2K"
    assert terminal.getvalue() == (
        f"{erase}looking for the executable of 214 ops · 1.5 s · expected: unknown"
        f"{erase}compiling 214 ops · 2.0 s · expected: unknown{erase}"
    )


def test_a_pipe_shows_nothing(shell, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)

    Progress(shell).take(fakes.progress())

    assert stream.getvalue() == ""


def test_a_notebook_fills_one_display_and_empties_it(notebook):
    progress = Progress(notebook)

    on_a_worker(progress, lowered()[0])
    progress.take(fakes.progress())
    on_a_worker(progress, lowered()[1])
    progress.take(fakes.progress(elapsed_ns=2_000_000_000))
    progress.take(fakes.waited())
    progress.take(fakes.progress(phase="execute", nodes=0))
    progress.end_cell()

    assert published(notebook) == [
        (False, None),
        (True, "lowering 214 ops · 1.5 s · expected: unknown"),
        (True, "compiling 214 ops · 2.0 s · expected: unknown"),
        (True, None),
        (True, "running · 1.5 s · expected: unknown"),
        (True, None),
    ]
    ids = {o["transient"]["display_id"] for o in notebook.display_pub.outputs}
    assert len(ids) == 1


def test_the_next_cell_has_a_display_of_its_own(notebook):
    progress = Progress(notebook)
    for _ in range(2):
        progress.take(fakes.progress(purpose="peek"))
        progress.end_cell()

    ids = {o["transient"]["display_id"] for o in notebook.display_pub.outputs}
    assert len(ids) == 2
    assert published(notebook)[1] == (
        True,
        "looking for the executable of 214 ops to show a value · 1.5 s · expected: unknown",
    )


def test_other_threads_show_nothing(notebook):
    progress = Progress(notebook)
    thread = threading.Thread(target=progress.take, args=(fakes.progress(),))
    thread.start()
    thread.join()

    assert published(notebook) == []


def test_other_events_are_left_to_others(shell):
    assert not Progress(shell).take(fakes.compiled())


def test_a_graph_that_was_compiled_before_is_expected_to_take_as_long(shell):
    known = Expectations()

    known.add(fakes.compiled(duration_ns=12_000_000_000))
    known.add(fakes.compiled(duration_ns=30_000_000_000, purpose="tier up"))

    assert str(known.compile("aa")) == "about 12 s (as before)"
    assert str(known.compile("bb")) == "unknown"


@pytest.mark.parametrize(
    ("tier", "expected"), [("optimised", "3.0 s"), ("tiered", "1.0 s")]
)
def test_what_the_cache_on_disk_remembers_of_the_first_build_counts(
    shell, tier, expected
):
    entries = [
        SimpleNamespace(compile_ns=ns, tier=each, holds="step graph 0123abcd")
        for each, ns in (("fast", 1_000_000_000), ("optimised", 3_000_000_000))
    ]
    runtime: Any = SimpleNamespace(
        cached_executables=lambda limit: entries,
        config=SimpleNamespace(compile_tier=tier),
    )

    known = Expectations()

    assert str(known.compile("0123abcdff", runtime)) == f"about {expected} (as before)"
    assert str(known.compile("ee", runtime)) == "unknown"


def test_an_execution_is_expected_to_take_what_it_took(shell):
    known = Expectations()

    known.add(fakes.finished(duration_ns=2_000_000_000))

    assert str(known.run("aa")) == "about 2.0 s (as before)"
    assert str(known.run("bb")) == "unknown"


def test_the_line_of_the_barrier_is_named_and_a_line_stays(notebook):
    progress = Progress(notebook)
    site = SourceLocation("c", 4, "<module>", 2)
    progress.barrier(
        events.BarrierStarted(step=1, cause="optimizer.step()", site=site, time_ns=0)
    )

    progress.take(fakes.progress())
    progress.take(fakes.waited(duration_ns=2_500_000_000, interrupted=True))

    assert published(notebook)[1][1].endswith("unknown · cell 2 line 4")
    assert progress.waits == (
        (
            "waited 2.5 s for a compile of 214 ops: optimizer.step() at cell 2 line 4; "
            "interrupted, and it goes on in the background"
        ),
    )
    progress.begin_cell()
    assert not progress.waits


def test_a_wait_for_the_disk_cache_is_not_called_a_compile(notebook):
    progress = Progress(notebook)

    progress.take(fakes.progress())
    loaded_event = replace(fakes.compiled(), fingerprint="aa", source="disk")
    worker = threading.Thread(target=progress.take, args=(loaded_event,))
    worker.start()
    worker.join()
    progress.take(fakes.waited(duration_ns=2_500_000_000))
    progress.take(fakes.progress())
    progress.take(fakes.waited(duration_ns=1_500_000_000))

    loaded = "waited 2.5 s for an executable of 214 ops, loaded from the disk cache"
    assert progress.waits == (loaded, "waited 1.5 s for a compile of 214 ops")


def test_a_short_wait_leaves_no_line(notebook):
    progress = Progress(notebook)

    progress.take(fakes.waited(duration_ns=900_000_000))

    assert not progress.waits


def test_ops_that_run_one_by_one_say_how_many_have(notebook):
    """What single ops tell meanwhile takes nothing away; the value itself does."""
    progress = Progress(notebook)

    progress.take(fakes.progress("execute", 1428, purpose="peek", done=357))
    progress.take(fakes.waited())
    progress.take(
        fakes.progress("execute", 1428, 2_000_000_000, purpose="peek", done=1000)
    )
    progress.take(
        events.TensorMaterialised(
            node_id=1,
            strategy="op by op",
            nodes=1428,
            reused=0,
            duration_ns=1,
            site=None,
        )
    )

    running = "running 1,428 ops to show a value"
    assert published(notebook) == [
        (False, None),
        (True, f"{running} · 1.5 s of about 6.0 s (at its speed so far) · 357 done"),
        (True, f"{running} · 2.0 s of about 2.9 s (at its speed so far) · 1,000 done"),
        (True, None),
    ]
    assert not progress.waits


def test_a_print_whose_ops_run_one_by_one_shows_progress(notebook, monkeypatch):
    """A wait of more than a second, here of none, whatever each op of it takes."""
    notebook.run_line_magic("load_ext", "lazyviz")
    monkeypatch.setattr(op_by_op, "_PAUSE_NS", 0)
    x = torch.ones(3, device="lazyrt")
    for _ in range(20):
        x = torch.tanh(x) + 1

    notebook.run_cell("def show(x): print(x)", store_history=True)
    notebook.push({"x": x})
    with lazyrt.config.scoped(progress_after_s=0.0):
        notebook.run_cell("show(x)", store_history=True)

    texts = [text for _, text in published(notebook) if text]
    notebook.run_line_magic("unload_ext", "lazyviz")
    counted = [text for text in texts if "done" in text]
    assert len(counted) > 10
    assert counted[-1].startswith("running 41 ops to show a value")
    assert lazyrt.is_pending(x)


def test_a_long_copy_says_how_far_it_is(notebook):
    progress = Progress(notebook)
    event = events.TransferProgress(
        direction="to_device",
        nbytes=4 * 2**30,
        done=2**30,
        elapsed_ns=2_000_000_000,
        site=None,
    )

    assert progress.take(event)

    line = "copying 4.0 GiB to the device · 2.0 s of about 8.0 s (at its speed so far)"
    assert published(notebook)[-1] == (True, f"{line} · 1.0 GiB done")
    progress.take(fakes.waited())
    assert not progress.shown


INTERRUPTED = """
from unittest.mock import Mock
from lazyrt.execution import compiler
stop = Mock(side_effect=KeyboardInterrupt)
real, compiler.Future.result = compiler.Future.result, stop
try:
{lines}
finally:
    compiler.Future.result = real
"""


def interrupt(shell, *lines):
    """Run a cell whose compiles Ctrl-C interrupts."""
    indented = "\n".join(f"    {line}" for line in lines)
    shell.run_cell(INTERRUPTED.format(lines=indented), store_history=True)


def test_an_interrupt_shows_the_users_line_and_what_goes_on(lab, capsys):
    """Eleven frames of the runtime tell nobody anything and take long to draw."""
    interrupt(lab, "y = x.exp()", "y.sum().item()")

    shown = capsys.readouterr().out
    assert "y.sum().item()" in shown
    assert "runtime/lazyrt" not in shown
    assert "interrupted while compiling; that goes on in the background." in shown
    assert "2 ops of your program are still pending: lazyrt.mark_step()" in shown
    lab.run_cell("y.sum().item()", store_history=True)
    assert round(lab.user_ns["_"], 3) == 16.31


def test_a_cell_that_is_run_again_on_top_of_cancelled_work_says_so_first(lab):
    def messages():
        texts = [each["data"]["text/plain"] for each in lab.display_pub.outputs]
        lab.display_pub.outputs.clear()
        return [text for text in texts if "which was cancelled" in text]

    interrupt(lab, "y = x.exp()", "y.sum().item()")
    lab.run_cell("1 + 1", store_history=True)
    assert messages() == []

    interrupt(lab, "y = x.exp()", "y.sum().item()")

    (said,) = messages()
    assert said.startswith(
        "Still pending of cell 4, which was cancelled: 1 op. This cell"
    )
    assert said.endswith("%lazy drop takes it back, lazyrt.mark_step() runs it.")
    lab.run_cell("%lazy drop", store_history=True)
    interrupt(lab, "y = x.exp()", "y.sum().item()")
    assert messages() == []


TRAINED = """
import torch, lazyrt
def network(device):
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1).to(device)
    return model, {optimizer}
def train(model, optimizer, device):
    torch.manual_seed(2)
    for _ in range(2):
        x = torch.randn(4, 3).to(device)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
model, optimizer = network("lazyrt")
{before}
lazyrt.clear_caches()
"""
SGD = "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"
ADAM = "torch.optim.Adam(model.parameters(), lr=0.1)"


@pytest.mark.parametrize(
    ("advice", "optimizer", "trained_before"),  # each two values meet once
    [
        ("lazyrt.mark_step()", SGD, 0),
        ("lazyrt.mark_step()", ADAM, 1),
        ("%lazy drop", SGD, 1),
        ("%lazy drop", ADAM, 0),
    ],
)
def test_what_an_interrupt_advises_leaves_the_program_where_it_says(
    lab, capsys, optimizer, advice, trained_before
):
    again = "train(model, optimizer, 'lazyrt')"
    before = again if trained_before else ""
    lab.run_cell(TRAINED.format(optimizer=optimizer, before=before), store_history=True)

    interrupt(lab, again)
    shown = capsys.readouterr().out
    lab.run_cell(advice, store_history=True)
    if advice == "%lazy drop":
        lab.run_cell(again, store_history=True)

    assert "runs them, %lazy drop takes them back" in shown
    model, optimizer = lab.user_ns["network"]("cpu")
    for _ in range(trained_before):
        lab.user_ns["train"](model, optimizer, "cpu")
    if advice == "%lazy drop":
        lab.user_ns["train"](model, optimizer, "cpu")
    else:  # the step that was recorded, and no other
        lab.user_ns["range"] = lambda _: [0]
        lab.user_ns["train"](model, optimizer, "cpu")
    for ours, theirs in zip(
        lab.user_ns["model"].parameters(), model.parameters(), strict=True
    ):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=1e-6)
    counts = [
        [float(state["step"]) for state in each.state.values() if "step" in state]
        for each in (lab.user_ns["optimizer"], optimizer)
    ]
    assert counts[0] == counts[1]


def test_frames_of_a_users_function_under_the_runtime_stay():
    from lazyviz.shell.tracebacks import cut

    def closure():
        raise KeyboardInterrupt

    hook = lazyrt.on_barrier(lambda _: closure())
    torch.ones(2, device="lazyrt").add(1)
    with pytest.raises(KeyboardInterrupt) as caught:
        lazyrt.mark_step()
    hook.close()
    cut(caught.value.__traceback__)

    names = [entry.frame.raw.f_code.co_name for entry in caught.traceback]
    assert names[-1] == "closure"
