import base64
import html
import re

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError

import lazyrt
import lazyviz
from lazyrt.execution.graph_registry import graph_registry
from lazyrt.lowering.partitioning import Collective
from lazyrt.observe import events
from lazyviz.inspection import tables
from lazyviz.shell import commands, magics
from lazyviz.timing.history import StepRow
from lazyviz.views import VIEWS
from tests.conftest import displayed
from tests.lazyviz.fakes import fake_tensor


def run(shell, source):
    return shell.run_cell(source, store_history=True)


def printed(shell, source):
    """Return what a magic displays, without the strip."""
    shell.display_pub.outputs.clear()
    run(shell, source)
    return next(text for text in displayed(shell) if "live tensor\n" not in text)


def usage_error(shell, capsys, source):
    capsys.readouterr()
    run(shell, source)
    return capsys.readouterr().err.strip()


def test_status_tells_what_is_pending_and_what_ran(lab):
    run(lab, "y = x + 1\nlazyrt.mark_step()\nz = y * 2")

    lines = printed(lab, "%lazy").splitlines()

    assert lines[1:] == [
        (
            "now: lazy mode · not in a step · 1 pending op, 24 bytes, from cell 4 line 3 on · "
            "3 live tensors"
        ),
        "so far: 2 compiles · 2 executions",
        "last barrier: 1 op, mark_step() at cell 4 line 2",
        (
            "settings: read_policy=barrier, barrier_after_optimizer=True, "
            "max_pending_nodes=200000"
        ),
    ]
    assert printed(lab, "%lazy status") == "\n".join(lines)


def test_status_before_the_runtime_is_imported(shell, monkeypatch):
    monkeypatch.setattr("lazyviz.session.runtime", lambda: None)
    shell.run_line_magic("load_ext", "lazyviz")

    assert printed(shell, "%lazy").splitlines()[1] == (
        "lazyrt is not imported: there is no lazy device yet"
    )
    shell.run_line_magic("unload_ext", "lazyviz")


def test_ir_says_which_numbers_are_constants_and_which_inputs(lab):
    run(lab, "y = x * 1.0")
    run(lab, "w = [x.clone() for _ in range(2)]\n_ = [t.mul_(0.5) for t in w]")
    run(lab, "v = y * w[0]")

    *_, embedded, inputs = printed(lab, "%lazy ir v").splitlines()

    assert embedded == (
        "# embedded as constants: 1.0 (cell 4 line 1); one that varies becomes an input with "
        "its second value"
    )
    assert inputs.startswith(
        "# numbers that are inputs: %f0 (cell 5 line 2); other values"
    )


def test_ir_lists_the_ops_of_one_tensor(lab):
    run(lab, "y = x + 1\nz = y * 2\nother = x - 1")

    lines = printed(lab, "%lazy ir z").splitlines()

    assert len(lines) == 4
    assert lines[0] == "%p0 : f32[2,3]  # x"
    assert "aten.add.Tensor(%p0, 1" in lines[1]
    assert lines[1].endswith(": f32[2,3]  # cell 4 line 1")
    assert lines[2].endswith(": f32[2,3]  # cell 4 line 2")
    assert len(printed(lab, "%lazy ir").splitlines()) == 5


def test_graph_shows_text_and_a_drawing_with_variable_names(lab):
    run(lab, "y = x + 1\nz = y * 2")
    lab.display_pub.outputs.clear()

    run(lab, "%lazy graph z")

    (output,) = lab.display_pub.outputs
    assert "aten.mul.Tensor" in output["data"]["text/plain"]
    assert "<img" in output["data"]["text/html"]


def test_expressions_and_containers_are_taken(lab):
    for expression in ["[x + 1]", "{'a': (x + 1, 5)}", "x + 1"]:
        assert "aten.add.Tensor" in printed(lab, f"%lazy ir {expression}")


def test_a_module_stands_for_its_parameters(lab):
    run(lab, "m = torch.nn.Linear(3, 2).to('lazyrt')\nlazyrt.mark_step()")
    run(lab, "with torch.no_grad(): m.weight.add_(1)")

    assert "aten.add" in printed(lab, "%lazy ir m")


def test_with_nothing_pending_the_last_step_is_shown_however_it_is_named(lab):
    run(lab, "y = x + 1\nz = y * 2\nlazyrt.mark_step()")
    record = lazyrt.compiled_graphs()[-1]
    before = lazyrt.counters()["compiles"], lazyrt.counters()["executions"]

    for command in [
        "explore",
        "graph",
        "ir",
        "hlo",
        "nan",
        "compile",
        "why",
        "collectives",
    ]:
        shown = printed(lab, f"%lazy {command}")

        assert f"step {record.last_step}" in shown
        for name in ("last", record.last_step, record.name, "z"):
            assert f"step {record.last_step}" in printed(lab, f"%lazy {command} {name}")
        after = lazyrt.counters()["compiles"], lazyrt.counters()["executions"]
        assert after == before


