"""The table of causes: each row names a fact, when it is a cause, and what a message says.

The order of the rows is their rank: what stands higher takes an edit that both explain.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazygraph.explain import attribute as spread
from lazygraph.explain.attribute import at, in_brackets
from lazygraph.explain.compare import is_break, is_view, position
from lazygraph.explain.facts import (
    in_loop,
    in_scope,
    lbfgs,
    lists,
    prefixes,
    shape_of,
    update_lines,
)
from lazygraph.readable import listed, plural
from lazygraph.snapshot import AT_CONSTANTS, OPERAND

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from lazygraph.explain.attribute import Claim, Closure, Fields
    from lazygraph.explain.compare import Comparison, Side
    from lazygraph.explain.facts import Fact, Row
    from lazygraph.explain.model import Kind
    from lazygraph.snapshot import Vertex


@dataclass(frozen=True, slots=True)
class CauseRow:
    """One row of the table: whether a fact of the table `of` is this cause, and what follows then.

    `attribute.fields_of` lists what the sentence may name, to which `more` adds fields. Facts of
    one `group` share a sentence. With `is_shown` it is a cause though no edit follows from it.
    """

    kind: Kind
    of: str
    holds: Callable[[Comparison, Fact], bool]
    says: str
    fix: str
    spread: Callable[[Comparison, Fact], Closure]
    group: Callable[[Fact], object]
    more: Callable[[Comparison, list[Claim]], Fields] | None
    is_shown: bool


TABLE: list[CauseRow] = []
PATH_FIX = "choose the path once, or with `torch.where`; each path costs one compile"


def cause(
    kind: Kind,
    *,
    of: str,
    says: str,
    fix: str = "",
    spread: Callable[[Comparison, Fact], Closure] = spread.alone,
    group: Callable[[Fact], object] = lambda _: None,
    more: Callable[[Comparison, list[Claim]], Fields] | None = None,
    is_shown: bool = False,
    above: Kind | None = None,
) -> Callable[[Any], Any]:
    """Add a row to the table, at its end or above the rows of a kind.

    The decorated function is the predicate.
    """

    def register(
        holds: Callable[[Comparison, Fact], bool],
    ) -> Callable[[Comparison, Fact], bool]:
        row = CauseRow(kind, of, holds, says, fix, spread, group, more, is_shown)
        kinds = [each.kind for each in TABLE]
        TABLE.insert(len(TABLE) if above is None else kinds.index(above), row)
        return holds

    return register


def _always(c: Comparison, fact: Fact) -> bool:  # noqa: ARG001
    return True


def _on_both(c: Comparison, fact: Fact) -> bool:  # noqa: ARG001
    return fact.before is not None and fact.now is not None


def _direction(fact: Fact) -> object:
    """Keep what came and what went apart: a sentence is about one of them."""
    return fact.is_new


def _new_or_gone(
    new: str, gone: str, *names: str
) -> Callable[[Comparison, list[Claim]], Fields]:
    """Return further fields that say which side has what the other lacks."""

    def more(c: Comparison, claims: list[Claim]) -> Fields:  # noqa: ARG001
        words = (new, gone) if claims[0].fact.is_new else (gone, new)
        return dict(zip(names, words, strict=True))

    return more


# LBFGS calls the user's closure in the middle of its step, and decides by values how it goes on.


def _everything(c: Comparison, fact: Fact) -> Closure:  # noqa: ARG001
    both = [dict.fromkeys(side.free, 0) for side in (c.a, c.b)]
    return spread.Closure(both[0], both[1], {*c.gone_results}, {*c.new_results})


def _directions(c: Comparison, claims: list[Claim]) -> Fields:
    rows = claims[0].fact.both
    if rows[0].text == rows[1].text:
        return {
            "does": f"goes another way than in {c.a.record.name}, by the values that it reads"
        }
    old, new = (int(row.text) for row in rows)
    number = plural(new, "earlier direction") if new else "no earlier direction"
    return {"does": f"computes with {number}, {old or 'none'} in {c.a.record.name}"}


@cause(
    "code_path", of="visit", spread=spread.line, more=lambda c, claims: _path(c, claims),  # noqa: PLW0108
    says="code path changed: {path}", fix=PATH_FIX,
)  # fmt: skip
def _closure_path(c: Comparison, fact: Fact) -> bool:
    """Return whether a closure that both graphs call has a line in one of them alone."""
    if not (lbfgs(c.a) and lbfgs(c.b)) or (fact.before and fact.now):
        return False
    other, site = c.a if fact.is_new else c.b, fact.row.site
    functions = {line[::2] for line in other.lines if line}
    return not _has_line(other, fact.row) and (
        site is not None and (site.file, site.function) in functions
    )


cause(
    "loop_count", of="lbfgs", spread=_everything, is_shown=True, more=_directions,
    says="LBFGS{at} {does}",
    fix="nothing to do: each way through its step is one graph, and so is each number of "
    "directions up to `history_size`; a smaller one compiles fewer",
)(_on_both)  # fmt: skip


# Settings ---------------------------------------------------------------------------------------


def _eager_inputs(c: Comparison, fact: Fact) -> Closure:  # noqa: ARG001
    """The inputs that a debug mode computed, and what computed them in the graph before."""
    origins = c.b.snapshot.origins.items()
    leaves = {k for k, origin in origins if origin.how.endswith("mode")}
    old = set().union(*(c.replaced.get(k, set()) for k in leaves))
    before = c.a.ancestors(old, c.a.unmatched.__contains__)
    return spread.Closure(before, dict.fromkeys(leaves, 0))


for _kind, _says, _fix in (
    ("mode", "the mode is `{now}`, was `{before}` for {graph_before}: what a debug mode runs by itself "  # noqa: ISC004
     "is an input of this graph or of none",
     "leave the mode as it is over whole steps, or expect one compile at each switch"),
    ("device", "the device is {now}, was {before} for {graph_before}",
     "run the program on one device, or expect one compile for each"),
    ("sharding", "data is laid out over {now}, was over {before} for {graph_before}",
     "keep one layout over devices, or expect one compile for each"),
):  # fmt: skip
    cause(_kind, of=_kind, says=_says, fix=_fix, is_shown=True,  # type: ignore[arg-type]
          spread=_eager_inputs if _kind == "mode" else spread.alone)(_always)  # fmt: skip


# Boundaries -------------------------------------------------------------------------------------


cause(
    "missing_boundary", of="whole", is_shown=True,
    says="this graph is {graph_before} {now} times over: no step boundary came between them{at}",
    fix="put the work of each step in `with lazyrt.step():`, which ends in a boundary however it "
    "is left",
)(_always)  # fmt: skip


_CELL_FIX = (
    "end the earlier cell with `lazyrt.mark_step()`, or read what it makes there: pending ops run "
    "with whichever step comes next"
)


def _has_own_ops(side: Side) -> bool:
    """Return whether it computes what the other does not: earlier barriers alone save no compile."""
    return any(not side[k].is_leaf for k in side.unmatched)


cause(
    "missing_boundary", of="cell_work", says="{ops} that {text} left pending joined {joined}",
    fix="{fix}",
    more=lambda c, claims: {
        "ops": plural(claims[0].fact.row.more["ops"], "operation"),
        "joined": "this step's graph" if claims[0].fact.is_new else f"{c.a.record.name} only",
        "fix": "" if _has_own_ops(c.a if claims[0].fact.is_new else c.b) else _CELL_FIX,
    },
)(_always)  # fmt: skip


cause(
    "graph_break", of="break", says="{text}", fix="{fix}", is_shown=True,
    spread=lambda c, fact: fact.row.more["closure"],  # noqa: ARG005
    more=lambda c, claims: {"fix": claims[0].fact.row.more["fix"]},  # noqa: ARG005
)(lambda c, fact: not (lbfgs(c.a) and lbfgs(c.b)))  # fmt: skip  # noqa: ARG005


# Inputs that are one tensor ---------------------------------------------------------------------

_ONE_TENSOR_FIX = (
    "give both as tensors of their own (`y.clone()`), or as one, in every step; tensors of equal "
    "values are no difference"
)


def _pair(c: Comparison, claims: list[Claim]) -> Fields:
    fact = claims[0].fact
    pair = " and ".join(f"`{name}`" for name in _two(c, fact))
    return {"pair": pair, "read_at": in_brackets(fact.row.site)}


def _two(c: Comparison, fact: Fact) -> tuple[str, str]:
    """Return the names of two inputs, on the side that has both."""
    before, now = fact.both
    if _is_matched(c.b, now):
        own, name = before.name, c.a.name(c.b.partner[now.vertices[0]])
    else:
        own, name = now.name, c.b.name(c.a.partner[before.vertices[0]])
    return own, name.text if name is not None else ""


def _is_matched(side: Side, row: Row | None) -> bool:
    return row is not None and side.partner[row.vertices[0]] >= 0


def _of_parameter(c: Comparison, fact: Fact) -> Closure:
    """What reads a parameter or its lines record in its place, its update and its state."""
    found = spread.owner(c, fact).with_others_of(spread.reading(c, fact))
    lines = {
        (position(side[user].site), side[user].scope)
        for side, row in ((c.a, fact.before), (c.b, fact.now))
        if row is not None
        for k in row.vertices
        for user in side.users[k]
    }
    return found.with_all(
        c, lambda v: not v.is_leaf and (position(v.site), v.scope) in lines
    )


def _are_inputs(c: Comparison, fact: Fact) -> bool:
    """Return whether an operand was an input of this type, and is another one that is known."""
    old, new = fact.before, fact.now
    if old is None or new is None or {old.value, new.value} != {"input"}:
        return False
    if _is_matched(c.a, old) == _is_matched(c.b, new) or old.text != new.text:
        return False
    one, other = _two(c, fact)
    holders = {old.more["holder"], new.more["holder"]}
    known = holders & {"gradient", "optimizer", "optimizer LBFGS"}
    return bool(one and other) and one != other and not known


for _now, _was in (("one tensor", "two"), ("two tensors", "one")):
    cause(
        "same_input", of="operand", spread=_of_parameter, more=_pair, is_shown=True,
        says=f"{{pair}} are {_now} now and were {_was}{{others}}{{read_at}}", fix=_ONE_TENSOR_FIX,
    )(lambda c, fact, one=_was == "two": _are_inputs(c, fact) and _is_matched(c.b, fact.now) == one)  # fmt: skip


# Modules ----------------------------------------------------------------------------------------

_BUILD_FIX = "build the model before the loop and leave it as it is; each structure costs one compile"


_COPY_FIX = (
    "end the step after the copy (`lazyrt.mark_step()`), which then is a graph of its own: one "
    "compile, and none for the step"
)


def _parameters(c: Comparison, claims: list[Claim]) -> Fields:  # noqa: ARG001
    rows = [claim.fact.row for claim in claims]
    copied = set().union(*(row.more["copied"] for row in rows))
    is_copy = claims[0].fact.is_new and all(copied)
    return {
        "parameters": plural(sum(row.more["parameters"] for row in rows), "parameter"),
        "copied": f", a copy of {listed(copied)}{at(rows[0].site)}" if is_copy else "",
        "fix": _COPY_FIX if is_copy else _BUILD_FIX,
        "variable": min(row.name for row in rows),
    }


def _is_outermost(fact: Fact, other: Side) -> bool:
    """Return whether the other side has the module around it, or nothing of its model."""
    parent = fact.row.name.rpartition(".")[0]
    if not parent:
        start = f"{fact.row.name}."
        return not any(name.startswith(start) for name in other.names)
    return any(name.startswith(f"{parent}.") for name in other.names)


def _is_of_both(name: str, other: Side) -> bool:
    """Return whether the other side lacks a parameter, and has others of its module."""
    start = name.rpartition(".")[0] + "."
    return name not in other.names and any(n.startswith(start) for n in other.names)


def _add_modules(
    of: str, says: str, holds: Callable[[Fact, Side], bool], **options: Any
) -> None:
    """Add the rows of what one model has alone; `holds` is given the side without it."""
    options = {"of": of, "fix": _BUILD_FIX, **options}
    cause("module_added", says=says % "added", **options)(
        lambda c, fact: fact.is_new and holds(fact, c.a)
    )
    cause("module_removed", says=says % "removed", **options)(
        lambda c, fact: fact.is_gone and holds(fact, c.b)
    )


_add_modules(
    "module", "module{s} {names} {was} %s: {parameters}{copied}", _is_outermost,
    spread=spread.scope, more=_parameters, fix="{fix}",
)  # fmt: skip
_add_modules(
    "parameter", "parameter{s} {names} {was} %s",
    lambda fact, other: _is_of_both(fact.row.name, other), spread=spread.owner,
)  # fmt: skip


def _called(c: Comparison, claims: list[Claim]) -> Fields:
    """Return how a sentence names modules that one side calls: several parts of one are one.

    A module has the name of its parameters where it has any, else that of its scope.
    """
    fields = _new_or_gone("used", "not used", "used", "was_used")(c, claims)
    side, other = (c.b, c.a) if claims[0].fact.is_new else (c.a, c.b)
    paths, known = _module_paths(side), {*_module_paths(c.a), *_module_paths(c.b)}
    names: dict[str, None] = {}
    for row in (claim.fact.row for claim in claims):
        scope = row.more.get("scope", "")
        around = [path for path in paths if in_scope(scope, path)]
        name = row.name.rpartition(".")[0] or max(around, key=len, default=scope)
        names[_outermost(name, other) if name in known else name] = None
    fields |= {"paths": listed(names), "variable": next(iter(names))}
    return fields | spread.forms(many=len(names) > 1)


def _module_paths(side: Side) -> list[str]:
    """Return what the user calls modules that have parameters, and those around them."""
    return sorted({path for name in side.names for path in prefixes(name)})


@cause(
    "module_call", of="visit", spread=spread.line, group=_direction, more=_called,
    says="module{s} {paths} {is_} {used}{at}, {was} {was_used} in {graph_before}",
    fix="use the same modules in each step; each choice of modules costs one compile",
)  # fmt: skip
def _module_call(c: Comparison, fact: Fact) -> bool:
    scope = fact.row.more["scope"]
    return (
        bool(scope)
        and scope not in c.switched
        and not any(in_scope(scope, path) for path in c.modules)
        and not _ran(c.a if fact.is_new else c.b, fact.row)
        and not _reads_parameters(c.a if fact.is_new else c.b, scope)
    )


def _reads_parameters(side: Side, scope: str) -> bool:
    """Return whether a graph computes with a module's parameters: then it calls the module.

    An op that equals an earlier one has that one's module, which may be another of a row of layers.
    """
    updating = update_lines(side)
    return any(
        f".{scope}." in f".{name.text}"
        and any(position(side[k].site) not in updating for k in side.users[leaf])
        for leaf, name in side.snapshot.leaf_names.items()
        if name.holder == "module"
    )


def _ran(side: Side, row: Row) -> bool:
    """Return whether a graph has something of a module's call, or of its children's.

    The outermost module's scope is its class: what its function records is in the same function.
    """
    scope, site = row.more["scope"], row.site
    is_outermost = not any(in_scope(scope, path) for path in _module_paths(side))
    return any(
        vertex.scope == scope
        or vertex.scope.startswith(f"{scope}.")
        or (
            is_outermost
            and site is not None
            and vertex.site is not None
            and (vertex.site.file, vertex.site.function) == (site.file, site.function)
        )
        for vertex in side.vertices
    )


def _outermost(module: str, other: Side) -> str:
    """Return the outermost module around one of which the other side reads no parameter either."""
    parent = module.rpartition(".")[0]
    if not parent or any(name.startswith(f"{parent}.") for name in other.read):
        return module
    return _outermost(parent, other)


@cause(
    "module_call", of="parameter", spread=spread.reading, more=_called, group=_direction,
    says="module{s} {paths} {is_} {used}{at}, {was} {was_used} in {graph_before}",
    fix="use the same modules in each step; each choice of modules costs one compile",
)  # fmt: skip
def _parameter_read(c: Comparison, fact: Fact) -> bool:
    if fact.before is not None and fact.now is not None:
        return False
    side, other = (c.b, c.a) if fact.is_new else (c.a, c.b)
    made = {name.text for name in other.snapshot.root_names.values()}
    leaf, updating = fact.row.vertices[0], update_lines(side)
    return (
        bool(fact.row.more["holder"] == "module")
        and fact.row.name in other.names - made
        and any(position(side[user].site) not in updating for user in side.users[leaf])
    )


def _in_place_of(c: Comparison, fact: Fact, vertices: Container[int]) -> set[int]:
    """Return what stands where vertices of one graph alone stood for their readers."""
    return {
        old if fact.is_new else new
        for _, old, new in c.substitutions
        if (new if fact.is_new else old) in vertices
    }


def _is_alone(scope: str, other: Side) -> bool:
    """Return whether the other side calls no such module: then that is said of the module."""
    return bool(scope) and all(vertex.scope != scope for vertex in other.vertices)


def _made(c: Comparison, claims: list[Claim]) -> Fields:  # noqa: ARG001
    of_module = claims[0].fact.row.more["holder"] != "optimizer"
    s = "s" if len(claims) > 1 else ""
    return {"what": f"parameter{s}" if of_module else "state"}


@cause(
    "module_recreated", of="created", spread=spread.on_line, more=_made,
    says="{what} {names} {is_} initialised in this step{at}, {was} {an_input} before",
    fix="build the model and its optimizer once, before the loop; or end the step after building "
    "them (`lazyrt.mark_step()`)",
)  # fmt: skip
def _recreated(c: Comparison, fact: Fact) -> bool:
    return fact.is_new and fact.row.name in c.a.read


# Optimizers -------------------------------------------------------------------------------------


def _options_of(c: Comparison, claims: list[Claim]) -> Fields:
    facts = [claim.fact for claim in claims]
    named = [f for f in facts if f.row.name and f.before and f.now]
    texts = [
        f"`{f.row.name}` of {f.row.more['optimizer']} is {f.now.text}, was {f.before.text}"
        for f in named
        if f.now and f.before
    ] or [
        f"{f.row.text} updates {plural(f.now.value, 'group')} of parameters, {f.before.value} before"
        f"{_other_groups(f.before, f.now)}"
        for f in facts
        if f.now and f.before
    ]
    if not texts:
        kinds = [
            Counter(n.name for n in side.record.key.optimizers) for side in (c.a, c.b)
        ]
        went, came = (listed(one - other) for one, other in (kinds, kinds[::-1]))
        before = c.a.record.name
        texts = [
            f"{came} in the place of {went}"
            if came and went
            else f"{came} updates parameters, did not in {before}"
            if came
            else f"{went} updates no parameters, did in {before}"
        ]
    return {"options": "; ".join(dict.fromkeys(texts))}


def _other_groups(old: Row, new: Row) -> str:
    """Return which parameters are a group on one side alone, but for the rest of a split one."""
    fewer, more = sorted((old, new), key=lambda row: int(row.value))
    own = [g for g in more.more["groups"] if g and g not in fewer.more["groups"]]
    groups = "; ".join(own[1:] or own)
    return f": one {'is' if more is new else 'was'} of {groups}" if groups else ""


@cause(
    "update", of="option", spread=spread.on_line, more=_options_of,
    group=lambda fact: bool(fact.row.name), says="optimizer changed{at}: {options}",
    fix="make optimizers and set their options before the loop, and call the same ones in each step: "
    "each choice of what they compute costs a compile",
)  # fmt: skip
def _option(c: Comparison, fact: Fact) -> bool:
    if not c.a.updated & c.b.updated:
        return False
    if fact.before is not None and fact.now is not None:
        return True
    # Of two optimizers of a class the parameters tell which one is called.
    classes = [{note.name for note in s.record.key.optimizers} for s in (c.a, c.b)]
    return not fact.row.name and classes[0] != classes[1]


def _updated(c: Comparison, claims: list[Claim]) -> Fields:
    """Return whether parameters are updated, and why: they are frozen, or where gradients end."""
    is_new, names = claims[0].fact.is_new, {claim.fact.row.name for claim in claims}
    side, other = (c.b, c.a) if is_new else (c.a, c.b)
    before, now = (each.snapshot.modules for each in (side, other))
    why = ""
    if all(now.get(name) and not before.get(name) for name in names):
        why = f": `requires_grad` is {is_new}, was {not is_new}"
    elif not _has_gradients(c, other, names) and (ends := _gradient_ends(side, names)):
        lines = dict.fromkeys(
            f"`{c.source.statement(v.site) or v.op}`{in_brackets(v.site)}" for v in ends
        )
        it = spread.forms(many=len(claims) > 1)["it"]
        reaches = (
            f"a gradient reaches {it}, it ended"
            if is_new
            else f"no gradient reaches {it}, it ends"
        )
        where = f"{'between' if len(lines) > 1 else 'at'} {' and '.join(lines)}"
        why = f": {reaches} {where}, as by `.detach()` or `torch.no_grad()`"
    fields = _new_or_gone("updated", "not updated", "updated", "was_updated")(c, claims)
    return {**fields, "why": why}


def _has_gradients(c: Comparison, side: Side, names: set[str]) -> bool:
    """Return whether some parameters have gradients, or an optimizer alone left them out."""
    results = {name.text for name in side.snapshot.root_names.values()}
    notes = [[n[::2] for n in each.record.key.optimizers] for each in (c.a, c.b)]
    return notes[0] != notes[1] or any(f"{name}.grad" in results for name in names)


def _gradient_ends(side: Side, names: set[str]) -> list[Vertex]:
    """Return the last op that reads some parameters, and the first with others behind it.

    None if one of them is in one graph alone.
    """
    updating, leaves = update_lines(side), side.snapshot.leaf_names.items()

    def is_forward(k: int) -> bool:
        return not side[k].backward and position(side[k].site) not in updating

    own, others = (
        side.downstream((k for k, n in leaves if n.text in wanted), is_forward)
        for wanted in (names, side.updated - names)
    )
    views = {k for k in own if side[k].is_leaf or is_view(side[k])}
    alone = own.keys() - views - others.keys()
    read, behind = (
        [k for k in ops if not wanted.isdisjoint(o for o, _ in side[k].operands)]
        for ops, wanted in ((alone, views), (others, alone))
    )
    ends = [max(read), min(behind)] if read and behind else []
    return [side[k] for k in ends if min(side.partner[o] for o in ends) >= 0]


@cause(
    "update", of="update", spread=spread.owner, group=_direction, more=_updated,
    says="parameter{s} {names} {is_} {updated}{at}, {was} {was_updated} in {graph_before}{why}",
    fix="nothing to do where both come back: with and without the update is one graph each",
)  # fmt: skip
def _update(c: Comparison, fact: Fact) -> bool:
    side, other = (c.b, c.a) if fact.is_new else (c.a, c.b)
    made = {name.text for name in other.snapshot.root_names.values()}
    name = fact.row.name
    if name not in other.names or (name in made and _has_line(other, fact.row)):
        return False
    # A parameter whose gradient follows from what the forward pass has alone is updated by that.
    lines = update_lines(side)
    leaves = (k for k, n in side.snapshot.leaf_names.items() if n.text == name)
    near = {user for leaf in leaves for user in side.users[leaf]}
    if any(_is_alone(side[k].scope, other) for k in near):
        return False
    near |= side.ancestors(fact.row.vertices, side.unmatched.__contains__).keys()
    return not any(
        k in side.unmatched
        and not (side[k].backward or side[k].is_leaf or position(side[k].site) in lines)
        # Backward begins where only backward reads.
        and not all(side[user].backward for user in side.users[k])
        for k in near
    )


# Results of earlier steps -----------------------------------------------------------------------


def _items(c: Comparison, claims: list[Claim]) -> Fields:  # noqa: ARG001
    fields, steps = _numbers(claims[0].fact), sorted(claims[0].fact.row.more["steps"])
    made = (
        f", made in step{'s' if steps[1:] else ''} {' to '.join(map(str, dict.fromkeys((steps[0], steps[-1]))))},"
        if steps
        else ""
    )
    items = plural(fields["now"], "item")
    return {
        **fields,
        "items": items,
        "is_": "is an input" if fields["now"] == 1 else "are inputs",
        "made": made,
    }


@cause(
    "carried_over", of="list", spread=spread.reading, more=_items,
    says="{items} of the list `{name}`{made} {is_} of this step{at}, {before} in "
    "{graph_before}",
    fix="empty the list before the step ends, as by a flush of buckets; or keep numbers "
    "(`losses.append(loss.item())` behind the step), or a running sum on the device: each length is "
    "a graph of its own",
)  # fmt: skip
def _list(c: Comparison, fact: Fact) -> bool:
    return fact.now is not None and not _replaces(c, fact.now)


def _replaces(c: Comparison, row: Row) -> bool:
    """Return whether some item stands where the graph before computed something, as a state does."""
    old = set().union(*(c.replaced.get(leaf, set()) for leaf in row.vertices))
    return any(not c.a[k].is_leaf for k in old & c.a.unmatched)


@cause(
    "carried_over", of="history", spread=spread.reading,
    more=lambda c, claims: _numbers(claims[0].fact),  # noqa: ARG005
    says="backward{at} goes on through {steps}, {before} in {graph_before}: it reads "
    "what they saved",
    fix="hand the state on with `.detach()`, so that backward ends where the step begins; or run "
    "the whole sequence in one step of fixed length",
)  # fmt: skip
def _history(c: Comparison, fact: Fact) -> bool:
    computes = any(not v.backward and not v.is_leaf for v in c.b.vertices)
    return bool(
        computes and fact.before and fact.now and fact.now.value > fact.before.value
    )


def _numbers(fact: Fact) -> Fields:
    old, new = (row.value if row else 0 for row in (fact.before, fact.now))
    steps = plural(new, "earlier step")
    return {"before": old, "now": new, "steps": steps, "sizes": ((old, new),)}


_STATE_FIX = "nothing to do when it happens once, in the second step, as with a state that a loop keeps"
_EARLIER = "; to save the compile, create it before the first step and end that with `lazyrt.mark_step()`"


@cause(
    "carried_over", of="state", spread=spread.reading,
    group=_direction,
    more=lambda c, claims: _kept_gradients(c, claims),  # noqa: PLW0108
    says="gradient{s} {names} of step {origin_step} {is_} {not_now}{an_input} of this step, {was} "
    "{not_before}of {graph_before}: {why}",
    fix="nothing to do where it comes back: the first batch of an update and the later ones are one "
    "graph each; `zero_grad(set_to_none=False)` in each step makes it one graph for all",
)  # fmt: skip
def _gradients_accumulate(c: Comparison, fact: Fact) -> bool:
    if not (fact.is_new or fact.is_gone) or fact.row.more["holder"] != "gradient":
        return False
    return _is_accumulated(c.b if fact.is_new else c.a, fact.row)


def _kept_gradients(c: Comparison, claims: list[Claim]) -> Fields:
    row, side = claims[0].fact.row, c.b if claims[0].fact.is_new else c.a
    views = side.downstream(row.vertices, lambda k: is_view(side[k]))
    is_zeroed = any(side[k].op.startswith("aten.zero.") for v in views for k in side.users[v])  # fmt: skip
    why = "zeroed and kept" if is_zeroed else "gradients accumulate over steps (read"
    text = c.source.statement(row.site) if is_zeroed else ""
    why += (f" by `{text}`" if text else "") + at(row.site) + ")" * (not is_zeroed)
    fields = _new_or_gone("not ", "", "not_before", "not_now")(c, claims)
    return {**fields, "why": why}


def _is_accumulated(side: Side, row: Row) -> bool:
    """Return whether backward adds to an input; what clips or updates reads a gradient too."""
    behind = side.downstream(row.vertices, lambda _: True)
    return row.more["holder"] == "gradient" and any(side[k].backward for k in behind)


def _with_replaced(c: Comparison, fact: Fact) -> Closure:
    """What hangs together with an input, and what stood in its place before."""
    found = spread.reading(c, fact)
    assert fact.now is not None
    old = c.replaced.get(fact.now.vertices[0], set()) & c.a.unmatched
    found.a.update(dict.fromkeys(old | c.a.dominated((), old), 0))
    return found


@cause(
    "state_became_input", of="computed_before", spread=_with_replaced, fix=_STATE_FIX + "{earlier}",
    more=lambda c, claims: {"earlier": "" if _has_own_ops(c.b) else _EARLIER},  # noqa: ARG005
    says="{names} {is_} {an_input} now; {graph_before} created {it}{before_at}",
)  # fmt: skip
def _was_result(c: Comparison, fact: Fact) -> bool:
    """Return whether no other row says it: of a list's item, or of a gradient that grows."""
    rows = (row for row in lists(c.b).values() if not _replaces(c, row))
    items = {leaf for row in rows for leaf in row.vertices}
    return not (_is_accumulated(c.b, fact.row) or items.intersection(fact.row.vertices))


