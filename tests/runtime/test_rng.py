import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.observe import events
from tests.harness import DEVICE, grad_of, recorded, step_fingerprints, thinned

DRAWS = {
    "rand": lambda: torch.rand(4, device=DEVICE),
    "randn": lambda: torch.randn(4, device=DEVICE),
    "randint": lambda: torch.randint(0, 1000, (4,), device=DEVICE),
    "randperm": lambda: torch.randperm(16, device=DEVICE),
    "normal_": lambda: torch.empty(4, device=DEVICE).normal_(1, 2),
    "uniform_": lambda: torch.empty(4, device=DEVICE).uniform_(-1, 1),
    "bernoulli": lambda: torch.full((32,), 0.5, device=DEVICE).bernoulli(),
    "bernoulli_": lambda: torch.zeros(32, device=DEVICE).bernoulli_(0.5),
    "dropout": lambda: nn.functional.dropout(torch.ones(32, device=DEVICE), 0.5),
    "exponential_": lambda: torch.empty(4, device=DEVICE).exponential_(),
    "multinomial": lambda: torch.ones(100, device=DEVICE).multinomial(8),
    "rand_like": lambda: torch.rand_like(torch.ones(4, device=DEVICE)),
    "randn_like": lambda: torch.randn_like(torch.ones(4, device=DEVICE)),
    "normal": lambda: torch.normal(torch.zeros(4, device=DEVICE), 1.0),
    "random_": lambda: torch.empty(4, device=DEVICE).random_(1000),
    "trunc_normal_": lambda: nn.init.trunc_normal_(torch.empty(4, device=DEVICE)),
    "dropout1d": lambda: nn.functional.dropout1d(torch.ones(32, 2, device=DEVICE), 0.5),
    "rand-f64": lambda: torch.rand(4, dtype=torch.float64, device=DEVICE),
    "rand-bf16": lambda: torch.rand(8, dtype=torch.bfloat16, device=DEVICE),
}


def test_a_permutation_is_drawn_into_out_as_without():
    lazyrt.reset_counters()
    out = torch.empty(3, device=DEVICE)
    generator = torch.Generator(device=DEVICE)

    torch.manual_seed(7)
    plain = torch.randperm(16, device=DEVICE)
    torch.manual_seed(7)
    torch.randperm(16, out=out)
    drawn = torch.randperm(16, device=DEVICE, generator=generator.manual_seed(3))
    whole = torch.randperm(16, generator=generator.manual_seed(3), out=drawn.clone())

    assert out.tolist() == plain.tolist()
    assert whole.tolist() == drawn.tolist()
    assert lazyrt.counters()["cpu_fallbacks"] == 0


@pytest.mark.parametrize("draw", thinned(DRAWS, 4))
def test_draws_follow_from_the_seed_and_differ_from_each_other(draw):
    def twice():
        torch.manual_seed(7)
        return [DRAWS[draw]().cpu() for _ in range(2)]

    first, second = twice(), twice()

    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], first[1])
    torch.manual_seed(8)
    assert not torch.equal(DRAWS[draw]().cpu(), first[0])
    assert lazyrt.counters()["cpu_fallbacks"] == 0


def program(between):
    torch.manual_seed(7)
    values = []
    for draw in ("rand", "dropout", "randn", "normal_", "randint"):
        values.append(DRAWS[draw]())
        between(values[-1])
    return [value.cpu() for value in values]


@pytest.mark.parametrize(
    "between",
    [
        lambda t: lazyrt.mark_step(),
        repr,
        lambda t: f"{t.sum()}",
        lambda t: t.cpu(),
        lazyrt.materialise,
        lambda t: lazyrt.pending_graph().lower().as_text(),
        lazyrt.snapshot,
        lambda t: [look(t) for look in (repr, lambda _: lazyrt.mark_step(), repr)],
    ],
)
def test_barriers_prints_and_reads_do_not_change_what_is_drawn(between):
    plain = program(lambda t: None)

    looked = program(between)

    for mine, theirs in zip(looked, plain, strict=True):
        assert torch.equal(mine, theirs)


def test_the_cpus_generator_is_left_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)

    torch.manual_seed(7)
    torch.rand(3, device=DEVICE).cpu()
    repr(torch.rand(3, device=DEVICE))

    assert torch.equal(torch.rand(3), expected)


def test_drawing_on_the_cpu_leaves_the_devices_generator_alone():
    torch.manual_seed(7)
    expected = torch.rand(3, device=DEVICE).cpu()

    torch.manual_seed(7)
    torch.rand(3)

    assert torch.equal(torch.rand(3, device=DEVICE).cpu(), expected)


