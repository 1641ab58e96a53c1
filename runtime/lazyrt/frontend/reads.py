"""Values on their way to the user: peeks, a program's own reads, copies, DLPack."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.dlpack import DLDeviceType

from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.errors import LostValueError, UsageError
from lazyrt.execution import (
    compiler,
    copy_on_donate,
    deferred_asserts,
    memory,
    op_by_op,
    preview,
    transfer,
)
from lazyrt.execution.executor import barrier
from lazyrt.execution.graph_registry import Run
from lazyrt.execution.peek import peek_together, peek_value
from lazyrt.frontend import guard, host_constants, provenance, reuse, value_checks
from lazyrt.frontend import torch_compat as compat
from lazyrt.frontend.buffers import State, View, state_of, value_of, wrap
from lazyrt.frontend.callsite import user_call
from lazyrt.frontend.guard import ARGUMENT_CHECK, check_read
from lazyrt.frontend.infer import call_arguments
from lazyrt.frontend.record import complete
from lazyrt.frontend.torch_compat import is_lazy
from lazyrt.ir.live import Buffer, Lost, Type, exempt, lock, made_in, pending, why_lost
from lazyrt.ir.node import Leaf, Node, Provenance, Value, strides_of, type_text
from lazyrt.lowering.spec import SpecFailure, spec_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyrt.execution.preview import Look
    from lazyrt.observe.events import SourceLocation

# ------------------------------------------------------------------ views of ready data
# Where torch can read the device's memory, as on the CPU, the view is taken there, in place.
# Elsewhere the device takes it, and what is copied to the host is the part asked for, not all that
# it is a part of.


# Bytes; what is smaller is copied sooner than a program is compiled for it.
_LARGE = 2**20
_NOBODY = Provenance(None, "")


class Chain(NamedTuple):
    """A ready base, its data, and the views to take of it, the innermost first."""

    base: Buffer
    data: Any
    views: list[View]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the base's elements."""
        return self.base.type[1]


def to_host(
    chain: Chain, site: SourceLocation | None, *, is_look: bool = False
) -> torch.Tensor:
    """Return a view's elements as a new CPU tensor."""
    memory.wait_for(chain.data)
    on_device = _by_the_device(chain)
    if on_device is not None:
        dtype = chain.views[-1].type[1]
        return transfer.to_host(on_device, dtype, site, is_look=is_look)
    return transfer.own_copy(_on_host(chain), site, is_look=is_look)


def same_views(chain: Chain, base: Buffer) -> View:
    """Return the state of a tensor that shows the same of another buffer."""
    state: State = base
    for link in chain.views:
        view = View(state, link.op, link.args, Value(None, 0, *link.type))
        view.offset = link.offset
        state = view
    assert isinstance(state, View)
    return state


def is_most_of_its_base(chain: Chain) -> bool:
    """Return whether keeping a large base for a view costs no more than two copies of the view."""
    base, view = (
        math.prod(shape) * dtype.itemsize
        for shape, dtype, _ in (chain.base.type, chain.views[-1].type)
    )
    return base >= _LARGE and 2 * view >= base


def _by_the_device(chain: Chain) -> Any:
    """Return the view as the device takes it; None where the host does so sooner, or must."""
    if chain.data.nbytes < _LARGE or transfer.lends(chain.dtype):
        return None
    data, type_ = chain.data, chain.base.type
    with lock, jax_compat.scope():
        for link in chain.views:
            node = _node_of(link, type_)
            if node is None:
                return None
            executable = compiler.compile_spec(node.spec, "peek", node)
            with memory.explained(link.op.name):
                data = jax_compat.dispatcher(executable)(data)[0]
            type_ = link.type
    return data


def _node_of(link: View, parent: Type) -> Node | None:
    """Return a view's op on its parent's type, in no graph; None if the device has no such op."""
    args = complete(link.op, (Leaf("data", 0, *parent[:2]), *link.args))
    node = Node(-1, link.op, args, _NOBODY)
    node.outputs = (Value(node, 0, *link.type),)
    node.spec = spec_of(node)
    try:
        node.spec.check()
    except SpecFailure:
        return None
    return node if len(node.operands) == 1 else None


def _on_host(chain: Chain) -> torch.Tensor:
    host = transfer.borrowed(chain.data, chain.dtype)
    for link in chain.views:
        host = _shown(host, link)
    return host