# Inputs -----------------------------------------------------------------------------------------


def _sizes(c: Comparison, claims: list[Claim]) -> Fields:  # noqa: ARG001
    """Return what became of the size of each input that changed along one axis alone."""
    origin, found = claims[0].fact.row.more["origin"], []
    for claim in claims:
        old, new = (row.value[0] for row in claim.fact.both)
        pairs = [pair for pair in zip(old, new, strict=False) if pair[0] != pair[1]]
        if len(old) == len(new) and len(pairs) == 1:
            found += pairs
    is_computed = origin is not None and origin.step >= 0
    shape_fix = LENGTH_FIX if is_computed else _BATCH_FIX
    return {"sizes": tuple(dict.fromkeys(found)), "shape_fix": shape_fix}


def _differs(fact: Fact, part: int) -> bool:
    old, new = fact.before, fact.now
    return old is not None and new is not None and old.value[part] != new.value[part]


_BATCH_FIX = (
    "give every batch one shape: drop the last incomplete one, pad it, or sort sizes into a few "
    "buckets"
)
LENGTH_FIX = (
    "each length is a graph of its own: pad it to one length, or to a few, and mask the rest; "
    "a loop that generates text wants a cache of fixed length"
)

for _kind, _of, _part, _fix in (
    ("parameter_shape", "parameter", 0, "a module was rebuilt with other sizes: build it once"),
    ("input_dtype", "parameter", 1, "convert the model once, before the loop (`model.to(dtype)`), "  # noqa: ISC004
     "and the data when it is loaded"),
    ("input_dtype", "input", 1, "convert the data once, when it is loaded"),
    ("input_shape", "input", 0, "{shape_fix}"),
):  # fmt: skip
    cause(
        _kind, of=_of, spread=spread.downstream, more=_sizes, fix=_fix,  # type: ignore[arg-type]
        says=f"{_of} {{called}} is {{now}}, was {{before}}{{others}}",
    )(lambda c, fact, part=_part: _differs(fact, part))  # fmt: skip  # noqa: ARG005


