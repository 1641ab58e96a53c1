"""Debug logs, dumps of graphs and dump folders."""

import io
import json
import random
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import lazygraph as hlo
import lazyviz
from lazygraph.read.torch_ir import parse_ir
from lazyviz.foreign import EvidenceError, Frame, read
from lazyviz.foreign.debug_log import parse_debug_log
from lazyviz.foreign.program_dumps import Programs, parse_programs, read_xla_dump
from lazyviz.foreign.tensors_dump import parse_tensors_dump
from tests.harness import ROOT

DATA = Path(__file__).parent.parent / "data"
LOG = (DATA / "pt_xla_debug.log").read_text()


def dump(kind):
    return parse_tensors_dump((DATA / f"save_tensors.{kind}").read_text())


# ---------------------------------------------------------------- debug logs


def test_a_log_of_level_2_tells_compiles_and_executions():
    log = parse_debug_log(LOG)

    assert [(e.kind, e.graph[:4], e.inputs, e.outputs) for e in log.events] == [
        ("compile", "5d9b", 7, 15),
        ("execute", "5d9b", 7, 15),
        ("execute", "5d9b", 7, 15),
        ("compile", "c04a", 2, 1),
        ("execute", "c04a", 2, 1),
        ("execute", "5d9b", 7, 15),
        ("compile", "57c2", 7, 15),
        ("execute", "57c2", 7, 15),
    ]
    assert log.events[0].computation == "a1935bb9977fd307fa8aba45dbd9f048"
    assert log.events[0].sizes_gb["graph output"] == 0.000003
    assert log.events[0].cause == "user torch_xla.sync"
    assert log.events[3].user_frame == Frame("train_step", "debug_env.py", 11)


def test_a_log_names_the_lines_that_read_in_mid_step_and_those_with_many_graphs():
    text = parse_debug_log(LOG).text()

    assert text.startswith("3 graphs · 3 compiles · 5 executions\n")
    assert (
        "train_step (debug_env.py:11) read a value before the step's end, which cost 1 "
        "compile and 1 execution of a partial graph." in text
    )
    assert "train_step (debug_env.py:16) compiled 2 graphs" in text
    assert "Ran on the CPU 1 time: xla_fallback." in text


def test_a_log_of_level_1_has_no_executions():
    lines = LOG.splitlines()
    log = parse_debug_log(
        "\n".join(line for line in lines if not line.startswith("Execution Analysis"))
    )

    assert len(log.compiles) == len(log.events) == 3
    text = log.text()
    assert "executions not logged (level 1)" in text
    assert "which cost 1 compile of a partial graph" in text


def test_a_function_that_ran_early_is_told_with_its_name():
    log = parse_debug_log(
        f"Unexpected Execution Analysis: {'=' * 80}\n"
        "Unexpected Execution Analysis: Execution Cause\n"
        "Unexpected Execution Analysis:   most likely user code trying to access tensor "
        "value before torch_xla.sync\n"
        "Unexpected Execution Analysis: Graph Info: \n"
        "Unexpected Execution Analysis:   Graph Name: bad\n"
        "Unexpected Execution Analysis:   Graph Hash: 9954\n"
        "Unexpected Execution Analysis:   Number of Graph Inputs: 2\n"
        "Unexpected Execution Analysis:   Number of Graph Outputs: 1\n"
        "Unexpected Execution Analysis: Python Frame Triggered Execution: \n"
        "Unexpected Execution Analysis:   bad (guard.py:6)\n"
        f"Unexpected Execution Analysis: {'-' * 80}\n"
        f"Unexpected Execution Analysis: {'=' * 80}\n"
    )

    assert log.events[0].name == "bad"
    assert (
        "The function bad that had to be one graph ran part of it early" in log.text()
    )


