"""How many instructions of a real model's HLO lead back to op, module and source line."""

import re

import pytest
import torch
from jax.interpreters import mlir
from jaxlib.mlir import ir
from torch import nn

import lazyrt
from lazygraph import parse
from lazygraph.graph import InheritedOrigin
from lazygraph.read.hlo import modules
from lazyrt import config
from lazyrt.execution.executables import DumpForm, text_of
from tests.harness import DEVICE, cold_start

# Inputs come from no op, and literals and tuples have no metadata in XLA.
_NO_OPS = {"parameter", "constant", "tuple", "get-tuple-element"}


class Model(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 50)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)))


@pytest.fixture(autouse=True)
def _whole():
    """The dump of a step that shares layers is of another program, a whole one."""
    with config.scoped(share_layers=False):
        yield


def trained(dropout):
    """Return the graph of a step: forward, backward and update."""
    cold_start()
    torch.manual_seed(0)
    model = Model(dropout).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randint(0, 50, (2, 8)).to(DEVICE)
    with lazyrt.step():
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        optimizer.step()
    (graph,) = lazyrt.compiled_graphs()
    return graph


def instructions(graph, form):
    """Return (place, instruction, origin) of each instruction of a dump that computes."""
    (module,) = modules(text_of(graph, form))
    found = [
        (computation, each)
        for computation in module.computations.values()
        for each in computation.instructions
    ]
    attrs = " ".join(each.attrs for _, each in found if each.op == "fusion") + ","
    for computation, each in found:
        place = "elsewhere"
        if computation.name == module.entry:
            place = "entry"
        elif f"calls=%{computation.name}," in attrs.replace(" ", ","):
            place = "fusion"
        if each.op not in _NO_OPS:
            yield place, each, module.origin(each.metadata)


def share(origins, *, scope=False):
    """Return the share of origins with op and line, and with a module path if asked."""
    known = [
        bool(o.op_name.startswith("aten.") and o.site and (o.scope or not scope))
        for o in origins
    ]
    assert len(known) > 100
    return sum(known) / len(known)


def placed(text, *, written_by_xla=False):
    """Return the share of instructions with a place, the tuples of results left out.

    With `written_by_xla`, a place that the dump gave it as a neighbour's does not count.
    """
    rows = re.findall(r"^ +(?:ROOT )?%?[\w.\-]+ = .*$", text, re.MULTILINE)
    rows = [row for row in rows if " tuple(" not in row]
    known = [
        'op_name="' in row and not (written_by_xla and 'op_type="inherited"' in row)
        for row in rows
    ]
    assert len(known) > 1_000
    return sum(known) / len(known)


@pytest.mark.slow
def test_every_instruction_of_every_dump_has_a_place_also_where_xla_gives_none():
    """Copies, literals, random bits, inputs of fusions; fused ops as a set."""
    for dropout, least in ((0.0, 0.5), (0.1, 0.4)):
        graph = trained(dropout)
        before, after = (text_of(graph, form) for form in ("hlo_before", "hlo_after"))

        assert placed(before) == 1
        assert 'source_file="-"' not in before + after
        assert placed(after) > 0.999  # a literal that is a result has nothing near it
        assert least < placed(after, written_by_xla=True) < 0.9
        (module,) = modules(after)
        entry = module.computations[module.entry]
        copies = [
            (row, entry.row(row.operands[0]))
            for row in entry.instructions
            if row.op == "copy"
        ]
        inputs = [(row, of) for row, of in copies if of.op == "parameter"]
        assert len(inputs) >= 15
        for row, of in inputs:
            assert module.origin(row.metadata) == module.origin(of.metadata)
            assert isinstance(module.origin(row.metadata), InheritedOrigin)
            assert module.origin(row.metadata).op_name.startswith("model.")


@pytest.mark.lazy_only("is about executables of steps")
def test_what_the_functions_of_a_dump_hold_leads_back_too():
    """Bodies of ops, functions that jax makes within them, and inputs of reductions."""
    cold_start()
    pool, bias = nn.MaxPool2d(2), torch.zeros(3, 3).to(DEVICE)
    x = torch.randn(1, 1, 6, 6).to(DEVICE)
    with lazyrt.step():
        y = torch.softmax(pool(x) + bias, -1).cumsum(-1) + torch.where(x > 0, x, -x).sum()  # fmt: skip
    (graph,) = lazyrt.compiled_graphs()
    stablehlo, before, after = (
        text_of(graph, form) for form in ("stablehlo", "hlo_before", "hlo_after")
    )

    assert 'loc("-"' not in stablehlo
    with mlir.make_ir_context():
        stack = [ir.Module.parse(stablehlo).operation]
        unnamed = []
        for operation in stack:
            if 'loc("-"' in str(operation.location):
                unnamed.append(operation.name)
            stack += [
                each.operation
                for region in operation.regions
                for block in region.blocks
                for each in block.operations
            ]
    assert len(stack) > 40
    assert unnamed == ["builtin.module", "func.func", "func.return"]  # those of `main`
    assert parse(stablehlo).outputs
    for text in (before, after):
        (found,) = modules(text)
        reducers = [c for name, c in found.computations.items() if name != found.entry]
        rows = [row for c in reducers for row in c.instructions if row.op != "tuple"]
        assert len(rows) > 20
        origins = [found.origin(row.metadata) for row in rows]
        assert [r for r, o in zip(rows, origins, strict=True) if not o.op_name] == []
    assert y.shape == (1, 1, 3, 3)


