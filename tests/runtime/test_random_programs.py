"""Seeded random programs of views and in-place writes, with barriers and looks anywhere."""

import random

import pytest
import torch

import lazyrt
from lazyrt.config import config
from tests.harness import DEVICE

pytestmark = pytest.mark.slow

SIZE = 24


def _slice(r, t):
    dim = r.randrange(t.dim())
    first = r.randrange(t.shape[dim])
    last = r.randrange(first + 1, t.shape[dim] + 1)
    step = r.choice((1, 1, 2))
    index = [slice(None)] * t.dim()
    index[dim] = slice(first, last, step)
    return t[tuple(index)]


VIEWS = [
    lambda r, t: t.view(-1) if t.is_contiguous() else t,
    lambda r, t: t.t() if t.dim() == 2 else t,
    lambda r, t: t.unsqueeze(r.randrange(t.dim() + 1)) if t.dim() < 3 else t,
    lambda r, t: t.squeeze(),
    lambda r, t: t.select(d := r.randrange(t.dim()), r.randrange(t.shape[d])),
    _slice,
    _slice,
    lambda r, t: t.transpose(0, t.dim() - 1),
    lambda r, t: t.view(2, -1) if t.is_contiguous() and t.numel() % 2 == 0 else t,
    lambda r, t: t.detach(),
    lambda r, t: t.diagonal() if t.dim() == 2 else t,
    lambda r, t: t.chunk(2, 0)[0],
    lambda r, t: t.movedim(0, -1),
    lambda r, t: t.reshape(-1),
]

WRITES = [
    lambda r, t, o: t.add_(r.choice((1, 0.5, -2.0))),
    lambda r, t, o: t.mul_(r.choice((0.5, -1, 1.25))),
    lambda r, t, o: t.fill_(r.choice((0.0, 3))),
    lambda r, t, o: (
        t.copy_(o.reshape(-1)[: t.numel()].reshape(t.shape).clone())
        if o.numel() >= t.numel()
        else t.zero_()
    ),
    lambda r, t, o: t.sub_(t.clone().mean()),
    lambda r, t, o: t.copy_(torch.full((), 2.0)),
    lambda r, t, o: t.__setitem__(0, 9.0) if t.dim() else t.zero_(),
    lambda r, t, o: t.tanh_(),
    lambda r, t, o: t.clamp_(-3, 3),
    lambda r, t, o: t.add_(o.reshape(-1)[0].clone()),
    lambda r, t, o: torch.add(t.clone(), 1, out=t),
    lambda r, t, o: (
        t.index_fill_(0, torch.tensor([0], device=t.device), 4.0) if t.dim() else t
    ),
]

OPS = [
    lambda r, t, o: t * 2,
    lambda r, t, o: t + o.reshape(-1)[0],
    lambda r, t, o: t.clone(),
    lambda r, t, o: t.flip(0) if t.dim() else t + 1,
    lambda r, t, o: t.cumsum(0) / 2 if t.dim() else t.sin(),
    lambda r, t, o: torch.where(t > 0, t, t / 2),
]


LOOKS = [
    lambda t: lazyrt.mark_step(),
    lambda t: lazyrt.mark_step(),
    repr,
    lazyrt.materialise,
    lambda t: t.cpu(),
    lambda t: lazyrt.pending_graph(),
    lambda t: lazyrt.begin_cell(),
    lazyrt.snapshot,
    lambda t: None,
    lambda t: None,
]


def run(seed, device, look, length=30):
    """Run a random program; return all its tensors. Values and choices follow the seed."""
    r = random.Random(seed)  # noqa: S311
    start = torch.arange(float(SIZE)) / 8 - 1
    tensors = [start.view(4, 6).to(device), (start * 2).view(2, 3, 4).to(device)]
    for _ in range(length):
        t, other = r.choice(tensors), r.choice(tensors)
        kind = r.random()
        if kind < 0.4 and t.dim() and t.numel() > 1:
            made = r.choice(VIEWS)(r, t)
            if made.numel():
                tensors.append(made)
        elif kind < 0.8:
            r.choice(WRITES)(r, t, other)
        else:
            tensors.append(r.choice(OPS)(r, t, other))
        if len(tensors) > 9:
            tensors.pop(r.randrange(len(tensors)))
        look(r.random(), r.choice(tensors))
    return tensors


def compare(actual, expected):
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine.shape == theirs.shape
        for size, a, b in zip(mine.shape, mine.stride(), theirs.stride(), strict=True):
            assert size == 1 or a == b
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-5, atol=1e-5)


def no_look(chance, tensor):
    pass


def any_look(chance, tensor):
    LOOKS[int(chance * len(LOOKS))](tensor)


def peeks_only(chance, tensor):
    if chance < 0.5:
        lazyrt.materialise(tensor)


@pytest.mark.parametrize("seed", range(12))
def test_programs_in_one_step_match_the_cpu(seed):
    compare(run(seed, DEVICE, no_look), run(seed, "cpu", no_look))


@pytest.mark.parametrize("seed", range(100, 112))
def test_programs_with_barriers_and_looks_anywhere_match_the_cpu(seed):
    def cpu_look(chance, tensor):
        pass

    with config.scoped(max_interned_nodes=60):
        compare(run(seed, DEVICE, any_look), run(seed, "cpu", cpu_look))


@pytest.mark.parametrize("seed", range(200, 206))
def test_looks_leave_the_graph_of_a_program_as_it_was(seed):
    plain = run(seed, DEVICE, no_look)
    expected = lazyrt.pending_graph(*plain).fingerprint
    del plain
    lazyrt.mark_step()

    looked = run(seed, DEVICE, peeks_only)

    assert lazyrt.pending_graph(*looked).fingerprint == expected


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_many_more_programs_match_the_cpu(seed):
    compare(run(seed, DEVICE, any_look, 40), run(seed, "cpu", no_look, 40))
