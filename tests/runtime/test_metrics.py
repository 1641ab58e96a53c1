import dataclasses
import json
import re
import statistics
from xml.etree import ElementTree as ET

import pytest
import torch

import lazyrt
from lazyrt.errors import UsageError
from lazyrt.observe import events
from lazyrt.observe.metrics import NAMES, Counters, Metrics
from lazyrt.observe.report import Sample, Series, summarise
from tests.harness import DEVICE, cold_start

SITE = events.SourceLocation(file="/home/me/train.py", line=7, function="train")


def test_counters_start_at_zero_and_are_a_frozen_mapping():
    metrics = Metrics()
    counts = metrics.counters()

    assert dict(counts) == dict.fromkeys(NAMES, 0)
    assert len(counts) == len(NAMES)
    metrics(events.CacheHit(fingerprint="f", step=1))
    assert counts["cache_hits"] == 0
    assert metrics.counters()["cache_hits"] == 1
    assert not hasattr(counts, "__setitem__")


def test_counters_can_be_subtracted():
    later, earlier = Counters({"compiles": 5, "steps": 2}), Counters({"compiles": 3})

    assert dict(later - earlier) == {"compiles": 2, "steps": 2}
    assert repr(later) == "Counters({'compiles': 5, 'steps': 2})"


def compiled(purpose="step", source="xla", duration_ns=2_000_000):
    return events.CompileFinished(
        fingerprint="f",
        purpose=purpose,
        tier="optimised",
        source=source,
        nodes=3,
        duration_ns=duration_ns,
    )


def test_compiles_are_counted_by_purpose_and_source():
    metrics = Metrics()

    for event in (
        compiled(),
        compiled("peek"),
        compiled("op"),
        compiled(source="disk"),
    ):
        metrics(event)

    counts = metrics.counters()
    assert (counts["compiles"], counts["peek_compiles"]) == (1, 2)
    assert (counts["op_compiles"], counts["disk_hits"]) == (1, 1)


def sampled(*values, unit="ns", times=None):
    """Return metrics with one series of the given values."""
    metrics = Metrics()
    series = metrics._series["CompileTime"] = Series(unit)
    for number, value in enumerate(values):
        series.add(Sample(times[number] if times else number * 10**9, value))
    return metrics


def test_the_report_has_the_form_of_the_original():
    metrics = sampled(21_109_436, 27_160_091, 39_982_515, times=[0, 5 * 10**8, 10**9])
    metrics(events.FallbackUsed(op="aten.nonzero.default", reason="r", site=None))
    metrics(events.CacheHit(fingerprint="f", step=1))

    assert metrics.report().text(legacy=True) == (
        "Metric: CompileTime\n"
        "  TotalSamples: 3\n"
        "  Accumulator: 088ms252.042us\n"
        "  Mean: 029ms417.347us\n"
        "  StdDev: 008ms868.489us\n"
        "  Rate: 3 / second\n"
        "  Percentiles: 25%=021ms109.436us; 50%=027ms160.091us; 80%=040ms982.515us; "
        "90%=040ms982.515us; 95%=040ms982.515us; 99%=040ms982.515us\n"
        "Counter: CachedCompile\n"
        "  Value: 1\n"
        "Counter: aten::nonzero\n"
        "  Value: 1\n"
    )


def test_the_exact_report_differs_in_its_durations_and_says_so():
    text = sampled(500_600_000).report().text()

    assert "Accumulator: 500ms600.000us" in text
    assert "  Rate:" not in text  # one sample has none, as in the original
    assert text.endswith("Counter: lazyrt::exact_durations\n  Value: 1\n")
    assert "Accumulator: 501ms600.000us" in sampled(500_600_000).report().text(
        legacy=True
    )


def test_the_originals_own_comparison_reads_the_report():
    """The two expressions with which torch_xla's comparison of reports reads them."""
    metric = r"Metric: (\S+)\s+TotalSamples: (\d+)\s+Accumulator: (\S+)"
    counter = r"Counter: (\S+)\s+Value: (\d+)"
    metrics = sampled(1_500_000, 2_500_000)
    metrics(events.CacheHit(fingerprint="f", step=1))
    text = metrics.report().text()

    assert re.findall(metric, text) == [("CompileTime", "2", "004ms000.000us")]
    assert re.findall(counter, text)[0] == ("CachedCompile", "1")


