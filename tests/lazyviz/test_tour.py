import io
import re
from pathlib import Path

import pytest

from lazyviz import __main__ as command_line
from lazyviz.documents import tour
from tests.lazyviz.test_notebook import write

READ = "from pathlib import Path\nprint(Path('data.txt').read_text())"
FIRST = Path(tour.__file__).parent.parent / "notebooks" / "01_first_look.ipynb"


def run(tmp_path, *cells):
    """Return the exit status, what was printed, and the page."""
    path = write(tmp_path / "n.ipynb", *cells)
    output = tmp_path / "page.html"
    out = io.StringIO()
    status = tour.main(["--notebook", str(path), "--output", str(output)], out)
    return status, out.getvalue(), output.read_text("utf-8")


def test_a_tour_prints_progress_and_writes_one_page(tmp_path, clean_runtime):
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
        tmp_path, ("code", "1 / 0"), ("code", "print('not reached')")
    )

    assert status == 1
    assert "ZeroDivisionError: division by zero" in printed
    assert "Stopped after" in printed
    assert "not reached" not in printed
    assert "ZeroDivisionError" in page


def test_a_cell_that_is_meant_to_fail_does_not_end_it(tmp_path):
    status, printed, _ = run(
        tmp_path, ("code", "1 / 0", "raises-exception"), ("code", "print('reached')")
    )

    assert status == 0
    assert "reached" in printed


def test_long_outputs_are_shortened_in_the_terminal_only(tmp_path):
    _, printed, page = run(tmp_path, ("code", "for i in range(99): print('line', i)"))

    assert "      ... 87 lines more ..." in printed.splitlines()
    assert "line 50" not in printed
    assert "line 50" in page


def test_pictures_and_markdown_are_embedded(tmp_path):
    _, _, page = run(
        tmp_path,
        (
            "code",
            (
                "display({'image/png': 'AAAA', 'text/plain': 'p'}, raw=True)\n"
                "display({'text/markdown': '**m**', 'text/plain': 'm'}, raw=True)\n"
                "display({}, raw=True)"
            ),
        ),
    )

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


def test_what_is_no_notebook_is_said(tmp_path, capsys):
    path = tmp_path / "n.ipynb"
    path.write_text("{}")

    assert tour.main(["--notebook", str(path)]) == 2
    assert "is not a Jupyter notebook" in capsys.readouterr().err


def test_the_command_line_runs_the_tour(tmp_path, monkeypatch, capsys):
    path = write(tmp_path / "n.ipynb", ("code", "print('ran')"))
    monkeypatch.chdir(tmp_path)

    assert command_line.main(["tour", "--notebook", str(path)]) == 0
    assert "ran" in capsys.readouterr().out
    assert (tmp_path / "tour.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not FIRST.is_file(), reason="needs the notebooks of a checkout")
def test_the_first_notebook_runs_from_top_to_bottom(tmp_path, clean_runtime):
    pytest.importorskip("sklearn")
    output = tmp_path / "tour.html"
    out = io.StringIO()

    status = tour.main(["--output", str(output)], out)

    assert status == 0, out.getvalue()
    assert "pending op" in out.getvalue()
    assert output.stat().st_size > 10_000
