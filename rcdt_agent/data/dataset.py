"""`TrajectoryDataset`: flat arrays plus episode offsets, checked when built."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent._types import BoolArray, Float32Array, Int64Array
from rcdt_agent.arguments import check_number, check_path, check_texts, check_whole
from rcdt_agent.costs import ONE_COST, CostBudget, in_order
from rcdt_agent.data.arrays import checked_fields
from rcdt_agent.data.frontier import Frontier, Outcomes, coverage
from rcdt_agent.data.readers import episode_arrays, frame_arrays
from rcdt_agent.data.spaces import check_spaces
from rcdt_agent.data.subsets import bottom_rows, chosen_rows, extreme_rows, split_rows
from rcdt_agent.data.summary import DatasetSummary
from rcdt_agent.data.sums import episode_sums, sums_to_go
from rcdt_agent.errors import DatasetError, InvalidArgumentError
from rcdt_agent.images import ImageShape
from rcdt_agent.observations import ObservationLayout


@dataclass(frozen=True, kw_only=True, eq=False)
class TrajectoryDataset:
    """Trajectories one after the other in flat float32 arrays, images in uint8.

    Make one with `from_hdf5`, `from_arrays`, `from_episodes`, `from_dataframe` or `from_minari`.
    The observation that follows a step is the next row, or, after the last step of a trajectory, a
    row of `final_observations`; so no second copy of the observations is kept.

    Attributes:
        observations: (N, O) observation before each step; of images uint8, channels first.
        actions: (N, A); int64 where they are discrete, one column for each choice.
        rewards: (N,) reward of each step.
        costs: (N,) cost of each step, >= 0; (N, m) of m costs.
        offsets: (M + 1,) first row of each trajectory, and N.
        terminated: (M,) ended by the task: nothing follows, value estimates stop here.
        truncated: (M,) ended by a time limit or by the end of the recording.
        final_observations: (M, O) observation after the last step.
        final_known: (M,) False where no observation after the last step was recorded; such a
            step of a truncated trajectory cannot be used for value learning.
        name: File name or description, for messages.
        cost_names: Of the costs; `("cost",)` where there is one.
        layout: Where the parts of Dict, Tuple or discrete observations lie, or the shape of images;
            None: plain arrays.
    """

    observations: npt.NDArray[Any]
    actions: npt.NDArray[Any]
    rewards: Float32Array
    costs: Float32Array
    offsets: Int64Array
    terminated: BoolArray
    truncated: BoolArray
    final_observations: npt.NDArray[Any]
    final_known: BoolArray
    name: str = "dataset"
    cost_names: tuple[str, ...] = ONE_COST
    layout: ObservationLayout | None = None

    def __repr__(self) -> str:
        """Name and size; the arrays are too long to show."""
        sizes = f"{len(self):,} trajectories, {self.n_transitions:,} transitions"
        return f"TrajectoryDataset({self.name!r}: {sizes})"

    @classmethod
    def from_arrays(
        cls,
        *,
        observations: Any,
        actions: npt.ArrayLike,
        rewards: npt.ArrayLike,
        costs: npt.ArrayLike | Mapping[str, npt.ArrayLike],
        terminals: npt.ArrayLike | None = None,
        timeouts: npt.ArrayLike | None = None,
        next_observations: Any = None,
        dones: npt.ArrayLike | None = None,
        name: str = "arrays",
        cost_names: Any = None,
        observation_space: gym.Space[Any] | None = None,
    ) -> TrajectoryDataset:
        """Build from flat arrays in DSRL's layout, trajectories one after the other.

        Args:
            observations: (N, O); or a dict or tuple of arrays (N, ...), stored flat; or images,
                uint8 (N, C, H, W) or (N, H, W, C), which stay uint8.
            actions: (N, A). Whole numbers, (N,) or (N, k), are discrete actions.
            rewards: (N,) or (N, 1).
            costs: (N,) or (N, 1), >= 0. Several costs: (N, m), or a mapping of names to (N,).
            terminals: (N,) nonzero where the task ended the episode.
            timeouts: (N,) nonzero where a time limit ended it.
            next_observations: (N, O), an array or anything that can be sliced by rows: an h5py
                dataset stays on disk. Without it the following row serves, and the observation
                after the last step of each trajectory is unknown.
            dones: (N,) nonzero where an episode ended for whatever reason, in place of one or both
                of the above. Where nothing says that the task ended it, nothing is assumed about
                what would have followed, and the last step is left out of value learning.
            name: Used in messages.
            cost_names: Of the columns of (N, m) costs; default: `cost_0`, `cost_1` and so on.
            observation_space: Of the observations, where they are not plain arrays: `Discrete`
                parts become one-hot by it. Default: all parts are numbers.

        Raises:
            DatasetError: Wrong rank, different lengths, NaN or infinity, negative cost, no
                trajectory; the message names the array and the first offending row.
        """
        return cls(
            **checked_fields(
                observations=observations,
                actions=actions,
                rewards=rewards,
                costs=costs,
                terminals=terminals,
                timeouts=timeouts,
                next_observations=next_observations,
                dones=dones,
                name=name,
                cost_names=cost_names,
                observation_space=observation_space,
            )
        )

    @classmethod
    def from_hdf5(
        cls, path: str | Path, *, cost_names: Sequence[str] | None = None
    ) -> TrajectoryDataset:
        """Read a file in DSRL's layout; `next_observations` may be absent.

        Several costs are columns of `costs`, named by its attribute `cost_names`; or, in a file
        without `costs`, all datasets `costs_NAME`.

        Args:
            path: The file.
            cost_names: Read these costs alone, in this order.

        Raises:
            DatasetError: Not HDF5, truncated, a key missing, or anything `from_arrays` refuses;
                the message names file, key and first offending row.
        """
        from rcdt_agent.data.hdf5 import read_hdf5

        return read_hdf5(check_path("path", path), cost_names)

    @classmethod
    def from_episodes(
        cls,
        episodes: Sequence[Mapping[str, Any]],
        *,
        name: str = "episodes",
        cost_names: Sequence[str] | None = None,
        observation_space: gym.Space[Any] | None = None,
    ) -> TrajectoryDataset:
        """Build from a list of episodes.

        Args:
            episodes: Each a mapping with `observations` (T, O), or (T + 1, O) with the one after
                the last step, `actions` (T, A), `rewards` (T,), `costs` (T,) (of several costs
                (T, m), or a mapping of names to (T,)), and `terminated`: whether the task ended
                it, default False. Arrays `terminals`, `timeouts` and `next_observations`, as in
                `from_arrays`, are taken too.
            name: Used in messages.
            cost_names: As for `from_arrays`.
            observation_space: As for `from_arrays`; `observations` may be a dict of arrays, or a
                list of dicts.

        Raises:
            DatasetError: A key is missing, or anything `from_arrays` refuses.
        """
        arrays = episode_arrays(episodes, name, cost_names, observation_space)
        return cls.from_arrays(**arrays, name=name)

    @classmethod
    def from_dataframe(
        cls, frame: Any, *, name: str = "data frame", **columns: Any
    ) -> TrajectoryDataset:
        """Build from a table with one row a step, of pandas or polars.

        Args:
            frame: Rows of an episode in order of time; episodes may be mixed.
            name: Used in messages.
            **columns: Names of columns where they are not the usual ones: `observations` and
                `actions` (several; default: all that begin with `obs` and with `action`),
                `reward`, `cost` (or a list: several costs), `episode` (which episode a row belongs
                to) and `terminated` (optional: whether the task ended the episode at this row).

        Raises:
            DatasetError: A column is missing, or anything `from_arrays` refuses.
        """
        return cls.from_arrays(**frame_arrays(frame, name, **columns), name=name)

    @classmethod
    def from_minari(cls, dataset: Any) -> TrajectoryDataset:
        """Read a Minari dataset, or the one of that id, with costs in `infos["cost"]`."""
        from rcdt_agent.data.minari import read_minari

        return read_minari(dataset)

    @classmethod
    def from_npy(cls, folder: str | Path) -> TrajectoryDataset:
        """Open a folder of .npy files, observations and actions memory-mapped; see `to_npy`."""
        from rcdt_agent.data.mapped import read_npy

        return read_npy(check_path("folder", folder))

    def to_npy(self, folder: str | Path) -> None:
        """Write a new folder of .npy files, from which data larger than memory are trained on."""
        from rcdt_agent.data.mapped import write_npy

        write_npy(self, check_path("folder", folder))

    def to_hdf5(self, path: str | Path, *, compression: int = 1) -> None:
        """Write a file in DSRL's layout, which `dsrl` reads too; complete or not at all.

        Args:
            path: Where to.
            compression: Level of gzip, 0 .. 9.
        """
        from rcdt_agent.data.hdf5 import write_hdf5

        if check_whole("compression", compression) > 9:
            raise InvalidArgumentError(f"`compression` must be <= 9, got {compression}.")
        write_hdf5(self, check_path("path", path), compression)

    def to_minari(self, dataset_id: str, **kwargs: Any) -> Any:
        """Write a new local Minari dataset, cost in the infos; arguments as `write_minari`."""
        from rcdt_agent.data.minari import write_minari

        if not isinstance(dataset_id, str):
            raise InvalidArgumentError(
                f"`dataset_id` must be a text such as 'plant/log-v0', got {dataset_id!r}."
            )
        return write_minari(self, dataset_id, **kwargs)

    def __len__(self) -> int:
        """Number of trajectories."""
        return len(self.offsets) - 1

    @property
    def n_transitions(self) -> int:
        """Number of steps over all trajectories."""
        return len(self.rewards)

    @property
    def observation_size(self) -> int:
        """Length of an observation."""
        return int(self.observations.shape[1])

    @property
    def image_shape(self) -> ImageShape | None:
        """(C, H, W) of observations that are images; None of others."""
        return self.layout.image if self.layout else None

    @property
    def action_size(self) -> int:
        """Length of an action."""
        return int(self.actions.shape[1])

    @property
    def discrete_actions(self) -> bool:
        """Whether actions are whole numbers."""
        return bool(np.issubdtype(self.actions.dtype, np.integer))

    @property
    def n_costs(self) -> int:
        """m, the number of costs."""
        return len(self.cost_names)

    @cached_property
    def lengths(self) -> Int64Array:
        """(M,) steps of each trajectory."""
        return np.diff(self.offsets)

    @cached_property
    def episode_returns(self) -> Float32Array:
        """(M,) sum of rewards of each trajectory."""
        return episode_sums(self.rewards, self.offsets)

    @cached_property
    def episode_costs(self) -> Float32Array:
        """(M,) sum of costs of each trajectory; (M, m) of several costs."""
        return episode_sums(self.costs, self.offsets)

    @cached_property
    def returns_to_go(self) -> Float32Array:
        """(N,) undiscounted reward from each step to the end of its trajectory."""
        return sums_to_go(self.rewards, self.offsets)

    @cached_property
    def costs_to_go(self) -> Float32Array:
        """(N,) undiscounted cost from each step to the end of its trajectory; (N, m) of several."""
        if self.n_costs == 1:
            return sums_to_go(self.costs, self.offsets)
        return np.stack([sums_to_go(costs, self.offsets) for costs in self.costs.T.copy()], axis=1)

    @cached_property
    def outcomes(self) -> Outcomes:
        """Return and cost of each trajectory: what an agent keeps of its training data."""
        return Outcomes(
            returns=self.episode_returns, costs=self.episode_costs, cost_names=self.cost_names
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the contents: checkpoints remember which data they were trained on."""
        digest = hashlib.sha256()
        for array in (self.observations, self.actions, self.rewards, self.costs):
            digest.update(np.ascontiguousarray(array).data)
        digest.update(self.offsets.tobytes() + self.terminated.tobytes())
        if self.n_costs > 1:
            digest.update(repr(self.cost_names).encode())
        if self.layout is not None:
            digest.update(self.layout.to_json().encode())
        return digest.hexdigest()[:16]

    def summary(self) -> DatasetSummary:
        """The figures worth knowing before training."""
        return DatasetSummary.of(self)

    def frontier(self) -> Frontier:
        """The non-dominated return-cost points."""
        return self.outcomes.frontier

    def coverage(
        self, target_return: float, cost_budget: CostBudget, tolerance: float = 0.05
    ) -> float:
        """Share of trajectories near the target: the paper's alpha_F, estimated from the data."""
        check_number("target_return", target_return)
        check_number("tolerance", tolerance, 0)
        wanted = self._in_order("`cost_budget`", cost_budget)
        for each in np.ravel(wanted).tolist():
            check_number("cost_budget", each, 0)
        return coverage(self.episode_returns, self.episode_costs, target_return, wanted, tolerance)

    def _in_order(self, what: str, values: Any) -> Any:
        """A number, or numbers (m,) of several costs that are given by name."""
        if self.n_costs == 1 and not isinstance(values, Mapping):
            return values
        return np.asarray(
            in_order(what, values if isinstance(values, Mapping) else {}, self.cost_names)
        )

    def alignment_bound(
        self,
        target_return: float,
        cost_budget: CostBudget,
        *,
        epsilon: float,
        tolerance: float = 0.05,
    ) -> float:
        """Theorem 1 with this dataset's coverage and longest episode (constant 1)."""
        from rcdt_agent.losses import alignment_bound

        check_number("epsilon", epsilon, 0)
        alpha = self.coverage(target_return, cost_budget, tolerance)
        return alignment_bound(epsilon, alpha, int(self.lengths.max()))

    def check_spaces(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        """Refuse an environment whose sizes are not the data's, or whose actions are not.

        Raises:
            DatasetError: Names the file, the key, and both sizes, or the first row outside.
        """
        check_spaces(self, observation_space, action_space)

    def check_sizes(self, observation_size: int, action_size: int, whose: str) -> None:
        """Refuse sizes that are not the data's; `whose` they are is said in the message.

        Raises:
            DatasetError: Names the file, the key and both sizes.
        """
        for key, size, expected in (
            ("observations", self.observation_size, observation_size),
            ("actions", self.action_size, action_size),
        ):
            if size != expected:
                raise DatasetError(
                    f"{self.name}: `{key}` have size {size}, but {whose} have size {expected}."
                )

    def select(self, rows: npt.ArrayLike, *, suffix: str = "selection") -> TrajectoryDataset:
        """A new dataset of the given trajectories, in the given order."""
        check_texts(suffix=suffix)
        chosen = chosen_rows(rows, len(self))
        if chosen.size == 0:
            raise DatasetError(f"{self.name}: the selection ({suffix}) holds no trajectory.")
        lengths = self.lengths[chosen]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        # Row of each kept step: its trajectory's first row plus its place within.
        steps = np.arange(offsets[-1]) + np.repeat(self.offsets[chosen] - offsets[:-1], lengths)
        return TrajectoryDataset(
            observations=self.observations[steps],
            actions=self.actions[steps],
            rewards=self.rewards[steps],
            costs=self.costs[steps],
            offsets=offsets,
            terminated=self.terminated[chosen],
            truncated=self.truncated[chosen],
            final_observations=self.final_observations[chosen],
            final_known=self.final_known[chosen],
            cost_names=self.cost_names,
            layout=self.layout,
            name=f"{self.name} ({suffix})",
        )

    def filter(
        self,
        *,
        min_return: float = -np.inf,
        max_return: float = np.inf,
        max_cost: CostBudget = np.inf,
        min_length: int = 1,
    ) -> TrajectoryDataset:
        """Keep the trajectories within the bounds (inclusive).

        `max_cost` of several costs is given by name, of those that are bounded.
        """
        check_number("min_return", min_return)
        check_number("max_return", max_return)
        check_whole("min_length", min_length)
        for each in max_cost.values() if isinstance(max_cost, Mapping) else (max_cost,):
            check_number("max_cost", each)
        within = np.ones(len(self), dtype=np.bool_)
        if self.n_costs == 1 or max_cost != np.inf:
            bounds = dict.fromkeys(self.cost_names, np.inf) if self.n_costs > 1 else {}
            if isinstance(max_cost, Mapping):
                max_cost = {**bounds, **max_cost}
            beyond = self.episode_costs > self._in_order("`max_cost`", max_cost)
            within = ~beyond.reshape(len(self), -1).any(axis=1)
        keep = (
            (self.episode_returns >= min_return)
            & (self.episode_returns <= max_return)
            & within
            & (self.lengths >= min_length)
        )
        return self.select(np.nonzero(keep)[0], suffix="filtered")

    def bottom(self, rho: float) -> TrajectoryDataset:
        """Keep the `rho` percent of trajectories with the smallest returns."""
        return self.select(bottom_rows(self.episode_returns, rho), suffix=f"bottom {rho:g} %")

    def extremes(self, rho: float) -> TrajectoryDataset:
        """Keep the `rho` percent with the smallest and as many with the largest returns."""
        return self.select(extreme_rows(self.episode_returns, rho), suffix=f"extremes {rho:g} %")

    def split(
        self, fraction: float, *, seed: int = 0
    ) -> tuple[TrajectoryDataset, TrajectoryDataset]:
        """Divide the trajectories at random: `fraction` of them, and the rest."""
        first, rest = split_rows(len(self), fraction, seed)
        return self.select(first, suffix="split"), self.select(rest, suffix="rest")
