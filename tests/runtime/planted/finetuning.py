"""Fine-tuning, distillation, accumulation, optimizers and their schedules."""

import itertools

import torch
import torch.nn.functional as F  # noqa: N812 - as everyone writes it
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

import lazyrt
from tests.runtime.planted.bed import planted

DEV = "lazyrt"


def mlp(*sizes):
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to(DEV)


@planted("module_call", names=("teacher",))
def distillation_begins(change):
    student, teacher = mlp(5, 4, 3), mlp(5, 8, 3).eval()
    optimizer = SGD(student.parameters(), lr=0.1)
    x, y = torch.randn(6, 5).to(DEV), torch.randint(0, 3, (6,)).to(DEV)
    for epoch in range(4):
        logits = student(x)
        loss = F.cross_entropy(logits, y)
        if change and epoch >= 2:
            with torch.no_grad():
                soft = teacher(x).softmax(-1)  # planted
            loss = loss + F.kl_div(logits.log_softmax(-1), soft, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@planted("carried_over", names=("grad", "zero_grad"))
def zero_grad_is_forgotten(change):
    model = mlp(4, 4, 1)
    optimizer = SGD(model.parameters(), lr=0.01)
    data = torch.randn(8, 4).to(DEV)
    for step in range(5):
        if not (change and step > 2):
            optimizer.zero_grad()  # planted
        loss = model(data).pow(2).mean()
        loss.backward()
        optimizer.step()


@planted("loop_count", names=("accumulate", "micro"))
def accumulation_over_more_micro_batches(change):
    net = nn.Linear(4, 2).to(DEV)
    optimizer = SGD(net.parameters(), lr=0.1)
    micro_batches = [torch.randn(2, 4).to(DEV) for _ in range(4)]
    for step in range(4):
        accumulate = 4 if change and step >= 2 else 2  # planted
        for micro in micro_batches[:accumulate]:  # planted
            (net(micro).square().mean() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


@planted("update", names=("Adam", "optimizer"))
def adam_takes_over_from_sgd(change):
    net = mlp(3, 3)
    optimizer: Optimizer = SGD(net.parameters(), lr=0.1)
    scheduler = CosineAnnealingLR(optimizer, T_max=10)
    x = torch.randn(5, 3).to(DEV)
    for epoch in range(4):
        if change and epoch == 3:
            optimizer = Adam(net.parameters(), lr=0.01)  # planted
            scheduler = CosineAnnealingLR(optimizer, T_max=10)
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()
        scheduler.step()


@planted("missing_boundary", names=("mark_step",))
def mark_step_is_left_out_once(change):
    """Gradient descent by hand, so that nothing but the mark ends a step."""
    w = torch.randn(4, 2).to(DEV).requires_grad_()
    x, y = torch.randn(6, 4).to(DEV), torch.randn(6, 2).to(DEV)
    for step in range(6):
        loss = (x @ w - y).square().mean()
        (g,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            w -= 0.1 * g
        if not (change and step == 3):
            lazyrt.mark_step()  # planted


@planted("graph_break", names=("mark_step",), graphs=2)
def mark_step_moves_before_the_update(change):
    params = {"w": torch.randn(4, 3).to(DEV), "b": torch.zeros(3).to(DEV)}
    for p in params.values():
        p.requires_grad_()
    inputs = torch.randn(5, 4).to(DEV)
    for it in range(4):
        loss = torch.tanh(inputs @ params["w"] + params["b"]).square().sum()
        grads = torch.autograd.grad(loss, list(params.values()))
        if change and it >= 2:
            lazyrt.mark_step()  # planted
        with torch.no_grad():
            for p, g in zip(params.values(), grads, strict=True):
                p.sub_(g, alpha=0.1)
        lazyrt.mark_step()


@planted("module_recreated", "update", names=("head",))
def head_is_replaced_for_a_new_task(change):
    net = nn.ModuleDict({"trunk": nn.Linear(4, 6), "head": nn.Linear(6, 2)}).to(DEV)
    opt = SGD(net.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(5, 4).to(DEV), torch.randint(0, 2, (5,)).to(DEV)
    for task in range(4):
        if change and task == 3:
            net["head"] = nn.Linear(6, 2).to(DEV)  # planted
            opt.add_param_group({"params": net["head"].parameters()})
        opt.zero_grad()
        F.cross_entropy(net["head"](net["trunk"](x).relu()), y).backward()
        opt.step()


@planted("input_dtype", "dtype", names=("model", "weight", "bfloat16", "bf16"))
def weights_are_cast_to_bfloat16(change):
    model = mlp(4, 4, 2)
    x = torch.randn(3, 4).to(DEV)
    opt = SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        if change and epoch == 2:
            model.bfloat16()  # planted
        opt.zero_grad()
        weight = next(model.parameters())
        model(x.to(weight.dtype)).float().square().mean().backward()
        opt.step()