def test_views_of_a_log_are_well_formed():
    log = parse_debug_log(LOG.replace("user torch_xla.sync", "<i>&sync"))

    ET.fromstring(log.to_html())
    assert "<i>" not in log.to_html()
    json.dumps(log.to_dict())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing\nhere", "there is no analysis in the text that starts with"),
        (LOG[: LOG.index("Graph Hash")], "line 3: the Compilation Analysis"),
        (
            LOG.replace("Compilation Analysis:   Graph Hash: 5d9b", "x", 1),
            "line 3: the Compilation Analysis that begins here has no Graph Hash",
        ),
        (
            LOG[LOG.index("Post Compilation") :],
            "line 1: a Post Compilation Analysis without",
        ),
        (
            LOG.replace("Inputs: 7", "Inputs: many", 1),
            "line 3: Number of Graph Inputs is 'many'",
        ),
        ("Execution Analysis: Graph Info:\n", "line 1: 'Execution Analysis: Graph"),
    ],
)
def test_a_log_that_was_cut_is_refused_with_its_line(text, message):
    with pytest.raises(EvidenceError) as raised:
        parse_debug_log(text)

    assert str(raised.value).startswith(message)


def test_a_page_of_a_long_log_stays_short():
    end = LOG.index("=== step 2")
    log = parse_debug_log(LOG[:end] * 100)

    assert len(log.events) == 300
    assert log.to_html().count("<details") == 200
    assert "... and 100 more events; <code>log.events</code> has all" in log.to_html()


# ---------------------------------------------------------------- dumps of graphs


def test_a_dump_of_graphs_is_read_from_text():
    found = dump("text")
    first = found.graphs[0]

    assert [len(graph.nodes) for graph in found.graphs] == [9, 14, 9]
    assert found.distinct.popitem()[1] == [2]
    assert first.event == "ScheduleSyncTensorsGraph"
    assert first.graph_hash == "b97feb1b8e9087bea3bd29e48a5a192d"
    assert first.roots == ("4f9457698b6eb8419559922c0bff23e6",)
    assert first.user_frame == Frame("train_step", "debug_env.py", 11)
    node = first.nodes[5]
    assert (node.op, node.type) == ("aten::addmm", "f32[4,16]{1,0}")
    assert node.operands == ((4, 0), (2, 0), (0, 0))
    assert (node.scope, node.location) == ("forward.1", "forward@linear.py:134")
    assert first.nodes[8].root == 0


def test_the_dot_form_gives_the_same_graph():
    assert dump("dot").graphs[0].nodes == dump("text").graphs[0].nodes


def test_hlo_is_kept_as_text():
    found = dump("hlo").graphs[0]

    assert found.format == "hlo"
    assert found.body.startswith("HloModule IrToHlo.")
    assert found.size == 18
    assert found.nodes == ()


@pytest.mark.parametrize("kind", ["text", "dot", "hlo"])
def test_views_of_a_dump_are_well_formed(kind):
    found = dump(kind)

    ET.fromstring(found.to_html())
    json.dumps(found.to_dict())
    assert "train_step (debug_env.py:11)" in found.text()


def test_equal_graphs_are_said_to_be_the_same():
    rows = dump("text").text().splitlines()

    assert rows[0] == "3 graphs, 2 of them different"
    assert rows[6].split()[-1] == "1"
    assert "ops: xla::device_data ×6" in rows[-1]


def test_attributes_may_hold_commas_and_types_may_be_tuples():
    text = (
        "IR {\n"
        "  %0 = f32[2]{0} xla::device_data(), xla_shape=f32[2]{0}\n"
        "  %1 = (f32[2]{0}, s64[]) aten::max(%0), dimensions=(0, 1), num_outputs=2\n"
        "  %2 = f32[2]{0} aten::neg(%1.1), ROOT=0\n"
        "}\n"
    )

    _, pair, negated = parse_ir(text)

    assert pair.type == "(f32[2]{0}, s64[])"
    assert pair.attributes == {"dimensions": "(0, 1)", "num_outputs": "2"}
    assert negated.operands == ((1, 1),)


