"""The environments of an evaluation: made from whatever names them, each episode with its seed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from stable_baselines3.common.vec_env import VecEnv

from rcdt_agent.costs import ONE_COST
from rcdt_agent.deploy.wrappers import OBSERVATION, has_facts
from rcdt_agent.env_step import CostFunction, CostKey, kept_for, read_step
from rcdt_agent.errors import InvalidArgumentError, UnknownTaskError
from rcdt_agent.observations import ObservationLayout
from rcdt_agent.tasks.registry import PARALLEL_ENVS, get_task
from rcdt_agent.tasks.simulators import make_env

if TYPE_CHECKING:
    from rcdt_agent.algorithms.agent import Agent

Env = gym.Env[Any, Any]
EnvSource = str | Env | Callable[[], Env] | None

_DEFAULT_N_ENVS = 16

NO_ENVIRONMENT = (
    "`env` must be given for an agent without a task: an environment or its id, on the command "
    "line `--env my_package:Name-v0`."
)
"""Where a roll-out is asked for and nothing says in what."""


class SeededEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Resets with the next seed of a list, however the vector environment resets.

    An agent's wrapper within is looked through: an evaluation counts rewards and costs itself.
    Observations other than arrays become flat rows, which every vector environment takes.
    """

    def __init__(
        self,
        env: Env,
        seeds: Sequence[int],
        cost_key: CostKey = "cost",
        cost_fn: CostFunction | None = None,
        cost_names: Sequence[str] = ONE_COST,
    ) -> None:
        """Use up `seeds`, one per reset; afterwards resets are not seeded."""
        super().__init__(env)
        space = env.observation_space
        self._wrapped = isinstance(space, gym.spaces.Dict) and has_facts(space.spaces)
        if self._wrapped:
            space = self.observation_space = space[OBSERVATION]  # type: ignore[index]
        self._layout = ObservationLayout.of(space)
        if self._layout is not None:
            self.observation_space = self._layout.flat_space
        self._seeds = list(seeds)
        self._cost_key, self._cost_fn, self._cost_names = cost_key, cost_fn, cost_names
        self._obs: Any = None
        self._before: Any = None

    @classmethod
    def around(
        cls,
        make: Callable[[], Env],
        seeds: Sequence[int],
        cost_key: CostKey = "cost",
        cost_fn: CostFunction | None = None,
        cost_names: Sequence[str] = ONE_COST,
    ) -> SeededEpisodes:
        """Wrap the environment that `make` makes.

        Raises:
            InvalidArgumentError: It is not one Gymnasium environment.
        """
        env = make()
        if not isinstance(env, gym.Env) or isinstance(env, gym.vector.VectorEnv):
            raise InvalidArgumentError(
                f"`env` must make one Gymnasium environment, got {type(env).__name__}."
            )
        return cls(env, seeds, cost_key, cost_fn, cost_names)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset with the next seed of the list, whatever the caller's."""
        own = self._seeds.pop(0) if self._seeds else None
        obs, info = self.env.reset(seed=own, options=options)
        self._obs = self._plain(obs)
        self._before = kept_for(self._cost_fn, self._obs)
        return self._row(), info

    def step(self, action: Any) -> Any:
        """Five values, the cost in `info`."""
        obs, *outcome = self.env.step(action)
        self._obs, reward, _, terminated, truncated, info = read_step(
            (self._plain(obs), *outcome),
            cost_key=self._cost_key,
            cost_fn=self._cost_fn,
            before=self._before,
            action=action,
            cost_names=self._cost_names,
        )
        self._before = kept_for(self._cost_fn, self._obs)
        return self._row(), reward, terminated, truncated, info

    def _row(self) -> Any:
        return self._obs if self._layout is None else self._layout.row(self._obs)

    def _plain(self, observation: Any) -> Any:
        return observation[OBSERVATION] if self._wrapped else observation


def is_registered(env: str) -> bool:
    """Whether Gymnasium knows an id; a module before a colon (`my_package:Name-v0`) is imported.

    Raises:
        InvalidArgumentError: The module cannot be found.
    """
    module, colon, name = env.partition(":")
    if not (module and colon):
        return env in gym.registry
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidArgumentError(
            f"`env` names the module {module!r}, which cannot be imported ({error}), got {env!r}. "
            f"Install it, or go to its folder and say `python -m rcdt_agent` in place of `rcdt`."
        ) from error
    return name in gym.registry


def check_space(agent: Agent[Any, Any], space: gym.Space[Any], name: str) -> None:
    """Refuse rows of numbers of another size than the agent's.

    Raises:
        InvalidArgumentError: With both sizes.
    """
    own = agent.observation_space
    if not (isinstance(own, gym.spaces.Box) and isinstance(space, gym.spaces.Box)):
        return
    if len(own.shape) == len(space.shape) == 1 and own.shape != space.shape:
        raise InvalidArgumentError(
            f"`env` must have observations of size {own.shape[0]}, as the agent's data have, got "
            f"{name} with {space.shape[0]}."
        )


def env_maker(agent: Agent[Any, Any], env: EnvSource) -> tuple[Callable[[], Env], str, int]:
    """A function that makes the environment, its name, and how many to make in one process."""
    if env is None:
        if agent.task is None:
            raise InvalidArgumentError(NO_ENVIRONMENT)
        env = agent.task.id
    if isinstance(env, str):
        try:
            task = get_task(env)
            return partial(make_env, task.id), task.id, PARALLEL_ENVS[task.suite]
        except UnknownTaskError as error:
            if not is_registered(env):
                raise UnknownTaskError(
                    f"{error} An environment of your own has to be registered with Gymnasium "
                    f"first, or be given as a function that makes one."
                ) from error
            return partial(gym.make, env), env, _DEFAULT_N_ENVS
    if isinstance(env, VecEnv | gym.vector.VectorEnv):
        raise InvalidArgumentError(
            f"`env` must be an id, one environment or a function that makes one, got "
            f"{type(env).__name__}: `evaluate` runs `n_envs` of them side by side itself."
        )
    if isinstance(env, gym.Env):
        return (lambda: env), str(env.spec.id if env.spec else type(env.unwrapped).__name__), 1
    if not callable(env):
        raise InvalidArgumentError(
            f"`env` must be an id, an environment or a function that makes one, got {env!r}."
        )
    return env, getattr(env, "__name__", "environment"), _DEFAULT_N_ENVS
