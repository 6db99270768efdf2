"""Wrappers that report what an episode has earned and spent, inside any safe environment.

They carry facts, never decisions: the agent turns facts and the budget in force into tokens, so
that a changed budget acts at the next `predict`, in whatever process the environment runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rcdt_agent._types import Float64Array
from rcdt_agent.costs import ONE_COST, CostBudget, by_name, named_costs
from rcdt_agent.deploy.checks import check_budgets, check_targets
from rcdt_agent.env_step import CostFunction, CostKey, check_cost_source, kept_for, read_step
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.observations import ObservationLayout

OBSERVATION = "observation"
FACTS = ("episode_return", "episode_cost", "episode_step", "target_return", "cost_budget")
COST_FACTS = ("episode_cost", "cost_budget")
"""Those that each cost has."""
AGENTS = np.inf
"""In place of a target return or budget of the wrapper's own: the agent's."""


class Facts(NamedTuple):
    """What wrappers report of N episodes, (N,) each; of several costs (N, m).

    Attributes:
        episode_return: Reward so far.
        episode_cost: Cost so far.
        episode_step: Steps made so far.
        target_return: Of the wrapper's own, or `AGENTS`.
        cost_budget: Of the wrapper's own, or `AGENTS`.
    """

    episode_return: Float64Array
    episode_cost: Float64Array
    episode_step: Float64Array
    target_return: Float64Array
    cost_budget: Float64Array


class ReturnCostTokens(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Puts what the episode has earned and spent into the observation of a safe environment.

    The observation becomes a dict of `observation` and the fields of `Facts`, so that tools which
    hand a policy nothing but observations (stable-baselines3's `evaluate_policy`, say) steer it
    rightly. `step` of the inner environment may return five or six values; here it is always five,
    with `info["cost"]`, and `info["episode_return"]` and `info["episode_cost"]` at the end. Several
    costs are in the `info` by name, and in the observation in the order of their names.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        target_return: float | None = None,
        cost_budget: CostBudget | None = None,
        cost_key: CostKey = "cost",
        cost_fn: CostFunction | None = None,
        cost_names: Sequence[str] = ONE_COST,
    ) -> None:
        """Wrap an environment.

        Args:
            env: Any Gymnasium environment; Dict, Tuple and discrete observations become flat rows.
            target_return: What an episode here should return; None: what the agent asks for.
            cost_budget: What an episode here may cost; None: the agent's budget.
            cost_key: Where in `info` the cost is (five-value steps). Several costs are a dict or
                an array there; or have a key each: `{"collision": "crash_cost", ...}`.
            cost_fn: Computes the cost instead: (observation, action, next observation, info).
            cost_names: Of the agent's costs.

        Raises:
            InvalidArgumentError: Not one environment, or its observation is no array.
        """
        if not isinstance(env, gym.Env) or isinstance(env, gym.vector.VectorEnv):
            raise InvalidArgumentError(
                f"`env` must be one Gymnasium environment, got {type(env).__name__}. "
                f"`VectorReturnCostTokens(env)` wraps Gymnasium's vector environments; wrap each "
                f"environment of a stable-baselines3 `VecEnv` before it is made."
            )
        check_cost_source(cost_key, cost_fn)
        gym.utils.RecordConstructorArgs.__init__(
            self,
            target_return=target_return,
            cost_budget=cost_budget,
            cost_key=cost_key,
            cost_fn=cost_fn,
            cost_names=cost_names,
        )
        super().__init__(env)
        self.cost_names = named_costs(cost_names)
        self.observation_space = facts_space(env.observation_space, len(self.cost_names))
        self._layout = ObservationLayout.of(env.observation_space)
        self.cost_key = cost_key
        self.cost_fn = cost_fn
        self.set_targets(target_return, cost_budget)
        self._earned = 0.0
        self._spent: Any = 0.0  # (m,) of several costs
        self._steps = 0
        self._obs: Any = None
        self._before: Any = None

    def set_targets(self, target_return: float | None, cost_budget: CostBudget | None) -> None:
        """Give this environment a target and a budget of its own, or None: the agent's."""
        self._own = own_targets(target_return, cost_budget, 1, self.cost_names)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode with the whole budget."""
        self._obs, info = self.env.reset(seed=seed, options=options)
        self._before = kept_for(self.cost_fn, self._obs)
        self._earned, self._spent = 0.0, 0.0
        self._steps = 0
        return self._observation(), info

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Step, and add reward and cost to what the episode has earned and spent."""
        self._obs, reward, cost, terminated, truncated, info = read_step(
            self.env.step(action),
            cost_key=self.cost_key,
            cost_fn=self.cost_fn,
            before=self._before,
            action=action,
            cost_names=self.cost_names,
        )
        self._before = kept_for(self.cost_fn, self._obs)
        self._earned += reward
        self._spent = self._spent + cost
        self._steps += 1
        if terminated or truncated:
            spent = by_name(self._spent, self.cost_names)
            info |= {"episode_return": self._earned, "episode_cost": spent}
        return self._observation(), reward, terminated, truncated, info

    def _observation(self) -> dict[str, Any]:
        target, budget = (own[0] for own in self._own)
        spent = np.broadcast_to(np.asarray(self._spent), np.shape(budget))
        facts = (self._earned, spent, self._steps, target, budget)
        rows = (np.array(fact, dtype=np.float64).reshape(-1) for fact in facts)
        obs = self._obs if self._layout is None else self._layout.row(self._obs)
        return {OBSERVATION: obs, **dict(zip(FACTS, rows, strict=True))}


