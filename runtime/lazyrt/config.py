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
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lazyrt.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHOICES: dict[str, tuple[str, ...]] = {
    "read_policy": ("barrier", "peek"),
    "compile_tier": ("optimised", "fast"),
}


def _flag(name: str, *, default: bool) -> bool:
    text = os.environ.get(name)
    return (
        default
        if text is None
        else text.strip().lower() not in {"", "0", "false", "off", "no"}
    )


def _number(name: str, default: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"the environment variable {name} is {text!r}, which is not a whole number. "
            f"Unset it for the default of {default:,}."
        ) from None


def _default_cache_dir() -> Path | None:
    text = os.environ.get("LAZYRT_CACHE_DIR")
    if text is not None:
        return Path(text).expanduser() if text.strip() else None
    base = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(base).expanduser() / "lazyrt"


@dataclass(slots=True)
class Config:
    """All settings; `lazyrt.config` is the one instance.

    Attributes:
        read_policy: What a program's read (`.item()`, `.cpu()`, `bool(t)`, ...) outside a step
            does: `barrier` runs everything that is pending, once; `peek` computes only the
            tensor's cone and leaves the pending graph alone. Environment: LAZYRT_READ_POLICY.
        compile_tier: How XLA compiles steps: `optimised`, or `fast` for a quarter of the
            compile time and about three times the run time. Environment: LAZYRT_COMPILE_TIER.
        barrier_after_optimizer: Whether a barrier follows `optimizer.step()` outside `step()`.
            Environment: LAZYRT_BARRIER_AFTER_OPTIMIZER.
        max_pending_nodes: A barrier follows when more ops than this are pending; 0 switches
            it off. Environment: LAZYRT_MAX_PENDING_NODES.
        max_interned_nodes: Above this many remembered IR nodes the tables are emptied at the
            next barrier. Environment: LAZYRT_MAX_INTERNED_NODES.
        cache_dir: Folder of the persistent executable cache; None switches it off. An empty
            LAZYRT_CACHE_DIR does too.
        peek_memo_bytes: How many bytes of intermediate values a step's peeks may keep.
        progress_after_s: A wait longer than this many seconds shows progress.
    """

    read_policy: Literal["barrier", "peek"] = field(
        default_factory=lambda: os.environ.get("LAZYRT_READ_POLICY", "barrier")  # type: ignore[arg-type,return-value]
    )
    compile_tier: Literal["optimised", "fast"] = field(
        default_factory=lambda: os.environ.get("LAZYRT_COMPILE_TIER", "optimised")  # type: ignore[arg-type,return-value]
    )
    barrier_after_optimizer: bool = field(
        default_factory=lambda: _flag("LAZYRT_BARRIER_AFTER_OPTIMIZER", default=True)
    )
    max_pending_nodes: int = field(
        default_factory=lambda: _number("LAZYRT_MAX_PENDING_NODES", 200_000)
    )
    max_interned_nodes: int = field(
        default_factory=lambda: _number("LAZYRT_MAX_INTERNED_NODES", 1_000_000)
    )
    cache_dir: Path | None = field(default_factory=_default_cache_dir)
    peek_memo_bytes: int = 256 * 2**20
    progress_after_s: float = 1.0

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            _check_choice(name, getattr(self, name), choices)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in {f.name for f in fields(self)}:
            raise UsageError(
                f"lazyrt has no setting {name!r}. The settings are "
                f"{', '.join(f.name for f in fields(self))}."
            )
        if name in _CHOICES:
            _check_choice(name, value, _CHOICES[name])
        object.__setattr__(self, name, value)

    @contextlib.contextmanager
    def scoped(self, **settings: Any) -> Iterator[None]:
        """Set some settings for the length of a `with` block."""
        before = {name: getattr(self, name, None) for name in settings}
        try:
            for name, value in settings.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in before.items():
                if name in {f.name for f in fields(self)}:
                    setattr(self, name, value)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(
            f"the setting {name} is {value!r}; it takes one of {', '.join(map(repr, choices))}."
        )


config = Config()
