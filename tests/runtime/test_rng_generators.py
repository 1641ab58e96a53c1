"""`torch.Generator(device="lazyrt")`, and the device module's random functions."""

import copy
import io
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import lazyrt
from lazyrt.frontend import record
from lazyrt.observe import events
from tests.harness import DEVICE, recorded, step_fingerprints
from tests.runtime.semantics import slow_but

MODULE = torch.get_device_module(DEVICE)

DRAWS = {
    "rand": lambda g: torch.rand(8, device=DEVICE, generator=g),
    "randn": lambda g: torch.randn(8, device=DEVICE, generator=g),
    "randint": lambda g: torch.randint(0, 1000, (8,), device=DEVICE, generator=g),
    "randint-low": lambda g: torch.randint(5, 900, (8,), device=DEVICE, generator=g),
    "randperm": lambda g: torch.randperm(32, device=DEVICE, generator=g),
    "normal_": lambda g: torch.empty(8, device=DEVICE).normal_(generator=g),
    "uniform_": lambda g: torch.empty(8, device=DEVICE).uniform_(generator=g),
    "exponential_": lambda g: torch.empty(8, device=DEVICE).exponential_(generator=g),
    "bernoulli": lambda g: torch.full((64,), 0.5, device=DEVICE).bernoulli(generator=g),
    "bernoulli_": lambda g: torch.empty(64, device=DEVICE).bernoulli_(generator=g),
    "multinomial": lambda g: torch.ones(99, device=DEVICE).multinomial(9, generator=g),
    "normal": lambda g: torch.normal(torch.zeros(8, device=DEVICE), 1.0, generator=g),
    "random_": lambda g: torch.empty(8, device=DEVICE).random_(1000, generator=g),
    "trunc_normal_": lambda g: torch.nn.init.trunc_normal_(
        torch.empty(8, device=DEVICE), generator=g
    ),
    "out": lambda g: torch.rand(8, out=torch.empty(8, device=DEVICE), generator=g),
}


def lazy_generator(seed):
    return torch.Generator(device=DEVICE).manual_seed(seed)


@pytest.mark.parametrize(
    "draw", slow_but(DRAWS, {"rand", "normal_", "bernoulli", "multinomial", "out"})
)
def test_an_op_draws_from_the_generator_that_it_is_given(draw):
    before = MODULE.get_rng_state()
    g = lazy_generator(7)
    first, second = DRAWS[draw](g), DRAWS[draw](g)
    again = DRAWS[draw](lazy_generator(7))
    other = DRAWS[draw](lazy_generator(8))
    lazyrt.mark_step()

    assert torch.equal(first.cpu(), again.cpu())
    assert not torch.equal(first.cpu(), second.cpu())
    assert not torch.equal(first.cpu(), other.cpu())
    assert torch.equal(MODULE.get_rng_state(), before)
    assert lazyrt.counters()["cpu_fallbacks"] == 0


def test_a_generator_gives_what_the_default_one_gives_for_the_same_seed():
    torch.manual_seed(7)
    expected = torch.rand(4, device=DEVICE)

    assert torch.equal(DRAWS["rand"](lazy_generator(7))[:0].cpu(), torch.empty(0))
    drawn = torch.rand(4, device=DEVICE, generator=lazy_generator(7))
    assert torch.equal(drawn.cpu(), expected.cpu())


def test_a_generator_is_known_by_its_device_and_its_class():
    g = torch.Generator(device=DEVICE)

    assert isinstance(g, torch.Generator)
    assert g.device == torch.device(DEVICE, 0)
    assert torch.Generator(torch.device(DEVICE)).device.type == DEVICE
    assert g.initial_seed() == torch.Generator().initial_seed()
    assert g.manual_seed(3) is g
    assert g.initial_seed() == 3
    assert g.seed() == g.initial_seed()


