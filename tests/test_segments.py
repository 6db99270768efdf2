"""Segments: labels and weights by hand, cuts by index, and data that cannot be labelled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import random_arrays

from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.data.segments import (
    SegmentSampler,
    label_by_outcome,
    published_segments,
    trajectory_segments,
)
from rcdt_agent.errors import DatasetError

HALF = {"desirable_share": 0.5, "undesirable_share": 0.25, "least_weight": 0.7}


def numbered(lengths: list[int], costs: list[float]) -> TrajectoryDataset:
    """Observations are row numbers; trajectory i returns i and costs `costs[i]`."""
    arrays = random_arrays(lengths, observation_size=1)
    arrays["observations"] = np.arange(sum(lengths), dtype=np.float32)[:, None]
    del arrays["next_observations"]
    ends = np.cumsum(lengths) - 1
    arrays["rewards"] = np.zeros(sum(lengths), dtype=np.float32)
    arrays["costs"] = np.zeros(sum(lengths), dtype=np.float32)
    arrays["rewards"][ends] = np.arange(len(lengths))
    arrays["costs"][ends] = costs
    return TrajectoryDataset.from_arrays(**arrays)


def test_labels_and_weights_by_hand():
    returns = np.array([0.0, 2.0, 6.0, 8.0, 100.0])
    costs = np.array([1.0, 1.0, 1.0, 1.0, 5.0])
    labels, weights = label_by_outcome(returns, costs, 1.0, **HALF)
    # Safe: the first four, scaled 0, 1/4, 3/4, 1; two best, one worst, one without a label.
    np.testing.assert_array_equal(labels, [0, -1, 1, 1, 0])
    np.testing.assert_allclose(weights, [1.0, 1.0, 0.7 + 0.3 * 0.75, 1.0, 1.0])


def test_a_desirable_one_never_becomes_undesirable():
    returns, costs = np.array([1.0, 2.0, 3.0]), np.zeros(3)
    shares = {"desirable_share": 0.5, "undesirable_share": 0.5, "least_weight": 0.0}
    labels, weights = label_by_outcome(returns, costs, 0.0, **shares)
    np.testing.assert_array_equal(labels, [0, 1, 1])  # two of three are the better half
    np.testing.assert_allclose(weights, [1.0, 0.5, 1.0])


def test_data_that_cannot_be_labelled_are_refused():
    with pytest.raises(DatasetError, match="none of 2 costs at most 3 .the cheapest 4."):
        label_by_outcome(np.arange(2.0), np.array([4.0, 5.0]), 3.0, **HALF)
    with pytest.raises(DatasetError, match="the 2 within a cost of 3 all return 7"):
        label_by_outcome(np.array([7.0, 7.0, 9.0]), np.array([0.0, 0.0, 5.0]), 3.0, **HALF)


def test_trajectories_give_their_label_to_every_segment():
    data = numbered([4, 2, 6, 6], costs=[9.0, 0.0, 0.0, 0.0])
    table = trajectory_segments(data, 4, 1.0, **HALF)
    # Safe: trajectories 1, 2, 3; the better two desirable, the worst one undesirable.
    np.testing.assert_array_equal(table.first, [0, 4, 6, 12])
    np.testing.assert_array_equal(table.starts, [1, 1, 3, 3])
    np.testing.assert_array_equal(table.lengths, [4, 2, 4, 4])
    np.testing.assert_array_equal(table.labels, [0, 0, 1, 1])
    sampler = SegmentSampler(data, table, batch_size=400, generator=torch.Generator())
    batch = sampler.sample()
    assert batch.obs.shape == (400, 4, 1) and batch.mask.shape == (400, 4)
    first = batch.obs[:, 0, 0].long()
    assert sorted(set(first.tolist())) == [0, 4, 6, 7, 8, 12, 13, 14]
    steps = batch.obs[..., 0] - batch.obs[:, :1, 0]
    short = first == 4
    assert (steps[~short] == torch.arange(4)).all() and batch.mask[~short].all()
    assert (steps[short] == torch.tensor([0, 1, 1, 1])).all()
    assert (batch.mask[short] == torch.tensor([True, True, False, False])).all()
    assert (batch.desirable == (first >= 6)).all()


def test_published_segments_are_labelled_by_their_own_steps():
    data = numbered([12, 12, 3], costs=[4.0, 4.0, 0.0])
    data.rewards[:] = np.arange(27)
    table = published_segments(data, 6, 2.0, seed=0, **{**HALF, "undesirable_share": 0.5})
    assert (table.lengths == 6).all() and (table.starts == 1).all()
    assert len(table) == ((12 - 6) // 6) * 3  # the published count
    assert not np.isin(table.first, range(24, 27)).any()  # too short: left out
    # All cost falls on the last step: a segment that ends there costs 4 > 2 * 6 / 12.
    ends = np.isin(table.first + 5, [11, 23])
    assert (table.labels[ends] == 0).all()


def test_segments_of_the_whole_length_agree_with_trajectories():
    data = numbered([5, 5, 5, 5], costs=[9.0, 0.0, 0.0, 0.0])
    table = published_segments(data, 5, 1.0, seed=0, **HALF)
    paper = trajectory_segments(data, 5, 1.0, **HALF)
    rows = dict(zip(paper.first.tolist(), paper.labels.tolist(), strict=True))
    unsafe = table.first == 0
    assert (table.labels[unsafe] == rows[0]).all()
    assert set(table.first.tolist()) <= set(rows)