def test_collectives_are_listed_with_the_largest_first():
    found = [
        Collective(kind="all-reduce", type="f32[2]", nbytes=8, devices=4, line="a.py:1", scope="m"),
        Collective(kind="all-gather", type="f32[8]", nbytes=32, devices=2, line="a.py:2", scope=""),
    ]  # fmt: skip

    lines = tables.collectives(found, "step 3").to_text().splitlines()

    assert lines[0] == "step 3: 2 collectives, 40 bytes on each device"
    assert lines[-2].split()[:2] == ["all-gather", "f32[8]"]
    assert "a.py:1" in lines[-1]


def test_collectives_of_one_reason_are_explained_together():
    why, fix = (
        "`w` is split ('data', None), and what reads it needs it whole",
        "leave it",
    )
    found = [
        Collective(kind=kind, type="f32[8]", nbytes=32, devices=2, line="/home/me/a.py:2", scope="",
                   tensor="w", why=why, fix=fix)
        for kind in ("all-gather", "all-to-all")
    ]  # fmt: skip

    lines = tables.collectives(found, "step 3").to_text().splitlines()

    assert lines[-2] == f"all-gather and all-to-all of 64 bytes at a.py:2: {why}"
    assert lines[-1].split() == ["mend:", "leave", "it"]


def test_a_tensor_shows_what_its_step_ran_for_it(lab):
    run(lab, "y = x + 1\nz = y * 2\nother = x - 1\nlazyrt.mark_step()")

    shown = printed(lab, "%lazy ir z")

    assert "aten.mul.Tensor" in shown
    assert "aten.sub" not in shown
    assert "# x" in shown


def test_what_no_step_computed_leads_to_what_there_is(lab):
    run(lab, "w = torch.ones(3).to('lazyrt')\ny = x + 1")

    said = printed(lab, "%lazy ir w")

    assert "`w` f32[3]: copied from the host" in said
    assert "%lazy explore last" in said
    assert "y is pending" in printed(lab, "%lazy why y")


def test_before_any_step_each_look_says_what_to_record(lab):
    for command in ["explore", "graph", "ir", "hlo", "nan", "compile", "collectives"]:
        graph_registry.clear()

        assert "Record an op first, such as `x = " in printed(lab, f"%lazy {command}")


def test_diff_takes_the_last_step_and_a_tensor_of_a_finished_one(lab):
    run(lab, "y = (x + 1).exp()\nlazyrt.mark_step()")
    first = lazyrt.compiled_graphs()[-1]
    run(lab, "y = (x + 1).sin()\nlazyrt.mark_step()")

    shown = printed(lab, f"%lazy diff {first.name} last")

    assert "aten.sin.default" in shown
    assert "aten.sin.default" in printed(lab, f"%lazy diff {first.first_step} y")


def test_the_strip_of_a_cell_that_trained_draws_its_largest_step(lab):
    run(lab, "for _ in range(2):\n    y = (x + 1).exp()\n    lazyrt.mark_step()")
    last = max(record.last_step for record in lazyrt.compiled_graphs())
    run(lab, "z = y + x.sin() * 2\nlazyrt.mark_step()\nfloat(z.sum())")

    first, second = (each["data"] for each in lab.display_pub.outputs[-2:])

    assert first["text/plain"].startswith("compiled 1 in ")
    assert "pending" not in first["text/plain"].splitlines()[0]
    assert 'alt="IR graph, 2 ops"' in first["text/html"]
    assert f"step {last}; %lazy explore {last} walks through it" in svgs(first)
    assert 'alt="IR graph, 3 ops"' in second["text/html"]


def svgs(data):
    found = re.findall(r"base64,([\w+/=]+)", data["text/html"])
    return "".join(base64.b64decode(each).decode() for each in found)


def test_what_a_cell_leaves_pending_is_said_there_and_explains_the_step_that_takes_it(
    lab,
):
    run(
        lab,
        "def step():\n    x.add_(1).tanh_().exp_()\n    lazyrt.mark_step()\nstep()\nstep()",
    )
    run(lab, "p = x * 1\nfor k in range(9): p = (p + k).sin()")
    left = displayed(lab)[-1]
    run(lab, "step()")

    explained = lazyrt.explain()
    assert explained is not None
    cause = explained.causes[0]

    assert "19 ops are pending and will run with the next step. lazyrt.mark" in left
    assert cause.kind == "missing_boundary"
    assert "that cell 5 left pending joined this step's graph" in cause.text


