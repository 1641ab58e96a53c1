"""Programs in all their forms, folded, coloured and looked into, without a browser."""

import functools
import math
import re
import sys

import pytest
import torch
from torch import nn

import lazyrt
import lazyviz
from lazygraph import HloError
from lazyrt.observe import events
from lazyviz.draw.fold import fold_by
from lazyviz.draw.model import Box, DrawGraph
from lazyviz.draw.svg import draw
from lazyviz.inspection.explorer import MOST_BOXES, Explorer
from lazyviz.inspection.protocol import RequestError
from lazyviz.inspection.subjects import pending_subject, subject_of
from lazyviz.render.text import python_call
from tests.conftest import displayed
from tests.harness import bytecodes_of

HLO = """HloModule m

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %neg = f32[4]{0} negate(%p), metadata={op_name="enc/<b>neg</b>"}
}

ENTRY %main (x: f32[4], y: f32[4,4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %y = f32[4,4]{1,0} parameter(1)
  %dot = f32[4]{0} dot(%y, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %f = f32[4]{0} fusion(%dot), kind=kLoop, calls=%fused
}
"""


@pytest.fixture
def step(clean_runtime):
    """A training step of a small network, pending."""
    lazyrt.begin_cell()  # equal ops of other tests would lend these their lines
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("lazyrt")
    x = torch.ones(3, 4, device="lazyrt")
    lazyrt.mark_step()
    loss = net(x).sum()
    loss.backward()
    return net, x, loss


@pytest.fixture
def explorer(step):
    return Explorer(subject_of(runtime=lazyrt))


def ask(explorer, **request):
    return list(explorer.handle(request))


def node_named(explorer, op):
    boxes = explorer._program.drawing.boxes
    return next(b.members[0] for b in boxes if b.members and b.op.startswith(op))


def counts():
    now = lazyrt.counters()
    return {k: now[k] for k in ("compiles", "executions", "barriers", "cache_hits")}


# --- forms


def test_a_pending_graph_has_all_forms(explorer):
    forms = [value for value, _ in explorer.controls["form"]]

    assert forms == ["ir", "stablehlo", "hlo", "optimised"]
    for form, first in (("stablehlo", "StableHLO "), ("hlo", "HLO ")):
        *_, drawing, _ = ask(explorer, kind="form", form=form)
        assert drawing["title"].startswith(first)
        assert drawing["controls"]["chosen"]["form"] == form
        assert any(b.label == "step[2] = sum" for b in explorer.shown.boxes)


def test_optimised_hlo_tells_its_cost_and_compiles_only_on_request(explorer):
    before, key = counts(), lazyrt.pending_graph().fingerprint
    compiled: list[events.Event] = []
    with lazyrt.subscribe(compiled.append, events.CompileStarted):
        offer, state = ask(explorer, kind="form", form="optimised")

        assert re.search(r"a copy of \d+ ops for the eye, about ", offer["html"])
        assert 'data-go="true"' in offer["html"]
        assert state["controls"]["chosen"]["form"] == "ir"

        _, drawing, _ = ask(explorer, kind="form", form="optimised", go=True)

    assert drawing["title"].startswith("optimised HLO")
    assert compiled == []
    assert counts() == before
    assert lazyrt.pending_graph().fingerprint == key
    lazyrt.mark_step()
    assert counts()["compiles"] == before["compiles"] + 1


def test_what_a_step_runs_already_needs_no_second_compile(step):
    net, x, _ = step
    lazyrt.mark_step()
    net.zero_grad()
    net(x).sum().backward()
    record = lazyrt.compiled_graphs()[-1]
    view = Explorer(subject_of(record.first_step, runtime=lazyrt))

    busy, drawing, _ = ask(view, kind="form", form="optimised")

    assert "lowering" in busy["html"]
    assert drawing["title"].startswith("optimised HLO")


def test_an_instruction_leads_to_the_ir_it_came_from(explorer):
    ask(explorer, kind="form", form="stablehlo")
    relu = next(b.members[0] for b in explorer.shown.boxes if b.label == "relu")

    (reply,) = ask(explorer, kind="node", node=relu)

    found = re.search(r'data-form="ir" data-node="(\d+)"', reply["html"])
    assert found
    *_, value = ask(explorer, kind="form", form="ir", node=int(found[1]), go=True)
    assert "aten.relu.default" in value["html"]
    assert "data-value" in value["html"]


