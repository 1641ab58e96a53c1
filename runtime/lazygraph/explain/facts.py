"""Facts: a program described by small tables, and the rows that differ between two programs."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from lazygraph.explain.compare import differs, is_view, position
from lazygraph.graph import grouped
from lazygraph.readable import plural, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Iterable, Iterator

    from lazygraph.explain.compare import Comparison, Position, Side
    from lazygraph.explain.model import Loop
    from lazygraph.snapshot import Name, SourceLocation, Vertex

    _Line = tuple[Position | None, str, str]

_TYPE = re.compile(r"(\w+)\[([\d,]*)\]")
_CONVERSION = "aten._to_copy"
_JOINS = ("aten.cat", "aten.stack")
_NORMS = ("batch_norm", "instance_norm")
_DROPOUTS = ("aten.native_dropout", "aten.bernoulli", "aten.dropout", "aten.feature_dropout")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: a value that is compared, and how a sentence shows it.

    The name is empty where the user has none; `vertices` is where it stands in the graph, `rank` of
    a result its position among the results. `more` is what else predicates and sentences ask for.
    """

    value: Any
    text: str = ""
    name: str = ""
    vertices: tuple[int, ...] = ()
    rank: int = -1
    site: SourceLocation | None = None
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Fact:
    """A row that differs: what it was before and is now; None where one side has no such row."""

    table: str
    before: Row | None
    now: Row | None

    @property
    def row(self) -> Row:
        """The row of now, or that of before where it is gone."""
        found = self.now or self.before
        assert found is not None
        return found

    @property
    def both(self) -> tuple[Row, Row]:
        """What it was before and is now, where both sides have it."""
        assert self.before is not None
        assert self.now is not None
        return self.before, self.now

    @property
    def is_new(self) -> bool:
        """Whether only the new graph has it."""
        return self.before is None

    @property
    def is_gone(self) -> bool:
        """Whether only the graph before had it."""
        return self.now is None


Table = dict["Hashable", Row]
_TABLES: dict[str, Callable[[Side], Table]] = {}
_FINDERS: list[Callable[[Comparison], Iterator[Fact]]] = []


def table(name: str) -> Callable[[Callable[[Side], Table]], Callable[[Side], Table]]:
    """Register what describes one graph: rows by key. Rows of one key are compared."""

    def register(collect: Callable[[Side], Table]) -> Callable[[Side], Table]:
        _TABLES[name] = collect
        return collect

    return register


def of_pairs(find: Callable[[Comparison], Iterator[Fact]]) -> Any:
    """Register what describes two matched graphs."""
    _FINDERS.append(find)
    return find


def facts_of(comparison: Comparison) -> list[Fact]:
    """Return every row that differs between two graphs."""
    found = []
    for name, collect in _TABLES.items():
        before, now = collect(comparison.a), collect(comparison.b)
        # The same op on another line is another path if it reads something else.
        apart = comparison.rewired if name == "visit" else set()
        _join_partners(comparison, before, now, apart)
        for key in dict.fromkeys((*before, *now)):
            old, new = before.get(key), now.get(key)
            if old is None or new is None or old.value != new.value:
                found.append(Fact(name, old, new))
    for find in _FINDERS:
        found += find(comparison)
    return found


def _join_partners(
    comparison: Comparison, before: Table, now: Table, apart: Container[int] = ()
) -> None:
    """Give matched rows one key: a tensor under another name is the same tensor.

    Parameters that both sides have under their own names are two.
    """
    by_vertex = {
        row.vertices[0]: key
        for key, row in before.items()
        if row.vertices and key not in now
    }
    for key, row in list(now.items()):
        if key in before or not row.vertices or row.vertices[0] in apart:
            continue
        old = by_vertex.get(comparison.b.partner[row.vertices[0]])
        if old is None:
            continue
        has_both = before[old].name in comparison.b.names and (
            row.name in comparison.a.names
        )
        if not has_both:
            now[old] = now.pop(key)


def shape_of(type_: str) -> tuple[int, ...]:
    """Return the sizes in a type's text."""
    found = _TYPE.fullmatch(type_)
    return tuple(int(n) for n in found[2].split(",") if n) if found else ()


def dtype_of(type_: str) -> str:
    """Return the dtype in a type's text."""
    return type_.partition("[")[0]


