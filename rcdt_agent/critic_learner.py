"""The critics' half of Algorithm 1: their TD targets, their step, their slow copies."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rcdt_agent import losses
from rcdt_agent.config import Config
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.sampler import Batch
from rcdt_agent.gradients import Gradients, Terms
from rcdt_agent.networks.critics import TwinCritic, critic_values, soft_update
from rcdt_agent.threads import in_lanes

CRITIC_ROWS = 2_048
"""Steps that go through the critics at a time in training on a CPU."""


class CriticPair:
    """The reward critic (`q`) and the cost critic (`cost`); only those whose terms act learn.

    Attributes:
        reward: Expected return of an action.
        cost: Expected cost of an action.
        reward_target: Slow copy of `reward`, for TD targets.
        cost_target: Slow copy of `cost`.
        optimizer: Of both.
    """

    def __init__(self, dataset: TrajectoryDataset, config: Config, device: torch.device) -> None:
        """Make the networks, in the unit of the data."""
        self.config = config
        self.reward, self.cost = (
            make_critic(dataset, values, discount, config).to(device)
            for values, discount in (
                (dataset.rewards, config.discount),
                (dataset.costs, config.cost_discount),
            )
        )
        self.reward_target, self.cost_target = (
            copy.deepcopy(critic).requires_grad_(False) for critic in (self.reward, self.cost)
        )
        self.optimizer = torch.optim.Adam(
            [*self.reward.parameters(), *self.cost.parameters()],
            lr=config.critic_learning_rate,
            fused=True,
        )

    def values(self, obs: Tensor, actions: Tensor) -> dict[str, Tensor]:
        """Estimates (2, B, T) by name; gradients reach the actions, not the critics."""
        acting = self._acting()
        critics = [critic for critic, _ in acting.values()]
        return dict(zip(acting, critic_values(critics, obs, actions, frozen=True), strict=True))

    def fit(self, batch: Batch, next_actions: Tensor) -> dict[str, Tensor]:
        """One step towards the TD targets on every real transition of the windows.

        Args:
            batch: Windows.
            next_actions: (B, T, A) the policy's own action after each step.

        Returns:
            Metrics.
        """
        acting = self._acting()
        parameters = [p for critic, _ in acting.values() for p in critic.parameters()]
        size = len(batch.mask)
        if batch.mask.device.type == "cpu":
            size = max(1, CRITIC_ROWS // batch.mask.shape[1])
        n_known = batch.next_known.sum().clamp(min=1)

        def differentiate(own: Sequence[tuple[Batch, Tensor]]) -> tuple[Gradients, Terms]:
            grads, sums = Gradients(parameters), Terms()
            for part, actions in own:
                loss, terms = self._objective(part, actions)
                share = part.next_known.sum() / n_known
                grads.add(share * loss)
                sums.add(terms, share)
            return grads, sums

        self.optimizer.zero_grad(set_to_none=True)
        parts = list(zip(batch.split(size), torch.split(next_actions, size), strict=True))
        metrics = Terms()
        for grads, sums in in_lanes(differentiate, parts):
            grads.give()
            metrics.add(sums)
        for name, (critic, _) in acting.items():
            metrics[f"{name}_grad_norm"] = nn.utils.clip_grad_norm_(
                critic.parameters(), self.config.critic_max_grad_norm
            )
        self.optimizer.step()
        return metrics

    def follow(self) -> None:
        """Move the slow copies a little towards the critics."""
        for critic, target in self._acting().values():
            soft_update(target, critic, self.config.target_rate)

    def worse_cost(self, twins: Tensor) -> Tensor:
        """The twin that the configuration believes: (2, ...) -> (...,)."""
        return twins.amax(0) if self.config.cost_reduction == "max" else twins.amin(0)

    def _acting(self) -> dict[str, tuple[TwinCritic, TwinCritic]]:
        """Critic and slow copy of each whose term acts."""
        pairs = {
            "q": (self.reward, self.reward_target, self.config.q_guidance),
            "cost": (self.cost, self.cost_target, self.config.cost_penalty),
        }
        return {name: (critic, target) for name, (critic, target, acts) in pairs.items() if acts}

    def _objective(self, batch: Batch, next_actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and its terms, detached."""
        config, acting = self.config, self._acting()
        critics, targets = zip(*acting.values(), strict=True)
        with torch.no_grad():
            following = critic_values(targets, batch.next_obs, next_actions)
        fitted = critic_values(critics, batch.obs, batch.actions)
        total = torch.zeros((), device=batch.obs.device)
        terms = {}
        for name, critic, values, ahead in zip(acting, critics, fitted, following, strict=True):
            if name == "q":
                target = losses.td_target(
                    batch.rewards, ahead.amin(0), batch.terminals, config.discount
                )
            else:
                # A cost-to-go is never negative; clipping keeps early errors from feeding back.
                ahead = self.worse_cost(ahead).clamp(min=0.0)
                target = losses.td_target(batch.costs, ahead, batch.terminals, config.cost_discount)
            # In the critic's own unit.
            loss = losses.td_loss(values / critic.scale, target / critic.scale, batch.next_known)
            total = total + loss
            terms[f"{name}_loss"] = loss.detach()
            terms[f"{name}_data"] = losses.masked_mean(values.detach()[0], batch.next_known)
        return total, terms


def make_critic(
    dataset: TrajectoryDataset, step_values: Any, discount: float, config: Config
) -> TwinCritic:
    """A critic whose unit is the size of the discounted sums in the data."""
    typical = float(np.abs(step_values).mean()) / (1 - discount)
    return TwinCritic(
        dataset.observation_size,
        dataset.action_size,
        width=config.critic_width,
        n_layers=config.critic_layers,
        scale=max(typical, 1e-3),
    )
