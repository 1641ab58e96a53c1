"""The only module that touches jax's private names; probed when it is imported.

Supported: jax 0.10. Everything here is scoped: 64-bit types are on inside `scope()` only, and
no global setting of a user's own jax program changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import io
import pickle
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
from jax._src import compiler as _private_compiler
from jax._src import config as _private_config
from jax._src import distributed, xla_bridge
from jax._src import lib as _private_lib
from jax._src.core import Primitive as Primitive  # noqa: PLC0414 - jax.extend brings Pallas
from jax._src.interpreters import mlir as _private_mlir
from jax._src.lax import linalg as _private_linalg
from jax.experimental import serialize_executable
from jax.interpreters import mlir
from jax.sharding import NamedSharding
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect
from jaxlib.mlir.dialects import stablehlo as hlo

# The fast compile tier: a quarter of the compile time, three times the run time. Peeks and
# single ops use it.
FAST_OPTIONS: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    # One LLVM module for each graph, not up to 32: a third less for 24 ops, a fifth for 400.
    "xla_cpu_parallel_codegen_split_count": 1,
}

# XLA folds constants by an interpreter: 37 s for the sum of 2**23 counted numbers, three minutes
# for a small model that builds its masks from counters. Without that pass the executables of
# a transformer's training step are as quick, and its compiles no slower.
_OPTIONS: dict[str, Any] = {"xla_disable_hlo_passes": "constant_folding"}

# XLA's CPU library (YNN) drops NaN in the maxima and minima that it knows. It knows none by these.
_BY_COMPARISON = {"stablehlo.maximum": "GT", "stablehlo.minimum": "LT"}
# XLA knows the kind of a collective's sum or maximum by its op.
_COLLECTIVES = {"stablehlo.all_reduce", "stablehlo.reduce_scatter"}

# A position in the text itself, which nobody has.
_NOWHERE = re.compile(r' loc\("-":\d+:\d+\)')

Array = jax.Array

Placements = tuple[Sequence[Any], Sequence[Any]]
"""Shardings of the arguments and results of a program on several devices; None: XLA chooses."""

Donated = Mapping[int, int | None]
"""Arguments that give up their memory, and for each the result that takes it, where one does."""


def scope() -> contextlib.AbstractContextManager[None]:
    """Return a context in which 64-bit types keep their width, on this thread only."""
    context: contextlib.AbstractContextManager[None] = jax.enable_x64(new_val=True)
    return context


def device() -> Any:
    """Return the jax device that lazyrt runs on: the first of this process."""
    return jax.local_devices()[0]


def set_device_count(count: int) -> bool:
    """Let jax's CPU have several devices; return False where it has other ones already."""
    if is_initialised():
        return len(jax.local_devices()) == count
    jax.config.update("jax_num_cpu_devices", count)
    return True


def device_count() -> int:
    """Return how many devices this process has."""
    return len(jax.local_devices())


def device_name() -> str:
    """Return platform and kind of the device, such as `cpu: cpu`."""
    target = device()
    return f"{target.platform}: {target.device_kind}"


_splice = Primitive("lazyrt_graph")
_splice.multiple_results = True


class _Module:
    """A StableHLO module as a parameter of the splice primitive, compared by identity."""

    def __init__(self, text: str, outs: Sequence[Any]) -> None:
        self.text = text
        self.outs = outs


def _splice_types(*_: Any, module: _Module) -> Any:
    return [jax.core.ShapedArray(out.shape, out.dtype) for out in module.outs]


def _splice_lowering(context: Any, *args: Any, module: _Module) -> Any:
    parsed = ir.Module.parse(module.text)
    if device().platform == "cpu":
        _keep_nan(parsed)
    target = context.module_context
    name = _merge(target.module, "lazyrt_main", parsed, dst_symtab=target.symbol_table)
    types = [mlir.aval_to_ir_type(target, aval) for aval in context.avals_out]
    return func_dialect.CallOp(types, ir.FlatSymbolRefAttr.get(name), args).results


