"""`%lazy live` names holders in a notebook's words, `%lazy drop` lets go."""

import gc
import html
import re
import sys

import pytest
import torch

import lazyrt
from lazyviz.inspection import live
from tests.conftest import displayed


@pytest.fixture
def space(lab):
    lab.run_cell("del x", store_history=True)
    return lab


def run(shell, *sources):
    for source in sources:
        shell.run_cell(source, store_history=True)


def said(shell, source):
    """Return what a cell displayed, its strip left out."""
    shell.display_pub.outputs.clear()
    shell.run_cell("%lazy off", store_history=True)
    shell.run_cell(source, store_history=True)
    shell.run_cell("%lazy on", store_history=True)
    return "\n".join(displayed(shell))


def refused(shell, capsys, source):
    capsys.readouterr()
    shell.run_cell(source, store_history=True)
    return "".join(capsys.readouterr())


def test_live_lists_type_size_age_line_and_holder(space):
    run(space, "y = torch.ones(2, 3, device='lazyrt') + 1", "lazyrt.mark_step()")

    lines = said(space, "%lazy live").splitlines()

    assert lines[0].split() == [
        "id",
        "name",
        "type",
        "size",
        "age",
        "made",
        "at",
        "held",
        "by",
    ]
    assert re.fullmatch(
        r"\s*\d+  y     f32\[2,3\]  24 bytes    1  cell 5 line 1  y", lines[2]
    )
    assert lines[3] == "1 live tensor, 24 bytes"


def test_live_shows_a_table_that_stays_in_the_notebook(space):
    run(space, "y = torch.ones(2, 3, device='lazyrt') + 1")
    space.display_pub.outputs.clear()

    run(space, "%lazy live")

    page = displayed(space, "text/html")[0]
    assert "<table" in page
    assert "f32[2,3]" in page
    assert "<script" not in page


def test_live_sorts_and_filters(space):
    run(
        space,
        "big = torch.ones(9, 9, device='lazyrt')",
        "a = torch.ones(2, device='lazyrt')\nlazyrt.mark_step()",
        "deep = torch.ones(4, device='lazyrt')\nfor _ in range(5): deep = deep + 1",
    )

    for options, first in [
        ("", "big"),
        ("--sort size --reverse", "a"),
        ("--sort name", "a"),
        ("--sort ops", "deep"),
        ("--sort made at", "big"),
        ("--above 3", "deep"),
    ]:
        line = said(space, f"%lazy live {options}").splitlines()[2]

        assert line.split()[1] == first


def test_mistakes_are_explained(space, capsys):
    run(space, "history = [torch.ones(2, device='lazyrt')]\nn = 5")

    for source, part in [
        ("%lazy drop traceback", "no exception was shown since the last drop"),
        (
            "%lazy live --sort colour",
            "--sort takes a column: id, name, type, size, ops, age, made at, held by, not 'colour'",
        ),
        ("%lazy live --above many", "'many' is no number of pending ops"),
        ("%lazy drop nothing", "there is no variable of this name"),
        ("%lazy drop history[0]", "Run `del history[0]`, or %lazy drop history"),
        ("%lazy drop n", "it leads to no tensor on the lazy device"),
        ("%lazy drop Out[99]", "there is no such result. IPython keeps"),
    ]:
        assert part in refused(space, capsys, source)
        assert len(lazyrt.live_tensors()) == 1


def test_a_growing_list_is_named_with_its_cell_and_line(space):
    run(
        space,
        "history = []",
        "for _ in range(4):\n    loss = torch.ones(3, device='lazyrt').exp().sum()\n"
        "    kept = loss\n    history.append(kept)\n    lazyrt.mark_step()",
    )

    text = said(space, "%lazy live")

    assert (
        "+1 live tensor per step, held by list history (cell 6 line 4): 4 since step"
        in text
    )
    assert text.count("↑") == 4
    assert "history[0]" in text


