"""The parts of stable-baselines3's algorithm interface that its tools rely on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import gymnasium as gym
from stable_baselines3.common.logger import HumanOutputFormat, Logger
from stable_baselines3.common.utils import configure_logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor, nn

from rcdt_agent import distributed
from rcdt_agent.algorithms.arguments import check_device
from rcdt_agent.algorithms.spaces import check_supported
from rcdt_agent.arguments import check_flags
from rcdt_agent.checkpoint import check_source
from rcdt_agent.deploy.wrappers import OBSERVATION, has_facts
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.observations import FlatObservation, is_nested

Env = gym.Env[Any, Any]

_LONGEST_NAME = 1_000
"""Of a metric: names of costs and budgets are in it."""


class NoEnvironment(gym.Env[Any, Any]):
    """Spaces without an environment: callbacks may look at it, nobody can step it."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        """Take the spaces."""
        self.observation_space = observation_space
        self.action_space = action_space

    def reset(self, **_: Any) -> NoReturn:
        """Refuse."""
        raise InvalidArgumentError("The agent has no environment: give it one with `set_env`.")

    def step(self, _action: Any) -> NoReturn:
        """Refuse."""
        self.reset()


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

    @abstractmethod
    def forget_evaluation(self) -> None:
        """What was measured of the agent no longer holds."""

    @property
    def logger(self) -> Logger:
        """The stable-baselines3 logger; made on first use."""
        return self._logger or self.make_logger(type(self).__name__)

    def make_logger(self, name: str, *, new: bool = True) -> Logger:
        """The logger that was set, or one by `verbose` and `tensorboard_log`; rank 0 alone logs.

        Args:
            name: Of the tensorboard run.
            new: Whether the run gets a folder of its own.
        """
        if not distributed.is_main():
            self._logger = Logger(folder=None, output_formats=[])
        if self._logger is None:
            self.set_logger(
                configure_logger(self.verbose, self.tensorboard_log, name, reset_num_timesteps=new)
            )
        assert self._logger is not None
        return self._logger

    def set_logger(self, logger: Logger) -> None:
        """Log to this logger from now on."""
        if not isinstance(logger, Logger):
            raise InvalidArgumentError(
                f"`logger` must be a logger of stable-baselines3, got {logger!r}."
            )
        for output in logger.output_formats:
            if isinstance(output, HumanOutputFormat):  # refuses two names that it cuts to one
                output.max_length = max(output.max_length, _LONGEST_NAME)
        self._logger = logger

    def get_env(self) -> VecEnv | None:
        """The environment given to the agent, as a stable-baselines3 vector environment.

        Without one it is None, and during `learn` a `NoEnvironment` of the data's spaces, because
        callbacks insist on one.
        """
        return self._env

    @contextmanager
    def env_for_callbacks(self) -> Iterator[None]:
        """Have an environment to show, if only spaces."""
        observation, action = self.observation_space, self.action_space
        if self._env is not None or observation is None or action is None:
            yield
            return
        shown = self._env = _vector(NoEnvironment(observation, action))
        try:
            yield
        finally:
            if self._env is shown:
                self._env = None

    def check_env(self, env: Any) -> None:
        """Refuse what is no environment, such as stable-baselines3's name of a policy."""
        if not isinstance(env, gym.Env | VecEnv):
            raise InvalidArgumentError(
                f"`env` must be an environment, got {env!r}. There is no policy name to give: "
                f"write {type(self).__name__}(env, ...), or {type(self).__name__}.from_dsrl(id) "
                f"for a task of the registry."
            )

    def set_env(self, env: Env | VecEnv) -> None:
        """Give the agent an environment; its spaces must be the data's.

        Raises:
            InvalidArgumentError: Not an environment, or of spaces that are not supported.
        """
        self.check_env(env)
        observation, action = env.observation_space, env.action_space
        if isinstance(observation, gym.spaces.Dict) and has_facts(observation.spaces):
            observation = observation[OBSERVATION]
        check_supported(observation, action)
        self.check_spaces(observation, action)
        self._env = env if isinstance(env, VecEnv) else _vector(env)
        self.observation_space = self.observation_space or observation
        self.action_space = self.action_space or action

    def get_vec_normalize_env(self) -> None:
        """The agent scales by itself, so there is never a `VecNormalize`."""
        return

    def get_parameters(self) -> dict[str, dict[str, Tensor]]:
        """State dicts of the networks by name."""
        return {name: module.state_dict() for name, module in self.named_modules().items()}

    @abstractmethod
    def read_parameters(self, path: Any) -> dict[str, dict[str, Tensor]]:
        """State dicts of a checkpoint by name."""

    def set_parameters(
        self,
        load_path_or_dict: Mapping[str, Mapping[str, Tensor]] | Any,
        exact_match: bool = True,
        device: str = "auto",
    ) -> None:
        """Load weights as `get_parameters` gives them, or those of a checkpoint.

        Args:
            load_path_or_dict: State dicts by name; or the path of a checkpoint, of which the
                networks are taken that this agent has by now.
            exact_match: Whether every network and every weight must be given.
            device: For stable-baselines3's callers; the weights go to the agent's device.

        Raises:
            InvalidArgumentError: A network is missing or unknown, or its weights do not fit.
            CheckpointError: The file is not a checkpoint of this algorithm.
        """
        check_flags(exact_match=exact_match)
        check_device(device)
        modules, given = self.named_modules(), load_path_or_dict
        if not isinstance(given, Mapping):
            check_source("load_path_or_dict", given)
            stored = self.read_parameters(given)
            given = {name: values for name, values in stored.items() if name in modules}
        names = set(given)
        if names - set(modules) or (exact_match and names != set(modules)):
            raise InvalidArgumentError(
                f"`load_path_or_dict` must hold {sorted(modules)}, got {sorted(names)}."
            )
        for name, values in given.items():  # all of them, before any weight is changed
            _check_weights(name, values, modules[name].state_dict(), exact_match)
        self.forget_evaluation()
        for name, values in given.items():
            modules[name].load_state_dict(values, strict=exact_match)


def _vector(env: Env) -> VecEnv:
    """One environment as a vector environment, which takes no Dict within a Dict."""
    return DummyVecEnv([lambda: FlatObservation(env) if is_nested(env.observation_space) else env])


def _check_weights(
    name: str, given: Mapping[str, Tensor], own: Mapping[str, Tensor], exact_match: bool
) -> None:
    shapes = {key: tuple(value.shape) for key, value in own.items()}
    for key in sorted(given.keys() | own.keys() if exact_match else given.keys()):
        shape = tuple(given[key].shape) if key in given else None
        if shape != shapes.get(key):
            raise InvalidArgumentError(
                f"`{name}`: `{key}` must have shape {shapes.get(key)}, got {shape}."
            )
