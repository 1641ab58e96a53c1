"""What the families of `%lazy` subcommands share: finding what is meant, showing what is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from lazyviz import formatters
from lazyviz import session as sessions
from lazyviz.render import html, text
from lazyviz.render.escape import printable
from lazyviz.shell.expressions import no_tensors, tensors_in, value_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from lazyviz.session import Session

_TALL_LINES = 60  # a longer listing scrolls
_NARROW = 60  # characters of a line that fit into a narrow page
_MAX_LISTED = 400_000  # characters; what a notebook still opens quickly with


class Commands:
    """A family of subcommands; each is a method that takes the rest of the line."""

    _shell: Any
    _session: Session

    def _graph_of(self, command: str, expression: str) -> Any:
        """Return a graph, or None after saying that nothing is pending."""
        runtime = runtime_here()
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
        """Publish text; a page would end its long lines within words, so it gets HTML as well."""
        shown = printable(shown)
        bundle = {"text/plain": shown}
        is_long = any(len(line) > _NARROW for line in shown.splitlines())
        if is_long and formatters.wants_html(self._shell):
            bundle["text/html"] = html.wrapped(shown)
        self._shell.display_pub.publish(bundle, metadata={})


def runtime_here() -> ModuleType:
    """Return lazyrt, which somebody imported."""
    runtime = sessions.runtime()
    if runtime is None:
        raise UsageError(
            "lazyrt is not imported, so there is no lazy device to look at. "
            "Run `import lazyrt` and make tensors with device='lazyrt'."
        )
    return runtime


def step_named(command: str, rest: str, alone: str) -> int | None:
    """Return the number of a step that a line names, None if it names none."""
    if not rest:
        return None
    if not rest.isdecimal():
        raise UsageError(
            f"%lazy {command} {rest}: {rest!r} is not a step's number. %lazy step lists "
            f"them; {alone}"
        )
    return int(rest)


def refuse(command: str, rest: str, percents: str = "%") -> None:
    """Refuse what stands behind a subcommand that takes nothing."""
    if rest:
        raise UsageError(
            f"{percents}lazy {command} takes nothing after it, but got {rest!r}."
        )
