import pytest

from lazyviz.render.collapse import collapse, fold_earlier, fold_repeats, overview
from lazyviz.render.measure import frame_paths, named_in_frames
from lazyviz.render.model import BACKWARD, Box, DrawGraph, draw_graph, path_text
from lazyviz.render.subgraph import restrict
from tests.lazyviz.ir_builder import chain, perceptron, transformer


def members(drawing):
    return sorted(node for box in drawing.boxes for node in box.members)


def test_a_small_drawing_stays_as_it_is():
    drawing = draw_graph(perceptron())

    assert collapse(drawing) is drawing


@pytest.mark.parametrize("budget", [2, 10, 60, 300])
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
    box = collapse(draw_graph(transformer(12)), 8).boxes[-1]

    assert box.kind == "group"
    assert box.is_root
    assert box.site == "cell 3 line 60"
    assert (
        box.op
        == "192 aten.div.Tensor, 192 aten.mul.Tensor, 192 aten.sqrt.default, 1 other kinds"
    )


def test_forward_and_backward_do_not_mix():
    for box in collapse(draw_graph(transformer(12)), 60).boxes:
        assert BACKWARD not in box.path[1:]


def test_ops_without_structure_fold_into_runs_of_neighbours():
    folded = collapse(draw_graph(chain(5000)))

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


def test_a_budget_of_one_box_is_refused():
    with pytest.raises(ValueError, match="cannot be folded into 1 boxes"):
        collapse(draw_graph(perceptron()), 1)


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
