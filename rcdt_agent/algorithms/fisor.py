"""FISOR: the largest feasible region of the data, and a diffusion policy weighted by it.

Zheng et al., Safe Offline Reinforcement Learning with Feasibility-Guided Diffusion Model,
ICLR 2024. It knows no budget: violations are to be avoided altogether.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rcdt_agent import distributed, losses, weighted_losses
from rcdt_agent.action_spaces import ActionSpace
from rcdt_agent.algorithms.markov import (
    MARKOV_RULES,
    MarkovAlgorithm,
    MarkovConfig,
    MarkovPolicy,
)
from rcdt_agent.algorithms.training import Metrics
from rcdt_agent.base_config import Rule, check_fields
from rcdt_agent.critics import TWINS, target_network, update_target
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.transitions import Transitions
from rcdt_agent.diffusion import DiffusionActor, NoiseNetwork, denoising_loss
from rcdt_agent.networks import CriticEnsemble, twin_values

SAFE_VIOLATION = -1.0
"""h of a step that costs nothing."""


@dataclass(frozen=True, kw_only=True)
class FISORConfig(MarkovConfig):
    """Settings of FISOR (F: its paper and code; I: ours)."""

    total_steps: int = 1_000_000
    """Steps, each of `actor_updates` gradient steps of the actor and one of the critics (F)."""
    batch_size: int = 2048
    """Transitions of a step; the actor's updates share them (F)."""
    critic_batch_size: int = 256
    """Transitions of the batch that the critics learn from, at most (F)."""
    actor_updates: int = 2
    """Gradient steps of the actor in a step, each on its own part of the batch (F)."""
    learning_rate: float = 3e-4
    """Of the actor's Adam (F)."""
    final_learning_rate: float = 0.25
    """Share of it at the end; the published cosine is longer than the training (F)."""
    critic_learning_rate: float = 3e-4
    """Of the critics' Adam (F)."""
    discount: float = 0.99
    """Of rewards and violations (F)."""
    target_rate: float = 0.005
    """Share of the new weights in a soft update of target networks (F)."""
    expectile: float = 0.9
    """Of the reward's value: near the best action of the data (F)."""
    violation_expectile: float = 0.9
    """Of the violation's value, reversed: near the action of least violation (F)."""
    violation: float = 25.0
    """h of a step that costs anything; one that costs nothing has -1 (F)."""
    reward_temperature: float = 3.0
    """Of the weights in feasible states (F)."""
    violation_temperature: float = 5.0
    """Of the weights in infeasible states (F)."""
    reward_cap: float = 100.0
    """Largest weight in feasible states (F)."""
    violation_cap: float = 150.0
    """Largest weight in infeasible states (F)."""
    diffusion_steps: int = 5
    """Denoising steps (F)."""
    actor_width: int = 256
    """Of the noise network's residual stream (F)."""
    n_blocks: int = 3
    """Residual blocks of the noise network (F)."""
    dropout: float = 0.1
    """In the residual blocks (F)."""
    ema_rate: float = 0.001
    """Share of the new weights in the moving average that acts (F)."""
    n_candidates: int = 16
    """Actions that are drawn; the one of least violation is taken (F)."""
    as_published: bool = False
    """A time-out ends an episode like a terminal, as in the published code (F)."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        check_fields(self, _RULES)


_RULES: dict[str, Rule] = {
    **MARKOV_RULES,
    "actor_updates": (lambda v, c: 1 <= v <= c.batch_size, "in [1, batch_size]"),
    "critic_learning_rate violation": (lambda v, _: v > 0, "> 0"),
    "reward_temperature violation_temperature": (lambda v, _: v > 0, "> 0"),
    "reward_cap violation_cap": (lambda v, _: v > 0, "> 0"),
    "discount": (lambda v, _: 0 <= v < 1, "in [0, 1)"),
    "target_rate ema_rate": (lambda v, _: 0 < v <= 1, "in (0, 1]"),
    "expectile violation_expectile": (lambda v, _: 0.5 <= v < 1, "in [0.5, 1)"),
    "critic_batch_size diffusion_steps actor_width n_blocks n_candidates": (
        lambda v, _: v >= 1,
        ">= 1",
    ),
    "dropout": (lambda v, _: 0 <= v < 1, "in [0, 1)"),
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "cpu": {
        "total_steps": 5_000,
        "batch_size": 256,
        "actor_updates": 1,
        "learning_rate": 1e-3,
        "final_learning_rate": 0.05,
        "critic_learning_rate": 1e-3,
        "target_rate": 0.01,
        "width": 128,
        "actor_width": 64,
        "n_blocks": 2,
        "ema_rate": 0.005,
        "violation_expectile": 0.98,
        "n_candidates": 4,
        "normalize_observations": True,
    },
    "tiny": {
        "total_steps": 1_500,
        "batch_size": 256,
        "actor_updates": 1,
        "learning_rate": 2e-3,
        "final_learning_rate": 0.05,
        "critic_learning_rate": 2e-3,
        "target_rate": 0.05,
        "width": 64,
        "actor_width": 32,
        "n_blocks": 2,
        "ema_rate": 0.01,
        "violation_expectile": 0.99,
        "n_candidates": 4,
        "normalize_observations": True,
    },
}
"""Sizes: as published, for one CPU core in two minutes, and for tests.

