"""Measuring time changes nothing: the same graphs, executions and bits, and no tensor is held."""

import gc
import weakref

import pytest

import lazyrt
from lazyrt.observe import events
from lazyviz import session
from tests.harness import cold_start, recorded, step_fingerprints

PROGRAM = """
torch.manual_seed(5)
model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1)).to('lazyrt')
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
losses = []
for _ in range(6):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 6, device='lazyrt')).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.03)  # so that the pulse asks in the middle of steps
    losses.append(loss.item())
"""


def run(shell, looks):
    cold_start()
    lazyrt.reset_counters()
    with recorded(events.GraphCaptured) as found:
        shell.run_cell(
            "import time\nfrom torch import nn\n" + PROGRAM, store_history=True
        )
        for look in looks:
            shell.run_cell(look, store_history=True)
        shell.run_cell(PROGRAM, store_history=True)
    counters = lazyrt.counters()
    kept = ("executions", "compiles", "cache_hits", "barriers", "peek_executions")
    return (
        step_fingerprints(found),
        {name: counters.get(name, 0) for name in kept},
        list(shell.user_ns["losses"]),
    )


@pytest.mark.slow
def test_a_program_is_the_same_with_and_without_what_measures_it(lab, tmp_path):
    looks = [
        "%lazy timeline",
        f"%lazy timeline --export {tmp_path / 't.json'}",
        "%lazy compile",
        "%lazy cache",
        "import lazyviz; print(lazyviz.timeline().to_html()[:1])",
    ]

    measured = run(lab, looks)
    found = session.current(lab)
    assert found is not None
    assert found.timeline is not None
    assert any(cell.lines for cell in found.timeline.cells)  # the pulse did beat
    lab.run_line_magic("unload_ext", "lazyviz")
    alone = run(lab, [])

    assert measured == alone
    assert events.op_listeners == []


def test_a_timed_cell_is_the_same_program(lab):
    def timed(magic):
        cold_start()
        lazyrt.reset_counters()
        with recorded(events.GraphCaptured) as found:
            lab.run_cell(f"{magic}y = (x * 3).sum()\nlazyrt.mark_step()")
        return step_fingerprints(found), lazyrt.counters()["executions"]

    assert timed("%%lazy time\n") == timed("")


def test_the_timeline_holds_no_tensor(lab):
    lab.run_cell("t = (x + 1) * 2\nprint(t.sum().item())", store_history=True)
    storage = lab.user_ns["t"].untyped_storage()._lazyrt
    alive = weakref.ref(storage)
    lab.run_cell("%lazy timeline\n%lazy compile", store_history=True)

    del storage
    lab.run_cell("del t", store_history=True)
    gc.collect()

    assert alive() is None
