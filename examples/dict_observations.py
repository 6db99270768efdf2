"""Dict observations: Safety-Gymnasium's PointCircle, with its sensors by name.

Scripted drivers are recorded on their rounds, which cross the walls as often as each cares; one
policy then crosses them as often as each budget allows.

    python examples/dict_observations.py
    python examples/dict_observations.py --n-drives 10 --total-steps 20 --n-episodes 1

Needs the extra `safety-gymnasium`.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import tyro

from rcdt_agent import RCDT, TrajectoryDataset, get_task, make_env
from rcdt_agent.collect import TrajectoryRecorder
from rcdt_agent.collect.behaviours import make_controller
from rcdt_agent.evaluation import BudgetReport

TASK = "PointCircle1"
BUDGETS = (20.0, 40.0, 80.0)


def make_sensors() -> gym.Env[Any, Any]:
    """The task with a `Dict` of accelerometer, circle_lidar, gyro, magnetometer, velocimeter."""
    return make_env(TASK, config={"agent_name": "Point", "observation_flatten": False})


def record(n_drives: int, seed: int = 0) -> TrajectoryDataset:
    """Drives with habits drawn at random, from careful to reckless."""
    env = TrajectoryRecorder(make_sensors())
    driver = make_controller("scripted", get_task(TASK))
    for drive in range(seed, seed + n_drives):
        obs, _ = env.reset(seed=drive)
        driver.begin(env, np.random.default_rng(drive))
        done = False
        while not done:
            obs, _, terminated, truncated, _ = env.step(driver.act(obs))
            done = terminated or truncated
    data = env.dataset()
    env.close()
    return data


def main(
    n_drives: int = 150, total_steps: int = 2_000, n_episodes: int = 10, seed: int = 0
) -> BudgetReport:
    """Record, train once, drive at three budgets.

    Args:
        n_drives: Recorded episodes.
        total_steps: Gradient steps.
        n_episodes: Episodes at each budget.
        seed: Of recording and training.
    """
    data = record(n_drives, seed)
    print(data.summary())
    agent = RCDT(preset="tiny", seed=seed).learn(data, total_steps=total_steps)
    report = agent.evaluate(make_sensors, BUDGETS, n_episodes=n_episodes, seed=10_000)
    print(report.as_table())
    return report


if __name__ == "__main__":
    tyro.cli(main)
