"""Small models with their losses; each maker returns a fresh, seeded pair."""

from __future__ import annotations

import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(4 * 4 * 4, 4)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def classifier(model_class, shape, dropout=0.0):
    """Return a model and `loss(model, batch)`, and the batches as a function of the step."""
    torch.manual_seed(1)
    model = model_class()

    def batch(step):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(6, *shape, generator=generator)
        return x, torch.randint(0, 4, (6,), generator=generator)

    def loss(model, batch):
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)

    return model, loss, batch


def mlp():
    return classifier(Mlp, (8,))


def cnn():
    return classifier(Cnn, (1, 8, 8))


def _tokens(step):
    generator = torch.Generator().manual_seed(step)
    return (torch.randint(0, 50, (2, 8), generator=generator),)


def bert():
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForMaskedLM(config)
    return model, lambda model, b: model(b[0], labels=b[0]).loss, _tokens


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=50,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    return model, lambda model, b: model(b[0], labels=b[0]).loss, _tokens


MODELS = {"mlp": mlp, "cnn": cnn, "bert": bert, "gpt2": gpt2}
