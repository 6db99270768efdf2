"""`VectorReturnCostTokens`: facts of many episodes in one Gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent.costs import ONE_COST, named_costs
from rcdt_agent.deploy.wrappers import FACTS, OBSERVATION, facts_space, own_targets
from rcdt_agent.env_step import (
    CostFunction,
    CostKey,
    check_cost_source,
    cost_in,
    kept_for,
    step_cost,
)
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.observations import ObservationLayout, pick

_VectorWrapper: Any = getattr(gym.vector, "VectorWrapper", None) or getattr(
    gym.vector, "VectorEnvWrapper", None
)
_HAS_PARTIAL_RESETS = hasattr(gym.vector, "AutoresetMode")  # gymnasium >= 1.1; others reset all
_ENDS = {"final_info", "final_obs", "final_observation"}
"""What `infos` holds where the next episode has begun already."""

_DEFAULT_MODE = "same" if int(gym.__version__.split(".")[0]) < 1 else "next"


class VectorReturnCostTokens(_VectorWrapper):  # type: ignore[misc]
    """`ReturnCostTokens` for Gymnasium's vector environments, whichever way they reset.

    Same-step (gymnasium < 1.0, and 1.1 on request): the step that ends an episode returns the
    next one's first observation, and its own cost is in `final_info`. Next-step (1.x by default):
    the step after the end only resets, and its reward is nobody's. Disabled (1.1 on request): the
    caller resets some with `reset(options={"reset_mask": mask})`, and the others go on.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> VectorReturnCostTokens:
        """Refuse what is no vector environment, before there is anything to be thrown away.

        Gymnasium's wrapper cannot be deleted without an environment.
        """
        env = args[0] if args else kwargs.get("env")
        if env is not None and not isinstance(env, gym.vector.VectorEnv):
            raise InvalidArgumentError(
                f"`env` must be a Gymnasium vector environment, got {type(env).__name__}. "
                f"`agent.wrap(env)` wraps a single one; wrap each environment of a "
                f"stable-baselines3 `VecEnv` before it is made."
            )
        made: VectorReturnCostTokens = super().__new__(cls)
        return made

    def __init__(
        self,
        env: gym.vector.VectorEnv,
        target_return: npt.ArrayLike | None = None,
        cost_budget: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None = None,
        cost_key: CostKey = "cost",
        cost_fn: CostFunction | None = None,
        cost_names: Sequence[str] = ONE_COST,
    ) -> None:
        """Wrap a vector environment.

        Args:
            env: A Gymnasium vector environment.
            target_return: A number or (N,); None: what the agent asks for.
            cost_budget: A number or (N,), by name of several costs; None: the agent's budget.
            cost_key: Where in `infos` the cost is; several costs as for `ReturnCostTokens`.
            cost_fn: Computes the cost of each environment instead: (observation, action, next
                observation, info).
            cost_names: Of the agent's costs.

        Raises:
            InvalidArgumentError: Not a vector environment, or its observations are no arrays.
        """
        check_cost_source(cost_key, cost_fn)
        super().__init__(env)
        self.cost_names = named_costs(cost_names)
        self._per_cost = () if len(cost_names) == 1 else (len(cost_names),)
        self.single_observation_space = facts_space(
            env.single_observation_space, len(self.cost_names)
        )
        self.observation_space = gym.vector.utils.batch_space(
            self.single_observation_space, env.num_envs
        )
        self._layout = ObservationLayout.of(env.single_observation_space)
        self.cost_key, self.cost_fn = cost_key, cost_fn
        self._n_envs = env.num_envs
        self._mode = _reset_mode(env)
        self.set_targets(target_return, cost_budget)
        self._earned, self._steps = np.zeros((2, env.num_envs))
        self._spent = np.zeros((env.num_envs, *self._per_cost))
        self._ended = np.zeros(env.num_envs, dtype=np.bool_)
        self._before: Any = None
        self._cost_kinds: set[str] = set()  # of numbers that `infos` held costs as

    def __del__(self) -> None:
        """Leave the environment running: it closes itself, and a refused wrapper must not."""

    def set_targets(
        self,
        target_return: npt.ArrayLike | None,
        cost_budget: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None,
    ) -> None:
        """Give these environments targets and budgets of their own, or None: the agent's."""
        self._own = own_targets(target_return, cost_budget, self._n_envs, self.cost_names)

    def reset(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin all episodes, or those of `options["reset_mask"]`, with the whole budget."""
        chosen = np.ones(self._n_envs, dtype=np.bool_)
        options = kwargs.get("options") or {}
        partial = _HAS_PARTIAL_RESETS or self._mode == "disabled"
        if "reset_mask" in options and partial:
            chosen = np.array(options["reset_mask"], dtype=np.bool_)  # a copy: it may be taken out
        obs, infos = self.env.reset(**kwargs)
        self._begin(chosen)
        return self._observation(obs), infos

    def step(self, actions: Any) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        """Step all environments; `infos` gains `cost`, `episode_return` and `episode_cost`."""
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = np.asarray(terminated) | np.asarray(truncated)
        if self._mode == "next" and ended.any() and not _ENDS.isdisjoint(infos):
            raise InvalidArgumentError(
                f"The vector environment was taken to reset at the step after an episode's end, "
                f"but resets at the end itself: `infos` holds {sorted(_ENDS & set(infos))}. State "
                f"it: `metadata['autoreset_mode']` = gymnasium.vector.AutoresetMode.SAME_STEP."
            )
        only_reset = self._ended if self._mode == "next" else np.zeros_like(ended)
        costs = self._costs(actions, obs, infos, ended, only_reset)
        self._earned = self._earned + rewards
        self._spent = self._spent + costs
        self._steps = self._steps + 1
        self._begin(only_reset)
        infos = {**infos, "cost": self._by_name(costs), "_cost": ~only_reset}
        if ended.any():
            spent = self._by_name((self._spent.T * ended).T)
            infos |= {"episode_return": self._earned * ended, "episode_cost": spent}
            infos["_episode_cost"] = infos["_episode_return"] = ended
        if self._mode == "same":
            self._begin(ended)
        self._ended = ended
        return self._observation(obs), rewards, terminated, truncated, infos

    def _by_name(self, costs: Any) -> Any:
        """(N,) costs; several as a dict of them."""
        return dict(zip(self.cost_names, costs.T, strict=True)) if self._per_cost else costs

    def _begin(self, chosen: Any) -> None:
        """New episodes where `chosen` (N,) is True; the others go on."""
        self._earned, self._steps = (
            np.where(chosen, 0.0, values) for values in (self._earned, self._steps)
        )
        self._spent = np.where(chosen, 0.0, self._spent.T).T
        self._ended = self._ended & ~chosen

    def _costs(
        self, actions: Any, obs: Any, infos: dict[str, Any], ended: Any, only_reset: Any
    ) -> Any:
        """(N,) or (N, m) cost of the step in each environment; zero where it was only reset."""
        costs = np.zeros((self._n_envs, *self._per_cost))
        for i in np.flatnonzero(~only_reset):
            # At an end, that step's own observation and cost, not the new episode's.
            last = self._mode == "same" and ended[i]
            info = _final(infos, i) if last else _row(infos, i)
            if self.cost_fn is None:
                costs[i] = self._reported(info, i)
                if self._n_envs > 1 and not (last and _is_own(infos)):
                    self._check_kind(cost_in(info, self.cost_key))
            else:
                after = _final_observation(infos, i) if last else pick(obs, i)
                cost = self.cost_fn(pick(self._before, i), actions[i], after, info)
                costs[i] = step_cost(cost, self.cost_names)
        return costs

    def _reported(self, info: dict[str, Any], i: int) -> Any:
        try:
            return step_cost(cost_in(info, self.cost_key), self.cost_names)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"Environment {i} of {self._n_envs}: {error}") from error

    def _check_kind(self, cost: Any) -> None:
        """Refuse costs that are whole numbers at one step and fractions at another.

        Gymnasium makes one array of all environments' costs, of the first one's type: an int 0
        beside a 0.9 leaves 0 and 0.
        """
        values = cost.values() if isinstance(cost, Mapping) else [cost]
        kinds = {np.asarray(value).dtype.kind.replace("u", "i") for value in values}
        self._cost_kinds |= kinds & set("bif")
        if len(self._cost_kinds) > 1:
            raise InvalidArgumentError(
                "The environments report costs as whole numbers (or bools) at one step and as "
                "fractions at another. Gymnasium puts the costs of a step into one array of the "
                "first one's type, where fractions are lost: report `float(cost)` always, or wrap "
                "each environment by itself with `agent.wrap`."
            )

    def _observation(self, obs: Any) -> dict[str, Any]:
        self._before = kept_for(self.cost_fn, obs)
        facts = (self._earned, self._spent, self._steps, *self._own)
        rows = (fact.astype(np.float64).reshape(self._n_envs, -1) for fact in facts)
        if self._layout is not None:
            obs, _ = self._layout.rows(obs)
        return {OBSERVATION: obs, **dict(zip(FACTS, rows, strict=True))}


def _row(infos: dict[str, Any], i: int) -> dict[str, Any]:
    """The info of environment i: what `_key` marks as its own, or all where nothing is marked."""
    everyone = np.ones(i + 1, dtype=np.bool_)
    return {
        key: _row(values, i) if isinstance(values, dict) else values[i]
        for key, values in infos.items()
        if not key.startswith("_")
        and (np.ndim(values) > 0 or isinstance(values, dict))
        and infos.get(f"_{key}", everyone)[i]
    }


def _is_own(infos: dict[str, Any]) -> bool:
    """Whether `_final` finds the environment's own info, which no array was made of."""
    final = infos.get("final_info")
    return final is not None and not isinstance(final, dict)


def _final(infos: dict[str, Any], i: int) -> dict[str, Any]:
    """The info of the step that ended an episode, where the next one has begun already."""
    final = infos.get("final_info")
    if final is None:
        return _row(infos, i)
    return _row(final, i) if isinstance(final, dict) else dict(final[i])


def _final_observation(infos: dict[str, Any], i: int) -> Any:
    key = "final_obs" if "final_obs" in infos else "final_observation"
    if key not in infos:
        raise InvalidArgumentError(
            f"`cost_fn` needs the last observation of an episode: `infos` holds no `final_obs`, "
            f"but {sorted(infos)}."
        )
    return pick(infos[key], i)


def _reset_mode(env: Any) -> str:
    """`same`, `next` or `disabled`: how a vector environment resets, by Gymnasium's names."""
    own = getattr(env.unwrapped, "autoreset_mode", None)
    found = own if own is not None else (env.metadata or {}).get("autoreset_mode")
    stated = str(getattr(found, "value", found)).lower()
    # gymnasium 1.0 resets at the next step and does not say so.
    return next((mode for mode in ("same", "next", "disabled") if mode in stated), _DEFAULT_MODE)
