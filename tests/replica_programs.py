"""Programs that several processes run together: `python -m tests.replica_programs NAME ...`.

Each prints one line of JSON for each thing that it tried. Launched by `tests.replicas`.
"""

# ruff: noqa: T201

from __future__ import annotations

import functools
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import lazyrt
from lazyrt.errors import ReplicaError

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 4


def tell(name: str, found: Any) -> None:
    """Print what was found."""
    print(json.dumps([name, found]), flush=True)


def own() -> torch.Tensor:
    """Return this rank's number in four elements."""
    return torch.full((4,), float(dist.get_rank())).to("lazyrt")


def collectives() -> None:
    """Each collective of c10d, on floats of the step and on integers that have data."""
    rank, size = dist.get_rank(), dist.get_world_size()
    reductions = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")
    reduced = {}
    for name in reductions:
        reduced[name] = own() + 1
        dist.all_reduce(reduced[name], getattr(dist.ReduceOp, name))
    sent = own() - 0.0 * rank
    dist.broadcast(sent, 1)
    rows = [torch.empty(4, device="lazyrt") for _ in range(size)]
    dist.all_gather(rows, own())
    part = torch.empty(4 // size, device="lazyrt")
    dist.reduce_scatter_tensor(part, own() + torch.arange(4.0).to("lazyrt"))
    swapped = torch.empty(4, device="lazyrt")
    dist.all_to_all_single(swapped, own() * 10 + torch.arange(4.0).to("lazyrt"))
    scattered = torch.empty(2, device="lazyrt")
    parts = [torch.full((2,), 5.0 + k).to("lazyrt") for k in range(size)]
    dist.scatter(scattered, parts if rank == 0 else None, src=0)
    total = own() + 1
    dist.reduce(total, 0)
    held = [torch.empty(4, device="lazyrt") for _ in range(size)]
    dist.gather(own(), held if rank == 0 else None, dst=0)
    before = lazyrt.counters()
    lazyrt.mark_step()
    tell("executions", (lazyrt.counters() - before)["executions"])
    tell("reduced", {name: value[0].item() for name, value in reduced.items()})
    tell("sent", sent.tolist())
    tell("rows", [row.tolist() for row in rows])
    tell("part", part.tolist())
    tell("swapped", swapped.tolist())
    tell("scattered", scattered.tolist())
    if rank == 0:
        tell("of one rank", [total.tolist(), [each.tolist() for each in held]])
    bits = torch.tensor([rank + 1, 6]).to("lazyrt")
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    tell("integers are there at once", [lazyrt.is_pending(bits), bits.tolist()])
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    tell("objects", objects)
    group = dist.new_group([1, 0])
    some = own()
    dist.all_reduce(some, group=group)
    lazyrt.mark_step()
    tell("group", some.tolist())
    held = [torch.empty(4, device="lazyrt") for _ in range(2)]
    given = [own() + 1, own() + 2] if rank == 0 else held
    for each in given:  # equal on the rank that takes them
        dist.broadcast(each, 0)
    lazyrt.mark_step()
    tell("filled", [each[0].item() for each in given])


def messages() -> None:
    """Messages between two ranks, and what a rank reads that another has computed."""
    rank, size = dist.get_rank(), dist.get_world_size()
    one, two = (torch.empty(4, device="lazyrt") for _ in range(2))
    other = (rank + 1) % size
    calls = [
        dist.P2POp(dist.isend, own() + 1, other),
        dist.P2POp(dist.isend, own() + 2, other, tag=1),
        dist.P2POp(dist.irecv, two, other, tag=1),
        dist.P2POp(dist.irecv, one, other),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    if rank == 0:
        dist.send(one, 1)
    else:
        dist.recv(two, 0)
    count = torch.arange(2, device="lazyrt")
    count = torch.empty_like(count) if rank else count
    dist.broadcast(count, 0)
    tell("counts", [lazyrt.is_pending(one), count.tolist()])
    objects = [{"from": 0}] if rank == 0 else [None]
    dist.broadcast_object_list(objects, 0)
    tell("object", [lazyrt.is_pending(one), objects])
    lazyrt.mark_step()
    tell("messages", [one[0].item(), two[0].item()])


def model() -> nn.Module:
    """Return a small model, the same on each rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batches() -> torch.Tensor:
    """Return the rows of all ranks."""
    return torch.randn(
        dist.get_world_size() * ROWS, 8, generator=torch.Generator().manual_seed(1)
    )


def train(net: nn.Module, rows: torch.Tensor) -> None:
    """Train for five steps."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        net(rows).pow(2).mean().backward()
        optimizer.step()
    lazyrt.mark_step()


def compare(name: str, make: Callable[[nn.Module], Any], share: Any = None) -> None:
    """Train a distributed model beside one process that has the whole batch.

    Args:
        name: To tell what came of it.
        make: Distributes the model.
        share: Which part of the rows this process has, of how many.
    """
    reference, net = model(), model().to("lazyrt")
    train(reference, batches())
    part, count = share or (dist.get_rank(), dist.get_world_size())
    rows = batches().chunk(count)[part].to("lazyrt")
    wrapped = make(net)
    lazyrt.mark_step()
    before = lazyrt.counters()
    train(wrapped, rows)
    compiles = (lazyrt.counters() - before)["compiles"]
    full = [
        p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()
    ]
    lazyrt.mark_step()
    errors = [
        (a.detach().cpu() - b.detach()).abs().max().item()
        for a, b in zip(full, reference.parameters(), strict=True)
    ]
    tell(name, [max(errors), compiles])


def training() -> None:
    """Data, fully sharded and tensor parallel training."""
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
    )
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )
    from torch.nn.parallel import DistributedDataParallel

    mesh = init_device_mesh("lazyrt", (dist.get_world_size(),))

    def sharded(net: Any) -> Any:
        for number in (0, 2):
            fully_shard(net[number], mesh=mesh)
        return fully_shard(net, mesh=mesh)

    def parallel(net: nn.Module) -> nn.Module:
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        return parallelize_module(net, mesh, plan)

    compare("data parallel", DistributedDataParallel)
    explained = lazyrt.compiled_graphs()[-1].explanation
    tell("buckets", [str(each) for each in explained.causes] if explained else [])
    compare(
        "unused",
        functools.partial(DistributedDataParallel, find_unused_parameters=True),
    )
    compare("fully sharded", sharded)
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    net = sharded(model().to("lazyrt"))
    # Read by one rank alone.
    found: Any = get_model_state_dict(net, options=whole)
    tell("whole", [list(each.shape) for each in found.values()])
    compare("tensor parallel", parallel, share=(0, 1))


