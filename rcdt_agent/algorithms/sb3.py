"""The parts of stable-baselines3's algorithm interface that its tools rely on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import configure_logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor, nn

from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.normalizer import check_action_space

Env = gym.Env[Any, Any]


class SB3Interface(ABC):
    """Logger, environment, seed and parameters, as callbacks and helpers expect them."""

    verbose: int
    tensorboard_log: str | None
    seed: int
    observation_space: gym.Space[Any] | None
    action_space: gym.Space[Any] | None
    _env: VecEnv | None = None
    _logger: Logger | None = None

    @abstractmethod
    def named_modules(self) -> dict[str, nn.Module]:
        """The networks by name."""

    @abstractmethod
    def check_spaces(self, observation: gym.Space[Any], action: gym.Space[Any]) -> None:
        """Refuse spaces that are not the data's."""

    @property
    def logger(self) -> Logger:
        """The stable-baselines3 logger; made on first use."""
        return self._logger or self.make_logger(type(self).__name__)

    def make_logger(self, name: str, *, new: bool = True) -> Logger:
        """The logger that was set, or one by `verbose` and `tensorboard_log`.

        Args:
            name: Of the tensorboard run.
            new: Whether the run gets a folder of its own.
        """
        if self._logger is None:
            self._logger = configure_logger(
                self.verbose, self.tensorboard_log, name, reset_num_timesteps=new
            )
        return self._logger

    def set_logger(self, logger: Logger) -> None:
        """Log to this logger from now on."""
        self._logger = logger

    def get_env(self) -> VecEnv | None:
        """The environment given to the agent, as a stable-baselines3 vector environment."""
        return self._env

    def set_env(self, env: Env | VecEnv) -> None:
        """Give the agent an environment; its spaces must be the data's.

        Raises:
            InvalidArgumentError: Not an environment, or of spaces that are not supported.
        """
        if not isinstance(env, gym.Env | VecEnv):
            raise InvalidArgumentError(
                f"`env` must be an environment, got {env!r}. There is no policy name to give: "
                f"write {type(self).__name__}(env, ...), or {type(self).__name__}.from_dsrl(id) "
                f"for a task of the registry."
            )
        vec_env: VecEnv = env if isinstance(env, VecEnv) else DummyVecEnv([lambda: env])
        observation, action = vec_env.observation_space, vec_env.action_space
        if isinstance(observation, gym.spaces.Dict) and "observation" in observation.spaces:
            observation = observation["observation"]
        if not isinstance(observation, gym.spaces.Box):
            raise InvalidArgumentError(
                f"`observation_space` must be a Box, got {observation}. "
                f"`gymnasium.wrappers.FlattenObservation` turns others into one."
            )
        check_action_space(action)
        self.check_spaces(observation, action)
        self._env = vec_env
        self.observation_space = self.observation_space or observation
        self.action_space = self.action_space or action

    def get_vec_normalize_env(self) -> None:
        """The agent scales by itself, so there is never a `VecNormalize`."""
        return

    def get_parameters(self) -> dict[str, dict[str, Tensor]]:
        """State dicts of the networks by name."""
        return {name: module.state_dict() for name, module in self.named_modules().items()}

    def set_parameters(
        self, load_path_or_dict: dict[str, dict[str, Tensor]], exact_match: bool = True
    ) -> None:
        """Load state dicts as `get_parameters` gives them."""
        modules = self.named_modules()
        if exact_match and set(load_path_or_dict) != set(modules):
            raise InvalidArgumentError(
                f"`load_path_or_dict` must hold {sorted(modules)}, got {sorted(load_path_or_dict)}."
            )
        for name, values in load_path_or_dict.items():
            modules[name].load_state_dict(values)
