"""`%lazy` and `%%lazy step`: parse the line, call a function, show what it returns.

The subcommands stand by family in `lazyviz.shell.program_commands` and `session_commands`; here
are those that change how the session runs.
"""

from __future__ import annotations

import ast
import inspect
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class

from lazyviz.doc import Table
from lazyviz.inspection import tables
from lazyviz.render import html
from lazyviz.shell import completion
from lazyviz.shell.commands import refuse, runtime_here
from lazyviz.shell.expressions import ExpressionFailed
from lazyviz.shell.program_commands import ProgramCommands
from lazyviz.shell.session_commands import SessionCommands

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

    from lazyviz.session import Session


_ENTRY = re.compile(r"(%%?lazy\b.*?) {2,}(\S.*)")
_SENTENCE = ". "
_CONTINUED = re.compile(r" {5,}(\S.*)")


@magics_class
class LazyMagics(ProgramCommands, SessionCommands, Magics):
    """The magics of lazyviz."""

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        super().__init__(shell)
        self._shell: Any = shell
        self._session = session

    @line_cell_magic
    def lazy(self, line: str, cell: str | None = None) -> None:
        """Look into the lazy runtime.

        What is pending, and its program
        %lazy, %lazy status    what is pending, what ran so far, and the settings
        %lazy graph [EXPR]     draw the pending graph, of everything or of one tensor
        %lazy explore [EXPR]   the same to walk through: click an op to see its value; EXPR may
                               also be a step's number, a graph, HLO text or a path in quotes
        %lazy ir [EXPR]        list its ops as text, each with the line it came from
        %lazy hlo [EXPR]       its HLO as XLA optimised it; --stablehlo: as lowered
        %lazy nan [EXPR]       the ops where NaN and infinities of pending tensors begin, with the
                               numbers that they were made of
        %lazy reuse EXPR       what looking at a pending tensor costs, as a peek and with
                               materialise(EXPR, reuse=True); runs nothing

        What ran, and why it was compiled
        %lazy step [N]         the last N steps: what ended each, what it cost
        %lazy why [STEP]       why a step was compiled, the latest one by default
        %lazy graphs           every compiled graph: size, runs, compile time, cause
        %lazy diff A B         what differs between two steps, pending tensors, or programs
        %lazy diff last        the same for the latest new graph and the nearest one before it
        %lazy minimise A B     the smallest part of program A that B lacks, or, where B is a
                               function of a graph, the smallest for which it is true
        %lazy replicas FOLDER  which of several replicas went another way, from what each has
                               recorded (LAZYRT_RECORD=folder) or torch_xla has dumped

        Time and memory
        %lazy timeline [N]     where the time of the last N cells went; --export FILE.json
                               writes the session for Perfetto
        %lazy compile [STEP]   what compiling takes, or will take, and for which blocks
        %lazy metrics          counts and times of the whole session, and what stands out; --raw
                               and --legacy print torch_xla's format
        %lazy live             tensors on the device: size, age, line, who holds them, what
                               grows; --sort COLUMN, --reverse, --above N pending ops
        %lazy cache            executables in memory and on disk: age, size, line, hits;
                               --sort COLUMN; cache drop KEY, drop all, drop older 7d

        What changes the session
        %lazy drop             drop the pending ops, unrun; drop NAME, drop Out[4], drop
                               traceback let go of tensors and say what still holds them
        %lazy eager on|off     compile and run each op by itself from now on, or record again;
                               alone, say which mode holds, and every setting with its origin
        %lazy on, %lazy off    show a strip after each cell, or none
        %%lazy step [NAME]     run the cell as one step, with a barrier at its end
        %%lazy eager           run the cell in eager debug mode
        %%lazy time [N]        run the cell N times and say which phase took how long

        To show to others
        %lazy report FILE      the session as one web page for a bug report, FILE.html; --no-source
                               leaves the cells' source out, --force replaces any file
        %lazy help [NAME]      this text, or what it says of one subcommand

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
            if command in completion.CELL_COMMANDS:
                raise UsageError(
                    f"%lazy {command} has no cell to run. Write %%lazy {command} with two % as "
                    "the first line of one."
                )
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
            refuse("eager", rest, percents="%%")
            scope = runtime_here().eager_mode()
        else:
            scope = runtime_here().step(rest or None)
        with scope:
            run_in_place(self._shell, cell, self._session.cell_number or 0)

    def _help(self, rest: str) -> None:
        page = inspect.cleandoc(LazyMagics.lazy.__doc__ or "")
        if rest:
            if rest not in {*completion.SUBCOMMANDS, *completion.CELL_COMMANDS}:
                raise UsageError(completion.unknown(rest))
            page = _entries_of(page, rest)
        self._show(page, lambda: _help_html(page))

    def _time(self, rest: str, cell: str) -> None:
        __tracebackhide__ = True
        from lazyviz.timing import celltimer

        runtime = runtime_here()
        try:
            count = celltimer.runs_asked(rest)
        except ValueError as error:
            raise UsageError(str(error)) from None
        number = self._session.cell_number or 0
        run = partial(run_in_place, self._shell, cell, number)
        runs = []
        for _ in range(count):  # no comprehension: its frame would be in tracebacks
            runs.append(celltimer.timed(runtime, run))  # noqa: PERF401
        self._show(celltimer.report(runs), lambda: celltimer.to_html(runs))

    def _eager(self, rest: str) -> None:
        runtime = runtime_here()
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
        line = f"mode: {mode}, set by {mode.scope}"
        if rest:
            self._print(line)
            return
        config = runtime.config
        self._show(
            f"{line}\n\n{config.table()}", lambda: tables.settings_html(line, config)
        )

    def _on(self, rest: str) -> None:
        refuse("on", rest)
        self._session.strips = True

    def _off(self, rest: str) -> None:
        refuse("off", rest)
        self._session.strips = False


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


def _entries_of(page: str, name: str) -> str:
    """Return the entries of one subcommand: their lines, and those below that are indented."""
    entry = re.compile(rf"^.*%lazy {name}\b.*(\n {{5,}}.*)*", re.MULTILINE)
    return "\n".join(found[0] for found in entry.finditer(page))


def _help_html(page: str) -> str:
    """Return the help as tables with a line above each; their words wrap where a page is narrow."""
    parts: list[str] = []
    rows: list[list[str]] = []
    for line in [*page.splitlines(), ""]:
        entry, more = _ENTRY.fullmatch(line), _CONTINUED.fullmatch(line)
        if entry is not None:
            rows.append([entry[1], entry[2]])
        elif more is not None:
            rows[-1][1] += f" {more[1]}"
        elif rows:
            parts.append(Table(("command", "what it does"), rows).to_html())
            rows = []
        if line and entry is None and more is None:
            is_heading = not line.endswith(".") and _SENTENCE not in line
            parts.append(html.line(line) if is_heading else html.muted(line))
    return "".join(parts)


def run_in_place(shell: Any, cell: str, number: int) -> None:
    """Run the body of a cell magic so that errors rise through and line numbers hold.

    Args:
        shell: Where it runs.
        cell: The body.
        number: The cell's execution count.
    """
    __tracebackhide__ = True
    # IPython drops empty lines at the start. With them and one for the magic's own line,
    # line 3 of the cell stays line 3.
    dropped = re.match(r"(?:[^\S\n]*\n)*", cell)
    lead = "\n" + "\n" * (dropped[0].count("\n") if dropped else 0)
    source = lead + shell.transform_cell(cell)
    name = shell.compile.cache(source, number)
    tree = shell.transform_ast(shell.compile.ast_parse(source, filename=name))
    body: list[Any] = tree.body
    shows_last = (
        bool(body)
        and isinstance(body[-1], ast.Expr)
        and not shell.displayhook.semicolon_at_end_of_expression(cell)
    )
    parts: list[tuple[Any, str]] = [(ast.Module(body, []), "exec")]
    if shows_last:
        parts = [
            (ast.Module(body[:-1], []), "exec"),
            (ast.Interactive([body[-1]]), "single"),
        ]
    for tree_part, mode in parts:
        code = shell.compile(tree_part, name, mode)
        exec(code, shell.user_global_ns, shell.user_ns)  # noqa: S102
