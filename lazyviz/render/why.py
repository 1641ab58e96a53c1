"""Why a graph was compiled, as a card: what differs, on which lines, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyviz.render import html

if TYPE_CHECKING:
    from collections.abc import Iterator

_CARD = (
    "font-size:13px;line-height:1.5;max-width:72em;margin:4px 0;overflow-wrap:anywhere"
)
_LIST = "margin:6px 0;padding-left:1.8em"


def why_html(explanation: Any, notes: tuple[str, ...] = ()) -> str:
    """Return a card with the causes in their order.

    Args:
        explanation: What `lazyrt.explain()` returns.
        notes: Lines below the causes.
    """
    first, *lines = str(explanation).splitlines()
    head, _, rest = first.partition(", ")
    told = sum(2 if cause.fix else 1 for cause in explanation.causes)
    below = "".join(html.muted(line.strip()) for line in [*lines[told:], *notes])
    causes = "".join(
        f'<li style="margin:5px 0">{"".join(_cause(cause))}</li>'
        for cause in explanation.causes
    )
    return (
        f'<div style="{_CARD}"><b>{html.prose(head)}</b>'
        f"{html.muted(rest) if rest else ''}"
        f'<ol style="{_LIST}">{causes}</ol>{below}</div>'
    )


def _cause(cause: Any) -> Iterator[str]:
    yield f"<div>{html.prose(cause.text)}</div>"
    details = str(cause).removeprefix(cause.text).strip()
    if details:
        yield html.muted(details.removeprefix("(").removesuffix(")"))
    if cause.fix:
        yield html.advice("fix", cause.fix)
