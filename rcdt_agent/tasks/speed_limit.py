"""`rcdt_agent/SpeedLimit-v0`: a road with a speed limit, and the exact optimum for every budget.

Driving faster than the limit pays (reward is distance) and costs (a convex, piecewise linear
function of the excess). Half-way along the road lies a slow zone whose place differs from episode
to episode. Nothing but numpy is needed, and because speeds, limits and the kinks of the cost lie on
one grid, dynamic programming on that grid solves the continuous problem exactly: the environment
tells how far a trained policy is from the best one at any cost budget.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array, Float64Array
from rcdt_agent.arguments import check_number, check_whole
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.tasks.registry import SPEED_LIMIT

ENV_ID = SPEED_LIMIT.id

HORIZON = 60
GRID = 0.2
"""Largest change of speed in one step, and the grid on which the problem is exact."""
MAX_SPEED = 2.0
OPEN_LIMIT = 1.0
ZONE_LIMIT = 0.6
ZONE_LENGTH = 15
ZONE_STARTS = (15, 20, 25, 30)
START_SPEEDS = (0.4, 0.6, 0.8, 1.0)
FRAME = (120, 4)
"""Rows of a rendered frame, and columns for each step."""


def limit_at(step: npt.ArrayLike, zone_start: npt.ArrayLike) -> Float64Array:
    """The speed limit that holds for the move made at `step`."""
    into = np.asarray(step) - np.asarray(zone_start)
    return np.where((into >= 0) & (into < ZONE_LENGTH), ZONE_LIMIT, OPEN_LIMIT)


def speeding_cost(excess: npt.ArrayLike) -> Float64Array:
    """Cost of a step at `excess` above the limit: 0.1, 0.3, 0.6, 1.0, 1.5 at 0.2, 0.4 .. 1.0."""
    kinks = GRID * np.arange(round(MAX_SPEED / GRID))
    above = np.maximum(np.asarray(excess, dtype=float)[..., None] - kinks, 0.0)
    return np.asarray(0.5 * above.sum(-1))


def drive(
    speed: npt.ArrayLike, action: npt.ArrayLike, limit: npt.ArrayLike
) -> tuple[Float64Array, Float64Array]:
    """One step of the car: the new speed (which is also the reward) and the cost."""
    change = GRID * np.clip(np.asarray(action, dtype=float), -1.0, 1.0)
    new_speed = np.clip(np.asarray(speed, dtype=float) + change, 0.0, MAX_SPEED)
    return new_speed, speeding_cost(new_speed - np.asarray(limit))


def observe(speed: npt.ArrayLike, step: int, zone_start: npt.ArrayLike) -> Float32Array:
    """Observation: speed, limit of the coming move, way to the zone, time left (both / horizon)."""
    ahead = (np.asarray(zone_start) - step) / HORIZON
    left = np.full_like(ahead, (HORIZON - step) / HORIZON, dtype=float)
    parts = (np.asarray(speed, dtype=float), limit_at(step, zone_start), ahead, left)
    return np.asarray(np.stack(parts, axis=-1), dtype=np.float32)


class SpeedLimitEnv(gym.Env[Float32Array, Float32Array]):
    """Drive 60 steps; the action in [-1, 1] changes the speed by at most 0.2.

    Reward is the new speed, `info["cost"]` the price of its excess over the limit. The start speed
    and the place of the slow zone are drawn at reset, everything else is deterministic. Episodes
    end by truncation.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        """Make the environment.

        Args:
            render_mode: None, or `rgb_array`: `render` then draws the road.
        """
        if render_mode not in (None, "rgb_array"):
            raise InvalidArgumentError(
                f"`render_mode` must be None or 'rgb_array', got {render_mode!r}."
            )
        self.render_mode = render_mode
        low, high = np.array([0, 0, -1, 0]), np.array([MAX_SPEED, OPEN_LIMIT, 1, 1])
        self.observation_space = gym.spaces.Box(
            low.astype(np.float32), high.astype(np.float32), dtype=np.float32
        )
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), dtype=np.float32)
        self._speed, self._step, self._zone_start = 0.0, HORIZON, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float32Array, dict[str, Any]]:
        """Draw a start speed and the place of the zone."""
        super().reset(seed=seed)
        self._speed = float(self.np_random.choice(START_SPEEDS))
        self._zone_start = int(self.np_random.choice(ZONE_STARTS))
        self._step = 0
        return observe(self._speed, 0, self._zone_start), {}

    def step(self, action: Float32Array) -> tuple[Float32Array, float, bool, bool, dict[str, Any]]:
        """Drive one step; out-of-range actions are clipped, a wrong shape raises."""
        if np.shape(action) != (1,):
            raise InvalidArgumentError(
                f"`action` must have shape (1,), got shape {np.shape(action)}."
            )
        if not np.isfinite(action).all():
            raise InvalidArgumentError(f"`action` must be finite, got {action}.")
        if self._step >= HORIZON:
            raise gym.error.ResetNeeded("Call `reset` before `step`: the episode is over.")
        limit = limit_at(self._step, self._zone_start)
        speed, cost = drive(self._speed, action[0], limit)
        self._speed = float(speed)
        self._step += 1
        obs = observe(self._speed, self._step, self._zone_start)
        return obs, self._speed, False, self._step == HORIZON, {"cost": float(cost)}

    def render(self) -> npt.NDArray[np.uint8] | None:  # type: ignore[override]
        """The road from left to right, its limit in grey; the car's speed, red above the limit."""
        if self.render_mode is None:
            return None
        limits = limit_at(np.arange(HORIZON), self._zone_start)
        heights = np.linspace(MAX_SPEED, 0, FRAME[0])[:, None]
        frame = np.where((heights <= limits)[..., None], 190, 255).repeat(3, axis=-1)
        here = min(self._step, HORIZON - 1)
        color = (200, 30, 30) if self._speed > limits[here] else (30, 90, 200)
        frame[heights[:, 0] <= self._speed, here] = color
        return frame.astype(np.uint8).repeat(FRAME[1], axis=1)