# View ops whose result only has another shape; their strides are those of the device.
_RESHAPES = frozenset(("aten.view.default", "aten._reshape_alias.default"))
# View ops that go by the layout in memory: the copy lists elements in logical order.
_BY_LAYOUT = frozenset(
    ("aten.as_strided.default", "aten.view.dtype", "aten.view_as_complex.default")
)


def _shown(host: torch.Tensor, link: View) -> torch.Tensor:
    """Apply one view op to a host copy, whose layout is not the one on the device."""
    if link.op.name in _RESHAPES:
        return host.reshape(link.args[0])
    args = [list(arg) if arg.__class__ is tuple else arg for arg in link.args]
    host = host.contiguous() if link.op.name in _BY_LAYOUT else host
    positional, keywords = call_arguments(link.op.func, [host, *args])
    return link.op.func(*positional, **keywords).resolve_conj().resolve_neg()  # type: ignore[no-any-return]


def require_lazy(tensor: object, caller: str) -> None:
    """Check an argument of the public functions.

    Raises:
        UsageError: It is no tensor, or one of another device.
    """
    if is_lazy(tensor):
        return
    kind = type(tensor).__name__
    if isinstance(tensor, torch.nn.Module):
        raise UsageError(
            f"{caller} got a module, {kind}, and takes tensors. Pass its parameters, "
            "`*module.parameters()`, or what it returned."
        )
    if isinstance(tensor, (list, tuple, dict, set)):
        # No `repr`: it would look at the tensors within.
        raise UsageError(
            f"{caller} got a {kind} of {len(tensor):,}, and takes tensors. Pass them one by one, "
            "such as `*tensors`."
        )
    got = (
        f"a tensor on {tensor.device}"
        if isinstance(tensor, torch.Tensor)
        else f"{kind} {tensor!r:.60}"
    )
    raise UsageError(
        f"{caller} got {got}, which is not on the lazy device, so nothing is pending for it. "
        "Pass a tensor made with device='lazyrt', or move one with `.to('lazyrt')`."
    )


def peek(tensor: torch.Tensor, site: SourceLocation | None = None) -> torch.Tensor:
    """Return a lazy tensor's value as a new CPU tensor; the pending step stays as it is."""
    with copy_on_donate.reading() as reading:
        _start(reading, tensor, site)
        return _finish(reading.found, tensor, site, is_look=True)


def peek_all(
    tensors: Sequence[torch.Tensor], site: SourceLocation | None = None
) -> list[torch.Tensor]:
    """Return the values of some lazy tensors; what is pending for them is one execution."""
    with copy_on_donate.reading() as reading:
        with lock:
            values = [
                state.value if state.is_pending else None
                for state in map(state_of, tensors)
            ]
            wanted = [value for value in values if value is not None]
            computed = iter(peek_together(wanted, site, user_call().tensor))
            reading.found = [
                _start_peek(tensor, site) if value is None else next(computed)
                for value, tensor in zip(values, tensors, strict=True)
            ]
            del computed
        return [
            _finish(found, tensor, site, is_look=True)
            for found, tensor in zip(reading.found, tensors, strict=True)
        ]


def edges(
    tensor: torch.Tensor, items: int, site: SourceLocation | None = None
) -> torch.Tensor:
    """Return the first and last indices along each axis as a CPU tensor; see `preview.edges`."""
    with copy_on_donate.reading() as reading:
        _start(reading, tensor, site)
        return preview.edges(_array(reading), tensor.dtype, items, site)


def look(
    tensor: torch.Tensor, axes: Sequence[int] = (), site: SourceLocation | None = None
) -> Look:
    """Return statistics of a tensor, and a copy of it, of a large one in part, by a peek.

    Args:
        tensor: A lazy tensor.
        axes: Axes of a picture, rows and columns last; none for no picture.
        site: Who asked, for events.
    """
    with copy_on_donate.reading() as reading:
        _start(reading, tensor, site)
        return preview.look(_array(reading), tensor.dtype, (), axes, site)


def _start(
    reading: copy_on_donate.reading, tensor: torch.Tensor, site: SourceLocation | None
) -> None:
    with lock:
        reading.found = _start_peek(tensor, site)


def _array(reading: copy_on_donate.reading) -> Any:
    """Return what is read as an array, to be looked at and not kept."""
    found = reading.found
    if not isinstance(found, Chain):
        memory.wait_for(found)
        return found
    memory.wait_for(found.data)
    on_device = _by_the_device(found)
    return transfer.as_array(_on_host(found)) if on_device is None else on_device


