"""Profiles on demand: a server in the program, and who asks it, in this process or another one.

The server speaks HTTP for lazyrt's own client. A profiler's client that speaks gRPC, such as
TensorBoard's, is passed on to jax's server.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import http.server
import importlib.metadata
import json
import logging
import shutil
import socket
import tempfile
import threading
import time
import weakref
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from lazygraph.readable import plural, size_text
from lazyrt.errors import LazyRuntimeError, UsageError
from lazyrt.observe import events
from lazyrt.observe.events import Closing

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)

MAX_BYTES = 256 * 2**20  # what lazyviz.read() takes: about a million events
_MAX_PORT = 65_535
_MAX_S = 3_600.0
# A profile is written in pieces, so that its growth is known: a short one first.
_FIRST_S, _LEAST_S, _SLICE_S = 1.0, 0.1, 5.0
_RETRY_S = 0.5
_HTTP2 = b"PRI "  # how each connection of gRPC begins
_FACTS = "X-Lazyrt-Capture"
_CHUNK = 2**16
_GROUP = "lazyrt.captures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to capture.

    Attributes:
        kind: `xplane` for jax's profile, or a name that `add_kind` was given.
        duration_s: For how long; with `steps`, at most.
        steps: Until so many whole steps are in it; 0 for the duration alone.
        delay_s: How long to wait first.
        max_bytes: Where it ends whatever was asked for.
        options: Of jax's profiler, by name.
    """

    kind: str = "xplane"
    duration_s: float = 1.0
    steps: int = 0
    delay_s: float = 0.0
    max_bytes: int = MAX_BYTES
    options: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("duration_s", 0.001), ("delay_s", 0.0)):
            value = getattr(self, name)
            if type(value) not in {int, float} or not least <= value <= _MAX_S:
                raise UsageError(
                    f"a capture got {name}={value!r}, which is no number of seconds from {least} to "
                    f"{_MAX_S:.0f}, so nothing was captured. Give one."
                )
        for name in ("steps", "max_bytes"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise UsageError(
                    f"a capture got {name}={value!r}, which is no whole number from 0, so nothing "
                    "was captured. Give one."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What came of a capture.

    Attributes:
        data: The profile: an XSpace of XLA, or what the kind makes.
        steps: Whole steps in it.
        duration_s: How long it lasted.
        host: The machine's name.
        notes: What to know of it: that it was ended early, or has no whole step.
    """

    data: bytes
    steps: int
    duration_s: float
    host: str
    notes: tuple[str, ...] = ()

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write a profile of XLA where its readers look for it; return the file."""
        run = Path(folder) / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
        run.mkdir(parents=True, exist_ok=True)
        target = run / f"{self.host}.xplane.pb"
        number = 1
        while target.exists():
            number += 1
            target = run / f"{self.host}_{number}.xplane.pb"
        target.write_bytes(self.data)
        return target


class Making:
    """A capture that is under way, for who makes it.

    Attributes:
        request: What was asked for.
        notes: Sentences for who asked; the maker may add some.
    """

    def __init__(self, request: Request, watch: StepWatch) -> None:
        self.request = request
        self.notes: list[str] = []
        self._watch = watch
        self._until = time.monotonic() + request.duration_s

    def begin(self) -> None:
        """Count steps and seconds from now on."""
        self._watch.reset()
        self._until = time.monotonic() + self.request.duration_s

    def wait(self, most_s: float = _MAX_S) -> bool:
        """Wait for the end of the capture, but no longer than `most_s`; return whether it came."""
        until = min(self._until, time.monotonic() + most_s)
        came = self._watch.wait(self.request.steps, until)
        return came or time.monotonic() >= self._until


def add_kind(name: str, make: Callable[[Making], bytes]) -> None:
    """Let captures of a further kind be asked for.

    A function without arguments that calls this, as an entry point of the group
    `lazyrt.captures`, is called by a server that is asked for a kind that it does not know.

    Args:
        name: How it is asked for.
        make: Begins the profile, waits for the end, and returns it as bytes.
    """
    _kinds[name] = make


# ------------------------------------------------------------------------------- capturing


class StepWatch(Closing):
    """Counts the whole steps that end from now on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._opened = 0
        self._blocks = 0
        self._barriers = 0
        self._is_closed = False
        self._listening = events.subscribe(
            self._note,
            events.StepStarted,
            events.StepFinished,
            events.BarrierFinished,
            exact=False,
        )

    def close(self) -> None:
        """Count no more; who waits goes on."""
        self._listening.close()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def reset(self) -> None:
        """Count from zero; a block that is open is not a whole step."""
        with self._changed:
            self._opened = self._blocks = self._barriers = 0

    @property
    def steps(self) -> int:
        """Blocks of `step()` that began and ended; without any, what lies between two barriers."""
        return self._blocks or max(self._barriers - 1, 0) * (not self._opened)

    def wait(self, steps: int, until: float) -> bool:
        """Wait for so many steps, if any are asked for, or until a moment; return whether they came."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or (bool(steps) and self.steps >= steps),
                max(until - time.monotonic(), 0.0),
            )
            return bool(steps) and self.steps >= steps

    def _note(self, event: events.Event) -> None:
        with self._changed:
            match event:
                case events.StepStarted():
                    self._opened += 1
                case events.StepFinished():
                    if self._opened:
                        self._opened -= 1
                        self._blocks += 1
                case events.BarrierFinished(executed=True):
                    self._barriers += 1
            self._changed.notify_all()


def capture_here(request: Request) -> Captured:
    """Capture what this process does, on a thread that waits meanwhile.

    Raises:
        UsageError: There is no such kind.
        LazyRuntimeError: Another profile is being taken.
    """
    if request.kind not in _kinds:
        for entry in importlib.metadata.entry_points(group=_GROUP):
            entry.load()()
    make = _kinds.get(request.kind)
    if make is None:
        raise UsageError(
            f"the program makes no captures of kind {request.kind!r}, only of "
            f"{', '.join(_kinds)}. Install the package that makes them where the program runs."
        )
    time.sleep(request.delay_s)
    began = time.monotonic()
    with StepWatch() as watch:
        making = Making(request, watch)
        data = make(making)
        steps, took = watch.steps, time.monotonic() - began
    if not steps:
        making.notes.append(
            f"no whole step ended within these {took:.3g} s, so nothing can be said about steps. "
            "Ask for steps=1 to go on until there is one"
        )
    elif steps < request.steps:
        making.notes.append(
            f"only {plural(steps, 'whole step')} of {request.steps} ended within {took:.3g} s"
        )
    return Captured(
        data=data,
        steps=steps,
        duration_s=took,
        host=socket.gethostname(),
        notes=tuple(making.notes),
    )


class _Pieces:
    """A profile of XLA in pieces, so that its growth is known; it ends where it has become too large.

    Attributes:
        pieces: What has been written.
        note: Why it has ended by itself; empty if it has not.

    Args:
        options: Of jax's profiler.
        max_bytes: Where it ends.

    Raises:
        RuntimeError: Another profile is being taken.
    """

    def __init__(self, options: Any, max_bytes: int) -> None:
        self.pieces: list[bytes] = []
        self.note = ""
        self._options, self._max_bytes = options, max_bytes
        self._began = time.monotonic()
        self.folder = self._begun()

    def _begun(self) -> tempfile.TemporaryDirectory[str]:
        folder = tempfile.TemporaryDirectory()
        try:
            start(folder.name, self._options)
        except BaseException:
            folder.cleanup()
            raise
        return folder

    def take(self, wait: Callable[[float], bool]) -> None:
        """Take pieces until `wait`, which waits for at most so many seconds, says that it is over."""
        slice_s = min(_FIRST_S, _SLICE_S)
        while True:
            try:
                is_over = wait(slice_s)
            finally:
                stop()
            written = Path(self.folder.name).rglob("*.xplane.pb")
            self.pieces += [file.read_bytes() for file in written]
            nbytes, took = sum(map(len, self.pieces)), time.monotonic() - self._began
            if nbytes >= self._max_bytes and not is_over:
                self.note = (
                    f"it was ended after {took:.3g} s, at {size_text(nbytes)}: it grows by "
                    f"{size_text(int(nbytes / took))} a second, and was to end at "
                    f"{size_text(self._max_bytes)}. Capture fewer steps"
                )
                is_over = True
            left_s = took * (self._max_bytes / max(nbytes, 1) - 1)
            slice_s = min(max(left_s, _LEAST_S), _SLICE_S)
            if is_over:
                return
            try:
                following = self._begun()
            except RuntimeError as error:
                self.note = f"it was ended after {took:.3g} s: {error}"
                return
            self.folder.cleanup()
            self.folder = following


def _xplane(making: Making) -> bytes:
    taken = _Pieces(making.request.options, making.request.max_bytes)
    try:
        taken.take(making.wait)
    finally:
        taken.folder.cleanup()
    making.notes += filter(None, [taken.note])
    return b"".join(taken.pieces)  # which is one message with the planes of all


class Recording:
    """A profile of XLA of what the program does from now on, of at most `max_bytes`.

    Args:
        folder: Where it is written to when it ends.
        options: jax's `ProfileOptions`, or some of them by name.
        max_bytes: Where it ends by itself; `MAX_BYTES` by default.

    Raises:
        UsageError: There is no such option.
        RuntimeError: A profile is being taken.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        options: Any = None,
        max_bytes: int | None = None,
    ) -> None:
        self._target = Path(folder)
        self._pieces = _Pieces(options, MAX_BYTES if max_bytes is None else max_bytes)
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._pieces.take,
            args=(self._ended.wait,),
            name="lazyrt trace",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> str:
        """End it and write it; return why it ended before, empty if it did not."""
        self._ended.set()
        self._thread.join()
        pieces = self._pieces
        with pieces.folder as last:
            if len(pieces.pieces) == 1:  # with what jax writes beside the profile
                shutil.copytree(last, self._target, dirs_exist_ok=True)
            else:
                Captured(
                    data=b"".join(pieces.pieces),
                    steps=0,
                    duration_s=time.monotonic() - self._began,
                    host=socket.gethostname(),
                ).write(self._target)
        return pieces.note


_kinds: dict[str, Callable[[Making], bytes]] = {"xplane": _xplane}


def start(
    folder: str | os.PathLike[str], options: Mapping[str, int] | Any = None
) -> None:
    """Begin a profile of XLA, without the events of Python's own frames unless they are asked for.

    Args:
        folder: Where it is written to when it ends.
        options: jax's `ProfileOptions`, or some of them by name, such as
            `{"python_tracer_level": 1}`.

    Raises:
        UsageError: There is no such option.
        RuntimeError: A profile is being taken.
    """
    jax.profiler.start_trace(folder, profiler_options=_options(options))


def _options(given: Mapping[str, int] | Any) -> Any:
    if isinstance(given, jax.profiler.ProfileOptions):
        return given
    found = jax.profiler.ProfileOptions()
    # Python's frames were 138,908 of the 142,094 events of a short profile.
    found.python_tracer_level = 0
    names = [name for name in dir(found) if not name.startswith("_")]
    for name, value in dict(given or {}).items():
        if name not in names:
            raise UsageError(
                f"a profile got the option {name!r}, which is none, so it was not begun. The "
                f"options are {', '.join(names)}."
            )
        setattr(found, name, value)
    return found


def stop() -> None:
    """End the profile that `start` began, and write it."""
    jax.profiler.stop_trace()  # type: ignore[no-untyped-call]


# ------------------------------------------------------------------------------- the server


class ProfilerServer(Closing):
    """Answers requests for captures, until it is closed or garbage.

    `python -m lazyviz capture HOST:PORT` asks it. Between captures it costs nothing. Whoever reaches it
    can take profiles without a password. These name files, lines and ops and quote the costliest
    lines; they hold no values of tensors.

    Args:
        port: 0 lets the system choose.
        host: The address on which it listens: by default this machine alone can reach it, and
            with "0.0.0.0" every machine that reaches this one.

    Attributes:
        port, host: Where it listens.

    Raises:
        UsageError: It is no port.
        LazyRuntimeError: Another program or server has it, or the machine has no such address.
    """

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        if type(port) is not int or not 0 <= port <= _MAX_PORT:
            raise UsageError(
                f"a profiler server got port {port!r}, which is no port, so it was not started. Give "
                f"a free one from 1024 to {_MAX_PORT}, or 0 to let the system choose."
            )
        try:
            listener = _Listener((host, port), _Handler)
        except OSError as error:
            why = error.strerror or error
            raise LazyRuntimeError(
                f"the profiler server cannot listen on port {port}: {why}. Another program or "
                "server has it; give another port, or 0 to let the system choose."
                if error.errno == errno.EADDRINUSE
                else f"the profiler server cannot listen on {host!r}, port {port}: {why}, so nobody "
                'can ask it. Give an IPv4 address of this machine, or "0.0.0.0" for all, and a '
                "port from 1024 up."
            ) from None
        self.host = host or "0.0.0.0"  # noqa: S104 - what an empty one means
        self.port: int = listener.server_address[1]
        self._end = weakref.finalize(self, listener.end)
        thread = threading.Thread(
            target=listener.serve_forever, name="lazyrt profiler server", daemon=True
        )
        thread.start()
        listener.thread = thread

    def __repr__(self) -> str:
        at = f"port {self.port} of {self.host}" if self._end.alive else "closed"
        return f"<lazyrt profiler server: {at}>"

    def close(self) -> None:
        """Stop listening; a capture that is under way still answers."""
        self._end()


class _Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    allow_reuse_port = False
    thread: threading.Thread | None = None

    def end(self) -> None:
        if self.thread is not threading.current_thread():
            self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection: a request for a capture, or a gRPC client."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            if self.connection.recv(len(_HTTP2), socket.MSG_PEEK) == _HTTP2:
                _pass_on(self.connection)
            else:
                super().handle()

    def do_POST(self) -> None:
        try:
            # A page of another site cannot send this without being asked for leave first.
            is_ours = self.headers.get_content_type() == "application/json"
            length = int(self.headers.get("Content-Length", 0)) if is_ours else 0
            asked = json.loads(self.rfile.read(min(length, _CHUNK)))
            done = capture_here(Request(**asked))
        except (UsageError, TypeError, ValueError) as error:
            self._answer(400, str(error).encode(), {})
        except RuntimeError as error:
            self._answer(409, str(error).encode(), {})
        else:
            facts = {k: v for k, v in asdict(done).items() if k != "data"}
            self._answer(200, done.data, facts)

    def _answer(self, status: int, body: bytes, facts: Mapping[str, Any]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header(_FACTS, json.dumps(facts))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        _log.debug(format, *args)


_jax_port: int | None = None
_jax_lock = threading.RLock()


def _pass_on(connection: socket.socket) -> None:
    """Connect a client that speaks gRPC with jax's server, which is started for the first one."""
    global _jax_port
    with _jax_lock:
        if _jax_port is None:
            port = _free_port()
            jax.profiler.start_server(port)
            _jax_port = port
    with socket.create_connection(("127.0.0.1", _jax_port), timeout=10) as other:
        other.settimeout(None)
        back = threading.Thread(target=_pump, args=(other, connection), daemon=True)
        back.start()
        _pump(connection, other)
        back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


# ------------------------------------------------------------------------------- the client


def capture(
    address: str, request: Request, *, attempts: int = 3, timeout_s: float = 120.0
) -> Captured:
    """Ask the program at an address for a capture, and wait for it.

    Args:
        address: `HOST:PORT` of its profiler server.
        request: What to capture.
        attempts: How often to ask where no server answers, or another profile is being taken.
        timeout_s: How long to wait for the answer, beside what the capture itself takes.

    Raises:
        UsageError: It is no address, or the program does not take the request.
        LazyRuntimeError: No attempt brought a profile.
    """
    host, port = _parsed(address)
    if type(attempts) is not int or attempts < 1:
        raise UsageError(
            f"a capture got attempts={attempts!r}, which is no number from 1, so none was asked. "
            "Give one."
        )
    why = ""
    for number in range(attempts):
        if number:
            time.sleep(_RETRY_S * number)
        try:
            return _ask(host, port, request, timeout_s)
        except _Refused as error:
            why = str(error)
        except (OSError, http.client.HTTPException) as error:
            why = f"no server answers ({getattr(error, 'strerror', None) or error})"
    raise LazyRuntimeError(
        f"no profile came from {address} in {plural(attempts, 'attempt')}: {why}. The program must "
        "hold what xp.start_server(port) or lazyrt.ProfilerServer(port) returned, and take no "
        'other profile meanwhile. Machines other than its own reach it with host="0.0.0.0" alone.'
    )


class _Refused(Exception):  # noqa: N818 - it never leaves the module
    """The program cannot take a profile now."""


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = str(address).removeprefix("http://").rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) <= _MAX_PORT):
        raise UsageError(
            f"a capture got the address {address!r}, which is not HOST:PORT, so none was asked. "
            "Give one such as localhost:9012."
        )
    return host.strip("[]"), int(port)


def _ask(host: str, port: int, request: Request, timeout_s: float) -> Captured:
    whole_s = request.delay_s + request.duration_s + timeout_s
    connection = http.client.HTTPConnection(host, port, timeout=whole_s)
    with contextlib.closing(connection):
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/", json.dumps(asdict(request)), headers)
        answer = connection.getresponse()
        data = answer.read()
        facts = json.loads(answer.headers.get(_FACTS) or "{}")
    if answer.status == http.HTTPStatus.OK and facts:
        return Captured(data=data, **(facts | {"notes": tuple(facts["notes"])}))
    said = data.decode("utf-8", "replace")
    if answer.status == http.HTTPStatus.BAD_REQUEST:
        raise UsageError(said)
    raise _Refused(said or f"it answered {answer.status}")
