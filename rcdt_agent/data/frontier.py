"""Returns and costs of a dataset's episodes: frontier, coverage, and the targets they support."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array, Float64Array, Int64Array
from rcdt_agent.costs import ONE_COST, check_cost_names
from rcdt_agent.data.dominance import DominanceTable, dominance_frontier, target_within
from rcdt_agent.errors import InvalidArgumentError

if TYPE_CHECKING:
    from rcdt_agent.data.dataset import TrajectoryDataset

MIN_TRAJECTORIES = 5
"""A quantile of returns is taken over at least so many trajectories (or all there are)."""

_TABLE_STEPS, _TABLE_COSTS = 48, 40  # largest size of a table of returns-to-go
_SAVED_STEPS, _SAVED_TRAJECTORIES = 24, 256  # of several costs, as an agent keeps it


@dataclass(frozen=True)
class Frontier:
    """Non-dominated points: no other trajectory returns more at no more cost.

    Attributes:
        costs: (P,) increasing; (P, m) of several costs.
        returns: (P,) increasing.
        rows: (P,) which trajectory each point is.
    """

    costs: Float32Array
    returns: Float32Array
    rows: Int64Array

    def best_return(self, cost_budget: npt.ArrayLike) -> float:
        """Largest return seen at a cost of at most `cost_budget`, (m,) of several; NaN if none."""
        if self.costs.ndim == 2:
            within = (self.costs <= np.asarray(cost_budget)).all(1)
            return float(self.returns[within].max()) if within.any() else float("nan")
        position = int(np.searchsorted(self.costs, cost_budget, side="right"))
        return float(self.returns[position - 1]) if position else float("nan")


def non_dominated(returns: Float32Array, costs: Float32Array) -> Frontier:
    """Find the frontier by one sort and a running maximum; equal points are kept once."""
    if costs.ndim == 2:
        rows = dominance_frontier(returns, costs)
        return Frontier(costs=costs[rows], returns=returns[rows], rows=rows)
    order = np.lexsort((-returns, costs))  # by cost, the best return of a cost first
    best_before = np.concatenate(([-np.inf], np.maximum.accumulate(returns[order])[:-1]))
    rows = order[returns[order] > best_before]
    return Frontier(costs=costs[rows], returns=returns[rows], rows=rows.astype(np.int64))


def coverage(
    returns: Float32Array,
    costs: Float32Array,
    target_return: float,
    cost_budget: npt.ArrayLike,
    tolerance: float = 0.05,
) -> float:
    """Share of trajectories at the target: the paper's alpha_F, estimated from the data.

    Args:
        returns: (M,) returns.
        costs: (M,) costs, or (M, m).
        target_return: Wanted return.
        cost_budget: Wanted cost, or (m,).
        tolerance: How close counts as equal, as a share of the range of returns and of costs.
    """
    near_return = np.abs(returns - target_return) <= tolerance * np.ptp(returns)
    near_cost = np.abs(costs - np.asarray(cost_budget)) <= tolerance * np.ptp(costs, axis=0)
    return float(np.mean(near_return & near_cost.reshape(len(costs), -1).all(1)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcomes:
    """Return and cost of each training episode.

    Attributes:
        returns: (M,) float32.
        costs: (M,) float32; (M, m) of several costs.
        cost_names: Of the costs.
    """

    returns: Float32Array
    costs: Float32Array
    cost_names: tuple[str, ...] = ONE_COST

    def __post_init__(self) -> None:
        """Refuse what no dataset gives."""
        n_costs = len(self.cost_names)
        if n_costs > 1 and self.costs.shape[1:] != (n_costs,):
            raise InvalidArgumentError(
                f"`costs` must have {n_costs} columns, got shape {self.costs.shape}."
            )
        for name, values, rank in (
            ("returns", self.returns, 1),
            ("costs", self.costs, 1 + (n_costs > 1)),
        ):
            if values.ndim != rank or values.size == 0 or not np.isfinite(values).all():
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
        return _typical(self.costs)

    @property
    def typical_costs(self) -> Float64Array:
        """() or (m,) the typical cost of each."""
        if self.costs.ndim == 1:
            return np.asarray(self.typical_cost)
        return np.array([_typical(costs) for costs in self.costs.T])

    def n_within(self, cost_budget: npt.ArrayLike) -> int:
        """Number of episodes that cost at most `cost_budget`; of several, (m,), at most all."""
        within = self.costs <= np.asarray(cost_budget)
        return int(np.sum(within if within.ndim == 1 else within.all(1)))

    def target_return(self, cost_budget: npt.ArrayLike, quantile: float) -> float:
        """A high quantile of the returns within a budget, which never falls with the budget.

        The quantile is taken at every cost on the frontier up to the budget (over the
        `MIN_TRAJECTORIES` cheapest episodes where fewer lie within), and the largest is kept:
        whoever keeps a smaller budget keeps a larger one too.

        Args:
            cost_budget: Largest cost of an episode; (m,) of several costs.
            quantile: In [0, 1].
        """
        if self.costs.ndim == 2:
            return target_within(
                self.returns,
                self.costs,
                self.frontier.costs,
                np.asarray(cost_budget, dtype=np.float64),
                quantile=quantile,
                unit=self.typical_costs,
                least=min(MIN_TRAJECTORIES, len(self)),
            )
        by_cost = self.returns[np.argsort(self.costs, kind="stable")]
        least = min(MIN_TRAJECTORIES, len(self))
        levels = [cost for cost in self.frontier.costs if cost <= cost_budget]
        return max(
            float(np.quantile(by_cost[: max(self.n_within(level), least)], quantile))
            for level in [*levels, cost_budget]
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as stored in a checkpoint."""
        names = {"cost_names": list(self.cost_names)} if len(self.cost_names) > 1 else {}
        return {"returns": self.returns.tolist(), "costs": self.costs.tolist(), **names}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Outcomes:
        """The inverse of `to_dict`."""
        names = values.get("cost_names")
        return cls(
            returns=np.asarray(values["returns"], dtype=np.float32),
            costs=np.asarray(values["costs"], dtype=np.float32),
            cost_names=check_cost_names(names, len(names)) if names else ONE_COST,
        )


def _typical(costs: Float32Array) -> float:
    return float(np.median(costs)) or float(costs.mean()) or 1.0


def fit_table(
    dataset: TrajectoryDataset, *, quantile: float, cost_unit: npt.ArrayLike
) -> ReturnToGoTable | DominanceTable:
    """What the data still earned from a step on, for one cost or for several (m,)."""
    if dataset.n_costs == 1:
        return ReturnToGoTable.fit(
            dataset, quantile=quantile, cost_unit=float(np.asarray(cost_unit))
        )
    return DominanceTable.fit(
        dataset,
        quantile=quantile,
        cost_unit=cost_unit,
        least=MIN_TRAJECTORIES,
        n_steps=_SAVED_STEPS,
        n_trajectories=_SAVED_TRAJECTORIES,
    )


def table_from_dict(
    values: dict[str, Any], cost_names: tuple[str, ...]
) -> ReturnToGoTable | DominanceTable:
    """The table of a checkpoint whose agent has these costs."""
    if len(cost_names) == 1:
        return ReturnToGoTable.from_dict(values)
    table = DominanceTable.from_dict(values)
    if len(table.unit) != len(cost_names):
        raise ValueError(f"a table of returns-to-go has {len(table.unit)} costs")
    return table


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
