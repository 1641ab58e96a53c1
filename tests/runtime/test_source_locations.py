"""Equal ops of steps that begin at other places of the program are nodes with lines of their own."""

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.control.dry_run import dry_run
from lazyrt.frontend import record
from lazyrt.ir import live
from tests.harness import DEVICE

pytestmark = [
    pytest.mark.lazy_only("is about recorded steps"),
    pytest.mark.usefixtures("cold"),
]


def double(x):
    return x * 2


def provenance_of(tensor):
    return lazyrt.pending_graph(tensor).nodes[-1].provenance


def callers_of(tensor):
    return [site.function for site in provenance_of(tensor).stack[-2:]]


def cut(module, inputs, output):
    float(output.detach().sum())


def test_a_function_that_begins_steps_shows_each_of_its_callers_and_is_compiled_once():
    x = torch.ones(2).to(DEVICE)

    def one():
        return double(x)

    def other():
        return double(x)

    lazyrt.reset_counters()
    seen = []
    for call in (one, other, one):
        y = call()
        seen.append(callers_of(y))
        lazyrt.mark_step()

    assert seen == [["one", "double"], ["other", "double"], ["one", "double"]]
    assert lazyrt.counters()["compiles"] == 1


def test_a_second_script_shows_its_own_file():
    x = torch.ones(2).to(DEVICE)
    files = []
    for name in ("first.py", "second.py"):
        names = {"x": x}
        exec(compile("y = x + 1", name, "exec"), names)  # noqa: S102
        files.append(provenance_of(names["y"]).site.file)
        lazyrt.mark_step()

    assert files == ["first.py", "second.py"]


@pytest.mark.parametrize("layer", [0, 1])
def test_the_rest_of_a_cut_step_has_the_modules_that_record_it(layer):
    net = nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU())
    x = torch.ones(2).to(DEVICE)
    modules = []
    for cuts in (False, True):
        handle = net[layer].register_forward_hook(cut) if cuts else None
        y = net(x)
        graph = lazyrt.pending_graph(y)
        modules.append([node.provenance.module for node in graph.nodes])
        if handle is not None:
            handle.remove()
        lazyrt.mark_step()

    assert modules == [["0", "1", "2"], ["0", "1", "2"][layer + 1 :]]


def test_a_derivative_after_a_cut_is_no_node_of_the_forward_call():
    w = torch.ones(2, device=DEVICE, requires_grad=True)
    given = torch.ones(2).to(DEVICE)
    lazyrt.mark_step()

    y = double(w)
    float(y.detach().sum())
    y.backward(given)  # times two, as forward

    assert w.grad is not None
    assert provenance_of(w.grad).backward is not None


def test_a_call_that_is_taken_back_leaves_the_place_to_the_step():
    x = torch.ones(2).to(DEVICE)

    def positive():
        return torch.relu(x)

    def look():
        dry_run(positive)

    look()

    assert "look" not in callers_of(positive())


def test_a_derivative_that_was_looked_at_shows_the_lines_of_the_step():
    linear, x, given = (
        nn.Linear(2, 2).to(DEVICE),
        torch.ones(3, 1, 2),
        torch.ones(3, 1, 2),
    )
    x, given = x.to(DEVICE), given.to(DEVICE)
    numbered = [x + 1, given + 1, linear.weight + 1]

    def derive(x):
        return torch.autograd.grad(linear(x), linear.weight, given)[0]

    def look():
        dry_run(derive, x)

    look()

    nodes = lazyrt.pending_graph(derive(x), *numbered).nodes
    callers = {site.function for node in nodes for site in node.provenance.stack}
    assert "look" not in callers


def test_an_interrupt_while_the_place_is_found_leaves_nothing_numbered(monkeypatch):
    x = torch.ones(2).to(DEVICE)
    drawn = live.generator.offset

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(live, "find_place", interrupted)
        for op in (x.neg, x.exp_, lambda: torch.rand(2, device=DEVICE)):
            with pytest.raises(KeyboardInterrupt):
                op()

    assert live.pending.sizes() == live.Sizes()
    assert live.generator.offset == drawn