def test_step_last_is_the_last_step_in_words(lab):
    run(lab, "a = x.sin()\nlazyrt.mark_step()")

    assert printed(lab, "%lazy step last") == printed(lab, "%lazy step 1")


def test_diff_last_and_an_explanation_have_one_neighbour(lab):
    graph_registry.clear()
    run(lab, "a = x.sin().cos()\nlazyrt.mark_step()")
    run(lab, "b = torch.linalg.inv(torch.eye(3, device='lazyrt'))\nlazyrt.mark_step()")
    run(lab, "c = x.sin().cos().tan()\nlazyrt.mark_step()")
    first, _, third = lazyrt.compiled_graphs()

    shown = printed(lab, "%lazy diff last")

    assert third.explanation is not None
    assert third.explanation.against == first.name
    assert f"({first.name}) → step {third.first_step}" in shown


def test_the_status_names_the_setting_that_keeps_inputs(lab):
    loop = "for _ in range(2):\n    y = x + 1\n    lazyrt.mark_step()"
    run(lab, f"%lazy nan on\n{loop}")
    watched = printed(lab, "%lazy status")
    run(lab, "%lazy nan off")
    after = printed(lab, "%lazy status")
    with lazyrt.config.scoped(keep_values="last"):
        run(lab, loop)
        kept = printed(lab, "%lazy status")

    assert "(stop_at_nan, at most" in watched
    assert "kept:" not in after
    assert "(keep_values='last', at most" in kept


def test_nan_on_ends_a_loop_and_shows_where_it_began(lab, capsys):
    assert "first step whose loss" in printed(lab, "%lazy nan on")
    run(lab, "w = torch.ones(1, device='lazyrt', requires_grad=True)")
    try:
        run(
            lab, "loss = (w * (x - 2).log()).sum()\nloss.backward()\nlazyrt.mark_step()"
        )
        raised = capsys.readouterr().out
        shown = printed(lab, "%lazy nan loss")
    finally:
        run(lab, "%lazy nan off\n%lazy drop")

    assert "NotFiniteError" in raised
    assert "It begins with 6 NaN in aten.log.default at cell 6 line 1" in raised
    assert "aten.log.default" in shown
    assert lazyrt.config.stop_at_nan is False


def test_nan_without_a_name_is_that_of_the_step_that_ended_the_loop(lab):
    run(lab, "%lazy nan on")
    try:
        run(lab, "w = torch.ones(1, device='lazyrt', requires_grad=True)")
        run(
            lab, "loss = (w * (x - 2).log()).sum()\nloss.backward()\nlazyrt.mark_step()"
        )
        run(lab, "lazyrt.wait()")
        shown = printed(lab, "%lazy nan")
        last = printed(lab, "%lazy nan last")
    finally:
        run(lab, "%lazy nan off")

    assert "aten.log.default" in shown
    assert last == shown


def test_looking_is_no_read_that_is_too_frequent(lab):
    run(lab, "y = x + 1\nlazyrt.mark_step()")
    for _ in range(5):
        printed(lab, "y")

    assert "too frequent" not in printed(lab, "%lazy metrics")


def test_nan_is_found_in_a_finished_step_whose_inputs_are_kept(lab):
    with lazyrt.config.scoped(keep_values="last"):
        run(lab, "y = (x - 1).log()\nz = y - y\nlazyrt.mark_step()")

        shown = printed(lab, "%lazy nan")

    assert "aten.sub.Tensor" in shown
    assert "6 NaN" in shown
    assert "aten.log.default" in shown


def test_hlo_and_stablehlo_leave_the_graph_alone(lab):
    run(lab, "y = x + 1")
    fingerprint = lazyrt.pending_graph().fingerprint
    lazyrt.reset_counters()

    optimised = printed(lab, "%lazy hlo y")
    lowered = printed(lab, "%lazy hlo --stablehlo y")

    assert optimised.startswith("HloModule")
    assert "FileNames" not in optimised
    assert "stablehlo.add" in lowered
    assert lazyrt.counters()["compiles"] == 0
    assert lazyrt.pending_graph().fingerprint == fingerprint


