"""Training steps as one donated `jax.jit` call: the limit that a lazy runtime can reach."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import bert

if TYPE_CHECKING:
    from lazyrt.ir.fingerprint import Canonical
    from lazyrt.ir.node import Value

JaxStep = Callable[[], Any]
"""Runs one training step and returns an array that is ready when the step is."""

_Arrays = dict[str, Any]
_LOWEST = float(np.finfo(np.float32).min)


def time_waiting(step: JaxStep, steps: int) -> dict[str, list[float]]:
    """Time steps that each wait for the device: milliseconds of call and of whole step."""
    found: dict[str, list[float]] = {"dispatch": [], "step": []}
    gc.collect()
    for _ in range(steps):
        start = time.perf_counter_ns()
        ready = step()
        dispatched = time.perf_counter_ns()
        ready.block_until_ready()
        found["dispatch"].append((dispatched - start) / 1e6)
        found["step"].append((time.perf_counter_ns() - start) / 1e6)
    return found


def time_pipelined(step: JaxStep, steps: int) -> float:
    """Return the milliseconds for each step of a loop that waits only at its end."""
    gc.collect()
    start = time.perf_counter_ns()
    for _ in range(steps):
        ready = step()
    ready.block_until_ready()
    return (time.perf_counter_ns() - start) / 1e6 / steps


def interpret(graph: Canonical, *args: Any) -> list[Any]:
    """Compute a graph's roots on jax arrays by applying each node's rule in turn.

    It is what lazyrt's text computes, by another way; `args` are as in `argument_types`.
    """
    values: dict[Value, Any] = dict(zip(graph.data, args, strict=False))
    rest = iter(args[len(graph.data) :])
    for leaves in (graph.floats, graph.ints, graph.rng):
        if leaves:
            vector = next(rest)
            values.update((leaf, vector[k]) for k, leaf in enumerate(leaves))
    for node in graph.nodes:
        found = iter(node.spec.apply(*(values[operand] for operand in node.operands)))
        for output in node.outputs:
            if output is not None:
                values[output] = next(found)
    return [values[root] for root in graph.roots]


def same_graph(training: bert.Training) -> JaxStep:
    """Return a training's own step under plain `jax.jit`: same ops, same results, same donation.

    The captured graph's rules are traced by jax, its lifted numbers stay as they are, and each
    result that overwrites an input is fed back to it.
    """
    import lazyrt
    from lazyrt import jax_compat
    from lazyrt.ir.live import pending

    loss = training.step()
    graph = lazyrt.pending_graph().canonical
    rank = {root: number for number, root in enumerate(graph.roots)}
    feedback = []
    for number, leaf in enumerate(graph.data):
        buffer = pending.owners[leaf.position]()
        if buffer is not None and buffer.value in rank:
            feedback.append((number, rank[buffer.value]))
    with jax_compat.scope():
        args: list[Any] = [
            jnp.array(pending.inputs[leaf.position], copy=True) for leaf in graph.data
        ]
    args += [
        np.array([numbers[leaf.position] for leaf in leaves], dtype)
        for leaves, numbers, dtype in (
            (graph.floats, pending.floats, np.float64),
            (graph.ints, pending.ints, np.int64),
        )
        if leaves
    ]
    training.device.mark_step()
    del loss
    donated = tuple(number for number, _ in feedback)
    compiled = jax.jit(lambda *xs: interpret(graph, *xs), donate_argnums=donated)

    def step() -> Any:
        with jax_compat.scope():
            results = compiled(*args)
        for number, result in feedback:
            args[number] = results[result]
        return results[-1]

    return step


def hand_written() -> JaxStep:
    """Return the benchmark's BERT with AdamW, written in jax by hand."""
    state, batch, compiled = _by_hand()

    def step() -> Any:
        loss, *state[:] = compiled(*state, batch)
        return loss

    return step


def live_bytes() -> int:
    """Return the bytes of all arrays on jax's devices."""
    arrays = jax.live_arrays()  # type: ignore[no-untyped-call]
    return sum(array.nbytes for array in arrays)


