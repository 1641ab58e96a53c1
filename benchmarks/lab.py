"""`python -m benchmarks lab`: a large graph and a click in JupyterLab, as its reader waits for them."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import machine
from benchmarks.pool import BenchmarkError
from benchmarks.report import Cell, Report, Table, ratio_goal

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

SUMMARY = "from a key or a click to what the page shows, in JupyterLab in Chromium"

_OPEN_MS = 1_000.0
_CLICK_MS = 150.0
_UNFOLD_MS = 200.0
_CLICKS = 8  # as many ops as are in view
_CELLS = [
    "%load_ext lazyviz\nimport torch, lazyrt\nlazyrt.config.cache_dir = None",
    "%lazy explore 1 + torch.ones(2, device='lazyrt')",  # loads what loads once
    ("import time\nfrom benchmarks.explore import large_model\nout = large_model()"),
    "start = time.process_time()\n%lazy explore out",
    (
        "print('CPU', time.process_time() - start)\ndel out\nlazyrt.mark_step()\nx = torch.rand(64, 64, device='lazyrt')\nlazyrt.mark_step()\n"
        "y = x\nfor _ in range(8): y = torch.relu(y * 2 - x)"
    ),
    "%lazy explore y",
]
_LARGE, _TOLD, _SMALL = 3, 4, 5
# The page's own clock: from the event to the frame in which the answer is painted.
_WATCH = """
() => {
  const painted = (done) => requestAnimationFrame(() => setTimeout(done));
  let shown = 0;
  const look = () => {
    const drawings = document.querySelectorAll(".lzg-host svg").length;
    const panel = [...document.querySelectorAll(".lzg-panel")].pop();
    if (drawings > shown) { shown = drawings; painted(() => { window.lzOpened = performance.now() - window.lzStart; }); }
    if (window.lzTook === null && panel?.querySelector("[data-value]"))
      { window.lzTook = 0; painted(() => { window.lzTook = performance.now() - window.lzStart; }); }
  };
  new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
  document.addEventListener("keydown", (e) => { if (e.key === "Enter") window.lzStart = e.timeStamp; }, true);
  document.addEventListener("click", (e) => {
    if (!e.target.closest(".lzg-host [data-b]")) return;
    [...document.querySelectorAll(".lzg-panel")].pop().replaceChildren();
    window.lzStart = e.timeStamp; window.lzTook = null;
  }, true);
}
"""
# From the second click to the frame in which the drawing with the opened box is painted.
_TIME_UNFOLDING = """
() => {
  const host = [...document.querySelectorAll(".lzg-host")].pop();
  window.lzUnfolded = 0;
  let start = 0;
  host.addEventListener("dblclick", (e) => { start = e.timeStamp; }, { capture: true, once: true });
  const seen = new MutationObserver(() => {
    if (!start) return;
    seen.disconnect();
    requestAnimationFrame(() => setTimeout(() => { window.lzUnfolded = performance.now() - start; }));
  });
  seen.observe(host, { childList: true });
}
"""


def add_arguments(_parser: ArgumentParser) -> None:
    """It has no options."""


def run(_options: Namespace) -> Report:
    """Open a graph of 10,000 nodes, and click ops of small cones."""
    try:
        from tests.conftest import find_browser
        from tests.lazyviz import labs
    except ImportError as error:
        raise BenchmarkError(f"{error}. Install the extra `dev`.") from error
    front: Any = labs  # untyped, as tests are
    browser = find_browser()
    if browser is None:
        raise BenchmarkError("there is no Chromium. Install it, or set its path.")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        front.write_notebook(folder / "lab.ipynb", _CELLS)
        with (
            front.serving(folder) as address,
            front.browsing(browser, folder) as (tab, _),
        ):
            front.open_notebook(tab, address, "lab.ipynb")
            tab.evaluate(_WATCH)
            return _report(*_measured(tab, front))


class _Opened(NamedTuple):
    """What opening the large graph took, in milliseconds.

    Attributes:
        wall: From the key to the painted drawing.
        kernel: CPU time of the kernel's process, with the strip after the cell.
        page: CPU time of the page's main thread.
        unfolded: From a double click on a folded box of it to the drawing with it open.
    """

    wall: float
    kernel: float
    page: float
    unfolded: float


def _measured(tab: Any, front: Any) -> tuple[_Opened, list[float]]:
    wall = kernel = page = unfolded = 0.0
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable")
    for index in range(len(_CELLS)):
        tab.evaluate("() => { window.lzOpened = 0; }")
        before = _thread_ms(session)
        cell = front.run_cell(tab, index)
        if index in {1, _LARGE, _SMALL}:
            tab.wait_for_function("() => window.lzOpened > 0", timeout=60_000)
        if index == _LARGE:
            wall = tab.evaluate("() => window.lzOpened")
            page = _thread_ms(session) - before
            unfolded = _unfolded(tab, cell)
        if index == _TOLD:
            told = cell.locator(".jp-OutputArea-output", has_text="CPU").first
            kernel = float(told.inner_text().split()[1]) * 1e3
    view = tab.locator(".jp-Notebook .jp-CodeCell").nth(_SMALL)
    view.locator(".lzg[data-concurrent=true]").wait_for(timeout=30_000)
    boxes = view.locator(".lzg-host g[aria-label*='aten']")
    clicks = []
    for turn in range(_CLICKS):
        boxes.nth(turn).click()
        tab.wait_for_function("() => window.lzTook > 0", timeout=60_000)
        clicks.append(tab.evaluate("() => window.lzTook"))
    return _Opened(wall, kernel, page, unfolded), clicks


def _unfolded(tab: Any, view: Any) -> float:
    """Return the milliseconds in which the box of a line opens where it stands."""
    view.locator(".lzg[data-concurrent=true]").wait_for(timeout=30_000)
    view.locator(".lzg-choices select").nth(1).select_option("line")
    view.locator(".lzg-host g.g[data-b]").first.wait_for(timeout=30_000)
    tab.evaluate(_TIME_UNFOLDING)
    view.locator(".lzg-host g.g[data-b]").first.dblclick()
    tab.wait_for_function("() => window.lzUnfolded > 0", timeout=60_000)
    return float(tab.evaluate("() => window.lzUnfolded"))


def _thread_ms(session: Any) -> float:
    """Return the CPU time of the page's main thread up to now, in milliseconds."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    seconds = [each["value"] for each in metrics if each["name"] == "ThreadTime"]
    return 1e3 * float(seconds[0])


