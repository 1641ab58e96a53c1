"""What is shown outlives its kernel: HTML without a script, and text, in every bundle."""

import ast
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbconvert import HTMLExporter

import lazyviz
from lazyviz.divergence.launch import Launched
from lazyviz.foreign.program_dumps import parse_programs
from lazyviz.foreign.xplane import Profile, ProfileEvent, ProfileLine, ProfilePlane
from lazyviz.inspection.graph_breaks import GraphBreak
from lazyviz.render.notes import Fallback
from lazyviz.render.strip import Strip
from lazyviz.timing.profile import ProfileDiff
from lazyviz.views import VIEWS
from tests.conftest import displayed
from tests.lazyviz.records import barrier, write_record

PACKAGE = Path(lazyviz.__file__).parent
DATA = Path(__file__).parent.parent / "data"
TENSORS = """Tensor: id=4, shape=f32[2,4]{1,0}, device=CPU:0, ir_nodes=1
IR {
  %0 = f32[2,4]{1,0} xla::device_data(), xla_shape=f32[2,4]{1,0}, ROOT=0
}
"""
WIDGET = "application/vnd.jupyter.widget-view+json"
# What GitHub's viewer and an untrusted notebook take out, with all that is in it.
REMOVED = {"script", "style", "svg", "iframe", "object", "embed", "link", "meta"}
KEPT_ATTRIBUTES = {"alt", "class", "href", "open", "src", "colspan", "align", "title"}


class Sanitised(HTMLParser):
    """HTML as a viewer of notebooks on the web leaves it; `text` is what can be read."""

    def __init__(self, page):
        super().__init__()
        self.text, self.pictures, self._skipped = "", 0, 0
        self.feed(page.replace("<wbr/>", ""))  # where a line may end within a word
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag in REMOVED:
            self._skipped += tag not in {"link", "meta", "embed"}
        kept = {name: value for name, value in attrs if name in KEPT_ATTRIBUTES}
        if tag == "img" and (kept.get("src") or "").startswith("data:image/"):
            self.pictures += 1
            self.text += f" {kept.get('alt') or ''} "

    def handle_endtag(self, tag):
        if tag in REMOVED:
            self._skipped -= 1

    def handle_data(self, data):
        if not self._skipped:
            self.text += f" {data}"


def example(name, folder):
    """Return an object of one of the classes that show themselves, by the class's name."""
    import torch

    import lazyrt

    match name:
        case "MetricsReport":
            return lazyviz.parse_report(lazyrt.metrics_report("dict"))
        case "ReportDiff":
            return lazyviz.compare_reports(
                REPORT, REPORT.replace("TotalSamples: 2", "TotalSamples: 5")
            )
        case "DebugLog":
            return lazyviz.read(DATA / "pt_xla_debug.log")
        case "TensorsDump":
            return lazyviz.read(DATA / "save_tensors.text")
        case "TensorsReport":
            return lazyviz.read(TENSORS)
        case "ValueTrace":
            return lazyviz.trace_value(HLO, "a")
        case "DiffView":
            return lazyviz.diff(HLO, HLO.replace("add(", "multiply("))
        case "Comparison":
            return lazyviz.compare_modes(torch.ones(2, device="lazyrt") * 3 + 1)
        case "NotFiniteView":
            return lazyviz.find_nan(torch.zeros(2, device="lazyrt").log() * 0)
        case "MinimisedView":
            return lazyviz.minimise(HLO, lambda part: "add" in part.ops)
        case "ExploreView":
            return lazyviz.explore(HLO)
        case "TimelineShown":
            return lazyviz.timeline()
        case "Replicas":
            for replica, barriers in (
                ("0", [barrier()]),
                ("1", [barrier(), barrier()]),
            ):
                write_record(folder, replica, barriers)
            return lazyviz.replicas(folder)
        case "Launched":
            write_record(folder, "0", [barrier()])
            (folder / "rank-0.out").write_text("trained\n")
            return Launched(folder, (0,), 0.0)
        case "ProfileDiff":
            profile: Any = SimpleNamespace(
                steps=(), gaps=(), waits=(), lines=(), reads=()
            )
            return ProfileDiff(profile, profile)
        case "Strip":
            return Strip(fallbacks=(Fallback(op="aten.bincount", site="a.py:3"),))
        case "GraphBreak":
            return GraphBreak("2 graphs", (("now", "3 ops (line 1) │ 2 ops (line 2)"),))
        case "Programs":
            return parse_programs(HLO)
        case "Profile":
            event = ProfileEvent("f", 10, 20_000, {"hlo_op": "fusion.1", "step_num": 1})
            line = ProfileLine("python", (event,))
            return Profile((ProfilePlane("/host:CPU", (line,), {}),))
        case _:
            for stage in ("before_optimizations", "cpu_after_optimizations"):
                (folder / f"module_0000.jit_f.{stage}.txt").write_text(HLO)
            return lazyviz.read(folder)


