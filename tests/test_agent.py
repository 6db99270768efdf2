"""The agent as users meet it: learn, predict, budgets, wrappers, refusals."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import QUICK, random_arrays

from rcdt_agent import RCDT, ReturnCostTokens, TrajectoryDataset
from rcdt_agent.errors import (
    DatasetError,
    DownloadError,
    InvalidArgumentError,
    StateError,
    TrainingError,
    UnknownTaskError,
)
from rcdt_agent.schedules import learning_rate
from rcdt_agent.tasks.speed_limit import ENV_ID
from rcdt_agent.variants import make_config


@pytest.fixture
def ball_file(tmp_path, monkeypatch):
    """A small file in the cache under the name of DSRL's BallRun dataset."""
    monkeypatch.setenv("DSRL_DATASET_DIR", str(tmp_path))
    arrays = random_arrays([10] * 12, observation_size=7, action_size=2)
    TrajectoryDataset.from_arrays(**arrays).to_hdf5(tmp_path / "SafetyBallRun-v0-80-940.hdf5")
    return tmp_path


def test_from_dsrl_uses_the_cached_file_and_the_task(ball_file):
    agent = RCDT.from_dsrl("OfflineBallRun-v0", preset="tiny", seed=0)
    assert agent.task.id == "OfflineBallRun-v0"
    assert len(agent.dataset) == 12
    assert agent.cost_budget == 20.0  # the suite's middle budget
    assert agent.policy.cost_limit == 20.0
    assert agent.policy.episode_length == 100  # the task's, longer than the data's
    agent.learn(total_steps=3)
    assert agent.num_timesteps == 3
    assert RCDT.from_dsrl("BallRun", preset="tiny").dataset.fingerprint == agent.dataset.fingerprint


def test_from_dsrl_without_file_or_network(tmp_path, monkeypatch):
    monkeypatch.setenv("DSRL_DATASET_DIR", str(tmp_path))
    monkeypatch.setenv("RCDT_DATASET_URL", "http://127.0.0.1:9/")
    with pytest.raises(DownloadError, match="SafetyHopperVelocityGymnasium-v1-250-2240.hdf5"):
        RCDT.from_dsrl("OfflineHopperVelocity-v1", progress_bar=False)
    with pytest.raises(UnknownTaskError):
        RCDT.from_dsrl("OfflineHoper-v1")


def test_learn_counts_continues_and_adds(drivers):
    agent = RCDT(**QUICK)
    agent.learn(drivers, total_steps=5)
    assert agent.num_timesteps == 5
    agent.learn(total_timesteps=3)
    assert agent.num_timesteps == 8
    agent.learn(4, reset_num_timesteps=False)
    assert (agent.num_timesteps, agent.total_steps) == (12, 12)
    agent.learn(total_steps=0)
    assert (agent.num_timesteps, agent.total_steps) == (12, 12)
    agent.learn()  # the configuration's
    assert agent.num_timesteps == 12 + QUICK["total_steps"]


def test_learn_refuses(drivers, dataset):
    with pytest.raises(InvalidArgumentError, match="`learn` needs `dataset`"):
        RCDT(**QUICK).learn()
    for steps in (-1, 2.0, "5", True):
        with pytest.raises(
            InvalidArgumentError, match=f"`total_steps` must be a whole number >= 0, got {steps!r}"
        ):
            RCDT(**QUICK).learn(drivers, steps)
    agent = RCDT(gym.make(ENV_ID), **QUICK)
    with pytest.raises(DatasetError, match="have size 3, but the environment's have size 4"):
        agent.learn(dataset)
    agent.learn(drivers, 2)
    half, _ = drivers.split(0.5)
    with pytest.raises(TrainingError, match="trained on another dataset"):
        agent.learn(half, 5)


def test_data_without_any_cost(drivers):
    from dataclasses import replace

    safe = replace(drivers, costs=np.zeros_like(drivers.costs))
    agent = RCDT(**QUICK).learn(safe, 2)
    assert agent.cost_budget == agent.policy.normalizer.ctg_scale.item() == 1.0
    assert np.isfinite(agent.predict(drivers.observations[0])[0]).all()


