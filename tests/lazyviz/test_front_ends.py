"""The same visits to JupyterLab and Notebook 7: one browser, no network.

Each test leaves the notebook as it found it: the cells have run and the graph is drawn.
"""

import contextlib
import re

import nbformat
import pytest

from tests.lazyviz.labs import (
    LAB,
    NOTEBOOK,
    command,
    open_notebook,
    run_cell,
    screenshot,
    set_theme,
    start_cell,
    visiting,
    wait_until_idle,
    write_notebook,
)

CELLS = [
    "%load_ext lazyviz\nimport time, torch, lazyrt",
    (
        "x = torch.arange(12.0).reshape(4, 3).to('lazyrt')\n"
        "y = torch.relu(x - SHIFT).sum()\ny"
    ),
    "%lazy explore",
    "(float(lazyrt.materialise(y)), lazyrt.counters()['compiles'])",
    "z = x + 100\nfor _ in range(200): time.sleep(0.1)",
]
PREPARED = (0, 1, 2)

pytestmark = [pytest.mark.browser, pytest.mark.slow]
in_lab = pytest.mark.parametrize("front", [LAB], ids=["lab"], indirect=True)


@pytest.fixture(scope="module")
def visit(jupyter, tmp_path_factory):
    """Yield a tab of a server with a notebook for each front end, and a second one for JupyterLab."""
    from tests.conftest import find_browser

    folder, _ = jupyter
    for front in (LAB, NOTEBOOK):
        one = [cell.replace("SHIFT", "4") for cell in CELLS]
        write_notebook(folder / f"{front.name}-one.ipynb", one)
    two = [cell.replace("SHIFT", "9") for cell in CELLS[:3]]
    write_notebook(folder / "lab-two.ipynb", two)
    with visiting(find_browser(), jupyter, tmp_path_factory.mktemp("fronts")) as tab:
        yield tab


@pytest.fixture(scope="module", params=[LAB, NOTEBOOK], ids=lambda front: front.name)
def front(request):
    return request.param


@pytest.fixture(scope="module")
def page(visit, front):
    """Yield the tab with a notebook in which the graph is drawn and answers at any time."""
    open_notebook(visit, visit.server, f"{front.name}-one.ipynb", front)
    prepare(visit)
    return visit


def prepare(page):
    for index in PREPARED:
        run_cell(page, index)
    wait_for_the_graph(page)


def wait_for_the_graph(page):
    page.wait_for_selector(".lzg-host svg", timeout=60_000)
    page.wait_for_selector(".lzg[data-concurrent=true]", timeout=60_000)


def click(page, op):
    """Click an op and wait until the panel has its value."""
    page.locator(f".lzg-host g[aria-label*='{op}']").first.click()
    page.locator(".lzg-panel", has_text=op).locator("[data-value]").first.wait_for(
        timeout=60_000
    )


def value_of(page, op):
    """Click an op and return the number that its panel shows."""
    click(page, op)
    text = page.locator(".lzg-panel [data-value]").first.inner_text()
    return float(re.findall(r"tensor\(([\d.]+)", text)[0])


def kernels_answer(page):
    """Return the value and the number of compiles, as the kernel tells them."""
    output = run_cell(page, 3).locator(".jp-OutputArea-executeResult").inner_text()
    return tuple(float(each) for each in re.findall(r"[\d.]+", output)[-2:])


def test_a_strip_and_a_value_are_shown_and_unfold(page, front):
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(1)
    assert "tensor(28., device='lazyrt:0')" in cell.inner_text()
    strip = cell.locator(".lazyviz-strip details")
    picture = strip.locator("img[src^='data:image/svg+xml']").last
    assert not picture.is_visible()

    strip.locator("summary").first.click()

    picture.wait_for(state="visible", timeout=10_000)
    assert picture.evaluate("image => image.naturalWidth") > 50
    screenshot(page, f"{front.name}-strip")
    strip.locator("summary").first.click()


