"""Computation → executable: in memory, on disk, or by XLA on a worker thread.

XLA runs on a worker so that the caller's thread can show progress and be interrupted: Ctrl-C
returns at once, the compile goes on, and whoever asks for the same executable next finds it or
waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from concurrent import futures
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.errors import LoweringError
from lazyrt.execution import cache, linked, process, replicas
from lazyrt.execution.linked import parts_of
from lazyrt.execution.transfer import HostKernel
from lazyrt.lowering.collectives import processes_of
from lazyrt.lowering.emit import argument_types, emit_text, result_types
from lazyrt.lowering.partitioning import mesh_of, warn_of_gathers
from lazyrt.lowering.spec import Spec, first_line, forget_executables
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lazyrt.ir.fingerprint import Canonical
    from lazyrt.ir.node import Node
    from lazyrt.jax_compat import Donated, Placements
    from lazyrt.observe.events import Purpose, Tier

Place = Literal["memory", "disk", "nowhere"]
"""Where an executable is."""

_log = logging.getLogger(__name__)

_POLL_S = 0.5
_MAX_FAREWELL_S = 5.0
_WORKERS = 2

FEW_NODES = 10  # that the fixed part of a compile is worth

_executables: dict[str, Any] = {}
_facts: dict[str, cache.Facts] = {}
_hits: dict[str, int] = {}  # how often each was found instead of compiled
_under_way: dict[str, Future[Any]] = {}
# When reading a file ahead of its use began, and what gives the executable.
_ahead: dict[str, tuple[int, Future[Any]]] = {}
_lock = threading.RLock()  # a finaliser that runs below it may read a tensor


class _Workers:
    """Daemon threads for XLA: one that is compiling must not keep Python from exiting."""

    def __init__(self, count: int, name: str = "compile") -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = (
            queue.SimpleQueue()
        )
        self._count = count
        self._name = name
        self._started = False
        self.running: Future[Any] | None = None

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        if not self._started:
            self._started = True
            process.guard_environment()
            for number in range(self._count):
                name = f"lazyrt-{self._name}-{number}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        future: Future[Any] = Future()
        self._jobs.put((future, job))
        return future

    def _run(self) -> None:
        while True:
            future, job = self._jobs.get()
            if not future.set_running_or_notify_cancel():
                continue
            self.running = future
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                future.set_exception(error)
            del future, job


_workers = _Workers(_WORKERS)
# Nobody waits for an optimised build, so it must not keep the other workers busy.
_in_background = _Workers(1, "tier-up")
_not_built: set[str] = set()  # keys of optimised builds that failed in the background


def lookup(key: str) -> Any | None:
    """Return the executable of a key if it is in memory, and count it as used now."""
    with _lock:
        found = _executables.pop(key, None)
        if found is not None:
            _executables[key] = found  # at the end of those to be dropped
            _hits[key] = _hits.get(key, 0) + 1
        return found


def hits(key: str) -> int:
    """Return how often this process looked an executable up and found it."""
    return _hits.get(key, 0)


def executable_count() -> int:
    """Return how many executables are in memory."""
    return len(_executables)


def drop_oldest(kept: int) -> int:
    """Drop the executables not looked up for longest; return how many these were.

    Whoever holds one (a plan, a single op) must be made to look it up again.
    """
    with _lock:
        oldest = list(_executables)[: max(len(_executables) - kept, 0)]
        drop(oldest)
    return len(oldest)


def held() -> dict[str, tuple[str, cache.Facts]]:
    """Return the key and the facts of each executable in memory, by the key's digest."""
    with _lock:
        return {
            cache.digest_of(key): (key, _facts.get(key, cache.Facts()))
            for key in _executables
        }


def drop(keys: Iterable[str]) -> None:
    """Drop executables from memory; as in `drop_oldest`, holders must look them up again."""
    with _lock:
        for key in keys:
            _executables.pop(key, None)
            _facts.pop(key, None)
            _hits.pop(key, None)
    forget_executables()


def executable_of(key: str) -> Any:
    """Return the executable by which steps last ran a graph; None if none is in memory.

    The key may be no more than the graph's fingerprint, with which all of its keys begin.

    One that shares layers has no HLO of the whole, and does not count.
    """
    with _lock:
        for known in reversed(_executables):
            found = _executables[known]
            is_whole = not isinstance(found, linked.LinkedExecutable)
            if not is_whole or not known.startswith(key):
                continue
            if _facts[known].holds.startswith("step graph "):
                return found
    return None


def executables_of(fingerprint: str) -> tuple[Any, ...]:
    """Return all builds of a graph that are in memory, those for peeks, too."""
    with _lock:
        return tuple(
            executable
            for key, executable in _executables.items()
            if key.startswith(fingerprint)
        )


