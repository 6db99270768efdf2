"""Windows against a slow, obvious reference; reproducibility; sampling distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from conftest import random_arrays
from hypothesis import given, settings
from hypothesis import strategies as st

from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.data import WindowSampler as Sampler
from rcdt_agent.data.sampler import Relabelling
from rcdt_agent.data.transitions import TransitionSampler
from rcdt_agent.data.weights import FrontierWeights, normalize_weights
from rcdt_agent.errors import DatasetError, InvalidArgumentError
from rcdt_agent.losses import returns_to_go


def WindowSampler(data, *, seed=0, **kwargs):
    """A sampler with a generator of its own."""
    return Sampler(data, generator=torch.Generator().manual_seed(seed), **kwargs)


FIELDS = (
    "obs", "actions", "rewards", "costs", "rtg", "ctg", "timesteps", "mask", "next_obs",
    "terminals", "next_known",
)  # fmt: skip


def slow_window(arrays, lengths, trajectory, start, size):
    """One window, step by step in plain Python."""
    first = sum(lengths[:trajectory])
    length = lengths[trajectory]
    window = {name: [] for name in FIELDS}
    for t in range(start, start + size):
        real = t < length
        row = first + t
        rest = slice(row, first + length)
        known = (
            "next_observations" in arrays or t < length - 1 or (real and arrays["terminals"][row])
        )
        following = arrays.get("next_observations")
        if real and following is None:
            following_row = arrays["observations"][min(row + 1, first + length - 1)]
        elif real:
            following_row = following[row]
        zeros_o = np.zeros(arrays["observations"].shape[1])
        zeros_a = np.zeros(arrays["actions"].shape[1])
        window["obs"].append(arrays["observations"][row] if real else zeros_o)
        window["actions"].append(arrays["actions"][row] if real else zeros_a)
        window["rewards"].append(arrays["rewards"][row] if real else 0)
        window["costs"].append(arrays["costs"][row] if real else 0)
        window["rtg"].append(arrays["rewards"][rest].sum(dtype=np.float64) if real else 0)
        window["ctg"].append(arrays["costs"][rest].sum(dtype=np.float64) if real else 0)
        window["timesteps"].append(t if real else 0)
        window["mask"].append(real)
        window["next_obs"].append(following_row if real else zeros_o)
        window["terminals"].append(bool(real and arrays["terminals"][row]))
        window["next_known"].append(bool(real and known))
    return {name: np.array(values) for name, values in window.items()}


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=8),
    st.integers(1, 6),
    st.booleans(),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_windows_equal_the_slow_reference(episodes, size, with_next, seed):
    check_windows(episodes, size, with_next, seed)


def test_windows_do_not_depend_on_the_blocks_of_what_is_to_go(monkeypatch):
    """What is to go is found in blocks of whole trajectories; tiny blocks give the same."""
    for block in (1, 4, 9):
        monkeypatch.setattr("rcdt_agent.data.sums._CHUNK", block)
        check_windows([(3, True), (9, False), (1, True), (2, False), (7, True)], 4, True, 0)


def check_windows(episodes, size, with_next, seed):
    lengths, terminated = [e[0] for e in episodes], [e[1] for e in episodes]
    arrays = random_arrays(lengths, terminated=terminated, seed=seed)
    if not with_next:
        del arrays["next_observations"]
    data = TrajectoryDataset.from_arrays(**arrays)
    sampler = WindowSampler(data, context_length=size, batch_size=4)
    pairs = [(m, s) for m, length in enumerate(lengths) for s in range(length)]
    batch = sampler.windows(*torch.tensor(pairs).T)
    for i, (trajectory, start) in enumerate(pairs):
        expected = slow_window(arrays, lengths, trajectory, start, size)
        for name in FIELDS:
            got = getattr(batch, name)[i].numpy()
            np.testing.assert_allclose(got, expected[name], atol=1e-5, err_msg=name)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_returns_to_go_equal_the_slow_reference(lengths, seed):
    rewards = torch.from_numpy(np.random.default_rng(seed).normal(size=sum(lengths)))
    ends = torch.zeros(sum(lengths), dtype=torch.bool)
    ends[np.cumsum(lengths) - 1] = True
    expected = []
    for part in torch.split(rewards, lengths):
        expected += [float(part[t:].sum()) for t in range(len(part))]
    np.testing.assert_allclose(returns_to_go(rewards, ends), expected, atol=1e-9)


def test_rtg_stays_exact_over_a_million_steps():
    rewards = torch.full((1_000_000,), 0.1)
    ends = torch.zeros(1_000_000, dtype=torch.bool)
    ends[999::1000] = True
    rtg = returns_to_go(rewards, ends)
    np.testing.assert_allclose(rtg.view(1000, 1000)[[0, 500, 999], 0], 100.0, rtol=1e-5)


def numbered(data, **kwargs):
    """A sampler whose windows tell their trajectory by their weight."""
    return WindowSampler(data, weights=torch.arange(float(len(data))), **kwargs)


def many(sampler, batches=40):
    drawn = [sampler.sample() for _ in range(batches)]
    return (
        torch.cat([b.weights for b in drawn]).long().numpy(),
        torch.cat([b.timesteps[:, 0] for b in drawn]).numpy(),
    )


def test_uniform_over_trajectories_then_over_starts(dataset):
    chosen, starts = many(numbered(dataset, context_length=3, batch_size=512))
    share = np.bincount(chosen, minlength=5) / len(chosen)
    np.testing.assert_allclose(share, 0.2, atol=0.015)
    within = np.bincount(starts[chosen == 3], minlength=12) / (chosen == 3).sum()
    np.testing.assert_allclose(within, 1 / 12, atol=0.02)


def test_uniform_over_transitions(dataset):
    sampler = numbered(dataset, context_length=3, batch_size=512, sampling="transition")
    chosen, _ = many(sampler)
    share = np.bincount(chosen, minlength=5) / len(chosen)
    np.testing.assert_allclose(share, dataset.lengths / 27, atol=0.015)


def test_cost_tilted(dataset):
    ceiling = float(dataset.episode_costs.max())
    sampler = numbered(
        dataset, context_length=3, batch_size=512, sampling="cost_tilted", cost_ceiling=ceiling
    )
    chosen, _ = many(sampler)
    expected = np.maximum(0, ceiling - dataset.episode_costs)
    share = np.bincount(chosen, minlength=5) / len(chosen)
    np.testing.assert_allclose(share, expected / expected.sum(), atol=0.015)
    assert not (chosen == dataset.episode_costs.argmax()).any()
    with pytest.raises(InvalidArgumentError, match="`cost_ceiling` must exceed"):
        WindowSampler(
            dataset, context_length=3, batch_size=1, sampling="cost_tilted", cost_ceiling=0.0
        )


def test_same_generator_same_batches_and_its_state_resumes(dataset):
    def make(seed):
        return WindowSampler(dataset, context_length=4, batch_size=16, seed=seed)

    one, two, other = make(3), make(3), make(4)
    for _ in range(3):
        first = one.sample()
        torch.testing.assert_close(first.obs, two.sample().obs, rtol=0, atol=0)
    assert not torch.equal(first.obs, other.sample().obs)
    state = one.generator.get_state()
    expected = [one.sample().obs for _ in range(3)]
    other.generator.set_state(state)
    for batch in expected:
        assert torch.equal(other.sample().obs, batch)


def test_steps_that_do_not_exist_are_refused(dataset):
    sampler = WindowSampler(dataset, context_length=4, batch_size=1)
    for start in (-1, 4):  # the first trajectory has four steps
        with pytest.raises(InvalidArgumentError, match="`starts` must be steps"):
            sampler.windows(torch.tensor([0]), torch.tensor([start]))


def test_next_window_is_the_window_one_step_on():
    data = TrajectoryDataset.from_arrays(**random_arrays([9, 9], terminated=[True, False]))
    sampler = WindowSampler(data, context_length=3, batch_size=1)
    rows = torch.tensor([0, 1])
    moved = sampler.windows(rows, torch.tensor([2, 4])).next_window()
    later = sampler.windows(rows, torch.tensor([3, 5]))
    for name in ("obs", "rtg", "ctg", "timesteps"):
        torch.testing.assert_close(getattr(moved, name), getattr(later, name))
    torch.testing.assert_close(moved.actions[:, :2], later.actions[:, :2])
    assert not moved.actions[:, 2].any()  # not known yet


def test_transitions_are_drawn_evenly_with_their_actions(dataset):
    sampler = TransitionSampler(
        dataset, batch_size=20_000, generator=torch.Generator().manual_seed(0)
    )
    obs, actions = sampler.sample()
    rows = (obs[:, None] == torch.from_numpy(dataset.observations)).all(-1).int().argmax(1)
    torch.testing.assert_close(actions, torch.from_numpy(dataset.actions)[rows])
    share = np.bincount(rows, minlength=27) / len(rows)
    np.testing.assert_allclose(share, 1 / 27, atol=0.006)


def test_weights_travel_with_their_trajectory(dataset):
    sampler = numbered(dataset, context_length=2, batch_size=64)
    batch = sampler.sample()
    again = sampler.windows(batch.weights.long(), batch.timesteps[:, 0])
    assert torch.equal(again.obs, batch.obs) and len(batch.weights.unique()) == 5
    with pytest.raises(InvalidArgumentError, match=r"`weights` must have shape \(5,\)"):
        WindowSampler(dataset, context_length=2, batch_size=1, weights=torch.ones(4))


def test_normalized_weights_by_hand():
    weights, probabilities = torch.tensor([1.0, 3.0, 20.0]), torch.tensor([0.5, 0.25, 0.25])
    # mean 0.5 + 0.75 + 5 = 6.25
    expected = torch.tensor([1 / 6.25, 3 / 6.25, 3.0])
    torch.testing.assert_close(normalize_weights(weights, probabilities, 3.0), expected)
    floored = normalize_weights(weights, probabilities, 3.0, floor=0.9)
    torch.testing.assert_close(floored, expected.clamp(min=0.9))
    assert (floored > expected).any()


def test_pareto_relabelling_asks_the_frontier_for_more():
    """Frontier (1, 0), (5, 4), (9, 8); a dominated trajectory is never swapped in."""
    points = [(1.0, 0.0), (5.0, 4.0), (9.0, 8.0), (0.0, 8.0)]
    rewards, costs = np.array(points).T
    data = TrajectoryDataset.from_arrays(
        observations=np.zeros((4, 1)), actions=np.zeros((4, 1)), rewards=rewards, costs=costs,
        terminals=np.ones(4), timeouts=np.zeros(4),
    )  # fmt: skip
    sampler = numbered(
        data, context_length=2, batch_size=2000,
        relabelling=Relabelling(pareto_fraction=0.5, pareto_increase=0.1),
    )  # fmt: skip
    batch = sampler.sample()
    trajectories = batch.weights.long()
    returns, own_costs = rewards[trajectories], costs[trajectories]
    gain = batch.rtg[:, 0].numpy() - returns
    extra = batch.ctg[:, 0].numpy() - own_costs
    swapped = gain > 0
    assert 0.45 < swapped.mean() < 0.55
    assert gain.max() <= 0.9 + 1e-6  # a tenth of the range of returns
    assert (extra >= -1e-6).all() and extra.max() < 4.0  # the cost asked for, never less
    assert not extra[~swapped].any()
    assert set(trajectories[torch.from_numpy(swapped)].tolist()) <= {0, 1, 2}
    assert not batch.rtg[:, 1].any()  # padding stays padding
    np.testing.assert_allclose(batch.rewards[:, 0], returns)  # what happened stays real


@pytest.mark.parametrize("name", ["context_length", "batch_size"])
def test_sizes_must_be_positive(dataset, name):
    sizes = {"context_length": 2, "batch_size": 2, name: 0}
    with pytest.raises(InvalidArgumentError, match=f"`{name}` must be >= 1, got 0"):
        WindowSampler(dataset, **sizes)


def frontier_data():
    """Ten one-step trajectories: returns 0 .. 9, the even ones at no cost, the odd ones at 4."""
    returns = np.arange(10, dtype=np.float32)
    return TrajectoryDataset.from_arrays(
        observations=returns[:, None],
        actions=np.zeros((10, 1), np.float32),
        rewards=returns,
        costs=np.where(returns % 2, 4.0, 0.0).astype(np.float32),
        terminals=np.ones(10, bool),
        timeouts=np.zeros(10, bool),
    )


def test_frontier_weights_compare_a_step_with_those_that_may_spend_as_much():
    weights = FrontierWeights(frontier_data(), quantile=1.0, cost_unit=4.0, sharpness=2.0)
    steps = torch.zeros(4, dtype=torch.int64)
    rtg, ctg = torch.tensor([8.0, 8.0, 9.0, 4.0]), torch.tensor([0.0, 4.0, 4.0, 0.0])
    # No cost: best 8, median 4. At most 4: best 9, median 4.5.
    expected = [1.0, math.exp(2 * (3.5 / 4.5 - 1)), 1.0, math.exp(-2)]
    assert weights(steps, rtg, ctg).tolist() == pytest.approx(expected, rel=1e-5)


def test_windows_are_drawn_by_frontier_weights():
    data = frontier_data()
    weights = FrontierWeights(data, quantile=1.0, cost_unit=4.0, sharpness=2.0)
    sampler = WindowSampler(data, context_length=1, batch_size=4000, frontier=weights)
    batch = sampler.sample()
    share = np.bincount(batch.rewards[:, 0].long(), minlength=10) / 4000
    raw = weights(
        torch.zeros(10, dtype=torch.int64),
        torch.from_numpy(data.returns_to_go),
        torch.from_numpy(data.costs_to_go),
    )
    np.testing.assert_allclose(share, raw / raw.sum(), atol=0.02)
    assert batch.weights.unique().tolist() == [1.0]
    assert float(sampler.weight_ess) == pytest.approx(
        float(raw.sum() ** 2 / raw.square().sum() / 10), abs=0.02
    )
    plain = np.bincount(sampler.sample_plain().rewards[:, 0].long(), minlength=10) / 4000
    np.testing.assert_allclose(plain, 0.1, atol=0.02)


def test_at_most_relabelling_adds_slack_to_the_cost_token_only():
    """Half the windows keep their CTG; the others gain an exponential slack of mean 5."""
    data = TrajectoryDataset.from_arrays(**random_arrays([6, 2, 9]))
    plain = numbered(data, context_length=3, batch_size=4000)
    relabelled = numbered(
        data, context_length=3, batch_size=4000,
        relabelling=Relabelling(slack_fraction=0.5, slack=5.0),
    )  # fmt: skip
    batch, same = relabelled.sample(), plain.sample()
    real = plain.windows(batch.weights.long(), batch.timesteps[:, 0])
    slack = (batch.ctg - real.ctg)[:, 0]
    given = slack > 1e-6
    assert (slack >= -1e-5).all()
    assert 0.47 < given.float().mean() < 0.53
    assert 4.5 < slack[given].mean() < 5.5
    assert 4.5 < slack[given].std() < 5.5  # exponential: as wide as its mean
    every_step = slack[:, None].expand(-1, 3)[batch.mask]
    torch.testing.assert_close((batch.ctg - real.ctg)[batch.mask], every_step)
    assert not batch.ctg[~batch.mask].any()
    torch.testing.assert_close(batch.rtg, real.rtg)
    torch.testing.assert_close(batch.weights, same.weights)  # the same windows are drawn


def test_transitions_are_rows_of_the_data(dataset):
    """Every row: its neighbours within the trajectory, and how the trajectory ended."""
    sampler = TransitionSampler(dataset, batch_size=4, generator=torch.Generator())
    batch = sampler.transitions(torch.arange(dataset.n_transitions))
    np.testing.assert_array_equal(batch.obs, dataset.observations)
    np.testing.assert_array_equal(batch.costs, dataset.costs)
    np.testing.assert_array_equal(batch.rewards, dataset.rewards)
    last = dataset.offsets[1:] - 1
    assert np.flatnonzero(batch.ends).tolist() == last.tolist() == [3, 4, 11, 23, 26]
    assert np.flatnonzero(batch.terminals).tolist() == [3, 23, 26]
    assert np.flatnonzero(batch.is_first).tolist() == dataset.offsets[:-1].tolist()
    assert batch.timesteps.tolist() == [*range(4), 0, *range(7), *range(12), *range(3)]
    np.testing.assert_array_equal(batch.next_obs[last], dataset.final_observations)
    inside = np.setdiff1d(np.arange(dataset.n_transitions), last)
    np.testing.assert_array_equal(batch.next_obs[inside], dataset.observations[inside + 1])
    assert batch.next_known.all()
    first = {tuple(row) for row in dataset.observations[dataset.offsets[:-1]].tolist()}
    assert {tuple(row) for row in sampler.sample_initial_obs().tolist()} <= first


def test_steps_without_a_known_next_observation_are_left_out():
    arrays = random_arrays([3, 2], terminated=[True, False])
    del arrays["next_observations"]
    data = TrajectoryDataset.from_arrays(**arrays)
    generator = torch.Generator().manual_seed(0)
    every = TransitionSampler(data, batch_size=200, generator=generator)
    assert not every.sample_transitions().next_known.all()
    assert every.transitions(torch.arange(5)).next_known.tolist() == [True] * 4 + [False]
    followed = TransitionSampler(data, batch_size=200, generator=generator, only_followed=True)
    batch = followed.sample_transitions()
    assert batch.next_known.all()
    assert len(torch.unique(batch.rewards)) == 4
    single = TrajectoryDataset.from_arrays(
        **{key: values[-1:] for key, values in arrays.items()}, name="one step"
    )
    with pytest.raises(DatasetError, match="one step: no next observation was recorded"):
        TransitionSampler(single, batch_size=2, generator=generator, only_followed=True)
