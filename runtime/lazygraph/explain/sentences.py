"""How a message names things: the fields that the templates of causes may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazygraph.numbers import listed, plural

if TYPE_CHECKING:
    from lazygraph.explain.attribute import Claim
    from lazygraph.explain.compare import Comparison
    from lazygraph.snapshot import SourceLocation

Fields = dict[str, Any]


def at(site: SourceLocation | None) -> str:
    """Return ` at cell 3 line 2`, or nothing for an unknown line."""
    return f" at {site}" if site is not None else ""


def in_brackets(site: SourceLocation | None) -> str:
    """Return ` (cell 3 line 2)`, or nothing for an unknown line."""
    return f" ({site})" if site is not None else ""


def fields_of(c: Comparison, claims: list[Claim]) -> Fields:
    """Return the fields of a cause: of its first fact, and of all where several share a sentence.

    Args:
        c: The two graphs.
        claims: Facts of one cause, the one that most follows from first.

    Returns:
        name, names, called: What the user calls the first one, all of them, the first one or else
        the line that reads it. text, before, now: How the rows show themselves. at, before_at:
        Lines. s, is_, was, an_input, others: The forms of words for one or several. here, there:
        `in this step`, and the name of the graph before, for what one side alone has. sizes: Of
        what has another size along one axis, that size before and now.
    """
    facts = [claim.fact for claim in claims]
    fact, row = facts[0], facts[0].row
    many = len(facts) > 1
    origin = row.more.get("origin")
    reader = "" if row.name else c.source.statement(row.site)
    return {
        "name": row.name,
        "names": listed(f.row.name for f in facts) or plural(len(facts), "tensor"),
        "called": f"`{row.name}`"
        if row.name
        else f"of `{reader}`{at(row.site)}"
        if reader
        else f"(read{at(row.site)})",
        "text": row.text,
        "before": fact.before.text if fact.before else "",
        "now": fact.now.text if fact.now else "",
        "at": at(row.site),
        "before_at": at(fact.before.site) if fact.before else "",
        "others": f" (and {len(facts) - 1} more)" if many else "",
        "s": "s" if many else "",
        "is_": "are" if many else "is",
        "was": "were" if many else "was",
        "it": "them" if many else "it",
        "an_input": "inputs" if many else "an input",
        "graph_before": c.a.record.name,
        "holder": row.more.get("holder", ""),
        "how": row.more.get("how", ""),
        "op": row.more.get("op", ""),
        "origin_step": origin.step if origin is not None else "",
        "variable": row.name,
        "sizes": (),
    }
