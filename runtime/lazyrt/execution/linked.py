"""A step as several programs that run one after another, equal layers by the same one."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lazyrt import jax_compat
from lazyrt.execution import memory
from lazyrt.ir.node import nbytes_of
from lazyrt.lowering.emit import argument_types, emit_text, result_types

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lazyrt.ir.fingerprint import Canonical
    from lazyrt.ir.node import Value
    from lazyrt.jax_compat import Donated
    from lazyrt.lowering.blocks import Part

_DTYPES = np.float64, np.int64, np.uint64  # of numbers, as the executor packs them


class _Program:
    """One executable; those of equal parts are one object while any step has it."""

    def __init__(self, executable: Any) -> None:
        self.executable = executable
        self.launch = jax_compat.launcher(executable)


_programs: weakref.WeakValueDictionary[Any, _Program] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class _Call:
    """One launch of a program; values are numbered, the step's arguments first.

    Attributes:
        program: Its number.
        inputs: The values that it reads.
        numbers: For each kind that it reads: which vector of the step's, and the positions.
        outputs: The values that it makes.
        dead: The values that nobody needs after it.
    """

    program: int
    inputs: tuple[int, ...]
    numbers: tuple[tuple[int, tuple[int, ...]], ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a step allocates, in the words of XLA's memory analysis; sizes in bytes."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    temp_size_in_bytes: int
    alias_size_in_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Ready:
    """Ready when all programs of a step have ended."""

    scalars: list[Any]

    def is_ready(self) -> bool:
        return all(scalar.is_ready() for scalar in self.scalars)

    def block_until_ready(self) -> _Ready:
        for scalar in self.scalars:
            scalar.block_until_ready()
        return self


class LinkedExecutable:
    """Runs programs in turn, and hands each what the ones before have made.

    Attributes:
        launch_count: How many programs a step launches.
        program_count: How many of them are different ones.
    """

    def __init__(
        self,
        programs: Sequence[_Program],
        calls: Sequence[_Call],
        results: Sequence[int],
        plan: Memory,
    ) -> None:
        self._programs = tuple(programs)
        self._calls = tuple(calls)
        self._results = tuple(results)
        self._memory = plan
        self._count = max((n for c in calls for n in c.outputs), default=0) + 1
        self.launch_count, self.program_count = len(calls), len(programs)
        with jax_compat.scope():
            self._givers = {
                (kind, len(at)): jax_compat.giver(
                    *((len(at), 2) if kind == 2 else (len(at),)),  # noqa: PLR2004
                    dtype=_DTYPES[kind],
                )
                for call in calls
                for kind, at in call.numbers
            }
        self._run = [
            (
                self._programs[call.program].launch,
                call.inputs,
                [(kind, np.array(at)) for kind, at in call.numbers],
                call.outputs,
                call.dead,
            )
            for call in calls
        ]

    def launch(self, args: Sequence[Any]) -> list[Any]:
        """Run all programs on device arrays; return the results and what is ready behind them."""
        kinds = sorted({kind for kind, _ in self._givers})
        data = len(args) - len(kinds)
        vectors = dict(zip(kinds, map(np.asarray, args[data:]), strict=True))
        values: list[Any] = [*args[:data], *[None] * (self._count - data)]
        scalars = []
        for launch, inputs, numbers, outputs, dead in self._run:
            given = [values[k] for k in inputs]
            for kind, at in numbers:
                given.append(self._givers[kind, len(at)](vectors[kind][at]))
            made = launch(given)
            scalars.append(made.pop())
            for number, value in zip(outputs, made, strict=True):
                values[number] = value
            for number in dead:
                values[number] = None
        return [*[values[k] for k in self._results], _Ready(scalars)]

    def memory_analysis(self) -> Memory:
        """Return what the whole step allocates."""
        return self._memory

    @property
    def programs(self) -> list[Any]:
        """The executables of the different programs."""
        return [each.executable for each in self._programs]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it for a process of equal versions."""
        programs = [jax_compat.serialise(each.executable) for each in self._programs]
        return _loaded, (programs, self._calls, self._results, self._memory)