def _laid_out(c: Comparison, fact: Fact) -> Closure:
    """What gives elements in another order, wherever behind the rows: other ops do not differ."""
    found = spread.Closure()
    for side, row, into, _ in found.parts(c, fact):
        behind = side.downstream(row.vertices, lambda _: True).items()
        into.update(
            {k: d for k, d in behind
             if k in side.free and (is_view(side[k]) or "stride" in side[k].op)}
        )  # fmt: skip
    return found


def _arranged(part: int) -> Callable[[Comparison, list[Claim]], Fields]:
    """Return fields of how the first of some inputs is laid out, over devices or in memory."""

    def more(c: Comparison, claims: list[Claim]) -> Fields:  # noqa: ARG001
        rows = claims[0].fact.before, claims[0].fact.now
        was, is_now = (row.value[part] or "whole" if row else "" for row in rows)
        return {"before": was, "now": is_now}

    return more


for _of in ("parameter", "input", "state"):
    cause(
        "sharding", of=_of, spread=spread.downstream, more=_arranged(2),
        says=f"sharding of {_of} {{called}} is {{now}}, was {{before}}{{others}}",
        fix="shard a tensor once, before the loop, and each batch alike: each sharding costs a compile",
    )(lambda c, fact: _differs(fact, 2))  # fmt: skip  # noqa: ARG005
    cause(
        "memory_format", of=_of, spread=_laid_out, more=_arranged(3),
        says=f"memory format changed: {_of} {{called}} is {{now}}, was {{before}}{{others}}",
        fix="use one memory format for all batches and the model, as by `x.contiguous()` before the copy",
    )(lambda c, fact: _differs(fact, 3))  # fmt: skip  # noqa: ARG005


