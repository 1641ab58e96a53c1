import importlib.util
import itertools
import random
import stat

import pytest

from lazyviz.draw.boxes import draw_graph
from lazyviz.draw.fold import collapse
from lazyviz.draw.layout import engines, lay_out, place
from lazyviz.draw.model import Box, DrawGraph, box_size
from tests.lazyviz.ir_builder import perceptron, transformer

ENGINES = [
    pytest.param("dot", marks=pytest.mark.graphviz),
    "pygraphviz",
    "layered",
]


@pytest.fixture
def no_graphviz(monkeypatch, tmp_path):
    """A machine with neither `dot` nor pygraphviz."""
    monkeypatch.setenv("PATH", str(tmp_path))
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "pygraphviz" else find_spec(name),
    )
    return tmp_path


@pytest.fixture
def fake_dot(no_graphviz):
    """Put a `dot` on the machine that runs a shell script."""

    def install(script):
        path = no_graphviz / "dot"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return install


def overlaps(sizes, centres):
    boxes = [
        (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        for (w, h), (x, y) in zip(sizes, centres, strict=True)
    ]
    return [
        (a, b)
        for a, b in itertools.combinations(boxes, 2)
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]


def need(engine):
    if engine not in engines():
        pytest.skip(f"{engine} is not installed")


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_places_boxes_apart_and_inside(engine):
    need(engine)
    drawing = collapse(draw_graph(transformer(4)), 60)

    found = lay_out(drawing, engine)

    sizes = [box_size(box) for box in drawing.boxes]
    assert found.engine == engine
    assert found.notes == ()
    assert len(found.routes) == len(drawing.edges)
    assert not overlaps(sizes, found.centres)
    assert all(
        0 <= x <= found.width and 0 <= y <= found.height for x, y in found.centres
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_lets_data_flow_downwards_to_the_right_box(engine):
    need(engine)
    drawing = draw_graph(perceptron())

    found = lay_out(drawing, engine)

    for (start, end), route in zip(drawing.edges, found.routes, strict=True):
        assert found.centres[start][1] < found.centres[end][1]
        (x, y), (width, height) = found.centres[end], box_size(drawing.boxes[end])
        assert abs(route[-1][0] - x) <= width / 2 + 1
        assert abs(route[-1][1] - y) <= height / 2 + 1
        assert len(route) % 3 == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_takes_an_empty_drawing(engine):
    need(engine)

    assert lay_out(DrawGraph(boxes=(), edges=()), engine).centres == ()


@pytest.mark.graphviz
def test_modules_get_frames():
    found = lay_out(draw_graph(perceptron()), "dot")

    assert [frame.title for frame in found.frames] == ["fc1", "fc2"]


def test_the_layered_layout_is_always_there(no_graphviz):
    """No Graphviz is needed."""
    assert engines() == ("layered",)

    found = lay_out(draw_graph(perceptron()))

    assert found.engine == "layered"
    assert found.notes == ()


def test_an_engine_that_is_missing_is_noted(no_graphviz):
    """Without Graphviz a drawing has a layout of our own."""
    found = lay_out(draw_graph(perceptron()), "dot")

    assert (found.engine, found.notes) == ("layered", ("dot: not installed here",))


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("exec sleep 30", "dot: no layout after 0.3 s"),
        ("echo broken >&2; exit 3", "dot: ended with status 3: broken"),
        ("echo no json", "dot: printed no layout"),
        ("echo '{}'", "dot: printed a layout that does not fit the drawing"),
        ("kill -9 $$", "dot: ended with status -9: no message"),
    ],
)
def test_an_engine_that_fails_gives_way_to_the_next(
    fake_dot, script, note, monkeypatch
):
    fake_dot(f"PATH=/usr/bin:/bin\n{script}")

    found = lay_out(draw_graph(perceptron()), timeout_s=0.3)

    assert (found.engine, found.notes) == ("layered", (note,))


def test_an_engine_that_cannot_be_started_gives_way(fake_dot, no_graphviz):
    fake_dot("")
    (no_graphviz / "dot").write_text("#!/nowhere/sh\n")

    found = lay_out(draw_graph(perceptron()))

    assert found.notes == ("dot: cannot be run: No such file or directory",)


def test_the_environment_chooses_an_engine(monkeypatch):
    monkeypatch.setenv("LAZYVIZ_LAYOUT", "layered")

    assert lay_out(draw_graph(perceptron())).engine == "layered"


def test_an_unknown_engine_in_the_environment_is_noted(monkeypatch, no_graphviz):
    monkeypatch.setenv("LAZYVIZ_LAYOUT", "neato")

    assert lay_out(draw_graph(perceptron())).notes == (
        (
            "LAZYVIZ_LAYOUT: there is no layout engine 'neato'. "
            "The engines are dot, pygraphviz, layered; here are layered."
        ),
    )


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="no layout engine 'neato'"):
        lay_out(draw_graph(perceptron()), "neato")


def test_the_layered_layout_takes_cycles():
    sizes = [(50.0, 30.0)] * 3

    centres, routes = place(sizes, [(0, 1), (1, 2), (2, 0)])

    assert not overlaps(sizes, centres)
    for (start, end), route in zip([(0, 1), (1, 2), (2, 0)], routes, strict=True):
        leaves, arrives = (
            (centres[k][1] - route[e][1]) for k, e in ((start, 0), (end, -1))
        )
        assert abs(leaves) == abs(arrives) == 15  # at the edge of each box
        assert leaves == -arrives


def test_the_layered_layout_keeps_wide_layers_within_bounds():
    boxes = tuple(Box(label=f"input {i}") for i in range(100))
    edges = tuple((i, 100) for i in range(100))
    drawing = DrawGraph(boxes=(*boxes, Box(label="cat")), edges=edges, nodes=1)

    assert lay_out(drawing, "layered").width < 2500


@pytest.mark.parametrize("seed", range(10))
def test_the_layered_layout_never_overlaps_boxes_of_random_graphs(seed):
    random_ = random.Random(seed)  # noqa: S311
    count = random_.randint(1, 120)
    sizes = [
        (random_.uniform(40, 200), random_.choice([25.0, 38.0])) for _ in range(count)
    ]
    pairs = [random_.sample(range(count), 2) for _ in range(2 * count) if count > 1]
    edges = sorted({(min(pair), max(pair)) for pair in pairs})

    centres, routes = place(sizes, edges)

    assert not overlaps(sizes, centres)
    assert len(routes) == len(edges)


def test_the_layered_layout_gives_the_same_picture_each_time():
    drawing = collapse(draw_graph(transformer(4)), 60)

    assert lay_out(drawing, "layered") == lay_out(drawing, "layered")
