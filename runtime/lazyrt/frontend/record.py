"""Recording: an op on values becomes an interned node.

`functional` is the whole story: equal ops on equal operands are found in the op's table, and
only what was never seen is inferred, checked and given a provenance.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.errors import NoLoweringError, UsageError
from lazyrt.execution import cache
from lazyrt.execution.process import deferred_interrupt
from lazyrt.frontend import infer, provenance, scalars
from lazyrt.frontend.infer import RESULT_TYPES, Result
from lazyrt.frontend.provenance import capture
from lazyrt.frontend.torch_compat import DynamicOutputShapeException
from lazyrt.frontend.value_checks import base_name, must_stay
from lazyrt.ir import live
from lazyrt.ir.fingerprint import is_alike, note_emptied, set_twin
from lazyrt.ir.live import forget_leaves, forget_places, lock, pending
from lazyrt.ir.node import (
    Args,
    Node,
    Op,
    RecordedNode,
    Table,
    Tables,
    Value,
    carried,
    iter_values,
    map_values,
    present,
)
from lazyrt.lowering import registry
from lazyrt.lowering.spec import SpecFailure, spec_of
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lazyrt.ir.node import Provenance
    from lazyrt.lowering.spec import Spec


class FallbackNeeded(NoLoweringError):  # noqa: N818 - a signal to the kernel that asked
    """The op cannot be lowered for these operands; carries the reason."""


_operations: dict[torch._ops.OpOverload, Op] = {}
_liftable: dict[Op, tuple[int, ...]] = {}
# Where an op takes numbers, whether or not they may become inputs.
_numbered: dict[Op, tuple[int, ...]] = {}
# Ops that take a part of a tensor, by a position that may become an input.
_moving: set[Op] = set()
# Ops whose key is what is recorded: they take no number or position that may become an input.
_plain: set[Op] = set()
_composed: list[Tables] = []
_forced: set[Op] = set()
_node_count = 0
_interned = 0
_known_count = 0
_default_dtype = torch.get_default_dtype()

# Ops in which a Python number only enters the arithmetic. Elsewhere it may decide a shape or
# which formula is used, so it stays a constant.
_ARITHMETIC = frozenset(
    ("add", "sub", "rsub", "mul", "div", "true_divide", "lerp", "addcmul", "addcdiv", "fill",
     "eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod", "masked_fill", "where", "full",
     "full_like", "scalar_tensor", "clamp", "clamp_min", "clamp_max", "addmm", "addmv", "addbmm",
     "baddbmm", "addr", "maximum", "minimum", "floor_divide", "pow")
)  # fmt: skip
# Optimizers whose learning rate, a plain float, schedulers change; other options pick formulas.
_FUSED = frozenset(("fused_adam", "fused_adamw", "fused_sgd", "fused_adagrad"))


def operation(func: torch._ops.OpOverload) -> Op:
    """Return the op of a functional overload, with its table of nodes."""
    op = _operations.get(func)
    if op is None:
        op = _operations[func] = Op(func)
        _liftable[op] = _liftable_positions(func)
        _numbered[op] = _positions(func, _liftable[op])
        if scalars.has_position(func):
            _moving.add(op)
        elif not _numbered[op]:
            _plain.add(op)
    return op


def functional(op: Op, args: Args, walk: provenance.Walk | None = None) -> Any:
    """Record `op` on `args`: one entry for each schema argument.

    The `walk` is given to all ops that one call records, so that they look for their line once. An
    op that cannot be lowered for these operands raises FallbackNeeded.
    """
    args = complete(op, args)
    found = op.cache.get(args)
    return found if found is not None else miss(op, args, None, walk)


def complete(op: Op, args: Args) -> Args:
    """Append the defaults of the schema arguments that `args` leaves out."""
    given = len(args) - op.is_random
    missing = op.schema.arguments[given:]
    return (
        (*args, *(default_component(argument) for argument in missing))
        if missing
        else args
    )


def default_component(argument: Any) -> Any:
    """Return the key component of a schema argument's default."""
    default = argument.default_value if argument.has_default_value() else None
    kind = str(argument.type)
    if "number" in kind and not isinstance(default, (list, tuple)):
        return scalars.scalar_key(default)
    return tuple(default) if isinstance(default, list) else default