GRAPH = "## BEGIN_GRAPH\nIR {\n  %0 = f32[] prim::Constant()\n}\n## END_GRAPH\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x\ny", "there is no graph in the text"),
        (GRAPH[:-14], "line 1: the graph that begins here has no '## END_GRAPH'"),
        (GRAPH.replace("IR {", "XR {"), "line 2: the graph starts with 'XR {"),
        (GRAPH.replace("}\n", ""), "line 3: the IR graph breaks off"),
        (GRAPH.replace("%0 =", "%0 -"), "line 3: '%0 - f32[] prim::Constant()' is no"),
        (GRAPH.replace("Constant()", "Constant(%7)"), "line 3: %0 reads %7, which is"),
        (
            GRAPH.replace("}\n", "  %0 = f32[] prim::Constant()\n}\n"),
            "line 4: %0 is defined twice",
        ),
    ],
)
def test_a_broken_dump_is_refused_with_its_line(text, message):
    with pytest.raises(EvidenceError) as raised:
        parse_tensors_dump(text).to_dict()

    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("kind", ["text", "dot"])
def test_damaged_dumps_and_logs_are_read_or_refused(kind):
    rng = random.Random(3)  # noqa: S311 - damage that can be repeated
    met = {"read": 0, "refused": 0}
    for original in ((DATA / f"save_tensors.{kind}").read_text(), LOG):
        for _ in range(60):
            at = rng.randrange(len(original))
            cut = original[:at] + rng.choice(["", "\n", "%", "("]) + original[at + 2 :]
            try:
                read.read(cut).to_dict()
                met["read"] += 1
            except EvidenceError:
                met["refused"] += 1

    assert sum(met.values()) == 120
    assert min(met.values()) > 0, met


# ---------------------------------------------------------------- XLA's dump folders


def write_modules(folder):
    hlo = "HloModule m\nENTRY %main {\n  %x = f32[] parameter(0)\n  ROOT %y = f32[] negate(%x)\n}\n"
    for name in (
        "module_0001.jit_step.before_optimizations.txt",
        "module_0001.jit_step.cpu_after_optimizations.txt",
        "module_0001.jit_step.cpu_after_optimizations-buffer-assignment.txt",
        "module_0001.jit_step.0003.simplification.after_x.before_algsimp.txt",
        "module_0004.IrToHlo.108.before_optimizations.txt",
    ):
        (folder / name).write_text(hlo)
    (folder / "notes.txt").write_text("mine")


def test_a_dump_folder_is_grouped_by_module(tmp_path):
    write_modules(tmp_path)
    found = read_xla_dump(tmp_path)

    assert [(m.id, m.name) for m in found.modules] == [
        (1, "jit_step"),
        (4, "IrToHlo.108"),
    ]
    step = found["jit_step"]
    assert step.before is step.files["before_optimizations.txt"]
    assert step.after is step.files["cpu_after_optimizations.txt"]
    assert len(step.passes) == 1
    assert len(step.files) == 4
    assert found["IrToHlo.108"].after is None
    assert found.text().splitlines()[-2].split()[:6] == ["1", "jit_step", "2", "2", "1", "4"]  # fmt: skip
    ET.fromstring(found.to_html())
    with pytest.raises(KeyError, match=r"It has jit_step, IrToHlo\.108"):
        found["x"]


def test_a_folder_without_modules_is_refused(tmp_path):
    with pytest.raises(EvidenceError, match="so it is no dump of XLA"):
        read_xla_dump(tmp_path)
    with pytest.raises(EvidenceError, match="is no folder"):
        read_xla_dump(tmp_path / "missing")


@pytest.mark.slow
def test_a_real_dump_folder_is_read(tmp_path):
    code = (
        "import jax, jax.numpy as jnp\n"
        "jax.jit(lambda x: (x @ x).sum() + 1)(jnp.ones((8, 8)))"
    )
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=.*"
    subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "", "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        check=True,
        capture_output=True,
    )

    module = read_xla_dump(tmp_path)["jit__lambda"]

    assert module.before is not None
    assert "dot(" in module.before.read_text()
    assert module.after is not None
    assert len(module.passes) > 5


