"""Programs as users write them that once cut the graph, or failed, on the device."""

import collections
import copy
import random

import pytest
import torch
from torch import nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver
from torch.nn import functional

from tests.runtime.semantics import on_both, slow_but

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def weights_are_fake_quantised(d, x):
    x.requires_grad_()
    low, high = torch.arange(4, dtype=torch.int32, device=d), torch.full((4,), 0.1)
    parts = [
        torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 20),
        torch.fake_quantize_per_channel_affine(x, high.to(d), low, 0, -9, 10),
        torch.fake_quantize_per_tensor_affine(
            x, torch.tensor(0.07, device=d), low[2], 0, 15
        ),
    ]
    torch.stack(parts).square().sum().backward()
    return parts


def an_observer_is_switched_off(d, x):
    fake = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255).to(d)
    x.requires_grad_()
    rounded = fake(x)
    rounded.sum().backward()
    fake.disable_fake_quant()
    return rounded, fake(x), fake.scale


def integers_are_multiplied(d, x):
    rows = (x * 50).to(torch.int8).repeat(8, 4)
    return torch._int_mm(rows[:, :16].contiguous(), rows[:16, :8].contiguous())


def embeddings_are_renormed(d, x):
    table = nn.Embedding.from_pretrained(x, freeze=False, max_norm=1.0)
    found = table(torch.tensor([1, 2, 1], device=d))
    found.sum().backward()
    row = torch.tensor([0], device=d)
    summed = functional.embedding(row, table.weight, max_norm=0.5, norm_type=1.0)
    return found, summed, table.weight, table.weight.grad


def recurrent_cells_have_no_bias(d, x):
    torch.manual_seed(0)
    layers = nn.LSTM(6, 3, bias=False, bidirectional=True).to(d)
    cell = nn.LSTMCell(6, 3, bias=False).to(d)
    y, states = layers(x[:, None])
    y.sum().backward()
    return y, states, layers.weight_ih_l0.grad, cell(x)


def factories_write_into_tensors(d, x):
    grown = torch.empty(0, dtype=torch.long, device=d)
    every_other = torch.zeros(6, device=d)
    turned = torch.empty(2, 2, device=d).t()
    square, line = torch.zeros(2, 3, device=d), torch.zeros(4, device=d)
    return [
        torch.linspace(0, 3, 4, out=square.narrow(1, 1, 2)),
        square.clone(),
        torch.logspace(0, 3, 4, out=square.narrow(1, 0, 2)),
        torch.arange(4, out=square.t()[1:]),
        torch.eye(2, out=line),
        torch.ops.aten.range.step(1, 4, 0.3, dtype=torch.float64, device=d),
        torch.ops.aten.range.out(1, 6, out=square.clone()),
        square,
        torch.arange(1, 7, 2, out=grown),
        torch.arange(3, out=every_other[::2]),
        every_other,
        torch.eye(2, out=turned),
        torch.eye(4, 6, out=x),
        nn.init.eye_(torch.empty(3, 3, device=d)),
        torch.linspace(0, 1, 4, out=torch.empty(0, device=d)),
        torch.logspace(0, 1, 3, out=torch.empty(0, device=d)),
    ]


def windows_weigh_a_signal(d, x):
    windows = [
        torch.hann_window(6, device=d),
        torch.hamming_window(6, periodic=False, device=d),
        torch.kaiser_window(6, device=d),
        torch.kaiser_window(6, periodic=False, beta=3.0, device=d),
        torch.kaiser_window(1, dtype=torch.float64, device=d),
    ]
    spectrum = torch.stft(x, 4, 2, window=windows[0][:4], return_complex=True)
    return *windows, spectrum


def integers_are_shifted_in_place(d, x):
    z = torch.arange(6, device=d)
    z <<= 1
    z <<= torch.arange(6, device=d)
    z >>= torch.ones_like(z)
    part = z[1:3]
    part <<= 2
    return z


def margins_of_a_single_sample(d, x):
    label, labels = torch.tensor([1], device=d), torch.tensor([1, 2, -1, 0, 0, 0])
    row = x[0].requires_grad_()
    losses = [
        functional.multi_margin_loss(row, label, reduction="none"),
        functional.multi_margin_loss(row, label, p=2, reduction="none"),
        functional.multilabel_margin_loss(row, labels.to(d), reduction="none"),
    ]
    torch.stack([loss.sum() for loss in losses]).sum().backward()
    return losses


def a_target_network_is_copied_twice(d, x):
    torch.manual_seed(0)
    online = nn.Linear(6, 2).to(d)
    target = copy.deepcopy(online)
    optimizer = torch.optim.RMSprop(online.parameters(), lr=0.01)
    replay: collections.deque[torch.Tensor] = collections.deque(maxlen=4)
    rng, losses = random.Random(0), []  # noqa: S311 - a choice of samples
    for step in range(7):
        state = torch.tanh(x[step % 4] * (step + 1))
        action = online(state[None]).argmax(1).item()
        replay.append(state * (action + 1))
        if step % 2 == 0:
            target.load_state_dict(online.state_dict())
        if step < 4:
            continue
        batch = torch.stack(rng.sample(list(replay), 3))
        with torch.no_grad():
            wanted = 0.9 * target(batch).amax(1)
        loss = functional.smooth_l1_loss(online(batch).amax(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, dict(online.state_dict()), dict(target.state_dict())


PROGRAMS = [
    weights_are_fake_quantised, an_observer_is_switched_off, integers_are_multiplied,
    embeddings_are_renormed, recurrent_cells_have_no_bias, factories_write_into_tensors,
    windows_weigh_a_signal, integers_are_shifted_in_place, margins_of_a_single_sample,
    a_target_network_is_copied_twice,
]  # fmt: skip
QUICK = {
    integers_are_multiplied,
    factories_write_into_tensors,
    integers_are_shifted_in_place,
}


@pytest.mark.parametrize("program", slow_but(PROGRAMS, QUICK))
def test_a_program_matches_the_cpu_without_a_cut(program):
    on_both(program, X)
