"""Where an op came from: the user's line, the notebook cell, the nn.Module, the forward op.

Captured once for each new node, so its 3 to 10 µs are paid only on an interning miss.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import re
import sys
import threading
import weakref
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.frontend.torch_compat import autograd_node, sequence_number
from lazyrt.ir import active, live
from lazyrt.ir.node import BackwardOf, Provenance, iter_values
from lazyrt.observe.events import SourceLocation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType


# ----------------------------------------------------------------------- generated code
# The code of a graph has a file name of its own, and each of its lines calls one op. What the
# op came from, TorchDynamo has noted with it.


GENERATED_PREFIX = "<eval_with_key>"

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')


@dataclass(frozen=True, slots=True)
class Original:
    """Where an op of generated code stands in the program.

    Attributes:
        stack: The program's frames, the innermost last; without cells' numbers.
        module: Qualified name of the module that called it, empty outside of modules.
        rank: Its number among the graph's ops of its line.
    """

    stack: tuple[SourceLocation, ...]
    module: str
    rank: int


_lines: dict[str, dict[int, Original]] = {}


def original(frame: FrameType) -> Original | None:
    """Return what the line of generated code that a frame is at stands for."""
    lines = _lines.get(frame.f_code.co_filename)
    return lines.get(frame.f_lineno) if lines is not None else None


def note_generated_lines(graph: torch.fx.GraphModule) -> None:
    """Remember the origins of a graph's lines, for as long as the graph is there."""
    _ = graph.code  # TorchDynamo's graphs generate theirs only when it is asked for
    filename = type(graph).forward.__code__.co_filename
    nodes = list(graph.graph.nodes)
    first: int = getattr(graph, "_prologue_start", 0)
    numbers: dict[int, int | None] = getattr(graph, "_lineno_map", None) or {}
    ranks: Counter[SourceLocation | None] = Counter()
    _lines[filename] = {
        first + line: _original(nodes[number], ranks)
        for line, number in numbers.items()
        if number is not None and nodes[number].op.startswith("call_")
    }
    _forget_codes()
    weakref.finalize(graph, _lines.pop, filename, None).atexit = False


def _original(node: torch.fx.Node, ranks: Counter[SourceLocation | None]) -> Original:
    stack = tuple(_sites_in(node.meta.get("stack_trace") or ""))
    line = stack[-1] if stack else None
    ranks[line] += 1
    return Original(stack, _module(node.meta), ranks[line])


def _sites_in(trace: str) -> Iterator[SourceLocation]:
    for found in _FRAME.finditer(trace):
        yield SourceLocation(found["file"], int(found["line"]), found["function"])


def _module(meta: dict[str, Any]) -> str:
    """Return the module's name below the outermost one, as ops outside of graphs have it."""
    calls = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    names = [(str(name), kind) for name, kind in calls.values()]
    if not names:
        return ""
    (root, _), (inner, kind) = names[0], names[-1]
    if inner == root:
        return str(getattr(kind, "__name__", kind)).rpartition(".")[2]
    return inner.removeprefix(root).lstrip(".")


_MAX_STACK = 16
_MAX_SEQUENCES = 100_000

_library_roots: tuple[str, ...] = (str(Path(torch.__file__).parent) + "/",)
_TORCH = str(Path(torch.__file__).parent) + "/"
_PARTS_OF_TORCH = tuple(f"{_TORCH}{part}/" for part in ("amp", "nn", "optim"))
_CHECKERS = (*_PARTS_OF_TORCH, f"{_TORCH}distributions/")
_OWN_ROOT = str(Path(__file__).parent.parent) + "/"
_LAZYGRAPH = str(Path(__file__).parents[2] / "lazygraph") + "/"
_INTERNAL = (
    "<lazyrt ", "<frozen ", "<string>", "<__array_function__", GENERATED_PREFIX, _LAZYGRAPH,
)  # fmt: skip

_cell_namer: Callable[[str], int | None] | None = None
# By names of files: code objects of two files are equal where their code is.
library_files: dict[str, bool] = {}
_sites: dict[tuple[str, int, str], SourceLocation] = {}
_MAX_PLACES = 100_000
# The path of an inner module by its id and the outermost one's, with what tells whether they still are
# those modules.
_Reference = weakref.ref[torch.nn.Module]
_paths: dict[tuple[int, int], tuple[_Reference, _Reference, str]] = {}


