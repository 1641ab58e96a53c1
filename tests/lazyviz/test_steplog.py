from lazyrt.observe.events import LoweringFinished, SourceLocation
from lazyviz.timing.history import StepLog, StepRow
from tests.lazyviz import fakes


def test_the_events_of_a_step_become_one_row():
    log = StepLog()

    log.add(fakes.captured(step=4), 3)
    lowered = LoweringFinished(
        fingerprint="aa", nodes=4, duration_ns=3_000, purpose="step"
    )
    log.add(lowered, 3)
    log.add(fakes.compiled(duration_ns=5_000, reason="a new shape"), 3)
    log.add(fakes.started(step=4), 3)
    log.add(fakes.barrier(step=4, site=SourceLocation("c", 7, "f", 3), nodes=12), 3)
    log.add(fakes.finished(step=4, duration_ns=9), 3)

    assert log.rows == (
        StepRow(
            step=4,
            cell=3,
            cause="read by .item()",
            site="cell 3 line 7",
            nodes=12,
            compile_ns=5_000,
            lowering_ns=3_000,
            execute_ns=9,
            reason="a new shape",
        ),
    )


def test_a_barrier_belongs_to_the_execution_that_it_started():
    log = StepLog()

    log.add(fakes.started(step=6), 1)
    log.add(fakes.barrier(step=7), 1)
    log.add(fakes.started(step=7), 1)
    log.add(fakes.barrier(step=8), 1)

    assert [row.step for row in log.rows] == [6, 7]


def test_peeks_and_empty_barriers_make_no_row():
    log = StepLog()

    log.add(fakes.compiled(purpose="peek"), 1)
    log.add(fakes.barrier(executed=False), 1)
    log.add(fakes.finished(step=99), 1)

    assert log.rows == ()


def test_the_latest_thousand_are_kept():
    log = StepLog()

    for step in range(1_200):
        log.add(fakes.barrier(step=step), 1)

    assert len(log.rows) == 1_000
    assert log.rows[0].step == 200
