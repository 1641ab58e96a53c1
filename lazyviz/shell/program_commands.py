"""`%lazy graph`, `explore`, `ir`, `hlo`, `diff`, `minimise`, `nan`, `replicas`: programs."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from lazygraph.errors import HloError
from lazygraph.read.hlo import with_lines, with_named_files
from lazyviz import formatters, views
from lazyviz import session as sessions
from lazyviz.doc import Code, Doc, Sentence
from lazyviz.render import text
from lazyviz.views import PENDING, Command, view

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyviz.views import Typed

_GRAPH = re.compile(r"graph\.\d+")
_STABLEHLO = "--stablehlo"
_MAX_LISTED = 400_000  # characters; what a notebook still opens quickly with


@view(
    "graph",
    magic="[EXPR]",
    help="draw the pending graph, of everything or of one tensor",
    topic=PENDING,
    offers=views.tensors,
)
def _graph(asked: Command) -> None:
    graph = asked.graph(asked.rest)
    hint = f"%lazy explore {asked.rest}".strip() + ": click an op to see its value"
    bundle = formatters.graph_bundle(graph, hint)
    asked.shell.display_pub.publish(bundle, metadata={})


@view(
    "explore",
    magic="[EXPR]",
    help="the same to walk through: click an op to see its value; EXPR may also be a step's "
    "number, a graph, HLO text or a path in quotes",
    topic=PENDING,
    offers=views.tensors,
)
def _explore(asked: Command) -> Doc | None:
    from lazyviz.inspection import exploring

    things = _explored(asked)
    with views.refused(f"%lazy explore {asked.rest}: ", HloError):
        found = exploring.explore(*things, shell=asked.shell)
    if found.is_empty:
        computed = f"{asked.rest} is computed already: nothing is pending for it."
        return Doc([Sentence(computed if asked.rest else "Nothing is pending.")])
    found.show()
    return None


def _explored(asked: Command) -> list[Any]:
    """Return what an expression names: tensors, a step, a graph, a program."""
    if not asked.rest:
        _ = asked.runtime
        return []
    value = asked.value(asked.rest)
    is_program = isinstance(value, (int, str, PurePath)) or any(
        hasattr(value, name) for name in ("lower", "known_hlo", "holdings")
    )
    return [value] if is_program else asked.tensors_of(asked.rest, value)


@view(
    "ir",
    magic="[EXPR]",
    help="list its ops as text, each with the line it came from",
    topic=PENDING,
    offers=views.tensors,
)
def _ir(asked: Command) -> Doc:
    graph = asked.graph(asked.rest)
    names = asked.session.input_names_in(graph)
    lines = [text.listing(graph, names=names), *text.number_lines(graph)]
    return _listed("\n".join(lines), "print(lazyrt.pending_graph().to_text())")


@view(
    "hlo",
    magic="[EXPR]",
    help=f"its HLO as XLA optimised it; {_STABLEHLO}: as lowered",
    topic=PENDING,
    offers=lambda at: (
        at.tensors if _STABLEHLO in at.given else (*at.tensors, _STABLEHLO)
    ),
)
def _hlo(asked: Command) -> Doc:
    words = asked.rest.split()
    unknown = [word for word in words if word.startswith("--") and word != _STABLEHLO]
    if unknown or words.count(_STABLEHLO) > 1:
        raise UsageError(
            f"%lazy hlo has no option {[*unknown, _STABLEHLO][0]}. Its only option is "
            f"{_STABLEHLO}."
        )
    dialect = "stablehlo" if _STABLEHLO in words else "hlo"
    graph = asked.graph(asked.rest.replace(_STABLEHLO, "").strip())
    shown = with_lines if dialect == "hlo" else with_named_files
    call = f"print(lazyrt.pending_graph().lower().as_text({dialect!r}))"
    return _listed(shown(graph.lower().as_text(dialect), file_text), call)


def _listed(listing: str, whole: str) -> Doc:
    """Return a listing; no more of it than a notebook takes.

    Args:
        listing: The text.
        whole: What gives all of it.
    """
    if len(listing) > _MAX_LISTED:
        end = listing.rfind("\n", 0, _MAX_LISTED)
        more = text.plural(listing.count("\n", end + 1) + 1, "line")
        listing = f"{listing[:end]}\n... {more} more; {whole} gives all of them"
    return Doc([Code(listing)])


@view(
    "nan",
    magic="[EXPR]",
    help="the ops where NaN and infinities of pending tensors begin, with the numbers that they "
    "were made of",
    topic=PENDING,
    offers=views.tensors,
)
def _nan(asked: Command) -> Doc:
    from lazyviz.inspection import not_finite

    runtime = asked.runtime
    if asked.rest:
        tensors = asked.tensors(asked.rest)
        if not any(map(runtime.is_pending, tensors)):
            said = not_finite.computed_text(runtime, asked.rest, tensors)
            return Doc([Sentence(said)])
    return not_finite.find_in(asked.graph(asked.rest)).doc()


def _two_programs(at: Typed) -> Iterable[str]:
    return ("last", *at.tensors) if not at.given else ()


@view(
    "diff",
    help={
        "A B": "what differs between two steps, pending tensors, or programs",
        "last": "the same for the latest new graph and the nearest one before it",
    },
    offers=_two_programs,
)
def _diff(asked: Command) -> None:
    from lazyviz.inspection import comparison

    runtime = asked.runtime
    words = _words(asked.rest)
    if words == ["last"]:
        steps = comparison.last_two(runtime)
        if steps is None:
            raise UsageError(
                "%lazy diff last needs two steps with different graphs, and this session "
                "has none. Run the training cell once more, or name two steps."
            )
        words = [str(step) for step in steps]
    if len(words) != 2 or "last" in words:  # noqa: PLR2004
        raise UsageError(
            f"%lazy diff takes `last`, or two programs, such as %lazy diff 11 12: steps, "
            f"variables, or paths in quotes; it got {asked.rest!r}. %lazy step lists the steps."
        )
    programs = [_program(asked, word) for word in words]
    with views.refused(f"%lazy diff {asked.rest}: ", HloError):
        found = comparison.compare(*programs)
    found.show(asked.shell)


def _part_of_a_program(at: Typed) -> Iterable[str]:
    if len(at.given) > 1:
        return ()
    functions = (k for k, v in at.namespace.items() if inspect.isfunction(v))
    return (*at.tensors, *functions) if at.given else at.tensors


@view(
    "minimise",
    magic="A B",
    help="the smallest part of program A that B lacks, or, where B is a function of a graph, the "
    "smallest for which it is true",
    offers=_part_of_a_program,
)
def _minimise(asked: Command) -> None:
    from lazyviz.inspection import comparison

    _ = asked.runtime
    words = _words(asked.rest)
    if len(words) != 2:  # noqa: PLR2004
        raise UsageError(
            f"%lazy minimise takes a program and what to look for, such as %lazy minimise "
            f"12 11 (what step 12 has and step 11 lacks) or %lazy minimise 12 shows (a "
            f"function of a graph); it got {asked.rest!r}. %lazy step lists the steps."
        )
    program, wanted = (_program(asked, word) for word in words)
    find = comparison.minimise if callable(wanted) else comparison.minimise_lacked
    with views.refused(f"%lazy minimise {asked.rest}: ", HloError):
        found = find(program, wanted)
    asked.shell.display_pub.publish(found._repr_mimebundle_(), metadata={})


@view(
    "replicas",
    magic="FOLDER",
    help="which of several replicas went another way, from what each has recorded "
    "(LAZYRT_RECORD=folder) or torch_xla has dumped",
)
def _replicas(asked: Command) -> Doc:
    from lazyviz.divergence.report import replicas

    with views.refused(f"%lazy replicas {asked.rest}: "):
        paths = shlex.split(asked.rest)
        if not paths:
            raise UsageError(
                "%lazy replicas takes a folder that processes recorded into, or a file of each; "
                "it got nothing. Run the program with LAZYRT_RECORD=steps, then %lazy replicas "
                "steps."
            )
        return replicas(paths).doc()


def _program(asked: Command, word: str) -> Any:
    if word.isdecimal():
        return int(word)
    return word if _GRAPH.fullmatch(word) else asked.value(word)


def _words(rest: str) -> list[str]:
    """Return the words of a line; what stands in quotes is one, with them."""
    try:
        return shlex.split(rest, posix=False)
    except ValueError:  # a quote without its end, which `value` tells of
        return rest.split()


def file_text(file: str) -> str:
    """Return what the reader knows a file as: `cell 3`, else its path."""
    current = sessions.current()
    cell = current.cell_of_file(file) if current is not None else None
    return file if cell is None else f"cell {cell}"