class _Names(weakref.WeakKeyDictionary[torch.nn.Module, str]):
    """The qualified names of a module's parts; `parts` tells other names from these."""

    def __init__(self, root: torch.nn.Module) -> None:
        super().__init__((module, name) for name, module in root.named_modules())
        self.parts = hash(tuple(self.values()))


_module_names: weakref.WeakKeyDictionary[torch.nn.Module, _Names] = (
    weakref.WeakKeyDictionary()
)


class _Forwards(threading.local):
    """The forward ops of one thread, by the sequence numbers that autograd gave them.

    Each thread counts its own. `noted` is the number under which its last op was noted.
    """

    def __init__(self) -> None:
        self.noted = -1
        self.ops: dict[int, Provenance] = {}
        _tables.append(self.ops)


_MAX_THREADS = 64
# Of all threads, as backward may run on another one than forward.
_tables: deque[dict[int, Provenance]] = deque(maxlen=_MAX_THREADS)
_forwards = _Forwards()


def set_cell_namer(namer: Callable[[str], int | None] | None) -> None:
    """Tell how to find the execution count of a notebook cell from its code's file name."""
    global _cell_namer
    _cell_namer = namer
    _sites.clear()
    _forget_codes(_Code)


def add_library(folder: str) -> None:
    """Count the code in a folder as library code: its lines are nobody's."""
    global _library_roots
    root = folder.rstrip("/") + "/"
    if root not in _library_roots:
        _library_roots = (*_library_roots, root)
        library_files.clear()
        _forget_codes()


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that called it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's code, from a frame outward."""
    users = (each for each in outward(frame) if not is_library(each.f_code))
    return next(users, None)


def user_site(depth: int = 1) -> SourceLocation | None:
    """Return where the user's code is, `depth` frames up or farther."""
    frame = user_frame(sys._getframe(depth))
    return None if frame is None else site_of(frame)


def user_lines(depth: int = 1, most: int = 8) -> tuple[SourceLocation, ...]:
    """Return the user's lines that lead here, innermost first, `depth` frames up or farther."""
    frames = outward(sys._getframe(depth))
    users = (site_of(each) for each in frames if not is_library(each.f_code))
    return tuple(itertools.islice(users, most))


def call_site(depth: int = 1) -> tuple[object, int] | None:
    """Return code and line of the innermost frame that is not lazyrt's own.

    Unlike `user_site` this may be a line of torch, such as one in an optimizer. An op of a compiled
    graph has the line that was captured, and its rank there, in whichever graph that is.
    """
    innermost = None
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        known = _codes.get(id(code)).__class__
        if known is _Package or known is _Code:  # neither torch's nor lazyrt's
            return innermost or (code, frame.f_lineno)
        found = None if known is _Plain else original(frame)
        if found is not None:
            return found.stack[-1:], found.rank
        if not is_own(code):
            innermost = innermost or (code, frame.f_lineno)
            if not code.co_filename.startswith(_TORCH):
                break
        frame = frame.f_back
    return innermost


def is_own(code: CodeType) -> bool:
    """Return whether code is lazyrt's, written or generated."""
    return code.co_filename.startswith((_OWN_ROOT, *_INTERNAL))


def calling_package(depth: int = 1) -> str:
    """Return which package the innermost caller outside torch and lazyrt belongs to.

    Parts of torch that are written in Python count as packages: distributions check the values
    of their arguments, optimizers a learning rate, modules whether a mask is causal.

    Returns:
        Such as `torch.optim` or `an installed package`; empty if the user's own code calls.
    """
    frame = _outside(sys._getframe(depth), _CHECKERS)
    if frame is None:
        return ""
    name = frame.f_code.co_filename
    if name.startswith(_CHECKERS):
        return f"torch.{name.removeprefix(_TORCH).split('/')[0]}"
    return "an installed package" if _is_of_package(frame) else ""


def package_line(depth: int = 1) -> str:
    """Return the line below the user's that calls, if a package has it, else empty text.

    Torch's optimizers, modules and scalers count as a package here.

    Returns:
        Such as `transformers/trainer.py:1954`.
    """
    frame = _outside(sys._getframe(depth), _PARTS_OF_TORCH)
    if frame is None or not _is_installed(frame.f_code.co_filename):
        return ""
    path = re.split(r"/(?:site|dist)-packages/", frame.f_code.co_filename)[-1]
    return f"{path}:{frame.f_lineno}"


