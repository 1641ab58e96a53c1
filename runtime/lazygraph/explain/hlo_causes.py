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

from lazygraph.diff import nested_diffs
from lazygraph.graph import CONSTANT, PARAMETER
from lazygraph.normalize import attributes, meshes_of
from lazygraph.read.hlo_module import HloModule, closing, lacks_attributes, split_commas
from lazygraph.read.stablehlo import MlirModule
from lazygraph.readable import plural
from lazygraph.snapshot import times_of
from lazygraph.trace import TUPLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from lazygraph.diff import GraphDiff
    from lazygraph.graph import Graph

    _Sides = tuple[set[int], set[int]]
    _Path = tuple[str, ...]

_MAX_SENTENCES = 8
_MOST = 3
_MAX_INSIDE = 12
_CLIP = 60
_LEAVES = frozenset({PARAMETER, CONSTANT})
_OTHERWISE = re.compile(r"#|sharding|replica_groups|source_target_pairs|device_list")


def sentences(found: GraphDiff, depth: int = 3) -> list[str]:
    """Return why the second program is another one, the most basic reason first.

    A reason counts what follows from it: types that changed with an input's are no reason
    of their own. Edits that no reason claims are listed as edits.
    """
    ends = _with_outputs(found)
    gone = _blocks(found.a, found.removed, "removed", ends[0])
    new = _blocks(found.b, found.added, "added", ends[1])
    claimed = gone.nodes, new.nodes
    said = [*_settings(found), *_donations(found), *new.sentences, *gone.sentences]
    said += [*_inputs(found, claimed), *_placement(found), *_embedded(found)]
    if found.causes:  # what the ops alone suggest is no reason beside them
        return [*found.causes, *said, *_outputs(found, claimed)][:_MAX_SENTENCES]
    said += [*_constants(found), *_outputs(found, claimed)]
    claimed = claimed[0] | ends[0], claimed[1] | ends[1]
    said += _ops(found)
    if not _resized_inputs(found):
        said += _attributes(found)
    said += [*_code(found, claimed), *_reads(found), *_results(found)]
    if depth and len(said) < _MOST:
        said += _inside(found, depth)
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


def _in_places(nodes: Sequence[int]) -> str:
    return f" in {len(nodes):,} places" if len(nodes) > 1 else ""


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
    bare = [_is_bare(found.a), _is_bare(found.b)]
    if any(bare):
        yield (
            f"not compared: dimensions and elements of tuples, which {_whose(*bare)} out; print "
            "with `print_extra_attributes`"
        )
    before, now = _elided(found.a), _elided(found.b)
    if before or now:
        count = max(before, now)
        what = "value of a constant" if count == 1 else f"values of {count:,} constants"
        yield (
            f"not compared: the {what}, which {_whose(bool(before), bool(now))} out; print "
            "with `print_large_constants`"
        )


def _is_bare(graph: Graph) -> bool:
    return isinstance(graph.source, HloModule) and lacks_attributes(graph.source)


def _whose(first: bool, second: bool) -> str:  # noqa: FBT001
    if first and second:
        return "both dumps leave"
    return f"the {'first' if first else 'second'} dump leaves"


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
    if not forms:
        return 0
    computations = source.computations.values()
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
    before, now = _donated(found.a), _donated(found.b)
    partner = found.partner_a
    kept = {partner[x] for x in before}
    sides = (
        (
            found.b,
            sorted(y for y in now - kept if found.partner_b[y] >= 0),
            "now gives",
        ),
        (
            found.a,
            sorted(x for x in before if partner[x] >= 0 and partner[x] not in now),
            "no longer gives",
        ),
    )
    for graph, nodes, what in sides:
        if nodes:
            others = f" and {len(nodes) - 1:,} more, each" if len(nodes) > 1 else ""
            yield f"input {_name(graph, nodes[0])}{others} {what} up its memory to a result (donation)"


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
    changed = _resized_inputs(found)
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
    """Return both programs with the nodes that each has alone and no sentence counts yet."""
    new = [node for node in found.added if node not in claimed[1]]
    gone = [node for node in found.removed if node not in claimed[0]]
    return [(found.b, new, "new"), (found.a, gone, "gone")]