def test_mean_spread_and_percentiles_are_over_the_latest_samples():
    values = [10**9] * 500 + list(range(1024))
    summary = summarise(sampled(*values)._series["CompileTime"])

    assert (summary.total_samples, summary.window) == (1524, 1024)
    assert summary.accumulator == 500 * 10**9 + sum(range(1024))
    assert summary.mean == pytest.approx(511.5)
    assert summary.std_dev == pytest.approx(statistics.pstdev(range(1024)))
    assert summary.rate == pytest.approx(1024 / 1023)
    assert {share: s.value for share, s in summary.percentiles.items()} == {
        0.25: 256,
        0.5: 512,
        0.8: 819,
        0.9: 921,
        0.95: 972,
        0.99: 1013,
    }


def test_plain_data_json_and_html_say_the_same():
    metrics = sampled(1_000, 3_000)
    metrics(events.FallbackUsed(op="aten.<b>.default", reason="r", site=SITE))
    report = metrics.report()

    plain = report.as_form("dict")

    assert plain["metrics"]["CompileTime"]["all"]["accumulator"] == 4_000
    assert plain["metrics"]["CompileTime"]["window"]["mean"] == 2_000
    assert plain["fallbacks"] == {"aten.<b>.default": {"train.py:7": 1}}
    assert json.loads(report.as_form("json")) == plain
    page = report.as_form("html")
    ET.fromstring(page)
    assert "002.000us" in page
    assert "<b>" not in page


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_sample_knows_its_graph_reason_and_line():
    """What a percentile is made of can be looked up."""
    cold_start()
    lazyrt.reset_counters()
    x = torch.ones(3, device=DEVICE)
    (x * 2).tolist()
    lazyrt.wait()

    window = lazyrt.metrics_report("dict")["metrics"]["CompileTime"]["window"]

    assert window["largest"]["graph"]
    assert window["largest"]["reason"] == "the first graph of this process"
    (site,) = window["sites"]
    assert site.startswith("test_metrics.py:")
    assert window["calls"]["99%"] == window["largest"]
    page = lazyrt.metrics_report("html")
    assert (
        f" at {site}, graph {window['largest']['graph'][:8]}, the first graph" in page
    )
    executed = lazyrt.metrics_report("dict")["metrics"]["ExecuteTime"]["window"]
    assert executed["largest"]["site"] == site


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_the_names_are_those_of_the_original():
    cold_start()
    lazyrt.reset_counters()
    x = torch.ones(3).to(DEVICE)
    for _ in range(2):
        (x * 2).tolist()
    with lazyrt.step():
        y = x * 3
    lazyrt.mark_step()
    lazyrt.wait()

    plain = lazyrt.metrics_report("dict")

    samples = {name: m["all"]["samples"] for name, m in plain["metrics"].items()}
    assert samples["CompileTime"] == 2
    assert samples["ExecuteTime"] == 3
    assert samples["TransferToDeviceTime"] == samples["OutboundData"] == 1
    assert samples["TransferFromDeviceTime"] == samples["InboundData"] == 2
    assert plain["metrics"]["InboundData"]["all"]["accumulator"] == 24
    counters = plain["counters"]
    assert counters["UncachedCompile"] == 2
    assert counters["CachedCompile"] == 1
    assert counters["ExecuteComputation"] == 3
    assert counters["MarkStep"] == 2  # the reads are no marks
    assert counters["lazyrt::barriers_by_read"] == 2
    assert list(plain["read_barriers"].values()) == [2]
    assert y.tolist() == [3.0] * 3


def test_ends_of_executions_are_upper_bounds_unless_somebody_waits_for_them():
    lazyrt.reset_counters()
    metrics = Metrics()
    ended = events.ExecuteFinished(
        fingerprint="f", purpose="step", step=1, duration_ns=5, exact=False
    )
    metrics(ended)
    metrics(dataclasses.replace(ended, exact=True))

    report = metrics.report()

    assert report.metrics["ExecuteTime"].upper_bounds == 1
    assert report.counters["lazyrt::execute_time_upper_bounds"] == 1
    with lazyrt.watch_executions():
        (torch.ones(3, device=DEVICE) * 7).tolist()
        lazyrt.wait()
    assert "lazyrt::execute_time_upper_bounds" not in lazyrt.metrics_report()


