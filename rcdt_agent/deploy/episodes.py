"""`EpisodeRules`: what every agent keeps to while episodes run, with torch or without."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array
from rcdt_agent.costs import CostBudget
from rcdt_agent.deploy.conditioning import TargetReturn
from rcdt_agent.deploy.state import AgentState, StateUse
from rcdt_agent.errors import InvalidArgumentError, StateError


class EpisodeRules(ABC):
    """Episodes as states that the caller holds (`begin`, `predict`), or one that the agent holds.

    The second is for a robot or a simple loop: `reset`, then `act` at each step. A state that is
    dropped, of other environments or older than any episode is said aloud.
    """

    cost_window: int | None = None
    """Steps of the rolling window that the budget is for; None: it is for an episode."""

    _episode: AgentState | None = None  # of `reset` and `act`
    _last_begun: StateUse | None = None  # of the last `predict` without a state
    _said_too_long = False

    @property
    @abstractmethod
    def cost_budget(self) -> Any:
        """What an episode may cost: a number, or one by name for each of several costs."""

    @abstractmethod
    def set_cost_budget(self, k: Any, target_return: TargetReturn = "auto") -> None:
        """Say what an episode may cost from now on."""

    @abstractmethod
    def begin(self, n_envs: int = 1) -> Any:
        """A state for episodes about to start."""

    @abstractmethod
    def predict(self, observation: Any, state: Any = None) -> tuple[Float32Array, Any]:
        """The action, and the state to hand back."""

    # ------------------------------------------------------------ one episode, held by the agent

    def reset(
        self, cost_budget: CostBudget | None = None, target_return: TargetReturn | None = None
    ) -> None:
        """Begin a new episode, which `act` then follows.

        Args:
            cost_budget: As `set_cost_budget`, from now on; None leaves the agent's budget.
            target_return: `auto`, `paper` or a number; None leaves the agent's, or `auto` with a
                new budget.

        Raises:
            InvalidArgumentError: A target return alone, while the budget is for a rolling window.
        """
        if cost_budget is None and target_return is not None and self.cost_window is not None:
            raise InvalidArgumentError(
                "`target_return` is an episode's, but the budget is for every "
                f"{self.cost_window} steps: give `cost_budget`, an episode's, too."
            )
        if cost_budget is not None or target_return is not None:
            budget = self.cost_budget if cost_budget is None else cost_budget
            self.set_cost_budget(budget, "auto" if target_return is None else target_return)
        self._episode = self.begin()

    def act(
        self,
        observation: Any,
        reward: float | None = None,
        cost: Any = None,
        **options: Any,
    ) -> Float32Array:
        """The next action in the episode that `reset` began, in one environment.

        Args:
            observation: The present one.
            reward: What the last action earned; not at the first step.
            cost: What it cost, by name where there are several; not at the first step. A wrapped
                environment's observation says both already.
            **options: As for `predict`, such as `deterministic`.

        Raises:
            StateError: `reset` was not called, or reward and cost are missing, or there was no
                action that they could belong to.
        """
        state = self.episode
        if not self._says_outcome(observation):
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
        action, self._episode = self.predict(observation, state, **options)
        return action

    def _says_outcome(self, observation: Any) -> bool:
        """Whether a wrapper made the observation, which then says what was earned and spent."""
        return isinstance(observation, dict)

    @property
    def episode(self) -> AgentState:
        """The state of the episode that `reset` began: what is spent, and what is left."""
        if self._episode is None:
            raise StateError("No episode is running: call `agent.reset()` before `agent.act(obs)`.")
        return self._episode

    # ------------------------------------------------------------ states, held by the caller

    def _state_in_use(
        self, state: Any, n_envs: int, episode_start: npt.ArrayLike | None, *, wrapped: bool
    ) -> AgentState:
        """The state that `predict` goes on from, which must be of as many environments.

        Args:
            state: As given to `predict`; None begins new episodes.
            n_envs: Number of observations.
            episode_start: As given to `predict`; all True says that new episodes are meant.
            wrapped: Whether a wrapper says at which step its episode is.
        """
        if state is None:
            return self._begin_unasked(n_envs, episode_start, wrapped=wrapped)
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

    def _begin_unasked(
        self, n_envs: int, episode_start: npt.ArrayLike | None, *, wrapped: bool
    ) -> AgentState:
        last = self._last_begun
        stated = episode_start is not None and bool(np.all(episode_start))
        state: AgentState = self.begin(n_envs)
        if wrapped:
            self._last_begun = last
            return state
        if last is not None and not last.used and not stated:
            raise StateError(
                "`predict` was called without a state, and the state that the last such call "
                "returned was never used: a new episode, with the whole budget, would begin at "
                "each step. Hand it back: `action, state = agent.predict(obs, state)`, and "
                "`state = state.observe(reward, cost)` after each step; or let the agent keep it: "
                "`agent.reset()`, then `agent.act(obs, reward, cost)`; or step `agent.wrap(env)`. "
                "Where a new episode is meant, say so: `agent.predict(obs, agent.begin())`."
            )
        self._last_begun = state.use
        return state

    def _warn_if_too_long(self, state: AgentState, longest: int, *, depth: int) -> None:
        """Say once that an episode is longer than any can be: was its state kept over a reset?

        Args:
            state: Of the episodes.
            longest: Steps of the longest episode of the task and the data.
            depth: Calls between this one and the user's, whose line the warning names.
        """
        if not self._said_too_long and (state.episode_steps > longest).any():
            self._said_too_long = True
            warnings.warn(
                f"An episode has passed step {longest}, the longest of the task and its training "
                f"data. If a new episode has begun meanwhile, the agent still counts what the last "
                f"one earned and spent: begin each with `state=None`, with `episode_start` for "
                f"some of many, or with `agent.reset()`.",
                stacklevel=depth + 2,
            )
