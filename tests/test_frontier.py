"""Outcomes of episodes: frontier, targets, ranges; sums to go by hand."""

from __future__ import annotations

import subprocess
import sys

import h5py
import numpy as np
import pytest

from rcdt_agent.data import Outcomes, TrajectoryDataset
from rcdt_agent.data.frontier import MIN_TRAJECTORIES, ReturnToGoTable
from rcdt_agent.errors import InvalidArgumentError


def make(points):
    returns, costs = np.array(points, dtype=np.float32).T
    return Outcomes(returns=returns, costs=costs)


def three_episodes(**changes):
    arrays = {
        "observations": np.arange(6, dtype=np.float32)[:, None],
        "actions": np.zeros((6, 1)),
        "rewards": [1, 2, 3, 10, 5, 7],
        "costs": [0, 1, 0, 4, 2, 3],
        "terminals": [0, 0, 1, 1, 0, 0],
        "timeouts": [0, 0, 0, 0, 0, 1],
    }
    return TrajectoryDataset.from_arrays(**(arrays | changes))


def test_sums_to_go_by_hand():
    data = three_episodes()
    assert data.episode_returns.tolist() == [6, 10, 12]
    assert data.episode_costs.tolist() == [1, 4, 5]
    assert data.returns_to_go.tolist() == [6, 5, 3, 10, 12, 7]
    assert data.costs_to_go.tolist() == [1, 1, 0, 4, 5, 3]
    assert data.returns_to_go.dtype == data.costs_to_go.dtype == np.float32
    assert data.returns_to_go is data.returns_to_go  # computed once


@pytest.mark.parametrize("chunk", [1, 2, 4, 5, 100])
def test_sums_to_go_do_not_depend_on_the_chunks(monkeypatch, chunk):
    monkeypatch.setattr("rcdt_agent.data.sums._CHUNK", chunk)
    assert three_episodes().returns_to_go.tolist() == [6, 5, 3, 10, 12, 7]


def test_outcomes_of_a_dataset():
    data = three_episodes()
    assert data.outcomes.returns.tolist() == [6, 10, 12]
    assert data.outcomes.costs.tolist() == [1, 4, 5]
    assert data.outcomes.frontier.costs.tolist() == data.frontier().costs.tolist() == [1, 4, 5]
    assert len(data.outcomes) == 3


def test_next_observations_may_stay_on_disk(tmp_path):
    """Anything that can be sliced by rows will do; only the final ones are kept."""
    values = np.arange(1, 7, dtype=np.float64)[:, None]
    values[[2, 3, 5]] = [[30], [40], [60]]
    with h5py.File(tmp_path / "next.hdf5", "w") as file:
        stored = file.create_dataset("next_observations", data=values)
        data = three_episodes(next_observations=stored)
    assert data.final_observations.tolist() == [[30], [40], [60]]
    assert data.final_known.all()
    listed = three_episodes(next_observations=values.tolist())
    assert listed.final_observations.tolist() == [[30], [40], [60]]


@pytest.mark.parametrize(
    ("returns", "costs", "message"),
    [
        ([], [], "`returns` must be a row of finite numbers"),
        ([1, np.nan], [0, 0], "`returns` must be a row of finite numbers"),
        ([1, 2], [0, np.inf], "`costs` must be a row of finite numbers"),
        ([[1, 2]], [0, 0], "`returns` must be a row of finite numbers"),
        ([1, 2], [0], "`returns` and `costs` must be as many, got 2 and 1"),
    ],
)
def test_outcomes_refuse_what_no_dataset_gives(returns, costs, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Outcomes(returns=np.array(returns, np.float32), costs=np.array(costs, np.float32))


def test_target_return_is_a_quantile_within_the_budget():
    grid = make([(r, c) for c in (0, 10, 20) for r in range(c, c + 11)])
    assert grid.target_return(0, 0.9) == pytest.approx(9.0)  # 0.9 quantile of 0 .. 10
    assert grid.target_return(0, 0.5) == pytest.approx(5.0)
    within = np.concatenate([np.arange(11), np.arange(10, 21)])
    assert grid.target_return(10, 0.9) == pytest.approx(np.quantile(within, 0.9))
    assert grid.target_return(15, 0.9) == grid.target_return(10, 0.9)


def test_target_return_takes_in_the_cheapest_where_few_are_within():
    lucky = make([(1000, 0), *[(10, 1)] * 50])
    expected = np.quantile([1000, *[10] * (MIN_TRAJECTORIES - 1)], 0.9)
    assert lucky.target_return(0, 0.9) == pytest.approx(expected)
    assert make([(3, 7)]).target_return(0, 0.9) == 3  # all there are


def test_target_return_never_falls_with_the_budget():
    outcomes = make([(100, 0)] * 5 + [(1, 5)] * 200)  # dear episodes are worse
    assert outcomes.target_return(5, 0.9) == outcomes.target_return(0, 0.9) == 100


def test_counts_ranges_and_typical_cost():
    outcomes = make([(1, 0), (4, 2), (2, 3)])
    assert [outcomes.n_within(budget) for budget in (-1, 0, 2, 2.5, 3)] == [0, 1, 2, 2, 3]
    assert outcomes.return_range == (1, 4)
    assert outcomes.typical_cost == 2  # the median
    assert make([(5, 0), (5, 0), (5, 6)]).return_range == (5, 6)  # equal returns
    assert make([(5, 0), (5, 0), (5, 6)]).typical_cost == 2  # a zero median: the mean
    assert make([(5, 0), (5, 0)]).typical_cost == 1  # nothing costs anything


def test_round_trips():
    outcomes = make([(1, 2), (3, 4)])
    again = Outcomes.from_dict(outcomes.to_dict())
    assert again.returns.tolist() == [1, 3] and again.costs.tolist() == [2, 4]
    assert again.returns.dtype == np.float32
    table = ReturnToGoTable.fit(three_episodes(), quantile=1.0, cost_unit=2.0)
    same = ReturnToGoTable.from_dict(table.to_dict())
    np.testing.assert_array_equal(same.returns, table.returns)


@pytest.mark.parametrize("module", ["dataset", "frontier", "checks", "subsets"])
def test_data_is_imported_without_torch(module):
    code = f"import sys, rcdt_agent.data.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
