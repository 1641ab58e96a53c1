"""Executables on disk, so that a second process compiles nothing afresh.

Files are named by what they depend on: the graph's fingerprint, donation, the compile tier,
and the platform with its versions. jax's own persistent cache is a process-wide setting that
belongs to the user's jax programs, and a hit there still pays for lowering; this one needs
neither. Writing is atomic; a file that cannot be read is deleted and compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from lazyrt import jax_compat
from lazyrt.config import config

_log = logging.getLogger(__name__)
# Changes when lowering or the calling convention of executables does.
_FORMAT = "1"


@lru_cache(maxsize=1)
def _platform() -> str:
    return f"{jax_compat.platform_key()}-{_FORMAT}"


def _path(key: str) -> Path | None:
    if config.cache_dir is None:
        return None
    digest = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    return config.cache_dir / _platform() / digest[:2] / f"{digest}.xla"


def load(key: str) -> Any | None:
    """Return the executable stored under `key`, None if there is none that works."""
    path = _path(key)
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError:
        return None
    try:
        executable = jax_compat.deserialise(data)
    except Exception as error:  # noqa: BLE001 - whatever a damaged file makes XLA raise
        _log.warning("deleting the unreadable cache file %s: %s", path, error)
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return executable


def store(key: str, executable: Any) -> None:
    """Store an executable under `key`; failing to is logged and harmless."""
    path = _path(key)
    if path is None:
        return
    try:
        data = jax_compat.serialise(executable)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(path, data)
    except Exception as error:  # noqa: BLE001 - a full disk must not stop a training run
        _log.warning("cannot write the executable cache file %s: %s", path, error)


def _write(path: Path, data: bytes) -> None:
    """Write a file so that it appears whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(data)
            file.flush()
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def clear() -> None:
    """Delete every executable on disk."""
    if config.cache_dir is None:
        return
    for path in config.cache_dir.glob("*/*/*.xla"):
        with contextlib.suppress(OSError):
            path.unlink()
