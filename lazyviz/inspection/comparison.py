"""`lazyviz.diff`, `%lazy diff` and `python -m lazyviz diff`: two programs side by side, to walk through."""

from __future__ import annotations

import argparse
import json
import re
import sys
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from lazygraph import Graph, GraphDiff, HloError, parse, read
from lazygraph import diff as graph_diff
from lazygraph import minimise as smallest
from lazygraph import trace_value as follow
from lazygraph.explain.compare import nearest
from lazygraph.graph import PARAMETER
from lazygraph.read.open import is_path
from lazyviz import session
from lazyviz.command_line import keep_inputs, output_file
from lazyviz.doc import Code, Doc
from lazyviz.draw import diff_html as diff_panel
from lazyviz.draw.diff import Union, change, union_graph
from lazyviz.draw.diff_text import coloured, graph_lines, takes_colour
from lazyviz.draw.layout import lay_out, to_dot
from lazyviz.draw.svg import emit
from lazyviz.inspection import protocol, subjects
from lazyviz.inspection.programs import site_text
from lazyviz.shell.displayed import Displayed
from lazyviz.shell.lazytensors import is_lazy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    from lazygraph import Hunk, ValueTrace
    from lazyviz.draw.diff import Side, Spot
    from lazyviz.draw.model import Change
    from lazyviz.inspection.programs import HloProgram


_BUDGET = 60
_MOST_BOXES = 150

_STDIN = Path("-")
_UNSAFE = re.compile(r"[^A-Za-z0-9]+")


