"""`%lazy` and `%%lazy step`: parse the line, call a function, show what it returns."""

from __future__ import annotations

import inspect
import re
import shlex
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class

from lazyviz import formatters, parse_report
from lazyviz import session as sessions
from lazyviz.hlo.frames import with_lines, with_named_files
from lazyviz.inspection import executables, live, tables
from lazyviz.inspection.cuts import cut_of
from lazyviz.render import html, text
from lazyviz.render.cuts import cut_html, cut_text
from lazyviz.render.escape import printable
from lazyviz.shell import completion
from lazyviz.shell.expressions import (
    ExpressionFailed,
    names_hint,
    no_tensors,
    tensors_in,
    value_of,
)
from lazyviz.shell.inplace import run_in_place

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from IPython.core.interactiveshell import InteractiveShell

    from lazyviz.session import Session

_GRAPH = re.compile(r"graph\.\d+")
_TALL_LINES = 60  # a longer listing scrolls
_MAX_LISTED = 400_000  # characters; what a notebook still opens quickly with


@magics_class
class LazyMagics(Magics):
    """The magics of lazyviz."""

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        super().__init__(shell)
        self._shell: Any = shell
        self._session = session

    @line_cell_magic
    def lazy(self, line: str, cell: str | None = None) -> None:
        """Look into the lazy runtime.

        %lazy, %lazy status    what is pending, what ran so far, and the settings
        %lazy graph [EXPR]     draw the pending graph, of everything or of one tensor
        %lazy explore [EXPR]   the same to walk through: click an op to see its value; EXPR may
                               also be a step's number, a graph, HLO text or a path in quotes
        %lazy ir [EXPR]        list its ops as text, each with the line it came from
        %lazy hlo [EXPR]       its HLO as XLA optimised it; --stablehlo: as lowered
        %lazy metrics          counts and times of the whole session, and what stands out
        %lazy live             tensors on the device: size, age, line, who holds them, what
                               grows; --sort COLUMN, --reverse, --above N pending ops
        %lazy diff A B         what differs between two steps, pending tensors, or programs
        %lazy diff last        the same for the last step that ran another graph
        %lazy minimise A B     the smallest part of program A that B lacks, or, where B is a
                               function of a graph, the smallest for which it is true
        %lazy replicas FOLDER  which of several replicas went another way, from what each has
                               recorded (LAZYRT_RECORD=folder) or torch_xla has dumped
        %lazy step [N]         the last N steps: what ended each, what it cost
        %lazy eager on|off     compile and run each op by itself from now on, or record again;
                               alone, say which mode holds, and every setting with its origin
        %lazy why [STEP]       why a step was compiled, the latest one by default
        %lazy graphs           every compiled graph: size, runs, compile time, cause
        %lazy cache            executables in memory and on disk: age, size, line, hits;
                               cache drop KEY, drop all, drop older 7d drops some
        %lazy reuse EXPR       what looking at a pending tensor costs, as a peek and with
                               materialise(EXPR, reuse=True); runs nothing
        %lazy drop             drop the pending ops, unrun; drop NAME, drop Out[4], drop
                               traceback let go of tensors and say what still holds them
        %lazy compile [STEP]   what compiling takes, or will take, and for which blocks
        %lazy timeline [N]     where the time of the last N cells went; --export FILE.json
                               writes the session for Perfetto
        %lazy report FILE.html the session as one web page for a bug report; --no-source leaves
                               the cells' source out, --force replaces any file
        %lazy on, %lazy off    show a strip after each cell, or none
        %lazy help [NAME]      this text, or what it says of one subcommand

        %%lazy step [NAME]     run the cell as one step, with a barrier at its end
        %%lazy eager           run the cell in eager debug mode
        %%lazy time [N]        run the cell N times and say which phase took how long

        Looking never runs the pending graph and never changes it. EXPR is a tensor, a
        list, tuple or dict of tensors, a module, or any expression that gives one.
        """
        __tracebackhide__ = True
        command, *others = line.split(maxsplit=1) or [""]
        rest = others[0].strip() if others else ""
        if cell is not None:
            self._cell_magic(command, rest, cell)
            return
        command = command or "status"
        if command not in completion.SUBCOMMANDS:
            raise UsageError(completion.unknown(command))
        failed: Exception | None = None
        try:
            getattr(self, f"_{command}")(rest)
        except ExpressionFailed as error:
            failed = error.error
        if failed is not None:
            raise failed

    def _cell_magic(self, command: str, rest: str, cell: str) -> None:
        __tracebackhide__ = True
        if command not in completion.CELL_COMMANDS:
            written = f"%%lazy {command}".rstrip()
            raise UsageError(
                f"{written} is not a cell magic. %%lazy step [NAME] runs the cell as "
                "one step, %%lazy eager runs it in eager debug mode, %%lazy time [N] times it; "
                f"%lazy {command or 'status'} with one % is a line magic."
            )
        if command == "time":
            self._time(rest, cell)
            return
        if command == "eager":
            _refuse("eager", rest, percents="%%")
            scope = _runtime().eager_mode()
        else:
            scope = _runtime().step(rest or None)
        with scope:
            run_in_place(self._shell, cell, self._session.cell_number or 0)

    def _help(self, rest: str) -> None:
        page = inspect.cleandoc(LazyMagics.lazy.__doc__ or "")
        if not rest:
            self._print(page)
            return
        if rest not in completion.SUBCOMMANDS:
            raise UsageError(completion.unknown(rest))
        # An entry is its line, and the lines below it that are indented deeper.
        entry = re.compile(rf"^.*%lazy {rest}\b.*(\n {{5,}}.*)*", re.MULTILINE)
        self._print("\n".join(found[0] for found in entry.finditer(page)))

    def _time(self, rest: str, cell: str) -> None:
        __tracebackhide__ = True
        from lazyviz.timing import celltimer

        runtime = _runtime()
        try:
            count = celltimer.runs_asked(rest)
        except ValueError as error:
            raise UsageError(str(error)) from None
        number = self._session.cell_number or 0
        run = partial(run_in_place, self._shell, cell, number)
        runs = []
        for _ in range(count):  # no comprehension: its frame would be in tracebacks
            runs.append(celltimer.timed(runtime, run))  # noqa: PERF401
        self._print(celltimer.report(runs))

    def _status(self, rest: str) -> None:
        _refuse("status", rest)
        self._print(tables.status(sessions.runtime(), self._session))

    def _graph(self, rest: str) -> None:
        graph = self._graph_of("graph", rest)
        if graph is not None:
            hint = f"%lazy explore {rest}".strip() + ": click an op to see its value"
            bundle = formatters.graph_bundle(graph, hint)
            self._shell.display_pub.publish(bundle, metadata={})

    def _explore(self, rest: str) -> None:
        from lazyviz.hlo import HloError
        from lazyviz.inspection import exploring

        things = self._explored(rest)
        try:
            view = exploring.explore(*things, shell=self._shell)
        except HloError as error:
            raise UsageError(f"%lazy explore {rest}: {error}") from None
        if not view.is_empty:
            view.show()
        elif rest:
            self._print(f"{rest} is computed already: nothing is pending for it.")
        else:
            self._print("Nothing is pending.")

    def _explored(self, expression: str) -> list[Any]:
        """Return what an expression names: tensors, a step, a graph, a program."""
        if not expression:
            _runtime()
            return []
        value = value_of(self._shell, "explore", expression)
        is_program = isinstance(value, (int, str, PurePath)) or any(
            hasattr(value, name) for name in ("lower", "known_hlo", "holdings")
        )
        return [value] if is_program else self._found("explore", expression, value)

    def _ir(self, rest: str) -> None:
        graph = self._graph_of("ir", rest)
        if graph is not None:
            self._list(text.listing(graph), "print(lazyrt.pending_graph().to_text())")

    def _hlo(self, rest: str) -> None:
        words = rest.split()
        dialect = "stablehlo" if completion.STABLEHLO in words else "hlo"
        options = [word for word in words if word.startswith("--")]
        if options not in ([], [completion.STABLEHLO]):
            raise UsageError(
                f"%lazy hlo has no option {options[0]}. Its only option is --stablehlo."
            )
        expression = rest.replace(completion.STABLEHLO, "").strip()
        graph = self._graph_of("hlo", expression)
        if graph is not None:
            shown = with_named_files if dialect == "stablehlo" else with_lines
            listing = shown(graph.lower().as_text(dialect), _file_text)
            call = f"print(lazyrt.pending_graph().lower().as_text({dialect!r}))"
            self._list(listing, call)

    def _metrics(self, rest: str) -> None:
        if rest and rest not in completion.METRICS_OPTIONS:
            raise UsageError(
                f"%lazy metrics {rest}: the only options are --raw (the report in torch_xla's "
                "format) and --legacy (the same with the original's rounding)."
            )
        runtime = _runtime()
        if rest:
            self._print(runtime.metrics_report(legacy=rest == "--legacy"))
            return
        report = parse_report(runtime.metrics_report("dict"))
        bundle = {"text/plain": report.text(), "text/html": report.to_html()}
        self._shell.display_pub.publish(bundle, metadata={})

    def _live(self, rest: str) -> None:
        runtime = _runtime()
        try:
            chosen = live.options(rest)
        except ValueError as error:
            raise UsageError(str(error)) from None
        live.show(runtime, self._shell, chosen)

    def _diff(self, rest: str) -> None:
        from lazyviz.hlo import HloError
        from lazyviz.inspection import comparison

        runtime = _runtime()
        words = rest.split()
        if words == ["last"]:
            steps = comparison.last_two(runtime)
            if steps is None:
                raise UsageError(
                    "%lazy diff last needs two steps with different graphs, and this session "
                    "has none. Run the training cell once more, or name two steps."
                )
            words = [str(step) for step in steps]
        if len(words) != 2 or "last" in words:  # noqa: PLR2004
            raise UsageError(
                f"%lazy diff takes `last`, or two programs, such as %lazy diff 11 12: steps, "
                f"variables, or paths in quotes; it got {rest!r}. %lazy step lists the steps."
            )
        try:
            view = comparison.compare(*[self._program("diff", word) for word in words])
        except HloError as error:
            raise UsageError(f"%lazy diff {rest}: {error}") from None
        view.show(self._shell)

    def _minimise(self, rest: str) -> None:
        from lazyviz.hlo import HloError
        from lazyviz.inspection import comparison

        _runtime()
        words = rest.split()
        if len(words) != 2:  # noqa: PLR2004
            raise UsageError(
                f"%lazy minimise takes a program and what to look for, such as %lazy minimise "
                f"12 11 (what step 12 has and step 11 lacks) or %lazy minimise 12 shows (a "
                f"function of a graph); it got {rest!r}. %lazy step lists the steps."
            )
        program, wanted = (self._program("minimise", word) for word in words)
        try:
            shows = wanted if callable(wanted) else comparison.lacked_by(wanted)
            view = comparison.minimise(program, shows)
        except HloError as error:
            raise UsageError(f"%lazy minimise {rest}: {error}") from None
        self._shell.display_pub.publish(view._repr_mimebundle_(), metadata={})

    def _replicas(self, rest: str) -> None:
        from lazyviz.divergence.report import replicas
        from lazyviz.foreign.evidence import EvidenceError

        try:
            paths = shlex.split(rest)
            if not paths:
                raise UsageError(
                    "%lazy replicas takes a folder that processes recorded into, or a file of each; "
                    "it got nothing. Run the program with LAZYRT_RECORD=steps, then %lazy replicas "
                    "steps."
                )
            found = replicas(paths)
        except (EvidenceError, ValueError) as error:
            raise UsageError(f"%lazy replicas {rest}: {error}") from None
        self._show(found.text(), found.to_html)

    def _program(self, command: str, word: str) -> Any:
        if word.isdecimal():
            return int(word)
        if _GRAPH.fullmatch(word):
            return word
        return value_of(self._shell, command, word)

    def _step(self, rest: str) -> None:
        if rest and not (rest.isdecimal() and int(rest)):
            name = f" {rest}" if rest.isidentifier() else ""
            raise UsageError(
                f"%lazy step {rest}: {rest!r} is not a number of steps. To run a cell as "
                f"a step, start it with %%lazy step{name}."
            )
        rows, limit = self._session.steps, int(rest or 10)
        self._show(tables.steps(rows, limit), lambda: tables.steps_html(rows, limit))

    def _eager(self, rest: str) -> None:
        runtime = _runtime()
        if rest in {"on", "off"}:
            origin = f"%lazy eager {rest}"
            if self._session.cell_number is not None:
                origin += f" in cell {self._session.cell_number}"
            runtime.config.set("eager", value=rest == "on", origin=origin)
        elif rest:
            raise UsageError(
                f"%lazy eager {rest}: {rest!r} is neither on nor off, so the mode stays "
                f"{runtime.mode()}. Alone, %lazy eager says who set it."
            )
        mode = runtime.mode()
        lines = [f"mode: {mode}, set by {mode.scope}"]
        if not rest:
            lines += ["", runtime.config.table()]
        self._print("\n".join(lines))

    def _why(self, rest: str) -> None:
        step = _step("why", rest, "alone, it explains the latest compile.")
        runtime = _runtime()
        try:
            found = runtime.explain(step)
        except ValueError as error:
            raise UsageError(str(error)) from None
        why = tables.why(found, runtime.graph_of_step(found.step) if found else None)
        cut = cut_of(runtime, found.step) if found else None
        if cut is None:
            self._show(why, lambda: html.wrapped(why))
        else:
            self._show(
                f"{why}\n{cut_text(cut)}",
                lambda: html.wrapped(why) + cut_html(cut, is_open=True),
            )

    def _graphs(self, rest: str) -> None:
        _refuse("graphs", rest)
        records = _runtime().compiled_graphs()
        self._show(tables.graphs(records), lambda: tables.graphs_html(records))

    def _cache(self, rest: str) -> None:
        runtime = _runtime()
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
            executables.show(runtime, self._shell)

    def _compile(self, rest: str) -> None:
        from lazyviz.timing import compile_share

        alone = "alone, it tells of what is pending, or of the latest compile."
        step = _step("compile", rest, alone)
        runtime = _runtime()
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
        if len(tensors) != 1 or not _runtime().is_pending(tensors[0]):
            raise UsageError(
                f"%lazy reuse takes one pending tensor; {rest} is "
                f"{'computed already' if len(tensors) == 1 else 'several tensors'}."
            )
        self._print(str(_runtime().reuse_choice(tensors[0])))

    def _drop(self, rest: str) -> None:
        if rest:
            try:
                self._print(live.drop(_runtime(), self._shell, rest))
            except ValueError as error:
                raise UsageError(str(error)) from None
            return
        dropped = _runtime().discard_pending()
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

    def _on(self, rest: str) -> None:
        _refuse("on", rest)
        self._session.strips = True

    def _off(self, rest: str) -> None:
        _refuse("off", rest)
        self._session.strips = False

    def _graph_of(self, command: str, expression: str) -> Any:
        """Return a graph, or None after saying that nothing is pending."""
        runtime = _runtime()
        if not expression:
            graph = runtime.pending_graph()
            if not graph.nodes:
                self._print("Nothing is pending.")
                return None
            return graph
        tensors = self._tensors(command, expression)
        pending = [tensor for tensor in tensors if runtime.is_pending(tensor)]
        if not pending:
            self._print(f"{expression} is computed already: nothing is pending for it.")
            return None
        return runtime.pending_graph(*pending)

    def _tensors(self, command: str, expression: str) -> list[Any]:
        value = value_of(self._shell, command, expression)
        return self._found(command, expression, value)

    def _found(self, command: str, expression: str, value: Any) -> list[Any]:
        tensors = tensors_in(value)
        if not tensors:
            namespace = self._shell.user_ns
            raise UsageError(no_tensors(command, expression, value, namespace))
        return tensors

    def _list(self, listing: str, whole: str) -> None:
        """Show a listing; a long one in a box that scrolls, and no more than a notebook takes.

        Args:
            listing: The text.
            whole: What gives all of it.
        """
        listing = printable(listing)
        if len(listing) > _MAX_LISTED:
            end = listing.rfind("\n", 0, _MAX_LISTED)
            more = text.plural(listing.count("\n", end + 1) + 1, "line")
            listing = f"{listing[:end]}\n... {more} more; {whole} gives all of them"
        bundle = {"text/plain": listing}
        if listing.count("\n") > _TALL_LINES and formatters.wants_html(self._shell):
            bundle["text/html"] = html.pre(listing)
        self._shell.display_pub.publish(bundle, metadata={})

    def _show(self, shown: str, as_html: Callable[[], str]) -> None:
        """Publish text, and what a page shows in place of it."""
        bundle = {"text/plain": printable(shown)}
        if formatters.wants_html(self._shell):
            bundle["text/html"] = as_html()
        self._shell.display_pub.publish(bundle, metadata={})

    def _print(self, shown: str) -> None:
        self._shell.display_pub.publish({"text/plain": printable(shown)}, metadata={})