def test_a_call_opens_to_what_it_calls(explorer):
    ask(explorer, kind="form", form="stablehlo")
    box = next(i for i, b in enumerate(explorer.shown.boxes) if "addmm" in b.label)

    drawing, _ = ask(explorer, kind="open", box=box)

    assert len(drawing["crumbs"]) == 2
    assert "dot_general" in [b.label for b in explorer.shown.boxes]


def test_hlo_text_is_explored_without_values(clean_runtime):
    explorer = Explorer(subject_of(HLO))
    dot = node_named(explorer, "dot")

    (reply,) = ask(explorer, kind="node", node=dot)

    assert explorer.title == "HLO m · 2 instructions · 2 inputs · 1 output"
    assert "No values" in reply["html"]
    with pytest.raises(RequestError, match="no values"):
        ask(explorer, kind="value", node=dot)
    drawing, _ = ask(
        explorer, kind="inside", node=node_named(explorer, "fusion"), call=0
    )
    assert drawing["crumbs"] == ["whole graph", "%fused"]
    assert "<b>neg" not in drawing["svg"]


# --- what can be given


def test_explore_takes_whatever_holds_a_program(step, tmp_path):
    _, _, loss = step
    path = tmp_path / "m.hlo"
    path.write_text(HLO)
    graph = lazyrt.pending_graph(loss)

    views = [
        lazyviz.explore(),
        lazyviz.explore(loss),
        lazyviz.explore([loss]),
        lazyviz.explore(graph),
        lazyviz.explore(graph.lower()),
        lazyviz.explore(HLO),
        lazyviz.explore(path),
        lazyviz.explore(str(path)),
    ]

    assert [view.explorer.controls["chosen"]["form"] for view in views] == [
        "ir", "ir", "ir", "ir", "stablehlo", "hlo", "hlo", "hlo",
    ]  # fmt: skip
    assert views[0].explorer._inspection is not None
    lazyrt.mark_step()
    last = max(lazyrt.compiled_graphs(), key=lambda record: record.last_step)
    shown = lazyviz.explore().to_text()
    assert f"IR of step {last.last_step} ({last.name})" in shown
    assert lazyviz.explore("last").to_text() == shown
    assert lazyviz.explore(last.name).to_text() == shown
    old = lazyviz.explore(graph)
    assert old.explorer._inspection is None
    number = lazyrt.compiled_graphs()[-1].first_step
    assert f"step {number}" in lazyviz.explore(number).to_text()


def test_the_part_of_a_finished_step_that_made_a_loss_is_explored_alone(lab):
    lab.run_cell("model = torch.nn.Linear(3, 2).to('lazyrt')")
    lab.run_cell(
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"
    )
    lab.run_cell("loss = model(torch.ones(4, 3).to('lazyrt')).square().sum()")
    lab.run_cell("loss.backward(); optimizer.step()")
    loss = lab.user_ns["loss"]

    text = lazyviz.explore(loss).to_text()
    held = lazyrt.inspect(loss).holdings

    assert "aten.sum" in text
    assert {each.name for each in held.values()} == {
        "model.weight",
        "model.bias",
        "loss",
    }
    assert not any(each.overwritten_by or each.overwrites for each in held.values())


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (10**6, "no graph of step"),
        (3.5, "holds no graph"),
        ("nowhere.hlo", "cannot be read"),
    ],
)
def test_what_holds_no_program_is_refused(clean_runtime, thing, message):
    with pytest.raises(HloError, match=message):
        lazyviz.explore(thing)


def test_a_module_and_its_input_show_the_graph_of_that_call(step):
    model, x, _ = step
    before = lazyrt.pending_graph().fingerprint, lazyrt.counters()

    explorer = lazyviz.explore(model, x).explorer

    assert (lazyrt.pending_graph().fingerprint, lazyrt.counters()) == before
    labels = {box.label for box in explorer.unfolded.boxes}
    assert {"output = addmm", "relu"} <= labels
    names = {box.name for box in explorer.unfolded.boxes if not box.members}
    assert {"x", "model.0.weight", "model.2.bias"} <= names
    (said,) = ask(explorer, kind="node", node=node_named(explorer, "aten.relu.default"))
    assert "nothing of it has run" in said["html"]
    ask(explorer, kind="form", form="stablehlo")
    assert explorer.title.startswith("StableHLO")
    assert lazyviz.explore(torch.sin, x).explorer.title.startswith("IR graph")


