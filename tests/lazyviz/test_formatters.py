import pytest
import torch

import lazyrt
from lazyviz import formatters
from tests.conftest import displayed


def run(shell, source):
    return shell.run_cell(source, store_history=True)


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
        (torch.tensor(5.0), "float32[]"),
        (torch.tensor([float("nan")] * 2), "float32[2] · 2 NaN"),
        (torch.zeros(0), "float32[0]"),
        (torch.zeros(2, dtype=torch.complex64), "complex64[2]"),
        (torch.tensor([1, 2]), "int64[2] · 1 to 2 · mean 1.5 · std 0.7071"),
    ],
)
def test_statistics(value, text):
    assert formatters.statistics(value) == text


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

    assert displayed(lab)[0] == "<Graph: nothing is pending>"


def test_a_value_that_is_lost_shows_why(lab, capsys):
    run(
        lab,
        "def f(t):\n    hidden = t * 5\n    raise ValueError(hidden)\nf(x)",
    )
    run(lab, "import sys; t = sys.last_value.args[0]")
    run(lab, "z = x + 1; lazyrt.mark_step()")
    capsys.readouterr()
    run(lab, "t")

    assert "LostValueError" in "".join(capsys.readouterr())
