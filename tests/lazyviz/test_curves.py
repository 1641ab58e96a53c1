"""Scalars of a loop are drawn over its steps, and the steps stay as they are."""

import math

import pytest
import torch

import lazyrt
import lazyviz
from lazyrt.observe import events
from lazyviz import session
from lazyviz.inspection import curves
from tests.harness import cold_start, recorded

SETUP = """
import torch, lazyrt, lazyviz
torch.manual_seed(0)
net = torch.nn.Linear(4, 1).to('lazyrt')
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(1))
total = torch.zeros((), device='lazyrt')
lazyrt.mark_step()
"""
LOOP = """
for x in data:
    with lazyrt.step():
        loss = net(x.to('lazyrt')).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        {track}
"""
TRACK = "lazyviz.track(loss=loss, total=total, half=0.5)"


def curves_of(shell):
    current = session.current(shell)
    assert current is not None
    return current.curves


def points_of(shell, name):
    shown = curves_of(shell).shown(())
    assert shown is not None
    return shown.points[name]


def points(shell, name):
    return [point.number for point in points_of(shell, name)]


def run_loop(shell, track):
    cold_start()
    lazyrt.reset_counters()
    shell.run_cell(SETUP, store_history=True)
    with recorded(events.GraphCaptured, events.ExecuteStarted) as found:
        shell.run_cell(LOOP.format(track=track), store_history=True)
    space = shell.user_ns
    return {
        "graphs": [e.fingerprint for e in found if isinstance(e, events.GraphCaptured)],
        "executions": [
            (e.fingerprint, e.inputs, e.outputs, e.donated)
            for e in found
            if isinstance(e, events.ExecuteStarted)
        ],
        "counters": {**lazyrt.counters()},
        "names": [
            str(name)
            for graph in lazyrt.compiled_graphs()
            if graph.snapshot is not None
            for name in graph.snapshot.root_names.values()
        ],
        "weight": space["net"].weight.detach().cpu().tolist(),
    }


@pytest.mark.parametrize("when", ["True", "float(x[0, 0]) > 0"])
def test_a_tracked_loop_runs_the_graphs_that_it_runs_without(lab, when):
    plain = run_loop(lab, "pass")
    tracked = run_loop(lab, f"if {when}: {TRACK}")

    assert tracked == plain
    assert len(plain["executions"]) == 6
    assert (
        max(donated for *_, donated in plain["executions"]) >= 3
    )  # `total` is one of them


def test_numbers_are_those_of_their_steps_whatever_is_written_later(lab):
    run_loop(lab, TRACK)

    losses, totals = points(lab, "loss"), points(lab, "total")

    assert len(losses) == 6
    assert totals == pytest.approx([sum(losses[: k + 1]) for k in range(6)])
    assert totals[-1] == pytest.approx(lab.user_ns["total"].item())
    assert points(lab, "half") == [0.5] * 6
    assert len({point.step for point in points_of(lab, "loss")}) == 6


def test_a_tensor_that_only_track_holds_is_a_number_of_its_step(lab):
    run_loop(lab, "lazyviz.track(double=loss * 2, loss=loss, size=net)")

    losses = points(lab, "loss")
    assert points(lab, "double") == pytest.approx([2 * loss for loss in losses])
    assert all(norm > 0 for norm in points(lab, "size"))
    assert lazyrt.counters()["executions"] - 1 == 6
    assert not [t for t in lazyrt.live_tensors() if t.pending]


def test_gradients_that_are_computed_are_measured_beside_the_program(lab):
    plain = run_loop(lab, "pass")
    tracked = run_loop(lab, "pass\n    lazyviz.track(size=net)")

    peeks = {name for name in tracked["counters"] if name.startswith("peek_")}
    for found in (plain, tracked):
        found["counters"] = {
            k: v for k, v in found["counters"].items() if k not in peeks
        }
        (fingerprint,) = set(plain["graphs"])
        found["executions"] = [e for e in found["executions"] if e[0] == fingerprint]
    assert tracked == plain
    assert len(points(lab, "size")) == 6
    last = lazyrt.compiled_graphs()[-1].last_step
    assert [point.step for point in points_of(lab, "size")] == [
        *range(last - 5, last + 1)
    ]
    assert not lazyrt.status().pending_ops


def test_a_loss_is_of_the_step_that_computed_it_though_the_next_has_begun(lab):
    begun = "pass\n    ahead = torch.ones(2, device='lazyrt') + 1\n    lazyviz.track(loss=loss)"
    run_loop(lab, begun)

    barrier = lazyrt.status().last_barrier
    assert barrier is not None
    last = barrier.step
    assert [point.step for point in points_of(lab, "loss")] == [
        *range(last - 5, last + 1)
    ]


