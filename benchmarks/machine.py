"""Facts about the machine and the versions, without which a figure means little."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path


def facts() -> dict[str, str]:
    """Return what the figures depend on, by name."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0]
    busy = " (busy: trust the minima)" if load > cores / 2 else ""
    return {
        "machine": f"{_processor()}, {cores} cores, load {load:.1f}{busy}",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join(
            f"{name} {_version(name)}" for name in ("torch", "jax", "jaxlib")
        ),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    )
    return next(names, platform.processor() or platform.machine())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"