def install(shell: InteractiveShell, session: Session) -> list[Callable[[], None]]:
    """Register the magics and their completion; return the functions that undo it."""
    magics = LazyMagics(shell, session)
    manager = shell.magics_manager
    tables: list[dict[str, Any]] = [manager.magics["line"], manager.magics["cell"]]
    before = [table.get(completion.NAME) for table in tables]
    registry_name = LazyMagics.__name__
    manager.register(magics)

    def unregister() -> None:
        for table, function in zip(tables, before, strict=True):
            # Another extension's magic of this name, registered later, stays.
            if getattr(table.get(completion.NAME), "__self__", None) is not magics:
                continue
            if function is None:
                del table[completion.NAME]
            else:
                table[completion.NAME] = function
        if manager.registry.get(registry_name) is magics:
            del manager.registry[registry_name]
        # Magics lists itself among the shell's configurables when it is made.
        configurables: list[Any] = shell.configurables
        others = [each for each in configurables if each is not magics]
        configurables[:] = others

    matchers = shell.Completer.custom_matchers
    matcher = completion.matcher(shell)
    matchers.append(matcher)

    def remove_matcher() -> None:
        if matcher in matchers:
            matchers.remove(matcher)

    return [unregister, remove_matcher]


def _runtime() -> ModuleType:
    runtime = sessions.runtime()
    if runtime is None:
        raise UsageError(
            "lazyrt is not imported, so there is no lazy device to look at. "
            "Run `import lazyrt` and make tensors with device='lazyrt'."
        )
    return runtime


def _step(command: str, rest: str, alone: str) -> int | None:
    """Return the number of a step that a line names, None if it names none."""
    if not rest:
        return None
    if not rest.isdecimal():
        raise UsageError(
            f"%lazy {command} {rest}: {rest!r} is not a step's number. %lazy step lists "
            f"them; {alone}"
        )
    return int(rest)


def _file_text(file: str) -> str:
    """Return what the reader knows a file as: `cell 3`, else its path."""
    current = sessions.current()
    cell = current.cell_of_file(file) if current is not None else None
    return file if cell is None else f"cell {cell}"


def _refuse(command: str, rest: str, percents: str = "%") -> None:
    if rest:
        raise UsageError(
            f"{percents}lazy {command} takes nothing after it, but got {rest!r}."
        )
