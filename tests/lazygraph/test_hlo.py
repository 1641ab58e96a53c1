"""Texts to graphs: every notation, and what is said of broken ones."""

import gc
import gzip
import random
import re
import subprocess
import sys
import time
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from lazygraph import (
    HloError,
    HloSyntaxError,
    diff,
    parse,
    parse_all,
    read,
    unused_values,
)
from lazygraph.graph import InheritedOrigin, Origin
from lazygraph.normalize import graph_of_module
from lazygraph.read import hlo
from lazygraph.read.hlo import modules, with_lines
from lazygraph.read.open import graph_of
from tests.harness import thinned
from tests.hlo_pairs import text_of, transformer

HLO = """\
HloModule step, entry_computation_layout={(f32[4]{0}, f32[4]{0})->(f32[4]{0}, f32[])}

%region (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

ENTRY %main (p: f32[4], q: f32[4]) -> (f32[4], f32[]) {
  %p = f32[4]{0} parameter(0), metadata={op_name="params['w']"}
  %q = f32[4]{0} parameter(1)
  %unused = s32[] constant(9), metadata={op_type="aten__sum" op_name="aten__sum"}
  %both.1 = (f32[4]{0}, f32[4]{0}) tuple(f32[4]{0} %p, f32[4]{0} %q)
  %first.2 = f32[4]{0} get-tuple-element((f32[4]{0}, f32[4]{0}) %both.1), index=0
  %add.3 = f32[4]{0:T(256)} add(%first.2, /*index=1*/%q), metadata={op_name="jit(f)/enc.0/add" source_file="a (1).py" source_line=7}
  %zero.4 = f32[] constant(0)
  %reduce.5 = f32[] reduce(%add.3, %zero.4), dimensions={0}, to_apply=%region
  ROOT %out.6 = (f32[4]{0}, f32[]) tuple(%add.3, %reduce.5)
}
"""
BARE = """\
HloModule other

adder {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

ENTRY start {
  q = f32[4] parameter(0)
  p = f32[4] parameter(1)
  zero = f32[] constant(0)
  add = f32[4] add(p, q)
  r = f32[] reduce(add, zero), dimensions={0}, to_apply=adder
  ROOT out = (f32[], f32[4]) tuple(r, add)
}
"""
STABLEHLO = """\
#loc1 = loc("train.py":7:3)
module @jit_f attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<4x2xf32> loc("params['w']"), %arg1: tensor<i32>) -> (tensor<4xf32> {jax.result_info = ""}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32> loc(#loc)
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<4x2xf32>, tensor<f32>) -> tensor<4xf32> loc(#loc2)
    %1:2 = stablehlo.while(%iterArg = %arg1, %iterArg_0 = %0) : tensor<i32>, tensor<4xf32>
     cond {
      %c = stablehlo.constant dense<3> : tensor<i32>
      %3 = stablehlo.compare  LT, %iterArg, %c,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    } do {
      %3 = func.call @half(%iterArg_0, %cst) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
      stablehlo.return %iterArg, %3 : tensor<i32>, tensor<4xf32>
    }
    %2 = call @half(%1#1, %cst) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    return %2 : tensor<4xf32>
  }
  func.func private @half(%arg0: tensor<4xf32>, %arg1: tensor<f32>) -> tensor<4xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %1 = stablehlo.multiply %arg0, %0 : tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}
#loc = loc(unknown)
#loc2 = loc("enc.0/reduce"(#loc1))
"""
TORCH_IR = """\
[ScheduleSyncTensorsGraph]
## BEGIN_GRAPH
IR {
  %0 = f32[4]{0} xla::device_data(), xla_shape=f32[4]{0}
  %1 = (f32[4]{0}, s64[4]{0}) aten::sort(%0), location=step@train.py:7, xla_shape=(f32[4]{0}, s64[4]{0}), dim=0
  %2 = f32[4]{0} aten::add(%1.0, %0), scope=enc.1, xla_shape=f32[4]{0}, ROOT=0
}
## END_GRAPH
"""


def lines(graph):
    return [
        f"{node.op} {node.type} {node.operands} {node.attrs}{node.literal}".strip()
        for node in graph
    ]