def test_hlo_names_the_users_lines_and_never_those_of_its_own_text(lab):
    """Which Python line made this instruction."""
    run(lab, "z = x * 2\n\ny = torch.tanh(z).sum()")
    number = lab.execution_count - 1

    optimised = printed(lab, "%lazy hlo y")
    lowered = printed(lab, "%lazy hlo --stablehlo y")

    (tanh,) = [line for line in optimised.splitlines() if " tanh(" in line]
    assert f'source_file="cell {number}" source_line=3' in tanh
    assert 'source_file="-"' not in optimised
    assert "stack_frame_id" not in optimised
    assert "metadata={}" not in optimised
    assert f'loc("aten.tanh.default"("cell {number}":3:0))' in lowered


def test_step_shows_the_last_steps(lab):
    assert printed(lab, "%lazy step").lstrip().startswith("step  cell  ended by")
    run(lab, "y = x + 1\ny.sum().item()")

    words, table = printed(lab, "%lazy step 1").split("step  cell  ended by")

    row = table.splitlines()[2]
    assert "read by .item()" in row
    assert "cell 5 line 2" in row
    assert "mark_step()" not in row
    told = " ".join(words.split())
    assert re.match(
        r"Step \d+ ran 2 ops\. Its barrier: read by \.item\(\) of y\.sum\(\) at cell 5 line 2\. ",
        told,
    )
    assert "The host took" in told
    assert "What would help most: " in told


@pytest.mark.lazy_only("it is about steps of one execution")
def test_a_step_that_sleeps_is_not_told_to_record_faster(lab):
    loop = (
        "for _ in range(8): y = x + 1; time.sleep(0.01); y = y * 2; lazyrt.mark_step()"
    )
    run(lab, f"import time, lazyrt\n{loop}")
    run(lab, loop)

    told = " ".join(printed(lab, "%lazy step 8").split())

    assert "to move " in told
    assert "of the program's own time to another thread" in told


def test_a_paragraph_names_the_kind_of_cause_that_came_most_often_and_no_first_graph():
    reasons = ["another optimizer", *(f"rows are {k}, were {k + 1}" for k in (7, 6, 5))]
    first, *again = (
        StepRow(k, 1, cause="mark_step()", nodes=1, compile_ns=10**9, reason=reason)
        for k, reason in enumerate(["the first graph of this process", *reasons])
    )

    assert "compiling" not in tables.step_paragraph([first], [])
    assert tables.step_paragraph([first, *again], []).endswith(
        "What would help most: the same graph in each step, which saves 4.0 s of compiling. rows are "
        "7, were 8 (3 times)"
    )


@pytest.mark.parametrize(
    "line", ["%lazy compile", "%lazy compile {step}", "%lazy cache --sort compile"]
)
def test_a_page_shows_what_compiling_took_as_tables(lab, line):
    """The same facts as in the text, numbers and their headings to the right."""
    run(lab, "x.sum().item()\ny = x * 2" if line == "%lazy compile" else "x.sum().item()")  # fmt: skip
    step = lazyrt.compiled_graphs()[-1].last_step
    lab.display_pub.outputs.clear()

    run(lab, line.format(step=step))

    data = lab.display_pub.outputs[0]["data"]
    words, page = data["text/plain"].splitlines(), data["text/html"]
    titles = [part for part in re.split(" {2,}", next(w for w in words if "ops  " in w)) if part]  # fmt: skip
    heads = re.findall(r'<th scope="col" style="text-align:(\w+)">([^<]*)</th>', page)
    assert [title for _, title in heads] == titles
    assert {side for side, title in heads if title in {"ops", "share", "compile", "hits"}} == {"right"}  # fmt: skip
    assert {side for side, title in heads if title in {"block", "at", "holds"}} == {"left"}  # fmt: skip
    assert "text-align:right;font-variant-numeric:tabular-nums" in page


def test_the_status_is_a_table_in_a_page_with_the_same_facts(lab):
    run(lab, "y = x * 2")
    lab.display_pub.outputs.clear()

    run(lab, "%lazy")

    data = lab.display_pub.outputs[0]["data"]
    whole = html.unescape(data["text/html"]).replace("<wbr/>", "")
    page = re.sub(r"<[^>]+>", "\n", whole)
    shown = [line for line in page.splitlines() if line]
    said = data["text/plain"].splitlines()
    assert shown[0] == said[0]
    assert shown[1:3] == ["what", "state"]
    assert shown[3::2] == [line.partition(": ")[0] for line in said[1:]]
    assert shown[4::2] == [line.partition(": ")[2] for line in said[1:]]


@pytest.mark.parametrize("body", ["return no_such_name", "exec('x +')"])
def test_an_error_in_a_function_of_the_users_keeps_its_lines(lab, capsys, body):
    run(lab, f"def broken():\n    {body}")

    lab.run_cell("%lazy graph broken()", store_history=True)

    shown = capsys.readouterr()
    assert "UsageError" not in shown.err
    assert body in shown.out


