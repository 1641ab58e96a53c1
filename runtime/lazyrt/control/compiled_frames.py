"""What `torch.compile` did: functions it compiled, guards that failed, graph breaks, in plain words.

TorchDynamo hands its figures out at the end of each compile. Nothing here runs in a call that
neither compiles nor breaks.
"""

from __future__ import annotations

import ast
import enum
import functools
import re
import threading
import types
from collections import OrderedDict
from typing import TYPE_CHECKING, TypeVar

import torch

from lazygraph.explain.model import GuardNote
from lazyrt.execution import cache_miss
from lazyrt.frontend import provenance
from lazyrt.frontend.callsite import reads_of, value_of
from lazyrt.frontend.torch_compat import (
    DEVICE_TYPE,
    BreakReason,
    CompileFigures,
    CompilingFrame,
    compiling_frame,
    graph_breaks,
    on_dynamo_compile,
)
from lazyrt.observe import events
from lazyrt.observe.events import CodeBreak, FailedGuard, FrameCompiled, SourceLocation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


_Result = TypeVar("_Result")
_MAX_FRAMES = 1_024
_MAX_VALUE = 40
_US = 1_000
_REST = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")


class _Now(threading.local):
    """Whether the backend was given a graph in the compile that this thread is in."""

    has_graph = False


_now = _Now()
# TorchDynamo's latest graph break; it compiles on one thread at a time.
_latest: BreakReason | None = None
# Compiles by their numbers, for the backward that is compiled later.
_forwards: OrderedDict[str, FrameCompiled] = OrderedDict()
# Breaks with nothing recorded before them; the graph behind one tells when it was reached.
_bare: dict[tuple[str, int], list[CodeBreak]] = {}


def install() -> None:
    """Emit an event for each function that `torch.compile` compiles from now on."""
    on_dynamo_compile(_report)


def telling_breaks(
    graph: torch.fx.GraphModule, call: Callable[..., _Result]
) -> Callable[..., _Result]:
    """Return a captured graph's call, which tells of the graph breaks around the graph.

    Where there is none it is the call that was given. A break belongs to the graph before it; one
    that nothing was recorded before belongs to the graph behind it.
    """
    _now.has_graph = True
    frame = compiling_frame()
    reached = _reached_before(frame) if frame is not None else []
    ended: BreakReason | None = getattr(graph, "compile_subgraph_reason", None)
    if ended is not None and ended.graph_break:
        reached.append(_break(ended))
    if not reached:
        return call

    @functools.wraps(call)
    def broken(*args: object) -> _Result:
        if events.active():
            for each in reached:
                event = events.GraphBreakReached(reason=each.reason, site=each.site)
                events.emit(event)
        return call(*args)

    return broken


def _reached_before(frame: CompilingFrame) -> list[CodeBreak]:
    """Return the breaks that a function's rest comes behind, with nothing recorded since."""
    rest = _REST.fullmatch(frame.code.co_name)
    place = (frame.code.co_filename, int(rest[2])) if rest is not None else ("", 0)
    return [*_bare.get(place, ())]


def _report(figures: CompileFigures) -> None:
    """Emit what one compile came to."""
    has_graph, _now.has_graph = _now.has_graph, False
    breaks = _new_breaks()
    if figures.is_forward is False:
        _report_backward(figures)
        return
    if figures.graph_op_count and not has_graph:
        return  # a graph that another backend was given
    frame = compiling_frame()
    if frame is None:
        return
    function, definition, is_rest = _described(frame)
    ended = _break(breaks[0]) if breaks else None
    if ended is not None and ended.site is not None:
        place = ended.site.file, ended.site.line
        _bare.pop(place, None)
        if not has_graph:
            _bare[place] = [*_reached_before(frame), ended]
    aot_us = figures.aot_autograd_cumulative_compile_time_us or 0
    reason = figures.recompile_reason
    event = FrameCompiled(
        function=function,
        definition=definition,
        site=provenance.user_site(),
        guard=None if reason is None else failed_guard(reason, frame),
        graph_break=ended,
        failed=_failure(figures, frame),
        is_rest=is_rest,
        ops=figures.graph_op_count or 0,
        dynamo_ns=_US * ((figures.dynamo_cumulative_compile_time_us or 0) - aot_us),
        aot_ns=_US * aot_us,
        guards_ns=int(_US * (figures.guard_latency_us or 0)),
    )
    if figures.compile_id is not None:
        _forwards[figures.compile_id] = event
        if len(_forwards) > _MAX_FRAMES:
            _forwards.popitem(last=False)
    _tell(event, event)