# ---------------------------------------------------------------- programs

HLO = """HloModule m
ENTRY %main {
  %x = f32[4]{0} parameter(0)
  %e = f32[4]{0} exponential(%x), metadata={op_name="exp" source_file="t.py" source_line=7}
  %u = f32[4]{0} negate(%x)
  ROOT %y = f32[4]{0} add(%e, %x)
}
"""


def test_a_program_is_shown_with_its_ops_and_lines(tmp_path):
    (tmp_path / "m.hlo").write_text(HLO)
    found = lazyviz.read(tmp_path / "m.hlo")

    lines = found.text().splitlines()
    assert lines[2].split() == ["1", "m", "3", "1", "16", "bytes", "1", "1"]
    assert "exponential ×1" in lines[4]
    assert lines[-1] == "lines: t.py:7 ×1"
    ET.fromstring(found.to_html())
    assert "%y = f32[4] add(%e, %x)" in found.to_html()
    assert json.loads(json.dumps(found.to_dict()))["programs"][0]["dead"]


def test_torch_xlas_own_ir_is_a_program_in_both_forms():
    text, dot = dump("text").graphs[0].body, dump("dot").graphs[0].body

    (one,), (other,) = parse_programs(text).graphs, parse_programs(dot).graphs

    assert type(read.read(text)) is type(read.read(dot)) is Programs
    assert hlo.diff(one, other).cost == 0


def test_a_page_of_a_large_program_stays_short():
    rows = [f"  %e{k} = f32[4]{{0}} exponential(%e{k - 1})" for k in range(1, 2_100)]
    text = "\n".join(
        ["HloModule m", "ENTRY %main {", "  %e0 = f32[4]{0} parameter(0)", *rows,
         "  ROOT %y = f32[4]{0} negate(%e2099)", "}", ""]
    )  # fmt: skip

    page = parse_programs(text).to_html()

    assert "... and 101 more nodes" in page
    assert page.count("exponential(") == 1_999


def test_a_program_that_breaks_off_is_refused_with_its_line():
    with pytest.raises(EvidenceError, match=r"line \d+"):
        read.read(HLO[: HLO.index("%u")])


# ---------------------------------------------------------------- whatever it is


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("report_2022.txt", "MetricsReport"),
        ("pt_xla_debug.log", "DebugLog"),
        ("save_tensors.hlo", "TensorsDump"),
    ],
)
def test_a_file_is_recognised(name, kind):
    path = DATA / name

    assert type(lazyviz.read(path)).__name__ == kind
    assert type(lazyviz.read(str(path))).__name__ == kind
    assert type(lazyviz.read(path.read_text())).__name__ == kind


def test_what_nobody_knows_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("Dear diary\n")
    (tmp_path / "d.xplane.pb").write_bytes(b"\n\0\1\2")
    (tmp_path / "b.pb").write_bytes(b"\n\0\1\2")

    with pytest.raises(EvidenceError, match="nothing that can be read here") as raised:
        lazyviz.read(tmp_path / "a.txt")
    assert raised.value.__notes__ == [f"in {tmp_path / 'a.txt'}"]
    with pytest.raises(EvidenceError, match="holds no event that took time"):
        lazyviz.read('{"otherData": {},\n "traceEvents": []}')
    with pytest.raises(EvidenceError, match="or breaks off"):
        lazyviz.read('{"traceEvents": [\n{"ph": "X", "na')
    with pytest.raises(EvidenceError, match="is binary, and no serialised HLO module"):
        lazyviz.read(tmp_path / "b.pb")
    with pytest.raises(EvidenceError, match="no profile of XLA, or breaks off"):
        lazyviz.read(tmp_path / "d.xplane.pb")
    with pytest.raises(EvidenceError, match="cannot be read: No such file"):
        lazyviz.read(tmp_path / "c.txt")


