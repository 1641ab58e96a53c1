"""Captures: a server in the program, and who asks it from there or from another process."""

import gc
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

import jax
import pytest
import torch

import lazyrt
import lazyrt.compat.debug.profiler as xp
from lazyrt.control import capture
from lazyrt.control.capture import Request
from lazyrt.errors import LazyRuntimeError, NoEquivalentError, UsageError
from tests.harness import DEVICE


@pytest.fixture
def server():
    with lazyrt.ProfilerServer() as found:
        yield found


@pytest.fixture
def running():
    """A loop of steps on a thread of its own; yields what counts them."""
    over = threading.Event()
    steps: list[Any] = []

    def loop():
        x = torch.ones(4, device=DEVICE)
        while not over.wait(0.01):
            with lazyrt.step("train", len(steps)):
                x = x * 1.5
            steps.append(1)

    thread = threading.Thread(target=loop)
    thread.start()
    yield steps
    over.set()
    thread.join()


def answers(port):
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def address(server):
    return f"localhost:{server.port}"


def event_names(path):
    data = jax.profiler.ProfileData.from_file(str(path))
    return [
        e.name for plane in data.planes for line in plane.lines for e in line.events
    ]


# ------------------------------------------------------------------------------- the server


def test_a_server_answers_as_long_as_somebody_holds_it():
    server = xp.start_server(0)
    port = server.port
    assert answers(port)

    del server
    gc.collect()

    assert not answers(port)


def test_a_closed_server_frees_its_port_and_says_that_it_is_closed(server):
    port = server.port

    server.close()
    server.close()

    assert repr(server) == "<lazyrt profiler server: closed>"
    with lazyrt.ProfilerServer(port) as again:
        assert again.port == port


def test_a_busy_port_is_refused(server):
    with pytest.raises(RuntimeError, match=f"cannot listen on port {server.port}"):
        lazyrt.ProfilerServer(server.port)


def test_a_server_listens_on_the_address_that_it_is_given_alone():
    with lazyrt.ProfilerServer(host="127.0.0.2") as server:
        request = Request(duration_s=0.05)
        assert capture.capture(f"127.0.0.2:{server.port}", request).data
        assert (
            repr(server) == f"<lazyrt profiler server: port {server.port} of 127.0.0.2>"
        )
        with pytest.raises(RuntimeError, match="no server answers"):
            capture.capture(f"127.0.0.1:{server.port}", request, attempts=1)


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(
        RuntimeError, match=r"cannot listen on '192\.0\.2\.99', port 0: "
    ):
        lazyrt.ProfilerServer(host="192.0.2.99")


@pytest.mark.parametrize("port", [-1, 65_536, 99_999, "9012", None, 9.5, True])
def test_an_invalid_port_is_refused(port):
    with pytest.raises(RuntimeError, match="which is no port"):
        xp.start_server(port)


def test_a_server_that_nobody_holds_lives_on_with_a_warning_at_its_line(monkeypatch):
    monkeypatch.setattr(xp, "_unheld", [])

    with pytest.warns(RuntimeWarning, match="no variable holds the server") as warned:
        xp.start_server(0)

    assert warned[0].filename == __file__
    assert answers(xp._unheld[0].port)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        held = [xp.start_server(0)]
    held[0].close()
    xp._unheld[0].close()


def test_what_is_no_request_is_refused(server):
    import http.client

    connection = http.client.HTTPConnection("localhost", server.port, timeout=10)
    connection.request("POST", "/", "{}", {"Content-Type": "text/plain"})

    assert connection.getresponse().status == 400
    connection.close()


def test_a_client_that_speaks_grpc_is_passed_on_to_the_server_of_jax(server):
    with socket.create_connection(("localhost", server.port), timeout=30) as client:
        client.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
        )
        head = client.recv(9, socket.MSG_WAITALL)

    assert head[3] == 4  # settings, with which each HTTP/2 server answers


