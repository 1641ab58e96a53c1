"""Old metrics reports, read back: what is known of the one of 2022."""

import itertools
import json
import random
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import lazyviz
from lazygraph.readable import time_text
from lazyrt.observe.report import Report, Sample, Series, summarise
from lazyviz.foreign import EvidenceError
from lazyviz.foreign.metrics_report import parse_quantity

DATA = Path(__file__).parent.parent / "data"
LARGE, SMALL = "BERT-large", "2-layer BERT"


@pytest.fixture(scope="module")
def old():
    return lazyviz.parse_report((DATA / "report_2022.txt").read_text())


def metric(report, model, mode, name):
    (found,) = [
        s for s in report.sections if model in s.title and s.title.endswith(mode)
    ]
    return found.get(name)


def seconds(report, model, mode):
    """Return what a run spent on compiling and executing."""
    phases = [
        metric(report, model, mode, name) for name in ("XrtCompile", "XrtExecute")
    ]
    return sum(m.accumulator.value for m in phases) / 1e9


def test_all_eight_metrics_are_read_with_their_eleven_fields(old):
    assert [(s.title.split(" ")[-3:], len(s.metrics)) for s in old.sections] == [
        (["EAGER", "DEBUG", "MODE"], 2),
        (["metrics:", "LAZY", "MODE"], 2),
        (["EAGER", "DEBUG", "MODE"], 2),
        (["BERT:", "LAZY", "MODE"], 2),
    ]
    for found in old.metrics:
        assert list(found.percentiles) == [25, 50, 80, 90, 95, 99]
        assert None not in (found.mean, found.std_dev, found.rate)


@pytest.mark.parametrize(
    ("model", "mode", "name", "ns"),
    [
        (LARGE, "LAZY MODE", "XrtCompile", 955_564_618_863),
        (LARGE, "LAZY MODE", "XrtExecute", 92_167_546_572),
        (LARGE, "EAGER DEBUG MODE", "XrtCompile", 27_856_591_389),
        (LARGE, "EAGER DEBUG MODE", "XrtExecute", 189_750_891_251),
        (SMALL, "LAZY MODE", "XrtCompile", 18_739_186_742),
        (SMALL, "LAZY MODE", "XrtExecute", 13_060_102_048),
        (SMALL, "EAGER DEBUG MODE", "XrtCompile", 11_296_214_594),
        (SMALL, "EAGER DEBUG MODE", "XrtExecute", 38_930_102_810),
    ],
)
def test_the_measured_durations_are_recovered(old, model, mode, name, ns):
    assert metric(old, model, mode, name).accumulator.value == ns


def test_half_of_the_printed_durations_are_wrong_by_up_to_a_minute(old):
    times = [q for m in old.metrics for q in m.quantities()]
    wrong = [q for q in times if q.error]

    assert (len(wrong), len(times)) == (36, 72)
    assert max(q.error for q in times) == 61_001_000_000
    sums = [q for m in old.metrics for q in (m.accumulator, m.mean, m.std_dev)]
    assert (sum(q.error != 0 for q in sums), len(sums)) == (18, 24)
    assert all(time_text(q.value, legacy=True) == q.printed for q in times)
    assert not any(q.others for q in times)


def test_only_the_measured_percentiles_rise(old):
    def rising(values):
        return all(a <= b for a, b in itertools.pairwise(values))

    shown = [[q.shown for q in m.percentiles.values()] for m in old.metrics]
    measured = [[q.value for q in m.percentiles.values()] for m in old.metrics]

    assert sum(not rising(values) for values in shown) == 2
    assert all(map(rising, measured))


def test_eager_wins_for_the_large_model_and_loses_for_the_small_one(old):
    assert seconds(old, LARGE, "EAGER DEBUG MODE") == pytest.approx(217.6, abs=0.05)
    assert seconds(old, LARGE, "LAZY MODE") == pytest.approx(1047.7, abs=0.05)
    assert seconds(old, SMALL, "EAGER DEBUG MODE") == pytest.approx(50.2, abs=0.05)
    assert seconds(old, SMALL, "LAZY MODE") == pytest.approx(31.8, abs=0.05)


def test_compiles_hardly_grow_with_depth_and_executions_do(old):
    def samples(model, mode, name):
        return metric(old, model, mode, name).total_samples

    assert samples(SMALL, "EAGER DEBUG MODE", "XrtCompile") == 292
    assert samples(LARGE, "EAGER DEBUG MODE", "XrtCompile") == 358
    assert samples(SMALL, "EAGER DEBUG MODE", "XrtExecute") == 8_537
    assert samples(LARGE, "EAGER DEBUG MODE", "XrtExecute") == 68_993
    for model in (LARGE, SMALL):
        assert samples(model, "LAZY MODE", "XrtCompile") == 2
        assert samples(model, "LAZY MODE", "XrtExecute") == 10


