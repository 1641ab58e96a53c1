"""See a lazy tensor runtime at work: `%load_ext lazyviz` in IPython or Jupyter.

Importing this package loads neither torch nor jax nor ipywidgets; the parts that need
them are loaded when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from IPython.core.interactiveshell import InteractiveShell

    from lazyviz.command_line import __version__
    from lazyviz.divergence.launch import launch
    from lazyviz.divergence.report import replicas
    from lazyviz.documents.session_report import Written
    from lazyviz.foreign.metrics_report import compare_reports, parse_report
    from lazyviz.foreign.read import read
    from lazyviz.inspection.comparison import diff, minimise, trace_value
    from lazyviz.inspection.explorer import explore
    from lazyviz.inspection.numerics import compare, compare_modes, find_nan
    from lazyviz.timing.profile import Profile
    from lazyviz.timing.timeline import timeline

__all__ = [
    "__version__",
    "compare",
    "compare_modes",
    "compare_reports",
    "diff",
    "explore",
    "export_trace",
    "find_nan",
    "launch",
    "load_ipython_extension",
    "minimise",
    "parse_report",
    "profile",
    "read",
    "replicas",
    "report",
    "stop_at_nan",
    "timeline",
    "trace_value",
    "track",
    "unload_ipython_extension",
]

# Public names by the modules that are loaded when one is first asked for.
_MODULES = {
    "command_line": ("__version__",),
    "divergence.launch": ("launch",),
    "divergence.report": ("replicas",),
    "foreign.metrics_report": ("compare_reports", "parse_report"),
    "foreign.read": ("read",),
    "inspection.comparison": ("diff", "minimise", "trace_value"),
    "inspection.explorer": ("explore",),
    "inspection.numerics": ("compare", "compare_modes", "find_nan"),
    "timing.timeline": ("timeline",),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            found = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Hook lazyviz into an IPython shell; `%load_ext lazyviz` calls this."""
    from lazyviz import extension

    extension.load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Leave the shell as loading found it; `%unload_ext lazyviz` calls this."""
    from lazyviz import extension

    extension.unload(shell)


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


def stop_at_nan(*, on: bool = True) -> None:
    """End a loop at the first step whose loss or weights are not finite; `%lazy nan on`.

    `lazyrt.errors.NotFiniteError` names the op in which it begins, its line and its operands; weights are
    as before that step, whose values can be explored. It comes with a read of what the step has made, with
    `wait()`, or at a barrier a fifth of a second later; for weights that reach no loss, such as a row of an
    embedding, a window of 200 steps later. A step that `GradScaler` leaves out ends none.
    The longer a loop the fewer of its steps are asked, five times a second at least; one in 200 copies
    its inputs. Steps run again for the weights of before; graphs and executables stay as they are.

    Args:
        on: False lets steps run again whatever they compute.
    """
    import lazyrt

    lazyrt.config.set("stop_at_nan", value=on, origin=f"lazyviz.stop_at_nan(on={on})")


def track(**values: Any) -> None:
    """Draw scalars over the steps of a loop in the cell's strip, read without a graph break.

    Step time and memory are drawn beside them, and steps that were compiled are marked;
    `%lazy curves` draws the whole session's. A tensor is held until its step has run, as a
    variable would hold it: a loss that the program keeps anyway leaves the step as it is. Outside
    of a session of lazyviz nothing happens.

    Args:
        values: By the name of the curve: a number, a tensor of one element, or a module for the
            norm of its gradients, which the pending step computes with the rest: name it before
            `optimizer.step()` runs that.

    Raises:
        UsageError: A value is none of these.

    Example:
        >>> import lazyviz
        >>> lazyviz.track(loss=0.5)  # in the loop: track(loss=loss, gradients=model)
    """
    from lazyviz import session

    current = session.current()
    if current is not None and current.attached:
        current.curves.track(values)


def profile(path: str | Path | None = None, *, thread: int | None = None) -> Profile:
    """Return a profile to take: `with lazyviz.profile() as p:` says where the block's time goes.

    `p.gaps` has the lines that waited, `p.lines` the device's time by line, `p.steps` the steps;
    a notebook shows `p` itself. Nothing is executed for it that the program would not execute.

    Args:
        path: A folder into which the device's trace is written, too.
        thread: Identity of the thread to profile; by default the one that starts it.
    """
    from lazyviz.timing import profile as profiles

    return profiles.Profile(path, thread=thread)


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
