"""One compile by XLA for equal modules, and one MLIR context for many, below all that counts compiles.

Tests start with empty caches, so most of what they compile was compiled for the test before them:
a tensor of ones, its sum, its text. Lowering runs each time, and events, counters, caches and
executables are those of a compile; only what XLA makes of equal modules under equal options is
made once.
"""

from __future__ import annotations

import functools
import io
import threading
from collections import OrderedDict
from typing import Any

from jax._src import compiler
from jax._src.interpreters import mlir

_KEPT = 1_000  # executables of the least recent use go first
_made: OrderedDict[tuple[bytes, bytes], Any] = OrderedDict()

_MODULES = (
    500  # of one context, which keeps each type, constant and location of its modules
)


def share_compiles() -> None:
    """Let jax hand an equal module's executable out again, in this process, from now on."""
    if hasattr(compiler.compile_or_get_cached, "__wrapped__"):
        return
    compile_anew = compiler.compile_or_get_cached

    @functools.wraps(compile_anew)
    def compile_once(
        backend: Any,
        computation: Any,
        devices: Any,
        options: Any,
        callbacks: Any,
        *rest: Any,
    ) -> Any:
        if callbacks:  # such a module is not all of what it runs
            return compile_anew(
                backend, computation, devices, options, callbacks, *rest
            )
        key = (_bytecode(computation), options.SerializeAsString())
        made = _made.pop(key, None)
        if made is None:
            made = compile_anew(
                backend, computation, devices, options, callbacks, *rest
            )
        _made[key] = made
        while len(_made) > _KEPT:
            _made.popitem(last=False)
        return made

    setattr(compiler, "compile_or_get_cached", compile_once)  # noqa: B010 - the types differ in names


def share_contexts() -> None:
    """Let jax lower the next modules of a thread in one context: one of its own takes 3 ms each."""
    if hasattr(mlir.make_ir_context, "__wrapped__"):
        return
    make_anew = mlir.make_ir_context
    own = threading.local()

    @functools.wraps(make_anew)
    def make_ir_context() -> Any:
        left: int = getattr(own, "left", 0)
        if not left:
            own.context, left = make_anew(), _MODULES
        own.left = left - 1
        return own.context

    setattr(mlir, "make_ir_context", make_ir_context)  # noqa: B010 - jax's own has no types


def _bytecode(computation: Any) -> bytes:
    """Return a module with its locations: they become metadata of the executable's HLO."""
    output = io.BytesIO()
    computation.operation.write_bytecode(file=output)
    return output.getvalue()