def _outside(frame: FrameType | None, allowed: tuple[str, ...]) -> FrameType | None:
    """Return the innermost frame outside torch and lazyrt, or in one of torch's folders."""
    own = (*_library_roots, _OWN_ROOT, *_INTERNAL)
    for each in outward(frame):
        name = each.f_code.co_filename
        if name.startswith(allowed) or not name.startswith(own):
            return each
    return None


def library_caller(depth: int = 1) -> SourceLocation | None:
    """Return the line of an installed package that called back the innermost user code.

    None unless other user code had called the package: a shell or a test runner is no such.
    """
    frame = user_frame(sys._getframe(depth))
    caller = frame.f_back if frame is not None else None
    if caller is None or not _is_installed(caller.f_code.co_filename):
        return None
    for each in outward(caller):
        folder = Path(each.f_code.co_filename).parent.name  # of a program that launches
        if not is_library(each.f_code) and folder not in {"bin", "Scripts"}:
            return site_of(caller)
    return None


def is_library(code: CodeType) -> bool:
    """Return whether code belongs to torch, to lazyrt or to an installed package."""
    name = code.co_filename
    known = library_files.get(name)
    if known is None:
        if len(library_files) >= _MAX_PLACES:
            library_files.clear()
        known = library_files[name] = is_library_file(name)
    return known


def is_library_file(name: str) -> bool:
    """Return whether a file belongs to torch, to lazyrt or to an installed package."""
    return name.startswith((*_library_roots, _OWN_ROOT, *_INTERNAL)) or (
        _is_installed(name) or _is_stdlib(name)
    )


def is_own_file(name: str) -> bool:
    """Return whether a file is one of lazyrt's or lazygraph's."""
    return name.startswith((_OWN_ROOT, _LAZYGRAPH))


def is_of_torch(name: str) -> bool:
    """Return whether a file is one of torch's, or of what counts as its like."""
    return name.startswith(_library_roots)


def is_packages(name: str) -> bool:
    """Return whether a file belongs to an installed package other than torch and its like."""
    own = (*_library_roots, _OWN_ROOT, *_INTERNAL)
    return _is_installed(name) and not name.startswith(own)


def _is_installed(name: str) -> bool:
    return "/site-packages/" in name or "/dist-packages/" in name


def _is_of_package(frame: FrameType) -> bool:
    """Return whether a frame's module belongs to a package that the program only imports.

    That is one in a folder of installed packages, or one that an editable install or
    `PYTHONPATH` brings from outside of the program's own tree.
    """
    name, names = frame.f_code.co_filename, frame.f_globals
    if _is_installed(name):
        return True
    is_imported = names.get("__spec__") is not None and names["__name__"] != "__main__"
    return is_imported and not (_is_stdlib(name) or name.startswith(_own_trees))


def _find_own_trees() -> tuple[str, ...]:
    """Return the program's folders: those of the main script and the working directory.

    Each is the project around it, where a file tells what that is.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    starts = [Path.cwd()] if main is None else [Path.cwd(), Path(main).resolve().parent]
    return tuple(f"{_project_around(start)}/" for start in starts)


def _project_around(start: Path) -> Path:
    for folder in (start, *start.parents):
        if any((folder / name).exists() for name in _PROJECT_FILES):
            return folder
    return start


_PROJECT_FILES = ("pyproject.toml", "setup.py", ".git")
_own_trees = _find_own_trees()


def _is_stdlib(name: str) -> bool:
    return name.startswith(_STDLIB) and "site-packages" not in name


_STDLIB = str(Path(weakref.__file__).parent) + "/"


class _Code(dict[int, SourceLocation]):
    """A code object of the user's: the places of its instructions, found when first asked for."""

    def __init__(self, code: weakref.ref[CodeType]) -> None:
        self.code = code

    def __missing__(self, instruction: int) -> SourceLocation:
        code = self.code()
        assert code is not None  # a frame runs it
        site = self[instruction] = _site_of(code, instruction)
        return site


class _Package(_Code):
    """A code object of an installed package other than torch, such as a model's."""


