"""Looking at tensors leaves the steps of a program bit for bit what they were."""

import gc
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.observe import events
from lazyviz import session
from lazyviz.inspection.live import live_doc
from lazyviz.timing import history
from tests.harness import DEVICE, cold_start, recorded, thinned
from tests.lazyviz.clicks import KINDS, click_everything, kind_of, watched_widgets

STEPS = 10


class Net(nn.Module):
    """Three layers with dropout, and a place to look at between any two ops."""

    def __init__(self, dropout):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 4)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, look):
        look(0, x)
        h = self.first(x)
        look(1, h)
        h = torch.tanh(h)
        look(2, h)
        h = self.dropout(h)
        look(3, h)
        h = self.norm(h + self.second(h))
        look(4, h)
        h.add_(1)
        look(5, h[1:])
        y = self.head(h)
        look(6, y.t())
        return y


# What a curious user does at place k in step k.
LOOKS = [
    print,
    lambda t: f"{t.mean():.3f}",
    repr,
    lazyrt.materialise,
    lazyrt.plan,
    lambda t: lazyrt.pending_graph().to_text(),
    lambda t: (lazyrt.live_tensors(), live_doc(lazyrt.live_tensors_report()).to_html()),
    lambda t: lazyrt.pending_graph(t).lower().as_text("stablehlo"),
    lambda t: (str(t), lazyrt.materialise(t.t()), lazyrt.snapshot(t)),
    lambda t: (format(t[0, 0], ".2f"), lazyrt.materialise(t), t.shape, len(t)),
]


def train(dropout, look):
    """Train ten steps; `look(step, place, tensor)` is called at ten places of each."""
    torch.manual_seed(3)
    model = Net(dropout).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.randn(STEPS, 6, 8, generator=torch.Generator().manual_seed(4))
    lazyrt.reset_counters()
    losses = []
    with recorded(events.GraphCaptured, events.CompileFinished) as found:
        for step in range(STEPS):

            def here(place, tensor, step=step):
                look(step, place, tensor)

            optimizer.zero_grad()
            loss = model(data[step].to(DEVICE), here).square().mean()
            here(7, loss)
            handle = model.second.weight.register_hook(lambda g: here(8, g))
            loss.backward()
            handle.remove()
            here(9, model.first.weight.grad)
            optimizer.step()
            losses.append(loss.item())
    counters = lazyrt.counters()
    return {
        "fingerprints": [
            event.fingerprint
            for event in found
            if isinstance(event, events.GraphCaptured)
        ],
        "compiles": [
            event.fingerprint
            for event in found
            if isinstance(event, events.CompileFinished) and event.purpose == "step"
        ],
        "executions": counters["executions"],
        "fallbacks": counters["cpu_fallbacks"],
        "losses": losses,
        "rng": torch.get_device_module(DEVICE).get_rng_state().tolist(),
        "parameters": [p.detach().cpu().tolist() for p in model.parameters()],
    }


def nothing(step, place, tensor):
    pass


@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
def test_ten_prints_at_moving_places_change_nothing(dropout, capsys):
    def look(step, place, tensor):
        if place == step:
            LOOKS[step](tensor)

    cold_start()
    plain = train(dropout, nothing)
    cold_start()
    looked = train(dropout, look)

    assert looked == plain
    assert plain["executions"] == STEPS
    assert plain["fallbacks"] == 0
    assert 1 <= len(plain["compiles"]) <= 2
    assert lazyrt.counters()["peek_executions"] > 0
    assert "tensor(" in capsys.readouterr().out


@pytest.mark.parametrize("kind", thinned(range(len(LOOKS)), 3))
def test_one_kind_of_look_at_every_place_changes_nothing(kind, capsys):
    def look(step, place, tensor):
        if step in {1, 4} and tensor.dim() == 2:
            LOOKS[kind](tensor)

    train(0.5, nothing)
    plain = train(0.5, nothing)
    looked = train(0.5, look)

    assert looked == plain
    assert looked["compiles"] == []


