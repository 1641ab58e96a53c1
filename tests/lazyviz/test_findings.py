"""Three planted faults are found, each with its line and what to do."""

import pytest
import torch

import lazyrt
import lazyviz
from lazyrt.frontend import record
from lazyrt.observe import events
from lazyrt.observe.metrics import metrics
from lazyviz.foreign.metrics_report import Section, find
from tests.harness import DEVICE, cold_start


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(lazyrt.config, "cache_dir", None)
    cold_start()
    lazyrt.wait()
    lazyrt.reset_counters()


def found():
    report = lazyviz.parse_report(lazyrt.metrics_report("dict"))
    return {finding.symptom: finding for finding in report.findings()}


def train(steps, size=lambda _step: 4, after=lambda _loss: None, op=torch.sigmoid):
    w = torch.ones(4, device=DEVICE)
    for step in range(steps):
        with lazyrt.step():
            x = torch.full((size(step), 4), 0.5, device=DEVICE)
            loss = op((x * w).sum(1)).sum()
            w = w - 0.1 * loss
        after(loss)


def test_a_sound_loop_has_no_finding():
    train(12)

    assert found() == {}


@pytest.mark.slow
def test_a_graph_that_varies_compiles_too_often():
    train(11, size=lambda step: 2 + step)

    (finding,) = found().values()

    assert finding.symptom == "compiles too often"
    assert finding.message.startswith(
        "CompileTime too frequent: 11 counts during 11 steps, most often for this cause: "
    )
    assert finding.site.startswith("test_findings.py:")
    assert "pad inputs" in str(finding)


def test_ten_steps_of_warming_up_may_compile():
    train(3, size=lambda step: 20 + step)

    assert found() == {}


def test_a_read_in_each_step_is_too_often():
    train(4, after=lambda loss: loss.item())
    (finding,) = found().values()

    assert finding.symptom == "reads too often"
    assert (
        finding.message
        == "TransferFromDeviceTime too frequent: 4 counts during 4 steps"
    )
    assert finding.site.startswith("test_findings.py:")
    assert "step closure" in str(finding)


def test_a_read_now_and_then_is_none():
    train(4)
    torch.ones(2, device=DEVICE).sum().item()

    assert "reads too often" not in found()


def test_an_op_without_a_lowering_is_named_with_its_line():
    site = events.SourceLocation(file="train.py", line=9, function="loss")
    for _ in range(2):
        metrics(events.FallbackUsed(op="aten.median.default", reason="r", site=site))
    (finding,) = found().values()

    assert finding.symptom == "ran on the CPU"
    assert str(finding).startswith(
        "Ops not lowered: aten::median (2 times). Mostly at train.py:9. Write a lowering"
    )


def test_an_op_forced_to_the_cpu_is_found(monkeypatch):
    monkeypatch.setattr(record, "_forced", set())
    lazyrt.fallback("aten.hardswish.default")

    train(1, op=torch.nn.functional.hardswish)
    finding = found()["ran on the CPU"]
    record.forget_nodes()

    assert "aten::hardswish (1 time)" in finding.message
    assert finding.site.startswith("test_findings.py:")


def test_a_compile_of_minutes_is_too_slow():
    text = (
        "Metric: CompileTime\nTotalSamples: 2\nAccumulator: 15m55s564ms618.863us\n"
        "Percentiles: 50%=08m17s017ms116.002us; 99%=08m17s017ms116.002us\n"
    )
    (finding,) = lazyviz.parse_report(text).findings()

    assert finding.message == (
        "CompileTime too slow: the longest of 2 samples took 8 min 17 s"
    )
    assert finding.site is None


def test_a_read_of_a_scalar_in_torch_xla_is_no_missing_lowering():
    section = Section(
        title="", metrics=(), counters={"aten::_local_scalar_dense": 9, "MarkStep": 1}
    )

    assert find(section) == []


def test_a_percentile_leads_to_its_call():
    train(2)
    report = lazyviz.parse_report(lazyrt.metrics_report("dict"))

    call = report["CompileTime"].calls[99]

    assert call.site.startswith("test_findings.py:")
    assert len(call.graph) > 12
    assert call.reason
    page = report.to_html().replace("<wbr/>", "")
    for part in (call.site, call.graph[:12], "because"):
        assert part in page


def compiled(*reasons):
    for reason in reasons:
        metrics(
            events.CompileFinished(
                fingerprint="f", purpose="step", tier="optimised", source="xla", nodes=1,
                duration_ns=1, reason=reason,
            )
        )  # fmt: skip
    for step in range(11):
        metrics(
            events.BarrierFinished(
                step=step, cause="mark_step()", site=None, nodes=1, roots=1, executed=True,
                duration_ns=1,
            )
        )  # fmt: skip


def cause_of(*reasons):
    compiled(*reasons)
    message = found()["compiles too often"].message
    return message.partition("most often for this cause: ")[2]


SHAPES = [f"ones at cell 2 line 2 gives f32[{n}] where it gave f32[{n - 1}]" for n in range(1, 9)]  # fmt: skip


def test_the_cause_that_is_named_is_the_most_frequent_whatever_numbers_it_has():
    once = "the optimizer began anew at cell 2 line 9"

    assert cause_of("the first graph of this process", once, *SHAPES) == (
        f"{SHAPES[0]} (8 times)"
    )


def test_a_line_that_is_quoted_in_a_cause_is_quoted_whole():
    said = "input of `y = f(x); mark_step()` at a.py:3 is f32[{}], was f32[{}]; 3 ops depend on it"

    assert cause_of(*(said.format(n, n + 1) for n in range(7, 15))) == (
        "input of `y = f(x); mark_step()` at a.py:3 is f32[7], was f32[8] (8 times)"
    )


@pytest.mark.slow
def test_of_22_graphs_the_most_frequent_cause_is_counted_whole(monkeypatch):
    monkeypatch.setattr(lazyrt.config, "compile_tier", "fast")
    w = torch.ones(4, 3).to(DEVICE)
    sizes = [9, 2, 7, 3, 8, 4, 6, 5, *range(10, 21)]
    for name, size in [
        ("one", 1),
        *(("one", n) for n in sizes),
        ("exp", 20),
        ("tanh", 20),
    ]:
        x = torch.ones(size, 4, device=DEVICE)
        y = x @ w if name == "one" else getattr(x @ w, name)()
        lazyrt.mark_step()
        del y

    message = found()["compiles too often"].message

    assert message.startswith("CompileTime too frequent: 22 counts during 22 steps")
    assert message.endswith(" is f32[9,4], was f32[1,4] (19 times)")


def test_causes_at_different_lines_are_different_ones():
    at_line = "the value at cell 2 line {} is another one"

    assert cause_of(*(at_line.format(n) for n in range(6)), *2 * [SHAPES[0]]) == (
        f"{SHAPES[0]} (2 times)"
    )


def test_no_cause_is_called_the_most_frequent_where_each_came_once():
    assert cause_of(*(f"cause {name}" for name in "abcdefgh")) == ""
