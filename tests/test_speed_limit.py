"""SpeedLimit: the environment by hand, the optimum against an independent linear programme."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from scipy.optimize import linprog
from stable_baselines3.common.env_util import make_vec_env

import rcdt_agent  # noqa: F401  (registers the environment)
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.tasks import speed_limit as sl


def linear_programme(budget: float) -> float:
    """The continuous problem with all starts coupled by the expected budget, solved by HiGHS."""
    starts = [(v, z) for v in sl.START_SPEEDS for z in sl.ZONE_STARTS]
    n_kinks = round(sl.MAX_SPEED / sl.GRID)
    per = sl.HORIZON * (1 + n_kinks)  # per start: speeds, then excess above each kink
    n = per * len(starts)
    objective, cost_row = np.zeros(n), np.zeros(n)
    rows, rhs = [], []
    for i, (v0, zone) in enumerate(starts):
        base = i * per
        objective[base : base + sl.HORIZON] = -1 / len(starts)
        cost_row[base + sl.HORIZON : base + per] = 0.5 / len(starts)
        for t in range(sl.HORIZON):
            for sign in (1, -1):
                row = np.zeros(n)
                row[base + t] = sign
                if t:
                    row[base + t - 1] = -sign
                rows.append(row)
                rhs.append(sl.GRID + (sign * v0 if t == 0 else 0.0))
            for k in range(n_kinks):
                row = np.zeros(n)
                row[base + t] = 1
                row[base + sl.HORIZON + t * n_kinks + k] = -1
                rows.append(row)
                rhs.append(float(sl.limit_at(t, zone)) + k * sl.GRID)
    rows.append(cost_row)
    rhs.append(budget)
    bounds = ([(0, sl.MAX_SPEED)] * sl.HORIZON + [(0, None)] * (per - sl.HORIZON)) * len(starts)
    from scipy.sparse import csr_matrix

    result = linprog(objective, A_ub=csr_matrix(np.array(rows)), b_ub=rhs, bounds=bounds)
    assert result.success
    return -float(result.fun)


def test_cost_by_hand():
    excess = [-0.5, 0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0]
    np.testing.assert_allclose(
        sl.speeding_cost(excess), [0, 0, 0.05, 0.1, 0.3, 0.6, 1.0, 1.5], atol=1e-12
    )


def test_limit_by_hand():
    assert [float(sl.limit_at(t, 20)) for t in (0, 19, 20, 34, 35)] == [1.0, 1.0, 0.6, 0.6, 1.0]


def test_one_step_by_hand():
    env = gym.make(sl.ENV_ID)
    env.reset(seed=0)
    inner = env.unwrapped
    inner._speed, inner._zone_start = 1.0, 30
    obs, reward, terminated, truncated, info = env.step(np.array([0.5], np.float32))
    assert reward == pytest.approx(1.1)
    assert info["cost"] == pytest.approx(0.05)
    assert not terminated and not truncated
    np.testing.assert_allclose(obs, [1.1, 1.0, 29 / 60, 59 / 60], rtol=1e-6)


def test_environment_obeys_gymnasium():
    check_env(gym.make(sl.ENV_ID, render_mode="rgb_array").unwrapped)


def test_a_frame_shows_the_limit_and_the_speed():
    env = gym.make(sl.ENV_ID, render_mode="rgb_array")
    env.reset(seed=0)
    inner = env.unwrapped
    inner._speed, inner._zone_start = 1.5, 20
    frame = env.render()
    assert frame.shape == (120, 240, 3) and frame.dtype == np.uint8
    assert frame[45, 1].tolist() == [200, 30, 30]  # height 1.25: below the speed, above the limit
    assert frame[20, 1].tolist() == [255, 255, 255]  # height 1.66: nothing is as fast
    grey = (frame[:, 4::4] == 190).all(-1).sum(0) / 120 * sl.MAX_SPEED
    np.testing.assert_allclose(grey, sl.limit_at(np.arange(1, 60), 20), atol=0.02)
    inner._speed = 0.5
    assert env.render()[110, 1].tolist() == [30, 90, 200]
    assert gym.make(sl.ENV_ID).unwrapped.render() is None


def test_make_vec_env():
    """stable-baselines3 asks for frames unless told otherwise."""
    venv = make_vec_env(sl.ENV_ID, 2, seed=0)
    assert venv.reset().shape == (2, 4)
    assert venv.render("rgb_array").shape[-1] == 3


def test_episode_ends_by_truncation_and_needs_reset():
    env = gym.make(sl.ENV_ID, disable_env_checker=True)
    env.reset(seed=1)
    ends = [env.step(np.zeros(1, np.float32))[2:4] for _ in range(sl.HORIZON)]
    assert ends == [(False, False)] * (sl.HORIZON - 1) + [(False, True)]
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(1, np.float32))


def test_same_seed_same_episode():
    rolls = []
    for _ in range(2):
        env = gym.make(sl.ENV_ID)
        obs, _ = env.reset(seed=7)
        rolls.append([obs, *(env.step(np.array([0.3], np.float32))[0] for _ in range(20))])
    np.testing.assert_array_equal(rolls[0], rolls[1])
    assert not np.array_equal(rolls[0][0], gym.make(sl.ENV_ID).reset(seed=8)[0])


@pytest.mark.parametrize("action", [np.zeros(2), np.zeros(()), np.array([np.nan])])
def test_bad_action_is_refused(action):
    env = sl.SpeedLimitEnv()
    env.reset(seed=0)
    with pytest.raises(InvalidArgumentError, match="`action` must"):
        env.step(action)


@pytest.mark.parametrize("budget", [0.0, 3.0, 10.0, 40.0])
def test_optimum_equals_linear_programme(budget):
    assert sl.optimal_return(budget) == pytest.approx(linear_programme(budget), abs=1e-6)


def test_optimum_is_increasing_concave_and_saturates():
    budgets = np.array([0, 2, 5, 10, 20, 40, 80])
    best = np.array([sl.optimal_return(b) for b in budgets])
    slopes = np.diff(best) / np.diff(budgets)
    assert (slopes > 0).all() and (np.diff(slopes) < 0).all()
    assert sl.optimal_return(1e5) == sl.optimal_return(1e4)
    with pytest.raises(InvalidArgumentError, match="`cost_budget` must be >= 0"):
        sl.optimal_return(-1.0)


def test_no_driver_beats_the_optimum():
    data = sl.record_drivers(400, seed=3)
    returns = data["rewards"].reshape(400, -1).sum(1)
    costs = data["costs"].reshape(400, -1).sum(1)
    # From the best start and an easy zone a single episode can exceed the expectation a little.
    allowance = sl.HORIZON * 0.02
    assert all(r <= sl.optimal_return(c) + allowance for r, c in zip(returns, costs, strict=True))
    assert costs.min() == 0 and costs.max() > 40


def test_recorded_drivers_replay_in_the_environment():
    data = sl.record_drivers(3, seed=5)
    env = sl.SpeedLimitEnv()
    for episode in range(3):
        rows = slice(episode * sl.HORIZON, (episode + 1) * sl.HORIZON)
        env.reset(seed=0)
        env._speed = float(data["observations"][rows][0, 0])
        env._zone_start = round(float(data["observations"][rows][0, 2]) * sl.HORIZON)
        for t in range(sl.HORIZON):
            obs, reward, _, truncated, info = env.step(data["actions"][rows][t])
            np.testing.assert_allclose(obs, data["next_observations"][rows][t], atol=1e-5)
            assert reward == pytest.approx(data["rewards"][rows][t], abs=1e-5)
            assert info["cost"] == pytest.approx(data["costs"][rows][t], abs=1e-5)
            assert truncated == data["timeouts"][rows][t]
