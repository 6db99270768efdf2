"""No silent misuse: a state that is dropped, kept too long or not its own, and bad budgets."""

from __future__ import annotations

import copy
import warnings

import gymnasium as gym
import numpy as np
import pytest
from commands import rcdt
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from vector_envs import MinimalVector, Toll

from rcdt_agent import RCDT, ReturnCostTokens, VectorReturnCostTokens
from rcdt_agent.errors import DatasetError, InvalidArgumentError, StateError
from rcdt_agent.tasks.speed_limit import ENV_ID

DROPPED = r"was never used.*agent.predict\(obs, state\).*agent.act\(obs, reward, cost\)"


# ------------------------------------------------------------ dropped states


def test_the_standard_loop_of_stable_baselines3_raises_at_its_second_call(agent):
    env = gym.make(ENV_ID)
    obs, _ = env.reset(seed=0)
    action, _ = agent.predict(obs, deterministic=True)
    obs, *_ = env.step(action)
    with pytest.raises(StateError, match=DROPPED):
        action, _ = agent.predict(obs, deterministic=True)


def test_a_dropped_state_of_many_environments_or_of_no_name(agent, drivers):
    venv = DummyVecEnv([lambda: gym.make(ENV_ID)] * 2)
    obs = venv.reset()
    actions, _ = agent.predict(obs)
    obs, *_ = venv.step(actions)
    with pytest.raises(StateError, match=DROPPED):
        agent.predict(obs, episode_start=[False, True])  # one of them goes on
    assert agent.predict(drivers.observations[0])[0].shape == (1,)
    with pytest.raises(StateError, match=DROPPED):
        agent.predict(drivers.observations[0])  # also at the same observation


def test_evaluate_policy_on_a_plain_environment_raises(agent):
    with pytest.raises(StateError, match=r"state.observe\(reward, cost\)"):
        evaluate_policy(agent, Monitor(gym.make(ENV_ID)), n_eval_episodes=1)


def test_a_dropped_state_is_not_forgiven_for_another_environments_good_use(agent, drivers):
    obs = drivers.observations
    agent.predict(obs[0])
    wrapped, _ = agent.wrap(gym.make(ENV_ID)).reset(seed=0)
    agent.predict(wrapped)
    with pytest.raises(StateError, match=DROPPED):
        agent.predict(obs[1])


def test_episodes_that_begin_rightly_begin(agent, drivers):
    """Warnings are errors here, so none of these says a word."""
    obs = drivers.observations
    _, state = agent.predict(obs[0])
    state.observe(1.0, 0.0)  # an episode of one step
    _, state = agent.predict(obs[0])
    agent.predict(obs[1], state, [True])  # handed back, though for a new episode
    _, state = agent.predict(obs[1])
    copy.deepcopy(state).observe(1.0, 0.0)
    _, first = agent.predict(obs[2])
    first = first.observe(1.0, 0.0)
    _, second = agent.predict(obs[3])  # two environments, served in turn
    second = second.observe(1.0, 0.0)
    agent.predict(obs[4], first)
    agent.predict(obs[5], second)
    agent.predict(obs[6], None, [True])  # said to be a start
    agent.predict(obs[7], None, [True])
    agent.evaluate(ENV_ID, [5], n_episodes=2, n_envs=2)
    agent.predict(obs[8])
    for row in obs[:3]:  # several environments before any steps, or single questions
        agent.predict(row, agent.begin())


def test_an_error_is_not_repeated_once_the_loop_is_mended(agent, drivers):
    obs = drivers.observations
    agent.predict(obs[0])
    with pytest.raises(StateError):
        agent.predict(obs[1])
    _, state = agent.predict(obs[0])
    agent.predict(obs[1], state.observe(1.0, 0.0))


def test_a_wrapped_environment_may_begin_again_and_again(agent):
    env = agent.wrap(gym.make(ENV_ID))
    for seed in range(3):
        obs, _ = env.reset(seed=seed)
        action, _ = agent.predict(obs)
    obs, *_ = env.step(action)
    with pytest.raises(StateError, match="at step 1 of its episode, but `state` has seen 0"):
        agent.predict(obs)


# ------------------------------------------------------------ states kept too long, or of others


def plain_steps(agent, n_envs, steps):
    obs, state = np.zeros((n_envs, 4), np.float32), agent.begin(n_envs)
    for _ in range(steps):
        _, state = agent.predict(obs, state)
        state = state.observe(0.0, 0.0)
    return state


