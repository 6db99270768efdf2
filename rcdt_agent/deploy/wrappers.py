"""Wrappers that track what is left to earn and to spend, inside any safe environment."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rcdt_agent._types import Float32Array
from rcdt_agent.env_step import CostFunction, cost_in, read_step
from rcdt_agent.errors import InvalidArgumentError

OBSERVATION, RTG, CTG = "observation", "rtg", "ctg"


class Tokens(NamedTuple):
    """What is left to earn and to spend, (N,) each."""

    rtg: Float32Array
    ctg: Float32Array


class ReturnCostTokens(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Puts return-to-go and cost-to-go into the observation of a safe environment.

    The observation becomes a dict of `observation`, `rtg` and `ctg`, so that tools which hand a
    policy nothing but observations (stable-baselines3's `evaluate_policy`, say) steer it rightly.
    `step` of the inner environment may return five or six values; here it is always five, with
    `info["cost"]`, and `info["episode_return"]` and `info["episode_cost"]` at the end.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        target_return: float,
        cost_budget: float,
        cost_key: str = "cost",
        cost_fn: CostFunction | None = None,
    ) -> None:
        """Wrap an environment.

        Args:
            env: Any Gymnasium environment with an array observation.
            target_return: What an episode should return.
            cost_budget: What an episode may cost.
            cost_key: Where in `info` the cost is (five-value steps).
            cost_fn: Computes the cost instead: (observation, action, next observation, info).
        """
        gym.utils.RecordConstructorArgs.__init__(
            self,
            target_return=target_return,
            cost_budget=cost_budget,
            cost_key=cost_key,
            cost_fn=cost_fn,
        )
        super().__init__(env)
        self.observation_space = token_space(env.observation_space)
        self.target_return = float(target_return)
        self.cost_budget = float(cost_budget)
        self.cost_key = cost_key
        self.cost_fn = cost_fn
        self._earned = self._spent = 0.0
        self._obs: Any = None

    def set_targets(self, target_return: float, cost_budget: float) -> None:
        """Change return and budget, also in mid-episode: what was earned and spent still counts."""
        self.target_return, self.cost_budget = float(target_return), float(cost_budget)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode with the whole budget."""
        self._obs, info = self.env.reset(seed=seed, options=options)
        self._earned = self._spent = 0.0
        return self._tokens(), info

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Step, and take reward and cost off what is left."""
        self._obs, reward, cost, terminated, truncated, info = read_step(
            self.env.step(action),
            cost_key=self.cost_key,
            cost_fn=self.cost_fn,
            before=self._obs,
            action=action,
        )
        self._earned += reward
        self._spent += cost
        if terminated or truncated:
            info |= {"episode_return": self._earned, "episode_cost": self._spent}
        return self._tokens(), reward, terminated, truncated, info

    def _tokens(self) -> dict[str, Any]:
        return {
            OBSERVATION: self._obs,
            RTG: np.array([self.target_return - self._earned], dtype=np.float32),
            CTG: np.array([self.cost_budget - self._spent], dtype=np.float32),
        }


_VectorWrapper: Any = getattr(gym.vector, "VectorWrapper", None) or getattr(
    gym.vector, "VectorEnvWrapper", None
)


class VectorReturnCostTokens(_VectorWrapper):  # type: ignore[misc]
    """`ReturnCostTokens` for Gymnasium's vector environments, whichever way they reset.

    Same-step (gymnasium < 1.0, and 1.x on request): the step that ends an episode returns the
    next one's first observation, and its own cost is in `final_info`. Next-step (1.x by default):
    the step after the end only resets, and its reward is nobody's.
    """

    def __init__(
        self,
        env: gym.vector.VectorEnv,
        target_return: float,
        cost_budget: float,
        cost_key: str = "cost",
    ) -> None:
        """Wrap a vector environment; arguments as `ReturnCostTokens`."""
        super().__init__(env)
        self.single_observation_space = token_space(env.single_observation_space)
        self.observation_space = gym.vector.utils.batch_space(
            self.single_observation_space, env.num_envs
        )
        self.target_return = float(target_return)
        self.cost_budget = float(cost_budget)
        self.cost_key = cost_key
        self._n_envs = env.num_envs
        self._resets_next_step = _resets_next_step(env)
        self._earned, self._spent = np.zeros((2, env.num_envs))
        self._ended = np.zeros(env.num_envs, dtype=np.bool_)

    def set_targets(self, target_return: float, cost_budget: float) -> None:
        """Change return and budget, also in mid-episode."""
        self.target_return, self.cost_budget = float(target_return), float(cost_budget)

    def reset(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin all episodes with the whole budget."""
        obs, infos = self.env.reset(**kwargs)
        self._earned[:] = self._spent[:] = 0.0
        self._ended[:] = False
        return self._tokens(obs), infos

    def step(self, actions: Any) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        """Step all environments; `infos` gains `cost`, `episode_return` and `episode_cost`."""
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = np.asarray(terminated) | np.asarray(truncated)
        only_reset = self._ended if self._resets_next_step else np.zeros_like(ended)
        costs = self._costs(infos, ended, only_reset)
        self._earned = np.where(only_reset, 0.0, self._earned + rewards)
        self._spent = np.where(only_reset, 0.0, self._spent + costs)
        infos = {**infos, "cost": costs}
        if ended.any():
            infos |= {"episode_return": self._earned * ended, "episode_cost": self._spent * ended}
            infos["_episode_cost"] = infos["_episode_return"] = ended
        if not self._resets_next_step:
            self._earned, self._spent = self._earned * ~ended, self._spent * ~ended
        self._ended = ended
        return self._tokens(obs), rewards, terminated, truncated, infos

    def _costs(self, infos: dict[str, Any], ended: Any, only_reset: Any) -> Any:
        costs = np.asarray(infos.get(self.cost_key, np.zeros(self._n_envs)), dtype=np.float64)
        present = np.asarray(infos.get(f"_{self.cost_key}", np.zeros(self._n_envs, np.bool_)))
        costs, present = costs.copy(), present.copy()
        final = infos.get("final_info")
        if not self._resets_next_step and ended.any() and final is not None:
            for i in np.flatnonzero(ended):  # that step's own cost, not the new episode's
                own = final[i] if not isinstance(final, dict) else _row(final, i)
                costs[i] = cost_in(own, self.cost_key)
                present[i] = True
        missing = ~present & ~only_reset
        if missing.any():
            raise InvalidArgumentError(
                f"Environment {int(np.flatnonzero(missing)[0])} reported no cost: `cost_key` is "
                f"{self.cost_key!r}, `infos` holds {sorted(infos)}."
            )
        return np.where(only_reset, 0.0, costs)

    def _tokens(self, obs: Any) -> dict[str, Any]:
        left = np.stack((self.target_return - self._earned, self.cost_budget - self._spent))
        rtg, ctg = left.astype(np.float32)[..., None]
        return {OBSERVATION: obs, RTG: rtg, CTG: ctg}