def test_the_state_can_be_saved_and_restored():
    torch.manual_seed(2**63 + 5)
    torch.rand(3, device=DEVICE)
    state = torch.get_device_module(DEVICE).get_rng_state()
    first = torch.rand(3, device=DEVICE)
    lazyrt.mark_step()

    torch.get_device_module(DEVICE).set_rng_state(state)

    assert torch.equal(torch.rand(3, device=DEVICE).cpu(), first.cpu())
    assert state.dtype is torch.uint8
    assert state.device.type == "cpu"


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 2**64 - 1])
def test_every_seed_that_torch_takes_works(seed):
    torch.manual_seed(seed)
    first = torch.rand(3, device=DEVICE).cpu()
    torch.manual_seed(seed)
    state = torch.get_device_module(DEVICE).get_rng_state()
    torch.get_device_module(DEVICE).set_rng_state(state)

    assert torch.equal(torch.rand(3, device=DEVICE).cpu(), first)


def test_fork_rng_restores_the_devices_state():
    torch.manual_seed(3)
    with torch.random.fork_rng(devices=[0], device_type=DEVICE):
        torch.rand(3, device=DEVICE)
        torch.manual_seed(99)
    after = torch.rand(3, device=DEVICE).cpu()

    torch.manual_seed(3)
    assert torch.equal(torch.rand(3, device=DEVICE).cpu(), after)


def test_seeding_inside_a_step_takes_effect_at_once():
    torch.manual_seed(1)
    a = torch.rand(3, device=DEVICE)
    b = torch.rand(3, device=DEVICE)
    torch.manual_seed(1)
    c = torch.rand(3, device=DEVICE)
    torch.manual_seed(2)
    d = torch.rand(3, device=DEVICE)

    lazyrt.mark_step()

    assert torch.equal(a.cpu(), c.cpu())
    assert not torch.equal(a.cpu(), b.cpu())
    assert not torch.equal(a.cpu(), d.cpu())


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_dropout_differs_each_step_without_a_compile():
    layer = nn.Dropout(0.5)
    x = torch.ones(64).to(DEVICE)
    masks = []
    with recorded(events.GraphCaptured) as found:
        for _ in range(5):
            y = layer(x)
            lazyrt.mark_step()
            masks.append(tuple(y.tolist()))

    assert len(set(masks)) == 5
    assert len(set(step_fingerprints(found))) == 1
    assert lazyrt.counters()["compiles"] <= 1


def test_a_mask_is_the_same_in_forward_and_backward():
    x = torch.ones(64, device=DEVICE, requires_grad=True)

    y = nn.functional.dropout(x, 0.5)
    y.sum().backward()

    assert torch.equal(grad_of(x), y.detach().cpu())
    assert set(y.tolist()) == {0.0, 2.0}


def test_dead_random_ops_do_not_change_the_fingerprint_of_the_rest():
    def draw(dead):
        for _ in range(dead):
            torch.rand(5, device=DEVICE)
        y = torch.rand(3, device=DEVICE) * 2
        fingerprint = lazyrt.pending_graph(y).fingerprint
        lazyrt.mark_step()
        return fingerprint

    assert draw(0) == draw(1) == draw(4)


def test_a_dead_random_op_advances_the_generator_as_it_does_elsewhere():
    torch.manual_seed(0)
    torch.rand(5, device=DEVICE)
    y = torch.rand(3, device=DEVICE).cpu()
    torch.manual_seed(0)
    first = torch.rand(5, device=DEVICE).cpu()
    z = torch.rand(3, device=DEVICE).cpu()

    assert torch.equal(y, z)
    assert first.shape == (5,)


def test_a_failed_random_op_draws_nothing():
    torch.manual_seed(0)
    before = torch.get_device_module(DEVICE).get_rng_state()

    with pytest.raises(RuntimeError):
        torch.rand(-3, device=DEVICE)

    assert torch.equal(torch.get_device_module(DEVICE).get_rng_state(), before)


def test_distributions_have_the_moments_of_torch():
    torch.manual_seed(0)
    n = 20_000
    draws = {
        "rand": (torch.rand(n, device=DEVICE), 0.5, 12**-0.5),
        "randn": (torch.randn(n, device=DEVICE), 0.0, 1.0),
        "normal": (torch.empty(n, device=DEVICE).normal_(3, 2), 3.0, 2.0),
        "uniform": (torch.empty(n, device=DEVICE).uniform_(-2, 4), 1.0, 6 * 12**-0.5),
        "randint": (torch.randint(0, 2, (n,), device=DEVICE).float(), 0.5, 0.5),
        "exponential": (torch.empty(n, device=DEVICE).exponential_(2.0), 0.5, 0.5),
        "bernoulli": (torch.full((n,), 0.25, device=DEVICE).bernoulli(), 0.25, 0.433),
    }

    for name, (values, mean, deviation) in draws.items():
        host = values.cpu()
        assert abs(host.mean().item() - mean) < 0.03 * max(deviation, 1), name
        assert abs(host.std().item() / deviation - 1) < 0.03, name
    assert draws["rand"][0].min().item() >= 0
    assert draws["rand"][0].max().item() < 1
    assert sorted(torch.randperm(50, device=DEVICE).tolist()) == list(range(50))


def test_half_precision_uniforms_stay_below_one():
    for dtype in (torch.float16, torch.bfloat16):
        values = torch.rand(4096, dtype=dtype, device=DEVICE)
        assert values.max().item() < 1.0