def test_path_as_dataset(drivers, tmp_path):
    drivers.to_hdf5(tmp_path / "mine.hdf5")
    agent = RCDT(**QUICK).learn(tmp_path / "mine.hdf5", 2)
    agent.learn(tmp_path / "mine.hdf5", 1)  # read again: the same data
    assert agent.num_timesteps == 3
    assert agent.dataset.fingerprint == drivers.fingerprint
    assert agent.cost_budget == pytest.approx(float(np.median(drivers.episode_costs)))


def test_same_seed_same_agent_and_nobodys_randomness_is_touched(drivers):
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    one = RCDT(**QUICK).learn(drivers)
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(77)
    two = RCDT(**QUICK).learn(drivers)
    for a, b in zip(one.policy.parameters(), two.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    other = RCDT(**{**QUICK, "seed": 4}).learn(drivers)
    assert not torch.equal(
        other.policy.transformer.head.layers[-1].weight,
        one.policy.transformer.head.layers[-1].weight,
    )


def test_predict_single_batch_and_sampled(agent, drivers):
    obs = drivers.observations
    action, state = agent.predict(obs[0])
    assert action.shape == (1,) and action.dtype == np.float32
    assert gym.make(ENV_ID).action_space.contains(action)
    actions, state = agent.predict(obs[:6], agent.begin(6))
    assert actions.shape == (6, 1) and state.n_envs == 6
    np.testing.assert_allclose(actions[0], action, atol=1e-5)
    draws = [agent.predict(obs[0], agent.begin(), None, False)[0] for _ in range(5)]
    assert len({float(draw[0]) for draw in draws}) > 1
    torch.manual_seed(1)  # sampling has a generator of its own, which the agent's seed begins
    agent.set_random_seed(agent.seed)
    assert [agent.predict(obs[0], agent.begin(), None, False)[0] for _ in range(5)] == draws


def test_many_environments_at_once_equal_one_by_one(agent, drivers):
    """Batched prediction over whole episodes, of different lengths because one restarts."""
    n, steps = 4, 12
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(steps, n, 4)).astype(np.float32)
    rewards, costs = rng.normal(size=(steps, n)), rng.uniform(size=(steps, n))
    starts = np.zeros((steps, n), dtype=bool)
    starts[7, 2] = True
    batched, state = [], None
    for t in range(steps):
        actions, state = agent.predict(obs[t], state, starts[t])
        batched.append(actions)
        state = state.observe(rewards[t], costs[t])
    for i in range(n):
        state = None
        for t in range(steps):
            action, state = agent.predict(obs[t, i], state, starts[t, i : i + 1])
            np.testing.assert_allclose(action, batched[t][i], atol=1e-5)
            state = state.observe(rewards[t, i], costs[t, i])


def test_dropout_is_off_whenever_the_agent_acts(drivers):
    """Also between two steps of training, and after training that followed an action."""
    agent, obs = RCDT(**{**QUICK, "dropout": 0.5}), drivers.observations[:3]
    seen = []

    def act_twice(_locals, _globals):
        seen.append([agent.predict(obs, agent.begin(3))[0] for _ in range(2)])
        return True

    agent.learn(drivers, 4, callback=act_twice)
    for one, two in seen:
        np.testing.assert_array_equal(one, two)
    alone = RCDT(**{**QUICK, "dropout": 0.5}).learn(drivers, 4)  # and acting changes no training
    np.testing.assert_array_equal(agent.predict(obs)[0], alone.predict(obs)[0])


def test_acting_in_chunks_is_acting_at_once(agent, drivers, monkeypatch):
    obs = drivers.observations[:7]
    together, _ = agent.predict(obs)
    monkeypatch.setattr("rcdt_agent.deploy.policy.CPU_CHUNK", 1)  # one environment at a time
    apart, _ = agent.predict(obs, agent.begin(7))
    np.testing.assert_allclose(apart, together, atol=1e-6)