Short trainings on data of mixed quality need a sharper expectile of the violation, or almost every
state counts as infeasible; and fewer candidates, as critics that have not settled rank them badly.
"""


class FISORPolicy(MarkovPolicy):
    """Draws candidate actions by diffusion and takes the one of least violation.

    Attributes:
        actor: Moving average of the trained actor.
        critics: Target networks: twins of Q, then twins of Q_h.
        reward_scale: () unit of rewards in training.
    """

    reward_scale: Tensor

    def __init__(self, config: FISORConfig, *args: Any, **kwargs: Any) -> None:
        """Make the networks; arguments as for `MarkovPolicy`."""
        super().__init__(config, *args, **kwargs)
        network = NoiseNetwork(
            *self.sizes, width=config.actor_width, n_blocks=config.n_blocks, dropout=config.dropout
        )
        self.actor = DiffusionActor(network, config.diffusion_steps)
        self.critics = CriticEnsemble(2 * TWINS, sum(self.sizes), config.width, config.n_layers)
        self.n_candidates = config.n_candidates
        self.register_buffer("reward_scale", torch.ones(()))
        self.requires_grad_(False)  # both are copies of what is trained

    def act(self, obs: Tensor, *, generator: torch.Generator, deterministic: bool) -> Tensor:
        """Actions (N, A); deterministic ones are drawn with the same noise every time."""
        n, size_a, steps = len(obs), self.sizes[1], self.actor.n_steps + 1
        if deterministic:
            source = torch.Generator().manual_seed(0)
            noise = torch.randn(steps, 1, self.n_candidates, size_a, generator=source)
            noise = noise.expand(-1, n, -1, -1)
        else:
            noise = torch.randn(steps, n, self.n_candidates, size_a, generator=generator)
        rows = self.normalizer.obs(obs).repeat_interleave(self.n_candidates, dim=0)
        candidates = self.actor.denoise(rows, noise.flatten(1, 2).to(obs.device))  # (N * C, A)
        _, violations = twin_values(self.critics(rows, candidates))
        least = violations.view(n, -1).argmin(1)
        return candidates.view(n, -1, size_a)[torch.arange(n, device=obs.device), least]


class FISOR(MarkovAlgorithm[FISORPolicy, FISORConfig]):
    """Stays where no violation need follow; earns what it can there. It knows no budget."""

    budgets = "none"
    config_class = FISORConfig
    policy_class = FISORPolicy
    presets = PRESETS

    def build_policy(
        self, dataset: TrajectoryDataset, observation: gym.spaces.Box, action: ActionSpace
    ) -> FISORPolicy:
        """An untrained policy for the data; rewards are scaled to one a step over their range."""
        policy = super().build_policy(dataset, observation, action)
        span = float(np.ptp(dataset.episode_returns)) or 1.0
        policy.reward_scale.fill_(policy.episode_length / span)
        return policy

    def setup(self, dataset: TrajectoryDataset) -> None:
        """Make sampler, networks, target networks and optimisers."""
        config, policy = self.config, self.policy
        self.make_sampler(dataset)
        self.actor = target_network(policy.actor).requires_grad_(True).train()
        self.critics = target_network(policy.critics).requires_grad_(True)
        self.values = CriticEnsemble(2, policy.sizes[0], config.width, config.n_layers)
        self.values.to(self.device)  # V and V_h
        self.training.modules = {
            "actor": self.actor,
            "critics": self.critics,
            "values": self.values,
        }
        self.make_optimizer("policy", self.actor.parameters(), config.learning_rate)
        self.make_optimizer("values", self.values.parameters(), config.critic_learning_rate)
        self.make_optimizer("critics", self.critics.parameters(), config.critic_learning_rate)
        self._predict_noise = self.compiled(self.actor)

    def step(self) -> Metrics:
        """The actor on each part of the batch, then the critics on its beginning."""
        batch = self.sampler.sample_transitions()
        metrics: Metrics = {}
        size = self.sampler.batch_size // self.config.actor_updates
        for i in range(self.config.actor_updates):
            metrics = self._update_actor(_part(batch, i * size, size))
        size = distributed.local_size(self.config.critic_batch_size, "critic_batch_size")
        metrics |= self._update_critics(_part(batch, 0, size))
        names = ("actor_loss", "value_loss", "critic_loss")
        return {"loss": torch.stack([metrics[name] for name in names]).sum(), **metrics}

    def _update_actor(self, batch: Transitions) -> Metrics:
        obs = self.policy.normalizer.obs(batch.obs)
        actions = self.policy.normalizer.actions(batch.actions)
        weights, feasible = self._weights(obs, actions)
        draws = self.training.generators["noise"]
        step = torch.randint(self.actor.n_steps, (len(obs),), generator=draws).to(self.device)
        noise = self.noise(*actions.shape)
        with self.autocast():
            loss = denoising_loss(self._predict_noise(actions, obs, step, noise), noise, weights)
        self.minimize("policy", loss)
        self.training.scaler.update()
        update_target(self.policy.actor, self.actor, self.config.ema_rate)
        return {"actor_loss": loss.detach(), "weight": weights.mean(), "feasible": feasible}

    @torch.no_grad()
    def _weights(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (B,) of recorded actions, and the share of feasible states."""
        config = self.config
        with self.autocast():
            v, v_h = self.values(obs)
            q, q_h = twin_values(self.policy.critics(obs, actions))
        weights = weighted_losses.feasibility_weights(
            q - v,
            q_h,
            v_h,
            temperatures=(config.reward_temperature, config.violation_temperature),
            caps=(config.reward_cap, config.violation_cap),
        )
        return weights, (v_h <= 0).float().mean()

    def _update_critics(self, batch: Transitions) -> Metrics:
        config, policy = self.config, self.policy
        obs, next_obs = policy.normalizer.obs(batch.obs), policy.normalizer.obs(batch.next_obs)
        actions = policy.normalizer.actions(batch.actions)
        rewards = batch.rewards * policy.reward_scale
        violations = torch.where(batch.costs > 0, config.violation, SAFE_VIOLATION)
        ends = batch.ends if config.as_published else batch.terminals
        with self.autocast():
            with torch.no_grad():
                q, q_h = twin_values(policy.critics(obs, actions))
            v, v_h = self.values(obs)
            value_loss = losses.expectile_loss(q - v, config.expectile)
            least = 1 - config.violation_expectile  # reversed: the violation is to be small
            value_loss = value_loss + losses.expectile_loss(q_h - v_h, least)
        self.minimize("values", value_loss)
        with self.autocast():
            with torch.no_grad():
                next_v, next_v_h = self.values(next_obs)
                target = losses.td_target(rewards, next_v, ends, config.discount)
                target_h = weighted_losses.feasibility_target(
                    violations, next_v_h, ends, config.discount
                )
            found = self.critics(obs, actions)
            every = torch.ones_like(ends)
            critic_loss = losses.td_loss(found[:TWINS], target, every)
            critic_loss = critic_loss + losses.td_loss(found[TWINS:], target_h, every)
        self.minimize("critics", critic_loss)
        self.training.scaler.update()
        update_target(policy.critics, self.critics, config.target_rate)
        return {"value_loss": value_loss.detach(), "critic_loss": critic_loss.detach()}


def _part(batch: Transitions, first: int, size: int) -> Transitions:
    """Some rows of a batch."""
    rows = slice(first, first + size)
    return Transitions(**{f.name: getattr(batch, f.name)[rows] for f in fields(batch)})