def miss(
    op: Op,
    args: Args,
    called: torch._ops.OpOverload | None = None,
    walk: provenance.Walk | None = None,
) -> Any:
    """Record what `functional` did not find.

    `called` is the overload that the user called, where it is the in-place or out= form.
    """
    cache = op.cache
    if op not in _plain:
        if op in _forced:
            raise FallbackNeeded("lazyrt.fallback() asked for it")
        numbers, positions = _numbers(args, _numbered[op]), _liftable[op]
        if numbers and not must_stay(op.func, args, numbers) and positions:
            args = _lift(op, args, positions)
            found = cache.get(args)
            if found is not None:
                return found
        if op in _moving:
            dynamic = scalars.lift_positions(op, args, 3)
            if dynamic is not None:
                func, new_args = dynamic
                return functional(operation(func), new_args, walk)
    if called is not None and op.name in RESULT_TYPES:
        called = None
    known = op.known.get(args if called is None else (called, args))
    if known is None:
        found = _record_new(op, args, called, walk)
    else:
        if called is not None:
            _check_inputs(called, args)
        found = record_again(known, walk)
    cache[args] = found
    scalars.note_rehearsed(cache, args)
    return found


def _check_inputs(called: torch._ops.OpOverload, args: Args) -> None:
    """Refuse the numbers that the CPU refuses; nothing else of a call differs from the first one."""
    if infer.has_large_inputs(args):
        with deferred_interrupt():
            try:
                infer.check_inputs(called, args)
            except RuntimeError as error:
                raise error.with_traceback(None)  # noqa: B904 - the steps of the search tell nothing


def record_again(known: Any, walk: provenance.Walk | None) -> Any:
    """Record an op that is known, at a call site that has not recorded it: only its line is new."""
    is_one = known.__class__ is Value
    node: Any = known.node if is_one else next(iter_values(known)).node
    if node.spec.failure:
        raise FallbackNeeded(node.spec.failure)
    if carried and node.id in carried:
        # The pending one keeps its line, so this one is another node until they are merged.
        made = _twin_of(node, node.args, _take_number(), capture(node.args, 4, walk))
        pending.may_repeat = True
        return map_values(known, lambda value: made.outputs[value.index])
    if node.id not in present.origins:
        _note_origin(node.id, capture(node.args, 4, walk))
    return known


def record_together(values: Iterable[Value]) -> None:
    """Record known ops of one call, as `record_again` does each of them; none that is taken back."""
    global _interned
    walk, origins = provenance.Walk(), present.origins
    before, origin = len(origins), None
    for value in values:
        node: Any = value.node
        if node.spec.failure:
            raise FallbackNeeded(node.spec.failure)
        if node.id not in origins:
            origins[node.id] = origin or capture(node.args, 5, walk)
            origin = walk.origin
    _interned += len(origins) - before


def _note_origin(number: int, origin: Provenance) -> None:
    """Note where the pending step's call site has recorded a node."""
    global _interned
    present.origins[number] = origin
    if not scalars.note_rehearsed(present.origins, number):
        _interned += 1


def _take_number() -> int:
    global _node_count
    # Taken first: a finaliser may record an op of its own meanwhile.
    _node_count += 1
    return _node_count - 1


def _record_new(
    op: Op,
    args: Args,
    called: torch._ops.OpOverload | None,
    walk: provenance.Walk | None,
) -> Any:
    """Record an op that no call site has recorded."""
    global _known_count
    # Ctrl-C in the middle would leave torch without gradients, or jax within a trace.
    with deferred_interrupt():
        try:
            result = _infer(op, args[1:] if op.is_random else args, called)
        except (RuntimeError, IndexError) as error:
            raise error.with_traceback(None)  # noqa: B904 - the steps of the search tell nothing
        known = op.known.get(plain := _without_dtype(op, args, result))
        if known is not None:  # the call's own checks have passed
            op.known[args if called is None else (called, args)] = known
            return record_again(known, walk)
        node = _make_node(op, plain, result, walk)
    found = _structured(node, result)
    if not scalars.rehearses() and next(iter_values((found,)), None) is not None:
        op.known[args] = op.known[plain] = found
        if called is not None:
            op.known[called, args] = found
        _known_count += 1
    return found


def _without_dtype(op: Op, args: Args, result: Any) -> Args:
    """Return arguments without a dtype that the op gives anyway: both calls are one program."""
    for place, argument in enumerate(op.schema.arguments, op.is_random):
        if argument.name == "dtype" and args[place] and not default_component(argument):
            plain = (*args[:place], None, *args[place + 1 :])
            with suppress(RuntimeError, IndexError):  # where it has to be given
                if _infer(op, plain[op.is_random :], None) == result:
                    return plain
    return args


