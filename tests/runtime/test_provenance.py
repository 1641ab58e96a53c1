from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.frontend import provenance
from tests.harness import DEVICE, cold_start

pytestmark = pytest.mark.not_eager("is about recorded graphs")

HERE = __file__


@pytest.fixture(autouse=True)
def _new_cell():
    lazyrt.begin_cell()


def nodes(*tensors, op=None):
    return [
        node
        for node in lazyrt.pending_graph(*tensors).nodes
        if op is None or str(node.op).startswith(f"aten.{op}")
    ]


def line(function, offset):
    return function.__code__.co_firstlineno + offset


def helper(x):
    return x * 2


def test_an_op_knows_file_line_and_function():
    x = torch.ones(2).to(DEVICE)
    y = helper(x)

    (node,) = nodes(y)
    site = node.provenance.site

    assert (site.file, site.line, site.function) == (HERE, line(helper, 1), "helper")
    assert site.cell is None


def test_the_stack_leads_from_the_outermost_frame_to_the_innermost():
    y = helper(torch.ones(2).to(DEVICE))

    stack = nodes(y)[0].provenance.stack

    assert stack[-1].function == "helper"
    assert stack[-2].function == (
        "test_the_stack_leads_from_the_outermost_frame_to_the_innermost"
    )
    assert stack[-2].line == line(
        test_the_stack_leads_from_the_outermost_frame_to_the_innermost, 1
    )


def test_lines_of_libraries_are_skipped():
    y = nn.functional.gelu(torch.ones(2).to(DEVICE))

    site = nodes(y)[0].provenance.site

    assert site.function == "test_lines_of_libraries_are_skipped"
    assert site.line == line(test_lines_of_libraries_are_skipped, 1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 4)

    def forward(self, x):
        return torch.softmax(self.query(x), -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(self.attention(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x):
        for layer in self.layer:
            x = layer(x)
        return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()

    def forward(self, x):
        return self.encoder(x).sum()


def test_an_op_knows_its_module():
    y = Model().to(DEVICE)(torch.ones(1, 4).to(DEVICE))

    modules = [
        (node.op.name.split(".")[1], node.provenance.module) for node in nodes(y)
    ]

    assert [name for op, name in modules if op == "_softmax"] == [
        "encoder.layer.0.attention",
        "encoder.layer.1.attention",
    ]
    assert {name for op, name in modules if op in {"addmm", "t", "linear"}} == {
        "encoder.layer.0.attention.query",
        "encoder.layer.1.attention.query",
    }
    assert {name for op, name in modules if op == "native_layer_norm"} == {
        "encoder.layer.0.norm",
        "encoder.layer.1.norm",
    }
    assert modules[-1] == ("sum", "Model")


def test_ops_outside_of_modules_have_none():
    y = torch.ones(2).to(DEVICE) * 2

    assert nodes(y)[0].provenance.module == ""


def test_modules_may_be_renamed_and_replaced():
    model = nn.Sequential(nn.ReLU()).to(DEVICE)
    x = torch.ones(2, 2).to(DEVICE)
    model(x)
    model.append(nn.Tanh())

    y = model(x)

    assert [node.provenance.module for node in nodes(y)] == ["0", "1"]


def test_a_backward_op_is_joined_to_its_forward_op():
    model = Model().to(DEVICE)
    loss = model(torch.ones(1, 4).to(DEVICE))
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]

    backward = {
        node.op.name: node.provenance
        for node in nodes(*gradients)
        if node.provenance.backward is not None
    }

    softmax = backward["aten._softmax_backward_data.default"]
    assert softmax.backward.autograd_node == "SoftmaxBackward0"
    assert softmax.backward.forward.site.function == "forward"
    assert softmax.module in {"encoder.layer.0.attention", "encoder.layer.1.attention"}
    assert softmax.module == softmax.backward.forward.module
    assert softmax.site.function == "test_a_backward_op_is_joined_to_its_forward_op"
    assert "aten._softmax_backward_data.default" in backward
    norm = backward["aten.native_layer_norm_backward.default"]
    assert norm.module.endswith(".norm")


def test_forward_ops_have_no_backward_part():
    y = Model().to(DEVICE)(torch.ones(1, 4).to(DEVICE))

    assert all(node.provenance.backward is None for node in nodes(y))


def test_each_layer_of_a_deep_model_keeps_its_own_backward_ops():
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4))
    )
    model.to(DEVICE)
    model(torch.ones(1, 4).to(DEVICE)).sum().backward()

    found = [
        node.provenance.module
        for node in nodes(*(p.grad for p in model.parameters()), op="tanh_backward")
    ]

    assert sorted(found) == ["0.1", "1.1", "2.1", "3.1"]


class Left(nn.Module):
    def forward(self, x):
        return torch.tanh(x * 2).sum()


class Right(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x + 2).exp().sum()


def in_thread(function, *args):
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *args).result()


def modules_of_backward(tensor):
    return {
        node.provenance.module
        for node in nodes(tensor)
        if node.provenance.backward is not None and "backward" in str(node.op)
    }


def test_backward_ops_of_two_threads_are_joined_to_their_own_threads_forward_ops():
    both = Barrier(2)

    def train(model):
        x = torch.ones(3, device=DEVICE, requires_grad=True)
        loss = model(x)
        both.wait()  # autograd counts each thread's ops from zero
        loss.backward()
        return x.grad

    with ThreadPoolExecutor(2) as threads:
        left, right = threads.map(train, (Left(), Right()))

    assert modules_of_backward(left) == {"Left"}
    assert modules_of_backward(right) == {"Right"}


