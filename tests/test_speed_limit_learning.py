"""One small RCDT on SpeedLimit against the exact optimum, at five budgets."""

from __future__ import annotations

import time

import numpy as np
import pytest

from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.tasks.speed_limit import ENV_ID, optimal_return, record_drivers

BUDGETS = (2.0, 5.0, 10.0, 20.0, 40.0)


@pytest.mark.slow
def test_one_policy_keeps_five_budgets_near_the_optimum():
    data = TrajectoryDataset.from_arrays(**record_drivers(1000, seed=0))
    agent = RCDT(preset="tiny", seed=0)
    started = time.process_time()
    agent.learn(data)
    assert time.process_time() - started < 2 * 120  # two minutes on two cores
    report = agent.evaluate(ENV_ID, BUDGETS, n_episodes=50, seed=1000, n_envs=50)
    print(report.as_table())
    returns = np.array([result.mean_return for result in report.results])
    shares = returns / [optimal_return(budget) for budget in BUDGETS]
    assert report.passed
    assert shares.mean() >= 0.85
    assert (np.diff(returns) > 0).all()
    assert (np.diff([result.mean_cost for result in report.results]) > 0).all()