class _Skipped:
    """A code object that is no line of the user's: it calls a module, runs a backward pass, or is generated."""

    __slots__ = ("code", "kind")

    def __init__(self, code: weakref.ref[CodeType], kind: str) -> None:
        self.code = code
        self.kind = kind


# What code objects are, by their ids: equal code may stand in files of several owners, and hashing
# code takes longer than all else here. A library's plain code is a mere reference. An entry goes with
# its code, which TorchDynamo lets hold compiled graphs; no Python code runs then.
_codes: dict[int, _Code | _Skipped | weakref.ref[CodeType]] = {}
_Plain = weakref.ref


_MARKED = {"_call_impl": "call", "_engine_run_backward": "backward"}


def _forget_codes(kind: type = object) -> None:
    """Look again at what code objects are, or those of a kind; what marks say no longer holds."""
    global _epoch
    for number in list(_codes):  # codes may go meanwhile
        if kind in (object, _codes.get(number).__class__):
            _codes.pop(number, None)
    _epoch += 1


_epoch = 0


def _learn(code: CodeType) -> _Code | _Skipped | weakref.ref[CodeType]:
    """Return what a code object is, and remember it."""
    number = id(code)
    reference = weakref.ref(code, functools.partial(_codes.pop, number))
    known: _Code | _Skipped | weakref.ref[CodeType] = reference
    if code.co_filename in _lines:
        known = _Skipped(reference, "generated")
    elif code.co_name in _MARKED and is_of_torch(code.co_filename):
        known = _Skipped(reference, _MARKED[code.co_name])
    elif not is_library(code):
        known = _Code(reference)
    elif is_packages(code.co_filename):
        known = _Package(reference)
    _codes[number] = known
    return known


class _Anchor:
    """The innermost frame of a module or a cell below which only libraries run.

    A walk of the stack ends there: what is outward stays as it is for as long as the frame runs, be it the
    sixty frames of a notebook's kernel. Such a frame has no variables of its own, so no tensor lives
    longer because it is held, until the step ends.
    """

    __slots__ = ("code", "frame", "outward")

    def __init__(
        self, frame: FrameType, code: _Code, outward: list[SourceLocation]
    ) -> None:
        self.frame = frame
        self.code = code
        self.outward = outward


_HAS_VARIABLES = inspect.CO_OPTIMIZED
_IN_PIECES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _find_anchor(frame: FrameType | None) -> _Anchor | None:
    """Return the frame at which walks may end, None where there is no such frame."""
    found = None
    around: list[SourceLocation] = []
    for each in reversed(list(outward(frame))):
        known = _codes[id(each.f_code)]
        if known.__class__ is _Plain or known.__class__ is _Package:
            continue
        flags = each.f_code.co_flags
        if not isinstance(known, _Code) or flags & (_HAS_VARIABLES | _IN_PIECES):
            break
        if found is not None:
            around.insert(0, found.code[found.frame.f_lasti])
        found = _Anchor(each, known, list(around))
    return found


# The user's lines, the outermost first; the module; what generated code stands for; the line of the
# package that the innermost user's line has called.
_Found = tuple[
    tuple["SourceLocation", ...], str, "Original | None", "SourceLocation | None"
]


class Walk:
    """What the first op that a call of a kernel records has found out, for the others.

    Attributes:
        found: What the stack tells; None until somebody has walked.
        origin: The provenance that all of the call's ops have, once that is known.
    """

    __slots__ = ("found", "origin")

    def __init__(self) -> None:
        self.found: _Found | None = None
        self.origin: Provenance | None = None


class _Mark:
    """What a walk has found from a frame outward, for the walks that come to that frame again.

    It stands in the frame's `f_trace`, so it goes with the frame. What is outward of a running frame of
    torch's stays as it is. Python calls an `f_trace` only while a debugger traces; one that looks
    whether there is any finds none.

    Attributes:
        found: What the stack tells from there outward; its module is the innermost that is called.
        root: The outermost module that is called.
    """

    __slots__ = ("epoch", "found", "root")

    def __init__(
        self,
        found: _Found = ((), "", None, None),
        root: _Reference | None = None,
    ) -> None:
        self.found = found
        self.root = root
        self.epoch = _epoch

    def __call__(self, *_: object) -> _Mark:
        return self

    def __bool__(self) -> bool:
        return False

    def within(
        self,
        stack: list[SourceLocation],
        library: SourceLocation | None,
        compiled: Original | None,
    ) -> _Found:
        """Return what holds with some frames more, whose lines come innermost first."""
        around, module, outer, called = self.found
        if stack:
            lines = (*around, *reversed(stack))[-_MAX_STACK:]
            return lines, module, compiled or outer, library
        if compiled is None and (library is None or not around):
            return self.found
        return around, module, compiled or outer, library or called