def facts_space(space: gym.Space[Any], n_costs: int = 1) -> gym.spaces.Dict:
    """The observation space with facts; of other than array observations, their flat rows.

    stable-baselines3's vector environments take no Dict within a Dict.
    """
    layout = ObservationLayout.of(space)
    space = layout.flat_space if layout else space
    number = gym.spaces.Box(-np.inf, np.inf, (1,), dtype=np.float64)
    costs = gym.spaces.Box(-np.inf, np.inf, (n_costs,), dtype=np.float64)
    return gym.spaces.Dict(
        {OBSERVATION: space, **dict.fromkeys(FACTS, number), **dict.fromkeys(COST_FACTS, costs)}
    )


def has_facts(keys: Any) -> bool:
    """Whether the keys of a Dict observation are those of a wrapper."""
    return {OBSERVATION, *FACTS} <= set(keys)


def split_facts(
    observation: Any,
    cost_names: Sequence[str] = ONE_COST,
    layout: ObservationLayout | None = None,
) -> tuple[Any, Facts | None]:
    """An observation as (plain observation, facts); None without a wrapper."""
    if not isinstance(observation, dict):
        return observation, None
    if layout is not None and isinstance(layout.space, gym.spaces.Dict):
        own = set(observation) == set(layout.space.spaces)
        if own or not has_facts(observation):
            return observation, None  # the environment's own
    missing = {OBSERVATION, *FACTS} - set(observation)
    if len(missing) == len(FACTS) + 1 and layout is None:
        raise InvalidArgumentError(
            f"`observation` must be an array, as in the agent's data, or the dict that "
            f"`agent.wrap(env)` makes, got a dict of {', '.join(map(repr, observation))}. Give "
            f"its numbers in the order that the data have."
        )
    if missing:
        raise InvalidArgumentError(
            f"A dict observation must hold {OBSERVATION!r} and {', '.join(map(repr, FACTS))}, as "
            f"`agent.wrap` makes it; {sorted(missing)} is missing."
        )
    arrays = {k: np.asarray(observation[k], dtype=np.float64).reshape(-1) for k in FACTS}
    step, n_costs = arrays["episode_step"], len(cost_names)
    if n_costs > 1:
        for key in COST_FACTS:
            if arrays[key].size != n_costs * step.size:
                raise InvalidArgumentError(
                    f"`{key}` must hold {n_costs} costs ({', '.join(cost_names)}), got shape "
                    f"{np.shape(observation[key])}. `agent.wrap(env)` makes a wrapper that "
                    f"reports them, or give it `cost_names`."
                )
            arrays[key] = arrays[key].reshape(-1, n_costs)
    elif arrays["episode_cost"].size != step.size:
        raise InvalidArgumentError(
            f"`episode_cost` must hold one cost, got shape {np.shape(observation['episode_cost'])}:"
            f" the wrapper reports several, the agent knows one."
        )
    facts = Facts(**arrays)
    if (
        any(np.isnan(array).any() for array in facts)
        or not ((step >= 0) & (step == np.round(step))).all()
    ):
        raise InvalidArgumentError(
            f"The episode's return, cost and step arrived changed: {facts}. Something between the "
            f"wrapper and the agent rescales observations (VecNormalize, say); the agent scales "
            f"them itself, so leave it out: `VecNormalize(norm_obs=False)`."
        )
    return observation[OBSERVATION], facts


def own_targets(
    target_return: Any, cost_budget: Any, n_envs: int, cost_names: Sequence[str] = ONE_COST
) -> tuple[Float64Array, Float64Array]:
    """Target returns (N,) and budgets (N,) or (N, m) of environments, `AGENTS` where none is."""
    per_cost = () if len(cost_names) == 1 else (len(cost_names),)
    targets = np.full(n_envs, AGENTS, dtype=np.float64)
    budgets = np.full((n_envs, *per_cost), AGENTS, dtype=np.float64)
    if target_return is not None:
        targets[:] = check_targets(target_return, n_envs)
    if cost_budget is not None:
        budgets[:] = check_budgets(cost_budget, n_envs, cost_names)
    return targets, budgets
