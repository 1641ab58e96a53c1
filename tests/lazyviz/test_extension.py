import base64
import io
import os
import re
import subprocess
import sys
from concurrent import futures
from functools import partial

import pytest
import torch
from IPython.core.completer import provisionalcompleter

import lazyrt
from lazyrt.config import config
from lazyrt.execution import compiler
from lazyrt.observe import events
from lazyviz import extension, session
from tests.conftest import displayed
from tests.harness import bytecodes_of, run_python


def run(shell, source, **options):
    return shell.run_cell(source, **{"store_history": True, **options})


def strips(shell):
    return [text for text in displayed(shell) if "live tensor" in text]


def in_new_process(code):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


def hooks(shell):
    """Return everything of the shell that an extension could leave a trace in."""
    formatters = shell.display_formatter.formatters
    return {
        "events": {name: list(f) for name, f in shell.events.callbacks.items()},
        "magics": {kind: dict(t) for kind, t in shell.magics_manager.magics.items()},
        "registry": dict(shell.magics_manager.registry),
        "configurables": list(map(id, shell.configurables)),
        "formatters": {
            kind: (dict(f.type_printers), dict(f.deferred_printers))
            for kind, f in [
                *formatters.items(),
                ("mimebundle", shell.display_formatter.mimebundle_formatter),
            ]
        },
        "matchers": list(shell.Completer.custom_matchers),
        "hooks": {k: list(map(str, vars(v))) for k, v in shell.strdispatchers.items()},
        "displayhook": dict(vars(shell.displayhook)),
        "attributes": set(vars(shell)),
        "meta_path": list(sys.meta_path),
        "namespace": set(shell.user_ns),
    }


def test_unload_leaves_the_shell_as_load_found_it(shell):
    """Callbacks, formatters, displayhook and magics are what they were."""
    shell.run_line_magic("unload_ext", "nothing")  # IPython loads this magic when used
    before = hooks(shell)

    shell.run_line_magic("load_ext", "lazyviz")
    assert hooks(shell) != before
    shell.run_line_magic("unload_ext", "lazyviz")

    assert hooks(shell) == before


def test_unload_after_use_leaves_no_hook(lab):
    run(lab, "x")
    run(lab, "y = x + 1")
    lab.run_line_magic("unload_ext", "lazyviz")
    lab.display_pub.outputs.clear()

    run(lab, "z = x + 2")

    assert displayed(lab) == []
    bundle = lab.display_formatter.mimebundle_formatter
    assert torch.Tensor not in bundle.type_printers
    assert ("torch", "Tensor") not in bundle.deferred_printers
    assert "update_user_ns" not in vars(lab.displayhook)


def test_unload_gives_back_the_formatter_of_somebody_else(shell):
    bundle = shell.display_formatter.mimebundle_formatter

    def mine(tensor):
        return {"text/plain": "mine"}

    bundle.for_type_by_name("torch", "Tensor", mine)
    shell.run_line_magic("load_ext", "lazyviz")
    assert shell.display_formatter.format(torch.ones(2))[0]["text/plain"] == "mine"
    shell.run_line_magic("unload_ext", "lazyviz")

    assert bundle.lookup_by_type("torch.Tensor") is mine


def test_unload_gives_back_a_magic_of_the_same_name(shell):
    def mine(line):
        return "mine"

    shell.register_magic_function(mine, magic_name="lazy")
    shell.run_line_magic("load_ext", "lazyviz")
    shell.run_line_magic("unload_ext", "lazyviz")

    assert shell.run_line_magic("lazy", "") == "mine"


def test_load_twice_and_reload_hook_once(lab):
    extension.load(lab)
    run(lab, "%reload_ext lazyviz")
    lab.display_pub.outputs.clear()

    run(lab, "y = x + 1")

    assert len(strips(lab)) == 1