def test_holders_in_a_notebook_are_results_closures_modules_and_tracebacks(space):
    run(
        space,
        "y = torch.ones(2, device='lazyrt') * 3",
        "y",
        "class Trainer:\n    def __init__(self): self.seen = {'last': torch.ones(7, device='lazyrt')}\n"
        "trainer = Trainer()",
        "def outer():\n    hidden = torch.ones(6, device='lazyrt')\n    return lambda: hidden\nf = outer()",
        "def fails():\n    inside = torch.ones(8, device='lazyrt')\n    lazyrt.mark_step()\n"
        "    raise ValueError('no')\nfails()",
    )  # fmt: skip

    report = live.report(lazyrt, space)

    held = {row.shape[0]: live_names(row) for row in report.rows if row.shape}
    results = [live_names(row) for row in report.rows if "Out[6]" in live_names(row)]
    assert sorted(results[0]) == ["Out[6]", "_"]
    assert "trainer.seen['last']" in held[7]
    assert any("hidden" in name for name in held[6])
    assert any("inside in fails()" in name for name in held[8])


def live_names(row):
    return [holder.text for holder in row.holders]


def test_dropping_a_result_frees_it_under_all_its_names(space):
    run(space, "y = torch.ones(64, device='lazyrt') * 3", "y")
    count = len(lazyrt.live_tensors())

    text = said(space, "%lazy drop Out[6]")

    assert text == "Dropped Out[6]: 1 tensor, 256 bytes, freed."
    assert len(lazyrt.live_tensors()) == count - 1
    assert "_6" not in space.user_ns
    assert 6 not in space.user_ns["Out"]
    assert "_" not in [
        name for r in live.report(lazyrt, space).rows for name in r.names
    ]


def test_underscores_still_work_after_a_drop(space):
    run(space, "torch.ones(4, device='lazyrt')", "%lazy drop _", "1 + 1", "_ + 1")

    assert space.user_ns["_"] == 3
    assert lazyrt.live_tensors() == []


def test_dropping_a_variable_tells_what_still_holds_its_tensors(space):
    run(
        space,
        "a = torch.ones(256, device='lazyrt') + 1\nkeep = [a]\nlazyrt.mark_step()",
    )

    text = said(space, "%lazy drop a")

    assert text == (
        "Dropped a: nothing was freed.\n  f32[256], 1.0 KiB, is still held by keep[0] (list in cell 5)"
    )
    assert said(space, "%lazy drop keep") == "Dropped keep: 1 tensor, 1.0 KiB, freed."
    assert lazyrt.live_tensors() == []


def test_dropping_a_pending_variable_makes_the_next_step_smaller(space):
    run(space, "x = torch.ones(4, device='lazyrt')\ny = x.exp().sin()")

    text = said(space, "%lazy drop y")

    assert (
        text == "Dropped y: 1 tensor, 16 bytes, freed. The next step runs 2 ops fewer."
    )
    assert len(lazyrt.pending_graph().nodes) == 1


def test_dropping_what_the_pending_step_reads_says_that_its_memory_stays(space):
    """What no tensor has any more is counted as long as the step needs it."""
    run(
        space,
        "x = torch.ones(64, device='lazyrt')\nlazyrt.mark_step()",
        "y = x.exp().sum()",
    )

    text = said(space, "%lazy drop x")
    listed = said(space, "%lazy live")

    assert text == (
        "Dropped x: 1 tensor, whose memory stays in use. The pending step reads 256 bytes of it, "
        "until it has run."
    )
    assert listed.endswith("256 bytes more that only the pending step reads")
    run(space, "lazyrt.mark_step()")
    assert live.report(lazyrt, space).step_bytes == 0


def test_a_large_result_has_the_memory_of_its_variable_until_one_is_written(space):
    """`Out` takes no second gigabyte, and the table counts the one once."""
    run(
        space,
        "w = torch.ones(512, 1024, device='lazyrt')\nlazyrt.mark_step()",
        "w",
        "def fails():\n    inside = w\n    raise ValueError('no')\nfails()",
    )

    before = said(space, "%lazy live")
    run(space, "w.add_(1)\nlazyrt.mark_step()")
    after = said(space, "%lazy live")
    text = said(space, "%lazy drop Out[6]")

    assert "_, Out[6]; same memory as w" in before
    assert "inside in fails() (traceback of ValueError" in before
    assert before.endswith(" live tensors, 2.0 MiB")
    # `_` and the traceback have one copy of what `w` was.
    assert after.endswith(" live tensors, 4.0 MiB")
    assert text.startswith("Dropped Out[6]: 1 tensor")


