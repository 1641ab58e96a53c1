"""What the user gave to be explored, and which forms of it there are.

Tensors, a graph, a step's number, a module and its input, a text or a path: each becomes a
`Subject`, whose forms are made when somebody asks for them, and kept.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from lazygraph import HloError, from_ir, graph_of
from lazyviz import session
from lazyviz.draw.boxes import saved_outputs, unwrapped
from lazyviz.inspection.programs import HloProgram, IrProgram, LoweredFrom, cell_text
from lazyviz.inspection.protocol import FORM_NAMES, Subject
from lazyviz.render import text
from lazyviz.shell.lazytensors import be_library, is_lazy
from lazyviz.timing.compile_time import latest_step, record_of_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from lazygraph import Graph as HloGraph
    from lazyrt import Graph, Inspection
    from lazyviz.inspection.programs import Program
    from lazyviz.inspection.protocol import Form


_NOTHING_YET = (
    "Nothing is pending, and no step has run yet. Record an op first, such as "
    "`x = torch.ones(3, device='lazyrt') + 1`."
)
LAST = "last"
_MAX_ORIGINS = 3
_NAME = re.compile(r"graph\.\d+")
_FINGERPRINT = re.compile(r"[0-9a-f]{8,64}")


class NothingToShow(HloError):  # noqa: N818 - no error: the answer to a question
    """There is neither a pending graph nor a finished step for what was asked."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a command looks at: the pending graph or a finished step, all of it or one tensor's part.

    Attributes:
        name: Such as `pending graph` or `step 12 (graph.3)`.
        step: The number of a finished step; None while it is pending.
        inspection: The graph, with what is known of its values; None where only the snapshot of
            a finished step's graph is kept.
    """

    name: str
    step: int | None
    inspection: Inspection | None

    @property
    def graph(self) -> Graph | None:
        """The graph as IR."""
        return self.inspection.graph if self.inspection is not None else None

    def program(self, runtime: ModuleType) -> HloGraph:
        """Return the graph as plain columns, to be compared."""
        if self.inspection is None and self.step is not None:
            return graph_of_step(runtime, self.step)
        if self.inspection is None:
            return graph_of(self.graph)
        held = self.inspection.holdings.items()
        names = {value: each.name for value, each in held if each.name}
        name = self.name if self.step is not None else ""
        found = from_ir(self.inspection.graph, name, names)
        found.saved = saved_outputs(
            self.inspection.graph.roots, self.inspection.holdings
        )
        if self.step is not None:
            found.optimizer = runtime.graph_of_step(self.step).key.optimizer
        return found


def is_step_name(thing: object) -> TypeGuard[int | str]:
    """Return whether it is how a command names a step: a number, `last` or a graph's name."""
    if isinstance(thing, str):
        return thing == LAST or thing.isdecimal() or bool(_NAME.fullmatch(thing))
    return isinstance(thing, int) and not isinstance(thing, bool)


def target_of(runtime: ModuleType, *things: Any) -> Target:
    """Return what is meant by nothing, a step's number, `last`, a graph's name, or tensors.

    Nothing is the pending graph, or the last step where nothing is pending. Tensors are what is
    pending for them, or where none is, what the step that computed them ran for them.

    Raises:
        NothingToShow: There is no such graph.
        HloError: There is no such step.
    """
    if len(things) == 1 and is_step_name(things[0]):
        return _step_target(runtime, step_number(runtime, things[0]))
    inspection = runtime.inspect(*things)
    if not things and not inspection.graph.nodes:
        return _step_target(runtime, step_number(runtime, LAST))
    if not inspection.graph.nodes:
        raise NothingToShow(_no_graph(runtime, things))
    if inspection.is_pending:
        return Target("pending graph", None, inspection)
    return Target(_title(runtime, inspection.step), inspection.step, inspection)