def graph_key(graph: Canonical, donated: Iterable[int], *, fast: bool) -> str:
    """Return the cache key of a graph's executable.

    Which result takes a donated argument's memory is not part of it: results are the same.
    """
    tier = "fast" if fast else "optimised"
    tier += ", layers shared" * (fast and config.share_layers)
    key = f"{graph.fingerprint}|{','.join(map(str, donated))}|{tier}"
    return key + _of_this_process(given_rules(graph), processes_of(graph.nodes))


def given_rules(graph: Canonical) -> tuple[tuple[str, int], ...]:
    """Return the rules of the user's that lower a graph, and how often such a rule had come."""
    return tuple(sorted({each for node in graph.nodes for each in node.spec.given}))


def _of_this_process(rules: tuple[tuple[str, int], ...], processes: int = 0) -> str:
    """Return what such rules and processes add to a key; another run may have others."""
    given = [f"{name} {times}" for name, times in rules]
    given += [f"{processes} processes"] * bool(processes)
    return f"{cache.OF_THIS_PROCESS}{', '.join(given)}" if given else ""


def compile_graph(
    graph: Canonical,
    donated: Donated,
    *,
    fast: bool,
    purpose: Purpose,
    reason: str = "",
    names: Mapping[int, str] | None = None,
    numbered: bool = False,
    placements: Placements | None = None,
) -> Any:
    """Return the executable of a graph, compiling it if neither memory nor disk has it.

    Its arguments are those of `argument_types`, its results the canonical roots and one scalar that
    is ready when the execution is. The reason says why the graph is new, and names are the user's
    of inputs, by position. With `numbered`, labels in its HLO tell equal nodes apart. A module that
    XLA refuses is a LoweringError.
    """
    key = _graph_key(graph, donated, fast=fast, purpose=purpose, numbered=numbered)
    build, facts = _build_of(
        graph, donated, fast, purpose, names, placements, numbered=numbered
    )
    begun = _begin(key, build, graph.fingerprint, purpose, reason, facts, fast=fast)
    made = _result(begun, graph.fingerprint, facts.nodes, purpose)
    if placements is not None and purpose == "step":
        warn_of_gathers(made, graph)
    return made


def tier_up(
    graph: Canonical,
    donated: Donated,
    names: Mapping[int, str],
    done: Callable[[Any], object],
) -> None:
    """Compile the optimised build of a graph in the background, unless that is under way.

    `done` gets the executable, on the thread that compiled it. A build that fails is not tried
    again, and nothing is called: the fast one goes on.
    """
    key = graph_key(graph, donated, fast=False)
    build, facts = _build_of(graph, donated, False, "tier up", names, None)  # noqa: FBT003

    def finish(future: Future[Any]) -> None:
        if future.cancelled():
            return
        if future.exception() is None:
            done(future.result())
        else:
            _not_built.add(key)
            _log.info("the optimised build failed", exc_info=future.exception())

    with _lock:
        if key in _executables or key in _under_way or key in _not_built:
            return
        job = _job(key, build, graph.fingerprint, "tier up", "", facts, fast=False)
        future = _under_way[key] = _in_background.submit(job)
    future.add_done_callback(finish)


def saves_time_in_two_tiers(graph: Canonical, optimised: str, fast: str) -> bool:
    """Return whether to run a graph by its fast build while the optimised one is made or read.

    Not where the disk has the optimised one alone; nor where the fixed part of a compile, which
    both builds have, is most of it; nor on several devices or processes, which must run the same
    build.
    """
    several = processes_of(graph.nodes) or mesh_of(graph) is not None
    is_first = cache.has(fast) or not cache.has(optimised)
    return len(graph.nodes) > FEW_NODES and not several and is_first


@contextlib.contextmanager
def reading_ahead(key: str) -> Iterator[None]:
    """Let a worker read the executable of a key meanwhile, if the disk has it."""
    if cache.has(key):
        process.check_not_forked()
        future = _workers.submit(lambda: cache.load(key))
        _ahead[key] = time.perf_counter_ns(), future
    try:
        yield
    finally:
        _ahead.pop(key, None)


