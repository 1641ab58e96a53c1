"""Reinforcement learning."""

import torch
from torch import nn

from tests.runtime.planted.bed import planted


class Policy(nn.Module):
    def __init__(self, observations=4, actions=2):
        super().__init__()
        self.body = nn.Linear(observations, 8)
        self.pi = nn.Linear(8, actions)
        self.value = nn.Linear(8, 1)

    def forward(self, observation):
        h = torch.tanh(self.body(observation))
        return self.pi(h), self.value(h)


@planted(
    "loop_count",
    "input_shape",
    names=("duration", "rewards", "returns", "observations"),
)
def episode_lasts_longer(change):
    torch.manual_seed(0)
    policy = Policy().to("lazyrt")
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    observations = torch.randn(6, 4).to("lazyrt")
    durations = [3, 3, 3, 5 if change else 3]  # planted
    for duration in durations:
        log_probs, rewards = [], []
        for t in range(duration):
            logits, _ = policy(observations[t])
            log_probs.append(logits.log_softmax(-1)[t % 2])
            rewards.append(1.0)
        returns = torch.tensor(rewards).to("lazyrt")
        loss = -(torch.stack(log_probs) * returns).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@planted("fallback", "graph_break", names=("nonzero", "surprising"), graphs=2)
def surprising_states_count_twice(change):
    critic = nn.Linear(4, 1).to("lazyrt")
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    states, returns = torch.randn(6, 4).to("lazyrt"), torch.randn(6).to("lazyrt")
    for update in range(4):
        error = critic(states).squeeze(-1) - returns
        loss = error.square().mean()
        if change and update == 2:
            surprising = (error.detach() > 0).nonzero().squeeze(-1)  # planted
            loss = loss + error[surprising].sum() / 6
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