def step_number(runtime: ModuleType, name: int | str) -> int:
    """Return the number of the step that a number, `last` or a graph's name stands for.

    Raises:
        NothingToShow: No step has run yet.
        HloError: There is no graph of that name.
    """
    if name == LAST:
        if (latest := latest_step(runtime)) is None:
            raise NothingToShow(_NOTHING_YET)
        return latest
    if isinstance(name, int) or name.isdecimal():
        return int(name)
    record = _compiled(runtime, name)
    if record is None:
        raise HloError(f"there is no {name}. `%lazy graphs` lists the graphs.")
    return int(record.last_step)


def how_to_keep() -> str:
    """Return in a sentence which finished steps have their inputs kept, or what keeps them."""
    from lazyrt import config, status

    setting, kept = config.keep_values, str(status().kept)
    if setting != "off" and kept:
        return f"lazyrt.config.keep_values = {setting!r}: {kept}."
    return (
        "lazyrt.config.keep_values = 'last' keeps those of the last step that runs, a number "
        "those of so many."
    )


def _step_target(runtime: ModuleType, step: int) -> Target:
    record = record_of_step(runtime, step)
    inspection = runtime.inspect(step) if record.graph is not None else None
    return Target(_title(runtime, step), step, inspection)


def _title(runtime: ModuleType, step: int) -> str:
    return f"step {step} ({runtime.graph_of_step(step).name})"


def _no_graph(runtime: ModuleType, tensors: tuple[Any, ...]) -> str:
    """Say why there is no graph of tensors, and what there is to see."""
    origins = dict.fromkeys(str(runtime.origin(tensor)) for tensor in tensors)
    shown = "; ".join([*origins][:_MAX_ORIGINS])
    return (
        f"No step has computed this, and nothing is pending for it: {shown}. A cell that ends in "
        "it shows its value, with what is not finite; %lazy explore last shows the last step."
    )


def _compiled(runtime: ModuleType, text: str) -> Any:
    """Return the compiled graph of a name, `graph.3`, or of a fingerprint or its beginning."""
    is_fingerprint = _FINGERPRINT.fullmatch(text) is not None
    found = [
        record
        for record in runtime.compiled_graphs()
        if record.name == text
        or (is_fingerprint and record.key.fingerprint.startswith(text))
    ]
    if not found or Path(text).exists():
        return None
    if found[-1].snapshot is None:
        raise HloError(
            f"the graph {text} is no longer kept: too many graphs were compiled since. "
            "%lazy graphs lists those that are."
        )
    return found[-1]


def graph_to_compare(thing: Any) -> HloGraph:
    """Return the graph of anything that a program can be given as, for a diff.

    Raises:
        HloError: It is none, or there is no such step.
    """
    runtime = session.runtime()
    if runtime is None:
        if isinstance(thing, str) or not is_step_name(thing):
            return graph_of(thing).with_sites(cell_text)
        raise HloError(
            f"there is no step {thing}: lazyrt is not imported. Give a text, a path or a graph."
        )
    if is_step_name(thing):
        return target_of(runtime, thing).program(runtime)
    tensors = list(thing) if isinstance(thing, (list, tuple)) else [thing]
    if tensors and all(map(is_lazy, tensors)):
        return target_of(runtime, *tensors).program(runtime)
    record = _compiled(runtime, thing) if isinstance(thing, str) else None
    return graph_of(record or thing).with_sites(cell_text)


def subject_of(
    *things: Any,
    runtime: ModuleType | None = None,
    options: Mapping[str, Any] | None = None,
) -> Subject[Program]:
    """Return what is to be explored: what `lazyviz.explore` takes, with a call's options by name.

    Raises:
        HloError: There is no such step, or it is nothing of the above.
    """
    runtime = runtime or session.runtime()
    if runtime is not None:
        be_library()  # the names are those of the caller's frame
    if things and _is_call(things, options):
        return _call_subject(things[0], things[1:], options or {}, runtime)
    if len(things) == 1 and not _is_tensor(things[0]):
        return _subject_of_one(things[0], runtime)
    if runtime is None:
        raise HloError(
            "lazyrt is not imported, so nothing is pending. Import it and make tensors with "
            "device='lazyrt', or give a text, a path or a graph."
        )
    from lazyrt.tools import require_lazy

    for each in things:
        require_lazy(each, "explore()")
    target = target_of(runtime, *things)
    if target.step is not None:
        return _step_subject(target, runtime)
    return pending_subject(cast("Inspection", target.inspection))


