"""Profiles of a cell, of what just happened, and of another process that holds a profiler server.

`%%lazy profile`, `%lazy profile`, the strip's button, and `python -m lazyviz capture HOST:PORT`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lazyviz.command_line import output_file, whole_number
from lazyviz.doc import Doc, Line
from lazyviz.render import text
from lazyviz.timing.profile import Profile, latest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from lazyrt.observe.events import Event
    from lazyrt.tools import Captured, Making, Pause

KIND = "lazyviz"
RING_S = 30.0
_MAX_WINDOWS = 64  # of a ring: each is of a few runs, which stand for those around them
_LOOK_S = 0.05
_MAX_S = 3_600.0
_MAX_BATCHES = 750  # of a ring's events: some twenty seconds of very short steps
_MAX_PAUSES = 20_000
_USAGE = (
    "%%lazy profile profiles a cell; --steps N ends the profile with the N-th step, --seconds S "
    "after S seconds, --save FILE.json writes it"
)
_LINE_USAGE = (
    "%lazy profile on keeps what happens in the last 30 seconds, %lazy profile on 60 in the last "
    "60; then %lazy profile shows all of it, %lazy profile 5 the last 5 seconds; %lazy profile "
    "off ends that"
)
_NO_STEP = (
    "No whole step ended in this profile, so nothing can be said about steps. End the work with "
    "lazyrt.mark_step(), or put it into lazyrt.step()."
)


# -------------------------------------------------------------------------------- a cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What `%%lazy profile` is asked for.

    Attributes:
        steps: The profile ends with so many steps; 0 for the cell's end.
        seconds: It ends after so long; 0 for the cell's end.
        save: Where it is written to; None for nowhere.
    """

    steps: int = 0
    seconds: float = 0.0
    save: Path | None = None


def asked(rest: str) -> Asked:
    """Read what stands behind `%%lazy profile`.

    Raises:
        ValueError: It is no option, or not what the option takes.
    """
    words = rest.split()
    pairs = zip(words[::2], [*words[1::2], ""], strict=False)
    try:
        return Asked(**dict(_option(*pair) for pair in pairs))
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise ValueError(f"%%lazy profile {rest}: {error}. {_USAGE}.") from None


def _option(option: str, value: str) -> tuple[str, Any]:
    if option == "--steps":
        return "steps", whole_number(value)
    if option == "--seconds":
        return "seconds", _seconds(value)
    if option == "--save":
        return "save", output_file(value.strip("'\""))
    raise ValueError(f"{option!r} is no option")


def profile_cell(run: Callable[[], object], options: Asked) -> Profile:
    """Run a cell and return the profile of it, or of its beginning.

    An exception of the cell ends the profile and is raised.
    """
    __tracebackhide__ = True
    from lazyrt.tools import StepWatch

    profile = Profile()
    with apart(), StepWatch() as watch:

        def end(until: float) -> None:
            watch.wait(options.steps, until)
            profile.stop(wait=False)

        profile.start()
        try:
            if options.steps or options.seconds:
                until = time.monotonic() + (options.seconds or _MAX_S)
                threading.Thread(target=end, args=[until], daemon=True).start()
            run()
        finally:
            profile.stop()
    if options.save is not None:
        profile.save(options.save)
    return profile


def doc(profile: Profile, options: Asked | None = None) -> Doc:
    """Return a profile, with what to know of it first."""
    shown = profile.doc()
    found = _notes(profile, options)
    return dataclasses.replace(shown, parts=[*map(Line, found), *shown.parts])


def _notes(profile: Profile, options: Asked | None) -> list[str]:
    found = []
    if not profile.steps:
        found.append(_NO_STEP)
    elif options is not None and 0 < len(profile.steps) < options.steps:
        found.append(
            f"The cell ended after {text.plural(len(profile.steps), 'step')} of {options.steps}."
        )
    if options is not None and options.save is not None:
        found.append(f"Written to {options.save}.")
    return found


# ------------------------------------------------------------------ what just happened


