"""From a budget to a target return, and warnings with numbers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from rcdt_agent.deploy import ReturnTargets
from rcdt_agent.errors import InvalidArgumentError


def make(points, **kwargs):
    returns, costs = np.array(points, dtype=np.float32).T
    return ReturnTargets(returns=returns, costs=costs, **kwargs)


GRID = make([(r, c) for c in (0, 10, 20) for r in range(c, c + 11)])


def test_auto_is_a_quantile_of_what_was_seen_within_the_budget():
    assert GRID.auto(0) == pytest.approx(9.0)  # 0.9 quantile of 0 .. 10
    within = np.concatenate([np.arange(11), np.arange(10, 21)])
    assert GRID.auto(10) == pytest.approx(np.quantile(within, 0.9))
    assert GRID.auto(15) == GRID.auto(10)


def test_auto_never_falls_with_the_budget():
    targets = make([(100, 0)] * 5 + [(1, 5)] * 200)  # dear trajectories are worse
    assert targets.auto(0) == 100
    assert targets.auto(5) == 100
    values = [GRID.auto(budget) for budget in range(25)]
    assert (np.diff(values) >= 0).all()


def test_one_lucky_trajectory_is_not_the_target():
    targets = make([(1000, 0), *[(10, 1)] * 50])
    assert targets.auto(0) < 1000
    assert targets.auto(50) < 1000


def test_a_number_the_table_and_nonsense():
    targets = make([(1, 0)] * 5, published=((10.0, 300.0), (20.0, 400.0)))
    assert targets.resolve(10, 123) == 123.0
    assert targets.resolve(10, "paper") == 300.0
    assert targets.resolve(15, "paper") == 350.0
    assert targets.resolve(99, "paper") == 400.0
    with pytest.raises(InvalidArgumentError, match="needs a DSRL task"):
        GRID.resolve(10, "paper")
    for nonsense in ("best", float("nan")):
        with pytest.raises(InvalidArgumentError, match="`target_return` must be 'auto'"):
            GRID.resolve(10, nonsense)


def test_uncovered_requests_are_said_aloud_with_numbers():
    costly = make([(1, 30)] * 20)
    with pytest.warns(UserWarning, match="covered by 0 of 20 training trajectories .*costs 30"):
        costly.warn_if_uncovered(10, 1)
    with pytest.warns(UserWarning, match="target return 50 exceeds the best return 10 "):
        GRID.warn_if_uncovered(5, 50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GRID.warn_if_uncovered(5, GRID.auto(5))


def test_round_trip():
    again = ReturnTargets.from_dict(make([(1, 2), (3, 4)], published=((1.0, 2.0),)).to_dict())
    assert again.returns.tolist() == [1, 3]
    assert again.published == ((1.0, 2.0),)
