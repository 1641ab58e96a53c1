"""Why two programs of HLO or StableHLO differ, in sentences, and what was not compared.

The sentences are those of the runtime's causes (`causes.py`), of the facts that a dump has:
settings, inputs, outputs, constants, modules, and operations with their lines.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from lazygraph.diff import is_compiled, nested_diffs
from lazygraph.graph import CONSTANT, PARAMETER, grouped
from lazygraph.normalize import attributes, meshes_of
from lazygraph.read.hlo_module import HloModule, closing, lacks_attributes, split_commas
from lazygraph.read.stablehlo import MlirModule
from lazygraph.readable import plural
from lazygraph.snapshot import times_of
from lazygraph.trace import TUPLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from lazygraph.diff import GraphDiff
    from lazygraph.graph import Graph, Label

    _Sides = tuple[set[int], set[int]]
    _Path = tuple[str, ...]

_MAX_SENTENCES = 8
_MOST = 3
_MAX_INSIDE = 12
_CLIP = 60
_LEAVES = frozenset({PARAMETER, CONSTANT})
_OTHERWISE = re.compile(r"#|sharding|replica_groups|source_target_pairs|device_list")
_DEPTH = 3  # of what is called within what is called


def sentences(found: GraphDiff) -> list[str]:
    """Return why the second program is another one, the most basic reason first.

    A reason counts what follows from it: types that changed with an input's are no reason
    of their own. Edits that no reason claims are listed as edits.
    """
    said = [*_settings(found), *_donations(found)]
    return [*said, *_reasons(found), *_redone(found)][:_MAX_SENTENCES]


def _reasons(
    found: GraphDiff, depth: int = _DEPTH, *, resized: bool = False
) -> list[str]:
    """Return what the ops say; within what is called, inputs and sizes follow from those outside."""
    ends = _with_outputs(found)
    (_, left_b, _), (_, left_a, _) = _left(found, found.redone)
    gone = _blocks(found.a, left_a, "removed", ends[0])
    new = _blocks(found.b, left_b, "added", ends[1])
    claimed = gone[1] | found.redone[0], new[1] | found.redone[1]
    edits = _edits(found)
    said = [*found.causes] or [*new[0], *gone[0]]
    said += _inputs(found, claimed) if depth == _DEPTH else []
    said += [*edits["placement"], *_embedded(found)]
    if found.causes:  # what the ops alone suggest is no reason beside them
        return [*said, *_outputs(found, claimed)]
    said += [*edits["literal"], *_outputs(found, claimed), *edits["op"]]
    claimed = claimed[0] | ends[0], claimed[1] | ends[1]
    resized = resized or bool(found.resized_inputs)
    if not resized:  # what follows from the sizes
        said += [*edits["attributes"], *edits["type"]]
    said += [*_code(found, claimed), *_reads(found), *_results(found)]
    if depth and len(said) < _MOST:
        said += _inside(found, depth, resized=resized)
    return said[:_MAX_SENTENCES]


def _with_outputs(found: GraphDiff) -> _Sides:
    """Return what is counted with outputs that one side has alone, on both sides."""
    added, removed = found.outputs.added, found.outputs.removed
    if len(added) == len(removed):  # replaced, which is no output more
        return set(), set()
    return (
        _alone(found.a, removed, set(found.removed)).union(removed),
        _alone(found.b, added, set(found.added)).union(added),
    )


def _where(graph: Graph, nodes: Iterable[int]) -> str:
    """Return the first source line and module of some nodes, as ` at train.py:4 in head`."""
    for node in nodes:
        origin = graph.origin(node)
        if origin.site or origin.scope:
            at = f" at {origin.site}" if origin.site else ""
            return at + (f" in {origin.scope}" if origin.scope else "")
    return ""


def _name(graph: Graph, node: int) -> str:
    return (
        graph.holders.get(node, "") or graph.origin(node).op_name or graph.names[node]
    )


def state_of(graph: Graph, nodes: Iterable[int]) -> dict[str, list[int]]:
    """Return inputs or outputs by what they are to parameters, such as "`exp_avg` of {} parameters".

    State has its optimizer's class, where that is known: "AdamW: `exp_avg` of {} parameters". One
    that is nothing to a parameter stands alone, under its number.
    """
    inputs = (node for node in range(len(graph)) if graph.ops[node] == PARAMETER)
    names = {_name(graph, node) for node in inputs}
    with_state = {
        owner
        for name in {*names, *graph.holders.values()}
        if (owner := name.rpartition(".")[0]) in names
    }
    alike: dict[str, list[int]] = {}
    for node in nodes:
        name = _name(graph, node)
        owner, _, slot = name.rpartition(".")
        if graph.attrs[node] in _NUMBERS and graph.ops[node] == PARAMETER:
            key = "{} numbers"
        elif owner in with_state:
            whose = f"{graph.optimizer}: " if graph.optimizer and slot != "grad" else ""
            key = f"{whose}`{slot}` of {{}} parameters"
        else:
            key = "{} parameters" if name in with_state else f"{node}"
        alike.setdefault(key, []).append(node)
    return alike


def called(graph: Graph, nodes: Sequence[int], most: int) -> list[str]:
    """Return what inputs or outputs are called, the state of several parameters in one entry.

    Example: "`exp_avg` of 38 parameters", "`x` f32[8,4]", "and 3 more", which is one more than
    `most`.
    """
    entries = []
    for key, group in state_of(graph, nodes).items():
        first = f"`{_name(graph, group[0])}` {graph.types[group[0]]}"
        words = key.format(f"{len(group):,}") if len(group) > 1 else first
        entries.append((len(group), words))
    rest = sum(count for count, _ in entries[most:])
    return [
        *(words for _, words in entries[:most]),
        *([f"and {rest:,} more"] if rest else []),
    ]


def _shown(value: str | None) -> str:
    """Return a text in quotation length."""
    value = (value or "").strip() or "not given"
    return value if len(value) <= _CLIP else f"{value[: _CLIP - 1]}…"


def _counted_ops(graph: Graph, nodes: Sequence[int], times: int = 1) -> str:
    """Return `add ×2, negate`, the commonest ops first."""
    ops = Counter(graph.ops[node] for node in nodes)
    shown = [
        f"{op} ×{n // times:,}" if n > times else op for op, n in ops.most_common(4)
    ]
    return ", ".join(shown) + (", ..." if len(ops) > len(shown) else "")


# What stands for a large constant in HLO and in MLIR.
ELIDED = frozenset({"{...}", "__elided__"})


def unseen(found: GraphDiff) -> Iterator[str]:
    """Yield what was not compared, as one dump or both leave it out."""
    bare = _is_bare(found.a), _is_bare(found.b)
    if any(bare):
        what = "dimensions and elements of tuples"
        yield _not_compared(what, bare, "print_extra_attributes")
    elided = _elided(found.a), _elided(found.b)
    if count := max(elided):
        what = "value of a constant" if count == 1 else f"values of {count:,} constants"
        yield _not_compared(f"the {what}", elided, "print_large_constants")


def _is_bare(graph: Graph) -> bool:
    return isinstance(graph.source, HloModule) and lacks_attributes(graph.source)


def _not_compared(what: str, left_out: tuple[int, int], option: str) -> str:
    """Return what one dump or both leave out."""
    whose = f"the {'first' if left_out[0] else 'second'} dump leaves"
    whose = "both dumps leave" if all(left_out) else whose
    return f"not compared: {what}, which {whose} out; print with `{option}`"


def _elided(graph: Graph) -> int:
    """Return how many constants stand without their values, in what is called too."""
    source = graph.source
    if not isinstance(source, HloModule):
        kinds = {k for k, each in enumerate(graph.labels) if each.literal in ELIDED}
        return sum(kind in kinds for kind in graph.kinds)
    forms = {
        k
        for k, form in enumerate(source.forms)
        if form.op == CONSTANT and form.literal.strip() in ELIDED
    }
    computations = source.computations.values() if forms else ()
    return sum(form in forms for each in computations for form in each.forms)


# What a module says of itself that decides how it is compiled and run.
_SETTINGS = {
    "num_partitions": "the number of partitions",
    "replica_count": "the number of replicas",
    "output_shardings": "how results are placed on devices",
    "mesh": "the devices",
}
_COUNTS = frozenset({"num_partitions", "replica_count"})
_DONATIONS = ("input_output_alias", "buffer_donor")
_ALIASED = re.compile(r"\((\d+),")
_EFFECT = re.compile(r"has_side_effect\s*=\s*true")
_PLACEMENT = (
    "sharding", "replica_groups", "source_target_pairs", "device_list", "xla.sdy.sharding",
    "xla.sdy.in_shardings", "xla.sdy.out_shardings",
)  # fmt: skip
_MLIR_PLACEMENT = re.compile(
    r"\b((?:sdy\.|mhlo\.)?sharding|(?:in|out)_shardings|replica_groups|source_target_pairs)\s*=\s*"
)


def _settings(found: GraphDiff) -> Iterator[str]:
    before, now = _header(found.a), _header(found.b)
    for key, what in _SETTINGS.items():
        old, new = before.get(key), now.get(key)
        if key in _COUNTS:
            old, new = old or "1", new or "1"
        if old != new:
            yield f"{what} ({key}) is {_shown(new)}, was {_shown(old)}"


def _header(graph: Graph) -> dict[str, str]:
    source = graph.source
    if isinstance(source, MlirModule):
        return source.settings
    if not isinstance(source, HloModule):
        return {}
    said = {key: " ".join(value.split()) for key, value in attributes(source.header)}
    more = {
        "output_shardings": _root_sharding(source),
        "mesh": ", ".join(sorted(meshes_of(source.header).values())),
    }
    return said | {key: value for key, value in more.items() if value}


def _root_sharding(module: HloModule) -> str:
    """Return how a tuple of results is placed, which no node of the graph says."""
    entry = module.computations.get(module.entry)
    if entry is None or entry.instructions[entry.root].op != "tuple":
        return ""
    return dict(attributes(entry.instructions[entry.root].attrs)).get("sharding", "")


def _donations(found: GraphDiff) -> Iterator[str]:
    """Yield which inputs give up their memory to results in one program only."""
    before, now, partner = _donated(found.a), _donated(found.b), found.partner_a
    new = now - {partner[x] for x in before}
    new = {y for y in new if found.partner_b[y] >= 0}
    gone = {x for x in before if partner[x] >= 0 and partner[x] not in now}
    for graph, nodes, gives in (
        (found.b, sorted(new), "now gives"),
        (found.a, sorted(gone), "no longer gives"),
    ):
        if nodes:
            others = f" and {len(nodes) - 1:,} more, each" if len(nodes) > 1 else ""
            yield f"input {_name(graph, nodes[0])}{others} {gives} up its memory to a result (donation)"


def _donated(graph: Graph) -> set[int]:
    source = graph.source
    if isinstance(source, MlirModule):
        numbers = set(source.donated())
    elif isinstance(source, HloModule):
        said = dict(attributes(source.header))
        text = "".join(said.get(key, "") for key in _DONATIONS)
        numbers = {int(each) for each in _ALIASED.findall(text)}
    else:
        numbers = set()
    return {node for node, number in graph.numbers.items() if number in numbers}


def _inputs(found: GraphDiff, claimed: _Sides) -> Iterator[str]:
    a, b = found.a, found.b
    changed = found.resized_inputs
    resized = (y for x, y in found.changed if a.types[x] != b.types[y])
    follow = sum(b.ops[y] not in TUPLES for y in resized) - len(changed)
    for x, y in [] if found.causes else changed[:1]:
        others = f" (and {len(changed) - 1:,} more)" if len(changed) > 1 else ""
        depend = "depends" if follow == 1 else "depend"
        more = f"; {plural(follow, 'op')} {depend} on it" if follow > 0 else ""
        yield f"input `{_name(b, y)}` is {b.types[y]}, was {a.types[x]}{others}{more}"
    for graph, left, what in _left(found, claimed):
        nodes = [n for n in left if graph.ops[n] == PARAMETER]
        if nodes:
            names = ", ".join(called(graph, nodes, _MOST)).replace(", and ", " and ")
            noun, is_ = ("input", "is") if len(nodes) == 1 else ("inputs", "are")
            yield f"{noun} {names} {is_} {what}"


def _left(found: GraphDiff, claimed: _Sides) -> list[tuple[Graph, list[int], str]]:
    """Return both programs with what each does alone and no sentence counts yet."""
    new = [node for node in found.added if node not in claimed[1]]
    gone = [node for node in found.removed if node not in claimed[0]]
    return [(found.b, new, "new"), (found.a, gone, "gone")]


class _Edit(NamedTuple):
    """What one pair has otherwise than another program: of `subject`, such as an attribute."""

    what: str
    subject: str
    before: str
    now: str


_EDITS = ("placement", "literal", "op", "attributes", "type")


def _edits(found: GraphDiff) -> dict[str, list[str]]:
    """Return how pairs differ, by what of them does: a sentence for each edit, with its places."""
    mesh = _header(found.a).get("mesh", ""), _header(found.b).get("mesh", "")
    changed = ((x, y) for x, y in found.changed if y not in found.redone[1])
    edits = ((e, y) for x, y in changed for e in _edits_of(found, x, y, mesh))
    places = grouped(edits)
    said: dict[str, list[str]] = {what: [] for what in _EDITS}
    for edit, nodes in places.items():
        if len(said[edit.what]) < _MOST:
            said[edit.what].append(_sentence(found, edit, nodes))
    return said


def _edits_of(
    found: GraphDiff, x: int, y: int, mesh: tuple[str, str]
) -> Iterator[_Edit]:
    a, b = found.a, found.b
    before, now = a.label(x), b.label(y)
    is_placed = before.attrs != now.attrs
    placed = (_placed(a, x), _placed(b, y)) if is_placed else ({}, {})
    for key in sorted({*placed[0], *placed[1]}):
        old, new = (each.get(key, "") for each in placed)
        if all(mesh):  # another mesh is said already
            old = old.replace(*mesh)
        if old != new:
            yield _Edit("placement", key, old, new)
    if before.op != now.op:
        yield _Edit("op", "", before.op, now.op)
    elif before.op == CONSTANT and before.literal != now.literal:
        if not ELIDED & {before.literal, now.literal}:  # `unseen` reports it
            yield _Edit("literal", "", before.literal, now.literal)
    elif before.attrs != now.attrs:
        parts = [Counter(split_commas(each)) for each in (before.attrs, now.attrs)]
        old = ", ".join((parts[0] - parts[1]).elements())
        new = ", ".join((parts[1] - parts[0]).elements())
        # `_inside` reports another body.
        if not _OTHERWISE.search(f"{old}, {new}"):
            yield _Edit("attributes", now.op, old, new)
    elif before.type != now.type and now.op != PARAMETER:
        reads = zip(a.operands[x], b.operands[y], strict=False)
        if all(a.types[c] == b.types[d] for c, d in reads):
            yield _Edit("type", "", before.type, now.type)


def _sentence(found: GraphDiff, edit: _Edit, nodes: Sequence[int]) -> str:
    what, subject, *pair = edit
    old, new = map(_shown, pair)
    name, where = found.b.names[nodes[0]], _where(found.b, nodes)
    many = f" in {len(nodes):,} places" if len(nodes) > 1 else ""
    if what == "placement":
        of = f"{len(nodes):,} ops" if many else name
        return f"{subject} of {of}{where} is {new}, was {old}"
    if what == "literal":
        resized = found.resized_inputs
        hint = ", which may follow from the other sizes" if resized else ""
        return f"constant changed: {new}, was {old}{many}{where}{hint}"
    if what == "attributes":
        one_sided = "attribute added" if edit.now else "attribute removed"
        changed = "constant changed" if all(pair) else one_sided
        has = [f"has {new}"] * bool(edit.now) + [f"had {old}"] * bool(edit.before)
        return f"{changed}: {subject} {name}{where} {', '.join(has)}{many}"
    dtypes = [text.partition("[")[0] for text in pair]
    other = "shape" if dtypes[0] == dtypes[1] else "dtype"
    changed = "code path" if what == "op" else other
    return f"{changed} changed: {name}{where} is {new}, was {old}{many}"


def _placed(graph: Graph, node: int) -> dict[str, str]:
    """Return what an instruction says of its place on devices."""
    attrs = graph.attrs[node]
    if not isinstance(graph.source, MlirModule):
        said = dict(attributes(attrs))
        return {key: said[key] for key in _PLACEMENT if key in said}
    if graph.ops[node] == "sdy.sharding_constraint":
        return {"sharding": attrs}
    found = {}
    for each in _MLIR_PLACEMENT.finditer(attrs):
        start = each.end()
        end = closing(attrs, start) if attrs.startswith("[", start) else len(attrs)
        found[each[1]] = split_commas(attrs[start:end])[0].rstrip("}")
    return found


def _inside(found: GraphDiff, depth: int, *, resized: bool) -> Iterator[str]:
    """Yield what is said of loops, functions and fusions that changed within."""
    known: set[str] = set()
    for x, y in found.changed[:_MAX_INSIDE]:
        for name, inner in nested_diffs(found, x, y):
            within = name.partition(":")[0]
            for each in _reasons(inner, depth - 1, resized=resized):
                if each not in known and len(known) < _MOST:
                    known.add(each)
                    yield f"in the {within} of {found.b.names[y]}{_where(found.b, [y])}: {each}"


def _outputs(found: GraphDiff, claimed: _Sides) -> Iterator[str]:
    added, removed = found.outputs.added, found.outputs.removed
    if len(added) == len(removed):  # A replaced result is no further one.
        return
    sides = zip(_left(found, claimed), (added, removed), claimed[::-1], strict=True)
    for (graph, left, what), ends, counted in sides:
        nodes, outputs = set(left), [node for node in ends if node not in counted]
        if not outputs:
            continue
        node = outputs[0]
        is_named = len(outputs) > 1 and all(map(graph.holders.get, outputs))
        first = f"{graph.names[node]} {graph.types[node]}{_where(graph, [node])}"
        noun = "call with an effect" if _EFFECT.search(graph.attrs[node]) else "output"
        many = f" (and {len(outputs) - 1:,} more)" if len(outputs) > 1 else ""
        it = "them" if is_named else "it"
        if count := len(_alone(graph, outputs, nodes)):
            needed = f"with {plural(count, 'op')} for {it} alone"
        else:
            needed = (
                f"and other ops need {it} too"
                if node in nodes
                else f"and both compute {it}"
            )
        if is_named:
            listed = ", ".join(called(graph, outputs, _MOST)).replace(", and ", " and ")
            yield f"outputs {listed} are {what}, {needed}"
        else:
            yield f"{noun} {first} is {what}{many}, {needed}"


def _alone(graph: Graph, outputs: Iterable[int], inside: set[int]) -> set[int]:
    """Return what only some outputs need, of the nodes `inside`."""
    wanted, ends, found = set(outputs), set(graph.outputs), set[int]()
    for node in sorted(inside, reverse=True):  # readers before what they read
        readers = {user for user, _ in graph.users[node]}
        if node in wanted or (readers and node not in ends):
            found |= {node} if readers <= found else set()
    return found


def _code(found: GraphDiff, claimed: _Sides) -> Iterator[str]:
    """Yield which ops one side has alone, as a step that takes another path has."""
    parts = []
    for graph, left, what in _left(found, claimed):
        nodes = [node for node in left if graph.ops[node] not in _LEAVES]
        unmatched = found.added if what == "new" else found.removed
        nodes = _without_readers(graph, nodes, unmatched)
        if nodes:
            count = f"{plural(len(nodes), 'op')} {'is' if len(nodes) == 1 else 'are'}"
            parts.append(
                f"{count} {what} ({_counted_ops(graph, nodes)}), first "
                f"{graph.names[nodes[0]]}{_where(graph, nodes)}"
            )
    if parts:
        yield f"code path changed: {'; '.join(parts)}"


def _without_readers(
    graph: Graph, nodes: list[int], unmatched: Iterable[int]
) -> list[int]:
    """Return the nodes that read no input of one side alone, which `_inputs` names."""
    reading = {node for node in unmatched if graph.ops[node] == PARAMETER}
    kept = []
    for node in nodes:
        if reading.isdisjoint(graph.operands[node]):
            kept.append(node)
        else:
            reading.add(node)
    return kept


def _redone(found: GraphDiff) -> Iterator[str]:
    """Yield how much a compiler made anew of operations that both programs have."""
    parts = []
    sides = zip((found.a, found.b), found.redone, ("gone", "new"), strict=True)
    for graph, nodes, what in sides if is_compiled(found.b) else ():
        if count := sum(graph.ops[node] not in TUPLES for node in nodes):
            is_ = "is" if count == 1 else "are"
            parts.append(f"{plural(count, 'instruction')} {is_} {what}")
    if parts:
        yield f"compiled otherwise: {' and '.join(parts)} for what both programs do"


def _reads(found: GraphDiff) -> Iterator[str]:
    """Yield which pairs read other values than before, where nothing was put in between."""
    a, b = found.a, found.b
    if is_compiled(b) and any(found.redone):  # what is fused anew reads anew
        return
    slots = grouped(((x, y), slot) for x, y, slot in found.rewired)
    shown = 0
    for (x, y), changed in slots.items():
        row, other = a.operands[x], b.operands[y]
        partners = [found.partner_a[each] for each in row]
        if shown == _MOST or len(row) != len(other):
            continue
        known = (
            slot
            for slot in changed
            if _is_known(a, row[slot], partners[slot])
            and _is_known(b, other[slot], found.partner_b[other[slot]])
        )
        at = next(known, None)
        if at is None:
            continue
        shown += 1
        place = f"other operands: {b.ops[y]} {b.names[y]}{_where(b, [y])}"
        if sorted(partners) == sorted(other):
            yield f"{place} reads them in another order"
        else:
            yield f"{place} reads {_value(b, other[at])}, was {_value(a, row[at])}"


def _results(found: GraphDiff) -> Iterator[str]:
    """Yield which results took the place of others, where both programs compute both."""
    old, new = found.outputs.removed, found.outputs.added
    if len(old) != len(new):
        return
    for x, y in list(zip(old, new, strict=True))[:_MOST]:
        if found.partner_a[x] >= 0 and found.partner_b[y] >= 0:
            was, now = found.a, found.b
            yield f"output is {now.names[y]} {now.types[y]}, was {was.names[x]} {was.types[x]}"


def _is_known(graph: Graph, node: int, partner: int) -> bool:
    """Return whether a value was there before, or is a number."""
    return partner >= 0 or graph.ops[node] == CONSTANT


def _value(graph: Graph, node: int) -> str:
    if graph.ops[node] != CONSTANT:
        return graph.names[node]
    return f"the constant {_shown(graph.label(node).literal)}"


# Numbers that are constants in one program and inputs in the other --------------------------------

# Which of a graph's inputs are Python numbers, as the runtime's IR says.
_NUMBERS = frozenset({"float", "int"})
_VALUE = re.compile(r"value=([^,]*)|dense<([^<>]*)>")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)")
_MARK = "%"
_SCALAR = "[]"
_REPEATS = frozenset({"broadcast", "broadcast_in_dim", "convert"})


def _embedded(found: GraphDiff) -> Iterator[str]:
    """Yield a sentence for each number that only one of two programs embeds as a constant."""
    said: dict[str, None] = {}
    reads = [(each.a, each.b, each.slot) for each in found.rewired]
    for x, y in found.changed:
        is_other = found.a.ops[x] != found.b.ops[y]
        for user, slot in found.b.users[y][:1] if is_other else ():
            partner = found.partner_b[user]
            if partner >= 0 and _operand(found.a, partner, slot) == x:
                reads.append((partner, user, slot))
    for x, y, slot in reads:
        (old, was), (new, is_) = (
            _number(found.a, x, found.b.label(y), slot),
            _number(found.b, y, found.a.label(x), slot),
        )
        if old and is_ is not None:
            said[
                f"the number {old} of {_of(found.b, y)} is an input from now on "
                f"({_name(found.b, is_)}), was embedded as a constant: further values compile nothing"
            ] = None
        elif new and was is not None:
            is_special = float(new) in {0.0, 1.0} and _is_of_torch_xla(found.b, y)
            why = " (torch_xla embeds 0 and 1 and sends other numbers as data)"
            said[
                f"the number {new} of {_of(found.b, y)} is embedded as a constant, was the input "
                f"{_name(found.a, was)}{why * is_special}"
            ] = None
    yield from list(said)[:_MOST]


def _operand(graph: Graph, node: int, slot: int) -> int | None:
    row = graph.operands[node]
    return row[slot] if slot < len(row) else None


def _number(graph: Graph, node: int, other: Label, slot: int) -> tuple[str, int | None]:
    """Return the number that an op has embedded where its partner reads a slot, or the input it reads.

    The number is empty, and the input None, where there is none.
    """
    operand = _operand(graph, node, slot)
    if operand is None:  # it stands among the arguments, as the runtime's IR has it
        one, two = (each.attrs.split(", ") for each in (graph.label(node), other))
        marks = [k for k, part in enumerate(two) if part.endswith(_MARK)]
        is_given = len(one) == len(two) and slot < len(marks)
        text = one[marks[slot]].rpartition("=")[2] if is_given else ""
    else:
        op, type_, attrs, literal = graph.label(operand)
        if op == PARAMETER and (attrs in _NUMBERS or type_.endswith(_SCALAR)):
            return "", operand
        if not op.lower().endswith("constant") or not type_.endswith(_SCALAR):
            return "", None
        value = _VALUE.search(f"{attrs} {literal}")
        text = ((value[1] or value[2] or "") if value else literal).strip()
    return text if _NUMBER.fullmatch(text) else "", None


def _is_of_torch_xla(graph: Graph, node: int) -> bool:
    node = _reader(graph, node)
    name = graph.origin(node).op_name
    return "::" in graph.ops[node] or name.startswith(("aten__", "aten::", "xla__"))


def _reader(graph: Graph, node: int) -> int:
    """Return what reads a number, past the ops that only repeat it."""
    while graph.ops[node] in _REPEATS and len(graph.users[node]) == 1:
        ((node, _),) = graph.users[node]
    return node


def _of(graph: Graph, node: int) -> str:
    """Return the op that reads a number, and where."""
    node = _reader(graph, node)
    site = graph.origin(node).site
    return f"{graph.ops[node]}{f' at {site}' if site else ''}"


# Layers and modules that one program has alone, and blocks that come again and again --------------

# What a framework writes around a module's path: `transpose(jvp(h.4))`, `h.4 (backward)`.
_AROUND = re.compile(r" \(.*|[\w.]*\(|\)")
# What jax writes between modules for loops, branches and calls, which are none.
_CONTROL = re.compile(
    r"(?:^|(?<=/))(?:while(?:/(?:body|cond))?|closed_call|scan|checkpoint|branch_\d+_fun"
    r"|rematted_computation|custom_\w+_call)(?=/|$)"
)
_NUMBERED = re.compile(r"(.*?)(\d+)")
# Of a module that is new, so much is new: where equal layers meet, any may be the new one.
_SHARE = 0.9
# Of what is new, so much is in a block, at best: its first and last have other neighbours.
_REPEATED = 0.8
_LEAST_BLOCK = 8


def _blocks(
    graph: Graph, unmatched: Sequence[int], what: str, ends: set[int]
) -> tuple[list[str], set[int]]:
    """Return which layers, modules or equal blocks one of two programs has alone; and their nodes.

    `what` happened to its unmatched nodes: `added` or `removed`. `ends` is computed for outputs
    that one program has alone, which is not repeated.
    """
    if ends.issuperset(unmatched):
        return [], set()
    modules = _modules(graph, set(unmatched))
    if not modules:
        return _repeated(graph, unmatched, what, ends)
    claimed: set[int] = set()
    said = []
    # Modules whose names differ in their last number, as a row of layers has them.
    rows = groupby(sorted(modules, key=_order), key=lambda path: _order(path)[:2])
    groups = [list(same) for _, same in rows]
    groups.sort(key=lambda paths: -sum(len(modules[path]) for path in paths))
    for paths in groups[:_MOST]:
        members = {node for path in paths for node in modules[path]}
        if members <= ends:
            continue
        claimed |= members
        verb = "was" if len(paths) == 1 else "were"
        said.append(
            f"{_called(paths)} {verb} {what}: {_counted(graph, members)}"
            f"{_where(graph, sorted(modules[paths[0]], key=lambda k: ' (' in graph.scope(k)))}"
        )
    return said, claimed


def _modules(graph: Graph, unmatched: set[int]) -> dict[_Path, list[int]]:
    """Return the outermost modules that are in `unmatched` but for little, with their nodes.

    What nothing but a module needs is its own, as its weights are; so is what is computed of
    it alone, as their updates are.
    """
    whole = _counts(graph, range(len(graph)))
    counts = _counts(graph, unmatched)
    new = {path for path, count in counts.items() if count >= _SHARE * whole[path]}
    owners: dict[int, _Path] = {}
    for node in unmatched:
        if owner := next((p for p in _prefixes(graph.scope(node)) if p in new), None):
            owners[node] = owner
    _join(graph, unmatched, owners)
    found = grouped((owners[node], node) for node in sorted(owners))
    return {
        path: nodes
        for path, nodes in found.items()
        if any(graph.ops[node] not in _LEAVES for node in nodes)
    }


def _counts(graph: Graph, nodes: Iterable[int]) -> Counter[_Path]:
    """Return how many of some nodes are in each module."""
    found: Counter[_Path] = Counter()
    for scope, count in Counter(map(graph.scope, nodes)).items():
        for path in _prefixes(scope):
            found[path] += count
    return found


def _join(graph: Graph, unmatched: set[int], of: dict[int, _Path]) -> None:
    """Give modules what belongs to nothing else, operands before users and users before operands."""
    if not of:
        return
    for node in sorted(unmatched):
        operands = [each for each in graph.operands[node] if each in unmatched]
        known = [of[each] for each in operands if each in of]
        others = [graph.ops[each] for each in operands if each not in of]
        if node not in of and known and _LEAVES.issuperset(others):
            of[node] = known[0]
    for node in sorted(unmatched, reverse=True):
        users = [user for user, _ in graph.users[node]]
        if node not in of and users and all(user in of for user in users):
            of[node] = of[users[0]]


@lru_cache(maxsize=65_536)
def _prefixes(scope: str) -> list[_Path]:
    """Return a scope's modules, the outermost first.

    Example:
        >>> _prefixes("h.4 (backward)"), _prefixes("transpose(jvp(Model))/h_4")
        ([('h',), ('h', '4')], [('Model',), ('Model', 'h_4')])
        >>> _prefixes("while/body/closed_call"), _prefixes("h.body"), _prefixes("scan/h_1")
        ([], [('h',), ('h', 'body')], [('h_1',)])
    """
    plain = _CONTROL.sub("", _AROUND.sub("", scope))
    parts = [part for part in re.split(r"[./]", plain) if part]
    return [tuple(parts[:end]) for end in range(1, len(parts) + 1)]


def _order(path: _Path) -> tuple[_Path, str, int]:
    found = _NUMBERED.fullmatch(path[-1])
    return (path[:-1], found[1], int(found[2])) if found else (path, "", -1)


def _called(paths: Sequence[_Path]) -> str:
    """Return what modules are called.

    Example:
        >>> _called([("h", "4"), ("h", "5"), ("h", "6"), ("h", "9")])
        '4 layers `h.4`-`h.6`, `h.9`'
        >>> _called([("head",)]), _called([("h_4",)])
        ('the module `head`', 'the layer `h_4`')
    """
    numbers = [_order(path)[2] for path in paths]
    runs: list[list[_Path]] = []
    for k, path in enumerate(paths):
        if k and numbers[k] == numbers[k - 1] + 1:
            runs[-1].append(path)
        else:
            runs.append([path])
    ends = [[f"`{'.'.join(each)}`" for each in (run[0], run[-1])] for run in runs]
    shown = [first if first == last else f"{first}-{last}" for first, last in ends]
    listed = ", ".join(shown[:_MOST]) + (", ..." if len(shown) > _MOST else "")
    noun = "layer" if numbers[0] >= 0 else "module"
    return (
        f"the {noun} {listed}" if len(paths) == 1 else f"{len(paths)} {noun}s {listed}"
    )


def _counted(graph: Graph, nodes: Collection[int], times: int = 1) -> str:
    inputs = sum(graph.ops[node] == PARAMETER for node in nodes)
    counts = [plural((len(nodes) - inputs) // times, "op")]
    counts += [plural(inputs // times, "input")] if inputs >= times else []
    return " and ".join(counts)


def _repeated(
    graph: Graph, unmatched: Sequence[int], what: str, ends: set[int]
) -> tuple[list[str], set[int]]:
    """Return a block that is in `unmatched` several times, as layers without names are."""
    nodes = [node for node in unmatched if graph.ops[node] not in _LEAVES]
    colours = _colours(graph, nodes)
    counts = Counter(colours.values())
    times, inside = times_of(counts, is_whole=True)
    covered = {node for node in nodes if colours[node] in inside}
    is_most = len(covered) >= max(_REPEATED * len(nodes), _LEAST_BLOCK * times)
    if not times or not is_most or covered <= ends:
        return [], set()
    owners: dict[int, _Path] = dict.fromkeys(covered, ("",))
    _join(graph, set(unmatched), owners)
    nodes = sorted(covered)
    said = (
        f"a block of {_counted(graph, owners, times)} was {what} {times:,} times: "
        f"{_counted_ops(graph, nodes, times)}{_where(graph, nodes)}"
    )
    return [said], set(owners)


def _colours(graph: Graph, nodes: Iterable[int]) -> dict[int, int]:
    """Return for some nodes a number that tells what they and their neighbours are."""
    kinds = graph.kinds
    numbers: dict[object, int] = {}
    found = {}
    for node in nodes:
        operands = tuple([kinds[each] for each in graph.operands[node]])
        users = tuple(sorted([(kinds[user], slot) for user, slot in graph.users[node]]))
        found[node] = numbers.setdefault((kinds[node], operands, users), len(numbers))
    return found
