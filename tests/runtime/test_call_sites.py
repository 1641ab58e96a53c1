"""A step from another call site, or from another cell, is recorded from what is known of its ops."""

import gc
import sys
import threading
from collections import OrderedDict
from typing import Any

import jax.numpy as jnp
import pytest
import torch
from torch import nn
from torch.nn.functional import dropout

import lazyrt
from lazyrt.errors import OutOfMemoryError
from lazyrt.execution import executor
from lazyrt.frontend import infer, provenance, record
from lazyrt.ir import live, node
from tests.harness import DEVICE

pytestmark = [
    pytest.mark.lazy_only("is about recorded steps"),
    pytest.mark.usefixtures("cold"),
]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        heads = self.inner(x).view(3, 2, 2, 2).transpose(1, 2)
        weights = dropout((heads @ heads.mT / 2).softmax(-1), 0.1)
        return self.norm(x + (weights @ heads).transpose(1, 2).reshape(x.shape))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Training:
    def __init__(self):
        torch.manual_seed(0)
        self.net = Net().to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.1)
        self.x = torch.randn(3, 2, 4).to(DEVICE)
        lazyrt.mark_step()

    def step(self):
        self.optimizer.zero_grad()
        with lazyrt.scope("loss"):
            loss = self.net(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss


@pytest.fixture
def training():
    """A small transformer's training, two steps of which have run from one line."""
    with lazyrt.config.scoped(barrier_after_optimizer=False):
        training = Training()
        for _ in range(2):
            training.step()
            lazyrt.mark_step()
        yield training


def count(monkeypatch, module, name):
    """Return the list to which each call of a function is added."""
    calls = []
    function = getattr(module, name)

    def counted(*args, **keywords):
        calls.append(name)
        return function(*args, **keywords)

    monkeypatch.setattr(module, name, counted)
    return calls


def origins(graph):
    return [each.provenance for each in graph.nodes]


def shown(origin):
    """Return a provenance without the numbers that autograd gives anew in each step."""
    place = origin.stack, origin.site, origin.module, origin.scope, origin.step
    backward = origin.backward
    if backward is None:
        return place
    forward = backward.forward
    return place, backward.autograd_node, forward and (forward.stack, forward.module)


def by_text(code, names, file="<program>"):
    exec(compile(code, file, "exec"), names)  # noqa: S102


@pytest.mark.parametrize("new_cell", [False, True])
def test_nothing_is_inferred_checked_hashed_or_put_in_order_again(
    training, monkeypatch, new_cell
):
    inferred = count(monkeypatch, infer, "infer")
    specs = count(monkeypatch, record, "spec_of")
    digests = count(monkeypatch, node, "node_digest")
    orders = count(monkeypatch, executor, "canonicalise")
    before = lazyrt.counters()["compiles"]

    if new_cell:
        lazyrt.begin_cell()
    training.step()
    nodes = len(lazyrt.pending_graph().nodes)
    lazyrt.mark_step()

    assert nodes > 100
    assert (inferred, specs, digests, orders) == ([], [], [], [])
    assert lazyrt.counters()["compiles"] == before


def test_the_ops_of_a_linear_layer_look_for_their_line_once(training, monkeypatch):
    walks = count(monkeypatch, provenance, "_walk")
    layer, x = nn.Linear(4, 4).to(DEVICE), torch.ones(2, 3, 4).to(DEVICE)
    for _ in range(2):
        walks.clear()
        y = layer(x)
        lazyrt.begin_cell()
        lazyrt.mark_step()

    assert y.shape == (2, 3, 4)
    assert len(walks) == 1


@pytest.mark.parametrize("new_cell", [False, True])
def test_every_op_has_the_provenance_that_it_has_where_nothing_is_known(
    training, new_cell
):
    found = []

    def record_it():
        training.step()
        graph = lazyrt.pending_graph()
        lazyrt.mark_step()
        return graph

    for fresh in (True, False):
        if fresh:
            record.forget_nodes()
            live.forget_places()
        elif new_cell:
            lazyrt.begin_cell()
        else:
            training.step()
            lazyrt.mark_step()
            live.forget_places()
        found.append(record_it())

    first, second = found
    assert len(first.nodes) > 100
    assert first.fingerprint == second.fingerprint
    assert [shown(each) for each in origins(first)] == [
        shown(each) for each in origins(second)
    ]


def test_values_are_right_from_every_call_site():
    found = []
    for new_cell in (lambda: None, lazyrt.begin_cell):
        training = Training()
        losses = []
        for number in range(4):
            new_cell()
            names = {"training": training}
            by_text("\n" * number + "loss = training.step()", names)
            lazyrt.mark_step()
            loss: Any = names["loss"]
            losses.append(loss.item())
        found.append(losses)

    assert found[0] == found[1]
    assert lazyrt.counters()["compiles"] <= 2


def test_equal_modules_at_another_call_site_have_their_own_names():
    x = torch.ones(1, 2).to(DEVICE)
    names = []
    for kind in (nn.Sequential, lambda layer: nn.Sequential(nn.Identity(), layer)):
        model = kind(nn.Linear(2, 2)).to(DEVICE)
        lazyrt.mark_step()
        made: dict[str, Any] = {"model": model, "x": x}
        by_text("y = model(x)", made, str(kind))
        names.append(lazyrt.pending_graph(made["y"]).nodes[-1].provenance.module)
        lazyrt.mark_step()

    assert names == ["0", "1"]


def test_models_of_other_depths_at_one_line_have_their_own_names():
    found = {}
    for depth in (1, 2, 3):
        layers = [nn.Linear(4, 4) for _ in range(depth)]
        parts = {"layers": nn.Sequential(*layers), "head": nn.Linear(4, 4)}
        net = nn.Sequential(OrderedDict(parts)).to(DEVICE)
        x = torch.ones(2, 4, device=DEVICE)
        lazyrt.mark_step()
        y = net(x)
        nodes = lazyrt.pending_graph(y).nodes
        found[depth] = [
            n.provenance.module for n in nodes if n.op.name == "aten.addmm.default"
        ]
        lazyrt.mark_step()

    assert found == {
        depth: [*(f"layers.{k}" for k in range(depth)), "head"] for depth in (1, 2, 3)
    }


@pytest.mark.parametrize("held", [True, False])
def test_a_walk_that_ends_at_a_cell_finds_what_the_whole_walk_does(monkeypatch, held):
    """The frames of a notebook's kernel stay what they are while a cell runs."""
    if not held:
        monkeypatch.setattr(provenance, "_find_anchor", lambda _: None)
    seen: list[Any] = []

    def note(y):
        frame = live.anchor.frame
        seen.append((frame is not None and frame.f_code.co_filename, origin_of(y)))

    names = {"x": torch.ones(2).to(DEVICE), "note": note}
    code = (
        "def inner(x):\n"
        "    y = x * 2\n"
        "    note(y)\n"
        "    return y\n"
        "y = inner(x)\n"
        "y = inner(y + 1)\n"
        "exec(compile('y = inner(y - 1)', 'part.py', 'exec'))\n"
    )
    # No function of the program calls the cell, as in a kernel.
    cell = compile(code, "cell.py", "exec")
    thread = threading.Thread(target=exec, args=(cell, names))
    thread.start()
    thread.join()

    files = {file for file, _ in seen}
    lines = [[(site.file, site.line) for site in stack] for _, stack in seen]
    assert files == {"cell.py" if held else False}
    assert lines == [
        [("cell.py", 5), ("cell.py", 2)],
        [("cell.py", 6), ("cell.py", 2)],
        [("cell.py", 7), ("part.py", 1), ("cell.py", 2)],
    ]


def doubled(x):
    return x * 2


class Busy(nn.Module):
    """Ops of its own before, between and after calls of others, from several lines and functions."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.linear = inner, nn.Linear(4, 4)

    def forward(self, x):
        y = doubled(self.linear(x) + 1)
        y.register_hook(doubled)
        y = self.inner(y)
        return doubled(y - 3)


@pytest.mark.parametrize("is_cut", [False, True])
def test_walks_that_end_at_marked_calls_find_what_whole_walks_do(monkeypatch, is_cut):
    model = nn.Sequential(Busy(Busy(nn.GELU())), nn.Dropout(0.5), Busy(nn.ReLU())).to(
        DEVICE
    )
    model[0].register_forward_hook(lambda _, args, made: made * args[0])
    x = torch.ones(2, 4).to(DEVICE)
    lazyrt.mark_step()
    codes = []
    walk = provenance._walk

    def walk_whole(start):
        provenance._forget_codes()
        return walk(start)

    def walk_counted(start):
        found = walk(start)
        codes.append(start.f_code)
        return found

    def train():
        model.zero_grad()
        loss = model(x).sum()
        if is_cut:  # frames outlive their step
            lazyrt.mark_step()
        loss.backward()
        found = [shown(each) for each in origins(lazyrt.pending_graph())]
        lazyrt.mark_step()
        lazyrt.begin_cell()
        return found

    train()
    train()
    found = []
    for each in (walk_counted, walk_whole):
        monkeypatch.setattr(provenance, "_walk", each)
        found.append(train())

    assert len(codes) > 20
    assert len(found[0]) > 20
    assert found[0] == found[1]


def test_a_debugger_finds_no_trace_function_in_marked_frames():
    seen = []

    class Looking(nn.Module):
        def forward(self, x):
            y = x + 1
            frame: Any = sys._getframe()
            while frame is not None:
                mark = frame.f_trace
                if mark is not None:
                    seen.append(
                        (frame.f_code.co_name, bool(mark), mark(frame, "line", None))
                    )
                frame = frame.f_back
            return y

    Looking()(torch.ones(2).to(DEVICE))

    assert [name for name, *_ in seen] == ["_call_impl"]
    assert not seen[0][1]
    assert callable(seen[0][2])


def origin_of(tensor):
    return lazyrt.pending_graph(tensor).nodes[-1].provenance.stack


def test_a_frame_with_variables_is_not_held(monkeypatch):
    """Its tensors would live for as long as the step."""
    x = torch.ones(2).to(DEVICE)

    def program():
        own = x + 1
        by_text("y = x * 2", {"x": own})

    program()

    anchor = live.anchor
    assert anchor is not None
    assert anchor.frame is None
    assert len(lazyrt.pending_graph().nodes) == 0


def test_a_number_that_an_in_place_op_refuses_is_refused_from_another_call_site():
    x = torch.ones(2, dtype=torch.float16).to(DEVICE)

    def fill(number):
        x.fill_(number)

    fill(2.0)
    lazyrt.mark_step()
    with pytest.raises(RuntimeError, match="without overflow"):
        by_text("fill(1e10)", {"fill": fill})
    lazyrt.begin_cell()
    with pytest.raises(RuntimeError, match="without overflow"):
        fill(1e10)

    assert x.tolist() == [2.0, 2.0]


def test_a_call_that_only_the_in_place_form_refuses_is_refused_after_the_other_form():
    small, large = torch.ones(1).to(DEVICE), torch.ones(3).to(DEVICE)
    small + large
    lazyrt.mark_step()
    lazyrt.begin_cell()

    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        small.add_(large)


@pytest.mark.usefixtures("rules")
def test_a_rule_given_in_between_lowers_what_another_cell_records():
    x = torch.ones(2).to(DEVICE)
    before = torch.ops.aten.erfc.default(x).tolist()

    @lazyrt.lowers("aten.erfc.default")
    def erfc(ctx, a):
        return jnp.full_like(a, 7)

    lazyrt.begin_cell()

    assert before != [7.0, 7.0]
    assert torch.ops.aten.erfc.default(x).tolist() == [7.0, 7.0]


def test_another_tier_compiles_the_step_of_another_cell_again():
    x = torch.ones(2).to(DEVICE)
    for tier, compiles in (("fast", 1), ("optimised", 2), ("fast", 2)):
        with lazyrt.config.scoped(compile_tier=tier):
            lazyrt.begin_cell()
            y = x.exp() - 3
            lazyrt.mark_step()
        assert lazyrt.counters()["compiles"] == compiles
    assert y.shape == (2,)


def test_an_error_of_the_barrier_names_the_lines_of_its_own_call_site():
    x = torch.ones(4_000).to(DEVICE)
    for number in range(3):
        names = {"x": x}
        by_text("\n" * number + "y = x.exp() + x", names, "sized.py")
        if number == 2:
            with (
                lazyrt.config.scoped(max_memory_bytes=1),
                pytest.raises(OutOfMemoryError, match=r"sized\.py:3"),
            ):
                lazyrt.mark_step()
        lazyrt.mark_step()


def test_what_is_known_of_ops_stays_within_the_limit_of_nodes():
    x = torch.ones(2).to(DEVICE)
    seen = []
    with lazyrt.config.scoped(max_interned_nodes=50):
        for number in range(100):
            lazyrt.begin_cell()
            y = x + torch.full((2,), number, device=DEVICE)
            lazyrt.mark_step()
            seen.append(record.interned_nodes())

    assert max(seen) <= 52
    assert y.tolist() == [100.0, 100.0]


def sites(graph):
    return [each.provenance.site.file for each in graph.nodes]


def test_call_sites_share_nodes_and_each_graph_keeps_its_own_lines():
    x = torch.ones(2).to(DEVICE)
    graphs: dict[str, Any] = {}
    for name in ("one.py", "other.py", "one.py"):
        names = {"x": x}
        by_text("y = x + 1", names, name)
        graphs[name] = lazyrt.pending_graph(names["y"])
        lazyrt.mark_step()

    (one,), (other,) = (each.nodes for each in graphs.values())
    assert one == other
    assert {name: sites(each) for name, each in graphs.items()} == {
        "one.py": ["one.py"],
        "other.py": ["other.py"],
    }
    assert "other.py" in graphs["other.py"].to_text()
    assert "other.py" in graphs["other.py"].lower().as_text("hlo")


def test_a_branch_that_only_another_call_site_has_taken_shows_its_own_line():
    x = torch.ones(2).to(DEVICE)
    found = []
    for name, branches in (("one.py", [True]), ("other.py", [False, True])):
        for is_taken in branches:
            names: dict[str, Any] = {"x": x, "is_taken": is_taken}
            by_text("y = x * 2\nif is_taken: y = y - 3", names, name)
            found.append(sites(lazyrt.pending_graph(names["y"])))
            lazyrt.mark_step()

    assert found == [["one.py"] * 2, ["other.py"], ["other.py"] * 2]


def test_a_compiled_graph_has_the_lines_of_the_call_site_that_ran_it_last():
    x = torch.ones(2).to(DEVICE)
    for name in ("one.py", "other.py"):
        names = {"x": x}
        by_text("y = x.exp()", names, name)
        lazyrt.mark_step()
    record_of = lazyrt.graph_of_step(live.pending.number - 1)

    assert record_of is not None
    assert sites(record_of.graph) == ["one.py"]
    assert sites(record_of.recorded) == ["other.py"]


def test_code_that_recorded_ops_is_not_kept():
    """TorchDynamo keeps compiled graphs with it."""
    names: dict[str, Any] = {"x": torch.ones(2).to(DEVICE)}
    by_text("def f(): return x.exp()\ny = f()", names, "gone.py")

    def files():
        codes = [
            known.code()
            for known in provenance._codes.values()
            if isinstance(known, provenance._Code)
        ]
        return {code.co_filename for code in codes if code is not None}

    assert "gone.py" in files()
    lazyrt.mark_step()
    del names["f"], names["y"]
    gc.collect()
    assert "gone.py" not in files()


@pytest.mark.parametrize("new_cell", [lambda: None, lazyrt.begin_cell])
def test_a_list_with_overlapping_views_is_written_in_order_from_every_call_site(
    new_cell,
):
    found = []
    for device in ("cpu", DEVICE):
        x, y = torch.arange(6.0).to(device), torch.ones(3).to(device)
        torch._foreach_mul_([y, y.clone()], 2.0)
        new_cell()
        torch._foreach_mul_([x[:4], x[2:]], 2.0)
        new_cell()
        torch._foreach_mul_([x[:4], x[2:]], 2.0)
        found.append((x.tolist(), y.tolist()))

    assert found[0] == found[1]
