"""Which blocks a compile is for, and how long it will take."""

from types import SimpleNamespace
from typing import Any

import pytest

from lazyviz.timing import compile_time
from lazyviz.timing.compile_time import Expectations
from tests.conftest import displayed
from tests.lazyviz import fakes


def run(shell, source):
    shell.display_pub.outputs.clear()
    shell.run_cell(source, store_history=True)
    return displayed(shell)


@pytest.fixture
def net(lab):
    lab.run_cell(
        "from torch import nn\n"
        "net = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)]).to('lazyrt')\n"
        "y = net(x)\nz = y.relu().sum()",
        store_history=True,
    )
    return lab


def test_layers_that_differ_in_their_number_are_one_block(net):
    shown = run(net, "%lazy compile")[0].splitlines()

    assert shown[0].startswith("pending graph · 10 ops · expected compile time: ")
    assert shown[3].split()[:5] == ["modules", "*", "×4", "8", "80"]
    assert shown[3].endswith("cell 4 line 3")
    assert shown[4].split()[:4] == ["cell", "4", "line", "4"]


def test_after_the_compile_its_time_is_shared_out(net):
    run(net, "lazyrt.mark_step()")

    shown = run(net, "%lazy compile")[0]

    assert " · 10 ops · compiled in " in shown
    assert "80 %" in shown
    assert "about: the block's share of the ops, times the compile time" in shown


def test_a_graph_in_memory_is_not_compiled_again(net):
    run(net, "lazyrt.mark_step()")
    run(net, "y = net(x)\nz = y.relu().sum()")

    assert "in memory already: nothing will be compiled" in run(net, "%lazy compile")[0]


def test_a_graph_of_the_same_kinds_of_ops_is_estimated(net):
    run(
        net,
        "with lazyrt.config.scoped(compile_tier='optimised'):\n    lazyrt.mark_step()",
    )
    run(net, "y = net(net(x))")

    assert "expected compile time: about" in run(net, "%lazy compile")[0]
    assert "(from its ops)" in run(net, "%lazy compile")[0]


def test_looking_compiles_nothing(net):
    before = run(net, "print(lazyrt.counters()['compiles'])")

    run(net, "%lazy compile")

    assert run(net, "print(lazyrt.counters()['compiles'])") == before


def test_a_step_that_is_not_known_is_refused(net, capsys):
    run(net, "%lazy compile 987654")
    run(net, "%lazy compile soon")

    errors = capsys.readouterr().err
    assert "there is no graph of step 987654" in errors
    assert "name 'soon' is not defined" in errors


def test_numbers_within_a_name_stay():
    ops = [("fc1", False, None), ("fc2", False, None), ("h.10.fc1", True, None)]

    found = compile_time.blocks(ops)

    assert [b.name for b in found] == ["fc1", "fc2", "h.*.fc1 (backward)"]


def test_many_blocks_are_cut_and_counted():
    nodes = [
        SimpleNamespace(
            provenance=SimpleNamespace(module=f"m{i}", backward=None, site=None)
        )
        for i in range(40)
    ]
    runtime: Any = SimpleNamespace(
        compiled_graphs=list, cached_executables=lambda limit=None: []
    )
    graph = SimpleNamespace(nodes=nodes, fingerprint="ab")
    expectations = Expectations()
    expectations.add(fakes.compiled(fingerprint="ab", duration_ns=4_000_000_000))

    shown = compile_time.of_pending(runtime, graph, expectations).to_text()

    assert "expected compile time: about 4.0 s (as before)" in shown
    assert "... and 25 smaller blocks" in shown
