"""ATen schema → PrivateUse1 kernel, generated as Python source.

A kernel runs for each op that a program calls, so its fast path is one table look-up: the
arguments become a key, the key gives the interned value, and the value gets a tensor. The
source is specialised for the schema because that is 2 to 4 times faster than a generic
function over its arguments.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from lazyrt.config import config
from lazyrt.execution.process import deferred_interrupt
from lazyrt.frontend import (
    generators,
    guard,
    optimizer_state,
    record,
    scalars,
)
from lazyrt.frontend.argument_checks import check_index, check_overwrite
from lazyrt.frontend.buffers import (
    State,
    View,
    component,
    emit,
    indices,
    operands,
    state_of,
    states_in,
    states_of,
    values_of,
)
from lazyrt.frontend.fallback import run_on_cpu
from lazyrt.frontend.guard import over_limit
from lazyrt.frontend.infer import call_arguments
from lazyrt.frontend.record import FallbackNeeded, functional, miss, operation
from lazyrt.frontend.torch_compat import (
    aten,
    create_empty_tensor,
    find_overload,
    increment_version,
    never_trace,
    restrided,
)
from lazyrt.frontend.views import check_start, track_offset, wrap_view
from lazyrt.ir.live import (
    Buffer,
    float_leaf,
    leaf_of,
    lock,
    pending,
    random_leaf,
    undo_random,
    unwind,
)
from lazyrt.ir.node import Op, Value, contiguous_strides
from lazyrt.lowering import indexing
from lazyrt.observe import events

Kernel = Callable[..., Any]

# The global names of each kernel. Eager debug mode puts those of another guard under `acquire` and
# `release` and another class under `View`; a test in the kernels would cost every op of every program.
scopes: list[dict[str, Any]] = []
# The same in each mode: names of this module are replaced, too.
_LOCK, _VIEW = lock, View

VIEW_OPS = frozenset(
    ("view", "transpose.int", "t", "permute", "select.int", "slice.Tensor", "unsqueeze",
     "squeeze", "squeeze.dim", "squeeze.dims", "expand", "diagonal", "view.dtype", "unfold",
     "_reshape_alias", "view_as_real", "view_as_complex", "_conj", "_neg_view")
)  # fmt: skip
# View ops whose result may begin elsewhere in the storage.
SHIFTS = frozenset(("aten.select.int", "aten.slice.Tensor", "aten.diagonal.default"))
# In-place ops that give all elements one number, so that it does not matter which repeat.
_FILLS = frozenset(("aten.fill_.Scalar", "aten.zero_.default"))
# Arguments that say where a result lives, not what it is.
_PLACEMENT = frozenset(("layout", "pin_memory", "non_blocking"))
# Types of arguments that are their own key components.
_AS_THEY_ARE = frozenset(
    ("int", "Optional[int]", "str", "Optional[str]", "bool", "Optional[bool]")
)


# ------------------------------------------------------------------ source generation


class Source:
    """Builds the source of one kernel: parameters, key components, globals."""

    def __init__(self, func: torch._ops.OpOverload, op: Op, *, in_place: bool) -> None:
        self.func = func
        self.params: list[str] = []
        self.names: list[str] = []
        self.before: list[str] = []
        self.generator = ""
        self.parts: list[str] = []
        self.in_place = in_place
        self.liftable = record.liftable(op)
        self.scope: dict[str, Any] = {
            "op": op, "look_up": op.cache.get, "miss": miss, "leaf_of": leaf_of, "func": func,
            "component": component, "Buffer": Buffer, "create": create_empty_tensor,
            "restrided": restrided, "new": object.__new__, "buffers": pending.buffers, "pending": pending,
            "acquire": lock.acquire, "release": lock.release, "unwind": unwind,
            "emit": emit, "random_leaf": random_leaf, "FallbackNeeded": FallbackNeeded,
            "run_on_cpu": run_on_cpu, "listeners": events.op_listeners, "View": View,
            "clock": events.op_clock, "now": time.perf_counter_ns,
            "note": record.note_recorded, "float_leaf": float_leaf, "config": config,
            "over_limit": over_limit,
            "steps": optimizer_state.steps, "begin_as_input": optimizer_state.begin_as_input,
            "scalar_key": scalars.scalar_key, "Value": Value, "fit": _fit,
        }  # fmt: skip
        keyword_seen = False
        for position, argument in enumerate(func._schema.arguments):
            if argument.kwarg_only and not keyword_seen:
                self.params.append("*")
                keyword_seen = True
            self._add(position, argument)

    def _add(self, position: int, argument: Any) -> None:
        # `from` and `self` are argument names in schemas.
        name = argument.name if argument.kwarg_only else f"a{position}"
        self.names.append(name)
        if argument.has_default_value():
            self.scope[f"d{position}"] = argument.default_value
            self.params.append(f"{name}=d{position}")
        else:
            self.params.append(name)
        self.parts.append(self._part(position, name, argument))

    def _part(self, position: int, name: str, argument: Any) -> str:
        kind = str(argument.type)
        if kind == "Tensor":
            return self._tensor(position, name)
        if kind == "Optional[Tensor]":
            return self._optional_tensor(position, name)
        if argument.name == "generator":
            self.scope["source"] = generators.source
            self.generator = f"source({name})"
            return f"component({name})"
        if argument.name == "device":
            self.scope["check_index"] = check_index
            return f"{name} and {name}.index and check_index({name}) or None"
        if argument.name in _PLACEMENT:
            return "None"
        if kind in _AS_THEY_ARE:
            return name
        if kind in {"List[int]", "List[bool]"}:
            return f"tuple({name})"
        if kind == "List[Tensor]":
            self.scope["operands"] = operands
            return f"operands({name})"
        if kind == "List[Optional[Tensor]]":
            self.scope["indices"] = indices
            return f"indices({name})"
        lifted = self.in_place and position in self.liftable
        if kind in {"number", "Optional[number]"}:
            return self._number(name, lifted=lifted)
        if kind == "float" and lifted:
            return f"float_leaf(float({name}))"
        if kind == "List[number]" and lifted:
            return f"tuple([float_leaf(x) if x.__class__ is float else component(x) for x in {name}])"
        return f"component({name})"

    def _number(self, name: str, *, lifted: bool) -> str:
        if lifted:
            return (
                f"({name} if {name}.__class__ is int else float_leaf({name}) "
                f"if {name}.__class__ is float else component({name}))"
            )
        return f"({name} if {name}.__class__ is int else component({name}))"

    def _tensor(self, position: int, name: str) -> str:
        value = f"v{position}"
        if position == 0:
            self.before += _read(value, name, "s0")
            return value
        number = (
            f"float_leaf({name})"
            if self.in_place and position in self.liftable
            else f"scalar_key({name})"
        )
        self.before += [
            f"if {name}.__class__ is float: {value} = {number}",
            f"elif {name}.__class__ is int: {value} = {name}",
            "else:",
            *[f"  {line}" for line in _read(value, name, "s")],
        ]
        return value

    def _optional_tensor(self, position: int, name: str) -> str:
        value = f"v{position}"
        self.before += [
            f"if {name} is None: {value} = None",
            "else:",
            *[f"  {line}" for line in _read(value, name, "s")],
        ]
        return value

    def go_in_order(self, mutated: list[int]) -> None:
        """Let positions of its lists run one by one where one writes what another one reads."""
        kinds = [str(argument.type) for argument in self.func._schema.arguments]
        lists = [k for k, kind in enumerate(kinds) if kind == "List[Tensor]"]
        written = [f"s{k}" for k in lists if k in mutated]
        read = [f"s{k}" for k in lists if k not in mutated]
        read += [
            f"states_of({name})"
            for name, kind in zip(self.names, kinds, strict=True)
            if kind in {"Tensor", "Optional[Tensor]"} and name != "scalars"
        ]
        self.before = [
            *[f"s{k} = states_in({self.names[k]})" for k in lists],
            f"if len(a0) > 1 and shares([{', '.join(written)}], [{', '.join(read)}]):",
            f"  return one_by_one(func, [{', '.join(self.names)}])",
            *self.before,
            *[f"v{k} = values_of(s{k})" for k in lists],
        ]
        for k in lists:
            self.parts[k] = f"v{k}"
        self.scope.update(
            states_in=states_in, states_of=states_of, values_of=values_of, shares=_shares,
            one_by_one=_one_by_one,
        )  # fmt: skip

    def fallback(self) -> str:
        """Return the line that hands the call over to the CPU."""
        positional = [n for n, a in zip(self.names, self.func._schema.arguments, strict=True)
                      if not a.kwarg_only]  # fmt: skip
        keywords = [n for n in self.names if n not in positional]
        items = ", ".join(f"{name!r}: {name}" for name in keywords)
        return f"run_on_cpu(func, [{', '.join(positional)}], {{{items}}}, str(e))"

    def look_up(self, *, called: bool = False) -> list[str]:
        """Lines that find the result `r` of the op, or hand over to the CPU."""
        is_random = self.scope["op"].is_random
        random = f"random_leaf({self.generator}), " if is_random else ""
        extra = ", func" if called else ""
        return [
            *self.before,
            f"key = ({random}{', '.join(self.parts)},)",
            "r = look_up(key)",
            "if r is None:",
            f"  try: r = miss(op, key{extra})",
            *self._handlers(),
        ]

    def _handlers(self) -> list[str]:
        """Lines that hand over to the CPU; a failed random op gives its state back."""
        if not self.scope["op"].is_random:
            return [f"  except FallbackNeeded as e: return {self.fallback()}"]
        self.scope["undo_random"] = undo_random
        return [
            "  except FallbackNeeded as e:",
            f"    undo_random({self.generator}); return {self.fallback()}",
            f"  except BaseException: undo_random({self.generator}); raise",
        ]

    def build(self, lines: list[str]) -> FunctionType:
        """Return the kernel that has these lines, below its lock."""
        body = "\n".join(f"    {line}" for line in lines)
        source = f"def kernel({', '.join(self.params)}):\n{_ENTER}{body}\n{_LEAVE}"
        return _code_of(source, str(self.func), self.scope)


_UNCOMPILED = """\
def kernel(*args, **kwargs):
  return compiled()(*args, **kwargs)