def test_hlo_text_is_read_through_tuples_comments_and_layouts():
    graph = parse(HLO)

    shown = lines(graph)
    assert shown[:4] == [
        "parameter f32[4] ()",
        "parameter f32[4] ()",
        "add f32[4] (0, 1)",
        "constant f32[] () 0",
    ]
    assert shown[4].startswith("reduce f32[] (2, 3) dimensions={0}, to_apply=#")
    assert graph.outputs == (2, 4)
    assert [dead.name for dead in graph.dead] == ["unused"]
    assert (graph.scope(2), graph.site(2)) == ("enc.0", "a (1).py:7")
    assert graph.origin(0).op_name == "params['w']"


def test_two_notations_of_one_program_do_not_differ():
    found = diff(parse(HLO), parse(BARE))

    assert found.cost == 0
    assert found.moved_parameters == [(0, 1), (1, 0)]


def test_a_program_indented_in_source_code_is_read():
    indented = HLO.replace("\n", "\n    ")

    assert diff(parse(HLO), parse(f"text = (\n    {indented}")).is_empty


def test_instructions_may_come_before_what_they_read():
    body = HLO.split("\n")
    k = next(i for i, line in enumerate(body) if "%reduce.5" in line)
    body.insert(k - 3, body.pop(k))

    assert diff(parse(HLO), parse("\n".join(body))).is_empty


def test_what_is_called_counts_and_its_name_does_not():
    renamed = HLO.replace("%region", "%region.clone")
    other = HLO.replace("f32[] add(%x, %y)", "f32[] maximum(%x, %y)")

    assert diff(parse(HLO), parse(renamed)).is_empty
    assert [(x, y) for x, y in diff(parse(HLO), parse(other)).changed] == [(4, 4)]


def test_stablehlo_is_read_with_regions_calls_and_locations():
    graph = parse(STABLEHLO)

    ops = [(node.op, node.type, node.operands) for node in graph]
    assert ops == [
        ("parameter", "f32[4,2]", ()),
        ("parameter", "s32[]", ()),
        ("constant", "f32[]", ()),
        ("reduce", "f32[4]", (0, 2)),
        ("while", "(s32[], f32[4])", (1, 3, 2)),  # %cst is captured by the body
        ("get-tuple-element", "f32[4]", (4,)),
        ("call", "f32[4]", (5, 2)),
    ]
    assert (graph.scope(3), graph.site(3)) == ("enc.0", "train.py:7")
    assert graph.origin(0).op_name == "params['w']"


def test_a_change_within_a_region_or_a_function_is_seen():
    body = STABLEHLO.replace("dense<3>", "dense<4>")
    function = STABLEHLO.replace("stablehlo.multiply", "stablehlo.add")
    renamed = STABLEHLO.replace("@half", "@halved").replace("%iterArg", "%loop")
    original = parse(STABLEHLO)

    assert len(diff(original, parse(body)).changed) == 1
    assert len(diff(original, parse(function)).changed) == 2  # the loop and the call
    assert diff(original, parse(renamed)).is_empty


def test_the_ir_of_torch_xla_is_read():
    graph = parse(TORCH_IR)

    assert lines(graph) == [
        "parameter f32[4] ()",
        "aten::sort (f32[4], s64[4]) (0,) dim=0",
        "getitem f32[4] (1,) index=0",
        "aten::add f32[4] (2, 0)",
    ]
    assert (graph.scope(3), graph.site(1)) == ("enc.1", "train.py:7")