@pytest.mark.parametrize("line", ["%lazy step", "%lazy graphs"])
def test_a_page_shows_tables_as_tables_and_breaks_sentences_between_words(lab, line):
    run(lab, "x.sum().item()\n(x * 2).item if 0 else (x * 2).sum().item()")
    lab.display_pub.outputs.clear()

    run(lab, line)

    data = lab.display_pub.outputs[0]["data"]
    page = data["text/html"]
    assert "<table" in page
    assert "<li><b>" in page
    words = data["text/plain"].splitlines()[-1].split()
    assert html.escape(" ".join(words[-5:])) in page


def test_why_is_a_card_in_a_page_with_the_same_words(lab):
    """Each cause is an item of a list, its fix stands below it; code looks like code."""
    run(lab, "x.sum().item()")
    run(lab, "(x[:, 1:] * 2).sum().item()")
    lab.display_pub.outputs.clear()

    run(lab, "%lazy why")

    data = lab.display_pub.outputs[0]["data"]
    page, said = data["text/html"], data["text/plain"]
    bare = html.unescape(re.sub(r"<details.*", "", page, flags=re.DOTALL))
    shown = re.sub(r"\W+", "", re.sub(r"<[^>]+>", "", bare))
    words = re.sub(r"^ +\d+\. ", "", said, flags=re.MULTILINE)
    assert shown
    assert re.sub(r"\W+", "", words.replace("`", "")).startswith(shown)
    assert page.count("<li") == len(re.findall(r"^  \d+\. ", said, re.MULTILINE)) > 0
    assert page.count("<b>fix:</b>") == said.count("     fix: ") > 0
    assert page.count("<code>") == said.count("`") // 2
    assert "`" not in page


def test_durations_of_metrics_are_those_of_every_other_view(lab):
    """Two digits and a unit; `--raw` has all that was measured."""
    lab.run_cell("(x + 1).sum().item()", store_history=True)

    shown = printed(lab, "%lazy metrics")

    row = next(line for line in shown.splitlines() if line.startswith("CompileTime"))
    assert re.search(r" (\d\.\d|\d{2,3}) (ns|µs|ms|s) ", row)
    assert not re.search(r"\d(us|ms|s)\b", shown)
    assert re.search(
        r"Accumulator: \S*\d+\.\d{3}us", printed(lab, "%lazy metrics --raw")
    )


def test_metrics_is_the_runtimes_report(lab, capsys):
    run(lab, "x.sum().item()")

    shown = printed(lab, "%lazy metrics")
    assert shown.startswith("metric ")
    assert "CompileTime" in shown
    assert printed(lab, "%lazy metrics --raw").startswith("Metric: CompileTime\n")
    assert "exact_durations" not in printed(lab, "%lazy metrics --legacy")
    assert "takes only --legacy, --raw after it" in usage_error(
        lab, capsys, "%lazy metrics now"
    )


def test_off_silences_strips_and_still_records(lab):
    run(lab, "%lazy off")
    run(lab, "y = x + 1")
    session = vars(lab)["_lazyviz_session"]

    assert displayed(lab) == []
    assert session.cells[-1].number == 5

    run(lab, "%lazy on")
    run(lab, "z = x + 2")
    assert displayed(lab) == ["2 pending ops (+1 here) · 3 live tensors"]


def test_a_cell_runs_as_one_step(lab):
    run(lab, "%%lazy step train\ny = x + 1\n\ny.shape")

    lines = displayed(lab)[0].splitlines()
    assert lines[0].startswith("compiled 1 in")
    assert lines[0].endswith(" · 1 step · 2 live tensors")
    assert lines[1].startswith("  ran 1 op here: end of step train")
    assert lab.user_ns["_"] == lab.user_ns["y"].shape


def test_a_semicolon_keeps_a_steps_result_quiet(lab, capsys):
    run(lab, "%%lazy step\ny = x + 1\n5;")

    assert "Out[" not in capsys.readouterr().out


def test_an_error_in_a_step_cell_rises_with_its_line(lab, capsys):
    run(lab, "%%lazy step\ny = x + 1\nraise ValueError('bad')")

    out = capsys.readouterr().out
    assert "----> 3 raise ValueError('bad')" in out
    assert "magics.py" not in out
    assert "stopped by ValueError" in displayed(lab)[0]


