"""Wrappers that report what an episode has earned and spent, inside any safe environment.

They carry facts, never decisions: the agent turns facts and the budget in force into tokens, so
that a changed budget acts at the next `predict`, in whatever process the environment runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rcdt_agent._types import Float32Array
from rcdt_agent.deploy.checks import check_budgets, check_targets
from rcdt_agent.env_step import CostFunction, read_step
from rcdt_agent.errors import InvalidArgumentError

OBSERVATION = "observation"
FACTS = ("episode_return", "episode_cost", "episode_step", "target_return", "cost_budget")
AGENTS = np.inf
"""In place of a target return or budget of the wrapper's own: the agent's."""


class Facts(NamedTuple):
    """What wrappers report of N episodes, (N,) each.

    Attributes:
        episode_return: Reward so far.
        episode_cost: Cost so far.
        episode_step: Steps made so far.
        target_return: Of the wrapper's own, or `AGENTS`.
        cost_budget: Of the wrapper's own, or `AGENTS`.
    """

    episode_return: Float32Array
    episode_cost: Float32Array
    episode_step: Float32Array
    target_return: Float32Array
    cost_budget: Float32Array


class ReturnCostTokens(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Puts what the episode has earned and spent into the observation of a safe environment.

    The observation becomes a dict of `observation` and the fields of `Facts`, so that tools which
    hand a policy nothing but observations (stable-baselines3's `evaluate_policy`, say) steer it
    rightly. `step` of the inner environment may return five or six values; here it is always five,
    with `info["cost"]`, and `info["episode_return"]` and `info["episode_cost"]` at the end.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        target_return: float | None = None,
        cost_budget: float | None = None,
        cost_key: str = "cost",
        cost_fn: CostFunction | None = None,
    ) -> None:
        """Wrap an environment.

        Args:
            env: Any Gymnasium environment with an array observation.
            target_return: What an episode here should return; None: what the agent asks for.
            cost_budget: What an episode here may cost; None: the agent's budget.
            cost_key: Where in `info` the cost is (five-value steps).
            cost_fn: Computes the cost instead: (observation, action, next observation, info).

        Raises:
            InvalidArgumentError: Not one environment, or its observation is no array.
        """
        if not isinstance(env, gym.Env) or isinstance(env, gym.vector.VectorEnv):
            raise InvalidArgumentError(
                f"`env` must be one Gymnasium environment, got {type(env).__name__}. "
                f"`VectorReturnCostTokens(env)` wraps Gymnasium's vector environments; wrap each "
                f"environment of a stable-baselines3 `VecEnv` before it is made."
            )
        gym.utils.RecordConstructorArgs.__init__(
            self,
            target_return=target_return,
            cost_budget=cost_budget,
            cost_key=cost_key,
            cost_fn=cost_fn,
        )
        super().__init__(env)
        self.observation_space = facts_space(env.observation_space)
        self.cost_key = cost_key
        self.cost_fn = cost_fn
        self.set_targets(target_return, cost_budget)
        self._earned = self._spent = 0.0
        self._steps = 0
        self._obs: Any = None

    def set_targets(self, target_return: float | None, cost_budget: float | None) -> None:
        """Give this environment a target and a budget of its own, or None: the agent's."""
        self._own = own_targets(target_return, cost_budget, 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode with the whole budget."""
        self._obs, info = self.env.reset(seed=seed, options=options)
        self._earned = self._spent = 0.0
        self._steps = 0
        return self._observation(), info

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Step, and add reward and cost to what the episode has earned and spent."""
        self._obs, reward, cost, terminated, truncated, info = read_step(
            self.env.step(action),
            cost_key=self.cost_key,
            cost_fn=self.cost_fn,
            before=self._obs,
            action=action,
        )
        self._earned += reward
        self._spent += cost
        self._steps += 1
        if terminated or truncated:
            info |= {"episode_return": self._earned, "episode_cost": self._spent}
        return self._observation(), reward, terminated, truncated, info

    def _observation(self) -> dict[str, Any]:
        facts = (self._earned, self._spent, self._steps, *self._own[:, 0])
        rows = np.array(facts, dtype=np.float32)[:, None]
        return {OBSERVATION: self._obs, **dict(zip(FACTS, rows, strict=True))}


def facts_space(space: gym.Space[Any]) -> gym.spaces.Dict:
    """The observation space with facts, for an array observation."""
    if not isinstance(space, gym.spaces.Box):
        raise InvalidArgumentError(
            f"The observation space must be a Box, got {space}. "
            f"`gymnasium.wrappers.FlattenObservation` turns others into one."
        )
    number = gym.spaces.Box(-np.inf, np.inf, (1,), dtype=np.float32)
    return gym.spaces.Dict({OBSERVATION: space, **dict.fromkeys(FACTS, number)})


def split_facts(observation: Any) -> tuple[Any, Facts | None]:
    """An observation as (plain observation, facts); None without a wrapper."""
    if not isinstance(observation, dict):
        return observation, None
    missing = {OBSERVATION, *FACTS} - set(observation)
    if missing:
        raise InvalidArgumentError(
            f"A dict observation must hold {OBSERVATION!r} and {', '.join(map(repr, FACTS))}, as "
            f"`agent.wrap` makes it; {sorted(missing)} is missing."
        )
    facts = Facts(*(np.asarray(observation[k], dtype=np.float32).reshape(-1) for k in FACTS))
    step = facts.episode_step
    if np.isnan(facts).any() or not ((step >= 0) & (step == np.round(step))).all():
        raise InvalidArgumentError(
            f"The episode's return, cost and step arrived changed: {facts}. Something between the "
            f"wrapper and the agent rescales observations (VecNormalize, say); the agent scales "
            f"them itself, so leave it out: `VecNormalize(norm_obs=False)`."
        )
    return observation[OBSERVATION], facts


def own_targets(target_return: Any, cost_budget: Any, n_envs: int) -> Float32Array:
    """(2, N) target returns and budgets of environments, `AGENTS` where there is none."""
    own = np.full((2, n_envs), AGENTS, dtype=np.float32)
    if target_return is not None:
        own[0] = check_targets(target_return, n_envs)
    if cost_budget is not None:
        own[1] = check_budgets(cost_budget, n_envs)
    return own