def _keep_nan(module: Any) -> None:
    """Have maxima and minima of floats choose by comparison: the first operand if it is greater, or NaN."""
    found = []

    def look(operation: Any) -> Any:
        if operation.name in _BY_COMPARISON:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    for operation in found:
        first, second = operation.operands
        is_float = isinstance(first.type.element_type, ir.FloatType)
        if not is_float or operation.parent.name in _COLLECTIVES:
            continue
        direction = hlo.ComparisonDirectionAttr.get(_BY_COMPARISON[operation.name])
        unequal = hlo.ComparisonDirectionAttr.get("NE")
        with operation.location, ir.InsertionPoint(operation):
            is_chosen = hlo.or_(
                hlo.compare(first, second, direction),
                hlo.compare(first, first, unequal),
            )
            chosen = hlo.select(is_chosen, first, second)
        operation.results[0].replace_all_uses_with(chosen)
        operation.erase()


_lib: Any = _private_lib
_merge: Callable[..., str] = _private_mlir.merge_mlir_modules
_device_list = _lib.xla_client.DeviceList
_profiler_session = _lib._profiler.ProfilerSession  # noqa: SLF001
_to_hlo = _lib._jax.mlir.mlir_module_to_xla_computation  # noqa: SLF001
_batched_device_put = _lib.xla_client.batched_device_put
# jax finds LAPACK's functions when it lowers a call of one. An executable from disk was lowered
# by another process: without them its first call would end this one.
_initialise_lapack: Callable[[], None] = _private_linalg.initialize_lapack
_splice.def_abstract_eval(_splice_types)
mlir.register_lowering(_splice, _splice_lowering)


def compile_text(
    text: str,
    ins: Sequence[Any],
    outs: Sequence[Any],
    donated: Donated,
    *,
    fast: bool,
    names: Mapping[int, str] | None = None,
    processes: int = 0,
    placements: Placements | None = None,
    title: str = "main",
) -> Any:
    """Compile a StableHLO module whose `main` maps `ins` to `outs`.

    The executable returns one result more: a scalar that is ready when the execution is, for
    waiting without holding any data. Names are the user's of arguments, by position; they end up in
    the HLO's metadata. `processes` tells how many run it together, if it has collectives. The HLO
    module is called by its title, behind jax's `jit_`.
    """
    module = _Module(text, outs)

    def main(*args: Any) -> Any:
        return _splice.bind(*args, module=module)

    made = with_ready_scalar(main)
    made.__name__ = title
    return compile_function(
        made,
        ins,
        donated,
        fast=fast,
        names=names,
        processes=processes,
        placements=placements,
    )


