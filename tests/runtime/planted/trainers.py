"""Trainers as classes, callbacks, metrics, logs and checkpoints."""

import copy

import torch
from torch import nn

import lazyrt
from tests.runtime.planted.bed import planted


def regression(features=5, rows=6):
    torch.manual_seed(3)
    return torch.randn(rows, features).to("lazyrt"), torch.randn(rows, 1).to("lazyrt")


class Trainer:
    """The loop that every project writes anew."""

    def __init__(self, model, callbacks=()):
        self.model = model.to("lazyrt")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.callbacks = callbacks
        self.epoch = 0

    def training_step(self, batch):
        x, y = batch
        return (self.model(x) - y).square().mean()

    def fit(self, batch, epochs):
        for self.epoch in range(epochs):
            self.optimizer.zero_grad()
            loss = self.training_step(batch)
            loss.backward()
            for callback in self.callbacks:
                callback(self, loss)
            self.optimizer.step()


class MeanLoss:
    """Keeps every loss, and now and then takes their mean."""

    def __init__(self, every):
        self.every = every
        self.history = []
        self.means = []

    def __call__(self, trainer, loss):
        if len(self.history) == self.every:
            self.means.append(torch.stack(self.history).mean())  # planted
        self.history.append(loss.detach())


@planted("carried_over", names=("history",))
def mean_of_all_losses_is_logged(change):
    log = MeanLoss(every=3 if change else 100)
    Trainer(nn.Linear(5, 1), [log]).fit(regression(), epochs=4)


class KeepsPredictions(Trainer):
    keep_from = 100
    kept: list[torch.Tensor]

    def training_step(self, batch):
        x, y = batch
        prediction = self.model(x)
        if self.epoch >= self.keep_from:
            self.kept.append(prediction.detach())  # planted
        return (prediction - y).square().mean()


@planted("live_tensor", names=("prediction", "kept"))
def predictions_are_kept(change):
    trainer = KeepsPredictions(nn.Linear(5, 1))
    trainer.kept = []
    if change:
        trainer.keep_from = 2
    trainer.fit(regression(), epochs=4)


class Monitor:
    def __init__(self):
        self.last_error = None
        self.enabled = True


@planted("live_tensor_gone", names=("error", "monitor"))
def monitor_is_switched_off(change):
    x, y = regression()
    model = nn.Linear(5, 1).to("lazyrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    monitor = Monitor()
    for step in range(4):
        if change and step == 2:
            monitor.enabled = False  # planted
        error = (model(x) - y).abs()
        monitor.last_error = error.detach() if monitor.enabled else None  # planted
        loss = error.mean()
        del error
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class WithAuxiliary(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.main = nn.Linear(4, 1)
        self.auxiliary = nn.Linear(4, 1)

    def forward(self, x):
        h = self.body(x).tanh()
        out = self.main(h)
        if self.training and self.auxiliary is not None:
            out = out + 0.3 * self.auxiliary(h)
        return out


@planted("module_removed", "module_call", names=("auxiliary",))
def auxiliary_head_is_dropped(change):
    def drop(trainer, loss):
        if change and trainer.epoch == 1:
            trainer.model.auxiliary = None  # planted

    Trainer(WithAuxiliary(), [drop]).fit(regression(), epochs=4)


def validate(model, x, y):  # planted
    model.eval()
    with torch.no_grad():
        worst = (model(x) - y).abs().max()
        lazyrt.mark_step()
    model.train()
    return worst


@planted("other_step", names=("validate",))
def validation_runs_for_the_first_time(change):
    x, y = regression()
    model = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 1)).to("lazyrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(5):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        if change and epoch == 2:
            validate(model, x, y)  # planted


@planted("closure", names=("report", "loss", "add_step_closure"))
def losses_are_reported_by_a_closure(change):
    x, y = regression()
    model = nn.Linear(5, 1).to("lazyrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    reported = []

    def report(value):
        reported.append(value.item())

    def train_one(step):
        prediction = model(x)
        squared = (prediction - y).square()
        optimizer.zero_grad()
        squared.mean().backward()
        if change and step >= 2:
            lazyrt.add_step_closure(report, (squared.max(),))  # planted
        optimizer.step()

    for step in range(4):
        train_one(step)


class Checkpoints:
    def __init__(self, at):
        self.at = at
        self.best_state = None

    def __call__(self, trainer, loss):
        if trainer.epoch == self.at:
            self.best_state = copy.deepcopy(trainer.model.state_dict())  # planted


@planted("live_tensor", "code_path", names=("best_state", "deepcopy", "state_dict"))
def best_weights_are_copied(change):
    keeper = Checkpoints(at=2 if change else -1)
    model = nn.Sequential(nn.Linear(5, 2), nn.Tanh(), nn.Linear(2, 1))
    Trainer(model, [keeper]).fit(regression(), epochs=4)


class SkipsBadSteps(Trainer):
    bad_epochs: tuple[int, ...] = ()

    def fit(self, batch, epochs):
        for epoch in range(epochs):
            with lazyrt.step():
                self.optimizer.zero_grad()
                loss = self.training_step(batch)
                loss.backward()
                if epoch not in self.bad_epochs:
                    self.optimizer.step()  # planted


@planted("update", names=("optimizer", "SGD"))
def a_bad_step_is_skipped(change):
    trainer = SkipsBadSteps(nn.Linear(5, 1))
    if change:
        trainer.bad_epochs = (2,)  # planted
    trainer.fit(regression(), epochs=4)


class ChecksGradients(Trainer):
    checks_from = 9

    def fit(self, batch, epochs):
        for epoch in range(epochs):
            self.optimizer.zero_grad()
            self.training_step(batch).backward()
            if epoch >= self.checks_from and self.are_large():
                continue
            self.optimizer.step()

    def are_large(self):
        norms = [p.grad.norm() for p in self.model.parameters()]
        return bool(torch.stack(norms).norm() > 100)  # planted


@planted("graph_break", names=("bool()", "are_large"), graphs=2)
def large_gradients_are_skipped(change):
    trainer = ChecksGradients(
        nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 1))
    )
    if change:
        trainer.checks_from = 2
    trainer.fit(regression(), epochs=4)


@planted("donation", "update", names=("averaged", "averaged.module.weight"))
def weights_are_averaged_from_an_epoch_on(change):
    batch, model = regression(), nn.Linear(5, 1)
    trainer = Trainer(model)
    averaged = torch.optim.swa_utils.AveragedModel(trainer.model)
    lazyrt.mark_step()
    for epoch in range(5):
        trainer.fit(batch, epochs=1)
        if change and epoch >= 2:
            averaged.update_parameters(trainer.model)  # planted
