"""Discrete actions and observations: CliffWalking, with a cost for walking near the edge.

Walkers that keep to one of three rows are recorded; one policy then takes the row that each budget
allows. The best returns are -17, -15 and -13 steps, at costs of 3, 8 and 12.

    python examples/discrete_actions.py
    python examples/discrete_actions.py --total-steps 200 --n-walks 60
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import tyro

from rcdt_agent import RCDT, ReturnCostTokens
from rcdt_agent.collect import TrajectoryRecorder

WIDTH = 12
RISK = (0.0, 0.5, 1.0, 0.0)
"""Cost of a step that ends in each row; the last but one is next to the cliff."""


def make_env() -> gym.Env[Any, Any]:
    """Four rows of twelve cells; `Discrete` observations and actions."""
    newest = "CliffWalking-v1"  # gymnasium 1.1 and later
    return gym.make(newest if newest in gym.registry else "CliffWalking-v0", max_episode_steps=300)


def risk(obs: Any, action: Any, next_obs: Any, info: dict[str, Any]) -> float:
    """The cost, which the environment itself does not have."""
    return RISK[int(next_obs) // WIDTH]


def record(n_walks: int, seed: int = 0) -> TrajectoryRecorder:
    """Walks along a random row, some of them with random steps in between."""
    env = TrajectoryRecorder(make_env(), cost_fn=risk)
    rng = np.random.default_rng(seed)
    for walk in range(n_walks):
        row, noise = rng.integers(3), rng.choice([0.0, 0.1, 0.3])
        obs, _ = env.reset(seed=seed + walk)
        done = False
        while not done:
            y, x = divmod(int(obs), WIDTH)
            forward = 1 if x < WIDTH - 1 else 2  # right, and down at the end
            action = 0 if y > row and x < WIDTH - 1 else forward
            if rng.random() < noise:
                action = int(rng.integers(4))
            obs, _, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
    return env


def main(total_steps: int = 600, n_walks: int = 300, seed: int = 0) -> list[tuple[float, float]]:
    """Record, train once, walk at three budgets.

    Args:
        total_steps: Gradient steps.
        n_walks: Recorded episodes.
        seed: Of recording and training.
    """
    # Frontier weights compare steps of one age. Who walks a longer way is always behind, and would
    # hardly be drawn at the usual sharpness of 8.
    agent = RCDT(env=make_env(), preset="tiny", seed=seed, frontier_sharpness=2)
    agent.learn(record(n_walks, seed).dataset(), total_steps=total_steps)
    env = ReturnCostTokens(make_env(), cost_fn=risk)
    outcomes = []
    for budget in (4.0, 9.0, 14.0):
        agent.set_cost_budget(budget)
        obs, info = env.reset(seed=seed)
        state, done = None, False
        while not done:
            action, state = agent.predict(obs, state)
            obs, _, terminated, truncated, info = env.step(action)
            done = terminated or truncated
        outcomes.append((info["episode_return"], info["episode_cost"]))
        print(f"budget {budget:g}: return {outcomes[-1][0]:g}, cost {outcomes[-1][1]:g}")
    return outcomes


if __name__ == "__main__":
    tyro.cli(main)
