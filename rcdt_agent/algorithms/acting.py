"""`EpisodeActing`: how an agent follows running episodes and acts at the budget in force."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import BoolArray, Float32Array, Float64Array
from rcdt_agent.action_spaces import action_range
from rcdt_agent.algorithms.agent import ConfigT, PolicyT
from rcdt_agent.algorithms.base import OfflineAlgorithm
from rcdt_agent.algorithms.sb3 import Env
from rcdt_agent.deploy.checks import check_budgets, check_targets
from rcdt_agent.deploy.conditioning import NO_RETURN_TOKEN
from rcdt_agent.deploy.episodes import EpisodeRules
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.deploy.wrappers import Facts, ReturnCostTokens, split_facts
from rcdt_agent.env_step import CostFunction, CostKey
from rcdt_agent.errors import InvalidArgumentError, StateError


class EpisodeActing(OfflineAlgorithm[PolicyT, ConfigT], EpisodeRules):
    """Acts at the budget in force, in plain and in wrapped environments."""

    state_class = AgentState

    @property
    @abstractmethod
    def context_length(self) -> int:
        """Steps of an episode that a state keeps."""

    @property
    @abstractmethod
    def episode_length(self) -> int:
        """Steps of the longest episode of the task and its training data."""

    def _says_outcome(self, observation: Any) -> bool:
        """An environment's own dict is none of a wrapper's."""
        return split_facts(observation, self.cost_names, self.policy.layout)[1] is not None

    @abstractmethod
    def act_on(self, state: AgentState, *, deterministic: bool) -> tuple[Float32Array, AgentState]:
        """Actions (N, A) of the space at the present step of each episode, noted in the state."""

    @property
    @abstractmethod
    def target_return(self) -> float:
        """What an episode is asked to return at the present budget."""

    @property
    def has_return_token(self) -> bool:
        """Whether the policy is told a return."""
        return True

    @abstractmethod
    def target_of(self, budget_row: npt.ArrayLike) -> float:
        """What the data show at a budget () or (m,) that one environment has of its own."""

    @property
    def budget_row(self) -> Float64Array:
        """() the budget in force; (m,) of several costs."""
        row: Float64Array = check_budgets(self.cost_budget, 1, self.cost_names)[0]
        return row

    def begin(
        self,
        n_envs: int = 1,
        cost_budget: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None = None,
        target_return: npt.ArrayLike | None = None,
    ) -> AgentState:
        """A state for episodes about to start, with budgets of their own if given.

        Args:
            n_envs: Number of environments.
            cost_budget: A number or (N,); default: the agent's, also when it changes later. Of
                several costs, such numbers by name.
            target_return: A number or (N,); default: what the data show at the budget.

        Raises:
            InvalidArgumentError: A number is outside its rule, a cost is unknown or missing, or a
                return is asked of a policy that is not told one.
        """
        if isinstance(n_envs, bool) or not isinstance(n_envs, int | np.integer) or n_envs < 1:
            raise InvalidArgumentError(f"`n_envs` must be a whole number >= 1, got {n_envs!r}.")
        normalizer = self.policy.normalizer
        own = cost_budget is not None or target_return is not None
        budgets = check_budgets(
            self.cost_budget if cost_budget is None else cost_budget, n_envs, self.cost_names
        )
        if target_return is not None:
            target_return = check_targets(target_return, n_envs)
            self._check_return_token()
        elif cost_budget is not None:
            target_return = [self.target_of(budget) for budget in budgets]
        self._last_begun = None  # whoever states that episodes begin has not lost one
        return AgentState.begin(
            int(n_envs),
            context_length=self.context_length,
            observation_size=normalizer.observation_size,
            action_size=normalizer.action_width,
            target_return=self.target_return if target_return is None else target_return,
            cost_budget=budgets,
            follows_agent=not own,
            cost_names=self.cost_names,
            action_range=action_range(self.policy.action_space),
            observation_dtype=self.policy.observation_dtype,
        )

    def _check_return_token(self) -> None:
        """Refuse a target return where the policy would not know of it."""
        if not self.has_return_token:
            raise InvalidArgumentError(NO_RETURN_TOKEN)

    def choose_actions(
        self,
        obs: npt.NDArray[Any],
        state: Any,
        *,
        facts: Facts | None,
        episode_start: npt.ArrayLike | None,
        deterministic: bool,
    ) -> tuple[Float32Array, AgentState]:
        """Actions (N, A) for observations (N, O), and the state to hand back.

        Raises:
            StateError: The state of the last call was dropped, or has not seen the outcome of its
                last action, or is not that of the episode that a wrapper reports.
        """
        wrapped = facts is not None
        current = self._state_in_use(state, len(obs), episode_start, wrapped=wrapped)
        if episode_start is not None:
            current = current.restart(episode_start)
        if current.follows_agent:
            current = current.with_targets(self.target_return, self.budget_row)
            current = current.with_cost_window(self.cost_window, self.episode_length)
        if facts is not None:
            current = self._take_facts(current, facts, dropped=state is None)
        if current.rolling is None:
            self._warn_if_too_long(current, self.episode_length, depth=2)
        return self.act_on(current.push(obs), deterministic=deterministic)

    def _take_facts(self, state: AgentState, facts: Facts, *, dropped: bool) -> AgentState:
        """The state with what wrappers report: earned, spent, and budgets of their own.

        A budget that was stated to `begin` counts more than a wrapper's own: an evaluation at some
        budgets must not act at another one.
        """
        steps, seen = facts.episode_step, state.episode_steps
        unlike = (steps != seen) & (state.steps > 0)
        wrong = (unlike | dropped) & (steps > 0)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise StateError(
                f"Environment {i} is at step {steps[i]:g} of its episode, but `state` has seen "
                f"{seen[i]}: hand back the state that the last `predict` returned. If the "
                f"agent takes over an episode under way, begin with `state=agent.begin()`."
            )
        state = state.restart(unlike)  # at step zero: a new episode has begun
        fell = facts.episode_cost < state.total_cost - 1e-4 * np.maximum(state.total_cost, 1.0)
        if fell.any():
            place = tuple(np.argwhere(fell)[0])
            raise StateError(
                f"Environment {place[0]} has spent {facts.episode_cost[place]:g} in its episode, "
                f"but `state` has seen {state.total_cost[place]:g} spent: it is the state of "
                f"another episode. Hand back the state of this one, or begin with "
                f"`state=agent.begin()`."
            )
        if state.follows_agent:
            own = np.isfinite(facts.cost_budget.reshape(len(steps), -1)).all(1)
            self._check_own(own | np.isfinite(facts.target_return))
            budget = np.where(np.isfinite(facts.cost_budget), facts.cost_budget, state.cost_budget)
            target = state.target_return
            if own.any():
                target = target.copy()
                target[own] = [self.target_of(row) for row in budget[own].astype(np.float64)]
            asked = np.isfinite(facts.target_return)
            if asked.any():
                self._check_return_token()
            target = np.where(asked, facts.target_return, target)
            state = state.with_targets(target, budget)
        return state.with_facts(facts.episode_return, facts.episode_cost, steps)

    def _check_own(self, own: BoolArray) -> None:
        """Refuse an episode's budget or return of environments (N,) beside a rolling window."""
        if self.cost_window is not None and own.any():
            raise InvalidArgumentError(
                f"Environment {int(np.argmax(own))} has a `cost_budget` or `target_return` of its "
                f"own, which is an episode's, but the agent's budget is for every "
                f"{self.cost_window} steps: `set_cost_budget` without `per`, or take the wrapper's "
                f"back by `set_targets(None, None)`."
            )

    def wrap(
        self, env: Env, *, cost_key: CostKey = "cost", cost_fn: CostFunction | None = None
    ) -> ReturnCostTokens:
        """Wrap an environment so that what it earned and spent travels in its observation.

        The budget stays with the agent: `set_cost_budget` acts at the next `predict`, in whatever
        process the environment runs.

        Args:
            env: Any Gymnasium environment, with five- or six-value steps.
            cost_key: Where in `info` the cost is. Several costs are a dict or an array there, in
                the order of `cost_names`; or have a key each: `{"collision": "crash_cost", ...}`.
            cost_fn: Computes the cost instead; of several costs, a dict.
        """
        return ReturnCostTokens(env, cost_key=cost_key, cost_fn=cost_fn, cost_names=self.cost_names)
