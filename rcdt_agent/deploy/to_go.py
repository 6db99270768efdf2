"""What the data still earned from a step on, given what they still spent: the frontier to go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.sampler import to_go

Floats = npt.NDArray[np.float32]

FEW = 5  # fewer trajectories within a budget than this are an anecdote
_STEPS, _LEVELS = 48, 40  # size of the table


@dataclass(frozen=True, kw_only=True, eq=False)
class ReturnToGo:
    """A table of returns-to-go over steps of the episode and cost still allowed.

    Attributes:
        steps: (P,) increasing steps of the episode.
        costs: (L,) increasing cost-to-go, from 0.
        returns: (P, L) a high quantile of the return-to-go among the trajectories that, at that
            step, still spend no more than that cost; never falling with the cost.
    """

    steps: Floats
    costs: Floats
    returns: Floats

    @classmethod
    def fit(cls, dataset: TrajectoryDataset, *, quantile: float, cost_unit: float) -> ReturnToGo:
        """Tabulate a dataset.

        Args:
            dataset: Training data.
            quantile: Which return-to-go among those within the cost.
            cost_unit: Costs are resolved evenly below it and ever more coarsely above.
        """
        rtg, ctg = to_go(dataset)
        longest = int(dataset.lengths.max())
        steps = np.unique(np.linspace(0, longest - 1, min(_STEPS, longest)).round().astype(int))
        top = np.arcsinh(max(float(dataset.episode_costs.max()), cost_unit) / cost_unit)
        levels = cost_unit * np.sinh(np.linspace(0, top, _LEVELS))
        rows = np.empty((len(steps), len(levels)), dtype=np.float32)
        for row, step in zip(rows, steps, strict=True):
            under_way = np.flatnonzero(dataset.lengths > step)
            at = dataset.offsets[:-1][under_way] + step
            order = np.argsort(ctg[at], kind="stable")
            spent, earned = ctg[at][order], rtg[at][order]
            few = min(FEW, len(order))
            within = np.maximum(np.searchsorted(spent, levels + 1e-6, side="right"), few)
            row[:] = [np.quantile(earned[:n], quantile) for n in within]
        return cls(
            steps=steps.astype(np.float32),
            costs=levels.astype(np.float32),
            returns=np.maximum.accumulate(rows, axis=1),
        )

    def __call__(self, steps: npt.ArrayLike, costs: npt.ArrayLike) -> Floats:
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
    def from_dict(cls, values: dict[str, Any]) -> ReturnToGo:
        """The inverse of `to_dict`."""
        table = cls(**{name: np.asarray(v, dtype=np.float32) for name, v in values.items()})
        if table.returns.shape != (len(table.steps), len(table.costs)):
            raise ValueError(f"a table of returns-to-go has shape {table.returns.shape}")
        if not all(np.isfinite(v).all() for v in (table.steps, table.costs, table.returns)):
            raise ValueError("a table of returns-to-go is not finite")
        return table


def _place(grid: Floats, values: npt.ArrayLike) -> tuple[npt.NDArray[np.intp], Floats]:
    """Left neighbour in an increasing grid, and how far beyond it, in [0, 1]."""
    inside = np.clip(np.asarray(values, dtype=np.float32), grid[0], grid[-1])
    left = np.clip(np.searchsorted(grid, inside, side="right") - 1, 0, max(len(grid) - 2, 0))
    if len(grid) == 1:
        return left, np.zeros_like(inside)
    return left, (inside - grid[left]) / (grid[left + 1] - grid[left])
