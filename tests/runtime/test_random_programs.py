"""Random programs, fixed by their seeds, run in every mode as on the CPU.

`python -m benchmarks fuzz` tries as many as one likes; what it found is kept in
test_fuzz_regressions.py.
"""

import random

import pytest
import torch

import lazyrt
from benchmarks import programs
from benchmarks.fuzz import LENGTH, search, shortest
from benchmarks.programs import (
    CHOICES,
    LARGEST_CHOICE,
    START,
    Mismatch,
    Program,
    check,
    modes,
    run_lazily,
    run_on_cpu,
    write_program,
)
from lazyrt.lowering import registry, spec
from tests.harness import thinned


def written(seed, length=LENGTH):
    """Return a program that follows from its seed, without hypothesis."""
    r = random.Random(seed)  # noqa: S311
    return write_program(
        [[r.randrange(LARGEST_CHOICE) for _ in range(CHOICES)] for _ in range(length)]
    )


@pytest.mark.parametrize("seed", thinned(range(4), 2))
def test_a_program_leaves_in_every_mode_what_it_leaves_on_the_cpu(seed):
    check(written(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 104))
def test_a_long_program_leaves_in_every_mode_what_it_leaves_on_the_cpu(seed):
    check(written(seed, length=40))


@pytest.mark.slow
def test_hypothesis_finds_no_program_that_differs():
    seen: set[str] = set()

    assert search(seed=7, count=15, length=LENGTH, seen=seen) is None
    assert len(seen) > 5


def test_programs_are_of_every_kind():
    text = "\n".join(written(seed, length=40).text for seed in range(40))

    for part in (
        "backward(", "mark_step()", "show(", "if ", "for ", "del ", ".item()", "rand_like",
        "noise(", "no_grad", "raises", ".double()", ".expand(", ".unfold(",
    ):  # fmt: skip
        assert part in text


def test_the_modes_are_those_of_the_runtime():
    names = [mode.name for mode in modes()]

    assert names[0] == "lazy"
    assert len(names) == len(set(names)) >= 4
    assert ("eager" in names) == hasattr(lazyrt, "eager_mode")
    pairs = {mode.turns for mode in modes() if mode.turns}
    assert pairs == {("lazy", "eager"), ("lazy", "opbyop"), ("eager", "opbyop")}


def test_two_modes_that_differ_are_found_where_each_is_near_the_cpu(monkeypatch):
    """The difference of two modes is held to the bound that holds for the CPU."""
    program = Program((*START, "a.mul_(1.0)"))
    real = programs.run_lazily

    def shifted(program, mode):
        outcome = real(program, mode)
        shift = {"lazy": 0.9e-4, "eager": -0.9e-4}.get(mode.name, 0.0)
        with torch.no_grad():
            outcome.tensors["b"] = torch.zeros_like(outcome.tensors["b"]) + shift
        return outcome

    monkeypatch.setattr(programs, "run_lazily", shifted)
    monkeypatch.setattr(programs, "run_on_cpu", lambda _: zeroed(program))
    with pytest.raises(Mismatch, match="in mode eager: beside mode lazy: b is"):
        check(program)


def zeroed(program):
    tensors = run_on_cpu(program)
    tensors["b"] = torch.zeros_like(tensors["b"])
    return tensors


def test_modes_take_turns_line_by_line():
    turns = next(mode for mode in modes() if mode.turns == ("lazy", "eager"))
    found = []
    for line in (1, 2, 3):
        with turns.turn(line):
            found.append(str(lazyrt.mode()))

    assert found == ["eager", "lazy", "eager"]


def test_an_error_of_the_cpu_must_be_one_on_the_device():
    lazy = modes()[0]
    lines = (*START, "w.add_(1)")

    check(Program(lines, RuntimeError))
    with pytest.raises(Mismatch, match=r"w\.add_.* raises RuntimeError"):
        run_lazily(Program(lines), lazy)
    with pytest.raises(Mismatch, match="raises None, on the CPU RuntimeError"):
        run_lazily(Program((*START, "a.add_(1)"), RuntimeError), lazy)


@pytest.mark.slow
def test_a_wrong_lowering_is_found_and_its_program_shortened(monkeypatch):
    right = registry.rule_for(torch.ops.aten.flip.default)
    assert right is not None
    lazyrt.clear_caches()
    monkeypatch.setattr(spec, "_specs", {})
    program = next(
        program
        for seed in range(200)
        if ".flip(0)" in (program := written(seed)).text and program.error is None
    )

    def wrong(ctx, x, dims):
        return x + right(ctx, x, dims)

    monkeypatch.setitem(registry._rules, "aten.flip.default", wrong)
    with pytest.raises(Mismatch) as caught:
        check(program)
    found = shortest(program, str(caught.value)).split("\n\n")[-1]

    assert "flip" in found
    assert len(found.splitlines()) <= len(START) + 4