def _infer(op: Op, args: Args, called: torch._ops.OpOverload | None) -> Any:
    try:
        if called is not None:
            infer.infer(op, args, called)
        return infer.infer(op, args)
    except (NotImplementedError, DynamicOutputShapeException) as error:
        reason = f"torch knows no result type for {op.name}: {error}"
        raise FallbackNeeded(_data_decides(op) or reason) from error
    except AssertionError as error:
        raise RuntimeError(f"{op.name}: {error}") from error  # as kernels on devices do
    except RuntimeError as error:
        by_data = _data_decides(op)
        if by_data is not None:
            raise FallbackNeeded(by_data) from error
        if str(error).startswith("tensors used as indices must be"):
            raise IndexError(str(error)) from error
        raise


def _data_decides(op: Op) -> str | None:
    """Return why an op cannot be recorded whose result's shape no type tells, else None."""
    if torch.Tag.dynamic_output_shape not in op.func.tags:
        return None
    return f"{op.name} has a result whose shape depends on the data"


def _make_node(op: Op, args: Args, result: Any, walk: provenance.Walk | None) -> Node:
    number = _take_number()
    node = RecordedNode(number, op, args, capture(args, 4, walk))
    outputs: list[Value | None] = []
    _collect(node, result, outputs)
    node.outputs = tuple(outputs)
    node.spec = spec_of(node)
    _check(node.spec)
    _note_origin(number, node.origin)
    return node


def _check(spec: Spec) -> None:
    """Have a spec checked abstractly, unless another process wrote down that it passed.

    Rules of the user's are rules of this process: with any of them, each op is checked here.
    """
    if spec.failure is not None and not spec.failure:
        return
    question = None
    if not registry.has_given():
        question = cache.Question(
            spec.name, "rule", spec.template, spec.operands, spec.outs, spec.default_dtype
        )  # fmt: skip
        if question.answer() == 1:
            spec.pass_unchecked()
            return
    try:
        spec.check()
    except SpecFailure as failure:
        raise FallbackNeeded(str(failure)) from failure
    if question is not None:
        question.learn(1)


def twin(node: Node, args: Args, *, intern: bool) -> Node:
    """Return the node of the same op, recorded at the same place, on other operands.

    With `intern`, equal ops recorded later are this node; else it is one to look at.
    """
    global _interned
    cache = node.op.cache
    found = _interned_as(cache, args)
    if found is not None and is_alike(found, node):
        return found
    number = _take_number() if intern else node.id
    made = _twin_of(node, args, number, node.provenance)
    made.spec = spec_of(made)
    if not intern:
        return made
    known = _interned_as(cache, node.args)
    if known is not None and found is None and is_alike(known, node):
        cache[args] = map_values(cache[node.args], lambda old: made.outputs[old.index])
        _interned += 1
    return made


def _twin_of(node: Node, args: Args, number: int, origin: Provenance) -> Node:
    """Return a node of the same op, on operands of the same types."""
    made = RecordedNode(number, node.op, args, origin)
    made.outputs = tuple(
        Value(made, old.index, old.shape, old.dtype, old.strides)
        if old is not None
        else None
        for old in node.outputs
    )
    made.spec = node.spec
    return made


def _interned_as(cache: Table, args: Args) -> Node | None:
    found = next(iter_values((cache.get(args),)), None)
    return None if found is None else found.node


def _collect(node: Node, result: Any, outputs: list[Value | None]) -> None:
    if isinstance(result, Result):
        value = Value(node, len(outputs), result.shape, result.dtype, result.strides)
        outputs.append(value)
    elif result is None:
        outputs.append(None)
    else:
        for part in result:
            _collect(node, part, outputs)


