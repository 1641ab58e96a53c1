"""Random tensor programs: written on the CPU, run on the lazy device in every mode, compared.

A program is lines of Python. The CPU runs each line as it is written, so that the next one
fits the tensors that are there and errors are known. `mark_step`, `show` and the like do
nothing there.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import lazyrt
from benchmarks import program_lines as lines
from lazyrt.config import config
from lazyrt.control.modes import MODES, Name, in_mode
from lazyrt.execution.executor import clear_plans
from lazyrt.execution.peek import forget_slices
from lazyrt.frontend import host_constants, record
from lazyrt.ir import live
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

START = (
    "a = noise(0, 3, 4)",
    "b = (torch.arange(24.0) / 8 - 1).view(2, 3, 4).to(device)",
    "c = torch.arange(6, device=device).view(2, 3)",
    "w = noise(1, 3, 4).requires_grad_()",
)
CHOICES, LARGEST_CHOICE = 16, 9_999
_NAMES = "defghijklmnopqrstuvxyz"
_MOST_TENSORS = 10
_LARGEST = 1e4

# How often each kind of line is tried, and whether it makes a tensor that gets a name.
_KINDS: tuple[tuple[Callable[[lines.Desk], str | None], int, bool], ...] = (
    (lines.view, 5, True),
    (lines.write, 6, False),
    (lines.write_list, 2, False),
    (lines.replace, 1, False),
    (lines.compute, 5, True),
    (lines.convert, 2, True),
    (lines.draw, 1, True),
    (lines.leaf, 1, True),
    (lines.backward, 2, False),
    (lines.update, 2, False),
    (lines.branch, 1, False),
    (lines.loop, 1, False),
    (lines.forget, 1, False),
    (lines.look, 3, False),
    (lines.barrier, 2, False),
)
_WEIGHTED = [kind for kind in _KINDS for _ in range(kind[1])]

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Program:
    """Lines of Python, and the error that the last one raises on the CPU, if it does."""

    lines: tuple[str, ...]
    error: type[BaseException] | None = None

    @property
    def draws(self) -> bool:
        """Whether the device draws random numbers of its own."""
        return any("rand_like" in line for line in self.lines)

    @property
    def text(self) -> str:
        """The program as Python text."""
        last = f"  # raises {self.error.__name__}" if self.error else ""
        return "\n".join(self.lines) + last


class Mismatch(AssertionError):  # noqa: N818 - it is what a comparison found
    """The device and the CPU differ; the message says where, and has the program."""


# ------------------------------------------------------------------ writing


def write_program(numbers: Sequence[Sequence[int]]) -> Program:
    """Return the program that lists of numbers stand for.

    Each list decides one line and nothing else, so that a program can be made shorter by
    leaving lists out. A line that does not fit is left out; one that raises is the last.

    Args:
        numbers: For each line the choices, one after the other, modulo the options there are.
    """
    written = list(START)
    names = namespace("cpu", Looks.NONE)
    for line in written:
        exec(line, names)  # noqa: S102 - our own line
    for choices in numbers:
        choose = _chooser(choices)
        desk = lines.Desk(_tensors(names), choose)
        kind, _, makes = choose(_WEIGHTED)
        made = kind(desk)
        if made is None or (makes and len(desk.tensors) >= _MOST_TENSORS):
            continue
        line = f"{_free_name(desk.tensors)} = {made}" if makes else made
        error = _try(line, names)
        if error is not None and not _is_worth_it(error):
            names = _run_again(written)
            continue
        written.append(line)
        if error is not None:
            return Program(tuple(written), type(error))
    return _as_it_runs(Program(tuple(written)))


def _as_it_runs(program: Program) -> Program:
    """Return the program up to the line that raises when nobody looks at tensors in between.

    Asking a view whether it is a leaf makes torch renew its place in the autograd graph,
    without which the next write to it can be refused.
    """
    names = namespace("cpu", Looks.NONE)
    for number, line in enumerate(program.lines, 1):
        try:
            exec(line, names)  # noqa: S102 - our own line
        except Exception as error:  # noqa: BLE001 - what programs raise is compared
            return Program(program.lines[:number], type(error))
    return program


def _chooser(numbers: Sequence[int]) -> Callable[[Sequence[Any]], Any]:
    """Return a function that chooses by the next number; after the last, the first option."""
    rest = iter(numbers)
    return lambda options: options[next(rest, 0) % len(options)]


def _try(line: str, names: dict[str, Any]) -> Exception | None:
    """Run a line on the CPU; return what it raises, `_Unfit` where it must not be written."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns of what it does not define
            exec(line, names)  # noqa: S102 - our own line
    except Warning:
        return _Unfit()
    except Exception as error:  # noqa: BLE001 - what programs raise is compared
        return error
    for tensor in _tensors(names).values():
        if tensor.numel() > lines.MAX_ELEMENTS or tensor.dim() > lines.MAX_DIMENSIONS:
            return _Unfit()
        values = tensor.detach().double()
        if not bool(values.isfinite().all()) or bool((values.abs() > _LARGEST).any()):
            return _Unfit()
    return None