"""


def _code_of(source: str, name: str, scope: dict[str, Any]) -> FunctionType:
    """Return the kernel that a source defines; tracers pass over its frames."""
    code = compile(source, f"{guard.KERNEL}{name}>", "exec")
    exec(code, scope)  # noqa: S102 - our own source, from torch's schemas
    kernel: FunctionType = scope["kernel"]
    never_trace(kernel.__code__)
    return kernel


_uncompiled = _code_of(_UNCOMPILED, "uncompiled", {}).__code__


def when_called(
    make: Callable[[torch._ops.OpOverload], FunctionType],
) -> Callable[[torch._ops.OpOverload | str], Kernel]:
    """Let kernels be made when they are first called.

    Of two thousand ops a program calls some dozens, and making the kernels of all would be a third
    of the time that importing lazyrt takes.
    """

    def begin(func: torch._ops.OpOverload | str) -> Kernel:
        scope: dict[str, Any] = {}
        kernel = FunctionType(_uncompiled, scope, "kernel")

        def compiled() -> Kernel:
            found = find_overload(func) if isinstance(func, str) else func
            assert found is not None
            # Nobody replaces names meanwhile, and Ctrl-C leaves no half of what is known of an op.
            with _LOCK, deferred_interrupt():
                made = make(found)
                if made.__closure__ is not None:  # written by hand
                    scope["compiled"] = lambda: made
                    return made
                scope.update(made.__globals__)
                scopes.append(scope)
                if "look_up" in scope:
                    scope["op"].scopes.append(scope)
            # Defaults first: another thread may call it meanwhile.
            kernel.__defaults__ = made.__defaults__
            kernel.__kwdefaults__ = made.__kwdefaults__
            kernel.__code__ = made.__code__
            return kernel

        scope["compiled"] = compiled
        return kernel

    return begin


def _read(value: str, name: str, state: str) -> list[str]:
    """Lines that give `value` the value of the tensor `name`, and `state` its state."""
    return [
        "try:",
        f"  {state} = {name}.untyped_storage()._lazyrt; {value} = {state}.value",
        f"  if {value} is None: {value} = leaf_of({state})",
        f"except AttributeError: {value} = component({name})",
    ]


# `with lock:` in half its time. Ctrl-C comes after a call has returned, or while it waits for another
# thread's op: `unwind` gives back a lock that was taken, and only that.
_ENTER = """\
  try: acquire()
  except BaseException: unwind(); raise
  try:
"""
_LEAVE = "  finally: release()\n"
# Once tensors hold the results: a barrier ends the step whose inputs their values read.
_NOTE = [
    "if listeners:",
    "  ended = now()",
    "  if ended - clock[0] > clock[1]: note(r, ended)",
    "  clock[0] = ended",
]
_AFTER = [
    *_NOTE,
    "if len(buffers) + pending.writes > config.max_pending_nodes > 0: over_limit()",
]


@when_called
def functional_kernel(func: torch._ops.OpOverload) -> FunctionType:
    """Return the kernel of an op that makes new tensors."""
    source = Source(func, operation(func), in_place=False)
    lines = source.look_up()
    returns = func._schema.returns
    if len(returns) == 1 and str(returns[0].type) == "Tensor":
        lines += [
            "b = new(Buffer); b.value = r; b.data = b.meta = None; b.version = 0",
            "buffers[b] = None",
            *(["if steps: begin_as_input(b)"] if optimizer_state.is_fill(func) else []),
            *_AFTER,
            "t = create(r.shape, r.dtype); t.untyped_storage()._lazyrt = b",
            "return t if r.strides is None else restrided(t, r.shape, r.strides)",
        ]
    else:
        lines += ["made = emit(r)", *_AFTER, "return made"]
    return source.build(lines)


@when_called
def view_kernel(func: torch._ops.OpOverload) -> FunctionType:
    """Return the kernel of an op whose result aliases its first argument."""
    op = operation(func)
    source = Source(func, op, in_place=False)
    by_bits = func is aten.view.dtype
    rest = "".join(f"{part}, " for part in source.parts[1:])
    source.scope.update(
        track=track_offset,
        wrap_view=wrap_view,
        Plain=_VIEW,
        inferring=torch.is_inference_mode_enabled,
        check_start=check_start,
    )
    return source.build(
        [
            "s = a0.untyped_storage()._lazyrt; v = s.value",
            *(["if s.offset: check_start(a0, a1)"] if by_bits else []),
            "if v is None: v = leaf_of(s)",
            f"a = ({rest})",
            "key = (v, *a)",
            "r = look_up(key)",
            "if r is None: r = miss(op, key)",
            "if listeners and clock[1] < 0: note(r, now())",
            "w = new(View); w.parent = s; w.op = op; w.args = a; w._value = r; w.offset = 0",
            "w.base = base = s if s.__class__ is Buffer else s.base",
            "w._version = base.version",
            "if w.__class__ is not Plain: w.begin()",
            "if True:" if op.name in SHIFTS else "if s.offset:",
            "  track(w, key)",
            "  if w.offset: return wrap_view(w, r, a0)",
            "if inferring() and not a0.is_inference(): return wrap_view(w, r, a0)",
            "t = create(r.shape, r.dtype)",
            "t.untyped_storage()._lazyrt = w",
            "return t if r.strides is None else restrided(t, r.shape, r.strides)",
        ]
    )


def in_place_kernel(
    func: torch._ops.OpOverload, pure: torch._ops.OpOverload
) -> FunctionType:
    """Return the kernel of `foo_(self, ...)`: the buffer's value becomes foo of itself."""
    mutated = [
        position for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]  # fmt: skip
    kinds = [str(func._schema.arguments[position].type) for position in mutated]
    source = Source(func, operation(pure), in_place=True)
    if "List[Tensor]" in kinds:
        source.go_in_order(mutated)
    result = "None"
    if mutated == [0] and kinds == ["Tensor"]:
        result = "a0"
        written = [
            "if r.strides != v0.strides or r.shape != v0.shape or r.dtype is not v0.dtype:",
            "  r = fit(r, v0)",
            f"s0.{'fill' if str(func) in _FILLS else 'write'}(r)",
        ]
    elif mutated == [0] and kinds == ["List[Tensor]"]:
        # A foreach op: all new values come from the old ones.
        source.scope.update(write_all=_write_all, count_write=increment_version)
        written = ["write_all(s0, v0, r)", "count_write(a0)"]
    else:
        # Several mutated arguments: their new values are the last results of the pure op.
        result = "made"
        source.scope["write_results"] = _write_results
        targets = ", ".join(source.names[position] for position in mutated)
        written = [f"made = write_results(r, [{targets}], {len(func._schema.returns)})"]
    return source.build(
        [*source.look_up(called=True), *written, *_AFTER, f"return {result}"]
    )


