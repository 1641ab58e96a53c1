"""Whatever two programs differ in: the second one's compile has a reason, and a fix."""

import copy
import random

import pytest
import torch

import lazyrt
from benchmarks.programs import Program as Training
from benchmarks.programs import modes, run_lazily
from tests.graphs import BINARY, SHAPE, UNARY, Program
from tests.harness import DEVICE, cold_start
from tests.runtime.test_random_programs import written

pytestmark = pytest.mark.usefixtures("cold")


def other_op(program, rng):
    """Return the program with another op in one line."""
    number = rng.randrange(len(program.lines))
    name, operands = program.lines[number]
    table = UNARY if len(operands) == 1 else BINARY
    program.lines[number] = rng.choice([k for k in table if k != name]), operands


def other_operand(program, rng):
    """Let one line read another value."""
    number = rng.randrange(len(program.lines))
    name, (_, *rest) = program.lines[number]
    program.lines[number] = (
        name,
        (rng.randrange(program.inputs + number), *rest),
    )


def other_results(program, rng):
    """Keep other values alive."""
    values = range(program.inputs, program.inputs + program.size)
    program.results = sorted(rng.sample(values, rng.randint(1, min(5, program.size))))


def shorter(program, rng):
    """End the program earlier."""
    program.size = rng.randint(1, program.size - 1)
    del program.lines[program.size :]
    last = program.inputs + program.size
    program.results = [k for k in program.results if k < last] or [last - 1]


def unrelated(program, rng):
    """Write another program altogether."""
    found = Program(seed=rng.randrange(10_000, 20_000))
    program.lines, program.results = found.lines, found.results


CHANGES = (other_op, other_operand, other_results, shorter, unrelated)


def pair(seed):
    """Return two programs, the second with one to three changes, and its inputs' dtype."""
    rng = random.Random(seed)  # noqa: S311
    one = Program(seed=seed)
    two = copy.deepcopy(one)
    for change in rng.sample(CHANGES, rng.randint(1, 3)):
        if change is not shorter or two.size > 1:
            change(two, rng)
    return one, two, rng.choice([torch.float32, torch.float32, torch.float64])


def run(program, dtype):
    data = [tensor.to(dtype).to(DEVICE) for tensor in program.data("cpu")]
    with lazyrt.step():
        return program.run(data)


def check_reasons():
    """Every graph but the first has ranked causes, each with a sentence and what to do."""
    _, *later = lazyrt.compiled_graphs()
    for record in later:
        found = record.explanation
        assert found is not None
        assert found.causes, record.name
        assert lazyrt.explain(found.step) is not None
        for cause in found.causes:
            assert cause.text.strip(), (record.name, cause)
            assert cause.fix.strip(), (record.name, cause)
        assert found.top is found.causes[0]
        assert found.top.text in str(found)
        assert record.cause
    return len(later)


def check_pairs(seeds):
    """Return how many of the pairs compiled twice."""
    compiled = 0
    for seed in seeds:
        cold_start()
        one, two, dtype = pair(seed)
        run(one, torch.float32)
        compiles = lazyrt.counters()["compiles"]
        run(two, dtype)
        found = check_reasons()
        assert found == lazyrt.counters()["compiles"] - compiles, seed
        compiled += found
    return compiled


@pytest.mark.lazy_only("is about compiled steps")
@pytest.mark.slow
def test_the_reason_of_a_second_program_is_never_empty():
    assert SHAPE == (3, 4)
    assert check_pairs(range(100, 120)) >= 13


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_each_cut_of_a_random_training_program_has_a_reason(seed):
    """Views, writes, gradients, branches, reads: two programs, one after the other."""
    cold_start()
    program: Training = written(seed, length=25)
    run_lazily(program, modes()[0])
    run_lazily(written(seed + 1000, length=25), modes()[0])

    assert check_reasons() >= 1
