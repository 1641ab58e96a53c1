"""A tensor's display and the table of live tensors in a real JupyterLab, in a real browser."""

from __future__ import annotations

import pytest

from tests.lazyviz.labs import (
    open_notebook,
    run_cell,
    screenshot,
    set_theme,
    start_cell,
    visiting,
    write_notebook,
)

EVIL = "<img src=x onerror=document.title=1>"
CELLS = [
    "%load_ext lazyviz\nimport time, torch, lazyrt",
    (
        "torch.manual_seed(0)\nweight = torch.randn(120, 80).to('lazyrt')\n"
        "image = (weight * 2).sin()\nimage[3, 4] = float('nan')\nimage"
    ),
    (
        "history = []\nfor _ in range(4):\n    loss = weight.square().mean()\n"
        f"    history.append(loss)\n    lazyrt.mark_step()\nlog = {{{EVIL!r}: weight + 1}}"
    ),
    "%lazy live",
    "print(len(lazyrt.live_tensors()), 'large' in globals())",
    "for _ in range(60): time.sleep(0.5)",
    (
        "lazyrt.mark_step()\nrows = torch.arange(4.0).to('lazyrt')\nlazyrt.mark_step()\n"
        "a, b, c, d = (rows[k] * 2 for k in range(4))\n"
        "print(a), print(b), print(c), print(d)"
    ),
]
BATCHED = "a, b, c, d = lazyrt.materialise(a, b, c, d)"

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def page(jupyter, tmp_path_factory):
    from tests.conftest import find_browser

    folder, address = jupyter
    write_notebook(folder / "tensors.ipynb", CELLS)
    with visiting(find_browser(), jupyter, tmp_path_factory.mktemp("tensors")) as tab:
        open_notebook(tab, address, "tensors.ipynb")
        for index in (0, 1, 2, 3):
            run_cell(tab, index)
        tab.wait_for_selector(".lzl-table tbody tr", timeout=30_000)
        yield tab


def cells_of(page, column):
    """Return the texts of one column of the table, from the top."""
    heads = [
        text.split()[0] for text in page.locator(".lzl-table th").all_inner_texts()
    ]
    rows = page.locator(".lzl-table tbody tr")
    return [
        rows.nth(k).locator("td").nth(heads.index(column)).inner_text()
        for k in range(rows.count())
    ]


def sorted_by(page, column, direction):
    page.wait_for_selector(
        f".lzl-table th[aria-sort={direction}] button[data-column='{column}']",
        timeout=10_000,
    )


def test_a_tensor_shows_statistics_first_and_folds_its_values(page):
    output = page.locator(".jp-Notebook .jp-CodeCell").nth(1).locator(".lazyviz-tensor")
    fold = output.locator("details").first

    assert "float32[120, 80]" in fold.inner_text()
    assert "1 NaN" in fold.inner_text()
    values = fold.locator("pre")
    assert not values.is_visible()
    fold.locator("summary").click()
    values.wait_for(state="visible", timeout=5_000)
    assert "tensor([[" in values.inner_text()
    picture = output.locator("details").nth(1)
    picture.locator("summary").click()
    assert picture.locator("img").first.evaluate("image => image.naturalWidth") > 40
    heat = picture.locator("img[data-numbers]").first
    heat.hover(position={"x": 1, "y": 1})
    page.wait_for_function(
        "() => /^about here: .0, 0. -?[0-9.]+/.test("
        "document.querySelector('img[data-numbers]').title)"
    )
    plan = output.locator("details").nth(2)
    plan.locator("summary").click()
    assert "aten.sin.default" in plan.locator("pre").inner_text()
    screenshot(page, "tensor-light")


def test_the_table_sorts_by_click_and_by_keyboard(page):
    assert not page.locator(".lzl-twin").first.is_visible()
    sorted_by(page, "size", "descending")
    page.locator(".lzl-table button[data-column=name]").click()
    sorted_by(page, "name", "ascending")
    names = [name for name in cells_of(page, "name") if name]
    assert names == sorted(names)

    page.locator(".lzl-table button[data-column=id]").focus()
    page.keyboard.press("Enter")
    sorted_by(page, "id", "descending")
    assert page.evaluate("() => document.activeElement.dataset.column") == "id"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("() => document.activeElement.dataset.column") == "name"
    page.keyboard.press("Space")
    sorted_by(page, "name", "ascending")