# ------------------------------------------------------------------------------- captures


def test_a_capture_of_some_steps_ends_with_the_last_of_them(server, running):
    found = capture.capture(address(server), Request(steps=3, duration_s=60))

    assert found.steps >= 3
    assert found.duration_s < 50
    assert found.notes == ()


def test_a_capture_without_a_whole_step_says_so(server):
    found = capture.capture(address(server), Request(duration_s=0.05))

    assert found.steps == 0
    assert "no whole step ended" in found.notes[0]
    assert "steps=1" in found.notes[0]


def test_a_capture_that_waits_in_vain_for_steps_says_how_many_came(server, running):
    found = capture.capture(address(server), Request(steps=10**6, duration_s=0.3))

    assert 0 < found.steps < 10**6
    assert f"only {found.steps} whole step" in found.notes[0]


def test_a_capture_that_grows_too_large_ends_with_a_message(
    server, running, monkeypatch
):
    monkeypatch.setattr(capture, "_SLICE_S", 0.05)

    found = capture.capture(address(server), Request(duration_s=60, max_bytes=1_000))

    assert found.duration_s < 50
    assert "it was ended after" in found.notes[0]
    assert "was to end at 1,000 bytes" in found.notes[0]


def test_a_capture_in_pieces_is_one_profile(server, running, monkeypatch, tmp_path):
    monkeypatch.setattr(capture, "_SLICE_S", 0.1)

    found = capture.capture(address(server), Request(duration_s=0.35))

    data = jax.profiler.ProfileData.from_serialized_xspace(found.data)
    hosts = [plane.name for plane in data.planes if "host" in plane.name]
    assert len(hosts) >= 3
    assert found.write(tmp_path).parent.parent == tmp_path / "plugins" / "profile"


def test_the_frames_of_python_are_left_out_unless_they_are_asked_for(tmp_path):
    def names(options):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        xp.start_trace(folder, options)
        sorted([3, 1, 2], key=lambda n: -n)
        xp.stop_trace()
        (file,) = folder.rglob("*.xplane.pb")
        return [name for name in event_names(file) if name.startswith("$")]

    assert names(None) == []
    assert names({"python_tracer_level": 1})
    with pytest.raises(UsageError, match=r"options are .*host_tracer_level"):
        xp.start_trace(tmp_path, {"python": 1})


def test_annotations_of_a_trace_nest_and_a_decorated_function_has_one(tmp_path):
    @xp.Trace("update")
    def update():
        return 1

    xp.start_trace(tmp_path)
    with xp.StepTrace("train", step_num=7), xp.Trace("forward", batch=4):
        update()
    xp.stop_trace()

    (file,) = tmp_path.rglob("*.xplane.pb")
    found = event_names(file)
    assert [found.count(name) for name in ("train", "forward", "update")] == [1, 1, 1]


def test_a_second_trace_is_refused_and_so_is_a_capture_meanwhile(tmp_path, server):
    xp.start_trace(tmp_path)
    try:
        with pytest.raises(RuntimeError, match="already been started"):
            xp.start_trace(tmp_path)
        with pytest.raises(LazyRuntimeError, match="in 1 attempt: Profile has already"):
            capture.capture(address(server), Request(duration_s=0.01), attempts=1)
    finally:
        xp.stop_trace()
    with pytest.raises(RuntimeError, match="No profile started"):
        xp.stop_trace()