class Ring(Profile):
    """A profile that goes on and keeps the last seconds alone.

    Args:
        seconds: How many.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self._pauses: deque[Pause] = deque(maxlen=_MAX_PAUSES)  # type: ignore[assignment]

    def last(self, seconds: float) -> Profile:
        """Return the profile of the last seconds up to now."""
        now = time.perf_counter_ns()
        since = now - int(min(seconds, self.seconds) * 1e9)
        since = max(since, self.start_ns, self._notes.forgotten_ns)
        return Profile.of(
            [each for each in self._notes if each.now_ns >= since],
            [each for each in tuple(self._pauses) if each.end_ns >= since],
            self._thread or 0,
            since,
            now,
            [each for each in self._windows.windows if each.trace.data],
        )

    @contextlib.contextmanager
    def without_trace(self) -> Iterator[None]:
        """Let another profile have the trace of the device, of which there is one at a time."""
        self._windows.rest(on=True)
        try:
            yield
        finally:
            self._windows.rest(on=False)

    def _listeners(self) -> Iterator[tuple[Any, ...]]:
        from lazyrt.observe import events

        yield from super()._listeners()
        yield self._forget_old, events.BarrierFinished

    def _forget_old(self, _event: Event) -> None:
        since = time.perf_counter_ns() - int(self.seconds * 1e9)
        self._notes.forget(since, _MAX_BATCHES)
        while self._pauses and self._pauses[0].end_ns < since:
            self._pauses.popleft()
        del self._windows.windows[:-_MAX_WINDOWS]


def apart() -> contextlib.AbstractContextManager[None]:
    """Let another profile have the trace of the device meanwhile."""
    return _rings[0].without_trace() if _rings else contextlib.nullcontext()


_rings: list[Ring] = []


def run_magic(rest: str) -> Profile | str:
    """Do what `%lazy profile` is asked for: show the last seconds, or begin or end to keep them.

    Raises:
        ValueError: It is none of these.
    """
    words = rest.split()
    try:
        if words == ["off"]:
            was_on = bool(_rings)
            end_rings()
            return "Nothing is kept any more." if was_on else "Nothing was kept."
        if words[:1] == ["on"]:
            return _begin_ring(_seconds(" ".join(words[1:])) if words[1:] else RING_S)
        seconds = _seconds(" ".join(words)) if words else _MAX_S
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"%lazy profile {rest}: {error}. {_LINE_USAGE}.") from None
    if _rings:
        return _rings[0].last(seconds)
    taken = latest() if not words else None
    if taken is None:
        none = "Nothing is kept" if words else "No profile was taken yet"
        return f"{none}. {_USAGE}. {_LINE_USAGE}."
    return taken


def _begin_ring(seconds: float) -> str:
    end_rings()
    _rings.append(Ring(seconds))
    _rings[0].start()
    return (
        f"The last {seconds:g} s are kept from now on; %lazy profile shows them, "
        "%lazy profile off ends that."
    )


def end_rings() -> None:
    """Keep the last seconds no more, as `%lazy profile off` does."""
    while _rings:
        _rings.pop().stop(wait=False)


def _seconds(word: str) -> float:
    try:
        found = float(word)
    except ValueError:
        found = 0.0
    if not 0 < found <= _MAX_S:
        raise argparse.ArgumentTypeError(
            f"{word!r} is no number of seconds above 0 and up to {_MAX_S:,.0f}"
        )
    return found


# --------------------------------------------------------------------- another process


def register() -> None:
    """Let this process's profiler server make profiles of lazyviz's kind."""
    from lazyrt.tools import add_kind

    add_kind(KIND, _make)


def _make(making: Making, thread: int | None = None) -> bytes:
    """Take a profile of a thread, else of the one that steps; return it as JSON and as shown."""
    profile = Profile(thread=thread or _stepping_thread(making))
    with apart():
        profile.start()
        making.begin()
        try:
            making.wait()
        finally:
            profile.stop(wait=False)
    if thread is not None:  # a notebook waits until somebody runs a cell
        profile = profile.from_first_event()
    shown = profile.doc()
    found = {**profile.to_dict(), "text": shown.to_text()}
    if thread is not None:  # a page quotes the source, which nobody else is to be sent
        found["html"] = shown.to_html()
    data = json.dumps(found).encode()
    if len(data) > making.request.max_bytes:
        making.notes.append(
            f"it took {text.size(len(data))}, more than the {text.size(making.request.max_bytes)} "
            "that were asked for, so its single gaps and the spans of its picture are left out"
        )
        data = json.dumps(found | {"gaps": [], "spans": []}).encode()
    return data


def _stepping_thread(making: Making) -> int:
    """Return the thread that ends the next step; the main one if none does for a while."""
    from lazyrt import subscribe
    from lazyrt.observe.events import BarrierFinished

    threads: list[int] = []
    with subscribe(lambda _: threads.append(threading.get_ident()), BarrierFinished):
        until = time.monotonic() + min(making.request.duration_s / 10, 1.0)
        while not threads and time.monotonic() < until:
            if making.wait(_LOOK_S):
                break
    found = threading.main_thread().ident or 0
    return threads[0] if threads else found


def next_step(most_s: float = 60.0) -> tuple[int, str]:
    """Profile this process up to the end of its next whole step.

    Returns:
        How many whole steps came, and the profile as HTML.
    """
    from lazyrt.tools import CaptureRequest, add_kind, capture_here

    kind = f"{KIND}, cells"  # which the main thread runs
    add_kind(kind, partial(_make, thread=threading.main_thread().ident))
    found = capture_here(CaptureRequest(kind=kind, steps=1, duration_s=most_s))
    return found.steps, str(json.loads(found.data)["html"])


def main(arguments: Sequence[str]) -> int:
    """Run `python -m lazyviz capture`; return 0, 1 for no whole step, 2 for no profile."""
    options = _parser().parse_args(arguments)
    if options.detached:
        return _detach(options, arguments)
    from lazyrt.tools import CaptureRequest, capture

    steps, seconds = options.steps, options.seconds
    while True:
        try:
            request = CaptureRequest(
                kind="xplane" if options.xplane else KIND,
                duration_s=seconds or (60.0 if steps else 1.0),
                steps=steps,
                delay_s=options.delay,
                max_bytes=options.megabytes * 2**20,
            )
            found = capture(
                options.address,
                request,
                attempts=options.attempts,
                timeout_s=options.timeout,
            )
        except RuntimeError as error:
            sys.stderr.write(f"lazyviz capture: {error}\n")
            return 2
        if found.steps or steps or not _goes_on(found):
            break
        steps, seconds = 1, 0.0
    _show(found, options)
    return int(not found.steps)


def _goes_on(found: Captured) -> bool:
    """Ask whoever sits there whether to go on until there is a whole step."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    answer = input(
        f"No whole step ended within {found.duration_s:.3g} s. Go on until one has? [Y/n] "
    )
    return answer.strip().lower() in {"", "y", "yes"}