class _Unfit(Exception):  # noqa: N818 - a signal
    """A line's result is too large to go on with."""


def _is_worth_it(error: Exception) -> bool:
    """Return whether the device must raise, too; what is undefined there need not."""
    if isinstance(error, _Unfit):
        return False
    return "memory location" not in str(error)


def _run_again(written: Sequence[str]) -> dict[str, Any]:
    names = namespace("cpu", Looks.NONE)
    for line in written:
        exec(line, names)  # noqa: S102 - our own line
    return names


def _tensors(names: dict[str, Any]) -> Tensors:
    return {
        name: value
        for name, value in names.items()
        if isinstance(value, torch.Tensor) and len(name) == 1
    }


def _free_name(tensors: Tensors) -> str:
    return next(name for name in _NAMES if name not in tensors)


# ------------------------------------------------------------------ running


class Looks:
    """Which of a program's looks take place."""

    NONE, BARRIERS, ALL = range(3)


def namespace(device: str, looks: int) -> dict[str, Any]:
    """Return the names that a program's lines may use."""
    kept: list[Any] = []

    def when(level: int, act: Callable[..., Any]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            if looks >= level:
                act(*args)

        return run

    def noise(seed: int, *shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator).to(device)

    return {
        "torch": torch,
        "device": device,
        "noise": noise,
        "index": lambda *places: torch.tensor(places, device=device),
        "mark_step": when(Looks.BARRIERS, lazyrt.mark_step),
        "show": when(Looks.ALL, repr),
        "peek": when(Looks.ALL, lazyrt.materialise),
        "graph": when(Looks.ALL, lambda: lazyrt.pending_graph().fingerprint),
        "keep": when(Looks.ALL, lambda tensor: kept.append(lazyrt.snapshot(tensor))),
        "new_cell": when(Looks.ALL, lazyrt.begin_cell),
    }


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run programs on the device.

    Attributes:
        name: As reports call it.
        looks: Which looks take place.
        scope: Returns the context in which the program runs.
        fingerprints: Whether its steps have the graphs of the mode `lazy`.
        turns: Execution modes that take turns, line by line; empty for one mode throughout.
    """

    name: str
    looks: int
    scope: Callable[[], contextlib.AbstractContextManager[Any]]
    fingerprints: bool = False
    turns: tuple[Name, ...] = ()

    def turn(self, line: int) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which one line of a program runs, the first of them 1."""
        if not self.turns:
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any] = in_mode(
            self.turns[line % len(self.turns)]
        )
        return context


def modes() -> list[Mode]:
    """Return every mode that this runtime has; the first one is plain lazy."""

    def setting(**values: Any) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        return lambda: config.scoped(**values)

    found = [
        Mode("lazy", Looks.BARRIERS, contextlib.nullcontext),
        Mode("lazy, looked at", Looks.ALL, contextlib.nullcontext, fingerprints=True),
        Mode("lazy, reads are peeks", Looks.ALL, setting(read_policy="peek")),
        Mode("lazy, crowded tables", Looks.ALL, setting(max_interned_nodes=40)),
    ]
    known = {name for name in dir(config) if not name.startswith("_")}
    if "eager" in known:
        found.append(Mode("eager", Looks.ALL, setting(eager=True)))
    if "op_by_op_reads" in known:
        both = setting(op_by_op_reads=True, op_by_op_barriers=True)
        found.append(Mode("op by op", Looks.ALL, both))
    return found + [
        Mode(f"{a} and {b} in turns", Looks.ALL, contextlib.nullcontext, turns=(a, b))
        for a, b in itertools.combinations(MODES, 2)
    ]


@dataclass(slots=True)
class Outcome:
    """What a program left behind: its tensors, and the fingerprints of its steps."""

    tensors: Tensors
    steps: list[str]


def is_as_said(program: Program) -> bool:
    """Return whether the CPU raises just what the program says, and at its last line."""
    return _as_it_runs(Program(program.lines)) == program


def run_on_cpu(program: Program) -> Tensors:
    """Run a program on the CPU and return the tensors at its end."""
    names = namespace("cpu", Looks.NONE)
    for line in program.lines[:-1] if program.error else program.lines:
        exec(line, names)  # noqa: S102 - our own line
    return _tensors(names)


