"""`python -c` and `python -m` for tests, forked from a process that has imported torch and jax.

The imports are most of what a small program costs: five of seven seconds of CPU. `interpreter()` returns
the words to put in front of `-c` or `-m`. They start a relay, which hands its working directory,
environment and standard streams to the server; the server forks. The fork has not imported lazyrt,
runs the program as `__main__`, and ends as any interpreter does. The relay takes signals for it,
and ends as it did.
"""

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types

# What torch, jax or Python itself read when they are imported cannot be handed over.
_READ_AT_IMPORT = ("PYTHON", "JAX", "XLA", "TORCH", "OMP", "MKL", "TF_", "ABSL")
_HANDED_OVER = {"PYTHONPATH"}
_SHARED = "LAZYVIZ_TEST_PYTHON"  # the address of a server

# What a program imports before its own lines, and what lazyrt would import of these then.
_IMPORTED = (
    "jax.numpy",
    "jax.experimental.serialize_executable",
    "jax.experimental.shard_map",
    "jax.extend.core",
    "jax.scipy.special",
    "jaxlib.mlir.dialects.mhlo",
    "torch._dynamo",  # which the first op of a program would load
    "torch.utils.data",
)


def interpreter(environment: dict[str, str] | None = None) -> list[str]:
    """Return the words in front of `-c` or `-m`, for a program with this environment."""
    given = os.environ if environment is None else environment
    if any(
        given.get(name) != os.environ.get(name)
        for name in {*given, *os.environ} - _HANDED_OVER
        if name.startswith(_READ_AT_IMPORT)
    ):
        return [sys.executable]
    return [sys.executable, "-SE", __file__, "relay", _server()]


def write_kernel(folder: object, environment: dict[str, str] | None = None) -> None:
    """Write the specification of a Python kernel that starts so, for which JUPYTER_PATH is to name the folder."""
    kernel = f"{folder}/kernels/python3"
    os.makedirs(kernel)  # noqa: PTH103
    words = [*interpreter(environment), "-m", "ipykernel_launcher"]
    text = {
        "argv": [*words, "-f", "{connection_file}"],
        "display_name": "Python 3 (ipykernel)",  # as ipykernel's own
        "language": "python",
    }
    with open(f"{kernel}/kernel.json", "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(text, file)


def share_server() -> None:
    """Start a server for this process and all that it starts: the workers of a run have one together."""
    os.environ[_SHARED] = _server()


@functools.cache
def _server():
    """Start the server of this process, and return the address of its socket."""
    if _SHARED in os.environ:
        return os.environ[_SHARED]
    folder = tempfile.mkdtemp(prefix="lazyviz-python-")
    address = os.path.join(folder, "socket")  # noqa: PTH118 - the relay is to start quickly
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LAZY")}
    with open(__file__, encoding="utf-8") as source:  # noqa: PTH123
        # As text, so that its frames are nobody's lines.
        words = [sys.executable, "-c", source.read(), "serve", address]
    server = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert server.stdout is not None
    server.stdout.readline()
    atexit.register(server.communicate)  # closes what the server waits for
    return address


# ------------------------------------------------------------------ the server


def serve(address):
    """Fork for each relay; return in the fork, with the words of its program."""
    import gc
    import importlib
    import selectors

    chosen = selectors.DefaultSelector()
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        for each in (listening, wake, sys.stdin):
            chosen.register(each, selectors.EVENT_READ)
        os.write(1, b"\n")  # a relay that comes now waits until it is accepted
        for name in _IMPORTED:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # a collection of the fork would go through, and so copy, all of it
        relays: dict[int, socket.socket] = {}  # by process
        while True:
            ready = [key.fileobj for key, _ in chosen.select()]
            if sys.stdin in ready:
                os.unlink(address)  # noqa: PTH108
                os.rmdir(os.path.dirname(address))  # noqa: PTH106, PTH120
                os._exit(0)
            for each in ready:
                if each is listening:
                    relay, _ = listening.accept()
                    text, streams, _, _ = socket.recv_fds(relay, 1 << 20, 3)
                    request = json.loads(text)
                    process = os.fork()
                    if process == 0:
                        _become(request, streams, [*relays.values(), relay, chosen])
                        os.close(wake)
                        os.close(woken)
                        return request["words"]
                    for stream in streams:
                        os.close(stream)
                    relays[process] = relay
                    chosen.register(relay, selectors.EVENT_READ)
                    with contextlib.suppress(OSError):  # the relay was killed
                        relay.sendall(f"{process}\n".encode())
                elif each == wake:
                    os.read(wake, 1 << 10)
                elif each is not sys.stdin and each in relays.values():
                    for process, relay in relays.items():
                        if relay is each:  # the relay was killed
                            os.kill(process, signal.SIGKILL)
            for process in list(relays):
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    relay = relays.pop(process)
                    chosen.unregister(relay)
                    with contextlib.suppress(OSError):  # the relay was killed
                        relay.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                    relay.close()


def _become(request, streams, held):
    """Make this fork what a new interpreter would be."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for each in held:
        each.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    before = os.environ.get("PYTHONPATH", "")
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    inherited = {*before.split(os.pathsep), ""}
    rest = [path for path in sys.path if path not in inherited]
    sys.path[:] = [path for path in paths if path] + rest


# ------------------------------------------------------------------ the relay


def relay(address, words):
    """Have the server run a program, and end as it ends."""
    request = {
        "words": words,
        "folder": os.getcwd(),  # noqa: PTH109
        "environment": dict(os.environ),
    }
    # Through a pipe, since a signal just before a read that blocks calls no handler until that ends.
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
        answers: list[int] = []  # the number of the process, and how it ended
        said = b""
        while len(answers) < 2:
            ready, _, _ = select.select(
                [server.fileno(), wake][: 1 + len(answers)], [], []
            )
            if wake in ready:
                for each in os.read(wake, 1 << 10):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(answers[0], each)
            if server.fileno() in ready:
                told = server.recv(1 << 10)
                *lines, said = (said + told).split(b"\n")
                answers += map(int, lines) if told else [0, -9]  # the server was killed
    status = answers[-1]
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    sys.stdout = sys.stderr = None  # they were never used
    os._exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "relay":
        relay(sys.argv[2], sys.argv[3:])
    _words = serve(sys.argv[2])
    _main = sys.modules["__main__"] = types.ModuleType("__main__")
    if _words[0] == "-u":  # as workers are started, which flush what they write
        del _words[0]
    if _words[0] == "-c":
        sys.argv = ["-c", *_words[2:]]
        sys.path.insert(0, "")
        exec(compile(_words[1], "<string>", "exec"), vars(_main))  # noqa: S102
    else:
        import runpy

        sys.argv = _words[1:]
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        runpy.run_module(_words[1], run_name="__main__", alter_sys=True)