def test_several_modules_are_read_one_by_one_or_chosen():
    text = f"a log line\n{HLO}\n## END_GRAPH\n{BARE}"

    assert [graph.name for graph in parse_all(text)] == ["step", "other"]
    assert parse(text, module="other").name == parse(text, module=1).name == "other"
    with pytest.raises(HloError, match="2 modules: step, other"):
        parse(text)
    with pytest.raises(HloError, match="no module third"):
        parse(text, module="third")


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "the text is empty"),
        ("digraph {}", 1, 1, "'digraph {}' starts no program"),
        (HLO[: HLO.index("  %zero.4")], 16, 1, "ends within the computation %main"),
        (HLO[: HLO.index(", metadata={op_name=\"par") - 8], 10, 17, "%p has no opcode"),
        (HLO[: HLO.index("(0), metadata={") + 1], 10, 27, "never closed"),
        (HLO.replace("*/%q)", "*/%r)"), 15, 54, "%add.3 reads %r, which"),
        (HLO.replace("ENTRY ", ""), 20, 1, "has no ENTRY computation"),
        (HLO.replace("*/%q)", "*/%add.3)"), 15, 3, "cycle through %add.3, which"),
        (HLO.replace("(%add.3, %z", "(%add.3, ...(+1), %z"), 17, 36, "reads more than it says"),
        (HLO.replace("%zero.4 =", "%p ="), 16, 3, "%p is defined a second time"),
        (HLO.replace("f32[] constant(0)", "constant(0)"), 16, 13, "has no type"),
        (HLO.replace("constant(0)", "constant(0) (("), 16, 31, "is no attribute"),
        (HLO.replace("constant(0)", "constant(0) x=1"), 16, 31, "'x=1' is no attribute"),
        (HLO.replace("={0}, to_a", "={0, to_a"), 17, 57, "the `{` is never closed"),
        (HLO.replace("={0}, to_a", "={0}}, to_a"), 17, 60, "the `}` closes nothing"),
        (HLO.replace(", to_a", ', n="x, to_a'), 17, 64, "a quotation is never closed"),
        (HLO.replace("{0}, to_a", "{" * 999 + "}" * 999 + ", to_a"), 17, 457, "400 deep"),
        (HLO.replace("%both.1), index", "%q), index"), 14, 4, r"f32\[4\]\{0\} and no tuple"),
        (HLO.replace("  %zero.4 =", "  ? %zero.4"), 16, 3, "is no instruction"),
        (HLO.replace("%add.3 =", "%add 3 ="), 15, 3, "'%add 3 = .* is no instruction"),
        (HLO.replace("y)\n}\n", "y)\n"), 8, 1, "before the computation %region of line 3"),
        (STABLEHLO[: STABLEHLO.index("    return %2")], 3, 131, "never closed"),
        (STABLEHLO.replace("%1#1", "%7#1"), 15, 21, "%7#1 is used before"),
        (STABLEHLO.replace("@half(%1#1", "@gone(%1#1"), 15, 5, "@gone is called and"),
        (TORCH_IR.replace("(%1.0", "(%9.0"), 6, 28, "%2 reads %9"),
    ],
)  # fmt: skip
def test_a_broken_text_is_refused_with_line_and_column(text, line, column, message):
    with pytest.raises(HloSyntaxError, match=message) as caught:
        parse(text)

    assert isinstance(caught.value, ValueError)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_a_call_of_what_is_not_there_is_refused():
    with pytest.raises(HloError, match="calls %gone, which it does not define"):
        parse(HLO.replace("to_apply=%region", "to_apply=%gone"))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(HloError, match=r"none.hlo cannot be read: No such file"):
        read(tmp_path / "none.hlo")


@pytest.mark.parametrize(
    "text", [f"%x = f32[2] parameter(0) {'a' * 300}", "a" * 300, "a\0b", "a=\0b"]
)
def test_a_line_that_is_neither_a_program_nor_a_path_is_refused(text):
    with pytest.raises(HloError):
        graph_of(text)


