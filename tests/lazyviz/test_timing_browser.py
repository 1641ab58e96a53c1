"""A long wait, its end by a click, and the table of executables, in a real JupyterLab."""

from __future__ import annotations

import re
import time

import pytest

from tests.lazyviz.labs import (
    browsing,
    open_notebook,
    run_cell,
    serving,
    start_cell,
    write_notebook,
)

CELLS = [
    "%load_ext lazyviz\nimport time, torch, lazyrt\nfrom lazyrt import jax_compat",
    (
        "x = torch.arange(12.0).reshape(4, 3).to('lazyrt')\nlazyrt.mark_step()\n"
        "y = torch.relu(x - 4).sum()\n"
        "compile_text = jax_compat.compile_text\n"
        "def slow(*args, **options):\n"
        "    time.sleep(20)\n    return compile_text(*args, **options)\n"
        "jax_compat.compile_text = slow"
    ),
    "y.item()",
    "jax_compat.compile_text = compile_text\nz = torch.relu(x - 4).mean()\nz.item()",
    "print('still pending:', lazyrt.is_pending(y))",
    "%lazy cache",
    "for _ in range(24): time.sleep(0.5)",
    "%lazy timeline",
]

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def page(tmp_path, browser_path):
    write_notebook(tmp_path / "timing.ipynb", CELLS)
    with (
        serving(tmp_path) as address,
        browsing(browser_path, tmp_path) as (tab, foreign),
    ):
        open_notebook(tab, address, "timing.ipynb")
        yield tab
        assert not foreign


def test_waits_executables_and_the_timeline(page):
    """SD.05, S0.07, U.37: one notebook, so that one server is enough."""
    run_cell(page, 0)
    run_cell(page, 1)

    # A compile of half a minute says what it is, and the seconds go on.
    cell = start_cell(page, 2)
    page.wait_for_selector(".lzw-wait", timeout=60_000)
    wait = cell.locator(".lzw-wait")
    page.wait_for_function(
        "() => document.querySelector('.lzw-what').innerText.startsWith('compiling')",
        timeout=20_000,
    )
    assert re.fullmatch(r"compiling \d+ ops", wait.locator(".lzw-what").inner_text())
    assert "read by .item() at cell 3 line 1" in wait.inner_text()
    assert "expected: " in wait.inner_text()
    assert wait.locator("[aria-current=step]").inner_text() == "compile"
    first = wait.locator(".lzw-time").inner_text()
    page.wait_for_function(
        "told => document.querySelector('.lzw-time').innerText !== told",
        arg=first,
        timeout=10_000,
    )

    # Cancel returns long before the compile is done, and what was pending still is.
    asked = time.monotonic()
    wait.locator(".lzw-stop").click()
    page.wait_for_function(
        "() => document.body.innerText.includes('KeyboardInterrupt')", timeout=20_000
    )
    assert time.monotonic() - asked < 10
    page.wait_for_selector(".lzw-wait", state="detached", timeout=10_000)
    cell.get_by_text("interrupted").first.wait_for(timeout=20_000)
    page.wait_for_timeout(2_000)  # after an error a kernel refuses cells for a moment
    assert "still pending: True" in run_cell(page, 4).inner_text()
    # The barrier joins the compile that went on; another one is as it was.
    assert "2.333" in run_cell(page, 3).inner_text()

    # The table sorts by a click, and evicts after a second one, also while a cell runs.
    run_cell(page, 5)
    page.wait_for_selector(".lzx-cache tbody tr", timeout=30_000)
    assert not page.locator(".lzx-twin").first.is_visible()
    page.locator(".lzx-cache th button", has_text="ops").click()
    assert page.locator(".lzx-cache th[aria-sort=descending]").inner_text() == "ops"
    ops = [
        int(n)
        for n in page.locator(".lzx-cache tbody td:nth-child(3)").all_inner_texts()
    ]
    assert ops == sorted(ops, reverse=True)
    page.wait_for_selector(".lzx-cache[data-concurrent=true]", timeout=20_000)
    busy = start_cell(page, 6)
    rows = page.locator(".lzx-cache tbody tr").count()
    evict = page.locator(".lzx-cache button[data-key]").first
    evict.click()
    assert evict.inner_text() == "really?"
    evict.press("Enter")
    page.wait_for_function(
        "count => document.querySelectorAll('.lzx-cache tbody tr').length < count",
        arg=rows,
        timeout=20_000,
    )
    assert "Dropped 1 executable" in page.locator(".lzx-note").inner_text()
    assert "[*]" in busy.locator(".jp-InputPrompt").inner_text()

    # The timeline is a picture that needs no kernel.
    shown = run_cell(page, 7)
    picture = shown.locator(".lazyviz-timeline img")
    picture.wait_for(state="visible", timeout=20_000)
    assert picture.evaluate("image => image.naturalWidth") > 600
    assert "device idle" in shown.inner_text()
