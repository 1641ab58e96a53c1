"""`%lazy graph`, `explore`, `ir`, `hlo`, `diff`, `minimise`, `nan`, `replicas`: programs."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePath
from typing import Any

from IPython.core.error import UsageError

from lazygraph.read.hlo import with_lines, with_named_files
from lazyviz import formatters
from lazyviz import session as sessions
from lazyviz.render import text
from lazyviz.shell import completion
from lazyviz.shell.commands import Commands, runtime_here
from lazyviz.shell.expressions import value_of

_GRAPH = re.compile(r"graph\.\d+")


class ProgramCommands(Commands):
    """Subcommands that show programs."""

    def _graph(self, rest: str) -> None:
        graph = self._graph_of("graph", rest)
        if graph is not None:
            hint = f"%lazy explore {rest}".strip() + ": click an op to see its value"
            bundle = formatters.graph_bundle(graph, hint)
            self._shell.display_pub.publish(bundle, metadata={})

    def _explore(self, rest: str) -> None:
        from lazygraph import HloError
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
            runtime_here()
            return []
        value = value_of(self._shell, "explore", expression)
        is_program = isinstance(value, (int, str, PurePath)) or any(
            hasattr(value, name) for name in ("lower", "known_hlo", "holdings")
        )
        return [value] if is_program else self._found("explore", expression, value)

    def _ir(self, rest: str) -> None:
        graph = self._graph_of("ir", rest)
        if graph is not None:
            names = self._session.input_names_in(graph)
            lines = [text.listing(graph, names=names), *text.number_lines(graph)]
            listing = "\n".join(lines)
            self._list(listing, "print(lazyrt.pending_graph().to_text())")

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
            listing = shown(graph.lower().as_text(dialect), file_text)
            call = f"print(lazyrt.pending_graph().lower().as_text({dialect!r}))"
            self._list(listing, call)

    def _diff(self, rest: str) -> None:
        from lazygraph import HloError
        from lazyviz.inspection import comparison

        runtime = runtime_here()
        words = _words(rest)
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
        from lazygraph import HloError
        from lazyviz.inspection import comparison

        runtime_here()
        words = _words(rest)
        if len(words) != 2:  # noqa: PLR2004
            raise UsageError(
                f"%lazy minimise takes a program and what to look for, such as %lazy minimise "
                f"12 11 (what step 12 has and step 11 lacks) or %lazy minimise 12 shows (a "
                f"function of a graph); it got {rest!r}. %lazy step lists the steps."
            )
        program, wanted = (self._program("minimise", word) for word in words)
        try:
            found = (
                comparison.minimise if callable(wanted) else comparison.minimise_lacked
            )
            view = found(program, wanted)
        except HloError as error:
            raise UsageError(f"%lazy minimise {rest}: {error}") from None
        self._shell.display_pub.publish(view._repr_mimebundle_(), metadata={})

    def _nan(self, rest: str) -> None:
        from lazyviz.inspection import not_finite

        runtime = runtime_here()
        if rest:
            tensors = self._tensors("nan", rest)
            if not any(map(runtime.is_pending, tensors)):
                self._print(not_finite.computed_text(runtime, rest, tensors))
                return
            graph = runtime.pending_graph(*filter(runtime.is_pending, tensors))
        else:
            graph = self._graph_of("nan", rest)
            if graph is None:
                return
        found = not_finite.find_in(graph)
        self._show(str(found), found._repr_html_)

    def _replicas(self, rest: str) -> None:
        from lazyviz.divergence.report import noted, replicas

        try:
            paths = shlex.split(rest)
            if not paths:
                raise UsageError(
                    "%lazy replicas takes a folder that processes recorded into, or a file of each; "
                    "it got nothing. Run the program with LAZYRT_RECORD=steps, then %lazy replicas "
                    "steps."
                )
            found = replicas(paths)
        except ValueError as error:
            raise UsageError(f"%lazy replicas {rest}: {noted(error)}") from None
        self._show(found.text(), found.to_html)

    def _program(self, command: str, word: str) -> Any:
        if word.isdecimal():
            return int(word)
        if _GRAPH.fullmatch(word):
            return word
        return value_of(self._shell, command, word)


def _words(rest: str) -> list[str]:
    """Return the words of a line; what stands in quotes is one, with them."""
    try:
        return shlex.split(rest, posix=False)
    except ValueError:  # a quote without its end, which `value_of` tells of
        return rest.split()


def file_text(file: str) -> str:
    """Return what the reader knows a file as: `cell 3`, else its path."""
    current = sessions.current()
    cell = current.cell_of_file(file) if current is not None else None
    return file if cell is None else f"cell {cell}"