def _structured(node: Node, result: Any) -> Any:
    """Return the node's outputs in the structure of the op's result."""
    if isinstance(result, Result):
        return node.outputs[0]
    rest = iter(node.outputs)

    def build(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple([build(inner) for inner in part])
        return next(rest)

    return build(result)


def _liftable_positions(func: torch._ops.OpOverload) -> tuple[int, ...]:
    name = base_name(func)
    if name in _FUSED:
        names = [argument.name for argument in func._schema.arguments]
        return (names.index("lr"),) if func._overloadname == "default" else ()
    if name not in _ARITHMETIC:
        return ()
    arguments = enumerate(func._schema.arguments)
    tensors = [k for k, argument in arguments if k and str(argument.type) == "Tensor"]
    return _positions(func, tensors)


def _positions(func: torch._ops.OpOverload, others: Sequence[int]) -> tuple[int, ...]:
    """Return where an op that draws nothing takes numbers, and other positions, in order."""
    if torch.Tag.nondeterministic_seeded in func.tags:
        return ()
    arguments = enumerate(func._schema.arguments)
    numbers = {k for k, argument in arguments if "number" in str(argument.type)}
    return tuple(sorted(numbers.union(others)))


def liftable(op: Op) -> frozenset[int]:
    """Return the argument positions at which an op's Python numbers may become inputs."""
    operation(op.func)
    return frozenset(_liftable[op])


def _numbers(args: Args, positions: Sequence[int]) -> list[Any]:
    """Return the Python numbers at some positions of a key, those in lists too."""
    numbers: list[Any] = []
    for position in positions:
        arg = args[position]
        if arg.__class__ is tuple and not scalars.is_constant(arg):
            numbers += filter(scalars.is_constant, arg)
        elif scalars.is_constant(arg):
            numbers.append(arg)
    return numbers


def _lift(op: Op, args: Args, positions: tuple[int, ...]) -> Args:
    numbers = list(filter(scalars.is_number, _numbers(args, positions)))
    if not numbers:
        return args
    # By shape, too: a number that goes with a sequence length varies only as the graph does.
    shapes = tuple([value.shape for value in iter_values(args)])
    where = (op, provenance.call_site(3), shapes)
    if not scalars.should_lift(op.cache, args, tuple(numbers), where):
        return args
    lifted = list(args)
    for position in positions:
        arg = args[position]
        if scalars.is_number(arg):
            lifted[position] = scalars.lift(arg)
        elif arg.__class__ is tuple:
            lifted[position] = tuple(
                [
                    scalars.lift(part) if scalars.is_number(part) else part
                    for part in arg
                ]
            )
    return tuple(lifted)


def note_recorded(result: Any, ended_ns: int) -> None:
    """Tell listeners that an op was recorded, and of the pause before it.

    Called while somebody listens to all ops, or where there was a pause.
    """
    for hook in events.pause_hooks:
        hook(events.op_clock[0], ended_ns)
    if events.wants_ops():
        _tell_of_op(result)


def _tell_of_op(result: Any) -> None:
    first = result
    while first.__class__ is tuple:
        first = next((part for part in first if part is not None), None)
    if first is not None and first.node is not None:
        events.emit(events.OpRecorded(node_id=first.node.id, op=first.node.op.name))


def composed_tables() -> Tables:
    """Return tables for what several ops have recorded together, emptied with the ops' own."""
    tables = Tables()
    _composed.append(tables)
    return tables


def _forget_known() -> None:
    """Record equal ops from now on as if no call site had recorded any."""
    global _known_count
    for tables in (*_operations.values(), *_composed):
        tables.forget()
    note_emptied()
    _known_count = 0


def interned_nodes() -> int:
    """Return how many nodes the tables hold."""
    return _interned


def forget_nodes() -> None:
    """Empty every op's table; what is pending keeps its nodes."""
    global _interned, _default_dtype
    _default_dtype = torch.get_default_dtype()
    _forget_known()
    forget_leaves()
    scalars.forget()
    infer.forget()
    _interned = 0


def begin_run() -> None:
    """Let equal ops recorded from now on show their own lines.

    What was learned about ops, result types and varying numbers stays.
    """
    global _interned
    with lock:
        forget_places()
        scalars.forget_nodes()
        _interned = _known_count
        for forget in on_new_run:
            forget()


def _begin_with_other_rules() -> None:
    with lock:
        _forget_known()
        begin_run()


registry.on_change.append(_begin_with_other_rules)
live.find_place = provenance.place
set_twin(functools.partial(twin, intern=True))
# What else remembers nodes, and is emptied when the tables are.
on_new_run: list[Callable[[], None]] = []


def force_fallback(name: str | torch._ops.OpOverload) -> None:
    """Run an op on the CPU from now on."""
    parts = str(name).split(".")
    found = getattr(torch.ops, parts[0], None) if len(parts) == 3 else None  # noqa: PLR2004
    func = getattr(getattr(found, parts[1], None), parts[2], None) if found else None
    if not isinstance(func, torch._ops.OpOverload) or func._schema.is_mutable:
        raise UsageError(
            f"fallback({name!r}): there is no functional op of that name, so nothing would "
            "change. Names look like 'aten.gelu.default'; `pending_graph().to_text()` shows them."
        )
    with lock:
        op = operation(func)
        _forced.add(op)
        _plain.discard(op)
        for tables in (op, *_composed):
            tables.forget()


def check_default_dtype() -> None:
    """Forget nodes whose dtype followed a default that has changed."""
    if torch.get_default_dtype() is not _default_dtype:
        with lock:
            forget_nodes()


def activity() -> int:
    """Return a number that changes whenever something happens on the device; O(1)."""
    recorded = len(pending.buffers) + len(pending.parked) + pending.writes
    return pending.activity + recorded
