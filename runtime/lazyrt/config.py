"""Settings of the runtime, each a scoped value with a default from the environment.

Example:
    >>> from lazyrt.config import config
    >>> with config.scoped(read_policy="peek"):
    ...     config.read_policy
    'peek'
    >>> config.read_policy
    'barrier'
"""

from __future__ import annotations

import contextlib
import operator
import os
import threading
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lazygraph.readable import Readable
from lazyrt.errors import UsageError
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lazyrt.observe.events import Cache


_CHOICES: dict[str, tuple[str, ...]] = {
    "read_policy": ("barrier", "peek"),
    "compile_tier": ("optimised", "fast", "tiered"),
    "scope_policy": ("error", "split"),
    "dynamo_bridge": ("one", "three", "five"),
}


_YES = frozenset(("1", "true", "on", "yes"))
_NO = frozenset(("", "0", "false", "off", "no"))


def flag(name: str, *, default: bool) -> bool:
    """Return whether an environment variable says yes.

    Raises:
        UsageError: It says neither yes nor no.
    """
    text = os.environ.get(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word not in _YES | _NO:
        raise UsageError(
            f"the environment variable {name} is {text!r}, which says neither yes nor no. Set it to "
            f"1 or 0, or unset it for the default, {int(default)}."
        )
    return word in _YES


def _number(name: str, default: int, least: int = 0) -> int:
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise UsageError(
            f"the environment variable {name} is {text!r}, which is not a whole number from "
            f"{least}. "
            f"Unset it for the default of {default:,}."
        )
    return number


def record_folder() -> Path | None:
    """Return the folder that LAZYRT_RECORD names for the record of steps; None for none."""
    text = os.environ.get("LAZYRT_RECORD", "").strip()
    return Path(text).expanduser() if text else None


def device_count() -> int | None:
    """Return the number of CPU devices that LAZYRT_NUM_DEVICES asks for; None for one."""
    text = os.environ.get("LAZYRT_NUM_DEVICES", "").strip()
    return _number("LAZYRT_NUM_DEVICES", 1, least=1) if text else None


def _default_cache_dir() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(base).expanduser() / "lazyrt"


@dataclass(slots=True)
class Config(Readable):
    """All settings; `lazyrt.config` is the one instance.

    Attributes:
        read_policy: What a program's read (`.item()`, `.cpu()`, `bool(t)`, ...) outside a step
            does: `barrier` runs everything that is pending, once; `peek` computes only the
            tensor's cone and leaves the pending graph alone. Environment: LAZYRT_READ_POLICY.
        compile_tier: How XLA compiles steps: `optimised`; `fast` for a quarter of the compile
            time and about three times the run time; or `tiered`, which starts with the fast
            build and takes the optimised one when a background thread has made it. From that
            step on results differ by rounding. Environment: LAZYRT_COMPILE_TIER.
        share_layers: Let the fast build of a step compile equal layers once, as programs that run one
            after another, where that saves compile time. Environment: LAZYRT_SHARE_LAYERS.
        barrier_after_optimizer: Whether a barrier follows `optimizer.step()` outside `step()`.
            Environment: LAZYRT_BARRIER_AFTER_OPTIMIZER.
        max_pending_nodes: A barrier follows when more ops than this are pending; 0 switches
            it off. Environment: LAZYRT_MAX_PENDING_NODES.
        max_interned_nodes: Above this many remembered IR nodes the tables are emptied at the
            next barrier. Environment: LAZYRT_MAX_INTERNED_NODES.
        max_executables: Above this many executables in memory those not used for longest are
            dropped at the next barrier; a graph that comes again is compiled again, or read
            from disk. Environment: LAZYRT_MAX_EXECUTABLES.
        max_plans: How many times values are remembered with the executable that runs them; above
            it all are forgotten, and found by fingerprint. Environment: LAZYRT_MAX_PLANS.
        max_slices: The same of peeks. Environment: LAZYRT_MAX_SLICES.
        max_result_types: How many result types of ops are remembered before all are forgotten
            and asked of torch again. Environment: LAZYRT_MAX_RESULT_TYPES.
        max_decompositions: The same of torch's decompositions of ops.
            Environment: LAZYRT_MAX_DECOMPOSITIONS.
        max_cache_bytes: Above this many bytes in `cache_dir` the executables not used for
            longest are deleted. Environment: LAZYRT_MAX_CACHE_BYTES.
        cache_dir: Folder of the persistent executable cache, a path or a text; None switches
            it off. An empty LAZYRT_CACHE_DIR does too.
        max_memory_bytes: How many bytes tensors and a step together may take on the device; a
            step that needs more raises OutOfMemoryError and is not run. None, the default, is
            what the machine has available when the step begins, -1 asks nobody.
            Environment: LAZYRT_MAX_MEMORY_BYTES.
        peek_memo_bytes: How many bytes of intermediate values a step's peeks may keep.
        keep_values: Which finished steps keep their inputs, so that any value of them can be computed
            again: `off`, `last`, or how many of the latest. The program runs as without; inputs that a
            step overwrites are copied first. Environment: LAZYRT_KEEP_VALUES.
        keep_values_bytes: How many bytes all that is kept so may take. The earliest steps give way;
            a step with more inputs is not kept. Environment: LAZYRT_KEEP_VALUES_BYTES.
        stop_at_nan: Whether a step whose loss or weights are not finite ends in NotFiniteError, and
            tensors are as before it. See `lazyviz.stop_at_nan`. Environment: LAZYRT_STOP_AT_NAN.
        max_graphs: Above this many compiled step graphs each new one is logged as a warning with
            its cause; 0, the default, never warns. Environment: LAZYRT_MAX_GRAPHS.
        check_hits: Compare a step's graph, vertex by vertex, with the one that its executable was
            compiled for. Environment: LAZYRT_CHECK_HITS.
        deferred_checks: Let torch's checks of values, such as those of `torch.distributions` or
            whether `torch.linalg.inv` got a singular matrix, wait for their step where they would
            cut it; the error then comes with the next barrier or read after the step has run. Off,
            and for a matrix where an `except` of the program's would catch it: at their line.
            Environment: LAZYRT_DEFERRED_CHECKS.
        scope_policy: What `mark_step()` does inside an open `scope()`: `error` raises, as the
            original does; `split` ends the scope before the barrier and goes on with it after.
            Environment: LAZYRT_SCOPE_POLICY.
        dynamo_bridge: How many executions a compiled training step takes: `one`, or `three` or `five`
            as with torch_xla's bridge to TorchDynamo; see `lazyrt.dynamo.bridge`.
            Environment: LAZYRT_DYNAMO_BRIDGE.
        max_async_closures: How many asynchronous step closures may wait; the next one waits
            for room. Environment: LAZYRT_MAX_ASYNC_CLOSURES.
        progress_after_s: A wait longer than this many seconds shows progress.
        eager: Eager debug mode: each op is compiled and run by itself when it is called.
            Environment: LAZYVIZ_EAGER.
        op_by_op_reads: A program's read runs its tensor's cone op by op and remembers nothing.
            Environment: LAZYVIZ_OPBYOP, which sets both, or LAZYVIZ_OPBYOP_READS.
        op_by_op_barriers: A barrier runs what is pending op by op.
            Environment: LAZYVIZ_OPBYOP, or LAZYVIZ_OPBYOP_BARRIERS.
        independent_processes: Whether the processes that a launcher such as torchrun has started
            are meant to train models of their own. Else torch_xla's names in `lazyrt.compat` raise
            there. Environment: LAZYRT_INDEPENDENT_PROCESSES.
        replica_guard: Whether the ranks of a process group compare their programs before each
            launch of one with collectives. Environment: LAZYRT_REPLICA_GUARD.
        replica_timeout_s: How long such a launch waits for a rank that lives, its compiles
            included. Environment: LAZYRT_REPLICA_TIMEOUT_S.
    """

    read_policy: Literal["barrier", "peek"] = "barrier"
    compile_tier: Literal["optimised", "fast", "tiered"] = "optimised"
    share_layers: bool = True
    barrier_after_optimizer: bool = True
    max_pending_nodes: int = 200_000
    max_interned_nodes: int = 1_000_000
    max_executables: int = 10_000
    max_plans: int = 20_000
    max_slices: int = 2_000
    max_result_types: int = 100_000
    max_decompositions: int = 4_096
    max_cache_bytes: int = 8 * 2**30
    cache_dir: Path | None = field(default_factory=_default_cache_dir)
    max_memory_bytes: int | None = None
    peek_memo_bytes: int = 256 * 2**20
    keep_values: Literal["off", "last"] | int = "off"
    keep_values_bytes: int = 2**30
    stop_at_nan: bool = False
    max_graphs: int = 0
    check_hits: bool = False
    deferred_checks: bool = True
    scope_policy: Literal["error", "split"] = "error"
    dynamo_bridge: Literal["one", "three", "five"] = "one"
    max_async_closures: int = 100
    progress_after_s: float = 1.0
    eager: bool = False
    op_by_op_reads: bool = False
    op_by_op_barriers: bool = False
    independent_processes: bool = False
    replica_guard: bool = True
    replica_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        """Take from the environment what it says."""
        for name in _KINDS:
            variable = next(iter(_variables_set(name)), None)
            if variable is not None:
                setattr(self, name, _given(self, variable, name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in {f.name for f in fields(self)}:
            raise UsageError(
                f"lazyrt has no setting {name!r}. The settings are "
                f"{', '.join(f.name for f in fields(self))}."
            )
        self.set(name, value, origin=_assignment(name, value))

    def set(self, name: str, value: Any, *, origin: str) -> None:
        """Give a setting a value, and note who gave it.

        Args:
            name: One of the settings.
            value: Its new value.
            origin: Who sets it, in words, for `origin()` and `rows()`.

        Raises:
            UsageError: The setting takes no such value.
        """
        value = _checked(name, value)
        object.__setattr__(self, name, value)
        if self is globals().get("config"):
            _origins[name] = origin
            if name in _followers:
                _followers[name](value)

    def origin(self, name: str) -> str:
        """Return who gave a setting its value: `default`, a variable, or a line of code."""
        return _origins.get(name) or _initial_origin(name)

    def __str__(self) -> str:
        """Return every setting with its value and who set it, one to a line."""
        rows = self.rows()
        widths = [max(len(row[k]) for row in rows) for k in (0, 1)]
        return "\n".join(
            f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}"
            for name, value, origin in rows
        )

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the name of every setting, its value and who set it."""
        return [
            (f.name, _value_text(f.name, getattr(self, f.name)), self.origin(f.name))
            for f in fields(self)
        ]

    @contextlib.contextmanager
    def scoped(self, **settings: Any) -> Iterator[None]:
        """Set some settings for the length of a `with` block."""
        known = {f.name for f in fields(self)}
        before = {
            name: (getattr(self, name), self.origin(name))
            for name in settings
            if name in known
        }
        try:
            for name, value in settings.items():
                setattr(self, name, value)
            yield
        finally:
            for name, (value, origin) in before.items():
                self.set(name, value, origin=origin)


def _value_text(name: str, value: Any) -> str:
    """Return a setting's value as it is written; one of bytes also in larger units."""
    shown = repr(value).removeprefix("Posix")
    if not name.endswith("_bytes") or not value or value < 0:
        return shown
    from lazygraph.readable import size_text

    return f"{shown} ({size_text(value)})"


def _checked(name: str, value: Any) -> Any:
    """Return a setting's value as the runtime reads it.

    Raises:
        UsageError: The setting takes no such value.
    """
    kind = _KINDS[name]
    if (
        kind.startswith("int")
        and hasattr(value, "__index__")
        and not isinstance(value, bool)
    ):
        value = operator.index(value)
    elif kind == "Path | None" and isinstance(value, str):
        value = Path(value).expanduser()
    allowed, words = _RULES.get(kind) or _choice_of(name)
    if not allowed(value):
        raise UsageError(f"the setting {name} is {value!r}; it takes {words}.")
    return value


def _choice_of(name: str) -> tuple[Callable[[Any], bool], str]:
    choices = _CHOICES[name]
    return choices.__contains__, f"one of {', '.join(map(repr, choices))}"


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "Literal['off', 'last'] | int": (
        lambda value: value in ("off", "last") or (type(value) is int and value >= 0),
        "'off', 'last' or a number of steps",
    ),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "int": (lambda value: type(value) is int and value >= 0, "a whole number from 0"),
    "int | None": (
        lambda value: value is None or (type(value) is int and value >= -1),
        "a whole number from -1, or None",
    ),
    "float": (
        lambda value: type(value) in {int, float} and 0 <= value <= threading.TIMEOUT_MAX,
        "a number of seconds from 0",
    ),
    "Path | None": (
        lambda value: value is None or isinstance(value, Path),
        "a folder, as a path or a text, or None",
    ),
}  # fmt: skip
_KINDS: dict[str, str] = {f.name: str(f.type) for f in fields(Config)}


# Environment variables of settings; of the others LAZYRT_ and the setting's name.
_VARIABLES: dict[str, tuple[str, ...]] = {
    "eager": ("LAZYVIZ_EAGER",),
    "op_by_op_reads": ("LAZYVIZ_OPBYOP_READS", "LAZYVIZ_OPBYOP"),
    "op_by_op_barriers": ("LAZYVIZ_OPBYOP_BARRIERS", "LAZYVIZ_OPBYOP"),
    "peek_memo_bytes": (),
    "progress_after_s": (),
}
_origins: dict[str, str] = {}
_followers: dict[str, Callable[[Any], None]] = {}


def follow(name: str, follower: Callable[[Any], None]) -> None:
    """Call `follower` with each new value of a setting of `config`."""
    _followers[name] = follower


def _variables_of(name: str) -> tuple[str, ...]:
    """Return the environment variables that a setting has its default from."""
    return _VARIABLES.get(name, (f"LAZYRT_{name.upper()}",))


def _variables_set(name: str) -> list[str]:
    return [each for each in _variables_of(name) if each in os.environ]


def _given(settings: Config, variable: str, name: str) -> object:
    """Return what an environment variable says of a setting.

    Raises:
        UsageError: It says nothing that the setting takes.
    """
    text, kind = os.environ[variable].strip(), _KINDS[name]
    default = getattr(settings, name)
    match kind:
        case "bool":
            return flag(variable, default=default)
        case "Path | None":
            return Path(text).expanduser() if text else None
        case "int | None":
            return _number(variable, 0, least=-1) if text else None
        case "float":
            return float(_number(variable, int(default), least=1))
        case "int":
            return _number(variable, default)
    is_number = kind.endswith("| int") and text.lower() not in {"off", "last"}
    return _number(variable, 0) if is_number else text.lower()


def _initial_origin(name: str) -> str:
    found = _variables_set(name)
    return f"environment variable {found[0]}" if found else "default"


def _assignment(name: str, value: object) -> str:
    """Return the line of code that assigns a setting."""
    from lazyrt.frontend.provenance import user_site

    site = user_site()
    return f"config.{name} = {value!r}{f' at {site}' if site else ''}"


config = Config()


def make_room(cache: Cache, table: dict[Any, Any], budget: str) -> None:
    """Empty a table that has no room for one entry more, and tell listeners.

    For tables that only save work: what was in one is found out again, with the same results.

    Args:
        cache: What the table holds, for the event.
        table: Emptied whole: in what order its entries are used is not known.
        budget: The setting that says how many entries it may have.
    """
    allowed: int = getattr(config, budget)
    count = len(table)
    if count < max(allowed, 1):
        return
    table.clear()
    events.emit(events.CacheEvicted(cache=cache, dropped=count, kept=0, budget=allowed))
