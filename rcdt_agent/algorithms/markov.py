"""`MarkovAlgorithm`: algorithms whose policy acts from one observation, without a history.

A subclass gives a `MarkovPolicy` (its networks and `act`), `setup` and `step`. Policies are built,
restored and asked for actions here, and optimiser steps are made here. Inside, actions lie in
[-1, 1]; `choose_actions` brings them to the action space.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rcdt_agent import distributed, losses
from rcdt_agent._types import Float32Array
from rcdt_agent.action_spaces import ActionSpace, action_width
from rcdt_agent.algorithms.base import OfflineAlgorithm
from rcdt_agent.base_config import BASE_RULES, BaseConfig, Rule, check_fields, preset_config
from rcdt_agent.choices import Choices
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.frontier import Outcomes
from rcdt_agent.data.transitions import TransitionSampler
from rcdt_agent.deploy.policy import Policy
from rcdt_agent.deploy.wrappers import Facts
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.images import is_image
from rcdt_agent.normalizer import Normalizer

MARKOV_RULES: dict[str, Rule] = {
    **BASE_RULES,
    "width": (lambda v, _: v >= 1, ">= 1"),
    "n_layers": (lambda v, _: v >= 2, ">= 2"),
}

ONE_BUDGET_RULES: dict[str, Rule] = {
    **MARKOV_RULES,
    "cost_budget": (lambda v, _: v is None or v >= 0, ">= 0"),
    "discount": (lambda v, _: 0 <= v < 1, "in [0, 1)"),
    "reward_scale cost_scale critic_learning_rate": (lambda v, _: v > 0, "> 0"),
    "n_critics": (lambda v, _: v >= 1, ">= 1"),
    "target_rate": (lambda v, _: 0 < v <= 1, "in (0, 1]"),
}


@dataclass(frozen=True, kw_only=True)
class MarkovConfig(BaseConfig):
    """What algorithms that act from one observation share.

    Sources: P the paper of the algorithm; C the code of its published results; I our inference.
    """

    total_steps: int = 100_000
    """Gradient steps (C)."""
    batch_size: int = 512
    """Transitions of a batch (C)."""
    learning_rate: float = 1e-3
    """Of the policy's Adam (C)."""
    width: int = 256
    """Hidden units (C)."""
    n_layers: int = 3
    """Linear layers (C)."""
    normalize_observations: bool = False
    """Scale observations to mean 0 and deviation 1 (C: no)."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        check_fields(self, MARKOV_RULES)


@dataclass(frozen=True, kw_only=True)
class OneBudgetConfig(MarkovConfig):
    """What actor-critic algorithms that learn for one cost budget share."""

    cost_budget: float | None = None
    """What an episode may cost; needed for training."""
    critic_learning_rate: float = 1e-3
    """Of the critics' Adam (C)."""
    discount: float = 0.99
    """Of rewards and costs (C)."""
    target_rate: float = 0.005
    """Share of the new weights in a soft update of target networks (C)."""
    n_critics: int = 2
    """Networks of an ensemble (C)."""
    reward_scale: float = 0.1
    """Rewards are multiplied by it (C)."""
    cost_scale: float = 1.0
    """Costs and the budget are multiplied by it (C)."""
    as_published: bool = False
    """Do as the code of the published results where it departs from the paper; see the page."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        check_fields(self, ONE_BUDGET_RULES)


class MarkovPolicy(Policy):
    """Observation to action. A subclass makes its networks after `super().__init__`.

    Attributes:
        episode_length: Longest episode.
    """

    def __init__(
        self,
        config: Any,
        normalizer: Normalizer,
        outcomes: Outcomes,
        observation_space: gym.spaces.Box,
        action_space: ActionSpace,
        *,
        episode_length: int,
    ) -> None:
        """Hold what every such policy has; `config` is the algorithm's."""
        super().__init__(normalizer, observation_space, action_space)
        self._outcomes = outcomes
        self.episode_length = episode_length

    @abstractmethod
    def act(self, obs: Tensor, *, generator: torch.Generator, deterministic: bool) -> Tensor:
        """Actions (N, A) in [-1, 1] for observations (N, O) in units of the task.

        Args:
            obs: (N, O).
            generator: For draws; on the CPU.
            deterministic: The most likely action, otherwise a draw.
        """

    @property
    def sizes(self) -> tuple[int, int]:
        """O and A."""
        return self.normalizer.observation_size, self.normalizer.action_low.numel()

    @property
    def outcomes(self) -> Outcomes:
        """Returns and costs of the training episodes."""
        return self._outcomes

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"outcomes": self.outcomes.to_dict(), "episode_length": self.episode_length}


MarkovPolicyT = TypeVar("MarkovPolicyT", bound=MarkovPolicy)
MarkovConfigT = TypeVar("MarkovConfigT", bound=MarkovConfig)


