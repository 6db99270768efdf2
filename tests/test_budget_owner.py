"""The budget has one owner: wherever an environment runs, a changed budget acts at once."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from rcdt_agent import RCDT, ReturnCostTokens, VectorReturnCostTokens
from rcdt_agent.errors import InvalidArgumentError, StateError
from rcdt_agent.tasks.speed_limit import ENV_ID

STEPS, CHANGE_AT = 60, 20


@pytest.fixture(scope="module")
def driver(drivers):
    """An agent that drives faster where more may be spent."""
    return RCDT(preset="tiny", seed=0).learn(drivers, 400)


def make_env():
    return ReturnCostTokens(gym.make(ENV_ID))


def make_plain():
    import rcdt_agent  # noqa: F401  (registers the environment in a process of its own)

    return gym.make(ENV_ID)


def budgets(driver):
    """From 40 to 5 at step 20, at each step of an episode."""
    for t in range(STEPS):
        driver.set_cost_budget(40 if t < CHANGE_AT else 5)
        yield t


def custom_loop(driver, env):
    obs, _ = env.reset(seed=3)
    state, total = None, 0.0
    for _ in budgets(driver):
        action, state = driver.predict(obs, state)
        obs, reward, _, _, info = env.step(action)
        total += info["cost"]
        if not isinstance(env, ReturnCostTokens):
            state = state.observe(reward, info["cost"])
    return total


def act_loop(driver, env):
    obs, _ = env.reset(seed=3)
    driver.reset()
    outcome, total = (), 0.0
    for _ in budgets(driver):
        obs, reward, _, _, info = env.step(driver.act(obs, *outcome))
        outcome = () if isinstance(env, ReturnCostTokens) else (reward, info["cost"])
        total += info["cost"]
    return total


def sb3_loop(driver, venv):
    venv.seed(3)
    obs, state, total = venv.reset(), None, 0.0
    for _ in budgets(driver):
        action, state = driver.predict(obs, state)
        obs, _, _, infos = venv.step(action)
        total += infos[0]["cost"]
    venv.close()
    return total


def vector_loop(driver, venv):
    obs, _ = venv.reset(seed=3)
    state, total = None, 0.0
    for _ in budgets(driver):
        action, state = driver.predict(obs, state)
        obs, _, _, _, infos = venv.step(action)
        total += float(infos["cost"][0])
    venv.close()
    return total


@pytest.mark.slow
def test_a_changed_budget_costs_the_same_wherever_the_environment_runs(driver):
    found = {
        "plain loop": custom_loop(driver, gym.make(ENV_ID)),
        "wrapped": custom_loop(driver, driver.wrap(gym.make(ENV_ID))),
        "act": act_loop(driver, gym.make(ENV_ID)),
        "act, wrapped": act_loop(driver, driver.wrap(gym.make(ENV_ID))),
        "DummyVecEnv": sb3_loop(driver, DummyVecEnv([make_env])),
        "SubprocVecEnv": sb3_loop(driver, SubprocVecEnv([make_env])),
        "SyncVectorEnv": vector_loop(
            driver, VectorReturnCostTokens(gym.vector.SyncVectorEnv([make_plain]))
        ),
        "AsyncVectorEnv": vector_loop(
            driver, VectorReturnCostTokens(gym.vector.AsyncVectorEnv([make_plain]))
        ),
    }
    reference = found["plain loop"]
    assert found == pytest.approx(dict.fromkeys(found, reference), abs=1e-6)
    driver.set_cost_budget(40)
    unchanged = driver.evaluate(ENV_ID, [40], n_episodes=1, seed=3).results[0].mean_cost
    assert reference < unchanged - 1  # and the change acted


def test_a_lowered_budget_never_raises_the_token(driver):
    """The wrapper was made under another budget; only the agent's counts."""
    env = VectorReturnCostTokens(gym.vector.SyncVectorEnv([make_plain] * 2))
    driver.set_cost_budget(20)
    obs, _ = env.reset(seed=0)
    actions, state = driver.predict(obs)
    assert state.cost_to_go.tolist() == [20, 20]
    obs, *_ = env.step(actions)
    driver.set_cost_budget(8)
    _, state = driver.predict(obs, state)
    np.testing.assert_allclose(state.cost_to_go, 8 - obs["episode_cost"].ravel(), atol=1e-6)


def test_own_budgets_travel_with_the_observation(driver):
    driver.set_cost_budget(20)
    env = VectorReturnCostTokens(gym.vector.SyncVectorEnv([make_plain] * 2), None, [3.0, 30.0])
    obs, _ = env.reset(seed=0)
    _, state = driver.predict(obs)
    assert state.cost_budget.tolist() == [3, 30]
    assert state.target_return[0] == pytest.approx(driver.resolve_target(3.0))
    assert state.target_return[1] == pytest.approx(driver.resolve_target(30.0))