class Outcome(NamedTuple):
    """Expected return and cost of a policy over the start distribution."""

    expected_return: float
    expected_cost: float

    def value(self, multiplier: float) -> float:
        """Return minus multiplier times cost."""
        return self.expected_return - multiplier * self.expected_cost


@cache
def optimal_outcome(multiplier: float) -> Outcome:
    """Solve max E[return] - multiplier * E[cost] by dynamic programming on the speed grid."""
    levels = np.round(MAX_SPEED / GRID).astype(int) + 1
    speeds = GRID * np.arange(levels)
    returns, costs = np.zeros((2, len(ZONE_STARTS), levels))
    for step in reversed(range(HORIZON)):
        limit = limit_at(step, np.array(ZONE_STARTS))[:, None]
        # Arriving at a level: its reward and cost now, and what follows from there.
        to_return = returns + speeds
        to_cost = costs + speeding_cost(np.round(speeds - limit, 9))
        to_value = to_return - multiplier * to_cost
        reach = np.clip(np.arange(levels)[:, None] + np.array([-1, 0, 1]), 0, levels - 1)
        best = np.take_along_axis(
            np.broadcast_to(reach, (len(ZONE_STARTS), levels, 3)),
            to_value[:, reach].argmax(-1)[..., None],
            axis=-1,
        )[..., 0]
        returns = np.take_along_axis(to_return, best, axis=1)
        costs = np.take_along_axis(to_cost, best, axis=1)
    starts = np.round(np.array(START_SPEEDS) / GRID).astype(int)
    return Outcome(float(returns[:, starts].mean()), float(costs[:, starts].mean()))


def optimal_return(cost_budget: float) -> float:
    """The best expected return of any policy whose expected cost is at most `cost_budget`.

    Exact: for a fixed multiplier the problem is a linear programme whose optimum lies on the grid,
    and by duality the optimum at a budget lies on the line through the two outcomes that support
    it; the search walks to that pair.

    Raises:
        InvalidArgumentError: `cost_budget` is negative or not finite.
    """
    if not (np.isfinite(cost_budget) and cost_budget >= 0):
        raise InvalidArgumentError(f"`cost_budget` must be >= 0 and finite, got {cost_budget}.")
    safe, fast = optimal_outcome(1e6), optimal_outcome(1e-9)
    if cost_budget >= fast.expected_cost:
        return fast.expected_return
    while True:
        slope = (fast.expected_return - safe.expected_return) / (
            fast.expected_cost - safe.expected_cost
        )
        middle = optimal_outcome(slope)
        if middle.value(slope) <= safe.value(slope) + 1e-9:
            return safe.expected_return + slope * (cost_budget - safe.expected_cost)
        if middle.expected_cost <= cost_budget:
            safe = middle
        else:
            fast = middle


def record_drivers(
    episodes: int, *, seed: int = 0, heedless: float = 0.0
) -> dict[str, npt.NDArray[Any]]:
    """Flat arrays, in DSRL's layout, of drivers of mixed quality, from timid to reckless.

    Each driver aims at a speed relative to the limit (from far below to 1 above), changes that aim
    now and then, looks ahead to the zone or does not, and has a trembling foot.

    Args:
        episodes: Drivers, >= 1.
        seed: Of all that is drawn.
        heedless: Share of drivers who do not see the zone at all.
    """
    check_whole("episodes", episodes, 1)
    check_whole("seed", seed)
    check_number("heedless", heedless, 0, 1)
    rng = np.random.default_rng(seed)
    speed = rng.choice(START_SPEEDS, episodes)
    zone_start = rng.choice(ZONE_STARTS, episodes)
    aim = rng.uniform(-0.6, 1.0, episodes)
    fickle = rng.uniform(0.0, 0.1, episodes)
    tremble = rng.choice([0.05, 0.2, 0.6], episodes)
    foresight = rng.choice([0, 2], episodes)
    sees = rng.random(episodes) >= heedless if heedless else np.ones(episodes, dtype=np.bool_)
    rows: dict[str, list[npt.NDArray[Any]]] = {
        key: [] for key in ("observations", "actions", "rewards", "costs", "next_observations")
    }
    for step in range(HORIZON):
        aim = np.where(rng.random(episodes) < fickle, rng.uniform(-0.6, 1.0, episodes), aim)
        limit = limit_at(step, zone_start)
        seen = np.minimum(limit, limit_at(step + foresight, zone_start))
        seen = np.where(sees, seen, OPEN_LIMIT)
        wish = (seen + aim - speed) / GRID + tremble * rng.standard_normal(episodes)
        action = np.clip(wish, -1.0, 1.0)
        rows["observations"].append(observe(speed, step, zone_start))
        speed, cost = drive(speed, action, limit)
        rows["actions"].append(action[:, None].astype(np.float32))
        rows["rewards"].append(speed.astype(np.float32))
        rows["costs"].append(cost.astype(np.float32))
        rows["next_observations"].append(observe(speed, step + 1, zone_start))
    # (steps, episodes, ...) -> (episodes * steps, ...)
    flat = {
        key: np.stack(steps, axis=1).reshape(-1, *steps[0].shape[1:]) for key, steps in rows.items()
    }
    last = np.tile(np.arange(HORIZON) == HORIZON - 1, episodes)
    return {**flat, "terminals": np.zeros_like(last), "timeouts": last}
