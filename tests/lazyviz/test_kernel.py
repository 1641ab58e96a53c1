"""The extension in a real kernel, and the notebook that is saved from it."""

import os
import sys

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

from tests.quick_python import write_kernel

pytestmark = pytest.mark.slow

CELLS = (
    "%load_ext lazyviz\nimport torch, lazyrt",
    "x = torch.ones(2, 3, device='lazyrt')\ny = x + 1\ny",
    "import asyncio\nawait asyncio.sleep(0)\nz = y * 2",
    "1 + 1",
    (
        "from lazyrt.observe import events\n"
        "events.emit(events.CompileProgress(fingerprint='f', purpose='step',\n"
        "    phase='compile', nodes=9, elapsed_ns=2_000_000_000))\n"
        "print(z.sum().item())"
    ),
    "def f(t):\n    hidden = t * 5\n    raise ValueError('bad')\nf(x)",
    "(lazyrt.pending_graph().nodes, lazyrt.counters()['executions'])",
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a notebook that a kernel has run."""
    folder = tmp_path_factory.mktemp("kernel")
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in CELLS]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv("JUPYTER_PATH", str(folder / "data"))
        write_kernel(folder / "data")
        client = NotebookClient(notebook, timeout=300, allow_errors=True)
        client.execute(cwd=str(folder))
    return notebook


def outputs(notebook, number):
    return notebook.cells[number - 1].outputs


def strip(notebook, number):
    return outputs(notebook, number)[-1].data["text/plain"]


def test_the_saved_notebook_is_valid(saved):
    nbformat.validate(saved)


def test_each_cell_that_touched_the_device_has_its_strip_last(saved):
    assert outputs(saved, 1) == []
    first = strip(saved, 2).splitlines()[0]  # a busy machine waits for its compile, too
    assert first.endswith(" · 2 pending ops (+2 here) · 3 live tensors")
    assert strip(saved, 3) == "3 pending ops (+1 here) · 4 live tensors"
    assert [o.output_type for o in outputs(saved, 4)] == ["execute_result"]


def test_a_barrier_names_the_notebook_cell(saved):
    assert strip(saved, 5).splitlines()[1] == (
        "  ran 4 ops here: read by .item() at cell 5 line 4"
    )


def test_progress_leaves_an_empty_display(saved):
    empty, printed, _ = outputs(saved, 5)

    assert (empty.output_type, empty.data) == ("display_data", {})
    assert printed.text == "24.0\n"


def test_the_strip_follows_the_error_and_the_graph_forgets_its_locals(saved):
    error, last = outputs(saved, 6)

    assert error.ename == "ValueError"
    assert last.data["text/plain"].endswith("stopped by ValueError")
    assert outputs(saved, 7)[0].data["text/plain"] == "((), 1)"


@pytest.mark.filterwarnings("ignore:Your element with mimetype")
def test_a_converted_notebook_shows_the_graph(saved):
    page, _ = HTMLExporter().from_notebook_node(saved)

    assert "3 pending ops (+1 here)" in page
    assert "data:image/svg+xml;base64," in page
    assert 'alt="IR graph, ' in page
