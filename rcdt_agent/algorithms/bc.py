"""Behaviour cloning: BC imitates every trajectory, BC-Safe those within its cost budget.

An MLP from observation to action, trained on squared error; the baselines of the paper's tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import gymnasium as gym
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rcdt_agent._types import Float32Array
from rcdt_agent.algorithms.agent import BudgetScope
from rcdt_agent.algorithms.base import OfflineAlgorithm
from rcdt_agent.algorithms.training import Metrics
from rcdt_agent.base_config import BASE_RULES, BaseConfig, Rule, check_fields, preset_config
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.frontier import Outcomes
from rcdt_agent.data.sampler import TransitionSampler
from rcdt_agent.deploy.policy import Policy
from rcdt_agent.deploy.wrappers import Facts
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.normalizer import Normalizer


@dataclass(frozen=True, kw_only=True)
class BCConfig(BaseConfig):
    """Settings of behaviour cloning (I: the paper gives none; sizes as in C)."""

    total_steps: int = 100_000
    """Gradient steps (C)."""
    batch_size: int = 512
    """Transitions of a batch (C)."""
    learning_rate: float = 1e-3
    """Adam (C)."""
    width: int = 256
    """Hidden units (C)."""
    n_layers: int = 3
    """Linear layers (C)."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        check_fields(self, _RULES)


@dataclass(frozen=True, kw_only=True)
class BCSafeConfig(BCConfig):
    """Settings of BC-Safe."""

    cost_budget: float = 20.0
    """Trajectories that cost more are not imitated (P)."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        check_fields(self, {**_RULES, "cost_budget": (lambda v, _: v >= 0, ">= 0")})


_RULES: dict[str, Rule] = {
    **BASE_RULES,
    "width": (lambda v, _: v >= 1, ">= 1"),
    "n_layers": (lambda v, _: v >= 2, ">= 2"),
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "cpu": {"total_steps": 12_000, "warmup_steps": 200, "final_learning_rate": 0.02},
    "tiny": {
        "total_steps": 2_000,
        "batch_size": 128,
        "width": 64,
        "warmup_steps": 100,
        "final_learning_rate": 0.02,
    },
}
"""Sizes: as published, for two CPU cores in minutes, and for tests."""


class MLPPolicy(Policy):
    """Observation to action: linear layers with ReLU between, and a tanh."""

    def __init__(
        self,
        config: BCConfig,
        normalizer: Normalizer,
        outcomes: Outcomes,
        observation_space: gym.spaces.Box,
        action_space: gym.spaces.Box,
    ) -> None:
        """Make the layers."""
        super().__init__(normalizer, observation_space, action_space)
        self._outcomes = outcomes
        size_o, size_a = normalizer.obs_mean.numel(), normalizer.action_low.numel()
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise([size_o, *[config.width] * (config.n_layers - 1)]):
            layers += [nn.Linear(size_in, size_out), nn.ReLU()]
        self.network = nn.Sequential(*layers, nn.Linear(config.width, size_a), nn.Tanh())

    @property
    def outcomes(self) -> Outcomes:
        """Returns and costs of the training episodes."""
        return self._outcomes

    def forward(self, obs: Tensor) -> Tensor:
        """Actions (..., A) in [-1, 1] for observations (..., O) in units of the task."""
        actions: Tensor = self.network(self.normalizer.obs(obs))
        return actions.float()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"outcomes": self.outcomes.to_dict()}


class BC(OfflineAlgorithm[MLPPolicy, BCConfig]):
    """Imitates the data; knows neither return nor cost."""

    budgets: ClassVar[BudgetScope] = "none"
    config_class = BCConfig

    @classmethod
    def make_config(cls, preset: str, variant: str | None = None, **overrides: Any) -> BCConfig:
        """A configuration by the name of a preset; there are no variants."""
        if variant is not None:
            raise InvalidArgumentError(f"{cls.__name__} has no variants, got {variant!r}.")
        return preset_config(cls.config_class, PRESETS, preset, overrides)

    def imitated(self, dataset: TrajectoryDataset) -> TrajectoryDataset:
        """The trajectories to imitate."""
        return dataset

    def build_policy(
        self, dataset: TrajectoryDataset, observation: gym.spaces.Box, action: gym.spaces.Box
    ) -> MLPPolicy:
        """An untrained policy for the data."""
        normalizer = Normalizer.fit(self.imitated(dataset), action)
        return MLPPolicy(self.config, normalizer, dataset.outcomes, observation, action)

    def restore_policy(
        self, values: dict[str, Any], observation: gym.spaces.Box, action: gym.spaces.Box
    ) -> MLPPolicy:
        """The policy of a checkpoint; weights follow."""
        normalizer = Normalizer(gym.spaces.flatdim(observation), gym.spaces.flatdim(action))
        outcomes = Outcomes.from_dict(values["outcomes"])
        return MLPPolicy(self.config, normalizer, outcomes, observation, action)

    def setup(self, dataset: TrajectoryDataset) -> None:
        """Make sampler and optimiser."""
        self.sampler = TransitionSampler(
            self.imitated(dataset),
            batch_size=self.config.batch_size,
            generator=self.training.generators["batches"],
            device=self.device,
        )
        self.training.optimizers = {
            "policy": torch.optim.Adam(self.policy.parameters(), lr=self.config.learning_rate)
        }
        self._forward = torch.compile(self.policy) if self.config.compile else self.policy

    def step(self) -> Metrics:
        """Squared error of the recorded actions, once."""
        optimizer, scaler = self.training.optimizers["policy"], self.training.scaler
        obs, actions = self.sampler.sample()
        with self.autocast():
            errors = self._forward(obs) - self.policy.normalizer.actions(actions)
            loss = errors.square().mean()
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = self.learning_rate_now()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return {"loss": loss.detach()}

    @torch.inference_mode()
    def choose_actions(
        self,
        obs: Float32Array,
        state: Any,
        *,
        facts: Facts | None,
        episode_start: npt.ArrayLike | None,
        deterministic: bool,
    ) -> tuple[Float32Array, Any]:
        """Actions for observations; `state` is passed through."""
        actions = self.policy(torch.from_numpy(obs).to(self.device))
        return self.policy.normalizer.unscale_actions(actions).cpu().numpy(), state


class BCSafe(BC):
    """Imitates only the trajectories whose cost is within the budget it is trained for."""

    budgets = "one"
    config_class = BCSafeConfig
    config: BCSafeConfig

    def imitated(self, dataset: TrajectoryDataset) -> TrajectoryDataset:
        """The trajectories within the budget."""
        return dataset.filter(max_cost=self.config.cost_budget)