def test_printed_values_are_those_of_the_cpu():
    def run(device):
        torch.manual_seed(3)
        model = Net(0.0).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(4))
        seen = []

        def look(place, tensor):
            value = tensor.detach()
            seen.append(
                lazyrt.materialise(value) if device == DEVICE else value.clone()
            )

        for x in data:
            optimizer.zero_grad()
            loss = model(x.to(device), look).square().mean()
            look(7, loss)
            model.second.weight.register_hook(lambda g: look(8, g))
            loss.backward()
            look(9, model.first.weight.grad)
            optimizer.step()
        return seen

    expected, actual = run("cpu"), run(DEVICE)

    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_random_values_that_are_looked_at_are_those_the_step_computes():
    torch.manual_seed(0)
    x = torch.rand(4, device=DEVICE)
    y = nn.functional.dropout(torch.ones(32, device=DEVICE), 0.5)
    seen_y, seen_x = lazyrt.materialise(y), lazyrt.materialise(x)
    z = torch.rand(4, device=DEVICE)

    lazyrt.mark_step()

    assert torch.equal(x.cpu(), seen_x)
    assert torch.equal(y.cpu(), seen_y)
    assert not torch.equal(z.cpu(), seen_x)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x[1:],
        lambda x: x.t()[0],
        lambda x: x.view(-1),
        lambda x: x.detach(),
        lambda x: x.expand(2, 3, 4)[1],
        lambda x: x.unfold(1, 2, 1),
    ],
)
def test_looking_at_ready_tensors_and_their_views_leaves_the_step_alone(make):
    start = torch.arange(12.0).view(3, 4)

    def step(look):
        x = start.to(DEVICE)
        w = torch.ones(4, device=DEVICE)
        lazyrt.mark_step()
        if look:
            print(make(x), make(x).shape)  # noqa: T201
        y = w * 2
        if look:
            repr(make(x))
            lazyrt.materialise(make(x))
        x.add_(1)
        z = x * 3
        with recorded(events.GraphCaptured, events.ExecuteStarted) as found:
            lazyrt.mark_step()
        captured, started = found
        return captured.fingerprint, started.inputs, started.donated, y, z

    *without, y, z = step(look=False)
    lazyrt.reset_counters()
    *with_look, looked_y, looked_z = step(look=True)

    assert with_look == without
    assert torch.equal(y.cpu(), looked_y.cpu())
    assert torch.equal(z.cpu(), looked_z.cpu())
    assert lazyrt.counters()["compiles"] == 0


def test_a_view_of_a_ready_tensor_shows_its_value():
    x = torch.arange(12.0).view(3, 4).to(DEVICE)
    lazyrt.mark_step()

    assert lazyrt.materialise(x.t()[1:]).tolist() == x.cpu().t()[1:].tolist()
    assert lazyrt.materialise(x.view(2, 6)[:, ::2]).tolist() == [
        [0.0, 2.0, 4.0],
        [6.0, 8.0, 10.0],
    ]
    assert lazyrt.counters()["executions"] == 0


def test_looking_at_a_tensor_of_an_earlier_step_costs_no_execution():
    x = torch.ones(3, device=DEVICE) * 2
    lazyrt.mark_step()
    y = x + 1
    fingerprint = lazyrt.pending_graph(y).fingerprint
    lazyrt.reset_counters()

    print(x, x[0], f"{x[1]:.1f}")  # noqa: T201

    assert lazyrt.counters()["executions"] == 0
    assert lazyrt.pending_graph(y).fingerprint == fingerprint
    assert y.tolist() == [3.0] * 3


def test_a_tensor_modified_in_place_shows_its_value_at_each_moment():
    x = torch.zeros(2, device=DEVICE)
    view = x[:1]
    seen = []
    for _ in range(3):
        x.add_(1)
        seen.append((lazyrt.materialise(x).tolist(), lazyrt.materialise(view).tolist()))
        view.mul_(2)

    assert seen == [([1.0, 1.0], [1.0]), ([3.0, 2.0], [3.0]), ([7.0, 3.0], [7.0])]
    assert x.tolist() == [14.0, 3.0]