@table("guard")
def guards(side: Side) -> Table:
    """Guards that failed, so that `torch.compile` compiled functions again."""
    found: Table = {}
    for note in side.record.key.guards:
        place = note.definition
        inside = [
            k
            for k in side.free
            if place is not None and (site := side[k].site) is not None
            and (site.file, site.function) == (place.file, place.function)
        ]  # fmt: skip
        found[note.function, note.text] = Row(
            note.text,
            note.text,
            note.function,
            tuple(sorted(inside)),
            site=note.site,
            more={"definition": place},
        )
    return found


@table("buckets")
def buckets(side: Side) -> Table:
    """The parts in which DistributedDataParallel reduces gradients, of a graph that does so."""
    note = side.record.key.buckets
    found = tuple(
        k
        for k, vertex in enumerate(side.vertices)
        if vertex.op.startswith("lazyrt.all_reduce")
    )
    if note is None or not found:
        return {}
    text = f"{plural(len(note.sizes), 'bucket')} of {', '.join(map(size_text, note.sizes))}"
    return {"": Row(note, text, vertices=found, site=side[found[0]].site)}


# Settings and boundaries -------------------------------------------------------------------


def _setting(side: Side, name: str) -> Table:
    value = getattr(side.record.key, name)
    return {"": Row(value, value or "unknown", site=side.record.key.ended_by[1])}


for _name in ("mode", "device", "sharding"):
    table(_name)(partial(_setting, name=_name))


@of_pairs
def cell_work(comparison: Comparison) -> Iterator[Fact]:
    """Work that earlier cells of a notebook left pending.

    Where both graphs go on with earlier cells' work, they are of a step that spans cells.
    """
    for side, other, is_now in (
        (comparison.b, comparison.a, True),
        (comparison.a, comparison.b, False),
    ):
        joined = _of_earlier_cells(side)
        earlier = side.unmatched & joined
        if earlier and _of_earlier_cells(other):
            ranks = [k for k, (vertex, _) in enumerate(side.roots) if vertex in earlier]
            joined = earlier = earlier & side.dominated(ranks)
        if not earlier:
            continue
        cells = sorted({c for k in earlier if (c := side[k].cell) is not None})
        text = f"cell{'s' if len(cells) > 1 else ''} {', '.join(map(str, cells[:4]))}"
        if cells == [side.record.key.cell]:
            text = "an earlier cell"
        found = sorted(earlier | side.dominated((), earlier))
        # Of work that equals the other graph's, or that the step does anyway, some is matched.
        ops = sum(not side[k].is_leaf for k in joined.union(found))
        row = Row(tuple(cells), text, vertices=tuple(found), site=side.site(found), more={"ops": ops})  # fmt: skip
        yield Fact("cell_work", None if is_now else row, row if is_now else None)


def _of_earlier_cells(side: Side) -> set[int]:
    """Return the operations that earlier cells than the step's own one recorded.

    A run without execution counts gives all cells one number: the files of lines outside of
    functions, which only their own cell runs, tell cells apart.
    """
    ended = side.record.key.ended_by[1]
    own = side.record.key.cell or (ended.cell if ended is not None else None)

    def is_own(vertex: Vertex) -> bool:
        site = vertex.site
        return site is not None and ended is not None and site.file == ended.file

    # A cell that a cell magic runs is a file of its own, in which the step does not end.
    recorded = any(map(is_own, side.vertices))

    def is_earlier(vertex: Vertex) -> bool:
        if own is None or vertex.cell is None or vertex.cell != own:
            return own is not None and vertex.cell is not None and vertex.cell < own
        lines = (vertex.site, ended)
        if not recorded or any(
            s is None or s.cell != own or s.function != "<module>" for s in lines
        ):
            return False
        return not is_own(vertex)

    return {k for k, vertex in enumerate(side.vertices) if is_earlier(vertex)}


# Inputs, parameters, state -------------------------------------------------------------------


def _holder(side: Side, leaf: int) -> str:
    name = side.name(leaf)
    if name is None:
        return ""
    # What dropped it called it so when it was computed.
    is_dropped = name.holder == "variable" and name.text.endswith(".grad")
    return "gradient" if is_dropped else name.holder


def _input_row(side: Side, leaf: int) -> Row:
    name, origin = side.name(leaf), side.origin(leaf)
    type_ = side[leaf].types[0]
    return Row(
        (
            shape_of(type_),
            dtype_of(type_),
            "".join(side[leaf].attrs),
            origin.memory_format if origin is not None else "",
        ),
        type_,
        name.text if name is not None else "",
        (leaf,),
        site=side.reading_site(leaf),
        more={"origin": origin, "holder": _holder(side, leaf)},
    )