def pipeline() -> None:
    """Layers on one rank each, which hand on parts of a batch."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, size = dist.get_rank(), dist.get_world_size()

    def layers(device: str) -> list[nn.Module]:
        torch.manual_seed(0)
        return [nn.Linear(8, 8).to(device) for _ in range(size)]

    def train(net: nn.Module, step: Callable[[], object]) -> None:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            step()
            optimizer.step()

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).pow(2).mean()

    rows, reference = batches(), nn.Sequential(*layers("cpu"))
    train(reference, lambda: loss(reference(rows), rows).backward())
    own = layers("lazyrt")[rank]
    stage = PipelineStage(own, rank, size, torch.device("lazyrt"))
    schedule = Schedule1F1B(stage, 2 * size, loss_fn=loss)
    lazy = rows.to("lazyrt")
    given = [lazy] if rank == 0 else []
    wanted: Any = {"target": lazy} if rank == size - 1 else {}
    before = lazyrt.counters()
    train(own, lambda: schedule.step(*given, **wanted))
    compiles = (lazyrt.counters() - before)["compiles"]
    errors = [
        (a.detach().cpu() - b.detach()).abs().max().item()
        for a, b in zip(own.parameters(), reference[rank].parameters(), strict=True)
    ]
    tell("pipeline", [max(errors), compiles])


def meshes() -> None:
    """Training on meshes of two dimensions: collectives of several groups in each step."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    shape = (2, dist.get_world_size() // 2)
    mesh = init_device_mesh("lazyrt", shape, mesh_dim_names=("outer", "inner"))

    def hybrid(net: Any) -> Any:
        for number in (0, 2):
            fully_shard(net[number], mesh=mesh)
        return fully_shard(net, mesh=mesh)

    def both(net: Any) -> Any:
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(net, mesh["inner"], plan)
        return fully_shard(net, mesh=mesh["outer"])

    def more_on_some() -> None:
        x, y = own(), own()
        dist.all_reduce(x, group=mesh["inner"].get_group())
        dist.all_reduce(y, group=mesh["outer"].get_group())
        if dist.get_rank() == 0:
            dist.all_reduce(x, group=mesh["inner"].get_group())
        lazyrt.mark_step()

    compare("hybrid sharded", hybrid)
    compare(
        "sharded and tensor parallel", both, share=(mesh["outer"].get_local_rank(), 2)
    )
    tell("more on some", said(more_on_some))


