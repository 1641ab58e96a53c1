"""What a cell or a prompt shows of a result that reads better as sentences than as code."""

from __future__ import annotations

from typing import Any, Protocol


class _Printer(Protocol):
    """What IPython hands to an object that shows itself."""

    def text(self, text: str) -> None:
        """Show some text."""


def _show(self: object, printer: _Printer, cycle: bool) -> None:  # noqa: ARG001, FBT001
    printer.text(str(self))


class Readable:
    """Is shown in IPython as `str` tells it; `repr` remains one line of code.

    Example:
        >>> from IPython.lib.pretty import pretty
        >>> class Weather(Readable):
        ...     def __str__(self): return "rain"
        ...     def __repr__(self): return "Weather()"
        >>> pretty(Weather())
        'rain'
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Give each class the method itself: IPython takes a class's `repr` before a base's."""
        super().__init_subclass__(**options)
        cls._repr_pretty_ = _show  # type: ignore[attr-defined]