def _shares(written: list[list[State]], read: list[list[State]]) -> bool:
    """Return whether writing the tensors of one position may change an operand of another one.

    Each call asks: equal values, by which ops are looked up, do not tell what shares a storage. What
    has no position, because all of them read it, is a list of one.
    """
    bases = [[s if s.__class__ is Buffer else s.base for s in part] for part in written]
    owned = set().union(*bases)
    if len(owned) == sum(map(len, bases)) and all(
        owned.isdisjoint([s if s.__class__ is Buffer else s.base for s in part])
        for part in read
    ):
        return False
    length = len(written[0])
    places: dict[Buffer, list[tuple[int, int, int]]] = {}
    for part in (*written, *read):
        is_for_all = len(part) < length
        for position, state in enumerate(part):
            if state.base in owned and 0 not in state.type[0]:
                place = (*_extent(state), -1 if is_for_all else position)
                places.setdefault(state.base, []).append(place)
    return any(map(_overlap, places.values()))


def _extent(state: State) -> tuple[int, int]:
    """Return between which bytes of its base's storage the elements of a state lie."""
    shape, dtype, strides = state.type
    strides = strides or contiguous_strides(shape)
    reach = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    start = state.offset * dtype.itemsize
    return start, start + (reach + 1) * dtype.itemsize


