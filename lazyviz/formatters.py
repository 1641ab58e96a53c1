"""What a lazy tensor and a graph show as a cell's result.

Displaying a tensor computes its value by a peek: the pending graph, its fingerprint and
the random state stay as they are. The text is the runtime's own `repr`; a notebook gets
one line of statistics with it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from lazyviz import executables, session
from lazyviz.lazytensors import is_lazy
from lazyviz.render import html, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

_TENSOR = ("torch", "Tensor")
_GRAPH = ("lazyrt.ir.graph", "Graph")
_PLAN = "<lazyrt "
_CACHE_TWIN = "lzx-twin"
_MAX_STATISTICS = 10_000_000
_MAX_LISTED_OPS = 60


def install(shell: InteractiveShell) -> list[Callable[[], None]]:
    """Register the formatters; return the functions that undo it."""
    display_formatter: Any = shell.display_formatter
    bundle = display_formatter.mimebundle_formatter
    return [
        _register(bundle, _TENSOR, _tensor_bundle(shell)),
        _register(bundle, _GRAPH, graph_bundle),
    ]


def wants_html(shell: InteractiveShell) -> bool:
    """Return whether the shell shows HTML at all; a terminal does not."""
    display_formatter: Any = shell.display_formatter
    return "text/html" in display_formatter.active_types


def statistics(value: Any) -> str:
    """Return one line about a CPU tensor: type, range, mean, and what is not finite."""
    torch = sys.modules["torch"]
    kind = str(value.dtype).removeprefix("torch.")
    parts = [f"{kind}[{', '.join(map(str, value.shape))}]"]
    if not 1 < value.numel() <= _MAX_STATISTICS or value.is_complex():
        return parts[0]
    if value.dtype == torch.bool:
        return f"{parts[0]} · {int(value.sum()):,} of {value.numel():,} true"
    numbers = value.detach().to(torch.float64)
    finite = numbers[torch.isfinite(numbers)]
    if finite.numel():
        parts.append(f"{float(finite.min()):.4g} to {float(finite.max()):.4g}")
        parts.append(f"mean {float(finite.mean()):.4g}")
        if finite.numel() > 1:
            parts.append(f"std {float(finite.std()):.4g}")
    for name, count in (
        ("NaN", int(numbers.isnan().sum())),
        ("Inf", int(numbers.isinf().sum())),
    ):
        if count:
            parts.append(f"{count:,} {name}")
    return " · ".join(parts)


def _tensor_bundle(shell: Any) -> Callable[[Any], Any]:
    before = _registered(shell.display_formatter.mimebundle_formatter, _TENSOR)

    def show(tensor: Any) -> Any:
        runtime = session.runtime()
        if runtime is not None and wants_html(shell) and is_lazy(tensor):
            shown = repr(tensor)
            # Somebody who looks around behind the user's back gets the plan alone.
            if shown.startswith(_PLAN):
                return {"text/plain": shown}
            facts = statistics(runtime.materialise(tensor))
            return {"text/plain": shown, "text/html": html.value_html(shown, facts)}
        if before is not None:
            return before(tensor)
        method = getattr(tensor, "_repr_mimebundle_", None)
        return method() if method is not None else None

    return show


def graph_bundle(graph: Any, hint: str = "") -> dict[str, str]:
    """Return a graph's listing and, for a shell that shows it, its drawing.

    Args:
        graph: A graph of the runtime.
        hint: A line below the drawing.
    """
    from lazyviz.render.model import draw_graph

    if not graph.nodes:
        return {"text/plain": "<Graph: nothing is pending>"}
    bundle = {"text/plain": text.listing(graph, _MAX_LISTED_OPS)}
    current = session.current()
    if current is not None and wants_html(current.shell):
        runs = current.runs_of(graph)
        drawing = draw_graph(graph, names=current.names_in(graph), runs=runs)
        bundle["text/html"] = html.graph_html(drawing, hint=hint)
    return bundle


def show_live(shell: InteractiveShell, report: Any) -> None:
    """Display the live tensors: a table that stays in the saved notebook."""
    bundle = {"text/plain": report.to_text(), "text/html": report.to_html()}
    publish: Any = shell.display_pub.publish
    publish(bundle, metadata={})


def show_executables(shell: InteractiveShell, runtime: Any) -> None:
    """Display the executables: a static table, and where there is a page one with buttons."""
    entries = runtime.cached_executables()
    bundle = {"text/plain": executables.table(entries)}
    publish: Any = shell.display_pub.publish
    if not wants_html(shell):
        publish(bundle, metadata={})
        return
    copy = executables.to_html(entries)
    bundle["text/html"] = f'<div class="{_CACHE_TWIN}">{copy}</div>'
    publish(bundle, metadata={})
    if entries and hasattr(getattr(shell, "kernel", None), "comm_manager"):
        from IPython.display import display

        from lazyviz.widgets.cache_view import CacheView

        display(CacheView(runtime, _CACHE_TWIN))  # type: ignore[no-untyped-call]


def _registered(formatter: Any, name: tuple[str, str]) -> Any:
    try:
        return formatter.lookup_by_type(".".join(name))
    except KeyError:
        return None


def _register(
    formatter: Any, name: tuple[str, str], function: Callable[..., Any]
) -> Callable[[], None]:
    dotted = ".".join(name)
    before = _registered(formatter, name)
    # Without the pop, an entry that IPython has moved to its table of types would stay.
    formatter.pop(dotted, None)
    formatter.for_type_by_name(*name, function)

    def undo() -> None:
        if _registered(formatter, name) is not function:
            return
        formatter.pop(dotted)
        if before is not None:
            formatter.for_type_by_name(*name, before)

    return undo
