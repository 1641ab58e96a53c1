"""torch_xla's lists of tensors: its report of live ones, and its debug info of single ones.

`torch_xla._XLAC._xla_tensors_report(threshold, device)` gives each pending tensor with its
IR, `_get_xla_tensor_debug_info(tensor)` the state of one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lazygraph.read.torch_ir import ir_text
from lazygraph.types import type_bytes
from lazyviz.doc import Code, Doc, Fold, Note, Table
from lazyviz.foreign.evidence import (
    Evidence,
    EvidenceError,
    Frame,
    parse_frame,
    shorten,
    user_frame,
)
from lazyviz.foreign.program_dumps import parse_ir
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazygraph import Graph
    from lazygraph.read.torch_ir import IrNode

REPORT = re.compile(r"^Tensor: id=\d+, ", re.MULTILINE)
DEBUG_INFO = re.compile(r"^XLATensor \{", re.MULTILINE)
_HEADER = re.compile(
    r"Tensor: id=(?P<id>\d+), shape=(?P<type>.+), device=(?P<device>\S+), "
    r"ir_nodes=(?P<nodes>\d+)\s*"
)
_FACT = re.compile(r"(?P<key>[A-Za-z][A-Za-z ]*): ?(?P<value>.*)")
_OP = re.compile(r"(?:\[.*?\] )?(?P<op>\w+(?:::\w+)+)")
_LAYOUT = re.compile(r"\{[\d,]*\}$")
_COLUMNS = ["id", "type", "size", "device", "nodes", "made by", "in", "state"]
_KEYS = ("TensorID", "Device", "XLA Shape", "IR", "XLAData")
_MAX_SHOWN = 200
_NOTHING = ("", "None")


@dataclass(frozen=True, kw_only=True)
class ListedTensor:
    """One tensor of a list.

    Attributes:
        id: torch_xla's number of it.
        type: Shape and layout, such as `f32[2,3]{1,0}`.
        device: Such as `TPU:0`.
        ir_nodes: How many IR nodes its value needs; None where the list does not say.
        op: The op that makes it, such as `aten::addmm`; empty where nothing is pending.
        frames: The Python stack of its op, innermost first, where XLA_IR_DEBUG was set.
        nodes: Its IR, operands first; empty in debug info, which has no operands.
        facts: The lines of its debug info, as they are written.
    """

    id: int
    type: str
    device: str
    ir_nodes: int | None
    op: str
    frames: tuple[Frame, ...] = ()
    nodes: tuple[IrNode, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def nbytes(self) -> int:
        """Size of its value."""
        return type_bytes(_LAYOUT.sub("", self.type))

    @property
    def place(self) -> str:
        """The line that recorded its op; empty where the list does not say."""
        frame = user_frame(self.frames)
        locations = [node.location for node in reversed(self.nodes) if node.location]
        return str(frame) if frame else locations[0] if locations else ""

    @property
    def state(self) -> str:
        """What its debug info says of its value: pending, on the device, on the host."""
        facts = dict(self.facts)
        if not facts:
            return ""
        known = [
            word
            for key, word in (
                ("IR", "pending"),
                ("XLAData", "on the device"),
                ("Tensor on host", "on the host"),
            )
            if facts.get(key, "None") not in _NOTHING
        ]
        return ", ".join(known) or "empty"

    @cached_property
    def graph(self) -> Graph:
        """Its IR in normal form, for `lazygraph`.

        Raises:
            EvidenceError: The list holds no IR of it.
        """
        from lazygraph import parse

        if not self.nodes:
            raise EvidenceError(
                f"the debug info of tensor {self.id} names its op without what it reads. "
                "torch_xla._XLAC._get_xla_tensors_text([tensor]) gives its whole IR."
            )
        return parse(ir_text(self.nodes), source=f"tensor {self.id}")

    def __lazygraph__(self) -> Graph:
        return self.graph


@dataclass(frozen=True, slots=True, repr=False)
class TensorsReport(Evidence):
    """The tensors of a list, in its order."""

    tensors: tuple[ListedTensor, ...]

    def doc(self) -> Doc:
        """Return a table of the tensors; each one's IR is folded."""
        folds = list(self._folds())
        left = text.more(len(folds) - _MAX_SHOWN, "tensor")
        more = [
            Note(f"{line}; `report.tensors` has all", page_only=True) for line in left
        ]
        parts = [self._table(), Note(self._summary()), *folds[:_MAX_SHOWN], *more]
        return Doc(parts, css_class="lazyviz-tensors")

    def to_dict(self) -> dict[str, Any]:
        """Return the tensors as plain data."""
        return {
            "tensors": [
                {
                    "id": tensor.id,
                    "type": tensor.type,
                    "bytes": tensor.nbytes,
                    "device": tensor.device,
                    "ir_nodes": tensor.ir_nodes,
                    "op": tensor.op,
                    "frames": list(map(str, tensor.frames)),
                    "ir": ir_text(tensor.nodes) if tensor.nodes else None,
                    "facts": dict(tensor.facts),
                }
                for tensor in self.tensors
            ]
        }

    def _summary(self) -> str:
        total = text.size(sum(tensor.nbytes for tensor in self.tensors))
        return f"{text.plural(len(self.tensors), 'tensor')}, {total}"

    def _table(self) -> Table:
        rows: list[list[object]] = [
            [
                tensor.id,
                _LAYOUT.sub("", tensor.type),
                text.size(tensor.nbytes),
                tensor.device,
                "" if tensor.ir_nodes is None else tensor.ir_nodes,
                tensor.op,
                tensor.place,
                tensor.state,
            ]
            for tensor in self.tensors
        ]
        return Table(_COLUMNS, rows).filled()

    def _folds(self) -> Iterator[Fold]:
        for tensor in self.tensors:
            shown = "\n".join(f"{key}: {value}" for key, value in tensor.facts)
            if len(tensor.nodes) > 1:
                shown = ir_text(tensor.nodes)
            if shown:
                title = f"tensor {tensor.id}: {tensor.op or tensor.type}"
                yield Fold(title, [Code(shown)])


