"""`torch.compile(f)`: a compiled function's ops are recorded once, then looked up as one.

The backend is `lazyrt`; where none is named, or torch_xla's `openxla`, graphs of lazy tensors
come here, too.

TorchDynamo finds the function's graph, AOTAutograd its backward, both once. The first call of a
graph records its ops without running the function's Python; the next ones on the same values are
one look-up (`frontend/recorded_calls.py`). Nothing is computed by a call: inside a `step()` the
whole step is still one execution. Ops keep the lines and modules of the program that was compiled,
forward and backward.

A graph may compute on the CPU, too: that of an optimizer counts its steps there. Those ops run at
each call, and the numbers that the device reads of them are inputs of the step.

`bridge()` runs a compiled step in as many executions as torch_xla's bridge once took.
"""

from __future__ import annotations

import gc
import itertools
import operator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils._pytree import tree_leaves

from lazyrt.config import config, follow
from lazyrt.control import compiled_frames
from lazyrt.control.modes import Scoped
from lazyrt.errors import UsageError
from lazyrt.execution.executor import BarrierHook, barrier, on_barrier, picker
from lazyrt.frontend import provenance, scalars
from lazyrt.frontend.provenance import user_site
from lazyrt.frontend.recorded_calls import RecordedCall
from lazyrt.frontend.torch_compat import (
    DEVICE_TYPE,
    CompileFigures,
    OperatorBase,
    OpOverload,
    aot_backend,
    aten,
    below_autograd,
    break_at_generators,
    is_lazy,
    name_backend,
    never_trace,
    never_trace_beneath,
    on_dynamo_compile,
    patch_default_compiler,
    patch_fake_fallback,
    patch_openxla,
    skip_packages_in_dynamo,
    when_loaded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lazyrt.observe.events import BarrierStarted

    _Nodes = Sequence[torch.fx.Node]

NAMES = ("lazyrt", "lazyviz")
STAGES = ("one", "three", "five")

# After a graph break TorchDynamo goes on with every function that is called. Ours and jax's
# are no part of the program: tracing and rewriting them breaks them.
NOT_TRACED = ("lazygraph", "lazyrt", "lazyviz", "jax", "jaxlib")

_compile: Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]] | None = (
    None
)


