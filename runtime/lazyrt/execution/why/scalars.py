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

if TYPE_CHECKING:
    from lazyrt.execution.why.edits import Edits
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
    verb = "varies and is an input" if len(more) == 1 else "vary and are inputs"
    return [
        Cause(
            kind="lifted_number",
            text=f"{numbers}{at(site)} {verb} from now on",
            fix="nothing to do: further values compile nothing",
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
    many = len(came) > 1
    return [
        Cause(
            kind="lifted_number",
            text=f"{'the positions of slices' if many else 'the position of a slice'}{at(site)} "
            f"{'vary and are inputs' if many else 'varies and is an input'} from now on",
            fix="nothing to do: further positions compile nothing",
            now=site,
            before=first_site(edits.a.vertices[k] for k in sorted(gone)),
            taken=edits.take(
                added=with_leaves(edits.b, came, edits.added), removed=gone
            ),
        )
    ]


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