def test_a_module_alone_shows_what_is_pending_of_it(clean_runtime):
    model = torch.nn.Linear(2, 2).to("lazyrt")
    lazyrt.mark_step()
    with pytest.raises(
        HloError, match=r"no parameter.*explore\(module, input\).*nothing of it runs"
    ):
        lazyviz.explore(model)

    model(torch.ones(1, 2, device="lazyrt")).sum().backward()

    explorer = lazyviz.explore(model).explorer
    outputs = {
        box.label.split(" = ")[0] for box in explorer.unfolded.boxes if box.is_root
    }
    assert outputs == {"weight.grad", "bias.grad"}


def test_the_static_twin_needs_no_script_and_the_page_no_other_file(step, tmp_path):
    """One file, offline."""
    view = lazyviz.explore()
    view.save(tmp_path / "view.html", "a <title>")

    page = (tmp_path / "view.html").read_text()
    assert "<details" in view.to_html()
    assert "<script" not in page + view.to_html()
    assert "a &lt;title&gt;" in page
    assert "aten.relu.default" in page
    assert view.to_svg().startswith("<svg")
    assert repr(view) == f"<{view.explorer.title}>"


def test_the_magic_explores_steps_and_texts(lab):
    lab.user_ns["program"] = HLO
    lab.run_cell("%lazy explore program", store_history=True)

    assert "HLO m" in "".join(displayed(lab))
    lab.display_pub.outputs.clear()
    ran = lab.run_cell("%lazy explore 10000", store_history=True)
    assert "no graph of step 10000" in str(ran.error_in_exec)


# --- folding


