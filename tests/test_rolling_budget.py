"""Budgets over a rolling window of steps: the rule by hand, acting, refusals, an endless plant."""

from __future__ import annotations

import io

import gymnasium as gym
import numpy as np
import pytest
from conftest import QUICK

from rcdt_agent import RCDT
from rcdt_agent.deploy.rolling import RollingWindow
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.deploy.wrappers import ReturnCostTokens
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.model_card import model_card
from rcdt_agent.tasks.speed_limit import ENV_ID

OBS = np.array([0.4, 1.0, 0.3, 1.0], dtype=np.float32)


class Endless(gym.Wrapper):
    """SpeedLimit's road again and again, as one episode that never ends."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            obs, _ = self.env.reset()
        return obs, reward, False, False, info


@pytest.fixture(scope="module")
def agent(drivers):
    agent = RCDT(**QUICK).learn(drivers)
    agent.set_deployment(budget_margin=0.0)
    return agent


def window_of(costs, steps, episode_length):
    """The window and the total after steps that cost so much, before the next one."""
    total = np.zeros(1, dtype=np.float32)
    window = RollingWindow.begin(total, steps, episode_length)
    for cost in costs:
        window = window.push(total)
        total = total + np.float32(cost)
    return window.push(total), total


def test_the_allowance_by_hand():
    """A window of four steps and a budget of 8; the last three steps cost 1, 0 and 5.

    The next step may cost 8 - 6 = 2. The next two 8 - 5 = 3, since the 1 has left the window. The
    next three 3, a pace of 1; the next four 8. The slowest pace is 1: 4 over the window.
    """
    window, total = window_of([9, 1, 0, 5], 4, 10)
    np.testing.assert_allclose(window.spent(total), [6.0])
    np.testing.assert_allclose(window.allowance(np.float32([8.0]), total), [4.0])
    assert (window.horizon, window.clock) == (4, 6)


def test_the_allowance_against_a_plain_loop_of_two_costs():
    rng = np.random.default_rng(0)
    costs = rng.exponential(1.0, (30, 3, 2)).astype(np.float32)
    budget = np.float32([[9.0, 7.0]] * 3)
    total = np.zeros((3, 2), dtype=np.float32)
    window = RollingWindow.begin(total, 7, 5)
    for t in range(30):
        window = window.push(total)
        found = window.allowance(budget, total)
        past = costs[:t]
        paces = [(budget - past[max(t + j - 7, 0) :].sum(0)) / j for j in range(1, 8)]
        np.testing.assert_allclose(found, 5 * np.min(paces, axis=0), rtol=1e-4, atol=1e-4)
        total = total + costs[t]


def test_what_is_spent_returns_when_it_leaves_the_window(agent):
    agent.set_cost_budget(3, per=3)
    state, lefts = None, []
    for cost in (2.0, 0.0, 0.0, 0.0, 0.0):
        _, state = agent.predict(OBS, state)
        state = state.observe(1.0, cost)
        lefts.append(float(state.cost_to_go[0]))
    assert lefts == [1.0, 1.0, 1.0, 3.0, 3.0]
    assert state.timesteps[0].max() == agent.episode_length - 3


def test_a_window_that_is_full_asks_for_no_cost(agent):
    agent.set_cost_budget(6, per=10)
    _, state = agent.predict(OBS)
    _, state = agent.predict(OBS, state.observe(0.0, 7.0))
    _, budget = agent.policy.conditioning.targets(state)
    np.testing.assert_allclose(budget - state.total_cost, [0.0])


def test_a_window_asked_for_in_mid_episode_counts_what_was_spent(agent):
    agent.set_cost_budget(20)
    _, state = agent.predict(OBS)
    state = state.observe(0.0, 3.0)
    agent.set_cost_budget(4, per=4)
    for expected in (1.0, 1.0, 1.0, 4.0):
        _, state = agent.predict(OBS, state)
        np.testing.assert_allclose(state.cost_to_go, [expected])
        state = state.observe(0.0, 0.0)
    agent.set_cost_budget(10)
    _, state = agent.predict(OBS, state)
    assert state.rolling is None
    np.testing.assert_allclose(state.cost_to_go, [7.0])  # of the episode again


def test_a_new_episode_has_the_whole_window(agent):
    agent.set_cost_budget(6, per=10)
    env = agent.wrap(gym.make(ENV_ID))
    obs, _ = env.reset(seed=0)
    state, done = None, False
    while not done:
        action, state = agent.predict(obs, state)
        obs, _, _, done, _ = env.step(np.ones_like(action))  # speeding
    assert state.cost_to_go[0] < 0
    obs, _ = env.reset(seed=1)
    _, state = agent.predict(obs, state)
    np.testing.assert_allclose(state.cost_to_go, [6.0])


def test_bad_windows_are_refused_and_the_budget_stays(agent):
    agent.set_cost_budget(6, per=10)
    for bad in (0, -1, 2.5, "10", True, 10**12):
        with pytest.raises(InvalidArgumentError, match="`per` must be a whole number of steps"):
            agent.set_cost_budget(5, per=bad)
    with pytest.raises(InvalidArgumentError, match="`target_return` cannot be stated with `per`"):
        agent.set_cost_budget(5, 30.0, per=10)
    with pytest.raises(InvalidArgumentError, match="for every 10 steps"):
        agent.calibrate(ENV_ID, [5.0], n_episodes=1)
    assert (agent.cost_budget, agent.cost_window) == (6.0, 10)


def test_coverage_is_judged_by_the_cost_of_an_episode_at_that_pace(drivers):
    agent = RCDT(**QUICK)
    agent.set_dataset(drivers)
    largest = drivers.episode_costs.max()
    with pytest.warns(
        UserWarning, match=r"per 30 steps, in an episode of 60: The cost budget .* is above"
    ):
        agent.set_cost_budget(largest, per=30)  # twice as much in an episode of 60


def test_saved_agents_keep_their_window(agent, tmp_path):
    agent.set_cost_budget(6, per=10)
    agent.save(tmp_path / "agent.zip")
    loaded = RCDT.load(tmp_path / "agent.zip")
    assert (loaded.cost_budget, loaded.cost_window) == (6.0, 10)
    states = [None, None]
    for cost in (2.0, 3.0, 0.0):
        pairs = [a.predict(OBS, s) for a, s in zip((agent, loaded), states, strict=True)]
        np.testing.assert_array_equal(pairs[0][0], pairs[1][0])
        states = [state.observe(0.0, cost) for _, state in pairs]


def test_the_action_that_was_done_instead_is_what_the_context_holds(drivers):
    agent = RCDT(**{**QUICK, "action_token": True, "context_length": 2}).learn(drivers, 3)
    action, state = agent.predict(OBS)
    told = state.observe(1.0, 2.0, action=-np.ones_like(action))
    assert told.actions[0, 0].tolist() == [-1.0]
    assert state.observe(1.0, 2.0).actions[0, 0].tolist() == action.tolist()
    assert told.total_cost[0] == 2.0 and not told.awaiting.any()
    for wrong in ([1.0, 2.0], [np.nan]):
        with pytest.raises(InvalidArgumentError, match="`action` must be finite and of shape"):
            state.observe(1.0, 2.0, action=wrong)


def test_without_a_window_states_are_as_before(agent):
    agent.set_cost_budget(6)
    _, state = agent.predict(OBS)
    assert isinstance(state, AgentState) and state.rolling is None
    assert agent.cost_window is None


@pytest.mark.slow
@pytest.mark.xdist_group("speed_limit_driver")
def test_an_endless_plant_keeps_every_window(speed_limit_driver):
    file, _ = speed_limit_driver
    agent = RCDT.load(io.BytesIO(file))
    env = Endless(gym.make(ENV_ID).unwrapped)
    shares = []
    for per, budget in ((60, 5), (60, 20), (200, 50 / 3), (200, 200 / 3)):
        agent.set_cost_budget(budget, per=per)
        obs, _ = env.reset(seed=7)
        state, costs = None, []
        for _ in range(1500):
            action, state = agent.predict(obs, state)
            obs, reward, _, _, info = env.step(action)
            state = state.observe(reward, info["cost"])
            costs.append(info["cost"])
        sums = np.convolve(costs, np.ones(per), "valid")
        shares.append(sums.mean() / budget)
        print(per, budget, sums.mean(), sums.max())
        assert sums.max() <= budget
    assert min(shares) >= 0.7


def test_sums_of_a_plant_that_never_resets_stay_exact(agent):
    """After 2^25 of cost, a float32 would not move by one step's cost any more."""
    agent.set_cost_budget(5, per=10)
    _, state = agent.predict(OBS, agent.begin())
    spent = state.observe(0.0, 2.0**25)
    for _ in range(10):
        _, spent = agent.predict(OBS, spent)
        spent = spent.observe(1.0, 0.25)
    np.testing.assert_allclose(spent.cost_to_go, [5 - 10 * 0.25])
    _, state = agent.predict(OBS, spent)
    ctg = agent.policy.conditioning.targets(state)[1][:, None] - state.spent
    np.testing.assert_allclose(np.diff(ctg[0]), -0.25)
    env = agent.wrap(Endless(gym.make(ENV_ID).unwrapped))
    env.reset(seed=0)
    env._spent, env._steps = 2.0**25, 2**25
    obs, *_ = env.step(np.ones(1, dtype=np.float32))
    assert obs["episode_step"][0] == 2**25 + 1
    cost = obs["episode_cost"][0] - 2.0**25
    assert env.observation_space["episode_cost"].contains(obs["episode_cost"])
    obs, _, _, _, info = env.step(np.ones(1, dtype=np.float32))
    assert 0 < info["cost"] < 10
    assert obs["episode_cost"][0] - 2.0**25 - cost == pytest.approx(info["cost"], abs=1e-6)


