"""The torch device `lazyrt`: registration of kernels, RNG, autocast, printing."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from lazyrt.config import config
from lazyrt.errors import UsageError
from lazyrt.execution import completion, memory, op_by_op, process
from lazyrt.execution.executables import keep_within_budget
from lazyrt.execution.executor import barrier, on_crowded
from lazyrt.execution.peek import forget_slices
from lazyrt.execution.preview import WHOLE, of_host
from lazyrt.frontend import (
    argument_checks,
    generators,
    guard,
    host_constants,
    linear,
    provenance,
    reads,
    record,
    scalars,
    special,
    storages,
    value_checks,
)
from lazyrt.frontend import torch_compat as compat
from lazyrt.frontend.composites import ASSERTIONS, COMPOSITES, DIFFERENTIATED, checked
from lazyrt.frontend.fallback import run_on_cpu
from lazyrt.frontend.kernels import (
    VIEW_OPS,
    find_pure,
    functional_kernel,
    in_place_kernel,
    pure_name,
    view_kernel,
    when_called,
)
from lazyrt.frontend.special import out_kernel
from lazyrt.lowering.registry import rule_for, rules
from lazyrt.lowering.spec import forget_specs
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lazyrt.observe.events import SourceLocation

# torch takes a device that Python registers for the accelerator of the process. So
# `DataLoader(pin_memory=True)` and `torch.synchronize()` come here, also in scripts that have no
# tensor on the device.

# What is registered stays so for as long as its library lives.
_libraries: list[torch.library.Library] = []


def install(synchronize: Callable[[], None]) -> None:
    """Answer for the accelerator; `synchronize` runs what is pending and waits for the device."""
    library = torch.library.Library("aten", "IMPL")
    for key in ("CPU", "AutogradCPU"):
        # A copy, as pinning makes: jax copies from any memory, so none need be pinned.
        library.impl("pin_memory", lambda host, device=None: host.clone(), key)  # noqa: ARG005
    _libraries.append(library)
    compat.patch_accelerator(
        synchronize=synchronize,
        allocated_bytes=memory.in_use,
        free_bytes=lambda: memory.available() or 0,
        refuse=_refuse,
    )


def _refuse(name: str) -> None:
    raise UsageError(
        f"torch.{name}() asks for the peak of the memory in use, which nobody records "
        "on lazyrt. What is in use now is torch.memory_allocated(); "
        "lazyrt.live_tensors_report() says who holds it."
    )


# -------------------------------------------------------------------- streams and events
# Ops are recorded in the order of the program, and a graph has no other: FSDP's streams, which let
# copies overlap with computation, are for XLA to find.


class Stream(torch.Stream):
    """The device's one stream: what is recorded first is first."""

    def __new__(cls, *_: object, **__: object) -> Self:
        """Return the stream, whatever priority is asked for."""
        return super().__new__(cls, torch.device(compat.DEVICE_TYPE))


class Event(torch.Event):
    """A place in the device's one stream."""

    def __new__(cls, *_: object, **__: object) -> Self:
        """Return an event of the device; it times nothing."""
        return super().__new__(cls, torch.device(compat.DEVICE_TYPE))


# --------------------------------------------------------------------- the device guard
# torch asks the guard of a device for its streams around each backward node, from C++ functions that
# must not throw. The guard that torch makes for a Python backend calls a Python method: an exception
# in backward (a hook that raises, Ctrl-C) would end the process, and each op under autograd cost
# 2.7 µs more. So the entry in c10's registry becomes a copy of the meta device's table, in which
# questions for a device or a stream are answered by "device lazyrt:0, stream 0", and those for events
# by "yes": on one stream nothing is out of order. `pin_memory=True` gets the CPU's memory, by a table
# of the same kind, and all memory is pinned: DistributedDataParallel and `fully_shard` insist on it.
# The layout is that of torch 2.13 on the Itanium C++ ABI; elsewhere torch's own guard stays, with a
# warning.


_log = logging.getLogger(__name__)

