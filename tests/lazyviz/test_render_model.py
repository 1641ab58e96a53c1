from dataclasses import replace

from lazygraph import from_ir, parse
from lazyrt import Graph
from lazyviz.draw.boxes import columns_of, draw_graph, draw_program
from lazyviz.draw.fold import fold_repeats
from lazyviz.draw.model import BACKWARD
from lazyviz.draw.palette import Amounts
from lazyviz.inspection.programs import HloProgram, IrProgram
from tests.lazyviz.ir_builder import Builder, data, perceptron


def test_a_drawing_has_a_box_for_each_op_and_input():
    drawing = draw_graph(perceptron())

    assert [(box.label, box.detail, box.kind) for box in drawing.boxes] == [
        ("input 1", "f32[6,4]", "parameter"),
        ("t", "f32[4,6]", "op"),
        ("input 0", "f32[8,4]", "parameter"),
        ("mm", "f32[8,6]", "op"),
        ("relu", "f32[8,6]", "op"),
        ("rng 0", "i64[2]", "random"),
        ("bernoulli", "f32[8,6]", "random"),
        ("input 2", "f32[2,6]", "parameter"),
        ("t", "f32[6,2]", "op"),
        ("mm", "f32[8,2]", "op"),
        ("mean", "f32[]", "op"),
        ("float 0", "f64[]", "constant"),
        ("mul", "f32[]", "backward"),
        ("expand", "f32[8,2]", "backward"),
    ]
    assert drawing.edges == (
        *((0, 1), (1, 3), (2, 3), (3, 4), (4, 6), (5, 6), (6, 9), (7, 8), (8, 9)),
        *((9, 10), (10, 12), (11, 12), (12, 13)),
    )
    assert drawing.nodes == 9


def test_a_box_knows_where_its_op_comes_from():
    box = draw_graph(perceptron()).boxes[-1]

    assert box.op == "aten.expand.default"
    assert box.path == (BACKWARD, "fc2")
    assert box.site == "cell 3 line 7"
    assert box.members == (9,)


def test_inputs_lie_in_the_module_that_reads_them_first():
    boxes = draw_graph(perceptron()).boxes

    paths = {box.label: box.path for box in boxes if not box.members}
    assert paths["input 2"] == ("fc2",)
    assert paths["float 0"] == (BACKWARD,)


def test_roots_and_new_ops_are_marked():
    boxes = draw_graph(perceptron(), new={8, 9}).boxes

    assert [box.label for box in boxes if box.is_root] == ["mean", "expand"]
    assert [box.label for box in boxes if box.members and box.is_new] == [
        "mul",
        "expand",
    ]


def test_variables_name_their_boxes():
    graph = perceptron()

    names = {graph.roots[0]: "loss", graph.parameters[0]: "x"}
    boxes = draw_graph(graph, columns=columns_of(graph, names, {})).boxes

    assert [box.label for box in boxes if box.name] == ["x", "loss = mean"]


def test_an_input_that_is_a_root_is_drawn_without_any_op():
    drawing = draw_graph(Graph([data(0, 3)]))

    assert [(box.label, box.is_root) for box in drawing.boxes] == [("input 0", True)]
    assert drawing.nodes == 0


def test_an_operand_that_is_read_twice_has_one_edge():
    b = Builder()
    x = data(0, 3)

    drawing = draw_graph(Graph([b.add("aten.mul.Tensor", (x, x), (3,))]))

    assert drawing.edges == ((0, 1),)


def test_an_empty_graph_is_an_empty_drawing():
    assert draw_graph(Graph([])).boxes == ()


def test_the_columns_of_a_graph_are_drawn_as_the_graph_is():
    b = Builder()
    top = b.add("aten.max.dim", (data(0, 3, 4), 1, False), (3,), (3,), module="head")
    assert top.node is not None
    where = top.node.outputs[1]
    graph = Graph([b.add("aten.neg.default", (where,), (3,)), top])

    whole, columns = draw_graph(graph), draw_program(from_ir(graph))

    assert columns.edges == whole.edges == ((0, 1), (1, 2))
    assert [replace(box, members=()) for box in columns.boxes] == [
        replace(box, members=()) for box in whole.boxes
    ]
    assert [(box.label, box.detail, box.is_root) for box in whole.boxes] == [
        ("input 0", "f32[3,4]", False),
        ("max", "f32[3], f32[3]", True),
        ("neg", "f32[3]", True),
    ]


LAYERS = """\
HloModule layers

ENTRY main {
  w = f32[4,4] parameter(0)
  x = f32[4,4] parameter(1)
  dot.1 = f32[4,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  tanh.1 = f32[4,4] tanh(dot.1)
  dot.2 = f32[4,4] dot(tanh.1, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  tanh.2 = f32[4,4] tanh(dot.2)
  dot.3 = f32[4,4] dot(tanh.2, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  tanh.3 = f32[4,4] tanh(dot.3)
  dot.4 = f32[4,4] dot(tanh.3, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT tanh.4 = f32[4,4] tanh(dot.4)
}
"""


def test_what_repeats_in_hlo_is_drawn_once_whatever_its_instructions_are_called():
    folded = fold_repeats(draw_program(parse(LAYERS), "HLO"))

    assert [(box.op, box.count) for box in folded.boxes if box.members] == [
        ("dot", 4),
        ("tanh", 4),
    ]


def test_a_box_has_the_name_by_which_listings_call_its_op():
    assert draw_graph(perceptron()).boxes[-1].listed == "%9"
    assert draw_program(parse(LAYERS)).boxes[-1].listed == "%tanh.4"


def test_bytes_of_inputs_are_known_in_each_form():
    x = data(0, 8, 4)
    graph = Graph([Builder().add("aten.relu.default", (x,), (8, 4))])

    in_hlo = HloProgram(parse(LAYERS), "hlo").overlay("bytes")
    in_ir = IrProgram(graph).overlay("bytes")

    assert isinstance(in_hlo, Amounts)
    assert isinstance(in_ir, Amounts)
    assert in_hlo.inputs == {"%w": 64, "%x": 64}
    assert (in_ir.inputs, in_ir.nodes) == ({"%p0": 128}, {1: 128})
