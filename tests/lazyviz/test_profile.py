"""`lazyviz.profile()`: gaps at the line that waits, the device's time by line, steps."""

import gc
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import lazyrt
import lazyviz
from lazyrt.execution import linked
from lazyrt.frontend import record, tracing
from lazyrt.observe import events
from lazyviz.foreign.xplane import read_profile
from lazyviz.inspection import numerics
from lazyviz.render.timeline_svg import timeline_svg
from lazyviz.render.timeline_text import union
from lazyviz.timing import device_time, gaps
from lazyviz.timing.gaps import Noted
from lazyviz.timing.profile import Profile, ProfileError

HERE = __file__


def line_of(text):
    """Return the number of the line of this file that has a text, which stands there once."""
    lines = Path(HERE).read_text("utf-8").split("\n")
    found = [k for k, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    assert len(found) == 1
    return found[0]


def matrix(size=32):
    return torch.ones(size, size).to("lazyrt")


def pause():
    time.sleep(0.02)  # in a function


MS = 1_000_000


def train(steps=3):
    x = matrix()
    for _ in range(steps):
        y = (x @ x).tanh()
        time.sleep(0.01)  # between two ops
        y = y @ x
        pause()
        y = y + 1
        lazyrt.mark_step()
        time.sleep(0.005)  # between two steps
    return y


@pytest.fixture(scope="module")
def taken():
    train()
    with lazyviz.profile() as profile:
        train()
    return profile


def test_a_convolution_counts_for_its_own_line_whatever_xla_calls_it():
    x = torch.ones(2, 3, 8, 8).to("lazyrt")
    weights = torch.ones(3, 3, 3, 3).to("lazyrt").requires_grad_()
    with lazyviz.profile() as profile:
        y = torch.conv2d(x, weights, padding=1)  # first convolution
        y = y.relu()
        y = torch.conv2d(y, weights[:, :, :2, :2])  # another convolution
        y.exp().sum().backward()
        lazyrt.mark_step()

    convolved: Counter[int] = Counter()
    for run in profile._device.runs:
        program = run.program
        assert program is not None
        for op in run.times:
            if op.startswith("convolution"):
                ((where, _),) = program.shares(op).items()
                assert "convolution" in where.op
                convolved[where.line] += 1
    # Forward, and the weights' gradient; backward of the second, its input's, too.
    lines = line_of("first convolution"), line_of("another convolution")
    assert convolved == {lines[0]: 2, lines[1]: 3}


@pytest.mark.parametrize(
    "where", ["between two ops", "in a function", "between two steps"]
)
def test_a_gap_is_told_at_the_line_that_waits(taken, where):
    found = [gap for gap in taken.gaps if gap.line == line_of(where)]

    # Three waits, of which a busy machine may see one alone.
    assert 1 <= sum(gap.is_sampled for gap in found) <= 3
    assert {gap.file for gap in found} == {HERE}


def test_gaps_are_the_programs_own_time_and_not_tracing(taken):
    python = taken.parts["python"]

    assert python >= sum(gap.duration_ns for gap in taken.gaps) >= 3 * 35_000_000
    assert sum(taken.parts.values()) == taken.duration_ns


def test_a_gaps_sentence_names_its_line_and_three_chunks(taken):
    gap = next(gap for gap in taken.gaps if gap.line == line_of("in a function"))

    assert gap.sentence.startswith(f"test_profile.py:{gap.line} takes ")
    for chunk in ("building the next graph", "transfer", "load and start"):
        assert chunk in gap.sentence


def test_steps_end_at_their_barriers_and_their_parts_add_up(taken):
    assert [step.cause for step in taken.steps] == ["mark_step()"] * 3
    for step in taken.steps:
        assert sum(step.parts.values()) == step.duration_ns
        assert 0 <= step.duty_cycle <= 1
        assert step.device_ns > 0


def test_the_devices_time_by_line_adds_up_to_its_busy_time(taken):
    by_line = sum(line.device_ns for line in taken.lines)

    assert by_line == pytest.approx(taken.device_ns, rel=0.02)
    assert sum(scope.device_ns for scope in taken.scopes) == pytest.approx(by_line)


def test_idle_time_and_busy_time_add_up_to_the_profile(taken):
    idle = sum(each.duration_ns for each in taken.idle)

    assert idle + taken.device_ns <= taken.duration_ns
    for each in taken.idle:
        assert sum(each.chunks.values()) == each.duration_ns


def test_the_device_works_no_longer_than_the_profile_lasts():
    ran = events.ExecuteFinished(
        fingerprint="f", purpose="step", step=1, duration_ns=5_000, exact=False
    )
    noted = [Noted(ran, 3_000, 0), Noted(ran, 9_500, 0)]
    profile = Profile.of(noted, (), 0, 1_000, 9_000)
    profile._windows.fault = "another trace is taken"

    assert profile.duty_cycle == (2_000 + 4_500) / 8_000


def started(step, at):
    return events.ExecuteStarted(
        fingerprint="f", purpose="step", step=step, nodes=1, inputs=0, outputs=0,
        donated=0, time_ns=at, dispatch_ns=0,
    )  # fmt: skip


def finished(step):
    return events.ExecuteFinished(
        fingerprint="f", purpose="step", step=step, duration_ns=1, exact=False
    )


def waited(ns):
    return events.WaitFinished(
        fingerprint="f",
        purpose="step",
        phase="execute",
        duration_ns=ns,
        interrupted=False,
    )


def test_a_run_that_was_not_traced_ends_before_the_next_traced_one_and_the_profile():
    first, traced, last = (
        started(step, at) for step, at in ((1, 50), (5, 250), (9, 900))
    )
    run = device_time.Run(0, "m", 300, 400, launch=traced)

    guessed = [(first, 500), (last, 500)]
    ((before,), (after,)) = device_time._like([run], guessed, {}, 1_000)

    assert (before.start_ns, before.end_ns) == (50, 300)
    assert (after.start_ns, after.end_ns) == (900, 1_000)


def test_a_run_that_was_not_traced_ends_when_the_wait_for_it_does():
    launched = started(step=5, at=0)
    traced = device_time.Run(0, "m", 0, MS, launch=launched)
    noted = [
        gaps.Noted(finished(step=5), MS, 0),
        gaps.Noted(finished(step=6), 9 * MS, 0),
        gaps.Noted(waited(ns=5 * MS), 9 * MS, 0),
        gaps.Noted(finished(step=7), 12 * MS, 0),
    ]

    runs = device_time._like(
        [traced],
        [(started(step=6, at=2 * MS), MS), (started(step=7, at=10 * MS), 9 * MS)],
        device_time.ends_of(noted),
        20 * MS,
    )

    ends = [(run.start_ns // MS, run.end_ns // MS) for (run,) in runs]
    assert ends == [(2, 9), (10, 12)]


def test_a_wait_that_ends_with_two_runs_tells_the_end_of_the_last_one():
    noted = [
        gaps.Noted(finished(step=1), 9 * MS, 0),
        gaps.Noted(finished(step=2), 9 * MS, 0),
        gaps.Noted(waited(ns=5 * MS), 9 * MS, 0),
    ]

    found = device_time.ends_of(noted)

    assert [is_exact for _, is_exact in found.values()] == [False, True]


def test_the_beginning_of_a_run_behind_a_windows_end_is_no_run(monkeypatch):
    whole, after = (
        device_time.Run(0, "m", at, at + 50, spent=Counter(a=50)) for at in (100, 300)
    )
    monkeypatch.setattr(device_time, "read_trace", lambda _trace: [whole, after])
    trace: Any = None
    window = device_time.Window(trace, end_ns=200)

    found = device_time.device_time([window], [], {}, {}, 1_000)

    assert found.busy == [(100, 150)]


def test_a_saved_profile_is_read_back_as_it_was(taken, tmp_path):
    loaded = Profile.load(taken.save(tmp_path / "t.json"))

    assert loaded.to_dict() == taken.to_dict()
    assert str(loaded) == str(taken)


def test_a_file_that_is_no_profile_is_refused(tmp_path):
    (tmp_path / "t.json").write_text("{}")

    with pytest.raises(ProfileError, match="cannot be read as a profile"):
        Profile.load(tmp_path / "t.json")


def test_what_is_no_path_is_refused_by_name(taken):
    calls: list[Any] = [lazyviz.profile, taken.save, Profile.load]
    for refused in calls:
        with pytest.raises(ProfileError, match=r"got 5, which is int and no path"):
            refused(5)


def test_a_folder_gets_the_devices_trace_and_the_profile(tmp_path):
    x = matrix()
    with lazyviz.profile(tmp_path / "run"):
        (x @ x).sum().item()

    planes = read_profile(tmp_path / "run").planes
    assert any(
        "hlo_op" in e.stats for p in planes for line in p.lines for e in line.events
    )
    assert Profile.load(tmp_path / "run" / "profile.json").steps


def test_a_profile_is_taken_once_and_says_nothing_before_its_end():
    profile = lazyviz.profile()
    with profile:
        assert "is being taken" in str(profile)
        with pytest.raises(ProfileError, match="still being taken"):
            _ = profile.gaps
    with pytest.raises(ProfileError, match="taken already"):
        profile.start()


def test_a_profile_shows_itself_as_text_and_as_static_html(taken):
    bundle = taken._repr_mimebundle_()

    at = f"test_profile.py:{line_of('in a function')}"
    assert at in bundle["text/plain"]
    assert at in bundle["text/html"].replace("<wbr/>", "")


def test_a_profile_leaves_graphs_compiles_and_random_numbers_as_they_are():
    def run():
        torch.manual_seed(3)
        x = matrix()
        y = torch.rand(4, 4, device="lazyrt")
        for _ in range(3):
            y = (y @ x[:4, :4]).tanh()
            lazyrt.mark_step()
        return y.cpu(), lazyrt.compiled_graphs()[-1].fingerprint

    plain, fingerprint = run()
    before = lazyrt.counters()["compiles"]
    with lazyviz.profile():
        profiled, again = run()

    assert torch.equal(plain, profiled)
    assert again == fingerprint
    assert lazyrt.counters()["compiles"] == before


def test_noted_events_bring_no_garbage_collection():
    notes = gaps.Notes()
    for step in range(2_000):
        notes.add(finished(step))

    kept = sum(isinstance(each, events.ExecuteFinished) for each in gc.get_objects())
    assert kept < gc.get_threshold()[0]
    assert [each.event for each in notes] == [finished(step) for step in range(2_000)]


def test_old_notes_are_forgotten_whole():
    notes = gaps.Notes()
    for step in range(2_000):
        notes.add(finished(step))
    assert [each.event.step for each in notes] == [*range(2_000)]

    notes.forget(0, most=2)
    left = [*notes]
    assert [each.event.step for each in left] == [*range(left[0].event.step, 2_000)]
    assert 0 < notes.forgotten_ns < left[0].now_ns

    notes.forget(left[-1].now_ns + 1, most=10)
    assert [*notes] == []


def test_after_a_profile_nothing_listens_any_more():
    listening = list(events.op_listeners)
    with lazyviz.profile():
        assert len(events.op_listeners) == len(listening) + 1
        (matrix() + 1).sum()

    assert events.op_listeners == listening
    assert record.miss is tracing._missed
    assert not tracing._pause_watches
    lazyrt.mark_step()


def test_the_time_to_record_an_op_for_the_first_time_is_told_as_such(monkeypatch):
    infer = record._infer

    def infer_slowly(*args):
        time.sleep(0.005)
        return infer(*args)

    monkeypatch.setattr(record, "_infer", infer_slowly)
    found: list[tracing.Pause] = []
    with lazyrt.watch_pauses(found.append):
        torch.linspace(0, 1, 4_099, device="lazyrt").logcumsumexp(0)

    assert any(pause.is_recording for pause in found)
    lazyrt.mark_step()


def test_nobody_looks_at_the_program_while_a_barrier_takes_long(monkeypatch):
    looks: list[bool] = []
    in_barrier: list[bool] = []

    def take_long(_event):
        in_barrier.append(True)
        time.sleep(0.03)
        in_barrier.clear()

    look = tracing.PauseWatch._look

    def noted(watch):
        looks.append(bool(in_barrier))
        look(watch)

    monkeypatch.setattr(tracing.PauseWatch, "_look", noted)
    with (
        lazyrt.watch_pauses(lambda pause: None),
        lazyrt.on_barrier(take_long),
    ):
        matrix().tanh()
        lazyrt.mark_step()
        matrix().tanh()
        time.sleep(0.03)
        matrix().tanh()

    assert looks
    assert not any(looks)
    lazyrt.mark_step()


def test_backward_counts_for_the_line_of_its_forward_and_update_apart():
    model = torch.nn.Linear(64, 64).to("lazyrt")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(64, 64).to("lazyrt")

    def step():
        model(x).tanh().sum().backward()  # forward and backward
        optimizer.step()  # update
        optimizer.zero_grad()
        lazyrt.mark_step()

    step()
    with lazyviz.profile() as profile:
        step()

    lines = {line.line: line for line in profile.lines}
    model_line = lines[line_of("forward and backward")]
    assert model_line.forward_ns > 0
    assert model_line.backward_ns > 0
    assert model_line.update_ns == 0
    assert lines[line_of("update")].update_ns > 0
    assert lines[line_of("update")].backward_ns == 0
    assert lines[line_of("update")].forward_ns == 0


HLO = """\
HloModule two, is_scheduled=true

%fused (p: f32[1000]) -> f32[1000] {
  %p = f32[1000]{0} parameter(0)
  %tanh.1 = f32[1000]{0} tanh(%p), metadata={op_name="jit(main)/g/aten.tanh.default" source_file="a.py" source_line=3}
  ROOT %add.1 = f32[1000]{0} add(%tanh.1, %p), metadata={op_name="jit(main)/g/aten.add.Tensor" source_file="a.py" source_line=4}
}

ENTRY %main (x: f32[1000]) -> f32[1000] {
  %x = f32[1000]{0} parameter(0)
  ROOT %fusion.1 = f32[1000]{0} fusion(%x), kind=kLoop, calls=%fused, metadata={op_name="jit(main)/g/aten.add.Tensor" source_file="a.py" source_line=4}
}
"""


def test_a_fusion_is_shared_by_the_work_of_what_it_holds():
    program = device_time.Program(HLO)

    shares = {place.line: share for place, share in program.shares("fusion.1").items()}

    assert shares == {3: pytest.approx(70 / 71), 4: pytest.approx(1 / 71)}
    flops = {place.line: n for place, n in program.operations("fusion.1").items()}
    assert flops == {3: 1000.0, 4: 1000.0}
    assert program.bytes_moved("fusion.1") == 8000.0
    assert program.shares("unknown") == {device_time.Place(): 1.0}


def test_a_time_in_which_no_line_of_the_program_ran_is_said_to_be_that():
    host = gaps.HostTime([gaps.Stretch("python", 0, 1_400 * MS, None)])

    (gap,) = gaps.gaps_of(host, [], [], [])

    assert gap.sentence == "For 1.4 s no line of the program ran, as between cells."


def test_a_run_that_was_not_traced_did_the_same_work_however_long_it_took(monkeypatch):
    first, second = started(step=1, at=100), started(step=2, at=1_000)
    traced = device_time.Run(
        0, "two", 100, 200, Counter({"fusion.1": 100}), Counter({"fusion.1": 1}), busy_ns=100.0
    )  # fmt: skip
    monkeypatch.setattr(device_time, "read_trace", lambda _trace: [traced])
    trace: Any = None
    window = device_time.Window(trace, [first], whole={first})
    programs = {"f": [device_time.Program(HLO)]}
    ends = {device_time._key(second): (1_900, True)}  # nine times as long

    found = device_time.device_time([window], [first, second], programs, ends, 2_000)

    assert sum(line.device_ns for line in found.lines) == 1_000
    assert {line.line: line.flops for line in found.lines} == {3: 2_000, 4: 2_000}
    assert sum(line.nbytes for line in found.lines) == 2 * 8_000


def test_a_profile_is_drawn_with_what_the_device_held_and_the_tensors_at_the_peak(
    taken,
):
    view = taken.timeline
    of = {lane: [s for s in view.spans if s.lane == lane] for lane in view.lanes}

    assert [s.name.partition(",")[0] for s in of["device"]] == [
        f"step {step.number}" for step in taken.steps
    ]
    host = union((s.start_ns, s.end_ns) for s in of["host"])
    assert host == [(taken.start_ns, taken.end_ns)]
    assert max(s.level for s in of["memory"]) == 1.0
    peaks = [s for s in of["memory"] if s.kind == "peak"]
    traced = [run for run in taken._device.runs if not run.is_like]
    assert len(peaks) == len(traced) > 0
    assert all("f32[32,32] 4.0 KiB" in s.detail for s in peaks)
    assert 'data-row="memory"' in timeline_svg(view)


ALIASED = """\
HloModule one, is_scheduled=true, input_output_alias={ {1}: (0, {}, may-alias) }

ENTRY %main (x: f32[256], y: f32[256]) -> (f32[256], f32[256]) {
  %x = f32[256]{0} parameter(0)
  %y = f32[256]{0} parameter(1)
  %sum = f32[256]{0} add(%x, %y)
  %product = f32[256]{0} multiply(%x, %sum)
  ROOT %results = (f32[256]{0}, f32[256]{0}) tuple(%sum, %product)
}
"""


def test_what_is_written_into_a_donated_input_takes_no_memory_of_its_own():
    lives = numerics.of_hlo(ALIASED)

    assert {each.name for each in lives.tensors} == {"x", "y", "sum"}
    assert max(lives.live_bytes()) == 3 * 1024


COLLECTIVE = """\
HloModule many, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (x: f32[100], y: f32[300]) -> (f32[100], f32[300]) {
  %x = f32[100]{0} parameter(0)
  %y = f32[300]{0} parameter(1)
  %all-reduce.5 = (f32[100]{0}, f32[300]{0}) all-reduce(%x, %y), to_apply=%add, metadata={op_name="jit(main)/lazyrt_graph/(aten.sum.default:aten.mm.default)" source_file="a.py" source_line=3}
  %one = f32[100]{0} get-tuple-element(%all-reduce.5), index=0
  %two = f32[300]{0} get-tuple-element(%all-reduce.5), index=1
  ROOT %all = (f32[100]{0}, f32[300]{0}) tuple(%one, %two)
}
"""


def test_a_collective_of_several_operands_belongs_to_the_lines_of_all_of_them():
    program = device_time.Program(COLLECTIVE)
    at = {
        name: device_time.Place("a.py", line) for line, name in ((1, "sum"), (2, "mm"))
    }
    program._origins = {
        ("aten.sum.default", ""): {at["sum"]: 1.0},
        ("aten.mm.default", ""): {at["mm"]: 1.0},
    }
    ran = device_time.Run(0, "many", 0, 9, times=Counter(["all-reduce.5"]))

    assert program.has(ran)
    assert program.shares("all-reduce.5") == {
        at["sum"]: pytest.approx(0.5),
        at["mm"]: pytest.approx(0.5),
    }
    assert program.bytes_moved("all-reduce.5") == 2 * 4 * 400


def sample(time_ms, line):
    site = events.SourceLocation("a.py", line, "f")
    return tracing.Sample(time_ms * 1_000_000, (site,))


def line(run):
    return run.site.line


def lines_and_ms(pause):
    runs = gaps.lines_of(pause, {})
    return [(line(run), (run.end_ns - run.start_ns) / 1e6) for run in runs]


def stretches(*rows):
    """Return what a thread did: phase, from and to in ms, and its line or 0."""
    return gaps.HostTime(
        [
            gaps.Stretch(
                phase,
                start * MS,
                end * MS,
                events.SourceLocation("a.py", line, "f") if line else None,
            )
            for phase, start, end, line in rows
        ]
    )


def test_a_gap_is_to_be_moved_only_where_the_program_waited_before_it_in_the_step():
    steps = [
        gaps.StepTime(number=k, start_ns=100 * k * MS, duration_ns=100 * MS)
        for k in range(2)
    ]
    read = ("execute", 100, 140, 3)  # of what the first step ran
    found = []
    for rows in ([("python", 150, 190, 4)], [read, ("python", 150, 190, 4)]):
        host, busy = stretches(*rows), [(100 * MS, 140 * MS)]
        idle = gaps.idle_of(host, busy, steps, 0, 200 * MS)
        (gap,) = gaps.gaps_of(host, busy, steps, idle)
        assert idle[-1].sentence.endswith(gap.sentence[-40:])
        found.append(gap.sentence.partition("load and start 0 ns. ")[2])

    alone, behind_a_read = found
    assert alone == (
        "Do what a.py:4 does on another thread, such as a loader's: the device has finished what it "
        "was given, so doing it earlier in the step wins nothing."
    )
    assert behind_a_read == (
        "Do what a.py:4 does right after the step's barrier, while the device works, or on another "
        "thread, such as a loader's."
    )


def test_a_gap_is_part_of_the_stretch_without_work_that_most_of_it_is_in():
    host = stretches(("python", 10, 60, 4))
    busy = [(0, 8 * MS), (11 * MS, 30 * MS)]
    idle = gaps.idle_of(host, busy, [], 0, 80 * MS)

    (gap,) = gaps.gaps_of(host, busy, [], idle)

    assert (
        "the device is idle for 31 ms of it. That is part of 50 ms without"
        in gap.sentence
    )


def test_who_reads_nothing_is_not_told_to_read_less():
    busy = [(0, 10 * MS)]
    said = []
    for rows in ([("execute", 0, 30, 0)], [("execute", 0, 30, 3)]):
        (idle,) = gaps.idle_of(stretches(*rows), busy, [], 0, 30 * MS)
        said.append(idle.sentence)

    assert said[0].endswith("or this run took longer than those that were traced.")
    assert said[1].endswith("read several values at once.")


def test_a_pause_is_split_at_the_middle_between_samples_of_two_lines():
    samples = tuple(sample(ms, 1 if ms < 5 else 2) for ms in range(1, 10))

    assert lines_and_ms(tracing.Pause(0, 10_000_000, samples, ())) == [
        (1, 4.5),
        (2, 5.5),
    ]


def test_a_lambda_and_the_function_that_calls_it_at_its_line_are_one_gap():
    caller = events.SourceLocation("train.py", 7, "step")
    inner = events.SourceLocation("train.py", 7, "<lambda>"), caller
    seen = [
        tracing.Sample(k * 2_000_000, inner if k % 2 else (caller,)) for k in range(5)
    ]

    pause = tracing.Pause(0, 9_000_000, tuple(seen), ())
    (run,) = gaps.lines_of(pause, gaps._usual_runs([pause]))

    assert (run.start_ns, run.end_ns, run.site) == (0, 9_000_000, caller)


def test_lines_of_a_loop_that_are_seen_for_less_than_a_millisecond_count_together():
    samples = tuple(
        sample(ms, line)
        for ms, line in ((0.4, 1), (0.8, 2), (1.2, 1), (1.6, 3), (2.0, 1))
    )

    assert lines_and_ms(tracing.Pause(0, 2_400_000, samples, ())) == [(1, 2.4)]


def test_a_pause_that_nobody_saw_has_the_line_of_its_like_else_that_which_ended_it():
    after = (events.SourceLocation("a.py", 9, "f"),)
    seen = tracing.Pause(0, 2_000_000, (sample(1, 8),), after)
    usual = gaps._usual_runs([seen])

    (alike,) = gaps.lines_of(tracing.Pause(0, 2_100_000, (), after), usual)
    (shorter,) = gaps.lines_of(tracing.Pause(0, 1_100_000, (), after), usual)

    assert (line(alike), alike.is_sampled) == (8, False)
    assert (line(shorter), shorter.is_sampled) == (9, False)


def test_the_pause_at_the_end_has_the_line_of_those_after_the_same_barrier():
    first_op = (events.SourceLocation("a.py", 2, "f"),)
    barrier = events.BarrierFinished(
        step=1, cause="mark_step()", site=events.SourceLocation("a.py", 7, "f"),
        nodes=1, roots=1, executed=True, duration_ns=0,
    )  # fmt: skip
    noted = [gaps.Noted(barrier, at, 0) for at in (0, 5_000_000)]
    seen = tracing.Pause(1_000, 3_000_000, (sample(1, 8),), first_op)
    last = tracing.Pause(5_001_000, 8_000_000, (), ())

    found = gaps.host_time(noted, [seen, last], 0, 0, 8_000_000)

    assert [line(each) for each in found.stretches] == [8, 8]


def test_the_time_in_which_the_runtime_works_is_none_of_a_lines():
    runtime = tracing.Sample(3_000_000, (), is_runtime=True)
    pause = tracing.Pause(0, 4_000_000, (sample(1, 1), runtime), ())

    assert [(run.phase, run.end_ns) for run in gaps.lines_of(pause, {})] == [
        ("python", 2_000_000),
        ("trace", 4_000_000),
    ]


def test_a_page_has_the_source_with_what_each_line_costs(taken):
    html = taken.to_html()

    assert "time.sleep(0.02)  # in a function" in html
    assert "background:rgba(" in html


def test_a_roofline_says_what_bounds_each_line(taken):
    shown = str(taken.roofline())

    reach = device_time.machine()
    assert reach.roof(1e9) == reach.flops_per_ns
    assert reach.roof(1e-9) == pytest.approx(1e-9 * reach.bytes_per_ns)
    assert f"{reach.flops_per_ns:.1f} GFLOP/s" in shown
    assert "memory" in shown or "compute" in shown


def test_where_another_trace_is_taken_the_ends_of_executions_stand_for_the_devices_time(
    tmp_path,
):
    import jax

    x = matrix(64)
    lazyrt.wait()
    with jax.profiler.trace(str(tmp_path)), lazyviz.profile() as profile:
        for _ in range(2):
            y = x @ x  # noqa: F841 - what the barrier runs
            lazyrt.mark_step()

    assert profile.lines == ()
    assert profile.device_ns > 0
    assert "end the other one first" in str(profile)


@pytest.mark.lazy_only("is about executables of steps")
def test_a_graph_that_another_line_ran_before_costs_the_line_that_runs_it_now():
    x = matrix(64)

    def earlier():
        y = (x @ x).tanh()  # noqa: F841 - what the barrier runs
        lazyrt.mark_step()

    def now():
        y = (x @ x).tanh()  # the same ops elsewhere
        lazyrt.mark_step()
        return y

    earlier()
    with lazyviz.profile() as profile:
        now()

    lines = {each.line for each in profile.lines if each.file}
    assert lines == {line_of("the same ops elsewhere")}


@pytest.mark.lazy_only("is about executables of steps")
def test_a_program_from_disk_whose_lines_have_moved_costs_lines_of_the_graph():
    x = matrix()
    with lazyviz.profile() as profile:
        y = x @ x  # first product
        with lazyrt.scope("a scope"):
            y = (y @ x).tanh()  # in a scope
        lazyrt.mark_step()
    run = next(run for run in profile._device.runs if run.program is not None)
    assert run.program is not None
    graph = lazyrt.compiled_graphs()[-1].graph
    assert graph is not None
    nodes = graph.nodes
    first, scoped = line_of("first product"), line_of("in a scope")
    # Each stands where the other one stood, or nowhere.
    moved = run.program.text.replace(f" line={first} ", f" line={2 * first - scoped} ")
    moved = moved.replace(f" line={scoped} ", f" line={first} ")

    def lines_of(text):
        program = device_time.Program(text, nodes)
        places = (program.shares(op).items() for op in run.times)
        return {tuple(sorted(at.line for at, share in op if share)) for op in places}

    assert lines_of(moved) - {(0,)} == {(first,), (scoped,)}
    # Of a scope of another name each op is shared by those of its name.
    renamed = lines_of(moved.replace("a scope", "another"))
    assert renamed - {(0,)} == {(first,), (scoped,), (first, scoped)}


def test_layers_that_share_a_program_have_their_own_time(monkeypatch):
    monkeypatch.setattr(linked, "_LAUNCH", 0)  # cuts small layers, too
    torch.manual_seed(0)
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(12)
    ]
    model = torch.nn.Sequential(*blocks).to("lazyrt")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(64, 16).to("lazyrt")

    def step():
        model(x).square().mean().backward()  # the loss
        optimizer.step()

    shared = {"compile_tier": "fast", "share_layers": True, "cache_dir": None}
    with lazyrt.config.scoped(**shared):
        for _ in range(2):
            step()
        lazyrt.wait()
        launches: list[events.Event] = []
        with (
            lazyrt.subscribe(launches.append, events.ExecuteStarted),
            lazyviz.profile() as profile,
        ):
            for _ in range(4):
                step()

    # The first layer is like the others in its forward alone: its input needs no gradient.
    assert {
        each.programs for each in launches if isinstance(each, events.ExecuteStarted)
    } == {25}
    time = {each.scope: each for each in profile.scopes}
    layers = [time[f"{k}.0"] for k in range(12)]
    assert all(layer.forward_ns and layer.backward_ns for layer in layers)
    assert all(run.launch and run.program for run in profile._device.runs)