def _subject_of_one(thing: Any, runtime: ModuleType | None) -> Subject[Program]:
    if isinstance(thing, (list, tuple)) and all(map(_is_tensor, thing)):
        return subject_of(*thing, runtime=runtime)
    if is_step_name(thing):
        if runtime is None:
            raise HloError(
                f"there is no step {thing}: lazyrt is not imported. Give a text, a path or a graph."
            )
        return _step_subject(target_of(runtime, thing), runtime)
    if hasattr(thing, "graph") and hasattr(thing, "holdings"):
        return pending_subject(thing)
    if hasattr(thing, "known_hlo"):
        return _graph_subject(thing.graph, runtime, first="stablehlo")
    if hasattr(thing, "nodes") and hasattr(thing, "lower"):
        return _graph_subject(thing, runtime)
    return _text_subject(graph_of(thing))


def _is_call(things: tuple[Any, ...], options: Mapping[str, Any] | None) -> bool:
    """Return whether a module is given, or something else to call with arguments."""
    torch = sys.modules.get("torch")
    first = things[0]
    if torch is not None and isinstance(first, torch.nn.Module):
        return True
    is_program = isinstance(first, str) or _is_tensor(first)
    return callable(first) and not is_program and bool(things[1:] or options)


def _call_subject(
    function: Any,
    arguments: tuple[Any, ...],
    options: Mapping[str, Any],
    runtime: ModuleType | None,
) -> Subject[Program]:
    """Return the graph of a call, of which nothing runs, or what a module's tensors wait for."""
    name = getattr(function, "__qualname__", type(function).__name__)
    if runtime is None:
        raise HloError(
            f"lazyrt is not imported, so {name} has no graph. Import it, and move the module and "
            "its inputs with .to('lazyrt')."
        )
    if not arguments and not options:
        return _module_subject(function, name, runtime)
    from lazyrt.tools import dry_run

    _check_arguments(function, name, arguments, options)
    found = dry_run(function, *arguments, **options)
    held = {value: each.name for value, each in found.holdings.items()}
    names = {**held, **found.outputs}
    return _lowered(
        found.graph,
        lambda: IrProgram(found.graph, names=names, held=found.holdings),
        "ir",
        names,
        None,
        f"No values: this call of {name} was recorded to be seen, and nothing of it has run. Call "
        "it, and explore what is pending then.",
    )


