"""Wrappers that report what an episode has earned and spent, inside any safe environment.

They carry facts, never decisions: the agent turns facts and the budget in force into tokens, so
that a changed budget acts at the next `predict`, in whatever process the environment runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array
from rcdt_agent.env_step import CostFunction, cost_in, read_step
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
        """
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
        self._own = _own_targets(target_return, cost_budget, 1)

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


_VectorWrapper: Any = getattr(gym.vector, "VectorWrapper", None) or getattr(
    gym.vector, "VectorEnvWrapper", None
)


_HAS_PARTIAL_RESETS = hasattr(gym.vector, "AutoresetMode")  # gymnasium >= 1.1; others reset all


class VectorReturnCostTokens(_VectorWrapper):  # type: ignore[misc]
    """`ReturnCostTokens` for Gymnasium's vector environments, whichever way they reset.

    Same-step (gymnasium < 1.0, and 1.x on request): the step that ends an episode returns the
    next one's first observation, and its own cost is in `final_info`. Next-step (1.x by default):
    the step after the end only resets, and its reward is nobody's. Disabled (1.1 on request): the
    caller resets some with `reset(options={"reset_mask": mask})`, and the others go on.
    """

    def __init__(
        self,
        env: gym.vector.VectorEnv,
        target_return: npt.ArrayLike | None = None,
        cost_budget: npt.ArrayLike | None = None,
        cost_key: str = "cost",
    ) -> None:
        """Wrap a vector environment.

        Args:
            env: A Gymnasium vector environment.
            target_return: A number or (N,); None: what the agent asks for.
            cost_budget: A number or (N,); None: the agent's budget.
            cost_key: Where in `infos` the cost is.
        """
        super().__init__(env)
        self.single_observation_space = facts_space(env.single_observation_space)
        self.observation_space = gym.vector.utils.batch_space(
            self.single_observation_space, env.num_envs
        )
        self.cost_key = cost_key
        self._n_envs = env.num_envs
        self._resets_next_step = _resets(env, "next")
        self._resets_same_step = not self._resets_next_step and not _resets(env, "disabled")
        self.set_targets(target_return, cost_budget)
        self._earned, self._spent, self._steps = np.zeros((3, env.num_envs))
        self._ended = np.zeros(env.num_envs, dtype=np.bool_)

    def set_targets(
        self, target_return: npt.ArrayLike | None, cost_budget: npt.ArrayLike | None
    ) -> None:
        """Give these environments targets and budgets of their own, or None: the agent's."""
        self._own = _own_targets(target_return, cost_budget, self._n_envs)

    def reset(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin all episodes, or those of `options["reset_mask"]`, with the whole budget."""
        chosen = np.ones(self._n_envs, dtype=np.bool_)
        options = kwargs.get("options") or {}
        if "reset_mask" in options and _HAS_PARTIAL_RESETS:
            chosen = np.asarray(options["reset_mask"], dtype=np.bool_)
        obs, infos = self.env.reset(**kwargs)
        self._begin(chosen)
        return self._observation(obs), infos

    def step(self, actions: Any) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        """Step all environments; `infos` gains `cost`, `episode_return` and `episode_cost`."""
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = np.asarray(terminated) | np.asarray(truncated)
        only_reset = self._ended if self._resets_next_step else np.zeros_like(ended)
        costs = self._costs(infos, ended, only_reset)
        self._earned = self._earned + rewards
        self._spent = self._spent + costs
        self._steps = self._steps + 1
        self._begin(only_reset)
        infos = {**infos, "cost": costs}
        if ended.any():
            infos |= {"episode_return": self._earned * ended, "episode_cost": self._spent * ended}
            infos["_episode_cost"] = infos["_episode_return"] = ended
        if self._resets_same_step:
            self._begin(ended)
        self._ended = ended
        return self._observation(obs), rewards, terminated, truncated, infos

    def _begin(self, chosen: Any) -> None:
        """New episodes where `chosen` (N,) is True; the others go on."""
        self._earned, self._spent, self._steps = (
            np.where(chosen, 0.0, values) for values in (self._earned, self._spent, self._steps)
        )
        self._ended = self._ended & ~chosen

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

    def _observation(self, obs: Any) -> dict[str, Any]:
        rows = np.stack((self._earned, self._spent, self._steps, *self._own))
        return {
            OBSERVATION: obs,
            **dict(zip(FACTS, rows.astype(np.float32)[..., None], strict=True)),
        }


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


def check_budget(cost_budget: Any) -> npt.NDArray[np.float64]:
    """A cost budget, or several, as numbers.

    Raises:
        InvalidArgumentError: Not a number, negative, or not finite.
    """
    try:
        budgets = np.asarray(cost_budget, dtype=np.float64)
    except (TypeError, ValueError):
        budgets = np.array(np.nan)
    if not (np.isfinite(budgets) & (budgets >= 0)).all():
        raise InvalidArgumentError(f"`cost_budget` must be >= 0, got {cost_budget!r}.")
    return budgets


def _own_targets(
    target_return: npt.ArrayLike | None, cost_budget: npt.ArrayLike | None, n_envs: int
) -> Float32Array:
    """(2, N) target returns and budgets of environments, `AGENTS` where there is none."""
    if cost_budget is not None:
        check_budget(cost_budget)
    own = [AGENTS if value is None else value for value in (target_return, cost_budget)]
    rows = [np.broadcast_to(np.asarray(value, dtype=np.float32), (n_envs,)) for value in own]
    return np.stack(rows)


def _row(infos: dict[str, Any], i: int) -> dict[str, Any]:
    return {k: v[i] for k, v in infos.items() if not k.startswith("_") and np.ndim(v) > 0}


def _resets(env: Any, mode: str) -> bool:
    """Whether a vector environment resets in a mode, by Gymnasium's name for it."""
    found = (env.metadata or {}).get("autoreset_mode")
    return found is not None and mode in str(getattr(found, "value", found)).lower()
