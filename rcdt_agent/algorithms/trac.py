"""TraC: a policy that tells desirable segments of trajectories from undesirable ones.

Gong, Kumar and Varakantham, Offline Safe Reinforcement Learning Using Trajectory Classification,
AAAI 2025. No critics: first imitation, then a contrast against the frozen imitator.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rcdt_agent import distributed, weighted_losses
from rcdt_agent.action_spaces import ActionSpace
from rcdt_agent.algorithms.markov import (
    MARKOV_RULES,
    MarkovAlgorithm,
    MarkovConfig,
    MarkovPolicy,
)
from rcdt_agent.algorithms.training import Metrics
from rcdt_agent.base_config import Rule, check_fields
from rcdt_agent.critics import target_network
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.segments import (
    SegmentBatch,
    SegmentSampler,
    SegmentTable,
    published_segments,
    trajectory_segments,
)
from rcdt_agent.losses import masked_mean

PUBLISHED_FLOOR = 1e-6
"""Least argument of the logarithm in the published code."""


@dataclass(frozen=True, kw_only=True)
class TraCConfig(MarkovConfig):
    """Settings of TraC (T: its paper and code, Bullet's where suites differ; I: ours)."""

    cost_budget: float | None = None
    """What a safe trajectory costs at most; learning needs it (T)."""
    total_steps: int = 100_000
    """Gradient steps of both phases; MetaDrive 200,000 (T)."""
    batch_size: int = 96
    """Segments of a batch (T)."""
    learning_rate: float = 1e-4
    """Of Adam in imitation (T)."""
    imitation_share: float = 0.3
    """Share of the steps that are imitation (T)."""
    contrast_rate: float = 0.1
    """Learning rate of the contrast, as a share of the imitation's (T)."""
    contrast_warmup: int = 10_000
    """Linear warm-up of the contrast's learning rate, in steps (T)."""
    segment_share: float = 1.0
    """Length of a segment as a share of the longest trajectory; 0.75 PointButton1 (T)."""
    alpha: float = 0.2
    """Temperature of the score; SafetyGym 0.1 (T)."""
    discount: float = 0.99
    """Of the steps of a segment; MetaDrive 1 (T)."""
    eta: float = 0.25
    """Weight of the undesirable segments; SafetyGym 0.5 (T)."""
    desirable_share: float = 0.5
    """Share of the safe trajectories, the best, that are desirable; MetaDrive 0.25 (T)."""
    undesirable_share: float = 0.0
    """Share of the safe trajectories, the worst, that are undesirable; SafetyGym 0.5 (T)."""
    least_weight: float = 0.7
    """Weight of the least desirable of the desirable ones (T)."""
    dropout: float = 0.25
    """Of hidden units (T)."""
    as_published: bool = False
    """Segments labelled by their own steps, and a floored logarithm, as in the code (T)."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        check_fields(self, _RULES)


_RULES: dict[str, Rule] = {
    **MARKOV_RULES,
    "cost_budget": (lambda v, _: v is None or v >= 0, ">= 0"),
    "imitation_share": (lambda v, _: 0 < v < 1, "in (0, 1)"),
    "contrast_rate alpha eta": (lambda v, _: v > 0, "> 0"),
    "contrast_warmup": (lambda v, _: v >= 0, ">= 0"),
    "segment_share desirable_share discount": (lambda v, _: 0 < v <= 1, "in (0, 1]"),
    "undesirable_share": (
        lambda v, c: 0 <= v <= 1 - c.desirable_share,
        "in [0, 1 - desirable_share]",
    ),
    "least_weight": (lambda v, _: 0 <= v <= 1, "in [0, 1]"),
    "dropout": (lambda v, _: 0 <= v < 1, "in [0, 1)"),
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "cpu": {
        "total_steps": 4_000,
        "batch_size": 32,
        "learning_rate": 1e-3,
        "contrast_warmup": 300,
        "segment_share": 0.25,
        "width": 128,
        "normalize_observations": True,
    },
    "tiny": {
        "total_steps": 1_500,
        "batch_size": 32,
        "learning_rate": 1e-3,
        "contrast_warmup": 100,
        "segment_share": 0.5,
        "width": 64,
        "normalize_observations": True,
    },
}
"""Sizes: as published, for two CPU cores in minutes, and for tests."""


class TraCPolicy(MarkovPolicy):
    """Observation to action: linear layers with ReLU and dropout between, and a tanh."""

    def __init__(self, config: TraCConfig, *args: Any, **kwargs: Any) -> None:
        """Make the layers, with orthogonal weights; arguments as for `MarkovPolicy`."""
        super().__init__(config, *args, **kwargs)
        size, size_a = self.sizes
        layers: list[nn.Module] = []
        for _ in range(config.n_layers - 1):
            layers += [_orthogonal(size, config.width), nn.ReLU(), nn.Dropout(config.dropout)]
            size = config.width
        self.network = nn.Sequential(*layers, _orthogonal(size, size_a), nn.Tanh())

    def forward(self, obs: Tensor) -> Tensor:
        """Actions (..., A) in [-1, 1] for observations (..., O) in units of the task."""
        actions: Tensor = self.network(self.normalizer.obs(obs))
        return actions.float()

    def act(self, obs: Tensor, *, generator: torch.Generator, deterministic: bool) -> Tensor:
        """The actions; there is nothing to draw."""
        return self(obs)  # type: ignore[no-any-return]


class TraC(MarkovAlgorithm[TraCPolicy, TraCConfig]):
    """Learns to act as in desirable segments and not as in undesirable ones, for one budget."""

    budgets = "one"
    config_class = TraCConfig
    policy_class = TraCPolicy
    presets = PRESETS

    def build_policy(
        self, dataset: TrajectoryDataset, observation: gym.spaces.Box, action: ActionSpace
    ) -> TraCPolicy:
        """An untrained policy for the data; refuses data without anything desirable."""
        self.segments(dataset)
        return super().build_policy(dataset, observation, action)

    def segments(self, dataset: TrajectoryDataset) -> SegmentTable:
        """The labelled segments to learn from.

        Raises:
            DatasetError: Nothing is safe, or all that is safe returns the same.
        """
        config, cost_budget = self.config, self.config.cost_budget
        assert cost_budget is not None  # checked when the data are given
        length = max(int(config.segment_share * int(dataset.lengths.max())), 1)
        labelling = {
            name: getattr(config, name)
            for name in ("desirable_share", "undesirable_share", "least_weight")
        }
        if config.as_published:
            return published_segments(dataset, length, cost_budget, seed=self.seed, **labelling)
        return trajectory_segments(dataset, length, cost_budget, **labelling)

    def setup(self, dataset: TrajectoryDataset) -> None:
        """Make sampler, reference and optimiser."""
        table = self.segments(dataset)
        if table.labels.all():
            warnings.warn(
                f"{dataset.name}: nothing costs more than the budget {self.config.cost_budget:g}, "
                f"so nothing is undesirable and TraC only imitates the best. Lower `cost_budget` "
                f"or set `undesirable_share`.",
                stacklevel=3,
            )
        self.segment_sampler = SegmentSampler(
            dataset,
            table,
            batch_size=distributed.local_size(self.config.batch_size),
            generator=self.training.generators["batches"],
            device=self.device,
        )
        self.reference = target_network(self.policy).eval()
        self.training.modules = {"reference": self.reference.network}
        self.make_optimizer("policy", self.policy.parameters(), self.config.learning_rate)
        steps = max(round(self.config.imitation_share * self.total_steps), 1)
        self.training.counters = {"imitation_steps": steps}
        self._forward = self.compiled(self.policy)

    def step(self) -> Metrics:
        """One step of imitation, or of the contrast once that is over."""
        contrast_steps = self.num_timesteps - self.training.counters["imitation_steps"]
        if contrast_steps == 0:  # the imitator is the reference, and momentum begins anew
            self.reference.network.load_state_dict(self.policy.network.state_dict())
            self.training.optimizers["policy"].state.clear()
        self.policy.train()
        batch = self.segment_sampler.sample()
        with self.autocast():
            log_prob = self._log_prob(self._forward, batch)
            if contrast_steps < 0:
                share = distributed.step_share(batch.mask)
                loss = -masked_mean(log_prob, batch.mask) * share
                metrics = {"imitation_loss": loss.detach()}
            else:
                loss, metrics = self._contrast(log_prob, batch)
        self.minimize("policy", loss)
        self.training.scaler.update()
        return {"loss": loss.detach(), **metrics}

    def learning_rate_now(self) -> float:
        """The configuration's, times the contrast's share once imitation is over.

        A function given as `learning_rate` is taken as it is in both phases.
        """
        rate = super().learning_rate_now()
        done = self.num_timesteps - self.training.counters["imitation_steps"]
        if done < 0 or self.lr_schedule is not None:
            return rate
        return (
            rate
            * self.config.contrast_rate
            * min(1.0, (done + 1) / max(self.config.contrast_warmup, 1))
        )

    def _contrast(self, log_prob: Tensor, batch: SegmentBatch) -> tuple[Tensor, Metrics]:
        config = self.config
        with torch.no_grad():
            reference = self._log_prob(self.reference, batch)
        scores = weighted_losses.segment_scores(
            log_prob, reference, batch.mask, alpha=config.alpha, discount=config.discount
        )
        loss = weighted_losses.classification_loss(  # its balance is that of the global batch
            distributed.gather_rows(scores),
            distributed.gather_rows(batch.desirable),
            distributed.gather_rows(batch.weights),
            eta=config.eta,
            floor=PUBLISHED_FLOOR if config.as_published else None,
        )
        right = ((scores > 0) == batch.desirable).float().mean()
        return loss, {"contrast_loss": loss.detach(), "accuracy": right}

    def _log_prob(self, policy: Any, batch: SegmentBatch) -> Tensor:
        """(B, T) log-probability up to a constant: minus the squared error of the action."""
        errors = policy(batch.obs) - self.policy.normalizer.actions(batch.actions)
        log_prob: Tensor = -errors.square().sum(-1)
        return log_prob


def _orthogonal(size_in: int, size_out: int) -> nn.Linear:
    layer = nn.Linear(size_in, size_out)
    nn.init.orthogonal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