def _walk(start: FrameType | None) -> _Found:
    """Return what the stack tells."""
    anchor: _Anchor | None = live.anchor
    held = None if anchor is None else anchor.frame
    codes = _codes
    stack: list[SourceLocation] = []
    compiled: Original | None = None
    library: SourceLocation | None = None
    parts: list[Any] = []
    found: _Mark | None = None
    frame = start
    known: Any
    while frame is not None and frame is not held:
        try:
            known = codes[id(frame.f_code)]
        except KeyError:
            known = _learn(frame.f_code)
        if known.__class__ is not _Plain:
            if known.__class__ is _Code:
                stack.append(known[frame.f_lasti])
            elif known.__class__ is _Package:
                if library is None and not stack:
                    library = known[frame.f_lasti]
            elif known.kind == "generated":
                compiled = compiled or original(frame)
            else:
                mark: Any = frame.f_trace
                # A step's first walk goes all the way, to find its anchor.
                is_known = mark.__class__ is _Mark and anchor is not None
                if is_known and mark.epoch == _epoch:
                    found = mark
                    break
                parts.append((frame, known.kind, stack, library, compiled))
                stack, library, compiled = [], None, None
        frame = frame.f_back
    if found is None:
        found = _Mark()
        if frame is not None and anchor is not None:
            stack += [anchor.code[frame.f_lasti], *anchor.outward]
        elif anchor is None:
            live.anchor = _find_anchor(start) or _NO_ANCHOR
    for frame, kind, *inner in reversed(parts):
        told, reference = found.within(stack, library, compiled), found.root
        module = _called(frame) if kind == "call" else None
        if module is not None:
            root = None if reference is None else reference()
            # No `or`: a module may have a length, or refuse to.
            name, reference = _name_of(module, module if root is None else root)
            told = told[0], name, told[2], told[3]
        found = _Mark(told, reference)
        if not frame.f_trace:  # no debugger's
            frame.f_trace = found
        stack, library, compiled = inner
    return found.within(stack, library, compiled)


def capture(args: Any, depth: int = 2, walk: Walk | None = None) -> Provenance:
    """Return the provenance of an op being recorded, and remember it for its backward ops.

    Args:
        args: The new node's arguments: a backward op whose forward op was recorded without
            its sequence number inherits the module of its newest operand.
        depth: Frames to skip, all of them lazyrt's own.
        walk: What the call's ops before have found out, or will.
    """
    global _latest
    found = None
    if walk is not None:
        if walk.origin is not None:
            return walk.origin
        found = walk.found
    if found is None:
        try:
            frame = sys._getframe(depth)
        except ValueError:  # a thread of torch's own runs nothing but the kernel
            found = _walk(None)
        else:
            mark = frame.f_trace
            # A step's first walk goes all the way, to find its anchor.
            if isinstance(mark, _Mark) and mark.epoch == _epoch and live.anchor:
                found = mark.found
            else:
                found = _walk(frame)
        if walk is not None:
            walk.found = found
    scope, name = active.labels()
    running = autograd_node()
    if found[2] is not None:
        return _of_compiled(found, scope, name, running)
    known, latest = _latest
    backward = None
    if running is not None:
        node, sequence = running
        forward = _forwards.ops.get(sequence) or _forward_of(sequence, args)
        if forward is not None:
            scope = scope or forward.scope
        backward = latest.backward
        if (
            backward is None
            or backward.sequence != sequence
            or backward.forward is not forward
            or backward.autograd_node != node
        ):
            backward = _new(BackwardOf, (node, sequence, forward))
    # Ops of one line follow each other, and have one provenance together.
    if (
        latest.backward is not backward
        or latest.scope != scope
        or latest.step != name
        or (known is not found and known != found)
    ):
        stack, module, _, library = found
        if latest.stack == stack:
            stack = latest.stack
        if backward is not None:
            module = "" if backward.forward is None else backward.forward.module
        site = stack[-1] if stack else None
        latest = _new(Provenance, (site, module, backward, stack, scope, name, library))
        _latest = found, latest
    if backward is None:
        _remember_forward(latest)
    if walk is not None and (backward is None or backward.sequence in _forwards.ops):
        walk.origin = latest
    return latest


