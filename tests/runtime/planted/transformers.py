"""Attention: encoders, decoders, adapters."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everyone writes it

import lazyrt
from tests.runtime.planted.bed import planted

device = torch.device("lazyrt")


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / x.size(-1) ** 0.5
        return x + self.out(scores.softmax(-1) @ v)


class Encoder(nn.Module):
    def __init__(self, vocab=16, dim=8, depth=1):
        super().__init__()
        self.words = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.lm_head = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = self.words(ids)
        for block in self.blocks:
            h = block(h)
        return self.lm_head(h)


def lm_loss(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@planted("input_shape", names=("tokens",))
def curriculum_of_longer_sequences(change):
    model = Encoder().to(device)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    corpus = torch.randint(0, 16, (8, 12))
    for stage in range(3):
        length = 10 if change and stage == 2 else 6  # planted
        tokens = corpus[stage * 2 : stage * 2 + 2, :length].to(device)
        optim.zero_grad()
        lm_loss(model(tokens), tokens).backward()
        optim.step()


class LoRALinear(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.A.t() @ self.B.t()


@planted("module_added", "module_recreated", names=("LoRALinear", "out"))
def lora_is_attached(change):
    model = Encoder().to(device)
    for parameter in model.parameters():
        parameter.requires_grad = False
    for parameter in model.lm_head.parameters():
        parameter.requires_grad = True
    optimizer = torch.optim.SGD(model.lm_head.parameters(), lr=0.1)
    inputs = torch.randint(0, 16, (2, 4)).to(device)
    for step in range(4):
        if change and step == 2:
            block = model.blocks[0]
            block.out = LoRALinear(block.out).to(device)  # planted
        optimizer.zero_grad()
        lm_loss(model(inputs), inputs).backward()
        optimizer.step()


@planted("update", names=("words", "requires_grad"))
def embeddings_are_frozen(change):
    model = Encoder(vocab=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sentence = torch.randint(0, 10, (3, 5)).to(device)
    for epoch in range(4):
        if change and epoch == 2:
            model.words.requires_grad_(requires_grad=False)  # planted
        optimizer.zero_grad(set_to_none=True)
        lm_loss(model(sentence), sentence).backward()
        optimizer.step()


class Decoder(nn.Module):
    def __init__(self, vocab=12, dim=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.q = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, token, position, keys, values):
        h = self.embed(token)
        k, v = self.kv(h).chunk(2, -1)
        keys = keys.index_copy(1, position, k)
        values = values.index_copy(1, position, v)
        reach = torch.arange(keys.size(1), device=keys.device) <= position
        scores = (self.q(h) @ keys.transpose(1, 2)).masked_fill(~reach, -1e9)
        return self.head(scores.softmax(-1) @ values), keys, values


@planted("shape", "input_shape", names=("max_len", "keys", "values", "cache"))
def second_prompt_needs_a_longer_cache(change):
    model = Decoder().to(device)
    answers = []
    needed = (6, 6, 9 if change else 6)  # planted
    for max_len in needed:
        keys = torch.zeros(1, max_len, 6, device=device)
        values = torch.zeros(1, max_len, 6, device=device)
        token = torch.tensor([[1]]).to(device)
        for place in range(3):
            position = torch.tensor([place]).to(device)
            with torch.no_grad(), lazyrt.step():
                logits, keys, values = model(token, position, keys, values)
                token = logits[:, -1:].argmax(-1)
        answers.append(token.item())


@planted("dtype", names=("autocast", "bfloat16", "bf16"))
def mixed_precision_is_switched_on(change):
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(4, 8).to(device), torch.randn(4, 1).to(device)
    for epoch in range(4):
        amp = change and epoch >= 2
        with torch.autocast("lazyrt", dtype=torch.bfloat16, enabled=amp):  # planted
            prediction = model(x)
        loss = F.mse_loss(prediction.float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@planted("wiring", "code_path", names=("memory", "query", "cross"))
def decoder_attends_to_itself(change):
    cross = nn.MultiheadAttention(8, 2, batch_first=True).to(device)
    optimizer = torch.optim.SGD(cross.parameters(), lr=0.1)
    memory = torch.randn(2, 4, 8).to(device)
    query = torch.randn(2, 4, 8).to(device)
    for step in range(4):
        keys = query if change and step >= 2 else memory  # planted
        attended, _ = cross(query, keys, memory, need_weights=False)
        optimizer.zero_grad()
        (attended - query - memory).square().mean().backward()
        optimizer.step()


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Residual() for _ in range(3))

    def forward(self, x, dropped):
        for number, block in enumerate(self.blocks):
            if number == dropped:
                continue  # planted
            x = block(x)
        return x


@planted("module_call", names=("model.blocks.1", "model.blocks.1.up"))
def one_of_equal_blocks_is_dropped(change):
    """With an optimizer that keeps two moments of each weight's size."""
    model = Deep().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for dropped in (-1, -1, 1 if change else -1):
        x = torch.randn(4, 4).to(device)
        optimizer.zero_grad()
        model(x, dropped).square().mean().backward()
        optimizer.step()