def read(tensor: torch.Tensor, how: str) -> torch.Tensor:
    """Return a lazy tensor's value for the program itself, as a new CPU tensor.

    What is pending runs first, once, unless the read policy, a debugger's prompt or a finaliser
    in the middle of an op makes this a peek. A tensor whose value is known is copied without a
    barrier. So is what an installed package asks of constants and inputs: libraries look whether
    a mask is all ones, distributions whether a scale is positive, and a cut for that would run
    each of the user's steps in two pieces.

    Other threads may record while this one waits for the device. `how` is what the program called,
    such as `.item()`.
    """
    site = provenance.user_site(2)
    in_op = guard.interrupts_an_op()
    with copy_on_donate.reading() as reading:
        with lock:
            reading.found = _start_read(tensor, how, site, in_op=in_op)
        if isinstance(reading.found, torch.Tensor):
            return reading.found
        host = _finish(reading.found, tensor, site)
    base = state_of(tensor).base
    run, _ = made_in(base)
    through = run.step if isinstance(run, Run) else -1
    deferred_asserts.raise_failed(through=through, read=base)
    return host


def run_ahead(tensor: torch.Tensor, site: SourceLocation | None) -> None:
    """Run what a pending tensor needs as a part of its step; see `frontend.reuse`."""
    with lock:
        value = reuse.value_in_step(state_of(tensor))
        if value is not None and value.node is not None:
            reuse.run_ahead(value, site, user_call().tensor)


# Whose reads a step allows in op-by-op mode, too, where nothing tells how large they are.
_TRUSTED = frozenset(("torch.distributions", "an installed package"))


def _start_read(
    tensor: torch.Tensor, how: str, site: SourceLocation | None, *, in_op: bool
) -> Any:
    """Run what a read must run; the result is what `_finish` takes, or a finished tensor."""
    state = state_of(tensor)
    if not state.is_pending:
        return _start_peek(tensor, site)
    if guard.at_debugger_prompt():
        return _start_peek(tensor, site)
    check = value_checks.find(3)
    package = provenance.calling_package(3)
    is_library = check is not None or package != ""
    if config.op_by_op_reads:  # the whole cone, whatever earlier reads have run of it
        if check is None and package not in _TRUSTED:
            check_read(how, tensor)
        value = state.value
        assert value is not None
        return op_by_op.compute((value,))[0][value]
    if is_library:
        found = small_check(tensor, state, site, package or "torch")
        if found is not None:
            return found
        if check is not None and not in_op:
            found = value_checks.put_off(check, tensor, state, site)
            if found is not None:
                return found
        if package == "torch.distributions":
            how = ARGUMENT_CHECK
    check_read(how, tensor)
    if in_op or config.read_policy == "peek":
        return _start_peek(tensor, site)
    line = provenance.package_line(3)
    within = f" in {line}" if line else ""
    barrier(f"read by {how}{within}", site, user_call().tensor)
    return _start_peek(tensor, site)


def _start_peek(tensor: torch.Tensor, site: SourceLocation | None) -> Any:
    """Dispatch what a tensor's value needs; return its data, or a chain of views on data."""
    pending.activity += 1
    state = state_of(tensor)
    data = _known_data(state)
    if data is not None:
        return data
    if isinstance(state, View) and not state.is_pending:
        return _chain(state)
    value = state.value
    assert value is not None
    debugger = guard.debugger_at_prompt()
    if debugger is not None:
        guard.report_after_command(debugger)
    return peek_value(value, site, user_call().tensor)


def _finish(
    found: Any,
    tensor: torch.Tensor,
    site: SourceLocation | None,
    *,
    is_look: bool = False,
) -> torch.Tensor:
    """Wait for data without the lock, and copy it to the host.

    A barrier of another thread meanwhile donates a copy of it: see `copy_on_donate.reading`.
    """
    if isinstance(found, Chain):
        return to_host(found, site, is_look=is_look)
    return _fetch(found, tensor, site, is_look=is_look)