def test_a_print_at_a_new_place_of_a_known_model_compiles_nothing():
    torch.manual_seed(0)
    layers = nn.Sequential(
        *(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(12))
    ).to(DEVICE)

    def forward(place):
        h = torch.ones(2, 8, device=DEVICE)
        with torch.no_grad():
            for number, layer in enumerate(layers):
                h = layer(h)
                if number == place:
                    repr(h)
        lazyrt.mark_step()

    forward(11)
    forward(10)
    before = lazyrt.counters()
    for place in (9, 5, 2, 7):
        forward(place)
    used = lazyrt.counters() - before

    assert used["peek_compiles"] == 0
    assert used["compiles"] == 0
    assert used["peek_executions"] == 4
    assert used["executions"] == 4


def test_looking_does_not_keep_a_tensor_alive_into_the_barrier():
    x = torch.ones(64, device=DEVICE)
    y = (x * 3).exp()
    repr(y)
    lazyrt.snapshot(y)
    del y

    with recorded(events.GraphCaptured, events.ExecuteStarted) as found:
        lazyrt.mark_step()

    captured, started = found
    assert captured.roots == 1
    assert started.outputs == 1


def test_a_stand_in_is_no_root_and_tells_when_its_value_is_lost():
    x = torch.ones(2, device=DEVICE)
    y = x * 5
    kept = lazyrt.stand_in(y)
    del y

    assert lazyrt.materialise(kept).tolist() == [5.0, 5.0]
    assert "pending" in lazyrt.plan(kept)
    with recorded(events.GraphCaptured) as found:
        lazyrt.mark_step()
    assert found[0].roots == 1
    with pytest.raises(lazyrt.errors.LostValueError, match="traceback"):
        lazyrt.materialise(kept)
    assert "lost" in lazyrt.plan(kept)


def test_a_stand_in_of_a_tensor_that_lives_on_changes_nothing():
    x = torch.ones(2, device=DEVICE)
    y = x * 5
    before = lazyrt.pending_graph().fingerprint

    kept = lazyrt.stand_in(y)

    assert lazyrt.pending_graph().fingerprint == before
    lazyrt.mark_step()
    assert y.tolist() == [5.0, 5.0]
    del kept


def test_snapshots_are_independent_tensors():
    x = torch.ones(2, device=DEVICE, requires_grad=True)
    y = x * 2
    before = lazyrt.pending_graph().fingerprint

    frozen = lazyrt.snapshot(y)
    with torch.no_grad():
        y.add_(1)

    assert not frozen.requires_grad
    assert not lazyrt.is_pending(frozen)
    assert frozen.tolist() == [2.0, 2.0]
    assert before != lazyrt.pending_graph().fingerprint
    assert (frozen + 1).tolist() == [3.0, 3.0]
    assert y.tolist() == [3.0, 3.0]


# --- the extension, with everything that it shows

NET = """
import torch, lazyrt
from torch import nn
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 4))
model = model.to('lazyrt')
options = dict(lr=0.01, momentum=0.9, dampening=0.1)  # step 2 is another program
optimizer = torch.optim.SGD(model.parameters(), **options)
data = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(4))
losses = []
"""
STEP = (
    "optimizer.zero_grad()\nh = model[:2](data[{k}].to('lazyrt'))",
    "h = model[2:](h)\nloss = h.square().mean()",
    "loss.backward()",
    "optimizer.step()",
    "losses.append(loss.item())",
)
DATA = Path(__file__).parent.parent / "data"
# Lines that exercise each subcommand; those that change something do so to nothing here.
LINES = {
    "status": ["", "status"],
    "explore": ["explore", "explore model"],
    "graph": ["graph", "graph model"],
    "ir": ["ir"],
    "hlo": ["hlo", "hlo --stablehlo"],
    "metrics": ["metrics", "metrics --raw"],
    "live": ["live", "live --sort age --above 1"],
    "diff": ["diff last"],
    "minimise": ["minimise h len"],
    "nan": ["nan", "nan h"],
    "replicas": [f"replicas {DATA}/save_tensors.text {DATA}/save_tensors.dot"],
    "step": ["step 5"],
    "eager": ["eager"],
    "why": ["why"],
    "graphs": ["graphs"],
    "cache": ["cache", "cache --sort size", "cache drop older 9w"],
    "drop": [
        "drop traceback"
    ],  # alone it drops the step's ops, which is what it is for
    "compile": ["compile"],
    "reuse": ["reuse h"],
    "timeline": ["timeline", "timeline 3", "timeline --export trace.json"],
    "report": ["report page.html"],
    "on": ["off", "on"],
    "help": ["help", "help why"],
    "off": [],
}


