"""A process writes down its barriers, and is what it would be without."""

import errno
import gc
import gzip
import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from typing import Any

import pytest
import torch

import lazyrt
from lazyrt.control import flight_recorder as recordings
from lazyrt.control.flight_recorder import ThreadLocation, lines_of
from lazyrt.errors import UsageError
from lazyrt.execution import graph_registry
from lazyrt.observe import events
from tests.harness import DEVICE, bytecodes_of, cold_start, start_python


def rows(recording):
    return [json.loads(line) for line in recording.path.read_text().splitlines()]


def of_kind(recording, key):
    return [row for row in rows(recording) if key in row]


def train(steps=3):
    torch.manual_seed(0)
    weight = torch.ones(4, 3, device=DEVICE, requires_grad=True)
    losses = []
    for _ in range(steps):
        loss = (torch.rand(2, 4, device=DEVICE) @ weight).square().sum()
        with torch.no_grad():
            weight -= 0.1 * torch.autograd.grad(loss, weight)[0]
        losses.append(loss.item())
    return losses


def seen(run):
    """Return what a run computes and what it makes the runtime do."""
    cold_start()
    found: list[Any] = []
    kinds = (events.GraphCaptured, events.ExecuteStarted, events.CompileFinished)
    with events.subscribe(found.append, *kinds):
        result = run()
    done = [(type(e).__name__, e.fingerprint, e.nodes) for e in found]
    return result, done, [g.cause for g in lazyrt.compiled_graphs()]


@pytest.mark.lazy_only("records the graphs of steps")
def test_recording_changes_neither_graphs_nor_counts_nor_results(tmp_path):
    alone = seen(train)

    with lazyrt.record_steps(tmp_path, 0) as recording:
        beside = seen(train)

    assert beside == alone
    assert len(of_kind(recording, "done")) >= 3


def test_a_barrier_costs_a_bounded_number_of_instructions_more(tmp_path, monkeypatch):
    """Measured: about 1,500 Python instructions, beside 2,800 of the barrier alone, and two writes for each barrier."""
    monkeypatch.setattr(recordings, "_FIRST_BEAT_S", 3600.0)
    x = torch.ones(8, device=DEVICE)
    kept: list[Any] = []

    def step():
        kept.append(x + 1)
        lazyrt.mark_step()
        kept.clear()

    def cost():
        for _ in range(5):
            step()
        return min(bytecodes_of(step) for _ in range(3))

    alone = cost()
    with lazyrt.record_steps(tmp_path, 0):
        recorded_too = cost()

    assert alone < recorded_too < alone + 4_000
    assert cost() < alone + 400  # tables of the runtime grow a little


@pytest.mark.lazy_only("records the graphs of steps")
def test_each_barrier_is_told_when_entered_and_when_done(tmp_path):
    cold_start()
    with lazyrt.record_steps(tmp_path, "left") as recording:
        x = torch.ones(2, 3, device=DEVICE)
        with lazyrt.step("train", step_num=7):
            y = x + 1
        lazyrt.mark_step()

    assert recording.path.name == "replica-left.jsonl"
    entered, done = of_kind(recording, "enter"), of_kind(recording, "done")
    assert [row["cause"] for row in entered] == ["end of step train", "mark_step()"]
    assert [(row["ops"], row["ran"]) for row in done] == [(2, True), (0, False)]
    assert done[0]["time"] >= entered[0]["time"]
    place = next(r for r in rows(recording) if r.get("place") == entered[1]["place"])
    assert place["lines"][0][0] == __file__
    [graph] = [r for r in rows(recording) if "results" in r]
    assert graph["graph"] == done[0]["graph"]
    assert sorted(name for name, _ in graph["results"]) == ["x", "y"]
    assert rows(recording)[-1]["why"] == "closed"
    del y


