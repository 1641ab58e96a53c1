"""Executables on disk, so that a second process compiles nothing afresh.

Files are named by what they depend on: the graph's fingerprint, donation, the compile tier,
and the platform with its versions. jax's own persistent cache is a process-wide setting that
belongs to the user's jax programs, and a hit there still pays for lowering; this one needs
neither. Writing is atomic; a damaged file, which could crash XLA, is deleted and compiled again.

What an entry holds is written behind the executable: files without it load like those with it,
and a list reads only the ends of files.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import math
import os
import stat
import struct
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lazyrt import jax_compat, lowering
from lazyrt.config import config
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Iterator


_log = logging.getLogger(__name__)
# Changes when lowering or the calling convention of executables does.
_FORMAT = "5"
# Stands in the key of an executable that no other process may take.
OF_THIS_PROCESS = "|rules of this process: "
# The head of a file: the program's length, and a digest of the key and the program.
HEAD = struct.Struct(">Q16s")
# The end of a file: JSON, its length, and a mark.
_MARK = b"\0lazyrt\1"
_END = struct.Struct("<I8s")
# Beside the executables: how long work takes here, and what was learned of ops.
PACE = "pace.json"
LEARNED = "learned"
_MAX_TEXT_BYTES = 2**20
# What is being written begins so; one this old was left by a process that was killed.
_PART = "tmp"
_PARTS = f"*/{_PART}*", f"*/*/{_PART}*"
_ABANDONED_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an executable holds, in words; empty where an older version did not write it.

    Attributes:
        holds: The op with its operand types, or the kind of graph and its fingerprint.
        nodes: How many ops it runs; 0 where unknown.
        tier: `fast` or `optimised`.
        line: The user's line of the op, of a graph's last op.
        written_s: When it was compiled, in seconds since the epoch; 0 where unknown.
        compile_ns: How long lowering and compiling it took; 0 where unknown.
    """

    holds: str = ""
    nodes: int = 0
    tier: str = ""
    line: str = ""
    written_s: float = 0.0
    compile_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """An executable on disk.

    Attributes:
        path: Where it is.
        digest: 32 hexadecimal digits of its key.
        nbytes: Size of the file.
        used_s: When it was last read or written, in seconds since the epoch.
        is_usable: Whether it was made by these versions, for this machine.
    """

    path: Path
    digest: str
    nbytes: int
    used_s: float
    is_usable: bool

    def facts(self) -> Facts:
        """Return what it holds; only the end of the file is read."""
        try:
            with self.path.open("rb") as file:
                file.seek(-min(self.nbytes, _END.size), os.SEEK_END)
                length, mark = _END.unpack(file.read())
                if mark != _MARK or length > self.nbytes - _END.size:
                    return Facts()
                file.seek(-_END.size - length, os.SEEK_END)
                held = json.loads(file.read(length))
                names = {each.name for each in fields(Facts)}  # later ones have more
                return Facts(**{name: held[name] for name in names & held.keys()})
        except (OSError, ValueError, TypeError, AttributeError, struct.error):
            return Facts()


@lru_cache(maxsize=1)
def _platform() -> str:
    # What lowering depends on: its code, how steps are cut, torch's decompositions.
    folder, cuts = Path(lowering.__file__).parent, Path(__file__).with_name("linked.py")
    return f"{jax_compat.platform_key()}-{_FORMAT}-{_code_key(folder, cuts)}"


def _code_key(folder: Path, *more: Path) -> str:
    """Return a digest of torch's version, of the modules in a folder, and of more files."""
    found = hashlib.blake2b(torch.__version__.encode(), digest_size=4)
    with contextlib.suppress(OSError):
        for path in (*sorted(folder.glob("*.py")), *more):
            found.update(path.read_bytes())
    return found.hexdigest()


@lru_cache(maxsize=1)
def _learned_name() -> str:
    """Return a name that changes with the code that asks torch for types."""
    return f"{LEARNED}-{_code_key(Path(lowering.__file__).parents[1] / 'frontend')}.txt"


def _path(key: str) -> Path | None:
    if config.cache_dir is None or OF_THIS_PROCESS in key:
        return None
    digest = digest_of(key)
    return config.cache_dir / _platform() / digest[:2] / f"{digest}.xla"


def digest_of(key: str, size: int = 16) -> str:
    """Return the name of a key's file, two hexadecimal digits for each of `size` bytes."""
    return hashlib.blake2b(key.encode(), digest_size=size).hexdigest()


