"""Returns and costs of a dataset's episodes: frontier, coverage, and the targets they support."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array, Int64Array
from rcdt_agent.errors import InvalidArgumentError

if TYPE_CHECKING:
    from rcdt_agent.data.dataset import TrajectoryDataset

MIN_TRAJECTORIES = 5
"""A quantile of returns is taken over at least so many trajectories (or all there are)."""

_TABLE_STEPS, _TABLE_COSTS = 48, 40  # largest size of a table of returns-to-go


@dataclass(frozen=True)
class Frontier:
    """Non-dominated points: no other trajectory returns more at no more cost.

    Attributes:
        costs: (P,) increasing.
        returns: (P,) increasing.
        rows: (P,) which trajectory each point is.
    """

    costs: Float32Array
    returns: Float32Array
    rows: Int64Array

    def best_return(self, cost_budget: float) -> float:
        """Largest return seen at a cost of at most `cost_budget`; NaN if none was seen."""
        position = int(np.searchsorted(self.costs, cost_budget, side="right"))
        return float(self.returns[position - 1]) if position else float("nan")


def non_dominated(returns: Float32Array, costs: Float32Array) -> Frontier:
    """Find the frontier by one sort and a running maximum; equal points are kept once."""
    order = np.lexsort((-returns, costs))  # by cost, the best return of a cost first
    best_before = np.concatenate(([-np.inf], np.maximum.accumulate(returns[order])[:-1]))
    rows = order[returns[order] > best_before]
    return Frontier(costs=costs[rows], returns=returns[rows], rows=rows.astype(np.int64))


def coverage(
    returns: Float32Array,
    costs: Float32Array,
    target_return: float,
    cost_budget: float,
    tolerance: float = 0.05,
) -> float:
    """Share of trajectories at the target: the paper's alpha_F, estimated from the data.

    Args:
        returns: (M,) returns.
        costs: (M,) costs.
        target_return: Wanted return.
        cost_budget: Wanted cost.
        tolerance: How close counts as equal, as a share of the range of returns and of costs.
    """
    near_return = np.abs(returns - target_return) <= tolerance * np.ptp(returns)
    near_cost = np.abs(costs - cost_budget) <= tolerance * np.ptp(costs)
    return float(np.mean(near_return & near_cost))


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcomes:
    """Return and cost of each training episode.

    Attributes:
        returns: (M,) float32.
        costs: (M,) float32.
    """

    returns: Float32Array
    costs: Float32Array

    def __post_init__(self) -> None:
        """Refuse what no dataset gives."""
        for name, values in (("returns", self.returns), ("costs", self.costs)):
            if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
                raise InvalidArgumentError(f"`{name}` must be a row of finite numbers.")
        if len(self.returns) != len(self.costs):
            raise InvalidArgumentError(
                f"`returns` and `costs` must be as many, got {len(self.returns)} and "
                f"{len(self.costs)}."
            )

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.returns)

    @cached_property
    def frontier(self) -> Frontier:
        """The non-dominated return-cost points."""
        return non_dominated(self.returns, self.costs)

    @property
    def return_range(self) -> tuple[float, float]:
        """Smallest and largest return; one apart where all returns are equal."""
        low, high = float(self.returns.min()), float(self.returns.max())
        return low, high if high > low else low + 1.0

    @property
    def typical_cost(self) -> float:
        """The median cost; the mean where the median is zero, 1 where nothing costs anything."""
        return float(np.median(self.costs)) or float(self.costs.mean()) or 1.0

    def n_within(self, cost_budget: float) -> int:
        """Number of episodes that cost at most `cost_budget`."""
        return int(np.sum(self.costs <= cost_budget))

    def target_return(self, cost_budget: float, quantile: float) -> float:
        """A high quantile of the returns within a budget, which never falls with the budget.

        The quantile is taken at every cost on the frontier up to the budget (over the
        `MIN_TRAJECTORIES` cheapest episodes where fewer lie within), and the largest is kept:
        whoever keeps a smaller budget keeps a larger one too.

        Args:
            cost_budget: Largest cost of an episode.
            quantile: In [0, 1].
        """
        by_cost = self.returns[np.argsort(self.costs, kind="stable")]
        least = min(MIN_TRAJECTORIES, len(self))
        levels = [cost for cost in self.frontier.costs if cost <= cost_budget]
        return max(
            float(np.quantile(by_cost[: max(self.n_within(level), least)], quantile))
            for level in [*levels, cost_budget]
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as stored in a checkpoint."""
        return {"returns": self.returns.tolist(), "costs": self.costs.tolist()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Outcomes:
        """The inverse of `to_dict`."""
        return cls(
            returns=np.asarray(values["returns"], dtype=np.float32),
            costs=np.asarray(values["costs"], dtype=np.float32),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ReturnToGoTable:
    """A table of returns-to-go over steps of the episode and cost still allowed.

    Attributes:
        steps: (P,) increasing steps of the episode.
        costs: (L,) increasing cost-to-go, from 0.
        returns: (P, L) a high quantile of the return-to-go among the trajectories that, at that
            step, still spend no more than that cost; never falling with the cost.
    """

    steps: Float32Array
    costs: Float32Array
    returns: Float32Array

    @classmethod
    def fit(
        cls, dataset: TrajectoryDataset, *, quantile: float, cost_unit: float
    ) -> ReturnToGoTable:
        """Tabulate a dataset.

        Args:
            dataset: Training data.
            quantile: Which return-to-go among those within the cost.
            cost_unit: Costs are resolved evenly below it and ever more coarsely above.
        """
        rtg, ctg = dataset.returns_to_go, dataset.costs_to_go
        longest = int(dataset.lengths.max())
        steps = np.unique(
            np.linspace(0, longest - 1, min(_TABLE_STEPS, longest)).round().astype(int)
        )
        top = np.arcsinh(max(float(dataset.episode_costs.max()), cost_unit) / cost_unit)
        levels = cost_unit * np.sinh(np.linspace(0, top, _TABLE_COSTS))
        rows = np.empty((len(steps), len(levels)), dtype=np.float32)
        for row, step in zip(rows, steps, strict=True):
            under_way = np.flatnonzero(dataset.lengths > step)
            at = dataset.offsets[:-1][under_way] + step
            order = np.argsort(ctg[at], kind="stable")
            spent, earned = ctg[at][order], rtg[at][order]
            least = min(MIN_TRAJECTORIES, len(order))
            within = np.maximum(np.searchsorted(spent, levels + 1e-6, side="right"), least)
            row[:] = [np.quantile(earned[:n], quantile) for n in within]
        return cls(
            steps=steps.astype(np.float32),
            costs=levels.astype(np.float32),
            returns=np.maximum.accumulate(rows, axis=1),
        )

    def __call__(self, steps: npt.ArrayLike, costs: npt.ArrayLike) -> Float32Array:
        """(N,) returns-to-go at steps (N,) with costs (N,) left, interpolated both ways."""
        i, along = _place(self.steps, steps)
        j, across = _place(self.costs, costs)
        up, right = np.minimum(i + 1, len(self.steps) - 1), j + 1
        table = self.returns
        before = (1 - across) * table[i, j] + across * table[i, right]
        after = (1 - across) * table[up, j] + across * table[up, right]
        return np.asarray((1 - along) * before + along * after, dtype=np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as stored in a checkpoint."""
        return {
            "steps": self.steps.tolist(),
            "costs": self.costs.tolist(),
            "returns": self.returns.tolist(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ReturnToGoTable:
        """The inverse of `to_dict`."""
        table = cls(**{name: np.asarray(v, dtype=np.float32) for name, v in values.items()})
        if table.returns.shape != (len(table.steps), len(table.costs)):
            raise ValueError(f"a table of returns-to-go has shape {table.returns.shape}")
        if not all(np.isfinite(v).all() for v in (table.steps, table.costs, table.returns)):
            raise ValueError("a table of returns-to-go is not finite")
        return table


def _place(grid: Float32Array, values: npt.ArrayLike) -> tuple[npt.NDArray[np.intp], Float32Array]:
    """Left neighbour in an increasing grid, and how far beyond it, in [0, 1]."""
    inside = np.clip(np.asarray(values, dtype=np.float32), grid[0], grid[-1])
    left = np.clip(np.searchsorted(grid, inside, side="right") - 1, 0, max(len(grid) - 2, 0))
    if len(grid) == 1:
        return left, np.zeros_like(inside)
    return left, (inside - grid[left]) / (grid[left + 1] - grid[left])