def with_ready_scalar(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of one result more: a scalar that is ready when all of them are."""

    def main(*args: Any) -> Any:
        return [*function(*args), jnp.zeros((), jnp.bool_)]

    return main


def hlo_text(text: str, places: Mapping[str, tuple[str, str, int]]) -> str:
    """Return the HLO of a StableHLO module as XLA gets it, before any optimisation.

    The places are label, file and line for all that a function of the module holds.
    """
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        _place_functions(module, places)
        lowered = _to_hlo(
            module.operation.get_asm(enable_debug_info=True),
            use_tuple_args=False,
            return_tuple=False,
        )
    # `as_hlo_text` would leave out metadata.
    return str(lowered.as_hlo_module().to_string())


def placed_text(text: str, places: Mapping[str, tuple[str, str, int]]) -> str:
    """Return a StableHLO module in which what its private functions hold has a place, too."""
    main, found, _ = text.partition("\nfunc.func private ")
    if not found:
        return text
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        functions = _place_functions(module, places)
        shown = [
            function.operation.get_asm(enable_debug_info=True, use_local_scope=True)
            for function in functions
        ]
    return "\n".join([main, *(_NOWHERE.sub("", each) for each in shown), "}", ""])


def _place_functions(
    module: Any, places: Mapping[str, tuple[str, str, int]]
) -> list[Any]:
    """Give all that functions hold their place, and return all functions but `main`.

    What a rule of jax's writes as a function of its own has the place of the op's.
    """
    found = [each for each in module.body.operations if each.name.value != "main"]
    for function in found:
        name = function.name.value
        symbol = next((s for s in places if name.startswith(f"{s}__")), name)
        if symbol in places:
            label, file, line = places[symbol]
            where = ir.Location.file(file, line, 0) if file else None
            _place(function, ir.Location.name(label, where))
    return found


def _place(function: Any, place: Any) -> None:
    """Give a place to all that a function holds, regions included."""
    stack = [function.operation]
    while stack:
        operation = stack.pop()
        operation.location = place
        for region in operation.regions:
            for block in region.blocks:
                stack.extend(each.operation for each in block.operations)


def compile_function(
    function: Callable[..., Any],
    ins: Sequence[Any],
    donated: Donated,
    *,
    fast: bool,
    names: Mapping[int, str] | None = None,
    processes: int = 0,
    placements: Placements | None = None,
) -> Any:
    """Compile a traceable function of flat arguments; see `compile_text`."""
    options = dict(_OPTIONS)
    if fast and device().platform == "cpu":
        options |= FAST_OPTIONS
    # The module has the user's lines; those of this file would be what has none's.
    no_lines = _private_config.traceback_in_locations_limit(0)
    with scope(), warnings.catch_warnings(), no_lines:
        warnings.filterwarnings(
            "ignore", message="Some donated buffers were not usable"
        )
        split: dict[str, Any] = {}
        if placements is not None:
            given, made = placements
            split = {"in_shardings": tuple(given), "out_shardings": [*made]}
        jitted = jax.jit(
            function, donate_argnums=tuple(donated), keep_unused=True, **split
        )
        lowered = jitted.lower(*ins)
        _name_arguments(lowered, names)
        _pair(lowered, donated, placements)
        if processes:
            return _compile_replicated(lowered, options, processes)
        return lowered.compile(compiler_options=options)


class ReplicatedExecutable:
    """A program that several processes run together, each on arrays of its own device."""

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded

    def launch(self, args: Sequence[Any]) -> list[Any]:
        """Run it on device arrays; the other processes must run it, too."""
        results = self._loaded.execute_sharded(list(args))
        return [each[0] for each in results.disassemble_into_single_device_arrays()]

    def __call__(self, *args: Any) -> list[Any]:
        """Run it on device arrays and numbers."""
        return self.launch(
            [arg if isinstance(arg, jax.Array) else give(arg) for arg in args]
        )

    def memory_analysis(self) -> Any:
        """Return what jax's executables tell of their memory."""
        return self._loaded.get_compiled_memory_stats()

    def as_text(self) -> str:
        """Return the optimised HLO."""
        return str(self._loaded.hlo_modules()[0].to_string())


def _compile_replicated(
    lowered: Any, options: dict[str, Any], processes: int
) -> ReplicatedExecutable:
    """Compile a module with one replica for each process, on its first device."""
    first: dict[int, Any] = {}
    for each in jax.devices():
        first.setdefault(each.process_index, each)
    devices = [first[rank] for rank in range(processes)]
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), len(devices))
        module.operation.attributes["mhlo.num_replicas"] = number
    compile_options = _private_compiler.get_compile_options(
        num_replicas=len(devices),
        num_partitions=1,
        device_assignment=np.array([[each.id] for each in devices]),
        env_options_overrides=options,
    )
    loaded = _private_compiler.backend_compile_and_load(
        device().client, module, _device_list(tuple(devices)), compile_options, []
    )
    return ReplicatedExecutable(loaded)


def join(
    address: str, size: int, rank: int, *, local: int | None, heartbeat_s: int
) -> None:
    """Join the processes of a group: `jax.devices()` has the devices of all from now on."""
    # Without it a process that dies ends all others, before they can say which one it was.
    jax.config.update("jax_enable_recoverability", val=True)
    jax.distributed.initialize(
        address,
        size,
        rank,
        local_device_ids=local,
        heartbeat_timeout_seconds=heartbeat_s,
    )