def test_a_backward_that_another_thread_calls_is_joined_to_its_forward_ops():
    def forward(model):
        x = torch.ones(3, device=DEVICE, requires_grad=True)
        return x, model(x)

    x, loss = in_thread(forward, Left())
    in_thread(loss.backward)

    assert modules_of_backward(x.grad) == {"Left"}


def test_recorded_again_from_another_line_an_op_shows_the_new_one_in_a_new_cell():
    x = torch.ones(2).to(DEVICE)
    y = x * 3
    lazyrt.mark_step()
    del y
    lazyrt.begin_cell()
    y = x * 3

    site = nodes(y)[0].provenance.site

    assert site.line == line(
        test_recorded_again_from_another_line_an_op_shows_the_new_one_in_a_new_cell, 6
    )


@pytest.mark.lazy_only("is about recorded graphs")
def test_a_new_cell_costs_no_compile_and_changes_no_fingerprint():
    cold_start()

    def cell():
        lazyrt.begin_cell()
        x = torch.ones(2).to(DEVICE)
        y = (x * 3).exp()
        fingerprint = lazyrt.pending_graph(y).fingerprint
        y.tolist()
        return fingerprint

    assert len({cell() for _ in range(3)}) == 1
    assert lazyrt.counters()["compiles"] == 1


def test_a_new_cell_in_the_middle_of_a_step_loses_nothing():
    x = torch.ones(2).to(DEVICE)
    y = x * 3
    view = y[:1]
    lazyrt.begin_cell()
    view.add_(1)
    z = y + x
    lazyrt.begin_cell()
    w = x * 3

    assert z.tolist() == [5.0, 4.0]
    assert w.tolist() == [3.0, 3.0]
    assert y.tolist() == [4.0, 3.0]


def test_cells_are_named_by_their_execution_count():
    source = "def cell(x):\n    return x * 5\n"
    namespace: dict[str, Any] = {}
    exec(compile(source, "<ipython-input-7-abc>", "exec"), namespace)  # noqa: S102
    provenance.set_cell_namer(
        lambda name: int(name.split("-")[2]) if name.startswith("<ipython") else None
    )
    try:
        y = namespace["cell"](torch.ones(2).to(DEVICE))
        assert nodes(y)[0].provenance.site.cell == 7
        assert "cell 7 line 2" in lazyrt.plan(y)
        assert "cell 7 line 2" in lazyrt.pending_graph(y).to_text()
    finally:
        provenance.set_cell_namer(None)


def function_of(file):
    """Return a function whose code, the same each time, is said to stand in a file."""
    namespace: dict[str, Any] = {}
    source = "def inner(x):\n    return x * 6\n"
    exec(compile(source, str(file), "exec"), namespace)  # noqa: S102
    return namespace["inner"]


@pytest.fixture
def library(tmp_path):
    """A file in a folder whose code is a library's."""
    before = provenance._library_roots
    provenance.add_library(str(tmp_path))
    yield tmp_path / "lib.py"
    provenance._library_roots = before
    provenance.library_files.clear()


def test_code_in_a_library_folder_is_skipped(library):
    y = function_of(library)(torch.ones(2).to(DEVICE))

    assert nodes(y)[0].provenance.site.file == HERE


def test_code_of_the_user_equal_to_a_librarys_is_the_users(library):
    function_of(library)(torch.ones(2).to(DEVICE))
    y = function_of("mine.py")(torch.ones(3).to(DEVICE))

    assert nodes(y)[0].provenance.site.file == "mine.py"


def test_places_are_remembered_within_bounds(monkeypatch):
    monkeypatch.setattr(provenance, "_MAX_PLACES", 3)
    for number in range(8):
        y = function_of(f"{number}.py")(torch.ones(number + 1).to(DEVICE))

        assert nodes(y)[0].provenance.site.file == f"{number}.py"
        assert len(provenance._sites) <= 3
        assert len(provenance.library_files) <= 3


LIBRARY = """
from torch import nn

class Block(nn.Module):
    def forward(self, x):
        y = x * 2
        return helper(y)

def helper(y):
    return y.tanh()
"""


def test_an_op_of_a_librarys_model_knows_the_librarys_line_and_the_users(tmp_path):
    path = str(tmp_path / "site-packages" / "modelling.py")
    library: dict[str, Any] = {"__name__": "modelling"}
    exec(compile(LIBRARY, path, "exec"), library)  # noqa: S102 - our own text
    x = torch.ones(2, device=DEVICE, requires_grad=True)
    outer = nn.Sequential(library["Block"]())

    y = outer(x)
    y.sum().backward()

    mul, tanh = (node.provenance for node in nodes(y)[-2:])
    assert [str(each.library) for each in (mul, tanh)] == [
        *("modelling.py:6", "modelling.py:10")
    ]
    assert mul.site.file == tanh.site.file == HERE
    backward = next(n for n in nodes(x.grad) if n.op.name.startswith("aten.tanh_back"))
    assert backward.provenance.backward.forward.library == tanh.library
    assert nodes(x + 1)[0].provenance.library is None
    assert provenance.module_classes()["0"] == "Block"


def test_a_module_that_joins_later_has_its_name_and_one_made_for_a_call_its_class():
    class Model(nn.Module):
        def forward(self, x):
            for child in self.children():
                x = child(x)
            return nn.ReLU()(x)

    model, x = Model(), torch.ones(2).to(DEVICE)
    assert [node.provenance.module for node in nodes(model(x))] == ["ReLU"]
    lazyrt.begin_cell()
    model.add_module("later", nn.Sequential(nn.Sigmoid()))
    found = [node.provenance.module for node in nodes(model(x), op="sigmoid")]
    assert found == ["later.0"]