def three_of_four() -> None:
    """Each collective in a group that leaves one of four processes out."""
    rank = dist.get_rank()
    group = dist.new_group([0, 2, 3])
    if rank == 1:
        return
    place = [0, 2, 3].index(rank)
    total = own()
    dist.all_reduce(total, group=group)
    rows = [torch.empty(4, device="lazyrt") for _ in range(3)]
    dist.all_gather(rows, own(), group=group)
    part = torch.empty(1, device="lazyrt")
    dist.reduce_scatter_tensor(
        part, own()[:3] + torch.arange(3.0).to("lazyrt"), group=group
    )
    swapped = torch.empty(3, device="lazyrt")
    dist.all_to_all_single(
        swapped, own()[:3] * 10 + torch.arange(3.0).to("lazyrt"), group=group
    )
    lazyrt.mark_step()
    tell("of three", [total[0].item(), [row[0].item() for row in rows]])
    tell(
        "parts of three",
        [part.item() - 3 * place, [x - place for x in swapped.tolist()]],
    )


def torch_xla_names() -> None:
    """What torch_xla's names do in one of several processes."""
    import lazyrt.compat.xla_model as xm
    from lazyrt.compat import runtime

    xm.xla_device()
    rank, size = dist.get_rank(), dist.get_world_size()
    tell("ordinals", [xm.get_ordinal(), xm.xrt_world_size(), runtime.world_size()])
    weight = nn.Parameter(torch.ones(2, device="lazyrt"))
    weight.grad = own()[:2] + 1
    xm.optimizer_step(torch.optim.SGD([weight], lr=1.0), barrier=True)
    tell("averaged", weight.tolist())
    some = own()
    found = [
        xm.all_reduce(xm.REDUCE_SUM, some, scale=0.5),
        xm.all_gather(some[None, :2], dim=1),
        xm.reduce_scatter(xm.REDUCE_SUM, own(), 1.0, 0, size),
        xm.all_to_all(own()[None], 1, 0, size),
        xm.all_reduce(xm.REDUCE_MAX, own(), groups=[[k] for k in range(size)]),
    ]
    xm.collective_broadcast([some], root_ordinal=1)
    xm.mark_step()
    tell("names", [each.tolist() for each in (*found, some)])
    tell("met", xm.rendezvous("end", bytes([65 + rank])) == [b"A", b"B"])
    tell("largest", xm.mesh_reduce("rank", own()[0], max).item())
    total = own()
    dist.all_reduce(total)
    xm.save(
        {"total": total}, os.environ["CHECKPOINT"] + ".pt"
    )  # pending: all take part
    saved = torch.load(os.environ["CHECKPOINT"] + ".pt", weights_only=True)
    tell("saved", saved["total"].tolist())


def saving() -> None:
    """Write a distributed checkpoint into the folder CHECKPOINT."""
    from torch.distributed.checkpoint.state_dict_saver import save
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("lazyrt", (dist.get_world_size(),))
    rows = distribute_tensor(torch.arange(8.0).to("lazyrt"), mesh, [Shard(0)])
    state = {"rows": rows, "whole": torch.ones(3, device="lazyrt")}
    lazyrt.mark_step()
    save(state, checkpoint_id=os.environ["CHECKPOINT"])


def said(action: Callable[[], object]) -> str:
    """Return what an action raises, and take its work back."""
    try:
        action()
    except ReplicaError as error:
        lazyrt.discard_pending()
        return str(error)
    return ""