_SUPPORTED_TORCH = "2.13."
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_PRIVATE_USE_1, _META, _DEVICE_TYPES = 20, 14, 21
_TABLE_SIZE = 32
_HOOKS = "_ZN2at6detail19getPrivateUse1HooksEv"
_HOOKS_TABLE = "_ZTVN2at25PrivateUse1HooksInterfaceE"
_CPU_ALLOCATOR = "_ZN3c1015GetCPUAllocatorEv"
_HEADER = 2  # what stands in front of a table's functions
_IS_PINNED, _PINNED_ALLOCATOR, _HOOKS_SIZE = 11, 12, 17
_SHARED = slice(5, 11)  # what a Python backend's hooks inherit
# type, exchangeDevice, getDevice, getStream, getDefaultStream, getStreamFromGlobalPool,
# getNewStream, exchangeStream
_ANSWERED = (0, 1, 2, 5, 6, 7, 8, 9)
# record, block, queryEvent, synchronizeEvent: done, and yes.
_EVENTS = (12, 13, 14, 20)
# "Return 20 in the first register and 0 in the second": DeviceType 20, index 0, stream id 0.
_CODE = {
    "x86_64": bytes.fromhex("b814000000 31d2 c3"),
    "aarch64": bytes.fromhex("80028052 010080d2 c0035fd6"),
}
# "Return 1."
_YES = {
    "x86_64": bytes.fromhex("b801000000 c3"),
    "aarch64": bytes.fromhex("20008052 c0035fd6"),
}

_kept_alive: list[object] = []


def install_guard() -> bool:
    """Replace the guard that torch registered; return whether this platform allows it."""
    reason = _obstacle()
    if not reason:
        try:
            _install()
        except (OSError, ValueError) as error:
            reason = str(error)
    if reason:
        _log.warning(
            "lazyrt keeps torch's Python device guard (%s): an exception in backward, such as "
            "Ctrl-C or a hook that raises, can end this process.",
            reason,
        )
    return not reason


def _obstacle() -> str:
    if not torch.__version__.startswith(_SUPPORTED_TORCH):
        return f"torch {torch.__version__} is not {_SUPPORTED_TORCH}x"
    if sys.platform != "linux" or platform.machine() not in _CODE:
        return f"no guard for {sys.platform} on {platform.machine()}"
    return ""


def _install() -> None:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    registry = (ctypes.c_void_p * _DEVICE_TYPES).in_dll(library, _REGISTRY)
    meta = registry[_META]
    if not meta or not registry[_PRIVATE_USE_1]:
        raise OSError("torch has registered no guard to start from")
    answer = _executable(_CODE[platform.machine()])
    inherited = ctypes.cast(meta, ctypes.POINTER(ctypes.c_void_p))[0]
    if inherited is None:
        raise OSError("the meta device's guard has no table")
    table = (ctypes.c_void_p * _TABLE_SIZE)(
        *(ctypes.c_void_p * _TABLE_SIZE).from_address(inherited)
    )
    for slot in _ANSWERED:
        table[slot] = answer
    yes = _executable(_YES[platform.machine()])
    for slot in _EVENTS:
        table[slot] = yes
    guard = (ctypes.c_void_p * 4)(ctypes.addressof(table), 0, 0, 0)
    _kept_alive.extend((table, guard, library))
    registry[_PRIVATE_USE_1] = ctypes.addressof(guard)


def pin_as_the_cpu_allocates() -> bool:
    """Let pinned memory be ordinary memory; return whether this platform allows it.

    Where it does not, `pin_memory=True` raises torch's error.
    """
    if _obstacle():
        return False
    folder = Path(torch.__file__).parent / "lib"
    try:
        c10, cpu, python = (
            ctypes.CDLL(str(folder / f"lib{name}.so"))
            for name in ("c10", "torch_cpu", "torch_python")
        )
        allocator = ctypes.cast(getattr(c10, _CPU_ALLOCATOR), ctypes.c_void_p).value
        ask = getattr(cpu, _HOOKS)
        shape = ctypes.c_void_p * (_HEADER + _HOOKS_SIZE)
        torchs_own = shape.in_dll(python, _HOOKS_TABLE)
    except (OSError, AttributeError, ValueError):
        return False
    ask.restype = ctypes.POINTER(ctypes.c_void_p)
    hooks = ask()
    inherited = hooks[0]
    if inherited is None:
        return False
    first = inherited - _HEADER * ctypes.sizeof(ctypes.c_void_p)
    table = shape(*shape.from_address(first))
    if table[_HEADER:][_SHARED] != torchs_own[_HEADER:][_SHARED]:  # another layout
        return False
    table[_HEADER + _PINNED_ALLOCATOR] = allocator
    table[_HEADER + _IS_PINNED] = _executable(_YES[platform.machine()])
    _kept_alive.extend((table, c10))
    hooks[0] = ctypes.addressof(table) + inherited - first
    torch.empty(0, pin_memory=True)  # before it, torch says that nothing is pinned
    return True


