"""What the tests of causes share: inputs, the explanations so far, a model with two ends."""

import torch
from torch import nn

import lazyrt
from tests.harness import DEVICE


def ones(*shape):
    return torch.ones(*shape).to(DEVICE)


def explained():
    """Return why each compiled graph is new, but for those that have nothing before them."""
    found = [record.explanation for record in lazyrt.compiled_graphs()]
    return [each for each in found if each is not None]


def kinds(explanation):
    return [cause.kind for cause in explanation.causes]


class Tied(nn.Module):
    """An embedding and a head of one shape, which a test may make one tensor."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)

    def forward(self, ids):
        return self.head(self.embed(ids))
