"""Networks that act from one observation or judge it: MLPs, critics, VAE, squashed Gaussian."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcdt_agent.critics import TWINS, EnsembleLinear

CPU_ROWS = 1024
"""From so many rows on, a CPU is faster member by member: 102 ms instead of 160 ms for 8 members of
width 256 and 5120 rows."""


def mlp(
    size_in: int,
    width: int,
    n_layers: int,
    size_out: int,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """`n_layers` linear layers with an activation between."""
    layers: list[nn.Module] = []
    for i, j in pairwise([size_in, *[width] * (n_layers - 1)]):
        layers += [nn.Linear(i, j), activation()]
    return nn.Sequential(*layers, nn.Linear(width, size_out))


class CriticEnsemble(nn.Module):
    """N MLPs with ReLU in one batched product: estimates of a state or of a state and action.

    Members are called by all inputs, joined: `q(obs, actions)`, `v(obs)`.
    """

    def __init__(self, n_members: int, size_in: int, width: int, n_layers: int = 3) -> None:
        """Make the networks.

        Args:
            n_members: N.
            size_in: Sizes of all inputs together.
            width: Hidden units.
            n_layers: Linear layers, the last with one output.
        """
        super().__init__()
        sizes = [size_in, *[width] * (n_layers - 1), 1]
        self.layers = nn.ModuleList(EnsembleLinear(n_members, i, j) for i, j in pairwise(sizes))
        self.n_members = n_members

    def forward(self, *inputs: Tensor) -> Tensor:
        """(N, ...) estimates for inputs (..., I)."""
        joined = torch.cat(inputs, dim=-1)
        rows = joined.flatten(0, -2)
        if rows.device.type == "cpu" and len(rows) >= CPU_ROWS:
            values = torch.stack([self._member(i, rows) for i in range(self.n_members)])
        else:
            values = rows.expand(self.n_members, -1, -1)
            for layer in self.layers[:-1]:
                values = F.relu(layer(values))
            values = self.layers[-1](values)
        return values.float().view(self.n_members, *joined.shape[:-1])

    def _member(self, index: int, x: Tensor) -> Tensor:
        """(B, 1) estimates of one member."""
        for layer in self.layers:
            assert isinstance(layer, EnsembleLinear)
            x = torch.addmm(layer.bias[index], x, layer.weight[index])
            x = x if layer is self.layers[-1] else x.relu_()
        return x


class VAE(nn.Module):
    """Conditional VAE of the recorded actions: which actions are like the data's in a state.

    Latents are twice as many as actions have dimensions.
    """

    LOG_STD_RANGE = (-4.0, 15.0)

    def __init__(self, observation_size: int, action_size: int, width: int) -> None:
        """Make encoder and decoder, two hidden layers each."""
        super().__init__()
        self.latent_size = 2 * action_size
        self.encoder = mlp(observation_size + action_size, width, 3, 2 * self.latent_size)
        self.decoder = mlp(observation_size + self.latent_size, width, 3, action_size)

    def encode(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation (..., L) of the latent."""
        out: Tensor = self.encoder(torch.cat((obs, actions), dim=-1))
        mean, log_std = out.float().chunk(2, dim=-1)
        return mean, log_std.clamp(*self.LOG_STD_RANGE)

    def decode_raw(self, obs: Tensor, latents: Tensor) -> Tensor:
        """(..., A) actions before the tanh."""
        raw: Tensor = self.decoder(torch.cat((obs, latents), dim=-1))
        return raw.float()

    def decode(self, obs: Tensor, latents: Tensor) -> Tensor:
        """(..., A) actions in [-1, 1]."""
        return torch.tanh(self.decode_raw(obs, latents))

    def forward(self, obs: Tensor, actions: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstructed actions (..., A), and mean and log standard deviation of the latent.

        Args:
            obs: (..., O).
            actions: (..., A) in [-1, 1].
            noise: (..., L) standard normal.
        """
        mean, log_std = self.encode(obs, actions)
        return self.decode(obs, mean + log_std.exp() * noise), mean, log_std


class SquashedGaussian(nn.Module):
    """Actor: an MLP to mean and deviation of a Gaussian whose draws go through a tanh."""

    LOG_STD_RANGE = (-20.0, 2.0)

    def __init__(self, observation_size: int, action_size: int, width: int, n_layers: int) -> None:
        """Make the layers."""
        super().__init__()
        self.network = mlp(observation_size, width, n_layers, 2 * action_size)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation (..., A) before the tanh."""
        out: Tensor = self.network(obs)
        mean, log_std = out.float().chunk(2, dim=-1)
        return mean, log_std.clamp(*self.LOG_STD_RANGE)

    def sample_raw(self, obs: Tensor, noise: Tensor) -> Tensor:
        """(..., A) draws before the tanh; gradients reach mean and deviation."""
        mean, log_std = self(obs)
        draws: Tensor = mean + log_std.exp() * noise
        return draws

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """(..., A) actions in [-1, 1] that `noise` (..., A) stands for."""
        return torch.tanh(self.sample_raw(obs, noise))

    def mode(self, obs: Tensor) -> Tensor:
        """(..., A) tanh of the mean."""
        return torch.tanh(self(obs)[0])


def repeat(obs: Tensor, n: int) -> Tensor:
    """(B, O) -> (B, n, O) without a copy: one row for each of n actions."""
    return obs[:, None].expand(-1, n, -1)


def twin_values(estimates: Tensor) -> tuple[Tensor, Tensor]:
    """Pessimistic values (...,) of twins of reward, then twins of cost or violation: (4, ...).

    The smaller of reward and the larger of cost.
    """
    return estimates[:TWINS].amin(0), estimates[TWINS:].amax(0)