def divergence() -> None:
    """Ranks that differ: each is told, and the next step runs."""
    rank = dist.get_rank()

    def one_more() -> None:
        x = own()
        dist.all_reduce(x)
        if rank == 0:
            dist.all_reduce(x)
        lazyrt.mark_step()

    def another_shape() -> None:
        x = torch.ones(4 + rank).to("lazyrt")
        dist.all_reduce(x)
        lazyrt.mark_step()

    def alone() -> None:
        x = own()
        dist.all_reduce(x)
        try:
            print(x)
        finally:
            lazyrt.mark_step()

    def harmless() -> None:
        x = own()
        extra = [own() * 3] if rank == 0 else []
        dist.all_reduce(x)
        lazyrt.mark_step()
        tell("harmless result", [x.tolist(), len(extra)])

    for action in (one_more, another_shape, alone, harmless):
        tell(action.__name__, said(action))


def planted_faults() -> None:
    """What goes wrong on one rank: all are told, and the next step runs."""
    import warnings

    from lazyrt.errors import UsageError

    rank = dist.get_rank()

    def checkpoint_of_one_rank() -> None:
        x, y = own(), own()
        dist.all_reduce(x)
        if rank == 0:
            x.cpu()
        dist.all_reduce(y)
        lazyrt.mark_step()

    def missing_barrier() -> None:
        x, y = own(), own()
        dist.all_reduce(x)
        if rank == 0:
            lazyrt.mark_step()
        dist.all_reduce(y)
        lazyrt.mark_step()

    def read_by_one() -> None:
        x = own()
        dist.all_reduce(x)
        is_first = rank == 0
        if is_first:
            x.tolist()
        lazyrt.mark_step()

    def another_batch_size() -> None:
        x = torch.ones(2 + rank, device="lazyrt")
        rows = [torch.empty(2 + rank, device="lazyrt") for _ in range(2)]
        dist.all_gather(rows, x)
        lazyrt.mark_step()

    def another_order() -> None:
        hooks = [torch.ones(2, device="lazyrt"), torch.ones(3, device="lazyrt")]
        for gradient in hooks if rank == 0 else reversed(hooks):
            dist.all_reduce(gradient)
        lazyrt.mark_step()

    def stuck() -> None:
        x = own()
        dist.all_reduce(x)
        if rank == 1:
            time.sleep(3)
        with lazyrt.config.scoped(replica_timeout_s=1.0):
            lazyrt.mark_step()

    def uneven() -> None:
        from torch.distributed.algorithms.join import Join
        from torch.nn.parallel import DistributedDataParallel

        net = DistributedDataParallel(model().to("lazyrt"))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with Join([net]):
            for _ in range(2 + rank):
                net(torch.ones(2, 8, device="lazyrt")).sum().backward()
                optimizer.step()

    def summed() -> float:
        x = own() + 1
        dist.all_reduce(x)
        lazyrt.mark_step()
        return x[0].item()

    tell("checkpoint_of_one_rank", said(checkpoint_of_one_rank))
    tell("missing_barrier", said(missing_barrier))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        tell("read by one", said(read_by_one))
    tell("warnings", [str(each.message) for each in warned])
    tell("another_batch_size", said(another_batch_size))
    tell("another_order", said(another_order))
    summed()
    if rank == 1:
        lazyrt.clear_caches()
    before = lazyrt.counters()
    total = summed()
    tell("compiled by one", [total, (lazyrt.counters() - before)["compiles"]])
    tell("stuck", said(stuck))
    tell("uneven", said(uneven))
    try:
        lazyrt.mesh({"data": 1})
    except UsageError as error:
        tell("mesh", str(error))
    tell("after all that", summed())


def killed() -> None:
    """A rank that is killed while the others wait for it."""
    x = own()
    dist.all_reduce(x)
    lazyrt.mark_step()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    y = own()
    dist.all_reduce(y)
    tell("killed", said(lazyrt.mark_step))


if __name__ == "__main__":
    dist.init_process_group("lazyrt")
    for name in sys.argv[1:]:
        globals()[name]()
