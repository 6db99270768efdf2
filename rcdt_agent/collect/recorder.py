"""`TrajectoryRecorder`: complete trajectories of any safe environment, whoever drives it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array, Int64Array
from rcdt_agent.action_spaces import DISCRETE
from rcdt_agent.arguments import check_functions
from rcdt_agent.costs import ONE_COST, named_costs
from rcdt_agent.data.arrays import action_rows
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.env_step import CostFunction, CostKey, check_cost_source, kept_for, read_step
from rcdt_agent.errors import DatasetError, InvalidArgumentError
from rcdt_agent.observations import ObservationLayout


@dataclass(frozen=True, kw_only=True, eq=False)
class Trajectory:
    """One episode from reset to its end; T steps."""

    observations: Float32Array
    """(T + 1, O): before each step, and after the last."""
    actions: Float32Array | Int64Array
    """(T, A) as given to `step`; int64 where they are discrete."""
    rewards: Float32Array
    """(T,) as the environment paid them."""
    costs: Float32Array
    """(T,); (T, m) of several costs."""
    terminated: bool
    truncated: bool
    cost_names: tuple[str, ...] = ONE_COST
    layout: ObservationLayout | None = None
    """Of Dict, Tuple and discrete observations, which are recorded flat."""

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.rewards)

    @property
    def episode_return(self) -> float:
        """Sum of the rewards."""
        return float(self.rewards.sum(dtype=np.float64))

    @property
    def episode_cost(self) -> float:
        """Sum of the costs, of all of them where there are several."""
        return float(self.costs.sum(dtype=np.float64))


class TrajectoryRecorder(gym.Wrapper[Any, Any, Any, Any]):
    """Records each episode that runs to its end; one that is abandoned leaves nothing behind.

    `step` of the inner environment may return five or six values; here it is always five, with
    `info["cost"]`, and at the end of an episode `info["trajectory"]` holds the `Trajectory`, which
    is how it travels out of vector environments and other processes.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        sink: Callable[[Trajectory], None] | None = None,
        *,
        cost_key: CostKey = "cost",
        cost_fn: CostFunction | None = None,
        cost_names: Sequence[str] = ONE_COST,
    ) -> None:
        """Wrap an environment.

        Args:
            env: Observations must be a Box of rank 1; Dict, Tuple and discrete ones are recorded
                flat. Actions must be a Box of rank 1, or discrete.
            sink: Receives each finished trajectory, for example `TrajectoryStore(...).append`. By
                default they are kept in `trajectories`.
            cost_key: Where in `info` the cost is (five-value steps).
            cost_fn: Computes the cost instead: (observation, action, next observation, info).
            cost_names: Of several costs, which are a dict or an array in `info`, or have a key
                each, as for `ReturnCostTokens`.

        Raises:
            InvalidArgumentError: A space is neither a Box of rank 1 nor, of actions, discrete.
        """
        if not isinstance(env, gym.Env):
            raise InvalidArgumentError(f"`env` must be a Gymnasium environment, got {env!r}.")
        check_cost_source(cost_key, cost_fn)
        check_functions(sink=sink)
        super().__init__(env)
        self._layout = ObservationLayout.of(env.observation_space)
        seen = self._layout.flat_space if self._layout else env.observation_space
        spaces = {"observation": seen, "action": env.action_space}
        self._discrete = isinstance(env.action_space, DISCRETE)
        for name, space in spaces.items():
            if name == "action" and self._discrete:
                continue
            if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
                raise InvalidArgumentError(
                    f"`env` must have a {name} space that is a Box of rank 1, got {space}."
                )
        self.trajectories: list[Trajectory] = []
        self._left_out: list[str] = []  # of finished episodes, what was not finite
        self._sink = self.trajectories.append if sink is None else sink
        self._cost_key, self._cost_fn = cost_key, cost_fn
        self._cost_names = named_costs(cost_names)
        self._before: Any = None
        self._recording = False
        self._rows: list[tuple[Any, float, Any]] = []  # action, reward, cost
        self._observations: list[Float32Array] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; whatever was in flight is forgotten."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._before = kept_for(self._cost_fn, obs)
        self._rows, self._observations = [], [self._row(obs)]
        self._recording = True
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step and write down; at the end of the episode hand the trajectory over."""
        if not self._recording:
            raise gym.error.ResetNeeded("Call `reset` before `step`: no episode is running.")
        taken = (
            action_rows([np.ravel(action)], "step")[0] if self._discrete else _copy(action)
        )  # before the environment may change it
        obs, reward, cost, terminated, truncated, info = read_step(
            self.env.step(action),
            cost_key=self._cost_key,
            cost_fn=self._cost_fn,
            before=self._before,
            action=action,
            cost_names=self._cost_names,
        )
        self._before = kept_for(self._cost_fn, obs)
        self._rows.append((taken, reward, cost))
        self._observations.append(self._row(obs))
        if terminated or truncated:
            self._recording = False
            trajectory = self._finished(terminated, truncated)
            if trajectory is not None:
                self._sink(trajectory)
                info["trajectory"] = trajectory
        return obs, reward, terminated, truncated, info

    def dataset(self, name: str = "recorded") -> TrajectoryDataset:
        """The finished trajectories in `trajectories`."""
        if self._left_out and not self.trajectories:
            raise DatasetError(
                f"{name}: all {len(self._left_out)} episodes that ran to their end were left out: "
                f"`{self._left_out[0]}` is not finite. Mend what the environment returns."
            )
        return join_trajectories(self.trajectories, name)

    def save(self, path: str | Path) -> None:
        """Write the finished trajectories in `trajectories` as HDF5, complete or not at all."""
        self.dataset().to_hdf5(path)

    def _row(self, obs: Any) -> Float32Array:
        return _copy(obs) if self._layout is None else self._layout.row(obs)

    def _finished(self, terminated: bool, truncated: bool) -> Trajectory | None:
        """The trajectory, or None (and a warning) if the simulator produced NaN or infinity."""
        actions, rewards, costs = zip(*self._rows, strict=True)
        arrays = {
            "observations": np.stack(self._observations),
            "actions": np.stack(actions),
            "rewards": np.array(rewards, dtype=np.float32),
            "costs": np.array(costs, dtype=np.float32),
        }
        bad = [key for key, array in arrays.items() if not np.isfinite(array).all()]
        if bad:
            self._left_out.append(bad[0])
            warnings.warn(
                f"A trajectory of {len(rewards)} steps is left out: `{bad[0]}` is not finite.",
                stacklevel=3,
            )
            return None
        return Trajectory(
            **arrays,
            terminated=terminated,
            truncated=truncated,
            cost_names=self._cost_names,
            layout=self._layout,
        )


def join_trajectories(
    trajectories: Sequence[Trajectory], name: str = "recorded"
) -> TrajectoryDataset:
    """Lay trajectories one after the other in a dataset.

    Raises:
        DatasetError: There is none, or they do not have the same costs.
    """
    if not trajectories:
        raise DatasetError(f"{name}: no episode has run to its end yet, so there is no trajectory.")
    costs = {trajectory.cost_names for trajectory in trajectories}
    if len(costs) > 1:
        raise DatasetError(f"{name}: trajectories of different costs, {sorted(costs)}.")
    layouts = {trajectory.layout for trajectory in trajectories if trajectory.layout}
    if len(layouts) > 1:
        raise DatasetError(f"{name}: trajectories of different observations.")
    terminals, timeouts = np.zeros((2, sum(map(len, trajectories))), dtype=np.bool_)
    last = np.cumsum([len(trajectory) for trajectory in trajectories]) - 1
    terminals[last] = [trajectory.terminated for trajectory in trajectories]
    timeouts[last] = [trajectory.truncated for trajectory in trajectories]
    return TrajectoryDataset.from_arrays(
        observations=np.concatenate([t.observations[:-1] for t in trajectories]),
        next_observations=np.concatenate([t.observations[1:] for t in trajectories]),
        actions=np.concatenate([t.actions for t in trajectories]),
        rewards=np.concatenate([t.rewards for t in trajectories]),
        costs=np.concatenate([t.costs for t in trajectories]),
        terminals=terminals,
        timeouts=timeouts,
        name=name,
        cost_names=trajectories[0].cost_names,
        observation_space=layouts.pop().space if layouts else None,
    )


def _copy(values: npt.ArrayLike) -> Float32Array:
    """A float32 copy: environments may write into the array they returned last."""
    return np.array(values, dtype=np.float32)
