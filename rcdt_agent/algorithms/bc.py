"""Behaviour cloning: BC imitates every trajectory, BC-Safe those within its cost budget.

An MLP from observation to action, trained on squared error; the baselines of the paper's tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rcdt_agent.actions import Categorical
from rcdt_agent.algorithms.agent import BudgetScope
from rcdt_agent.algorithms.markov import (
    MARKOV_RULES,
    MarkovAlgorithm,
    MarkovConfig,
    MarkovPolicy,
)
from rcdt_agent.algorithms.training import Metrics
from rcdt_agent.base_config import Rule, check_fields
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.encoders import make_encoder
from rcdt_agent.networks import mlp


@dataclass(frozen=True, kw_only=True)
class BCConfig(MarkovConfig):
    """Settings of behaviour cloning (I: the paper gives none; sizes as in C)."""

    image_features: int = 64
    """Numbers that a convolutional encoder makes of an image (I)."""

    normalize_observations: bool = True
    """Scale observations to mean 0 and deviation 1 (I)."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        check_fields(self, _RULES)


_RULES: dict[str, Rule] = {**MARKOV_RULES, "image_features": (lambda v, _: v >= 1, ">= 1")}


@dataclass(frozen=True, kw_only=True)
class BCSafeConfig(BCConfig):
    """Settings of BC-Safe."""

    cost_budget: float = 20.0
    """Trajectories that cost more are not imitated (P)."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        check_fields(self, {**_RULES, "cost_budget": (lambda v, _: v >= 0, ">= 0")})


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


class MLPPolicy(MarkovPolicy):
    """Observation to action: linear layers with ReLU between, and a tanh; discrete: to logits.

    Images go through a convolutional encoder first.
    """

    def __init__(self, config: BCConfig, *args: Any, **kwargs: Any) -> None:
        """Make the layers; arguments as for `MarkovPolicy`."""
        super().__init__(config, *args, **kwargs)
        size_o, size_a = self.sizes
        self.encoder = make_encoder(self.observation_space, config.image_features)
        size_o = self.encoder.n_features if self.encoder else size_o
        self.network = mlp(size_o, config.width, config.n_layers, size_a)
        self.discrete = self.normalizer.choices is not None
        if not self.discrete:
            self.network.append(nn.Tanh())

    def forward(self, obs: Tensor) -> Tensor:
        """Actions in [-1, 1], or logits, (..., A) for observations (..., O) of the task."""
        scaled = self.normalizer.obs(obs)
        actions: Tensor = self.network(self.encoder(scaled) if self.encoder else scaled)
        return actions.float()

    def act(self, obs: Tensor, *, generator: torch.Generator, deterministic: bool) -> Tensor:
        """The actions; of continuous ones there is nothing to draw."""
        if not self.discrete:
            return self(obs)  # type: ignore[no-any-return]
        policy = self.distribution(self(obs))
        return policy.mode() if deterministic else policy.sample(generator)

    def distribution(self, logits: Tensor) -> Categorical:
        """Of discrete actions, by their logits (..., A)."""
        assert self.normalizer.choices is not None
        return Categorical(logits, self.normalizer.choices.counts)


class BC(MarkovAlgorithm[MLPPolicy, BCConfig]):
    """Imitates the data; knows neither return nor cost."""

    budgets: ClassVar[BudgetScope] = "none"
    config_class = BCConfig
    policy_class = MLPPolicy
    presets = PRESETS
    discrete_actions = True
    images = True

    def setup(self, dataset: TrajectoryDataset) -> None:
        """Make sampler and optimiser."""
        self.make_sampler(dataset, only_followed=False)
        self.training.optimizers = {
            "policy": torch.optim.Adam(self.policy.parameters(), lr=self.config.learning_rate)
        }
        self._forward = self.compiled(self.policy)

    def step(self) -> Metrics:
        """Squared error of the recorded actions, or discrete ones' likelihood, once."""
        obs, actions = self.sampler.sample()
        with self.autocast():
            predicted, recorded = self._forward(obs), self.policy.normalizer.actions(actions)
            if self.policy.discrete:
                loss = -self.policy.distribution(predicted).log_prob(recorded).mean()
            else:
                loss = (predicted - recorded).square().mean()
        self.minimize("policy", loss)
        self.training.scaler.update()
        return {"loss": loss.detach()}


class BCSafe(BC):
    """Imitates only the trajectories whose cost is within the budget it is trained for."""

    budgets = "one"
    config_class = BCSafeConfig
    config: BCSafeConfig

    def imitated(self, dataset: TrajectoryDataset) -> TrajectoryDataset:
        """The trajectories within the budget."""
        return dataset.filter(max_cost=self.config.cost_budget)
