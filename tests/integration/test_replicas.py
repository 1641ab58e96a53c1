"""Two processes that train one program, and where they part."""

import signal
import time

import pytest

import lazyviz
from lazyviz.divergence.report import replicas
from tests.harness import start_python

pytestmark = pytest.mark.slow

# Each scenario records into a folder of its own; the last one is ended from outside.
PROGRAM = """
import os, pathlib, sys, time, torch, lazyrt
from torch import nn

rank, folder = int(os.environ["RANK"]), pathlib.Path(os.environ["FOLDER"])
lazyrt.config.compile_tier = "fast"


def save(model):
    return {name: weight.cpu() for name, weight in model.state_dict().items()}


def train(scenario, steps=4):
    torch.manual_seed(0)
    model = nn.Linear(4, 3).to("lazyrt")
    for step in range(steps):
        odd = step == 2 and rank == (scenario == "batch")
        batch = torch.ones(6 if odd and scenario == "batch" else 8, 4).to("lazyrt")
        loss = model(batch).square().mean()
        loss.backward()
        if not (odd and scenario == "update"):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
        if odd and scenario == "save":
            save(model)
        model.zero_grad()
        if odd and scenario == "hang":
            time.sleep(600)
        if not (odd and scenario == "mark"):
            lazyrt.mark_step()
    return loss.item()


for scenario in ("equal", "save", "update", "batch", "mark"):
    with lazyrt.record_steps(folder / scenario):
        train(scenario)
lazyrt.record_steps(folder / "hang")
train("hang")
print("trained", flush=True)
if rank == 1:
    time.sleep(600)  # until it is killed
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of records; replica 0 hangs in the last one, and replica 1 was killed."""
    folder = tmp_path_factory.mktemp("steps")
    (folder / "program.py").write_text(PROGRAM)
    code = f"import runpy; runpy.run_path({str(folder / 'program.py')!r}, run_name='__main__')"
    ranks = [
        start_python(code, RANK=str(k), WORLD_SIZE="2", FOLDER=str(folder))
        for k in range(2)
    ]
    try:
        assert ranks[1].stdout.readline() == "trained\n", ranks[1].stderr.read()
        ranks[1].send_signal(signal.SIGKILL)
        ranks[1].wait()
        end = time.monotonic() + 300
        while beats(folder / "hang" / "replica-0.jsonl") < 2 and time.monotonic() < end:
            assert ranks[0].poll() is None, ranks[0].stderr.read()
            time.sleep(0.1)
        yield folder
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def beats(path):
    """Return how often a replica has told which line it is at, one second or more apart."""
    return path.read_text().count('"beat"') if path.exists() else 0


def line_of(text):
    """Return where a line of the program stands, as `program.py:7`."""
    lines = PROGRAM.splitlines()
    [number] = [k for k, line in enumerate(lines, 1) if text in line]
    return f"program.py:{number}"


def row_of(found):
    return found.first_difference.row


def test_equal_programs_have_no_difference(folder):
    found = lazyviz.replicas(folder / "equal")

    assert found.first_difference is None
    assert found.late == ()
    assert found.sentence.startswith("no difference: replicas 0 and 1 ran the same 4 ")


def test_a_checkpoint_on_one_replica_is_named_and_mended(folder):
    found = lazyviz.replicas(folder / "save")

    difference = found.first_difference
    assert difference is not None
    assert (difference.kind, difference.row) == ("gap", 3)
    assert found.sentence.startswith(
        f"replica 0 has a barrier at {line_of('weight.cpu()')}, read of `weight` by .cpu() in save()"
    )
    assert (
        f"replica 1 waits for it at {line_of('lazyrt.mark_step()')}" in found.sentence
    )
    guard = line_of('if odd and scenario == "save"')
    assert f'in front of `if odd and scenario == "save":` at {guard}' in found.fix


def test_an_update_that_one_replica_leaves_out_is_named(folder):
    found = lazyviz.replicas(folder / "update")

    assert row_of(found) == 3
    assert found.sentence.startswith("replica 0 runs another program")
    update = line_of("parameter -= 0.1")
    assert f" are not updated at {update}, were updated" in found.sentence
    for name in ("`model.weight`", "`model.bias`"):
        assert name in found.sentence


def test_a_smaller_batch_is_named_with_its_sizes(folder):
    found = lazyviz.replicas(folder / "batch")

    assert row_of(found) == 3
    assert "(`batch`) = f32[6,4], replica 0 f32[8,4]" in found.sentence
    assert found.sentence.startswith("replica 1 has input ")
    assert "drop_last=True" in found.fix


def test_a_barrier_that_one_replica_leaves_out_is_named(folder):
    found = lazyviz.replicas(folder / "mark")

    assert row_of(found) == 3
    mark = line_of("lazyrt.mark_step()")
    assert found.sentence.startswith(f"replica 0 has no barrier at {mark}, mark_step()")
    assert f"it goes on to mark_step() at {mark}" in found.sentence
    guard = line_of('scenario == "mark"')
    assert f"at {guard}" in found.fix


def test_a_hanging_and_a_killed_replica_are_named_with_their_lines(folder):
    hung = lazyviz.replicas(folder / "hang").tracks[0]
    found = replicas(folder / "hang", now=hung.last_time + 6)
    later = replicas(folder / "hang", now=time.time() + 3600)

    assert found.first_difference is None
    [hangs] = [each for each in found.late if each.startswith("replica 0 ")]
    assert f"has been at {line_of('            time.sleep(600)')} for " in hangs
    assert "after 2 barriers, while others have 4" in hangs
    [killed] = [each for each in later.late if each.startswith("replica 1 ")]
    assert "gives no sign of life" in killed
    assert "and has not ended: it was at program.py:" in killed


def test_the_command_and_the_page_say_the_same(folder, tmp_path):
    page = tmp_path / "page.html"
    process = start_python(
        "import sys; from lazyviz.__main__ import main; "
        f"sys.exit(main(['replicas', {str(folder / 'save')!r}, '--html', {str(page)!r}]))"
    )
    out, errors = process.communicate(timeout=300)

    assert process.returncode == 1, errors
    assert "▶ 3 first difference" in out
    assert "first difference" in page.read_text()
