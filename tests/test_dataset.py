"""TrajectoryDataset: splitting, figures, selections, and every refusal."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from conftest import random_arrays
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.data.checks import split_episodes
from rcdt_agent.errors import DatasetError, InvalidArgumentError

flags = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40)


def slow_split(terminals, timeouts):
    """Episodes as lists of rows, one step at a time."""
    episodes, current = [], []
    for row, (terminal, timeout) in enumerate(zip(terminals, timeouts, strict=True)):
        current.append(row)
        if terminal or timeout:
            episodes.append(current)
            current = []
    return episodes, current


@given(flags)
def test_splitting_equals_the_slow_reference(pairs):
    terminals, timeouts = np.array(pairs, dtype=bool).T
    offsets, open_end = split_episodes(terminals, timeouts)
    episodes, rest = slow_split(terminals, timeouts)
    expected = [*episodes, rest] if rest else episodes
    assert [list(range(a, b)) for a, b in pairwise(offsets)] == expected
    assert open_end == len(rest)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 99))
@settings(max_examples=50)
def test_sums_equal_the_slow_reference(lengths, seed):
    arrays = random_arrays(lengths, seed=seed)
    data = TrajectoryDataset.from_arrays(**arrays)
    ends = np.cumsum(lengths)
    for m, (start, end) in enumerate(zip(ends - lengths, ends, strict=True)):
        assert data.episode_returns[m] == pytest.approx(
            sum(map(float, arrays["rewards"][start:end])), 1e-4, 1e-5
        )
        assert data.episode_costs[m] == sum(arrays["costs"][start:end])
    assert list(data.lengths) == lengths


def test_what_follows_the_last_step(dataset):
    arrays = random_arrays([4, 1, 7, 12, 3], terminated=[True, False, False, True, True])
    last = np.cumsum([4, 1, 7, 12, 3]) - 1
    np.testing.assert_array_equal(dataset.final_observations, arrays["next_observations"][last])
    assert dataset.final_known.all()
    assert list(dataset.terminated) == [True, False, False, True, True]
    assert list(dataset.truncated) == [False, True, True, False, False]


def test_without_next_observations_the_end_is_unknown():
    arrays = random_arrays([4, 3], terminated=[True, False])
    del arrays["next_observations"]
    data = TrajectoryDataset.from_arrays(**arrays)
    assert not data.final_known.any()
    assert np.isfinite(data.final_observations).all()


def test_open_end_is_kept_and_counted():
    arrays = random_arrays([4, 5])
    arrays["timeouts"][-1] = False
    with pytest.warns(UserWarning, match="last 5 steps belong to an episode without an end"):
        data = TrajectoryDataset.from_arrays(**arrays)
    assert list(data.lengths) == [4, 5]
    assert list(data.truncated) == [True, True]
    assert not data.terminated.any()


def test_disagreeing_next_observations_are_counted():
    arrays = random_arrays([4, 5])
    arrays["next_observations"][1] += 1
    arrays["next_observations"][6] += 1
    with pytest.warns(UserWarning, match="in 2 of 7 places"):
        TrajectoryDataset.from_arrays(**arrays)


def test_summary(dataset):
    summary = dataset.summary()
    assert (summary.trajectories, summary.transitions) == (5, 27)
    assert (summary.observation_size, summary.action_size) == (3, 2)
    assert summary.length_range == (1, 12)
    assert (summary.terminated, summary.truncated) == (3, 2)
    assert summary.cost_range == (dataset.episode_costs.min(), dataset.episode_costs.max())


def by_return_and_cost(points):
    """A dataset of one-step trajectories with the given (return, cost)."""
    rewards, costs = np.array(points, dtype=np.float32).T
    n = len(points)
    return TrajectoryDataset.from_arrays(
        observations=np.zeros((n, 1)), actions=np.zeros((n, 1)), rewards=rewards, costs=costs,
        terminals=np.ones(n), timeouts=np.zeros(n),
    )  # fmt: skip


def test_frontier_by_hand():
    frontier = by_return_and_cost(
        [(5, 3), (1, 0), (4, 3), (5, 4), (9, 8), (0, 0), (5, 3)]
    ).frontier()
    assert list(frontier.costs) == [0, 3, 8]
    assert list(frontier.returns) == [1, 5, 9]
    assert list(frontier.rows) == [1, 0, 4]
    assert frontier.best_return(7.9) == 5
    assert frontier.best_return(8) == 9
    assert np.isnan(by_return_and_cost([(1, 5)]).frontier().best_return(4))


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 5)), min_size=1, max_size=20))
def test_frontier_equals_the_definition(points):
    frontier = by_return_and_cost(points).frontier()
    expected = {
        (r, c)
        for r, c in points
        if not any((r2 >= r and c2 <= c and (r2, c2) != (r, c)) for r2, c2 in points)
    }
    assert set(zip(frontier.returns, frontier.costs, strict=True)) == expected
    assert len(frontier.rows) == len(expected)


def test_coverage_and_bound_by_hand():
    data = by_return_and_cost([(0, 0), (10, 10), (9.6, 9.8), (10, 0)])
    assert data.coverage(10, 10, tolerance=0.05) == 0.5
    assert data.coverage(10, 10, tolerance=0.01) == 0.25
    assert data.coverage(0, 10) == 0
    # epsilon (1 / alpha + 2) H^2 = 0.1 * (2 + 2) * 1
    assert data.alignment_bound(10, 10, epsilon=0.1) == pytest.approx(0.4)
    assert data.alignment_bound(0, 10, epsilon=0.1) == np.inf


def test_degraded_datasets_by_hand():
    data = by_return_and_cost([(3, 0), (1, 0), (5, 0), (2, 0), (4, 0)])
    assert list(data.bottom(60).episode_returns) == [3, 1, 2]
    assert list(data.extremes(20).episode_returns) == [1, 5]
    assert list(data.extremes(50).episode_returns) == [3, 1, 5, 2, 4]
    for rho in (0, 101):
        with pytest.raises(InvalidArgumentError, match="`rho` must be in"):
            data.bottom(rho)
    with pytest.raises(InvalidArgumentError, match=r"\(0, 50\] percent, got 60"):
        data.extremes(60)


def test_select_keeps_whole_trajectories(dataset):
    chosen = dataset.select([3, 0])
    assert list(chosen.lengths) == [12, 4]
    first = slice(dataset.offsets[3], dataset.offsets[4])
    np.testing.assert_array_equal(chosen.observations[:12], dataset.observations[first])
    np.testing.assert_array_equal(chosen.actions[12:], dataset.actions[:4])
    np.testing.assert_array_equal(chosen.final_observations, dataset.final_observations[[3, 0]])


def test_filter_and_split(dataset):
    kept = dataset.filter(max_cost=4, min_length=3)
    assert len(kept) and all(kept.episode_costs <= 4) and all(kept.lengths >= 3)
    with pytest.raises(DatasetError, match="holds no trajectory"):
        dataset.filter(min_return=1e9)
    one, two = dataset.split(0.4, seed=1)
    assert (len(one), len(two)) == (2, 3)
    assert sorted([*one.episode_returns, *two.episode_returns]) == sorted(dataset.episode_returns)
    np.testing.assert_array_equal(
        dataset.split(0.4, seed=1)[0].episode_returns, one.episode_returns
    )
    with pytest.raises(InvalidArgumentError, match="`fraction` must leave"):
        dataset.split(0.01)


def test_fingerprint_follows_the_contents(dataset):
    arrays = random_arrays([4, 1, 7, 12, 3], terminated=[True, False, False, True, True])
    same = TrajectoryDataset.from_arrays(**arrays)
    assert same.fingerprint == dataset.fingerprint
    arrays["costs"][3] += 1
    assert TrajectoryDataset.from_arrays(**arrays).fingerprint != dataset.fingerprint


def spoil(key, row, value):
    def change(arrays):
        arrays[key][row] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (spoil("observations", 5, np.nan), r"`observations` must be finite, row 5 is"),
        (spoil("next_observations", 6, np.inf), r"`next_observations` must be finite, row 6"),
        (spoil("rewards", 2, -np.inf), r"`rewards` must be finite, row 2"),
        (spoil("costs", 8, -0.5), r"`costs` must be >= 0, row 8 is -0.5"),
        (
            lambda a: a.update(rewards=np.stack([a["rewards"]] * 2, axis=1)),
            r"`rewards` must have rank 1, got",
        ),
        (
            lambda a: a.update(observations=a["observations"][:, 0]),
            r"`observations` must have rank 2",
        ),
        (
            lambda a: a.update(costs=a["costs"][:-1]),
            r"`costs` has 8 rows, but `observations` has 9",
        ),
        (lambda a: a.update(timeouts=a["timeouts"][:-2]), r"`timeouts` has 7 rows"),
        (
            lambda a: a.update(next_observations=a["next_observations"][:, :2]),
            r"`next_observations` has shape",
        ),
        (lambda a: a.update({k: v[:0] for k, v in a.items()}), r"holds no rows"),
    ],
)
def test_bad_arrays_are_refused(change, message):
    arrays = random_arrays([4, 5])
    change(arrays)
    with pytest.raises(DatasetError, match=message):
        TrajectoryDataset.from_arrays(**arrays, name="mine")


def test_other_sizes_than_the_environment_are_refused(dataset):
    box = lambda n: spaces.Box(-1, 1, (n,))  # noqa: E731
    dataset.check_spaces(box(3), box(2))
    with pytest.raises(
        DatasetError, match="`observations` have size 3, but the environment's have size 4"
    ):
        dataset.check_spaces(box(4), box(2))
    with pytest.raises(DatasetError, match="`actions` have size 2"):
        dataset.check_spaces(box(3), box(5))


def test_dataset_and_summary_are_short_to_read(dataset):
    assert repr(dataset) == "TrajectoryDataset('arrays': 5 trajectories, 27 transitions)"
    lines = str(dataset.summary()).splitlines()
    returns, costs = dataset.episode_returns, dataset.episode_costs
    assert lines == [
        "arrays: 5 trajectories of 1 to 12 steps, 27 transitions",
        "observations of size 3, actions of size 2",
        f"return {returns.min():.4g} .. {returns.max():.4g}",
        f"cost {costs.min():g} .. {costs.max():g}",
        "3 ended by the task, 2 cut off",
    ]
