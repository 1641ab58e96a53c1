"""Python numbers and positions that vary and become inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause
from lazyrt.execution.why.edits import (
    at,
    first_site,
    readers_of,
    with_leaves,
)
from lazyrt.ir.varying import expression_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Vertex
    from lazyrt.observe.events import Site


_AT = (
    "lazyrt.slice_at", "lazyrt.select_at", "lazyrt.slice_scatter_at", "lazyrt.select_scatter_at",
)  # fmt: skip
_FIXED = ("aten.slice", "aten.select")
_KINDS = {"int": "an integer", "float": "a float"}


def lifted_numbers(edits: Edits) -> list[Cause]:
    """Return Python numbers that varied and are inputs from now on."""
    users = edits.b.users()
    more = [
        k
        for k in edits.added
        if edits.b.vertices[k].op in {"float", "int"}
        and not edits.added.issuperset(user for user, _ in users[k])
    ]
    gone = [k for k in edits.removed if edits.a.vertices[k].op in {"float", "int"}]
    readers = [edits.b.vertices[k] for k in readers_of(edits.b, more)]
    site = first_site(readers)
    if more and len(more) == len(gone):
        return _other_kind_of_number(edits, more, gone, site)
    if len(more) <= len(gone):
        return []
    changed = {k for k in readers_of(edits.b, more) if k in edits.changed}
    numbers = "a Python number" if len(more) == 1 else f"{len(more)} Python numbers"
    where, name = _told(len(more), readers, site)
    verb = "varies and is an input" if len(more) == 1 else "vary and are inputs"
    return [
        Cause(
            kind="lifted_number",
            text=f"{numbers}{where} {verb} from now on",
            fix="nothing to do: further values compile nothing",
            variable=name,
            now=site,
            taken=edits.take(added=more, changed=changed),
        )
    ]


def positions(edits: Edits) -> list[Cause]:
    """Return that the position of a slice varies and is an input from now on."""
    came = [k for k in edits.added if edits.b.vertices[k].op.startswith(_AT)]
    gone = [k for k in edits.removed if edits.a.vertices[k].op.startswith(_FIXED)]
    if not came or not gone:
        return []
    site = first_site(edits.b.vertices[k] for k in sorted(came))
    where, name = _told(len(came), (edits.a.vertices[k] for k in sorted(gone)), site)
    many = len(came) > 1
    return [
        Cause(
            kind="lifted_number",
            text=f"{'the positions of slices' if many else 'the position of a slice'}{where} "
            f"{'vary and are inputs' if many else 'varies and is an input'} from now on",
            fix="nothing to do: further positions compile nothing",
            variable=name,
            now=site,
            before=first_site(edits.a.vertices[k] for k in sorted(gone)),
            taken=edits.take(
                added=with_leaves(edits.b, came, edits.added), removed=gone
            ),
        )
    ]


def _told(number: int, readers: Iterable[Vertex], site: Site | None) -> tuple[str, str]:
    """Return where numbers vary, in words, and what a number is called if there is but one.

    Args:
        number: How many numbers there are.
        readers: The ops that they have varied in.
        site: The line that is shown.
    """
    forward = [vertex for vertex in readers if not vertex.backward]
    ops = dict.fromkeys(vertex.op for vertex in forward if vertex.site == site)
    noted = dict.fromkeys(expression_at(site, op) for op in ops)
    known = [each for each in noted if each is not None]
    within = f" in `{known[0].text}`" if len(known) == 1 else ""
    if any(vertex.site != site for vertex in forward):
        return (
            (f", one of them{within}{at(site)},", "") if number > 1 else (at(site), "")
        )
    name = known[0].number if known else ""
    if number > 1 and name:  # others than this one vary there, too
        return at(site), ""
    return within + at(site), name


def _other_kind_of_number(
    edits: Edits, more: list[int], gone: list[int], site: Site | None
) -> list[Cause]:
    """Return that numbers which are inputs were integers and are floats, or the other way."""
    kinds = [
        _KINDS[side.vertices[numbers[0]].op]
        for side, numbers in ((edits.a, gone), (edits.b, more))
    ]
    if kinds[0] == kinds[1]:
        return []
    changed = {k for k in readers_of(edits.b, more) if k in edits.changed}
    return [
        Cause(
            kind="lifted_number",
            text=f"{'a Python number' if len(more) == 1 else f'{len(more)} Python numbers'}"
            f"{at(site)} {'is' if len(more) == 1 else 'are'} {kinds[1]} and "
            f"{'was' if len(more) == 1 else 'were'} {kinds[0]}",
            fix="write it in one way (`2.0`, not `2`) where it varies; further values of either "
            "kind compile nothing",
            now=site,
            before=first_site(edits.a.vertices[k] for k in readers_of(edits.a, gone)),
            taken=edits.take(added=more, removed=gone, changed=changed),
        )
    ]