def test_a_dropped_or_stale_state_is_refused(driver):
    env = driver.wrap(gym.make(ENV_ID))
    obs, _ = env.reset(seed=0)
    action, first = driver.predict(obs)
    obs, *_ = env.step(action)
    with pytest.raises(StateError, match="at step 1 of its episode, but `state` has seen 0"):
        driver.predict(obs)  # SB3's habit: action, _ = model.predict(obs)
    action, state = driver.predict(obs, first)
    obs, *_ = env.step(action)
    with pytest.raises(StateError, match="at step 2 .* has seen 1: hand back the state"):
        driver.predict(obs, first)
    driver.predict(obs, state)
    driver.predict(obs, driver.begin())  # taking over an episode under way is said so


def test_a_state_kept_over_a_reset_begins_anew(driver):
    env = driver.wrap(gym.make(ENV_ID))
    obs, _ = env.reset(seed=0)
    state = None
    for _ in range(5):
        action, state = driver.predict(obs, state)
        obs, *_ = env.step(action)
    obs, _ = env.reset(seed=1)
    action, kept = driver.predict(obs, state)
    expected, _ = driver.predict(obs)
    np.testing.assert_array_equal(action, expected)
    assert kept.steps.tolist() == [1] and kept.total_cost.tolist() == [0]


def test_evaluating_a_wrapped_environment_counts_its_steps(driver):
    plain = driver.evaluate(gym.make(ENV_ID), [2, 40], n_episodes=2)
    driver.set_cost_budget(20)
    wrapped = driver.evaluate(driver.wrap(gym.make(ENV_ID)), [2, 40], n_episodes=2)
    for one, two in zip(plain.results, wrapped.results, strict=True):
        np.testing.assert_allclose(two.costs, one.costs, atol=1e-5)
        np.testing.assert_allclose(two.returns, one.returns, atol=1e-4)


def test_an_evaluations_budgets_count_more_than_the_wrappers_own(driver):
    plain = driver.evaluate(gym.make(ENV_ID), [2, 40], n_episodes=2)
    own = ReturnCostTokens(gym.make(ENV_ID), cost_budget=20.0, target_return=50.0)
    report = driver.evaluate(own, [2, 40], n_episodes=2)
    for one, two in zip(plain.results, report.results, strict=True):
        np.testing.assert_allclose(two.costs, one.costs, atol=1e-5)
    assert report.results[0].mean_cost < report.results[1].mean_cost


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of VecNormalize
def test_normalised_facts_do_not_pass(driver):
    venv = VecNormalize(DummyVecEnv([make_env]), norm_obs=True, norm_reward=False)
    obs = venv.reset()
    with pytest.raises(InvalidArgumentError, match=r"arrived changed.*norm_obs=False"):
        driver.predict(obs)
    own = ReturnCostTokens(gym.make(ENV_ID), cost_budget=5.0)
    venv = VecNormalize(DummyVecEnv([lambda: own]), norm_obs=True, norm_reward=False)
    obs = venv.reset()
    with pytest.raises(InvalidArgumentError, match=r"arrived changed.*norm_obs=False"):
        driver.predict(obs)
    venv = VecNormalize(DummyVecEnv([make_env]), norm_obs=False, norm_reward=True)
    obs, state = venv.reset(), None
    for _ in range(3):
        action, state = driver.predict(obs, state)
        obs, *_ = venv.step(action)
    assert state.steps.tolist() == [3]


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "many", [1.0, -2.0]])
def test_a_budget_is_checked_wherever_it_is_stated(driver, bad):
    entries = [
        lambda: RCDT(preset="tiny", cost_budget=bad),
        lambda: driver.set_cost_budget(bad),
        lambda: driver.begin(2, cost_budget=bad),
        lambda: ReturnCostTokens(gym.make(ENV_ID), cost_budget=bad),
        lambda: driver.evaluate(ENV_ID, bad if isinstance(bad, list) else [bad], 1),
    ]
    for entry in entries:
        with pytest.raises(InvalidArgumentError, match="`cost_budget` must be >= 0, got"):
            entry()


def test_one_budget_needs_no_list_and_several_are_not_one(driver):
    with pytest.raises(InvalidArgumentError, match="must be one number, got .5, 10."):
        driver.set_cost_budget([5, 10])
    assert len(driver.evaluate(ENV_ID, 5, n_episodes=1).results) == 1


ACTIONS = st.lists(
    st.one_of(st.just("step"), st.just("reset"), st.floats(0, 60)), min_size=1, max_size=25
)


@given(ACTIONS)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_token_is_always_the_budget_in_force_minus_what_was_spent(driver, script):
    """Random steps, resets and budget changes: the token never knows another budget or cost."""
    env = driver.wrap(gym.make(ENV_ID))
    obs, _ = env.reset(seed=0)
    driver.set_cost_budget(10)
    budget, spent, state = 10.0, 0.0, None
    for item in script:
        action, state = driver.predict(obs, state)
        assert state.cost_to_go[0] == pytest.approx(budget - spent, abs=1e-4)
        if item == "reset":
            obs, _ = env.reset()
            spent = 0.0
        else:
            if item != "step":
                driver.set_cost_budget(item)
                budget = item
            obs, _, _, _, info = env.step(action)
            spent += info["cost"]