def mutated(text, rng):
    """A text with some characters, lines or blocks gone, doubled or exchanged."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        k = rng.randrange(len(text) + 1)
        n = rng.choice([1, 1, 2, 10, 100])
        piece = "".join(rng.choice('()[]{}"\\%=,<>: \nab09') for _ in range(n % 7))
        match rng.randrange(4):
            case 0:
                text = text[:k] + text[k + n :]
            case 1:
                text = text[:k] + piece + text[k:]
            case 2:
                text = text[:k] + text[k : k + n] * 2 + text[k + n :]
            case 3:
                text = text[:k]
    return text


@pytest.mark.parametrize("text", [HLO, BARE, STABLEHLO, TORCH_IR])
def test_mutated_texts_give_a_graph_or_a_clear_error(text):
    rng = random.Random(5)  # noqa: S311
    refused = 0

    for _ in range(300):
        broken = mutated(text, rng)
        try:
            graph = parse(broken)
        except HloError as error:
            refused += bool(str(error))
        else:
            assert diff(graph, graph).is_empty

    assert refused > 30


def real_dumps():
    """What XLA, jax and torch_xla wrote, and what the tests' generator writes."""
    folder = Path(__file__).parents[1] / "data"
    found = {path.name: path.read_text("utf-8") for path in folder.glob("save_*")}

    def step(w, x):
        def body(carry, _):
            return jnp.tanh(carry @ w), carry.sum()

        last, sums = jax.lax.scan(body, x, None, length=3)
        return last.sum() + sums.sum()

    args = jnp.ones((4, 4)), jnp.ones((3, 4))
    lowered: Any = jax.jit(jax.grad(step)).lower(*args)
    found["jax.mlir"] = lowered.as_text(debug_info=True)
    found["jax.hlo"] = lowered.compiler_ir("hlo").as_hlo_module().to_string()
    found["jax.after"] = lowered.compile().as_text()
    found["generated"], _ = text_of(transformer(1), seed=1)
    return found


@pytest.mark.slow
def test_real_dumps_cut_off_or_mutated_anywhere_give_a_graph_or_a_clear_error():
    """Time is bounded for each: no damage makes reading hang."""
    rng = random.Random(11)  # noqa: S311
    messages = []

    for text in real_dumps().values():
        for turn in range(40):
            cut = text[: rng.randrange(1, len(text))]
            broken = cut if turn % 2 else mutated(text, rng)
            started = time.process_time()
            for reader in (parse, parse_all, unused_values):
                try:
                    reader(broken)
                except HloError as error:
                    messages.append(str(error))
            assert time.process_time() - started < 5

    assert min(map(len, messages)) > 20
    assert sum(bool(re.search(r"line \d+, column \d+: ", m)) for m in messages) > 50


@pytest.mark.parametrize(
    "text",
    [
        "HloModule m\n\nENTRY e {\n  a = " + "(" * 200_000,
        "HloModule m\n\nENTRY e {\n  a = f32[] constant(" + "{" * 200_000,
        "HloModule m\n\nENTRY e {\n  a = f32[] add(" + '"' * 200_001,
        "HloModule m\n\nENTRY e {\n" + "  a = f32[2]{\n" * 20_000,
        "HloModule m\n\nENTRY e {\n  a = f32[] add(" + "%b, " * 100_000,
        "module @m {\nfunc.func @main() {\n" + "{" * 100_000,
        "module @m {\nfunc.func @main() {\n" + "return (\n" * 20_000,
        "module @m {\nfunc.func @main() {\n%0:99999999 = foo.bar : () -> f32\n}\n}",
        "HloModule m\n\nENTRY e {\n  a = f32[] parameter(" + "9" * 9_000 + ")\n}\n",
    ],
)
def test_a_hostile_text_is_refused_in_linear_time(text):
    started = time.process_time()

    with pytest.raises(HloError):
        parse(text)

    assert time.process_time() - started < 5


def test_a_long_quotation_is_read_in_linear_time():
    """The configuration of a custom call may be megabytes in one line."""
    text = HLO.replace(
        "(%first.2", f'(%first.2, %q), note="{"x y" * 3_000_000}", b=(%q'
    )
    started = time.process_time()

    graph = parse(text)

    assert max(len(label.attrs) for label in graph.labels) > 9_000_000
    assert time.process_time() - started < 3  # 0.3 s; one step for each character: 5 s


