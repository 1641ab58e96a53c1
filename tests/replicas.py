"""Runs a program of `tests.replica_programs` in several processes, as a launcher does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

from tests.quick_python import interpreter

_ROOT = Path(__file__).parents[1]


def run(*names: str, count: int = 2, **variables: str) -> list[dict[str, Any]]:
    """Return what each rank told, under `exit` how it ended, and its `errors`.

    Args:
        names: Functions of `tests.replica_programs`, which run one after the other.
        count: How many processes.
        variables: Of the environment.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    started = []
    for rank in range(count):
        of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        of_all = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "LAZYRT_COMPILE_TIER": "fast",
        }
        environment = {**os.environ, **of_all, **of_rank, **variables}
        started.append(
            subprocess.Popen(
                [*interpreter(environment), "-m", "tests.replica_programs", *names],
                cwd=_ROOT,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    told = []
    for process in started:
        out, errors = process.communicate(timeout=300)
        lines = [line for line in out.splitlines() if line.startswith('["')]
        found: dict[str, Any] = dict(map(json.loads, lines))
        told.append({**found, "exit": process.returncode, "errors": errors})
    return told