_KINDS = {"module": "parameter", "buffer": "parameter", "optimizer": "state",
          "optimizer LBFGS": "state", "gradient": "state"}  # fmt: skip
OF_PROGRAM = frozenset(_KINDS)


def _data(side: Side, kind: str) -> Table:
    """Return inputs: `parameter` and buffers of modules, `state` of optimizers and gradients, else `input`."""
    found: Table = {}
    seen: Counter[Hashable] = Counter()
    for leaf in side.leaves:
        if side[leaf].op != "data" or kind != _KINDS.get(_holder(side, leaf), "input"):
            continue
        row = _input_row(side, leaf)
        key: Hashable = row.name or ("read", side[leaf].types, position(row.site))
        seen[key] += 1
        found[(key, seen[key])] = row
    return found


for _name in ("input", "parameter", "state"):
    table(_name)(partial(_data, kind=_name))


@table("number")
def numbers(side: Side) -> Table:
    """Python numbers that are inputs of one side alone, by the op that reads them."""
    found: Table = {}
    seen: Counter[Hashable] = Counter()
    for leaf in side.leaves:
        kind = side[leaf].op
        if kind not in {"float", "int"} or not side.users[leaf]:
            continue
        if side.partner[leaf] >= 0:
            continue
        reader = side[side.users[leaf][0]]
        key = (position(reader.site), reader.scope, reader.op)
        seen[key] += 1
        found[(key, seen[key])] = Row(kind, kind, "", (leaf,), site=reader.site)
    return found


# Results ---------------------------------------------------------------------------------------


@of_pairs
def results(comparison: Comparison) -> Iterator[Fact]:
    """Tensors that are alive at the boundary on one side alone."""
    for side, other, ranks, is_now in (
        (comparison.b, comparison.a, comparison.new_results, True),
        (comparison.a, comparison.b, comparison.gone_results, False),
    ):
        for k in ranks:
            vertex, index = side.roots[k]
            name, partner = side.root_name(k), side.partner[vertex]
            sites = side[vertex].site, other[partner].site
            type_ = side[vertex].types[index]
            called = (
                f"`{name.text}` {type_}" if name else f"{type_} of {side[vertex].op}"
            )
            if copied := original(side, vertex):
                called += f" (a copy of `{copied}`)"
            row = Row(
                (type_,),
                called,
                name.text if name else "",
                (vertex,),
                rank=k,
                site=side.site([vertex]),
                more={
                    "holder": name.holder if name else "",
                    "matched": partner >= 0,
                    # Made of no data, as by `torch.zeros`, and not there in the other graph.
                    "once": partner < 0
                    and all(
                        side[k].op != "data"
                        for k in side.ancestors([vertex], lambda _: True)
                    ),
                    "moved": partner >= 0 and position(sites[0]) != position(sites[1]),
                },
            )
            yield Fact("result", None if is_now else row, row if is_now else None)


def original(side: Side, vertex: int) -> str:
    """Return the name of the input of which a vertex gives the elements; empty where of none."""
    k = vertex
    while is_view(side[k]):
        k = side[k].operands[0][0]
    name = side.name(k)
    return name.text if name is not None and k != vertex else ""


@table("update")
def updates(side: Side) -> Table:
    """Parameters that the graph reads and gives anew: what its optimizer updates."""
    return _named_results(side, lambda name: name.text in side.updated)


@table("created")
def created(side: Side) -> Table:
    """Parameters and state that the graph makes, and reads of no earlier step."""
    holders = {"module", "buffer", "optimizer"}
    return _named_results(
        side, lambda n: n.holder in holders and n.text not in side.read
    )


def _named_results(side: Side, is_wanted: Callable[[Name], bool]) -> Table:
    roots = {k: side.roots[k][0] for k in side.snapshot.root_names}
    return {
        name.text: Row("", name.text, name.text, (roots[k],), k, side.site([roots[k]]),
                       {"holder": name.holder})
        for k, name in side.snapshot.root_names.items()
        if is_wanted(name)
    }  # fmt: skip