@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_plain_state_that_passes_the_episodes_length_is_warned_of_once(agent, n_envs):
    state = plain_steps(agent, n_envs, 61)  # SpeedLimit's episodes have 60 steps
    obs = np.zeros((n_envs, 4), np.float32)
    with pytest.warns(UserWarning, match=r"passed step 60,.*`episode_start`.*`agent.reset\(\)`"):
        _, state = agent.predict(obs, state)
    agent.predict(obs, state.observe(0.0, 0.0))  # a second warning would be an error here


def test_an_episode_that_is_longer_than_the_data_is_warned_of_in_wrapped_environments(agent):
    env = agent.wrap(Endless())
    obs, _ = env.reset(seed=0)
    state = None
    for _ in range(61):
        action, state = agent.predict(obs, state)
        obs, *_ = env.step(action)
    with pytest.warns(UserWarning, match="passed step 60"):
        agent.predict(obs, state)


class Endless(Toll):
    def reset(self, **kwargs):
        result = super().reset(**kwargs)
        self.length = 10**6
        return result


@pytest.mark.parametrize("mode", ["same", "next", "disabled"])
def test_states_kept_over_resets_of_a_vector_wrapper_begin_anew_without_a_word(agent, mode):
    """The wrapper says that an episode has begun: nothing is lost, so there is nothing to say."""
    inner = MinimalVector([lambda: FullLength(), lambda: FullLength()], mode)
    venv = VectorReturnCostTokens(inner)
    obs, _ = venv.reset(seed=0)
    state = None
    for _ in range(130):
        actions, state = agent.predict(obs, state)
        obs, *_ = venv.step(actions)
        if mode == "disabled" and inner.ended.any():
            obs, _ = venv.reset(options={"reset_mask": inner.ended.copy()})
    assert state.steps.max() < 61


class FullLength(Toll):
    def reset(self, **kwargs):
        result = super().reset(**kwargs)
        self.length = 60
        return result


def test_a_state_of_another_episode_whose_spent_cost_is_less_is_refused(agent):
    env = agent.wrap(Spending(1.0))
    obs, _ = env.reset()
    state = None
    for _ in range(3):
        action, state = agent.predict(obs, state)
        obs, *_ = env.step(action)
    cheap = agent.wrap(Spending(0.25))  # another episode that is as old
    other, _ = cheap.reset()
    for _ in range(3):
        other, *_ = cheap.step(action)
    agent.predict(obs, state)
    with pytest.raises(StateError, match="spent 0.75 in its episode, but `state` has seen 2 spent"):
        agent.predict(other, state)
    _, taken = agent.predict(other, agent.begin())
    assert taken.total_cost.tolist() == [0.75]


class Spending(Endless):
    def __init__(self, cost):
        super().__init__()
        self.cost = cost

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"cost": self.cost}


def test_an_episode_taken_over_under_way_goes_on(agent):
    env = agent.wrap(Spending(1.0))
    obs, _ = env.reset()
    for _ in range(5):  # somebody else drives
        obs, *_ = env.step(np.zeros(1, np.float32))
    agent.set_cost_budget(20)
    state = agent.begin()
    for step in range(5, 8):
        action, state = agent.predict(obs, state)
        assert state.cost_to_go.tolist() == [20 - step]
        known = range(max(5, step + 1 - agent.context_length), step + 1)
        assert state.timesteps[0, : len(known)].tolist() == list(known)
        obs, *_ = env.step(action)
    assert state.steps.tolist() == [3] and state.episode_steps.tolist() == [8]
    obs, _ = env.reset()
    _, state = agent.predict(obs, state)
    assert state.episode_steps.tolist() == [1] and not state.timesteps.any()


def test_what_is_no_state_and_no_start_is_refused(agent, drivers):
    for bad in ((), "state", 0, np.zeros(1)):
        with pytest.raises(InvalidArgumentError, match="`state` must be what the last `predict`"):
            agent.predict(drivers.observations[0], bad)
    with pytest.raises(InvalidArgumentError, match=r"`episode_start` must have shape \(2,\)"):
        agent.predict(drivers.observations[:2], agent.begin(2), [True])
    with pytest.raises(InvalidArgumentError, match=r"of 2 environments, but there are 3 obs"):
        agent.predict(drivers.observations[:3], agent.begin(2))


# ------------------------------------------------------------ an episode held by the agent


