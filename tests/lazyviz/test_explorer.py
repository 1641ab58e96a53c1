"""What a graph view answers, without a browser."""

import re

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.execution import cost_model
from lazyviz.draw.model import Box, DrawGraph, inside, neighbourhood, restrict
from lazyviz.inspection.explorer import Explorer
from lazyviz.inspection.protocol import RequestError
from lazyviz.inspection.subjects import pending_subject, subject_of


@pytest.fixture
def network(clean_runtime):
    lazyrt.begin_cell()  # equal ops of other tests would lend these their lines
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)]).to("lazyrt")
    x = torch.ones(2, 4, device="lazyrt")
    lazyrt.mark_step()
    with torch.no_grad():
        return layers, x, torch.relu(layers(x)).sum()


@pytest.fixture
def explorer(network):
    return Explorer(pending_subject(lazyrt.inspect(network[2])), budget=300)


def ask(explorer, **request):
    return list(explorer.handle(request))


def node_named(explorer, op):
    graph = explorer._inspection.graph
    return next(node.id for node in graph.nodes if node.op.name == op)


def test_the_title_counts_ops_inputs_and_outputs(explorer):
    assert " · 14 ops · 13 inputs · 1 output" in explorer.title


def test_selecting_an_op_tells_its_cost_then_its_value(explorer, network):
    """Cost first, then the value beside the node; only the cone runs."""
    first = next(i for i, b in enumerate(explorer.shown.boxes) if b.label == "addmm")

    cost, value = ask(explorer, kind="select", box=first)

    assert re.search(r"2 ops to run, (about )?[\d.]+ (to [\d.]+ )?m?s", cost["html"])
    with torch.no_grad():
        expected = lazyrt.materialise(network[0][0](network[1]))
    assert f">{expected}</pre>" in value["html"]
    assert value["box"] == first


def test_the_machine_is_timed_once_the_page_is_open_and_not_by_the_first_click(
    explorer,
):
    before = lazyrt.pending_graph().fingerprint, lazyrt.counters()
    cost_model.forget()
    replies = explorer.handle({"kind": "hello"})

    assert next(replies)["kind"] == "ready"
    assert not cost_model.is_calibrated()  # the page has its answer first
    assert list(replies) == []
    assert cost_model.is_calibrated()
    assert (lazyrt.pending_graph().fingerprint, lazyrt.counters()) == before


def test_a_known_value_says_so(explorer):
    node = node_named(explorer, "aten.relu.default")
    ask(explorer, kind="node", node=node)

    cost, _ = ask(explorer, kind="node", node=node)

    assert "known already" in cost["html"]


def test_a_slow_value_is_computed_when_asked(explorer, monkeypatch):
    monkeypatch.setattr("lazyviz.inspection.explorer._ASK_ABOVE_NS", 0)
    node = node_named(explorer, "aten.relu.default")
    before = lazyrt.counters()["peek_executions"]

    (offer,) = ask(explorer, kind="node", node=node)

    assert "Compute this value" in offer["html"]
    assert lazyrt.counters()["peek_executions"] == before
    (value,) = ask(explorer, kind="value", node=node, output=0)
    assert f'data-value="{node}"' in value["html"]


def test_a_page_that_says_hello_gets_an_answer(explorer):
    assert ask(explorer, kind="hello") == [{"kind": "ready", "concurrent": False}]


def test_inputs_show_their_data(explorer):
    index = next(i for i, b in enumerate(explorer.shown.boxes) if b.kind == "parameter")

    (reply,) = ask(explorer, kind="select", box=index)

    assert "float32[" in reply["html"]


def test_the_neighbours_of_an_op_are_buttons(explorer):
    relu = node_named(explorer, "aten.relu.default")
    total = node_named(explorer, "aten.sum.default")

    cost, _ = ask(explorer, kind="node", node=relu)

    assert f'data-kind="node" data-node="{total}"' in cost["html"]