HLO = """HloModule m

ENTRY main {
  p = f32[4] parameter(0)
  a = f32[4] add(p, p)
  ROOT n = f32[4] negate(a)
}
"""
REPORT = """Metric: CompileTime
  TotalSamples: 2
  Accumulator: 04s500ms000.000us
  ValueRate: 900ms000.000us / second
  Rate: 0.4 / second
  Percentiles: 1%=02s000ms000.000us; 50%=02s250ms000.000us; 99%=02s500ms000.000us
"""
# Words that a reader without styles and scripts must find, per class or magic.
WORDS = {
    "MetricsReport": "metric",
    "ReportDiff": "CompileTime",
    "DebugLog": "cause",
    "TensorsDump": "aten",
    "TensorsReport": "xla::device_data",
    "ValueTrace": "negate",
    "DiffView": "multiply",
    "Comparison": "agree",
    "TimelineShown": "cell",
    "ExploreView": "negate",
    "MinimisedView": "add",
    "NotFiniteView": "aten.log",
    "Programs": "add",
    "Replicas": "first difference",
    "Launched": "rank",
    "Profile": "fusion.1",
    "ProfileDiff": "No step is in both",
    "XlaDump": "jit_f",
    "Strip": "CPU fallback",
    "GraphBreak": "2 graphs",
}


METHODS = {"_repr_html_", "_repr_mimebundle_"}
ABSTRACT = {"Doc", "Showable", "Evidence", "Displayed"}


def showing_classes():
    """Return the names of all classes of the package that say how they are displayed."""
    classes = [
        node
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    found = {
        node.name
        for node in classes
        if METHODS & {p.name for p in node.body if isinstance(p, ast.FunctionDef)}
        or ABSTRACT & {base.id for base in node.bases if isinstance(base, ast.Name)}
    }
    return found - ABSTRACT


def test_no_class_that_shows_itself_is_forgotten():
    assert showing_classes() <= set(WORDS)


@pytest.mark.parametrize("name", WORDS)
def test_an_object_shows_itself_as_text_and_as_static_html(lab, tmp_path, name):
    """With all taken out that GitHub's viewer and an untrusted notebook take out."""
    data, _ = lab.display_formatter.format(example(name, tmp_path))
    if not data:  # it displays itself, the static form first
        data = lab.display_pub.outputs[0]["data"]

    check(data, WORDS[name])


MAGICS = {
    "": "pending op",
    "status": "pending op",
    "help": "%lazy status",
    "graph": "aten.relu",
    "explore": "aten.relu",
    "ir": "aten.relu",
    "hlo": "HloModule",
    "metrics": "metric",
    "live": "f32[2,3]",
    "step": "mark_step()",
    "why": "compiled",
    "graphs": "graph",
    "cache": "executable",
    "eager": "lazy",
    "timeline": "cell",
    "compile": "compil",
    "reuse y": "peek",
    "diff last": "instructions",
    "minimise y len": "instructions",
    "nan y": "finite",
    "replicas steps": "first difference",
    "report page.html": "Wrote",
}
# They show nothing, or a sentence, or start processes.
QUIET = {"on", "off", "drop", "launch"}


def test_each_view_shows_text_and_static_html(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps").mkdir()
    write_record(tmp_path / "steps", "0", [barrier()])
    write_record(tmp_path / "steps", "1", [barrier(), barrier()])
    for line in ("x + 1", "x * 2"):
        lab.run_cell(f"v = {line}\nlazyrt.mark_step()", store_history=True)
    lab.run_cell("y = torch.relu(x + 1).sum()", store_history=True)
    others = VIEWS.keys() - QUIET - {line.split(" ")[0] for line in MAGICS}
    for line, words in {**MAGICS, **dict.fromkeys(others, "")}.items():
        lab.display_pub.outputs.clear()
        assert lab.run_cell(f"%lazy {line}", store_history=True).success
        # The live form, where there is one, comes below its static twin.
        static = [o["data"] for o in lab.display_pub.outputs if WIDGET not in o["data"]]
        assert static, line
        check(static[0], words)


def test_strips_and_values_show_text_and_static_html(lab):
    lab.display_pub.outputs.clear()
    lab.run_cell("y = torch.relu(x + 1).sum()", store_history=True)
    check(lab.display_pub.outputs[-1]["data"], "pending op")
    data, _ = lab.display_formatter.format(lab.user_ns["y"])
    check(data, "tensor(12.")
    graph, _ = lab.display_formatter.format(lab.user_ns["lazyrt"].pending_graph())
    check(graph, "relu")


def check(data, words):
    """Require text, and HTML whose words are there when a viewer has taken out the rest."""
    plain = data.get("text/plain", "")
    assert words in plain
    assert " object at 0x" not in plain
    if "text/html" not in data:
        return
    page = data["text/html"]
    lowered = page.lower()
    assert "<script" not in lowered
    assert "javascript:" not in lowered
    left = Sanitised(page)
    assert words in left.text or left.pictures, left.text[:500]
    assert len("".join(left.text.split())) > 5


@pytest.mark.filterwarnings("ignore:Your element with mimetype")
def test_a_saved_notebook_converts_to_a_page_with_every_view(lab):
    outputs = []
    lab.run_cell("y = torch.relu(x + 1).sum()", store_history=True)
    for line in ("graph", "explore", "metrics"):
        lab.run_cell(f"%lazy {line}", store_history=True)
    outputs = [
        nbformat.v4.new_output("display_data", data=output["data"])
        for output in lab.display_pub.outputs
    ]
    cell = nbformat.v4.new_code_cell("%lazy graph", outputs=outputs, execution_count=1)
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbformat.validate(notebook)

    page, _ = HTMLExporter(template_name="basic").from_notebook_node(notebook)

    assert page.count("data:image/svg+xml;base64,") >= 3
    assert "samples" in page
    assert "pending op" in page
    assert displayed(lab)[0].startswith("3 pending ops")
