"""Start several processes of a program from a notebook, and watch them.

The kernel is none of them: when one dies, it goes on. Each records its barriers, and what is shown
is read from these records.
"""

from __future__ import annotations

import builtins
import inspect
import os
import pickle
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import types
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from lazyviz.divergence.alignment import called
from lazyviz.divergence.report import Replicas, replicas
from lazyviz.divergence.sources import read_record
from lazyviz.doc import Advice, Code, Doc, Line, Table
from lazyviz.foreign import Evidence, EvidenceError
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lazyviz.divergence.alignment import Barrier, Track

_POLL_S = 0.1
_LIVE_S = 0.5
_INTERRUPTED_S = 5.0
_SHOWN_LINES = 12
_PLAIN = (int, float, complex, str, bytes, bool, type(None), tuple, list, dict)
# XLA's and gloo's own lines, which no program has printed.
_NOISE = ("[Gloo] ",)
_RUN = """\
import importlib, pickle, sys
sources, main, modules, values, args = pickle.load(open(sys.argv[1], "rb"))
names = {"__name__": "__main__", **values}
names |= {name: importlib.import_module(module) for name, module in modules.items()}
for file in sources:
    exec(compile(open(file).read(), file, "exec"), names)
names[main](*args)
"""


@dataclass(frozen=True, repr=False)
class Launched(Evidence):
    """What several processes did.

    Attributes:
        folder: Their records, and what each has written (`rank-0.out`, `rank-0.err`).
        exits: How each has ended: 0, an exit status, a negative signal; None while it runs.
        now: When this was, in seconds since 1970.
    """

    folder: Path
    exits: tuple[int | None, ...]
    now: float

    @property
    def ok(self) -> bool:
        """Whether all have ended well."""
        return not any(self.exits)

    @property
    def summary(self) -> str:
        """How many have ended, and how."""
        failed = sum(map(bool, self.exits))
        count = text.plural(len(self.exits), "process", "processes")
        return f"{count} ended, {failed or 'none'} by a failure"

    @property
    def outputs(self) -> tuple[str, ...]:
        """What each has printed."""
        return tuple(
            "".join(
                line
                for line in _written(self.folder / f"rank-{k}.out")
                if not line.startswith(_NOISE)
            )
            for k in range(len(self.exits))
        )

    @property
    def errors(self) -> tuple[str, ...]:
        """The traceback of each, or the last lines that it wrote to stderr; empty where it ended well."""
        return tuple(
            _last_words(self.folder / f"rank-{k}.err") if status else ""
            for k, status in enumerate(self.exits)
        )

    @cached_property
    def replicas(self) -> Replicas:
        """Their records side by side; see `lazyviz.replicas`."""
        return replicas(self.folder)

    @cached_property
    def _tracks(self) -> list[Track | None]:
        found: list[Track | None] = []
        for rank in range(len(self.exits)):
            try:
                path = self.folder / f"replica-{rank}.jsonl"
                found.append(read_record(path, self.now))
            except (OSError, EvidenceError):
                found.append(None)
        return found

    @property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """Each rank's steps, line, phase and lag behind the first, as texts."""
        first = max((t for t in self._tracks if t), key=_steps, default=None)
        rows = [
            (
                str(rank),
                str(_steps(track)) if track else "",
                str(track.last_lines[0]) if track and track.last_lines else "",
                _phase(track, self.exits[rank]),
                _lag(track, first, self.now)
                if track and first and self.exits[rank] is None
                else "",
            )
            for rank, track in enumerate(self._tracks)
        ]
        return (("rank", "steps", "at", "phase", "behind"), *rows)

    def doc(self) -> Doc:
        """Return a line for each rank, what they printed, and why one failed."""
        parts: list[Any] = [Table(self.table[0], self.table[1:])]
        for rank, printed in enumerate(self.outputs):
            if printed.strip():
                parts.append(Code(textwrap.indent(printed.rstrip(), f"[{rank}] ")))
        said: dict[str, list[str]] = {}
        for rank, error in enumerate(self.errors):
            if error:
                said.setdefault(error, []).append(str(rank))
        for error, ranks in said.items():
            parts += [Line(f"{called(ranks)} failed:".capitalize()), Code(error)]
        if said:
            command = f"%lazy replicas {shlex.quote(str(self.folder))}"
            parts.append(Advice("next", f"`{command}` compares what they ran"))
        return Doc(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        header, *rows = self.table
        return {
            "exits": list(self.exits),
            "ranks": [dict(zip(header, row, strict=True)) for row in rows],
            "outputs": list(self.outputs),
            "errors": list(self.errors),
        }


def launch(
    target: str | Path | Callable[..., Any],
    *args: Any,
    processes: int = 2,
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    live: bool | None = None,
    patience_s: float = 30.0,
) -> Launched:
    """Run a script, or a function of a notebook, in several processes of one machine.

    They have the environment that torchrun gives. An interrupt of the kernel interrupts each of
    them. Where one fails, the others have some time to say so themselves; then they are ended.

    Args:
        target: A script, or a function. Of a notebook's variables it may use modules, functions
            and plain values.
        args: Of the script, as texts, or of the function, which are pickled.
        processes: How many.
        environment: Variables for all of them.
        folder: Where they record and print; by default a new temporary one.
        live: Whether to show each rank's step, line, phase and lag while they run; by default in a
            notebook.
        patience_s: How long the others may run when one has failed.

    Raises:
        UsageError: The function uses what another process cannot have, or there is no script.
        KeyboardInterrupt: The kernel was interrupted; all processes have ended.
    """
    made = Path(
        tempfile.mkdtemp(prefix="lazyviz-launch-") if folder is None else folder
    )
    made.mkdir(parents=True, exist_ok=True)
    command = _command(target, args, made)
    started = [
        _start(command, made, rank, processes, {**(environment or {}), **shared})
        for shared in [_shared()]
        for rank in range(processes)
    ]
    view = _View(is_live=_in_notebook() if live is None else live)
    try:
        _watch(started, made, view, patience_s)
    except KeyboardInterrupt:
        _interrupt(started)
        raise
    finally:
        _end(started)
    found = _state(started, made)
    view.show(found)
    return found


def _shared() -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(probe.getsockname()[1]),
        }