def memory_of_hand_written() -> tuple[int, Any]:
    """Return the bytes of all arrays before a step, and XLA's analysis of the step's memory."""
    before = live_bytes()
    state, batch, compiled = _by_hand()
    gc.collect()
    held = live_bytes() - before
    return held, compiled.lower(*state, batch).compile().memory_analysis()


def _by_hand() -> tuple[list[Any], _Arrays, Any]:
    """Return weights and AdamW's state, the batch, and the step that takes their memory."""
    weights = {
        name: jnp.array(tensor.detach().numpy())
        for name, tensor in bert.make_model().named_parameters()
    }
    batch = {
        name: jnp.asarray(t.numpy(), jnp.int32) for name, t in bert.make_batch().items()
    }
    zeros = {name: jnp.zeros_like(weight) for name, weight in weights.items()}
    squares = {name: array.copy() for name, array in zeros.items()}
    state = [weights, zeros, squares, jnp.zeros(())]
    return state, batch, jax.jit(_adamw_step, donate_argnums=(0, 1, 2))


def _adamw_step(
    weights: _Arrays, mean: _Arrays, square: _Arrays, count: Any, batch: _Arrays
) -> tuple[Any, _Arrays, _Arrays, _Arrays, Any]:
    rate, decay, beta, gamma, epsilon = 1e-3, 1e-2, 0.9, 0.999, 1e-8
    loss, gradient = jax.value_and_grad(_loss)(weights, batch)
    count = count + 1
    mean = {k: beta * m + (1 - beta) * gradient[k] for k, m in mean.items()}
    square = {k: gamma * v + (1 - gamma) * gradient[k] ** 2 for k, v in square.items()}
    size = rate / (1 - beta**count)
    root = jnp.sqrt(1 - gamma**count)
    weights = {
        k: w * (1 - rate * decay)
        - size * mean[k] / (jnp.sqrt(square[k]) / root + epsilon)
        for k, w in weights.items()
    }
    return loss, weights, mean, square, count


def _loss(weights: _Arrays, batch: _Arrays) -> Any:
    name = "bert.embeddings."
    table = weights[f"{name}word_embeddings.weight"]
    x = table[batch["input_ids"]] + weights[f"{name}token_type_embeddings.weight"][0]
    x += weights[f"{name}position_embeddings.weight"][: bert.LENGTH]
    x = _layer_norm(x, weights, f"{name}LayerNorm")
    hidden = 1.0 - batch["attention_mask"][:, None, None, :].astype(jnp.float32)
    mask = hidden * _LOWEST
    for number in range(bert.LAYERS):
        x = _layer(x, mask, weights, f"bert.encoder.layer.{number}.")
    name = "cls.predictions."
    x = jax.nn.gelu(_linear(x, weights, f"{name}transform.dense"), approximate=False)
    x = _layer_norm(x, weights, f"{name}transform.LayerNorm")
    scores = x @ table.T + weights[f"{name}bias"]
    logs = jax.nn.log_softmax(scores.reshape(-1, bert.VOCABULARY), -1)
    return -jnp.take_along_axis(logs, batch["labels"].reshape(-1, 1), 1).mean()


def _layer(x: Any, mask: Any, weights: _Arrays, name: str) -> Any:
    def heads(part: str) -> Any:
        y = _linear(x, weights, f"{name}attention.self.{part}")
        return y.reshape(bert.BATCH, bert.LENGTH, bert.HEADS, -1).transpose(0, 2, 1, 3)

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(bert.WIDTH // bert.HEADS)
    context = (
        (jax.nn.softmax(scores + mask, -1) @ value)
        .transpose(0, 2, 1, 3)
        .reshape(x.shape)
    )
    x = _linear(context, weights, f"{name}attention.output.dense") + x
    x = _layer_norm(x, weights, f"{name}attention.output.LayerNorm")
    inner = jax.nn.gelu(
        _linear(x, weights, f"{name}intermediate.dense"), approximate=False
    )
    x = _linear(inner, weights, f"{name}output.dense") + x
    return _layer_norm(x, weights, f"{name}output.LayerNorm")


def _linear(x: Any, weights: _Arrays, name: str) -> Any:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _layer_norm(x: Any, weights: _Arrays, name: str) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return centred * scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]