def test_a_frozen_token_never_passes_silently(agent, drivers):
    _, state = agent.predict(drivers.observations[0])
    with pytest.raises(StateError, match="before the outcome of its last action was seen"):
        agent.predict(drivers.observations[1], state)
    agent.predict(drivers.observations[1], state.observe(1.0, 0.0))
    # A new episode needs no feedback about the old one.
    agent.predict(drivers.observations[1], state, episode_start=[True])


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (np.zeros(5), r"`observation` must have shape \(4,\), or \(N, 4\) .* got \(5,\)"),
        (np.zeros((2, 5)), r"got \(2, 5\)"),
        (np.full(4, np.nan), "`observation` must be finite"),
        ({"observation": np.zeros(4)}, r"'episode_step', 'target_return'\] is missing"),
    ],
)
def test_bad_observations(agent, observation, message):
    with pytest.raises(InvalidArgumentError, match=message):
        agent.predict(observation)


def test_untrained_agents_say_so():
    agent = RCDT(**QUICK)
    for call in (lambda: agent.predict(np.zeros(4)), lambda: agent.save("x"), agent.begin):
        with pytest.raises(InvalidArgumentError, match="call `learn` first"):
            call()
    with pytest.raises(InvalidArgumentError, match="no cost budget yet"):
        _ = agent.cost_budget


def test_data_without_training_give_targets_but_no_actions(drivers):
    """After `set_dataset` an environment can be wrapped, for callbacks; nothing acts yet."""
    agent = RCDT(cost_budget=10, **QUICK)
    agent.set_dataset(drivers)
    obs, _ = agent.wrap(gym.make(ENV_ID)).reset(seed=0)
    assert obs["episode_cost"] == 0 and agent.target_return > 0
    with pytest.raises(InvalidArgumentError, match="call `learn` first"):
        agent.predict(drivers.observations[0])


def test_budget_and_target(agent, drivers):
    agent.set_cost_budget(10)
    assert agent.cost_budget == 10
    asked = 10 * (1 - agent.config.budget_margin)
    outcomes, quantile = agent.policy.outcomes, agent.config.target_quantile
    assert agent.target_return == pytest.approx(outcomes.target_return(asked, quantile))
    low = agent.target_return
    agent.set_cost_budget(30)
    assert agent.target_return > low
    for bad in (-3.0, float("nan")):
        with pytest.raises(InvalidArgumentError, match="`cost_budget` must be >= 0"):
            agent.set_cost_budget(bad)
    for request in (50.0, "paper"):
        with pytest.raises(InvalidArgumentError, match="told the cost budget alone"):
            agent.set_cost_budget(5, request)
    with pytest.raises(InvalidArgumentError, match="told the cost budget alone"):
        agent.begin(1, 5, target_return=50.0)
    env = ReturnCostTokens(gym.make(ENV_ID), target_return=50.0)
    with pytest.raises(InvalidArgumentError, match="told the cost budget alone"):
        agent.predict(env.reset(seed=0)[0])
    assert agent.cost_budget == 30


def test_a_return_can_be_asked_of_a_policy_with_its_token(drivers):
    agent = RCDT(return_token=True, **QUICK).learn(drivers, 2)
    with pytest.warns(UserWarning, match="exceeds the best return"):
        agent.set_cost_budget(5, target_return=500)
    assert agent.target_return == 500
    with pytest.raises(InvalidArgumentError, match="needs a DSRL task"):
        agent.set_cost_budget(5, "paper")


def test_a_budget_set_before_training_is_kept(drivers):
    settings = {"return_token": True, **QUICK}
    agent = RCDT(cost_budget=4.0, target_return=12.0, **settings).learn(drivers, 2)
    assert (agent.cost_budget, agent.target_return) == (4.0, 12.0)


def test_budget_in_mid_episode_reaches_the_state(agent, drivers):
    obs = drivers.observations[0]
    agent.set_cost_budget(10)
    _, state = agent.predict(obs)
    state = state.observe(1.0, 3.0)
    agent.set_cost_budget(25)
    _, state = agent.predict(obs, state)
    assert state.cost_to_go[0] == 22
    assert state.ctg[0, :2].tolist() == [25, 22]


def test_own_budgets_do_not_follow_the_agent(agent, drivers):
    state = agent.begin(2, cost_budget=[3.0, 30.0])
    assert state.target_return[1] > state.target_return[0]
    agent.set_cost_budget(10)
    _, state = agent.predict(drivers.observations[:2], state)
    assert state.cost_budget.tolist() == [3.0, 30.0]


