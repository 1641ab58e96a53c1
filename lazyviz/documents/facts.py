"""What a session's report is about: collected once, before any part is made."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazyviz.documents import redaction

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from lazyviz.session import CellRecord, Session
    from lazyviz.timing.steplog import StepRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a report is about: plain data, and the runtime to ask.

    Attributes:
        runtime: The module `lazyrt`, None if the program has not imported it.
        cells: (number, source, record) of each cell; the record is None for one that did not
            touch the device, the source is empty where it is not to be told.
        steps: The steps of the session.
        graphs: The compiled graphs of the process.
        source: Whether sources are told.
        session: The session, None outside of one.
        written: When, in words.
    """

    runtime: ModuleType | None
    cells: tuple[tuple[int | None, str, CellRecord | None], ...] = ()
    steps: tuple[StepRow, ...] = ()
    graphs: tuple[Any, ...] = ()
    source: bool = True
    session: Session | None = None
    written: str = ""


def collect(
    runtime: ModuleType | None, current: Session | None, *, source: bool
) -> Facts:
    """Return what is known of a session; outside of one, what the runtime knows."""
    steps = current.steps if current is not None else ()
    tell = tell_of(source=source)
    now = dt.datetime.now(tz=dt.UTC)
    return Facts(
        runtime=runtime,
        cells=_cells_of(current, source=source) if current is not None else (),
        steps=tuple(redaction.step(row, tell) for row in steps),
        graphs=tuple(runtime.compiled_graphs()) if runtime is not None else (),
        source=source,
        session=current,
        written=now.strftime("%Y-%m-%d %H:%M UTC"),
    )


def tell_of(*, source: bool) -> Callable[[str], str]:
    """Return how expressions of the user's source are told."""
    return redaction.masked if source else redaction.name_only


def _cells_of(
    current: Session, *, source: bool
) -> tuple[tuple[int | None, str, CellRecord | None], ...]:
    tell = tell_of(source=source)
    records = [redaction.cell(record, tell) for record in current.cells]
    sources = _sources(current.shell) if source else {}
    # Front ends that run cells without a history give several the same number.
    last = {record.number: record for record in records}
    found: list[tuple[int | None, str, CellRecord | None]] = [
        (number, shown, None) for number, shown in sources.items() if number not in last
    ]
    for record in records:
        number = record.number
        is_last = number is not None and last[number] is record
        found.append((number, sources.get(number or 0, "") if is_last else "", record))
    return tuple(sorted(found, key=lambda cell: -1 if cell[0] is None else cell[0]))


def _sources(shell: Any) -> dict[int, str]:
    """Return the source of each cell as it was written; without a history, as it ran."""
    raw = getattr(shell.history_manager, "input_hist_raw", ())
    inputs = list(raw if any(raw) else shell.user_ns.get("In", ()))
    return {
        number: each
        for number, each in enumerate(inputs)
        if isinstance(each, str) and each
    }