@table("lbfgs")
def lbfgs(side: Side) -> Table:
    """How many earlier directions LBFGS computes with."""
    kept = [
        leaf
        for leaf, n in side.snapshot.leaf_names.items()
        if n.holder == "optimizer LBFGS"
    ]
    made = [
        k for k, n in side.snapshot.root_names.items() if n.holder == "optimizer LBFGS"
    ]
    if not kept and not made:
        return {}
    names = {side.snapshot.leaf_names[leaf].text for leaf in kept}
    number = sum(".old_dirs[" in name for name in names)
    site = side.site([side.roots[k][0] for k in made] or kept)
    ended = position(side.record.key.ended_by[1])
    return {
        "": Row((number, ended, len(side.vertices)), str(number), "", (), site=site)
    }


# Modules ---------------------------------------------------------------------------------------


def prefixes(name: str) -> list[str]:
    """Return the modules around a parameter, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts))]


@table("module")
def modules(side: Side) -> Table:
    """Modules that have parameters, by path, whether the graph reads them or not."""
    owned: dict[str, list[str]] = {}
    for name in sorted(
        side.snapshot.modules.keys() | {n.text for n in side.all_names if n.in_module}
    ):
        for path in prefixes(name):
            owned.setdefault(path, []).append(name)
    leaves = {name.text: leaf for leaf, name in side.snapshot.leaf_names.items()}
    made = {name.text: side.roots[k][0] for k, name in side.snapshot.root_names.items()}
    found: Table = {}
    for path, names in owned.items():
        vertices = [leaves.get(name, made.get(name, -1)) for name in names]
        inside = tuple(k for k in vertices if k >= 0)
        recorded = (k for k, v in enumerate(side.vertices) if in_scope(v.scope, path))
        copied = {
            original(side, made.get(name, 0)).removesuffix(name[len(path) :])
            for name in names
        }
        found[path] = Row("", path, path, inside, site=side.site(recorded) or side.site(inside),
                          more={"parameters": len(names), "copied": copied})  # fmt: skip
    return found


def in_scope(scope: str, path: str) -> bool:
    """Return whether a module, or one within it, recorded an op; a scope begins at the call."""
    if not scope:
        return False
    outer = (*prefixes(scope), scope)
    return any(path == each or path.endswith(f".{each}") for each in outer)


def update_lines(side: Side) -> set[Position]:
    """Return the lines that give parameters and optimizers' state anew."""
    return {
        place
        for k, name in side.snapshot.root_names.items()
        if (name.holder.startswith("optimizer") or name.text in side.updated)
        and (place := position(side[side.roots[k][0]].site)) is not None
    }


@table("option")
def options(side: Side) -> Table:
    """Optimizers by their class, and their options; a number counts as zero or not."""
    found: Table = {}
    lines = update_lines(side)
    site = next((v.site for v in side.vertices if position(v.site) in lines), None)
    seen: Counter[str] = Counter()
    for note in side.record.key.optimizers:
        seen[note.name] += 1
        key = (note.name, seen[note.name])
        more = {"optimizer": note.name, "groups": note.groups}
        groups = max(Counter(name for name, *_ in note.options).values(), default=1)
        found[key] = Row(groups, note.name, site=site, more=more)
        for place, (name, text, is_true) in enumerate(note.options):
            value = (is_true, text == "None")  # None leaves the choice to the optimizer
            found[key, place] = Row(value, text, name, site=site, more=more)
    return found


@of_pairs
def casts(comparison: Comparison) -> Iterator[Fact]:
    """Conversions of one side alone of what both sides have."""
    for side, is_now in ((comparison.b, True), (comparison.a, False)):
        for k in sorted(side.unmatched):
            vertex = side[k]
            known = any(side.partner[o] >= 0 for o, _ in vertex.operands)
            if vertex.op.startswith(_CONVERSION) and known and not vertex.backward:
                dtype = dtype_of(vertex.types[0])
                row = Row(dtype, dtype, vertices=(k,), site=vertex.site)
                yield Fact("cast", None if is_now else row, row if is_now else None)


_ITEM = re.compile(r"(.+?)(?:\[\d+\])+")