def _build_of(
    graph: Canonical, donated: Donated, fast: bool, purpose: Purpose,  # noqa: FBT001
    names: Mapping[int, str] | None, placements: Placements | None, *, numbered: bool = False,
) -> tuple[Callable[[], Any], cache.Facts]:  # fmt: skip
    """Return what compiles a graph, and what a list of executables says of it."""
    processes = processes_of(graph.nodes)
    shares_layers = (
        fast
        and purpose == "step"
        and config.share_layers
        and not processes
        and placements is None
        and jax_compat.device().platform == "cpu"
    )

    def build() -> Any:
        ins, outs = argument_types(graph), result_types(graph)
        if shares_layers and (shared := _with_shared_layers(graph, donated, purpose)):
            return shared
        start = time.perf_counter_ns()
        text = emit_text(
            graph,
            names,
            numbered=numbered,
            fast=fast,
            partitioned=placements is not None,
        )
        _tell_lowered(graph, purpose, start)
        try:
            made = jax_compat.compile_text(
                text,
                ins,
                outs,
                donated,
                fast=fast,
                names=names,
                processes=processes,
                placements=placements,
            )
        except Exception as error:
            raise _refused(graph, error) from error
        return replicas.guarded(made, graph) if processes else made

    facts = cache.Facts(
        holds=f"{'step' if purpose == 'tier up' else purpose} graph {graph.fingerprint[:8]}",
        nodes=len(graph.nodes),
        tier="fast" if fast else "optimised",
        line=_line_of(graph.nodes[-1]) if graph.nodes else "",
        written_s=time.time(),
    )
    return build, facts


def _with_shared_layers(
    graph: Canonical, donated: Donated, purpose: Purpose
) -> linked.LinkedExecutable | None:
    """Return a build that compiles equal layers once; None where that saves no time."""
    start = time.perf_counter_ns()
    try:
        parts = parts_of(graph)
        if not parts:
            return None
        _tell_lowered(graph, purpose, start)
        return linked.link(graph, parts, donated, given_rules(graph))
    except Exception:  # noqa: BLE001 - the whole program tells what is wrong
        _log.info("compiling layers by themselves failed", exc_info=True)
        return None


def _tell_lowered(graph: Canonical, purpose: Purpose, start: int) -> None:
    events.emit(
        events.LoweringFinished(
            fingerprint=graph.fingerprint,
            purpose=purpose,
            nodes=len(graph.nodes),
            duration_ns=time.perf_counter_ns() - start,
        )
    )


def _graph_key(
    graph: Canonical, donated: Iterable[int], *, fast: bool, purpose: Purpose,
    numbered: bool = False,
) -> str:  # fmt: skip
    key = graph_key(graph, donated, fast=fast) + "|numbered" * numbered
    # A step must compile what it would have without the look.
    return key if purpose == "step" else f"{key}|{purpose}"


def place_of_peek(graph: Canonical) -> Place:
    """Return where the executable of a peek's graph is; nothing is read or counted."""
    return _place(_graph_key(graph, (), fast=True, purpose="peek"))


def place_of_op(spec: Spec) -> Place:
    """Return where the executable of a single op is; nothing is read or counted."""
    return "memory" if spec.executable is not None else _place(_spec_key(spec))


def _place(key: str) -> Place:
    if key in _executables:
        return "memory"
    return "disk" if cache.has(key) else "nowhere"


def compile_spec(spec: Spec, purpose: Purpose = "op", node: Node | None = None) -> Any:
    """Return the executable of a single op, or the `HostKernel` of one that XLA refuses.

    The node is where the op stands, for the line that a list of executables shows.
    """
    if spec.executable is None:
        begin_spec(spec, purpose, node)()
    return spec.executable


def begin_spec(
    spec: Spec, purpose: Purpose = "op", node: Node | None = None
) -> Callable[[], None]:
    """Begin to compile or load a single op on a worker, and return what waits for that.

    Only large results are followed by a ready scalar: waiting for a small one keeps few bytes.
    For the arguments see `compile_spec`.
    """

    def build() -> Any:
        apply = spec.apply
        main = jax_compat.with_ready_scalar(apply) if spec.is_large else apply
        try:
            made = jax_compat.compile_function(
                main, spec.signature, {}, fast=True, processes=spec.processes
            )
        except Exception as error:
            raise LoweringError(first_line(error)) from error
        return replicas.guarded(made, spec) if spec.processes else made

    key = _spec_key(spec)
    facts = cache.Facts(
        holds=str(spec),
        nodes=1,
        tier="fast",
        line=_line_of(node) if node is not None else "",
        written_s=time.time(),
    )
    begun = _begin(key, build, spec.symbol, purpose, "", facts, fast=True)

    def finish() -> None:
        if spec.executable is None:
            try:
                spec.executable = _result(begun, spec.symbol, 1, purpose)
            except LoweringError as error:
                spec.executable = HostKernel(spec, str(error))

    return finish


def _line_of(node: Node) -> str:
    site = node.provenance.site
    return str(site) if site is not None else ""


def is_compiled(spec: Spec) -> bool:
    """Return whether the executable of a single op is in memory."""
    return spec.executable is not None or _spec_key(spec) in _executables


def _spec_key(spec: Spec) -> str:
    kind = "op with ready scalar" if spec.is_large else "op"
    return f"{kind}|{spec_identity(spec)}{_of_this_process(spec.given, spec.processes)}"


