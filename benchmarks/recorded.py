"""Figures of peers as they were recorded, for machines that lack the peer.

They were taken on two cores with torch_xla 2.9.0, torch 2.9.1 and jax 0.10.2, for the same
model. Another machine's absolute times differ: compare ratios, or run the peer itself.
"""

from __future__ import annotations

from dataclasses import dataclass

ORIGIN = "recorded elsewhere (2 cores, torch_xla 2.9.0)"


@dataclass(frozen=True, slots=True)
class Steps:
    """Minimal milliseconds of host trace and whole step, and of a step in a pipelined loop."""

    trace_ms: float
    step_ms: float
    pipelined_ms: float


@dataclass(frozen=True, slots=True)
class Prints:
    """Ten prints at ten moving places: compiles, executions, and seconds, then seconds again."""

    compiles: int
    executions: int
    first_s: float
    again_s: float | None


TORCH_XLA_ADAMW = Steps(25.6, 34.2, 39.3)
# The same with dropout, by layers; 4 layers have hidden size 768.
TORCH_XLA_START = (
    "2 layers 3.2, 3.1 s, 36 / 40 ms; 12 layers 25, 26 s, 173 / 183 ms; "
    "4 layers of hidden size 768 5.4, 5.6 s, 420 / 411 ms"
)
TORCH_XLA_COMPILED = Steps(22.1, 24.8, 28.3)
TORCH_XLA_PRINTS = {
    "t": Prints(20, 20, 52.4, 0.48),
    "t[0, 0, :4]": Prints(10, 20, 5.64, None),
}

# torch_xla's thread on TorchDynamo (2023, one TPU v4): milliseconds on the device, then speed-ups
# over lazy tensors before the bridge took three executions, after, and some weeks later.
THREAD = "its thread (2023, TPU v4)"
THREAD_LAZY_MS, THREAD_LAZY_TRACING_MS, THREAD_LAZY_WALL_MS = 17.85, 13.67, 39.0
THREAD_PHASES_MS = {
    "dynamo input sync": 0.083,
    "dynamo forward": 9.6,
    "dynamo cleanup 1": 0.6,
    "dynamo backward": 13.1,
    "dynamo cleanup 2": 0.289,
}
THREAD_DYNAMO_MS, THREAD_DYNAMO_WALL_MS = 23.672, 52.6
THREAD_OVERHEAD_MS = (3.999, 1.809, 4.275, 2.311, 3.616, 3.218)
THREAD_SPEED_UPS = {
    "resnet50": (0.758, 0.937, 1.344),
    "resnet18": (0.66, 1.003, 1.322),
    "BERT_pytorch": (1.441, 1.869, 3.356),
    "resnext50_32x4d": (0.87, 1.139, 1.417),
    "alexnet": (0.632, 0.802, 1.264),
    "mobilenet_v2": (0.549, 0.672, 1.408),
    "mnasnet1_0": (0.698, 0.967, 1.232),
    "vgg16": (0.712, 0.742, 0.821),
    "timm_vision_transformer": (1.275, 1.69, 1.740),
    "squeezenet1_1": (0.72, 0.958, 1.563),
}
