"""Real JupyterLab and Notebook servers and a real browser, which fetches nothing from outside."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

from tests.quick_python import write_kernel

ROOT = Path(__file__).parent.parent.parent
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def write_notebook(path, cells):
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in cells],
        metadata={"kernelspec": kernel},
    )
    nbformat.write(notebook, path)


@contextlib.contextmanager
def serving(folder, application="jupyterlab"):
    """Serve a folder and yield the server's address; `notebook` serves both front ends."""
    port = _free_port()
    environment = dict(
        os.environ,
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'runtime'}",
        JUPYTER_CONFIG_DIR=str(folder / "config"),
        JUPYTERLAB_SETTINGS_DIR=str(folder / "settings"),
        JUPYTER_PATH=str(folder / "data"),
        LAZYRT_CACHE_DIR="",
    )
    write_kernel(folder / "data", environment)
    options = [
        "--no-browser",
        f"--port={port}",
        "--ServerApp.token=",
        f"--ServerApp.root_dir={folder}",
        "--allow-root",
        "--LabApp.news_url=None",
        "--LabApp.expose_app_in_browser=True",
        "--JupyterNotebookApp.expose_app_in_browser=True",
    ]
    news = folder / "settings/@jupyterlab/apputils-extension"
    news.mkdir(parents=True)
    (news / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    log = (folder / "server.log").open("w")
    with (
        log,
        subprocess.Popen(
            [sys.executable, "-m", application, *options],
            env=environment,
            stdout=log,
            stderr=log,
        ) as server,
    ):
        try:
            _wait_for(f"http://127.0.0.1:{port}/api")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_for(address):
    end = time.monotonic() + 120
    while True:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(address).close()  # noqa: S310 - our own server
            return
        if time.monotonic() > end:
            raise TimeoutError(address)
        time.sleep(0.5)


@contextlib.contextmanager
def browsing(executable, folder, **options):
    """Yield a tab, and the list of addresses outside that it tried to fetch."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            folder / "profile",
            executable_path=executable,
            args=FLAGS,
            headless=True,
            viewport={"width": 1200, "height": 1000},
            **options,
        )
        foreign = []

        def local_only(route):
            if route.request.url.startswith(("http://127.0.0.1", "data:", "blob:")):
                route.continue_()
            else:
                foreign.append(route.request.url)
                route.abort()

        context.route("**/*", local_only)
        yield context.pages[0], foreign
        context.close()


@contextlib.contextmanager
def visiting(executable, jupyter, profile):
    """Yield a tab that fetches from a server alone, which is `tab.server` over `tab.folder`."""
    with browsing(executable, profile) as (tab, foreign):
        tab.folder, tab.server = jupyter
        try:
            yield tab
        finally:
            tab.evaluate(
                "() => window.jupyterapp?.serviceManager.sessions.shutdownAll()"
            )
        assert not foreign


@contextlib.contextmanager
def new_tab(tab):
    """Yield one more tab of a tab's browser; at its end the kernel that it shows ends, too."""
    found = tab.context.new_page()
    found.server = tab.server
    try:
        yield found
    finally:
        found.evaluate(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.shutdown()"
        )
        found.close()


@dataclass(frozen=True)
class FrontEnd:
    """One of the two front ends, and what is different about it.

    Attributes:
        path: Where it opens a notebook, in front of its name.
        query: What its address ends in, so that nothing opened before comes back.
    """

    name: str
    path: str
    query: str = ""


LAB = FrontEnd("lab", "/lab/tree/", "?reset")
NOTEBOOK = FrontEnd("notebook", "/notebooks/")


def screenshots():
    """Return the folder of pictures that continuous integration keeps."""
    folder = ROOT / "screenshots"
    folder.mkdir(exist_ok=True)
    return folder


def screenshot(target, name):
    """Keep a picture of a page or of an element."""
    target.screenshot(path=screenshots() / f"{name}.png")


def open_notebook(tab, address, name, front=LAB):
    """Open a notebook and wait until its kernel takes keys."""
    tab.goto(f"{address}{front.path}{name}{front.query}")
    tab.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=120_000)
    wait_until_idle(tab)


def wait_until_idle(tab):
    """Wait until the kernel has nothing to do; keys that come before it is there are lost."""
    tab.wait_for_function(
        "() => { const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext"
        "?.session?.kernel;"
        " return kernel?.connectionStatus === 'connected' && kernel.status === 'idle'; }",
        timeout=120_000,
    )


def command(tab, name, **arguments):
    """Run one of the front end's own commands, such as `docmanager:save`."""
    tab.evaluate(
        "([name, args]) => window.jupyterapp.commands.execute(name, args)",
        [name, arguments],
    )


def set_theme(tab, theme):
    """Choose `Light` or `Dark` and wait until the page has it."""
    command(tab, "apputils:change-theme", theme=f"JupyterLab {theme}")
    tab.wait_for_function(
        "light => document.body.dataset.jpThemeLight === light",
        arg=str(theme == "Light").lower(),
    )


def run_cell(page, index):
    """Run a cell, wait for its end, and return its locator."""
    cell = start_cell(page, index)
    page.wait_for_function(
        "i => /\\[\\d+\\]/.test(document.querySelectorAll('.jp-Notebook .jp-CodeCell')[i]"
        ".querySelector('.jp-InputPrompt').textContent)",
        arg=index,
        timeout=120_000,
    )
    return cell


def start_cell(page, index):
    """Run a cell and return its locator at once."""
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(index)
    cell.locator(".jp-InputArea-editor").click()
    page.keyboard.press("Control+Enter")
    return cell