def leave() -> None:
    """Let this process end without the others: jax's farewell would abort it where one is gone."""
    state = distributed.global_state
    for farewell in (state.client, state.service):
        if farewell is not None:
            # Its destructor says farewell, too.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(farewell))
    state.client = state.service = None


def shut_down() -> None:
    """Leave the other processes in order; the process that serves them does so last."""
    jax.distributed.shutdown()


def _name_arguments(lowered: Any, names: Mapping[int, str] | None) -> None:
    """Give arguments the user's names as locations, in place of jax's `args[3]`."""
    if not names:
        return
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        function = _main_of(module)
        for number, name in names.items():
            function.arguments[number].set_location(ir.Location.name(name))


def _pair(lowered: Any, donated: Donated, placements: Placements | None = None) -> None:
    """Let each result take the memory of the argument that it overwrites.

    jax hands memory on to the first result of equal type. A parameter's memory then goes to some
    gradient, and XLA copies what is still read, which is most of a training step's state.
    """
    if not donated:
        return
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        function = _main_of(module)
        # Each access makes a Python list of all types anew.
        inputs, results = list(function.type.inputs), list(function.type.results)
        attributes = [
            {item.name: item.attr for item in each} for each in function.arg_attrs
        ]
        taken: set[int] = set()
        for argument, result in donated.items():
            own = attributes[argument]
            own.pop("tf.aliasing_output", None)
            own.pop("jax.buffer_donor", None)
            fits = result is not None and inputs[argument] == results[result]
            if result is not None and placements is not None:
                fits &= placements[0][argument] == placements[1][result]
            if result is None or result in taken or not fits:
                own["jax.buffer_donor"] = ir.BoolAttr.get(True)
                continue
            taken.add(result)
            number = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), result)
            own["tf.aliasing_output"] = number
        function.arg_attrs = ir.ArrayAttr.get(
            [ir.DictAttr.get(own) for own in attributes]
        )


def _main_of(module: Any) -> Any:
    """Return the function of a module that is called `main`."""
    functions = module.body.operations
    return next(f for f in functions if f.attributes["sym_name"].value == "main")


def traced(function: Callable[..., Any], name: str, ins: Sequence[Any]) -> Any:
    """Return a function of these types that jax has traced; it is lowered as `@name`."""

    def call(*args: Any) -> Any:
        return function(*args)

    call.__name__ = name
    jitted = jax.jit(call, keep_unused=True)
    with scope():
        jitted.trace(*ins)
    return jitted


def stablehlo_of(functions: Sequence[tuple[Any, Sequence[Any]]]) -> str:
    """Return a StableHLO module of functions that `traced` gave, each under its name.

    One module for all of them: MLIR's context, which a module begins with, takes 3 ms.
    """

    def main(*arguments: Any) -> Any:
        called = zip(functions, arguments, strict=True)
        return [function(*given) for (function, _), given in called]

    with scope():
        lowered = jax.jit(main, keep_unused=True).lower(*(ins for _, ins in functions))
        return str(lowered.compiler_ir("stablehlo"))


def dispatcher(executable: Any) -> Any:
    """Return the C++ function behind a compiled object, once its first call has made it.

    Going through the object passes each argument twice: 130 µs more for 128 of them.
    """
    call = getattr(executable, "_call", None)
    return executable if call is None else call


Launcher = Callable[[Sequence[Any]], list[Any]]
"""Runs an executable on device arrays and returns its results."""


