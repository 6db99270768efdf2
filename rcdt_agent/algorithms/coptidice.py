"""COptiDICE: offline constrained policy optimisation by stationary distribution correction.

Weights that turn the data's distribution into that of the best policy within the budget are
estimated, with an upper bound of its cost; the policy then imitates with these weights. Lee et al.
2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcdt_agent import baseline_losses, distributed
from rcdt_agent.algorithms.cpq import GaussianPolicy
from rcdt_agent.algorithms.markov import ONE_BUDGET_RULES, OneBudgetAlgorithm, OneBudgetConfig
from rcdt_agent.algorithms.training import Metrics
from rcdt_agent.base_config import CHANGEABLE, Rule, check_fields
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.sums import mean_and_std
from rcdt_agent.data.transitions import Transitions
from rcdt_agent.networks import CriticEnsemble


@dataclass(frozen=True, kw_only=True)
class COptiDICEConfig(OneBudgetConfig):
    """Settings of COptiDICE; there are no target networks."""

    learning_rate: float = 1e-4
    """Of the actor's Adam (C)."""
    critic_learning_rate: float = 1e-4
    """Of nu's and chi's Adam (C)."""
    multiplier_learning_rate: float = 1e-4
    """Of lambda's and tau's Adam (C)."""
    alpha: float = 0.5
    """Weight of the divergence from the data (C)."""
    cost_bound: float = 0.01
    """Epsilon: how far the distribution of the cost's upper bound may be from the data's; 0: the
    plain estimate instead of the bound (C)."""
    noise_scale: float = 0.1
    """Noise on observations and actions that are imitated, in standard deviations (C)."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        check_fields(self, _RULES)


_RULES: dict[str, Rule] = {
    **ONE_BUDGET_RULES,
    "multiplier_learning_rate alpha": (lambda v, _: v > 0, "> 0"),
    "cost_bound noise_scale": (lambda v, _: v >= 0, ">= 0"),
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "cpu": {
        "total_steps": 8_000,
        "batch_size": 256,
        "learning_rate": 1e-3,
        "critic_learning_rate": 1e-3,
        "multiplier_learning_rate": 1e-3,
        "width": 96,
        "normalize_observations": True,
    },
    "tiny": {
        "total_steps": 3_000,
        "batch_size": 256,
        "learning_rate": 1e-3,
        "critic_learning_rate": 1e-3,
        "multiplier_learning_rate": 3e-3,
        "width": 32,
        "normalize_observations": True,
    },
}
"""Sizes: as published, for a CPU core in minutes, and for tests."""


class DicePolicy(GaussianPolicy):
    """A Gaussian over actions in [-1, 1], fitted by likelihood."""

    def __init__(self, config: COptiDICEConfig, *args: Any, **kwargs: Any) -> None:
        """Make the actor; arguments as for `MarkovPolicy`."""
        super().__init__(config, *args, **kwargs)
        self.squashed = config.as_published

    def act(self, obs: Tensor, *, generator: torch.Generator, deterministic: bool) -> Tensor:
        """The mean or a draw, clipped; with `as_published` the tanh of it."""
        mean, log_std = self.actor(self.normalizer.obs(obs))
        if not deterministic:
            mean = mean + log_std.exp() * torch.randn(mean.shape, generator=generator).to(
                mean.device
            )
        return torch.tanh(mean) if self.squashed else mean.clamp(-1.0, 1.0)


class DiceMultipliers(nn.Module):
    """Lambda of the cost and tau of its upper bound: softplus of what is learned."""

    def __init__(self) -> None:
        """Begin with softplus(1) each."""
        super().__init__()
        self.raw_lambda = nn.Parameter(torch.ones(()))
        self.raw_tau = nn.Parameter(torch.ones(()))

    @property
    def lmbda(self) -> Tensor:
        """() multiplier of the cost."""
        return F.softplus(self.raw_lambda)

    @property
    def tau(self) -> Tensor:
        """() temperature of the upper bound."""
        return F.softplus(self.raw_tau)


class COptiDICE(OneBudgetAlgorithm[DicePolicy, COptiDICEConfig]):
    """Distribution correction estimation for one cost budget; see the module's docstring."""

    config_class = COptiDICEConfig
    policy_class = DicePolicy
    presets = PRESETS
    config: COptiDICEConfig
    changeable = (*CHANGEABLE, "critic_learning_rate", "multiplier_learning_rate")

    def setup(self, dataset: TrajectoryDataset) -> None:
        """Make sampler, nu, chi, multipliers and optimisers."""
        config, policy = self.config, self.policy
        self.make_sampler(dataset)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + 1)
            self.nu, self.chi = (
                CriticEnsemble(config.n_critics, policy.sizes[0], config.width, config.n_layers).to(
                    self.device
                )
                for _ in range(2)
            )
        self.multipliers = DiceMultipliers().to(self.device)
        self.training.modules = {"nu": self.nu, "chi": self.chi, "multipliers": self.multipliers}
        self.make_optimizer("policy", policy.actor.parameters(), config.learning_rate)
        self.make_optimizer("nu", self.nu.parameters(), config.critic_learning_rate)
        self.make_optimizer("chi", self.chi.parameters(), config.critic_learning_rate)
        self.make_optimizer(
            "multipliers", self.multipliers.parameters(), config.multiplier_learning_rate
        )
        self._first_share = len(dataset) / dataset.n_transitions
        stds = (mean_and_std(rows)[1] for rows in (dataset.observations, dataset.actions))
        self._noise_obs, self._noise_actions = (
            torch.from_numpy(config.noise_scale * std).float().to(self.device) for std in stds
        )
        self._actor_forward = self.compiled(policy.actor)

    def step(self) -> Metrics:
        """Chi, nu, lambda and tau, actor, once each."""
        batch = self.sampler.sample_transitions()
        normalizer = self.policy.normalizer
        obs, next_obs = normalizer.obs(batch.obs), normalizer.obs(batch.next_obs)
        first = None  # those of the batch
        if not self.config.as_published:
            first = normalizer.obs(self.sampler.sample_initial_obs())
        metrics = self.cost_step(batch, obs, next_obs, first)
        metrics |= self.nu_step(batch, obs, next_obs, first)
        metrics |= self.multiplier_step(metrics["cost_estimate"], metrics["cost_divergence"])
        metrics |= self.actor_step(batch, obs, next_obs)
        self.training.scaler.update()
        loss = metrics["nu_loss"] + metrics["chi_loss"] + metrics["actor_loss"]
        return {"loss": loss, **metrics}

    def _values(
        self, network: nn.Module, batch: Transitions, obs: Tensor, next_obs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(B,) the network's least value before each step, and after it: discounted, 0 at ends.

        A time limit is an end, too: no data lead on from the state after it, so its value would
        not be bounded.
        """
        now, later = network(torch.stack((obs, next_obs))).amin(0)
        return now, self.config.discount * torch.where(batch.ends, 0.0, later)

    def _initial(
        self, network: nn.Module, batch: Transitions, values: Tensor, first: Tensor | None
    ) -> Tensor:
        """(B,) the network at first states; without any, the batch's own, by their frequency."""
        if first is None:
            return values * batch.is_first / self._first_share
        initial: Tensor = network(first).amin(0)
        return initial

    def _advantage(
        self, batch: Transitions, obs: Tensor, next_obs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(B,) e and nu(s)."""
        config = self.config
        nu, next_nu = self._values(self.nu, batch, obs, next_obs)
        rewards, costs = batch.rewards * config.reward_scale, batch.costs * config.cost_scale
        lmbda = self.multipliers.lmbda.detach()
        return baseline_losses.dice_advantage(rewards, costs, nu, next_nu, lmbda), nu

    def _weights(self, batch: Transitions, obs: Tensor, next_obs: Tensor) -> Tensor:
        """(B,) w of the present nu, constants."""
        with torch.no_grad():
            advantage, _ = self._advantage(batch, obs, next_obs)
        return baseline_losses.soft_chi_square_weight(advantage / self.config.alpha)

    def cost_step(
        self, batch: Transitions, obs: Tensor, next_obs: Tensor, first: Tensor | None
    ) -> Metrics:
        """Fit chi to an upper bound of what the weighted data cost a step."""
        config = self.config
        costs = batch.costs * config.cost_scale
        with self.autocast():
            weights = self._weights(batch, obs, next_obs)
            if config.cost_bound:
                chi, next_chi = self._values(self.chi, batch, obs, next_obs)
                ell = baseline_losses.dice_cost_term(
                    self._initial(self.chi, batch, chi, first), weights, costs, chi, next_chi,
                    config.discount,
                )  # fmt: skip
                ell = distributed.gather_rows(ell)  # weights are relative to the global batch
                tilt = baseline_losses.dice_cost_weights(ell, self.multipliers.tau)
                chi_loss = (tilt * ell).mean()
                self.minimize("chi", chi_loss)
            else:
                tilt = weights.new_ones(len(weights) * distributed.world_size())
                chi_loss = torch.zeros_like(weights[0])
            tilt = tilt.detach()
        return {
            "chi_loss": chi_loss.detach(),
            "cost_estimate": (distributed.own_rows(tilt) * weights * costs).mean(),
            "cost_divergence": baseline_losses.dice_divergence(tilt),
        }

    def multiplier_step(self, cost_estimate: Tensor, divergence: Tensor) -> Metrics:
        """Lambda rises where the cost is above the threshold, tau where it is beyond the bound."""
        config, multipliers = self.config, self.multipliers
        threshold = self.cost_threshold(normalised=not config.as_published, finite=True)
        loss = multipliers.lmbda * (threshold - cost_estimate)
        if config.cost_bound:
            loss = loss + multipliers.tau * (config.cost_bound - divergence)
        self.minimize("multipliers", loss)
        return {"lambda": multipliers.lmbda.detach(), "tau": multipliers.tau.detach()}

    def nu_step(
        self, batch: Transitions, obs: Tensor, next_obs: Tensor, first: Tensor | None
    ) -> Metrics:
        """Fit nu, whose advantages are the weights' logarithm."""
        config = self.config
        with self.autocast():
            advantage, nu = self._advantage(batch, obs, next_obs)
            initial = self._initial(self.nu, batch, nu, first)
            loss = baseline_losses.dice_nu_loss(initial, advantage, config.alpha, config.discount)
        self.minimize("nu", loss)
        return {"nu_loss": loss.detach(), "nu": nu.detach().mean()}

    def actor_step(self, batch: Transitions, obs: Tensor, next_obs: Tensor) -> Metrics:
        """Imitate the weighted data, with noise."""
        normalizer = self.policy.normalizer
        noisy_obs = batch.obs + self._noise_obs * self.noise(*batch.obs.shape)
        noisy_actions = batch.actions + self._noise_actions * self.noise(*batch.actions.shape)
        with self.autocast():
            weights = self._weights(batch, obs, next_obs)
            mean, log_std = self._actor_forward(normalizer.obs(noisy_obs))
            log_prob = baseline_losses.normal_log_prob(
                normalizer.actions(noisy_actions), mean, log_std
            )
            loss = -(weights * log_prob).mean()
        self.minimize("policy", loss)
        return {"actor_loss": loss.detach(), "weight": weights.mean()}
