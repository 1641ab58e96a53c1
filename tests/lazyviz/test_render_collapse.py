from dataclasses import replace

import pytest

from lazyviz.draw.boxes import draw_graph
from lazyviz.draw.fold import collapse, fold_earlier, fold_repeats, overview
from lazyviz.draw.model import (
    BACKWARD,
    Box,
    DrawGraph,
    frame_paths,
    named_in_frames,
    path_text,
    restrict,
)
from tests.harness import thinned
from tests.lazyviz.ir_builder import chain, perceptron, transformer


def members(drawing):
    return sorted(node for box in drawing.boxes for node in box.members)


def test_a_small_drawing_stays_as_it_is():
    drawing = draw_graph(perceptron())

    assert collapse(drawing) is drawing


@pytest.mark.parametrize("budget", thinned([60, 2, 10, 300], 4))
@pytest.mark.parametrize("graph", [transformer(12), transformer(30), chain(5000)])
def test_a_large_drawing_fits_the_budget_and_loses_no_node(graph, budget):
    drawing = draw_graph(graph)

    folded = collapse(drawing, budget)

    assert 2 <= len(folded.boxes) <= budget
    assert members(folded) == sorted(node.id for node in graph.nodes)
    assert folded.nodes == len(graph.nodes)
    assert all(
        0 <= start < len(folded.boxes) and 0 <= end < len(folded.boxes) and start != end
        for start, end in folded.edges
    )


def test_folding_is_deterministic():
    first = collapse(draw_graph(transformer(12)), 60)
    second = collapse(draw_graph(transformer(12)), 60)

    assert first == second


def test_modules_that_look_alike_are_drawn_once():
    drawing = draw_graph(transformer(12, lines=1))

    folded = fold_repeats(drawing)

    forward = [box for box in folded.boxes if box.path[:1] == ("encoder",)]
    assert [(box.label, box.count, ".".join(box.path)) for box in forward] == [
        ("input 1", 12, "encoder.0–11.attention"),
        ("t", 12, "encoder.0–11.attention"),
        ("mm", 12, "encoder.0–11.attention"),
        ("gelu", 12, "encoder.0–11.attention"),
        ("add", 12, "encoder.0–11.attention"),
        ("input 2", 12, "encoder.0–11.output"),
        ("t", 12, "encoder.0–11.output"),
        ("mm", 12, "encoder.0–11.output"),
        ("sigmoid", 12, "encoder.0–11.output"),
        ("add", 12, "encoder.0–11.output"),
    ]
    assert members(folded) == members(drawing)


def test_a_training_step_folds_into_modules_and_lines():
    folded = collapse(draw_graph(transformer(12)), 5)

    assert [(box.label, box.detail, box.count) for box in folded.boxes] == [
        ("embed", "1 op, 1 input", 1),
        ("encoder.0–11", "64 ops, 16 inputs", 12),
        ("mean", "f32[]", 1),
        ("backward", "576 ops", 1),
        ("cell 3 line 60", "768 ops", 1),
    ]


def test_a_folded_box_tells_what_it_holds():
    boxes = collapse(draw_graph(transformer(12)), 8).boxes
    (box,) = [box for box in boxes if box.label == "cell 3 line 60"]

    assert box.kind == "group"
    assert box.is_root
    assert box.site == "cell 3 line 60"
    assert (
        box.op
        == "192 aten.div.Tensor, 192 aten.mul.Tensor, 192 aten.sqrt.default, 1 other kind"
    )


def test_forward_and_backward_do_not_mix():
    for box in collapse(draw_graph(transformer(12)), 60).boxes:
        assert BACKWARD not in box.path[1:]


def test_ops_without_structure_fold_into_runs_of_neighbours():
    whole = draw_graph(chain(5000))
    boxes = [replace(box, op=f"{k}") for k, box in enumerate(whole.boxes)]  # no rounds

    folded = collapse(replace(whole, boxes=tuple(boxes)))

    assert len(folded.boxes) == 24
    assert folded.boxes[1].label == "cell 3 line 3, part 2"
    assert folded.edges == tuple((i, i + 1) for i in range(23))


def test_more_modules_than_boxes_fold_into_runs():
    boxes = tuple(
        Box(
            label="add",
            op="aten.add.Tensor",
            detail=f"f32[{i}]",
            path=(f"m{i}",),
            members=(i,),
        )
        for i in range(1000)
    )

    folded = collapse(DrawGraph(boxes=boxes, edges=(), nodes=1000), 10)

    assert len(folded.boxes) == 10
    assert folded.boxes[0].label == "m0 – m99"


def test_ops_of_earlier_cells_fold_into_one_box():
    drawing = draw_graph(perceptron(), new={7, 8, 9})

    folded = fold_earlier(drawing)

    assert [(box.label, box.detail) for box in folded.boxes] == [
        ("earlier cells", "6 ops, 4 inputs"),
        ("mean", "f32[]"),
        ("float 0", "f64[]"),
        ("mul", "f32[]"),
        ("expand", "f32[8,2]"),
    ]
    assert folded.edges == ((0, 1), (1, 3), (2, 3), (3, 4))
    assert not folded.boxes[0].is_new


