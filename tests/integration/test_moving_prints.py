"""Looking at models in training, in Python and in a shell: nothing changes."""

import pytest
import torch

import lazyrt
from lazyrt.observe import events
from tests.harness import DEVICE, cold_start, recorded
from tests.integration.models import MODELS
from tests.integration.test_observer_effect import LINES

STEPS = 10


def places(name):
    """Return the numbers of ten modules that are called, from the first to the last."""
    model, loss_of, batch = MODELS[name]()
    called = []
    for number, part in enumerate(model.modules()):
        part.register_forward_hook(lambda *_, number=number: called.append(number))
    loss_of(model, batch(0))
    called = list(dict.fromkeys(called))
    return [called[k * len(called) // STEPS] for k in range(STEPS)]


def flat(output):
    """Return what a module returned, one after the other: a tensor, a tuple or a dict of them."""
    values = output.values() if isinstance(output, dict) else output
    return values if isinstance(output, (dict, tuple)) else (output,)


def train(name, device, look):
    """Train ten steps; `look(tensor)` is called at one place in each, another one each time."""
    model, loss_of, batch = MODELS[name]()
    model.to(device)
    # Adam would turn the rounding of gradients that are zero (a bias before a norm) into updates.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    parts = list(model.modules())
    for step, place in enumerate(places(name)):

        def shown(module, inputs, output):
            look(next(t for t in flat(output) if isinstance(t, torch.Tensor)))

        handle = parts[place].register_forward_hook(shown)
        optimizer.zero_grad()
        loss = loss_of(model, [part.to(device) for part in batch(step)])
        handle.remove()
        loss.backward()
        weight = next(model.parameters())
        look(weight.grad)
        optimizer.step()
        losses.append(loss.item())
    return losses


def on_the_device(name, look):
    """Return losses, fingerprints of all steps and of those compiled, and the count of peeks."""
    cold_start()
    lazyrt.reset_counters()
    with recorded(events.GraphCaptured, events.CompileFinished) as found:
        losses = train(name, DEVICE, look)
    counters = lazyrt.counters()
    graphs = [e.fingerprint for e in found if isinstance(e, events.GraphCaptured)]
    compiled = [
        e.fingerprint
        for e in found
        if isinstance(e, events.CompileFinished) and e.purpose == "step"
    ]
    assert counters["executions"] == STEPS
    return (losses, graphs, compiled), counters["peek_executions"]


@pytest.mark.parametrize("name", ["mlp", pytest.param("bert", marks=pytest.mark.slow)])
def test_prints_that_move_leave_fingerprints_compiles_and_losses_bit_for_bit(
    name, capsys
):
    """Ten prints of a module's result, ten of a gradient; each value is the CPU's."""
    expected, seen = [], []

    def show(tensor):
        print(tensor)  # noqa: T201
        seen.append(lazyrt.materialise(tensor))

    train(name, "cpu", lambda tensor: expected.append(tensor.detach().clone()))
    plain, without = on_the_device(name, lambda _tensor: None)
    looked, peeks = on_the_device(name, show)

    assert looked == plain
    assert without == 0
    assert peeks >= STEPS
    assert len(plain[2]) == 1
    assert capsys.readouterr().out.count("device='lazyrt:0'") == len(seen) == 2 * STEPS
    for mine, theirs in zip(seen, expected, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-5, atol=1e-5)


SETUP = """
import torch, lazyrt
from tests.integration.models import MODELS
model, loss_of, batch = MODELS[{name!r}]()
model = model.to('lazyrt')
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
losses = []
"""
_NAMING_H = ("minimise", "reuse")
CELLS = (
    "optimizer.zero_grad()\nloss = loss_of(model, [t.to('lazyrt') for t in batch({k})])",
    "loss.backward()",
    "optimizer.step()\nlosses.append(loss.item())",
)


def in_cells(shell, name, look):
    """Train three steps, a cell for each part; `look(cell number)` follows each."""
    cold_start()
    with recorded(events.GraphCaptured, events.ExecuteStarted) as found:
        cells = [SETUP.format(name=name)]
        cells += [part.format(k=k) for k in range(3) for part in CELLS]
        for number, cell in enumerate(cells):
            assert shell.run_cell(cell, store_history=True).success
            look(number)
    graphs = [e.fingerprint for e in found if isinstance(e, events.GraphCaptured)]
    runs = [
        (e.fingerprint, e.inputs, e.outputs, e.donated)
        for e in found
        if isinstance(e, events.ExecuteStarted) and e.purpose == "step"
    ]
    return graphs, runs, shell.user_ns["losses"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "gpt2"])
def test_a_model_runs_the_same_graphs_with_every_display_of_the_extension(
    name, shell, tmp_path, monkeypatch, capsys
):
    """Strips after each cell, and every subcommand in the middle of a step."""
    monkeypatch.chdir(tmp_path)
    plain = in_cells(shell, name, lambda _number: None)
    shell.reset()
    shell.run_line_magic("load_ext", "lazyviz")

    def look(number):
        if number != 7:
            return
        for line in ("loss", "print(loss)", "[loss, f'{loss}']"):
            assert shell.run_cell(f"{line}\n", store_history=True).success
        for command, lines in LINES.items():
            for line in lines:
                named = line.replace(" h", " loss") if command in _NAMING_H else line
                shell.run_cell(f"%lazy {named}", store_history=True)

    looked = in_cells(shell, name, look)

    shell.run_line_magic("unload_ext", "lazyviz")
    assert looked == plain
    assert len(plain[1]) == 3
    assert "tensor(" in capsys.readouterr().out
