"""`%lazy status`, `metrics`, `live`, `step`, `why`, `cache` and others: what a session did and holds."""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from lazyviz import session as sessions
from lazyviz.foreign.metrics_parse import parse_report
from lazyviz.inspection import executables, live, tables
from lazyviz.inspection.cuts import cut_of
from lazyviz.render import text
from lazyviz.render.cuts import cut_html, cut_text
from lazyviz.shell import completion, dual_display
from lazyviz.shell.commands import Commands, refuse, runtime_here, step_named
from lazyviz.shell.expressions import names_hint

if TYPE_CHECKING:
    from types import ModuleType

# CSS classes of the static copies, which the live views hide.
_LIVE_TWIN, _CACHE_TWIN = "lzl-twin", "lzx-twin"


class SessionCommands(Commands):
    """Subcommands that tell of the session."""

    def _status(self, rest: str) -> None:
        refuse("status", rest)
        now = tables.status_rows(sessions.runtime(), self._session)
        self._show(tables.status(now), lambda: tables.status_html(now))

    def _metrics(self, rest: str) -> None:
        if rest and rest not in completion.METRICS_OPTIONS:
            raise UsageError(
                f"%lazy metrics {rest}: the only options are --raw (the report in torch_xla's "
                "format) and --legacy (the same with the original's rounding)."
            )
        runtime = runtime_here()
        if rest:
            self._print(runtime.metrics_report(legacy=rest == "--legacy"))
            return
        report = parse_report(runtime.metrics_report("dict"))
        bundle = {"text/plain": report.text(), "text/html": report.to_html()}
        self._shell.display_pub.publish(bundle, metadata={})

    def _live(self, rest: str) -> None:
        runtime = runtime_here()
        try:
            chosen = live.options(rest)
        except ValueError as error:
            raise UsageError(str(error)) from None
        found = live.report(runtime, self._shell, chosen)

        def view() -> Any:
            from lazyviz.widgets.live_view import LiveView

            return LiveView(runtime, self._shell, chosen, _LIVE_TWIN)

        make = view if found.rows else None
        dual_display.show(self._shell, found.to_text(), found.to_html, _LIVE_TWIN, make)

    def _step(self, rest: str) -> None:
        if rest and not (rest.isdecimal() and int(rest)):
            name = f" {rest}" if rest.isidentifier() else ""
            raise UsageError(
                f"%lazy step {rest}: {rest!r} is not a number of steps. To run a cell as "
                f"a step, start it with %%lazy step{name}."
            )
        rows, limit = self._session.steps, int(rest or 10)
        self._show(tables.steps(rows, limit), lambda: tables.steps_html(rows, limit))

    def _why(self, rest: str) -> None:
        step = step_named("why", rest, "alone, it explains the latest compile.")
        runtime = runtime_here()
        try:
            found = runtime.explain(step)
        except ValueError as error:
            raise UsageError(str(error)) from None
        graph = runtime.graph_of_step(found.step) if found else None
        cut = cut_of(runtime, found.step) if found else None
        drawn = "" if cut is None else f"\n{cut_text(cut)}"
        self._show(
            tables.why(found, graph) + drawn,
            lambda: (
                tables.why_card(found, graph)
                + ("" if cut is None else cut_html(cut, is_open=True))
            ),
        )

    def _graphs(self, rest: str) -> None:
        refuse("graphs", rest)
        records = runtime_here().compiled_graphs()
        self._show(tables.graphs(records), lambda: tables.graphs_html(records))

    def _cache(self, rest: str) -> None:
        runtime = runtime_here()
        command, *words = rest.split() or [""]
        if command == "drop":
            try:
                self._print(executables.drop(runtime, words))
            except ValueError as error:
                raise UsageError(str(error)) from None
        elif command == "--sort" and len(words) == 1:
            try:
                found = executables.ordered(runtime.cached_executables(), words[0])
            except ValueError as error:
                raise UsageError(str(error)) from None
            self._show(executables.table(found), lambda: executables.to_html(found))
        elif command:
            raise UsageError(executables.unknown(rest))
        else:
            self._show_executables(runtime)

    def _show_executables(self, runtime: ModuleType) -> None:
        """Display a static table, and where there is a page one with buttons."""
        entries = runtime.cached_executables()

        def view() -> Any:
            from lazyviz.widgets.cache_view import CacheView

            return CacheView(runtime, _CACHE_TWIN)

        shown = executables.table(entries)
        copy = partial(executables.to_html, entries)
        dual_display.show(
            self._shell, shown, copy, _CACHE_TWIN, view if entries else None
        )

    def _compile(self, rest: str) -> None:
        from lazyviz.timing import compile_share

        alone = "alone, it tells of what is pending, or of the latest compile."
        step = step_named("compile", rest, alone)
        runtime = runtime_here()
        graph = runtime.pending_graph() if step is None else None
        try:
            if graph is not None and graph.nodes:
                expected = self._session.expectations
                shares = compile_share.of_pending(runtime, graph, expected)
            else:
                shares = compile_share.of_step(runtime, step)
        except ValueError as error:
            raise UsageError(str(error)) from None
        self._show(shares.to_text(), shares.to_html)

    def _timeline(self, rest: str) -> None:
        from lazyviz.timing import timeline as timelines

        try:
            shown = timelines.run_magic(self._session, rest)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if isinstance(shown, timelines.TimelineShown):
            shown.show(self._shell)
        else:
            self._print(f"Written to {shown}. https://ui.perfetto.dev opens it.")

    def _reuse(self, rest: str) -> None:
        if not rest:
            raise UsageError(
                "%lazy reuse takes a pending tensor, such as %lazy reuse loss, to tell what "
                "looking at it costs." + names_hint(self._shell.user_ns)
            )
        tensors = self._tensors("reuse", rest)
        if len(tensors) != 1 or not runtime_here().is_pending(tensors[0]):
            raise UsageError(
                f"%lazy reuse takes one pending tensor; {rest} is "
                f"{'computed already' if len(tensors) == 1 else 'several tensors'}."
            )
        self._print(str(runtime_here().reuse_choice(tensors[0])))

    def _drop(self, rest: str) -> None:
        if rest:
            try:
                self._print(live.drop(runtime_here(), self._shell, rest))
            except ValueError as error:
                raise UsageError(str(error)) from None
            return
        dropped = runtime_here().discard_pending()
        self._print(
            f"Dropped {text.plural(dropped, 'pending op')}. Tensors that only they would "
            "have made are lost; others keep the data that they had."
            if dropped
            else "Nothing is pending."
        )

    def _report(self, rest: str) -> None:
        from lazyviz.documents import session_report

        try:
            words = shlex.split(rest)
        except ValueError as error:
            raise UsageError(f"%lazy report {rest}: {error}.") from None
        names = [word for word in words if not word.startswith("--")]
        unknown = [word for word in words if word.startswith("--")]
        flags = set(completion.REPORT_OPTIONS) & set(unknown)
        if len(names) != 1 or set(unknown) != flags:
            raise UsageError(
                f"%lazy report takes one file, such as report.html, and knows the options "
                f"--no-source and --force; it got {rest!r}."
            )
        try:
            written = session_report.write(
                names[0], source="--no-source" not in flags, force="--force" in flags
            )
        except session_report.ReportError as error:
            raise UsageError(f"%lazy report: {error}") from None
        self._print(str(written))