def test_a_short_report_has_the_named_ones_and_what_ran_on_the_cpu():
    metrics = sampled(1_000)
    metrics(events.FallbackUsed(op="aten.unique.default", reason="r", site=None))
    metrics(events.CacheHit(fingerprint="f", step=1))
    metrics._add("lazyrt::StepTime", 5)

    short = metrics.report().short()
    named = metrics.report().short(
        ["CachedCompile"], ["XrtCompile", "lazyrt::StepTime"]
    )

    assert list(short.metrics) == ["CompileTime"]
    assert dict(short.counters) == {"CachedCompile": 1, "aten::unique": 1}
    assert list(named.metrics) == ["CompileTime", "lazyrt::StepTime"]
    assert "Counter: MarkStep" not in lazyrt.short_metrics_report()


def test_samples_are_found_by_the_originals_old_name():
    metrics = sampled(5, 7)

    found = metrics.samples("XrtCompile")

    assert found is not None
    assert found[:2] == (2, 12)
    assert [sample.value for sample in found[2]] == [5, 7]
    assert metrics.samples("NoSuchTime") is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "yaml"}, "form='yaml'. It knows 'text', 'dict', 'json', 'html'"),
        ({"form": "json", "legacy": True}, "Leave out one of the two"),
        ({"percentiles": [95]}, "95, which is not between 0 and 1. Give shares"),
    ],
)
def test_a_form_that_does_not_exist_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        lazyrt.metrics_report(**arguments)


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_step_is_counted_as_it_happens():
    cold_start()
    lazyrt.reset_counters()

    with lazyrt.step("train"):
        y = torch.ones(3, device=DEVICE) * 2
    y.tolist()
    repr(y + 1)
    lazyrt.mark_step()

    counts = lazyrt.counters()
    assert counts["compiles"] == 1
    assert counts["executions"] == 1
    assert counts["barriers"] == 1
    assert counts["empty_barriers"] == 1
    assert counts["steps"] == 1
    assert counts["peek_executions"] == 1
    assert counts["transfers_to_host"] == 2
    assert counts["bytes_to_host"] == 24
    assert counts["cpu_fallbacks"] == 0
    assert "Metric: lazyrt::PeekTime" in lazyrt.metrics_report()


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_reset_starts_again_and_keeps_the_caches():
    def work():
        (torch.ones(3, device=DEVICE) * 2.5).tolist()

    work()
    lazyrt.reset_counters()
    work()

    assert lazyrt.counters()["compiles"] == 0
    assert lazyrt.counters()["cache_hits"] == 1


def test_every_counter_of_the_documented_surface_exists():
    documented = [
        "compiles",
        "executions",
        "cache_hits",
        "cpu_fallbacks",
        "peek_compiles",
        "peek_executions",
        "transfers_to_device",
        "transfers_to_host",
        "barriers",
    ]

    assert set(documented) <= set(lazyrt.counters())


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_ops_are_counted_by_their_names_as_often_as_their_graphs_run():
    x = torch.ones(3, 3).to(DEVICE)
    lazyrt.mark_step()
    lazyrt.reset_counters()
    for _ in range(3):
        y = (x @ x).exp() + x.exp()
        _dead = x.sin()
        del _dead
        lazyrt.mark_step()
        assert y.shape == (3, 3)

    counters = lazyrt.metrics_report("dict")["counters"]

    assert {name: n for name, n in counters.items() if name.startswith("xla::")} == {
        "xla::mm": 3,
        "xla::exp": 6,
        "xla::add": 3,
    }
    with lazyrt.eager_mode():
        x.exp()
    assert lazyrt.metrics_report("dict")["counters"]["xla::exp"] == 7
    assert "Counter: xla::exp\n  Value: 7\n" in lazyrt.metrics_report()
    lazyrt.reset_counters()
    assert "xla::" not in lazyrt.metrics_report()