def test_a_load_that_fails_leaves_no_hook(shell, monkeypatch):
    before = hooks(shell)
    monkeypatch.setattr("lazyviz.shell.magics.install", lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        extension.load(shell)

    assert hooks(shell) == before


def test_loading_imports_neither_torch_nor_jax():
    code = (
        "import sys\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_cell('%load_ext lazyviz')\n"
        "shell.run_cell('1 + 1', store_history=True)\n"
        "shell.run_cell('%lazy')\n"
        "print([n for n in ('torch', 'jax', 'ipywidgets', 'lazyrt') if n in sys.modules])"
    )

    assert in_new_process(code).splitlines()[-1] == "[]"


@pytest.mark.slow
def test_the_runtime_is_noticed_when_it_is_imported_later():
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.display_formatter.active_types = ['text/plain']\n"
        "def run(s): shell.run_cell(s, store_history=True)\n"
        "run('%load_ext lazyviz')\n"
        "run('import lazyrt, torch; x = torch.ones(2, device=\"lazyrt\")')\n"
    )

    assert run_python(code) == "1 pending op (+1 here) · 1 live tensor"


@pytest.mark.slow
def test_the_runtime_is_noticed_after_an_import_that_failed(tmp_path):
    (tmp_path / "lazyrt.py").write_text("raise ImportError('torch is missing')")
    code = (
        "import sys\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.display_formatter.active_types = ['text/plain']\n"
        "def run(s): return shell.run_cell(s, store_history=True)\n"
        "run('%load_ext lazyviz')\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "assert not run('import lazyrt; print(1)').success\n"
        "sys.path.pop(0)\n"
        "run('import lazyrt, torch; x = torch.ones(2, device=\"lazyrt\")')\n"
    )

    assert run_python(code).endswith("1 pending op (+1 here) · 1 live tensor")


def test_a_cell_that_records_ops_gets_one_strip(lab):
    run(lab, "y = x + 1\nz = y * 2")

    assert displayed(lab) == ["2 pending ops (+2 here) · 3 live tensors"]
    assert "<details" in displayed(lab, "text/html")[0]


def test_a_later_cell_tells_what_it_added(lab):
    run(lab, "y = x + 1")
    run(lab, "z = y * 2")

    assert strips(lab)[1] == "2 pending ops (+1 here) · 3 live tensors"


def test_after_a_barrier_every_pending_op_is_new(lab):
    run(lab, "y = x + 1")
    run(lab, "lazyrt.mark_step()\nz = x + 1")

    first, *notes = strips(lab)[1].splitlines()
    assert first.startswith("compiled 1 in ")
    assert first.endswith(" · 1 pending op (+1 here) · 3 live tensors")
    assert "executed 1 in" in first
    assert notes[0] == "  ran 1 op here: mark_step() at cell 5 line 1"


@pytest.mark.parametrize(
    "source", ["1 + 1", "", "   ", "import math", "del x", "%lazy off", "x.shape"]
)
def test_a_cell_that_did_nothing_on_the_device_gets_no_output(lab, source):
    run(lab, source)

    assert displayed(lab) == []


def test_a_cell_that_does_nothing_on_the_device_costs_little(lab):
    hooked = vars(lab)["_lazyviz_extension"]
    info = type("Info", (), {"store_history": True, "raw_cell": "1"})()
    result = type("Result", (), {})()
    result.info, result.error_before_exec, result.error_in_exec = info, None, None

    def cell():
        hooked._before_cell(info)
        hooked._after_cell(result)

    cell()

    # Most of it forgets the nodes of the cell before, op by op: 0.1 ms in all.
    assert 0 < bytecodes_of(cell) < 20_000


def test_a_read_names_its_cause_and_line(lab):
    run(lab, "y = (x * 2).sum()\n\nprint(y.item())")

    strip = strips(lab)[0]
    assert "compiled 1 in" in strip
    assert "executed 1 in" in strip
    assert "  ran 2 ops here: read by .item() at cell 4 line 3" in strip.splitlines()