def layered(count, depth=40):
    """A drawing of many modules, lines and cells."""
    boxes = tuple(
        Box(
            label=f"op{i % 7}",
            op=f"aten.op{i % 7}.default",
            path=("block", str(i // depth), "part"),
            site=f"cell {i % 9} line {i % 501}",
            members=(i,),
        )
        for i in range(count)
    )
    edges = [(i, i + 1) for i in range(count - 1)]
    edges += [(i, min(i + 17, count - 1)) for i in range(0, count - 20, 5)]
    return DrawGraph(boxes=boxes, edges=tuple(sorted(set(edges))), nodes=count)


@pytest.mark.parametrize(
    ("folding", "ops"),
    [
        ("auto", 10_000),
        ("module", 10_000),
        ("cell", 10_000),
        ("line", 2_000),
        ("none", 10_000),
    ],
)
def test_thousands_of_ops_are_never_more_than_300_boxes(folding, ops):
    """A synopsis of any graph."""
    folded = fold_by(layered(ops), folding, MOST_BOXES)

    assert 1 < len(folded.boxes) <= MOST_BOXES
    assert len({m for b in folded.boxes for m in b.members}) == ops


def test_folding_by_line_walks_a_graph_once_for_all_its_lines():
    """Four times the ops take four times the work, not sixteen."""
    small, large = (
        bytecodes_of(functools.partial(fold_by, layered(count), "line", 20))
        for count in (250, 1_000)
    )

    assert large < 6 * small


def test_a_budget_above_300_is_300():
    assert Explorer(subject_of(HLO), budget=10_000)._budget == 300


def test_ops_fold_by_module_cell_and_line(explorer):
    """By scope, cell and line."""
    boxes = {}
    for by in ("line", "cell", "module"):
        ask(explorer, kind="fold", by=by)
        boxes[by] = [b.label for b in explorer.shown.boxes if len(b.members) > 1]

    assert len(boxes["line"]) == 2
    assert all(re.match(r"test_explore\.py:\d+", label) for label in boxes["line"])
    assert boxes["cell"] == ["test_explore.py"]
    assert boxes["module"]
    assert explorer.controls["chosen"]["fold"] == "module"


def test_equal_layers_fold_to_one():
    boxes = tuple(
        Box(
            label=f"op{i % 40}",
            op=f"op{i % 40}",
            path=("block", str(i // 40)),
            members=(i,),
        )
        for i in range(400)
    )
    graph = DrawGraph(
        boxes=boxes, edges=tuple((i, i + 1) for i in range(399)), nodes=400
    )

    layers = fold_by(graph, "module").boxes

    assert ("block.1–9", 9, "40 ops") in [(b.label, b.count, b.detail) for b in layers]


# --- colours


def test_bytes_and_flops_are_summed_and_explained(explorer):
    (drawing,) = ask(explorer, kind="overlay", name="flops")

    addmm = next(b for b in explorer.shown.boxes if b.label == "addmm")
    assert addmm.note == "192 FLOPs"
    assert "FLOPs, counted from shapes" in drawing["legend"]
    assert 'class="u"' in drawing["svg"]  # a bar, for those who see no shades
    ask(explorer, kind="overlay", name="bytes")
    relu = next(b for b in explorer.shown.boxes if b.label == "relu")
    assert relu.note == "96 bytes"


def test_time_is_estimated_and_says_so_until_it_is_measured(explorer):
    before = counts()
    peeks = lazyrt.counters()["peek_executions"]

    drawing, offer = ask(explorer, kind="overlay", name="time")

    assert "estimated from FLOPs and bytes, not measured" in drawing["legend"]
    assert "Measure each op" in offer["html"]
    assert lazyrt.counters()["peek_executions"] == peeks
    _, drawing, listing = ask(explorer, kind="measure", go=True)
    assert "time, measured: each op alone" in drawing["legend"]
    assert "the better of two runs" in listing["html"]
    assert counts() == before


def test_what_is_said_of_a_colour_goes_with_it_and_a_value_stays(explorer):
    """The panel never tells of a colour that is not shown."""
    ask(explorer, kind="overlay", name="time")

    drawing, said = ask(explorer, kind="overlay", name="bytes")

    assert "bytes of results" in drawing["legend"]
    assert said["html"] == explorer.overview()
    ask(explorer, kind="node", node=node_named(explorer, "aten.relu"))
    assert len(ask(explorer, kind="overlay", name="flops")) == 1
    assert len(ask(explorer, kind="overlay", name="")) == 1


def test_nan_shows_computed_values_only_and_ancestors_on_request(clean_runtime):
    x = torch.tensor([1.0, -1.0]).to("lazyrt")
    lazyrt.mark_step()
    bad = torch.log(x) + 1
    explorer = Explorer(subject_of(bad, runtime=lazyrt))
    peeks = lazyrt.counters()["peek_executions"]

    ask(explorer, kind="overlay", name="nan")

    assert {b.label: b.note for b in explorer.shown.boxes} == {
        "x": "finite", "log": "", "bad = add": "",
    }  # fmt: skip
    assert lazyrt.counters()["peek_executions"] == peeks
    *_, found = ask(explorer, kind="check", node=node_named(explorer, "aten.add"))
    assert re.search(r"begin at <button[^>]*>%\d+ log", found["html"])
    assert {b.label: b.note for b in explorer.shown.boxes} == {
        "x": "finite", "log": "1 NaN", "bad = add": "1 NaN",
    }  # fmt: skip
    assert lazyrt.is_pending(bad)


def test_what_the_cpu_computed_is_marked(clean_runtime):
    x = torch.tensor([1.0, 0.0]).to("lazyrt")
    explorer = Explorer(subject_of(torch.nonzero(x) + 1, runtime=lazyrt))

    _, listing = ask(explorer, kind="overlay", name="fallback")

    marked = [b for b in explorer.shown.boxes if b.note == "from the CPU"]
    assert [b.marks for b in marked] == [("from the CPU",)]
    assert "computed on the CPU by aten.nonzero.default" in listing["html"]


@pytest.mark.parametrize("form", ["stablehlo", "hlo"])
def test_lowered_programs_show_what_is_known_of_the_ir_behind_them(clean_runtime, form):
    x = torch.tensor([1.0, -1.0]).to("lazyrt")
    from_cpu = torch.nonzero(x)
    bad = torch.log(x) + from_cpu.sum()
    explorer = Explorer(subject_of(bad, runtime=lazyrt))
    ask(explorer, kind="check", node=node_named(explorer, "aten.add"))
    compiles = lazyrt.counters()["compiles"]

    ask(explorer, kind="form", form=form)
    _, said = ask(explorer, kind="overlay", name="nan")

    notes = {b.label: b.note for b in explorer.shown.boxes}
    assert notes["x"] == "finite"
    assert {note for label, note in notes.items() if "log" in label} == {"1 NaN"}
    assert "of the IR ops behind an instruction" in explorer.shown.legend[0][1]
    assert "Values are those of the IR" in said["html"]
    _, said = ask(explorer, kind="overlay", name="fallback")
    marked = [b.label for b in explorer.shown.boxes if b.note == "from the CPU"]
    assert marked == ["from_cpu"]
    assert "1 input from the CPU" in said["html"]
    assert lazyrt.counters()["compiles"] == compiles


def test_every_shade_of_an_overlay_has_words():
    graph = DrawGraph(boxes=(Box(label="a", members=(1,)),), edges=(), nodes=1)
    from lazyviz.draw.palette import Amounts

    painted = Amounts(title="<b>", nodes={1: 5.0}).paint(graph)

    assert painted.boxes[0].note == "5 bytes"
    assert [words for _, words in painted.legend] == [
        "<b>", "< 1 %", "< 5 %", "< 20 %", "< 50 %", "≥ 50 %", "of the largest, 5 bytes",
    ]  # fmt: skip
    assert "<b>" not in draw(painted, engine="layered").svg


# --- memory


def test_parameters_donations_and_versions_are_marked(step):
    """Roots are bold, with their variables."""
    net, _, _ = step
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.sub_(0.1 * parameter.grad)
    explorer = Explorer(subject_of(runtime=lazyrt))
    drawing = explorer._program.drawing

    weights = [b for b in drawing.boxes if b.name.endswith("weight") and not b.members]
    assert all(b.marks == ("parameter", "donated") for b in weights)
    assert len(weights) == 2
    assert len(drawing.updates) == 4
    for output, taken in drawing.updates:
        assert "in place" in drawing.boxes[output].marks
        assert drawing.boxes[output].name == drawing.boxes[taken].name
    node = drawing.boxes[drawing.updates[0][0]].members[0]
    cost, _ = ask(explorer, kind="node", node=node)
    assert "reusing its memory (donated)" in cost["html"]
    assert "data-u=" in explorer.drawing()


def test_results_of_one_op_have_one_version_each_is_told_once(clean_runtime):
    values, places = torch.ones(3, 4, device="lazyrt").mul_(2).max(dim=1)
    explorer = Explorer(subject_of(values, places, runtime=lazyrt))

    cost, _ = ask(explorer, kind="node", node=node_named(explorer, "aten.max"))

    assert cost["html"].count("of its storage") == 1


def test_views_are_joined_to_what_they_share(clean_runtime):
    """Dashed lines are views; versions stand in the panel."""
    x = torch.ones(4, 4, device="lazyrt")
    lazyrt.mark_step()
    y = x.t() + 1
    drawing = Explorer(subject_of(y, runtime=lazyrt))._program.drawing

    assert [
        (drawing.boxes[a].name, drawing.boxes[b].label) for a, b in drawing.aliases
    ] == [("x", "t")]
    assert 'class="e al"' in draw(drawing, engine="layered").svg


# --- looking


def test_a_part_of_a_large_tensor_is_chosen_and_nothing_else_is_copied(clean_runtime):
    x = torch.arange(4.0 * 300 * 200).reshape(4, 300, 200).to("lazyrt")
    lazyrt.mark_step()
    y = x * 2
    explorer = Explorer(subject_of(y, runtime=lazyrt))
    node = node_named(explorer, "aten.mul")
    moved: list[events.Event] = []
    with lazyrt.subscribe(moved.append, events.TransferFinished):
        (reply,) = ask(explorer, kind="value", node=node, output=0, at=[3, 290, 100])

    assert 'data-axis="0"' in reply["html"]
    assert ":300" in reply["html"]
    corner = float(x.cpu()[3, 290, 100] * 2)
    assert f"{corner:.0f}." in reply["html"]
    window, picture = 10 * 64 * 4, 75 * 66 * 4
    assert sum(e.nbytes for e in moved if hasattr(e, "nbytes")) == window + picture
    assert "0 to 4.8e+05" in reply["html"]


def test_a_plane_of_a_small_tensor_is_chosen(clean_runtime):
    x = torch.arange(24).reshape(2, 3, 4).to("lazyrt")
    lazyrt.mark_step()
    explorer = Explorer(subject_of(x + 0, runtime=lazyrt))
    node = node_named(explorer, "aten.add")

    (reply,) = ask(explorer, kind="value", node=node, at=[1])

    assert "[20, 21, 22, 23]" in reply["html"]
    assert "[ 0,  1,  2,  3]" not in reply["html"]


def test_images_are_shown_as_images(clean_runtime):
    x = torch.rand(2, 3, 16, 24).to("lazyrt")
    lazyrt.mark_step()
    explorer = Explorer(subject_of(x * 1, runtime=lazyrt))

    *_, reply = ask(explorer, kind="node", node=node_named(explorer, "aten.mul"))

    assert 'alt="image of 16 rows and 24 columns"' in reply["html"]


def test_what_is_not_finite_stands_out(clean_runtime):
    x = torch.tensor([1.0, math.nan]).to("lazyrt")
    lazyrt.mark_step()
    explorer = Explorer(subject_of(x * 1, runtime=lazyrt))

    *_, reply = ask(explorer, kind="node", node=node_named(explorer, "aten.mul"))

    assert '<b class="lzn">⚠ 1 NaN</b>' in reply["html"]


def test_an_input_shows_where_it_came_from(explorer):
    (reply,) = ask(explorer, kind="input", name="%p0")

    assert "copied from the host" in reply["html"]
    assert "data-value" in reply["html"]


def test_each_op_is_python_that_runs(step):
    net, _, _ = step
    dropped = nn.functional.dropout(net(torch.ones(3, 4, device="lazyrt")), 0.5)
    picked = torch.where(dropped > 0, dropped, dropped.new_full((), -math.inf)).long()
    nodes = lazyrt.pending_graph().nodes
    assert len(nodes) > 20
    assert lazyrt.is_pending(picked)

    for node in nodes:
        exec(python_call(node), {})  # noqa: S102


def test_search_finds_inputs_by_name(explorer):
    found, listing = ask(explorer, kind="search", text="step[0].0.weight")

    assert found["count"] >= 1
    assert 'data-kind="input"' in listing["html"]


def test_requests_of_no_page_of_ours_are_refused(explorer):
    for request_ in [
        {"kind": "form", "form": "ptx"},
        {"kind": "form"},
        {"kind": "fold", "by": "colour"},
        {"kind": "overlay", "name": "__class__"},
        {"kind": "overlay", "name": None},
        {"kind": "check", "node": -1},
        {"kind": "check", "node": True},
        {"kind": "inside", "node": 10**9, "call": 0},
        {"kind": "input", "name": "%p99"},
        {"kind": "input", "name": ["%p0"]},
        {"kind": "input", "name": "%p0", "at": "0"},
        {"kind": "input", "name": "%p0", "at": [-1]},
        {"kind": "input", "name": "%p0", "at": [0.5]},
        {"kind": "input", "name": "%p0", "at": [0] * 1_000},
    ]:
        with pytest.raises(RequestError):
            list(explorer.handle(request_))


def test_exploring_keeps_no_tensor_alive_and_adds_no_root(step):
    key = lazyrt.pending_graph().fingerprint
    explorer = Explorer(pending_subject(lazyrt.inspect()))
    live = len(lazyrt.live_tensors())

    for name in ("bytes", "flops", "nan", "fallback", "time", ""):
        ask(explorer, kind="overlay", name=name)
    for form in ("stablehlo", "ir"):
        ask(explorer, kind="form", form=form, go=True)
    for number in range(len(explorer.shown.boxes)):
        ask(explorer, kind="select", box=number)

    assert lazyrt.pending_graph().fingerprint == key
    assert len(lazyrt.live_tensors()) == live


def test_without_widgets_the_copy_stays_and_a_line_says_what_is_missing(
    lab, monkeypatch
):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "lazyviz.widgets", raising=False)
    monkeypatch.setattr("lazyviz.shell.displayed.has_page", lambda _: True)
    lab.run_cell("y = x + 1")
    lab.display_pub.outputs.clear()

    assert lab.run_cell("%lazy explore y").success

    copy, note = [output["data"] for output in lab.display_pub.outputs[:2]]
    assert "aten.add" in copy["text/plain"]
    assert "<img " in copy["text/html"]
    assert "Run `pip install ipywidgets anywidget`" in note["text/plain"]


def test_a_model_in_a_tuple_with_its_input_keeps_the_name_of_its_variable(step):
    model = step[0]
    pair = (model, step[1])

    explorer = lazyviz.explore(model, pair[1]).explorer

    names = {box.name for box in explorer.unfolded.boxes if not box.members}
    assert {"model.0.weight", "model.2.bias"} <= names