def test_ops_of_a_step_cell_have_the_cells_lines(lab):
    run(lab, "%lazy off")
    seen: list[events.Event] = []
    with lazyrt.subscribe(seen.append):
        run(lab, "%%lazy step\n\ny = x + 1\nprint(y)")

    sites = [str(e.site) for e in seen if isinstance(e, events.TensorMaterialised)]
    assert sites == ["cell 5 line 4"]


def test_mistakes_are_explained(lab, capsys):
    for source, message in [
        (
            "%lazy grph",
            (
                "UsageError: %lazy has no subcommand 'grph'. Did you mean %lazy graph or "
                f"%lazy graphs? It has {', '.join(VIEWS)}."
            ),
        ),
        (
            "%lazy graph torch.ones(2)",
            (
                "UsageError: %lazy graph shows lazy tensors, and torch.ones(2) is on the "
                "device cpu. Give a tensor on the device lazyrt, or leave the expression "
                "out to see all that is pending. Lazy tensors here: x."
            ),
        ),
        (
            "%lazy ir [1, 2]",
            (
                "UsageError: %lazy ir shows lazy tensors, and [1, 2] is of type list. Give "
                "a tensor on the device lazyrt, or leave the expression out to see all that "
                "is pending. Lazy tensors here: x."
            ),
        ),
        (
            "%lazy ir xx",
            "UsageError: %lazy ir xx: name 'xx' is not defined. Did you mean x?",
        ),
        (
            "%lazy ir x +",
            "UsageError: %lazy ir takes one expression; 'x +' is none: invalid syntax.",
        ),
        (
            "%lazy hlo --stable x",
            ("UsageError: %lazy hlo has no option --stable. It has --stablehlo."),
        ),
        (
            "%lazy step mine",
            (
                "UsageError: %lazy step mine: 'mine' is not a number of steps. To run a "
                "cell as a step, start it with %%lazy step mine."
            ),
        ),
        (
            "%lazy step 0",
            (
                "UsageError: %lazy step 0: '0' is not a number of steps. To run a cell as a "
                "step, start it with %%lazy step."
            ),
        ),
        (
            "%lazy ir torch.nn.Linear(2, 2)",
            (
                "UsageError: %lazy ir shows lazy tensors, and torch.nn.Linear(2, 2) is a "
                "Linear, whose parameters are on the device cpu. Give a tensor on the device "
                "lazyrt, or leave the expression out to see all that is pending. Lazy tensors "
                "here: x."
            ),
        ),
        (
            "%lazy diff last 3 4",
            (
                "UsageError: %lazy diff takes `last`, or two programs, such as %lazy diff 11 "
                "12: steps, variables, or paths in quotes; it got 'last 3 4'. %lazy step lists "
                "the steps."
            ),
        ),
        (
            "%lazy live --sort",
            (
                "UsageError: %lazy live --sort takes a column: id, name, type, size, ops, age, "
                "made at, held by, and nothing stands behind it."
            ),
        ),
        (
            "%lazy live --above much",
            (
                "UsageError: %lazy live --above: 'much' is no number of pending ops. Give a whole number, as 20."
            ),
        ),
        (
            "%lazy cache --sort",
            (
                "UsageError: %lazy cache --sort takes an order: ops, size, compile, hits, age, "
                "unused, holds, line, and nothing stands behind it."
            ),
        ),
        (
            "%%lazy\nx",
            (
                "UsageError: %%lazy is not a cell magic. %%lazy step [NAME] runs the cell as "
                "one step, %%lazy eager runs it in eager debug mode, %%lazy time [N] times it, "
                "%%lazy profile says where its time goes; %lazy status with one % is a line magic."
            ),
        ),
        (
            "%lazy live x",
            (
                "UsageError: %lazy live takes only --above, --reverse, --sort after it, but got "
                "'x'."
            ),
        ),
        (
            "%%lazy graph\nx",
            (
                "UsageError: %%lazy graph is not a cell magic. %%lazy step [NAME] runs the "
                "cell as one step, %%lazy eager runs it in eager debug mode, %%lazy time [N] "
                "times it, %%lazy profile says where its time goes; %lazy graph with one % is a line magic."
            ),
        ),
    ]:
        assert usage_error(lab, capsys, source) == message


def test_a_timeline_has_cells(lab):
    with pytest.raises(UsageError, match="a number of cells from 1 up, not 0"):
        lazyviz.timeline(0)


def test_without_the_runtime_the_error_says_what_to_import(shell, capsys, monkeypatch):
    monkeypatch.setattr("lazyviz.session.runtime", lambda: None)
    shell.run_line_magic("load_ext", "lazyviz")

    assert usage_error(shell, capsys, "%lazy graph") == (
        "UsageError: lazyrt is not imported, so there is no lazy device to look at. "
        "Run `import lazyrt` and make tensors with device='lazyrt'."
    )
    shell.run_line_magic("unload_ext", "lazyviz")


