"""`lazyviz.compare`: the same graph run op by op and optimised, node by node."""

import math
import re

import pytest
import torch
from torch import nn

import lazyrt
import lazyviz
from lazyrt.errors import UsageError
from lazyrt.observe import events
from lazyviz.inspection import numerics
from tests.harness import DEVICE, fresh_runtime, recorded


@pytest.fixture(autouse=True)
def _fresh_runtime():
    with fresh_runtime():
        yield


def stack():
    """A softmax and layer norm stack, whose numbers depend on fusion."""
    torch.manual_seed(3)
    layers = [nn.Linear(64, 64), nn.LayerNorm(64), nn.Softmax(-1)] * 2
    model = nn.Sequential(*layers).to(DEVICE)
    x = (10 * torch.randn(16, 64)).to(DEVICE)
    with torch.no_grad():
        return model(x) * 1e3


def test_each_node_is_compared_and_the_first_over_tolerance_is_marked():
    y = stack()
    eager = lazyrt.node_values(y, mode="eager")
    lazy = lazyrt.node_values(y, mode="lazy")

    found = lazyviz.compare(eager, lazy, rtol=0, atol=0)

    graph = lazyrt.pending_graph(y)
    results = [out for node in graph.nodes for out in node.outputs if out is not None]
    assert len(found.rows) == len(results)
    assert {row.op for row in found.rows} >= {
        "aten._softmax.default",
        "aten.addmm.default",
    }
    first = found.first_over
    assert first is not None
    before = found.rows[: found.rows.index(first)]
    assert all(row.max_abs == row.max_ulp == 0 for row in before)
    assert first.max_abs > 0
    assert first.max_ulp >= 1
    marked = [line for line in found.to_text().splitlines() if line.startswith("→")]
    assert len(marked) == 1
    assert f"%{first.node_id}" in marked[0]
    assert "over tolerance, the first is" in found.summary
    page = found._repr_html_()
    (row_html,) = re.findall(
        r'<tr style="color:var\(--jp-error-color1,#d14d72\).*?</tr>', page
    )
    assert f">%{first.node_id}</td>" in row_html
    assert first.fusion.partition(" ")[0] in marked[0]
    for row in found.rows:
        assert row.fusion in found.to_text()


def test_what_is_no_lazy_tensor_is_refused_in_the_name_of_what_was_called():
    for call in (lazyviz.compare_modes, lazyrt.pending_graph):
        with pytest.raises(UsageError, match=rf"^{call.__name__}\(\) got int 3, which"):
            call(3)  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match=r"^inspect\(3\): the graph of step 3 is not kept"
    ):
        lazyrt.inspect(3)
    with pytest.raises(UsageError, match=r"^node_values\(\) got a tensor on cpu"):
        lazyrt.node_values(torch.ones(2), mode="lazy")


def test_within_the_usual_tolerance_the_runs_agree():
    y = torch.softmax(torch.ones(3, 4).to(DEVICE) * 2, -1)

    found = lazyviz.compare_modes(y)

    assert found.first_over is None
    assert found.summary.startswith("2 values agree; the largest difference is ")


def test_complex_numbers_have_their_tolerance():
    x = torch.randn(4, 8).to(DEVICE)

    found = lazyviz.compare_modes(torch.softmax(x * 3, -1).to(torch.complex64) * 2)

    assert found.rows[-1].type.startswith("c64")
    assert found.first_over is None


def test_numbers_of_a_byte_are_compared():
    x = torch.randn(3, 4).to(DEVICE)
    found = lazyviz.compare_modes(x.to(torch.float8_e4m3fn), rtol=0.1, atol=0.1)

    assert [row.max_ulp for row in found.rows] == [0]
    assert found.first_over is None


def test_what_is_no_run_is_refused():
    with pytest.raises(UsageError, match="got an object of type int, which is no run"):
        lazyviz.compare(1, 2)  # type: ignore[arg-type]


def test_a_fusion_is_named_with_its_ops():
    """The fusion that a difference comes from."""
    x = torch.linspace(-3, 3, 200).to(DEVICE)
    y = torch.tanh(x * 1.7) + torch.exp(x)

    found = lazyviz.compare_modes(y)

    named = [row.fusion for row in found.rows if row.fusion]
    assert named
    assert all("fused_computation" in name and " + " in name for name in named)
    assert any("aten.tanh.default" in name for name in named)


def test_the_difference_is_blamed_on_the_op_and_the_fusion_that_made_it():
    found = lazyviz.compare_modes(stack(), rtol=0, atol=0)

    cause, first = found.cause, found.first_over
    assert cause is not None
    assert first is not None
    assert cause.made_ulp > 0
    assert cause.op.removeprefix("aten.") in cause.fusion
    assert f"made by {cause.fusion}" in found.summary
    # What an op makes no difference to came from its operands, or is not there.
    before = found.rows[: found.rows.index(cause)]
    assert all(row.made_ulp == row.max_ulp == 0 for row in before)
    inherited = [row for row in found.rows if row.max_ulp and not row.made_ulp]
    assert inherited
    assert all(found.rows.index(row) > found.rows.index(cause) for row in inherited)


def test_equal_ops_are_not_blamed_on_one_anothers_fusion():
    x = torch.linspace(-3, 3, 64).reshape(8, 8).to(DEVICE)
    one = torch.exp(x * 1.5)
    two = torch.exp(one @ one) + 1

    found = lazyviz.compare_modes(two)

    exps = [row for row in found.rows if row.op == "aten.exp.default"]
    assert len(exps) == 2
    assert "aten.mul.Tensor" in exps[0].fusion
    assert exps[1].fusion != exps[0].fusion  # by their names they would be one


