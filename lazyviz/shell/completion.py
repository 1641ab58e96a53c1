"""What the Tab key offers behind `%lazy`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.completer import SimpleCompletion, context_matcher

from lazyviz.shell.lazytensors import named_tensors
from lazyviz.views import CELL_USAGE, VIEWS, Typed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from IPython.core.completer import CompletionContext, SimpleMatcherResult
    from IPython.core.interactiveshell import InteractiveShell

NAME = "lazy"


def completions(line: str, namespace: dict[str, Any]) -> list[str] | None:
    """Return what can follow on a `%lazy` line up to the cursor, None for other lines."""
    words = line.lstrip().split(" ")
    if words[0] not in {f"%{NAME}", f"%%{NAME}"} or len(words) == 1:
        return None
    given, start = [word for word in words[1:-1] if word], words[-1]
    if words[0].startswith("%%"):
        offered: Iterable[str] = () if given else sorted(CELL_USAGE)
    elif not given:
        offered = sorted(VIEWS)
    elif given[0] in VIEWS:
        names = [name for name, _ in named_tensors(namespace)]
        offered = VIEWS[given[0]].offers(Typed(given[1:], start, names, namespace))
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
