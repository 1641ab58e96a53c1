import torch

import lazyrt
from lazyrt.observe import events
from lazyrt.observe.metrics import NAMES, Counters, Metrics
from tests.harness import DEVICE, cold_start


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


def test_the_report_is_a_table_of_counters_timings_and_fallbacks():
    metrics = Metrics()
    metrics(compiled(duration_ns=2_000_000))
    metrics(compiled(duration_ns=4_000_000))
    for _ in range(2):
        metrics(events.FallbackUsed(op="aten.nonzero.default", reason="r", site=None))
    metrics(events.FallbackUsed(op="aten.unique.default", reason="r", site=None))

    lines = metrics.report().splitlines()

    assert lines[0] == "lazyrt metrics"
    assert ["compiles", "2"] in [line.split() for line in lines]
    assert ["compile", "2", "6.0", "3.00", "4.0"] in [line.split() for line in lines]
    assert lines[-2:] == [
        f"{'aten.nonzero.default':<40}{2:>8}",
        f"{'aten.unique.default':<40}{1:>8}",
    ]


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
    assert "peek execute" in lazyrt.metrics_report()


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