def _resized_inputs(found: GraphDiff) -> list[tuple[int, int]]:
    """Return inputs that changed their types, from which sizes and slices follow."""
    a, b = found.a, found.b
    return [
        (x, y)
        for x, y in found.changed
        if b.ops[y] == PARAMETER and a.types[x] != b.types[y]
    ]


def _placement(found: GraphDiff) -> Iterator[str]:
    """Yield how instructions are laid out over devices, where that changed."""
    changes: Counter[tuple[str, str | None, str | None]] = Counter()
    first: dict[tuple[str, str | None, str | None], int] = {}
    mesh_a, mesh_b = (_header(graph).get("mesh") for graph in (found.a, found.b))
    for x, y in found.changed:
        before, now = _placed(found.a, x), _placed(found.b, y)
        for key in sorted(before.keys() | now.keys()):
            old, new = before.get(key), now.get(key)
            if old and mesh_a and mesh_b:  # another mesh is said already
                old = old.replace(mesh_a, mesh_b)
            if old != new:
                change = (key, old, new)
                changes[change] += 1
                first.setdefault(change, y)
    for change, count in changes.most_common(3):
        key, old, new = change
        where = _where(found.b, [first[change]])
        of = (
            f" of {count:,} ops" if count > 1 else f" of {found.b.names[first[change]]}"
        )
        yield f"{key}{of}{where} is {_shown(new)}, was {_shown(old)}"


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


def _constants(found: GraphDiff) -> Iterator[str]:
    changes: dict[tuple[str, str], list[int]] = {}
    for x, y in found.changed:
        before, now = found.a.label(x), found.b.label(y)
        if now.op == CONSTANT == before.op and before.literal != now.literal:
            if ELIDED & {before.literal, now.literal}:
                continue  # `unseen` reports it
            changes.setdefault((before.literal, now.literal), []).append(y)
    resized = any(found.b.ops[y] == PARAMETER for _, y in found.changed)
    hint = ", which may follow from the other sizes" if resized else ""
    for (old, new), nodes in list(changes.items())[:_MOST]:
        yield (
            f"constant changed: {_shown(new)}, was {_shown(old)}"
            f"{_in_places(nodes)}{_where(found.b, nodes)}{hint}"
        )


def _inside(found: GraphDiff, depth: int) -> Iterator[str]:
    """Yield what is said of loops, functions and fusions that changed within."""
    known: set[str] = set()
    for x, y in found.changed[:_MAX_INSIDE]:
        for name, inner in nested_diffs(found, x, y):
            within = name.partition(":")[0]
            for each in sentences(inner, depth - 1):
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
    wanted = set(outputs)
    others = {node for node in graph.outputs if node not in wanted}
    others |= {
        operand
        for node, operands in enumerate(graph.operands)
        if node not in inside
        for operand in operands
    }
    return _ancestors(graph, wanted, inside) - _ancestors(graph, others, inside)


def _ancestors(graph: Graph, roots: Iterable[int], inside: set[int]) -> set[int]:
    seen: set[int] = set()
    stack = [root for root in roots if root in inside]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += [o for o in graph.operands[node] if o in inside]
    return seen


def _ops(found: GraphDiff) -> Iterator[str]:
    b = found.b
    changes: dict[tuple[str, str], list[int]] = {}
    for x, y in found.changed:
        ops = found.a.ops[x], b.ops[y]
        if ops[0] != ops[1]:
            changes.setdefault(ops, []).append(y)
    for (old, new), nodes in list(changes.items())[:_MOST]:
        yield (
            f"code path changed: {b.names[nodes[0]]}{_where(b, nodes)} is {new}, was {old}"
            f"{_in_places(nodes)}"
        )


