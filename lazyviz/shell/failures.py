"""What a cell's exception said and where, as text: nothing of it stays alive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazyviz.shell.lazytensors import runtime_provenance

if TYPE_CHECKING:
    from types import TracebackType

_MAX_MESSAGE = 4_000
_MAX_PLACES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception that ended a cell.

    Attributes:
        kind: Name of its class.
        message: What it said, with its notes; long ones are cut.
        places: The user's own lines that led to it, the outermost first.
    """

    kind: str
    message: str
    places: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """Class and first line of the message."""
        first = self.message.partition("\n")[0]
        return f"{self.kind}: {first}" if first else self.kind

    def __str__(self) -> str:
        """Return the places, then class and message."""
        said = f"{self.kind}: {self.message}" if self.message else self.kind
        return "\n".join([*(f"  {place}" for place in self.places), said])


def failure_of(error: BaseException) -> Failure:
    """Return an exception as text; one whose own text fails has its class alone.

    A tensor in it is a line that computes nothing: lazyrt knows this file as one that looks
    behind the user's back.
    """
    try:
        lines = [str(error), *getattr(error, "__notes__", ())]
        message = "\n".join(map(str, lines))
    except Exception:  # noqa: BLE001 - the user's own class
        message = ""
    if len(message) > _MAX_MESSAGE:
        message = f"{message[:_MAX_MESSAGE]}…"
    return Failure(
        kind=type(error).__name__, message=message, places=_places(error.__traceback__)
    )


def _places(traceback: TracebackType | None) -> tuple[str, ...]:
    provenance = runtime_provenance()
    if provenance is None:
        return ()
    found = []
    while traceback is not None:
        frame = traceback.tb_frame
        if not provenance.is_library(frame.f_code):
            site = provenance.site_at(frame.f_code, traceback.tb_lineno)
            inside = "" if site.function == "<module>" else f", in {site.function}()"
            found.append(f"{site}{inside}")
        traceback = traceback.tb_next
    if len(found) > _MAX_PLACES:
        half = _MAX_PLACES // 2
        found[half:-half] = [f"… {len(found) - 2 * half:,} more …"]
    return tuple(found)