def _start(
    command: Sequence[str],
    folder: Path,
    rank: int,
    count: int,
    variables: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    of_rank = {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count), "LAZYRT_RECORD": str(folder),
        "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2",
    }  # fmt: skip
    with (
        (folder / f"rank-{rank}.out").open("wb") as out,
        (folder / f"rank-{rank}.err").open("wb") as errors,
    ):
        return subprocess.Popen(  # noqa: S603 - the user's own program
            command,
            env={**os.environ, **of_rank, **variables},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,  # a terminal's Ctrl-C comes to the kernel alone
        )


def _watch(
    started: Sequence[subprocess.Popen[bytes]],
    folder: Path,
    view: _View,
    patience_s: float,
) -> None:
    failed_at = shown_at = 0.0
    while any(process.poll() is None for process in started):
        now = time.monotonic()
        if not failed_at and any(process.poll() for process in started):
            failed_at = now
        if failed_at and now > failed_at + patience_s:
            return
        if view.is_live and now > shown_at + _LIVE_S:
            shown_at = now
            view.show(_state(started, folder))
        time.sleep(_POLL_S)


def _interrupt(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Interrupt what runs, and give it time to end."""
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _INTERRUPTED_S
    while time.monotonic() < deadline and any(p.poll() is None for p in started):
        time.sleep(_POLL_S)


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs."""
    for process in started:
        if process.poll() is None:
            process.kill()
    for process in started:
        process.wait()


def _state(started: Sequence[subprocess.Popen[bytes]], folder: Path) -> Launched:
    return Launched(folder, tuple(p.poll() for p in started), time.time())


class _View:
    """Shows the state of the processes in one output, again and again."""

    def __init__(self, *, is_live: bool) -> None:
        self.is_live = is_live
        self._handle: Any = None

    def show(self, found: Launched) -> None:
        if not self.is_live:
            return
        from IPython import display

        new: Any = display.DisplayHandle
        # The cell's result has the table of what has ended.
        table = Table(found.table[0], found.table[1:])
        shown = Doc([table if None in found.exits else Line(found.summary)])
        if self._handle is None:
            self._handle = new()
            self._handle.display(shown)
        else:
            self._handle.update(shown)


def _in_notebook() -> bool:
    from IPython.core.getipython import get_ipython

    return hasattr(get_ipython(), "kernel")


# --------------------------------------------------------------------------- what is run


def _command(
    target: str | Path | Callable[..., Any], args: Sequence[Any], folder: Path
) -> list[str]:
    if not callable(target):
        if not Path(target).is_file():
            raise UsageError(
                f"launch() found no script {str(target)!r}. Give the path of a script, or a "
                "function."
            )
        return [sys.executable, str(target), *map(str, args)]
    sources: dict[str, Path] = {}
    modules: dict[str, str] = {}
    values: dict[str, Any] = {}
    for function in _needed(target, modules, values):
        path = folder / f"{function.__name__}.py"
        path.write_text(_source_of(function), encoding="utf-8")
        sources[function.__name__] = path
    if (
        "lazyrt" in sys.modules
    ):  # the device and the process group may be asked for by name
        modules.setdefault("lazyrt", "lazyrt")
    packed = folder / "launched.pickle"
    files = [str(path) for path in sources.values()]
    content = (files, target.__name__, modules, values, args)
    try:
        packed.write_bytes(pickle.dumps(content))
    except Exception as error:
        raise UsageError(
            f"launch() cannot send the arguments of {target.__name__}() to other processes: "
            f"{error}. Give plain values."
        ) from error
    return [sys.executable, "-c", _RUN, str(packed)]


def _source_of(function: types.FunctionType) -> str:
    """Return a function's source on the lines that it has in its own file or cell."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        raise UsageError(
            f"launch() has no source of {function.__name__}(): {error}. Define it with `def` in a "
            "cell or a file."
        ) from error
    return "\n" * (max(first, 1) - 1) + textwrap.dedent("".join(lines))


def _needed(
    target: Callable[..., Any], modules: dict[str, str], values: dict[str, Any]
) -> Iterator[types.FunctionType]:
    """Yield the functions that one needs; take note of modules and plain values."""
    queue, seen = [target], set[str]()
    while queue:
        function = inspect.unwrap(queue.pop())
        if not isinstance(function, types.FunctionType) or function.__closure__:
            raise UsageError(
                f"launch() got {function!r}, which has state that another process cannot have. "
                "Give a function that is defined with `def` outside of others."
            )
        seen.add(function.__name__)
        yield function
        for name in _global_names(function.__code__):
            if name in seen or name not in function.__globals__:
                continue
            thing = function.__globals__[name]
            if isinstance(thing, types.ModuleType):
                modules[name] = thing.__name__
            elif (
                isinstance(thing, types.FunctionType) and thing.__module__ == "__main__"
            ):
                queue.append(thing)
            elif isinstance(thing, _PLAIN) or (
                callable(thing)
                and getattr(thing, "__module__", "__main__") != "__main__"
            ):  # the latter is found by its name in another process
                values[name] = thing
            else:
                raise UsageError(
                    f"{function.__name__}() uses `{name}`, a {type(thing).__name__} of this "
                    "process, which other processes do not have. Make it in the function, or "
                    "give it as an argument."
                )


def _global_names(code: types.CodeType) -> set[str]:
    found = {name for name in code.co_names if not hasattr(builtins, name)}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _global_names(constant)
    return found


# ----------------------------------------------------------------------------- what is seen


def _steps(track: Track) -> int:
    return len(_ends(track))


def _ends(track: Track) -> list[Barrier]:
    """Return the barriers that ended steps; a read is none."""
    found = (barrier for barrier in track.barriers if barrier.ran)
    return [barrier for barrier in found if not barrier.cause.startswith("read by")]


def _phase(track: Track | None, status: int | None) -> str:
    if status is not None and status < 0:
        return f"killed by {signal.Signals(-status).name}"
    if status:
        failure = f" by {track.failure}" if track and track.failure else ""
        return f"failed{failure}"
    if status == 0:
        return "ended"
    if track is None:
        return "starts"
    if track.entered is not None:
        return f"waits in {track.entered.cause}"
    return "runs Python"


def _lag(track: Track, first: Track, now: float) -> str:
    """Return how many steps a rank is behind the first one, and since when."""
    steps = _steps(track)
    behind = _steps(first) - steps
    if behind <= 0:
        return ""
    seconds = max(0.0, now - _ends(first)[steps].time)
    return f"{text.plural(behind, 'step')}, {seconds:.1f} s"


def _written(path: Path) -> list[str]:
    try:
        data = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return data.splitlines(keepends=True)


def _last_words(path: Path) -> str:
    """Return the message of an error that ended a process, or the last lines that it wrote."""
    lines = [line.rstrip("\n") for line in _written(path)]
    lines = [line.removeprefix(f"[rank{path.stem[5:]}]: ") for line in lines]
    starts = [k for k, line in enumerate(lines) if line.startswith("Traceback ")]
    if starts:
        after = range(starts[-1] + 1, len(lines))
        message = next(
            (k for k in after if lines[k] and not lines[k].startswith(" ")), 0
        )
        return "\n".join(lines[message:]).rstrip()
    return "\n".join(lines[-_SHOWN_LINES:])