def _attributes(found: GraphDiff) -> Iterator[str]:
    a, b = found.a, found.b
    changes: dict[tuple[str, str, str], list[int]] = {}
    for x, y in found.changed:
        if a.ops[x] != b.ops[y] or a.attrs[x] == b.attrs[y]:
            continue
        before, now = (Counter(split_commas(each)) for each in (a.attrs[x], b.attrs[y]))
        old, new = (", ".join(each.elements()) for each in (before - now, now - before))
        # `_inside` reports another body, `_placement` another placement.
        if not _OTHERWISE.search(f"{old}, {new}"):
            changes.setdefault((b.ops[y], old, new), []).append(y)
    for (op, old, new), nodes in list(changes.items())[:_MOST]:
        one_sided = "attribute added" if new else "attribute removed"
        what = "constant changed" if old and new else one_sided
        has = [f"{had} {_shown(v)}" for had, v in (("has", new), ("had", old)) if v]
        where = f"{b.names[nodes[0]]}{_where(b, nodes)}"
        yield f"{what}: {op} {where} {', '.join(has)}{_in_places(nodes)}"


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


def _reads(found: GraphDiff) -> Iterator[str]:
    """Yield which pairs read other values than before, where nothing was put in between."""
    a, b = found.a, found.b
    slots: dict[tuple[int, int], list[int]] = {}
    for x, y, slot in found.rewired:
        slots.setdefault((x, y), []).append(slot)
    shown = 0
    for (x, y), changed in slots.items():
        row, other = a.operands[x], b.operands[y]
        partners = [found.partner_a[each] for each in row]
        if shown == _MOST or len(row) != len(other):
            continue
        at = next(
            (
                each
                for each in changed
                if _is_known(a, row[each], partners[each])
                and _is_known(b, other[each], found.partner_b[other[each]])
            ),
            None,
        )
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
    for each in found.rewired:
        old, new = _operand(found.a, each.a, each.slot), _operand(found.b, each.b, each.slot)  # fmt: skip
        if old is None and new is not None and _is_number(found.b, new):
            literal = _argument(found, each.a, each.b, each.slot)
            if literal:
                said[_now_an_input(found, each.b, literal, new)] = None
        if new is None and old is not None and _is_number(found.a, old):
            literal = _argument(found, each.a, each.b, each.slot, swapped=True)
            if literal:
                said[_now_embedded(found, each.b, literal, old)] = None
        if old is not None and new is not None:
            said |= dict.fromkeys(_exchanged(found, each.b, old, new))
    for x, y in found.changed:
        for user, _ in found.b.users[y][:1]:
            said |= dict.fromkeys(_exchanged(found, user, x, y))
    yield from list(said)[:_MOST]


def _operand(graph: Graph, node: int, slot: int) -> int | None:
    row = graph.operands[node]
    return row[slot] if slot < len(row) else None


def _is_number(graph: Graph, node: int) -> bool:
    label = graph.label(node)
    return label.op == PARAMETER and label.attrs in _NUMBERS


def _exchanged(found: GraphDiff, user: int, old: int, new: int) -> Iterator[str]:
    """Yield that a constant took the place of a scalar input, or the other way round."""
    literal, other = _literal(found.a, old), _literal(found.b, new)
    if literal and _is_scalar_input(found.b, new):
        yield _now_an_input(found, user, literal, new)
    if other and _is_scalar_input(found.a, old):
        yield _now_embedded(found, user, other, old)


def _is_scalar_input(graph: Graph, node: int) -> bool:
    label = graph.label(node)
    return label.op == PARAMETER and label.type.endswith(_SCALAR)


def _literal(graph: Graph, node: int) -> str:
    """Return the number that a constant is; empty for what is none."""
    label = graph.label(node)
    if not label.op.lower().endswith("constant") or not label.type.endswith(_SCALAR):
        return ""
    value = _VALUE.search(f"{label.attrs} {label.literal}")
    text = (value[1] or value[2] or "") if value else label.literal
    return text.strip() if _NUMBER.fullmatch(text.strip()) else ""


def _argument(
    found: GraphDiff, a: int, b: int, slot: int, *, swapped: bool = False
) -> str:
    """Return the number that stands among an op's arguments where the other side reads one."""
    one, two = found.a.label(a).attrs.split(", "), found.b.label(b).attrs.split(", ")
    if swapped:
        one, two = two, one
    marks = [k for k, part in enumerate(two) if part.endswith(_MARK)]
    if len(one) != len(two) or slot >= len(marks):
        return ""
    part = one[marks[slot]].rpartition("=")[2]
    return part if _NUMBER.fullmatch(part) else ""