def _overlap(places: list[tuple[int, int, int]]) -> bool:
    """Return whether places (start, end, position) of two positions overlap."""
    reach, owner = 0, None
    for start, end, position in sorted(places):
        if start < reach and position != owner:
            return True
        if end > reach:
            reach, owner = end, position
    return False


def _one_by_one(func: torch._ops.OpOverload, args: list[Any]) -> None:
    """Call an op of lists once for each position, in order, as the CPU does."""
    for position in range(len(args[0])):
        single = [
            arg[position : position + 1] if _has_parts(arg, len(args[0])) else arg
            for arg in args
        ]
        positional, keywords = call_arguments(func, single)
        func(*positional, **keywords)


def _has_parts(arg: Any, count: int) -> bool:
    """Return whether an argument has one part for each position; optional lists have none."""
    is_row = isinstance(arg, torch.Tensor) and arg.dim() == 1 and len(arg) == count
    return is_row or isinstance(arg, (list, tuple))


def _write_results(result: Any, targets: list[Any], plain: int) -> Any:
    parts = result if result.__class__ is tuple else (result,)
    new = parts[len(parts) - len(targets) :]
    for target, value in zip(targets, new, strict=True):
        if target.__class__ in (list, tuple):
            states = states_in(target)
            _write_all(states, values_of(states), value)
        elif target is not None and value is not None:
            write(target, value)
    fresh = parts[: len(parts) - len(targets)]
    if plain == 0:
        return None
    results = [emit(part) for part in fresh] or targets
    return results[0] if plain == 1 else tuple(results[:plain])