def _report_backward(figures: CompileFigures) -> None:
    forward = _forwards.get(figures.compile_id or "")
    if forward is None:
        return  # of another backend
    event = FrameCompiled(
        function=forward.function,
        definition=forward.definition,
        site=provenance.user_site(),
        backward=True,
        aot_ns=_US * (figures.backward_cumulative_compile_time_us or 0),
    )
    _tell(event, forward)


def _tell(event: FrameCompiled, forward: FrameCompiled) -> None:
    """Emit an event, and note the guard that failed: a backward is new because its forward is."""
    if forward.guard is not None:
        cache_miss.note_guard(
            GuardNote(
                forward.function, forward.guard.text, forward.definition, forward.site
            )
        )
    if events.active():
        events.emit(event)


def _new_breaks() -> list[BreakReason]:
    """Return the graph breaks that TorchDynamo has told of since the compile before."""
    global _latest
    found: list[BreakReason] = []
    for each in reversed(graph_breaks()):  # a reset empties them
        if each is _latest:
            break
        found.append(each)
    if found:
        _latest = found[0]
    return found


def _described(frame: CompilingFrame) -> tuple[str, SourceLocation | None, bool]:
    """Return a function's name and first line, and whether it is the rest after a break."""
    code = frame.code
    rest = _REST.fullmatch(code.co_name)
    if rest is not None:
        line = int(rest[2])
        return rest[1], provenance.site_in(code.co_filename, line, rest[1]), True
    module = frame.locals.get("fn") if code.co_name == "inner" else None
    if isinstance(module, torch.nn.Module) and provenance.is_library(code):
        return type(module).__qualname__, None, False
    site = provenance.site_at(code, code.co_firstlineno)
    return code.co_qualname.rpartition("<locals>.")[2], site, False


# ----------------------------------------------------------------------- graph breaks

# Addresses, which differ in each run, and what says nothing to whom the program belongs.
_NOISE = re.compile(r" at 0x[0-9a-f]+| with argument types .*| \(reason: None\)")
_EXPLANATION = re.compile(r"^\s*Explanation: (.+)$", re.MULTILINE)
_NOT_TRACED = re.compile(
    r"Dynamo developers have intentionally marked that the (?P<function>function `.+?`)"
    r"(?: in file `(?P<file>.+?)`)? should not be traced"
)


def _break(ended: BreakReason) -> CodeBreak:
    stack = [(each.filename, each.lineno or 0, each.name) for each in ended.user_stack]
    return CodeBreak(reason=_reason(ended.reason), site=_innermost(stack))


def _failure(figures: CompileFigures, frame: CompilingFrame) -> CodeBreak | None:
    """Return why TorchDynamo gave a function up; None if it did not."""
    if figures.fail_reason is None:
        return None
    file, line = figures.fail_user_frame_filename, figures.fail_user_frame_lineno
    site = None
    if file is not None and line is not None:
        site = provenance.site_in(file, line, frame.code.co_name)
    return CodeBreak(reason=_reason(figures.fail_reason), site=site)


def _reason(text: str) -> str:
    """Return torch's reason in a sentence."""
    if text.startswith("generic_jump"):
        return "a branch depends on a tensor's value"
    explained = _EXPLANATION.search(text)
    first = explained[1] if explained is not None else text.strip().split("\n", 1)[0]
    not_traced = _NOT_TRACED.match(first)
    if not_traced is not None:
        of = " of lazyrt" if provenance.is_own_file(not_traced["file"] or "") else ""
        return f"TorchDynamo does not trace the {not_traced['function']}{of}"
    return _NOISE.sub("", first).split(". ")[0].rstrip(".")


def _innermost(stack: Iterable[tuple[str, int, str]]) -> SourceLocation | None:
    """Return the innermost line of the user's, else that of a library."""
    found = [provenance.site_in(*each) for each in stack]
    own = [each for each in found if not provenance.is_library_file(each.file)]
    return next(reversed(own or found), None)


# ------------------------------------------------------------------- guards that failed

