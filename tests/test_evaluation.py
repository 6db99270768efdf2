"""Evaluation: independent of how it is parallelised, honest in what it counts."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from rcdt_agent import evaluate_budgets
from rcdt_agent.errors import InvalidArgumentError, UnknownTaskError
from rcdt_agent.experiments.sources import environment_spaces
from rcdt_agent.stats import bootstrap_interval, bootstrap_means, nested_bootstrap_interval
from rcdt_agent.tasks.speed_limit import ENV_ID


def by_hand(agent, budget, seed):
    """One episode in the plainest loop there is."""
    env = gym.make(ENV_ID)
    obs, _ = env.reset(seed=seed)
    state = agent.begin(cost_budget=budget)
    total_return = total_cost = 0.0
    done = False
    while not done:
        action, state = agent.predict(obs, state)
        obs, reward, terminated, truncated, info = env.step(action)
        state = state.observe(reward, info["cost"])
        total_return += reward
        total_cost += info["cost"]
        done = terminated or truncated
    return total_return, total_cost


def test_equals_the_plain_loop(agent):
    report = evaluate_budgets(agent, ENV_ID, [5, 20], n_episodes=3, seed=11, n_envs=4)
    for result in report.results:
        for episode in range(3):
            expected = by_hand(agent, result.budget, 11 + episode)
            got = result.returns[episode], result.costs[episode]
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("n_envs", [1, 2, 5, 16])
def test_does_not_depend_on_the_number_of_environments(agent, n_envs):
    reference = evaluate_budgets(agent, ENV_ID, [5, 20], n_episodes=4, n_envs=3)
    other = evaluate_budgets(agent, ENV_ID, [5, 20], n_episodes=4, n_envs=n_envs)
    for one, two in zip(reference.results, other.results, strict=True):
        np.testing.assert_allclose(one.returns, two.returns, atol=1e-3)
        np.testing.assert_allclose(one.costs, two.costs, atol=1e-3)


@pytest.mark.slow
def test_subprocesses_give_the_same(agent):
    alone = evaluate_budgets(agent, ENV_ID, [5], n_episodes=3)
    apart = evaluate_budgets(agent, ENV_ID, [5], n_episodes=3, subprocesses=True)
    np.testing.assert_allclose(alone.results[0].returns, apart.results[0].returns, atol=1e-3)


def test_an_environment_of_ones_own(agent):
    reference = evaluate_budgets(agent, ENV_ID, [5], n_episodes=2)
    for env in (gym.make(ENV_ID), lambda: gym.make(ENV_ID)):
        report = agent.evaluate(env, [5], n_episodes=2)
        np.testing.assert_allclose(
            report.results[0].returns, reference.results[0].returns, atol=1e-3
        )


def test_figures_are_what_they_say(agent):
    report = evaluate_budgets(agent, ENV_ID, [3, 0], n_episodes=6)
    result = report.results[0]
    costs = np.array(result.costs)
    assert result.mean_cost == pytest.approx(costs.mean())
    assert result.over_budget == pytest.approx((costs > 3).mean())
    assert result.normalized_cost == pytest.approx(costs.mean() / 3)
    assert result.passed == (costs.mean() <= 3)
    low, high = report.return_range
    assert result.normalized_return == pytest.approx((result.mean_return - low) / (high - low))
    assert report.range_source == "the training data's own range"
    assert result.cost_interval[0] <= result.mean_cost <= result.cost_interval[1]
    assert report.results[1].normalized_cost is None  # a budget of zero has no ratio
    assert report.passed == all(r.passed for r in report.results)


def test_json_and_table(agent, tmp_path):
    report = evaluate_budgets(agent, ENV_ID, [5, 20], n_episodes=2)
    report.to_json(tmp_path / "deep" / "report.json")
    loaded = json.loads((tmp_path / "deep" / "report.json").read_text())
    assert [r["budget"] for r in loaded["results"]] == [5, 20]
    assert loaded["results"][0]["returns"] == list(report.results[0].returns)
    table = report.as_table()
    assert table.count("\n") == 3
    assert "2 episodes a budget" in table and "training data's own range" in table


def test_costs_are_counted_from_the_steps(drivers):
    """An algorithm without a state is evaluated too, and its sums are the steps' own."""
    from rcdt_agent import BC

    policy = BC(preset="tiny", seed=0).learn(drivers, 20)
    report = policy.evaluate(ENV_ID, [5, 40], n_episodes=2, n_envs=3)
    env = gym.make(ENV_ID)
    obs, _ = env.reset(seed=0)
    total_return = total_cost = 0.0
    for _ in range(60):
        obs, reward, _, _, info = env.step(policy.predict(obs)[0])
        total_return += reward
        total_cost += info["cost"]
    for result in report.results:  # the same episodes at every budget
        assert result.returns[0] == pytest.approx(total_return, rel=1e-5)
        assert result.costs[0] == pytest.approx(total_cost, rel=1e-5)
        assert result.target_return is None


