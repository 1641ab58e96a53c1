import io
import json
import re
import sys
from pathlib import Path

import pytest

from lazyviz import __main__ as command_line
from lazyviz.command_line import run as run_command
from lazyviz.documents import tour
from tests.quick_python import write_kernel

READ = "from pathlib import Path\nprint(Path('data.txt').read_text())"
FIRST = Path(tour.__file__).parents[2] / "notebooks" / "00_gallery.ipynb"


def write(path, *cells):
    """Write a notebook of (kind, source, tags) cells."""
    entries = [
        {
            "cell_type": kind,
            "source": source.splitlines(keepends=True),
            "metadata": {"tags": list(tags)},
            **({"outputs": [], "execution_count": None} if kind == "code" else {}),
        }
        for kind, source, *tags in cells
    ]
    whole = {"cells": entries, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


def run(tmp_path, *cells):
    """Return the exit status, what was printed, and the page."""
    path = write(tmp_path / "n.ipynb", *cells)
    output = tmp_path / "page.html"
    out = io.StringIO()
    status = tour.main(["--notebook", str(path), "--output", str(output)], out)
    return status, out.getvalue(), output.read_text("utf-8")


@pytest.mark.slow
def test_a_tour_prints_progress_and_writes_one_page(tmp_path):
    status, printed, page = run(
        tmp_path,
        ("markdown", "# A look\n\nWith **care**.\n"),
        ("code", "%load_ext lazyviz\nimport torch, lazyrt"),
        ("markdown", "## Record"),
        ("code", "x = torch.ones(2, device='lazyrt')\nprint('<hello>')"),
        ("code", "y = x + 1"),
    )

    assert status == 0
    assert printed.splitlines()[:6] == [
        "[1/3] A look",
        "[2/3] Record",
        "      <hello>",
        "      1 pending op (+1 here) · 1 live tensor",
        "[3/3] y = x + 1",
        "      2 pending ops (+1 here) · 2 live tensors",
    ]
    assert re.search(r"Done after .+\. The page: .*page\.html", printed)
    assert page.count("<h1>A look</h1>") == 1
    assert "<strong>care</strong>" in page
    assert "&lt;hello&gt;" in page
    assert "data:image/svg+xml;base64," in page
    assert not re.search(r'(src|href)="https?:', page)


def test_a_failing_cell_ends_the_tour_with_its_traceback(tmp_path):
    status, printed, page = run(
        tmp_path,
        ("code", "1 / 0", "raises-exception"),
        ("code", "x = = 1", "nbval-raises-exception"),
        ("code", "print('reached')"),
        ("code", "1 / 0"),
        ("code", "print('be' 'yond')"),
    )

    assert status == 1
    assert "      ZeroDivisionError: division by zero" in printed.splitlines()
    assert "SyntaxError" in printed
    assert "Stopped after" in printed
    assert "reached" in printed
    assert "beyond" not in printed
    assert page.count('<pre class="output error">') == 3
    assert "\x1b" not in printed + page


@pytest.mark.slow
def test_a_kernel_that_ends_is_told(tmp_path):
    status, printed, _ = run(tmp_path, ("code", "import os\nos._exit(3)"))

    assert status == 1
    assert "      The kernel ended while the cell ran." in printed.splitlines()


def test_outputs_stand_in_their_order_and_updates_change_the_one_they_name(tmp_path):
    _, printed, page = run(
        tmp_path,
        (
            "code",
            (
                "import sys\nprint('a'); sys.stdout.flush(); print('b')\n"
                "h = display('old', display_id=True)\nprint('c')\nh.update('new')\n42"
            ),
        ),
        ("code", "for i in range(99): print('line', i)"),
        (
            "code",
            (
                "display({'image/png': 'AAAA', 'text/plain': 'p'}, raw=True)\n"
                "display({'text/markdown': '**m**', 'text/plain': 'm'}, raw=True)\n"
                "display({}, raw=True)"
            ),
        ),
    )

    lines = printed.splitlines()
    assert lines[1:6] == ["      a", "      b", "      'new'", "      c", "      42"]
    assert '<pre class="output stream">a\nb\n</pre>' in page
    assert "      ... 87 lines more ..." in lines
    assert "line 50" not in printed
    assert "line 50" in page
    assert 'src="data:image/png;base64,AAAA"' in page
    assert "<strong>m</strong>" in page


def test_paths_in_a_notebook_are_relative_to_it(tmp_path, monkeypatch):
    (tmp_path / "data.txt").write_text("found")
    monkeypatch.chdir(Path.home())

    status, printed, _ = run(tmp_path, ("code", READ))

    assert status == 0
    assert "found" in printed
    assert Path.cwd() == Path.home()


def test_without_a_notebook_it_says_where_it_looked(tmp_path, capsys):
    status = tour.main(["--notebook", str(tmp_path / "none.ipynb")])

    assert status == 2
    assert "lazyviz tour: there is no notebook at " in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", ["not json", "[]", "{}", '{"worksheets": []}', '{"cells": [{}]}']
)
def test_what_is_no_notebook_is_said(tmp_path, capsys, content):
    path = tmp_path / "n.ipynb"
    path.write_text(content)

    assert tour.main(["--notebook", str(path)]) == 2
    assert "n.ipynb is not a Jupyter notebook" in capsys.readouterr().err