def test_the_mean_is_over_a_window(old):
    for found in old.metrics:
        whole = found.accumulator.value / found.total_samples
        if found.total_samples <= 358:
            assert found.mean.value == pytest.approx(whole, abs=1_000)
        else:
            assert abs(found.mean.value - whole) > 50_000
    execute = metric(old, LARGE, "EAGER DEBUG MODE", "XrtExecute")
    assert execute.accumulator.value / execute.total_samples == pytest.approx(
        2.750e6, rel=1e-3
    )
    assert execute.mean.value == pytest.approx(3.876e6, rel=1e-3)


def test_the_deviation_is_the_populations(old):
    compiles = metric(old, LARGE, "LAZY MODE", "XrtCompile")
    larger = compiles.percentiles[50].value
    smaller = compiles.accumulator.value - larger

    assert compiles.std_dev.value == pytest.approx((larger - smaller) / 2, abs=1_000)


@given(st.integers(0, 10**17))
@example(500_000)
@example(1_500_000)
@example(90_500_000_000)
@example(3_599_999_999_999)
def test_what_the_faulty_printer_shows_can_be_had_back(ns):
    quantity = parse_quantity(time_text(ns, legacy=True), "legacy")

    assert ns in (quantity.value, *quantity.others)
    assert len(quantity.others) <= 1 or "500.000us" in quantity.printed
    assert parse_quantity(time_text(ns), "exact").value == ns


def test_a_half_leaves_two_possibilities_and_says_so():
    quantity = parse_quantity("002ms500.000us")

    assert (quantity.value, quantity.others) == (2_500_000, (1_500_000,))


def test_what_no_faulty_printer_can_show_is_taken_at_its_word():
    quantity = parse_quantity("01m32s167ms546.572us", "legacy")

    assert (quantity.value, quantity.error) == (92_167_546_572, 0)


def test_a_report_of_today_is_read(capsys):
    report = lazyviz.parse_report((DATA / "report_torch_xla_2_9.txt").read_text())

    assert report["CompileTime"].accumulator.value == 5_007_814_101
    assert report["CompileTime"].accumulator.printed == "05s008ms814.101us"
    assert report["TensorsGraphSize"].accumulator.value == 14_492
    assert report["OutboundData"].unit == "bytes"
    assert next(iter(report["ExecuteTime"].percentiles)) == 1
    mean = report["ExecuteTime"].mean
    assert mean is not None
    assert mean.value == pytest.approx(13_666_010, rel=1e-4)
    assert report.counters == {"CachedCompile": 8, "UncachedCompile": 2, "MarkStep": 11}
    assert report.rounding == "legacy"
    assert report.evidence == "without the counter lazyrt::exact_durations"


def own_report(values, *, legacy):
    series = Series("ns")
    for k, value in enumerate(values):
        series.add(Sample(k * 10**9, value))
    report = Report({"CompileTime": summarise(series)}, {"MarkStep": 3}, {}, {})
    return report.text(legacy=legacy)


@given(
    st.lists(st.integers(0, 10**13), min_size=1, max_size=20),
    st.booleans(),
)
def test_our_own_reports_are_read_back_whoever_they_imitate(values, legacy):
    report = lazyviz.parse_report(own_report(values, legacy=legacy))
    total = report["CompileTime"].accumulator

    assert report.rounding == ("legacy" if legacy else "exact")
    assert sum(values) in (total.value, *total.others)
    assert "lazyrt::exact_durations" not in report.counters


def test_a_pasted_report_may_have_lost_its_indentation_and_have_text_around_it():
    text = own_report([1_000, 2_000], legacy=True).replace("  ", "")
    report = lazyviz.parse_report(f"as of today\n> \n{text}\nthanks!\n")

    assert report["CompileTime"].total_samples == 2
    assert report.counters["MarkStep"] == 3


def test_the_text_view_shows_measured_and_printed_values(old):
    text = old.text()

    assert "15m55.564619s" in text
    assert "16m56s565ms618.863us" in text
    assert "36 of 72 durations were printed too large, by up to 1m01.001000s" in text
    assert str(old) == text


def test_the_views_are_well_formed_and_escape_names(old):
    report = lazyviz.parse_report("Counter: <b>&x\n  Value: 3\n")

    ET.fromstring(report.to_html())
    ET.fromstring(old.to_html())
    assert "<b>" not in report.to_html()
    assert report.to_dict()["sections"][0]["counters"] == {"<b>&x": 3}
    json.dumps(old.to_dict())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "there is no metrics report in the text that starts with 'hello"),
        ("", "there is no metrics report"),
        ("Metric: X\n", "line 1: Metric X has no TotalSamples: the report breaks off"),
        (
            "Metric: X\n  TotalSamples: 3\n",
            "line 1: Metric X has no Accumulator",
        ),
        (
            "\nMetric: X\nTotalSamples: 3\nAccumulator: 3parsecs\n",
            "line 4: Accumulator of X: '3parsecs' is no number",
        ),
        (
            "Metric: X\nTotalSamples: 3\nAccumulator: 1.00\nPercentiles: 50%=1.00; 9\n",
            "line 4: Percentiles of X: '9' is no percentile",
        ),
        ("Counter: X\n  Value: -1\n", "line 2: Value of X is '-1'"),
        ('{"metrics": 3', "line 1: the text starts like JSON and is none"),
        ('{"metrics": 3}', "this mapping is no metrics report"),
    ],
)
def test_what_is_no_report_is_refused_with_its_line(text, message):
    with pytest.raises(EvidenceError) as raised:
        lazyviz.parse_report(text)

    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("seed", range(200))