# What the stack has told of the latest op, and its provenance.
_latest: tuple[_Found | None, Provenance] = (None, Provenance(None, ""))
# A named tuple's own fills in defaults, in four times the time.
_new: Any = tuple.__new__
_NO_ANCHOR: Any = _Anchor(None, None, [])  # type: ignore[arg-type]


def _name_of(inner: torch.nn.Module, root: torch.nn.Module) -> tuple[str, _Reference]:
    """Return the name of a module within the outermost one, and a reference to that."""
    key = (id(inner), id(root))
    known = _paths.get(key)
    if known is None or known[0]() is not inner or known[1]() is not root:
        path = _path([inner, root])
        if len(_paths) >= _MAX_PLACES:
            _paths.clear()
        known = _paths[key] = (weakref.ref(inner), weakref.ref(root), path)
    return known[2], known[1]


def _called(frame: FrameType) -> torch.nn.Module | None:
    """Return the module that a frame of `_call_impl` calls, None where that is another class's."""
    # The caller has fewer variables, all of which `f_locals` looks up.
    back = frame.f_back
    if back is not None and back.f_code.co_name == "_wrapped_call_impl":
        frame = back
    module = frame.f_locals.get("self")
    return module if isinstance(module, torch.nn.Module) else None


def place(depth: int = 1) -> tuple[Any, ...]:
    """Return what tells the place where an op is recorded now from others.

    Those are the user's lines that lead there, the module, and in backward autograd's node: what
    `capture` finds, without labels, which may be others in each step.
    """
    lines: list[tuple[str, int]] = []
    calls: list[FrameType] = []
    for frame in outward(sys._getframe(depth)):
        code = frame.f_code
        if code.co_name == "_call_impl":
            calls.append(frame)
        elif len(lines) < _MAX_STACK and not is_library(code):
            lines.append((code.co_filename, frame.f_lineno))
    running = autograd_node()
    # The innermost module's name is that of a part of the outermost one. A model with other parts
    # may have a module of another name where this one has an equal op.
    called = [call.f_locals.get("self") for call in calls[:1] + calls[1:][-1:]]
    modules = [each for each in called if isinstance(each, torch.nn.Module)]
    parts = _names_in(_compiled_module(modules[-1])).parts if modules else 0
    return (*lines, _path(modules), parts, "" if running is None else running[0])


def _of_compiled(
    found: _Found, scope: str, name: str, running: tuple[str, int] | None
) -> Provenance:
    """Return the provenance of an op of a compiled graph, and remember a forward one.

    Args:
        found: What the stack tells: the user's frames around the call of the graph, the module whose
            call ran it, which is that of ops in no module that the graph calls, and where the op
            stands in the function that was compiled.
        scope: Labels of the open scopes.
        name: That of the innermost step.
        running: Autograd's node and its sequence number in backward.
    """
    around, called, compiled, _ = found
    assert compiled is not None
    module = compiled.module or called
    inner = [_with_cell(s) for s in compiled.stack if not is_library_file(s.file)]
    stack = (*around, *inner)[-_MAX_STACK:]
    site = stack[-1] if stack else None
    innermost = compiled.stack[-1:]
    library = innermost[0] if innermost and is_packages(innermost[0].file) else None
    if running is None:
        origin = Provenance(site, module, None, stack, scope, name, library)
        _remember_forward(origin)
        return origin
    forward = Provenance(site, module, None, stack, scope, "", library)
    called_at = around[-1] if around else site
    return Provenance(
        called_at, module, BackwardOf(*running, forward), around, scope, name
    )


def _with_cell(site: SourceLocation) -> SourceLocation:
    cell = _cell_namer(site.file) if _cell_namer is not None else None
    return site if cell is None else dataclasses.replace(site, cell=cell)


def _remember_forward(origin: Provenance) -> None:
    """Note under which autograd sequence number a forward op ran, for its backward ops.

    Only the first op after a number was given out is the one that it was given to: ops that
    need no gradient get none.
    """
    if torch.is_grad_enabled():
        number, forwards = sequence_number() - 1, _forwards
        if number == forwards.noted:
            return
        forwards.noted = number
        ops = forwards.ops
        if len(ops) > _MAX_SEQUENCES:
            ops.clear()
        ops[number] = origin


