"""Fixtures for every test: a fresh IPython shell, and a browser where there is one."""

from __future__ import annotations

import atexit
import builtins
import gc
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests import crashes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from IPython.core.interactiveshell import InteractiveShell

# Markers of tests that a mode has no sense for, and the variables that switch it on.
_MODES = {
    "lazy_only": ("LAZYVIZ_EAGER", "LAZYVIZ_OPBYOP"),
    "not_eager": ("LAZYVIZ_EAGER",),
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Bytecode is kept, whatever the caller's variable says: compiling lazyrt and lazyviz from source
# takes each of the processes that tests start a second or two.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Most tests compile, and few are about what XLA makes of a program: its fast build is enough for
# those. A test of the optimised one asks for it, with `config.compile_tier`.
os.environ.setdefault("LAZYRT_COMPILE_TIER", "fast")

# What validates notebooks compiles dozens of grammars when it is imported, a second in each process,
# for formats of addresses that no schema of a notebook has.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]


@pytest.hookimpl(trylast=True)  # after pytest's own, which has stacks written to stderr
def pytest_configure(config: pytest.Config) -> None:
    """Keep the stacks of a worker that crashes."""
    crashes.watch(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop keeping them."""
    crashes.end(config)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell where workers crashed, if any did."""
    for line in crashes.told():
        terminalreporter.write_line(line)


_last_file: Path | None = None
_imported = 0
_test_files: dict[str, ModuleType] = {}


def pytest_collection_finish() -> None:
    """Let equal modules of all tests be compiled once in few contexts, and seeds be cheap."""
    _test_files.update(
        (name, module)
        for name, module in sys.modules.items()
        if name.startswith("tests.") and name.rpartition(".")[2].startswith("test_")
    )
    if "jax" in sys.modules:
        from tests.compiled import share_compiles, share_contexts

        share_compiles()
        share_contexts()
    if "torch" in sys.modules:
        _seed_present_devices_alone()
    if "torch._dynamo.guards" in sys.modules:
        _time_no_guards()


def _time_no_guards() -> None:
    """Let the guards of each graph take a microsecond: TorchDynamo flushes the caches to time them."""
    from torch._dynamo import guards

    setattr(guards, "profile_guard_manager", lambda *_: 1.0)  # noqa: B010 - typed as a function


def _seed_present_devices_alone() -> None:
    """Let `torch.manual_seed` leave out GPUs that are not there.

    It would queue the seed for each with the text of the whole stack: a few milliseconds a call,
    and thousands of tests and samples start with one.
    """
    import torch

    for module in (torch.cuda, torch.xpu, torch.mtia):
        if not module.is_available():
            setattr(module, "manual_seed_all", lambda _seed: None)  # noqa: B010 - typed as a function


def _begin_file(item: pytest.Item) -> None:
    """Let only the modules of this file be those of a user.

    Who holds a tensor is searched for in all modules of the user: 0.1 s a time in hundreds of files of tests.
    """
    global _last_file, _imported
    if item.path != _last_file:
        _last_file, _imported = item.path, 0
        for name, module in _test_files.items():
            if module.__file__ == str(item.path):
                sys.modules[name] = module
            else:
                sys.modules.pop(name, None)


def _freeze_what_is_imported() -> None:
    """Freeze what stays, whenever modules have come: a collection goes through the rest alone.

    Whoever asks whether something is freed collects, and so does each shell that ends: 0.3 s a time
    with torch, jax and the tests, 0.07 s with what the first test of a file imports.
    """
    global _imported  # noqa: PLW0603 - the modules that are frozen
    if len(sys.modules) != _imported:
        gc.collect()
        runtime = sys.modules.get("lazyrt")
        if runtime is None or not runtime.live_tensors():  # one that froze would stay
            gc.freeze()
        _imported = len(sys.modules)


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """Keep what a test or a benchmark puts into the environment from the tests after it."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests whose program is missing, and say how to get it."""
    _begin_file(item)
    _freeze_what_is_imported()
    if item.get_closest_marker("graphviz") and shutil.which("dot") is None:
        pytest.skip("needs Graphviz: apt-get install graphviz")
    if item.get_closest_marker("browser") and find_browser() is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    for marker, variables in _MODES.items():
        found = item.get_closest_marker(marker)
        if found is None:
            continue
        if not found.args:
            pytest.fail(f"the marker {marker} needs the reason", pytrace=False)
        if any(map(os.environ.get, variables)):
            pytest.skip(f"{marker}: {found.args[0]}")


def find_browser() -> str | None:
    """Return the path of Chromium, or None; CHROMIUM names another one."""
    named = os.environ.get("CHROMIUM")
    found = (shutil.which(name) for name in ((named,) if named else BROWSERS))
    return next((path for path in found if path), None)


@pytest.fixture
def browser_path() -> str:
    """Return the path of Chromium; the test carries the marker `browser`."""
    path = find_browser()
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    return path


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[InteractiveShell]:
    """Yield a fresh shell: no history, no user files, displays go to `display_pub`.

    What a cell displays is in `shell.display_pub.outputs`; the result of a cell that ends
    in an expression is printed, so `capsys` has it. `get_ipython()` finds this shell.
    """
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "nocolor"
    vars(builtins).pop("_", None)  # of a prompt: the shell would leave the name alone
    before = _interpreter_state()
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=config)
    shell.execution_count = 1  # without history a shell would count from 0
    shell.display_pub = CapturingDisplayPublisher(shell=shell)
    try:
        yield shell
    finally:
        shell.atexit_operations()
        atexit.unregister(shell.atexit_operations)
        shell.restore_sys_module_state()
        InteractiveShell.clear_instance()
        _restore(before)


def displayed(shell: InteractiveShell, kind: str = "text/plain") -> list[str]:
    """Return what the shell's cells displayed so far, in one MIME type."""
    publisher: Any = shell.display_pub
    return [
        output["data"][kind] for output in publisher.outputs if kind in output["data"]
    ]


def _interpreter_state() -> dict[str, Any]:
    return {
        "modules": {name: sys.modules.get(name) for name in ("__main__",)},
        "hooks": (sys.displayhook, sys.excepthook),
        "builtins": dict(vars(builtins)),
        "path": list(sys.path),
    }


def _restore(state: dict[str, Any]) -> None:
    sys.modules.update({k: v for k, v in state["modules"].items() if v is not None})
    sys.displayhook, sys.excepthook = state["hooks"]
    sys.path[:] = state["path"]
    for name in set(vars(builtins)) - set(state["builtins"]):
        delattr(builtins, name)
    vars(builtins).update(state["builtins"])