def test_nodes_and_tensors_stay_flat_while_a_cut_moves():
    net = nn.Sequential(*[nn.Linear(2, 2) for _ in range(3)]).to(DEVICE)
    x = torch.ones(2).to(DEVICE)
    seen = []
    for number in range(40):
        handle = net[number % 3].register_forward_hook(cut)
        net(x)
        handle.remove()
        lazyrt.mark_step()
        seen.append((record.interned_nodes(), live.count_leaves(), len(lazyrt.live_tensors())))  # fmt: skip

    assert set(seen[6:]) == {seen[-1]}


def test_places_beyond_the_limit_share_their_leaves():
    x = torch.ones(2).to(DEVICE)
    nodes = []
    for number in range(live._MAX_PLACES + 20):
        exec(compile("x + 1", f"{number}.py", "exec"), {"x": x})  # noqa: S102
        lazyrt.mark_step()
        nodes.append(record.interned_nodes())

    assert nodes[-1] == nodes[live._MAX_PLACES] == live._MAX_PLACES + 1


def test_a_loop_looks_for_an_input_again_only_where_another_tensor_stands(monkeypatch):
    searched = []
    search = live._find_leaf

    def noting(position, type_):
        searched.append(position)
        return search(position, type_)

    monkeypatch.setattr(live, "_find_leaf", noting)
    x, y = torch.ones(2).to(DEVICE), torch.ones(3, 1).to(DEVICE)
    found = []
    for one, other in ((x, y), (x, y), (y, x), (y, x), (x, x)):
        searched.clear()
        result = one + other
        lazyrt.mark_step()
        found.append((list(searched), tuple(result.shape)))

    both = (3, 2)
    assert found == [
        ([0, 1], both),
        ([], both),
        ([0, 1], both),
        ([], both),
        ([0], (2,)),
    ]


def test_a_step_of_several_cells_is_the_graph_that_it_is_without_cells():
    """Equal ops of two cells are two nodes, with lines of their own, until the step is used."""
    linear = nn.Linear(4, 4).to(DEVICE)
    found = []
    for begin_cell in (lambda: None, lazyrt.begin_cell):
        linear.zero_grad()
        torch.manual_seed(0)
        x = torch.arange(12.0).reshape(3, 4).to(DEVICE)
        lazyrt.reset_counters()
        a, y, (top, _) = x.relu(), linear(x), x.topk(2)
        view = a.view(4, 3)
        drawn = torch.rand(3, device=DEVICE)
        begin_cell()
        b, z, (again, _) = x.relu(), linear(x), x.topk(2)
        other = x.relu().clone().add_(1.5)
        begin_cell()
        (y * z).sum().backward()
        total = (b + 1) * (a + 1) + (b.view(4, 3) + view).t().sum()
        before = lazyrt.pending_graph()
        view.add_(1)
        graph = lazyrt.pending_graph()
        lazyrt.mark_step()
        gradient = linear.weight.grad
        assert gradient is not None
        tensors = (a, b, y, z, top, again, other, total, drawn, gradient)
        values = [tensor.tolist() for tensor in tensors]
        found.append((before.fingerprint, len(before), graph.fingerprint, values))

    assert found[0] == found[1]
    assert lazyrt.counters()["compiles"] == 0


def test_what_runs_ahead_of_a_step_of_several_cells_runs_for_equal_ops_of_all_of_them():
    x = torch.ones(2).to(DEVICE)
    found = []
    for begin_cell in (lambda: None, lazyrt.begin_cell):
        first = x.exp()
        begin_cell()
        second = x.exp()
        total = first + second
        foretold = lazyrt.reuse_choice(first).reused_fingerprint
        lazyrt.materialise(first, reuse=True)
        rest = lazyrt.pending_graph()
        found.append((foretold, rest.fingerprint, lazyrt.is_pending(second)))
        lazyrt.mark_step()
        del total

    assert found[0] == found[1]
    assert found[0][0] == found[0][1]


def test_an_equal_op_of_another_cell_shows_its_own_line():
    x = torch.ones(2).to(DEVICE)
    first = x + 1
    lazyrt.begin_cell()
    second = x + 1

    lines = [provenance_of(tensor).site.line for tensor in (first, second)]
    assert lines[1] == lines[0] + 2
    assert len(lazyrt.pending_graph()) == 1
