"""`RCDT`: Return-Cost Regularized Constrained Decision Transformer, Algorithm 1 of the paper."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rcdt_agent import distributed, losses, schedules
from rcdt_agent.action_spaces import ActionSpace
from rcdt_agent.actions import ActionDistribution
from rcdt_agent.algorithms.critic_learning import CHECK_EVERY, CriticLearning, add_terms
from rcdt_agent.algorithms.multipliers import Multipliers
from rcdt_agent.algorithms.training import Metrics
from rcdt_agent.config import Config
from rcdt_agent.critics import update_target
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.sampler import Batch, Relabelling, WindowSampler
from rcdt_agent.data.weights import (
    FrontierWeights,
    normalize_weights,
    outcome_weights,
    trajectory_probabilities,
)
from rcdt_agent.deploy.policy import ConditionedPolicy
from rcdt_agent.model import Window
from rcdt_agent.variants import make_config


class RCDT(CriticLearning):
    """A Decision Transformer conditioned on return-to-go and cost-to-go, with guiding critics.

    Train once on recorded trajectories, then choose the cost budget at deployment.

        agent = RCDT.from_dsrl("OfflineHopperVelocity-v1")
        agent.learn(total_steps=200_000)
        agent.set_cost_budget(20)
        action, state = agent.predict(obs, state)

    All variants of the paper (`rcdt_agent.variants`) are settings of this class.
    """

    @classmethod
    def make_config(cls, preset: str, variant: str | None = None, **overrides: Any) -> Config:
        """A configuration by names of preset and variant."""
        return make_config(preset, variant, **overrides)

    discrete_actions = True
    images = True

    # ------------------------------------------------------------ setup

    def build_policy(
        self, dataset: TrajectoryDataset, observation: gym.spaces.Box, action: ActionSpace
    ) -> ConditionedPolicy:
        """An untrained policy for the data."""
        return ConditionedPolicy.from_data(
            self.config, dataset, self.task, observation_space=observation, action_space=action
        )

    def setup(self, dataset: TrajectoryDataset) -> None:
        """Make sampler, optimisers, target networks and multipliers."""
        config, policy, training = self.config, self.policy, self.training
        probabilities = trajectory_probabilities(dataset, config.sampling, config.cost_ceiling)
        weights = outcome_weights(dataset.outcomes, config, policy.cost_limit)
        frontier = None
        if config.weighting == "frontier":
            frontier = FrontierWeights.from_config(dataset, config, policy.cost_limit)
        self.sampler = WindowSampler(
            dataset,
            context_length=config.context_length,
            batch_size=distributed.local_size(config.batch_size),
            generator=training.generators["batches"],
            sampling=config.sampling,
            cost_ceiling=config.cost_ceiling,
            held_out=self.hold_out(dataset),
            weights=normalize_weights(
                weights, torch.from_numpy(probabilities), config.max_weight, config.weight_floor
            ),
            relabelling=Relabelling(
                slack_fraction=config.relabel_fraction,
                slack=policy.cost_limit.tolist(),
                pareto_fraction=config.pareto_fraction,
                pareto_increase=config.pareto_increase,
            ),
            frontier=frontier,
            sums=self.recorded_sums(dataset),
            device=self.device,
        )
        multipliers = Multipliers(config.initial_temperature, len(policy.cost_signals))
        self.multipliers = multipliers.to(self.device)
        training.modules = {"multipliers": self.multipliers}
        self.online = policy.transformer
        if config.ema_decay:  # the policy holds the average, which acts; this one is trained
            self.online = copy.deepcopy(policy.transformer)
            training.modules["online"] = self.online
        groups: list[dict[str, Any]] = [
            {"params": self.online.parameters()},
            {"params": [self.multipliers.log_temperature], "weight_decay": 0.0},
        ]
        training.optimizers = {
            "policy": torch.optim.AdamW(
                groups,
                lr=config.learning_rate,
                betas=config.adam_betas,
                weight_decay=config.weight_decay,
                fused=True,
            ),
        }
        self.setup_critics()
        self._target_entropy = self.online.head.target_entropy
        features = self.online.features
        self._features = torch.compile(features) if config.compile else features

    # ------------------------------------------------------------ one iteration of Algorithm 1

    def step(self) -> Metrics:
        """Critics, policy, dual ascent, target networks."""
        batch = self.sampler.sample()
        metrics: Metrics = {}
        if self.critics_active:
            metrics = self.critic_step(self._critic_batch(batch))
            if not self.monte_carlo:
                update_target(self.target_critics, self.policy.critics, self.target_rate)
            last = self.num_timesteps == self.total_steps - 1
            if last or self.num_timesteps % CHECK_EVERY == 0:
                metrics |= self.check_critics()
        signals = self.signals_that_act if self.terms_active else ()
        metrics |= self.policy_step(batch, signals=signals)
        if self.config.ema_decay:
            rate = schedules.ema_rate(self.num_timesteps, self.config.ema_decay)
            update_target(self.policy.transformer, self.online, rate)
        self.training.scaler.update()
        return metrics

    def _critic_batch(self, batch: Batch) -> Batch:
        """What critics learn from: of actions that the policy shall not imitate, too."""
        return self.sampler.sample_plain() if self.config.weighting == "frontier" else batch

    def policy_step(self, batch: Batch, *, signals: Collection[str]) -> Metrics:
        """Minimise the policy's objective once, then move lambda.

        A large batch is taken in micro-batches. Each term is a mean over real steps, so that
        gradients and terms add up by the micro-batches' shares of the steps; the one statistic
        that is no such mean, the scale of Q guidance, is computed from the whole batch first.

        Args:
            batch: Windows in units of the task.
            signals: Whose critic terms act: `reward`, `cost` (or `cost_NAME` of several).
        """
        config, optimizer = self.config, self.training.optimizers["policy"]
        if config.dropout or config.attention_dropout:
            self.online.train()
        size = self.micro_batch_size(batch)
        noise = self._noise(batch) if signals else torch.zeros_like(batch.actions)
        draw = torch.rand((), generator=self.training.generators["noise"])
        swap = distributed.from_main(draw) < 0.5
        parts = list(zip(batch.split(size), torch.split(noise, size), strict=True))
        scale = None
        if "reward" in signals and len(parts) > 1:
            scale = self.q_scale(parts, swap)
        parameters = list(self.online.parameters())
        inputs = [*parameters, self.multipliers.log_temperature]
        optimizer.zero_grad()
        n_steps = distributed.total(batch.mask.sum()) / distributed.world_size()
        metrics: Metrics = {}
        for i, (part, part_noise) in enumerate(parts, start=1):
            with self.autocast():
                loss, terms = self.policy_objective(part, part_noise, swap, scale, signals)
            share = part.mask.sum() / n_steps
            # The critics judge; they are not trained by the policy's loss.
            self.training.backward("policy", loss * share, inputs=inputs, last=i == len(parts))
            add_terms(metrics, terms, share)
        self.training.scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        optimizer.param_groups[0]["lr"] = self.learning_rate_now()
        self.training.scaler.step(optimizer)
        for i, signal in enumerate(self.policy.cost_signals):
            estimate, recorded = f"{signal}_estimate", f"{signal}_recorded"
            if estimate in metrics:
                compared = {estimate, recorded} & metrics.keys()
                means = {name: distributed.mean(metrics[name]) for name in sorted(compared)}
                metrics[estimate] = self.dual_step(i, means[estimate], means.get(recorded))
            if config.cost_penalty:
                name = signal.replace("cost", "lambda", 1)
                metrics[name] = self.multipliers.of_cost(i).clone()
        return {
            **metrics,
            "grad_norm": norm,
            "weight_ess": self._weight_ess(batch),
            "temperature": self.multipliers.log_temperature.detach().exp(),
        }

    def _actions_to_judge(self, policy: ActionDistribution, noise: Tensor) -> Tensor:
        """(..., A) the actions that critic terms judge.

        The mean is not clipped: beyond the bounds, too, a critic's gradient shall move it.
        """
        return policy.rsample(noise) if self.config.sampled_actions else policy.mean

    def _weight_ess(self, batch: Batch) -> Tensor:
        if self.config.weighting == "frontier":
            return self.sampler.weight_ess
        return losses.effective_sample_size(batch.weights)

    def policy_objective(
        self,
        batch: Batch,
        noise: Tensor,
        swap: Tensor,
        scale: Tensor | None,
        signals: Collection[str],
    ) -> tuple[Tensor, Metrics]:
        """The policy's loss and its terms, detached.

        Args:
            batch: Windows in units of the task.
            noise: (B, T, A) of the policy's own actions.
            swap: () bool, which twin guides and which one scales.
            scale: () of Q guidance; None: from this batch.
            signals: Whose critic terms act: `reward`, `cost` (or `cost_NAME` of several).
        """
        config, normalizer = self.config, self.policy.normalizer
        window = normalizer.window(batch)
        features = self._features(window)
        policy: ActionDistribution = self.online.head(features)
        log_prob = policy.log_prob(window.actions)
        loss = nll = losses.weighted_nll(log_prob, batch.weights, batch.mask)
        entropy = losses.masked_mean(policy.entropy(), batch.mask)
        terms = {
            "nll": -losses.masked_mean(log_prob.detach(), batch.mask),
            "weighted_nll": nll.detach(),
            "entropy": entropy.detach(),
        }
        temperature = self.multipliers.log_temperature.exp()
        if config.entropy_bonus:
            loss = loss - temperature.detach() * entropy
        if config.cost_head_weight:
            logits = self.online.cost_logits(features, window.actions)
            cost_head_loss = losses.cost_head_loss(logits, batch.costs, batch.mask)
            loss = loss + config.cost_head_weight * cost_head_loss
            terms["cost_head_loss"] = cost_head_loss.detach()
        if signals:
            context = self.policy.critic_context(batch.ctg, batch.timesteps)
            values = self.policy.critics(window.obs, self._actions_to_judge(policy, noise), context)
        if "reward" in signals:
            q_a, q_b = values["reward"].flip(0) if swap else values["reward"]
            if scale is None:
                share = distributed.step_share(batch.mask)
                scale = distributed.mean(losses.q_scale(q_b, batch.mask) * share)
            loss = loss - config.eta * losses.q_guidance(q_a, scale, batch.mask)
            terms["q_policy"] = losses.masked_mean(q_a.detach(), batch.mask)
        penalised = [signal for signal in self.policy.cost_signals if signal in signals]
        recorded = self._recorded_values(window, context) if penalised else {}
        for signal in penalised:
            penalty, cost_terms = self._cost_penalty(batch, signal, values, recorded)
            i = self.policy.cost_signals.index(signal)
            loss = loss + self.multipliers.of_cost(i) * penalty
            terms |= {f"{signal}_{name}": value for name, value in cost_terms.items()}
        terms = {"loss": loss.detach(), **terms}
        if config.entropy_bonus:
            loss = loss + losses.temperature_loss(temperature, entropy, self._target_entropy)
        return loss, terms

    @torch.no_grad()
    def q_scale(self, parts: list[tuple[Batch, Tensor]], swap: Tensor) -> Tensor:
        """The scale of Q guidance over all micro-batches, without gradient."""
        scale = torch.zeros((), device=self.device)
        n_steps = distributed.total(torch.stack([part.mask.sum() for part, _ in parts]).sum())
        for part, noise in parts:
            with self.autocast():
                window = self.policy.normalizer.window(part)
                policy = self.online.head(self._features(window))
                context = self.policy.critic_context(part.ctg, part.timesteps)
                actions = self._actions_to_judge(policy, noise)
                values = self.policy.critics(window.obs, actions, context)
                _, q_b = values["reward"].flip(0) if swap else values["reward"]
            scale += losses.q_scale(q_b, part.mask) * part.mask.sum() / n_steps
        return distributed.total(scale)

    @torch.no_grad()
    def _recorded_values(self, window: Window, context: Tensor | None) -> dict[str, Tensor]:
        """The critics at the recorded actions, where kappa is a share of what they exceed."""
        if self.config.kappa_mode != "data":
            return {}
        values: dict[str, Tensor] = self.policy.critics(window.obs, window.actions, context)
        return values

    def _cost_penalty(
        self, batch: Batch, signal: str, values: dict[str, Tensor], recorded: dict[str, Tensor]
    ) -> tuple[Tensor, Metrics]:
        """What a cost's lambda multiplies, and what dual ascent compares with kappa."""
        config, ctg = self.config, self.by_cost(batch.ctg)[signal]
        costs = losses.pessimistic(values[signal], config.cost_pessimism)
        mean = losses.cost_penalty(costs, batch.mask)
        terms = {"estimate": mean.detach(), "policy": mean.detach()}
        if config.kappa_mode in ("critic", "episode"):
            return mean, terms
        if config.kappa_mode == "token":
            allowed = self.policy.cost_allowance(ctg, batch.timesteps)
            terms["estimate"] = losses.masked_mean(costs.detach() - allowed, batch.mask)
            return losses.cost_excess(costs, allowed, batch.mask), terms
        left = ctg.clamp(min=0.0)
        excess = losses.cost_excess(costs, left, batch.mask)
        of_data = losses.pessimistic(recorded[signal], config.cost_pessimism)
        terms["estimate"] = excess.detach()
        terms["recorded"] = losses.cost_excess(of_data, left, batch.mask)
        return excess / self.policy.critics.unit(signal), terms

    def dual_step(self, i: int, cost_estimate: Tensor, reference: Tensor | None = None) -> Tensor:
        """Move lambda of cost i; returns what was compared with kappa.

        Args:
            i: Which cost.
            cost_estimate: () J_c.
            reference: () the same of recorded actions, for `kappa_mode="data"`.
        """
        config, lmbda = self.config, self.multipliers.of_cost(i)
        kappa = config.kappa
        if config.kappa_mode == "episode":
            cost_estimate = cost_estimate * losses.episode_cost_factor(
                config.cost_discount, self.policy.episode_length
            )
        elif config.kappa_mode == "token":
            kappa = 0.0  # each step's own was taken off already
        elif config.kappa_mode == "data":
            assert reference is not None
            cost_estimate = losses.relative_excess(cost_estimate, reference, config.kappa_share)
            kappa = 0.0
        lmbda.copy_(
            losses.dual_ascent(
                lmbda,
                cost_estimate,
                kappa=kappa,
                step_size=config.lambda_step,
                maximum=config.lambda_max,
            )
        )
        return cost_estimate