@pytest.mark.parametrize("item", thinned(["(1, -2)", "{ 1, -2 }"], 2))
def test_reading_a_large_literal_takes_little_more_memory_than_its_text(item):
    """Each copy of the literal counts as one; matched with backtracking it was 19."""
    literal = "{" + ", ".join([item] * 200_000) + "}"
    text = f"HloModule m\nENTRY e {{\n  ROOT c = c64[200000] constant({literal})\n}}"
    tracemalloc.start()

    graph = parse(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert graph.label(0).literal == literal
    assert peak < 9 * len(literal)


def test_a_literal_in_rows_ends_where_its_own_brace_closes():
    rows = "{\n{ 1, 2 },\n{ 3, 4 }\n}"
    text = f"HloModule m\nENTRY e {{\n  ROOT c = s32[2,2] constant({rows})\n}}"
    deep = text.replace(rows, "{\n{ {\n1, 2\n},\n{ 3, 4 } }\n}")

    assert parse(text).label(0).literal == "{ { 1, 2 }, { 3, 4 } }"
    assert parse(deep).label(0).literal == "{ { { 1, 2 }, { 3, 4 } } }"


def _notations(text):
    """Return an HLO text as others of XLA's printers write it."""
    start = text.index("\n", text.index("ENTRY"))
    head, body = text[:start], text[start:]
    types = dict(re.findall(r"%([\w.\-]+) = (\S+)", body))
    return {
        "as it is": text,
        "without %": head + re.sub(r"%(?=[a-z])", "", body),
        "with types": head
        + re.sub(
            r"(?<=[( ])%([\w.\-]+)(?=[,)])", lambda m: f"{types[m[1]]} {m[0]}", body
        ),
        "with tiles": head + body.replace("]{1,0}", "]{1,0:T(8,128)}"),
        "with more behind": head
        + re.sub(r"(metadata=\{[^}]*\})", r'\1, backend_config={"a":["0"]}', body),
        "with comments": head + re.sub(r"\(%(?=[a-z])", "(/*index=0*/%", body),
    }


@pytest.mark.parametrize("notation", _notations("ENTRY\n"))
def test_each_notation_of_lines_is_read_many_at_a_time(notation, monkeypatch):
    text, _ = text_of(transformer(2), seed=3, shuffle=True)
    other = _notations(text)[notation]
    singly = []
    inside = hlo._Reader._inside

    def counted(reader, line):
        singly.append(line)
        inside(reader, line)

    monkeypatch.setattr(hlo._Reader, "_inside", counted)

    found = parse(other)

    plain = parse(text)
    assert found.operands == plain.operands
    assert found.names == plain.names
    assert [found.label(x) for x in range(len(found))] == [
        plain.label(x) for x in range(len(plain))
    ]
    assert [found.origin(x) for x in range(len(found))] == [
        plain.origin(x) for x in range(len(plain))
    ]
    assert len(singly) < 12  # the roots, and the ends of the computations


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('%b = f32[] negate(%a), metadata={op_name="x}', "a quotation is never closed"),
        ("%b = f32[] add(%a, %nobody)", "%b reads %nobody"),
        ("%a = f32[] negate(%a)", "%a is defined a second time"),
        ("%b = f32[] negate(%a) dimensions={}", "is no attribute"),
        ("%b = f32 negate(%a)", "has no type"),
    ],
)
def test_one_wrong_line_among_common_ones_is_found_by_its_number(line, message):
    rows = [f"  %c.{k} = f32[] negate(%a)" for k in range(300)]
    rows.insert(200, f"  {line}")
    text = "\n".join(
        ["HloModule m", "ENTRY %e (a: f32[]) -> f32[] {", "  %a = f32[] parameter(0)",
         *rows, "  ROOT %r = f32[] negate(%c.1)", "}"]
    )  # fmt: skip

    with pytest.raises(HloSyntaxError, match=message) as caught:
        parse(text)

    assert caught.value.line == 204


def test_of_two_wrong_lines_the_first_is_named():
    """A wrong name is noticed where its computation ends, or another error does."""
    rows = [
        "%a = f32[] parameter(0)",
        "%b@0 = f32[] negate(%a)",
        "%c = f32[] negate(%a)}",
    ]
    text = "\n".join(["HloModule m", "ENTRY %e (a: f32[]) -> f32[] {", *(f"  {r}" for r in rows), "}"])  # fmt: skip

    with pytest.raises(HloSyntaxError, match=r"%b@0 = .* is no instruction") as caught:
        parse(text)

    assert caught.value.line == 4


def test_a_graph_keeps_nothing_of_the_text_that_it_was_read_from(monkeypatch):
    readers = []
    read = hlo._Reader.read

    def noted(reader):
        readers.append(weakref.ref(reader))
        return read(reader)

    monkeypatch.setattr(hlo._Reader, "read", noted)
    gc.disable()  # a cycle would stay
    try:
        graph = parse(text_of(transformer(1))[0])
    finally:
        gc.enable()

    assert len(graph) > 300
    assert [reader() for reader in readers] == [None]