def test_a_trace_that_grows_too_large_ends_with_a_warning_and_is_written(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(capture, "_SLICE_S", 0.05)
    monkeypatch.setattr(capture, "MAX_BYTES", 1)
    xp.start_trace(tmp_path)
    (recording,) = xp._recording
    recording._thread.join(10)
    monkeypatch.undo()

    xp.start_trace(tmp_path / "other")  # the first one runs no more
    xp.stop_trace()
    with pytest.warns(
        RuntimeWarning,
        match=r"the trace: it was ended after .* was to end at 1 bytes?",
    ):
        xp.stop_trace()
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_a_long_trace_in_pieces_is_one_profile(monkeypatch, tmp_path):
    monkeypatch.setattr(capture, "_SLICE_S", 0.05)
    xp.start_trace(tmp_path)
    for number in range(3):
        with xp.Trace(f"part {number}"):
            time.sleep(0.1)
    xp.stop_trace()

    (file,) = tmp_path.rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_serialized_xspace(file.read_bytes()).planes
    assert len([plane for plane in planes if "host" in plane.name]) >= 2


def test_a_client_tries_again_until_somebody_answers(monkeypatch):
    monkeypatch.setattr(capture, "_RETRY_S", 0.2)
    with lazyrt.ProfilerServer() as probe:
        port = probe.port
    late = []
    timer = threading.Timer(0.1, lambda: late.append(lazyrt.ProfilerServer(port)))
    timer.start()
    try:
        found = capture.capture(
            f"localhost:{port}", Request(duration_s=0.01), attempts=9
        )
    finally:
        timer.join()
        late[0].close()

    assert found.data


def test_nobody_at_an_address_is_told(server):
    port = server.port
    server.close()

    with pytest.raises(LazyRuntimeError, match="no server answers") as raised:
        capture.capture(f"localhost:{port}", Request(), attempts=1)

    assert "must hold what xp.start_server" in str(raised.value)


@pytest.mark.parametrize("where", ["9012", "host", "host:port", "host:0", "host:70000"])
def test_what_is_no_address_is_refused(where):
    with pytest.raises(UsageError, match="which is not HOST:PORT"):
        capture.capture(where, Request())


@pytest.mark.parametrize(
    "wrong", [{"duration_s": 0}, {"duration_s": 1e9}, {"delay_s": -1}, {"steps": -1}]
)
def test_what_cannot_be_captured_is_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Request(**wrong)


def test_an_unknown_kind_is_refused_with_those_that_there_are(server):
    with pytest.raises(UsageError, match="no captures of kind 'video', only of xplane"):
        capture.capture(address(server), Request(kind="video"))


# --------------------------------------------------------------------- torch_xla's names


def test_trace_writes_a_profile_and_takes_its_delay(server, running, tmp_path):
    started = time.monotonic()

    xp.trace(address(server), str(tmp_path), duration_ms=100, delay_ms=200)

    assert time.monotonic() - started >= 0.3
    (file,) = tmp_path.rglob("*.xplane.pb")
    assert file.parent.parent == tmp_path / "plugins" / "profile"


def test_trace_detached_lets_the_program_go_on(server, tmp_path):
    thread = xp.trace_detached(address(server), str(tmp_path), duration_ms=300)
    with xp.StepTrace("train"):
        y = torch.ones(3, device=DEVICE) * 2
    thread.join()

    assert y.tolist() == [2.0] * 3
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_trace_shows_nothing_itself(tmp_path):
    with pytest.raises(NoEquivalentError, match="interactive"):
        xp.trace("localhost:1", str(tmp_path), interactive="overview_page")


_CHILD = """
import sys, time, torch, lazyrt
import lazyrt.compat.debug.profiler as xp
server = xp.start_server(0)
x = torch.ones(4, device="lazyrt")
with xp.StepTrace("train"), xp.Trace("forward"):
    x = x * 1.5
print(server.port, flush=True)
end = time.monotonic() + 60
while time.monotonic() < end and not sys.stdin.closed:
    with xp.StepTrace("train"), xp.Trace("forward"):
        x = x * 1.5
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_another_process_is_captured(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"LAZYRT_COMPILE_TIER": "fast"},
    )
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        xp.trace(f"localhost:{port}", str(tmp_path / "ours"), duration_ms=500)
        (file,) = (tmp_path / "ours").rglob("*.xplane.pb")
        assert {"train", "forward"} <= set(event_names(file))
    finally:
        child.kill()
        child.communicate()
