"""Programs over eight devices of one process: `python -m tests.mesh_programs NAME ...`.

Each prints one line of JSON for each thing that it tried.
"""

# ruff: noqa: T201

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import lazyrt
from lazyrt.frontend.buffers import state_of

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 3
ROWS = 8


def tell(name: str, found: Any) -> None:
    """Print what was found."""
    print(json.dumps([name, found]), flush=True)


def bytes_on_first(*tensors: torch.Tensor) -> int:
    """Return how many bytes of computed tensors the first device has."""
    arrays = [state_of(each).base.data for each in tensors]
    return sum(array.addressable_shards[0].data.nbytes for array in arrays)


def mesh() -> lazyrt.Mesh:
    """Return the mesh of all programs."""
    return lazyrt.mesh({"data": 4, "model": 2})


def _data_parallel(_model: nn.Module, _name: str, _parameter: torch.Tensor) -> Any:
    return ()


def _fully(_model: nn.Module, _name: str, parameter: torch.Tensor) -> Any:
    return ("data",) if parameter.shape[0] % 4 == 0 else ()


_COLUMNS = ("query", "key", "value", "intermediate.dense")
_ROWS = ("output.dense",)


def _tensor_parallel(_model: nn.Module, name: str, parameter: torch.Tensor) -> Any:
    owner, _, kind = name.rpartition(".")
    if owner.endswith(("c_attn", "c_fc")):  # GPT-2's weights are transposed
        return (None, "model") if kind == "weight" else ("model",)
    if owner.endswith(_COLUMNS):
        return ("model", None) if kind == "weight" else ("model",)
    if kind == "weight" and owner.endswith("c_proj"):
        return ("model", None)
    if kind == "weight" and owner.endswith(_ROWS):
        return (None, "model")
    return ()


WAYS: dict[str, Callable[..., Any] | None] = {
    "one device": None,
    "data": _data_parallel,
    "tensor": _tensor_parallel,
    "fully": _fully,
}


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16,
    )  # fmt: skip
    return BertForMaskedLM(config)


def _gpt() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, n_inner=32,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def _train(name: str, build: Callable[[], nn.Module], way: str) -> None:
    torch.manual_seed(0)
    model = build().to("lazyrt").train()
    spec_of = WAYS[way]
    over = mesh() if spec_of is not None else None
    for each, parameter in model.named_parameters():
        if spec_of is not None and spec_of(model, each, parameter):
            lazyrt.shard(parameter, over, spec_of(model, each, parameter))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1)
    before = lazyrt.counters()
    losses = []
    for _ in range(STEPS):
        ids = torch.randint(64, (ROWS, 8)).to("lazyrt")
        if over is not None:
            lazyrt.shard(ids, over, ("data",))
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        lazyrt.mark_step()
    counted = lazyrt.counters() - before
    states = [
        t for s in optimizer.state.values() for t in s.values() if t.dim() > 0
    ]
    tell(
        f"{name} {way}",
        {
            "losses": [loss.item() for loss in losses],
            "sum": sum(p.detach().double().abs().sum().item() for p in model.parameters()),
            "compiles": counted["compiles"],
            "executions": counted["executions"],
            "parameters": bytes_on_first(*model.parameters()),
            "states": bytes_on_first(*states),
        },
    )


def bert() -> None:
    """Train a BERT in each way."""
    for way in WAYS:
        _train("bert", _bert, way)


def gpt() -> None:
    """Train a GPT in each way."""
    for way in WAYS:
        _train("gpt", _gpt, way)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
