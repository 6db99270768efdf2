"""Batches of single transitions drawn from a dataset, by index: nothing is copied beforehand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.mapped import as_tensor, take
from rcdt_agent.errors import DatasetError


@dataclass(frozen=True, kw_only=True, eq=False)
class Transitions:
    """Single steps of trajectories in units of the task.

    Attributes:
        obs: (B, O).
        actions: (B, A).
        rewards: (B,).
        costs: (B,).
        next_obs: (B, O) observation after the step.
        terminals: (B,) bool, the task ended with this step.
        ends: (B,) bool, the trajectory ended with this step, in whichever way.
        is_first: (B,) bool, the first step of its trajectory.
        timesteps: (B,) int64, number of the step in its trajectory.
        next_known: (B,) bool, `next_obs` was recorded or is not needed.
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    costs: Tensor
    next_obs: Tensor
    terminals: Tensor
    ends: Tensor
    is_first: Tensor
    timesteps: Tensor
    next_known: Tensor


class TransitionSampler:
    """Draws batches uniformly over all transitions.

    On the CPU the dataset's arrays are read where they are; to another device they are copied
    once, unless they are memory-mapped. Random numbers come from a CPU generator on every device,
    so that a run can move.
    """

    def __init__(
        self,
        dataset: TrajectoryDataset,
        *,
        batch_size: int,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
        only_followed: bool = False,
    ) -> None:
        """Bring the data to the device.

        Args:
            dataset: Trajectories.
            batch_size: Transitions of a batch.
            generator: On the CPU; two samplers in the same state draw the same batches.
            device: Where batches are made.
            only_followed: Leave out last steps whose next observation was not recorded, for
                algorithms that bootstrap from it.

        Raises:
            DatasetError: Only such steps were asked for, and there are none.
        """
        self.batch_size = batch_size
        self.generator = generator
        self.device = torch.device(device)
        self.obs = as_tensor(dataset.observations, device)
        self.actions = as_tensor(dataset.actions, device)
        self._rewards = torch.from_numpy(dataset.rewards).to(device)
        self._costs = torch.from_numpy(dataset.costs).to(device)
        self._offsets = torch.from_numpy(dataset.offsets).to(device)
        self._final_obs = torch.from_numpy(dataset.final_observations).to(device)
        self._terminated = torch.from_numpy(dataset.terminated).to(device)
        known = dataset.terminated | dataset.final_known
        self._final_known = torch.from_numpy(known).to(device)
        self._rows: Tensor | None = None  # those to draw from, if not all
        if only_followed and not known.all():
            unknown = dataset.offsets[1:][~known] - 1
            rows = np.delete(np.arange(dataset.n_transitions), unknown)
            if not len(rows):
                raise DatasetError(f"{dataset.name}: no next observation was recorded.")
            self._rows = torch.from_numpy(rows)

    def sample(self) -> tuple[Tensor, Tensor]:
        """Observations (B, O) and actions (B, A), for imitation."""
        rows = self._draw()
        return take(self.obs, rows), take(self.actions, rows)

    def sample_transitions(self) -> Transitions:
        """Draw the next batch."""
        return self.transitions(self._draw())

    def sample_initial_obs(self) -> Tensor:
        """(B, O) first observations of trajectories drawn uniformly."""
        n_trajectories = len(self._offsets) - 1
        drawn = torch.randint(n_trajectories, (self.batch_size,), generator=self.generator)
        return take(self.obs, self._offsets[drawn.to(self.device)])

    def transitions(self, rows: Tensor) -> Transitions:
        """The transitions at rows (B,) int64 of the dataset."""
        trajectories = torch.searchsorted(self._offsets, rows, right=True) - 1
        first, last = self._offsets[trajectories], self._offsets[trajectories + 1] - 1
        ends = rows == last
        next_obs = torch.where(
            ends[:, None],
            self._final_obs[trajectories],
            take(self.obs, torch.minimum(rows + 1, last)),
        )
        return Transitions(
            obs=take(self.obs, rows),
            actions=take(self.actions, rows),
            rewards=self._rewards[rows],
            costs=self._costs[rows],
            next_obs=next_obs,
            terminals=ends & self._terminated[trajectories],
            ends=ends,
            is_first=rows == first,
            timesteps=rows - first,
            next_known=~ends | self._final_known[trajectories],
        )

    def _draw(self) -> Tensor:
        """(B,) rows of the dataset."""
        n_rows = len(self.obs) if self._rows is None else len(self._rows)
        drawn = torch.randint(n_rows, (self.batch_size,), generator=self.generator)
        rows = drawn if self._rows is None else self._rows[drawn]
        return rows.to(self.device)