@pytest.mark.parametrize("new", [None, set(range(2, 10))])
def test_one_or_no_earlier_op_is_drawn_as_it_is(new):
    drawing = draw_graph(perceptron(), new=new)

    assert fold_earlier(drawing) is drawing


def test_a_small_drawing_is_shown_whole_and_a_large_one_by_its_parts():
    small, large = draw_graph(transformer(1)), draw_graph(transformer(12))

    whole = overview(restrict(small, range(40)))
    parts = overview(large)

    assert len(whole.boxes) == 40
    assert len(parts.boxes) <= 24
    assert members(parts) == members(large)


def test_in_the_frame_of_a_module_its_parts_have_short_names():
    folded = overview(draw_graph(transformer(12)))

    named = named_in_frames(folded)

    frames = set(frame_paths(folded))
    assert frames
    for before, after in zip(folded.boxes, named.boxes, strict=True):
        inside = [n for n in range(1, len(before.path)) if before.path[:n] in frames]
        if before.kind == "group" and before.label == path_text(before.path) and inside:
            assert after.label == path_text(before.path[max(inside) :])
        else:
            assert after.label == before.label
    assert [box.label for box in named.boxes] != [box.label for box in folded.boxes]


def stacked(layers, between=("add",)):
    """Layers with a norm and a linear op each, around which something is done."""
    boxes = [Box(label="x", kind="parameter", op="%p0", path=("layers", "0", "norm"))]
    edges: list[tuple[int, int]] = []
    last = 0

    def op(label, path, *sources):
        boxes.append(Box(label=label, op=label, path=path, members=(len(boxes),)))
        edges.extend((source, len(boxes) - 1) for source in sources)
        return len(boxes) - 1

    for layer in range(layers):
        start = last
        for name in ("norm", "linear"):
            last = op(name, ("layers", str(layer), name), last)
        for name in between:
            last = op(
                f"{name}{layer}" if name == "odd" else name, ("Net",), start, last
            )
    return DrawGraph(
        boxes=tuple(boxes), edges=tuple(sorted(edges)), nodes=len(boxes) - 1
    )


def drawn(graph):
    """Return labels with their counts, and edges by label."""
    boxes = graph.boxes
    return (
        [(box.label, box.count) for box in boxes],
        [(boxes[start].label, boxes[end].label) for start, end in graph.edges],
    )


def test_what_lies_between_equal_layers_is_drawn_once_with_them():
    """The additions around residual layers."""
    boxes, edges = drawn(fold_repeats(stacked(12)))

    assert boxes == [("x", 1), ("norm", 12), ("linear", 12), ("add", 12)]
    assert edges == [
        ("x", "norm"),
        ("x", "add"),
        ("norm", "linear"),
        ("linear", "add"),
    ]


def test_layers_with_something_else_between_them_stay_apart():
    graph = stacked(4, between=("odd",))

    assert fold_repeats(graph) is graph
    two = stacked(2)  # one addition between two layers repeats nothing
    assert fold_repeats(two) is two


def test_a_row_of_equal_layers_begins_anew_behind_what_differs():
    graph = stacked(8)
    odd = next(
        i for i, box in enumerate(graph.boxes) if box.path[:2] == ("layers", "4")
    )
    boxes = list(graph.boxes)
    boxes[odd - 1] = replace(boxes[odd - 1], op="mul", label="mul")

    labels, _ = drawn(fold_repeats(replace(graph, boxes=tuple(boxes))))

    assert labels[1:4] == [("norm", 3), ("linear", 3), ("add", 3)]
    assert labels[4:7] == [("norm", 1), ("linear", 1), ("mul", 1)]
    assert labels[7:] == [("norm", 4), ("linear", 4), ("add", 4)]


def test_modules_of_one_kind_with_others_between_them_are_not_one_box():
    """The two norms of a transformer's layer: attention lies between them."""
    path = ("h", "0")
    names = ("ln_1", "attn", "ln_2", "mlp")
    boxes = tuple(
        Box(
            label=name,
            op=name[:2],
            path=(*path, name),
            members=(i,),
        )
        for i, name in enumerate(names)
    )
    graph = DrawGraph(boxes=boxes, edges=((0, 1), (1, 2), (2, 3)), nodes=4)

    assert fold_repeats(graph) is graph


def test_an_overview_opens_what_holds_most_and_has_no_way_back():
    """A line on both sides of a module is two boxes, unless a loop passes it again and again."""

    def line(times):
        boxes = tuple(
            Box(
                label="relu" if i % 2 else "conv",
                op="relu" if i % 2 else f"conv{i}",
                path=("block",) if i % 2 else ("block", f"c{i}"),
                site="net.py:7",
                members=(i,),
            )
            for i in range(2 * times)
        )
        small = tuple(
            Box(label="op", op="op", path=("head",), site="net.py:9", members=(99 + i,))
            for i in range(2)
        )
        edges = tuple((i, i + 1) for i in range(2 * times + 1))
        graph = DrawGraph(boxes=boxes + small, edges=edges, nodes=2 * times + 2)
        return collapse(graph, times + 3)

    few = line(2)
    assert [box.label for box in few.boxes] == ["conv", "relu", "conv", "relu", "head"]
    assert few.edges == ((0, 1), (1, 2), (2, 3), (3, 4))
    many = line(9)
    assert [len(box.members) for box in many.boxes].count(9) == 1
