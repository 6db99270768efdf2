"""Images as observations: a gripper at a conveyor belt sees what comes on three lanes.

At every step it takes a part from one lane: a hot one earns 1 and wears the gripper (cost 1), a
cold one earns 0.4. Which lane has which is only in the picture, 24 x 24 pixels in colour. The best
return at a budget of b hot parts in 20 steps is b + 0.4 (20 - b).

    python examples/image_observations.py
    python examples/image_observations.py --total-steps 100 --n-shifts 60
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import tyro

from rcdt_agent import RCDT
from rcdt_agent.collect import TrajectoryRecorder

STEPS, LANES, SIDE = 20, 3, 24
CELL = SIDE // LANES
HOT, COLD, EMPTY = range(3)
COLOURS = np.array([[220, 120, 60], [90, 120, 200], [40, 40, 40]], dtype=np.uint8)
EARNS = (1.0, 0.4, 0.0)


class Belt(gym.Env[Any, Any]):
    """Each column of the belt has a hot part, a cold part and an empty place, on random lanes."""

    observation_space = gym.spaces.Box(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)
    action_space = gym.spaces.Discrete(LANES)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new belt; the first column is in front of the gripper."""
        super().reset(seed=seed)
        columns = np.tile(np.arange(LANES), (STEPS + LANES, 1))
        self._belt = self.np_random.permuted(columns, axis=1)
        self._step = 0
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take the part of a lane; the belt moves on."""
        part = self.present[int(action)]
        self._step += 1
        info = {"cost": float(part == HOT)}
        return self._picture(), EARNS[part], False, self._step == STEPS, info

    @property
    def present(self) -> Any:
        """(LANES,) what is in front of the gripper."""
        return self._belt[self._step]

    def _picture(self) -> Any:
        """(SIDE, SIDE, 3) the next columns from left to right, under changing light."""
        seen = COLOURS[self._belt[self._step : self._step + LANES].T]
        picture = seen.repeat(CELL, axis=0).repeat(CELL, axis=1)
        light = self.np_random.integers(0, 36, size=(SIDE, SIDE, 1), dtype=np.uint8)
        return picture + light


def record(n_shifts: int, seed: int = 0) -> TrajectoryRecorder:
    """Shifts of workers who take the hot part with a probability of their own, and err at times."""
    env = TrajectoryRecorder(Belt())
    rng = np.random.default_rng(seed)
    for shift in range(n_shifts):
        env.reset(seed=seed + shift)
        boldness, done = rng.random(), False
        while not done:
            wanted = HOT if rng.random() < boldness else COLD
            lane = int(np.flatnonzero(env.unwrapped.present == wanted)[0])
            if rng.random() < 0.1:
                lane = int(rng.integers(LANES))
            _, _, _, done, _ = env.step(lane)
    return env


def main(
    total_steps: int = 400, n_shifts: int = 300, n_episodes: int = 20, seed: int = 0
) -> list[tuple[float, float]]:
    """Record, train once, work at four budgets.

    Args:
        total_steps: Gradient steps.
        n_shifts: Recorded episodes.
        n_episodes: Evaluated at each budget.
        seed: Of recording and training.
    """
    agent = RCDT(env=Belt(), preset="tiny", seed=seed, batch_size=64)
    agent.learn(record(n_shifts, seed).dataset(), total_steps=total_steps)
    report = agent.evaluate(Belt, budgets=[2, 6, 10, 15], n_episodes=n_episodes, seed=10_000)
    for result in report.results:
        best = result.budget + 0.4 * (STEPS - result.budget)
        print(
            f"budget {result.budget:g}: return {result.mean_return:.1f}, cost "
            f"{result.mean_cost:.1f}, best return {best:.1f}"
        )
    return [(result.mean_return, result.mean_cost) for result in report.results]


if __name__ == "__main__":
    tyro.cli(main)