@table("list")
def lists(side: Side) -> Table:
    """Lists whose items were made before this step: how many the graph reads.

    An item whose next value the graph computes from it is state.
    """
    found: dict[str, list[int]] = {}
    for leaf, name in side.snapshot.leaf_names.items():
        origin, item = side.origin(leaf), _ITEM.fullmatch(name.text)
        # Data that a loop reads one by one is no list to the graph.
        is_whole = origin and (
            origin.step >= 0
            or any(side[k].op.startswith(_JOINS) for k in side.users[leaf])
        )
        is_kept = is_whole and name.holder not in OF_PROGRAM
        if item and is_kept and not follows_from(side, leaf):
            found.setdefault(item[1], []).append(leaf)
    return {
        name: Row(len(leaves), str(len(leaves)), name, tuple(leaves), site=side.site(leaves),
                  more={"steps": {side.snapshot.origins[leaf].step for leaf in leaves} - {-1}})
        for name, leaves in found.items()
    }  # fmt: skip


def follows_from(side: Side, leaf: int) -> bool:
    """Return whether a result of an input's name is computed from it, as state is."""
    name = side.name(leaf)
    roots = {
        side.roots[k][0]
        for k, each in side.snapshot.root_names.items()
        if name is not None and each.text == name.text
    }
    return bool(roots) and not roots.isdisjoint(side.downstream([leaf], lambda _: True))


@table("history")
def history(side: Side) -> Table:
    """Earlier steps whose saved values backward reads."""
    steps: dict[int, list[int]] = {}
    for leaf, origin in side.snapshot.origins.items():
        if origin.step < 0 or _holder(side, leaf) in OF_PROGRAM or not side.users[leaf]:
            continue
        if all(side[user].backward for user in side.users[leaf]):
            steps.setdefault(origin.step, []).append(leaf)
    leaves = tuple(leaf for inputs_of_step in steps.values() for leaf in inputs_of_step)
    return {"": Row(len(steps), str(len(steps)), "", leaves, site=side.site(leaves))}


@of_pairs
def whole(comparison: Comparison) -> Iterator[Fact]:
    """A graph that is the other one several times over, with no boundary in between.

    State, which is read and given anew, goes through each round. What a later round overwrites, or
    computes again of the same operands, may be there once. A loop around an update that does not
    hold the boundary too has other rounds, and no boundary is missing.
    """
    sides, b = (comparison.a, comparison.b), comparison.b
    ends = [side.record.key.ended_by for side in sides]
    before, now = (
        Counter(key for v in side.vertices if (key := _visit(v))) for side in sides
    )
    if before.keys() != now.keys():
        return
    leaves = {name.text: leaf for leaf, name in b.snapshot.leaf_names.items()}
    roots = b.snapshot.root_names.items()
    updates = {b.roots[k][0]: leaves[n.text] for k, n in roots if n.text in leaves}
    behind = b.downstream(updates.values(), lambda _: True)
    path = b.ancestors(updates, behind.__contains__)
    keys = {key for k in path if (key := _visit(b[k]))} or before.keys()
    ratios = {now[key] / before[key] for key in keys}
    times = min(ratios, default=0)
    if len(ratios) != 1 or times <= 1 or times != int(times):
        return
    loops = [loop for k in updates if (loop := comparison.source.loop(b[k].site))]
    is_inside = all(in_loop(ends[1][1], loop) for loop in loops)
    is_rest = all(1 <= now[key] / before[key] <= times for key in before)
    if is_inside and is_rest and (updates or differs(*ends)):
        old, new = (
            Row(number, str(number), "", tuple(range(len(side.vertices))), site=end[1])
            for side, end, number in zip(sides, ends, (1, int(times)), strict=True)
        )
        yield Fact("whole", old, new)


def _visit(vertex: Vertex) -> tuple[str, Position | None, str, tuple[str, ...]] | None:
    """Return what an op of the forward pass has in common with itself in another round."""
    if vertex.is_leaf or vertex.backward or is_view(vertex):
        return None
    return (vertex.op, position(vertex.site), vertex.scope, vertex.types)


def in_loop(site: SourceLocation | None, loop: Loop) -> bool:
    """Return whether a line stands in a loop."""
    return site is not None and site.file == loop[0] and loop[1] <= site.line <= loop[2]


# What the program does ---------------------------------------------------------------------------


@table("visit")
def visits(side: Side) -> Table:
    """How often each line records each op in the forward pass, views and conversions aside."""
    vertices = (
        k
        for k, v in enumerate(side.vertices)
        if not (v.is_leaf or v.backward or is_view(v))
    )
    random = side.snapshot.random
    return {
        key: Row(len(where), key[2], "", tuple(where), site=side[where[0]].site,
                 more={"random": key[2] in random, "scope": key[1], "op": key[2]})
        for key, where in _by_line(side, vertices).items()
    }  # fmt: skip


