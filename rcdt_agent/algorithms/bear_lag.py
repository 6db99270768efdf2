"""BEAR-Lag: Q-learning within the support of the data, with a Lagrangian cost constraint.

A squashed Gaussian actor is kept near the VAE's actions by a bound on their maximum mean
discrepancy. Kumar et al. 2019; the Lagrangian as in Stooke et al. 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rcdt_agent import baseline_losses
from rcdt_agent.algorithms.bcq_lag import LATENT_RANGE
from rcdt_agent.algorithms.lagrangian import (
    LAGRANGIAN_RULES,
    CandidatePolicy,
    LagrangianAlgorithm,
    LagrangianConfig,
)
from rcdt_agent.algorithms.multipliers import LogMultiplier
from rcdt_agent.algorithms.training import Metrics
from rcdt_agent.base_config import Rule, check_fields, one_of
from rcdt_agent.baseline_losses import Kernel
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.networks import SquashedGaussian, repeat


@dataclass(frozen=True, kw_only=True)
class BEARLagConfig(LagrangianConfig):
    """Settings of BEAR-Lag."""

    total_steps: int = 300_000
    """Gradient steps (C)."""
    mmd_samples: int = 10
    """Actions of the actor and of the VAE whose discrepancy is taken (C)."""
    mmd_kernel: Kernel = "gaussian"
    """`gaussian` or `laplacian` (C)."""
    mmd_sigma: float = 50.0
    """Width of the kernel (C)."""
    mmd_target: float = 0.05
    """Discrepancy that is allowed (P)."""
    alpha_step: float = 1e-3
    """Step of the logarithm of the constraint's multiplier (C)."""
    imitation_steps: int = 0
    """First steps, in which the actor only keeps the constraints (C: 0)."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        check_fields(self, _RULES)


_RULES: dict[str, Rule] = {
    **LAGRANGIAN_RULES,
    "mmd_samples": (lambda v, _: v >= 1, ">= 1"),
    "mmd_kernel": one_of(Kernel),
    "mmd_sigma alpha_step": (lambda v, _: v > 0, "> 0"),
    "mmd_target imitation_steps": (lambda v, _: v >= 0, ">= 0"),
}

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
        "alpha_step": 1e-2,
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
        "alpha_step": 3e-2,
        "normalize_observations": True,
    },
}
"""Sizes: as published, for a CPU core in minutes, and for tests."""


class BEARPolicy(CandidatePolicy):
    """Draws of a squashed Gaussian.

    Attributes:
        actor: The Gaussian.
    """

    actor: SquashedGaussian

    def __init__(self, config: BEARLagConfig, *args: Any, **kwargs: Any) -> None:
        """Make the networks; arguments as for `MarkovPolicy`."""
        super().__init__(config, *args, **kwargs)
        self.actor = SquashedGaussian(*self.sizes, config.width, config.n_layers)

    @property
    def noise_size(self) -> int:
        """Of an action."""
        return self.sizes[1]

    def candidates(self, actor: nn.Module, obs: Tensor, noise: Tensor) -> Tensor:
        """(..., A) draws."""
        assert isinstance(actor, SquashedGaussian)
        return actor.sample(obs, noise)

    def published_action(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """(N, A) tanh of the mean."""
        return self.actor.mode(obs)


class BEARLag(LagrangianAlgorithm[BEARPolicy, BEARLagConfig]):
    """Q-learning within the data's support for one cost budget; see the module's docstring."""

    config_class = BEARLagConfig
    policy_class = BEARPolicy
    presets = PRESETS
    config: BEARLagConfig

    def setup(self, dataset: TrajectoryDataset) -> None:
        """Besides, the multiplier of the support constraint."""
        super().setup(dataset)
        self.alpha = LogMultiplier(self.config.alpha_step).to(self.device)
        self.training.modules["alpha"] = self.alpha

    def actor_step(self, obs: Tensor) -> Metrics:
        """Towards higher Q - lambda Q_c, and towards the support of the VAE's actions."""
        config, policy = self.config, self.policy
        with self.autocast():
            raw, discrepancy = self._discrepancy(obs)
            q, cost = self.actor_values(obs, torch.tanh(raw[:, 0]))
            lmbda = policy.lagrangian.lmbda
            values = q if self.num_timesteps >= config.imitation_steps else torch.zeros_like(q)
            support = self.alpha.value * (discrepancy.mean() - config.mmd_target)
            loss = (
                baseline_losses.lagrangian_loss(values, cost, lmbda, self.cost_threshold())
                + support
            )
        self.minimize("policy", loss)
        self.alpha.ascend(discrepancy.detach().mean() - config.mmd_target)
        return {
            "actor_loss": loss.detach(),
            "q": q.detach().mean(),
            "cost": cost.detach().mean(),
            "mmd": discrepancy.detach().mean(),
            "alpha": self.alpha.value,
        }

    def _discrepancy(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Draws (B, m, A) of the actor before the tanh, and their MMD (B,) from the VAE's."""
        config, vae = self.config, self.policy.vae
        states = repeat(obs, config.mmd_samples)
        raw = self.policy.actor.sample_raw(
            states, self.noise(*states.shape[:2], self.policy.noise_size)
        )
        latents = self.noise(*states.shape[:2], vae.latent_size).clamp(*LATENT_RANGE)
        with torch.no_grad():
            proposed = vae.decode_raw(states, latents)
        return raw, baseline_losses.mmd(proposed, raw, config.mmd_sigma, config.mmd_kernel)
