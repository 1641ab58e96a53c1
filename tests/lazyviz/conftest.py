"""A shell with the extension loaded and a clean runtime."""

from __future__ import annotations

import gc
import sys

import pytest

import lazyrt
from lazyrt.execution.graph_registry import graph_registry


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory):
    """Return a folder, and the address of one server of it for both front ends."""
    from tests.lazyviz.labs import serving

    folder = tmp_path_factory.mktemp("jupyter")
    with serving(folder, "notebook") as address:
        yield folder, address


@pytest.fixture
def clean_runtime(monkeypatch):
    """Yield lazyrt with nothing pending, zero counters, and no executables."""
    monkeypatch.setattr(lazyrt.config, "cache_dir", None)
    if lazyrt.live_tensors():
        gc.collect()  # what the test before left in a traceback
    lazyrt.mark_step()
    lazyrt.wait()
    lazyrt.clear_caches()
    graph_registry.clear()
    lazyrt.reset_counters()
    yield lazyrt
    for name in ("last_value", "last_traceback", "last_type", "last_exc"):
        vars(sys).pop(name, None)
    lazyrt.mark_step()


@pytest.fixture
def lab(shell, clean_runtime):
    """Yield a shell in which lazyviz is loaded, and torch and lazyrt are imported."""
    shell.run_line_magic("load_ext", "lazyviz")
    shell.run_cell("import torch, lazyrt", store_history=True)
    shell.run_cell("x = torch.ones(2, 3, device='lazyrt')", store_history=True)
    shell.run_cell("lazyrt.mark_step()", store_history=True)
    shell.display_pub.outputs.clear()
    yield shell
    if "lazyviz" in shell.extension_manager.loaded:
        shell.run_line_magic("unload_ext", "lazyviz")
    for name in [name for name in shell.user_ns if not name.startswith("__")]:
        del shell.user_ns[name]
