"""What may be said of a cell: barriers, fallbacks, looks, what a loop left; each is one sentence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lazyviz.render import text

if TYPE_CHECKING:
    from lazyrt.observe import events
    from lazyrt.observe.events import FrameCompiled

_MAX_READ = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """The barriers of one cause at one place that ran something.

    Attributes:
        cause: Why they came, in the runtime's words: `mark_step()`, `read by .item()`, ...
        site: The user's line, such as `cell 3 line 7`; empty where it is not known.
        nodes: Operations that they ran, all together.
        times: How many there were.
        tensor: What was read, in the user's words; told only where it broke a step.
        cut: Name of the `step()` that they broke, empty for a nameless one; None if none was.
        duration_ns: How long they took, where they broke a step.
    """

    cause: str
    site: str
    nodes: int
    times: int = 1
    tensor: str = ""
    cut: str | None = None
    duration_ns: int = 0

    @property
    def origin(self) -> str:
        """What it was, with the tensor that was read and the line."""
        tensor = f" of {self.tensor}" if self.tensor else ""
        where = f" at {self.site}" if self.site else ""
        return f"{self.cause}{tensor}{where}"

    def __str__(self) -> str:
        """Return why pending ops ran, and where.

        Example:
            >>> print(Barrier(cause="read by .item()", site="cell 3 line 7", nodes=214))
            ran 214 ops here: read by .item() at cell 3 line 7
            >>> print(Barrier(cause="read by .item()", site="cell 3 line 7", nodes=214,
            ...               tensor="loss", cut="", duration_ns=2_000_000))
            graph break in a step: read by .item() of loss at cell 3 line 7 ran 214 ops on their \
own in 2.0 ms. Read after the block, or use add_step_closure()
        """
        ops = text.plural(self.nodes, "op")
        if self.cut is not None:
            step = f"the step {self.cut}" if self.cut else "a step"
            return (
                f"graph break in {step}: {self.origin} ran {ops} on their own in "
                f"{text.duration(self.duration_ns)}. Read after the block, or use "
                "add_step_closure()"
            )
        many = f" in {self.times:,} barriers" if self.times > 1 else ""
        return f"ran {ops} here{many}: {self.origin}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """An operation that ran on the CPU at one place: a graph break."""

    op: str
    site: str
    times: int = 1

    def __str__(self) -> str:
        """Return which op ran on the CPU, and where."""
        where = f" at {self.site}" if self.site else ""
        many = f" {self.times:,} times" if self.times > 1 else ""
        return f"graph break: {self.op} ran on the CPU{many}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledBreak:
    """A graph break that `torch.compile` has compiled into a function.

    Attributes:
        reason: Why, in torch's words.
        site: The line.
        times: How often a call ran into it; 0 where no op is recorded before or behind it.
    """

    reason: str
    site: str
    times: int = 0

    def __str__(self) -> str:
        """Return where a compiled function falls into parts, how often, and why.

        Example:
            >>> print(CompiledBreak(reason="a branch depends on a tensor's value",
            ...                     site="cell 1 line 4", times=30))
            graph break in torch.compile at cell 1 line 4, 30 times: a branch depends on a tensor's \
value
        """
        where = f" at {self.site}" if self.site else ""
        many = f", {self.times:,} times" if self.times > 1 else ""
        return f"graph break in torch.compile{where}{many}: {self.reason}"


def frame_text(frame: FrameCompiled) -> str:
    """Return what `torch.compile` compiled, for which call, why again, and what it took.

    Example:
        >>> from lazyrt.observe.events import FailedGuard, FrameCompiled, SourceLocation
        >>> first, call = (SourceLocation("f.py", n, "f", cell) for n, cell in ((3, 1), (1, 4)))
        >>> guard = FailedGuard(text="`n` is 3, was 2")
        >>> print(frame_text(FrameCompiled(function="f", definition=first, site=call, guard=guard,
        ...                                dynamo_ns=46_000_000, aot_ns=24_000_000)))
        torch.compile compiled f (cell 1 line 3) again for the call at cell 4 line 1: `n` is 3, was \
