"""What a lazy tensor and a graph show as a cell's result.

Displaying a tensor computes its value by a peek: the pending graph, its fingerprint and
the random state stay as they are.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from lazyviz import session
from lazyviz.lazytensors import is_lazy
from lazyviz.render import html, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

_TENSOR = ("torch", "Tensor")
_PARAMETER = ("torch.nn.parameter", "Parameter")
_GRAPH = ("lazyrt.ir.graph", "Graph")
_DTYPE_SUFFIX = re.compile(r",\s+dtype=torch\.\w+\)$")
_LINE_WIDTH = 80
_MAX_STATISTICS = 10_000_000
_MAX_LISTED_OPS = 60


def install(shell: InteractiveShell) -> list[Callable[[], None]]:
    """Register the formatters; return the functions that undo it.

    A tensor that is a cell's result gets text and HTML from one peek; tensors inside a
    list or a dict get their text from IPython's pretty printer.
    """
    display_formatter: Any = shell.display_formatter
    plain = display_formatter.formatters["text/plain"]
    bundle = display_formatter.mimebundle_formatter
    undo = [
        _register(bundle, _TENSOR, _tensor_bundle(bundle)),
        _register(bundle, _GRAPH, graph_bundle),
    ]
    undo += [
        _register(plain, name, _tensor_plain(plain, name))
        for name in (_TENSOR, _PARAMETER)
    ]
    return undo


def wants_html(shell: InteractiveShell) -> bool:
    """Return whether the shell shows HTML at all; a terminal does not."""
    display_formatter: Any = shell.display_formatter
    return "text/html" in display_formatter.active_types


def value_text(tensor: Any, value: Any) -> str:
    """Return torch's own text of a tensor's value, with the device that the tensor is on.

    Args:
        tensor: The lazy tensor.
        value: Its value on the CPU.
    """
    shown = repr(value.detach())
    device = f"device='{tensor.device}'"
    dtype = _DTYPE_SUFFIX.search(shown)
    body = shown[: dtype.start()] if dtype else shown[:-1]
    suffixes = [device]
    if dtype:
        suffixes.append(dtype[0].lstrip(", \n").removesuffix(")"))
    if tensor.grad_fn is not None:
        suffixes.append(f"grad_fn=<{tensor.grad_fn.name()}>")
    elif tensor.requires_grad:
        suffixes.append("requires_grad=True")
    for suffix in suffixes:
        room = _LINE_WIDTH - len(body.rsplit("\n", 1)[-1])
        body += f", {suffix}" if len(suffix) + 3 < room else f",\n       {suffix}"
    is_parameter = type(tensor).__name__ == "Parameter"
    return f"Parameter containing:\n{body})" if is_parameter else f"{body})"


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


def _tensor_plain(
    formatter: Any, name: tuple[str, str]
) -> Callable[[Any, Any, bool], None]:
    before = _registered(formatter, name)

    def show(tensor: Any, printer: Any, cycle: bool) -> None:  # noqa: FBT001
        runtime = session.runtime()
        if runtime is not None and is_lazy(tensor):
            _print_lines(value_text(tensor, runtime.materialise(tensor)), printer)
        elif before is not None:
            before(tensor, printer, cycle)
        else:
            _print_lines(repr(tensor), printer)

    return show


def _tensor_bundle(formatter: Any) -> Callable[[Any], Any]:
    before = _registered(formatter, _TENSOR)

    def show(tensor: Any) -> Any:
        runtime = session.runtime()
        if runtime is not None and is_lazy(tensor):
            value = runtime.materialise(tensor)
            shown = value_text(tensor, value)
            return {
                "text/plain": shown,
                "text/html": html.value_html(shown, statistics(value)),
            }
        if before is not None:
            return before(tensor)
        method = getattr(tensor, "_repr_mimebundle_", None)
        return method() if method is not None else None

    return show


def graph_bundle(graph: Any) -> dict[str, str]:
    """Return a graph's listing and, for a shell that shows it, its drawing."""
    from lazyviz.render.model import draw_graph

    if not graph.nodes:
        return {"text/plain": "<Graph: nothing is pending>"}
    bundle = {"text/plain": text.listing(graph, _MAX_LISTED_OPS)}
    current = session.current()
    if current is not None and wants_html(current.shell):
        drawing = draw_graph(graph, names=current.names_in(graph))
        bundle["text/html"] = html.graph_html(drawing)
    return bundle


def _print_lines(lines: str, printer: Any) -> None:
    with printer.group():
        for index, line in enumerate(lines.splitlines()):
            if index:
                printer.break_()
            printer.text(line)


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