def test_bootstrap_means_resample_each_row_by_itself():
    values = np.array([[0.0, 0.0], [1.0, 3.0]])
    means = bootstrap_means(values, np.random.default_rng(0), 500)
    assert means.shape == (500, 2)
    assert not means[:, 0].any()
    assert set(means[:, 1]) == {1.0, 2.0, 3.0}


def test_nested_interval_knows_that_seeds_differ():
    """Seeds far apart and episodes alike: the interval spans the seeds, not the episodes."""
    values = np.broadcast_to(np.array([0.0, 10.0])[:, None, None], (2, 3, 50))
    low, high = nested_bootstrap_interval(values)
    assert (low, high) == (0.0, 10.0)
    assert nested_bootstrap_interval(np.ones((3, 1, 5))) == (1.0, 1.0)


def test_bootstrap_interval():
    values = np.random.default_rng(0).normal(10, 2, 400)
    low, high = bootstrap_interval(values)
    assert low < values.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * 2 / 20, rel=0.2)
    assert bootstrap_interval(np.full(5, 3.0)) == (3.0, 3.0)
    assert bootstrap_interval(values, 1) == bootstrap_interval(values, 1)


def test_refusals(agent):
    with pytest.raises(InvalidArgumentError, match="`env` must be given"):
        agent.evaluate()
    with pytest.raises(InvalidArgumentError, match="`budgets` must be given"):
        agent.evaluate(ENV_ID)
    with pytest.raises(InvalidArgumentError, match="must not be empty"):
        agent.evaluate(ENV_ID, [])
    with pytest.raises(InvalidArgumentError, match="Unknown task 'Nowhere-v0'"):
        agent.evaluate("Nowhere-v0", [1])


class Damage(gym.Wrapper):
    """The cost under another name."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {"damage": info["cost"]}


def excess(obs, action, next_obs, info):
    """A cost of one's own: of the speed that was reached, above 0.8."""
    assert obs.shape == next_obs.shape == (4,) and action.shape == (1,) and "damage" in info
    return max(0.0, float(next_obs[0]) - 0.8) + 0.01 * float(obs[0])


@pytest.mark.parametrize("n_envs", [1, 3])
def test_cost_from_another_key_or_a_function(agent, n_envs):
    def make():
        return Damage(gym.make(ENV_ID))

    expected = agent.evaluate(ENV_ID, [5, 20], n_episodes=2, n_envs=n_envs)
    found = agent.evaluate(make, [5, 20], n_episodes=2, n_envs=n_envs, cost_key="damage")
    assert [r.costs for r in found.results] == [r.costs for r in expected.results]
    found = agent.evaluate(make, 5, n_episodes=2, n_envs=n_envs, cost_fn=excess)
    for episode in range(2):
        env = agent.wrap(make(), cost_fn=excess)
        obs, _ = env.reset(seed=episode)
        state, done = agent.begin(cost_budget=5), False
        while not done:
            action, state = agent.predict(obs, state)
            obs, _, _, done, info = env.step(action)
        assert found.results[0].costs[episode] == pytest.approx(info["episode_cost"], rel=1e-4)
    with pytest.raises(InvalidArgumentError, match=r"`cost_key` is 'cost', `info` holds \['damage"):
        agent.evaluate(make, 5, n_episodes=1)


@pytest.mark.parametrize(
    "layers",
    [
        lambda env: Monitor(env),
        lambda env: gym.wrappers.TimeLimit(Monitor(env), 60),
        lambda env: gym.wrappers.RecordEpisodeStatistics(gym.wrappers.OrderEnforcing(env)),
    ],
)
def test_an_agents_wrapper_below_other_layers_changes_no_figure(agent, layers):
    plain = agent.evaluate(ENV_ID, [2, 40], n_episodes=3, n_envs=2)
    agent.set_cost_budget(20)

    def make():
        return layers(agent.wrap(gym.make(ENV_ID)))

    for env, n_envs in ((make(), None), (make, 2)):
        wrapped = agent.evaluate(env, [2, 40], n_episodes=3, n_envs=n_envs)
        for one, two in zip(plain.results, wrapped.results, strict=True):
            np.testing.assert_allclose(two.costs, one.costs, atol=1e-5)
            np.testing.assert_allclose(two.returns, one.returns, atol=1e-4)


