"""What a cell displays: tensors, graphs and views, static and live, and what `Out` keeps.

Displaying a tensor computes its value by a peek: the pending graph, its fingerprint and the random
state stay as they are. The text is the runtime's own `repr`; a notebook gets one line of statistics
with it. IPython keeps every displayed object in `Out`, `_` and the last execution result. A lazy
tensor kept there would be a root of all later graphs, so a snapshot of it is kept.
"""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from lazyviz import session
from lazyviz.doc import Code, Doc, Drawn, Sentence, Showable
from lazyviz.draw import panel, svg
from lazyviz.inspection.live import live_doc
from lazyviz.render import text
from lazyviz.shell.lazytensors import is_lazy, lazy_tensors, replaced
from lazyviz.shell.tracebacks import override

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from IPython.core.interactiveshell import InteractiveShell

    from lazyviz.doc import Part


_log = logging.getLogger(__name__)

_TENSOR = ("torch", "Tensor")
_GRAPH = ("lazyrt.execution.graph", "Graph")
_LIVE = ("lazyrt.control.live_tensors", "LiveReport")
_PLAN = "<lazyrt "
_MAX_LISTED_OPS = 60
_MIN_PICTURED = 16
_EMPTY = "<Graph: nothing is pending; lazyrt.inspect(STEP).graph is that of a step>"


def install(
    shell: InteractiveShell, pictured: Callable[[], None]
) -> list[Callable[[], None]]:
    """Register the formatters, and let `Out` keep snapshots; return the functions that undo it.

    `pictured` is called when a page shows a picture that a script answers for.
    """
    display_formatter: Any = shell.display_formatter
    bundle = display_formatter.mimebundle_formatter
    return [
        keep_snapshots(shell.displayhook),
        _register(bundle, _TENSOR, _tensor_bundle(shell, pictured)),
        _register(bundle, _GRAPH, lambda graph: _bundle(graph_doc(graph), shell)),
        _register(bundle, _LIVE, lambda found: _bundle(live_doc(found), shell)),
    ]


def wants_html(shell: InteractiveShell) -> bool:
    """Return whether the shell shows HTML at all; a terminal does not."""
    display_formatter: Any = shell.display_formatter
    return "text/html" in display_formatter.active_types


def facts(look: Any) -> str:
    """Return one line about what was seen of a tensor: type, range, mean, what is not finite."""
    line = panel.statistics_text(look.summary)
    return line if look.value.dim() else f"{line} · {number_text(look.value)}"


def number_text(value: Any) -> str:
    """Return the one number of a CPU tensor with the digits that its type has.

    Example:
        >>> import torch
        >>> number_text(torch.tensor(0.1)), number_text(torch.tensor(0.1, dtype=torch.bfloat16))
        ('0.1', '0.1001')
    """
    torch = sys.modules["torch"]
    if value.dtype in (torch.float32, torch.float16):
        return str(value.detach().numpy()[()])
    number = value.item()
    short = value.is_floating_point() and value.dtype != torch.float64
    return f"{number:.4g}" if short else str(number)


def _page(runtime: Any, tensor: Any, shown: str) -> str:
    """Return a tensor's display as HTML: statistics first, the rest folded."""
    from lazyviz.render.values import picture_axes, tensor_doc

    pictured = tensor.numel() >= _MIN_PICTURED
    axes = picture_axes(tuple(tensor.shape)) if pictured else ()
    look = runtime.look(tensor, axes)
    plan, listing = _plan(runtime, tensor)
    line = " · ".join([facts(look), *_standing(tensor)])
    shards = _shards(runtime, tensor)
    return tensor_doc(line, shown, look, plan, listing, shards).to_html()


def _shards(runtime: Any, tensor: object) -> Doc | None:
    """Return which devices have which parts of a tensor; None of one that is whole."""
    from lazyviz.render.values import shards_table

    shards = runtime.shards_of(tensor)
    return shards_table(shards, runtime.sharding_of(tensor)) if shards else None


def _standing(tensor: Any) -> list[str]:
    """Return a tensor's device and its part in autograd, as torch names them."""
    parts = [str(tensor.device)]
    if tensor.grad_fn is not None:
        parts.append(f"grad_fn=<{type(tensor.grad_fn).__name__}>")
    elif tensor.requires_grad:
        parts.append("requires_grad=True")
    return parts


def _plan(runtime: Any, tensor: Any) -> tuple[str, str]:
    """Return one line about what makes a tensor, and the ops that are pending for it."""
    if not runtime.is_pending(tensor):
        origin = runtime.origin(tensor)
        return (f"data: {origin}" if origin is not None else "data"), ""
    graph = runtime.pending_graph(tensor)
    node = graph.roots[0].node if graph.roots else None
    if node is None:
        return "pending", ""
    parts = [f"plan: {text.plural(len(graph.nodes), 'pending op')}", node.op.name]
    if node.provenance.site is not None:
        parts.append(str(node.provenance.site))
    if node.provenance.module:
        parts.append(f"module {node.provenance.module}")
    parts.append("shown by a peek, the step is as before")
    return " · ".join(parts), text.listing(graph, _MAX_LISTED_OPS)