def _by_line(side: Side, vertices: Iterable[int]) -> dict[_Line, list[int]]:
    """Return vertices by the line, module and op that recorded them."""
    return grouped(
        ((position(side[k].site), side[k].scope, side[k].op), k) for k in vertices
    )


def _rounds(counts: dict[str, tuple[int, int]]) -> tuple[int, int] | None:
    """Return how often a loop ran, before and now, by how often its line recorded each op.

    Most of what the line records is recorded in every round, and grows as the rounds do. The rest
    is recorded once, or once for each round but the first. None where a line is no other loop.
    """
    other = [pair for pair in counts.values() if pair[0] != pair[1]]
    if not other or not all(min(pair) for pair in other):
        return None
    weights: Counter[Fraction] = Counter()
    for old, new in other:
        weights[Fraction(new, old)] += max(old, new)
    growth, weight = weights.most_common(1)[0]
    n, m = min(pair for pair in other if Fraction(pair[1], pair[0]) == growth)
    if any((new - old) % (m - n) or (new > old) != (m > n) for old, new in other):
        return None
    return (n, m) if 2 * weight >= sum(map(max, counts.values())) else None


@table("joined")
def joined(side: Side) -> Table:
    """How many tensors each call of a line joins into one."""
    vertices = (k for k, v in enumerate(side.vertices) if v.op.startswith(_JOINS))
    rows: Table = {}
    for place, where in _by_line(side, vertices).items():
        groups = tuple(sorted(len(side[k].operands) for k in where))
        text = " and ".join(map(str, groups))
        rows[place] = Row(groups, text, "", tuple(where), site=side[where[0]].site,
                          more={"op": place[2]})  # fmt: skip
    return rows


@of_pairs
def loops(comparison: Comparison) -> Iterator[Fact]:
    """Loops, or lines, that ran another number of times: most of their ops did, and none came or went.

    Equal views are one op, so they do not count rounds; an op that equals an earlier one may have
    its line, so that of a loop's lines the one whose ops grow most counts all rounds.
    """
    sides = comparison.a, comparison.b
    tables = [visits(side) for side in sides]
    skipped = update_lines(sides[0]) | update_lines(sides[1]) | {None}
    lines: dict[Hashable, list[_Line]] = {}
    for key in dict.fromkeys((*tables[0], *tables[1])):
        line = cast("_Line", key)
        if line[0] not in skipped:
            lines.setdefault(line[:2], []).append(line)
    found: dict[
        Hashable, list[tuple[tuple[int, int], list[tuple[int, ...]], Loop | None]]
    ] = {}
    for keys in lines.values():
        rows = [[t.get(key, Row(0)).vertices for t in tables] for key in keys]
        rounds = _rounds({key[2]: (len(old), len(new)) for key, (old, new) in zip(keys, rows, strict=True)})  # fmt: skip
        if rounds is not None:
            both = [tuple(k for row in rows for k in row[which]) for which in (0, 1)]
            loop = comparison.source.loop(comparison.b[both[1][0]].site)
            found.setdefault(loop or tuple(keys), []).append((rounds, both, loop))
    for parts in found.values():
        pair, loop = max((p[0] for p in parts), key=lambda r: (max(r) / min(r), -max(r))), parts[0][2]  # fmt: skip
        old, new = (
            Row(pair[which], str(pair[which]), "", vertices,
                site=side[vertices[0]].site, more={"loop": loop})
            for which, side in enumerate(sides)
            if (vertices := tuple(k for part in parts for k in part[1][which]))
        )  # fmt: skip
        yield Fact("loop", old, new)


@of_pairs
def training(comparison: Comparison) -> Iterator[Fact]:
    """Modules that train on one side alone.

    Dropout that is gone says so where what it was given is still there.
    """
    before, now = _modes(comparison.a), _modes(comparison.b)
    _join_partners(comparison, before, now)
    for key in dict.fromkeys((*before, *now)):
        old, new = before.get(key), now.get(key)
        if old is not None and new is not None:
            if old.value != new.value:
                yield Fact("training", old, new)
            continue
        for side, row in ((comparison.a, old), (comparison.b, new)):
            other = comparison.b if side is comparison.a else comparison.a
            is_dropout = row is not None and row.text.startswith(_DROPOUTS)
            if (
                row is not None
                and is_dropout
                and any(
                    (partner := side.partner[operand]) >= 0
                    and side[operand].scope == other[partner].scope
                    and position(side[operand].site) == position(other[partner].site)
                    for operand, _ in side[row.vertices[0]].operands
                    if side[operand].op != "rng"
                )
            ):
                yield Fact("training", old, new)