def test_a_collection_is_named_with_the_cell_that_fills_it(space):
    """`list in cell 3`."""
    run(
        space,
        "class Log:\n    seen = {}\nlog = Log()",
        "y = torch.ones(3, device='lazyrt')\nlog.seen['y'] = y\nrow = [y.exp(), y.sin()]",
    )

    text = said(space, "%lazy live")

    assert "y, Log.seen['y'] (dict in cell 6)" in text
    assert "row[0] (list in cell 6)" in text


def test_dropping_the_traceback_frees_what_it_kept(space):
    run(
        space,
        "x = torch.ones(256, device='lazyrt')\nlazyrt.mark_step()",
        "def fails(t):\n    inside = t * 2\n    lazyrt.mark_step()\n    raise ValueError(inside)\nfails(x)",
    )  # fmt: skip
    rows = live.report(lazyrt, space).rows
    assert any(
        holder.holder.startswith("traceback") for r in rows for holder in r.holders
    )
    assert any(t == "traceback" for r in rows for t in live.targets(r, space.user_ns))

    text = said(space, "%lazy drop traceback")

    assert re.match(r"Dropped traceback: \d tensors?, [\d.]+ KiB, freed\.", text)
    assert [row.names for row in live.report(lazyrt, space).rows] == [("x",)]
    assert getattr(sys, "last_value", None) is None


def test_a_magic_that_failed_holds_no_tensor_and_is_no_holder(space):
    for magic in ["%lazy explore nothing", "%lazy drop nothing", "%lazy reuse [x, x]"]:
        run(space, "x = torch.ones(4, device='lazyrt')\nlazyrt.mark_step()", magic)

        (row,) = live.report(lazyrt, space).rows
        run(space, "del x")

        assert [holder.text for holder in row.holders] == ["x"]
        assert live.report(lazyrt, space).rows == ()


def test_frames_of_the_runtime_are_no_holders(monkeypatch):
    x = torch.ones(4, device="lazyrt")
    monkeypatch.setattr("lazyrt.frontend.reads.require_lazy", divmod)
    with pytest.raises(TypeError) as caught:
        lazyrt.materialise(x)
    monkeypatch.setattr(sys, "last_value", caught.value, raising=False)

    (row,) = lazyrt.live_tensors_report().rows

    places = [str(holder) for holder in row.holders]
    assert any("test_frames_of_the_runtime" in place for place in places)
    assert not any("materialise" in place for place in places)


def test_an_error_that_the_device_raises_keeps_no_tensor_of_the_failed_cell(space):
    """Neither the traceback nor the runtime's own frames behind it keep one."""
    for call in ["t.reshape(7)", "t[0].reshape(7)", "t @ t", "t + t[:, :1][:3]"]:
        run(space, "x = torch.ones(4, 5, device='lazyrt')\nlazyrt.mark_step()")
        gc.disable()
        try:
            run(
                space,
                f"def fails():\n    t = x * 2\n    u = t.relu()\n    {call}\nfails()",
            )
            names = [row.names for row in live.report(lazyrt, space).rows]
        finally:
            gc.enable()

        assert space.last_execution_result.error_in_exec is not None
        assert names == [("x",)]


def test_targets_ask_for_variables_alone(space):
    run(
        space,
        "y = torch.ones(4, device='lazyrt')\nhistory = [y]\nm = torch.nn.Linear(1, 1).to('lazyrt')",
        "y",
    )
    rows = live.report(lazyrt, space).rows

    found = {
        name: asks
        for row in rows
        for name, asks in live.targets(row, space.user_ns).items()
    }

    assert found == {"y": True, "history": True, "Out[6]": False, "_": False}


def test_pending_ops_are_dropped_as_before(space):
    run(space, "y = torch.ones(4, device='lazyrt') + 1")

    assert said(space, "%lazy drop").startswith("Dropped 2 pending ops.")


