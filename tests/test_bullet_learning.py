"""One policy, three budgets, in a real simulator: Bullet's BallRun, on data made here."""

from __future__ import annotations

import numpy as np
import pytest

from rcdt_agent import RCDT, TrajectoryDataset, make_env


def record_balls(episodes: int, seed: int = 0) -> TrajectoryDataset:
    """Balls that roll below the speed limit and, for a share of the time, above it."""
    rng = np.random.default_rng(seed)
    env = make_env("BallRun")
    columns = {
        key: [] for key in ("observations", "next_observations", "actions", "rewards", "costs")
    }
    for episode in range(episodes):
        slow, fast, share = rng.uniform(0.1, 0.45), rng.uniform(0.6, 1.2), rng.uniform(0, 0.8)
        begin = rng.integers(0, 100)
        obs, _ = env.reset(seed=seed + episode)
        for t in range(100):
            hurry = (t - begin) % 100 < 100 * share
            push = 2.0 * ((fast if hurry else slow) - obs[2]) + 0.1 * rng.normal()
            action = np.clip([push, -obs[3] + 0.05 * rng.normal()], -1, 1).astype(np.float32)
            following, reward, _, _, info = env.step(action)
            row = (obs, following, action, reward, info["cost"])
            for values, value in zip(columns.values(), row, strict=True):
                values.append(value)
            obs = following
    ends = np.tile(np.arange(100) == 99, episodes)
    env.close()
    return TrajectoryDataset.from_arrays(
        **{key: np.array(values) for key, values in columns.items()},
        terminals=np.zeros_like(ends), timeouts=ends,
    )  # fmt: skip


@pytest.fixture(scope="module")
def balls():
    return record_balls(150)


@pytest.mark.slow
@pytest.mark.simulator
@pytest.mark.parametrize(
    ("variant", "steps", "budgets"),
    [("rcdt-paper", 600, (10, 20, 40)), ("wcdt", 1500, (10, 40, 80))],
)
def test_cost_and_return_rise_with_the_budget(variant, steps, budgets, balls):
    """The default also keeps every budget, and spends most of it."""
    assert balls.episode_costs.min() == 0 and balls.episode_costs.max() > 60
    agent = RCDT.from_dsrl(
        "BallRun", dataset=balls, preset="tiny", variant=variant, total_steps=steps, seed=0
    )
    agent.learn()
    report = agent.evaluate(budgets=budgets, n_episodes=8)
    print(report.as_table())
    costs = [result.mean_cost for result in report.results]
    returns = [result.mean_return for result in report.results]
    assert returns[0] < returns[1] < returns[2]
    assert costs[0] < costs[1] < costs[2]
    if variant == "wcdt":
        assert report.passed
        assert all(cost > 0.7 * budget for cost, budget in zip(costs, budgets, strict=True))
    assert report.range_source == "the training data's own range"