def _tensor_bundle(shell: Any, pictured: Callable[[], None]) -> Callable[[Any], Any]:
    before = _registered(shell.display_formatter.mimebundle_formatter, _TENSOR)

    def show(tensor: Any) -> Any:
        runtime = session.runtime()
        is_page = wants_html(shell)
        if (
            runtime is not None
            and is_lazy(tensor)
            and (is_page or runtime.shards_of(tensor))
        ):
            current = session.current() if is_page else None
            try:
                # The display tells the tensor's statistics, so the strip need not.
                with current.displaying() if current is not None else nullcontext():
                    shown = repr(tensor)
            except runtime.errors.LostValueError as error:
                # Raised, it would be shown once for this form and again for the plain text.
                return {"text/plain": f"{type(error).__name__}: {error}"}
            # Somebody who looks around behind the user's back gets the plan alone.
            if shown.startswith(_PLAN):
                return {"text/plain": shown}
            if not is_page:
                return {"text/plain": f"{shown}\n{_shards(runtime, tensor)}"}
            page = _page(runtime, tensor, shown)
            if "data-numbers" in page:
                pictured()
            return {"text/plain": shown, "text/html": page}
        if before is not None:
            return before(tensor)
        method = getattr(tensor, "_repr_mimebundle_", None)
        return method() if method is not None else None

    return show


def graph_doc(shown: Any, hint: str = "") -> Doc:
    """Return the listing of a graph, or of an inspection's; on a page its drawing, above a hint."""
    graph = getattr(shown, "graph", shown)
    held = getattr(shown, "holdings", None)
    if not graph.nodes:
        return Doc([Sentence(_EMPTY)])
    listing = text.listing(graph, _MAX_LISTED_OPS)
    current = session.current()
    if current is None:
        return Doc([Code(listing)])
    return Doc(
        [
            Drawn(
                listing,
                lambda: svg.graph_html(current.drawing_of(graph, held=held), hint=hint),
            )
        ]
    )


def _bundle(doc: Doc, shell: Any) -> dict[str, str]:
    bundle = {"text/plain": doc.to_text()}
    if doc.needs_html and wants_html(shell):
        bundle["text/html"] = doc.to_html()
    return bundle


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


def kept_value(result: Any, runtime: ModuleType) -> Any:
    """Return what IPython may keep of a displayed object.

    A tensor becomes its snapshot. A list, tuple or dict is rebuilt with snapshots only if
    something in it is pending.
    """
    if not is_lazy(result) and not any(map(runtime.is_pending, lazy_tensors(result))):
        return result
    known: dict[int, Any] = {}

    def snapshot(tensor: Any) -> Any:
        if id(tensor) not in known:
            known[id(tensor)] = _snapshot(tensor, runtime)
        return known[id(tensor)]

    return replaced(result, snapshot)


def _snapshot(tensor: Any, runtime: ModuleType) -> Any:
    try:
        return runtime.snapshot(tensor)
    except Exception:  # noqa: BLE001
        # The display has told the user; what Out keeps must not be a root either way.
        _log.debug("no snapshot of a displayed tensor", exc_info=True)
        return runtime.stand_in(tensor)


def keep_snapshots(hook: Any) -> Callable[[], None]:
    """Make a display hook keep snapshots; return the function that undoes it."""
    update_user_ns = hook.update_user_ns
    fill_exec_result = hook.fill_exec_result
    latest: list[tuple[Any, Any]] = []

    def update_with_snapshot(result: Any) -> None:
        runtime = session.runtime()
        kept = result if runtime is None else kept_value(result, runtime)
        latest[:] = [] if kept is result else [(result, kept)]
        update_user_ns(kept)

    def fill_with_snapshot(result: Any) -> None:
        shown, kept = latest.pop() if latest else (result, result)
        fill_exec_result(kept if shown is result else result)

    return override(
        hook, update_user_ns=update_with_snapshot, fill_exec_result=fill_with_snapshot
    )


def show(shell: Any, shown: Part) -> None:
    """Display a view as text and HTML, and its live form where a page can have one."""
    doc = shown if isinstance(shown, Doc) else Doc([shown])
    shell.display_pub.publish(_bundle(doc, shell), metadata={})
    if doc.live is not None and has_page(shell):
        show_live(shell, doc.live)


def has_page(shell: Any) -> bool:
    """Return whether a page that shows live views may be looking."""
    has_comms = hasattr(getattr(shell, "kernel", None), "comm_manager")
    return has_comms and wants_html(shell)


def show_live(shell: Any, make: Callable[[], Any]) -> None:
    """Display a live view, or say why there is none."""
    from IPython.display import display

    try:
        view = make()
    except ImportError as error:
        note = (
            f"No live view: {error}. Run `pip install ipywidgets anywidget` and restart the "
            "kernel; the copy above has the same content."
        )
        shell.display_pub.publish({"text/plain": note}, metadata={})
        return
    display(view)  # type: ignore[no-untyped-call]


class Displayed(Showable):
    """A view that may be a cell's result: a static copy, live where a page can have it."""

    __slots__ = ()

    def show(self, shell: Any = None) -> None:
        """Display it in a shell, by default the running one; without one, print it."""
        from IPython.core.getipython import get_ipython

        shell = shell or get_ipython()
        if shell is None:
            print(self.text())  # noqa: T201 - what a shell without displays shows
        else:
            show(shell, self.doc())

    def _ipython_display_(self) -> None:
        self.show()

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        doc = self.doc()
        return {"text/plain": doc.to_text(), "text/html": doc.to_html()}