def test_an_earlier_cell_that_makes_the_next_graph_bigger_is_told(space):
    run(
        space,
        "x = torch.ones(4, device='lazyrt')\na, b, c = x.exp(), x.sin(), x.cos()",
        "y = x + 1",
    )

    assert (
        "cell 5 holds 3 tensors (a, b, c) that make the next step's graph bigger: 3 ops run "
        "only for them"
    ) in said(space, "%lazy live")


def test_looking_at_holders_records_and_runs_nothing(space):
    run(space, "x = torch.ones(4, device='lazyrt').exp()\nhistory = [x, {'a': x * 2}]")
    before = lazyrt.pending_graph().fingerprint, lazyrt.counters(), lazyrt.activity()

    said(space, "%lazy live --sort age")

    assert (
        lazyrt.pending_graph().fingerprint,
        lazyrt.counters(),
        lazyrt.activity(),
    ) == before


def test_values_read_one_by_one_are_told_with_the_call_that_reads_them_in_one(space):
    run(space, "x = torch.arange(12.0).to('lazyrt')")
    metrics = "a, b, c, d = x.mean(), x.std(), x.min(), x.max()"

    peeks = said_strip(space, f"{metrics}\nfor m in (a, b, c, d): print(m)")
    reads = said_strip(space, "for k in range(5): (x * k).sum().item()")
    together = said_strip(space, f"{metrics}\nlazyrt.materialise(a, b, c, d)")

    assert (
        "4 values were read one by one: 4 executions. lazyrt.materialise(m, ...) reads them "
        "in one"
    ) in peeks
    assert "5 values were read one by one: 5 executions" in reads
    assert "one by one" not in together


def test_values_of_ops_are_looked_at_one_by_one_without_advice_for_tensors(space):
    run(space, "y = torch.arange(12.0).to('lazyrt')\nfor k in range(6): y = y * 2 + k")
    run(space, "graph = lazyrt.inspect(y)")

    looks = said_strip(
        space, "for node in graph.graph.nodes: graph.materialise(node.id)"
    )

    assert "12 peeks" in looks
    assert "one by one" not in looks


def test_a_strip_unfolds_the_lines_that_read_the_same_values_in_one_execution(space):
    """`7 reads = 7 executions: batch them`, without a script, so it stays when saved."""
    run(space, "x = torch.arange(12.0).to('lazyrt')\nlazyrt.mark_step()")
    reads = [f"v{k}" for k in range(7)]
    record = "\n".join(f"{name} = x[{k}] * 2" for k, name in enumerate(reads))
    space.display_pub.outputs.clear()

    run(space, f"{record}\n" + "\n".join(f"print({name})" for name in reads))
    strip = displayed(space, "text/html")[-1]
    batched = html.unescape(re.sub(r"<[^>]+>", "", strip.partition("batch them")[2]))
    run(space, f"lazyrt.mark_step()\nx = x + 1\nlazyrt.mark_step()\n{record}")
    before = lazyrt.counters()["peek_executions"]
    run(space, batched.splitlines()[0].partition(" in one")[0])

    assert "<summary" in strip.partition("7 reads = 7 executions: batch them")[0]
    assert lazyrt.counters()["peek_executions"] == before + 1
    assert [float(space.user_ns[name]) for name in reads] == [
        2.0 * (k + 1) for k in range(7)
    ]


def test_a_training_loop_that_reads_its_loss_is_left_in_peace(space):
    run(space, "w = torch.ones(4, device='lazyrt', requires_grad=True)")
    loop = (
        "for _ in range(5):\n    loss = ((w * 2).exp().sin().cos().tanh() + 1).square().mean()\n"
        "    loss.backward()\n    loss.item()\n    w.grad = None"
    )

    assert "one by one" not in said_strip(space, loop)


def test_a_look_that_runs_many_ops_first_says_so(space):
    """A print that takes long says that it ran its ops first."""
    run(space, "x = torch.ones(4, device='lazyrt')\nfor _ in range(120): x = x * 1.01")

    strip = said_strip(space, "print(x)")

    assert re.search(
        r"121 ops ran first to show x at cell 6 line 1, .+; the step is as before",
        strip,
    )