def test_the_strip_has_the_curves_of_its_cell(lab):
    run_loop(lab, TRACK)
    strip = lab.display_pub.outputs[-1]["data"]
    lab.run_cell("y = torch.ones(3, device='lazyrt') + 1", store_history=True)
    later = lab.display_pub.outputs[-1]["data"]

    text = strip["text/plain"]
    assert "steps " in text
    assert "loss " in text
    assert "step time  " in text
    assert "compiled at step" in text
    assert "loss over steps" in strip["text/html"]
    assert "step time" not in later["text/plain"]


def test_memory_is_known_of_the_first_step_and_the_last_however_seldom_it_is_added_up(
    lab, monkeypatch
):
    monkeypatch.setattr(curves, "_SELDOM", 10**9)

    run_loop(lab, TRACK)

    steps = [point.step for point in points_of(lab, "loss")]
    assert [p.step for p in points_of(lab, "memory")] == [steps[0], steps[-1]]


def test_the_view_draws_the_session_and_says_what_to_call_where_nothing_is(lab):
    lab.run_cell("%lazy curves", store_history=True)
    assert (
        "lazyviz.track(loss=loss)" in lab.display_pub.outputs[-1]["data"]["text/plain"]
    )
    run_loop(lab, TRACK)
    lab.run_cell(LOOP.format(track=TRACK), store_history=True)

    lab.run_cell("%lazy curves", store_history=True)

    assert len(points(lab, "loss")) == 12
    assert "total" in lab.display_pub.outputs[-1]["data"]["text/plain"]


def test_a_dropped_step_has_no_number(lab):
    lab.run_cell(
        "import lazyviz\nx = torch.ones(2, device='lazyrt')\nlazyviz.track(loss=x.sum())",
        store_history=True,
    )
    lab.run_cell("%lazy drop", store_history=True)
    lab.run_cell("lazyviz.track(loss=3.0)", store_history=True)

    assert points(lab, "loss") == [3.0]


def test_what_is_no_number_is_refused_with_what_to_pass(lab):
    current = curves_of(lab)

    with pytest.raises(Exception, match=r"one real number.*loss\.mean\(\)"):
        current.track({"loss": torch.ones(2, device="lazyrt")})
    with pytest.raises(Exception, match="got str, which is no number"):
        current.track({"loss": "low"})
    assert current.shown(()) is None


def test_outside_of_a_session_nothing_is_tracked():
    lazyviz.track(loss=torch.ones((), device="lazyrt") + 1)

    current = session.current()
    assert current is None or not current.attached


def test_a_curve_keeps_the_extremes_of_a_pixel_and_marks_what_is_not_finite():
    numbers = [1.0] * 5_000
    numbers[2_500] = 9.0
    numbers[4_000] = math.nan
    made = [curves.Point(k, number, 1) for k, number in enumerate(numbers)]

    drawn = curves.curve_svg(made, (0, 4_999), [17])

    heights = {
        piece.split()[1] for piece in drawn.split(' d="M')[3].split('"')[0].split("L")
    }
    assert {"3.0", "41.0"} <= heights
    assert drawn.count(curves._BAD) == 1
    assert drawn.count("stroke-dasharray") == 1
    assert len(drawn) < 20_000


def test_a_number_that_is_taken_after_that_of_a_later_step_is_drawn_before_it():
    taken = curves.Curves()
    for step in (2, 1, 3):
        taken._add("loss", curves.Point(step, float(step), 0))

    found = taken.shown([])

    assert found is not None
    assert [point.step for point in found.points["loss"]] == [1, 2, 3]


def test_the_median_of_two_step_times_lies_between_them():
    made = [curves.Point(0, 2e6, 1), curves.Point(1, 4e6, 1)]

    assert curves._change(curves.STEP_TIME, made) == "median 3.0 ms, most 4.0 ms"


def test_numbers_that_the_words_do_not_tell_apart_are_drawn_level():
    made = [curves.Point(k, 1 - k / 1e6, 1) for k in range(3)]

    drawn = curves.curve_svg(made, (0, 2))

    heights = {
        piece.split()[1] for piece in drawn.split('d="M')[2].split('"')[0].split("L")
    }
    assert len(heights) == 1
    assert len(set(curves._bars(made, (0, 2)).replace(" ", ""))) == 1
