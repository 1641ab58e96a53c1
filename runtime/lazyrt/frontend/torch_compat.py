"""The only module that touches torch's private names, with the small patches that they need.

Supported: torch 2.13. Each patch acts on tensors of the device `lazyrt` alone and hands every
other call to the original, so importing lazyrt changes nothing for other devices.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import io
import math
import operator
import sys
import threading
import types
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import torch._tensor_str
import torch.autograd.graph
import torch.utils.dlpack
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.multiprocessing import reductions
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointPolicy

if TYPE_CHECKING:
    import traceback
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

DEVICE_TYPE = "lazyrt"

DynamicOutputShapeException = fake_tensor.DynamicOutputShapeException

aten = torch.ops.aten
OpOverload = torch._ops.OpOverload
OperatorBase = torch._ops.OperatorBase
# torch's own class, whatever name `torch.Generator` stands for later.
TorchGenerator = torch._C.Generator
create_empty_tensor: Callable[..., torch.Tensor] = torch._C._acc.create_empty_tensor
sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
# Whether strides are a permutation of contiguous ones, or place nothing.
is_dense: Callable[[torch.Tensor], bool] = is_non_overlapping_and_dense_or_false
# A tensor of the same storage with other sizes and strides, without a call of an op: a third of the
# time that `_reshape_alias` takes.
restrided: Callable[..., torch.Tensor] = vars(torch._C._dynamo.guards)[
    "_reinterpret_tensor"
]
_META_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
_set_storage: Callable[..., torch.Tensor] = (
    aten.set_.source_Storage_storage_offset._handle.redispatch_boxed
)
DISPATCH_KEY = "PrivateUse1"
VMAP_KEY = "FuncTorchBatchedDecomposition"
AUTOCAST_KEY = "AutocastPrivateUse1"
AUTOGRAD_KEY = "AutogradPrivateUse1"


def autograd_node() -> tuple[str, int] | None:
    """Return name and sequence number of the running backward node, None outside backward."""
    node: Any = torch._C._current_autograd_node()  # the stub knows no None
    return None if node is None else (node.name(), node._sequence_nr())


def aot_backend(
    compiler: Callable[[str, torch.fx.GraphModule], Callable[[list[Any]], Any]],
) -> Callable[..., Any]:
    """Return a backend of TorchDynamo that hands forward and backward graphs to `compiler`.

    That takes `forward`, `backward` or `inference`, and a graph of ATen ops; it returns a function
    of the list of arguments.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition

    def partition(joint: Any, *args: Any, **options: Any) -> Any:
        _view_anew(joint.graph)
        _draw_once(joint.graph)
        return default_partition(joint, *args, **options)

    def boxed(role: str) -> Callable[..., Any]:
        def compile_graph(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
            call: Any = compiler(role, graph)
            call._boxed_call = True
            return call

        return compile_graph

    # Writes to arguments are ops of the graph, not of what calls it.
    backend: Callable[..., Any] = aot_autograd(
        fw_compiler=boxed("forward"),
        bw_compiler=boxed("backward"),
        inference_compiler=boxed("inference"),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )
    return backend


def _view_anew(joint: torch.fx.Graph) -> None:
    """Let a graph's backward ops view what forward ops have computed by views of their own.

    Forward then saves what is viewed, once, and not each view of it.
    """
    nodes = list(joint.nodes)
    tags = [node.meta.get("partitioner_tag") for node in nodes]
    end = max((k + 1 for k, tag in enumerate(tags) if tag == "is_forward"), default=0)
    forward = set(nodes[:end])
    copies: dict[torch.fx.Node, torch.fx.Node] = {}

    def anew(node: torch.fx.Node) -> torch.fx.Node:
        if node not in forward or not _is_view_op(node):
            return node
        if node not in copies:
            copies[node] = joint.node_copy(node, anew)
            copies[node].meta["partitioner_tag"] = "is_backward"
        return copies[node]

    for node in nodes[end:]:
        if node.op in {"placeholder", "output"}:
            continue
        for read in node.all_input_nodes:
            with joint.inserting_before(node):
                viewed = anew(read)
            if viewed is not read:
                node.replace_input_with(read, viewed)


def _draw_once(joint: torch.fx.Graph) -> None:
    """Let what a checkpoint draws be saved, not drawn again by backward.

    torch would have forward save the state of the generator, which it does for its own devices.
    """
    for node in joint.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            parts = [use for use in node.users if use.target is operator.getitem]
            for saved in (node, *parts):
                saved.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _is_view_op(node: torch.fx.Node) -> bool:
    """Return whether a node views its first argument, and gives one tensor."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    aliased = target._schema.arguments[0].alias_info if node.args else None
    returned = target._schema.returns
    return (
        aliased is not None and len(returned) == 1 and str(returned[0].type) == "Tensor"
    )


def never_trace(code: types.CodeType, *, beneath: bool = True) -> None:
    """Have TorchDynamo run a function as it is, and all that it calls if `beneath`."""
    frames = torch._C._dynamo.eval_frame
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    strategy = frames._FrameExecStrategy(skip, skip if beneath else default)
    frames.set_code_exec_strategy(code, strategy)


def skip_packages_in_dynamo(names: Sequence[str]) -> None:
    """Add packages to those that TorchDynamo neither traces nor rewrites, now or once loaded."""

    def skip(trace_rules: Any) -> None:
        for name in names:
            trace_rules.add(name)

    when_loaded("torch._dynamo.trace_rules", skip)


def never_trace_beneath(is_ours: Callable[[str], bool]) -> None:
    """Have TorchDynamo run functions of some files, and all that they call, as they are.

    A package that is skipped is not enough: what its functions call of others, such as a look-up
    in a dictionary of weak references, is traced all the same.
    """

    def patch(module: Any) -> None:
        original = module.CatchErrorsWrapper.__call__

        @functools.wraps(original)
        def convert(self: Any, frame: Any, *args: Any) -> Any:
            if is_ours(frame.f_code.co_filename):
                action = module.FrameAction.SKIP
                strategy = module.FrameExecStrategy(action, action)
                return module.ConvertFrameReturn(frame_exec_strategy=strategy)
            return original(self, frame, *args)

        module.CatchErrorsWrapper.__call__ = convert

    when_loaded("torch._dynamo.convert_frame", patch)


def break_at_generators() -> None:
    """Have TorchDynamo end a graph at an op with a generator of ours, as at one with torch's.

    It does so for torch's class alone, and takes objects of a class below it into the graph, where
    no op can read them.
    """

    def patch(module: types.ModuleType) -> None:
        variable = module.TorchScriptObjectVariable
        original = variable.is_matching_cls

        def is_matching(cls: type) -> bool:
            return not issubclass(cls, TorchGenerator) and bool(original(cls))

        variable.is_matching_cls = staticmethod(is_matching)

    when_loaded("torch._dynamo.variables.script_object", patch)


def patch_fake_fallback() -> None:
    """Have torch find the types of an op without a meta kernel on the CPU, for lazy stand-ins.

    It runs the op on zeros of the stand-ins' device, where ops would be recorded.
    """
    original = fake_tensor.run_fallback_kernel

    @functools.wraps(original)
    def run(mode: Any, func: OpOverload, args: Sequence[Any], *more: Any) -> Any:
        devices = [arg.device for arg in args if is_lazy(arg)]
        if not devices:
            return original(mode, func, args, *more)
        with no_dispatch():
            args = [_blank_on_cpu(arg) if is_lazy(arg) else arg for arg in args]
        found = original(mode, func, args, *more)
        with mode:
            return tree_map_only(torch.Tensor, lambda each: each.to(devices[0]), found)

    vars(fake_tensor)["run_fallback_kernel"] = run


def _blank_on_cpu(like: Any) -> torch.Tensor:
    shape, strides = like.shape, like.stride()
    return torch.empty_strided(shape, strides, dtype=like.dtype, device="cpu").zero_()


def when_loaded(name: str, function: Callable[[types.ModuleType], None]) -> None:
    """Call `function` with a module: at once if it is loaded, else as soon as anything loads it."""
    if name in sys.modules:
        function(sys.modules[name])
    else:
        sys.meta_path.insert(0, _WhenLoaded(name, function))


class _WhenLoaded(importlib.abc.MetaPathFinder):
    """Calls a function with a module once its code has run; an import that fails does not count."""

    def __init__(self, name: str, function: Callable[[types.ModuleType], None]) -> None:
        self._name = name
        self._function = function

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - as Python calls it
        target: types.ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the real spec of the module, with a loader that calls the function."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)  # or the search would find this finder
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and isinstance(spec.loader, importlib.abc.Loader):
            self._call_after(spec.loader)
        return spec

    def _call_after(self, loader: importlib.abc.Loader) -> None:
        execute = loader.exec_module

        def execute_and_call(module: types.ModuleType) -> None:
            execute(module)
            vars(loader).pop("exec_module", None)
            sys.meta_path.remove(self)
            self._function(module)

        vars(loader)["exec_module"] = execute_and_call


class CompilingFrame(NamedTuple):
    """The frame that TorchDynamo compiles: its code, and the values that it begins with."""

    code: types.CodeType
    locals: Mapping[str, object]
    globals: dict[str, object]


class CompileFigures(Protocol):
    """What TorchDynamo says of one compile; times are in microseconds."""

    compile_id: str | None
    is_forward: bool | None
    graph_op_count: int | None
    recompile_reason: str | None
    fail_reason: str | None
    fail_user_frame_filename: str | None
    fail_user_frame_lineno: int | None
    dynamo_cumulative_compile_time_us: int | None
    aot_autograd_cumulative_compile_time_us: int | None
    backward_cumulative_compile_time_us: int | None
    guard_latency_us: float | None


class BreakReason(Protocol):
    """Why TorchDynamo ended a graph, and at which lines, the outermost first."""

    reason: str
    user_stack: Sequence[traceback.FrameSummary]
    graph_break: bool


def compiling_frame() -> CompilingFrame | None:
    """Return what TorchDynamo compiles on this thread; None outside of that."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_compile" and code.co_filename.endswith(_CONVERT_FRAME):
            names = frame.f_locals
            return CompilingFrame(names["code"], names["locals"], names["globals"])
        frame = frame.f_back
    return None


_CONVERT_FRAME = "/torch/_dynamo/convert_frame.py"


def on_dynamo_compile(listener: Callable[[CompileFigures], None]) -> None:
    """Call `listener` with TorchDynamo's figures of each compile, on the thread that compiled.

    torch hands them to a function that its users may replace, and logs what that raises.
    """

    def patch(utils: types.ModuleType) -> None:
        original = utils.log_compilation_event

        @functools.wraps(original)
        def log(metrics: CompileFigures) -> None:
            original(metrics)
            listener(metrics)

        vars(utils)["log_compilation_event"] = log

    when_loaded("torch._dynamo.utils", patch)


def graph_breaks() -> list[BreakReason]:
    """Return the reasons of all graph breaks that TorchDynamo has compiled since its reset."""
    found: list[BreakReason] = sys.modules["torch._dynamo.utils"].graph_break_reasons
    return found


@contextlib.contextmanager
def freeing_importers() -> Iterator[None]:
    """Free the frames that torch keeps where a meta kernel is the first to need TorchDynamo.

    `torch.fx.wrap`, which its modules call, has its own frame among its variables, and so keeps
    all callers and their locals until the garbage collector runs. Among them are the user's:
    their dead tensors would be roots of the next steps.
    """
    was_loaded = "torch._dynamo" in sys.modules
    try:
        yield
    finally:
        if not was_loaded and "torch._dynamo" in sys.modules:
            code = torch.fx.wrap.__code__
            for each in gc.get_objects():
                if type(each) is types.FrameType and each.f_code is code:
                    each.clear()


def name_backend(name: str, backend: Callable[..., Any]) -> None:
    """Give a backend of TorchDynamo a name, unless the name is taken."""

    def register(registry: Any) -> None:
        if name not in registry._BACKENDS:
            registry.register_backend(backend, name)

    when_loaded("torch._dynamo.backends.registry", register)


def patch_default_compiler(backend: Callable[..., Any]) -> None:
    """Hand what `torch.compile` captures of lazy tensors to `backend`, not to TorchInductor.

    The default backend writes code for devices that it knows, and fails over others with the
    name of a table's key. Graphs without a lazy tensor go where they went.
    """
    wrapper = torch._TorchCompileInductorWrapper
    patched = _choosing(backend, wrapper.__call__)
    setattr(wrapper, "__call__", patched)  # noqa: B010 - mypy takes it for a new signature


def patch_openxla(backend: Callable[..., Any]) -> None:
    """Hand what `torch.compile(backend="openxla")` captures of lazy tensors to `backend`.

    torch registers the name itself, for torch_xla, whose graphs go where they went.
    """

    def patch(module: Any) -> None:
        registry: Any = sys.modules["torch._dynamo.backends.registry"]
        compilers = registry._COMPILER_FNS
        patched = _choosing(backend, module.openxla)
        patched._tags = compilers["openxla"]._tags  # type: ignore[attr-defined]
        compilers["openxla"] = patched

    when_loaded("torch._dynamo.backends.torchxla", patch)


def _choosing(
    backend: Callable[..., Any], original: Callable[..., Any]
) -> Callable[..., Any]:
    """Return `original`, a compiler of graphs, with `backend` in its place for lazy tensors."""

    @functools.wraps(original)
    def compile_graph(*args: Any, **options: Any) -> Any:
        graph, inputs = args[-2:]  # a method has `self` in front
        values = (node.meta.get("example_value") for node in graph.graph.nodes)
        if any(is_lazy(value) for value in (*inputs, *values)):
            return backend(graph, inputs)
        return original(*args, **options)

    return compile_graph


@contextlib.contextmanager
def plain_dispatch() -> Iterator[None]:
    """Run torch ops untouched by modes, autograd and autocast: for calls on meta tensors."""
    from torch.utils._python_dispatch import _disable_current_modes

    before = torch.is_grad_enabled()
    try:
        with (
            torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS),
            torch.no_grad(),
            _disable_current_modes(),
            torch._C.DisableTorchFunction(),
        ):
            yield
    finally:
        # Ctrl-C within `no_grad`, whose ends are Python code, would leave gradients off for good.
        if torch.is_grad_enabled() is not before:
            torch._C._set_grad_enabled(before)