@pytest.mark.lazy_only("records the graphs of steps")
def test_the_file_of_a_graph_gives_its_record_back(tmp_path):
    cold_start()
    with lazyrt.record_steps(tmp_path, 0) as recording:
        weight = torch.ones(3, device=DEVICE)
        loss = (weight * 2).sum()
        lazyrt.mark_step()

    [graph] = [r for r in rows(recording) if "results" in r]
    text = gzip.decompress((tmp_path / graph["file"]).read_bytes()).decode()
    found, [record] = graph_registry.decode_record(text), lazyrt.compiled_graphs()
    assert found.snapshot is not None
    assert record.snapshot is not None
    assert found.snapshot.vertices == record.snapshot.vertices
    assert found.snapshot.roots == record.snapshot.roots
    assert found.snapshot.root_names == record.snapshot.root_names
    assert found.results == record.results
    assert found.key.ended_by == record.key.ended_by
    del loss


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version":9}', '{"version":1,"sites":[]}', "null", "[" * 5_000],
)
def test_a_damaged_graph_is_refused(text):
    with pytest.raises((ValueError, RecursionError)):
        graph_registry.decode_record(text)


@pytest.mark.lazy_only("records the graphs of steps")
def test_operands_that_come_later_are_refused(tmp_path):
    cold_start()
    x = torch.ones(3, device=DEVICE) * 2
    lazyrt.mark_step()
    [record] = lazyrt.compiled_graphs()
    data = json.loads(gzip.decompress(graph_registry.encode_record(record)))
    data["vertices"][0][3] = [[5, 0]]

    with pytest.raises(ValueError, match="not in front of it"):
        graph_registry.decode_record(json.dumps(data))
    del x


def test_nothing_is_kept_alive(tmp_path):
    gc.collect()
    before = len(lazyrt.live_tensors())
    with lazyrt.record_steps(tmp_path, 0):
        x = torch.ones(2, device=DEVICE) + 1
        lazyrt.mark_step()
        gone = weakref.ref(x)
        del x

        assert gone() is None
        assert len(lazyrt.live_tensors()) == before


@pytest.mark.not_eager("a barrier with nothing pending cannot fail")
def test_a_barrier_that_fails_is_entered_and_never_done(tmp_path, monkeypatch):
    x = torch.ones(2, device=DEVICE) * 3
    with lazyrt.record_steps(tmp_path, 0) as recording:
        with monkeypatch.context() as patch:
            patch.setattr(lazyrt.config, "max_memory_bytes", 1)
            with pytest.raises(lazyrt.LazyRuntimeError):
                lazyrt.mark_step()
        lazyrt.mark_step()

    assert [r["enter"] for r in of_kind(recording, "enter")] == [1, 2]
    assert [r["done"] for r in of_kind(recording, "done")] == [2]
    del x


@pytest.mark.lazy_only("records the graphs of steps")
def test_the_same_graph_is_written_once(tmp_path):
    cold_start()
    with lazyrt.record_steps(tmp_path, 0) as recording:
        train(5)

    graphs = [r["graph"] for r in rows(recording) if "results" in r]
    assert len(graphs) == len(set(graphs)) < len(of_kind(recording, "done"))


@pytest.mark.lazy_only("records the graphs of steps")
def test_a_graph_beyond_the_bounds_has_no_file(tmp_path, monkeypatch):
    cold_start()
    monkeypatch.setattr(recordings, "_MAX_NODES", 0)
    with lazyrt.record_steps(tmp_path, 0) as recording:
        train(1)

    assert {r["file"] for r in rows(recording) if "results" in r} == {""}


def test_a_second_run_leaves_the_record_of_the_first(tmp_path):
    paths = []
    for _ in range(2):
        with lazyrt.record_steps(tmp_path, 3) as recording:
            paths.append(recording.path.name)

    assert paths == ["replica-3.jsonl", "replica-3.run2.jsonl"]


def test_the_rank_of_torchrun_is_the_name(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with lazyrt.record_steps(tmp_path) as recording:
        pass

    assert recording.path.name == "replica-5.jsonl"
    assert rows(recording)[0]["of"] == 8


@pytest.mark.parametrize(
    "name", ["", "a/b", "../x", "x.run2", True, 1.5, "x" * 65, "."]
)
def test_a_name_that_names_no_file_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match="the replica's name"):
        lazyrt.record_steps(tmp_path, name)


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path):
    file = tmp_path / "file"
    file.write_text("")

    for folder in (file, file / "below", "a\0b"):
        with pytest.raises(UsageError, match="cannot be recorded into"):
            lazyrt.record_steps(folder, 0)
    with pytest.raises(UsageError, match="no path"):
        lazyrt.record_steps(7, 0)  # type: ignore[arg-type]


def test_the_home_of_nobody_is_refused():
    with pytest.raises(UsageError, match="cannot be recorded into '~no-such-user/x'"):
        lazyrt.record_steps("~no-such-user/x")


