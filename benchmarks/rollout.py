"""Evaluation: 20 episodes at each of three budgets on a Bullet task, ours and the peer's loop.

    python benchmarks/rollout.py [--task OfflineBallCircle-v0] [--episodes 20] [--json FILE]

Untrained policies of the paper's size on both sides; seconds a step of the environment, so that
episodes of different length cannot favour anyone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import peer
import timing
from data import make_arrays

from rcdt_agent import RCDT, evaluate_budgets
from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.env_step import read_step
from rcdt_agent.tasks.registry import get_task
from rcdt_agent.tasks.simulators import make_env


class Counted(gym.Wrapper):
    """Counts the steps of all environments; five values, the cost in `info`."""

    total = 0

    def step(self, action: Any) -> Any:
        Counted.total += 1
        obs, reward, _, terminated, truncated, info = read_step(self.env.step(action))
        return obs, reward, terminated, truncated, info


def seconds_per_step(run: Any) -> float:
    before = Counted.total
    return timing.seconds(run) / (Counted.total - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="OfflineBallCircle-v0")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    task = get_task(options.task)
    env = Counted(make_env(task.id))
    sizes = env.observation_space.shape[0], env.action_space.shape[0]
    length = (env.spec and env.spec.max_episode_steps) or 1000
    data = TrajectoryDataset.from_arrays(**make_arrays(10 * length, length, *sizes))
    agent = RCDT(env, preset="paper", variant="cdt", batch_size=2, seed=0).learn(data, 1)
    trainer = peer.make_cdt(*sizes, episode_length=length, env=env)

    def ours() -> None:
        evaluate_budgets(
            agent, lambda: Counted(make_env(task.id)), task.budgets, n_episodes=options.episodes
        )

    def theirs() -> None:
        for budget in task.budgets:
            trainer.evaluate(options.episodes, 500.0, float(budget))

    timing.heading(f"Evaluation, {options.episodes} episodes x {len(task.budgets)} budgets")
    quiet_ours, quiet_theirs = timing.quietly(ours), timing.quietly(theirs)
    mine, other = [], []
    for _ in range(options.rounds):  # ours before and after each of the peer's
        first = seconds_per_step(quiet_ours)
        other.append(seconds_per_step(quiet_theirs))
        mine.append((first + seconds_per_step(quiet_ours)) / 2)
    entry = timing.row(f"a step of {task.id}", mine, other, 3.0)
    if options.json:
        options.json.write_text(json.dumps({"rows": [entry]}, indent=2))


if __name__ == "__main__":
    main()
