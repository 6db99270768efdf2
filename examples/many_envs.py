"""Many environments at once, each with a budget of its own, from one loaded file."""

from pathlib import Path

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv

from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.tasks.speed_limit import ENV_ID, record_drivers


def train(path: Path, total_steps: int) -> None:
    data = TrajectoryDataset.from_arrays(**record_drivers(500))
    RCDT(preset="tiny", seed=0).learn(data, total_steps=total_steps).save(path)


def main(
    total_steps: int = 600, n_envs: int = 8, steps: int = 150, folder: str | Path = "build"
) -> None:
    path = Path(folder) / "fleet.zip"
    train(path, total_steps)

    agent = RCDT.load(path)  # what a server would do: no data, no training code
    budgets = np.linspace(2, 30, n_envs)
    fleet = DummyVecEnv([lambda: gym.make(ENV_ID)] * n_envs)
    fleet.seed(0)
    obs = fleet.reset()
    state = agent.begin(n_envs, cost_budget=budgets)
    starts = np.zeros(n_envs, dtype=bool)
    costs: list[list[float]] = [[] for _ in range(n_envs)]
    for _ in range(steps):
        actions, state = agent.predict(obs, state, episode_start=starts)  # one pass for all
        obs, rewards, starts, infos = fleet.step(actions)
        state = state.observe(rewards, [info["cost"] for info in infos])
        for i in np.flatnonzero(starts):  # this car's trip is over; it starts the next by itself
            costs[i].append(float(state.total_cost[i]))
    for budget, spent in zip(budgets, costs, strict=True):
        print(f"budget {budget:>4.0f}: {len(spent)} trips, mean cost {np.mean(spent):.1f}")


if __name__ == "__main__":
    main()