def test_act_equals_predict_with_a_state(agent):
    env = gym.make(ENV_ID)
    obs, _ = env.reset(seed=2)
    agent.reset(cost_budget=20)
    assert agent.cost_budget == 20
    state, outcome = agent.begin(), ()
    for t in range(60):
        if t == 20:
            agent.set_cost_budget(5)  # acts at once, also after `reset(cost_budget=20)`
        action = agent.act(obs, *outcome)
        expected, state = agent.predict(obs, state)
        np.testing.assert_array_equal(action, expected)
        np.testing.assert_array_equal(agent.episode.cost_to_go, state.cost_to_go)
        obs, reward, _, _, info = env.step(action)
        outcome = reward, info["cost"]
        state = state.observe(*outcome)
    assert agent.episode.cost_budget.tolist() == [5]


def test_act_raises_with_the_cure(agent, drivers):
    obs = drivers.observations
    with pytest.raises(StateError, match=r"call `agent.reset\(\)` before `agent.act\(obs\)`"):
        agent.act(obs[0])
    agent.reset()
    with pytest.raises(StateError, match=r"first step after `agent.reset\(\)` is `agent.act\(obs"):
        agent.act(obs[0], 1.0, 0.0)
    agent.act(obs[0])
    for missing in ((), (1.0,), (None, 0.0)):
        with pytest.raises(StateError, match=r"`agent.act\(obs, reward, cost\)`.*`agent.reset\(\)"):
            agent.act(obs[1], *missing)
    with pytest.raises(InvalidArgumentError, match="`cost` must be >= 0, got -1"):
        agent.act(obs[1], 1.0, -1.0)
    with pytest.raises(InvalidArgumentError, match="`observation` must be finite"):
        agent.act(obs[1] * np.nan, 1.0, 2.0)
    agent.act(obs[1], 1.0, 2.0)  # what was refused was not counted
    assert agent.episode.total_cost.tolist() == [2.0]
    with pytest.raises(InvalidArgumentError, match=r"`agent.begin\(3\)` is a state for as many"):
        agent.act(obs[:3], 1.0, 0.0)
    agent.reset()
    assert agent.episode.total_cost.tolist() == [0.0]


def test_act_reads_a_wrapped_environments_facts(agent):
    env = agent.wrap(Spending(1.0))
    obs, _ = env.reset()
    agent.reset(cost_budget=20)
    for _ in range(3):
        obs, *_ = env.step(agent.act(obs))
    agent.act(obs)
    assert agent.episode.cost_to_go.tolist() == [17.0]
    with pytest.raises(InvalidArgumentError, match="told the cost budget alone"):
        agent.reset(cost_budget=20, target_return=50.0)


def test_a_dict_of_sensors_for_an_agent_of_arrays(agent):
    with pytest.raises(
        InvalidArgumentError, match="must be an array, .* got a dict of 'speed', 'l"
    ):
        agent.predict({"speed": 1.0, "limit": 2.0}, agent.begin())


# ------------------------------------------------------------ budgets


@pytest.mark.parametrize("bad", ["20", None, [5], [5, 10], [[1.0], [2.0, 3.0]], True, {"k": 1}, 1j])
def test_what_is_not_one_number_is_no_budget(agent, bad):
    with pytest.raises(InvalidArgumentError, match="`cost_budget` must be"):
        agent.set_cost_budget(bad)
    if bad is not None:  # there, nothing is stated
        with pytest.raises(InvalidArgumentError, match="`cost_budget` must be"):
            RCDT(preset="tiny", cost_budget=bad)
        with pytest.raises(InvalidArgumentError, match="`cost_budget` must be"):
            agent.reset(cost_budget=bad)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("20", ">= 0, got '20', which is no number"),
        *((bad, ">= 0, got") for bad in ([[1.0], [2.0, 3.0]], [1.0, "2"], [None, 1.0])),
        ({"k": 1}, "a number: there is one cost, without a name; got {'k': 1}"),
    ],
)
def test_what_are_no_numbers_are_no_budgets(agent, bad, message):
    vector = gym.vector.SyncVectorEnv([lambda: gym.make(ENV_ID)] * 2)
    for entry in (
        lambda: agent.begin(2, cost_budget=bad),
        lambda: agent.evaluate(ENV_ID, bad, 1),
        lambda: ReturnCostTokens(gym.make(ENV_ID), cost_budget=bad),
        lambda: VectorReturnCostTokens(vector, cost_budget=bad),
    ):
        with pytest.raises(InvalidArgumentError, match=f"`cost_budget` must be {message}"):
            entry()