# Modes, loops, random numbers -------------------------------------------------------------------


def _mode(c: Comparison, claims: list[Claim]) -> Fields:  # noqa: ARG001
    # Dropout alone tells: with p=0, or replaced, it records nothing, as in evaluation.
    alone = all(m.fact.is_new or m.fact.is_gone for m in claims)
    off = f"evaluation mode{' or without dropout' * alone}"
    words = {"training": "training mode", "evaluation": off}
    rows = claims[0].fact.before, claims[0].fact.now
    modes = [words[row.value if row is not None else "evaluation"] for row in rows]
    scopes = listed(m.fact.row.name for m in claims)
    where = f" (in module {scopes})" if scopes else ""
    return {"before": modes[0], "now": modes[1], "where": where, "variable": ""}


cause(
    "train_eval", of="training", spread=spread.line, more=_mode,
    says="the model runs in {now}, before in {before}{where}",
    fix="one graph for training and one for evaluation is what it takes; call `.train()` and "
    "`.eval()` at the boundary of steps",
)(_always)  # fmt: skip


def _rounds(c: Comparison, claims: list[Claim]) -> Fields:
    fields, row = _numbers(claims[0].fact), claims[0].fact.row
    times = "once" if fields["now"] == 1 else f"{fields['now']} times"
    scope = c.b[row.vertices[0]].scope
    ops = f"ops of module `{scope}`" if scope else "ops"
    # A loop that holds the boundary runs once in a graph.
    (mark, line), loop = c.b.record.key.ended_by, row.more["loop"]
    what = "loop" if loop and not in_loop(line, loop) else ops
    first = loop[1] if loop else ""
    return {
        **fields,
        "times": times,
        "what": what,
        "mark": f"{mark}{at(line)}",
        "first": first,
    }