def _executable(code: bytes) -> int:
    """Return the address of a page with `code`, first written, then made executable."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "the system refuses executable memory")
    _kept_alive.append(page)
    return address


# Left to torch: `detach` and `alias` share the storage and so its state; a Python kernel for
# them would break `Parameter(t)`.
_LEFT_TO_TORCH = frozenset(
    ("detach", "alias", "record_stream", "set_", "is_pinned",
     "_pin_memory", "resize_as_", "is_same_size", "_nested_tensor_size", "sym_size",
     "sym_stride", "contiguous", "_version", "requires_grad_", "size", "stride")
)  # fmt: skip
# torch composes them of others in C++. Each stays one op, which its decomposition lowers.
_ONE_OP = frozenset(
    f"aten.{name}"
    for name in ("deg2rad", "logspace", "nan_to_num", "polar", "rad2deg")
)  # fmt: skip


class DeviceModule:
    """What torch asks of `torch.lazyrt`."""

    _initialized = True

    class device(contextlib.nullcontext[None]):  # noqa: N801 - torch's own spelling
        """Context manager that selects a device; there is only one."""

        def __init__(self, device: Any) -> None:
            super().__init__()
            self.idx = device

    def set_device(self, device: Any) -> None:
        """Select a device; there is only one."""

    def is_initialized(self) -> bool:
        """Return True: importing lazyrt initialises the device."""
        return True

    def is_available(self) -> bool:
        """Return True: the device runs wherever jax does."""
        return True

    Stream = Stream
    Event = Event

    def current_stream(self, device: Any = None) -> torch.Stream:
        """Return the device's one stream."""
        return Stream()

    default_stream = current_stream

    def set_stream(self, stream: Any) -> None:
        """Select a stream; there is only one."""

    def stream(self, stream: Any) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that selects a stream; there is only one."""
        return contextlib.nullcontext()

    def current_device(self) -> int:
        """Return 0, the only device so far."""
        return 0

    def device_count(self) -> int:
        """Return 1."""
        return 1

    def _is_in_bad_fork(self) -> bool:
        return process.is_forked()

    default_generators = (generators.default_generator,)

    def manual_seed(self, seed: int) -> None:
        """Restart the device's random numbers."""
        generators.default_generator.manual_seed(seed)

    manual_seed_all = manual_seed  # which `torch.manual_seed` calls

    def seed(self) -> int:
        """Restart the device's random numbers from a seed that the system draws."""
        return generators.default_generator.seed()

    seed_all = seed

    def initial_seed(self) -> int:
        """Return the seed of the last restart."""
        return generators.default_generator.initial_seed()

    def get_rng_state(self, device: Any = 0) -> torch.Tensor:
        """Return the state as a CPU byte tensor: seed and number of ops drawn, int64 each."""
        return generators.default_generator.get_state()

    def set_rng_state(self, new_state: torch.Tensor, device: Any = 0) -> None:
        """Restore what `get_rng_state` gave."""
        generators.default_generator.set_state(new_state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Return the state of each device's generator; there is one."""
        return [self.get_rng_state()]

    def set_rng_state_all(self, new_states: Iterable[torch.Tensor]) -> None:
        """Restore what `get_rng_state_all` gave."""
        for state in new_states:
            self.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return the dtypes that autocast may use."""
        return [torch.bfloat16, torch.float16]

    def synchronize(self, device: Any = None) -> None:
        """Run what is pending and wait until the device is idle."""
        guard.check_barrier("torch.lazyrt.synchronize()")
        if not guard.interrupts_an_op():
            barrier("torch.lazyrt.synchronize()", provenance.user_site(2))
        completion.wait()

    def empty_cache(self) -> None:
        """Do nothing: memory that no tensor needs has been given back already."""

    def memory_allocated(self, device: Any = None) -> int:
        """Return the bytes of the data of live tensors; what is pending has none yet."""
        return memory.in_use()


def register() -> int:
    """Register the device and its kernels; return how many kernels there are."""
    module = DeviceModule()
    compat.register_device(module)
    install(module.synchronize)
    install_guard()
    pin_as_the_cpu_allocates()
    generators.install()
    generators.default_generator.manual_seed(torch.initial_seed())
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    _libraries.extend(argument_checks.register_layouts())
    refused = argument_checks.layout_makers()
    count = 0
    kinds = _Kinds()
    for name, schema in compat.operator_schemas().items():
        kernel = refused.get(name) or _kernel_for(name, schema, kinds)
        if kernel is not None:
            kernel = checked(name, kernel)
            library.impl(name, kernel, compat.DISPATCH_KEY)
            guard.note_kernel(kernel)
            count += 1
    for name, composite in COMPOSITES.items():
        for key in (compat.DISPATCH_KEY, compat.AUTOGRAD_KEY):
            library.impl(name, composite, key)
    for name, composite in DIFFERENTIATED.items():
        library.impl(name, composite, compat.AUTOGRAD_KEY)
    library.impl("linear", linear.linear, compat.AUTOGRAD_KEY)
    library.impl("linear_backward", linear.backward_by_ops, compat.VMAP_KEY)
    _register_autocast(library)
    _patch()
    compat.register_checkpoint_location(storages.storage_to_device)
    on_crowded.extend((_forget_if_crowded, keep_within_budget))
    record.on_new_run.extend((host_constants.forget, forget_slices))
    return count


class _Kinds:
    """Which ops torch composes of others, and which have rules."""

    def __init__(self) -> None:
        self.composed = compat.composites(implicit=True) | _LEFT_TO_TORCH
        self.explicit = compat.composites(implicit=False)
        self.rules = {name.removesuffix(".default") for name in rules()} | _ONE_OP
        self.with_rules = {name.split(".")[1] for name in self.rules}


def _kernel_for(name: str, schema: torch.FunctionSchema, kinds: _Kinds) -> Any:
    for kernels in (special.SPECIAL, linear.FACTORISATIONS, ASSERTIONS):
        if name in kernels:
            return kernels[name]
    if name in special.IN_PLACE_VIEWS:
        return special.in_place_view(name)
    if name in COMPOSITES:  # registered for autograd too
        return None
    if name in kinds.composed or name.startswith("set.source_Storage"):
        return None
    if name in VIEW_OPS:
        return view_kernel(name)
    if schema.is_mutable:
        if name in kinds.explicit and not _has_pure_rule(name, kinds):
            return None
        return _mutating_kernel(name)
    if any(result.alias_info is not None for result in schema.returns):
        return None
    if name in kinds.explicit and f"aten.{name}" not in kinds.rules:
        return None
    if any("Tensor" not in str(result.type) for result in schema.returns):
        return None
    return functional_kernel(name)


def _has_pure_rule(name: str, kinds: _Kinds) -> bool:
    """Return whether a rule lowers the functional overload that a mutating one stands for."""
    if pure_name(name.partition(".")[0]) not in kinds.with_rules:
        return False
    func = compat.find_overload(name)
    pure = find_pure(func) if func is not None else None
    return pure is not None and rule_for(pure) is not None


@when_called
def _mutating_kernel(func: torch._ops.OpOverload) -> Any:
    pure = find_pure(func)
    if pure is None:
        return _cpu_kernel(func)
    has_out = any(argument.is_out for argument in func._schema.arguments)
    return out_kernel(func, pure) if has_out else in_place_kernel(func, pure)


def _cpu_kernel(func: torch._ops.OpOverload) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return run_on_cpu(func, list(args), kwargs, "it has no functional form")

    return kernel


_CAST_DOWN = (
    "mm", "bmm", "addmm", "addbmm", "baddbmm", "addmv", "mv", "linear", "matmul", "convolution",
    "conv1d", "conv2d", "conv3d", "scaled_dot_product_attention", "prelu",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
)  # fmt: skip
_CAST_UP = (
    "log_softmax.int", "softmax.int", "layer_norm", "nll_loss", "nll_loss_nd", "mse_loss",
    "l1_loss", "smooth_l1_loss", "exp", "log", "log10", "log2", "log1p", "expm1",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "rsqrt", "reciprocal", "acos",
    "asin", "cosh", "sinh", "tan", "sum", "sum.dim_IntList", "prod", "cumsum", "norm.Scalar",
    "cross_entropy_loss", "binary_cross_entropy_with_logits", "group_norm",
)  # fmt: skip


def _register_autocast(library: torch.library.Library) -> None:
    """Let autocast pass through, with the usual lists of ops that it casts."""
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, compat.AUTOCAST_KEY)
    _libraries.append(everything)
    for names, dtype in ((_CAST_DOWN, None), (_CAST_UP, torch.float32)):
        for name in names:
            func = compat.find_overload(name)
            if func is not None:
                library.impl(name, _casting(func, dtype), compat.AUTOCAST_KEY)


def _casting(func: torch._ops.OpOverload, fixed: torch.dtype | None) -> Any:
    call = compat.below_autocast(func)

    def convert(arg: Any, dtype: torch.dtype) -> Any:
        if (
            compat.is_lazy(arg)
            and arg.is_floating_point()
            and arg.dtype is not torch.float64
        ):
            return arg.to(dtype)
        if isinstance(arg, (list, tuple)):
            return type(arg)(convert(part, dtype) for part in arg)
        return arg

    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = fixed or torch.get_autocast_dtype(compat.DEVICE_TYPE)
        return call(
            *(convert(arg, dtype) for arg in args),
            **{name: convert(arg, dtype) for name, arg in kwargs.items()},
        )

    return kernel


def _forget_if_crowded() -> bool:
    count = record.interned_nodes()
    if count <= config.max_interned_nodes:
        return False
    events.emit(
        events.CacheEvicted(
            cache="nodes", dropped=count, kept=0, budget=config.max_interned_nodes
        )
    )
    record.forget_nodes()
    forget_specs()
    forget_slices()
    host_constants.forget()
    return True


def _patch() -> None:
    compat.patch_printing(_print)
    compat.patch_tensor_method("numpy", _numpy)
    compat.patch_tensor_method(
        "tolist", lambda _, tensor: reads.read(tensor, ".tolist()").tolist()
    )
    compat.patch_tensor_method("__format__", _format)
    compat.patch_backward(scalars.rehearses)
    compat.patch_default_dtype(record.check_default_dtype)
    compat.patch_module_conversion()
    compat.patch_pickling(reads.value_to_save, storages.deep_copy)
    compat.patch_sharing()
    compat.patch_data_parallel()
    op_by_op.checks.append(value_checks.check_values)
    storages.install()
    reads.install_dlpack()


def _print(tensor: torch.Tensor, original: Any) -> str:
    """Return torch's own text of the value, or the plan line where nobody asked for it."""
    if tensor.layout is not torch.strided:
        # Every op on it raises, and an error below torch's printing keeps torch's guards alive.
        shape = tuple(tensor.shape)
        return f"<lazyrt {tensor.layout} of shape {shape}: the device has dense arrays only>"
    if guard.is_introspection():
        return reads.describe(tensor)
    if tensor.numel() == 0:
        return str(original(tensor, tensor_contents=None))
    return str(original(tensor, tensor_contents=_contents(tensor)))


def _contents(tensor: torch.Tensor) -> str:
    """Return the numbers as torch prints them; of a large tensor only its edges are copied."""
    site = provenance.user_site(3)
    plan = reads.describe(tensor) if events.active() and tensor.numel() > 1 else ""
    items = compat.edge_items(tensor.shape) if tensor.numel() > WHOLE else None
    if items is not None:
        text, host = compat.edges_text(reads.edges(tensor, items, site)), None
    else:
        host = reads.peek(tensor, site)
        text = compat.contents_text(host)
    if plan:
        events.emit(_printed(tensor, host, plan, site))
    return text


def _printed(
    tensor: torch.Tensor,
    host: torch.Tensor | None,
    plan: str,
    site: SourceLocation | None,
) -> events.TensorPrinted:
    """Return what to tell of a print, with the statistics of the copy that was printed."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if host is None:
        return events.TensorPrinted(
            plan=plan, shape=shape, dtype=dtype, is_whole=False, site=site
        )
    with compat.plain_dispatch():
        plain = host.detach().resolve_conj().resolve_neg()
        if plain.is_floating_point():  # numpy has no bfloat16
            plain = plain.double()
        found = of_host(plain.numpy(), host.dtype)
    return events.TensorPrinted(
        plan=plan, shape=shape, dtype=dtype, is_whole=True, nan=found.nan,
        infinite=found.infinite, minus_infinite=found.minus_infinite, nonzero=found.nonzero, low=found.low, high=found.high,
        mean=found.mean, std=found.std, site=site,
    )  # fmt: skip


def _numpy(original: Any, self: torch.Tensor, *, force: bool = False) -> Any:
    if self.requires_grad and not force:
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    return reads.read(self, ".numpy()").numpy()


def _format(original: Any, self: torch.Tensor, spec: str) -> str:
    if guard.is_introspection():
        return reads.describe(self)
    if self.dim() == 0:
        return format(reads.peek(self, provenance.user_site(2)).item(), spec)
    return str(original(self, spec))
