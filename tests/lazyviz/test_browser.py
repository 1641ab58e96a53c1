"""Strips and the graph view in a real JupyterLab, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import find_browser
from tests.lazyviz.labs import (
    new_tab,
    open_notebook,
    run_cell,
    screenshot,
    start_cell,
    visiting,
    write_notebook,
)

EXPLORE = [
    "%load_ext lazyviz\nimport time, torch, lazyrt",
    "x = torch.ones(4, 3, device='lazyrt')\ny = torch.relu(x @ x.T).sum()\nprint(y)",
    "lazyrt.mark_step()\ny",
    "x = torch.arange(12.0).reshape(4, 3).to('lazyrt')\ny = torch.relu(x - 4).sum()",
    (
        "before = lazyrt.pending_graph().fingerprint, lazyrt.counters()['compiles']\n"
        "%lazy explore"
    ),
    (
        "print('as before:', before == (lazyrt.pending_graph().fingerprint,"
        " lazyrt.counters()['compiles']))"
    ),
    "for _ in range(40): time.sleep(0.5)",
]
FORMS = [
    "%load_ext lazyviz\nimport torch, lazyrt, lazyviz",
    (
        "x = torch.arange(4.0 * 300 * 200).reshape(4, 300, 200).to('lazyrt')\n"
        "lazyrt.mark_step()\n"
        "y = torch.relu(x * 2)\n"
        "bad = torch.log(y[0, 0, 0] - 1) + 1"
    ),
    "lazyviz.explore()",
]
DIFF = [
    "%load_ext lazyviz\nimport torch, lazyrt, lazyviz",
    (
        "from torch import nn\n"
        "net = nn.Linear(4, 4).to('lazyrt')\nx = torch.ones(2, 4, device='lazyrt')\n"
        "lazyrt.mark_step()\n"
        "def step(scale):\n"
        "    return torch.tanh(net(x) * scale)\n"
        "kept = [step(2)]\nlazyrt.mark_step()\n"
        "kept.append(torch.relu(step(2)))\nlazyrt.mark_step()"
    ),
    "%lazy diff last",
    "lazyviz.timeline()",
]
CAPTURED = [
    "%load_ext lazyviz\nimport time, torch, lazyrt\nx = torch.ones(4, device='lazyrt')",
    "with lazyrt.step('train'):\n    x = x * 1.5\n    time.sleep(0.05)\n    x = x + 1",
    "print('steps', lazyrt.counters()['executions'], 'compiles', lazyrt.counters()['compiles'])",
]
# Of a small cone whose kinds of op have run; a busy machine takes several times as long.
CLICK_MS = 1_000

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def visit(jupyter, tmp_path_factory):
    """Yield a browser's first tab."""
    with visiting(find_browser(), jupyter, tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture
def page(visit):
    """Yield a tab of a server with notebooks that nobody has run."""
    write_notebook(visit.folder / "forms.ipynb", FORMS)
    write_notebook(visit.folder / "diff.ipynb", DIFF)
    write_notebook(visit.folder / "captured.ipynb", CAPTURED)
    with new_tab(visit) as page:
        yield page


@pytest.fixture(scope="module")
def explored(visit):
    """Yield a tab with a notebook in which a strip and then a graph have been shown."""
    write_notebook(visit.folder / "explore.ipynb", EXPLORE)
    with new_tab(visit) as page:
        open_notebook(page, page.server, "explore.ipynb")
        for index in range(5):
            run_cell(page, index)
        yield page


def test_a_strip_unfolds_to_the_pending_graph(explored):
    cells = explored.locator(".jp-Notebook .jp-CodeCell")
    cell = cells.nth(1)
    strip = cell.locator("details").last
    strip.wait_for(timeout=30_000)

    assert "tensor(48., device='lazyrt:0')" in cell.inner_text()
    assert "5 pending ops (+5 here)" in strip.inner_text()
    graph = strip.locator("img[src^='data:image/svg+xml']").last
    assert not graph.is_visible()

    strip.locator("summary").click()

    graph.wait_for(state="visible", timeout=10_000)
    assert graph.evaluate("image => image.naturalWidth") > 100

    ended = cells.nth(2)
    ended.locator("details").last.wait_for(timeout=30_000)
    assert "live tensor" in ended.inner_text()
    assert "tensor(48., device='lazyrt:0')" in ended.inner_text()


def click_op(page, label):
    """Click an op, return the milliseconds until the panel has its value."""
    # The value of an op before would be taken for this one's.
    page.evaluate(
        "() => { document.querySelector('.lzg-panel').replaceChildren();"
        " window.lzStart = performance.now(); }"
    )
    page.locator(f".lzg-host g[aria-label*='{label}']").first.click()
    value = page.locator(".lzg-panel [data-value]").first
    offer = page.locator(".lzg-panel button", has_text="Compute this value")
    value.or_(offer).first.wait_for(timeout=30_000)
    if offer.count():  # a busy machine is expected to take long, so the reader is asked
        offer.click()
        value.wait_for(timeout=30_000)
    return page.evaluate("() => performance.now() - window.lzStart")


def test_a_click_shows_a_value_and_the_step_stays_as_it_was(explored):
    page = explored
    page.wait_for_selector(".lzg-host svg", timeout=30_000)
    drawn = page.locator(".jp-Notebook .jp-CodeCell").nth(4)
    assert not drawn.locator("details[class*=lzt-]").first.is_visible()

    click_op(page, "aten.relu.default")
    assert "aten.relu.default" in page.locator(".lzg-panel").inner_text()
    assert "0 to 7" in page.locator(".lzg-panel .lzf").inner_text()
    assert page.locator(".lzg-panel img.lzp[data-exact]").is_visible()

    # By keyboard: from the op to what reads it, then the search, then the help.
    page.locator(".lzg-host g[aria-label*='aten.sum']").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_function(
        "() => document.querySelector('.lzg-panel').innerText.includes('28.')",
        timeout=30_000,
    )
    page.keyboard.press("/")
    page.keyboard.type("relu")
    page.keyboard.press("Enter")
    page.wait_for_selector(".lzg-host .hit", timeout=10_000)
    assert page.locator(".lzg-panel li").count() == 1
    page.locator(".lzg-host").focus()
    page.keyboard.press("?")
    assert page.locator(".lzg-help").is_visible()
    page.keyboard.press("?")

    assert "as before: True" in run_cell(page, 5).inner_text()


def test_a_click_is_answered_while_another_cell_runs(explored):
    page = explored
    page.wait_for_selector(".lzg-host svg", timeout=30_000)
    page.wait_for_selector(".lzg[data-concurrent=true]", timeout=20_000)
    busy = start_cell(page, 6)
    page.wait_for_function(
        "() => document.body.innerText.includes('(ipykernel) | Busy')", timeout=10_000
    )

    click_op(page, "aten.relu.default")

    assert "[*]" in busy.locator(".jp-InputPrompt").inner_text()


def test_forms_colours_and_parts_are_chosen_in_the_view(page, record_property):
    open_notebook(page, page.server, "forms.ipynb")
    for index in (0, 1, 2):
        run_cell(page, index)
    page.wait_for_selector(".lzg-host svg", timeout=120_000)
    form, fold, colour, hops = page.locator(".lzg-choices select").all()
    panel = page.locator(".lzg-panel")

    # A part of a large tensor: another plane is asked for, and its corner comes.
    click_op(page, "aten.relu.default")
    again = click_op(page, "aten.mul.Tensor")
    record_property("click_ms", round(again))
    assert again < CLICK_MS, f"click to panel took {again:.0f} ms"
    plane = panel.locator("input[data-axis='0']")
    plane.fill("3")
    plane.press("Enter")
    page.wait_for_function(
        "() => document.querySelector('.lzg-panel pre:last-of-type')"
        " && document.querySelector('.lzg-panel').textContent.includes('360000')",
        timeout=120_000,
    )

    # NaN of what is computed; the other ancestors on request.
    colour.select_option("nan")
    page.wait_for_selector(".lzg-legend svg", timeout=60_000)
    click_op(page, "bad, aten.add")  # the panel before has such a button, too
    panel.locator("button[data-kind=check]").click()
    panel.get_by_text("begin at").wait_for(timeout=120_000)
    assert "log" in panel.locator("[role=alert]").inner_text()
    assert "1 NaN" in page.locator(".lzg-host").inner_text()

    # Folded by line, then what is near.
    colour.select_option("")
    fold.select_option("line")
    page.wait_for_selector(".lzg-host .g", timeout=60_000)
    assert "cell 2 line 3" in page.locator(".lzg-host").inner_text()
    fold.select_option("auto")
    page.wait_for_selector(".lzg-host .g", state="detached", timeout=60_000)
    hops.select_option("1")
    click_op(page, "aten.relu.default")
    panel.locator("button[data-kind=focus]").click()
    page.wait_for_selector(".lzg-crumbs b", timeout=60_000)
    assert "relu ±1" in page.locator(".lzg-crumbs").inner_text()

    # Optimised HLO: the cost first, and the choice stays what it was until it is paid.
    form.select_option("optimised")
    panel.get_by_text("XLA compiles a copy").wait_for(timeout=60_000)
    assert form.input_value() == "ir"
    panel.locator("button[data-go=true]").click()
    page.wait_for_function(
        "() => document.querySelector('.lzg-title').innerText.startsWith('optimised HLO')",
        timeout=120_000,
    )
    assert form.input_value() == "optimised"
    page.locator(".lzg-host g[aria-label*='fusion']").first.click()
    panel.locator("button[data-form=ir]").first.click()
    panel.locator("[data-value]").wait_for(timeout=120_000)
    assert form.input_value() == "ir"


def test_a_diff_answers_clicks_and_a_timeline_as_a_result_zooms(page):
    """Where the script of a static page is not run, as in an output."""
    open_notebook(page, page.server, "diff.ipynb")
    for index in range(len(DIFF)):
        run_cell(page, index)
    shown = page.locator(".jp-Notebook .jp-CodeCell").nth(2)
    shown.locator(".lzg-host svg").wait_for(timeout=60_000)
    assert not shown.locator("div[class*=lzt-diff]").first.is_visible()
    panel = shown.locator(".lzg-panel")
    assert "Where they differ" in panel.inner_text()

    for kind, first in ("svg", "<svg "), ("dot", "digraph"):
        with page.expect_download() as saved:
            shown.get_by_role("button", name=f"save this drawing as .{kind}").click()
        assert Path(saved.value.path()).read_text("utf-8").lstrip().startswith(first)
        assert saved.value.suggested_filename.endswith(f".{kind}")

    shown.locator(".lzg-host g[aria-label*='+ relu']").first.click()
    panel.get_by_text("aten.relu.default: only in the second").wait_for(timeout=30_000)
    told = panel.inner_text()
    assert "cell 2 line 9" in told
    panel.get_by_role("button", name="Follow the value").click()
    panel.get_by_text("The way of").wait_for(timeout=30_000)
    panel.locator(".lzg-way button").first.click()  # what it comes from, on both sides
    same = panel.get_by_text("aten.tanh.default: the same in both")
    same.wait_for(timeout=30_000)
    screenshot(shown, "lab-diff")

    timeline = page.locator(".jp-Notebook .jp-CodeCell").nth(3)
    timeline.locator(".lzt-view svg").wait_for(timeout=30_000)
    assert not timeline.locator(".lazyviz-timeline img").is_visible()


def test_a_strip_has_a_button_that_profiles_the_next_step(page):
    open_notebook(page, page.server, "captured.ipynb")
    run_cell(page, 0)
    cell = run_cell(page, 1)
    strip = cell.locator(".lazyviz-strip").last
    strip.locator("summary").first.click()
    button = cell.get_by_role("button", name="Profile the next step")
    button.click(timeout=30_000)
    assert button.count() == 0 or not button.is_enabled()

    # The step comes when a cell runs it; the strip stays, in another cell's place.
    page.locator(".jp-Notebook .jp-CodeCell").nth(2).locator(
        ".jp-InputArea-editor"
    ).click()
    page.keyboard.press("Control+a")
    page.keyboard.type(
        "for k in range(3):\nwith lazyrt.step('train'):\nx = x * 1.5; time.sleep(0.05); x = x + 1"
    )
    page.keyboard.press("Control+Enter")
    shown = cell.locator(".lzb-profile")
    shown.wait_for(timeout=60_000)

    assert "profile of" in shown.inner_text()
    assert "1 step" in shown.inner_text()
    assert "cell 3 line 3" in shown.inner_text()
    assert shown.locator("img").first.evaluate("picture => picture.naturalWidth") > 0
    screenshot(cell, "strip-capture")