def launcher(executable: Any) -> Launcher:
    """Return the shortest way to run an executable whose arguments are all device arrays.

    jax's own call looks again at the type, layout and place of each argument. It is the way where
    effects or hidden arguments pass through it, or where it is made differently.
    """
    own: Launcher | None = getattr(executable, "launch", None)
    if own is not None:
        return own
    inner: Any = getattr(getattr(executable, "_executable", None), "unsafe_call", None)
    try:
        run, handlers = inner.xla_executable.execute_sharded, inner.out_handler.handlers
        passes_more = (
            inner.mut is not None
            or inner.ordered_effects
            or inner.has_unordered_effects
            or inner.has_host_callbacks
        )
    except AttributeError:
        passes_more = True
    if passes_more:
        return lambda args: [*dispatcher(executable)(*args)]

    def launch(args: Sequence[Any]) -> list[Any]:
        results: list[Any] = run(args).consume_with_handlers(handlers)
        return results

    return launch


Giver = Callable[[np.ndarray[Any, Any]], Array]
"""Hands NumPy arrays of one shape and dtype to the device."""


@functools.lru_cache(maxsize=1024)
def giver(*shape: int, dtype: Any) -> Giver:
    """Return what hands arrays to the device, with what `device_put` asks each time known.

    To be called within `scope()`, as what it returns; the device may keep an array's memory.
    """
    target = device()
    place = jax.sharding.SingleDeviceSharding(target)
    kind = jax.core.ShapedArray(shape, dtype)

    def hand_over(array: np.ndarray[Any, Any]) -> Array:
        data: Array = _batched_device_put(kind, place, [array], [target], True)  # noqa: FBT003
        return data

    return hand_over


def serialise(executable: Any) -> bytes:
    """Return an executable as bytes for `deserialise` in a process of equal versions."""
    if getattr(executable, "launch", None):  # one of ours, which pickles itself
        return pickle.dumps(executable)
    devices = executable.runtime_executable().local_devices()
    kept = len(devices), memory_plan(executable)
    if len(devices) > 1 or devices[0].platform != "cpu":
        return pickle.dumps((*serialize_executable.serialize(executable), *kept, None))
    given, in_tree = jax.tree_util.tree_flatten(executable.args_info)
    inner, file = executable._executable._unloaded_executable, io.BytesIO()  # noqa: SLF001
    _SlimPickler(file).dump((inner, given, executable._no_kwargs))  # noqa: SLF001
    trees = in_tree, executable.out_tree
    text = zlib.compress(executable.as_text().encode(), level=1)
    return pickle.dumps((file.getvalue(), *trees, *kept, text))


def deserialise(data: bytes) -> Any:
    """Load what `serialise` gave; only ever feed it files that this user's lazyrt wrote."""
    if b"lapack_" in data:
        _initialise_lapack()
    loaded = pickle.loads(data)  # noqa: S301
    if not isinstance(loaded, tuple):
        return loaded
    payload, in_tree, out_tree, count, plan, text = loaded
    found = serialize_executable.deserialize_and_load(
        payload, in_tree, out_tree, execution_devices=jax.local_devices()[:count]
    )
    _memory_plans[found] = plan
    if text is not None:
        _texts[found] = text
    return found


# The packed HLO of executables that were loaded without it.
_texts: WeakKeyDictionary[Any, bytes] = WeakKeyDictionary()


def optimised_text(executable: Any) -> str:
    """Return the HLO that XLA made of a program, with metadata."""
    text = _texts.get(executable)
    if text is None:
        return str(executable.as_text())
    return zlib.decompress(text).decode()


class _SlimPickler(serialize_executable._JaxPjrtPickler):  # noqa: SLF001
    """Pickles an executable without what loading it does not need."""

    def persistent_id(self, obj: Any) -> Any:
        found = super().persistent_id(obj)
        is_program = found is not None and found[0] == "exec"
        return ("exec", _slim(found[1])) if is_program else found


# Loading takes XLA most of its time for metadata and for what is inside fusions, which is object code
# already. Neither is stored: a fusion becomes a custom call of equal name, shape and operands, which
# says no more than where its results are. Custom fusions stay, since XLA makes their kernels when it
# loads them. Object code, constants, memory and order are not touched. The numbers are those of
# fields in XLA's `hlo.proto`.