class DiffExplorer(protocol.Walk[Union]):
    """A difference drawn in parts, with both sides of each node, in each form of the programs."""

    _what = "view of a diff"

    def __init__(
        self,
        found: GraphDiff,
        budget: int = _BUDGET,
        pair: protocol.Subject[Union] | None = None,
        form: protocol.Form = "hlo",
    ) -> None:
        self._budget = min(budget, _MOST_BOXES)
        pair = pair or protocol.Subject({form: lambda: Union(found)}, form)
        super().__init__(pair, form)

    @property
    def title(self) -> str:
        """One line about what is compared."""
        found = self._program.found
        return f"{found.a.name} → {found.b.name}"

    def overview(self) -> str:
        """Return what the diff comes to, for a panel that shows nothing else yet, as HTML."""
        program = self._program
        title = self.crumbs[-1] if len(self._views) > 1 else self.title
        begun = list(map(program.begins, program.places))
        return diff_panel.overview_html(
            title, program.found, program.places, begun, self.shown.left_out
        )

    def _whole(self, program: Union) -> protocol.View[Union]:
        graph = program.overview(self._budget)
        return protocol.View(title="all places", program=program, graph=graph)

    # --- selecting

    def _on_select(self, request: Mapping[str, Any]) -> Iterator[protocol.Reply]:
        index = protocol.number(request, "box", len(self.shown.boxes))
        box = self.shown.boxes[index]
        if box.kind == "group":
            rows = self._sides(
                map(self._program.spot, box.members[: protocol.MAX_FOUND])
            )
            yield protocol.panel_reply(diff_panel.fold_html(box, index, rows), index)
        else:
            yield self._told(self._spot_at(index), index)

    def _on_node(self, request: Mapping[str, Any]) -> Iterator[protocol.Reply]:
        spot = self._spot(request)
        index = self._index(spot)
        if index is None:
            yield from self._near(spot, 1)
            return
        yield self._told(spot, index)

    def _told(self, spot: Spot, index: int | None) -> protocol.Reply:
        union = self._program
        inner = [name for name, _ in union.inner(spot)]
        what = union.changes.get(spot, "same")
        before, after = union.sides(spot)
        changed = ""
        if what == "changed" and before and after:
            changed = change(union.found, before.node, after.node)
        told = diff_panel.node_html(what, before, after, inner, changed)
        return protocol.panel_reply(told, index)

    def _on_follow(self, request: Mapping[str, Any]) -> Iterator[protocol.Reply]:
        """Tell where a value comes from and goes, through tuples, calls and fusions."""
        program, spot = self._program, self._spot(request)
        side, node = spot
        graph = program.side(side)
        try:
            way = follow(graph, graph.names[node])
        except HloError as error:
            raise protocol.RequestError(str(error)) from None

        names = {name.lstrip("%"): k for k, name in enumerate(graph.names)}

        def number_of(name: str) -> int | None:
            found = names.get(name.lstrip("%"))
            return program.number(side, found) if found is not None else None

        body = diff_panel.way_html(way, number_of, program.number(side, node))
        yield protocol.panel_reply(body, self._index(spot))

    def _index(self, spot: Spot) -> int | None:
        return self._drawn_at(self._program.number(*spot))

    def _spot_at(self, index: int) -> Spot:
        return self._program.spot(self.shown.boxes[index].members[0])

    # --- moving

    def _on_focus(self, request: Mapping[str, Any]) -> Iterator[protocol.Reply]:
        hops = protocol.number(request, "hops", protocol.MAX_HOPS + 1)
        yield from self._near(self._spot(request), hops)

    def _near(self, spot: Spot, hops: int) -> Iterator[protocol.Reply]:
        program = self._program
        side, node = spot
        graph = program.near(spot, hops, self._budget)
        yield self._show(f"{program.side(side).names[node]} ±{hops}", program, graph)
        yield self._told(spot, self._index(spot))

    def _on_place(self, request: Mapping[str, Any]) -> Iterator[protocol.Reply]:
        program = self._program
        level = protocol.number(request, "level", len(program.places))
        group = program.places[level]
        graph = program.place(group, self._budget)
        where = group.exemplar.scope or group.exemplar.site or f"place {level + 1}"
        yield self._show(where, program, graph)
        first = next(k for k, box in enumerate(graph.boxes) if box.change != "same")
        yield self._told(self._spot_at(first), first)

    def _on_open(self, request: Mapping[str, Any]) -> Iterator[protocol.Reply]:
        box = self.shown.boxes[protocol.number(request, "box", len(self.shown.boxes))]
        spot = self._program.spot(box.members[0])
        if box.kind == "group":
            spots = map(self._program.spot, box.members)
            graph = self._program.folded(spots, self._budget)
            yield self._show(box.label, self._program, graph)
            yield protocol.panel_reply(self.overview())
            return
        if not self._program.inner(spot):
            raise protocol.RequestError(
                "nothing differs within this box. Open a changed call or fusion; its panel names "
                "what differs within."
            )
        yield from self._on_inside({"node": self._program.number(*spot), "call": 0})

    def _on_inside(self, request: Mapping[str, Any]) -> Iterator[protocol.Reply]:
        """Show what differs within the function, the fusion or the loop body that a pair calls."""
        inner = self._program.inner(self._spot(request))
        if not inner:
            raise protocol.RequestError(
                "nothing differs within this node. Choose a changed call or fusion."
            )
        name, found = inner[protocol.number(request, "call", len(inner))]
        union = Union(found)
        yield self._show(name, union, union.overview(self._budget))
        yield protocol.panel_reply(self.overview())

    # --- finding

    def _find(self, wanted: str) -> tuple[list[int], int, str]:
        program = self._program
        spots: list[Spot] = [("b", node) for node in range(len(program.found.b))]
        spots += [("a", node) for node in program.found.removed]
        found = [
            s
            for s in spots
            if protocol.has_words(wanted, _texts(program.side(s[0]), s[1]))
        ]
        found.sort(key=lambda spot: spot not in program.changes)  # stable
        drawn = {program.number(*spot) for spot in found}
        rows = self._sides(found[: protocol.MAX_FOUND])
        boxes = self.shown.boxes
        hits = [k for k, box in enumerate(boxes) if drawn.intersection(box.members)]
        told = diff_panel.found_html(wanted, rows, len(found), len(spots))
        return hits, len(found), told

    def _sides(self, spots: Iterable[Spot]) -> list[tuple[Change | None, Side]]:
        """Return nodes with what happened to them."""
        program = self._program
        return [
            (program.changes.get(spot), side)
            for spot in spots
            for side in [program.sides(spot)[spot[0] == "b"]]
            if side is not None
        ]

    def _spot(self, request: Mapping[str, Any]) -> Spot:
        return self._program.spot(protocol.number(request, "node", self._program.count))


def _texts(graph: Graph, node: int) -> tuple[str, ...]:
    return (*graph.label(node), graph.names[node], *graph.origin(node))


