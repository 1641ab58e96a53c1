"""Classifiers of rows and pictures."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everyone writes it
from torch.utils.data import DataLoader, TensorDataset

from tests.runtime.planted.bed import planted

DEVICE = "lazyrt"


@planted("input_shape", names=("images", "labels"))
def last_batch_is_smaller(change):
    rows = 20 if change else 24  # planted
    data = TensorDataset(torch.randn(rows, 12), torch.randint(0, 3, (rows,)))
    loader = DataLoader(data, batch_size=8)
    net = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    for images, labels in loader:
        images, labels = images.to(DEVICE), labels.to(DEVICE)  # noqa: PLW2901 - as scripts do
        optimizer.zero_grad()
        loss = criterion(net(images), labels)
        loss.backward()
        optimizer.step()


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 4 * 4, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x.float())), 2)
        return self.fc(x.flatten(1))


@planted("input_dtype", names=("pixels",))
def one_shard_has_doubles(change):
    rng = np.random.default_rng(0)
    shards = [rng.random((6, 1, 8, 8)).astype(np.float32) for _ in range(4)]
    if change:
        shards[2] = rng.random((6, 1, 8, 8))  # type: ignore[assignment] # planted
    y = torch.arange(6).remainder(5).to(DEVICE)
    model = Digits().to(DEVICE)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for shard in shards:
        pixels = torch.from_numpy(shard).to(DEVICE)
        opt.zero_grad(set_to_none=True)
        F.cross_entropy(model(pixels), y).backward()
        opt.step()


@planted("parameter_shape", "module_recreated", names=("fc",))
def more_classes_arrive(change):
    torch.manual_seed(1)
    model = Digits().to(DEVICE)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(4, 1, 8, 8).to(DEVICE)
    y = torch.tensor([0, 1, 2, 3]).to(DEVICE)
    for task in range(3):
        if change and task == 2:
            model.fc = nn.Linear(4 * 4 * 4, 7).to(DEVICE)  # planted
            opt = torch.optim.SGD(model.parameters(), lr=0.05)
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()


class SmallResNet(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.bn = nn.BatchNorm2d(width)
        self.body = nn.Conv2d(width, width, 3, padding=1)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(width, 2)

    def forward(self, image):
        h = F.relu(self.bn(self.stem(image)))
        h = h + F.relu(self.body(h))
        return self.head(self.drop(h.mean((2, 3))))


def accuracy(model, image, target):
    model.eval()
    with torch.no_grad():
        hits = (model(image).argmax(-1) == target).float().mean()
    return hits.item()


@planted("train_eval", names=("model", "drop", "bn", "SmallResNet"))
def validation_leaves_the_model_in_eval(change):
    model = SmallResNet().to(DEVICE)
    image = torch.randn(4, 3, 6, 6).to(DEVICE)
    target = torch.tensor([0, 1, 1, 0]).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scores = [accuracy(model, image, target)]
    model.train()
    for epoch in range(4):
        optimizer.zero_grad()
        F.cross_entropy(model(image), target).backward()
        optimizer.step()
        if epoch == 1:
            scores.append(accuracy(model, image, target))
            if not change:
                model.train()  # planted
    assert len(scores) == 2


@planted("lifted_number", "baked_constant", names=("smoothing",))
def label_smoothing_is_reduced(change):
    net = nn.Linear(10, 4).to(DEVICE)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    features = torch.randn(8, 10).to(DEVICE)
    classes = torch.randint(0, 4, (8,)).to(DEVICE)
    schedule = [0.1, 0.1, 0.1, 0.1]
    if change:
        schedule[2:] = [0.05, 0.05]  # planted
    for smoothing in schedule:
        loss = F.cross_entropy(net(features), classes, label_smoothing=smoothing)
        sgd.zero_grad()
        loss.backward()
        sgd.step()


@planted("code_path", names=("clip_grad_norm_",))
def gradients_are_clipped_after_warmup(change):
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(5, 6).to(DEVICE)
    warmup = 2 if change else 100
    for it in range(4):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        if it >= warmup:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # planted
        optimizer.step()


@planted("graph_break", names=("loss.item", ".item()"), graphs=2)
def stopping_reads_the_loss_too_early(change):
    net = nn.Sequential(nn.Linear(7, 5), nn.GELU(), nn.Linear(5, 1)).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    x, y = torch.randn(6, 7).to(DEVICE), torch.randn(6, 1).to(DEVICE)
    best, patience = float("inf"), 10
    for epoch in range(4):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        if change and epoch >= 2 and loss.item() > best:  # planted
            patience -= 1
        loss.backward()
        optimizer.step()
        best = min(best, loss.item())
        if patience == 0:
            break


@planted("baked_constant", names=("axis", "flip"))
def augmentation_flips_the_other_axis(change):
    model = SmallResNet(3).to(DEVICE)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    pictures = torch.randn(2, 3, 6, 6).to(DEVICE)
    wanted = torch.tensor([0, 1]).to(DEVICE)
    axes = [-1, -1, -1, -2 if change else -1]  # planted
    for axis in axes:
        opt.zero_grad()
        F.cross_entropy(model(pictures.flip(axis)), wanted).backward()
        opt.step()


def losses_of(model, rows, classes, *, decays):
    losses = {"classes": F.cross_entropy(model(rows), classes)}
    if decays:
        squares = [p.square().sum() for p in model.parameters()]  # planted
        losses["decay"] = 1e-3 * sum(squares)  # planted
    return losses


@planted("code_path", names=("losses", "squares"))
def a_loss_more_is_added(change):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).to(DEVICE)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(4):
        rows, classes = (
            torch.randn(6, 4).to(DEVICE),
            torch.randint(0, 2, (6,)).to(DEVICE),
        )
        losses = losses_of(model, rows, classes, decays=change and epoch > 1)
        total = sum(losses.values())
        opt.zero_grad()
        total.backward()
        opt.step()