class MarkovAlgorithm(OfflineAlgorithm[MarkovPolicyT, MarkovConfigT]):
    """Builds, restores and asks a `MarkovPolicy`; see the module's docstring.

    Attributes:
        sampler: Of transitions, once `setup` has made it.
    """

    policy_class: ClassVar[type[MarkovPolicy]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    sampler: TransitionSampler

    @classmethod
    def make_config(
        cls, preset: str, variant: str | None = None, **overrides: Any
    ) -> MarkovConfigT:
        """A configuration by the name of a preset; there are no variants."""
        if variant is not None:
            raise InvalidArgumentError(
                f"`variant`: {cls.__name__} has no variants, got {variant!r}."
            )
        config: Any = preset_config(cls.config_class, cls.presets, preset, overrides)
        made: MarkovConfigT = config
        return made

    def imitated(self, dataset: TrajectoryDataset) -> TrajectoryDataset:
        """The trajectories to learn from: all of them."""
        return dataset

    def build_policy(
        self, dataset: TrajectoryDataset, observation: gym.spaces.Box, action: ActionSpace
    ) -> MarkovPolicyT:
        """An untrained policy for the data."""
        normalizer = Normalizer.fit(
            self.imitated(dataset),
            action,
            normalize_observations=self.config.normalize_observations,
        )
        longest = max(int(dataset.lengths.max()), self.task.episode_length if self.task else 0)
        return self._make_policy(normalizer, dataset.outcomes, observation, action, longest)

    def restore_policy(
        self, values: dict[str, Any], observation: gym.spaces.Box, action: ActionSpace
    ) -> MarkovPolicyT:
        """The policy of a checkpoint; weights follow."""
        sizes = gym.spaces.flatdim(observation), action_width(action)
        normalizer = Normalizer(*sizes, choices=Choices.of(action), images=is_image(observation))
        outcomes = Outcomes.from_dict(values["outcomes"])
        longest = int(values["episode_length"])
        if longest < 1:
            raise InvalidArgumentError(f"`episode_length` must be >= 1, got {longest}.")
        return self._make_policy(normalizer, outcomes, observation, action, longest)

    def _make_policy(
        self,
        normalizer: Normalizer,
        outcomes: Outcomes,
        observation: gym.spaces.Box,
        action: ActionSpace,
        episode_length: int,
    ) -> MarkovPolicyT:
        policy: Any = self.policy_class(
            self.config, normalizer, outcomes, observation, action, episode_length=episode_length
        )
        made: MarkovPolicyT = policy
        return made

    @torch.inference_mode()
    def choose_actions(
        self,
        obs: npt.NDArray[Any],
        state: Any,
        *,
        facts: Facts | None,
        episode_start: npt.ArrayLike | None,
        deterministic: bool,
    ) -> tuple[Float32Array, Any]:
        """Actions for observations; `state` is passed through."""
        policy = self.policy
        was_training = policy.training
        policy.eval()
        actions = policy.act(
            torch.from_numpy(obs).to(self.device),
            generator=self.acting_generator,
            deterministic=deterministic,
        )
        policy.train(was_training)
        return policy.normalizer.unscale_actions(actions).cpu().numpy(), state

    # ------------------------------------------------------------ what training steps share

    def make_sampler(self, dataset: TrajectoryDataset, *, only_followed: bool = True) -> None:
        """Draw transitions of the imitated trajectories; see `TransitionSampler`."""
        self.sampler = TransitionSampler(
            self.imitated(dataset),
            batch_size=distributed.local_size(self.config.batch_size),
            generator=self.training.generators["batches"],
            device=self.device,
            only_followed=only_followed,
        )

    def make_optimizer(self, name: str, parameters: Iterator[nn.Parameter], rate: float) -> None:
        """Adam of the given parameters; `policy` is the one whose rate follows the schedule."""
        self.training.optimizers[name] = torch.optim.Adam(list(parameters), lr=rate, fused=True)

    def compiled(self, module: nn.Module) -> Any:
        """The module, compiled if the configuration says so; its weights are shared."""
        return torch.compile(module) if self.config.compile else module

    def noise(self, *shape: int) -> Tensor:
        """Standard normal numbers on the agent's device, the same on every device."""
        generator = self.training.generators["noise"]
        return torch.randn(shape, generator=generator).to(self.device)

    def minimize(self, name: str, loss: Tensor) -> None:
        """One step of an optimiser; gradients that others left are dropped first."""
        optimizer = self.training.optimizers[name]
        if name == "policy":
            optimizer.param_groups[0]["lr"] = self.learning_rate_now()
        optimizer.zero_grad()
        self.training.backward(name, loss)
        self.training.scaler.step(optimizer)


class OneBudgetAlgorithm(MarkovAlgorithm[MarkovPolicyT, MarkovConfigT]):
    """A `MarkovAlgorithm` that learns for the cost budget of its `OneBudgetConfig`."""

    budgets = "one"
    config: Any  # of OneBudgetConfig; a subclass names its own

    def cost_threshold(self, *, normalised: bool = False, finite: bool | None = None) -> float:
        """The budget as `losses.cost_threshold`, in units of the scaled cost.

        Args:
            normalised: As there.
            finite: As there; None: critics stop at terminals only and look beyond a time limit,
                so not, but the code of the published results takes it so.
        """
        config = self.config
        return losses.cost_threshold(
            config.cost_budget * config.cost_scale,
            config.discount,
            self.policy.episode_length,
            normalised=normalised,
            finite=config.as_published if finite is None else finite,
        )


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """Gradients pass through the modules, but their own parameters get none."""
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
