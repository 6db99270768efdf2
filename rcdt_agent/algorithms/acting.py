"""`EpisodeActing`: how an agent follows running episodes and acts at the budget in force."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array
from rcdt_agent.algorithms.base import OfflineAlgorithm
from rcdt_agent.algorithms.sb3 import Env
from rcdt_agent.config import Config
from rcdt_agent.deploy.checks import check_budgets, check_targets
from rcdt_agent.deploy.conditioning import TargetReturn
from rcdt_agent.deploy.policy import ConditionedPolicy
from rcdt_agent.deploy.state import AgentState, StateUse
from rcdt_agent.deploy.wrappers import Facts, ReturnCostTokens
from rcdt_agent.env_step import CostFunction
from rcdt_agent.errors import InvalidArgumentError, StateError


class EpisodeActing(OfflineAlgorithm[ConditionedPolicy, Config]):
    """Episodes as states that the caller holds (`begin`, `predict`), or one that the agent holds.

    The second is for a robot or a simple loop: `reset`, then `act` at each step.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make an untrained agent that follows no episode."""
        self._episode: AgentState | None = None  # of `reset` and `act`
        self._last_begun: StateUse | None = None  # of the last `predict` without a state
        self._said_too_long = False
        super().__init__(*args, **kwargs)

    @property
    @abstractmethod
    def cost_budget(self) -> float:
        """What an episode may cost."""

    @property
    @abstractmethod
    def target_return(self) -> float:
        """What an episode is asked to return at the present budget."""

    @abstractmethod
    def set_cost_budget(self, k: float, target_return: TargetReturn = "auto") -> None:
        """Say what an episode may cost from now on."""

    @abstractmethod
    def target_of(self, cost_budget: float) -> float:
        """What the data show at a budget that one environment has of its own."""

    # ------------------------------------------------------------ one episode, held by the agent

    def reset(
        self, cost_budget: float | None = None, target_return: TargetReturn | None = None
    ) -> None:
        """Begin a new episode, which `act` then follows.

        Args:
            cost_budget: As `set_cost_budget`, from now on; None leaves the agent's budget.
            target_return: `auto`, `paper` or a number; None leaves the agent's, or `auto` with a
                new budget.
        """
        if cost_budget is not None or target_return is not None:
            budget = self.cost_budget if cost_budget is None else cost_budget
            self.set_cost_budget(budget, "auto" if target_return is None else target_return)
        self._episode = self.begin()

    def act(
        self,
        observation: Any,
        reward: float | None = None,
        cost: float | None = None,
        *,
        deterministic: bool = True,
    ) -> Float32Array:
        """The next action in the episode that `reset` began, in one environment.

        Args:
            observation: The present one.
            reward: What the last action earned; not at the first step.
            cost: What it cost; not at the first step. A wrapped environment's observation says
                both already.
            deterministic: The most likely action; otherwise one sampled from the policy.

        Raises:
            StateError: `reset` was not called, or reward and cost are missing, or there was no
                action that they could belong to.
        """
        state = self.episode
        if not isinstance(observation, dict):
            waiting, told = bool(state.awaiting.any()), reward is not None and cost is not None
            if waiting and not told:
                raise StateError(
                    "`act` must be told what the last action earned and cost: "
                    "`agent.act(obs, reward, cost)`. If a new episode begins, call "
                    "`agent.reset()` first."
                )
            if not waiting and (reward is not None or cost is not None):
                raise StateError(
                    "`act` was given a reward or cost, but no action of this episode has been "
                    "taken: the first step after `agent.reset()` is `agent.act(obs)`."
                )
            if reward is not None and cost is not None:
                state = state.observe(reward, cost)
        action, self._episode = self.predict(observation, state, deterministic=deterministic)
        return action

    @property
    def episode(self) -> AgentState:
        """The state of the episode that `reset` began: what is spent, and what is left."""
        if self._episode is None:
            raise StateError("No episode is running: call `agent.reset()` before `agent.act(obs)`.")
        return self._episode

    # ------------------------------------------------------------ many episodes, held by the caller

    def begin(
        self,
        n_envs: int = 1,
        cost_budget: npt.ArrayLike | None = None,
        target_return: npt.ArrayLike | None = None,
    ) -> AgentState:
        """A state for episodes about to start, with budgets of their own if given.

        Args:
            n_envs: Number of environments.
            cost_budget: A number or (N,); default: the agent's, also when it changes later.
            target_return: A number or (N,); default: what the data show at the budget.
        """
        if isinstance(n_envs, bool) or not isinstance(n_envs, int | np.integer) or n_envs < 1:
            raise InvalidArgumentError(f"`n_envs` must be a whole number >= 1, got {n_envs!r}.")
        normalizer = self.policy.normalizer
        own = cost_budget is not None or target_return is not None
        budgets = check_budgets(self.cost_budget if cost_budget is None else cost_budget, n_envs)
        if target_return is not None:
            target_return = check_targets(target_return, n_envs)
        elif cost_budget is not None:
            target_return = [self.target_of(float(budget)) for budget in budgets]
        self._last_begun = None  # whoever states that episodes begin has not lost one
        return AgentState.begin(
            int(n_envs),
            context_length=self.config.context_length,
            observation_size=normalizer.obs_mean.numel(),
            action_size=normalizer.action_low.numel(),
            target_return=self.target_return if target_return is None else target_return,
            cost_budget=budgets,
            follows_agent=not own,
        )

    def choose_actions(
        self,
        obs: Float32Array,
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
        if state is None:
            current = self._begin_unasked(len(obs), facts, episode_start)
        else:
            current = self._handed_back(state, len(obs))
        if episode_start is not None:
            current = current.restart(episode_start)
        if current.follows_agent:
            current = current.with_targets(self.target_return, self.cost_budget)
        if facts is not None:
            current = self._take_facts(current, facts, dropped=state is None)
        self._warn_if_too_long(current)
        return self.policy.act(
            current.push(obs), deterministic=deterministic, generator=self.acting_generator
        )

    def _begin_unasked(
        self, n_envs: int, facts: Facts | None, episode_start: npt.ArrayLike | None
    ) -> AgentState:
        """New episodes for a `predict` without a state.

        A wrapper says itself at which step its episode is; `episode_start` says it as well.
        """
        last = self._last_begun
        stated = episode_start is not None and bool(np.all(episode_start))
        state = self.begin(n_envs)
        if facts is not None:
            self._last_begun = last
            return state
        if last is not None and not last.used and not stated:
            raise StateError(
                "`predict` was called without a state, and the state that the last such call "
                "returned was never used: a new episode, with the whole budget, would begin at "
                "each step. Hand it back: `action, state = agent.predict(obs, state)`, and "
                "`state = state.observe(reward, cost)` after each step; or step "
                "`agent.wrap(env)`; or let the agent keep it: `agent.reset()`, then "
                "`agent.act(obs, reward, cost)`. Where a new episode is meant, say so: "
                "`agent.predict(obs, agent.begin())`."
            )
        self._last_begun = state.use
        return state

    def _handed_back(self, state: Any, n_envs: int) -> AgentState:
        if not isinstance(state, AgentState):
            raise InvalidArgumentError(
                f"`state` must be what the last `predict` or `begin` returned, or None, got "
                f"{state!r}."
            )
        if state.n_envs != n_envs:
            raise InvalidArgumentError(
                f"`state` is of {state.n_envs} environments, but there are {n_envs} "
                f"observations; `agent.begin({n_envs})` is a state for as many."
            )
        state.use.used = True
        return state

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
            i = int(np.argmax(fell))
            raise StateError(
                f"Environment {i} has spent {facts.episode_cost[i]:g} in its episode, but `state` "
                f"has seen {state.total_cost[i]:g} spent: it is the state of another episode. "
                f"Hand back the state of this one, or begin with `state=agent.begin()`."
            )
        if state.follows_agent:
            own = np.isfinite(facts.cost_budget)
            budget = np.where(own, facts.cost_budget, state.cost_budget)
            target = state.target_return
            if own.any():
                target = target.copy()
                target[own] = [self.target_of(float(b)) for b in budget[own]]
            target = np.where(np.isfinite(facts.target_return), facts.target_return, target)
            state = state.with_targets(target, budget)
        return state.with_facts(facts.episode_return, facts.episode_cost, steps)

    def _warn_if_too_long(self, state: AgentState) -> None:
        """Say once that an episode is longer than any can be: was its state kept over a reset?"""
        longest = self.policy.episode_length
        if not self._said_too_long and (state.episode_steps > longest).any():
            self._said_too_long = True
            warnings.warn(
                f"An episode has passed step {longest}, the longest of the task and its training "
                f"data. If a new episode has begun meanwhile, the agent still counts what the last "
                f"one earned and spent: begin each with `state=None`, with `episode_start` for "
                f"some of many, or with `agent.reset()`.",
                stacklevel=4,
            )

    def wrap(
        self, env: Env, *, cost_key: str = "cost", cost_fn: CostFunction | None = None
    ) -> ReturnCostTokens:
        """Wrap an environment so that what it earned and spent travels in its observation.

        The budget stays with the agent: `set_cost_budget` acts at the next `predict`, in whatever
        process the environment runs.

        Args:
            env: Any Gymnasium environment, with five- or six-value steps.
            cost_key: Where in `info` the cost is.
            cost_fn: Computes the cost instead.
        """
        return ReturnCostTokens(env, cost_key=cost_key, cost_fn=cost_fn)
