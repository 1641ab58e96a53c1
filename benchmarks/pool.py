"""Worker processes, one for each peer."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parent.parent
XLA_PYTHON = "LAZYRT_TORCH_XLA_PYTHON"
_TAIL = 1500


class BenchmarkError(RuntimeError):
    """A benchmark cannot be run as asked, or a peer failed."""


class Peer:
    """A worker process that does one thing at a time and else waits."""

    def __init__(self, name: str) -> None:
        self.name = name
        python = _python(name)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [python, "-m", "benchmarks.worker", name],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ask(self, task: str, **arguments: Any) -> Any:
        """Return the worker's answer to a task of `benchmarks.worker.TASKS`.

        Raises:
            BenchmarkError: The worker ended without an answer.
        """
        assert self._process.stdin is not None  # noqa: S101 - Popen was given pipes
        assert self._process.stdout is not None  # noqa: S101
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(
                json.dumps({"task": task, "arguments": arguments}) + "\n"
            )
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkError(self._failure(task))
        return json.loads(line)

    def close(self) -> None:
        """End the process and wait for it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _failure(self, task: str) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        tail = self._errors.read().decode(errors="replace")[-_TAIL:].strip()
        return (
            f"the process of {self.name} ended with status {status} during {task!r}, so there "
            f"is no figure for it. Leave it out with --peers, or repair what it says:\n{tail}"
        )


@contextlib.contextmanager
def open_peers(names: Sequence[str]) -> Iterator[dict[str, Peer]]:
    """Start the peers' processes for the length of a `with` block."""
    peers: dict[str, Peer] = {}
    try:
        for name in names:
            peers[name] = Peer(name)
        yield peers
    finally:
        for peer in peers.values():
            peer.close()


def available(names: Sequence[str]) -> list[str]:
    """Return the peers that this machine can run: torch-xla needs an environment of its own."""
    return [name for name in names if name != "torch-xla" or os.environ.get(XLA_PYTHON)]


def choose(asked: str | None, known: Sequence[str]) -> list[str]:
    """Return the peers named in a comma-separated list, all available ones for None.

    Raises:
        BenchmarkError: The list names one that the benchmark does not have.
    """
    if asked is None:
        return available(known)
    names = [name.strip() for name in asked.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise BenchmarkError(
                f"this benchmark has no peer {name!r}. Its peers are {', '.join(known)}."
            )
    if "torch-xla" in names and not os.environ.get(XLA_PYTHON):
        raise BenchmarkError(
            "torch-xla needs an older torch, so it runs in an environment of its own. Install "
            f"torch_xla, its torch and transformers there, and name its python in {XLA_PYTHON}."
        )
    return names


def _python(name: str) -> str:
    if name != "torch-xla":
        return sys.executable
    python = os.environ.get(XLA_PYTHON, "")
    if not Path(python).is_file():
        raise BenchmarkError(
            f"{XLA_PYTHON} is {python!r}, which is not a file. Set it to the python of the "
            "environment that has torch_xla, or unset it."
        )
    return python


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), str(ROOT / "runtime"), os.environ.get("PYTHONPATH", "")]
        ).rstrip(os.pathsep),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "OMP_NUM_THREADS": "1",
    }