def run_lazily(program: Program, mode: Mode) -> Outcome:
    """Run a program on the lazy device.

    Raises:
        Mismatch: A line raises what it does not raise on the CPU, or does not where it does.
    """
    names = namespace("lazyrt", mode.looks)
    steps: list[Any] = []
    _forget()
    with (
        config.scoped(compile_tier="fast"),
        mode.scope(),
        lazyrt.subscribe(steps.append, events.GraphCaptured),
    ):
        for number, line in enumerate(program.lines, 1):
            expected = program.error if number == len(program.lines) else None
            _step(number, line, names, expected, program, mode)
        tensors = _tensors(names)
        lazyrt.mark_step()
    return Outcome(tensors, [event.fingerprint for event in steps])


def _forget() -> None:
    """Forget what earlier programs taught: nodes, and which line's numbers vary."""
    lazyrt.mark_step()
    torch.manual_seed(0)
    record.forget_nodes()
    live.forget_places()
    forget_slices()
    host_constants.forget()
    clear_plans()


def _step(
    number: int,
    line: str,
    names: dict[str, Any],
    expected: type[BaseException] | None,
    program: Program,
    mode: Mode,
) -> None:
    raised: BaseException | None = None
    code = compile(line, f"<line {number}>", "exec")
    try:
        with mode.turn(number):
            exec(code, names)  # noqa: S102 - our own line
    except Exception as error:  # noqa: BLE001 - what programs raise is compared
        raised = error
    if expected is None and raised is not None:
        raise Mismatch(
            _report(f"`{line}` raises {raised!r}", program, mode)
        ) from raised
    if expected is not None and not isinstance(raised, expected):
        text = f"`{line}` raises {raised!r}, on the CPU {expected.__name__}"
        raise Mismatch(_report(text, program, mode)) from raised


def check(program: Program, chosen: Sequence[Mode] | None = None) -> None:
    """Run a program on the CPU and in all modes and compare what it leaves.

    Each mode is compared with the CPU and with each other mode. A program that draws random
    numbers on the device is compared among the modes alone.

    Raises:
        Mismatch: They differ.
    """
    left: list[tuple[Mode, Tensors]] = []
    expected = run_on_cpu(program)
    plain: list[str] = []
    for number, mode in enumerate(chosen if chosen is not None else modes()):
        found = run_lazily(program, mode)
        if number == 0:
            plain = found.steps
            if program.draws:
                expected = found.tensors
        elif mode.fingerprints and found.steps != plain:
            text = f"looking changed the steps from {plain} to {found.steps}"
            raise Mismatch(_report(text, program, mode))
        for text in _differences(found.tensors, expected):
            raise Mismatch(_report(text, program, mode))
        for other, tensors in left:
            for text in _differences(found.tensors, tensors):
                told = f"beside mode {other.name}: {text}"
                raise Mismatch(_report(told, program, mode))
        left.append((mode, found.tensors))


def _differences(actual: Tensors, expected: Tensors) -> Iterator[str]:
    if actual.keys() != expected.keys():
        yield f"tensors {list(actual)} instead of {list(expected)}"
    for name, theirs in expected.items():
        mine = actual[name]
        yield from _compare(name, mine, theirs)
        roles = [(t.requires_grad, lines.is_leaf(t)) for t in (mine, theirs)]
        if roles[0] != roles[1]:
            yield f"{name} (requires_grad, is_leaf) is {roles[0]}, not {roles[1]}"
        if not lines.is_leaf(theirs):
            continue
        if (mine.grad is None) != (theirs.grad is None):
            yield f"{name}.grad is {mine.grad}, on the CPU {theirs.grad}"
        if theirs.grad is not None and mine.grad is not None:
            yield from _compare(f"{name}.grad", mine.grad, theirs.grad)


def _value(tensor: torch.Tensor) -> torch.Tensor:
    on_device = tensor.device.type == "lazyrt"
    return lazyrt.materialise(tensor.detach()) if on_device else tensor.detach()


def _compare(name: str, mine: torch.Tensor, theirs: torch.Tensor) -> Iterator[str]:
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        yield f"{name} is {mine.dtype} {mine.shape}, not {theirs.dtype} {theirs.shape}"
        return
    pairs = zip(mine.shape, mine.stride(), theirs.stride(), strict=True)
    if mine.numel() and any(size > 1 and a != b for size, a, b in pairs):
        yield f"{name} has strides {mine.stride()}, on the CPU {theirs.stride()}"
    found, wanted = _value(mine), _value(theirs)
    if not torch.allclose(found, wanted, rtol=1e-4, atol=1e-4, equal_nan=True):
        yield f"{name} is\n{found}\ninstead of\n{wanted}"


def _report(text: str, program: Program, mode: Mode) -> str:
    return f"in mode {mode.name}: {text}\n\n{program.text}"