def test_without_its_packages_the_tour_says_how_to_get_them(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, tour.__name__)
    monkeypatch.setitem(sys.modules, "nbclient", None)

    assert run_command(command_line.main, ["tour"], "lazyviz") == 2
    assert "nbclient" in (said := capsys.readouterr().err)
    assert "pip install 'lazyviz[lab]'" in said


def test_empty_code_cells_are_left_out(tmp_path):
    path = write(
        tmp_path / "n.ipynb",
        ("markdown", "# One\ntext"),
        ("code", "   "),
        ("code", "2"),
        ("raw", "left out"),
    )

    assert [cell.source for cell in tour.read(path).cells] == ["# One\ntext", "2"]


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("# A *b*\n\nRuns `x + y`,\n[z](https://a.b/c).\n", '<h1>A <em>b</em></h1>\n<p>Runs <code>x + y</code>,\n<a href="https://a.b/c">z</a>.</p>\n'),
        ("<b> [x](javascript:f) ![y](https://a/b.png)", '<p>&lt;b&gt; [x](javascript:f) !<a href="https://a/b.png">y</a></p>\n'),
        ("[x](a.md#b) <mailto:a@b.c> &#8238;\x1b", '<p><a href="a.md#b">x</a> &lt;mailto:a@b.c&gt; \ufffd\ufffd</p>\n'),
        ("|a|\n|-|\n|`2`|", "<table>\n<thead>\n<tr>\n<th>a</th>\n</tr>\n</thead>\n<tbody>\n<tr>\n<td><code>2</code></td>\n</tr>\n</tbody>\n</table>\n"),
    ],
)  # fmt: skip
def test_markdown_is_html_that_runs_and_loads_nothing(source, shown):
    assert tour.markdown_html(source) == shown


def test_the_last_heading_is_without_marks():
    text = "# One\ntext\n## The `two` *of* us\n```\n# no heading\n```\n"

    assert tour.last_heading(text) == "The two of us"
    assert tour.last_heading("no heading") == ""


def test_the_command_line_runs_the_tour(tmp_path, monkeypatch, capsys):
    path = write(tmp_path / "n.ipynb", ("code", "print('ran')"))
    monkeypatch.chdir(tmp_path)

    assert command_line.main(["tour", "--notebook", str(path)]) == 0
    assert "ran" in capsys.readouterr().out
    assert (tmp_path / "tour.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not FIRST.is_file(), reason="needs the notebooks of a checkout")
def test_the_first_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "data"))
    write_kernel(tmp_path / "data")
    output = tmp_path / "tour.html"
    out = io.StringIO()

    status = tour.main(["--output", str(output)], out)

    assert status == 0, out.getvalue()
    assert "pending op" in out.getvalue()
    assert output.stat().st_size > 10_000
