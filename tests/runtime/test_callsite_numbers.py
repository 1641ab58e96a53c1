"""What the user's line calls a Python number that varies."""

import pytest
import torch

import lazyrt
from lazyrt.frontend.callsite import number_in
from tests.harness import DEVICE

pytestmark = pytest.mark.usefixtures("cold")


class Slotted:
    __slots__ = ("absent", "scale")

    def __init__(self):
        self.scale = 0.5


class Watched:
    @property
    def scale(self):
        raise AssertionError("somebody's code was run")


SCOPE = {
    "x": torch.ones(2),
    "k": 0.5,
    "i": 3,
    "options": {"lr": 0.1, "beta": (0.9, 0.99), "model": Slotted()},
    "slotted": Slotted(),
    "watched": Watched(),
    "torch": torch,
}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("x * k", "k"),
        ("k - x", "k"),
        ("x *= k", "k"),
        ("x < k", "k"),
        ("x[i]", "i"),
        ("x[i : i + 4, :]", "i"),
        ("x.div(float(k), rounding_mode='floor')", "float(k)"),
        ("torch.add(x, x, alpha=k)", "k"),
        ("x * options['lr']", "options['lr']"),
        ("x * options['beta'][1]", "options['beta'][1]"),
        ("x * options['model'].scale", "options['model'].scale"),
        ("x * slotted.scale", "slotted.scale"),
        ("x.clamp(k, i)", ""),
        ("x * x.mean()", ""),
        ("x * 2", ""),
        ("x * unknown", ""),
        ("x * options['none']", ""),
        ("x * options.get('lr')", ""),
        ("x * slotted.absent", ""),
        ("x * watched.scale", ""),
        ("x * (k +", ""),
        ("", ""),
    ],
)
def test_a_part_without_a_tensor_is_the_number(source, name):
    assert number_in(source, SCOPE) == name


@pytest.mark.lazy_only("is about compiled steps")
def test_numbers_of_several_lines_are_counted_with_their_expressions():
    x = torch.ones(4).to(DEVICE)
    for k in (0.5, 0.25):
        with lazyrt.step():
            y = x * k
            z = y / k

    found = lazyrt.explain()
    assert found is not None
    assert found.top.text.startswith("2 Python numbers in `x * k`, `y / k` at ")
    assert found.top.variable == ""
    del z


@pytest.mark.lazy_only("is about compiled steps")
def test_two_numbers_of_a_line_are_not_told_by_the_name_of_one():
    x = torch.ones(4).to(DEVICE)
    for k in (0.5, 0.25):
        with lazyrt.step():
            y = x * k * (k + 1)

    found = lazyrt.explain()
    assert found is not None
    assert found.top.text.startswith("2 Python numbers, some of them in `x * k`, at ")
    assert found.top.variable == ""
    del y


@pytest.mark.lazy_only("is about live tensors")
def test_asking_for_the_name_keeps_no_tensor_of_the_function_alive():
    x = torch.ones(4).to(DEVICE)

    def step(k):
        with lazyrt.step():
            kept = x * 3.0
            y = kept * k
            del kept
            return y

    step(0.5)
    step(0.25)
    graph = lazyrt.compiled_graphs()[-1]
    assert graph.snapshot is not None
    assert len(graph.snapshot.roots) == 1


@pytest.mark.lazy_only("is about live tensors")
def test_what_a_function_keeps_of_its_locals_is_not_emptied():
    x = torch.ones(4).to(DEVICE)

    def step(scale, name):
        options = locals()
        with lazyrt.step():
            y = x * scale
        return y, options

    for scale in (0.5, 0.25):
        _, options = step(scale, "run")
        assert options["scale"] == scale
        assert options["name"] == "run"
