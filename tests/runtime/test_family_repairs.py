"""What families of models needed of the runtime, in the small."""

import pytest
import torch

from lazyrt.observe import events
from tests.harness import DEVICE, grad_of, recorded, run_python


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 2)])
def test_the_gradient_of_a_masked_read_runs_on_the_device(shape):
    data = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)
    mask = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1]]).bool()

    def gradient(device):
        x = data.to(device).requires_grad_()
        (x[mask.to(device)].pow(2).sum() + x.sum()).backward()
        return x

    with recorded(events.FallbackUsed) as fallbacks:
        found = grad_of(gradient(DEVICE))

    assert torch.equal(found, grad_of(gradient("cpu")))
    assert "aten._index_put_impl_.default" not in [event.op for event in fallbacks]


def test_a_write_of_rows_through_a_mask_is_checked_as_on_the_cpu():
    x = torch.zeros(4, device=DEVICE)
    mask = torch.tensor([True, False, True, False], device=DEVICE)

    with pytest.raises((RuntimeError, IndexError), match="shape mismatch"):
        x[mask] = torch.ones(3, device=DEVICE)


def test_the_gradient_of_ctc_loss_runs_on_the_device():
    scores = torch.randn(6, 2, 5, generator=torch.Generator().manual_seed(0))
    targets, lengths = torch.tensor([[1, 2], [3, 3]]), torch.tensor([6, 5])

    def gradient(device):
        x = scores.to(device).requires_grad_()
        loss = torch.nn.functional.ctc_loss(
            x.log_softmax(-1), targets.to(device), lengths, torch.tensor([2, 2])
        )
        loss.backward()
        return grad_of(x)

    with recorded(events.FallbackUsed) as fallbacks:
        found = gradient(DEVICE)

    torch.testing.assert_close(found, gradient("cpu"), rtol=1e-5, atol=1e-6)
    assert fallbacks == []


LIBRARY = """
def is_full(mask):
    return bool(mask.sum() == mask.numel())
"""
PROGRAM = """
import sys, torch, lazyrt
sys.path.insert(0, {folder!r})
import checks
masks = [torch.ones(2, size, device="lazyrt") for size in (4, 8, 4, 8)]
lazyrt.mark_step()
found = []
for mask in masks:
    y = mask * 2
    found.append(checks.is_full(mask))
    lazyrt.mark_step()
masks[0][0, 0] = 0
lazyrt.mark_step()
y = masks[0] * 2
found.append(checks.is_full(masks[0]))
print(found, dict(lazyrt.counters())["executions"])
"""


@pytest.mark.slow
def test_a_librarys_check_that_reads_a_varying_number_cuts_nothing(tmp_path):
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "checks.py").write_text(LIBRARY, encoding="utf-8")

    found = run_python(PROGRAM.format(folder=str(package)))

    assert found == "[True, True, True, True, False] 6"
