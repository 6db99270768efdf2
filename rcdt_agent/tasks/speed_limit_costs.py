"""`rcdt_agent/SpeedLimitFuel-v0`: SpeedLimit with a second cost, and its exact optimum.

Besides the price of speeding, every step burns fuel, a convex, piecewise linear function of the
speed with its kinks on the same grid. The two pull apart: fuel is saved by one even speed, speeding
by slowing down for the zone and driving faster elsewhere. A linear programme over the grid gives
the best expected return at any pair of budgets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array, Float64Array
from rcdt_agent.costs import in_order
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.tasks.speed_limit import (
    GRID,
    HORIZON,
    MAX_SPEED,
    START_SPEEDS,
    ZONE_STARTS,
    SpeedLimitEnv,
    limit_at,
    record_drivers,
    speeding_cost,
)

ENV_ID = "rcdt_agent/SpeedLimitFuel-v0"
COST_NAMES = ("speeding", "fuel")
FREE_SPEED = 0.4
"""Up to this speed nothing is burnt."""


def fuel_cost(speed: npt.ArrayLike) -> Float64Array:
    """Fuel of a step: 0.1, 0.3, 0.6, 1.0 at a speed of 0.6, 0.8, 1.0, 1.2 ..."""
    return speeding_cost(np.asarray(speed, dtype=float) - FREE_SPEED)


class SpeedLimitFuelEnv(SpeedLimitEnv):
    """`SpeedLimitEnv` whose `info["cost"]` is a dict of the costs `speeding` and `fuel`."""

    def step(self, action: Float32Array) -> tuple[Float32Array, float, bool, bool, dict[str, Any]]:
        """Drive one step; out-of-range actions are clipped, a wrong shape raises."""
        obs, reward, terminated, truncated, info = super().step(action)
        cost = {"speeding": info["cost"], "fuel": float(fuel_cost(reward))}
        return obs, reward, terminated, truncated, {**info, "cost": cost}


def record_fuel_drivers(episodes: int, *, seed: int = 0) -> dict[str, Any]:
    """Arguments of `TrajectoryDataset.from_arrays`: drivers of mixed quality, and both costs.

    A third of them do not see the zone and drive evenly through it.
    """
    arrays: dict[str, Any] = record_drivers(episodes, seed=seed, heedless=1 / 3)
    fuel = fuel_cost(arrays["rewards"]).astype(np.float32)  # the reward is the new speed
    return {**arrays, "costs": {"speeding": arrays["costs"], "fuel": fuel}}


def optimal_fuel_return(cost_budget: dict[str, float]) -> float:
    """The best expected return of any policy whose expected costs keep both budgets.

    A linear programme over how often each speed is held and changed at each step: exact, because
    costs and limits have their kinks on the grid of speeds, so that for any multipliers of the two
    costs the best policy stays on it.

    Args:
        cost_budget: By name, >= 0.

    Raises:
        InvalidArgumentError: A name is unknown or missing, a budget is negative, or no policy
            keeps both.
    """
    from scipy import sparse  # type: ignore[import-untyped]
    from scipy.optimize import linprog  # type: ignore[import-untyped]

    budgets = np.array(in_order("`cost_budget`", cost_budget, COST_NAMES), dtype=float)
    if not (np.isfinite(budgets) & (budgets >= 0)).all():
        raise InvalidArgumentError(f"`cost_budget` must be >= 0, got {cost_budget}.")
    levels = round(MAX_SPEED / GRID) + 1
    speeds = GRID * np.arange(levels)
    # A variable for each zone, step, speed before and change of it; mass flows from step to step.
    zone, step, before, change = np.meshgrid(
        np.arange(len(ZONE_STARTS)), np.arange(HORIZON), np.arange(levels), [-1, 0, 1],
        indexing="ij",
    )  # fmt: skip
    zone, step, before = zone.ravel(), step.ravel(), before.ravel()
    after = before + change.ravel()
    valid = (after >= 0) & (after < levels)
    zone, step, before, after = zone[valid], step[valid], before[valid], after[valid]
    n, limit = len(zone), limit_at(step, np.array(ZONE_STARTS)[zone])
    costs = np.stack((speeding_cost(np.round(speeds[after] - limit, 9)), fuel_cost(speeds[after])))

    def place(at_step: npt.NDArray[np.int64], level: npt.NDArray[np.int64]) -> Any:
        return (zone * HORIZON + at_step) * levels + level

    goes_on = step + 1 < HORIZON
    rows = np.concatenate((place(step, before), place(step + 1, after)[goes_on]))
    columns = np.concatenate((np.arange(n), np.flatnonzero(goes_on)))
    signs = np.concatenate((np.ones(n), -np.ones(int(goes_on.sum()))))
    flow = sparse.csr_matrix(
        (signs, (rows, columns)), shape=(len(ZONE_STARTS) * HORIZON * levels, n)
    )
    begins = np.zeros((len(ZONE_STARTS), HORIZON, levels))
    starts = np.round(np.array(START_SPEEDS) / GRID).astype(int)
    begins[:, 0, starts] = 1 / (len(ZONE_STARTS) * len(starts))
    solved = linprog(
        -speeds[after], A_ub=costs, b_ub=budgets, A_eq=flow, b_eq=begins.ravel(), method="highs"
    )
    if not solved.success:
        raise InvalidArgumentError(
            f"`cost_budget` must be what a policy can keep, got {cost_budget} ({solved.message})."
        )
    return float(-solved.fun)