def test_exploring_leaves_step_and_counts_alone(explorer, network):
    before = lazyrt.pending_graph().fingerprint
    counts = {k: lazyrt.counters()[k] for k in ("compiles", "executions", "barriers")}

    for index in range(len(explorer.shown.boxes)):
        ask(explorer, kind="select", box=index)
    ask(explorer, kind="focus", node=node_named(explorer, "aten.relu.default"), hops=2)
    ask(explorer, kind="search", text="addmm")

    assert lazyrt.pending_graph().fingerprint == before
    assert {k: lazyrt.counters()[k] for k in counts} == counts


def test_after_the_step_a_click_says_that_the_value_is_gone(explorer):
    lazyrt.mark_step()

    *_, reply = ask(
        explorer, kind="node", node=node_named(explorer, "aten.relu.default")
    )

    assert 'role="alert"' not in reply["html"]  # looking is never scolded
    assert "has run, and no tensor holds it any more" in reply["html"]
    assert "keep_values = 1 and run" in reply["html"]


def test_a_folded_box_opens_and_the_way_back_is_kept(network):
    explorer = Explorer(pending_subject(lazyrt.inspect(network[2])), budget=8)
    assert len(explorer.shown.boxes) <= 8
    index = next(i for i, b in enumerate(explorer.shown.boxes) if len(b.members) > 1)

    group, _ = ask(explorer, kind="select", box=index)
    opened, said = ask(explorer, kind="alone", box=index)

    assert 'data-kind="alone"' in group["html"]
    assert len(opened["crumbs"]) == 2
    assert f"<h4>{opened['crumbs'][1]}</h4>" in said["html"]
    back, said = ask(explorer, kind="back", level=0)
    assert back["crumbs"] == ["whole graph"]
    assert said["html"] == explorer.overview()


def folded_boxes(explorer):
    boxes = explorer.shown.boxes
    return [index for index, box in enumerate(boxes) if len(box.members) > 1]


def test_a_folded_box_opens_where_it_stands_and_folds_again(network):
    explorer = Explorer(pending_subject(lazyrt.inspect(network[2])), budget=8)
    before = explorer.shown
    index = folded_boxes(explorer)[0]
    box = before.boxes[index]

    opened, told = ask(explorer, kind="open", box=index)

    assert opened["crumbs"] == ["whole graph"]
    boxes = explorer.shown.boxes
    assert boxes[:index] == before.boxes[:index]
    assert boxes[-1] == before.boxes[-1]
    assert len(boxes) > len(before.boxes)
    everything = sorted(node for each in boxes for node in each.members)
    assert everything == sorted(explorer._program.place)
    assert set(box.members) & set(boxes[told["box"]].members)
    seen = [node for k in told["seen"] for node in boxes[k].members]
    assert set(seen) == set(box.members)  # all of it is brought into view
    assert 'data-kind="close" data-level="0"' in told["html"]
    reachable = {end for _, end in explorer.shown.edges}
    assert reachable >= {k for k, each in enumerate(boxes) if k and each.members}

    ask(explorer, kind="close")
    assert explorer.shown == before
    with pytest.raises(RequestError, match="nothing is open"):
        ask(explorer, kind="close")


def test_opening_within_what_is_open_folds_with_it(network):
    explorer = Explorer(pending_subject(lazyrt.inspect(network[2])), budget=4)
    before = explorer.shown
    ask(explorer, kind="open", box=folded_boxes(explorer)[0])
    once = explorer.shown
    ask(explorer, kind="open", box=folded_boxes(explorer)[0])
    assert len(explorer.shown.boxes) > len(once.boxes)

    ask(explorer, kind="close", level=0)

    assert explorer.shown == before


def test_a_folded_box_shows_the_value_of_what_it_gives(network):
    explorer = Explorer(pending_subject(lazyrt.inspect(network[2])), budget=4)
    index = folded_boxes(explorer)[-1]
    before = lazyrt.pending_graph().fingerprint

    *_, told = ask(explorer, kind="select", box=index)

    last = explorer.shown.boxes[index].members[-1]
    assert f'data-value="{last}"' in told["html"]
    assert "<th>gives</th>" in told["html"]
    assert lazyrt.pending_graph().fingerprint == before