_OF_TENSOR = re.compile(
    r"tensor '(?P<name>.+?)' (?P<what>.+?) mismatch(?: at index (?P<axis>\d+))?\. "
    r"expected (?P<was>.+?)(?:, actual (?P<now>.+))?"
)
_READ_AS = {
    "size": "{name}.shape[{axis}]",
    "stride": "{name}.stride({axis})",
    "rank": "{name}.dim()",
    "dtype": "{name}.dtype",
    "requires_grad": "{name}.requires_grad",
}
_TYPE = re.compile(
    r"___check_type_id\((?P<name>.+), \d+\), type=<class '(?P<was>.+?)'>"
)
_OBJECT = re.compile(
    r"___check_obj_id\((?P<name>.+), \d+\), type=<class '(?P<was>.+?)'>"
)
_NO_TENSOR = re.compile(
    r"expected type of '(?P<name>.+)' to be a tensor type, ' but found <class '(?P<now>.+)'>"
)
_STATES: dict[str, Callable[..., object]] = {
    "grad_mode": torch.is_grad_enabled,
    "default_dtype": torch.get_default_dtype,
    "num_threads": torch.get_num_threads,
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "autocast_enabled": torch.is_autocast_enabled,
    "autocast_dtype": torch.get_autocast_dtype,
}
_OF_DEVICE = re.compile(r"\((\w+)\)")
# What torch adds: the line that reads the value, which is in the stack, too, and advice.
_ADDED = re.compile(r"  # |\(HINT: |\. Guard failed on a parameter, ")
# Of a dict torch gives the reason, not the guard; an empty container is wanted in another form.
_LENGTH_DIFFERS = re.compile(r"len\((.+)\) != (\d+)")
_NOT_EMPTY = re.compile(r"not ([^()]+)")
_SIZE = re.compile(r"\.size\(\)(?=\[)")
_KEPT_IN = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")
_GLOBAL = re.compile(r"\bG\['(\w+)'\]")
_RESULT = re.compile(r"___stack\d+")
_LINE_READ = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


def failed_guard(reason: str, frame: CompilingFrame) -> FailedGuard:
    """Return what is otherwise in a call, of torch's reason to compile a function again."""
    guard, _, stack = reason.partition(": ")[2].partition("\nUser stack trace:")
    guard = _ADDED.split(guard, maxsplit=1)[0].strip()
    function, definition, _ = _described(frame)
    if definition is None:  # torch calls a module of its own `fn`
        guard = re.sub(r"\bfn\b", function, guard)
    lines = [(file, int(line), name) for file, line, name in _LINE_READ.findall(stack)]
    return FailedGuard(text=_in_words(guard, frame), site=_innermost(lines))


def _in_words(guard: str, frame: CompilingFrame) -> str:
    of_tensor = _OF_TENSOR.fullmatch(guard)
    if of_tensor is not None:
        return _of_tensor(of_tensor)
    if guard.startswith("GLOBAL_STATE changed: "):
        return _of_states(guard.partition(": ")[2].split())
    if guard.startswith("Duplicate tensors found: "):
        names = re.findall(r'"(.+?)"', guard)
        return f"{' and '.join(map(_named, names))} are one tensor, were several"
    of_type = _TYPE.match(guard)
    if of_type is not None:
        value = _value_of(ast.parse(of_type["name"], mode="eval").body, frame)
        now = type(value).__name__ if value is not None else "of another type"
        return f"{_named(of_type['name'])} is {now}, was {of_type['was']}"
    of_object = _OBJECT.match(guard)
    if of_object is not None:
        return _of_object(of_object["name"], of_object["was"], frame)
    no_tensor = _NO_TENSOR.fullmatch(guard)
    if no_tensor is not None:
        now = _last_name(no_tensor["now"])
        return f"{_named(no_tensor['name'])} is of type {now}, was a tensor of another type"
    not_empty = _NOT_EMPTY.fullmatch(guard)
    if not_empty is not None:
        guard = f"len({not_empty[1]}) == 0"
    return _of_expression(_LENGTH_DIFFERS.sub(r"len(\1) == \2", guard), frame)


def _of_tensor(found: re.Match[str]) -> str:
    what, was, now = found["what"], found["was"], found["now"]
    if what == "requires_grad":  # torch gives one of both values, as requires_grad=0
        required = was.endswith("1")
        was, now = str(required), str(not required)
    elif what == "dtype" and now is not None:
        was, now = _dtype(was), _dtype(now)
    elif what == "dispatch key set" and now is not None:
        return _of_keys(found["name"], was, now)
    name = _readable(found["name"])
    read = _READ_AS.get(what, f"{{name}} ({what})").format(
        name=name, axis=found["axis"]
    )
    return f"`{read}` is {now}, was {was}" if now else f"`{read}` was {was}, and is not"


def _dtype(name: str) -> str:
    """Return a dtype as torch prints it, of its name in C++."""
    kind = getattr(torch, f"{name}Tensor", None)
    return str(getattr(kind, "dtype", name)).removeprefix("torch.")


