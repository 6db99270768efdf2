"""`AgentState`: the context of one or many running episodes, immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import BoolArray, Float32Array, Float64Array, Int64Array
from rcdt_agent.action_range import ActionRange
from rcdt_agent.costs import ONE_COST
from rcdt_agent.deploy.checks import (
    check_actions,
    check_costs,
    check_episode_start,
    check_outcome,
)
from rcdt_agent.deploy.rolling import RollingWindow
from rcdt_agent.errors import StateError

if TYPE_CHECKING:  # `rcdt_agent.onnx_agent` carries these states without torch
    import torch

    from rcdt_agent.model import Window


Floats = Float32Array | Float64Array


class StateUse:
    """Whether anybody used the state of an episode after `predict` had returned it.

    Shared by all states of the episode: dropping it (`action, _ = agent.predict(obs)`) would begin
    a new episode, with the whole budget, at each step.
    """

    used = False

    def __deepcopy__(self, memo: dict[int, Any]) -> StateUse:
        return self


@dataclass(frozen=True, kw_only=True, eq=False)
class AgentState:
    """What `predict` returns and wants back. Every array has a leading axis of environments.

    The window holds the last K steps, right-padded: exactly what the sampler cuts from a recorded
    episode, in units of the task. It stores what had been earned and spent before each step
    instead of tokens, so that a budget changed in mid-episode changes the whole window
    consistently.

    Attributes:
        obs: (N, K, O) observations; of images uint8.
        actions: (N, K, A) actions; the last real one is the action just given.
        earned: (N, K) return before each step.
        spent: (N, K) cost before each step; (N, K, m) of several costs.
        steps: (N,) steps of the episode begun so far, since this state follows it.
        skipped: (N,) steps made before this state took the episode over.
        total_return: (N,) reward seen so far.
        total_cost: (N,) cost seen so far; (N, m) of several costs.
        target_return: (N,) what the episode should return.
        cost_budget: (N,) what it may cost; (N, m) of several costs.
        awaiting: (N,) an action was given whose reward and cost have not been seen.
        shielded: (N,) whether the critic shield replaced the policy's last action.
        follows_agent: Whether `set_cost_budget` on the agent applies to these episodes.
        use: Whether `predict` or `observe` has been called with a state of these episodes.
        cost_names: Of the costs, in the order of the last axis.
        rolling: What the last steps cost, where the budget is one for a rolling window of steps;
            None: it is one for an episode.
        action_range: Which numbers are actions; None: any.
    """

    obs: npt.NDArray[Any]
    actions: Float32Array
    earned: Float64Array
    spent: Float64Array
    steps: Int64Array
    skipped: Int64Array
    total_return: Float64Array
    total_cost: Float64Array
    target_return: Float32Array
    cost_budget: Float32Array
    awaiting: BoolArray
    shielded: BoolArray
    follows_agent: bool = True
    use: StateUse = field(default_factory=StateUse)
    cost_names: tuple[str, ...] = ONE_COST
    rolling: RollingWindow | None = None
    action_range: ActionRange | None = None

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
        cost_names: tuple[str, ...] = ONE_COST,
        action_range: ActionRange | None = None,
        observation_dtype: npt.DTypeLike = np.float32,
    ) -> AgentState:
        """Episodes about to start."""
        per_cost = () if len(cost_names) == 1 else (len(cost_names),)

        def zeros(*shape: int, dtype: Any = np.float32) -> npt.NDArray[Any]:
            return np.zeros((n_envs, *shape), dtype=dtype)

        sums = partial(zeros, dtype=np.float64)  # on a plant that never resets they grow for ever

        def each(values: npt.ArrayLike, *shape: int) -> Float32Array:
            return np.broadcast_to(np.asarray(values, dtype=np.float32), (n_envs, *shape)).copy()

        return cls(
            obs=np.zeros((n_envs, context_length, observation_size), dtype=observation_dtype),
            actions=zeros(context_length, action_size),
            earned=sums(context_length),
            spent=sums(context_length, *per_cost),
            steps=np.zeros(n_envs, dtype=np.int64),
            skipped=np.zeros(n_envs, dtype=np.int64),
            total_return=sums(),
            total_cost=sums(*per_cost),
            target_return=each(target_return),
            cost_budget=each(cost_budget, *per_cost),
            awaiting=np.zeros(n_envs, dtype=np.bool_),
            shielded=np.zeros(n_envs, dtype=np.bool_),
            follows_agent=follows_agent,
            cost_names=cost_names,
            action_range=action_range,
        )

    @property
    def n_envs(self) -> int:
        """Number of environments."""
        return len(self.steps)

    @property
    def episode_steps(self) -> Int64Array:
        """(N,) steps of the episode begun so far, whoever made them."""
        return self.skipped + self.steps

    @property
    def return_to_go(self) -> Float32Array:
        """(N,) what is left to earn."""
        return (self.target_return - self.total_return).astype(np.float32)

    @property
    def cost_to_go(self) -> Float32Array:
        """(N,) or (N, m) what is left to spend; below zero once the budget is exceeded."""
        spent = self.total_cost
        if self.rolling is not None:
            spent = self.rolling.spent(spent)
        return (self.cost_budget - spent).astype(np.float32)

    @property
    def clock(self) -> Int64Array:
        """(N,) the step of an episode that the present tokens speak of."""
        if self.rolling is not None:
            return np.full(self.n_envs, self.rolling.clock, dtype=np.int64)
        return self.episode_steps - 1

    def observe(
        self,
        reward: npt.ArrayLike,
        cost: npt.ArrayLike | Mapping[str, npt.ArrayLike],
        action: npt.ArrayLike | None = None,
    ) -> AgentState:
        """Tell the state what the last action earned and cost.

        Args:
            reward: A number, or (N,).
            cost: A number, or (N,), >= 0. Of several costs, such numbers by name, or (N, m).
            action: What was done instead of what `predict` returned, of the same shape: by a
                fallback, or by hand.

        Raises:
            StateError: No action is waiting for its outcome: it would be counted twice.
            InvalidArgumentError: Wrong shape, not finite, a negative cost, a cost that is unknown
                or missing, or an action outside its space. Nothing is counted then.
        """
        earned = check_outcome("reward", reward, self.n_envs)
        spent = check_costs(cost, self.cost_names, self.n_envs)
        if not self.awaiting.all():
            raise StateError(
                "`observe` was called without an action waiting for its outcome: call it once "
                "after each step, with that step's reward and cost."
            )
        state = self
        if action is not None:
            shape = self.n_envs, self.actions.shape[-1]
            state = self.with_action(check_actions(action, shape, self.action_range), self.shielded)
        self.use.used = True
        return replace(
            state,
            total_return=self.total_return + earned,
            total_cost=self.total_cost + spent,
            awaiting=np.zeros_like(self.awaiting),
        )

    def restart(self, which: npt.ArrayLike) -> AgentState:
        """New episodes where `which` (N,) is True; the others go on."""
        chosen = check_episode_start(which, self.n_envs)
        if not chosen.any():
            return self
        keep = ~chosen

        def cleared(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.asarray(values * keep.reshape(-1, *[1] * (values.ndim - 1)))

        return replace(
            self,
            obs=cleared(self.obs),
            actions=cleared(self.actions),
            earned=cleared(self.earned),
            spent=cleared(self.spent),
            steps=self.steps * keep,
            skipped=self.skipped * keep,
            total_return=cleared(self.total_return),
            total_cost=cleared(self.total_cost),
            awaiting=self.awaiting & keep,
            shielded=self.shielded & keep,
            rolling=self.rolling.restart(keep) if self.rolling is not None else None,
        )

    def with_targets(self, target_return: npt.ArrayLike, cost_budget: npt.ArrayLike) -> AgentState:
        """The same episodes steered to another return and budget from here on."""
        target, budget = _floats(target_return), _floats(cost_budget)
        if (self.target_return == target).all() and (self.cost_budget == budget).all():
            return self
        return replace(
            self,
            target_return=np.broadcast_to(target, self.target_return.shape).copy(),
            cost_budget=np.broadcast_to(budget, self.cost_budget.shape).copy(),
        )

    def with_cost_window(self, steps: int | None, episode_length: int) -> AgentState:
        """The same episodes with budgets for every `steps` steps; None: for the whole episode.

        Args:
            steps: Of the rolling window. What was spent before it is first asked for counts until
                that many steps have passed.
            episode_length: Of the training data.
        """
        present = self.rolling.steps if self.rolling is not None else None
        if present == steps:
            return self
        rolling = steps and RollingWindow.begin(self.total_cost, steps, episode_length)
        return replace(self, rolling=rolling or None)

    def with_own_targets(
        self, target_return: npt.ArrayLike, cost_budget: npt.ArrayLike
    ) -> AgentState:
        """The same episodes at targets of their own: the agent's do not apply to them."""
        return replace(self.with_targets(target_return, cost_budget), follows_agent=False)

    def with_facts(
        self, total_return: Float64Array, total_cost: Float64Array, episode_step: Float64Array
    ) -> AgentState:
        """Take what was earned, spent and made (N,) from a wrapper; it answers what was awaited.

        A state that has seen nothing yet takes an episode over at any step.
        """
        taken_over = (self.steps == 0) & (episode_step > 0)
        return replace(
            self,
            skipped=np.where(taken_over, episode_step, self.skipped).astype(np.int64),
            total_return=total_return,
            total_cost=total_cost,
            awaiting=np.zeros_like(self.awaiting),
        )

    def push(self, obs: npt.NDArray[Any]) -> AgentState:
        """Add the present observation (N, O) to the window.

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

        def shifted(values: npt.NDArray[Any], newest: npt.ArrayLike) -> npt.NDArray[Any]:
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
            rolling=self.rolling.push(self.total_cost) if self.rolling is not None else None,
        )

    def with_action(self, actions: Float32Array, shielded: BoolArray | None = None) -> AgentState:
        """Note the actions (N, A) given at the present step; `shielded` (N,) where replaced."""
        noted = self.actions.copy()
        position = self.position
        if (position == position[0]).all():
            noted[:, position[0]] = actions
        else:
            noted[np.arange(self.n_envs), position] = actions
        return replace(
            self,
            actions=noted,
            awaiting=np.ones_like(self.awaiting),
            shielded=np.zeros_like(self.awaiting) if shielded is None else shielded,
        )

    @cached_property
    def position(self) -> Int64Array:
        """(N,) place of the present step in the window."""
        return np.minimum(self.steps, self.obs.shape[1]) - 1

    @property
    def timesteps(self) -> Int64Array:
        """(N, K) place of each step of the window in its episode; zero for padding."""
        length = self.obs.shape[1]
        if self.rolling is not None:
            ages = self.position[:, None] - np.arange(length)
            return np.asarray(np.maximum(self.rolling.clock - ages, 0) * (ages >= 0))
        offsets = (self.skipped + np.maximum(self.steps - length, 0))[:, None]
        places = np.arange(length)
        return np.asarray((offsets + places) * (places <= self.position[:, None]), dtype=np.int64)

    @property
    def rtg(self) -> Float32Array:
        """(N, K) return-to-go of the window as asked for, unscaled; zero for padding."""
        return self._to_go(self.target_return, self.earned)

    @property
    def ctg(self) -> Float32Array:
        """(N, K) or (N, K, m) cost-to-go as asked for, unscaled; zero for padding."""
        return self._to_go(self.cost_budget, self.spent)

    def tokens(
        self, target_return: Floats, cost_budget: Floats
    ) -> tuple[Float32Array, Float32Array]:
        """RTG and CTG of the window (N, K) for targets (N,); zero for padding.

        Of several costs, CTG (N, K, m) for budgets (N, m).
        """
        return self._to_go(target_return, self.earned), self._to_go(cost_budget, self.spent)

    def window_arrays(
        self, target_return: Floats, cost_budget: Floats
    ) -> dict[str, npt.NDArray[Any]]:
        """The fields of a `Window` for targets (N,), each (N, K, ...)."""
        rtg, ctg = self.tokens(target_return, cost_budget)
        return {
            "obs": self.obs,
            "actions": self.actions,
            "rtg": rtg,
            "ctg": ctg,
            "timesteps": self.timesteps,
            "mask": np.arange(self.obs.shape[1]) <= self.position[:, None],
        }

    def window(self, target_return: Floats, cost_budget: Floats, device: torch.device) -> Window:
        """What the policy network sees, without columns that are padding everywhere."""
        import torch

        from rcdt_agent.model import Window

        used = int(self.position.max()) + 1
        arrays = self.window_arrays(target_return, cost_budget)
        return Window(**{k: torch.from_numpy(v[:, :used]).to(device) for k, v in arrays.items()})

    def _to_go(self, target: Floats, before: Float64Array) -> Float32Array:
        real = np.arange(before.shape[1]) <= self.position[:, None]
        real = real.reshape(*real.shape, *[1] * (before.ndim - 2))
        return np.asarray((target[:, None] - before) * real, dtype=np.float32)


def _floats(values: npt.ArrayLike) -> Float32Array:
    return np.asarray(values, dtype=np.float32)