def test_what_is_compared_is_read_in_columns_and_each_form_once():
    """No object for each instruction, and no work twice."""
    graph = parse(text_of(transformer(3))[0])
    main = graph.source.computations[graph.source.entry]

    assert diff(graph, graph).is_empty
    assert not main._rows
    assert len(graph.source.forms) == len(set(graph.source.forms)) < len(main) / 2
    assert [row.name for row in main.instructions] == main.names
    assert main.instructions is main.instructions


_PAUSED = """
import gc, sys, weakref
import lazygraph.graph
from lazygraph import parse

class Cycle:
    pass

text, frozen = open(sys.argv[1]).read(), sys.argv[2] == "frozen"
if frozen:
    gc.freeze()
before = gc.get_freeze_count()
lazygraph.graph._MANY = 2_000
garbage = Cycle()
garbage.itself = garbage
left = weakref.ref(garbage)
del garbage
graph = parse(text)
young = len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1))
assert gc.isenabled()
assert left() is None
assert gc.get_freeze_count() == before
assert (young < len(graph)) != frozen, (young, len(graph))
"""


@pytest.mark.parametrize("state", ["plain", "frozen"])
def test_what_was_built_is_not_walked_by_the_collector(tmp_path, state):
    """A pause of the collector ends without a walk, leaves no garbage and frees no frozen object."""
    file = tmp_path / "program.hlo"
    file.write_text(text_of(transformer(10))[0])
    command = [sys.executable, "-c", _PAUSED, str(file), state]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_a_long_chain_needs_no_recursion():
    text = "HloModule m\n\nENTRY e {\n  v0 = f32[] parameter(0)\n" + "".join(
        f"  v{k} = f32[] negate(v{k - 1})\n" for k in range(1, 5_000)
    )
    graph = parse(f"{text}}}\n")

    assert diff(graph, graph).is_empty
    assert len(graph) == 5_000


def test_a_program_reads_the_same_with_and_without_metadata():
    program = transformer(1)

    with_it, without = (
        parse(text_of(program, metadata=metadata)[0]) for metadata in (True, False)
    )

    assert diff(with_it, without).is_empty


def test_what_xla_adds_within_a_fusion_has_its_neighbours_origin_marked_as_such():
    """That of its reader, of what it reads, or of the fusion; inputs have none."""
    (module,) = modules("""HloModule m

%bits (p: u32[4]) -> u32[4] {
  %p = u32[4] parameter(0)
  %one = u32[] constant(1)
  %b = u32[4] broadcast(%one), dimensions={}
  %x = u32[4] xor(%p, %b)
  %d = u32[4] add(%x, %x), metadata={op_name="net.0/aten.rand" source_file="m.py" source_line=3}
  ROOT %c = u32[4] copy(%d)
}

%bare (q: u32[4]) -> u32[4] {
  %q = u32[4] parameter(0)
  ROOT %n = u32[4] not(%q)
}

ENTRY %main (x: u32[4]) -> u32[4] {
  %x = u32[4] parameter(0)
  %f = u32[4] fusion(%x), kind=kLoop, calls=%bits
  %g = u32[4] fusion(%f), kind=kLoop, calls=%bare, metadata={op_name="net.1/aten.not" source_file="m.py" source_line=4}
  ROOT %h = u32[4] add(%f, %g)
}
""")
    bits, bare, entry = (
        graph_of_module(module, name) for name in ("bits", "bare", "main")
    )

    known = {node.name: bits.origin(node.id) for node in bits}
    assert known.pop("%p") == Origin()
    assert set(known.values()) == {Origin("net.0", "m.py:3", "aten.rand")}
    written = [k for k, o in known.items() if not isinstance(o, InheritedOrigin)]
    assert written == ["%d"]
    assert bare.origin(1) == InheritedOrigin("net.1", "m.py:4", "aten.not")
    assert isinstance(bare.origin(1), InheritedOrigin)
    assert [entry.origin(k).op_name for k in range(4)] == ["", "", "aten.not", ""]