def test_wrapped_and_plain_loops_act_alike(agent):
    """Tokens in the observation, or told by `observe`: the same actions."""
    agent.set_cost_budget(10)

    def plain():
        env, state, done = gym.make(ENV_ID), None, False
        obs, _ = env.reset(seed=5)
        while not done:
            action, state = agent.predict(obs, state)
            obs, reward, terminated, truncated, info = env.step(action)
            state = state.observe(reward, info["cost"])
            done = terminated or truncated
            yield action

    def wrapped():
        env, state, done = agent.wrap(gym.make(ENV_ID)), None, False
        obs, _ = env.reset(seed=5)
        while not done:
            action, state = agent.predict(obs, state)
            obs, _, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
            yield action

    np.testing.assert_allclose(list(plain()), list(wrapped()), atol=1e-5)


def test_another_number_of_environments_is_refused(agent, drivers):
    _, state = agent.predict(drivers.observations[:3])
    with pytest.raises(InvalidArgumentError, match="`state` is of 3 environments"):
        agent.predict(drivers.observations[:2], state.observe(0.0, 0.0))


def test_actions_are_scaled_to_the_space():
    arrays = random_arrays([10] * 5)
    arrays["actions"] = arrays["actions"] * [5.0, 0.1] + [5.0, 0.0]
    data = TrajectoryDataset.from_arrays(**arrays)

    class Wide(gym.Env):
        observation_space = gym.spaces.Box(-9, 9, (3,), dtype=np.float32)
        action_space = gym.spaces.Box(
            np.array([0, -0.1], np.float32), np.array([10, 0.1], np.float32)
        )

    with pytest.raises(InvalidArgumentError, match=r"actions reach 9.*beyond \[-1, 1\]"):
        RCDT(**QUICK).learn(data, 2)
    agent = RCDT(Wide(), **QUICK).learn(data, 30)
    actions, _ = agent.predict(data.observations[:20])
    assert all(Wide.action_space.contains(action) for action in actions)
    assert actions[:, 0].mean() > 1  # around five, not around zero


def test_config_or_fields_but_not_both():
    with pytest.raises(InvalidArgumentError, match="Give either `config` or"):
        RCDT(config=make_config("tiny"), eta=0.5)
    assert RCDT(config=make_config("tiny", "cdt")).config.variant == "cdt"


def test_environment_must_fit(agent):
    class Other(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (9,))
        action_space = gym.spaces.Box(-1, 1, (1,))

    with pytest.raises(
        InvalidArgumentError, match="observation has size 9, the agent's has size 4"
    ):
        agent.set_env(Other())
    agent.set_env(gym.make(ENV_ID))
    assert agent.get_env().num_envs == 1


def test_parameters(agent, drivers):
    parameters = {
        name: {key: value.clone() for key, value in values.items()}
        for name, values in agent.get_parameters().items()
    }
    obs = drivers.observations[:3]
    before, _ = agent.predict(obs)
    with torch.no_grad():
        agent.policy.transformer.head.layers[-1].bias += 0.3
    assert not np.allclose(agent.predict(obs, agent.begin(3))[0], before)
    agent.set_parameters(parameters)
    np.testing.assert_array_equal(agent.predict(obs, agent.begin(3))[0], before)
    with pytest.raises(InvalidArgumentError, match="must hold"):
        agent.set_parameters({})


def test_going_on_spreads_the_learning_rate_anew(drivers):
    """Forty steps end at the smallest rate; forty more must not stay there."""
    agent = RCDT(**QUICK).learn(drivers)
    config = agent.config
    rates = []

    def note(local_values, global_values):
        rates.append(agent.training.optimizers["policy"].param_groups[0]["lr"])
        return True

    agent.learn(total_steps=40, callback=note)
    expected = [
        learning_rate(
            step, peak=config.learning_rate, warmup_steps=config.warmup_steps, total_steps=80,
            final_share=config.final_learning_rate,
        )
        for step in range(40, 80)
    ]  # fmt: skip
    assert config.final_learning_rate < 1
    np.testing.assert_allclose(rates, expected)
