"""One small RCDT on SpeedLimit against the exact optimum, at five budgets."""

from __future__ import annotations

import io

import numpy as np
import pytest

from rcdt_agent import RCDT
from rcdt_agent.tasks.speed_limit import ENV_ID, optimal_return

BUDGETS = (2.0, 5.0, 10.0, 20.0, 40.0)


@pytest.mark.slow
@pytest.mark.xdist_group("speed_limit_driver")
def test_one_policy_keeps_five_budgets_near_the_optimum(speed_limit_driver):
    file, seconds = speed_limit_driver
    assert seconds < 2 * 120  # two minutes on two cores
    agent = RCDT.load(io.BytesIO(file))
    report = agent.evaluate(ENV_ID, BUDGETS, n_episodes=50, seed=1000, n_envs=50)
    print(report.as_table())
    returns = np.array([result.mean_return for result in report.results])
    shares = returns / [optimal_return(budget) for budget in BUDGETS]
    assert report.passed
    assert shares.mean() >= 0.85
    assert (np.diff(returns) > 0).all()
    assert (np.diff([result.mean_cost for result in report.results]) > 0).all()
