"""What BCQ-Lag and BEAR-Lag share: a VAE, critics of reward and cost, lambda by a PID controller.

The policy proposes candidate actions and takes the one of highest Q - lambda Q_c. Critics judge
that policy: the targets of both take the candidate that it would take.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rcdt_agent import baseline_losses, losses
from rcdt_agent.algorithms.markov import (
    ONE_BUDGET_RULES,
    MarkovPolicy,
    OneBudgetAlgorithm,
    OneBudgetConfig,
    frozen,
)
from rcdt_agent.algorithms.multipliers import PIDLagrangian
from rcdt_agent.algorithms.training import Metrics
from rcdt_agent.base_config import CHANGEABLE, Rule, check_fields
from rcdt_agent.critics import target_network, update_target
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.transitions import Transitions
from rcdt_agent.networks import VAE, CriticEnsemble, repeat

GROUPS = 2  # of networks, for each of reward and cost


@dataclass(frozen=True, kw_only=True)
class LagrangianConfig(OneBudgetConfig):
    """Settings that BCQ-Lag and BEAR-Lag share."""

    n_candidates: int = 10
    """Actions that the policy chooses from (P)."""
    critic_mix: float = 0.75
    """Share of the pessimistic group of critics in a target; the other has the rest (P)."""
    vae_width: int = 400
    """Hidden units of the VAE (C)."""
    vae_learning_rate: float = 1e-3
    """Of the VAE's Adam (C)."""
    vae_beta: float = 0.5
    """Weight of the VAE's KL (C)."""
    pid: tuple[float, float, float] = (0.1, 0.003, 0.001)
    """Proportional, integral and derivative gain of lambda (C)."""
    lambda_max: float = 100.0
    """Cap of lambda; with `as_published` there is none (I)."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        check_fields(self, LAGRANGIAN_RULES)


LAGRANGIAN_RULES: dict[str, Rule] = {
    **ONE_BUDGET_RULES,
    "n_candidates vae_width": (lambda v, _: v >= 1, ">= 1"),
    "critic_mix": (lambda v, _: 0 <= v <= 1, "in [0, 1]"),
    "vae_learning_rate lambda_max": (lambda v, _: v > 0, "> 0"),
    "vae_beta": (lambda v, _: v >= 0, ">= 0"),
    "pid": (lambda v, _: len(v) == 3 and min(v) >= 0, "three numbers >= 0"),
}

ConfigT = TypeVar("ConfigT", bound=LagrangianConfig)


class CandidatePolicy(MarkovPolicy):
    """Proposes actions and takes the best by its critics.

    Attributes:
        vae: Of the recorded actions.
        critics: Q and Q_c, two groups of networks each.
        lagrangian: Lambda.
        draws: (n, Z) the noise of deterministic candidates, drawn once.
        actor: What the subclass makes candidates with.
    """

    actor: nn.Module
    draws: Tensor

    def __init__(self, config: LagrangianConfig, *args: Any, **kwargs: Any) -> None:
        """Make VAE, critics and lambda; arguments as for `MarkovPolicy`."""
        super().__init__(config, *args, **kwargs)
        self.config = config
        size_o, size_a = self.sizes
        self.vae = VAE(size_o, size_a, config.vae_width)
        self.critics = CriticEnsemble(
            2 * GROUPS * config.n_critics, size_o + size_a, config.width, config.n_layers
        )
        maximum = None if config.as_published else config.lambda_max
        self.lagrangian = PIDLagrangian(config.pid, maximum)
        self.register_buffer("draws", torch.randn(config.n_candidates, self.noise_size))

    @property
    @abstractmethod
    def noise_size(self) -> int:
        """Z, random numbers that a candidate is made of."""

    @abstractmethod
    def candidates(self, actor: nn.Module, obs: Tensor, noise: Tensor) -> Tensor:
        """(..., A) actions in [-1, 1] for normalised observations (..., O) and noise (..., Z).

        Args:
            actor: Its own, or the target network of it.
            obs: (..., O).
            noise: (..., Z) standard normal.
        """

    @abstractmethod
    def published_action(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """(N, A) how the code of the published results acts; `obs` is normalised."""

    def split(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Estimates (2 * GROUPS * N, ...) as those of Q and Q_c, (GROUPS, N, ...) each."""
        shape = (2, GROUPS, self.config.n_critics, *values.shape[1:])
        reward, cost = values.view(shape).unbind(0)
        return reward, cost

    def mixed(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """(...,) Q and Q_c as targets and choices see them."""
        reward, cost = self.split(values)
        share, high = self.config.critic_mix, "low" if self.config.as_published else "high"
        q = baseline_losses.mixed_value(reward, share, pessimism="low")
        return q, baseline_losses.mixed_value(cost, share, pessimism=high)  # type: ignore[arg-type]

    def extremes(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """(...,) the least Q, and the largest Q_c (the least with `as_published`)."""
        reward, cost = (part.flatten(0, 1) for part in self.split(values))
        return reward.amin(0), cost.amin(0) if self.config.as_published else cost.amax(0)

    def choose(self, values: tuple[Tensor, Tensor]) -> Tensor:
        """(B, 1) index of the candidate of highest Q - lambda Q_c, both (B, n)."""
        q, cost = values
        return (q - self.lagrangian.lmbda * cost).argmax(1, keepdim=True)

    def act(self, obs: Tensor, *, generator: torch.Generator, deterministic: bool) -> Tensor:
        """The best of the candidates, which are the same each time if deterministic."""
        obs = self.normalizer.obs(obs)
        if self.config.as_published:
            return self.published_action(obs, generator)
        rows, (n, size) = len(obs), self.draws.shape
        noise = self.draws.expand(rows, -1, -1)
        if not deterministic:
            noise = torch.randn((rows, n, size), generator=generator).to(obs.device)
        states = repeat(obs, n)
        actions = self.candidates(self.actor, states, noise)
        best = self.choose(self.mixed(self.critics(states, actions)))
        return actions.take_along_dim(best[..., None], 1)[:, 0]


PolicyT = TypeVar("PolicyT", bound=CandidatePolicy)


class LagrangianAlgorithm(OneBudgetAlgorithm[PolicyT, ConfigT]):
    """Learns VAE, critics and lambda; a subclass says how its actor learns."""

    changeable = (*CHANGEABLE, "critic_learning_rate", "vae_learning_rate", "lambda_max")

    @abstractmethod
    def actor_step(self, obs: Tensor) -> Metrics:
        """Improve the actor once on normalised observations (B, O)."""

    def setup(self, dataset: TrajectoryDataset) -> None:
        """Make sampler, target networks and optimisers."""
        config, policy = self.config, self.policy
        self.make_sampler(dataset)
        self.target_actor = target_network(policy.actor)
        self.target_critics = target_network(policy.critics)
        self.training.modules = {
            "target_actor": self.target_actor,
            "target_critics": self.target_critics,
        }
        self.make_optimizer("policy", policy.actor.parameters(), config.learning_rate)
        self.make_optimizer("critics", policy.critics.parameters(), config.critic_learning_rate)
        self.make_optimizer("vae", policy.vae.parameters(), config.vae_learning_rate)
        self._critics = self.compiled(policy.critics)

    def step(self) -> Metrics:
        """VAE, critics, actor and lambda, target networks, once each."""
        batch, policy = self.sampler.sample_transitions(), self.policy
        obs, actions = policy.normalizer.obs(batch.obs), policy.normalizer.actions(batch.actions)
        metrics = self.vae_step(obs, actions)
        metrics |= self.critic_step(batch, obs, actions)
        metrics |= self.actor_step(obs)
        rate = self.config.target_rate
        update_target(self.target_critics, policy.critics, rate)
        update_target(self.target_actor, policy.actor, rate)
        self.training.scaler.update()
        loss = metrics["vae_loss"] + metrics["q_loss"] + metrics["cost_loss"]
        return {"loss": loss + metrics["actor_loss"], "lambda": policy.lagrangian.lmbda, **metrics}

    def vae_step(self, obs: Tensor, actions: Tensor) -> Metrics:
        """Fit the VAE to the recorded actions (B, A) in [-1, 1]."""
        vae = self.policy.vae
        with self.autocast():
            reconstructed, mean, log_std = vae(obs, actions, self.noise(len(obs), vae.latent_size))
            loss = baseline_losses.vae_loss(
                reconstructed, actions, mean, log_std, self.config.vae_beta
            )
        self.minimize("vae", loss)
        return {"vae_loss": loss.detach()}

    @torch.no_grad()
    def next_values(self, batch: Transitions) -> tuple[Tensor, Tensor]:
        """(B,) Q and Q_c after each step, by the target networks."""
        next_obs = repeat(self.policy.normalizer.obs(batch.next_obs), self.config.n_candidates)
        noise = self.noise(*next_obs.shape[:2], self.policy.noise_size)
        next_actions = self.policy.candidates(self.target_actor, next_obs, noise)
        q, cost = self.policy.mixed(self.target_critics(next_obs, next_actions))  # (B, n) each
        if self.config.as_published:  # each the largest, whichever action has it
            return q.amax(1), cost.amax(1)
        best = self.policy.choose((q, cost))
        # A cost-to-go is never negative; clipping keeps early errors from feeding back.
        return q.gather(1, best)[:, 0], cost.gather(1, best)[:, 0].clamp(min=0.0)

    def critic_step(self, batch: Transitions, obs: Tensor, actions: Tensor) -> Metrics:
        """Fit Q and Q_c to their TD targets, and lambda to what the policy will cost."""
        config = self.config
        with self.autocast():
            next_q, next_cost = self.next_values(batch)
            never = torch.zeros_like(batch.ends)
            stops = (batch.ends, never) if config.as_published else (batch.terminals,) * 2
            rewards, costs = batch.rewards * config.reward_scale, batch.costs * config.cost_scale
            target_q = losses.td_target(rewards, next_q, stops[0], config.discount)
            target_cost = losses.td_target(costs, next_cost, stops[1], config.discount)
            q, cost = self.policy.split(self._critics(obs, actions))
            q_loss = baseline_losses.ensemble_td_loss(q, target_q)
            cost_loss = baseline_losses.ensemble_td_loss(cost, target_cost)
        self.minimize("critics", q_loss + cost_loss)
        if not config.as_published:
            self.policy.lagrangian.update(next_cost.mean() - self.cost_threshold())
        return {
            "q_loss": q_loss.detach(),
            "cost_loss": cost_loss.detach(),
            "q_data": q.detach().mean(),
            "cost_data": cost.detach().mean(),
            "cost_estimate": next_cost.mean(),
        }

    def actor_values(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) Q and Q_c of the actor's own actions; also updates lambda with `as_published`."""
        with frozen(self.policy.critics):
            q, cost = self.policy.extremes(self._critics(obs, actions))
        if self.config.as_published:
            self.policy.lagrangian.update(cost.detach().mean() - self.cost_threshold())
        return q, cost