def _report(opened: _Opened, clicks: list[float]) -> Report:
    first, later = clicks[:3], clicks[3:]  # three kinds of op, which are compiled once
    rows: list[list[Cell]] = [
        ["10,001 nodes: from Ctrl+Enter to the drawing", opened.wall, None, None],
        ["of it CPU time of the kernel", opened.kernel, None, None],
        ["of it CPU time of the page", opened.page, None, None],
        [
            "click on a kind of op that has not run",
            statistics.median(first),
            min(first),
            max(first),
        ],
        [
            "click on one that has",
            statistics.median(later),
            min(later),
            max(later),
        ],
        [
            "the box of a line of the large graph opens in place",
            opened.unfolded,
            None,
            None,
        ],
    ]
    goals = [
        ratio_goal(
            "10,000 nodes open, from Ctrl+Enter to the drawing",
            opened.wall,
            _OPEN_MS,
            " ms",
        ),
        ratio_goal(
            "click to panel, median", statistics.median(later), _CLICK_MS, " ms"
        ),
        ratio_goal(
            "the box of a line opens in place", opened.unfolded, _UNFOLD_MS, " ms"
        ),
    ]
    table = Table("lab", ("", "median ms", "least", "most"), rows)
    return Report(f"lab: {SUMMARY}", machine.facts(), [table], goals)
