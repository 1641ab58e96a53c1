"""The moving print: step i prints a tensor at the i-th of ten places of the model."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING, Any

from benchmarks import bert

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from benchmarks.devices import Device

PRINTED: dict[str, Callable[[Any], Any]] = {
    "t": lambda t: t,
    "t[0, 0, :4]": lambda t: t[0, 0, :4],
}
"""What a person prints of a module's output `t`; the second adds ops to the step."""

DEEP_LAYERS = 24
DEEP_PLACES = (23, 11, 3, 17)
"""Layers whose outputs are printed in a deep model, one in each forward pass."""


def run_round(training: bert.Training, what: str | None) -> dict[str, Any]:
    """Train one step for each place and print there; None prints nothing.

    Returns:
        Wall time, the time of each print, the losses, and what was compiled and executed.
    """
    device = training.device
    places = dict(training.model.named_modules())
    prints: list[float] = []
    losses: list[torch.Tensor] = []
    before = device.counts()
    start = time.perf_counter_ns()
    for place in bert.PLACES:
        hook = (
            places[place].register_forward_hook(_printer(PRINTED[what], prints))
            if what
            else None
        )
        losses.append(training.step().detach())
        device.mark_step()
        device.wait()
        if hook:
            hook.remove()
    wall = (time.perf_counter_ns() - start) / 1e9
    counts = {
        name: count - before.get(name, 0) for name, count in device.counts().items()
    }
    return {
        "wall_s": wall,
        "print_ms": prints,
        "counts": counts,
        "losses": [float(loss) for loss in losses],
    }


def run_deep(device: Device) -> list[dict[str, Any]]:
    """Print at some places of a deep model, in a process that knows no kind of op.

    Returns:
        For each place the printed layer, milliseconds, and executables compiled.
    """
    model = bert.make_model(DEEP_LAYERS).to(device.torch_name)
    batch = {k: v.to(device.torch_name) for k, v in bert.make_batch().items()}
    device.mark_step()
    device.wait()
    found = []
    for layer in DEEP_PLACES:
        prints: list[float] = []
        before = device.counts()
        place = model.get_submodule(f"bert.encoder.layer.{layer}")
        hook = place.register_forward_hook(_printer(PRINTED["t"], prints))
        model(**batch)
        hook.remove()
        compiles = device.counts()["peek_compiles"] - before["peek_compiles"]
        found.append({"layer": layer, "ms": prints[0], "compiles": compiles})
        device.mark_step()  # of which nothing is left but the prints
    return found


def _printer(
    choose: Callable[[Any], Any], durations: list[float]
) -> Callable[..., None]:
    def hook(_module: Any, _args: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        start = time.perf_counter_ns()
        print(choose(tensor), file=io.StringIO())
        durations.append((time.perf_counter_ns() - start) / 1e6)

    return hook