_COMPUTATION, _STACK_FRAMES = 3, 17  # of a module
_INSTRUCTION, _COMPUTATION_ID = 2, 5
_NAME, _OPCODE, _SHAPE, _METADATA, _FUSION_KIND = 1, 2, 3, 7, 11  # of an instruction
_ID, _OPERANDS, _PREDECESSORS, _CALLED = 35, 36, 37, 38
_OF_A_CALL = (_NAME, _SHAPE, _ID, _OPERANDS, _PREDECESSORS)


def _slim(program: bytes) -> bytes:
    """Return a program of XLA's CPU without what loading it does not need."""
    size, at = _number(program, 0)
    return program[: at + size] + _edited(program[at + size :], 3, _slim_module)


def _edited(data: bytes, depth: int, edit: Callable[[bytes], bytes]) -> bytes:
    """Return a message whose first field, or that of its first field and so on, is edited."""
    if not depth:
        return edit(data)
    (number, _, value), *rest = _fields(data)
    first = _message(number, _edited(value, depth - 1, edit))
    return b"".join((first, *(whole for _, whole, _ in rest)))


def _slim_module(module: bytes) -> bytes:
    fused: set[int] = set()
    parts = []
    for number, whole, value in reversed([*_fields(module)]):  # callers come last
        if number == _COMPUTATION:
            fields = [*_fields(value)]
            own = next(v for k, _, v in fields if k == _COMPUTATION_ID)
            if _number(own, 0)[0] not in fused:
                slim = [
                    _message(k, _slim_instruction(v, fused)) if k == _INSTRUCTION else w
                    for k, w, v in fields
                ]
                parts.append(_message(number, b"".join(slim)))
        elif number != _STACK_FRAMES:
            parts.append(whole)
    return b"".join(reversed(parts))


def _slim_instruction(data: bytes, fused: set[int]) -> bytes:
    """Return an instruction without metadata; of a fusion a call, and its body's id in `fused`."""
    fields = [*_fields(data)]
    values = {number: value for number, _, value in fields}
    if values[_OPCODE] == b"fusion" and values[_FUSION_KIND] != b"kCustom":
        fused.add(_number(values[_CALLED], 0)[0])
        call = _message(_OPCODE, b"custom-call")
        return call + b"".join(w for number, w, _ in fields if number in _OF_A_CALL)
    return b"".join(whole for number, whole, _ in fields if number != _METADATA)