def test_the_first_of_two_clicks_on_a_folded_box_computes_nothing(network):
    explorer = Explorer(pending_subject(lazyrt.inspect(network[2])), budget=4)
    index = folded_boxes(explorer)[-1]

    (told,) = ask(explorer, kind="select", box=index, brief=True)

    assert "<th>gives</th>" in told["html"]
    assert "data-value" not in told["html"]
    assert told["then"] == {"kind": "select", "box": index}


def test_before_anything_is_chosen_the_panel_tells_what_the_program_holds(explorer):
    words = explorer.overview()

    assert "6× t, 6× addmm, 1× relu, 1× sum" in words
    assert "see its value. The step stays as it is." in words
    output = node_named(explorer, "aten.sum.default")
    assert f'data-kind="node" data-node="{output}">%{output} network[2] = sum' in words
    assert 'data-kind="input"' in words


def test_focus_shows_what_is_near(explorer):
    relu = node_named(explorer, "aten.relu.default")

    drawing, *_ = ask(explorer, kind="focus", node=relu, hops=1)

    assert drawing["crumbs"] == ["whole graph", "relu ±1"]
    assert sorted(box.label for box in explorer.shown.boxes) == [
        "addmm",
        "network[2] = sum",
        "relu",
    ]


def test_a_node_outside_the_part_is_brought_into_view(explorer):
    ask(explorer, kind="focus", node=node_named(explorer, "aten.relu.default"), hops=1)
    far = explorer._inspection.graph.nodes[0].id

    drawing, *_ = ask(explorer, kind="node", node=far)

    assert drawing["kind"] == "drawing"
    assert any(box.members == (far,) for box in explorer.shown.boxes)


def test_search_looks_at_op_type_module_and_line(explorer):
    """By op, shape, name and line."""
    for text, count in [
        ("addmm", 6),
        ("ADDMM f32[2,4]", 6),
        ("test_explorer.py", 14),
        ("nothing", 0),
        ("", 0),
    ]:
        found, listing = ask(explorer, kind="search", text=text)

        assert found["count"] == count
        assert len(found["boxes"]) == count
        assert listing["kind"] == "panel"


def test_requests_of_no_page_of_ours_are_refused(explorer):
    for request_ in [
        None,
        "select",
        {},
        {"kind": "eval", "code": "1"},
        {"kind": ["select"]},
        {"kind": "select"},
        {"kind": "select", "box": -1},
        {"kind": "select", "box": 10**6},
        {"kind": "select", "box": "0"},
        {"kind": "select", "box": True},
        {"kind": "select", "box": 0.5},
        {"kind": "node", "node": 10**9},
        {"kind": "node", "node": None},
        {"kind": "value", "node": -5},
        {"kind": "open", "box": 0},
        {"kind": "focus", "node": 10**9, "hops": 1},
        {"kind": "back", "level": 3},
        {"kind": "search", "text": 5},
        {"kind": "search", "text": "x" * 1_000},
    ]:
        with pytest.raises(RequestError):
            list(explorer.handle(request_))


def test_wrong_results_and_hops_are_refused(explorer):
    relu = node_named(explorer, "aten.relu.default")

    for request in (
        {"kind": "value", "node": relu, "output": 1},
        {"kind": "focus", "node": relu, "hops": 1_000},
    ):
        with pytest.raises(RequestError):
            list(explorer.handle(request))


PAYLOADS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "</pre></details><script>",
    "javascript:alert(1)",
    "&lt;b&gt;",
    "\x00\x1b[31m\ud800",
]


def test_names_and_searches_render_as_text(network):
    for payload in PAYLOADS:
        inspection = lazyrt.inspect(network[2])
        explorer = Explorer(
            pending_subject(inspection, {inspection.graph.roots[0]: payload})
        )

        shown = [explorer.drawing()]
        last = inspection.graph.nodes[-1].id
        shown += [reply["html"] for reply in ask(explorer, kind="node", node=last)]
        shown += [
            r["html"] for r in ask(explorer, kind="search", text=payload) if "html" in r
        ]

        for html in shown:
            for raw in (
                "<script",
                "<img src=x",
                "<svg onload",
                "' onmouseover",
                "</pre></details><s",
            ):
                assert raw not in html.replace("&#x27; onmouseover", "")


