"""Balance on the return-cost plane, as DSRL's authors did: so many trajectories a cell."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float64Array, Int64Array
from rcdt_agent.errors import InvalidArgumentError


def balanced_rows(
    returns: npt.ArrayLike,
    costs: npt.ArrayLike,
    *,
    per_cell: int,
    return_cells: int = 40,
    cost_cells: int = 50,
    seed: int = 0,
) -> Int64Array:
    """Rows to keep so that no cell of the plane holds more than `per_cell` trajectories.

    The grid divides the range of the data evenly. Learning from dense data is drawn to where the
    trajectories are many, not to where they are good; thinning the dense cells evens that out.

    Args:
        returns: (M,) return of each trajectory.
        costs: (M,) cost of each trajectory.
        per_cell: Most trajectories of a cell, >= 1; which ones is drawn at random.
        return_cells: Cells along the return axis, >= 1.
        cost_cells: Cells along the cost axis, >= 1.
        seed: Of the draw.

    Returns:
        Rows in ascending order.

    Raises:
        InvalidArgumentError: A number is below 1, or the arrays differ in shape.
    """
    returns, costs = np.asarray(returns, np.float64), np.asarray(costs, np.float64)
    if returns.ndim != 1 or returns.shape != costs.shape:
        raise InvalidArgumentError(
            f"`returns` and `costs` must be of one shape (M,), got {returns.shape} and "
            f"{costs.shape}."
        )
    sizes = {"per_cell": per_cell, "return_cells": return_cells, "cost_cells": cost_cells}
    for name, value in sizes.items():
        if value < 1:
            raise InvalidArgumentError(f"`{name}` must be >= 1, got {value}.")
    cells = _cell(returns, return_cells) * cost_cells + _cell(costs, cost_cells)
    shuffled = np.random.default_rng(seed).permutation(len(cells))
    # Within each cell the shuffled order decides: a row's rank is its distance to the cell's first.
    order = shuffled[np.argsort(cells[shuffled], kind="stable")]
    grouped = cells[order]
    rank = np.arange(len(order)) - np.searchsorted(grouped, grouped)
    return np.sort(order[rank < per_cell])


def _cell(values: Float64Array, cells: int) -> Int64Array:
    """Cell of each value; the largest value belongs to the last cell."""
    if not len(values):
        return np.zeros(0, dtype=np.int64)
    low, width = values.min(), np.ptp(values) / cells
    share = (values - low) / width if width > 0 else np.zeros_like(values)
    return np.minimum(share.astype(np.int64), cells - 1)
