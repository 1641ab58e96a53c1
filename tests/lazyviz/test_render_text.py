import pytest

from lazyrt import Graph
from lazyviz.doc import Table
from lazyviz.render import text
from lazyviz.render.notes import Barrier, Fallback
from lazyviz.render.strip import Strip, strip_parts
from tests.lazyviz.ir_builder import Builder, data, perceptron

BUSY = Strip(
    pending_ops=1214,
    new_ops=12,
    live_tensors=1,
    compiles=1,
    compile_ns=41_000_000,
    executions=3,
    execute_ns=12_300_000,
    running=1,
    cache_hits=2,
    peeks=1,
    peek_ns=3_000_000,
    transfers=2,
    transfer_ns=120_000,
    fallbacks=(
        Fallback(op="aten.foo.default", site="cell 3 line 2"),
        Fallback(op="aten.bar.default", site="", times=3),
    ),
    barriers=(
        Barrier(cause="read by .item()", site="cell 3 line 7", nodes=214),
        Barrier(cause="mark_step()", site="train.py:41", nodes=21_400, times=100),
        Barrier(cause="end of step", site="", nodes=1),
    ),
    steps=1,
    reasons=("input 2 was f32[8], now it is f32[9]",),
)


def test_a_strip_names_all_that_happened():
    assert BUSY.text() == (
        "compiled 1 in 41 ms · executed 2 in 12 ms, 1 still running · 1 step · 2 cache hits · "
        "1 peek in 3.0 ms · 2 transfers in 120 µs · 4 CPU fallbacks · "
        "1,214 pending ops (+12 here) · 1 live tensor\n"
        "  ran 214 ops here: read by .item() at cell 3 line 7\n"
        "  ran 21,400 ops here in 100 barriers: mark_step() at train.py:41\n"
        "  ran 1 op here: end of step\n"
        "  graph break: aten.foo.default ran on the CPU at cell 3 line 2\n"
        "  graph break: aten.bar.default ran on the CPU 3 times\n"
        "  recompiled: input 2 was f32[8], now it is f32[9]"
    )


def test_a_strip_leaves_out_what_did_not_happen():
    assert Strip(live_tensors=2).text() == "2 live tensors"


@pytest.mark.parametrize(
    ("strip", "ending"),
    [
        (Strip(error="ValueError"), "stopped by ValueError"),
        (Strip(error="KeyboardInterrupt", interrupted=True), "interrupted"),
    ],
)
def test_a_strip_ends_with_what_went_wrong(strip, ending):
    assert strip_parts(strip)[-1] == ending


def test_a_strip_leads_with_what_happened():
    running = Strip(executions=2, running=2, pending_ops=3)

    assert strip_parts(running) == [
        "executing 2, still running",
        "3 pending ops",
        "0 live tensors",
    ]


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (999, "999 ns"),
        (1_000, "1.0 µs"),
        (9_949, "9.9 µs"),
        (9_951, "10 µs"),
        (999_400, "999 µs"),
        (999_600, "1.0 ms"),
        (59_400_000_000, "59 s"),
        (59_600_000_000, "1 min"),
        (3_600_000_000_000, "1 h"),
    ],
)
def test_durations_round_into_the_next_unit(ns, shown):
    assert text.duration(ns) == shown


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (2**30 - 1, "1.0 GiB")],
)
def test_sizes_round_into_the_next_unit(nbytes, shown):
    assert text.size(nbytes) == shown.replace("1023", "1,023")


def test_a_table_aligns_numbers_to_the_right_and_stays_on_one_line_a_row():
    rows = [["user\nprogram", 1234, 0.5], ["read", 5, 2.25]]

    assert Table(["cause", "ops", "ms"], rows).to_text() == (
        "cause           ops    ms\n"
        "------------  -----  ----\n"
        "user program  1,234   0.5\n"
        "read              5  2.25"
    )


def test_none_in_a_table_is_an_empty_cell():
    table = Table(["step", "cell"], [[1, None], [2, 3]])

    assert "None" not in table.to_text()
    assert "None" not in table.to_html()
    assert Table(["step", "cell"], [[1, None]]).filled().to_text() == "step\n----\n   1"


def test_a_table_without_rows_is_its_header():
    assert Table(["step", "cause"], []).to_text() == "step  cause\n----  -----"


def test_a_listing_shows_every_op_with_its_origin():
    assert text.listing(perceptron()) == (
        "%rng0 : i64[2]\n"
        "%p0 : f32[8,4]\n"
        "%p1 : f32[6,4]\n"
        "%p2 : f32[2,6]\n"
        "%f0 : f64[]\n"
        "%1 = aten.t.default(%p1) : f32[4,6]  # fc1, cell 3 line 2\n"
        "%2 = aten.mm.default(%p0, %1) : f32[8,6]  # fc1, cell 3 line 2\n"
        "%3 = aten.relu.default(%2) : f32[8,6]  # cell 3 line 3\n"
        "%4 = aten.bernoulli.p(%rng0, %3, 0.5) : f32[8,6]  # cell 3 line 4\n"
        "%5 = aten.t.default(%p2) : f32[6,2]  # fc2, cell 3 line 5\n"
        "%6 = aten.mm.default(%4, %5) : f32[8,2]  # fc2, cell 3 line 5\n"
        "%7 = aten.mean.default(%6) : f32[]  # cell 3 line 6\n"
        "%8 = aten.mul.Tensor(%7, %f0) : f32[]  # backward, cell 3 line 7\n"
        "%9 = aten.expand.default(%8, [8, 2], implicit=False) : f32[8,2]"
        "  # fc2 (backward), cell 3 line 7\n"
        "return %7, %9"
    )


def test_a_listing_can_be_cut_to_its_end():
    assert text.listing(perceptron(), limit=2) == (
        "%f0 : f64[]\n"
        "... 7 earlier ops\n"
        "%8 = aten.mul.Tensor(%7, %f0) : f32[]  # backward, cell 3 line 7\n"
        "%9 = aten.expand.default(%8, [8, 2], implicit=False) : f32[8,2]"
        "  # fc2 (backward), cell 3 line 7\n"
        "return %7, %9"
    )


def test_a_listing_names_the_results_of_an_op_that_has_several():
    b = Builder()
    first = b.add("aten.topk.default", (data(0, 9), 2, -1, True, True), (2,), (2,))
    assert first.node is not None
    second = first.node.outputs[1]
    total = b.add("aten.add.Tensor", (first, second, 1), (2,))

    assert text.listing(Graph([total])) == (
        "%p0 : f32[9]\n"
        "%1 = aten.topk.default(%p0, 2, -1, True, True) : f32[2], f32[2]"
        "  # cell 3 line 1\n"
        "%2 = aten.add.Tensor(%1.0, %1.1, alpha=1) : f32[2]  # cell 3 line 1\n"
        "return %2"
    )
