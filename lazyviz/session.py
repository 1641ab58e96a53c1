"""The session of one shell: what the runtime did in each cell. The only mutable state.

A session listens to the runtime's events while the extension is loaded. It holds numbers,
names and graphs, never a tensor, and asks the runtime nothing that would record an op.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazyviz.inspection.curves import Curves
from lazyviz.shell.lazytensors import be_library, runtime_provenance
from lazyviz.shell.progress import Progress
from lazyviz.shell.tracebacks import failure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

    from IPython.core.interactiveshell import InteractiveShell

    from lazyrt import Graph
    from lazyrt.observe.events import Subscription
    from lazyrt.tools import Holding, Value
    from lazyviz.doc import Doc
    from lazyviz.draw.model import DrawGraph
    from lazyviz.render.strip import Strip
    from lazyviz.render.timeline_text import CellTime
    from lazyviz.shell.tracebacks import Failure
    from lazyviz.timing.compile_time import Expectations
    from lazyviz.timing.event_queue import Intake
    from lazyviz.timing.history import StepRow, Timeline
    from lazyviz.timing.tally import Tally

SHELL_ATTRIBUTE = "_lazyviz_session"

_MAX_CELLS = 1_000
_MAX_WAIT_S = 0.2
_MAX_NAMED_NODES = 2_000
# Ops that a cell left pending, or that run for tensors of an earlier cell alone, from which on a
# strip tells.
_MIN_WAITING = 10
# Ops that one cell leaves pending, from which on a strip tells which loop recorded them.
_MANY_PENDING = 1_000


@dataclass(slots=True)
class CellRecord:
    """What one cell did on the lazy device.

    Attributes:
        number: The cell's execution count.
        strip: Its figures; the graph is left out, so that a long session stays small.
        fingerprint: Of the graph that was pending at its end, empty if none was.
        failure: The exception that ended it, as text.
    """

    number: int | None
    strip: Strip
    fingerprint: str
    failure: Failure | None = None


@dataclass(slots=True)
class _RunningCell:
    number: int | None
    started_ns: int
    activity: int | None
    tally: Tally | None


def runtime() -> ModuleType | None:
    """Return the module `lazyrt` if the user's program has imported it."""
    module = sys.modules.get("lazyrt")
    return module if hasattr(module, "activity") else None


def module_classes() -> Mapping[str, str]:
    """Return the classes of modules, by their names; none where no program runs here."""
    if runtime() is None:
        return {}
    from lazyrt.tools import provenance

    return provenance.module_classes()


def current(shell: InteractiveShell | None = None) -> Session | None:
    """Return the session of a shell, by default the running one; None when not loaded."""
    if shell is None:
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
    return getattr(shell, SHELL_ATTRIBUTE, None)