_OWN_AUTOCAST_KEY = torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
)
_AUTOCAST_KEYS = _OWN_AUTOCAST_KEY | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCPU
)


def place(
    tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int
) -> torch.Tensor:
    """Give a lazy tensor the sizes, strides and offset that it has in its base's storage.

    Autograd finds the place of a view in its base by these. The meta device's kernel sets them
    without memory behind them.
    """
    storage = tensor.untyped_storage()
    return _set_storage(_META_KEYS, tensor, storage, offset, shape, strides)


# torch derives `linear` as one op only for backends that have a kernel of it. Among those of the CPU
# that is the one for nested tensors, under whose key the derivative is found.
_LINEAR_KEYS = torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutogradNestedTensor
) | torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
_redispatch_linear: Callable[..., torch.Tensor] = (
    aten.linear.default._handle.redispatch_boxed
)


def differentiated_linear(
    tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Call the kernel of `aten.linear` of lazy tensors below torch's derivative of the op."""
    return _redispatch_linear(_LINEAR_KEYS, tensor, weight, bias)


def is_followed() -> bool:
    """Return whether something looks at each op on its way: a transform, a tangent, a mode."""
    return _has_dispatch_mode() or is_transformed() or forward_ad._current_level >= 0


def _has_dispatch_mode() -> bool:
    """Return whether a dispatch mode looks at ops.

    The one in which AOTAutograd makes a graph's first call does not count: it looks at the
    results of custom ops alone, and what it sees is recorded as ever.
    """
    count = torch._C._len_torch_dispatch_stack()
    if count != 1:
        return count > 0
    mode = torch._C._get_dispatch_stack_at(0)
    return type(mode).__name__ != "_AnalyzeCustomOpInputOutputMode"


def is_transformed() -> bool:
    """Return whether a transform of torch.func is at work."""
    return torch._C._functorch.maybe_current_level() is not None


def is_lazy(tensor: object) -> bool:
    """Return whether an object is a tensor on the device `lazyrt`."""
    return isinstance(tensor, torch.Tensor) and tensor.device.type == DEVICE_TYPE


def below_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` running with the device's autocast switched off."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_OWN_AUTOCAST_KEY):
            return function(*args, **kwargs)

    return call


def below_autograd() -> AbstractContextManager[None]:
    """Return a context in which ops go to their kernels, past autograd."""
    context: AbstractContextManager[None] = torch._C._AutoDispatchBelowAutograd()
    return context


def register_device(module: Any) -> None:
    """Make `lazyrt` a torch device whose ops are Python kernels; idempotent per process."""

    class Hooks(torch._C._acc.PrivateUse1Hooks):
        def is_available(self) -> bool:
            return True

        def is_built(self) -> bool:
            return True

        def has_primary_context(self, _index: int) -> bool:
            return True

    backend_registration._setup_privateuseone_for_python_backend(
        DEVICE_TYPE, backend_module=module, hook=Hooks()
    )
    # Under the device's name torch's modules would call the CPU's and CUDA's kernels of attention.
    setattr(backend_registration, "_privateuse1_backend_name", "privateuseone")  # noqa: B010


def operator_schemas() -> dict[str, torch.FunctionSchema]:
    """Return the schemas of all ATen overloads by qualified name, `add.Tensor` style."""
    known = {
        f"{each.name}.{each.overload_name}".removesuffix("."): each
        for each in torch._C._jit_get_all_schemas()
    }
    names = torch._C._dispatch_get_all_op_names()
    return {name[6:]: known[name] for name in names if name.startswith("aten::")}


def composites(*, implicit: bool) -> set[str]:
    """Return the overloads that have a composite C++ kernel of the given kind."""
    key = "CompositeImplicitAutograd" if implicit else "CompositeExplicitAutograd"
    found = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name[6:] for name in found if name.startswith("aten::")}


def increment_version(tensors: Sequence[torch.Tensor]) -> None:
    """Count a write to each tensor, which torch leaves to the kernel of a foreach op."""
    torch._C._increment_version(tensors)


def set_versions(versions: Iterable[tuple[torch.Tensor, int]]) -> None:
    """Give tensors the counts of writes by which autograd tells whether what it saved has changed."""
    found = [(t, version) for t, version in versions if t._version != version]
    tensors, numbers = tuple(t for t, _ in found), tuple(n for _, n in found)
    torch._C._autograd._unsafe_set_version_counter(tensors, numbers)


_ALWAYS = False  # not only while something is traced


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Let ops pass by the dispatch modes and the hooks of saved tensors that are in force around.

    A counter of ops would count them, and a checkpoint would keep what they save among its own.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    autograd: Any = torch._C._autograd
    hooks = []
    with _disable_current_modes():
        try:
            while (
                top := autograd._top_saved_tensors_default_hooks(_ALWAYS)
            ) is not None:
                hooks.append(top)
                autograd._pop_saved_tensors_default_hooks()
            yield
        finally:
            for pack, unpack in reversed(hooks):
                autograd._push_saved_tensors_default_hooks(pack, unpack)


def find_overload(name: str) -> torch._ops.OpOverload | None:
    """Return the overload of a name such as `add.Tensor` or `relu`, None if Python has none."""
    packet_name, _, overload = name.partition(".")
    packet = getattr(aten, packet_name, None)
    found = getattr(packet, overload or "default", None)
    return found if isinstance(found, torch._ops.OpOverload) else None


def run_composed(func: torch._ops.OpOverload, *args: Any, **keywords: Any) -> Any:
    """Call an op as torch composes it in C++, whatever is registered for it in Python."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return func._op_dk(key, *args, **keywords)


def restride_stand_in(name: str, stand_in: torch.Tensor, *args: Any) -> None:
    """Call an op such as `transpose_` as torch does for devices without a kernel of their own.

    It changes a tensor's sizes and strides, and looks neither at its storage nor at its numbers.
    """
    func = find_overload(name)
    assert func is not None
    keys = torch._C.DispatchKey
    is_base = func is aten.as_strided_.default  # what the others call
    func._op_dk(
        keys.CompositeExplicitAutogradNonFunctional
        if is_base
        else keys.CompositeExplicitAutograd,
        stand_in,
        *args,
    )


def patch_printing(describe: Callable[[torch.Tensor, Callable[..., str]], str]) -> None:
    """Route `repr` of lazy tensors to `describe(tensor, original)`."""
    original: Callable[..., str] = torch._tensor_str._str

    # Not the inner function that formats: torch holds guards in its frame, which a traceback
    # of a failed or interrupted peek would keep in force.
    @functools.wraps(original)
    def text(self: torch.Tensor, *, tensor_contents: str | None = None) -> str:
        if (
            self.device.type != DEVICE_TYPE
            or tensor_contents is not None
            or isinstance(self, FakeTensor)
        ):
            return original(self, tensor_contents=tensor_contents)
        return describe(self, original)

    torch._tensor_str._str = text


def contents_text(host: torch.Tensor) -> str:
    """Return the numbers of a CPU tensor as torch prints them inside `tensor(...)`."""
    with plain_dispatch():
        return str(torch._tensor_str._tensor_str(host, len("tensor(")))


_MAX_EDGES = 100_000


def edge_items(shape: Sequence[int]) -> int | None:
    """Return how many indices at each end of an axis torch prints; None if it prints all."""
    options = torch._tensor_str.PRINT_OPTS
    items = int(options.edgeitems)
    if math.prod(shape) <= options.threshold or not items:
        return None
    shown = math.prod(min(size, 2 * items + 1) for size in shape)
    return items if shown <= _MAX_EDGES else None


def edges_text(edges: torch.Tensor) -> str:
    """Return what torch prints inside `tensor(...)` of a large tensor, given its edges."""
    printing: Any = torch._tensor_str
    with plain_dispatch():
        parts = [edges.real, edges.imag] if edges.is_complex() else [edges]
        formatters = [
            printing._Formatter(printing.get_summarized_data(part)) for part in parts
        ]
        indent, summarise = len("tensor("), True
        return str(
            printing._tensor_str_with_formatter(edges, indent, summarise, *formatters)
        )


def patch_tensor_method(name: str, replacement: Callable[..., Any]) -> None:
    """Replace a Tensor method for lazy tensors: `replacement(original, self, *args, **kwargs)`."""
    original = getattr(torch.Tensor, name)

    @functools.wraps(original)
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if type(self) in _PLAIN and self.device.type != DEVICE_TYPE:
            return original(self, *args, **kwargs)
        if (
            torch.overrides.has_torch_function_unary(self)
            or self.device.type != DEVICE_TYPE
        ):
            return original(self, *args, **kwargs)
        return replacement(original, self, *args, **kwargs)

    setattr(torch.Tensor, name, method)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def patch_storage_method(name: str, replacement: Callable[..., Any]) -> None:
    """Replace a method of `torch.UntypedStorage` where it meets a storage of the device."""
    original = getattr(torch.UntypedStorage, name)

    @functools.wraps(original)
    def method(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if any(
            isinstance(storage, torch.UntypedStorage)
            and storage.device.type == DEVICE_TYPE
            for storage in (self, *args)
        ):
            return replacement(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    setattr(torch.UntypedStorage, name, method)


def patch_storage_constructor(make: Callable[..., torch.UntypedStorage]) -> None:
    """Let `torch.UntypedStorage(..., device="lazyrt")` call `make` with the same arguments."""
    original = torch.UntypedStorage.__new__

    def new(cls: Any, *args: Any, **kwargs: Any) -> torch.UntypedStorage:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == DEVICE_TYPE:
            return make(*args, **kwargs)
        made: torch.UntypedStorage = original(cls, *args, **kwargs)
        return made

    setattr(torch.UntypedStorage, "__new__", new)  # noqa: B010 - mypy forbids the assignment


def generator_pointer(generator: torch.Generator) -> int:
    """Return what identifies the C++ generator under a Python object."""
    return generator._cdata  # type: ignore[attr-defined,no-any-return]


def patch_generator(make: Callable[[], torch.Generator]) -> None:
    """Let `torch.Generator(device="lazyrt")` call `make`.

    torch's class cannot be changed, so the name gets a stand-in: a call makes torch's own
    generator for other devices, and `isinstance` and `issubclass` see torch's class.
    """

    class Maker(type(TorchGenerator)):  # type: ignore[misc]
        def __call__(cls, device: Any = "cpu") -> torch.Generator:
            if torch.device(device).type == DEVICE_TYPE:
                return make()
            return TorchGenerator(device)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, TorchGenerator)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, TorchGenerator)

    members = {"__doc__": TorchGenerator.__doc__, "__module__": "torch"}
    torch.Generator = Maker("Generator", (TorchGenerator,), members)  # type: ignore[misc]


def patch_default_dtype(changed: Callable[[], None]) -> None:
    """Call a function whenever torch's default dtype may have changed."""

    def told(original: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(original)
        def replacement(given: Any) -> None:
            original(given)
            changed()

        return replacement

    for name in ("_set_default_dtype", "_set_default_tensor_type"):
        setattr(torch._C, name, told(getattr(torch._C, name)))


def patch_to_dlpack(to_host: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let `torch.utils.dlpack.to_dlpack` export lazy tensors by their CPU copies."""
    original = torch._C._to_dlpack

    @functools.wraps(original)
    def export(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        exported = to_host(tensor) if is_lazy(tensor) else tensor
        return original(exported, *args, **kwargs)

    for module in (torch, torch.utils.dlpack):
        setattr(module, "to_dlpack", export)  # noqa: B010 - not an exported name to mypy


def patch_accelerator(
    *,
    synchronize: Callable[[], None],
    allocated_bytes: Callable[[], int],
    free_bytes: Callable[[], int],
    refuse: Callable[[str], None],
) -> None:
    """Answer what `torch.accelerator` asks of C++, where a Python backend has no say.

    `synchronize` runs what is pending and waits; `refuse` raises for the function of a name that
    cannot be answered.
    """

    def stats(_device: int) -> dict[str, Any]:
        used = allocated_bytes()
        return {
            f"{kind}_bytes": {"all": {"current": used}}
            for kind in ("active", "allocated", "reserved")
        }

    def info(_device: int) -> tuple[int, int]:
        free = free_bytes()
        return free, free + allocated_bytes()

    def nothing(*_: Any) -> None:
        pass

    answers: dict[str, Callable[..., Any]] = {
        "synchronizeDevice": lambda _device: synchronize(),
        "isAllocatorInitialized": lambda: True,
        "getDeviceStats": stats,
        "getMemoryInfo": info,
        "emptyCache": nothing,
        "emptyHostCache": nothing,
        "resetAccumulatedStats": nothing,
        "resetPeakStats": nothing,
    }
    for name, answer in answers.items():
        setattr(torch._C, f"_accelerator_{name}", answer)
    for peak in ("max_memory_allocated", "max_memory_reserved"):
        original = getattr(torch.accelerator, peak)

        @functools.wraps(original)
        def refused(*_: Any, name: str = peak) -> None:
            refuse(name)

        setattr(torch.accelerator, peak, refused)


on_backward: list[Callable[[list[torch.Tensor]], object]] = []
"""Called with the tensors that a backward pass is about to begin with."""


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in a wrapper of functorch's."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def patch_backward(rehearses: Callable[[], bool]) -> None:
    """Run backward of lazy tensors on the calling thread.

    Autograd would run it on a worker thread of the device, where the Python stack that tells who
    called `backward()` is missing, and which costs 10 to 40 % more. Where it rehearses, ops are
    recorded to be taken back: autograd's graph, which the program may have made before, is
    retained.
    """
    original = torch.autograd.graph._engine_run_backward

    @functools.wraps(original)
    def run(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if any(is_lazy(output) for output in t_outputs):
            for begins in on_backward:
                begins([unwrapped(each) for each in t_outputs if is_lazy(each)])
            if rehearses():
                gradients, _retain, *others = args
                args = (gradients, True, *others)
            with torch.autograd.set_multithreading_enabled(False):
                return original(t_outputs, *args, **kwargs)
        return original(t_outputs, *args, **kwargs)

    torch.autograd.graph._engine_run_backward = run
    torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]


def patch_module_conversion() -> None:
    """Let `Module.to` to and from the device keep tied weights and Parameter objects.

    torch makes new Parameters when the two devices' tensors have different implementations,
    one for each place of a shared weight. Swapping their contents instead keeps identity, so
    that an optimizer made before `.to()` stays valid. Where torch cannot swap (somebody holds a
    weak reference to a parameter), shared places are tied again by hand. A conversion that stays
    on a device is left to torch's own way, which keeps what lies below a Parameter, too.
    """
    for name in ("to", "cpu", DEVICE_TYPE, "to_empty"):
        original = getattr(torch.nn.Module, name)
        setattr(torch.nn.Module, name, _conversion(original, name))


def _conversion(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def convert(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        named = filter(None, map(_device, given))
        target = name if name in _DEVICES else next(named, None)
        to_lazy = target == DEVICE_TYPE
        held = (*self.parameters(), *self.buffers())
        if not target or all(is_lazy(tensor) is to_lazy for tensor in held):
            return original(self, *args, **kwargs)
        tied = _shared_places(self)
        # The first call decides these ones' shape; a swap changes their class.
        kind = torch.nn.UninitializedParameter
        unshaped = [p for p in self.parameters() if isinstance(p, kind)]
        try:
            with _swapping():
                result = original(self, *args, **kwargs)
        except RuntimeError as error:
            if "swap" not in str(error):
                raise
            result = original(self, *args, **kwargs)
        for (table, place), *others in tied:
            for other_table, other_place in others:
                other_table[other_place] = table[place]
        for tensor in held:
            _hook_again(tensor)
        for parameter in unshaped:
            parameter.__class__ = kind  # type: ignore[assignment]
        return result

    return convert


def _hook_again(tensor: Any) -> None:
    """Let a tensor's hooks act on what a swap has put below it; handles that remove them hold."""
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(tensor, name)
        if hooks is not None:
            setattr(tensor, name, hooks)


@contextlib.contextmanager
def _swapping() -> Iterator[None]:
    """Let a conversion swap what lies below parameters: torch's switch is one for all threads."""
    future = torch.__future__
    with _swap_lock:
        before = future.get_swap_module_params_on_conversion()
        future.set_swap_module_params_on_conversion(True)
        try:
            yield
        finally:
            future.set_swap_module_params_on_conversion(before)


_swap_lock = threading.RLock()


# Methods that are named after where they move a module.
_DEVICES = frozenset(("cpu", DEVICE_TYPE))


def _device(arg: Any) -> str | None:
    """Return the type of the device that an argument of `Module.to` names, None for other ones."""
    if isinstance(arg, torch.Tensor):
        return arg.device.type
    if isinstance(arg, torch.device):
        return arg.type
    return arg.partition(":")[0] if isinstance(arg, str) else None


_Places = list[list[tuple[dict[str, Any], str]]]


def _shared_places(module: torch.nn.Module) -> _Places:
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for child in module.modules():
        for table in (child._parameters, child._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    places.setdefault(id(tensor), []).append((table, name))
    return [found for found in places.values() if len(found) > 1]


def patch_pickling(
    to_host: Callable[[torch.Tensor], torch.Tensor],
    copied: Callable[[torch.Tensor, dict[Any, Any]], torch.Tensor],
) -> None:
    """Let pickle, `torch.save` and deepcopy carry lazy tensors by their values.

    A checkpoint holds the CPU copy and the device's name, in the form that torch itself loads
    with `weights_only=True`.
    """

    class Contents:
        """What a pickle holds of a lazy tensor: a CPU tensor, read when it is written.

        `copy.copy` calls the rebuilding function without a pickle: then this is asked for a
        tensor of the device, and gives one that shares the storage.
        """

        def __init__(self, tensor: torch.Tensor) -> None:
            self._tensor = tensor

        def to(self, **_: Any) -> torch.Tensor:
            return self._tensor.data

        def __reduce_ex__(self, protocol: Any) -> Any:
            return to_host(self._tensor).__reduce_ex__(protocol)

    def reduce(_original: Any, self: torch.Tensor, _proto: int) -> Any:
        state = (Contents(self), self.dtype, str(self.device), self.requires_grad)
        return (torch._utils._rebuild_device_tensor_from_cpu_tensor, state)

    def deepcopy(original: Any, self: torch.Tensor, memo: dict[int, Any]) -> Any:
        if id(self) in memo or not self.is_leaf:
            return original(self, memo)
        with torch.no_grad():
            copy = copied(self, memo)
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, self.requires_grad)
        else:
            copy.requires_grad_(self.requires_grad)
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        if type(self) in _PLAIN:
            copy.__dict__.update(
                {
                    name: value
                    for name, value in self.__dict__.items()
                    if name != "_lazyrt"
                }
            )
        memo[id(self)] = copy
        return copy

    patch_tensor_method("_reduce_ex_internal", reduce)
    patch_tensor_method("__deepcopy__", deepcopy)


def patch_sharing() -> None:
    """Let queues and arguments of other processes carry lazy tensors by their values.

    torch shares the memory of a CPU tensor and knows no such memory here. A tensor travels as
    a checkpoint, and the process that receives it has it on its own device.
    """

    def reduce(tensor: torch.Tensor) -> Any:
        is_refused = tensor.requires_grad and not tensor.is_leaf
        if is_refused or not is_lazy(tensor):
            return reductions.reduce_tensor(tensor)
        contents = io.BytesIO()
        torch.save(tensor, contents)
        return received, (contents.getvalue(),)

    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, reduce)


def received(contents: bytes) -> torch.Tensor:
    """Return a lazy tensor that another process has sent."""
    tensor: torch.Tensor = torch.load(io.BytesIO(contents), weights_only=True)
    return tensor


def patch_data_parallel() -> None:
    """Let `nn.DataParallel` leave modules where they are: one device has no replicas.

    It would take a registered device for the one to spread modules over, also those of the CPU.
    """
    module: Any = sys.modules["torch.nn.parallel.data_parallel"]
    original = module._get_available_device_type

    @functools.wraps(original)
    def available() -> str | None:
        found: str | None = original()
        return None if found == DEVICE_TYPE else found

    module._get_available_device_type = available


def register_checkpoint_location(
    to_device: Callable[[torch.UntypedStorage], torch.UntypedStorage],
) -> None:
    """Let `torch.load(..., map_location="lazyrt")` bring CPU checkpoints to the device."""

    def tag(_storage: Any) -> None:
        return None

    def restore(storage: Any, location: str) -> Any:
        if location.split(":", maxsplit=1)[0] != DEVICE_TYPE:
            return None
        return to_device(storage)

    torch.serialization.register_package(_BEFORE_TORCH, tag, restore)


# torch's own entry for renamed backends has priority 30; lower numbers are asked first.
_BEFORE_TORCH = 15


def patch_buckets(allocating: Callable[[], AbstractContextManager[None]]) -> None:
    """Let DistributedDataParallel allocate the buckets of its gradients within a context.

    It does so when it is built, and once more when it has seen in which order gradients come.
    """
    reducer: Any = torch._C._distributed_c10d.Reducer
    for name in ("__init__", "_rebuild_buckets"):
        original = getattr(reducer, name)

        def within(
            self: Any, *args: Any, _original: Any = original, **kwargs: Any
        ) -> Any:
            with allocating():
                return _original(self, *args, **kwargs)

        setattr(reducer, name, functools.wraps(original)(within))


# Functions of torch's that call for the whole of a sharded tensor, to show or to save it.
COLLECTORS = frozenset(("full_tensor", "_gather_state_dict"))


def finished_work(result: Any) -> Any:
    """Return torch's handle of a collective that is recorded: waiting for it waits for nothing."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    c10d: Any = torch._C._distributed_c10d
    return c10d._create_work_from_future(future)