def test_the_command_prints_text_or_data_or_writes_a_page(tmp_path, capsys):
    out = io.StringIO()
    page = tmp_path / "page.html"
    source = str(DATA / "report_2022.txt")

    assert read.main([source], out) == 0
    assert "15m55.564619s" in out.getvalue()
    assert read.main([source, "--html", str(page)], out) == 0
    assert "15m55.564619s" in page.read_text().replace("<wbr/>", "")
    data = io.StringIO()
    assert read.main([source, "--json"], data) == 0
    assert json.loads(data.getvalue())["rounding"] == "legacy"
    assert read.main([str(tmp_path / "missing")], out) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_reading_needs_neither_torch_nor_jax_nor_lazyrt():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import lazyviz\n"
        f"lazyviz.read({str(DATA / 'pt_xla_debug.log')!r}).to_html()\n"
        f"lazyviz.read({str(DATA / 'report_2022.txt')!r}).text()\n"
        "print(sorted({'torch', 'jax', 'lazyrt'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


# ---------------------------------------------------------------- as graphs to compare


@pytest.mark.parametrize("kind", ["text", "dot", "hlo"])
def test_a_dumped_graph_is_one_that_can_be_compared(kind):
    graph = dump(kind).graphs[0].graph

    assert len(graph) > 5
    assert hlo.diff(graph, graph).cost == 0


def test_the_dot_form_is_the_same_graph_for_a_diff():
    found = hlo.diff(dump("text").graphs[0].graph, dump("dot").graphs[0].graph)

    assert found.cost == 0


def test_graphs_of_one_line_say_what_makes_them_differ():
    text = (DATA / "save_tensors.text").read_text()
    other = text.replace("b97feb", "beef01").replace("f32[4,16]", "f32[6,16]")
    both = parse_tensors_dump(text + other)

    found = both.diff(1, 4)

    assert len(found.changed) == 1
    assert (
        "graph 4 is another one than graph 1 of the same line: 9 → 9 instructions; ~1 changed"
        in both.text()
    )
    with pytest.raises(EvidenceError, match="there is no graph 9: the dump has 6"):
        both.diff(1, 9)


def test_modules_of_a_dump_folder_can_be_compared(tmp_path):
    write_modules(tmp_path)
    step = read_xla_dump(tmp_path)["jit_step"]

    assert hlo.diff(step.graph("before"), step.graph("after")).cost == 0
    with pytest.raises(EvidenceError, match="has no text 'middle' in the dump"):
        step.graph("middle")


def test_what_was_read_can_be_given_to_diff_and_trace_as_it_is(tmp_path):
    """One graph of a dump is a program; a whole dump says what to choose."""
    one, two = dump("text").graphs[0], dump("dot").graphs[0]
    write_modules(tmp_path)
    folder = read_xla_dump(tmp_path)

    assert hlo.diff(one, two).is_empty
    assert hlo.diff(folder["jit_step"], folder["jit_step"].after).is_empty
    assert "no difference" in str(lazyviz.diff(one, two))
    with pytest.raises(
        hlo.HloError, match=r"not one graph. Choose one, such as `.graphs\[0\]`"
    ):
        lazyviz.diff(dump("text"), one)
    with pytest.raises(hlo.HloError, match=r"such as `.modules\[0\]`"):
        hlo.diff(folder, one)


def test_a_type_of_several_sizes_leaves_nothing_in_the_attributes():
    text = (
        "IR {\n  %0 = f32[4,8]{1,0} xla::device_data(), xla_shape=f32[4,8]{1,0}\n"
        "  %1 = f32[4,8]{1,0} aten::expand(%0), location=f@t.py:7, size=(4, 8), "
        "xla_shape=f32[4,8]{1,0}, ROOT=0\n}\n"
    )
    graph = hlo.parse(text)

    assert [label.attrs for label in graph.labels] == ["", "size=(4, 8)"]
    assert len(hlo.diff(graph, hlo.parse(text.replace("[4,8]", "[6,8]"))).changed) == 2