def dynamo_backend(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """Compile a graph of TorchDynamo's: a call of the result records its ops.

    For `torch.compile(f, backend=lazyrt.dynamo_backend)`; an installed lazyviz has the names
    `lazyrt` and `lazyviz` for it, too.

    Args:
        graph: The captured function.
        example_inputs: Stand-ins for its arguments.
    """
    global _compile
    if _compile is None:
        _compile = aot_backend(_compile_graph)
    return compiled_frames.telling_breaks(graph, _compile(graph, example_inputs))


def install() -> None:
    """Give the backend its names and the lazy graphs, once TorchDynamo is loaded.

    Functions of ours are left out of what it traces, whatever its backend.
    """
    follow("dynamo_bridge", _follow)
    _follow(config.dynamo_bridge)
    skip_packages_in_dynamo(NOT_TRACED)
    never_trace_beneath(_calls_no_program)
    # What torch wraps around each `step` calls hooks of ours: a trace of it would be given up.
    wrapper = torch.optim.Optimizer.profile_hook_step(install)
    never_trace(wrapper.__code__, beneath=False)
    compiled_frames.install()
    on_dynamo_compile(_note_compile)
    patch_default_compiler(dynamo_backend)
    patch_fake_fallback()
    break_at_generators()
    when_loaded("transformers.integrations.moe", _register_products)
    patch_openxla(dynamo_backend)
    for name in NAMES:
        name_backend(name, dynamo_backend)


def _calls_no_program(file: str) -> bool:
    """Return whether a file is lazyrt's and its functions call none of the program's.

    Those of `control` do: a closure, what a decorator wraps, what a dry run records.
    """
    return provenance.is_own_file(file) and not file.startswith(_CONTROL)


_CONTROL = f"{Path(__file__).parent}/"


def _note_compile(_figures: CompileFigures) -> None:
    """Have the next barrier free what TorchDynamo has left of a compile.

    Its variables refer to each other and to the program's values, such as a model's outputs. As
    garbage these would be results of this step, and the next step would be another program.
    """
    global _collecting
    if _collecting is None:
        _collecting = on_barrier(_collect)


def _collect(_started: BarrierStarted) -> None:
    global _collecting
    if _collecting is not None:
        _collecting.close()
        _collecting = None
        gc.collect()


_collecting: BarrierHook | None = None


# --------------------------------------------------- executions as with torch_xla's bridge


def bridge(stage: Literal["one", "three", "five"]) -> Any:
    """Run compiled training steps in as many executions as torch_xla's bridge took once.

    Each execution ends in a barrier, which events and strips name as here:

    | stage | executions of a step |
    |---|---|
    | `five` | dynamo input sync, dynamo forward, dynamo cleanup 1, dynamo backward, dynamo cleanup 2 |
    | `three` | dynamo forward, dynamo backward, dynamo copy-back |
    | `one` | the step's own: lazyrt's way, with no bridge |

    The input sync runs what is pending and a copy of the forward's inputs, parameters left out:
    that bridge ran a program which returned them as they were. Cleanup 1 runs what was recorded
    between forward and backward, such as the loss; cleanup 2 and copy-back what follows backward,
    such as the update. A phase in which nothing is pending runs nothing. Each graph of a program
    with graph breaks has a forward and a backward of its own. Results are those of one execution.

    Args:
        stage: The number of executions. `lazyrt.config.dynamo_bridge` sets it from a line on.

    Returns:
        A context manager and decorator.

    Raises:
        UsageError: There is no such stage.

    Example:
        >>> import lazyrt
        >>> with lazyrt.dynamo.bridge("five"):
        ...     lazyrt.config.dynamo_bridge
        'five'
        >>> lazyrt.config.dynamo_bridge
        'one'
    """
    if stage not in STAGES:
        raise UsageError(
            f"bridge({stage!r:.60}) names no stage of torch_xla's bridge, so the number of "
            f"executions stays {config.dynamo_bridge!r}. Pass one of "
            f"{', '.join(map(repr, STAGES))}."
        )
    return Scoped(f"bridge({stage!r})", {"dynamo_bridge": stage}, now=False)


class _Bridge:
    """Ends each phase of a compiled step in a barrier.

    With `syncs`, what the inputs of a graph need runs before it, by itself.
    """

    def __init__(self, *, syncs: bool) -> None:
        self._syncs = syncs
        self._follows_backward = False
        self.hook = on_barrier(self._end_step)

    def run(self, role: str, call: Callable[[list[Any]], Any], args: list[Any]) -> Any:
        """Call a graph, and run what it recorded.

        Its role is `forward`, `backward` or `inference`.
        """
        is_update = role == "inference" and self._follows_backward
        if is_update or scalars.rehearses():
            return call(args)
        if self._syncs:
            self._sync(role, args)
        results = call(args)
        self._follows_backward = False
        is_backward = role == "backward"
        barrier(f"dynamo {'backward' if is_backward else 'forward'}", user_site())
        self._follows_backward = is_backward
        return results

    def _sync(self, role: str, args: list[Any]) -> None:
        """Run what is pending: what the inputs need, and what the program did meanwhile."""
        self._follows_backward = False
        if role == "backward":
            barrier("dynamo cleanup 1", user_site())
            return
        # Of the tensors of the device that are no parameters.
        inputs = [arg for arg in args if not isinstance(arg, torch.nn.Parameter)]
        copies = [arg.clone() for arg in inputs if is_lazy(arg)]
        barrier("dynamo input sync", user_site())
        copies.clear()

    def _end_step(self, started: BarrierStarted) -> None:
        """Before a barrier of the program's own: run what follows backward."""
        if self._follows_backward:
            self._follows_backward = False
            name = "dynamo cleanup 2" if self._syncs else "dynamo copy-back"
            barrier(name, started.site)


def _follow(stage: str) -> None:
    """Bring the bridge up to date with its setting."""
    global _bridge
    if _bridge is not None:
        _bridge.hook.close()
    _bridge = None if stage == "one" else _Bridge(syncs=stage == "five")


_bridge: _Bridge | None = None


# -------------------------------------------------------------------- graphs that record


def _compile_graph(
    role: str, graph: torch.fx.GraphModule
) -> Callable[[list[Any]], Any]:
    """Return what calls a graph: one that AOTAutograd made of a function, for its role."""
    recorded = _record(graph)

    def call(args: list[Any]) -> Any:
        if _bridge is None:
            return recorded(args)
        return _bridge.run(role, recorded, args)

    return call


def _record(graph: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    """Return what calls a graph of ATen ops, and whose ops have the user's lines."""
    _stack_numbers(graph)
    parts = _split(graph)
    if parts is not None and (parts[0] or any(map(_is_on_host, _inputs_of(parts[1])))):
        return _Mixed(graph, *parts)
    provenance.note_generated_lines(graph)
    forward = graph.forward
    if parts is None:
        return lambda args: forward(*args)
    return _recorded(forward, graph.graph.find_nodes(op="placeholder"), parts[1])


def _recorded(
    code: Callable[..., Sequence[Any]],
    inputs: _Nodes,
    nodes: _Nodes,
    numbers: _Nodes = (),
) -> RecordedCall:
    """Return what looks up calls of the code of some nodes."""
    places = {node: k for k, node in enumerate(inputs)}
    written = [places[node.args[0]] for node in nodes if _is_write(node)]  # type: ignore[index]
    captured = [_attribute(node) for node in nodes if node.op == "get_attr"]
    dtypes = [node.meta["val"].dtype for node in numbers]
    return RecordedCall(code, written, captured, dtypes)


class _Mixed:
    """A graph in two parts: what runs on the CPU at each call, and what is recorded.

    A call has its values in a row: its arguments, the results of the CPU's part, the numbers that
    the device reads of those, the results of the recorded part, and constants.
    """

    def __init__(
        self, graph: torch.fx.GraphModule, host: _Nodes, device: _Nodes
    ) -> None:
        args = graph.graph.find_nodes(op="placeholder")
        results = graph.graph.find_nodes(op="output")[0].args[0]
        writes = [node for node in host if _is_write(node)]
        host = [node for node in host if not _is_write(node)]
        fills = [node for node in writes if not node.args[0].meta["val"].dim()]  # type: ignore[union-attr]
        copies = [node for node in writes if node not in fills]
        read = _inputs_of(device)
        numbers = [node for node in read if _is_on_host(node)]
        inputs = [node for node in read if not _is_on_host(node)]
        filled: list[Any] = [node.args[1] for node in fills]
        elements = list(map(_element, [*numbers, *filled]))
        holders = list(dict.fromkeys(holder for holder, _ in elements))

        copied = (node.args[1] for node in copies)
        made = _needed(host, [*inputs, *holders, *results, *copied])
        recorded = _needed(device, results)
        constants = [part for part in results if not isinstance(part, torch.fx.Node)]
        row = [*args, *made, *recorded, *constants]
        places: dict[int, int] = {id(part): k for k, part in enumerate(row)}

        def place(part: Any) -> int:
            return places[id(part)]

        host_inputs = _inputs_of(host)
        self._host = _part(graph, host_inputs, host, made)
        self._take_host_inputs = picker(map(place, host_inputs))
        self._take_inputs = picker(map(place, inputs))
        self._take_holders = picker(map(place, holders))
        code = _part(graph, [*inputs, *numbers], device, recorded)
        self._device = _recorded(code, inputs, device, numbers)
        sizes = (holder.meta["val"].numel() for holder in holders)
        starts = dict(
            zip(holders, itertools.accumulate(sizes, initial=0), strict=False)
        )
        read_at = [starts[holder] + index for holder, index in elements]
        self._take_numbers = picker(read_at[: len(numbers)])
        self._constants = constants
        self._take_filled = picker(place(node.args[0]) for node in fills)
        self._take_fills = picker(read_at[len(numbers) :])
        self._copies = [(place(node.args[0]), place(node.args[1])) for node in copies]
        self._take_results = picker(map(place, results))

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Return the graph's results."""
        with below_autograd():  # no graph is made here, and views cost half
            row = [*args, *self._host(*self._take_host_inputs(args))]
        numbers: list[float] = []
        for holder in self._take_holders(row):
            found = holder.tolist()
            numbers += found if found.__class__ is list else [found]
        row += self._device(self._take_inputs(row), self._take_numbers(numbers))
        row += self._constants
        # A number is written in half the time of a copy from an element of the vector.
        filled, fills = self._take_filled(row), self._take_fills(numbers)
        for target, number in zip(filled, fills, strict=True):
            target.fill_(number)
        for place, source in self._copies:
            row[place].copy_(row[source])
        return self._take_results(row)


def _element(number: torch.fx.Node) -> tuple[torch.fx.Node, int]:
    """Return what to read for a number, its vector or itself, and which element of that it is."""
    source = number.args[0] if number.target is operator.getitem else None
    if isinstance(source, torch.fx.Node) and source.target == aten.unbind.int:
        return source.args[0], int(number.args[1])  # type: ignore[return-value,arg-type]
    return number, 0


def _part(
    graph: torch.fx.GraphModule, inputs: _Nodes, nodes: _Nodes, results: _Nodes
) -> Callable[..., Sequence[Any]]:
    """Return the code of some nodes of a graph."""
    made = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in inputs:
        copies[node] = made.placeholder(node.name)
    for node in nodes:
        copies[node] = made.node_copy(node, copies.__getitem__)
    made.output([copies[node] for node in results])
    made.eliminate_dead_code()  # such as elements of a vector that the device reads whole
    module = torch.fx.GraphModule(graph, made)
    provenance.note_generated_lines(module)
    code: Callable[..., Sequence[Any]] = module.forward
    return code


def _inputs_of(nodes: _Nodes) -> list[torch.fx.Node]:
    """Return what some nodes read of others, by first use."""
    inside = set(nodes)
    read = (each for node in nodes for each in node.all_input_nodes)
    return [node for node in dict.fromkeys(read) if node not in inside]


def _needed(nodes: _Nodes, read: Iterable[Any]) -> list[torch.fx.Node]:
    """Return those of some nodes that something reads."""
    wanted = {node for node in read if isinstance(node, torch.fx.Node)}
    return [node for node in nodes if node in wanted]


# ----------------------------------------------------------------- which op runs where

_Split = tuple[list["torch.fx.Node"], list["torch.fx.Node"]]
# Of numbers that become inputs of the step; others are uploaded where an op reads them.
_NUMBERS = frozenset(
    (torch.float16, torch.bfloat16, torch.float32, torch.float64,
     torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
)  # fmt: skip


def _split(graph: torch.fx.GraphModule) -> _Split | None:
    """Return the nodes that run on the CPU and those that are recorded.

    None where ops must run one by one: the CPU needs what the device computes, a node is no plain
    op, or nothing is on the device.
    """
    host: list[torch.fx.Node] = []
    device: list[torch.fx.Node] = []
    of_device: set[torch.fx.Node] = set()
    for node in graph.graph.nodes:
        if node.op in {"placeholder", "output"}:
            if _is_on_device(node):
                of_device.add(node)
            continue
        if not _only_records(node):
            return None
        if not of_device.isdisjoint(node.all_input_nodes):
            if _is_on_host(node) or not all(map(_can_read, node.all_input_nodes)):
                return None
            is_recorded = True
        else:
            reads_host = any(map(_is_on_host, node.all_input_nodes))
            is_recorded = _is_on_device(node) and not reads_host
        if is_recorded:
            of_device.add(node)
        (device if is_recorded else host).append(node)
    return (host, device) if device else None


def _can_read(node: torch.fx.Node) -> bool:
    """Return whether a recorded op can read what a node gives: on the device, or a number."""
    value = node.meta.get("val")
    if not _is_on_host(node):
        return True
    return (
        isinstance(value, torch.Tensor) and not value.dim() and value.dtype in _NUMBERS
    )


def _only_records(node: torch.fx.Node) -> bool:
    """Return whether a node is an op that writes to nothing but an argument, or no op."""
    if node.op == "get_attr":
        return isinstance(_attribute(node), torch.Tensor)
    if node.op != "call_function":
        return False
    if isinstance(node.target, OpOverload):
        return _is_write(node) or not node.target._schema.is_mutable
    if isinstance(node.target, OperatorBase):
        return False  # one of a higher order: what it calls may do anything
    regroups = node.target in {operator.getitem, _in_a_vector}
    return regroups or not _are_lazy(node)


def _is_write(node: torch.fx.Node) -> bool:
    """Return whether a node writes to an argument, as those at the end of a graph do."""
    if node.target != aten.copy_.default:
        return False
    target = node.args[0]
    return isinstance(target, torch.fx.Node) and target.op == "placeholder"


def _is_on_host(node: torch.fx.Node) -> bool:
    """Return whether a node gives tensors, none of them on the device."""
    return _are_lazy(node) == {False}


def _is_on_device(node: torch.fx.Node) -> bool:
    """Return whether a node gives tensors of the device."""
    return True in _are_lazy(node)


def _are_lazy(node: torch.fx.Node) -> set[bool]:
    value = _attribute(node) if node.op == "get_attr" else node.meta.get("val")
    parts = tree_leaves(value)
    return {is_lazy(part) for part in parts if isinstance(part, torch.Tensor)}


def _attribute(node: torch.fx.Node) -> Any:
    return operator.attrgetter(str(node.target))(node.graph.owning_module)


# -------------------------------------------------------------------- products in groups


def _register_products(_transformers: object) -> None:
    """Let the ops with which transformers stands in for torch's grouped product be that product.

    It takes them in compiled code alone, for backends without the product of this dtype. Its own
    kernels read where the groups end, which runs a part of the step; the product does not.
    """
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        return  # another version
    product = aten._grouped_mm.default

    def gradients(
        rows: torch.Tensor,
        weights: torch.Tensor,
        ends: torch.Tensor,
        grad: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return product(grad, weights.mT, ends), product(rows.mT, grad, ends)

    name = "transformers::grouped_mm_fallback"
    torch.library.register_kernel(name, DEVICE_TYPE, product)
    torch.library.register_kernel(f"{name}_backward", DEVICE_TYPE, gradients)


# ------------------------------------------------------------------ numbers of the CPU
# An optimizer that TorchDynamo has captured counts steps, and computes corrections, in one tensor
# for each parameter, on the CPU: hundreds of numbers a step, each with the cost of an op.


_OVERLOADS = {
    "default": "default", "Scalar": "Scalar", "List": "Tensor", "ScalarAndTensor": "Scalar",
}  # fmt: skip


def _stack_numbers(graph: torch.fx.GraphModule) -> None:
    """Let a foreach op on numbers of the CPU be one op on the vector of them."""
    made: dict[torch.fx.Node, torch.fx.Node] = {}  # vectors by their elements' list
    nodes = graph.graph
    for node in list(nodes.nodes):
        func = _func_for_vectors(node)
        if func is None:
            continue
        with nodes.inserting_before(node):
            args = [
                _vector(nodes, arg, made) if isinstance(arg, list) else arg
                for arg in node.args
            ]
            vector = nodes.call_function(func, tuple(args), dict(node.kwargs))
            elements = nodes.call_function(aten.unbind.int, (vector,))
        like = node.meta["val"]
        vector.meta = {**node.meta, "val": like[0].new_empty(len(like))}
        elements.meta = dict(node.meta)
        made[elements] = vector
        node.replace_all_uses_with(elements)
    if made:
        nodes.eliminate_dead_code()
        graph.recompile()


def _func_for_vectors(node: torch.fx.Node) -> OpOverload | None:
    """Return the op that does to vectors what a foreach op does to lists of numbers of the CPU."""
    target = node.target
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return None
    packet = target._schema.name.removeprefix("aten::_foreach_")
    if packet == target._schema.name or target._overloadname not in _OVERLOADS:
        return None
    lists = [arg for arg in node.args if isinstance(arg, list)]
    if not all(map(_are_numbers, [*lists, node.meta.get("val")])):
        return None
    overload = _OVERLOADS[target._overloadname]
    func = getattr(getattr(aten, packet, None), overload, None)
    if not isinstance(func, OpOverload) or torch.Tag.pointwise not in func.tags:
        return None  # a norm of a vector is one number
    return func


def _are_numbers(parts: Any) -> bool:
    """Return whether a list, of nodes or of what they give, is of numbers of the CPU alike."""
    if not isinstance(parts, (list, tuple)):
        return False
    values = [
        part.meta.get("val") if isinstance(part, torch.fx.Node) else part
        for part in parts
    ]
    kinds = {
        (value.dim(), value.device.type, value.dtype)
        if isinstance(value, torch.Tensor)
        else None
        for value in values
    }
    kind = kinds.pop() if len(kinds) == 1 else None
    return kind is not None and kind[:2] == (0, "cpu")


def _vector(
    graph: torch.fx.Graph, elements: _Nodes, made: dict[torch.fx.Node, torch.fx.Node]
) -> torch.fx.Node:
    """Return a vector of some elements, which may be one that is there already."""
    first = elements[0]
    source = first.args[0] if first.target is operator.getitem else None
    whole = [(operator.getitem, (source, k)) for k in range(len(elements))]
    if source in made and [(e.target, e.args) for e in elements] == whole:
        return made[source]  # type: ignore[index]
    vector = graph.call_function(_in_a_vector, (list(elements),))
    vector.meta["val"] = first.meta["val"].new_empty(len(elements))
    return vector


def _in_a_vector(numbers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a vector of numbers of the CPU, each exactly as it is; stacking takes three times as long."""
    read = [number.item() for number in numbers]
    return torch.tensor(read, dtype=numbers[0].dtype, device="cpu")
