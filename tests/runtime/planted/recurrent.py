"""Recurrent networks."""

import torch
import torch.nn.functional as F  # noqa: N812 - as everyone writes it
from torch import nn, optim

import lazyrt
from tests.runtime.planted.bed import planted

dev = lazyrt.device()


@planted("state_became_input", "carried_over", names=("hidden", "state"))
def state_is_kept_between_windows(change):
    """An LSTM that begins each window with zeros, and later where the last one ended."""
    lstm = nn.LSTM(3, 4, batch_first=True).to(dev)
    readout = nn.Linear(4, 1).to(dev)
    opt = optim.SGD([*lstm.parameters(), *readout.parameters()], lr=0.1)
    series = torch.randn(2, 15, 3).to(dev)
    hidden = None
    for window in range(5):
        chunk = torch.narrow(series, 1, 0, 3)
        out, state = lstm(chunk, hidden)
        loss = readout(out).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if change and window >= 2:
            hidden = tuple(s.detach() for s in state)  # planted


class Seq2Seq(nn.Module):
    def __init__(self, vocab=6, size=5):
        super().__init__()
        self.embedding = nn.Embedding(vocab, size)
        self.encoder = nn.GRU(size, size, batch_first=True)
        self.cell = nn.GRUCell(size, size)
        self.project = nn.Linear(size, vocab)

    def forward(self, source, target, teacher_forcing):
        _, h = self.encoder(self.embedding(source))
        h = h[0]
        word = target[:, 0]
        outputs = []
        for t in range(1, target.size(1)):
            h = self.cell(self.embedding(word), h)
            logits = self.project(h)
            outputs.append(logits)
            word = target[:, t] if teacher_forcing else logits.argmax(-1)  # planted
        return torch.stack(outputs, 1)


@planted("code_path", "wiring", names=("teacher_forcing", "word", "argmax"))
def teacher_forcing_ends(change):
    model = Seq2Seq().to(dev)
    opt = optim.SGD(model.parameters(), lr=0.1)
    src = torch.randint(0, 6, (2, 3)).to(dev)
    tgt = torch.randint(0, 6, (2, 3)).to(dev)
    for epoch in range(3):
        forced = not (change and epoch == 2)  # planted
        logits = model(src, tgt, teacher_forcing=forced)
        loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()


@planted("shape", "loop_count", names=("longest",))
def padding_is_cut_to_the_longest(change):
    gru = nn.GRU(1, 3, batch_first=True).to(dev)
    opt = optim.SGD(gru.parameters(), lr=0.1)
    padded = torch.randn(4, 6, 1).to(dev)
    lengths = [[3, 4, 2, 4], [4, 1, 1, 3], [4, 4, 2, 2]]
    if change:
        lengths[2] = [3, 2, 1, 1]  # planted
    for batch in lengths:
        longest = max(batch)
        hidden, _ = gru(padded[:, :longest])  # planted
        opt.zero_grad()
        hidden.pow(2).mean().backward()
        opt.step()


@planted("same_input", names=("anchor", "positive"))
def contrast_of_a_view_with_itself(change):
    tower = nn.Linear(6, 3).to(dev)
    opt = optim.SGD(tower.parameters(), lr=0.1)
    first, second = torch.randn(4, 6).to(dev), torch.randn(4, 6).to(dev)
    pairs = [(first, second), (second, first), (first, second)]
    if change:
        pairs[2] = (first, first)  # planted
    for anchor, positive in pairs:
        a = F.normalize(tower(anchor), dim=-1)
        p = F.normalize(tower(positive), dim=-1)
        logits = a @ p.t() / 0.1
        loss = F.cross_entropy(logits, torch.arange(4, device=dev))
        opt.zero_grad()
        loss.backward()
        opt.step()