def _forward_of(sequence: int, args: Any) -> Provenance | None:
    """Return where the forward op of a running backward node came from.

    Each thread counts its ops; this one has none of that number, so the newest thread's come first.
    """
    tables = (table[sequence] for table in reversed(_tables) if sequence in table)
    return next(tables, None) or _newest_forward(args)


def _newest_forward(args: Any) -> Provenance | None:
    nodes = (value.node for value in iter_values(args) if value.node is not None)
    forward = (node for node in nodes if node.provenance.backward is None)
    newest = max(forward, key=lambda node: node.id, default=None)
    return newest.provenance if newest is not None else None


def site_of(frame: FrameType) -> SourceLocation:
    """Return the place that a frame is at."""
    return site_at(frame.f_code, frame.f_lineno)


def running_cell() -> int | None:
    """Return the execution count of the cell that runs, whatever function of it is at work."""
    frame: FrameType | None = sys._getframe(1)
    found = None
    while frame is not None and _cell_namer is not None:
        cell = _cell_namer(frame.f_code.co_filename)
        found = cell if cell is not None else found
        frame = frame.f_back
    return found


def site_at(code: CodeType, line: int) -> SourceLocation:
    """Return the place of a line of some code, such as one in a traceback."""
    return site_in(code.co_filename, line, code.co_name)


def site_of_instruction(
    code: CodeType | None, instruction: int
) -> SourceLocation | None:
    """Return the place of an instruction, such as the `f_lasti` of a frame; None without code."""
    return None if code is None else _site_of(code, instruction)


def _site_of(code: CodeType, instruction: int) -> SourceLocation:
    lines = (line for first, end, line in code.co_lines() if first <= instruction < end)
    return site_at(code, next(lines, None) or code.co_firstlineno)


def site_in(file: str, line: int, function: str) -> SourceLocation:
    """Return the place of a line, with its notebook cell if it is in one."""
    place = (file, line, function)
    site = _sites.get(place)
    if site is None:
        if len(_sites) >= _MAX_PLACES:
            _sites.clear()
        cell = _cell_namer(file) if _cell_namer is not None else None
        site = _sites[place] = SourceLocation(*place, cell)
    return site


def module_classes() -> dict[str, str]:
    """Return the class of each module that is there and has recorded ops, by qualified name.

    A name that modules of several classes have, of different models, is left out.
    """
    found: dict[str, str] = {}
    twice: set[str] = set()
    for names in list(_module_names.values()):
        for module, name in list(names.items()):
            kind = type(module).__name__
            if found.setdefault(name, kind) != kind:
                twice.add(name)
    return {name: kind for name, kind in found.items() if name not in twice}


def _compiled_module(module: torch.nn.Module) -> torch.nn.Module:
    """Return the program's own module, where `torch.compile` has made another one around it."""
    inside = module._modules.get("_orig_mod")
    return module if inside is None else inside


def _is_part(inner: torch.nn.Module, root: torch.nn.Module) -> bool:
    """Return whether a module is within another one; `modules()` takes ten times as long."""
    parts: dict[torch.nn.Module | None, None] = {root: None}
    waiting = [root]
    while waiting:
        inside = waiting.pop()._modules.values()
        waiting += [each for each in inside if each is not None and each not in parts]
        parts.update(dict.fromkeys(inside))
    return inner in parts


def _path(modules: list[torch.nn.Module]) -> str:
    """Return the qualified name of the innermost module; `modules` is innermost first."""
    if not modules:
        return ""
    root, inner = map(_compiled_module, (modules[-1], modules[0]))
    if root is inner:
        return type(root).__name__
    names = _names_in(root)
    # What is no part of the other is known by its class, such as a loss made for one call.
    if inner not in names and _is_part(inner, root):
        names = _names_in(root, anew=True)
    return names.get(inner, type(inner).__name__)


def _names_in(root: torch.nn.Module, *, anew: bool = False) -> _Names:
    """Return the names of a module's parts, as they were when they were first asked for."""
    names = _module_names.get(root)
    if names is None or anew:
        names = _module_names[root] = _Names(root)
        _paths.clear()
    return names