def value_to_save(tensor: torch.Tensor) -> torch.Tensor:
    """Return a lazy tensor's value for a checkpoint or a pickle, as a CPU tensor.

    Tensors that are one and the same memory, as tied weights in a `state_dict()`, have one storage for
    as long as somebody holds it: `torch.save` writes that once.

    Raises:
        StepSyncError: It is pending inside a step: the file would hold a mixture of the step's
            old and new values.
    """
    with lock:
        state = state_of(tensor)
        if state.is_pending and not guard.at_debugger_prompt():
            check_read("save", tensor)
        version = state.base.version
        known = _saved.get(state)
        storage = known[1]() if known is not None and known[0] == version else None
    if storage is not None:
        host = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return host.set_(storage, 0, tensor.shape, known[2])  # type: ignore[index]
    host = peek(tensor, provenance.user_site(2))
    deferred_asserts.raise_failed(read=state.base)
    _saved[state] = version, weakref.ref(host.untyped_storage()), host.stride()
    return host


# Of what has been saved: its version, the storage of the copy, and its strides there.
_saved: weakref.WeakKeyDictionary[State, tuple[int, Any, tuple[int, ...]]]
_saved = weakref.WeakKeyDictionary()


def mask_on_host(mask: torch.Tensor) -> torch.Tensor | None:
    """Return the value of an installed package's mask without a barrier; None if it takes one.

    What a package has asked for once is known to its derivatives, too, while the data lasts.
    """
    state = state_of(mask)
    if state.value is None or guard.at_debugger_prompt():
        return None
    known = host_constants.known(state.value)
    package = provenance.calling_package(2)
    if known is not None or not package:
        return known
    return small_check(mask, state, provenance.user_site(2), package)


def small_check(
    tensor: torch.Tensor, state: State, site: SourceLocation | None, checker: str
) -> torch.Tensor | None:
    """Return a value that takes few ops on device data and numbers alone; None for another.

    A result is remembered for as long as its inputs are the same arrays and numbers. Where the
    host knows these, the device is not asked.
    """
    value = state.value
    assert value is not None
    known = host_constants.known(value)
    if known is not None or not host_constants.is_small(value):
        return known
    computed = host_constants.on_host(value)
    if computed is not None:
        return computed
    data = peek_value(value, site, f"what {checker} checks")
    found = _finish(data, tensor, site)
    host_constants.remember(value, found)
    return found.clone()


def snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """Return a lazy tensor with the value of `tensor`, computed by a peek.

    It shares nothing with `tensor`: no storage, no autograd graph, no role in any step. The
    memory of a large one is shared for as long as nobody writes to either.
    """
    require_lazy(tensor, "snapshot()")
    site, shape = provenance.user_site(2), tuple(tensor.shape)
    with lock:
        found = _start_peek(tensor, site)
        if isinstance(found, Chain):
            if is_most_of_its_base(found):
                source = found.base if found.base.data is found.data else None
                own = _keeper(found.data, found.base.type, source, site)
                return wrap(same_views(found, own), type_of(tensor))
        elif tuple(found.shape) == shape:
            strides = strides_of(tensor)
            if strides is None or compat.is_dense(tensor):
                base = state_of(tensor).base
                source = base if base.data is found else None
                meta = (shape, tensor.dtype, strides)
                return wrap(_keeper(found, meta, source, site), type_of(tensor))
    with torch.no_grad():
        return _finish(found, tensor, site).to(tensor.device)


def _keeper(
    data: Any, meta: Type, source: Buffer | None, site: SourceLocation | None
) -> Buffer:
    """Return a buffer of its own with some data; see `copy_on_donate.keep`."""
    own = Buffer(None)
    copy_on_donate.keep(own, data, meta, source)
    own.made_at = site or getattr(source, "made_at", None)
    return own


def type_of(tensor: torch.Tensor) -> Value:
    """Return a value of a tensor's type that nothing computes."""
    shape = tuple(tensor.shape)
    return Value(None, 0, shape, tensor.dtype, strides_of(tensor))


def _fetch(
    data: Any,
    tensor: torch.Tensor,
    site: SourceLocation | None,
    *,
    is_look: bool,
) -> torch.Tensor:
    memory.wait_for(data)
    host = _host_copy(data, tensor.dtype, site, is_look=is_look)
    strides = tensor.stride()
    if host.stride() != strides and compat.is_dense(tensor):
        host = torch.empty_strided(host.shape, strides, dtype=host.dtype).copy_(host)
    return host


