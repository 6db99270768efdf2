"""BCQ-Lag: batch-constrained Q-learning with a Lagrangian cost constraint.

A VAE proposes actions like the recorded ones, an actor moves each a little, and the best by
Q - lambda Q_c is taken. Fujimoto et al. 2019; the Lagrangian as in Stooke et al. 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rcdt_agent import baseline_losses
from rcdt_agent.algorithms.lagrangian import (
    LAGRANGIAN_RULES,
    CandidatePolicy,
    LagrangianAlgorithm,
    LagrangianConfig,
)
from rcdt_agent.algorithms.markov import frozen
from rcdt_agent.algorithms.training import Metrics
from rcdt_agent.base_config import check_fields
from rcdt_agent.networks import mlp

LATENT_RANGE = (-0.5, 0.5)
"""Latents of proposals are clipped to it (P)."""


@dataclass(frozen=True, kw_only=True)
class BCQLagConfig(LagrangianConfig):
    """Settings of BCQ-Lag."""

    perturbation: float = 0.05
    """How far the actor may move a proposed action, of [-1, 1] (P)."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        rules = {**LAGRANGIAN_RULES, "perturbation": (lambda v, _: 0 <= v <= 2, "in [0, 2]")}
        check_fields(self, rules)


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "cpu": {
        "total_steps": 5_000,
        "batch_size": 256,
        "width": 64,
        "vae_width": 64,
        "n_critics": 1,
        "target_rate": 0.02,
        "pid": (0.1, 0.001, 0.001),
        "normalize_observations": True,
    },
    "tiny": {
        "total_steps": 2_000,
        "batch_size": 128,
        "width": 32,
        "vae_width": 32,
        "n_critics": 1,
        "discount": 0.95,
        "target_rate": 0.1,
        "pid": (0.1, 0.0005, 0.001),
        "normalize_observations": True,
    },
}
"""Sizes: as published, for a CPU core in minutes, and for tests."""


class Perturbation(nn.Module):
    """Actor: moves an action by at most `reach`, clipped to [-1, 1]."""

    def __init__(
        self, observation_size: int, action_size: int, width: int, n_layers: int, reach: float
    ) -> None:
        """Make the layers, with tanh between."""
        super().__init__()
        self.reach = reach
        self.network = mlp(observation_size + action_size, width, n_layers, action_size, nn.Tanh)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """(..., A) the moved actions."""
        move = torch.tanh(self.network(torch.cat((obs, actions), dim=-1)).float())
        return (actions + self.reach * move).clamp(-1.0, 1.0)


class BCQPolicy(CandidatePolicy):
    """Proposals of the VAE, each moved by the actor.

    Attributes:
        actor: The perturbation.
    """

    def __init__(self, config: BCQLagConfig, *args: Any, **kwargs: Any) -> None:
        """Make the networks; arguments as for `MarkovPolicy`."""
        super().__init__(config, *args, **kwargs)
        self.actor = Perturbation(*self.sizes, config.width, config.n_layers, config.perturbation)

    @property
    def noise_size(self) -> int:
        """Of a latent."""
        return self.vae.latent_size

    def candidates(self, actor: nn.Module, obs: Tensor, noise: Tensor) -> Tensor:
        """(..., A) moved proposals."""
        moved: Tensor = actor(obs, self.vae.decode(obs, noise.clamp(*LATENT_RANGE)))
        return moved

    def published_action(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """(N, A) one random proposal each, even if a deterministic action is asked for."""
        noise = torch.randn((len(obs), self.noise_size), generator=generator)
        return self.candidates(self.actor, obs, noise.to(obs.device))


class BCQLag(LagrangianAlgorithm[BCQPolicy, BCQLagConfig]):
    """Batch-constrained Q-learning for one cost budget; see the module's docstring."""

    config_class = BCQLagConfig
    policy_class = BCQPolicy
    presets = PRESETS
    config: BCQLagConfig

    def actor_step(self, obs: Tensor) -> Metrics:
        """Move proposals towards higher Q - lambda Q_c."""
        policy = self.policy
        with self.autocast(), frozen(policy.vae):
            noise = self.noise(len(obs), policy.noise_size)
            actions = policy.candidates(policy.actor, obs, noise)
            q, cost = self.actor_values(obs, actions)
            loss = baseline_losses.lagrangian_loss(
                q, cost, policy.lagrangian.lmbda, self.cost_threshold()
            )
        self.minimize("policy", loss)
        return {"actor_loss": loss.detach(), "q": q.detach().mean(), "cost": cost.detach().mean()}