@cause(
    "graph_break", of="loop", spread=spread.line, more=_rounds,
    says="graph break: {mark} stands in the loop of line {first} and ends the graph in each round: "
    "it ran {times} here, {before} in {graph_before}",
    fix="read values after the loop, or keep them in a list and read that after it",
)  # fmt: skip
def _read_in_loop(c: Comparison, fact: Fact) -> bool:
    before, now = fact.both
    end, loop = c.b.record.key.ended_by, now.more["loop"]
    fewer = now.value < before.value
    return fewer and is_break(end) and bool(loop) and in_loop(end[1], loop)


def _of_loop(c: Comparison, fact: Fact) -> Closure:
    """What the lines of a loop record, and what only that needs."""
    found, loop = spread.line(c, fact), fact.row.more["loop"]
    return found.with_all(c, lambda v: in_loop(v.site, loop)) if loop else found


@cause(
    "loop_count", of="loop", spread=_of_loop, more=_rounds,
    says="the {what}{at} ran {times}, {before} in {graph_before}",
    fix="run the loop a fixed number of times, call a module as often in each step, or put each round "
    "in a step of its own",
)  # fmt: skip
def _other_rounds(c: Comparison, fact: Fact) -> bool:
    """Return whether a loop did; without one, other lines that call a function are the cause.

    So are lines elsewhere that made what further ops read, as a loss more that `sum` adds.
    """
    loop = fact.row.more["loop"]
    return c.a.lines == c.b.lines or (
        bool(loop)
        and not any(
            position(side[o].site) not in other.lines
            and not in_loop(side[o].site, loop)
            for side, other, row in zip((c.a, c.b), (c.b, c.a), fact.both, strict=True)
            for k in side.unmatched.intersection(row.vertices)
            for o, _ in side[k].operands
            if o in side.unmatched and not (side[o].is_leaf or side[o].backward)
        )
    )