def _fields(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the number, all bytes, and the value's bytes of each field of a message."""
    at = 0
    while at < len(data):
        start = at
        tag, at = _number(data, at)
        if tag & 7 == _SIZED:
            size, begin = _number(data, at)
            at = begin + size
        else:
            begin = at
            at = begin + _SIZES[tag & 7] if tag & 7 else _number(data, at)[1]
        yield tag >> 3, data[start:at], data[begin:at]


_SIZED, _SIZES = 2, {1: 8, 5: 4}  # kinds of fields
_LOW, _MORE = 127, 128  # of a byte: its part of a number, and that a byte follows


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at a position, and where it ends."""
    found = shift = 0
    while (byte := data[at]) > _LOW:
        found |= (byte & _LOW) << shift
        shift, at = shift + 7, at + 1
    return found | byte << shift, at + 1


def _message(number: int, value: bytes) -> bytes:
    """Return a field that holds a message or a text."""
    head = bytearray()
    for each in (number << 3 | _SIZED, len(value)):
        while each > _LOW:
            head.append(each & _LOW | _MORE)
            each >>= 7  # noqa: PLW2901
        head.append(each)
    return bytes(head) + value


class MemoryPlan(NamedTuple):
    """Bytes that an executable allocates."""

    arguments: int = 0
    results: int = 0
    aliased: int = 0
    temporary: int = 0


_memory_plans: WeakKeyDictionary[Any, MemoryPlan] = WeakKeyDictionary()


def memory_plan(executable: Any) -> MemoryPlan:
    """Return what an executable allocates; XLA is asked once, which takes it 0.1 s for 25,000 instructions."""
    plan = _memory_plans.get(executable)
    if plan is None:
        found = executable.memory_analysis()
        plan = _memory_plans[executable] = MemoryPlan(
            *(
                int(getattr(found, f"{part}_size_in_bytes", 0))
                for part in ("argument", "output", "alias", "temp")
            )
        )
    return plan


def platform_key() -> str:
    """Return what an executable on disk depends on besides its graph."""
    target = device()
    client = target.client
    parts = (
        jax.__version__,
        jaxlib.version.__version__,
        client.platform,
        client.platform_version,
        target.device_kind,
        target.id,
        _host_features(),
        _OPTIONS | FAST_OPTIONS,
        _BY_COMPARISON,
    )
    return hashlib.blake2b(
        "|".join(map(str, parts)).encode(), digest_size=8
    ).hexdigest()


def _host_features() -> str:
    """Return the CPU's feature flags: XLA compiles for the host that it runs on."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
        for line in lines:
            if line.startswith(("flags", "Features")):
                return line
    import platform

    return platform.processor() or platform.machine()


def is_initialised() -> bool:
    """Return whether jax has made a client, whose threads a forked process lacks."""
    return bool(xla_bridge.backends_are_initialized())


def take_fork_hook() -> Callable[[], None] | None:
    """Return jax's hook that warns of forks, which jax will then not install by itself.

    None where it is installed already, as in a program that used jax before lazyrt.
    """
    flag = "_at_fork_handler_installed"
    hook: Callable[[], None] | None = getattr(xla_bridge, "_at_fork", None)
    if hook is None or getattr(xla_bridge, flag, True):
        return None
    setattr(xla_bridge, flag, True)
    return hook


def start_device_trace() -> Callable[[], bytes]:
    """Trace the device from now on; return what ends that and gives the trace, an XSpace.

    The trace has an event for each instruction, and none of Python's frames. jax's own
    `stop_trace` also writes files for a browser, which takes a hundred times as long.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 2
    options.enable_hlo_proto = False
    end: Callable[[], bytes] = _profiler_session(options).stop
    return end


def on_durations(listener: Callable[..., None]) -> None:
    """Call a function with the name of whatever jax has measured and its duration, in seconds."""
    jax.monitoring.register_event_duration_secs_listener(listener)


def put(array: np.ndarray[Any, Any]) -> Array:
    """Copy a NumPy array to the device; the copy never aliases the argument."""
    return give(np.array(array, copy=True))


def give(array: np.ndarray[Any, Any]) -> Array:
    """Hand a NumPy array to the device, which may keep its memory: nobody else may use it."""
    with scope():
        return giver(*array.shape, dtype=array.dtype)(array)


def whole(array: Array) -> Array:
    """Return an array on the first device alone, as programs of one device read it."""
    if isinstance(getattr(array, "sharding", None), NamedSharding):
        if array.is_fully_replicated:
            return array.addressable_data(0)
        array = jax.device_put(array, device())
    return array


def copy(array: Array) -> Array:
    """Return a copy of a device array, made by the device; nothing waits for it."""
    with scope():
        data: Array = jax.device_put(array, array.sharding, may_alias=False)
    return data


def copies(arrays: Sequence[Array]) -> list[Array]:
    """Return copies of device arrays, made by one execution: for what is copied again and again."""
    with scope():
        data: list[Array] = _copier()(list(arrays))
    return data


@functools.lru_cache(maxsize=1)
def _copier() -> Any:
    return jax.jit(lambda arrays: [jnp.copy(each) for each in arrays])


def block(array: Array | Sequence[Array]) -> None:
    """Wait until an array, or each of several, is computed; Ctrl-C gets through."""
    jax.block_until_ready(array)


def on_host(array: Array) -> np.ndarray[Any, Any]:
    """Wait for an array and return it for reading; on the CPU it is the array's own memory."""
    block(array)
    return np.asarray(whole(array))
