"""Which tests a run has and where they run; the notebooks' run of nbval."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import shlex
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

_OF_NOTEBOOKS = {"--nbval", "--nbval-lax"}
_SANITIZE = Path(__file__).parent / "notebooks/sanitize.cfg"


def _has_notebooks(config: pytest.Config) -> bool:
    return not _OF_NOTEBOOKS.isdisjoint(config.invocation_params.args)


def pytest_addoption(
    parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager
) -> None:
    """Add `--share`; import nbval, which takes two seconds, where it was asked for."""
    parser.addoption(
        "--share",
        type=int,
        default=1,
        metavar="N",
        help="run one test in N, chosen by a hash of its id: the same ones each time",
    )
    config = pluginmanager.get_plugin("pytestconfig")
    if isinstance(config, pytest.Config) and _has_notebooks(config):
        pluginmanager.import_plugin("nbval.plugin")


def pytest_configure(config: pytest.Config) -> None:
    """Compare what notebooks show without times and addresses."""
    if _has_notebooks(config) and config.option.nbval_sanitize_with is None:
        config.option.nbval_sanitize_with = str(_SANITIZE)


@pytest.hookimpl(
    tryfirst=True
)  # the workers, which start next, have the same environment
def pytest_sessionstart(session: pytest.Session) -> None:
    """Let workers, kernels and programs fork from one process that has imported torch and jax: four seconds each."""
    config = session.config
    is_worker = hasattr(config, "workerinput")
    if is_worker or config.option.collectonly:
        return
    from tests.quick_python import interpreter, share_server, write_kernel

    if config.option.dist != "no":
        share_server()
        popen = f"popen//python={shlex.join(interpreter())}"
        config.option.tx = [popen if tx == "popen" else tx for tx in config.option.tx]
    if not _has_notebooks(config):
        return
    folder = tempfile.TemporaryDirectory(prefix="lazyviz-kernels-")
    config.add_cleanup(folder.cleanup)
    os.environ["JUPYTER_PATH"] = folder.name
    write_kernel(folder.name)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Spread folders over the cores; a file or a test by name runs at once, in this process.

    There is one worker more than cores: a fifth of the time they wait for what they have started.
    A notebook stays on one core: its cells share a kernel and come one after the other.
    """
    named = [Path(argument.split("::")[0]) for argument in config.args]
    if any(path.suffix in {".py", ".ipynb"} for path in named):
        return 0
    if _has_notebooks(config):
        config.option.dist = "loadfile"
    return min(os.cpu_count() or 1, 4) + 1


@functools.cache
def _import_a_share(config: pytest.Config) -> None:
    """Import a worker's share of the files first, so that not each compiles all of them in a fresh checkout.

    A file that cannot be imported fails where it is collected.
    """
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    if not worker:
        return
    named = (config.rootpath / argument.split("::")[0] for argument in config.args)
    files = sorted({file for path in named for file in path.rglob("test_*.py")})
    for file in files[int(worker["workerid"][2:]) :: worker["workercount"]]:
        parts = file.relative_to(config.rootpath).with_suffix("").parts
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(parts))


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Leave a file without examples out of the doctests, which would import it to look for some."""
    _import_a_share(parent.config)
    found = yield
    if file_path.suffix != ".py" or ">>>" in file_path.read_text(encoding="utf-8"):
        return found
    return [each for each in found if type(each) is pytest.Module]


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Keep the share of the tests; leave the time of notebooks' cells to nbval."""
    share: int = config.getoption("share")
    left = [item for item in items if zlib.crc32(item.nodeid.encode()) % share]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.timeout(0))  # --nbval-cell-timeout holds
