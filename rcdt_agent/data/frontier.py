"""The return-cost frontier of a set of trajectories, and what the data cover of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Frontier:
    """Non-dominated points: no other trajectory returns more at no more cost.

    Attributes:
        costs: (P,) increasing.
        returns: (P,) increasing.
        rows: (P,) which trajectory each point is.
    """

    costs: Floats
    returns: Floats
    rows: npt.NDArray[np.int64]

    def best_return(self, cost_budget: float) -> float:
        """Largest return seen at a cost of at most `cost_budget`; NaN if none was seen."""
        position = int(np.searchsorted(self.costs, cost_budget, side="right"))
        return float(self.returns[position - 1]) if position else float("nan")


def non_dominated(returns: Floats, costs: Floats) -> Frontier:
    """Find the frontier by one sort and a running maximum; equal points are kept once."""
    order = np.lexsort((-returns, costs))  # by cost, the best return of a cost first
    best_before = np.concatenate(([-np.inf], np.maximum.accumulate(returns[order])[:-1]))
    rows = order[returns[order] > best_before]
    return Frontier(costs=costs[rows], returns=returns[rows], rows=rows.astype(np.int64))


def coverage(
    returns: Floats,
    costs: Floats,
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
