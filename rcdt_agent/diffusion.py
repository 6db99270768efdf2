"""A diffusion policy: actions are denoised, step by step, given the observation.

B batch, O observation, A action, N denoising steps. Actions are in [-1, 1].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BETA_RANGE = (0.1, 10.0)
"""Least and largest rate of noise of the variance-preserving schedule."""
_FEATURES = 64  # Fourier features of the denoising step
_TIME_WIDTH = 128


def variance_preserving_betas(n_steps: int) -> Tensor:
    """(N,) share of noise added at each step n = 1 .. N.

    beta_n = 1 - exp(-b_min / N - (b_max - b_min) (2 n - 1) / (2 N^2)).
    """
    least, most = BETA_RANGE
    step = torch.arange(1, n_steps + 1, dtype=torch.float64)
    exponent = least / n_steps + (most - least) * (2 * step - 1) / (2 * n_steps**2)
    return (1 - torch.exp(-exponent)).float()


def add_noise(actions: Tensor, noise: Tensor, kept: Tensor) -> Tensor:
    """sqrt(kept) a + sqrt(1 - kept) noise: actions (B, A) after some steps of noise.

    Args:
        actions: (B, A).
        noise: (B, A) standard normal.
        kept: (B,) product of 1 - beta up to the step.
    """
    share = kept[:, None]
    return share.sqrt() * actions + (1 - share).sqrt() * noise


def denoising_loss(predicted: Tensor, noise: Tensor, weights: Tensor) -> Tensor:
    """mean_i w_i |noise_i - predicted_i|^2: weighted imitation by a diffusion policy.

    Args:
        predicted: (B, A) noise as the network sees it.
        noise: (B, A) noise that was added.
        weights: (B,).
    """
    return (weights * (noise - predicted).square().sum(-1)).mean()


class _FourierFeatures(nn.Module):
    """cos and sin of a number at learned frequencies: (B, 1) -> (B, F)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(0.2 * torch.randn(size // 2))

    def forward(self, x: Tensor) -> Tensor:
        angles = 2 * math.pi * x * self.frequencies
        return torch.cat((angles.cos(), angles.sin()), dim=-1)


class _ResidualBlock(nn.Module):
    """Dropout, layer norm, a layer four times as wide, and back."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Dropout(dropout),
            nn.LayerNorm(width),
            _xavier(width, 4 * width),
            nn.Mish(),
            _xavier(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layers(x)
        return out


class NoiseNetwork(nn.Module):
    """Noise of a noisy action, given the observation and the denoising step."""

    def __init__(
        self, observation_size: int, action_size: int, *, width: int, n_blocks: int, dropout: float
    ) -> None:
        """Make the layers.

        Args:
            observation_size: O.
            action_size: A.
            width: Of the residual stream.
            n_blocks: Residual blocks.
            dropout: In them.
        """
        super().__init__()
        self.time = nn.Sequential(
            _FourierFeatures(_FEATURES),
            nn.Linear(_FEATURES, _TIME_WIDTH),
            nn.Mish(),
            nn.Linear(_TIME_WIDTH, _TIME_WIDTH),
        )
        self.entry = _xavier(action_size + observation_size + _TIME_WIDTH, width)
        self.blocks = nn.Sequential(*(_ResidualBlock(width, dropout) for _ in range(n_blocks)))
        self.out = _xavier(width, action_size)

    def forward(self, actions: Tensor, obs: Tensor, step: Tensor) -> Tensor:
        """(B, A) noise in actions (B, A) at observations (B, O) and steps (B,), from 0."""
        time = self.time(step[:, None].to(obs.dtype))
        hidden = self.blocks(self.entry(torch.cat((actions, obs, time), dim=-1)))
        noise: Tensor = self.out(F.mish(hidden))
        return noise.float()


class DiffusionActor(nn.Module):
    """The noise network with its schedule.

    Attributes:
        network: Predicts the noise.
        betas: (N,) noise of each step.
        kept: (N,) what is left of the action's variance after each step.
    """

    betas: Tensor
    kept: Tensor

    def __init__(self, network: NoiseNetwork, n_steps: int) -> None:
        """Join them.

        Args:
            network: Untrained.
            n_steps: N.
        """
        super().__init__()
        self.network = network
        betas = variance_preserving_betas(n_steps)
        self.register_buffer("betas", betas, persistent=False)
        self.register_buffer("kept", torch.cumprod(1 - betas, dim=0), persistent=False)

    @property
    def n_steps(self) -> int:
        """N."""
        return len(self.betas)

    def forward(self, actions: Tensor, obs: Tensor, step: Tensor, noise: Tensor) -> Tensor:
        """(B, A) predicted noise after `noise` (B, A) was added for step (B,) to the actions."""
        predicted: Tensor = self.network(add_noise(actions, noise, self.kept[step]), obs, step)
        return predicted

    def denoise(self, obs: Tensor, noise: Tensor) -> Tensor:
        """(B, A) actions that noise (N + 1, B, A) stands for at observations (B, O).

        DDPM: x <- (x - beta / sqrt(1 - kept) eps) / sqrt(1 - beta) + sqrt(beta) z, without z at
        the last step; clipped to [-1, 1] at every step.
        """
        actions = noise[0]
        for i in reversed(range(self.n_steps)):
            beta, step = self.betas[i], torch.full((len(obs),), i, device=obs.device)
            predicted = self.network(actions, obs, step)
            mean = (actions - beta / (1 - self.kept[i]).sqrt() * predicted) / (1 - beta).sqrt()
            actions = mean + beta.sqrt() * noise[i + 1] if i > 0 else mean
            actions = actions.clamp(-1.0, 1.0)
        return actions


def _xavier(size_in: int, size_out: int) -> nn.Linear:
    layer = nn.Linear(size_in, size_out)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