2; dynamo 46 ms, AOTAutograd 24 ms
    """
    where = f" ({frame.definition})" if frame.definition is not None else ""
    what = f"{frame.function}{where}"
    if frame.is_rest:
        what = f"the rest of {frame.function} after {frame.definition}"
    if frame.backward:
        what = f"the backward of {what}"
    call = f" for the call at {frame.site}" if frame.site is not None else ""
    why = f": {frame.guard.text}" if frame.guard is not None else ""
    if frame.guard is not None and frame.guard.site is not None:
        why += f" (read at {frame.guard.site})"
    if frame.failed is not None:
        at = f" (at {frame.failed.site})" if frame.failed.site is not None else ""
        return f"torch.compile leaves {what} uncompiled{why}: {frame.failed.reason}{at}"
    again = " again" if frame.guard is not None else ""
    took = f"{';' if why else ':'} {', '.join(phases(frame))}"
    return f"torch.compile compiled {what}{again}{call}{why}{took}"


def phases(*frames: FrameCompiled) -> list[str]:
    """Return what compiling took before the graph came to XLA, by phase."""
    times = {
        "dynamo": sum(frame.dynamo_ns for frame in frames),
        "AOTAutograd": sum(frame.aot_ns for frame in frames),
    }
    return [f"{name} {text.duration(ns)}" for name, ns in times.items() if ns]


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleOps:
    """The operations that ran one by one, in eager debug mode or op-by-op mode.

    Attributes:
        mode: `eager` or `op by op`.
        ops: How many ran, `cache_hits` of them with an executable from memory.
        repeats: How many of them had run before since the last barrier.
        run_ns: Time to hand them over.
        idle_barriers: Barriers that found nothing left to run.
    """

    mode: str
    ops: int = 0
    cache_hits: int = 0
    repeats: int = 0
    run_ns: int = 0
    idle_barriers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Work that a loop left pending when it ended early."""

    nodes: int
    nbytes: int
    site: str

    def __str__(self) -> str:
        """Return what a loop left behind.

        Example:
            >>> print(Left(nodes=312, nbytes=4_300_000, site="cell 4 line 6"))
            left pending by the loop that ended at cell 4 line 6: 312 ops, 4.1 MiB. They run at the \
next barrier; %lazy drop drops them
        """
        return (
            f"left pending by the loop that ended at {self.site}: "
            f"{text.plural(self.nodes, 'op')}, {text.size(self.nbytes)}. They run at the next "
            "barrier; %lazy drop drops them"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Redundant:
    """Barriers of one place that found nothing to run, and the one that came before them."""

    cause: str
    site: str
    times: int
    before: str

    def __str__(self) -> str:
        """Return which barrier is one too many."""
        return (
            f"{self.cause} at {self.site} found nothing to run, "
            f"{self.times:,} times. Remove it: {self.before} comes before it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """Looks of one place that had ops to run, and left their steps as they were.

    Attributes:
        tensor: What was looked at, in the user's words; empty if not known.
        site: Where.
        nodes: How many ops ran for it.
        duration_ns: How long they took.
        times: How many looks there were.
        is_again: Whether the steps have run the ops since.
    """

    tensor: str
    site: str
    nodes: int
    duration_ns: int
    times: int = 1
    is_again: bool = False

    def __str__(self) -> str:
        """Return what looks had to run.

        Example:
            >>> print(Looked(tensor="y", site="cell 3 line 7", nodes=830, duration_ns=2e8))
            830 ops ran first to show y at cell 3 line 7, 200 ms; the step is as before
            >>> print(Looked(tensor="what torch.distributions checks", site="vae.py:6", nodes=3,
            ...              duration_ns=200_000, times=4, is_again=True))
            3 ops ran once more for what torch.distributions checks at vae.py:6, 4 times, 200 µs. \
validate_args=False leaves it out
        """
        where = f" at {self.site}" if self.site else ""
        many = f", {self.times:,} times" if self.times > 1 else ""
        purpose, end = "to show", "; the step is as before"
        if is_check(self.tensor):
            by_torch = "torch.distributions" in self.tensor
            purpose = "for"
            end = ". validate_args=False leaves it out" if by_torch else ""
        return (
            f"{text.plural(self.nodes, 'op')} ran {'once more' if self.is_again else 'first'} "
            f"{purpose} {self.tensor or 'a tensor'}{where}{many}, {text.duration(self.duration_ns)}{end}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Values that were read one by one, each by an execution of its own.

    Attributes:
        tensors: What each read took, in the user's words.
    """

    tensors: tuple[str, ...]

    def __str__(self) -> str:
        """Return how many executions reading some values took, and how to do with one.

        Example:
            >>> print(Apart(tensors=("a", "b", "c", "d")))
            4 values were read one by one: 4 executions. lazyrt.materialise(a, b, c, ...) reads \
them in one
            >>> print(Apart(tensors=("[p.grad.norm() for p in ps]",) * 4))
            4 values were read one by one: 4 executions. lazyrt.materialise(a, b, ...) reads them in one
        """
        # A comprehension that is a cell's result is no tensor's name.
        named = (name for name in self.tensors if name and " for " not in name)
        names = [*dict.fromkeys(named)]
        shown = ", ".join([*(names or ["a", "b"])[:_MAX_READ], "..."])
        many = f"{len(self.tensors):,}"
        return (
            f"{many} values were read one by one: {many} executions. "
            f"lazyrt.materialise({shown}) reads them in one"
        )

    @property
    def source(self) -> str:
        """The lines that read the same values by one execution, empty for values without a name.

        Example:
            >>> print(Apart(tensors=("a", "b", "c", "d")).source)
            a, b, c, d = lazyrt.materialise(a, b, c, d)  # one execution; CPU tensors from here on
            >>> print(Apart(tensors=("p.norm()",) * 7).source)
            values = []  # before the reads
            values.append(p.norm())  # in place of each read
            for value in lazyrt.materialise(*values):  # one execution
                print(value.item())
        """
        names = list(dict.fromkeys(self.tensors))
        if len(names) == len(self.tensors) and all(
            name.isidentifier() for name in names
        ):
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


def looked_again(repeat: events.Repeat, before: Looked | None) -> Looked:
    """Return a look whose ops the step has run since, with those before at the same tensor and place."""
    site = str(repeat.site or "")
    if before is None:
        before = Looked(
            tensor=repeat.tensor, site=site, nodes=0, duration_ns=0, times=0
        )
    return replace(
        before,
        nodes=before.nodes + repeat.nodes,
        duration_ns=before.duration_ns + repeat.duration_ns,
        times=before.times + 1,
        is_again=True,
    )


def is_check(tensor: str) -> bool:
    """Return whether it was a library that looked, to check what it was given."""
    return tensor.startswith("what ")