def test_the_recording_of_each_op_is_timed_while_somebody_asks():
    x = torch.ones(3).to(DEVICE)
    x.exp()
    assert "LazyTracing" not in lazyrt.metrics_report("dict")["metrics"]

    with lazyrt.watch_tracing(), lazyrt.watch_tracing() as inner:
        y = x + 1
        inner.close()
        with lazyrt.eager_mode():
            y = y * 2
        y = y.exp()
    y.sin()

    traced = lazyrt.metrics_report("dict")["metrics"]["LazyTracing"]["all"]
    assert traced["samples"] == 3
    assert traced["accumulator"] > 0


@pytest.mark.not_eager("its kernels have nothing to unwind, watched or not")
def test_watching_the_recording_leaves_the_kernels_as_they_were():
    from lazyrt.frontend import kernels

    def taken():
        names = ("acquire", "release", "unwind")
        return [scope[name] for scope in kernels.scopes for name in names]

    before = taken()
    with lazyrt.watch_tracing():
        during = taken()

    assert all(timed != was for timed, was in zip(during, before, strict=True))
    assert taken() == before


def test_a_percentile_leads_to_the_samples_behind_it():
    values = [(n * 37) % 100 * 1_000 for n in range(100)]  # 0 to 99 us in another order
    metrics = sampled(*values)
    report = metrics.report()

    behind = report.metrics["CompileTime"].behind
    ranks = [(n, [s.value // 1_000 for s in some]) for n, some in behind.values()]

    assert list(behind) == [0.25, 0.5, 0.8, 0.9, 0.95, 0.99]
    assert ranks[0] == (26, [25, 24, 23, 22, 21])
    assert ranks[-1] == (4, [99, 98, 97, 96])
    assert sum(count for count, _ in ranks) == 100
    page = ET.fromstring(report.to_html())
    (row,) = (r for r in page.iter("tr") if r.findtext("td") == "CompileTime")
    outer = row.find(".//details")
    assert outer is not None
    inner = outer.findall("ul/li/details")
    assert len(inner) == 6
    shown = [item.text or "" for item in inner[0].findall("ul/li")]
    assert shown[0].startswith("025.000us")
    assert shown[-1] == "and 21 smaller ones"
    plain = report.as_form("dict")["metrics"]["CompileTime"]["window"]["behind"]
    assert plain["25%"]["samples"] == 26
    assert [s["value"] for s in plain["99%"]["largest"]] == [
        99_000,
        98_000,
        97_000,
        96_000,
    ]


def test_one_sample_and_equal_shares_stand_for_themselves():
    one = summarise(sampled(5)._series["CompileTime"], (0.5, 0.9))
    equal = summarise(sampled(5, 6)._series["CompileTime"], (0.5, 0.5))

    assert {share: n for share, (n, _) in one.behind.items()} == {0.5: 1, 0.9: 1}
    assert [s.value for s in equal.behind[0.5][1]] == [6]


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_samples_of_steps_and_of_single_ops_know_their_line_and_step():
    cold_start()
    lazyrt.reset_counters()
    x = torch.ones(3).to(DEVICE)
    with lazyrt.watch_executions():
        for _ in range(3):
            (x * 2).tolist()
        with lazyrt.eager_mode():
            x.exp()
        lazyrt.wait()
    metrics = lazyrt.metrics_report("dict")["metrics"]

    here = "test_metrics.py:"
    of_steps = ("CompileTime", "ExecuteTime", "TensorsGraphSize", "lazyrt::BarrierTime",
                "lazyrt::DispatchTime", "lazyrt::GraphCaptureTime", "lazyrt::LoweringTime")  # fmt: skip
    for name in of_steps:
        largest = metrics[name]["window"]["largest"]
        assert largest["site"].startswith(here), name
        assert largest["step"] is not None, name
    steps = {
        s["step"]
        for b in metrics["ExecuteTime"]["window"]["behind"].values()
        for s in b["largest"]
    }
    assert len(steps) == 3
    for name in ("EagerOpCompileTime", "EagerOpExecuteTime"):
        assert metrics[name]["window"]["largest"]["site"].startswith(here), name
