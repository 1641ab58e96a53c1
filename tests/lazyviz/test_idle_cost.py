"""S0.17: what the extension costs a program while it is loaded and nothing is looked at."""

import torch

import lazyrt
from lazyrt.observe import events
from lazyviz import pulse
from tests.harness import DEVICE, bytecodes_of


def record(x):
    y = x
    for _ in range(20):
        y = torch.relu(y + 1)
    return y


def cost_of_recording(x):
    record(x)  # the nodes are interned, as those of every step but the first
    return bytecodes_of(lambda: record(x))


def test_s0_17_recording_costs_the_same_with_the_extension_loaded_and_unloaded(
    shell, monkeypatch
):
    # Where the time goes is sampled, at most fifty times a second, whatever is recorded.
    monkeypatch.setattr(pulse, "PERIOD_S", 3600)
    x = torch.ones(8).to(DEVICE)
    lazyrt.mark_step()
    alone = cost_of_recording(x)

    shell.run_line_magic("load_ext", "lazyviz")
    try:
        loaded = cost_of_recording(x)
        listening = bool(events.op_listeners)
    finally:
        shell.run_line_magic("unload_ext", "lazyviz")
    after = cost_of_recording(x)

    assert alone == loaded == after > 0
    assert not listening


def test_s0_17_listening_to_each_op_is_what_would_cost():
    """The measure sees a listener: it is no number that cannot change."""
    x = torch.ones(8).to(DEVICE)
    alone = cost_of_recording(x)

    with lazyrt.subscribe(lambda event: None, events.OpRecorded):
        listened = cost_of_recording(x)

    assert listened > alone


def test_a_closed_pulse_asks_nothing_more():
    beat = pulse.Pulse(lambda *_: None)
    beat.begin()
    assert events.op_listeners

    beat.close()
    beat.ask(sample=True)  # as the ticker does that was about to

    assert not events.op_listeners