def test_an_agents_wrapper_is_looked_through_whatever_it_counts(agent):
    """Another cost than the wrapper's, and rewards scaled outside of it: the steps count."""

    def doubled(obs, action, next_obs, info):
        assert obs.shape == next_obs.shape == (4,)
        return 2 * info["cost"]

    def scaled(env):
        return gym.wrappers.TransformReward(env, lambda reward: 3 * reward)

    def plain():
        return scaled(gym.make(ENV_ID))

    def wrapped():
        return scaled(agent.wrap(gym.make(ENV_ID)))

    one = agent.evaluate(plain, 20, n_episodes=2, cost_fn=doubled)
    two = agent.evaluate(wrapped, 20, n_episodes=2, cost_fn=doubled)
    assert one.results == two.results
    assert one.results[0].mean_cost > 0


def test_what_is_not_one_environment_is_refused(agent):
    def make():
        return gym.make(ENV_ID)

    many = DummyVecEnv([make]), gym.vector.SyncVectorEnv([make])
    for env in many:
        with pytest.raises(InvalidArgumentError, match="runs `n_envs` of them side by side itself"):
            agent.evaluate(env, [5], 1)
        with pytest.raises(InvalidArgumentError, match="`env` must make one Gymnasium environment"):
            agent.evaluate(lambda env=env: env, [5], 1)
    with pytest.raises(InvalidArgumentError, match="a function that makes one, got 3"):
        agent.evaluate(3, [5], 1)


def test_an_environment_without_cost(agent):
    class Costless(gym.Wrapper):
        def step(self, action):
            obs, reward, terminated, truncated, _ = self.env.step(action)
            return obs, reward, terminated, truncated, {}

    with pytest.raises(InvalidArgumentError, match="reported no cost"):
        agent.evaluate(lambda: Costless(gym.make(ENV_ID)), [5], 1)


class FallsOnOddSeeds(gym.Wrapper):
    """Ends by itself after ten steps if it was reset with an odd seed."""

    def reset(self, *, seed=None, options=None):
        self.steps, self.falls = 0, (seed or 0) % 2 == 1
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        return obs, reward, terminated or (self.falls and self.steps == 10), truncated, info


def test_episodes_that_end_early_are_counted(agent):
    report = evaluate_budgets(
        agent, lambda: FallsOnOddSeeds(gym.make(ENV_ID)), [5, 20], n_episodes=4, n_envs=3, seed=1
    )
    assert [result.ended_early for result in report.results] == [0.5, 0.5]
    head, *rows = report.as_table().splitlines()
    assert head.endswith("ended early")
    assert all(row.endswith("50%") for row in rows[:2])
    whole = evaluate_budgets(agent, ENV_ID, [5], n_episodes=2)
    assert whole.results[0].ended_early == 0.0  # a time limit is no fall
    assert "ended early" not in whole.as_table()


def test_an_environment_of_ones_own_package(agent, tmp_path, monkeypatch):
    """`my_package:Name-v0`, as Gymnasium has it: the package registers its environments."""
    text = "import gymnasium\ngymnasium.register('Plant-v0', entry_point="
    text += "'rcdt_agent.tasks.speed_limit:SpeedLimitEnv', max_episode_steps=60)\n"
    (tmp_path / "plant_of_ones_own.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    monkeypatch.setattr(gym, "registry", gym.envs.registration.registry)
    own = agent.evaluate("plant_of_ones_own:Plant-v0", [5], n_episodes=1)
    assert own.results[0].returns == agent.evaluate(ENV_ID, [5], n_episodes=1).results[0].returns
    assert environment_spaces("plant_of_ones_own:Plant-v0")["action_space"].shape == (1,)


def test_environments_that_are_not_there(agent):
    absent = r"module 'absent_package', which cannot be imported .*`python -m rcdt_agent`"
    with pytest.raises(InvalidArgumentError, match=absent):
        agent.evaluate("absent_package:Plant-v0", [5], n_episodes=1)
    with pytest.raises(InvalidArgumentError, match=absent):
        environment_spaces("absent_package:Plant-v0")
    with pytest.raises(UnknownTaskError, match="your own has to be registered with Gymnasium"):
        agent.evaluate("Plant-v7", [5], n_episodes=1)


def test_an_environment_of_other_observations_is_refused_with_both_sizes(agent):
    with pytest.raises(InvalidArgumentError, match="of size 4, .* got Pendulum-v1 with 3"):
        agent.evaluate("Pendulum-v1", [5], n_episodes=1)
