"""MetaDrive's own driver (the Intelligent Driver Model), at speeds that spend an allowance of cost.

Cost is paid for each km/h above 10, and an episode ends after 1000 steps: on the easy and the hard
road a car that stays at 10 km/h does not arrive, so distance, and with it return, has its price.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rcdt_agent._types import Float32Array
from rcdt_agent.tasks.metadrive import FREE_SPEED, SPEED_COST, velocity_cost

EPISODE_LENGTH = 1000
FASTEST = 80.0  # km/h, MetaDrive's own limit


def affordable_speed(left: float, steps_left: int, haste: float = 1.0) -> float:
    """The speed in km/h that spends the cost `left` evenly over `steps_left` steps.

    Args:
        left: Cost that may still be spent; none is left below 0.
        steps_left: Until the episode ends, >= 1.
        haste: Times the even rate; above 1 most is spent early.
    """
    rate = haste * max(left, 0.0) / steps_left
    return min(FREE_SPEED + rate / SPEED_COST, FASTEST)


class IDMController:
    """MetaDrive's built-in driver, which keeps its distance, at a speed and with noise of ours.

    Planners drive at the speed that an allowance of cost affords, so every budget has its good
    examples. The others hold speeds drawn at random, unsteadily, and pay for their haste; more than
    half of them doze off at some step, repeat one action from then on and leave the road.
    """

    def begin(self, env: gym.Env[Any, Any], rng: np.random.Generator) -> None:
        """Hand the car to a new driver: its plan or its speeds, its noise, its recklessness."""
        from metadrive.policy.idm_policy import IDMPolicy

        simulator: Any = env.unwrapped.simulator  # type: ignore[attr-defined]
        self._rng, self._agent = rng, simulator.agent
        self._policy = IDMPolicy(simulator.agent, int(rng.integers(2**31)))
        self._plans = bool(rng.random() < 0.25)
        self._allowance = 100.0 * rng.random() ** 1.3  # small ones are the most frequent
        self._haste = rng.choice([1.0, 1.5, 3.0])
        self._spent, self._steps_left = 0.0, EPISODE_LENGTH
        self._policy.disable_idm_deceleration = bool(not self._plans and rng.random() < 0.3)
        scales = [0.0, 0.05, 0.1] if self._plans else [0.0, 0.1, 0.3, 0.6]
        self._noise = np.array([0.2, 1.0]) * rng.choice(scales)
        self._fickle = rng.choice([0.0, 0.005])  # chance of a new target speed, each step
        dozes = not self._plans and rng.random() < 0.6
        self._awake = int(rng.integers(20, 400)) if dozes else EPISODE_LENGTH  # steps
        self._drift = rng.uniform([-0.2, 0.0], [0.2, 0.6])  # steering and throttle when asleep
        self._speed = self._draw_speed()

    def act(self, obs: Any) -> Float32Array:
        """What the driver does at the speed of the moment, give or take the noise."""
        self._spent += velocity_cost(self._agent.speed_km_h)
        if self._plans:
            left = self._allowance - self._spent
            self._speed = affordable_speed(left, self._steps_left, self._haste)
        elif self._rng.random() < self._fickle:
            self._speed = self._draw_speed()
        self._steps_left -= 1
        if self._steps_left < EPISODE_LENGTH - self._awake:
            return self._drift.astype(np.float32)
        self._policy.NORMAL_SPEED = self._speed  # which its lane changes fall back to
        self._policy.target_speed = self._speed
        action = np.asarray(self._policy.act(), dtype=np.float64)
        action += self._noise * self._rng.standard_normal(2)
        return np.clip(action, -1.0, 1.0).astype(np.float32)

    def _draw_speed(self) -> float:
        slow = self._rng.random() < 0.1
        return float(self._rng.uniform(3.0, 14.0) if slow else self._rng.uniform(16.0, FASTEST))