def test_damaged_reports_are_read_or_refused(seed):
    rng = random.Random(seed)  # noqa: S311 - damage that can be repeated
    text = (DATA / "report_torch_xla_2_9.txt").read_text()
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(["", "\n", "9", "us", ";", "="]) + text[at + 3 :]
    try:
        report = lazyviz.parse_report(text)
    except EvidenceError as error:
        assert "\n" not in str(error)  # noqa: PT017 - many texts are read
    else:
        assert report.text()


def test_a_metric_of_several_sections_has_to_be_chosen(old):
    with pytest.raises(KeyError, match="XrtCompile is in 4 sections"):
        old["XrtCompile"]
    with pytest.raises(KeyError, match="has no metric Nothing"):
        old["Nothing"]


def test_two_reports_are_compared_by_name(old):
    eager, lazy = old.sections[2], old.sections[3]
    diff = lazyviz.compare_reports(eager, lazy)

    sides = diff.metrics["XrtCompile"]
    assert [side.total_samples for side in sides if side] == [292, 2]
    line = next(x for x in diff.text().splitlines() if x.startswith("XrtExecute"))
    assert line.split()[1:3] == ["8,537", "10"]
    assert line.split()[5] == "0.335"  # 13.06 of 38.93 s
    ET.fromstring(diff.to_html())


def test_a_comparison_names_new_fallbacks_and_changed_counters():
    before = "Counter: MarkStep\nValue: 3\nCounter: Same\nValue: 1\n"
    after = "Counter: MarkStep\nValue: 5\nCounter: Same\nValue: 1\nCounter: aten::x\nValue: 2\n"

    diff = lazyviz.compare_reports(before, after)

    assert diff.changed_counters == {"MarkStep": (3, 5), "aten::x": (0, 2)}
    assert diff.new_fallbacks == ["aten::x"]
    assert diff.text().splitlines()[2].split() == ["MarkStep", "3", "5", "+2"]
    assert diff.text().endswith(
        "1 counter without a change.\n\nNew on the CPU: aten::x."
    )


def test_a_text_of_several_reports_cannot_be_compared_as_one(old):
    with pytest.raises(EvidenceError, match="the second text holds 4 reports"):
        lazyviz.compare_reports("Counter: X\nValue: 1\n", old)


def test_a_live_report_folds_the_samples_behind_each_percentile():
    series = Series("ns")
    for k in range(40):
        series.add(Sample(k, k * 1_000, f"graph{k}", "why <b>", None, k))
    plain = Report({"CompileTime": summarise(series)}, {}, {}, {}).to_dict()
    report = lazyviz.parse_report(plain)

    page = report.to_html()

    ET.fromstring(page)
    assert "<b>" not in page
    assert "25 %, 11 samples</summary>" in page
    assert "and 6 smaller ones" in page
    assert ">graph10</td>" in page
    assert lazyviz.parse_report(json.dumps(plain)).to_html() == page
    del plain["metrics"]["CompileTime"]["window"]["behind"]  # as an older one wrote it
    assert "samples</summary>" not in lazyviz.parse_report(plain).to_html()


TODAY = (DATA / "report_torch_xla_2_9.txt").read_text()


@pytest.mark.parametrize(
    "text",
    [
        TODAY.replace("\n", "\r\n"),
        TODAY.replace("\n", "\n\n"),
        TODAY.replace("  ", "\t"),
        f"```\n{TODAY}```",
        f"to see them, type Metric: or Counter: MarkStep\n\n{TODAY}",
    ],
    ids=["windows", "blank lines", "tabs", "fence", "prose"],
)
def test_what_was_put_around_a_report_is_left_out(text):
    plain = lazyviz.parse_report(TODAY).text()

    assert lazyviz.parse_report(text).text() == plain


@pytest.mark.parametrize("share", [0.2, 0.35, 0.6, 0.85])
def test_a_report_that_breaks_off_in_a_metric_is_refused_with_the_line(share):
    lines = TODAY.splitlines()
    starts = [k for k, line in enumerate(lines) if line.startswith("Metric")]
    at = starts[int(share * len(starts))]
    for kept in (1, 2, 3, 4):
        with pytest.raises(EvidenceError, match=f"line {at + 1}: Metric .* breaks off"):
            lazyviz.parse_report("\n".join(lines[: at + kept]))
    assert len(lazyviz.parse_report("\n".join(lines[:at] or lines)).metrics) >= 1


@pytest.mark.parametrize("thing", [None, 3, ["Metric: X"]])
def test_what_is_no_text_is_refused(thing):
    with pytest.raises(
        EvidenceError, match=r"parse_report\(\) got \w+, which is no report"
    ):
        lazyviz.parse_report(thing)