def test_a_strip_tells_once_of_an_earlier_cells_work(space):
    run(
        space,
        "x = torch.ones(4, device='lazyrt')\nold = x\nfor _ in range(12): old = old.sin()",
    )

    first = said_strip(space, "y = x + 1")
    second = said_strip(space, "y = x + 2")

    assert (
        "cell 5 holds 1 tensor (old) that makes the next step's graph bigger: 12 ops run only "
        "for it"
    ) in first
    assert "cell 5 holds" not in second


def test_without_strips_holders_are_looked_for_only_where_one_is_told(
    space, monkeypatch
):
    run(space, "%lazy off", "x = torch.ones(4, device='lazyrt')")
    session, looks = space._lazyviz_session, []
    find = session._holdings_of

    def look(graph):
        looks.append(graph)
        return find(graph)

    monkeypatch.setattr(session, "_holdings_of", look)

    run(space, "old = x\nfor _ in range(12): old = old.sin()")
    assert looks == []
    run(space, "y = x + 1", "y = x + 2", "z = y + 1")

    assert len(looks) == 1
    told = [text for cell in session.cells for text in cell.strip.waiting]
    assert sum("holds 1 tensor (old) that makes" in text for text in told) == 1


def said_strip(shell, source):
    shell.display_pub.outputs.clear()
    shell.run_cell(source, store_history=True)
    return displayed(shell)[-1]


def test_a_notebook_goes_on_after_a_step_that_did_not_fit(lab, capsys):
    """The error names the variable and its cell, and `del` is enough to go on."""
    run(lab, "huge = torch.ones(2**40, device='lazyrt')", "y = x * 3")
    run(lab, "lazyrt.mark_step()")

    shown = capsys.readouterr().out
    assert "OutOfMemoryError: a graph of 2 ops needs 4.0 TiB of memory" in shown
    assert "4.0 TiB: huge, f32[1099511627776], pending, made at cell" in shown

    run(lab, "del huge", "y.sum().item()")

    assert lab.user_ns["Out"][max(lab.user_ns["Out"])] == 18.0


def test_the_page_groups_tensors_by_what_they_are_with_totals(lab):
    lab.run_cell(
        "net = torch.nn.Linear(4, 2).to('lazyrt')\n"
        "optimizer = torch.optim.Adam(net.parameters())\n"
        "net(torch.ones(3, 4).to('lazyrt')).sum().backward()\noptimizer.step()",
        store_history=True,
    )
    table = live.LiveTable(lazyrt, lab)

    for column in ("size", "age"):
        (shown,) = table.handle({"kind": "sort", "column": column})
        groups = re.findall(
            r'class="lzl-group"><th[^>]*>([\w ]+)<small> ([^<]+)', shown["html"]
        )
        assert [kind for kind, _ in groups] == [
            *("parameters", "gradients", "optimizer state", "others")
        ]
        totals = dict(groups)
        assert totals["parameters"] == "2 tensors, 40 bytes"
        assert totals["optimizer state"] == "4 tensors, 80 bytes"


@pytest.mark.not_eager("looks at what is pending")
@pytest.mark.parametrize(("count", "folded"), [(25, 0), (26, 6)])
def test_of_many_tensors_the_largest_are_seen_and_the_rest_unfolds(count, folded):
    kept = [torch.ones(k).to("lazyrt") for k in range(1, count + 1)]
    found = lazyrt.live_tensors_report().sorted()

    page = live.live_doc(found).to_html()

    seen, _, rest = page.partition("<details")
    assert len(kept) == count == len(found.rows)
    assert (seen + rest).count("<tr><td") == count
    assert rest.count("<tr><td") == folded
    assert ("6 more, 84 bytes</summary>" in rest) == bool(folded)


def test_a_report_of_live_tensors_is_shown_as_text_and_as_escaped_html(lab):
    run(lab, "log = {'<script>': x}", "found = lazyrt.live_tensors_report()")

    bundle, _ = lab.display_formatter.format(lab.user_ns["found"])

    assert bundle["text/plain"] == str(lab.user_ns["found"])
    assert "&lt;script&gt;" in bundle["text/html"]
    assert "<script>" not in bundle["text/html"]