def test_generators_of_other_devices_are_torchs_own():
    g = torch.Generator()

    assert type(g) is torch._C.Generator
    assert isinstance(g, torch.Generator)
    assert not isinstance(3, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert torch.Generator(device="cpu").device.type == "cpu"
    assert pickle.loads(pickle.dumps(g.manual_seed(5))).initial_seed() == 5  # noqa: S301
    assert torch.rand(2, generator=g).shape == (2,)


def test_a_generators_state_can_be_saved_and_restored():
    g = lazy_generator(2**63 + 5)
    DRAWS["rand"](g)
    state = g.get_state()
    expected = DRAWS["rand"](g)
    lazyrt.mark_step()

    assert g.set_state(state) is g
    assert torch.equal(DRAWS["rand"](g).cpu(), expected.cpu())
    assert state.dtype is torch.uint8
    assert state.device.type == "cpu"
    MODULE.set_rng_state(state)
    assert torch.equal(torch.rand(8, device=DEVICE).cpu(), expected.cpu())


def test_a_copied_or_pickled_generator_goes_on_by_itself():
    g = lazy_generator(4)
    DRAWS["rand"](g)
    copies = [g.clone_state(), copy.deepcopy(g), pickle.loads(pickle.dumps(g))]  # noqa: S301
    expected = DRAWS["rand"](g).cpu()

    for copied in copies:
        assert torch.equal(DRAWS["rand"](copied).cpu(), expected)


@pytest.mark.parametrize(
    "state", [torch.get_rng_state(), torch.zeros(16), torch.zeros(3, dtype=torch.uint8)]
)
def test_the_state_of_another_kind_of_generator_is_refused(state):
    with pytest.raises(lazyrt.errors.UsageError, match="16 bytes"):
        torch.Generator(device=DEVICE).set_state(state)


def test_a_generator_of_another_device_is_refused_and_nothing_is_drawn():
    before = MODULE.get_rng_state()

    with pytest.raises(
        lazyrt.errors.DeviceError, match=r"Make one with torch\.Generator"
    ):
        torch.rand(3, device=DEVICE, generator=torch.Generator())

    assert torch.equal(MODULE.get_rng_state(), before)


@pytest.mark.slow
def test_barriers_prints_and_peeks_between_draws_change_nothing():
    def program(between):
        g = lazy_generator(7)
        values = []
        for draw in ("rand", "randn", "normal_", "randint"):
            values.append(DRAWS[draw](g))
            between(values[-1])
        return [value.cpu() for value in values]

    plain = program(lambda t: None)

    for between in (lambda t: lazyrt.mark_step(), repr, lazyrt.materialise):
        for mine, theirs in zip(program(between), plain, strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_seed_is_an_input_of_the_graph_and_never_a_constant():
    with recorded(events.GraphCaptured) as found:
        values = []
        for seed in range(5):
            y = torch.rand(16, device=DEVICE, generator=lazy_generator(seed)) * 3
            lazyrt.mark_step()
            values.append(tuple(y.tolist()))

    assert len(set(values)) == 5
    assert len(set(step_fingerprints(found))) == 1
    assert lazyrt.counters()["compiles"] + lazyrt.counters()["disk_hits"] <= 1


def test_samplers_of_data_loaders_take_a_generator_of_the_device():
    data = TensorDataset(torch.arange(8))

    def order(seed):
        sampler = RandomSampler(data, generator=lazy_generator(seed))
        return [int(batch[0]) for batch in DataLoader(data, sampler=sampler)]

    assert sorted(order(1)) == list(range(8))
    assert order(1) == order(1)


def test_the_device_module_has_torchs_random_functions():
    MODULE.manual_seed(9)
    assert MODULE.initial_seed() == 9
    state = MODULE.get_rng_state_all()
    expected = torch.rand(3, device=DEVICE).cpu()
    MODULE.set_rng_state_all(state)
    assert torch.equal(torch.rand(3, device=DEVICE).cpu(), expected)
    assert MODULE.seed() == MODULE.initial_seed()
    MODULE.set_rng_state(state[0])
    drawn = torch.rand(3, device=DEVICE, generator=MODULE.default_generators[0])
    assert torch.equal(drawn.cpu(), expected)


def test_nested_forks_restore_the_devices_state():
    torch.manual_seed(3)
    with torch.random.fork_rng(device_type=DEVICE):
        torch.manual_seed(4)
        torch.rand(2, device=DEVICE)
        with torch.random.fork_rng(device_type=DEVICE):
            torch.rand(5, device=DEVICE)
        inner = torch.rand(2, device=DEVICE).cpu()
    after = torch.rand(2, device=DEVICE).cpu()

    torch.manual_seed(3)
    assert torch.equal(torch.rand(2, device=DEVICE).cpu(), after)
    torch.manual_seed(4)
    torch.rand(2, device=DEVICE)
    assert torch.equal(torch.rand(2, device=DEVICE).cpu(), inner)


def test_a_random_op_that_runs_on_the_cpu_follows_the_devices_seed(monkeypatch):
    op = record.operation(torch.ops.aten.poisson.default)
    monkeypatch.setattr(
        record, "_forced", {op}
    )  # as `lazyrt.fallback()` does, for good
    monkeypatch.setattr(op, "cache", {})

    def draw():
        with torch.no_grad():
            return torch.poisson(torch.full((16,), 9.0, device=DEVICE)).cpu()

    torch.manual_seed(1)
    cpu_before = torch.get_rng_state()
    first, second = draw(), draw()
    cpu_after = torch.get_rng_state()
    torch.manual_seed(1)

    assert torch.equal(draw(), first)
    assert not torch.equal(second, first)
    assert torch.equal(cpu_before, cpu_after)


def test_states_travel_in_checkpoints():
    g = lazy_generator(6)
    file = io.BytesIO()
    torch.save({"default": MODULE.get_rng_state(), "mine": g.get_state()}, file)
    file.seek(0)

    loaded = torch.load(file, weights_only=True)

    assert torch.equal(loaded["mine"], g.get_state())
    assert torch.equal(loaded["default"], MODULE.get_rng_state())


def test_a_call_that_fails_draws_nothing():
    weights, out = torch.ones(3).to(DEVICE), torch.zeros(1, dtype=torch.long).to(DEVICE)
    before = MODULE.get_rng_state()

    with pytest.raises(RuntimeError, match="cannot sample n_sample <= 0"):
        torch.multinomial(weights, 0, out=out)

    assert torch.equal(MODULE.get_rng_state(), before)
