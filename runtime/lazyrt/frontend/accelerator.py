"""What torch asks of the process's accelerator, answered for `lazyrt`; and the device guard.

torch takes a device that Python registers for the accelerator of the process. So
`DataLoader(pin_memory=True)`, `torch.accelerator.synchronize()` and its neighbours come here, in
scripts that have no tensor on the device too, and end in C++ that a Python backend has no part in.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.errors import UsageError
from lazyrt.execution import memory
from lazyrt.frontend import torch_compat as compat

if TYPE_CHECKING:
    from collections.abc import Callable


_libraries: list[torch.library.Library] = []


def install(synchronize: Callable[[], None]) -> None:
    """Answer for the accelerator; `synchronize` runs what is pending and waits for the device."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_pin_memory", _pinned, "CPU")
    _libraries.append(library)
    compat.patch_accelerator(
        synchronize=synchronize,
        allocated_bytes=memory.in_use,
        free_bytes=_free_bytes,
        refuse=_refuse,
    )


def _pinned(host: torch.Tensor, device: Any = None) -> torch.Tensor:  # noqa: ARG001
    """Return a copy, as pinning does: jax copies from any memory, so none need be pinned."""
    return host.clone()


def _free_bytes() -> int:
    return memory.available() or 0


def _refuse(name: str) -> None:
    raise UsageError(
        f"torch.accelerator.{name}() asks for the peak of the memory in use, which nobody records "
        "on lazyrt. What is in use now is torch.accelerator.memory_allocated(); "
        "lazyrt.live_tensors_report() says who holds it."
    )


# -------------------------------------------------------------------- streams and events
# Ops are recorded in the order of the program, and a graph has no other: FSDP's streams, which let
# copies overlap with computation, are for XLA to find.


class Stream:
    """The device's one stream: what is recorded first is first."""

    device_index = device_type = stream_id = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    @property
    def device(self) -> torch.device:
        """The device."""
        return torch.device(compat.DEVICE_TYPE)

    def wait_stream(self, stream: object) -> None:
        """Do nothing: the order is that of the program."""

    def wait_event(self, event: object) -> None:
        """Do nothing: the order is that of the program."""

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event."""
        return event or Event()

    def query(self) -> bool:
        """Return True: whoever reads gets what was computed."""
        return True

    def synchronize(self) -> None:
        """Do nothing: a read waits for what it reads."""


class Event:
    """A place in the device's one stream."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def record(self, _stream: object = None) -> Event:
        """Return the event."""
        return self

    def wait(self, stream: object = None) -> None:
        """Do nothing: the order is that of the program."""

    def query(self) -> bool:
        """Return True: whoever reads gets what was computed."""
        return True

    def synchronize(self) -> None:
        """Do nothing: a read waits for what it reads."""


STREAM = Stream()


# --------------------------------------------------------------------- the device guard
# torch asks the guard of a device for its streams around each backward node and for each tensor
# with history, from C++ functions that must not throw. The guard that torch 2.13 makes for a
# Python backend answers by calling a Python method, which has two consequences: an exception in
# backward (a hook that raises, Ctrl-C) ends the whole process, because the method is called
# while the exception is on its way; and every op under autograd costs about 2.7 µs more.
#
# So the entry in c10's registry is replaced by an object of the same C++ interface: a copy of the
# table of the meta device's guard, in which every question for a device or a stream is answered
# by one function of three instructions, "device lazyrt:0, stream 0". Questions for events are
# answered too: an event on the one stream there is orders nothing that is not in order already,
# and what a reader finds is always computed. How long something took, it does not tell.
#
# `torch.empty(..., pin_memory=True)` asks the accelerator for memory of its own. jax copies from
# any memory, so the answer is that of the CPU, by the same kind of table.
#
# The layout is that of torch 2.13 on the Itanium C++ ABI. Elsewhere torch's own guard stays, and a warning says what follows.


_log = logging.getLogger(__name__)

_SUPPORTED_TORCH = "2.13."
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_PRIVATE_USE_1, _META, _DEVICE_TYPES = 20, 14, 21
_TABLE_SIZE = 32
_HOOKS = "_ZN2at6detail19getPrivateUse1HooksEv"
_HOOKS_TABLE = "_ZTVN2at25PrivateUse1HooksInterfaceE"
_CPU_ALLOCATOR = "_ZN3c1015GetCPUAllocatorEv"
_HEADER = 2  # what stands in front of a table's functions
_PINNED_ALLOCATOR, _HOOKS_SIZE = 12, 17
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
    _kept_alive.extend((table, c10))
    hooks[0] = ctypes.addressof(table) + inherited - first
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
