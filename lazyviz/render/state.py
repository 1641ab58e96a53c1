"""The state of the lazy device in words: what is open, queued, pending, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazyviz.render import text

if TYPE_CHECKING:
    from types import ModuleType


_MAX_READ = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What decides what the next line may do.

    Attributes:
        mode: How ops run, `lazy` or another mode's name.
        steps: Names of the open steps, the outermost first; empty text for a nameless one.
        scopes: Labels of the open scopes, the outermost first.
        pending_ops: Ops that the next barrier runs.
        pending_bytes: Size of the tensors that it will make.
        pending_from: The line that recorded the first of them, empty if not known.
        live_tensors: Tensors on the device that Python references.
        queued_closures: Step closures that wait for the end of their step.
        async_closures: Asynchronous ones that are due and have not run.
        async_age_ns: For how long the oldest of them has been due.
        last_barrier: What the last barrier was, in words; empty if there was none.
    """

    mode: str = "lazy"
    steps: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    pending_ops: int = 0
    pending_bytes: int = 0
    pending_from: str = ""
    live_tensors: int = 0
    queued_closures: int = 0
    async_closures: int = 0
    async_age_ns: int = 0
    last_barrier: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Ops that ran twice because a tensor was looked at before its step had run.

    Attributes:
        tensor: What was looked at, in the user's words; empty if not known.
        site: Where.
        nodes: How many ops ran twice.
        of_nodes: How many ops the steps had.
        duration_ns: How long the looks took.
        times: How many looks there were.
    """

    tensor: str
    site: str
    nodes: int
    of_nodes: int
    duration_ns: int
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Work that a loop left pending when it ended early."""

    nodes: int
    nbytes: int
    site: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Redundant:
    """Barriers of one place that found nothing to run, and the one that came before them."""

    cause: str
    site: str
    times: int
    before: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A look that had much to compute, and left its step as it was.

    Attributes:
        tensor: What was looked at, in the user's words; empty if not known.
        site: Where.
        nodes: How many ops ran for it.
        duration_ns: How long they took.
    """

    tensor: str
    site: str
    nodes: int
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Values that were read one by one, each by an execution of its own.

    Attributes:
        tensors: What was read, in the user's words.
        times: How many reads there were.
    """

    tensors: tuple[str, ...]
    times: int


def open_parts(state: State) -> list[str]:
    """Return what is open or queued, each in a few words; empty where nothing is."""
    parts = [] if state.mode == "lazy" else [f"{state.mode} mode"]
    if state.steps:
        names = [name or "a step" for name in state.steps]
        parts.append(f"in {' / '.join(names)}" if any(state.steps) else "in a step")
    if state.scopes:
        parts.append(f"scope {'/'.join(state.scopes)} open")
    if state.queued_closures:
        parts.append(text.plural(state.queued_closures, "closure") + " queued")
    if state.async_closures:
        waiting = text.plural(state.async_closures, "asynchronous closure")
        parts.append(f"{waiting} due for {text.duration(state.async_age_ns)}")
    return parts


def state_text(state: State) -> str:
    """Return the whole state in one line, with what came last.

    Example:
        >>> state_text(State(pending_ops=2, pending_bytes=24, live_tensors=3))
        'lazy mode · not in a step · 2 pending ops, 24 bytes · 3 live tensors · no barrier so far'
    """
    last = (
        f"last barrier: {state.last_barrier}"
        if state.last_barrier
        else "no barrier so far"
    )
    return f"{now_text(state)} · {last}"


def now_text(state: State) -> str:
    """Return what is open, queued and pending in one line."""
    mode = f"{state.mode} mode"
    parts = [mode, *[part for part in open_parts(state) if part != mode]]
    if not state.steps:
        parts.insert(1, "not in a step")
    pending = text.plural(state.pending_ops, "pending op")
    if state.pending_ops:
        pending += f", {text.size(state.pending_bytes)}"
    if state.pending_from:
        pending += f", from {state.pending_from} on"
    return " · ".join([*parts, pending, text.plural(state.live_tensors, "live tensor")])


def repeat_text(repeat: Repeat) -> str:
    """Return which work ran twice, because of which look, and what it cost.

    Example:
        >>> repeat_text(Repeat(tensor="loss", site="cell 3 line 12", nodes=214, of_nodes=563,
        ...                    duration_ns=12_000_000))
        '214 ops ran twice, 38 % of their step, 12 ms: cell 3 line 12 looked at loss before \
its step had run. Look after it, or use add_step_closure()'
        >>> repeat_text(Repeat(tensor="what torch.distributions checks", site="vae.py:6", nodes=3,
        ...                    of_nodes=68, duration_ns=200_000, times=4))
        '3 ops ran twice, 4 % of their steps, 200 µs: vae.py:6 needed what torch.distributions \
checks before its step had run, 4 times. validate_args=False leaves it out'
    """
    share = round(100 * repeat.nodes / repeat.of_nodes) if repeat.of_nodes else 0
    steps = "their step" if repeat.times == 1 else "their steps"
    looked = f"looked at {repeat.tensor or 'a tensor'} before its step had run"
    advice = "Look after it, or use add_step_closure()"
    if is_check(repeat.tensor):
        by_distributions = "torch.distributions" in repeat.tensor
        looked = f"needed {repeat.tensor} before its step had run"
        advice = "validate_args=False leaves it out" if by_distributions else ""
    many = f", {repeat.times:,} times" if repeat.times > 1 else ""
    return (
        f"{text.plural(repeat.nodes, 'op')} ran twice, {share} % of {steps}, "
        f"{text.duration(repeat.duration_ns)}: {repeat.site or 'a click or a magic'} {looked}{many}"
        f"{f'. {advice}' if advice else ''}"
    )