def _write_all(states: list[State], olds: Any, values: Any) -> None:
    """Give each state a new value, of the type of its old one."""
    buffers = pending.buffers
    for state, old, value in zip(states, olds, values, strict=True):
        if (
            value.strides != old.strides
            or value.shape != old.shape
            or value.dtype is not old.dtype
        ):
            value = _fit(value, old)  # noqa: PLW2901
        if state.__class__ is Buffer:  # what `write` does, for every parameter
            buffers[state] = None
            pending.writes += 1
            state.version += 1
            state.value = value
        else:
            state.write(value)


def write(tensor: torch.Tensor, value: Value) -> None:
    """Give a lazy tensor a new value, cast and expanded to its type."""
    state = state_of(tensor)
    shape, dtype, strides = state.type
    state.write(fit(value, shape, dtype, strides))


def _fit(value: Value, old: Value) -> Value:
    """Return what an in-place op has computed, restrided to the type of what it overwrites."""
    # The recorded op may be an equal one that was not in place, and had nothing to refuse.
    check_overwrite(value.dtype, value.shape, old.dtype, old.shape)
    return fit(value, old.shape, old.dtype, old.strides)


def fit(
    value: Value,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    strides: tuple[int, ...] | None,
) -> Value:
    """Return a value cast, expanded and restrided to the type of the storage it goes to."""
    if value.dtype is not dtype:
        value = cast(value, dtype)
    if value.shape != shape:
        value = functional(operation(aten.expand.default), (value, shape))
    if value.strides != strides:
        wanted = strides if strides is not None else contiguous_strides(shape)
        value = functional(operation(indexing.restride), (value, wanted))
    return value


def cast(value: Value, dtype: torch.dtype) -> Value:
    """Record a conversion to another dtype."""
    result: Value = functional(operation(aten._to_copy.default), (value, dtype))
    return result


def find_pure(func: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the functional overload that an in-place or out= overload stands for."""
    special = _PURE.get(str(func))
    if special is not None:
        return special
    wanted = [str(a.type) for a in func._schema.arguments if not a.is_out]
    packet = getattr(aten, pure_name(func._schema.name.removeprefix("aten::")), None)
    if packet is None:
        return None
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        if candidate._schema.is_mutable:
            continue
        if [str(a.type) for a in candidate._schema.arguments] == wanted:
            return candidate  # type: ignore[no-any-return]
    return None


def pure_name(name: str) -> str:
    """Return `add` for `add` and `add_`."""
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


# In-place forms whose functional ones torch names in another way.
_PURE: dict[str, torch._ops.OpOverload | None] = {
    **{
        f"aten.__i{way}shift__.{kind}": getattr(getattr(aten, f"__{way}shift__"), kind)
        for way in "lr"
        for kind in ("Scalar", "Tensor")
    },
    "aten.normal_.default": find_overload("normal_functional"),
    "aten._native_batch_norm_legit.default": aten._native_batch_norm_legit_functional.default,
    "aten._batch_norm_with_update.default": aten._batch_norm_with_update_functional.default,
    "aten.rrelu_with_noise.default": aten.rrelu_with_noise_functional.default,
    "aten.rrelu_with_noise_.default": aten.rrelu_with_noise_functional.default,
}