def test_an_op_shows_the_line_of_its_own_cell(lab):
    run(lab, "y = x + 1")
    run(lab, "pass\ny = x + 1")

    nodes = lazyrt.pending_graph().nodes
    assert [str(n.provenance.site) for n in nodes] == ["cell 5 line 2"]


def test_equal_ops_of_two_cells_are_one_op_of_the_step_as_in_a_script(lab):
    run(lab, "y = x + 1")
    run(lab, "z = x + 1")

    nodes = lazyrt.pending_graph().nodes
    assert [str(n.provenance.site) for n in nodes] == ["cell 4 line 1"]


def test_equal_cells_are_told_apart(lab):
    run(lab, "(x * 2).sum().item()")
    run(lab, "(x * 2).sum().item()")

    sites = [strip.splitlines()[1].rsplit(" at ", 1)[1] for strip in strips(lab)]
    assert sites == ["cell 4 line 1", "cell 5 line 1"]


def test_the_strip_follows_the_traceback(lab, capsys):
    run(lab, "y = x + 1\nraise ValueError('bad')")

    assert "ValueError: bad" in capsys.readouterr().out
    assert strips(lab) == [
        "1 pending op (+1 here) · 2 live tensors · stopped by ValueError"
    ]


def test_the_strip_follows_an_interrupt(lab):
    run(lab, "y = x + 1\nraise KeyboardInterrupt")

    assert strips(lab) == ["1 pending op (+1 here) · 2 live tensors · interrupted"]


def test_a_syntax_error_gets_no_strip_and_the_next_cell_does(lab, capsys):
    run(lab, "y = = 1")
    run(lab, "y = x + 1")

    assert len(displayed(lab)) == 1
    assert "SyntaxError" in capsys.readouterr().out


def test_await_works(lab):
    run(lab, "import asyncio\nawait asyncio.sleep(0)\ny = x + 1")

    assert len(strips(lab)) == 1


def test_nested_cells_get_one_strip_at_the_end_of_the_outermost(lab):
    run(
        lab,
        "get_ipython().run_cell('y = x + 1', store_history=True)\n"
        "get_ipython().run_cell('   ')\n"
        "z = x * 2",
    )

    assert displayed(lab) == ["2 pending ops (+2 here) · 3 live tensors"]


def test_silent_cells_get_no_strip(lab):
    lab.run_cell("y = x + 1", silent=True)

    assert displayed(lab) == []


def test_cells_without_history_get_their_strip_as_nbval_runs_all_that_way(lab):
    lab.run_cell("y = x + 1")

    assert strips(lab) == ["1 pending op (+1 here) · 2 live tensors"]


def test_a_shell_without_html_gets_text_only(lab):
    lab.display_formatter.active_types = ["text/plain"]

    run(lab, "y = x + 1")

    assert [set(o["data"]) for o in lab.display_pub.outputs] == [{"text/plain"}]


def test_sessions_are_found(lab):
    found = session.current()

    assert found is session.current(lab)
    assert found is not None
    assert found.attached
    lab.run_line_magic("unload_ext", "lazyviz")
    assert session.current() is None


# What IPython keeps of a cell must not become a root of the next graph.


def test_out_holds_the_value_and_works_as_a_tensor(lab):
    run(lab, "y = x + 1")
    result = run(lab, "y")
    lab.display_pub.outputs.clear()

    for kept in (lab.user_ns["_"], lab.user_ns["_5"], lab.user_ns["Out"][5]):
        assert kept is result.result
        assert kept is not lab.user_ns["y"]
        assert not lazyrt.is_pending(kept)
    assert lazyrt.materialise(result.result + 1).tolist() == [[3.0] * 3] * 2


def test_displaying_does_not_change_the_pending_graph(lab):
    """A look leaves the hash as it is."""
    run(lab, "y = x + 1\nz = y * 2\ndel y")
    before = lazyrt.pending_graph()
    run(lab, "z")
    run(lab, "[z, (x, z)]")
    run(lab, "display({'a': z})")

    after = lazyrt.pending_graph()

    assert after.fingerprint == before.fingerprint


