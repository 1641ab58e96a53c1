import subprocess

import pytest

from lazyrt import Graph
from lazyviz.draw.boxes import draw_graph
from lazyviz.draw.layout import to_dot
from lazyviz.draw.model import Box, DrawGraph
from tests.lazyviz.ir_builder import Builder, data, perceptron

HOSTILE = (
    "<b>x</b>",
    '"]; evil [label="',
    "\\N",
    "a\nb",
    "",
    "–µ×",
    "&lt;",
    "\x00\x07",
)


def linear():
    b = Builder()
    x, w = data(0, 8, 4), data(1, 4, 2)
    y = b.add("aten.mm.default", (x, w), (8, 2), module="fc")
    return draw_graph(Graph([b.add("aten.relu.default", (y,), (8, 2))]))


def test_modules_are_clusters_and_boxes_are_numbered():
    assert to_dot(linear()) == (
        "digraph lazyviz {\n"
        "\tgraph [newrank=true nodesep=0.18 ranksep=0.32]\n"
        '\tnode [fixedsize=true label="" shape=box]\n'
        "\tedge [arrowsize=0.6]\n"
        '\tnode [fontname=monospace fontsize=9 style="rounded,filled"]\n'
        "\tgraph [fontname=monospace fontsize=9]\n"
        "\tsubgraph cluster_0 {\n"
        "\t\tlabel=fc margin=8\n"
        '\t\tcolor="#9aa5b4" labeljust=l style=rounded\n'
        '\t\tn0 [label="input 0\nf32[8,4]" fillcolor="#fdf4e1" height=0.528 width=0.956]\n'
        '\t\tn1 [label="input 1\nf32[4,2]" fillcolor="#fdf4e1" height=0.528 width=0.956]\n'
        '\t\tn2 [label="mm\nf32[8,2]" fillcolor="#edf3fc" height=0.528 width=0.956]\n'
        "\t}\n"
        '\tn3 [label="relu\nf32[8,2]" fillcolor="#edf3fc" height=0.528 penwidth=2'
        " width=0.956]\n"
        "\tn0 -> n2\n"
        "\tn1 -> n2\n"
        "\tn2 -> n3\n"
        "}\n"
    )


def test_source_for_a_layout_has_no_texts():
    source = to_dot(linear(), labels=False)

    assert "relu" not in source
    assert "fc" not in source
    assert "n3 [height=0.528 width=0.956]" in source


@pytest.mark.graphviz
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_stay_texts(text):
    boxes = (
        Box(label=text, detail=text, path=(text, "m"), op=text, members=(1,)),
        Box(label="add", path=(text, "m"), members=(2,)),
        Box(label="add", members=(3,)),
    )
    source = to_dot(DrawGraph(boxes=boxes, edges=((0, 1),), nodes=2))

    answer = subprocess.run(
        ["dot", "-Tplain"], input=source.encode(), capture_output=True, check=True
    ).stdout.decode()

    lines = [line.split(maxsplit=2)[:2] for line in answer.splitlines()]
    assert [line[1] for line in lines if line[0] == "node"] == ["n0", "n1", "n2"]


@pytest.mark.graphviz
def test_graphviz_reads_the_source_of_a_whole_drawing():
    done = subprocess.run(
        ["dot", "-Tsvg"], input=to_dot(draw_graph(perceptron())).encode(),
        capture_output=True, check=True,
    )  # fmt: skip

    assert b"bernoulli" in done.stdout
