"""Building blocks of models on the device, forward and backward, next to the CPU."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import lazyrt
from tests.harness import DEVICE

pytestmark = pytest.mark.slow


def inputs(*shapes):
    return [
        torch.randn(shape, generator=torch.Generator().manual_seed(number))
        for number, shape in enumerate(shapes)
    ]


MODULES: dict[str, Any] = {
    "lstm": (lambda: nn.LSTM(3, 4, 2, batch_first=True), (2, 4, 3)),
    "gru": (lambda: nn.GRU(3, 4), (4, 2, 3)),
    "rnn": (lambda: nn.RNN(3, 4, bidirectional=True), (3, 2, 3)),
    "attention": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        (2, 5, 8),
        (2, 5, 8),
        (2, 5, 8),
    ),
    "conv1d": (lambda: nn.Conv1d(4, 4, 3, groups=2, dilation=2), (1, 4, 9)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 1, 3, 3, 3)),
    "conv-transpose": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), (1, 2, 4, 4)),
    "batch-norm": (lambda: nn.BatchNorm2d(4), (2, 4, 3, 3)),
    "batch-norm-eval": (lambda: nn.BatchNorm2d(4).eval(), (2, 4, 3, 3)),
    "batch-norm-1d-eval": (lambda: nn.BatchNorm1d(4).eval(), (2, 4)),
    "batch-norm-plain": (
        lambda: nn.BatchNorm1d(4, affine=False, track_running_stats=False),
        (5, 4),
    ),
    "group-norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    "layer-norm": (lambda: nn.LayerNorm(4, bias=False), (2, 4)),
    "rms-norm": (lambda: nn.RMSNorm(4), (2, 4)),
    "prelu": (nn.PReLU, (2, 4)),
    "bilinear": (lambda: nn.Bilinear(3, 3, 2), (2, 3), (2, 3)),
    "pool": (lambda: nn.AdaptiveAvgPool2d((2, 3)), (1, 2, 5, 5)),
    "upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 3, 3)),
    "weight-norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
        (1, 3),
    ),
    "decoder": (
        lambda: nn.TransformerDecoderLayer(8, 2, 8, dropout=0.0, batch_first=True),
        (1, 3, 8),
        (1, 2, 8),
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_matches_the_cpu_forward_and_backward(name):
    make, *shapes = MODULES[name]

    def run(device):
        torch.manual_seed(0)
        module = make().to(device)
        leaves = [x.to(device).requires_grad_() for x in inputs(*shapes)]
        result = module(*leaves)
        result = result[0] if isinstance(result, tuple) else result
        result.square().sum().backward()
        state = [value for value in module.state_dict().values() if value.dim()]
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        return [result, *(leaf.grad for leaf in leaves), *gradients, *state]

    expected, actual = run("cpu"), run(DEVICE)

    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(
            mine.detach().cpu(), theirs.detach(), rtol=1e-4, atol=1e-5
        )
    assert lazyrt.counters()["cpu_fallbacks"] == 0


def test_training_and_evaluation_take_turns_without_a_recompile():
    def run(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten())
        model.append(nn.Dropout(0.0)).append(nn.Linear(8, 2)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        (x,) = inputs((4, 1, 4, 4))
        x = x.to(device)
        seen = []
        for number in range(4):
            if device == DEVICE and number == 2:
                lazyrt.reset_counters()
            model.train()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            model.eval()
            with torch.inference_mode():
                seen.append(model(x).square().mean().item())
        return seen

    torch.testing.assert_close(run(DEVICE), run("cpu"), rtol=1e-4, atol=1e-6)
    assert lazyrt.counters()["compiles"] == 0
    assert lazyrt.counters()["cpu_fallbacks"] == 0


OPTIMISERS = ["Adadelta", "Adagrad", "Adam", "Adamax", "NAdam", "RAdam", "RMSprop"]


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in OPTIMISERS),
        "Rprop",
    ],
)
def test_an_optimizer_matches_the_cpu_with_few_compiles(name):
    def fit(device):
        torch.manual_seed(0)
        model = nn.Linear(4, 2).to(device)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.05)
        losses = []
        for _number in range(5):
            (x,) = inputs((3, 4))
            optimizer.zero_grad()
            loss = model(x.to(device)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = fit("cpu")
    lazyrt.reset_counters()
    actual = fit(DEVICE)

    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    assert lazyrt.counters()["executions"] == 5
    assert lazyrt.counters()["compiles"] <= 3
    assert lazyrt.counters()["cpu_fallbacks"] == 0


def test_moving_averages_of_weights_match_the_cpu():
    def run(device):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(device)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 3, device=device)).sum().backward()
            optimizer.step()
            average.update_parameters(model)
        return [parameter.detach().cpu() for parameter in average.module.parameters()]

    for mine, theirs in zip(run(DEVICE), run("cpu"), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_target_network_copied_in_the_step_of_its_source_is_right():
    def run(device):
        torch.manual_seed(0)
        online, target = (nn.Linear(3, 2).to(device) for _ in range(2))
        optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
        seen = []
        for _ in range(3):
            optimizer.zero_grad()
            (online(torch.ones(1, 3, device=device)) - 1).square().sum().backward()
            target.load_state_dict(online.state_dict())
            optimizer.step()
            seen.append(target(torch.ones(1, 3, device=device)).detach().cpu())
        return torch.cat(seen)

    torch.testing.assert_close(run(DEVICE), run("cpu"))


def test_gradients_are_scaled_and_unscaled_as_on_the_cpu():
    def run(device):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=4.0)
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 3, device=device)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        return model.weight.detach().cpu()

    torch.testing.assert_close(run(DEVICE), run("cpu"))


def test_packed_sequences_match_the_cpu():
    def run(device):
        torch.manual_seed(0)
        cell = nn.LSTM(2, 2).to(device)
        packed = nn.utils.rnn.pack_padded_sequence(
            torch.ones(3, 2, 2, device=device), torch.tensor([3, 2])
        )
        padded, lengths = nn.utils.rnn.pad_packed_sequence(cell(packed)[0])
        return padded.detach().cpu(), lengths

    for mine, theirs in zip(run(DEVICE), run("cpu"), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_gradients_pass_torchs_own_numerical_check():
    x = torch.linspace(
        0.1, 1, 4, dtype=torch.float64, device=DEVICE, requires_grad=True
    )

    assert torch.autograd.gradcheck(lambda v: (v * v).sin().softmax(0), x)


@pytest.mark.parametrize("trace", ["compile", "jit", "fx", "make_fx"])
def test_torchs_tracers_accept_lazy_tensors(trace):
    x = torch.ones(2, device=DEVICE)

    def function(v):
        return torch.tanh(v) * 2 + 1

    made = {
        "compile": lambda: torch.compile(function, backend="eager"),
        "jit": lambda: torch.jit.trace(function, x),
        "fx": lambda: torch.fx.symbolic_trace(function),
        "make_fx": lambda: torch.fx.experimental.proxy_tensor.make_fx(function)(x),
    }[trace]()

    torch.testing.assert_close(made(x).cpu(), function(torch.ones(2)))


def test_anomaly_mode_names_the_forward_line():
    x = torch.zeros(2, device=DEVICE, requires_grad=True)

    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match="SqrtBackward0"),
        pytest.raises(RuntimeError, match="nan values"),
    ):
        (x.sqrt() * 0).sum().backward()


def test_losses_match_the_cpu():
    losses = (
        functional.mse_loss,
        functional.l1_loss,
        functional.huber_loss,
        functional.binary_cross_entropy,
        functional.binary_cross_entropy_with_logits,
        functional.poisson_nll_loss,
    )

    def run(device):
        x = (torch.arange(1.0, 7.0) / 8).view(2, 3).to(device)
        y = torch.full((2, 3), 0.5).to(device)
        z = torch.tensor([1, -100]).to(device)
        return [
            *(loss(x, y) for loss in losses),
            functional.cross_entropy(x, z, label_smoothing=0.1),
            functional.cross_entropy(x, z, weight=torch.ones(3).to(device)),
            functional.nll_loss(x, z),
        ]

    for mine, theirs in zip(run(DEVICE), run("cpu"), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_evaluates_by_torchs_fast_path_without_a_fallback(norm_first):
    torch.manual_seed(0)
    activation = "gelu" if norm_first else "relu"
    layer = nn.TransformerEncoderLayer(
        8, 2, 12, batch_first=True, norm_first=norm_first, activation=activation
    )
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    (x,) = inputs((2, 5, 8))
    causal = torch.ones(5, 5).triu(1).bool()
    padding = torch.tensor([[False] * 3 + [True] * 2, [False] * 5])
    calls: list[dict[str, Any]] = [
        {},
        {"mask": causal},
        {"src_key_padding_mask": padding},
        {"mask": causal, "src_key_padding_mask": padding},
    ]
    with torch.no_grad():
        expected = [encoder(x, **call) for call in calls]
        encoder.to(DEVICE)
        lazyrt.reset_counters()
        found = [
            encoder(x.to(DEVICE), **{k: m.to(DEVICE) for k, m in call.items()})
            for call in calls
        ]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)
    assert lazyrt.counters()["cpu_fallbacks"] == 0


@pytest.mark.parametrize("average", [False, True])
def test_attention_weights_of_the_fast_path_match_the_cpu(average):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    (x,) = inputs((2, 4, 8))
    mask = torch.ones(4, 4).triu(1).bool()

    def run(x, mask):
        return attention(x, x, x, attn_mask=mask, average_attn_weights=average)

    with torch.no_grad():
        expected = run(x, mask)
        attention.to(DEVICE)
        found = run(x.to(DEVICE), mask.to(DEVICE))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_an_encoder_that_would_nest_its_batch_goes_on_with_the_padded_one():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=True).eval()
    (x,) = inputs((2, 5, 8))
    padding = torch.tensor([[False] * 3 + [True] * 2, [False] * 5])
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=padding)
        encoder.to(DEVICE)
        found = encoder(x.to(DEVICE), src_key_padding_mask=padding.to(DEVICE))
    # Nested, the CPU fills the padding with zeros.
    torch.testing.assert_close(found.cpu()[~padding], expected[~padding])
