"""Programs over eight devices of one process: `python -m tests.mesh_programs NAME ...`.

Each prints one line of JSON for each thing that it tried.
"""

# ruff: noqa: T201

from __future__ import annotations

import json
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn

import lazyrt
import lazyviz
from lazyrt.frontend.buffers import state_of
from lazyviz.shell import displayed

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
    states = [t for s in optimizer.state.values() for t in s.values() if t.dim() > 0]
    tell(
        f"{name} {way}",
        {
            "losses": [loss.item() for loss in losses],
            "sum": sum(
                p.detach().double().abs().sum().item() for p in model.parameters()
            ),
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


WHOLE = torch.arange(64.0).reshape(8, 8) / 64


def _split(*spec: Any) -> torch.Tensor:
    return lazyrt.shard(WHOLE.to("lazyrt"), mesh(), spec or ("data", "model"))


def _is_close(tensor: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(tensor.detach().cpu(), expected, atol=1e-5)


def reads() -> None:
    """Reading gathers, by whatever way."""
    w = _split()
    found = [
        w.cpu(),
        w.to("cpu"),
        torch.tensor(w.tolist()),
        torch.from_numpy(w.cpu().numpy()),
    ]
    tell("reads", [torch.equal(each, WHOLE) for each in found])
    tell("item", w[2, 3].item() == WHOLE[2, 3].item())
    tell("bytes", [bytes_on_first(w), w.nbytes])


def looks() -> None:
    """Looking at a sharded step leaves it what it is."""

    def step(*, is_watched: bool) -> Any:
        w = _split()
        y = (w @ w).sin() + torch.rand(8, 8, device="lazyrt")
        if is_watched:
            shown = lazyrt.materialise(y)
            repr(y), repr(w), lazyrt.look(w), lazyrt.inspect(y)
            lazyrt.pending_graph().lower().as_text("hlo")
        key = lazyrt.pending_graph().fingerprint
        before = lazyrt.counters()
        lazyrt.mark_step()
        counted = lazyrt.counters() - before
        if is_watched:
            tell("look is right", _is_close(y, shown.cpu()))
        return key, counted["compiles"], counted["executions"], y.cpu()

    torch.manual_seed(0)
    unwatched = step(is_watched=False)
    lazyrt.clear_caches(memory=True, disk=True)
    torch.manual_seed(0)
    watched = step(is_watched=True)
    tell("unwatched", [*unwatched[:3], torch.equal(unwatched[3], watched[3])])
    tell("watched", [*watched[:3], True])


def writes() -> None:
    """A tensor that is written keeps its sharding, in each mode."""

    def in_lazy_mode(w: torch.Tensor) -> None:
        w.mul_(2)
        lazyrt.mark_step()

    def in_eager_mode(w: torch.Tensor) -> None:
        with lazyrt.eager_mode():
            w.mul_(2)

    def op_by_op(w: torch.Tensor) -> None:
        with lazyrt.op_by_op_mode():
            w.mul_(2)
            lazyrt.mark_step()

    def with_kept_values(w: torch.Tensor) -> None:
        with lazyrt.config.scoped(keep_values="last"):
            w.mul_(2)
            lazyrt.mark_step()

    def from_the_host(w: torch.Tensor) -> None:
        w.copy_(WHOLE * 2)
        lazyrt.mark_step()

    def by_a_peek(w: torch.Tensor) -> None:
        w.mul_(2)
        lazyrt.materialise(w, reuse=True)

    for write in (
        in_lazy_mode, in_eager_mode, op_by_op, with_kept_values, from_the_host, by_a_peek,
    ):  # fmt: skip
        w = _split()
        write(w)
        tell(write.__name__, [_is_close(w, WHOLE * 2), lazyrt.sharding_of(w)])
    w = _split()
    w.mul_(2)
    lazyrt.discard_pending()
    tell("discarded", [_is_close(w, WHOLE), lazyrt.sharding_of(w)])


def constraints() -> None:
    """Pending tensors are split where their step runs."""
    over = mesh()
    leaf = WHOLE.to("lazyrt").requires_grad_()
    hidden = leaf @ leaf
    lazyrt.shard(hidden, over, ("data",))
    text = lazyrt.pending_graph(hidden).lower().as_text()
    (hidden**2).sum().backward()
    lazyrt.mark_step()
    cpu = WHOLE.clone().requires_grad_()
    ((cpu @ cpu) ** 2).sum().backward()
    assert leaf.grad is not None
    assert cpu.grad is not None
    tell("gradient", [_is_close(leaf.grad, cpu.grad), hidden._version])
    tell(
        "constraint",
        [lazyrt.sharding_of(hidden), text.count("sdy.sharding_constraint")],
    )
    view = (WHOLE.to("lazyrt") * 2).t()
    lazyrt.shard(view, over, ("model",))
    lazyrt.mark_step()
    tell("view", [_is_close(view, WHOLE.t() * 2), bytes_on_first(view)])
    written = _split().mul_(2)
    lazyrt.shard(written, over, (None, "data"))
    lazyrt.mark_step()
    tell("split anew", [_is_close(written, WHOLE * 2), lazyrt.sharding_of(written)])
    tell("whole again", lazyrt.sharding_of(lazyrt.shard(_split(), over)))
    with lazyrt.mesh({"all": 8}):
        tell(
            "default mesh",
            lazyrt.sharding_of(lazyrt.shard(WHOLE.to("lazyrt"), spec="all")),
        )


def reasons() -> None:
    """Another sharding is a reason to compile."""

    def step(w: torch.Tensor) -> None:
        (w * 5).sum()
        kept = w * 5
        lazyrt.mark_step()
        del kept

    batch = _split()
    step(batch)
    lazyrt.shard(batch, mesh(), ("model",))
    step(batch)
    found = lazyrt.explain()
    causes = found.causes if found is not None else ()
    tell("reason", [[cause.kind, cause.text] for cause in causes])
    before = lazyrt.counters()
    lazyrt.shard(batch, mesh(), ("data", "model"))
    step(batch)
    tell("compiles again", (lazyrt.counters() - before)["compiles"])


def exchanges() -> None:
    """What the devices exchange has its line."""
    w, v = _split(None, "model"), _split("model")
    live = lazyrt.live_tensors_report(namespace={"w": w, "v": v})
    own = [row.by_device for row in live.rows if row.name in {"w", "v"}]
    tell("live bytes", [live.summary, own])
    grid = _split()
    tell(
        "shards",
        [
            lazyrt.shards_of(w),
            lazyrt.shards_of(grid),
            lazyrt.shards_of(WHOLE.to("lazyrt")),
        ],
    )
    page = displayed._page(lazyrt, grid, "")
    tell("page", re.findall(r">([^<]+)<", page[page.index("split (") :]))
    shell: Any = InteractiveShell()
    shell.display_formatter.active_types = ["text/plain"]
    shown = displayed._tensor_bundle(shell, lambda: None)(grid)["text/plain"]
    tell("terminal", shown.splitlines()[-5:])
    product = w @ v
    before = lazyrt.counters()
    pending = lazyrt.pending_graph(product).lower()
    found = [[c.kind, c.nbytes, c.devices, c.line] for c in pending.collectives()]
    tell("collectives", found)
    gathered = lazyrt.pending_graph(w.cumsum(1)).lower().collectives()
    told = [
        [c.kind, c.tensor, c.why, c.fix] for c in (*pending.collectives(), *gathered)
    ]
    tell("reasons", told)
    tell("compiles for them", (lazyrt.counters() - before)["compiles"])


def products() -> None:
    """A gather for a product names its operands."""
    row = lazyrt.mesh({"data": 8})
    h, w = torch.ones(64, 64).to("lazyrt"), torch.ones(64, 16).to("lazyrt")
    lazyrt.shard(h, row, (None, "data"))
    lazyrt.shard(w, row, (None, "data"))
    found = [lazyrt.pending_graph(h @ w).lower().collectives()]
    lazyrt.shard(w, row, ("data", None))
    found.append(lazyrt.pending_graph(h @ w).lower().collectives())
    x, v = torch.ones(256, 64).to("lazyrt"), torch.ones(64, 32).to("lazyrt")
    lazyrt.shard(x, row, ("data", None))
    lazyrt.shard(v, row, ("data", None))
    found.append(lazyrt.pending_graph(x @ v).lower().collectives())
    tell(
        "products",
        [[[c.kind, c.source, c.tensor, c.why, c.fix] for c in each] for each in found],
    )


def gathers() -> None:
    """A value that is gathered though each device needs its part alone is a warning at its line."""
    cube = lazyrt.mesh({"a": 2, "b": 2, "c": 2})
    whole = torch.arange(4096.0).reshape(64, 64)

    def step(*specs: Any) -> list[Any]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            x = lazyrt.shard(whole.to("lazyrt"), cube, ("a", None))
            turned = (x * 2).t().contiguous()
            for spec in specs:
                lazyrt.shard(turned, cube, spec)
            result = turned + 1
            del turned, x
            lazyrt.mark_step()
        is_right = _is_close(result, (whole * 2).t() + 1)
        return [
            [[w.category.__name__, w.lineno, str(w.message)] for w in told],
            is_right,
        ]

    tell(
        "gathers",
        [step((("a", "b"), None)), step(("a",), (("a", "b"), None))],
    )
    tell("line of the gather", step.__code__.co_firstlineno + 4)


def profiled() -> None:
    """A profile has the time of all devices at the program's lines, and each by itself."""
    x = lazyrt.shard(torch.ones(256, 256).to("lazyrt"), mesh(), ("data",))

    def step() -> None:
        y = (x @ x).tanh()
        lazyrt.mark_step()
        del y

    step()
    with lazyviz.profile() as profile:
        for _ in range(3):
            step()
    lines = sum(line.device_ns for line in profile.lines)
    named = sum(line.device_ns for line in profile.lines if line.file == __file__)
    tell("profiled devices", [row.device for row in profile.devices])
    tell("profiled runs", sorted({row.runs for row in profile.devices}))
    tell(
        "profiled share", [named / lines, min(row.behind_ns for row in profile.devices)]
    )
    tell("profiled table", profile.doc().to_text().count("\ndevice  runs"))


def disk() -> None:
    """An executable for a mesh comes from disk, too."""
    w = _split()
    y = (w @ w).sum(0)
    lazyrt.mark_step()
    lazyrt.clear_caches(memory=True)
    before = lazyrt.counters()
    z = (w @ w).sum(0)
    lazyrt.mark_step()
    tell(
        "disk",
        [(lazyrt.counters() - before)["compiles"], torch.equal(y.cpu(), z.cpu())],
    )


def refused() -> None:
    """What has no meaning says so."""
    over, other = mesh(), lazyrt.mesh({"rows": 8})

    def two_meshes() -> None:
        sum_ = _split() + lazyrt.shard(WHOLE.to("lazyrt"), other, ("rows",))
        try:
            lazyrt.mark_step()
        finally:
            del sum_
            lazyrt.discard_pending()

    for call in (
        lambda: lazyrt.mesh({"data": 16}),
        lambda: lazyrt.shard(torch.ones(3, 8).to("lazyrt"), over, ("data",)),
        lambda: lazyrt.shard(_split().t(), over, ("data",)),
        two_meshes,
    ):
        try:
            call()
            tell("refused", "")
        except lazyrt.errors.UsageError as error:
            tell(
                f"refused {str(error).split()[0]} {str(error).split()[-3]}", str(error)
            )


def names_of_torch_xla() -> None:
    """A script of torch_xla."""
    import lazyrt.compat.distributed.spmd as xs
    from lazyrt.compat.distributed.parallel_loader import MpDeviceLoader
    from lazyrt.compat.runtime import global_runtime_device_count, use_spmd
    from lazyrt.compat.spmd_fully_sharded_data_parallel import (
        SpmdFullyShardedDataParallel,
    )

    use_spmd()
    count = global_runtime_device_count()
    over = xs.Mesh(range(count), (4, 2), ("fsdp", "model"))
    torch.manual_seed(0)
    plain = nn.Linear(8, 4)
    model = SpmdFullyShardedDataParallel(plain.to("lazyrt"), mesh=over)
    expected = nn.functional.linear(
        WHOLE, *[p.detach().cpu() for p in plain.parameters()]
    )
    loader = MpDeviceLoader(
        [WHOLE], "lazyrt", input_sharding=xs.ShardingSpec(over, (0, None))
    )
    for batch in loader:
        tell("loaded", lazyrt.sharding_of(batch))
        output = model(batch)
    lazyrt.mark_step()
    tell("wrapped", [lazyrt.sharding_of(p) for p in model.parameters()])
    tell("output", [_is_close(output, expected), lazyrt.sharding_of(output)])
    xs.clear_sharding(batch)
    tell("cleared", lazyrt.sharding_of(batch))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