def test_an_error_of_the_expression_is_shown_without_our_own_lines(lab, capsys):
    run(lab, 'def nothing():\n    raise LookupError("in the user\'s function")')

    for source, message in [
        ("%lazy ir 1 / 0", "ZeroDivisionError: division by zero"),
        ("%lazy explore x.misspelt", "has no attribute 'misspelt'"),
        ("%lazy diff nothing() 1", "LookupError: in the user's function"),
    ]:
        run(lab, source)

        shown = capsys.readouterr().out
        assert message in shown
        assert "lazyviz/" not in shown
        if "nothing" in source:
            assert "in nothing()" in shown


def test_help_lists_every_subcommand(lab, capsys):
    text = magics.LazyMagics.lazy.__doc__ or ""

    for command in VIEWS:
        assert f"%lazy {command}" in text
    run(lab, "%lazy?")
    assert "Look into the lazy runtime" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("why", ["%lazy why [STEP]"]),
        ("step", ["%lazy step [N]", "%%lazy step [NAME]"]),
        ("time", ["%%lazy time [N]"]),
        ("off", ["%lazy on, %lazy off"]),
        ("status", ["%lazy, %lazy status"]),
    ],
)
def test_help_explains_one_subcommand(lab, command, lines):
    found = printed(lab, f"%lazy help {command}").splitlines()

    heads = [line for line in found if line.startswith("%")]
    assert [head.partition("  ")[0] for head in heads] == lines


def test_help_has_each_option_that_tab_offers(lab):
    given = ("metrics", "report", "timeline", "hlo", "live", "cache")
    offered = {
        command: [
            word
            for word in magics.completions(f"%lazy {command} -", {}) or ()
            if word.startswith("--")
        ]
        for command in given
    }

    for command, options in offered.items():
        assert options
        for option in options:
            assert option in printed(lab, f"%lazy help {command}")


def test_a_cell_magic_on_a_line_says_where_it_belongs(lab, capsys):
    assert "Write %%lazy time with two %" in usage_error(lab, capsys, "%lazy time")


def test_help_for_an_unknown_subcommand_names_near_ones(lab, capsys):
    run(lab, "%lazy help stats")

    assert "Did you mean %lazy status" in capsys.readouterr().err


def page_of(shell, source):
    """Return the HTML that a magic displays."""
    shell.display_pub.outputs.clear()
    run(shell, source)
    return next(
        output["data"]["text/html"]
        for output in shell.display_pub.outputs
        if "text/html" in output["data"]
    )


def test_help_in_a_page_has_a_row_for_each_command(lab):
    page = page_of(lab, "%lazy help")

    assert page.count("<table") == 5
    for command in VIEWS:
        assert f"%lazy {command}" in page
    assert "EXPR: a tensor, a step&#x27;s number" in page  # continued lines are joined
    assert "<td" in page_of(lab, "%lazy help why")


def test_settings_and_times_are_tables_in_a_page_and_long_lines_end_between_words(lab):
    assert "<td" in page_of(lab, "%lazy eager")
    assert "8589934592 (8.0 GiB)" in page_of(lab, "%lazy eager")
    timed = page_of(lab, "%%lazy time 2\ny = x * 3\nlazyrt.mark_step()")
    assert timed.index("without the 1 run that compiled") < timed.index("<table")
    run(lab, "y = x + 1")
    assert "word-break:normal" in page_of(lab, "%lazy reuse y")


def test_nan_of_a_computed_tensor_tells_whether_it_is_finite(lab):
    run(lab, "y = (x - 1).log()\nz = x / (x - 1) * 0\nlazyrt.mark_step()")

    assert "Every result still held is finite: 1 checked." in printed(
        lab, "%lazy nan x"
    )
    assert (
        "Not finite: 2 of 2 results still held: y has 6 -Inf, z has 6 NaN. Where that began is "
        "not known: its inputs are not kept. lazyrt.config.keep_values = 'last' keeps those of"
    ) in printed(lab, "%lazy nan [y, z]")

    run(
        lab,
        "first = lazyrt.compiled_graphs()[-1].last_step\ndel y, z, _\nfor _ in 'ab':\n    x = x + 1\n    lazyrt.mark_step()",
    )
    said = printed(lab, f"%lazy nan {lab.user_ns['first']}")
    assert "Nothing was checked: no tensor holds a result" in said
    assert f"of step {lab.user_ns['first']} " in printed(
        lab, f"%lazy compile {lab.user_ns['first']}"
    )