def _loaded(programs: Sequence[bytes], *rest: Any) -> LinkedExecutable:
    loaded = [_Program(jax_compat.deserialise(each)) for each in programs]
    return LinkedExecutable(loaded, *rest)


def link(
    graph: Canonical, parts: Sequence[Part], donated: Donated, rules: object
) -> LinkedExecutable:
    """Compile the different ones among a graph's parts by the fast tier, and link them.

    Args:
        graph: The whole.
        parts: All it consists of, in the order in which they can run.
        donated: Arguments of the whole that give up their memory, and the root that takes it.
        rules: What programs depend on besides their graphs: the user's rules.
    """
    numbers: dict[Value, int] = {value: k for k, value in enumerate(graph.data)}
    for part in parts:
        for value in part.results:
            numbers[value] = len(numbers)
    last = {value: k for k, part in enumerate(parts) for value in part.inputs[0]}
    last |= dict.fromkeys(graph.roots, len(parts))
    vectors: list[dict[Value, int]] = [
        {leaf: k for k, leaf in enumerate(leaves)}
        for leaves in (graph.floats, graph.ints, graph.rng)
    ]
    programs: dict[_Program, int] = {}
    calls = []
    for k, part in enumerate(parts):
        given = _given(part, k, last, donated, graph)
        program = _program(part, given, rules)
        unread = [value for value in part.results if value not in last]
        ended = [value for value in part.inputs[0] if last[value] == k]
        calls.append(
            _Call(
                programs.setdefault(program, len(programs)),
                tuple(numbers[value] for value in part.inputs[0]),
                tuple(
                    (kind, tuple(vectors[kind][leaf] for leaf in leaves))
                    for kind, leaves in enumerate(part.inputs[1:])
                    if leaves
                ),
                tuple(numbers[value] for value in part.results),
                tuple(numbers[value] for value in (*ended, *unread)),
            )
        )
    sizes = {numbers[value]: nbytes_of(value) for value in numbers}
    plan = _memory([*programs], calls, sizes, len(graph.data))
    return LinkedExecutable(
        [*programs], calls, [numbers[root] for root in graph.roots], plan
    )


def _given(
    part: Part,
    k: int,
    last: Mapping[Value, int],
    donated: Donated,
    graph: Canonical,
) -> dict[int, int | None]:
    """Return which inputs a part may overwrite, and which of its results takes their memory.

    Those are the whole's that it hands on, where no later part reads them.
    """
    takers: dict[Value, int | None]
    takers = {graph.data[at]: result for at, result in donated.items()}
    found: dict[int, int | None] = {}
    for position, value in enumerate(part.inputs[0]):
        result = takers.get(value)
        if result is not None and last[value] == k:
            root = graph.roots[result]
            if root in part.results:
                found[position] = part.results.index(root)
    return found


def _program(part: Part, donated: Donated, rules: object) -> _Program:
    graph = part.graph
    key = (part.key, tuple(sorted(donated.items())), rules)
    found = _programs.get(key)
    if found is None:
        made = jax_compat.compile_text(
            emit_text(graph, fast=True),
            argument_types(graph),
            result_types(graph),
            donated,
            fast=True,
            title=f"part_{graph.fingerprint[:8]}",
        )
        found = _programs[key] = _Program(made)
    return found


def _memory(
    programs: Sequence[_Program],
    calls: Sequence[_Call],
    sizes: Mapping[int, int],
    arguments: int,
) -> Memory:
    """Return what a step allocates at once, from what each program does and what outlives it."""
    held = peak = 0
    for call in calls:
        executable = programs[call.program].executable
        peak = max(peak, held + memory.planned(executable))
        analysis = executable.memory_analysis()
        held += analysis.output_size_in_bytes - analysis.alias_size_in_bytes
        held -= sum(sizes[number] for number in call.dead if number >= arguments)
    return Memory(sum(sizes[k] for k in range(arguments)), held, max(peak - held, 0))
