"""Train one family for some steps on two devices, and say what the lazy one did."""

from __future__ import annotations

import linecache
import math
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import lazyrt
from lazyrt.frontend.record import forget_nodes
from lazyrt.observe import events

if TYPE_CHECKING:
    from types import FrameType

    from benchmarks.family_models import Family

STEPS = 3
_LIBRARIES = (str(Path(lazyrt.__file__).parent), str(Path(torch.__file__).parent), "<")


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a program: the innermost one that is neither torch's nor the runtime's."""

    file: str
    line: int

    @property
    def code(self) -> str:
        """The text of the line."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        """Return `modeling_bart.py:41`."""
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True, slots=True)
class CutHere:
    """A barrier that was not the end of a step, and where it was asked for."""

    cause: str
    place: Place


@dataclass(slots=True)
class Observed:
    """What the lazy device did.

    Attributes:
        ops: Ops recorded.
        compiles: Reason of each compile of a step's graph.
        fallbacks: Op and place of each fallback to the CPU.
        cuts: Barriers other than the ends of steps; fallbacks are among them.
        seconds: Wall time.
    """

    ops: int = 0
    compiles: list[str] = field(default_factory=list)
    fallbacks: list[tuple[str, Place]] = field(default_factory=list)
    cuts: Counter[CutHere] = field(default_factory=Counter)
    seconds: float = 0.0

    def __call__(self, event: events.Event) -> None:
        """Listen to an event."""
        match event:
            case events.OpRecorded():
                self.ops += 1
            case events.CompileFinished(purpose="step", reason=reason):
                self.compiles.append(reason)
            case events.FallbackUsed(op=op):
                self.fallbacks.append((op, _place()))
            case events.BarrierFinished(executed=True, cause=cause) if (
                cause not in _ENDS_OF_STEPS
            ):
                self.cuts[CutHere(cause, _place())] += 1
            case _:
                pass


_ENDS_OF_STEPS = ("optimizer.step()", "mark_step()", "end of step")


def _place() -> Place:
    """Return the innermost line of the program; the event's own is the user's."""
    # From the caller of `Observed.__call__` outwards.
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - documented, and quick
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_LIBRARIES):
            return Place(file, frame.f_lineno)
        frame = frame.f_back
    return Place("?", 0)


@dataclass(frozen=True, slots=True)
class Step:
    """Loss and gradients of one step, on the CPU."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor | None]


def train(
    family: Family, device: str, steps: int = STEPS, *, compiled: bool = False
) -> list[Step]:
    """Train a fresh model by SGD and return each step's loss and gradients.

    They are read after the barrier of the optimizer, so that reading cuts nothing. A model that
    is compiled for the CPU runs its graphs as they are.
    """
    torch.manual_seed(0)
    model = family.build().to(device)
    called: Any = model
    if compiled:
        torch.compiler.reset()  # it compiles one function at most eight times
        backend = "aot_eager" if device == "cpu" else "lazyrt"
        called = torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for number in range(steps):
        batch = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in family.batch(number).items()
        }
        optimizer.zero_grad()
        loss = family.loss(called, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        gradients = {
            name: None if parameter.grad is None else parameter.grad.cpu()
            for name, parameter in model.named_parameters()
        }
        found.append(Step(loss.detach().cpu(), gradients))
    return found


def observe(
    family: Family, steps: int = STEPS, *, compiled: bool = False
) -> tuple[list[Step], Observed]:
    """Train on the lazy device with nothing compiled beforehand, and say what it did."""
    lazyrt.mark_step()
    lazyrt.clear_caches()
    forget_nodes()  # with them, which numbers were seen to vary
    observed = Observed()
    start = time.perf_counter()
    kinds: tuple[Any, ...] = (
        events.OpRecorded,
        events.CompileFinished,
        events.FallbackUsed,
        events.BarrierFinished,
    )
    with lazyrt.subscribe(observed, *kinds):
        found = train(family, "lazyrt", steps, compiled=compiled)
    observed.seconds = time.perf_counter() - start
    return found, observed


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two trainings are apart.

    Attributes:
        loss: Largest relative difference of the losses.
        gradient: Largest difference of a gradient, relative to its own largest element, which
            counts as at least a thousandth of the largest one of the model; infinite where only one
            of the trainings has the gradient.
        name: The parameter whose gradient that is.
    """

    loss: float
    gradient: float
    name: str


def difference(actual: list[Step], expected: list[Step]) -> Difference:
    """Compare the losses and all gradients of two trainings."""
    loss, worst, where = 0.0, 0.0, ""
    for mine, theirs in zip(actual, expected, strict=True):
        loss = max(loss, float((mine.loss - theirs.loss).abs() / theirs.loss.abs()))
        floor = max(map(_largest, theirs.gradients.values())) / 1000
        for name, wanted in theirs.gradients.items():
            found = mine.gradients[name]
            apart = _apart(found, wanted, floor)
            if not apart <= worst:  # also when it is not a number
                worst, where = apart, name
    return Difference(loss, worst, where)


def _apart(
    found: torch.Tensor | None, wanted: torch.Tensor | None, floor: float
) -> float:
    if found is None or wanted is None:
        return 0.0 if found is wanted else math.inf
    if found.shape != wanted.shape:
        return math.inf
    return _largest(found - wanted) / max(_largest(wanted), floor, 1e-30)


def _largest(gradient: torch.Tensor | None) -> float:
    if gradient is None or not gradient.numel():
        return 0.0
    return float(gradient.abs().max())
