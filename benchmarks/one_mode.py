"""One process of `python -m benchmarks modes`: a BERT of some layers, trained in one mode."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_PLACE = "bert.embeddings"


def measure(layers: int, mode: str, iterations: int) -> dict[str, Any]:
    """Train, and return counts, seconds and bytes.

    Args:
        layers: Encoder layers of the model.
        mode: `eager` or `lazy`.
        iterations: Training steps; each ends when its loss is read.
    """
    import lazyrt

    lazyrt.config.cache_dir = None
    training = Training(layers)
    lazyrt.reset_counters()
    seconds, losses = [], []
    with lazyrt.eager_mode(mode == "eager"):
        for _ in range(iterations):
            start = time.perf_counter()
            losses.append(training.step())
            seconds.append(time.perf_counter() - start)
        counts = dict(lazyrt.counters())
        with _peak_bytes() as peak:
            training.step()
        start = time.perf_counter()
        training.stop_at(_PLACE)
        stop_s = time.perf_counter() - start
    return {
        "counts": counts,
        "seconds": seconds,
        "losses": losses,
        "peak_bytes": peak[0],
        "stop_s": stop_s,
    }


class Training:
    """The model, its batch and its optimizer."""

    def __init__(self, layers: int) -> None:
        import torch

        import lazyrt
        from benchmarks import bert

        device = lazyrt.device()
        self.model = bert.make_model(layers).to(device)
        self.batch = {name: t.to(device) for name, t in bert.make_batch().items()}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        lazyrt.mark_step()
        lazyrt.wait()

    def step(self) -> float:
        """Run one step; its end is the read of the loss."""
        return float(self.record().detach())

    def record(self) -> torch.Tensor:
        """Record one step and return its loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = self.model(**self.batch).loss
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss

    def stop_at(self, name: str) -> None:
        """Run one step with a barrier and a read in the middle, where there was none before."""
        import lazyrt

        def stop(_module: Any, _args: Any, output: torch.Tensor) -> None:
            lazyrt.mark_step()
            output.detach().cpu()

        handle = self.model.get_submodule(name).register_forward_hook(stop)
        self.step()
        handle.remove()


@contextlib.contextmanager
def _peak_bytes() -> Iterator[list[int]]:
    """Yield a list whose entry becomes the most device memory in use during the block.

    That is all live arrays after each op or execution, and what XLA plans for an
    execution's temporaries.
    """
    import jax

    from lazyrt.execution import compiler
    from lazyrt.observe import events

    peak = [0]

    def look(event: events.Event) -> None:
        temporary = 0
        if isinstance(event, events.ExecuteStarted):
            found = (
                executable
                for key, executable in compiler._executables.items()  # noqa: SLF001
                if key.startswith(f"{event.fingerprint}|")
            )
            executable = next(found, None)
            if executable is not None:
                temporary = executable.memory_analysis().temp_size_in_bytes
        live = sum(array.nbytes for array in jax.live_arrays())  # type: ignore[no-untyped-call]
        peak[0] = max(peak[0], live + temporary)

    with events.subscribe(look, events.OpExecuted, events.ExecuteStarted):
        yield peak


if __name__ == "__main__":
    layer_count, mode_name, iteration_count = sys.argv[1:]
    found = measure(int(layer_count), mode_name, int(iteration_count))
    sys.stdout.write(json.dumps(found) + "\n")