def _now_an_input(found: GraphDiff, user: int, literal: str, new: int) -> str:
    return (
        f"the number {literal} of {_of(found.b, user)} is an input from now on "
        f"({_name(found.b, new)}), was embedded as a constant: further values compile nothing"
    )


def _now_embedded(found: GraphDiff, user: int, literal: str, old: int) -> str:
    is_special = float(literal) in {0.0, 1.0} and _is_of_torch_xla(found.b, user)
    why = (
        " (torch_xla embeds 0 and 1 and sends other numbers as data)"
        if is_special
        else ""
    )
    return (
        f"the number {literal} of {_of(found.b, user)} is embedded as a constant, was the input "
        f"{_name(found.a, old)}{why}"
    )


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


class _Claimed(NamedTuple):
    """Sentences, and the nodes that they count."""

    sentences: list[str]
    nodes: set[int]


def _blocks(
    graph: Graph, unmatched: Sequence[int], what: str, ends: set[int]
) -> _Claimed:
    """Return which layers, modules or equal blocks one of two programs has alone.

    `what` happened to its unmatched nodes: `added` or `removed`. `ends` is computed for outputs
    that one program has alone, which is not repeated.
    """
    if ends.issuperset(unmatched):
        return _Claimed([], set())
    modules = _modules(graph, set(unmatched))
    if not modules:
        return _repeated(graph, unmatched, what, ends)
    claimed: set[int] = set()
    said = []
    groups = sorted(
        _groups(modules), key=lambda paths: -sum(len(modules[path]) for path in paths)
    )
    for paths in groups[:_MOST]:
        members = {node for path in paths for node in modules[path]}
        if members <= ends:
            continue
        claimed |= members
        verb = "was" if len(paths) == 1 else "were"
        said.append(
            f"{_called(paths)} {verb} {what}: {_counted(graph, members)}"
            f"{_where(graph, _forward_first(graph, modules[paths[0]]))}"
        )
    return _Claimed(said, claimed)


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
    found: dict[_Path, list[int]] = {}
    for node in sorted(owners):
        found.setdefault(owners[node], []).append(node)
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


def _groups(modules: Iterable[_Path]) -> Iterator[list[_Path]]:
    """Yield modules whose names differ in their last number, as a row of layers has them."""
    for _, same in groupby(sorted(modules, key=_order), key=lambda p: _order(p)[:2]):
        yield list(same)


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


def _forward_first(graph: Graph, nodes: Iterable[int]) -> list[int]:
    """Return nodes, those first that a module computes itself and no `(backward)` of it."""
    return sorted(nodes, key=lambda node: " (" in graph.scope(node))


def _counted(graph: Graph, nodes: Collection[int], times: int = 1) -> str:
    inputs = sum(graph.ops[node] == PARAMETER for node in nodes)
    counts = [plural((len(nodes) - inputs) // times, "op")]
    counts += [plural(inputs // times, "input")] if inputs >= times else []
    return " and ".join(counts)


def _repeated(
    graph: Graph, unmatched: Sequence[int], what: str, ends: set[int]
) -> _Claimed:
    """Return a block that is in `unmatched` several times, as layers without names are."""
    nodes = [node for node in unmatched if graph.ops[node] not in _LEAVES]
    colours = _colours(graph, nodes)
    counts = Counter(colours.values())
    times, inside = times_of(counts, is_whole=True)
    covered = {node for node in nodes if colours[node] in inside}
    is_most = len(covered) >= max(_REPEATED * len(nodes), _LEAST_BLOCK * times)
    if not times or not is_most or covered <= ends:
        return _Claimed([], set())
    owners = dict.fromkeys(covered, ("",))
    for node in sorted(unmatched, reverse=True):
        users = [user for user, _ in graph.users[node]]
        if node not in owners and users and all(user in owners for user in users):
            owners[node] = ("",)
    nodes = sorted(covered)
    said = (
        f"a block of {_counted(graph, owners, times)} was {what} {times:,} times: "
        f"{_counted_ops(graph, nodes, times)}{_where(graph, nodes)}"
    )
    return _Claimed([said], set(owners))


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