def has(key: str) -> bool:
    """Return whether there is an executable under `key`; it is not read."""
    path = _path(key)
    return path is not None and path.exists()


def pace_path() -> Path | None:
    """Return the file that remembers how long work takes here; None without a folder."""
    return None if config.cache_dir is None else config.cache_dir / _platform() / PACE


def read_text(path: Path, most: int = _MAX_TEXT_BYTES) -> str:
    """Return the contents of a file of this user's, empty if there is none of so many bytes."""
    with contextlib.suppress(OSError, ValueError):
        if path.stat().st_size <= most:
            return (_read(path) or b"").decode()
    return ""


def write_text(path: Path, text: str) -> None:
    """Write a small file so that it appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(path, text.encode())


def load(key: str) -> Any | None:
    """Return the executable stored under `key`, None if there is none that works."""
    path = _path(key)
    if path is None or (data := _read(path)) is None:
        return None
    try:
        executable = jax_compat.deserialise(_program_in(data, key))
    except Exception as error:  # noqa: BLE001 - whatever a damaged file makes XLA raise
        _log.info("deleting the unreadable cache file %s: %s", path, error)
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return executable


def _program_in(data: bytes, key: str) -> bytes:
    length, digest = HEAD.unpack_from(data)
    program = data[HEAD.size : HEAD.size + length]
    if digest != _digest(key, program):
        raise ValueError("it does not hold what was written under its key")
    return program


def _digest(key: str, program: bytes) -> bytes:
    return hashlib.blake2b(key.encode() + program, digest_size=16).digest()


def _read(path: Path) -> bytes | None:
    """Return the contents of a file of this user's; None for another's: loading runs code."""
    try:
        with path.open("rb") as file:
            return file.read() if _is_ours(os.fstat(file.fileno())) else None
    except OSError:
        return None


def _is_ours(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()


def store(key: str, executable: Any, facts: Facts) -> None:
    """Store an executable under `key`; failing to is logged once and harmless."""
    path = _path(key)
    if path is None:
        return
    try:
        end = json.dumps(asdict(facts)).encode()
        program = jax_compat.serialise(executable)
        head = HEAD.pack(len(program), _digest(key, program))
        data = head + program + end + _END.pack(len(end), _MARK)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(path, data)
        _keep_within_budget(len(data))
    except Exception as error:  # noqa: BLE001 - a full disk must not stop a training run
        _tell(path, error)


# Folders of which it was said that they cannot be written.
_told: set[Path | None] = set()


def _tell(path: Path, error: Exception) -> None:
    """Warn that an executable is not stored, once for each folder."""
    if config.cache_dir in _told:
        return
    _told.add(config.cache_dir)
    _log.warning(
        "cannot write the executable cache file %s: %s. This process goes on, and the next one "
        "compiles again what is not stored. Set LAZYRT_CACHE_DIR or lazyrt.config.cache_dir to a "
        "folder that can be written, or to nothing; this is said once.",
        path, error,
    )  # fmt: skip


# Bytes that a folder's files take, as far as this process knows.
_sizes: dict[Path, int] = {}


def _keep_within_budget(written: int) -> None:
    """Delete the executables not used for longest, down to three quarters of the budget."""
    folder, budget = config.cache_dir, config.max_cache_bytes
    assert folder is not None
    if folder in _sizes:
        _sizes[folder] += written
    else:
        _delete_ours(folder, *_PARTS, before_s=time.time() - _ABANDONED_S)
        _sizes[folder] = sum(file.nbytes for file in files())
    if _sizes[folder] <= budget:
        return
    oldest = sorted(files(), key=lambda file: file.used_s)
    kept, total, dropped = len(oldest), sum(file.nbytes for file in oldest), 0
    for file in oldest[:-1]:  # other processes may have made room already
        if total <= budget * 3 // 4:
            break
        remove(file)
        total -= file.nbytes
        dropped += 1
    _sizes[folder] = total
    if dropped:
        events.emit(
            events.CacheEvicted(
                cache="disk", dropped=dropped, kept=kept - dropped, budget=budget
            )
        )


def _delete_ours(folder: Path, *patterns: str, before_s: float) -> None:
    """Delete this user's files of some names that were written before a time."""
    for path in itertools.chain(*map(folder.glob, patterns)):
        with contextlib.suppress(OSError):
            status = path.stat(follow_symlinks=False)
            if _is_ours(status) and status.st_mtime < before_s:
                path.unlink()