def token_space(space: gym.Space[Any]) -> gym.spaces.Dict:
    """The observation space with tokens, for an array observation."""
    if not isinstance(space, gym.spaces.Box):
        raise InvalidArgumentError(
            f"The observation space must be a Box, got {space}. "
            f"`gymnasium.wrappers.FlattenObservation` turns others into one."
        )
    unbounded = gym.spaces.Box(-np.inf, np.inf, (1,), dtype=np.float32)
    return gym.spaces.Dict({OBSERVATION: space, RTG: unbounded, CTG: unbounded})


def split_tokens(observation: Any) -> tuple[Any, Tokens | None]:
    """An observation as (plain observation, tokens); None without a wrapper."""
    if not isinstance(observation, dict):
        return observation, None
    missing = {OBSERVATION, RTG, CTG} - set(observation)
    if missing:
        raise InvalidArgumentError(
            f"A dict observation must hold {OBSERVATION!r}, {RTG!r} and {CTG!r}, as `agent.wrap` "
            f"makes it; {sorted(missing)} is missing."
        )
    rtg, ctg = (np.asarray(observation[key], dtype=np.float32) for key in (RTG, CTG))
    return observation[OBSERVATION], Tokens(rtg.reshape(-1), ctg.reshape(-1))


def _row(infos: dict[str, Any], i: int) -> dict[str, Any]:
    return {k: v[i] for k, v in infos.items() if not k.startswith("_") and np.ndim(v) > 0}


def _resets_next_step(env: Any) -> bool:
    mode = (env.metadata or {}).get("autoreset_mode")
    return mode is not None and "next" in str(getattr(mode, "value", mode)).lower()
