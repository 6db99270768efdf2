"""`AgentState`: the context of one or many running episodes, immutable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent.errors import InvalidArgumentError, StateError

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class AgentState:
    """What `predict` returns and wants back. Every array has a leading axis of environments.

    The window holds the last K steps, right-padded: exactly what the sampler cuts from a recorded
    episode. It stores what had been earned and spent before each step instead of tokens, so that
    a budget changed in mid-episode changes the whole window consistently.

    Attributes:
        obs: (N, K, O) scaled observations.
        actions: (N, K, A) scaled actions; the last real one is the action just given.
        earned: (N, K) return before each step.
        spent: (N, K) cost before each step.
        steps: (N,) steps of the episode begun so far.
        total_return: (N,) reward seen so far.
        total_cost: (N,) cost seen so far.
        target_return: (N,) what the episode should return.
        cost_budget: (N,) what it may cost.
        awaiting: (N,) an action was given whose reward and cost have not been seen.
        interventions: (N,) steps at which the critic shield replaced the policy's action.
        follows_agent: Whether `set_cost_budget` on the agent applies to these episodes.
    """

    obs: Floats
    actions: Floats
    earned: Floats
    spent: Floats
    steps: Ints
    total_return: Floats
    total_cost: Floats
    target_return: Floats
    cost_budget: Floats
    awaiting: Bools
    interventions: Ints
    follows_agent: bool = True

    @classmethod
    def begin(
        cls,
        n_envs: int,
        *,
        context_length: int,
        observation_size: int,
        action_size: int,
        target_return: npt.ArrayLike,
        cost_budget: npt.ArrayLike,
        follows_agent: bool = True,
    ) -> AgentState:
        """Episodes about to start."""

        def zeros(*shape: int) -> Floats:
            return np.zeros((n_envs, *shape), dtype=np.float32)

        def each(values: npt.ArrayLike) -> Floats:
            return np.broadcast_to(np.asarray(values, dtype=np.float32), (n_envs,)).copy()

        return cls(
            obs=zeros(context_length, observation_size),
            actions=zeros(context_length, action_size),
            earned=zeros(context_length),
            spent=zeros(context_length),
            steps=np.zeros(n_envs, dtype=np.int64),
            total_return=zeros(),
            total_cost=zeros(),
            target_return=each(target_return),
            cost_budget=each(cost_budget),
            awaiting=np.zeros(n_envs, dtype=np.bool_),
            interventions=np.zeros(n_envs, dtype=np.int64),
            follows_agent=follows_agent,
        )

    @property
    def n_envs(self) -> int:
        """Number of environments."""
        return len(self.steps)

    @property
    def return_to_go(self) -> Floats:
        """(N,) what is left to earn."""
        return self.target_return - self.total_return

    @property
    def cost_to_go(self) -> Floats:
        """(N,) what is left to spend; below zero once the budget is exceeded."""
        return self.cost_budget - self.total_cost

    def observe(self, reward: npt.ArrayLike, cost: npt.ArrayLike) -> AgentState:
        """Tell the state what the last action earned and cost.

        Args:
            reward: A number, or (N,).
            cost: A number, or (N,), >= 0.

        Raises:
            StateError: No action is waiting for its outcome: it would be counted twice.
            InvalidArgumentError: Wrong shape, not finite, or a negative cost.
        """
        earned = self._outcome("reward", reward)
        spent = self._outcome("cost", cost)
        if (spent < 0).any():
            raise InvalidArgumentError(f"`cost` must be >= 0, got {spent.min():g}.")
        if not self.awaiting.all():
            raise StateError(
                "`observe` was called without an action waiting for its outcome: call it once "
                "after each step, with that step's reward and cost."
            )
        return replace(
            self,
            total_return=self.total_return + earned,
            total_cost=self.total_cost + spent,
            awaiting=np.zeros_like(self.awaiting),
        )

    def restart(self, which: npt.ArrayLike) -> AgentState:
        """New episodes where `which` (N,) is True; the others go on."""
        chosen = np.asarray(which, dtype=np.bool_)
        if not chosen.any():
            return self
        keep = ~chosen

        def cleared(values: Floats) -> Floats:
            return values * keep.reshape(-1, *[1] * (values.ndim - 1))

        return replace(
            self,
            obs=cleared(self.obs),
            actions=cleared(self.actions),
            earned=cleared(self.earned),
            spent=cleared(self.spent),
            steps=self.steps * keep,
            total_return=cleared(self.total_return),
            total_cost=cleared(self.total_cost),
            awaiting=self.awaiting & keep,
            interventions=self.interventions * keep,
        )

    def with_targets(self, target_return: npt.ArrayLike, cost_budget: npt.ArrayLike) -> AgentState:
        """The same episodes steered to another return and budget from here on."""
        target, budget = _floats(target_return), _floats(cost_budget)
        if (self.target_return == target).all() and (self.cost_budget == budget).all():
            return self
        shape = self.target_return.shape
        return replace(
            self,
            target_return=np.broadcast_to(target, shape).copy(),
            cost_budget=np.broadcast_to(budget, shape).copy(),
        )

    def with_tokens(self, rtg: Floats, ctg: Floats) -> AgentState:
        """Take what is left from outside (a wrapper's tokens); it answers what was awaited."""
        return replace(
            self,
            total_return=self.target_return - rtg.reshape(-1),
            total_cost=self.cost_budget - ctg.reshape(-1),
            awaiting=np.zeros_like(self.awaiting),
        )

    def push(self, obs: Floats) -> AgentState:
        """Add the present observation (N, O), scaled, to the window.

        Raises:
            StateError: The outcome of the last action has not been seen.
        """
        if self.awaiting.any():
            raise StateError(
                "`predict` was called before the outcome of its last action was seen, so the "
                "return and cost tokens would stand still. Call "
                "`state = state.observe(reward, cost)` after each step, or step an environment "
                "wrapped by `agent.wrap(env)`."
            )
        length = self.obs.shape[1]
        full = self.steps >= length
        place: Any = np.minimum(self.steps, length - 1)
        rows: Any = np.arange(self.n_envs)
        if (place == place[0]).all():  # the common case, much faster without index arrays
            rows, place = slice(None), int(place[0])
        all_full, none_full = bool(full.all()), not full.any()

        def shifted(values: Floats, newest: Floats | float) -> Floats:
            moved = np.empty_like(values)
            if none_full:
                moved[:] = values
            else:
                moved[:, :-1] = values[:, 1:]
                moved[:, -1] = 0.0
                if not all_full:
                    moved[~full] = values[~full]
            moved[rows, place] = newest
            return moved

        return replace(
            self,
            obs=shifted(self.obs, obs),
            actions=shifted(self.actions, 0.0),
            earned=shifted(self.earned, self.total_return),
            spent=shifted(self.spent, self.total_cost),
            steps=self.steps + 1,
        )

    def with_action(self, actions: Floats, shielded: Bools | None = None) -> AgentState:
        """Note the actions (N, A), scaled, given at the last step; `shielded` (N,) if replaced."""
        noted = self.actions.copy()
        last = self.last
        if (last == last[0]).all():
            noted[:, last[0]] = actions
        else:
            noted[np.arange(self.n_envs), last] = actions
        return replace(
            self,
            actions=noted,
            awaiting=np.ones_like(self.awaiting),
            interventions=self.interventions + (0 if shielded is None else shielded),
        )

    @cached_property
    def last(self) -> Ints:
        """(N,) place of the present step in the window."""
        return np.minimum(self.steps, self.obs.shape[1]) - 1

    @property
    def timesteps(self) -> Ints:
        """(N, K) place of each step of the window in its episode; zero for padding."""
        length = self.obs.shape[1]
        offsets = np.maximum(self.steps - length, 0)[:, None]
        places = np.arange(length)
        return np.asarray((offsets + places) * (places <= self.last[:, None]), dtype=np.int64)

    @property
    def rtg(self) -> Floats:
        """(N, K) return-to-go of the window as asked for, unscaled; zero for padding."""
        return self._to_go(self.target_return, self.earned)

    @property
    def ctg(self) -> Floats:
        """(N, K) cost-to-go of the window as asked for, unscaled; zero for padding."""
        return self._to_go(self.cost_budget, self.spent)

    def tokens(self, target_return: Floats, cost_budget: Floats) -> tuple[Floats, Floats]:
        """RTG and CTG of the window (N, K), unscaled, for targets (N,); zero for padding."""
        return self._to_go(target_return, self.earned), self._to_go(cost_budget, self.spent)

    def _to_go(self, target: Floats, before: Floats) -> Floats:
        real = np.arange(before.shape[1]) <= self.last[:, None]
        return np.asarray((target[:, None] - before) * real, dtype=np.float32)

    def _outcome(self, name: str, values: npt.ArrayLike) -> Floats:
        array = _floats(values)
        if array.size not in (1, self.n_envs) or array.ndim > 1:
            raise InvalidArgumentError(
                f"`{name}` must be a number or have shape ({self.n_envs},), got {array.shape}."
            )
        if not np.isfinite(array).all():
            raise InvalidArgumentError(f"`{name}` must be finite, got {array}.")
        return array.reshape(-1) if array.size == self.n_envs else np.full(self.n_envs, array)


def _floats(values: npt.ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float32)