def _write(path: Path, data: bytes) -> None:
    """Write a file so that it appears whole or not at all."""
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=_PART, delete=False
    ) as file:
        temporary = Path(file.name)
        try:
            file.write(data)
            file.flush()
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def files() -> Iterator[File]:
    """Yield the executables in `config.cache_dir`, those of other versions included.

    Links and files of other users are none of ours and are left out.
    """
    if config.cache_dir is None:
        return
    platform = _platform()
    for path in sorted(config.cache_dir.glob("*/*/*.xla")):
        try:
            status = path.stat(follow_symlinks=False)
        except OSError:
            continue
        if not _is_ours(status) or path.parent.name != path.stem[:2]:
            continue
        yield File(
            path=path,
            digest=path.stem,
            nbytes=status.st_size,
            used_s=status.st_mtime,
            is_usable=path.parent.parent.name == platform,
        )


def remove(file: File) -> None:
    """Delete one executable; one that is gone already is no error."""
    with contextlib.suppress(OSError):
        file.path.unlink()


def clear() -> None:
    """Delete every executable on disk, and what was written down about them."""
    for file in files():
        remove(file)
    if (folder := config.cache_dir) is not None:
        _delete_ours(folder, *_PARTS, before_s=time.time() - _ABANDONED_S)
        _delete_ours(folder, f"*/{PACE}", f"*/{LEARNED}*", before_s=math.inf)


def append_text(path: Path, text: str, most: int) -> None:
    """Append whole lines to a file that other processes append to, too.

    Beyond `most` bytes nobody reads it: it is emptied then.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        if os.fstat(descriptor).st_size > most:
            os.ftruncate(descriptor, 0)
        os.write(descriptor, text.encode())  # at once: others append, too
    finally:
        os.close(descriptor)


# -------------------------------------------------------------- what recording learned
# Result types by torch's meta kernels, and ops whose rule passed its abstract check: both follow from
# an op, its operands' types and its constants alone, for equal versions and code, and only for ops of
# `aten`. A line is the digest of a question, the answer as JSON, and a digest of both; one that is
# damaged or cut is passed over, and the question is asked again.

_MAX_ANSWER_BYTES = 64 * 2**20
# Stands in the text of an object that has no value of its own.
_AN_ADDRESS = " at 0x"

_answers_file: Path | None = None
_answers: dict[str, str] = {}
_fresh_answers: list[str] = []


class Question:
    """Something that is asked of an op: its answer is looked up, or learned.

    `parts` is what else the answer follows from, beside versions and lazyrt's own code.
    """

    __slots__ = ("_digest",)

    def __init__(self, op: str, *parts: object) -> None:
        self._digest = ""
        if config.cache_dir is None or not op.startswith("aten."):
            return
        text = repr((op, parts))
        if _AN_ADDRESS not in text:
            self._digest = digest_of(text)

    def answer(self) -> Any:
        """Return the answer that some process wrote down; None if there is none."""
        if not self._digest:
            return None
        _read_answers()
        line = _answers.get(self._digest)
        if line is None:
            return None
        body, _, check = line.rpartition("\t")
        if check != digest_of(self._digest + body, 8):
            return None
        try:
            return json.loads(body)
        except ValueError:
            return None

    def learn(self, answer: object) -> None:
        """Write down an answer, which is JSON and not None, with the next graph that is compiled."""
        if self._digest:
            body = json.dumps(answer, separators=(",", ":"))
            _fresh_answers.append(
                f"{self._digest}\t{body}\t{digest_of(self._digest + body, 8)}\n"
            )


def store_answers() -> None:
    """Append what this process has learned; failing to is harmless."""
    if not _fresh_answers:
        return
    _read_answers()
    text = "".join(_fresh_answers)
    _fresh_answers.clear()
    for line in text.splitlines():
        digest, _, rest = line.partition("\t")
        _answers.setdefault(digest, rest)
    if _answers_file is not None:
        with contextlib.suppress(OSError):
            append_text(_answers_file, text, _MAX_ANSWER_BYTES)


def forget_answers() -> None:
    """Forget what was read, and what is not yet written."""
    global _answers_file
    _answers_file = None
    _answers.clear()
    _fresh_answers.clear()


def _read_answers() -> None:
    """Read the file of the folder in use, once."""
    global _answers_file
    folder = config.cache_dir
    path = None if folder is None else folder / _platform() / _learned_name()
    if path == _answers_file:
        return
    _answers_file = path
    _answers.clear()
    for line in () if path is None else read_text(path, _MAX_ANSWER_BYTES).splitlines():
        digest, _, rest = line.partition("\t")
        _answers[digest] = rest