def parse_tensors_report(source: str) -> TensorsReport:
    """Read a report of live tensors, or the debug info of some.

    Raises:
        EvidenceError: It holds no tensor, or one that breaks off.
    """
    lines = source.splitlines()
    starts = [n for n, line in enumerate(lines) if _starts(line)]
    if not starts:
        raise EvidenceError(
            f"there is no tensor in the text that starts with {shorten(source)}. A report "
            "of live tensors has lines such as 'Tensor: id=1, shape=f32[2]{0}, "
            "device=CPU:0, ir_nodes=4'."
        )
    ends = [*starts[1:], len(lines)]
    return TensorsReport(
        tuple(
            _tensor(lines[start:end], start + 1)
            for start, end in zip(starts, ends, strict=True)
        )
    )


def _starts(line: str) -> bool:
    return line.startswith(("Tensor: id=", "XLATensor {"))


def _tensor(lines: list[str], number: int) -> ListedTensor:
    if lines[0].startswith("XLATensor {"):
        return _described(lines, number)
    found = _HEADER.fullmatch(lines[0])
    if found is None:
        raise EvidenceError(
            f"{shorten(lines[0])} does not say which tensor it is. Expected a line such as "
            "'Tensor: id=1, shape=f32[2]{0}, device=CPU:0, ir_nodes=4'.",
            number,
        )
    begin = next((k for k, line in enumerate(lines) if line.strip() == "IR {"), None)
    end = next((k for k, line in enumerate(lines) if line.strip() == "}"), None)
    if begin is None or end is None:
        raise EvidenceError(
            f"tensor {found['id']} breaks off: its IR is missing or has no end. Give the "
            "report whole.",
            number,
        )
    nodes = parse_ir("\n".join(lines[begin : end + 1]), number + begin)
    roots = [node for node in nodes if node.root is not None] or list(nodes[-1:])
    return ListedTensor(
        id=int(found["id"]),
        type=found["type"],
        device=found["device"],
        ir_nodes=int(found["nodes"]),
        op=roots[0].op if roots else "",
        frames=tuple(filter(None, map(parse_frame, lines[1:begin]))),
        nodes=nodes,
    )


def _described(lines: list[str], number: int) -> ListedTensor:
    """Read the debug info of one tensor."""
    end = next((k for k, line in enumerate(lines) if line.rstrip() == "}"), None)
    found = [_FACT.fullmatch(line.strip()) for line in lines[1:end]]
    facts = {match["key"]: match["value"].strip() for match in found if match}
    missing = [key for key in _KEYS if key not in facts]
    if end is None or missing or not facts["TensorID"].isdecimal():
        said = f"it does not say {missing[0]!r}" if missing else "it has no end"
        raise EvidenceError(
            f"the debug info that begins here breaks off: {said}. Give it whole.",
            number,
        )
    op = _OP.match(facts["IR"])
    return ListedTensor(
        id=int(facts["TensorID"]),
        type=facts["XLA Shape"],
        device=facts["Device"],
        ir_nodes=None,
        op=op["op"] if op else "",
        facts=tuple(facts.items()),
    )
