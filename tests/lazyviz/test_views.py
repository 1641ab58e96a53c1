"""A view is one decorated function: everything else follows from the registry."""

import pytest

from lazyviz import views
from lazyviz.doc import (
    Advice,
    Code,
    Doc,
    Facts,
    Fold,
    Heading,
    Line,
    Note,
    Points,
    Table,
)
from lazyviz.shell import magics
from tests.runtime.test_architecture_example import example


@pytest.fixture
def registry():
    """Yield the registered views; what a test adds is taken out again."""
    before = dict(views.VIEWS)
    yield views.VIEWS
    views.VIEWS.clear()
    views.VIEWS.update(before)


def test_the_ten_lines_of_architecture_add_a_view(lab, registry, tmp_path):
    code = example("@views.view")

    exec(code, {})  # noqa: S102 - our own document

    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    assert magics.completions("%lazy ty", {}) == ["types"]
    assert "live tensors by type" in views.help_page("types").to_text()
    lab.run_cell("%lazy types")
    shown = lab.display_pub.outputs[0]["data"]
    assert shown["text/plain"].splitlines()[-1].split() == ["torch.float32", "24"]
    assert "<td" in shown["text/html"]
    lab.run_line_magic("lazy", f"report {tmp_path}/report.html")
    assert "<h2>Types</h2>" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize("name", list(views.VIEWS))
def test_each_view_is_offered_and_has_help(name):
    assert name in (magics.completions("%lazy ", {}) or ())
    assert name in (magics.completions("%lazy help ", {}) or ())
    assert f"%lazy {name}" in views.help_page(name).to_text()
    assert f"%lazy {name}" in (magics.LazyMagics.lazy.__doc__ or "")


PARTS = [
    Heading("a < b"),
    Line("a < `b`"),
    Note("a < b"),
    Points(["a < b: c"]),
    Advice("fix", "a < b"),
    Code("a < b"),
    Table(["a < b"], [["a < b"]]),
    Facts(("name", "words"), [("a < b", "c")]),
    Fold("a < b", [Note("c")]),
    Doc([Note("a < b")], css_class="x"),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_each_part_escapes_its_words_in_html_and_keeps_them_elsewhere(part):
    doc = Doc([part])

    assert "a &lt; " in doc.to_html()
    assert "a < " not in doc.to_html()
    assert ("a < " in doc.to_text()) is not isinstance(part, Fold)


def test_columns_without_a_word_are_left_out():
    table = Table(["a", "b", "c"], [[1, "", None], [2, "x", ""]]).filled()

    assert table == Table(["a", "b"], [[1, ""], [2, "x"]])
