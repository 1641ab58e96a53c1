"""See a lazy tensor runtime at work: `%load_ext lazyviz` in IPython or Jupyter.

Importing this package loads neither torch nor jax nor ipywidgets; the parts that need
them are loaded when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyviz.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from typing import Any

    import torch
    from IPython.core.interactiveshell import InteractiveShell

    from lazygraph import Graph, ValueTrace
    from lazyrt.tools import NodeValues
    from lazyviz.divergence.report import Replicas
    from lazyviz.documents.session_report import Written
    from lazyviz.foreign.evidence import Evidence
    from lazyviz.foreign.metrics import Rounding
    from lazyviz.foreign.metrics_parse import Comparable, ReportDiff
    from lazyviz.foreign.metrics_report import MetricsReport
    from lazyviz.inspection.comparison import DiffView, MinimisedView
    from lazyviz.inspection.explorer import ExploreView
    from lazyviz.inspection.numerics import Comparison, NotFiniteView
    from lazyviz.timing.timeline import TimelineShown

__all__ = [
    "__version__",
    "compare",
    "compare_modes",
    "compare_reports",
    "diff",
    "explore",
    "export_trace",
    "find_nan",
    "load_ipython_extension",
    "minimise",
    "parse_report",
    "read",
    "replicas",
    "report",
    "stop_at_nan",
    "timeline",
    "trace_value",
    "unload_ipython_extension",
]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Hook lazyviz into an IPython shell; `%load_ext lazyviz` calls this."""
    from lazyviz import extension

    extension.load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Leave the shell as loading found it; `%unload_ext lazyviz` calls this."""
    from lazyviz import extension

    extension.unload(shell)


def parse_report(
    report: str | Mapping[str, Any], *, rounding: Rounding | None = None
) -> MetricsReport:
    """Read a metrics report of torch_xla or lazyrt, with the durations as measured.

    torch_xla prints most durations too large, by up to a minute; they can be had back exactly.

    Args:
        report: The text of one or several reports, JSON, or `lazyrt.metrics_report("dict")`.
        rounding: Who printed it: `legacy` for torch_xla, `exact` for lazyrt. By default it is
            found out.

    Raises:
        EvidenceError: There is no report in the text, or one that breaks off.
    """
    from lazyviz.foreign import metrics_parse

    return metrics_parse.parse_report(report, rounding=rounding)


def compare_reports(before: Comparable, after: Comparable) -> ReportDiff:
    """Return what changed from one metrics report to another, old or new.

    Raises:
        EvidenceError: One of them is no report, or a text with several.
    """
    from lazyviz.foreign import metrics_parse

    return metrics_parse.compare_reports(before, after)


def read(source: str | Path) -> Evidence:
    """Read a metrics report, a PT_XLA_DEBUG log, a dump of graphs, or XLA's dump folder.

    Args:
        source: Path of a file or folder, or the text itself (of several lines).

    Raises:
        EvidenceError: It is none of these, or is broken.
    """
    from lazyviz.foreign import read as reader

    return reader.read(source)


def replicas(source: str | Path | Iterable[str | Path]) -> Replicas:
    """Return what several replicas of a program ran side by side, and where they part first.

    Reads what the processes have written; nothing is noticed while they run, and no wait is
    prevented.

    Args:
        source: A folder that processes recorded into (`lazyrt.record_steps`, or LAZYRT_RECORD);
            a folder or list of the files that XLA_SAVE_TENSORS_FILE writes for each ordinal; or
            one file of HLO, StableHLO or IR for each replica.

    Raises:
        EvidenceError: A file is none of these, or is damaged; or there is only one replica.
    """
    from lazyviz.divergence import report as divergence

    return divergence.replicas(source)


def report(path: str | Path, *, source: bool = True, force: bool = False) -> Written:
    """Write the session as one self-contained web page, for a bug report.

    The page holds versions, settings, cells with their strips, steps and their causes, graphs
    and what differs between them, live tensors and metrics; no tensor's value. The home
    directory is shortened to `~`. It is at most 10 MiB large.

    Args:
        path: Ends in `.html`. A report that is there already is replaced.
        source: Whether the source of the cells is part of it.
        force: Replace any other file, too.

    Raises:
        ReportError: The file is not one that a report may be written to.
    """
    from lazyviz.documents import session_report
    from lazyviz.shell import magics  # noqa: F401 - it registers the views

    return session_report.write(path, source=source, force=force)


def diff(a: Any, b: Any) -> DiffView:
    """Return the difference of two programs; a notebook shows it as a picture with tables.

    Names, layouts, dead code and the order of parameters, outputs and lines make none.

    Args:
        a: HLO or StableHLO text, a path, a graph, a lazy tensor (for what is pending under it, or
            what its step ran for it), or a step of this session: its number, `"last"`, or its
            graph's name.
        b: Likewise.

    Raises:
        HloError: One of them is no program, or no step that is known.
    """
    from lazyviz.inspection import comparison

    return comparison.compare(a, b)


def find_nan(*tensors: torch.Tensor) -> NotFiniteView:
    """Return where NaN and infinities begin: ops, their lines, and the numbers they were made of.

    Runs what the tensors need op by op, as a peek: the step stays as it is. An op is named if its
    result has NaN and none of its operands has, or infinities where they are finite, and if that
    leads to one of the tensors: a mask of -inf that a softmax swallows is not. What an op gives by
    itself may differ from what the optimised step gives; `compare_modes` tells how far.

    Args:
        tensors: Lazy tensors of floating-point numbers, pending or made by a finished step whose
            inputs are kept (`config.keep_values`); without any, all that is pending, else the
            last step.

    Returns:
        A view; true if something is not finite.

    Raises:
        UsageError: Nothing is pending for them, and the inputs of their step are not kept, so the
            ops behind them are gone.
    """
    from lazyviz.inspection import numerics

    return numerics.find_nan(*tensors)


def stop_at_nan(*, on: bool = True) -> None:
    """End a loop at the first step whose loss or gradients are not finite; `%lazy nan on`.

    The barrier of that step raises `lazyrt.errors.NotFiniteError` with the op in which it begins,
    its line and its operands. The step stays pending: weights are as before it. Each step waits
    for its results and copies what it overwrites; its graph and its executable stay as they are.

    Args:
        on: False lets steps run again whatever they compute.
    """
    import lazyrt

    lazyrt.config.set("stop_at_nan", value=on, origin=f"lazyviz.stop_at_nan(on={on})")


def minimise(program: Any, shows: Callable[[Graph], bool]) -> MinimisedView:
    """Return the smallest part of a program that still shows something.

    What is cut off becomes an input; no single instruction of the answer can be left out.

    Args:
        program: As for `diff`.
        shows: Whether a `lazygraph.Graph` still shows what is looked for, such as
            `lambda part: any(op.startswith("aten.cumsum") for op in part.ops)`.

    Raises:
        HloError: It is no program, no step that is known, or does not show it as a whole.
    """
    from lazyviz.inspection import comparison

    return comparison.minimise(program, shows)


def timeline(cells: int = 12) -> TimelineShown:
    """Return where the time of the session's last cells went; a notebook shows it as a picture.

    Args:
        cells: How many of them; the one that runs now counts.

    Raises:
        UsageError: lazyviz is not loaded in a shell, or it is no number of cells.
    """
    from lazyviz.timing import timeline as timelines

    return timelines.timeline(cells)


def export_trace(path: str | Path) -> Path:
    """Write the session's timeline as a trace-event file, which Perfetto opens.

    `python -m lazyviz report FILE` sums such a file up.

    Args:
        path: Where to; `.gz` at its end compresses it.

    Raises:
        TraceError: The path has a file of another kind, or cannot be written.
        UsageError: lazyviz is not loaded in a shell.
    """
    from lazyviz.timing import timeline as timelines

    return timelines.timeline().export(path)


def explore(*things: Any, **options: Any) -> ExploreView:
    """Return a view to walk through a program; a notebook shows it live, with a static copy.

    A click on an op of a pending graph, or of a finished step whose inputs are kept
    (`config.keep_values`), shows its value; the step stays as it is. Of a module
    with inputs the graph of that one call is shown: it is recorded and taken back, so nothing of
    it runs, no random number is drawn, and what was pending stays as it was, as do the attributes
    of modules, gradients and optimizers. What the call does to other Python objects, such as a
    list that it appends to, stays.

    Args:
        things: Nothing for all that is pending, else the last step; lazy tensors; a graph; a
            computation; HLO or StableHLO as text or a path; a step of this session: its number,
            `"last"`, or its graph's name, such as `"graph.3"`; a module, for
            what is pending of its parameters, buffers and gradients; or a module or a function
            and what to call it with.
        options: Arguments of that call by name.

    Raises:
        HloError: There is no such step or file, it is no program, or nothing of the module is
            pending.
        UsageError: A tensor is not on the lazy device, or the call gives no pending one.
        StepSyncError: The call needs a value, which only running a part of it would give.
    """
    from lazyviz.inspection import explorer

    return explorer.explore(*things, options=options)


def trace_value(program: Any, name: str) -> ValueTrace:
    """Follow a value through tuples, calls and fusions to its consumers and its producers.

    Args:
        program: HLO or StableHLO text, whole or in excerpts, or whatever `diff` takes: a path, a
            graph, a lazy tensor, the number of a step. Of a text with several modules the one
            that has the instruction.
        name: The instruction, with or without `%`.

    Raises:
        HloError: There is no such instruction.
    """
    from lazyviz.inspection import comparison

    return comparison.trace(program, name)


def compare(
    eager: NodeValues,
    lazy: NodeValues,
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> Comparison:
    """Compare two runs of one pending graph node by node: numbers, fusions and memory.

    Args:
        eager: `lazyrt.node_values(t, mode="eager")`: the reference, each op alone.
        lazy: `lazyrt.node_values(t, mode="lazy")`, of the same graph.
        rtol: Relative tolerance; by default torch's own for each dtype.
        atol: Absolute tolerance, likewise.

    Raises:
        UsageError: The runs are of different graphs.
    """
    from lazyviz.inspection import numerics

    return numerics.compare(eager, lazy, rtol=rtol, atol=atol)


def compare_modes(
    *tensors: torch.Tensor, rtol: float | None = None, atol: float | None = None
) -> Comparison:
    """Run what pending tensors need op by op and optimised, and compare; their step stays.

    Args:
        tensors: Lazy tensors; none given means all live ones.
        rtol: See `compare`.
        atol: See `compare`.
    """
    from lazyviz.inspection import numerics

    return numerics.compare_modes(*tensors, rtol=rtol, atol=atol)