def run_program(shell, look):
    """Run four steps, a cell for each part, and look after each; return what the device did."""
    cold_start()
    lazyrt.reset_counters()
    with recorded(
        events.GraphCaptured, events.CompileFinished, events.ExecuteStarted
    ) as found:
        cells = [NET, *(part.format(k=k) for k in range(4) for part in STEP)]
        for number, cell in enumerate(cells):
            assert shell.run_cell(cell, store_history=True).success
            look(number)
    space = shell.user_ns
    counters = lazyrt.counters()
    return {
        "graphs": [e.fingerprint for e in found if isinstance(e, events.GraphCaptured)],
        "compiles": [
            e.fingerprint
            for e in found
            if isinstance(e, events.CompileFinished) and e.purpose == "step"
        ],
        "executions": [
            (e.fingerprint, e.inputs, e.outputs, e.donated)
            for e in found
            if isinstance(e, events.ExecuteStarted) and e.purpose == "step"
        ],
        "counted": (
            counters["executions"],
            counters["compiles"],
            counters["cache_hits"],
        ),
        "losses": space["losses"],
        "rng": torch.get_device_module(DEVICE).get_rng_state().tolist(),
        "parameters": [p.detach().cpu().tolist() for p in space["model"].parameters()],
    }


@pytest.mark.slow
def test_every_view_of_the_extension_leaves_the_program_as_it_is_without_it(
    shell, tmp_path, monkeypatch, capsys
):
    """Every subcommand, and every request of every widget's page."""
    from lazyrt.execution import copy_on_donate
    from lazyviz.views import VIEWS

    monkeypatch.setattr(
        copy_on_donate, "_MIN_SHARED", 0
    )  # what is shown has no copy of its own
    monkeypatch.chdir(tmp_path)
    plain = run_program(shell, lambda _number: None)
    shell.reset()
    shell.run_line_magic("load_ext", "lazyviz")
    # A view is looked at by its name alone, if no other lines are given for it.
    lines_of = {name: LINES.get(name, [name]) for name in VIEWS}
    assert set(LINES) <= set(VIEWS)
    widgets = watched_widgets(monkeypatch)
    shell.kernel = SimpleNamespace(comm_manager=None)  # there is a page
    shown, clicked = set(), set()

    def look(number):
        if number not in {8, 14}:  # backward pending, step run
            return
        seen = len(widgets)
        lazyrt.config.progress_after_s = 0.0
        shell.run_cell("h\n", store_history=True)
        shell.run_cell("print(loss, h); f'{loss}', [h, loss]", store_history=True)
        for command, lines in lines_of.items():
            for line in lines:
                shell.run_cell(f"%lazy {line}", store_history=True)
                shown.add(command)
        for widget in widgets[seen:]:
            click_everything(widget)
            clicked.add(kind_of(widget))
        lazyrt.config.progress_after_s = 1.0

    looked = run_program(shell, look)

    shell.run_line_magic("unload_ext", "lazyviz")
    assert looked == plain
    assert len(plain["executions"]) == 4
    assert clicked == KINDS
    assert shown >= {"explore", "hlo", "report", "live"}
    assert lazyrt.counters()["peek_executions"] >= 3
    assert "tensor(" in capsys.readouterr().out


