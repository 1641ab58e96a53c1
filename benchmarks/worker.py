"""The process of one peer: does what the pool asks, one JSON line at a time."""

from __future__ import annotations

import json
import os
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

from benchmarks import bert, devices, micro, printing

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.jax_steps import JaxStep


class Worker:
    """What a peer was asked to set up, made on first use."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self._trainings: dict[str, bert.Training] = {}
        self._jax_step: JaxStep | None = None

    @cached_property
    def device(self) -> devices.Device:
        """The torch device of this peer."""
        return devices.open_device(self.peer)

    @cached_property
    def operands(self) -> micro.Operands:
        """The tensors of the chains."""
        return micro.Operands(self.device)

    def training(self, optimizer: str, name: str = "") -> bert.Training:
        """Return the training of that optimizer; other names are other trainings."""
        key = optimizer + name
        if key not in self._trainings:
            self._trainings[key] = bert.Training(self.device, optimizer)
        return self._trainings[key]

    def jax_step(self) -> JaxStep:
        """Return the jax peer: the lazyrt training's own graph, else the one by hand."""
        from benchmarks import jax_steps

        if self._jax_step is None:
            self._jax_step = (
                jax_steps.same_graph(self.training("adamw"))
                if self.peer == "lazyrt"
                else jax_steps.hand_written()
            )
        return self._jax_step


def _open(worker: Worker) -> str:
    return worker.device.name


def _micro(worker: Worker, case: str, length: int, repeats: int) -> list[float]:
    return micro.time_chain(worker.device, worker.operands, case, length, repeats)


def _run(worker: Worker, optimizer: str, steps: int, name: str = "") -> list[float]:
    return worker.training(optimizer, name).run(steps)


def _waiting(worker: Worker, optimizer: str, steps: int) -> dict[str, list[float]]:
    return bert.time_waiting(worker.training(optimizer), steps)


def _pipelined(worker: Worker, optimizer: str, steps: int) -> float:
    return bert.time_pipelined(worker.training(optimizer), steps)


def _jax_waiting(worker: Worker, steps: int) -> dict[str, list[float]]:
    from benchmarks import jax_steps

    return jax_steps.time_waiting(worker.jax_step(), steps)


def _jax_pipelined(worker: Worker, steps: int) -> float:
    from benchmarks import jax_steps

    return jax_steps.time_pipelined(worker.jax_step(), steps)


def _prints(worker: Worker, name: str, what: str | None) -> dict[str, Any]:
    return printing.run_round(worker.training("adamw", name), what)


def _deep_prints(worker: Worker) -> list[dict[str, Any]]:
    return printing.run_deep(worker.device)


TASKS: dict[str, Callable[..., Any]] = {
    "open": _open,
    "micro": _micro,
    "run": _run,
    "waiting": _waiting,
    "pipelined": _pipelined,
    "jax waiting": _jax_waiting,
    "jax pipelined": _jax_pipelined,
    "prints": _prints,
    "deep prints": _deep_prints,
}
"""What a worker can be asked, by name."""


def _replies() -> int:
    """Keep standard output for replies alone: whatever a library prints goes to stderr."""
    replies = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return replies


def main(peer: str) -> None:
    """Answer requests until standard input ends."""
    replies = _replies()
    worker = Worker(peer)
    for line in sys.stdin:
        request = json.loads(line)
        answer = TASKS[request["task"]](worker, **request["arguments"])
        os.write(replies, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1])
