"""What a look is expected to take, by a clock that only work moves."""

import itertools
import json
import random

import pytest
import torch

import lazyrt
from lazyrt import jax_compat
from lazyrt.execution import cache, completion, cost_model
from lazyrt.execution.cost_model import Part
from tests.harness import cold_start


@pytest.fixture(autouse=True)
def _nothing_learned():
    cost_model.forget()
    cost_model.set_calibrated()
    yield
    cost_model.forget()


def _file():
    found = cache.pace_path()
    assert found is not None
    return found


class Clock:
    """A clock that stands still but for the work it is told of."""

    ns = 0

    def __call__(self):
        return self.ns


@pytest.mark.parametrize("speed", [0.1, 1, 12])
def test_after_one_look_of_a_kind_the_next_is_expected_within_a_factor_of_two(
    speed,
):
    """Kinds that take a thirtieth to thirty times their guess, on a slow and a fast machine."""
    draw = random.Random(0)  # noqa: S311 - no secret
    truth = {
        f"run op{k}": speed * 30 ** draw.uniform(-1, 1) for k in range(20)
    }  # what a kind takes, by its guess

    for kind, factor in truth.items():
        cost_model.learn([Part(kind, 8, 5e7)], 5e7 * factor)

    for kind, factor in truth.items():
        for guess in (2e7, 5e7, 9e7):
            span = cost_model.expected([Part(kind, 8, guess)])
            took = guess * factor * draw.uniform(0.6, 1.6)
            assert took / 2 <= span.ns <= took * 2
            assert span.low_ns == span.high_ns == span.ns


def test_what_is_not_known_is_a_range_of_four_times_and_the_machine_counts():
    fresh = cost_model.expected([Part("run mm", 5, 8e6)])
    for kind in ("run add", "run exp", "run sum"):
        cost_model.learn([Part(kind, 5, 4e6)], 12e6)
    slow = cost_model.expected([Part("run mm", 5, 8e6)])
    other_size = cost_model.expected([Part("run add", 9, 8e6)])

    assert (fresh.low_ns, fresh.ns, fresh.high_ns) == (4e6, 8e6, 16e6)
    assert slow.ns == pytest.approx(24e6, rel=1e-3)
    assert slow.high_ns <= 4.01 * slow.low_ns
    assert other_size.high_ns < 3 * other_size.low_ns


def test_what_is_known_is_believed_and_the_rest_is_the_new_kinds():
    cost_model.learn([Part("run known", 5, 10e6)], 40e6)

    cost_model.learn([Part("run known", 5, 10e6), Part("run new", 5, 10e6)], 240e6)

    assert cost_model.expected([Part("run known", 5, 10e6)]).ns == pytest.approx(40e6)
    assert cost_model.expected([Part("run new", 5, 10e6)]).ns == pytest.approx(200e6)


def test_one_outlier_is_no_rule_and_what_a_clock_cannot_tell_is_none():
    part = Part("run op", 5, 10e6)
    for _ in range(3):
        cost_model.learn([part], 10e6)
    cost_model.learn([part], 50_000)  # of the clock
    cost_model.learn([], 10e6)
    unmoved = cost_model.expected([part]).ns
    cost_model.learn([part], 400e6)

    after = cost_model.expected([part]).ns
    cost_model.learn([part], 10e6)
    cost_model.learn([part], 10e6)

    assert unmoved == pytest.approx(10e6)
    assert after < 70e6
    assert cost_model.expected([part]).ns < 20e6


def test_what_hardly_counts_learns_nothing_from_what_does():
    """A scale of a large product tells nothing of how long a scale takes."""
    cost_model.learn([Part("run mm", 9, 100e6), Part("run mul", 4, 1e6)], 900e6)

    assert "run mul" not in cost_model._factors
    assert cost_model.expected([Part("run mm", 9, 100e6)]).ns == pytest.approx(
        900e6, rel=0.1
    )


