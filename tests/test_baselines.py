"""BC and BC-Safe: they imitate what they should, and survive a trip through a file."""

from __future__ import annotations

import numpy as np
import pytest

from rcdt_agent.baselines import BC, BCSafe
from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.errors import CheckpointError, DatasetError, InvalidArgumentError


def two_drivers():
    """Half the trajectories act +0.5 and cost 10, half act -0.5 and cost nothing."""
    rng = np.random.default_rng(0)
    n, length = 40, 10
    fast = np.repeat(np.arange(n) % 2 == 0, length)
    return TrajectoryDataset.from_arrays(
        observations=rng.normal(size=(n * length, 3)),
        actions=np.where(fast, 0.5, -0.5)[:, None],
        rewards=fast.astype(float),
        costs=fast.astype(float),
        terminals=np.zeros(n * length),
        timeouts=np.tile(np.arange(length) == length - 1, n),
    )


def test_bc_imitates_everyone_and_bc_safe_the_safe():
    data = two_drivers()
    obs = np.zeros((4, 3))
    everyone, _ = BC(seed=1, width=32).learn(data, 300).predict(obs)
    safe, _ = BCSafe(cost_budget=5.0, seed=1, width=32).learn(data, 300).predict(obs)
    assert np.abs(everyone).max() < 0.25  # the mean of both
    np.testing.assert_allclose(safe, -0.5, atol=0.1)


def test_bc_safe_refuses_a_budget_nobody_kept():
    data = two_drivers().filter(min_return=1.0)
    with pytest.raises(DatasetError, match="holds no trajectory"):
        BCSafe(cost_budget=5.0).learn(data, 10)


@pytest.mark.parametrize("kind", [BC, BCSafe])
def test_save_and_load(kind, tmp_path):
    policy = kind(seed=2, width=16).learn(two_drivers(), 20)
    policy.save(tmp_path / "policy")
    loaded = kind.load(tmp_path / "policy.zip")
    obs = np.random.default_rng(3).normal(size=(5, 3))
    np.testing.assert_array_equal(loaded.predict(obs)[0], policy.predict(obs)[0])
    assert loaded.settings == policy.settings
    single, state = loaded.predict(obs[0], state="kept")
    assert single.shape == (1,) and state == "kept"
    other = BCSafe if kind is BC else BC
    with pytest.raises(CheckpointError, match=f"holds a {kind.__name__}"):
        other.load(tmp_path / "policy.zip")


def test_same_seed_same_policy():
    obs = np.ones((1, 3))
    one, two = (BC(seed=7, width=16).learn(two_drivers(), 30).predict(obs)[0] for _ in "ab")
    np.testing.assert_array_equal(one, two)


def test_untrained_and_bad_arguments():
    with pytest.raises(InvalidArgumentError, match="call `learn` first"):
        BC().predict(np.zeros(3))
    with pytest.raises(InvalidArgumentError, match="`n_layers` must be >= 2"):
        BC(n_layers=1)
    with pytest.raises(InvalidArgumentError, match="`cost_budget` must be >= 0"):
        BCSafe(cost_budget=-1.0)
    with pytest.raises(InvalidArgumentError, match="`total_steps` must be >= 1"):
        BC().learn(two_drivers(), 0)
