"""When the tensors of a graph take memory: each op run alone, next to XLA's schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazyrt.tools import Lifetime
from lazyviz.render import text
from lazyviz.render.html import markup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazygraph.read.hlo_module import Computation

# Instructions whose result is memory of their operands.
_ALIASES = frozenset(("tuple", "get-tuple-element", "bitcast", "optimization-barrier"))
_MAX_LISTED = 5
_MAX_BARS = 40
_WIDTH, _BAR, _LEFT = 360, 8, 4


@dataclass(frozen=True, slots=True)
class Timeline:
    """The lifetimes of one run's tensors.

    Attributes:
        run: `eager` or `lazy`.
        tensors: In no particular order.
    """

    run: str
    tensors: tuple[Lifetime, ...]

    @property
    def length(self) -> int:
        """Number of positions in the schedule."""
        return 1 + max((each.dies for each in self.tensors), default=-1)

    def live_bytes(self) -> list[int]:
        """Return how many bytes are taken at each position of the schedule."""
        change = [0] * (self.length + 1)
        for each in self.tensors:
            change[each.born] += each.nbytes
            change[each.dies + 1] -= each.nbytes
        found, total = [], 0
        for step in change[:-1]:
            total += step
            found.append(total)
        return found

    def at_peak(self) -> tuple[int, tuple[Lifetime, ...]]:
        """Return the position at which most is taken, and the tensors there, largest first."""
        taken = self.live_bytes()
        if not taken:
            return 0, ()
        at = taken.index(max(taken))
        there = [each for each in self.tensors if each.born <= at <= each.dies]
        return at, tuple(sorted(there, key=lambda each: -each.nbytes))

    def to_text(self) -> str:
        """Return the peak, and the largest tensors that make it up."""
        at, there = self.at_peak()
        if not there:
            return f"{self.run}: no tensor takes memory"
        total = text.size(sum(each.nbytes for each in there))
        shown = ", ".join(
            f"{each.name} {each.type} {text.size(each.nbytes)}"
            for each in there[:_MAX_LISTED]
        )
        more = len(there) - _MAX_LISTED
        rest = f" and {text.plural(more, 'smaller one')}" if more > 0 else ""
        return f"{self.run}: {total} at {at + 1} of {self.length}: {shown}{rest}"

    @property
    def title(self) -> str:
        """What the picture shows."""
        return f"{self.run}: when the largest tensors take memory"

    def to_svg(self) -> str:
        """Return one bar for each of the largest tensors, as long as it lives."""
        bars = sorted(self.tensors, key=lambda each: -each.nbytes)[:_MAX_BARS]
        bars.sort(key=lambda each: (each.born, each.dies))
        largest = max((each.nbytes for each in bars), default=1) or 1
        unit = _WIDTH / max(1, self.length)
        rows = []
        for row, each in enumerate(bars):
            width = max(1.0, (each.dies - each.born + 1) * unit)
            shade = 0.25 + 0.75 * each.nbytes / largest
            title = markup(
                f"{each.name} {each.type}, {text.size(each.nbytes)}, "
                f"from {each.born + 1} to {each.dies + 1}"
            )
            rows.append(
                f'<rect x="{_LEFT + each.born * unit:.1f}" y="{row * _BAR + 1}" '
                f'width="{width:.1f}" height="{_BAR - 2}" fill="#4a7fb5" '
                f'fill-opacity="{shade:.2f}"><title>{title}</title></rect>'
            )
        height = max(1, len(bars)) * _BAR
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + 2 * _LEFT}" '
            f'height="{height}" role="img"><title>{markup(self.to_text())}</title>'
            f"{''.join(rows)}</svg>"
        )


def of_hlo(hlo: str) -> Timeline:
    """Return the lifetimes in a scheduled module: of each buffer from its making to its last use.

    XLA may put several of them into the same memory, one after the other.
    """
    from lazygraph.read.hlo import modules

    (module,) = modules(hlo)
    return Timeline("lazy", tuple(_lifetimes(module.computations[module.entry])))


def _lifetimes(entry: Computation) -> Iterator[Lifetime]:
    from lazygraph.read.hlo_module import name_in
    from lazygraph.types import type_bytes, without_layout

    instructions = entry.instructions
    last = len(instructions) - 1
    memory: list[set[int]] = []
    dies = list(range(len(instructions)))
    for at, each in enumerate(instructions):
        held = [memory[operand] for operand in each.operands if operand >= 0]
        used = set().union(*held)
        memory.append(used if each.op in _ALIASES else {at})
        for owner in used:
            dies[owner] = at
    for owner in memory[entry.root]:
        dies[owner] = last
    for at, each in enumerate(instructions):
        nbytes = type_bytes(each.type)
        if each.op in _ALIASES or not nbytes:
            continue
        is_input = each.op in {"parameter", "constant"}
        _, op = name_in(each.metadata)
        name = f"{each.name} {op}".strip()
        yield Lifetime(
            name,
            without_layout(each.type),
            nbytes,
            0 if is_input else at,
            last if is_input else dies[at],
        )