def test_each_column_sorts_by_click_and_turns_round_by_keyboard(page):
    heads = page.locator(".lzl-table th button[data-column]")
    columns = [heads.nth(k).get_attribute("data-column") for k in range(heads.count())]
    assert len(columns) == 8
    for column in columns:
        first, second = (
            ("descending", "ascending")
            if column in {"id", "size", "ops", "age"}
            else ("ascending", "descending")
        )
        page.locator(f".lzl-table button[data-column='{column}']").click()
        sorted_by(page, column, first)
        page.locator(f".lzl-table button[data-column='{column}']").focus()
        page.keyboard.press("Enter")
        sorted_by(page, column, second)
    numbers = [int(text) for text in cells_of(page, "id")]
    assert len(set(numbers)) == len(numbers) > 5
    page.locator(".lzl-table button[data-column=id]").click()
    sorted_by(page, "id", "descending")
    assert [int(text) for text in cells_of(page, "id")] == sorted(numbers)[::-1]


def test_the_lines_that_read_in_one_execution_unfold(page):
    cell = run_cell(page, 6)
    cell.locator(".lazyviz-strip summary").first.click()
    cell.get_by_text("4 reads = 4 executions: batch them").click()
    lines = cell.locator(".lazyviz-strip pre", has_text=BATCHED)
    lines.wait_for(state="visible", timeout=20_000)
    screenshot(cell, "batched-reads")

    assert lines.inner_text().startswith(BATCHED)


def test_growth_and_names_are_text(page):
    notes = page.locator(".lzl-notes").first.inner_text()

    assert "+1 live tensor per step, held by list history (cell 3 line 4)" in notes
    assert page.locator(".lzl-table tr.lzl-grows").count() == 4
    assert page.locator(".lzl img").count() == 0
    assert page.title() != "1"
    assert EVIL[:12] in page.locator(".lzl-table").inner_text()
    page.locator(".lzl").scroll_into_view_if_needed()
    screenshot(page, "live-light")
    set_theme(page, "Dark")
    screenshot(page, "live-dark")
    set_theme(page, "Light")


def test_no_column_lies_under_the_buttons(page):
    """Beside a file browser, too, all that a row says can be read."""
    hidden = page.evaluate(
        "() => [...document.querySelectorAll('.lzl-table tbody tr')].map(row => {"
        " const cells = [...row.cells].map(cell => cell.getBoundingClientRect());"
        " return cells.at(-2).right - cells.at(-1).left; })"
    )
    assert hidden
    assert max(hidden) <= 1, hidden


def test_a_button_frees_a_result_and_a_variable_after_a_question(page):
    before = page.locator(".lzl-table tbody tr").count()
    page.locator(".lzl-drop[data-name='Out[2]']").first.click()
    page.wait_for_function(
        "() => document.querySelector('.lzl-note').innerText.includes('freed')",
        timeout=10_000,
    )
    assert page.locator(".lzl-table tbody tr").count() == before - 1

    page.locator(".lzl-drop[data-name=history]").first.click()
    sure = page.locator(".lzl-note button[data-confirmed]")
    sure.wait_for(timeout=10_000)
    assert "Delete your variable history?" in page.locator(".lzl-note").inner_text()
    page.keyboard.press("Enter")  # the question has the focus
    page.wait_for_function(
        "() => document.querySelector('.lzl-note').innerText.includes('Dropped history')",
        timeout=10_000,
    )
    assert page.locator(".lzl-table tbody tr").count() < before - 1
    assert "+1 live tensor" not in page.locator(".lzl").inner_text()


def test_the_table_is_answered_while_a_cell_runs(page):
    page.wait_for_selector(".lzl[data-concurrent=true]", timeout=20_000)
    busy = start_cell(page, 5)
    page.wait_for_function(
        "() => document.body.innerText.includes('(ipykernel) | Busy')", timeout=10_000
    )

    page.locator(".lzl-table button[data-column=age]").click()
    sorted_by(page, "age", "descending")
    page.locator(".lzl-drop[data-name=weight]").first.click()

    page.wait_for_function(
        "() => document.querySelector('.lzl-note').innerText.includes('is running and may use')",
        timeout=10_000,
    )
    assert "[*]" in busy.locator(".jp-InputPrompt").inner_text()
