"""The critics' half of Algorithm 1: how Q and C learn, and when they may guide the policy."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from rcdt_agent import distributed, losses, schedules
from rcdt_agent._types import BoolArray, Float32Array
from rcdt_agent.actions import ActionDistribution
from rcdt_agent.algorithms.budgets import BudgetConditioned
from rcdt_agent.algorithms.held_out import critic_errors, held_out_trajectories, trajectory_sums
from rcdt_agent.algorithms.training import Metrics
from rcdt_agent.costs import columns
from rcdt_agent.critics import target_network
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.sampler import Batch

CPU_MICRO_BATCH = 655_360
"""Size of an activation (tokens times width) that a CPU's cache takes: 128 windows of the paper."""

MAX_HELD_OUT = 40
"""Trajectories on which the critics are checked, at most."""

CHECK_EVERY = 100
"""Steps between two checks."""

PATIENCE = 1_000
"""Critic steps after which a critic should be better than a constant."""


def metric(signal: str) -> str:
    """What the metrics of a critic begin with: `q`, `cost`, or `cost_NAME` of several."""
    return "q" if signal == "reward" else signal


class CriticLearning(BudgetConditioned):
    """A budget-conditioned algorithm whose critics learn beside the policy."""

    def hold_out(self, dataset: TrajectoryDataset) -> BoolArray:
        """(M,) bool, the trajectories that critics are not trained on, but checked with."""
        held_out = held_out_trajectories(len(dataset), self.config.held_out_fraction, self.seed)
        rows = np.flatnonzero(held_out)[:MAX_HELD_OUT]
        self._unseen = dataset.select(rows, suffix="held out") if len(rows) else None
        return held_out

    def setup_critics(self) -> None:
        """Make target networks and optimiser."""
        config, training, critics = self.config, self.training, self.policy.critics
        self.target_critics = target_network(critics)
        training.modules["target_critics"] = self.target_critics
        start = round(config.critic_start * self.total_steps)  # of TD critics, and of all terms
        signals = ("reward", *self.policy.cost_signals)
        training.counters = {"critic_start": start, **{f"{name}_acts": 0 for name in signals}}
        if config.uses_critics:
            training.optimizers["critics"] = torch.optim.Adam(
                critics.parameters(), lr=config.critic_learning_rate, fused=True
            )

    @property
    def terms_active(self) -> bool:
        """Whether critic terms and lambda have begun."""
        start = self.training.counters["critic_start"]
        return self.config.uses_critics and self.num_timesteps >= start

    @property
    def critics_active(self) -> bool:
        """Whether critics learn: Monte Carlo critics do not need a policy first."""
        return self.terms_active or (self.config.uses_critics and self.monte_carlo)

    @property
    def monte_carlo(self) -> bool:
        """Whether critics are fitted to recorded sums instead of bootstrapped targets."""
        return self.config.critic_targets == "monte_carlo"

    def recorded_sums(self, dataset: TrajectoryDataset) -> Float32Array | None:
        """(N, 1 + m) what Monte Carlo critics are fitted to: discounted rewards and costs."""
        if not (self.monte_carlo and self.config.uses_critics):
            return None
        config = self.config
        costs = columns(dataset.costs, dataset.cost_names).values()
        signals = [(dataset.rewards, config.discount), *((c, config.cost_discount) for c in costs)]
        sums = [trajectory_sums(dataset, values, discount) for values, discount in signals]
        return np.stack(sums, axis=1).astype(np.float32)

    @property
    def target_rate(self) -> float:
        """Of the target critics: the configuration's, or enough for them to converge."""
        if self.config.target_rate is not None:
            return self.config.target_rate
        n_steps = self.total_steps - self.training.counters["critic_start"]
        return schedules.target_rate(n_steps, max(self.config.discount, self.config.cost_discount))

    @property
    def signals_that_act(self) -> tuple[str, ...]:
        """Signals whose critic has been better than a constant, or all where none is checked."""
        signals, counters = self.policy.critics.signals, self.training.counters
        if self._unseen is None:
            return signals
        return tuple(signal for signal in signals if counters[f"{signal}_acts"])

    def check_critics(self) -> Metrics:
        """Errors of the critics on held-out trajectories; decides which terms act from here on."""
        if self._unseen is None:
            return {}
        metrics: Metrics = {}
        for signal, errors in critic_errors(self.policy, self.config, self._unseen).items():
            acts = bool(distributed.from_main(torch.tensor(errors["error"] < 1.0)))
            self.training.counters[f"{signal}_acts"] = int(acts)
            steps = self.total_steps - self.training.counters["critic_start"]
            if not acts and steps >= PATIENCE and self.num_timesteps == self.total_steps - 1:
                warnings.warn(
                    f"The {signal} critic is no better than a constant (held-out error "
                    f"{errors['error']:.2f} standard deviations): its term does not act.",
                    stacklevel=2,
                )
            for name, value in (("error", errors["error"]), ("acts", float(acts))):
                metrics[f"{metric(signal)}_{name}"] = torch.tensor(value, device=self.device)
        return metrics

    def critic_step(self, batch: Batch) -> Metrics:
        """Fit the critics to their targets once, on every real transition of the windows."""
        optimizer, critics = self.training.optimizers["critics"], self.policy.critics
        parts = batch.split(self.micro_batch_size(batch))
        optimizer.zero_grad()
        n_known = distributed.total(self._known(batch).sum()).clamp(min=1)
        n_known = n_known / distributed.world_size()
        metrics: Metrics = {}
        for i, part in enumerate(parts, start=1):
            with self.autocast():
                next_actions = None if self.monte_carlo else self.next_actions(part)
                loss, terms = self.critic_objective(part, next_actions)
            share = self._known(part).sum() / n_known
            self.training.backward("critics", loss * share, last=i == len(parts))
            add_terms(metrics, terms, share)
        self.training.scaler.unscale_(optimizer)
        norms = critics.clip_grad_norm_(self.config.critic_max_grad_norm)
        metrics |= {f"{metric(signal)}_grad_norm": norm for signal, norm in norms.items()}
        self.training.scaler.step(optimizer)
        return metrics

    def critic_objective(self, batch: Batch, next_actions: Tensor | None) -> tuple[Tensor, Metrics]:
        """The critics' squared errors, in units of each critic, and their terms.

        Args:
            batch: Windows in units of the task.
            next_actions: (B, T, A) the policy's own action after each step; None: targets are the
                recorded sums.
        """
        policy, known = self.policy, self._known(batch)
        obs = policy.normalizer.obs(batch.obs)
        context = policy.critic_context(batch.ctg, batch.timesteps)
        values = policy.critics(obs, policy.normalizer.actions(batch.actions), context)
        targets = {"reward": batch.reward_sums, **self.by_cost(batch.cost_sums)}
        if next_actions is not None:
            targets = self._td_targets(batch, next_actions)
        total, terms = torch.zeros((), device=self.device), {}
        for signal, twins in values.items():
            unit = policy.critics.unit(signal)
            loss = losses.td_loss(twins / unit, targets[signal] / unit, known)
            total = total + loss
            terms[f"{metric(signal)}_loss"] = loss.detach()
            terms[f"{metric(signal)}_data"] = losses.masked_mean(twins.detach()[0], known)
        return total, terms

    @torch.no_grad()
    def _td_targets(self, batch: Batch, next_actions: Tensor) -> dict[str, Tensor]:
        config, policy = self.config, self.policy
        context = policy.critic_context(batch.ctg - batch.costs, batch.timesteps + 1)
        next_obs = policy.normalizer.obs(batch.next_obs)
        next_values = self.target_critics(next_obs, next_actions, context)
        stops = batch.terminals if context is None else batch.ends
        targets, costs = {}, self.by_cost(batch.costs)
        for signal, twins in next_values.items():
            if signal == "reward":
                following = losses.pessimistic(twins, -config.target_pessimism)
                target = losses.td_target(batch.rewards, following, stops, config.discount)
            else:
                # A cost-to-go is never negative; clipping keeps early errors from feeding back.
                following = losses.pessimistic(twins, config.target_pessimism).clamp(min=0.0)
                target = losses.td_target(costs[signal], following, stops, config.cost_discount)
            targets[signal] = target
        return targets

    def by_cost(self, values: Tensor) -> dict[str, Tensor]:
        """Each cost (B, T) of a batch's field, by its signal."""
        return columns(values, self.policy.conditioning.cost_names)

    def _known(self, batch: Batch) -> Tensor:
        """(B, T) bool, steps that critics are trained on."""
        followed = batch.mask if self.policy.finite_critics else batch.next_known
        return followed & ~batch.held_out[:, None]

    @torch.no_grad()
    def next_actions(self, batch: Batch) -> Tensor:
        """(B, T, A) the policy's own sampled action after each step, as networks see it."""
        if self.policy.transformer.training:
            self.policy.transformer.eval()
        policy: ActionDistribution = self.policy.transformer(
            self.policy.normalizer.window(batch.next_window())
        )
        return policy.rsample(self._noise(batch))

    def micro_batch_size(self, batch: Batch) -> int:
        """Windows of one forward and backward pass, by `config.micro_batch_size`."""
        n_windows, n_steps = batch.mask.shape
        size = self.config.micro_batch_size
        if size is None and self.device.type == "cpu":
            size = self.policy.transformer.windows_within(CPU_MICRO_BATCH, n_steps)
        return min(size or n_windows, n_windows)

    def _noise(self, batch: Batch) -> Tensor:
        return ActionDistribution.draw_noise(batch.actions, self.training.generators["noise"])


def add_terms(metrics: Metrics, terms: Metrics, share: Tensor) -> None:
    """Add a micro-batch's terms by its share of the batch's steps."""
    for name, value in terms.items():
        metrics[name] = metrics[name] + share * value if name in metrics else share * value
