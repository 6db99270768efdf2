"""MetaDrive with a budget each for crashes, leaving the road, and speed.

    python examples/metadrive_three_costs.py --collect idm.hdf5 --episodes 120
    python examples/metadrive_three_costs.py --collect random.hdf5 --behaviour random --episodes 40
    python examples/metadrive_three_costs.py --train idm.hdf5 random.hdf5 --episodes 10

Needs the extra `metadrive`. The first command records MetaDrive's own driver at varied speeds, with
noise, who hardly ever leaves the road; the second drivers who do. The third trains one agent and
rolls it out at several triples of budgets.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.collect import TrajectoryRecorder
from rcdt_agent.collect.behaviours import make_controller
from rcdt_agent.tasks.metadrive import COST_NAMES, make_metadrive
from rcdt_agent.tasks.registry import get_task

TASK = "OfflineMetadrive-easysparse-v0"
BUDGETS = [
    {"crash": crash, "out_of_road": 0.2, "speed": speed}
    for crash, speed in ((0.2, 5.0), (0.2, 10.0), (0.2, 20.0), (0.8, 20.0), (0.8, 40.0))
]


def collect(path: Path, behaviour: str, episodes: int, seed: int) -> None:
    """Record a driver, with the three costs that are in `info["costs"]`."""
    env = TrajectoryRecorder(make_metadrive(TASK), cost_key="costs", cost_names=COST_NAMES)
    driver = make_controller(behaviour, get_task(TASK))
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        driver.begin(env, np.random.default_rng(seed + episode))
        done = False
        while not done:
            obs, _, terminated, truncated, _ = env.step(driver.act(obs))
            done = terminated or truncated
        if episode % 20 == 19:
            env.save(path)  # replaced by a whole new file only
            print(f"{episode + 1} episodes: {env.dataset().summary().cost_ranges}", flush=True)
    env.save(path)
    env.close()


def episodes_of(path: Path) -> list[dict[str, Any]]:
    """The trajectories of a file, as `TrajectoryDataset.from_episodes` takes them."""
    data = TrajectoryDataset.from_hdf5(path)
    return [
        {
            "observations": np.vstack((data.observations[i:j], data.final_observations[n])),
            "actions": data.actions[i:j],
            "rewards": data.rewards[i:j],
            "costs": dict(zip(data.cost_names, data.costs[i:j].T, strict=True)),
            "terminated": data.terminated[n],
        }
        for n, (i, j) in enumerate(pairwise(data.offsets))
    ]


def train(paths: list[Path], output: Path, steps: int | None, episodes: int) -> None:
    """Train one agent, and roll it out at every triple of budgets."""
    data = TrajectoryDataset.from_episodes([e for path in paths for e in episodes_of(path)])
    print(data.summary())
    agent = RCDT(preset="tiny", seed=0)
    agent.learn(data, total_steps=steps)
    agent.save(output)
    report = agent.evaluate(
        lambda: make_metadrive(TASK), BUDGETS, n_episodes=episodes, seed=10_000, cost_key="costs",
        n_envs=1,
    )  # fmt: skip
    print(report.as_table())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collect", type=Path)
    parser.add_argument("--behaviour", default="idm")
    parser.add_argument("--train", type=Path, nargs="+")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--output", type=Path, default=Path("metadrive-three-costs.zip"))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.collect:
        collect(given.collect, given.behaviour, given.episodes, given.seed)
    if given.train:
        train(given.train, given.output, given.steps, given.episodes)
