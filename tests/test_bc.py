"""BC and BC-Safe: they imitate what they should, and survive a trip through a file."""

from __future__ import annotations

import numpy as np
import pytest

from rcdt_agent import BC, RCDT, BCSafe, load_agent
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
    everyone, _ = BC(preset="tiny", seed=1, width=32).learn(data, 600).predict(obs)
    safe, _ = BCSafe(preset="tiny", cost_budget=5.0, seed=1, width=32).learn(data, 600).predict(obs)
    assert np.abs(everyone).max() < 0.25  # the mean of both
    np.testing.assert_allclose(safe, -0.5, atol=0.1)


def test_bc_safe_refuses_a_budget_nobody_kept():
    data = two_drivers().filter(min_return=1.0)
    with pytest.raises(DatasetError, match="holds no trajectory"):
        BCSafe(cost_budget=5.0).learn(data, 10)


@pytest.mark.parametrize("kind", [BC, BCSafe])
def test_save_and_load(kind, tmp_path):
    policy = kind(preset="tiny", seed=2, width=16).learn(two_drivers(), 20)
    policy.save(tmp_path / "policy")
    loaded = kind.load(tmp_path / "policy.zip")
    obs = np.random.default_rng(3).normal(size=(5, 3))
    np.testing.assert_array_equal(loaded.predict(obs)[0], policy.predict(obs)[0])
    assert loaded.config == policy.config
    assert type(load_agent(tmp_path / "policy.zip")) is kind
    single, state = loaded.predict(obs[0], state="kept")
    assert single.shape == (1,) and state == "kept"
    other = BCSafe if kind is BC else BC
    with pytest.raises(CheckpointError, match=f"holds a {kind.__name__}"):
        other.load(tmp_path / "policy.zip")


def test_same_seed_same_policy():
    obs = np.ones((1, 3))
    one, two = (
        BC(preset="tiny", seed=7, width=16).learn(two_drivers(), 30).predict(obs)[0] for _ in "ab"
    )
    np.testing.assert_array_equal(one, two)


def test_untrained_and_bad_arguments():
    with pytest.raises(InvalidArgumentError, match="call `learn` first"):
        BC().predict(np.zeros(3))
    with pytest.raises(InvalidArgumentError, match="`n_layers` must be >= 2"):
        BC(n_layers=1)
    with pytest.raises(InvalidArgumentError, match="`cost_budget` must be >= 0"):
        BCSafe(cost_budget=-1.0)
    with pytest.raises(InvalidArgumentError, match="`total_steps` must be a whole number >= 0"):
        BC().learn(two_drivers(), -1)
    with pytest.raises(InvalidArgumentError, match="BC has no variants"):
        BC(variant="cdt")
    with pytest.raises(InvalidArgumentError, match="Unknown config fields: \\['eta'\\]"):
        BC(eta=0.5)


@pytest.mark.parametrize("kind", [BC, BCSafe])
def test_training_resumes_bit_for_bit(kind, tmp_path):
    data = two_drivers()
    whole = kind(preset="tiny", seed=2, width=16).learn(data, 30)
    half = kind(preset="tiny", seed=2, width=16)
    half.learn(data, 30, callback=lambda *_: half.num_timesteps < 12)
    half.save(tmp_path / "half.zip")
    resumed = kind.load(tmp_path / "half.zip").learn(data, resume=True)
    whole.save(tmp_path / "whole.zip")
    resumed.save(tmp_path / "resumed.zip")
    assert (tmp_path / "whole.zip").read_bytes() == (tmp_path / "resumed.zip").read_bytes()


def test_the_base_class_does_the_rest(tmp_path):
    """Callbacks, logger, divergence guard and spaces: nothing of it is BC's own."""
    from rcdt_agent.errors import TrainingError

    data, seen = two_drivers(), []
    policy = BC(preset="tiny", seed=0, width=16)
    policy.learn(data, 50, callback=lambda *_: seen.append(policy.num_timesteps) or len(seen) < 7)
    assert seen == [1, 2, 3, 4, 5, 6, 7] and policy.num_timesteps == 7
    with pytest.raises(TrainingError, match="`loss` is (nan|inf).*put back to step 0"):
        BC(preset="tiny", seed=0, learning_rate=1e30).learn(data, 50)
    with pytest.raises(InvalidArgumentError, match=r"`observation` must have shape \(3,\)"):
        policy.predict(np.zeros(5))


def test_precision_is_a_setting_of_every_algorithm():
    safe, _ = (
        BCSafe(preset="tiny", cost_budget=5.0, seed=1, width=32, precision="bf16")
        .learn(two_drivers(), 600)
        .predict(np.zeros((4, 3)))
    )
    np.testing.assert_allclose(safe, -0.5, atol=0.1)


def test_the_learning_rate_falls_as_rcdts_does():
    """Presets of one name have one schedule; a comparison must not be one of schedules."""
    for preset in ("cpu", "tiny"):
        theirs, ours = BC.make_config(preset), RCDT.make_config(preset)
        for name in ("warmup_steps", "final_learning_rate"):
            assert getattr(theirs, name) == getattr(ours, name)
    agent = BC(preset="tiny", seed=0, width=8, warmup_steps=0).learn(two_drivers(), 40)
    rate = agent.training.optimizers["policy"].param_groups[0]["lr"]
    share = 0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * 39 / 40))
    assert rate == pytest.approx(agent.config.learning_rate * share)


def test_another_budget_is_refused_with_what_would_help():
    safe = BCSafe(preset="tiny", cost_budget=5.0)
    safe.set_cost_budget(5)  # its own
    message = r"BCSafe serves the cost budget 5 only, got 7.*RCDT.*BCSafe\(cost_budget=7\)"
    with pytest.raises(InvalidArgumentError, match=message):
        safe.set_cost_budget(7)
    with pytest.raises(InvalidArgumentError, match="BC serves no cost budget, got 7.*RCDT"):
        BC(preset="tiny").set_cost_budget(7)


@pytest.mark.parametrize("length", [0, -3])
def test_a_file_with_an_impossible_episode_length_is_refused(length, drivers):
    agent = BC(preset="tiny", batch_size=16, seed=0)
    agent.set_dataset(drivers)
    values = {**agent.policy.to_dict(), "episode_length": length}
    spaces = agent.policy.observation_space, agent.policy.action_space
    with pytest.raises(InvalidArgumentError, match=f"`episode_length` must be >= 1, got {length}"):
        agent.restore_policy(values, *spaces)