def test_minimise_says_when_nothing_is_lacking(lab, capsys):
    graph_registry.clear()
    run(lab, "for _ in range(2):\n    y = x + 1\n    lazyrt.mark_step()")
    last = max(record.last_step for record in lazyrt.compiled_graphs())

    said = usage_error(lab, capsys, f"%lazy minimise {last - 1} {last}")

    assert "computes nothing that step" in said
    assert "predicate" not in said
    run(lab, "y = z = x + 1")
    said = usage_error(lab, capsys, "%lazy minimise y z")
    assert "computes nothing that the other program lacks" in said


def test_diff_last_compares_the_graphs_that_why_compares(lab):
    """With a cut in each step the step before is another part of the program."""
    graph_registry.clear()
    lines = (
        "for size in (4, 5):",
        "    y = torch.ones(size, device='lazyrt')",
        "    (y * 2 + 1).sum().item()",
    )
    run(lab, "\n".join([*lines, "    z = (x - 3).exp()", "    lazyrt.mark_step()"]))
    told = lazyrt.explain()
    assert told is not None

    shown = printed(lab, "%lazy diff last").splitlines()[0]

    assert f"({told.against}) → step {told.step} ({told.graph})" in shown
    assert not shown.startswith(f"step {told.step - 1} ")


NAMESPACE = {"loss": fake_tensor(1.0), "logits": fake_tensor(2.0), "n": 5, "_": 1}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%lazy ", sorted(VIEWS)),
        ("%lazy st", ["status", "step"]),
        ("%%lazy ", ["eager", "profile", "step", "time"]),
        ("%lazy eager o", ["off", "on"]),
        ("%lazy help gr", ["graph", "graphs"]),
        ("%lazy graph ", ["last", "logits", "loss"]),
        ("%lazy graph los", ["loss"]),
        ("%lazy hlo ", ["last", "logits", "loss", "--stablehlo"]),
        ("%lazy hlo --stablehlo l", ["last", "logits", "loss"]),
        ("%lazy live ", ["--above", "--reverse", "--sort"]),
        ("%lazy live --sort a", ["age"]),
        ("%lazy drop ", ["logits", "loss", "traceback"]),
        ("%lazy diff ", ["last", "logits", "loss", "--stablehlo", "--hlo", "--export"]),
        ("%lazy metrics -", ["--legacy", "--raw"]),
        ("%lazy cache ", ["drop", "--sort"]),
        ("%lazy cache --sort s", ["size"]),
        ("%lazy cache drop ", ["all", "older"]),
        ("%lazy timeline --", ["--export"]),
        ("%lazy report --", ["--force", "--no-source"]),
        ("%lazy report --force page.html --", ["--no-source"]),
        ("%lazy report pa", []),
        ("%lazy status ", []),
        ("%%lazy time ", []),
        ("%laz", None),
        ("%lazy", None),
        ("x = lazy ", None),
        ("%lazyfish ", None),
    ],
)
def test_a_line_is_completed_by_what_fits_its_cursor(line, expected):
    assert magics.completions(line, NAMESPACE) == expected


def test_the_completer_offers_them(lab):
    run(lab, "loss = x + 1")

    def offered(line):
        with provisionalcompleter():
            found = lab.Completer.completions(line, len(line))
            return [completion.text for completion in found]

    assert offered("%lazy gr") == ["graph", "graphs"]
    assert offered("%lazy graph lo") == ["loss"]
    assert offered("a = 1\n%lazy sta") == ["status"]


def test_a_long_listing_scrolls_in_a_box_and_ends(lab, monkeypatch):
    """Sizes are bounded; a terminal and a saved notebook have the same text."""
    lab.run_cell("%lazy off\nz = x\nfor k in range(70): z = torch.sin(z)")
    lab.display_pub.outputs.clear()

    lab.run_cell("%lazy ir z")
    lab.run_cell("%lazy ir (x + 1)")
    monkeypatch.setattr(commands, "_MAX_LISTED", 1_000)
    lab.run_cell("%lazy hlo z")

    tall, short, cut = (each["data"] for each in lab.display_pub.outputs)
    assert tall["text/plain"].count("\n") >= 70
    assert "overflow:auto" in tall["text/html"]
    assert "max-height" in tall["text/html"]
    assert html.escape(tall["text/plain"]) in tall["text/html"]
    assert "text/html" not in short
    assert len(cut["text/plain"]) < 1_200
    assert cut["text/plain"].splitlines()[-1].startswith("... ")
    assert "as_text('hlo')) gives all of them" in cut["text/plain"]
