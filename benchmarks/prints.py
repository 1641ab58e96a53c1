"""`python -m benchmarks prints`: ten prints at ten moving places of a model."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks import bert, machine, pool, printing, recorded
from benchmarks.report import Cell, Goal, Report, Table

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from benchmarks.pool import Peer

SUMMARY = "the moving print: compiles, executions and seconds that printing costs"
PEERS = ("lazyrt", "eager", "torch-xla")

_WARM_UP = 4
_PRINTED = ("t", "t[0, 0, :4]")
_COLUMNS = (
    "", "step compiles", "step executions", "peek compiles", "peek executions", "print ms",
    "wall s",
)  # fmt: skip

Rounds = list[tuple[str, dict[str, Any]]]
"""Title and findings of each round of ten steps, in order."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--peers", help=f"comma-separated, of {', '.join(PEERS)}")


def run(options: Namespace) -> Report:
    """Measure, and return the report."""
    names = pool.choose(options.peers, PEERS)
    facts = machine.facts()
    with pool.open_peers(names) as peers:
        found = {name: _rounds(peer) for name, peer in peers.items()}
    goals = _goals(found["lazyrt"]) if "lazyrt" in found else []
    tables = [_table(name, rounds) for name, rounds in found.items()]
    if "lazyrt" in found:
        with pool.open_peers(["lazyrt"]) as peers:
            deep = peers["lazyrt"].ask("deep prints")
        tables.append(_deep_table(deep))
        goals.append(_deep_goal(deep))
    if "torch-xla" not in found:
        tables.append(_recorded_table())
    return Report(
        name=f"prints: {SUMMARY}",
        facts=facts,
        tables=tables,
        goals=goals,
        notes=(
            (
                f"{bert.SHAPE_TEXT} AdamW; step i prints the output of the i-th of "
                f"{len(bert.PLACES)} modules, in a forward hook"
            ),
            (
                "no cache on disk; `print ms` is the median of one print, "
                "`wall s` all ten steps with their prints"
            ),
        ),
    )


def _rounds(peer: Peer) -> Rounds:
    """Train once without prints and once with, on equal weights."""
    peer.ask("run", optimizer="adamw", name="printing", steps=_WARM_UP)
    peer.ask("run", optimizer="adamw", name="plain", steps=_WARM_UP)
    rounds = [("no prints", peer.ask("prints", name="plain", what=None))]
    for what in _PRINTED:
        rounds += [
            (
                f"print({what}), {time}",
                peer.ask("prints", name="printing", what=what),
            )
            for time in ("first", "again")
        ]
    return rounds


def _table(name: str, rounds: Rounds) -> Table:
    rows: list[list[Cell]] = []
    for title, found in rounds:
        counts = found["counts"]
        prints = found["print_ms"]
        rows.append(
            [
                title,
                counts.get("compiles"),
                counts.get("executions"),
                counts.get("peek_compiles"),
                counts.get("peek_executions"),
                statistics.median(prints) if prints else None,
                found["wall_s"],
            ]
        )
    return Table(f"{name}: ten steps", _COLUMNS, rows)


def _deep_table(deep: list[dict[str, Any]]) -> Table:
    rows: list[list[Cell]] = [
        [f"layer {each['layer']}", each["compiles"], each["ms"]] for each in deep
    ]
    title = (
        f"lazyrt: forward passes of {printing.DEEP_LAYERS} layers, no kind of op known"
    )
    return Table(title, ("", "peek compiles", "print ms"), rows)


def _deep_goal(deep: list[dict[str, Any]]) -> Goal:
    """Return the goal of prints at new places once the kinds of op are known."""
    slowest = max(each["ms"] for each in deep[1:])
    what = f"a print at a new place in {printing.DEEP_LAYERS} layers, kinds known"
    return Goal(what, "< 500 ms", f"{slowest:.0f} ms", slowest < 500)  # noqa: PLR2004


def _recorded_table() -> Table:
    rows: list[list[Cell]] = []
    for what, figures in recorded.TORCH_XLA_PRINTS.items():
        counts = (figures.compiles, figures.executions, None, None, None)
        rows.append([f"print({what}), first", *counts, figures.first_s])
        rows.append(
            [f"print({what}), again", None, None, None, None, None, figures.again_s]
        )
    return Table(f"torch-xla, {recorded.ORIGIN}: ten steps", _COLUMNS, rows)


def _goals(rounds: Rounds) -> list[Goal]:
    plain, printing = rounds[0][1], [found for _, found in rounds[1:]]
    compiles = sum(found["counts"]["compiles"] for found in printing)
    executions = sorted({found["counts"]["executions"] for found in printing})
    wanted = plain["counts"]["executions"]
    equal = printing[0]["losses"] == plain["losses"]
    first_s = printing[0]["wall_s"]
    xla = recorded.TORCH_XLA_PRINTS["t"]
    return [
        Goal("step compiles that prints cause", "0", f"{compiles}", compiles == 0),
        Goal(
            "step executions, with prints",
            f"{wanted}, as without",
            ", ".join(map(str, executions)),
            executions == [wanted],
        ),
        Goal(
            "losses with prints",
            "equal to those without",
            "equal" if equal else "different",
            equal,
        ),
        Goal(
            "ten steps with ten first prints",
            f"< {xla.first_s:g} s, torch_xla {recorded.ORIGIN}",
            f"{first_s:.2f} s",
            first_s < xla.first_s,
        ),
    ]