class Session:
    """Records the cells of one shell.

    Attributes:
        shell: The shell.
        strips: Whether a strip follows each cell that touched the device.
        cells: The last thousand cells that touched the device.
        last_error: The error that was shown before the running cell.
        curves: What `lazyviz.track` has taken.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self.strips = True
        self.last_error: BaseException | None = None
        self.cells: deque[CellRecord] = deque(maxlen=_MAX_CELLS)
        self.progress = Progress(shell)
        self.curves = Curves()
        self.shell: Any = shell
        self._runtime: ModuleType | None = None
        self._subscription: Subscription | None = None
        self._intake: Intake | None = None
        self._hooks: list[Any] = []
        self._running: _RunningCell | None = None
        self._latest: Tally | None = None
        self._pending_ids: frozenset[int] = frozenset()
        self._shown_fingerprint = ""
        self._told_waiting: set[int] = set()

    @property
    def steps(self) -> tuple[StepRow, ...]:
        """The last thousand steps that ran something, the earliest first."""
        if self._intake is None:
            return ()
        self._intake.settle()
        with self._intake.lock:
            return self._intake.steps.rows

    @contextlib.contextmanager
    def displaying(self) -> Iterator[None]:
        """Note no print within: a display of ours asks for a tensor's text."""
        if self._intake is None:
            yield
            return
        self._intake.shows = True
        try:
            yield
        finally:
            self._intake.shows = False

    @property
    def expectations(self) -> Expectations:
        """What compiles and executions took, up to now."""
        if self._intake is not None:
            self._intake.settle()
        return self.progress.expectations

    @property
    def timeline(self) -> Timeline | None:
        """What happened when, up to now; None until the runtime is imported."""
        if self._intake is None:
            return None
        self._intake.settle()
        return self._intake.timeline

    @property
    def cell_number(self) -> int | None:
        """The execution count of the running cell, None between cells."""
        return self._running.number if self._running is not None else None

    @property
    def attached(self) -> bool:
        """Whether the session listens to the runtime."""
        return self._runtime is not None

    def attach(self, runtime: ModuleType) -> None:
        """Listen to the runtime from now on."""
        if self.attached:
            return
        from lazyviz.timing.event_queue import Intake
        from lazyviz.timing.ledger import Quiet

        intake = self._intake = Intake(self.progress)
        self._runtime = runtime
        self._subscription = runtime.subscribe(intake.note)
        cell = self._running
        if cell is not None and cell.tally is None:
            cell.tally = self._begin_tally(cell, intake)
            cell.activity = runtime.activity()
            # Imports took until now: nothing could be recorded.
            intake.note(Quiet(cell.started_ns, time.perf_counter_ns(), None))
        self.progress.attach(runtime)
        if hasattr(runtime, "on_barrier"):
            hooks = (self.progress.barrier, self.curves.settle)
            self._hooks = [runtime.on_barrier(hook) for hook in hooks]
        runtime_provenance().set_cell_namer(self.cell_of_file)
        be_library()

    def close(self) -> None:
        """Stop listening and forget the running cell."""
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None
        while self._hooks:
            self._hooks.pop().close()
        if self._runtime is not None:
            runtime_provenance().set_cell_namer(None)
            self._runtime = None
        if self._intake is not None:
            self._intake.pulse.close()
        self.progress.close()
        self._running = None

    def _begin_tally(self, cell: _RunningCell, intake: Intake) -> Tally:
        """Return the sums of a cell that begins; what it does goes to the timeline."""
        from lazyviz.timing.ledger import Ledger
        from lazyviz.timing.tally import Tally

        def told(phase: str, pieces: list[tuple[int, int]], site: str) -> None:
            intake.timeline.host(phase, pieces, cell.number, site)

        intake.begin_cell(cell, cell.started_ns)
        return Tally(ledger=Ledger(cell.started_ns), told=told)

    def cell_of_file(self, filename: str) -> int | None:
        """Return the execution count of the cell whose code has this file name."""
        names: dict[str, int] = getattr(self.shell.compile, "_filename_map", {})
        return names.get(filename)

    def start_cell(self, number: int | None) -> None:
        """Note the state at the start of a cell."""
        self.progress.begin_cell()
        self.curves.begin_cell()
        cell = _RunningCell(number, time.perf_counter_ns(), None, None)
        if self._runtime is not None and self._intake is not None:
            cell.tally = self._begin_tally(cell, self._intake)
            cell.activity = self._runtime.activity()
            # Equal ops and equal code of two cells would both show the earlier cell.
            self._runtime.begin_cell()
            runtime_provenance().set_cell_namer(self.cell_of_file)
        self._running = cell

    def finish_cell(self, error: BaseException | None) -> Strip | None:
        """Record the running cell; return its strip, or None if it did not touch the device."""
        from lazyviz.render.timeline_text import NO_LINES, CellTime

        intake, runtime = self._intake, self._runtime
        if intake is None or runtime is None:
            self._running = None
            self.progress.end_cell()
            return None
        intake.pulse.end()
        ended_ns = time.perf_counter_ns()
        cell, self._running = self._running, None
        self._latest = cell.tally if cell is not None else None
        self.progress.end_cell()
        # What ends from now on still counts as the cell's, but for its time.
        intake.settle()
        if cell is None or cell.tally is None or not self._has_touched(cell):
            intake.end_cell()
            return None
        parts = cell.tally.ledger.parts(ended_ns)
        if runtime.in_flight():
            # Who looks at a failed check raises it, once: that is the program's to do.
            runtime.wait(_MAX_WAIT_S, check=False)
        intake.end_cell()
        with intake.lock:
            figures = dataclasses.replace(
                cell.tally.strip(),
                parts=tuple(parts.items()),
                wall_ns=ended_ns - cell.started_ns,
            )
        strip, fingerprint = self._summary(runtime, figures, cell.tally, error)
        intake.timeline.end_cell(
            CellTime(
                number=cell.number,
                start_ns=cell.started_ns,
                end_ns=ended_ns,
                parts=parts,
                device_ns=strip.execute_ns,
                lines=intake.pulse.lines or NO_LINES,
            )
        )
        self.cells.append(
            CellRecord(
                cell.number,
                dataclasses.replace(strip, graph=None, breaks=(), curves=None),
                fingerprint,
                failure_of(error) if error is not None else None,
            )
        )
        return strip

    def tell_end(self, strip: Strip, tell: Callable[[Strip], object]) -> None:
        """Hand over a strip again once the device has run what its cell has begun."""
        intake, tally, record = self._intake, self._latest, self.cells[-1]
        if intake is None or tally is None:
            return

        def ended() -> None:
            again = dataclasses.replace(strip, running=0, execute_ns=tally.execute_ns)
            record.strip = dataclasses.replace(
                again, graph=None, breaks=(), curves=None
            )
            tell(again)

        with intake.lock:
            tally.ended = ended
            if not tally.running:
                ended()

    def _has_touched(self, cell: _RunningCell) -> bool:
        """Return whether a cell did anything on the device; its events have been added up."""
        if self._runtime is None or cell.tally is None:
            return False
        return bool(cell.tally.seen) or self._runtime.activity() != cell.activity

    def cell_so_far(self) -> CellTime | None:
        """Return the time of the running cell up to now; None if it did nothing yet."""
        from lazyviz.render.timeline_text import CellTime

        cell = self._running
        if cell is None or cell.tally is None or self._intake is None:
            return None
        self._intake.settle()
        now = time.perf_counter_ns()
        with self._intake.lock:
            if not cell.tally.seen:
                return None
            return CellTime(
                number=cell.number,
                start_ns=cell.started_ns,
                end_ns=now,
                parts=cell.tally.ledger.parts(now),
                device_ns=cell.tally.execute_ns,
            )

    def _summary(
        self,
        runtime: ModuleType,
        figures: Strip,
        tally: Tally,
        error: BaseException | None,
    ) -> tuple[Strip, str]:
        graph = runtime.pending_graph()
        ids = frozenset(node.id for node in graph.nodes)
        known = frozenset() if tally.executed_barriers else self._pending_ids
        new_ids = ids - known
        self._pending_ids = ids
        fingerprint = graph.fingerprint if ids else ""
        is_new = bool(ids) and (bool(new_ids) or fingerprint != self._shown_fingerprint)
        if is_new:
            self._shown_fingerprint = fingerprint
        held = drawing = None
        if is_new and self.strips:
            held = self._holdings_of(graph)
            drawing = self.drawing_of(graph, new_ids, held)
        step = tally.largest[1] if tally.largest is not None and not ids else None
        if step is not None and self.strips:
            drawing = self._drawing_of_step(runtime, step)
        curves = self.curves.shown(self.steps, cell=self.curves.cell)
        strip = dataclasses.replace(
            figures,
            curves=curves.doc() if curves is not None else None,
            pending_ops=len(ids),
            new_ops=len(new_ids),
            live_tensors=len(runtime.live_tensors()),
            error=type(error).__name__ if error is not None else None,
            interrupted=isinstance(error, KeyboardInterrupt),
            graph=drawing,
            drawn_step=step,
            state=runtime.status(),
            mode=str(runtime.mode()),
            waits=self.progress.waits,
            waiting=(
                *self._waiting(graph, held, anew=bool(tally.executed_barriers)),
                *(
                    self._growing(graph, len(new_ids))
                    or self._left(figures, len(new_ids), len(ids))
                ),
            ),
            breaks=self._breaks(runtime, tally.new_steps),
        )
        return strip, fingerprint

    def _drawing_of_step(self, runtime: ModuleType, step: int) -> DrawGraph | None:
        """Return the drawing of the graph that a step ran; None if it is not kept as IR."""
        record = runtime.graph_of_step(step)
        if record is None or record.graph is None:
            return None
        inspection = runtime.inspect(step)
        return self.drawing_of(inspection.graph, held=inspection.holdings)

    def _waiting(
        self, graph: Graph, held: Mapping[Value, Holding] | None, *, anew: bool
    ) -> tuple[str, ...]:
        """Return which earlier cells' tensors make the next step bigger, each told once."""
        if anew:
            self._told_waiting.clear()
        if not graph.nodes:
            return ()
        from lazyrt.tools import waiting_cells

        large = {w.cell for w in waiting_cells(graph, {}) if w.nodes >= _MIN_WAITING}
        untold = large - self._told_waiting
        if not untold:
            return ()
        self._told_waiting |= untold
        # Finding names takes long, so that only what is told asks for them.
        held = (self._holdings_of(graph) if held is None else held) or {}
        names = {value: each.name for value, each in held.items() if each.name}
        waiting = waiting_cells(graph, names)
        return tuple(str(each) for each in waiting if each.cell in untold)

    def _left(self, figures: Strip, new: int, pending: int) -> tuple[str, ...]:
        """Return that what a cell left pending joins the next step, once steps have run."""
        if new < _MIN_WAITING or figures.left or not self.steps:
            return ()
        words = f"{pending:,} ops are pending and will run with the next step"
        what_to_do = "lazyrt.mark_step() runs them now, %lazy drop drops them"
        return (f"{words}. {what_to_do}",)

    def _growing(self, graph: Graph, new: int) -> tuple[str, ...]:
        """Return the loop that fills the pending graph, where the cell made it much larger."""
        if new < _MANY_PENDING:
            return ()
        from lazyrt.tools import rounds_in

        nodes = graph.nodes
        rounds = rounds_in((node.op.name, node.provenance.site) for node in nodes)
        if rounds is None:
            return ()
        many = f"{len(nodes):,} ops are pending and no boundary has come"
        what_to_do = (
            "End each round with lazyrt.mark_step(), or put it in `with lazyrt.step():`"
        )
        return (f"{many}: {rounds}. {what_to_do}",)

    def _breaks(self, runtime: ModuleType, steps: Sequence[int]) -> tuple[Doc, ...]:
        """Return where the cell's new graphs are parts of one step."""
        if not (steps and self.strips):
            return ()
        from lazyviz.inspection.graph_breaks import breaks_of

        return tuple(each.doc() for each in breaks_of(runtime, steps))

    def drawing_of(
        self,
        graph: Graph,
        new_ids: frozenset[int] | None = None,
        held: Mapping[Value, Holding] | None = None,
    ) -> DrawGraph:
        """Return the drawing of a graph, nothing folded, with the user's names.

        Nodes with other ids than `new_ids` are drawn as those of an earlier cell.
        """
        from lazyviz.draw.boxes import draw_graph

        runs = self._runtime.times_run(graph) if self._runtime is not None else {}
        held = self._holdings_of(graph) if held is None else held
        drawing = draw_graph(graph, new=new_ids, runs=runs, holdings=held)
        return dataclasses.replace(drawing, classes=module_classes())

    def _holdings_of(self, graph: Graph) -> Mapping[Value, Holding] | None:
        """Return what a graph's inputs and outputs are to the user, if it is small and pending."""
        if self._runtime is None or len(graph.nodes) > _MAX_NAMED_NODES:
            return None
        if not set(self._runtime.pending_graph().nodes).issuperset(graph.nodes):
            return None
        from lazyrt.tools import holdings_in

        return holdings_in(graph, self.shell.user_ns)