def _modes(side: Side) -> Table:
    """Return the modules that say whether they train: dropout that draws, norms by their flag."""
    found: Table = {}
    for k, vertex in enumerate(side.vertices):
        if vertex.backward or vertex.is_leaf:
            continue
        is_dropout = vertex.op.startswith(_DROPOUTS)
        if is_dropout or any(norm in vertex.op for norm in _NORMS):
            flag = "no_training" not in vertex.op and "True" in vertex.attrs
            mode = "training" if is_dropout or flag else "evaluation"
            key = (vertex.scope or position(vertex.site), is_dropout)
            found[key] = Row(mode, vertex.op, vertex.scope, (k,), site=vertex.site)
    return found


# What matched ops were given -------------------------------------------------------------------------


@of_pairs
def arguments(comparison: Comparison) -> Iterator[Fact]:
    """Ops that were given something else, where nothing that they read has changed."""
    a, b = comparison.a, comparison.b
    for k, partner in comparison.changed.items():
        now, before = b[k], a[partner]
        if now.is_leaf or now.backward or (_follows(comparison, k, partner)):
            continue
        rows = [
            Row(vertex.label, vertices=(number,), site=vertex.site,
                more={"vertex": vertex, "reads": _reads(side, vertex)})
            for side, vertex, number in ((a, before, partner), (b, now, k))
        ]  # fmt: skip
        yield Fact("argument", *rows)


_SIZES = re.compile(r"\[[^\]]*\]|(?<![\w.])-?\d+(?![\w.])")


def _follows(comparison: Comparison, k: int, partner: int) -> bool:
    """Return whether an op differs because what it reads does."""
    a, b = comparison.a, comparison.b
    now, before = b[k], a[partner]
    reads, read = _reads(b, now), _reads(a, before)
    sizes = [tuple(_SIZES.sub("#", attr) for attr in v.attrs) for v in (now, before)]
    is_grouped = len(reads) != len(read) and all(
        b.partner[o] >= 0 for o, _ in now.operands
    )
    return reads != read and sizes[0] == sizes[1] and not is_grouped


def _reads(side: Side, vertex: Vertex) -> list[str]:
    """Return the types of what an op reads."""
    return [side[operand].types[index] for operand, index in vertex.operands]


@of_pairs
def operands(comparison: Comparison) -> Iterator[Fact]:
    """Operands that are another vertex than the partner's: what stands there now and before."""
    a, b = comparison.a, comparison.b
    seen = set()
    for reader, old, new in comparison.substitutions:
        if (old, new) in seen:
            continue
        seen.add((old, new))
        partner = b.partner[reader]
        rows = _operand_row(a, old, partner), _operand_row(b, new, reader)
        yield Fact("operand", *rows)


def _operand_row(side: Side, vertex: int, reader: int) -> Row:
    if side[vertex].op == "data":
        row = _input_row(side, vertex)
        return replace(row, value="input", site=side[reader].site)
    what = side[vertex]
    kind, site = "number" if what.is_leaf else "op", what.site or side[reader].site
    more = {"origin": None, "holder": ""}
    return Row(kind, what.op, vertices=(vertex,), site=site, more=more)


@of_pairs
def computed_before(comparison: Comparison) -> Iterator[Fact]:
    """Inputs that the graph before computed: its results, by execution or by name."""
    a, b = comparison.a, comparison.b
    made = {n.text: k for k, n in a.snapshot.root_names.items() if n.text not in a.read}
    for leaf, origin in b.snapshot.origins.items():
        if b.partner[leaf] >= 0 or origin.step < 0 or origin.how:
            continue
        behind = b.downstream([leaf], lambda _: True)
        if b.unmatched.issuperset(behind) and not follows_from(b, leaf):
            continue  # only what is new reads it
        row = _input_row(b, leaf)
        root = made.get(row.name)
        if origin.graph == a.record.name:
            named = a.root_name(origin.output)
            if named is not None and named.text in a.read:
                continue
            root = origin.output
        if root is not None:
            vertex = a.roots[root][0]
            before = Row("op", a[vertex].op, row.name, (vertex,), root, a[vertex].site)
            yield Fact("computed_before", before, row)