def test_budgets_and_targets_are_one_or_one_for_each(agent):
    assert agent.begin(3, [1, 2, 3]).cost_budget.tolist() == [1, 2, 3]
    with pytest.raises(InvalidArgumentError, match=r"one for each of 3 environments, got shape"):
        agent.begin(3, [1, 2])
    with pytest.raises(InvalidArgumentError, match=r"`target_return` must be one number, or one"):
        agent.begin(3, 5.0, [1, 2])
    for bad in (float("nan"), "60"):
        with pytest.raises(InvalidArgumentError, match="`target_return` must be finite"):
            agent.begin(2, 5.0, bad)
    for bad in (0, -1, 2.5, "3", True):
        with pytest.raises(InvalidArgumentError, match="`n_envs` must be a whole number >= 1"):
            agent.begin(bad)
    vector = gym.vector.SyncVectorEnv([lambda: gym.make(ENV_ID)] * 2)
    with pytest.raises(InvalidArgumentError, match="one for each of 2 environments"):
        VectorReturnCostTokens(vector, cost_budget=[1.0, 2.0, 3.0])


def test_a_budget_above_the_data_is_warned_of_once_with_the_numbers(agent, drivers):
    largest = float(drivers.episode_costs.max())
    message = f"cost budget 500 is above {largest:g}, the largest cost of the 100 training"
    with pytest.warns(UserWarning, match=message):
        agent.set_cost_budget(500)
    agent.set_cost_budget(500)  # again would be an error here
    agent.begin(2, cost_budget=500)
    agent.set_cost_budget(largest)
    with pytest.warns(UserWarning, match="cost budget 600 is above"):
        agent.begin(2, cost_budget=[5, 600])
    with pytest.warns(UserWarning, match="cost budget 700 is above"):
        agent.reset(cost_budget=700)
    own = ReturnCostTokens(gym.make(ENV_ID), cost_budget=800.0)
    agent.reset(cost_budget=20)
    obs, _ = own.reset(seed=0)
    with pytest.warns(UserWarning, match="cost budget 800 is above"):
        agent.predict(obs)
    with pytest.warns(UserWarning, match="cost budget 900 is above"):
        RCDT(preset="tiny", cost_budget=900).set_dataset(drivers)


def test_a_budget_below_the_data_is_warned_of_once_with_the_numbers(drivers):
    costly = drivers.select(np.flatnonzero(drivers.episode_costs > 10))
    agent = RCDT(preset="tiny", seed=0, total_steps=2).learn(costly)
    with pytest.warns(UserWarning, match=rf"cost budget 3 is covered by 0 of {len(costly)}"):
        agent.set_cost_budget(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.set_cost_budget(3)
    with pytest.warns(UserWarning, match="cost budget 4 is covered by 0"):
        agent.begin(cost_budget=4)


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["-5", "nan"])
def test_a_bad_budget_on_the_command_line_is_one_clean_line(trained, tmp_path, bad):
    (tmp_path / "agent.zip").write_bytes(trained)
    result = rcdt("evaluate", str(tmp_path / "agent.zip"), "--env", ENV_ID, "--budgets", bad)
    assert result.returncode == 2
    assert result.stderr.strip() == f"error: `budgets` must be >= 0, got {bad}."


# ------------------------------------------------------------ data that do not fit


class Narrow(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (4,), dtype=np.float32)
    action_space = gym.spaces.Box(-0.5, 0.25, (1,), dtype=np.float32)


def test_actions_outside_the_environments_space_are_refused_with_numbers(drivers):
    outside = (drivers.actions < -0.50001) | (drivers.actions > 0.25001)
    first = int(np.argmax(outside))
    message = (
        rf"drivers: `actions` must lie in .*from \[-0.5\] to \[0.25\]; {outside.sum()} of 6000 "
        rf"rows do not, the first is row {first}: .*range from \[-1.\] to \[1.\]"
    )
    with pytest.raises(DatasetError, match=message):
        RCDT(Narrow(), preset="tiny").learn(drivers, 1)
    with pytest.raises(DatasetError, match="must lie in the environment's action space"):
        RCDT(Narrow(), preset="tiny").set_dataset(drivers)


def test_data_of_another_tasks_sizes_are_refused_at_once(drivers):
    message = "`observations` have size 4, but those of OfflineBallCircle-v0 have size 8"
    with pytest.raises(DatasetError, match=f"drivers: {message}"):
        RCDT.from_dsrl("BallCircle", dataset=drivers, preset="tiny")
    agent = RCDT.from_dsrl("SpeedLimit", dataset=drivers, preset="tiny")
    assert agent.dataset is drivers