def _of_keys(name: str, was: str, now: str) -> str:
    before, after = _device_of(was), _device_of(now)
    if before != after:
        return f"{_named(name)} is on {after}, was on {before}"
    lost, gained = _keys(was) - _keys(now), _keys(now) - _keys(was)
    parts = [f"no dispatch key {key}, had it" for key in sorted(lost)]
    parts += [f"the dispatch key {key}, had it not" for key in sorted(gained)]
    return f"{_named(name)} has {'; '.join(parts)}"


def _keys(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.partition("(")[2]))


def _device_of(keys: str) -> str:
    """Return the device of a tensor's dispatch keys, as torch prints them."""
    if "PrivateUse1," in keys:
        return DEVICE_TYPE
    return keys.partition("(")[2].split(",")[0].lower()


def _of_states(names: list[str]) -> str:
    parts = []
    for name in names:
        read = _STATES.get(_OF_DEVICE.sub("", name))
        value = read(*_OF_DEVICE.findall(name)) if read is not None else None
        if isinstance(value, bool):
            parts.append(f"{name} is {value}, was {not value}")
        elif value is not None:
            parts.append(f"{name} is {value}, was another")
        else:
            parts.append(f"{name} is another")
    return "; ".join(parts)


def _of_object(name: str, was: str, frame: CompilingFrame) -> str:
    """Return what a name stands for, where a guard wants one certain object."""
    value = _value_of(ast.parse(name, mode="eval").body, frame)
    now, kind = _written(value), _last_name(was)
    if now is None:
        return f"{_named(name)} is another {kind}"
    # Of a class torch gives itself, of another object its class.
    before = kind if isinstance(value, type) else f"another {kind}"
    return f"{_named(name)} is {now}, was {before}"


def _of_expression(guard: str, frame: CompilingFrame) -> str:
    """Return the value of what a guard compares and the value that it wants, or all values in it."""
    guard = _SIZE.sub(".shape", guard)
    failed = f"`{_readable(guard)}` does not hold any more"
    try:
        tree = ast.parse(guard, mode="eval").body
    except SyntaxError:
        return failed
    match tree:
        case ast.Compare(
            left=left, ops=[ast.Eq() | ast.Is()], comparators=[wanted]
        ) if not any(_values(wanted, frame)):
            name, was = _named(ast.unparse(left)), _shown(ast.unparse(wanted))
            now = _written(_value_of(left, frame))
            if now is not None:
                return f"{name} is {_shown(now)}, was {was}"
            if not any(_values(left, frame)):
                return f"{name} was {was}, and is not"
    found = ", ".join(_values(tree, frame))
    return f"{failed}: {found}" if found else failed


def _values(tree: ast.expr, frame: CompilingFrame) -> Iterator[str]:
    """Yield the values of what an expression reads, where they can be told."""
    for read in reads_of(tree):
        value = _value_of(read, frame)
        written = None if callable(value) else _written(value)
        if written is not None:
            yield f"{_named(ast.unparse(read))} is {_shown(written)}"


def _value_of(tree: ast.expr, frame: CompilingFrame) -> object:
    """Return what a guard reads in this call, without running anybody's code; None if unclear."""
    scope: Mapping[str, object] = {**frame.locals, "G": frame.globals}
    if "fn" in scope:
        scope = {type(scope["fn"]).__qualname__: scope["fn"], **scope}
    match tree:
        case ast.Call(func=ast.Name(id="len"), args=[of]):
            owner = value_of(of, scope)
            count = getattr(type(owner), "__len__", None)
            return (
                count(owner) if isinstance(count, types.WrapperDescriptorType) else None
            )
        case ast.Subscript(
            value=ast.Attribute(value=of, attr="shape"), slice=ast.Constant(value=axis)
        ):
            owner = value_of(of, scope)
            is_plain = type(owner) in {torch.Tensor, torch.nn.Parameter}
            return owner.shape[axis] if is_plain else None
    return value_of(tree, scope)


def _written(value: object) -> str | None:
    """Return a value as a program would write it, without running anybody's code; else None."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{vars(value)['_name_']}"
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return value.__name__
    return repr(value) if type(value) in _PLAIN else None


_PLAIN = {bool, int, float, complex, str, torch.dtype, torch.device, torch.layout}


def _last_name(qualified: str) -> str:
    return qualified.rpartition(".")[2]


def _readable(expression: str) -> str:
    """Return a guard's expression as a program would write it."""
    text = _GLOBAL.sub(r"\1", expression)
    return _KEPT_IN.sub(r".\1", text)


def _named(expression: str) -> str:
    if _RESULT.fullmatch(expression):
        return "the value at the graph break"
    return f"`{_readable(expression)}`"


def _shown(text: str) -> str:
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"