def chain_of(count):
    boxes = tuple(Box(label=f"op{i}", members=(i,)) for i in range(count))
    return DrawGraph(
        boxes=boxes, edges=tuple((i, i + 1) for i in range(count - 1)), nodes=count
    )


def test_a_neighbourhood_grows_by_hops_in_both_directions():
    assert neighbourhood(chain_of(9), [4], 0) == {4}
    assert neighbourhood(chain_of(9), [4], 2) == {2, 3, 4, 5, 6}


def test_a_part_keeps_its_inner_edges():
    part = restrict(chain_of(5), {1, 2, 4})

    assert [box.label for box in part.boxes] == ["op1", "op2", "op4"]
    assert part.edges == ((0, 1),)
    assert part.nodes == 3


def test_the_inside_of_a_box_has_dimmed_neighbours():
    part = inside(chain_of(6), {2, 3})

    assert [box.label for box in part.boxes] == ["op1", "op2", "op3", "op4"]
    assert [box.is_new for box in part.boxes] == [False, True, True, False]


def test_a_click_on_heavy_work_asks_before_it_runs(clean_runtime):
    """Eight products of 4,096 rows, which no count of ops would call slow."""
    large = torch.zeros(4096, 4096).to("lazyrt")
    lazyrt.mark_step()
    chain = large
    for _ in range(8):
        chain = chain @ large
    explorer = Explorer(subject_of(chain, runtime=lazyrt))
    before = dict(lazyrt.counters())
    last = max(k for k, box in enumerate(explorer.shown.boxes) if box.members)

    panels = [r["html"] for r in explorer.handle({"kind": "select", "box": last})]

    assert len(panels) == 1
    assert re.search(r"8 ops to run, (about )?[\d.]+ (to [\d.]+ )?(s|min)", panels[0])
    assert 'data-kind="value"' in panels[0]
    assert dict(lazyrt.counters()) == before


def test_modules_have_their_class_and_ops_the_text_of_their_line(network):
    explorer = Explorer(pending_subject(lazyrt.inspect(network[2])), budget=8)
    node = node_named(explorer, "aten.relu.default")
    ask(explorer, kind="fold", by="module")
    titles = [box.label for box in explorer.shown.boxes if box.kind == "group"]

    *_, told = ask(explorer, kind="node", node=node)
    found, _ = ask(explorer, kind="search", text="linear")

    assert found["count"] > 0
    assert any(title.endswith(": Linear") for title in titles)
    assert "<th>source</th>" in told["html"]
    assert "relu(" in told["html"].split("<th>source</th>")[1][:200]


@pytest.mark.parametrize(
    ("end", "step"),
    [
        ("", ""),
        ("lazyrt.mark_step()", "'last'"),
        ("lazyrt.mark_step(); step = STEP; y.backward(); lazyrt.mark_step()", "step"),
    ],
)
def test_what_autograd_saves_is_no_output_of_the_program(lab, end, step):
    lab.run_cell(
        "w = torch.ones(3, device='lazyrt', requires_grad=True)\ny = (w * 2).exp().sum()\n"
        + end.replace("STEP", "lazyrt.compiled_graphs()[-1].last_step"),
        store_history=True,
    )
    lab.run_cell(f"import lazyviz\nview = lazyviz.explore({step})", store_history=True)
    explorer = lab.user_ns["view"].explorer

    marks = {
        box.op: "saved" in box.marks
        for box in explorer._program.drawing.boxes
        if box.is_root or box.marks
    }

    assert marks.pop("aten.ones.default") is False
    assert marks == {"aten.exp.default": True, "aten.sum.default": False}
    assert "2 outputs" in explorer.title
    words = explorer.overview()
    outputs, saved = words.split("saved for backward")
    assert "y = sum" in outputs
    assert "exp" in saved.split("</td>")[0]