class Pair(protocol.Subject[Union]):
    """Two programs of the runtime, in the forms that both have; it holds no tensor."""

    def __init__(self, a: Any, b: Any) -> None:
        self._sides = subjects.subject_of(a), subjects.subject_of(b)
        self._graphs = subjects.graph_to_compare(a), subjects.graph_to_compare(b)
        self._causes = _known_causes(a, b)
        one, other = self._sides
        forms = [form for form in one.forms if form in other.forms]
        super().__init__({form: partial(self._union, form) for form in forms}, "ir")

    def price(self, form: protocol.Form) -> str:
        """Return what making a form costs that has to be compiled for it; else empty."""
        prices = [side.price(form) for side in self._sides]
        return " ".join(dict.fromkeys(price for price in prices if price))

    def _union(self, form: protocol.Form) -> Union:
        graphs = list(self._graphs)
        if form != "ir":
            made = [side.program(form) for side in self._sides]
            graphs = [
                cast("HloProgram", each).graph.with_sites(site_text) for each in made
            ]
            for graph, ir in zip(graphs, self._graphs, strict=True):
                graph.name, graph.optimizer = ir.name, ir.optimizer
        found = graph_diff(*graphs)
        found.causes = self._causes
        if form != "ir" and self.program("ir").causes:
            found.begun = self.program("ir").operations()
        return Union(found)


def _known_causes(a: object, b: object) -> list[str]:
    """Return why the second step was compiled, if that was found against the graph of the first."""
    runtime = session.runtime()
    if runtime is None or not (subjects.is_step_name(a) and subjects.is_step_name(b)):
        return []
    one, other = (
        runtime.graph_of_step(subjects.step_number(runtime, name)) for name in (a, b)
    )
    told = other.explanation if one and other else None
    return (
        [each.text for each in told.causes] if told and told.against == one.name else []
    )


class DiffView(Displayed):
    """The difference of two programs, shown as text or, in a notebook, as a picture and tables.

    Attributes:
        diff: The difference as data.
    """

    def __init__(
        self, found: GraphDiff, pair: Pair | None = None, form: protocol.Form = "hlo"
    ) -> None:
        self.diff = found
        self._pair = pair
        self._form = form

    def to_svg(self, *, budget: int = 120) -> str:
        """Return the picture that `to_dot` describes, as SVG."""
        union = union_graph(self.diff, budget)
        return emit(union, lay_out(union))

    def to_dot(self, *, budget: int = 120) -> str:
        """Return the changed nodes and their surroundings in the DOT language."""
        return to_dot(union_graph(self.diff, budget))

    def to_html(self, title: str = "") -> str:
        """Return a page that needs no other file."""
        return diff_panel.diff_page(self.diff, title)

    def save(self, path: str | Path, title: str = "") -> None:
        """Write the page to a file; the picture, to one that ends in `.svg` or `.dot`."""
        match Path(path).suffix:
            case ".svg":
                written = self.to_svg()
            case ".dot":
                written = self.to_dot()
            case _:
                written = self.to_html(title)
        Path(path).write_text(written, encoding="utf-8")

    def as_json(self) -> dict[str, Any]:
        """Return a diff as data of JSON's types; nodes are named as in the texts."""
        found, a, b = self.diff, self.diff.a, self.diff.b

        def pairs(nodes: Iterable[tuple[int, int]]) -> list[list[str]]:
            return [[a.names[x], b.names[y]] for x, y in nodes]

        def edits(of: GraphDiff | Hunk) -> dict[str, Any]:
            return {
                "added": [b.names[y] for y in of.added],
                "removed": [a.names[x] for x in of.removed],
                "changed": pairs(of.changed),
                "rewired": [[a.names[r.a], b.names[r.b], r.slot] for r in of.rewired],
            }

        return {
            "a": {"name": a.name, "instructions": len(a), "dead": len(a.dead)},
            "b": {"name": b.name, "instructions": len(b), "dead": len(b.dead)},
            "cost": found.cost,
            **edits(found),
            "outputs": {
                "added": [b.names[y] for y in found.outputs.added],
                "removed": [a.names[x] for x in found.outputs.removed],
            },
            "regrouped": pairs(found.regrouped.pairs),
            "moved_parameters": pairs(found.moved_parameters),
            "hunks": [
                {"scope": hunk.scope, "site": hunk.site, **edits(hunk)}
                for hunk in found.hunks()
            ],
        }

    @cached_property
    def explorer(self) -> DiffExplorer:
        """What answers the clicks of a page."""
        return DiffExplorer(self.diff, pair=self._pair, form=self._form)

    def doc(self) -> Doc:
        """Return the places that differ; a page has a picture, and what answers clicks."""
        live = None if self.diff.is_empty else self._widget
        return diff_panel.diff_doc(self.diff, css_class=self._twin, live=live)

    def _widget(self) -> Any:
        from lazyviz.widgets import GraphView

        return GraphView(self.explorer, self._twin)

    @property
    def _twin(self) -> str:
        """CSS class of the static copy, which the live view hides."""
        names = f"{self.diff.a.name}-{self.diff.b.name}"
        return f"lzt-diff-{_UNSAFE.sub('-', names)[:60]}"