def test_a_pause_in_little_work_says_nothing_of_much_work():
    cost_model.learn([Part("run mm", 1, 20_000), Part("run overhead", 0, 60_000)], 90e6)

    assert cost_model.expected([Part("run mm", 12, 3e9)]).ns == 3e9


def test_later_processes_know_what_earlier_ones_learned(tmp_path):
    lazyrt.config.cache_dir = tmp_path
    cost_model.learn([Part("run op", 5, 10e6)], 70e6)
    cost_model.save()
    cost_model.forget()

    remembered = cost_model.expected([Part("run op", 5, 10e6)])

    assert remembered.ns == pytest.approx(70e6, rel=1e-3)
    assert remembered.high_ns == remembered.low_ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 9_000,
        "{",
        "[]",
        '{"version": 99, "factors": {"run": [1, 1]}}',
        '{"version": 3, "factors": {"run": 7}}',
        '{"version": 3, "factors": {"run": ["x", 1]}}',
        '{"version": 3, "factors": {"run": [NaN, 1]}}',
        '{"version": 3, "factors": [1]}',
        "\0\xff",
        " " * (2**20 + 1),
    ],
)
def test_a_damaged_file_or_one_of_another_version_is_not_believed(tmp_path, text):
    lazyrt.config.cache_dir = tmp_path
    file = _file()
    cache.write_text(file, text)

    assert cost_model.expected([Part("run op", 5, 10e6)]).ns == 10e6
    cost_model.learn([Part("run op", 5, 10e6)], 20e6)
    cost_model._changed = True
    cost_model.save()
    assert json.loads(file.read_text())["version"] == 3


def test_the_file_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(cost_model, "_MAX_FACTORS", 50)
    lazyrt.config.cache_dir = tmp_path
    for k in range(200):
        cost_model.learn([Part(f"run op{k}", 5, 10e6)], 20e6)
    cost_model._changed = True
    cost_model.save()

    held = json.loads(_file().read_text())["factors"]

    assert len(held) == 50
    assert {"run", "run op199", "run op199 5"} <= set(held)


_OPS = (
    torch.exp, torch.tanh, torch.neg, torch.relu, torch.cos, lambda x: x @ x, lambda x: x.softmax(1),
    lambda x: x.sum(1, keepdim=True) + x,
)  # fmt: skip


@pytest.mark.not_eager("looks at what is pending")
def test_of_thirty_programs_a_compile_is_expected_within_a_factor_of_two_or_not_at_all():
    """Programs of 2 to 40 ops, whose kinds take a fifth to five times what is guessed."""
    draw = random.Random(2)  # noqa: S311 - no secret
    truth: dict[str, float] = {}
    told, unknown = [], 0
    for _ in range(30):
        x = torch.ones(4, 4).to("lazyrt")
        kinds = draw.sample(_OPS, draw.randint(1, 3))
        for _ in range(draw.randint(2, 40)):
            x = draw.choice(kinds)(x)
        nodes = lazyrt.pending_graph(x).nodes
        parts = cost_model.step_compile(nodes, fast=True)
        took = draw.uniform(0.7, 1.4) * sum(
            part.guess_ns * truth.setdefault(part.kind, 5 ** draw.uniform(-1, 1))
            for part in parts
        )

        with lazyrt.config.scoped(compile_tier="fast"):
            forecast = cost_model.compile_forecast(nodes)

        if forecast is None:
            unknown += 1
        else:
            told.append(took / forecast)
        cost_model.learn(parts, took)

    assert unknown < 15
    assert sum(0.5 <= ratio <= 2 for ratio in told) >= 0.9 * len(told), told


def _look(build):
    """Return what a look was expected to take, and the inspection and node to look at."""
    inspection = lazyrt.inspect(build())
    return inspection, inspection.graph.nodes[-1].id


