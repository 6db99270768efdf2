"""Labelled segments of trajectories, drawn by index: what TraC learns from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rcdt_agent._types import Float64Array, Int64Array
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.mapped import as_tensor, take
from rcdt_agent.errors import DatasetError

MAX_SEGMENTS = 1_000_000
"""Segments of the published table, at most."""
_STARTS_PER_SEGMENT = 6  # the published table has one segment for every six possible starts

DESIRABLE, UNDESIRABLE, DROPPED = 1, 0, -1


@dataclass(frozen=True, kw_only=True, eq=False)
class SegmentTable:
    """Where segments can be cut, with a label each; rows refer to the dataset.

    Attributes:
        length: L, steps of the longest segment.
        first: (S,) row of the first possible first step.
        starts: (S,) how many first steps there are, counted from `first`.
        lengths: (S,) steps of the segment, <= L.
        labels: (S,) 1 desirable, 0 undesirable.
        weights: (S,) weight in the loss.
    """

    length: int
    first: Int64Array
    starts: Int64Array
    lengths: Int64Array
    labels: Int64Array
    weights: Float64Array

    def __len__(self) -> int:
        """Number of entries."""
        return len(self.first)

    def keep_labelled(self) -> SegmentTable:
        """The same without the entries that have no label."""
        kept = self.labels != DROPPED
        return SegmentTable(
            length=self.length,
            first=self.first[kept],
            starts=self.starts[kept],
            lengths=self.lengths[kept],
            labels=self.labels[kept],
            weights=self.weights[kept],
        )


def label_by_outcome(
    returns: Float64Array,
    costs: Float64Array,
    cost_limit: float,
    *,
    desirable_share: float,
    undesirable_share: float,
    least_weight: float,
    name: str = "dataset",
) -> tuple[Int64Array, Float64Array]:
    """TraC's labels and weights (S,): the best of the safe are desirable, all unsafe are not.

    With r in [0, 1] the return scaled over the safe ones and k the least weight, the desirable
    weigh k + (1 - k) r, safe undesirable ones k + (1 - k)(1 - r), unsafe ones 1.

    Args:
        returns: (S,).
        costs: (S,).
        cost_limit: What a safe one costs at most.
        desirable_share: Of the safe ones, from the best.
        undesirable_share: Of the safe ones, from the worst; a desirable one stays desirable.
        least_weight: k, in [0, 1].
        name: Of the data, for messages.

    Raises:
        DatasetError: Nothing is safe, or all that is safe returns the same.
    """
    safe = np.flatnonzero(costs <= cost_limit)
    if not len(safe):
        raise DatasetError(
            f"{name}: none of {len(costs)} costs at most {cost_limit:g} (the cheapest "
            f"{costs.min():g}), so nothing is desirable. Raise `cost_budget`."
        )
    low, high = returns[safe].min(), returns[safe].max()
    if high <= low:
        raise DatasetError(
            f"{name}: the {len(safe)} within a cost of {cost_limit:g} all return {low:g}, so none "
            f"of them is better than another. TraC needs data of different returns."
        )
    scaled = (returns[safe] - low) / (high - low)
    order = np.argsort(scaled, kind="stable")
    best = order[-math.ceil(len(safe) * desirable_share) :]
    worst = order[: min(math.ceil(len(safe) * undesirable_share), len(safe) - len(best))]
    labels = np.full(len(costs), UNDESIRABLE, dtype=np.int64)
    weights = np.ones(len(costs))
    labels[safe] = DROPPED
    labels[safe[best]] = DESIRABLE
    weights[safe[best]] = least_weight + (1 - least_weight) * scaled[best]
    labels[safe[worst]] = UNDESIRABLE
    weights[safe[worst]] = least_weight + (1 - least_weight) * (1 - scaled[worst])
    return labels, weights


def trajectory_segments(
    dataset: TrajectoryDataset, length: int, cost_budget: float, **labelling: float
) -> SegmentTable:
    """One entry a trajectory, labelled by the whole of it, as the paper has it.

    A segment may begin wherever it fits; a trajectory shorter than L is taken whole.
    """
    labels, weights = label_by_outcome(
        dataset.episode_returns.astype(np.float64),
        dataset.episode_costs.astype(np.float64),
        cost_budget,
        **labelling,
        name=f"{dataset.name}, trajectories",
    )
    lengths = np.minimum(dataset.lengths, length)
    return SegmentTable(
        length=length,
        first=dataset.offsets[:-1],
        starts=dataset.lengths - lengths + 1,
        lengths=lengths,
        labels=labels,
        weights=weights,
    ).keep_labelled()


def published_segments(
    dataset: TrajectoryDataset, length: int, cost_budget: float, *, seed: int, **labelling: float
) -> SegmentTable:
    """A fixed table of random segments, each labelled by its own steps, as the published code.

    A segment is safe if it costs at most its share of the budget, by its length. Trajectories that
    are too short are left out.

    Raises:
        DatasetError: As `label_by_outcome`.
    """
    longest = int(dataset.lengths.max())
    fitting = np.flatnonzero(dataset.lengths >= length)
    n = ((longest - length) // _STARTS_PER_SEGMENT) * len(dataset)
    n = min(n if length < longest else len(fitting), MAX_SEGMENTS)
    if n < 1:
        n = len(fitting)  # too near the full length for the published count
    rng = np.random.default_rng(seed)
    chosen = rng.choice(fitting, n)
    first = dataset.offsets[chosen] + rng.integers(0, dataset.lengths[chosen] - length + 1)

    def sums(values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Float64Array:
        total = np.concatenate(([0.0], np.cumsum(values, dtype=np.float64)))
        return np.asarray(np.round(total[first + length] - total[first], 6))

    labels, weights = label_by_outcome(
        sums(dataset.rewards),
        sums(dataset.costs),
        cost_budget * length / longest,
        **labelling,
        name=f"{dataset.name}, segments of {length} steps",
    )
    return SegmentTable(
        length=length,
        first=first,
        starts=np.ones(n, dtype=np.int64),
        lengths=np.full(n, length, dtype=np.int64),
        labels=labels,
        weights=weights,
    ).keep_labelled()


@dataclass(frozen=True, kw_only=True, eq=False)
class SegmentBatch:
    """Segments in units of the task; padding repeats the last step and is masked.

    Attributes:
        obs: (B, T, O).
        actions: (B, T, A).
        mask: (B, T) bool, real steps.
        desirable: (B,) bool.
        weights: (B,).
    """

    obs: Tensor
    actions: Tensor
    mask: Tensor
    desirable: Tensor
    weights: Tensor


class SegmentSampler:
    """Draws segments of a table uniformly; steps are gathered by index, nothing is copied."""

    def __init__(
        self,
        dataset: TrajectoryDataset,
        table: SegmentTable,
        *,
        batch_size: int,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
    ) -> None:
        """Bring the data to the device.

        Args:
            dataset: Trajectories.
            table: Where to cut.
            batch_size: Segments of a batch.
            generator: On the CPU; two samplers in the same state draw the same batches.
            device: Where batches are made.
        """
        self.batch_size = batch_size
        self.generator = generator
        self.device = torch.device(device)
        self.obs = as_tensor(dataset.observations, device)
        self.actions = as_tensor(dataset.actions, device)
        self._first = torch.from_numpy(table.first)
        self._starts = torch.from_numpy(table.starts)
        self._lengths = torch.from_numpy(table.lengths)
        self._desirable = torch.from_numpy(table.labels == DESIRABLE)
        self._weights = torch.from_numpy(table.weights).float()
        self._steps = torch.arange(int(table.lengths.max()))

    def sample(self) -> SegmentBatch:
        """Draw the next batch."""
        size = (self.batch_size,)
        entry = torch.randint(len(self._first), size, generator=self.generator)
        uniform = torch.rand(size, dtype=torch.float64, generator=self.generator)
        first = self._first[entry] + (uniform * self._starts[entry]).long()
        length = self._lengths[entry][:, None]
        rows = first[:, None] + torch.minimum(self._steps, length - 1)  # (B, T)
        flat = rows.flatten().to(self.device)
        shape = rows.shape
        return SegmentBatch(
            obs=take(self.obs, flat).view(*shape, -1),
            actions=take(self.actions, flat).view(*shape, -1),
            mask=(self._steps < length).to(self.device),
            desirable=self._desirable[entry].to(self.device),
            weights=self._weights[entry].to(self.device),
        )
