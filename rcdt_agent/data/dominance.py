"""Returns-to-go of steps whose every cost-to-go is within its own bound: several costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import BoolArray, Float32Array, Float64Array, Int64Array

if TYPE_CHECKING:
    from rcdt_agent.data.dataset import TrajectoryDataset

_VALUES = 4_000_000  # compared at a time
_ENDED = -1.0  # in a checkpoint: the cost of a trajectory that is over


@dataclass(frozen=True, kw_only=True, eq=False)
class DominanceTable:
    """What recorded trajectories still earn from a step on, within bounds of every cost.

    A table over all costs would grow with their number; here recorded steps are kept as they are,
    and compared with the bounds when asked.

    Attributes:
        steps: (P,) increasing steps of the episode.
        costs: (m, P, M) costs-to-go of M trajectories at these steps; infinite after their end.
        returns: (P, M) their returns-to-go, increasing along M.
        unit: (m,) in which excess over different bounds is compared.
        quantile: Which return-to-go among those within.
        least: Taken over at least so many trajectories: the nearest to the bounds where fewer lie
            within.
    """

    steps: Float32Array
    costs: Float32Array
    returns: Float32Array
    unit: Float32Array
    quantile: float
    least: int

    @classmethod
    def fit(
        cls,
        dataset: TrajectoryDataset,
        *,
        quantile: float,
        cost_unit: npt.ArrayLike,
        least: int,
        n_steps: int,
        n_trajectories: int,
    ) -> DominanceTable:
        """Keep some steps of a dataset.

        Args:
            dataset: Training data, with m costs.
            quantile: Which return-to-go among those within.
            cost_unit: (m,).
            least: As above.
            n_steps: P, at most.
            n_trajectories: M, at most; always the same ones, drawn at random.
        """
        longest, n = int(dataset.lengths.max()), min(n_trajectories, len(dataset))
        steps = np.unique(np.linspace(0, longest - 1, min(n_steps, longest)).round().astype(int))
        drawn, first = np.random.default_rng(0).permutation(len(dataset)), dataset.lengths.argmax()
        # The longest comes first: somebody is under way at every step.
        chosen = np.concatenate(([first], drawn[drawn != first]))[:n]
        costs = np.full((dataset.n_costs, len(steps), n), np.inf, dtype=np.float32)
        returns = np.full((len(steps), n), np.inf, dtype=np.float32)
        for row, step in enumerate(steps):
            under_way = dataset.lengths[chosen] > step
            at = dataset.offsets[:-1][chosen][under_way] + step
            order = np.argsort(dataset.returns_to_go[at], kind="stable")
            returns[row, : len(at)] = dataset.returns_to_go[at][order]
            costs[:, row, : len(at)] = dataset.costs_to_go[at][order].T
        return cls(
            steps=steps.astype(np.float32),
            costs=costs,
            returns=np.where(np.isfinite(returns), returns, 0.0).astype(np.float32),
            unit=np.asarray(cost_unit, dtype=np.float32),
            quantile=quantile,
            least=least,
        )

    def __call__(self, steps: npt.ArrayLike, costs: npt.ArrayLike) -> Float32Array:
        """(N,) returns-to-go at steps (N,) with costs (N, m) left, interpolated between steps."""
        found: Float32Array = self.quantiles(steps, costs, (self.quantile,))[0]
        return found

    def quantiles(
        self, steps: npt.ArrayLike, costs: npt.ArrayLike, quantiles: tuple[float, ...]
    ) -> Float32Array:
        """(Q, N) several quantiles at once."""
        bounds = np.asarray(costs, dtype=np.float32)
        place = np.interp(np.asarray(steps), self.steps, np.arange(len(self.steps)))
        low = np.floor(place).astype(np.int64)
        along = (place - low).astype(np.float32)
        found = self._at(low, bounds, quantiles)
        between = np.flatnonzero(along)
        if len(between):
            high = self._at(low[between] + 1, bounds[between], quantiles)
            found[:, between] += along[between] * (high - found[:, between])
        return found

    def _at(
        self, rows: Int64Array, bounds: Float32Array, quantiles: tuple[float, ...]
    ) -> Float32Array:
        size = max(1, _VALUES // self.returns.shape[1])
        parts = [
            self._part(rows[i : i + size], bounds[i : i + size], quantiles)
            for i in range(0, len(rows), size)
        ]
        return np.concatenate(parts, axis=1)

    def _part(
        self, rows: Int64Array, bounds: Float32Array, quantiles: tuple[float, ...]
    ) -> Float32Array:
        within = np.ones((len(rows), self.returns.shape[1]), dtype=np.bool_)
        for costs, bound in zip(self.costs, bounds.T, strict=True):
            within &= costs[rows] <= bound[:, None] + np.float32(1e-6)
        least = np.minimum(self.least, self._under_way[rows])
        few = np.flatnonzero(np.count_nonzero(within, axis=1) < least)
        if len(few):
            excess = self.costs[:, rows[few]] - bounds[few].T[:, :, None]
            excess = (excess / self.unit[:, None, None]).max(0)
            within[few] = nearest(excess, least[few])
        # Returns rise along M: the k-th of those within is the k-th smallest.
        count = within.cumsum(1, dtype=np.int32)
        returns, at = self.returns[rows], np.arange(len(rows))
        found = np.empty((len(quantiles), len(rows)), dtype=np.float32)
        for values, quantile in zip(found, quantiles, strict=True):
            place = quantile * (count[:, -1] - 1)
            k = np.floor(place).astype(np.int32)
            lower = returns[at, (count > k[:, None]).argmax(1)]
            upper = returns[at, (count > np.ceil(place)[:, None]).argmax(1)]
            values[:] = lower + (place - k) * (upper - lower)
        return found

    @cached_property
    def _under_way(self) -> Int64Array:
        """(P,) trajectories that are not over at a step."""
        return np.asarray(np.isfinite(self.costs[0]).sum(1), dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as stored in a checkpoint."""
        return {
            "steps": self.steps.tolist(),
            "costs": np.where(np.isfinite(self.costs), self.costs, _ENDED).tolist(),
            "returns": self.returns.tolist(),
            "unit": self.unit.tolist(),
            "quantile": self.quantile,
            "least": self.least,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DominanceTable:
        """The inverse of `to_dict`."""
        arrays = {
            name: np.asarray(values[name], dtype=np.float32)
            for name in ("steps", "costs", "returns", "unit")
        }
        shape = arrays["costs"].shape
        if (
            not all(array.size and np.isfinite(array).all() for array in arrays.values())
            or len(shape) != 3
            or arrays["returns"].shape != shape[1:]
            or (arrays["steps"].shape, arrays["unit"].shape) != (shape[1:2], shape[:1])
            or (arrays["unit"] <= 0).any()
            or (np.diff(arrays["steps"]) <= 0).any()
        ):
            raise ValueError(f"a table of returns-to-go of several costs has shape {shape}")
        arrays["costs"][arrays["costs"] == _ENDED] = np.inf
        quantile, least = float(values["quantile"]), int(values["least"])
        if not 0 <= quantile <= 1 or least < 1:
            raise ValueError(f"a table of returns-to-go is of quantile {quantile}")
        if not np.isfinite(arrays["costs"]).all(0).any(1).all():
            raise ValueError("a table of returns-to-go has a step without trajectories")
        return cls(**arrays, quantile=quantile, least=least)


def nearest(
    excess: npt.NDArray[np.floating[Any]], least: npt.NDArray[np.integer[Any]]
) -> BoolArray:
    """(N, M) bool, which trajectories exceed the bounds least: as many as `least` (N,), or ties."""
    ranked = np.sort(excess, axis=1)
    threshold = np.take_along_axis(ranked, least[:, None] - 1, axis=1)
    return np.asarray(excess <= np.maximum(threshold, 0.0))


def dominance_frontier(returns: Float32Array, costs: Float32Array) -> Int64Array:
    """(P,) rows of the non-dominated trajectories of several costs (M, m), by rising return.

    No other trajectory returns as much at no more of any cost; equal ones are kept once.
    """
    order = np.lexsort((*costs.T[::-1], -returns))
    kept: list[int] = []
    found = np.empty((len(order), costs.shape[1]), dtype=costs.dtype)
    for row in order:  # whoever came before returned at least as much
        if not (found[: len(kept)] <= costs[row]).all(1).any():
            found[len(kept)] = costs[row]
            kept.append(int(row))
    return np.array(kept[::-1], dtype=np.int64)


def target_within(
    returns: Float32Array,
    costs: Float32Array,
    frontier_costs: Float32Array,
    cost_budget: Float64Array,
    *,
    quantile: float,
    unit: Float64Array,
    least: int,
) -> float:
    """A high quantile of the returns within several budgets (m,), which never falls with them.

    Taken within the costs of every frontier point that keeps the budgets, too; the largest counts.
    """
    levels = frontier_costs[(frontier_costs <= cost_budget).all(1)]
    best = -np.inf
    for level in (*levels, cost_budget):
        excess = ((costs - level) / unit).max(1)
        within = excess <= 0
        if within.sum() < least:
            within = nearest(excess[None], np.array([least]))[0]
        best = max(best, float(np.quantile(returns[within], quantile)))
    return best