def test_a_click_shows_the_value_that_the_kernel_has(page, front):
    before = kernels_answer(page)

    shown = value_of(page, "aten.sum")

    assert shown == before[0] == 28.0
    assert kernels_answer(page) == before
    screenshot(page.locator(".lzg"), f"{front.name}-panel")


def test_everything_can_be_reached_by_keyboard(page):
    # From the cell's editor to the graph below it, without the mouse.
    page.locator(".jp-Notebook .jp-CodeCell").nth(2).locator(".cm-content").focus()
    page.keyboard.press("Escape")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate(
            "() => !!document.activeElement.closest('.lzg-host [data-b]')"
        ):
            break
    focused = page.locator(".lzg-host [data-b]:focus")
    assert focused.count() == 1
    ring = focused.locator("rect").last.evaluate(
        "rect => parseFloat(getComputedStyle(rect).strokeWidth)"
    )
    assert ring > 2

    page.keyboard.press("Enter")
    page.wait_for_function(
        "() => document.querySelector('.lzg-panel h4') !== null", timeout=30_000
    )
    page.locator(".lzg-host g[aria-label*='aten.relu']").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_function(
        "() => document.querySelector('.lzg-panel').innerText.includes('aten.relu')"
        " && document.querySelector('.lzg-panel [data-value]')",
        timeout=30_000,
    )
    page.keyboard.press("?")
    assert page.locator(".lzg-help").is_visible()
    page.keyboard.press("?")
    cells = page.locator(".jp-Notebook .jp-CodeCell").count()
    for key in "romybx":  # each is a key of the notebook, too
        page.keyboard.press(key)
    assert page.locator(".jp-Notebook .jp-CodeCell").count() == cells
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells
    assert page.locator(".lzg-host").is_visible()


def test_a_click_is_answered_while_a_cell_runs_and_an_interrupt_is_told(page, front):
    busy = start_cell(page, 4)
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status"
        " === 'busy'",
        timeout=30_000,
    )

    assert value_of(page, "aten.sum") == 28.0
    assert "[*]" in busy.locator(".jp-InputPrompt").inner_text()

    command(page, "notebook:interrupt-kernel")
    page.wait_for_function(
        "() => document.body.innerText.includes('KeyboardInterrupt')", timeout=30_000
    )
    wait_until_idle(page)
    strip = busy.locator(".lazyviz-strip")
    strip.wait_for(timeout=30_000)
    assert "interrupted" in strip.inner_text()
    assert value_of(page, "aten.sum") == 28.0
    screenshot(page, f"{front.name}-interrupted")


@in_lab
def test_a_reloaded_page_has_the_strips_and_the_graph_answers_again(page, front):
    command(page, "docmanager:save")
    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=120_000)
    wait_until_idle(page)
    page.locator(".lazyviz-strip").first.wait_for(timeout=30_000)

    if page.locator(".lzg-host svg").count() == 0:
        wait_for_the_graph(page)

    assert value_of(page, "aten.sum") == 28.0
    screenshot(page, f"{front.name}-reloaded")


@in_lab
def test_a_saved_notebook_from_somebody_else_shows_everything(page, front):
    command(page, "docmanager:save")
    page.wait_for_timeout(500)
    saved = nbformat.read(page.folder / f"{front.name}-one.ipynb", 4)
    saved.cells.append(nbformat.v4.new_markdown_cell("So its signature does not fit."))
    nbformat.write(saved, page.folder / f"{front.name}-theirs.ipynb")
    other = page.context.new_page()
    try:
        other.goto(f"{page.server}{front.path}{front.name}-theirs.ipynb")
        other.locator(".lazyviz-strip").first.wait_for(timeout=120_000)
        static = other.locator("details", has_text="static copy").first
        static.wait_for(timeout=30_000)
        static.locator("summary").first.click()
        picture = static.locator("img").first
        picture.wait_for(state="visible", timeout=10_000)

        assert picture.evaluate("image => image.naturalWidth") > 50
        text = other.locator(".jp-Notebook").inner_text()
        assert "pending ops" in text
        assert "model not found" not in text.lower()
        assert "tensor(28., device='lazyrt:0')" in text
        screenshot(other, f"{front.name}-untrusted")
    finally:
        other.close()