def test_a_displayed_tensor_that_is_deleted_is_no_root(lab):
    run(lab, "y = x + 1")
    run(lab, "y")
    run(lab, "del y")

    assert lazyrt.pending_graph().nodes == ()


def test_containers_keep_snapshots_only_when_something_is_pending(lab):
    ready = run(lab, "pair = [x, 5]\npair").result
    assert ready is lab.user_ns["pair"]

    run(lab, "y = x + 1\npair = {'y': y, 'n': (y, 5)}")
    kept = run(lab, "pair").result

    assert kept is not lab.user_ns["pair"]
    assert kept["y"] is kept["n"][0]
    assert not lazyrt.is_pending(kept["y"])
    assert kept["n"][1] == 5


def test_other_results_are_kept_themselves(lab):
    for source in ("[1, 2]", "torch.ones(2)", "object()", "'text'"):
        result = run(lab, f"thing = {source}\nthing").result
        assert result is lab.user_ns["thing"]


def test_a_failed_cells_locals_are_no_roots_and_can_be_looked_at(lab):
    run(lab, "def f(t):\n    hidden = t * 5\n    raise ValueError(hidden)\nf(x)")

    assert lazyrt.pending_graph().nodes == ()
    error = lab.last_execution_result.error_in_exec
    frame = error.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    hidden = frame.tb_frame.f_locals["hidden"]
    assert lazyrt.materialise(hidden).tolist() == [[5.0] * 3] * 2
    assert lazyrt.is_pending(error.args[0])
    assert lazyrt.pending_graph().nodes == ()


def test_the_users_own_variables_survive_an_error(lab):
    run(lab, "y = x + 1\npair = [y]\nraise ValueError")
    y = lab.user_ns["y"]

    assert lab.user_ns["pair"][0] is y
    assert len(lazyrt.pending_graph().nodes) == 1


def test_an_error_that_a_magic_shows_itself_is_let_go_too(lab):
    run(lab, "def f(t):\n    hidden = t * 5\n    raise ValueError\n")
    run(lab, "%time f(x)")

    assert lazyrt.pending_graph().nodes == ()


def test_an_error_in_a_nested_cell_is_let_go_at_the_end(lab):
    run(
        lab,
        "def f(t):\n    hidden = t * 5\n    raise ValueError\n"
        "get_ipython().run_cell('f(x)')\n",
    )

    assert lazyrt.pending_graph().nodes == ()


def test_debug_after_an_error_prints_values(lab, capsys, monkeypatch):
    run(lab, "def f(t):\n    hidden = t * 5\n    raise ValueError('bad')\nf(x)")
    commands = io.StringIO("p hidden\nq\n")
    monkeypatch.setattr(sys, "stdin", commands)
    lazyrt.reset_counters()

    run(lab, "%debug")

    assert "[5., 5., 5.]" in capsys.readouterr().out
    assert lazyrt.counters()["executions"] == 0