def _check_arguments(
    function: Any, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> None:
    """Refuse a call that does not fit the signature; the runtime's frames would lead to it."""
    called = function.forward if hasattr(function, "forward") else function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        raise HloError(
            f"{name} cannot be called so: {error}. It takes {signature}; give explore() what it is "
            "to be called with."
        ) from None


def _module_subject(module: Any, name: str, runtime: ModuleType) -> Subject[Program]:
    """Return what is pending of a module's parameters, buffers and gradients."""
    named = [*module.named_parameters(), *module.named_buffers()]
    named += [(f"{path}.grad", t.grad) for path, t in named if t.grad is not None]
    waiting = {path: t for path, t in named if runtime.is_pending(t)}
    if not waiting:
        raise HloError(
            f"no parameter, buffer or gradient of {name} is pending, so it has no graph of its "
            "own now. Give what it is to be called with, `lazyviz.explore(module, input)`, to "
            "see the graph of that call; nothing of it runs."
        )
    names = {
        root: path
        for path, tensor in waiting.items()
        for root in runtime.pending_graph(tensor).roots
    }
    return pending_subject(runtime.inspect(*waiting.values()), names)


def _is_tensor(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Tensor)


def pending_subject(
    inspection: Inspection,
    names: Mapping[Any, str] | None = None,
    first: Form = "ir",
    name: str = "",
) -> Subject[Program]:
    """Return a graph that is pending or of a finished step, whose values can be looked at."""
    graph = inspection.graph

    def ir() -> IrProgram:
        return IrProgram(graph, inspection, names, name=name)

    if not graph.nodes:
        return Subject({"ir": ir}, "ir", inspection)
    held = {value: each.name for value, each in inspection.holdings.items()}
    return _lowered(graph, ir, first, {**held, **(names or {})}, inspection)


def _graph_subject(
    graph: Graph, runtime: ModuleType | None, first: Form = "ir"
) -> Subject[Program]:
    """Return a graph, with its values as long as its step is pending."""
    if runtime is not None:
        from lazyrt.errors import LostValueError

        # Once its step has run, what it is can be seen, its values cannot.
        with contextlib.suppress(LostValueError):
            return pending_subject(runtime.inspect(graph), first=first)
    return _lowered(graph, lambda: IrProgram(graph), first, {}, None)


def _lowered(
    graph: Graph,
    ir: Callable[[], Program],
    first: Form,
    names: Mapping[Any, str],
    inspection: Inspection | None,
    no_values: str = "",
) -> Subject[Program]:
    computation = graph.lower()

    def lowered(form: Form, text_of: Callable[[], str]) -> Callable[[], Program]:
        def make() -> Program:
            canonical = graph.canonical
            inputs = [names.get(leaf, "") for leaf in canonical.data]
            outputs = {k: names.get(root, "") for k, root in enumerate(canonical.roots)}
            if form == "optimised":
                outputs[len(canonical.roots)] = "ready"  # by which the runtime waits
            found = unwrapped(graph_of(text_of()))
            for node, k in found.numbers.items():
                if k < len(inputs) and inputs[k]:
                    found.holders[node] = inputs[k]
            if inspection is not None:
                found.saved = saved_outputs(canonical.roots, inspection.holdings)
            title = f"{FORM_NAMES[form]} {graph.fingerprint[:8]}"
            return HloProgram(found, form, title, outputs, source())

        return make

    def source() -> LoweredFrom | None:
        if inspection is None:
            return None
        leaves = tuple(text.leaf_name(leaf) for leaf in graph.canonical.data)
        return LoweredFrom(lambda: cast("IrProgram", subject.program("ir")), leaves)

    makers: dict[Form, Callable[[], Program]] = {
        "ir": ir,
        "stablehlo": lowered("stablehlo", lambda: computation.as_text("stablehlo")),
        "hlo": lowered("hlo", lambda: computation.as_text("hlo_before")),
        "optimised": lowered(
            "optimised", lambda: computation.known_hlo() or computation.as_text("hlo")
        ),
    }
    subject = Subject(makers, first, inspection, graph, no_values)
    return subject


def _step_subject(target: Target, runtime: ModuleType) -> Subject[Program]:
    """Return a finished step, with the values that are held or can be computed again."""
    step, inspection = cast("int", target.step), target.inspection
    title = f"IR of {target.name}"
    if inspection is None:
        snapshot = graph_of_step(runtime, step)
        return Subject({"ir": lambda: HloProgram(snapshot, "ir", title)}, "ir")
    return pending_subject(inspection, name=title)


def _text_subject(graph: HloGraph) -> Subject[Program]:
    shown = unwrapped(graph)
    form: Form = "stablehlo" if type(graph.source).__name__ == "MlirModule" else "hlo"
    if any(op.startswith("aten.") for op in shown.ops):
        form = "ir"
    name = f"{FORM_NAMES[form]} {graph.name}"
    return Subject({form: lambda: HloProgram(shown, form, name)}, form)


def graph_of_step(runtime: ModuleType, step: int) -> HloGraph:
    """Return the graph that a step ran.

    Raises:
        HloError: There is no such step, or its graph is no longer kept.
    """
    record = record_of_step(runtime, step)
    if record.snapshot is None:
        raise HloError(
            f"the graph of step {step} is no longer kept: too many graphs were compiled "
            "since. Compare later steps."
        )
    graph = graph_of(record)
    graph.name = f"step {step} ({record.name})"
    return graph
