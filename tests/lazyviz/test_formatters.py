import re

import pytest
import torch

import lazyrt
from lazyrt.execution import memory
from lazyrt.observe import events
from lazyviz.shell import displayed as formatters
from tests.conftest import displayed
from tests.harness import recorded


def run(shell, *sources):
    for source in sources:
        shell.run_cell(source, store_history=True)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            torch.tensor([1.0, 2.0, 3.0]),
            "float32[3] · 1 to 3 · mean 2 · std 1",
        ),
        (
            torch.tensor([1.0, float("nan"), float("inf")]),
            "float32[3] · 1 to 1 · mean 1 · 1 NaN · 1 Inf",
        ),
        (torch.tensor([True, False, True]), "bool[3] · 2 of 3 true"),
        (torch.tensor(5.0), "float32[] · 5.0"),
        (torch.tensor([float("nan")] * 2), "float32[2] · 2 NaN"),
        (torch.zeros(0), "float32[0]"),
        (
            torch.zeros(2, dtype=torch.complex64),
            "complex64[2] · 0 to 0 · mean 0 · std 0",
        ),
        (torch.tensor([1, 2]), "int64[2] · 1 to 2 · mean 1.5 · std 0.7071"),
    ],
)
def test_a_value_is_told_in_one_line_of_facts(value, text):
    look = lazyrt.look(value.to("lazyrt"))

    assert formatters.facts(look) == text


def test_a_display_is_one_peek(lab):
    run(lab, "y = x + 1")
    lazyrt.reset_counters()

    lab.display_formatter.format(lab.user_ns["y"])

    counters = lazyrt.counters()
    assert (counters["executions"], counters["barriers"]) == (0, 0)
    assert counters["peek_executions"] == 1


def test_a_display_has_text_and_html(lab):
    run(lab, "y = x + 1\ndisplay(y)")

    data = lab.display_pub.outputs[0]["data"]
    assert data["text/plain"] == (
        "tensor([[2., 2., 2.],\n        [2., 2., 2.]], device='lazyrt:0')"
    )
    assert "float32[2, 3] · 2 to 2 · mean 2" in data["text/html"]


def page_of(lab, source):
    """Return what displaying a tensor shows as HTML."""
    lab.display_pub.outputs.clear()
    run(lab, f"display({source})")
    return lab.display_pub.outputs[0]["data"]["text/html"]


def test_a_display_has_statistics_first_and_folds_the_rest(lab):
    """Range, mean, NaN in one line."""
    for source, parts in [
        ("x.sum()", ["float32[] · 6.0 · lazyrt:0", "details", " open>"]),
        ("x.sum() > 100", ["bool[] · False"]),
        ("torch.zeros(0, 3, device='lazyrt')", ["float32[0, 3] · lazyrt:0"]),
        ("x > 0", ["bool[2, 3] · 6 of 6 true"]),
        ("torch.arange(9).to('lazyrt')", ["int64[9] · 0 to 8 · mean 4"]),
        ("x.half() * 2", ["float16[2, 3] · 2 to 2"]),
        ("x.bfloat16() * 2", ["bfloat16[2, 3] · 2 to 2"]),
        ("torch.complex(x, x)", ["complex64[2, 3]", "1.+1.j"]),
        ("x / 0", ["float32[2, 3]", '<b class="lzn">⚠ 6 Inf</b>']),
        ("(x - x) / 0", ["⚠ 6 NaN"]),
        ("torch.nn.Parameter(x)", ["requires_grad=True", "Parameter containing"]),
        ("torch.nn.Parameter(x) * 2", ["grad_fn=&lt;MulBackward0&gt;"]),
        (
            "torch.rand(3, 32, 40, device='lazyrt')",
            ["histogram and picture", "image of 32 rows and 40 columns"],
        ),
        (
            "torch.rand(2, 2, 70, 90, device='lazyrt')",
            ["heat map of 70 rows and 90 columns"],
        ),
    ]:
        page = page_of(lab, source)

        for part in parts:
            assert part in page, part
        assert "<svg" not in page
        assert "<script" not in page


def test_values_of_few_elements_are_open_and_of_many_folded(lab):
    small = page_of(lab, "torch.ones(8, device='lazyrt')")
    large = page_of(lab, "torch.ones(80, device='lazyrt')")

    assert re.match(r'<div class="lazyviz-tensor"><details style="[^"]*" open>', small)
    assert re.match(
        r'<div class="lazyviz-tensor"><details style="[^"]*"><summary', large
    )


def test_the_plan_of_a_pending_tensor_is_folded_below_it(lab):
    run(
        lab, "net = torch.nn.Sequential(torch.nn.Linear(3, 2)).to('lazyrt')\ny = net(x)"
    )

    page = page_of(lab, "y")

    assert (
        "plan: 2 pending ops · aten.addmm.default · cell 4 line 2 · module 0 · shown by a peek"
        in page
    )
    assert "aten.addmm.default(%p" in page
    assert lazyrt.is_pending(lab.user_ns["y"])


