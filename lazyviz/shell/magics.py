"""The magic `%lazy`, and what the Tab key offers behind it."""

from __future__ import annotations

import ast
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from IPython.core.completer import SimpleCompletion, context_matcher
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class

from lazyviz import views
from lazyviz.doc import Doc, Sentence
from lazyviz.inspection.subjects import NothingToShow
from lazyviz.shell import commands, displayed  # noqa: F401 - its views register themselves
from lazyviz.shell.tracebacks import restorer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from IPython.core.completer import CompletionContext, SimpleMatcherResult
    from IPython.core.interactiveshell import InteractiveShell

    from lazyviz.session import Session


NAME = "lazy"


def completions(line: str, namespace: dict[str, Any]) -> list[str] | None:
    """Return what can follow on a `%lazy` line up to the cursor, None for other lines."""
    words = line.lstrip().split(" ")
    if words[0] not in {f"%{NAME}", f"%%{NAME}"} or len(words) == 1:
        return None
    given, start = [word for word in words[1:-1] if word], words[-1]
    if words[0].startswith("%%"):
        offered: Iterable[str] = () if given else sorted(views.CELL_USAGE)
    elif not given:
        offered = sorted(views.VIEWS)
    elif given[0] in views.VIEWS:
        offered = views.VIEWS[given[0]].completions(
            views.Typed(given[1:], start, namespace)
        )
    else:
        return []
    return [word for word in offered if word.startswith(start)]


def matcher(shell: InteractiveShell) -> Any:
    """Return a matcher for a shell's completer."""

    @context_matcher()
    def lazyviz_matcher(context: CompletionContext) -> SimpleMatcherResult:
        line = context.line_with_cursor[: context.cursor_position]
        found = completions(line, shell.user_ns)
        if found is None:
            return {"completions": [], "suppress": False}
        return {
            "completions": [SimpleCompletion(name, type="param") for name in found],
            "suppress": bool(found),
        }

    return lazyviz_matcher


@magics_class
class LazyMagics(Magics):
    """The magics of lazyviz."""

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        super().__init__(shell)
        self._shell: Any = shell
        self._session = session

    @line_cell_magic
    def lazy(self, line: str, cell: str | None = None) -> None:
        """Look into the lazy runtime."""
        command, *others = line.split(maxsplit=1) or [""]
        rest = others[0].strip() if others else ""
        if cell is not None:
            self._cell_magic(command, rest, cell)
            return
        command = command or "status"
        if command not in views.VIEWS:
            if command in views.CELL_USAGE:
                raise UsageError(
                    f"%lazy {command} has no cell to run. Write %%lazy {command} with two % as "
                    "the first line of one."
                )
            raise UsageError(views.unknown(command))
        asked = views.Command(command, rest, self._shell, self._session)
        if rest and not views.VIEWS[command].takes_more:
            asked.refuse([rest])
        try:
            shown = views.VIEWS[command].make(asked)
        except NothingToShow as answer:
            shown = Doc([Sentence(str(answer))])
        if shown is not None:
            displayed.show(self._shell, shown)

    def _cell_magic(self, command: str, rest: str, cell: str) -> None:
        if command not in views.CELL_USAGE:
            written = f"%%lazy {command}".rstrip()
            raise UsageError(
                f"{written} is not a cell magic. %%lazy step [NAME] runs the cell as "
                "one step, %%lazy eager runs it in eager debug mode, %%lazy time [N] times it, "
                "%%lazy profile says where its time goes; "
                f"%lazy {command or 'status'} with one % is a line magic."
            )
        runtime = views.Command(command, rest, self._shell, self._session).runtime
        run = partial(run_in_place, self._shell, cell, self._session.cell_number or 0)
        if command == "time":
            self._time(runtime, rest, run)
        elif command == "profile":
            self._profile(rest, run)
        elif command == "eager" and rest:
            raise UsageError(f"%%lazy eager takes nothing after it, but got {rest!r}.")
        elif command == "eager":
            with runtime.eager_mode():
                run()
        else:
            with runtime.step(rest or None):
                run()

    def _time(self, runtime: ModuleType, rest: str, run: Callable[[], None]) -> None:
        from lazyviz.timing import celltimer

        with views.refused():
            count = celltimer.runs_asked(rest)
        runs = [celltimer.timed(runtime, run) for _ in range(count)]
        displayed.show(self._shell, celltimer.doc(runs))

    def _profile(self, rest: str, run: Callable[[], None]) -> None:
        from lazyviz.timing import capture

        with views.refused():
            options = capture.asked(rest)
        profile = capture.profile_cell(run, options)
        displayed.show(self._shell, capture.doc(profile, options))


LazyMagics.lazy.__doc__ = views.help_page().to_text()


def install(shell: InteractiveShell, session: Session) -> list[Callable[[], None]]:
    """Register the magics and their completion; return the functions that undo it."""
    manager = shell.magics_manager
    tables: list[dict[str, Any]] = [*manager.magics.values(), manager.registry]
    before = [dict(table) for table in tables]
    magics = LazyMagics(shell, session)
    manager.register(magics)

    def forget() -> None:
        # Magics lists itself among the shell's configurables when it is made.
        configurables: list[Any] = shell.configurables
        configurables[:] = [each for each in configurables if each is not magics]

    matchers = shell.Completer.custom_matchers
    ours = matcher(shell)
    matchers.append(ours)

    def remove_matcher() -> None:
        if ours in matchers:
            matchers.remove(ours)

    undo = list(map(restorer, tables, before))
    return [*undo, forget, remove_matcher]


def run_in_place(shell: Any, cell: str, number: int) -> None:
    """Run the body of a cell magic so that errors rise through and line numbers hold."""
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
