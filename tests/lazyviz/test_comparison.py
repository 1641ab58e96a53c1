"""`lazyviz.diff` and `python -m lazyviz diff`."""

import json

import pytest
import torch

import lazyrt
import lazyviz
from lazyviz.__main__ import main
from lazyviz.hlo import HloError
from tests.lazyviz.test_render_diff import AFTER, BEFORE


@pytest.fixture
def files(tmp_path):
    paths = tmp_path / "a.hlo", tmp_path / "b.hlo"
    for path, text in zip(paths, (BEFORE, AFTER), strict=True):
        path.write_text(text, "utf-8")
    return [str(path) for path in paths]


def test_texts_paths_and_graphs_can_be_compared(files):
    from_texts = lazyviz.diff(BEFORE, AFTER)
    from_files = lazyviz.diff(*files)
    mixed = lazyviz.diff(from_texts.diff.a, AFTER)

    assert from_texts.diff.cost == from_files.diff.cost == mixed.diff.cost == 3
    assert str(from_texts) == str(from_files) == str(mixed)


@pytest.mark.parametrize(
    ("thing", "message"),
    [([], "type list holds no graph"), ("", "the text is empty")],
)
def test_what_holds_no_graph_is_refused(thing, message):
    with pytest.raises(HloError, match=message):
        lazyviz.diff(thing, BEFORE)


def test_what_is_pending_under_two_tensors_can_be_compared():
    x = torch.ones(3).to("lazyrt")
    one, two = x * 2, x * 2 + 1
    before = lazyrt.pending_graph().fingerprint

    found = lazyviz.diff(one, two).diff

    assert [found.b.ops[node] for node in found.added] == ["aten.add.Tensor"]
    assert not found.removed
    assert lazyrt.pending_graph().fingerprint == before


def test_the_command_prints_text_and_tells_a_difference_by_its_status(files, capsys):
    assert main(["diff", *files]) == 1
    assert capsys.readouterr().out.startswith("before → after\n3 → 4 instructions")
    assert main(["diff", files[0], files[0]]) == 0


def test_the_command_writes_a_page(files, tmp_path, capsys):
    page = tmp_path / "page.html"

    assert main(["diff", *files, "--html", str(page)]) == 1
    assert "negate" in page.read_text("utf-8")
    assert str(page) in capsys.readouterr().out


def test_the_command_prints_json(files, capsys):
    main(["diff", *files, "--json"])
    data = json.loads(capsys.readouterr().out)

    assert data["cost"] == 3
    assert data["added"] == ["%n"]
    assert data["changed"] == [["%f", "%f"]]
    assert data["rewired"] == [["%e", "%e", 0]]
    assert data["hunks"][0]["site"] == "m.py:3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: the text is empty"),
        (BEFORE[:300], "ends within the computation"),
        (BEFORE + AFTER, "has 2 modules: before, after. Choose one"),
    ],
)
def test_the_command_names_file_and_place_of_an_error(
    files, text, message, tmp_path, capsys
):
    broken = tmp_path / "broken.hlo"
    broken.write_text(text, "utf-8")

    assert main(["diff", files[0], str(broken)]) == 2
    error = capsys.readouterr().err
    assert str(broken) in error
    assert message in error


def test_a_module_of_several_can_be_named(files, tmp_path, capsys):
    both = tmp_path / "both.hlo"
    both.write_text(BEFORE + AFTER, "utf-8")

    assert main(["diff", files[0], str(both), "--module-b", "before"]) == 0
    assert main(["diff", files[0], str(both), "--module-b", "1"]) == 1
    capsys.readouterr()