def is_check(tensor: str) -> bool:
    """Return whether it was a library that looked, to check what it was given."""
    return tensor.startswith("what ")


def looked_text(looked: Looked) -> str:
    """Return what a look had to run first.

    Example:
        >>> looked_text(Looked(tensor="y", site="cell 3 line 7", nodes=830, duration_ns=2e8))
        '830 ops ran first to show y at cell 3 line 7, 200 ms; the step is as before'
    """
    where = f" at {looked.site}" if looked.site else ""
    return (
        f"{text.plural(looked.nodes, 'op')} ran first to show {looked.tensor or 'a tensor'}"
        f"{where}, {text.duration(looked.duration_ns)}; the step is as before"
    )


def apart_text(apart: Apart) -> str:
    """Return how many executions reading some values took, and how to do with one.

    Example:
        >>> apart_text(Apart(tensors=("a", "b", "c", "d"), times=7))
        '7 values were read one by one: 7 executions. lazyrt.materialise(a, b, c, ...) reads \
them in one'
        >>> apart_text(Apart(tensors=("[p.grad.norm() for p in ps]",) * 4, times=4))
        '4 values were read one by one: 4 executions. lazyrt.materialise(a, b, ...) reads them in one'
    """
    # A comprehension that is a cell's result is no tensor's name.
    named = (name for name in apart.tensors if name and " for " not in name)
    names = [*dict.fromkeys(named)]
    shown = ", ".join([*(names or ["a", "b"])[:_MAX_READ], "..."])
    many = f"{apart.times:,}"
    return (
        f"{many} values were read one by one: {many} executions. "
        f"lazyrt.materialise({shown}) reads them in one"
    )


def batched_source(apart: Apart) -> str:
    """Return the lines that read the same values by one execution, empty for values without a name.

    Example:
        >>> print(batched_source(Apart(tensors=("a", "b", "c", "d"), times=4)))
        a, b, c, d = lazyrt.materialise(a, b, c, d)  # one execution; CPU tensors from here on
        >>> print(batched_source(Apart(tensors=("p.norm()",) * 7, times=7)))
        values = []  # before the reads
        values.append(p.norm())  # in place of each read
        for value in lazyrt.materialise(*values):  # one execution
            print(value.item())
    """
    names = list(dict.fromkeys(apart.tensors))
    if len(names) == apart.times and all(name.isidentifier() for name in names):
        listed = ", ".join(names)
        return f"{listed} = lazyrt.materialise({listed})  # one execution; CPU tensors from here on"
    if len(names) != 1 or not names[0] or " for " in names[0]:
        return ""
    return (
        "values = []  # before the reads\n"
        f"values.append({names[0]})  # in place of each read\n"
        "for value in lazyrt.materialise(*values):  # one execution\n"
        "    print(value.item())"
    )


def left_text(left: Left) -> str:
    """Return what a loop left behind.

    Example:
        >>> left_text(Left(nodes=312, nbytes=4_300_000, site="cell 4 line 6"))
        'left pending by the loop that ended at cell 4 line 6: 312 ops, 4.1 MiB. They run at the \
next barrier; %lazy drop drops them'
    """
    return (
        f"left pending by the loop that ended at {left.site}: "
        f"{text.plural(left.nodes, 'op')}, {text.size(left.nbytes)}. They run at the next "
        "barrier; %lazy drop drops them"
    )


def redundant_text(redundant: Redundant) -> str:
    """Return which barrier is one too many."""
    return (
        f"{redundant.cause} at {redundant.site} found nothing to run, "
        f"{redundant.times:,} times. Remove it: {redundant.before} comes before it"
    )


def state_of(runtime: ModuleType) -> State:
    """Return what is open, queued and pending now; looking changes nothing."""
    status: Any = runtime.status()
    return State(
        mode=_mode(runtime),
        steps=status.steps,
        scopes=status.scopes,
        pending_ops=status.pending_ops,
        pending_bytes=status.pending_bytes,
        pending_from=str(status.pending_from or ""),
        live_tensors=status.live_tensors,
        queued_closures=status.queued_closures,
        async_closures=status.async_closures,
        async_age_ns=status.async_age_ns,
        last_barrier=_barrier_words(status.last_barrier),
    )


def _mode(runtime: ModuleType) -> str:
    mode = getattr(runtime, "mode", None)
    return "lazy" if mode is None else str(mode())


def _barrier_words(barrier: Any) -> str:
    if barrier is None:
        return ""
    tensor = f" of {barrier.tensor}" if barrier.tensor else ""
    where = f" at {barrier.site}" if barrier.site else ""
    return f"{text.plural(barrier.nodes, 'op')}, {barrier.cause}{tensor}{where}"