@pytest.mark.parametrize("theme", ["Dark", "Light"])
def test_every_text_of_the_graph_can_be_read(page, front, theme):
    set_theme(page, theme)
    click(page, "aten.relu")

    screenshot(page.locator(".lzg"), f"{front.name}-{theme.lower()}")
    try:
        assert page.evaluate(CONTRASTS) == []
    finally:
        set_theme(page, "Light")


# Texts of the graph view whose contrast to what lies behind them is below 4.5 to 1.
CONTRASTS = """() => {
  const parse = text => {
    const canvas = document.createElement('canvas'); canvas.width = canvas.height = 1;
    const pen = canvas.getContext('2d'); pen.fillStyle = text; pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
  };
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3]));
  const light = colour => {
    const [r, g, b] = colour.map(c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    const chain = []; for (let e = element; e; e = e.parentElement) chain.unshift(e);
    let colour = [255, 255, 255];
    for (const each of chain) colour = over(parse(getComputedStyle(each).backgroundColor), colour);
    return colour;
  };
  const found = [];
  const judge = (element, ink, ground, words) => {
    let opacity = 1;
    for (let e = element; e && !e.classList.contains('lzg'); e = e.parentElement)
      opacity *= parseFloat(getComputedStyle(e).opacity);
    const colour = parse(ink); colour[3] *= opacity;
    const [a, b] = [light(over(colour, ground)), light(ground)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push(`${words.slice(0, 30)}: ${ratio.toFixed(2)}`);
  };
  for (const element of document.querySelectorAll('.lzg *')) {
    const words = [...element.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join('');
    if (!words || !element.getClientRects().length || element.closest('title, style')) continue;
    const style = getComputedStyle(element);
    if (element.namespaceURI.endsWith('svg')) {
      const box = element.closest('g'), rect = box && [...box.querySelectorAll(':scope > rect')].pop();
      const ground = rect ? over(parse(getComputedStyle(rect).fill), behind(element)) : behind(element);
      judge(element, style.fill, ground, words);
    } else judge(element, style.color, behind(element), words);
  }
  return found;
}"""


@contextlib.contextmanager
def beside(page, name):
    """Yield a second notebook, with a kernel of its own, next to the first."""
    command(page, "docmanager:open", path=name, options={"mode": "split-right"})
    other = page.locator(".jp-NotebookPanel").nth(1)
    wait_until_idle(page)
    command(page, "notebook:run-all-cells")
    other.locator(".lzg-host svg").wait_for(timeout=60_000)
    try:
        yield other
        screenshot(page, "lab-side-by-side")
    finally:
        command(page, "docmanager:open", path=name)  # it has the focus again
        command(page, "docmanager:save")
        command(page, "application:close")


@in_lab
def test_two_notebooks_side_by_side_keep_to_themselves(page, front):
    first = page.locator(".jp-NotebookPanel").nth(0)
    with beside(page, "lab-two.ipynb") as second:
        assert value_of(second, "aten.sum") == 3.0
        assert value_of(first, "aten.sum") == 28.0
        assert "28." not in second.locator(".lzg-panel").inner_text()
        drawn = second.locator(".lzg-host").bounding_box()
        assert drawn["width"] > 250  # half a window is enough for graph and panel


def test_after_a_restart_the_notebook_runs_anew(page, front):
    page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()"
    )
    wait_until_idle(page)
    # The strip stays; a click into the old graph harms nothing and is told what to do.
    assert page.locator(".lazyviz-strip").count() > 0
    page.locator(".lzg-host [data-b]").first.click()
    page.get_by_text("if it was restarted, run the cell again").wait_for(timeout=20_000)
    prepare(page)

    assert value_of(page, "aten.sum") == 28.0
    assert kernels_answer(page)[0] == 28.0
    screenshot(page, f"{front.name}-restarted")