def test_data_without_a_name_gets_none_of_the_shells(lab):
    """The shell's own functions hold what they show, under names that say nothing."""
    run(lab, "def made():\n    y = x + 1\n    lazyrt.mark_step()\n    return y")

    page = page_of(lab, "made()")

    assert "obj" not in page
    assert re.search(r"data: f32\[2,3\]: output 0 of step \d+", page)


def test_data_tells_where_it_came_from(lab):
    run(lab, "y = x + 1", "lazyrt.mark_step()")

    page = page_of(lab, "y")

    assert re.search(
        r"data: <code>y</code> f32\[2,3\]: output 0 of step \d+ \(graph\.\d+\), aten\.add",
        page,
    )


def test_a_large_tensor_is_shown_in_full_and_moved_in_part(lab):
    run(lab, "y = torch.rand(1000, 1000, device='lazyrt')\ny[5, 6] = float('nan')")

    with recorded(events.TransferFinished) as found:
        page = page_of(lab, "y")

    assert "float32[1000, 1000]" in page
    assert "⚠ 1 NaN" in page
    assert "heat map of 1,000 rows and 1,000 columns" in page
    assert sum(event.nbytes for event in found) < 64 * 1024
    assert len(page) < 150_000
    assert "tensor([[" in page


def test_a_large_view_that_a_cell_shows_and_keeps_is_moved_in_part(lab):
    run(lab, "w = torch.rand(1000, 1000, device='lazyrt')", "lazyrt.mark_step()")
    in_use = memory.in_use()

    with recorded(events.TransferFinished) as found:
        run(lab, "w.T", "w[::2]", "%lazy live")

    assert sum(event.nbytes for event in found) < 200_000
    assert memory.in_use() == in_use
    shown = [tuple(kept.shape) for kept in lab.user_ns["Out"].values()]
    assert shown == [(1000, 1000), (500, 1000)]


def test_a_display_changes_no_fingerprint_and_runs_no_step(lab):
    run(lab, "y = torch.rand(400, 400, device='lazyrt').sin()\nz = y[1:].t() + 1")
    before = lazyrt.pending_graph().fingerprint
    lazyrt.reset_counters()

    page_of(lab, "z")
    page_of(lab, "y")
    page_of(lab, "x.t()")

    assert lazyrt.pending_graph().fingerprint == before
    assert lazyrt.counters()["executions"] == 0


def test_names_and_lines_in_a_display_stay_text(lab):
    run(lab, "log = {'<script>x</script>': x + 1}", "lazyrt.mark_step()")

    page = page_of(lab, "list(log.values())[0]")

    assert "<script" not in page


def test_tensors_in_containers_show_their_values(lab, capsys):
    run(lab, "y = {'a': [x + 1]}\ny")

    assert "tensor([[2., 2., 2.]," in capsys.readouterr().out


def test_print_and_display_show_the_same_text(lab, capsys):
    run(lab, "y = (x + 1).double()\nprint(y)\ndisplay(y)")

    assert displayed(lab)[0] == capsys.readouterr().out.strip()


def test_parameters_say_so(lab, capsys):
    run(lab, "torch.nn.Parameter(x)")

    out = capsys.readouterr().out
    assert "Parameter containing:\ntensor([[1., 1., 1.]," in out
    assert "requires_grad=True)" in out


def test_other_tensors_show_as_without_lazyviz(lab, capsys):
    run(lab, "torch.arange(3)")

    assert "Out[4]: tensor([0, 1, 2])" in capsys.readouterr().out


def test_a_graph_shows_its_listing_and_its_drawing(lab):
    run(lab, "y = x + 1\ngraph = lazyrt.pending_graph()\ndisplay(graph)")

    data = lab.display_pub.outputs[0]["data"]
    assert data["text/plain"].splitlines()[0] == "%p0 : f32[2,3]"
    assert 'alt="IR graph, 1 op"' in data["text/html"]


def test_an_empty_graph_says_so(lab):
    run(lab, "display(lazyrt.pending_graph())")

    assert displayed(lab)[0].startswith("<Graph: nothing is pending; lazyrt.inspect(")


def test_a_value_that_is_lost_shows_why(lab, capsys):
    run(
        lab,
        "def f(t):\n    hidden = t * 5\n    raise ValueError(hidden)\nf(x)",
    )
    run(lab, "import sys; t = sys.last_value.args[0]")
    run(lab, "z = x + 1; lazyrt.mark_step()")
    capsys.readouterr()
    run(lab, "t")

    said = "".join([*capsys.readouterr(), *displayed(lab)])
    assert said.count("LostValueError: this tensor has no value") == 1
    assert "Traceback" not in said
