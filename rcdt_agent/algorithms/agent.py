"""`Agent`: holds a policy, acts with it, and is evaluated; stable-baselines3's methods."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3.common.vec_env import VecEnv

from rcdt_agent._types import Float32Array
from rcdt_agent.action_spaces import DISCRETE, as_space
from rcdt_agent.algorithms.arguments import (
    LearningRate,
    check_device,
    check_seed,
    scheduled_rate,
)
from rcdt_agent.algorithms.sb3 import Env, SB3Interface
from rcdt_agent.algorithms.spaces import check_same_spaces, check_supported
from rcdt_agent.algorithms.training_state import TrainingState
from rcdt_agent.arguments import check_flags, check_path, check_whole
from rcdt_agent.base_config import AUTO_PRESET, CHANGEABLE, BaseConfig, resolve_preset
from rcdt_agent.costs import ONE_COST, in_order, refuse_several
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.deploy.policy import Policy
from rcdt_agent.deploy.wrappers import Facts, split_facts
from rcdt_agent.errors import DatasetError, InvalidArgumentError
from rcdt_agent.images import is_image
from rcdt_agent.tasks.registry import Task

if TYPE_CHECKING:
    from rcdt_agent.budget_report import BudgetReport
    from rcdt_agent.data.readers import AnyData
    from rcdt_agent.evaluation import Budgets, EnvSource
    from rcdt_agent.offline_report import OfflineReport

PolicyT = TypeVar("PolicyT", bound=Policy)
ConfigT = TypeVar("ConfigT", bound=BaseConfig)
BudgetScope = Literal["any", "one", "none"]


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where an agent's training data come from.

    Attributes:
        fingerprint: Of the data; empty before there are any.
        published: Whether they are DSRL's own file of the task.
        name: Of the file or dataset, without its folder.
    """

    fingerprint: str = ""
    published: bool = False
    name: str = ""