# Host copies of device data that eager debug mode has read, so that looking at one version of
# a tensor again moves no bytes. Keyed by identity, which the weak reference confirms.
_HOST_COPIES_BYTES = 64 * 2**20
_host_copies: dict[int, tuple[weakref.ref[Any], torch.Tensor]] = {}


def _host_copy(
    data: Any, dtype: torch.dtype, site: SourceLocation | None, *, is_look: bool
) -> torch.Tensor:
    if not pending.eager:
        return transfer.to_host(data, dtype, site, is_look=is_look)
    with lock:
        known = _host_copies.pop(id(data), None)
    if known is None or known[0]() is not data:
        host = transfer.to_host(data, dtype, site, is_look=is_look)
        known = (weakref.ref(data), host)
    if known[1].nbytes <= _HOST_COPIES_BYTES:
        with lock:
            _host_copies[id(data)] = known  # at the end: the latest read goes last
            _forget_old_copies()
    return known[1].clone()


def _forget_old_copies() -> None:
    for key in [key for key, (alive, _) in _host_copies.items() if alive() is None]:
        del _host_copies[key]
    total = sum(host.nbytes for _, host in _host_copies.values())
    for key in list(_host_copies):
        if total <= _HOST_COPIES_BYTES:
            return
        total -= _host_copies.pop(key)[1].nbytes


def require_data(buffer: Buffer) -> None:
    """Check that a buffer with nothing pending has data."""
    _known_data(buffer)


def _known_data(state: State) -> Any:
    """Return the data of a buffer or view that has it under its own name, None otherwise."""
    if isinstance(state, View):
        return state.data
    if state.is_pending:
        return None
    value = state.value
    if value is not None:
        return pending.inputs[value.position]  # type: ignore[attr-defined]
    if state.data is None or isinstance(state.data, Lost):
        never = "this tensor has no value: it was never written"
        raise LostValueError(never if state.data is None else why_lost(state.data))
    return state.data


def _chain(view: View) -> Chain:
    views: list[View] = []
    state: State = view
    while isinstance(state, View):
        views.append(state)
        state = state.parent
    return Chain(state, _known_data(state), views[::-1])


def describe(tensor: torch.Tensor) -> str:
    """Return the plan line of a lazy tensor: what it is, and computes nothing.

    Examples: `<lazyrt f32[8,10], pending: aten.addmm.default, cell 3 line 4>`,
    `<lazyrt f32[8,10], ready, of step 12 'train 3'>` for what a `step()` block computed.
    """
    state = state_of(tensor)
    base = state.base
    kind = type_text(tuple(tensor.shape), tensor.dtype)
    if isinstance(base.data, Lost) and base.value is None:
        return f"<lazyrt {kind}, lost>"
    value = state._value if isinstance(state, View) else state.value
    if value is None or value.node is None or not state.is_pending:
        return f"<lazyrt {kind}, ready{_made_in(base)}>"
    origin = value.node.provenance
    where = f", {origin.site}" if origin.site else ""
    where += f", scope {origin.scope}" if origin.scope else ""
    where += f", step {origin.step}" if origin.step else ""
    return f"<lazyrt {kind}, pending: {value.node.op.name}{where}>"


def _made_in(base: Buffer) -> str:
    """Return which step() made a ready buffer's data, for the plan line; empty for others."""
    run: Any = getattr(base, "run", None)
    if getattr(run, "block", None) is None:
        return ""
    return f", of step {run.step}{f' {run.block!r}' if run.block else ''}"


def stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """Return a lazy tensor for looking at `tensor` later, without keeping it in any step.

    For variables that only a traceback holds. Nothing is computed now. A peek works until the
    next barrier, which does not compute the stand-in; later reads raise LostValueError.
    """
    require_lazy(tensor, "stand_in()")
    with lock:
        state = state_of(tensor)
        if not state.is_pending:
            is_lost = isinstance(state.base.data, Lost) and state.base.value is None
            return tensor if is_lost else snapshot(tensor)
        value = value_of(tensor)
        buffer = Buffer(value)
        exempt(buffer)
        return wrap(buffer, value)


# Copies of lazy tensors that later steps cannot change.