GUARD_SAYS = "torch.compile compiled `{name}`{where} again for the call{at}: {texts}"
GUARD_FIX = (
    "keep it as it was; each other value costs a compile by torch.compile, and one by XLA where the "
    "program differs. A number that varies may be a tensor"
)


def _recompiled(c: Comparison, claims: list[Claim]) -> Fields:  # noqa: ARG001
    place = claims[0].fact.row.more["definition"]
    texts = dict.fromkeys(claim.fact.row.text for claim in claims)
    return {"where": in_brackets(place), "texts": "; ".join(texts)}


@cause(
    "guard", of="guard", spread=spread.downstream, more=_recompiled, is_shown=True,
    group=lambda fact: fact.row.name, says=GUARD_SAYS, fix=GUARD_FIX,
)  # fmt: skip
def _guard(c: Comparison, fact: Fact) -> bool:  # noqa: ARG001
    return fact.now is not None


cause(
    "buckets", of="buckets", spread=spread.alone, is_shown=True,
    says="DistributedDataParallel{at} reduces gradients in {now}, in the order of its first "
    "backward; {graph_before} had {before}, in the order of the parameters",
    fix="nothing to do: it regroups them once, so a training loop has two graphs",
)(_on_both)  # fmt: skip


def _draws(c: Comparison, claims: list[Claim]) -> Fields:
    row = claims[0].fact.row
    at = row.more["op"], position(row.site)
    before, now = (  # in all modules that share the line
        sum((vertex.op, position(vertex.site)) == at for vertex in side.vertices)
        for side in (c.a, c.b)
    )
    return {"before": before, "draws": plural(now, "time")}


@cause(
    "rng", of="visit", spread=spread.reading, more=_draws,
    says="{op}{at} draws random numbers {draws}, {before} in {graph_before}",
    fix="draw as many random numbers in each step; each number costs one compile",
)  # fmt: skip
def _random(c: Comparison, fact: Fact) -> bool:
    row, side = fact.row, c.a if fact.is_gone else c.b
    if not row.more["random"] or row.more["scope"] in c.switched:
        return False
    # A part that is new and also draws is another path: most of it reads no random numbers.
    found = spread.reading(c, fact)
    behind = [
        k for k in side.downstream(row.vertices, side.unmatched.__contains__)
        if k in side.unmatched and not side[k].backward
    ]  # fmt: skip
    return 2 * sum(k in found.a or k in found.b for k in behind) >= len(behind)


@cause(
    "regrouped", of="joined", spread=spread.reading,
    says="{op}{at} joins the same tensors in other groups: of {now}, of {before} in {graph_before}",
    fix="group tensors in the same way in each step (flush the buckets at its end)",
)  # fmt: skip
def _regrouped(c: Comparison, fact: Fact) -> bool:  # noqa: ARG001
    old, new = fact.before, fact.now
    return old is not None and new is not None and sum(old.value) == sum(new.value)


# Live tensors -----------------------------------------------------------------------------------


def _holder(c: Comparison, claims: list[Claim]) -> Fields:  # noqa: ARG001
    row = claims[0].fact.row
    kept = _OF_LIST.fullmatch(row.name) if row.more["holder"] == "list" else None
    return {"keeper": f"{kept[1]}.append" if kept else "f"}


_OF_LIST = re.compile(r"([\w.]+)\[\d+\]")


def _is_kept(fact: Fact) -> bool:
    """Return whether the program keeps a result; backward and modules keep the others.

    What another line computes now is kept because the program takes another path.
    """
    holders = {"module", "buffer", "optimizer", "gradient"}
    row = fact.row
    return (
        bool(row.name) and row.more["holder"] not in holders and not row.more["moved"]
    )


@cause(
    "update", of="result", spread=spread.dominated,
    says="{text} is written to{at}, and was not in {graph_before}{others}",
    fix="nothing to do where both come back: with and without is one graph each; or write to it in "
    "every step, or in a step of its own (`with lazyrt.step():`)",
)  # fmt: skip
def _written(c: Comparison, fact: Fact) -> bool:
    return fact.is_new and _is_kept(fact) and fact.row.name in c.b.read


@cause(
    "closure", of="result", spread=spread.dominated,
    group=lambda fact: fact.row.more["holder"],
    says="live tensor {text}{at}, held by the {holder}, is alive at the end of this step and was "
    "not in {graph_before}{others}",
    fix="queue the closure in every step, or in none: what it is given is a result of the step",
)  # fmt: skip
def _closure(c: Comparison, fact: Fact) -> bool:  # noqa: ARG001
    return fact.is_new and fact.row.more["holder"].startswith("closure")


for _kind, _once, _says, _fix in (
    ("live_tensor", None, "is alive at the end of this step and was not in {graph_before}",
     "log it after the boundary, `del` it, keep its value (`lazyrt.materialise(t)`), or put it "  # noqa: ISC004
     "off in every step: `lazyrt.add_step_closure({keeper}, (t,))`"),
    ("live_tensor_gone", False, "was alive at the end of {graph_before} and is not now",
     "keep the same tensors alive at each boundary: drop it in every step or in none"),
    ("live_tensor_gone", True, "was made in {graph_before} and is not made again",
     "nothing to do: further steps are alike; or make it before the first step"),
):  # fmt: skip
    cause(
        _kind, of="result", spread=spread.dominated, more=_holder, fix=_fix,  # type: ignore[arg-type]
        says=f"live tensor {{text}}, created{{at}}, {_says}{{others}}",
    )(
        lambda c, fact, once=_once: _is_kept(fact)  # noqa: ARG005
        and (fact.is_new if once is None else fact.is_gone and fact.row.more["once"] == once)
    )  # fmt: skip


@cause(
    "module_recreated", of="created", spread=spread.dominated, more=_made,
    says="{what} {names} {was} made in {graph_before}{at} and {is_} not made again",
    fix="nothing to do: further steps are alike; or build the model before the first step",
)  # fmt: skip
def _not_made_again(c: Comparison, fact: Fact) -> bool:  # noqa: ARG001
    return fact.is_gone and fact.row.more["holder"] != "optimizer"


# Numbers and arguments --------------------------------------------------------------------------


_ONE_KIND = (
    "write it in one way (`2.0`, not `2`) where it varies; further values of either kind compile "
    "nothing"
)


