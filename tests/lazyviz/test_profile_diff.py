"""Two profiles side by side: aligned by step, with the line that made the difference."""

import itertools
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import lazyrt
import lazyviz
from lazyviz.render.timeline_text import Span
from lazyviz.timing.advice import ReadTime
from lazyviz.timing.device_time import LineTime
from lazyviz.timing.gaps import Gap, StepTime, Wait
from lazyviz.timing.profile import Profile, ProfileDiff

MS = 1_000_000


@dataclass
class Known:
    """A profile whose figures are known."""

    steps: tuple[Any, ...]
    gaps: tuple[Any, ...] = ()
    waits: tuple[Any, ...] = ()
    lines: tuple[Any, ...] = ()
    spans: tuple[Any, ...] = ()
    reads: tuple[Any, ...] = ()


def compared(before: Any, after: Any) -> ProfileDiff:
    return ProfileDiff(before, after)


def steps(*lengths, name="train", first=0, numbered=True):
    return tuple(
        StepTime(
            number=10 + k,
            name=name,
            step_num=first + k if numbered else None,
            duration_ns=length * MS,
            busy_ns=length * MS // 2,
        )
        for k, length in enumerate(lengths)
    )


def gap(line, length):
    return Gap(
        start_ns=0, duration_ns=length * MS, file="train.py", line=line, function="f"
    )


def device(line, length):
    return LineTime(
        file="train.py", line=line, device_ns=length * MS, forward_ns=length * MS
    )


def test_the_line_that_made_the_difference_is_named():
    before = Known(
        steps(60, 60), (gap(7, 10), gap(7, 10), gap(9, 4)), lines=(device(3, 20),)
    )
    after = Known(steps(50, 50), (gap(9, 6),), lines=(device(3, 22),))

    found = compared(before, after)

    assert (found.before_ns, found.after_ns) == (60 * MS, 50 * MS)
    assert found.sentence == (
        "A step takes 50 ms, was 60 ms (-17 %), over 2 steps of both. Most of it: train.py:7 "
        "waits 0 ns a step, was 10 ms."
    )
    top = found.changes[0]
    assert (top.what, top.at, top.change_ns) == ("waits", "train.py:7", -10 * MS)
    assert "+1.0 ms" in found.text()  # both others by one millisecond more


def test_a_read_that_waits_less_for_the_device_is_named():
    read = Wait(file="train.py", line=8, duration_ns=40 * MS, times=2)
    before = Known(steps(60, 60), (gap(9, 4),), (read,), (device(3, 24),))
    after = Known(steps(41, 41), (gap(9, 2),), lines=(device(3, 22),))

    found = compared(before, after)

    assert found.sentence.endswith(
        "Most of it: train.py:8 waits for the device 0 ns a step, was 20 ms."
    )


def test_a_step_takes_what_all_steps_take_together_where_one_waits_for_many():
    before, after = Known(steps(*[10] * 10)), Known(steps(*[1] * 9, 81))

    assert compared(before, after).sentence.startswith("A step takes 9.0 ms, was 10 ms")


def test_steps_are_aligned_by_the_users_number():
    found = compared(Known(steps(1, 2, 3, first=0)), Known(steps(20, 30, first=1)))

    assert [(p.before.step_num, p.after.step_num) for p in found.pairs] == [
        (1, 1),
        (2, 2),
    ]


def test_steps_without_numbers_are_aligned_in_order_within_their_name():
    before = (*steps(1, name="eval", numbered=False), *steps(2, 3, numbered=False))
    after = steps(20, 30, 40, numbered=False)

    found = compared(Known(before), Known(after))

    assert [(p.before.duration_ns, p.after.duration_ns) for p in found.pairs] == [
        (2 * MS, 20 * MS),
        (3 * MS, 30 * MS),
    ]


def test_the_steps_of_both_are_drawn_from_the_same_moment_on_with_what_ran_in_them():
    before, after = (
        tuple(replace(each, start_ns=start + 100 * MS * k) for k, each in enumerate(of))
        for start, of in ((0, steps(10, 20)), (7 * MS, steps(30, 5)))
    )
    ran = Span(
        "device", "step", "run", 95 * MS, 110 * MS, None
    )  # the second begins at 100
    other = Span("step", "scope", "forward", 100 * MS, 101 * MS, None)

    view = compared(Known(before, spans=(ran, other)), Known(after)).timeline

    assert view.lanes == ["was: step", "was: device", "now: step"]
    drawn = [(s.lane, s.start_ns // MS, s.duration_ns // MS) for s in view.spans]
    assert drawn == [
        ("was: step", 0, 10),
        ("now: step", 0, 30),
        ("was: step", 30, 20),
        ("was: device", 30, 10),
        ("now: step", 30, 5),
    ]


def looped(*lengths, reads):
    """A loop whose steps take these lengths, with a read in some of them."""
    ends = itertools.accumulate(lengths)
    found = tuple(
        replace(step, start_ns=end * MS - step.duration_ns)
        for step, end in zip(steps(*lengths), ends, strict=True)
    )
    read = ReadTime(
        at="train.py:9",
        reads=reads - 1,
        period_ns=sum(lengths) * MS / reads,
        waited_ns=10 * MS,
        device_ns=10 * MS,
        error_ns=0,
    )
    return Known(found, reads=(read,))


def test_a_read_that_became_rarer_has_what_was_predicted_beside_what_it_takes():
    each = looped(*[16] * 20, reads=20)

    (said,) = compared(each, looped(*[10, 12] * 10, reads=2)).predictions
    (other,) = compared(each, looped(*[14] * 20, reads=2)).predictions
    (unsure,) = compared(each, looped(*[1, 41] * 10, reads=2)).predictions

    assert said == (
        "The read at train.py:9, in one of 10 steps instead of each: the earlier profile predicts "
        "11 ms a step, and it takes 11 ms; with a read in each it took 16 ms. Both agree "
        "(± 471 µs, as steps vary)."
    )
    assert (
        "They differ by more than ± 0 ns, as steps vary: the prediction takes" in other
    )
    assert unsure.endswith("so this run says nothing about the prediction.")
    assert compared(each, each).predictions == ()


def test_profiles_of_different_steps_say_so():
    found = compared(Known(steps(1, name="train")), Known(steps(1, name="eval")))

    assert found.sentence.startswith("No step is in both profiles")
    assert found.text() == found.sentence


@pytest.mark.slow
@pytest.mark.lazy_only("it is about steps of one execution")
def test_a_line_that_waits_longer_is_found_in_two_profiles_of_a_loop(tmp_path):
    x = torch.ones(8, device="lazyrt")

    def loop(seconds):
        nonlocal x
        for k in range(6):
            with lazyrt.step("train", k):
                x = x * 2
                time.sleep(seconds)  # here
                x = x + 1

    loop(0)
    with lazyviz.profile() as before:
        loop(0.005)
    with lazyviz.profile() as after:
        loop(0.04)
    line = loop.__code__.co_firstlineno + 5

    found = after.diff(Profile.load(before.save(tmp_path / "before.json")))

    assert len(found.pairs) == 6
    assert f"Most of it: test_profile_diff.py:{line} waits" in found.sentence
    assert found.changes[0].change_ns == pytest.approx(35 * MS, rel=0.2)
    assert "lazyviz-profile-diff" in found.to_html()
