import json

import pytest
from IPython import get_ipython

from lazyviz.documents import notebook


def write(path, *cells):
    """Write a notebook of (kind, source, tags) cells."""
    entries = [
        {
            "cell_type": kind,
            "source": source.splitlines(keepends=True),
            "metadata": {"tags": list(tags)},
        }
        for kind, source, *tags in cells
    ]
    path.write_text(json.dumps({"cells": entries, "nbformat": 4}), encoding="utf-8")
    return path


def run(*sources):
    with notebook.runner() as runner:
        return [runner.run(source) for source in sources]


def test_cells_know_their_heading(tmp_path):
    path = write(
        tmp_path / "n.ipynb",
        ("markdown", "# One\ntext"),
        ("code", "1"),
        ("code", "   "),
        ("markdown", "no heading"),
        ("code", "2", "raises-exception"),
        ("raw", "left out"),
    )

    cells = notebook.read(path)

    assert [(c.kind, c.heading, c.may_fail) for c in cells] == [
        ("markdown", "", False),
        ("code", "One", False),
        ("markdown", "", False),
        ("code", "One", True),
    ]


@pytest.mark.parametrize(
    "content", ["not json", "[]", '{"worksheets": []}', '{"cells": [{}]}']
)
def test_what_is_no_notebook_is_refused(tmp_path, content):
    path = tmp_path / "n.ipynb"
    path.write_text(content)

    with pytest.raises(ValueError, match=r"n\.ipynb is not a Jupyter notebook"):
        notebook.read(path)


def test_outputs_are_kept_in_order():
    (ran,) = run(
        "print('a')\nprint('b')\nfrom IPython.display import HTML\n"
        "display(HTML('<b>c</b>'))\nprint('d')\n42"
    )

    assert [(output.kind, output.text) for output in ran.outputs] == [
        ("stream", "a\nb\n"),
        ("display", "<IPython.core.display.HTML object>"),
        ("stream", "d\n"),
        ("result", "42"),
    ]
    assert ran.outputs[1].data["text/html"] == "<b>c</b>"
    assert ran.error is None


def test_updates_change_the_display_they_name():
    (ran,) = run("h = display('old', display_id=True)\nh.update('new')")

    assert [output.text for output in ran.outputs] == ["'new'"]


def test_an_error_is_an_output_and_the_next_cell_runs():
    failed, fine = run("1 / 0", "x = 1\nx")

    assert isinstance(failed.error, ZeroDivisionError)
    assert "ZeroDivisionError: division by zero" in failed.outputs[0].text
    assert fine.outputs[0].text == "1"


def test_a_syntax_error_is_an_error():
    (ran,) = run("x = = 1")

    assert isinstance(ran.error, SyntaxError)


def test_the_running_shell_is_found_and_the_one_before_comes_back(shell):
    (ran,) = run("get_ipython() is not None")

    assert ran.outputs[0].text == "True"
    assert get_ipython() is shell


def test_names_do_not_leak_into_the_next_run():
    run("leftover = 1")
    (ran,) = run("'leftover' in globals()")

    assert ran.outputs[0].text == "False"


def test_strips_are_outputs(clean_runtime):
    _, ran = run(
        "%load_ext lazyviz\nimport torch, lazyrt",
        "x = torch.ones(2, device='lazyrt')\ny = x + 1",
    )

    assert ran.outputs[-1].kind == "display"
    assert ran.outputs[-1].text.startswith("2 pending ops (+2 here)")