def test_comparing_leaves_the_step_as_it_was():
    """No observer effect."""
    y = stack()
    graph = lazyrt.pending_graph()
    before = lazyrt.counters()

    lazyviz.compare_modes(y)

    assert lazyrt.is_pending(y)
    assert lazyrt.pending_graph().fingerprint == graph.fingerprint
    used = lazyrt.counters() - before
    assert used["compiles"] == used["executions"] == used["barriers"] == 0
    with recorded(events.GraphCaptured) as captured:
        lazyrt.mark_step()
    assert captured[0].fingerprint == graph.fingerprint


def test_eager_values_are_those_of_eager_mode():
    x = torch.linspace(0, 4, 50).to(DEVICE)

    def program():
        return torch.softmax(x.sin() * 3, -1)

    lazily = program()
    run = lazyrt.node_values(lazily, mode="eager")
    with lazyrt.eager_mode():
        eagerly = program().cpu()

    (root,) = run.graph.roots
    assert torch.equal(run.values[root], eagerly)


def test_memory_stands_side_by_side_and_is_told_over_time():
    """Eager keeps every value that is still needed, the step only what it returns."""
    x = torch.ones(256, 256).to(DEVICE)
    y = ((x * 2 + 1).exp() - x).sum()

    found = lazyviz.compare_modes(y)

    at_once, at_most = found.peak_bytes
    assert at_once == 3 * 256 * 256 * 4
    assert at_most < at_once
    assert "peak memory: eager 768 KiB, lazy " in found.to_text()
    eager, lazy = found.timelines
    kib = 1024
    assert [size // kib for size in eager.live_bytes()] == [512, 768, 768, 768, 512]
    assert max(eager.live_bytes()) == found.peak_bytes[0]
    lives = {each.name.split()[-1]: (each.born, each.dies) for each in eager.tensors}
    assert lives["%p0"] == (0, 4)
    assert lives["aten.mul.Tensor"] == (0, 1)
    assert lives["aten.sum.default"] == (4, 4)
    at, there = eager.at_peak()
    assert (at, len(there)) == (1, 3)
    assert max(lazy.live_bytes()) < max(eager.live_bytes())
    assert "eager: 768 KiB at 2 of 5: %p0 f32[256,256] 256 KiB" in found.to_text()
    page = found._repr_html_()
    assert page.count("when the largest tensors take memory</summary>") == 2
    assert page.count("data:image/svg+xml") == 2  # which an untrusted notebook keeps
    assert eager.to_svg().count("<rect ") == len(eager.tensors)
    assert lazy.to_svg().count("<rect ") == len(lazy.tensors)


def test_a_schedule_gives_lifetimes_through_tuples_and_bitcasts():
    hlo = """HloModule m, is_scheduled=true

ENTRY %main (p: f32[4]) -> (f32[4], f32[2,2]) {
  %p = f32[4]{0} parameter(0)
  %a = f32[4]{0} exponential(%p), metadata={op_name="jit(f)/lazyrt_graph/aten.exp"}
  %b = f32[2,2]{1,0} bitcast(%a)
  %c = f32[4]{0} negate(%p)
  %d = f32[2,2]{1,0} add(%b, %b)
  ROOT %t = (f32[4]{0}, f32[2,2]{1,0}) tuple(%c, %d)
}
"""

    found = numerics.of_hlo(hlo)

    assert [(e.name, e.nbytes, e.born, e.dies) for e in found.tensors] == [
        ("p", 16, 0, 5),
        ("a aten.exp", 16, 1, 4),
        ("c", 16, 3, 5),
        ("d", 16, 4, 5),
    ]
    assert found.live_bytes() == [16, 32, 32, 48, 64, 48]


def test_runs_of_different_graphs_are_refused():
    x = torch.ones(3).to(DEVICE)
    eager = lazyrt.node_values(x + 1, mode="eager")
    lazy = lazyrt.node_values(x * 2, mode="lazy")

    with pytest.raises(UsageError, match="runs of two graphs"):
        lazyviz.compare(eager, lazy)


def test_tensors_that_are_computed_have_no_nodes_to_compare():
    with pytest.raises(UsageError, match="all computed"):
        lazyrt.node_values(torch.ones(2).to(DEVICE), mode="eager")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (1.0, 1.0, 0),
        (1.0, math.nextafter(1.0, 2), 1),
        (0.0, -0.0, 0),
        (5e-324, -5e-324, 2),
        (math.nan, math.nan, 0),
        (math.nan, 1.0, math.inf),
    ],
)
def test_ulps_count_the_numbers_between_two(a, b, expected):
    one, other = (torch.tensor([n], dtype=torch.float64) for n in (a, b))

    assert numerics._max_ulp(one, other) == expected


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2]
)
def test_neighbours_are_one_ulp_apart(dtype):
    a = torch.tensor([1.0, -2.0], dtype=dtype)
    step = torch.finfo(dtype).eps

    assert numerics._max_ulp(a, (a.double() * (1 + step)).to(dtype)) == 1


def test_differences_of_infinities_integers_and_nothing():
    inf = torch.tensor([math.inf, 1.0])

    assert numerics._max_abs(inf, inf) == 0
    assert numerics._max_abs(torch.tensor([1, 5]), torch.tensor([1, 2])) == 3
    assert numerics._max_abs(torch.ones(0), torch.ones(0)) == 0
    assert numerics._max_abs(inf, torch.tensor([math.nan, 1.0])) == math.inf