def _lifted(c: Comparison, claims: list[Claim]) -> Fields:
    readers = [
        c.b[user] for m in claims for k in m.fact.row.vertices for user in c.b.users[k]
    ]
    known = {c.source.expression(vertex.site, vertex.op): None for vertex in readers}
    names = [name for _, name in known if name]
    texts = [text for text, name in known if text and (name or not names)]
    many = len(claims) > 1
    within = f" in {listed(texts)}" if texts else ""
    if 0 < len(texts) < len(claims):  # others stand there, too
        within = f", some of them in {listed(texts)},"
    elif not texts and (text := c.source.statement(claims[0].fact.row.site)):
        within = f" in `{text}`"
    return {
        "number": f"{len(claims)} Python numbers" if many else "a Python number",
        "varies": "vary" if many else "varies",
        "within": within,
        "variable": names[0] if len(names) == 1 and not many else "",
    }


def _vertices(fact: Fact) -> tuple[Vertex, Vertex]:
    before, now = fact.both
    return before.more["vertex"], now.more["vertex"]


def _same_op(fact: Fact) -> bool:
    old, new = _vertices(fact)
    return old.op == new.op


def _call(fact: Fact) -> object:
    """Return what facts about one call have in common."""
    old, new = _vertices(fact)
    return (new.op, new.site, old.attrs, new.attrs)


def _argument(c: Comparison, claims: list[Claim]) -> Fields:
    """Return what an op was given and gives, before and now."""
    old, new = _vertices(claims[0].fact)
    pairs = enumerate(zip(old.attrs, new.attrs, strict=False))
    index, values = next(
        ((n, pair) for n, pair in pairs if pair[0] != pair[1]), (-1, ("", ""))
    )
    # The state of random numbers comes first.
    place = index - (new.op in c.b.snapshot.random)
    name = c.source.argument(new.site, new.op, place) if place >= 0 else ""
    called = name or c.source.parameter(new.op, place)
    types = [*zip(old.types, new.types, strict=False)]
    before, now = next((pair for pair in types if pair[0] != pair[1]), ("", ""))
    if len(old.types) != len(new.types):
        before, now = plural(len(old.types), "tensor"), plural(len(new.types), "tensor")
    tensor = c.source.takes_tensor(new.op, place)
    # Sizes that are given stand in the type already.
    is_told = bool(called) and OPERAND not in values
    is_told &= values[1].strip("[]").replace(" ", "") not in now
    return {
        "op": new.op,
        "at": at(new.site),
        "call": f"`{call}`" if (call := c.source.call(new.site, new.op)) else new.op,
        "argument": f"`{called}` of {new.op}" if called else f"argument {place} of {new.op}",
        "old": _given(c.a, old, index),
        "new": _given(c.b, new, index),
        "argued": f" (`{called}` is {values[1]}, was {values[0]})" if is_told else "",
        "before_type": before,
        "now_type": now,
        "variable": name,
        "constant_fix": _AS_TENSOR if tensor else _FEW_VALUES,
    }  # fmt: skip


def _given(side: Side, vertex: Vertex, place: int) -> str:
    """Return what an op was given for an argument: its text, `a tensor`, or `an input` of a number."""
    if place < 0 or vertex.attrs[place] != OPERAND:
        return vertex.attrs[place] if place >= 0 else ""
    before = sum(attr.count(OPERAND) for attr in vertex.attrs[:place])
    is_number = side[vertex.operands[before][0]].op in {"float", "int"}
    return "an input" if is_number else "a tensor"


_AS_TENSOR = (
    "pass it as a tensor (`torch.tensor(value, device=...)`) if it goes on varying"
)
_FEW_VALUES = "keep to one value or to a few: each compiles once, and the op takes no tensor in its place"


def _also(claims: list[Claim]) -> str:
    """Return how many other calls have the first one's change."""
    calls = {_call(claim.fact) for claim in claims} - {_call(claims[0].fact)}
    return f" (and {len(calls)} more)" if calls else ""


def _sizes_of(fact: Fact) -> tuple[tuple[int, int], ...]:
    """Return what became of the sizes that an op's results have; one change has many shapes."""
    old, new = ([n for t in v.types for n in shape_of(t)] for v in _vertices(fact))
    pairs = zip(old, new, strict=False)
    return tuple(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))


@cause(
    "shape", of="argument", spread=spread.downstream,
    group=lambda fact: _sizes_of(fact) or _call(fact),
    more=lambda c, claims: {
        **_argument(c, claims),
        "sizes": _sizes_of(claims[0].fact),
        "others": _also(claims),
    },
    says="shape changed: {call}{at} is {now_type}, was {before_type}{argued}{others}",
    fix="keep the size fixed, or pad to a fixed one",
)  # fmt: skip
def _shape(c: Comparison, fact: Fact) -> bool:  # noqa: ARG001
    old, new = _vertices(fact)
    shapes = [[*map(shape_of, vertex.types)] for vertex in (old, new)]
    slices = {AT_CONSTANTS.get(vertex.op, vertex.op) for vertex in (old, new)}
    if len(slices) == 1 and not _same_op(fact):  # its position is a number on one side
        return shapes[0] != shapes[1]
    # What reads other types follows from them, beside what it is given.
    reads = [row.more["reads"] for row in fact.both]
    return _same_op(fact) and shapes[0] != shapes[1] and reads[0] == reads[1]


_DTYPE_FIX = (
    "convert models and data once, before the loop; use autocast either always or never"
)


def _has_line(side: Side, row: Row) -> bool:
    """Return whether a graph has anything of a row's line."""
    return position(row.site) in side.lines


def _conversions(c: Comparison, claims: list[Claim]) -> Fields:
    parts = []
    for word, rows in (
        ("more", [m.fact.row for m in claims if m.fact.is_new]),
        ("fewer", [m.fact.row for m in claims if m.fact.is_gone]),
    ):
        if rows:
            dtypes = ", ".join(sorted({row.text for row in rows}))
            parts.append(f"{plural(len(rows), 'conversion')} {word} to {dtypes}")
    fact = claims[0].fact
    if not _has_line(c.a if fact.is_new else c.b, fact.row):
        text = c.source.statement(fact.row.site)
        return {
            "casts": ": " + " and ".join(parts),
            "by": f" by `{text}`" if text else "",
        }
    return {"casts": ", as under autocast: " + " and ".join(parts), "by": ""}


@cause(
    "dtype", of="cast", spread=spread.downstream, more=_conversions, fix=_DTYPE_FIX,
    says="dtype changed{casts}{by}{at}",
)  # fmt: skip
def _cast(c: Comparison, fact: Fact) -> bool:
    """Return whether it is no part of a line that one side alone has and that does more."""
    side, other = (c.b, c.a) if fact.is_new else (c.a, c.b)
    line = position(fact.row.site)
    return _has_line(other, fact.row) or all(
        v.is_leaf or v.backward or is_view(v) or position(v.site) != line
        for v in side.vertices
    )


_PACKING = {"aten.as_strided.default", "aten.as_strided_scatter.default", "aten.view.default"}  # fmt: skip


@cause(
    "baked_constant", of="argument", spread=spread.downstream, group=_call, more=_argument,
    is_shown=True,
    says="constant changed: {argument}{at} is {new}, was {old}", fix="{constant_fix}",
)  # fmt: skip
def _constant(c: Comparison, fact: Fact) -> bool:
    old, new = _vertices(fact)
    is_regrouped = c.a.record.key.buckets != c.b.record.key.buckets
    if is_regrouped and new.op in _PACKING:
        return False
    if None not in {old.site, new.site} and old.site.function != new.site.function:  # type: ignore[union-attr]
        return False  # another function computes it now
    return _same_op(fact) and old.attrs != new.attrs and not _reads_tensor(fact)


