"""Why two programs of HLO or StableHLO differ, in sentences, and what was not compared."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from lazygraph.diff import nested_diffs
from lazygraph.explain.edit_causes import edit_sentences
from lazygraph.explain.embedded_constants import embedded
from lazygraph.explain.repeated_blocks import blocks
from lazygraph.graph import CONSTANT, PARAMETER
from lazygraph.normalize import attributes, meshes_of
from lazygraph.read.brackets import closing, split_commas
from lazygraph.read.hlo_module import HloModule, lacks_attributes
from lazygraph.read.stablehlo import MlirModule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lazygraph.diff import GraphDiff
    from lazygraph.graph import Graph

    _Sides = tuple[set[int], set[int]]

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
    "allow_spmd_sharding_propagation_to_parameters": "how sharding spreads to parameters",
    "allow_spmd_sharding_propagation_to_output": "how sharding spreads to outputs",
    "output_shardings": "how results are placed on devices",
    "mesh": "the devices",
    "notation": "the notation, in which attributes read otherwise,",
}
# One for each input or result, whose number is told as such; not given is as good as false.
_FLAGS = frozenset(key for key in _SETTINGS if key.startswith("allow_spmd"))
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
_MAX_SENTENCES = 8
_CLIP = 60
_FEW = 3
_MAX_INSIDE = 12


def sentences(found: GraphDiff, depth: int = 3) -> list[str]:
    """Return why the second program is another one, the most basic reason first.

    A reason counts what follows from it: types that changed with an input's are no reason
    of their own. What other reasons leave untold is said as an edit.
    """
    ends = _with_outputs(found)
    gone = blocks(found.a, found.removed, "removed", _where, ends[0])
    new = blocks(found.b, found.added, "added", _where, ends[1])
    told = gone.nodes, new.nodes
    said = [*_settings(found), *_donations(found), *new.sentences, *gone.sentences]
    said += [*_inputs(found, told), *_placement(found), *embedded(found)]
    said += [*_constants(found), *_outputs(found, told)]
    told = told[0] | ends[0], told[1] | ends[1]
    said += edit_sentences(found, _where, told)
    if depth and len(said) < _FEW:
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


def _settings(found: GraphDiff) -> Iterator[str]:
    before, now = _header(found.a), _header(found.b)
    for key, what in _SETTINGS.items():
        old, new = before.get(key), now.get(key)
        if key in _FLAGS:
            old, new = _flag(old), _flag(new)
        elif key in _COUNTS:
            old, new = old or "1", new or "1"
        if old != new and (key != "notation" or _reads_otherwise(found)):
            yield f"{what} ({key}) was {_shown(old)} and is {_shown(new)}"


def _flag(value: str | None) -> str:
    """Return a list of flags as one, where they are alike."""
    flags = {each.strip() for each in (value or "false").strip("{}").split(",")}
    return f"{{{flags.pop()}}}" if len(flags) == 1 else value or ""


def _reads_otherwise(found: GraphDiff) -> bool:
    """Return whether an attribute was left as the generic notation writes it."""
    labels = [
        (found.a.label(x).attrs, found.b.label(y).attrs) for x, y in found.changed
    ]
    return any(("<{" in a) != ("<{" in b) or "=#" in a for a, b in labels)


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


def _shown(value: str | None) -> str:
    if value is None:
        return "not given"
    return value if len(value) <= _CLIP else f"{value[: _CLIP - 1]}…"


def _inputs(found: GraphDiff, told: _Sides) -> Iterator[str]:
    a, b = found.a, found.b
    changed = [
        (x, y)
        for x, y in found.changed
        if b.ops[y] == PARAMETER and a.types[x] != b.types[y]
    ]
    follow = sum(a.types[x] != b.types[y] for x, y in found.changed) - len(changed)
    for x, y in changed[:3]:
        results = "result" if follow == 1 else "results"
        more = f"; {follow:,} {results} changed with it" if follow > 0 else ""
        more = "" if len(changed) > 1 else more
        yield f"input {_name(b, y)} was {a.types[x]} and is {b.types[y]}{more}"
    if len(changed) > 3:  # noqa: PLR2004
        yield f"{len(changed) - 3:,} more inputs changed their types"
    sides = (b, found.added, told[1], "more"), (a, found.removed, told[0], "fewer")
    for graph, unmatched, counted, what in sides:
        nodes = [n for n in unmatched if graph.ops[n] == PARAMETER and n not in counted]
        if nodes:
            noun = "input" if len(nodes) == 1 else "inputs"
            shown = ", ".join(f"{_name(graph, n)} {graph.types[n]}" for n in nodes[:3])
            rest = " and others" if len(nodes) > 3 else ""  # noqa: PLR2004
            yield f"{len(nodes):,} {noun} {what}: {shown}{rest}"


def _name(graph: Graph, node: int) -> str:
    return graph.origin(node).op_name or graph.names[node]


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
            f" of {count:,} instructions"
            if count > 1
            else f" of {found.b.names[first[change]]}"
        )
        yield f"{key}{of}{where} was {_shown(old)} and is {_shown(new)}"


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
                continue  # which is told as not compared
            changes.setdefault((before.literal, now.literal), []).append(y)
    resized = any(found.b.ops[y] == PARAMETER for _, y in found.changed)
    for (old, new), nodes in list(changes.items())[:3]:
        times = f" in {len(nodes):,} places" if len(nodes) > 1 else ""
        hint = ", which may follow from the other sizes" if resized else ""
        yield f"a constant was {_shown(old)} and is {_shown(new)}{times}{_where(found.b, nodes)}{hint}"


def _inside(found: GraphDiff, depth: int) -> Iterator[str]:
    """Yield what is said of loops, functions and fusions that changed within."""
    known: set[str] = set()
    for x, y in found.changed[:_MAX_INSIDE]:
        for name, inner in nested_diffs(found, x, y):
            within = name.partition(":")[0]
            for each in sentences(inner, depth - 1):
                if each not in known and len(known) < _FEW:
                    known.add(each)
                    yield f"in the {within} of {found.b.names[y]}{_where(found.b, [y])}: {each}"


def _outputs(found: GraphDiff, told: _Sides) -> Iterator[str]:
    added, removed = found.outputs.added, found.outputs.removed
    if len(added) == len(removed):  # A replaced result is no further one.
        return
    sides = (
        ("one more output", found.b, added, set(found.added) - told[1], "+"),
        ("one output less", found.a, removed, set(found.removed) - told[0], "−"),
    )
    for (what, graph, ends, mine, sign), counted in zip(sides, told[::-1], strict=True):
        outputs = [node for node in ends if node not in counted]
        if not outputs:
            continue
        count = len(_alone(graph, outputs, mine))
        many = what
        if len(outputs) > 1:
            many = what.replace("one", f"{len(outputs):,}", 1).replace(
                "output", "outputs"
            )
        elif _EFFECT.search(graph.attrs[outputs[0]]):
            many = what.replace("output", "call with an effect")
        node = outputs[0]
        yield (
            f"{many}: {graph.names[node]} {graph.types[node]}{_where(graph, [node])}, "
            + _needed(count, sign, is_lone=node in mine)
        )


def _needed(count: int, sign: str, *, is_lone: bool) -> str:
    if count:
        noun = "instruction" if count == 1 else "instructions"
        return f"{sign}{count:,} {noun} that nothing else needs"
    return "which other instructions need too" if is_lone else "which both compute"


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


def _where(graph: Graph, nodes: Iterable[int]) -> str:
    """Return the first source line and module of some nodes, as ` at train.py:4 in head`."""
    for node in nodes:
        origin = graph.origin(node)
        if origin.site or origin.scope:
            at = f" at {origin.site}" if origin.site else ""
            return at + (f" in {origin.scope}" if origin.scope else "")
    return ""