def diff(a: Any, b: Any, form: protocol.Form = "ir") -> DiffView:
    """Return the difference of two programs; a notebook shows it as a picture with tables.

    Names, layouts, dead code and the order of parameters, outputs and lines make none.

    Args:
        a: HLO or StableHLO text, a path, a graph, a lazy tensor (for what is pending under it, or
            what its step ran for it), or a step of this session: its number, `"last"`, or its
            graph's name.
        b: Likewise.
        form: What is compared of steps and tensors: `ir`, `stablehlo`, `hlo` or `optimised`. The
            page switches between them.

    Raises:
        HloError: One of them is no program, no step that is known, or has no such form.
    """
    if _has_forms(a) and _has_forms(b):
        pair = Pair(a, b)
        if form not in pair.forms:
            known = ", ".join(pair.forms)
            raise HloError(
                f"these programs cannot be compared as {form!r}. They have {known}."
            )
        return DiffView(pair.program(form).found, pair, form)
    if form != "ir":
        raise HloError(
            f"a text or a file is compared as it is, not as {form!r}. Give two steps or tensors."
        )
    graphs = subjects.graph_to_compare(a), subjects.graph_to_compare(b)
    if all(is_path(thing) for thing in (a, b)):
        _tell_apart(graphs, (a, b))
    return DiffView(graph_diff(*graphs))


def _has_forms(thing: Any) -> bool:
    """Return whether something is a program of the runtime whose ops are kept."""
    runtime = session.runtime()
    if runtime is None:
        return False
    tensors = list(thing) if isinstance(thing, (list, tuple)) else [thing]
    if subjects.is_step_name(thing):
        return subjects.target_of(runtime, thing).graph is not None
    return bool(tensors) and all(map(is_lazy, tensors))


def trace_value(program: Any, name: str) -> ValueTrace:
    """Follow a value through tuples, calls and fusions to its consumers and its producers.

    Args:
        program: HLO or StableHLO text, whole or in excerpts, or whatever `diff` takes: a path, a
            graph, a lazy tensor, the number of a step. Of a text with several modules the one
            that has the instruction.
        name: The instruction, with or without `%`.

    Raises:
        HloError: There is no such instruction.
    """
    is_text = isinstance(program, (str, Path, bytes))
    return follow(program if is_text else subjects.graph_to_compare(program), name)


class MinimisedView(Displayed):
    """The part of a whole program's instructions that still shows something."""

    def __init__(self, graph: Graph, whole: int) -> None:
        self.graph = graph
        self.whole = whole

    def doc(self) -> Doc:
        """Return its instructions, one a line."""
        head = f"{self.graph.name}: {len(self.graph):,} of {self.whole:,} instructions show it"
        return Doc([Code("\n".join([head, *graph_lines(self.graph)]))])


def minimise(program: Any, shows: Callable[[Graph], bool]) -> MinimisedView:
    """Return the smallest part of a program that still shows something.

    What is cut off becomes an input; no single instruction of the answer can be left out.

    Args:
        program: As for `diff`.
        shows: Whether a `lazygraph.Graph` still shows what is looked for, such as
            `lambda part: any(op.startswith("aten.cumsum") for op in part.ops)`.

    Raises:
        HloError: It is no program, no step that is known, or does not show it as a whole.
    """
    graph = subjects.graph_to_compare(program)
    return MinimisedView(smallest(graph, shows), len(graph))


def minimise_lacked(program: Any, other: Any) -> MinimisedView:
    """Return the smallest part of a program that another one lacks.

    Raises:
        HloError: One of them is no program, or there is nothing that the other lacks.
    """
    graph, known = subjects.graph_to_compare(program), subjects.graph_to_compare(other)

    def shows(part: Graph) -> bool:
        found = graph_diff(known, part)
        mine = [*found.added, *(node for _, node in found.changed)]
        return any(part.ops[node] != PARAMETER for node in mine)

    if not shows(graph):
        lacking = known.name if known.name != graph.name else "the other program"
        raise HloError(
            f"{graph.name} computes nothing that {lacking} lacks, so there is no part to search "
            "for. %lazy diff shows in which other way they differ, if in any."
        )
    return MinimisedView(smallest(graph, shows), len(graph))