class Tracked:
    """The number that a tensor of one element has now, whatever is written to it later.

    A pending one is a result of its step, as it would be for a variable that holds it: where the
    program keeps the value anyway, the step stays as it is. Nothing is run or waited for.

    Attributes:
        step: The step that computes it, or had computed it.

    Args:
        tensor: On the lazy device.

    Raises:
        UsageError: It has several elements, is complex, or is not on the lazy device.
    """

    __slots__ = ("_buffer", "_data", "step")

    def __init__(self, tensor: torch.Tensor) -> None:
        require_lazy(tensor, "track()")
        if tensor.numel() != 1 or tensor.is_complex():
            kind = type_text(tuple(tensor.shape), tensor.dtype)
            raise UsageError(
                f"track() got {kind}, which is not one real number, so there is no curve to draw. "
                "Reduce it first, as in track(loss=loss.mean())."
            )
        self._buffer: Buffer | None = None
        self._data: Any = None
        with lock:
            state = state_of(tensor)
            if state.is_pending:
                self.step = pending.number
                self._buffer = Buffer(value_of(tensor))
                pending.buffers[self._buffer] = None
                return
            run, _ = made_in(state.base)
            self.step = run.step if run is not None else self.step_now()
            found = _known_data(state)
            if found is None:  # a view of what has run
                found = state_of(snapshot(tensor)).base.data
            self._data = jax_compat.copy(found)

    @staticmethod
    def step_now() -> int:
        """Return the step that is pending, else the last one that ran."""
        return pending.number - (not pending.live())

    def settle(self) -> float | None:
        """Return the number once it is there, without waiting; before a barrier, leave its memory.

        Raises:
            LostValueError: Its step was dropped, so it will never be there.
        """
        with lock:
            buffer = self._buffer
            if buffer is not None:
                if buffer.is_pending:
                    return None
                data = _known_data(buffer)
                self._buffer = None
                # The step that comes may give this memory away, as if nobody had looked.
                self._data = data if data.is_ready() else jax_compat.copy(data)
        if not self._data.is_ready():
            return None
        return float(jax_compat.on_host(self._data).reshape(()))


def copied(thing: Any) -> Any:
    """Return `thing` with the lazy tensors in it, and in its lists, tuples and dicts, copied.

    The copy of a computed tensor is made by the device, so nobody waits. A container without
    lazy tensors stays the same object: a program may collect results in it.
    """
    if is_lazy(thing):
        return _copy(thing)
    kind = type(thing)
    if kind not in {list, tuple, dict}:
        return thing
    old = list(thing.values()) if kind is dict else list(thing)
    new = [copied(part) for part in old]
    if all(after is before for after, before in zip(new, old, strict=True)):
        return thing
    return dict(zip(thing, new, strict=True)) if kind is dict else kind(new)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    with lock:
        state = state_of(tensor)
        meta = state.meta if isinstance(state, Buffer) else None
        if (
            state.is_pending
            or meta is None
            or isinstance(state.data, Lost)
            or meta[0] != tuple(tensor.shape)
        ):
            return snapshot(tensor)
        own = Buffer(None)
        own.store(jax_compat.copy(state.data), meta)
        own.run, own.slot = made_in(state.base)
        return wrap(own, Value(None, 0, *meta))


# ------------------------------------------------------------------------------- DLPack
# torch itself would hand out a capsule with a null address, because a lazy tensor's data may not
# exist yet and lies in XLA's memory when it does. An export is a read, like `.numpy()`.
# A capsule cannot say which lazy tensor it came from, so what is imported again is the copy.


def install_dlpack() -> None:
    """Route DLPack exports of lazy tensors to this module."""
    on_cpu = DLDeviceType.kDLCPU, 0
    compat.patch_tensor_method("__dlpack_device__", lambda _, _tensor: on_cpu)
    compat.patch_tensor_method("__dlpack__", _export)
    compat.patch_to_dlpack(lambda tensor: read(tensor, "to_dlpack()"))


def _export(
    _original: Any,
    self: torch.Tensor,
    *,
    stream: Any = None,  # noqa: ARG001 - part of the protocol; the CPU has none
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None,
    copy: bool | None = None,
) -> Any:
    if self.requires_grad:
        raise BufferError(
            "Can't export tensors that require gradient, use tensor.detach()"
        )
    if copy is False:
        raise BufferError(
            f"__dlpack__(copy=False) of a lazy tensor of shape {tuple(self.shape)} is impossible: "
            "its data is in XLA's memory, and what leaves the device is a copy. Leave `copy` out."
        )
    host = read(self, "__dlpack__()")
    return host.__dlpack__(max_version=max_version, dl_device=dl_device)