class Agent(SB3Interface, Generic[PolicyT, ConfigT]):
    """Acts with a policy once it has one; `OfflineAlgorithm` adds how the policy is learned.

    Attributes:
        config: Settings.
        task: The task of the registry, if the agent was made for one.
        dataset: Training data, once given.
        num_timesteps: Gradient steps made so far.
        total_steps: Where the present training ends; schedules refer to it.
        preset: Name of the sizes, if they are a preset's.
        lr_schedule: The learning rate as a function of the progress that remains, if it is one.
        training: Optimisers and all else that only training needs.
        provenance: Where the training data come from.
        n_processes: How many trained it last; None before training.
        last_evaluation: What `evaluate` measured last; None once the agent has changed since.
        loaded_from: The file that the agent was loaded from, until it changes.
    """

    config_class: ClassVar[type[BaseConfig]]
    budgets: ClassVar[BudgetScope]
    """Which cost budgets a trained agent serves: any, the one it was trained for, or none."""
    state_class: ClassVar[type | None] = None
    """Of what `predict` returns besides the action; None: anything is passed through."""
    changeable: ClassVar[tuple[str, ...]] = CHANGEABLE
    """Fields of the configuration that `load` can change."""
    discrete_actions: ClassVar[bool] = False
    """Whether it learns discrete actions; otherwise those of a Box only."""
    images: ClassVar[bool] = False
    """Whether it learns from images; otherwise from numbers only."""
    several_costs: ClassVar[bool] = False
    """Whether it learns from data with several costs."""

    @classmethod
    @abstractmethod
    def make_config(cls, preset: str, variant: str | None = None, **overrides: Any) -> ConfigT:
        """A configuration by names."""

    @abstractmethod
    def choose_actions(
        self,
        obs: npt.NDArray[Any],
        state: Any,
        *,
        facts: Facts | None,
        episode_start: npt.ArrayLike | None,
        deterministic: bool,
    ) -> tuple[Float32Array, Any]:
        """Actions (N, A) of the space for observations (N, O), and the state to hand back."""

    def __init__(
        self,
        env: Env | VecEnv | None = None,
        config: ConfigT | None = None,
        *,
        variant: str | None = None,
        preset: str = AUTO_PRESET,
        seed: int | None = None,
        device: str = "auto",
        verbose: int = 0,
        tensorboard_log: str | None = None,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        **overrides: Any,
    ) -> None:
        """Make an untrained agent.

        Args:
            env: Optional; gives the spaces, and serves evaluation callbacks.
            config: Settings; instead of `variant`, `preset` and `overrides`.
            variant: Components, where the algorithm has variants.
            preset: Sizes: `paper`, `cpu` (minutes on two cores), `tiny` (tests), or `auto`:
                `paper` with CUDA, `cpu` without.
            seed: Of weights, batches and noise; None draws one.
            device: `auto`, `cpu`, `cuda`.
            verbose: 1 prints the log.
            tensorboard_log: Folder for tensorboard.
            observation_space: Instead of an environment; default: as the data are.
            action_space: Instead of an environment; default: [-1, 1] per dimension, or, where the
                data's actions are whole numbers, Discrete or MultiDiscrete up to the largest.
            **overrides: Any field of the configuration. `learning_rate` may also be a function of
                the progress that remains, from 1 to 0, as in stable-baselines3.
        """
        if env is not None:
            self.check_env(env)
            if observation_space is not None or action_space is not None:
                raise InvalidArgumentError("Give either `env` or its spaces, not both.")
        check_supported(observation_space, action_space)
        if not isinstance(verbose, bool):
            check_whole("verbose", verbose)
        if tensorboard_log is not None:
            check_path("tensorboard_log", tensorboard_log)
        self.check_actions(action_space)
        self.check_images(observation_space)
        self.device = check_device(device)
        self.lr_schedule: LearningRate | None = None
        self.preset: str | None = None
        self.config: ConfigT = self._chosen_config(config, variant, preset, overrides)
        self._preset_to_tell = preset == AUTO_PRESET and self.preset is not None
        self.seed = check_seed(seed)
        self.verbose = verbose
        self.tensorboard_log = tensorboard_log
        self.task: Task | None = None
        self.dataset: TrajectoryDataset | None = None
        self.observation_space = observation_space
        self.action_space = action_space
        self.num_timesteps = 0
        self.total_steps = self.config.total_steps
        self.training = TrainingState(self.seed, self.config.precision)
        self.provenance = Provenance()
        self.n_processes: int | None = None
        self.last_evaluation: BudgetReport | None = None
        self.loaded_from: Path | None = None
        self.acting_generator = torch.Generator().manual_seed(self.seed + 2)
        self._policy: PolicyT | None = None
        if env is not None:
            self.set_env(env)

    def _chosen_config(
        self, config: ConfigT | None, variant: str | None, preset: str, overrides: dict[str, Any]
    ) -> ConfigT:
        """The settings, given or made by name; notes a preset and a schedule of the rate."""
        if config is None:
            if callable(overrides.get("learning_rate")):
                schedule: LearningRate = overrides.pop("learning_rate")
                scheduled_rate(schedule, 1.0)
                self.lr_schedule = schedule
            self.preset = resolve_preset(preset, self.device.type)
            return self.make_config(self.preset, variant, **overrides)
        if overrides or variant is not None or preset != AUTO_PRESET:
            raise InvalidArgumentError(
                "Give either `config` or `variant`, `preset` and its fields, not both."
            )
        if not isinstance(config, self.config_class):
            raise InvalidArgumentError(
                f"`config` must be a {self.config_class.__name__}, got {config!r}."
            )
        return config

    @property
    def description(self) -> str:
        """Name and sizes, for progress bars."""
        return type(self).__name__ + (f" ({self.preset})" if self.preset else "")

    def adopt(self, policy: PolicyT) -> None:
        """Act with this policy from here on, and train it further."""
        self._policy = policy.to(self.device)
        layout = policy.layout
        self.observation_space = layout.space if layout else policy.observation_space
        self.action_space = policy.action_space

    @property
    def has_policy(self) -> bool:
        """Whether there is a policy, trained or about to be."""
        return self._policy is not None

    @property
    def policy(self) -> PolicyT:
        """What the agent acts with: networks, normaliser, spaces.

        Raises:
            InvalidArgumentError: There is none before the agent has seen data.
        """
        if self._policy is None:
            raise InvalidArgumentError("The agent has not been trained: call `learn` first.")
        return self._policy

    @property
    def cost_names(self) -> tuple[str, ...]:
        """Of the costs that the agent knows; one is called `cost`."""
        return ONE_COST

    def check_costs(self, dataset: TrajectoryDataset) -> None:
        """Refuse data whose costs are not those that the agent can learn from, or knows.

        Raises:
            InvalidArgumentError: There are several, but the algorithm knows one only.
            DatasetError: They are not those of the data that the agent was trained on.
        """
        if not self.several_costs:
            refuse_several(dataset.cost_names, type(self).__name__)
        if self.has_policy and self.cost_names != dataset.cost_names:
            raise DatasetError(
                f"{dataset.name}: its costs are {', '.join(dataset.cost_names)}, but the agent's "
                f"are {', '.join(self.cost_names)}."
            )

    def check_actions(self, action: gym.Space[Any] | None) -> None:
        """Refuse discrete actions where the algorithm has no such policy; None is not known yet.

        Raises:
            InvalidArgumentError: Names the algorithm and those that have one.
        """
        if isinstance(action, DISCRETE) and not self.discrete_actions:
            raise InvalidArgumentError(
                f"`action_space`: {type(self).__name__} has continuous actions only (a Box), got "
                f"{action}. RCDT, BC and BCSafe have discrete ones."
            )

    def check_images(self, observation: gym.Space[Any] | None) -> None:
        """Refuse images where the algorithm has no encoder of them; None is not known yet.

        Raises:
            InvalidArgumentError: Names the algorithm and those that have one.
        """
        if observation is not None and is_image(observation) and not self.images:
            raise InvalidArgumentError(
                f"`observation_space`: {type(self).__name__} does not learn from images, got "
                f"{observation}. RCDT, BC and BCSafe do."
            )

    def check_spaces(self, observation: gym.Space[Any], action: gym.Space[Any]) -> None:
        """Refuse spaces that are not the agent's: of another size, or other discrete actions."""
        self.check_actions(action)
        self.check_images(observation)
        if self._policy is not None:
            check_same_spaces(observation, action, self._policy)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: npt.ArrayLike | None = None,
        deterministic: bool = True,
    ) -> tuple[Float32Array, Any]:
        """The action for one environment or many, and the state to hand back next time.

        Args:
            observation: Plain, or with tokens from an environment wrapped by `wrap`; one, or a
                batch with a leading axis.
            state: What the last call returned; None begins new episodes.
            episode_start: (N,) bool, which environments begin a new episode.
            deterministic: The most likely action; otherwise one sampled from the policy.

        Raises:
            InvalidArgumentError: The observation has the wrong shape or is not finite, or the
                state is none.
        """
        policy = self.policy
        check_flags(deterministic=deterministic)
        if not self.num_timesteps:
            raise InvalidArgumentError("The agent has not been trained: call `learn` first.")
        if self.state_class and state is not None and not isinstance(state, self.state_class):
            raise InvalidArgumentError(
                f"`state` must be what the last `predict` returned, or None, got {state!r}."
            )
        plain, facts = split_facts(observation, self.cost_names, policy.layout)
        if np.size(plain) == 0:
            raise InvalidArgumentError(
                f"`observation` must hold at least one observation, got shape {np.shape(plain)}."
            )
        rows, single = policy.observation_rows(plain)
        actions, state = self.choose_actions(
            rows, state, facts=facts, episode_start=episode_start, deterministic=deterministic
        )
        actions = as_space(actions, policy.action_space)
        return (actions[0] if single else actions), state

    def set_cost_budget(self, k: Any, target_return: Any = "auto") -> None:
        """Refuse another budget than the one that the agent was made for.

        Args:
            k: The budget, >= 0.
            target_return: As for algorithms that serve any budget.

        Raises:
            InvalidArgumentError: The algorithm serves one cost budget or none; the message says
                what would help.
        """
        name, own = type(self).__name__, getattr(self.config, "cost_budget", None)
        if self.budgets == "one" and own is not None and k == own:
            return
        fixed = "no cost budget" if own is None else f"the cost budget {own:g} only"
        raise InvalidArgumentError(
            f"`set_cost_budget`: {name} serves {fixed}, got {k!r}. "
            f"RCDT and CAPS (`budgets = \"any\"`) serve every budget with one model"
            + (f"; of {name}, train one model a budget: {name}(cost_budget={k!r})."
               if self.budgets == "one" else ".")
        )  # fmt: skip

    def begin(
        self,
        n_envs: int = 1,
        *,
        cost_budget: Any = None,
        target_return: npt.ArrayLike | None = None,
    ) -> Any:
        """The state of episodes about to start; None of an algorithm that keeps none.

        Raises:
            InvalidArgumentError: A cost budget is given that the algorithm does not serve.
        """
        if isinstance(cost_budget, Mapping):
            in_order("`cost_budget`", cost_budget, ONE_COST)
        for budget in () if cost_budget is None else np.unique(np.asarray(cost_budget, float)):
            self.set_cost_budget(float(budget))
        return None

    def resolve_target(self, cost_budget: Any, target_return: Any = "auto") -> float | None:
        """The return that an episode at this budget is asked for; None if it is not asked."""
        return None

    def evaluate(
        self,
        env: EnvSource = None,
        budgets: Budgets = None,
        n_episodes: int = 20,
        seed: int = 0,
        **kwargs: Any,
    ) -> BudgetReport:
        """Roll out at every budget; see `evaluate_budgets`."""
        from rcdt_agent.evaluation import evaluate_budgets

        report = evaluate_budgets(self, env, budgets, n_episodes=n_episodes, seed=seed, **kwargs)
        self.last_evaluation = report
        return report

    def forget_evaluation(self) -> None:
        """The agent is about to change: what was measured of it no longer holds."""
        self.last_evaluation = self.loaded_from = None

    def evaluate_offline(
        self, dataset: AnyData, budgets: Budgets = None, *, seed: int = 0, **kwargs: Any
    ) -> OfflineReport:
        """Estimate return and costs from logged data; see `rcdt_agent.offline_evaluation`."""
        from rcdt_agent.offline_evaluation import evaluate_offline

        return evaluate_offline(self, dataset, budgets, seed=seed, **kwargs)