def last_two(runtime: ModuleType) -> tuple[int, int] | None:
    """Return the step of the latest new graph, and in front of it the nearest one before.

    That is the graph with which the explanation of the new one compares it.
    """
    records = sorted(
        (record for record in runtime.compiled_graphs() if record.snapshot is not None),
        key=lambda record: record.first_step,
    )
    by_name = {record.name: record for record in records}
    for k in range(len(records) - 1, 0, -1):
        record = records[k]
        other = by_name.get(getattr(record.explanation, "against", ""))
        if other is None and (closest := nearest(record, records[:k])):
            other = closest[0]
        if other is not None and other.first_step < record.first_step:
            last = runtime.graph_of_step(other.last_step)
            is_known = last is other and other.last_step < record.first_step
            step = other.last_step if is_known else other.first_step
            return step, record.first_step
    return None


def main(arguments: Sequence[str], out: TextIO | None = None) -> int:
    """Run `python -m lazyviz diff`; return 0 without a difference, 1 with one, 2 for an error."""
    out = out or sys.stdout
    parser = _parser()
    options = parser.parse_args(arguments)
    paths = (options.a, options.b)
    keep_inputs(parser, options.html, paths)
    keep_inputs(parser, options.draw, paths)
    if options.draw is not None and options.draw.suffix not in {".svg", ".dot"}:
        parser.error(f"--draw takes FILE.svg or FILE.dot, not {str(options.draw)!r}")
    if paths == (_STDIN, _STDIN):
        parser.error("only one of the two can come from stdin")
    try:
        graphs = [
            _read(path, name)
            for path, name in zip(
                paths, (options.module_a, options.module_b), strict=True
            )
        ]
        _tell_apart(graphs, paths)
        view = DiffView(graph_diff(*graphs))
        written = [path for path in (options.html, options.draw) if path is not None]
        for path in written:
            view.save(path, f"{options.a.name} → {options.b.name}")
    except (HloError, OSError) as error:
        sys.stderr.write(f"lazyviz diff: {error}\n")
        return 2
    if options.json:
        out.write(json.dumps(view.as_json(), indent=1, ensure_ascii=False) + "\n")
    else:
        shown = view.text()
        is_coloured = options.color == "always" or (
            options.color == "auto" and takes_colour(out)
        )
        out.write(f"{coloured(shown) if is_coloured else shown}\n")
        for path in written:
            what = "page" if path == options.html else "picture"
            out.write(f"The {what}: {path.absolute()}\n")
    return 0 if view.diff.is_empty else 1


def _read(path: Path, name: str) -> Graph:
    module = int(name) if name.isdecimal() else name
    if path == _STDIN:
        return parse(sys.stdin.buffer.read(), module=module, source="stdin")
    return read(path, module=module)


def _tell_apart(graphs: Sequence[Graph], things: Sequence[Any]) -> None:
    """Name graphs from files after these if they have one name: XLA calls all `jit_main`."""
    if len({graph.name for graph in graphs}) > 1 or things[0] == things[1]:
        return
    names = [Path(thing).name for thing in things]
    for graph, thing, name in zip(graphs, things, names, strict=True):
        file = name if names.count(name) == 1 else str(thing)
        graph.name = f"{file} ({graph.name})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lazyviz diff",
        description="Compare two dumps: HLO or StableHLO text, HLO protos, torch_xla's IR. "
        "Names, layouts, order and dead code make no difference.",
    )
    parser.add_argument("a", type=Path, help="the first file; - for stdin")
    parser.add_argument("b", type=Path, help="the second file; - for stdin")
    parser.add_argument(
        "--html", type=output_file, metavar="FILE", help="also write a web page"
    )
    parser.add_argument(
        "--draw",
        type=output_file,
        metavar="FILE",
        help="also write the picture, as .svg or for graphviz as .dot",
    )
    parser.add_argument(
        "--json", action="store_true", help="print data instead of text"
    )
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour the text; auto: on a terminal, unless NO_COLOR is set",
    )
    for side in "ab":
        parser.add_argument(
            f"--module-{side}",
            default="",
            metavar="NAME",
            help=f"module of {side} to compare, by name or position, if it has several",
        )
    return parser