@pytest.mark.not_eager("looks at what is pending")
def test_looks_of_a_kind_are_expected_within_a_factor_of_two_after_the_first(
    monkeypatch,
):
    """The whole way: cost(), look(), cost() of the next, on a machine that takes its own time.

    The first of all, too: the machine is timed before.
    """
    cold_start()
    cost_model.forget()
    clock = Clock()
    monkeypatch.setattr(cost_model, "now", clock)
    compile_function, block = jax_compat.compile_function, jax_compat.block

    def compiling(*args, **options):
        clock.ns += 333_000_000
        return compile_function(*args, **options)

    def blocking(array):
        clock.ns += 77 * array.nbytes
        block(array)

    monkeypatch.setattr(jax_compat, "compile_function", compiling)
    monkeypatch.setattr(jax_compat, "block", blocking)
    kinds = (torch.neg, lambda x: x @ x, torch.exp)
    ratios = []

    for kind, size in itertools.product(kinds, (256, 260)):
        x = torch.ones(size, size).to("lazyrt")
        lazyrt.mark_step()
        inspection, node = _look(lambda kind=kind, x=x: kind(x))
        cost = inspection.cost(node)
        before = clock.ns
        inspection.look(node)
        ratios.append((clock.ns - before) / (cost.estimate_ns + cost.look_ns))
        assert cost.low_ns <= cost.estimate_ns + cost.look_ns <= cost.high_ns

    assert all(0.5 <= ratio <= 2 for ratio in ratios), ratios


@pytest.mark.not_eager("looks at what is pending")
def test_a_machine_is_timed_once_and_in_no_count(tmp_path, monkeypatch):
    lazyrt.config.cache_dir = tmp_path
    cost_model.forget()
    compiled = []
    compile_function = jax_compat.compile_function

    def counted(*args, **options):
        compiled.append(args)
        return compile_function(*args, **options)

    monkeypatch.setattr(jax_compat, "compile_function", counted)
    x = torch.ones(5, 7).to("lazyrt")
    lazyrt.mark_step()
    inspection, node = _look(x.neg)
    counts, live = dict(lazyrt.counters()), len(lazyrt.live_tensors())
    seen: list[object] = []

    with monkeypatch.context() as busy:
        busy.setattr(completion, "in_flight", lambda: 1)
        inspection.cost(node)
    while_busy = len(compiled)
    with lazyrt.subscribe(seen.append):
        inspection.cost(node)
        inspection.cost(node)
    cost_model.save()
    cost_model.forget()
    inspection.cost(node)

    assert (while_busy, len(compiled)) == (0, 3)
    assert dict(lazyrt.counters()) == counts
    assert len(lazyrt.live_tensors()) == live
    assert seen == []


@pytest.mark.not_eager("looks at what is pending")
def test_a_machine_that_cannot_be_timed_has_plain_guesses(monkeypatch):
    def failing(*_, **__):
        raise RuntimeError("no compiler")

    cost_model.forget()
    monkeypatch.setattr(jax_compat, "compile_function", failing)
    inspection, node = _look(lambda: torch.ones(3).to("lazyrt") + 1)

    assert inspection.cost(node).estimate_ns > 0


@pytest.mark.not_eager("looks at what is pending")
def test_an_executable_on_disk_is_expected_to_be_loaded(tmp_path):
    lazyrt.config.cache_dir = tmp_path
    x = torch.ones(5, 7).to("lazyrt")
    lazyrt.mark_step()
    cold_start()

    def cost():
        inspection, node = _look(lambda: torch.cos(x) * 3.25)
        found = inspection.cost(node)
        inspection.materialise(node)
        return found

    x = torch.ones(5, 7).to("lazyrt")
    lazyrt.mark_step()
    fresh = cost()
    cold_start()
    x = torch.ones(5, 7).to("lazyrt")
    lazyrt.mark_step()
    again = cost()

    assert (fresh.compiles, fresh.loads) == (2, 0)
    assert (again.compiles, again.loads) == (0, 2)
    assert again.estimate_ns < fresh.estimate_ns / 3
