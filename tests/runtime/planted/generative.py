"""Models that make data: GANs, VAEs, diffusion."""

import torch
from torch import nn

import lazyrt
from tests.runtime.planted.bed import planted


class Gan:
    def __init__(self):
        self.generator = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
        self.critic = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(), nn.Linear(4, 1))
        self.generator.to("lazyrt")
        self.critic.to("lazyrt")
        self.g_opt = torch.optim.SGD(self.generator.parameters(), lr=0.05)
        self.d_opt = torch.optim.SGD(self.critic.parameters(), lr=0.05)
        self.iteration = 0

    def critic_loss(self, real):
        fake = self.generator(torch.randn(4, 2, device="lazyrt")).detach()
        return self.critic(fake).mean() - self.critic(real).mean()

    def train_step(self, real):
        with lazyrt.step():
            self.d_opt.zero_grad()
            self.critic_loss(real).backward()
            self.d_opt.step()
            self.g_opt.zero_grad()
            noise = torch.randn(4, 2, device="lazyrt")
            g_loss = -self.critic(self.generator(noise)).mean()
            g_loss.backward()
            self.g_opt.step()
        self.iteration += 1


class PenalisedGan(Gan):
    """Adds the penalty in some steps alone, as it is dear."""

    penalty_every = 1000

    def gradient_penalty(self, real):  # planted
        real = real.detach().requires_grad_()
        score = self.critic(real).sum()
        (gradient,) = torch.autograd.grad(score, real, create_graph=True)
        return gradient.square().sum(1).mean()

    def critic_loss(self, real):
        loss = super().critic_loss(real)
        if self.iteration % self.penalty_every == self.penalty_every - 1:
            loss = loss + self.gradient_penalty(real)  # planted
        return loss


@planted("code_path", names=("penalty", "autograd.grad"))
def gradient_penalty_every_third_step(change):
    gan = PenalisedGan()
    if change:
        gan.penalty_every = 3
    real = torch.randn(4, 3).to("lazyrt")
    for _ in range(4):
        gan.train_step(real)


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(6, 4)
        self.decode = nn.Linear(2, 6)

    def forward(self, x):
        mu, log_var = self.encode(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * log_var).exp()
        return self.decode(z), mu, log_var


def kl(mu, log_var):
    return -0.5 * (1 + log_var - mu.square() - log_var.exp()).sum(-1).mean()


@planted("lifted_number", names=("beta",))
def beta_begins_to_anneal(change):
    vae = Vae().to("lazyrt")
    opt = torch.optim.SGD(vae.parameters(), lr=0.01)
    x = torch.rand(3, 6).to("lazyrt")
    beta = 0.1
    for epoch in range(5):
        if change and epoch >= 2:
            beta += 0.2  # planted
        reconstruction, mu, log_var = vae(x)
        loss = (reconstruction - x).square().sum(-1).mean() + beta * kl(mu, log_var)
        opt.zero_grad()
        loss.backward()
        opt.step()


def diffusion_loss(model, clean, t, offset_noise):
    noise = torch.randn_like(clean)
    if offset_noise:
        noise = noise + 0.1 * torch.randn_like(clean[:, :1])  # planted
    alpha = torch.cos(t)[:, None]
    noisy = alpha * clean + (1 - alpha**2).clamp_min(1e-4).sqrt() * noise
    return (model(noisy) - noise).square().mean()


@planted("rng", "code_path", names=("randn", "noise"))
def offset_noise_is_drawn_as_well(change):
    model = nn.Sequential(nn.Linear(5, 5), nn.SiLU(), nn.Linear(5, 5)).to("lazyrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clean, t = torch.randn(4, 5).to("lazyrt"), torch.rand(4).to("lazyrt")
    for step in range(4):
        optimizer.zero_grad()
        diffusion_loss(model, clean, t, offset_noise=change and step > 1).backward()
        optimizer.step()


class Ema:
    def __init__(self, model, decay=0.9):
        self.decay = decay
        self.shadow = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self, model):
        for average, p in zip(self.shadow, model.parameters(), strict=True):
            average.mul_(self.decay).add_(p, alpha=1 - self.decay)  # planted


@planted("code_path", "update", names=("ema", "shadow", "average"))
def ema_begins_after_warmup(change):
    model = nn.Linear(5, 5).to("lazyrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clean = torch.randn(4, 5).to("lazyrt")
    ema = Ema(model)
    lazyrt.mark_step()
    for step in range(4):
        with lazyrt.step("denoise"):
            optimizer.zero_grad()
            noisy = clean + torch.randn(4, 5, device="lazyrt")
            (model(noisy) - clean).square().mean().backward()
            optimizer.step()
            if change and step >= 2:
                ema.update(model)  # planted


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(4, 5)
        self.body = nn.Linear(6, 5)
        self.out = nn.Linear(5, 3)

    def forward(self, noisy, t, guess):
        h = self.body(torch.cat([noisy, guess], 1)) + self.time(t)
        return self.out(torch.nn.functional.silu(h))


@planted("loop_count", "module_call", names=("Denoiser", "net"))
def a_diffusion_model_conditions_on_its_own_guess(change):
    net = Denoiser().to("lazyrt")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for coin in (0.9, 0.8, 0.1 if change else 0.7):
        clean = torch.randn(4, 3).to("lazyrt")
        t = torch.randint(0, 4, (4,)).to("lazyrt")
        noise = torch.randn_like(clean)
        guess = torch.zeros_like(clean)
        if coin < 0.5:
            with torch.no_grad():
                guess = net(clean + noise, t, guess)  # planted
        loss = (net(clean + noise, t, guess) - noise).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