@pytest.mark.slow
def test_no_view_keeps_a_tensor_alive(shell, monkeypatch):
    """Of whatever kind it is, and whatever was clicked."""
    import gc

    shell.run_line_magic("load_ext", "lazyviz")
    widgets = watched_widgets(monkeypatch)
    shell.kernel = SimpleNamespace(comm_manager=None)  # there is a page
    shell.run_cell(
        "import torch, lazyrt\nx = torch.ones(5, 7, device='lazyrt')\n"
        "for k in (1, 2):\n    z = (x + torch.ones(k, 1, device='lazyrt')[0]).sum()\n"
        "    lazyrt.mark_step()",
        store_history=True,
    )
    shell.run_cell("y = torch.relu(x * 2)\ny", store_history=True)
    lazyrt.config.progress_after_s = 0.0
    for line in (
        *("explore", "explore y", "graph", "live", "ir", "cache", "timeline"),
        *("diff last", "step", "why", "hlo"),
    ):
        shell.run_cell(f"%lazy {line}", store_history=True)
    for widget in widgets:
        click_everything(widget)
    lazyrt.config.progress_after_s = 1.0
    before = sizes()

    shell.run_cell("del x, y", store_history=True)
    gc.collect()

    after = sizes()
    shell.run_line_magic("unload_ext", "lazyviz")
    shell.run_cell("Out.clear(); _ = __ = ___ = _2 = None", store_history=True)
    assert {kind_of(widget) for widget in widgets} == KINDS
    # `x` is computed, `y` pending; what `Out` keeps is a copy of the value that was displayed.
    assert before == [False, False, True]
    assert after == [False]


def sizes():
    """Return whether each live tensor of 5 rows and 7 columns is pending."""
    return sorted(t.pending for t in lazyrt.live_tensors() if t.shape == (5, 7))


CELL = "y = torch.tanh(w @ w)\nz = (y * 2).sum()\nlazyrt.mark_step()\nu = w + 1"


def run_cells(shell, count):
    for _ in range(count):
        shell.run_cell(CELL, store_history=True)
        shell.display_pub.outputs.clear()
    gc.collect()


@pytest.mark.slow
def test_what_cells_leave_behind_has_a_bound(shell, monkeypatch):
    """Behind it no cell leaves an op, a record or a span more than went with an old one."""
    monkeypatch.setattr(session, "_MAX_CELLS", 5)
    monkeypatch.setattr(history, "_MAX_CELLS", 5)
    monkeypatch.setattr(history, "_MAX_SPANS", 30)
    monkeypatch.setattr(history, "_MAX_STEPS", 5)
    shell.run_line_magic("load_ext", "lazyviz")
    shell.run_cell("import torch, lazyrt\nw = torch.ones(8, 8, device='lazyrt')")

    def left():
        gc.unfreeze()  # what the collector leaves alone counts, too
        kinds = Counter(map(type, gc.get_objects()))
        return Counter(
            {
                kind.__name__: count
                for kind, count in kinds.items()
                if str(kind.__module__).startswith(
                    ("lazyviz.", "lazyrt.ir.", "lazyrt.frontend.")
                )
            }
        )

    run_cells(shell, 30)
    before = left()
    run_cells(shell, 30)
    more = left() - before

    shell.run_line_magic("unload_ext", "lazyviz")
    assert sum(more.values()) < 10, more


@pytest.mark.slow
def test_two_hundred_cells_with_strips_leave_memory_flat(shell):
    """A cell leaves less than 5 KiB more than without the extension, until the oldest give way.

    Measured on Linux, each time from the 80th cell on.
    """
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("needs /proc")

    def kept(count):
        run_cells(shell, 80)
        first, tensors = int(statm.read_text().split()[1]), len(lazyrt.live_tensors())
        run_cells(shell, count)
        assert len(lazyrt.live_tensors()) == tensors
        return (int(statm.read_text().split()[1]) - first) * 4096 / count

    shell.run_cell("import torch, lazyrt\nw = torch.ones(64, 64, device='lazyrt')")
    without = kept(100)
    shell.run_line_magic("load_ext", "lazyviz")
    with_strips = kept(200)
    shell.run_line_magic("unload_ext", "lazyviz")

    print(f"{without:,.0f} and with strips {with_strips:,.0f} bytes a cell")  # noqa: T201
    assert with_strips - without < 5 * 1024
