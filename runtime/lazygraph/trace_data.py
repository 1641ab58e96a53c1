"""What tracing a value finds: hops, sources of operands, the whole way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from lazygraph.unused import Unused

HopKind = Literal[
    "value", "tuple", "element", "collective", "call", "parameter", "return", "consumer",
    "output",
]  # fmt: skip
_MAX_SHOWN = 40
_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


@dataclass(frozen=True, slots=True)
class Hop:
    """One step on the way of a value.

    Attributes:
        kind: What happens to the value here.
        name: The instruction, with `%`.
        op: Its opcode.
        text: What happens, in words.
        type: The value's type after the hop, without layout.
        line: Line of the text, 0 if it has none.
        depth: How many hops lie before it on its path.
    """

    kind: HopKind
    name: str
    op: str
    text: str
    type: str
    line: int
    depth: int


@dataclass(frozen=True, slots=True)
class Sources:
    """What the operands of an instruction of several are.

    Attributes:
        name: The instruction, with `%`.
        operands: How many there are.
        inputs: How many of them are inputs of the program.
        operand_bytes, input_bytes: Their sizes.
        is_presumed: Whether some were told from their position only, since an excerpt
            does not show them.
    """

    name: str
    operands: int
    inputs: int
    operand_bytes: int
    input_bytes: int
    is_presumed: bool = False

    def __str__(self) -> str:
        unit, name = next(
            each for each in _UNITS if self.operand_bytes >= each[0] or each[0] == 1
        )
        digits = 1 if unit > 1 else 0
        return (
            f"{self.inputs} of {self.operands} operands, {self.input_bytes / unit:.{digits}f} of "
            f"{self.operand_bytes / unit:.{digits}f} {name}, are inputs computed by an earlier "
            "execution"
        )


@dataclass(frozen=True, slots=True)
class ValueTrace:
    """The way of one value through a program.

    Attributes:
        name: The value, with `%`.
        type: Its type, without layout.
        what: What makes it, in words.
        line: Line of the text, 0 if it has none.
        hops: Where it goes, depth first; `Hop.depth` tells the branches apart.
        producers: Where it comes from.
        sources: For each collective on the way, what its operands are.
        is_excerpt: Whether the text is a part of a program only.
        waste: Of a value that no result needs, what it costs; else None.
    """

    name: str
    type: str
    what: str
    line: int
    hops: tuple[Hop, ...]
    producers: tuple[Hop, ...]
    sources: tuple[Sources, ...]
    is_excerpt: bool
    waste: Unused | None = None

    @property
    def consumers(self) -> tuple[Hop, ...]:
        """The instructions that compute something from the value."""
        return tuple(hop for hop in self.hops if hop.kind in {"consumer", "collective"})

    @property
    def is_output(self) -> bool:
        """Whether the value is a result of the program, as it is."""
        return any(hop.kind == "output" for hop in self.hops)

    def __str__(self) -> str:
        lines = [f"{self.name} : {self.type}, {self.what}"]
        lines += [f"  ← {hop.text}" for hop in self.producers]
        shown = self.hops[:_MAX_SHOWN]
        lines += [f"{'  ' * hop.depth}→ {hop.text}" for hop in shown]
        if len(self.hops) > _MAX_SHOWN:
            lines.append(f"  ... and {len(self.hops) - _MAX_SHOWN:,} more")
        if self._ends_nowhere():
            where = " in this excerpt" if self.is_excerpt else ""
            lines.append(f"no consumer{where}")
        if self.waste is not None:
            lines.append(f"no result needs it: {self.waste.price}")
        for each in self.sources:
            lines.append(f"{each.name}: {each}")
            if each.is_presumed:
                lines.append(
                    "  (those that the excerpt does not show are told by their position)"
                )
        return "\n".join(lines)

    def _ends_nowhere(self) -> bool:
        ends = [hop for hop in self.hops if hop.kind in {"consumer", "output"}]
        return not ends

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002, FBT001
        printer.text(str(self))
