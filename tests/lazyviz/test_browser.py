"""The strip in a real JupyterLab, in a real browser."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent.parent
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CELLS = [
    "%load_ext lazyviz\nimport torch, lazyrt",
    "x = torch.ones(4, 3, device='lazyrt')\ny = torch.relu(x @ x.T).sum()\nprint(y)",
    "lazyrt.mark_step()\ny",
]

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def lab(tmp_path):
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in CELLS],
        metadata={
            "kernelspec": {
                "name": "python3",
                "display_name": "Python 3",
                "language": "python",
            }
        },
    )
    nbformat.write(notebook, tmp_path / "strip.ipynb")
    port = free_port()
    environment = dict(
        os.environ,
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'runtime'}",
        JUPYTER_CONFIG_DIR=str(tmp_path / "config"),
        JUPYTERLAB_SETTINGS_DIR=str(tmp_path / "settings"),
        LAZYRT_CACHE_DIR="",
    )
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", f"--port={port}"]
    options = [
        "--ServerApp.token=",
        f"--ServerApp.root_dir={tmp_path}",
        "--allow-root",
        "--LabApp.news_url=None",
    ]
    log = (tmp_path / "lab.log").open("w")
    with (
        log,
        subprocess.Popen(
            command + options, env=environment, stdout=log, stderr=log
        ) as server,
    ):
        try:
            wait_for(f"http://127.0.0.1:{port}/api")
            yield f"http://127.0.0.1:{port}/lab/tree/strip.ipynb"
        finally:
            server.terminate()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(address):
    end = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(address).close()  # noqa: S310 - our own server
            return
        if time.monotonic() > end:
            raise TimeoutError(address)
        time.sleep(0.5)


@pytest.fixture
def page(lab, browser_path, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            tmp_path / "profile",
            executable_path=browser_path,
            args=FLAGS,
            headless=True,
            viewport={"width": 1200, "height": 1000},
        )
        foreign = []

        def local_only(route):
            if route.request.url.startswith(("http://127.0.0.1", "data:", "blob:")):
                route.continue_()
            else:
                foreign.append(route.request.url)
                route.abort()

        context.route("**/*", local_only)
        tab = context.pages[0]
        tab.goto(lab)
        tab.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=90_000)
        # Keys that come before the kernel is there are lost.
        tab.wait_for_function(
            "document.body.innerText.includes('(ipykernel) | Idle')", timeout=90_000
        )
        yield tab
        context.close()


def run_cell(page, index):
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(index)
    cell.locator(".jp-InputArea-editor").click()
    page.keyboard.press("Control+Enter")
    page.wait_for_function(
        "i => /\\[\\d+\\]/.test(document.querySelectorAll('.jp-Notebook .jp-CodeCell')[i]"
        ".querySelector('.jp-InputPrompt').textContent)",
        arg=index,
        timeout=90_000,
    )
    return cell


def test_a_strip_unfolds_to_the_pending_graph(page):
    run_cell(page, 0)
    cell = run_cell(page, 1)
    strip = cell.locator("details").last
    strip.wait_for(timeout=30_000)

    assert "tensor(48., device='lazyrt:0')" in cell.inner_text()
    assert "5 pending ops (+5 here)" in strip.inner_text()
    graph = strip.locator("img[src^='data:image/svg+xml']").last
    assert not graph.is_visible()

    strip.locator("summary").click()

    graph.wait_for(state="visible", timeout=10_000)
    assert graph.evaluate("image => image.naturalWidth") > 100

    ended = run_cell(page, 2)
    ended.locator("details").last.wait_for(timeout=30_000)
    assert "0 pending ops" in ended.inner_text()
    assert "tensor(48., device='lazyrt:0')" in ended.inner_text()