def test_a_strip_that_fails_costs_only_the_strip(lab, monkeypatch, caplog, capsys):
    def fail(_self, _error):
        raise AttributeError("no such part")

    with monkeypatch.context() as broken:
        broken.setattr(session.Session, "finish_cell", fail)
        assert run(lab, "y = torch.ones(2, device='lazyrt') + 1").success
    assert "Error in callback" not in capsys.readouterr().out
    (record,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert (
        "the strip of a cell failed with AttributeError: no such part" in record.message
    )
    assert strips(lab) == []

    run(lab, "z = y * 3")
    assert len(strips(lab)) == 1


def test_a_drawing_that_fails_costs_only_the_drawing(lab, monkeypatch, caplog):
    monkeypatch.setattr("lazyviz.render.strip.timing_html", lambda _: 1 / 0)

    run(lab, "y = x + 1")

    assert displayed(lab) == ["1 pending op (+1 here) · 2 live tensors"]
    assert displayed(lab, "text/html") == []
    assert "the drawing of a strip failed" in caplog.text


# Looking around computes nothing.


def test_looking_around_computes_nothing(lab):
    """Whoever looks behind the user gets the plan."""
    for source in [
        "%whos",
        "%who_ls",
        "y?",
        "y??",
        "%pinfo y",
        "dir(y)",
        "f'{y.shape}'",
    ]:
        run(lab, "y = x + 1")
        lazyrt.reset_counters()

        run(lab, source)

        assert dict(lazyrt.counters()) == dict.fromkeys(lazyrt.counters(), 0)
        assert lazyrt.is_pending(lab.user_ns["y"])


def test_completion_computes_nothing(lab):
    run(lab, "y = x + 1")
    lazyrt.reset_counters()

    with provisionalcompleter():
        for line in ("y.su", "y[0].", "%lazy graph ", "print(y"):
            list(lab.Completer.completions(line, len(line)))

    assert dict(lazyrt.counters()) == dict.fromkeys(lazyrt.counters(), 0)


def test_a_program_runs_the_same_graphs_with_and_without_strips(lab):
    source = (
        "w = torch.ones(3, 2, device='lazyrt', requires_grad=True)\n"
        "for i in range(3):\n"
        "    with lazyrt.step():\n"
        "        loss = (x @ w).square().mean()\n"
        "        loss.backward()\n"
        "        with torch.no_grad():\n"
        "            w -= 0.1 * w.grad\n"
        "            w.grad = None\n"
    )
    seen: list[events.Event] = []
    with lazyrt.subscribe(seen.append):
        run(lab, source)
        run(lab, "loss")
        run(lab, "%lazy graph")
        run(lab, source)
        observed = fingerprints(seen)
        seen.clear()
        lab.run_line_magic("unload_ext", "lazyviz")
        run(lab, source)
        run(lab, source)
        alone = fingerprints(seen)

    assert observed == alone


def fingerprints(seen):
    return [
        event.fingerprint
        for event in seen
        if isinstance(event, events.ExecuteStarted) and event.purpose == "step"
    ]


def test_the_graph_of_a_strip_names_inputs_and_outputs_as_the_user_does(lab):
    lab.run_cell(
        "from torch import nn\nnet = nn.Linear(3, 2).to('lazyrt')\n"
        "data = torch.ones(4, 3).to('lazyrt')\nlazyrt.mark_step()"
    )
    lab.display_pub.outputs.clear()

    lab.run_cell("scores = net(data)")

    (page,) = displayed(lab, "text/html")
    (picture,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)[-1:]
    drawn = base64.b64decode(picture).decode()
    for name in (">data<", ">net.weight<", ">net.bias<", ">scores = addmm<"):
        assert name in drawn


@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_sd03_a_print_shows_values_and_the_strip_their_statistics(lab, capsys, mode):
    """Statistics come from the copy that was printed; nothing runs for them."""
    lab.run_cell(f"%lazy eager {'on' if mode == 'eager' else 'off'}")
    lab.run_cell("y = (x - 2).log() if 0 else (x * 2 - 5).log()\nz = x.cumsum(1) * 2")
    before = lazyrt.pending_graph().fingerprint if mode == "lazy" else None
    lab.display_pub.outputs.clear()
    lazyrt.reset_counters()

    lab.run_cell("print(z)\nprint(y)\nprint(z.sum())", store_history=True)

    assert "tensor([[2., 4., 6.]," in capsys.readouterr().out
    text, page = displayed(lab)[0], displayed(lab, "text/html")[0]
    number = lab.execution_count - 1
    for shown in (text, re.sub("<[^>]+>", "", page)):
        assert f"printed at cell {number} line 1: float32[2, 3] · 2 to 6 · mean 4 · std 1.789; " in shown  # fmt: skip
        assert f"printed at cell {number} line 2: float32[2, 3] · 6 NaN; " in shown
        assert "line 3: float32" not in shown  # a single number is its own statistics
    if mode == "lazy":
        assert "; pending: aten.mul.Tensor, cell" in text
        assert lazyrt.pending_graph().fingerprint == before
        assert lazyrt.counters()["peek_executions"] == 3
    assert lazyrt.counters()["executions"] == 0
    lab.run_cell("%lazy eager off")


def test_sd03_a_display_tells_its_statistics_once_and_many_prints_a_few(lab, capsys):
    run_many = "for k in range(9):\n    print(x + k)"
    lab.display_pub.outputs.clear()
    lab.run_cell("display(x + 1)", store_history=True)
    shown = displayed(lab)
    lab.display_pub.outputs.clear()
    lab.run_cell(run_many, store_history=True)

    assert "printed" not in shown[-1]
    assert displayed(lab)[0].count("printed at") == 4
    assert "... and 5 more printed" in displayed(lab)[0]


def test_sd03_tensors_of_every_kind_are_printed_with_their_range(lab, capsys):
    for dtype in ["bfloat16", "complex64", "bool", "int8", "float8_e4m3fn"]:
        lab.display_pub.outputs.clear()

        lab.run_cell(f"print(torch.ones(3, 2).to(torch.{dtype}).to('lazyrt'))", store_history=True)  # fmt: skip

        assert f": {dtype}[3, 2] · " in displayed(lab)[0]


def test_the_plan_line_costs_the_same_whatever_is_pending(lab):
    """What a debugger or a list of variables shows is O(1) and changes nothing."""
    from lazyrt.frontend import reads

    lab.run_cell("short = x + 1\nlong = x\nfor _ in range(2_000): long = long + 1")
    tensors = [lab.user_ns[name] for name in ("short", "long")]
    before = lazyrt.pending_graph().fingerprint
    lazyrt.reset_counters()
    reads.describe(tensors[0])

    costs = [bytecodes_of(partial(reads.describe, each)) for each in tensors]

    assert costs[1] <= costs[0] * 1.5
    assert "pending: aten.add.Tensor" in reads.describe(tensors[1])
    assert dict(lazyrt.counters()) == dict.fromkeys(lazyrt.counters(), 0)
    assert lazyrt.pending_graph().fingerprint == before


def test_sd02_a_strip_draws_what_its_cell_added_and_folds_what_was_there(lab):
    """Five ops are five boxes; the next cell shows its two, and one for the five."""

    def boxes(source):
        lab.display_pub.outputs.clear()
        lab.run_cell(source, store_history=True)
        pictures = re.findall(
            r"svg\+xml;base64,([^\"]+)", displayed(lab, "text/html")[0]
        )
        drawn = base64.b64decode(pictures[-1]).decode()
        return re.findall(r'role="button" aria-label="([^"]*)"', drawn)

    first = boxes("a = x + 1\nb = a * 2\nc = b.relu()\nd = c.exp()\ne = d.sum()")
    second = boxes("f = e - 1\ng = f.abs()")

    assert sum(", node %" in label for label in first) == 5
    assert len(first) == 6  # and the input
    assert [label.split(",")[0] for label in second if ", node %" in label] == ["f", "g"]  # fmt: skip
    (earlier,) = (label for label in second if ", node %" not in label)
    assert "5 ops, 1 input" in earlier
    assert displayed(lab)[0].startswith("7 pending ops (+2 here)")


@pytest.mark.lazy_only("is about executables of steps")
def test_a_strip_says_which_build_a_graph_runs_by(lab):
    source = "y = x\nfor _ in range(20):\n    y = (y * 1.5).sin()\nlazyrt.mark_step()"
    with config.scoped(compile_tier="tiered", cache_dir=None):
        run(lab, source)
        futures.wait(list(compiler._under_way.values()))
        run(lab, source)
    first, second = (text.splitlines() for text in strips(lab))
    assert "  the graph of 40 ops runs by its fast build" in first
    assert not [line for line in first if "optimised build" in line]
    (swapped,) = [line for line in second if "optimised build" in line]
    assert re.fullmatch(
        r"  from step \d+ on the graph of 40 ops runs by its optimised build", swapped
    )