def _show(found: Captured, options: argparse.Namespace) -> None:
    if options.xplane:
        sys.stdout.write(f"Written to {found.write(options.xplane)}\n")
    else:
        data = json.loads(found.data)
        sys.stdout.write(f"{data['text']}\n")
        if options.output is not None:
            options.output.write_bytes(found.data)
            sys.stdout.write(f"\nWritten to {options.output}\n")
    for note in found.notes:
        sys.stdout.write(f"note: {note}.\n")


_detached: list[subprocess.Popen[bytes]] = []  # nobody waits for these


def _detach(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Let a process of its own do the capture, and return at once."""
    if not (options.output or options.xplane):
        sys.stderr.write(
            "lazyviz capture: --detached shows nothing, so the profile would be lost. Give "
            "--output FILE or --xplane FOLDER, too.\n"
        )
        return 2
    left = [word for word in arguments if word != "--detached"]
    started = subprocess.Popen(  # noqa: S603 - this very command
        [sys.executable, "-m", "lazyviz", "capture", *left],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _detached.append(started)
    sys.stdout.write(f"Process {started.pid} captures and writes the file.\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lazyviz capture",
        description="Profile another process, here or on another machine, which holds what "
        "lazyrt.ProfilerServer(port) or xp.start_server(port) returned. Exit status 1 if no whole "
        "step ended meanwhile, 2 if no profile came.",
    )
    parser.add_argument("address", metavar="HOST:PORT", help="where its server listens")
    for name, kind, default, metavar, words in (
        ("--seconds", _seconds, 0.0, "S", "how long; by default 1, and 60 at most with --steps"),
        ("--steps", whole_number, 0, "N", "until N whole steps are in it"),
        ("--delay", _seconds, 0.0, "S", "how long the process waits first"),
        ("--attempts", whole_number, 3, "N", "how often to ask; by default 3"),
        ("--timeout", _seconds, 120.0, "S", "how long to wait for the answer beside the capture; by default 120"),
        ("--megabytes", whole_number, 256, "N", "where it ends whatever was asked for; by default 256"),
        ("--output", output_file, None, "FILE", "write it as JSON, too"),
        ("--xplane", str, None, "FOLDER", "take XLA's profile instead, for lazyviz.read() or TensorBoard"),
    ):  # fmt: skip
        parser.add_argument(
            name, type=kind, default=default, metavar=metavar, help=words
        )
    parser.add_argument(
        "--detached",
        action="store_true",
        help="return at once; a process of its own writes the file",
    )
    return parser
