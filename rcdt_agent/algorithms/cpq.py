"""CPQ: constraints-penalised Q-learning.

What is unsafe is worth nothing to the reward critic, and actions unlike the data's are made to look
unsafe to the cost critic. Xu et al. 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rcdt_agent import baseline_losses, distributed, losses
from rcdt_agent.algorithms.markov import (
    ONE_BUDGET_RULES,
    MarkovPolicy,
    OneBudgetAlgorithm,
    OneBudgetConfig,
    frozen,
)
from rcdt_agent.algorithms.multipliers import LogMultiplier
from rcdt_agent.algorithms.training import Metrics
from rcdt_agent.base_config import CHANGEABLE, Rule, check_fields
from rcdt_agent.critics import target_network, update_target
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.transitions import Transitions
from rcdt_agent.networks import VAE, CriticEnsemble, SquashedGaussian, repeat


@dataclass(frozen=True, kw_only=True)
class CPQConfig(OneBudgetConfig):
    """Settings of CPQ."""

    learning_rate: float = 1e-4
    """Of the actor's Adam (C)."""
    vae_width: int = 400
    """Hidden units of the VAE (C)."""
    vae_learning_rate: float = 1e-3
    """Of the VAE's Adam (C)."""
    vae_beta: float = 0.5
    """Weight of the VAE's KL (C)."""
    ood_samples: int = 10
    """Actions of the actor in a state among which some are out of distribution (C)."""
    ood_quantile: float = 0.75
    """Of the batch's divergences: actions beyond it are out of distribution (C)."""
    ood_margin: float = 1.5
    """Times the cost threshold: what out-of-distribution actions should cost (C)."""
    alpha_start: float = 1.0
    """That term's multiplier at the beginning (C)."""
    alpha_step: float = 1e-4
    """Step of the multiplier's logarithm (C)."""
    imitation_steps: int = 0
    """First steps, in which the actor imitates the data while the critics begin: a policy that is
    unsafe everywhere has nothing to learn from (I; C: 0)."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        check_fields(self, _RULES)


_RULES: dict[str, Rule] = {
    **ONE_BUDGET_RULES,
    "vae_width ood_samples": (lambda v, _: v >= 1, ">= 1"),
    "vae_learning_rate ood_margin alpha_start alpha_step": (lambda v, _: v > 0, "> 0"),
    "vae_beta imitation_steps": (lambda v, _: v >= 0, ">= 0"),
    "ood_quantile": (lambda v, _: 0 <= v <= 1, "in [0, 1]"),
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "cpu": {
        "total_steps": 6_000,
        "batch_size": 256,
        "learning_rate": 3e-4,
        "width": 96,
        "vae_width": 96,
        "target_rate": 0.02,
        "alpha_start": 0.02,
        "imitation_steps": 1_500,
        "normalize_observations": True,
    },
    "tiny": {
        "total_steps": 2_000,
        "batch_size": 128,
        "learning_rate": 1e-3,
        "width": 32,
        "vae_width": 32,
        "discount": 0.95,
        "target_rate": 0.1,
        "alpha_start": 0.02,
        "imitation_steps": 600,
        "normalize_observations": True,
    },
}
"""Sizes: as published, for a CPU core in minutes, and for tests."""


class GaussianPolicy(MarkovPolicy):
    """A squashed Gaussian actor.

    Attributes:
        actor: The Gaussian.
    """

    def __init__(self, config: OneBudgetConfig, *args: Any, **kwargs: Any) -> None:
        """Make the actor; arguments as for `MarkovPolicy`."""
        super().__init__(config, *args, **kwargs)
        self.actor = SquashedGaussian(*self.sizes, config.width, config.n_layers)

    def act(self, obs: Tensor, *, generator: torch.Generator, deterministic: bool) -> Tensor:
        """Tanh of the mean, or a draw."""
        obs = self.normalizer.obs(obs)
        if deterministic:
            return self.actor.mode(obs)
        noise = torch.randn((len(obs), self.sizes[1]), generator=generator)
        return self.actor.sample(obs, noise.to(obs.device))


class CPQ(OneBudgetAlgorithm[GaussianPolicy, CPQConfig]):
    """Constraints-penalised Q-learning for one cost budget; see the module's docstring."""

    config_class = CPQConfig
    policy_class = GaussianPolicy
    presets = PRESETS
    config: CPQConfig
    changeable = (*CHANGEABLE, "critic_learning_rate", "vae_learning_rate")

    def setup(self, dataset: TrajectoryDataset) -> None:
        """Make sampler, VAE, critics, target networks and optimisers."""
        config, policy = self.config, self.policy
        self.make_sampler(dataset)
        size_o, size_a = policy.sizes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + 1)
            self.vae = VAE(size_o, size_a, config.vae_width).to(self.device)
            self.critics, self.cost_critics = (
                CriticEnsemble(config.n_critics, size_o + size_a, config.width, config.n_layers).to(
                    self.device
                )
                for _ in range(2)
            )
        self.target_critics = target_network(self.critics)
        self.target_cost_critics = target_network(self.cost_critics)
        self.alpha = LogMultiplier(config.alpha_step, start=config.alpha_start).to(self.device)
        self.training.modules = {
            "vae": self.vae,
            "critics": self.critics,
            "cost_critics": self.cost_critics,
            "target_critics": self.target_critics,
            "target_cost_critics": self.target_cost_critics,
            "alpha": self.alpha,
        }
        self.make_optimizer("policy", policy.actor.parameters(), config.learning_rate)
        self.make_optimizer("critics", self.critics.parameters(), config.critic_learning_rate)
        self.make_optimizer(
            "cost_critics", self.cost_critics.parameters(), config.critic_learning_rate
        )
        self.make_optimizer("vae", self.vae.parameters(), config.vae_learning_rate)
        self._actor_forward = self.compiled(policy.actor)
        largest = float(dataset.costs.max()) * config.cost_scale
        self._largest_cost = largest / (1 - config.discount)

    def step(self) -> Metrics:
        """VAE, reward critic, cost critic, actor, target networks, once each."""
        batch, policy = self.sampler.sample_transitions(), self.policy
        obs, actions = policy.normalizer.obs(batch.obs), policy.normalizer.actions(batch.actions)
        metrics = self.vae_step(obs, actions)
        metrics |= self.critic_step(batch, obs, actions)
        imitating = self.num_timesteps < self.config.imitation_steps
        metrics |= self.imitation_step(obs, actions) if imitating else self.actor_step(obs)
        update_target(self.target_critics, self.critics, self.config.target_rate)
        update_target(self.target_cost_critics, self.cost_critics, self.config.target_rate)
        self.training.scaler.update()
        parts = ("vae_loss", "q_loss", "cost_loss", "actor_loss")
        return {"loss": torch.stack([metrics[name] for name in parts]).sum(), **metrics}

    def cost_value(self, estimates: Tensor) -> Tensor:
        """(...,) one cost of estimates (N, ...): the largest, the least with `as_published`."""
        return estimates.amin(0) if self.config.as_published else estimates.amax(0)

    def sample_raw(self, obs: Tensor) -> Tensor:
        """(..., A) the actor's draws before the tanh."""
        mean, log_std = self._actor_forward(obs)
        draws: Tensor = mean + log_std.exp() * self.noise(*mean.shape)
        return draws

    def vae_step(self, obs: Tensor, actions: Tensor) -> Metrics:
        """Fit the VAE to the recorded actions (B, A) in [-1, 1]."""
        with self.autocast():
            noise = self.noise(len(obs), self.vae.latent_size)
            reconstructed, mean, log_std = self.vae(obs, actions, noise)
            loss = baseline_losses.vae_loss(
                reconstructed, actions, mean, log_std, self.config.vae_beta
            )
        self.minimize("vae", loss)
        return {"vae_loss": loss.detach()}

    def critic_step(self, batch: Transitions, obs: Tensor, actions: Tensor) -> Metrics:
        """Fit Q to penalised targets; Q_c to its targets, raised out of distribution."""
        config, threshold = self.config, self.cost_threshold()
        rewards, costs = batch.rewards * config.reward_scale, batch.costs * config.cost_scale
        never = torch.zeros_like(batch.ends)
        stops = (batch.ends, never) if config.as_published else (batch.terminals,) * 2
        with self.autocast(), torch.no_grad():
            next_obs = self.policy.normalizer.obs(batch.next_obs)
            next_actions = torch.tanh(self.sample_raw(next_obs))
            next_cost = self.cost_value(self.target_cost_critics(next_obs, next_actions))
            next_q = baseline_losses.penalised_value(
                self.target_critics(next_obs, next_actions).amin(0), next_cost, threshold
            )
            target_q = losses.td_target(rewards, next_q, stops[0], config.discount)
            if not config.as_published:  # no policy costs less or more: errors do not feed back
                next_cost = next_cost.clamp(0.0, self._largest_cost)
            target_cost = losses.td_target(costs, next_cost, stops[1], config.discount)
        with self.autocast():
            q = self.critics(obs, actions)
            q_loss = baseline_losses.ensemble_td_loss(q, target_q)
            cost = self.cost_critics(obs, actions)
            cost_loss = baseline_losses.ensemble_td_loss(cost, target_cost)
            ood = self.ood_cost(obs)
            missing = config.ood_margin * threshold - ood
        self.minimize("critics", q_loss)
        # Raised only as far as the margin: alpha does not fall to zero.
        raised = missing if config.as_published else missing.clamp(min=0.0)
        self.minimize("cost_critics", cost_loss + self.alpha.value * raised)
        self.alpha.ascend(missing.detach())
        return {
            "q_loss": q_loss.detach(),
            "cost_loss": cost_loss.detach(),
            "q_data": q.detach().mean(),
            "cost_data": cost.detach().mean(),
            "cost_estimate": next_cost.mean(),
            "ood_cost": ood.detach(),
            "alpha": self.alpha.value,
        }

    def ood_cost(self, obs: Tensor) -> Tensor:
        """() mean cost of the actor's actions that are unlike the recorded ones.

        The gradient reaches the cost critic; with `as_published` it does not.
        """
        config = self.config
        states = repeat(obs, config.ood_samples)
        with torch.no_grad():
            raw = self.sample_raw(states)
            drawn = raw if config.as_published else torch.tanh(raw)
            divergence = baseline_losses.gaussian_kl(*self.vae.encode(states, drawn))
            is_ood = distributed.own_rows(
                baseline_losses.out_of_distribution(
                    distributed.gather_rows(divergence), config.ood_quantile
                )
            )
            if config.as_published:
                values = self.cost_value(self.target_cost_critics(states, drawn))
                ood = baseline_losses.ood_cost(values, is_ood, zeros_included=True)
                return distributed.mean(ood)
        # Only what counts is computed: a quarter of the actions.
        values = self.cost_critics(states[is_ood], drawn[is_ood]).mean(0)
        every = torch.ones_like(values, dtype=torch.bool)
        share = distributed.step_share(every) / distributed.world_size()
        return distributed.total(baseline_losses.ood_cost(values, every) * share)

    def imitation_step(self, obs: Tensor, actions: Tensor) -> Metrics:
        """Likelihood of the recorded actions, brought inside the tanh's range."""
        with self.autocast():
            raw = torch.atanh(actions.clamp(-0.99, 0.99))
            loss = -baseline_losses.normal_log_prob(raw, *self._actor_forward(obs)).mean()
        self.minimize("policy", loss)
        return {"actor_loss": loss.detach()}

    def actor_step(self, obs: Tensor) -> Metrics:
        """Towards higher Q where that is safe."""
        with self.autocast(), frozen(self.critics):
            actions = torch.tanh(self.sample_raw(obs))
            with torch.no_grad():
                cost = self.cost_value(self.cost_critics(obs, actions))
            q = self.critics(obs, actions).amin(0)
            loss = -baseline_losses.penalised_value(q, cost, self.cost_threshold()).mean()
        self.minimize("policy", loss)
        safe = (cost <= self.cost_threshold()).float().mean()
        return {
            "actor_loss": loss.detach(),
            "q": q.detach().mean(),
            "cost": cost.mean(),
            "safe_share": safe,
        }