def test_an_episodes_budget_of_a_wrapper_is_not_taken_for_a_windows(agent):
    agent.set_cost_budget(5, per=10)
    for own in ({"cost_budget": 5.0}, {"target_return": 30.0}):
        env = ReturnCostTokens(gym.make(ENV_ID), **own)
        obs, _ = env.reset(seed=0)
        with pytest.raises(InvalidArgumentError, match="Environment 0 has a .* every 10 steps"):
            agent.predict(obs)
    env.set_targets(None, None)
    obs, _ = env.reset(seed=0)
    assert agent.predict(obs)[1].rolling is not None


def test_a_window_is_never_dropped_in_silence(agent, tmp_path):
    agent.set_cost_budget(5, per=10)
    assert "agent.set_cost_budget(5.0, per=10)" in model_card(agent, 'load_agent("agent.zip")')
    with pytest.raises(InvalidArgumentError, match="`target_return` is an episode's"):
        agent.reset(target_return=30.0)
    with pytest.raises(InvalidArgumentError, match="An ONNX file knows budgets of episodes only"):
        agent.export_onnx(tmp_path / "policy.onnx")
    agent.reset()
    agent.act(OBS)
    assert agent.episode.rolling is not None and agent.cost_window == 10


def test_a_shield_whose_critics_see_the_token_acts(drivers):
    settings = {**QUICK, "critic_inputs": "token", "shield_candidates": 2}
    agent = RCDT(**settings).learn(drivers, 2)
    _, state = agent.predict(OBS)
    action, _ = agent.predict(OBS, state.observe(0.0, 1.0))
    assert np.isfinite(action).all()
