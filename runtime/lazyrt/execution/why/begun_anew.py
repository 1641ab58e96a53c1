"""State of an optimizer that begins anew: modules that were made again, after the first step."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause
from lazyrt.execution.why.edits import at, count, listed
from lazyrt.execution.why.gradients import site_of
from lazyrt.execution.why.updates import (
    gradients_of,
    kinds_of,
    owner_of,
    states_of,
    take_states,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyrt.execution.why.edits import Edits

_ANEW_FIX = (
    "make modules and optimizers once, before the loop; state that begins anew costs two compiles, "
    "one to make it and one to read it"
)


def begun_anew(edits: Edits) -> list[Cause]:
    """Return that parameters have no state yet: modules that were made again, or groups of them."""
    states = _begun_anew(edits)
    if not states:
        return []
    owners = list(dict.fromkeys(map(owner_of, states)))
    site, was = site_of(edits.b, states), site_of(edits.a, states)
    leaves = {name.text: leaf for leaf, name in edits.b.leaf_names.items()}
    origins = [edits.b.origins.get(leaves.get(owner, -1)) for owner in owners]
    are_new = all(origin is not None and origin.step < 0 for origin in origins)
    paths = _whole_modules(owners, edits.b.modules)
    several = len(paths) > 1
    taken = take_states(edits, states, gradients_of(states))
    anew = (
        f"the optimizer{at(site)} begins {kinds_of(states)} of each of "
        f"{count(len(owners), 'parameter')} anew ({listed(owners)})"
    )
    if are_new and "" not in paths:
        text = (
            f"{'modules' if several else 'module'} {listed(paths)} {'were' if several else 'was'} "
            f"made again: {anew}"
        )
    else:
        text = anew
    return [
        Cause(
            kind="module_recreated" if are_new else "update",
            text=text,
            fix=_ANEW_FIX,
            variable=paths[0] if are_new else states[0],
            now=site,
            before=was,
            taken=taken,
        )
    ]


def _begun_anew(edits: Edits) -> list[str]:
    """Return the state that the graph before read and this one makes."""
    before = states_of(edits.a)
    read = {name.text for name in edits.b.leaf_names.values()}
    was_read = {name.text for name in edits.a.leaf_names.values()}
    made = {name.text for name in edits.b.root_names.values()} - read
    return [name for name in before if name in made & was_read]


def _whole_modules(parameters: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the paths of modules all of whose parameters are among these: of the largest ones."""
    mine = {*parameters}
    others = {
        prefix for name in known if name not in mine for prefix in _prefixes(name)
    }
    sizes = Counter(prefix for name in mine for prefix in _prefixes(name))
    found = set()
    for name in mine:
        whole = [prefix for prefix in _prefixes(name) if prefix not in others]
        # Of a list with one module in it, the module says where.
        found.add(
            max(whole, key=lambda prefix: (sizes[prefix], len(prefix)), default="")
            or name.rpartition(".")[0]
        )
    return sorted(found)


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts))]