def test_a_copy_in_the_entry_has_the_origin_of_what_it_copies_in_foreign_dumps_too():
    graph = parse(
        """HloModule m
ENTRY e {
  w = f32[8]{0} parameter(0), metadata={op_name="model.weight"}
  n = f32[8]{0} negate(w), metadata={op_name="net/neg" source_file="m.py" source_line=4}
  c = f32[8]{0} copy(w)
  d = f32[8]{0} copy(n)
  e = f32[8]{0} add(c, d)
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(d, e)
}"""
    )

    assert graph.origin(graph.names.index("%c")) == Origin(op_name="model.weight")
    assert graph.origin(graph.names.index("%d")) == Origin("net", "m.py:4", "neg")
    assert isinstance(graph.origin(graph.names.index("%d")), InheritedOrigin)
    assert graph.origin(graph.names.index("%e")) == Origin()


def test_text_with_lines_has_neither_tables_nor_places_in_the_text_itself():
    """What surrounds an instruction's metadata stays as XLA wrote it."""
    text = (
        'HloModule m\n\nFileNames\n1 "/a b/t.py"\n\nFunctionNames\n1 "f"\n\nFileLocations\n'
        "1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=0 end_column=0}\n\n"
        "StackFrames\n1 {file_location_id=1 parent_frame_id=1}\n\n\n"
        "ENTRY %main (x: f32[]) -> f32[] {\n"
        '  %x = f32[] parameter(0), metadata={source_file="-" source_line=3}\n'
        '  %a = f32[] negate(%x), metadata={op_name="a }\\" b" source_file="-" source_line=4 '
        'source_end_line=4 stack_frame_id=1}, backend_config={"k": {} }\n'
        '  ROOT %b = f32[] negate(%a), metadata={source_file="kept.py" source_line=2}\n}\n'
    )

    shown = with_lines(text, {"/a b/t.py": "cell 9"}.__getitem__)

    assert shown.splitlines() == [
        "HloModule m",
        "",
        "ENTRY %main (x: f32[]) -> f32[] {",
        "  %x = f32[] parameter(0)",
        (
            '  %a = f32[] negate(%x), metadata={op_name="a }\\" b" source_file="cell 9" '
            'source_line=7}, backend_config={"k": {} }'
        ),
        '  ROOT %b = f32[] negate(%a), metadata={source_file="kept.py" source_line=2}',
        "}",
    ]


@pytest.mark.parametrize("text", [HLO, BARE, STABLEHLO, TORCH_IR])
@pytest.mark.parametrize(
    "dress",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: f"\ufeff{text}",
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-8-sig"),
        lambda text: gzip.compress(text.encode()),
        lambda text: text.replace("  ", "\t"),
    ],
    ids=["crlf", "cr", "mark", "utf-16", "utf-8-sig", "gzip", "tabs"],
)
def test_line_ends_tabs_and_encodings_are_no_difference(text, dress):
    assert diff(parse(text), parse(dress(text))).is_empty


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x89PNX\r\n\x1a\n\0\0\0", "no text has, and begins with 89 50 4e 58"),
        (b"\x80\x04\0" + HLO.encode(), "no text has"),
        (gzip.compress(HLO.encode())[:-20], "cannot be unpacked"),
    ],
)
def test_a_file_that_is_no_text_is_refused_by_its_bytes(data, message, tmp_path):
    (tmp_path / "dump").write_bytes(data)

    with pytest.raises(HloError, match=message) as caught:
        read(tmp_path / "dump")

    assert "dump" in str(caught.value)


def test_torch_xlas_dot_form_is_a_program_and_what_breaks_it_is_placed():
    folder = Path(__file__).parents[1] / "data"
    dots = (folder / "save_tensors.dot").read_text("utf-8")
    start = dots.index("digraph G {")
    dot = dots[start : dots.index("\n}", start) + 3]

    graphs = parse_all(dots)

    assert len(parse(dot)) == len(graphs[0]) > 5
    first = parse_all((folder / "save_tensors.text").read_text("utf-8"))[0]
    assert diff(graphs[0], first).is_empty
    with pytest.raises(HloSyntaxError, match="its closing brace is missing") as caught:
        parse(dot[: dot.rindex("}")])
    assert caught.value.line == dot.count("\n") - 1