@pytest.mark.lazy_only("records the graphs of steps")
def test_a_program_that_changes_its_folder_goes_on_recording(tmp_path, monkeypatch):
    cold_start()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with lazyrt.record_steps("steps", 0) as recording:
        monkeypatch.chdir(tmp_path / "elsewhere")
        train(1)

    graphs = [r["file"] for r in rows(recording) if "results" in r]
    assert graphs
    assert all((tmp_path / "steps" / file).is_file() for file in graphs)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_two_recordings_at_once_are_refused(tmp_path):
    with (
        lazyrt.record_steps(tmp_path, 0),
        pytest.raises(UsageError, match="Close that recording first"),
    ):
        lazyrt.record_steps(tmp_path / "other", 0)


@pytest.mark.lazy_only("records the graphs of steps")
def test_a_full_disk_ends_the_record_and_not_the_program(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with lazyrt.record_steps(tmp_path, 0) as recording:
        monkeypatch.setattr(os, "write", full)
        with caplog.at_level(logging.WARNING):
            losses = train(2)
        monkeypatch.undo()

    assert len(losses) == 2
    [said] = [r.message for r in caplog.records if "cannot be continued" in r.message]
    assert f"{recording.path} cannot be continued (No space left on device)" in said
    assert not recording.is_open


@pytest.mark.lazy_only("records the graphs of steps")
def test_a_record_has_a_largest_size(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(recordings, "_MAX_BYTES", 3_000)
    with lazyrt.record_steps(tmp_path, 0) as recording:
        train(30)

    assert recording.path.stat().st_size < 3_200
    assert rows(recording)[-1]["why"] == "full"
    assert "not continued" in caplog.text


def test_an_exception_in_the_block_is_told_with_its_line_and_without_its_words(
    tmp_path,
):
    with (
        pytest.raises(ValueError, match="secret"),
        lazyrt.record_steps(tmp_path, 0) as recording,
    ):
        raise ValueError("secret")

    kind, place = rows(recording)[-1]["failure"]
    assert (kind, place[0]) == ("ValueError", __file__)
    assert "secret" not in recording.path.read_text()


@pytest.mark.parametrize(("code", "failed"), [(None, False), (0, False), (1, True)])
def test_an_exit_is_a_failure_only_with_a_status(tmp_path, code, failed):
    with pytest.raises(SystemExit), lazyrt.record_steps(tmp_path, 0) as recording:
        sys.exit(code)

    assert (rows(recording)[-1]["failure"] is not None) == failed


def test_a_place_that_was_interrupted_is_written_again(tmp_path, monkeypatch):
    with lazyrt.record_steps(tmp_path, 0) as recording:
        write = recording._write

        def interrupted(**row):
            monkeypatch.setattr(recording, "_write", write)
            raise KeyboardInterrupt

        for step in range(2):
            weight = torch.ones(3, device=DEVICE) * step
            if not step:
                monkeypatch.setattr(recording, "_write", interrupted)
            try:
                lazyrt.mark_step()
            except KeyboardInterrupt:
                lazyrt.mark_step()
            del weight

    known = {row["place"] for row in of_kind(recording, "lines") if "place" in row}
    assert {row["place"] for row in of_kind(recording, "enter")} <= known


def test_closing_puts_things_back(tmp_path):
    recording = lazyrt.record_steps(tmp_path, 0)
    recording.close()
    size = recording.path.stat().st_size
    recording.close()
    train(1)

    assert recording.path.stat().st_size == size


def test_a_quiet_process_says_on_which_line_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(recordings, "_FIRST_BEAT_S", 0.02)
    with lazyrt.record_steps(tmp_path, 0) as recording:
        end = time.monotonic() + 20
        while not of_kind(recording, "beat") and time.monotonic() < end:
            time.sleep(0.02)

    beat = of_kind(recording, "beat")[0]
    assert beat["lines"][0][0] == __file__
    assert beat["next_s"] == 0.04


def test_a_threads_line_is_found_without_its_frames():
    ready, go_on = threading.Event(), threading.Event()

    def wait_here():
        ready.set()
        go_on.wait(20)

    thread = threading.Thread(target=wait_here)
    thread.start()
    ready.wait(20)
    with ThreadLocation() as location:
        lines = location.of(thread.ident or 0)
    go_on.set()
    thread.join()

    assert lines[0].function == "wait_here"
    assert lines[0].file == __file__


def test_lines_of_other_threads_and_of_packages_are_left_out():
    dump = (
        "Thread 0x00000000000000ff (most recent call first):\n"
        f'  File "{torch.__file__}", line 3 in add\n'
        '  File "/home/me/train.py", line 7 in step\n'
        "\n"
        "Current thread 0x0000000000000001 (most recent call first):\n"
        '  File "/home/me/other.py", line 1 in beat\n'
    )

    assert [str(site) for site in lines_of(dump, 255)] == ["train.py:7"]
    assert lines_of(dump, 2) == ()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_writes_nothing(tmp_path):
    with (
        lazyrt.record_steps(tmp_path, 0) as recording,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # that of jax, where a test has used it
        child = os.fork()
        if child == 0:
            recordings._end_all()
            recording.close()
            os._exit(0)
        os.waitpid(child, 0)
        written = rows(recording)

    assert "end" not in written[-1]


PROGRAM = """
import os, torch, lazyrt
x = torch.ones(3, device="lazyrt") * 2
lazyrt.mark_step()
print(lazyrt.compiled_graphs()[0].fingerprint)
"""


@pytest.mark.slow
def test_the_environment_switches_recording_on(tmp_path):
    folder = str(tmp_path / "steps")
    kill = f"os.kill(os.getpid(), {int(signal.SIGKILL)})"
    programs = [
        start_python(PROGRAM),
        start_python(PROGRAM, LAZYRT_RECORD=folder, RANK="1", WORLD_SIZE="2"),
        start_python("import lazyrt", LAZYRT_RECORD=folder),
        start_python(PROGRAM + "raise KeyError('x')", LAZYRT_RECORD=folder, RANK="2"),
        start_python(PROGRAM + kill, LAZYRT_RECORD=folder, RANK="3"),
    ]
    (plain, _), (told, _), (nothing, _), (_, errors), _ = [
        program.communicate(timeout=300) for program in programs
    ]

    assert (told, nothing) == (plain, "")
    assert plain
    assert "KeyError: 'x'" in errors
    found = {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (tmp_path / "steps").glob("*.jsonl")
    }
    assert sorted(found) == [f"replica-{k}.jsonl" for k in (1, 2, 3)]
    assert found["replica-1.jsonl"][-1]["why"] == "exit"
    assert found["replica-2.jsonl"][-1]["failure"][0] == "KeyError"
    assert "end" not in found["replica-3.jsonl"][-1]


def run_recorded(folder, text):
    """Run a program from a file, of which its worker processes import what they run."""
    program = folder / "program.py"
    program.write_text(text)
    code = f"import runpy, sys; sys.argv = [{str(program)!r}]; runpy.run_path({str(program)!r}, run_name='__main__')"
    process = start_python(code, LAZYRT_RECORD=str(folder / "steps"), RANK="0")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


LOADING = """
import torch, lazyrt
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    data = TensorDataset(torch.ones(4, 2))
    for (batch,) in DataLoader(data, 4, num_workers=1, multiprocessing_context="fork"):
        kept = batch.to("lazyrt") * 2
    lazyrt.mark_step()
"""


@pytest.mark.slow
def test_the_workers_of_a_loader_are_no_replicas(tmp_path):
    run_recorded(tmp_path, LOADING)

    assert [p.name for p in (tmp_path / "steps").glob("*.jsonl")] == ["replica-0.jsonl"]


WORKING = """
import multiprocessing
import torch, lazyrt

def work():
    (torch.ones(2, device="lazyrt") * 3).tolist()

if __name__ == "__main__":
    work()
    other = multiprocessing.get_context("spawn").Process(target=work)
    other.start()
    other.join()
"""


@pytest.mark.slow
def test_a_worker_that_has_its_rank_from_its_parent_is_no_later_run_of_it(tmp_path):
    run_recorded(tmp_path, WORKING)

    names = sorted(p.name for p in (tmp_path / "steps").glob("*.jsonl"))
    assert [name[:11] for name in names] == ["replica-0.j", "replica-pid"]


@pytest.mark.slow
def test_a_folder_of_the_environment_that_cannot_be_written_stops_the_import(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    process = start_python("import lazyrt", LAZYRT_RECORD=str(file))
    _, errors = process.communicate(timeout=300)

    assert process.returncode == 1
    assert "cannot be recorded into" in errors