@pytest.mark.slow
def test_optimised_instructions_lead_back_to_op_and_line():
    found = list(instructions(trained(0.0), "hlo_after"))
    # Copies of inputs have the input's name, which has no op.
    entry = [o for place, each, o in found if place == "entry" and each.op != "copy"]
    fused = [o for place, _, o in found if place == "fusion"]

    assert share(entry) >= 0.99
    assert share(fused) >= 0.98
    # The loss and the optimizer belong to no module.
    assert share(entry, scope=True) >= 0.75
    assert share(fused, scope=True) >= 0.9
    assert "test_metadata_survival.py:" in entry[-1].site
    scopes = {o.scope for o in (*entry, *fused)}
    for path in (
        "embed",
        "encoder.layers.0.self_attn",
        "encoder.layers.1.norm2",
        "head",
    ):
        assert path in scopes


@pytest.mark.slow
def test_random_bits_that_xla_expands_have_the_origin_of_the_op_that_draws():
    graph = trained(0.1)
    found = instructions(graph, "hlo_after")
    within = [(each.op, o) for place, each, o in found if place == "fusion"]
    assert share([o for _, o in within]) >= 0.99
    drawn = [o for op, o in within if op == "xor" and isinstance(o, InheritedOrigin)]
    assert len(drawn) > 100
    assert {o.op_name for o in drawn} == {"aten.native_dropout.default"}
    assert all("encoder.layers." in o.scope for o in drawn)


@pytest.mark.slow
def test_the_calls_of_the_dump_before_optimisation_lead_back_too():
    found = list(instructions(trained(0.0), "hlo_before"))
    calls = [o for _, each, o in found if each.op == "call" and "aten" in each.attrs]

    assert share(calls) >= 0.99


@pytest.mark.lazy_only("is about executables of steps")
def test_inputs_have_the_users_names_in_every_dump_and_the_key_has_none():
    """Parameters, optimizer state and packed numbers, and no compile for a name."""
    cold_start()
    net = nn.Linear(4, 2).to(DEVICE)
    other = nn.Linear(4, 2).to(DEVICE)
    batch = torch.ones(3, 4).to(DEVICE)

    def step(module, optimizer, x):
        with lazyrt.step():
            optimizer.zero_grad()
            module(x).sum().backward()
            optimizer.step()

    adam = torch.optim.Adam(net.parameters(), lr=0.1)
    for _ in range(2):
        step(net, adam, batch)
    compiled = lazyrt.compiled_graphs()
    named = {
        "net.weight", "net.bias", "x", "net.weight.exp_avg",
        "net.weight.exp_avg_sq", "lifted floats",
    }  # fmt: skip
    early: tuple[DumpForm, ...] = ("ir", "stablehlo")
    for form in early:
        graph = parse(text_of(compiled[0], form))
        shown = {graph.origin(k).op_name: graph.types[k] for k in graph.numbers}
        assert named - {"lifted floats"} <= set(shown), form
        types = [shown[name] for name in ("net.weight", "net.bias", "x")]
        assert types == ["f32[2,4]", "f32[2]", "f32[3,4]"], form
    for form in ("hlo_before", "hlo_after"):
        (module,) = modules(text_of(compiled[0], form))
        entry = module.computations[module.entry].instructions
        found = {
            module.origin(each.metadata).op_name
            for each in entry
            if each.op == "parameter"
        }
        assert named <= found, form
        assert not any(name.startswith("args") for name in found), form
    stablehlo = text_of(compiled[0], "stablehlo")
    graph = parse(stablehlo)
    assert named <= {graph.origin(node).op_name for node in graph.inputs}

    again = torch.optim.Adam(other.parameters(), lr=0.1)
    for _ in range(2):
        step(other, again, batch)

    assert len(lazyrt.compiled_graphs()) == len(compiled) == 1


@pytest.mark.lazy_only("is about executables of steps")
def test_what_an_ops_function_holds_names_its_callers_before_optimisation():
    """Op, module and line of each instruction, a shared function's as a set."""
    cold_start()
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).to(DEVICE)
    with lazyrt.step():
        loss = (net(torch.ones(3, 4).to(DEVICE)) * 0.5).sum()
        loss.backward()
    (graph,) = lazyrt.compiled_graphs()
    text = text_of(graph, "hlo_before")
    (module,) = modules(text)
    # XLA gives what it fills a shape with no metadata: a constant and its broadcast.
    filled_in = {*_NO_OPS, "broadcast"}
    found = [
        (each, module.origin(each.metadata))
        for computation in module.computations.values()
        for each in computation.instructions
        if each.op not in filled_in
    ]

    assert len(found) > 30
    assert all(o.op_name.startswith(("aten.", "lifted ")) for _, o in found)
    assert all(o.site.startswith(__file__) for _, o in found)
    sets = {
        frozenset(each.split(";")) for each in re.findall(r'op_name="([^"]*)"', text)
    }
    transposed = {"0/aten.t.default", "2/aten.t.default", "2/aten.t.default (backward)"}
    assert transposed in sets
    assert "jax_compat.py" not in text


@pytest.mark.lazy_only("is about pending graphs")
def test_a_graph_of_nothing_has_every_text():
    ready = torch.ones(3).to(DEVICE)
    lazyrt.mark_step()

    computation = lazyrt.pending_graph(ready).lower()

    assert "return\n" in computation.as_text()
    assert "ENTRY" in computation.as_text("hlo_before")