def spec_identity(spec: Spec) -> str:
    """Return a text that equals for equal specs of all processes."""
    return f"{spec.name}|{spec.template!r}|{spec.operands}|{spec.outs}"


def compile_uncounted(
    text: str,
    ins: Sequence[Any],
    outs: Sequence[Any],
    names: Mapping[int, str] | None = None,
    placements: Placements | None = None,
) -> Any:
    """Compile a module for looking at it; neither cached nor counted."""
    return _wait(
        _workers.submit(
            lambda: jax_compat.compile_text(
                text, ins, outs, {}, fast=False, names=names, placements=placements
            )
        )
    )


def _refused(graph: Canonical, error: Exception) -> LoweringError:
    return LoweringError(
        f"XLA refused a graph of {len(graph.nodes)} nodes ({str(error)[:500]}). A lowering rule "
        "produced something that does not compile. Please report it with the text of "
        "`lazyrt.pending_graph().to_text()`; `lazyrt.materialise(t)` on its tensors tells which op "
        "it is, and `lazyrt.discard_pending()` drops everything pending."
    )


def _begin(
    key: str, build: Callable[[], Any], fingerprint: str, purpose: Purpose, reason: str,
    facts: cache.Facts, *, fast: bool,
) -> Any:  # fmt: skip
    """Return an executable, or the future of one that a worker has to get first."""
    with _lock:
        found = lookup(key)
        if found is not None:
            return found
        process.check_not_forked()  # a fork has none of the workers
        future = _under_way.get(key)
        if future is None:
            job = _job(key, build, fingerprint, purpose, reason, facts, fast=fast)
            future = _under_way[key] = _workers.submit(job)
        return future


def _result(begun: Any, fingerprint: str, nodes: int, purpose: Purpose) -> Any:
    """Return the executable that `_begin` gave, once it is there."""
    is_there = not isinstance(begun, Future)
    return begun if is_there else _wait(begun, fingerprint, nodes, purpose)


def _job(
    key: str, build: Callable[[], Any], fingerprint: str, purpose: Purpose, reason: str,
    facts: cache.Facts, *, fast: bool,
) -> Callable[[], Any]:  # fmt: skip
    tier: Tier = "fast" if fast else "optimised"
    nodes = facts.nodes

    def run() -> Any:
        start, ahead = _ahead.pop(key, (time.perf_counter_ns(), None))
        try:
            executable = cache.load(key) if ahead is None else ahead.result()
            source: Literal["xla", "disk"] = "disk"
            if executable is None:
                source = "xla"
                events.emit(
                    events.CompileStarted(
                        fingerprint=fingerprint,
                        purpose=purpose,
                        tier=tier,
                        nodes=nodes,
                        time_ns=start,
                    )
                )
                executable = build()
            duration = time.perf_counter_ns() - start
            kept = replace(facts, compile_ns=duration if source == "xla" else 0)
            if source == "xla":
                cache.store(key, executable, kept)
            with _lock:
                _executables[key] = executable
                _facts[key] = kept
                _hits[key] = int(source == "disk")
        finally:
            with _lock:
                _under_way.pop(key, None)
        events.emit(
            events.CompileFinished(
                fingerprint=fingerprint,
                purpose=purpose,
                tier=tier,
                source=source,
                nodes=nodes,
                duration_ns=duration,
                reason=reason,
            )
        )
        return executable

    return run


def _wait(
    future: Future[Any],
    fingerprint: str = "",
    nodes: int = 0,
    purpose: Purpose = "step",
) -> Any:
    """Wait for a worker, interruptibly, telling listeners that it takes long."""
    timeout = config.progress_after_s
    with events.waited("compile", fingerprint, purpose) as start:
        while not _is_done(future, timeout):
            timeout = _POLL_S
            events.emit(
                events.CompileProgress(
                    fingerprint=fingerprint,
                    purpose=purpose,
                    phase="compile",
                    nodes=nodes,
                    elapsed_ns=time.perf_counter_ns() - start,
                )
            )
        return future.result()


def _is_done(future: Future[Any], timeout: float | None) -> bool:
    with process.waiting():
        return bool(futures.wait((future,), timeout).done)


@process.at_exit
def _finish() -> None:
    """Let compiles under way end: tearing XLA down below one can crash.

    One that the program waited for gets a moment, since whoever interrupted it wants to
    leave. An optimised build is waited for, and the next run finds it on the disk.
    """
    running = [future for future in _under_way.values() if not future.cancel()]
    with contextlib.suppress(BaseException):  # the process is ending
        _, late = futures.wait(running, _MAX_FAREWELL_S)
        if _in_background.running in late:
            _log.warning(
                "lazyrt waits for the optimised build of a step; Ctrl-C ends at once"
            )
            futures.wait([_in_background.running])
    if not all(future.done() for future in running):
        process.end_by_interrupt()
