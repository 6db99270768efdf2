"""Batches of windows by one index computation over one flat tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.losses import returns_to_go

Sampling = Literal["trajectory", "transition", "cost_tilted"]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Windows of trajectories, right-padded with zeros. B windows, T steps.

    Attributes:
        obs: (B, T, O).
        actions: (B, T, A).
        rewards: (B, T).
        costs: (B, T).
        rtg: (B, T) reward still to come in the trajectory, this step's included.
        ctg: (B, T) cost still to come, this step's included.
        timesteps: (B, T) int64, place in the episode.
        mask: (B, T) bool, True for real steps.
        next_obs: (B, T, O) observation after the step.
        terminals: (B, T) bool, the task ended with this step.
        next_known: (B, T) bool, real steps whose `next_obs` was recorded or is not needed.
        weights: (B,) weight of the window's trajectory.
        trajectories: (B,) int64, which trajectory each window is from.
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    costs: Tensor
    rtg: Tensor
    ctg: Tensor
    timesteps: Tensor
    mask: Tensor
    next_obs: Tensor
    terminals: Tensor
    next_known: Tensor
    weights: Tensor
    trajectories: Tensor


class WindowSampler:
    """Draws batches of windows of `context_length` steps from a dataset.

    All columns lie in one tensor on the training device, a row a step, with one extra row after
    each trajectory for its final observation; a batch is one gather of `context_length + 1`
    consecutive rows per window.
    """

    def __init__(
        self,
        dataset: TrajectoryDataset,
        *,
        context_length: int,
        batch_size: int,
        sampling: Sampling = "trajectory",
        cost_ceiling: float = 70.0,
        weights: Tensor | None = None,
        pareto_fraction: float = 0.0,
        pareto_increase: float = 0.1,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        """Copy the dataset to the device.

        Args:
            dataset: Trajectories.
            context_length: K, steps of a window, >= 1.
            batch_size: Windows of a batch, >= 1.
            sampling: `trajectory`: uniform over trajectories, then over their steps as the start
                of the window. `transition`: uniform over all steps. `cost_tilted`: trajectories
                with probability proportional to max(0, cost_ceiling - cost).
            cost_ceiling: Only for `cost_tilted`.
            weights: (M,) weight of each trajectory; ones by default.
            pareto_fraction: Share of windows taken from the frontier and relabelled: a cost is
                drawn, the best trajectory within it is taken, and its tokens ask for that cost
                and for a somewhat larger return. Rewards and costs stay real.
            pareto_increase: Largest increase of that return, as a share of the range of returns.
            device: Where the tensor lives and batches are made.
            seed: Two samplers with the same seed draw the same batches.
        """
        for name, value in (("context_length", context_length), ("batch_size", batch_size)):
            if value < 1:
                raise InvalidArgumentError(f"`{name}` must be >= 1, got {value}.")
        self.context_length = context_length
        self.batch_size = batch_size
        self.device = torch.device(device)
        self._observation_size = dataset.observation_size
        self._action_size = dataset.action_size
        self._n_steps = dataset.n_transitions
        self._rows = _flat_rows(dataset).to(self.device)
        n = len(dataset)
        self._lengths = torch.from_numpy(dataset.lengths).to(self.device)
        # First row of each trajectory in the flat tensor: one extra row lies after each before it.
        self._firsts = (torch.from_numpy(dataset.offsets[:-1]) + torch.arange(n)).to(self.device)
        self._terminated = torch.from_numpy(dataset.terminated).to(self.device)
        self._final_usable = torch.from_numpy(dataset.final_known | dataset.terminated).to(
            self.device
        )
        self.set_weights(torch.ones(n) if weights is None else weights)
        self.probabilities = _probabilities(dataset, sampling, cost_ceiling)
        self._cdf = (
            None
            if sampling == "trajectory"
            else torch.from_numpy(np.cumsum(self.probabilities)).to(self.device)
        )
        self._pareto_fraction = pareto_fraction
        self._pareto_increase = pareto_increase * float(np.ptp(dataset.returns))
        frontier = dataset.frontier()
        self._frontier_rows = torch.from_numpy(frontier.rows).to(self.device)
        self._frontier_costs = torch.from_numpy(frontier.costs).double().to(self.device)
        self._generator = torch.Generator(device=self.device)
        self._generator.manual_seed(seed)
        self._places = torch.arange(context_length + 1, device=self.device)

    def set_weights(self, weights: Tensor) -> None:
        """Set the (M,) weight of each trajectory."""
        expected = self._lengths.shape
        if weights.shape != expected:
            raise InvalidArgumentError(
                f"`weights` must have shape {tuple(expected)}, got {tuple(weights.shape)}."
            )
        self._weights = weights.float().to(self.device)

    def sample(self) -> Batch:
        """Draw the next batch."""
        uniform = torch.rand(
            2, self.batch_size, dtype=torch.float64, generator=self._generator, device=self.device
        )
        if self._cdf is None:
            chosen = (uniform[0] * len(self._lengths)).long()
        else:
            chosen = torch.searchsorted(self._cdf, uniform[0] * self._cdf[-1], right=True)
            chosen = chosen.clamp_(max=len(self._lengths) - 1)
        if not self._pareto_fraction:
            return self.windows(chosen, (uniform[1] * self._lengths[chosen]).long())
        chosen, more_return, more_cost = self._relabel(chosen)
        batch = self.windows(chosen, (uniform[1] * self._lengths[chosen]).long())
        return replace(
            batch,
            rtg=batch.rtg + more_return[:, None] * batch.mask,
            ctg=batch.ctg + more_cost[:, None] * batch.mask,
        )

    def _relabel(self, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Swap some trajectories for frontier ones, with what their tokens gain."""
        draw = torch.rand(
            3, len(chosen), dtype=torch.float64, generator=self._generator, device=self.device
        )
        low, high = self._frontier_costs[0], self._frontier_costs[-1]
        cost = low + draw[1] * (high - low)
        place = torch.searchsorted(self._frontier_costs, cost, right=True) - 1
        swapped = draw[0] < self._pareto_fraction
        more_cost = (cost - self._frontier_costs[place]) * swapped
        more_return = draw[2] * self._pareto_increase * swapped
        rows = torch.where(swapped, self._frontier_rows[place], chosen)
        return rows, more_return.float(), more_cost.float()

    def windows(self, trajectories: Tensor, starts: Tensor) -> Batch:
        """The windows that begin at step `starts` of `trajectories`, both (B,) int64."""
        size_o, size_a = self._observation_size, self._action_size
        length = self._lengths[trajectories]
        step = starts[:, None] + self._places[:-1]  # (B, T)
        mask = step < length[:, None]
        # T + 1 rows from the start: steps, the final observation, then the row of zeros.
        place = starts[:, None] + self._places
        rows = self._firsts[trajectories, None] + place
        rows = rows.masked_fill_(place > length[:, None], len(self._rows) - 1)
        block = self._rows.index_select(0, rows.flatten()).view(*rows.shape, -1)  # (B, T + 1, D)
        now = block[:, :-1]
        # The row after the last step holds an observation, which is padding in `obs`.
        obs = now[..., :size_o] * mask[..., None]
        next_obs = block[:, 1:, :size_o]
        last = step == length[:, None] - 1
        return Batch(
            obs=obs,
            actions=now[..., size_o : size_o + size_a],
            rewards=now[..., -4],
            costs=now[..., -3],
            rtg=now[..., -2],
            ctg=now[..., -1],
            timesteps=step * mask,
            mask=mask,
            next_obs=next_obs,
            terminals=last & self._terminated[trajectories, None],
            next_known=mask & (~last | self._final_usable[trajectories, None]),
            weights=self._weights[trajectories],
            trajectories=trajectories,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """What is needed to draw the same batches from here on."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self._generator.set_state(state["generator"])


def normalize_weights(weights: Tensor, probabilities: Tensor, maximum: float) -> Tensor:
    """Divide by the mean under the sampler, then clip: the loss keeps its scale (row 6)."""
    mean = (weights * probabilities).sum() / probabilities.sum()
    return (weights / mean).clamp(max=maximum)


def _flat_rows(dataset: TrajectoryDataset) -> Tensor:
    """(N + M + 1, O + A + 4): observation, action, reward, cost, RTG, CTG; the last row is zero."""
    size_o, size_a = dataset.observation_size, dataset.action_size
    n, m = dataset.n_transitions, len(dataset)
    ends = torch.zeros(n, dtype=torch.bool)
    ends[torch.from_numpy(dataset.offsets[1:] - 1)] = True
    rtg, ctg = (
        returns_to_go(torch.from_numpy(values), ends).numpy()
        for values in (dataset.step_rewards, dataset.step_costs)
    )
    rows = np.zeros((n + m + 1, size_o + size_a + 4), dtype=np.float32)
    columns = (dataset.step_rewards, dataset.step_costs, rtg, ctg)
    for i, (start, end) in enumerate(pairwise(dataset.offsets)):  # by slices: no temporary copies
        part = rows[start + i : end + i]
        part[:, :size_o] = dataset.observations[start:end]
        part[:, size_o : size_o + size_a] = dataset.actions[start:end]
        for place, values in enumerate(columns, start=size_o + size_a):
            part[:, place] = values[start:end]
        rows[end + i, :size_o] = dataset.final_observations[i]
    return torch.from_numpy(rows)


def _probabilities(
    dataset: TrajectoryDataset, sampling: Sampling, cost_ceiling: float
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(M,) how likely each trajectory is to be drawn."""
    if sampling == "trajectory":
        weight = np.ones(len(dataset))
    elif sampling == "transition":
        weight = dataset.lengths.astype(np.float64)
    elif sampling == "cost_tilted":
        weight = np.maximum(0.0, cost_ceiling - dataset.costs.astype(np.float64))
        if not weight.any():
            raise InvalidArgumentError(
                f"`cost_ceiling` must exceed the smallest cost of the data "
                f"({dataset.costs.min():g}), got {cost_ceiling:g}."
            )
    else:
        raise InvalidArgumentError(
            f"`sampling` must be trajectory, transition or cost_tilted, got {sampling!r}."
        )
    return np.asarray(weight / weight.sum())