def _reads_tensor(fact: Fact) -> bool:
    """Return whether an argument is a tensor on one side alone."""
    pairs = zip(*(vertex.attrs for vertex in _vertices(fact)), strict=False)
    return any(one != other and OPERAND in {one, other} for one, other in pairs)


@cause(
    "lifted_number", of="number", spread=spread.downstream, more=_lifted,
    says="{number}{within}{at} {varies} and {is_} {an_input} from now on",
    fix="nothing to do: further values compile nothing",
)  # fmt: skip
def _number(c: Comparison, fact: Fact) -> bool:
    """Return whether a number that was part of the graph is an input; backward's follow from others."""
    readers = c.b.users[fact.row.vertices[0]] if fact.is_new else ()
    return any(
        c.b.partner[k] >= 0 and not (c.b[k].backward and c.forward_differs)
        for k in readers
    )


cause(
    "lifted_number", of="number", spread=spread.downstream, more=_lifted,
    says="{number}{within}{at} {is_} {now}, {was} {before}",
    fix=_ONE_KIND,
)(_on_both)  # fmt: skip


@cause(
    "lifted_number", of="argument", spread=spread.alone, group=_call,
    more=_argument,
    says="a Python number, {argument}{at}, is {new}, was {old}", fix=_ONE_KIND,
)  # fmt: skip
def _number_is_constant(c: Comparison, fact: Fact) -> bool:
    old, new = _vertices(fact)
    given = [
        (_given(c.a, old, place), _given(c.b, new, place))
        for place, pair in enumerate(zip(old.attrs, new.attrs, strict=False))
        if pair[0] != pair[1]
    ]
    return _same_op(fact) and any("an input" in pair for pair in given)


# What is left -----------------------------------------------------------------------------------


@cause(
    "code_path", of="argument", spread=spread.downstream, group=_call, more=_argument,
    says="code path changed: {argument}{at} is {new}, was {old}", fix=PATH_FIX,
)  # fmt: skip
def _other_argument(c: Comparison, fact: Fact) -> bool:
    """Return whether a tensor stands where none did, and no new line computes it."""
    parts = ((c.a, fact.before), (c.b, fact.now))
    is_made = any(
        o in side.unmatched and not side[o].is_leaf
        for side, row in parts
        if row is not None
        for o, _ in row.more["vertex"].operands
    )
    return _same_op(fact) and _reads_tensor(fact) and not is_made


def _reading_line(c: Comparison, claims: list[Claim]) -> Fields:
    fact = claims[0].fact
    fields = _new_or_gone("read", "not read", "read", "was_read")(c, claims)
    is_alone = not _has_line(c.a if fact.is_new else c.b, fact.row)
    text = c.source.statement(fact.row.site) if is_alone and fact.row.name else ""
    return {**fields, "by": f" by `{text}`" if text else ""}


@cause(
    "new_input", of="input", spread=spread.reading, group=_direction, more=_reading_line,
    says="input {called} {text} is {read}{by}{at}, was {was_read} in {graph_before}{others}",
    fix="read the same inputs in each step: give one that some batches lack a neutral value (a mask "
    "of ones, zeros); each set of inputs costs one compile",
)  # fmt: skip
def _new_input(c: Comparison, fact: Fact) -> bool:
    """Return whether one graph alone reads a named input, and all that its line does needs it.

    What a line does beside that, or computes in the place of the input, is another path.
    """
    side, other = (c.a, c.b) if fact.is_gone else (c.b, c.a)
    if not fact.row.name or fact.row.name in other.read or (fact.before and fact.now):
        return False
    names = side.snapshot.leaf_names.items()
    inputs = {k for k, name in names if name.text not in other.read}
    behind = side.downstream(inputs, side.unmatched.__contains__)
    readers = {user for k in fact.row.vertices for user in side.users[k]}
    lines = {position(side[k].site) for k in readers} - other.lines
    other_has = _in_place_of(c, fact, fact.row.vertices) & other.unmatched
    is_computed = any(not other[k].is_leaf for k in other_has)
    return not is_computed and all(
        k in behind or side[k].backward or side[k].is_leaf or is_view(side[k])
        for k in side.unmatched
        if position(side[k].site) in lines
    )


def _path(c: Comparison, claims: list[Claim]) -> Fields:
    facts = [claim.fact for claim in claims]
    parts = [
        _lines(c, rows, word)
        for word, rows in (
            ("new", [f.row for f in facts if f.is_new]),
            ("gone", [f.row for f in facts if f.is_gone]),
        )
        if rows
    ]
    for word, rows in (
        ("recorded more often", [f.row for f in facts if _grew(f) > 0]),
        ("recorded less often", [f.row for f in facts if _grew(f) < 0]),
    ):
        if rows:
            parts.append(_ops(rows, word))
    return {"path": "; ".join(parts), "variable": ""}


def _ops(rows: list[Row], word: str) -> str:
    """Return the ops of the first line that differs, and how many more lines do."""
    site = min(rows, key=lambda row: row.vertices[0]).site
    there = [row for row in rows if row.site == site]
    lines = len({str(row.site) for row in rows}) - 1
    are = "are" if lines or len({row.text for row in there}) > 1 else "is"
    scopes = {row.more["scope"] for row in there}
    module = f" in module `{min(scopes)}`" if len(scopes) == 1 and min(scopes) else ""
    more = f" and ops of {plural(lines, 'more line')}" if lines else ""
    return f"{listed(row.text for row in there)}{module}{at(site)}{more} {are} {word}"


def _lines(c: Comparison, rows: list[Row], word: str) -> str:
    """Return which lines one graph has alone, quoted, with their ops; or else which ops."""
    other = c.a if word == "new" else c.b
    alone = [row for row in rows if not _has_line(other, row)]
    text = c.source.statement(alone[0].site) if alone else ""
    if not text:
        return _ops(rows, word)
    lines = len({str(row.site) for row in alone})
    more = f" and {plural(lines - 1, 'more line')}" if lines > 1 else ""
    are = "are" if lines > 1 else "is"
    ops = listed(row.text for row in alone)
    return f"`{text}`{at(alone[0].site)}{more} {are} {word}: {ops}"


def _grew(fact: Fact) -> int:
    if fact.before is None or fact.now is None:
        return 0
    return int(fact.now.value - fact.before.value)


cause(
    "code_path", of="visit", spread=spread.line, more=_path, fix=PATH_FIX,
    says="code path changed: {path}",
)(_always)  # fmt: skip


@cause(
    "code_path", of="argument", spread=spread.downstream, fix=PATH_FIX, more=_argument,
    says="code path changed: {op}{at} is in the place of the one{before_at}",
)  # fmt: skip
def _other_function(c: Comparison, fact: Fact) -> bool:  # noqa: ARG001
    """Return whether an op that is given something else stands on another line."""
    old, new = _vertices(fact)
    return _same_op(fact) and position(old.site) != position(new.site)
